"""The matrix store: one Zarr v3 group per matrix, written tile by tile and readable by any Zarr tool.

    values     n x n, square tiles, only tiles (i, j) with i <= j written; the rest is the fill value NaN
    ids        the objects' names
    diagonal   self-similarities, for kinds similarity and kernel
    records    the statistics of each tile, from which the audit was made
    progress   while the store is being written, or grows: the record of each tile that is finished

The group's attribute `dasrel` is the manifest. Its `state` is `writing` until every tile is there, then `complete`.
A store that grows (see `growing`) stays complete: its manifest alone says how many objects it has, and arrays may be
longer than that.
A tile file is written aside and renamed, and its record is written after it, so that a killed process leaves either
a whole tile with its record or a tile that the next run writes again.

Checksums are Zarr's crc32c codec: four bytes behind the tile, checked by every Zarr reader, and no obstacle to
mapping the file. A list in the manifest would have to be rewritten with every tile, and would read no faster.
"""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.storage import LocalStore

from dasrel import tasks, workers
from dasrel.errors import DasrelError, InputError, StoreError, count_text, shown, some
from dasrel.record import Record
from dasrel.vocabulary import is_similarity

Array = NDArray[Any]
StoreLike = str | os.PathLike[str] | Any
"""A local path, a URL that Zarr opens, or a Zarr store object."""

FORMAT_VERSION = 1
CACHE_SHARE = 0.8
"""Of the memory that is free for files, what a matrix may fill; beyond that its tiles would only drop each other."""

NOTICED = 0.1
"""The share of the tiles that must come from disk until they are not believed to be in memory any more."""


@dataclass(frozen=True)
class Layout:
    """The shape of a tiled matrix: all that is needed to know which tile covers what."""

    n_objects: int
    tile: int
    dtype: np.dtype[Any]

    @cached_property
    def a_side(self) -> int:
        """Tiles on each side of the matrix."""
        return math.ceil(self.n_objects / self.tile)

    def tiles(self) -> list[tuple[int, int]]:
        """The stored tiles in the order of all work: row by row of the upper triangle."""
        return [(i, j) for i in range(self.a_side) for j in range(i, self.a_side)]

    def span(self, i: int) -> slice:
        """The objects of strip i."""
        return slice(i * self.tile, min((i + 1) * self.tile, self.n_objects))

    def shape(self, i: int, j: int) -> tuple[int, int]:
        """The shape of tile (i, j) without its padding."""
        rows, columns = self.span(i), self.span(j)
        return rows.stop - rows.start, columns.stop - columns.start

    @property
    def tile_bytes(self) -> int:
        """Bytes of one stored tile."""
        return self.tile * self.tile * self.dtype.itemsize

    @property
    def total_bytes(self) -> int:
        """Bytes of all stored tiles: what one scan reads."""
        return self.a_side * (self.a_side + 1) // 2 * self.tile_bytes


