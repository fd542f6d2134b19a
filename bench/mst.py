"""Measure the minimum spanning tree and the ultrametric against Prim in NumPy and against SciPy, in one run.

    python bench/mst.py [--n 20480] [--scipy-n 8192] [--tree-n 1000000] [--dir FOLDER]

One JSON line per measurement. The matrix is float32, in the page cache; the peers have it in memory. It is uniform
noise, or the Euclidean distances of points in ten dimensions, of which a tenth are outliers ("points"), or such
distances rounded to whole numbers ("ties"): harder for us, the same for NumPy. Prim in NumPy is the textbook loop: the
nearest object, then one row. Times are the best of several, measured alternately.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse.csgraph
from scan import random_store, write_store  # the bench next to this one
from scipy.spatial.distance import cdist

from dasrel import watch
from dasrel.geometry.tree import Tree, minimum_spanning_tree, ultrametric
from dasrel.store.matrix import Matrix


def numpy_prim(D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Run Prim's algorithm on a matrix in memory, in plain NumPy; ties in any order."""
    n = len(D)
    near, end = D[0].copy(), np.zeros(n, dtype=np.int64)
    outside = np.ones(n, dtype=bool)
    outside[0] = False
    near[0] = np.inf
    weights, edges = np.empty(n - 1, dtype=D.dtype), np.empty((n - 1, 2), dtype=np.int64)
    for step in range(n - 1):
        k = int(near.argmin())
        weights[step], edges[step] = near[k], (end[k], k)
        outside[k] = False
        row = D[k]
        nearer = row < near
        nearer &= outside
        np.copyto(near, row, where=nearer)
        end[nearer] = k
        near[k] = np.inf
    return edges, weights


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def best_in_turns(functions: list[Callable[[], Any]], times: int) -> list[tuple[float, Any]]:
    """Return the shortest time of each, measured alternately so that other work on the machine slows all of them."""
    best: list[tuple[float, Any]] = [(float("inf"), None)] * len(functions)
    for _ in range(times):
        for k, function in enumerate(functions):
            best[k] = min(best[k], timed(function), key=lambda pair: pair[0])
    return best


def in_memory(matrix: Matrix) -> np.ndarray:
    D = np.empty(matrix.shape, dtype=matrix.dtype)
    for i, j in matrix.layout.tiles():
        tile, rows, columns = matrix.files.read(i, j), matrix.layout.span(i), matrix.layout.span(j)
        D[rows, columns] = tile
        D[columns, rows] = tile.T
    return D


def random_tree(n: int) -> Tree:
    """Return a tree in which each object is joined to a random earlier one by an edge of random weight."""
    rng = np.random.default_rng(0)
    edges = np.column_stack([(rng.random(n - 1) * np.arange(1, n)).astype(np.int64), np.arange(1, n)])
    return Tree(edges[rng.permutation(n - 1)], np.sort(rng.random(n - 1)), (2.0, 0, 1), "squared-distance")


def tell(**measured: Any) -> None:
    rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in measured.items()}
    print(json.dumps(rounded), flush=True)


def points_store(path: Path, n: int, whole_numbers: bool) -> Matrix:
    """Write Euclidean distances of points, without the checks of an import."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 10)) + 8 * rng.integers(0, 2, (n, 10))
    X[rng.random(n) < 0.1] *= 4

    def tile_of(rows: slice, columns: slice) -> Any:
        tile = cdist(X[rows], X[columns])
        tile = np.rint(tile) if whole_numbers else tile
        return np.triu(tile, 1) if rows == columns else tile

    return write_store(path, n, "distance", tile_of)


def measure_trees(folder: Path, data: str, n: int, against_scipy: bool) -> None:
    path = folder / f"{data}-{n}.zarr"
    matrix = random_store(path, n, "distance") if data == "noise" else points_store(path, n, data == "ties")
    D = in_memory(matrix)
    minimum_spanning_tree(matrix)  # the first read verifies the checksums
    with watch() as meter:
        (ours, tree), (prim, (_, weights)) = best_in_turns(
            [lambda: minimum_spanning_tree(matrix), lambda: numpy_prim(D)], 3
        )
        scans = meter.scans // 3
    same = bool(np.array_equal(np.sort(weights), tree.weights))
    line = {"bench": "mst", "data": data, "n": n, "seconds": ours, "scans": scans, "numpy_prim_seconds": prim,
            "ratio_numpy_prim": ours / prim, "equal_weights": same}  # fmt: skip
    if against_scipy:
        theirs, _ = timed(lambda: scipy.sparse.csgraph.minimum_spanning_tree(D))
        line |= {"scipy_seconds": theirs, "times_faster_than_scipy": theirs / ours}
    tell(**line)


def measure_ultrametric(n: int, columns: int = 10) -> None:
    tree = random_tree(n)
    order, _ = timed(lambda: tree.prim)
    ranges, _ = timed(lambda: tree.merges)
    delta = ultrametric(tree)
    V = np.random.default_rng(0).normal(size=(n, columns))
    U = np.ascontiguousarray(V.T)
    product = best_in_turns([lambda: delta.left(U)], 3)[0][0]
    factor, _ = timed(lambda: delta.groups)
    solve, found = best_in_turns([lambda: delta.solve(V)], 3)[0]
    centred = V - V.mean(axis=0)
    residual = float(np.abs(delta.gram(found) - centred).max() / np.abs(centred).max())
    tell(bench="ultrametric", n=n, columns=columns, vat_order_seconds=order, merges_seconds=ranges,
         product_seconds=product, factor_seconds=factor, solve_seconds=solve, solve_residual=residual)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_480)
    parser.add_argument("--scipy-n", type=int, default=8_192, help="SciPy sorts all n^2 edges: 4 GB at 8,192")
    parser.add_argument("--tree-n", type=int, default=1_000_000)
    parser.add_argument(
        "--dir", type=Path, default=None, help="where the stores are made; a temporary folder if not given"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        for data in ("noise", "points", "ties"):
            measure_trees(Path(folder), data, given.n, given.n == given.scipy_n)
        if given.n != given.scipy_n:
            measure_trees(Path(folder), "noise", given.scipy_n, True)
    measure_ultrametric(given.tree_n)


if __name__ == "__main__":
    main()
