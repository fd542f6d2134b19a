"""NumPy's `.npy` files: square in either order, or a condensed vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.source import Source, check_numbers, mapped_source, provenance_of
from dasrel.util.text import path_text, shown


def open_npy(path: Path, reading: Reading, kind: str) -> Source:
    """Open a `.npy` file, mapped: square in either order, or a condensed vector."""
    with open(path, "rb") as file:
        shape, fortran, dtype, offset = npy_header(file, str(path))
    return mapped_source(path, dtype, offset, shape, fortran, provenance_of(path), kind)


def npy_header(file: BinaryIO, what: str, *, numbers: bool = True) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, Fortran order, type and the offset of the numbers; the file may be a member of an archive.

    Without `numbers`, text is as good.
    """
    shape, fortran, dtype = npy_layout(file, what)
    if numbers or dtype.hasobject:
        check_numbers(dtype, path_text(what))
    return shape, fortran, dtype, file.tell()


def npy_layout(file: BinaryIO, what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and type of an array, whatever it holds."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"format version {version}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"shape {shape}")
    except (ValueError, EOFError, OSError, TypeError, SyntaxError, RecursionError, OverflowError) as error:
        described = shown(error, limit=120) or type(error).__name__
        raise InputError(f"{path_text(what)} is no whole .npy file ({described}); write or copy it again") from None
    return shape, fortran, dtype
