"""Tiles read ahead of use, and what is expected of them in the operating system's page cache.

Threads that do nothing else read the tiles in the order in which a scan needs them.

Tiles that the page cache can keep are read into it with `sendfile` to /dev/null, from end to end, and nothing is
copied. Read in this way, the system allocates the cache in larger and larger pieces, and mapping them is cheap.
Measured on 2 cores at 5 GB/s, a first scan with 16 columns takes 0.31 core-seconds per GB; 0.40 when the mapped file is
touched page by page, 0.63 when the pages are requested by hints (a hint for a complete file covers only its first few
megabytes).

A matrix larger than memory passes through the page cache without ever being found there again, at a price: the
processor copies every page, searches for pages to evict, and evicts those that other programs need. Such tiles are read
with O_DIRECT into buffers that are reused. The buffers consist of large pages: the system manages 512 times fewer of
them, and products run faster on them too. Measured on 2 cores with 4 columns: 7 GB/s, with a tenth of a core for
reading (5 GB/s with small pages). Four threads that read through the page cache and discard the data reached 5 GB/s
with a complete core, and a matrix larger than memory 1.3 to 2.4 GB/s.

A tile that cannot be read ahead (a file system without O_DIRECT, a file that is short or missing, a scan in another
order) is read by the store itself, which reports what is wrong if anything is.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np

from dasrel.store.layout import FileReader, Reader, TileIndex, TileSource
from dasrel.store.tile_files import count_maps
from dasrel.util import Array, limits
from dasrel.util.reading import open_regular

STREAMS = 3  # reading threads; more of them are no faster on the disks that were measured
CHUNK = 16 * 2**20  # bytes of one read; the remainder at the end, such as a checksum, is read with the last chunk
PAGE = 4096  # direct reads begin and end at multiples of a page
LARGE = 2 * 2**20  # a large page, of which buffers are made where the system has them
SPARE = 2  # buffers besides those in use: one that is ready, one that is being read
CACHE_SHARE = 0.8
"""Share of the memory free for files that a matrix may fill; beyond it, tiles would only evict each other."""
MAPS = 20_000
"""Mapped tiles that are kept; the system allows a process 65,530 maps."""
EVICTED_SHARE = 0.1
"""Share of the tiles that must come from disk before they are no longer assumed to be in memory."""


class TileCache:
    """Tiles of one matrix in the memory of this machine, from scan to scan: maps, buffers, and the page cache.

    Parameters
    ----------
    page_cache
        Bytes of tiles that the page cache is expected to keep from scan to scan; by default a share of the memory that
        is free for files at the first use. The other tiles are read past the page cache.
    keep_maps
        Keep mapped files from scan to scan: mapping them anew costs a fifth of a scan of few columns. Only where all
        tiles fit into a quarter of the memory, so that a larger matrix does not make the kernel unmap pages, and at
        most `MAPS` in this process; not on a worker, where Dask counts mapped files as the worker's memory.
    """

    def __init__(self, reader: Reader, *, page_cache: int | None = None, keep_maps: bool = True) -> None:
        self.reader = reader
        self.files = cast(FileReader, reader) if reader.mapped else None
        """The reader of the tiles' files; None if the tiles are no local files."""
        self.buffers: list[mmap.mmap] = []
        """Buffers of `ReadAhead` that are free: allocating them anew costs a tenth of a scan of a few GB."""
        self.seen: set[TileIndex] = set()
        """Tiles that were read through the page cache."""
        self._page_cache = page_cache
        self._keep_maps = keep_maps and reader.layout.total_bytes <= limits.machine_memory() // 4
        self._maps: dict[TileIndex, tuple[tuple[int, int, int], Array]] = {}

    @cached_property
    def kept_share(self) -> float:
        """The share of the tiles that is expected to stay in memory from scan to scan."""
        if self.files is None:
            return 0.0 if self.reader.local_array is None else 1.0
        room = CACHE_SHARE * limits.free_memory() if self._page_cache is None else self._page_cache
        return min(1.0, room / self.reader.layout.total_bytes)

    @property
    def in_memory(self) -> bool:
        """Whether all tiles should be in memory, the page cache included: all were read, and there was room."""
        if self.files is None:
            array = self.reader.local_array
            return isinstance(array, np.ndarray) and not isinstance(array, np.memmap)
        n_blocks = self.reader.layout.n_blocks
        return self.kept_share == 1 and len(self.seen) == n_blocks * (n_blocks + 1) // 2

    @property
    def should_read_ahead(self) -> bool:
        """Whether the tiles are files that are better read ahead of use."""
        return self.files is not None and not self.in_memory

    @contextmanager
    def scanning(self) -> Iterator[None]:
        """Read all tiles inside the block; notice whether tiles that should have been in memory came from disk.

        If they did, because other programs needed the memory, they are read ahead again until all have been read.
        """
        before = limits.bytes_from_disk() if self.files is not None and self.in_memory else None
        yield
        if before is not None:
            read = limits.bytes_from_disk() - before
            if read > EVICTED_SHARE * self.reader.layout.total_bytes:
                self.seen.clear()

    def read_checked(self, i: int, j: int) -> Array:
        """Read tile (i, j) as the reader does, from a kept map if its file is unchanged."""
        if self.files is None:
            return self.reader.read_checked(i, j)
        signature = self._signature(i, j) if self._keep_maps else None
        kept = self._maps.get((i, j))
        if kept is not None and kept[0] == signature:
            tile = kept[1]
        else:
            self._maps.pop((i, j), None)
            tile = self.files.read_checked(i, j)
            if signature is not None and count_maps() < MAPS:
                self._maps[i, j] = signature, tile
        self.seen.add((i, j))
        return tile

    def _signature(self, i: int, j: int) -> tuple[int, int, int] | None:
        """Return numbers that change when the file does; None if it is missing, which the reader reports."""
        try:
            status = os.stat(cast(FileReader, self.files).file(i, j))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def close_maps(self) -> None:
        """Release the kept maps: pages of a mapped file stay in the page cache."""
        self._maps.clear()

    def buffer_bytes(self, threads: int) -> int:
        """Return the anonymous memory of reading ahead for so many computing threads: none if all tiles are cached."""
        return 0 if self.files is None or self.kept_share == 1 else worker_buffer_bytes(self.reader, threads)


