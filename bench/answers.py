"""Measure the defaults of `dasrel cluster`: their work, and how good their answers are, against full restarts.

    python bench/answers.py [--n 8192] [--clusters 10] [--starts 20] [--large-n 50000] [--pam-n 16384] [--dir FOLDER]
                            [--parts work pam large] [--data digits communities blobs strings] [--features FILE.npy]

One JSON line per measurement; all times are ratios within one run. With features of your own, distances between their
rows are one more data set, and what `large` and `pam` measure.

work      for each data set the default with so many clusters, then the setting that it chose with full restarts from
          k-means++ starts on all objects, each until no membership changes by more than 1e-5. A column-scan is one
          column multiplied with the matrix of all objects. `objective_excess` and `ari` compare the two answers;
          `ari_of_starts` says how much the best two of the full restarts agree: where it is low, the partition is not
          stable, and nothing is to be expected of `ari`
large     the seconds of the default, everything included, over those of one scan with as many columns
range     `--clusters 2-10` over a single number of clusters
pam       five clusters over one start of FasterPAM in memory (package kmedoids, left out where it is not installed)
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
from sklearn.metrics import adjusted_rand_score

import dasrel
from dasrel.engine.relation import LeftProducts, as_dissimilarity

warnings.simplefilter("ignore", dasrel.DasrelWarning)
Features = tuple[np.ndarray, str]


def blobs(n: int, rng: np.random.Generator) -> Features:
    """Twelve overlapping groups in 20 dimensions, of unequal sizes."""
    middles = rng.normal(0, 2.5, (12, 20))
    which = rng.choice(12, n, p=np.arange(1, 13) / 78)
    return middles[which] + rng.normal(size=(n, 20)), "euclidean"


def communities(n: int, rng: np.random.Generator) -> Features:
    """Counts of 100 species in eight communities: Bray-Curtis."""
    bases = rng.dirichlet(np.full(100, 0.3), 8)
    shares = rng.gamma(40 * bases[rng.integers(0, 8, n)] + 1e-3)
    return rng.poisson(3000 * shares / shares.sum(axis=1, keepdims=True)).astype(float), "braycurtis"


def digits(n: int, rng: np.random.Generator) -> Features:
    """scikit-learn's handwritten digits, each several times with noise, 64 features."""
    from sklearn.datasets import load_digits

    images = load_digits().data
    return images[rng.integers(0, len(images), n)] + rng.normal(0, 2.0, (n, 64)), "euclidean"


def strings(n: int, rng: np.random.Generator) -> Features:
    """Strings of ten families, of which 30 % of the letters have changed, by the letters that differ (Hamming)."""
    families = rng.integers(0, 4, (10, 80))
    changed = rng.random((n, 80)) < 0.3
    return np.where(changed, rng.integers(0, 4, (n, 80)), families[rng.integers(0, 10, n)]), "hamming"


DATA: dict[str, Callable[[int, np.random.Generator], Features]] = {
    "digits": digits, "communities": communities, "blobs": blobs, "strings": strings,
}  # fmt: skip


PARTS = ("work", "pam", "large")


def of_file(path: Path) -> Callable[[int, np.random.Generator], Features]:
    """Return a data set that draws rows of a file of features."""

    def drawn(n: int, rng: np.random.Generator) -> Features:
        features = np.load(path, mmap_mode="r")
        return np.asarray(features[rng.choice(len(features), n, replace=False)], dtype=np.float64), "euclidean"

    return drawn


def store(folder: Path, name: str, n: int) -> Any:
    """Return the matrix of a data set, made where it is not there yet."""
    path = folder / f"{name}-{n}.zarr"
    if not path.exists():
        features, metric = DATA[name](n, np.random.default_rng(0))
        dasrel.pairwise(features, path, metric=metric)
    return dasrel.open_matrix(path)


def timed(matrix: Any, runs: Any) -> tuple[dasrel.Clustering, float]:
    """Return a clustering that is judged, as the command does, and its seconds."""
    began = time.perf_counter()
    found = dasrel.cluster(matrix, runs, judge=True)
    return found, time.perf_counter() - began


