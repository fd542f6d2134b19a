"""What may enter a store: statistics, checks and named repairs of one tile. Pure functions.

Statistics are kept one record per tile and added up to the audit of a store. They follow from the stored values alone,
so that a tile that has grown has those of a tile written at once.

A tile is checked in blocks that stay in the processor's cache, so that the dozen checks of each value cost one pass
over memory. Rows without a flaw, which most are, are copied and checked by a compiled pass (`checks.c`) where there is
one, with the same result to the last bit. Measured on one core, for a tile of 4,096 x 4,096 float32 and its mirrored
block: 27 ms instead of 48; a copy alone takes 8.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Protocol

import numpy as np

from dasrel.errors import InputError
from dasrel.kernels import native
from dasrel.kernels.native import LONG, POINTER
from dasrel.kernels.transpose import Transpose
from dasrel.names import is_similarity
from dasrel.util import Array, Names
from dasrel.util.text import count_text, shown, some, told_apart


class Policy(Protocol):
    """The repairs that are allowed; see `dasrel.store.options.Policy`."""

    @property
    def symmetrize(self) -> str: ...
    @property
    def missing(self) -> str | float: ...
    @property
    def diagonal(self) -> str | float: ...
    @property
    def clip_negative(self) -> float: ...


MISSING = "missing values (NaN)"
EXAMPLES = 3
"""Number of example pairs that are named."""


@dataclass
class TileStatistics:
    """The statistics of one tile, or of many added up: off-diagonal pairs unless said otherwise.

    A record is stored as a row of float64 numbers (`to_row`), so that the store can keep one per tile in a Zarr array.
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
    """Pairs whose two values differ by more than the store's precision."""
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
        """Whether the values are certainly those of the source, both directions of every pair equal to the last bit."""
        no_diagonal = self.diagonal_minimum > self.diagonal_maximum
        zero_diagonal = self.diagonal_minimum == self.diagonal_maximum == 0
        return not (self.asymmetry or self.missing or self.clipped) and (no_diagonal or zero_diagonal)

    def to_row(self) -> Array:
        """Return the statistics as a row of numbers."""
        row: list[float] = []
        for field in fields(self):
            value = getattr(self, field.name)
            row.extend(value if isinstance(value, tuple) else (value,))
        return np.array(row, dtype=np.float64)

    @classmethod
    def from_row(cls, row: Array) -> TileStatistics:
        """Return the statistics of a row of numbers."""
        values = [float(x) for x in row]
        plain, places = values[: -4 * EXAMPLES], values[-4 * EXAMPLES :]
        names = [field.name for field in fields(cls)][: len(plain)]
        record = cls(**dict(zip(names, plain, strict=True)))  # type: ignore[arg-type]
        record.zero_places = tuple(places[: 2 * EXAMPLES])
        record.missing_places = tuple(places[2 * EXAMPLES :])
        return record

    def merged(self, other: TileStatistics) -> TileStatistics:
        """Return the statistics of both; `self` comes first in the order of tiles."""
        asymmetric = self if self.asymmetry >= other.asymmetry else other
        return TileStatistics(
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


RECORD_LENGTH = TileStatistics().to_row().size
PROGRESS_LENGTH = RECORD_LENGTH + 3
"""Numbers that a store which is being written keeps of a finished tile: its record, its checksum, the size of its
object, and the first 48 bits of its MD5 in an object store."""


def audit_of(record: TileStatistics, ids: Sequence[str] | Array) -> dict[str, Any]:
    """Return the audit of a store from the statistics of all its tiles."""

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
) -> TileStatistics:
    """Count extremes, sum and zeros of stored rows off the diagonal; extremes and sums may be given.

    They follow from the stored values alone, whichever way these were checked, so that a tile that grows has the
    statistics of one that was written at once. Pairs that wait for the maximum are left out.
    """
    if not band.size:
        return TileStatistics()
    low, high = value_range(band) if extremes is None else extremes
    pairs, values = band.size, band
    if np.isnan(low):
        known = ~np.isnan(band)
        pairs = int(np.count_nonzero(known))
        if not pairs:
            return TileStatistics()
        low, high = value_range(band[known])
        values = np.where(known, band, band.dtype.type(0))
    sums = column_sums(values) if sums is None else sums
    record = TileStatistics(minimum=low, maximum=high, total=float(sums.sum()) + 0.0, pairs=pairs)
    _count_zeros(band, place, record)
    return record


