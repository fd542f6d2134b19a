"""Stop early: SIGTERM and time limits. Long work asks, between two of its steps, whether it may begin another.

One `Stop` is in force at a time, as with `meter`. A limit inside another one never lasts longer than the outer.

A signal handler runs in the middle of anything, a `threading.Condition` of another library too, so that an exception
raised there may leave locks broken. Here it only sets a flag:

- Work that is `kept` looks at `Stop.reason` between its steps, saves its state and raises `Stopped`.
- Other work is ended by the loops that wait for it: they call `check` or `waited`, which raise `Terminated`.
- What does neither, such as a long call of a C library, is ended with the process, `GRACE` seconds after the signal.

>>> with limited(0.0) as stop:
...     stop.reason()
'the time limit of 0 s'
"""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from types import FrameType
from typing import Any, TypeVar, cast

from dasrel.errors import InputError, shown, time_text

Result = TypeVar("Result")

KILLED = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM has ended at once."""
LOOK = 0.1
"""Seconds between two looks at the flag while something is waited for."""
GRACE = 5.0
"""Seconds from SIGTERM until the process ends in any case, unless work is kept or a cluster is being closed."""
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


class Terminated(KeyboardInterrupt):
    """SIGTERM came and nothing can be kept: the work ends as it does for Ctrl-C."""


class Stop:
    """Whether work should end, and why."""

    def __init__(self, seconds: float | None = None, parent: Stop | None = None, *, listens: bool = False) -> None:
        self.signalled = False
        self.keepers = 0
        """How many blocks that must not be interrupted are active; see `kept`."""
        self._parent = parent
        self._listens = listens
        self._told = "" if seconds is None else f"the time limit of {time_text(seconds)}"
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def reason(self, ahead: float = 0.0) -> str:
        """Why a step that takes `ahead` seconds should not begin any more; nothing if it may."""
        if self.signalled:
            return "SIGTERM"
        if self._deadline is not None and time.monotonic() + ahead >= self._deadline:
            return self._told
        return "" if self._parent is None else self._parent.reason(ahead)

    @property
    def listens(self) -> bool:
        """Whether a signal can come at all."""
        return self._listens or (self._parent is not None and self._parent.listens)

    @property
    def terminated(self) -> bool:
        """Whether SIGTERM came and nothing of the work is kept."""
        if self.signalled and not self.keepers:
            return True
        return self._parent is not None and self._parent.terminated

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
    """Say that the work inside the block asks between its steps, and that what it has done is kept when it stops."""
    stop = current()
    stop._keep(1)
    try:
        yield stop
    finally:
        stop._keep(-1)


closing = kept
"""Around the release of what outlives the process, such as the jobs of a cluster: SIGTERM does not interrupt it."""


def check() -> None:
    """Raise `Terminated` if SIGTERM came and nothing of the work is kept. Long loops call it at every turn."""
    if current().terminated:
        raise Terminated


def waited(function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Call a function that may take long, and raise `Terminated` as soon as SIGTERM ends the work.

    While somebody listens to SIGTERM the function runs in a thread of its own, which is left to itself when the work
    ends: the process ends soon after. Else it is simply called.

    >>> waited(max, 1, 2)
    2
    """
    check()
    if not current().listens:
        result = function(*arguments, **named)
        check()
        return result
    context = copy_context()
    outcome: list[tuple[Any, BaseException | None]] = []
    done = threading.Lock()  # and no Event: waiting for a bare lock is one call, which Ctrl-C cannot leave half done
    done.acquire()

    def work() -> None:
        try:
            outcome.append((context.run(function, *arguments, **named), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            done.release()

    threading.Thread(target=work, name="dasrel-waited", daemon=True).start()
    while not done.acquire(timeout=LOOK):
        check()
    check()
    result, error = outcome.pop()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame
    return cast(Result, result)


@contextmanager
def listening(last_words: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """Listen to SIGTERM inside the block, then restore the former handler. For commands, not for the library.

    Work that is `kept` is asked to stop after its present step; other work is ended by `check` and `waited`. A second
    signal ends the process in any case.

    Parameters
    ----------
    last_words
        Called, in another thread, before the process is ended because the work did not end within `GRACE` seconds.
    """
    stop = Stop(None, _current.get(), listens=threading.current_thread() is threading.main_thread())
    token = _current.set(stop)
    try:
        if stop._listens:  # only the main thread may set handlers
            with _handled(stop, last_words):
                yield stop
        else:
            yield stop
    finally:
        _current.reset(token)


@contextmanager
def _handled(stop: Stop, last_words: Callable[[], None]) -> Iterator[None]:
    """Set the handler, and start the thread that sees the signal even while the main thread is inside a C call."""
    heard = 0

    def asked(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard > 1:
            _end_at_once()
        stop.signalled = True

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before: Any = signal.signal(signal.SIGTERM, asked)
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_watch, args=(reading, stop, last_words), name="dasrel-sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
        os.write(writing, b"\0")
        thread.join()
        os.close(reading)
        os.close(writing)


def _watch(pipe: int, stop: Stop, last_words: Callable[[], None]) -> None:
    """Read the numbers of signals as they come, until a zero; end the process when the work does not end in time."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    heard, deadline = 0, 0.0
    while True:
        if poll.poll(1000 * LOOK if heard else None):
            numbers = os.read(pipe, 512)
            if 0 in numbers:
                return
            heard += numbers.count(signal.SIGTERM)
            if heard > 1:
                _end_at_once()
        if not heard:
            continue
        stop.signalled, now = True, time.monotonic()
        if stop.keepers or not deadline:
            deadline = now + GRACE
        if now >= deadline:
            with suppress(OSError):
                last_words()
            os._exit(KILLED)


_ending = threading.Lock()


def _end_at_once() -> None:
    if not _ending.acquire(blocking=False):
        return  # the handler and the watching thread both hear of it: the other one is about to end the process
    os.write(2, b"dasrel: stopped at once by a second SIGTERM\n")
    os._exit(KILLED)


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
