"""The estimator of outliers: scikit-learn's own checks, predictions, and every form in which a matrix may come."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import pairwise_distances
from sklearn.utils import check_array
from sklearn.utils.estimator_checks import (
    check_outliers_fit_predict,
    check_outliers_train,
    parametrize_with_checks,
)

import dasrel
from dasrel.errors import DasrelWarning, InputError
from dasrel.estimators.outliers import OneClusterPCM
from dasrel.util import progress
from tests.helpers import oneclass_oracle as oracle
from tests.helpers.matrices import distances


class Checked(OneClusterPCM):
    """scikit-learn's checks hand distances to those that have this attribute."""

    metric = "precomputed"


def expected_to_fail(_: Any) -> dict[str, str]:
    features = "it gives 300 x 2 features to every detector and never asks whether it is pairwise; see OfFeatures"
    return dict.fromkeys(["check_outliers_train", "check_outliers_fit_predict"], features)


@pytest.mark.filterwarnings("ignore::dasrel.errors.DasrelWarning")  # few iterations, equal objects
@parametrize_with_checks([Checked(kind="distance", max_iter=5, tol=1e-3)], expected_failed_checks=expected_to_fail)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


class OfFeatures(OneClusterPCM):
    """For the checks that give features: distances from them."""

    def fit(self, X: Any, y: Any = None) -> Any:
        self.points_ = check_array(X)
        self.set_params(kind="distance")
        return super().fit(pairwise_distances(self.points_))

    def score_samples(self, X: Any, **more: Any) -> Any:
        return super().score_samples(pairwise_distances(check_array(X), self.points_))


@pytest.mark.filterwarnings("ignore::dasrel.errors.DasrelWarning")
@pytest.mark.parametrize("check", [check_outliers_train, check_outliers_fit_predict])
def test_scikit_learn_checks_of_outliers(check: Any) -> None:
    check("OfFeatures", OfFeatures(contamination=0.1))  # "auto" rejects none of these blobs, and the checks want some


@pytest.fixture(scope="module")
def points() -> Any:
    rng = np.random.default_rng(2)
    return np.concatenate([rng.normal(size=(60, 2)), [[8, 8], [-9, 3], [0, -8], [7, -6]]])


@pytest.fixture(scope="module")
def matrix(points: Any, store_factory: Any) -> Any:
    return dasrel.open_matrix(store_factory(distances(points), dtype="float64", tile=20))


def test_planted_outliers_are_found_and_predicted(matrix: Any, points: Any) -> None:
    with progress.watch() as counted:
        found = OneClusterPCM(width=1.0, contamination=4 / 64).fit(matrix)
    assert found.n_scans_ == counted.scans == found.n_iter_ + 1
    np.testing.assert_array_equal(np.flatnonzero(found.labels_ < 0), [60, 61, 62, 63])
    np.testing.assert_array_equal(found.fit_predict(matrix), np.where(np.arange(64) < 60, 1, -1))
    new = np.array([[0.1, 0.2], [20.0, 0]])
    rows = np.sqrt(((new[:, None] - points[None]) ** 2).sum(axis=2))
    np.testing.assert_array_equal(found.predict(rows), [1, -1])
    np.testing.assert_allclose(found.decision_function(rows), found.score_samples(rows) - found.offset_)
    K = oracle.gaussian_kernel(distances(points, "sqeuclidean"), 1.0)
    u, eta, _, before = oracle.core(K, 1.0, 1e-5, per_object=True)
    np.testing.assert_allclose(found.typicality_, u, rtol=0, atol=1e-9)
    expected = [oracle.new_membership(row, K, before, eta) for row in oracle.gaussian_kernel(rows**2, 1.0)]
    np.testing.assert_allclose(np.exp(found.score_samples(rows)), expected, rtol=1e-9)


def test_automatic_widths_and_shares(matrix: Any) -> None:
    found = OneClusterPCM().fit(matrix)
    np.testing.assert_array_equal(np.flatnonzero(found.labels_ < 0), [60, 61, 62, 63])
    assert [row["width"] for row in found.ladder_][2] == found.width_
    assert found.n_scans_ >= found.n_iter_ + 2
    assert found.n_neighbours_ == 15
    assert set(np.argsort(found.neighbour_distances_)[-4:]) == {60, 61, 62, 63}
    np.testing.assert_array_equal(clone(found).set_params(contamination=4).fit(matrix).labels_, found.labels_)
    assert found.segments_ is None


