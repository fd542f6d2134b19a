"""The matrix of the demo and of the step [demo]: dissimilarities of scikit-learn's handwritten digits."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dasrel.io.pairwise import pairwise
from dasrel.options import Writing
from dasrel.store.matrix import Matrix
from dasrel.store.tile_files import StoreLike


def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the grey values, 0 to 16, of the 64 pixels of each image, and the digit that it shows.

    They are read from scikit-learn's own file where it is found, because scikit-learn takes two seconds to import.
    """
    package = find_spec("sklearn")
    file = Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if package else Path()
    if not file.is_file():
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.data, bunch.target.astype(np.int64)
    with gzip.open(file, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def build_digits(store: StoreLike, *, writing: Writing | None = None) -> Matrix:
    """Store Simpson's dissimilarity of the 1,797 digits: each image is the set of its pixels with ink.

    Ink is what is strictly above half of the grey scale. Two images have dissimilarity 0 when the ink of one contains
    that of the other, so different images have 0 and the triangle inequality fails: it is no metric. Its values are
    used as squared distances.

    Cost: no scan; writes 9 MB.
    """
    images, digits = read_digits()
    ink = images / 16 > 0.5
    names = [f"digit{label}-{k:04}" for k, label in enumerate(digits)]
    return pairwise(ink, store, metric="simpson", kind="squared-distance", ids=names, writing=writing)
