"""Images of matrices of any size, in an order that shows structure.

The objects are put in an order and divided into `pixels` runs of nearly equal length; the value of a pixel is the mean
over all pairs of its objects, the diagonal included. A matrix or its kernel takes one scan; iVAT, D(U) and the
proximities of memberships take none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dasrel.engine.reduce import Consumer
from dasrel.engine.scan import scan
from dasrel.errors import InputError
from dasrel.geometry.tree import Tree
from dasrel.report.figures.downsample import checked_order, pixel_of_objects
from dasrel.report.figures.group_means import means_consumer
from dasrel.store.array_matrix import as_matrix
from dasrel.store.layout import TileSource
from dasrel.util import Array, Float

LEVELS = 256
"""Levels that memberships are rounded to in a proximity image whose pixels are means."""


def matrix_image(
    matrix: Any,
    order: ArrayLike | None = None,
    pixels: int = 1000,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
) -> Float:
    """Return the matrix with its objects in an order, downsampled to at most pixels x pixels; float64, symmetric.

    Values are dissimilarities: stored distances or squared distances as they are, similarities as
    max(s_ii + s_jj - 2 s_ij, 0), as in a `Tree`.

    Parameters
    ----------
    order
        The n positions of the objects, first to last; by default in the order of the store.

    Cost: one scan; pixels^2 float64 numbers per task and for the result.
    """
    source = as_matrix(matrix, kind=kind)
    consumer = image_consumer(source, order, pixels)
    result: Float = scan(source, [consumer], memory=memory)[0]
    return result


def image_consumer(source: TileSource, order: ArrayLike | None, pixels: int) -> Consumer:
    """Return the consumer of `matrix_image`, for a scan that others share; its result is the image."""
    return means_consumer(source, pixel_of_objects(checked_order(order, source.layout.n_objects), pixels))


def ivat_image(tree: Tree, pixels: int = 1000) -> Float:
    """Return the iVAT image: minimax path dissimilarities in VAT order, at most pixels x pixels; float64.

    Where every object has a pixel of its own the values are exact; else they are means, with rounding of the order of
    n times the machine epsilon. In the units of the tree.

    Cost: no scan beyond the tree's; O(n + pixels^2).
    """
    n = tree.n_objects
    pixel = pixel_of_objects(np.arange(n), pixels)
    sizes = np.bincount(pixel)
    heights = tree.join_heights()
    if sizes.size == n:
        result = np.zeros((n, n))
        for p in range(n - 1):
            result[p, p + 1 :] = result[p + 1 :, p] = np.maximum.accumulate(heights[p + 1 :])
        return result
    # Each merge of ranges [l, m) and [m, r) adds its height to a rectangle. The fraction of a pixel that a range covers
    # is 1 up to the pixel of its end, partial there, and 0 beyond: two steps of a cumulative sum from the right.
    first, last = tree.merges
    begin = np.concatenate([[0], np.cumsum(sizes)])
    sums = np.zeros((sizes.size + 1) ** 2)
    gap = np.arange(1, n)
    for x, sign_x in ((gap, 1.0), (first, -1.0)):
        for y, sign_y in ((last, 1.0), (gap, -1.0)):
            for column, share_x in _steps(x, pixel, sizes, begin):
                for row, share_y in _steps(y, pixel, sizes, begin):
                    value = heights[1:] * share_x * share_y * (sign_x * sign_y)
                    sums += np.bincount(column * (sizes.size + 1) + row, weights=value, minlength=sums.size)
    steps = sums.reshape(sizes.size + 1, -1)[::-1, ::-1]
    above = np.cumsum(np.cumsum(steps, axis=0), axis=1)[::-1, ::-1][1:, 1:]
    return np.clip(above + above.T, 0, heights.max())


def _steps(end: Array, pixel: Array, sizes: Array, begin: Array) -> list[tuple[Array, Float]]:
    """Return the two steps of the ranges before each end: at the last complete pixel, counted from 1, and after it."""
    last = np.append(pixel, sizes.size - 1)[end]
    share = (end - begin[last]) / sizes[last]
    return [(last, 1 - share), (last + 1, share)]


def proximity_image(memberships: ArrayLike, order: ArrayLike | None = None, pixels: int = 1000) -> Float:
    """Return P_kl = sum_i min(u_ik, u_il) of memberships U (c x n), Q09's proximity matrix, in an order, downsampled.

    Where every object has a pixel of its own the values are exact. Else memberships are rounded to 1/256, so that a
    pixel, which is a mean over all pairs of its objects, is within c/512 of the exact one: the mean of min(u, v) is the
    sum over levels t of the share of u above t times the share of v above t, which nothing of size n^2 is formed for.

    Cost: no scan; O(c n + 256 c pixels^2) and 2 KiB pixels bytes.
    """
    U = np.asarray(memberships, dtype=np.float64)
    if U.ndim != 2 or 0 in U.shape:
        raise InputError(f"memberships have shape {U.shape}", remedy="give (clusters, objects)")
    n = U.shape[1]
    chosen = checked_order(order, n)
    if n <= pixels:
        return sum((np.minimum.outer(u, u) for u in U[:, chosen]), start=np.zeros((n, n)))
    pixel = pixel_of_objects(chosen, pixels)
    sizes = np.bincount(pixel)
    image = np.zeros((sizes.size, sizes.size))
    for u in U:
        level = np.rint(u * LEVELS).astype(np.int64)
        counts = np.bincount(pixel * (LEVELS + 1) + level, minlength=sizes.size * (LEVELS + 1))
        above = counts.reshape(sizes.size, LEVELS + 1)[:, :0:-1].cumsum(axis=1) / sizes[:, None]
        image += above @ above.T / LEVELS
    return image
