"""Draw a STORE of any size as an image, in its own, VAT, iVAT, cluster or eigenvector order."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.commands.base import Lines, Operation, Output, Prepared, Reads, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.relation import relation
from dasrel.engine.scan import scan, scan_memory
from dasrel.errors import InputError, StoreError
from dasrel.geometry.spectral_order import automatic_width, spectral_order, spectral_order_cost
from dasrel.geometry.tree import Tree, TreeJob, minimum_spanning_tree
from dasrel.names import OrderName, ViewName, is_similarity
from dasrel.partition.model import load_memberships
from dasrel.report.figures.downsample import cluster_order, induced_image, pixel_of_objects
from dasrel.report.figures.group_means import kernel_image, means_consumer
from dasrel.report.figures.matrix import image_consumer, ivat_image, proximity_image
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import Array, Float, Index, PathLike, progress
from dasrel.util.limits import Cost, Output as Written, Range, memory_limit
from dasrel.util.option_fields import WRITING, check_fields, memory_option, option
from dasrel.util.results import check_file, check_not_input
from dasrel.util.text import count_text, shown

if TYPE_CHECKING:
    from dasrel.report.figures.matrix_drawing import Block

KIND_NAMES = {
    "distance": "dissimilarity", "squared-distance": "squared dissimilarity", "similarity": "similarity",
    "kernel": "kernel",
}  # fmt: skip

_writing = partial(option, panel=WRITING)


# ruff: noqa: RUF009 - `option` returns a dataclass field
@dataclass(frozen=True)
class ImageOptions:
    """How to draw a matrix."""

    order: OrderName | None = _writing(None, "Order of the objects; labels with a result, else vat, if not given.")
    result: str | os.PathLike[str] | None = _writing(
        None,
        "A result of `dasrel cluster`, whose clusters are shown.",
        typed=str,
        metavar="FOLDER",
        reads=Reads(steps=("cluster",)),
    )
    view: ViewName = _writing(
        "matrix",
        "Show the matrix, its Gaussian kernel, or proximities or dissimilarities of a result's memberships.",
    )
    width: float | None = _writing(
        None, "Width of the kernel, also of order eigen; a sixth of the root mean square if not given.", above=0
    )
    vectors: int | None = _writing(
        None, "Eigenvectors and blocks of order eigen; those before the largest gap if not given.", least=1
    )
    pixels: int = _writing(1000, "Maximum number of pixels per side.", least=2, most=20_000)
    format: Literal["png", "pdf", "svg"] = _writing("png", "Format of the image.", step_only=True)
    memory: int | str | None = memory_option(effort=True)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.result is None and (self.order == "labels" or self.view in ("proximity", "induced")):
            raise InputError(
                "an order by labels, and what memberships say, need a result of `dasrel cluster`",
                remedy="name it as {result}",
            )
        if self.order == "ivat" and self.view != "matrix":
            raise InputError("the order ivat has values of its own", remedy="say {order=vat} to see others in it")
        if self.width is not None and self.order != "eigen" and self.view != "kernel":
            raise InputError("a width is that of a kernel: it goes with the view kernel and the order eigen only")
        if self.vectors is not None and self.order != "eigen":
            raise InputError("a number of eigenvectors goes with the order eigen only")


class Image(Operation):
    name = "image"
    example = "dasrel image distances.zarr matrix.png --order ivat"
    Options = ImageOptions
    target = Output("OUT", "The image to write: .png, .pdf or .svg.")
    is_step = True
    summarized = ("title", "side")

    def prepare(self, source: str, target: Target, options: ImageOptions) -> PreparedImage:
        """Check the options and the image's place, and read the result that they name. Cost: no scan.

        An order is "vat": along the minimum spanning tree; "ivat": the same, with minimax path dissimilarities as
        values; "labels": by the clusters of a result; "eigen": by the leading eigenvectors of a Gaussian kernel, see
        `geometry.spectral_order`; "none": as stored.
        """
        check_not_input(target.path, source, options.result)
        check_file(target.path, force=target.force)
        matrix = open_matrix(source)
        labels, memberships = (None, None) if options.result is None else _read_result(options.result, matrix)
        if options.vectors is not None and options.vectors > matrix.n_objects:
            raise InputError(
                f"{options.vectors} eigenvectors of {count_text(matrix.n_objects, 'object')}",
                remedy="give at most as many",
            )
        return PreparedImage(str(source), matrix, Path(target.path), options, labels, memberships)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of an image."""
        return [
            ("image", shown(result["out"], limit=400)),
            ("shows", result["title"]),
            ("pixels per side", str(result["side"])),
            ("scans", str(result["scans"])),
        ]

    def outputs(self, options: ImageOptions) -> tuple[str, ...]:
        """Return the suffix of the format."""
        return (f".{options.format}",)