def column_sums(band: Array) -> Array:
    """Return the sum of each column in float64, row after row: the order in which the compiled pass adds."""
    if band.shape[1] == 1:  # which NumPy would add up in pairs
        return np.asarray(np.add.accumulate(band, axis=0, dtype=np.float64)[-1])
    return np.asarray(band.sum(axis=0, dtype=np.float64))


def count_diagonal(block: Array, place: tuple[int, int], record: TileStatistics) -> None:
    """Count a block on the diagonal: each unordered pair once, without the diagonal."""
    values = block[np.triu_indices(block.shape[0], 1)]
    known = values[~np.isnan(values)]
    record.pairs = known.size
    if known.size:
        record.minimum, record.maximum = value_range(known)
        record.total = float(known.sum(dtype=np.float64))
        _count_zeros(np.where(np.tri(len(block), dtype=bool), 1, block), place, record)


def _count_zeros(block: Array, place: tuple[int, int], record: TileStatistics) -> None:
    if record.minimum <= 0 <= record.maximum:
        record.zeros = block.size - int(np.count_nonzero(block))
        if record.zeros:
            record.zero_places = example_places(block == 0, place)


def value_range(values: Array) -> tuple[float, float]:
    """Return minimum and maximum, both NaN if a value is NaN. Zero has no sign: which one comes first is chance."""
    return float(values.min()) + 0.0, float(values.max()) + 0.0


def example_places(mask: Array, place: tuple[int, int]) -> tuple[float, ...]:
    flat = np.flatnonzero(mask)[:EXAMPLES]
    rows, columns = np.unravel_index(flat, mask.shape)
    places = [float(x) for r, c in zip(rows, columns, strict=True) for x in (place[0] + r, place[1] + c)]
    return tuple(places + [-1.0] * (2 * EXAMPLES - len(places)))


