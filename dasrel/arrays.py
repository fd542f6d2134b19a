"""Sources that are arrays: mapped files, condensed triangles, chunked arrays, sparse matrices.

Each class here is a `dasrel.source.Source`. What comes from a file travels to a worker as the file's name and is
opened there; what lives in this process's memory has `local` set, and is worked on by this process's threads.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import mapping, stopping
from dasrel.errors import InputError, count_text, shown
from dasrel.intake import Array, Names


@dataclass
class FlatFile:
    """A run of numbers inside a file, mapped when it is first looked at, and once in each process."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    count: int
    _map: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        size, needed = os.stat(self.path).st_size, self.offset + self.count * self.dtype.itemsize
        if size < needed:
            raise InputError(
                f"{named(self.path)} is truncated: {count_text(size, 'byte')}, but its header asks for {needed:,}; copy"
                " it again"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}

    def values(self) -> Array:
        """All of them, read-only, in no anonymous memory."""
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
        """Whether the file may not stay in memory. A tile is many short rows: reading on beyond each is then waste."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return 2 * self.count * self.dtype.itemsize > memory

    def will_need(self, first: int, count: int) -> None:
        """Ask for these numbers to be read from the disk; returns at once."""
        self.values()
        start = self.offset + first * self.dtype.itemsize
        page = start - start % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, page, start - page + count * self.dtype.itemsize)

    def close(self) -> None:
        """Forget the map; it goes when the last array on it goes."""
        self._map = None


@dataclass
class MappedSource:
    """A full square matrix in a file, rows after rows, or columns after columns (`fortran`)."""

    file: FlatFile
    n_objects: int
    provenance: dict[str, Any]
    ids: Names | None = None
    fortran: bool = False
    mirrored: bool = True
    checksum: str | None = None
    local: bool = False

    def block(self, rows: slice, columns: slice) -> Array:
        """A view of the file; a copy on a worker."""
        n = self.n_objects
        square = self.file.values().reshape(n, n)
        if self.fortran:
            rows, columns = columns, rows
        if self.file.large():
            for r in range(rows.start, rows.stop):
                self.file.will_need(r * n + columns.start, columns.stop - columns.start)
        part = mapping.part(square, rows, columns)
        return part.T if self.fortran else part

    def block_memory(self, rows: int, columns: int) -> int:
        """Nothing: the pages belong to the file. (On a worker it is copied: see `readers.task_memory`.)"""
        return 0

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()


@dataclass
class TriangleSource:
    """One triangle as a vector: rows of the upper one, which are the columns of the lower one.

    That is SciPy's condensed form, and R's `dist`, which lists the lower triangle column by column: the same order.
    With `diagonal` each row begins with the object's own value (the symmetric array form of MatrixMarket).
    """

    vector: FlatFile | Array
    n_objects: int
    provenance: dict[str, Any]
    ids: Names | None = None
    diagonal: bool = False
    mirrored: bool = False
    checksum: str | None = None

    @property
    def local(self) -> bool:
        """Whether the numbers are in this process only."""
        return not isinstance(self.vector, FlatFile)

    def block(self, rows: slice, columns: slice) -> Array:
        """The block, gathered row by row; on the diagonal both halves of it."""
        n = self.n_objects
        values = self.vector.values() if isinstance(self.vector, FlatFile) else self.vector
        result = np.zeros((rows.stop - rows.start, columns.stop - columns.start), dtype=values.dtype)
        for k, r in enumerate(range(rows.start, rows.stop)):
            # Position of the pair (r, c) is `before + c`.
            before = r * n - r * (r - 1) // 2 - r if self.diagonal else r * n - r * (r + 1) // 2 - r - 1
            first = max(columns.start, r if self.diagonal else r + 1)
            if first < columns.stop:
                result[k, first - columns.start :] = values[before + first : before + columns.stop]
            if k % mapping.BAND == 0 or r == rows.stop - 1:
                mapping.let_go(values)
        if rows == columns:
            below = np.tri(result.shape[0], k=-1, dtype=bool)
            result = np.where(below, result.T, result)
        return result

    def block_memory(self, rows: int, columns: int) -> int:
        """The block; on the diagonal twice, and a mask."""
        itemsize = self.vector.dtype.itemsize
        return rows * columns * (2 * itemsize + 1)

    def close(self) -> None:
        """Let go of the file."""
        if isinstance(self.vector, FlatFile):
            self.vector.close()


@dataclass
class ArraySource:
    """Anything square that gives a block when it is sliced: NumPy, Zarr, HDF5, dask and xarray arrays."""

    array: Any
    n_objects: int
    provenance: dict[str, Any]
    ids: Names | None = None
    chunks: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Sizes of the array's own chunks, in rows and in columns, where reading part of one costs all of it."""
    local: bool = False
    mirrored: bool = True
    checksum: str | None = None

    def block(self, rows: slice, columns: slice) -> Array:
        """The block, computed or decoded where need be."""
        part = self.array[rows, columns]
        return np.asarray(part.compute() if hasattr(part, "dask") else part)

    def block_memory(self, rows: int, columns: int) -> int:
        """The block, and a chunk that is decoded beside it. A view of a NumPy array takes nothing."""
        if isinstance(self.array, np.ndarray):
            return 0
        size = np.dtype(self.array.dtype).itemsize
        chunk = max(self.chunks[0]) * max(self.chunks[1]) if self.chunks else rows * columns
        return int((rows * columns + 2 * chunk) * size)

    def grain(self) -> int | None:
        """Side of the chunks when they are square and regular; a tile that is a multiple of it reads each one once."""
        if self.chunks is None:
            return None
        rows, columns = self.chunks
        side = rows[0]
        regular = rows == columns and all(size == side for size in rows[:-1]) and rows[-1] <= side
        return side if regular else 0

    def put_aside(self, folder: Path) -> MappedSource:
        """A copy in a plain file, made chunk by chunk, for chunks that do not fit the tiles: each is read once."""
        assert self.chunks is not None
        path, dtype = folder / "square", np.dtype(self.array.dtype)
        n = self.n_objects
        if not path.exists():
            partial = folder / "square.partial"
            square = allocated(partial, dtype, (n, n))
            for rows in _spans(self.chunks[0]):
                for columns in _spans(self.chunks[1]):
                    stopping.check()
                    square[rows, columns] = self.block(rows, columns)
            square.flush()
            os.replace(partial, path)
        return MappedSource(FlatFile(str(path), dtype, 0, n * n), n, self.provenance, self.ids)

    def close(self) -> None:
        """Nothing to let go of."""


