"""Sparse matrices: SciPy's, and MatrixMarket files; sorted on disk, so that any block of them can be asked for."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasrel import mapping, stopping
from dasrel.arrays import FlatFile, MappedSource, TriangleSource, about, allocated, named, square_side
from dasrel.errors import InputError, count_text, shown
from dasrel.intake import Array, Names
from dasrel.source import Reading, Source
from dasrel.vocabulary import is_similarity

COPY = 8 << 20
PIECE = 1 << 20
"""Entries of a sparse matrix that are handled together while it is sorted on disk."""


@dataclass
class SparseSource:
    """A sparse matrix in rows with sorted columns. See `absent_value` for the entries that are not there."""

    starts: FlatFile | Array
    columns: FlatFile | Array
    entries: FlatFile | Array
    n_objects: int
    provenance: dict[str, Any]
    absent: float
    mirrored: bool
    ids: Names | None = None
    local: bool = False
    checksum: str | None = None

    def block(self, rows: slice, columns: slice) -> Array:
        """The block as a dense array."""
        starts, places, entries = (
            part.values() if isinstance(part, FlatFile) else part for part in (self.starts, self.columns, self.entries)
        )
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        result = np.full(shape, self.absent, dtype=np.float32 if entries.dtype == np.float32 else np.float64)
        for k, r in enumerate(range(rows.start, rows.stop)):
            start = int(starts[r])
            row = places[start : int(starts[r + 1])]
            first, last = np.searchsorted(row, (columns.start, columns.stop))
            result[k, row[first:last] - columns.start] = entries[start + first : start + last]
            if k % mapping.BAND == 0 or r == rows.stop - 1:
                for mapped in (starts, places, entries):
                    mapping.let_go(mapped)
        if rows == columns:
            if not self.mirrored:
                result = np.where(np.tri(shape[0], k=-1, dtype=bool), result.T, result)
            if math.isnan(self.absent):  # nobody lists the distance of an object to itself
                own = np.diagonal(result)
                np.fill_diagonal(result, np.where(np.isnan(own), 0, own))
        return result

    def block_memory(self, rows: int, columns: int) -> int:
        """The dense block; on the diagonal twice, and a mask."""
        return rows * columns * (2 * 8 + 1)

    def close(self) -> None:
        """Let go of the files."""
        for part in (self.starts, self.columns, self.entries):
            if isinstance(part, FlatFile):
                part.close()


def absent_value(kind: str) -> float:
    """What an entry that a sparse matrix does not list stands for.

    For similarities and kernels it is 0: not alike at all. A distance of 0 would mean equal, which is the opposite of
    what people mean by leaving a pair out: for distances it is a missing pair (NaN), and a policy must name its value.
    """
    return 0.0 if is_similarity(kind) else math.nan


def sort_aside(
    pieces: Iterator[tuple[Array, Array, Array]], n_objects: int, folder: Path, *, upper: bool, what: str
) -> tuple[FlatFile, FlatFile, FlatFile]:
    """Rows with sorted columns, on disk, of entries (row, column, value) that come in any order.

    With `upper` each entry is turned into the upper triangle. A place that is named twice is refused.

    Cost: O(n) memory; 16 bytes of disk per entry, and 24 more while they are being sorted.
    """
    counts = np.zeros(n_objects, dtype=np.int64)
    raw = [folder / f"entries.{name}" for name in ("rows", "columns", "values")]
    with open(raw[0], "wb") as rows_file, open(raw[1], "wb") as columns_file, open(raw[2], "wb") as values_file:
        for rows, columns, values in pieces:
            stopping.check()
            for name, index in (("row", rows), ("column", columns)):
                if index.size and not 0 <= int(index.min()) <= int(index.max()) < n_objects:
                    raise InputError(
                        f"{what} names a {name} beyond its {count_text(n_objects, 'object')}; it is damaged"
                    )
            if upper:
                rows, columns = np.minimum(rows, columns), np.maximum(rows, columns)
            counts += np.bincount(rows, minlength=n_objects)
            rows_file.write(np.ascontiguousarray(rows, dtype=np.int64).data)
            columns_file.write(np.ascontiguousarray(columns, dtype=np.int64).data)
            values_file.write(np.ascontiguousarray(values, dtype=np.float64).data)
    starts = np.concatenate(([0], np.cumsum(counts)))
    total = int(starts[-1])
    sorted_paths = [folder / "columns", folder / "values"]
    if total == 0:
        for path in sorted_paths:
            path.touch()
    else:
        _counting_sort(raw, sorted_paths, starts, total)
        _sort_rows(sorted_paths, starts, total, what)
    for path in raw:
        path.unlink()
    starts.tofile(folder / "starts")
    return (
        FlatFile(str(folder / "starts"), np.dtype(np.int64), 0, starts.size),
        FlatFile(str(sorted_paths[0]), np.dtype(np.int64), 0, total),
        FlatFile(str(sorted_paths[1]), np.dtype(np.float64), 0, total),
    )


def _counting_sort(raw: Sequence[Path], out: Sequence[Path], starts: Array, total: int) -> None:
    rows = np.memmap(raw[0], dtype=np.int64, mode="r")
    columns, values = np.memmap(raw[1], dtype=np.int64, mode="r"), np.memmap(raw[2], dtype=np.float64, mode="r")
    to_columns = allocated(out[0], np.dtype(np.int64), (total,))
    to_values = allocated(out[1], np.dtype(np.float64), (total,))
    following = starts[:-1].copy()
    for k in range(0, total, PIECE):
        stopping.check()
        piece = slice(k, k + PIECE)
        order = np.argsort(rows[piece], kind="stable")
        mine = rows[piece][order]
        rank = np.arange(mine.size) - np.searchsorted(mine, mine)
        place = following[mine] + rank
        to_columns[place] = columns[piece][order]
        to_values[place] = values[piece][order]
        following += np.bincount(mine, minlength=following.size)


def _sort_rows(paths: Sequence[Path], starts: Array, total: int, what: str) -> None:
    columns = np.memmap(paths[0], dtype=np.int64, mode="r+")
    values = np.memmap(paths[1], dtype=np.float64, mode="r+")
    row, n = 0, starts.size - 1
    while row < n:
        stopping.check()
        last = max(row + 1, int(np.searchsorted(starts, starts[row] + PIECE, side="right")) - 1)
        part = slice(int(starts[row]), int(starts[last]))
        owner = np.repeat(np.arange(row, last), np.diff(starts[row : last + 1]))
        order = np.lexsort((columns[part], owner))
        inside = columns[part][order]
        twice = np.flatnonzero((inside[1:] == inside[:-1]) & (owner[1:] == owner[:-1]))
        if twice.size:
            at = int(twice[0])
            raise InputError(
                f"{what} lists entry ({owner[at]}, {inside[at]}) twice; add up or drop the repeats"
                " (a symmetric file lists one triangle only)"
            )
        columns[part], values[part] = inside, values[part][order]
        row = last


def open_mtx(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """A MatrixMarket file, plain or gzipped, coordinate or array; parsed once, into files beside the store."""
    try:
        with open(path, "rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as file:
            return _read_mtx(file, path, scratch, kind)  # type: ignore[arg-type]
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{named(path)} is truncated or no gzip file ({shown(error)}); copy it again") from None


def _read_mtx(file: BinaryIO, path: Path, scratch: Path, kind: str) -> Source:
    words = file.readline(1000).decode("ascii", "replace").lower().split()
    if words[:2] != ["%%matrixmarket", "matrix"] or len(words) != 5:
        raise InputError(f"{named(path)}, line 1: no MatrixMarket header (%%MatrixMarket matrix ...)")
    form, field_name, symmetry = words[2:]
    if form not in ("coordinate", "array") or field_name not in ("real", "double", "integer", "pattern"):
        raise InputError(
            f"{named(path)}, line 1: {shown(form)} {shown(field_name)} cannot be used; real numbers are needed"
        )
    if symmetry not in ("general", "symmetric"):
        raise InputError(f"{named(path)}, line 1: a {shown(symmetry)} matrix cannot be used; general or symmetric can")
    line = 1
    while True:
        text = file.readline(1 << 16)
        line += 1
        if text.strip() and not text.startswith(b"%"):
            break
        if not text:
            raise InputError(f"{named(path)} is truncated: there is no line with the size")
    sizes = text.split()
    if len(sizes) != (3 if form == "coordinate" else 2) or not all(size.isdigit() for size in sizes):
        raise InputError(f"{named(path)}, line {line}: {shown(text.decode(errors='replace').strip())} is no size")
    n = square_side((int(sizes[0]), int(sizes[1])), named(path))
    width = {"pattern": 2}.get(field_name, 3) if form == "coordinate" else 1
    total = int(sizes[2]) if form == "coordinate" else n * n if symmetry == "general" else n * (n + 1) // 2
    numbers = _numbers(file, path, line, width, total)
    if form == "coordinate":
        pieces = (
            (p[:, 0].astype(np.int64) - 1, p[:, 1].astype(np.int64) - 1, p[:, 2] if width == 3 else np.ones(len(p)))
            for p in numbers
        )
        starts, columns, entries = sort_aside(pieces, n, scratch, upper=symmetry == "symmetric", what=named(path))
        mirrored = symmetry == "general"
        return SparseSource(starts, columns, entries, n, about(path), absent_value(kind), mirrored=mirrored)
    dense = scratch / "dense"
    with open(dense, "wb") as out:
        for piece in numbers:
            out.write(np.ascontiguousarray(piece).data)
    values = FlatFile(str(dense), np.dtype(np.float64), 0, total)
    if symmetry == "symmetric":
        return TriangleSource(values, n, about(path), diagonal=True)
    return MappedSource(values, n, about(path), fortran=True)


def _numbers(file: BinaryIO, path: Path, line: int, width: int, total: int) -> Iterator[Array]:
    """The lines after the size, `width` numbers each, some MB at a time."""
    seen = 0
    rest = b""
    while piece := file.read(COPY):
        stopping.check()
        whole, _, rest = (rest + piece).rpartition(b"\n")
        if whole:
            rows = _parsed(whole, path, line, width)
            line += whole.count(b"\n") + 1
            seen += len(rows)
            yield rows
    if rest.strip():
        rows = _parsed(rest, path, line, width)
        seen += len(rows)
        yield rows
    if seen != total:
        state = "is truncated" if seen < total else "goes on too long"
        raise InputError(
            f"{named(path)} {state}: {count_text(seen, 'entry', 'entries')}, and its size line says {total:,}; copy it"
            " again"
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
                told = shown(b" ".join(words).decode(errors="replace"))
                raise InputError(f"{named(path)}, line {line + 1 + k}: {told} is not {width} numbers") from None
            if len(words) != width:
                raise InputError(f"{named(path)}, line {line + 1 + k}: {len(words)} numbers instead of {width}")
    return np.array(rows, dtype=np.float64).reshape(-1, width)
