"""Options of the commands, and the decorator that makes a command of a function.

Options are declared in the files of commands, and where Python has them too in the rooms below; here are those that
only the command line has.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from dasrel.cli.console import Console, as_option
from dasrel.cli.help import EXAMPLE, show_all
from dasrel.errors import InputError
from dasrel.names import AUTO, OTHER_RULES, RULES
from dasrel.util.limits import memory_limit
from dasrel.util.option_fields import (
    REPLACE,
    SURVIVING,
    TIME_LIMIT,
    WRITING,
    OptionField,
    Selection,
    build_group,
    check_number,
    option_fields,
    whole_numbers,
)

OUTPUT = "Output"
VALUES = {int: "N", float: "X"}
"""What stands for a number in the help."""
WIDEST = 24
"""Characters of the longest list of choices that stands for a value in the help."""


def option(name: str, text: str, panel: str, **more: Any) -> Any:
    """Return an option: its name, its help and the section of the help that lists it."""
    return typer.Option(*name.split(), help=text, rich_help_panel=panel, **more)


def flag(name: str, text: str, **more: Any) -> Any:
    """Return an option that says what is written."""
    return option(name, text, WRITING, **more)


Force = Annotated[bool, option("--force", REPLACE, WRITING)]
TimeLimit = Annotated[
    str | None,
    option("--time-limit", TIME_LIMIT, SURVIVING, metavar="DURATION"),
]
DryRun = Annotated[
    bool, option("--dry-run", "Only print what would be read, written and used; write nothing.", WRITING)
]


def comma_list(text: str, kind: Any = str) -> list[Any]:
    """Read values with commas between them: text, numbers, or one of the choices of a Literal.

    >>> comma_list("2,5-7", int), comma_list("auto, 0.5", Literal["auto"] | float)
    ([2, 5, 6, 7], ['auto', 0.5])
    """
    members = get_args(kind) if not isinstance(kind, type) and get_origin(kind) is not Literal else (kind,)
    words = [word for member in members for word in get_args(member)]
    number = next((member for member in members if member in (int, float)), None)
    values: list[Any] = []
    for part in (piece.strip() for piece in text.split(",")):
        try:
            if not part:
                raise ValueError
            if number is int and whole_numbers(part) is not None:
                values += whole_numbers(part) or []
                continue
            values.append(part if number is None or part in words else number(part))
        except InputError as error:
            raise typer.BadParameter(str(error)) from None
        except ValueError:
            wanted = {None: "words", int: "whole numbers", float: "numbers"}[number]
            also = f" or {', '.join(words)}" if number and words else ""
            such = ", such as 3, 2,5 or 2-10" if number is int else ""
            raise typer.BadParameter(f"{text!r}: give {wanted}{also} with commas between them{such}") from None
        if number is None and words and part not in words:
            here = OTHER_RULES.get(part.lower()) if words == [*RULES, AUTO] else None
            other = f": it is called {here} here" if here else ""
            raise typer.BadParameter(f"{part!r} is not one of {', '.join(words)}{other}")
    return values


def numbers_by_name(texts: list[str]) -> dict[str, float]:
    """Read the values of an option NAME=NUMBER that may be repeated.

    >>> numbers_by_name(["p=3"])
    {'p': 3.0}
    """
    numbers = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not NAME=NUMBER, such as p=3") from None
    return numbers


def check_memory(text: Any) -> None:
    """Raise a usage error if --memory is no amount of memory."""
    try:
        memory_limit(text)
    except InputError as error:
        raise typer.BadParameter(error.text(as_option), param_hint="--memory") from None


# ----------------------------------------------------------------------------------- groups that only commands have


@dataclass(frozen=True)
class OutputOptions:
    """What a command prints; every command has these."""

    json: Annotated[bool, option("--json", "Print one JSON object on stdout and nothing else there.", OUTPUT)] = False
    quiet: Annotated[bool, option("--quiet -q", "Print errors and warnings only.", OUTPUT)] = False
    verbose: Annotated[
        int,
        option(
            "--verbose -v", "Print more; -vv shows tracebacks.", OUTPUT, count=True, show_default=False, hidden=True
        ),
    ] = 0


HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, option("--help-all", "Describe all options.", OUTPUT, is_eager=True, callback=show_all)],
)
"""Every command has this too; its callback ends the command."""


# ----------------------------------------------------------------------------------------------- functions as commands


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a command for Typer of a function whose first parameter is `console: Console`.

    The help of the command begins with the example, a command line, and goes on with the function's docstring.
    The command has the function's other parameters as options, and those of `OutputOptions`; the function runs inside
    the `Console` that they describe. A parameter whose type is a dataclass, such as `reading: Reading`, is an option
    group: each of its fields is an option, or those of a `Selection`
    (`policy: Annotated[Policy, NEW_PAIRS]`), and the function gets an instance. One that may be left out has the type
    `Checkpoint | None`. What the class raises is reported as wrong usage.
    """
    return functools.partial(_command, example=example)


