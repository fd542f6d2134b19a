"""The help of commands: an example, what must be given, then the options that most people need.

`--help` only names the rare options (`hidden` ones of Typer); `--help-all` describes all of them. The example is the
paragraph of a command's docstring that begins with "Example: ".
"""

from __future__ import annotations

from textwrap import fill
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dasrel.util.option_fields import PLACE, REQUIRED

EXAMPLE = "Example: "
ELSEWHERE = "On a Dask cluster: --dask, --scheduler and others, see --help-all."
WIDEST = 28
"""Columns for what is typed; what it does stands beside it, or below if it is longer."""


class HelpfulCommand(TyperCommand):
    """A command whose help begins with an example."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_help(self, ctx, formatter, everything=False)


class HelpfulGroup(TyperGroup):
    """The list of commands, after an example."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        text, example = split_example(self.help or "")
        formatter.write(f"{EXAMPLE}{example}\n\n")
        self.format_usage(ctx, formatter)
        formatter.write(f"\n{text}\n")
        with formatter.section("Commands"):
            rows = [(name, command.get_short_help_str(limit=200)) for name, command in self.commands.items()]
            formatter.write_dl(rows)
        with formatter.section("Options"):
            formatter.write_dl([_row(parameter) for parameter in self.get_params(ctx)])


def show_all(context: typer.Context, wanted: bool) -> None:
    """Print the complete help of a command and exit: the callback of --help-all."""
    if wanted:
        formatter = context.make_formatter()
        write_help(context.command, context, formatter, everything=True)
        print(formatter.getvalue().rstrip("\n"))
        raise typer.Exit


def split_example(text: str) -> tuple[str, str]:
    """Return a docstring without its example, on one line, and the example.

    >>> split_example("Do it.\\n\\nExample: dasrel do it")
    ('Do it.', 'dasrel do it')
    """
    text, _, example = text.partition(EXAMPLE)
    return " ".join(text.split()), " ".join(example.split())


def write_help(command: Any, ctx: Any, formatter: Any, *, everything: bool) -> None:
    """Write the help of a command: of all options, or without the rare ones."""
    text, example = split_example(command.help or "")
    panels: dict[str, list[Any]] = {REQUIRED: []}
    for parameter in command.get_params(ctx):
        if parameter.name not in ("help", "help_all"):
            panels.setdefault(_panel(parameter), []).append(parameter)
    formatter.write(f"{EXAMPLE}{example}\n\n")
    formatter.write_usage(
        ctx.command_path, " ".join([*(_row(parameter)[0] for parameter in panels[REQUIRED]), "[OPTIONS]"])
    )
    formatter.write_paragraph()
    formatter.write_text(text)
    rare: list[str] = []
    for panel, params in panels.items():
        listed = [parameter for parameter in params if everything or not getattr(parameter, "hidden", False)]
        if panel != PLACE:
            rare += [_flag(parameter) for parameter in params if parameter not in listed]
        if listed:
            with formatter.section(panel):
                formatter.write_dl([_row(parameter) for parameter in listed], col_max=WIDEST)
    if everything:
        return
    formatter.write_paragraph()
    if rare:
        more = f"More, see --help-all: {', '.join(rare)}."
        formatter.write(f"{fill(more, formatter.width, break_on_hyphens=False)}\n")
    if PLACE in panels:
        formatter.write_text(ELSEWHERE)


def _panel(parameter: Any) -> str:
    if parameter.param_type_name == "argument" or parameter.required:
        return REQUIRED
    return str(getattr(parameter, "rich_help_panel", None) or "Options")


def _flag(parameter: Any) -> str:
    """Return the flag that changes something: --no-picture, since what can be switched off is on by default."""
    return str((parameter.secondary_opts or parameter.opts)[0])


def _row(parameter: Any) -> tuple[str, str]:
    """Return what is typed and what it does."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper(), parameter.help or ""
    flags = ", ".join(
        sorted(
            [_flag(parameter), *(flag for flag in parameter.opts[1:] if flag != _flag(parameter))],
            key=len,
            reverse=True,
        )
    )
    text = parameter.help or ""
    if parameter.is_flag or parameter.count:
        return ", ".join([flags, *parameter.opts[:1]]) if parameter.secondary_opts else flags, text
    shown = parameter.default is not None and parameter.show_default is not False
    return f"{flags} {parameter.metavar or 'VALUE'}", f"{text} [default: {parameter.default}]" if shown else text
