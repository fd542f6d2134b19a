"""Draw progress: a bar on a terminal or in a notebook, and a line of text every few seconds elsewhere.

The library knows nothing of this: it calls back with `dasrel.util.progress.Progress`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TextIO

from dasrel.util import html
from dasrel.util.progress import Iterations, Meter, Progress, watch
from dasrel.util.text import count_text, size_text, time_text


@contextmanager
def progress(stream: TextIO | None = None, *, every: float = 3.0) -> Iterator[Meter]:
    """Show the progress of everything that runs inside the block: scans, iterations, speed and time left.

    In a notebook it is a bar below the cell, on a terminal a bar that goes away at the end, and elsewhere, as in a log,
    a line every few seconds. Yields the totals, as `dasrel.watch` does.

    >>> import io
    >>> with progress(io.StringIO()) as totals:
    ...     pass
    >>> totals.scans
    0

    Parameters
    ----------
    stream
        Where to draw; by default the notebook, or standard error.
    every
        Seconds between two lines, where there is no bar.

    Cost: none; a bar is drawn at most five times a second.
    """
    drawing = NotebookDrawing() if stream is None and in_notebook() else Drawing(stream, every=every)
    with drawing, watch(drawing) as totals:
        yield totals


def rate(event: Progress) -> str:
    """Return the speed of the current pass.

    >>> rate(Progress("scan", 1, 5, 10, 6_000_000_000, 12_000_000_000, 4.0))
    '1.5 GB/s'
    """
    if not event.bytes or event.seconds <= 0:
        return ""
    return f"{size_text(event.bytes / event.seconds)}/s"


def time_left(event: Progress) -> str:
    """Return the remaining time: of the job, as expected and at most, where these are known, else of the pass.

    >>> time_left(Progress("import", 1, 5, 10, 0, 0, 90.0)), time_left(Progress("scan", 1, 1, 101, 0, 0, 72.0))
    ('1.5 min left', '2 h left of this scan')
    >>> from dasrel.util.progress import Iterations
    >>> time_left(Progress("scan", 3, 5, 10, 0, 0, 10.0, "iteration 3 of at most 300", Iterations(3, 300, 2, 50.0)))
    'at most 1.7 h left'
    >>> time_left(Progress("scan", 2, 5, 10, 0, 0, 10.0, "sample", None, Iterations(2, 20, 1, 15.0)))
    'some 3.1 min left'
    """
    positions = {"some": event.expected, "at most": event.iterations}
    times = [(how, _left(event, at)) for how, at in positions.items() if at is not None]
    known = [f"{how} {time_text(seconds)}" for how, seconds in times if seconds]
    if known or event.iterations is not None:
        return f"{', '.join(known)} left" if known else ""
    if not event.tiles or event.tiles >= event.tiles_total:
        return ""
    left = event.seconds / event.tiles * (event.tiles_total - event.tiles)
    return f"{time_text(left)} left{' of this scan' if event.label == 'scan' else ''}"


def _left(event: Progress, at: Iterations) -> float:
    """Return the seconds until all iterations are done; 0 if nothing is known of their speed."""
    share = event.tiles / max(event.tiles_total, 1)
    done, left = at.done + share, at.most - at.now + 1 - share
    return at.seconds / done * left if done else 0.0


def share_done(event: Progress) -> float:
    """Return how much is done, 0 to 1: of the job where the number of its iterations is limited, else of the pass.

    >>> share_done(Progress("scan", 1, 5, 10, 0, 0, 90.0))
    0.5
    >>> from dasrel.util.progress import Iterations
    >>> share_done(Progress("scan", 3, 5, 10, 0, 0, 10.0, "", Iterations(3, 10, 2, 50.0)))
    0.25
    """
    share = event.tiles / max(event.tiles_total, 1)
    return share if event.iterations is None else (event.iterations.now - 1 + share) / event.iterations.most


def line(event: Progress) -> str:
    """Return an event as one line of text.

    >>> line(Progress("scan", 3, 5, 10, 6_000_000_000, 12_000_000_000, 4.0, note="iteration 3"))
    'scan 3: 5 of 10 tiles, 1.5 GB/s, 4 s left of this scan, iteration 3'
    """
    parts = [f"{event.tiles:,} of {count_text(event.tiles_total, 'tile')}", rate(event), time_left(event), event.note]
    return f"{_title(event)}: " + ", ".join(part for part in parts if part)


def _title(event: Progress) -> str:
    return f"{event.label} {event.scans}" if event.scans > 1 and event.label == "scan" else event.label


class Drawing:
    """A callback for `dasrel.watch` that draws progress, and a context that ends the drawing.

    Nothing is drawn before the first event, so that short work prints nothing. Safe to call from several threads.

    Parameters
    ----------
    stream
        Where to draw; standard error by default.
    every
        Seconds between two plain lines.
    """

    def __init__(self, stream: TextIO | None = None, *, every: float = 3.0) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._every = every
        self._lock = threading.Lock()
        self._last: float | None = None
        self._most = 0
        self._bar: Any = None
        self._task: Any = None
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True  # a thread that is still busy after an interrupt draws no more
            self._end()

    def __call__(self, event: Progress) -> None:
        with self._lock:
            # Threads may report out of order; a pass never goes back, and begins with an event of no tiles.
            if self._ended or 0 < event.tiles < self._most:
                return
            self._most = event.tiles
            self._show(event)

    def _show(self, event: Progress) -> None:
        if self._stream.isatty():
            self._draw(event)
            return
        now = time.monotonic()
        self._last = now if self._last is None else self._last  # the clock starts with the first event
        if now - self._last >= self._every:
            self._last = now
            with suppress(OSError):
                print(line(event), file=self._stream, flush=True)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, event: Progress) -> None:
        if self._bar is None:
            self._bar = _bar(self._stream)
            self._task = self._bar.add_task("", total=1, tiles="", rate="", left="", note="")
            self._bar.start()
        self._bar.update(
            self._task,
            description=_title(event),
            completed=share_done(event),
            total=1,
            tiles=f"{event.tiles:,} of {count_text(event.tiles_total, 'tile')}",
            rate=rate(event),
            left=time_left(event),
            note=event.note,
        )


def _bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress as Bar, TextColumn

    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("tiles", "rate", "left", "note")),
        console=Console(file=stream, highlight=False),
        transient=True,
        redirect_stdout=False,
        refresh_per_second=5,
    )


class NotebookDrawing(Drawing):
    """A callback that draws progress below the cell of a notebook; its last line, the totals, stays there."""

    def __init__(self, *, every: float = 0.2) -> None:
        super().__init__(every=every)
        self._handle: Any = None
        self._scans = 0
        self._began = time.monotonic()

    def _show(self, event: Progress) -> None:
        self._scans = event.scans
        now = time.monotonic()
        if self._last is None or now - self._last >= self._every:
            self._last = now
            self._display(share_done(event), line(event))

    def _end(self) -> None:
        if self._handle is not None:
            taken = time_text(time.monotonic() - self._began)
            self._display(1.0, f"{count_text(self._scans, 'scan')}, {taken}" if self._scans else taken)

    def _display(self, share: float, label: str) -> None:
        shown = _NotebookLine(share, label)
        if self._handle is None:
            from IPython.display import display

            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class _NotebookLine:
    """A line of progress, for a front end with HTML or without."""

    def __init__(self, share: float, label: str) -> None:
        self.share, self.label = share, label

    def __repr__(self) -> str:
        return self.label

    def _repr_html_(self) -> str:
        return html.meter_line(self.share, self.label)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None
