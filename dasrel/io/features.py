"""Feature tables, one row per object, and rows of new objects: read from a file or an array, given in blocks of rows.

A `.npy` file is mapped and never copied; on a cluster each worker process maps it once. Everything else is held in
memory, n times p values, and sent to each worker once.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr

from dasrel.errors import InputError
from dasrel.io.readers.errors import check_unpacked, reader_errors
from dasrel.io.readers.flat import FlatFile, check_archive, npy_header
from dasrel.io.readers.stream import Stream
from dasrel.io.readers.zarr_values import ZarrValues
from dasrel.kernels.checks import EXAMPLES
from dasrel.kernels.products import View
from dasrel.util import Array, Float, Names, limits, parallel
from dasrel.util.files import crc32c, file_crc32c
from dasrel.util.labelled import ID_HEADERS, column_order, labelled
from dasrel.util.text import count_text, path_text, shown, some

SUFFIXES = ".npy, .npz, .csv, .tsv, .csv.gz, .tsv.gz, .parquet"
CHUNK_BYTES = 8 << 20
ROW_BYTES = 32 * 2**20
"""New rows are read this many bytes at a time."""


@dataclass(frozen=True)
class Mapped:
    """A `.npy` file as a task gets it: pickled as its name, mapped where it is used."""

    path: str
    size: int
    modified: int

    def array(self) -> Array:
        """Return the array, mapped once per process and version of the file."""
        return _map(self.path, self.size, self.modified)


@dataclass(frozen=True)
class PackedBits:
    """Rows of bytes that hold 8 features of 0 or 1 each, unpacked a block at a time."""

    bytes: Any
    """A `Mapped` file, or an array that can be sliced."""

    def __getitem__(self, rows: slice) -> Array:
        return np.unpackbits(row_block(self.bytes, rows), axis=1)


@dataclass(frozen=True)
class Features:
    """The features of n objects."""

    data: Any
    """A `Mapped` file, a NumPy array or a SciPy CSR array: what the tasks are given."""
    shape: tuple[int, int]
    ids: Names | None
    provenance: dict[str, Any]
    columns: Names | None = None
    """The headers, where the source has them, for messages."""

    @property
    def in_file(self) -> bool:
        """Whether tasks read them from a file, so that they need not be sent."""
        return self.file is not None

    @property
    def file(self) -> str | None:
        """The file that tasks read, if they read one."""
        data = self.data.bytes if isinstance(self.data, PackedBits) else self.data
        return data.path if isinstance(data, Mapped) else None

    def unpacked(self) -> Features:
        """Return the features whose bits these bytes hold; raise if they are no bytes."""
        dtype = row_block(self.data, slice(0, 1)).dtype
        if dtype != np.uint8 or is_sparse(self.data):
            raise InputError(
                f"{self.named()} holds {'sparse rows' if is_sparse(self.data) else dtype}, and packed bits are bytes"
                " (uint8) with 8 bits in each",
                remedy="leave {packed_bits} out, or pack the bits with numpy.packbits(x, axis=1)",
            )
        return replace(self, data=PackedBits(self.data), shape=(self.shape[0], 8 * self.shape[1]), columns=None)

    def chunks(self) -> Iterator[tuple[int, Any]]:
        """Yield all rows in order, a few MB at a time: the first row's number and the rows."""
        rows = max(1, CHUNK_BYTES // (8 * max(1, self.shape[1])))
        for start in range(0, self.shape[0], rows):
            yield start, row_block(self.data, slice(start, start + rows))

    def strip_bytes(self, tile: int, *, sparse: bool) -> int:
        """Return the bytes of the largest strip of `tile` rows as float64; with `sparse`, as sparse rows are stored."""
        if sparse and is_sparse(self.data):
            ends = self.data.indptr[np.minimum(np.arange(tile, self.shape[0] + tile, tile), self.shape[0])]
            return int(np.diff(ends, prepend=0).max()) * 16 + tile * 16
        return tile * (self.shape[1] + 2) * 8

    def named(self) -> str:
        """Return where they come from, for messages."""
        return path_text(self.provenance["source"])

    def column(self, k: int) -> str:
        """Return a column's name for messages."""
        return f"column {k}" if self.columns is None else f"column {shown(self.columns[k])!r}"


def row_block(data: Any, rows: slice) -> Any:
    """Return these rows as they are stored: a NumPy array, or CSR."""
    return parallel.part(data.array(), rows) if isinstance(data, Mapped) else data[rows]


def is_sparse(data: Any) -> bool:
    """Return whether rows are SciPy sparse."""
    return bool(scipy.sparse.issparse(data))


def dense(block: Any) -> Array:
    """Return a block of rows as contiguous float64."""
    return np.ascontiguousarray(block.toarray() if is_sparse(block) else block, dtype=np.float64)


def array_checksum(values: Array, checksum: int = 0) -> int:
    """Return the crc32c of an array's bytes in row order, continuing another checksum."""
    step = max(1, CHUNK_BYTES // max(1, values[:1].nbytes))
    for start in range(0, values.shape[0], step):
        checksum = crc32c(values[start : start + step].tobytes(), checksum)
    return checksum


def read_features(features: Any, *, packed_bits: bool = False, checksum: bool = True) -> Features:
    """Open features: a path (`.npy`, `.npz`, CSV, TSV, Parquet), a NumPy array, a SciPy sparse matrix, or a data frame.

    With `packed_bits` each byte holds 8 features of 0 or 1, as `numpy.packbits` writes them.

    Cost: reads the source once for its checksum. A `.npy` file is mapped; everything else is held in memory.
    """
    is_path = isinstance(features, str | os.PathLike)
    table = _from_file(Path(features), checksum) if is_path else _from_array(features, checksum)
    n, p = table.shape
    if n == 0 or p == 0:
        raise InputError(
            f"{table.named()} has {count_text(n, 'row')} and {count_text(p, 'column')} of numbers",
            remedy="give one row per object",
        )
    return table.unpacked() if packed_bits else table


def check_values(
    features: Features,
    *,
    names: Names,
    allow_nan: bool,
    bad_rows: Callable[[Any], Any] | None,
    reason: str,
) -> None:
    """Raise for NaN and infinite features, and for rows that the metric has no value for.

    Cost: reads the features once, a few MB at a time.
    """
    places: list[tuple[int, int, float]] = []
    count = 0
    undefined: list[int] = []
    for start, block in features.chunks():
        limits.check()
        sparse = is_sparse(block)
        values = block.data if sparse else block
        if values.dtype.kind == "f":
            flaw = np.isinf(values) if allow_nan else ~np.isfinite(values)
            if flaw.any():
                rows, columns = block.tocoo().coords if sparse else np.indices(block.shape)
                count += int(np.count_nonzero(flaw))
                first = zip(rows[flaw][:EXAMPLES], columns[flaw][:EXAMPLES], values[flaw][:EXAMPLES], strict=True)
                places.extend((start + int(r), int(c), float(v)) for r, c, v in first)
                continue
        if bad_rows is not None and not count:
            undefined.extend(start + int(k) for k in np.flatnonzero(bad_rows(block)))
    if count:
        described = [f"row {r} ({shown(names[r])}), {features.column(c)}: {v:g}" for r, c, v in places[:EXAMPLES]]
        raise InputError(
            f"{features.named()} has missing or infinite values: {some(described, total=count)}",
            remedy="fill them or leave these objects out",
        )
    if undefined:
        who = some([f"{shown(names[k])} (object {k})" for k in undefined])
        raise InputError(f"{reason}: {who}", remedy="leave these objects out or choose another metric")


def _from_file(path: Path, checksum: bool) -> Features:
    if not path.is_file():
        raise InputError(f"no features at {path_text(path)}: there is no such file")
    lower = path.name.lower()
    readers: dict[str, Callable[[Path], tuple[Any, Names | None, Names | None]]] = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".csv": _read_text,
        ".tsv": _read_text,
        ".csv.gz": _read_text,
        ".tsv.gz": _read_text,
        ".parquet": _read_parquet,
    }
    reader = next((read for suffix, read in readers.items() if lower.endswith(suffix)), None)
    if reader is None:
        raise InputError(f"{path_text(path)}: features are read from {SUFFIXES}", remedy="rename or convert the file")
    with reader_errors(path):
        data, ids, columns = reader(path)
        array = data.array() if isinstance(data, Mapped) else data
    _check_numbers(array, path_text(path))
    provenance = {"source": str(path), "size": path.stat().st_size}
    if checksum:
        provenance["checksum"] = f"crc32c: {file_crc32c(path):08x}"
    return Features(data, (int(array.shape[0]), int(array.shape[1])), ids, provenance, columns)


def _from_array(features: Any, checksum: bool) -> Features:
    if is_sparse(features):
        ids = columns = None
        with reader_errors("the SciPy sparse matrix"):
            data: Any = _sorted_csr(features)
        parts = [data.data, data.indices, data.indptr]
        source = "SciPy sparse matrix"
    else:
        named = labelled(features)
        ids, columns = (None, None) if named is None else (named.rows, named.columns)
        data = np.asarray(features if named is None else named.values)
        data = data.astype(data.dtype.newbyteorder("="), copy=False)
        parts = [data]
        source = "array"
    _check_numbers(data, f"the {source}")
    provenance = {"source": f"{source} of {data.dtype}", "size": int(sum(part.nbytes for part in parts))}
    if checksum:
        crc = 0
        for part in parts:
            crc = array_checksum(part, crc)
        provenance["checksum"] = f"crc32c: {crc:08x}"
    return Features(data, (int(data.shape[0]), int(data.shape[1])), ids, provenance, columns)


def _check_numbers(array: Any, where: str) -> None:
    if array.ndim != 2:
        raise InputError(f"{where} has {array.ndim} dimensions", remedy="give a table of objects by columns")
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{where} holds values of type {array.dtype}",
            remedy="give numbers; names go into {ids}, or into a file's column of names",
        )


