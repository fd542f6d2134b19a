"""Estimate the cost of a clustering: scans, bytes, memory and time, here and on a cluster, before it is run.

Memory is predicted by the functions that a real run checks itself with. Scans are a range, because the number of
iterations is not known. Times follow from a probe of about two seconds: how fast this machine reads tiles of this store
and multiplies them. Tiles are taken from all over the store, by as many threads as a scan has. Reading is measured cold
where possible: the operating system is asked to drop the probed tiles from its page cache before they are read.
Nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from dask.system import CPU_COUNT

from dasrel.cmeans.bundle import IndexedRuns, split_by_memory
from dasrel.cmeans.ladder import (
    LANCZOS_BLOCK,
    LANCZOS_SCANS,
    automatic_parameter,
    check_eigenvalue_memory,
    eigenvalue_memory,
    first_run,
    needs_threshold,
    rungs,
)
from dasrel.cmeans.sample import needed_for_second, planned_runs, sample_memory, sample_size, second_that_fits
from dasrel.cmeans.speed import Speed, measure
from dasrel.cmeans.starts import checked_runs
from dasrel.engine.readahead import tile_cache
from dasrel.engine.reduce import Plan
from dasrel.engine.relation import Relation, as_dissimilarity, product_shape
from dasrel.engine.scan import needed_memory, needed_on_worker, network_bytes
from dasrel.engine.worker_cache import PINNED_SHARE, WorkerMemory, batches, placement
from dasrel.errors import InputError, MemoryLimitError
from dasrel.kernels.products import View
from dasrel.names import FITS, METHODS
from dasrel.partition.run import Run, listed_runs
from dasrel.store.matrix import Matrix
from dasrel.store.planned import PlannedMatrix
from dasrel.store.tile_files import location
from dasrel.util import limits, parallel
from dasrel.util.limits import Range
from dasrel.util.text import count_text, shown, size_text, time_text

TYPICAL = {"hard": (16, 16), "fcm1": (54, 25), "fcm2": (54, 25), "pcm1": (75, 47), "pcm2": (75, 47)}
"""Iterations of the slowest of 10 restarts, plain and accelerated, at a tolerance of 1e-5: the median over digits, iris
and wine (Euclidean distances) with 2, 3 and 10 clusters. They range from 16 to 30 for hard, 25 to 168 (17 to 80) for
fcm1 and fcm2, 62 to 126 (38 to 88) for pcm1 and pcm2. USPS digits 0 and 7 took 34 to 39 (25 to 28) in single runs."""
TYPICAL_FROM_SAMPLE = 12
"""Iterations on all objects of finalists of a sample, compared by their objectives: 4 to 30 on digits, blobs, strings
and communities."""
TYPICAL_EIGENVALUE = 4
"""Scans for entropy_weight="auto" on the same data: 2 to 5."""
TASK_SECONDS = 0.001
"""Time of the scheduler of a cluster per task."""


@dataclass(frozen=True)
class Fleet:
    """Workers to estimate for."""

    counts: Sequence[int] = (1, 2, 4, 8, 16)
    """One estimate for each number of workers."""
    memory: int | str = "8GiB"
    """Of each worker."""
    threads: int = 1
    """Of each worker."""
    network: float = 1e9
    """Bytes per second into or out of a worker: 10 Gbit/s is little more."""
    bandwidth: int | str | None = None
    """Bytes per second that the storage gives to all workers together; by default what is measured here."""
    price: float | None = None
    """Of a worker for an hour."""

    @property
    def reading(self) -> int | None:
        """The bandwidth in bytes."""
        return None if self.bandwidth is None else limits.memory_limit(self.bandwidth, "the bandwidth of the storage")

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1 or self.threads < 1:
            raise InputError(
                f"there are {self.counts} workers with {self.threads} threads", remedy="give at least one of each"
            )
        if limits.memory_limit(self.memory, "a worker's memory") < 1:
            raise InputError(f"a worker's memory is {shown(self.memory)}", remedy="give a size such as 8GiB")
        if self.price is not None and not self.price >= 0:
            raise InputError(f"a worker's price is {self.price:g}", remedy="give 0 or more for an hour")
        if self.reading is not None and self.reading < 1:
            raise InputError(f"the storage gives {shown(self.bandwidth)} a second", remedy="give a size such as 2GB")
        if not self.network > 0:
            raise InputError(f"the network carries more than 0 bytes a second, not {self.network:g}")


@dataclass(frozen=True)
class OnWorkers:
    """The estimate for one number of workers."""

    workers: int
    threads: int
    """Of each."""
    fits: bool
    trouble: str | None
    """Why it does not fit."""
    bundles: int
    worker_memory: int
    """Bytes that a worker needs for its tasks, without pinned tiles."""
    held: float
    """Share of the tiles that stay pinned in the workers' memory from the first scan on."""
    memory_for_all: int
    """Bytes that each worker must have for all tiles to be pinned."""
    travel_bytes: int
    """Most bytes sent between machines in a scan: columns to the workers, sums between them and back."""
    first_scan_seconds: float | None
    scan_seconds: float | None
    total_seconds: Range | None
    """None where it does not fit."""
    price: Range | None = None
    """Of all workers for that time, where the price of one is known."""

    def text(self) -> str:
        """Return the estimate for people."""
        if not self.fits or self.scan_seconds is None or self.total_seconds is None:
            return f"no; {self.trouble}"
        held = f"{self.held:.0%} of the tiles in memory, all of them with {size_text(self.memory_for_all)}"
        held = "all tiles in memory" if self.held == 1 else held
        seconds = f"{time_text(self.scan_seconds)} per scan, {time_text(self.total_seconds.typical)} in total"
        price = "" if self.price is None else f", for {self.price.typical:.2f}"
        return f"{held}; {size_text(self.travel_bytes)} sent; {seconds}{price}"


