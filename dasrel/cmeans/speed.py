"""The speed of this machine: how fast it reads tiles of a store, multiplies them, and updates memberships."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dasrel.cmeans.run_state import update
from dasrel.engine.reduce import PartialResult, Plan
from dasrel.engine.relation import Relation, product_consumer
from dasrel.partition import rules
from dasrel.partition.rules import Rule
from dasrel.partition.run import Run
from dasrel.store.matrix import Matrix
from dasrel.store.planned import PlannedMatrix
from dasrel.store.tile_files import local_path
from dasrel.util import Array, limits, parallel, progress
from dasrel.util.text import size_text

Tile = tuple[int, int]
MOST_COLUMNS = 256
"""Most columns multiplied in a probe. Beyond them products are bound by arithmetic, and time is proportional to their
number: with all columns of a very wide bundle, one large tile would take many seconds."""
SHARE_BYTES = 256 << 20
"""Most bytes of columns that a probe holds; tiles are taken from as many strips as that allows."""
MOST_MAPS = 64
UPDATE_OBJECTS = 32_768
CHUNK = 4 << 20


@dataclass(frozen=True)
class Speed:
    """Measured speeds."""

    read: float
    """Bytes of tiles read per second from the store, all threads together."""
    cold: bool | None
    """Whether these reads came from the disk and not from the page cache; None if unknown."""
    product: float
    """Bytes of tiles in memory multiplied per second, all threads together."""
    columns: int
    """Columns of these products."""
    update: float
    """Seconds of one update of the memberships of all runs."""
    threads: int
    cores: int
    seconds: float
    """Duration of the measurement."""
    stated: bool = False
    """Whether the speed of reading was not measured, but given."""

    def text(self) -> str:
        """Return the speeds for people."""
        cold = {True: ", cold", False: ", from the page cache, which could not be emptied", None: ""}[self.cold]
        cold = ", as stated" if self.stated else cold
        return f"reading {size_text(int(self.read))}/s{cold}; products {size_text(int(self.product))}/s"


def measure(
    relation: Relation, runs: Sequence[Run], columns: int, *, seconds: float = 2.0, reading: int | None = None
) -> Speed:
    """Measure the speed of this machine with this store, for products of so many columns.

    A matrix that is not there is read at the bytes per second of `reading`.

    Cost: some tiles, as many as can be read in half of `seconds`, at least one for each thread.
    """
    began = time.perf_counter()
    tiles = relation.matrix.layout.tiles()
    order = np.random.default_rng(0).permutation(len(tiles))
    spread = [tiles[k] for k in order]
    threads = max(1, min(limits.thread_count(), len(tiles)))
    if isinstance(relation.matrix, PlannedMatrix):
        assert reading is not None
        read, cold, held = float(reading), None, [((0, 0), relation.matrix.random_tile())]
    else:
        read, cold, held = _read(relation.matrix, spread, threads, seconds / 2)
    wide = min(columns, MOST_COLUMNS)
    product = _multiply(relation, held, threads, wide, seconds / 2) * wide / columns
    update = update_seconds(runs, relation.n_objects)
    took = time.perf_counter() - began
    return Speed(read, cold, product, columns, update, threads, min(threads, int(CPU_COUNT)), took, reading is not None)


def _read(matrix: Any, tiles: Sequence[Tile], threads: int, seconds: float) -> tuple[float, bool | None, list[Any]]:
    """Return bytes per second, whether they were cold, and some tiles: maps, or one in memory per thread."""
    files, size = matrix.files, int(matrix.layout.tile_bytes)
    on_disk = isinstance(matrix, Matrix) and local_path(matrix.store) is not None
    first = {at: _drop(files.file(*at)) for at in tiles[: 2 * threads]} if on_disk else {}
    cold = None if not first or None in first.values() else any(first.values())
    mapped = bool(files.mapped)
    done: list[tuple[Tile, Array]] = []
    lock = threading.Lock()
    buffers, counted = threading.local(), progress.current()

    def work(at: Tile) -> int:
        if cold and (first[at] if at in first else _drop(files.file(*at))) is False:
            return 0  # still in the page cache: not a cold read
        if mapped:
            if not hasattr(buffers, "one"):
                buffers.one = bytearray(CHUNK)
            with contextlib.suppress(OSError), open(files.file(*at), "rb", buffering=0) as file:
                while file.readinto(buffers.one):
                    pass
        tile = files.read(*at) if mapped else files.read_checked(*at)  # raises if the tile is missing or damaged
        counted.count(tiles=1, bytes=size)
        with lock:
            if len(done) < (MOST_MAPS if mapped else threads):
                done.append((at, tile))
        return size

    return _rate(work, iter(tiles), threads, seconds), cold, done


def _drop(path: str) -> bool | None:
    """Ask the system to drop a file from its page cache; return whether it did, None if unknown."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None  # the read that follows raises
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        middle = os.fstat(descriptor).st_size // 2
        with contextlib.suppress(BlockingIOError):
            os.preadv(descriptor, [bytearray(1)], middle, os.RWF_NOWAIT)  # fails if it would have to wait for the disk
            return False
        return True
    except (OSError, AttributeError):
        return None
    finally:
        os.close(descriptor)


def _multiply(relation: Relation, held: list[tuple[Tile, Array]], threads: int, columns: int, seconds: float) -> float:
    """Return bytes of tiles multiplied per second, by the code of a scan."""
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

    def work(item: tuple[Tile, Array]) -> int:
        (i, j), tile = item
        group = i // plan.group_side, j // plan.group_side
        partial = PartialResult(consumer.kernel, plan, group, (shares[group[0]], shares[group[1]]))
        partial.add(tile, i, j)
        partial.parts()
        return int(source.layout.tile_bytes)

    with parallel.single_threaded_blas():
        return _rate(work, cycle(near), threads, seconds)


def _rate(work: Callable[[Any], int], items: Iterator[Any], threads: int, seconds: float) -> float:
    """Return bytes per second of all threads together: each takes items until time is up, at least one."""
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
    """Return the seconds of one update of the memberships of all runs, between two scans; no tile is read."""
    rng = np.random.default_rng(0)
    n = min(n_objects, UPDATE_OBJECTS)
    counts = Counter((run.rule, run.n_clusters) for run in runs)
    total = 0.0
    for (name, c), count in counts.items():
        values: dict[str, Any] = {"m": 2.0, "lam": 1.0, "eta": np.ones(c)}
        rule = Rule(name, **{key: values[key] for key in rules.SYMBOLS[name]})
        U = rng.dirichlet(np.ones(c), size=n).T[None]
        W = rules.weights(U, rule.theta)
        took = []
        for _again in range(2):
            Y = rng.uniform(1, 2, (1, c, n))  # distances stay above zero
            began = time.perf_counter()
            d, _ = rules.distances(Y, W, out=Y)
            rules.clip_negative(d, tol=0.0)
            rules.change(update(rule, d).U, U)
            took.append(time.perf_counter() - began)
        total += min(took) * n_objects / n * count
    return total / max(1, min(int(CPU_COUNT), len(runs)))
