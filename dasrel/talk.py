"""How a command talks to people and to programs: progress, warnings and errors on stderr, the result on stdout."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
import warnings
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, cast

import typer

from dasrel import meter
from dasrel._version import __version__
from dasrel.errors import DasrelError, DasrelWarning, shown
from dasrel.progress import Drawing

# typer.BadParameter is the one usage error that every version of typer shows; its parent is all of them.
UsageError: Any = typer.BadParameter.__mro__[1]


class Talk:
    """One command's conversation: progress and warnings on stderr, the result on stdout, errors in one line."""

    def __init__(self, *, json: bool, quiet: bool, verbose: int) -> None:
        self.json = json
        self.quiet = quiet
        self.verbose = verbose
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always", DasrelWarning)
        plain = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, DasrelWarning):
                complain(f"warning: {message}")
            elif self.verbose:
                plain(message, category, *where, **more)

        warnings.showwarning = cast(Any, show)
        drawing = None if self.quiet else self._stack.enter_context(Drawing())
        self.meter = self._stack.enter_context(meter.watch(drawing))
        if self.verbose:
            import platform

            complain(f"version {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self.verbose:
            done = f"{self.meter.scans} scans, {self.meter.tiles} tiles, {self.meter.bytes / 1e9:.3g} GB"
            complain(f"{done}, {self.seconds:.1f} s")
        if error is None or isinstance(error, (SystemExit, typer.Exit, UsageError)):
            return
        raise typer.Exit(report(error, json=self.json, trace=self.verbose > 1)) from None

    @property
    def seconds(self) -> float:
        """Since the command began."""
        return round(time.perf_counter() - self._began, 3)

    def result(self, values: dict[str, Any], lines: list[tuple[str, str]]) -> None:
        """Print the result: `values` as one JSON object, or `lines` of names and texts for people."""
        self._stack.close()
        if self.json:
            print(json.dumps(_plain(values), allow_nan=False))
        elif not self.quiet:
            _print_lines(lines)
        sys.stdout.flush()


def _print_lines(lines: list[tuple[str, str]]) -> None:
    if not sys.stdout.isatty():  # for a file or a pipe: one line each, whatever its length
        width = max(len(name) for name, _ in lines)
        for name, text in lines:
            print(f"{name:<{width}}  {text}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(Text(name), Text(text))
    Console(highlight=False).print(table)


def complain(text: str) -> None:
    """One line on stderr; whatever comes from data is escaped."""
    print(f"dasrel: {shown(text, limit=4000)}", file=sys.stderr, flush=True)


def report(error: BaseException, *, json: bool, trace: bool) -> int:
    """Tell the user what went wrong, in one line, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        # Nobody reads any more: what is still in the buffer goes nowhere, and Python must not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if trace:
        traceback.print_exception(error)
    text = "interrupted" if isinstance(error, KeyboardInterrupt) else told(error)
    complain(text)
    if json:
        print_error(text)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def told(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, DasrelError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory; lower --memory or use smaller tiles (--tile)"
    return f"unexpected {type(error).__name__}: {error} (a defect of dasrel; -vv shows where)"


def print_error(text: str) -> None:
    """An error as one JSON object on stdout."""
    try:
        print(json.dumps({"error": text}), flush=True)
    except BrokenPipeError as error:
        report(error, json=False, trace=False)


def _plain(value: Any) -> Any:
    """Values that JSON has: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
