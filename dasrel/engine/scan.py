"""Scan a matrix: read all tiles once for any number of consumers, on local threads or on a cluster.

    tile -> partial results -> combined in a fixed order -> one result per consumer

Tiles are grouped into squares of `group_side` by `group_side` tiles, one task each. The grouping follows from the
store alone, and so does the order in which partial results are combined: the bits are the same for any number of
threads or workers, in whatever order they finish. The graph runs on local threads or on a cluster whose workers pin as
many tiles as fit (`worker_cache`), within a memory limit that is checked before the first tile is read.

Network traffic (`network_bytes`). The columns leave the caller once, as data that workers pass on to each other. A
group of g x g tiles of side t and item size s yields, for k columns, sums for its g t rows and g t columns in the
tiles' precision: 2 g t k s bytes from g^2 t^2 s bytes of tiles. They go to at most two workers, the one that adds up
the rows' strip and the one that adds up the columns': a fraction of at most 4 k / (g t). At n = 10^6, t = 4,096, k =
150 the plan has g = 4: 3.7 %.

Graphs are plain dictionaries, built here only, because delayed objects cost as much as a scan of a small matrix.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, cast

import dask.order
import dask.threaded
from dask.sizeof import sizeof
from dask.system import CPU_COUNT

from dasrel.engine import worker_cache
from dasrel.engine.readahead import ReadAhead, TileCache, tile_cache, worker_buffer_bytes
from dasrel.engine.reduce import Consumer, Kernel, PartialResult, Plan, Share
from dasrel.engine.worker_cache import Group, PinnedTiles
from dasrel.engine.workers import Exchange, bits_of_process, check_alike, check_this_worker
from dasrel.errors import MemoryLimitError
from dasrel.store.layout import Reader, TileSource, unchanged
from dasrel.store.tile_files import local_path
from dasrel.util import limits, parallel, progress, stalls
from dasrel.util.text import size_text

FOLD_BYTES = 16 * 2**20  # partial results that may wait to be combined together: fewer tasks, bounded memory
SHARES, GROUPS, FOLDS = "dasrel-share", "dasrel-tiles", "dasrel-sum"
"""Prefixes of the names of a graph's tasks."""


TileReader = Reader | TileCache | ReadAhead | PinnedTiles


@dataclass(frozen=True, eq=False)
class StripShares:
    """What all kernels are given of the objects of one strip."""

    shares: tuple[Share, ...]

    def __sizeof__(self) -> int:
        return sum(map(sizeof, self.shares))


@dataclass(frozen=True)
class _GroupTask:
    """The function of a task: pass the tiles of its groups, one after the other, to every kernel."""

    plan: Plan
    reader: TileReader | None
    """None where all tiles are pinned."""
    kernels: tuple[Kernel, ...]
    count: Callable[[int, int], None]
    token: str
    home: int
    """The caller's process, whose BLAS threads the caller limits."""
    bits: tuple[tuple[str, str], ...]
    """What decides on the bits of sums in the caller's process, by name; empty where no worker takes part."""
    ahead: bool
    """Whether the task reads its own tiles ahead."""

    def __dask_tokenize__(self) -> str:
        return self.token

    def __call__(
        self,
        groups: tuple[Group, ...],
        pinned: list[PinnedTiles | None],
        strips: tuple[int, ...],
        *shares: StripShares,
    ) -> list[list[dict[int, Any]]]:
        """Return the partial results of each group; `shares` are those of every strip."""
        if os.getpid() != self.home:
            check_this_worker(self.bits)
            parallel.prepare_worker()
        by_strip = dict(zip(strips, shares, strict=True))
        reader, reading = self.reader, cast(AbstractContextManager[None], nullcontext())
        if self.ahead:
            ahead = ReadAhead(TileCache(cast(Reader, reader), keep_maps=False), 1)
            read = [
                tile
                for group, held in zip(groups, pinned, strict=True)
                if held is None
                for tile in self.plan.tiles(group)
            ]
            reader, reading = ahead, ahead.reading(read)
        with reading:
            return [
                self._group(held or cast(TileReader, reader), group, [by_strip[strip].shares for strip in group])
                for group, held in zip(groups, pinned, strict=True)
            ]

    def _group(self, reader: TileReader, group: Group, shares: list[tuple[Share, ...]]) -> list[dict[int, Any]]:
        partials = [
            PartialResult(kernel, self.plan, group, pair)
            for kernel, pair in zip(self.kernels, zip(*shares, strict=True), strict=True)
        ]
        for i, j in self.plan.tiles(group):
            tile = reader.read_checked(i, j)
            for partial in partials:
                partial.add(tile, i, j)
            del tile
            if isinstance(reader, ReadAhead):
                reader.done(i, j)
            self.count(1, self.plan.layout.tile_bytes)
        return [partial.parts() for partial in partials]


