"""Sums of a relation by the labels of partitions: d Z and D Z, Z one-hot, diameters, and sums within clusters.

d are dissimilarities, D their squares: d = sqrt(D), and 0 where a similarity gives a negative D. Sums by label take one
addition per number and partition, however many clusters there are; see `kernels.label_sums`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.engine.reduce import Consumer, Kernel, Plan, Side, SumsInStrips, join_strips, shares, strip_consumer
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

    def bands(self, tile: Array, rows: Side, columns: Side) -> Iterator[tuple[slice, Array]]:
        """Yield each band of rows of a tile with its D, which is overwritten by that of the next one."""
        row_self, column_self = rows.itself, columns.itself
        height = _panel_rows(max(tile.shape), tile.itemsize)
        buffer = np.empty((height, tile.shape[1]), dtype=tile.dtype)
        for band in products.panels(tile.shape, height):
            values, out = tile[band], buffer[: band.stop - band.start]
            own = None if row_self is None else row_self[band]
            offset = band.start if rows is columns else None
            D = self.view.apply(values, out, offset=offset, row_self=own, column_self=column_self)
            if self.terms:
                np.copyto(out, D)
                D = out
            start = rows.span.start
            for weight, term in self.terms:
                D += weight * term.block(slice(start + band.start, start + band.stop), columns.span)
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
    layout, clusters = source.layout, first[-1]
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
        join_strips(Plan(layout), parts, results)
        below = float(results.pop()[0].sum()) if kernel.below else 0.0
        return LabelSums(results[0], results[1] if squared else None, below)

    columns = sum(kernel.heights)
    scratch = label_sums.scratch_memory(len(labels), clusters, _panel_rows(side, item), side, item)
    return strip_consumer(
        source, kernel, finish, shares(source, labels=labels), sent=columns * item, held=3 * columns * 8,
        scratch=2 * _panel_memory(source, squares) + scratch,
        fixed=columns * 16 + 4 * len(labels), shared=4 * len(labels),
    )  # fmt: skip


def diameter_consumer(source: TileSource, squares: Squares, labels: Labels, first: Sequence[int]) -> Consumer:
    """Make the consumer of the largest D within each cluster, (clusters,); see `label_consumer`. 0 for one object."""
    layout = source.layout
    return Consumer(
        _DiameterKernel(squares, tuple(first)), share=shares(source, labels=labels),
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
        _WithinKernel(squares, len(labels), clusters), finish, shares(source, labels=labels),
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


@dataclass(frozen=True)
class _LabelKernel(SumsInStrips):
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

    def empty(self, objects: int) -> list[Array]:
        return [np.zeros((rows, objects)) for rows in self.heights]

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        row_labels, column_labels = rows.get("labels"), columns.get("labels")
        down = [sums[:, rows.inside] for sums in partial[0]]
        across = None if rows is columns else [sums[:, columns.inside] for sums in partial[1]]

        def add(k: int, panel: Array, band: slice) -> None:
            label_sums.add_label_sums(
                panel, row_labels[:, band], column_labels, self.first, down[k][:, band],
                None if across is None else across[k],
            )  # fmt: skip

        if self.stored:
            add(0, tile, slice(0, len(tile)))
        if self.stored and not self.squared:
            return partial
        for band, D in self.squares.bands(tile, rows, columns):
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


@dataclass(frozen=True)
class _DiameterKernel(Kernel):
    squares: Squares
    first: tuple[int, ...]

    def empty(self, objects: int) -> Float:
        return np.zeros(self.first[-1])

    def add(self, partial: Float, tile: Array, rows: Side, columns: Side) -> Float:
        row_labels, column_labels = rows.get("labels"), columns.get("labels")
        for band, D in self.squares.bands(tile, rows, columns):
            for mine, theirs in zip(row_labels[:, band], column_labels, strict=True):
                for k in np.intersect1d(mine, theirs):  # complete rows first: they lie in one piece
                    partial[k] = max(partial[k], D[mine == k].max(axis=0)[theirs == k].max())
        return partial

    def combine(self, first: Float, second: Float) -> Float:
        result: Float = np.maximum(first, second)
        return result


@dataclass(frozen=True)
class _WithinKernel(Kernel):
    squares: Squares
    partitions: int
    clusters: int

    def empty(self, objects: int) -> Float:
        return np.zeros(self.partitions * self.clusters + 1)

    def add(self, partial: Float, tile: Array, rows: Side, columns: Side) -> Float:
        row_labels, column_labels = rows.get("labels"), columns.get("labels")
        once = np.zeros_like(partial)
        within = once[:-1].reshape(self.partitions, self.clusters)
        for band, D in self.squares.bands(tile, rows, columns):
            within_sums.add_within_sums(D, row_labels[:, band], column_labels, within)
            once[-1] += np.ascontiguousarray(D).sum(dtype=np.float64)  # a sum of all follows the memory
        partial += once if rows is columns else 2 * once  # the tile on the other side of the diagonal
        return partial
