"""MatrixMarket files, plain or gzipped: coordinate (sparse) or array (dense)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import check_claimed, whole_number
from dasrel.io.readers.records import RECORD, spool_entries, triplet_memory
from dasrel.io.readers.source import SequentialSource, Source, copied_source, provenance_of
from dasrel.kernels.condensed import square_side
from dasrel.util import Array, limits
from dasrel.util.text import count_text, path_text, shown

COPY = 8 << 20
"""Bytes that are parsed at a time, at least."""
READ = "is text (mtx)"


@dataclass(frozen=True)
class _MtxHeader:
    """The first lines of a MatrixMarket file."""

    form: str
    """`coordinate` or `array`."""
    symmetric: bool
    n: int
    total: int
    """Number of entries that follow."""
    width: int
    """Numbers per line."""
    line: int
    """Number of the line with the size."""


def open_mtx(path: Path, reading: Reading, kind: str) -> SequentialSource:
    """Open a MatrixMarket file, plain or gzipped, coordinate or array; it is parsed once, into files on disk."""
    provenance = provenance_of(path)
    with _mtx_text(path) as file:
        header = _mtx_header(file, path)

    def numbers() -> Iterator[Array]:
        with _mtx_text(path) as file:
            _mtx_header(file, path)
            yield from _numbers(file, path, header)

    if header.form == "array":
        pieces = lambda: (np.ascontiguousarray(piece).data for piece in numbers())  # noqa: E731
        shape = (header.total,) if header.symmetric else (header.n, header.n)
        given: dict[str, Any] = {"fortran": True, "diagonal": header.symmetric}
        return copied_source(pieces, shape, np.dtype(np.float64), provenance, kind, READ, **given)

    def spool(folder: Path) -> Source:
        entries = (_entries(piece, path) for piece in numbers())
        return spool_entries(entries, header.n, provenance, kind, folder, upper=header.symmetric)

    size = header.total * RECORD.itemsize
    return SequentialSource(header.n, not header.symmetric, provenance, READ, spool, size, triplet_memory)


@contextmanager
def _mtx_text(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as file:
            yield file  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path_text(path)} is truncated or no gzip file ({shown(error)})", remedy="copy it again"
        ) from None


def _mtx_header(file: BinaryIO, path: Path) -> _MtxHeader:
    words = file.readline(1000).decode("ascii", "replace").lower().split()
    if words[:2] != ["%%matrixmarket", "matrix"] or len(words) != 5:
        raise InputError(f"{path_text(path)}, line 1: no MatrixMarket header (%%MatrixMarket matrix ...)")
    form, field_name, symmetry = words[2:]
    if form not in ("coordinate", "array") or field_name not in ("real", "double", "integer", "pattern"):
        raise InputError(
            f"{path_text(path)}, line 1: {shown(form)} {shown(field_name)} cannot be used",
            remedy="give real numbers",
        )
    if symmetry not in ("general", "symmetric"):
        raise InputError(
            f"{path_text(path)}, line 1: a {shown(symmetry)} matrix cannot be used",
            remedy="give a general or a symmetric one",
        )
    line = 1
    while True:
        text = file.readline(1 << 16)
        line += 1
        if text.strip() and not text.startswith(b"%"):
            break
        if not text:
            raise InputError(f"{path_text(path)} is truncated: there is no line with the size")
    sizes = text.split()
    counts = [count for size in sizes if (count := whole_number(size)) is not None]
    if len(sizes) != (3 if form == "coordinate" else 2) or len(counts) != len(sizes):
        raise InputError(f"{path_text(path)}, line {line}: {shown(text.decode(errors='replace').strip())} is no size")
    n = square_side((counts[0], counts[1]), path_text(path))
    width = {"pattern": 2}.get(field_name, 3) if form == "coordinate" else 1
    total = counts[2] if form == "coordinate" else n * n if symmetry == "general" else n * (n + 1) // 2
    check_claimed(2 * width * total, path, count_text(total, "entry", "entries"))
    return _MtxHeader(form, symmetry == "symmetric", n, total, width, line)


def _entries(lines: Array, path: Path) -> tuple[Array, Array, Array]:
    """Return rows, columns (from 0) and values of coordinate lines; without a third number the value is 1."""
    values = lines[:, 2] if lines.shape[1] == 3 else np.ones(len(lines))
    with np.errstate(invalid="ignore"):
        places = lines[:, :2].astype(np.int64)
    wrong = (places != lines[:, :2]).any(axis=1)
    if wrong.any():
        row, column = lines[np.argmax(wrong), :2]
        raise InputError(
            f"{path_text(path)}: an entry has the place ({row:g}, {column:g})", remedy="give whole numbers"
        )
    return places[:, 0] - 1, places[:, 1] - 1, values


def _numbers(file: BinaryIO, path: Path, header: _MtxHeader) -> Iterator[Array]:
    """Yield the lines after the size, `width` numbers each, some MB at a time."""
    line, width, seen = header.line, header.width, 0
    rest = b""
    # A large file is read in larger pieces: each becomes a run, and a block is gathered from all runs.
    size = min(max(COPY, path.stat().st_size // 1024), 4 * COPY)
    while piece := file.read(size):
        limits.check()
        complete, _, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > COPY or seen > header.total:
            break
        if complete:
            rows = _parsed(complete, path, line, width)
            line += complete.count(b"\n") + 1
            seen += len(rows)
            yield rows
    if rest.strip() and len(rest) <= COPY:
        rows = _parsed(rest, path, line, width)
        seen += len(rows)
        yield rows
    if len(rest) > COPY:
        raise InputError(f"{path_text(path)}, line {line + 1} is longer than {COPY >> 20} MiB: this is no MatrixMarket")
    if seen != header.total:
        state = "is truncated" if seen < header.total else "is too long"
        raise InputError(
            f"{path_text(path)} {state}: {count_text(seen, 'entry', 'entries')}, and its size line says"
            f" {header.total:,}",
            remedy="copy it again",
        )


def _parsed(text: bytes, path: Path, line: int, width: int) -> Array:
    try:
        values = np.fromstring(text.decode("ascii"), sep=" ")
        lines = text.count(b"\n") + 1
        if values.size == lines * width:  # else there are blank lines, or a line is too long or too short
            return values.reshape(-1, width)
    except (ValueError, DeprecationWarning):  # NumPy warns of what it cannot parse, or raises, by its version
        pass
    rows = []
    for k, words in enumerate(row.split() for row in text.split(b"\n")):
        if words:
            try:
                rows.append([float(word) for word in words])
            except ValueError:
                detail = shown(b" ".join(words).decode(errors="replace"))
                raise InputError(f"{path_text(path)}, line {line + 1 + k}: {detail} is not {width} numbers") from None
            if len(words) != width:
                raise InputError(f"{path_text(path)}, line {line + 1 + k}: {len(words)} numbers instead of {width}")
    return np.array(rows, dtype=np.float64).reshape(-1, width)