@dataclass(frozen=True)
class ClusteringPlan:
    """The estimated cost of a clustering. Made by `plan_clustering`."""

    store: str | None
    n_objects: int
    kind: str
    dtype: str
    tile: int
    tiles: int
    tasks: int
    """Per scan."""
    bytes_per_scan: int
    runs: int
    n_settings: int
    columns: int
    """Of the widest bundle."""
    bundles: int
    scans: Range
    n_iter: Range
    first_scans: Range
    """Before the first iteration: for entropy_weight="auto" and for a sample."""
    judging_scans: Range
    """After iterations: for the validity indices by which values of "auto" and settings are chosen."""
    euclideanize_scans: Range
    start_reads: int
    """Most bytes read for init "rows" and "k-means++", in multiples of a scan; they are not counted as scans."""
    memory: int
    """Bytes at the peak on this machine."""
    memory_limit: int
    task_memory: int
    """Bytes of one task, here or on a worker."""
    speed: Speed
    stays_in_memory: bool
    """Whether later scans find the tiles in this machine's memory."""
    first_scan_seconds: float
    scan_seconds: float
    total_seconds: Range
    fleet: Fleet
    workers: tuple[OnWorkers, ...]
    out: str | None = None
    """The folder that would be written."""

    def __repr__(self) -> str:
        work = f"{count_text(self.n_objects, 'object')}, {count_text(self.runs, 'run')}"
        scans, seconds = self.scans.typical, time_text(self.total_seconds.typical)
        return f"<ClusteringPlan: {work}, about {count_text(round(scans), 'scan')} in {seconds}>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"dry_run": True, **asdict(self)}

    def lines(self) -> list[tuple[str, str]]:
        """Return names and texts for people."""
        lines = [
            ("objects", f"{self.n_objects:,}, kind {self.kind}"),
            ("tiles", f"{self.tiles:,}, {count_text(self.tile, 'object')} per side, {self.dtype};"
                      f" {count_text(self.tasks, 'task')} per scan"),
            ("runs", self._runs_text()),
            ("scans", self._scans_text()),
            ("one scan reads", size_text(self.bytes_per_scan)),
            ("memory", f"{size_text(self.memory)} here, {size_text(self.task_memory)} of it per task"),
            ("measured", self.speed.text()),
            ("a scan", self._scan_text()),
            ("time", _times_text(self.total_seconds)),
        ]  # fmt: skip
        if self.start_reads:
            lines.insert(4, ("starts", f"read at most as much as {count_text(self.start_reads, 'scan')} in addition"))
        each = size_text(limits.memory_limit(self.fleet.memory))
        lines += [(count_text(row.workers, "worker"), f"of {each}: {row.text()}") for row in self.workers]
        return lines if self.out is None else [*lines, ("would write", shown(self.out, limit=400))]

    def _runs_text(self) -> str:
        text = (
            f"{self.runs:,} of {count_text(self.n_settings, 'setting')}, {count_text(self.columns, 'column')} at most"
        )
        if self.bundles == 1:
            return text
        return f"{text}, in {count_text(self.bundles, 'bundle')}: memory does not allow them all at once"

    def _scans_text(self) -> str:
        parts = {
            "iterations": self.n_iter, "before them": self.first_scans, "validity indices": self.judging_scans,
            "euclideanize": self.euclideanize_scans,
        }  # fmt: skip
        listed = [f"{name} {limits.range_text(part)}" for name, part in parts.items() if part.most]
        return limits.range_text(self.scans) + (f": {'; '.join(listed)}" if len(listed) > 1 else "")

    def _scan_text(self) -> str:
        again = "read again: the tiles do not fit into the free memory of this machine"
        then = "from memory" if self.stays_in_memory else again
        return f"{time_text(self.first_scan_seconds)} at first, then {time_text(self.scan_seconds)}, {then}"


