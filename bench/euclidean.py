"""Measure the cost of spectrum and euclideanize in scans and seconds, against dense and other solvers.

    python bench/euclidean.py [--n 20480] [--only lanczos_scans lanczos_seconds] [--dir FOLDER]

One JSON line per measurement, all from the same run. Each part is a function in PARTS; it gets a folder for its stores
and n, and prints its lines. Stores are uniform noise, the hardest case for Lanczos, unless a line names another.
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
from scan import past_the_cache, random_store, write_store
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from dasrel import watch
from dasrel.engine.relation import Relation, relation
from dasrel.geometry.euclidean import euclideanize
from dasrel.geometry.lanczos import Search, lanczos
from dasrel.store.matrix import Matrix

DENSE = 4096
"""Largest n at which NumPy's dense eigenvalues are timed; beyond it the time is scaled by the cube."""
REFERENCE_SCANS = {"digits Simpson": (5, 6, 8), "uniform noise": (25, 36, 61)}
"""Scans of a dense block Lanczos with block 8 to residuals of 1e-2, 1e-3 and 1e-6: on Simpson dissimilarities of
handwritten digits (n = 1839), and on uniform noise of n = 4000. Two more are allowed."""


def line(**found: Any) -> None:
    print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found.items()}), flush=True)


def points_store(path: Path, n: int) -> Matrix:
    """Write the largest coordinate difference between points in ten groups: a metric, but not a Euclidean one."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(n, 8)) + 4 * rng.normal(size=(10, 8))[rng.integers(0, 10, n)]
    return write_store(path, n, "distance", lambda r, c: cdist(points[r], points[c], "chebyshev"))


def digits_store(path: Path, n: int) -> Matrix:
    """Write Simpson similarities of scikit-learn's digits: common pixels over the smaller number of pixels."""
    ink = (load_digits().data[:n] > 7.5).astype(np.float32)
    size = ink.sum(axis=1)
    return write_store(
        path, len(ink), "similarity", lambda r, c: ink[r] @ ink[c].T / np.minimum(size[r][:, None], size[c][None, :])
    )


def lanczos_scans(folder: Path, n: int) -> None:
    """Print the scans to the lowest eigenvalue on structured data and on noise."""
    some = min(n, 4000)
    for data, matrix in (
        ("digits Simpson", digits_store(folder / "digits.zarr", n)),
        ("uniform noise", random_store(folder / "noise.zarr", some, "squared-distance")),
    ):
        seen = relation(matrix)
        for tol, reference in zip((1e-2, 1e-3, 1e-6), REFERENCE_SCANS[data], strict=True):
            with watch() as meter:
                found = lanczos(seen.gram, matrix.n_objects, search=Search(tol=tol))
            line(
                bench="lanczos scans", data=data, n=matrix.n_objects, tol=tol, scans=meter.scans,
                reference_scans=reference, within=meter.scans <= reference + 2, stopped=found.stopped,
                lowest=float(found.lowest.values[0]),
            )  # fmt: skip


