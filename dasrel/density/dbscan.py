"""DBSCAN at any distance from the spanning tree of mutual reachability."""

from __future__ import annotations

import numpy as np

from dasrel.engine.neighbours import Neighbours
from dasrel.errors import InputError
from dasrel.geometry.tree import Tree
from dasrel.util import Array, Index
from dasrel.util.text import shown


def check_eps(eps: float) -> None:
    """Raise if this is no distance within which objects are near."""
    if not (np.isfinite(eps) and eps > 0):
        raise InputError(f"eps is {shown(eps)}", remedy="give a finite distance above 0")


def dbscan_labels(tree: Tree, near: Neighbours | None, min_samples: int, eps: float) -> Index:
    """Return the labels of DBSCAN, (n,), -1 for noise; see `Density.dbscan`.

    Objects that are no core objects have fewer than `min_samples` within eps: their nearest neighbours, which
    are known, tell the nearest core object.

    Cost: no scan; O(n min_samples).
    """
    check_eps(eps)
    n = tree.n_objects
    if min_samples == 1 or near is None:
        core, labels = np.ones(n, dtype=bool), tree.components(_height(tree, eps))
        return _numbered(labels, core)
    distances, k = near.distances, min_samples - 1
    core = distances[:, k - 1] <= eps
    labels = np.where(core, tree.components(_height(tree, eps)), -1)
    others = np.flatnonzero(~core)
    positions = near.positions[others, :k]
    reached = (positions >= 0) & (distances[others, :k] <= eps) & core[positions]
    first = reached.argmax(axis=1)
    labels[others] = np.where(reached.any(axis=1), labels[positions[np.arange(len(others)), first]], -1)
    return _numbered(labels, core)


def _height(tree: Tree, eps: float) -> float:
    """Return the largest weight of the tree, in its units, that is a distance of at most eps."""
    if tree.kind == "distance":
        return eps
    within = int(np.searchsorted(np.sqrt(tree.weights), eps, side="right"))
    return float(tree.weights[within - 1]) if within else -1.0


def _numbered(labels: Index, core: Array) -> Index:
    """Number clusters by their first core objects."""
    of_core = labels[core]
    known, first = np.unique(of_core, return_index=True)
    rank = np.full(len(labels) + 1, -1, dtype=np.int64)
    rank[known[np.argsort(first)]] = np.arange(len(known))
    return rank[labels]
