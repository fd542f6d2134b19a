"""Graphs of neighbours: the k nearest of every object, or all pairs within a distance, as sparse matrices and lists.

Distances are those of a store of kind distance as they are, and the square roots of max(D, 0) of any other kind; see
`engine.neighbours`. Pairs within a distance may be many: tasks write them to files as they read the tiles, and the
files become rows of a sparse matrix a few million entries at a time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from scipy.sparse import csr_array, load_npz

from dasrel.engine.neighbours import Neighbours, SeenValues, nearest_neighbours
from dasrel.engine.reduce import Consumer, Kernel, Plan, Side, shares
from dasrel.engine.scan import scan
from dasrel.errors import InputError, MemoryLimitError
from dasrel.store.array_matrix import as_matrix
from dasrel.store.layout import TileSource
from dasrel.util import Array, Index, Names
from dasrel.util.files import disk_errors, replacing
from dasrel.util.limits import memory_limit
from dasrel.util.text import count_text, shown, size_text

AT_ONCE = 2**21
"""Entries of a sparse matrix that are sorted, and pairs of a list that are written, at once."""
ENTRY_BYTES = 80
"""Bytes per such entry, at most: while it is chosen, sorted and written."""


# ------------------------------------------------------------------------------------------------------- the k nearest


def check_k(k: int, n: int, name: str = "k") -> None:
    """Raise if so many neighbours of n objects are not to be had."""
    if not 1 <= k < n:
        remedy = f"give {{{name}=NUMBER}} of 1 to {n - 1}" if n > 1 else "give more objects"
        raise InputError(f"{name} is {k}, and each of {count_text(n, 'object')} has {n - 1} others", remedy=remedy)


def check_within(within: float) -> None:
    """Raise if this is no distance up to which pairs are listed."""
    if not (np.isfinite(within) and within >= 0):
        raise InputError(f"within is {within:g}: pairs are listed up to a finite distance of at least 0")


def neighbours(
    matrix: Any,
    *,
    k: int | None = None,
    within: float | None = None,
    kind: str | None = None,
    memory: int | str | None = None,
) -> Neighbours | csr_array:
    """Return the k nearest neighbours of every object, or all pairs within a distance as a sparse matrix.

    An object is not its own neighbour. Of equally near objects those of smaller position come first.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, or an array with its `kind`.
    k
        Number of neighbours; the result is a `Neighbours`. 15 if `within` is not given either.
    within
        The largest distance of a pair; the result is a symmetric `scipy.sparse.csr_array`, (n, n), in which distances
        of 0 are entries like any others.

    Cost: one scan; 24 k n bytes, or 16 bytes per entry: two for each pair.
    """
    source = as_matrix(matrix, kind=kind)
    if k is not None and within is not None:
        raise InputError("k and within are both given", remedy="leave one of them out")
    if within is None:
        wanted = 15 if k is None else k
        check_k(wanted, source.n_objects)
        return nearest_neighbours(source, wanted, memory=memory)
    check_within(within)
    with tempfile.TemporaryDirectory(prefix="dasrel-pairs-") as folder:
        pairs = pairs_within(source, within, Path(folder), memory=memory)
        needed, limit = 32 * pairs.count, memory_limit(memory)
        if needed > limit:
            raise MemoryLimitError(
                f"{count_text(pairs.count, 'pair')} within {within:g} take {size_text(needed)} and the limit is"
                f" {size_text(limit)}",
                remedy="write them to files with `dasrel neighbours`, raise {memory}, or choose a smaller distance",
            )
        pairs.save_csr(Path(folder, "pairs.npz"))
        return csr_array(load_npz(Path(folder, "pairs.npz")))


def write_nearest(nearest: Neighbours, ids: Names, folder: Path) -> None:
    """Write the k nearest: a sparse matrix, arrays as UMAP takes them, and a list of pairs."""
    save_csr(nearest, folder / "neighbours.npz")
    indices, distances = nearest.knn()
    np.save(folder / "knn_indices.npy", indices, allow_pickle=False)
    np.save(folder / "knn_dists.npy", distances, allow_pickle=False)
    n, k = nearest.positions.shape
    rows = max(1, AT_ONCE // k)

    def parts() -> Iterator[tuple[Index, Index, Array]]:
        for start in range(0, n, rows):
            some = slice(start, min(start + rows, n))
            first = np.repeat(np.arange(some.start, some.stop), k)
            yield first, nearest.positions[some].ravel(), nearest.distances[some].ravel()

    _write_pairs(folder / "pairs.parquet", parts(), ids)


def save_csr(nearest: Neighbours, path: Path) -> None:
    """Write the k nearest as a sparse matrix that `scipy.sparse.load_npz` reads; columns ascend in each row."""
    matrix = nearest.to_csr()
    with _SparseFile(path, matrix.indptr, matrix.indices.size) as file:
        file.add(matrix.indices, matrix.data)


def _write_pairs(path: Path, parts: Iterator[tuple[Index, Index, Array]], ids: Names) -> None:
    """Write a list of pairs in Parquet: first, second, value, by the names of the objects."""
    names = pa.array([str(name) for name in ids], type=pa.large_string())
    text = pa.dictionary(pa.int64(), pa.large_string())
    schema = pa.schema([("first", text), ("second", text), ("value", pa.float64())])
    with replacing(path) as part, parquet.ParquetWriter(part, schema) as writer:
        for first, second, values in parts:
            columns = [
                pa.DictionaryArray.from_arrays(pa.array(side, type=pa.int64()), names) for side in (first, second)
            ]
            writer.write_table(pa.table([*columns, pa.array(values, type=pa.float64())], schema=schema))


# --------------------------------------------------------------------------------------------- pairs within a distance


@dataclass(frozen=True)
class _PairFile:
    """The pairs of a tile, in a file of their own."""

    path: str
    count: int
    rows: tuple[int, int]
    """The range of the first objects, and..."""
    columns: tuple[int, int]
    """... of the second ones."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs i < j within a distance, in files."""

    n_objects: int
    files: tuple[_PairFile, ...]
    degrees: Index
    """(n,) number of neighbours of each object."""
    are_squared: bool

    @property
    def count(self) -> int:
        """Number of pairs."""
        return sum(file.count for file in self.files)

    def parts(self, inside: tuple[int, int] | None = None) -> Iterator[tuple[Index, Index, Array]]:
        """Yield all pairs, or those that may have an object of a range: i, j, and distances in float64."""
        for file in self.files:
            if inside is not None and not any(a < inside[1] and inside[0] < b for a, b in (file.rows, file.columns)):
                continue
            for start in range(0, file.count, AT_ONCE):
                count = min(AT_ONCE, file.count - start)
                part = np.fromfile(file.path, dtype=RECORD, count=count, offset=start * RECORD.itemsize)
                values = part["value"]
                yield part["i"], part["j"], np.sqrt(values) if self.are_squared else values

    def save_csr(self, path: Path) -> None:
        """Write the symmetric sparse matrix, for `scipy.sparse.load_npz`. Cost: the memory of 2^21 entries."""
        ends = np.cumsum(self.degrees)
        with _SparseFile(path, np.concatenate([[0], ends]), int(ends[-1])) as file:
            start = 0
            while start < self.n_objects:
                before = int(ends[start - 1]) if start else 0
                stop = max(start + 1, int(np.searchsorted(ends, before + AT_ONCE, side="right")))
                file.add(*self._rows(start, stop))
                start = stop

    def _rows(self, start: int, stop: int) -> tuple[Index, Array]:
        """Return the columns and distances of some rows, in order."""
        chosen: list[list[Array]] = [[], [], []]
        for i, j, values in self.parts((start, stop)):
            for row, column in ((i, j), (j, i)):
                mine = (row >= start) & (row < stop)
                for whole, part in zip(chosen, (row, column, values), strict=True):
                    whole.append(part[mine])
        if not chosen[0]:
            return np.empty(0, dtype=np.int64), np.empty(0)
        row, column, value = (np.concatenate(part) for part in chosen)
        order = np.lexsort((column, row))
        return column[order], value[order]

    def save_pairs(self, path: Path, ids: Names) -> None:
        """Write the list of pairs in Parquet: first, second, value."""
        _write_pairs(path, self.parts(), ids)


