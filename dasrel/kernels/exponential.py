"""exp(factor * x) of a panel, or exp(factor * x^2): the Gaussian kernel of distances.

The exponential is most of the work of a product with a Gaussian kernel. float32 is computed by a compiled kernel
(`exponential.c`), within 2 units in the last place, a relative error of 2.4e-7, of the exponential of the rounded
exponent; what is less than 1.3e-38 is 0. NumPy computes it elsewhere, and float64 always. Measured on one core with
AVX2 for a panel of 256 x 4,096 float32 in the cache: see `bench/oneclass.py`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from dasrel.kernels import native
from dasrel.kernels.native import LONG, POINTER
from dasrel.util import Array


def exponential(values: Array, factor: float, out: Array, *, squared: bool = False) -> None:
    """Write exp(factor * x) to `out`, x the values or, if `squared`, their squares; `out` may be `values`.

    Cost: one pass over the values.
    """
    library = _native()
    single = values.dtype == out.dtype == np.float32 and values.ndim == 2
    if library is not None and single and native.in_rows(values) and native.in_rows(out):
        library.dasrel_exponential_f32(
            values.ctypes.data, values.strides[0] // 4, *values.shape, factor, squared, out.ctypes.data,
            out.strides[0] // 4,
        )  # fmt: skip
        return
    if squared:
        np.multiply(values, values, out=out)
        out *= factor
    else:
        np.multiply(values, factor, out=out)
    np.exp(out, out=out)


@cache
def _native() -> Any | None:
    """Return the library if it has the kernel, or None where that was not built or cannot run."""
    return native.vector_kernels(
        ["dasrel_exponential_f32"], None, POINTER, LONG, LONG, LONG, ctypes.c_float, ctypes.c_int, POINTER, LONG
    )
