"""Lists of pairs, as search tools write them: first object, second object, value; in text or Parquet.

A list is read once. Its pairs are put aside as (row, column, value) records, in runs of some hundred thousand
that are each sorted by the block of the matrix they belong to, so that any block can be built from a few stretches of
the file.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import spool, stopping
from dasrel.compiled import LONG, POINTER
from dasrel.errors import InputError, count_text, shown, some
from dasrel.intake import Array, Names, Policy
from dasrel.pairlist import Part, is_parquet, parts
from dasrel.source import Reading, Source
from dasrel.vocabulary import is_similarity

SIDE = 1024
RECORD = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f8")])
RECORDS, INDEX = "pairs.bin", "index.bin"


@dataclass
class Objects:
    """The objects met so far, numbered in the order in which they appear, or as the user gave them."""

    path: Path
    given: bool
    numbers: dict[str, int] = field(default_factory=dict)

    _known: dict[bytes | str, int] = field(default_factory=dict)
    """The number of each name as the list spells it."""

    def numbered(self, part: Part) -> tuple[Array, Array]:
        """The objects' numbers by the codes of the part's first and second column."""
        try:
            return self._numbers(part)
        except KeyError:
            self._meet(part)
            return self._numbers(part)

    def _numbers(self, part: Part) -> tuple[Array, Array]:
        (names, _), (others, _) = part.first, part.second
        first = np.array([self._known[raw] for raw in names], np.int32)
        return first, first if others is names else np.array([self._known[raw] for raw in others], np.int32)

    def _meet(self, part: Part) -> None:
        """Give numbers to the names that are new, in the order in which a reader of the list meets them."""
        new: list[tuple[int, bytes | str]] = []
        for which, (names, codes) in enumerate((part.first, part.second)):
            place = np.full(len(names), -1)
            place[codes[::-1]] = np.arange(codes.size - 1, -1, -1)  # the last to be written is the first row
            met_here = zip(names, place.tolist(), strict=True)
            new.extend((2 * k + which, raw) for raw, k in met_here if k >= 0 and raw not in self._known)
        for met, raw in sorted(new):
            name = self._decoded(raw, part, met)
            if self.given and name not in self.numbers:
                raise InputError(
                    f"{spool.place(self.path)}: {part.where(met // 2)}: {shown(name)} is not among the given ids;"
                    " add it there, or drop it here"
                )
            self._known[raw] = self.numbers.setdefault(name, len(self.numbers))

    def _decoded(self, raw: bytes | str, part: Part, met: int) -> str:
        wrong = "is empty; give every object a name"
        try:
            name = raw.strip() if isinstance(raw, str) else raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            name, wrong = "", "is not UTF-8 text; convert the file, for instance with iconv"
        if not name:
            which = ("first", "second")[met % 2]
            raise InputError(f"{spool.place(self.path)}: {part.where(met // 2)}: the id of the {which} object {wrong}")
        return name


def open_pairs(path: str | Path, reading: Reading, scratch: Path, kind: str, policy: Policy) -> Source:
    """A list of pairs in text (packed by gzip or not) or Parquet, put aside in the folder `scratch`.

    Pairs may be absent, be there in one direction or both, and be repeated (`policy.duplicates`). Objects are in the
    order in which they first appear, or as given by `reading.ids`.

    Cost: one read of the list and 16 bytes of disk a pair; at most some 400 MB of memory.
    """
    path, scratch = Path(path), Path(scratch)
    key = spool.spool_key(path, reading, kind)
    facts = spool.finished(scratch, key)
    if facts is None:
        spool.unmark(scratch)
        facts = _spool(path, reading, scratch, kind)
        spool.mark_finished(scratch, key, facts)
    return PairSource(path, scratch, facts, kind, policy)


def _spool(path: Path, reading: Reading, scratch: Path, kind: str) -> dict[str, Any]:
    name = spool.place(path)
    given = spool.given_ids(reading)
    objects = Objects(path, given is not None)
    if given is not None:
        objects.numbers = {found: k for k, found in enumerate(given)}
        if len(objects.numbers) < len(given) or "" in objects.numbers:
            raise InputError("the given ids have an empty or a repeated name; give each object its own")
    stream = None if is_parquet(path) else spool.Stream(path)
    spare = spool.Spare()
    runs = _Runs(scratch, spare)
    try:
        for part in parts(path, stream, reading, spare):
            stopping.check()
            runs.add(part, objects.numbered(part))
        bounds = runs.finish()
        checksum = None if stream is None else stream.checksum()
    finally:
        runs.close()
        if stream is not None:
            stream.close()
    n = len(objects.numbers)
    if n == 0:
        raise InputError(f"{name}: there are no pairs in it (n = 0)")
    if is_similarity(kind) and len(runs.has_self) < n:
        without = [shown(found) for found, k in objects.numbers.items() if k not in runs.has_self]
        raise InputError(
            f"{name}: kind {kind} needs each object's value with itself, and {some(without)} have none;"
            " add a pair of each object with itself"
        )
    facts = {"ids": list(objects.numbers), "bounds": bounds, "checksum": checksum, "mirrored": False}
    if runs.above and runs.below:
        facts["mirrored"] = _has_both_ways(_Records(scratch, bounds), n)
    return facts


class _Coded(ctypes.Structure):
    """Pairs as `pair_list.c` takes them: codes and values, numbers and blocks of the objects."""

    _fields_ = (
        ("first", POINTER), ("second", POINTER), ("values", POINTER), ("rows", LONG),
        ("numbers", POINTER * 2), ("blocks", POINTER * 2), ("a_side", LONG),
    )  # fmt: skip


_Sorted = tuple[Array, Array, Array, int]
"""Records by block; the codes of the blocks that have some (row * a side + column) and how many; blocks a side."""


class _Runs:
    """Records on their way to disk: each part is a run, sorted by block, and an index of the blocks is kept."""

    def __init__(self, scratch: Path, spare: spool.Spare) -> None:
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
        records, codes, counts, a_side = self._sorted_quickly(part, numbers) or self._sorted(part, numbers)
        if part.memory is not None:
            self._spare.give(part.memory)
        ends = np.cumsum(counts)
        index = np.empty((codes.size, 3), np.int64)
        index[:, 0] = _block_key(codes // a_side, codes % a_side)
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
        library = spool.library()
        n = max(int(known.max(initial=0)) for known in numbers) + 1
        a_side = (n - 1) // SIDE + 1
        if library is None or a_side > 256:
            return None
        values = np.ascontiguousarray(part.values, np.float64)
        first, second = (np.ascontiguousarray(codes, np.int32) for _, codes in (part.first, part.second))
        blocks = [known // SIDE for known in numbers]
        columns = first.ctypes.data, second.ctypes.data, values.ctypes.data
        coded = _Coded(*columns, values.size, _two(numbers), _two(blocks), a_side)
        counts, own, ways = np.zeros(a_side * a_side, np.int64), np.zeros(n, bool), np.zeros(2, bool)
        library.dasrel_count_pairs_by_block(ctypes.byref(coded), counts.ctypes.data, own.ctypes.data, ways.ctypes.data)
        self.has_self.update(np.flatnonzero(own).tolist())
        self.above, self.below = self.above or bool(ways[0]), self.below or bool(ways[1])
        size = RECORD.itemsize * int(counts.sum())
        if self._room.size < size:
            self._room = np.empty(size + size // 4, np.uint8)
        records, places = self._room[:size], np.cumsum(counts) - counts
        library.dasrel_sort_pairs_by_block(ctypes.byref(coded), places.ctypes.data, records.ctypes.data)
        found = np.flatnonzero(counts)
        return records.view(RECORD), found, counts[found], a_side

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
        a_side = int(max(rows.max(initial=0), columns.max(initial=0))) + 1
        # Stable, so that the pairs of a block stay in the order of the list; NumPy is quickest with 16 bits.
        code: Array = rows.astype(np.uint16 if a_side <= 256 else np.int64)
        code *= code.dtype.type(a_side)
        code += columns.astype(code.dtype)
        order = np.argsort(code, kind="stable")
        moved: Array = records.view(np.complex128).take(order)  # 16 bytes each, which NumPy moves faster than fields
        codes, counts = np.unique(code.astype(np.int64), return_counts=True)
        return moved, codes, counts, a_side

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
                    stopping.check()
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
    a_side = -(-n // SIDE)
    for row in range(a_side):
        for column in range(row, a_side):
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
        self.provenance = spool.provenance(path)
        self.checksum: str | None = facts["checksum"]
        self._records: _Records | None = _Records(scratch, facts["bounds"])
        self._zero = not is_similarity(kind)
        self._duplicates = policy.duplicates
        self._names: list[str] = facts["ids"]
        self._told = spool.place(path)

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
            f"{self._told}: {count_text(which.size, 'pair')} of this block listed more than once, e.g. {a} and {b}"
            f" ({some([f'{value:g}' for value in told])}); say --duplicates mean, min, max or last"
        )

    def block_memory(self, rows: int, columns: int) -> int:
        """The block, and one block of the grid at work with up to two heaps of its pairs."""
        return rows * columns * 9 + 14 * 8 * SIDE * SIDE

    def close(self) -> None:
        """Let go of the files."""
        self._records = None
