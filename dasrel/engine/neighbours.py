"""The nearest neighbours of every object, by one scan."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.label_products import Squares
from dasrel.engine.relation import Relation
from dasrel.engine.scan import Consumer, Plan, scan
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
    found: Neighbours = scan(relation.matrix, [neighbour_consumer(relation, k, kept)], memory=memory)[0]
    return found


def neighbour_consumer(relation: Relation, k: int, kept: Mask | None = None) -> Consumer:
    """Make the consumer of `nearest_neighbours`, for a scan that is shared with others."""
    source: TileSource = relation.matrix
    layout, plan, itself = source.layout, Plan(source.layout), source.diagonal
    view = relation.view.then("spread", relation.beta) if relation.beta else relation.view
    side, item = layout.tile, layout.dtype.itemsize
    panel = panel_rows((side, side), item) * side * item
    strip = plan.group_side * side

    def share(span: slice) -> _Share:
        return _Share(
            span.start,
            np.ones(span.stop - span.start, dtype=bool) if kept is None else kept[span],
            None if itself is None else itself[span],
        )

    def finish(parts: dict[int, Any]) -> Neighbours:
        squared = np.full((layout.n_objects, k), np.inf)
        positions = np.full((layout.n_objects, k), -1, dtype=np.int64)
        for strip, (values, where) in parts.items():
            squared[plan.span(strip)] = values
            positions[plan.span(strip)] = where
        return Neighbours(squared, positions)

    return Consumer(
        _NeighbourKernel(Squares(view, relation.terms), k), finish, share, in_strips=True,
        part_bytes=2 * strip * k * 16,
        # The best so far, its merge with that of a panel, the panel's view, a copy of it, and its order.
        task_memory=4 * strip * k * 16 + panel * (3 + view.panels + (0 if k == 1 else 4 * 8 // item)),
        fixed_memory=layout.n_objects * (16 * k + 9),
        share_bytes=layout.n_objects * 9,
    )  # fmt: skip


@dataclass
class _Share:
    """First object of a strip, which of its objects count, and their self-similarities."""

    start: int
    kept: Mask
    itself: Array | None

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex

    def __sizeof__(self) -> int:
        return int(self.kept.nbytes)


@dataclass(frozen=True)
class _NeighbourKernel:
    squares: Squares
    k: int

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[_Share, _Share]) -> Any:
        best = {
            strip: (np.full((len(share.kept), self.k), np.inf), np.full((len(share.kept), self.k), -1, dtype=np.int64))
            for strip, share in zip(group, shares, strict=True)
        }
        return plan, group, shares, best

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (a, b), shares, best = partial
        rows, columns = plan.layout.span(i), plan.layout.span(j)
        inside = plan.inside(i), plan.inside(j)
        of_rows, of_columns = (share.kept[span] for share, span in zip(shares, inside, strict=True))
        across = np.flatnonzero(of_columns)
        for band, D in self.squares.bands(tile, plan, i, j, shares):
            down = np.flatnonzero(of_rows[band])
            if not (down.size and across.size):
                continue
            if i == j:
                D = D.copy()
                D[np.arange(len(D)), band.start + np.arange(len(D))] = np.inf
            if down.size < len(D) or across.size < D.shape[1]:
                D = D[np.ix_(down, across)]
            at = band.start + down
            self._merge(best[a], inside[0].start + at, D, columns.start + across)
            if i != j:
                self._merge(best[b], inside[1].start + across, D.T, rows.start + at)
        return partial

    def _merge(self, best: tuple[Array, Array], at: Index, D: Array, names: Index) -> None:
        """Merge the neighbours in the rows of D, whose columns have these positions, into the best of objects `at`."""
        if self.k == 1:
            nearest = D.argmin(axis=1)[:, None]
        else:
            few = min(self.k, D.shape[1])
            nearest = np.argpartition(D, few - 1, axis=1)[:, :few]
        found = np.take_along_axis(D, nearest, axis=1), names[nearest]
        best[0][at], best[1][at] = _nearest((best[0][at], best[1][at]), found, self.k)

    def parts(self, partial: Any) -> dict[int, Any]:
        return dict(partial[3])

    def combine(self, first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        return _nearest(first, second, self.k)


def _nearest(first: tuple[Array, Array], second: tuple[Array, Array], k: int) -> tuple[Array, Array]:
    """Return the k smallest of both by row, by value and then by position; what is infinite has no position."""
    values, names = (np.concatenate(pair, axis=1) for pair in zip(first, second, strict=True))
    names = np.where(np.isinf(values), -1, names)
    order = np.lexsort((names, values), axis=1)[:, :k]
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(names, order, axis=1)
