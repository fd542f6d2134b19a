"""Sources of square arrays: npy, npz, raw, HDF5, Zarr, arrays in memory.

What a reader gives to an import: a matrix that can be asked for any block, whatever the format it came from.

Sources that are arrays: mapped files, condensed triangles, chunked arrays, sparse matrices.

Each class here is a `dasrel.source.Source`. What comes from a file travels to a worker as the file's name and is
opened there; what lives in this process's memory has `local` set, and is worked on by this process's threads.

Opening array files: npy, npz, raw binary, MatrixMarket, HDF5, Zarr; and the arrays that people hold in Python.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Protocol

import numpy as np

from dasrel.errors import InputError
from dasrel.options import Reading as Reading
from dasrel.util import Array, Names, limits, parallel
from dasrel.util.files import replacing
from dasrel.util.text import count_text, shown, some
from dasrel.vocabulary import is_similarity


class Source(Protocol):
    """A square matrix, as far as it is known."""

    n_objects: int
    ids: Names | None
    mirrored: bool
    """Whether the source holds both values of a pair. If not, `block` is asked for the upper triangle only."""
    provenance: dict[str, Any]
    """`source` as text; `size` in bytes and `modified` (nanoseconds) where it is a file."""
    checksum: str | None
    """Of the source's bytes, where the reader saw all of them in order; else None."""

    def block(self, rows: slice, columns: slice) -> Array:
        """The values of these rows and columns, NaN where a value is absent. Called from several threads.

        A block on the diagonal is complete: both halves are there.
        """

    def block_memory(self, rows: int, columns: int) -> int:
        """Anonymous memory, in bytes, that one call of `block` of this size takes, its result included."""

    def close(self) -> None:
        """Let go of files. What was put aside on disk is removed by the import."""


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
        part = parallel.part(square, rows, columns)
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
            if k % parallel.BAND == 0 or r == rows.stop - 1:
                parallel.let_go(values)
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
            with replacing(path) as temporary:
                square = allocated(temporary, dtype, (n, n))
                for rows in _spans(self.chunks[0]):
                    for columns in _spans(self.chunks[1]):
                        limits.check()
                        square[rows, columns] = self.block(rows, columns)
                square.flush()
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


COPY = 8 << 20


