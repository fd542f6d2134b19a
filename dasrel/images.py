"""Pictures of matrices of any size: the values averaged over the cells of a grid, by one scan or none.

Objects are put in an order and cut into `pixels` cells of nearly equal numbers; the value of a cell of the picture is
the mean over all pairs of its objects, the diagonal included.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.direct import as_matrix
from dasrel.errors import InputError, shown
from dasrel.forest import mirrored, seen_as_dissimilarity
from dasrel.graph import Consumer, Plan
from dasrel.scan import TileSource, scan
from dasrel.tiles import panel_rows, panels
from dasrel.tree import Tree

Array = NDArray[Any]
Float = NDArray[np.float64]

COLOURS = ("gray", "viridis")
DOTS = 100  # dots an inch


def matrix_image(
    matrix: Any,
    order: ArrayLike | None = None,
    pixels: int = 1000,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
) -> Float:
    """The matrix with its objects in an order, downsampled to at most pixels x pixels; float64, symmetric.

    Values are dissimilarities: stored distances or squared distances as they are, similarities as
    max(s_ii + s_jj - 2 s_ij, 0), as in a `Tree`.

    Parameters
    ----------
    order
        The n positions of the objects, first to last; by default as they are stored.

    Cost: one scan; pixels^2 float64 numbers a task and for the result.
    """
    source = as_matrix(matrix, kind=kind)
    consumer = image_consumer(source, order, pixels)
    result: Float = scan(source, [consumer], memory=memory)[0]
    return result


def image_consumer(source: TileSource, order: ArrayLike | None, pixels: int) -> Consumer:
    """The consumer behind `matrix_image`, for a scan that is shared with others; gives the picture."""
    layout, diagonal = source.layout, source.diagonal
    cell = _cells(_checked_order(order, layout.n_objects), pixels)
    sizes = np.bincount(cell)
    side = sizes.size

    def share(span: slice) -> _Share:
        return _Share(cell[span], None if diagonal is None else diagonal[span])

    def finish(parts: dict[int, Any]) -> Float:
        above = parts[0]
        result: Float = (above + above.T) / np.multiply.outer(sizes, sizes)
        return result

    picture = side * side * 8
    tile = 0 if diagonal is None else layout.tile_bytes
    # The picture, one more while two are added, a band of rows in order; a diagonal tile is copied.
    task = 2 * picture + 3 * 8 * 2**20 + layout.tile_bytes + tile
    kernel = _ImageKernel(source.kind, side)
    return Consumer(kernel, finish, share, part_bytes=picture, task_memory=task, fixed_memory=4 * picture)


@dataclass(frozen=True, eq=False)
class _Share:
    """The cells of the objects of one strip, and their self-similarities."""

    cells: Array
    itself: Array | None

    def __sizeof__(self) -> int:
        return int(self.cells.nbytes)


@dataclass(frozen=True)
class _ImageKernel:
    """Sums over the cells, of pairs above the diagonal of the matrix: the picture is this and its mirror image."""

    kind: str
    side: int

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[_Share, _Share]) -> Any:
        return plan, shares, np.zeros((self.side, self.side))

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (of_rows, of_columns), sums = partial
        rows, columns = plan.inside(i), plan.inside(j)
        values = seen_as_dissimilarity(
            tile, self.kind,
            None if of_rows.itself is None else of_rows.itself[rows],
            None if of_columns.itself is None else of_columns.itself[columns],
        )  # fmt: skip
        values = mirrored(values) if i == j else values
        # A diagonal tile has each pair twice, and the mirror image will double it.
        _bin(values, of_rows.cells[rows], of_columns.cells[columns], sums, 0.5 if i == j else 1.0)
        return partial

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Float, second: Float) -> Float:
        return first + second


def _bin(values: Array, row_cells: Array, column_cells: Array, sums: Float, weight: float) -> None:
    """Add the sums of a tile's values over its cells, in float64, to the picture."""
    rows, columns = (np.argsort(cells, kind="stable") for cells in (row_cells, column_cells))
    row_cells, column_cells = row_cells[rows], column_cells[columns]
    starts = np.flatnonzero(np.diff(column_cells, prepend=-1))
    across = column_cells[starts]
    in_order = bool((np.diff(columns) == 1).all())
    for band in panels(values.shape, panel_rows(values.shape, values.itemsize)):
        chosen = values[rows[band]]
        if not in_order:
            chosen = np.take(chosen, columns, axis=1)
        narrow = np.add.reduceat(chosen, starts, axis=1, dtype=np.float64)
        cells = row_cells[band]
        tops = np.flatnonzero(np.diff(cells, prepend=-1))
        small = np.add.reduceat(narrow, tops, axis=0)
        sums[np.ix_(cells[tops], across)] += weight * small


