"""What the readers of all formats share: sources of blocks, and numbers that a file holds as they are.

An opener reads the header of a file and returns a `Source`, which gives any block of the matrix, or a
`SequentialSource`, which must first be read completely and spooled to disk. A source that reads a file is pickled as
the file's name and opened on the worker; one that holds arrays of this process has `local` set, and its tiles are
processed by the threads of this process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dasrel.errors import InputError
from dasrel.io.readers.flat import FlatFile
from dasrel.kernels.condensed import check_condensed, square_side, triangle_block
from dasrel.util import Array, Names, limits, parallel
from dasrel.util.files import replacing
from dasrel.util.text import path_text, shown, some

MOST_CHUNKS = 1 << 20
"""Chunks per side of a matrix, at most; smaller chunks would make tables that are larger than the data."""


class Source(Protocol):
    """A square matrix of which any block can be read."""

    n_objects: int
    ids: Names | None
    mirrored: bool
    """Whether the source holds both values of a pair. If not, `block` is called for the upper triangle only."""
    local: bool
    """Whether blocks can only be read in this process: then no task is sent to a worker of a cluster."""
    provenance: dict[str, Any]
    """`source` as text; `size` in bytes and `modified` (nanoseconds) where it is a file."""
    checksum: str | None
    """Of the source's bytes, where all of them were read in order; else None."""

    def block(self, rows: slice, columns: slice) -> Array:
        """Return the values of these rows and columns, NaN where a value is absent. Called from several threads.

        A block on the diagonal is complete: it has both triangles.
        """

    def block_memory(self, rows: int, columns: int) -> int:
        """Return the anonymous memory, in bytes, that one call of `block` of this size takes, result included."""

    def close(self) -> None:
        """Close files. The import removes what was spooled to disk."""


@dataclass(frozen=True)
class SequentialSource:
    """A source that must be read completely before it can give a block; so far only its header was read."""

    n_objects: int | None
    """None where only reading all of it shows."""
    mirrored: bool
    provenance: dict[str, Any]
    reason: str
    """Why no block can be read alone, such as "is compressed", for messages."""
    spool: Callable[[Path], Source]
    """Reads the source once, writes its values to files in the given folder, and returns a source that reads those."""
    spool_bytes: int | None
    """Size of these files, where the header tells."""
    block_memory: Callable[[int, int], int]
    """`Source.block_memory` of the spooled source."""
    holes: str = ""
    """As in `ArraySource`."""


Opened = Source | SequentialSource


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
        """Return a view of the file; a copy on a worker."""
        n = self.n_objects
        square = self.file.values().reshape(n, n)
        if self.fortran:
            rows, columns = columns, rows
        if self.file.large():
            for r in range(rows.start, rows.stop):
                self.file.will_need(r * n + columns.start, columns.stop - columns.start)
        part = parallel.part(square, rows, columns)
        return part.T if self.fortran else part

    def block_memory(self, rows: int, columns: int) -> int:
        """Return 0: the pages belong to the file. (A worker copies them: see `importing.task_memory`.)"""
        return 0

    def close(self) -> None:
        """Close the file."""
        self.file.close()


@dataclass
class TriangleSource:
    """One triangle as a vector, in condensed form.

    With `diagonal` each row begins with the object's own value (the symmetric array form of MatrixMarket).
    """

    vector: FlatFile | Array
    n_objects: int
    provenance: dict[str, Any]
    ids: Names | None = None
    diagonal: bool = False
    mirrored: bool = False
    local: bool = False
    checksum: str | None = None

    def block(self, rows: slice, columns: slice) -> Array:
        """Return the block, gathered row by row; on the diagonal both triangles of it."""
        values = self.vector.values() if isinstance(self.vector, FlatFile) else self.vector
        return triangle_block(values, self.n_objects, rows, columns, diagonal=self.diagonal)

    def block_memory(self, rows: int, columns: int) -> int:
        """Return the size of the block; on the diagonal twice, and a mask."""
        return triangle_memory(rows, columns, self.vector.dtype)

    def close(self) -> None:
        """Close the file."""
        if isinstance(self.vector, FlatFile):
            self.vector.close()


