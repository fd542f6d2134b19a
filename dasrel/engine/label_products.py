"""Sums of a relation by the labels of partitions: d Z and D Z, Z one-hot, diameters, and sums within clusters.

d are dissimilarities, D their squares: d = sqrt(D), and 0 where a similarity gives a negative D. Sums by label take one
addition per number and partition, however many clusters there are; see `kernels.label_sums`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.scan import Consumer, Plan
from dasrel.kernels import label_sums, products, within_sums
from dasrel.kernels.label_sums import Labels
from dasrel.kernels.products import View
from dasrel.names import is_similarity
from dasrel.store.layout import TileSource
from dasrel.util import Array, Float


@dataclass(frozen=True)
class Squares:
    """Makes D from the stored values of a tile, complete with spread and terms."""

    view: View
    """Spread included."""
    terms: tuple[tuple[float, Any], ...] = ()
    """Weights, and matrices that need no tiles (`relation.Term`)."""

    def bands(
        self, tile: Array, plan: Plan, i: int, j: int, shares: tuple[LabelShare, LabelShare]
    ) -> Iterator[tuple[slice, Array]]:
        """Yield each band of rows of tile (i, j) with its D, which is overwritten by that of the next one."""
        rows, columns = plan.layout.span(i), plan.layout.span(j)
        row_self, column_self = (
            None if share.itself is None else share.itself[plan.inside(k)]
            for share, k in zip(shares, (i, j), strict=True)
        )
        height = _panel_rows(max(tile.shape), tile.itemsize)
        buffer = np.empty((height, tile.shape[1]), dtype=tile.dtype)
        for band in products.panels(tile.shape, height):
            values, out = tile[band], buffer[: band.stop - band.start]
            own = None if row_self is None else row_self[band]
            offset = band.start if i == j else None
            D = self.view.apply(values, out, offset=offset, row_self=own, column_self=column_self)
            if self.terms:
                np.copyto(out, D)
                D = out
            for weight, term in self.terms:
                D += weight * term.block(slice(rows.start + band.start, rows.start + band.stop), columns)
            yield band, D


@dataclass(frozen=True)
class LabelSums:
    """The result of a label consumer. The diagonals of d and D are zero."""

    plain: Float
    """d Z, (clusters, n)."""
    squared: Float | None
    """D Z, (clusters, n), if wanted."""
    below: float
    """The sum of the negative values of D over all ordered pairs, if D is wanted; at most 0."""


def label_consumer(
    source: TileSource, squares: Squares, labels: Labels, first: Sequence[int], *, squared: bool
) -> Consumer:
    """Make the consumer of d Z and, if `squared`, of D Z, whose result is `LabelSums`.

    Parameters
    ----------
    labels
        (partitions, n): the row of the result in which each object is summed. Those of partition p are from first[p]
        to below first[p + 1].

    Cost: memory of two float64 numbers per cluster and object for each of d and D.
    """
    layout, plan, clusters = source.layout, Plan(source.layout), first[-1]
    side, item = layout.tile, layout.dtype.itemsize
    kernel = _LabelKernel(
        squares,
        tuple(first),
        squared=squared,
        stored=source.kind == "distance" and not (squares.view.steps or squares.terms),
        below=squared and (is_similarity(source.kind) or bool(squares.terms)),
    )

    def finish(parts: dict[int, Any]) -> LabelSums:
        results = [np.empty((rows, layout.n_objects)) for rows in kernel.heights]
        for strip in list(parts):
            for result, sums in zip(results, parts.pop(strip), strict=True):
                result[:, plan.span(strip)] = sums
        below = float(results.pop()[0].sum()) if kernel.below else 0.0
        return LabelSums(results[0], results[1] if squared else None, below)

    strip, columns = plan.group_side * side, sum(kernel.heights)
    scratch = label_sums.scratch_memory(len(labels), clusters, _panel_rows(side, item), side, item)
    return Consumer(
        kernel, finish, _share(source, labels), in_strips=True,
        part_bytes=2 * strip * columns * item,
        task_memory=3 * strip * columns * 8 + 2 * _panel_memory(source, squares) + scratch,
        fixed_memory=layout.n_objects * (columns * 16 + 4 * len(labels)),
        share_bytes=layout.n_objects * 4 * len(labels),
    )  # fmt: skip


def diameter_consumer(source: TileSource, squares: Squares, labels: Labels, first: Sequence[int]) -> Consumer:
    """Make the consumer of the largest D within each cluster, (clusters,); see `label_consumer`. 0 for one object."""
    layout = source.layout
    return Consumer(
        _DiameterKernel(squares, tuple(first)), lambda parts: parts[0], _share(source, labels),
        part_bytes=8 * first[-1],
        # The view of a panel, and a copy of its rows that belong to one cluster.
        task_memory=2 * _panel_memory(source, squares) + 8 * len(labels) * layout.tile,
        fixed_memory=layout.n_objects * 4 * len(labels),
        share_bytes=layout.n_objects * 4 * len(labels),
    )  # fmt: skip


def within_consumer(source: TileSource, squares: Squares, labels: within_sums.Labels, clusters: int) -> Consumer:
    """Make the consumer of sums of D within clusters for many partitions, whose result is `WithinSums`.

    Parameters
    ----------
    labels
        (partitions, n), from 0 to below `clusters`.

    Cost: memory of 4 bytes per partition and object.
    """
    layout, partitions = source.layout, len(labels)
    side, item = layout.tile, layout.dtype.itemsize
    part = 8 * (partitions * clusters + 1)
    scratch = within_sums.scratch_memory(partitions, clusters, _panel_rows(side, item), side, item)

    def finish(parts: dict[int, Any]) -> WithinSums:
        sums = parts[0]
        return WithinSums(sums[:-1].reshape(partitions, clusters), float(sums[-1]))

    return Consumer(
        _WithinKernel(squares, clusters), finish, _share(source, labels),
        part_bytes=part,
        task_memory=4 * part + 2 * _panel_memory(source, squares) + scratch,
        fixed_memory=4 * partitions * layout.n_objects + part,
        share_bytes=2 * partitions * layout.n_objects,
    )  # fmt: skip


@dataclass(frozen=True)
class WithinSums:
    """The result of a within consumer."""

    within: Float
    """(partitions, clusters): the sum of D over all ordered pairs of objects of the cluster."""
    total: float
    """The sum of D over all ordered pairs."""


def _panel_rows(side: int, item: int) -> int:
    return products.panel_rows((side, side), item)


def _panel_memory(source: TileSource, squares: Squares) -> int:
    """Return the bytes of a panel and of the scratch memory of its view."""
    side, item = source.layout.tile, source.layout.dtype.itemsize
    numbers = _panel_rows(side, item) * side
    return numbers * item * (1 + squares.view.panels) + numbers * 16 * bool(squares.terms)


def _share(source: TileSource, labels: NDArray[Any]) -> Callable[[slice], LabelShare]:
    itself = source.diagonal

    def share(span: slice) -> LabelShare:
        return LabelShare(np.ascontiguousarray(labels[:, span]), None if itself is None else itself[span])

    return share


@dataclass
class LabelShare:
    """Labels of the objects of one strip, and their self-similarities."""

    labels: NDArray[Any]
    itself: Array | None

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex  # used once: hashing the numbers would be a waste

    def __sizeof__(self) -> int:
        return self.labels.nbytes


@dataclass(frozen=True)
class _LabelKernel:
    squares: Squares
    first: tuple[int, ...]
    squared: bool
    stored: bool
    """Whether the stored values are d."""
    below: bool
    """Whether D may be negative, so that its negative part is summed."""

    @property
    def heights(self) -> list[int]:
        """Rows of each array of sums: d Z, D Z, and the negative part of D."""
        return [self.first[-1]] * (1 + self.squared) + [1] * self.below

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[LabelShare, LabelShare]) -> Any:
        sums = {
            strip: [np.zeros((rows, share.labels.shape[1])) for rows in self.heights]
            for strip, share in zip(group, shares, strict=True)
        }
        return plan, group, shares, sums

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (a, b), shares, sums = partial
        r, c = plan.inside(i), plan.inside(j)
        row_labels, column_labels = shares[0].labels[:, r], shares[1].labels[:, c]
        down = [s[:, r] for s in sums[a]]
        across = None if i == j else [s[:, c] for s in sums[b]]

        def add(k: int, panel: Array, band: slice) -> None:
            label_sums.add_label_sums(
                panel, row_labels[:, band], column_labels, self.first, down[k][:, band],
                None if across is None else across[k],
            )  # fmt: skip

        if self.stored:
            add(0, tile, slice(0, len(tile)))
        if self.stored and not self.squared:
            return partial
        for band, D in self.squares.bands(tile, plan, i, j, shares):
            if self.squared:
                add(1, D, band)
            if self.below:
                negative = np.minimum(D, 0)
                down[-1][0, band] += negative.sum(axis=1, dtype=np.float64)
                if across is not None:
                    across[-1][0] += negative.sum(axis=0, dtype=np.float64)
            if not self.stored:
                d = np.maximum(D, 0)
                add(0, np.sqrt(d, out=d), band)
        return partial

    def parts(self, partial: Any) -> dict[int, Any]:
        dtype = partial[0].layout.dtype  # half as many bytes to send and to hold
        return {strip: [s.astype(dtype, copy=False) for s in of_strip] for strip, of_strip in partial[3].items()}

    def combine(self, first: list[Array], second: list[Array]) -> list[NDArray[np.float64]]:
        return [np.add(x, y, dtype=np.float64) for x, y in zip(first, second, strict=True)]

    def accumulate(self, first: list[Array], second: list[Array]) -> list[Array]:
        for x, y in zip(first, second, strict=True):
            x += y
        return first


@dataclass(frozen=True)
class _DiameterKernel:
    squares: Squares
    first: tuple[int, ...]

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[LabelShare, LabelShare]) -> Any:
        return plan, shares, np.zeros(self.first[-1])

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, shares, largest = partial
        row_labels, column_labels = shares[0].labels[:, plan.inside(i)], shares[1].labels[:, plan.inside(j)]
        for band, D in self.squares.bands(tile, plan, i, j, shares):
            for rows, columns in zip(row_labels[:, band], column_labels, strict=True):
                for k in np.intersect1d(rows, columns):  # complete rows first: they lie in one piece
                    largest[k] = max(largest[k], D[rows == k].max(axis=0)[columns == k].max())
        return partial

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Float, second: Float) -> Float:
        result: Float = np.maximum(first, second)
        return result


@dataclass(frozen=True)
class _WithinKernel:
    squares: Squares
    clusters: int

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[LabelShare, LabelShare]) -> Any:
        return plan, shares, np.zeros(len(shares[0].labels) * self.clusters + 1)

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, shares, sums = partial
        row_labels, column_labels = shares[0].labels[:, plan.inside(i)], shares[1].labels[:, plan.inside(j)]
        once = np.zeros_like(sums)
        for band, D in self.squares.bands(tile, plan, i, j, shares):
            within_sums.add_within_sums(
                D, row_labels[:, band], column_labels, once[:-1].reshape(len(row_labels), self.clusters)
            )
            once[-1] += np.ascontiguousarray(D).sum(dtype=np.float64)  # a sum of all follows the memory
        sums += once if i == j else 2 * once  # the tile on the other side of the diagonal
        return partial

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Float, second: Float) -> Float:
        return first + second
