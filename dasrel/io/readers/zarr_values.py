"""The values of a Zarr array, of which absent chunks are missing values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dasrel.io.readers.errors import HOLES, reader_errors
from dasrel.store.manifest import check_codecs
from dasrel.util import Array


class ZarrValues:
    """The values of a Zarr array, NaN where it has no chunk.

    Zarr itself says which values are not there: the array is opened with NaN as its fill value. Integers have no NaN;
    they are read with a fill value that is rare, and once more with another one where it is met.
    """

    holes = HOLES

    def __init__(self, array: Any, where: str) -> None:
        check_codecs(array, where)
        self.where = where
        self.shape, self.chunks = array.shape, array.shards or array.chunks
        dtype = np.dtype(array.dtype)
        self.dtype = np.result_type(dtype, np.float16)
        bounds = (np.nan,) if dtype.kind == "f" else (True, False) if dtype.kind == "b" else _bounds(dtype)
        self._arrays = [_filled(array, bound) for bound in bounds]

    def __getitem__(self, place: Any) -> Array:
        with reader_errors(self.where, "Zarr"):
            values = np.asarray(self._arrays[0][place])
            if values.dtype.kind == "f":
                return values
            absent = values == self._arrays[0].fill_value
            if absent.any():
                absent &= np.asarray(self._arrays[1][place]) == self._arrays[1].fill_value
            result = values.astype(self.dtype)
            result[absent] = np.nan
            return result


def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)


def _filled(array: Any, value: Any) -> Any:
    """Return an array with another fill value."""
    import zarr

    inner = array.async_array
    metadata = replace(array.metadata, fill_value=np.dtype(array.dtype).type(value))
    return zarr.Array(type(inner)(metadata=metadata, store_path=inner.store_path))
