"""The statistics of tiles: counted as values are stored, kept one record per tile, added up to the audit of a store.

Pure functions on NumPy arrays. Statistics follow from the stored values alone, so that a tile that grows has those of
one that was written at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

EXAMPLES = 3
"""Pairs that are named of each sort."""


@dataclass
class Record:
    """The statistics of one tile, or of many added up: off-diagonal pairs unless said otherwise.

    A record travels as a row of float64 numbers (`to_row`), so that the store can keep one per tile in a Zarr array.
    Places are row and column of the whole matrix, -1 where there is none.
    """

    minimum: float = np.inf
    maximum: float = -np.inf
    total: float = 0.0
    pairs: float = 0.0
    zeros: float = 0.0
    missing: float = 0.0
    clipped: float = 0.0
    lowest_clipped: float = 0.0
    asymmetric: float = 0.0
    """Pairs whose two values differ by more than the store can show."""
    asymmetry: float = 0.0
    """Largest difference of the two values of a pair, before any repair."""
    asymmetry_row: float = -1.0
    asymmetry_column: float = -1.0
    diagonal_minimum: float = np.inf
    diagonal_maximum: float = -np.inf
    source_checksum: float = 0.0
    """crc32c of the tile's bytes as they were read from the source."""
    zero_places: tuple[float, ...] = (-1.0,) * (2 * EXAMPLES)
    missing_places: tuple[float, ...] = (-1.0,) * (2 * EXAMPLES)

    @property
    def is_untouched(self) -> bool:
        """Whether the values are surely those of the source, both directions of every pair alike to the last bit."""
        no_diagonal = self.diagonal_minimum > self.diagonal_maximum
        zero_diagonal = self.diagonal_minimum == self.diagonal_maximum == 0
        return not (self.asymmetry or self.missing or self.clipped) and (no_diagonal or zero_diagonal)

    def to_row(self) -> Array:
        """As numbers."""
        row: list[float] = []
        for field in fields(self):
            value = getattr(self, field.name)
            row.extend(value if isinstance(value, tuple) else (value,))
        return np.array(row, dtype=np.float64)

    @classmethod
    def from_row(cls, row: Array) -> Record:
        """Back from numbers."""
        values = [float(x) for x in row]
        plain, places = values[: -4 * EXAMPLES], values[-4 * EXAMPLES :]
        names = [field.name for field in fields(cls)][: len(plain)]
        record = cls(**dict(zip(names, plain, strict=True)))  # type: ignore[arg-type]
        record.zero_places = tuple(places[: 2 * EXAMPLES])
        record.missing_places = tuple(places[2 * EXAMPLES :])
        return record

    def merged(self, other: Record) -> Record:
        """The statistics of both; `self` comes first in the order of tiles."""
        asymmetric = self if self.asymmetry >= other.asymmetry else other
        return Record(
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            total=self.total + other.total,
            pairs=self.pairs + other.pairs,
            zeros=self.zeros + other.zeros,
            missing=self.missing + other.missing,
            clipped=self.clipped + other.clipped,
            lowest_clipped=min(self.lowest_clipped, other.lowest_clipped),
            asymmetric=self.asymmetric + other.asymmetric,
            asymmetry=asymmetric.asymmetry,
            asymmetry_row=asymmetric.asymmetry_row,
            asymmetry_column=asymmetric.asymmetry_column,
            diagonal_minimum=min(self.diagonal_minimum, other.diagonal_minimum),
            diagonal_maximum=max(self.diagonal_maximum, other.diagonal_maximum),
            source_checksum=0.0,
            zero_places=_first_places(self.zero_places, other.zero_places),
            missing_places=_first_places(self.missing_places, other.missing_places),
        )


RECORD_LENGTH = Record().to_row().size


