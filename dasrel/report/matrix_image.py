"""Orders of the objects, downsampled images of matrices, files of a tree.

Pictures of matrices of any size: the values averaged over the cells of a grid, by one scan or none.

Objects are put in an order and cut into `pixels` cells of nearly equal numbers; the value of a cell of the picture is
the mean over all pairs of its objects, the diagonal included.

Orders of the objects that make structure visible, the pictures drawn in them, and a tree's files.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.clustering.output import check_out, whole_folder, write_csv
from dasrel.engine.relation import relation
from dasrel.engine.scan import Consumer, Plan, TileSource, scan, scan_memory
from dasrel.errors import InputError, StoreError
from dasrel.geometry.lanczos import Search, estimate_search, lanczos
from dasrel.geometry.tree import Tree, forest_consumer, minimum_spanning_tree
from dasrel.kernels.products import panel_rows, panels
from dasrel.kernels.spanning_forest import mirrored, seen_as_dissimilarity
from dasrel.store.matrix import Matrix, as_matrix, open_matrix
from dasrel.util import Array, Float, Index, Names, PathLike
from dasrel.util.files import replacing
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.text import shown

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
    with replacing(target) as temporary:
        figure.savefig(temporary, format=form)


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


EIGENVECTORS = 6


def draw(
    store: Any,
    out: PathLike,
    *,
    order: str,
    result: PathLike | None = None,
    induced: bool = False,
    pixels: int = 1000,
    memory: int | str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Draw a matrix, its iVAT, or D(U) of a result, with the objects in an order; say what was drawn.

    Parameters
    ----------
    order
        "vat": along the minimum spanning tree; "ivat": the same, showing minimax path dissimilarities; "labels": by
        the clusters of `result`; "eigen": by the leading eigenvectors of -1/2 P D P; "none": as stored.
    result
        A folder that `dasrel cluster` wrote, of one setting.
    induced
        Show D(U) of the result's memberships (K14 17) in this order, not the matrix.

    Cost: one scan for the picture, none for "ivat" and D(U); "vat" and "ivat" one for the tree; "eigen" those of
    Lanczos, at most 30.
    """
    target = Path(out)
    if target.exists() and not force:
        raise StoreError(f"{shown(target, limit=400)} exists", remedy="say {force=True} to replace it")
    matrix = open_matrix(store)
    tree = minimum_spanning_tree(matrix, memory=memory) if order in ("vat", "ivat") else None
    labels, memberships = (None, None) if result is None else read_result(result, matrix)
    units = "dissimilarity" if tree is None else tree.units
    if order == "ivat" and not induced:
        assert tree is not None
        picture, title = ivat_image(tree, pixels), "iVAT: minimax path dissimilarities in VAT order"
    else:
        if tree is not None:
            places, told = tree.vat_order(), "VAT order"
        elif order == "labels":
            assert labels is not None
            assert memberships is not None
            places, told = label_order(labels, memberships), "ordered by cluster"
        elif order == "eigen":
            places, told = eigen_order(matrix, memory=memory), "ordered by leading eigenvectors"
        else:
            places, told = np.arange(matrix.n_objects), "as stored"
        if induced:
            assert memberships is not None
            picture, title = induced_image(memberships.T, places, pixels), f"D(U), induced by memberships, {told}"
            units = "induced dissimilarity"
        else:
            picture, title = matrix_image(matrix, places, pixels, memory=memory), f"dissimilarities, {told}"
    write_image(picture, target, n_objects=matrix.n_objects, title=title, label=units)
    return {"out": str(target), "order": order, "title": title, "side": len(picture), "n_objects": matrix.n_objects}


def label_order(labels: Index, memberships: NDArray[Any]) -> Index:
    """Cluster after cluster, the surest members first."""
    surest = memberships[np.arange(len(labels)), labels]
    return np.lexsort((np.arange(len(labels)), -surest, labels)).astype(np.intp)


def eigen_order(matrix: Matrix, *, count: int = EIGENVECTORS, memory: int | str | None = None) -> Index:
    """Objects gathered by the leading eigenvector of -1/2 P D P, and its side, in which they stand out most.

    One eigenvector alone cannot keep several clusters apart (Q09): each object goes with the
    eigenvector in which it is largest, relative to that vector's own spread, and within it by value.

    Cost: the scans of Lanczos for `count` eigenvectors to 5 %, at most 30.
    """
    count = min(count, matrix.n_objects - 1)
    seen = relation(matrix)
    found = lanczos(
        lambda V: seen.gram(V, memory=memory),
        matrix.n_objects,
        search=Search(lowest=0, highest=count, tol=0.05, max_scans=30, vectors=True),
    )
    vectors = found.highest.vectors
    assert vectors is not None
    kept = vectors[:, found.highest.values > 0]
    if not kept.shape[1]:
        return np.arange(matrix.n_objects)
    coordinates = kept * np.sqrt(found.highest.values[: kept.shape[1]])
    leading = np.abs(coordinates).argmax(axis=1)
    value = coordinates[np.arange(len(leading)), leading]
    return np.lexsort((np.abs(value), value > 0, leading)).astype(np.intp)


