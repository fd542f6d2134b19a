"""The scan: one read of every tile, in which everything that wants something from the matrix takes part.

    tile -> partial results -> combined in a fixed order -> one result per consumer

It runs the graph that `graph` builds, on local threads or on a cluster whose workers keep what they can of the tiles in
memory (see `workers`), within a budget of memory that is checked before the first tile is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import dask
import dask.threaded
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from numpy.typing import NDArray

from dasrel import graph as graphs
from dasrel import meter, stopping, tasks, workers
from dasrel.ahead import Ahead, buffer_bytes
from dasrel.errors import MemoryLimitError, size_text
from dasrel.graph import FOLDS, GROUPS, Consumer, Given, Plan, build_graph, keys_of, run_here, tile_order
from dasrel.store import Layout

Array = NDArray[Any]

HERE_BYTES = 128 * 2**20
"""Partial results of a cluster's workers that are combined by the caller: sums on the workers would cost more than
they spare. Measured with two workers on one machine at n = 20,480 and 64 columns: 25 MB of them, 30 ms here, 120 ms
there, of which most is the scheduler's."""
LOSSES = 9  # of workers, in one scan
SMALL = 8 * 2**20  # a matrix below this many bytes is scanned on the calling thread: other threads would cost more
UNSCHEDULED = 256 * 2**20
"""A matrix below this many bytes is scanned by threads without Dask's scheduler, which would take a noticeable part of
the time, if its partial results may all wait to be combined by one thread."""


class TileSource(Protocol):
    """A matrix that can be scanned: `dasrel.Matrix`, or an array taken directly."""

    layout: Layout
    kind: str

    @property
    def files(self) -> Any:
        """Its `Reader`."""

    @property
    def diagonal(self) -> Array | None:
        """Self-similarities for kinds similarity and kernel."""

    @property
    def pins(self) -> dict[str, Any]:
        """What the workers of a cluster hold of it, by client; kept here so that it lives as long as the matrix."""


def scan(source: TileSource, consumers: Sequence[Consumer], *, memory: int | str | None = None) -> list[Any]:
    """Read every tile once, let every consumer take part, and return their results in order.

    Runs on the active distributed client if there is one, else on local threads (Dask's `num_workers` of them).

    Parameters
    ----------
    memory
        Anonymous memory that the scan may take on this machine, such as "2GiB"; by default half of the machine's.

    Cost: one scan. Memory is predicted and compared with the limit, and with the workers' limits on a cluster, before
    the first tile is read.
    """
    return prepare_scan(source, consumers, memory=memory).run()


def prepare_scan(source: TileSource, consumers: Sequence[Consumer], *, memory: int | str | None = None) -> PreparedScan:
    """Plan a scan that is run several times with different shares; see `scan`. Cost: none."""
    limit = tasks.machine_memory() // 2 if memory is None else int(parse_bytes(memory))
    needs = needed_memory(source, consumers), needed_on_worker(source, consumers)
    return PreparedScan(source, Plan(source.layout), tuple(consumers), limit, *needs)


