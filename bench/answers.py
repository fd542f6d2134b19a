"""Measure the defaults of `dasrel cluster`: starts from a sample against full restarts, and the whole command.

    python bench/answers.py [--n 20480] [--clusters 10] [--starts 20] [--default-n 16384] [--dir FOLDER]

One JSON line per measurement. A column-scan is one column multiplied with the matrix once: the work of a clustering is
their number. For each data set the ladder of fcm2 is run from a sample, then the value that it chose with as many full
restarts from k-means++ starts, which is what one value of the ladder would cost without a sample; "ladder" scales their
columns by the number of values. The last lines compare the default with ten restarts of fcm1, 20 iterations each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dasrel
from dasrel.cmeans.ladder import ENTROPY_FRACTIONS

warnings.simplefilter("ignore", dasrel.DasrelWarning)


def blobs(n: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Twelve overlapping groups in 20 dimensions, of unequal sizes."""
    middles = rng.normal(0, 2.5, (12, 20))
    which = rng.choice(12, n, p=np.arange(1, 13) / 78)
    return middles[which] + rng.normal(size=(n, 20)), "euclidean"


def communities(n: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Counts of 100 species in eight communities: Bray-Curtis."""
    bases = rng.dirichlet(np.full(100, 0.3), 8)
    shares = rng.gamma(40 * bases[rng.integers(0, 8, n)] + 1e-3)
    return rng.poisson(3000 * shares / shares.sum(axis=1, keepdims=True)).astype(float), "braycurtis"


def digits(n: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """scikit-learn's digits, each several times with noise: sets of pixels, Simpson's dissimilarity."""
    from sklearn.datasets import load_digits

    images = load_digits().data
    return (images[rng.integers(0, len(images), n)] + rng.normal(0, 2.5, (n, 64))) / 16 > 0.5, "simpson"


DATA: dict[str, Callable[[int, np.random.Generator], tuple[np.ndarray, str]]] = {
    "blobs": blobs, "communities": communities, "digits": digits,
}  # fmt: skip


def work(result: dasrel.Clustering) -> int:
    return sum(result.columns)


def compare(folder: Path, name: str, given: argparse.Namespace) -> None:
    features, metric = DATA[name](given.n, np.random.default_rng(0))
    matrix = dasrel.pairwise(features, folder / f"{name}.zarr", metric=metric)
    more: dict[str, Any] = {"n_init": given.starts, "on_negative": "heal"}
    began = time.perf_counter()
    sampled = dasrel.cluster(matrix, dasrel.grid("fcm2", given.clusters, **more))
    seconds = time.perf_counter() - began
    value = sampled.best.result.entropy_weight
    began = time.perf_counter()
    full = dasrel.cluster(matrix, dasrel.grid("fcm2", given.clusters, entropy_weight=value, init="k-means++", **more))
    full_seconds = time.perf_counter() - began
    line = {
        "bench": "answers", "data": name, "n": given.n, "clusters": given.clusters, "starts": given.starts,
        "entropy_weight": value, "scans": sampled.scans, "column_scans": work(sampled), "seconds": seconds,
        "full_scans": full.scans, "full_column_scans_one_value": work(full), "full_seconds_one_value": full_seconds,
        "column_scans_of_ladder_ratio": work(sampled) / (work(full) * len(ENTROPY_FRACTIONS)),
        "column_scans_of_one_value_ratio": work(sampled) / work(full),
        "objective_excess": sampled.best.objective / full.best.objective - 1,
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def default_command(folder: Path, n: int) -> None:
    features, metric = blobs(n, np.random.default_rng(1))
    matrix = dasrel.pairwise(features, folder / "default.zarr", metric=metric)
    plain = dasrel.grid(
        "fcm1", 5, fuzzifier=2.0, init="random", accelerate=False, n_init=10, max_iter=20, tol=0
    )  # what a default of ten restarts used to be
    ways = {"default": dasrel.grid("fcm2", 5, n_init=10), "ten restarts of fcm1": plain}
    seconds = dict.fromkeys(ways, np.inf)
    for _ in range(2):
        for what, runs in ways.items():
            began = time.perf_counter()
            dasrel.cluster(matrix, runs, judge=what == "default")
            seconds[what] = min(seconds[what], time.perf_counter() - began)
    ratio = seconds["default"] / seconds["ten restarts of fcm1"]
    print(json.dumps({"bench": "answers", "n": n, "clusters": 5, "seconds": seconds, "ratio": ratio}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_480)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--default-n", type=int, default=16_384)
    parser.add_argument("--dir", type=Path, default=None, help="where stores are made; a temporary folder by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        for name in DATA:
            compare(Path(folder), name, given)
        default_command(Path(folder), given.default_n)


if __name__ == "__main__":
    main()
