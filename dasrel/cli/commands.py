"""Make a command of an operation: its arguments, options, progress, result and exit code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any

import typer

from dasrel.cli.console import Console, as_option, complain
from dasrel.cli.help import EXAMPLE, HelpfulCommand
from dasrel.cli.options import (
    DryRun,
    Force,
    build_from_text,
    check_memory,
    check_numbers,
    flag,
    output_parameters,
    parameter,
)
from dasrel.commands.base import Operation, Target
from dasrel.commands.operations import operation, summary
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.runtime import Runtime
from dasrel.errors import InputError
from dasrel.util.option_fields import Selection, check_fields, option_fields
from dasrel.util.results import check_not_input

SAVING = Selection(Checkpoint, optional=True)


def add_commands(app: typer.Typer, names: Iterable[str], wanted: str | None) -> None:
    """Add the commands of operations to an app. Only the wanted one is imported; None wants all of them."""
    for name in names:
        function = _as_command(operation(name)) if wanted in (None, name) else _placeholder(name)
        app.command(name, cls=HelpfulCommand)(function)


def _placeholder(name: str) -> Any:
    """Return a function that only has a help, for the list of commands."""

    def nothing() -> None:
        """Do nothing."""

    nothing.__doc__ = summary(name)
    return nothing


def _as_command(operation: Operation) -> Any:
    """Return the function that Typer makes a command of."""
    arguments = _arguments(operation)
    options = [each for each in option_fields(operation.Options) if not (each.option.argument or each.option.step_only)]
    groups = [
        *(option_fields(SAVING) if operation.saves else []),
        *(option_fields(Runtime) if operation.on_dask else []),
    ]
    given = {each.name for each in options}
    flags = [*_target(operation)[1]]
    if operation.target is not None and "force" not in given:
        flags.append(_keyword("force", Force, False))
    if operation.has_cost and not operation.only_cost:
        flags.append(_keyword("dry_run", DryRun, False))
    output = output_parameters()
    parameters = [*arguments, *map(parameter, options), *flags, *map(parameter, groups), *output]

    def run(**values: Any) -> None:
        del values[output[0].name]  # --help-all has ended the command
        with Console(**{each.name: values.pop(each.name) for each in output[1:]}) as console:
            console.resume = values.get("resume") is True
            check_memory(values.get("memory"))
            _run(operation, console, values)

    command: Any = run
    command.__name__ = operation.name
    command.__doc__ = f"{summary(operation.name)}\n\n{EXAMPLE}{operation.example}"
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _arguments(operation: Operation) -> list[inspect.Parameter]:
    """Return what is given by position: the source, arguments among the options, the target."""
    source, positional = operation.source, []
    if source is not None:
        kind = list[source.kind] if source.several else source.kind  # type: ignore[name-defined]
        argument = typer.Argument(metavar=source.metavar, help=source.help)
        positional.append(_keyword(_source_name(operation), Annotated[kind, argument]))
    for each in option_fields(operation.Options):
        if each.option.argument:
            argument = typer.Argument(metavar=each.option.metavar, help=each.option.help)
            positional.append(_keyword(each.name, Annotated[each.type, argument]))
    return [*positional, *_target(operation)[0]]


def _source_name(operation: Operation) -> str:
    """Return the name of the parameter for what is read: that of its key."""
    return "source" if operation.source is None else operation.source.key or "source"


def _target(operation: Operation) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Return the target as an argument, or as a flag."""
    target = operation.target
    if target is None:
        return [], []
    default = inspect.Parameter.empty if target.default is ... else target.default
    kind: Any = str if default is inspect.Parameter.empty else str | None
    if target.flag is None:
        return [
            _keyword("target", Annotated[kind, typer.Argument(metavar=target.metavar, help=target.help)], default)
        ], []
    return [], [_keyword("target", Annotated[kind, flag(target.flag, target.help, metavar=target.metavar)], default)]


def _run(operation: Operation, console: Console, values: dict[str, Any]) -> None:
    """Check the options, do the work or estimate its cost, and print the result."""
    source = None if operation.source is None else values.pop(_source_name(operation))
    path = values.pop("target", None)
    shared = {SAVING: bool(operation.saves), Runtime: operation.on_dask}  # `dasrel plan` has --workers of its own
    for group in (operation.Options, *(group for group, is_taken in shared.items() if is_taken)):
        check_numbers(group, values)
    try:
        options = build_from_text(operation.Options, values)
        checkpoint = build_from_text(SAVING, values) if operation.saves else None
        runtime = build_from_text(Runtime, values) if operation.on_dask else Runtime()
    except InputError as error:
        raise typer.BadParameter(error.text(as_option)) from None
    check_fields(options)
    force = bool(values.get("force"))
    target = Target(path, force=force, resume=console.resume)
    if path is not None and isinstance(source, str):
        check_not_input(path, source)
    with operation.prepare(source, target, options) as prepared:
        if operation.only_cost or values.get("dry_run"):
            cost = prepared.cost()
            console.result({**cost.as_dict(), "seconds": console.seconds}, cost.lines())
            return
        checkpoint = checkpoint and replace(checkpoint, force=force)
        with nullcontext() if prepared.finished is not None else console.at(runtime):
            result = prepared.run(checkpoint)
    console.finish(checkpoint, path, *operation.saves)
    values = result if "seconds" in result else {**result, "seconds": console.seconds}
    console.result(values, operation.lines(result))
    failure = operation.failure(result, options)
    if failure is not None:
        line, code = failure
        complain(line)
        raise typer.Exit(code)
