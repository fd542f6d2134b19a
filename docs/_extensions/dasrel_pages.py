"""What Sphinx needs beyond its own: the help of all commands, and docstrings as dasrel writes them.

The directive `{dasrel-commands}` shows the help of every command, as the command line itself prints it.
"""

import os
import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from dasrel.cli.app import COMMANDS, run
from dasrel.commands.operations import OPERATIONS


class Commands(SphinxDirective):
    """A section for each command: `dasrel COMMAND --help-all`."""

    def run(self) -> list[nodes.Node]:
        return [_section(name) for name in [*COMMANDS, *OPERATIONS]]


def _section(name: str) -> nodes.section:
    section = nodes.section(ids=[f"dasrel-{name}"], names=[f"dasrel {name}"])
    section += nodes.title(text=f"dasrel {name}")
    section += nodes.literal_block(text=_help(name), language="text")
    return section


def _help(name: str) -> str:
    os.environ["COLUMNS"] = "100"
    with redirect_stdout(StringIO()) as printed:
        code = run([name, "--help-all"])
    if code:
        raise ExtensionError(f"dasrel {name} --help-all: exit code {code}")
    return printed.getvalue().strip("\n")


def escape_bars(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Let bars outside of backticks be bars, as in |U - U'|: for docutils they are substitutions."""
    lines[:] = [
        "".join(
            re.sub(r"(?<!\\)\|", r"\\|", part) if k % 2 == 0 else part
            for k, part in enumerate(re.split(r"(`+[^`]*`+)", line))
        )
        for line in lines
    ]


def skip_requests(_app: Sphinx, _what: str, name: str, _object: Any, skip: bool, _options: Any) -> bool | None:
    """Leave out the methods that scikit-learn adds to estimators for its routing of metadata."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("dasrel-commands", Commands)
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("autodoc-skip-member", skip_requests)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
