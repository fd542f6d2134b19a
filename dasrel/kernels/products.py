"""Views of a tile and products with it: pure functions.

A tile is processed in *panels*, bands of rows small enough to stay in the processor's cache. A panel is fetched from
memory once; the view is applied to it and both products, with the tile and with its transpose, are computed while it is
in the cache. Measured at n = 20,480, 4 columns, 2 cores: 0.08 s per scan, against 0.14 s for complete tiles.

Products with few columns are computed by a compiled kernel. `products.c` is compiled when dasrel is installed on a
machine with a C compiler; it runs on x86-64 processors with AVX2 and FMA, and on 64-bit ARM. BLAS computes them
elsewhere, and always where there are many columns. Measured on one core with AVX2 for a tile of 4,096 x 4,096 float32
(both products, ms; reading it alone takes 3.0):

    columns    1     2     3     4     5     8    16    32
    BLAS     5.7  14.6  20.2  12.7  18.5  15.9  22.3  34.9
    kernel   3.8   4.8   5.3   5.3   6.2   8.8  16.3  33.7
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.kernels import native
from dasrel.kernels.exponential import exponential
from dasrel.kernels.native import LONG, POINTER
from dasrel.names import is_similarity
from dasrel.util import Array

PANEL_BYTES = 4 * 2**20
WIDE = 48
"""Columns from which a product is bound by arithmetic. There, and where no view is applied, panels are four times as
high: fewer sums to add, and a thread waits less often for the interpreter lock."""
STEPS = (
    "power", "exponential", "log", "gaussian", "kernel-distance", "spread", "floor", "plus-power", "plus-exponential",
    "plus-log",
)  # fmt: skip
"""The elementwise steps that a view can be made of; D is the squared dissimilarity that reaches the step.

    power, a               D^a                              K14, power fit
    exponential, a         (1 - exp(-a sqrt(D)))^2          K14, exponential fit
    log, a                 log2(1 + sqrt(D)^a)^2            K14, log fit
    gaussian, s            exp(-D / (2 s^2))                a kernel, F10
    kernel-distance, s     2 - 2 exp(-D / (2 s^2))          squared distances in that kernel's space, F10 (15)
    spread, b              D + b off the diagonal           K14, beta-spread
    floor, b               at least b off the diagonal
    plus-power, (g, a)     D + g D^a                        K14 (13), and so plus-exponential and plus-log

