"""Stopping early: SIGTERM and time limits. Long work asks, between two of its steps, whether it may begin another.

One object is in force at a time, as with `meter`. A limit inside another one never lasts longer than the outer.

>>> with limited(0.0) as stop:
...     stop.reason()
'the time limit of 0 s'
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from dasrel.errors import InputError, shown

KILLED = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM has ended at once."""
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


class Terminated(KeyboardInterrupt):
    """SIGTERM came and nothing can be kept: what is under way ends as it does for Ctrl-C."""


class Stop:
    """Whether work should end, and why."""

    def __init__(self, seconds: float | None = None, parent: Stop | None = None) -> None:
        self.signalled = False
        self.keepers = 0
        """How many blocks that keep their work are under way; see `kept`."""
        self._parent = parent
        self._told = "" if seconds is None else f"the time limit of {duration(seconds)}"
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def reason(self, ahead: float = 0.0) -> str:
        """Why a step that takes `ahead` seconds should not begin any more; nothing if it may."""
        if self.signalled:
            return "SIGTERM"
        if self._deadline is not None and time.monotonic() + ahead >= self._deadline:
            return self._told
        return "" if self._parent is None else self._parent.reason(ahead)

    def _keep(self, more: int) -> None:
        self.keepers += more
        if self._parent is not None:
            self._parent._keep(more)


_current: ContextVar[Stop | None] = ContextVar("dasrel_stop", default=None)


def current() -> Stop:
    """The one in force, or one that never stops anything."""
    return _current.get() or Stop()


@contextmanager
def limited(limit: float | str | None) -> Iterator[Stop]:
    """A time limit, in seconds or such as "30m", for the work inside the block."""
    stop = Stop(None if limit is None else seconds(limit), _current.get())
    token = _current.set(stop)
    try:
        yield stop
    finally:
        _current.reset(token)


@contextmanager
def kept() -> Iterator[Stop]:
    """Says that the work inside the block asks between its steps, and that what it has done is kept when it stops."""
    stop = current()
    stop._keep(1)
    try:
        yield stop
    finally:
        stop._keep(-1)


@contextmanager
def listening() -> Iterator[Stop]:
    """Listen to SIGTERM inside the block, and give back whoever listened before. For commands, not for the library.

    Work that is `kept` is asked to stop after its present step; other work gets `Terminated` at once. A second signal
    ends the process in any case.
    """
    with limited(None) as stop:
        if threading.current_thread() is not threading.main_thread():
            yield stop  # only the main thread may set handlers
            return

        def asked(number: int, frame: FrameType | None) -> None:
            if stop.signalled:
                os.write(2, b"dasrel: stopped at once by a second SIGTERM\n")
                os._exit(KILLED)
            stop.signalled = True
            if not stop.keepers:
                raise Terminated

        before: Any = signal.signal(signal.SIGTERM, asked)
        try:
            yield stop
        finally:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def seconds(limit: float | str) -> float:
    """A duration as a number of seconds: a number, 90s, 30m, 2h, 1d, 1h30m, HH:MM:SS, or D-HH:MM:SS as Slurm has it.

    >>> seconds("1h30m"), seconds("00:20:00"), seconds("1-00:00:00")
    (5400.0, 1200.0, 86400.0)
    """
    found: float | None = None
    if isinstance(limit, (int, float)) and not isinstance(limit, bool):
        found = float(limit)
    elif isinstance(limit, str):
        text = limit.strip().lower()
        clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text)
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
        if clock is not None:
            found = sum(int(part or 0) * unit for part, unit in zip(clock.groups(), _UNITS.values(), strict=True))
        elif parts and "".join(number + unit for number, unit in parts) == text:
            found = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if found is None or not 0 <= found < float("inf"):
        raise InputError(f"{shown(limit)!r} is no duration: give such as 90s, 30m, 2h, 1h30m or HH:MM:SS")
    return found


def duration(length: float) -> str:
    """Seconds for people.

    >>> duration(5400.0), duration(0.25)
    ('1h30m', '0.25 s')
    """
    if length != int(length) or length < 60:
        return f"{length:g} s"
    left, told = int(length), ""
    for name, unit in _UNITS.items():
        count, left = divmod(left, int(unit))
        told += f"{count}{name}" if count else ""
    return told
