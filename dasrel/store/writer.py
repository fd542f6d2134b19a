"""Create, resume, finish and abandon a store; write a share of it in a job array.

While a local store is being written, a lock beside it keeps other processes away, and disk errors become one line.

Several processes can write one store, each a share of the tiles. Every process gives the same arguments and
`Writing(part=(k, n))`, k from 1 to n. The first one begins the store; then each writes the tiles of its share that are
missing. Parts need not know of each other: they may run at the same time or one after the other, on any machine that
sees the store, be killed, and be run again. When all parts are done, the same call with `Writing(resume=True)` and no
part writes what may still be missing and completes the store: the same bytes as if one process had written it.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.errors import InputError, StoreError
from dasrel.kernels.checks import TileStatistics, audit_of
from dasrel.names import KINDS, explain_kinds
from dasrel.store import journal
from dasrel.store.layout import FORMAT_VERSION, Layout
from dasrel.store.matrix import Matrix, is_store, open_matrix, read_manifest, sealed
from dasrel.store.metadata import clear, create_group, remove_progress, split_progress, write_manifest, write_records
from dasrel.store.options import Policy, Writing
from dasrel.store.tile_files import (
    StoreLike,
    TileFiles,
    absolute_location,
    check_files,
    default_tile,
    is_mapped,
    local_path,
    location,
    storing,
)
from dasrel.store.written import lost_tiles, read_progress, write_until_kept
from dasrel.util import Array, progress
from dasrel.util.files import (
    PARTIAL,
    crc32c,
    disk_errors,
    exclusive_lock,
    move_into_place,
    remove_leftovers,
    remove_temporary_files,
    replacing_folder,
)
from dasrel.util.text import count_text, redacted, shown, some


class Writer:
    """A store being written. Get one with `begin_store`; `finish` makes it a complete store."""

    def __init__(
        self,
        target: StoreLike,
        store: StoreLike,
        manifest: dict[str, Any],
        group: Any,
        *,
        resumed: bool = False,
        part: tuple[int, int] | None = None,
    ) -> None:
        self.target = target
        self.resumed = resumed
        self.part = part
        self.store = store
        self.manifest = manifest
        self.layout = Layout(manifest["n_objects"], manifest["tile"], np.dtype(manifest["dtype"]))
        check_files(store, "ids")
        self.files = TileFiles(absolute_location(store), self.layout, is_mapped(group))
        self.ids = np.asarray(group["ids"][:])
        self._group = group
        self._replaced: set[tuple[int, int]] = set()
        """Tiles that this process has written in the place of others."""

    @property
    def resume_hint(self) -> str | None:
        """How to resume it after a stop; None for a store that replaces another, which is started again."""
        if self.store is not self.target:
            return None
        return "run the same again" + ("" if self.part else " with {resume=True}") + " to continue"

    def missing(self) -> list[tuple[int, int]]:
        """Return the tiles that are not there as they were written, in order; of a part only its own.

        Cost: listings of the tiles and of `progress`, and a read of some hundred bytes for each finished tile.
        """
        if self.manifest["audit"] is not None:
            return []
        return self._look()[1]

    def _look(self) -> tuple[Array, list[tuple[int, int]]]:
        """Return what `progress` has of each tile, and the tiles that are missing."""
        rows, tiles = read_progress(self.files), self.layout.tiles()
        if self.part is not None:
            k, n = self.part
            tiles = tiles[len(tiles) * (k - 1) // n : len(tiles) * k // n] if k else []
        where = np.array(tiles, dtype=np.intp).reshape(-1, 2)
        known = rows[where[:, 0], where[:, 1]]
        finished = ~np.isnan(known[:, 0])
        written = [tile for tile, there in zip(tiles, finished, strict=True) if there]
        lost = set(lost_tiles(self.files, written, known[finished], replaced=self._replaced))
        self._replaced |= lost
        return rows, [tile for tile, there in zip(tiles, finished, strict=True) if not there or tile in lost]

    def write_missing(self, write: Callable[[list[tuple[int, int]]], None]) -> None:
        """Write the missing tiles by a function that is given them, again if the storage loses some."""
        write_until_kept(self.store, self.missing, write)

    def finish(self, *, checksum: str | None = None) -> Matrix:
        """Check that every tile is there, fill pairs that wait for the maximum, write the audit, and open the store.

        `checksum` is that of the source; without it, the checksums of the tiles as they were read stand in.
        """
        if self.part is not None:
            raise InputError(
                "a part does not finish a store", remedy="run the same with {resume=True} and no {Writing.part}"
            )
        if self.manifest["audit"] is None:  # else it was killed below, in the last steps
            self._audit(checksum)
        sweep(self.store)
        if self.manifest["state"] == "complete":  # it was killed in the last steps, or has nothing to do
            progress.current().found_complete(location(self.target))
        else:
            provenance = {key: value for key, value in self.manifest["provenance"].items() if key != "modified"}
            self.manifest = sealed({**self.manifest, "provenance": provenance, "state": "complete"})
            write_manifest(self.store, self._group, self.manifest)
        remove_progress(self.store, self._group, self.manifest)
        return self._into_place()

    def _audit(self, checksum: str | None) -> None:
        """Write the records and the audit. With the audit in the manifest, no tile is missing any more."""
        rows, checksums = self._finished()
        records = [TileStatistics.from_row(rows[i, j]) for i, j in self.layout.tiles()]
        if self.manifest["input"]["missing"] == "max" and any(r.missing for r in records):
            records = self._fill_with_maximum(records)
            rows, checksums = self._finished()
        total = TileStatistics()
        for record in records:
            total = total.merged(record)
        if checksum is None:
            parts = b"".join(int(r.source_checksum).to_bytes(4, "little") for r in records)
            checksum = f"crc32c of tiles: {crc32c(parts):08x}"
        self.manifest = {
            **self.manifest,
            "audit": audit_of(total, self.ids),
            "checksums": write_records(self.store, self._group, "", rows, checksums, self.ids),
            "provenance": {**self.manifest["provenance"], "checksum": checksum},
        }

    def _finished(self) -> tuple[Array, Array]:
        """Return the records of all tiles and their checksums; raise if tiles are missing."""
        rows, missing = self._look()
        if missing:
            raise StoreError(
                f"{count_text(len(missing), 'tile is', 'tiles are')} not written",
                where=some(missing),
                remedy="run again with {resume=True}",
            )
        return split_progress(rows)

    def abandon(self) -> None:
        """Remove what this writer began, because its source cannot be used. A resumed store is left as it was."""
        if self.resumed:
            return
        local = local_path(self.store)
        if local is not None:
            # Renamed first: a task that is still running on a cluster must not write into what is being removed.
            doomed = local.with_name(f".{local.name}.abandoned")
            shutil.rmtree(doomed, ignore_errors=True)
            local.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        else:
            clear(self.store, self.manifest)

    def _fill_with_maximum(self, records: list[TileStatistics]) -> list[TileStatistics]:
        largest = max((r.maximum for r in records if r.pairs), default=-np.inf)
        if not np.isfinite(largest):
            raise InputError(
                "all values are missing: there is no maximum to fill them with", remedy="say {Policy.missing=VALUE}"
            )
        filled = []
        for (i, j), record in zip(self.layout.tiles(), records, strict=True):
            expected = self.layout.shape(i, j)
            pairs = expected[0] * expected[1] if i != j else expected[0] * (expected[0] - 1) // 2
            if record.pairs < pairs:
                tile = self.files.read(i, j).copy() if record.pairs else np.full(expected, np.nan, self.layout.dtype)
                tile[np.isnan(tile)] = largest
                if i == j and self.manifest["kind"] in ("distance", "squared-distance"):
                    np.fill_diagonal(tile, 0)
                # Counted from the record, not from the tile: a run that was killed may have filled the tile already.
                added = pairs - record.pairs
                record.pairs = pairs
                record.total += added * float(self.layout.dtype.type(largest))
                record.maximum = max(record.maximum, largest)
                record.minimum = min(record.minimum, largest)
                record.zeros += added if largest == 0 else 0
                self.files.write(i, j, tile, record)
                self._replaced.add((i, j))
            filled.append(record)
        return filled

    def _into_place(self) -> Matrix:
        if self.store is not self.target:
            target, written = local_path(self.target), local_path(self.store)
            assert target is not None
            assert written is not None
            move_into_place(written, target)
        if (target := local_path(self.target)) is not None:
            remove_leftovers(absolute_location(target))
        return open_matrix(self.target)


def begin_store(
    store: StoreLike, state: str | None, manifest: dict[str, Any], names: Array, writing: Writing
) -> Writer:
    """Create, resume or replace a store whose arguments are checked; `state` is that of `check_new_store`."""
    exists = state is not None
    if state == "abandoned":
        return Writer(store, store, manifest, create_group(store, manifest, names, overwrite=True))
    if exists and writing.resume:
        try:
            return _resumed(store, manifest, names)
        except StoreError:
            if not writing.force:  # a process that was to replace the store was killed before it had
                raise
    place = store
    if exists:
        target = local_path(store)
        if target is None:
            raise StoreError(
                f"{location(store)} exists and a remote store cannot be replaced by a rename", remedy="delete it first"
            )
        if writing.time_limit is not None:
            raise InputError(
                f"{location(store)} exists, and a store that replaces it cannot be resumed after a time limit",
                remedy="remove the old one first, or leave {time_limit} out",
            )
        place = target.with_name(f".{target.name}.new")  # one name, so that what a killed process left is removed
        for left in (place, target.with_name(f".{target.name}.old")):
            shutil.rmtree(left, ignore_errors=True)
    return Writer(store, place, manifest, create_group(place, manifest, names))


def _resumed(store: StoreLike, manifest: dict[str, Any], names: Array) -> Writer:
    """Continue a store that was begun with the same arguments; one that is complete has no missing tiles."""
    try:
        begun, group = read_manifest(store, "r+")
    except StoreError:
        if not journal.is_needed(store) or not journal.roll_back(store):
            raise
        begun, group = read_manifest(store, "r+")
    check_same(begun, manifest, store)
    if begun["state"] == "begun":  # killed before its arrays were made: there is nothing to keep
        return Writer(store, store, manifest, create_group(store, manifest, names, overwrite=True))
    sweep(store, age=600)  # what is younger may belong to a part that is still being written
    if not np.array_equal(np.asarray(group["ids"][: len(names)]), names):  # an unfinished append may have added some
        raise StoreError(f"{location(store)} was begun with other ids", remedy="say {force=True} to begin anew")
    return Writer(store, store, begun, group, resumed=True)


def check_new_store(store: StoreLike, kind: str, policy: Policy, writing: Writing) -> str | None:
    """Return the state of an existing store, or None; raise if it may not be touched, or an argument is not valid.

    Reads no more than the manifest: call it before any work.
    """
    check_kind(kind, policy)
    if writing.dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be float32 or float64, not {writing.dtype}")
    if writing.compress not in (None, "lz4"):
        raise InputError(f"compress must be lz4 or nothing, not {writing.compress!r}")
    if writing.tile is not None and writing.tile < 1:
        raise InputError(f"tile must be at least 1, not {writing.tile}")
    return check_target(store, writing)


def new_layout(n_objects: int, writing: Writing) -> Layout:
    """Return the tile grid of a new store."""
    dtype = np.dtype(writing.dtype)
    return Layout(n_objects, default_tile(n_objects, dtype) if writing.tile is None else writing.tile, dtype)


def check_target(store: StoreLike, writing: Writing) -> str | None:
    """Return the state of an existing store, or None; raise if it may not be overwritten.

    Cost: reads the manifest only. Call it before any work.
    """
    try:
        if not is_store(store):
            if not _is_vacant(store):
                raise StoreError(f"{location(store)} exists and is not a dasrel store", remedy="choose another name")
            return None
        state = str(read_manifest(store)[0]["state"])
    except StoreError:
        if not journal.is_needed(store) or journal.copies(store) is None:
            raise
        if not writing.resume:
            raise StoreError(f"{location(store)} is unfinished and damaged", remedy="say {resume=True}") from None
        return "writing"  # its manifest was cut when it was put, and there is a copy
    if state != "abandoned" and not (writing.resume or writing.force or writing.part):
        remedy = "say {force=True} to replace it"
        if state != "complete":
            remedy += ", or {resume=True} to continue it"
        raise StoreError(f"{location(store)} exists (state {state})", remedy=remedy)
    return state


def check_kind(kind: str, policy: Policy) -> None:
    """Refuse an unknown kind, and repairs that have no meaning for it."""
    if kind not in KINDS:
        raise InputError(f"kind must be one of the four ({explain_kinds()}), not {kind!r}")
    policy.check_kind(kind)


def new_manifest(
    layout: Layout, kind: str, policy: Policy, writing: Writing, provenance: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest of a store that is about to be written."""
    return {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "n_objects": layout.n_objects,
        "tile": layout.tile,
        "dtype": writing.dtype,
        "compress": writing.compress,
        "input": policy.record(),
        "provenance": redacted({**provenance, "dasrel": __version__}),
        "state": "writing",
        "audit": None,
    }