def _read_npy(path: Path) -> tuple[Any, Names | None, Names | None]:
    status = path.stat()
    return Mapped(str(path.absolute()), status.st_size, status.st_mtime_ns), None, None


@lru_cache(maxsize=4)
def _map(path: str, size: int, modified: int) -> Array:
    status = os.stat(path)
    if (status.st_size, status.st_mtime_ns) != (size, modified):
        raise InputError(f"{path_text(path)} has changed since the work began", remedy="run again from the start")
    with open(path, "rb") as file:
        shape, fortran, dtype, offset = npy_header(file, path)
    values = FlatFile(path, dtype, offset, math.prod(shape)).values()
    return values.reshape(shape, order="F" if fortran else "C")


def _read_npz(path: Path) -> tuple[Any, Names | None, Names | None]:
    where = path_text(path)
    check_archive(path)
    with np.load(path, allow_pickle=False) as archive:
        if "format" in archive.files and "shape" in archive.files:
            return _sorted_csr(scipy.sparse.load_npz(path)), None, None
        arrays = {name: archive[name] for name in archive.files}
    tables = [name for name, array in arrays.items() if array.ndim == 2]
    texts = [name for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "UT"]
    if len(tables) != 1 or len(texts) > 1:
        held = ", ".join(f"{shown(name)} {array.shape}" for name, array in arrays.items())
        raise InputError(
            f"{where} holds {held or 'nothing'}",
            remedy="give one two-dimensional array, and at most one list of names",
        )
    return arrays[tables[0]], arrays[texts[0]] if texts else None, None