def ivat_image(tree: Tree, pixels: int = 1000) -> Float:
    """The iVAT picture: minimax path dissimilarities in VAT order, downsampled to at most pixels x pixels; float64.

    Where every object has a pixel of its own the values are exact; else they are means, with rounding of the order of
    n times the machine's. In the units of the tree.

    Cost: no scan beyond the tree's; O(n + pixels^2).
    """
    n = tree.n_objects
    cell = _cells(np.arange(n), pixels)
    sizes = np.bincount(cell)
    heights = tree.join_heights()
    if sizes.size == n:
        result = np.zeros((n, n))
        for p in range(n - 1):
            result[p, p + 1 :] = result[p + 1 :, p] = np.maximum.accumulate(heights[p + 1 :])
        return result
    # Each merge of ranges [l, m) and [m, r) puts its height on a rectangle. A range covers of each cell a share, which
    # is 1 up to the cell of its end, a fraction there, and 0 beyond: as running sums from the right, two steps.
    first, last = tree.merges
    begin = np.concatenate([[0], np.cumsum(sizes)])
    sums = np.zeros((sizes.size + 1) ** 2)
    gap = np.arange(1, n)
    for x, sign_x in ((gap, 1.0), (first, -1.0)):
        for y, sign_y in ((last, 1.0), (gap, -1.0)):
            for column, share_x in _steps(x, cell, sizes, begin):
                for row, share_y in _steps(y, cell, sizes, begin):
                    value = heights[1:] * share_x * share_y * (sign_x * sign_y)
                    sums += np.bincount(column * (sizes.size + 1) + row, weights=value, minlength=sums.size)
    steps = sums.reshape(sizes.size + 1, -1)[::-1, ::-1]
    above = np.cumsum(np.cumsum(steps, axis=0), axis=1)[::-1, ::-1][1:, 1:]
    return np.clip(above + above.T, 0, heights.max())


def _steps(place: Array, cell: Array, sizes: Array, begin: Array) -> list[tuple[Array, Float]]:
    """The two steps of the range that ends before each place: at its last full cell, numbered from 1, and after it."""
    at = np.append(cell, sizes.size - 1)[place]
    share = (place - begin[at]) / sizes[at]
    return [(at, 1 - share), (at + 1, share)]


def induced_image(memberships: ArrayLike, order: ArrayLike | None = None, pixels: int = 1000) -> Float:
    """D(U) = 1 - U'U / max(U'U) of memberships U (c x n), K14 (17), in an order, downsampled as a matrix would be.

    The mean of U'U over a cell is the product of the means of U, and its largest value stands on the diagonal, so that
    nothing of size n^2 is formed.

    Cost: no scan; O(c n + c pixels^2).
    """
    U = np.asarray(memberships, dtype=np.float64)
    if U.ndim != 2 or 0 in U.shape:
        raise InputError(f"memberships have shape {U.shape}; (clusters, objects) is needed")
    if not np.isfinite(U).all() or U.min() < 0:
        raise InputError("memberships are finite numbers >= 0; these are not")
    largest = float((U * U).sum(axis=0).max())
    if largest == 0:
        raise InputError("all memberships are 0: D(U) is not defined")
    chosen = _checked_order(order, U.shape[1])
    sizes = np.bincount(_cells(chosen, pixels))
    begin = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    means = np.add.reduceat(U[:, chosen], begin, axis=1) / sizes
    return np.maximum(1 - means.T @ means / largest, 0)


def write_image(
    picture: ArrayLike,
    path: str | os.PathLike[str],
    *,
    n_objects: int | None = None,
    title: str = "",
    label: str = "dissimilarity",
    colours: str = "gray",
) -> None:
    """Write a picture of a matrix to a file (PNG, or what the suffix says), with axes in objects and a colour bar.

    Parameters
    ----------
    n_objects
        How many objects the axes count; by default the picture's side.
    label
        What the values are, beside the colour bar.
    colours
        "gray" (small values black, as VAT pictures are drawn) or "viridis".
    """
    values = np.asarray(picture, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size or not np.isfinite(values).all():
        raise InputError(f"a picture is a square array of finite numbers; this one has shape {values.shape}")
    if colours not in COLOURS:
        raise InputError(f"colours are one of {', '.join(COLOURS)}, not {shown(colours)!r}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    n = values.shape[0] if n_objects is None else n_objects
    # Whole dots for each value: one dot at 400 values a side or more, so that nothing is blurred or left out.
    side = values.shape[0] * max(1, -(-400 // values.shape[0]))
    left, right, bottom, top = 100, 130, 65, 50
    width, height = left + side + right, bottom + side + top
    figure = Figure(figsize=(width / DOTS, height / DOTS), dpi=DOTS)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    drawn = axes.imshow(values, cmap=colours, interpolation="nearest", extent=(0, n, n, 0))
    axes.set_xlabel("place in the order of objects")
    axes.set_ylabel("place in the order of objects")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    if title:
        axes.set_title(shown(title, limit=120))
    bar = figure.add_axes(((left + side + 20) / width, bottom / height, 20 / width, side / height))
    figure.colorbar(drawn, cax=bar, label=label)
    target = Path(path)
    form = target.suffix.lstrip(".").lower() or "png"
    if form not in figure.canvas.get_supported_filetypes():
        raise InputError(f"no picture can be written as .{shown(form)}; use .png, .pdf or .svg")
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        figure.savefig(aside, format=form)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def _checked_order(order: ArrayLike | None, n: int) -> Array:
    """An order of n objects, or the given one if it is such."""
    if order is None:
        return np.arange(n)
    given = np.asarray(order)
    if given.shape != (n,) or given.dtype.kind not in "iu" or not np.array_equal(np.sort(given), np.arange(n)):
        raise InputError(
            f"an order has each of the positions 0 to {n - 1} once; this one, of shape {given.shape}, has not"
        )
    return given.astype(np.int64)


def _cells(order: Array, pixels: int) -> Array:
    """The cell that each object falls into: places in the order, cut into at most `pixels` nearly equal runs."""
    if pixels < 1:
        raise InputError(f"a picture has at least one pixel a side, not {pixels}")
    n = len(order)
    cell = np.empty(n, dtype=np.int64)
    cell[order] = np.arange(n) * min(pixels, n) // n
    return cell
