"""HDBSCAN against scikit-learn's own class and its checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import cluster
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import dasrel
from tests.helpers.matrices import distances, grouped_points, uniform_points


def expected_to_fail(_: Any) -> dict[str, str]:
    return {"check_clustering": "it gives 50 x 2 features to every clusterer and never asks whether it is pairwise"}


@pytest.mark.filterwarnings("ignore:.*stands out:dasrel.DasrelWarning")
@parametrize_with_checks(
    [dasrel.HDBSCAN(min_cluster_size=2, metric="precomputed")], expected_failed_checks=expected_to_fail
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_same_as_scikit_learn() -> None:
    for D in (distances(grouped_points(90, groups=3, apart=8.0)), distances(uniform_points(90, 2, 5))):
        theirs = cluster.HDBSCAN(
            min_cluster_size=5, min_samples=2, metric="precomputed", algorithm="brute", copy=True
        ).fit(D)
        ours = dasrel.HDBSCAN(min_cluster_size=5, min_samples=2, metric="precomputed").fit(D)
        assert adjusted_rand_score(ours.labels_, theirs.labels_) == 1
        np.testing.assert_array_equal(ours.labels_ < 0, theirs.labels_ < 0)
        np.testing.assert_allclose(ours.probabilities_, theirs.probabilities_, atol=1e-6)
        assert ours.n_clusters_ == theirs.labels_.max() + 1
        firm = ours.probabilities_ > 0.6
        np.testing.assert_array_equal(ours.predict(D)[firm], ours.labels_[firm])


def test_a_store_knows_its_kind(store: str) -> None:
    with_metric = dasrel.HDBSCAN(min_cluster_size=4, allow_single_cluster=True, metric="precomputed").fit(store)
    plain = dasrel.HDBSCAN(min_cluster_size=4, allow_single_cluster=True).fit(store)
    np.testing.assert_array_equal(with_metric.labels_, plain.labels_)


def test_refusals() -> None:
    D = distances(uniform_points(9, 2))
    with pytest.raises(dasrel.InputError, match="does not tell its kind"):
        dasrel.HDBSCAN(min_cluster_size=3).fit(D)
    with pytest.raises(dasrel.InputError, match="metric is euclidean: a matrix of dissimilarities is given"):
        dasrel.HDBSCAN(min_cluster_size=3, metric="euclidean").fit(D)
    with pytest.raises(dasrel.InputError, match="min_size is 10, and there are 9 objects"):
        dasrel.HDBSCAN(min_cluster_size=10, metric="precomputed").fit(D)
