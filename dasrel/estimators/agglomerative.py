"""Agglomerative clustering in scikit-learn's manner.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 20.0, 21.0, 23.0])
>>> found = AgglomerativeClustering(n_clusters=2, kind="distance").fit(np.abs(x[:, None] - x))
>>> found.labels_.tolist(), found.n_leaves_
([0, 0, 0, 1, 1, 1], 6)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from sklearn.base import BaseEstimator, ClusterMixin

from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import InputError
from dasrel.estimators.base import opened, set_features
from dasrel.hierarchy.linkage import linkage
from dasrel.names import is_similarity
from dasrel.util import PathLike
from dasrel.util.text import count_text


@dataclass(eq=False, repr=False, kw_only=True)
class AgglomerativeClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
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
    kind
        What the numbers of an array are; stores know theirs.
    scratch, memory, checkpoint
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
    n_features_in_
        Number of objects.
    """

    n_clusters: int | None = field(default=None, kw_only=False)
    distance_threshold: float | None = None
    linkage: str = "average"
    kind: str | None = None
    scratch: PathLike | None = None
    memory: int | str | None = None
    checkpoint: Checkpoint | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the objects of a pairwise matrix.

        Parameters
        ----------
        X
            An open `Matrix`, the path or URL of a store, or a NumPy, Zarr or dask array (n, n) of the `kind` given.
        y
            Not used.

        Cost: one scan, and that of `dasrel.linkage`; an array is read once more to check it.
        """
        if self.n_clusters is not None and self.distance_threshold is not None:
            raise InputError("give either n_clusters or distance_threshold, not both")
        source, names = opened(self, X, _check_count)
        found = linkage(
            source, method=self.linkage, scratch=self.scratch, memory=self.memory, checkpoint=self.checkpoint
        )
        if self.distance_threshold is not None:
            count = int((found.heights >= self.distance_threshold).sum()) + 1
        elif self.n_clusters is not None:
            count = self.n_clusters
        else:
            count = found.largest_gap() if found.n_objects > 2 else 2
        self.labels_ = found.cut(count)
        self.n_clusters_ = count
        self.n_leaves_ = found.n_objects
        set_features(self, source, names)
        self.children_ = found.children
        self.distances_ = found.heights
        self.dendrogram_ = found
        self.n_connected_components_ = 1
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.positive_only = self.kind is not None and not is_similarity(self.kind)
        return tags


def _check_count(n_objects: int) -> None:
    if n_objects < 2:
        raise InputError(f"n_samples={count_text(n_objects, 'object')}: give at least 2 objects")
