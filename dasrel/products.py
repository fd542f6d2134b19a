"""Products with the matrix by one scan: U F(matrix) for any number of columns and views at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel import skinny, tiles
from dasrel.errors import InputError, count_text
from dasrel.graph import Consumer, Plan
from dasrel.scan import TileSource, prepare_scan
from dasrel.tiles import Strips, View

Array = NDArray[Any]


class Products:
    """Products U F(matrix) for columns U of fixed number, planned once and run for any values of the columns.

    float32 tiles are multiplied in float32, panel by panel, and summed in float64; float64 tiles stay float64.

    Parameters
    ----------
    wanted
        (view F, number of columns k) of each product; all are taken from the same read.
    memory
        As in `scan`.

    Cost: none; memory is estimated, and compared with the limit when the products are run.
    """

    def __init__(
        self, source: TileSource, wanted: Sequence[tuple[View, int]], *, memory: int | str | None = None
    ) -> None:
        self._source = source
        self._wanted = tuple(wanted)
        self._scan = prepare_scan(source, [product_shape(source, wanted)], memory=memory)

    def run(self, columns: Sequence[Array]) -> list[NDArray[np.float64]]:
        """For each product, given U of k x n: U F(matrix), float64, k x n.

        Cost: one scan; k n numbers in, k n float64 numbers out.
        """
        _check_columns(self._source, columns)
        widths, given = [k for _, k in self._wanted], [len(u) for u in columns]
        if given != widths:
            raise InputError(f"products planned for {widths} columns cannot be run with {given}")
        pairs = [(view, u) for (view, _), u in zip(self._wanted, columns, strict=True)]
        return list(self._scan.run([_share(self._source, pairs)])[0])


def check_shapes(source: TileSource, columns: Sequence[Array]) -> None:
    """Refuse columns U that are not k x n."""
    n = source.layout.n_objects
    for u in columns:
        if u.ndim != 2 or u.shape[1] != n:
            raise InputError(f"columns of shape {u.shape} do not fit {count_text(n, 'object')}")


def _check_columns(source: TileSource, columns: Sequence[Array]) -> None:
    check_shapes(source, columns)
    for u in columns:
        if not np.isfinite(u).all():
            raise InputError("the columns to be multiplied hold NaN or infinite values")


def product_consumer(source: TileSource, wanted: Sequence[tuple[View, Array]]) -> Consumer:
    """Make the consumer of products U F(matrix) for a scan that is shared with others, given (view F, U of k x n)."""
    _check_columns(source, [u for _, u in wanted])
    shape = product_shape(source, [(view, len(u)) for view, u in wanted])
    return replace(shape, share=_share(source, wanted))


def _in_order(wanted: Sequence[tuple[View, Any]]) -> list[int]:
    """Equal views side by side: each is applied once to a tile."""
    return sorted(range(len(wanted)), key=lambda k: (str(wanted[k][0]), k))


def _share(source: TileSource, wanted: Sequence[tuple[View, Array]]) -> Callable[[slice], Share]:
    order, dtype, diagonal = _in_order(wanted), source.layout.dtype, source.diagonal

    def share(span: slice) -> Share:
        columns = [_padded(wanted[k][1][:, span], dtype) for k in order]
        return Share(columns, None if diagonal is None else diagonal[span])

    return share


def product_shape(source: TileSource, wanted: Sequence[tuple[View, int]]) -> Consumer:
    """Make the consumer of products with so many columns of each view, without the columns themselves.

    Its memory can be estimated, and a scan prepared with it; `run` is given the columns.
    """
    layout, plan, order = source.layout, Plan(source.layout), _in_order(wanted)

    def finish(parts: dict[int, Any]) -> list[NDArray[np.float64]]:
        results = [np.empty((k, layout.n_objects)) for _, k in wanted]
        for strip in list(parts):
            sums = parts.pop(strip)  # let go of, strip by strip: there is never room for two of the whole
            for place, k in enumerate(order):
                results[k][:, plan.span(strip)] = sums[place][: len(results[k])]
        return results

    side, itemsize = layout.tile, layout.dtype.itemsize
    columns = sum(_padded_width(k) for _, k in wanted)
    strip = plan.group_side * side
    panel = tiles.panel_rows((side, side), itemsize, columns) * side * itemsize
    panel *= max((view.panels for view, _ in wanted), default=1)
    scratch = max((skinny.scratch_memory(k, side, itemsize) for _, k in wanted), default=0)
    return Consumer(
        _ProductKernel(tuple(wanted[k][0] for k in order)),
        finish,
        in_strips=True,
        part_bytes=2 * strip * columns * itemsize,
        # Two partial sums, one more while they are added to the whole, the float32 product of a panel, its view.
        task_memory=3 * strip * columns * 8 + side * columns * itemsize + panel + scratch,
        fixed_memory=layout.n_objects * columns * (itemsize + 16),
        share_bytes=layout.n_objects * columns * itemsize,
    )


def _padded_width(columns: int) -> int:
    """Columns that are multiplied for so many that are asked for.

    BLAS kernels are four columns wide and slow for what is left over: measured on one core, ms a tile, 3 take 22 and 4
    take 13, 47 take 59 and 48 take 51, 63 take 74 and 64 take 67. A single column is another routine, at the speed of
    memory. The compiled kernel takes any number.
    """
    if columns == 1 or (columns <= skinny.MOST_COLUMNS and skinny.available()):
        return columns
    return -(-columns // 4) * 4


def _padded(columns: Array, dtype: np.dtype[Any]) -> Array:
    width = _padded_width(len(columns))
    if width == len(columns):
        return np.ascontiguousarray(columns, dtype=dtype)
    padded = np.zeros((width, columns.shape[1]), dtype=dtype)
    padded[: len(columns)] = columns
    return padded


@dataclass
class Share:
    """Columns of U for the objects of one strip, and the objects' self-similarities."""

    columns: list[Array]
    itself: Array | None

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex  # used once: reading the numbers to name them would be a waste

    def __sizeof__(self) -> int:
        return sum(part.nbytes for part in self.columns)


@dataclass(frozen=True)
class _ProductKernel:
    views: tuple[View, ...]

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Share, Share]) -> Any:
        a, b = group
        sums = {strip: [np.zeros(u.shape) for u in share.columns] for strip, share in zip(group, shares, strict=True)}
        return plan, a, b, shares, sums

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, a, b, (rows, columns), sums = partial
        r, c = plan.inside(i), plan.inside(j)
        wanted = [
            (
                view,
                Strips(
                    u[:, r], v[:, c],
                    None if rows.itself is None else rows.itself[r],
                    None if columns.itself is None else columns.itself[c],
                ),
            )
            for view, u, v in zip(self.views, rows.columns, columns.columns, strict=True)
        ]  # fmt: skip
        down = [s[:, r] for s in sums[a]]
        across = None if i == j else [s[:, c] for s in sums[b]]
        tiles.add_products(tile, wanted, down, across)
        return partial

    def parts(self, partial: Any) -> dict[int, Any]:
        # In the tiles' own precision, as the products were: half as much to send, and to hold.
        shares, sums = partial[3], partial[4]
        dtype = shares[0].columns[0].dtype
        return {strip: [s.astype(dtype, copy=False) for s in of_strip] for strip, of_strip in sums.items()}

    def combine(self, first: list[Array], second: list[Array]) -> list[Array]:
        return [np.add(x, y, dtype=np.float64) for x, y in zip(first, second, strict=True)]

    def accumulate(self, first: list[Array], second: list[Array]) -> list[Array]:
        for x, y in zip(first, second, strict=True):
            x += y
        return first
