"""The subdominant ultrametric of a matrix, by its spanning tree: products and solves in O(n) a column.

Delta_ij is the squared height at which single linkage joins i and j. With the objects in VAT order, the object at place
m came in by an edge of height h_m, and Delta between places p < q is the largest of h_(p+1), ..., h_q. The gap before
place m is thus the merge of two neighbouring ranges, [l, m) and [m, r), where l and r are the nearest gaps with a
heavier edge. Nothing here needs recursion, and Delta is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import splu

from dasrel.errors import InputError, count_text
from dasrel.tree import Tree, parents

Float = NDArray[np.float64]
Index = NDArray[np.int64]

_BLOCK_BYTES = 64 * 2**20  # columns are taken this many bytes at a time


@dataclass(frozen=True, eq=False)
class Ultrametric:
    """The ultrametric Delta of a tree, a symmetric n x n matrix that needs no tiles. Get one with `ultrametric`."""

    order: Index
    """(n,) objects in VAT order; the rest is by place in this order."""
    heights: Float
    """(n,) squared height of the gap before each place; 0 for the first, which is no gap."""
    ranks: Index
    """(n,) rank of the gap's edge among all edges: heights with their ties ordered; -1 for the first."""
    first: Index
    """(n - 1,) place where the range of each merge begins."""
    last: Index
    """(n - 1,) place after the one where it ends."""

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return len(self.order)

    @cached_property
    def places(self) -> Index:
        """(n,) place of each object in the order."""
        places = np.empty(self.n_objects, dtype=np.int64)
        places[self.order] = np.arange(self.n_objects)
        return places

    def diagonal(self) -> Float:
        """The n diagonal values: zeros."""
        return np.zeros(self.n_objects)

    def block(self, rows: slice, columns: slice) -> Float:
        """Delta between two ranges of objects. Cost: no scan; O(n) and the block itself."""
        path = Paths.of(self.heights, self.places[rows], self.places[columns])
        return path.between(slice(0, rows.stop - rows.start))

    def largest(self) -> float:
        """The largest value, the height of the root."""
        return float(self.heights.max())

    def left(self, U: ArrayLike) -> Float:
        """U Delta for U of k x n; k x n float64.

        A merge of height h with ranges L and R gives h times the sum over R to all of L, and the other way round: sums
        of ranges are differences of running sums, and what a range is given is put down at its two ends and summed up.

        Cost: no scan; O(n k), and six copies of at most 64 MiB of columns.
        """
        given = np.asarray(U, dtype=np.float64)
        n = self.n_objects
        if given.ndim != 2 or given.shape[1] != n:
            raise InputError(f"U has shape {given.shape}; give {count_text(n, 'column')}")
        at_first, at_last = self._ends
        h = self.heights[1:, None]
        result = np.empty(given.shape)
        for block in _blocks(len(given), n):
            columns = np.take(np.ascontiguousarray(given[block].T), self.order, axis=0)
            running = np.zeros((n + 1, columns.shape[1]))
            np.cumsum(columns, axis=0, out=running[1:])
            to_left = np.take(running, self.last, axis=0)
            to_left -= running[1:n]
            to_left *= h
            to_right = np.take(running, self.first, axis=0)
            np.subtract(running[1:n], to_right, out=to_right)
            to_right *= h
            change = at_first @ to_left
            change -= at_last @ to_right
            change[1:] += to_right
            change[1:] -= to_left
            columns[self.order] = np.cumsum(change, axis=0, out=running[1:])
            result[block] = columns.T
        return result

    def gram(self, V: ArrayLike) -> Float:
        """W(Delta) V = -1/2 P Delta P V for V of n x k or n, P the centring projection. Cost: as `left`."""
        columns = self._columns(V)
        product = self.left((columns - columns.mean(axis=0)).T).T
        result: Float = -0.5 * (product - product.mean(axis=0))
        return result.reshape(np.shape(V))

    def solve(self, B: ArrayLike) -> Float:
        """W(Delta)^+ B for B of n x k or n: the pseudo-inverse of the centred Gram matrix of Delta, exactly.

        With H the height of the root, G = H ee' - Delta says how far potentials at the leaves rise for currents into
        them when the tree is a network of resistors, each as large as the height it climbs, and the root is earthed.
        So G^-1 is the Schur complement of the network's Laplacian onto the leaves. Merges of equal height are one node
        of it. Objects at height 0 of each other (exact duplicates, and chains of zeros) are one leaf: they have equal
        rows in Delta, the pseudo-inverse takes their mean and gives each of them an equal share.

        Cost: no scan; a sparse factor of n entries at the first call, then O(n k).
        """
        columns = self._columns(B)
        network = self._network
        if network.inverse_of_ones is None:  # one leaf: Delta is 0, and so is its pseudo-inverse
            return np.zeros(np.shape(B))
        centred = columns - columns.mean(axis=0)
        solved = network.solve(network.join @ centred / network.members[:, None])
        ones = network.inverse_of_ones
        solved -= ones[:, None] * (solved.sum(axis=0) / ones.sum())
        solved *= 2 / network.members[:, None]
        result: Float = solved[self.groups]
        result -= result.mean(axis=0)  # is zero already but for rounding
        return result.reshape(np.shape(B))

    @property
    def groups(self) -> Index:
        """(n,) labels of objects at height 0 of each other; objects without such a fellow have one of their own."""
        return self._network.group

    def _columns(self, V: ArrayLike) -> Float:
        columns = np.asarray(V, dtype=np.float64)
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim != 2 or len(columns) != self.n_objects:
            raise InputError(f"columns of shape {np.shape(V)} do not fit {count_text(self.n_objects, 'object')}")
        return columns

    @cached_property
    def _ends(self) -> tuple[Any, Any]:
        """Matrices that sum over the merges that begin, and that end, at each place."""
        n = self.n_objects
        first, last = self.first, self.last
        merges = np.arange(n - 1)
        at_first = csr_array((np.ones(n - 1), (first, merges)), shape=(n, n - 1))
        ends = last < n
        at_last = csr_array((np.ones(int(ends.sum())), (last[ends], merges[ends])), shape=(n, n - 1))
        return at_first, at_last

    @cached_property
    def _network(self) -> _Network:
        """The tree as a network of resistors; nodes are numbered as in `tree.parents`."""
        n = self.n_objects
        parent = parents(self.ranks, self.first, self.last)
        height = np.concatenate([self.heights, np.zeros(n)])
        # A node as high as its parent is the same node: follow such steps to their end, twice as far each time.
        same = np.where(height[parent] == height, parent, np.arange(2 * n))
        same[0] = 0
        while not np.array_equal(same[same], same):
            same = same[same]
        leaves, group_by_place, members = np.unique(same[n:], return_inverse=True, return_counts=True)
        group = np.empty(n, dtype=np.int64)
        group[self.order] = group_by_place
        return _Network.of(same[parent], height, same, leaves, group, members.astype(np.float64), self.ranks)


