"""Read, write and verify one tile of a store; paths and URLs of stores.

A store is one Zarr v3 group per matrix, written tile by tile and readable by any Zarr tool:

    values     n x n, square tiles, only tiles (i, j) with i <= j written; the rest is the fill value NaN
    ids        the objects' names
    diagonal   self-similarities, for kinds similarity and kernel
    records    the statistics of each tile, from which the audit was made
    checksums  the crc32c of each tile; -1 where it is not known
    progress   while the store is written or appended to: the record and the checksum of each finished tile

The group's attribute `dasrel` is the manifest. Its `state` is `writing` until every tile is written, then `complete`.
A complete store's manifest has checksums of `ids`, `diagonal`, `records` and `checksums`, and its own (`identity`).
A store that is appended to (see `growth`) stays complete: only its manifest has the number of objects, and arrays may
be longer than that.
A tile is written to a temporary file that is renamed, and its record is written after it, so that a killed process
leaves either a complete tile with its record or a tile that the next run writes again.

Behind each tile are the four bytes of Zarr's crc32c codec, which every Zarr reader checks, and which do not prevent
mapping the file. They show damage; that a tile is the one that was written at this place is shown by `checksums`, with
which they are compared at the first read. For compressed tiles `checksums` has the crc32c of the values.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasrel.errors import DasrelError, InputError, StoreError
from dasrel.kernels.checks import TileStatistics
from dasrel.store.layout import Layout
from dasrel.store.manifest import LocalGroup, array_metadata
from dasrel.util import Array, Names, limits
from dasrel.util.files import crc32c, md5_number, replacing
from dasrel.util.reading import check_regular, open_regular
from dasrel.util.text import count_text, redacted, shown, some

StoreLike = str | os.PathLike[str] | Any
"""A local path, a URL that Zarr opens, or a Zarr store object."""


@dataclass(frozen=True)
class RecordedChecksums:
    """Where the checksums of all tiles are, and the checksum of these. Workers read them at their first use."""

    array: str
    checksum: str


@dataclass(frozen=True)
class TileFiles:
    """Read and write the tiles of a store, one at a time. A small object that pickles."""

    store: StoreLike
    layout: Layout
    mapped: bool
    """Whether tiles are plain local files: then they are mapped, and nothing is copied."""
    recorded: RecordedChecksums | None = None
    """The checksums that tiles are compared with; None of a store that is being written."""

    @property
    def local_array(self) -> Any | None:
        """A store in the memory of this process, whose tiles are sent to workers; else None: any process reads them."""
        return self.store if is_in_memory(self.store) else None

    def file(self, i: int, j: int) -> str:
        """Return the path or URL of tile (i, j)."""
        return f"{self._location}/values/c/{i}/{j}"

    @cached_property
    def _location(self) -> str:
        return location(self.store)

    def read(self, i: int, j: int, *, verify: bool = False) -> Array:
        """Read tile (i, j) without its padding; read-only where it is mapped.

        Cost: one tile. A mapped tile takes no anonymous memory; other stores cost the tile's bytes.
        """
        if self.mapped:
            whole = self._map(i, j)
            if verify:
                self._verify(whole, i, j)
            return self.values(whole, i, j)
        if is_in_memory(self.store) and (tile := self._in_memory(i, j)) is not None:
            return tile
        span_i, span_j = self.layout.span(i), self.layout.span(j)
        try:
            if local_path(self.store) is not None:
                check_regular(self.file(i, j))
            tile = np.asarray(_values(self.store)[span_i, span_j])
        except Exception as error:
            raise self._bad(i, j, f"the tile cannot be read ({shown(error, limit=200)})") from error
        if np.isnan(tile[0, 0]) and np.isnan(tile).all():
            raise self._bad(i, j, "the tile is missing")
        if self.recorded_checksum(i, j) is not None:
            self._compare(crc32c(self.padded(tile)), tile, i, j)
        return tile

    def read_checked(self, i: int, j: int) -> Array:
        """Read tile (i, j); verify its checksum at the first read in this process.

        Measured on cold tiles at 5 GB/s, verifying makes a scan 1.4 times as long; later scans pay nothing. Tiles that
        do not lie as plain files are verified at every read.
        """
        if not self.mapped:
            return self.read(i, j)
        path = self.file(i, j)
        try:
            seen = self._seen(i, j, os.stat(path))
        except OSError:
            return self.read(i, j)  # which says what is wrong
        tile = self.read(i, j, verify=seen not in _verified)
        _verified.add(seen)
        return tile

    def verify_once(self, content: Array, i: int, j: int, status: os.stat_result) -> None:
        """Verify the checksum of a tile file's bytes unless this process has verified the same file before."""
        seen = self._seen(i, j, status)
        if seen not in _verified:
            self._verify(content, i, j)
            _verified.add(seen)

    def values(self, content: Any, i: int, j: int) -> Array:
        """Return a tile file's bytes as tile (i, j) without its padding; nothing is copied."""
        side, (rows, columns) = self.layout.tile, self.layout.shape(i, j)
        padded = np.frombuffer(content, dtype=self.layout.dtype, count=side * side).reshape(side, side)
        return padded[:rows, :columns]

    @property
    def read_memory(self) -> int:
        """Anonymous memory that reading one tile takes, in bytes."""
        return 0 if self.mapped else 2 * self.layout.tile_bytes

    def write(self, i: int, j: int, tile: Array, record: TileStatistics) -> None:
        """Write tile (i, j), then its record. Safe to repeat, and to be killed at any moment.

        A record without a source checksum gets that of the tile.
        """
        rows, columns = tile.shape
        tile = self.padded(tile)
        checksum = crc32c(tile)
        record = record if record.source_checksum else replace(record, source_checksum=float(checksum))
        if self.mapped:
            progress = self._progress(record, checksum, self.layout.tile_bytes + 4)
            # Chunks that are plain bytes are written as plain files. Unlike Zarr this never makes a folder's parents:
            # a store that was removed while a worker was still busy does not come back.
            self._put(f"values/c/{i}/{j}", tile, checksum.to_bytes(4, "little"))
            if i == j and os.path.exists(f"{self.store}/diagonal"):
                self._put(f"diagonal/c/{i}", np.diagonal(tile).astype("<f8"))
            self._put(f"progress/c/{i}/{j}/0", progress.astype("<f8"))
            return
        with storing(self.store):
            arrays, sent = self._output
            span_i, span_j = self.layout.span(i), self.layout.span(j)
            arrays["values"][span_i, span_j] = tile[:rows, :columns]
            if i == j and "diagonal" in arrays:
                arrays["diagonal"][span_i] = np.diagonal(tile[:rows, :columns]).astype(np.float64)
            arrays["progress"][i, j] = self._progress(
                record, checksum, *sent.pop(arrays["values"].path + f"/c/{i}/{j}")
            )

    def _progress(self, record: TileStatistics, checksum: int, size: float, md5: float = np.nan) -> Array:
        return np.append(record.to_row(), [float(checksum), float(size), md5])

    @cached_property
    def _output(self) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
        """The arrays that are written through Zarr, and what is known of the chunks of `values` that were sent."""
        import zarr

        from dasrel.store.sent import Recording

        group = open_group(self.store, "r+")
        remote = local_path(self.store) is None and not is_in_memory(self.store)
        recording = Recording(group.store, md5=md5_number if remote else None)
        group = zarr.open_group(recording, mode="r+", path=group.path, zarr_format=3, use_consolidated=False)
        names = ("values", "progress", "diagonal")
        return {name: group[name] for name in names if name in group}, recording.sent

    def _put(self, key: str, data: Array, tail: bytes = b"") -> None:
        """Write one chunk of an array whose folder exists, and `tail` behind it; there is never half a chunk."""
        with replacing(f"{self.store}/{key}") as temporary:
            try:
                file = open(temporary, "xb", buffering=0)  # noqa: SIM115
            except FileNotFoundError:  # the first chunk of its folder
                array, *folders = key.split("/")[:-1]
                folder = f"{self.store}/{array}"
                for name in folders:
                    folder = f"{folder}/{name}"
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder)
                file = open(temporary, "xb", buffering=0)  # noqa: SIM115
            with file:
                rest = data.data.cast("B")
                while len(rest):
                    rest = rest[file.write(rest) :]
                file.write(tail)

    def _map(self, i: int, j: int) -> Array:
        expected = self.layout.tile_bytes + 4
        try:
            whole = map_file(self.file(i, j))
        except FileNotFoundError:
            raise self._bad(i, j, "the tile is missing") from None
        except OSError as error:
            raise self._bad(i, j, f"the tile cannot be read ({error.strerror})") from error
        if whole.size != expected:
            raise self._bad(i, j, f"the tile has {count_text(whole.size, 'byte')} instead of {expected:,}")
        return whole

    def _in_memory(self, i: int, j: int) -> Array | None:
        """Return tile (i, j) of a store in memory without a copy; None unless it is there as it was written.

        Zarr takes ten times as long: it copies, and hands the work to the thread of its event loop.
        """
        content = _held(self.store, f"values/c/{i}/{j}")
        wanted = self.recorded_checksum(i, j)
        if content is None or content.nbytes != self.layout.tile_bytes + 4 or wanted is None:
            return None
        if crc32c(content[:-4]) != wanted:
            return None
        tile = self.values(content, i, j)
        tile.flags.writeable = False
        return tile

    def _verify(self, whole: Array, i: int, j: int) -> None:
        stored = int.from_bytes(whole[-4:].tobytes(), "little")
        checksum = crc32c(whole[:-4])
        if stored != checksum:
            raise self._bad(i, j, f"the tile is corrupt (checksum {checksum:08x}, stored {stored:08x})")
        self._compare(checksum, self.values(whole, i, j), i, j)

    def recorded_checksum(self, i: int, j: int) -> int | None:
        """Return the crc32c that tile (i, j), with its padding, had when it was written; None if it is not known."""
        known = self._checksums
        return None if known is None else int(known[i, j])

    @cached_property
    def _checksums(self) -> Array | None:
        if self.recorded is None:
            return None
        if isinstance(self.store, str):
            return _known_checksums(self.store, self.recorded)
        return read_checksums(self.store, self.recorded)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_checksums", "_output")}

    def _compare(self, checksum: int, tile: Array, i: int, j: int) -> None:
        """Raise unless a tile with this checksum is the one that was written here."""
        wanted = self.recorded_checksum(i, j)
        if wanted is None or checksum == wanted:
            return
        side = self.layout.tile
        # An append since this store was opened fills padding with new objects; the other values stay.
        if tile.shape != (side, side) and crc32c(self.padded(tile)) == wanted:
            return
        problem = f"the tile is not the one that was written here (checksum {checksum:08x}, recorded {wanted:08x})"
        raise self._bad(i, j, problem)

    def padded(self, tile: Array) -> Array:
        """Return the tile as it is stored: NaN where there are no objects."""
        side, (rows, columns) = self.layout.tile, tile.shape
        if (rows, columns) != (side, side):
            whole = np.full((side, side), np.nan, dtype=self.layout.dtype)
            whole[:rows, :columns] = tile
            tile = whole
        return np.ascontiguousarray(tile, dtype=self.layout.dtype)

    def _seen(self, i: int, j: int, status: os.stat_result) -> tuple[Any, ...]:
        """Return values that change when a file or its record does."""
        return self.file(i, j), status.st_ino, status.st_mtime_ns, self.recorded_checksum(i, j)

    def check_file(self, i: int, j: int, *, verify: bool) -> None:
        """Raise `StoreError` if the file of tile (i, j) is missing or, with `verify`, does not match its checksum.

        For local stores, compressed or not: the last four bytes are the crc32c of the others.

        Cost: with `verify` reads the file, a MiB at a time; a compressed tile with a record is decoded.
        """
        path = self.file(i, j)
        try:
            with open(open_regular(path), "rb", buffering=0) as file:
                left, checksum = os.fstat(file.fileno()).st_size - 4, 0
                while verify and left > 0 and (part := file.read(min(left, 1 << 20))):
                    limits.check()
                    checksum = crc32c(part, checksum)
                    left -= len(part)
                if verify and int.from_bytes(file.read(4), "little") != checksum:
                    raise StoreError(f"tile {shown(path, limit=200)} is corrupt: its checksum is {checksum:08x}")
            if verify and self.recorded_checksum(i, j) not in (None, checksum):
                self.read(i, j, verify=True)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"tile {shown(path, limit=200)} cannot be read: {error.strerror}") from None

    def _bad(self, i: int, j: int, problem: str) -> StoreError:
        rows, columns = self.layout.span(i), self.layout.span(j)
        objects = f"objects {rows.start} to {rows.stop - 1} against {columns.start} to {columns.stop - 1}"
        return StoreError(
            problem,
            where=f"tile ({i}, {j}) of {self.file(i, j)}, {objects}",
            remedy="`dasrel audit STORE --verify` lists every bad tile",
        )


