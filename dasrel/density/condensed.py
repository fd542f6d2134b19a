"""The condensed tree of a single-linkage hierarchy, and the clusters that are chosen from it (HDBSCAN*).

Campello, Moulavi, Sander 2013; Campello et al. 2015 (GLOSH); Malzer and Baum 2020 (a least distance between clusters).
Seen from the root, a merge is a split. It is a split into clusters where at least two sides have at least `min_size`
objects; else the objects of the smaller sides leave the cluster there. lambda = 1 / distance. A distance of 0 counts as
half of the smallest positive one of the hierarchy, so that every lambda is finite.

Merges at the same distance are one merge of all their parts, which may split into more than two clusters: nothing
depends on an order among equal distances, nor on that of the objects. Mutual reachability has many of them, the core
distance of an object being that of several of its pairs. Other programs order them somehow (scikit-learn by a sort that
is not stable), and a few objects at the edge of clusters, sometimes a small cluster, differ between any two orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dasrel.util import Array, Float, Index

EOM, LEAF = "eom", "leaf"
METHODS = (EOM, LEAF)


@dataclass(frozen=True, eq=False)
class CondensedTree:
    """Clusters 0 (the root) to c - 1, each with a larger number than its parent, and where every object leaves."""

    parents: Index
    """(c,) the cluster that each is split from; -1 for the root."""
    births: Float
    """(c,) lambda at which each appears; 0 for the root."""
    sizes: Index
    """(c,) objects of each cluster when it appears."""
    clusters: Index
    """(n,) the cluster that each object leaves to no other."""
    leaves_at: Float
    """(n,) lambda at which it does."""
    min_size: int

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return len(self.clusters)

    @property
    def n_clusters(self) -> int:
        """Number of clusters, the root included."""
        return len(self.parents)

    @cached_property
    def ends(self) -> Float:
        """(c,) the largest lambda at which something leaves each cluster: objects, or its split."""
        ends = self.births.copy()
        np.maximum.at(ends, self.clusters, self.leaves_at)
        np.maximum.at(ends, self.parents[1:], self.births[1:])
        return ends

    @cached_property
    def stabilities(self) -> Float:
        """(c,) the sum over all that leaves a cluster of (lambda at which it leaves - that at which it appeared)."""
        at_objects = (self.leaves_at - self.births[self.clusters]).clip(min=0)
        sums: Float = np.bincount(self.clusters, weights=at_objects, minlength=self.n_clusters).astype(np.float64)
        at_splits = (self.births[1:] - self.births[self.parents[1:]]) * self.sizes[1:]
        sums += np.bincount(self.parents[1:], weights=at_splits, minlength=self.n_clusters)
        return sums

    @cached_property
    def deepest(self) -> Float:
        """(c,) the largest lambda of each cluster and of all below it."""
        deepest = self.ends.copy()
        for k in range(self.n_clusters - 1, 0, -1):
            parent = self.parents[k]
            deepest[parent] = max(deepest[parent], deepest[k])
        return deepest

    @cached_property
    def outlier_scores(self) -> Float:
        """(n,) GLOSH: how far below the densest part of its cluster an object leaves; 0 to 1."""
        most = self.deepest[self.clusters]
        return np.divide(most - self.leaves_at, most, out=np.zeros(self.n_objects), where=most > 0)

    def select(self, method: str = EOM, epsilon: float = 0.0, *, allow_single: bool = False) -> Index:
        """Return the clusters that are chosen, ascending; none contains another.

        Parameters
        ----------
        method
            "eom": those of the largest sum of stabilities (excess of mass). "leaf": those without a split.
        epsilon
            Clusters that are split at a distance below it are taken as one.
        allow_single
            Whether the root may be chosen.
        """
        c = self.n_clusters
        if method == LEAF:
            chosen = np.ones(c, dtype=bool)
            chosen[self.parents[1:]] = False
            chosen[0] = chosen[0] and allow_single
        else:
            chosen = self._of_most_mass(allow_single)
        if epsilon > 0:
            chosen = self._joined(chosen, epsilon, allow_single)
        return np.flatnonzero(chosen)

    def _of_most_mass(self, allow_single: bool) -> Array:
        parents, first = self.parents.tolist(), 0 if allow_single else 1
        mass, below = self.stabilities.tolist(), [0.0] * self.n_clusters
        chosen = np.zeros(self.n_clusters, dtype=bool)
        for k in range(self.n_clusters - 1, first - 1, -1):
            chosen[k] = not below[k] > mass[k]
            if parents[k] >= 0:
                below[parents[k]] += mass[k] if chosen[k] else below[k]
        inside = np.zeros(self.n_clusters, dtype=bool)
        for k in range(1, self.n_clusters):
            inside[k] = inside[parents[k]] or chosen[parents[k]]
        return chosen & ~inside

    def _joined(self, chosen: Array, epsilon: float, allow_single: bool) -> Array:
        """Replace clusters that appear below a distance by the nearest that contains them and appears above it.

        Siblings appear together, so that no chosen cluster then contains another.
        """
        result = np.zeros_like(chosen)
        top = 0 if allow_single else 1
        for k in np.flatnonzero(chosen).tolist():
            at = k
            while at > 0 and self.births[at] * epsilon > 1 and self.parents[at] >= top:
                at = int(self.parents[at])
            result[at] = True
        return result

    def labels(self, chosen: Index) -> tuple[Index, Index]:
        """Return the label of each cluster of the tree, (c,), and of each object, (n,); -1 for none of those chosen.

        Labels are numbered by the first objects. Objects that leave the root, when it is chosen, belong to it from the
        density on at which it is first split, or its last object leaves.
        """
        of_cluster = np.full(self.n_clusters, -1, dtype=np.int64)
        of_cluster[chosen] = np.arange(len(chosen))
        for k in range(1, self.n_clusters):
            if of_cluster[k] < 0:
                of_cluster[k] = of_cluster[self.parents[k]]
        labels = of_cluster[self.clusters]
        if len(chosen) and chosen[0] == 0:
            labels[(self.clusters == 0) & (self.leaves_at < self.ends[0])] = -1
        there, first = np.unique(labels[labels >= 0], return_index=True)
        rank = np.full(len(chosen) + 1, -1, dtype=np.int64)  # the last one, -1, is that of noise
        rank[there[np.argsort(np.flatnonzero(labels >= 0)[first])]] = np.arange(len(there))
        return rank[of_cluster], rank[labels]

    def probabilities(self, chosen: Index, labels: Index) -> Float:
        """Return how firmly every object belongs to its cluster, (n,): lambda / its largest there, 0 for noise."""
        top = np.zeros(self.n_clusters, dtype=np.int64)
        marked = np.zeros(self.n_clusters, dtype=bool)
        marked[chosen] = True
        for k in range(1, self.n_clusters):
            top[k] = k if marked[k] else top[self.parents[k]]
        most = self.ends[top[self.clusters]]
        share = np.divide(np.minimum(self.leaves_at, most), most, out=np.ones(self.n_objects), where=most > 0)
        return np.where(labels >= 0, share, 0.0)


def condense(children: Index, heights: Float, min_size: int) -> CondensedTree:
    """Condense a single-linkage hierarchy.

    Parameters
    ----------
    children
        (n - 1, 2) numbers of the clusters of each merge, as in `scipy.cluster.hierarchy`.
    heights
        (n - 1,) distances of the merges, ascending.
    min_size
        At least 2.

    Cost: O(n log n).
    """
    n = len(children) + 1
    nodes = np.arange(2 * n - 1)
    sizes, parents = np.ones(2 * n - 1, dtype=np.int64), nodes.copy()
    parents[children] = np.arange(n, 2 * n - 1)[:, None]
    sizes[n:] = _sizes(children)
    positive = heights[heights > 0]
    at = np.concatenate([np.zeros(n), np.maximum(heights, positive[0] / 2 if positive.size else 1.0)])
    # Merges of equal height, one above the other, are one merge of several: the uppermost stands for all of them.
    tied = (at[parents] == at) & (nodes >= n)
    merges = _climb(np.where(tied, parents, nodes))
    parents = merges[parents]
    large = (sizes >= min_size) & (merges == nodes)
    split = np.bincount(parents[large & (parents != nodes)], minlength=2 * n - 1) > 1
    begins = large & split[parents]
    begins[-1] = True
    # The cluster of a node of the hierarchy is the nearest above it, or itself, that begins one.
    owner = _climb(np.where(begins, nodes, parents))
    begun = np.flatnonzero(begins)[::-1]  # parents have larger numbers than their children
    number = np.full(2 * n - 1, -1, dtype=np.int64)
    number[begun] = np.arange(len(begun))
    # An object leaves where the topmost small node above it is merged.
    left = parents[_climb(np.where(sizes[parents] >= min_size, nodes, parents))[:n]]
    rate, above = 1 / np.maximum(at, at[n]), parents[begun[1:]]
    return CondensedTree(
        np.concatenate([[-1], number[owner[above]]]), np.concatenate([[0.0], rate[above]]), sizes[begun],
        number[owner[left]], rate[left], min_size,
    )  # fmt: skip


def _sizes(children: Index) -> Index:
    sizes = [1] * (len(children) + 1)
    for a, b in children.tolist():
        sizes.append(sizes[a] + sizes[b])
    return np.array(sizes[len(children) + 1 :], dtype=np.int64)


def _climb(above: Index) -> Index:
    """Follow a map of nodes to nodes to its ends, by doubling."""
    while not np.array_equal(above[above], above):
        above = above[above]
    return above