def read_result(folder: PathLike, matrix: Matrix) -> tuple[Index, NDArray[Any]]:
    """Labels and memberships of a folder that `dasrel cluster` wrote for this matrix."""
    place = Path(folder)
    try:
        memberships = np.load(place / "memberships.npy", allow_pickle=False)
        with (place / "labels.csv").open(encoding="utf-8", newline="") as file:
            rows = [(row["id"], int(row["label"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{shown(place, limit=400)} is no result of one setting ({shown(error)}); name the folder that holds"
            " labels.csv and memberships.npy"
        ) from error
    if [name for name, _ in rows] != [str(name) for name in matrix.ids] or len(memberships) != matrix.n_objects:
        raise InputError(f"{shown(place, limit=400)} is a result for other objects than those of this store")
    labels = np.array([label for _, label in rows], dtype=np.intp)
    if labels.size and not (labels.min() >= 0 and labels.max() < memberships.shape[1]):
        raise InputError(f"{shown(place, limit=400)}: labels and memberships do not belong together")
    return labels, memberships


def save_tree(tree: Tree, ids: Names, out: PathLike, *, force: bool = False) -> dict[str, Any]:
    """Write a tree as files that any program reads, in a folder that is whole or not there, and say what is in it.

        tree.npz      to be loaded with `Tree.load`
        edges.csv     first, second, weight: the n - 1 edges by the objects' names, lightest first
        linkage.npy   single linkage as SciPy has it, (n - 1, 4)
        vat.csv       place, id: the objects in VAT order
        result.json   the figures that are returned

    Cost: no scan; O(n log n).
    """
    target = Path(out)
    check_out(target, force=force)
    said = {
        "out": str(target), "n_objects": tree.n_objects, "scans": tree.scans, "units": tree.units,
        "shortest": float(tree.weights.min()), "longest": float(tree.weights.max()),
        "total": float(tree.weights.sum()),
    }  # fmt: skip
    with whole_folder(target, said, force=force) as aside:
        tree.save(aside / "tree.npz")
        edges = zip(tree.edges.tolist(), tree.weights.tolist(), strict=True)
        write_csv(
            aside / "edges.csv", ["first", "second", "weight"], ([str(ids[i]), str(ids[j]), w] for (i, j), w in edges)
        )
        np.save(aside / "linkage.npy", tree.linkage(), allow_pickle=False)
        order = tree.vat_order().tolist()
        write_csv(aside / "vat.csv", ["place", "id"], ([k, str(ids[i])] for k, i in enumerate(order)))
    return said


EIGEN_SCANS = 8
"""The same for the six eigenvectors of `image --order eigen`, to 5 %."""
TREE_OBJECT = 130
"""Bytes an object in the files of `dasrel tree`, more or less."""


def estimate_tree(
    store: Any, out: str | os.PathLike[str], *, memory: int | str | None = None, force: bool = False
) -> Cost:
    """What `dasrel tree` would do. Cost: none."""
    check_out(out, force=force)
    matrix = open_matrix(store)
    needed = scan_memory(matrix, [forest_consumer(matrix)], memory_limit(memory))
    output = Output(str(out), TREE_OBJECT * matrix.n_objects)
    return Cost("tree", matrix.n_objects, Range(1, 1, 1), matrix.layout.total_bytes, needed, (output,))


def estimate_image(
    store: Any,
    out: str | os.PathLike[str],
    *,
    order: str,
    result: str | os.PathLike[str] | None = None,
    induced: bool = False,
    pixels: int = 1000,
    memory: int | str | None = None,
    force: bool = False,
) -> Cost:
    """What `orders.draw` would do with the same arguments. Cost: none; the result's labels are read."""
    if os.path.lexists(out) and not force:
        raise StoreError(f"{shown(out, limit=400)} exists", remedy="say {force=True} to replace it")
    matrix = open_matrix(store)
    if result is not None:
        read_result(result, matrix)
    limit = memory_limit(memory)
    scans, needed = Range(0, 0, 0), 0
    if order in ("vat", "ivat"):
        scans, needed = scans + Range(1, 1, 1), scan_memory(matrix, [forest_consumer(matrix)], limit)
    if order == "eigen":
        search = Search(lowest=0, highest=min(6, matrix.n_objects - 1), tol=0.05, max_scans=30, vectors=True)
        needed, most = estimate_search(relation(matrix), search, limit, metric=False)
        scans += Range(1, min(EIGEN_SCANS, most), most)
    if not induced and order != "ivat":
        scans += Range(1, 1, 1)
        needed = max(needed, scan_memory(matrix, [image_consumer(matrix, None, pixels)], limit))
    side = min(pixels, matrix.n_objects)
    needed = max(needed, 4 * 8 * side * side)
    outputs = (Output(str(out), side * side + 50_000),)
    facts = {"order": order, "side": side}
    return Cost("image", matrix.n_objects, scans, matrix.layout.total_bytes, needed, outputs, facts)
