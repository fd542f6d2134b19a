"""What takes part in a scan: reductions of all tiles, each declared by a kernel, its data and its memory.

    consumer = Consumer(kernel, finish, shares(source, labels=labels), part_bytes=..., task_memory=...)

A kernel says what an empty partial result is, how a tile is added to it, and how two are combined. If its result is
*in strips* there is a partial result for each strip of objects, else one for all. How tiles are grouped, which data a
task gets, and which objects a tile is about is written here, once for all kernels.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dasrel.store.layout import Layout, TileSource
from dasrel.util import Array

MAX_GROUPS_PER_SIDE = 63  # 2,016 groups at most: task counts stay in the thousands


@dataclass(frozen=True)
class Plan:
    """The grouping of tiles into tasks. Follows from the layout and from the tiles that are wanted."""

    layout: Layout
    only: frozenset[int] | None = None
    """Rows or columns of tiles: only tiles in one of them are read; None reads all."""

    @cached_property
    def group_side(self) -> int:
        """Number of tiles along each side of a group."""
        n_blocks = self.layout.n_blocks
        return max(math.ceil(n_blocks / MAX_GROUPS_PER_SIDE), 2 if n_blocks >= 12 else 1)

    @cached_property
    def strips(self) -> int:
        """Number of groups along each side of the matrix."""
        return math.ceil(self.layout.n_blocks / self.group_side)

    def groups(self) -> list[tuple[int, int]]:
        """List the groups of the upper triangle, row by row: the order in which partial results are combined."""
        groups = [(a, b) for a in range(self.strips) for b in range(a, self.strips)]
        if self.only is None:
            return groups
        wanted = {k // self.group_side for k in self.only}
        return [(a, b) for a, b in groups if a in wanted or b in wanted]

    def tiles(self, group: tuple[int, int]) -> list[tuple[int, int]]:
        """List the stored tiles of a group, in order."""
        g, last = self.group_side, self.layout.n_blocks
        rows, columns = (range(k * g, min((k + 1) * g, last)) for k in group)
        only = self.only
        return [(i, j) for i in rows for j in columns if i <= j and (only is None or i in only or j in only)]

    def span(self, strip: int) -> slice:
        """Return the objects of a strip of groups."""
        width = self.group_side * self.layout.tile
        return slice(strip * width, min((strip + 1) * width, self.layout.n_objects))

    def inside(self, i: int) -> slice:
        """Return the objects of tile row i, counted from the start of its strip of groups."""
        whole, start = self.layout.span(i), self.span(i // self.group_side).start
        return slice(whole.start - start, whole.stop - start)


@dataclass(eq=False)
class Share:
    """What a kernel is given of the objects of one strip; it is sent to the tasks of that strip."""

    start: int = 0
    """The first object."""
    itself: Array | None = None
    """The objects' self-similarities."""
    arrays: Any = None
    """Arrays by name, (..., objects), or whatever else `shares` was told to make."""

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex  # used once: hashing the numbers would be a waste

    def __sizeof__(self) -> int:
        arrays = self.arrays.values() if isinstance(self.arrays, dict) else self.arrays or ()
        own = 0 if self.itself is None else self.itself.nbytes
        return int(own + sum(array.nbytes for array in arrays))


def shares(source: TileSource, **arrays: Array | None) -> Callable[[slice], Share]:
    """Return the function that cuts arrays of (..., n) into the shares of strips; None stays None."""
    itself = source.diagonal

    def share(span: slice) -> Share:
        cut = {name: np.ascontiguousarray(array[..., span]) for name, array in arrays.items() if array is not None}
        return Share(span.start, None if itself is None else itself[span], cut)

    return share


@dataclass(frozen=True)
class Side:
    """The objects along one side of a tile. Both sides of a tile on the diagonal are the same `Side`."""

    span: slice
    """The objects."""
    inside: slice
    """The same, counted from the start of their strip: their place in shares and partial results."""
    share: Share

    @property
    def itself(self) -> Array | None:
        """Their self-similarities."""
        return None if self.share.itself is None else self.share.itself[self.inside]

    def get(self, name: str) -> Any:
        """Return a named array of the share for these objects; None if there is none."""
        array = self.share.arrays.get(name)
        return None if array is None else array[..., self.inside]