@dataclass(frozen=True)
class TileFiles:
    """The tiles of a store as a task sees them: a few words that travel, and the reading and writing of one tile."""

    store: StoreLike
    layout: Layout
    mapped: bool
    """Whether tiles are plain local files: then they are mapped, and nothing is copied."""
    maps: dict[str, tuple[tuple[int, int], Array]] = field(default_factory=dict, compare=False, repr=False)
    """Maps that are kept from scan to scan, by path, with the file's inode and time of change: making one anew costs a
    fifth of a scan of few columns. Only where all tiles fit into a quarter of the memory, so that a larger matrix does
    not make the kernel unmap pages, and not on a worker, where Dask counts what is mapped as the worker's memory."""

    buffers: list[Any] = field(default_factory=list, compare=False, repr=False)
    """What `ahead` reads into, kept from scan to scan: making it anew costs a tenth of a scan of a few GB."""
    cached: int | None = None
    """Bytes of tiles that the operating system is trusted to keep in memory from scan to scan; by default what it has
    free for files when this is first asked. The other tiles are read past its cache (see `ahead`)."""

    met: set[tuple[int, int]] = field(default_factory=set, compare=False, repr=False)
    """Tiles that were read through the operating system's cache by this object."""

    def __reduce__(self) -> tuple[Any, ...]:
        return TileFiles, (self.store, self.layout, self.mapped)

    @property
    def in_memory(self) -> bool:
        """Whether the tiles should be in memory, the system's cache included: all were read, and there was room."""
        a_side = self.layout.a_side
        return self.kept_share == 1 and len(self.met) == a_side * (a_side + 1) // 2

    @property
    def waited_for(self) -> bool:
        """Whether the tiles are files that had better be read ahead of their use (see `ahead`)."""
        return self.mapped and not self.in_memory

    @contextlib.contextmanager
    def scanned(self) -> Iterator[None]:
        """Inside, all tiles are read. If they should have been in memory and came from disk, that is not believed again
        until they have been read once more: somebody else needed the memory."""
        before = tasks.bytes_from_disk() if self.in_memory else None
        yield
        if before is not None and tasks.bytes_from_disk() - before > NOTICED * self.layout.total_bytes:
            self.met.clear()

    @cached_property
    def kept_share(self) -> float:
        """The share of the tiles that is read through the operating system's cache."""
        if not self.mapped:
            return 1.0
        room = CACHE_SHARE * tasks.free_memory() if self.cached is None else self.cached
        return min(1.0, room / self.layout.total_bytes)

    def file(self, i: int, j: int) -> str:
        """Where tile (i, j) lies, for messages and for the operating system."""
        return f"{self._place}/values/c/{i}/{j}"

    @cached_property
    def _place(self) -> str:
        return location(self.store)

    def read(self, i: int, j: int, *, verify: bool = False) -> Array:
        """Tile (i, j) without its padding, read-only where it is mapped.

        Cost: one tile. A mapped tile takes no anonymous memory; other stores cost the tile's bytes.
        """
        rows, columns = self.layout.shape(i, j)
        side = self.layout.tile
        if self.mapped:
            whole = self._map(i, j)
            if verify:
                self._verify(whole, i, j)
            return np.frombuffer(whole, dtype=self.layout.dtype, count=side * side).reshape(side, side)[:rows, :columns]
        span_i, span_j = self.layout.span(i), self.layout.span(j)
        try:
            tile = np.asarray(_values(self.store)[span_i, span_j])
        except Exception as error:
            raise StoreError(f"{self._which(i, j)} cannot be read: {shown(error, limit=200)}; {_ADVICE}") from error
        if np.isnan(tile[0, 0]) and np.isnan(tile).all():
            raise StoreError(f"{self._which(i, j)} is missing; {_ADVICE}")
        return tile

    def read_checked(self, i: int, j: int) -> Array:
        """Tile (i, j), its checksum verified if this is its first read in this process.

        Measured on cold tiles at 5 GB/s, verifying makes a scan 1.4 times as long; later scans pay nothing. Tiles that
        do not lie as plain files are verified by Zarr at every read.
        """
        if not self.mapped:
            return self.read(i, j)
        path = self.file(i, j)
        try:
            seen = _identity(path, os.stat(path))
        except OSError:
            return self.read(i, j)  # which says what is wrong
        tile = self.read(i, j, verify=seen not in _verified)
        _verified.add(seen)
        self.met.add((i, j))
        return tile

    def verify_once(self, whole: Array, i: int, j: int, found: os.stat_result) -> None:
        """The same for the bytes of a tile that somebody else has read from its file."""
        seen = _identity(self.file(i, j), found)
        if seen not in _verified:
            self._verify(whole, i, j)
            _verified.add(seen)

    @property
    def read_memory(self) -> int:
        """Anonymous memory that reading one tile takes, in bytes."""
        return 0 if self.mapped else 2 * self.layout.tile_bytes

    @property
    def memory_on_worker(self) -> int:
        """What reading one tile adds to the memory of a worker as Dask counts it, in bytes: mapped files are in it."""
        return self.layout.tile_bytes if self.mapped else self.read_memory

    travels = True
    """Workers can read the tiles themselves."""

    def to_worker(self, client: Any, places: Sequence[tuple[int, int]], worker: str | None) -> Any:
        """A future of these tiles in the memory of a worker, this one if it can be."""
        return client.submit(
            workers.hold, self, places, workers=worker, allow_other_workers=worker is not None, pure=False
        )

    def done(self, i: int, j: int) -> None:
        """Tile (i, j) is not looked at any more: the operating system's business."""

    def write(self, i: int, j: int, tile: Array, record: Record) -> None:
        """Write tile (i, j), then its record. Safe to do again, and to be killed at any moment.

        A record without a source checksum gets that of the tile.
        """
        rows, columns = tile.shape
        side = self.layout.tile
        if (rows, columns) != (side, side):
            whole = np.full((side, side), np.nan, dtype=self.layout.dtype)
            whole[:rows, :columns] = tile
            tile = whole
        tile = np.ascontiguousarray(tile, dtype=self.layout.dtype)
        checksum = google_crc32c.value(_readonly(tile))
        record = record if record.source_checksum else replace(record, source_checksum=float(checksum))
        if self.mapped:
            # Chunks that are plain bytes are written as plain files. Unlike Zarr this never makes a folder's parents:
            # a store that was removed while a worker was still busy does not come back.
            self._put(f"values/c/{i}/{j}", tile, checksum.to_bytes(4, "little"))
            if i == j and os.path.exists(f"{self.store}/diagonal"):
                self._put(f"diagonal/c/{i}", np.diagonal(tile).astype("<f8"))
            self._put(f"progress/c/{i}/{j}/0", record.to_row().astype("<f8"))
            return
        with storing(self.store):
            group = _group(self.store, "r+")
            span_i, span_j = self.layout.span(i), self.layout.span(j)
            group["values"][span_i, span_j] = tile[:rows, :columns]
            if i == j and "diagonal" in group:
                group["diagonal"][span_i] = np.diagonal(tile[:rows, :columns]).astype(np.float64)
            group["progress"][i, j] = record.to_row()

    def _put(self, key: str, data: Array, tail: bytes = b"") -> None:
        """Write one chunk of an array whose folder exists."""
        array, *folders = key.split("/")[:-1]
        folder = f"{self.store}/{array}"
        for name in folders:
            folder = f"{folder}/{name}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        _write_aside(f"{self.store}/{key}", data, tail)

    def _map(self, i: int, j: int) -> Array:
        path = self.file(i, j)
        expected = self.layout.tile_bytes + 4
        try:
            found = os.stat(path)
            if found.st_size != expected:
                self.maps.pop(path, None)
                raise StoreError(
                    f"{self._which(i, j)} has {count_text(found.st_size, 'byte')} instead of {expected:,}; {_ADVICE}"
                )
            signature = (found.st_ino, found.st_mtime_ns)
            kept = self.maps.get(path)
            if kept is not None and kept[0] == signature:
                return kept[1]
            fresh: Array = np.memmap(path, dtype=np.uint8, mode="r")
            if not tasks.on_worker() and self.layout.total_bytes <= tasks.machine_memory() // 4:
                self.maps[path] = (signature, fresh)
            return fresh
        except FileNotFoundError:
            raise StoreError(f"{self._which(i, j)} is missing; {_ADVICE}") from None
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{self._which(i, j)} cannot be read: {error.strerror}; {_ADVICE}") from error

    def _verify(self, whole: Array, i: int, j: int) -> None:
        stored = int.from_bytes(whole[-4:].tobytes(), "little")
        found = google_crc32c.value(whole[:-4])
        if stored != found:
            raise StoreError(f"{self._which(i, j)} is corrupt (checksum {found:08x}, stored {stored:08x}); {_ADVICE}")

    def _which(self, i: int, j: int) -> str:
        rows, columns = self.layout.span(i), self.layout.span(j)
        return (
            f"tile ({i}, {j}) of {self.file(i, j)}, objects {rows.start} to {rows.stop - 1}"
            f" against {columns.start} to {columns.stop - 1},"
        )


