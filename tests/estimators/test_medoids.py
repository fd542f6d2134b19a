"""KMedoids: scikit-learn's checks, and the function that it calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import dasrel
from tests.helpers.matrices import distances, grouped_points, uniform_points


def expected_to_fail(_: Any) -> dict[str, str]:
    return {"check_clustering": "it gives 50 x 2 features to every clusterer and never asks whether it is pairwise"}


@parametrize_with_checks([dasrel.KMedoids(n_clusters=2, metric="precomputed")], expected_failed_checks=expected_to_fail)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_same_as_the_function() -> None:
    D = distances(grouped_points(60, groups=3, apart=6.0))
    ours = dasrel.KMedoids(n_clusters=3, metric="precomputed").fit(D)
    best = dasrel.kmedoids(D, dasrel.MedoidRun(3), kind="distance").best
    np.testing.assert_array_equal(ours.labels_, best.labels)
    np.testing.assert_array_equal(ours.medoid_indices_, best.medoids)
    assert ours.inertia_ == best.objective
    np.testing.assert_array_equal(ours.predict(D), ours.labels_)


def test_refusals() -> None:
    D = distances(uniform_points(9, 2))
    with pytest.raises(dasrel.InputError, match="does not tell its kind"):
        dasrel.KMedoids(n_clusters=3).fit(D)
    with pytest.raises(dasrel.InputError, match="metric is euclidean: a matrix of dissimilarities is given"):
        dasrel.KMedoids(n_clusters=3, metric="euclidean").fit(D)
    with pytest.raises(dasrel.InputError, match="10 clusters of 9 objects"):
        dasrel.KMedoids(n_clusters=10, metric="precomputed").fit(D)
