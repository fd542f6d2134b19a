"""Map a function over items on threads or on a Dask client, within memory, with stops; slices of mapped files.

Work for Dask, one task per item: on the active distributed client if there is one, else on local threads.

Parts of mapped files: views here, copies on the worker of a cluster.

Dask counts every page that a worker has mapped as the worker's memory, pauses it at 0.8 of its limit and ends it at
0.95: a file that is larger than the limit must not stay mapped. There a part is copied, some rows at a time, and the
pages are let go of; they stay in the operating system's cache. Anywhere else a part is a view, and costs nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

import dask
import numpy as np
from threadpoolctl import ThreadpoolController

from dasrel.errors import ClusterError, DasrelError, Stopped
from dasrel.util import Array, limits, progress
from dasrel.util.limits import AGAIN, check_workers, threads_that_fit, worker_memory
from dasrel.util.text import count_text

Item = TypeVar("Item")
Result = TypeVar("Result")


# The client that the work belongs to, inside `bound_to`.
_bound: ContextVar[Any | None] = ContextVar("dasrel_client", default=None)


@contextmanager
def bound_to(client: Any) -> Iterator[None]:
    """Inside, this is the active client, and work fails when it is lost; it never goes on here in silence."""
    token = _bound.set(client)
    try:
        yield
    finally:
        _bound.reset(token)


def lost(client: Any) -> ClusterError:
    """What to say when a client's scheduler has gone away."""
    where = client.scheduler.address if client.scheduler is not None else ""
    return ClusterError(f"the connection to the scheduler {where} was lost", remedy=f"start it again and {AGAIN}")


def active_client() -> Any | None:
    """The distributed client that the user has made active, or None. Never connects, never starts anything."""
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
    """Whether the caller is a task on a worker of a cluster."""
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
    """Parallelism is over tiles, so each tile's product runs on one thread. The old number is given back.

    The limit belongs to the process; the thread that asks for it is the one that lets go of it.
    """
    with _blas().limit(limits=1, user_api="blas"):
        yield


@cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process. Looking for them takes longer than the scan of a small matrix."""
    return ThreadpoolController()


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt
KEPT_BY_MALLOC = 32 * 2**20
"""Bytes of freed memory that a worker keeps for what comes next."""


@cache
def prepare_worker() -> None:
    """The same for a worker process, which computes nothing but tasks: once, and for good.

    Memory too is given to it as to any other process. Dask starts workers with MALLOC_TRIM_THRESHOLD_ set, and then
    glibc takes every array of 128 KB or more anew from the system and gives it back at once, page by page; left alone
    it comes to keep some, up to these numbers, for the next task. Measured with two workers of one machine, n = 20,480:
    10 ms of a scan that takes 80 (4 columns) or 180 (16).
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
    goes_on: str | None = None,
) -> list[Result]:
    """Apply `function` to every item, one task each, and return the results in the order of the items.

    `task_memory` is the anonymous memory that one task takes at its peak, in bytes. As many tasks run at once as fit
    into `memory` (local threads) or as the workers have threads; when not even one fits, nothing is begun and
    `MemoryLimitError` names the numbers. `bytes_each` is only for progress. `scan` counts the work as one scan.
    `local` keeps it on this process's threads, for what cannot travel. `goes_on` is for tasks whose work lasts: it says
    how to go on with the rest after a stop. Such work ends after the tasks under way, with `Stopped`, when asked to.

    On a cluster a task that fails is tried `retries` times more, on any worker. Locally the same holds in the thread.
    The first failure that remains is raised; the tasks not yet begun are dropped, and local ones that are under way
    are waited for: when this returns or raises, none of them touches anything any more.
    """
    client = None if local else active_client()
    step = progress.current().begin(label, tiles=len(items), bytes=bytes_each * len(items), scan=scan)
    if not items:
        return []
    pace = _Pace(len(items), goes_on)
    if client is None:
        threads = threads_that_fit(task_memory, memory, label)
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
            step.add(bytes=bytes_each)
            return result

        delayed = dask.delayed(work, pure=False, traverse=False)
        with single_threaded_blas(), limits.kept() if goes_on else nullcontext():
            try:
                list_of = [delayed(item) for item in items]
                results = list(limits.waited(dask.compute, *list_of, scheduler="threads", num_workers=threads))
            finally:
                gate.close()
        pace.stop()
        return results
    check_workers(worker_memory(client), task_memory, label)
    from distributed import as_completed

    futures = client.map(_Limited(function), items, retries=retries, pure=False)
    try:
        began, at_once = time.monotonic(), sum(threads for _, threads in worker_memory(client).values())

        def collect() -> list[Result]:
            for number, future in enumerate(as_completed(futures, loop=client.loop), 1):
                if future.status == "error":
                    future.result()
                step.add(bytes=bytes_each)
                pace.done((time.monotonic() - began) * at_once / number)
                if not pace.may_begin():
                    pace.stop()
            return list(client.gather(futures))

        with limits.kept() if goes_on else nullcontext():
            return limits.waited(collect)
    finally:
        client.cancel(futures)


class _Pace:
    """Whether another task may begin: asks who stops, and knows how long a task takes."""

    def __init__(self, total: int, goes_on: str | None) -> None:
        self._stop = limits.current() if goes_on else limits.Stop()
        self._total = total
        self._goes_on = goes_on
        self._begun = self._done = 0
        self._slowest = 0.0
        self._reason = ""
        self._lock = threading.Lock()

    def may_begin(self) -> bool:
        """The first one may in any case, so that whoever goes on gets further."""
        with self._lock:
            if self._begun and not self._reason:
                self._reason = self._stop.reason(self._slowest)
            self._begun += 1
            return not self._reason

    def done(self, seconds: float) -> None:
        with self._lock:
            self._done += 1
            self._slowest = max(self._slowest, seconds)

    def stop(self) -> None:
        if self._reason and self._done < self._total:
            raise Stopped(
                f"stopped by {self._reason} after {self._done} of {count_text(self._total, 'tile')}",
                remedy=self._goes_on,
            )


class _Gate:
    """Counts the tasks under way. Dask raises the first failure while other threads still work on theirs."""

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
        """Let nobody in any more, and wait until everybody has left."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: self._inside == 0)


def _retried(function: Callable[[Item], Result], item: Item, retries: int) -> Result:
    for left in range(retries, -1, -1):
        try:
            return function(item)
        except DasrelError:
            raise  # says what the user must mend: trying again cannot help
        except Exception:
            if left == 0:
                raise
    raise AssertionError("unreachable")


class _Limited:
    """A task as a worker runs it: with BLAS on one thread, unless it runs in the caller's own process."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.home = os.getpid()

    def __call__(self, item: Any) -> Any:
        if os.getpid() != self.home:
            prepare_worker()
        return self.function(item)


BAND = 64
"""Rows between two times of letting go: the system maps 64 KB around whatever is looked at, so that a short piece of a
long row is 64 KB as well."""


def part(table: Array, rows: slice, columns: slice | Array = slice(None)) -> Array:
    """These rows and columns of an array of two dimensions."""
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
        let_go(table)
    return copy


def let_go(array: Array) -> None:
    """On a worker, forget the pages of the file that an array is mapped from; they come back when looked at."""
    if on_worker():
        found = _map_of(array)
        if found is not None:
            found.madvise(mmap.MADV_DONTNEED)


def _map_of(array: Any) -> mmap.mmap | None:
    """The map that an array is a view of."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array
