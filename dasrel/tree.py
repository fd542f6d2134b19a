"""The minimum spanning tree by one scan, and what follows from it alone: single linkage, VAT order, components.

Each tile is reduced to its own spanning tree where it is read, and these are merged on the way back: no more than
n - 1 edges travel together, and nothing of size n^2 is ever held.
"""

from __future__ import annotations

import heapq
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from dasrel import forest
from dasrel._version import __version__
from dasrel.direct import as_matrix
from dasrel.errors import InputError, StoreError, count_text, shown
from dasrel.forest import Forest
from dasrel.graph import Consumer, Plan
from dasrel.scan import TileSource, scan
from dasrel.vocabulary import KINDS

Array = NDArray[Any]
Float = NDArray[np.float64]

TREE_VERSION = 1
_PARTS = ("edges", "weights", "largest", "about")


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
        """What the weights are: `distance`, or `squared dissimilarity`."""
        return "distance" if self.kind == "distance" else "squared dissimilarity"

    @property
    def squared(self) -> Float:
        """The weights as squared dissimilarities D, whatever the kind."""
        return self.weights**2 if self.kind == "distance" else self.weights

    def floored(self, value: float) -> Tree:
        """The tree of the matrix whose weights below `value` (in `units`) are raised to it: the same edges."""
        if not (np.isfinite(value) and value >= 0):
            raise InputError(f"a floor is a finite number >= 0, not {value}")
        top, i, j = self.largest
        return replace(self, weights=np.maximum(self.weights, value), largest=(max(top, value), i, j))

    def linkage(self) -> Float:
        """Single-linkage merges, (n - 1, 4), as `scipy.cluster.hierarchy` has them; heights in `units`.

        Cost: no scan; a few microseconds an object.
        """
        n = self.n_objects
        order, came = self.prim
        before, after = self.merges
        parent = parents(came, before, after)
        name = np.concatenate([came + n, order])  # SciPy's number of each merge, by its gap, and of each object
        gap = np.concatenate([np.arange(n), np.arange(n) + 0.5])  # an object lies between two gaps
        child = np.flatnonzero(parent != np.arange(2 * n))  # not the root, nor the place of no gap
        first = gap[child] < parent[child]
        sides = np.empty((2, n - 1), dtype=np.int64)
        for side, of in zip(sides, (child[first], child[~first]), strict=True):
            side[came[parent[of]]] = name[of]
        size = np.empty(n - 1)
        size[came[1:]] = after - before
        return np.column_stack([sides.min(axis=0), sides.max(axis=0), self.weights, size])

    @cached_property
    def prim(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prim's order of the objects from an end of the largest dissimilarity, and the edge by which each came in.

        The first object came by no edge; its place holds -1. Between the objects at places p < q the minimax path has
        as its heaviest edge the heaviest of those at places p + 1 to q.
        """
        n = self.n_objects
        ends = self.edges.T.ravel()
        by_object = np.argsort(ends, kind="stable")
        first = np.searchsorted(ends[by_object], np.arange(n + 1)).tolist()
        touching = (by_object % (n - 1)).tolist()  # edges of each object, one object after the other
        low, high = self.edges.T.tolist()
        reached = bytearray(n)
        # Edges are sorted, so their numbers stand for their weights, ties included.
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
        """The clusters of single linkage as ranges of the VAT order: first place and the one after the last.

        One for each gap 1 to n - 1 between neighbours: the cluster that is made when the edge of that gap joins. It
        ends where the nearest heavier gaps are.
        """
        n = self.n_objects
        ranks = self.prim[1].tolist()
        before, after = [0] * n, [n] * n
        waiting: list[int] = []  # gaps that no heavier one has followed yet, heaviest first
        for gap in range(1, n):
            while waiting and ranks[waiting[-1]] < ranks[gap]:
                after[waiting.pop()] = gap
            before[gap] = waiting[-1] if waiting else 0
            waiting.append(gap)
        return np.array(before[1:], dtype=np.int64), np.array(after[1:], dtype=np.int64)

    def vat_order(self) -> NDArray[np.int64]:
        """The order of the objects in a VAT picture (Bezdek and Hathaway): positions, first to last.

        Ties as everywhere: of several largest pairs the first, of several nearest objects the edge that sorts first.

        Cost: no scan; a few microseconds an object.
        """
        return self.prim[0].copy()

    def join_heights(self) -> Float:
        """In VAT order, the weight of the edge by which each object came in, in `units`; 0 for the first."""
        came = self.prim[1]
        return np.concatenate([[0.0], self.weights[came[1:]]])

    def components(self, height: float) -> NDArray[np.int64]:
        """Labels of the groups that stay when edges heavier than `height` (in `units`) are cut; (n,).

        Groups are numbered by their first objects. Cost: no scan.
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
        """The tree as a `networkx.Graph`, edges with `weight`; nodes are positions, or `ids` if given."""
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
        """Write the tree to a .npz file, aside first and then renamed; no pickle."""
        target = Path(path)
        about = json.dumps({"tree_version": TREE_VERSION, "dasrel": __version__, "kind": self.kind})
        aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            with open(aside, "wb") as file:
                np.savez(
                    file,
                    edges=self.edges,
                    weights=self.weights,
                    largest=np.array(self.largest, dtype=np.float64),
                    about=np.frombuffer(about.encode("utf-8"), dtype=np.uint8),
                )
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Tree:
        """Read a tree that `save` wrote. Nothing is unpickled; a file that is not whole is refused."""
        where = shown(path, limit=200)
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                parts = {name: file[name] for name in _PARTS}
            about = json.loads(parts["about"].tobytes().decode("utf-8"))
            version, kind = about["tree_version"], about["kind"]
        except FileNotFoundError:
            raise StoreError(f"no tree at {where}; `minimum_spanning_tree(matrix).save(path)` makes one") from None
        except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise StoreError(f"{where} is not a dasrel tree: {shown(error, limit=200)}") from None
        if version != TREE_VERSION:
            raise StoreError(
                f"{where} has tree version {shown(version)}, this dasrel reads version {TREE_VERSION}:"
                " use the dasrel that wrote it, or make the tree again"
            )
        fault = tree_fault(parts["edges"], parts["weights"], parts["largest"], kind)
        if fault:
            raise StoreError(f"{where} is a damaged tree ({fault}); make it again")
        top, i, j = parts["largest"].tolist()
        return Tree(
            parts["edges"].astype(np.int64), parts["weights"].astype(np.float64), (top, int(i), int(j)), kind, scans=0
        )


def parents(ranks: Array, before: Array, after: Array) -> NDArray[np.int64]:
    """What each node of the dendrogram is merged into: the lighter of the heavier gaps beside it; (2 n,).

    A merge is known by its gap, 1 to n - 1, an object by n plus its place in VAT order. The root, and 0, which is no
    gap, are their own parents.
    """
    n = len(ranks)
    weight = np.append(ranks, n)  # both ends of the order count as heavier than any gap
    weight[0] = n
    place = np.arange(n)
    above = np.where(weight[before] < weight[after], before, after)
    root = int(ranks.argmax())
    above[root - 1] = root
    return np.concatenate([[0], above, np.where(weight[place] < weight[place + 1], place, place + 1)])


def tree_fault(edges: Array, weights: Array, largest: Array, kind: Any) -> str:
    """What keeps these arrays from being a tree; empty if nothing does."""
    n = len(edges) + 1 if edges.ndim == 2 else 0
    if n < 2 or edges.shape[1] != 2 or weights.shape != (n - 1,) or largest.shape != (3,) or kind not in KINDS:
        return f"shapes {edges.shape}, {weights.shape} and {largest.shape}, kind {shown(kind)}"
    if edges.dtype.kind != "i" or weights.dtype.kind != "f" or largest.dtype.kind != "f":
        return f"types {edges.dtype}, {weights.dtype} and {largest.dtype}"
    if not (np.isfinite(weights).all() and np.isfinite(largest).all() and (np.diff(weights) >= 0).all()):
        return "weights that are not finite and ascending"
    if edges.min() < 0 or edges.max() >= n or not (edges[:, 0] < edges[:, 1]).all():
        return f"edges that are not pairs i < j of {count_text(n, 'object')}"
    if not (0 <= largest[1] < largest[2] < n) or largest[0] < weights[-1]:
        return "a largest pair that is none"
    graph = csr_array((np.ones(n - 1, dtype=np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return "" if connected_components(graph, directed=False)[0] == 1 else "edges that do not join all objects"


def minimum_spanning_tree(matrix: Any, *, kind: str | None = None, memory: int | str | None = None) -> Tree:
    """The minimum spanning tree of the objects, by one scan. Zero dissimilarities are edges like any others.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, or an array with its `kind`. Similarities and kernels are seen as
        D = max(s_ii + s_jj - 2 s_ij, 0).
    memory
        Limit of the scan, as for every scan.

    Returns
    -------
    Tree
        The same to the last bit whatever the tiles, the threads or the cluster.

    Cost: one scan. A task takes two tiles of memory at most (three for similarities); the result has n - 1 edges.
    """
    source = as_matrix(matrix, kind=kind)
    found: Forest = scan(source, [forest_consumer(source)], memory=memory)[0]
    return Tree(np.column_stack([found.i, found.j]), found.weights.astype(np.float64), found.largest, source.kind)


def forest_consumer(source: TileSource) -> Consumer:
    """The consumer behind `minimum_spanning_tree`, for a scan that is shared with others; gives a `Forest`."""
    layout, diagonal = source.layout, source.diagonal

    def share(span: slice) -> Array | None:
        return None if diagonal is None else diagonal[span]

    side = Plan(layout).group_side * layout.tile
    edge = layout.dtype.itemsize + 16
    # The turned or shrunk tile, for similarities also their view; light edges while they are sorted; two forests while
    # they are merged.
    copies = 2 if diagonal is None else 3
    task = copies * layout.tile_bytes + forest.edge_memory(layout.tile) + 8 * 2 * side * edge
    return Consumer(
        _ForestKernel(source.kind), lambda parts: parts[0], share, part_bytes=2 * side * edge, task_memory=task,
        fixed_memory=16 * layout.n_objects * edge,
    )  # fmt: skip


@dataclass(frozen=True)
class _ForestKernel:
    kind: str

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Array | None, Array | None]) -> Any:
        return plan, shares, None

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (rows, columns), so_far = partial
        weights = forest.seen_as_dissimilarity(
            tile, self.kind,
            None if rows is None else rows[plan.inside(i)],
            None if columns is None else columns[plan.inside(j)],
        )  # fmt: skip
        found = forest.tile_forest(weights, plan.layout.span(i).start, plan.layout.span(j).start)
        return plan, (rows, columns), found if so_far is None else forest.merged(so_far, found)

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Forest, second: Forest) -> Forest:
        return forest.merged(first, second)
