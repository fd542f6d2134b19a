"""One read of all tiles, in which everything that needs the matrix takes part.

    tile -> partial results -> combined in a fixed order -> one result per consumer

Tiles are grouped into squares of `group_side` by `group_side` tiles, one task each. The grouping follows from the
store alone, and so does the order in which partial results are combined: the same bits result for any number of
threads or workers, in whatever order they finish. The graph runs on local threads or on a cluster whose workers pin
what they can of the tiles (`worker_cache`), within a memory limit that is checked before the first tile is read.

Network traffic. A group of g x g tiles of side t and item size s yields, for k columns, sums for its g t rows and g t
columns in the tiles' precision: 2 g t k s bytes from g^2 t^2 s bytes of tiles. They go to at most two workers, the one
that adds up the rows' strip and the one that adds up the columns': a fraction of at most 4 k / (g t). At n = 10^6,
t = 4,096, k = 150 the plan has g = 4: 3.7 %.

Graphs are plain dictionaries, built here only, because delayed objects cost as much as a scan of a small matrix.
"""

from __future__ import annotations

import math
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Protocol

import dask.order
import dask.threaded
from dask.sizeof import sizeof
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from dasrel.engine import worker_cache
from dasrel.engine.readahead import ReadAhead, buffer_bytes
from dasrel.engine.worker_cache import Group, PinnedTiles
from dasrel.errors import MemoryLimitError
from dasrel.store.tile_files import Layout
from dasrel.util import Array, limits, parallel, progress
from dasrel.util.text import size_text

MOST_GROUPS_A_SIDE = 63  # 2,016 groups at most: task counts stay in the thousands
FOLD_BYTES = 16 * 2**20  # partial results that may wait to be combined together: fewer tasks, bounded memory
SHARES, GROUPS, FOLDS = "dasrel-share", "dasrel-tiles", "dasrel-sum"
"""How the tasks of a graph are named."""


class Reader(Protocol):
    """Whatever gives tiles: the files of a store, or an array cut up."""

    def read_checked(self, i: int, j: int) -> Array:
        """Tile (i, j), i <= j, without padding."""

    def done(self, i: int, j: int) -> None:
        """Says that tile (i, j) is not looked at any more."""


class Kernel(Protocol):
    """The part of a consumer that goes to the tiles: small, and the same for every task."""

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        """An empty partial result for one group, given the consumer's shares of its rows and columns."""

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        """The partial result with one more tile."""

    def parts(self, partial: Any) -> dict[int, Any]:
        """The finished partial result by key: the strip it belongs to, or 0 where there is one result for all."""

    def combine(self, first: Any, second: Any) -> Any:
        """Two partial results of the same key, in the order of the plan; both stay as they are.

        A kernel may have `accumulate` as well: the same bits, but `first` came from `combine` and may be overwritten.
        """


@dataclass(frozen=True)
class Consumer:
    """Somebody who wants something from every tile."""

    kernel: Kernel
    finish: Callable[[dict[int, Any]], Any]
    """Makes the result from the combined partial results by key, which it may use up."""
    share: Callable[[slice], Any] = lambda span: None
    """What the kernel needs for a strip of objects; it travels to the tasks of that strip."""
    in_strips: bool = False
    """Whether there is one key per strip; such results are summed along a chain, others along a tree."""
    part_bytes: int = 0
    """Size of the partial result of one group."""
    task_memory: int = 0
    """Bytes that one task takes for this consumer at its peak."""
    fixed_memory: int = 0
    """Bytes that the caller holds for this consumer while the scan runs."""
    share_bytes: int = 0
    """Bytes of the shares of all strips: a worker may come to hold them all."""


