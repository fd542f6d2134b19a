"""Export a complete matrix in the formats that other programs read: as it is stored, or as a relation transforms it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dasrel.engine.reduce import Consumer, Kernel, Side
from dasrel.engine.relation import Relation, read_rows
from dasrel.engine.scan import prepare_scan, scan_memory
from dasrel.errors import InputError, MemoryLimitError
from dasrel.io.readers.source import allocated
from dasrel.names import EXPORTS, is_similarity
from dasrel.store.array_matrix import ArrayMatrix
from dasrel.store.layout import unchanged
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.store.tile_files import StoreLike, location
from dasrel.util import Array, limits, parallel, progress
from dasrel.util.files import disk_errors, replacing, replacing_folder, write_at
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.reading import load_json
from dasrel.util.text import is_url, path_text, shown, size_text, some

SUFFIXES = {"npy": ".npy", "condensed": ".npy", "lsmat": ".lsmat", "phylip": ".phy", "zarr": ".zarr"}
"""The suffix of each format; a suffix means the first format that has it."""
TEXT_BYTES = 100
"""Memory that one value takes while it becomes text: the value, its digits twice, and what arrow keeps beside them."""
SEEN_BYTES = 40
"""What it takes besides where a relation computes it: the stored value, its view, added terms, all float64."""
BAND_BYTES = 8 << 20
BAND_COPIES = {"npy": 0, "condensed": 0, "zarr": 3}
"""Copies of a tile that are made while it is written."""
SMALL = 16 << 20
TURNED = 256
"""Columns of a tile that are turned into rows together: their values stay in the processor's cache."""


def export_matrix(
    matrix: StoreLike | Matrix | Relation,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    memory: int | str = "1GiB",
    force: bool = False,
) -> Path:
    """Write the full matrix, both triangles, as one of `EXPORTS`; the file or folder is complete or absent.

    Text holds the shortest digits that read back to the same stored value.

    Parameters
    ----------
    matrix
        A store or an open matrix: its values as they are stored. Or a relation, such as `Euclideanized.relation`: its
        squared dissimilarities D, computed in float64 tile by tile and written in the type of the store's numbers.
    format
        npy, condensed, lsmat, phylip or zarr; by default what the suffix of `out` means.
    memory
        Limit of anonymous memory.
    force
        Replace `out` if it exists.

    Cost: one scan; a file of n^2 values (half of that condensed).
    """
    return prepare_export(matrix, out, format=format, memory=memory, force=force).run()


def prepare_export(
    matrix: StoreLike | Matrix | Relation,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    memory: int | str = "1GiB",
    force: bool = False,
) -> ExportJob:
    """Check the arguments of `export_matrix`. Cost: no tile is read."""
    name = format_of(out) if format is None else format
    target = check_export(out, name, force=force)
    given = as_numbers(matrix)
    given.check(name)
    return ExportJob(given, target, name, memory)


@dataclass(frozen=True)
class ExportJob:
    """A matrix to be written, with everything checked."""

    given: Numbers
    target: Path
    format: str
    memory: int | str

    def run(self) -> Path:
        """Write the matrix to a temporary file or folder, and rename it."""
        return _write(self.given, self.target, self.format, self.memory)

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, layout = self.given.matrix.n_objects, self.given.matrix.layout
        is_text = self.format in ("lsmat", "phylip")
        if is_text:
            needed = min(limits.memory_limit(self.memory), row_memory(self.given, self.memory))
        else:
            consumer = _consumer(self.given, None, self.format)
            needed = scan_memory(self.given.matrix, [consumer], limits.memory_limit(self.memory))
        value = TEXT_VALUE if is_text else layout.dtype.itemsize
        size = n * (n - 1) // 2 * value if self.format == "condensed" else n * n * value
        facts = {"format": self.format, "numbers": self.given.description}
        output = Output(str(self.target), size)
        return Cost("export", n, Range(1, 1, 1), layout.total_bytes, needed, (output,), facts)