_verified: set[tuple[str, int, int]] = set()
"""Tile files whose checksum this process has seen to be right."""


def _identity(path: str, found: os.stat_result) -> tuple[str, int, int]:
    """What changes when a file does: path, inode, time of the last change."""
    return path, found.st_ino, found.st_mtime_ns


_ADVICE = "`dasrel audit STORE --verify` lists every bad tile"


class Matrix:
    """An open, complete store. Get one with `open_matrix`."""

    def __init__(self, store: StoreLike, manifest: dict[str, Any], group: Any) -> None:
        self.store = store
        self.manifest = manifest
        self._group = group
        self.n_objects: int = manifest["n_objects"]
        self.kind: str = manifest["kind"]
        self.tile: int = manifest["tile"]
        self.dtype: np.dtype[Any] = np.dtype(manifest["dtype"])
        self.audit: dict[str, Any] = manifest["audit"]
        self.layout = Layout(self.n_objects, self.tile, self.dtype)
        self.files = TileFiles(lasting(store), self.layout, is_mapped(group))
        self.pins: dict[str, Any] = {}
        self._ids: Array | None = None
        self._index: dict[str, int] | None = None
        self._diagonal: Array | None = None

    def __repr__(self) -> str:
        objects = count_text(self.n_objects, "object")
        return f"<Matrix {location(self.store)}: {objects}, kind {self.kind}, tile {self.tile}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # With its manifest: where it arrives, the store may have grown, and this matrix has not.
        return _reopened, (lasting(self.store), self.manifest)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_objects, n_objects)."""
        return self.n_objects, self.n_objects

    @property
    def ids(self) -> Array:
        """The objects' names, an array of n strings."""
        if self._ids is None:
            self._ids = np.asarray(self._group["ids"][: self.n_objects])
        return self._ids

    @property
    def diagonal(self) -> Array | None:
        """Self-similarities (n float64) for kinds similarity and kernel, else None."""
        if self._diagonal is None and is_similarity(self.kind):
            self._diagonal = np.asarray(self._group["diagonal"][: self.n_objects])
        return self._diagonal

    def records(self) -> Array:
        """The statistics of every tile, (tiles a side, tiles a side, numbers of a record); NaN below the diagonal."""
        return np.asarray(self._group[self.manifest.get("records", "records")][:])

    def positions(self, ids: Iterable[str]) -> list[int]:
        """Where the objects with these names stand."""
        if self._index is None:
            self._index = {str(name): k for k, name in enumerate(self.ids)}
        wanted = [str(name) for name in ids]
        unknown = [shown(name) for name in wanted if name not in self._index]
        if unknown:
            raise InputError(f"no such objects in {location(self.store)}: {some(unknown)}")
        return [self._index[name] for name in wanted]

    def read_tile(self, i: int, j: int) -> Array:
        """Tile (i, j) of the upper triangle, i <= j, without padding; rows of strip i against columns of strip j."""
        if not 0 <= i <= j < self.layout.a_side:
            raise InputError(f"no tile ({i}, {j}): tiles have 0 <= i <= j < {self.layout.a_side}")
        return self.files.read(i, j)

    def rows(self, ids: Iterable[str]) -> Array:
        """The rows of chosen objects as stored, both triangles: an array of (number of ids, n).

        Cost: reads the tiles of the strips that the objects lie in; the result is one row of n values per object.
        """
        return self.rows_at(np.array(self.positions(ids), dtype=np.intp))

    def rows_at(self, where: Array) -> Array:
        """The rows of the objects at these positions, as `rows`."""
        return rows_of(self.files, self.layout, where)

    def to_dask(self) -> Any:
        """The full mirrored matrix as a lazy dask array, for other tools.

        Cost: none now; computing all of it reads each tile once and holds what the caller asks for.
        """
        import dask
        import dask.array as da

        read = dask.delayed(TileFiles.read, pure=True)
        tiles = {
            (i, j): da.from_delayed(read(self.files, i, j), self.layout.shape(i, j), self.dtype)
            for i, j in self.layout.tiles()
        }
        side = range(self.layout.a_side)
        return da.block([[tiles[i, j] if i <= j else tiles[j, i].T for j in side] for i in side])


