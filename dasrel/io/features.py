"""Feature tables, and rows of new objects.

The features of objects, one row each: read from a file or an array, checked, and handed out in blocks of rows.

A `.npy` file is mapped and never copied; on a cluster each worker process maps it once. All else lies in memory, n
times p values, and is sent to each worker once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr

from dasrel.errors import InputError
from dasrel.kernels.checks import EXAMPLES
from dasrel.util import Array, Names, PathLike, limits, parallel
from dasrel.util.files import crc32c, file_crc32c
from dasrel.util.text import count_text, shown, some

SUFFIXES = ".npy, .npz, .csv, .tsv, .csv.gz, .tsv.gz, .parquet"
ID_HEADERS = ("", "id", "ids")
"""The headers by which the first column of a text file is known to hold names, even when they are numbers."""
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Mapped:
    """A `.npy` file as a task sees it: a name that travels, mapped where it arrives."""

    path: str
    size: int
    modified: int

    def array(self) -> Array:
        """The mapped array; once per process and version of the file."""
        return _map(self.path, self.size, self.modified)


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

    def chunks(self) -> Iterator[tuple[int, Any]]:
        """All rows in order, a few MB at a time: the first row's number and the rows."""
        rows = max(1, CHUNK_BYTES // (8 * max(1, self.shape[1])))
        for start in range(0, self.shape[0], rows):
            yield start, row_block(self.data, slice(start, start + rows))

    def strip_bytes(self, tile: int, *, sparse: bool) -> int:
        """Bytes of the largest strip of `tile` rows as float64; with `sparse`, of what is stored of sparse rows."""
        if sparse and is_sparse(self.data):
            ends = self.data.indptr[np.minimum(np.arange(tile, self.shape[0] + tile, tile), self.shape[0])]
            return int(np.diff(ends, prepend=0).max()) * 16 + tile * 16
        return tile * (self.shape[1] + 2) * 8

    def column(self, k: int) -> str:
        """A column's name for messages."""
        return f"column {k}" if self.columns is None else f"column {shown(self.columns[k])!r}"


def row_block(data: Any, rows: slice) -> Any:
    """These rows as they are stored: a NumPy array, or CSR."""
    return parallel.part(data.array(), rows) if isinstance(data, Mapped) else data[rows]


def is_sparse(data: Any) -> bool:
    """Whether rows are SciPy sparse."""
    return bool(scipy.sparse.issparse(data))


def dense(block: Any) -> Array:
    """A block of rows as contiguous float64."""
    whole = block.toarray() if is_sparse(block) else block
    return np.ascontiguousarray(whole, dtype=np.float64)


def array_checksum(values: Array, checksum: int = 0) -> int:
    """crc32c of an array's bytes in row order, following on from another one's."""
    step = max(1, CHUNK_BYTES // max(1, values[:1].nbytes))
    for start in range(0, values.shape[0], step):
        checksum = crc32c(values[start : start + step].tobytes(), checksum)
    return checksum


def read_features(features: Any) -> Features:
    """Open features: a path (`.npy`, `.npz`, CSV, TSV, Parquet), a NumPy array, a SciPy sparse matrix, or a data frame.

    Cost: reads the source once for its checksum. A `.npy` file is mapped; all else is held in memory.
    """
    found = _from_file(Path(features)) if isinstance(features, str | os.PathLike) else _from_array(features)
    n, p = found.shape
    if n == 0 or p == 0:
        raise InputError(
            f"{_named(found)} has {count_text(n, 'row')} and {count_text(p, 'column')} of numbers; give one row per"
            " object"
        )
    return found


def check_values(
    features: Features,
    *,
    names: Names,
    allow_nan: bool,
    bad_rows: Callable[[Any], Any] | None,
    reason: str,
) -> None:
    """Refuse NaN and infinite features, and rows that the metric has no value for, before anything is computed.

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
        told = [f"row {r} ({shown(names[r])}), {features.column(c)}: {v:g}" for r, c, v in places[:EXAMPLES]]
        raise InputError(
            f"{_named(features)} has missing or infinite values: {some(told, total=count)};"
            " fill them or leave these objects out"
        )
    if undefined:
        who = some([f"{shown(names[k])} (object {k})" for k in undefined])
        raise InputError(f"{reason}: {who}; leave these objects out or choose another metric")


def _from_file(path: Path) -> Features:
    if not path.is_file():
        raise InputError(f"no features at {shown(path, limit=200)}: there is no such file")
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
        raise InputError(f"{shown(path, limit=200)}: features are read from {SUFFIXES}; rename or convert the file")
    try:
        data, ids, columns = reader(path)
    except OSError as error:
        raise InputError(f"{shown(path, limit=200)} cannot be read: {shown(error, limit=200)}") from error
    array = data.array() if isinstance(data, Mapped) else data
    _check_numbers(array, shown(path, limit=200))
    checksum = f"crc32c: {file_crc32c(path):08x}"
    provenance = {"source": str(path), "size": path.stat().st_size, "checksum": checksum}
    return Features(data, (int(array.shape[0]), int(array.shape[1])), ids, provenance, columns)


def _from_array(features: Any) -> Features:
    if is_sparse(features):
        data: Any = _sorted_csr(features)
        parts = [data.data, data.indices, data.indptr]
        source = "SciPy sparse matrix"
    else:
        data = np.asarray(features)
        parts = [data]
        source = "array"
    _check_numbers(data, f"the {source}")
    checksum = 0
    for part in parts:
        checksum = array_checksum(part, checksum)
    provenance = {
        "source": f"{source} of {data.dtype}",
        "size": int(sum(part.nbytes for part in parts)),
        "checksum": f"crc32c: {checksum:08x}",
    }
    return Features(data, (int(data.shape[0]), int(data.shape[1])), None, provenance)


def _check_numbers(array: Any, where: str) -> None:
    if array.ndim != 2:
        raise InputError(f"{where} has {array.ndim} dimensions; features are a table of objects by columns")
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{where} holds values of type {array.dtype}; features are numbers"
            " (names go into ids, or into a file's column of names)"
        )


def _read_npy(path: Path) -> tuple[Any, Names | None, Names | None]:
    status = path.stat()
    return Mapped(str(path.absolute()), status.st_size, status.st_mtime_ns), None, None


@lru_cache(maxsize=4)
def _map(path: str, size: int, modified: int) -> Array:
    status = os.stat(path)
    if (status.st_size, status.st_mtime_ns) != (size, modified):
        raise InputError(f"{shown(path, limit=200)} has changed since the work began; run again from the start")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(f"{shown(path, limit=200)} is not a whole .npy file: {shown(error, limit=200)}") from error
    return np.asarray(array)  # a plain array over the same mapping: slices of a memmap are slow to make


def _read_npz(path: Path) -> tuple[Any, Names | None, Names | None]:
    where = shown(path, limit=200)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "format" in archive.files and "shape" in archive.files:
                return _sorted_csr(scipy.sparse.load_npz(path)), None, None
            arrays = {name: archive[name] for name in archive.files}
    except OSError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy each have their own words for a broken archive
        raise InputError(f"{where} is not a whole .npz file: {shown(error, limit=200)}") from error
    tables = [name for name, array in arrays.items() if array.ndim == 2]
    texts = [name for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "UT"]
    if len(tables) != 1 or len(texts) > 1:
        held = ", ".join(f"{shown(name)} {array.shape}" for name, array in arrays.items())
        raise InputError(
            f"{where} holds {held or 'nothing'}; one two-dimensional array is needed, and at most one list of names"
        )
    return arrays[tables[0]], arrays[texts[0]] if texts else None, None


def _sorted_csr(matrix: Any) -> Any:
    rows = scipy.sparse.csr_array(matrix)
    rows.sum_duplicates()
    return rows


def _read_text(path: Path) -> tuple[Any, Names | None, Names | None]:
    import pyarrow
    from pyarrow import csv

    where = shown(path, limit=200)
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    try:
        # One thread, so that an error names the row it met.
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(delimiter=delimiter),
        )
    except pyarrow.ArrowInvalid as error:
        raise InputError(
            f"{where}: {shown(error, limit=200)}; every line needs as many fields as the header"
        ) from error
    header = [str(name) for name in table.column_names]
    if header and all(_is_number(name) for name in header) and header != [str(k) for k in range(len(header))]:
        raise InputError(
            f"{where}: the first line holds only numbers ({shown(', '.join(header))});"
            " add a header line that names the columns"
        )
    ids = None
    if header and (header[0].strip().lower() in ID_HEADERS or _is_text(table.column(0).type)):
        column = table.column(0)
        if column.null_count:
            row = next(k for k, cell in enumerate(column) if not cell.is_valid)
            raise InputError(f"{where}: the name in line {row + 2} is empty; give every object a name")
        ids = [str(name) for name in column.to_pylist()]
        table = table.remove_column(0)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _is_text(column.type):
            cells = column.to_pylist()
            row = next((k for k, cell in enumerate(cells) if not _is_number(cell)), 0)
            raise InputError(
                f"{where}, line {row + 2}, column {shown(name)!r}: {shown(cells[row])!r} is not a number;"
                " mend it, or put the names of the objects into the first column"
            )
    return *_table_values(table, where), ids, table.column_names


def _read_parquet(path: Path) -> tuple[Any, Names | None, Names | None]:
    import pyarrow
    from pyarrow import parquet

    where = shown(path, limit=200)
    try:
        table = parquet.ParquetFile(path).read()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{where} is not a whole Parquet file: {shown(error, limit=200)}") from error
    texts = [name for name, field in zip(table.column_names, table.schema, strict=True) if _is_text(field.type)]
    # The index of a pandas frame holds names, not features, even when it is made of numbers.
    kept = (table.schema.pandas_metadata or {}).get("index_columns", [])
    texts += [name for name in kept if isinstance(name, str) and name in table.column_names and name not in texts]
    if len(texts) > 1:
        raise InputError(
            f"{where} has {count_text(len(texts), 'column')} of names ({some([shown(t) for t in texts])}); keep one"
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
    """The columns of numbers side by side; an absent value is NaN, to be refused with its place."""
    import pyarrow

    kinds = pyarrow.types
    values = np.empty((table.num_rows, table.num_columns), dtype=np.float64)
    for k, column in enumerate(table.columns):
        kind = column.type
        if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_null(kind)):
            raise InputError(
                f"{where}: column {shown(table.column_names[k])!r} is of type {kind}; features are numbers, and one"
                " column of text holds the names"
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


def _named(features: Features) -> str:
    return shown(features.provenance["source"], limit=200)


def read_rows(source: PathLike, ids: Names) -> tuple[Any, list[str] | None]:
    """Rows of new objects from a file, and their names where the file has them.

    A .npy file is mapped, a Zarr array is read in blocks; .npz, CSV, TSV and Parquet lie in memory. Columns that have
    names must have those of the model's objects, in their order.
    """
    path = Path(source)
    where = shown(source, limit=200)
    if path.is_dir() or "://" in str(source):
        try:
            return zarr.open_array(os.fspath(source), mode="r"), None
        except Exception as error:  # whatever storage there is behind a URL has its own errors
            raise InputError(f"{where} is not a Zarr array of rows: {shown(error, limit=200)}") from None
    if not path.is_file():
        raise InputError(f"no rows at {where}: there is no such file or folder")
    rows = read_features(path)
    if is_sparse(rows.data):
        raise InputError(f"{where} is sparse; rows of new objects need a value for every training object")
    if rows.columns is not None and len(rows.columns) == len(ids):
        for k, (name, wanted) in enumerate(zip(rows.columns, ids, strict=True)):
            if str(name) != str(wanted):
                raise InputError(
                    f"{where}: column {k + 1} of the values is named {shown(name)!r}, but object {k + 1} of the model"
                    f" is {shown(wanted)!r}; name and order the columns as the model's objects"
                )
    return row_block(rows.data, slice(None)), None if rows.ids is None else [str(name) for name in rows.ids]
