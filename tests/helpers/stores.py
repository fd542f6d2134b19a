"""Stores made of arrays, and what stores and results hold, to the last bit."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr

import dasrel
from dasrel.kernels.checks import TileStatistics
from dasrel.store.audit import FACTS, audit_store
from dasrel.store.matrix import joined_names, sealed
from dasrel.store.tile_files import checked_ids, checksum_text
from dasrel.store.writer import Writer, begin_store, check_new_store, new_layout, new_manifest


def create_store(
    store: Any,
    *,
    n_objects: int,
    kind: str,
    ids: Any = None,
    policy: dasrel.Policy | None = None,
    writing: dasrel.Writing | None = None,
    provenance: dict[str, Any] | None = None,
) -> Writer:
    """Begin a store, or resume an unfinished one, as imports do."""
    policy, writing = policy or dasrel.Policy(), writing or dasrel.Writing()
    state = check_new_store(store, kind, policy, writing)
    names = checked_ids(ids, n_objects)
    manifest = new_manifest(new_layout(n_objects, writing), kind, policy, writing, provenance or {})
    return begin_store(store, state, manifest, names, writing)


def stored(path: Any, values: Any, kind: str = "distance", ids: Any = None, **writing: Any) -> dasrel.Matrix:
    """Import an array into a new store."""
    reading = dasrel.Reading(ids=ids)
    return dasrel.import_matrix(values, path, kind=kind, reading=reading, writing=dasrel.Writing(**writing))


def whole(matrix: dasrel.Matrix) -> Any:
    """All values as one array."""
    return matrix.to_dask().compute(scheduler="threads")


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def tiles(store: Path) -> dict[str, bytes]:
    """Every tile file of a store, by its place."""
    found = files(store / "values" / "c")
    assert found
    return found


def facts(store: Any) -> dict[str, Any]:
    """What an audit says of the values."""
    audit = audit_store(store)
    return {name: audit[name] for name in (*FACTS, "n_objects", "tiles", "kind", "dtype", "state")}


def bits(value: Any) -> Any:
    """Everything in a result, to the last bit, but for the seconds."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype == object else (value.dtype.str, value.shape, value.tobytes())
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if "seconds" not in f.name]
        return {name: bits(getattr(value, name)) for name in fields if name not in ("relation", "given")}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def without_seconds(value: Any) -> Any:
    """The same value without what was timed, at any depth."""
    if isinstance(value, dict):
        return {name: without_seconds(part) for name, part in value.items() if "seconds" not in name}
    return [without_seconds(part) for part in value] if isinstance(value, list) else value


def result_files(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a folder of results holds, but for seconds and its own name."""
    output = json.loads((path / "result.json").read_text())
    output = without_seconds({name: value for name, value in output.items() if name != "out"})
    found = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "result.json"}
    tables = {"runs.csv", "labels.csv", "medoids.csv", "validity.csv"}
    assert {*tables, "memberships.npy", "model.npz", "partition.png"} == set(found)
    return output, found


def resealed(store: Path) -> Path:
    """Make the checksums of a local store those of what is there, so that only the values show what is wrong."""
    group: Any = zarr.open_group(store, mode="r+")
    manifest = dict(group.attrs["dasrel"])
    checksums = np.asarray(group["checksums"][:])
    for file in (store / "values" / "c").glob("*/*"):
        checksums[int(file.parent.name), int(file.name)] = google_crc32c.value(file.read_bytes()[:-4])
    group["checksums"][:] = checksums
    kept = {
        **manifest["checksums"],
        "tiles": checksum_text(checksums),
        "ids": checksum_text(joined_names(group["ids"][:])),
    }
    if "diagonal" in group:
        kept["diagonal"] = checksum_text(np.asarray(group["diagonal"][:]))
    group.attrs["dasrel"] = sealed({**manifest, "checksums": kept})
    return store


def marks(store: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every stored tile."""
    folder = store / "values" / "c"
    found = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


def assert_alike(grown: Path, whole: Path, *, rounded: bool = False) -> None:
    """Assert that a store that has grown is like one that was written at once.

    Where values were rounded for the store, the digits that are lost cannot be in a grown tile's sum of the source.
    """
    assert tiles(grown) == tiles(whole)
    assert facts(grown) == facts(whole)
    first, second = dasrel.open_matrix(grown), dasrel.open_matrix(whole)
    columns = [
        k for k, name in enumerate(TileStatistics.__dataclass_fields__) if not rounded or name != "source_checksum"
    ]
    np.testing.assert_array_equal(first.records()[..., columns], second.records()[..., columns])
    assert list(first.ids) == list(second.ids)
    np.testing.assert_array_equal(np.asarray(first.diagonal, object), np.asarray(second.diagonal, object))
    np.testing.assert_array_equal(first.rows(first.ids), second.rows(second.ids))
    assert audit_store(grown, verify=True)["verified"]["bad"] == []
    # Another Zarr reader sees the same array.
    np.testing.assert_array_equal(
        zarr.open_group(grown, mode="r")["values"][:],  # type: ignore[index]
        zarr.open_group(whole, mode="r")["values"][:],  # type: ignore[index]
    )