def _run_group_task(task: _GroupTask, *arguments: Any) -> Any:
    """Run a task that was sent to the workers."""
    return task(*arguments)


@dataclass(frozen=True)
class _Fold:
    """Combines partial results of one key in the given order; the first may be combined already."""

    consumer: int
    key: int
    kernel: Kernel

    def __call__(self, picks: tuple[int, ...], *parts: Any) -> Any:
        """Combine the parts; `picks` has the position of the group in each task's result."""
        values = (
            part.value if isinstance(part, _Folded) else part[pick][self.consumer][self.key]
            for pick, part in zip(picks, parts, strict=True)
        )
        whole = next(values)
        combine = self.kernel.combine
        for value in values:
            whole = combine(whole, value)
            combine = self.kernel.accumulate
        return _Folded(whole)


@dataclass(frozen=True)
class _Folded:
    """Marks a partial result that is combined already."""

    value: Any

    def __sizeof__(self) -> int:
        return int(sizeof(self.value))


@dataclass(frozen=True)
class _Known:
    """A task whose result is known."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def keys_of(plan: Plan, consumer: Consumer) -> list[int]:
    """List the keys of a consumer's results."""
    return list(range(plan.strips)) if consumer.kernel.in_strips else [0]


def build_graph(
    plan: Plan,
    reader: TileReader | None,
    held: dict[Group, Any],
    consumers: Sequence[Consumer],
    count: Callable[[int, int], None],
    *,
    batches: Sequence[Sequence[Group]] | None = None,
    inline: bool = False,
    ahead: bool = False,
    send: Callable[[Iterable[Any]], list[Any]] | None = None,
) -> tuple[dict[Any, Any], list[list[Any]]]:
    """Return the scan as a Dask graph, and the keys of each consumer's results. Reads nothing.

    `held` has the groups that are pinned, or futures of them; the others are read by their tasks. `batches` has the
    groups that share a task, by default one group each; it does not change the order of combining. `inline` puts the
    shares into the tasks that need them, instead of tasks of their own. `ahead`: each task reads its tiles ahead.
    `send` sends data to the workers of a cluster and returns futures of them, which are all that the graph then has.
    """
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    kernels = tuple(consumer.kernel for consumer in consumers)
    bits = tuple(bits_of_process().items()) if send else ()
    work = _GroupTask(plan, reader, kernels, count, token, os.getpid(), bits, ahead)
    of_strips = (
        StripShares(tuple(consumer.share(plan.span(strip)) for consumer in consumers)) for strip in range(plan.strips)
    )
    call: tuple[Any, ...] = (work,)
    if send:
        sent, *share = send(chain([work], of_strips))
        call = (_run_group_task, sent)
    elif inline:
        share = list(of_strips)
    else:
        share = [(f"{SHARES}-{token}", strip) for strip in range(plan.strips)]
        graph.update(zip(share, of_strips, strict=True))
    groups = plan.groups()
    made: dict[Group, tuple[Any, int]] = {}  # the task of each group, and its position in the result
    for batch in [[group] for group in groups] if batches is None else batches:
        key = (f"{GROUPS}-{token}", *batch[0])
        strips = tuple(sorted({strip for group in batch for strip in group}))
        graph[key] = (*call, tuple(batch), [held.get(g) for g in batch], strips, *(share[strip] for strip in strips))
        made.update({group: (key, k) for k, group in enumerate(batch)})
    ends: list[dict[int, list[tuple[Any, int]]]] = [{} for _ in consumers]
    for group in groups:
        for q, consumer in enumerate(consumers):
            for part in dict.fromkeys(group) if consumer.kernel.in_strips else (0,):
                ends[q].setdefault(part, []).append(made[group])
    wanted = []
    for q, consumer in enumerate(consumers):
        results = []
        at_once = max(1, FOLD_BYTES // max(1, consumer.part_bytes * plan.strips))
        for part in keys_of(plan, consumer):
            fold = _Fold(q, part, consumer.kernel)
            name = (f"{FOLDS}-{token}", q, part)
            if consumer.kernel.in_strips:
                results.append(_chain(graph, ends[q][part], fold, name, at_once))
            else:
                results.append(_tree(graph, ends[q][part], fold, name))
        wanted.append(results)
    return graph, wanted


Ends = list[tuple[Any, int]]
"""Keys of tasks, with the position of a group in the result of each."""


def _folding(fold: _Fold, parts: Ends) -> tuple[Any, ...]:
    return fold, tuple(pick for _, pick in parts), *(key for key, _ in parts)


def _chain(graph: dict[Any, Any], parts: Ends, fold: _Fold, name: tuple[Any, ...], at_once: int) -> Any:
    """Combine parts one after the other, `at_once` in a task. The bits do not depend on `at_once`."""
    whole: Ends = []
    for k in range(0, len(parts), at_once):
        graph[(*name, k)] = _folding(fold, [*whole, *parts[k : k + at_once]])
        whole = [((*name, k), 0)]
    return whole[0][0]


def _tree(graph: dict[Any, Any], parts: Ends, fold: _Fold, name: tuple[Any, ...]) -> Any:
    """Combine neighbours, then their results; for partial results that grow when combined."""
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

    For small matrices, whose partial results may all be held until they are combined. Dask's threaded scheduler takes
    0.13 ms per task, and its threads wait for it between tasks: together more than the product of a small matrix.
    """
    tasks_of = {name: [key for key in graph if key[0].startswith(name)] for name in (GROUPS, FOLDS)}

    def work(key: Any) -> Any:
        function, *given = graph[key]
        return function(*given)

    if threads == 1:
        results = [work(key) for key in tasks_of[GROUPS]]
    else:
        with ThreadPoolExecutor(min(threads, len(tasks_of[GROUPS]))) as pool:
            results = list(pool.map(work, tasks_of[GROUPS]))
    done: dict[Any, Any] = dict(zip(tasks_of[GROUPS], results, strict=True))
    for key in tasks_of[FOLDS]:  # each comes after those that it needs
        fold, picks, *parts = graph[key]
        done[key] = fold(picks, *(done[part] for part in parts))
    return [[done[key] for key in keys] for keys in wanted]


def tile_order(graph: dict[Any, Any], plan: Plan, *, scheduled: bool) -> list[tuple[int, int]]:
    """List the tiles in the order in which Dask, if it schedules the graph, or else `run_here` will read them."""
    keys = [key for key in graph if key[0].startswith(GROUPS)]
    if scheduled:
        rank = dask.order.order(graph)
        keys.sort(key=lambda key: rank[key])
    return [tile for _, *group in keys for tile in plan.tiles((group[0], group[1]))]


HERE_BYTES = 128 * 2**20
"""Bytes of partial results of a cluster's workers that are combined by the caller: combining them on the workers would
cost more than it saves. Measured with two workers on one machine at n = 20,480 and 64 columns: 25 MB take 30 ms in the
caller and 120 ms on the workers, most of it in the scheduler."""
SMALL = 8 * 2**20  # a matrix below this many bytes is scanned on the calling thread: other threads would cost more
UNSCHEDULED = 256 * 2**20
"""A matrix below this many bytes is scanned by threads without Dask's scheduler, which would take a noticeable part of
the time, if all of its partial results can be held until one thread combines them."""
HELD_BYTES = 4 * 2**20
"""Partial results that are held so, at most: the allocator keeps the float64 sums that were freed between them."""


def scan(source: TileSource, consumers: Sequence[Consumer], *, memory: int | str | None = None) -> list[Any]:
    """Read every tile once for all consumers and return their results in order.

    Runs on the active distributed client if there is one, else on local threads (Dask's `num_workers` of them).

    Parameters
    ----------
    memory
        Anonymous memory that the scan may take on this machine, such as "2GiB"; by default half of the machine's.

    Cost: one scan. Memory is predicted and compared with the limit, and with the workers' limits on a cluster, before
    the first tile is read.
    """
    return prepare_scan(source, consumers, memory=memory).run()


def prepare_scan(
    source: TileSource,
    consumers: Sequence[Consumer],
    *,
    only: Collection[int] | None = None,
    here: bool = False,
    memory: int | str | None = None,
) -> PreparedScan:
    """Plan a scan that is run several times with different shares; see `scan`.

    Parameters
    ----------
    only
        Rows or columns of tiles: what reads only the tiles in one of them is not counted as a scan.
    here
        Read on this machine even if there is a cluster.

    Cost: none.
    """
    if only is None:
        plan, needs = Plan(source.layout), (needed_memory(source, consumers), needed_on_worker(source, consumers))
    else:
        plan = Plan(source.layout, frozenset(only))
        needs = needed_memory(source, consumers, plan), needed_on_worker(source, consumers, plan)
    return PreparedScan(source, plan, tuple(consumers), limits.memory_limit(memory), *needs, here)


@dataclass(frozen=True)
class PreparedScan:
    """A scan whose memory is estimated. Get one with `prepare_scan`."""

    source: TileSource
    plan: Plan
    consumers: tuple[Consumer, ...]
    limit: int
    """Bytes that it may take on this machine."""
    needs_here: tuple[int, int]
    """The result of `needed_memory`."""
    needs_there: tuple[int, int]
    """The result of `needed_on_worker`."""
    here: bool
    """Whether a cluster takes no part."""

    def run(self, shares: Sequence[Callable[[slice], Any]] | None = None) -> list[Any]:
        """Read every tile once and return the consumers' results in order.

        Parameters
        ----------
        shares
            Functions that replace the `share` of each consumer.

        Raises if another store has taken the place of this one meanwhile.

        Cost: one scan. Workers may join and leave between two scans: memory is compared with the limits each time.
        """
        consumers: Sequence[Consumer] = self.consumers
        if shares is not None:
            consumers = [replace(mine, share=share) for mine, share in zip(consumers, shares, strict=True)]
        limits.check()
        client = None if self.here else parallel.active_client()
        of_workers = None if client is None else limits.worker_memory(client)
        threads, ahead = self._check_memory(of_workers)
        with _one_at_a_time, parallel.single_threaded_blas(), unchanged(self.source):
            counted = progress.current() if self.plan.only is None else progress.Meter(None, None)
            if client is None or of_workers is None:
                results = _scan_here(self.source, self.plan, consumers, counted, threads, ahead)
            else:

                def scan(losses: int) -> list[Any]:
                    memory = limits.worker_memory(client) if losses else of_workers
                    check_alike(client, memory)
                    _check_seen(self.source, client, memory)
                    again = losses > 0
                    return _scan_on_cluster(self.source, self.plan, consumers, counted, client, memory, ahead, again)

                results = parallel.repeated_if_lost(scan)
        if self.plan.only is not None:  # not shown: it may be a part of something that is
            progress.current().count(tiles=counted.tiles, bytes=counted.bytes, network=counted.network)
        finished = []
        for consumer in consumers:
            parts = dict(zip(keys_of(self.plan, consumer), [folded.value for folded in results.pop(0)], strict=True))
            finished.append(consumer.finish(parts))
        limits.check()
        return finished

    def _check_memory(self, of_workers: dict[str, tuple[int, int]] | None) -> tuple[int, bool]:
        """Return the number of local threads and whether there is room to read ahead; raise if the scan cannot fit."""
        cache, limit, (fixed, task) = tile_cache(self.source), self.limit, self.needs_here
        here = fixed + (task if of_workers is None else brought_here(self.plan, self.consumers))
        _check_fits(fixed, here - fixed, limit, self.plan.layout.tile)
        if of_workers is not None:
            there, kept = self.needs_there
            limits.check_workers(of_workers, there, "a scan", kept=kept)
            buffers, left = worker_buffer_bytes(cache.reader, 1), 1 - worker_cache.PINNED_SHARE
            room = all(not most or buffers * threads + kept <= left * most for most, threads in of_workers.values())
            return 0, self.plan.only is None and room and cache.should_read_ahead
        threads = limits.thread_count(waiting=not cache.in_memory)
        threads = min(threads, int((limit - fixed) // task)) if task else threads
        cores = min(threads, int(CPU_COUNT))  # read-ahead threads do not count: compute threads never wait for them
        ahead = (
            self.plan.only is None
            and cache.should_read_ahead
            and fixed + cores * task + cache.buffer_bytes(cores) <= limit
        )
        return cores if ahead else threads, ahead


_one_at_a_time = threading.Lock()
"""Scans of several threads run one after the other: they would compete for the disk, the cores and the BLAS limit."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Start the local threads of all scans, of which one runs at a time; Dask would start new ones for each scan."""
    return ThreadPoolExecutor(threads, thread_name_prefix="dasrel-scan")


def _scan_here(
    source: TileSource,
    plan: Plan,
    consumers: Sequence[Consumer],
    counted: progress.Meter,
    threads: int,
    read_ahead: bool,
) -> list[Any]:
    size = source.layout.total_bytes
    threads = 1 if size <= SMALL else threads
    step = _begun(counted, plan)
    cache = tile_cache(source)
    ahead = ReadAhead(cache, threads) if read_ahead else None
    waiting = len(plan.groups()) * sum(consumer.part_bytes for consumer in consumers)
    scheduled = size > UNSCHEDULED or waiting > HELD_BYTES
    graph, wanted = build_graph(plan, ahead or cache, {}, consumers, _Count(step), inline=not scheduled)
    reading = ahead.reading(tile_order(graph, plan, scheduled=scheduled)) if ahead else nullcontext()
    with cache.scanning(), reading:
        if not scheduled:
            return run_here(graph, wanted, threads=threads)
        return list(limits.waited(dask.threaded.get, graph, wanted, pool=_pool(threads)))


def _scan_on_cluster(
    source: TileSource,
    plan: Plan,
    consumers: Sequence[Consumer],
    counted: progress.Meter,
    client: Any,
    memory: dict[str, tuple[int, int]],
    ahead: bool,
    again: bool,
) -> list[Any]:
    groups = {group: plan.tiles(group) for group in plan.groups()}
    n_tiles = sum(map(len, groups.values()))
    size = n_tiles * source.layout.tile_bytes
    step = _begun(counted, plan, again=again)
    pins = worker_cache.worker_cache(source, client)
    task_memory, _ = needed_on_worker(source, consumers, plan)
    pinning = memory if plan.only is None else {}
    held, read = pins.pin(source.files, groups, source.layout.tile_bytes, task_memory, pinning)
    part_bytes = sum(consumer.part_bytes for consumer in consumers)
    here = brought_here(plan, consumers)
    batches = worker_cache.batches(
        list(groups), pins.homes, memory, most=max(1, 2 * FOLD_BYTES // max(1, part_bytes)) if not here else None
    )
    reader = source.files if source.files.local_array is None else None
    ahead = ahead and plan.group_side > 1  # the tiles of a task are read ahead, those of the next one are not
    exchange = Exchange(client, memory)
    with (
        _forgotten_if_given_up(pins, exchange),
        stalls.watching(client, repeats=True) as watch,
        pins.watched(),
        worker_cache.progress_from_workers(client, step, n_tiles, size, watched=counted.is_watched) as report,
    ):
        watch.waited(exchange.begin)
        graph, wanted = build_graph(
            plan, reader, held, consumers, report, batches=batches, ahead=ahead,
            send=lambda values: watch.waited(exchange.send, values),
        )  # fmt: skip
        if here:
            folds = {key: graph.pop(key) for key in list(graph) if key[0].startswith(FOLDS)}
            parts = [key for key in graph if key[0].startswith(GROUPS)]
            brought = zip(parts, watch.waited(exchange.get, graph, parts), strict=True)
            folds.update({key: (_Known(part),) for key, part in brought})
            results = list((dask.get if here <= SMALL else dask.threaded.get)(folds, wanted))
        else:
            results = watch.waited(exchange.get, graph, wanted)
        network = watch.waited(exchange.network_bytes)
    tiles_read = sum(len(groups[group]) for group in read)
    counted.count(tiles=tiles_read, bytes=tiles_read * source.layout.tile_bytes, network=network)
    return results


def _check_seen(source: TileSource, client: Any, addresses: Collection[str]) -> None:
    """Raise, before a tile is read, if the tiles are files that a worker does not see."""
    store = getattr(source, "store", None)
    local = None if store is None else local_path(store)
    if local is not None:
        parallel.check_seen(client, local, addresses)


def _begun(counted: progress.Meter, plan: Plan, *, again: bool = False) -> progress.Pass:
    """Begin to count what a plan reads: a scan if that is all tiles, and if it is not repeated."""
    tiles = sum(len(plan.tiles(group)) for group in plan.groups())
    scan = plan.only is None and not again
    return counted.begin("scan", tiles=tiles, bytes=tiles * plan.layout.tile_bytes, scan=scan)


@contextmanager
def _forgotten_if_given_up(pins: worker_cache.WorkerCache, exchange: Exchange) -> Iterator[None]:
    """Drop what belongs to a worker that was given up and may come back, before the scan is repeated."""
    try:
        yield
    except stalls.GivenUp as error:
        pins.forget(error.address)
        exchange.cancel()
        raise


@dataclass
class _Count:
    """Counts tiles read in this process."""

    step: progress.Pass

    def __call__(self, tiles: int, bytes: int) -> None:  # noqa: A002
        self.step.add(tiles=tiles, bytes=bytes)


def brought_here(plan: Plan, consumers: Sequence[Consumer]) -> int:
    """Return the bytes of all partial results if the caller combines those of a cluster, else 0."""
    size = len(plan.groups()) * sum(consumer.part_bytes for consumer in consumers)
    return max(1, size) if size <= HERE_BYTES else 0


OVERHEAD = 1024
"""Bytes that are sent besides the numbers with each group's partial results and each strip's share."""


@dataclass(frozen=True)
class NetworkBytes:
    """The most bytes that a scan sends between machines."""

    caller: int
    """From the caller and to it."""
    workers: int
    """Between the workers."""


def network_bytes(source: TileSource, consumers: Sequence[Consumer], workers: int) -> NetworkBytes:
    """Return the most bytes that a scan on so many workers sends, if the caller can reach them.

    Each strip's share leaves the caller once, and may be wanted by every worker. Partial results go to the caller or,
    if they are many, to the two workers that add up their strips, whose sums go to the caller in float64.
    """
    plan = Plan(source.layout)
    shares = sum(consumer.share_bytes for consumer in consumers) + OVERHEAD * plan.strips
    caller, between = shares, (min(workers, plan.strips) - 1) * shares
    extra = OVERHEAD * len(plan.groups())
    if here := brought_here(plan, consumers):
        return NetworkBytes(caller + here + extra, between)
    for consumer in consumers:
        between += 2 * consumer.part_bytes * len(plan.groups())
        if consumer.kernel.in_strips:  # a part is of two strips, in the tiles' type
            caller += consumer.part_bytes * plan.strips * 4 // source.layout.dtype.itemsize
        else:
            caller += consumer.part_bytes
    return NetworkBytes(caller, between + extra if workers > 1 else 0)


def needed_on_worker(source: TileSource, consumers: Sequence[Consumer], plan: Plan | None = None) -> tuple[int, int]:
    """Return the memory of a worker in bytes: of each task, and of what is held besides the tasks.

    That is the shares, and partial results that are not combined yet.
    """
    four_groups = sum(consumer.share_bytes + 4 * consumer.part_bytes for consumer in consumers)
    reader = source.files
    tile = reader.layout.tile_bytes if reader.mapped else reader.read_memory  # Dask counts mapped files as memory
    task = tile + sum(consumer.task_memory for consumer in consumers)
    return task, max(four_groups, brought_here(plan or Plan(source.layout), consumers))


def needed_memory(source: TileSource, consumers: Sequence[Consumer], plan: Plan | None = None) -> tuple[int, int]:
    """Return the anonymous memory of a scan in bytes: of the caller, and of each task."""
    groups = len((plan or Plan(source.layout)).groups())
    waiting = sum(min(consumer.part_bytes * groups, FOLD_BYTES) for consumer in consumers)
    if waiting <= HELD_BYTES:
        waiting *= 3  # float32 parts between holes of twice their size
    fixed = waiting + sum(consumer.fixed_memory for consumer in consumers)
    task = source.files.read_memory + sum(consumer.task_memory for consumer in consumers)
    return fixed, task


def _check_fits(fixed: int, task: int, limit: int, tile: int) -> None:
    if fixed + task > limit:
        raise MemoryLimitError(
            f"a scan needs {size_text(fixed + task)} ({size_text(fixed)} for the columns and {size_text(task)} for a"
            f" task) and the limit is {size_text(limit)}",
            remedy=f"raise {{memory}}, use fewer columns at once, or tiles smaller than {tile}",
        )


def scan_memory(source: Any, consumers: list[Consumer], limit: int) -> int:
    """Return the bytes that a scan takes on this machine; raise if it cannot fit."""
    fixed, task = needed_memory(source, consumers)
    _check_fits(fixed, task, limit, source.layout.tile)
    threads = min(limits.thread_count(), (limit - fixed) // task) if task else 0
    return int(fixed + threads * task)
