"""Write what a store has beside its tiles: its arrays, the records of its tiles, its manifest."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from dasrel.errors import StoreError
from dasrel.kernels.checks import PROGRESS_LENGTH, RECORD_LENGTH, TileStatistics
from dasrel.names import is_similarity
from dasrel.store import journal
from dasrel.store.matrix import joined_names
from dasrel.store.tile_files import StoreLike, checksum_text, location, open_group, zarr_store
from dasrel.store.written import CHECKSUM, contents, put_until_kept
from dasrel.util import Array, Names


def create_group(place: StoreLike, manifest: dict[str, Any], names: Array, *, overwrite: bool = False) -> Any:
    """Make the arrays of a new store, without tiles, and return its group."""
    exists = StoreError(f"{location(place)} exists and is not a dasrel store", remedy="choose another name")
    if journal.is_needed(place):
        if overwrite:
            clear(place, manifest)
        elif contents(place, ("zarr.json", ".zgroup", ".zarray")):
            raise exists
        objects = journal.changed({}, lambda memory: _make_group(memory, manifest, names))
        journal.begin(place, objects)
        whole = {"zarr.json": objects.pop("zarr.json")}
        put_until_kept(place, objects)
        put_until_kept(place, whole)  # where it is, all others are
        return open_group(place, "r+")
    try:
        return _make_group(zarr_store(place), manifest, names, overwrite=overwrite)
    except (zarr.errors.ContainsGroupError, zarr.errors.ContainsArrayError):
        raise exists from None


def _make_group(place: Any, manifest: dict[str, Any], names: Array, *, overwrite: bool = False) -> Any:
    n, side = manifest["n_objects"], manifest["tile"]
    n_blocks = math.ceil(n / side)
    filters: tuple[Any, ...] = (Crc32cCodec(),)
    if manifest["compress"] == "lz4":
        filters = (
            BloscCodec(cname="lz4", shuffle="shuffle", typesize=np.dtype(manifest["dtype"]).itemsize),
            Crc32cCodec(),
        )
    begun = {"dasrel": {**manifest, "state": "begun"}}
    group = zarr.create_group(place, zarr_format=3, overwrite=overwrite, attributes=begun)
    group.create_array(
        "values", shape=(n, n), chunks=(side, side), dtype=manifest["dtype"], fill_value=float("nan"),
        compressors=filters, dimension_names=("object", "other_object"), config={"write_empty_chunks": True},
    )  # fmt: skip
    ids = group.create_array("ids", shape=(n,), chunks=(n,), dtype=str, dimension_names=("object",))
    ids[:] = names
    if is_similarity(manifest["kind"]):
        group.create_array(
            "diagonal",
            shape=(n,),
            chunks=(side,),
            dtype="float64",
            fill_value=float("nan"),
            dimension_names=("object",),
            compressors=None,
        )
    group.create_array(
        "progress", shape=(n_blocks, n_blocks, PROGRESS_LENGTH), chunks=(1, 1, PROGRESS_LENGTH),
        dtype="float64", fill_value=float("nan"), compressors=None,
    )  # fmt: skip
    group.attrs["dasrel"] = manifest
    return group


def clear(place: StoreLike, manifest: dict[str, Any]) -> None:
    """Delete all objects of a store that is not local; what is left says that it may be overwritten."""
    attributes = {"dasrel": {**manifest, "state": "abandoned"}}

    def make(place: Any) -> None:
        zarr.create_group(place, zarr_format=3, overwrite=True, attributes=attributes)

    make(zarr_store(place))
    if journal.is_needed(place):
        put_until_kept(place, journal.changed({}, make))


def split_progress(rows: Array) -> tuple[Array, Array]:
    """Return the records of the tiles and their checksums; -1 where there is no tile."""
    checksums = rows[..., CHECKSUM]
    return rows[..., :RECORD_LENGTH].copy(), np.where(np.isnan(checksums), -1, checksums).astype(np.int64)


def write_records(
    store: StoreLike, group: Any, suffix: str, rows: Array, checksums: Array, ids: Names
) -> dict[str, Any]:
    """Write the arrays `records` and `checksums` with this suffix; return the checksums of a store for its manifest.

    Of storage that is not local they are read again.
    """
    columns = {"columns": [field.name for field in fields(TileStatistics)]}
    recorded = {"array": f"checksums{suffix}", "tiles": checksum_text(checksums), "records": checksum_text(rows)}
    recorded["ids"] = checksum_text(joined_names(ids))

    def make(group: Any) -> None:
        kept = group.create_array(
            f"records{suffix}", shape=rows.shape, chunks=rows.shape, dtype="float64", overwrite=True, attributes=columns
        )
        kept[:] = rows
        kept = group.create_array(
            f"checksums{suffix}", shape=checksums.shape, chunks=checksums.shape, dtype="int64", fill_value=-1,
            compressors=None, overwrite=True, config={"write_empty_chunks": True},
        )  # fmt: skip
        kept[:] = checksums

    journal.change(store, group, make)
    if "diagonal" in group:
        recorded["diagonal"] = checksum_text(np.asarray(group["diagonal"][: len(ids)]))
    return recorded


def write_manifest(store: StoreLike, group: Any, manifest: dict[str, Any]) -> None:
    """Write the manifest of a store, and see that it is there."""
    journal.change(store, group, lambda group: group.attrs.update({"dasrel": manifest}))


def remove_progress(store: StoreLike, group: Any, manifest: dict[str, Any]) -> None:
    """Remove the records of the tiles being written, unless they are those of an append that is not finished.

    All of them are removed, also where a process was killed that had removed no more than their metadata.
    """
    append: Any = group["progress"].attrs.get("append") if "progress" in group else None
    if not isinstance(append, dict) or append.get("objects_before") != manifest["n_objects"]:
        del group["progress"]
        journal.end(store)
