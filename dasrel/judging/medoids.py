"""Medoids: of each cluster the member with the least mean dissimilarity to the other members.

The sums of dissimilarities of all objects to the members of their own cluster say which: the silhouettes' scan has them
(`validity`), and `medoids` computes them alone, for any number of clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.label_products import Squares
from dasrel.engine.reduce import Consumer, Plan, Side, SumsInStrips, join_strips, shares, strip_consumer
from dasrel.engine.relation import Relation
from dasrel.engine.scan import scan
from dasrel.kernels import products
from dasrel.util import Array, Float, Names


class Medoids(NamedTuple):
    """The medoids of one partition."""

    positions: NDArray[np.intp]
    """(c,) of the objects; -1 for a cluster without any."""
    means: Float
    """(c,) mean dissimilarity of the other members to it: 0 for a cluster of one, NaN without any."""

    @staticmethod
    def of_sums(labels: NDArray[Any], n_clusters: int, sums: Float) -> Medoids:
        """Return the medoids, given the sum of d of each object to its own cluster, (n,); the first of equal ones."""
        sizes = np.bincount(labels, minlength=n_clusters)
        order = np.lexsort((sums, labels))
        positions = np.full(n_clusters, -1, dtype=np.intp)
        used = np.flatnonzero(sizes)
        positions[used] = order[(np.cumsum(sizes) - sizes)[used]]
        means = np.full(n_clusters, np.nan)
        means[used] = sums[positions[used]] / np.maximum(sizes[used] - 1, 1)
        return Medoids(positions, means)

    def table(self, labels: NDArray[Any], ids: Names) -> tuple[list[str], list[list[Any]]]:
        """Return a header, and a line for each cluster of these labels, whatever the numbers of clusters were."""
        sizes = np.bincount(labels, minlength=len(self.positions)).tolist()
        rows: list[list[Any]] = [[k, None, size, None] for k, size in enumerate(sizes)]
        for position, mean in zip(self.positions.tolist(), self.means.tolist(), strict=True):
            if position >= 0:
                row = rows[int(labels[position])]
                row[1], row[3] = str(ids[position]), None if math.isnan(mean) else mean
        return ["cluster", "medoid", "size", "mean_dissimilarity"], rows


def medoids(
    relation: Relation, partitions: Sequence[tuple[NDArray[Any], int]], *, memory: int | str | None = None
) -> list[Medoids]:
    """Return the medoids of partitions: labels from 0, and numbers of clusters, however many.

    Cost: one scan; 24 bytes for each object and partition.
    """
    labels = np.stack([labels for labels, _ in partitions]).astype(np.int32)
    squares = Squares(relation.view.then("spread", relation.beta) if relation.beta else relation.view, relation.terms)
    (sums,) = scan(relation.matrix, [_own_sums_consumer(relation, squares, labels)], memory=memory)
    return [Medoids.of_sums(own, c, s) for own, s, (_, c) in zip(labels, sums, partitions, strict=True)]


def _own_sums_consumer(relation: Relation, squares: Squares, labels: NDArray[np.int32]) -> Consumer:
    """Make the consumer of the sums of d of each object to the objects with its label, (partitions, n)."""
    source, count = relation.matrix, len(labels)
    side, item = source.layout.tile, source.layout.dtype.itemsize
    panel = products.panel_rows((side, side), item) * side

    def finish(parts: dict[int, Any]) -> Float:
        sums = np.empty((count, source.layout.n_objects))
        join_strips(Plan(source.layout), parts, [sums])
        return sums

    # A panel, its view and its roots, which pairs have one label, and their values; terms are added in float64.
    scratch = panel * (item * (3 + squares.view.panels) + 1) + panel * 16 * bool(squares.terms)
    return strip_consumer(
        source, _OwnSumsKernel(squares, count), finish, shares(source, labels=labels), sent=count * item,
        held=3 * count * 8, scratch=scratch, fixed=16 * count, shared=4 * count,
    )  # fmt: skip


@dataclass(frozen=True)
class _OwnSumsKernel(SumsInStrips):
    squares: Squares
    partitions: int

    def empty(self, objects: int) -> list[Array]:
        return [np.zeros((self.partitions, objects))]

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        row_labels, column_labels = rows.get("labels"), columns.get("labels")
        down = partial[0][0][:, rows.inside]
        across = None if rows is columns else partial[1][0][:, columns.inside]
        for band, D in self.squares.bands(tile, rows, columns):
            d = np.maximum(D, 0)
            np.sqrt(d, out=d)
            for k, (mine, theirs) in enumerate(zip(row_labels[:, band], column_labels, strict=True)):
                own = np.where(mine[:, None] == theirs, d, d.dtype.type(0))
                down[k, band] += own.sum(axis=1, dtype=np.float64)
                if across is not None:
                    across[k] += own.sum(axis=0, dtype=np.float64)
        return partial