def allocated(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, keep: bool = False) -> Any:
    """Create a file and map it for writing; with `keep`, behind what is in it already.

    Its space is taken now: a full disk is an error here, and later it would be a signal that ends the process. Where
    the system has no `posix_fallocate` (macOS), the file only gets its length, and the space is taken page by page.
    """
    with open(path, "ab" if keep else "wb") as file:
        offset, size = file.tell(), math.prod(shape) * dtype.itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, offset + size)
        else:
            os.ftruncate(file.fileno(), offset + size)
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape, offset=offset)


def _spans(sizes: tuple[int, ...]) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]


def named(path: object) -> str:
    """A path for a message: whole, unless it is absurdly long."""
    return shown(path, limit=400)


def about(path: Path) -> dict[str, Any]:
    """Where a file source comes from, and what tells whether it is still the same."""
    found = path.stat()
    return {"source": str(path), "size": found.st_size, "modified": found.st_mtime_ns}


def square_side(shape: tuple[int, ...], what: str) -> int:
    """The number of objects of a square array, or of a condensed vector."""
    if len(shape) == 2:
        if shape[0] != shape[1]:
            raise InputError(
                f"{what} is not square: {count_text(shape[0], 'row')}, {count_text(shape[1], 'column')}; give one row"
                " and one column per object"
                " (features go through `dasrel pairwise`)"
            )
        return shape[0]
    if len(shape) == 1:
        n = (1 + math.isqrt(1 + 8 * shape[0])) // 2
        if n * (n - 1) // 2 != shape[0]:
            raise InputError(
                f"{what} has {count_text(shape[0], 'value')}, which is no n(n-1)/2: not a condensed distance vector;"
                " is it truncated?"
            )
        return n
    raise InputError(f"{what} has {len(shape)} dimensions; a square matrix or a condensed vector is needed")


def check_numbers(dtype: np.dtype[Any], what: str) -> None:
    """Refuse what is not real numbers."""
    if dtype.hasobject:
        raise InputError(f"{what} holds Python objects (pickle), which dasrel never loads; save it as float32 numbers")
    if dtype.kind not in "fiub":
        hint = "save its real part" if dtype.kind == "c" else "save it as float32 numbers"
        raise InputError(f"{what} holds values of type {shown(dtype)}; real numbers are needed: {hint}")
