"""Dendrograms with their matrix beside them, of any number of objects: the top of the tree, branches collapsed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from dasrel.engine.scan import scan
from dasrel.errors import InputError
from dasrel.geometry.dendrogram import Dendrogram
from dasrel.report.figures.group_means import means_consumer
from dasrel.store.array_matrix import as_matrix
from dasrel.util import Array, Float, Index, Names, PathLike
from dasrel.util.files import replacing
from dasrel.util.text import count_text, shown

MOST_LEAVES = 500
"""Leaves that are drawn; others are inside of collapsed branches."""
MOST_NAMES = 60
"""Leaves up to which each has its name or its size beside it."""
MOST_ORDERED = 300
"""Leaves up to which they are ordered optimally; the time grows with their third power or faster."""
MOST_HEIGHTS = 10
"""Merges, the highest, whose heights are written beside them."""
GREY = (0.35, 0.35, 0.35, 1.0)


@dataclass(frozen=True, eq=False)
class Top:
    """The top of a dendrogram: the last merges, of branches that are its leaves."""

    branches: Index
    """(n,) the branch of each object, numbered by their first objects."""
    nodes: Index
    """(leaves,) the number of each branch's cluster in the dendrogram."""
    children: Index
    """(leaves - 1, 2) merges of branches, numbered as in a `Dendrogram`."""
    heights: Float
    """(leaves - 1,) of these merges."""


def top_of(dendrogram: Dendrogram, leaves: int = MOST_LEAVES) -> Top:
    """Return the last merges of a dendrogram, with at most so many leaves. Cost: no scan; O(n)."""
    n = dendrogram.n_objects
    k = min(leaves, n)
    branches = dendrogram.cut(k)
    kept = n - k
    top = np.where(dendrogram.parents < n + kept, dendrogram.parents, np.arange(2 * n - 1))
    while not np.array_equal(top[top], top):
        top = top[top]
    nodes = np.zeros(k, dtype=np.int64)
    nodes[branches] = top[:n]
    number = np.full(2 * n - 1, -1)
    number[nodes] = np.arange(k)
    number[n + kept :] = k + np.arange(k - 1)
    return Top(branches, nodes, number[dendrogram.children[kept:]], dendrogram.heights[kept:])


def draw_dendrogram(dendrogram: Dendrogram, matrix: Any, labels: Index, folder: Path) -> None:
    """Draw a dendrogram and the clusters of a cut as dendrogram.png in a folder. Cost: that of `dendrogram_figure`."""
    dendrogram_figure(dendrogram, folder / "dendrogram.png", matrix=matrix, labels=labels)


def dendrogram_figure(
    dendrogram: Dendrogram,
    path: PathLike,
    *,
    matrix: Any = None,
    kind: str | None = None,
    labels: Array | None = None,
    leaves: int = MOST_LEAVES,
    memory: int | str | None = None,
) -> Path:
    """Draw a dendrogram, and the matrix in its order beside it, as a PNG or SVG file.

    Parameters
    ----------
    path
        Ends with .png or .svg.
    matrix
        The matrix, a store's path or an array with its `kind`; without it only the tree is drawn. Leaves are ordered
        so that neighbours are as similar as the tree allows.
    labels
        (n,) clusters of a cut, which are coloured.
    leaves
        Most leaves that are drawn, 2 to 500; a leaf of several objects is a collapsed branch, drawn as a triangle, with
        its number of objects.

    Cost: one scan with a matrix, else none; leaves^2 numbers per task.
    """
    target = Path(path)
    if target.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{shown(target, limit=200)}: the figure of a dendrogram ends with .png or .svg")
    if not 2 <= leaves <= MOST_LEAVES:
        raise InputError(f"leaves is {leaves}", remedy=f"give 2 to {MOST_LEAVES}")
    clusters = None if labels is None else np.asarray(labels)
    if clusters is not None and (clusters.shape != (dendrogram.n_objects,) or clusters.dtype.kind not in "iu"):
        raise InputError(f"labels have shape {clusters.shape}", remedy=f"give {dendrogram.n_objects} whole numbers")
    top = top_of(dendrogram, leaves)
    names: Names | None = None
    means = None
    if matrix is not None:
        source = as_matrix(matrix, kind=kind)
        if source.n_objects != dendrogram.n_objects:
            raise InputError(
                f"the dendrogram has {dendrogram.n_objects} objects and the matrix {source.n_objects}",
                remedy="give its own",
            )
        names = source.ids
        means = scan(source, [means_consumer(source, top.branches)], memory=memory)[0]
    order = _leaf_order(dendrogram, top, means)
    figure = _drawn(dendrogram, top, order, means, names, clusters)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary, open(temporary, "xb") as file:
        options: dict[str, Any] = {"metadata": {"Date": None}} if target.suffix.lower() == ".svg" else {}
        figure.savefig(file, format=target.suffix.lower()[1:], dpi=110, **options)
    return target


