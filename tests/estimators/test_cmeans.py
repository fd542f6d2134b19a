"""The scikit-learn classes: scikit-learn's own checks, the dense oracle, and every form in which a matrix may come."""

import dataclasses
import inspect
import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.spatial.distance import pdist, squareform
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, pairwise_distances
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.estimators import cmeans as estimators
from dasrel.estimators.cmeans import (
    EntropyFuzzyCMeans,
    EntropyPossibilisticCMeans,
    FuzzyCMeans,
    HardCMeans,
    PossibilisticCMeans,
)
from dasrel.io.importing import import_matrix
from dasrel.names import KINDS
from dasrel.partition.run import Run
from dasrel.store.matrix import open_matrix
from dasrel.util.progress import watch
from tests.helpers import oracle
from tests.helpers.matrices import blobs, distances

CLASSES = [FuzzyCMeans, EntropyFuzzyCMeans, PossibilisticCMeans, EntropyPossibilisticCMeans, HardCMeans]


# ---------------------------------------------------------------------------------------------- scikit-learn's checks


class _Precomputed:
    """scikit-learn's checks hand distances to those that have this attribute, and a linear kernel to the others, of
    which `predict` needs to know the self-similarity."""

    metric = "precomputed"


class CheckedFuzzyCMeans(_Precomputed, FuzzyCMeans):
    pass


class CheckedEntropyFuzzyCMeans(_Precomputed, EntropyFuzzyCMeans):
    pass


class CheckedPossibilisticCMeans(_Precomputed, PossibilisticCMeans):
    pass


class CheckedEntropyPossibilisticCMeans(_Precomputed, EntropyPossibilisticCMeans):
    pass


class CheckedHardCMeans(_Precomputed, HardCMeans):
    pass


CHECKED = [
    CheckedFuzzyCMeans,
    CheckedEntropyFuzzyCMeans,
    CheckedPossibilisticCMeans,
    CheckedEntropyPossibilisticCMeans,
    CheckedHardCMeans,
]


def expected_to_fail(_: Any) -> dict[str, str]:
    features = "it gives 50 x 2 features to every clusterer and never asks whether it is pairwise; see test_blobs"
    return {"check_clustering": features}


# scikit-learn runs these on its own transformers only. Two others of that kind are not for a pairwise matrix:
# check_set_output_transform_pandas names its rows and columns differently, which is refused (see
# test_output_as_a_data_frame), and check_dataframe_column_names_consistency wants columns in another order refused,
# which are put in order (see test_columns_come_in_any_order).
MORE_CHECKS = [
    estimator_checks.check_transformer_get_feature_names_out,
    estimator_checks.check_set_output_transform,
    estimator_checks.check_get_feature_names_out_error,
]

OWN_CHECKS = {
    "check_clusterer_compute_labels_predict",
    "check_dict_unchanged",
    "check_estimators_overwrite_params",
    "check_estimators_pickle",
    "check_estimators_unfitted",
    "check_fit_idempotent",
    "check_get_params_invariance",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_n_features_in",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
}