_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_ssize_t]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_maps: set[int] = set()
"""The addresses of the files that are mapped."""


class _Map:
    """The pages of a file, which NumPy keeps with its array. Python's own maps keep a descriptor (before 3.13)."""

    def __init__(self, descriptor: int, size: int) -> None:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._place = address, size
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        _maps.add(address)

    def __del__(self, unmap: Any = _libc.munmap, maps: set[int] = _maps) -> None:  # nothing else may be left at exit
        if hasattr(self, "_place"):
            maps.discard(self._place[0])
            unmap(*self._place)


def map_file(path: str) -> Array:
    """Return the bytes of a file, which is mapped, without a descriptor, as long as the array or a view of it exists.

    A process may have 1,024 descriptors by default, and 65,530 maps.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        return np.asarray(_Map(descriptor, size)) if size else np.empty(0, dtype=np.uint8)
    finally:
        os.close(descriptor)


def count_maps() -> int:
    """Return the number of tiles that this process has mapped."""
    return len(_maps)


_verified: set[tuple[Any, ...]] = set()
"""Tile files whose checksum this process has verified."""


@lru_cache(maxsize=16)
def _known_checksums(store: str, recorded: RecordedChecksums) -> Array | None:
    """Read the checksums of all tiles, once per process."""
    return read_checksums(store, recorded)


def read_checksums(store: StoreLike, recorded: RecordedChecksums) -> Array | None:
    """Read the checksums of all tiles; None if later appends have removed them.

    Raises if they are damaged, or belong to another store that has taken this one's place.
    """
    try:
        check_files(store, recorded.array)
        checksums = _plain_square(store, recorded.array)
        if checksums is None:
            checksums = np.asarray(_group(store)[recorded.array][:])
    except KeyError:
        return None
    except Exception as error:  # whatever Zarr says about a damaged array
        raise StoreError(
            f"the checksums of the tiles of {location(store)} cannot be read: {shown(error, limit=200)}"
        ) from None
    if checksum_text(checksums) != recorded.checksum:
        raise StoreError(f"the checksums of the tiles of {location(store)} are damaged, or belong to another store")
    return checksums


def _plain_square(store: StoreLike, name: str) -> Array | None:
    """Read a square array of integers in one plain file without Zarr; None if it is none."""
    local = local_path(store)
    file = None if local is None else local / name / "c" / "0" / "0"
    if file is None or not file.is_file() or local is None:
        return None
    about = array_metadata(open_group(local), name)
    plain = [codec["name"] for codec in about["codecs"]] == ["bytes"]
    side, *others = about["shape"]
    content = np.fromfile(file, dtype="<i8")
    return content.reshape(side, side) if plain and others == [side] and content.size == side * side else None


def checksum_text(content: Array | bytes) -> str:
    """Return the crc32c of an array's bytes as it is kept in a manifest."""
    return f"{crc32c(np.ascontiguousarray(content) if isinstance(content, np.ndarray) else content):08x}"


