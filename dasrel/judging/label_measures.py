"""Measures of labels: silhouettes, and the adjusted Rand index of two partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.util import Float


def silhouettes(labels: NDArray[Any], sizes: Float, sums: Float) -> Float:
    """Return the silhouette of each object, (n,), given d Z, (c, n), which is overwritten; no cluster is empty."""
    everyone, own = np.arange(labels.size), sizes[labels]
    a = sums[labels, everyone] / np.maximum(own - 1, 1)
    sums /= sizes[:, None]
    sums[labels, everyone] = np.inf
    b = sums.min(axis=0)
    larger = np.maximum(a, b)
    result: Float = np.divide(b - a, larger, out=np.zeros_like(a), where=(larger > 0) & (own > 1))
    return result


def adjusted_rand_index(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the share of pairs that two labelings agree on, above chance: 1 if they are equal (Hubert and Arabie).

    scikit-learn has it too, and takes two seconds to import.
    """
    (_, a), (_, b) = (np.unique(labels, return_inverse=True) for labels in (first, second))
    # No table of all pairs of labels: there may be as many labels as objects.
    together = np.unique(a.astype(np.int64) * (int(b.max()) + 1) + b, return_counts=True)[1]
    both, in_a, in_b = (int((of * (of - 1) // 2).sum()) for of in (together, np.bincount(a), np.bincount(b)))
    by_chance, most = in_a * in_b / max(1, len(a) * (len(a) - 1) // 2), (in_a + in_b) / 2
    return (both - by_chance) / (most - by_chance) if most != by_chance else 1.0
