"""Measure one scan against NumPy in memory, plain dask.array and reading the raw files, in one run.

    python bench/scan.py [--n 20480] [--columns 4 16 64 256] [--kind squared-distance] [--dir FOLDER]
    python bench/scan.py --table          seconds per tile for 5k, 10k, 20k and 40k objects

One JSON line per measurement; ratios are ours over theirs, except ratio_dask_array (theirs over ours) and
fraction_of_raw_read (their seconds over ours). ratio_threads compares a cluster with local threads. Programs that hold
the matrix in memory are skipped (null) above 24,576 objects. Cold means that the tile files were dropped from the page
cache by posix_fadvise just before: "cold" is the first scan of a matrix that will stay in the cache, "cold, past the
cache" any scan of one that is larger than memory. Times are the best of several.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import Policy, Writing, open_matrix
from dasrel.engine.readahead import tile_cache
from dasrel.engine.relation import relation
from dasrel.kernels.checks import TileStatistics
from dasrel.store.matrix import Matrix
from dasrel.store.tile_files import checked_ids
from dasrel.store.writer import begin_store, check_new_store, new_layout, new_manifest
from dasrel.util import parallel

KEYS = (
    "bench", "n", "columns", "cache", "seconds", "ratio_numpy_f32", "ratio_numpy_f64", "ratio_dask_array",
    "fraction_of_raw_read", "anonymous_mb", "scheduler", "ratio_threads",
)  # fmt: skip
IN_MEMORY = 24_576
TABLE_TILE = 1280


def random_store(path: Path, n: int, kind: str, tile: int | None = None) -> Matrix:
    """Write a store of uniform noise, symmetric, zero diagonal, without the checks of an import."""
    rng = np.random.default_rng(0)

    def tile_of(rows: slice, columns: slice) -> Any:
        values = rng.random((rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)
        return np.triu(values, 1) if rows == columns else values

    return write_store(path, n, kind, tile_of, tile)


def write_store(
    path: Path, n: int, kind: str, tile_of: Callable[[slice, slice], Any], side: int | None = None
) -> Matrix:
    """Write a store tile by tile, symmetric by its upper triangle, without the checks of an import."""
    writing = Writing(force=True, tile=side)
    state = check_new_store(path, kind, Policy(), writing)
    manifest = new_manifest(new_layout(n, writing), kind, Policy(), writing, {})
    writer = begin_store(path, state, manifest, checked_ids(None, n), writing)
    for i, j in writer.layout.tiles():
        tile = tile_of(writer.layout.span(i), writer.layout.span(j)).astype(np.float32)
        if i == j:
            tile = np.triu(tile) + np.triu(tile, 1).T
        record = TileStatistics(float(tile.min()), float(tile.max()), float(tile.sum(dtype=float)), tile.size)
        if i == j:
            own = np.diagonal(tile)
            record.diagonal_minimum, record.diagonal_maximum = float(own.min()), float(own.max())
        writer.files.write(i, j, tile, record)
    os.sync()
    return writer.finish()


def best(function: Callable[..., Any], *arguments: Any, times: int, cold: list[str] | None = None) -> float:
    """Return the shortest of several runs, in seconds; these files are dropped from the page cache before each."""
    shortest = float("inf")
    for _ in range(times):
        drop(cold or [])
        began = time.perf_counter()
        function(*arguments)
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


def tile_files(matrix: Matrix) -> list[str]:
    return [matrix.files.file(i, j) for i, j in matrix.layout.tiles()]


def drop(files: list[str]) -> None:
    """Drop the files from the page cache."""
    for name in files:
        descriptor = os.open(name, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def past_the_cache(path: Path) -> Matrix:
    """Return the matrix as it is read when it is larger than memory: past the page cache."""
    matrix = open_matrix(path)
    tile_cache(matrix, page_cache=0)
    return matrix


def raw_read(files: list[str]) -> None:
    """Read the files with four threads and do nothing with them."""

    def read(name: str) -> None:
        buffer = bytearray(4 * 2**20)
        descriptor = os.open(name, os.O_RDONLY)
        offset = 0
        while done := os.preadv(descriptor, [buffer], offset):
            offset += done
        os.close(descriptor)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, files))


def anonymous() -> float:
    """Return the anonymous resident memory of this process in MB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


@contextlib.contextmanager
def peak_anonymous() -> Iterator[dict[str, float]]:
    """Sample the largest anonymous memory above that at the start, every 2 ms."""
    result = {"mb": 0.0}
    base = anonymous()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            result["mb"] = max(result["mb"], anonymous() - base)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield result
    finally:
        done.set()
        watcher.join()


