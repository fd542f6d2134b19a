"""Questions about pairs that one scan answers: how far D + gamma Delta is from D, and which objects are duplicates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel import tiles
from dasrel.graph import Consumer, Plan
from dasrel.relation import Relation
from dasrel.scan import TileSource, scan
from dasrel.tiles import View
from dasrel.ultrametric import Paths, Ultrametric

Array = NDArray[Any]
Float = NDArray[np.float64]

MOST_NAMED = 3


@dataclass(frozen=True)
class Sums:
    """Over all pairs of objects: d is D, e is Delta."""

    pairs: int
    d: float
    dd: float
    e: float
    ee: float
    de: float
    low: int
    """Pairs with D at or below a bound."""

    def stress(self, gamma: float) -> float:
        """Kruskal's sqrt(sum (d - s d~)^2 / sum d^2) of d~ = d + gamma e, with the best scale s."""
        both, new = self.dd + gamma * self.de, self.dd + 2 * gamma * self.de + gamma**2 * self.ee
        return math.sqrt(max(0.0, 1 - both**2 / (self.dd * new))) if self.dd > 0 and new > 0 else 0.0

    def ratio(self, gamma: float) -> float:
        """Sum of gamma Delta over the sum of D."""
        return gamma * self.e / self.d if self.d > 0 else 0.0


def compare(
    D: Relation, delta: View | Ultrametric | None, *, bound: float = 0.0, memory: int | str | None = None
) -> Sums:
    """Sums over all pairs of D and Delta: a view of the same matrix, an ultrametric, or 1 for all pairs.

    `Sums.low` counts pairs of which the stored squared dissimilarity is at or below `bound`.

    Cost: one scan. Sums are float64.
    """
    places: Array | None = None
    heights: Float | None = None
    if isinstance(delta, Ultrametric):
        places, heights = delta.places, delta.heights
    kernel = _Sums(D.view, D.beta, delta if isinstance(delta, View) else None, heights, bound)
    tile = D.matrix.layout.tile
    task = 5 * 8 * tiles.panel_rows((tile, tile), 8) * tile + (0 if heights is None else heights.nbytes + 64 * tile)
    consumer = Consumer(kernel, lambda parts: Sums(*parts[0]), _shares(D.matrix, places), task_memory=task)
    result: Sums = scan(D.matrix, [consumer], memory=memory)[0]
    return result


def _shares(source: TileSource, places: Array | None = None) -> Any:
    own = source.diagonal

    def share(span: slice) -> tuple[Array | None, Array | None]:
        return None if own is None else own[span], None if places is None else places[span]

    return share


@dataclass(frozen=True)
class _Sums:
    view: View
    beta: float
    delta: View | None
    heights: Float | None
    bound: float

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        return plan, shares, np.zeros(7, dtype=object)

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (rows, columns), so_far = partial
        r, c = plan.inside(i), plan.inside(j)
        row_self, column_self = (None if s[0] is None else s[0][k] for s, k in ((rows, r), (columns, c)))
        path = None if self.heights is None else Paths.of(self.heights, rows[1][r], columns[1][c])
        for band in tiles.panels(tile.shape, tiles.panel_rows(tile.shape, 8)):
            raw = tile[band].astype(np.float64)
            own = None if row_self is None else row_self[band]
            stored = View(self.view.kind).apply(raw, np.empty_like(raw), row_self=own, column_self=column_self)
            d = self.view.apply(raw, np.empty_like(raw), row_self=own, column_self=column_self) + self.beta
            if path is not None:
                e = path.between(band)
            elif self.delta is not None:
                e = self.delta.apply(raw, np.empty_like(raw), row_self=own, column_self=column_self)
            else:
                e = np.ones_like(d)
            low = stored <= self.bound
            if i == j:
                above = np.arange(d.shape[1])[None, :] > np.arange(band.start, band.stop)[:, None]
                d, e, low = d * above, e * above, low & above
                count = int(above.sum())
            else:
                count = d.size
            sums = (d.sum(), np.vdot(d, d), e.sum(), np.vdot(e, e), np.vdot(d, e))
            so_far = so_far + np.array([count, *(float(x) for x in sums), int(low.sum())], dtype=object)
        return plan, (rows, columns), so_far

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Array, second: Array) -> Array:
        return first + second


