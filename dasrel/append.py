"""Appending objects to a store: their rows against old and new objects, or features for a store made by `pairwise`.

Only new tiles are written, and those at the edge that have room for more objects; see `growing` for how a store grows
while others read it. What is stored, and the audit, are those of a store that was written at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel import intake, tasks
from dasrel.additions import Giver, open_features, open_rows
from dasrel.errors import InputError
from dasrel.growing import Growth, Tile, grown_record, growth
from dasrel.intake import Array, Names, Policy
from dasrel.readers import SMALL, block_checksum
from dasrel.record import Record
from dasrel.source import Reading
from dasrel.spool import given_ids
from dasrel.store import Matrix, StoredNames, StoreLike, TileFiles, local_path, location, open_matrix
from dasrel.vocabulary import is_similarity


@dataclass(frozen=True)
class Appended:
    """What an append has done."""

    matrix: Matrix
    """The grown store, opened anew; what was open before still shows the objects that it had."""
    objects_before: int
    new_objects: int
    """Objects that were added."""
    tiles_written: int
    """Tiles that were not there before, written by this call."""
    tiles_grown: int
    """Tiles at the edge that were written again with more objects in them."""
    tiles_kept: int
    """Tiles that an unfinished append of the same objects had written already."""
    bytes_written: int | None
    """Of tiles, as they are stored; None for compressed tiles that are not on this machine."""
    resumed: bool

    def report(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        names = (
            "objects_before",
            "new_objects",
            "tiles_written",
            "tiles_grown",
            "tiles_kept",
            "bytes_written",
            "resumed",
        )
        values = {name: getattr(self, name) for name in names}
        total = len(self.matrix.layout.tiles())
        return {"store": location(self.matrix.store), "n_objects": self.matrix.n_objects, "tiles": total, **values}


def append(
    store: StoreLike,
    source: Any,
    *,
    ids: str | Names | None = None,
    features: Any = None,
    policy: Policy | None = None,
    memory: int | str = "1GiB",
    resume: bool = False,
    force: bool = False,
) -> Appended:
    """Add objects to a store. It stays readable, and has all new objects or none of them.

    An append that was killed leaves the store as it was; the same call goes on with it.

    Parameters
    ----------
    source
        One row for each of the m new objects: its values against the n objects of the store and the m new ones, so
        (m, n + m) in all. A path (`.npy`, `.npz`, CSV, TSV, Parquet, a folder or URL that is a Zarr array), or a NumPy,
        dask, xarray or Zarr array, or a data frame. Columns that have names are matched by them, in any order;
        without names they stand in the order of the store, new objects last. With `features`: the features of the m
        new objects, as `pairwise` takes them.
    ids
        Names of the new objects, or a file with one name per line, in place of those in the source. A store whose
        objects are simply numbered needs none.
    features
        The features of the objects that are in the store already, for one made by `pairwise`: what it was made from,
        and a list of that and of what was appended since, in order. They are known by their checksums.
    policy
        What to do about flaws of the new values; each is an error unless named. `missing="max"` is not for here.
    resume
        Go on with an unfinished append though it cannot be seen that the process that began it is dead.
    force
        Drop an unfinished append of something else.

    Cost: every new value is read or computed once; writes the m (n + m) new values, and the tiles at the edge that
    grow, at most n tile more. Memory: about four tiles per thread.
    """
    policy = policy or Policy()
    old, giver, names, about, checksum = open_additions(store, source, ids=ids, features=features, policy=policy)
    with growth(store, names, about, resume=resume, force=force) as (under_way, resumed):
        if under_way.old.n_objects != old.n_objects:
            raise InputError(f"{location(store)} has grown meanwhile: look at its objects again, and append anew")
        missing = under_way.missing()
        _write(under_way, giver, missing, policy, memory)
        size = _bytes(under_way, missing)
        matrix = under_way.commit(checksum)
    grown = sum(under_way.is_grown(tile) for tile in missing)
    kept = len(under_way.tiles()) - len(missing)
    return Appended(matrix, old.n_objects, len(names), len(missing) - grown, grown, kept, size, resumed)


def open_additions(
    store: StoreLike, source: Any, *, ids: str | Names | None, features: Any, policy: Policy
) -> tuple[Matrix, Giver, Names, dict[str, Any], str | None]:
    """The store, the new objects' values and names, what is known of their source, and its checksum.

    Refuses what cannot be appended as far as this can be seen without reading it.
    """
    old = open_matrix(store)
    policy.check_kind(old.kind)
    if policy.missing == "max":
        raise InputError("missing='max' is for imports: the largest value may be that of a later append; give a number")
    given = None if ids is None else given_ids(Reading(ids=os.fspath(ids) if isinstance(ids, os.PathLike) else ids))
    if features is None:
        giver, names, provenance, checksum = open_rows(source, old, given)
        about = {"as": "rows", **provenance, "policy": policy.record()}
    else:
        if policy != Policy():
            raise InputError("policies are for values that were given; those of a metric have no flaws to repair")
        giver, names, provenance, checksum = open_features(source, features, old, given)
        about = {"as": "features", **provenance}
    return old, giver, names, about, checksum


@dataclass(frozen=True)
class _AppendTile:
    """Reads or computes, checks and writes one tile."""

    giver: Giver
    files: TileFiles
    kind: str
    policy: Policy

    def __call__(self, item: tuple[int, int, Array | None]) -> None:
        i, j, before = item
        layout = self.files.layout
        rows, columns = layout.span(i), layout.span(j)
        start = (rows.start, columns.start)
        upper, lower = self.giver.tile(rows, columns)
        names = StoredNames(self.files.store, layout.n_objects)
        tile, record = intake.check_tile(
            upper, lower, place=start, kind=self.kind, dtype=layout.dtype, policy=self.policy, ids=names
        )
        if before is not None:
            raw = np.diagonal(upper) if i == j and not is_similarity(self.kind) else None
            record = grown_record(Record.from_row(before), record, start, raw)
        if not (record.is_untouched and upper.dtype == tile.dtype):  # else the tile's checksum says it all
            below = 0 if lower is None else block_checksum(lower, 0)
            record.source_checksum = float(block_checksum(np.ascontiguousarray(upper), below))
        self.files.write(i, j, tile, record)


def _write(under_way: Growth, giver: Giver, missing: Sequence[Tile], policy: Policy, memory: int | str) -> None:
    layout, files = under_way.layout, under_way.files
    side = min(layout.tile, layout.n_objects)
    copies = 2 if files.mapped else 4
    tasks.run(
        _AppendTile(giver, files, under_way.old.kind, policy),
        [(i, j, under_way.record_before((i, j))) for i, j in missing],
        label="append",
        bytes_each=layout.tile_bytes,
        task_memory=giver.memory(side, layout.dtype.itemsize) + copies * layout.tile_bytes + SMALL,
        memory=memory,
        local=giver.local,
        goes_on="run the same append again to go on",
    )


def _bytes(under_way: Growth, tiles: Sequence[Tile]) -> int | None:
    files, local = under_way.files, local_path(under_way.old.store)
    if local is not None:
        return sum(os.stat(files.file(i, j)).st_size for i, j in tiles)
    return None if under_way.old.manifest["compress"] else len(tiles) * (under_way.layout.tile_bytes + 4)
