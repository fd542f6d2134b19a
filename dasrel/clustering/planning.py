"""Estimate the cost of a clustering, and measure the speed of this machine.

What a clustering would cost: scans, bytes, memory and time, here and on a cluster, before it is begun.

Memory is predicted by the functions that a real run checks itself with. Scans are a range: how many iterations there
will be, nobody knows. Time comes from a probe of this store on this machine, see `probe`.

How fast this machine reads the tiles of this store and multiplies them, measured in about two seconds.

Tiles are taken from all over the store, by as many threads as a scan has. Reading is measured cold where that can be
had: the operating system is asked to drop the probed tiles from its memory, and then to give them again. Nothing is
written, and what was dropped comes back with the next read.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dasrel.clustering.bundle import BundleContext, RunState, split_by_memory
from dasrel.clustering.runs import BLOCK, LANCZOS_SCANS, Run, checked_runs, from_memberships
from dasrel.engine.readahead import buffer_bytes
from dasrel.engine.relation import Relation, product_consumer, relation as as_relation
from dasrel.engine.scan import Plan, needed_memory, needed_on_worker
from dasrel.engine.worker_cache import PINNED_SHARE, batches, placement
from dasrel.errors import InputError, MemoryLimitError
from dasrel.geometry.euclidean import FITS, Euclideanized, euclidean_scans, is_method
from dasrel.store.matrix import Matrix
from dasrel.store.tile_files import local_path, location
from dasrel.util import Array, Float, limits, parallel
from dasrel.util.limits import Range
from dasrel.util.text import shown
from dasrel.vocabulary import METHODS

TYPICAL = {"hard": (16, 16), "fcm1": (54, 25), "fcm2": (54, 25), "pcm1": (75, 47), "pcm2": (75, 47)}
"""Iterations of the slowest of 10 restarts, plain and accelerated, at a tolerance of 1e-5: the median over digits, iris
and wine (Euclidean distances) with 2, 3 and 10 clusters. They spread from 16 to 30 for hard, 25 to 168 (17 to 80) for
fcm1 and fcm2, 62 to 126 (38 to 88) for pcm1 and pcm2. USPS digits 0 and 7 took 34 to 39 (25 to 28) in single runs."""
TYPICAL_EIGENVALUE = 4
"""Scans for entropy_weight="auto" on the same data: 2 to 5."""
TASK_SECONDS = 0.001
"""What a task costs the scheduler of a cluster."""


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
        if limits.memory_limit(self.memory, "a worker's memory") < 1:
            raise InputError(f"a worker's memory is such as 8GiB, not {shown(self.memory)}")
        if not self.network > 0:
            raise InputError(f"the network carries more than 0 bytes a second, not {self.network:g}")


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

    limit = limits.memory_limit(memory)
    bundles, scan_memory = split_by_memory(relation, listed, memory=limit)
    columns = _columns(bundles)
    here, task = _memory_here(relation, listed, max(columns), limit - scan_memory, limit)

    iterations = _iterations(bundles)
    automatic = any(run.entropy_weight == "auto" for run in listed)
    first = Range(1, TYPICAL_EIGENVALUE, LANCZOS_SCANS) if automatic else Range(0, 0, 0)
    changing = euclidean_scans(euclideanize) if is_method(euclideanize) else Range(0, 0, 0)
    scans = iterations + first + changing
    starts = _start_reads(listed)

    speed = measure(relation, listed, max(columns), seconds=probe_seconds)
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
    if is_method(euclideanize):
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
    if parallel.active_client() is not None:
        return fixed
    threads = min(limits.thread_count(), max(1, (limit - fixed) // task)) if task else 0
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
    each = limits.memory_limit(fleet.memory)
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
    memory = limits.worker_memory(client)
    sizes = {group: len(places) * source.layout.tile_bytes for group, places in groups.items()}
    homes = placement(sizes, (), task, memory)
    held = sum(sizes[group] for group in homes)
    tasks = batches(list(groups), homes, memory, most=None)
    largest = max(len(places) for places in groups.values()) * source.layout.tile_bytes
    pinned = total / count + (largest if count > 1 else 0)
    for_all = math.ceil((pinned + fleet.threads * task) / PINNED_SHARE) + 1
    result = replace(
        nothing, bundles=len(bundles), worker_memory=limits.limit_for(need), held=held / total,
        memory_for_all=limits.limit_for(max(for_all, need)),
    )  # fmt: skip
    try:
        limits.check_workers(memory, task, "a scan", kept=kept)
    except MemoryLimitError as error:
        return replace(result, trouble=str(error))

    columns_out = min(count, plan.strips) * consumer.share_bytes
    sums = plan.travel_fraction(columns) * total if count > 1 else 0.0
    back = 8 * columns * relation.n_objects
    core = speed.product * speed.columns / columns / speed.cores
    compute = total / (core * count * fleet.threads)
    moving = (columns_out + back) / fleet.network + sums / (fleet.network * count)
    around = moving + TASK_SECONDS * (len(tasks) + 2 * plan.strips) + speed.update
    first = max(compute, total / speed.read) + around
    later = max(compute, (total - held) / speed.read) + around
    scans = _iterations(bundles) + before
    return replace(
        result, fits=True, travel_bytes=int(columns_out + sums + back), first_scan_seconds=first, scan_seconds=later,
        total_seconds=_seconds(scans, 0, first, later),
    )  # fmt: skip


Place = tuple[int, int]
MOST_COLUMNS = 256
"""Columns that are multiplied in a probe. Beyond them products are bound by arithmetic, and time goes with their
number: all of a very wide bundle would make the probe of one large tile take many seconds."""
SHARE_BYTES = 256 << 20
"""Of columns that a probe holds; tiles are taken from as many strips as that allows."""
MOST_MAPS = 64
UPDATE_OBJECTS = 32_768
CHUNK = 4 << 20


@dataclass(frozen=True)
class Speed:
    """What was measured."""

    read: float
    """Bytes of tiles a second, all threads together, from where the store lies."""
    cold: bool | None
    """Whether these reads came from the disk and not from memory; None where that cannot be known."""
    product: float
    """Bytes of tiles a second that are multiplied, all threads together, once they are in memory."""
    columns: int
    """Columns that they were multiplied with."""
    update: float
    """Seconds for the memberships of all runs, once."""
    threads: int
    cores: int
    seconds: float
    """That measuring took."""


def measure(relation: Relation, runs: Sequence[Run], columns: int, *, seconds: float = 2.0) -> Speed:
    """The speed of this machine with this store, for products of so many columns.

    Cost: some tiles, as many as can be read in half of `seconds`, at least one for each thread.
    """
    began = time.perf_counter()
    places = relation.matrix.layout.tiles()
    order = np.random.default_rng(0).permutation(len(places))
    spread = [places[k] for k in order]
    threads = max(1, min(limits.thread_count(), len(places)))
    read, cold, held = _read(relation.matrix, spread, threads, seconds / 2)
    wide = min(columns, MOST_COLUMNS)
    product = _multiply(relation, held, threads, wide, seconds / 2) * wide / columns
    update = update_seconds(runs, relation.n_objects)
    took = time.perf_counter() - began
    return Speed(read, cold, product, columns, update, threads, min(threads, int(CPU_COUNT)), took)


def _read(matrix: Any, places: Sequence[Place], threads: int, seconds: float) -> tuple[float, bool | None, list[Any]]:
    """Bytes a second, whether they were cold, and some of the tiles: maps, or one in memory for each thread."""
    files, size = matrix.files, int(matrix.layout.tile_bytes)
    on_disk = isinstance(matrix, Matrix) and local_path(matrix.store) is not None
    first = {place: _drop(files.file(*place)) for place in places[: 2 * threads]} if on_disk else {}
    cold = None if not first or None in first.values() else any(first.values())
    mapped = bool(getattr(files, "mapped", False))
    done: list[tuple[Place, Array]] = []
    lock = threading.Lock()
    buffers = threading.local()

    def work(place: Place) -> int:
        if cold and (first[place] if place in first else _drop(files.file(*place))) is False:
            return 0  # what the system would not let go of says nothing
        if mapped:
            if not hasattr(buffers, "one"):
                buffers.one = bytearray(CHUNK)
            with contextlib.suppress(OSError), open(files.file(*place), "rb", buffering=0) as file:
                while file.readinto(buffers.one):
                    pass
        tile = files.read(*place) if mapped else files.read_checked(*place)  # says what is wrong, if anything is
        with lock:
            if len(done) < (MOST_MAPS if mapped else threads):
                done.append((place, tile))
        return size

    return _rate(work, iter(places), threads, seconds), cold, done


def _drop(path: str) -> bool | None:
    """Ask for a file to be dropped from memory. Whether it was, as far as the system says."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None  # the read that follows says what is wrong
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        middle = os.fstat(descriptor).st_size // 2
        with contextlib.suppress(BlockingIOError):
            os.preadv(descriptor, [bytearray(1)], middle, os.RWF_NOWAIT)  # refuses to wait for a disk
            return False
        return True
    except (OSError, AttributeError):
        return None
    finally:
        os.close(descriptor)


