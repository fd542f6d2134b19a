"""(row, column, value) records sorted on disk; sparse matrices and MatrixMarket files.

Sparse matrices: SciPy's, and MatrixMarket files; sorted on disk, so that any block of them can be asked for.
"""

from __future__ import annotations

import ctypes
import gzip
import math
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasrel.errors import InputError
from dasrel.io import text_stream
from dasrel.io.array_files import (
    FlatFile,
    MappedSource,
    Reading,
    Source,
    TriangleSource,
    _npz_member,
    _text,
    about,
    allocated,
    check_numbers,
    named,
    square_side,
)
from dasrel.kernels import LONG, POINTER
from dasrel.kernels.checks import Policy
from dasrel.util import Array, Names, limits, parallel
from dasrel.util.text import count_text, shown, some
from dasrel.vocabulary import is_similarity


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
            if k % parallel.BAND == 0 or r == rows.stop - 1:
                for mapped in (starts, places, entries):
                    parallel.let_go(mapped)
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
            limits.check()
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
        limits.check()
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
        limits.check()
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
        limits.check()
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


Coded = tuple[list[bytes | str], Array]
"""The different names of a column (it may be of both), and for each row which one it has."""


@dataclass(frozen=True)
class Part:
    """Some rows of a list."""

    first: Coded
    second: Coded
    values: Array
    where: Callable[[int], str]
    """Says where in the file a row is, such as "line 7"; until the next part is asked for."""
    memory: Array | None = None
    """What the codes and values lie in, where it may be used again."""


SIDE = 1024
RECORD = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f8")])
RECORDS, INDEX = "pairs.bin", "index.bin"


class _Coded(ctypes.Structure):
    """Pairs as `pair_list.c` takes them: codes and values, numbers and blocks of the objects."""

    _fields_ = (
        ("first", POINTER), ("second", POINTER), ("values", POINTER), ("rows", LONG),
        ("numbers", POINTER * 2), ("blocks", POINTER * 2), ("n_blocks", LONG),
    )  # fmt: skip


_Sorted = tuple[Array, Array, Array, int]
"""Records by block; the codes of the blocks that have some (row * a side + column) and how many; blocks a side."""


