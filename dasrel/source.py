"""What a reader gives to an import: a matrix that can be asked for any block, whatever the format it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dasrel.intake import Array, Names


@dataclass(frozen=True)
class Reading:
    """How a source is to be read. What is None is found out from the source itself, or does not apply."""

    format: str | None = None
    """One of `dasrel.readers.FORMATS`."""
    ids: str | Names | None = None
    """The objects' names, or a file with one name per line; they take the place of names in the source."""
    shape: int | None = None
    """Number of objects of a raw binary file."""
    dtype: str | None = None
    """Type of the numbers of a raw binary file, as NumPy writes it: float32, <f8, ..."""
    columns: tuple[str | int, str | int, str | int] | None = None
    """First object, second object, value: names or numbers from 1 of the columns of a list of pairs."""
    dataset: str | None = None
    """Which array inside an `.npz`, HDF5 or Zarr source."""


class Source(Protocol):
    """A square matrix, as far as it is known."""

    n_objects: int
    ids: Names | None
    mirrored: bool
    """Whether the source holds both values of a pair. If not, `block` is asked for the upper triangle only."""
    provenance: dict[str, Any]
    """`source` as text; `size` in bytes and `modified` (nanoseconds) where it is a file."""
    checksum: str | None
    """Of the source's bytes, where the reader saw all of them in order; else None."""

    def block(self, rows: slice, columns: slice) -> Array:
        """The values of these rows and columns, NaN where a value is absent. Called from several threads.

        A block on the diagonal is complete: both halves are there.
        """

    def block_memory(self, rows: int, columns: int) -> int:
        """Anonymous memory, in bytes, that one call of `block` of this size takes, its result included."""

    def close(self) -> None:
        """Let go of files. What was put aside on disk is removed by the import."""
