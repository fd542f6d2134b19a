"""Agglomerative clustering in scikit-learn's manner.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 20.0, 21.0, 23.0])
>>> model = AgglomerativeClustering(n_clusters=2, kind="distance").fit(np.abs(x[:, None] - x))
>>> model.labels_.tolist(), model.n_leaves_
([0, 0, 0, 1, 1, 1], 6)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sklearn.base import ClusterMixin

from dasrel.errors import InputError
from dasrel.estimators.base import PairwiseEstimator
from dasrel.hierarchy.linkage import linkage
from dasrel.util import PathLike


@dataclass(eq=False, repr=False, kw_only=True)
class AgglomerativeClustering(ClusterMixin, PairwiseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Exact agglomerative clustering of a pairwise matrix of any size.

    Parameters
    ----------
    n_clusters
        Number of clusters. With neither this nor `distance_threshold`, as many as last over the largest gap between
        heights.
    distance_threshold
        Clusters at or above this distance are not merged.
    linkage
        "single", "complete", "average", "weighted" or "ward"; see `dasrel.linkage`.
    scratch
        As for `dasrel.linkage`.

    Attributes
    ----------
    labels_
        The cluster of each object, (n,); clusters are numbered by their first objects.
    n_clusters_
        Number of clusters.
    n_leaves_
        Number of objects.
    children_
        (n - 1, 2) the two clusters of each merge: objects below n, and n + k for the cluster of merge k.
    distances_
        (n - 1,) heights of the merges.
    dendrogram_
        The `dasrel.Dendrogram`.

    Cost: one scan, and that of `dasrel.linkage`.
    """

    n_clusters: int | None = field(default=None, kw_only=False)
    distance_threshold: float | None = None
    linkage: str = "average"
    scratch: PathLike | None = None

    _least = "one object has nothing to merge with"

    def _prepared(self) -> None:
        if self.n_clusters is not None and self.distance_threshold is not None:
            raise InputError("both n_clusters and distance_threshold are given", remedy="leave one of them out")

    def _compute(self, source: Any, prepared: Any) -> None:
        tree = linkage(
            source, method=self.linkage, scratch=self.scratch, memory=self.memory, checkpoint=self.checkpoint
        )
        if self.distance_threshold is not None:
            count = int((tree.heights >= self.distance_threshold).sum()) + 1
        elif self.n_clusters is not None:
            count = self.n_clusters
        else:
            count = tree.largest_gap() if tree.n_objects > 2 else 2
        self.labels_ = tree.cut(count)
        self.n_clusters_ = count
        self.n_leaves_ = tree.n_objects
        self.children_ = tree.children
        self.distances_ = tree.heights
        self.dendrogram_ = tree
        self.n_connected_components_ = 1
