"""PCoA: scikit-learn's own checks, every form of input, and new objects."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import dasrel
from dasrel import PCoA
from tests.helpers.matrices import distances, grouped_points


class Checked(PCoA):
    """scikit-learn's checks hand distances to those that have this attribute."""

    metric = "precomputed"


@pytest.mark.filterwarnings("ignore:.*requested:dasrel.DasrelWarning")  # few objects have few axes
@parametrize_with_checks([Checked(kind="distance", n_components=2)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_new_points_are_placed_among_the_old_ones() -> None:
    X = grouped_points(70)
    old, new = X[:60], X[60:]
    found = PCoA(3, kind="distance", tol=1e-9)
    coordinates = found.fit_transform(distances(old))
    np.testing.assert_allclose(distances(coordinates), distances(old), rtol=1e-8)
    placed = found.transform(cdist(new, old))
    np.testing.assert_allclose(cdist(placed, coordinates), cdist(new, old), rtol=1e-8)
    np.testing.assert_array_equal(found.embedding_, coordinates)
    assert found.n_scans_ == found.result_.scans

    K = old @ old.T
    kernel = clone(found).set_params(kind="kernel").fit(K)
    np.testing.assert_allclose(kernel.eigenvalues_, found.eigenvalues_, rtol=1e-9)
    same = kernel.transform(new @ old.T)  # without the new objects' similarities with themselves
    np.testing.assert_allclose(cdist(same, kernel.embedding_), cdist(new, old), rtol=1e-8)


def test_names_may_come_in_any_order(tmp_path: Any) -> None:
    X = grouped_points(41)
    names = [f"o{k}" for k in range(40)]
    frame = pd.DataFrame(distances(X[:40]), index=names, columns=names)
    found = PCoA(2, kind="distance").fit(frame)
    assert found.feature_names_in_.tolist() == names
    rows = pd.DataFrame(cdist(X[40:], X[:40]), columns=names)
    np.testing.assert_allclose(found.transform(rows[names[::-1]]), found.transform(rows), rtol=1e-12)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_allclose(found.transform(tmp_path / "rows.csv"), found.transform(rows), rtol=1e-12)
    assert found.get_feature_names_out().tolist() == ["pcoa0", "pcoa1"]
    framed = found.set_output(transform="pandas").transform(rows)
    assert framed.columns.tolist() == ["pcoa0", "pcoa1"]


def test_stores_and_refusals(grouped_store: Any) -> None:
    found = PCoA(2).fit(grouped_store)
    assert found.embedding_.shape == (90, 2)
    with pytest.raises(ValueError, match="X has 89 features, but PCoA is expecting 90"):
        found.transform(np.zeros((2, 89)))
    with pytest.raises(dasrel.InputError, match="an array does not tell its kind"):
        PCoA().fit(np.zeros((4, 4)))
    with pytest.raises(dasrel.InputError, match="n_samples=1 object: one object has no axes"):
        PCoA(kind="distance").fit(np.zeros((1, 1)))
