"""Minimum spanning tree by one scan; single linkage, VAT order and the subdominant ultrametric from it.

Each tile is reduced to its own spanning forest by the task that reads it, and forests are merged pairwise: no more than
n - 1 edges are sent between processes, and nothing of size n^2 is held.

The ultrametric Delta_ij is the squared height at which single linkage joins i and j. With the objects in VAT order, the
object at position m was added by an edge of height h_m, and Delta between positions p < q is the largest of h_(p+1),
..., h_q. The gap before position m is thus the merge of two adjacent ranges, [l, m) and [m, r), where l and r are the
nearest gaps with a heavier edge. Products and solves take O(n) per column and need no recursion; Delta is never formed.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from dasrel.engine.reduce import Consumer, Kernel, Plan, Side, shares
from dasrel.engine.scan import scan, scan_memory
from dasrel.errors import InputError, StoreError
from dasrel.kernels import forest as spanning_forest
from dasrel.kernels.forest import Forest
from dasrel.names import KINDS
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from dasrel.store.layout import TileSource
from dasrel.store.matrix import Matrix
from dasrel.util import Array, Float, Index
from dasrel.util.archives import ArchiveFormat, load_archive, save_archive
from dasrel.util.limits import Cost, Range, memory_limit
from dasrel.util.text import count_text, shown

FORMAT = ArchiveFormat(
    "tree", "tree_version", 1, ("edges", "weights", "largest"),
    source="; `minimum_spanning_tree(matrix).save(path)` makes one",
    remedy="use the dasrel that wrote it, or make the tree again",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tree:
    """The minimum spanning tree of a matrix; unique, because ties are ordered by (weight, i, j)."""

    edges: NDArray[np.int64]
    """(n - 1, 2) positions of objects, i < j, sorted by (weight, i, j)."""
    weights: Float
    """(n - 1,) weights of the edges, in `units`."""
    largest: tuple[float, int, int]
    """The largest dissimilarity of all pairs, in `units`, and the first pair that has it."""
    kind: str
    """Of the matrix. Weights are distances for kind distance, else squared dissimilarities D (see `squared`)."""
    scans: int = 1

    def __repr__(self) -> str:
        return f"<Tree: {count_text(self.n_objects, 'object')}, {self.units} up to {self.weights[-1]:g}>"

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return len(self.edges) + 1

    @property
    def units(self) -> str:
        """Units of the weights: `distance` or `squared dissimilarity`."""
        return "distance" if self.kind == "distance" else "squared dissimilarity"

    @property
    def squared(self) -> Float:
        """The weights as squared dissimilarities D, for any kind."""
        return self.weights**2 if self.kind == "distance" else self.weights

    def linkage(self) -> Float:
        """Return single-linkage merges, (n - 1, 4), as in `scipy.cluster.hierarchy`; heights in `units`.

        Cost: no scan; a few microseconds per object.
        """
        n = self.n_objects
        order, came = self.prim
        before, after = self.merges
        parent = parents(came, before, after)
        name = np.concatenate([came + n, order])  # SciPy's number of each merge, by its gap, and of each object
        gap = np.concatenate([np.arange(n), np.arange(n) + 0.5])  # an object lies between two gaps
        child = np.flatnonzero(parent != np.arange(2 * n))  # not the root, nor the position of no gap
        first = gap[child] < parent[child]
        sides = np.empty((2, n - 1), dtype=np.int64)
        for side, of in zip(sides, (child[first], child[~first]), strict=True):
            side[came[parent[of]]] = name[of]
        size = np.empty(n - 1)
        size[came[1:]] = after - before
        return np.column_stack([sides.min(axis=0), sides.max(axis=0), self.weights, size])

    @cached_property
    def prim(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prim's order of the objects from an end of the largest dissimilarity, and the edge that added each.

        The first object has no edge, but -1. The heaviest edge on the minimax path between the objects at positions
        p < q is the heaviest of those at positions p + 1 to q.
        """
        n = self.n_objects
        ends = self.edges.T.ravel()
        by_object = np.argsort(ends, kind="stable")
        first = np.searchsorted(ends[by_object], np.arange(n + 1)).tolist()
        touching = (by_object % (n - 1)).tolist()  # edges of each object, one object after the other
        low, high = self.edges.T.tolist()
        reached = bytearray(n)
        # Edges are sorted, so that their numbers compare as their weights do, ties included.
        order, came = [self.largest[1]], [-1]
        waiting: list[int] = []
        while True:
            k = order[-1]
            reached[k] = 1
            for edge in touching[first[k] : first[k + 1]]:
                if not (reached[low[edge]] and reached[high[edge]]):
                    heapq.heappush(waiting, edge)
            if not waiting:
                break
            edge = heapq.heappop(waiting)
            order.append(high[edge] if reached[low[edge]] else low[edge])
            came.append(edge)
        return np.array(order, dtype=np.int64), np.array(came, dtype=np.int64)

    @cached_property
    def merges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The clusters of single linkage as ranges of the VAT order: first position and the one after the last.

        One for each gap 1 to n - 1 between neighbours: the cluster that is made when the edge of that gap is added. It
        extends to the nearest heavier gaps.
        """
        n = self.n_objects
        ranks = self.prim[1].tolist()
        before, after = [0] * n, [n] * n
        waiting: list[int] = []  # gaps without a heavier one after them so far, heaviest first
        for gap in range(1, n):
            while waiting and ranks[waiting[-1]] < ranks[gap]:
                after[waiting.pop()] = gap
            before[gap] = waiting[-1] if waiting else 0
            waiting.append(gap)
        return np.array(before[1:], dtype=np.int64), np.array(after[1:], dtype=np.int64)

    def vat_order(self) -> NDArray[np.int64]:
        """Return the order of the objects in a VAT image (Bezdek and Hathaway).

        Ties: of several largest pairs the first, of several nearest objects the edge that sorts first.

        Cost: no scan; a few microseconds per object.
        """
        return self.prim[0].copy()

    def join_heights(self) -> Float:
        """Return the weight of the edge that added each object, in VAT order and in `units`; 0 for the first."""
        came = self.prim[1]
        return np.concatenate([[0.0], self.weights[came[1:]]])

    def components(self, height: float) -> NDArray[np.int64]:
        """Return labels, (n,), of the components that remain when edges heavier than `height` (in `units`) are cut.

        Components are numbered by their first objects. Cost: no scan.
        """
        if np.isnan(height):
            raise InputError("the height at which a tree is cut is a number, not NaN")
        n = self.n_objects
        kept = self.edges[: np.searchsorted(self.weights, height, side="right")]
        graph = csr_array((np.ones(len(kept), dtype=np.int8), (kept[:, 0], kept[:, 1])), shape=(n, n))
        labels = connected_components(graph, directed=False)[1]
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        rank = np.empty(first.size, dtype=np.int64)
        rank[np.argsort(first)] = np.arange(first.size)
        return rank[inverse]

    def to_networkx(self, ids: Sequence[str] | Array | None = None) -> Any:
        """Return the tree as a `networkx.Graph`, edges with `weight`; nodes are positions, or `ids` if given."""
        import networkx

        names: list[Any] = list(range(self.n_objects)) if ids is None else [str(name) for name in ids]
        if len(names) != self.n_objects:
            raise InputError(f"{count_text(len(names), 'id')} for a tree of {count_text(self.n_objects, 'object')}")
        graph = networkx.Graph()
        graph.add_nodes_from(names)
        graph.add_weighted_edges_from(
            (names[i], names[j], w) for (i, j), w in zip(self.edges.tolist(), self.weights.tolist(), strict=True)
        )
        return graph

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tree to a .npz file, atomically; no pickle."""
        arrays = {"edges": self.edges, "weights": self.weights, "largest": np.array(self.largest, dtype=np.float64)}
        save_archive(path, FORMAT, arrays, {"kind": self.kind})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Tree:
        """Read a tree that `save` wrote. Nothing is unpickled; a file that is not complete is refused."""
        where = shown(path, limit=200)
        parts, about = load_archive(path, FORMAT)
        kind: Any = about.get("kind")
        fault = tree_fault(parts["edges"], parts["weights"], parts["largest"], kind)
        if fault:
            raise StoreError(f"{where} is a damaged tree ({fault})", remedy="make it again")
        top, i, j = parts["largest"].tolist()
        return Tree(
            parts["edges"].astype(np.int64), parts["weights"].astype(np.float64), (top, int(i), int(j)), kind, scans=0
        )