def rows_of(reader: Any, layout: Layout, where: Array) -> Array:
    """Rows of the whole matrix, gathered from the tiles of the upper triangle that hold them."""
    result = np.empty((where.size, layout.n_objects), dtype=layout.dtype)
    for strip in np.unique(where // layout.tile):
        mine = np.flatnonzero(where // layout.tile == strip)
        local = where[mine] - strip * layout.tile
        for other in range(layout.a_side):
            tile = reader.read_checked(int(min(strip, other)), int(max(strip, other)))
            result[mine, layout.span(other)] = tile[local] if strip <= other else tile[:, local].T
    return result


def open_matrix(store: StoreLike) -> Matrix:
    """Open a complete store: a local path, a URL that Zarr opens (`s3://...`), or a Zarr store object.

    Cost: no scan; reads the manifest. The ids are read when they are asked for.
    """
    manifest, group = read_manifest(store)
    if manifest["state"] != "complete":
        raise StoreError(
            f"{location(store)} is unfinished (state {manifest['state']}):"
            " run the command that wrote it again with --resume"
        )
    return Matrix(store, manifest, group)


def _reopened(store: StoreLike, manifest: dict[str, Any]) -> Matrix:
    return Matrix(store, manifest, read_manifest(store)[1])


def is_store(store: StoreLike) -> bool:
    """Whether a dasrel store, finished or not, is there. An error on the way is not a no: it is raised."""
    try:
        return "dasrel" in zarr.open_group(zarr_store(store), mode="r").attrs
    except (FileNotFoundError, NotADirectoryError, zarr.errors.ContainsArrayError, zarr.errors.NodeTypeValidationError):
        return False
    except ImportError as error:
        raise StoreError(f"{location(store)} needs a package that is not installed: {error}") from error
    except Exception as error:
        raise StoreError(f"{location(store)} cannot be opened: {shown(error, limit=200)}") from error


def read_manifest(store: StoreLike, mode: Literal["r", "r+"] = "r") -> tuple[dict[str, Any], Any]:
    try:
        group = zarr.open_group(zarr_store(store), mode=mode)
    except FileNotFoundError:
        raise StoreError(f"no store at {location(store)}; `dasrel import SOURCE STORE --kind ...` makes one") from None
    except ImportError as error:
        raise StoreError(f"{location(store)} needs a package that is not installed: {error}") from error
    except Exception as error:
        raise StoreError(f"{location(store)} cannot be opened: {shown(error, limit=200)}") from error
    manifest = group.attrs.get("dasrel")
    if not isinstance(manifest, dict):
        raise StoreError(f"{location(store)} is a Zarr group, but not a dasrel store; `dasrel import` makes one")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise StoreError(
            f"{location(store)} has format version {manifest.get('format_version')}, this dasrel reads version"
            f" {FORMAT_VERSION}: use the dasrel that wrote it, or import the source again"
        )
    return manifest, group


def _write_aside(path: str, tile: Array, tail: bytes) -> None:
    """Write a chunk and what follows it to a file beside, then rename it: there is never half a chunk."""
    # Not the process's number: another machine may write the same tile under the same number at the same time.
    aside = f"{path}.{uuid.uuid4().hex}.partial"
    try:
        with open(aside, "wb", buffering=0) as file:
            data = tile.data.cast("B")
            done = 0
            while done < len(data):
                done += file.write(data[done:])
            file.write(tail)
        os.replace(aside, path)
    except BaseException:
        if os.path.exists(aside):
            os.unlink(aside)
        raise


def _readonly(tile: Array) -> Array:
    flat = tile.view(np.uint8).reshape(-1)
    flat.flags.writeable = False  # the checksum takes read-only bytes only
    return flat


@contextlib.contextmanager
def storing(store: StoreLike) -> Iterator[None]:
    """What remote storage says against a write, in one line.

    There is no further try here: s3fs and its like have tried several times already, with longer and longer pauses.
    """
    try:
        yield
    except (DasrelError, FileNotFoundError):
        raise
    except Exception as error:
        named = getattr(error, "filename", None)  # a file of this machine: a source, not the store
        if local_path(store) is not None or named or not (isinstance(error, OSError) or _is_of_storage(error)):
            raise
        raise StoreError(
            f"{location(store)} cannot be written: {shown(error, limit=200)}; what is written stays: when the storage"
            " answers again, run again with --resume"
        ) from error


def _is_of_storage(error: BaseException) -> bool:
    """Whether it comes from a package that speaks to remote storage; not all of their errors are OSErrors."""
    return type(error).__module__.partition(".")[0] in ("botocore", "aiobotocore", "aiohttp", "s3fs", "gcsfs", "adlfs")


def is_mapped(group: Any) -> bool:
    """Whether the tiles are plain files of this machine: local, little-endian, checksummed and not compressed."""
    codecs = group["values"].metadata.codecs
    plain = len(codecs) == 2 and codecs[0] == BytesCodec(endian="little") and codecs[1] == Crc32cCodec()
    return plain and isinstance(group.store, LocalStore)


def local_path(store: StoreLike) -> Path | None:
    if isinstance(store, LocalStore):
        return Path(store.root)
    if isinstance(store, os.PathLike):
        return Path(store)
    if isinstance(store, str) and "://" not in store:
        return Path(store)
    return None


def location(store: StoreLike) -> str:
    local = local_path(store)
    return str(local) if local is not None else str(store)


def zarr_store(store: StoreLike) -> Any:
    return os.fspath(store) if isinstance(store, os.PathLike) else store


def lasting(store: StoreLike) -> Any:
    """A name that a worker in another folder understands: a whole path or a URL; store objects stand for themselves."""
    local = local_path(store)
    return str(local.absolute()) if local is not None else store


def stored_ids(store: StoreLike) -> Array:
    """The objects' names of a store, finished or not."""
    return np.asarray(_group(lasting(store))["ids"][:])


@dataclass(frozen=True)
class StoredNames(Sequence[str]):
    """The objects' names for messages, read from the store when one is asked for, so that tasks travel light."""

    store: StoreLike
    n_objects: int

    def __len__(self) -> int:
        return self.n_objects

    def __getitem__(self, k: Any) -> Any:
        return str(stored_ids(self.store)[int(k)])


def _group(store: Any, mode: Literal["r", "r+"] = "r") -> Any:
    return _named_group(store, mode) if isinstance(store, str) else zarr.open_group(store, mode=mode)


@lru_cache(maxsize=64)
def _named_group(store: str, mode: Literal["r", "r+"]) -> Any:
    return zarr.open_group(store, mode=mode)


def _values(store: Any, mode: Literal["r", "r+"] = "r") -> Any:
    return _group(store, mode)["values"]