@contextlib.contextmanager
def storing(store: StoreLike, verb: Literal["written", "read"] = "written") -> Iterator[None]:
    """Translate errors of remote storage into one line.

    There is no further try here: s3fs and its like have tried several times already, with longer and longer pauses.
    """
    try:
        yield
    except DasrelError:
        raise
    except Exception as error:
        named = getattr(error, "filename", None)  # a file of this machine: a source, not the store
        if local_path(store) is not None or named or not (isinstance(error, OSError) or is_of_storage(error)):
            raise
        again = "run again with {resume=True}" if verb == "written" else "run again"
        raise StoreError(
            f"{location(store)} cannot be {verb}: {shown(error, limit=200)}",
            remedy=f"what is written stays: when the storage answers again, {again}",
        ) from error


def is_of_storage(error: BaseException) -> bool:
    """Tell whether an error comes from a package for remote storage, or from Zarr, which was given half an object."""
    packages = ("botocore", "aiobotocore", "aiohttp", "s3fs", "gcsfs", "adlfs")
    below = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return type(error).__module__.partition(".")[0] in packages or any(name.startswith("zarr.") for name in below)


def is_mapped(group: Any) -> bool:
    """Tell whether the tiles are plain local files: checksummed and not compressed."""
    plain = [codec["name"] for codec in array_metadata(group, "values")["codecs"]] == ["bytes", "crc32c"]
    return plain and (isinstance(group, LocalGroup) or local_path(group.store) is not None)


