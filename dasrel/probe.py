"""How fast this machine reads the tiles of this store and multiplies them, measured in about two seconds.

Tiles are taken from all over the store, by as many threads as a scan has. Reading is measured cold where that can be
had: the operating system is asked to drop the probed tiles from its memory, and then to give them again. Nothing is
written, and what was dropped comes back with the next read.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from dasrel import tasks
from dasrel.graph import Plan
from dasrel.motion import Motion, Surroundings
from dasrel.products import product_consumer
from dasrel.relation import Relation
from dasrel.runs import Run
from dasrel.starts import from_memberships
from dasrel.store import Matrix, local_path

Array = NDArray[Any]
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
    threads = max(1, min(tasks.thread_count(), len(places)))
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

    with tasks.single_threaded_blas():
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
        motion = Motion(run, 0, from_memberships(U, 1.0 if run.is_possibilistic else run.theta), 0.0, 1.0)
        around = Surroundings(n, 2.0, n, np.dtype(np.float64))
        took = []
        for _again in range(2):
            Y = rng.uniform(1, 2, (1, c, n))  # distances stay above zero
            began = time.perf_counter()
            motion.advance(Y, around, 1.0)
            took.append(time.perf_counter() - began)
        total += min(took) * n_objects / n * len(several)
    return total / max(1, min(int(CPU_COUNT), len(runs)))
