"""Writing a stored matrix out, whole, in the formats that other programs read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dask.utils import format_bytes, parse_bytes

from dasrel import meter, tasks
from dasrel.arrays import allocated, named
from dasrel.errors import InputError, MemoryLimitError, StoreError, shown, some
from dasrel.intake import BLOCK, Array
from dasrel.store import Matrix, StoreLike, location, open_matrix
from dasrel.writer import full_disk

EXPORTS = {
    "npy": "NumPy array, n x n",
    "condensed": "NumPy array of the n(n-1)/2 pairs in SciPy's order",
    "lsmat": "labelled tab-separated text (scikit-bio, pandas)",
    "phylip": "PHYLIP square distance matrix",
    "zarr": "plain Zarr v3 array, n x n",
}
"""The formats that a store can be written out in, and one line on each."""

TEXT_BYTES = 100
"""Memory that one value takes while it becomes text: the value, its digits twice, and what arrow keeps beside them."""
SMALL = 16 << 20


def export_matrix(
    store: StoreLike | Matrix,
    out: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002
    memory: int | str = "1GiB",
    force: bool = False,
) -> Path:
    """Write the full matrix, both triangles, as one of `EXPORTS`. It is written aside and renamed when it is whole.

    Text holds the shortest digits that read back to the same stored value.

    Parameters
    ----------
    memory
        Anonymous memory that the work may take.
    force
        Replace `out` if it exists.

    Cost: one scan; a file of n^2 values (half of that condensed).
    """
    if format not in EXPORTS:
        raise InputError(f"format must be one of {', '.join(EXPORTS)}, not {shown(format)}")
    if "://" in os.fspath(out):
        raise InputError(f"{named(out)} is a URL; exports are written to local files: copy it there afterwards")
    target = Path(out)
    if (target.exists() or target.is_symlink()) and not force:
        raise InputError(f"{named(target)} exists; say --force to replace it, or choose another name")
    if target.is_dir() and not _is_zarr_array(target):
        raise InputError(f"{named(target)} is a folder, and not an exported Zarr array; choose another name")
    if not target.absolute().parent.is_dir():
        raise InputError(f"there is no folder {named(target.absolute().parent)}; make it first")
    matrix = store if isinstance(store, Matrix) else open_matrix(store)
    if format in ("condensed", "phylip") and matrix.kind in ("similarity", "kernel"):
        raise InputError(
            f"{format} holds distances, and {location(matrix.store)} is a {matrix.kind}; export npy or lsmat"
        )
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    write = {"npy": _npy, "condensed": _condensed, "lsmat": _lsmat, "phylip": _phylip, "zarr": _zarr}[format]
    try:
        write(matrix, aside, memory)
        if target.exists() and (target.is_dir() or aside.is_dir()):  # a folder is not replaced by one rename
            old = target.with_name(f".{target.name}.{os.getpid()}.old")
            target.rename(old)
            aside.rename(target)
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        else:
            os.replace(aside, target)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True) if aside.is_dir() else aside.unlink(missing_ok=True)
        if full_disk(error):
            raise StoreError(
                f"the disk is full: {named(target)} was not written; free some space and try again"
            ) from error
        raise
    return target


def _is_zarr_array(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "zarr.json").read_text(encoding="utf-8"))["node_type"] == "array")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _npy(matrix: Matrix, aside: Path, memory: int | str) -> None:
    n = matrix.n_objects
    square = _new_npy(aside, (n, n), matrix.dtype)
    _each_tile(matrix, _ToSquare(matrix, square), memory)
    square.flush()


def _condensed(matrix: Matrix, aside: Path, memory: int | str) -> None:
    n = matrix.n_objects
    vector = _new_npy(aside, (n * (n - 1) // 2,), matrix.dtype)
    _each_tile(matrix, _ToVector(matrix, vector), memory)
    vector.flush()


def _zarr(matrix: Matrix, aside: Path, memory: int | str) -> None:
    import zarr

    n, side = matrix.n_objects, matrix.tile
    array = zarr.create_array(
        str(aside), shape=(n, n), chunks=(side, side), dtype=matrix.dtype, zarr_format=3, compressors=None,
        fill_value=float("nan"), dimension_names=("object", "other_object"), attributes={"kind": matrix.kind},
    )  # fmt: skip
    _each_tile(matrix, _ToZarr(matrix, array), memory, copies=3)


def _each_tile(matrix: Matrix, function: Any, memory: int | str, copies: int = 0) -> None:
    tile = matrix.layout.tile_bytes
    tasks.run(
        function,
        matrix.layout.tiles(),
        label="export",
        bytes_each=tile,
        task_memory=matrix.files.read_memory + copies * tile + SMALL,
        memory=memory,
        scan=True,
        local=True,
    )


@dataclass
class _ToSquare:
    matrix: Matrix
    square: Array

    def __call__(self, place: tuple[int, int]) -> None:
        i, j = place
        tile = self.matrix.files.read(i, j, verify=True)
        rows, columns = self.matrix.layout.span(i), self.matrix.layout.span(j)
        self.square[rows, columns] = tile
        if i != j:
            turned = self.square[columns, rows]
            for r in range(0, tile.shape[0], BLOCK):  # in parts that stay in the cache
                for c in range(0, tile.shape[1], BLOCK):
                    turned[c : c + BLOCK, r : r + BLOCK] = tile[r : r + BLOCK, c : c + BLOCK].T


@dataclass
class _ToVector:
    matrix: Matrix
    vector: Array

    def __call__(self, place: tuple[int, int]) -> None:
        tile = self.matrix.files.read(*place, verify=True)
        n = self.matrix.n_objects
        rows, columns = (self.matrix.layout.span(k) for k in place)
        for k, r in enumerate(range(rows.start, rows.stop)):
            first = max(columns.start, r + 1)
            before = r * n - r * (r + 1) // 2 - r - 1  # the pair (r, c) stands at `before + c`
            self.vector[before + first : before + columns.stop] = tile[k, first - columns.start :]


@dataclass
class _ToZarr:
    matrix: Matrix
    array: Any

    def __call__(self, place: tuple[int, int]) -> None:
        i, j = place
        tile = self.matrix.files.read(i, j, verify=True)
        rows, columns = self.matrix.layout.span(i), self.matrix.layout.span(j)
        self.array[rows, columns] = tile
        if i != j:
            self.array[columns, rows] = tile.T


def _new_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A new .npy file, mapped for writing behind its header, its space taken from the disk."""
    with open(path, "wb") as file:
        described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, described)
    return allocated(path, dtype, shape, keep=True)


