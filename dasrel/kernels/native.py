"""Load the compiled library, and say which kernels are in use.

The library's C functions do what NumPy, BLAS and Python also do, more slowly. Its sources (`kernels/csrc`) are compiled
when dasrel is installed on a machine that has a C compiler. Without the library, or with DASREL_NO_NATIVE=1 in the
environment, the modules use NumPy instead. The products of its vector kernels differ from those of BLAS in the last
bits: `signature` names the kernels in use.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from dasrel.util import Array

VERSION = 5
"""Of the library's functions and the bits they give; `library.c` has the same. A library of another version is not
used."""
LONG, POINTER = ctypes.c_long, ctypes.c_void_p
OFF = "DASREL_NO_NATIVE"
"""The variable of the environment that switches the library off, unless it is empty or 0."""


def library_path() -> str:
    """Return where the library is, if it was built."""
    return str(Path(__file__).with_name("_native.so"))


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


def by_type(name: str) -> dict[Any, str]:
    """Return the names of a vector kernel for float32 and float64."""
    import numpy as np  # `dasrel --version` needs the rest of this module only

    return {np.dtype(np.float32): f"dasrel_{name}_f32", np.dtype(np.float64): f"dasrel_{name}_f64"}


def vector_kernels(names: Iterable[str], result: Any, *arguments: Any) -> Any | None:
    """Return the library, with the types of these functions set, if its vector kernels run on this processor."""
    loaded = library() if instruction_set() else None
    for name in names if loaded is not None else ():
        typed(loaded, name, result, *arguments)
    return loaded


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


def in_rows(array: Array) -> bool:
    """Tell whether numbers of a row are adjacent, and rows follow each other at any whole distance."""
    return array.strides[1] == array.itemsize and array.strides[0] >= 0 and array.strides[0] % array.itemsize == 0
