"""Records (row, column, value), sorted on disk once: what sparse matrices and lists of pairs consist of.

Records arrive in any order. They are written in runs, each sorted by the block of the matrix that a record belongs to,
with an index of the blocks of each run; a block of the matrix is then gathered from one stretch of each run.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.io.readers import stream as streams
from dasrel.io.readers.flat import FlatFile
from dasrel.kernels.native import LONG, POINTER
from dasrel.names import is_similarity
from dasrel.util import Array, Names, limits, parallel
from dasrel.util.text import count_text, path_text, shown, some

SIDE = 1024
"""Rows and columns of the blocks that records are sorted by."""
RECORD = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f8")])
RECORDS, INDEX = "pairs.bin", "index.bin"


class _Coded(ctypes.Structure):
    """Records as `pair_list.c` takes them: codes and values, numbers and blocks of the objects."""

    _fields_ = (
        ("first", POINTER), ("second", POINTER), ("values", POINTER), ("rows", LONG),
        ("numbers", POINTER * 2), ("blocks", POINTER * 2), ("n_blocks", LONG),
    )  # fmt: skip


_Sorted = tuple[Array, Array, Array, int]
"""Records by block; codes (row * blocks per side + column) and counts of the blocks that have some; blocks per side."""


class RecordWriter:
    """Writes records to disk: each call of `add` is a run, sorted by block and indexed by another thread."""

    def __init__(self, folder: Path, *, keep_missing: bool = False) -> None:
        self._folder = folder
        self._keep_missing = keep_missing  # whether a NaN is a record, or as good as none
        self._buffer = np.empty(0, np.uint8)  # for sorted records, reused for each run
        for name in (RECORDS, INDEX):
            (folder / name).unlink(missing_ok=True)  # of a process that was killed
        self._records = (folder / RECORDS).open("xb", buffering=0)
        self._index = (folder / INDEX).open("xb")
        self._pool = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()
        self._written = 0
        self._bounds = [0]
        self.has_self: set[int] = set()
        """Objects that have a value with themselves; valid after `finish`, as are the next two."""
        self.above = False
        """Whether there is a record whose column is larger than its row."""
        self.below = False

    def add(
        self,
        codes: tuple[Array, Array],
        values: Array,
        numbers: tuple[Array, Array],
        release: Callable[[], None] | None = None,
    ) -> None:
        """Add a run of records whose rows and columns are `numbers[0][codes[0]]` and `numbers[1][codes[1]]`.

        `release` is called when codes and values are no longer needed.
        """
        self._waiting.append(self._pool.submit(self._write, codes, values, numbers, release))
        if len(self._waiting) > 2:
            self._waiting.popleft().result()

    def finish(self) -> Records:
        """Write what is left, and return the records."""
        while self._waiting:
            self._waiting.popleft().result()
        self._index.flush()
        return Records(self._folder, self._bounds)

    def close(self) -> None:
        """Close the files."""
        self._pool.shutdown()
        self._records.close()
        self._index.close()

    def _write(
        self,
        codes: tuple[Array, Array],
        values: Array,
        numbers: tuple[Array, Array],
        release: Callable[[], None] | None,
    ) -> None:
        in_order = self._sorted_compiled(codes, values, numbers) or self._sorted(codes, values, numbers)
        records, blocks, counts, per_side = in_order
        if release is not None:
            release()
        ends = np.cumsum(counts)
        index = np.empty((blocks.size, 3), np.int64)
        index[:, 0] = _block_key(blocks // per_side, blocks % per_side)
        index[:, 1] = self._written + ends - counts
        index[:, 2] = self._written + ends
        left = records.view(np.uint8).data
        while left:
            left = left[self._records.write(left) or 0 :]
        self._index.write(index.tobytes())
        self._written += records.size
        if blocks.size:
            self._bounds.append(self._bounds[-1] + blocks.size)

    def _sorted_compiled(
        self, codes: tuple[Array, Array], values: Array, numbers: tuple[Array, Array]
    ) -> _Sorted | None:
        """Sort by the compiled count of blocks; None if it is absent, or not made for these records."""
        library = streams.library()
        n = max(int(known.max(initial=0)) for known in numbers) + 1
        per_side = (n - 1) // SIDE + 1
        if library is None or per_side > 256 or (self._keep_missing and np.isnan(values).any()):
            return None
        values = np.ascontiguousarray(values, np.float64)
        first, second = (np.ascontiguousarray(column, np.int32) for column in codes)
        blocks = [known // SIDE for known in numbers]
        columns = first.ctypes.data, second.ctypes.data, values.ctypes.data
        coded = _Coded(*columns, values.size, _two(numbers), _two(blocks), per_side)
        counts, own, ways = np.zeros(per_side * per_side, np.int64), np.zeros(n, bool), np.zeros(2, bool)
        library.dasrel_count_pairs_by_block(ctypes.byref(coded), counts.ctypes.data, own.ctypes.data, ways.ctypes.data)
        self.has_self.update(np.flatnonzero(own).tolist())
        self.above, self.below = self.above or bool(ways[0]), self.below or bool(ways[1])
        size = RECORD.itemsize * int(counts.sum())
        if self._buffer.size < size:
            self._buffer = np.empty(size + size // 4, np.uint8)
        records, places = self._buffer[:size], np.cumsum(counts) - counts
        library.dasrel_sort_pairs_by_block(ctypes.byref(coded), places.ctypes.data, records.ctypes.data)
        present = np.flatnonzero(counts)
        return records.view(RECORD), present, counts[present], per_side

    def _sorted(self, codes: tuple[Array, Array], values: Array, numbers: tuple[Array, Array]) -> _Sorted:
        first, second = (known.take(column) for known, column in zip(numbers, codes, strict=True))
        records = np.empty(first.size, RECORD)
        records["row"], records["column"], records["value"] = first, second, values
        absent = np.isnan(values)
        if not self._keep_missing and absent.any():
            records = records[~absent]
            first, second = records["row"], records["column"]
        self.has_self.update(first[first == second].tolist())
        self.above = self.above or bool((first < second).any())
        self.below = self.below or bool((first > second).any())
        rows, columns = first // SIDE, second // SIDE
        per_side = int(max(rows.max(initial=0), columns.max(initial=0))) + 1
        # Stable, so that the records of a block stay in the order of the list; NumPy is quickest with 16 bits.
        code: Array = rows.astype(np.uint16 if per_side <= 256 else np.int64)
        code *= code.dtype.type(per_side)
        code += columns.astype(code.dtype)
        order = np.argsort(code, kind="stable")
        moved: Array = records.view(np.complex128).take(order)  # 16 bytes each, which NumPy moves faster than fields
        blocks, counts = np.unique(code.astype(np.int64), return_counts=True)
        return moved, blocks, counts, per_side


def _two(arrays: Sequence[Array]) -> Any:
    return (POINTER * 2)(*(array.ctypes.data for array in arrays))


def _block_key(row: Any, column: Any) -> Any:
    return row * (1 << 32) + column


class Records:
    """The records on disk, by block. Pickled as the names of the files."""

    def __init__(self, folder: Path, bounds: list[int]) -> None:
        self.bounds = bounds
        """Where in the index each run begins, and the end of the last."""
        size = (folder / RECORDS).stat().st_size if bounds[-1] else 0
        self._records = FlatFile(str(folder / RECORDS), RECORD, 0, size // RECORD.itemsize)
        self._index = FlatFile(str(folder / INDEX), np.dtype(np.int64), 0, 3 * bounds[-1])

    def cells(self, row: int, column: int, *, gathered: bool = True) -> Iterator[tuple[Array, Array]]:
        """Yield positions within a block, and values, in the order of the list; some million at once if `gathered`."""
        held: list[tuple[Array, Array]] = []
        size = 0
        for piece in self._pieces(row, column):
            places = (piece["row"].astype(np.int64) - row * SIDE) * SIDE + (piece["column"] - column * SIDE)
            held.append((places, piece["value"]))
            size += places.size
            if size >= SIDE * SIDE or not gathered:
                yield _joined(held)
                held, size = [], 0
        if held:
            yield _joined(held)

    def release(self) -> None:
        """On a worker, drop the mapped pages, which would count as its memory."""
        for file in (self._records, self._index):
            parallel.release_pages(file.values())

    def close(self) -> None:
        """Close the files."""
        self._records.close()
        self._index.close()

    def _pieces(self, row: int, column: int) -> Iterator[Array]:
        """Yield the records of a block, at most a million at a time."""
        key, index, records = _block_key(row, column), self._index.values().reshape(-1, 3), self._records.values()
        for first, last in zip(self.bounds, self.bounds[1:], strict=False):
            keys = index[first:last, 0]
            k = int(np.searchsorted(keys, key))
            if k < keys.size and keys[k] == key:
                start, stop = (int(x) for x in index[first + k, 1:])
                for here in range(start, stop, SIDE * SIDE):
                    limits.check()
                    yield records[here : min(stop, here + SIDE * SIDE)]


def _joined(held: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    if len(held) == 1:
        return held[0]
    return np.concatenate([places for places, _ in held]), np.concatenate([values for _, values in held])


@dataclass
class TripletSource:
    """The matrix of sorted records."""

    records: Records
    n_objects: int
    provenance: dict[str, Any]
    mirrored: bool
    absent: float
    """Value of an entry without a record."""
    zero_diagonal: bool
    """Whether an object without a value with itself has the value 0."""
    duplicates: str = "error"
    """What to do about entries with several records: as in `Policy.duplicates`."""
    ids: Names | None = None
    local: bool = False
    checksum: str | None = None
    closed: bool = False

    def block(self, rows: slice, columns: slice) -> Array:
        """Return these rows and columns as a dense array."""
        if self.closed:
            raise InputError("the source is closed")
        r0, r1, _ = rows.indices(self.n_objects)
        c0, c1, _ = columns.indices(self.n_objects)
        result = np.full((max(0, r1 - r0), max(0, c1 - c0)), self.absent)
        for row in range(r0 // SIDE, -(-r1 // SIDE)):
            for column in range(c0 // SIDE, -(-c1 // SIDE)):
                # The part of this block of records that lies within the result.
                top, bottom = max(r0, row * SIDE), min(r1, (row + 1) * SIDE)
                left, right = max(c0, column * SIDE), min(c1, (column + 1) * SIDE)
                here = result[top - r0 : bottom - r0, left - c0 : right - c0]
                own = self._dense(row, column, (top, bottom), (left, right))
                if own is not None:
                    np.copyto(here, own[0], where=own[1])
                other = None if self.mirrored else self._dense(column, row, (left, right), (top, bottom))
                if other is not None:
                    values, present = (array.T for array in other)
                    np.copyto(here, values, where=present if own is None else present & ~own[1])
                self.records.release()
        if self.zero_diagonal:
            k = np.arange(max(r0, c0), min(r1, c1))
            own_values = result[k - r0, k - c0]
            result[k - r0, k - c0] = np.where(np.isnan(own_values), 0, own_values)
        return result

    def _dense(
        self, row: int, column: int, rows: tuple[int, int], columns: tuple[int, int]
    ) -> tuple[Array, Array] | None:
        """Return the values of these rows and columns of a block of records and where there are any; None if nowhere.

        A tile may be much smaller than a block: arrays are of the size of what is asked for.
        """
        values: Array | None = None
        counts = np.empty(0, np.int64)
        height, width = rows[1] - rows[0], columns[1] - columns[0]
        top, left = rows[0] - row * SIDE, columns[0] - column * SIDE
        size = height * width
        for cells, entries in self.records.cells(row, column):
            if size < SIDE * SIDE:
                i, j = cells // SIDE - top, cells % SIDE - left
                wanted = (i >= 0) & (i < height) & (j >= 0) & (j < width)
                cells, entries = (i * width + j)[wanted], entries[wanted]
                if not cells.size:
                    continue
            if values is None:
                start = {"mean": 0.0, "min": np.inf, "max": -np.inf}.get(self.duplicates, np.nan)
                values, counts = np.full(size, start), np.zeros(size, np.int64)
            added = np.bincount(cells, minlength=size)
            if self.duplicates == "error" and int((counts + added).max()) > 1:
                self._refuse_repeats((rows[0], columns[0], width), cells, entries, (counts, counts + added), values)
            counts += added
            if self.duplicates == "mean":
                values += np.bincount(cells, weights=entries, minlength=size)
            elif self.duplicates == "min":
                np.minimum.at(values, cells, entries)
            elif self.duplicates == "max":
                np.maximum.at(values, cells, entries)
            else:
                values[cells] = entries  # of repeated entries the last stays
        if values is None:
            return None
        if self.duplicates == "mean":
            values /= np.maximum(counts, 1)
        return values.reshape(height, width), (counts > 0).reshape(height, width)

    def _refuse_repeats(
        self, place: tuple[int, int, int], cells: Array, entries: Array, counts: tuple[Array, Array], values: Array
    ) -> None:
        (row, column, width), (before, after) = place, counts
        which = np.flatnonzero(after > 1)
        cell = int(which[0])
        i, j = row + cell // width, column + cell % width
        where = path_text(self.provenance["source"])
        if self.ids is None:
            raise InputError(
                f"{where} lists entry ({i}, {j}) twice",
                remedy="add up or drop the repeats (a symmetric file lists one triangle only)",
            )
        detail = [*([float(values[cell])] if before[cell] else []), *entries[cells == cell].tolist()]
        raise InputError(
            f"{where}: {count_text(which.size, 'pair')} of this block listed more than once",
            where=f"such as {shown(self.ids[i])} and {shown(self.ids[j])} ({some([f'{value:g}' for value in detail])})",
            remedy="say {Policy.duplicates=mean}, or min, max or last",
        )

    def block_memory(self, rows: int, columns: int) -> int:
        """Return the size of the block and of one block of records with two chunks of its records."""
        return triplet_memory(rows, columns)

    def close(self) -> None:
        """Close the files."""
        self.closed = True
        self.records.close()


def triplet_memory(rows: int, columns: int) -> int:
    """Return the memory that a block of a `TripletSource` takes."""
    return rows * columns * 9 + 14 * 8 * SIDE * SIDE


def has_both_directions(records: Records, n: int) -> bool:
    """Return whether any pair is listed in both directions."""
    per_side = -(-n // SIDE)
    for row in range(per_side):
        for column in range(row, per_side):
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


def absent_value(kind: str) -> float:
    """Return the value of an entry that a sparse matrix does not list.

    For similarities and kernels it is 0: not similar at all. A distance of 0 would mean equal, which is the opposite of
    what people mean by leaving a pair out: for distances it is a missing pair (NaN), and a policy must name its value.
    """
    return 0.0 if is_similarity(kind) else math.nan


def spool_entries(
    pieces: Iterator[tuple[Array, Array, Array]],
    n: int,
    provenance: dict[str, Any],
    kind: str,
    folder: Path,
    *,
    upper: bool,
) -> TripletSource:
    """Sort entries (row, column, value) that come in any order; with `upper` each is moved to the upper triangle.

    Cost: 16 bytes of disk for each entry; memory for a few pieces.
    """
    absent, objects = absent_value(kind), np.arange(n, dtype=np.int32)
    writer = RecordWriter(folder, keep_missing=absent == 0)
    try:
        for rows, columns, values in pieces:
            limits.check()
            for name, index in (("row", rows), ("column", columns)):
                if index.size and not 0 <= int(index.min()) <= int(index.max()) < n:
                    where = path_text(provenance["source"])
                    raise InputError(f"{where} names a {name} beyond its {count_text(n, 'object')}; it is damaged")
            if upper:
                rows, columns = np.minimum(rows, columns), np.maximum(rows, columns)
            codes = rows.astype(np.int32), columns.astype(np.int32)
            writer.add(codes, values.astype(np.float64), (objects, objects))
        records = writer.finish()
    finally:
        writer.close()
    return TripletSource(records, n, provenance, not upper, absent, zero_diagonal=math.isnan(absent))
