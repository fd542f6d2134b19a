"""HDF5: a square or condensed dataset, such as unifrac's `matrix` with its `order`; MATLAB's 7.3 too.

The library returns a fill value, mostly 0, for what a file does not hold: a lost chunk, a part that was never written,
a virtual dataset whose file is gone. As a distance that would mean equal objects. Here such values are missing (NaN),
so that `Policy.missing` decides, or an error where the library cannot tell them from others.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import HOLES, reader_errors
from dasrel.io.readers.flat import check_numbers
from dasrel.io.readers.source import (
    ArraySource,
    Opened,
    as_text,
    choose,
    is_matrix,
    mapped_source,
    provenance_of,
    regular_chunks,
    sequential_vector,
)
from dasrel.kernels.condensed import square_side
from dasrel.util import Array
from dasrel.util.text import count_text, path_text, shown


def open_hdf5(path: Path, reading: Reading, kind: str) -> Opened:
    """Open a square or 1-D dataset: unifrac's `matrix` with its `order`, the only one, or the one named."""
    import h5py

    with reader_errors(path, "HDF5"), h5py.File(path, "r") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if is_matrix(item) else None)
        usual = next((dataset for dataset in ("matrix", "matrix:0") if dataset in file), None)
        if reading.dataset is None and usual is not None:
            if usual not in names:  # another dataset, such as `order`, would be taken for the matrix
                raise InputError(f"{path_text(path)}, dataset {usual}, is no square or condensed array of numbers")
            name = usual
        else:
            name = choose(names, reading.dataset, str(path))
        what = f"{path_text(path)}, dataset {shown(name)},"
        ids = _order(file["order"], what) if "order" in file and name.startswith("matrix") else None
        return opened_dataset(path, file[name], kind, ids)


def opened_dataset(path: Path, data: Any, kind: str, ids: list[str] | None = None, *, fortran: bool = False) -> Opened:
    """Return the source of a dataset of an open file; with `fortran` its first axis is the matrix's columns.

    A matrix with a side of 1 is a vector, as MATLAB has them.
    """
    name, shape = data.name.lstrip("/"), data.shape
    what = f"{path_text(path)}, dataset {shown(name)},"
    check_numbers(data.dtype, what)
    if fortran and 1 in shape:
        shape = (math.prod(shape),)
    n = square_side(shape, what)
    whole = _is_whole(data, what)
    offset = data.id.get_offset()
    if data.chunks is None and offset is not None and data.external is None:
        return mapped_source(path, data.dtype, offset, shape, fortran, provenance_of(path), kind, ids)
    dtype = np.dtype(data.dtype) if whole else np.result_type(data.dtype, np.float32)
    array = _Dataset(str(path), name, dtype, whole, fortran, len(shape) == 1 < len(data.shape))
    chunks = regular_chunks(data.chunks or data.shape, data.shape, what)
    if len(shape) == 1:
        return sequential_vector(array, max(chunks, key=sum), provenance_of(path), kind, ids)
    if fortran:
        chunks = chunks[::-1]
    return ArraySource(array, n, provenance_of(path), ids, chunks=(chunks[0], chunks[1]), holes=array.holes)


def _order(item: Any, what: str) -> list[str]:
    """Return the names of a dataset of text."""
    shape = getattr(item, "shape", None)
    if shape is None or len(shape) != 1:
        form = "a group" if hasattr(item, "keys") else "empty" if shape is None else f"of shape {shape}"
        raise InputError(
            f"{what} has no usable names: order is {form}", remedy="it must be a list of one name per object"
        )
    _check_lengths(item, what)
    return [as_text(x) for x in item[:]]


