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
            rows = [(name, one.get_short_help_str(limit=200)) for name, one in self.commands.items()]
            formatter.write_dl(rows)
        with formatter.section("Options"):
            formatter.write_dl([_row(one) for one in self.get_params(ctx)])


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
    for one in command.get_params(ctx):
        if one.name not in ("help", "help_all"):
            panels.setdefault(_panel(one), []).append(one)
    formatter.write(f"{EXAMPLE}{example}\n\n")
    formatter.write_usage(ctx.command_path, " ".join([*(_row(one)[0] for one in panels[REQUIRED]), "[OPTIONS]"]))
    formatter.write_paragraph()
    formatter.write_text(text)
    rare: list[str] = []
    for panel, params in panels.items():
        listed = [one for one in params if everything or not getattr(one, "hidden", False)]
        if panel != PLACE:
            rare += [_flag(one) for one in params if one not in listed]
        if listed:
            with formatter.section(panel):
                formatter.write_dl([_row(one) for one in listed], col_max=WIDEST)
    if everything:
        return
    formatter.write_paragraph()
    if rare:
        more = f"More, see --help-all: {', '.join(rare)}."
        formatter.write(f"{fill(more, formatter.width, break_on_hyphens=False)}\n")
    if PLACE in panels:
        formatter.write_text(ELSEWHERE)


def _panel(one: Any) -> str:
    if one.param_type_name == "argument" or one.required:
        return REQUIRED
    return str(getattr(one, "rich_help_panel", None) or "Options")


def _flag(one: Any) -> str:
    """Return the flag that changes something: --no-picture, since what can be switched off is on by default."""
    return str((one.secondary_opts or one.opts)[0])


def _row(one: Any) -> tuple[str, str]:
    """Return what is typed and what it does."""
    if one.param_type_name == "argument":
        return one.metavar or one.name.upper(), one.help or ""
    flags = ", ".join(
        sorted([_flag(one), *(flag for flag in one.opts[1:] if flag != _flag(one))], key=len, reverse=True)
    )
    text = one.help or ""
    if one.is_flag or one.count:
        return ", ".join([flags, *one.opts[:1]]) if one.secondary_opts else flags, text
    shown = one.default is not None and one.show_default is not False
    return f"{flags} {one.metavar or 'VALUE'}", f"{text} [default: {one.default}]" if shown else text
