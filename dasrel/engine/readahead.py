"""Tiles read ahead of their use.

Tiles read ahead of their use, in the order in which a scan will ask for them, by threads that do nothing else.

Tiles that the operating system will keep are read into its cache, and nothing is copied: the file is sent to nowhere,
from end to end. Reading in this way the system takes memory in larger and larger pieces, and mapping them costs next to
nothing. Measured on 2 cores at 5 GB/s, a first scan with 16 columns takes 0.31 core-seconds a GB; 0.40 when the mapped
file is touched page by page, 0.63 when the pages are asked for by hints (of which one for a whole file is good for its
first few megabytes only).

A matrix that is larger than memory passes through the cache without ever being found there again, and pays for it: the
processor copies every page, looks for pages to drop, and drops what others need. Such tiles are read straight from the
disk into buffers that are used over and over. The buffers lie in large pages: the system finds, pins and hands over 512
times fewer of them, and products like them better too. Measured on 2 cores with 4 columns: 7 GB/s, of which a tenth of
a core goes into reading (5 GB/s with small pages), where four threads that read through the cache into nothing came to
5 GB/s and took a core, and a matrix larger than memory to 1.3 to 2.4 GB/s.

A tile that cannot be had this way (a file system without direct reading, a file that is short or gone, a scan that asks
in another order) is read by the store itself, which says what is wrong if anything is.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.store.tile_files import TileFiles
from dasrel.util import Array, parallel

Place = tuple[int, int]
STREAMS = 3  # threads that read; more of them are no faster on the disks that were measured
CHUNK = 16 * 2**20  # bytes read at a time; what is left over at the end, such as a checksum, is read with the last
PAGE = 4096  # reads past the cache begin and end at whole pages
LARGE = 2 * 2**20  # a large page, of which buffers are made where the system has them
SPARE = 2  # buffers besides those that are being worked on: one that is ready, one that is being read


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
    """Where it goes, if not into the system's cache."""
    begun: int = 0
    """Chunks that somebody has begun to read."""
    failed: bool = False
    claimed: bool = False
    """Somebody waits for it or works on it, and will say when it is done."""