def local_path(store: StoreLike) -> Path | None:
    """Return the path of a local store; None for a URL or another store object."""
    if isinstance(store, str | os.PathLike) and "\0" in os.fspath(store):
        raise InputError(f"{shown(store, limit=200)} is no path: it has a NUL character", remedy="give another name")
    if isinstance(store, (str, os.PathLike)):
        return None if isinstance(store, str) and "://" in store else Path(store)
    from zarr.storage import LocalStore

    return Path(store.root) if isinstance(store, LocalStore) else None


def is_in_memory(store: StoreLike) -> bool:
    if isinstance(store, (str, os.PathLike)):
        return False
    from zarr.storage import MemoryStore

    return isinstance(store, MemoryStore)


def location(store: StoreLike) -> str:
    if is_in_memory(store):
        return "the store in memory"
    local = local_path(store)
    return str(local) if local is not None else str(store)


def _held(store: Any, key: str) -> Array | None:
    """Return the bytes that a store in memory has under a key. Its `get` waits for nothing, so it needs no loop."""
    from zarr.buffer import default_buffer_prototype

    waiting = store.get(key, default_buffer_prototype())
    try:
        waiting.send(None)
    except StopIteration as ended:
        return None if ended.value is None else np.asarray(ended.value.as_numpy_array())
    waiting.close()
    return None