def _sorted_csr(matrix: Any) -> Any:
    if matrix.format in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)  # SciPy takes any index for valid, and reads beyond its arrays
    rows = scipy.sparse.csr_array(matrix)
    rows.sum_duplicates()
    return rows


def _read_text(path: Path) -> tuple[Any, Names | None, Names | None]:
    import pyarrow
    from pyarrow import csv

    where = path_text(path)
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    stream = Stream(path)
    try:
        # One thread, so that an error names the row it met.
        table = csv.read_csv(
            stream,
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(delimiter=delimiter),
        )
    except pyarrow.ArrowInvalid as error:
        raise InputError(
            f"{where}: {shown(error, limit=200)}", remedy="every line needs as many fields as the header"
        ) from error
    finally:
        stream.close()
    header = [str(name) for name in table.column_names]
    if header and all(_is_number(name) for name in header) and header != [str(k) for k in range(len(header))]:
        raise InputError(
            f"{where}: the first line holds only numbers ({shown(', '.join(header))})",
            remedy="add a header line that names the columns",
        )
    ids = None
    if header and (header[0].strip().lower() in ID_HEADERS or _is_text(table.column(0).type)):
        column = table.column(0)
        if column.null_count:
            row = next(k for k, cell in enumerate(column) if not cell.is_valid)
            raise InputError(f"{where}: the name in line {row + 2} is empty", remedy="give every object a name")
        ids = [str(name) for name in column.to_pylist()]
        table = table.remove_column(0)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _is_text(column.type):
            cells = column.to_pylist()
            row = next((k for k, cell in enumerate(cells) if not _is_number(cell)), 0)
            raise InputError(
                f"{where}, line {row + 2}, column {shown(name)!r}: {shown(cells[row])!r} is not a number",
                remedy="fix it, or put the names of the objects into the first column",
            )
    return *_table_values(table, where), ids, table.column_names


