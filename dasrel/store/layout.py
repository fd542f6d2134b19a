"""The tile grid of a matrix, and the interface of objects that read its tiles."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dasrel.errors import StoreError
from dasrel.util import Array

FORMAT_VERSION = 1
IMPORT_AGAIN = "import the source again, or restore the store from a copy"
"""What to do about a damaged store."""
TileIndex = tuple[int, int]
"""A tile (i, j): rows of strip i against columns of strip j. Tiles with i <= j are stored."""


@dataclass(frozen=True)
class Layout:
    """The tile grid of a matrix: which tile covers which objects."""

    n_objects: int
    tile: int
    dtype: np.dtype[Any]

    @cached_property
    def n_blocks(self) -> int:
        """Number of tiles along each side of the matrix."""
        return math.ceil(self.n_objects / self.tile)

    def tiles(self) -> list[TileIndex]:
        """List the stored tiles in the order of all work: row by row of the upper triangle."""
        return [(i, j) for i in range(self.n_blocks) for j in range(i, self.n_blocks)]

    def span(self, i: int) -> slice:
        """Return the objects of strip i."""
        return slice(i * self.tile, min((i + 1) * self.tile, self.n_objects))

    def shape(self, i: int, j: int) -> tuple[int, int]:
        """Return the shape of tile (i, j) without its padding."""
        rows, columns = self.span(i), self.span(j)
        return rows.stop - rows.start, columns.stop - columns.start

    @property
    def tile_bytes(self) -> int:
        """Bytes of one stored tile."""
        return self.tile * self.tile * self.dtype.itemsize

    @property
    def total_bytes(self) -> int:
        """Bytes of all stored tiles, which one scan reads."""
        return self.n_blocks * (self.n_blocks + 1) // 2 * self.tile_bytes


class Reader(Protocol):
    """Reads the tiles of a matrix: the files of a store, or an array cut into tiles."""

    @property
    def layout(self) -> Layout:
        """The tile grid."""

    @property
    def mapped(self) -> bool:
        """Whether every tile is a plain local file, which is read by mapping it; then this is a `FileReader`."""

    @property
    def local_array(self) -> Any | None:
        """The array behind the tiles if it exists in this process only; None if any process can read the tiles."""

    @property
    def read_memory(self) -> int:
        """Anonymous memory that reading one tile takes, in bytes."""

    def read_checked(self, i: int, j: int) -> Array:
        """Read tile (i, j), i <= j, without padding; verify its checksum at the first read in this process."""


class FileReader(Reader, Protocol):
    """Reads tiles from one file each: the values, then a checksum of four bytes."""

    def file(self, i: int, j: int) -> str:
        """Return the path of tile (i, j)."""

    def verify_once(self, content: Array, i: int, j: int, status: os.stat_result) -> None:
        """Verify the checksum of a file's bytes unless this process has verified the same file before."""

    def values(self, content: Any, i: int, j: int) -> Array:
        """Return a file's bytes as tile (i, j) without padding; nothing is copied."""


class TileSource(Protocol):
    """A matrix that can be scanned: `dasrel.Matrix`, or an array used directly."""

    layout: Layout
    kind: str

    @property
    def files(self) -> Reader:
        """The object that reads its tiles."""

    @property
    def diagonal(self) -> Array | None:
        """Self-similarities for kinds similarity and kernel."""

    def check_unchanged(self) -> None:
        """Raise if another matrix has taken the place of this one since it was opened."""


@contextmanager
def unchanged(source: TileSource) -> Iterator[None]:
    """Read tiles inside the block; raise if another matrix has taken the place of this one by its end."""
    try:
        yield
    except StoreError:
        source.check_unchanged()  # a tile of another store is no damage
        raise
    source.check_unchanged()