class ReadAhead:
    """A reader of tiles for one scan, in which as many threads as `at_once` says ask for them."""

    def __init__(self, files: TileFiles, at_once: int) -> None:
        self._files = files
        self._size = files.layout.tile_bytes + 4
        self._chunks = range(0, max(1, self._size // CHUNK * CHUNK), CHUNK)
        self._past: set[Place] = set()
        self._waiting: list[Place] = []
        self._tiles: dict[Place, _Tile] = {}
        self._next: Place | None = None
        self._free: list[mmap.mmap] = files.buffers
        self._unmade = max(0, at_once + SPARE - len(self._free))
        self._changed = threading.Condition()
        self._open = True

    @contextmanager
    def reading(self, order: Sequence[Place]) -> Iterator[None]:
        """Inside, tiles are read in this order, save those that are in the system's cache since an earlier scan."""
        share, number = self._files.kept_share, {place: k for k, place in enumerate(self._files.layout.tiles())}
        # Kept tiles are spread evenly among the others, so that these can be read while those are worked on.
        self._past = {place for place in order if int((number[place] + 1) * share) == int(number[place] * share)}
        self._waiting = [place for place in reversed(order) if place in self._past or place not in self._files.met]
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
                for tile in self._tiles.values():  # what a task still works on, after an error, is its own from now on
                    if tile.direct is not None:
                        os.close(tile.direct.descriptor)
                self._tiles.clear()
                if parallel.on_worker():  # where every task is an object of its own that lives until the scan has ended
                    self._free.clear()

    def read_checked(self, i: int, j: int) -> Array:
        """Tile (i, j), its checksum verified if this is its first read in this process; good until `done`."""
        with self._changed:
            tile = self._claim((i, j))
            if tile is not None:
                self._changed.wait_for(lambda: tile.left == 0 or not self._open)
        if tile is None or tile.direct is None or tile.failed or tile.left:
            return self._files.read_checked(i, j)
        whole = np.frombuffer(tile.direct.buffer, dtype=np.uint8, count=self._size)
        self._files.verify_once(whole, i, j, tile.direct.stat)
        side, (rows, columns) = self._files.layout.tile, self._files.layout.shape(i, j)
        values = np.frombuffer(tile.direct.buffer, dtype=self._files.layout.dtype, count=side * side)
        return values.reshape(side, side)[:rows, :columns]

    def _claim(self, place: Place) -> _Tile | None:
        """The tile, as soon as it is being read; None if the store must read it."""
        asked = False
        while place in self._waiting and self._open:
            # Buffers that all hold what nobody has asked for yet will not come free.
            hopeless = place in self._past and not (
                self._free or self._unmade or any(map(_in_use, self._tiles.values()))
            )
            if asked and not hopeless:
                self._changed.wait()
                continue
            self._waiting.remove(place)
            if not hopeless:
                self._waiting.append(place)  # the next one to be read
            asked = True
            self._changed.notify_all()
        tile = self._tiles.get(place)
        if tile is not None:
            tile.claimed = True
        return tile

    def done(self, i: int, j: int) -> None:
        """Tile (i, j) is not looked at any more."""
        with self._changed:
            tile = self._tiles.pop((i, j), None)
            if tile is not None and tile.direct is not None:
                os.close(tile.direct.descriptor)
                self._free.append(tile.direct.buffer)
                self._changed.notify_all()

    def _read_all(self) -> None:
        """What each of the reading threads does."""
        while (job := self._take()) is not None:
            place, tile, start = job
            try:
                whole = self._read_chunk(tile.direct, start) if tile.direct is not None else self._bring(place)
            except OSError:
                whole = False
            with self._changed:
                tile.left -= 1
                tile.failed = tile.failed or not whole
                self._changed.notify_all()

    def _read_chunk(self, tile: _Direct, start: int) -> bool:
        """Read one chunk into the buffer; whether it was all there."""
        # Past the end there is nothing to read: what is asked for beyond are whole pages of the buffer.
        stop = len(tile.buffer) if start == self._chunks[-1] else start + CHUNK
        done = os.preadv(tile.descriptor, [memoryview(tile.buffer)[start:stop]], start)
        return done == min(stop, self._size) - start

    def _bring(self, place: Place) -> bool:
        """Have the system read a tile into its cache; whether it did."""
        with open(self._files.file(*place), "rb", buffering=0) as file, open(os.devnull, "wb", buffering=0) as nowhere:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # twice as much at a time
            done = 0
            while done < self._size and self._open:
                sent = os.sendfile(nowhere.fileno(), file.fileno(), done, CHUNK)
                if not sent:
                    return False
                done += sent
        return True

    def _take(self) -> tuple[Place, _Tile, int] | None:
        """The next chunk to read; None when there is none left."""
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
                if self._waiting[-1] not in self._past:
                    place = self._waiting.pop()
                    self._tiles[place] = _Tile(left=1)
                    self._changed.notify_all()
                    return place, self._tiles[place], 0
                if self._free or self._unmade:
                    self._begin()
                else:
                    self._changed.wait()

    def _begin(self) -> None:
        """Open the next tile's file and give it a buffer; one that cannot be opened is left to the store."""
        place = self._waiting.pop()
        self._changed.notify_all()
        try:
            descriptor = os.open(self._files.file(*place), os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        except OSError:
            return
        stat = os.fstat(descriptor)
        if stat.st_size != self._size:
            os.close(descriptor)
            return
        self._tiles[place] = _Tile(left=len(self._chunks), direct=_Direct(self._buffer(), descriptor, stat))
        self._next = place

    def _buffer(self) -> mmap.mmap:
        with suppress(IndexError):
            return self._free.pop()
        self._unmade -= 1
        # Not shared, as it would be by default: memory that could be shared does not come in large pages.
        buffer = mmap.mmap(-1, _room(self._size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                buffer.madvise(mmap.MADV_HUGEPAGE)
        return buffer


def _in_use(tile: _Tile) -> bool:
    """Whether a buffer will come free of this tile."""
    return tile.direct is not None and tile.claimed


def buffer_bytes(files: Any, at_once: int, *, on_worker: bool = False) -> int:
    """Anonymous memory that reading ahead takes, for as many threads as `at_once` says: none for what is cached.

    A worker may have less memory for files than this machine: whether it will need buffers is not known here.
    """
    if files.kept_share == 1 and not on_worker:
        return 0
    return int((at_once + SPARE) * _room(files.layout.tile_bytes + 4))


def _room(size: int) -> int:
    """Bytes of a buffer for so many: whole pages, large ones if it fills any."""
    page = LARGE if size >= LARGE else PAGE
    return -(-size // page) * page
