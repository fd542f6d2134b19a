"""Swaps of medoids in a block: the dissimilarities of some objects, the batch, to all that may be medoids.

As FasterPAM (Schubert and Rousseeuw 2021) does, a swap is made as soon as one is found that lowers the sum of the
dissimilarities of the batch to their nearest medoids. Candidates are taken in groups, each evaluated for all clusters
at once: with d1 and d2 the dissimilarities to the nearest and to the second nearest medoid, candidate x in the place
of medoid i changes the sum by

    sum_b w_b (min(d_bx, d1_b) - d1_b)  +  sum_{b of i} w_b (min(d_bx, d2_b) - min(d_bx, d1_b))
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dasrel.util import Array, Float, Index

GROUP = 256
"""Candidates that are evaluated together."""
GAIN = 1e-6
"""A swap lowers the sum at least by this share: less is rounding."""
MOST_PASSES = 100


class Swapped(NamedTuple):
    """Medoids, and the weighted sum of the dissimilarities of the batch to the nearest of them."""

    medoids: Index
    """Columns of the block."""
    total: float


def first_medoids(block: Array, weights: Float, n_clusters: int, draw: np.random.Generator) -> Index:
    """Draw medoids among the columns, one after the other, each likely where objects are far from those before.

    Parameters
    ----------
    block
        (m, m), dissimilarities of the batch to itself.
    """
    medoids = [int(draw.choice(len(block), p=weights / weights.sum()))]
    near = block[medoids[0]].astype(np.float64)
    for _ in range(n_clusters - 1):
        near[medoids] = 0.0
        share = weights * near
        total = share.sum()
        if total > 0:
            chosen = int(draw.choice(len(block), p=share / total))
        else:  # all others are copies of medoids
            chosen = int(np.setdiff1d(np.arange(len(block)), medoids)[0])
        medoids.append(chosen)
        np.minimum(near, block[chosen], out=near)
    return np.array(medoids, dtype=np.int64)


def swapped(block: Array, weights: Float, medoids: Index) -> Swapped:
    """Swap medoids and other columns until no swap lowers the sum.

    Parameters
    ----------
    block
        (m, n), dissimilarities of the batch to all candidates.
    weights
        (m,) of the batch.
    """
    medoids, rows = medoids.copy(), np.arange(len(block))
    count, n = len(medoids), block.shape[1]
    w = weights.astype(block.dtype)
    groups = [slice(at, min(at + GROUP, n)) for at in range(0, n, GROUP)]
    unchanged, k = 0, 0
    state = _nearest(block, medoids, w)
    for _ in range(MOST_PASSES * len(groups)):
        if unchanged == len(groups):
            break
        group = groups[k]
        change = _changes(block[:, group], state, w, count)
        taken = medoids[(medoids >= group.start) & (medoids < group.stop)]
        change[:, taken - group.start] = np.inf
        i, x = divmod(int(change.argmin()), change.shape[1])
        if change[i, x] < -GAIN * state.total:
            tried = medoids.copy()
            tried[i] = group.start + x
            after = _nearest(block, tried, w)
            if after.total < state.total:
                medoids, state, unchanged = tried, after, 0
                continue
        unchanged, k = unchanged + 1, (k + 1) % len(groups)
    return Swapped(medoids, float((weights * block[rows[:, None], medoids].min(axis=1)).sum()))


class _State(NamedTuple):
    first: Array
    """(m,) dissimilarity to the nearest medoid."""
    second: Array
    """(m,) and to the second nearest; infinite where there is one medoid."""
    weighted: Array
    """(c, m) the weight of each object in its cluster."""
    total: float


def _nearest(block: Array, medoids: Index, weights: Array) -> _State:
    d = block[:, medoids]
    rows = np.arange(len(d))
    nearest = d.argmin(axis=1)
    first = d[rows, nearest]
    d[rows, nearest] = np.inf
    weighted = np.zeros((len(medoids), len(d)), dtype=block.dtype)
    weighted[nearest, rows] = weights
    return _State(first, d.min(axis=1), weighted, float((weights.astype(np.float64) * first).sum()))


def _changes(columns: Array, state: _State, weights: Array, count: int) -> Array:
    """Return what each candidate in the place of each medoid changes, (c, candidates)."""
    closer = np.minimum(columns, state.first[:, None])
    shared = weights @ (closer - state.first[:, None])
    without = np.minimum(columns, state.second[:, None])
    without -= closer
    result: Array = state.weighted @ without
    result += shared
    return result