Power, exponential and log are defined for D >= 0; a negative D, which only similarities can give, counts as 0 there.
"""
Parameter = float | tuple[float, ...]


@dataclass(frozen=True)
class View:
    """A transformation of stored values: the kind makes squared dissimilarities, to which the steps are applied."""

    kind: str
    steps: tuple[tuple[str, Parameter], ...] = ()

    def then(self, step: str, parameter: Parameter) -> View:
        """Return this view with one more step."""
        numbers = parameter if isinstance(parameter, tuple) else (parameter,)
        positive = all(np.isfinite(a) and (a > 0 or (step == "spread" and a >= 0)) for a in numbers)
        if step not in STEPS or not positive or len(numbers) != (2 if step.startswith("plus-") else 1):
            raise InputError(
                f"a view's step is one of {', '.join(STEPS)} with a number above 0 (two for plus-...), not"
                f" {step}({', '.join(map(str, numbers))})"
            )
        kept = tuple(float(a) for a in numbers)
        return View(self.kind, (*self.steps, (step, kept if isinstance(parameter, tuple) else kept[0])))

    @property
    def panels(self) -> int:
        """Number of panels of scratch memory that it takes."""
        return 1 + any(step.startswith("plus-") for step, _ in self.steps)

    @property
    def is_identity(self) -> bool:
        """Whether the stored values are used unchanged."""
        return self.kind == "squared-distance" and not self.steps

    @property
    def at_zero(self) -> float:
        """The view of a squared dissimilarity of 0: the diagonal."""
        return float(self._stepped(np.zeros((1, 1)), on_diagonal=True)[0, 0])

    def apply(
        self,
        values: Array,
        buffer: Array,
        *,
        offset: int | None = None,
        row_self: Array | None,
        column_self: Array | None,
    ) -> Array:
        """Return the view of a band of values, in `buffer` (same shape and type); `values` itself for the identity.

        Parameters
        ----------
        offset
            Column of the first row's diagonal element where the band crosses the matrix's diagonal, else None.
        row_self, column_self
            Self-similarities of the rows' and columns' objects, for kinds similarity and kernel.
        """
        if self.is_identity:
            return values
        if [step for step, _ in self.steps] == ["gaussian"] and not is_similarity(self.kind):
            width = self.steps[0][1]
            assert isinstance(width, float)
            exponential(values, -1 / (2 * width * width), buffer, squared=self.kind == "distance")
            if offset is not None:
                buffer[np.arange(len(buffer)), offset + np.arange(len(buffer))] = 1
            return buffer
        if self.kind == "squared-distance":
            np.copyto(buffer, values)
        elif self.kind == "distance":
            np.multiply(values, values, out=buffer)
        else:
            assert row_self is not None
            assert column_self is not None
            np.multiply(values, -2, out=buffer)
            buffer += row_self[:, None].astype(buffer.dtype, copy=False)
            buffer += column_self[None, :].astype(buffer.dtype, copy=False)
        diagonal = None if offset is None else (np.arange(len(buffer)), offset + np.arange(len(buffer)))
        if diagonal is not None and is_similarity(self.kind):
            buffer[diagonal] = 0  # not exact because of rounding
        self._stepped(buffer, on_diagonal=False)
        if diagonal is not None:
            buffer[diagonal] = self.at_zero
        return buffer

    def _stepped(self, x: Array, *, on_diagonal: bool) -> Array:
        """Apply the steps in place."""
        for step, parameter in self.steps:
            if isinstance(parameter, tuple):
                weight, a = parameter
                added = x.copy()
                _fit(added, step.removeprefix("plus-"), a)
                added *= weight
                x += added
            elif step in ("power", "exponential", "log"):
                _fit(x, step, parameter)
            elif step == "gaussian":
                exponential(x, -1 / (2 * parameter * parameter), x)
            elif step == "kernel-distance":
                x *= -1 / (2 * parameter * parameter)
                np.expm1(x, out=x)
                x *= -2
            elif step == "spread" and not on_diagonal:
                x += parameter
            elif step == "floor" and not on_diagonal:
                np.maximum(x, parameter, out=x)
        return x


def _fit(x: Array, step: str, a: float) -> None:
    """Apply power, exponential or log to squared dissimilarities, in place."""
    np.maximum(x, 0, out=x)
    if step == "power":
        np.power(x, a, out=x)
    elif step == "exponential":
        np.sqrt(x, out=x)
        x *= -a
        np.expm1(x, out=x)
        np.multiply(x, x, out=x)
    else:
        np.power(x, a / 2, out=x)
        np.log1p(x, out=x)
        x *= 1 / np.log(2)
        np.multiply(x, x, out=x)


@dataclass(frozen=True)
class Strips:
    """The factors of a tile's products, of its row and column strips; each array is (columns, objects of the strip)."""

    rows: Array
    columns: Array
    row_self: Array | None = None
    column_self: Array | None = None


