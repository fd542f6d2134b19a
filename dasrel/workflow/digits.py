"""The matrix of the demo and of the step [demo]: dissimilarities of scikit-learn's handwritten digits."""

from __future__ import annotations

from dasrel.io.pairwise import pairwise
from dasrel.options import Writing
from dasrel.store.matrix import Matrix
from dasrel.store.tile_files import StoreLike


def build_digits(store: StoreLike, *, writing: Writing | None = None) -> Matrix:
    """Store Simpson's dissimilarity of the 1,797 digits: each image is the set of its pixels with ink.

    Ink is what is strictly above half of the grey scale. Two images have dissimilarity 0 when the ink of one contains
    that of the other, so different images have 0 and the triangle inequality fails: it is no metric. Its values are
    used as squared distances.

    Cost: no scan; writes 9 MB.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    ink = digits.data / 16 > 0.5
    names = [f"digit{label}-{k:04}" for k, label in enumerate(digits.target)]
    return pairwise(ink, store, metric="simpson", kind="squared-distance", ids=names, writing=writing)