@pytest.mark.filterwarnings("ignore::dasrel.errors.DasrelWarning")  # few iterations, and more clusters than there are
@parametrize_with_checks(
    [CheckedFuzzyCMeans(kind="distance", n_init=2, max_iter=10, tol=1e-3, on_negative="heal")],
    expected_failed_checks=expected_to_fail,
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore::dasrel.errors.DasrelWarning")
@pytest.mark.parametrize("kind", CHECKED[1:])
def test_scikit_learn_checks_of_the_other_classes(kind: Any) -> None:
    """All classes have one `fit` and one `predict`; what each has of its own are its parameters and its rule."""
    estimator = kind(kind="distance", n_init=2, max_iter=10, tol=1e-3, on_negative="heal")
    checks = {check.func.__name__: check for _, check in estimator_checks.estimator_checks_generator(estimator)}
    for name in sorted(OWN_CHECKS):
        checks[name](clone(estimator))


@pytest.mark.slow(after=4)
@pytest.mark.filterwarnings("ignore::dasrel.errors.DasrelWarning")
@pytest.mark.parametrize("kind", CHECKED)
@pytest.mark.parametrize("check", MORE_CHECKS)
def test_more_scikit_learn_checks(kind: Any, check: Any) -> None:
    check(kind.__name__, kind(kind="distance", n_init=2, max_iter=10, tol=1e-3, on_negative="heal"))


# --------------------------------------------------------------------------------------------------------- the oracle


@pytest.fixture(scope="module")
def points() -> Any:
    return blobs(14, [[0, 0], [6, 1], [2, 7]], 4)


@pytest.fixture(scope="module")
def squared(points: Any) -> Any:
    return distances(points, "sqeuclidean")


@pytest.fixture
def memberships(squared: Any) -> Any:
    drawn = np.random.default_rng(5).random((len(squared), 3))
    return drawn / drawn.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("estimator", "rule", "more"),
    [
        (FuzzyCMeans(3, fuzzifier=1.7), "fcm1", {"m": 1.7}),
        (EntropyFuzzyCMeans(3, entropy_weight=2.5), "fcm2", {"lam": 2.5}),
        (HardCMeans(3), "hard", {}),
    ],
)
def test_the_oracle_agrees(squared: Any, memberships: Any, estimator: Any, rule: str, more: dict[str, Any]) -> None:
    more_params = {"kind": "squared-distance", "tol": 1e-9, "max_iter": 500, "accelerate": False}
    estimator.set_params(init=memberships, stop="memberships", **more_params).fit(squared)
    expected = oracle.run(squared, rule, memberships.T, max_iter=500, **more)
    np.testing.assert_allclose(estimator.memberships_.T, expected["U"], atol=1e-6)
    assert estimator.objective_ == pytest.approx(expected["J_history"][-1], rel=1e-6)
    np.testing.assert_array_equal(estimator.labels_, expected["U"].argmax(axis=0))
    np.testing.assert_array_equal(estimator.medoids_, expected["d"].argmin(axis=1))
    assert estimator.n_scans_ == estimator.n_iter_ == expected["iterations"]
    assert estimator.n_features_in_ == len(squared)
    assert len(estimator.runs_) == 1  # a given start is run once, whatever n_init says


@pytest.mark.parametrize(
    ("estimator", "rule", "more"),
    [
        (PossibilisticCMeans(3, fuzzifier=1.5, eta_scale=0.8), "pcm1", {"m": 1.5}),
        (EntropyPossibilisticCMeans(3, eta_scale=0.8), "pcm2", {}),
    ],
)
def test_the_oracle_agrees_on_possibilities(
    squared: Any, memberships: Any, estimator: Any, rule: str, more: dict[str, Any]
) -> None:
    estimator.set_params(init=memberships, kind="squared-distance", stop="memberships", tol=1e-9, max_iter=2000).fit(
        squared
    )
    theta = more.get("m", 1.0)
    d = oracle.relational_distances(squared, memberships.T, theta)
    power = memberships.T**theta
    eta = 0.8 * (power * d).sum(axis=1) / power.sum(axis=1)  # F09 D.24, from the memberships given
    expected = oracle.run(squared, rule, memberships.T, eta=eta, max_iter=2000, **more)
    np.testing.assert_allclose(estimator.memberships_.T, expected["U"], atol=1e-6)


def test_hard_is_k_means(points: Any) -> None:
    found = HardCMeans(3, kind="distance", n_init=5, random_state=0).fit(squareform(pdist(points)))
    peer = KMeans(3, n_init=10, random_state=0).fit(points)
    assert adjusted_rand_score(peer.labels_, found.labels_) == 1
    assert found.objective_ == pytest.approx(peer.inertia_, rel=1e-6)
    fresh = np.random.default_rng(9).uniform(-2, 8, (25, 2))
    to_peer = {found.labels_[k]: peer.labels_[k] for k in range(len(points))}
    predicted = found.predict(np.linalg.norm(fresh[:, None] - points[None], axis=2))
    assert [to_peer[k] for k in predicted] == peer.predict(fresh).tolist()


