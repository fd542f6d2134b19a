"""Measure bundles of c-means runs against NumPy in memory, the roofline of the machine, and other programs.

    python bench/cmeans.py [--n 16384] [--dir FOLDER]      NumPy; the roofline; restarts; the share of updates
    python bench/cmeans.py --peers [--n 8192]              the default beside k-medoids, fanny, spectral clustering and
                                                           k-means on the features

One JSON line per measurement, ratios from the same run. Cold means that no tile is in the page cache before any scan,
and that tiles are read past it, as those of a matrix that is larger than memory. Lines say so where a number is
extrapolated from fewer runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scan import best, drop, past_the_cache, peak_anonymous, raw_read, tile_files, write_store

from dasrel import open_matrix, watch
from dasrel.cmeans.fit import cluster
from dasrel.cmeans.result import Clustering
from dasrel.engine.readahead import tile_cache
from dasrel.errors import DasrelWarning
from dasrel.partition.run import Run, grid
from dasrel.store.matrix import Matrix
from dasrel.util import limits
from dasrel.util.progress import Progress

GROUPS = 5
ITERATIONS = 20


def line(**found: Any) -> None:
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}), flush=True)


def features(n: int) -> tuple[Any, Any]:
    """Return points in 8 dimensions in 5 groups that overlap a little, and the group of each."""
    rng = np.random.default_rng(0)
    labels = rng.integers(GROUPS, size=n)
    return rng.normal(size=(n, 8)) + rng.normal(scale=2.0, size=(GROUPS, 8))[labels], labels


def make_store(path: Path, n: int) -> Matrix:
    """Write squared Euclidean distances as float32 tiles, without the checks of an import."""
    X, _ = features(n)
    norms = (X * X).sum(axis=1)

    def tile_of(rows: slice, columns: slice) -> Any:
        D = np.maximum(norms[rows, None] + norms[columns] - 2 * X[rows] @ X[columns].T, 0)
        return np.triu(D, 1) if rows == columns else D

    return write_store(path, n, "squared-distance", tile_of)


def dense(matrix: Matrix, dtype: str) -> Any:
    D = np.empty(matrix.shape, dtype=dtype)
    for i, j in matrix.layout.tiles():
        rows, columns = matrix.layout.span(i), matrix.layout.span(j)
        tile = matrix.read_tile(i, j)
        D[rows, columns] = tile
        D[columns, rows] = tile.T
    return D


def quiet(matrix: Matrix, runs: Any) -> Clustering:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DasrelWarning)  # not converged: that is what a fixed number of steps means
        return cluster(matrix, runs)


def numpy_rfcm(D: Any, U: Any, m: float, steps: int) -> Any:
    """Run RFCM in plain NumPy: D in memory, float64, BLAS on all cores."""
    for _ in range(steps):
        V = U**m
        V /= V.sum(axis=1, keepdims=True)
        d = V @ D
        d -= 0.5 * (V * d).sum(axis=1, keepdims=True)
        np.maximum(d, 1e-300, out=d)
        if m == 2:
            np.reciprocal(d, out=d)
        else:
            d **= -1.0 / (m - 1)
        U = d / d.sum(axis=0)
    return U


def against_numpy(matrix: Matrix, n: int) -> None:
    runs = grid("fcm1", GROUPS, fuzzifier=2.0, init="random", accelerate=False, n_init=10, max_iter=ITERATIONS, tol=0)
    quiet(matrix, runs[:1])  # checksums, and the page cache
    ours = share = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        result = quiet(matrix, runs)
        ours = min(ours, time.perf_counter() - began)
        share = min(share, result.update_seconds / result.seconds)
    D = dense(matrix, "float64")
    rng = np.random.default_rng(0)
    starts = [rng.random((GROUPS, n)) for _ in range(10)]
    # whatever else the machine does: the best of three for us, and for NumPy its best restart, ten times
    theirs = 10 * min(best(numpy_rfcm, D, U / U.sum(axis=0), 2.0, ITERATIONS, times=1) for U in starts)
    line(
        bench="fcm1, c = 5, 10 restarts, 20 iterations, from a store; NumPy float64 in memory: best restart x 10",
        n=n,
        seconds=ours, numpy_seconds=theirs, speedup=theirs / ours, goal=5.0,
    )  # fmt: skip
    line(bench="share of the membership updates in that time", n=n, share=share, goal=0.1)


def gemm_rate(n: int) -> float:
    """Return the floating-point operations per second of a large float32 product on all cores."""
    side = min(n, 4096)
    a = np.random.default_rng(0).random((side, side), dtype=np.float32)
    return 2 * side**3 / best(np.matmul, a, a, times=5)


def memory_rate(matrix: Matrix) -> float:
    """Return the bytes per second at which all cores can read tiles that are in the page cache."""
    tiles = [matrix.read_tile(i, j) for i, j in matrix.layout.tiles()]

    def look() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(np.max, tiles))  # the cheapest use of every value

    look()
    return matrix.layout.total_bytes / best(look, times=5)


class ScanClock:
    """Record when each scan begins."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if progress.scans > len(self._begins):
                self._begins.append(time.perf_counter())

    def iterations(self) -> list[float]:
        """Return the seconds from the beginning of each scan to that of the next: scan and update."""
        return [later - this for this, later in itertools.pairwise(self._begins)]