def row_marks(D: Relation, *, memory: int | str | None = None) -> NDArray[np.uint64]:
    """A number for each object; objects with equal rows have equal numbers, others have not (but once in 2^60).

    Sums of the values' bits times random odd numbers, in whole numbers modulo 2^64: exact whatever the order.

    Cost: one scan.
    """
    source, n = D.matrix, D.n_objects
    weights = np.random.default_rng(0).integers(0, 2**63, size=n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    plan = Plan(source.layout)

    def finish(parts: dict[int, Array]) -> NDArray[np.uint64]:
        return np.concatenate([parts[strip] for strip in range(plan.strips)])

    tile = source.layout.tile
    consumer = Consumer(
        _Marks(D.view), finish, _shares(source, weights.view(np.int64)), in_strips=True,
        part_bytes=16 * plan.group_side * tile, task_memory=5 * 8 * tiles.panel_rows((tile, tile), 8) * tile,
    )  # fmt: skip
    result: NDArray[np.uint64] = scan(source, [consumer], memory=memory)[0]
    return result


@dataclass(frozen=True)
class _Marks:
    view: View

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        sums = {strip: np.zeros(len(share[1]), dtype=np.uint64) for strip, share in zip(group, shares, strict=True)}
        return plan, group, shares, sums

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (a, b), (rows, columns), sums = partial
        r, c = plan.inside(i), plan.inside(j)
        row_self, column_self = (None if s[0] is None else s[0][k] for s, k in ((rows, r), (columns, c)))
        of_rows, of_columns = rows[1][r].view(np.uint64), columns[1][c].view(np.uint64)
        for band in tiles.panels(tile.shape, tiles.panel_rows(tile.shape, 8)):
            own = None if row_self is None else row_self[band]
            raw = tile[band]
            offset = band.start if i == j else None
            seen = self.view.apply(raw, np.empty_like(raw), offset=offset, row_self=own, column_self=column_self)
            bits = (seen.astype(np.float64) + 0.0).view(np.uint64)  # minus zero is zero
            sums[a][r][band] += (bits * of_columns).sum(axis=1, dtype=np.uint64)
            if i != j:
                sums[b][c] += (bits * of_rows[band, None]).sum(axis=0, dtype=np.uint64)
        return partial

    def parts(self, partial: Any) -> dict[int, Any]:
        sums: dict[int, Any] = partial[3]
        return sums

    def combine(self, first: Array, second: Array) -> Array:
        result: Array = first + second
        return result


def unequal_zeros(
    D: Relation, marks: NDArray[np.uint64], *, memory: int | str | None = None
) -> tuple[int, list[tuple[int, int]]]:
    """How many pairs have D <= 0 but different rows, and the first of them.

    Cost: one scan.
    """
    kernel = _Zeros(D.view)
    consumer = Consumer(
        kernel, lambda parts: parts[0], _shares(D.matrix, marks.view(np.int64)),
        task_memory=5 * 8 * tiles.panel_rows((D.matrix.layout.tile,) * 2, 8) * D.matrix.layout.tile,
    )  # fmt: skip
    count, pairs = scan(D.matrix, [consumer], memory=memory)[0]
    return count, pairs


@dataclass(frozen=True)
class _Zeros:
    view: View

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        return plan, shares, (0, [])

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (rows, columns), so_far = partial
        r, c = plan.inside(i), plan.inside(j)
        row_self, column_self = (None if s[0] is None else s[0][k] for s, k in ((rows, r), (columns, c)))
        first_row, first_column = plan.layout.span(i).start, plan.layout.span(j).start
        for band in tiles.panels(tile.shape, tiles.panel_rows(tile.shape, 8)):
            own = None if row_self is None else row_self[band]
            raw = tile[band]
            seen = self.view.apply(raw, np.empty_like(raw), row_self=own, column_self=column_self)
            p, q = np.nonzero(seen <= 0)
            p = p + band.start
            keep = rows[1][r][p] != columns[1][c][q]
            if i == j:
                keep &= p < q
            p, q = p[keep] + first_row, q[keep] + first_column
            named = list(zip(p[:MOST_NAMED].tolist(), q[:MOST_NAMED].tolist(), strict=True))
            so_far = self.combine(so_far, (len(p), named))
        return plan, (rows, columns), so_far

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Any, second: Any) -> Any:
        return first[0] + second[0], (first[1] + second[1])[:MOST_NAMED]