def panel_rows(shape: tuple[int, int], itemsize: int, columns: int = 1, *, viewed: bool = True) -> int:
    """Return the number of rows of a panel that stays in the cache."""
    size = PANEL_BYTES * (1 if viewed and columns < WIDE else 4)
    return max(1, min(shape[0], max(16, size // max(1, shape[1] * itemsize))))


def panels(shape: tuple[int, int], height: int) -> Iterator[slice]:
    """Yield the bands of rows in which a tile is processed."""
    for start in range(0, shape[0], height):
        yield slice(start, min(start + height, shape[0]))


def add_products(
    tile: Array,
    wanted: Sequence[tuple[View, Strips]],
    row_sums: Sequence[Array],
    column_sums: Sequence[Array] | None,
) -> None:
    """Add the products with one tile seen through several views to float64 sums, in one pass over the tile.

    For each wanted (view F, strips): `row_sums += strips.columns @ F(tile).T` and, unless the tile lies on the diagonal
    (`column_sums` is None), `column_sums += strips.rows @ F(tile)`. Products are computed in the tile's own precision.

    Cost: one read of the tile; one panel of scratch memory.
    """
    on_diagonal = column_sums is None
    columns = tile.shape[1]
    widths = [len(strips.rows) for _, strips in wanted]
    viewed = not all(view.is_identity for view, _ in wanted)
    height = panel_rows(tile.shape, tile.itemsize, sum(widths), viewed=viewed)
    buffer = np.empty((height, columns), dtype=tile.dtype) if viewed else None
    down = np.empty(max(widths) * height, dtype=tile.dtype)  # products of a panel, before they are added in float64
    across = np.empty(max(widths) * columns, dtype=tile.dtype)
    for band in panels(tile.shape, height):
        values = tile[band]
        high = len(values)
        space = values if buffer is None else buffer[:high]
        seen: tuple[View, Array] | None = None
        for k, (view, strips) in enumerate(wanted):
            if seen is None or seen[0] != view:
                row_self = None if strips.row_self is None else strips.row_self[band]
                offset = band.start if on_diagonal else None
                seen = (
                    view,
                    view.apply(values, space, offset=offset, row_self=row_self, column_self=strips.column_self),
                )
            panel, width = seen[1], widths[k]
            here, there = row_sums[k][:, band], None if column_sums is None else column_sums[k]
            if _add_products_native(panel, strips.rows[:, band], strips.columns, here, there):
                continue
            here += np.matmul(strips.columns, panel.T, out=down[: width * high].reshape(width, high))
            if there is not None:
                there += np.matmul(strips.rows[:, band], panel, out=across[: width * columns].reshape(width, columns))


MOST_COLUMNS = 32
"""Most columns for the compiled kernel; with more, BLAS is as fast."""
_FUNCTIONS = native.by_type("add_products")


@cache
def _native_products() -> Any | None:
    """Return the compiled kernel, or None where it was not built or cannot run."""
    return native.vector_kernels(_FUNCTIONS.values(), ctypes.c_int, POINTER, *(LONG,) * 4, *(POINTER, LONG) * 4)


def has_native_products() -> bool:
    """Tell whether the compiled kernel is used."""
    return _native_products() is not None


def _add_products_native(
    panel: Array, rows: Array | None, columns: Array | None, row_sums: Array | None, column_sums: Array | None
) -> bool:
    """Compute `row_sums += columns @ panel.T` and `column_sums += rows @ panel`; return False if BLAS must do it.

    Either is omitted where its factors or its sums are None. `rows` (k, height) and `columns` (k, width) have the
    panel's type; the sums are float64.
    """
    library = _native_products()
    down = (columns, row_sums) if columns is not None and row_sums is not None else ()
    across = (rows, column_sums) if rows is not None and column_sums is not None else ()
    arrays = [panel, *down, *across]
    if library is None or len(arrays) == 1 or not all(native.in_rows(array) for array in arrays):
        return False
    name, wide = _FUNCTIONS.get(panel.dtype), len(arrays[1])
    if name is None or wide > MOST_COLUMNS or any(factors.dtype != panel.dtype for factors in arrays[1::2]):
        return False
    size = panel.itemsize
    done = getattr(library, name)(
        panel.ctypes.data, panel.strides[0] // size, *panel.shape, wide,
        *_address(across[:1], size), *_address(down[:1], size), *_address(down[1:], 8), *_address(across[1:], 8),
    )  # fmt: skip
    return bool(done)


def scratch_memory(k: int, columns: int, itemsize: int) -> int:
    """Return the bytes of one call for k columns of factors and a panel of so many columns; see `products.h`."""
    if not has_native_products() or k > MOST_COLUMNS:
        return 0
    return (2 * min(-(-columns // 256) * 256, 4096) + 96) * k * itemsize


def _address(array: Sequence[Array], size: int) -> tuple[int | None, int]:
    """Return the address of an array and the distance between its rows."""
    return (array[0].ctypes.data, array[0].strides[0] // size) if array else (None, 0)
