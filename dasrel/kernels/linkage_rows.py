"""Rows of dissimilarities between clusters: bring them up to date after merges, and find the nearest cluster of each.

A row has a value for every slot. A slot holds a cluster, or has held one that was merged: then its value is infinite.
The cluster of a slot is the one whose smallest member is the slot's object, so that the first of several nearest slots
is the one that the rule for ties wants. Lance and Williams's formulas give the value between the union of a and b and a
cluster c, from those between a and c (x), b and c (y), and a and b (h); |a|, |b|, |c| are numbers of objects:

    single      min(x, y)
    complete    max(x, y)
    average     x + y: rows have sums over pairs of objects, and the nearest is that of the smallest mean
    weighted    (x + y) / 2
    ward        ((|a| + |c|) x + (|b| + |c|) y - |c| h) / (|a| + |b| + |c|), of squared distances

All are computed in float64 and rounded to the type of the rows. Weighted and Ward's are above the smaller of x and y
unless the two are equal, also where rounding would make them equal: a union is never as near as its nearer part by
rounding alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.kernels import native
from dasrel.kernels.native import LONG, POINTER
from dasrel.util import Array, Float, Index

KEPT = 16
"""Entries of a list of the nearest clusters; row_linkage.c has the same number."""
METHODS = ("single", "complete", "average", "weighted", "ward")
"""In the order of their numbers in C."""


@dataclass
class MergeLog:
    """Merges of slots in the order in which they count, and the sizes of the clusters."""

    a: NDArray[np.int32]
    """Slots that hold the unions, (number of slots,); the first `count` are set."""
    b: NDArray[np.int32]
    """Slots whose clusters were merged into them; a < b."""
    size_a: Float
    size_b: Float
    heights: Float
    """The value between the two, as in the rows."""
    before: Float
    """Sizes of the clusters of all slots before the last round, ..."""
    after: Float
    """... and after it."""
    count: int = 0
    rounds: list[int] = field(default_factory=list)
    """The number of the first merge of each round. The slots of a round's merges are all different."""

    @staticmethod
    def of(sizes: Float) -> MergeLog:
        """Return a log without merges for clusters of these sizes."""
        n = len(sizes)
        numbers = [np.zeros(n) for _ in range(3)]
        slots = [np.zeros(n, dtype=np.int32) for _ in range(2)]
        return MergeLog(slots[0], slots[1], numbers[0], numbers[1], numbers[2], sizes.copy(), sizes.copy())

    def add(self, a: Index, b: Index, heights: Float) -> None:
        """Add the merges of one round."""
        np.copyto(self.before, self.after)
        new = slice(self.count, self.count + len(a))
        self.a[new], self.b[new], self.heights[new] = a, b, heights
        self.size_a[new], self.size_b[new] = self.after[a], self.after[b]
        self.after[a] += self.after[b]
        self.rounds.append(self.count)
        self.count = new.stop


@dataclass(frozen=True)
class RowTask:
    """A row to be brought up to date."""

    slot: int
    row: Array
    """Its values; changed in place."""
    seen: int
    """Number of merges that it has seen."""
    merge: int = -1
    """The number of the merge, of the last round, that makes it the row of a union, or -1."""
    other: Array | None = None
    """The row of the other part of the union; changed too."""
    other_seen: int = 0


@dataclass(frozen=True)
class NearLists:
    """The KEPT nearest clusters of some, ordered by value, then slot."""

    slots: NDArray[np.int32]
    """(count, KEPT) slots; -1 where there is none."""
    values: Float
    """(count, KEPT) values; infinite where there is none."""

    @staticmethod
    def empty(count: int) -> NearLists:
        """Return lists without entries."""
        return NearLists(np.full((count, KEPT), -1, dtype=np.int32), np.full((count, KEPT), np.inf))

    @staticmethod
    def joined(lists: Sequence[NearLists]) -> NearLists:
        """Return all lists of several."""
        return NearLists(np.concatenate([of.slots for of in lists]), np.concatenate([of.values for of in lists]))

    def __getitem__(self, which: Any) -> NearLists:
        return NearLists(self.slots[which], self.values[which])

    def set(self, which: Any, lists: NearLists) -> None:
        """Replace some lists."""
        self.slots[which], self.values[which] = lists.slots, lists.values

    def add(self, block: Array, start: int) -> None:
        """Put those columns of a block of values, the first of which is slot `start`, into the lists of its rows."""
        block = np.ascontiguousarray(block)
        if (library := _native()) is not None and self.slots.flags.c_contiguous and self.values.flags.c_contiguous:
            keep = getattr(library, _KEEP[block.dtype])
            at = (array.ctypes.data for array in (self.slots, self.values))
            if keep(*block.shape, block.ctypes.data, start, *at):
                return
        self.set(slice(None), self.merged(_nearest(block.copy(), start)))

    def merged(self, others: NearLists) -> NearLists:
        """Return the nearest of these lists and others of the same clusters."""
        slots, values = np.hstack([self.slots, others.slots]), np.hstack([self.values, others.values])
        return NearLists(slots, values).ordered()

    def ordered(self) -> NearLists:
        """Return the first KEPT entries of lists that have more of them, or are not in order."""
        order = np.lexsort((self.slots, self.values), axis=1)[:, :KEPT]
        return NearLists(np.take_along_axis(self.slots, order, 1), np.take_along_axis(self.values, order, 1))