def _check_lengths(item: Any, what: str) -> None:
    """Raise if texts claim more bytes than the file has: the HDF5 library would allocate them before it finds out.

    A text of variable length is stored as its length and where it is, 16 bytes; compressed ones are not checked.
    """
    offset = item.id.get_offset()
    if item.dtype.kind != "O" or offset is None:
        return
    size = os.path.getsize(item.file.filename)
    with open(item.file.filename, "rb") as file:
        file.seek(offset)
        rows = np.frombuffer(file.read(16 * min(item.shape[0], size // 16)), dtype="<u4").reshape(-1, 4)
    if int(rows[:, 0].sum(dtype=np.uint64)) > size:
        raise InputError(
            f"{what} has no usable names: order claims more bytes than the file has", remedy="is it damaged?"
        )


def _is_whole(data: Any, what: str) -> bool:
    """Return whether every chunk of a dataset is in the file; raise if it has no values, or its files are not there."""
    if data.is_virtual:
        _check_virtual(data, what)
        return True
    if data.external is not None:
        _check_external(data, what)
        return True
    if data.size and not data.id.get_storage_size():
        raise InputError(f"{what} was declared but never written: it has no values", remedy="write it again")
    if data.chunks is None:
        return True
    expected = math.prod(-(-size // side) for size, side in zip(data.shape, data.chunks, strict=True))
    return bool(data.id.get_num_chunks() >= expected)


def _check_virtual(data: Any, what: str) -> None:
    """Raise if a virtual dataset has parts that no file provides: HDF5 would return a fill value for them."""
    import h5py

    covered = 0
    for source in data.virtual_sources():
        covered += source.vspace.get_select_npoints()
        own = Path(data.file.filename).parent
        places = [Path(os.environ.get("HDF5_VDS_PREFIX", ""), source.file_name), own / source.file_name]
        if source.file_name == ".":
            places = [Path(data.file.filename)]
        place = next((place for place in places if place.is_file()), None)
        if place is None:
            raise InputError(
                f"{what} is virtual, and the file {path_text(source.file_name)} that holds its values is not there",
                remedy="put it back beside it",
            )
        with reader_errors(place, "HDF5"), h5py.File(place, "r") as file:
            if source.dset_name not in file:
                raise InputError(
                    f"{what} is virtual, and {path_text(place)} has no dataset {shown(source.dset_name)} for its values"
                )
            if not _is_whole(file[source.dset_name], f"{path_text(place)}, dataset {shown(source.dset_name)},"):
                raise InputError(f"{path_text(place)}, dataset {shown(source.dset_name)}, has absent chunks")
    if covered < data.size:
        raise InputError(
            f"{what} is virtual, and its files provide {covered:,} of {count_text(data.size, 'value')}",
            remedy="write it as a plain dataset",
        )


def _check_external(data: Any, what: str) -> None:
    """Raise if the files of an external dataset are too short: HDF5 would return zeros for the rest."""
    import h5py

    available = 0
    for name, offset, size in data.external:
        place = Path(data.file.filename).parent / name
        try:
            there = max(0, os.stat(place if place.is_file() else name).st_size - offset)
        except OSError as error:
            detail = f"{path_text(name)}: {error.strerror}"
            raise InputError(f"{what} has its values in another file, which cannot be read: {detail}") from None
        available += there if size == h5py.h5f.UNLIMITED else min(there, size)
    needed = data.size * data.dtype.itemsize
    if available < needed:
        raise InputError(
            f"{what} has its values in other files, which have {count_text(available, 'byte')} of {needed:,}:"
            " they are truncated",
            remedy="copy them again",
        )


@dataclass
class _Dataset:
    """A chunked HDF5 dataset, opened once in each process that reads it. Values of absent chunks are NaN."""

    holes: ClassVar[str] = HOLES

    path: str
    name: str
    dtype: np.dtype[Any]
    whole: bool
    """Whether all chunks are there."""
    fortran: bool = False
    """Whether rows and columns are exchanged."""
    flat: bool = False
    """Whether it is a vector with a second axis of length 1."""
    _open: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "path": os.path.abspath(self.path)}

    def __getitem__(self, place: Any) -> Array:
        import h5py

        with reader_errors(self.path, "HDF5"):
            if self._open is None:
                self._open = h5py.File(self.path, "r")[self.name]
            if self.flat:
                place = (place, 0) if self._open.shape[0] > 1 else (0, place)
            elif self.fortran:
                place = place[::-1]
            values = np.asarray(self._open[place])
            if not self.whole:
                values = self._with_holes(values, place if isinstance(place, tuple) else (place,))
            return values.T if self.fortran else values

    def _with_holes(self, values: Array, place: tuple[Any, ...]) -> Array:
        """Return the values with NaN where a chunk is absent."""
        data = self._open
        spans = [range(*where.indices(size)) if isinstance(where, slice) else range(where, where + 1)
                 for where, size in zip(place, data.shape, strict=True)]  # fmt: skip
        starts = [range(span.start - span.start % side, span.stop, side)
                  for span, side in zip(spans, data.chunks, strict=True)]  # fmt: skip
        result = values.astype(self.dtype, copy=False)
        shaped = result.reshape([len(span) for span in spans])
        for corner in np.ndindex(*(len(first) for first in starts)):
            at = tuple(first[k] for first, k in zip(starts, corner, strict=True))
            if data.id.get_chunk_info_by_coord(at).byte_offset is None:
                shaped[tuple(slice(max(0, a - span.start), a + side - span.start)
                             for a, span, side in zip(at, spans, data.chunks, strict=True))] = np.nan  # fmt: skip
        return result
