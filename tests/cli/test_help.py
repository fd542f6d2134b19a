"""The help of every command: an example that can be run, what must be given, and all options somewhere."""

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
import typer

from dasrel.cli.app import build_app
from dasrel.util.option_fields import PLACE
from tests.helpers.processes import ran

GROUP: Any = typer.main.get_command(build_app())
COMMANDS = GROUP.commands


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def text_of(*arguments: str) -> list[str]:
    with redirect_stdout(StringIO()) as printed:
        assert ran(*arguments) == 0
    return printed.getvalue().splitlines()


def options_of(name: str) -> list[Any]:
    return [one for one in GROUP.commands[name].params if one.param_type_name == "option"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_begins_with_an_example_that_parses(name: str) -> None:
    first = text_of(name, "--help")[0]
    assert first.startswith(f"Example: dasrel {name}")
    arguments = shlex.split(first.removeprefix("Example: "))[2:]
    context = GROUP.commands[name].make_context(name, arguments)  # raises where the line cannot be read
    given = [one for one in context.command.params if one.param_type_name == "argument" and one.required]
    assert all(context.params[one.name] for one in given)
    assert name != "import" or context.params["kind"] == "distance"


@pytest.mark.parametrize("name", COMMANDS)
def test_what_must_be_given_comes_first(name: str) -> None:
    lines = text_of(name, "--help")
    required = [one for one in GROUP.commands[name].params if one.required]
    headers = [k for k, line in enumerate(lines) if re.match(r"\S.*:$", line)]
    names = [one.opts[0] if one.param_type_name == "option" else one.metavar for one in required]
    names += ["--kind"] if name == "import" else []
    if names:
        assert lines[headers[0]] == "Required:"
    section = "\n".join(lines[headers[0] : headers[1]])
    assert [word for word in names if word not in section] == []
    usage = next(line for line in lines if line.startswith("Usage: "))
    assert [word for word in names if word not in usage] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_all_options_are_named_and_described_in_full(name: str) -> None:
    short, full = "\n".join(text_of(name, "--help")), "\n".join(text_of(name, "--help-all"))
    assert max(len(line) for line in (short + "\n" + full).splitlines()) <= 80
    flags = {one.name: (one.secondary_opts or one.opts)[0] for one in options_of(name)}
    elsewhere = {one.name for one in options_of(name) if one.rich_help_panel == PLACE}
    for option, flag in flags.items():
        if option == "help_all":
            continue
        assert re.search(rf"^  {flag}\b", full, flags=re.MULTILINE), flag
        assert (re.search(rf"{flag}\b", short) is not None) == (
            option not in elsewhere or flag in ("--dask", "--scheduler")
        )
    assert ("On a Dask cluster: " in short) == bool(elsewhere)
    assert "--tls-ca" not in short


def test_the_help_of_cluster_is_one_screen() -> None:
    assert len(text_of("cluster", "--help")) <= 45


def test_the_list_of_commands_begins_with_an_example() -> None:
    lines = text_of("--help")
    assert lines[0] == "Example: dasrel demo"
    assert [name for name in COMMANDS if not any(line.startswith(f"  {name} ") for line in lines)] == []