def zarr_store(store: StoreLike) -> Any:
    """Return what Zarr opens; raise if it is a URL of this process's memory, where a store would be lost at the end."""
    if isinstance(store, str) and re.search(r"(^|::)memory://", store):
        raise StoreError(
            f"{redacted(store)} is the memory of this process, and a store there is lost at its end",
            remedy="give a folder, or a URL of storage that lasts",
        )
    return os.fspath(store) if isinstance(store, os.PathLike) else store


def absolute_location(store: StoreLike) -> Any:
    """Return a name that is valid in any working directory: an absolute path or a URL; store objects as they are."""
    local = local_path(store)
    return str(local.absolute()) if local is not None else store


def open_group(store: StoreLike, mode: Literal["r", "r+"] = "r") -> Any:
    """Open the Zarr v3 group of a store. Consolidated metadata, which may differ from the arrays', are not used."""
    local = local_path(store)
    if local is not None:
        check_regular(local / "zarr.json")
        if mode == "r":
            return LocalGroup(local)
    import zarr

    return zarr.open_group(zarr_store(store), mode=mode, zarr_format=3, use_consolidated=False)


def _group(store: Any, mode: Literal["r", "r+"] = "r") -> Any:
    return _named_group(store, mode) if isinstance(store, str) else open_group(store, mode)


@lru_cache(maxsize=64)
def _named_group(store: str, mode: Literal["r", "r+"]) -> Any:
    return open_group(store, mode)


def check_files(store: StoreLike, name: str) -> None:
    """Raise `StoreError` if a local array has anything but regular files in its folders."""
    local = local_path(store)
    if local is not None:
        for folder, _, files in os.walk(local / name):
            check_regular(*(os.path.join(folder, file) for file in files))


def _values(store: Any, mode: Literal["r", "r+"] = "r") -> Any:
    return _group(store, mode)["values"]


LARGEST_TILE = 4096


def default_tile(n_objects: int, dtype: np.dtype[Any]) -> int:
    """Return the side of a tile: at most 64 MiB per tile, four tiles per side from 1,024 objects on, little padding.

    >>> default_tile(20_480, np.dtype("float32")), default_tile(1_797, np.dtype("float32"))
    (4096, 464)
    """
    largest = LARGEST_TILE if dtype.itemsize == 4 else 2896
    wanted = min(largest, max(256, math.ceil(n_objects / 4)))
    n_blocks = math.ceil(n_objects / wanted)
    return min(largest, 16 * math.ceil(math.ceil(n_objects / n_blocks) / 16))


def checked_ids(ids: Names | None, n_objects: int) -> Array:
    """Return the names as an array of strings, by default `0`, `1`, ...; raise if one is empty or repeated."""
    if n_objects < 2:
        count = "no objects (n = 0)" if n_objects < 1 else "a single object (n = 1), which has no pairs"
        raise InputError(f"the matrix has {count}", remedy="give at least 2 objects")
    if ids is None:
        return np.array([str(k) for k in range(n_objects)], dtype=np.dtypes.StringDType())
    names = [str(name) for name in ids]
    if len(names) != n_objects:
        raise InputError(
            f"{count_text(len(names), 'id')} for {count_text(n_objects, 'object')}", remedy="give one id per row"
        )
    if "" in names:
        raise InputError(f"the id of object {names.index('')} is empty", remedy="give every object a name")
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = list(dict.fromkeys(name for name in names if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
        raise InputError(
            f"ids are not unique: {some([shown(name) for name in twice])}", remedy="rename or drop the repeats"
        )
    return np.array(names, dtype=np.dtypes.StringDType())
