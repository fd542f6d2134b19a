"""Limits of memory, threads and time: the machine, its control groups, workers, SIGTERM; and the cost of a command.

SIGTERM and time limits stop long work between two of its steps. One `Stop` is in force at a time; a limit inside
another one never lasts longer than the outer.

A signal handler may run anywhere, inside a `threading.Condition` of another library too, so that an exception raised
there may leave locks broken. Here it only sets a flag:

- Work that is `kept` checks `Stop.reason` between its steps, saves its state and raises `Stopped`.
- Other work is ended by the loops that wait for it: they call `check` or `waited`, which raise `Terminated`.
- What does neither, such as a long call of a C library, is ended with the process, `GRACE` seconds after the signal.

>>> with limited(0.0) as stop:
...     stop.reason()
'the time limit of 0 s'
"""

from __future__ import annotations

import math
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import asdict, dataclass, field
from functools import cache
from numbers import Real
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

from dasrel.errors import ClusterError, InputError, MemoryLimitError
from dasrel.util.text import count_text, redacted, shown, size_text, time_text

Result = TypeVar("Result")
KILLED = 128 + signal.SIGTERM
"""The exit code of a process ended by SIGTERM."""
LOOK = 0.1
"""Seconds between two checks of the flag during a wait."""
GRACE = 5.0
"""Seconds from SIGTERM until the process is ended, unless work is kept or a cluster is being closed."""


_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def duration_seconds(limit: float | str) -> float:
    """Return a duration in seconds: a number, 90s, 30m, 2h, 1d, 1h30m, HH:MM:SS, or D-HH:MM:SS as in Slurm.

    >>> duration_seconds("1h30m"), duration_seconds("00:20:00"), duration_seconds("1-00:00:00")
    (5400.0, 1200.0, 86400.0)
    """
    seconds: float | None = None
    if isinstance(limit, (int, float)) and not isinstance(limit, bool):
        seconds = float(limit)
    elif isinstance(limit, str):
        text = limit.strip().lower()
        clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text)
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
        if clock is not None:
            seconds = sum(int(part or 0) * unit for part, unit in zip(clock.groups(), _UNITS.values(), strict=True))
        elif parts and "".join(number + unit for number, unit in parts) == text:
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds is None or not 0 <= seconds < float("inf"):
        raise InputError(f"{shown(limit)!r} is no duration", remedy="give such as 90s, 30m, 2h, 1h30m or HH:MM:SS")
    return seconds


class Terminated(KeyboardInterrupt):
    """Raised after SIGTERM where no work can be kept; it ends as for Ctrl-C."""


class Stop:
    """Whether work should end, and why."""

    def __init__(self, seconds: float | None = None, parent: Stop | None = None, *, listens: bool = False) -> None:
        self.signalled = False
        self.keepers = 0
        """Number of active blocks that must not be interrupted; see `kept`."""
        self._parent = parent
        self._listens = listens
        self._told = "" if seconds is None else f"the time limit of {time_text(seconds)}"
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def reason(self, ahead: float = 0.0) -> str:
        """Return why a step that takes `ahead` seconds should not begin; empty if it may."""
        if self.signalled:
            return "SIGTERM"
        if self._deadline is not None and time.monotonic() + ahead >= self._deadline:
            return self._told
        return "" if self._parent is None else self._parent.reason(ahead)

    @property
    def listens(self) -> bool:
        """Whether a signal handler is installed."""
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
    """Return the `Stop` in force, or one that never stops anything."""
    return _current.get() or Stop()


@contextmanager
def limited(limit: float | str | None) -> Iterator[Stop]:
    """Set a time limit, in seconds or such as "30m", for the work inside the block."""
    stop = Stop(None if limit is None else duration_seconds(limit), _current.get())
    token = _current.set(stop)
    try:
        yield stop
    finally:
        _current.reset(token)


@contextmanager
def defer_stop() -> Iterator[Stop]:
    """Declare that the work inside the block checks for a stop between its steps and keeps its progress."""
    stop = current()
    stop._keep(1)
    try:
        yield stop
    finally:
        stop._keep(-1)


closing = defer_stop
"""For releasing what outlives the process, such as the jobs of a cluster: SIGTERM does not interrupt it."""


def check() -> None:
    """Raise `Terminated` if SIGTERM came and nothing of the work is kept. Long loops call it in every iteration."""
    if current().terminated:
        raise Terminated