def check_same(begun: dict[str, Any], wanted: dict[str, Any], store: StoreLike) -> None:
    """Refuse to resume a store that was begun in another way.

    One that is complete keeps no time of its source: the source must not be younger than the store. Another version of
    dasrel may have begun it.
    """
    requested = {name: (begun[name], wanted[name]) for name in ("kind", "n_objects", "tile", "dtype", "compress")}
    complete = begun["state"] == "complete"
    late = ("checksum", "dasrel", "modified") if complete else ("checksum", "dasrel")
    for part in ("input", "provenance"):
        names = [*begun[part], *(name for name in wanted[part] if name not in begun[part])]
        requested |= {name: (begun[part].get(name), wanted[part].get(name)) for name in names if name not in late}
    for name, (first, now) in requested.items():
        if first != now:
            raise StoreError(
                f"{location(store)} was begun with {name} {shown(first)}, now it is {shown(now)}",
                remedy="use the same again, or say {force=True} to begin anew",
            )
    local, modified = local_path(store), wanted["provenance"].get("modified", 0)
    if complete and local is not None and modified > (local / "zarr.json").stat().st_mtime_ns:
        raise StoreError(
            f"{location(store)} is complete, and its source was modified since:"
            f" {shown(wanted['provenance'].get('source'), limit=400)}",
            remedy="say {force=True} to import it anew",
        )