def parents(ranks: Array, before: Array, after: Array) -> NDArray[np.int64]:
    """Return the parent of each node of the dendrogram, (2 n,): the lighter of the heavier gaps beside it.

    The number of a merge is its gap, 1 to n - 1; that of an object is n plus its position in VAT order. The root, and
    0, which is no gap, are their own parents.
    """
    n = len(ranks)
    weight = np.append(ranks, n)  # both ends of the order count as heavier than any gap
    weight[0] = n
    position = np.arange(n)
    above = np.where(weight[before] < weight[after], before, after)
    root = int(ranks.argmax())
    above[root - 1] = root
    return np.concatenate([[0], above, np.where(weight[position] < weight[position + 1], position, position + 1)])


def tree_fault(edges: Array, weights: Array, largest: Array, kind: Any) -> str:
    """Return what is wrong with the arrays of a tree; an empty string if nothing is."""
    n = len(edges) + 1 if edges.ndim == 2 else 0
    if n < 2 or edges.shape[1] != 2 or weights.shape != (n - 1,) or largest.shape != (3,) or kind not in list(KINDS):
        return f"shapes {edges.shape}, {weights.shape} and {largest.shape}, kind {shown(kind)}"
    if edges.dtype.kind != "i" or weights.dtype.kind != "f" or largest.dtype.kind != "f":
        return f"types {edges.dtype}, {weights.dtype} and {largest.dtype}"
    if not (np.isfinite(weights).all() and np.isfinite(largest).all() and (np.diff(weights) >= 0).all()):
        return "weights that are not finite and ascending"
    if edges.min() < 0 or edges.max() >= n or not (edges[:, 0] < edges[:, 1]).all():
        return f"edges that are not pairs i < j of {count_text(n, 'object')}"
    if not (0 <= largest[1] < largest[2] < n) or largest[0] < weights[-1]:
        return "an invalid largest pair"
    graph = csr_array((np.ones(n - 1, dtype=np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return "" if connected_components(graph, directed=False)[0] == 1 else "edges that do not connect all objects"


def minimum_spanning_tree(matrix: Any, *, kind: str | None = None, memory: int | str | None = None) -> Tree:
    """Compute the minimum spanning tree of the objects, by one scan. Zero dissimilarities are edges like any others.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, or an array with its `kind`. Similarities and kernels are transformed to
        D = max(s_ii + s_jj - 2 s_ij, 0).
    memory
        Limit of the scan, as for every scan.

    Returns
    -------
    Tree
        The same to the last bit for any tiles, threads or cluster.

    Cost: one scan. A task needs at most two tiles of memory (three for similarities); the result has n - 1 edges.
    """
    return TreeJob(as_matrix(matrix, kind=kind), memory).run()


@dataclass(frozen=True)
class TreeJob:
    """A minimum spanning tree to be computed."""

    matrix: Matrix | ArrayMatrix
    memory: int | str | None

    def run(self) -> Tree:
        """Compute the tree."""
        forest: Forest = scan(self.matrix, [forest_consumer(self.matrix)], memory=self.memory)[0]
        edges = np.column_stack([forest.i, forest.j])
        return Tree(edges, forest.weights.astype(np.float64), forest.largest, self.matrix.kind)

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        needed = scan_memory(self.matrix, [forest_consumer(self.matrix)], memory_limit(self.memory))
        return Cost("tree", self.matrix.n_objects, Range(1, 1, 1), self.matrix.layout.total_bytes, needed)


def forest_consumer(source: TileSource, kept: NDArray[np.bool_] | None = None, floors: Float | None = None) -> Consumer:
    """Return the consumer of `minimum_spanning_tree`, for a scan that others share; its result is a `Forest`.

    With `kept`, (n,), it is the tree of these objects only, and None if there are fewer than two. With `floors`, (n,)
    in the units of the tree, the weight of a pair is at least the floor of each of the two.
    """
    layout, diagonal = source.layout, source.diagonal

    side = Plan(layout).group_side * layout.tile
    edge = layout.dtype.itemsize + 16
    # The transposed or compacted tile, for similarities also their view; light edges while they are sorted; two forests
    # while they are merged.
    copies = (2 if diagonal is None else 3) + (kept is not None) + (floors is not None)
    task = copies * layout.tile_bytes + spanning_forest.edge_memory(layout.tile) + 8 * 2 * side * edge
    return Consumer(
        _ForestKernel(source.kind), share=shares(source, kept=kept, floors=floors), part_bytes=2 * side * edge,
        task_memory=task, fixed_memory=16 * layout.n_objects * edge,
    )  # fmt: skip


@dataclass(frozen=True)
class _ForestKernel(Kernel):
    kind: str

    def empty(self, objects: int) -> None:
        return None

    def add(self, partial: Forest | None, tile: Array, rows: Side, columns: Side) -> Forest | None:
        weights = spanning_forest.seen_as_dissimilarity(tile, self.kind, rows.itself, columns.itself)
        if rows.get("floors") is not None:
            weights = spanning_forest.raised(weights, rows.get("floors"), columns.get("floors"))
        of_rows, of_columns, first = rows.get("kept"), columns.get("kept"), (rows.span.start, columns.span.start)
        if of_rows is None:
            forest = spanning_forest.tile_forest(weights, *first)
        else:
            down, across = first[0] + np.flatnonzero(of_rows), first[1] + np.flatnonzero(of_columns)
            if min(len(down), len(across)) < (2 if rows is columns else 1):
                return partial
            forest = spanning_forest.forest_of(weights, down, across, first)
        return forest if partial is None else spanning_forest.merged(partial, forest)

    def combine(self, first: Forest | None, second: Forest | None) -> Forest | None:
        return spanning_forest.merged(first, second) if first and second else first or second


_BLOCK_BYTES = 64 * 2**20  # columns are processed in blocks of this size


@dataclass(frozen=True, eq=False)
class Ultrametric:
    """The ultrametric Delta of a tree, a symmetric n x n matrix that needs no tiles; returned by `ultrametric`."""

    order: Index
    """(n,) objects in VAT order; the other arrays are by position in this order."""
    heights: Float
    """(n,) squared height of the gap before each position; 0 for the first, which is no gap."""
    ranks: Index
    """(n,) rank of the gap's edge among all edges, ties included; -1 for the first."""
    first: Index
    """(n - 1,) first position of the range of each merge."""
    last: Index
    """(n - 1,) position after the last of this range."""

    def __repr__(self) -> str:
        return f"<Ultrametric: {count_text(self.n_objects, 'object')}, squared heights up to {self.largest():g}>"

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return len(self.order)

    @cached_property
    def positions(self) -> Index:
        """(n,) position of each object in the order."""
        positions = np.empty(self.n_objects, dtype=np.int64)
        positions[self.order] = np.arange(self.n_objects)
        return positions

    def diagonal(self) -> Float:
        """Return the n diagonal values, zeros."""
        return np.zeros(self.n_objects)

    def block(self, rows: slice, columns: slice) -> Float:
        """Return Delta between two ranges of objects. Cost: no scan; O(n) and the block itself."""
        path = Paths.of(self.heights, self.positions[rows], self.positions[columns])
        return path.between(slice(0, rows.stop - rows.start))

    def largest(self) -> float:
        """Return the largest value, the height of the root."""
        return float(self.heights.max())

    def left(self, U: ArrayLike) -> Float:
        """Return U Delta for U of k x n; k x n float64.

        A merge of height h with ranges L and R adds h times the sum over R to all of L, and h times the sum over L to
        all of R. Sums over ranges are differences of cumulative sums; additions to ranges are recorded at their two
        ends and accumulated.

        Cost: no scan; O(n k), and six copies of at most 64 MiB of columns.
        """
        given = np.asarray(U, dtype=np.float64)
        n = self.n_objects
        if given.ndim != 2 or given.shape[1] != n:
            raise InputError(f"U has shape {given.shape}", remedy=f"give {count_text(n, 'column')}")
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
        """Return W(Delta) V = -1/2 P Delta P V for V of n x k or n, P the centring projection. Cost: as `left`."""
        columns = self._columns(V)
        product = self.left((columns - columns.mean(axis=0)).T).T
        result: Float = -0.5 * (product - product.mean(axis=0))
        return result.reshape(np.shape(V))

    def solve(self, B: ArrayLike) -> Float:
        """Return W(Delta)^+ B for B of n x k or n, with the exact pseudo-inverse of the centred Gram matrix of Delta.

        Take the tree as a network of resistors, the resistance of an edge being the difference of its heights, with
        the root grounded. Then G = H ee' - Delta, H the height of the root, maps currents into the leaves to their
        potentials, and G^-1 is the Schur complement of the network's Laplacian onto the leaves. Merges of equal height
        are one node. Objects at height 0 of each other (exact duplicates, and chains of zeros) are one leaf: they have
        equal rows in Delta, and the pseudo-inverse uses their mean and gives each of them an equal share.

        Cost: no scan; a sparse factor of n entries at the first call, then O(n k).
        """
        columns = self._columns(B)
        network = self._network
        if network.inverse_of_ones is None:  # one leaf: Delta and its pseudo-inverse are 0
            return np.zeros(np.shape(B))
        centred = columns - columns.mean(axis=0)
        solved = network.solve(network.join @ centred / network.members[:, None])
        ones = network.inverse_of_ones
        solved -= ones[:, None] * (solved.sum(axis=0) / ones.sum())
        solved *= 2 / network.members[:, None]
        result: Float = solved[self.groups]
        result -= result.mean(axis=0)  # zero up to rounding
        return result.reshape(np.shape(B))

    @property
    def groups(self) -> Index:
        """(n,) labels of the leaves: objects at height 0 of each other have the same."""
        return self._network.group

    def _columns(self, V: ArrayLike) -> Float:
        columns = np.require(V, np.float64, ["F", "A"])
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim != 2 or len(columns) != self.n_objects:
            raise InputError(f"columns of shape {np.shape(V)} do not fit {count_text(self.n_objects, 'object')}")
        return columns

    @cached_property
    def _ends(self) -> tuple[Any, Any]:
        """Matrices that sum over the merges that begin, and that end, at each position."""
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
        # A node of the height of its parent is the same node: follow such chains to their end by pointer doubling.
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

    Between positions p < q of the VAT order it is the largest gap on the path. From the object of a row, those of the
    columns follow in the order of their positions, to the right and to the left: a cumulative maximum over the gaps.
    """

    order: Index
    """Columns by position."""
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
        positions = columns[order]
        gaps = _largest(heights, positions[:-1], positions[1:])
        at = np.searchsorted(positions, rows)
        last = len(positions) - 1
        after = _largest(heights, rows, positions[np.minimum(at, last)])
        before = _largest(heights, positions[np.maximum(at - 1, 0)], rows)
        return Paths(order, np.concatenate([[0.0], gaps]), at, after, before)

    def between(self, band: slice) -> Float:
        """Return these rows of the ultrametric."""
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
    """Return the largest of heights[first + 1 : last + 1] for each pair; 0 for an empty range."""
    if len(first) == 0:
        return np.zeros(0)
    by = np.argsort(first)  # ascending, because reduceat also reduces the range between a pair and the next
    bounds = np.column_stack([first[by] + 1, np.maximum(last, first)[by] + 1]).ravel()
    largest = np.empty(len(first))
    largest[by] = np.maximum.reduceat(np.append(heights, 0.0), bounds)[::2]
    return np.where(last > first, largest, 0.0)


@dataclass(frozen=True, eq=False)
class _Network:
    """Arrays for a solve. Leaves are groups of objects at height 0, inner nodes are merges above 0 except the root."""

    group: Index
    members: Float
    join: Any
    """(leaves, n): sums over the objects of each leaf."""
    conductance: Float
    """(leaves,) of the resistor above each leaf."""
    up: Any
    """(inner, leaves): these conductances, at the parent of each leaf."""
    factor: Any
    """Factorisation of the Laplacian of the inner nodes; None if there are none."""
    inverse_of_ones: Float | None
    """G^-1 e; None if there is only one leaf."""

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
        inner = inner[np.argsort(ranks[inner])]  # children before parents: the factorisation has no fill-in
        number = np.full(2 * n, -1, dtype=np.int64)  # the root stays -1: it is grounded, and not an unknown
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
            own = np.arange(len(inner))
            rows = np.concatenate([own, linked, to[linked]])
            columns = np.concatenate([own, to[linked], linked])
            values = np.concatenate([diagonal, -climb[linked], -climb[linked]])
            laplacian = csc_array((values, (rows, columns)), shape=(len(inner), len(inner)))
            factor = splu(laplacian, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        network = _Network(group, members, join, conductance, up, factor, None)
        ones = network.solve(np.ones((len(leaves), 1)))[:, 0]
        return _Network(group, members, join, conductance, up, factor, ones)

    def solve(self, B: Float) -> Float:
        """Return G^-1 B for B of leaves x k."""
        result = self.conductance[:, None] * B
        if self.factor is not None:
            result -= self.up.T @ self.factor.solve(self.up @ B)
        return result


def ultrametric(tree: Tree) -> Ultrametric:
    """Return the subdominant ultrametric of D: for each pair the largest D on its minimax path.

    `Relation.plus` takes it as a term. Exact duplicates, and objects joined by a chain of zeros, are at height 0.

    Cost: no scan beyond the tree's.
    """
    order, came = tree.prim
    return Ultrametric(order, np.concatenate([[0.0], tree.squared[came[1:]]]), came, *tree.merges)


def _blocks(count: int, n: int) -> list[slice]:
    """Return ranges of rows of U that are processed together."""
    width = max(1, _BLOCK_BYTES // (8 * max(1, n)))
    return [slice(start, min(start + width, count)) for start in range(0, count, width)]
