"""What is known of the tiles of a store that is being written, and whether they are there as they were written.

Storage can lose what it has taken, or keep a part of it. Before a store is complete, the sizes of a listing, and the
MD5 that a listing of an object store has, are compared with what was written; a tile that differs is written again.

Zarr asks for each chunk by itself, and for those that are not there too: 100,000 small chunks take it a quarter of an
hour. Here a folder is listed, of a URL a prefix, and only what is there is read, a bounded number of objects at a time.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from dasrel.errors import StoreError
from dasrel.kernels.checks import PROGRESS_LENGTH, RECORD_LENGTH
from dasrel.store.layout import IMPORT_AGAIN, TileIndex
from dasrel.store.tile_files import (
    StoreLike,
    TileFiles,
    is_in_memory,
    local_path,
    location,
    storing,
    zarr_store,
)
from dasrel.util import Array, parallel
from dasrel.util.files import crc32c, md5_number
from dasrel.util.reading import open_regular
from dasrel.util.text import count_text, some

ROUNDS = 4
"""Times that what was lost is written before the storage is given up."""
CHECKSUM, SIZE, MD5 = range(RECORD_LENGTH, PROGRESS_LENGTH)  # columns of `progress` behind the record
AT_ONCE = 64
"""Requests in flight."""


@dataclass(frozen=True)
class Listed:
    """What a listing says of an object."""

    size: int
    md5: str | None = None
    """Hexadecimal digits that the storage gives as the MD5 of the content; None where it gives none. Storage that
    encrypts may give other digits in the same form."""


def listed(store: StoreLike, prefix: str) -> dict[str, Listed]:
    """Return the objects of a store whose keys begin with `prefix/`, by their keys.

    Cost: one listing (of an object store a request for each thousand); of a local folder a stat for each file.
    """
    local = local_path(store)
    if local is not None:
        return _local(local, prefix)
    remote = _file_system(store)
    if remote is None:
        return dict(_waited(lambda: _listed_by_zarr(store, prefix)))
    system, root = remote
    system.invalidate_cache()  # other processes have written since it was last listed
    with suppress(FileNotFoundError):
        return {
            _key(name, root): Listed(int(about["size"] or 0), _md5(about))
            for name, about in system.find(f"{root}/{prefix}", detail=True).items()
        }
    return {}


def contents(store: StoreLike, keys: Iterable[str]) -> dict[str, bytes]:
    """Return the bytes of small objects by their keys, without those that are not there.

    Cost: a request for each, `AT_ONCE` at a time.
    """
    keys, local = list(keys), local_path(store)
    if local is not None:
        return {key: content for key in keys if (content := _file_content(f"{local}/{key}")) is not None}
    remote = _file_system(store)
    if remote is None:
        return dict(_waited(lambda: _read_by_zarr(store, keys)))
    system, root = remote
    known: dict[str, bytes] = {}
    paths = [f"{root}/{key}" for key in keys]
    for start in range(0, len(keys), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        several = paths[part]
        answers = system.cat_ranges(several, [None] * len(several), [None] * len(several), on_error="return")
        for key, answer in zip(keys[part], answers, strict=True):
            if isinstance(answer, FileNotFoundError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            known[key] = bytes(answer)
    return known


def whole_contents(store: StoreLike, sizes: Mapping[str, int | None]) -> dict[str, bytes]:
    """Return the bytes of small objects that must be there with these sizes, or be JSON; raise if one is cut."""
    found = contents(store, sizes)
    for key, size in sizes.items():
        content = found.get(key, b"")
        try:
            whole = len(content) == size if size is not None else bool(json.loads(content))
        except ValueError:
            whole = False
        if not whole:
            raise StoreError(f"{location(store)} cannot be read: {key} is missing or cut", remedy="run again")
    return found


def read_progress(files: TileFiles, first: int = 0) -> Array:
    """Return what `progress` has of each tile (i, j) with j >= `first`: (n_blocks, n_blocks - first, numbers).

    NaN where a tile is not written. Cost: a listing, and a read of some hundred bytes for each written tile.
    """
    side, size = files.layout.n_blocks, 8 * PROGRESS_LENGTH
    rows = np.full((side, side - first, PROGRESS_LENGTH), np.nan)
    keys = {}
    for key, about in listed(files.store, "progress/c").items():
        with suppress(ValueError):  # a temporary file
            i, j, _ = (int(part) for part in key.split("/")[2:])
            if i < side and first <= j < side and about.size == size:
                keys[key] = i, j - first
    for key, content in contents(files.store, keys).items():
        if len(content) == size:
            rows[keys[key]] = np.frombuffer(content, "<f8")
    return rows


def lost_tiles(
    files: TileFiles, tiles: Sequence[TileIndex], rows: Array, *, replaced: Collection[TileIndex] = ()
) -> list[TileIndex]:
    """Return those of the written tiles that are not there as they were written, in order.

    Parameters
    ----------
    tiles, rows
        Tiles that `progress` has, and what it has of each, in the same order.
    replaced
        Tiles that took the place of others of the same size. Where the storage tells no MD5, they are read.

    Cost: a listing; a read of each tile whose listed MD5 is not the one that was written.
    """
    if not len(tiles) or is_in_memory(files.store):
        return []
    entries = listed(files.store, "values/c")
    there = [entries.get(f"values/c/{i}/{j}", Listed(-1)) for i, j in tiles]
    lost = {tile for tile, about, size in zip(tiles, there, rows[:, SIZE], strict=True) if about.size != size}
    lost |= _without_diagonal(files, [tile for tile in tiles if tile[0] == tile[1]])
    if local_path(files.store) is None:
        lost |= _others(files, tiles, rows, there, lost, replaced)
    return [tile for tile in tiles if tile in lost]


def check_tiles_there(matrix: Any) -> None:
    """Raise if a tile of an open store is not there, or is cut. Cost: a listing."""
    files = matrix.files
    if is_in_memory(files.store):
        return
    with storing(files.store, "read"):
        entries = listed(files.store, "values/c")
    size = None if matrix.manifest["compress"] else files.layout.tile_bytes + 4
    keys = [f"values/c/{i}/{j}" for i, j in matrix.layout.tiles()]
    bad = [key for key in keys if key not in entries or (size is not None and entries[key].size != size)]
    if bad:
        raise StoreError(
            f"{location(files.store)} has {count_text(len(bad), 'tile')} missing or cut: {some(bad)}",
            remedy=IMPORT_AGAIN,
        )


def _without_diagonal(files: TileFiles, tiles: Sequence[TileIndex]) -> set[TileIndex]:
    """Return tiles whose part of the array `diagonal`, where there is one, lacks values."""
    if not tiles or not listed(files.store, "diagonal"):
        return set()
    keys = {f"diagonal/c/{i}": (i, j) for i, j in tiles}
    sound = set()
    for key, content in contents(files.store, keys).items():
        i, j = keys[key]
        if len(content) == 8 * files.layout.tile:
            values = np.frombuffer(content, "<f8")[: files.layout.shape(i, j)[0]]
            if np.isfinite(values).all():
                sound.add((i, j))
    return set(tiles) - sound


def _others(
    files: TileFiles,
    tiles: Sequence[TileIndex],
    rows: Array,
    there: Sequence[Listed],
    lost: Collection[TileIndex],
    replaced: Collection[TileIndex],
) -> set[TileIndex]:
    """Return tiles in whose place there is something else of the same size."""
    suspected = []
    same = [
        about.md5 is not None and md5_number(digits=about.md5) == head
        for about, head in zip(there, rows[:, MD5], strict=True)
    ]
    # If none of many is the same, the storage encrypts: its digits are not those of the content.
    for k, tile in enumerate(tiles):
        other = any(same) and there[k].md5 is not None and not same[k]
        if tile not in lost and (other or (tile in replaced and not same[k])):
            suspected.append((tile, int(rows[k, CHECKSUM])))

    memory, local = files.read_memory, files.local_array is not None
    differs = partial(_differs, files)
    answers = parallel.run(differs, suspected, label="verify", task_memory=memory, memory=4 * memory, local=local)
    return {tile for (tile, _), wrong in zip(suspected, answers, strict=True) if wrong}


def _differs(files: TileFiles, item: tuple[TileIndex, int]) -> bool:
    """Return whether a tile is not the one that was written, given its checksum."""
    (i, j), checksum = item
    try:
        return crc32c(files.padded(files.read(i, j))) != checksum
    except StoreError:
        return True


def write_until_kept(
    store: StoreLike, missing: Callable[[], list[TileIndex]], write: Callable[[list[TileIndex]], None]
) -> None:
    """Write the missing tiles, and again those that the storage loses; raise with their names if it loses some always.

    `missing` lists the tiles that are not there as they were written.
    """
    for _ in range(ROUNDS):
        if not (tiles := missing()):
            return
        write(tiles)
    if tiles := missing():
        raise StoreError(
            f"{location(store)} does not keep what is written: {count_text(len(tiles), 'tile')} written"
            f" {ROUNDS} times and not there, or cut: {some(tiles)}",
            remedy="what is there stays: when the storage is sound, run again with {resume=True}",
        )


def put_until_kept(store: StoreLike, objects: dict[str, bytes]) -> None:
    """Put small objects, those again that the storage loses or cuts; raise with their names if it does so always."""
    left = dict(objects)
    for _ in range(ROUNDS):
        for key, content in left.items():
            _put(store, key, content)
        there = contents(store, left)
        left = {key: content for key, content in left.items() if there.get(key) != content}
        if not left:
            return
    raise StoreError(
        f"{location(store)} does not keep what is written: {some(left)}, {ROUNDS} times",
        remedy="what is there stays: when the storage is sound, run again with {resume=True}",
    )


def _put(store: StoreLike, key: str, content: bytes) -> None:
    remote = _file_system(store)
    if remote is not None:
        system, root = remote
        system.pipe_file(f"{root}/{key}", content)
        return
    from zarr.buffer import default_buffer_prototype

    value = default_buffer_prototype().buffer.from_bytes(content)
    _waited(partial(cast(Any, store).set, key, value))


def remove(store: StoreLike, keys: Iterable[str]) -> None:
    """Remove objects of storage that is not local, those that are there."""
    remote = _file_system(store)
    for key in keys:
        if remote is None:
            _waited(partial(cast(Any, store).delete, key))
            continue
        system, root = remote
        with suppress(FileNotFoundError):
            system.rm_file(f"{root}/{key}")


def _local(root: Path, prefix: str) -> dict[str, Listed]:
    listing: dict[str, Listed] = {}
    folders = [(os.path.join(root, prefix), prefix)]
    while folders:
        folder, name = folders.pop()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                key = f"{name}/{entry.name}"
                with suppress(FileNotFoundError):  # it has just been renamed or removed
                    if entry.is_dir():
                        folders.append((entry.path, key))
                    else:
                        listing[key] = Listed(entry.stat().st_size)
    return listing


def _file_content(path: str) -> bytes | None:
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _file_system(store: StoreLike) -> tuple[Any, str] | None:
    """Return the fsspec file system of a URL or of a store object, and the path there; None for other objects."""
    if isinstance(store, str):
        import fsspec  # type: ignore[import-untyped]

        system, root = fsspec.core.url_to_fs(zarr_store(store))
        return system, root.rstrip("/")
    from zarr.storage import FsspecStore

    if not isinstance(store, FsspecStore):
        return None
    system = getattr(store.fs, "sync_fs", store.fs)
    if system.asynchronous:  # Zarr waits for it on a loop of its own
        system = type(system)(*system.storage_args, **{**system.storage_options, "asynchronous": False})
    return system, store.path.rstrip("/")


def _key(name: str, root: str) -> str:
    return name.lstrip("/").removeprefix(root.lstrip("/")).lstrip("/")


def _md5(about: dict[str, Any]) -> str | None:
    """Return the MD5 of an object as S3 (ETag), Google (md5Hash) or Azure (content_md5) list it."""
    etag = str(about.get("ETag") or "").strip('"').lower()
    if len(etag) == 32 and set(etag) <= set("0123456789abcdef"):
        return etag  # of an object in several parts it has a dash
    packed = about.get("md5Hash") or (about.get("content_settings") or {}).get("content_md5")
    if isinstance(packed, str):
        packed = base64.b64decode(packed)
    return bytes(packed).hex() if packed else None


async def _listed_by_zarr(store: Any, prefix: str) -> dict[str, Listed]:
    keys = [key async for key in store.list_prefix(f"{prefix}/")]
    sizes = await _bounded(store.getsize, keys)
    return {key: Listed(size) for key, size in zip(keys, sizes, strict=True)}


async def _read_by_zarr(store: Any, keys: list[str]) -> dict[str, bytes]:
    from zarr.buffer import default_buffer_prototype

    prototype = default_buffer_prototype()
    answers = await _bounded(lambda key: store.get(key, prototype), keys)
    return {key: answer.to_bytes() for key, answer in zip(keys, answers, strict=True) if answer is not None}


async def _bounded(ask: Callable[[str], Any], keys: list[str]) -> list[Any]:
    import asyncio  # takes part of the time in which an audit of a local store is done

    answers: list[Any] = []
    for start in range(0, len(keys), AT_ONCE):
        answers += await asyncio.gather(*map(ask, keys[start : start + AT_ONCE]))
    return answers


def _waited(coroutine: Callable[[], Any]) -> Any:
    """Run a coroutine to its end on a thread of its own: the caller may be in a loop, as in a notebook."""

    import asyncio

    async def run() -> Any:
        return await coroutine()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()