def _leaf_order(dendrogram: Dendrogram, top: Top, means: Float | None) -> Index:
    """Return the leaves from top to bottom: neighbours as near as possible where there is a matrix."""
    k = len(top.nodes)
    steps = top.heights[0] - top.heights if dendrogram.is_similarity else top.heights
    sizes = np.concatenate([np.ones(k), np.zeros(k - 1)])
    for row, (a, b) in enumerate(top.children.tolist()):
        sizes[k + row] = sizes[a] + sizes[b]
    merges = np.column_stack([top.children.astype(float), np.maximum(steps, 0), sizes[k:]])
    if means is not None and 2 < k <= MOST_ORDERED:
        between = means.copy()
        np.fill_diagonal(between, 0)
        merges = optimal_leaf_ordering(merges, squareform(between, checks=False))
    order: Index = np.asarray(leaves_list(merges), dtype=np.int64)
    return order


def _colours(top: Top, clusters: Array | None, dendrogram: Dendrogram) -> list[Any]:
    """Return the colour of every node of the top: that of its cluster, or grey where it has objects of several."""
    k = len(top.nodes)
    if clusters is None:
        return [GREY] * (2 * k - 1)
    least, most = np.full(k, clusters.max()), np.zeros(k, dtype=clusters.dtype)
    np.minimum.at(least, top.branches, clusters)
    np.maximum.at(most, top.branches, clusters)
    own = [int(a) if a == b else -1 for a, b in zip(least, most, strict=True)]
    for a, b in top.children.tolist():
        own.append(own[a] if own[a] == own[b] else -1)
    table = matplotlib.colormaps["tab10" if clusters.max() < 10 else "tab20"]
    return [GREY if cluster < 0 else table(cluster % table.N) for cluster in own]


