"""Figures of clusters by density: the condensed tree, and the reachability of the objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from dasrel.report.figures.partition import save_figure
from dasrel.util import Float, Index
from dasrel.util.text import count_text

if TYPE_CHECKING:
    from dasrel.density.fit import Density, DensityResult

DRAWN = 300
"""Clusters of the condensed tree that are drawn at most, the largest."""
POINTS = 120
"""Steps of the outline of a cluster, at most."""
COLUMNS = 1200
"""Bars of the reachability, at most."""
NAMED = 20
"""Clusters whose labels are written."""
GREY = "0.75"


def draw_density(density: Density, result: DensityResult, path: Path) -> None:
    """Draw the condensed tree and the reachability of a result as a PNG file. Cost: no scan; O(n log n)."""
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    draw_condensed(left, result)
    draw_reachability(right, density, result)
    noise = int((result.labels < 0).sum())
    figure.suptitle(
        f"{count_text(result.n_clusters, 'cluster')} of {count_text(len(result.labels), 'object')}, {noise:,} noise;"
        f" min_size {result.run.size}, min_samples {result.run.samples}",
        fontsize=12,
    )
    save_figure(figure, path, dpi=110)


def colour(label: int) -> Any:
    """Return the colour of a cluster."""
    from matplotlib import colormaps

    return GREY if label < 0 else colormaps["tab20"]((2 * label + label // 10) % 20)


def draw_condensed(axes: Any, result: DensityResult) -> None:
    """Draw clusters of the condensed tree as areas, as wide as they have objects, from far distances to near ones."""
    tree = result.tree
    chosen = set(result.chosen.tolist())
    drawn = np.zeros(tree.n_clusters, dtype=bool)
    drawn[np.argsort(-tree.sizes, kind="stable")[:DRAWN]] = True
    left = _places(tree.parents, tree.sizes)
    order = np.argsort(tree.clusters, kind="stable")
    first = np.searchsorted(tree.clusters[order], np.arange(tree.n_clusters + 1))
    top = 1.15 / tree.leaves_at.min(initial=np.inf) if tree.n_objects else 1.0
    top = max(top, 1.15 / tree.births[1:].min(initial=np.inf)) if tree.n_clusters > 1 else top
    for k in np.flatnonzero(drawn).tolist():
        times = np.sort(tree.leaves_at[order[first[k] : first[k + 1]]])
        begin = tree.births[k] if k else 1 / top
        steps, left_by = _outline(times, begin, float(tree.ends[k]))
        width = tree.sizes[k] - left_by
        middle = left[k] + tree.sizes[k] / 2
        label = int(result.of_cluster[k])
        axes.fill_betweenx(1 / steps, middle - width / 2, middle + width / 2, color=colour(label), linewidth=0.4,
                           edgecolor="white" if label >= 0 else "0.5")  # fmt: skip
        if k in chosen and label < NAMED:
            axes.text(middle, 1 / begin, str(label), ha="center", va="bottom", fontsize=9)
    axes.set_yscale("log")
    axes.set_ylim(top, max(1 / tree.ends.max(), top * 1e-6) / 1.05)
    for of in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        of(LogFormatter(minor_thresholds=(2, 0.4)))
    axes.set_xlim(0, tree.n_objects)
    axes.set_ylabel("distance")
    axes.set_xlabel("objects")
    more = int(tree.n_clusters - drawn.sum())
    axes.set_title("condensed tree" + (f"; {more:,} small clusters are not drawn" if more else ""), fontsize=11)


def _places(parents: Index, sizes: Index) -> Float:
    """Return the left end of every cluster, those of one parent side by side in its middle."""
    taken = np.zeros(len(parents))
    np.add.at(taken, parents[1:], sizes[1:])
    left, used = np.zeros(len(parents)), np.zeros(len(parents))
    for k in range(1, len(parents)):
        parent = parents[k]
        left[k] = left[parent] + (sizes[parent] - taken[parent]) / 2 + used[parent]
        used[parent] += sizes[k]
    return left


def _outline(times: Float, begin: float, end: float) -> tuple[Float, Float]:
    """Return some lambdas from the begin of a cluster to its end, and how many objects have left it by each."""
    picks = np.unique(np.linspace(0, max(0, len(times) - 1), min(POINTS, len(times))).astype(np.int64))
    steps = np.unique(np.concatenate([[begin], times[picks], [end]])).clip(min=begin)
    return steps, np.searchsorted(times, steps, side="left").astype(np.float64)


def draw_reachability(axes: Any, density: Density, result: DensityResult) -> None:
    """Draw the distances at which objects join, in Prim's order: valleys are clusters."""
    tree = density.trees[result.run.samples]
    heights = tree.join_heights()
    heights = heights if tree.kind == "distance" else np.sqrt(heights)
    labels = result.labels[tree.vat_order()]
    edges = np.unique(np.linspace(0, len(heights), min(COLUMNS, len(heights)) + 1).astype(int))
    highest = np.maximum.reduceat(heights, edges[:-1])
    middle = labels[(edges[:-1] + edges[1:] - 1) // 2]
    axes.bar(edges[:-1], highest, width=np.diff(edges), align="edge", color=[colour(int(k)) for k in middle])
    axes.set_xlim(0, len(heights))
    axes.set_ylabel("distance at which an object joins")
    axes.set_xlabel("objects in the order in which they join")
    axes.set_title("reachability; noise is grey", fontsize=11)