def triangle_memory(rows: int, columns: int, dtype: np.dtype[Any]) -> int:
    """Return the memory that a block of a `TriangleSource` takes."""
    return rows * columns * (2 * dtype.itemsize + 1)


def mapped_memory(rows: int, columns: int) -> int:
    """Return the memory that a block of a `MappedSource` takes: none."""
    return 0


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
    holes: str = ""
    """What a missing value may be besides a NaN in the data, for messages."""

    def block(self, rows: slice, columns: slice) -> Array:
        """Return the block, computed or decoded if necessary."""
        part = self.array[rows, columns]
        return np.asarray(part.compute() if hasattr(part, "dask") else part)

    def block_memory(self, rows: int, columns: int) -> int:
        """Return the size of the block and of a chunk that is decoded for it. A view of a NumPy array takes nothing."""
        if isinstance(self.array, np.ndarray):
            return 0
        size = np.dtype(self.array.dtype).itemsize
        chunk = max(self.chunks[0]) * max(self.chunks[1]) if self.chunks else rows * columns
        return int((rows * columns + 2 * chunk) * size)

    def grain(self) -> int | None:
        """Return the side of square, regular chunks, 0 for other chunks, None if there are none.

        Tiles of a multiple of this side read each chunk once.
        """
        if self.chunks is None:
            return None
        rows, columns = self.chunks
        side = rows[0]
        regular = rows == columns and all(size == side for size in rows[:-1]) and rows[-1] <= side
        return side if regular else 0

    def sequential(self, reason: str) -> SequentialSource:
        """Return a source that is copied chunk by chunk to a plain file first, so that each chunk is read once."""
        size = self.n_objects * self.n_objects * np.dtype(self.array.dtype).itemsize
        return SequentialSource(
            self.n_objects, True, self.provenance, reason, self._spool, size, mapped_memory, self.holes
        )

    def _spool(self, folder: Path) -> MappedSource:
        assert self.chunks is not None
        path, dtype = folder / "square", np.dtype(self.array.dtype)
        n = self.n_objects
        if not path.exists():
            with replacing(path) as temporary:
                square = allocated(temporary, dtype, (n, n))
                for rows in _spans(self.chunks[0]):
                    for columns in _spans(self.chunks[1]):
                        limits.check()
                        square[rows, columns] = self.block(rows, columns)
                square.flush()
        return MappedSource(FlatFile(str(path), dtype, 0, n * n), n, self.provenance, self.ids)

    def close(self) -> None:
        """Do nothing: there is no file to close."""


def allocated(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, keep: bool = False) -> Any:
    """Create a file and map it for writing; with `keep`, behind what is in it already.

    Its space is taken now: a full disk is an error here, and later it would be a signal that ends the process. Where
    the system has no `posix_fallocate` (macOS), the file only gets its length, and the space is taken page by page.
    """
    with open(path, "ab" if keep else "xb") as file:
        offset, size = file.tell(), math.prod(shape) * dtype.itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, offset + size)
        else:
            os.ftruncate(file.fileno(), offset + size)
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape, offset=offset)


def _spans(sizes: tuple[int, ...]) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]


