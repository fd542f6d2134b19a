"""Means of a matrix over groups of objects, such as the pixels of an image or the branches of a tree, by one scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dasrel.engine.reduce import Consumer, Kernel, Side, shares
from dasrel.engine.relation import Relation
from dasrel.engine.scan import scan
from dasrel.kernels.forest import mirrored, seen_as_dissimilarity
from dasrel.kernels.products import View, panel_rows, panels
from dasrel.report.figures.downsample import checked_order, pixel_of_objects
from dasrel.store.layout import TileSource
from dasrel.util import Array, Float


def means_consumer(source: TileSource, pixel: Array, view: View | Literal["stored"] | None = None) -> Consumer:
    """Return the consumer of the means over groups of objects, given the group of each; its result is g x g.

    Parameters
    ----------
    view
        Makes the values from the stored ones; "stored" takes them as they are. By default they are dissimilarities, as
        in a `Tree`.
    """
    layout, diagonal = source.layout, source.diagonal
    sizes = np.bincount(pixel)
    side = sizes.size

    def finish(parts: dict[int, Any]) -> Float:
        above = parts[0]
        result: Float = (above + above.T) / np.multiply.outer(sizes, sizes)
        return result

    image = side * side * 8
    tile = 0 if diagonal is None and view is None else layout.tile_bytes
    # The image, another while two are added, a band of rows in order; a diagonal tile is copied, and one that is seen.
    task = 2 * image + 3 * 8 * 2**20 + layout.tile_bytes + tile
    kernel = _ImageKernel(source.kind, side, view)
    share = shares(source, pixels=pixel)
    return Consumer(kernel, finish, share, part_bytes=image, task_memory=task, fixed_memory=4 * image)


def kernel_image(
    matrix: Relation,
    width: float | None,
    order: ArrayLike | None = None,
    pixels: int = 1000,
    *,
    memory: int | str | None = None,
) -> Float:
    """Return the Gaussian kernel of a width of a relation, in an order, downsampled as a matrix is by `matrix_image`.

    Without a width the stored similarities are the kernel. Cost: one scan; pixels^2 float64 numbers per task.
    """
    consumer = kernel_consumer(matrix, width, order, pixels)
    result: Float = scan(matrix.matrix, [consumer], memory=memory)[0]
    return result


def kernel_consumer(matrix: Relation, width: float | None, order: ArrayLike | None, pixels: int) -> Consumer:
    """Return the consumer of `kernel_image`, for a scan that others share."""
    source: TileSource = matrix.matrix
    pixel = pixel_of_objects(checked_order(order, source.layout.n_objects), pixels)
    return means_consumer(source, pixel, "stored" if width is None else matrix.gaussian(width).view)


@dataclass(frozen=True)
class _ImageKernel(Kernel):
    """Sums over pixels of pairs above the diagonal of the matrix; the image is the sums and their transpose."""

    kind: str
    side: int
    view: View | Literal["stored"] | None

    def empty(self, objects: int) -> Float:
        return np.zeros((self.side, self.side))

    def add(self, partial: Float, tile: Array, rows: Side, columns: Side) -> Float:
        own, other, on_diagonal = rows.itself, columns.itself, rows is columns
        if self.view is None:
            values = seen_as_dissimilarity(tile, self.kind, own, other)
        elif isinstance(self.view, str):
            values = tile
        else:
            offset = 0 if on_diagonal else None
            values = self.view.apply(tile, np.empty_like(tile), offset=offset, row_self=own, column_self=other)
        values = mirrored(values) if on_diagonal and self.view is None else values
        # A diagonal tile has each pair twice, and adding the transpose doubles it.
        _bin(values, rows.get("pixels"), columns.get("pixels"), partial, 0.5 if on_diagonal else 1.0)
        return partial


def _bin(values: Array, row_pixels: Array, column_pixels: Array, sums: Float, weight: float) -> None:
    """Add the sums of a tile's values over its pixels, in float64, to the image."""
    rows, columns = (np.argsort(pixels, kind="stable") for pixels in (row_pixels, column_pixels))
    row_pixels, column_pixels = row_pixels[rows], column_pixels[columns]
    starts = np.flatnonzero(np.diff(column_pixels, prepend=-1))
    across = column_pixels[starts]
    in_order = bool((np.diff(columns) == 1).all())
    for band in panels(values.shape, panel_rows(values.shape, values.itemsize)):
        chosen = values[rows[band]]
        if not in_order:
            chosen = np.take(chosen, columns, axis=1)
        narrow = np.add.reduceat(chosen, starts, axis=1, dtype=np.float64)
        pixels = row_pixels[band]
        tops = np.flatnonzero(np.diff(pixels, prepend=-1))
        small = np.add.reduceat(narrow, tops, axis=0)
        sums[np.ix_(pixels[tops], across)] += weight * small