def _nearest(keys: Array, start: int) -> NearLists:
    """Return the lists of some rows, whose first column is slot `start`. The rows are changed."""
    lists, own = NearLists.empty(len(keys)), np.arange(len(keys))
    for k in range(min(KEPT, keys.shape[1])):
        at = keys.argmin(axis=1)
        values = lists.values[:, k] = keys[own, at]
        lists.slots[:, k] = np.where(np.isinf(values), -1, start + at)
        keys[own, at] = np.inf
    return lists


def update_rows(method: str, tasks: Sequence[RowTask], log: MergeLog) -> NearLists:
    """Bring rows up to date in place; return the nearest clusters of each.

    The value between two clusters depends on the order of the merges, not on whose row it is in: of two unions the one
    that was made first is formed first.

    Cost: one pass over each row, and a few nanoseconds for each merge that it has not seen.
    """
    lists = _update_native(method, tasks, log)
    if lists is not None:
        return lists
    lists = NearLists.empty(len(tasks))
    for t, task in enumerate(tasks):
        size = float(log.after[task.slot])
        if task.merge < 0:
            _apply(method, task.row, size, log, task.seen, log.count)
        else:
            _unite(method, task, log)
        lists.set([t], _nearest(np.array([keys_of(method, task.row, size, log.after)]), 0))
    return lists


def keys_of(method: str, row: Array, size: float, sizes: Float) -> Array:
    """Return what the clusters of a row, of these sizes, are compared by: the values, or the means of sums."""
    return row / (size * sizes) if method == "average" else row


def _unite(method: str, task: RowTask, log: MergeLog) -> None:
    k, x, y = task.merge, task.row, task.other
    assert y is not None
    a, b, size_a, size_b = log.a[k], log.b[k], log.size_a[k], log.size_b[k]
    _apply(method, x, size_a, log, task.seen, k)
    _apply(method, y, size_b, log, task.other_seen, k)
    sizes = log.before.copy()
    earlier = slice(log.rounds[-1], k)
    sizes[log.a[earlier]] += log.before[log.b[earlier]]
    x[:] = _joined(method, x, y, size_a, size_b, sizes, log.heights[k])
    x[[a, b]] = np.inf
    _apply(method, x, size_a + size_b, log, k + 1, log.count)


def _apply(method: str, x: Array, size: float, log: MergeLog, first: int, last: int) -> None:
    """Apply merges to a row of a cluster of this size, a round at a time."""
    at = int(np.searchsorted(log.rounds, first, side="right"))
    while first < last:
        end = min(last, log.rounds[at] if at < len(log.rounds) else log.count)
        own = slice(first, end)
        a, b = log.a[own], log.b[own]
        x[a] = _joined(method, x[a], x[b], log.size_a[own], log.size_b[own], size, log.heights[own])
        x[b] = np.inf
        first, at = end, at + 1


def _joined(method: str, x: Array, y: Array, a: Any, b: Any, c: Any, height: Any) -> Array:
    if method in ("single", "complete"):
        return np.minimum(x, y) if method == "single" else np.maximum(x, y)
    if method == "average":
        return x + y
    p, q = x.astype(np.float64), y.astype(np.float64)
    value = 0.5 * (p + q) if method == "weighted" else ((a + c) * p + (b + c) * q - c * height) / (a + b + c)
    rounded, least = value.astype(x.dtype), np.minimum(x, y)
    low = (x != y) & (rounded <= least)
    rounded[low] = np.nextafter(least[low], np.array(np.inf, dtype=x.dtype))
    return rounded


_UPDATE, _KEEP = native.by_type("update_rows"), native.by_type("keep_nearest")


@cache
def _native() -> Any | None:
    """Return the compiled kernel, or None where it was not built or cannot run."""
    native.vector_kernels(_KEEP.values(), ctypes.c_int, LONG, LONG, POINTER, LONG, POINTER, POINTER)
    return native.vector_kernels(
        _UPDATE.values(), ctypes.c_int, ctypes.c_int, LONG, LONG, *(POINTER,) * 11, LONG, LONG, *(POINTER,) * 4
    )


def _update_native(method: str, tasks: Sequence[RowTask], log: MergeLog) -> NearLists | None:
    library = _native()
    if library is None or not tasks:
        return None
    count, wide = len(tasks), len(tasks[0].row)
    numbers = np.array(
        [(task.row.ctypes.data, 0 if task.other is None else task.other.ctypes.data, task.seen, task.other_seen,
          task.merge, task.slot) for task in tasks], dtype=np.int64,
    ).T.copy()  # fmt: skip
    lists = NearLists.empty(count)
    done = getattr(library, _UPDATE[tasks[0].row.dtype])(
        METHODS.index(method), count, wide, *(of.ctypes.data for of in numbers), log.a.ctypes.data, log.b.ctypes.data,
        log.size_a.ctypes.data, log.size_b.ctypes.data, log.heights.ctypes.data, log.rounds[-1] if log.rounds else 0,
        log.count, log.before.ctypes.data, log.after.ctypes.data, lists.slots.ctypes.data,
        lists.values.ctypes.data,
    )  # fmt: skip
    return lists if done else None  # no memory: nothing was changed