def scan_seconds(matrix: Any, columns: int) -> float:
    """Return the seconds of one scan, the median of five."""
    relation = as_dissimilarity(matrix)
    V = np.random.default_rng(0).random((columns, matrix.n_objects)).astype(matrix.dtype)
    products = LeftProducts([(relation, columns)], memory=2**32)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        products.run([V])
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def column_scans(found: dasrel.Clustering) -> int:
    """Return the columns multiplied with the matrix of all objects in iterations."""
    return sum(found.columns)


def line(what: str, **values: Any) -> None:
    print(json.dumps({"bench": "answers", "what": what, **values}), flush=True)


def work(folder: Path, name: str, given: argparse.Namespace) -> None:
    matrix = store(folder, name, given.n)
    found, seconds = timed(matrix, given.clusters)
    result = found.best.result
    value = {"fcm1": "fuzzifier", "fcm2": "entropy_weight"}[result.run.rule]
    full = dasrel.cluster(
        matrix,
        dasrel.grid(
            result.run.rule, given.clusters, n_init=given.starts, init="k-means++", on_negative="heal",
            stop="memberships", **{value: getattr(result.run, value)},
        ),
        keep_all=True,
    )  # fmt: skip
    first, second = sorted(full.kept, key=lambda partition: partition.objective)[:2]
    line(
        "work", data=name, n=given.n, clusters=given.clusters, rule=result.run.rule,
        value=getattr(result.run, value), n_iter=result.n_iter, scans=found.scans, column_scans=column_scans(found),
        column_scans_over_600=column_scans(found) / 600, full_column_scans=column_scans(full),
        seconds_over_one_scan=seconds / scan_seconds(matrix, given.clusters),
        objective_excess=found.best.objective / first.objective - 1,
        ari=adjusted_rand_score(first.labels, found.best.labels),
        ari_of_starts=adjusted_rand_score(first.labels, second.labels),
        levels=[vars(level) for level in found.levels],
    )  # fmt: skip


def large(folder: Path, name: str, n: int, clusters: int) -> None:
    matrix = store(folder, name, n)
    one = scan_seconds(matrix, clusters)
    found, seconds = timed(matrix, clusters)
    line(
        "large", data=name, n=n, clusters=clusters, gigabytes=matrix.layout.total_bytes / 1e9, one_scan_seconds=one,
        seconds=seconds, ratio=seconds / one, scans=found.scans, column_scans=column_scans(found),
        levels=[vars(level) for level in found.levels],
    )  # fmt: skip
    several, more = timed(matrix, range(2, clusters + 1))
    line(
        "range", data=name, n=n, clusters=f"2-{clusters}", ratio=more / seconds, scans=several.scans,
        column_scans=column_scans(several), recommended=several.best.result.run.n_clusters,
        levels=[vars(level) for level in several.levels],
    )  # fmt: skip


def pam(folder: Path, name: str, n: int) -> None:
    try:
        import kmedoids
    except ImportError:
        return
    matrix = store(folder, name, n)
    d = np.asarray(matrix)
    began = time.perf_counter()
    kmedoids.fasterpam(d, 5, init="random", random_state=0, n_cpu=1)
    seconds = time.perf_counter() - began
    found, ours = timed(matrix, 5)
    line("pam", data=name, n=n, clusters=5, seconds=ours, pam_seconds=seconds, ratio=ours / seconds, scans=found.scans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=8_192)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--large-n", type=int, default=50_000)
    parser.add_argument("--pam-n", type=int, default=16_384)
    parser.add_argument("--dir", type=Path, default=None, help="where stores are made; a temporary folder by default")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--features", type=Path, metavar="FILE.npy", help="a data set of your own")
    given = parser.parse_args()
    names = list(given.data)
    if given.features is not None:
        names.insert(0, given.features.stem)
        DATA[names[0]] = of_file(given.features)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        if "work" in given.parts:
            for name in names:
                work(Path(folder), name, given)
        if "pam" in given.parts:
            pam(Path(folder), names[0], given.pam_n)
        if "large" in given.parts:
            large(Path(folder), names[0], given.large_n, given.clusters)


if __name__ == "__main__":
    main()