def _write(given: Numbers, target: Path, format: str, memory: int | str) -> Path:  # noqa: A002
    write = {"npy": _npy, "condensed": _condensed, "lsmat": _lsmat, "phylip": _phylip, "zarr": _zarr}[format]
    full = f"{path_text(target)} was not written"
    is_folder = format == "zarr" or target.is_dir()
    with (
        disk_errors(target, full=full, name=path_text(target)),
        replacing_folder(target, make=False) if is_folder else replacing(target) as temporary,
        unchanged(given.matrix),
    ):
        write(given, temporary, memory)
    return target


def format_of(out: str | os.PathLike[str]) -> str:
    """Return the format that the suffix of a name means; raise if it means none."""
    suffix = Path(out).suffix
    for name in EXPORTS:
        if SUFFIXES[name] == suffix:
            return name
    suffixes = ", ".join(dict.fromkeys(SUFFIXES.values()))
    raise InputError(
        f"{path_text(out)} does not tell its format",
        remedy=f"say {{format=NAME}} with one of {', '.join(EXPORTS)}, or end the name with one of {suffixes}",
    )


def check_export(out: str | os.PathLike[str], format: str, *, force: bool) -> Path:  # noqa: A002
    """Return where an export goes; raise if it cannot be written there. Call before any work."""
    if format not in EXPORTS:
        raise InputError(f"format must be one of {', '.join(EXPORTS)}, not {shown(format)}")
    if is_url(out):
        raise InputError(
            f"{path_text(out)} is a URL; exports are written to local files", remedy="copy it there afterwards"
        )
    target = Path(out)
    if (target.exists() or target.is_symlink()) and not force:
        raise InputError(f"{path_text(target)} exists", remedy="say {force=True} to replace it, or choose another name")
    if target.is_dir() and not _is_zarr_array(target):
        raise InputError(
            f"{path_text(target)} is a folder, and not an exported Zarr array", remedy="choose another name"
        )
    if not target.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path_text(target.absolute().parent)}", remedy="make it first")
    return target


def as_numbers(matrix: StoreLike | Matrix | Relation) -> Numbers:
    """Return the numbers that an export writes."""
    if isinstance(matrix, Relation):
        return Numbers(matrix.matrix, matrix)
    return Numbers(matrix if isinstance(matrix, Matrix) else open_matrix(matrix))