def _read_parquet(path: Path) -> tuple[Any, Names | None, Names | None]:
    from pyarrow import parquet

    where = path_text(path)
    with reader_errors(path, "Parquet"):
        file = parquet.ParquetFile(path)
        check_unpacked(8 * file.metadata.num_rows * file.metadata.num_columns, path.stat().st_size, path)
        table = file.read()
    repeated = [shown(name) for name, count in Counter(table.column_names).items() if count > 1]
    if repeated:
        raise InputError(f"{where} has several columns named {some(repeated)}", remedy="rename or drop the repeats")
    texts = [name for name, field in zip(table.column_names, table.schema, strict=True) if _is_text(field.type)]
    # The index of a pandas frame holds names, not features, even when it is made of numbers.
    kept = (table.schema.pandas_metadata or {}).get("index_columns", [])
    texts += [name for name in kept if isinstance(name, str) and name in table.column_names and name not in texts]
    if len(texts) > 1:
        raise InputError(
            f"{where} has {count_text(len(texts), 'column')} of names ({some([shown(t) for t in texts])})",
            remedy="keep one",
        )
    ids = None
    if texts:
        column = table.column(texts[0])
        if column.null_count:
            raise InputError(f"{where}: {count_text(column.null_count, 'name')} missing in column {shown(texts[0])!r}")
        ids = [str(name) for name in column.to_pylist()]
        table = table.drop_columns(texts)
    return *_table_values(table, where), ids, table.column_names


def _table_values(table: Any, where: str) -> tuple[Array]:
    """Return the columns of numbers side by side; an absent value is NaN, which `check_values` refuses."""
    import pyarrow

    kinds = pyarrow.types
    values = np.empty((table.num_rows, table.num_columns), dtype=np.float64)
    for k, column in enumerate(table.columns):
        kind = column.type
        if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_null(kind)):
            raise InputError(
                f"{where}: column {shown(table.column_names[k])!r} is of type {kind}",
                remedy="give numbers, and names in one column of text",
            )
        values[:, k] = np.nan if kinds.is_null(kind) else column.cast(pyarrow.float64(), safe=False).to_numpy()
    return (values,)