def _command(function: Callable[..., None], *, example: str) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "console":
            continue
        group = _group(hints[name])
        if group is None:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
        else:
            groups[name] = group
            parameters += _parameters(group)
    output = _parameters(OutputOptions)
    parameters.append(HELP_ALL)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        del given[HELP_ALL.name]
        with Console(**{field.name: given.pop(field.name) for field in output}) as console:
            console.resume = given.get("resume") is True
            check_memory(given.get("memory"))
            for name, group in groups.items():
                values = {field.name: given.pop(field.name) for field in _parameters(group)}
                check_numbers(group, values)
                try:
                    given[name] = build_from_text(group, values)
                except InputError as error:
                    raise typer.BadParameter(error.text(as_option)) from None
            function(console=console, **given)

    wrapper: Any = run
    wrapper.__doc__ = f"{function.__doc__}\n\n{EXAMPLE}{example}"
    wrapper.__signature__ = inspect.Signature([*parameters, *output])
    wrapper.__annotations__ = {field.name: field.annotation for field in [*parameters, *output]}
    return run


def _group(hint: Any) -> Any:
    """Return the dataclass or the selection of its fields that a parameter stands for, or None."""
    if get_origin(hint) is Annotated:
        return next((part for part in get_args(hint)[1:] if isinstance(part, Selection)), None)
    if get_origin(hint) in (Union, UnionType):
        groups: list[Any] = [part for part in get_args(hint) if dataclasses.is_dataclass(part)]
        return Selection(groups[0], optional=True) if groups else None
    return hint if dataclasses.is_dataclass(hint) else None


def _is_shared(group: Any) -> bool:
    return group is not OutputOptions


def output_parameters() -> list[inspect.Parameter]:
    """Return what every command prints, and --help-all."""
    return [HELP_ALL, *_parameters(OutputOptions)]


def _parameters(group: Any) -> list[inspect.Parameter]:
    """Return the fields of a group as parameters of a command."""
    if _is_shared(group):
        return [parameter(field) for field in option_fields(group)]
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]


def parameter(field: OptionField) -> inspect.Parameter:
    """Return a field of a shared group as a parameter of a command; what is converted later is text here."""
    listed, numbers = get_origin(field.type) is list, get_origin(field.type) is dict
    texts = numbers or field.option.repeated
    kind: Any = list[str] if texts else str if listed or field.option.parse is not None else field.type
    default = None if numbers else field.default
    if field.option.explain is not None:
        kind, default = str, None  # missing or wrong, it is explained
    elif default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    elif listed and default is not None:
        default = ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in default)
    words = get_args(field.type) if get_origin(field.type) is Literal else ()
    value = field.option.metavar or ("|".join(words) if words else VALUES.get(kind, "NAME"))
    text = field.option.help
    if len(value) > WIDEST:
        value = "NAME"
        text = text if all(word in text for word in words) else f"{text} One of {', '.join(words)}."
    more: dict[str, Any] = {"hidden": field.option.rare} | ({} if kind is bool else {"metavar": value})
    declared = option(_flags(field), text, field.option.panel, **more)
    kind = kind | None if default is None else kind
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _flag(field: OptionField) -> str:
    return f"--{field.name.replace('_', '-')}"


def _flags(field: OptionField) -> str:
    """Return the option's declaration: what is on by default can be switched off."""
    name = _flag(field)
    if field.option.short is not None:
        return f"{name} {field.option.short}"
    return f"{name}/--no-{name[2:]}" if field.type is bool and field.default is True else name


def check_numbers(group: Any, values: dict[str, Any]) -> None:
    """Raise if the value of an option that is one number is outside of its bounds."""
    for field in option_fields(group):
        value, option = values.get(field.name), field.option
        if field.type in (int, float) and option.parse is None and value is not None:
            check_number(
                field.name, value, whole=field.type is int, least=option.least, above=option.above, most=option.most,
                below=option.below, infinite=option.infinite,
            )  # fmt: skip


def build_from_text(group: Any, values: dict[str, Any]) -> Any:
    """Return a group from the values of its options; raise a usage error that names the option of a wrong one."""
    if not _is_shared(group):
        return group(**values)
    for field in option_fields(group):
        text = values.get(field.name)
        if text is None and field.option.explain is not None:
            raise typer.BadParameter(f"it is missing; {field.option.explain()}", param_hint=_flag(field))
        if text is None:
            continue
        if field.option.explain is not None and text not in get_args(field.type):
            raise typer.BadParameter(f"{text!r} is no {field.name}; {field.option.explain()}", param_hint=_flag(field))
        try:
            if field.option.parse is not None:
                values[field.name] = field.option.parse(text)
            elif field.option.repeated:
                values[field.name] = text or None
            elif get_origin(field.type) is list and not field.option.argument:
                values[field.name] = comma_list(text, get_args(field.type)[0])
            elif get_origin(field.type) is dict:
                values[field.name] = numbers_by_name(text)
        except typer.BadParameter as error:
            raise typer.BadParameter(error.message, param_hint=_flag(field)) from None
        except ValueError as error:
            problem = error.text(as_option) if isinstance(error, InputError) else f"{text!r} {error}"
            raise typer.BadParameter(problem, param_hint=_flag(field)) from None
    built = build_group(group, values)
    if built is None:  # an optional group whose first option, which it needs, was not given
        needed, *others = option_fields(group)
        for other in others:
            if (
                values[other.name] != other.default and other.name != "resume"
            ):  # a finished result needs no state to be found
                raise typer.BadParameter(f"{_flag(other)} needs {_flag(needed)} {needed.option.metavar}")
    return built