def _times_text(seconds: Range) -> str:
    if seconds.least == seconds.most:
        return time_text(seconds.most)
    return f"{time_text(seconds.typical)} or so, {time_text(seconds.least)} to {time_text(seconds.most)}"


def plan_clustering(
    matrix: Any,
    runs: Run | int | Sequence[Run] | Sequence[int],
    *,
    euclideanize: Any = None,
    memory: int | str | None = None,
    workers: Mapping[str, Any] | None = None,
    probe_seconds: float = 2.0,
    judge: bool = False,
    kind: str | None = None,
) -> ClusteringPlan:
    """Estimate the cost of `cluster` with the same arguments, here and on a cluster; raise what it would raise.

    Parameters
    ----------
    matrix, runs, memory, judge, kind
        As for `cluster`. Or, as the matrix, the number of objects of one that is not there yet, distances in float32.
    euclideanize
        A method, which costs scans, or a file or `Euclideanized`, which costs none.
    workers
        The workers to estimate for, a dict with any of: `counts`, one estimate for each, by default (1, 2, 4, 8, 16);
        `memory` of each worker, by default "8GiB"; `threads` of each worker, by default 1; `network`, bytes per second
        into or out of a worker, by default 1e9; `bandwidth`, bytes per second that the storage gives to all of them, by
        default what is measured here; `price` of a worker for an hour.
    probe_seconds
        How long to measure.

    Cost: a few tiles are read, about `probe_seconds`; nothing is written.
    """
    fleet = _fleet(workers or {})
    if isinstance(matrix, int):
        if fleet.bandwidth is None:
            raise InputError(
                "the speed of reading a store that is not there is not known",
                remedy="give the bandwidth of the storage, such as 2GB a second",
            )
        matrix = Relation(cast(Any, PlannedMatrix(matrix)), View(PlannedMatrix.kind))
    relation, has_terms, changing = _relation_to_cluster(matrix, euclideanize, kind)
    source = relation.matrix
    listed = listed_runs(runs)
    requested = checked_runs(listed, relation.n_objects, source.ids, source.diagonal)
    listed = planned_runs(requested)

    limit = limits.memory_limit(memory)
    if any(map(needs_threshold, requested)):
        check_eigenvalue_memory(relation, memory=limit)
    bundles, scan_memory = split_by_memory(relation, listed, memory=limit, has_terms=has_terms)
    columns = _columns(bundles)
    here, task = _memory_here(relation, requested, max(columns), limit - scan_memory, limit)

    iterations, (first, judging) = _iterations(bundles), _besides(requested, judge=judge)
    besides = first + judging + changing
    scans = iterations + besides
    starts = _start_reads(requested)

    speed = measure(relation, listed, max(columns), seconds=probe_seconds, reading=fleet.reading)
    cache = tile_cache(source)
    cached, buffers = cache.kept_share, cache.buffer_bytes(int(CPU_COUNT))
    here += buffers if here + buffers <= limit else 0
    total = source.layout.total_bytes
    product = total / speed.product + speed.update
    reading = max(total / speed.read + speed.update, product)
    later = max((1 - cached) * total / speed.read + speed.update, product)

    def on_workers(count: int) -> OnWorkers:
        each = limits.room_of(limits.memory_limit(fleet.memory)), fleet.threads
        there = {f"worker {k + 1}": each for k in range(count)}
        try:
            split, _ = split_by_memory(relation, listed, memory=limit, workers=there, has_terms=has_terms)
        except MemoryLimitError as error:
            return OnWorkers(count, fleet.threads, False, str(error), 0, 0, 0.0, 0, 0, None, None, None)
        there_speed = speed if fleet.reading is None else replace(speed, read=fleet.reading)
        return _priced(_on_workers(relation, split, besides, there_speed, there, fleet.network), fleet.price)

    return ClusteringPlan(
        store=location(source.store) if isinstance(source, Matrix) else None,
        n_objects=relation.n_objects, kind=source.kind, dtype=str(source.dtype), tile=source.layout.tile,
        tiles=len(source.layout.tiles()), tasks=len(Plan(source.layout).groups()), bytes_per_scan=total,
        runs=len(requested), n_settings=len({run.setting for run in requested}), columns=max(columns),
        bundles=len(bundles),
        scans=scans, n_iter=iterations, first_scans=first, judging_scans=judging, euclideanize_scans=changing,
        start_reads=starts, memory=here, memory_limit=limit, task_memory=task, speed=speed, stays_in_memory=cached == 1,
        first_scan_seconds=reading,
        scan_seconds=later, total_seconds=_seconds(scans, starts, reading, later), fleet=fleet,
        workers=tuple(map(on_workers, fleet.counts)),
    )  # fmt: skip


