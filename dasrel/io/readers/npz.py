"""NumPy's `.npz` archives: one array, square or condensed, or a SciPy sparse matrix."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import reader_errors
from dasrel.io.readers.flat import FlatFile, archive_header, check_archive, check_numbers, npy_header, npy_layout
from dasrel.io.readers.records import spool_entries, triplet_memory
from dasrel.io.readers.source import (
    Opened,
    SequentialSource,
    Source,
    as_text,
    choose,
    copied_source,
    is_matrix,
    mapped_source,
    provenance_of,
)
from dasrel.kernels.condensed import square_side
from dasrel.util import Array, limits
from dasrel.util.files import replacing
from dasrel.util.text import path_text, shown

COPY = 8 << 20
"""Bytes that are unpacked at a time."""
PIECE = 1 << 20
"""Entries of a sparse matrix that become one run, at least."""


def open_npz(path: Path, reading: Reading, kind: str) -> Opened:
    """Open one array of an `.npz`, or a SciPy sparse matrix."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{path_text(path)} is no whole .npz file ({error})", remedy="copy it again") from None
    with archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if reading.dataset is None and {"format", "shape", "data"} <= set(names):
            return _open_sparse(path, kind)
        name = reading.dataset
        if name is None or name not in names:
            name = choose(_matrices(archive, path, names), reading.dataset, str(path))
        return _open_array(path, archive, name, kind)


def _open_array(path: Path, archive: zipfile.ZipFile, name: str, kind: str) -> Opened:
    """Open one array of an archive: mapped where it is stored as it is; else it must be unpacked first."""
    shape, fortran, dtype, offset = archive_header(archive, path, name)
    provenance = provenance_of(path)
    if offset is not None:
        return mapped_source(path, dtype, offset, shape, fortran, provenance, kind)
    pieces = partial(_unpacked, path, name)
    return copied_source(pieces, shape, dtype, provenance, kind, "is compressed", fortran=fortran)


def _open_sparse(path: Path, kind: str) -> SequentialSource:
    """Open a sparse matrix as SciPy saves it; its entries are sorted on disk first."""
    check_archive(path)
    with np.load(path, allow_pickle=False) as loaded:
        named, sizes = (loaded[name] for name in ("format", "shape"))
    if named.size != 1 or sizes.shape != (2,) or sizes.dtype.kind not in "iu":
        raise InputError(f"{path_text(path)} is no sparse matrix of SciPy: its format or shape is damaged")
    form, shape = as_text(named.item()), (int(sizes[0]), int(sizes[1]))
    if form not in ("csr", "csc", "coo"):
        raise InputError(
            f"{path_text(path)} is a sparse matrix in {shown(form)} form", remedy="save it as csr, csc or coo"
        )
    n = square_side(shape, path_text(path))
    names = ("row", "col", "data") if form == "coo" else ("indptr", "indices", "data")

    def spool(folder: Path) -> Source:
        with zipfile.ZipFile(path) as archive:
            if any(len(archive_header(archive, path, name)[0]) != 1 for name in names):
                raise _damaged_sparse(path, "its arrays are no vectors")
        first, second, values = (_values(path, name, folder).values() for name in names)
        check_numbers(values.dtype, path_text(path))
        _check_sparse(path, form, n, first, second, values)
        step = min(max(PIECE, values.size // 1024), 4 * PIECE)

        def pieces() -> Iterator[tuple[Array, Array, Array]]:
            for k in range(0, values.size, step):
                part = slice(k, k + step)
                places = np.arange(k, min(k + step, values.size))
                rows = first[part] if form == "coo" else np.searchsorted(first, places, side="right") - 1
                columns = second[part]
                yield (columns, rows, values[part]) if form == "csc" else (rows, columns, values[part])

        return spool_entries(pieces(), n, provenance_of(path), kind, folder, upper=False)

    return SequentialSource(n, True, provenance_of(path), "is sparse", spool, None, triplet_memory)


def _check_sparse(path: Path, form: str, n: int, first: Array, second: Array, values: Array) -> None:
    """Raise if the arrays of a sparse matrix do not belong together; indices are compared with n later."""
    wrong = ""
    if second.size != values.size or (form == "coo" and first.size != values.size):
        wrong = "its arrays have different sizes"
    elif any(array.dtype.kind not in "iu" for array in (first, second)):
        wrong = "its indices are not whole numbers"
    elif form != "coo" and (
        first.size != n + 1 or first[0] != 0 or first[-1] != values.size or bool((first[1:] < first[:-1]).any())
    ):
        wrong = "indptr does not divide its entries into rows"
    if wrong:
        raise _damaged_sparse(path, wrong)


def _damaged_sparse(path: Path, wrong: str) -> InputError:
    return InputError(f"{path_text(path)} is a damaged sparse matrix: {wrong}", remedy="save it again")


def _values(path: Path, name: str, folder: Path) -> FlatFile:
    """Return the numbers of one array of an archive: in place, or unpacked to the folder if they are compressed."""
    with zipfile.ZipFile(path) as archive:
        shape, _, dtype, offset = archive_header(archive, path, name)
        count, place = math.prod(shape), archive.namelist().index(f"{name}.npy")
    if offset is not None:
        return FlatFile(str(path), dtype, offset, count)
    unpacked = folder / f"member{place}"
    if not unpacked.exists():
        with replacing(unpacked) as temporary, open(temporary, "xb") as out:
            for piece in _unpacked(path, name):
                limits.check()
                out.write(piece)
    return FlatFile(str(unpacked), dtype, 0, count)


def _unpacked(path: Path, name: str) -> Iterator[bytes]:
    """Yield the numbers of a compressed array, some MB at a time."""
    what = f"{path}, array {name}"
    with reader_errors(what), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        npy_header(member, what)  # type: ignore[arg-type]
        while piece := member.read(COPY):
            yield piece


def _matrices(archive: zipfile.ZipFile, path: Path, names: list[str]) -> list[str]:
    """Return the arrays of an archive that may be the matrix: the only one, or those of a suitable shape.

    A damaged one raises: it may be the matrix, and another would be taken for it.
    """
    if len(names) == 1:
        return names
    suitable = []
    for name in names:
        what = f"{path}, array {name}"
        with reader_errors(what), archive.open(f"{name}.npy") as member:
            shape, _, dtype = npy_layout(member, what)  # type: ignore[arg-type]
            if is_matrix(SimpleNamespace(shape=shape, dtype=dtype)):
                suitable.append(name)
    return suitable
