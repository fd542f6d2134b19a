"""Sums of a tile's rows and columns by the labels of objects, for several partitions at once.

Products with one-hot columns give the same sums and take as many multiplications as there are clusters. The compiled
kernel adds every number once per partition, however many clusters it has. Without the library BLAS multiplies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.kernels import native
from dasrel.kernels.native import LONG, POINTER
from dasrel.util import Array, Float

Labels = NDArray[np.int32]


def add_label_sums(
    panel: Array,
    row_labels: Labels,
    column_labels: Labels,
    first: Sequence[int],
    row_sums: Float,
    column_sums: Float | None,
) -> None:
    """Add sums of a panel by label to float64 sums.

    `row_sums[column_labels[p, j], i] += panel[i, j]` and `column_sums[row_labels[p, i], j] += panel[i, j]`, for every
    partition p. `column_sums` is None for a panel of a tile on the diagonal.

    Parameters
    ----------
    row_labels, column_labels
        (partitions, rows) and (partitions, columns of the panel): the row of the sums for each object. Those of
        partition p are from first[p] to below first[p + 1].

    Cost: one read of the panel per partition; see `scratch_memory`.
    """
    if _add_native(panel, row_labels, column_labels, first, row_sums, column_sums):
        return
    row_sums += _one_hot(column_labels, first[-1], panel.dtype) @ panel.T
    if column_sums is not None:
        column_sums += _one_hot(row_labels, first[-1], panel.dtype) @ panel


def scratch_memory(partitions: int, clusters: int, rows: int, columns: int, itemsize: int) -> int:
    """Return the bytes that one call takes for a panel of this size and so many clusters of all partitions."""
    if _native() is not None:
        return 2**17 + 6200 * partitions + 4 * clusters  # a block, its objects sorted by label, their numbers
    return clusters * (rows + columns) * 2 * itemsize


def _one_hot(labels: Labels, clusters: int, dtype: np.dtype[Any]) -> Array:
    marked = np.zeros((clusters, labels.shape[1]), dtype=dtype)
    for own in labels:
        marked[own, np.arange(len(own))] = 1
    return marked


_FUNCTIONS = native.by_type("label_sums")


@cache
def _native() -> Any | None:
    """Return the compiled kernel, or None where it was not built or cannot run."""
    return native.vector_kernels(
        _FUNCTIONS.values(), ctypes.c_int, POINTER, LONG, LONG, LONG, POINTER, LONG, POINTER, LONG, ctypes.c_int,
        POINTER, LONG,
    )  # fmt: skip


def _add_native(
    panel: Array,
    row_labels: Labels,
    column_labels: Labels,
    first: Sequence[int],
    row_sums: Float,
    column_sums: Float | None,
) -> bool:
    library, name = _native(), _FUNCTIONS.get(panel.dtype)
    arrays = [panel, row_labels, column_labels, row_sums, *([] if column_sums is None else [column_sums])]
    if library is None or name is None or not all(native.in_rows(array) for array in arrays):
        return False
    bounds = np.array(first, dtype=np.int64)
    ways = [(column_labels, 1, row_sums)] + ([] if column_sums is None else [(row_labels, 0, column_sums)])
    for labels, transposed, sums in ways:
        done = getattr(library, name)(
            panel.ctypes.data, panel.strides[0] // panel.itemsize, *panel.shape, labels.ctypes.data,
            labels.strides[0] // 4, bounds.ctypes.data, len(labels), transposed, sums.ctypes.data,
            sums.strides[0] // 8,
        )  # fmt: skip
        if not done:  # no memory: nothing was added
            sums += _one_hot(labels, bounds[-1], panel.dtype) @ (panel.T if transposed else panel)
    return True
