"""The figure of an alignment: its surface over numbers of clusters and widths (Q09 figures 6 to 8), the best alignment
of every number of clusters, and the kernel in the order of the clusters (Q09 figures 5 and 10)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from dasrel.report.figures.downsample import cluster_order
from dasrel.report.figures.group_means import kernel_image
from dasrel.report.figures.matrix_drawing import Block, draw_positions
from dasrel.report.figures.partition import save_figure
from dasrel.util import Array, Float
from dasrel.util.text import count_text

if TYPE_CHECKING:
    from dasrel.judging.alignment_search import Alignment

PIXELS = 500
SHARPENED = 4.0
"""Exponent of the colours: alignments of good fits differ little, those of bad ones much."""
MOST_WIDTHS = 60
"""Columns of the surface; of more widths, as an evolution tries, those nearest to equal steps are drawn."""
MARK = {"markersize": 15, "markerfacecolor": "none", "markeredgecolor": "tab:red", "markeredgewidth": 2.2}


def draw_alignment(alignment: Alignment, folder: Path, *, memory: int | str | None = None) -> None:
    """Draw alignment.png into a folder.

    Cost: one scan, for the kernel.
    """
    labels, memberships = alignment.partition.labels, alignment.partition.memberships
    image = kernel_image(alignment.relation, alignment.width, cluster_order(memberships, labels), PIXELS, memory=memory)
    has_widths = len(alignment.widths) > 1
    figure = Figure(figsize=(16.5 if has_widths else 11.5, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3 if has_widths else 2, width_ratios=[1.15, 0.85, 1.1] if has_widths else [0.9, 1.1])
    if has_widths:
        _draw_surface(figure, axes[0], alignment)
    _draw_best(axes[-2], alignment)
    _draw_kernel(figure, axes[-1], alignment, image, np.bincount(labels))
    width = "the matrix as kernel" if alignment.width is None else f"kernel width {alignment.width:.4g}"
    figure.suptitle(
        f"{count_text(alignment.n_clusters, 'cluster')} and {width} agree best:"
        f" alignment {alignment.alignment:.4f} ({count_text(alignment.relation.n_objects, 'object')})", fontsize=13,
    )  # fmt: skip
    save_figure(figure, folder / "alignment.png", dpi=110)


def _rows(alignment: Alignment) -> list[str]:
    """Return the name of each partition: its number of clusters, and its rule where several have the same number."""
    counts = [partition.result.run.n_clusters for partition in alignment.partitions]
    rules = [partition.result.run.rule for partition in alignment.partitions]
    several = len(set(counts)) < len(counts)
    return [f"{c} {rule}" if several else str(c) for c, rule in zip(counts, rules, strict=True)]


def _draw_surface(figure: Any, axes: Any, alignment: Alignment) -> None:
    i, j = alignment.best()
    shown = _some_widths(np.array(alignment.widths, dtype=np.float64), j)
    widths, values = np.array(alignment.widths, dtype=np.float64)[shown], alignment.values[:, shown]
    middle = np.sqrt(widths[1:] * widths[:-1])
    edges = np.concatenate([[widths[0] ** 2 / middle[0]], middle, [widths[-1] ** 2 / middle[-1]]])
    rows = np.arange(len(values) + 1) - 0.5
    norm = PowerNorm(SHARPENED, vmin=max(0.0, float(values.min())), vmax=float(values.max()))
    mesh = axes.pcolormesh(edges, rows, values, cmap="viridis", norm=norm)
    axes.plot(widths[values.argmax(axis=1)], np.arange(len(values)), ".", color="white", markersize=7)
    for k in np.flatnonzero(~alignment.sound):
        axes.axhspan(k - 0.5, k + 0.5, facecolor="none", edgecolor="white", hatch="//", linewidth=0)
    axes.plot(alignment.widths[j], i, "o", **MARK)
    axes.set_xscale("log")
    axes.set_xticks(
        np.geomspace(widths[0], widths[-1], 6), [f"{w:.2g}" for w in np.geomspace(widths[0], widths[-1], 6)]
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(edges[0], edges[-1])
    axes.set_yticks(range(len(values)), _rows(alignment))
    axes.set_xlabel("width of the kernel (logarithmic)")
    axes.set_ylabel("clusters")
    hatched = "; hatched: clusters coincide or are empty" if not alignment.sound.all() else ""
    axes.set_title(
        f"Alignment of kernel and partition; circle: the largest\nwhite dots: best width of each row{hatched}",
        fontsize=10,
    )
    bar = figure.colorbar(mesh, ax=axes, label="alignment A(K, P), on an uneven scale", shrink=0.9, pad=0.02)
    ticks = norm.inverse(np.linspace(0, 1, 7))
    bar.set_ticks(ticks, labels=[f"{tick:.2f}" for tick in ticks])


def _some_widths(widths: Float, best: int) -> Array:
    """Return the positions of at most MOST_WIDTHS widths, the best among them."""
    if len(widths) <= MOST_WIDTHS:
        return np.arange(len(widths))
    steps = np.linspace(np.log(widths[0]), np.log(widths[-1]), MOST_WIDTHS - 1)
    nearest = np.searchsorted(np.log(widths), steps).clip(0, len(widths) - 1)
    return np.unique([*nearest, best])


def _draw_best(axes: Any, alignment: Alignment) -> None:
    names = _rows(alignment)
    at = np.arange(len(names))
    plain, centred = alignment.values.max(axis=1), alignment.centred.max(axis=1)
    for values, label, colour, style in (
        (plain, "alignment", "tab:blue", "o-"), (centred, "centred alignment", "tab:orange", "s--"),
    ):  # fmt: skip
        axes.plot(at, values, style, color=colour, label=label, markersize=5)
        best = alignment.best("alignment" if values is plain else "centred")[0]
        axes.plot(at[best], values[best], "o", **{**MARK, "markeredgecolor": colour})
    for k in np.flatnonzero(~alignment.sound):
        axes.plot(at[k], plain[k], "x", color="black", markersize=9)
    if not alignment.sound.all():
        axes.plot([], [], "x", color="black", label="clusters coincide or are empty")
    axes.set_xticks(at, names)
    axes.set_xlabel("clusters")
    axes.set_ylabel("largest over all widths" if len(alignment.widths) > 1 else "alignment with the kernel")
    axes.set_title("Alignment of every number of clusters\ncircles: the largest", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3)


def _draw_kernel(figure: Any, axes: Any, alignment: Alignment, image: Float, sizes: Array) -> None:
    n = int(sizes.sum())
    name = "The matrix" if alignment.width is None else "Kernel at the best width"
    low = 0.0 if alignment.width is not None else float(image.min())
    shown = axes.imshow(
        image, cmap="viridis", interpolation="nearest", extent=(0, n, n, 0), vmin=low, vmax=float(image.max())
    )
    draw_positions(axes, n, [Block(str(k), int(size)) for k, size in enumerate(sizes) if size], "cluster")
    axes.set_xlabel("cluster; in each, objects of highest membership first")
    axes.set_title(
        f"{name}, sorted by the best partition\nbright blocks on the diagonal only: distinct clusters",
        fontsize=10,
    )
    figure.colorbar(shown, ax=axes, label="kernel: near 1 are similar objects" if alignment.width else "similarity",
                    shrink=0.9, pad=0.02)  # fmt: skip