def test_arrays_stores_and_kernels_agree(matrix: Any, points: Any, tmp_path: Any) -> None:
    D = distances(points)
    store = OneClusterPCM(width=1.0, contamination=0.1).fit(matrix)
    array = clone(store).set_params(kind="distance").fit(D)
    np.testing.assert_allclose(array.typicality_, store.typicality_, rtol=1e-12)
    kernel = OneClusterPCM(contamination=0.1, kind="kernel").fit(oracle.gaussian_kernel(D**2, 1.0))
    np.testing.assert_allclose(kernel.typicality_, store.typicality_, rtol=1e-9)
    assert kernel.width_ is None
    row = oracle.gaussian_kernel(D**2, 1.0)[:3]
    np.testing.assert_allclose(
        kernel.score_samples(row, self_similarity=1.0), np.log(kernel.typicality_[:3]), rtol=1e-8
    )


def test_clusters_of_any_shape() -> None:
    X, truth = oracle.figure_1()
    found = OneClusterPCM(width=0.5, contamination=0.1, clusters=True, kind="distance").fit(distances(X))
    assert found.segments_.n_clusters == 6
    assert (found.labels_ < 0).sum() == 29
    kept = (truth >= 0) & (found.labels_ >= 0)
    pairs = set(zip(truth[kept].tolist(), found.labels_[kept].tolist(), strict=True))
    assert len(pairs) == 6  # each shape is one cluster, and none is two


def test_a_method_that_makes_the_matrix_euclidean(crooked_store: Any) -> None:
    with (
        pytest.warns(DasrelWarning, match="not Euclidean"),
        pytest.raises(InputError, match=r"not Euclidean.*no segments.*euclideanize"),
    ):
        OneClusterPCM(width=20.0, clusters=True).fit(crooked_store)
    found = OneClusterPCM(width=20.0, clusters=True, contamination=0.1, euclideanize="spread").fit(crooked_store)
    assert found.euclideanized_.gamma > 0
    assert (found.labels_ == -1).sum() == 9


@pytest.mark.parametrize("wrong", [0, -1, 0.6, "some", None, True])
def test_contamination_outside_its_range(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"contamination is .*above 0 and at most 0\.5"):
        OneClusterPCM(contamination=wrong, kind="distance").fit(np.ones((3, 3)) - np.eye(3))


def test_kinds_and_equal_objects() -> None:
    with pytest.raises(InputError, match="an array does not tell its kind"):
        OneClusterPCM().fit(np.zeros((3, 3)))
    with pytest.warns(DasrelWarning, match="all objects are equal"):
        found = OneClusterPCM(kind="distance").fit(np.zeros((3, 3)))
    np.testing.assert_array_equal(found.labels_, 0)
    np.testing.assert_array_equal(found.predict(np.zeros((1, 3))), [1])


def test_names_of_a_frame_and_columns_in_any_order() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 20.0])
    names = [f"o{k}" for k in range(6)]
    frame = pd.DataFrame(np.abs(np.subtract.outer(x, x)), names, names)
    found = OneClusterPCM(width=2.0, contamination=0.1, kind="distance").fit(frame)
    assert found.feature_names_in_.tolist() == names
    rows = pd.DataFrame([np.abs(2.5 - x), np.abs(-30 - x)], columns=names)
    np.testing.assert_array_equal(found.score_samples(rows[names[::-1]]), found.score_samples(rows))
    assert found.predict(rows[names[::-1]]).tolist() == [1, -1]
    with pytest.raises(InputError, match="1 object has no column: o3"):
        found.predict(rows.drop(columns="o3"))
    upper = np.concatenate([np.abs(x[k] - x[k + 1 :]) for k in range(6)])  # a condensed vector
    np.testing.assert_array_equal(clone(found).fit(upper).labels_, found.labels_)