@pytest.mark.filterwarnings("ignore:1 of 5 runs ended with coincident clusters:dasrel.errors.DasrelWarning")  # of pcm
@pytest.mark.parametrize("kind", CLASSES)
def test_blobs(kind: Any) -> None:
    """What scikit-learn's check_clustering asks for, on blobs that it makes, but as a matrix."""
    from sklearn.datasets import make_blobs

    X, y = make_blobs(n_samples=50, random_state=1)
    D = pairwise_distances(X)
    found = kind(3, kind="distance", random_state=1, n_init=5)
    for name, value in (("entropy_weight", 2.0), ("eta_scale", 0.3)):  # with the defaults some clusters coincide
        if name in found.get_params():
            found.set_params(**{name: value})
    found.fit(D)
    assert found.labels_.shape == (50,)
    assert adjusted_rand_score(found.labels_, y) > 0.4
    np.testing.assert_array_equal(clone(found).fit_predict(D), found.labels_)
    assert found.labels_.dtype in (np.int32, np.int64)
    assert set(found.labels_) <= {0, 1, 2}


# ------------------------------------------------------------------------------------------- the matrix in all forms


@pytest.fixture
def store(tmp_path: Path, squared: Any) -> Path:
    import_matrix(squared.astype(np.float32), tmp_path / "d.zarr", kind="squared-distance")
    return tmp_path / "d.zarr"


def test_every_form_gives_the_same(tmp_path: Path, squared: Any, store: Path) -> None:
    values = squared.astype(np.float32)
    plain = zarr.create_array(tmp_path / "plain.zarr", data=values, chunks=(20, 20))
    forms = [store, str(store), open_matrix(store), values, values.tolist(), plain, da.from_array(values, chunks=20)]
    found = [
        EntropyFuzzyCMeans(3, random_state=7, n_init=3, kind="squared-distance", entropy_weight=2.0, init="random").fit(
            form
        )
        for form in forms
    ]
    for one in found[1:]:
        np.testing.assert_allclose(one.memberships_, found[0].memberships_, atol=1e-5)
        assert one.objective_ == pytest.approx(found[0].objective_, rel=1e-5)
    np.testing.assert_array_equal(found[1].memberships_, found[0].memberships_)  # the same bits from the same store
    np.testing.assert_array_equal(found[2].memberships_, found[0].memberships_)


def test_a_kernel_gives_what_its_distances_give(points: Any, squared: Any) -> None:
    kernel = points @ points.T
    a = FuzzyCMeans(3, kind="kernel", random_state=0, n_init=2).fit(kernel)
    b = FuzzyCMeans(3, kind="squared-distance", random_state=0, n_init=2).fit(squared)
    np.testing.assert_allclose(a.memberships_, b.memberships_, atol=1e-5)
    itself = (points[:4] ** 2).sum(axis=1)
    np.testing.assert_allclose(a.predict_memberships(kernel[:4], self_similarity=itself), a.memberships_[:4], atol=1e-4)
    with pytest.raises(InputError, match="self_similarity="):
        a.predict(kernel[:4])


def test_predicting_rows_in_all_forms(tmp_path: Path, points: Any, squared: Any) -> None:
    found = EntropyFuzzyCMeans(3, kind="squared-distance", entropy_weight=2.0, random_state=0).fit(squared)
    fresh = np.random.default_rng(1).normal(size=(7, 2)) * 3
    rows = ((fresh[:, None] - points[None]) ** 2).sum(axis=2)
    # on squared Euclidean distances a centre is a point: the mean of the objects weighted by u
    weights = found.memberships_ / found.memberships_.sum(axis=0)
    d = ((fresh[:, None] - (weights.T @ points)[None]) ** 2).sum(axis=2)
    expected = np.exp(-d / 2.0) / np.exp(-d / 2.0).sum(axis=1, keepdims=True)
    np.save(tmp_path / "rows.npy", rows)
    zarr.create_array(tmp_path / "rows.zarr", data=rows)
    for form in (rows, rows.tolist(), tmp_path / "rows.npy", zarr.open_array(tmp_path / "rows.zarr", mode="r")):
        np.testing.assert_allclose(found.predict_memberships(form), expected, atol=1e-3)
        np.testing.assert_array_equal(found.predict(form), expected.argmax(axis=1))


# ------------------------------------------------------------------------------------------------- names and distances


@pytest.fixture(scope="module")
def frame(points: Any) -> Any:
    names = [f"o{k}" for k in range(len(points))]
    return pd.DataFrame(squareform(pdist(points)), names, names)


