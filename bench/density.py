"""Measure neighbours, HDBSCAN and medoids from a store against a scan and against other programs in memory.

    python bench/density.py [--n 16384] [--pam-n 8192] [--clusters 10] [--large 0] [--dir FOLDER]

One JSON line per measurement. Objects are points of 20 overlapping clouds in ten dimensions, their distances float32 in
a store. Neighbours are compared with a scan with four columns in the same run, HDBSCAN with scikit-learn's and, if it
is installed, hdbscan's on the matrix in memory, medoids with the best of ten starts of kmedoids' fasterpam on three
sets.
`--large N` measures HDBSCAN of a store of N objects (uniform noise), and its peak of anonymous memory.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from mst import in_memory  # the benches next to this one
from oneclass import anonymous_peak
from scan import random_store
from sklearn.cluster import HDBSCAN
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

import dasrel
from dasrel.engine.relation import product_consumer
from dasrel.engine.scan import scan
from dasrel.kernels.products import View


def say(**line: Any) -> None:
    print(json.dumps({"bench": "density", **line}), flush=True)


def timed(function: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return round(time.perf_counter() - began, 4), result


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def clouds(n: int, dimensions: int = 10, spread: float = 4.0) -> Any:
    return make_blobs(n, n_features=dimensions, centers=20, cluster_std=spread, random_state=0)[0]


def stored(folder: Path, name: str, points: Any, metric: str = "euclidean") -> dasrel.Matrix:
    np.save(folder / "points.npy", points)
    dasrel.pairwise(str(folder / "points.npy"), str(folder / f"{name}-{len(points)}.zarr"), metric=metric)
    return dasrel.open_matrix(str(folder / f"{name}-{len(points)}.zarr"))


def measure_neighbours(matrix: dasrel.Matrix) -> None:
    columns = np.random.default_rng(0).random((4, matrix.n_objects), dtype=np.float32)
    consumer = product_consumer(matrix, [(View(matrix.kind), columns)])
    scan(matrix, [consumer])  # the first read verifies the checksums
    four = min(timed(lambda: scan(matrix, [consumer]))[0] for _ in range(3))
    for k in (5, 15):
        seconds = min(timed(lambda: dasrel.neighbours(matrix, k=k))[0] for _ in range(3))  # noqa: B023
        say(what="neighbours", n=matrix.n_objects, k=k, seconds=seconds, of_a_scan=round(seconds / max(four, 1e-9), 2))


def measure_hdbscan(matrix: dasrel.Matrix) -> None:
    n, run = matrix.n_objects, dasrel.DensityRun(15, 5)
    seconds, found = min((timed(lambda: dasrel.hdbscan(matrix, run)) for _ in range(2)), key=lambda pair: pair[0])
    grid = [dasrel.DensityRun(size, samples) for size in (5, 15, 50) for samples in (2, 5, 10)]
    with warnings.catch_warnings(action="ignore"):  # some settings may have noise only
        together, _ = timed(lambda: dasrel.hdbscan(matrix, grid))
    D = in_memory(matrix)
    theirs = HDBSCAN(min_cluster_size=15, min_samples=5, metric="precomputed", algorithm="brute", copy=False)
    sklearn_seconds, _ = timed(lambda: theirs.fit(D))
    line = {"scikit_learn_seconds": sklearn_seconds, "of_scikit_learn": round(seconds / sklearn_seconds, 3)}
    line["ari"] = round(adjusted_rand_score(found.best.labels, theirs.labels_), 4)
    if (module := optional("hdbscan")) is not None:
        other = module.HDBSCAN(min_cluster_size=15, min_samples=5, metric="precomputed")
        line["hdbscan_seconds"], _ = timed(lambda: other.fit(D.astype(np.float64)))
    say(what="hdbscan", n=n, seconds=seconds, scans=found.scans, nine_settings_seconds=together, **line)


def measure_medoids(matrix: dasrel.Matrix, name: str, clusters: int) -> None:
    runs = dasrel.MedoidRun(clusters)
    seconds, found = timed(lambda: dasrel.kmedoids(matrix, runs))
    line: dict[str, Any] = {"seconds": seconds, "scans": found.scans, "batch": found.batch}
    if (module := optional("kmedoids")) is not None:
        D = in_memory(matrix)
        fits = [timed(lambda: module.fasterpam(D, clusters, init="random", random_state=seed)) for seed in range(10)]  # noqa: B023
        best = min(float(fit.loss) for _, fit in fits)
        line["ten_fasterpam_seconds"] = round(sum(one for one, _ in fits), 3)
        line["of_their_time"] = round(seconds / line["ten_fasterpam_seconds"], 3)
        line["objective_of_theirs"] = round(found.best.objective / best, 5)
    say(what="medoids", data=name, n=matrix.n_objects, clusters=clusters, **line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=16_384)
    parser.add_argument("--pam-n", type=int, default=8_192)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as scratch:
        folder = Path(scratch)
        matrix = stored(folder, "clouds", clouds(given.n))
        measure_neighbours(matrix)
        measure_hdbscan(matrix)
        rng = np.random.default_rng(1)
        sets = {
            "overlapping clouds": (clouds(given.pam_n), "euclidean"),
            "city blocks": (clouds(given.pam_n, 6, 2.0), "cityblock"),
            "noise": (rng.random((given.pam_n, 5)), "euclidean"),
        }
        for name, (points, metric) in sets.items():
            measure_medoids(stored(folder, name, points, metric), name, given.clusters)
        if given.large:
            large = random_store(folder / "large.zarr", given.large, "distance")
            with warnings.catch_warnings(action="ignore"):
                seconds, _ = timed(lambda: dasrel.hdbscan(large, dasrel.DensityRun(15, 5)))
            say(what="hdbscan, large", n=given.large, seconds=seconds, anonymous_bytes=anonymous_peak())
            seconds, medoids = timed(lambda: dasrel.kmedoids(large, dasrel.MedoidRun(given.clusters)))
            say(
                what="medoids, large",
                n=given.large,
                seconds=seconds,
                scans=medoids.scans,
                anonymous_bytes=anonymous_peak(),
            )


if __name__ == "__main__":
    main()
