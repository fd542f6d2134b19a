"""Products of a tile with few columns, by a small compiled kernel where there is one, else not at all.

`products.c` is compiled when dasrel is installed on a machine that has a C compiler; it runs on x86-64 processors with
AVX2 and FMA, and on 64-bit ARM. Everywhere else `tiles` multiplies by BLAS, as it always does when there are many
columns. Measured on one core with AVX2 for a tile of 4,096 x 4,096 float32 (both products, ms; a read of it alone takes
3.0):

    columns    1     2     3     4     5     8    16    32
    BLAS     5.7  14.6  20.2  12.7  18.5  15.9  22.3  34.9
    here     3.8   4.8   5.3   5.3   6.2   8.8  16.3  33.7
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel import compiled
from dasrel.compiled import LONG, POINTER

Array = NDArray[Any]

MOST_COLUMNS = 32
"""Above these BLAS is as good, and it knows more processors."""


@cache
def _library() -> Any | None:
    """The compiled kernel, or None where it was not built or cannot run."""
    library = compiled.vector_library()
    if library is not None:
        many = (LONG,) * 4
        pairs = (POINTER, LONG) * 4
        for name in ("dasrel_add_products_f32", "dasrel_add_products_f64"):
            compiled.typed(library, name, ctypes.c_int, POINTER, *many, *pairs)
    return library


def available() -> bool:
    """Whether the compiled kernel is used at all."""
    return _library() is not None


def add_products(
    panel: Array, rows: Array | None, columns: Array | None, row_sums: Array | None, column_sums: Array | None
) -> bool:
    """`row_sums += columns @ panel.T` and `column_sums += rows @ panel`; False if BLAS must do it.

    Either is left out where its factors or its sums are None. `rows` (k, height) and `columns` (k, width) have the
    panel's type; the sums are float64.
    """
    library = _library()
    down = (columns, row_sums) if columns is not None and row_sums is not None else ()
    across = (rows, column_sums) if rows is not None and column_sums is not None else ()
    arrays = [panel, *down, *across]
    if library is None or len(arrays) == 1 or not all(compiled.in_rows(array) for array in arrays):
        return False
    names = {np.dtype(np.float32): "dasrel_add_products_f32", np.dtype(np.float64): "dasrel_add_products_f64"}
    name, wide = names.get(panel.dtype), len(arrays[1])
    if name is None or wide > MOST_COLUMNS or any(factors.dtype != panel.dtype for factors in arrays[1::2]):
        return False
    size = panel.itemsize
    done = getattr(library, name)(
        panel.ctypes.data, panel.strides[0] // size, *panel.shape, wide,
        *_place(across[:1], size), *_place(down[:1], size), *_place(down[1:], 8), *_place(across[1:], 8),
    )  # fmt: skip
    return bool(done)


def scratch_memory(k: int, columns: int, itemsize: int) -> int:
    """Bytes that one call takes for k columns of factors and a panel of so many columns; see `products.h`."""
    if not available() or k > MOST_COLUMNS:
        return 0
    return (2 * min(-(-columns // 256) * 256, 4096) + 96) * k * itemsize


def _place(array: Sequence[Array], size: int) -> tuple[int | None, int]:
    """Where an array begins, and the distance between its rows."""
    return (array[0].ctypes.data, array[0].strides[0] // size) if array else (None, 0)