def sweep(store: StoreLike, *, age: float = 0) -> None:
    """Remove temporary files that a killed process, such as a worker, wrote in a store `age` seconds ago or earlier."""
    local = local_path(store)
    if local is not None:
        remove_temporary_files(local, age=age)


def _is_vacant(store: StoreLike) -> bool:
    """Return whether nothing exists there yet, as far as this machine can see."""
    local = local_path(store)
    if local is None or not local.exists():
        return True
    # A process killed at its very first step leaves a temporary file.
    return local.is_dir() and all(entry.name.endswith(PARTIAL) for entry in local.iterdir())


@contextlib.contextmanager
def claimed(store: StoreLike, writing: Writing) -> Iterator[None]:
    """Keep other processes from beginning, resuming, replacing or growing a local store; parts share it.

    An object store has no lock: only one process at a time may write one. Disk errors become one line.
    """
    local = local_path(store)
    if local is None:
        with storing(store):
            yield
        return
    place = Path(absolute_location(local))
    where = shown(place, limit=400)
    if not place.name:
        raise StoreError(f"{where} cannot be a store", remedy="give the name of a folder to be made")
    if writing.force and not writing.resume and place.exists():
        full, retry = f"the old {where} is as it was", "free some space and run again"
    else:
        full, retry = f"{where} is unfinished and nothing was lost", "free some space and run again with {resume=True}"
    with disk_errors(place, full=full, retry=retry), contextlib.nullcontext() if writing.part else store_lock(place):
        yield