@pytest.fixture(scope="module")
def named(frame: Any) -> Any:
    return HardCMeans(3, kind="distance", n_init=5, random_state=0).fit(frame)


@pytest.fixture(scope="module")
def fresh(points: Any, frame: Any) -> Any:
    """Rows of new objects, their columns in another order."""
    new = np.random.default_rng(9).uniform(-2, 8, (25, 2))
    rows = pd.DataFrame(np.linalg.norm(new[:, None] - points[None], axis=2), columns=frame.columns)
    return rows.sample(frac=1, axis=1, random_state=3).set_index(pd.Index([f"new {k}" for k in range(25)]))


def test_names_of_a_frame(frame: Any, named: Any) -> None:
    assert named.n_features_in_ == len(frame)
    assert named.feature_names_in_.dtype == object
    assert named.feature_names_in_.tolist() == list(frame.columns) == list(named.model_.ids)
    plain = clone(named).fit(frame.to_numpy())
    assert not hasattr(plain, "feature_names_in_")
    np.testing.assert_array_equal(plain.labels_, named.labels_)
    again = clone(named).fit(frame).fit(frame.to_numpy())  # what an earlier fit has set does not stay
    assert not hasattr(again, "feature_names_in_")


def test_columns_come_in_any_order(frame: Any, named: Any, fresh: Any) -> None:
    ordered = fresh[frame.columns]
    assert list(fresh.columns) != list(frame.columns)
    np.testing.assert_array_equal(named.predict(fresh), named.predict(ordered))
    np.testing.assert_array_equal(named.transform(fresh), named.transform(ordered))
    np.testing.assert_array_equal(named.predict_proba(fresh), named.predict_memberships(ordered))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):  # as in all of scikit-learn
        np.testing.assert_array_equal(named.predict(ordered.to_numpy()), named.predict(fresh))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="o7"), "the data frame: 1 object has no column: o7; columns are named"),
        (lambda rows: rows.assign(p1=0.0), "the data frame: columns of no object: p1; columns are named"),
        (lambda rows: rows.rename(columns={"o7": "O7"}), "1 object has no column: o7; columns of no object: O7;"),
    ],
)
@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_memberships", "transform"])
def test_other_columns_are_refused(named: Any, fresh: Any, method: str, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        getattr(named, method)(change(fresh))
    assert "\n" not in str(caught.value)


def test_distances_are_those_of_k_means(points: Any, frame: Any, named: Any, fresh: Any) -> None:
    """KMeans with the same clusters has the same centres, and distances are to points."""
    means = np.array([points[named.labels_ == k].mean(axis=0) for k in range(3)])
    peer = KMeans(3, init=means, n_init=1).fit(points)
    np.testing.assert_array_equal(peer.labels_, named.labels_)
    np.testing.assert_allclose(named.transform(frame), peer.transform(points), atol=1e-6)
    np.testing.assert_allclose(clone(named).fit_transform(frame), peer.transform(points), atol=1e-6)
    new = np.random.default_rng(9).uniform(-2, 8, (25, 2))
    np.testing.assert_allclose(named.transform(fresh), peer.transform(new), atol=1e-6)


def test_fit_transform_reads_nothing_again(frame: Any) -> None:
    made = FuzzyCMeans(3, kind="distance", fuzzifier=1.5, init="random", random_state=0)
    with watch() as meter:
        made.fit_transform(frame)
    assert meter.scans == made.n_scans_ == made.n_iter_


def test_output_as_a_data_frame(frame: Any, named: Any, fresh: Any) -> None:
    made = clone(named).set_output(transform="pandas")
    found = made.fit_transform(frame)
    assert list(found.index) == list(frame.index)
    assert list(found.columns) == ["hardcmeans0", "hardcmeans1", "hardcmeans2"]
    assert list(made.get_feature_names_out()) == list(found.columns)
    assert list(made.transform(fresh).index) == list(fresh.index)
    np.testing.assert_array_equal(made.transform(fresh).to_numpy(), named.transform(fresh))


def test_memberships_of_possibilistic_rules_need_not_have_sum_1(points: Any, squared: Any) -> None:
    fuzzy = EntropyFuzzyCMeans(3, kind="squared-distance", random_state=0).fit(squared)
    np.testing.assert_allclose(fuzzy.predict_proba(squared).sum(axis=1), 1, rtol=1e-12)
    typical = EntropyPossibilisticCMeans(3, kind="squared-distance", random_state=0).fit(squared)
    far = ((points - [100.0, 100.0]) ** 2).sum(axis=1)[None]
    assert typical.predict_proba(far).sum() < 1e-6


def test_negative_squared_distances_are_counted() -> None:
    """Three objects at 1, 1 and 3: no triangle. The middle one is at 1 - 9/4 < 0 from the mean of the others."""
    D = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 1.0], [3.0, 1.0, 0.0]]) ** 2
    init = np.array([[0.5, 0.0], [0.0, 1.0], [0.5, 0.0]])
    made = HardCMeans(2, kind="squared-distance", init=init, max_iter=1)
    with pytest.warns(DasrelWarning):
        made.fit(D)
    squared = made.model_.distances(D)
    assert squared.min() < 0
    with pytest.warns(DasrelWarning, match="squared distances to centres are negative and were taken as zero"):
        found = made.transform(D)
    np.testing.assert_allclose(found**2, np.maximum(squared, 0), atol=1e-12)


