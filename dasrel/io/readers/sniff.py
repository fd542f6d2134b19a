"""Which format a file has, and which reader opens it, or an array.

A format is a line in `FORMATS`; what a text is, its first lines tell.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dasrel import names
from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import reader_errors
from dasrel.io.readers.fields import as_number, fields, find_delimiter, has_decimal_comma, is_number
from dasrel.io.readers.flat import check_numbers
from dasrel.io.readers.matlab import HEAD, is_matlab
from dasrel.io.readers.records import absent_value
from dasrel.io.readers.source import ArraySource, Opened, TriangleSource, sequential_vector
from dasrel.io.readers.stream import FEW, Stream, lines
from dasrel.io.readers.zarr import open_zarr
from dasrel.kernels.condensed import check_condensed, square_side
from dasrel.store.options import Policy
from dasrel.util import Array, Names
from dasrel.util.labelled import labelled
from dasrel.util.text import path_text, shown


class Format(NamedTuple):
    """How a format is recognised and opened."""

    opener: str
    """Module and function in this folder; imported when a file is opened."""
    suffixes: tuple[str, ...] = ()
    begins: tuple[bytes, ...] = ()
    """The first bytes. A file with the suffix of such a format and other bytes is damaged."""
    by_suffix: bool = False
    """Whether the suffix alone decides; else the first lines of the text do."""
    pairs: bool = False
    """Whether it lists pairs; the opener gets the `Policy` for repeated ones."""


FORMATS = {
    "npy": Format("npy.open_npy", (".npy",), (b"\x93NUMPY",)),
    "npz": Format("npz.open_npz", (".npz",), (b"PK",)),
    "raw": Format("npy.open_raw", (".bin", ".raw", ".dat"), by_suffix=True),
    "condensed": Format("sniff.open_condensed"),
    "mtx": Format("mtx.open_mtx", (".mtx",), (b"%%Matrix",)),
    "hdf5": Format("hdf5.open_hdf5", (".h5", ".hdf5", ".hdf"), (b"\x89HDF",)),
    "mat": Format("matlab.open_mat"),
    "zarr": Format("zarr.open_zarr", (".zarr",)),
    "lsmat": Format("text_square.open_text", (".lsmat",), by_suffix=True),
    "csv": Format("text_square.open_text", (".csv",)),
    "tsv": Format("text_square.open_text", (".tsv", ".txt", ".mat")),
    "phylip": Format("text_square.open_text", (".phy", ".phylip", ".dist"), by_suffix=True),
    "qza": Format("text_square.open_text", (".qza",), (b"PK",)),
    "pairs": Format("pair_list.open_pairs", pairs=True),
    "m8": Format("pair_list.open_pairs", (".m8",), by_suffix=True, pairs=True),
    "parquet": Format("parquet.open_parquet", (".parquet", ".pq"), (b"PAR1",), pairs=True),
}
SUFFIXES = {suffix: name for name, known in FORMATS.items() for suffix in known.suffixes}


def open_source(source: Any, *, kind: str, reading: Reading, policy: Policy) -> tuple[str, Opened]:
    """Return the format of a source, and the source with its header read."""
    if not isinstance(source, str | os.PathLike):
        return "array", open_array(source, reading, kind)
    if "://" in str(source):
        with reader_errors(source, "Zarr"):
            return "zarr", _opener("zarr")(str(source), reading, kind)
    path = Path(source)
    if "\0" in str(path):
        raise InputError(f"{path_text(path)} is no path: it has a NUL character", remedy="give another name")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path_text(path)} is a pipe or a device", remedy="write its content to a file first")
    try:
        with reader_errors(path):
            name = detect(path, reading)
        with reader_errors(path, name):
            more = {"policy": policy} if FORMATS[name].pairs else {}
            return name, _opener(name)(path, replace(reading, format=name), kind, **more)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        wrong = path_text(error.filename or path)
        raise InputError(
            f"cannot read {wrong}: {error.strerror}", remedy="check the name and the permissions"
        ) from None


def _opener(name: str) -> Callable[..., Opened]:
    module, function = FORMATS[name].opener.split(".")
    opener: Callable[..., Opened] = getattr(import_module(f"dasrel.io.readers.{module}"), function)
    return opener


def open_condensed(path: Path, reading: Reading, kind: str) -> Opened:
    """Open one triangle as a vector, in npy, npz or raw form."""
    with open(path, "rb") as file:
        head = file.read(6)
    name = next((name for name in ("npy", "npz") if head.startswith(FORMATS[name].begins)), "raw")
    source = _opener(name)(path, reading, kind)
    if source.mirrored:
        raise InputError(
            f"{path_text(path)} is no condensed vector: it holds a full matrix", remedy="leave {Reading.format} out"
        )
    return source


def detect(path: Path, reading: Reading) -> str:
    """Return the name of the format: as requested, by the first bytes, by the suffix, or by the look of the text."""
    if reading.format is not None:
        if reading.format not in FORMATS:
            raise InputError(f"no format {shown(reading.format)}", remedy=f"there are: {', '.join(FORMATS)}")
        return reading.format
    if path.is_dir():
        return "zarr"
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if not head:
        raise InputError(f"{path_text(path)} is empty (0 bytes)")
    if head[:2] == b"\x1f\x8b":
        with gzip.open(path) as unpacked, contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error):
            head = unpacked.read(16)
    suffix = next((suffix.lower() for suffix in reversed(path.suffixes) if suffix.lower() != ".gz"), "")
    by_suffix = SUFFIXES.get(suffix)
    if is_matlab(head) or (suffix == ".mat" and (b"\0" in head or head.startswith(b"\x89HDF"))):
        return "mat"
    by_bytes = [name for name, known in FORMATS.items() if known.begins and head.startswith(known.begins)]
    if by_bytes:
        return by_suffix if by_suffix in by_bytes else by_bytes[0]
    if reading.shape is not None and reading.dtype is not None:
        return "raw"
    if by_suffix is not None and (FORMATS[by_suffix].begins or by_suffix == "zarr"):
        detail = names.FORMATS[by_suffix].partition(":")[0].partition(",")[0]
        raise InputError(
            f"{path_text(path)} has the suffix of a {detail} file, but not its first bytes", remedy="is it damaged?"
        )
    if by_suffix is not None and FORMATS[by_suffix].by_suffix:
        return by_suffix
    name = sniff(path) or by_suffix
    if name is None:
        raise InputError(
            f"the format of {path_text(path)} cannot be detected",
            remedy=f"say {{Reading.format=NAME}}, one of: {', '.join(FORMATS)}",
        )
    return name


AMBIGUOUS = "ambiguous"


def sniff(path: str | Path) -> str | None:
    """Return the format of a text, gzipped or not: "lsmat", "phylip" or "pairs", or None if it is none of them.

    Raises if it may be a matrix as well as a list of pairs.

    Cost: a few lines are read; of a table of few columns as many lines as it has columns.
    """
    stream = Stream(Path(path))
    try:
        rows = lines(stream, comments=True)
        first = next(rows, None)
        if first is None or _is_binary(first.bytes()):
            return None
        rest = [line.bytes() for line in islice(rows, 1)]
        if rest and len(rest[0]) < 64 * FEW:  # a table of many columns is known by two lines
            rest.extend(line.bytes() for line in islice(rows, FEW))
    except InputError:  # decompression failed: the reader of the format will report it
        return None
    finally:
        stream.close()
    name = _judge(first.bytes(), rest)
    if name == AMBIGUOUS:
        raise InputError(
            f"{path_text(path)} can be read as a matrix and as a list of pairs: its first lines are"
            f" {shown(first.bytes().decode())!r} and {shown(rest[0].decode('utf-8', 'backslashreplace'))!r}",
            remedy="say {Reading.format=lsmat} for a matrix, or {Reading.format=pairs} for one pair per line",
        )
    return name


def _is_binary(text: bytes) -> bool:
    if b"\0" in text:
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _judge(first: bytes, rest: list[bytes]) -> str | None:
    second = rest[0] if rest else None
    if first.strip().isdigit():
        return "lsmat" if second is None else "phylip" if not is_number(second) else None
    delimiter = find_delimiter(first, second)
    a = fields(first, delimiter)
    if second is None:
        if len(a) == 3 and not is_number(a[0]) and not is_number(a[1]) and is_number(a[2]):
            return "pairs"
        return "lsmat" if is_number(first) or len(a) > 1 else None
    b = fields(second, delimiter)
    if not any(_has_number(field) for field in b[1:]):
        return None
    if not a[0].strip() or len(b) == len(a) + 1 or len(b) > FEW:
        return "lsmat"
    rows = [[field.strip() for field in fields(line, delimiter)] for line in (first, *rest)]
    if b[0].strip() in {name.strip() for name in a[1:]} and not is_number(a[0]) and not is_number(a[1]):
        # A header that names the row below it; but a list of pairs may continue as a, b and then b, c.
        if not any(_has_number(field) for field in a[2:]):
            return "lsmat"
        if not _has_number(b[1]):
            return "pairs"
        return "lsmat" if rows[0][1:] == [row[0] for row in rows[1:]] else AMBIGUOUS
    if not is_number(b[1]):
        return "pairs" if len(b) >= 3 else None
    if len(b) == 2:
        return "lsmat"
    if not is_number(b[0]):
        return _judge_labelled(rows)
    return _judge_numbers(rows)


def _judge_labelled(rows: list[list[bytes]]) -> str:
    """Judge lines that have a name and then numbers: rows of a matrix, or pairs with numbered objects."""
    header = not is_number(rows[0][1])
    values = [row[1:] for row in rows[header:]]
    if header or len(rows[0]) != 3:
        return "lsmat"
    return "lsmat" if len(values) == 2 and _is_symmetric(values) else AMBIGUOUS if len(values) == 2 else "pairs"


def _has_number(field: bytes) -> bool:
    text = field.strip()
    return bool(text) and (is_number(text.removesuffix(b"%")) or has_decimal_comma(field))


def _judge_numbers(rows: list[list[bytes]]) -> str:
    """Judge lines of numbers: a square, or pairs of numbered objects with values."""
    width = len(rows[1])
    if len(rows) == width + 1:
        rows = rows[1:]
    if width != 12 and any(is_number(field) and not field.isdigit() for row in rows for field in row[:2]):
        return "lsmat"  # numbers of objects would be whole; twelve columns are an alignment's
    if len(rows) != width or any(len(row) != width for row in rows):
        return "lsmat" if width not in (3, 12) and not (width < FEW and len(rows) > width + 1) else "pairs"
    if not all(field.isdigit() for row in rows for field in row[:2]):
        return "lsmat"
    if not all(is_number(field) for row in rows for field in row) or _is_symmetric(rows):
        return "lsmat"
    return AMBIGUOUS if len({as_number(row[k]) for k, row in enumerate(rows)}) == 1 else "pairs"


def _is_symmetric(rows: list[list[bytes]]) -> bool:
    if any(len(row) != len(rows) for row in rows) or not all(is_number(field) for row in rows for field in row):
        return False
    values = [[as_number(field) for field in row] for row in rows]
    n = len(values)
    return all(values[r][c] == values[c][r] or values[r][c] != values[r][c] for r in range(n) for c in range(r))


def open_array(array: Any, reading: Reading, kind: str) -> Opened:
    """Open a NumPy, SciPy sparse, dask, xarray or Zarr array, a data frame, or a matrix of scikit-bio."""
    import zarr
    from scipy.sparse import issparse

    if isinstance(array, zarr.Array | zarr.Group):
        return open_zarr(array, reading, kind)
    name = type(array).__module__.partition(".")[0]
    what, ids = f"the {name} array", None
    named = labelled(array)
    if named is not None:
        array, ids = named.values, named.ids() if reading.ids is None else named.rows
    is_sparse: bool = issparse(array)
    if is_sparse:
        check_numbers(array.dtype, what)
        n = square_side(array.shape, what)
        with reader_errors("the SciPy sparse matrix"):
            if array.format in ("csr", "csc", "bsr"):
                array.check_format(full_check=True)  # SciPy takes any index for valid, and reads beyond its arrays
            rows = array.tocsr(copy=True)
        rows.sum_duplicates()
        provenance = {"source": f"SciPy sparse {array.format} array"}
        return SparseArraySource(rows, n, provenance, absent_value(kind))
    if (
        (name == "numpy" and not isinstance(array, np.ndarray))
        or not hasattr(array, "shape")
        or not hasattr(array, "dtype")
    ):
        raise InputError(
            f"a source of type {type(array).__name__} is not known", remedy="give a path, a URL or an array"
        )
    check_numbers(np.dtype(array.dtype), what)
    n = square_side(array.shape, what)
    provenance = {"source": f"{name} array of {' x '.join(map(str, array.shape))} {array.dtype}"}
    chunks = getattr(array, "chunks", None)
    if len(array.shape) == 1 and isinstance(array, np.ndarray):
        check_condensed(kind, what)
        return TriangleSource(array, n, provenance, ids, local=True)
    if len(array.shape) == 1:
        return sequential_vector(array, chunks[0] if chunks else (array.shape[0],), provenance, kind, ids)
    return ArraySource(array, n, provenance, ids, chunks=chunks, local=True)


@dataclass
class SparseArraySource:
    """A SciPy sparse array in memory, in CSR form without duplicates."""

    array: Any
    n_objects: int
    provenance: dict[str, Any]
    absent: float
    ids: Names | None = None
    mirrored: bool = True
    local: bool = True
    checksum: str | None = None

    def block(self, rows: slice, columns: slice) -> Array:
        """Return the block as a dense array."""
        part = self.array[rows, columns].tocoo()
        result = np.full(part.shape, self.absent, dtype=np.float32 if part.dtype == np.float32 else np.float64)
        result[part.row, part.col] = part.data
        if rows == columns and math.isnan(self.absent):  # an object is at distance 0 from itself
            own = np.diagonal(result)
            np.fill_diagonal(result, np.where(np.isnan(own), 0, own))
        return result

    def block_memory(self, rows: int, columns: int) -> int:
        """Return the size of the dense block and of its entries, at most."""
        return rows * columns * (8 + 16)

    def close(self) -> None:
        """Do nothing: there is no file to close."""