def _drawn(
    dendrogram: Dendrogram, top: Top, order: Index, means: Float | None, names: Names | None, clusters: Array | None
) -> Figure:
    k = len(order)
    few = k <= MOST_NAMES
    figure = Figure(figsize=(13.5 if means is not None else 7.5, 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    widths = [1.0, 0.04, 1.15] if means is not None else [1.0, 0.04]
    grid = figure.add_gridspec(1, len(widths), width_ratios=widths, wspace=0.02)
    tree, strip = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    colours = _colours(top, clusters, dendrogram)
    sizes = np.bincount(top.branches, minlength=k)
    _draw_tree(tree, dendrogram, top, order, colours, sizes)
    _draw_strip(strip, [colours[leaf] for leaf in order], clusters is not None)
    texts = _leaf_texts(order, sizes, top, names) if few else None
    beside = strip
    if means is not None:
        beside = figure.add_subplot(grid[0, 2])
        shown_image = beside.imshow(
            means[np.ix_(order, order)], cmap="viridis", interpolation="nearest", aspect="auto",
            extent=(-0.5, k - 0.5, k - 0.5, -0.5),
        )  # fmt: skip
        beside.set_xticks([])
        beside.set_title(
            "the matrix in the order of the tree" + ("" if k == dendrogram.n_objects else ", means of branches")
        )
        figure.colorbar(shown_image, ax=beside, label="dissimilarity", shrink=0.7, pad=0.1 if few else 0.02)
    beside.yaxis.tick_right()
    beside.set_yticks(range(k) if few else [], texts or [], fontsize=8 if k > 30 else 9)
    drawn = "" if k == dendrogram.n_objects else f"; {k:,} branches drawn, largest {int(sizes.max()):,} objects"
    cut = "" if clusters is None else f", {count_text(len(np.unique(clusters)), 'cluster')} coloured"
    figure.suptitle(
        f"{dendrogram.method} linkage of {count_text(dendrogram.n_objects, 'object')}{cut}{drawn}", fontsize=12
    )
    return figure


def _draw_tree(axes: Any, dendrogram: Dendrogram, top: Top, order: Index, colours: list[Any], sizes: Index) -> None:
    k, n = len(order), dendrogram.n_objects
    start = float(dendrogram.heights[0]) if dendrogram.is_similarity else 0.0  # where an object is drawn
    reach = np.concatenate([[start], dendrogram.heights])
    height = np.where(top.nodes < n, start, dendrogram.heights[np.maximum(top.nodes - n, 0)])
    level = np.concatenate([height, top.heights])
    place = np.zeros(2 * k - 1)
    place[order] = np.arange(k)
    lines = []
    for row, (a, b) in enumerate(top.children.tolist()):
        place[k + row] = (place[a] + place[b]) / 2
        at = level[k + row]
        lines.append([(level[a], place[a]), (at, place[a]), (at, place[b]), (level[b], place[b])])
    axes.add_collection(LineCollection(lines, colors=colours[k:], linewidths=1.3 if k <= 100 else 0.7))
    packed = np.flatnonzero(sizes > 1)
    half = 0.4 * (sizes[packed] / sizes.max()) ** 0.5 + 0.05
    axes.add_collection(
        PolyCollection(
            [
                [(level[leaf], place[leaf]), (start, place[leaf] - wide), (start, place[leaf] + wide)]
                for leaf, wide in zip(packed, half, strict=True)
            ],
            facecolors=[colours[leaf] for leaf in packed], linewidths=0,
        )
    )  # fmt: skip
    for row in range(max(0, k - 1 - MOST_HEIGHTS), k - 1):
        axes.annotate(
            f"{top.heights[row]:.3g}", (level[k + row], place[k + row]), xytext=(-2, 0), textcoords="offset points",
            fontsize=7, ha="right", va="center",
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        )  # fmt: skip
    room = 0.06 * (float(reach.max() - reach.min()) or 1.0)
    outer, inner = float(top.heights[-1]), start
    axes.set_xlim(outer - room, inner) if dendrogram.is_similarity else axes.set_xlim(outer + room, inner)
    axes.set_ylim(k - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel(f"height: {dendrogram.units}")
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _draw_strip(axes: Any, colours: list[Any], coloured: bool) -> None:
    """Draw the clusters of the leaves as a strip of colours."""
    if coloured:
        axes.imshow(
            np.array([colour[:4] for colour in colours])[:, None, :], aspect="auto", interpolation="nearest",
            extent=(0, 1, len(colours) - 0.5, -0.5),
        )  # fmt: skip
    else:
        axes.set_ylim(len(colours) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _leaf_texts(order: Index, sizes: Index, top: Top, names: Names | None) -> list[str]:
    """Return the name of each leaf of one object, and the number of objects of others."""
    return [
        f"({sizes[leaf]:,})" if sizes[leaf] > 1
        else shown(str(top.nodes[leaf]) if names is None else names[int(top.nodes[leaf])], limit=24)
        for leaf in order.tolist()
    ]  # fmt: skip
