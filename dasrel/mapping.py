"""Parts of mapped files: views here, copies on the worker of a cluster.

Dask counts every page that a worker has mapped as the worker's memory, pauses it at 0.8 of its limit and ends it at
0.95: a file that is larger than the limit must not stay mapped. There a part is copied, some rows at a time, and the
pages are let go of; they stay in the operating system's cache. Anywhere else a part is a view, and costs nothing.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel import tasks

Array = NDArray[Any]

BAND = 64
"""Rows between two times of letting go: the system maps 64 KB around whatever is looked at, so that a short piece of a
long row is 64 KB as well."""


def part(table: Array, rows: slice, columns: slice | Array = slice(None)) -> Array:
    """These rows and columns of an array of two dimensions."""
    if not (tasks.on_worker() and _map_of(table) is not None):
        return table[rows, columns] if isinstance(columns, slice) else table[rows][:, columns]
    if isinstance(columns, slice) and table.flags.f_contiguous and not table.flags.c_contiguous:
        return part(table.T, columns, rows).T
    first, last, _ = rows.indices(len(table))
    wide = len(range(*columns.indices(table.shape[1]))) if isinstance(columns, slice) else len(columns)
    copy = np.empty((max(0, last - first), wide), dtype=table.dtype)
    for start in range(0, len(copy), BAND):
        band = table[first + start : min(last, first + start + BAND)]
        copy[start : start + BAND] = band[:, columns]
        let_go(table)
    return copy


def let_go(array: Array) -> None:
    """On a worker, forget the pages of the file that an array is mapped from; they come back when looked at."""
    if tasks.on_worker():
        found = _map_of(array)
        if found is not None:
            found.madvise(mmap.MADV_DONTNEED)


def _map_of(array: Any) -> mmap.mmap | None:
    """The map that an array is a view of."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array