def audit_of(record: Record, ids: Sequence[str] | Array) -> dict[str, Any]:
    """The audit that a store carries, from the statistics of all its tiles."""

    def pairs(places: tuple[float, ...]) -> list[list[str]]:
        flat = [int(p) for p in places if p >= 0]
        return [[str(ids[flat[k]]), str(ids[flat[k + 1]])] for k in range(0, len(flat), 2)]

    known = record.pairs > 0
    asymmetry: dict[str, Any] = {"largest": record.asymmetry, "pairs": int(record.asymmetric)}
    if record.asymmetry > 0:
        asymmetry["where"] = pairs((record.asymmetry_row, record.asymmetry_column))[0]
    return {
        "pairs": int(record.pairs),
        "minimum": record.minimum if known else None,
        "maximum": record.maximum if known else None,
        "mean": record.total / record.pairs if known else None,
        "zeros": {"count": int(record.zeros), "examples": pairs(record.zero_places)},
        "asymmetry": asymmetry,
        "diagonal": {"minimum": record.diagonal_minimum, "maximum": record.diagonal_maximum},
        "missing": {"count": int(record.missing), "examples": pairs(record.missing_places)},
        "clipped": {"count": int(record.clipped), "lowest": record.lowest_clipped},
    }


def counted(
    band: Array, place: tuple[int, int], extremes: tuple[float, float] | None = None, sums: Array | None = None
) -> Record:
    """Extremes, sum and zeros of rows off the diagonal, as they are stored; what is known of them already is given.

    They follow from the stored values alone, whichever way these were checked, so that a tile that grows has the
    statistics of one that was written at once. Pairs that wait for the maximum are left out.
    """
    if not band.size:
        return Record()
    low, high = value_range(band) if extremes is None else extremes
    pairs, values = band.size, band
    if np.isnan(low):
        known = ~np.isnan(band)
        pairs = int(np.count_nonzero(known))
        if not pairs:
            return Record()
        low, high = value_range(band[known])
        values = np.where(known, band, band.dtype.type(0))
    sums = column_sums(values) if sums is None else sums
    record = Record(minimum=low, maximum=high, total=float(sums.sum()) + 0.0, pairs=pairs)
    _count_zeros(band, place, record)
    return record


def column_sums(band: Array) -> Array:
    """The sum of each column in double, one row after the other: the order in which the compiled pass adds."""
    if band.shape[1] == 1:  # which NumPy would add up in pairs
        return np.asarray(np.add.accumulate(band, axis=0, dtype=np.float64)[-1])
    return np.asarray(band.sum(axis=0, dtype=np.float64))


def count_diagonal(block: Array, place: tuple[int, int], record: Record) -> None:
    """The same of a block on the diagonal: each unordered pair once, the diagonal itself left out."""
    values = block[np.triu_indices(block.shape[0], 1)]
    known = values[~np.isnan(values)]
    record.pairs = known.size
    if known.size:
        record.minimum, record.maximum = value_range(known)
        record.total = float(known.sum(dtype=np.float64))
        _count_zeros(np.where(np.tri(len(block), dtype=bool), 1, block), place, record)


def _count_zeros(block: Array, place: tuple[int, int], record: Record) -> None:
    if record.minimum <= 0 <= record.maximum:
        record.zeros = block.size - int(np.count_nonzero(block))
        if record.zeros:
            record.zero_places = example_places(block == 0, place)


def value_range(values: Array) -> tuple[float, float]:
    """Smallest and largest; both NaN when a value is NaN. Zero has no sign here: which one is met first is chance."""
    return float(values.min()) + 0.0, float(values.max()) + 0.0


def example_places(mask: Array, place: tuple[int, int]) -> tuple[float, ...]:
    flat = np.flatnonzero(mask)[:EXAMPLES]
    rows, columns = np.unravel_index(flat, mask.shape)
    found = [float(x) for r, c in zip(rows, columns, strict=True) for x in (place[0] + r, place[1] + c)]
    return tuple(found + [-1.0] * (2 * EXAMPLES - len(found)))


def _first_places(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    found = [p for p in (*first, *second) if p >= 0][: 2 * EXAMPLES]
    return tuple(found + [-1.0] * (2 * EXAMPLES - len(found)))