@dataclass(eq=False)
class PreparedImage(Prepared):
    """An image to be computed and drawn."""

    store: str
    matrix: Matrix
    out: Path
    options: ImageOptions
    labels: Index | None
    memberships: Array | None

    @property
    def order(self) -> str:
        """The name of the order: by default that of the labels of a result, else that of the spanning tree."""
        return self.options.order or ("vat" if self.labels is None else "labels")

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Find the order, compute the image and write it.

        Cost: one scan for the image, none for "ivat", proximities and D(U) (K14 17), one more for a kernel whose width
        is not given; "vat" and "ivat" one for the tree; "eigen" those of `spectral_order`.
        """
        from dasrel.report.figures.matrix_drawing import write_image

        matrix, memory = self.matrix, self.options.memory
        with progress.watch() as counted:
            tree = minimum_spanning_tree(matrix, memory=memory) if self.order in ("vat", "ivat") else None
            order, name, blocks, width = self._order(tree)
            drawn = self._values(order, tree, width)
        title = f"{drawn.what}, {name}"
        of = None if self.labels is None else self.labels[order]
        write_image(
            drawn.image, self.out, n_objects=matrix.n_objects, title=title, label=drawn.label, blocks=blocks,
            block_name="cluster" if self.order == "labels" else "block",
            clusters=None if self.order == "labels" else of, large_is_dark=drawn.is_similarity,
        )  # fmt: skip
        return {
            "store": self.store, "out": str(self.out), "order": self.order, "view": self.options.view, "title": title,
            "side": len(drawn.image), "n_objects": matrix.n_objects, "scans": counted.scans,
        }  # fmt: skip

    def _order(self, tree: Tree | None) -> tuple[Array, str, list[Block] | None, float | None]:
        """Return the order of the objects, its name for the title, its blocks, and the width of the kernel used."""
        from dasrel.report.figures.matrix_drawing import Block

        if tree is not None:
            return tree.vat_order(), "VAT order", None, None
        if self.order == "labels":
            assert self.memberships is not None
            assert self.labels is not None
            sizes = np.bincount(self.labels)
            blocks = [Block(str(k), int(size)) for k, size in enumerate(sizes) if size]
            return cluster_order(self.memberships, self.labels), "ordered by cluster", blocks, None
        if self.order == "eigen":
            ordering = spectral_order(
                relation(self.matrix), width=self.options.width, n_vectors=self.options.vectors,
                memory=self.options.memory,
            )  # fmt: skip
            blocks = [Block(str(k + 1), int(size)) for k, size in enumerate(np.bincount(ordering.groups))]
            name = f"ordered by {count_text(ordering.n_groups, 'leading eigenvector')} of the kernel"
            return ordering.order, name, blocks, ordering.width or None
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
        outputs = (Written(str(self.out), side * side + 50_000),)
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


def _read_result(folder: PathLike, matrix: Matrix) -> tuple[Index, NDArray[Any]]:
    """Return labels and memberships from a folder that `dasrel cluster` wrote for this matrix."""
    path = Path(folder)
    try:
        memberships = load_memberships(path)
        with (path / "labels.csv").open(encoding="utf-8", newline="") as file:
            rows = [(row["id"], int(row["label"])) for row in csv.DictReader(file)]
    except StoreError:
        raise
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(
            f"{shown(path, limit=400)} is no result of one setting ({shown(error)})",
            remedy="give the folder that contains labels.csv and memberships.npy",
        ) from error
    if [name for name, _ in rows] != [str(name) for name in matrix.ids] or len(memberships) != matrix.n_objects:
        raise InputError(f"{shown(path, limit=400)} is a result for other objects than those of this store")
    labels = np.array([label for _, label in rows], dtype=np.intp)
    if labels.size and not (labels.min() >= 0 and labels.max() < memberships.shape[1]):
        raise InputError(f"{shown(path, limit=400)}: labels do not fit the memberships")
    return labels, memberships


OPERATION = Image()