def _lsmat(matrix: Matrix, aside: Path, memory: int | str) -> None:
    names = _plain_names(matrix, "\t\r\n", "tabs or line ends")
    with open(aside, "w", encoding="utf-8", newline="\n") as file:
        file.write("\t" + "\t".join(names) + "\n")
        for k, line in enumerate(_lines(matrix, "\t", memory)):
            file.write(f"{names[k]}\t{line}\n")


def _phylip(matrix: Matrix, aside: Path, memory: int | str) -> None:
    names = _plain_names(matrix, " \t\r\n\v\f", "blanks")
    with open(aside, "w", encoding="utf-8", newline="\n") as file:
        file.write(f"{matrix.n_objects}\n")
        for k, line in enumerate(_lines(matrix, " ", memory)):
            file.write(f"{names[k]} {line}\n")


def _plain_names(matrix: Matrix, forbidden: str, what: str) -> list[str]:
    names = [str(name) for name in matrix.ids]
    bad = [shown(repr(name)) for name in names if any(c in forbidden for c in name)]
    if bad:
        raise InputError(f"ids with {what} cannot be written in this format: {some(bad)}; import with other --ids")
    return names


def _lines(matrix: Matrix, between: str, memory: int | str) -> Iterator[str]:
    """The rows of the full matrix as text, a strip of rows in memory at a time."""
    n, limit = matrix.n_objects, parse_bytes(memory)
    room = limit - matrix.files.read_memory - SMALL
    fitting = room // (n * TEXT_BYTES)
    if fitting < 1:
        needed = n * TEXT_BYTES + matrix.files.read_memory + SMALL
        raise MemoryLimitError(
            f"export needs {format_bytes(needed)} for one row and the limit is {format_bytes(limit)}; raise --memory"
        )
    strip = int(min(fitting, matrix.tile, max(1, (4 << 20) // n)))
    step = meter.current().begin("export", tiles=-(-n // strip), bytes=n * n * matrix.dtype.itemsize, scan=True)
    for start in range(0, n, strip):
        rows = matrix.rows_at(np.arange(start, min(start + strip, n)))
        # Arrow writes the shortest digits that read back to the same float32 or float64.
        digits = pa.array(rows.reshape(-1)).cast(pa.string())
        ends = pa.array(np.arange(len(rows) + 1) * n, type=pa.int32())
        yield from pc.binary_join(pa.ListArray.from_arrays(ends, digits), between).to_pylist()
        step.add(bytes=rows.nbytes)
