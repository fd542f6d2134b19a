"""The pages of the documentation: their blocks of code, run in order as one session in a folder.

Blocks of Markdown with the languages `console` and `python` are run. A console block has commands after `$ `, which go
to bash (a backslash at the end continues one), and below each what it prints, stdout and stderr together; a Python
block is a doctest. In both `...` stands for anything within a line. A comment before a block says more of it:

    <!-- file: NAME -->          the block is the content of this file, written before the next block is run
    <!-- not run: REASON -->     the block needs what a test does not have; tests/system/test_pages.py lists these
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.forks import programs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUN = ("console", "python")
"""The languages of blocks that are run."""
SHOWN = ("text", "toml", "bibtex")
"""The languages of blocks that only show something, unless they are files."""
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_PROGRESS = re.compile(r"\w+( \d+)?: [\d,]+ of [\d,]+ tiles?")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    """What the comment before it says; empty if there is none."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that this is."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None

    @property
    def reason(self) -> str | None:
        """Why the block is not run, if it is not."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else None

    @property
    def is_run(self) -> bool:
        return self.language in RUN and self.file is None and self.reason is None

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands of a console block, each with what it prints."""
        found: list[tuple[str, str]] = []
        for line in self.text.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif found[-1][1] == "" and found[-1][0].endswith("\\\n"):
                found[-1] = (found[-1][0] + line, "")
            else:
                found[-1] = (found[-1][0], found[-1][1] + line)
        return [(command.rstrip("\n"), shown) for command, shown in found]


def pages() -> list[Path]:
    """Return the README and all pages of docs/."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order; those of Sphinx's directives, such as {toctree}, are left out."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            name_of(page),
            text.count("\n", 0, one.start("text")) + 1,
            one["language"],
            one["text"],
            one["mark"] or "",
        )
        for one in _BLOCK.finditer(text)
        if not one["language"].startswith("{")
    ]


def shell(command: str, folder: Path, **more: str) -> str:
    """Return what a user at a shell sees; the `dasrel` and `python` are those of this run, forked."""
    path = os.pathsep.join(map(str, (folder, programs(), Path(sys.executable).parent, os.environ["PATH"])))
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "80", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout


def alike(shown: str, printed: str) -> bool:
    """Return whether they are equal, `...` standing for anything; progress lines of a slow machine do not count."""
    kept = [line for line in printed.splitlines() if not _PROGRESS.match(line)]
    pattern = ".*".join(re.escape(part) for part in shown.rstrip("\n").split("..."))
    return re.fullmatch(pattern, "\n".join(kept).rstrip("\n")) is not None


class Session:
    """Runs blocks one after another in a folder; names of Python stay defined from block to block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}

    def run(self, block: Block) -> None:
        """Run a block, or write it if it is a file; raise AssertionError if it prints another text than its page."""
        if block.file is not None:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            if block.text.startswith("#!"):
                path.chmod(0o755)
        elif block.language == "console":
            for command, shown in block.commands():
                printed = shell(command, self.folder)
                assert alike(shown, printed), f"{block.where}\n$ {command}\n{printed}"
        else:
            self._run_python(block)

    def _run_python(self, block: Block) -> None:
        report: list[str] = []
        test = doctest.DocTestParser().get_doctest(block.text, self.names, block.where, block.page, block.line - 1)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        here = Path.cwd()
        try:
            os.chdir(self.folder)
            found = runner.run(test, out=report.append, clear_globs=False)
        finally:
            os.chdir(here)
        self.names = test.globs
        assert found.attempted > 0, f"{block.where}: no examples"
        assert found.failed == 0, "".join(report)
