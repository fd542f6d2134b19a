"""Dendrograms: cut them, order their leaves, compare them with the matrix, hand them to other tools. No recursion.

In the order of the leaves, a merge joins two adjacent ranges of positions. The gap between the two has the number of
the merge, and the merge at which the objects at positions p < q come together is the one of the largest number among
the gaps between them.
"""

from __future__ import annotations

import heapq
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.engine.pair_values import DISTANCE, SIMILARITY, SQUARED, PairValues, pair_values
from dasrel.engine.reduce import Consumer, Kernel, Side, shares
from dasrel.engine.scan import scan
from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.geometry.tree import Paths
from dasrel.util import Array, Float, Index, html
from dasrel.util.archives import ArchiveFormat, load_archive, save_archive
from dasrel.util.text import count_text, shown

FORMAT = ArchiveFormat(
    "dendrogram", "dendrogram_version", 1, ("children", "heights"),
    source="; `linkage(matrix).save(path)` makes one",
    remedy="use the dasrel that wrote it, or make it again",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Dendrogram:
    """A hierarchy of clusters; returned by `linkage`."""

    children: Index
    """(n - 1, 2) numbers of the two clusters of each merge, the smaller first. Objects have the numbers 0 to n - 1, the
    cluster that merge k makes has n + k."""
    heights: Float
    """(n - 1,) in `units`: ascending, and descending for similarities."""
    method: str
    """The linkage."""
    units: str
    """`distance`, `squared dissimilarity`, or `similarity`. Those of Ward's linkage are distances, as in SciPy."""
    scans: int = 0
    rounds: int = 0
    """Rounds of merges."""
    bytes_read: int = 0
    """From the matrix and from the scratch file."""
    bytes_written: int = 0
    """To the scratch file."""

    def __repr__(self) -> str:
        top = f", {self.units} up to {self.heights[-1]:g}" if len(self.heights) else ""
        return f"<Dendrogram: {count_text(self.n_objects, 'object')}, {self.method} linkage{top}>"

    def _repr_html_(self) -> str:
        facts = [("objects", f"{self.n_objects:,}"), ("linkage", self.method)]
        if len(self.heights):
            facts.append(("heights", f"{self.heights[0]:g} to {self.heights[-1]:g}, {self.units}"))
        if self.n_objects > 2:
            facts.append(("largest gap", f"between heights at {count_text(self.largest_gap(), 'cluster')}"))
        return html.card("Hierarchical clustering", [*facts, ("scans", f"{self.scans:,}")])

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return len(self.children) + 1

    @property
    def is_similarity(self) -> bool:
        """Whether heights are similarities, the largest first."""
        return self.units == SIMILARITY

    @cached_property
    def sizes(self) -> Index:
        """(2 n - 1,) number of objects of every cluster."""
        n = self.n_objects
        sizes = [1] * n
        for a, b in self.children.tolist():
            sizes.append(sizes[a] + sizes[b])
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def parents(self) -> Index:
        """(2 n - 1,) the number of the cluster that each one is merged into; the last is its own."""
        n = self.n_objects
        parents = np.arange(2 * n - 1)
        parents[self.children] = np.arange(n, 2 * n - 1)[:, None]
        return parents

    @cached_property
    def _first(self) -> Index:
        """(2 n - 1,) the first position of every cluster in the order of the leaves."""
        n = self.n_objects
        first, sizes = [0] * (2 * n - 1), self.sizes.tolist()
        children = self.children.tolist()
        for k in range(n - 2, -1, -1):
            a, b = children[k]
            first[a] = first[n + k]
            first[b] = first[n + k] + sizes[a]
        return np.array(first, dtype=np.int64)

    @cached_property
    def _positions(self) -> Index:
        """(n,) the position of every object in the order of the leaves."""
        return self._first[: self.n_objects]

    @cached_property
    def _gaps(self) -> Float:
        """(n,) one more than the number of the merge of the gap before each position; 0 for the first."""
        gaps = np.zeros(self.n_objects)
        gaps[self._first[self.children[:, 1]]] = np.arange(1, self.n_objects)
        return gaps

    def leaf_order(self) -> Index:
        """Return the objects from left to right, (n,), as in `scipy.cluster.hierarchy.leaves_list`. Cost: no scan."""
        return np.argsort(self._positions)

    # ------------------------------------------------------------------------------------------------------------ cuts

    def cut(self, n_clusters: int | None = None, *, height: float | None = None) -> Index:
        """Return labels, (n,), of the clusters of a cut; clusters are numbered by their first objects.

        Parameters
        ----------
        n_clusters
            The last merges are undone until there are so many clusters.
        height
            Merges above this height (for similarities, below) are undone.

        Cost: no scan; O(n).
        """
        if (n_clusters is None) == (height is None):
            raise InputError("a cut needs either a number of clusters or a height")
        n = self.n_objects
        kept = n - (self._wanted(n_clusters) if height is None else self.clusters_at(height))
        inside = self.parents < n + kept
        top = np.where(inside, self.parents, np.arange(2 * n - 1))
        while not np.array_equal(top[top], top):
            top = top[top]
        _, first, labels = np.unique(top[:n], return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[labels]

    def _wanted(self, n_clusters: Any) -> int:
        if isinstance(n_clusters, bool) or not isinstance(n_clusters, (int, np.integer)):
            raise InputError(f"n_clusters is {shown(n_clusters)}", remedy="give a whole number")
        if not 1 <= n_clusters <= self.n_objects:
            raise InputError(
                f"{count_text(int(n_clusters), 'cluster')} cannot be made of {count_text(self.n_objects, 'object')}",
                remedy=f"give 1 to {self.n_objects}",
            )
        return int(n_clusters)

    def clusters_at(self, height: float) -> int:
        """Return the number of clusters of a cut at a height. Cost: no scan."""
        level = float(height)
        if np.isnan(level):
            raise InputError("the height at which a dendrogram is cut is a number, not NaN")
        levels, at = (-self.heights, -level) if self.is_similarity else (self.heights, level)
        n, count = self.n_objects, int(self.n_objects - np.searchsorted(levels, at, side="right"))
        if n > 1 and count in (1, n):
            alone = f"every object is a cluster of its own: the first merge is at {self.heights[0]:g}"
            merge = f"all objects are one cluster: the last merge is at {self.heights[-1]:g}" if count == 1 else alone
            warnings.warn(f"at the height {level:g} {merge}, {self.units}", DasrelWarning, stacklevel=3)
        return count

    def as_similarities(self, own: float) -> Dendrogram:
        """Return the dendrogram with heights that are similarities s: of D = 2 own - 2 s, where s_ii = own for all i.

        >>> Dendrogram(np.array([[0, 1]]), np.array([10.0]), "average", SQUARED).as_similarities(100).heights
        array([95.])
        """
        return replace(self, heights=own - self.heights / 2, units=SIMILARITY)

    def largest_gap(self, most: int = 50) -> int:
        """Return the number of clusters, 2 to `most`, that lasts over the largest difference of heights.

        Cost: no scan.
        """
        steps = np.abs(np.diff(self.heights[-max(2, most) :]))
        if len(steps) == 0:
            raise InputError(
                f"{count_text(self.n_objects, 'object')} have no gap between heights", remedy="give at least 3"
            )
        return int(len(steps) + 1 - (len(steps) - 1 - int(np.argmax(steps[::-1]))))

    # --------------------------------------------------------------------------------------------- cophenetic distances

    def cophenetic(self, first: ArrayLike, second: ArrayLike) -> Float:
        """Return the heights at which pairs of objects come together, given the positions of the objects.

        An object and itself have 0, and NaN for similarities.

        Cost: no scan; n log n numbers at the first call, then O(pairs).
        """
        i, j = (np.atleast_1d(np.asarray(pairs)) for pairs in (first, second))
        for given in (i, j):
            if given.dtype.kind not in "iu" or (given.size and not 0 <= given.min() <= given.max() < self.n_objects):
                raise InputError(f"pairs are given by positions from 0 to {self.n_objects - 1}")
        p, q = self._positions[i], self._positions[j]
        low, high = np.minimum(p, q) + 1, np.maximum(p, q) + 1
        length = np.maximum(high - low, 1)
        level = np.floor(np.log2(length)).astype(np.int64)
        table = self._largest_gaps
        last = np.maximum(high - (1 << level), low)
        largest_gaps = np.maximum(
            table[level, np.minimum(low, self.n_objects - 1)], table[level, np.minimum(last, self.n_objects - 1)]
        )
        return self._heights_of_gaps[np.where(p == q, 0, largest_gaps)]

    @cached_property
    def _largest_gaps(self) -> NDArray[np.int64]:
        """(levels, n) the largest gap of the 2^level gaps from each position on."""
        rows = [self._gaps.astype(np.int64)]
        while 2 ** len(rows) < self.n_objects:
            step, row = 2 ** (len(rows) - 1), rows[-1]
            rows.append(np.maximum(row, np.append(row[step:], np.zeros(step, dtype=np.int64))))
        return np.array(rows)

    @cached_property
    def _heights_of_gaps(self) -> Float:
        return np.concatenate([[np.nan if self.is_similarity else 0.0], self.heights])

    def cophenetic_correlation(self, matrix: Any, *, kind: str | None = None, memory: int | str | None = None) -> float:
        """Return the correlation over all pairs of the cophenetic distances with the values of the matrix.

        The values are in the units of the dendrogram; for Ward's linkage they are distances, as in SciPy. NaN where all
        values, or all heights, are equal.

        Cost: one scan; three tiles of float64 per task.
        """
        values = self.values_of(matrix, kind=kind)
        layout = values.matrix.layout
        if layout.n_objects != self.n_objects:
            raise InputError(f"the dendrogram has {self.n_objects} objects and the matrix {layout.n_objects}")
        mean = float(np.average(self.heights, weights=self._pairs)) if len(self.heights) else 0.0
        kernel = _CorrelationKernel(values, self._gaps, self._heights_of_gaps, mean)
        tile = layout.tile**2 * 8
        consumer = Consumer(
            kernel, share=shares(values.matrix, positions=self._positions), part_bytes=48, task_memory=4 * tile,
            fixed_memory=64 * self.n_objects,
        )  # fmt: skip
        sums = scan(values.matrix, [consumer], memory=memory)[0]
        n, c, d, cc, dd, cd = sums
        if n == 0:
            return float("nan")
        spread = (cc - c * c / n) * (dd - d * d / n)
        return float((cd - c * d / n) / np.sqrt(spread)) if spread > 0 else float("nan")

    def values_of(self, matrix: Any, *, kind: str | None = None) -> PairValues:
        """Return the values of a matrix's pairs that this dendrogram's heights are compared with."""
        values = pair_values(matrix, kind=kind, direct=self.is_similarity)
        if values.units == SQUARED and self.units == DISTANCE:
            return _Root(values.matrix, SQUARED, values.relation)
        return values

    @property
    def _pairs(self) -> Float:
        """(n - 1,) pairs of objects that each merge brings together."""
        pairs: Float = self.sizes[self.children].astype(np.float64).prod(axis=1)
        return pairs

    # -------------------------------------------------------------------------------------------------- for other tools

    def to_scipy(self) -> Float:
        """Return the merges as `scipy.cluster.hierarchy` has them, (n - 1, 4).

        SciPy knows no similarities: they become the largest one at which anything was merged minus themselves.

        Cost: no scan.
        """
        heights = self.heights[0] - self.heights if self.is_similarity and len(self.heights) else self.heights
        return np.column_stack([self.children.astype(np.float64), heights, self.sizes[self.n_objects :]])

    def to_newick(self, ids: Sequence[str] | Array | None = None) -> str:
        """Return the tree in Newick format, branches as long as the differences of heights; leaves are `ids`.

        For similarities, leaves are at the height of the first merge. Cost: no scan; O(n).
        """
        n, names = self.n_objects, self._names(ids)
        if n == 1:
            return f"{_newick_name(names[0])};"
        start = self.heights[0] if self.is_similarity else 0.0
        height = np.concatenate([np.full(n, start), self.heights])
        lengths = np.abs(height[self.parents] - height).tolist()
        children = self.children.tolist()
        parts: list[str] = []
        waiting: list[Any] = [2 * n - 2]
        while waiting:
            part = waiting.pop()
            if isinstance(part, str):
                parts.append(part)
                continue
            length = "" if part == 2 * n - 2 else f":{lengths[part]:.9g}"
            if part < n:
                parts.append(_newick_name(names[part]) + length)
            else:
                a, b = children[part - n]
                parts.append("(")
                waiting += [f"){length}", b, ",", a]
        return "".join(parts) + ";"

    def to_networkx(self, ids: Sequence[str] | Array | None = None) -> Any:
        """Return a `networkx.DiGraph` with an edge from each cluster to its two parts; nodes have `height` and `size`.

        Leaves are positions, or `ids` if given; merges are the numbers n to 2 n - 2. Cost: no scan.
        """
        import networkx

        n = self.n_objects
        names: list[Any] = list(range(n)) if ids is None else self._names(ids)
        graph = networkx.DiGraph()
        graph.add_nodes_from(names, size=1, height=None if self.is_similarity else 0.0)
        for k, (pair, height) in enumerate(zip(self.children.tolist(), self.heights.tolist(), strict=True)):
            graph.add_node(n + k, size=int(self.sizes[n + k]), height=height)
            graph.add_edges_from((n + k, names[child] if child < n else child) for child in pair)
        return graph

    def _names(self, ids: Sequence[str] | Array | None) -> list[str]:
        names = [str(k) for k in range(self.n_objects)] if ids is None else [str(name) for name in ids]
        if len(names) != self.n_objects:
            raise InputError(
                f"{count_text(len(names), 'id')} for a dendrogram of {count_text(self.n_objects, 'object')}"
            )
        return names

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the dendrogram to a .npz file, atomically; no pickle."""
        save_archive(
            path, FORMAT, {"children": self.children, "heights": self.heights},
            {"method": self.method, "units": self.units},
        )  # fmt: skip

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Dendrogram:
        """Read a dendrogram that `save` wrote. Nothing is unpickled; a file that is not complete is refused."""
        parts, about = load_archive(path, FORMAT)
        children, heights, units = parts["children"], parts["heights"], about.get("units")
        fault = _fault(children, heights, units)
        if fault:
            raise StoreError(f"{shown(path, limit=200)} is a damaged dendrogram ({fault})", remedy="make it again")
        return Dendrogram(children.astype(np.int64), heights.astype(np.float64), str(about.get("method")), str(units))


def in_merge_order(children: Index, members: Index, heights: Float) -> tuple[Index, Float]:
    """Return merges in the order in which merging one nearest pair after the other makes them, numbered by it.

    Of several merges of the same height, the one that comes first has the smallest of the smallest members of its two
    parts, then the smaller of the other ones, among those whose parts exist by then.

    Parameters
    ----------
    children
        (n - 1, 2) numbers of the parts of each merge, in any order in which parts come before their unions.
    members
        (n - 1, 2) the smallest members of the two parts, the smaller first.
    """
    n = len(heights) + 1
    order = np.lexsort((members[:, 1], members[:, 0], heights))
    place = np.empty(n - 1, dtype=np.int64)
    place[order] = np.arange(n - 1)
    late = children >= n
    if n > 2 and (place[children[late] - n] > np.repeat(place[:, None], 2, axis=1)[late]).any():
        order = _order_of_ties(children, members, heights)
        place[order] = np.arange(n - 1)
    number = np.concatenate([np.arange(n), n + place])
    return np.sort(number[children[order]], axis=1), heights[order]


def _order_of_ties(children: Index, members: Index, heights: Float) -> Index:
    n = len(heights) + 1
    keys = list(zip(heights.tolist(), *members.T.tolist(), range(n - 1), strict=True))
    missing = (children >= n).sum(axis=1).tolist()
    parent = np.full(n - 1, -1)
    inner = children >= n
    parent[children[inner] - n] = np.nonzero(inner)[0]
    above = parent.tolist()
    waiting = [keys[k] for k in range(n - 1) if missing[k] == 0]
    heapq.heapify(waiting)
    order = []
    while waiting:
        k = heapq.heappop(waiting)[-1]
        order.append(k)
        if above[k] >= 0:
            missing[above[k]] -= 1
            if missing[above[k]] == 0:
                heapq.heappush(waiting, keys[above[k]])
    return np.array(order, dtype=np.int64)


def _fault(children: Array, heights: Array, units: Any) -> str:
    """Return what is wrong with the arrays of a dendrogram; an empty string if nothing is."""
    n = len(heights) + 1
    if children.shape != (n - 1, 2) or heights.ndim != 1 or units not in (DISTANCE, SQUARED, SIMILARITY):
        return f"shapes {children.shape} and {heights.shape}, units {shown(units)}"
    if children.dtype.kind != "i" or heights.dtype.kind != "f" or not np.isfinite(heights).all():
        return f"types {children.dtype} and {heights.dtype}, or values that are not finite"
    if not np.array_equal(np.sort(children.ravel()), np.arange(2 * n - 2)):
        return "clusters that are not merged once each"
    if not (children < np.arange(n, 2 * n - 1)[:, None]).all():
        return "clusters that are merged before they are made"
    steps = np.diff(heights)
    return "" if ((steps <= 0) if units == SIMILARITY else (steps >= 0)).all() else "heights that are not in order"


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-+/|#@")


def _newick_name(name: str) -> str:
    """Return a name of a leaf, quoted where the format needs it; a plain underscore would be read as a space."""
    if name and set(name) <= _PLAIN and "_" not in name:
        return name
    return "'" + name.replace("'", "''") + "'"


class _Root(PairValues):
    """Squared dissimilarities seen as distances."""

    def block(self, tile: Array, rows: slice, columns: slice) -> Array:
        """Return the roots of the values."""
        return np.sqrt(np.maximum(super().block(tile, rows, columns), 0))


@dataclass(frozen=True)
class _CorrelationKernel(Kernel):
    """Sums over the pairs of a tile: their number, cophenetic c, value d, c c, d d, c d, both from a fixed point."""

    values: PairValues
    gaps: Float
    heights: Float
    mean: float

    def empty(self, objects: int) -> Float:
        return np.zeros(6)

    def add(self, partial: Float, tile: Array, rows: Side, columns: Side) -> Float:
        d = self.values.block(tile, rows.span, columns.span)
        path = Paths.of(self.gaps, rows.get("positions"), columns.get("positions"))
        for start in range(0, len(d), 256):
            band = slice(start, min(start + 256, len(d)))
            c = self.heights[path.between(band).astype(np.int64)]
            values = d[band].astype(np.float64)
            if rows is columns:
                above = np.triu_indices(len(c), band.start + 1, len(d))
                c, values = c[above], values[above]
            c, values = c.ravel() - self.mean, values.ravel() - self.mean
            partial += [c.size, c.sum(), values.sum(), c @ c, values @ values, c @ values]
        return partial
