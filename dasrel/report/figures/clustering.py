"""Figures of a clustering: its best partition, and the validity indices of its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dasrel.report.figures.partition import partition_figure, save_figure, validity_figure
from dasrel.util import PathLike
from dasrel.util.text import count_text

if TYPE_CHECKING:
    from dasrel.cmeans.result import Clustering


def draw_clustering(clustering: Clustering, folder: Path, choose: str = "fuzzy_silhouette") -> None:
    """Draw the best partition of a clustering, partition.png, and of several settings validity.png.

    Cost: no scan; that of `partition_figure`.
    """
    best = clustering.partitions[clustering.recommended(choose)]
    run = best.result.run
    title = f"{count_text(len(best.memberships), 'object')}, {run.rule}, {count_text(run.n_clusters, 'cluster')}"
    if not best.result.is_sound:
        title += ": clusters coincide or are empty"
    # Of coincident clusters of pcm, which are one mode, the first is drawn.
    modes = sorted(set(best.model.modes or range(run.n_clusters)))
    if len(modes) < run.n_clusters:
        title += f", {count_text(len(modes), 'mode')}"
    partition_figure(
        best.memberships[:, modes], folder / "partition.png", title=title, names=[str(k) for k in modes],
        histogram=True,
    )  # fmt: skip
    if clustering.quality is not None and len(clustering.partitions) > 1:
        draw_validity(clustering, folder / "validity.png", choose)


def draw_validity(clustering: Clustering, path: PathLike, choose: str = "fuzzy_silhouette") -> Path:
    """Draw validity indices against the number of clusters, one line for each rule, the recommended setting marked.

    Cost: no scan if the clustering was judged.
    """
    quality = clustering.quality if clustering.quality is not None else clustering.validity(samples=False)
    runs = [(partition.result.run.rule, partition.result.run.n_clusters) for partition in clustering.partitions]
    return save_figure(
        validity_figure(runs, quality.values, clustering.recommended(choose), choose), Path(path), dpi=110
    )
