"""Measure outliers at ten widths in one bundle against ten fits and a one-class SVM, the exponential, and segments.

    python bench/oneclass.py [--n 20480] [--widths 10] [--large 0] [--segments 20000] [--dir FOLDER]

One JSON line per measurement. Objects are points of three Gaussian clouds in eight dimensions with 1 % of noise, their
distances float32 in a store. "one by one" are the same widths one after the other. The SVM is scikit-learn's
`OneClassSVM(kernel="precomputed")` on the kernel of one width, float64 in memory, whose computation is not timed.
`--large N` measures one width of a store of N objects (uniform noise), and its peak of anonymous memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from mst import in_memory  # the benches next to this one
from scan import random_store
from sklearn.svm import OneClassSVM

import dasrel
from dasrel.kernels.exponential import exponential
from dasrel.oneclass.segments import segment_clusters


def say(**line: Any) -> None:
    print(json.dumps({"bench": "oneclass", **line}), flush=True)


def timed(function: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return round(time.perf_counter() - began, 3), result


def anonymous_peak() -> int:
    """Return the anonymous memory of this process in bytes, now."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def clouds(n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(n, 8)) + 5 * rng.normal(size=(3, 8))[rng.integers(0, 3, n)]
    points[: n // 100] = rng.uniform(-15, 15, (n // 100, 8))
    return points


def measure_exponential() -> None:
    """One core: values of a panel in the cache per second, compiled and by NumPy."""
    x = -np.random.default_rng(0).random((256, 4096), dtype=np.float32) * 20
    out = np.empty_like(x)
    for name, run in (("compiled", lambda: exponential(x, 1.0, out)), ("numpy", lambda: np.exp(x, out=out))):
        seconds = min(timed(lambda: [run() for _ in range(20)])[0] for _ in range(5))  # noqa: B023
        say(what="exponential", how=name, values_per_second=round(20 * x.size / seconds))


def measure_widths(folder: Path, n: int, count: int) -> None:
    points = folder / "points.npy"
    np.save(points, clouds(n))
    store = folder / f"clouds-{n}.zarr"
    if not store.exists():
        dasrel.pairwise(str(points), str(store), metric="euclidean")
    matrix = dasrel.open_matrix(str(store))
    runs = [dasrel.OneClassRun(float(width), tol=1e-5) for width in np.geomspace(0.7, 5, count)]
    dasrel.one_class(matrix, runs[0])  # the first read verifies the checksums
    together, found = timed(lambda: dasrel.one_class(matrix, runs))
    alone, single = timed(lambda: [dasrel.one_class(matrix, run) for run in runs])
    D = in_memory(matrix)
    K = np.exp(D.astype(np.float64) ** 2 / (-2 * float(runs[count // 2].width) ** 2))
    del D
    svm, _ = timed(lambda: OneClassSVM(kernel="precomputed", nu=0.01).fit(K))
    say(
        what="widths in one bundle", n=n, widths=count, seconds=together, scans=found.scans,
        one_by_one_seconds=alone, one_by_one_scans=sum(one.scans for one in single), ratio=round(alone / together, 2),
        svm_seconds_one_width=svm, anonymous_bytes=anonymous_peak(),
        kernel_values_per_second=round(n * n / 2 * sum(one.n_iter for one in found.typicalities) / together),
    )  # fmt: skip


def measure_segments(folder: Path, n: int) -> None:
    store = folder / f"clouds-{n}.zarr"
    if not store.exists():
        np.save(folder / "points.npy", clouds(n))
        dasrel.pairwise(str(folder / "points.npy"), str(store), metric="euclidean")
    found = dasrel.one_class(str(store), dasrel.OneClassRun(2.0))
    cut = found.best.outliers(0.02)
    seconds, made = timed(lambda: segment_clusters(found.relation, found.best, cut, check=False))
    say(
        what="segments", n=n, kept=int((~cut.rejected).sum()), pairs=made.tested, clusters=made.n_clusters,
        complete=made.complete, seconds=seconds,
    )  # fmt: skip


def measure_large(folder: Path, n: int) -> None:
    matrix = random_store(folder / f"noise-{n}.zarr", n, "distance")
    before = anonymous_peak()
    peak = [0]
    with dasrel.watch(lambda progress: peak.__setitem__(0, max(peak[0], anonymous_peak()))):
        seconds, found = timed(lambda: dasrel.one_class(matrix, dasrel.OneClassRun(0.05), memory="900MB"))
    say(what="large", n=n, seconds=seconds, scans=found.scans, anonymous_bytes=peak[0], before_bytes=before)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=20_480)
    parser.add_argument("--widths", type=int, default=10)
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--segments", type=int, default=20_000)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure_exponential()
        if given.n:
            measure_widths(folder, given.n, given.widths)
        if given.segments:
            measure_segments(folder, given.segments)
        if given.large:
            measure_large(folder, given.large)


if __name__ == "__main__":
    main()