def memory_of_a_scan(path: Path, columns: int) -> float:
    """Measure in a process of its own, which holds nothing else."""
    out = subprocess.run(
        [sys.executable, __file__, "--memory-of", str(path), "--columns", str(columns)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(out.stdout)


def measure_memory(path: str, columns: int) -> None:
    matrix = open_matrix(path)
    seen = relation(matrix)
    with peak_anonymous() as peak:
        U = np.random.default_rng(0).random((columns, matrix.n_objects), dtype=np.float32)
        seen.left(U)
    print(round(peak["mb"], 1))


def line(**found: Any) -> None:
    print(json.dumps({key: _rounded(found.get(key)) for key in KEYS}), flush=True)


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def compare(path: Path, n: int, all_columns: list[int], kind: str) -> None:
    from distributed import Client, LocalCluster

    matrix = random_store(path, n, kind)
    files = tile_files(matrix)
    seen = relation(matrix)
    rng = np.random.default_rng(1)
    dense = None
    if n <= IN_MEMORY:
        dense = np.empty((n, n), dtype=np.float32)
        for i, j in matrix.layout.tiles():
            rows, columns = matrix.layout.span(i), matrix.layout.span(j)
            dense[rows, columns] = matrix.read_tile(i, j)
            dense[columns, rows] = matrix.read_tile(i, j).T
        if kind == "distance":
            dense *= dense
    local: dict[int, float] = {}
    numpy32: dict[int, float] = {}
    lines: list[dict[str, Any]] = []
    for k in all_columns:
        U = rng.random((k, n), dtype=np.float32)
        seen.left(U)
        times = 7 if n <= IN_MEMORY else 3
        # Peers and ours take turns, so that whatever else the machine does falls on all of them.
        if dense is not None:
            numpy32[k] = best(np.matmul, U, dense, times=times)
        local[k] = best(seen.left, U, times=times)
        if dense is not None:
            numpy32[k] = min(numpy32[k], best(np.matmul, U, dense, times=times))
        local[k] = min(local[k], best(seen.left, U, times=times))
        found: dict[str, Any] = {"n": n, "columns": k, "cache": "warm", "seconds": local[k], "scheduler": "threads"}
        if dense is not None:
            found["ratio_numpy_f32"] = local[k] / numpy32[k]
        found["ratio_dask_array"] = plain_dask(path, U) / local[k] if k == min(all_columns) and n <= IN_MEMORY else None
        found["anonymous_mb"] = memory_of_a_scan(path, k)
        lines.append(found)
    dense64 = None if dense is None else dense.astype(np.float64)
    dense = None
    for found in lines:
        if dense64 is not None:
            U64 = rng.random((found["columns"], n))
            found["ratio_numpy_f64"] = found["seconds"] / best(np.matmul, U64, dense64, times=3)
        line(bench="scan", **found)
    dense64 = None
    larger = past_the_cache(path)
    relation(larger).row_sums()  # checksums
    for k in all_columns:
        U = rng.random((k, n), dtype=np.float32)
        caches = {"cold": open_matrix, "cold, past the cache": lambda _: larger}
        raw, ours = dict.fromkeys(caches, float("inf")), dict.fromkeys(caches, float("inf"))
        for _ in range(8):  # in turns, and as often: the disk's speed changes from moment to moment
            for cache, opened in caches.items():
                tile_cache(matrix).close_maps()  # what is mapped stays in the page cache
                raw[cache] = min(raw[cache], best(raw_read, files, times=1, cold=files))
                one = opened(path)
                ours[cache] = min(ours[cache], best(relation(one).left, U, times=1, cold=files))
                tile_cache(one).close_maps()
        for cache, seconds in ours.items():
            line(
                bench="scan", n=n, columns=k, cache=cache, seconds=seconds, fraction_of_raw_read=raw[cache] / seconds,
                scheduler="threads",
            )  # fmt: skip
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", scheduler_port=0) as workers,
        Client(workers, set_as_default=False) as client,
    ):
        for k in all_columns:
            U = rng.random((k, n), dtype=np.float32)
            threads = pinned = float("inf")
            for turn in range(8):  # the first brings tiles to where they are wanted
                here = best(seen.left, U, times=1)
                with parallel.bound_to(client):
                    there = best(seen.left, U, times=1)
                if turn:
                    threads, pinned = min(threads, here), min(pinned, there)
            line(
                bench="scan", n=n, columns=k, cache="pinned", seconds=pinned, ratio_threads=pinned / threads,
                scheduler="distributed, 2 worker processes of 1 thread",
            )  # fmt: skip


def plain_dask(path: Path, U: np.ndarray[Any, Any]) -> float:
    """Multiply by `dask.array.from_zarr` of the same store; its lower triangle is NaN, which costs it little."""
    import dask.array as da

    array = da.from_zarr(str(path), component="values")
    columns = da.from_array(U, chunks=(U.shape[0], array.chunks[0][0]))
    return best(lambda: (columns @ array).compute(scheduler="threads"), times=2)


def table(folder: Path, kind: str) -> None:
    """Print the time per tile against n, for equal tiles; the fixed cost of a scan shows in the first lines."""
    for n in (5_120, 10_240, 20_480, 40_960):
        matrix = random_store(folder / "table.zarr", n, kind, tile=TABLE_TILE)
        seen = relation(matrix)
        for columns in (4, 16, 64):
            U = np.random.default_rng(1).random((columns, n), dtype=np.float32)
            seen.left(U)
            seconds = best(seen.left, U, times=5)
            print(json.dumps({
                "bench": "scan against n", "n": n, "columns": columns, "cache": "warm", "tile": matrix.tile,
                "seconds": round(seconds, 4),
                "milliseconds_per_tile": round(1000 * seconds / len(matrix.layout.tiles()), 3), "scheduler": "threads",
            }), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_480)
    parser.add_argument("--columns", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--kind", choices=("squared-distance", "distance"), default="squared-distance")
    parser.add_argument("--dir", type=Path, help="where the store is written (the disk that is measured)")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        measure_memory(options.memory_of, options.columns[0])
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        if options.table:
            table(Path(folder), options.kind)
        else:
            compare(Path(folder) / "bench.zarr", options.n, options.columns, options.kind)


if __name__ == "__main__":
    main()
