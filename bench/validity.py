"""Measure silhouettes and all validity indices of 19 partitions from a store against scikit-learn, in one run.

    python bench/validity.py [--n 16384] [--times 3] [--dir FOLDER]

One JSON line per measurement. The partitions have 2 to 20 clusters; scikit-learn's `silhouette_score` computes one of
them, from the complete matrix in memory (float32). "one-hot" are the same sums as products with one-hot columns. The
matrix is uniform noise, float32, in the page cache. Times are the best of several, measured alternately.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from mst import best_in_turns, in_memory  # the benches next to this one
from scan import random_store
from sklearn.metrics import silhouette_samples

from dasrel import validity, watch
from dasrel.engine.relation import Products
from dasrel.kernels.products import View
from dasrel.names import INDICES

CLUSTERS = range(2, 21)


def measure(folder: Path, n: int, times: int) -> None:
    matrix = random_store(folder / f"noise-{n}.zarr", n, "distance")
    D = in_memory(matrix)
    rng = np.random.default_rng(0)
    partitions = [rng.integers(0, c, n) for c in CLUSTERS]
    fuzzy = [rng.dirichlet(np.full(c, 0.5), n) for c in CLUSTERS]
    hundreds = rng.integers(0, 500, n)
    one_hot = np.concatenate(
        [np.eye(c, dtype=np.float32)[:, labels] for c, labels in zip(CLUSTERS, partitions, strict=True)]
    )
    multiplied = Products(matrix, [(View("squared-distance"), len(one_hot))])
    validity(matrix, partitions[0], indices=["silhouette"])  # the first read verifies the checksums

    def scikit_learn() -> np.ndarray:
        return np.asarray(silhouette_samples(D, partitions[8], metric="precomputed"))

    ways = {
        "silhouettes of 19 partitions": lambda: validity(matrix, partitions, indices=["silhouette"]),
        "all indices of 19 partitions": lambda: validity(matrix, partitions),
        "all indices and dunn of 19 partitions": lambda: validity(matrix, partitions, indices=list(INDICES)),
        "all indices of 19 fuzzy partitions": lambda: validity(matrix, fuzzy),
        "silhouettes of one partition": lambda: validity(matrix, partitions[8], indices=["silhouette"]),
        "silhouettes of 500 clusters": lambda: validity(matrix, hundreds, indices=["silhouette"]),
        "one-hot products of 19 partitions": lambda: multiplied.run([one_hot]),
    }
    with watch() as meter:
        (theirs, expected), *ours = best_in_turns([scikit_learn, *ways.values()], times)
        scans = meter.scans // (times * len(ways))
    found = ours[0][1].silhouettes[8]
    for what, (seconds, _) in zip(ways, ours, strict=True):
        line = {"bench": "validity", "what": what, "n": n, "seconds": seconds, "scans": scans,
                "scikit_learn_one_partition_seconds": theirs, "ratio": seconds / theirs}  # fmt: skip
        print(json.dumps(line), flush=True)
    print(json.dumps({"bench": "validity", "largest_difference": float(np.abs(found - expected).max())}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=16_384)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument(
        "--dir", type=Path, default=None, help="where the store is made; a temporary folder if not given"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        measure(Path(folder), given.n, given.times)


if __name__ == "__main__":
    main()