@dataclass(frozen=True)
class PreparedScan:
    """A scan of which the memory is estimated. Get one with `prepare_scan`."""

    source: TileSource
    plan: Plan
    consumers: tuple[Consumer, ...]
    limit: int
    """Bytes that it may take on this machine."""
    needs_here: tuple[int, int]
    """What `needed_memory` says."""
    needs_there: tuple[int, int]
    """What `needed_on_worker` says."""

    def run(self, shares: Sequence[Callable[[slice], Any]] | None = None) -> list[Any]:
        """Read every tile once and return the consumers' results in order.

        Parameters
        ----------
        shares
            What each consumer's kernel needs of a strip of objects, instead of the consumer's own `share`.

        Cost: one scan. Workers may come and go between two of them: memory is compared with the limits each time.
        """
        consumers: Sequence[Consumer] = self.consumers
        if shares is not None:
            consumers = [replace(mine, share=share) for mine, share in zip(consumers, shares, strict=True)]
        stopping.check()
        client = tasks.active_client()
        of_workers = None if client is None else tasks.worker_memory(client)
        threads, ahead = self._check_memory(of_workers)
        with _one_at_a_time, tasks.single_threaded_blas():
            counted = meter.current()
            if client is None or of_workers is None:
                results = _scan_here(self.source, self.plan, consumers, counted, threads, ahead)
            else:
                results = _scan_again_if_lost(self.source, self.plan, consumers, counted, client, of_workers, ahead)
        finished = []
        for consumer in consumers:
            parts = dict(zip(keys_of(self.plan, consumer), [folded.value for folded in results.pop(0)], strict=True))
            finished.append(consumer.finish(parts))
        stopping.check()
        return finished

    def _check_memory(self, of_workers: dict[str, tuple[int, int]] | None) -> tuple[int, bool]:
        """How many local threads may work, and whether there is room to read ahead; refuses what cannot fit."""
        files, limit, (fixed, task) = self.source.files, self.limit, self.needs_here
        here = fixed + (task if of_workers is None else brought_here(self.plan, self.consumers))
        if here > limit:
            raise MemoryLimitError(
                f"a scan needs {size_text(here)} ({size_text(fixed)} for the columns and"
                f" {size_text(here - fixed)} for a task) and the limit is {size_text(limit)};"
                f" raise memory, use fewer columns at once, or tiles smaller than {self.plan.layout.tile}"
            )
        if of_workers is not None:
            there, kept = self.needs_there
            tasks.check_workers(of_workers, there, "a scan", kept=kept)
            buffers, left = buffer_bytes(files, 1, on_worker=True), 1 - workers.PINNED_SHARE
            room = all(not most or buffers * threads + kept <= left * most for most, threads in of_workers.values())
            return 0, room and files.waited_for
        threads = tasks.thread_count(waiting=not files.in_memory)
        threads = min(threads, int((limit - fixed) // task)) if task else threads
        cores = min(threads, int(CPU_COUNT))  # whoever reads ahead is nobody's to wait for
        ahead = files.waited_for and fixed + cores * task + buffer_bytes(files, cores) <= limit
        return cores if ahead else threads, ahead


_one_at_a_time = threading.Lock()
"""Two threads that scan at once would only fight for the disk, the cores and the BLAS limit: they take turns."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Start the local threads of all scans, of which one runs at a time; Dask would start others for each of them."""
    return ThreadPoolExecutor(threads, thread_name_prefix="dasrel-scan")


def _scan_here(
    source: TileSource, plan: Plan, consumers: Sequence[Consumer], counted: meter.Meter, threads: int, ahead: bool
) -> list[Any]:
    size = source.layout.total_bytes
    threads = 1 if size <= SMALL else threads
    step = counted.begin("scan", tiles=len(source.layout.tiles()), bytes=size, scan=True)
    reader = Ahead(source.files, threads) if ahead else source.files
    waiting = len(plan.groups()) * sum(consumer.part_bytes for consumer in consumers)
    scheduled = size > UNSCHEDULED or waiting > graphs.FOLD_BYTES
    graph, wanted = build_graph(plan, reader, {}, consumers, _Count(step), inline=not scheduled)
    order = tile_order(graph, plan, scheduled=scheduled) if ahead else []
    with source.files.scanned(), reader.reading(order) if ahead else nullcontext():
        if not scheduled:
            return run_here(graph, wanted, threads=threads)
        return list(stopping.waited(dask.threaded.get, graph, wanted, pool=_pool(threads)))


def _scan_again_if_lost(
    source: TileSource,
    plan: Plan,
    consumers: Sequence[Consumer],
    counted: meter.Meter,
    client: Any,
    memory: dict[str, tuple[int, int]],
    ahead: bool,
) -> list[Any]:
    """Tiles that nobody can make again when a worker dies are sent again, and the scan is begun anew."""
    for losses in range(LOSSES + 1):
        try:
            return _scan_on_cluster(source, plan, consumers, counted, client, memory, ahead, again=losses > 0)
        except CancelledError:
            if client.status != "running" or losses == LOSSES:
                raise
            memory = tasks.worker_memory(client)
    raise AssertionError("unreachable")


def _scan_on_cluster(
    source: TileSource,
    plan: Plan,
    consumers: Sequence[Consumer],
    counted: meter.Meter,
    client: Any,
    memory: dict[str, tuple[int, int]],
    ahead: bool,
    *,
    again: bool,
) -> list[Any]:
    n_tiles, size = len(source.layout.tiles()), source.layout.total_bytes
    step = counted.begin("scan", tiles=n_tiles, bytes=size, scan=not again)
    groups = {group: plan.tiles(group) for group in plan.groups()}
    pins = source.pins.get(client.id) or source.pins.setdefault(client.id, workers.Pins(client))
    task_memory, _ = needed_on_worker(source, consumers)
    held, read = pins.place(source.files, groups, source.layout.tile_bytes, task_memory, memory)
    part_bytes = sum(consumer.part_bytes for consumer in consumers)
    here = brought_here(plan, consumers)
    batches = pins.batches(
        list(groups), memory, most=max(1, 2 * graphs.FOLD_BYTES // max(1, part_bytes)) if not here else None
    )
    inline = bool(here) and len(batches) * sum(consumer.share_bytes for consumer in consumers) <= HERE_BYTES
    reader = source.files if source.files.travels else None
    ahead = ahead and plan.group_side > 1  # the tiles of a task are read ahead, those of the next one are not
    with pins.watched(), workers.listening(client, step, n_tiles, size, watched=counted.is_watched) as tell:
        graph, wanted = build_graph(plan, reader, held, consumers, tell, batches=batches, inline=inline, ahead=ahead)
        if here:
            folds = {key: graph.pop(key) for key in list(graph) if key[0].startswith(FOLDS)}
            parts = [key for key in graph if key[0].startswith(GROUPS)]
            brought = zip(parts, stopping.waited(workers.get, client, memory, graph, parts), strict=True)
            folds.update({key: (Given(part),) for key, part in brought})
            results = list((dask.get if here <= SMALL else dask.threaded.get)(folds, wanted))
        else:
            results = stopping.waited(workers.get, client, memory, graph, wanted)
    tiles_read = sum(len(groups[group]) for group in read)
    counted.count(tiles=tiles_read, bytes=tiles_read * source.layout.tile_bytes)
    return results


def reduction(
    function: Callable[[Array, bool], Any], combine: Callable[[Any, Any], Any], *, task_memory: int = 0
) -> Consumer:
    """A consumer with one result for the whole matrix: `function(tile, on_diagonal)` of every tile, combined in order.

    Both functions must be importable by the workers; the combining is a balanced tree.
    """
    return Consumer(_ReduceKernel(function, combine), lambda parts: parts[0], task_memory=task_memory)


@dataclass(frozen=True)
class _ReduceKernel:
    function: Callable[[Array, bool], Any]
    merge: Callable[[Any, Any], Any]

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        return None

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        found = self.function(tile, i == j)
        return (found,) if partial is None else (self.merge(partial[0], found),)

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[0]}

    def combine(self, first: Any, second: Any) -> Any:
        return self.merge(first, second)


@dataclass
class _Count:
    """Tells the meter of tiles read in this process."""

    step: meter.Pass

    def __call__(self, tiles: int, bytes: int) -> None:  # noqa: A002
        self.step.add(tiles=tiles, bytes=bytes)


def brought_here(plan: Plan, consumers: Sequence[Consumer]) -> int:
    """Bytes of the partial results of all groups, where a cluster's are combined by the caller, else 0."""
    size = len(plan.groups()) * sum(consumer.part_bytes for consumer in consumers)
    return max(1, size) if size <= HERE_BYTES else 0


def needed_on_worker(source: TileSource, consumers: Sequence[Consumer]) -> tuple[int, int]:
    """Memory of a worker in bytes: what each task takes, and what is held besides them.

    Besides them there are the shares, and partial results that others still need.
    """
    four_groups = sum(consumer.share_bytes + 4 * consumer.part_bytes for consumer in consumers)
    task = source.files.memory_on_worker + sum(consumer.task_memory for consumer in consumers)
    return task, max(four_groups, brought_here(Plan(source.layout), consumers))


def needed_memory(source: TileSource, consumers: Sequence[Consumer]) -> tuple[int, int]:
    """Anonymous memory of a scan in bytes: what the caller holds, and what each task takes besides."""
    groups = len(Plan(source.layout).groups())
    waiting = sum(min(consumer.part_bytes * groups, graphs.FOLD_BYTES) for consumer in consumers)
    fixed = waiting + sum(consumer.fixed_memory for consumer in consumers)
    task = source.files.read_memory + sum(consumer.task_memory for consumer in consumers)
    return fixed, task