def provenance_of(path: Path) -> dict[str, Any]:
    """Return where a file comes from, and what shows whether it is still the same."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path_text(path)}: cannot be read: {error.strerror}") from error
    return {"source": str(path), "size": status.st_size, "modified": status.st_mtime_ns}


def mapped_source(
    path: Path,
    dtype: np.dtype[Any],
    offset: int,
    shape: tuple[int, ...],
    fortran: bool,
    provenance: dict[str, Any],
    kind: str,
    ids: Names | None = None,
    diagonal: bool = False,
) -> MappedSource | TriangleSource:
    """Return the source of an array that a file holds as it is: square, or one triangle, with a `diagonal` or not."""
    n = _side(shape, diagonal, kind, provenance)
    file = FlatFile(str(path), dtype, offset, math.prod(shape))
    if len(shape) == 1:
        return TriangleSource(file, n, provenance, ids, diagonal)
    return MappedSource(file, n, provenance, ids, fortran=fortran)


def _side(shape: tuple[int, ...], diagonal: bool, kind: str, provenance: dict[str, Any]) -> int:
    if diagonal:
        return (math.isqrt(8 * shape[0] + 1) - 1) // 2
    what = path_text(provenance["source"])
    n = square_side(shape, what)
    if len(shape) == 1:
        check_condensed(kind, what)
    return n


def copied_source(
    pieces: Callable[[], Iterator[Any]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    provenance: dict[str, Any],
    kind: str,
    reason: str,
    *,
    fortran: bool = False,
    ids: Names | None = None,
    diagonal: bool = False,
    holes: str = "",
) -> SequentialSource:
    """Return the source of an array whose bytes come in order, and are first copied to a file; see `mapped_source`."""
    n = _side(shape, diagonal, kind, provenance)

    def spool(folder: Path) -> Source:
        path = folder / "values"
        if not path.exists():
            with replacing(path) as temporary, open(temporary, "xb") as out:
                for piece in pieces():
                    limits.check()
                    out.write(piece)
        return mapped_source(path, dtype, 0, shape, fortran, provenance, kind, ids, diagonal)

    memory = mapped_memory if len(shape) == 2 else partial(triangle_memory, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    return SequentialSource(n, len(shape) == 2, provenance, reason, spool, size, memory, holes)


def sequential_vector(
    array: Any, sizes: tuple[int, ...], provenance: dict[str, Any], kind: str, ids: Names | None = None
) -> SequentialSource:
    """Return the source of a condensed vector in chunks of these sizes, which is copied to a plain file first."""
    dtype = np.dtype(array.dtype)

    def pieces() -> Iterator[Any]:
        for span in _spans(sizes):
            part = array[span]
            yield np.ascontiguousarray(part.compute() if hasattr(part, "dask") else part, dtype=dtype).data

    reason, holes = "is a vector in chunks", getattr(array, "holes", "")
    return copied_source(pieces, (sum(sizes),), dtype, provenance, kind, reason, ids=ids, holes=holes)


def regular_chunks(chunks: tuple[int, ...], shape: tuple[int, ...], what: str) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of the chunks along each axis."""
    if any(size > side * MOST_CHUNKS for side, size in zip(chunks, shape, strict=True)):
        raise InputError(
            f"{what} has {' x '.join(f'{size:,}' for size in shape)} values in chunks of"
            f" {' x '.join(f'{side:,}' for side in chunks)}: too many chunks",
            remedy="is its header damaged?",
        )
    return tuple(
        tuple(min(side, size - k) for k in range(0, size, side)) for side, size in zip(chunks, shape, strict=True)
    )


def is_matrix(item: Any) -> bool:
    """Return whether an array may be the matrix, by its shape and type."""
    shape: tuple[int, ...] = getattr(item, "shape", None) or ()  # an empty dataset of HDF5 has none
    kind = getattr(getattr(item, "dtype", None), "kind", "")
    return (kind in ("f", "i", "u", "b", "c") and len(shape) == 2 and shape[0] == shape[1]) or (
        len(shape) == 1 and kind == "f"
    )


def choose(names: list[str], requested: str | None, what: str) -> str:
    """Return the array that was requested, or the only one."""
    if requested is not None:
        if requested not in names:
            raise InputError(
                f"{path_text(what)} has no array {shown(requested)}",
                remedy=f"there are: {some(map(shown, names), show=10)}",
            )
        return requested
    if len(names) != 1:
        have = f"{len(names)} arrays ({some(map(shown, names), show=10)})" if names else "no square or condensed array"
        remedy = "choose one with {Reading.dataset=NAME}" if names else "give another"
        raise InputError(f"{path_text(what)} has {have}", remedy=remedy)
    return names[0]


def as_text(value: Any) -> str:
    """Return text that may be given as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