@dataclass(frozen=True)
class Plan:
    """Which tiles make a task. Follows from the layout alone."""

    layout: Layout

    @cached_property
    def group_side(self) -> int:
        """Tiles on a side of a group."""
        a_side = self.layout.a_side
        return max(math.ceil(a_side / MOST_GROUPS_A_SIDE), 2 if a_side >= 12 else 1)

    @cached_property
    def strips(self) -> int:
        """Groups on a side of the matrix."""
        return math.ceil(self.layout.a_side / self.group_side)

    def groups(self) -> list[tuple[int, int]]:
        """The groups of the upper triangle, row by row: the order of all combining."""
        return [(a, b) for a in range(self.strips) for b in range(a, self.strips)]

    def tiles(self, group: tuple[int, int]) -> list[tuple[int, int]]:
        """The stored tiles of a group, in order."""
        g, last = self.group_side, self.layout.a_side
        rows, columns = (range(k * g, min((k + 1) * g, last)) for k in group)
        return [(i, j) for i in rows for j in columns if i <= j]

    def span(self, strip: int) -> slice:
        """The objects of a strip of groups."""
        width = self.group_side * self.layout.tile
        return slice(strip * width, min((strip + 1) * width, self.layout.n_objects))

    def inside(self, i: int) -> slice:
        """The objects of tile row i, counted from the start of its strip of groups."""
        whole, start = self.layout.span(i), self.span(i // self.group_side).start
        return slice(whole.start - start, whole.stop - start)

    def travel_fraction(self, columns: int) -> float:
        """Largest bytes of partial results that travel, for `columns` columns, over the bytes of the tiles."""
        width = [self.span(a).stop - self.span(a).start for a in range(self.strips)]
        sums = sum(width[a] if a == b else 2 * (width[a] + width[b]) for a, b in self.groups())
        return float(sums * columns * self.layout.dtype.itemsize / self.layout.total_bytes)


@dataclass(frozen=True)
class _GroupTask:
    """What a task does: the tiles of a group, one after the other, through every kernel."""

    plan: Plan
    reader: Reader | None
    kernels: tuple[Kernel, ...]
    count: Callable[[int, int], None]
    token: str
    home: int
    """The caller's process, whose BLAS threads the caller limits."""
    ahead: bool
    """Whether the task itself sees to it that its tiles are read ahead."""

    def __dask_tokenize__(self) -> str:
        return self.token

    def __call__(
        self, groups: tuple[Group, ...], held: list[PinnedTiles | None], strips: tuple[int, ...], *shares: Any
    ) -> list[list[dict[int, Any]]]:
        """The partial results of each group; `shares` are those of every strip, for one consumer after the other."""
        if os.getpid() != self.home:
            parallel.prepare_worker()
        by_strip = [
            dict(zip(strips, shares[k : k + len(strips)], strict=True)) for k in range(0, len(shares), len(strips))
        ]
        files: Any = self.reader
        reader = ReadAhead(files, 1) if self.ahead else files
        order = [
            place
            for group, tiles in zip(groups, held, strict=True)
            if tiles is None
            for place in self.plan.tiles(group)
        ]
        with reader.reading(order) if self.ahead else nullcontext():
            return [
                self._group(reader, group, tiles, [(of[group[0]], of[group[1]]) for of in by_strip])
                for group, tiles in zip(groups, held, strict=True)
            ]

    def _group(
        self, reader: Reader, group: Group, held: PinnedTiles | None, shares: list[tuple[Any, Any]]
    ) -> list[dict[int, Any]]:
        states = [kernel.begin(self.plan, group, pair) for kernel, pair in zip(self.kernels, shares, strict=True)]
        for i, j in self.plan.tiles(group):
            tile = reader.read_checked(i, j) if held is None else held.tiles[i, j]
            states = [kernel.add(state, tile, i, j) for kernel, state in zip(self.kernels, states, strict=True)]
            del tile
            if held is None:
                reader.done(i, j)
            self.count(1, self.plan.layout.tile_bytes)
        return [kernel.parts(state) for kernel, state in zip(self.kernels, states, strict=True)]


@dataclass(frozen=True)
class _Fold:
    """Combines partial results of one key, in the order given; what is combined already may come first."""

    consumer: int
    key: int
    kernel: Kernel

    def __call__(self, picks: tuple[int, ...], *parts: Any) -> Any:
        """`picks` says which group of each task's result is meant."""
        values = (
            part.value if isinstance(part, _Folded) else part[pick][self.consumer][self.key]
            for pick, part in zip(picks, parts, strict=True)
        )
        whole = next(values)
        combine = self.kernel.combine
        for value in values:
            whole = combine(whole, value)
            combine = getattr(self.kernel, "accumulate", combine)
        return _Folded(whole)


@dataclass(frozen=True)
class _Folded:
    """Marks a partial result that is combined already."""

    value: Any

    def __sizeof__(self) -> int:
        return int(sizeof(self.value))


@dataclass(frozen=True)
class Given:
    """A task that has its result already."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def keys_of(plan: Plan, consumer: Consumer) -> list[int]:
    return list(range(plan.strips)) if consumer.in_strips else [0]


def build_graph(
    plan: Plan,
    reader: Any,
    held: dict[tuple[int, int], Any],
    consumers: Sequence[Consumer],
    count: Callable[[int, int], None],
    *,
    batches: Sequence[Sequence[Group]] | None = None,
    inline: bool = False,
    ahead: bool = False,
) -> tuple[dict[Any, Any], list[list[Any]]]:
    """The scan as a Dask graph, and the keys of each consumer's results. Reads nothing.

    `held` has the groups that are in memory already, or futures of them; the others are read by their tasks. `batches`
    says which groups share a task, each its own by default; it changes nothing in the order of combining. `inline` puts
    the shares into the tasks that need them, instead of tasks of their own. `ahead`: each task reads its tiles ahead.
    """
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    share: dict[tuple[int, int], Any] = {}
    for q, consumer in enumerate(consumers):
        for strip in range(plan.strips):
            share[q, strip] = consumer.share(plan.span(strip))
            if not inline:
                graph[f"{SHARES}-{token}", q, strip] = share[q, strip]
                share[q, strip] = (f"{SHARES}-{token}", q, strip)
    kernels = tuple(consumer.kernel for consumer in consumers)
    work = _GroupTask(plan, reader, kernels, count, token, os.getpid(), ahead)
    groups = plan.groups()
    made: dict[Group, tuple[Any, int]] = {}  # the task of each group, and its place there
    for batch in [[group] for group in groups] if batches is None else batches:
        key = (f"{GROUPS}-{token}", *batch[0])
        strips = tuple(sorted({strip for group in batch for strip in group}))
        shares = [share[q, strip] for q in range(len(consumers)) for strip in strips]
        graph[key] = (work, tuple(batch), [held.get(group) for group in batch], strips, *shares)
        made.update({group: (key, k) for k, group in enumerate(batch)})
    ends: list[dict[int, list[tuple[Any, int]]]] = [{} for _ in consumers]
    for group in groups:
        for q, consumer in enumerate(consumers):
            for part in dict.fromkeys(group) if consumer.in_strips else (0,):
                ends[q].setdefault(part, []).append(made[group])
    wanted = []
    for q, consumer in enumerate(consumers):
        results = []
        at_once = max(1, FOLD_BYTES // max(1, consumer.part_bytes * plan.strips))
        for part in keys_of(plan, consumer):
            fold = _Fold(q, part, consumer.kernel)
            name = (f"{FOLDS}-{token}", q, part)
            if consumer.in_strips:
                results.append(_chain(graph, ends[q][part], fold, name, at_once))
            else:
                results.append(_tree(graph, ends[q][part], fold, name))
        wanted.append(results)
    return graph, wanted


Ends = list[tuple[Any, int]]
"""Keys of tasks, and which of the groups of each is meant."""


def _folding(fold: _Fold, parts: Ends) -> tuple[Any, ...]:
    return fold, tuple(pick for _, pick in parts), *(key for key, _ in parts)


def _chain(graph: dict[Any, Any], parts: Ends, fold: _Fold, name: tuple[Any, ...], at_once: int) -> Any:
    """Combine one after the other, `at_once` in a task. The order, and so the bits, do not depend on `at_once`."""
    whole: Ends = []
    for k in range(0, len(parts), at_once):
        graph[(*name, k)] = _folding(fold, [*whole, *parts[k : k + at_once]])
        whole = [((*name, k), 0)]
    return whole[0][0]


def _tree(graph: dict[Any, Any], parts: Ends, fold: _Fold, name: tuple[Any, ...]) -> Any:
    """Combine neighbours, then their results: for partial results that grow as they are combined."""
    level = 0
    while len(parts) > 1 or level == 0:
        merged: Ends = []
        for k in range(0, len(parts), 4):
            graph[(*name, level, k)] = _folding(fold, parts[k : k + 4])
            merged.append(((*name, level, k), 0))
        parts = merged
        level += 1
    return parts[0][0]


def run_here(graph: dict[Any, Any], wanted: list[list[Any]], *, threads: int) -> list[list[Any]]:
    """Run a graph with inline shares without a scheduler: groups on threads in the order of the plan, then the sums.

    For small matrices, of which all partial results may wait to be combined. Dask's threaded scheduler takes 0.13 ms a
    task, and its threads wait for the scheduler between tasks: together more than the product of a small matrix.
    """
    tasks_of = {name: [key for key in graph if key[0].startswith(name)] for name in (GROUPS, FOLDS)}

    def work(key: Any) -> Any:
        function, *given = graph[key]
        return function(*given)

    if threads == 1:
        found = [work(key) for key in tasks_of[GROUPS]]
    else:
        with ThreadPoolExecutor(min(threads, len(tasks_of[GROUPS]))) as pool:
            found = list(pool.map(work, tasks_of[GROUPS]))
    done: dict[Any, Any] = dict(zip(tasks_of[GROUPS], found, strict=True))
    for key in tasks_of[FOLDS]:  # each stands behind those that it needs
        fold, picks, *parts = graph[key]
        done[key] = fold(picks, *(done[part] for part in parts))
    return [[done[key] for key in keys] for keys in wanted]


def tile_order(graph: dict[Any, Any], plan: Plan, *, scheduled: bool) -> list[tuple[int, int]]:
    """List the tiles in the order in which Dask, if it schedules the graph, or else `run_here` will come to them."""
    keys = [key for key in graph if key[0].startswith(GROUPS)]
    if scheduled:
        rank = dask.order.order(graph)
        keys.sort(key=lambda key: rank[key])
    return [place for _, *group in keys for place in plan.tiles((group[0], group[1]))]


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
    limit = limits.machine_memory() // 2 if memory is None else int(parse_bytes(memory))
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
        limits.check()
        client = parallel.active_client()
        of_workers = None if client is None else limits.worker_memory(client)
        threads, ahead = self._check_memory(of_workers)
        with _one_at_a_time, parallel.single_threaded_blas():
            counted = progress.current()
            if client is None or of_workers is None:
                results = _scan_here(self.source, self.plan, consumers, counted, threads, ahead)
            else:
                results = _scan_again_if_lost(self.source, self.plan, consumers, counted, client, of_workers, ahead)
        finished = []
        for consumer in consumers:
            parts = dict(zip(keys_of(self.plan, consumer), [folded.value for folded in results.pop(0)], strict=True))
            finished.append(consumer.finish(parts))
        limits.check()
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
            limits.check_workers(of_workers, there, "a scan", kept=kept)
            buffers, left = buffer_bytes(files, 1, on_worker=True), 1 - worker_cache.PINNED_SHARE
            room = all(not most or buffers * threads + kept <= left * most for most, threads in of_workers.values())
            return 0, room and files.waited_for
        threads = limits.thread_count(waiting=not files.in_memory)
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
    source: TileSource, plan: Plan, consumers: Sequence[Consumer], counted: progress.Meter, threads: int, ahead: bool
) -> list[Any]:
    size = source.layout.total_bytes
    threads = 1 if size <= SMALL else threads
    step = counted.begin("scan", tiles=len(source.layout.tiles()), bytes=size, scan=True)
    reader = ReadAhead(source.files, threads) if ahead else source.files
    waiting = len(plan.groups()) * sum(consumer.part_bytes for consumer in consumers)
    scheduled = size > UNSCHEDULED or waiting > FOLD_BYTES
    graph, wanted = build_graph(plan, reader, {}, consumers, _Count(step), inline=not scheduled)
    order = tile_order(graph, plan, scheduled=scheduled) if ahead else []
    with source.files.scanned(), reader.reading(order) if ahead else nullcontext():
        if not scheduled:
            return run_here(graph, wanted, threads=threads)
        return list(limits.waited(dask.threaded.get, graph, wanted, pool=_pool(threads)))


def _scan_again_if_lost(
    source: TileSource,
    plan: Plan,
    consumers: Sequence[Consumer],
    counted: progress.Meter,
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
            memory = limits.worker_memory(client)
    raise AssertionError("unreachable")


def _scan_on_cluster(
    source: TileSource,
    plan: Plan,
    consumers: Sequence[Consumer],
    counted: progress.Meter,
    client: Any,
    memory: dict[str, tuple[int, int]],
    ahead: bool,
    *,
    again: bool,
) -> list[Any]:
    n_tiles, size = len(source.layout.tiles()), source.layout.total_bytes
    step = counted.begin("scan", tiles=n_tiles, bytes=size, scan=not again)
    groups = {group: plan.tiles(group) for group in plan.groups()}
    pins = source.pins.get(client.id) or source.pins.setdefault(client.id, worker_cache.WorkerCache(client))
    task_memory, _ = needed_on_worker(source, consumers)
    held, read = pins.place(source.files, groups, source.layout.tile_bytes, task_memory, memory)
    part_bytes = sum(consumer.part_bytes for consumer in consumers)
    here = brought_here(plan, consumers)
    batches = worker_cache.batches(
        list(groups), pins.homes, memory, most=max(1, 2 * FOLD_BYTES // max(1, part_bytes)) if not here else None
    )
    inline = bool(here) and len(batches) * sum(consumer.share_bytes for consumer in consumers) <= HERE_BYTES
    reader = source.files if source.files.travels else None
    ahead = ahead and plan.group_side > 1  # the tiles of a task are read ahead, those of the next one are not
    with (
        pins.watched(),
        worker_cache.progress_from_workers(client, step, n_tiles, size, watched=counted.is_watched) as tell,
    ):
        graph, wanted = build_graph(plan, reader, held, consumers, tell, batches=batches, inline=inline, ahead=ahead)
        if here:
            folds = {key: graph.pop(key) for key in list(graph) if key[0].startswith(FOLDS)}
            parts = [key for key in graph if key[0].startswith(GROUPS)]
            brought = zip(parts, limits.waited(worker_cache.get, client, memory, graph, parts), strict=True)
            folds.update({key: (Given(part),) for key, part in brought})
            results = list((dask.get if here <= SMALL else dask.threaded.get)(folds, wanted))
        else:
            results = limits.waited(worker_cache.get, client, memory, graph, wanted)
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

    step: progress.Pass

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
    waiting = sum(min(consumer.part_bytes * groups, FOLD_BYTES) for consumer in consumers)
    fixed = waiting + sum(consumer.fixed_memory for consumer in consumers)
    task = source.files.read_memory + sum(consumer.task_memory for consumer in consumers)
    return fixed, task


def scan_memory(source: Any, consumers: list[Consumer], limit: int) -> int:
    """Bytes that a scan takes here; refuses what cannot fit."""
    fixed, task = needed_memory(source, consumers)
    if fixed + task > limit:
        raise MemoryLimitError(
            f"a scan needs {size_text(fixed + task)} and the limit is {size_text(limit)}",
            remedy=f"raise {{memory}}, or use tiles smaller than {source.layout.tile}",
        )
    threads = min(limits.thread_count(), (limit - fixed) // task) if task else 0
    return int(fixed + threads * task)
