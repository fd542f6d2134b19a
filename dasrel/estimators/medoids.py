"""Medoids in scikit-learn's manner.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 20.0, 21.0, 23.0])
>>> KMedoids(n_clusters=2, metric="precomputed").fit(np.abs(x[:, None] - x)).medoid_indices_
array([1, 4])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import ClusterMixin

from dasrel.errors import InputError
from dasrel.estimators.base import PairwiseEstimator
from dasrel.medoids.fit import prepare_kmedoids
from dasrel.medoids.run import STARTS, MedoidRun
from dasrel.util import Index
from dasrel.util.text import shown


@dataclass(eq=False, repr=False, kw_only=True)
class KMedoids(ClusterMixin, PairwiseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Clusters around medoids, of a pairwise matrix of any size.

    Parameters
    ----------
    n_clusters
        Number of clusters.
    n_init
        Starts.
    random_state
        Seed of random numbers.
    metric
        "precomputed" says that an array without a `kind` has distances; no other is possible.

    Attributes
    ----------
    medoid_indices_
        Positions of the medoids, (c,).
    labels_
        The cluster of the nearest medoid of each object, (n,).
    inertia_
        The sum of the dissimilarities to the nearest medoid.
    model_
        What places new objects: `model_.save(path)` saves it, for `dasrel predict`.

    Cost: three scans, and two more for each exact step in which a medoid moves.
    """

    n_clusters: int = 8
    n_init: int = STARTS
    random_state: int = 0
    metric: str | None = None

    _least = "one object is its own medoid"

    def _prepared(self) -> MedoidRun:
        if self.metric not in (None, "precomputed"):
            raise InputError(
                f"metric is {shown(self.metric)}: a matrix of dissimilarities is given",
                remedy="say {metric=precomputed}, and compute it by `dasrel.pairwise`",
            )
        return MedoidRun(self.n_clusters, self.n_init, self.random_state)

    @property
    def _array_kind(self) -> str | None:
        return "distance" if self.kind is None and self.metric == "precomputed" else self.kind

    def _compute(self, source: Any, prepared: MedoidRun) -> None:
        result = prepare_kmedoids(source, prepared, memory=self.memory).run(self.checkpoint)
        best = result.best
        self.medoid_indices_ = best.medoids
        self.labels_ = best.labels
        self.inertia_ = best.objective
        self.model_ = result.model()

    def predict(self, X: Any) -> Index:
        """Return the cluster of new objects, (k,), from their (k, n) values to those of `fit`.

        Cost: no scan; one read of X.
        """
        rows = self._new_rows(X)
        return np.asarray(self.model_.predict(rows))
