"""Count the scans, tiles and bytes used inside a `with` block, and report progress to callbacks.

>>> with watch() as meter:
...     pass
>>> meter.scans
0
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple


class Iterations(NamedTuple):
    """The position of an algorithm whose iterations are limited."""

    now: int
    """Number of the current iteration, from 1."""
    most: int
    done: int
    """Iterations finished since `seconds` began: fewer than now - 1 after a resumption."""
    seconds: float


@dataclass(frozen=True)
class Progress:
    """The argument of a progress callback: the totals since `watch` began, and the position in the current pass."""

    label: str
    """The operation of the current pass: "scan", "import", "pairwise" ..."""
    scans: int
    """Scans begun so far, the current one included."""
    tiles: int
    """Tiles done in the current pass."""
    tiles_total: int
    bytes: int
    """Bytes of the tiles done in the current pass."""
    bytes_total: int
    seconds: float
    """Since the current pass began."""
    note: str = ""
    """A note of the algorithm: the iteration, the runs not converged yet."""
    iterations: Iterations | None = None
    """None where the number of passes is not known."""
    expected: Iterations | None = None
    """The position among the scans that the job is expected to take, where something is known of that."""


class Meter:
    """Totals of one `watch` block. Passes may run on several threads of the caller; every update is locked."""

    def __init__(self, callback: Callable[[Progress], None] | None, parent: Meter | None) -> None:
        self.scans = 0
        self.tiles = 0
        """Tiles read from the source, or written to a store; tiles pinned on a cluster's workers do not count."""
        self.bytes = 0
        self.network = 0
        """Bytes that scans on a cluster have sent between its processes and this one: columns, sums, results."""
        self.note = ""
        self._iterations: tuple[int, int] | None = None
        self._first: tuple[int, float] = (1, 0.0)
        """The first of these iterations, and when it began."""
        self._expected: tuple[int, int, float] | None = None
        """Scans that were begun before, those expected after that, and since when."""
        self.complete = ""
        """What was found complete, so that nothing was left to do; empty where there was work."""
        self._callback = callback
        self._parent = parent
        self._lock = threading.Lock()

    def begin(self, label: str, *, tiles: int, bytes: int, scan: bool = False) -> Pass:  # noqa: A002
        """Start a pass over `tiles` tiles of `bytes` bytes in all."""
        meter: Meter | None = self
        while meter is not None:
            with meter._lock:
                meter.scans += scan
            meter = meter._parent
        return Pass(self, label, tiles, bytes)

    @property
    def is_watched(self) -> bool:
        """Whether a callback receives progress."""
        return self._callback is not None or (self._parent is not None and self._parent.is_watched)

    def count(self, *, tiles: int, bytes: int, network: int = 0) -> None:  # noqa: A002
        """Count tiles that were read outside of passes, and bytes sent over the network."""
        meter: Meter | None = self
        while meter is not None:
            with meter._lock:
                meter.tiles += tiles
                meter.bytes += bytes
                meter.network += network
            meter = meter._parent

    def say(self, note: str, *, iteration: int = 0, most: int = 0) -> None:
        """Set the algorithm's note shown beside the progress, and its iteration, where their number is limited."""
        meter: Meter | None = self
        while meter is not None:
            with meter._lock:
                meter.note = note
                if most and (meter._iterations is None or iteration <= meter._iterations[0]):
                    meter._first = iteration, time.perf_counter()
                if meter._iterations is not None and not most:
                    meter._expected = None  # iterations have ended, sooner or later than expected
                meter._iterations = (iteration, most) if most else None
            meter = meter._parent

    def expect(self, scans: int) -> None:
        """Set how many scans are expected from now on, as an estimate of the time left before iterations begin."""
        meter: Meter | None = self
        while meter is not None:
            with meter._lock:
                meter._expected = meter.scans, scans, time.perf_counter()
            meter = meter._parent

    def _among_expected(self) -> Iterations | None:
        if self._expected is None:
            return None
        before, most, began = self._expected
        now = self.scans - before
        return Iterations(now, most, now - 1, time.perf_counter() - began) if 0 < now <= most else None

    def _position(self) -> Iterations | None:
        if self._iterations is None:
            return None
        (now, most), (first, began) = self._iterations, self._first
        return Iterations(now, most, now - first, time.perf_counter() - began)

    def found_complete(self, what: str) -> None:
        """Record that `what`, the result, was there already, from a process that was interrupted at its very end."""
        meter: Meter | None = self
        while meter is not None:
            meter.complete = what
            meter = meter._parent


class Pass:
    """One pass in progress; `add` is called once per tile, from any thread."""

    def __init__(self, meter: Meter, label: str, tiles_total: int, bytes_total: int) -> None:
        self._meter = meter
        self._label = label
        self._tiles_total = tiles_total
        self._bytes_total = bytes_total
        self._tiles = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self.add(tiles=0, bytes=0)

    def add(self, *, tiles: int = 1, bytes: int = 0, read: bool = True) -> None:  # noqa: A002
        """Count finished tiles and call every callback; `read`: they came from the source."""
        with self._lock:
            self._tiles += tiles
            self._bytes += bytes
            done, so_far = self._tiles, self._bytes
        meter: Meter | None = self._meter
        while meter is not None:
            with meter._lock:
                if read:
                    meter.tiles += tiles
                    meter.bytes += bytes
                scans, note, at = meter.scans, meter.note, (meter._position(), meter._among_expected())
            if meter._callback is not None:
                seconds = time.perf_counter() - self._began
                meter._callback(
                    Progress(self._label, scans, done, self._tiles_total, so_far, self._bytes_total, seconds, note, *at)
                )
            meter = meter._parent


_current: ContextVar[Meter | None] = ContextVar("dasrel_meter", default=None)


@contextmanager
def watch(callback: Callable[[Progress], None] | None = None) -> Iterator[Meter]:
    """Count the scans, tiles and bytes used inside the block, and call back as they are counted.

    Blocks nest: an inner block's work is counted by the outer ones too. The callback may be called from several
    threads, once per tile; it should be quick.
    """
    meter = Meter(callback, _current.get())
    token = _current.set(meter)
    try:
        yield meter
    finally:
        _current.reset(token)


def current() -> Meter:
    """Return the innermost meter, or an unused one outside of any `watch` block."""
    return _current.get() or Meter(None, None)