def test_condensed_vectors_and_matrices_of_scikit_bio(points: Any, frame: Any, named: Any) -> None:
    class DistanceMatrix:
        """As scikit-bio's."""

        ids = property(lambda self: tuple(frame.columns))
        data = property(lambda self: frame.to_numpy())

    for form in (pdist(points), DistanceMatrix()):
        found = clone(named).fit(form)
        np.testing.assert_array_equal(found.labels_, named.labels_)
        assert found.n_features_in_ == len(frame)
    assert found.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(InputError, match="n_samples=3 objects cannot make n_clusters=5 clusters"):
        HardCMeans(5, kind="distance").fit(np.ones(3))
    with pytest.raises(InputError, match="is a condensed vector: it has no self-kernel values"):
        HardCMeans(2, kind="kernel").fit(pdist(points))


def test_names_that_are_attributes_elsewhere(points: Any, squared: Any) -> None:
    """A column of a data frame is an attribute of it too."""
    names = ["kind", "chunks", "ids", "data", "shape", "dtype", *map(str, range(len(squared) - 6))]
    frame = pd.DataFrame(squared, names, names)
    with pytest.raises(InputError, match="does not tell its kind"):
        HardCMeans(3).fit(frame)
    assert HardCMeans(3, kind="squared-distance", random_state=0).fit(frame).feature_names_in_[1] == "chunks"


def test_a_frame_with_other_columns_than_rows(frame: Any) -> None:
    with pytest.raises(InputError, match="rows and columns of the data frame have different names: row 0 is 'o0' and"):
        HardCMeans(3, kind="distance").fit(frame.add_prefix("x"))


# ------------------------------------------------------------------------------------------------ words of the family


@pytest.mark.parametrize("kind", CLASSES)
def test_the_words_are_the_same_everywhere(kind: Any) -> None:
    common = {
        *("n_clusters", "n_init", "init", "max_iter", "tol", "random_state"),
        *("on_negative", "spread", "euclideanize", "accelerate", "stop", "norm", "history", "exact", "race"),
        *("kind", "memory", "checkpoint"),
    }
    widths = {"entropy_weight", "eta_scale", "eta", "eta_cut", "eta_refit"}
    own = {
        FuzzyCMeans: {"fuzzifier"},
        EntropyFuzzyCMeans: {"entropy_weight"},
        PossibilisticCMeans: {"fuzzifier"} | widths,
        EntropyPossibilisticCMeans: widths,
        HardCMeans: set(),
    }
    assert set(kind().get_params()) == common | own[kind]
    named = {one.name for one in dataclasses.fields(Run)} - {"rule", "restart"}
    assert named & {"fuzzifier", *widths} >= own[kind]
    assert named - {"fuzzifier", *widths} <= common  # whatever a run has
    for name in common | own[kind]:
        assert name in kind.__doc__, name
    parameters = inspect.signature(kind).parameters
    assert [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD] == ["n_clusters"]
    tags = get_tags(kind(kind="distance"))
    assert (tags.estimator_type, tags.input_tags.pairwise, tags.input_tags.positive_only) == ("clusterer", True, True)
    assert not get_tags(kind(kind="kernel")).input_tags.positive_only