def _multiply(relation: Relation, held: list[tuple[Place, Array]], threads: int, columns: int, seconds: float) -> float:
    """Bytes of tiles a second, through the very code of a scan."""
    source: Any = relation.matrix
    plan = Plan(source.layout)
    weights = np.random.default_rng(0).random((columns, 1)).astype(source.layout.dtype)
    consumer = product_consumer(source, [(relation.view, np.broadcast_to(weights, (columns, source.n_objects)))])
    most = max(2, SHARE_BYTES // (plan.group_side * source.layout.tile * columns * source.layout.dtype.itemsize))
    shares: dict[int, Any] = {}
    near = []
    for (i, j), tile in held:
        new = {i // plan.group_side, j // plan.group_side} - set(shares)
        if len(shares) + len(new) <= most:
            shares |= {strip: consumer.share(plan.span(strip)) for strip in new}
            near.append(((i, j), tile))

    def work(item: tuple[Place, Array]) -> int:
        (i, j), tile = item
        group = i // plan.group_side, j // plan.group_side
        partial = consumer.kernel.begin(plan, group, (shares[group[0]], shares[group[1]]))
        consumer.kernel.parts(consumer.kernel.add(partial, tile, i, j))
        return int(source.layout.tile_bytes)

    with parallel.single_threaded_blas():
        return _rate(work, cycle(near), threads, seconds)


def _rate(work: Callable[[Any], int], items: Iterator[Any], threads: int, seconds: float) -> float:
    """Bytes a second of all threads together: each takes items until time is up, one at least."""
    lock, total = threading.Lock(), [0]
    began = time.perf_counter()

    def run(_: int) -> None:
        first = True
        while first or time.perf_counter() - began < seconds:
            first = False
            with lock:
                item = next(items, None)
            if item is None:
                return
            done = work(item)
            with lock:
                total[0] += done

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(threads)))
    return total[0] / max(time.perf_counter() - began, 1e-9)


def update_seconds(runs: Sequence[Run], n_objects: int) -> float:
    """Seconds for one update of the memberships of all runs, between two scans; no tile is read for it."""
    rng = np.random.default_rng(0)
    n = min(n_objects, UPDATE_OBJECTS)
    alike: dict[tuple[str, int, bool], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.rule, run.n_clusters, run.accelerate), []).append(run)
    total = 0.0
    for (rule, c, _), several in alike.items():
        run = Run(rule, c, tol=0.0)
        U = rng.dirichlet(np.ones(c), size=n).T[None]
        motion = RunState(run, 0, from_memberships(U, 1.0 if run.is_possibilistic else run.theta), 0.0, 1.0)
        around = BundleContext(n, 2.0, n, np.dtype(np.float64))
        took = []
        for _again in range(2):
            Y = rng.uniform(1, 2, (1, c, n))  # distances stay above zero
            began = time.perf_counter()
            motion.advance(Y, around, 1.0)
            took.append(time.perf_counter() - began)
        total += min(took) * n_objects / n * len(several)
    return total / max(1, min(int(CPU_COUNT), len(runs)))