def _priced(row: OnWorkers, price: float | None) -> OnWorkers:
    """Return an estimate with the price of the workers, given that of one for an hour."""
    if price is None or row.total_seconds is None:
        return row
    seconds, each = row.total_seconds, price * row.workers / 3600
    return replace(row, price=Range(each * seconds.least, each * seconds.typical, each * seconds.most))


def _fleet(workers: Mapping[str, Any]) -> Fleet:
    known = [f.name for f in fields(Fleet)]
    unknown = [name for name in workers if name not in known]
    if unknown:
        raise InputError(f"workers has no {shown(unknown[0])!r}", remedy=f"there are {', '.join(known)}")
    return Fleet(**workers)


def _relation_to_cluster(matrix: Any, euclideanize: Any, kind: str | None) -> tuple[Relation, bool, Range]:
    """Return the relation that would be clustered, whether it has terms, and the scans that make it.

    Of a method only the shape of its relation is known before its scans: values of its parameters are arbitrary here.
    """
    plain = as_dissimilarity(matrix, kind)
    if euclideanize is None:
        return plain, bool(plain.terms), Range(0, 0, 0)
    from dasrel.geometry.euclidean import as_euclidean, euclidean_scans  # half of the geometry room

    if isinstance(euclideanize, str) and euclideanize in METHODS:
        seen = plain.plus_fit(euclideanize, 1.0, 0.5) if euclideanize in FITS else plain
        return seen, bool(plain.terms) or euclideanize == "ultrametric", euclidean_scans(euclideanize)
    changed = as_euclidean(plain.matrix, euclideanize)
    assert changed is not None
    return changed.relation, bool(changed.relation.terms), Range(0, 0, 0)


def _columns(bundles: list[IndexedRuns]) -> list[int]:
    """Return the columns of each bundle's first scan."""
    return [
        sum(run.n_clusters for _, run in bundle) + int(any(run.eta == "overall" for _, run in bundle))
        for bundle in bundles
    ]


def _memory_here(relation: Relation, runs: Sequence[Run], columns: int, held: int, limit: int) -> tuple[int, int]:
    """Return the bytes at the peak, and those of one task: the runs' arrays, the scan, a task on every thread."""
    source: Any = relation.matrix
    fixed, task = needed_memory(source, [product_shape(source, [(relation.view, columns)])])
    peak = held + _with_tasks(fixed, task, limit - held)
    if any(map(needs_threshold, runs)):
        basis = eigenvalue_memory(relation.n_objects)
        first = needed_memory(source, [product_shape(source, [(relation.view, LANCZOS_BLOCK)])])
        peak = max(peak, basis + _with_tasks(*first, limit - basis))
    sampled = [run.n_clusters for run in runs if isinstance(run.init, str) and run.init == "sample"]
    if sampled:
        size = sample_size(relation.n_objects, max(sampled))
        second, _ = second_that_fits(relation, size, limit)
        peak = max(peak, sample_memory(size, limit) + needed_for_second(second, size, relation.matrix.dtype.itemsize))
    return peak, task