def test_seeds(squared: Any) -> None:
    def fitted(random_state: Any) -> Any:
        made = EntropyFuzzyCMeans(3, kind="squared-distance", n_init=2, max_iter=2, tol=0, random_state=random_state)
        with pytest.warns(DasrelWarning, match="did not converge"):
            return made.fit(squared)

    state = np.random.RandomState(0)
    first, second, other = fitted(3), fitted(3), fitted(4)
    drawn, again, later = fitted(state), fitted(np.random.RandomState(0)), fitted(state)
    one, two = fitted(None), fitted(None)
    np.testing.assert_array_equal(first.memberships_, second.memberships_)
    np.testing.assert_array_equal(drawn.memberships_, again.memberships_)
    for a, b in ((first, other), (drawn, later), (one, two)):
        assert not np.array_equal(a.memberships_, b.memberships_)


def test_a_fitted_estimator_travels(squared: Any) -> None:
    found = PossibilisticCMeans(3, kind="squared-distance", n_init=2, random_state=0).fit(squared)
    copy = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(copy.predict_memberships(squared), found.predict_memberships(squared))
    fresh = clone(found)
    assert not hasattr(fresh, "labels_")
    assert fresh.get_params() == found.get_params()


def test_going_on_from_a_model(tmp_path: Path, squared: Any) -> None:
    words: dict[str, Any] = {"kind": "squared-distance", "tol": 1e-7}
    whole = FuzzyCMeans(3, random_state=0, n_init=4, **words).fit(squared)
    whole.model_.save(tmp_path / "model.npz")
    for init in (whole.model_, tmp_path / "model.npz", str(tmp_path / "model.npz")):
        more = clone(FuzzyCMeans(3, init=init, **words)).fit(squared)
        assert more.n_iter_ <= 3
        np.testing.assert_allclose(more.memberships_, whole.memberships_, atol=1e-6)


def test_words_reach_the_runs(squared: Any) -> None:
    found = FuzzyCMeans(
        2, fuzzifier=1.5, n_init=3, init="k-means++", max_iter=77, tol=1e-4, random_state=5, on_negative="heal",
        spread=0.25, accelerate=True, stop="weights", norm=2, history=True, kind="squared-distance", memory="1GiB",
    ).fit(squared)  # fmt: skip
    assert len(found.runs_) == 3
    for k, row in enumerate(found.runs_):
        expected = {
            "run": k, "rule": "fcm1", "n_clusters": 2, "fuzzifier": 1.5, "init": "k-means++", "max_iter": 77,
            "tol": 1e-4, "random_state": 5, "restart": k, "on_negative": "heal", "spread": 0.25, "accelerate": True,
            "stop": "weights", "norm": 2,
        }  # fmt: skip
        assert {name: row[name] for name in expected} == expected
        steps = [step for step in found.history_ if step["run"] == k]
        assert steps[-1]["objective"] == row["objective"]
    best = [row for row in found.runs_ if row["best"]]
    assert [row["objective"] for row in best] == [min(row["objective"] for row in found.runs_)]
    assert best[0]["objective"] == found.objective_
    assert FuzzyCMeans(2, fuzzifier=1.5, n_init=1, kind="squared-distance").fit(squared).history_ == []
    with pytest.raises(MemoryError, match="limit"):
        FuzzyCMeans(2, kind="squared-distance", memory="1kB").fit(squared)


@pytest.mark.parametrize("kind", [PossibilisticCMeans, EntropyPossibilisticCMeans])
def test_how_widths_are_estimated(squared: Any, kind: Any) -> None:
    """The definitions are checked with the rules; here, that each estimator's parameter arrives."""
    words: dict[str, Any] = {"n_init": 1, "kind": "squared-distance", "random_state": 0, "entropy_weight": 15.0}
    ways: list[dict[str, Any]] = [
        {"eta": "mean"}, {"eta": "cut"}, {"eta": "cut", "eta_cut": 0.9}, {"eta": "overall"}, {"eta_refit": True},
    ]  # fmt: skip
    rows = [kind(3, **words, **way, eta_scale=0.5).fit(squared).runs_[0] for way in ways]
    assert [(row["eta"], row.get("eta_cut"), row["eta_refit"]) for row in rows] == [
        ("mean", None, False), ("cut", 0.5, False), ("cut", 0.9, False), ("overall", None, False), ("mean", None, True),
    ]  # fmt: skip
    assert len({row["objective"] for row in rows}) == len(ways)


