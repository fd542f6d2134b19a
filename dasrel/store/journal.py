"""Changes of an object store that can be undone: small objects are put until they are there, and copied before.

A file is replaced by a rename, which happens wholly or not at all. An object that is put may be cut, and then neither
its old content is there nor the new one. So before an import or an append puts anything but new tiles, it keeps copies
of what it replaces, or of how it began, as a database does in its journal:

    values/before/KEY    a copy of the object KEY
    values/before.json   keys and checksums of the copies, written last: without it nothing has been replaced

The command that is run again with `resume` puts the copies back if the store is not complete, and goes on from there.
Local stores, and those in memory, are changed as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import zarr

from dasrel.errors import StoreError
from dasrel.store.matrix import sealed
from dasrel.store.tile_files import StoreLike, is_in_memory, local_path, location
from dasrel.store.written import contents, put_until_kept, remove
from dasrel.util.files import crc32c, process_lives

INDEX, COPIES = "values/before.json", "values/before/"
Objects = dict[str, bytes]


def is_needed(store: StoreLike) -> bool:
    """Tell whether a store is one of objects that may be cut or lost."""
    return local_path(store) is None and not is_in_memory(store)


def change(store: StoreLike, group: Any, make: Callable[[Any], None], keys: Iterable[str] = ()) -> None:
    """Call `make` with the group of a store that it changes. Tiles are not for here.

    Of an object store it gets a group in memory that has the objects `keys`; what has changed then is put until it is
    there. Cost: a request for each object, and one more to see it.
    """
    if not is_needed(store):
        make(group)
        return
    before = contents(store, ["zarr.json", *keys])
    put_until_kept(store, changed(before, make))


def changed(before: Objects, make: Callable[[Any], None]) -> Objects:
    """Return the objects that `make` adds to a group, or replaces; the group's own is the last."""
    from zarr.buffer import default_buffer_prototype

    buffer = default_buffer_prototype().buffer
    held: dict[str, Any] = {key: buffer.from_bytes(content) for key, content in before.items()}
    memory = zarr.storage.MemoryStore(held)
    make(zarr.open_group(memory, mode="r+", zarr_format=3, use_consolidated=False) if before else memory)
    after = {key: value.to_bytes() for key, value in held.items()}
    return {key: after[key] for key in sorted(after, reverse=True) if after[key] != before.get(key)}


def begin(store: StoreLike, objects: Objects, keys: Iterable[str] = ()) -> None:
    """Keep copies of these objects, and of the tiles that the store has at `keys`, one after the other."""
    remove(store, [INDEX])
    sums = {key: crc32c(content) for key, content in objects.items()}
    put_until_kept(store, {COPIES + key: content for key, content in objects.items()})
    for key in keys:
        content = contents(store, [key]).get(key, b"")
        if int.from_bytes(content[-4:], "little") != crc32c(content[:-4]):  # a copy of half a tile would replace it
            raise StoreError(f"{location(store)} cannot be read: {key} is cut", remedy="run again")
        sums[key] = crc32c(content)
        put_until_kept(store, {COPIES + key: content})
    put_until_kept(store, {INDEX: json.dumps({"copies": sums, "checksum": _sum(sums)}).encode()})


def copies(store: StoreLike) -> dict[str, int] | None:
    """Return the keys of all copies and their checksums; None if there is no whole journal. Cost: one request."""
    try:
        about = json.loads(contents(store, [INDEX])[INDEX])
        sums = {str(key): int(value) for key, value in about["copies"].items()}
        return sums if about["checksum"] == _sum(sums) else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def roll_back(store: StoreLike, keys: Iterable[str] | None = None) -> bool:
    """Put the copies back, or those of some `keys`. Return whether there are any, and what was begun is not complete.

    Cost: reads and writes each of the copies, one after the other.
    """
    sums = copies(store)
    if sums is None or (keys is None and _is_complete(store)):
        return False
    for key in sums if keys is None else [key for key in keys if key in sums]:
        content = contents(store, [COPIES + key]).get(COPIES + key, b"")
        if crc32c(content) == sums[key] and contents(store, [key]).get(key) != content:
            put_until_kept(store, {key: content})
    if keys is None and _attributes(contents(store, ["progress/zarr.json"]).get("progress/zarr.json", b"{}")) is None:
        remove(store, ["progress/zarr.json"])
    return True


def end(store: StoreLike) -> None:
    """Remove the journal: what was begun is complete."""
    if is_needed(store) and (sums := copies(store)) is not None:
        remove(store, [*(COPIES + key for key in sums), INDEX])


def recover(store: StoreLike, *, take_over: bool) -> None:
    """Put the copies of an append back that is not complete, if nobody is at work on it, or by `take_over`."""
    if not is_needed(store) or copies(store) is None:
        return
    about = _attributes(contents(store, ["progress/zarr.json"]).get("progress/zarr.json", b""))
    owner = (about or {}).get("owner")
    if take_over or not isinstance(owner, dict) or process_lives(owner) is False:
        roll_back(store)


def _is_complete(store: StoreLike) -> bool:
    """Tell whether the store has a whole manifest that is not the one from before."""
    now, before = (_attributes(content) for content in _both(store))
    manifest = (now or {}).get("dasrel")
    if not isinstance(manifest, dict) or manifest.get("state") != "complete" or now == before:
        return False
    return manifest == sealed(manifest)


def _both(store: StoreLike) -> tuple[bytes, bytes]:
    found = contents(store, ["zarr.json", f"{COPIES}zarr.json"])
    return found.get("zarr.json", b""), found.get(f"{COPIES}zarr.json", b"")


def _attributes(content: bytes) -> dict[str, Any] | None:
    """Return the attributes in the metadata of a group or an array; None if these are damaged."""
    try:
        attributes = json.loads(content).get("attributes", {})
    except (ValueError, AttributeError):
        return None
    return attributes if isinstance(attributes, dict) else None


def _sum(sums: dict[str, int]) -> int:
    return int(crc32c(json.dumps(sums, sort_keys=True).encode()))
