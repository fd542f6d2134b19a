"""Work for Dask, one task per item: on the active distributed client if there is one, else on local threads."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import dask
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes
from threadpoolctl import ThreadpoolController

from dasrel import meter
from dasrel.errors import DasrelError, MemoryLimitError

Item = TypeVar("Item")
Result = TypeVar("Result")


def active_client() -> Any | None:
    """The distributed client that the user has made active, or None. Never connects, never starts anything."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        client = distributed.get_client()
    except ValueError:
        return None
    return client if client.status == "running" else None


def thread_count() -> int:
    """Local threads: Dask's `num_workers` setting if given, else the cores and two more.

    The extra threads keep the disk busy while the cores compute: measured at 2 cores on cold tiles, four threads read
    nearly as fast as the raw files, two a quarter slower; on warm tiles they cost a twentieth.
    """
    configured = dask.config.get("num_workers", None)
    return int(configured) if configured else int(CPU_COUNT) + 2


@cache
def machine_memory() -> int:
    """Memory of this machine in bytes, or what the container may use if that is less."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = min(limit, int(file.read()))
    except (OSError, ValueError):
        pass  # no control group, or no limit ("max")
    return limit


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


@cache
def limit_worker_blas() -> None:
    """The same for a worker process, which computes nothing but tasks: once, and for good."""
    _blas().limit(limits=1, user_api="blas")


def threads_that_fit(task_memory: int, memory: int | str | None, label: str) -> int:
    """How many local threads may run tasks of this size within the limit; refuses when not even one may."""
    threads = thread_count()
    if memory is None or task_memory == 0:
        return threads
    limit = parse_bytes(memory)
    if task_memory > limit:
        raise MemoryLimitError(
            f"{label} needs {format_bytes(task_memory)} for one task and the limit is {format_bytes(limit)};"
            " raise --memory or use smaller tiles (--tile)"
        )
    return min(threads, int(limit // task_memory))


def worker_memory(client: Any) -> dict[str, tuple[int, int]]:
    """Each worker's address with its memory limit in bytes (0: none set) and its number of threads."""
    # Not scheduler_info: it returns a cache that the client's own refresh, now and then, has emptied of workers.
    workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return {address: (int(w["memory_limit"] or 0), int(w["nthreads"])) for address, w in workers.items()}


def check_workers(workers: dict[str, tuple[int, int]], task_memory: int, label: str, *, kept: int = 0) -> None:
    """Refuse work that cannot fit into the smallest worker: a task on each of its threads, and what is kept besides."""
    for address, (limit, threads) in workers.items():
        need = task_memory * threads + kept
        if limit and need > limit:
            raise MemoryLimitError(
                f"{label} needs {format_bytes(need)} on worker {address} ({threads} tasks at once), which has"
                f" {format_bytes(limit)}; give workers more memory or fewer threads, or use smaller tiles"
            )


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
) -> list[Result]:
    """Apply `function` to every item, one task each, and return the results in the order of the items.

    `task_memory` is the anonymous memory that one task takes at its peak, in bytes. As many tasks run at once as fit
    into `memory` (local threads) or as the workers have threads; when not even one fits, nothing is begun and
    `MemoryLimitError` names the numbers. `bytes_each` is only for progress. `scan` counts the work as one scan.
    `local` keeps it on this process's threads, for what cannot travel.

    On a cluster a task that fails is tried `retries` times more, on any worker. Locally the same holds in the thread.
    The first failure that remains is raised; the tasks not yet begun are dropped, and local ones that are under way
    are waited for: when this returns or raises, none of them touches anything any more.
    """
    client = None if local else active_client()
    step = meter.current().begin(label, tiles=len(items), bytes=bytes_each * len(items), scan=scan)
    if not items:
        return []
    if client is None:
        threads = threads_that_fit(task_memory, memory, label)
        gate = _Gate()

        def work(item: Item) -> Result | None:
            if not gate.enter():
                return None
            try:
                result = _retried(function, item, retries)
            finally:
                gate.leave()
            step.add(bytes=bytes_each)
            return result

        delayed = dask.delayed(work, pure=False, traverse=False)
        with single_threaded_blas():
            try:
                return list(dask.compute(*[delayed(item) for item in items], scheduler="threads", num_workers=threads))
            finally:
                gate.close()
    check_workers(worker_memory(client), task_memory, label)
    from distributed import as_completed

    futures = client.map(_Limited(function), items, retries=retries, pure=False)
    try:
        for future in as_completed(futures):
            if future.status == "error":
                future.result()
            step.add(bytes=bytes_each)
        return list(client.gather(futures))
    finally:
        client.cancel(futures)


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
            limit_worker_blas()
        return self.function(item)
