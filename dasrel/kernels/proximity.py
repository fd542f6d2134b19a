"""Products of kernels with proximity matrices of fuzzy partitions, on a panel: <K, P>, <K, K>, <P, P>, sums of K.

P has p_kl = sum_i min(u_ik, u_il) (Q09 3). The compiled kernel (`proximity.c`) makes it in blocks that stay in the
cache, for all partitions, and multiplies them with the kernels of all widths; Gaussian kernels of float32 numbers are
made there, too. Neither P nor K is written. Without the library NumPy makes them panel by panel. The rate of the
min-sum is measured in `bench/structure.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from dasrel.kernels import native
from dasrel.kernels.exponential import exponential
from dasrel.kernels.native import LONG, POINTER
from dasrel.util import Array, Float


@dataclass(frozen=True, eq=False)
class InnerProducts:
    """Sums over ordered pairs of objects, float64, for W kernels and p partitions."""

    products: Float
    """<K, P>, (W, p)."""
    squares: Float
    """<K, K>, (W,)."""
    own: Float
    """<P, P>, (p,)."""

    @staticmethod
    def zeros(widths: int, partitions: int) -> InnerProducts:
        """Return sums over no pairs."""
        return InnerProducts(np.zeros((widths, partitions)), np.zeros(widths), np.zeros(partitions))

    def add(self, other: InnerProducts, weight: float = 1.0) -> None:
        """Add other sums, in place."""
        for mine, more in zip(self.arrays, other.arrays, strict=True):
            mine += weight * more

    @property
    def arrays(self) -> tuple[Float, Float, Float]:
        """All sums, to be changed in place."""
        return self.products, self.squares, self.own


@dataclass(frozen=True)
class Gaussians:
    """Kernels exp(-x / (2 w^2)) of numbers x for several widths w; exp(-x^2 / (2 w^2)) if `squared`."""

    widths: tuple[float, ...]
    squared: bool

    @property
    def factors(self) -> Float:
        """What x is multiplied by, (W,)."""
        return np.array([-1 / (2 * w * w) for w in self.widths])


def add_inner_products(
    panels: Array,
    rows: Array,
    columns: Array,
    first: Sequence[int],
    sums: InnerProducts,
    row_sums: Float,
    column_sums: Float | None,
    gaussians: Gaussians | None = None,
) -> None:
    """Add the inner products of a panel of each kernel with the same panel of each P, and the panels' own sums.

    Parameters
    ----------
    panels
        (W, height, width): the kernels between objects of the rows and objects of the columns. With `gaussians`
        (1, height, width): the numbers that they are made of.
    rows, columns
        Memberships of these objects, (clusters, height) and (clusters, width), in the type of the panels; those of
        partition p are from first[p] to below first[p + 1].
    row_sums, column_sums
        (W, height) and (W, width): the sums of K are added here; the latter not where it is None.

    Cost: one minimum and one addition for each number of the panel and each cluster; see `scratch_memory`.
    """
    if gaussians is not None and not can_make_gaussians(panels.dtype):
        made = np.empty((len(gaussians.widths), *panels.shape[1:]), panels.dtype)
        for panel, factor in zip(made, gaussians.factors.tolist(), strict=True):
            exponential(panels[0], factor, panel, squared=gaussians.squared)
        panels, gaussians = made, None
    if _add_native(panels, rows, columns, first, sums, row_sums, column_sums, gaussians):
        return
    row_sums += panels.sum(axis=2, dtype=np.float64)
    if column_sums is not None:
        column_sums += panels.sum(axis=1, dtype=np.float64)
    wide = panels.reshape(len(panels), -1).astype(np.float64)
    sums.squares[:] += [panel @ panel for panel in wide]  # one by one: the same bits for any number of widths at once
    for p, (begin, end) in enumerate(pairwise(first)):
        P = proximity(rows[begin:end], columns[begin:end]).astype(np.float64).ravel()
        sums.own[p] += P @ P
        sums.products[:, p] += [panel @ P for panel in wide]


def can_make_gaussians(dtype: Any) -> bool:
    """Tell whether the compiled kernel makes Gaussian kernels of numbers of this type by itself."""
    return _native() is not None and dtype == np.float32


def proximity(rows: Array, columns: Array) -> Array:
    """Return P between two sets of objects, given their memberships (clusters, objects), in their type (Q09 3)."""
    P = np.zeros((rows.shape[1], columns.shape[1]), dtype=rows.dtype)
    least = np.empty_like(P)
    for u, v in zip(rows, columns, strict=True):
        P += np.minimum(u[:, None], v[None, :], out=least)
    return P


def proximity_sums(memberships: Array) -> Float:
    """Return the row sums of P, (n,), for memberships (clusters, n). Cost: they are sorted; no matrix is formed.

    >>> proximity_sums(np.array([[1.0, 0.25, 0.0]])).tolist()
    [1.25, 0.5, 0.0]
    """
    n = memberships.shape[1]
    total = np.zeros(n)
    for u in memberships:
        order = np.argsort(u, kind="stable")
        ranked = u[order].astype(np.float64)
        total[order] += np.cumsum(ranked) + ranked * np.arange(n - 1, -1, -1)  # smaller ones, and u for the larger
    return total


def scratch_memory(
    widths: int, partitions: int, clusters: int, shape: tuple[int, int], dtype: np.dtype[Any], *, gaussians: bool
) -> int:
    """Return the bytes that one call takes for panels of this shape; see `proximity.c`."""
    rows, columns = shape
    made = 0 if not gaussians or can_make_gaussians(dtype) else widths * rows * columns * dtype.itemsize
    if _native() is not None:
        lanes = widths * (partitions + 4 + rows) + partitions
        return made + (clusters * 68 + (partitions + 3 + widths) * 256 + widths * 64) * dtype.itemsize + 64 * lanes
    return made + rows * columns * (2 * dtype.itemsize + 8 * (2 + widths))


_FUNCTIONS = native.by_type("alignment")


@cache
def _native() -> Any | None:
    """Return the compiled kernel, or None where it was not built or cannot run."""
    return native.vector_kernels(
        _FUNCTIONS.values(), ctypes.c_int, POINTER, *(LONG,) * 5, POINTER, ctypes.c_int, *(POINTER, LONG) * 3,
        *(POINTER,) * 3, *(POINTER, LONG) * 2,
    )  # fmt: skip


def _add_native(
    panels: Array,
    rows: Array,
    columns: Array,
    first: Sequence[int],
    sums: InnerProducts,
    row_sums: Float,
    column_sums: Float | None,
    gaussians: Gaussians | None,
) -> bool:
    library, name, size = _native(), _FUNCTIONS.get(panels.dtype), panels.itemsize
    flat = [rows, columns, row_sums, *([] if column_sums is None else [column_sums])]
    regular = all(native.in_rows(array) for array in (*flat, *panels))
    if library is None or name is None or not regular or not all(array.flags.c_contiguous for array in sums.arrays):
        return False
    bounds = np.array(first, dtype=np.int64)
    factors = None if gaussians is None else gaussians.factors.astype(np.float32)
    widths = len(panels) if factors is None else len(factors)
    done = getattr(library, name)(
        panels.ctypes.data, panels.strides[0] // size if factors is None else 0, panels.strides[1] // size,
        widths, *panels.shape[1:], None if factors is None else factors.ctypes.data,
        gaussians is not None and gaussians.squared,
        rows.ctypes.data, rows.strides[0] // size, columns.ctypes.data, columns.strides[0] // size,
        bounds.ctypes.data, len(bounds) - 1, *(array.ctypes.data for array in sums.arrays),
        row_sums.ctypes.data, row_sums.strides[0] // 8,
        None if column_sums is None else column_sums.ctypes.data,
        0 if column_sums is None else column_sums.strides[0] // 8,
    )  # fmt: skip
    return bool(done)