class Kernel:
    """The part of a reduction that runs on the tiles: small, picklable, the same for every task."""

    in_strips: ClassVar[bool] = False
    """Whether there is a result for each strip; such results are summed along a chain, others along a tree."""

    def empty(self, objects: int) -> Any:
        """Return an empty partial result, of so many objects where results are in strips."""
        raise NotImplementedError

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        """Return the partial result with one more tile.

        In strips, `partial` is a pair: that of the rows' strip and that of the columns' strip, which are changed.
        """
        raise NotImplementedError

    def pack(self, partial: Any, dtype: np.dtype[Any]) -> Any:
        """Return a finished partial result as it is sent, given the type of the tiles."""
        return partial

    def combine(self, first: Any, second: Any) -> Any:
        """Combine two partial results of the same key, in the order of the plan, without changing them."""
        return first + second

    def accumulate(self, first: Any, second: Any) -> Any:
        """As `combine`, with the same bits, but `first` came from `combine` and may be overwritten."""
        return self.combine(first, second)


class SumsInStrips(Kernel):
    """A kernel whose partial results are lists of arrays of float64 sums, (..., objects), sent in the tiles' type."""

    in_strips = True

    def pack(self, partial: list[Array], dtype: np.dtype[Any]) -> list[Array]:
        return [sums.astype(dtype, copy=False) for sums in partial]  # half as many bytes to send and to hold

    def combine(self, first: list[Array], second: list[Array]) -> list[Array]:
        return [np.add(x, y, dtype=np.float64) for x, y in zip(first, second, strict=True)]

    def accumulate(self, first: list[Array], second: list[Array]) -> list[Array]:
        for x, y in zip(first, second, strict=True):
            x += y
        return first


@dataclass(frozen=True)
class Consumer:
    """A computation that takes part in a scan and sees every tile."""

    kernel: Kernel
    finish: Callable[[dict[int, Any]], Any] = lambda parts: parts[0]
    """Makes the result from the combined partial results, by strip or for key 0; it may consume them."""
    share: Callable[[slice], Share] = lambda span: Share(span.start)
    """Returns the data that the kernel needs of a strip of objects."""
    part_bytes: int = 0
    """Size of the partial result of one group."""
    task_memory: int = 0
    """Bytes that one task takes for this consumer at its peak."""
    fixed_memory: int = 0
    """Bytes that the caller holds for this consumer while the scan runs."""
    share_bytes: int = 0
    """Bytes of the shares of all strips: a worker may hold them all in the end."""


def strip_consumer(
    source: TileSource,
    kernel: Kernel,
    finish: Callable[[dict[int, Any]], Any],
    share: Callable[[slice], Share],
    *,
    sent: int,
    held: int,
    scratch: int,
    fixed: int = 0,
    shared: int = 0,
) -> Consumer:
    """Make the consumer of a kernel in strips, with its memory in bytes per object.

    `sent` of a finished partial result, `held` of those of a task at its peak, `fixed` in the caller, `shared` of the
    share; and `scratch` for each task besides.
    """
    n, strip = source.layout.n_objects, Plan(source.layout).group_side * source.layout.tile
    return Consumer(
        kernel, finish, share, part_bytes=2 * strip * sent, task_memory=strip * held + scratch,
        fixed_memory=n * fixed, share_bytes=n * shared,
    )  # fmt: skip


def join_strips(plan: Plan, parts: dict[int, Any], results: Sequence[Array]) -> None:
    """Write lists of arrays by strip into complete ones of (..., n), releasing them: there is no room for both."""
    for strip in list(parts):
        for result, part in zip(results, parts.pop(strip), strict=True):
            result[..., plan.span(strip)] = part[: len(result)]


class PartialResult:
    """The partial result of one kernel for one group of tiles."""

    def __init__(self, kernel: Kernel, plan: Plan, group: tuple[int, int], pair: tuple[Share, Share]) -> None:
        self._kernel, self._plan, self._strips = kernel, plan, group
        self._shares = dict(zip(group, pair, strict=True))
        spans = {strip: plan.span(strip) for strip in group}
        keys = {strip: span.stop - span.start for strip, span in spans.items()} if kernel.in_strips else {0: 0}
        self._partial = {key: kernel.empty(objects) for key, objects in keys.items()}

    def add(self, tile: Array, i: int, j: int) -> None:
        """Add tile (i, j)."""
        plan, (a, b) = self._plan, self._strips
        rows = Side(plan.layout.span(i), plan.inside(i), self._shares[a])
        columns = rows if i == j else Side(plan.layout.span(j), plan.inside(j), self._shares[b])
        if self._kernel.in_strips:
            self._kernel.add((self._partial[a], self._partial[b]), tile, rows, columns)
        else:
            self._partial[0] = self._kernel.add(self._partial[0], tile, rows, columns)

    def parts(self) -> dict[int, Any]:
        """Return the finished partial result by key: its strip, or 0 where there is one result for all."""
        dtype = self._plan.layout.dtype
        return {key: self._kernel.pack(partial, dtype) for key, partial in self._partial.items()}