def _first_places(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    places = [p for p in (*first, *second) if p >= 0][: 2 * EXAMPLES]
    return tuple(places + [-1.0] * (2 * EXAMPLES - len(places)))


BLOCK = 256
CHECK_MEMORY = 12 * BLOCK * BLOCK * 8
"""Bytes that `check_tile` takes beside the tile that it returns."""


def check_tile(
    upper: Array,
    lower: Array | None,
    *,
    place: tuple[int, int],
    kind: str,
    dtype: np.dtype[Any],
    policy: Policy,
    ids: Names,
    out: Array | None = None,
) -> tuple[Array, TileStatistics]:
    """Check one tile, apply the named repairs, and return what is to be stored with its statistics.

    `upper` holds the values of rows `place[0]` and on against columns `place[1]` and on; `lower` the values of the
    mirrored place (columns against rows, as the source has them), or None when the source has one triangle only.
    Pairs that are still to be filled with the maximum stay NaN. A tile on the diagonal (`place[0] == place[1]`) is
    square, and its lower half is checked against its upper half when `lower` is None. The result is written into
    `out` if it is given and of the right shape and type: fresh memory costs as much as the checks.

    The first block with a flaw that the policy does not name raises `InputError`.
    """
    row0, col0 = place
    on_diagonal = row0 == col0
    fits = out is not None and out.shape == upper.shape and out.dtype == dtype
    result = out if out is not None and fits else np.empty(upper.shape, dtype=dtype)
    record = TileStatistics()
    scratch = _Scratch(upper.dtype)
    for r in range(0, upper.shape[0], BLOCK):
        down = slice(r, r + BLOCK)
        first = r if on_diagonal else 0  # of the columns that are left to do in these rows
        if on_diagonal:  # the block with the diagonal is checked by itself, the rest of the rows may be flawless
            record = record.merged(_check_part(upper, lower, result, (down, down), place, kind, policy, ids, scratch))
            first += BLOCK
        right = slice(first, None)
        mirror = upper if on_diagonal and lower is None else lower
        across = None if mirror is None else mirror[right, down]
        plain = _plain_band(upper[down, right], across, result[down, right], (row0 + r, col0 + first), kind, scratch)
        if plain is not None:
            record = record.merged(plain)
            if on_diagonal:
                result[right, down] = upper[right, down] if lower is None else lower[right, down]
            continue
        for c in range(first, upper.shape[1], BLOCK):
            here = (down, slice(c, c + BLOCK))
            record = record.merged(_check_part(upper, lower, result, here, place, kind, policy, ids, scratch))
        record = record.merged(counted(result[down, right], (row0 + r, col0 + first)))
    return result, record


def _check_part(
    upper: Array,
    lower: Array | None,
    result: Array,
    here: tuple[slice, slice],
    place: tuple[int, int],
    kind: str,
    policy: Policy,
    ids: Names,
    scratch: _Scratch,
) -> TileStatistics:
    """Check and repair one block of a tile, and its mirror image where the tile has both."""
    there = (here[1], here[0])
    on_diagonal = place[0] == place[1]
    mirror = upper[there] if on_diagonal and lower is None else None if lower is None else lower[there]
    b = None if mirror is None else scratch.transposed(mirror)
    place_of_block = result[here]
    start = (place[0] + here[0].start, place[1] + here[1].start)
    block, record = _check_block(upper[here], b, place_of_block, start, kind, policy, ids)
    if block is not place_of_block:
        place_of_block[:] = block
    if on_diagonal and here[0] != here[1]:
        result[there] = block.T
    return record


class _Scratch:
    """Scratch memory for the blocks of one tile: allocating it for each block would cost more than the checks."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._transpose = Transpose(dtype)
        self._transposed = np.empty((BLOCK, BLOCK), dtype=dtype)
        self.differ = np.empty((BLOCK, BLOCK), dtype=bool)

    def transposed(self, block: Array) -> Array:
        """Return the transposed block, valid until the next call."""
        return self._transpose(block, self._transposed[: block.shape[1], : block.shape[0]])


def _plain_band(
    a: Array, b: Array | None, out: Array, place: tuple[int, int], kind: str, scratch: _Scratch
) -> TileStatistics | None:
    """Copy and check rows off the diagonal in the store's own type; None if they have a flaw, for `_check_part`.

    `b` holds the mirrored values (columns against rows).
    """
    if a.dtype != out.dtype or not a.size:
        return None
    taken = _taken(a, b, out)
    if taken is None:
        out[:] = a
        low, high = value_range(out)
        sums = None
    else:
        like, low, high, sums = taken
        if not like:
            return None
    if not (np.isfinite(low) and np.isfinite(high)) or (low < 0 and not is_similarity(kind)):
        return None
    if taken is None and b is not None:
        for c in range(0, out.shape[1], BLOCK):
            mine = out[:, c : c + BLOCK]
            differ = scratch.differ[: mine.shape[0], : mine.shape[1]]
            if np.not_equal(mine, scratch.transposed(b[c : c + BLOCK]), out=differ).any():
                return None
    return counted(out, place, (low, high), sums)


_FUNCTIONS = native.by_type("copy_and_check")


@cache
def _native_checks() -> Any | None:
    """Return the compiled pass, or None where it was not built or cannot run."""
    some = (POINTER, LONG, POINTER, LONG, POINTER, POINTER)
    return native.vector_kernels(_FUNCTIONS.values(), ctypes.c_int, POINTER, LONG, LONG, LONG, *some)


def _taken(a: Array, b: Array | None, out: Array) -> tuple[bool, float, float, Array] | None:
    """Copy rows to `out` by the compiled pass: whether `b` mirrors them, their range, the sums of their columns.

    None where it cannot be done, for lack of memory too, or where a value is not finite: nothing is known of them yet.
    """
    library = _native_checks()
    if library is None or not all(native.in_rows(array) for array in (a, out) + (() if b is None else (b,))):
        return None
    if a.dtype not in _FUNCTIONS or (b is not None and b.dtype != a.dtype):
        return None
    sums, ends = np.zeros(a.shape[1]), np.array([np.inf, -np.inf], a.dtype)
    size = a.itemsize
    like = getattr(library, _FUNCTIONS[a.dtype])(
        a.ctypes.data, a.strides[0] // size, *a.shape,
        None if b is None else b.ctypes.data, 0 if b is None else b.strides[0] // size,
        out.ctypes.data, out.strides[0] // size, sums.ctypes.data, ends.ctypes.data,
    )  # fmt: skip
    if like < 0 or (like and not np.isfinite(sums).all()):
        return None
    return bool(like), float(ends[0]) + 0.0, float(ends[1]) + 0.0, sums


def _check_block(
    a: Array,
    b: Array | None,
    out: Array,
    place: tuple[int, int],
    kind: str,
    policy: Policy,
    ids: Names,
) -> tuple[Array, TileStatistics]:
    """Return the block to be stored, in `out` unless a repair made a new one."""
    dtype = out.dtype
    if a.dtype.kind not in "fiub":
        raise InputError(f"values are of type {a.dtype}", remedy="numbers are needed")
    if a.dtype == dtype:
        out[:] = a
        values = out
    else:
        values = a.astype(np.float32 if a.dtype == np.float32 else np.float64)
    record = TileStatistics()
    on_diagonal = place[0] == place[1]
    if on_diagonal and not isinstance(policy.diagonal, str):
        values = _with_diagonal(values, place, kind, policy.diagonal, ids)
        b = None if b is None else _with_diagonal(b, place, kind, policy.diagonal, ids)
    low, high = value_range(values)
    if b is not None:
        b = b.astype(values.dtype, copy=False)
        if np.isfinite(low) and np.isfinite(high) and np.array_equal(values, b):
            b = None  # symmetric to the last bit, as most blocks are: nothing more to ask of the other half
        else:
            low_b, high_b = value_range(b)
            low, high = float(np.minimum(low, low_b)), float(np.maximum(high, high_b))
    if np.isnan(low):
        values, b = _fill_missing(values, b, place, kind, policy, ids, record)
        known = (values,) if b is None else (values, b)
        low = min(float(np.nanmin(x, initial=np.inf)) for x in known)
        high = max(float(np.nanmax(x, initial=-np.inf)) for x in known)
        low, high = (low, high) if low <= high else (0.0, 0.0)  # nothing but pairs that wait for the maximum
    if np.isinf(low) or np.isinf(high):
        bad = np.isinf(values)
        if b is not None and not bad.any():
            bad, values = np.isinf(b), b
        places = _places(bad, values, place, ids)
        raise InputError("infinite values", where=places, remedy="remove these objects or give finite values")
    if b is not None:
        values = _symmetrize(values, b, place, dtype, policy, ids, record)
    if on_diagonal:
        _check_diagonal(values, place, kind, policy, ids, record)
    if low < 0 and not is_similarity(kind):
        _clip_negative(values, place, kind, policy, ids, record)
    with np.errstate(over="ignore", under="ignore"):
        block = values.astype(dtype, copy=False)
    largest = max(abs(low), abs(high))
    if values.dtype != dtype and values.size > 1 and 0 < largest < float(np.finfo(dtype).tiny):
        raise InputError(
            f"values too small for {dtype}",
            where=f"none of this block is above {largest:g}",
            remedy="use {Writing.dtype=float64}, or rescale them",
        )
    if values.dtype != dtype and not np.isfinite(block).all() and np.isinf(block).any():
        bad = np.isinf(block)
        places = _places(bad, values, place, ids)
        raise InputError(f"values too large for {dtype}", where=places, remedy="use {Writing.dtype=float64}")
    if on_diagonal:
        count_diagonal(block, place, record)
    return block, record


def _with_diagonal(a: Array, place: tuple[int, int], kind: str, value: float, ids: Names) -> Array:
    """Return a block with this value on its diagonal where it has none; raise if another value is there."""
    own = np.diagonal(a)
    absent, expected = np.isnan(own), a.dtype.type(value)
    wrong = np.flatnonzero(~absent & (own != expected))
    if wrong.size:
        k = int(wrong[0])
        raise InputError(
            f"diagonal {value:g} was said, and the {kind} of objects with themselves is there and differs",
            where=f"{count_text(wrong.size, 'object')} of this block, e.g. {_name(place[0] + k, ids)}: {own[k]:g}",
            remedy="leave {Policy.diagonal} out",
        )
    if absent.any():
        a = a.copy()
        np.fill_diagonal(a, expected)
    return a


def _fill_missing(
    a: Array, b: Array | None, place: tuple[int, int], kind: str, policy: Policy, ids: Names, record: TileStatistics
) -> tuple[Array, Array | None]:
    """Take the value of the other direction where one is missing, and fill pairs with neither by the policy."""
    a = a.copy()
    absent = np.isnan(a)
    if b is not None:
        absent_b = np.isnan(b)
        one_way = absent != absent_b
        if policy.symmetrize == "error" and one_way.any():
            raise InputError(
                "values given in one direction only",
                where=_places(one_way, np.fmax(a, b), place, ids),
                remedy="say {Policy.symmetrize=mean} or {Policy.symmetrize=max} to take the value that is there",
            )
        b = np.where(absent_b, a, b)
        a[absent] = b[absent]
        absent = absent & absent_b
    if place[0] == place[1]:
        absent = np.triu(absent)
    count = int(np.count_nonzero(absent))
    if count and policy.missing == "error":
        raise InputError(
            MISSING,
            where=_places(absent, a, place, ids),
            remedy="say {Policy.missing=VALUE} or {Policy.missing=max}",
        )
    if count:
        fill = np.nan if policy.missing == "max" else float(policy.missing)
        if place[0] == place[1] and not is_similarity(kind):
            # An object that is not compared with itself is at distance 0 from itself: no pair is missing.
            for half in (a,) if b is None else (a, b):
                diagonal = np.diagonal(half)
                np.fill_diagonal(half, np.where(np.isnan(diagonal), 0, diagonal))
            absent = np.triu(absent, 1)
        a[np.isnan(a)] = fill
        b = None if b is None else np.where(np.isnan(b), fill, b).astype(b.dtype)
        record.missing = int(np.count_nonzero(absent))
        record.missing_places = example_places(absent, place)
    return a, b


def _symmetrize(
    a: Array,
    b: Array,
    place: tuple[int, int],
    dtype: np.dtype[Any],
    policy: Policy,
    ids: Names,
    record: TileStatistics,
) -> Array:
    difference = np.subtract(a, b)
    np.abs(difference, out=difference)
    largest = float(np.nanmax(difference, initial=0.0))
    if largest == 0:
        return a
    # Less than the store's own rounding is not asymmetry, nor is what programs lose that compute x'x + y'y - 2 x'y (a
    # thousand millionth of the largest value is far above it); the largest difference is recorded all the same.
    larger = np.maximum(np.abs(a), np.abs(b))
    lost = 1e-9 * float(np.nanmax(larger, initial=0.0))
    beyond = difference > np.maximum(8 * float(np.finfo(dtype).eps) * larger, lost)
    on_diagonal = place[0] == place[1]
    if on_diagonal:
        beyond = np.triu(beyond, 1)
        difference = np.triu(difference, 1)
    count = int(np.count_nonzero(beyond))
    if count and policy.symmetrize != "max" and _has_zero_triangle(a, b, on_diagonal):
        raise InputError(
            "one triangle of the matrix is all zeros",
            where=f"as in the block of {_pair(place[0], place[1] + a.shape[1] - 1, ids)}",
            remedy="say {Policy.symmetrize=max} to take the other triangle",
        )
    where = np.unravel_index(int(np.nanargmax(difference)), difference.shape)
    row, column = place[0] + int(where[0]), place[1] + int(where[1])
    if count and policy.symmetrize == "error":
        x, y = told_apart(float(a[where]), float(b[where]))
        raise InputError(
            "asymmetric",
            where=f"{count_text(count, 'pair')} in this block, the worst {_pair(row, column, ids)}: {x} one way,"
            f" {y} the other",
            remedy="say {Policy.symmetrize=mean} or {Policy.symmetrize=max}",
        )
    record.asymmetric = count
    record.asymmetry, record.asymmetry_row, record.asymmetry_column = largest, row, column
    if policy.symmetrize == "mean":
        return a * 0.5 + b * 0.5  # halves first: the sum of two large values may not be a number of this type
    if policy.symmetrize == "mean-square":
        return _root_mean_square(a, b)
    if policy.symmetrize == "max":
        return np.maximum(a, b)
    # Equal but for rounding: the upper half is kept, on both sides of the diagonal.
    return np.triu(a) + np.triu(a, 1).T if on_diagonal else a


def _root_mean_square(a: Array, b: Array) -> Array:
    """Return sqrt((a^2 + b^2) / 2): equal values to the last bit, and a negative one as it is, to be refused later."""
    half = a.dtype.type(np.sqrt(0.5))  # first: the sum of two large squares may not be a number of this type
    mean = np.hypot(a * half, b * half)
    lower: Array = np.minimum(a, b)
    return np.where((a == b) | (lower < 0), lower, mean)


def _has_zero_triangle(a: Array, b: Array, on_diagonal: bool) -> bool:
    """Return whether all pairs of a block are 0 one way, and most of them are not the other way."""
    if on_diagonal:
        above = np.triu_indices(a.shape[0], 1)
        a, b = a[above], b[above]
    few, many = sorted((np.count_nonzero(a), np.count_nonzero(b)))
    return bool(a.size > 2 and few == 0 and 2 * many > a.size)


def _check_diagonal(
    a: Array, place: tuple[int, int], kind: str, policy: Policy, ids: Names, record: TileStatistics
) -> None:
    diagonal = np.diagonal(a).copy()
    record.diagonal_minimum, record.diagonal_maximum = float(diagonal.min()), float(diagonal.max())
    if is_similarity(kind):
        # In the first block, whose rows say most: no kernel has this, and no similarity that can be clustered.
        lowest, highest = np.nanmin(a, axis=1), np.nanmax(a, axis=1)
        if place == (0, 0) and a.shape[0] > 1 and bool(((diagonal <= lowest) & (diagonal < highest)).all()):
            raise InputError(
                f"diagonal is the smallest value of its row, as in a distance, but the kind is {kind}",
                where=f"e.g. {_name(0, ids)}: {diagonal[0]:g}",
                remedy="say {kind=distance}, or give each object's value with itself",
            )
        return
    bad = np.flatnonzero(diagonal != 0)
    if bad.size and policy.diagonal == "error":
        k = int(bad[np.argmax(np.abs(diagonal[bad]))])
        who = _name(place[0] + k, ids)
        problem = "diagonal is not zero"
        where = f"{count_text(bad.size, 'object')} of this block, e.g. {who}: {diagonal[k]:g}"
        if a.shape[0] > 1 and bool((diagonal >= np.nanmax(a, axis=1)).all()):
            raise InputError(
                f"{problem} but the largest value of its row, as in a similarity",
                where=where,
                remedy="say {kind=similarity}, or {Policy.diagonal=zero}" + f" if it is a {kind}",
            )
        remedy = f"a {kind} of an object to itself is 0: " + "say {Policy.diagonal=zero} to set it so"
        raise InputError(problem, where=where, remedy=remedy)
    np.fill_diagonal(a, 0)


def _clip_negative(
    a: Array, place: tuple[int, int], kind: str, policy: Policy, ids: Names, record: TileStatistics
) -> None:
    bad = a < -policy.clip_negative
    if bad.any():
        hint = "" if policy.clip_negative else "say {Policy.clip_negative=TOL} to set rounding below zero to 0, or "
        raise InputError(
            f"negative values in a {kind}",
            where=_places(bad, a, place, ids),
            remedy=hint + "{kind=similarity} if these are similarities",
        )
    clipped = a < 0
    count = int(np.count_nonzero(np.triu(clipped) if place[0] == place[1] else clipped))
    record.clipped = count
    record.lowest_clipped = min(0.0, float(np.nanmin(a)))
    a[clipped] = 0


def _name(index: int, ids: Names) -> str:
    return f"{shown(ids[index])} (object {index})"


def _pair(row: int, column: int, ids: Names) -> str:
    return f"{_name(row, ids)} and {_name(column, ids)}"


def _places(mask: Array, values: Array, place: tuple[int, int], ids: Names) -> str:
    """Name the first few offending pairs with their values, and how many there are in this block."""
    flat = np.flatnonzero(mask)
    named = []
    for k in flat[:EXAMPLES]:
        r, c = divmod(int(k), mask.shape[1])
        named.append(f"{_pair(place[0] + r, place[1] + c, ids)} = {values[r, c]:g}")
    return some(named, total=flat.size)