@dataclass(frozen=True)
class Paths:
    """The ultrametric between the objects of two strips, row by row.

    Between places p < q of the VAT order it is the largest gap on the way. From a row's object the columns' objects
    are met in the order of their places, to the right and to the left: a running maximum over the gaps between them.
    """

    order: Index
    """Columns by place."""
    gaps: Float
    """Largest gap between each column in this order and the one before."""
    at: Index
    """(rows,) columns that lie before each row."""
    after: Float
    """(rows,) largest gap between a row and the next column, and..."""
    before: Float
    """... the column before."""

    @staticmethod
    def of(heights: Float, rows: Index, columns: Index) -> Paths:
        order = np.argsort(columns)
        places = columns[order]
        gaps = _largest(heights, places[:-1], places[1:])
        at = np.searchsorted(places, rows)
        last = len(places) - 1
        after = _largest(heights, rows, places[np.minimum(at, last)])
        before = _largest(heights, places[np.maximum(at - 1, 0)], rows)
        return Paths(order, np.concatenate([[0.0], gaps]), at, after, before)

    def between(self, band: slice) -> Float:
        """Rows of the ultrametric."""
        result = np.empty((band.stop - band.start, len(self.order)))
        line = np.empty(len(self.order))
        for k, row in enumerate(range(band.start, band.stop)):
            at = int(self.at[row])
            if at < len(line):
                right = self.gaps[at:].copy()
                right[0] = self.after[row]
                np.maximum.accumulate(right, out=line[at:])
            if at > 0:
                left = self.gaps[at:0:-1].copy() if at < len(line) else np.append(0.0, self.gaps[:0:-1])
                left[0] = self.before[row]
                line[:at] = np.maximum.accumulate(left)[::-1]
            result[k, self.order] = line
        return result


