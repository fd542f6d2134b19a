"""Images of matrices of any size, in an order that shows structure.

The objects are put in an order and divided into `pixels` runs of nearly equal length; the value of a pixel is the mean
over all pairs of its objects, the diagonal included. A matrix or its kernel takes one scan; iVAT, D(U) and the
proximities of memberships take none.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.engine.reduce import Consumer
from dasrel.engine.relation import relation
from dasrel.engine.scan import scan, scan_memory
from dasrel.errors import InputError, StoreError
from dasrel.geometry.spectral_order import automatic_width, spectral_order, spectral_order_cost
from dasrel.geometry.tree import Tree, TreeJob, minimum_spanning_tree
from dasrel.names import is_similarity
from dasrel.options import ImageOptions
from dasrel.report.figures.downsample import checked_order, cluster_order, induced_image, pixel_of_objects
from dasrel.report.figures.group_means import kernel_image, means_consumer
from dasrel.report.figures.matrix_drawing import Block, write_image
from dasrel.store.array_matrix import as_matrix
from dasrel.store.layout import TileSource
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import Array, Float, Index, PathLike
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.text import count_text, shown

LEVELS = 256
"""Levels that memberships are rounded to in a proximity image whose pixels are means."""
KIND_NAMES = {
    "distance": "dissimilarity", "squared-distance": "squared dissimilarity", "similarity": "similarity",
    "kernel": "kernel",
}  # fmt: skip


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


def proximity_image(memberships: ArrayLike, order: ArrayLike | None = None, pixels: int = 1000) -> Float:
    """Return P_kl = sum_i min(u_ik, u_il) of memberships U (c x n), Q09's proximity matrix, in an order, downsampled.

    Where every object has a pixel of its own the values are exact. Else memberships are rounded to 1/256, so that a
    pixel, which is a mean over all pairs of its objects, is within c/512 of the exact one: the mean of min(u, v) is the
    sum over levels t of the share of u above t times the share of v above t, which nothing of size n^2 is formed for.

    Cost: no scan; O(c n + 256 c pixels^2) and 2 KiB pixels bytes.
    """
    U = np.asarray(memberships, dtype=np.float64)
    if U.ndim != 2 or 0 in U.shape:
        raise InputError(f"memberships have shape {U.shape}; give (clusters, objects)")
    n = U.shape[1]
    chosen = checked_order(order, n)
    if n <= pixels:
        return sum((np.minimum.outer(u, u) for u in U[:, chosen]), start=np.zeros((n, n)))
    pixel = pixel_of_objects(chosen, pixels)
    sizes = np.bincount(pixel)
    image = np.zeros((sizes.size, sizes.size))
    for u in U:
        level = np.rint(u * LEVELS).astype(np.int64)
        counts = np.bincount(pixel * (LEVELS + 1) + level, minlength=sizes.size * (LEVELS + 1))
        above = counts.reshape(sizes.size, LEVELS + 1)[:, :0:-1].cumsum(axis=1) / sizes[:, None]
        image += above @ above.T / LEVELS
    return image


def prepare_image(store: Any, out: PathLike, options: ImageOptions, *, force: bool = False) -> ImageJob:
    """Check the arguments of `dasrel image`, and read the result that it names. Cost: no scan.

    An order is "vat": along the minimum spanning tree; "ivat": the same, with minimax path dissimilarities as values;
    "labels": by the clusters of a result; "eigen": by the leading eigenvectors of a Gaussian kernel, see
    `geometry.spectral_order`; "none": as stored.
    """
    target = Path(out)
    if os.path.lexists(target) and not force:
        raise StoreError(f"{shown(target, limit=400)} exists", remedy="say {force=True} to replace it")
    matrix = open_matrix(store)
    labels, memberships = (None, None) if options.result is None else read_result(options.result, matrix)
    if options.vectors is not None and options.vectors > matrix.n_objects:
        raise InputError(
            f"{options.vectors} eigenvectors of {count_text(matrix.n_objects, 'object')}: give at most as many"
        )
    return ImageJob(matrix, target, options, labels, memberships)


@dataclass(frozen=True, eq=False)
class ImageJob:
    """An image with its arguments checked."""

    matrix: Matrix
    target: Path
    options: ImageOptions
    labels: Index | None
    memberships: Array | None

    @property
    def order(self) -> str:
        """The name of the order: by default that of the labels of a result, else that of the spanning tree."""
        return self.options.order or ("vat" if self.labels is None else "labels")

    def run(self) -> dict[str, Any]:
        """Find the order, compute the image, write it, and return what was drawn.

        Cost: one scan for the image, none for "ivat", proximities and D(U) (K14 17), one more for a kernel whose width
        is not given; "vat" and "ivat" one for the tree; "eigen" those of `spectral_order`.
        """
        matrix, memory = self.matrix, self.options.memory
        tree = minimum_spanning_tree(matrix, memory=memory) if self.order in ("vat", "ivat") else None
        order, name, blocks, width = self._order(tree)
        drawn = self._values(order, tree, width)
        title = f"{drawn.what}, {name}"
        of = None if self.labels is None else self.labels[order]
        write_image(
            drawn.image, self.target, n_objects=matrix.n_objects, title=title, label=drawn.label, blocks=blocks,
            block_name="cluster" if self.order == "labels" else "block",
            clusters=None if self.order == "labels" else of, large_is_dark=drawn.is_similarity,
        )  # fmt: skip
        facts = {"title": title, "side": len(drawn.image), "n_objects": matrix.n_objects}
        return {"out": str(self.target), "order": self.order, "view": self.options.view, **facts}

    def _order(self, tree: Tree | None) -> tuple[Array, str, list[Block] | None, float | None]:
        """Return the order of the objects, its name for the title, its blocks, and the width of the kernel used."""
        if tree is not None:
            return tree.vat_order(), "VAT order", None, None
        if self.order == "labels":
            assert self.memberships is not None
            assert self.labels is not None
            sizes = np.bincount(self.labels)
            blocks = [Block(str(k), int(size)) for k, size in enumerate(sizes) if size]
            return cluster_order(self.memberships, self.labels), "ordered by cluster", blocks, None
        if self.order == "eigen":
            found = spectral_order(
                relation(self.matrix), width=self.options.width, n_vectors=self.options.vectors,
                memory=self.options.memory,
            )  # fmt: skip
            blocks = [Block(str(k + 1), int(size)) for k, size in enumerate(np.bincount(found.groups))]
            name = f"ordered by {count_text(found.n_groups, 'leading eigenvector')} of the kernel"
            return found.order, name, blocks, found.width or None
        return np.arange(self.matrix.n_objects), "as stored", None, None

    def _values(self, order: Array, tree: Tree | None, width: float | None) -> Drawn:
        """Return the image and what it shows; `width` is that of the kernel of the order, if it has one."""
        matrix, options = self.matrix, self.options
        if options.view in ("induced", "proximity"):
            assert self.memberships is not None
            if options.view == "induced":
                image = induced_image(self.memberships.T, order, options.pixels)
                return Drawn(image, "D(U), induced by memberships", "induced dissimilarity", False)
            image = proximity_image(self.memberships.T, order, options.pixels)
            return Drawn(image, "proximities of memberships", "proximity", True)
        if options.view == "kernel":
            seen = relation(matrix)
            width = options.width or width or automatic_width(seen)
            image = kernel_image(seen, width, order, options.pixels, memory=options.memory)
            return Drawn(image, f"Gaussian kernel of width {width:.4g}", "kernel", True)
        if self.order == "ivat":
            assert tree is not None
            return Drawn(ivat_image(tree, options.pixels), "iVAT: minimax path dissimilarities", tree.units, False)
        pixel = pixel_of_objects(order, options.pixels)
        image = scan(matrix, [means_consumer(matrix, pixel, "stored")], memory=options.memory)[0]
        return Drawn(image, f"{KIND_NAMES[matrix.kind]} values", KIND_NAMES[matrix.kind], is_similarity(matrix.kind))

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        matrix, options, limit = self.matrix, self.options, memory_limit(self.options.memory)
        scans, needed = Range(0, 0, 0), 0
        if self.order in ("vat", "ivat"):
            tree = TreeJob(matrix, options.memory).cost()
            scans, needed = tree.scans, tree.memory
        if self.order == "eigen":
            has_width = options.width is not None
            scans, needed = spectral_order_cost(
                relation(matrix), options.vectors, width=has_width, memory=options.memory
            )
        if options.view in ("matrix", "kernel") and self.order != "ivat":
            scans += Range(1, 1, 1)
            needed = max(needed, scan_memory(matrix, [image_consumer(matrix, None, options.pixels)], limit))
        if options.view == "kernel" and self.order != "eigen" and options.width is None:
            scans += Range(1, 1, 1)
        side = min(options.pixels, matrix.n_objects)
        needed = max(needed, 4 * 8 * side * side)
        outputs = (Output(str(self.target), side * side + 50_000),)
        facts = {"order": self.order, "side": side}
        return Cost("image", matrix.n_objects, scans, matrix.layout.total_bytes, needed, outputs, facts)


@dataclass(frozen=True, eq=False)
class Drawn:
    """An image, and what it shows."""

    image: Float
    what: str
    """For the title."""
    label: str
    """Of the colour bar."""
    is_similarity: bool


def read_result(folder: PathLike, matrix: Matrix) -> tuple[Index, NDArray[Any]]:
    """Return labels and memberships from a folder that `dasrel cluster` wrote for this matrix."""
    from dasrel.partition.model import load_memberships

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