def open_npy(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """A `.npy` file, mapped: square in either order, or a condensed vector."""
    with open(path, "rb") as file:
        shape, fortran, dtype, offset = _npy_header(file, str(path))
    return _mapped(path, dtype, offset, shape, fortran, about(path), kind)


def open_raw(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """Bare numbers, rows after rows, or a condensed vector; the size of the file tells which."""
    if reading.shape is None or reading.dtype is None:
        raise InputError(
            f"{named(path)} is raw binary",
            remedy="say {Reading.shape=N} (objects) and {Reading.dtype=TYPE} (float32, <f8, ...)",
        )
    n = reading.shape
    try:
        dtype = np.dtype(reading.dtype)
    except TypeError:
        raise InputError(
            f"{shown(reading.dtype)} is no NumPy type", remedy="say {Reading.dtype=TYPE}: float32, float64, <i2 ..."
        ) from None
    size = path.stat().st_size
    square, triangle = n * n * dtype.itemsize, n * (n - 1) // 2 * dtype.itemsize
    if size not in (square, triangle):
        raise InputError(
            f"{named(path)} has {count_text(size, 'byte')}; {count_text(n, 'object')} of {dtype} take {square} (full)"
            f" or {triangle} (condensed)",
            remedy="it is truncated, or {Reading.shape} or {Reading.dtype} is wrong",
        )
    shape = (n, n) if size == square else (n * (n - 1) // 2,)
    return _mapped(path, dtype, 0, shape, False, about(path), kind)


def open_hdf5(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """A square or 1-D dataset of an HDF5 file: unifrac's `matrix` with its `order`, the only one, or the one named."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            found: list[str] = []
            file.visititems(lambda name, item: found.append(name) if _is_matrix(item) else None)
            if reading.dataset is None and ("matrix" in found or "matrix:0" in found):
                name = "matrix" if "matrix" in found else "matrix:0"
            else:
                name = _choose(found, reading.dataset, str(path))
            data = file[name]
            ids = [_text(x) for x in file["order"][:]] if "order" in file and name.startswith("matrix") else None
            check_numbers(data.dtype, f"{named(path)}, dataset {shown(name)},")
            offset = data.id.get_offset()
            if data.chunks is None and offset is not None and data.external is None:
                mapped = _mapped(path, data.dtype, offset, data.shape, False, about(path), kind)
                mapped.ids = ids
                return mapped
            n = square_side(data.shape, f"{named(path)}, dataset {shown(name)},")
            chunks = _regular(data.chunks or data.shape, data.shape)
            array = _Dataset(str(path), name, np.dtype(data.dtype))
    except OSError as error:
        raise InputError(f"{named(path)} cannot be read as HDF5 ({shown(error)}); is it whole?") from None
    if len(chunks) == 1:
        values = FlatFile(*_vector_aside(array, chunks[0], scratch, array.dtype))
        return _triangle(values, n, about(path), kind, ids, str(path))
    return ArraySource(array, n, about(path), ids, chunks=(chunks[0], chunks[1]))


def open_zarr(source: str | Path | Any, reading: Reading, scratch: Path, kind: str) -> Source:
    """A Zarr array of either format version: a path, a URL, a `zarr.Array`, or a group with one square array."""
    import zarr

    node: Any = source
    if isinstance(source, str | os.PathLike):
        try:
            node = zarr.open(os.fspath(source), mode="r")
        except Exception as error:
            raise InputError(f"{named(source)} cannot be opened as Zarr ({shown(error, limit=200)})") from None
    if isinstance(node, zarr.Group):
        if "dasrel" in node.attrs:
            raise InputError(
                f"{named(source)} is a dasrel store already",
                remedy="`dasrel export STORE OUT --format zarr` gives an array",
            )
        names = [name for name, item in node.arrays() if _is_matrix(item)]
        node = node[_choose(names, reading.dataset, str(source))]
    elif reading.dataset is not None:
        raise InputError(f"{named(source)} is one Zarr array, not a group", remedy="leave {Reading.dataset} out")
    where = named(source) if isinstance(source, str | os.PathLike) else "the Zarr array"
    provenance = {"source": str(source) if isinstance(source, str | os.PathLike) else f"Zarr array {node.store_path}"}
    check_numbers(node.dtype, where)
    n = square_side(node.shape, where)
    chunks = _regular(node.chunks, node.shape)
    if node.ndim == 1:
        return _triangle(
            FlatFile(*_vector_aside(node, chunks[0], scratch, node.dtype)), n, provenance, kind, None, where
        )
    shared = isinstance(source, str | os.PathLike)
    return ArraySource(node, n, provenance, chunks=(chunks[0], chunks[1]), local=not shared)


@dataclass
class _Dataset:
    """A chunked HDF5 dataset that is opened where it is needed: in each process once."""

    path: str
    name: str
    dtype: np.dtype[Any]
    _open: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def __getitem__(self, place: Any) -> Array:
        import h5py

        if self._open is None:
            self._open = h5py.File(self.path, "r")[self.name]
        try:
            return np.asarray(self._open[place])
        except OSError as error:
            raise InputError(f"{named(self.path)} cannot be read ({shown(error)}); is it whole?") from None


def _npy_header(file: BinaryIO, what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, type, and where the numbers begin; the file may be a member of an archive."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{named(what)} is no whole .npy file ({shown(error, limit=120)})") from None
    check_numbers(dtype, named(what))
    return shape, fortran, dtype, file.tell()


def _npz_member(
    archive: zipfile.ZipFile, path: Path, name: str, scratch: Path
) -> tuple[FlatFile, tuple[int, ...], bool]:
    """One array of an archive: in place when it is stored as it is, else unpacked into the scratch folder."""
    info = archive.getinfo(f"{name}.npy")
    what = f"{path}, array {name}"
    try:
        with archive.open(info) as member:
            shape, fortran, dtype, begin = _npy_header(member, what)  # type: ignore[arg-type]
            count = int(np.prod(shape, dtype=np.int64))
            if info.compress_type == zipfile.ZIP_STORED:
                with open(path, "rb") as file:
                    file.seek(info.header_offset)
                    head = file.read(30)
                names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
                return FlatFile(str(path), dtype, info.header_offset + 30 + names + begin, count), shape, fortran
            aside = scratch / f"member{archive.infolist().index(info)}"
            if not aside.exists():
                with replacing(aside) as temporary, open(temporary, "wb") as out:
                    while piece := member.read(COPY):
                        out.write(piece)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise InputError(f"{named(what)} is damaged ({shown(error)}); copy it again") from None
    return FlatFile(str(aside), dtype, 0, count), shape, fortran


def _matrices(archive: zipfile.ZipFile, names: list[str]) -> list[str]:
    """Which arrays of an archive may be meant: the only one, whatever it is, or those of a fitting shape."""
    if len(names) == 1:
        return names
    found = []
    for name in names:
        with archive.open(f"{name}.npy") as member, contextlib.suppress(InputError):
            shape, _, dtype, _ = _npy_header(member, name)  # type: ignore[arg-type]
            if _is_matrix(SimpleNamespace(shape=shape, dtype=dtype)):
                found.append(name)
    return found


def _mapped(
    path: Path,
    dtype: np.dtype[Any],
    offset: int,
    shape: tuple[int, ...],
    fortran: bool,
    provenance: dict[str, Any],
    kind: str,
) -> MappedSource | TriangleSource:
    what = named(provenance["source"])
    check_numbers(dtype, what)
    n = square_side(shape, what)
    file = FlatFile(str(path), dtype, offset, int(np.prod(shape, dtype=np.int64)))
    if len(shape) == 1:
        return _triangle(file, n, provenance, kind, None, what)
    return MappedSource(file, n, provenance, fortran=fortran)


def _triangle(vector: Any, n: int, provenance: dict[str, Any], kind: str, ids: Any, what: str) -> TriangleSource:
    if is_similarity(kind):
        raise InputError(f"{what} is a condensed vector: it has no self-{kind} values; give the full matrix")
    return TriangleSource(vector, n, provenance, ids)


def _vector_aside(array: Any, sizes: tuple[int, ...], scratch: Path, dtype: Any) -> tuple[str, Any, int, int]:
    path, at = scratch / "vector", 0
    with open(path, "wb") as out:
        for size in sizes:
            part = array[at : at + size]
            out.write(np.ascontiguousarray(part.compute() if hasattr(part, "dask") else part, dtype=dtype).data)
            at += size
    return str(path), np.dtype(dtype), 0, at


def _regular(chunks: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The sizes of the chunks along each axis."""
    return tuple(
        tuple(min(side, size - k) for k in range(0, size, side)) for side, size in zip(chunks, shape, strict=True)
    )


def _is_matrix(item: Any) -> bool:
    shape: tuple[int, ...] = getattr(item, "shape", ())
    kind = getattr(getattr(item, "dtype", None), "kind", "")
    return (kind in ("f", "i", "u", "b", "c") and len(shape) == 2 and shape[0] == shape[1]) or (
        len(shape) == 1 and kind == "f"
    )


def _choose(names: list[str], asked: str | None, what: str) -> str:
    """The array that was asked for, or the only one."""
    if asked is not None:
        if asked not in names:
            raise InputError(
                f"{named(what)} has no array {shown(asked)}; there are: {some(map(shown, names), show=10)}"
            )
        return asked
    if len(names) != 1:
        have = f"{len(names)} arrays ({some(map(shown, names), show=10)})" if names else "no square or condensed array"
        remedy = "choose one with {Reading.dataset=NAME}" if names else "give another"
        raise InputError(f"{named(what)} has {have}", remedy=remedy)
    return names[0]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
