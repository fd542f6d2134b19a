"""Drawing the progress of long work: a bar on a terminal, a plain line every few seconds anywhere else.

The library knows nothing of this; it only calls back with `dasrel.meter.Progress` events.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self, TextIO

from dasrel.errors import count_text, size_text, time_text
from dasrel.meter import Progress


def rate(event: Progress) -> str:
    """The speed of the present pass.

    >>> rate(Progress("scan", 1, 5, 10, 6_000_000_000, 12_000_000_000, 4.0))
    '1.5 GB/s'
    """
    if not event.bytes or event.seconds <= 0:
        return ""
    return f"{size_text(event.bytes / event.seconds)}/s"


def time_left(event: Progress) -> str:
    """How long the present pass will still take, judged by the tiles done.

    >>> time_left(Progress("scan", 1, 5, 10, 0, 0, 90.0)), time_left(Progress("scan", 1, 1, 101, 0, 0, 72.0))
    ('1.5 min left', '2 h left')
    """
    if not event.tiles or event.tiles >= event.tiles_total:
        return ""
    left = event.seconds / event.tiles * (event.tiles_total - event.tiles)
    return f"{time_text(left)} left"


def line(event: Progress) -> str:
    """An event as one line of text.

    >>> line(Progress("scan", 3, 5, 10, 6_000_000_000, 12_000_000_000, 4.0, note="iteration 3"))
    'scan 3: 5 of 10 tiles, 1.5 GB/s, 4 s left, iteration 3'
    """
    parts = [f"{event.tiles:,} of {count_text(event.tiles_total, 'tile')}", rate(event), time_left(event), event.note]
    return f"{_title(event)}: " + ", ".join(part for part in parts if part)


def _title(event: Progress) -> str:
    return f"{event.label} {event.scans}" if event.scans > 1 else event.label


class Drawing:
    """A callback for `dasrel.watch` that draws, and a context that ends the drawing.

    Nothing is drawn before the first event, so short work stays silent. Safe to call from several threads.

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
        self._on_terminal = self._stream.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
            self._on_terminal = False
            self._every = float("inf")  # a thread that is still busy after an interrupt draws no more

    def __call__(self, event: Progress) -> None:
        with self._lock:
            # Threads may report out of order; a pass never goes back, and begins with an event of no tiles.
            if 0 < event.tiles < self._most:
                return
            self._most = event.tiles
            if self._on_terminal:
                self._draw(event)
                return
            now = time.monotonic()
            self._last = now if self._last is None else self._last  # the clock starts with the first event
            if now - self._last >= self._every:
                self._last = now
                print(line(event), file=self._stream, flush=True)

    def _draw(self, event: Progress) -> None:
        if self._bar is None:
            self._bar = _bar(self._stream)
            self._task = self._bar.add_task("", total=1, tiles="", rate="", left="", note="")
            self._bar.start()
        self._bar.update(
            self._task,
            description=_title(event),
            completed=event.tiles,
            total=max(event.tiles_total, 1),
            tiles=f"{event.tiles:,} of {count_text(event.tiles_total, 'tile')}",
            rate=rate(event),
            left=time_left(event),
            note=event.note,
        )


def _bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("tiles", "rate", "left", "note")),
        console=Console(file=stream, highlight=False),
        transient=True,
        redirect_stdout=False,
        refresh_per_second=5,
    )