def _largest(heights: Float, first: Index, last: Index) -> Float:
    """The largest of heights[first + 1 : last + 1] for each pair; 0 where there is none."""
    if len(first) == 0:
        return np.zeros(0)
    by = np.argsort(first)  # in ascending order, else the way back from each pair to the next is gone over too
    bounds = np.column_stack([first[by] + 1, np.maximum(last, first)[by] + 1]).ravel()
    largest = np.empty(len(first))
    largest[by] = np.maximum.reduceat(np.append(heights, 0.0), bounds)[::2]
    return np.where(last > first, largest, 0.0)


@dataclass(frozen=True, eq=False)
class _Network:
    """What a solve needs: leaves are groups of objects at height 0, inner nodes are merges above 0 but the root."""

    group: Index
    members: Float
    join: Any
    """(leaves, n): sums over the objects of each leaf."""
    conductance: Float
    """(leaves,) of the resistor above each leaf."""
    up: Any
    """(inner, leaves): these conductances, at the inner node that the leaf hangs from."""
    factor: Any
    """Of the Laplacian of the inner nodes; None where there is none."""
    inverse_of_ones: Float | None
    """G^-1 e; None where there is but one leaf."""

    @staticmethod
    def of(
        parent: Index, height: Float, same: Index, leaves: Index, group: Index, members: Float, ranks: Index
    ) -> _Network:
        n = len(group)
        join = csr_array((np.ones(n), (group, np.arange(n))), shape=(len(leaves), n))
        if len(leaves) == 1:
            return _Network(group, members, join, np.zeros(1), None, None, None)
        gaps = np.arange(1, n)
        top = int(same[gaps[ranks[1:].argmax()]])
        inner = gaps[(same[1:n] == gaps) & (height[1:n] > 0) & (gaps != top)]
        inner = inner[np.argsort(ranks[inner])]  # children before parents: no entry is filled in
        number = np.full(2 * n, -1, dtype=np.int64)  # the root stays -1: it is earthed, and drops out
        number[inner] = np.arange(len(inner))
        conductance = 1 / (height[parent[leaves]] - height[leaves])
        hang = number[parent[leaves]]
        inside = hang >= 0
        up = csr_array((conductance[inside], (hang[inside], np.flatnonzero(inside))), shape=(len(inner), len(leaves)))
        factor = None
        if len(inner):
            climb = 1 / (height[parent[inner]] - height[inner])
            to = number[parent[inner]]
            linked = np.flatnonzero(to >= 0)
            diagonal = climb + np.asarray(up.sum(axis=1)).ravel()
            np.add.at(diagonal, to[linked], climb[linked])
            everyone = np.arange(len(inner))
            rows = np.concatenate([everyone, linked, to[linked]])
            columns = np.concatenate([everyone, to[linked], linked])
            values = np.concatenate([diagonal, -climb[linked], -climb[linked]])
            laplacian = csc_array((values, (rows, columns)), shape=(len(inner), len(inner)))
            factor = splu(laplacian, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        network = _Network(group, members, join, conductance, up, factor, None)
        ones = network.solve(np.ones((len(leaves), 1)))[:, 0]
        return _Network(group, members, join, conductance, up, factor, ones)

    def solve(self, B: Float) -> Float:
        """G^-1 B for B of leaves x k."""
        result = self.conductance[:, None] * B
        if self.factor is not None:
            result -= self.up.T @ self.factor.solve(self.up @ B)
        return result


def ultrametric(tree: Tree) -> Ultrametric:
    """The subdominant ultrametric of D: for each pair the largest D on its minimax path, in squared dissimilarities.

    Give it to `Relation.plus` as a term. Exact duplicates, and objects joined by a chain of zeros, are at height 0.

    Cost: no scan beyond the tree's.
    """
    order, came = tree.prim
    return Ultrametric(order, np.concatenate([[0.0], tree.squared[came[1:]]]), came, *tree.merges)


def _blocks(count: int, n: int) -> list[slice]:
    """Rows of U that are worked on at once."""
    width = max(1, _BLOCK_BYTES // (8 * max(1, n)))
    return [slice(start, min(start + width, count)) for start in range(0, count, width)]
