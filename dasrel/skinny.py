"""Products of a tile with few columns, by a small compiled kernel where there is one, else not at all.

`skinny.c` is compiled when dasrel is installed on a machine that has a C compiler; it runs on processors with AVX2 and
FMA. Everywhere else `tiles` multiplies by BLAS, as it always does when there are many columns. Measured on one core
for a tile of 4,096 x 4,096 float32 (both products, ms; a read of it alone takes 3.3):

    columns    1     2     3     4     5     8    16    32    64
    BLAS     5.0  14.8  20.3  12.8  17.9  16.0  22.0  36.5  66
    here     4.2   4.8   4.9   5.6   7.8   9.3  16.9  31.7  62
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

VERSION = 1
MOST_COLUMNS = 64
"""Above these BLAS is as good, and it knows more processors."""


@cache
def _library() -> Any | None:
    """The compiled kernel, or None where it was not built or cannot run."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_skinny.so")))
        if library.dasrel_skinny() != VERSION:
            return None
    except (OSError, AttributeError):
        return None
    number, address = ctypes.c_long, ctypes.c_void_p
    for name in ("dasrel_products_f32", "dasrel_products_f64"):
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [
            address, number, number, number, number, address, number, address, number, address, number, address, number,
        ]  # fmt: skip
    return library


def available() -> bool:
    """Whether the compiled kernel is used at all."""
    return _library() is not None


def add_products(panel: Array, rows: Array, columns: Array, row_sums: Array, column_sums: Array | None) -> bool:
    """`row_sums += columns @ panel.T` and, unless it is None, `column_sums += rows @ panel`; False if BLAS must do it.

    `rows` (k, height) and `columns` (k, width) have the panel's type; the sums are float64.
    """
    library = _library()
    arrays = [panel, rows, columns, row_sums] + ([] if column_sums is None else [column_sums])
    if library is None or len(columns) > MOST_COLUMNS or not all(_in_rows(array) for array in arrays):
        return False
    names = {np.dtype(np.float32): "dasrel_products_f32", np.dtype(np.float64): "dasrel_products_f64"}
    name = names.get(panel.dtype)
    if name is None or rows.dtype != panel.dtype or columns.dtype != panel.dtype:
        return False
    size = panel.itemsize
    getattr(library, name)(
        panel.ctypes.data, panel.strides[0] // size, *panel.shape, len(columns),
        rows.ctypes.data, rows.strides[0] // size, columns.ctypes.data, columns.strides[0] // size,
        row_sums.ctypes.data, row_sums.strides[0] // 8,
        None if column_sums is None else column_sums.ctypes.data,
        0 if column_sums is None else column_sums.strides[0] // 8,
    )  # fmt: skip
    return True


def _in_rows(array: Array) -> bool:
    """Whether numbers of a row lie side by side, and rows after each other at any whole distance."""
    return array.strides[1] == array.itemsize and array.strides[0] >= 0 and array.strides[0] % array.itemsize == 0
