"""Figures of outliers: typicalities and their cut, the matrix in the order of clusters, densities of points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dasrel.errors import InputError
from dasrel.report.figures.matrix_drawing import Block, colour_range, draw_positions
from dasrel.report.figures.partition import draw_neighbours, draw_typicality, save_figure
from dasrel.util import Array, PathLike
from dasrel.util.text import count_text

if TYPE_CHECKING:
    from dasrel.oneclass.fit import OneClass
    from dasrel.oneclass.segments import OutlierResult
    from dasrel.oneclass.typicality import Cut, Typicality

PIXELS = 500


def draw_outliers(
    fit: OneClass, results: list[OutlierResult], folder: Path, *, matrix_image: Callable[..., Array]
) -> None:
    """Draw outliers.png for every setting; the matrix is drawn in the order of the first one, by `matrix_image`.

    Cost: one scan, for the image of the matrix.
    """
    for k, result in enumerate(results):
        image = None
        order = outlier_order(result.labels, result.found.log_typicality)
        if k == 0:
            image = matrix_image(fit.relation.matrix, order, PIXELS)
        _draw(result, image, folder / result.folder / "outliers.png")


def outlier_order(labels: Array, log_typicality: Array) -> Array:
    """Return the objects cluster by cluster, the most typical first, and the outliers at the end."""
    last = np.where(labels < 0, labels.max(initial=0) + 1, labels)
    return np.lexsort((-log_typicality, last))


def _draw(result: OutlierResult, image: Array | None, path: Path) -> None:
    u, cut = result.found.typicality, result.cut
    rejected = int(cut.rejected.sum())
    figure = Figure(figsize=(18 if image is not None else 13, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 4 if image is not None else 3)
    draw_typicality(axes[0], axes[1], u, cut.alpha, rejected)
    told = count_text(rejected, "outlier") if rejected else "no outliers"
    axes[0].set_title(f"{told} of {count_text(len(u), 'object')}", fontsize=11)
    draw_neighbours(axes[2], u, result.found.neighbour_distances, result.found.n_neighbours, cut.rejected)
    if image is not None:
        low, high, extend = colour_range(image)
        shown = axes[3].imshow(
            image, cmap="gray", interpolation="nearest", extent=(0, len(u), len(u), 0), vmin=low, vmax=high
        )
        blocks = [Block(str(k), int(size)) for k, size in enumerate(np.bincount(result.labels[result.labels >= 0]))]
        out = int((result.labels < 0).sum())
        draw_positions(axes[3], len(u), [*blocks, Block("out", out)] if out else blocks, "cluster")
        axes[3].set_title("dissimilarities; clusters by size, outliers last", fontsize=11)
        figure.colorbar(shown, ax=axes[3], shrink=0.8, extend=extend)
    width = result.found.run.width
    named = "the matrix as kernel" if width is None else f"width {width:.4g}"
    figure.suptitle(f"{named}, gamma {result.found.run.eta_scale:g}", fontsize=12)
    save_figure(figure, path, dpi=110)


def density_figure(
    points: Array, typicality: Typicality, cut: Cut, path: PathLike, *, labels: Array | None = None, pixels: int = 200
) -> Path:
    """Draw the typicality of a plane as contours, with the points and the cut (F10 figure 1), as a PNG file.

    Parameters
    ----------
    points
        (n, 2): features or an embedding, whose Euclidean distances `typicality` was computed from.
    labels
        (n,) clusters of the points, -1 for outliers; by default all that are not rejected have one colour.

    Cost: no scan; n kernel values for each pixel.
    """
    from scipy.spatial.distance import cdist

    X = np.asarray(points, dtype=np.float64)
    if X.ndim != 2 or X.shape != (len(typicality.weights), 2):
        raise InputError(
            f"points have shape {X.shape}",
            remedy=f"give two coordinates for each of {count_text(len(typicality.weights), 'object')}",
        )
    if typicality.run.width is None:
        raise InputError("a figure of the plane needs a width")
    margin = 0.08 * np.ptp(X, axis=0) + 1e-12
    low, high = X.min(axis=0) - margin, X.max(axis=0) + margin
    x, y = (np.linspace(a, b, pixels) for a, b in zip(low, high, strict=True))
    values = np.empty((pixels, pixels))
    for k, height in enumerate(y):
        line = np.column_stack([x, np.full(pixels, height)])
        sums = np.exp(cdist(line, X, "sqeuclidean") / (-2 * float(typicality.run.width) ** 2)) @ typicality.weights
        values[k] = np.exp(typicality.log_typicality_at(sums))
    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    shown = axes.contourf(x, y, values, levels=14, cmap="Greys")
    axes.contour(x, y, values, levels=[cut.alpha], colors="tab:red", linewidths=1.2)
    kept = ~cut.rejected
    colours = "tab:blue" if labels is None else np.asarray(labels)[kept] % 20
    axes.scatter(*X[kept].T, s=9, c=colours, cmap=None if labels is None else "tab20")
    axes.scatter(*X[~kept].T, s=22, c="tab:red", marker="x", linewidths=1)
    axes.set_title(f"typicality at width {typicality.run.width:.4g}; red: the cut, and outliers", fontsize=11)
    figure.colorbar(shown, ax=axes, label="typicality: not a probability", shrink=0.8)
    return save_figure(figure, Path(path), dpi=110)
