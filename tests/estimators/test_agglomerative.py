"""AgglomerativeClustering against scikit-learn's own class and its checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering as Theirs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import dasrel
from tests.helpers.matrices import distances, grouped_points, uniform_points


class CheckedAgglomerativeClustering(dasrel.AgglomerativeClustering):
    metric = "precomputed"  # then the checks hand it distances


def expected_to_fail(_: Any) -> dict[str, str]:
    return {"check_clustering": "it gives 50 x 2 features to every clusterer and never asks whether it is pairwise"}


@parametrize_with_checks(
    [CheckedAgglomerativeClustering(n_clusters=2, kind="distance")], expected_failed_checks=expected_to_fail
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_the_same_as_scikit_learn(linkage: str) -> None:
    D = distances(uniform_points(90, 3, 5))
    for given in ({"n_clusters": 6}, {"n_clusters": None, "distance_threshold": float(np.median(D)) / 2}):
        theirs = Theirs(metric="precomputed", linkage=linkage, compute_distances=True, **given).fit(D)
        ours = dasrel.AgglomerativeClustering(linkage=linkage, kind="distance", **given).fit(D)
        assert adjusted_rand_score(ours.labels_, theirs.labels_) == 1
        assert (ours.n_clusters_, ours.n_leaves_) == (theirs.n_clusters_, theirs.n_leaves_)
        np.testing.assert_allclose(np.sort(ours.distances_), np.sort(theirs.distances_))
        assert ours.children_.shape == theirs.children_.shape


def test_a_merge_at_the_threshold_is_not_made() -> None:
    x = np.array([0.0, 1.0, 5.0])
    D = np.abs(x[:, None] - x)
    for threshold, count in ((1.0, 3), (1.5, 2), (4.0, 2), (4.5, 1)):
        given = {"n_clusters": None, "distance_threshold": threshold, "linkage": "single"}
        assert dasrel.AgglomerativeClustering(kind="distance", **given).fit(D).n_clusters_ == count
        assert Theirs(metric="precomputed", **given).fit(D).n_clusters_ == count


def test_groups_are_found_without_a_number_of_clusters(store: str) -> None:
    D = distances(grouped_points(60, groups=3, apart=15.0))
    found = dasrel.AgglomerativeClustering(kind="distance").fit(D)
    assert adjusted_rand_score(found.labels_, np.arange(60) % 3) == 1
    assert dasrel.AgglomerativeClustering(4).fit_predict(store).max() == 3


def test_refusals() -> None:
    D = distances(uniform_points(9, 2))
    with pytest.raises(dasrel.InputError, match="both n_clusters and distance_threshold"):
        dasrel.AgglomerativeClustering(2, distance_threshold=1.0, kind="distance").fit(D)
    with pytest.raises(dasrel.InputError, match="does not tell its kind"):
        dasrel.AgglomerativeClustering(2).fit(D)
    with pytest.raises(dasrel.InputError, match="10 clusters cannot be made of 9 objects"):
        dasrel.AgglomerativeClustering(10, kind="distance").fit(D)