def _with_tasks(fixed: int, task: int, limit: int) -> int:
    if parallel.active_client() is not None:
        return fixed
    threads = min(limits.thread_count(), max(1, (limit - fixed) // task)) if task else 0
    return int(fixed + threads * task)


def expected_scans(relation: Relation, runs: Sequence[Run], *, judge: bool, memory: int | str | None = None) -> int:
    """Return how many scans `cluster` takes, more or less; 0 if that is not known. Cost: no tile is read."""
    try:
        bundles, _ = split_by_memory(relation, planned_runs(runs), memory=limits.memory_limit(memory))
    except MemoryLimitError:
        return 0  # runs may be fewer than planned: whether they fit is seen later
    return int(sum(scans.typical for scans in (_iterations(bundles), *_besides(runs, judge=judge))))


def _besides(runs: Sequence[Run], *, judge: bool) -> tuple[Range, Range]:
    """Return the scans before iterations, and after them."""
    first, judging = Range(0, 0, 0), Range(int(judge), int(judge), int(judge))
    if any(len(rungs(first_run(run), 1.0)) > 1 or automatic_parameter(run) for run in runs):
        by_samples = all(run.init == "sample" and not run.exact for run in runs if isinstance(run.init, str))
        judging = Range(int(judge), int(judge), 2) if by_samples else Range(1, 1, 2)
    if any(map(needs_threshold, runs)):
        first += Range(1, TYPICAL_EIGENVALUE, LANCZOS_SCANS)
    if any(isinstance(run.init, str) and run.init == "sample" for run in runs):
        first += Range(1, 2, 2)
    return first, judging


def _iterations(bundles: list[IndexedRuns]) -> Range:
    """Return the iterations of all bundles: each takes as many as its slowest run."""
    total = Range(0, 0, 0)
    for bundle in bundles:
        each = []
        for _, run in bundle:
            most = run.most_iterations
            twice = most // run.max_iter  # fcm2 comes first
            from_sample = isinstance(run.init, str) and run.init == "sample" and run.stop == "objective"
            usual = TYPICAL_FROM_SAMPLE * twice if from_sample else TYPICAL[run.rule][run.accelerate]
            typical = most if run.tol == 0 else min(most, usual)
            each.append(Range(most if run.tol == 0 else twice, typical, most))
        total += Range(*(max(getattr(count, name) for count in each) for name in ("least", "typical", "most")))
    return total


def _start_reads(runs: Sequence[Run]) -> int:
    named = [(run.init, run.n_clusters) for run in runs if isinstance(run.init, str)]
    far = [c for init, c in named if init == "k-means++"]
    return int(any(init == "rows" for init, _ in named)) + (max(far) - 1 if far else 0)


def _seconds(scans: Range, starts: int, first: float, later: float) -> Range:
    values = [first + (count - 1) * later for count in (scans.least, scans.typical, scans.most)]
    return Range(values[0], values[1] + starts * later, values[2] + starts * later)


def _on_workers(
    relation: Relation, bundles: list[IndexedRuns], before: Range, speed: Speed, workers: WorkerMemory, network: float
) -> OnWorkers:
    """Estimate with these workers: memory and pinned tiles by the code of a real scan, times by the rates of one core.

    The store is assumed to give no more bytes per second to many workers than it gave to this machine.
    """
    source: Any = relation.matrix
    plan, total, tile_bytes = Plan(source.layout), source.layout.total_bytes, source.layout.tile_bytes
    count, (_, threads) = len(workers), next(iter(workers.values()))
    columns = max(_columns(bundles))
    consumer = product_shape(source, [(relation.view, columns)])
    task, besides = needed_on_worker(source, [consumer])
    need = task * threads + besides
    groups = {group: plan.tiles(group) for group in plan.groups()}
    sizes = {group: len(tiles) * tile_bytes for group, tiles in groups.items()}
    homes = placement(sizes, (), task, workers)
    held = sum(sizes[group] for group in homes)
    pinned = total / count + (max(sizes.values()) if count > 1 else 0)
    for_all = math.ceil((pinned + threads * task) / PINNED_SHARE) + 1
    result = OnWorkers(
        count, threads, False, None, len(bundles), worker_memory=limits.limit_for(need), held=held / total,
        memory_for_all=limits.limit_for(max(for_all, need)), travel_bytes=0, first_scan_seconds=None, scan_seconds=None,
        total_seconds=None,
    )  # fmt: skip
    try:
        limits.check_workers(workers, task, "a scan", kept=besides)
    except MemoryLimitError as error:
        return replace(result, trouble=str(error))

    tasks = batches(list(groups), homes, workers, most=None)
    travel = network_bytes(source, [consumer], count)
    core = speed.product * speed.columns / columns / speed.cores
    compute = total / (core * count * threads)
    sending = travel.caller / network + travel.workers / (network * count)
    overhead = sending + TASK_SECONDS * (len(tasks) + 2 * plan.strips) + speed.update
    first = max(compute, total / speed.read) + overhead
    later = max(compute, (total - held) / speed.read) + overhead
    scans = _iterations(bundles) + before
    return replace(
        result, fits=True, travel_bytes=travel.caller + travel.workers, first_scan_seconds=first, scan_seconds=later,
        total_seconds=_seconds(scans, 0, first, later),
    )  # fmt: skip
