"""The nearest neighbours of every object, by one scan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dasrel.engine.label_products import Squares
from dasrel.engine.reduce import Consumer, Kernel, Plan, Side, shares, strip_consumer
from dasrel.engine.relation import Relation
from dasrel.engine.scan import scan
from dasrel.kernels.nearest import Lists, Objects, merge_panel, merged
from dasrel.kernels.products import View, panel_rows
from dasrel.store.layout import Layout, TileSource
from dasrel.util import Array, Float, Index

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The k nearest neighbours of each object, nearest first; of equally near ones, those of smaller position."""

    values: Float
    """(n, k) dissimilarities; infinite where an object has fewer neighbours, and for objects left out."""
    positions: Index
    """(n, k) positions of the neighbours; -1 where there is none."""
    is_squared: bool
    """Whether the values are squared dissimilarities D, or distances."""

    @property
    def squared(self) -> Float:
        """(n, k) squared dissimilarities D."""
        return self.values if self.is_squared else self.values**2

    @property
    def distances(self) -> Float:
        """(n, k) distances: to the last bit those of a store of distances, else the square roots of max(D, 0)."""
        return np.sqrt(np.maximum(self.values, 0)) if self.is_squared else self.values

    def to_csr(self) -> csr_array:
        """Return the distances as a sparse matrix (n, n): row i has the neighbours of object i, by position."""
        n, _ = self.positions.shape
        order = np.argsort(self.positions, axis=1)
        columns = np.take_along_axis(self.positions, order, axis=1)
        there = columns >= 0
        ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        values = np.take_along_axis(self.distances, order, axis=1)
        return csr_array((values[there], columns[there], ends), shape=(n, n))

    def knn(self) -> tuple[Index, Float]:
        """Return positions and distances, (n, k + 1), whose first column is the object itself, as UMAP takes them.

        `umap.UMAP(n_neighbors=k + 1, precomputed_knn=nearest.knn())`.
        """
        own = np.arange(len(self.positions))[:, None]
        return np.hstack([own, self.positions]), np.hstack([np.zeros((len(own), 1)), self.distances])


def nearest_neighbours(
    seen: Relation | TileSource, k: int = 1, *, kept: Mask | None = None, memory: int | str | None = None
) -> Neighbours:
    """Return the k nearest other objects of every object.

    Parameters
    ----------
    seen
        A relation: neighbours by D. A matrix: by its values, which are not squared, so that no two that differ become
        equal by rounding; similarities and kernels are seen as max(D, 0).
    kept
        The objects to consider, (n,); by default all.

    Cost: one scan; 24 k n bytes.
    """
    source: TileSource = seen.matrix if isinstance(seen, Relation) else seen
    neighbours: Neighbours = scan(source, [neighbour_consumer(seen, k, kept)], memory=memory)[0]
    return neighbours


def neighbour_consumer(seen: Relation | TileSource, k: int, kept: Mask | None = None) -> Consumer:
    """Make the consumer of `nearest_neighbours`, for a scan that is shared with others."""
    values = SeenValues.of(seen)
    source: TileSource = seen.matrix if isinstance(seen, Relation) else seen
    layout, plan = source.layout, Plan(source.layout)
    panel, item = values.panel_bytes(layout), layout.dtype.itemsize

    def finish(parts: dict[int, Any]) -> Neighbours:
        lists = Lists.empty(layout.n_objects, k)
        for strip, part in parts.items():
            lists.values[plan.span(strip)], lists.positions[plan.span(strip)] = part
        return Neighbours(*lists, values.are_squared)

    return strip_consumer(
        source, _NeighbourKernel(values, k), finish, shares(source, kept=kept), sent=16 * k,
        # The best so far, and their merge with those of a panel; the panel's view, a copy of it, and its order.
        held=4 * 16 * k, scratch=panel * (5 + values.panels + 4 * 8 // item), fixed=16 * k, shared=1,
    )  # fmt: skip


@dataclass(frozen=True)
class SeenValues:
    """Makes the dissimilarities of a tile, panel by panel."""

    squares: Squares | None
    """Makes D; None where stored distances are used as they are."""
    not_negative: bool
    """Whether a D below 0 counts as 0."""

    @staticmethod
    def of(seen: Relation | TileSource) -> SeenValues:
        """Return D of a relation, or the values of a matrix, squared for other kinds than distance."""
        if isinstance(seen, Relation):
            view = seen.view.then("spread", seen.beta) if seen.beta else seen.view
            return SeenValues(Squares(view, seen.terms), not_negative=False)
        return SeenValues(None if seen.kind == "distance" else Squares(View(seen.kind)), not_negative=True)

    @property
    def are_squared(self) -> bool:
        """Whether they are D, or distances."""
        return self.squares is not None

    @property
    def panels(self) -> int:
        """Number of panels of scratch memory that they take."""
        return 0 if self.squares is None else self.squares.view.panels

    @staticmethod
    def panel_bytes(layout: Layout) -> int:
        """Return the size of a panel."""
        side, item = layout.tile, layout.dtype.itemsize
        return panel_rows((side, side), item) * side * item

    def bands(self, tile: Array, rows: Side, columns: Side) -> Iterator[tuple[slice, Array]]:
        """Yield each band of rows of a tile with its dissimilarities."""
        if self.squares is None:
            height = panel_rows(tile.shape, tile.itemsize)
            for start in range(0, len(tile), height):
                yield slice(start, min(start + height, len(tile))), tile[start : start + height]
            return
        for band, D in self.squares.bands(tile, rows, columns):
            yield band, np.maximum(D, 0, out=D if D.flags.writeable else None) if self.not_negative else D


@dataclass(frozen=True)
class _NeighbourKernel(Kernel):
    in_strips = True
    values: SeenValues
    k: int

    def empty(self, objects: int) -> Lists:
        return Lists.empty(objects, self.k)

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        down, across = (_kept(side) for side in (rows, columns))
        some = down.size < tile.shape[0] or across.size < tile.shape[1]
        on_columns = Objects(
            partial[0] if rows is columns else partial[1], columns.inside.start + across,
            columns.span.start - columns.inside.start,
        )  # fmt: skip
        for band, values in self.values.bands(tile, rows, columns):
            inside = down[np.searchsorted(down, band.start) : np.searchsorted(down, band.stop)]
            if not (inside.size and across.size):
                continue
            panel = values[np.ix_(inside - band.start, across)] if some else values
            on_rows = Objects(partial[0], rows.inside.start + inside, rows.span.start - rows.inside.start)
            merge_panel(panel, on_rows, on_columns, on_diagonal=rows is columns)
        return partial

    def combine(self, first: Lists, second: Lists) -> Lists:
        return merged(first, second)


def _kept(side: Side) -> Index:
    """Return the objects of a side that are considered, counted from its first."""
    kept = side.get("kept")
    return np.arange(side.span.stop - side.span.start) if kept is None else np.flatnonzero(kept)