def test_a_race_has_the_same_winner(squared: Any) -> None:
    words: dict[str, Any] = {"n_init": 8, "kind": "squared-distance", "random_state": 0, "init": "random"}
    plain = FuzzyCMeans(3, fuzzifier=2, **words).fit(squared)
    raced = FuzzyCMeans(3, fuzzifier=2, race=True, **words).fit(squared)
    np.testing.assert_array_equal(raced.memberships_, plain.memberships_)


# ---------------------------------------------------------------------------------------------------------- bad input


def test_an_array_needs_its_kind(squared: Any) -> None:
    with pytest.raises(InputError, match=r"does not tell its kind; say what its numbers are, kind=KIND") as caught:
        FuzzyCMeans(3).fit(squared)
    for name, meaning in KINDS.items():
        assert f"{name}: {meaning}" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"n_clusters": 0}, "n_clusters is 0; give a whole number of at least 1"),
        ({"n_clusters": 99}, "n_samples=42 objects cannot make n_clusters=99 clusters"),
        ({"fuzzifier": 1}, "fuzzifier is 1; give a finite number above 1"),
        ({"fuzzifier": np.nan}, "fuzzifier is nan"),
        ({"n_init": 0}, "n_init is 0"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1}, "tol is -1"),
        ({"spread": -1}, "spread is -1"),
        ({"on_negative": "ignore"}, "on_negative is 'ignore'"),
        ({"random_state": -3}, "random_state is -3"),
        ({"init": "nearest"}, "init is 'nearest'; use one of sample, k-means++"),
        ({"init": np.full((42, 2), 0.5)}, r"shape \(42, 2\); give \(42, 3\)"),
        ({"init": np.full((42, 3), np.nan)}, "init: the membership of object 0 in cluster 0 is nan"),
        ({"kind": "nearness"}, "kind must be one of the four"),
    ],
)
def test_refused(squared: Any, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FuzzyCMeans(**{"n_clusters": 3, "kind": "squared-distance", **words}).fit(squared)


def test_refused_by_other_rules(squared: Any) -> None:
    with pytest.raises(InputError, match="entropy_weight is -1; give a finite number above 0"):
        EntropyFuzzyCMeans(3, kind="squared-distance", entropy_weight=-1).fit(squared)
    with pytest.raises(InputError, match="eta_scale is 0"):
        EntropyPossibilisticCMeans(3, kind="squared-distance", eta_scale=0).fit(squared)


def test_refused_values(tmp_path: Path, squared: Any, store: Path) -> None:
    made = FuzzyCMeans(3, kind="squared-distance", random_state=0)
    wrong = squared.copy()
    wrong[3, 5] = 99
    with pytest.raises(InputError, match=r"asymmetric.*3 \(object 3\) and 5 \(object 5\)"):
        made.fit(wrong)
    with pytest.raises(InputError, match="row 3, column 5"):
        made.fit(np.where(wrong == 99, -1, wrong))
    with pytest.raises(InputError, match="leave kind out"):
        FuzzyCMeans(3, kind="distance").fit(store)
    with pytest.raises(StoreError, match="no model at"):
        FuzzyCMeans(3, init=tmp_path / "none.npz").fit(store)
    with pytest.raises(StoreError, match="no store at"):
        FuzzyCMeans(3).fit(tmp_path / "none.zarr")
    made.fit(squared)
    with pytest.raises(ValueError, match="X has 5 features, but FuzzyCMeans is expecting 42 features"):
        made.predict(squared[:, :5])


def test_no_more_classes_than_these() -> None:
    found = [one for one in vars(estimators).values() if inspect.isclass(one) and one.__module__ == estimators.__name__]
    assert sorted(one.__name__ for one in found if not one.__name__.startswith("_")) == sorted(
        one.__name__ for one in CLASSES
    )
