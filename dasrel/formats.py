"""Opening array files: npy, npz, raw binary, MatrixMarket, HDF5, Zarr; and the arrays that people hold in Python."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np

from dasrel.arrays import (
    ArraySource,
    FlatFile,
    MappedSource,
    TriangleSource,
    about,
    check_numbers,
    named,
    square_side,
)
from dasrel.errors import InputError, count_text, shown, some
from dasrel.intake import Array
from dasrel.source import Reading, Source
from dasrel.sparse import PIECE, SparseSource, absent_value, sort_aside
from dasrel.vocabulary import is_similarity

COPY = 8 << 20


def open_npy(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """A `.npy` file, mapped: square in either order, or a condensed vector."""
    with open(path, "rb") as file:
        shape, fortran, dtype, offset = _npy_header(file, str(path))
    return _mapped(path, dtype, offset, shape, fortran, about(path), kind)


def open_raw(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """Bare numbers, rows after rows, or a condensed vector; the size of the file tells which."""
    if reading.shape is None or reading.dtype is None:
        raise InputError(f"{named(path)} is raw binary: say --shape N (objects) and --dtype TYPE (float32, <f8, ...)")
    n = reading.shape
    try:
        dtype = np.dtype(reading.dtype)
    except TypeError:
        raise InputError(f"--dtype {shown(reading.dtype)} is no NumPy type; say float32, float64, <i2 ...") from None
    size = path.stat().st_size
    square, triangle = n * n * dtype.itemsize, n * (n - 1) // 2 * dtype.itemsize
    if size not in (square, triangle):
        raise InputError(
            f"{named(path)} has {count_text(size, 'byte')}; {count_text(n, 'object')} of {dtype} take {square} (full)"
            f" or {triangle} (condensed):"
            " it is truncated, or --shape or --dtype is wrong"
        )
    shape = (n, n) if size == square else (n * (n - 1) // 2,)
    return _mapped(path, dtype, 0, shape, False, about(path), kind)


def open_npz(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """One array of an `.npz`, mapped in place when it is not compressed; or a SciPy sparse matrix."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{named(path)} is no whole .npz file ({error}); copy it again") from None
    with archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if reading.dataset is None and {"format", "shape", "data"} <= set(names):
            return _sparse_npz(archive, path, scratch, kind)
        name = (
            reading.dataset
            if reading.dataset in names
            else _choose(_matrices(archive, names), reading.dataset, str(path))
        )
        file, shape, fortran = _npz_member(archive, path, name, scratch)
        return _mapped(Path(file.path), file.dtype, file.offset, shape, fortran, about(path), kind)


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
            raise InputError(f"{named(source)} is a dasrel store already; `dasrel export --format zarr` gives an array")
        names = [name for name, item in node.arrays() if _is_matrix(item)]
        node = node[_choose(names, reading.dataset, str(source))]
    elif reading.dataset is not None:
        raise InputError(f"{named(source)} is one Zarr array; --dataset is for groups")
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


def open_array(array: Any, reading: Reading, scratch: Path, kind: str) -> Source:
    """NumPy, SciPy sparse, dask, xarray and Zarr arrays."""
    import zarr
    from scipy.sparse import issparse

    if isinstance(array, zarr.Array | zarr.Group):
        return open_zarr(array, reading, scratch, kind)
    name = type(array).__module__.partition(".")[0]
    what = f"the {name} array"
    is_sparse: bool = issparse(array)
    if is_sparse:
        check_numbers(array.dtype, what)
        n = square_side(array.shape, what)
        rows = array.tocsr(copy=True)
        rows.sum_duplicates()
        provenance = {"source": f"SciPy sparse {array.format} array"}
        return SparseSource(
            rows.indptr, rows.indices, rows.data, n, provenance, absent_value(kind), mirrored=True, local=True
        )
    if (
        (name == "numpy" and not isinstance(array, np.ndarray))
        or not hasattr(array, "shape")
        or not hasattr(array, "dtype")
    ):
        raise InputError(f"a source of type {type(array).__name__} is not known; give a path, a URL or an array")
    ids = None
    if hasattr(array, "coords") and hasattr(array, "dims"):  # xarray: the labels of the first dimension are the names
        first = array.dims[0] if array.dims else None
        ids = [str(x) for x in array.coords[first].values] if first in array.coords else None
        array = array.data if hasattr(array.data, "dask") or isinstance(array.data, np.ndarray) else array
    check_numbers(np.dtype(array.dtype), what)
    n = square_side(array.shape, what)
    provenance = {"source": f"{name} array of {' x '.join(map(str, array.shape))} {array.dtype}"}
    chunks = getattr(array, "chunks", None)
    if len(array.shape) == 1:
        vector: Any = array
        if not isinstance(array, np.ndarray):
            sizes = chunks[0] if chunks else (array.shape[0],)
            vector = FlatFile(*_vector_aside(array, sizes, scratch, np.dtype(array.dtype)))
        return _triangle(vector, n, provenance, kind, ids, what)
    return ArraySource(array, n, provenance, ids, chunks=chunks, local=True)


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
                with open(aside.with_suffix(".partial"), "wb") as out:
                    while piece := member.read(COPY):
                        out.write(piece)
                os.replace(aside.with_suffix(".partial"), aside)
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


def _sparse_npz(archive: zipfile.ZipFile, path: Path, scratch: Path, kind: str) -> Source:
    with np.load(path, allow_pickle=False) as loaded:
        form = _text(loaded["format"].item())
        shape = tuple(int(x) for x in loaded["shape"])
    if form not in ("csr", "csc", "coo"):
        raise InputError(f"{named(path)} is a sparse matrix in {shown(form)} form; save it as csr, csc or coo")
    n = square_side(shape, named(path))
    names = ("row", "col", "data") if form == "coo" else ("indptr", "indices", "data")
    first, second, values = (_npz_member(archive, path, name, scratch)[0].values() for name in names)
    check_numbers(values.dtype, named(path))

    def pieces() -> Iterator[tuple[Array, Array, Array]]:
        for k in range(0, values.size, PIECE):
            part = slice(k, k + PIECE)
            places = np.arange(k, min(k + PIECE, values.size))
            rows = first[part] if form == "coo" else np.searchsorted(first, places, side="right") - 1
            columns = second[part]
            yield (columns, rows, values[part]) if form == "csc" else (rows, columns, values[part])

    starts, columns, entries = sort_aside(pieces(), n, scratch, upper=False, what=named(path))
    return SparseSource(starts, columns, entries, n, about(path), absent_value(kind), mirrored=True)


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
        raise InputError(
            f"{named(what)} has {have}; " + ("choose one with --dataset NAME" if names else "give another")
        )
    return names[0]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