_caches: WeakKeyDictionary[TileSource, TileCache] = WeakKeyDictionary()


def tile_cache(source: TileSource, *, page_cache: int | None = None) -> TileCache:
    """Return the `TileCache` of a matrix, which lives as long as the matrix; a new one if `page_cache` is given."""
    cache = _caches.get(source)
    if cache is None or cache.reader is not source.files or page_cache is not None:
        cache = _caches[source] = TileCache(source.files, page_cache=page_cache)
    return cache


@dataclass(frozen=True)
class _Direct:
    """A file that is read into a buffer."""

    buffer: mmap.mmap
    descriptor: int
    stat: os.stat_result


@dataclass
class _Tile:
    """A tile that is being read, or is ready."""

    left: int
    """Chunks that are not read yet."""
    direct: _Direct | None = None
    """Its buffer, if it is read past the page cache."""
    begun: int = 0
    """Chunks whose reading has begun."""
    failed: bool = False
    claimed: bool = False
    """Whether a task waits for it or works on it, and will call `done`."""


class ReadAhead:
    """A reader of the tiles of one scan with so many computing threads, for a cache with files."""

    def __init__(self, cache: TileCache, threads: int) -> None:
        self._cache = cache
        self._files = cast(FileReader, cache.files)
        self._size = self._files.layout.tile_bytes + 4
        self._chunks = range(0, max(1, self._size // CHUNK * CHUNK), CHUNK)
        self._past: set[TileIndex] = set()
        self._waiting: OrderedDict[TileIndex, None] = OrderedDict()
        self._tiles: dict[TileIndex, _Tile] = {}
        self._next: TileIndex | None = None
        self._free = cache.buffers
        self._to_allocate = max(0, threads + SPARE - len(self._free))
        self._changed = threading.Condition()
        self._open = True

    @contextmanager
    def reading(self, order: Sequence[TileIndex]) -> Iterator[None]:
        """Read tiles in this order inside the block, except those in the page cache since an earlier scan."""
        share, number = self._cache.kept_share, {tile: k for k, tile in enumerate(self._files.layout.tiles())}
        # Cached tiles are spread evenly among the others, which are read while the cached ones are worked on.
        self._past = {tile for tile in order if int((number[tile] + 1) * share) == int(number[tile] * share)}
        self._waiting.update((tile, None) for tile in order if tile in self._past or tile not in self._cache.seen)
        threads = [threading.Thread(target=self._read_all, daemon=True) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._open = False
                self._changed.notify_all()
            for thread in threads:
                thread.join()
            with self._changed:
                for tile in self._tiles.values():  # a buffer that a task still uses, after an error, is not reused
                    if tile.direct is not None:
                        os.close(tile.direct.descriptor)
                self._tiles.clear()

    def read_checked(self, i: int, j: int) -> Array:
        """Return tile (i, j), verified at its first read in this process; valid until `done`."""
        with self._changed:
            tile = self._claim((i, j))
            if tile is not None:
                self._changed.wait_for(lambda: tile.left == 0 or not self._open)
        if tile is None or tile.direct is None or tile.failed or tile.left:
            return self._cache.read_checked(i, j)
        content = np.frombuffer(tile.direct.buffer, dtype=np.uint8, count=self._size)
        self._files.verify_once(content, i, j, tile.direct.stat)
        return self._files.values(tile.direct.buffer, i, j)

    def _claim(self, index: TileIndex) -> _Tile | None:
        """Return the tile as soon as its reading has begun; None if the store must read it."""
        requested = False
        while index in self._waiting and self._open:
            # If all buffers hold tiles that no task has claimed, none of them will become free.
            stuck = index in self._past and not (
                self._free or self._to_allocate or any(map(_in_use, self._tiles.values()))
            )
            if requested and not stuck:
                self._changed.wait()
                continue
            if stuck:
                del self._waiting[index]
            else:
                self._waiting.move_to_end(index, last=False)  # the next one to be read
            requested = True
            self._changed.notify_all()
        tile = self._tiles.get(index)
        if tile is not None:
            tile.claimed = True
        return tile

    def done(self, i: int, j: int) -> None:
        """Reuse the buffer of tile (i, j), which is not accessed any more."""
        with self._changed:
            tile = self._tiles.pop((i, j), None)
            if tile is not None and tile.direct is not None:
                os.close(tile.direct.descriptor)
                self._free.append(tile.direct.buffer)
                self._changed.notify_all()

    def _read_all(self) -> None:
        """Read chunks until none is left; run by each of the reading threads."""
        while (job := self._take()) is not None:
            index, tile, start = job
            try:
                complete = self._read_chunk(tile.direct, start) if tile.direct is not None else self._fill_cache(index)
            except OSError:
                complete = False
            with self._changed:
                tile.left -= 1
                tile.failed = tile.failed or not complete
                self._changed.notify_all()

    def _read_chunk(self, tile: _Direct, start: int) -> bool:
        """Read one chunk into the buffer; return whether it was complete."""
        # The last read extends to the end of the buffer, beyond the end of the file: direct reads are of whole pages.
        stop = len(tile.buffer) if start == self._chunks[-1] else start + CHUNK
        done = os.preadv(tile.descriptor, [memoryview(tile.buffer)[start:stop]], start)
        return done == min(stop, self._size) - start

    def _fill_cache(self, index: TileIndex) -> bool:
        """Read a tile into the page cache; return whether it was complete."""
        with (
            open(open_regular(self._files.file(*index)), "rb", buffering=0) as file,
            open(os.devnull, "wb", buffering=0) as nowhere,
        ):
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # twice as much at a time
            done = 0
            while done < self._size and self._open:
                sent = os.sendfile(nowhere.fileno(), file.fileno(), done, CHUNK)
                if not sent:
                    return False
                done += sent
        return True

    def _take(self) -> tuple[TileIndex, _Tile, int] | None:
        """Return the next chunk to read; None when there is none left."""
        with self._changed:
            while True:
                if not self._open:
                    return None
                tile = None if self._next is None else self._tiles.get(self._next)
                if self._next is not None and tile is not None and tile.begun < len(self._chunks):
                    tile.begun += 1
                    return self._next, tile, self._chunks[tile.begun - 1]
                self._next = None
                if not self._waiting:
                    return None
                index = next(iter(self._waiting))
                if index not in self._past:
                    del self._waiting[index]
                    self._tiles[index] = _Tile(left=1)
                    self._changed.notify_all()
                    return index, self._tiles[index], 0
                if self._free or self._to_allocate:
                    self._begin()
                else:
                    self._changed.wait()

    def _begin(self) -> None:
        """Open the file of the next tile and assign a buffer; a file that cannot be opened is left to the store."""
        index, _ = self._waiting.popitem(last=False)
        self._changed.notify_all()
        try:
            descriptor = open_regular(self._files.file(*index), getattr(os, "O_DIRECT", 0))
        except OSError:
            return
        stat = os.fstat(descriptor)
        if stat.st_size != self._size:
            os.close(descriptor)
            return
        self._tiles[index] = _Tile(left=len(self._chunks), direct=_Direct(self._buffer(), descriptor, stat))
        self._next = index

    def _buffer(self) -> mmap.mmap:
        with suppress(IndexError):
            return self._free.pop()
        self._to_allocate -= 1
        # Private, not shared as by default: shared memory does not come in large pages.
        buffer = mmap.mmap(-1, _rounded(self._size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                buffer.madvise(mmap.MADV_HUGEPAGE)
        return buffer


def _in_use(tile: _Tile) -> bool:
    """Return whether a buffer of this tile will become free."""
    return tile.direct is not None and tile.claimed


def worker_buffer_bytes(reader: Reader, threads: int) -> int:
    """Return the most anonymous memory that reading ahead takes on a machine with so many computing threads.

    A worker may have less memory for files than this machine: whether it needs buffers is not known here.
    """
    return int((threads + SPARE) * _rounded(reader.layout.tile_bytes + 4))


def _rounded(size: int) -> int:
    """Round the size of a buffer up to complete pages, large ones if it fills any."""
    page = LARGE if size >= LARGE else PAGE
    return -(-size // page) * page