def store_lock(place: Path) -> contextlib.AbstractContextManager[bool]:
    """Hold the lock file beside a local store. Yields whether the file system enforces the lock.

    A lock that was left on another host is taken over: what is begun there is only written on by `resume` or `force`.
    """
    return exclusive_lock(
        place.with_name(f".{place.name}.lock"),
        lambda owner: f"{shown(place, limit=400)} is being written by {owner}",
        advice="wait for its end, or choose another place",
        take_over=True,
    )


VISIBLE = 10.0
"""Seconds within which a store that another machine has begun must be seen on a shared disk."""


@dataclass(frozen=True)
class PartDone:
    """The tiles that a part has written, and those that are missing."""

    part: tuple[int, int]
    written: int
    """Tiles of this part that were missing before; existing ones are not written again."""
    missing: int
    """Tiles of the complete store that were missing at that moment."""
    complete: bool
    """Whether the store is complete already."""


def join_store(store: StoreLike, manifest: dict[str, Any], names: Array, part: tuple[int, int]) -> Writer:
    """Begin a store to write one part of it, or join the processes that have begun it.

    A local store appears at once, with all its arrays, by one rename: of several that come first, one wins. An object
    store has no such rename, so there part 0 of n, which has no tiles, must have begun it before the others start.
    """
    local = local_path(store)
    state = read_manifest(store)[0]["state"] if is_store(store) else None
    if local is None and state in (None, "begun", "abandoned"):
        if part[0] != 0:
            raise StoreError(
                f"{location(store)} is not begun, and several processes cannot begin a remote store at once",
                remedy=f"run part 0 of {part[1]} ({{Writing.part}}) first, which only begins it",
            )
        create_group(store, manifest, names, overwrite=state is not None)
    elif local is not None and state is None:
        try:
            with replacing_folder(local, make=False, check=_another_was_first) as temporary:
                create_group(temporary, manifest, names)
        except _BegunError:
            _wait_for(store)
    begun, group = read_manifest(store, "r+")
    if begun["state"] == "begun":
        raise StoreError(
            f"{location(store)} was begun by a process that was killed at once", remedy="remove it and run again"
        )
    check_same(begun, manifest, store)
    if not np.array_equal(np.asarray(group["ids"][:]), names):
        raise StoreError(f"{location(store)} was begun with other ids", remedy="remove it to begin anew")
    return Writer(store, store, begun, group, resumed=True, part=part)


def write_part(writer: Writer, write: Callable[[], None]) -> PartDone:
    """Write the missing tiles of a part, and return what the store holds then."""
    assert writer.part is not None
    before = _missing(writer)
    try:
        write()
    except (FileNotFoundError, KeyError):
        # The store may have been made complete meanwhile: then all tiles are there, and their progress is not.
        if read_manifest(writer.store)[0]["audit"] is None:
            raise
    written = before - _missing(writer)
    now, group = read_manifest(writer.store)
    whole = Writer(writer.store, writer.store, now, group)
    return PartDone(writer.part, written, _missing(whole), now["state"] == "complete")


def _missing(writer: Writer) -> int:
    try:
        return len(writer.missing())
    except KeyError:  # no progress any more: it is being made complete
        return 0


class _BegunError(Exception):
    """Another process has begun the same store meanwhile."""


def _another_was_first() -> None:
    raise _BegunError


def _wait_for(store: StoreLike) -> None:
    """Wait until this machine, too, sees the store."""
    end = time.monotonic() + VISIBLE
    while not is_store(store):
        if time.monotonic() > end:
            raise StoreError(
                f"{location(store)} is in the way: it exists, but there is no store in it", remedy="remove it"
            )
        time.sleep(0.1)
