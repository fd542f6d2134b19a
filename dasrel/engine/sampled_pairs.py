"""The dissimilarities between some objects, all of their pairs, from the tiles that a scan reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.engine.reduce import Consumer, Kernel, Plan, Side
from dasrel.engine.relation import Positions, Relation, chosen_in, chosen_shares
from dasrel.kernels.products import View
from dasrel.util import Array, Float


def pairs_consumer(base: Relation, positions: Positions, dtype: Any = np.float64) -> Consumer:
    """Make the consumer of the squared dissimilarities between objects, (m, m), without the spread and terms of `base`.

    Parameters
    ----------
    positions
        Of the objects, in order.
    """
    layout, m, dtype = base.matrix.layout, len(positions), np.dtype(dtype)

    def finish(parts: dict[int, Any]) -> Array:
        D = np.empty((m, m), dtype)
        for down, across, block in parts.pop(0):
            rows, columns = np.searchsorted(positions, down), np.searchsorted(positions, across)
            D[np.ix_(rows, columns)] = block
            D[np.ix_(columns, rows)] = block.T
        np.fill_diagonal(D, base.view.at_zero)
        return D

    side = min(m, Plan(layout).group_side * layout.tile)
    return Consumer(
        _PairsKernel(base.view, dtype), finish, chosen_shares(base.matrix, positions),
        part_bytes=dtype.itemsize * side * side,
        task_memory=dtype.itemsize * side * side + 8 * side * side * (1 + base.view.panels),
        fixed_memory=2 * dtype.itemsize * m * m, share_bytes=16 * layout.n_objects,
    )  # fmt: skip


def add_terms(D: Array, base: Relation, positions: Positions) -> None:
    """Add the terms of a relation to what its tiles have given."""
    if not base.terms:
        return
    for at in range(0, len(positions), 64):
        some = positions[at : at + 64]
        unit = np.zeros((len(some), base.n_objects))
        unit[np.arange(len(some)), some] = 1.0
        for weight, term in base.terms:
            D[at : at + 64] += weight * term.left(unit)[:, positions]


def seen(view: View, tile: Array, rows: Side, columns: Side, r: Any = slice(None), c: Any = slice(None)) -> Float:
    """Return part of a tile as squared dissimilarities, float64; r and c count from the starts of its sides."""
    raw = tile.astype(np.float64)
    own, other = (None if side.itself is None else side.itself[at] for side, at in ((rows, r), (columns, c)))
    return view.apply(raw, np.empty_like(raw), row_self=own, column_self=other)


@dataclass(frozen=True)
class _PairsKernel(Kernel):
    view: View
    dtype: np.dtype[Any]

    def empty(self, objects: int) -> list[Any]:
        return []

    def add(self, partial: list[Any], tile: Array, rows: Side, columns: Side) -> list[Any]:
        down, across = chosen_in(rows), chosen_in(columns)
        if down.size and across.size:
            values = seen(self.view, tile[np.ix_(down, across)], rows, columns, down, across)
            block = values.astype(self.dtype, copy=False)
            partial.append((down + rows.span.start, across + columns.span.start, block))
        return partial


def columns_consumer(base: Relation, positions: Positions, dtype: Any = np.float32) -> Consumer:
    """Make the consumer of the dissimilarities d of some objects to all, (m, n), d = sqrt(max(D, 0)).

    Parameters
    ----------
    base
        A relation without spread and terms.
    positions
        Of the m objects, in order.
    """
    layout, m, dtype = base.matrix.layout, len(positions), np.dtype(dtype)

    def finish(parts: dict[int, Any]) -> Array:
        d = np.empty((m, layout.n_objects), dtype)
        for some, span, block in parts.pop(0):
            d[np.searchsorted(positions, some), span] = block
        return d

    strip = Plan(layout).group_side * layout.tile
    side = int(np.bincount(positions // strip).max())
    return Consumer(
        _ColumnsKernel(base.view, dtype), finish, chosen_shares(base.matrix, positions),
        part_bytes=2 * dtype.itemsize * side * strip,
        task_memory=2 * dtype.itemsize * side * strip + 8 * min(m, layout.tile) * layout.tile * (2 + base.view.panels),
        fixed_memory=2 * dtype.itemsize * m * layout.n_objects, share_bytes=16 * layout.n_objects,
    )  # fmt: skip


@dataclass(frozen=True)
class _ColumnsKernel(Kernel):
    view: View
    dtype: np.dtype[Any]

    def empty(self, objects: int) -> list[Any]:
        return []

    def add(self, partial: list[Any], tile: Array, rows: Side, columns: Side) -> list[Any]:
        down, across = chosen_in(rows), chosen_in(columns)
        if down.size:
            D = seen(self.view, tile[down], rows, columns, r=down)
            if rows is columns:
                D[np.arange(len(down)), down] = self.view.at_zero
            partial.append((down + rows.span.start, columns.span, self._roots(D)))
        if rows is not columns and across.size:
            D = seen(self.view, tile[:, across], rows, columns, c=across)
            partial.append((across + columns.span.start, rows.span, self._roots(D.T)))
        return partial

    def _roots(self, D: Float) -> Array:
        return np.sqrt(np.maximum(D, 0), dtype=np.float64).astype(self.dtype)
