"""Export a complete matrix in the formats that other programs read: as it is stored, or as a relation transforms it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dasrel.engine.relation import Relation
from dasrel.errors import InputError, MemoryLimitError
from dasrel.io.readers.source import allocated
from dasrel.kernels.checks import copy_transposed
from dasrel.names import EXPORTS, is_similarity
from dasrel.store.array_matrix import ArrayMatrix
from dasrel.store.layout import unchanged
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.store.tile_files import StoreLike, location
from dasrel.util import Array, limits, parallel, progress
from dasrel.util.files import disk_errors, replacing, replacing_folder
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
            task = task_memory(self.given, BAND_COPIES[self.format])
            needed = limits.threads_that_fit(task, self.memory, "export") * task
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

    def tile(self, i: int, j: int) -> Array:
        """Return tile (i, j), its checksum verified."""
        files: Any = self.matrix.files
        stored: Array = files.read(i, j, verify=True) if isinstance(self.matrix, Matrix) else files.read_checked(i, j)
        if self.relation is None:
            return stored
        rows, columns = self.matrix.layout.span(i), self.matrix.layout.span(j)
        seen = np.empty_like(stored)
        height = max(1, BAND_BYTES // (8 * stored.shape[1]))
        for k in range(0, len(stored), height):
            band = slice(rows.start + k, min(rows.start + k + height, rows.stop))
            seen[k : k + height] = self.relation.block(stored[k : k + height], band, columns)
        return seen

    def rows(self, start: int, stop: int) -> Array:
        """Return these rows of the full matrix."""
        stored = self.matrix.rows_at(np.arange(start, stop))
        if self.relation is None:
            return stored
        seen = self.relation.block(stored, slice(start, stop), slice(0, self.matrix.n_objects))
        return seen.astype(stored.dtype)

    @property
    def tile_memory(self) -> int:
        """Bytes of memory that `tile` takes."""
        if self.relation is None:
            return self.matrix.files.read_memory
        bands = 6 * min(BAND_BYTES, 8 * self.matrix.tile**2) + (
            32 * self.matrix.n_objects if self.relation.terms else 0
        )
        return self.matrix.files.read_memory + self.matrix.layout.tile_bytes + bands


def _is_zarr_array(folder: Path) -> bool:
    try:
        return bool(load_json(folder / "zarr.json")["node_type"] == "array")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _npy(given: Numbers, temporary: Path, memory: int | str) -> None:
    n = given.matrix.n_objects
    square = _new_npy(temporary, (n, n), given.matrix.dtype)
    _each_tile(given, _ToSquare(given, square), memory)
    square.flush()


def _condensed(given: Numbers, temporary: Path, memory: int | str) -> None:
    n = given.matrix.n_objects
    vector = _new_npy(temporary, (n * (n - 1) // 2,), given.matrix.dtype)
    _each_tile(given, _ToVector(given, vector), memory)
    vector.flush()


def _zarr(given: Numbers, temporary: Path, memory: int | str) -> None:
    import zarr

    n, side = given.matrix.n_objects, given.matrix.tile
    attributes: dict[str, Any] = {"kind": given.kind}
    if given.kind == "squared-distance":
        attributes["numbers"] = "squared dissimilarities"
    array = zarr.create_array(
        str(temporary), shape=(n, n), chunks=(side, side), dtype=given.matrix.dtype, zarr_format=3, compressors=None,
        fill_value=float("nan"), dimension_names=("object", "other_object"), attributes=attributes,
    )  # fmt: skip
    _each_tile(given, _ToZarr(given, array), memory, copies=BAND_COPIES["zarr"])


def _each_tile(given: Numbers, function: Any, memory: int | str, copies: int = 0) -> None:
    parallel.run(
        function,
        given.matrix.layout.tiles(),
        label="export",
        bytes_each=given.matrix.layout.tile_bytes,
        task_memory=task_memory(given, copies),
        memory=memory,
        scan=True,
        local=True,
    )


def task_memory(given: Numbers, copies: int) -> int:
    """Return the bytes that the task of one tile takes."""
    return given.tile_memory + copies * given.matrix.layout.tile_bytes + SMALL


@dataclass
class _ToSquare:
    given: Numbers
    square: Array

    def __call__(self, place: tuple[int, int]) -> None:
        i, j = place
        tile = self.given.tile(i, j)
        rows, columns = self.given.matrix.layout.span(i), self.given.matrix.layout.span(j)
        self.square[rows, columns] = tile
        if i != j:
            copy_transposed(tile, self.square[columns, rows])


@dataclass
class _ToVector:
    given: Numbers
    vector: Array

    def __call__(self, place: tuple[int, int]) -> None:
        tile = self.given.tile(*place)
        n = self.given.matrix.n_objects
        rows, columns = (self.given.matrix.layout.span(k) for k in place)
        for k, r in enumerate(range(rows.start, rows.stop)):
            first = max(columns.start, r + 1)
            before = r * n - r * (r + 1) // 2 - r - 1  # the pair (r, c) is at `before + c`
            self.vector[before + first : before + columns.stop] = tile[k, first - columns.start :]


@dataclass
class _ToZarr:
    given: Numbers
    array: Any

    def __call__(self, place: tuple[int, int]) -> None:
        i, j = place
        tile = self.given.tile(i, j)
        rows, columns = self.given.matrix.layout.span(i), self.given.matrix.layout.span(j)
        self.array[rows, columns] = tile
        if i != j:
            self.array[columns, rows] = tile.T


def _new_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Create a .npy file and map it for writing behind its header; its disk space is allocated."""
    with open(path, "xb") as file:
        described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, described)
    return allocated(path, dtype, shape, keep=True)


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
        step.add(bytes=rows.nbytes)


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
