"""Numbers that a file holds as they are: mapped files, and the headers of NumPy's files and archives.

What a header claims is compared with what is there before anything is read.
"""

from __future__ import annotations

import math
import mmap
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasrel.errors import InputError
from dasrel.io.readers.errors import check_unpacked, reader_errors
from dasrel.util import Array
from dasrel.util.text import count_text, path_text, shown


@dataclass
class FlatFile:
    """Consecutive numbers inside a file, mapped on first use, once in each process."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    count: int
    _map: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        size, needed = os.stat(self.path).st_size, self.offset + self.count * self.dtype.itemsize
        if size < needed:
            raise InputError(
                f"{path_text(self.path)} is truncated: {count_text(size, 'byte')}, but its header asks for {needed:,}",
                remedy="copy it again",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "path": os.path.abspath(self.path)}  # workers have folders of their own

    def values(self) -> Array:
        """Return all numbers as a read-only view of the file."""
        if self.count == 0:
            return np.empty(0, dtype=self.dtype)
        if self._map is None:
            with open(self.path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if self.large():
                mapped.madvise(mmap.MADV_RANDOM)
            self._map = mapped
        return np.frombuffer(self._map, dtype=self.dtype, count=self.count, offset=self.offset)

    def large(self) -> bool:
        """Return whether the file may not stay in memory; then reading ahead beyond a tile's short rows is waste."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return 2 * self.count * self.dtype.itemsize > memory

    def will_need(self, first: int, count: int) -> None:
        """Ask the system to read these numbers from the disk; return at once."""
        self.values()
        start = self.offset + first * self.dtype.itemsize
        page = start - start % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, page, start - page + count * self.dtype.itemsize)

    def close(self) -> None:
        """Drop the map; it is unmapped with the last array on it."""
        self._map = None


def check_numbers(dtype: np.dtype[Any], what: str) -> None:
    """Raise if the type is not one of real numbers."""
    if dtype.hasobject:
        raise InputError(
            f"{what} holds Python objects (pickle), which dasrel never loads", remedy="save it as float32 numbers"
        )
    if dtype.kind not in "fiub":
        remedy = "save its real part" if dtype.kind == "c" else "save it as real numbers, float32"
        raise InputError(f"{what} holds values of type {shown(dtype)}", remedy=remedy)


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
        raise InputError(
            f"{path_text(what)} is no whole .npy file ({described})", remedy="write or copy it again"
        ) from None
    return shape, fortran, dtype


def check_archive(path: Path) -> None:
    """Raise if an array of an archive is damaged, or its header claims more than the archive holds of it.

    Cost: reads the headers of the arrays.
    """
    with reader_errors(path, "a NumPy archive"), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".npy"):
                archive_header(archive, path, name.removesuffix(".npy"), numbers=False)


def archive_header(
    archive: zipfile.ZipFile, path: Path, name: str, *, numbers: bool = True
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int | None]:
    """Return shape, Fortran order, type, and the offset of the numbers in the file; None if they are compressed."""
    info, what = archive.getinfo(f"{name}.npy"), f"{path}, array {name}"
    with reader_errors(what), archive.open(info) as member:
        shape, fortran, dtype, begin = npy_header(member, what, numbers=numbers)  # type: ignore[arg-type]
        needed = begin + math.prod(shape) * dtype.itemsize
        if needed > info.file_size:
            raise InputError(
                f"{path_text(what)} is damaged: its header asks for {count_text(needed, 'byte')}, and the archive has"
                f" {info.file_size:,}",
                remedy="write or copy it again",
            )
        check_unpacked(info.file_size, info.compress_size, what)
        if info.compress_type != zipfile.ZIP_STORED:
            return shape, fortran, dtype, None
        with open(path, "rb") as file:
            file.seek(info.header_offset)
            head = file.read(30)
        names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        return shape, fortran, dtype, info.header_offset + 30 + names + begin
