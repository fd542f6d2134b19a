"""Clusters by density in scikit-learn's manner.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 20.0, 21.0, 23.0, 50.0])
>>> HDBSCAN(min_cluster_size=3, min_samples=1, metric="precomputed").fit_predict(np.abs(x[:, None] - x))
array([ 0,  0,  0,  1,  1,  1, -1])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import ClusterMixin

from dasrel.density.fit import prepare_density
from dasrel.density.run import DensityRun
from dasrel.errors import InputError
from dasrel.estimators.base import PairwiseEstimator
from dasrel.util import Index
from dasrel.util.text import shown


@dataclass(eq=False, repr=False, kw_only=True)
class HDBSCAN(ClusterMixin, PairwiseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Clusters of any shape as regions of high density, of a pairwise matrix of any size.

    Parameters
    ----------
    min_cluster_size
        Objects that a cluster has at least.
    min_samples
        The core distance of an object is that to the nearest of which so many, itself included, are at least as near;
        `min_cluster_size` by default.
    cluster_selection_epsilon
        Clusters that are split at a distance below it are taken as one.
    cluster_selection_method
        "eom" (excess of mass) or "leaf".
    allow_single_cluster
        Whether all objects may be one cluster.
    metric
        "precomputed" says that an array without a `kind` has distances; no other is possible.

    Attributes
    ----------
    labels_
        The cluster of each object, (n,), numbered by their first objects; -1 for noise.
    probabilities_
        How firmly each object belongs to its cluster, (n,), 0 to 1.
    outlier_scores_
        GLOSH scores of the objects, (n,).
    n_clusters_
        Number of clusters.
    condensed_tree_
        The `CondensedTree`.
    density_
        The `dasrel.Density`: `density_.dbscan(eps)` gives labels of DBSCAN.
    model_
        What places new objects: `model_.save(path)` saves it, for `dasrel predict`.

    Cost: two scans, one if `min_samples` is 1; 24 n bytes for each of `min_samples`.
    """

    min_cluster_size: int = 5
    min_samples: int | None = None
    cluster_selection_epsilon: float = 0.0
    cluster_selection_method: str = "eom"
    allow_single_cluster: bool = False
    metric: str | None = None

    _least = "one object has no neighbours"

    def _prepared(self) -> DensityRun:
        if self.metric not in (None, "precomputed"):
            raise InputError(
                f"metric is {shown(self.metric)}: a matrix of dissimilarities is given",
                remedy="say {metric=precomputed}, and compute it by `dasrel.pairwise`",
            )
        return DensityRun(
            self.min_cluster_size, self.min_samples, self.cluster_selection_method,  # type: ignore[arg-type]
            float(self.cluster_selection_epsilon), self.allow_single_cluster,
        )  # fmt: skip

    @property
    def _array_kind(self) -> str | None:
        return "distance" if self.kind is None and self.metric == "precomputed" else self.kind

    def _compute(self, source: Any, prepared: DensityRun) -> None:
        density = prepare_density(source, prepared, memory=self.memory).run(self.checkpoint)
        result = density.best
        self.labels_ = result.labels
        self.probabilities_ = result.probabilities
        self.outlier_scores_ = result.outlier_scores
        self.n_clusters_ = result.n_clusters
        self.condensed_tree_ = result.tree
        self.density_ = density
        self.model_ = density.model()

    def predict(self, X: Any) -> Index:
        """Return the cluster of new objects, (k,), -1 for noise, from their (k, n) values to those of `fit`.

        Cost: no scan; one read of X.
        """
        rows = self._new_rows(X)
        return np.asarray(self.model_.predict(rows).labels)