RECORD = np.dtype([("i", "<i8"), ("j", "<i8"), ("value", "<f8")])
"""A pair in a file."""


def pairs_within(source: TileSource, within: float, folder: Path, *, memory: int | str | None = None) -> Pairs:
    """Write all pairs within a distance to files in a folder, which all workers of a cluster must see.

    Cost: one scan; 24 bytes of the folder per pair.
    """
    consumer = within_consumer(source, within, folder)
    with disk_errors(folder, full="the pairs do not fit", retry="choose a smaller distance, or free some space"):
        files: tuple[_PairFile, ...] = scan(source, [consumer], memory=memory)[0]
    values, n = SeenValues.of(source), source.layout.n_objects
    absent = next((file.path for file in files if not Path(file.path).is_file()), None)
    if absent is not None:
        raise InputError(
            f"a worker has written pairs where this process does not see them, {shown(folder, limit=200)}",
            remedy="write the result to a folder that all workers and this machine share",
        )
    pairs = Pairs(n, files, np.zeros(n, dtype=np.int64), values.are_squared)
    for i, j, _ in pairs.parts():
        pairs.degrees[:] += np.bincount(i, minlength=n) + np.bincount(j, minlength=n)
    return pairs


def within_consumer(source: TileSource, within: float, folder: Path) -> Consumer:
    """Make the consumer of `pairs_within`."""
    values, layout = SeenValues.of(source), source.layout
    panel = values.panel_bytes(layout)
    # A panel's distances, and its pairs in float64 and as records: all of them at worst.
    task = panel * (4 + values.panels) + 8 * RECORD.itemsize * panel // layout.dtype.itemsize
    known = FILE_BYTES * Plan(layout).group_side ** 2
    return Consumer(
        _WithinKernel(values, within, str(folder.absolute())), share=shares(source), part_bytes=known, task_memory=task,
        fixed_memory=FILE_BYTES * len(layout.tiles()) + ENTRY_BYTES * AT_ONCE,
    )  # fmt: skip


