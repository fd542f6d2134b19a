"""Zarr arrays of either format version, in a folder, behind a URL, or open in Python.

Zarr returns a fill value, mostly 0, for a chunk that is not there. As a distance that would mean equal objects; here
such values are missing (NaN), so that `Policy.missing` decides.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.flat import check_numbers
from dasrel.io.readers.source import ArraySource, Opened, choose, is_matrix, regular_chunks, sequential_vector
from dasrel.io.readers.zarr_values import ZarrValues
from dasrel.kernels.condensed import square_side
from dasrel.util.text import is_url, path_text, shown

ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")


def open_zarr(source: str | Path | Any, reading: Reading, kind: str) -> Opened:
    """Open a Zarr array of either format version: a path, a URL, a `zarr.Array`, or a group with one square array."""
    import zarr

    node: Any = source
    if isinstance(source, str | os.PathLike):
        if os.path.isdir(source) and not any(os.path.isfile(os.path.join(source, name)) for name in ZARR_FILES):
            raise InputError(
                f"{path_text(source)} is a folder, and not one of a Zarr array or group",
                remedy="give a file, or the folder that has zarr.json or .zarray in it",
            )
        try:
            # Tasks get it with its path, and workers have folders of their own.
            node = zarr.open(os.fspath(source) if is_url(source) else os.path.abspath(source), mode="r")
        except Exception as error:
            raise InputError(f"{path_text(source)} cannot be opened as Zarr ({shown(error, limit=200)})") from None
    if isinstance(node, zarr.Group):
        if "dasrel" in node.attrs:
            raise InputError(
                f"{path_text(source)} is a dasrel store already",
                remedy="`dasrel export STORE OUT --format zarr` gives an array",
            )
        names = [name for name, item in node.arrays() if is_matrix(item)]
        node = node[choose(names, reading.dataset, str(source))]
    elif reading.dataset is not None:
        raise InputError(f"{path_text(source)} is one Zarr array, not a group", remedy="leave {Reading.dataset} out")
    where = path_text(source) if isinstance(source, str | os.PathLike) else "the Zarr array"
    provenance = {"source": str(source) if isinstance(source, str | os.PathLike) else f"Zarr array {node.store_path}"}
    check_numbers(node.dtype, where)
    n = square_side(node.shape, where)
    chunks = regular_chunks(node.shards or node.chunks, node.shape, where)
    array = ZarrValues(node, where)
    if node.ndim == 1:
        return sequential_vector(array, chunks[0], provenance, kind)
    shared = isinstance(source, str | os.PathLike)
    return ArraySource(array, n, provenance, chunks=(chunks[0], chunks[1]), local=not shared, holes=array.holes)
