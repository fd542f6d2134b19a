"""Square matrices as condensed vectors: the upper triangle, row after row, without the diagonal.

That is SciPy's condensed form, and R's `dist`, which lists the lower triangle column by column: the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.names import is_similarity
from dasrel.util import Array, parallel
from dasrel.util.text import count_text, shown


def square_side(shape: tuple[int, ...], what: str) -> int:
    """Return the number of objects of a square array, or of a condensed vector."""
    if any(size < 0 for size in shape):
        raise InputError(f"{what} has the shape {shown(shape)}, which no array has; it is damaged")
    if len(shape) == 2:
        if shape[0] != shape[1]:
            raise InputError(
                f"{what} is not square: {count_text(shape[0], 'row')}, {count_text(shape[1], 'column')}",
                remedy="give one row and one column per object (features go through `dasrel pairwise`)",
            )
        return shape[0]
    if len(shape) == 1:
        n = (1 + math.isqrt(1 + 8 * shape[0])) // 2
        if n * (n - 1) // 2 != shape[0]:
            raise InputError(
                f"{what} has {count_text(shape[0], 'value')}, which is no n(n-1)/2: not a condensed distance vector",
                remedy="if it was truncated, copy it again",
            )
        return n
    raise InputError(f"{what} has {len(shape)} dimensions", remedy="a square matrix or a condensed vector is needed")


def check_condensed(kind: str, what: str) -> None:
    """Raise if the kind needs the diagonal, which a condensed vector does not have."""
    if is_similarity(kind):
        raise InputError(f"{what} is a condensed vector: it has no self-{kind} values", remedy="give the full matrix")


def triangle_block(values: Array, n: int, rows: slice, columns: slice, *, diagonal: bool = False) -> Array:
    """Gather a block of the upper triangle, or on the diagonal, where both triangles of it are returned.

    With `diagonal` each row of the vector begins with the object's own value.
    """
    result = np.zeros((rows.stop - rows.start, columns.stop - columns.start), dtype=values.dtype)
    for k, r in enumerate(range(rows.start, rows.stop)):
        # Position of the pair (r, c) is `before + c`.
        before = r * n - r * (r - 1) // 2 - r if diagonal else r * n - r * (r + 1) // 2 - r - 1
        first = max(columns.start, r if diagonal else r + 1)
        if first < columns.stop:
            result[k, first - columns.start :] = values[before + first : before + columns.stop]
        if k % parallel.BAND == 0 or r == rows.stop - 1:
            parallel.release_pages(values)
    if rows == columns:
        below = np.tri(result.shape[0], k=-1, dtype=bool)
        result = np.where(below, result.T, result)
    return result


@dataclass(frozen=True)
class CondensedSquare:
    """A condensed vector in memory as a square array with a zero diagonal, of which tiles are gathered by slicing."""

    vector: Array
    n_objects: int

    @property
    def shape(self) -> tuple[int, int]:
        """(n_objects, n_objects)."""
        return self.n_objects, self.n_objects

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.vector.dtype

    def __getitem__(self, place: tuple[slice, slice]) -> Array:
        rows, columns = place
        if rows.start > columns.start:
            return triangle_block(self.vector, self.n_objects, columns, rows).T
        return triangle_block(self.vector, self.n_objects, rows, columns)
