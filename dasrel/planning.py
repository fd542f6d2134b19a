"""What a clustering would cost: scans, bytes, memory and time, here and on a cluster, before it is begun.

Memory is predicted by the functions that a real run checks itself with. Scans are a range: how many iterations there
will be, nobody knows. Time comes from a probe of this store on this machine, see `probe`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from numpy.typing import NDArray

from dasrel import probe, tasks
from dasrel.ahead import buffer_bytes
from dasrel.errors import InputError, MemoryLimitError, shown
from dasrel.euclidean import FITS, Euclideanized
from dasrel.graph import Plan
from dasrel.picard import split_by_memory
from dasrel.probe import Speed
from dasrel.products import product_consumer
from dasrel.relation import Relation
from dasrel.relation import relation as as_relation
from dasrel.runs import Run, checked_runs
from dasrel.scan import needed_memory, needed_on_worker
from dasrel.starts import BLOCK, LANCZOS_SCANS
from dasrel.store import Matrix, location
from dasrel.vocabulary import METHODS
from dasrel.workers import PINNED_SHARE, Pins

Float = NDArray[np.float64]

TYPICAL = {"hard": (16, 16), "fcm1": (54, 25), "fcm2": (54, 25), "pcm1": (75, 47), "pcm2": (75, 47)}
"""Iterations of the slowest of 10 restarts, plain and accelerated, at a tolerance of 1e-5: the median over digits, iris
and wine (Euclidean distances) with 2, 3 and 10 clusters. They spread from 16 to 30 for hard, 25 to 168 (17 to 80) for
fcm1 and fcm2, 62 to 126 (38 to 88) for pcm1 and pcm2. USPS digits 0 and 7 took 34 to 39 (25 to 28) in single runs."""
TYPICAL_EIGENVALUE = 4
"""Scans for entropy_weight="auto" on the same data: 2 to 5."""
TYPICAL_EUCLIDEAN = {"spread": 11, "ultrametric": 13, "power": 61, "exponential": 62, "log": 46}
"""Scans of euclideanize, the median over iris and digits (largest coordinate difference), wine (city block), digits
(Bray-Curtis), cat cortex and proteins: 7 to 20 for spread, 9 to 17 for ultrametric, 28 to 145 for the fits. Noise takes
more: 36 for an eigenvalue alone."""
EUCLIDEAN_BUDGET = 200
"""`euclideanize` stops its searches after so many scans."""
TASK_SECONDS = 0.001
"""What a task costs the scheduler of a cluster."""


@dataclass(frozen=True)
class Range:
    """A number that is not known yet: at least, typically, at most."""

    least: float
    typical: float
    most: float

    def __add__(self, other: Range) -> Range:
        return Range(self.least + other.least, self.typical + other.typical, self.most + other.most)


@dataclass(frozen=True)
class Fleet:
    """Workers that one thinks of."""

    counts: tuple[int, ...] = (1, 2, 4, 8, 16)
    memory: int | str = "8GiB"
    """Of each worker."""
    threads: int = 1
    """Of each worker."""
    network: float = 1e9
    """Bytes a second into or out of a worker: 10 Gbit/s is little more."""

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1 or self.threads < 1:
            raise InputError(f"give at least one worker with one thread, not {self.counts} with {self.threads}")
        try:
            positive = parse_bytes(self.memory) > 0
        except ValueError:
            positive = False
        if not positive or not self.network > 0:
            raise InputError(f"a worker's memory is such as 8GiB, not {shown(self.memory)}")


@dataclass(frozen=True)
class OnWorkers:
    """How it would look with so many workers."""

    workers: int
    threads: int
    """Of each."""
    fits: bool
    trouble: str | None
    """Why not."""
    bundles: int
    worker_memory: int
    """Bytes that a worker needs for its tasks, without any tile that it keeps."""
    held: float
    """Share of the tiles that the workers keep in memory from the first scan on."""
    memory_for_all: int
    """Bytes that each worker must have for all tiles to be kept."""
    travel_bytes: int
    """Most bytes that go between machines in a scan: columns to the workers, sums between them and back."""
    first_scan_seconds: float | None
    scan_seconds: float | None
    total_seconds: Range | None
    """None where it does not fit."""


@dataclass(frozen=True)
class ClusteringPlan:
    """What a clustering would cost. Made by `plan_clustering`."""

    store: str | None
    n_objects: int
    kind: str
    dtype: str
    tile: int
    tiles: int
    tasks: int
    """Of a scan."""
    bytes_per_scan: int
    runs: int
    n_settings: int
    columns: int
    """Of the widest bundle."""
    bundles: int
    scans: Range
    n_iter: Range
    first_scans: Range
    """Before the first iteration, for entropy_weight="auto"."""
    euclideanize_scans: Range
    start_reads: int
    """Most bytes read for starts "rows" and "k-means++", in scans; they are not counted as scans."""
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def plan_clustering(
    matrix: Any,
    runs: Run | Sequence[Run],
    *,
    euclideanize: Any = None,
    memory: int | str | None = None,
    fleet: Fleet | None = None,
    probe_seconds: float = 2.0,
    kind: str | None = None,
) -> ClusteringPlan:
    """What `cluster` would cost with the same arguments, here and on a cluster. Refuses what it would refuse.

    Parameters
    ----------
    matrix, runs, memory, kind
        As for `cluster`.
    euclideanize
        A method, which costs scans, or a file or `Euclideanized`, which costs none.
    fleet
        The workers to think of; by default 1, 2, 4, 8 and 16 of 8 GiB.
    probe_seconds
        How long to measure.

    Cost: a few tiles are read, about `probe_seconds`; nothing is written.
    """
    listed = [runs] if isinstance(runs, Run) else list(runs)
    relation = _seen(matrix, euclideanize, kind)
    source: Any = relation.matrix
    listed = checked_runs(listed, relation.n_objects, source.ids, source.diagonal)
    fleet = fleet or Fleet()

    limit = tasks.machine_memory() // 2 if memory is None else int(parse_bytes(memory))
    bundles, scan_memory = split_by_memory(relation, listed, memory=limit)
    columns = _columns(bundles)
    here, task = _memory_here(relation, listed, max(columns), limit - scan_memory, limit)

    iterations = _iterations(bundles)
    automatic = any(run.entropy_weight == "auto" for run in listed)
    first = Range(1, TYPICAL_EIGENVALUE, LANCZOS_SCANS) if automatic else Range(0, 0, 0)
    changing = euclidean_scans(euclideanize) if _is_method(euclideanize) else Range(0, 0, 0)
    scans = iterations + first + changing
    starts = _start_reads(listed)

    speed = probe.measure(relation, listed, max(columns), seconds=probe_seconds)
    kept = float(source.files.kept_share) if getattr(source.files, "mapped", True) else 0.0
    buffers = buffer_bytes(source.files, int(CPU_COUNT))
    here += buffers if here + buffers <= limit else 0
    total = source.layout.total_bytes
    product = total / speed.product + speed.update
    reading = max(total / speed.read + speed.update, product)
    later = max((1 - kept) * total / speed.read + speed.update, product)
    plan, before = Plan(source.layout), first + changing
    return ClusteringPlan(
        store=location(source.store) if isinstance(source, Matrix) else None,
        n_objects=relation.n_objects, kind=source.kind, dtype=str(source.dtype), tile=source.layout.tile,
        tiles=len(source.layout.tiles()), tasks=len(plan.groups()), bytes_per_scan=total, runs=len(listed),
        n_settings=len({run.setting for run in listed}), columns=max(columns), bundles=len(bundles), scans=scans,
        n_iter=iterations, first_scans=first, euclideanize_scans=changing, start_reads=starts, memory=here,
        memory_limit=limit, task_memory=task, speed=speed, stays_in_memory=kept == 1, first_scan_seconds=reading,
        scan_seconds=later, total_seconds=_seconds(scans, starts, reading, later), fleet=fleet,
        workers=tuple(_on_workers(relation, listed, limit, before, speed, fleet, count) for count in fleet.counts),
    )  # fmt: skip


def euclidean_scans(method: str, max_scans: int = EUCLIDEAN_BUDGET) -> Range:
    """Scans of `euclideanize`: the searches, and besides them the tree, the duplicates and the stress."""
    beside = {"spread": 1, "ultrametric": 4}.get(method, 15)
    least = 2 if method == "spread" else 3
    return Range(least, min(TYPICAL_EUCLIDEAN[method], max_scans), max_scans + beside)


def _is_method(euclideanize: Any) -> bool:
    return isinstance(euclideanize, str) and euclideanize in METHODS


def _seen(matrix: Any, euclideanize: Any, kind: str | None) -> Relation:
    """The relation that would be clustered. For a method, one of the same shape: its numbers are not known yet."""
    if isinstance(matrix, Relation):
        if kind is not None:
            raise InputError("a relation knows its kind; leave kind out")
        plain = matrix
    else:
        plain = as_relation(matrix, kind=kind)
    if euclideanize is None:
        return plain
    if isinstance(euclideanize, Euclideanized):
        return euclideanize.on(plain.matrix).relation
    if _is_method(euclideanize):
        if euclideanize == "spread":
            return plain.spread(1.0)
        return (
            plain.plus_fit(euclideanize, 1.0, 0.5) if euclideanize in FITS else plain.plus(_Zero(plain.n_objects), 1.0)
        )
    if isinstance(euclideanize, os.PathLike) or (isinstance(euclideanize, str) and euclideanize.endswith(".npz")):
        return Euclideanized.load(euclideanize, plain.matrix).relation
    raise InputError(
        f"euclideanize is {shown(euclideanize)!r}: use one of {', '.join(METHODS)}, or a file (.npz) that"
        " `dasrel euclideanize` wrote"
    )


@dataclass(frozen=True)
class _Zero:
    """Stands for an ultrametric that is not there yet."""

    n_objects: int

    def left(self, U: Float) -> Float:
        return np.zeros(U.shape)

    def diagonal(self) -> Float:
        return np.zeros(self.n_objects)

    def block(self, rows: slice, columns: slice) -> Float:
        return np.zeros((rows.stop - rows.start, columns.stop - columns.start))


def _columns(bundles: list[list[tuple[int, Run]]]) -> list[int]:
    """Columns of each bundle's first scan."""
    return [
        sum(run.n_clusters for _, run in bundle) + int(any(run.eta == "overall" for _, run in bundle))
        for bundle in bundles
    ]


