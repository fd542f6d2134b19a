"""Progress, warnings, results and errors of a command on the terminal.

Progress, warnings and errors go to stderr, the result to stdout. Progress is drawn by `dasrel.util.drawing`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self, cast

import typer

from dasrel import __version__
from dasrel.commands.base import RENAMED
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.runtime import Runtime, connect
from dasrel.errors import ClusterError, DasrelError, DasrelWarning, Stopped, StoreError
from dasrel.util import PathLike, limits, progress
from dasrel.util.drawing import Drawing
from dasrel.util.files import disk_error_text, remove_leftovers
from dasrel.util.limits import Cost
from dasrel.util.text import count_text, json_ready, redacted, shown, size_text, time_text

# typer.BadParameter is the one usage error that every version of typer shows; its parent is all of them.
UsageError: Any = typer.BadParameter.__mro__[1]
SIGTERM = "stopped by SIGTERM"
STOPPED = 75
"""The exit code of a command that was stopped and can be resumed: EX_TEMPFAIL, try again."""


class Console:
    """The output of one command: progress and warnings on stderr, the result on stdout, errors in one line."""

    def __init__(self, *, json: bool, quiet: bool, verbose: int) -> None:
        self.json = json
        self.quiet = quiet
        self.verbose = verbose
        self.resume = False
        """Whether the command has --resume: an earlier one was interrupted."""
        self._stack, self._listening = ExitStack(), ExitStack()

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always", DasrelWarning)
        plain = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, DasrelWarning):
                complain(f"warning: {message.text(as_option)}")
            elif self.verbose:
                plain(message, category, *where, **more)

        warnings.showwarning = cast(Any, show)
        self._stop = self._listening.enter_context(limits.listening(self._print_sigterm))
        if self.verbose:
            self._stack.enter_context(_log_on_stderr())
        drawing = None if self.quiet else self._stack.enter_context(Drawing())
        self.meter = self._stack.enter_context(progress.watch(drawing))
        if self.verbose:
            import platform

            from dasrel.kernels import native

            made = f"version {__version__} (kernels: {native.described()})"
            complain(f"{made}, Python {platform.python_version()}, {os.cpu_count()} cores")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._listening:
            self._stack.close()
            if self.verbose:
                done = [count_text(self.meter.scans, "scan"), count_text(self.meter.tiles, "tile")]
                complain(", ".join([*done, size_text(self.meter.bytes), time_text(self.seconds)]))
            if error is None or isinstance(error, (SystemExit, typer.Exit, UsageError)):
                return
            signalled = self._stop.signalled
            code = report(error, json=self.json, trace=self.verbose > 1, signalled=signalled)
        raise typer.Exit(code) from None

    def _print_sigterm(self) -> None:
        """Print that the process ends now, whatever the main thread is doing and whatever locks it holds."""
        os.write(2, f"dasrel: {SIGTERM}\n".encode())
        if self.json:
            os.write(1, json.dumps({"error": SIGTERM}).encode() + b"\n")

    @property
    def seconds(self) -> float:
        """Seconds since the command began."""
        return round(time.perf_counter() - self._began, 3)

    def at(self, runtime: Runtime) -> AbstractContextManager[Any]:
        """Return a context in which work runs on local threads or on a cluster."""
        return connect(runtime, tell=self.tell, logs=self.verbose > 1)

    def finish(self, checkpoint: Checkpoint | None, out: PathLike | None, *commands: str) -> None:
        """Remove the checkpoints of a result that is saved and, on --resume, what a killed process left beside it."""
        if checkpoint is not None:
            checkpoint.clear(*commands)
        if self.resume and out is not None:
            remove_leftovers(out)

    def tell(self, text: str) -> None:
        """Print one line on stderr, unless --quiet is given."""
        if not self.quiet:
            complain(text)

    def cost(self, cost: Cost) -> None:
        """Print what a command would read, write and use."""
        self.result({**cost.as_dict(), "seconds": self.seconds}, cost.lines())

    def result(self, values: dict[str, Any], lines: list[tuple[str, str]]) -> None:
        """Print the result: `values` as one JSON object (--json), or `lines` of names and texts."""
        self._stack.close()
        if self.meter.complete:
            values = {**values, "nothing_to_do": True}
            lines = [*lines, ("nothing to do", f"{shown(self.meter.complete, limit=400)} was complete already")]
        if self.meter.network:
            values = {**values, "network_bytes": self.meter.network}
            a_scan = size_text(self.meter.network // max(1, self.meter.scans))
            lines = [*lines, ("network", f"{size_text(self.meter.network)} sent in scans, {a_scan} in each")]
        try:
            if self.json:
                print(json.dumps(json_ready(redacted(values)), allow_nan=False))
            elif not self.quiet:
                _print_lines([(name, redacted(text)) for name, text in lines])
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard_output()
            raise StoreError(
                f"the result cannot be printed ({error.strerror}); files are written nevertheless"
            ) from None


def _print_lines(lines: list[tuple[str, str]]) -> None:
    if not sys.stdout.isatty():  # a file or a pipe: one line each, whatever its length
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
    """Print one line on stderr, with control characters escaped."""
    with suppress(OSError):  # stderr may be full or closed, and that must not end the work
        print(f"dasrel: {shown(redacted(text), limit=4000)}", file=sys.stderr, flush=True)


def report(error: BaseException, *, json: bool, trace: bool, signalled: bool = False) -> int:
    """Print an error in one line and return the exit code. `signalled`: SIGTERM was received before."""
    if isinstance(error, BrokenPipeError):
        discard_output()  # the reader has closed the pipe
        return 1
    if trace:
        for line in redacted("".join(traceback.format_exception(error))).splitlines():
            print(shown(line, limit=4000), file=sys.stderr)
    text, code = error_line(error), 1
    if isinstance(error, limits.Terminated):
        text, code = f"{SIGTERM}; nothing was kept", limits.KILLED
    elif isinstance(error, ClusterError) and signalled:  # the scheduler and the workers had the same signal
        text, code = f"{SIGTERM}: {text}", limits.KILLED
    elif isinstance(error, KeyboardInterrupt):
        text, code = "interrupted", 130
    elif isinstance(error, Stopped):
        code = STOPPED
    complain(text)
    if json and isinstance(error, Stopped):
        values = {"stopped": True, "scans": error.scans, "checkpoint": error.checkpoint, "message": text}
        print_object(values)
    elif json:
        print_error(text)
    return code


def as_option(name: str, value: str | None) -> str:
    """Write an option of a remedy as the command line does.

    >>> as_option("Policy.clip_negative", "TOL"), as_option("resume", "True"), as_option("Policy.missing", "VALUE")
    ('--clip-negative TOL', '--resume', '--missing fill=VALUE')
    """
    key = RENAMED.get(name, name.rpartition(".")[2])
    if key == "missing" and value is not None and value.isupper():
        value = f"fill={value}"
    return f"--{key.replace('_', '-')}" + ("" if value in (None, "True") else f" {value}")


def error_line(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, DasrelError):
        return error.text(as_option)
    if (text := disk_error_text(error)) is not None:
        return text
    if isinstance(error, MemoryError):
        return "out of memory; lower --memory or use smaller tiles (--tile)"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "no thread can be started: raise the limits of processes and of address space (ulimit -u, ulimit -v)"
    return f"unexpected {type(error).__name__}: {error} (a defect of dasrel; -vv shows where)"


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Print what the library logs, such as the checkpoints that it writes, on stderr."""
    log, handler = logging.getLogger("dasrel"), logging.StreamHandler()
    handler.emit = lambda record: complain(record.getMessage())  # type: ignore[method-assign]
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def print_error(text: str) -> None:
    """Print an error as one JSON object on stdout."""
    print_object({"error": text})


def print_object(values: dict[str, Any]) -> None:
    """Print one JSON object on stdout, for a command that ends early."""
    try:
        print(json.dumps(redacted(values)), flush=True)
    except OSError:
        discard_output()


def discard_output() -> None:
    """Discard what could not be written to stdout, so that Python does not report it again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
