"""Figures of partitions: memberships and the dissimilarity they induce, validity indices, typicalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dasrel.errors import InputError
from dasrel.names import INDICES
from dasrel.report.figures.downsample import cluster_order, induced_image, pixel_means
from dasrel.util import Array, PathLike
from dasrel.util.files import replacing
from dasrel.util.text import count_text, ordinal_text

PIXELS = 800
"""Maximum number of pixel rows of a partition; with more objects each row is the mean of neighbours in the order."""
ROWS = "objects, by cluster; in each cluster by decreasing membership"


def partition_figure(
    memberships: Array,
    path: PathLike,
    *,
    truth: Sequence[Any] | Array | None = None,
    truth_name: str = "class",
    title: str = "",
    names: Sequence[str] | None = None,
    histogram: bool = False,
) -> Path:
    """Draw memberships and the dissimilarity that they induce, D(U) = 1 - U'U / max(U'U) (K14 17), as a PNG file.

    Parameters
    ----------
    memberships
        (n, c).
    truth
        Known classes of the n objects, shown as a strip of colours beside the clusters. At most 20.
    truth_name
        Name of the classes, for the legend.
    names
        One name for each cluster, by default their numbers.
    histogram
        Whether to draw the histogram of the objects' largest memberships too (F09 figure 11).

    Cost: no scan; O(c n), and an image of at most 800 rows, each the mean of neighbours.
    """
    U = np.asarray(memberships, dtype=np.float64)
    if U.ndim != 2 or not np.isfinite(U).all():
        raise InputError(f"memberships of shape {U.shape}", remedy="give finite numbers, objects by clusters")
    known = None if truth is None else np.asarray(truth)
    classes = None if known is None else np.unique(known)
    if known is not None and classes is not None and (known.shape != U.shape[:1] or len(classes) > 20):
        raise InputError(
            f"truth has shape {known.shape} and {len(classes)} classes",
            remedy=f"give one class for each of the {len(U)} objects, and at most 20 different ones",
        )

    order = cluster_order(U)
    clusters = U.shape[1]
    rows, first, counts = pixel_means(U, order, PIXELS)
    labelled = [str(k) for k in range(clusters)] if names is None else [str(name) for name in names]
    sizes = np.bincount(U.argmax(axis=1), minlength=clusters)
    ends = np.cumsum(sizes)
    if len(labelled) != clusters:
        raise InputError(
            f"{count_text(len(labelled), 'name')} for {count_text(clusters, 'cluster')}", remedy="give one for each"
        )
    middles = [(labelled[k], float(ends[k] - sizes[k] / 2)) for k in range(clusters) if sizes[k]]

    figure = Figure(figsize=(13.5, 9.2 if histogram else 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        2 if histogram else 1, 3, width_ratios=[0.001 if known is None else 0.05, 0.9, 1.3],
        height_ratios=[1, 0.22] if histogram else [1],
    )  # fmt: skip
    left, right = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[0, 2])
    if known is not None and classes is not None:
        _draw_truth(figure, figure.add_subplot(grid[0, 0]), known[order[first + counts // 2]], classes, truth_name)
    else:
        left.set_ylabel(ROWS, fontsize=11)
    _draw_memberships(figure, left, rows, labelled, ends)
    if histogram:
        _draw_histogram(figure.add_subplot(grid[1, 1:]), U)
    _draw_induced(figure, right, induced_image(U.T, order, PIXELS), middles, ends)
    figure.suptitle(title, fontsize=14)
    return save_figure(figure, Path(path), dpi=110)


PANELS = {
    "fuzzy_silhouette": "fuzzy silhouette", "silhouette": "silhouette", "xie_beni": "Xie-Beni",
    "calinski_harabasz": "Calinski-Harabasz", "davies_bouldin": "Davies-Bouldin", "pbm": "PBM",
}  # fmt: skip
"""The indices that `validity_figure` draws, and their titles."""


def validity_figure(
    runs: Sequence[tuple[str, int]], values: Mapping[str, Array], best: int, choose: str = "fuzzy_silhouette"
) -> Figure:
    """Return a figure of validity indices against the number of clusters.

    Parameters
    ----------
    runs
        Rule and number of clusters of each setting.
    values
        Of each index, one for each setting.
    best
        The setting to mark.
    choose
        The index that recommends it.
    """
    rules, counts = [rule for rule, _ in runs], np.array([count for _, count in runs])
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    drawn = [name for name in PANELS if name in values]
    grid = figure.subplots(2, 3, squeeze=False)
    for axes, name in zip(grid.flat, drawn, strict=False):
        of = np.asarray(values[name])
        for colour, rule in zip(_colours(len(set(rules))), dict.fromkeys(rules), strict=True):
            mine = [k for k in np.argsort(counts, kind="stable") if rules[k] == rule]
            axes.plot(counts[mine], of[mine], "o-", color=colour, label=rule, markersize=4)
        axes.plot(counts[best], of[best], "o", markersize=13, fillstyle="none", color="black", markeredgewidth=1.6)
        axes.set_title(f"{PANELS[name]} ({'larger' if INDICES[name] else 'smaller'} is better)", fontsize=10)
        axes.set_xticks(np.unique(counts))
        axes.set_xlabel("clusters")
        axes.grid(alpha=0.3)
    for axes in list(grid.flat)[len(drawn) :]:
        axes.set_visible(False)
    if len(set(rules)) > 1:
        grid.flat[0].legend()
    figure.suptitle(
        f"{count_text(runs[best][1], 'cluster')} recommended by the {choose.replace('_', ' ')} (circle)", fontsize=13
    )
    return figure


def draw_typicality(curve: Any, histogram: Any, typicality: Array, threshold: float, rejected: int) -> None:
    """Draw sorted typicalities with their cut, at most 500 points of them, and their histogram, into two axes."""
    values = np.sort(typicality)
    ranks = np.unique(np.linspace(0, len(values) - 1, min(len(values), 500)).astype(int))
    curve.plot(ranks + 1, values[ranks], color="tab:blue")
    curve.axhline(threshold, color="tab:red", linewidth=0.9, label=f"cut {threshold:.4g}")
    curve.axvline(rejected + 0.5, color="tab:red", linewidth=0.5, linestyle=":")
    curve.set_xlabel("rank, the least typical first")
    curve.set_ylabel("typicality")
    curve.legend(frameon=False)
    histogram.hist(values, bins=60, color="tab:blue")
    histogram.axvline(threshold, color="tab:red", linewidth=0.9)
    histogram.set_xlabel("typicality")
    histogram.set_ylabel("objects")


def draw_neighbours(axes: Any, typicality: Array, distances: Array, k: int, rejected: Array) -> None:
    """Draw typicalities against distances to k-th neighbours: at most 1,000 outliers and 1,000 other objects."""
    for chosen, colour, size in ((~rejected, "tab:blue", 6), (rejected, "tab:red", 14)):
        at = np.flatnonzero(chosen)
        at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), 1000)).astype(int))]
        axes.scatter(distances[at], typicality[at], s=size, c=colour, linewidths=0)
    axes.set_xlabel(f"distance to the {ordinal_text(k)} neighbour")
    axes.set_ylabel("typicality")
    axes.set_title("two scores; red: outliers" if rejected.any() else "two scores", fontsize=11)


def _draw_truth(figure: Any, axes: Any, values: Array, classes: Array, name: str) -> None:
    colours = _colours(len(classes))
    axes.imshow(
        np.searchsorted(classes, values)[:, None], cmap=ListedColormap(colours), vmin=-0.5, vmax=len(classes) - 0.5,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"true\n{name}", fontsize=10)
    axes.set_ylabel(ROWS, fontsize=11)
    handles = [Patch(color=colour, label=str(value)) for value, colour in zip(classes, colours, strict=True)]
    figure.legend(
        handles=handles, title=f"true {name}", loc="outside lower center", ncols=min(len(classes), 10), frameon=False
    )


def _draw_memberships(figure: Any, axes: Any, U: Array, names: Sequence[str], ends: Array) -> None:
    n, c = int(ends[-1]), len(names)
    shown = axes.imshow(
        U, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=(-0.5, c - 0.5, n, 0)
    )
    for end in ends[:-1]:
        axes.axhline(end, color="tab:red", linewidth=0.8)
    axes.set_xticks(range(c), names, fontsize=9, rotation=90 if max(map(len, names)) > 3 else 0)
    axes.set_yticks([])
    axes.set_title("Memberships\nof each object in each cluster", fontsize=11)
    axes.set_xlabel("cluster")
    figure.colorbar(shown, ax=axes, label="membership, 0 to 1", shrink=0.7, pad=0.02)


def _draw_histogram(axes: Any, U: Array) -> None:
    axes.hist(U.max(axis=1), bins=50, range=(0, 1), color="tab:blue")
    axes.set_xlim(0, 1)
    axes.set_xlabel("largest membership of an object: near 1 it belongs clearly to one cluster")
    axes.set_ylabel("objects")


def _draw_induced(figure: Any, axes: Any, image: Array, middles: Sequence[tuple[str, float]], ends: Array) -> None:
    n = int(ends[-1])
    shown = axes.imshow(image, cmap="viridis", vmin=0, vmax=1, interpolation="nearest", extent=(0, n, n, 0))
    for end in ends[:-1]:
        axes.axhline(end, color="white", linewidth=0.4)
        axes.axvline(end, color="white", linewidth=0.4)
    names, positions = [name for name, _ in middles], [position for _, position in middles]
    axes.set_xticks(positions, names, fontsize=9, rotation=90 if max(map(len, names)) > 3 else 0)
    axes.set_yticks(positions, names, fontsize=9)
    axes.set_xlabel("cluster (rows and columns in the same order)")
    axes.set_title(
        "Induced dissimilarity D(U)\ndark blocks: distinct clusters; dark off the diagonal: overlapping clusters",
        fontsize=11,
    )
    figure.colorbar(shown, ax=axes, label="0: equal memberships    1: no common cluster", shrink=0.7, pad=0.02)


def _colours(count: int) -> list[Any]:
    import matplotlib

    table = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
    return [table(k) for k in range(count)]


def save_figure(figure: Figure, path: Path, *, dpi: int) -> Path:
    """Write a figure as PNG, atomically, and create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(dpi)
    with replacing(path) as temporary, open(temporary, "xb") as file:
        # half the time of `savefig`, which draws twice and compresses for longer
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(file, pil_kwargs={"compress_level": 3})
    return path
