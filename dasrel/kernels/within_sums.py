"""Sums of a tile over pairs of objects with the same label, for many partitions at once: permutations of labels.

The compiled kernel adds every number once per partition, however many clusters there are. Without the library BLAS
multiplies with one-hot columns, some partitions at a time. Measured on one core with AVX2, float32, 200 partitions, in
numbers of the panel times partitions per second:

    clusters       2       5      50
    BLAS        8e9     4e9     5e8
    kernel      2e10    2e10    1e10
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.kernels import native
from dasrel.kernels.native import LONG, POINTER
from dasrel.util import Array, Float

Labels = NDArray[np.uint16]
MOST_CLUSTERS = 2**16
BATCH_BYTES = 16 * 2**20
"""Bytes of the products of one batch of partitions, where BLAS multiplies."""


def add_within_sums(panel: Array, row_labels: Labels, column_labels: Labels, sums: Float) -> None:
    """Add the sums of a panel over pairs with the same label: `sums[p, k] += sum of panel[row is k, column is k]`.

    Parameters
    ----------
    row_labels, column_labels
        (partitions, rows) and (partitions, columns of the panel), from 0 to below the number of clusters.
    sums
        (partitions, clusters), float64.

    Cost: one read of the panel per partition, from the processor's cache; see `scratch_memory`.
    """
    if _add_native(panel, row_labels, column_labels, sums):
        return
    clusters = np.arange(sums.shape[1], dtype=np.uint16)[None, :, None]
    step = _batch(sums.shape[1], panel.shape[0], panel.shape[1], panel.itemsize)
    for at in range(0, len(sums), step):
        batch = slice(at, at + step)
        rows = (row_labels[batch, None, :] == clusters).astype(panel.dtype)
        products = rows.reshape(-1, len(panel)) @ panel
        chosen = products.reshape(*rows.shape[:2], -1)
        chosen[column_labels[batch, None, :] != clusters] = 0
        sums[batch] += chosen.sum(axis=2, dtype=np.float64)


def scratch_memory(partitions: int, clusters: int, rows: int, columns: int, itemsize: int) -> int:
    """Return the bytes that one call takes for a panel of this size."""
    if _native() is not None:
        return 2**16 + 1540 * partitions + 4 * clusters  # a block, its objects sorted by label, their numbers
    return (2 * itemsize + 2) * clusters * (rows + columns) * min(_batch(clusters, rows, columns, itemsize), partitions)


def _batch(clusters: int, rows: int, columns: int, itemsize: int) -> int:
    return max(1, BATCH_BYTES // (clusters * (rows + columns) * itemsize))


_FUNCTIONS = native.by_type("within_sums")


@cache
def _native() -> Any | None:
    """Return the compiled kernel, or None where it was not built or cannot run."""
    return native.vector_kernels(
        _FUNCTIONS.values(), ctypes.c_int, POINTER, *(LONG,) * 3, *(POINTER, LONG) * 2, LONG, LONG, POINTER, LONG
    )


def _add_native(panel: Array, row_labels: Labels, column_labels: Labels, sums: Float) -> bool:
    library, name = _native(), _FUNCTIONS.get(panel.dtype)
    arrays = (panel, row_labels, column_labels, sums)
    if library is None or name is None or not all(native.in_rows(array) for array in arrays):
        return False
    done = getattr(library, name)(
        panel.ctypes.data, panel.strides[0] // panel.itemsize, *panel.shape,
        row_labels.ctypes.data, row_labels.strides[0] // 2, column_labels.ctypes.data, column_labels.strides[0] // 2,
        *sums.shape, sums.ctypes.data, sums.strides[0] // 8,
    )  # fmt: skip
    return bool(done)
