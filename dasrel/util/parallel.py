"""Map a function over items, within memory and stoppable; slices of mapped files; files that workers see.

Work runs in one task per item: on the active distributed client if there is one, else on local threads.

Dask counts every page that a worker has mapped as the worker's memory, pauses it at 0.8 of its limit and ends it at
0.95: a file larger than the limit must not stay mapped. A slice of a mapped file is therefore copied on a worker, some
rows at a time, and the pages are released; they stay in the page cache. Anywhere else a slice is a view, and costs
nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from threadpoolctl import ThreadpoolController

from dasrel.errors import ClusterError, DasrelError, Stopped
from dasrel.util import Array, PathLike, limits, progress, stalls
from dasrel.util.files import crc32c
from dasrel.util.limits import AGAIN, check_workers, threads_that_fit, worker_memory
from dasrel.util.reading import open_regular
from dasrel.util.text import count_text, redacted, shown

Item = TypeVar("Item")
Result = TypeVar("Result")

TASKS, TASKS_OF_A_CLUSTER = 1_000, 10_000
"""Most tasks of one piece of work: each takes a scheduler a millisecond, so that more items are worked on in groups."""
LOSSES = 9
"""Times that work on a cluster is repeated because data which only this process can send were lost with a worker."""


# The client that the work belongs to, inside `bound_to`.
_bound: ContextVar[Any | None] = ContextVar("dasrel_client", default=None)


@contextmanager
def bound_to(client: Any) -> Iterator[None]:
    """Make this the active client inside the block; when it is lost, work fails instead of continuing locally."""
    token = _bound.set(client)
    try:
        yield
    finally:
        _bound.reset(token)


def lost(client: Any) -> ClusterError:
    """Return the error for a client whose scheduler was lost."""
    where = client.scheduler.address if client.scheduler is not None else ""
    return ClusterError(f"the connection to the scheduler {where} was lost", remedy=f"start it again and {AGAIN}")


def active_client() -> Any | None:
    """Return the distributed client that the user has made active, or None. Never connects or starts one."""
    bound = _bound.get()
    if bound is not None:
        if bound.status != "running":
            raise lost(bound)
        return bound
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        client = distributed.get_client()
    except ValueError:
        return None
    return client if client.status == "running" else None


def on_worker() -> bool:
    """Tell whether the caller is a task on a worker of a cluster."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Run BLAS on one thread inside the block, because tiles are processed in parallel; restore the number at the end.

    The limit applies to the process; the thread that sets it also restores it.
    """
    with _blas().limit(limits=1, user_api="blas"):
        yield


def _blas() -> ThreadpoolController:
    """Return the BLAS libraries of this process: NumPy's, and SciPy's own once that is imported."""
    return _controller("scipy.linalg" in sys.modules)


@cache
def _controller(has_scipy: bool) -> ThreadpoolController:
    """Find the libraries once: it takes longer than the scan of a small matrix."""
    return ThreadpoolController()


def blas_name() -> str:
    """Return the BLAS that NumPy uses, as far as it tells: library, version and kind of processor."""
    of_numpy = sorted(_blas().info(), key=lambda library: "numpy" not in library["filepath"])
    for library in of_numpy:
        if library["user_api"] == "blas":
            words = (library["internal_api"], library["version"], library.get("architecture"))
            return " ".join(str(word) for word in words if word)
    return "unknown"


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt
KEPT_BY_MALLOC = 32 * 2**20
"""Bytes of freed memory that a worker keeps for its next tasks."""


@cache
def prepare_worker() -> None:
    """Set BLAS to one thread on a worker process, permanently, and let malloc keep freed memory.

    Dask starts workers with MALLOC_TRIM_THRESHOLD_ set, and then glibc allocates every array of 128 KB or more from the
    system and returns it at once, page by page; by default it keeps some, up to these numbers, for the next task.
    Measured with two workers of one machine, n = 20,480: 10 ms of a scan that takes 80 (4 columns) or 180 (16).
    """
    _blas().limit(limits=1, user_api="blas")
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:  # glibc
        adjust(M_MMAP_THRESHOLD, KEPT_BY_MALLOC // 2)
        adjust(M_TRIM_THRESHOLD, KEPT_BY_MALLOC)


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    label: str,
    bytes_each: int = 0,
    retries: int = 0,
    task_memory: int = 0,
    memory: int | str | None = None,
    scan: bool = False,
    local: bool = False,
    resume_hint: str | None = None,
) -> list[Result]:
    """Apply `function` to every item, and return the results in the order of the items.

    One task each, up to some thousands (`TASKS`); more items are worked on in groups, one item of a group at a time.

    `task_memory` is the anonymous memory that one task takes at its peak, in bytes. As many tasks run at once as fit
    into `memory` (local threads) or as the workers have threads; if not even one fits, `MemoryLimitError` is raised
    before any task runs. `bytes_each` is for progress; items of no bytes are no tiles. `scan` counts the work as one
    scan. `local` keeps the work on this process's threads, for functions that do not pickle. `resume_hint` is for tasks
    with lasting results: the advice how to resume the rest. Such work ends with `Stopped` after the running tasks, on
    SIGTERM or a time limit.

    On a cluster a failed task is tried `retries` times more, on any worker; locally, in its thread. The first failure
    that remains is raised; tasks not yet begun are dropped, and running local ones are waited for: when this returns or
    raises, none of them runs any more.
    """
    client = None if local else active_client()
    step = progress.current().begin(label, tiles=len(items), bytes=bytes_each * len(items), scan=scan)
    if not items:
        return []
    pace = _Pace(len(items), resume_hint)
    if client is None:
        threads = threads_that_fit(task_memory, memory, label)
        import dask

        gate = _Gate()

        def work(item: Item) -> Result | None:
            began = time.monotonic()
            if not (pace.may_begin() and gate.enter()):
                return None
            try:
                result = _retried(function, item, retries)
            finally:
                gate.leave()
            pace.done(time.monotonic() - began)
            step.add(bytes=bytes_each, read=bytes_each > 0)
            return result

        delayed = dask.delayed(lambda group: [work(item) for item in group], pure=False, traverse=False)
        with single_threaded_blas(), limits.defer_stop() if resume_hint else nullcontext():
            try:
                list_of = [delayed(group) for group in _groups(items, TASKS)]
                results = limits.waited(dask.compute, *list_of, scheduler="threads", num_workers=threads)
            finally:
                gate.close()
        pace.stop()
        return [result for group in results for result in group]
    check_workers(worker_memory(client), task_memory, label)
    from distributed import as_completed

    groups = _groups(items, TASKS_OF_A_CLUSTER)
    futures = client.map(_Limited(function), groups, retries=retries, pure=False)
    size_of = {future.key: len(group) for future, group in zip(futures, groups, strict=True)}
    try:
        began, at_once = time.monotonic(), sum(threads for _, threads in worker_memory(client).values())

        def collect() -> list[Result]:
            for number, future in enumerate(as_completed(futures, loop=client.loop), 1):
                if future.status == "error":
                    future.result()
                tiles = size_of[future.key]
                step.add(tiles=tiles, bytes=tiles * bytes_each, read=bytes_each > 0)
                pace.done((time.monotonic() - began) * at_once / number, items=tiles)
                if not pace.may_begin():
                    pace.stop()
            return [result for group in client.gather(futures) for result in group]

        with limits.defer_stop() if resume_hint else nullcontext(), stalls.watching(client) as watch:
            return watch.waited(collect)
    finally:
        client.cancel(futures)


def repeated_if_lost(work: Callable[[int], Result]) -> Result:
    """Do some work on a cluster, again when data that this process had sent were lost with a worker.

    `work` gets the number of losses so far.
    """
    for losses in range(LOSSES):
        try:
            return work(losses)
        except CancelledError:  # or GivenUp
            client = active_client()
            if client is None or client.status != "running":
                raise
        time.sleep(min(1.0, 0.1 * 2**losses))  # until the scheduler knows who has died
    return work(LOSSES)


class _Pace:
    """Decides whether another task may begin before a time limit, from the time that tasks take."""

    def __init__(self, total: int, resume_hint: str | None) -> None:
        self._stop = limits.current() if resume_hint else limits.Stop()
        self._total = total
        self._resume_hint = resume_hint
        self._begun = self._done = 0
        self._slowest = 0.0
        self._reason = ""
        self._lock = threading.Lock()

    def may_begin(self) -> bool:
        """Return whether a task may begin. The first always may, so that a resumed job makes progress."""
        with self._lock:
            if self._begun and not self._reason:
                self._reason = self._stop.reason(self._slowest)
            self._begun += 1
            return not self._reason

    def done(self, seconds: float, *, items: int = 1) -> None:
        with self._lock:
            self._done += items
            self._slowest = max(self._slowest, seconds)

    def stop(self) -> None:
        if self._reason and self._done < self._total:
            raise Stopped(
                f"stopped by {self._reason} after {self._done} of {count_text(self._total, 'tile')}",
                remedy=self._resume_hint,
            )


class _Gate:
    """Counts the running tasks. Dask raises the first failure while other threads still run theirs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._open = True

    def enter(self) -> bool:
        with self._changed:
            self._inside += self._open
            return self._open

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let no further task begin, and wait until the running ones have ended."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: self._inside == 0)


