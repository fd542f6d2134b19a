"""A small example that needs nothing but what is installed: scikit-learn's handwritten digits."""

from __future__ import annotations

from dasrel.pairwise import pairwise
from dasrel.store import Matrix, StoreLike
from dasrel.writer import Writing


def build_digits(store: StoreLike, *, force: bool = False) -> Matrix:
    """Store Simpson's dissimilarity of the 1,797 digits: each image is the set of its pixels with ink.

    Ink is what is strictly above half of the grey scale. Two images are at 0 when the ink of one is all in the other,
    so different images are at 0 and the triangle inequality fails: a dissimilarity that is no metric. Its values play
    the role of squared distances.

    Cost: no scan; writes 9 MB.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    ink = digits.data / 16 > 0.5
    names = [f"digit{label}-{k:04}" for k, label in enumerate(digits.target)]
    return pairwise(ink, store, metric="simpson", kind="squared-distance", ids=names, writing=Writing(force=force))