def waited(
    function: Callable[..., Result], *arguments: Any, meanwhile: Callable[[], None] | None = None, **named: Any
) -> Result:
    """Call a function that may take long, and raise `Terminated` as soon as SIGTERM ends the work.

    While a command listens to SIGTERM the function runs in a thread of its own, which is abandoned when the work
    ends: the process ends soon after. Else it is simply called. So it does where `meanwhile` is given, which is called
    a few times a second, and may raise.

    >>> waited(max, 1, 2)
    2
    """
    check()
    if not current().listens and meanwhile is None:
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
        if meanwhile is not None:
            meanwhile()
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

    def requested(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard > 1:
            _end_at_once()
        stop.signalled = True

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before: Any = signal.signal(signal.SIGTERM, requested)
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
    """Read the numbers of signals from the pipe until a zero; end the process if the work does not end in time."""
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


AGAIN = "run the same again, with {resume=True} if it writes a store or a checkpoint"


def thread_count(*, waiting: bool = True) -> int:
    """Return the number of local threads: Dask's `num_workers` if set, else the cores, and two more where data is read.

    The extra threads keep the disk busy while the cores compute, where tiles are not read ahead. On tiles in memory
    they compete with the others: a scan takes up to a fifth longer.
    """
    import dask  # slow to import, and not needed by `dasrel --help`
    from dask.system import CPU_COUNT

    configured = dask.config.get("num_workers", None)
    return int(configured) if configured else int(CPU_COUNT) + 2 * waiting


def memory_limit(memory: int | str | None, name: str = "memory") -> int:
    """Return a limit of memory in bytes: a number, or text such as "2GB" or "512MiB"; by default half of the machine's.

    >>> memory_limit("2GB"), memory_limit(1 << 20)
    (2000000000, 1048576)
    """
    if memory is None:
        return machine_memory() // 2
    if isinstance(memory, Real) and not isinstance(memory, bool) and 0 <= memory < math.inf:
        return int(memory)
    size = re.fullmatch(
        r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[0-9]{1,2})?)(?:([kmgtp])(i?))?b?", str(memory).lower().replace(" ", "")
    )
    if isinstance(memory, str) and size is not None:
        number, letter, binary = size.groups()
        return int(float(number) * (1024 if binary else 1000) ** (" kmgtp".index(letter or " ")))
    raise InputError(f"{name} is {shown(memory)!r}", remedy="give a number of bytes, or such as 2GB or 512MiB")


@cache
def machine_memory() -> int:
    """Return the memory of this machine in bytes, or of the container or job if that is less."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits()])


def group_limits(root: Path = Path("/")) -> list[int]:
    """Return the memory limits of the control groups of this process, outer groups included.

    A container sees its own group as the root; a Slurm job is in a group of its own below it. Both versions.
    """
    try:
        mine = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    limits = []
    for line in mine:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = ("", "memory.max") if not controllers else ("memory", "memory.limit_in_bytes")
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            with suppress(OSError, ValueError):  # no such group here, or no limit ("max")
                limits.append(int((root / "sys/fs/cgroup" / base / folder / name).read_text(encoding="ascii")))
    return limits


def bytes_from_disk() -> int:
    """Return the bytes that this process has read from storage so far; 0 where the system does not say."""
    try:
        with open("/proc/self/io", encoding="ascii") as counters:
            return next(int(line.split()[1]) for line in counters if line.startswith("read_bytes"))
    except (OSError, StopIteration):
        return 0


def free_memory() -> int:
    """Return the memory that is free, or that the system would free for files, in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        free = machine_memory()
    return min(free, machine_memory())