FILE_BYTES = 1000
"""Memory of what is known of a file."""


@dataclass(frozen=True)
class _WithinKernel(Kernel):
    values: SeenValues
    within: float
    folder: str

    def empty(self, objects: int) -> tuple[_PairFile, ...]:
        return ()

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> tuple[_PairFile, ...]:
        """Write the pairs of a tile to a new file: a task that is repeated writes others."""
        path, count = f"{self.folder}/{uuid.uuid4().hex}.pairs", 0
        with open(path, "xb") as file:
            for band, values in self.values.bands(tile, rows, columns):
                i, j = np.divmod(np.flatnonzero(values <= self._most), values.shape[1])
                seen = values[i, j].astype(np.float64)
                keep = (np.sqrt(seen) if self.values.are_squared else seen) <= self.within
                if rows is columns:
                    keep &= i + band.start < j
                pairs = np.empty(int(keep.sum()), dtype=RECORD)
                pairs["i"], pairs["j"] = i[keep] + rows.span.start + band.start, j[keep] + columns.span.start
                pairs["value"] = seen[keep]
                pairs.tofile(file)
                count += len(pairs)
        if not count:
            os.unlink(path)
            return tuple(partial)
        down, across = ((side.span.start, side.span.stop) for side in (rows, columns))
        return (*partial, _PairFile(path, count, down, across))

    @property
    def _most(self) -> float:
        """A bound of the values of all pairs, a little above: it may be rounded to the precision of the tiles."""
        return (self.within**2 if self.values.are_squared else self.within) * (1 + 1e-6)

    def combine(self, first: tuple[_PairFile, ...], second: tuple[_PairFile, ...]) -> tuple[_PairFile, ...]:
        return first + second


# ------------------------------------------------------------------------------------------------------ sparse matrices


class _SparseFile:
    """Writes a square sparse matrix row by row, as `scipy.sparse.save_npz` would."""

    def __init__(self, path: Path, indptr: Array, entries: int) -> None:
        self._indptr, self._entries, self._written = indptr, entries, 0
        self._path, self._data = path, path.with_name(path.name + ".data")
        self._stack = ExitStack()

    def __enter__(self) -> _SparseFile:
        self._archive = self._stack.enter_context(
            zipfile.ZipFile(self._stack.enter_context(replacing(self._path)), "x")
        )
        self._stack.callback(self._data.unlink, missing_ok=True)
        self._values = self._stack.enter_context(open(self._data, "x+b"))
        n = len(self._indptr) - 1
        for name, array in (("format", b"csr"), ("shape", (n, n)), ("indptr", self._indptr.astype(np.int64))):
            with self._archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        self._indices = self._member("indices", np.int64)
        return self

    def _member(self, name: str, dtype: Any) -> Any:
        member = self._archive.open(f"{name}.npy", "w", force_zip64=True)
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
        np.lib.format.write_array_header_1_0(member, {**header, "shape": (self._entries,)})
        return member

    def add(self, columns: Array, values: Array) -> None:
        """Add the entries of the next rows. Members are written one after the other: values wait in a file."""
        self._indices.write(np.ascontiguousarray(columns, dtype=np.int64).tobytes())
        self._values.write(np.ascontiguousarray(values, dtype=np.float64).tobytes())
        self._written += columns.size

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._stack:
            self._indices.close()
            if kind is None:
                assert self._written == self._entries
                self._values.seek(0)
                with self._member("data", np.float64) as member:
                    shutil.copyfileobj(self._values, member, 2**20)