def _consumer(relation: Relation, columns: int) -> Any:
    """The consumer of such a scan; its columns take no memory."""
    source: Any = relation.matrix
    zeros = np.broadcast_to(np.zeros(1, dtype=source.dtype), (columns, relation.n_objects))
    return product_consumer(source, [(relation.view, zeros)])


def _memory_here(relation: Relation, runs: Sequence[Run], columns: int, held: int, limit: int) -> tuple[int, int]:
    """Bytes at the peak, and those of one task: what the runs hold, what the scan holds, a task on every thread."""
    source: Any = relation.matrix
    fixed, task = needed_memory(source, [_consumer(relation, columns)])
    peak = held + _with_tasks(fixed, task, limit - held)
    if any(run.entropy_weight == "auto" for run in runs):
        basis = 8 * relation.n_objects * BLOCK * (2 * LANCZOS_SCANS + 8)
        first = needed_memory(source, [_consumer(relation, BLOCK)])
        peak = max(peak, basis + _with_tasks(*first, limit - basis))
    return peak, task


def _with_tasks(fixed: int, task: int, limit: int) -> int:
    if tasks.active_client() is not None:
        return fixed
    threads = min(tasks.thread_count(), max(1, (limit - fixed) // task)) if task else 0
    return int(fixed + threads * task)


def _iterations(bundles: list[list[tuple[int, Run]]]) -> Range:
    """A bundle takes as many scans as its slowest run has iterations."""
    total = Range(0, 0, 0)
    for bundle in bundles:
        each = []
        for _, run in bundle:
            twice = 2 if run.is_possibilistic and isinstance(run.init, str) else 1  # fcm2 comes first
            most = twice * run.max_iter
            typical = most if run.tol == 0 else min(most, TYPICAL[run.rule][run.accelerate])
            each.append(Range(most if run.tol == 0 else twice, typical, most))
        total += Range(*(max(getattr(one, name) for one in each) for name in ("least", "typical", "most")))
    return total


def _start_reads(runs: Sequence[Run]) -> int:
    words = [(run.init, run.n_clusters) for run in runs if isinstance(run.init, str)]
    far = [c for start, c in words if start == "k-means++"]
    return int(any(start == "rows" for start, _ in words)) + (max(far) - 1 if far else 0)


def _seconds(scans: Range, starts: int, first: float, later: float) -> Range:
    values = [first + (count - 1) * later for count in (scans.least, scans.typical, scans.most)]
    return Range(values[0], values[1] + starts * later, values[2] + starts * later)


def imagined(count: int, memory: int, threads: int) -> Any:
    """A client whose workers are not there, for the functions that ask a client what its workers have."""
    each = {"memory_limit": memory, "nthreads": threads}
    identity = {"workers": {f"worker {k + 1}": each for k in range(count)}}
    return SimpleNamespace(scheduler=SimpleNamespace(identity=None), sync=lambda function, **_: identity)


def _on_workers(
    relation: Relation, runs: Sequence[Run], limit: int, before: Range, speed: Speed, fleet: Fleet, count: int
) -> OnWorkers:
    """Bundles, memory and held tiles by the code of a real scan; times by the rates of one core and one disk here.

    The store is taken to give no more bytes a second to many workers than it gave to this machine.
    """
    source: Any = relation.matrix
    each = int(parse_bytes(fleet.memory))
    client = imagined(count, each, fleet.threads)
    plan, total = Plan(source.layout), source.layout.total_bytes
    nothing = OnWorkers(count, fleet.threads, False, None, 0, 0, 0.0, 0, 0, None, None, None)
    try:
        bundles, _ = split_by_memory(relation, runs, memory=limit, client=client)
    except MemoryLimitError as error:
        return replace(nothing, trouble=str(error))
    columns = max(_columns(bundles))
    consumer = _consumer(relation, columns)
    task, kept = needed_on_worker(source, [consumer])
    need = task * fleet.threads + kept
    groups = {group: plan.tiles(group) for group in plan.groups()}
    pins = Pins(client)
    reader = SimpleNamespace(travels=True, to_worker=lambda client, places, worker: None)
    memory = tasks.worker_memory(client)
    pins.place(reader, groups, source.layout.tile_bytes, task, memory)
    held = sum(len(groups[group]) for group in pins.futures) * source.layout.tile_bytes
    batches = pins.batches(list(groups), memory, most=None)
    largest = max(len(places) for places in groups.values()) * source.layout.tile_bytes
    pinned = total / count + (largest if count > 1 else 0)
    for_all = math.ceil((pinned + fleet.threads * task) / PINNED_SHARE) + 1
    result = replace(
        nothing, bundles=len(bundles), worker_memory=tasks.limit_for(need), held=held / total,
        memory_for_all=tasks.limit_for(max(for_all, need)),
    )  # fmt: skip
    try:
        tasks.check_workers(memory, task, "a scan", kept=kept)
    except MemoryLimitError as error:
        return replace(result, trouble=str(error))

    columns_out = min(count, plan.strips) * consumer.share_bytes
    sums = plan.travel_fraction(columns) * total if count > 1 else 0.0
    back = 8 * columns * relation.n_objects
    core = speed.product * speed.columns / columns / speed.cores
    compute = total / (core * count * fleet.threads)
    moving = (columns_out + back) / fleet.network + sums / (fleet.network * count)
    around = moving + TASK_SECONDS * (len(batches) + 2 * plan.strips) + speed.update
    first = max(compute, total / speed.read) + around
    later = max(compute, (total - held) / speed.read) + around
    scans = _iterations(bundles) + before
    return replace(
        result, fits=True, travel_bytes=int(columns_out + sums + back), first_scan_seconds=first, scan_seconds=later,
        total_seconds=_seconds(scans, 0, first, later),
    )  # fmt: skip