def _is_text(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _is_number(text: object) -> bool:
    try:
        float(str(text))
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Rows:
    """Rows of new objects: the values of each against other objects, one column per object."""

    data: Any
    """A `Mapped` file, or anything two-dimensional that can be sliced: a NumPy, dask or Zarr array."""
    ids: list[str] | None
    """Names of the new objects, where the source has them."""
    columns: list[str] | None
    """Names of the columns, where the source has them."""
    provenance: dict[str, Any]
    """`source` as text; for files and NumPy arrays also `size`, and `checksum` unless it was not requested."""

    def array(self) -> Any:
        """Return the values as an array that can be sliced."""
        return self.data.array() if isinstance(self.data, Mapped) else self.data


def read_rows(source: Any, *, checksum: bool = True) -> Rows:
    """Open rows of new objects.

    Parameters
    ----------
    source
        A path (`.npy`, `.npz`, CSV, TSV, Parquet, a folder or URL that is a Zarr array), or a NumPy, dask, xarray or
        Zarr array, or a data frame.

    Cost: one read of files and NumPy arrays for the checksum. A `.npy` file is mapped, Zarr and dask arrays are read in
    blocks later; everything else is held in memory.
    """
    rows = columns = None
    if isinstance(source, str | os.PathLike):
        where = path_text(source)
        if os.path.isdir(source) or "://" in str(source):
            try:
                array = zarr.open_array(os.fspath(source), mode="r")
            except Exception as error:  # the storage behind a URL raises its own errors
                raise InputError(f"{where} is not a Zarr array of rows: {shown(error, limit=200)}") from None
            return Rows(ZarrValues(array, where), None, None, {"source": str(source)})
        if not os.path.isfile(source):
            raise InputError(f"no rows at {where}: there is no such file or folder")
    elif (named := labelled(source)) is not None:
        rows, columns, source = named.rows, named.columns, named.values
    if hasattr(source, "chunks") and hasattr(source, "shape") and not isinstance(source, np.ndarray):
        name = type(source).__module__.partition(".")[0]
        about = {"source": f"{name} array of {' x '.join(map(str, source.shape))} {source.dtype}"}
        return Rows(ZarrValues(source, "the Zarr array") if name == "zarr" else source, rows, columns, about)
    table = read_features(source, checksum=checksum)
    if is_sparse(table.data):
        raise InputError(f"{table.named()} is sparse", remedy="give a value for every object")
    if table.ids is not None:
        rows = [str(name) for name in table.ids]
    if table.columns is not None:
        columns = [str(name) for name in table.columns]
        if columns == [str(k) for k in range(len(columns))] and rows is None:
            columns = None  # a header of numbers, as of a frame without names
    return Rows(table.data, rows, columns, table.provenance)


def row_step(n: int) -> int:
    """Return the number of rows of n objects that are read at a time."""
    return max(1, ROW_BYTES // (8 * n))


def sliced_rows(rows: Any, ids: Names) -> tuple[Any, Array | None]:
    """Return new rows as an array that can be sliced, and the column of each object; None if they are in order.

    Names, shape and type are checked. Cost: none of the values is read, except of text.
    """
    if isinstance(rows, (str, os.PathLike)):
        rows = read_rows(rows, checksum=False)
    columns, where = None, ""
    if isinstance(rows, Rows):
        columns, where, rows = rows.columns, path_text(rows.provenance["source"]), rows.array()
    elif (named := labelled(rows)) is not None:
        columns, where, rows = named.columns, named.what, named.values
    order = None if columns is None else column_order(columns, [str(name) for name in ids], where, "the model")
    values = rows if hasattr(rows, "shape") and hasattr(rows, "dtype") else np.asarray(rows)
    if len(values.shape) != 2 or values.shape[1] != len(ids):
        raise InputError(
            f"new rows have shape {tuple(values.shape)}",
            remedy=f"give (k, {len(ids)}): one column for each training object, in their order",
        )
    if np.dtype(values.dtype).kind not in "fiub":
        raise InputError(f"new rows are of type {values.dtype}", remedy="give numbers")
    return values, order


def squared_blocks(
    values: Any, order: Array | None, view: View, *, row_self: Float | None, column_self: Float | None
) -> Iterator[tuple[slice, Float]]:
    """Yield blocks of new rows as squared dissimilarities, float64, each with its place among the rows.

    Parameters
    ----------
    values, order
        From `sliced_rows`.
    row_self, column_self
        For kinds similarity and kernel: self-similarities of the new objects, and of those of the model.

    Cost: one read of the rows.
    """
    count, n = values.shape
    for at in range(0, count, row_step(n)):
        span = slice(at, min(at + row_step(n), count))
        raw = np.array(values[span], dtype=np.float64, order="C")
        bad = ~np.isfinite(raw)
        if bad.any():
            r, k = (int(x) for x in np.argwhere(bad)[0])
            raise InputError(f"row {at + r}, column {k} of the new rows is {raw[r, k]}", remedy="give finite numbers")
        if order is not None:
            raw = np.take(raw, order, axis=1)  # in rows, as an index of columns is not
        own = None if row_self is None else row_self[span]
        yield span, view.apply(raw, raw, row_self=own, column_self=column_self)
