"""NumPy and C on one tile: no Dask, no files. Loads the compiled library.

The library's C functions do what NumPy, BLAS and Arrow also do, more slowly. Its sources (`kernels/csrc`) are compiled
when dasrel is installed on a machine that has a C compiler. Without the library, or with DASREL_NO_NATIVE=1 in the
environment, the modules use NumPy instead. The products of its vector kernels differ from those of BLAS in the last
bits: `signature` names the kernels in use.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION = 5
"""Of the library's functions and the bits they give; `library.c` has the same. A library of another version is not
used."""
LONG, POINTER = ctypes.c_long, ctypes.c_void_p
OFF = "DASREL_NO_NATIVE"
"""The variable of the environment that switches the library off, unless it is empty or 0."""


def library_path() -> str:
    """Return where the library is, if it was built."""
    return str(files("dasrel").joinpath("kernels", "_native.so"))


@cache
def library() -> Any | None:
    """Return the library, or None where it was not built, is of another version, or is switched off."""
    if os.environ.get(OFF, "0") not in ("", "0"):
        return None
    try:
        loaded = ctypes.CDLL(library_path())
        return loaded if typed(loaded, "dasrel_library_version", ctypes.c_int)() == VERSION else None
    except (OSError, AttributeError):
        return None


@cache
def instruction_set() -> str:
    """Return "avx2" or "neon", whichever the vector kernels use; "" without the library or on another processor."""
    loaded = library()
    return "" if loaded is None else typed(loaded, "dasrel_instruction_set", ctypes.c_char_p)().decode("ascii")


def vector_library() -> Any | None:
    """Return the library if its vector kernels run on this processor, else None."""
    return library() if instruction_set() else None


def signature() -> str:
    """Return the name of the kernels in use: instruction set and version, such as "avx2-4", or "numpy".

    Where it is the same, a sum of products has the same bits.
    """
    return f"{instruction_set()}-{VERSION}" if instruction_set() else "numpy"


def described() -> str:
    """Describe the kernels in use for people."""
    return instruction_set() or "none, NumPy"


def typed(loaded: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the library, after setting the types of its result and its arguments."""
    function = getattr(loaded, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


def in_rows(array: NDArray[Any]) -> bool:
    """Tell whether numbers of a row are adjacent, and rows follow each other at any whole distance."""
    return array.strides[1] == array.itemsize and array.strides[0] >= 0 and array.strides[0] % array.itemsize == 0


class Transpose:
    """Transposes arrays of one type in blocks that stay in the processor's cache, with scratch memory of its own.

    NumPy's own copy misses the cache at every value. A block is copied with padding first, so that its rows fall into
    different cache lines. Measured for tiles of 4,096 x 4,096: twice as fast as blocks without padding.
    """

    SIDE = 256

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._padded = np.empty((self.SIDE, self.SIDE + 16), dtype=dtype)

    def __call__(self, array: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the transposed array, written to `out` if it is given."""
        result = np.empty(array.shape[::-1], dtype=array.dtype) if out is None else out
        side = self.SIDE
        for r in range(0, array.shape[0], side):
            for c in range(0, array.shape[1], side):
                block = array[r : r + side, c : c + side]
                padded = self._padded[: block.shape[0], : block.shape[1]]
                padded[:] = block
                result[c : c + side, r : r + side] = padded.T
        return result