@dataclass(frozen=True)
class Numbers:
    """The numbers to be written: those of the tiles, or the squared dissimilarities of a relation."""

    matrix: Matrix | ArrayMatrix
    relation: Relation | None = None

    @property
    def kind(self) -> str:
        """What the numbers are."""
        if self.relation is None:
            return self.matrix.kind
        return "kernel" if self.relation.diagonal().any() else "squared-distance"

    @property
    def description(self) -> str:
        """What the numbers are, for messages."""
        if self.relation is None:
            return f"as stored, kind {self.kind}"
        return "a kernel" if self.kind == "kernel" else "squared dissimilarities, kind squared-distance"

    def check(self, format: str) -> None:  # noqa: A002
        """Raise if the format cannot hold the diagonal."""
        if format in ("condensed", "phylip") and is_similarity(self.kind):
            where = "this" if self.matrix.store is None else location(self.matrix.store)
            remedy = "export {format=npy} or {format=lsmat}"
            if self.relation is None:
                remedy += ", or its squared dissimilarities as a relation"
            raise InputError(f"{format} holds distances, and {where} is a {self.kind}", remedy=remedy)

    def tile(self, stored: Array, rows: slice, columns: slice) -> Array:
        """Return the numbers of a tile, given what is stored."""
        if self.relation is None:
            return stored
        seen = np.empty_like(stored)
        height = max(1, BAND_BYTES // (8 * stored.shape[1]))
        for k in range(0, len(stored), height):
            band = slice(rows.start + k, min(rows.start + k + height, rows.stop))
            seen[k : k + height] = self.relation.block(stored[k : k + height], band, columns)
        return seen

    def rows(self, start: int, stop: int) -> Array:
        """Return these rows of the full matrix."""
        stored = read_rows(self.matrix, np.arange(start, stop))
        if self.relation is None:
            return stored
        seen = self.relation.block(stored, slice(start, stop), slice(0, self.matrix.n_objects))
        return seen.astype(stored.dtype)

    @property
    def tile_memory(self) -> int:
        """Bytes of memory that `tile` takes."""
        if self.relation is None:
            return 0
        bands = 6 * min(BAND_BYTES, 8 * self.matrix.tile**2)
        return self.matrix.layout.tile_bytes + bands + (32 * self.matrix.n_objects if self.relation.terms else 0)


def _is_zarr_array(folder: Path) -> bool:
    try:
        return bool(load_json(folder / "zarr.json")["node_type"] == "array")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _npy(given: Numbers, temporary: Path, memory: int | str) -> None:
    n = given.matrix.n_objects
    _each_tile(
        given, _ToSquare(given, os.path.abspath(temporary), _new_npy(temporary, (n, n), given.matrix.dtype)), memory
    )


def _condensed(given: Numbers, temporary: Path, memory: int | str) -> None:
    n = given.matrix.n_objects
    start = _new_npy(temporary, (n * (n - 1) // 2,), given.matrix.dtype)
    _each_tile(given, _ToVector(given, os.path.abspath(temporary), start), memory)


def _zarr(given: Numbers, temporary: Path, memory: int | str) -> None:
    import zarr

    n, side = given.matrix.n_objects, given.matrix.tile
    attributes: dict[str, Any] = {"kind": given.kind}
    if given.kind == "squared-distance":
        attributes["numbers"] = "squared dissimilarities"
    array = zarr.create_array(
        os.path.abspath(temporary), shape=(n, n), chunks=(side, side), dtype=given.matrix.dtype, zarr_format=3,
        compressors=None, fill_value=float("nan"), dimension_names=("object", "other_object"), attributes=attributes,
    )  # fmt: skip
    _each_tile(given, _ToZarr(given, os.path.abspath(temporary), array), memory)


def _each_tile(given: Numbers, kernel: _Writing, memory: int | str) -> None:
    progress.current().say("export")
    consumer = _consumer(given, kernel)
    here = not parallel.all_see(kernel.path)
    prepare_scan(given.matrix, [consumer], memory=memory, here=here).run()


def _consumer(given: Numbers, kernel: _Writing | None, format: str = "") -> Consumer:  # noqa: A002
    """Make the consumer that writes tiles; without a kernel for an estimate of a format."""
    copies = BAND_COPIES["zarr" if isinstance(kernel, _ToZarr) or format == "zarr" else "npy"]
    task = given.tile_memory + copies * given.matrix.layout.tile_bytes + SMALL
    return Consumer(kernel or Kernel(), task_memory=task)


@dataclass(frozen=True)
class _Writing(Kernel):
    """Writes tiles to their places of a file or a folder."""

    given: Numbers
    path: str
    target: Any
    """The array, or the first byte of the numbers in the file."""

    def empty(self, objects: int) -> None:
        return None

    def add(self, partial: None, tile: Array, rows: Side, columns: Side) -> None:
        self.write(self.given.tile(tile, rows.span, columns.span), rows.span, columns.span)

    def combine(self, first: None, second: None) -> None:
        return None

    def write(self, tile: Array, rows: slice, columns: slice) -> None:
        """Write one tile."""
        raise NotImplementedError

    @contextmanager
    def _file(self) -> Iterator[Callable[[int, Array], None]]:
        """Yield the function that writes values, given how many come before them in the file."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield lambda before, values: write_at(descriptor, values, self.target + before * values.itemsize)
        finally:
            os.close(descriptor)


class _ToSquare(_Writing):
    def write(self, tile: Array, rows: slice, columns: slice) -> None:
        n = self.given.matrix.n_objects
        with self._file() as put:
            for r, row in enumerate(tile, rows.start):
                put(r * n + columns.start, row)
            for c in range(0, tile.shape[1] if rows != columns else 0, TURNED):
                for r, row in enumerate(tile[:, c : c + TURNED].T.copy(), columns.start + c):
                    put(r * n + rows.start, row)


class _ToVector(_Writing):
    def write(self, tile: Array, rows: slice, columns: slice) -> None:
        n = self.given.matrix.n_objects
        with self._file() as put:
            for r, row in enumerate(tile, rows.start):
                first = max(columns.start, r + 1)
                put(r * n - r * (r + 1) // 2 - r - 1 + first, row[first - columns.start :])


class _ToZarr(_Writing):
    def write(self, tile: Array, rows: slice, columns: slice) -> None:
        self.target[rows, columns] = tile
        if rows != columns:
            self.target[columns, rows] = tile.T


def _new_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Create a .npy file, whose disk space is allocated; return where its numbers begin."""
    with open(path, "xb") as file:
        described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, described)
    return int(allocated(path, dtype, shape, keep=True).offset)


def _lsmat(given: Numbers, temporary: Path, memory: int | str) -> None:
    names = _plain_names(given.matrix, "\t\r\n", "tabs or line ends")
    with open(temporary, "x", encoding="utf-8", newline="\n") as file:
        file.write("\t" + "\t".join(names) + "\n")
        for k, line in enumerate(_lines(given, "\t", memory)):
            file.write(f"{names[k]}\t{line}\n")


def _phylip(given: Numbers, temporary: Path, memory: int | str) -> None:
    names = _plain_names(given.matrix, " \t\r\n\v\f", "blanks")
    with open(temporary, "x", encoding="utf-8", newline="\n") as file:
        file.write(f"{given.matrix.n_objects}\n")
        for k, line in enumerate(_lines(given, " ", memory)):
            file.write(f"{names[k]} {line}\n")


def _plain_names(matrix: Matrix | ArrayMatrix, forbidden: str, what: str) -> list[str]:
    names = [str(name) for name in matrix.ids]
    bad = [shown(repr(name)) for name in names if any(c in forbidden for c in name)]
    if bad:
        raise InputError(
            f"ids with {what} cannot be written in this format", where=some(bad), remedy="import with other {ids}"
        )
    return names


def _lines(given: Numbers, between: str, memory: int | str) -> Iterator[str]:
    """Yield the rows of the full matrix as text, a strip of rows in memory at a time."""
    matrix, n = given.matrix, given.matrix.n_objects
    strip = _rows_at_once(given, memory)
    step = progress.current().begin("export", tiles=-(-n // strip), bytes=n * n * matrix.dtype.itemsize, scan=True)
    for start in range(0, n, strip):
        limits.check()
        rows = given.rows(start, min(start + strip, n))
        # Arrow writes the shortest digits that read back to the same float32 or float64.
        digits = pa.array(rows.reshape(-1)).cast(pa.string())
        ends = pa.array(np.arange(len(rows) + 1) * n, type=pa.int32())
        yield from pc.binary_join(pa.ListArray.from_arrays(ends, digits), between).to_pylist()
        step.add(bytes=rows.nbytes, read=False)


def row_memory(given: Numbers, memory: int | str) -> int:
    """Return the bytes that an export as text takes; raise if it cannot fit."""
    rows = _rows_at_once(given, memory) * given.matrix.n_objects * _value_bytes(given)
    return rows + given.matrix.files.read_memory + SMALL


def _rows_at_once(given: Numbers, memory: int | str) -> int:
    matrix, limit = given.matrix, limits.memory_limit(memory)
    row = matrix.n_objects * _value_bytes(given)
    fitting = (limit - matrix.files.read_memory - SMALL) // row
    if fitting < 1:
        needed = row + matrix.files.read_memory + SMALL
        raise MemoryLimitError(
            f"export needs {size_text(needed)} for one row and the limit is {size_text(limit)}",
            remedy="raise {memory}",
        )
    return int(min(fitting, matrix.tile, max(1, (4 << 20) // matrix.n_objects)))


def _value_bytes(given: Numbers) -> int:
    """Return the memory for each value of a row that becomes text."""
    return TEXT_BYTES + (0 if given.relation is None else SEEN_BYTES + (32 if given.relation.terms else 0))


TEXT_VALUE = 11
"""Bytes of a number in text, roughly."""
