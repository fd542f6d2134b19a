"""The alignment of kernels with proximity matrices (Q09): all pairs of a width and a partition in one scan.

    A(K, P) = <K, P> / sqrt(<K, K> <P, P>),  p_kl = sum_i min(u_ik, u_il)

Tiles are read once and seen through every width; P of every partition is made tile by tile and never stored. Matrices
whose values are all of one sign align to some extent without any common structure. The centred alignment takes the
means of rows and columns away first, K -> H K H and P -> H P H with H = I - 11'/n (Cristianini and others, 2002;
Cortes, Mohri and Rostamizadeh, 2012). It follows from the same products and the sums k = K 1 and p = P 1:

    <H K H, H P H> = <K, P> - 2 k'p / n + (1'k) (1'p) / n^2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dasrel.engine.reduce import Consumer, Kernel, Plan, Share, Side, shares, strip_consumer
from dasrel.engine.relation import Relation
from dasrel.engine.scan import needed_memory, scan, scan_memory
from dasrel.kernels import proximity
from dasrel.kernels.products import View, panel_rows, panels
from dasrel.kernels.proximity import Gaussians, InnerProducts, proximity_sums
from dasrel.names import is_similarity
from dasrel.store.layout import TileSource
from dasrel.util import Array, Float, limits

Width = float | None
"""A width of the Gaussian kernel; None for the stored values as they are."""
FLAT = 1e-5
"""The share of <P, P> that centring must leave: below it a matrix is constant up to rounding, and aligned with none."""


@dataclass(frozen=True, eq=False)
class Surface:
    """Alignments of W kernels and p partitions."""

    alignment: Float
    """A(K, P), (p, W)."""
    centred: Float
    """A(H K H, H P H), (p, W); 0 for a constant matrix."""
    densities: Float
    """The mean of each row of K, smallest and largest, (2, W)."""

    @staticmethod
    def joined(parts: Sequence[Surface]) -> Surface:
        """Return the surface of all their kernels."""
        return Surface(
            *(np.hstack([getattr(part, name) for part in parts]) for name in ("alignment", "centred", "densities"))
        )


def surface(
    relation: Relation, memberships: Sequence[Float], widths: Sequence[Width], *, memory: int | str | None = None
) -> Surface:
    """Return the alignments of the kernels of all widths with all partitions.

    Parameters
    ----------
    memberships
        Of each partition, (c, n).

    Cost: one scan; several if memory does not allow all widths at once. For all clusters C of all partitions 2 n C
    numbers of the tiles' type, and 40 n bytes for each width.
    """
    source: Any = relation.matrix
    stacked = np.concatenate(memberships, dtype=source.layout.dtype, casting="same_kind")
    first = np.concatenate([[0], np.cumsum([len(U) for U in memberships])]).tolist()
    sums = np.array([proximity_sums(stacked[a:b]) for a, b in pairwise(first)])
    parts = []
    for some in batches(relation, first, widths, memory=memory):
        consumer = alignment_consumer(relation, stacked, first, some)
        inner, k = scan(source, [consumer], memory=memory)[0]
        parts.append(_aligned(inner, k, sums))
    return Surface.joined(parts)


def batches(
    relation: Relation, first: Sequence[int], widths: Sequence[Width], *, memory: int | str | None = None
) -> list[list[Width]]:
    """Return the widths of each scan, as many as fit into memory together; one where not even that fits."""
    source: Any = relation.matrix
    limit, left, divided = limits.memory_limit(memory), list(widths), []
    while left:
        count = len(left)
        while count > 1 and sum(needed_memory(source, [_shape(relation, first, left[:count])])) > limit:
            count = (count + 1) // 2
        divided.append(left[:count])
        left = left[count:]
    return divided


def surface_memory(
    relation: Relation, first: Sequence[int], widths: Sequence[Width], *, memory: int | str | None = None
) -> int:
    """Return the bytes that `surface` takes at its peak; raise `MemoryLimitError` if it cannot fit. Cost: no scan."""
    limit = limits.memory_limit(memory)
    largest = max(batches(relation, first, widths, memory=memory), key=len)
    return scan_memory(relation.matrix, [_shape(relation, first, largest)], limit)


def _aligned(inner: InnerProducts, k: Float, p: Float) -> Surface:
    """Return the alignments, given the products, the row sums of each K (W, n) and those of each P (p, n)."""
    n = k.shape[1]
    alignment = _ratio(inner.products, inner.squares, inner.own)
    centred = _ratio(
        inner.products - 2 / n * (k @ p.T) + np.outer(k.sum(axis=1), p.sum(axis=1)) / n**2,
        _centred(inner.squares, k),
        _centred(inner.own, p),
    )
    return Surface(alignment.T, centred.T, np.array([k.min(axis=1), k.max(axis=1)]) / n)


def _centred(squares: Float, sums: Float) -> Float:
    """Return <H K H, H K H> of each matrix, given <K, K> and K 1."""
    n = sums.shape[1]
    left = squares - 2 / n * np.einsum("wk,wk->w", sums, sums) + sums.sum(axis=1) ** 2 / n**2
    result: Float = np.where(left > FLAT * squares, left, 0.0)
    return result


def _ratio(products: Float, squares: Float, own: Float) -> Float:
    """Return products / sqrt(squares own), at most 1, and 0 where a matrix is 0."""
    norms = np.sqrt(np.outer(squares, own))
    ratio: Float = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return np.clip(ratio, -1.0, 1.0)


# ----------------------------------------------------------------------------------------------------------- the scan


@dataclass(frozen=True)
class _Kernels:
    """Makes the kernels of all widths from the stored values of a band of a tile."""

    views: tuple[View | None, ...]
    """None for the stored values as they are."""
    gaussians: Gaussians | None
    """The same as one, where all are Gaussian kernels of stored distances."""

    @staticmethod
    def of(relation: Relation, widths: Sequence[Width]) -> _Kernels:
        views = tuple(None if w is None else relation.gaussian(w).view for w in widths)
        plain = not (relation.view.steps or relation.beta or is_similarity(relation.matrix.kind))
        given = tuple(float(w) for w in widths if w is not None)
        gaussians = (
            Gaussians(given, relation.matrix.kind == "distance") if plain and len(given) == len(widths) else None
        )
        return _Kernels(views, gaussians)

    def height(self, side: int, itemsize: int) -> int:
        """Return the rows of a band: few enough that the kernels of all widths stay in the cache."""
        columns = side * (1 if self.in_place else len(self.views))
        return panel_rows((side, columns), itemsize)

    @property
    def in_place(self) -> bool:
        """Whether kernels are made of the tile itself, without scratch memory here."""
        return self.gaussians is not None or self.views == (None,)

    def panel(self, values: Array, offset: int | None, row_self: Array | None, column_self: Array | None) -> Array:
        """Return the kernels of a band, or the band where `in_place`."""
        if self.in_place:
            return values[None]
        kernels = np.empty((len(self.views), *values.shape), dtype=values.dtype)
        for view, out in zip(self.views, kernels, strict=True):
            seen = values
            if view is not None:
                seen = view.apply(values, out, offset=offset, row_self=row_self, column_self=column_self)
            if seen is not out:
                out[:] = seen
        return kernels


def alignment_consumer(
    relation: Relation, memberships: Array, first: Sequence[int], widths: Sequence[Width]
) -> Consumer:
    """Make the consumer of the inner products; its result is an `InnerProducts` and the row sums of K, (W, n).

    Parameters
    ----------
    memberships
        (clusters of all partitions, n), in the type of the tiles; those of partition p are from first[p] to below
        first[p + 1].
    """
    return _shape(relation, first, widths, shares(relation.matrix, memberships=memberships))


def _shape(relation: Relation, first: Sequence[int], widths: Sequence[Width], share: Any = None) -> Consumer:
    """Return the consumer for partitions of so many clusters; without a share its memory can be estimated."""
    source: TileSource = relation.matrix
    layout, plan, kernels = source.layout, Plan(source.layout), _Kernels.of(relation, widths)
    n, side, item = layout.n_objects, layout.tile, layout.dtype.itemsize
    W, clusters = len(widths), first[-1]
    high = kernels.height(side, item)
    scratch = proximity.scratch_memory(
        W, len(first) - 1, clusters, (high, side), layout.dtype, gaussians=kernels.gaussians is not None
    )
    made = 0 if kernels.in_place else (W + max(v.panels for v in kernels.views if v is not None)) * high * side * item

    def finish(parts: dict[int, Any]) -> tuple[InnerProducts, Float]:
        total, sums = InnerProducts.zeros(W, len(first) - 1), np.empty((W, n))
        for strip_number in sorted(parts):
            inner, k = parts.pop(strip_number)
            total.add(inner)
            sums[:, plan.span(strip_number)] = k
        return total, sums

    consumer = strip_consumer(
        source, _AlignmentKernel(kernels, tuple(first)), finish, share or (lambda span: Share(span.start)),
        # Sums of the rows and the columns, one more while they are added, memberships of both, kernels of a band.
        sent=W * 8, held=3 * W * 8, scratch=made + scratch,
        fixed=3 * 8 * W + 2 * clusters * item + 8 * len(first), shared=clusters * item,
    )  # fmt: skip
    return replace(consumer, part_bytes=consumer.part_bytes + 16 * W * len(first))


@dataclass(frozen=True)
class _AlignmentKernel(Kernel):
    in_strips = True
    kernels: _Kernels
    first: tuple[int, ...]

    def empty(self, objects: int) -> tuple[InnerProducts, Float]:
        W = len(self.kernels.views)
        return InnerProducts.zeros(W, len(self.first) - 1), np.zeros((W, objects))

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        (total, down), (_, beside) = partial
        here = InnerProducts.zeros(*total.products.shape)
        across = None if rows is columns else beside[:, columns.inside]
        of_rows, of_columns = rows.get("memberships"), columns.get("memberships")
        own, sums = rows.itself, down[:, rows.inside]
        for band in panels(tile.shape, self.kernels.height(max(tile.shape), tile.itemsize)):
            values = self.kernels.panel(
                tile[band], band.start if rows is columns else None, None if own is None else own[band], columns.itself
            )
            proximity.add_inner_products(
                values, of_rows[:, band], of_columns, self.first, here, sums[:, band], across, self.kernels.gaussians
            )
        total.add(here, 1.0 if rows is columns else 2.0)  # a tile beside the diagonal stands for its transpose, too
        return partial

    def combine(self, first: Any, second: Any) -> Any:
        total = InnerProducts.zeros(*first[0].products.shape)
        total.add(first[0])
        total.add(second[0])
        return total, first[1] + second[1]