def timed(matrix: Matrix, runs: list[Run], *, cold: bool) -> tuple[float, ScanClock]:
    """Return the seconds of a bundle, and its clock."""
    if cold:
        tile_cache(matrix).close_maps()  # what is mapped stays in the page cache
        drop(tile_files(matrix))
        matrix = past_the_cache(matrix.store)
    clock = ScanClock()
    with watch(clock):
        began = time.perf_counter()
        quiet(matrix, runs)
        seconds = time.perf_counter() - began
    return seconds, clock


def roofline(matrix: Matrix, n: int) -> None:
    """Print the best of ten iterations over the best of several measurements of what the machine can do.

    A ratio below 1 says that the rates were measured while something else kept the machine busy.
    """
    size = matrix.layout.total_bytes
    for columns in (5, 50, 150):
        runs = grid("fcm1", 5, fuzzifier=2.0, init="random", accelerate=False, n_init=columns // 5, max_iter=11, tol=0)
        flops = 2.0 * n * n * columns
        for cache in ("cold", "warm"):
            # rates are measured next to what they are compared with, before and after
            rates = [gemm_rate(n)]
            seen = [raw_rate(matrix) if cache == "cold" else memory_rate(matrix)]
            before = limits.bytes_from_disk()
            _, clock = timed(matrix, runs, cold=cache == "cold")
            read = (limits.bytes_from_disk() - before) / size / 11
            rates.append(gemm_rate(n))
            seen.append(raw_rate(matrix) if cache == "cold" else memory_rate(matrix))
            gemm, rate, seconds = max(rates), max(seen), min(clock.iterations())
            bound = max(size / rate, flops / gemm)
            line(
                bench="an iteration over the larger of bytes / rate and flops / rate", n=n, columns=columns,
                cache=cache, seconds=seconds, median_seconds=float(np.median(clock.iterations())),
                bound_seconds=bound, bound_by="bytes" if size / rate >= flops / gemm else "flops",
                gb_per_s=rate / 1e9, gflops=gemm / 1e9, read_from_disk=read, ratio=seconds / bound, goal=1.3,
            )  # fmt: skip


def raw_rate(matrix: Matrix) -> float:
    """Return the bytes per second of reading the tile files from disk and doing nothing with them."""
    tile_cache(matrix).close_maps()  # what is mapped stays in the page cache
    files = tile_files(matrix)
    return matrix.layout.total_bytes / best(raw_read, files, times=3, cold=files)


def restarts(matrix: Matrix, n: int) -> None:
    sample = 5
    for cache, goal in (("warm", 3.5), ("cold", 8.0)):
        cold = cache == "cold"
        runs = grid("fcm1", 3, fuzzifier=2.0, init="random", accelerate=False, n_init=50, max_iter=6, tol=0)
        together = min(timed(matrix, runs, cold=cold)[0] for _ in range(2))
        alone = min(sum(timed(matrix, [run], cold=cold)[0] for run in runs[:sample]) for _ in range(2)) * 50 / sample
        line(
            bench="50 restarts of c = 3 in one bundle against one after another (5 measured, times 10)", n=n,
            cache=cache, seconds=together, one_by_one_seconds=alone, speedup=alone / together, goal=goal,
        )  # fmt: skip


def fanny(D: Any, c: int, *, r: float, steps: int) -> Any:
    """Run Kaufman and Rousseeuw's fuzzy analysis on distances, float64, all memberships at once."""
    U = np.random.default_rng(0).dirichlet(np.ones(c), size=len(D)).T
    for _ in range(steps):
        P = U**r
        total = P.sum(axis=1, keepdims=True)
        S = P @ D
        a = np.maximum(S / total - 0.5 * (P * S).sum(axis=1, keepdims=True) / total**2, 1e-12)
        new = a ** (-1.0 / (r - 1))
        new /= new.sum(axis=0)
        if np.abs(new - U).max() < 1e-5:
            return new
        U = new
    return U


def peer_labels(name: str, path: str) -> Any:
    """Cluster by one method; loading the matrix is part of it."""
    matrix = open_matrix(path)
    if name == "dasrel":
        found = cluster(matrix, GROUPS, judge=True)
        found.structure()
        return found.best.labels
    if name == "sklearn KMeans on the features":
        from sklearn.cluster import KMeans

        return KMeans(GROUPS, n_init=10, random_state=0).fit_predict(features(matrix.n_objects)[0])
    if name == "kmedoids fasterpam":
        import kmedoids

        return kmedoids.fasterpam(dense(matrix, "float32"), GROUPS, random_state=0).labels
    if name == "fanny in NumPy":
        return fanny(np.sqrt(dense(matrix, "float64")), GROUPS, r=1.5, steps=200).argmax(axis=0)
    from sklearn.cluster import SpectralClustering

    D = dense(matrix, "float64")
    np.exp(D / (-D.mean()), out=D)
    return SpectralClustering(GROUPS, affinity="precomputed", random_state=0).fit_predict(D)


def one_peer(name: str, path: str) -> None:
    from sklearn.metrics import adjusted_rand_score

    _, truth = features(open_matrix(path).n_objects)
    with peak_anonymous() as peak:
        began = time.perf_counter()
        try:
            labels = peer_labels(name, path)
        except ImportError as error:
            line(bench="peers", method=name, missing=str(error))
            return
        seconds = time.perf_counter() - began
    line(
        bench="peers",
        method=name,
        n=len(truth),
        seconds=seconds,
        peak_mb=peak["mb"],
        ari=adjusted_rand_score(truth, labels),
    )


PEERS = {
    "dasrel": 0, "sklearn KMeans on the features": 0, "kmedoids fasterpam": 4, "fanny in NumPy": 16,
    "sklearn SpectralClustering": 32,
}  # fmt: skip
"""The methods, and the bytes that each needs for a pair of objects."""


def peers(path: Path, n: int) -> None:
    """Run each method that fits into memory in a process of its own, which holds nothing else."""
    for name, each in PEERS.items():
        if each * n * n > 0.9 * psutil.virtual_memory().available:
            line(bench="peers", method=name, n=n, missing=f"{each * n * n / 1e9:.0f} GB of memory")
            continue
        subprocess.run([sys.executable, __file__, "--one-peer", name, "--store", str(path)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=16_384)
    parser.add_argument("--dir", type=Path, help="where the store is written (the disk that is measured)")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--one-peer", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_peer:
        one_peer(options.one_peer, options.store)
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = Path(folder) / "bench.zarr"
        matrix = make_store(path, options.n)
        if options.peers:
            peers(path, options.n)
        else:
            roofline(matrix, options.n)
            restarts(matrix, options.n)
            against_numpy(matrix, options.n)


if __name__ == "__main__":
    main()
