"""Measure what a scan of a small matrix costs beyond its product, in milliseconds.

    python bench/small.py [--n 2000] [--runs 10] [--clusters 3] [--times 200] [--dir FOLDER]

One JSON line for a store on disk, one for an array in memory. The product alone is computed by the kernel of a scan on
the tiles in memory, on as many threads as there are cores; the overhead is a scan minus its product: planning, reading,
scheduling, combining. Single scans and products alternate, and the best of each counts. The time of updates is measured
by a bundle of fcm1 runs itself, a mean over its iterations, the best of several bundles. Processor times (cpu) are
those of all threads of the process; they depend less on other work on the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cmeans import dense, line, make_store

from dasrel.cmeans.bundle import BundleResults, iterate
from dasrel.cmeans.run_state import RunState
from dasrel.cmeans.starts import first_starts
from dasrel.engine.relation import Relation, relation
from dasrel.kernels import products
from dasrel.partition.run import Run, grid
from dasrel.util import parallel

ITERATIONS = 40


def product(D: Relation, columns: Any, pool: ThreadPoolExecutor) -> None:
    """Compute the products of every tile with these columns, and nothing else: no sums of tiles, no planning."""
    layout = D.matrix.layout

    def multiply(place: tuple[int, int]) -> None:
        i, j = place
        tile = D.matrix.files.read_checked(i, j)
        strips = products.Strips(columns[:, layout.span(i)], columns[:, layout.span(j)])
        sums = [np.zeros(strips.rows.shape), np.zeros(strips.columns.shape)]
        products.add_products(tile, [(D.view, strips)], sums[:1], None if i == j else sums[1:])

    list(pool.map(multiply, layout.tiles()))


def bundle(D: Relation, runs: list[Run]) -> BundleResults:
    """Measure exactly ITERATIONS iterations of the runs."""
    results = BundleResults(runs, keep_all=False)
    starts = first_starts(D, runs, [0.0] * len(runs))
    results.begin([RunState(run, k, start, 0.0) for k, (run, start) in enumerate(zip(runs, starts, strict=True))])
    iterate(D, results, save=lambda: None, memory=2**30)
    assert len(results.columns) == ITERATIONS
    return results


def clocks() -> Any:
    """Return the wall time and the processor time of all threads, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def measure(source: str, D: Relation, runs: list[Run], times: int) -> None:
    """Print the JSON line of one matrix."""
    width = sum(run.n_clusters for run in runs)
    columns = np.random.default_rng(0).random((width, D.n_objects)).astype(D.matrix.dtype)
    bundle(D, runs)  # checksums, maps, and what is made once in a process
    updates = [bundle(D, runs).update_seconds / ITERATIONS for _ in range(5)]
    scans, products = [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in range(times):
            began = clocks()
            D.left(columns)
            scans.append(clocks() - began)
            with parallel.single_threaded_blas():
                began = clocks()
                product(D, columns, pool)
                products.append(clocks() - began)
    (scan_ms, scan_cpu_ms), (product_ms, product_cpu_ms) = (1000 * np.min(found, axis=0) for found in (scans, products))
    found = {
        "scan_ms": scan_ms, "product_ms": product_ms, "rest_ms": scan_ms - product_ms, "goal_ms": 3.0,
        "scan_cpu_ms": scan_cpu_ms, "product_cpu_ms": product_cpu_ms, "rest_cpu_ms": scan_cpu_ms - product_cpu_ms,
        "median_scan_ms": 1000 * np.median(scans, axis=0)[0], "updates_ms": 1000 * min(updates),
    }  # fmt: skip
    line(
        bench="a scan beyond its product", source=source, n=D.n_objects, columns=width,
        tiles=len(D.matrix.layout.tiles()), **{name: round(float(value), 2) for name, value in found.items()},
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        matrix = make_store(Path(folder) / "small.zarr", given.n)
        runs = grid(
            "fcm1",
            given.clusters,
            fuzzifier=2.0,
            init="random",
            accelerate=False,
            n_init=given.runs,
            max_iter=ITERATIONS,
            tol=0,
        )
        measure("store", relation(matrix), runs, given.times)
        measure("array", relation(dense(matrix, "float32"), kind="squared-distance"), runs, given.times)


if __name__ == "__main__":
    main()
