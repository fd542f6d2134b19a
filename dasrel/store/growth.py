"""Append objects to a store while other processes read it: readers see all of the new objects or none.

Only the manifest in the group's metadata has the number of objects of a store, and it is written once, at the very end,
by one rename (or one put of an object). Until then everything is prepared where readers do not access it:

    ids, values, diagonal   become longer; readers use the part that the manifest describes
    new tiles               are written beside the old ones
    tiles at the edge       have room for more objects: the grown tile takes the old one's place by a rename, and holds
                            the same numbers where the old one had some; a reader's map of the old file stays valid
    progress                the record and checksum of each finished tile, and in its attributes the appended data
                            and the process
    records-N, checksums-N  the records and checksums of all tiles of the grown store

A killed process leaves the old store, and the same append resumes with the missing tiles. A local store is locked
meanwhile, as by an import; where that is not possible the attributes of `progress` name the process at work.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.kernels.checks import BLOCK, EXAMPLES, PROGRESS_LENGTH, RECORD_LENGTH, TileStatistics, audit_of
from dasrel.store import journal
from dasrel.store.layout import Layout
from dasrel.store.matrix import Matrix, open_matrix, read_manifest, sealed
from dasrel.store.metadata import remove_progress, split_progress, write_manifest, write_records
from dasrel.store.tile_files import StoreLike, TileFiles, absolute_location, local_path, location, storing
from dasrel.store.writer import store_lock, sweep
from dasrel.store.written import check_tiles_there, listed, lost_tiles, read_progress, whole_contents, write_until_kept
from dasrel.util import Array, Names, progress
from dasrel.util.files import crc32c, disk_errors, process_lives, remove_leftovers, temporary_path, this_process
from dasrel.util.text import count_text, redacted, shown, some

Tile = tuple[int, int]


class AppendTransaction:
    """A complete store and the objects being appended to it. Get one with `append_transaction`."""

    def __init__(self, old: Matrix, group: Any, names: Array, about: dict[str, Any]) -> None:
        self.old = old
        self.names = names
        self.about: dict[str, Any] = redacted(about)
        """The appended data and its checks: source, size, checksum, policy."""
        self.layout = Layout(old.n_objects + len(names), old.tile, old.dtype)
        self.files = TileFiles(old.files.store, self.layout, old.files.mapped)
        self._group = group
        self._owner = {**this_process(), "token": uuid.uuid4().hex}
        self._before, self._checksums = old.records(), old.checksums()
        self._again: set[Tile] = set()
        """Tiles that were lost, and are written in the place of what is there of them."""

    def tiles(self) -> list[Tile]:
        """List the tiles that this append writes, new and grown, in the order of all work."""
        return [(i, j) for i, j in self.layout.tiles() if j >= self.first]

    @property
    def first(self) -> int:
        """The first strip with new objects."""
        return self.old.n_objects // self.layout.tile

    def is_grown(self, tile: Tile) -> bool:
        """Tell whether the store already has this tile, with fewer objects."""
        return tile[1] < self.old.layout.n_blocks

    def missing(self) -> list[Tile]:
        """List the tiles that are not there as they were written, in order."""
        return self._look()[1]

    def _look(self) -> tuple[Array, list[Tile]]:
        """Return what `progress` has of each tile of this append, in order, and the tiles that are missing."""
        tiles = self.tiles()
        where = np.array(tiles, dtype=np.intp)
        rows = read_progress(self.files, self.first)[where[:, 0], where[:, 1] - self.first]
        finished = ~np.isnan(rows[:, 0])
        written = [tile for tile, there in zip(tiles, finished, strict=True) if there]
        replaced = {tile for tile in written if self.is_grown(tile)}
        lost = set(lost_tiles(self.files, written, rows[finished], replaced=replaced | self._again))
        self._again |= lost
        return rows, [tile for tile, there in zip(tiles, finished, strict=True) if not there or tile in lost]

    def write_missing(self, write: Callable[[list[Tile]], None]) -> None:
        """Write the missing tiles by a function that is given them, again if the storage loses some."""
        again: set[Tile] = set()

        def restored(tiles: list[Tile]) -> None:
            if again and journal.is_needed(self.old.store):  # what was cut has lost the old values, too
                journal.roll_back(self.old.store, [_key(tile) for tile in tiles if tile in again])
            again.update(tile for tile in tiles if self.is_grown(tile))
            write(tiles)

        write_until_kept(self.old.store, self.missing, restored)

    def record_before(self, tile: Tile) -> Array | None:
        """Return the record of a tile that grows."""
        return self._before[tile] if self.is_grown(tile) else None

    def begin(self, *, locked: bool, resume: bool, force: bool) -> bool:
        """Resume an unfinished append of the same objects, or begin one; return whether it was resumed."""
        wanted = {
            "objects_before": self.old.n_objects,
            "objects": self.layout.n_objects,
            "ids": f"crc32c: {crc32c(chr(10).join(map(str, self.names)).encode('utf-8', 'replace')):08x}",
            **self.about,
        }
        progress = self._group["progress"].attrs.asdict() if "progress" in self._group else {}
        begun: Any = progress.get("append")
        # One that was killed after the manifest was written has only left its progress behind.
        finished = not isinstance(begun, dict) or begun.get("objects_before") != self.old.n_objects
        if not finished and not locked:
            self._check_owner(progress.get("owner"), resume or force)
        if not finished and begun != wanted and not force:
            key = next(name for name in {**begun, **wanted} if begun.get(name) != wanted.get(name))
            raise StoreError(
                f"an append to {self._where()} was begun and not finished, with {key} {shown(begun.get(key))};"
                f" now it is {shown(wanted.get(key))}",
                remedy="run that one again, or say {force=True} to drop it",
            )
        resumed = not finished and begun == wanted
        sweep(self.old.store)
        small, grown = self._replaced()
        if journal.is_needed(self.old.store) and not journal.roll_back(self.old.store):
            journal.begin(self.old.store, whole_contents(self.old.store, small), grown)
        if resumed:
            self._own(self._owner)
        else:
            side = self.layout.n_blocks
            if journal.is_needed(self.old.store) and "progress" in self._group:
                del self._group["progress"]  # with its chunks
            journal.change(self.old.store, self._group, lambda group: group.create_array(
                "progress", shape=(side, side, PROGRESS_LENGTH), chunks=(1, 1, PROGRESS_LENGTH),
                dtype="float64", fill_value=float("nan"), compressors=None, overwrite=True,
                attributes={"append": wanted, "owner": self._owner},
            ))  # fmt: skip
        journal.change(self.old.store, self._group, self._lengthen, small)
        return resumed

    def commit(self, checksum: str | None) -> Matrix:
        """Commit the append by one write of the manifest, and open the larger store."""
        fresh, missing = self._look()
        if missing:
            raise StoreError(
                f"{count_text(len(missing), 'tile is', 'tiles are')} not written: {some(missing)}",
                remedy="run the same append again",
            )
        old_side, side = self.old.layout.n_blocks, self.layout.n_blocks
        rows = np.full((side, side, RECORD_LENGTH), np.nan)
        rows[:old_side, :old_side] = self._before
        checksums = np.full((side, side), -1)
        checksums[:old_side, :old_side] = self._checksums
        for tile, record, known in zip(self.tiles(), *split_progress(fresh), strict=True):
            rows[tile], checksums[tile] = record, known
        total = TileStatistics()
        for tile in self.layout.tiles():
            total = total.merged(TileStatistics.from_row(rows[tile]))
        if checksum is None:
            sums = b"".join(int(rows[tile][_CHECKSUM]).to_bytes(4, "little") for tile in self.tiles())
            checksum = f"crc32c of tiles: {crc32c(sums):08x}"
        suffix, names = f"-{self.layout.n_objects}", self._all_names()
        provenance = self.old.manifest["provenance"]
        added = {
            **{key: value for key, value in self.about.items() if key != "modified"},
            "objects": len(self.names),
            "checksum": checksum,
            "dasrel": __version__,
        }
        manifest = {
            **self.old.manifest,
            "n_objects": self.layout.n_objects,
            "audit": audit_of(total, names),
            "records": f"records{suffix}",
            "checksums": write_records(self.old.store, self._group, suffix, rows, checksums, names),
            "provenance": {**provenance, "appends": [*provenance.get("appends", []), added]},
        }
        if self._group["progress"].attrs.get("owner") != self._owner:
            raise StoreError(f"another append to {self._where()} has taken over; nothing was added by this one")
        manifest = sealed(manifest)
        write_manifest(self.old.store, self._group, manifest)
        _clean(self.old.store, self._group, manifest)
        return open_matrix(self.old.store)

    def abandon(self) -> None:
        """Abandon the append, because its source cannot be used: restore the length of the arrays."""
        n = self.old.n_objects
        del self._group["progress"]
        self._group["values"].resize((n, n))
        for name in ("ids", "diagonal"):
            if name in self._group:
                self._group[name].resize((n,))
        if journal.is_needed(self.old.store):
            journal.roll_back(self.old.store)
            journal.end(self.old.store)

    def release(self) -> None:
        """After a failure, record that no process works on the append, if that can still be written."""
        with contextlib.suppress(Exception):
            if self._group["progress"].attrs.get("owner") == self._owner:
                self._own(None)

    def _own(self, owner: dict[str, Any] | None) -> None:
        def make(group: Any) -> None:
            group["progress"].attrs["owner"] = owner

        journal.change(self.old.store, self._group, make, ["progress/zarr.json"])

    def _lengthen(self, group: Any) -> None:
        """Enlarge the arrays. Readers, and other Zarr tools, may see the longer arrays from now on."""
        n, size = self.old.n_objects, self.layout.n_objects
        group["ids"].resize((size,))
        group["ids"][n:] = self.names
        group["values"].resize((size, size))
        if "diagonal" in group:
            group["diagonal"].resize((size,))

    def _replaced(self) -> tuple[dict[str, int | None], list[str]]:
        """Return what this append replaces in an object store: small objects with their sizes, and tiles that grow."""
        store = self.old.store
        if not journal.is_needed(store):
            return {}, []
        small: dict[str, int | None] = {"zarr.json": None, "values/zarr.json": None}
        small |= {key: about.size for name in ("ids", "diagonal") for key, about in listed(store, name).items()}
        return small, [_key(tile) for tile in self.tiles() if self.is_grown(tile)]

    def _all_names(self) -> Names:
        return [*map(str, self.old.ids), *map(str, self.names)]

    def _check_owner(self, owner: Any, take_over: bool) -> None:
        """Where folders cannot be locked, raise while the process that began the append may still be running."""
        if not isinstance(owner, dict) or take_over:
            return
        if process_lives(owner) is False:
            return
        raise StoreError(
            f"another append to {self._where()} is in progress, by process {shown(owner.get('pid'))}"
            f" on {shown(owner.get('host'))}",
            remedy="wait for it, or say {resume=True} if it is known to be dead",
        )

    def _where(self) -> str:
        return shown(location(self.old.store), limit=400)


def _key(tile: Tile) -> str:
    return f"values/c/{tile[0]}/{tile[1]}"


def _clean(store: StoreLike, group: Any, manifest: dict[str, Any]) -> None:
    """Remove obsolete data after an append; the previous records stay, for a reader that is just opening them."""
    appends = manifest["provenance"]["appends"]
    before = f"-{manifest['n_objects'] - appends[-1]['objects']}" if len(appends) > 1 else ""
    now = manifest["records"].removeprefix("records")
    keep = [name + end for name in ("records", "checksums") for end in (now, before)]
    remove_progress(store, group, manifest)
    with contextlib.suppress(json.JSONDecodeError):  # obsolete records with damaged metadata stay: nobody reads them
        for name in list(group.array_keys()):
            if name.startswith(("records", "checksums")) and name not in keep:
                del group[name]
    sweep(store)
    if (local := local_path(store)) is not None:
        remove_leftovers(absolute_location(local))


_CHECKSUM = list(TileStatistics.__dataclass_fields__).index("source_checksum")


@contextlib.contextmanager
def append_transaction(
    store: StoreLike, names: Names, about: dict[str, Any], *, resume: bool = False, force: bool = False
) -> Iterator[tuple[AppendTransaction, bool]]:
    """Begin or resume an append; yield it and whether it was resumed. No other process can append inside the block.

    Parameters
    ----------
    names
        Of the new objects; none may be in the store.
    about
        What is being added, as plain values, by which an unfinished append of the same is recognised.
    resume
        Resume even if the process that began may still run (on a remote store, or from another machine).
    force
        Drop an unfinished append of something else.
    """
    with _writable(store) as locked:
        manifest, group = read_manifest(store, "r+")
        if manifest["state"] != "complete":
            raise StoreError(
                f"{location(store)} is unfinished (state {manifest['state']})",
                remedy="run the command that wrote it again with {resume=True}, then append",
            )
        old = Matrix(store, manifest, group)
        check_tiles_there(old)  # an append to a store with a missing tile would make it look sound
        under_way = AppendTransaction(old, group, checked_names(names, old), about)
        resumed = under_way.begin(locked=locked, resume=resume, force=force)
        try:
            yield under_way, resumed
        except (InputError, MemoryLimitError) as error:
            if isinstance(error, InputError) or not resumed:
                under_way.abandon()  # so that it can be tried again with another source or policy
            raise
        except BaseException:
            under_way.release()
            raise


def finished_append(store: StoreLike, names: Names | None, about: dict[str, Any]) -> int | None:
    """Return the number of objects that the last append added if it is the one described, or None.

    Removes what is left of it: a process may have been killed after the append was complete.

    Parameters
    ----------
    names
        Of the new objects, as far as they are given.
    about
        As for `append_transaction`.
    """
    with _writable(store):
        manifest, group = read_manifest(store, "r+")
        appends = manifest["provenance"].get("appends", [])
        last = appends[-1] if appends and manifest["state"] == "complete" else {}
        if not last or any(last.get(name) != value for name, value in redacted(about).items()):
            return None
        count = int(last["objects"])
        there = [str(name) for name in Matrix(store, manifest, group).ids[-count:]]
        if names is not None and [str(name) for name in names] != there:
            return None
        _clean(store, group, manifest)
        progress.current().found_complete(location(store))
        return count


def grown_record(
    before: TileStatistics, now: TileStatistics, start: Tile, raw_diagonal: Array | None
) -> TileStatistics:
    """Return the record of a grown tile, equal to that of a tile written at once.

    `now` was made from the whole of it, where the old values have no flaws any more: what was repaired then is added.
    `start` is the place of the tile's first value; `raw_diagonal` holds the new objects' own values before a repair
    set them to zero.
    """

    def order(place: tuple[float, float]) -> tuple[float, ...]:
        row, column = place  # blocks of a tile are checked row by row, and so are the places in a block
        return (row - start[0]) // BLOCK, (column - start[1]) // BLOCK, row, column

    places = [*zip(before.missing_places[::2], before.missing_places[1::2], strict=True),
              *zip(now.missing_places[::2], now.missing_places[1::2], strict=True)]  # fmt: skip
    first = [x for place in sorted((p for p in places if p[0] >= 0), key=order)[:EXAMPLES] for x in place]
    worst = max(
        (before, now),
        key=lambda r: (r.asymmetry, *(-x for x in order((r.asymmetry_row, r.asymmetry_column)))),
    )
    merged = replace(
        now,
        missing=before.missing + now.missing,
        missing_places=tuple(first + [-1.0] * (2 * EXAMPLES - len(first))),
        clipped=before.clipped + now.clipped,
        lowest_clipped=min(before.lowest_clipped, now.lowest_clipped),
        asymmetric=before.asymmetric + now.asymmetric,
        asymmetry=worst.asymmetry,
        asymmetry_row=worst.asymmetry_row,
        asymmetry_column=worst.asymmetry_column,
    )
    if raw_diagonal is not None:
        own = np.where(np.isnan(raw_diagonal), 0.0, raw_diagonal)  # an object is at distance 0 from itself
        merged.diagonal_minimum = min(before.diagonal_minimum, float(own.min()))
        merged.diagonal_maximum = max(before.diagonal_maximum, float(own.max()))
    return merged


def checked_names(names: Names, old: Matrix) -> Array:
    wanted = [str(name) for name in names]
    if "" in wanted:
        raise InputError(f"the id of new object {wanted.index('')} is empty", remedy="give every object a name")
    there = {str(name) for name in old.ids}
    twice = [shown(name) for name in wanted if name in there]
    if twice:
        raise InputError(
            f"{len(twice)} of {count_text(len(wanted), 'new object')} already in {location(old.store)}: {some(twice)}",
            remedy="append only new ones",
        )
    if len(set(wanted)) < len(wanted):
        seen: set[str] = set()
        again = list(dict.fromkeys(name for name in wanted if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
        raise InputError(
            f"ids of new objects are not unique: {some([shown(name) for name in again])}", remedy="rename them"
        )
    return np.array(wanted, dtype=np.dtypes.StringDType())


@contextlib.contextmanager
def _writable(store: StoreLike) -> Iterator[bool]:
    """Lock a local store and translate disk errors; yield whether the file system enforces the lock."""
    local, where = local_path(store), shown(location(store), limit=400)
    full, retry = f"{where} is as it was before and nothing was lost", "free some space and run the same append again"
    denied = "an append needs a store that is not read-only"
    place = None if local is None else Path(absolute_location(local))
    with disk_errors(place, full=full, retry=retry, denied=denied, name=where), contextlib.ExitStack() as held:
        held.enter_context(storing(store))
        locked = False
        if place is not None and place.is_dir():
            locked = held.enter_context(store_lock(place))
            if not locked:  # its parent may be read-only; the store must not be
                probe = temporary_path(place / "append")
                probe.touch(exist_ok=False)
                probe.unlink()
        try:
            yield locked
        except ValueError as error:  # Zarr's word of a store object that was opened so
            if "read-only" in str(error) and not isinstance(error, InputError):
                raise StoreError(f"{where} was opened read-only: an append needs to write to it") from error
            raise
