"""Work for Dask, one task per item: on the active distributed client if there is one, else on local threads."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from threadpoolctl import ThreadpoolController

from dasrel import meter, stopping
from dasrel.errors import ClusterError, DasrelError, MemoryLimitError, Stopped, count_text, size_text

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


AGAIN = "repeat the command, with --resume if it writes a store or a checkpoint"


def lost(client: Any) -> ClusterError:
    """What to say when a client's scheduler has gone away."""
    where = client.scheduler.address if client.scheduler is not None else ""
    return ClusterError(f"the connection to the scheduler {where} was lost; start it again and {AGAIN}")


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


def thread_count(*, waiting: bool = True) -> int:
    """Local threads: Dask's `num_workers` setting if given, else the cores and, where data is waited for, two more.

    The extra threads keep the disk busy while the cores compute, where nobody reads ahead (see `ahead`). On tiles in
    memory they are in each other's way: a scan takes up to a fifth longer.
    """
    configured = dask.config.get("num_workers", None)
    return int(configured) if configured else int(CPU_COUNT) + 2 * waiting


@cache
def machine_memory() -> int:
    """Memory of this machine in bytes, or what the container or the job may use if that is less."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *group_limits()])


def group_limits(root: Path = Path("/")) -> list[int]:
    """Memory limits of the control groups that this process is in, the groups around them included.

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
    """Bytes that this process has had read from storage so far; 0 where the system does not say."""
    try:
        with open("/proc/self/io", encoding="ascii") as counters:
            return next(int(line.split()[1]) for line in counters if line.startswith("read_bytes"))
    except (OSError, StopIteration):
        return 0


def free_memory() -> int:
    """Memory of this machine that is free, or that the system would free for files, in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        free = machine_memory()
    return min(free, machine_memory())


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


def threads_that_fit(task_memory: int, memory: int | str | None, label: str) -> int:
    """How many local threads may run tasks of this size within the limit; refuses when not even one may."""
    threads = thread_count()
    if memory is None or task_memory == 0:
        return threads
    limit = parse_bytes(memory)
    if task_memory > limit:
        raise MemoryLimitError(
            f"{label} needs {size_text(task_memory)} for one task and the limit is {size_text(limit)};"
            " raise --memory or use smaller tiles (--tile)"
        )
    return min(threads, int(limit // task_memory))


IDLE_WORKER = 100 * 10**6
"""Memory of a worker before it does anything, in bytes: 60 MB, 75 with dasrel loaded, and what malloc keeps. With less
it is ended by its nanny, again and again."""
PAUSED = 0.8
"""The share of its memory limit at which Dask lets a worker begin nothing more."""
AWAY = 60.0
"""Seconds in which workers that have all died must be there again, started anew by whoever watches over them."""


def worker_memory(client: Any, *, wait: float = AWAY) -> dict[str, tuple[int, int]]:
    """Each worker's address with the bytes that it has for work (0: no limit is set) and its number of threads.

    There is one at least: when all have died, it waits until one is there again, for so many seconds.
    """
    # Not scheduler_info: it returns a cache that the client's own refresh, now and then, has emptied of workers.
    until = time.monotonic() + wait
    while not (workers := client.sync(client.scheduler.identity, n_workers=-1)["workers"]) and wait:
        if time.monotonic() > until:
            raise ClusterError(f"the cluster has no worker left, and none came in {wait:g} s; start some and {AGAIN}")
        stopping.check()
        time.sleep(0.1)
    return {address: (room_of(int(w["memory_limit"] or 0)), int(w["nthreads"])) for address, w in workers.items()}


def room_of(limit: int) -> int:
    """Bytes that a worker with this memory limit has for work: until Dask pauses it, less what it takes itself."""
    return max(1, int(PAUSED * limit) - IDLE_WORKER) if limit else 0


def limit_for(room: int) -> int:
    """The memory limit of a worker that is to have so many bytes for work."""
    return math.ceil((room + IDLE_WORKER) / PAUSED)


def check_workers(workers: dict[str, tuple[int, int]], task_memory: int, label: str, *, kept: int = 0) -> None:
    """Refuse work that cannot fit into the smallest worker: a task on each of its threads, and what is kept besides."""
    for address, (limit, threads) in workers.items():
        need = task_memory * threads + kept
        if limit and need > limit:
            raise MemoryLimitError(
                f"{label} needs {size_text(need)} on worker {address} ({count_text(threads, 'task')} at once), which"
                " has"
                f" {size_text(limit)} for them; give workers more memory or fewer threads, or use smaller tiles"
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
    step = meter.current().begin(label, tiles=len(items), bytes=bytes_each * len(items), scan=scan)
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
        with single_threaded_blas(), stopping.kept() if goes_on else nullcontext():
            try:
                list_of = [delayed(item) for item in items]
                results = list(stopping.waited(dask.compute, *list_of, scheduler="threads", num_workers=threads))
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

        with stopping.kept() if goes_on else nullcontext():
            return stopping.waited(collect)
    finally:
        client.cancel(futures)


class _Pace:
    """Whether another task may begin: asks who stops, and knows how long a task takes."""

    def __init__(self, total: int, goes_on: str | None) -> None:
        self._stop = stopping.current() if goes_on else stopping.Stop()
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
                f"stopped by {self._reason} after {self._done} of {count_text(self._total, 'tile')}; {self._goes_on}"
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
