"""Matrices in memory: NumPy, SciPy sparse, dask, xarray and Zarr arrays, data frames, and those of scikit-bio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import reader_errors
from dasrel.io.readers.flat import check_numbers
from dasrel.io.readers.records import absent_value
from dasrel.io.readers.source import ArraySource, Opened, TriangleSource, sequential_vector
from dasrel.io.readers.zarr import open_zarr
from dasrel.kernels.condensed import check_condensed, square_side
from dasrel.util import Array, Names
from dasrel.util.labelled import labelled


def open_array(array: Any, reading: Reading, kind: str) -> Opened:
    """Open a NumPy, SciPy sparse, dask, xarray or Zarr array, a data frame, or a matrix of scikit-bio."""
    import zarr
    from scipy.sparse import issparse

    if isinstance(array, zarr.Array | zarr.Group):
        return open_zarr(array, reading, kind)
    name = type(array).__module__.partition(".")[0]
    what, ids = f"the {name} array", None
    named = labelled(array)
    if named is not None:
        array, ids = named.values, named.ids() if reading.ids is None else named.rows
    is_sparse: bool = issparse(array)
    if is_sparse:
        check_numbers(array.dtype, what)
        n = square_side(array.shape, what)
        with reader_errors("the SciPy sparse matrix"):
            if array.format in ("csr", "csc", "bsr"):
                array.check_format(full_check=True)  # SciPy takes any index for valid, and reads beyond its arrays
            rows = array.tocsr(copy=True)
        rows.sum_duplicates()
        provenance = {"source": f"SciPy sparse {array.format} array"}
        return SparseArraySource(rows, n, provenance, absent_value(kind))
    if (
        (name == "numpy" and not isinstance(array, np.ndarray))
        or not hasattr(array, "shape")
        or not hasattr(array, "dtype")
    ):
        raise InputError(
            f"a source of type {type(array).__name__} is not known", remedy="give a path, a URL or an array"
        )
    check_numbers(np.dtype(array.dtype), what)
    n = square_side(array.shape, what)
    provenance = {"source": f"{name} array of {' x '.join(map(str, array.shape))} {array.dtype}"}
    chunks = getattr(array, "chunks", None)
    if len(array.shape) == 1 and isinstance(array, np.ndarray):
        check_condensed(kind, what)
        return TriangleSource(array, n, provenance, ids, local=True)
    if len(array.shape) == 1:
        return sequential_vector(array, chunks[0] if chunks else (array.shape[0],), provenance, kind, ids)
    return ArraySource(array, n, provenance, ids, chunks=chunks, local=True)


@dataclass
class SparseArraySource:
    """A SciPy sparse array in memory, in CSR form without duplicates."""

    array: Any
    n_objects: int
    provenance: dict[str, Any]
    absent: float
    ids: Names | None = None
    mirrored: bool = True
    local: bool = True
    checksum: str | None = None

    def block(self, rows: slice, columns: slice) -> Array:
        """Return the block as a dense array."""
        part = self.array[rows, columns].tocoo()
        result = np.full(part.shape, self.absent, dtype=np.float32 if part.dtype == np.float32 else np.float64)
        result[part.row, part.col] = part.data
        if rows == columns and math.isnan(self.absent):  # an object is at distance 0 from itself
            own = np.diagonal(result)
            np.fill_diagonal(result, np.where(np.isnan(own), 0, own))
        return result

    def block_memory(self, rows: int, columns: int) -> int:
        """Return the size of the dense block and of its entries, at most."""
        return rows * columns * (8 + 16)

    def close(self) -> None:
        """Do nothing: there is no file to close."""