class _Runs:
    """Records on their way to disk: each part is a run, sorted by block, and an index of the blocks is kept."""

    def __init__(self, scratch: Path, spare: text_stream.BufferPool) -> None:
        self._spare = spare
        self._room = np.empty(0, np.uint8)  # for sorted records, used again from part to part
        self._records = (scratch / RECORDS).open("wb", buffering=0)
        self._index = (scratch / INDEX).open("wb")
        self._pool = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()
        self._written = 0
        self._bounds = [0]
        self.has_self: set[int] = set()
        """Objects that have a value with themselves; to be looked at when all is written, as are the next two."""
        self.above = False
        """Whether a pair was met whose second object comes later than its first."""
        self.below = False

    def add(self, part: Part, numbers: tuple[Array, Array]) -> None:
        """Hand over a part with the numbers of its objects; it is sorted and written by another thread."""
        self._waiting.append(self._pool.submit(self._write, part, numbers))
        if len(self._waiting) > 2:
            self._waiting.popleft().result()

    def _write(self, part: Part, numbers: tuple[Array, Array]) -> None:
        records, codes, counts, n_blocks = self._sorted_quickly(part, numbers) or self._sorted(part, numbers)
        if part.memory is not None:
            self._spare.give(part.memory)
        ends = np.cumsum(counts)
        index = np.empty((codes.size, 3), np.int64)
        index[:, 0] = _block_key(codes // n_blocks, codes % n_blocks)
        index[:, 1] = self._written + ends - counts
        index[:, 2] = self._written + ends
        left = records.view(np.uint8).data
        while left:
            left = left[self._records.write(left) or 0 :]
        self._index.write(index.tobytes())
        self._written += records.size
        if codes.size:
            self._bounds.append(self._bounds[-1] + codes.size)

    def _sorted_quickly(self, part: Part, numbers: tuple[Array, Array]) -> _Sorted | None:
        """By the compiled counting of blocks; None if there is none, or there are too many blocks for it."""
        library = text_stream.library()
        n = max(int(known.max(initial=0)) for known in numbers) + 1
        n_blocks = (n - 1) // SIDE + 1
        if library is None or n_blocks > 256:
            return None
        values = np.ascontiguousarray(part.values, np.float64)
        first, second = (np.ascontiguousarray(codes, np.int32) for _, codes in (part.first, part.second))
        blocks = [known // SIDE for known in numbers]
        columns = first.ctypes.data, second.ctypes.data, values.ctypes.data
        coded = _Coded(*columns, values.size, _two(numbers), _two(blocks), n_blocks)
        counts, own, ways = np.zeros(n_blocks * n_blocks, np.int64), np.zeros(n, bool), np.zeros(2, bool)
        library.dasrel_count_pairs_by_block(ctypes.byref(coded), counts.ctypes.data, own.ctypes.data, ways.ctypes.data)
        self.has_self.update(np.flatnonzero(own).tolist())
        self.above, self.below = self.above or bool(ways[0]), self.below or bool(ways[1])
        size = RECORD.itemsize * int(counts.sum())
        if self._room.size < size:
            self._room = np.empty(size + size // 4, np.uint8)
        records, places = self._room[:size], np.cumsum(counts) - counts
        library.dasrel_sort_pairs_by_block(ctypes.byref(coded), places.ctypes.data, records.ctypes.data)
        found = np.flatnonzero(counts)
        return records.view(RECORD), found, counts[found], n_blocks

    def _sorted(self, part: Part, numbers: tuple[Array, Array]) -> _Sorted:
        first, second = (
            known.take(codes) for known, (_, codes) in zip(numbers, (part.first, part.second), strict=True)
        )
        records = np.empty(first.size, RECORD)
        records["row"], records["column"], records["value"] = first, second, part.values
        absent = np.isnan(part.values)
        if absent.any():
            records = records[~absent]
            first, second = records["row"], records["column"]
        self.has_self.update(first[first == second].tolist())
        self.above = self.above or bool((first < second).any())
        self.below = self.below or bool((first > second).any())
        rows, columns = first // SIDE, second // SIDE
        n_blocks = int(max(rows.max(initial=0), columns.max(initial=0))) + 1
        # Stable, so that the pairs of a block stay in the order of the list; NumPy is quickest with 16 bits.
        code: Array = rows.astype(np.uint16 if n_blocks <= 256 else np.int64)
        code *= code.dtype.type(n_blocks)
        code += columns.astype(code.dtype)
        order = np.argsort(code, kind="stable")
        moved: Array = records.view(np.complex128).take(order)  # 16 bytes each, which NumPy moves faster than fields
        codes, counts = np.unique(code.astype(np.int64), return_counts=True)
        return moved, codes, counts, n_blocks

    def finish(self) -> list[int]:
        """Write what is left; the places in the index where the runs begin and end."""
        while self._waiting:
            self._waiting.popleft().result()
        self._index.flush()
        return self._bounds

    def close(self) -> None:
        self._pool.shutdown()
        self._records.close()
        self._index.close()


def _two(arrays: Sequence[Array]) -> Any:
    return (POINTER * 2)(*(array.ctypes.data for array in arrays))


def _block_key(row: Any, column: Any) -> Any:
    return row * (1 << 32) + column


class _Records:
    """The records on disk, by block."""

    def __init__(self, scratch: Path, bounds: list[int]) -> None:
        empty = bounds[-1] == 0
        self.records: Array = np.empty(0, RECORD) if empty else np.memmap(scratch / RECORDS, RECORD, "r")
        index: Array = np.empty(0, np.int64) if empty else np.memmap(scratch / INDEX, np.int64, "r")
        self.index = index.reshape(-1, 3)
        self.bounds = bounds

    def pieces(self, row: int, column: int) -> Iterator[Array]:
        """The records of a block, in the order of the list, at most a million at a time."""
        key = _block_key(row, column)
        for first, last in zip(self.bounds, self.bounds[1:], strict=False):
            keys = self.index[first:last, 0]
            k = int(np.searchsorted(keys, key))
            if k < keys.size and keys[k] == key:
                start, stop = (int(x) for x in self.index[first + k, 1:])
                for here in range(start, stop, SIDE * SIDE):
                    limits.check()
                    yield self.records[here : min(stop, here + SIDE * SIDE)]

    def cells(self, row: int, column: int, *, gathered: bool = True) -> Iterator[tuple[Array, Array]]:
        """The same as places within the block, and values; gathered where each heap costs a pass over the block."""
        heap: list[tuple[Array, Array]] = []
        size = 0
        for piece in self.pieces(row, column):
            places = (piece["row"].astype(np.int64) - row * SIDE) * SIDE + (piece["column"] - column * SIDE)
            heap.append((places, piece["value"]))
            size += places.size
            if size >= SIDE * SIDE or not gathered:
                yield _joined(heap)
                heap, size = [], 0
        if heap:
            yield _joined(heap)


def _joined(heap: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    if len(heap) == 1:
        return heap[0]
    return np.concatenate([places for places, _ in heap]), np.concatenate([values for _, values in heap])


def _has_both_ways(records: _Records, n: int) -> bool:
    """Whether any pair is in the list in both directions."""
    n_blocks = -(-n // SIDE)
    for row in range(n_blocks):
        for column in range(row, n_blocks):
            present = np.zeros(SIDE * SIDE, bool)
            if row != column:
                for cells, _ in records.cells(row, column, gathered=False):
                    present[cells] = True
                if not present.any():
                    continue
            for cells, _ in records.cells(column, row, gathered=False):
                here, there = cells // SIDE, cells % SIDE
                if row == column:  # the later one of the two finds the other
                    present[cells] = True
                    here, there = here[here != there], there[here != there]
                if present[there * SIDE + here].any():
                    return True
    return False


class PairSource:
    """The matrix of a list of pairs."""

    def __init__(self, path: Path, scratch: Path, facts: dict[str, Any], kind: str, policy: Policy) -> None:
        self.ids: Names | None = facts["ids"]
        self.n_objects = len(facts["ids"])
        self.mirrored: bool = facts["mirrored"]
        self.provenance = text_stream.provenance(path)
        self.checksum: str | None = facts["checksum"]
        self._records: _Records | None = _Records(scratch, facts["bounds"])
        self._zero = not is_similarity(kind)
        self._duplicates = policy.duplicates
        self._names: list[str] = facts["ids"]
        self._told = text_stream.place(path)

    def block(self, rows: slice, columns: slice) -> Array:
        """These rows and columns, NaN where there is no pair."""
        r0, r1, _ = rows.indices(self.n_objects)
        c0, c1, _ = columns.indices(self.n_objects)
        result = np.full((max(0, r1 - r0), max(0, c1 - c0)), np.nan)
        for row in range(r0 // SIDE, -(-r1 // SIDE)):
            for column in range(c0 // SIDE, -(-c1 // SIDE)):
                # The part of the block of the grid that is asked for.
                top, bottom = max(r0, row * SIDE), min(r1, (row + 1) * SIDE)
                left, right = max(c0, column * SIDE), min(c1, (column + 1) * SIDE)
                here = result[top - r0 : bottom - r0, left - c0 : right - c0]
                down = slice(top - row * SIDE, bottom - row * SIDE)
                across = slice(left - column * SIDE, right - column * SIDE)
                values = self._dense(row, column)
                if values is not None:
                    here[...] = values[down, across]
                if not self.mirrored:
                    values = self._dense(column, row)
                    if values is not None:
                        np.copyto(here, values.T[down, across], where=np.isnan(here))
        if self._zero:
            k = np.arange(max(r0, c0), min(r1, c1))
            own = result[k - r0, k - c0]
            result[k - r0, k - c0] = np.where(np.isnan(own), 0, own)
        return result

    def _dense(self, row: int, column: int) -> Array | None:
        """One block of the grid, or None if it is empty."""
        if self._records is None:
            raise InputError("the source is closed")
        values: Array | None = None
        counts = np.empty(0, np.int64)
        for cells, found in self._records.cells(row, column):
            if values is None:
                start = {"mean": 0.0, "min": np.inf, "max": -np.inf}.get(self._duplicates, np.nan)
                values, counts = np.full(SIDE * SIDE, start), np.zeros(SIDE * SIDE, np.int64)
            added = np.bincount(cells, minlength=SIDE * SIDE)
            if self._duplicates == "error" and int((counts + added).max()) > 1:
                self._refuse_repeats((row, column), cells, found, (counts, counts + added), values)
            counts += added
            if self._duplicates == "mean":
                values += np.bincount(cells, weights=found, minlength=SIDE * SIDE)
            elif self._duplicates == "min":
                np.minimum.at(values, cells, found)
            elif self._duplicates == "max":
                np.maximum.at(values, cells, found)
            else:
                values[cells] = found  # of repeated places the last stays
        if values is None:
            return None
        if self._duplicates == "mean":
            values /= np.maximum(counts, 1)
        values[counts == 0] = np.nan
        return values.reshape(SIDE, SIDE)

    def _refuse_repeats(
        self, place: tuple[int, int], cells: Array, found: Array, counts: tuple[Array, Array], values: Array
    ) -> None:
        (row, column), (before, after) = place, counts
        which = np.flatnonzero(after > 1)
        cell = int(which[0])
        told = [*([float(values[cell])] if before[cell] else []), *found[cells == cell].tolist()]
        a, b = (shown(self._names[k]) for k in (row * SIDE + cell // SIDE, column * SIDE + cell % SIDE))
        raise InputError(
            f"{self._told}: {count_text(which.size, 'pair')} of this block listed more than once",
            where=f"such as {a} and {b} ({some([f'{value:g}' for value in told])})",
            remedy="say {Policy.duplicates=mean}, or min, max or last",
        )

    def block_memory(self, rows: int, columns: int) -> int:
        """The block, and one block of the grid at work with up to two heaps of its pairs."""
        return rows * columns * 9 + 14 * 8 * SIDE * SIDE

    def close(self) -> None:
        """Let go of the files."""
        self._records = None