def threads_that_fit(task_memory: int, memory: int | str | None, label: str) -> int:
    """Return how many local threads can run tasks of this size within the limit; raise if not even one can."""
    threads = thread_count()
    if memory is None or task_memory == 0:
        return threads
    limit = memory_limit(memory)
    if task_memory > limit:
        raise MemoryLimitError(
            f"{label} needs {size_text(task_memory)} for one task and the limit is {size_text(limit)}",
            remedy="raise {memory} or use smaller tiles ({Writing.tile})",
        )
    return min(threads, int(limit // task_memory))


STALL = 60.0
"""Default of the seconds after which a worker or a scheduler that gives no sign of life is given up."""
_stall: ContextVar[float] = ContextVar("dasrel_stall", default=STALL)


def stall_seconds() -> float:
    """Return after how many seconds a worker or a scheduler that gives no sign of life is given up."""
    return _stall.get()


@contextmanager
def stalling(seconds: float | None) -> Iterator[None]:
    """Set `stall_seconds` inside the block; None leaves it as it is."""
    token = _stall.set(_stall.get() if seconds is None else seconds)
    try:
        yield
    finally:
        _stall.reset(token)


def no_answer(client: Any, seconds: float) -> ClusterError:
    """Return the error for a scheduler that stands still."""
    where = client.scheduler.address if client.scheduler is not None else ""
    return ClusterError(
        f"the scheduler {redacted(where)} has given no answer for {time_text(seconds)}",
        remedy=f"see whether it is stopped ({{Runtime.stall}} allows more time), or start it again, and {AGAIN}",
    )


IDLE_WORKER = 100 * 10**6
"""Memory of an idle worker in bytes: 60 MB, 75 with dasrel loaded, and what malloc keeps. With less its nanny would end
it repeatedly."""
PAUSED = 0.8
"""The share of its memory limit at which Dask pauses a worker."""
AWAY = 60.0
"""Seconds within which a worker must be restarted when all have died."""


def worker_memory(client: Any, *, wait: float = AWAY) -> dict[str, tuple[int, int]]:
    """Return for each worker's address its bytes for work (0: no limit) and its number of threads.

    There is one at least: when all have died, it waits until one is there again, for so many seconds.
    """
    # Not scheduler_info: it returns a cache that the client's own refresh, now and then, has emptied of workers.
    until, stall = time.monotonic() + wait, stall_seconds()

    def present() -> dict[str, Any]:
        try:
            return dict(client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=stall)["workers"])
        except TimeoutError:
            raise no_answer(client, stall) from None

    while not (workers := present()) and wait:
        if time.monotonic() > until:
            raise ClusterError(
                f"the cluster has no worker left, and none came in {wait:g} s", remedy=f"start some and {AGAIN}"
            )
        check()
        time.sleep(0.1)
    return {address: (room_of(int(w["memory_limit"] or 0)), int(w["nthreads"])) for address, w in workers.items()}


def room_of(limit: int) -> int:
    """Return the bytes for work of a worker with this memory limit: until Dask pauses it, less its idle memory."""
    return max(1, int(PAUSED * limit) - IDLE_WORKER) if limit else 0


def limit_for(room: int) -> int:
    """Return the memory limit of a worker with so many bytes for work."""
    return math.ceil((room + IDLE_WORKER) / PAUSED)


def check_workers(workers: dict[str, tuple[int, int]], task_memory: int, label: str, *, kept: int = 0) -> None:
    """Raise if work cannot fit into the smallest worker: a task on each of its threads, and what is kept besides."""
    for address, (limit, threads) in workers.items():
        need = task_memory * threads + kept
        if limit and need > limit:
            raise MemoryLimitError(
                f"{label} needs {size_text(need)} on worker {address} ({count_text(threads, 'task')} at once), which"
                " has"
                f" {size_text(limit)} for them",
                remedy="give workers more memory or fewer threads, or use smaller tiles",
            )


@dataclass(frozen=True)
class Range:
    """An estimated number: at least, typically, at most."""

    least: float
    typical: float
    most: float

    def __add__(self, other: Range) -> Range:
        return Range(self.least + other.least, self.typical + other.typical, self.most + other.most)


@dataclass(frozen=True)
class Output:
    """A file or folder that a command would write."""

    path: str
    bytes: int
    """Estimated; an upper bound where it is compressed."""


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a command."""

    command: str
    n_objects: int | None
    """None where it is known only after reading the complete source."""
    scans: Range
    bytes_per_scan: int
    memory: int
    """Bytes at the peak, at most."""
    outputs: tuple[Output, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """Other facts by name: plain values."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"dry_run": True, **asdict(self)}

    def lines(self) -> list[tuple[str, str]]:
        """Return names and texts for people."""
        lines = [("dry run", f"{self.command}: nothing was written")]
        known = "not known before all of it is read" if self.n_objects is None else f"{self.n_objects:,}"
        lines.append(("objects", known))
        lines += [
            (name.removesuffix("_bytes").replace("_", " "), _fact(name, value)) for name, value in self.facts.items()
        ]
        if self.scans.most:
            lines.append(("scans", range_text(self.scans)))
            lines.append(("one scan reads", size_text(self.bytes_per_scan)))
        lines.append(("memory", f"at most {size_text(self.memory)}"))
        for output in self.outputs:
            lines.append(("would write", f"{shown(output.path, limit=400)}, about {size_text(output.bytes)}"))
        return lines


def _fact(name: str, value: Any) -> str:
    if isinstance(value, int):
        return size_text(value) if name.endswith("_bytes") else f"{value:,}"
    return shown(value, limit=400)


def range_text(scans: Range) -> str:
    """Write a range of counts for people.

    >>> range_text(Range(1, 1, 1)), range_text(Range(3, 13, 204))
    ('1', '13 or so, 3 to 204')
    """
    if scans.least == scans.most:
        return f"{scans.most:,.0f}"
    return f"{scans.typical:,.0f} or so, {scans.least:,.0f} to {scans.most:,.0f}"
