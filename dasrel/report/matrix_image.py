"""Images of matrices of any size, in an order that shows structure; the files of a tree.

The objects are put in an order and divided into `pixels` runs of nearly equal length; the value of a pixel is the mean
over all pairs of its objects, the diagonal included. A matrix takes one scan; its iVAT and D(U) take none.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.engine.relation import product_shape, relation
from dasrel.engine.scan import Consumer, scan, scan_memory
from dasrel.errors import InputError, StoreError
from dasrel.geometry.lanczos import Search, estimate_search, lanczos
from dasrel.geometry.tree import Tree, TreeJob, minimum_spanning_tree
from dasrel.options import ImageOptions
from dasrel.report.downsample import checked_order, cluster_order, induced_image, pixel_of_objects
from dasrel.report.group_means import means_consumer
from dasrel.store.array_matrix import as_matrix
from dasrel.store.layout import TileSource
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import Array, Float, Index, Names, PathLike
from dasrel.util.files import replacing
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.results import check_out, result_folder, write_csv
from dasrel.util.text import shown

COLOURS = ("gray", "viridis")
DOTS = 100  # dots per inch
EIGENVECTORS = 6
EIGEN_SCANS = 8
"""Typical scans of `eigen_order`."""
TREE_OBJECT = 130
"""Bytes per object in the files of a tree, approximately."""


def matrix_image(
    matrix: Any,
    order: ArrayLike | None = None,
    pixels: int = 1000,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
) -> Float:
    """Return the matrix with its objects in an order, downsampled to at most pixels x pixels; float64, symmetric.

    Values are dissimilarities: stored distances or squared distances as they are, similarities as
    max(s_ii + s_jj - 2 s_ij, 0), as in a `Tree`.

    Parameters
    ----------
    order
        The n positions of the objects, first to last; by default in the order of the store.

    Cost: one scan; pixels^2 float64 numbers per task and for the result.
    """
    source = as_matrix(matrix, kind=kind)
    consumer = image_consumer(source, order, pixels)
    result: Float = scan(source, [consumer], memory=memory)[0]
    return result


def image_consumer(source: TileSource, order: ArrayLike | None, pixels: int) -> Consumer:
    """Return the consumer of `matrix_image`, for a scan that others share; its result is the image."""
    return means_consumer(source, pixel_of_objects(checked_order(order, source.layout.n_objects), pixels))


def ivat_image(tree: Tree, pixels: int = 1000) -> Float:
    """Return the iVAT image: minimax path dissimilarities in VAT order, at most pixels x pixels; float64.

    Where every object has a pixel of its own the values are exact; else they are means, with rounding of the order of
    n times the machine epsilon. In the units of the tree.

    Cost: no scan beyond the tree's; O(n + pixels^2).
    """
    n = tree.n_objects
    pixel = pixel_of_objects(np.arange(n), pixels)
    sizes = np.bincount(pixel)
    heights = tree.join_heights()
    if sizes.size == n:
        result = np.zeros((n, n))
        for p in range(n - 1):
            result[p, p + 1 :] = result[p + 1 :, p] = np.maximum.accumulate(heights[p + 1 :])
        return result
    # Each merge of ranges [l, m) and [m, r) adds its height to a rectangle. The fraction of a pixel that a range covers
    # is 1 up to the pixel of its end, partial there, and 0 beyond: two steps of a cumulative sum from the right.
    first, last = tree.merges
    begin = np.concatenate([[0], np.cumsum(sizes)])
    sums = np.zeros((sizes.size + 1) ** 2)
    gap = np.arange(1, n)
    for x, sign_x in ((gap, 1.0), (first, -1.0)):
        for y, sign_y in ((last, 1.0), (gap, -1.0)):
            for column, share_x in _steps(x, pixel, sizes, begin):
                for row, share_y in _steps(y, pixel, sizes, begin):
                    value = heights[1:] * share_x * share_y * (sign_x * sign_y)
                    sums += np.bincount(column * (sizes.size + 1) + row, weights=value, minlength=sums.size)
    steps = sums.reshape(sizes.size + 1, -1)[::-1, ::-1]
    above = np.cumsum(np.cumsum(steps, axis=0), axis=1)[::-1, ::-1][1:, 1:]
    return np.clip(above + above.T, 0, heights.max())


def _steps(end: Array, pixel: Array, sizes: Array, begin: Array) -> list[tuple[Array, Float]]:
    """Return the two steps of the ranges before each end: at the last complete pixel, counted from 1, and after it."""
    last = np.append(pixel, sizes.size - 1)[end]
    share = (end - begin[last]) / sizes[last]
    return [(last, 1 - share), (last + 1, share)]


def write_image(
    image: ArrayLike,
    path: PathLike,
    *,
    n_objects: int | None = None,
    title: str = "",
    label: str = "dissimilarity",
    colours: str = "gray",
) -> None:
    """Write an image of a matrix to a file (PNG, or the format of the suffix), with axes in objects and a colour bar.

    Parameters
    ----------
    n_objects
        Number of objects on the axes; by default the side of the image.
    label
        Name of the values, beside the colour bar.
    colours
        "gray" (small values black, as in VAT images) or "viridis".
    """
    values = np.asarray(image, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size or not np.isfinite(values).all():
        raise InputError(f"an image is a square array of finite numbers; this one has shape {values.shape}")
    if colours not in COLOURS:
        raise InputError(f"colours are one of {', '.join(COLOURS)}, not {shown(colours)!r}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    n = values.shape[0] if n_objects is None else n_objects
    # An integer number of dots per value, one from 400 values per side on, so that nothing is blurred or left out.
    side = values.shape[0] * max(1, -(-400 // values.shape[0]))
    left, right, bottom, top = 100, 130, 65, 50
    width, height = left + side + right, bottom + side + top
    figure = Figure(figsize=(width / DOTS, height / DOTS), dpi=DOTS)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    mesh = axes.imshow(values, cmap=colours, interpolation="nearest", extent=(0, n, n, 0))
    axes.set_xlabel("position in the order of objects")
    axes.set_ylabel("position in the order of objects")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    if title:
        axes.set_title(shown(title, limit=120))
    bar = figure.add_axes(((left + side + 20) / width, bottom / height, 20 / width, side / height))
    figure.colorbar(mesh, cax=bar, label=label)
    target = Path(path)
    form = target.suffix.lstrip(".").lower() or "png"
    if form not in figure.canvas.get_supported_filetypes():
        raise InputError(f"images cannot be written as .{shown(form)}; use .png, .pdf or .svg")
    with replacing(target) as temporary:
        figure.savefig(temporary, format=form)


def prepare_image(store: Any, out: PathLike, options: ImageOptions, *, force: bool = False) -> ImageJob:
    """Check the arguments of `dasrel image`, and read the result that it names. Cost: no scan.

    An order is "vat": along the minimum spanning tree; "ivat": the same, with minimax path dissimilarities as values;
    "labels": by the clusters of a result; "eigen": by the leading eigenvectors of -1/2 P D P; "none": as stored.
    """
    target = Path(out)
    if os.path.lexists(target) and not force:
        raise StoreError(f"{shown(target, limit=400)} exists", remedy="say {force=True} to replace it")
    matrix = open_matrix(store)
    labels, memberships = (None, None) if options.result is None else read_result(options.result, matrix)
    return ImageJob(matrix, target, options.order, labels, memberships, options.induced, options.pixels, options.memory)


@dataclass(frozen=True, eq=False)
class ImageJob:
    """An image with its arguments checked."""

    matrix: Matrix
    target: Path
    order: str
    labels: Index | None
    memberships: Array | None
    induced: bool
    """Whether D(U) is drawn in place of the matrix."""
    pixels: int
    memory: int | str | None

    def run(self) -> dict[str, Any]:
        """Find the order, compute the image, write it, and return what was drawn.

        Cost: one scan for the image, none for "ivat" and D(U) (K14 17); "vat" and "ivat" one for the tree; "eigen"
        those of Lanczos, at most 30.
        """
        matrix = self.matrix
        tree = minimum_spanning_tree(matrix, memory=self.memory) if self.order in ("vat", "ivat") else None
        units = "dissimilarity" if tree is None else tree.units
        if self.induced:
            assert self.memberships is not None
            order, name = self._order(tree)
            image = induced_image(self.memberships.T, order, self.pixels)
            title, units = f"D(U), induced by memberships, {name}", "induced dissimilarity"
        elif self.order == "ivat":
            assert tree is not None
            image, title = ivat_image(tree, self.pixels), "iVAT: minimax path dissimilarities in VAT order"
        else:
            order, name = self._order(tree)
            image = matrix_image(matrix, order, self.pixels, memory=self.memory)
            title = f"dissimilarities, {name}"
        write_image(image, self.target, n_objects=matrix.n_objects, title=title, label=units)
        facts = {"title": title, "side": len(image), "n_objects": matrix.n_objects}
        return {"out": str(self.target), "order": self.order, **facts}

    def _order(self, tree: Tree | None) -> tuple[Array, str]:
        """Return the order of the objects, and its name for the title."""
        if tree is not None:
            return tree.vat_order(), "VAT order"
        if self.order == "labels":
            assert self.memberships is not None
            return cluster_order(self.memberships, self.labels), "ordered by cluster"
        if self.order == "eigen":
            return eigen_order(self.matrix, memory=self.memory), "ordered by leading eigenvectors"
        return np.arange(self.matrix.n_objects), "as stored"

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        matrix, limit = self.matrix, memory_limit(self.memory)
        scans, needed = Range(0, 0, 0), 0
        if self.order in ("vat", "ivat"):
            tree = TreeJob(matrix, self.memory).cost()
            scans, needed = tree.scans, tree.memory
        if self.order == "eigen":
            search = _eigen_search(matrix)
            seen = relation(matrix)
            basis, most = estimate_search(search, matrix.n_objects, metric=False)
            scans = Range(1, min(EIGEN_SCANS, most), most)
            needed = basis + scan_memory(matrix, [product_shape(matrix, [(seen.view, search.block)])], limit)
        if not self.induced and self.order != "ivat":
            scans += Range(1, 1, 1)
            needed = max(needed, scan_memory(matrix, [image_consumer(matrix, None, self.pixels)], limit))
        side = min(self.pixels, matrix.n_objects)
        needed = max(needed, 4 * 8 * side * side)
        outputs = (Output(str(self.target), side * side + 50_000),)
        facts = {"order": self.order, "side": side}
        return Cost("image", matrix.n_objects, scans, matrix.layout.total_bytes, needed, outputs, facts)


def eigen_order(matrix: Matrix, *, memory: int | str | None = None) -> Index:
    """Return the objects grouped by the leading eigenvector of -1/2 P D P, and its sign, in which they are largest.

    One eigenvector alone cannot separate several clusters (Q09): each object belongs to the eigenvector in which it is
    largest, relative to that vector's own spread, and is ordered by its value there.

    Cost: the scans of Lanczos for six eigenvectors to 5 %, at most 30.
    """
    seen = relation(matrix)
    found = lanczos(lambda V: seen.gram(V, memory=memory), matrix.n_objects, search=_eigen_search(matrix))
    vectors = found.highest.vectors
    assert vectors is not None
    positive = vectors[:, found.highest.values > 0]
    if not positive.shape[1]:
        return np.arange(matrix.n_objects)
    coordinates = positive * np.sqrt(found.highest.values[: positive.shape[1]])
    leading = np.abs(coordinates).argmax(axis=1)
    value = coordinates[np.arange(len(leading)), leading]
    return np.lexsort((np.abs(value), value > 0, leading)).astype(np.intp)


def _eigen_search(matrix: Matrix) -> Search:
    count = min(EIGENVECTORS, matrix.n_objects - 1)
    return Search(lowest=0, highest=count, tol=0.05, max_scans=30, vectors=True)


def read_result(folder: PathLike, matrix: Matrix) -> tuple[Index, NDArray[Any]]:
    """Return labels and memberships from a folder that `dasrel cluster` wrote for this matrix."""
    from dasrel.clustering.output import load_memberships

    path = Path(folder)
    try:
        memberships = load_memberships(path)
        with (path / "labels.csv").open(encoding="utf-8", newline="") as file:
            rows = [(row["id"], int(row["label"])) for row in csv.DictReader(file)]
    except StoreError:
        raise
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(
            f"{shown(path, limit=400)} is no result of one setting ({shown(error)}); give the folder that contains"
            " labels.csv and memberships.npy"
        ) from error
    if [name for name, _ in rows] != [str(name) for name in matrix.ids] or len(memberships) != matrix.n_objects:
        raise InputError(f"{shown(path, limit=400)} is a result for other objects than those of this store")
    labels = np.array([label for _, label in rows], dtype=np.intp)
    if labels.size and not (labels.min() >= 0 and labels.max() < memberships.shape[1]):
        raise InputError(f"{shown(path, limit=400)}: labels do not fit the memberships")
    return labels, memberships


def save_tree(
    tree: Tree, ids: Names, out: PathLike, *, about: dict[str, Any] | None = None, force: bool = False
) -> dict[str, Any]:
    """Write a tree as files that other programs read, in a folder that is complete or absent; return its summary.

        tree.npz      for `Tree.load`
        edges.csv     first, second, weight: the n - 1 edges by the names of the objects, lightest first
        linkage.npy   single linkage in SciPy's format, (n - 1, 4)
        vat.csv       place, id: the objects in VAT order
        result.json   the summary, with `about`

    Cost: no scan; O(n log n).
    """
    target = Path(out)
    check_out(target, force=force)
    summary = {
        "out": str(target), **(about or {}), "n_objects": tree.n_objects, "scans": tree.scans, "units": tree.units,
        "shortest": float(tree.weights.min()), "longest": float(tree.weights.max()),
        "total": float(tree.weights.sum()),
    }  # fmt: skip
    with result_folder(target, summary, force=force) as folder:
        tree.save(folder / "tree.npz")
        edges = zip(tree.edges.tolist(), tree.weights.tolist(), strict=True)
        write_csv(
            folder / "edges.csv", ["first", "second", "weight"], ([str(ids[i]), str(ids[j]), w] for (i, j), w in edges)
        )
        np.save(folder / "linkage.npy", tree.linkage(), allow_pickle=False)
        order = tree.vat_order().tolist()
        write_csv(folder / "vat.csv", ["place", "id"], ([k, str(ids[i])] for k, i in enumerate(order)))
    return summary


def estimate_tree(store: Any, out: PathLike, *, memory: int | str | None = None, force: bool = False) -> Cost:
    """Estimate what `minimum_spanning_tree` and `save_tree` would do. Cost: no scan."""
    check_out(out, force=force)
    cost = TreeJob(open_matrix(store), memory).cost()
    return replace(cost, outputs=(Output(str(out), TREE_OBJECT * (cost.n_objects or 0)),))
