"""Order objects by cluster, and average values over the pixels of an image. No scan.

Objects are put in an order and divided into at most `pixels` runs of nearly equal length, one for each row and column
of an image.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dasrel.errors import InputError
from dasrel.util import Array, Float, Index


def cluster_order(memberships: Array, labels: Array | None = None) -> Index:
    """Return the objects by cluster, in each cluster those of highest membership first.

    Parameters
    ----------
    memberships
        (n, c).
    labels
        The cluster of each object; by default that of its highest membership.

    >>> cluster_order(np.array([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2]])).tolist()
    [2, 1, 0]
    """
    clusters = memberships.argmax(axis=1) if labels is None else labels
    highest = memberships[np.arange(len(memberships)), clusters]
    return np.lexsort((-highest, clusters)).astype(np.intp)


def checked_order(order: ArrayLike | None, n: int) -> Array:
    """Return an order of n objects as an array, by default that of the store; raise if it is no permutation."""
    if order is None:
        return np.arange(n)
    given = np.asarray(order)
    if given.shape != (n,) or given.dtype.kind not in "iu" or not np.array_equal(np.sort(given), np.arange(n)):
        raise InputError(
            f"an order has each of the positions 0 to {n - 1} once; this one, of shape {given.shape}, has not"
        )
    return given.astype(np.int64)


def pixel_of_objects(order: Array, pixels: int) -> Array:
    """Return the pixel row of each object, for objects in this order."""
    pixel = np.empty(len(order), dtype=np.int64)
    pixel[order] = _pixels(len(order), pixels)
    return pixel


def pixel_means(columns: Array, order: Array, pixels: int) -> tuple[Float, Array, Array]:
    """Return the means of columns (n, k) over the pixels, the first object of each pixel in the order, and counts."""
    first = np.flatnonzero(np.diff(_pixels(len(order), pixels), prepend=-1))
    counts = np.diff(first, append=len(order))
    return np.add.reduceat(columns[order], first, axis=0) / counts[:, None], first, counts


def induced_image(memberships: ArrayLike, order: ArrayLike | None = None, pixels: int = 1000) -> Float:
    """Return D(U) = 1 - U'U / max(U'U) of memberships U (c x n), K14 (17), in an order, downsampled.

    The mean of U'U over a pixel is the product of the means of U, and its largest value is on the diagonal, so that
    nothing of size n^2 is formed.

    Cost: no scan; O(c n + c pixels^2).
    """
    U = np.asarray(memberships, dtype=np.float64)
    if U.ndim != 2 or 0 in U.shape:
        raise InputError(f"memberships have shape {U.shape}", remedy="give (clusters, objects)")
    if not np.isfinite(U).all() or U.min() < 0:
        raise InputError("memberships are negative or not finite", remedy="give finite numbers >= 0")
    largest = float((U * U).sum(axis=0).max())
    if largest == 0:
        raise InputError("all memberships are 0: D(U) is not defined")
    means, _, _ = pixel_means(U.T, checked_order(order, U.shape[1]), pixels)
    return np.maximum(1 - means @ means.T / largest, 0)


def _pixels(n: int, pixels: int) -> Array:
    """Return the pixel row of each position in an order of n objects."""
    if pixels < 1:
        raise InputError(f"an image has at least one pixel per side, not {pixels}")
    return np.arange(n) * min(pixels, n) // n
