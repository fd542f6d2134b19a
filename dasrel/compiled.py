"""The small compiled library, where there is one: what NumPy, BLAS and Arrow do as well, only slower.

Its C sources are compiled when dasrel is installed on a machine that has a C compiler. Each of its parts says by a
function of its own which version it is, or 0 where the processor cannot run it; without a part, the module that would
use it goes another way.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

NUMBER, ADDRESS = ctypes.c_long, ctypes.c_void_p


@cache
def part(name: str, version: int) -> Any | None:
    """The library, if its part of this name is of this version and runs here; else None."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_compiled.so")))
        return library if getattr(library, name)() == version else None
    except (OSError, AttributeError):
        return None


def declare(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library with the types of its result and its arguments."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


def in_rows(array: NDArray[Any]) -> bool:
    """Whether numbers of a row lie side by side, and rows after each other at any whole distance."""
    return array.strides[1] == array.itemsize and array.strides[0] >= 0 and array.strides[0] % array.itemsize == 0
