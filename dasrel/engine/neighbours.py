"""The nearest neighbours of every object, by one scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.label_products import Squares
from dasrel.engine.reduce import Consumer, Kernel, Plan, Side, shares, strip_consumer
from dasrel.engine.relation import Relation
from dasrel.engine.scan import scan
from dasrel.kernels.products import panel_rows
from dasrel.store.layout import TileSource
from dasrel.util import Array, Float, Index

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The k nearest neighbours of each object, nearest first; of equally near ones, those of smaller position."""

    squared: Float
    """(n, k) squared dissimilarities D; infinite where an object has fewer neighbours, and for objects left out."""
    positions: Index
    """(n, k) positions of the neighbours; -1 where there is none."""


def nearest_neighbours(
    relation: Relation, k: int = 1, *, kept: Mask | None = None, memory: int | str | None = None
) -> Neighbours:
    """Return the k nearest other objects of every object, by D.

    Parameters
    ----------
    kept
        The objects to consider, (n,); by default all.

    Cost: one scan; 24 k n bytes.
    """
    neighbours: Neighbours = scan(relation.matrix, [neighbour_consumer(relation, k, kept)], memory=memory)[0]
    return neighbours


def neighbour_consumer(relation: Relation, k: int, kept: Mask | None = None) -> Consumer:
    """Make the consumer of `nearest_neighbours`, for a scan that is shared with others."""
    source: TileSource = relation.matrix
    layout, plan = source.layout, Plan(source.layout)
    view = relation.view.then("spread", relation.beta) if relation.beta else relation.view
    side, item = layout.tile, layout.dtype.itemsize
    panel = panel_rows((side, side), item) * side * item
    everybody = np.ones(layout.n_objects, dtype=bool)

    def finish(parts: dict[int, Any]) -> Neighbours:
        squared = np.full((layout.n_objects, k), np.inf)
        positions = np.full((layout.n_objects, k), -1, dtype=np.int64)
        for strip, (values, where) in parts.items():
            squared[plan.span(strip)] = values
            positions[plan.span(strip)] = where
        return Neighbours(squared, positions)

    return strip_consumer(
        source, _NeighbourKernel(Squares(view, relation.terms), k), finish,
        shares(source, kept=everybody if kept is None else kept), sent=16 * k,
        # The best so far, its merge with that of a panel; the panel's view, a copy of it, and its order.
        held=4 * 16 * k, scratch=panel * (3 + view.panels + (0 if k == 1 else 4 * 8 // item)),
        fixed=16 * k + 9, shared=9,
    )  # fmt: skip


@dataclass(frozen=True)
class _NeighbourKernel(Kernel):
    in_strips = True
    squares: Squares
    k: int

    def empty(self, objects: int) -> tuple[Array, Array]:
        return np.full((objects, self.k), np.inf), np.full((objects, self.k), -1, dtype=np.int64)

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        of_rows, across = rows.get("kept"), np.flatnonzero(columns.get("kept"))
        for band, D in self.squares.bands(tile, rows, columns):
            down = np.flatnonzero(of_rows[band])
            if not (down.size and across.size):
                continue
            if rows is columns:
                D = D.copy()
                D[np.arange(len(D)), band.start + np.arange(len(D))] = np.inf
            if down.size < len(D) or across.size < D.shape[1]:
                D = D[np.ix_(down, across)]
            at = band.start + down
            self._merge(partial[0], rows.inside.start + at, D, columns.span.start + across)
            if rows is not columns:
                self._merge(partial[1], columns.inside.start + across, D.T, rows.span.start + at)
        return partial

    def _merge(self, best: tuple[Array, Array], at: Index, D: Array, names: Index) -> None:
        """Merge the neighbours in the rows of D, whose columns have these positions, into the best of objects `at`."""
        if self.k == 1:
            nearest = D.argmin(axis=1)[:, None]
        else:
            few = min(self.k, D.shape[1])
            nearest = np.argpartition(D, few - 1, axis=1)[:, :few]
        candidates = np.take_along_axis(D, nearest, axis=1), names[nearest]
        best[0][at], best[1][at] = _nearest((best[0][at], best[1][at]), candidates, self.k)

    def combine(self, first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        return _nearest(first, second, self.k)


def _nearest(first: tuple[Array, Array], second: tuple[Array, Array], k: int) -> tuple[Array, Array]:
    """Return the k smallest of both by row, by value and then by position; what is infinite has no position."""
    values, names = (np.concatenate(pair, axis=1) for pair in zip(first, second, strict=True))
    names = np.where(np.isinf(values), -1, names)
    order = np.lexsort((names, values), axis=1)[:, :k]
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(names, order, axis=1)
