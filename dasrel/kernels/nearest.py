"""The k nearest neighbours of the objects of a panel's rows and columns. Pure functions.

Lists of neighbours are ordered by (value, position): they do not depend on how the matrix is cut into panels, nor on
whether the compiled kernel makes them or NumPy.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dasrel.kernels import native
from dasrel.kernels.native import LONG, POINTER
from dasrel.util import Array, Float, Index


class Lists(NamedTuple):
    """The nearest of each object: (objects, k) values, ascending, and positions; infinite and -1 where none is."""

    values: Float
    positions: Index

    @staticmethod
    def empty(objects: int, k: int) -> Lists:
        """Return lists without neighbours."""
        return Lists(np.full((objects, k), np.inf), np.full((objects, k), -1, dtype=np.int64))


class Objects(NamedTuple):
    """The objects of a panel's rows or columns, ascending: their lists, and their positions are `first` more."""

    lists: Lists
    at: Index
    first: int


def merge_panel(panel: Array, rows: Objects, columns: Objects, *, on_diagonal: bool) -> None:
    """Merge the values of a panel into the lists of both sides, in place.

    On the diagonal both sides have the same lists, and only values above it are used.

    Cost: one read of the panel; without the compiled kernel several copies of it.
    """
    if _merge_native(panel, rows, columns, on_diagonal):
        return
    values = panel
    if on_diagonal:
        values = np.where(columns.at[None, :] + columns.first > rows.at[:, None] + rows.first, panel, np.inf)
    _merge_rows(values, rows, columns.at + columns.first)
    _merge_rows(values.T, columns, rows.at + rows.first)


def merged(first: Lists, second: Lists) -> Lists:
    """Return the k nearest of both, which have no neighbour in common."""
    library = _native()
    if library is None:
        return _nearest(first, second)
    result = Lists(np.empty_like(first.values), np.empty_like(first.positions))
    arrays = [np.ascontiguousarray(array) for array in (*first, *second)]
    pointers = [array.ctypes.data for array in (*arrays, *result)]
    library.dasrel_merge_nearest(*first.values.shape, *pointers)
    return result


def _merge_rows(values: Array, rows: Objects, names: Index) -> None:
    """Merge the nearest of each row of values, whose columns have these positions."""
    k = min(rows.lists.values.shape[1], values.shape[1])
    kth = np.partition(values, k - 1, axis=1)[:, k - 1 : k]
    nearer, equal = values < kth, values == kth
    wanted = k - np.count_nonzero(nearer, axis=1, keepdims=True)
    chosen = nearer | (equal & (np.cumsum(equal, axis=1) <= wanted))
    columns = np.nonzero(chosen)[1].reshape(-1, k)
    nearest = Lists(np.take_along_axis(values, columns, axis=1).astype(np.float64), names[columns])
    known = Lists(rows.lists.values[rows.at], rows.lists.positions[rows.at])
    rows.lists.values[rows.at], rows.lists.positions[rows.at] = _nearest(known, nearest)


def _nearest(first: Lists, second: Lists) -> Lists:
    """Return the k smallest of both by row, by value and then by position; what is infinite has no position."""
    values, names = (np.concatenate(pair, axis=1) for pair in zip(first, second, strict=True))
    names = np.where(np.isinf(values), -1, names)
    order = np.lexsort((names, values), axis=1)[:, : first.values.shape[1]]
    return Lists(np.take_along_axis(values, order, axis=1), np.take_along_axis(names, order, axis=1))


_FUNCTIONS = native.by_type("nearest")


@cache
def _native() -> Any | None:
    """Return the compiled kernel, or None where it was not built or cannot run."""
    native.vector_kernels(["dasrel_merge_nearest"], None, LONG, LONG, *[POINTER] * 6)
    return native.vector_kernels(
        _FUNCTIONS.values(), None, POINTER, LONG, LONG, LONG, POINTER, POINTER, ctypes.c_int64, ctypes.c_int64,
        ctypes.c_int, LONG, *[POINTER] * 5,
    )  # fmt: skip


def _merge_native(panel: Array, rows: Objects, columns: Objects, on_diagonal: bool) -> bool:
    library, name = _native(), _FUNCTIONS.get(panel.dtype)
    if library is None or name is None or not native.in_rows(panel):
        return False
    row_at, column_at = (np.ascontiguousarray(side.at, dtype=np.int64) for side in (rows, columns))
    most = np.empty(len(column_at), dtype=panel.dtype)
    getattr(library, name)(
        panel.ctypes.data, panel.strides[0] // panel.itemsize, *panel.shape, row_at.ctypes.data, column_at.ctypes.data,
        rows.first, columns.first, on_diagonal, rows.lists.values.shape[1], rows.lists.values.ctypes.data,
        rows.lists.positions.ctypes.data, columns.lists.values.ctypes.data, columns.lists.positions.ctypes.data,
        most.ctypes.data,
    )  # fmt: skip
    return True