def lanczos_seconds(folder: Path, n: int) -> None:
    """Print the seconds to the lowest eigenvalue at a residual of 1e-3, of ARPACK on the same relation and of NumPy.

    With all tiles in the page cache, and with all of them read from disk at every scan, as of a larger matrix.
    """
    matrix = random_store(folder / "seconds.zarr", n, "squared-distance")
    cached, from_disk = relation(matrix), relation(past_the_cache(matrix.store))
    for seen in (cached, from_disk):
        seen.gram(np.ones((n, 1)))  # checksums; the tiles are in the page cache from here on

    def ours(seen: Relation) -> tuple[float, Any]:
        found = lanczos(seen.gram, n, search=Search(tol=1e-3, vectors=True))
        return float(found.lowest.values[0]), found.lowest.vectors

    def arpack(seen: Relation) -> tuple[float, Any]:
        operator = LinearOperator((n, n), matvec=seen.gram, matmat=seen.gram, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)
        values, vectors = eigsh(operator, k=1, which="SA", tol=1e-3, v0=start)
        return float(values[0]), vectors

    small = min(n, DENSE)
    dense = np.random.default_rng(0).random((small, small))
    dense = np.triu(dense, 1) + np.triu(dense, 1).T
    dense -= dense.mean(axis=0)
    dense = -0.5 * (dense - dense.mean(axis=1, keepdims=True))
    began = time.perf_counter()
    np.linalg.eigvalsh(dense)
    measured = time.perf_counter() - began
    scaled = measured * (n / small) ** 3
    for tiles, seen, times in (("in the page cache", cached, 3), ("from disk", from_disk, 1)):
        best: dict[str, float] = {}
        results: dict[str, dict[str, Any]] = {}
        for _ in range(times):  # in turns, so that whatever else the machine does falls on both
            for name, run in (("lanczos", ours), ("eigsh", arpack)):
                with watch() as meter:
                    began = time.perf_counter()
                    value, vectors = run(seen)
                    best[name] = min(best.get(name, np.inf), time.perf_counter() - began)
                residual = float(np.linalg.norm(cached.gram(vectors) - value * vectors))
                results[name] = {"scans": meter.scans, "lowest": value, "relative_residual": residual / abs(value)}
        for name in best:
            line(
                bench="lowest eigenvalue, residual 1e-3", solver=name, n=n, tiles=tiles, seconds=best[name],
                **results[name],
            )  # fmt: skip
        line(
            bench="lowest eigenvalue, ratios", n=n, tiles=tiles, eigvalsh_measured_at=small,
            eigvalsh_measured_seconds=measured, eigvalsh_seconds_scaled_by_the_cube=scaled,
            times_faster_than_eigvalsh=scaled / best["lanczos"],
            times_faster_than_eigsh=best["eigsh"] / best["lanczos"],
            times_fewer_scans_than_eigsh=results["eigsh"]["scans"] / results["lanczos"]["scans"],
        )  # fmt: skip


def ultrametric_gamma(folder: Path, n: int) -> None:
    """Print scans and seconds to the gamma of the ultrametric; the tree and the stress take a scan each."""
    matrix = random_store(folder / "gamma.zarr", n, "squared-distance")
    for tol in (1e-2, 1e-3, 1e-4):
        gamma_line(matrix, "uniform noise", "ultrametric", tol=tol, floor_zeros=0.01)
    matrix = points_store(folder / "points.zarr", n)
    for tol in (1e-2, 1e-3, 1e-4):
        gamma_line(matrix, "points, largest coordinate difference", "ultrametric", tol=tol)
    matrix = digits_store(folder / "digits.zarr", n)
    gamma_line(matrix, "digits Simpson", "ultrametric", tol=1e-4, floor_zeros=0.01)


def fit_gamma(folder: Path, n: int) -> None:
    """Print scans and seconds to alpha and gamma of the elementwise methods."""
    matrix = random_store(folder / "fit.zarr", min(n, 4000), "squared-distance")
    digits = digits_store(folder / "digits.zarr", n)
    for method in ("power", "exponential", "log"):
        gamma_line(matrix, "uniform noise", method, tol=1e-3, floor_zeros=0.01, max_scans=400)
        gamma_line(digits, "digits Simpson", method, tol=1e-3, floor_zeros=0.01, max_scans=400)


def gamma_line(matrix: Matrix, data: str, method: str, **options: Any) -> None:
    with watch() as meter:
        began = time.perf_counter()
        found = euclideanize(matrix, method=method, **options)
        seconds = time.perf_counter() - began
    line(
        bench="gamma", method=method, data=data, n=matrix.n_objects, **options, scans=meter.scans, seconds=seconds,
        gamma=found.gamma, alpha=found.alpha, relative_residual=found.residual / max(abs(found.lambda_min), 1e-300),
        converged=found.converged, ratio=found.ratio,
    )  # fmt: skip


PARTS: list[Callable[[Path, int], None]] = [lanczos_scans, lanczos_seconds, ultrametric_gamma, fit_gamma]


def main() -> None:
    names = [part.__name__ for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_480)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--dir", type=Path, help="where the stores are written")
    options = parser.parse_args()
    for part in PARTS:
        if part.__name__ in options.only:
            with tempfile.TemporaryDirectory(dir=options.dir) as folder:
                part(Path(folder), options.n)


if __name__ == "__main__":
    main()
