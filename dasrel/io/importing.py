"""Import a matrix: detect its format, open it as a `Source`, and write it to a store tile by tile."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from zarr.storage import MemoryStore

from dasrel.errors import InputError, Stopped, StoreError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import check_objects, reader_errors
from dasrel.io.readers.sniff import open_source
from dasrel.io.readers.source import ArraySource, Opened, SequentialSource, Source
from dasrel.io.readers.stream import given_ids
from dasrel.io.store_job import TILE_OVERHEAD, StoreJob, Tile
from dasrel.kernels import checks
from dasrel.store.layout import Layout
from dasrel.store.matrix import Matrix, StoredNames, open_matrix
from dasrel.store.options import Policy, Writing, group
from dasrel.store.tile_files import StoreLike, TileFiles, absolute_location, checked_ids, default_tile, local_path
from dasrel.store.writer import check_new_store, claimed, new_layout
from dasrel.util import Array, Names, limits, parallel
from dasrel.util.files import crc32c, full_disk, remove_temporary_files
from dasrel.util.labelled import check_not_reordered
from dasrel.util.text import path_text


def import_matrix(
    source: Any,
    store: StoreLike | None = None,
    *,
    kind: str,
    ids: str | os.PathLike[str] | Names | None = None,
    reading: Reading | None = None,
    policy: Policy | None = None,
    writing: Writing | None = None,
) -> Matrix | Any:
    """Write a matrix to a new store, with one read of the source, and open it.

    Parameters
    ----------
    source
        A path, the URL of a Zarr array, a NumPy, SciPy sparse, dask, xarray or Zarr array, a data frame, or a
        DistanceMatrix of scikit-bio; square, or a condensed vector. Objects keep the names of a data frame, whose
        index and columns must agree. What a sparse matrix does not list is 0 for similarities and kernels, and a
        missing pair for distances, whose value `policy.missing` must name: a distance of 0 would mean that the objects
        are equal.
    store
        A path, a URL that Zarr opens, or a Zarr store object; None keeps the store in the memory of this process.
    kind
        What the numbers are, one of `dasrel.KINDS`. It is never guessed.
    ids
        The objects' names, or a file with one name per line; they replace names in the source.
    reading, policy, writing
        How the source is read, what is done about its flaws, and how the store is written. With `Writing(part=(k, n))`
        only one part of the tiles is written, for job arrays. The source must then be one of which any block can be
        read: npy, raw, uncompressed npz, and HDF5 and Zarr whose chunks fit the tiles.

    Returns
    -------
    Matrix
        The complete store. With `writing.part` not a matrix, but a report of the part with `written` and `missing`
        (numbers of tiles) and `complete`.

    Cost: every value of the source is read once; sources that must be read sequentially (text, compressed, sparse, or
    in chunks that do not fit the tiles) are first spooled as plain numbers beside the store. Memory: one tile and its
    blocks per thread, within `writing.memory`.
    """
    if ids is not None:
        if reading is not None and reading.ids is not None:
            raise InputError("ids are given twice, as ids and in reading", remedy="give them once")
        names = os.fspath(ids) if isinstance(ids, os.PathLike) else ids
        reading = replace(group(reading, Reading, "reading"), ids=names)
    if store is None:
        store = MemoryStore()
    given: dict[str, Any] = {"kind": kind, "reading": reading, "policy": policy, "writing": writing}
    with prepare_import(source, store, **given, write=True) as job:
        return job.result()


@contextlib.contextmanager
def prepare_import(
    source: Any,
    store: StoreLike,
    *,
    kind: str,
    reading: Reading | None = None,
    policy: Policy | None = None,
    writing: Writing | None = None,
    write: bool = False,
) -> Iterator[StoreJob]:
    """Check the arguments of `import_matrix` and the header of the source, for a job to run or to estimate.

    With `write`, which `run` needs, the target is locked inside the block and a sequential source is spooled.

    A source that cannot be used leaves no store behind.
    """
    reading, policy = group(reading, Reading, "reading"), group(policy, Policy, "policy")
    writing = group(writing, Writing, "writing")
    with contextlib.ExitStack() as stack:
        if write:
            stack.enter_context(claimed(store, writing))
            stack.enter_context(limits.limited(writing.time_limit))
        state = check_new_store(store, kind, policy, writing)
        name, as_it_is = open_source(source, kind=kind, reading=reading, policy=policy)
        opened, writing = _fitted(as_it_is, writing)
        direct, facts = opened, _facts(source, name, opened)
        names, n = given_ids(reading.ids), opened.n_objects
        if n is not None:
            check_objects(n, writing.memory, opened.provenance["source"])
        ids = None if names is None or n is None else checked_ids(names, n)  # before anything is spooled
        if isinstance(opened, SequentialSource) and writing.part is not None:
            remedy = "import it in one process, without {Writing.part}"
            if isinstance(as_it_is, ArraySource) and as_it_is.grain():
                remedy += ", or choose a {Writing.tile} that is a multiple of the chunks"
            raise InputError(
                f"{path_text(opened.provenance['source'])} {opened.reason}: it must be read as a whole, so it cannot be"
                " imported in parts",
                remedy=remedy,
            )
        finished = state == "complete" and writing.resume and not writing.force
        if write and finished and isinstance(opened, SequentialSource):  # it need not be read again
            n, ids = open_matrix(store).n_objects, open_matrix(store).ids if ids is None else ids
            stack.enter_context(_scratch(source, store, reading, writing, None))
        elif write:
            opened = _spooled(opened, stack.enter_context(_scratch(source, store, reading, writing, opened)), store)
            stack.callback(opened.close)
            n = opened.n_objects
            check_not_reordered(names, opened.ids, path_text(opened.provenance["source"]))
        read_file = opened.provenance["source"] if opened is direct else None
        ready = None if isinstance(opened, SequentialSource) else opened
        if ids is None and n is not None:
            ids = checked_ids(ready.ids if ready is not None and names is None else names, n)
        layout = None if n is None else new_layout(n, writing)
        local = ready is None or ready.local or isinstance(store, MemoryStore)  # which workers do not see
        there = not local and parallel.active_client() is not None

        def work(files: TileFiles, missing: Sequence[Tile]) -> tuple[_ImportTile, Sequence[Tile]]:
            assert ready is not None
            return _ImportTile(ready, files, kind, policy, getattr(as_it_is, "holes", "")), missing

        yield StoreJob(
            "import",
            store,
            state,
            kind,
            policy,
            writing,
            layout,
            ids,
            provenance=opened.provenance,
            task_memory=0 if layout is None else task_memory(opened, layout, store, writing, on_worker=there),
            facts=facts,
            work=work,
            checksum=None if ready is None else ready.checksum,
            read_file=read_file if read_file is not None and os.path.exists(read_file) else None,
            local=local,
        )


def _facts(source: Any, name: str, opened: Opened) -> dict[str, Any]:
    """Return what an estimate reports of a source."""
    is_path = isinstance(source, str | os.PathLike)
    facts: dict[str, Any] = {"source": str(source) if is_path else opened.provenance["source"], "format": name}
    if is_path and os.path.isfile(source):
        facts["size_bytes"] = os.path.getsize(source)
    if isinstance(opened, SequentialSource):
        facts["first"] = "its values are spooled to disk"
        if opened.spool_bytes is not None:
            facts["spool_bytes"] = opened.spool_bytes
    return facts


def _spooled(opened: Opened, folder: Path | None, store: StoreLike) -> Source:
    """Return the source itself, or the one that reads from the folder to which a sequential source was spooled."""
    if not isinstance(opened, SequentialSource):
        return opened
    assert folder is not None
    try:
        with reader_errors(opened.provenance["source"]):
            spooled = opened.spool(folder)
    except limits.Terminated:
        raise Stopped(
            "stopped by SIGTERM while the source was read",
            remedy="run the same again with {resume=True} to continue",
        ) from None
    if local_path(store) is None:
        spooled.local = True  # the folder is a temporary one, which workers of other machines do not see
    return spooled


def _fitted(source: Opened, writing: Writing) -> tuple[Opened, Writing]:
    """Choose tiles that fit the source's own chunks; else have it copied, so that no chunk is decoded twice."""
    grain = source.grain() if isinstance(source, ArraySource) else None
    if not isinstance(source, ArraySource) or grain is None:
        return source, writing
    n, dtype = source.n_objects, np.dtype(writing.dtype)
    largest = default_tile(1 << 30, dtype)
    if writing.tile is None and 0 < grain <= largest and grain < n:
        wanted = default_tile(n, dtype)
        writing = replace(writing, tile=grain * max(1, min(round(wanted / grain), largest // grain)))
    tile = new_layout(n, writing).tile
    if grain and (tile % grain == 0 or (grain >= n and tile >= n)):
        return source, writing
    chunks = f"chunks of {grain}" if grain else "chunks that are not square"
    return source.sequential(f"has {chunks}, which do not fit tiles of {tile}"), writing


@dataclass(frozen=True)
class _ImportTile:
    """The task that reads, checks and writes one tile. It is pickled without names, which are read if needed."""

    source: Source
    files: TileFiles
    kind: str
    policy: Policy
    holes: str = ""
    """What a missing value may be besides a NaN, for messages."""
    spare: list[Array] = field(default_factory=list)
    """Written tiles whose memory is reused. Not on a worker, where every task is an object of its own that lives as
    long as the import."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _ImportTile, (self.source, self.files, self.kind, self.policy, self.holes)

    def __call__(self, place: tuple[int, int]) -> None:
        i, j = place
        rows, columns = self.files.layout.span(i), self.files.layout.span(j)
        with reader_errors(self.source.provenance["source"]):
            upper = self.source.block(rows, columns)
            lower = self.source.block(columns, rows) if self.source.mirrored and i != j else None
        try:
            tile, record = checks.check_tile(
                upper,
                lower,
                place=(rows.start, columns.start),
                kind=self.kind,
                dtype=self.files.layout.dtype,
                policy=self.policy,
                ids=StoredNames(self.files.store, self.files.layout.n_objects),
                out=self._spare_tile(),
            )
        except InputError as error:
            if error.problem == checks.MISSING and self.holes:
                error.problem = f"{checks.MISSING}, {self.holes}"
            raise
        if not (record.is_untouched and upper.dtype == tile.dtype):  # else the tile's own checksum suffices
            record.source_checksum = float(block_checksum(upper, 0 if lower is None else block_checksum(lower, 0)))
        self.files.write(i, j, tile, record)
        if self.files.mapped and not parallel.on_worker():  # it has been handed to the system, and is no longer needed
            self.spare.append(tile)

    def _spare_tile(self) -> Array | None:
        try:
            return self.spare.pop()
        except IndexError:
            return None


def task_memory(source: Opened, layout: Layout, store: StoreLike, writing: Writing, *, on_worker: bool = False) -> int:
    """Return the bytes that the task of one tile takes, here or on the worker of a cluster."""
    side = min(layout.tile, layout.n_objects)
    block = source.block_memory(side, side)
    if on_worker and not block:
        block = side * side * 8  # a view of a mapped file here is a copy there
    blocks = block * (2 if source.mirrored and layout.n_blocks > 1 else 1)
    mapped = local_path(store) is not None and writing.compress is None
    copies = 1 if mapped else 3  # what is not written as it is, Zarr encodes
    padded = 1 if layout.n_objects % layout.tile else 0
    return blocks + layout.tile_bytes * (copies + padded) + TILE_OVERHEAD


def block_checksum(block: Array, start: int) -> int:
    """Return the crc32c of a block's bytes, row by row (column by column if these are contiguous), without a copy."""
    if block.strides[1] != block.itemsize and block.strides[0] == block.itemsize:
        block = block.T
    if block.strides[1] != block.itemsize:
        block = np.ascontiguousarray(block)
    if block.flags.c_contiguous:
        return crc32c(block, start)
    for row in block:
        start = crc32c(row, start)
    return start


@contextlib.contextmanager
def _scratch(
    source: Any, store: StoreLike, reading: Reading, writing: Writing, opened: Opened | None
) -> Iterator[Path | None]:
    """Make a folder to spool a sequential source: beside a local store, so that a resumed import finds it again.

    Where nothing is to be spooled, one that is there is removed.
    """
    target = local_path(store)
    place = None if target is None else Path(absolute_location(target))
    folder_path = None if place is None else place.with_name(f".{place.name}.scratch")
    if not isinstance(opened, SequentialSource):
        if folder_path is not None and writing.part is None:
            shutil.rmtree(folder_path, ignore_errors=True)  # of an earlier import of something else
        yield None
        return
    if folder_path is None:
        with tempfile.TemporaryDirectory(prefix="dasrel-") as folder:
            yield Path(folder)
        return
    stamp: dict[str, Any] = {"source": None, "format": reading.format, "dataset": reading.dataset}
    if isinstance(source, str | os.PathLike) and os.path.exists(source):
        status = os.stat(source)
        stamp |= {"source": str(source), "size": status.st_size, "modified": status.st_mtime_ns}
    marker = folder_path / "source.json"
    try:
        same = writing.resume and stamp["source"] is not None and not folder_path.is_symlink()
        same = same and json.loads(marker.read_text()) == stamp
    except (OSError, ValueError):
        same = False
    if not same:
        if folder_path.is_symlink():
            folder_path.unlink()  # what it leads to is not ours
        shutil.rmtree(folder_path, ignore_errors=True)
        folder_path.mkdir(mode=0o700, parents=True)  # errors of the disk are translated by `claimed`
        marker.write_text(json.dumps(stamp))
    remove_temporary_files(folder_path)
    try:
        yield folder_path
    except (KeyboardInterrupt, StoreError, Stopped):
        raise  # the import can be resumed from here
    except BaseException as error:
        if not full_disk(error):  # then, too, it can be resumed
            shutil.rmtree(folder_path, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder_path, ignore_errors=True)