def _retried(function: Callable[[Item], Result], item: Item, retries: int) -> Result:
    for left in range(retries, -1, -1):
        try:
            return function(item)
        except DasrelError:
            raise  # the user must fix this: trying again cannot help
        except Exception:
            if left == 0:
                raise
    raise AssertionError("unreachable")


def _groups(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """Cut items into groups of consecutive ones: one each if they are few."""
    size = -(-len(items) // most)
    return [items[start : start + size] for start in range(0, len(items), size)]


class _Limited:
    """A task on a worker: with BLAS on one thread, unless it runs in the caller's own process."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.home = os.getpid()

    def __call__(self, group: Sequence[Any]) -> list[Any]:
        if os.getpid() != self.home:
            prepare_worker()
        return [self.function(item) for item in group]


BAND = 64
"""Rows between two releases of pages: the system maps 64 KB around every access, so that a short piece of a long row
takes 64 KB as well."""


def part(table: Array, rows: slice, columns: slice | Array = slice(None)) -> Array:
    """Return these rows and columns of a two-dimensional array: a view, or a copy of a mapped file on a worker."""
    if not (on_worker() and _map_of(table) is not None):
        return table[rows, columns] if isinstance(columns, slice) else table[rows][:, columns]
    if isinstance(columns, slice) and table.flags.f_contiguous and not table.flags.c_contiguous:
        return part(table.T, columns, rows).T
    first, last, _ = rows.indices(len(table))
    wide = len(range(*columns.indices(table.shape[1]))) if isinstance(columns, slice) else len(columns)
    copy = np.empty((max(0, last - first), wide), dtype=table.dtype)
    for start in range(0, len(copy), BAND):
        band = table[first + start : min(last, first + start + BAND)]
        copy[start : start + BAND] = band[:, columns]
        release_pages(table)
    return copy


def release_pages(array: Array) -> None:
    """On a worker, unmap the pages of the file that an array is mapped from; they return on the next access."""
    if on_worker():
        mapped = _map_of(array)
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def _map_of(array: Any) -> mmap.mmap | None:
    """Return the map that an array is a view of."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array


# ------------------------------------------------------------------------------- files that workers see

SHARE = "put it in a folder that all of them see under the same name, or into an object store"
HEAD = 1 << 16
"""Bytes at the beginning of a file that are compared."""
_known: WeakKeyDictionary[Any, set[tuple[str, str]]] = WeakKeyDictionary()
"""By client: the workers that see a path, and the path."""


class UnseenError(ClusterError):
    """Workers of a cluster do not see a file of this machine."""


def check_all_see(path: PathLike, *, remedy: str = SHARE) -> None:
    """Raise unless all workers of the active client, if there is one, see what is at a path of this machine."""
    client = active_client()
    if client is not None:
        check_seen(client, path, remedy=remedy)


def check_seen(client: Any, path: PathLike, addresses: Collection[str] | None = None, *, remedy: str = SHARE) -> None:
    """Raise unless the workers at these addresses, by default all, see what is at a path of this machine.

    Workers that were found to see it are not asked again.
    """
    name = os.path.abspath(path)
    known = _known.setdefault(client, set())
    asked = sorted(worker_memory(client) if addresses is None else addresses)
    asked = [address for address in asked if (address, name) not in known]
    if not asked:
        return
    blind = _unseen(client, name, asked)
    known.update((address, name) for address in asked if address not in blind)
    if blind:
        address, host = next(iter(blind.items()))
        others = f", nor do {count_text(len(blind) - 1, 'other worker')}" if len(blind) > 1 else ""
        raise UnseenError(
            f"{shown(name, limit=200)} of this machine ({socket.gethostname()}) is not seen by worker"
            f" {redacted(address)} on {shown(host)}{others}",
            remedy=remedy,
        )


def all_see(path: PathLike) -> bool:
    """Return whether all workers of the active client, if there is one, see what is at a path of this machine."""
    client = active_client()
    return client is None or not _unseen(client, os.path.abspath(path), sorted(worker_memory(client)))


def _unseen(client: Any, name: str, asked: list[str]) -> dict[str, str]:
    """Return the hosts of the workers, by address, that do not see what is at a path of this machine."""
    ask = partial(client.run, _head, name, workers=asked, on_error="return")
    with stalls.watching(client) as watch:
        answers = watch.waited(ask)
    here = _head(name)[1]
    heard = {address: answer for address, answer in answers.items() if not isinstance(answer, BaseException)}
    return {address: answer[0] for address, answer in sorted(heard.items()) if answer[1] != here}


def _head(name: str) -> tuple[str, tuple[int, int] | None]:
    """Return the host, and what shows whether this is the same file, or the same store, as another process sees."""
    path = os.path.join(name, "zarr.json") if os.path.isdir(name) else name
    try:
        with open(open_regular(path), "rb") as file:
            return socket.gethostname(), (os.fstat(file.fileno()).st_size, crc32c(file.read(HEAD)))
    except OSError:
        return socket.gethostname(), None
