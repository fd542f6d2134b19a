"""NumPy's `.npy` files, and bare numbers without a header: square, or a condensed vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.flat import check_numbers, npy_header
from dasrel.io.readers.source import Source, mapped_source, provenance_of
from dasrel.util.text import count_text, path_text, shown


def open_npy(path: Path, reading: Reading, kind: str) -> Source:
    """Open a `.npy` file, mapped: square in either order, or a condensed vector."""
    with open(path, "rb") as file:
        shape, fortran, dtype, offset = npy_header(file, str(path))
    return mapped_source(path, dtype, offset, shape, fortran, provenance_of(path), kind)


def open_raw(path: Path, reading: Reading, kind: str) -> Source:
    """Open bare numbers, rows after rows, or a condensed vector; the size of the file tells which."""
    if reading.shape is None or reading.dtype is None:
        raise InputError(
            f"{path_text(path)} is raw binary",
            remedy="say {Reading.shape=N} (objects) and {Reading.dtype=TYPE} (float32, <f8, ...)",
        )
    n = reading.shape
    try:
        dtype = np.dtype(reading.dtype)
    except TypeError:
        raise InputError(
            f"{shown(reading.dtype)} is no NumPy type", remedy="say {Reading.dtype=TYPE}: float32, float64, <i2 ..."
        ) from None
    check_numbers(dtype, path_text(path))
    size = path.stat().st_size
    square, triangle = n * n * dtype.itemsize, n * (n - 1) // 2 * dtype.itemsize
    if size not in (square, triangle):
        raise InputError(
            f"{path_text(path)} has {count_text(size, 'byte')}; {count_text(n, 'object')} of {dtype} take {square}"
            f" (full) or {triangle} (condensed)",
            remedy="it is truncated, or {Reading.shape} or {Reading.dtype} is wrong",
        )
    shape = (n, n) if size == square else (n * (n - 1) // 2,)
    return mapped_source(path, dtype, 0, shape, False, provenance_of(path), kind)
