"""The figure of medoids: a map of the objects and their medoids, and how good each number of clusters is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dasrel.report.figures.embedding import DRAWN
from dasrel.report.figures.matrix_drawing import CLUSTERS
from dasrel.report.figures.partition import save_figure
from dasrel.util.text import count_text, shown

if TYPE_CHECKING:
    from dasrel.medoids.fit import KMedoidsResult, MedoidResult

BEHIND = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "edgecolor": "none"}
"""What is behind names, which lie on points."""
NAMED = 30
"""Medoids whose names are written, at most."""


def draw_medoids(searches: KMedoidsResult, result: MedoidResult, path: Path) -> None:
    """Draw a map of the objects with the medoids of a result as a PNG file; beside it the results of several numbers of
    clusters, or the silhouettes of the clusters. Cost: no scan.
    """
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1.3, 1])
    _draw_map(left, searches, result)
    if len({of.run.n_clusters for of in searches.results}) > 1:
        _draw_numbers(right, searches, result)
    else:
        _draw_clusters(right, result)
    figure.suptitle(
        f"{count_text(len(result.medoids), 'medoid')} of {count_text(len(result.labels), 'object')}, mean dissimilarity"
        f" to them {result.distances.mean():.4g}",
        fontsize=12,
    )
    save_figure(figure, path, dpi=110)


def _colours(labels: Any) -> list[str]:
    return [CLUSTERS[int(k) % len(CLUSTERS)] for k in labels]


def _draw_map(axes: Any, searches: KMedoidsResult, result: MedoidResult) -> None:
    n = len(result.labels)
    draw = np.random.default_rng(0)
    kept = draw.permutation(n) if n <= DRAWN else draw.choice(n, DRAWN, replace=False)
    x, y = searches.coordinates.T
    size = float(np.clip(22_000 / len(kept), 3, 30))
    axes.scatter(x[kept], y[kept], s=size, c=_colours(result.labels[kept]), edgecolors="white",
                 linewidths=0.3 if n <= 5_000 else 0)  # fmt: skip
    at = result.medoids
    axes.scatter(x[at], y[at], s=170, marker="*", c=_colours(range(len(at))), edgecolors="black", linewidths=1.0)
    for k, position in enumerate(at[:NAMED].tolist()):
        name = shown(searches.matrix.ids[position], limit=14)
        axes.annotate(f"{k}: {name}", (x[position], y[position]), xytext=(5, 6), textcoords="offset points", fontsize=8,
                      bbox=BEHIND)  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    drawn = f"; {DRAWN:,} objects of {n:,}" if n > DRAWN else ""
    axes.set_title(f"medoids (stars) on a map by principal coordinates{drawn}", fontsize=11)
    axes.set_xlabel("axis 1")
    axes.set_ylabel("axis 2")


def _draw_numbers(axes: Any, searches: KMedoidsResult, result: MedoidResult) -> None:
    order = sorted(searches.results, key=lambda of: of.run.n_clusters)
    counts = [of.run.n_clusters for of in order]
    axes.plot(counts, [of.silhouette for of in order], "o-", color="tab:blue")
    axes.plot(result.run.n_clusters, result.silhouette, "o", markersize=13, fillstyle="none", color="black")
    axes.set_ylabel("mean silhouette (larger is better)", color="tab:blue")
    axes.set_xlabel("clusters")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    other = axes.twinx()
    other.plot(counts, [of.objective / len(of.labels) for of in order], "s--", color="0.5", markersize=4)
    other.set_ylabel("mean dissimilarity to the medoid", color="0.4")
    axes.set_title("number of clusters (circle: this one)", fontsize=11)


def _draw_clusters(axes: Any, result: MedoidResult) -> None:
    """Draw for each cluster where the middle half of its silhouettes lies."""
    if len(result.medoids) == 1:
        axes.hist(result.distances, bins=40, color="0.5")
        axes.set_xlabel("dissimilarity to the medoid")
        axes.set_ylabel("objects")
        return
    clusters = range(min(len(result.medoids), NAMED))
    for k, colour in zip(clusters, _colours(clusters), strict=True):
        low, first, middle, third, high = np.quantile(
            result.silhouettes[result.labels == k], (0.05, 0.25, 0.5, 0.75, 0.95)
        )
        axes.hlines(k, low, high, color="0.4", linewidth=1)
        axes.barh(k, third - first, left=first, height=0.6, color=colour, edgecolor="black", linewidth=0.6)
        axes.vlines(middle, k - 0.3, k + 0.3, color="black", linewidth=1.5)
    axes.invert_yaxis()
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_xlabel("silhouette")
    axes.set_ylabel("cluster")
    axes.set_title("silhouettes of the clusters: median, quartiles, 5 to 95 %", fontsize=11)
