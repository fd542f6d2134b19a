"""Euclideanisation against dense pencils: K14's example, five methods, duplicates, zeros, files, clustering."""

import json
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.spatial.distance import pdist, squareform
from sklearn.base import clone
from sklearn.datasets import load_iris

from dasrel import watch
from dasrel.cli import app
from dasrel.cmeans.fit import cluster
from dasrel.engine.relation import left_products, relation
from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.estimators.cmeans import FuzzyCMeans
from dasrel.geometry.davidson import NEAR, DavidsonSearch, advance
from dasrel.geometry.euclidean import Euclideanized, euclideanize, spectrum
from dasrel.geometry.gamma_search import MARGIN
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.kernels.products import View
from dasrel.names import METHODS
from dasrel.partition.model import Model
from dasrel.store.matrix import open_matrix
from dasrel.store.options import Writing
from tests.helpers.matrices import K14, delta_of, gram, mirrored, simpson
from tests.helpers.runs import Run, grid

Array = NDArray[Any]

FITS = ("power", "exponential", "log")


# ------------------------------------------------------------------------------------------- the dense computation


def dense_gamma(D: Array, delta: Array) -> float:
    """By the generalised eigenproblem on the complement of the ones."""
    basis = scipy.linalg.helmert(len(D)).T
    values = scipy.linalg.eigh(basis.T @ gram(D) @ basis, basis.T @ gram(delta) @ basis, eigvals_only=True)
    return float(-values[0])


def lowest(D: Array) -> float:
    """The lowest eigenvalue of W(D) on centred vectors."""
    basis = scipy.linalg.helmert(len(D)).T
    return float(np.linalg.eigvalsh(basis.T @ gram(D) @ basis)[0])


def dense_boundary(D: Array, method: str, low: float, high: float) -> float:
    return float(brentq(lambda a: lowest(delta_of(D, method, a)), low, high, xtol=1e-6))


def dense(found: Euclideanized) -> Array:
    return found.relation.matmat(np.eye(found.relation.n_objects))


@cache
def data(name: str) -> tuple[Array, str, Array, float | None]:
    """Stored values and kind; D of the objects that are not duplicates, floored; the floor."""
    rng = np.random.default_rng(5)
    if name == "random":
        S = mirrored(rng.random((50, 50)) + 0.1)
        return S, "squared-distance", S, None
    if name == "tied":
        S = mirrored(rng.integers(1, 5, (40, 40)).astype(np.float64))
        return S, "distance", S**2, None
    if name == "duplicated":
        S = mirrored(rng.random((30, 30)) + 0.2)
        twice = np.r_[np.arange(30), 3, 3, 7, 0]
        return S[np.ix_(twice, twice)], "distance", S**2, None
    if name == "iris":  # sup norm; some flowers are the same
        X = load_iris().data[::2]
        return (
            squareform(pdist(X, "chebyshev")), "distance",
            squareform(pdist(np.unique(X, axis=0), "chebyshev")) ** 2, None,
        )  # fmt: skip
    S = simpson(90)
    D = np.maximum(2 - 2 * S, 0.05)
    np.fill_diagonal(D, 0)
    return S, "similarity", D, 0.05


# ---------------------------------------------------------------------------------------------------------- values


def test_example_of_the_paper() -> None:
    """K14, section 2.2, to the printed digits."""
    seen = spectrum(K14, kind="squared-distance", n_values=3, tol=1e-8)
    assert [round(value, 2) for value in seen.lowest] == [-11.31, 15.77, 49.28]
    found = euclideanize(K14, kind="squared-distance", method="ultrametric", tol=1e-8)
    assert round(found.lambda_min, 5) == -3.83854
    assert round(found.gamma, 5) == 3.83854
    printed = [[0, 43.55, 174.19, 219.19], [43.55, 0, 187.19, 174.19], [174.19, 187.19, 0, 19.35]]
    np.testing.assert_allclose(dense(found)[:3], printed, atol=0.0051)
    np.testing.assert_allclose(np.linalg.eigvalsh(gram(dense(found))), [0, 0, 31, 173.41], atol=0.01)


@pytest.mark.slow(after=7)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["random", "tied", "duplicated", "iris", "digits"])
def test_gamma_is_that_of_the_dense_pencil(name: str, method: str) -> None:
    S, kind, D, floor = data(name)
    exact = method in ("spread", "ultrametric")
    with watch() as meter:
        found = euclideanize(S, kind=kind, method=method, floor_zeros=floor, tol=1e-8 if exact else 2e-5)
    assert found.scans == meter.scans
    if method == "spread" and len(D) < len(S):  # 11' - I tells duplicates apart
        D = np.where(S > 0, S**2, 0)
    gamma = dense_gamma(D, delta_of(D, method, found.alpha))
    assert found.gamma == pytest.approx(gamma, rel=1e-6 if exact else 1e-4)
    assert found.gamma >= gamma * (1 - 1e-9)
    assert found.converged
    assert lowest(dense(found)) >= -1e-9 * dense(found).max()
    if method != "spread":
        assert found.merged == len(S) - len(D)
    assert found.n_negative <= (np.linalg.eigvalsh(gram(D)) < -1e-9).sum()


@pytest.mark.parametrize("method", METHODS)
def test_stress_ratio_and_the_relation_itself(method: str, tmp_path: Path) -> None:
    """On a store of several tiles."""
    S, kind, D, _ = data("tied")
    store = import_matrix(S, tmp_path / "s.zarr", kind=kind, writing=Writing(dtype="float64", tile=16))
    found = euclideanize(store, method=method, tol=1e-6)
    delta = delta_of(D, method, found.alpha)
    made = D + found.gamma * delta
    np.testing.assert_allclose(dense(found), made, rtol=1e-9, atol=1e-9)
    pairs = np.triu_indices(len(D), 1)
    d, e = D[pairs], made[pairs]
    scale = (d @ e) / (e @ e)
    assert found.stress == pytest.approx(np.linalg.norm(d - scale * e) / np.linalg.norm(d), rel=1e-9)
    assert found.ratio == pytest.approx(found.gamma * delta.sum() / D.sum(), rel=1e-9)
    report = found.report()
    assert {"method", "gamma", "alpha", "beta", "lambda_min", "residual", "scans", "stress", "ratio"} <= set(report)
    assert report["beta"] == (found.gamma if method == "spread" else 0)
    json.dumps(report)


def test_ultrametric_across_tiles_where_heights_differ(tmp_path: Path) -> None:
    S, kind, D, _ = data("random")
    store = import_matrix(S, tmp_path / "s.zarr", kind=kind, writing=Writing(dtype="float64", tile=13))
    found = euclideanize(store, method="ultrametric", tol=1e-8)
    made = D + found.gamma * delta_of(D, "ultrametric", None)
    pairs = np.triu_indices(len(D), 1)
    d, e = D[pairs], made[pairs]
    assert found.stress == pytest.approx(np.linalg.norm(d - (d @ e) / (e @ e) * e) / np.linalg.norm(d), rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_float32_stores(method: str, tmp_path: Path) -> None:
    S, kind, D, _ = data("random")
    store = import_matrix(S, tmp_path / "s.zarr", kind=kind, writing=Writing(tile=16))
    found = euclideanize(store, method=method, tol=1e-3)
    assert found.gamma == pytest.approx(dense_gamma(D, delta_of(D, method, found.alpha)), rel=2e-3)
    assert lowest(D + found.gamma * delta_of(D, method, found.alpha)) > -1e-5


@pytest.mark.parametrize(("method", "ends"), [("power", (1e-3, 1)), ("log", (1e-3, 1)), ("exponential", (0.1, 100))])
@pytest.mark.parametrize("name", ["random", "iris"])
def test_alpha_is_the_boundary_less_a_margin(name: str, method: str, ends: tuple[float, float]) -> None:
    S, kind, D, _ = data(name)
    boundary = dense_boundary(D, method, *ends)
    found = euclideanize(S, kind=kind, method=method, tol=1e-3)
    assert found.alpha is not None
    assert found.boundary == pytest.approx(boundary, rel=1.01 * NEAR)
    side = 1 if method == "exponential" else -1
    assert side * (found.boundary - boundary) >= 0
    assert found.alpha == pytest.approx(found.boundary * (1 + side * MARGIN))


@pytest.mark.parametrize("method", FITS)
def test_an_alpha_that_is_given(method: str) -> None:
    S, kind, D, _ = data("random")
    inside, outside = {"power": (0.05, 0.9), "log": (0.05, 1.0), "exponential": (20.0, 0.5)}[method]
    found = euclideanize(S, kind=kind, method=method, alpha=inside, tol=1e-5)
    assert found.alpha == inside
    assert found.gamma == pytest.approx(dense_gamma(D, delta_of(D, method, inside)), rel=1e-4)
    with pytest.raises(InputError, match="not Euclidean at alpha") as error:
        euclideanize(S, kind=kind, method=method, alpha=outside)
    named = float(re.findall(r"near ([\d.e+-]+\d)", str(error.value))[0])
    ends = (0.1, 100) if method == "exponential" else (1e-3, 1)
    assert named == pytest.approx(dense_boundary(D, method, *ends), rel=1.1 * NEAR)


def test_searches_in_little_memory_cut_their_basis() -> None:
    """Several in the same scans; with the identity, and as a pencil."""
    D = mirrored(np.random.default_rng(2).random((150, 150)) + 0.1)
    seen = relation(D, kind="squared-distance")
    plain = DavidsonSearch(seen, None, None, 149, 40)
    pair = DavidsonSearch(seen, seen.power(0.05), None, 149, 40)
    with watch() as meter:
        for _ in range(60):
            advance([plain, pair], left_products)
            assert max(len(plain.V), len(pair.V)) <= 40
    assert meter.scans == 60
    assert plain.value == pytest.approx(lowest(D), rel=1e-6)
    assert pair.value == pytest.approx(-dense_gamma(D, D**0.05 * (1 - np.eye(150))), rel=1e-5)
    assert pair.residual < 1e-2 * abs(pair.value)


def test_log_may_be_euclidean_up_to_one() -> None:
    points = np.random.default_rng(0).random((12, 2))
    D = squareform(pdist(points)) * 30
    D[0, 1] = D[1, 0] = D[0, 1] * 1.9
    found = euclideanize(D, kind="distance", method="log")
    if lowest(delta_of(D**2, "log", 1.0)) > 1e-6:
        assert found.alpha == 1.0
    assert found.gamma == pytest.approx(dense_gamma(D**2, delta_of(D**2, "log", found.alpha)), rel=1e-4)


def test_a_relation_with_views_of_its_own() -> None:
    """Heights of the tree follow the views."""
    D = data("random")[0]
    seen = relation(D, kind="squared-distance").power(2.0).spread(0.25)
    E = D**2 + 0.25 * (1 - np.eye(len(D)))
    found = euclideanize(seen, method="ultrametric", tol=1e-8)
    assert found.gamma == pytest.approx(dense_gamma(E, delta_of(E, "ultrametric", None)), rel=1e-6)
    found = euclideanize(seen, method="power", alpha=0.02, tol=1e-5)
    assert found.gamma == pytest.approx(dense_gamma(E, delta_of(E, "power", 0.02)), rel=1e-4)
    np.testing.assert_allclose(dense(found), E + found.gamma * delta_of(E, "power", 0.02), rtol=1e-9)


# ------------------------------------------------------------------------------------------------------- degenerate


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_that_are_euclidean_already(method: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    flat = squareform(pdist(rng.random((40, 3)), "sqeuclidean"))
    for D in (flat, 1 - np.eye(6), np.zeros((5, 5)), np.array([[0.0, 2], [2, 0]]), flat[:3, :3]):
        found = euclideanize(D.astype(dtype), kind="squared-distance", method=method)
        assert found.gamma == 0
        assert found.was_euclidean
        assert (found.stress, found.ratio) == (0, 0)
        np.testing.assert_array_equal(dense(found), D.astype(dtype))


@pytest.mark.parametrize("method", METHODS)
def test_one_small_negative_eigenvalue_among_large_ones_is_found(method: str) -> None:
    rng = np.random.default_rng(3)
    points = rng.standard_normal((160, 60)) * np.geomspace(30, 1, 60)
    turned = rng.standard_normal((160, 1)) * 0.4
    D = squareform(pdist(points, "sqeuclidean") - pdist(turned, "sqeuclidean"))
    assert -30 < lowest(D) < -5
    found = euclideanize(D, kind="squared-distance", method=method)
    assert found.n_negative == 1
    assert found.gamma == pytest.approx(dense_gamma(D, delta_of(D, method, found.alpha)), rel=2e-4)


@pytest.mark.parametrize("method", METHODS)
def test_three_objects_on_no_triangle(method: str) -> None:
    D = np.array([[0.0, 1, 9], [1, 0, 1], [9, 1, 0]])
    found = euclideanize(D, kind="squared-distance", method=method)
    assert found.gamma == pytest.approx(dense_gamma(D, delta_of(D, method, found.alpha)), rel=1e-9)
    assert found.n_negative == 1


@pytest.mark.parametrize("method", ["ultrametric", "power"])
def test_zeros_between_different_objects_are_named_and_counted(method: str, tmp_path: Path) -> None:
    S = data("random")[0].copy()
    for i, j in ((3, 41), (3, 7), (20, 21)):  # 7 and 41: a chain of zeros
        S[i, j] = S[j, i] = 0
    again = np.r_[np.arange(50), 11]  # and an honest duplicate
    S = S[np.ix_(again, again)]
    names = [f"o{k}" for k in range(51)]
    store = tmp_path / "s.zarr"
    np.save(tmp_path / "s.npy", S)
    (tmp_path / "ids.txt").write_text("\n".join(names))
    import_matrix(
        tmp_path / "s.npy", store, kind="squared-distance", reading=Reading(ids=str(tmp_path / "ids.txt")),
        writing=Writing(tile=16),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"^3 pairs of objects have dissimilarity 0 but different rows") as error:
        euclideanize(store, method=method)
    for name in ("o3 and o7", "o3 and o41", "o20 and o21", "floor_zeros"):
        assert name in str(error.value)
    found = euclideanize(store, method=method, floor_zeros=0.04)
    D = np.maximum(S, 0.04)
    np.fill_diagonal(D, 0)
    assert found.gamma == pytest.approx(dense_gamma(D, delta_of(D, method, found.alpha)), rel=1e-3)
    assert (found.floored, found.merged, found.floor_zeros) == (4, 0, 0.04)


def test_similarities_above_their_own_are_zeros_too() -> None:
    S = np.array([[1.0, 1.2, 0.1], [1.2, 1.0, 0.3], [0.1, 0.3, 1.0]])
    with pytest.raises(InputError, match=r"^1 pair .*: 0 and 1;"):
        euclideanize(S, kind="similarity", method="ultrametric")
    D = np.array([[0, 0.1, 1.8], [0.1, 0, 1.4], [1.8, 1.4, 0]])
    found = euclideanize(S, kind="similarity", method="spread", floor_zeros=0.1)
    np.testing.assert_allclose(dense(found), D, atol=1e-12)


@pytest.mark.parametrize("method", ["spread", "ultrametric"])
def test_out_of_budget_is_a_warning_and_safe(method: str) -> None:
    D = mirrored(np.random.default_rng(1).random((120, 120)) + 0.1)
    with pytest.warns(DasrelWarning, match="3 scans were not enough"):
        found = euclideanize(D, kind="squared-distance", method=method, max_scans=3)
    assert not found.converged
    assert found.gamma > dense_gamma(D, delta_of(D, method, None))


def test_out_of_budget_for_a_fit() -> None:
    D = mirrored(np.random.default_rng(1).random((120, 120)) + 0.1)
    with pytest.warns(DasrelWarning, match="12 scans were not enough"):
        found = euclideanize(D, kind="squared-distance", method="power", alpha=0.02, max_scans=12, tol=1e-9)
    assert found.gamma > dense_gamma(D, delta_of(D, "power", 0.02))


@pytest.mark.parametrize(
    ("requested", "reported"),
    [
        ({"method": "magic"}, "use one of spread, ultrametric"),
        ({"method": "spread", "alpha": 0.5}, "has no parameter"),
        ({"method": "power", "alpha": 1.5}, "above 0 and at most 1"),
        ({"method": "exponential", "alpha": -1.0}, "above 0, not -1.0"),
        ({"floor_zeros": 0.0}, "floor_zeros is a squared dissimilarity above 0"),
        ({"tol": 2.0}, "tol lies between 0 and 1"),
        ({"max_scans": 0}, "max_scans is at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(requested: dict[str, Any], reported: str) -> None:
    with pytest.raises(InputError, match=reported):
        euclideanize(K14, kind="squared-distance", **requested)


def test_kernels_and_added_terms_are_refused() -> None:
    seen = relation(K14, kind="squared-distance")
    made = euclideanize(seen, method="ultrametric").relation
    for wrong in (seen.gaussian(1.0), made):
        with pytest.raises(InputError, match="cannot be Euclideanised"):
            euclideanize(wrong, method="spread")


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_loaded(method: str, tmp_path: Path) -> None:
    S, kind, _, floor = data("digits")
    found = euclideanize(S, kind=kind, method=method, floor_zeros=floor, tol=1e-3)
    found.save(tmp_path / "e.npz")
    with watch() as meter:
        again = Euclideanized.load(tmp_path / "e.npz", S, kind=kind)
    assert meter.scans == 0
    assert again.report() == found.report()
    np.testing.assert_array_equal(dense(again), dense(found))
    assert [path.name for path in tmp_path.iterdir()] == ["e.npz"]


def test_a_file_for_another_matrix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    euclideanize(K14, kind="squared-distance", method="ultrametric").save(path)
    for other, reported in (
        (K14[:3, :3], "number of objects 4 there and 3 here"),
        (K14 * 2, "minimum 4.0 there and 8.0"),
    ):
        with pytest.raises(InputError, match=f"made from another matrix: {reported}"):
            Euclideanized.load(path, other, kind="squared-distance")
    with pytest.raises(InputError, match="made from another matrix: kind"):
        Euclideanized.load(path, K14, kind="distance")
    with pytest.raises(InputError, match="made from another matrix"):
        Euclideanized.load(path, K14, kind="squared-distance").on(K14 * 2, kind="squared-distance")
    named = import_matrix(K14, tmp_path / "s.zarr", kind="squared-distance", writing=Writing(dtype="float64"))
    assert Euclideanized.load(path, named).gamma > 3.8


def test_files_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    found = euclideanize(K14, kind="squared-distance", method="ultrametric")
    found.save(path)
    whole = path.read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="is not a dasrel Euclideanisation"):
            Euclideanized.load(path, K14, kind="squared-distance")
    path.write_bytes(whole)
    with np.load(path, allow_pickle=False) as file:
        parts = {name: file[name] for name in file.files}
    reported = json.loads(parts["about"].tobytes())

    def written(**changed: Any) -> None:
        np.savez(path, **{**parts, **changed})

    def about_with(**changed: Any) -> Array:
        return np.frombuffer(json.dumps({**reported, **changed}).encode(), dtype=np.uint8)

    for about in (about_with(gamma="much"), about_with(method="magic"), about_with(scans=None)):
        written(about=about)
        with pytest.raises(StoreError, match="is not a dasrel Euclideanisation"):
            Euclideanized.load(path, K14, kind="squared-distance")
    for changed in (
        {"edges": parts["edges"] + 2},
        {"weights": parts["weights"][:2]},
        {"about": about_with(method="log")},
    ):
        written(**changed)
        with pytest.raises(StoreError, match="is damaged"):
            Euclideanized.load(path, K14, kind="squared-distance")
    for mean in ("complete", None, [], True):
        written(about=about_with(matrix={**reported["matrix"], "mean": mean}))
        with pytest.raises(InputError, match="made from another matrix: mean value"):
            Euclideanized.load(path, K14, kind="squared-distance")
    written(about=about_with(euclidean_version=99))
    with pytest.raises(StoreError, match="version 99, this dasrel reads version 1"):
        Euclideanized.load(path, K14, kind="squared-distance")
    with pytest.raises(StoreError, match="no Euclideanisation at"):
        Euclideanized.load(tmp_path / "nowhere.npz", K14, kind="squared-distance")


# ------------------------------------------------------------------------------------------------------- clustering


def test_clustering_meets_no_negative_distance() -> None:
    """RFCM fails on Iris under the sup norm (K14, example 3); iRFCM does not."""
    S, kind, _, _ = data("iris")
    runs = grid("fcm1", 3, n_init=3, random_state=0, max_iter=60, tol=1e-3)
    with pytest.raises(InputError, match="negative"):
        cluster(S, grid("fcm1", 12, n_init=5, random_state=0), kind=kind)
    for method in METHODS:
        found = euclideanize(S, kind=kind, method=method, tol=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DasrelWarning)  # a spread makes all clusters alike here, and that is told
            clustering = cluster(found.relation, [*runs, *grid("fcm1", 12, n_init=2, random_state=0, max_iter=60)])
        assert [run.negative_distances for run in clustering.runs] == [0] * 5
        assert [run.beta for run in clustering.runs] == [found.beta] * 5  # and none was added


def test_shift_before_and_shift_after_are_equal() -> None:
    """F09: the kernel shifted first, or the distances shifted in each iteration."""
    S, kind, _, _ = data("iris")
    found = euclideanize(S, kind=kind, method="spread")
    before = cluster(found.relation, Run("fcm2", 3, entropy_weight=0.5, random_state=1)).best
    after = cluster(S, Run("fcm2", 3, entropy_weight=0.5, random_state=1, spread=found.beta), kind=kind).best
    np.testing.assert_allclose(before.memberships, after.memberships, atol=1e-9)
    np.testing.assert_allclose(before.distances, after.distances, rtol=1e-9)
    assert before.objective == pytest.approx(after.objective, rel=1e-10)


@pytest.mark.parametrize("form", ["method", "object", "file", "path"])
def test_estimators_take_it_in_every_form(form: str, tmp_path: Path) -> None:
    """iRFCM is FuzzyCMeans(euclideanize="ultrametric")."""
    S, kind, _, _ = data("iris")
    made = euclideanize(S, kind=kind, method="ultrametric")
    made.save(tmp_path / "e.npz")
    forms = {"method": "ultrametric", "object": made, "file": str(tmp_path / "e.npz"), "path": tmp_path / "e.npz"}
    words = {"n_init": 2, "random_state": 3, "kind": kind, "init": "random", "fuzzifier": 2.0, "accelerate": False}
    words["stop"] = "memberships"
    found = clone(FuzzyCMeans(3, euclideanize=forms[form], **words)).fit(S)
    by_hand = cluster(made.relation, grid("fcm1", 3, n_init=2, random_state=3)).best
    np.testing.assert_allclose(found.memberships_, by_hand.memberships, atol=1e-9)
    assert found.euclideanized_.gamma == pytest.approx(made.gamma)
    with pytest.raises(InputError, match="negative"):
        FuzzyCMeans(3, **words).fit(S)
    with pytest.raises(InputError, match="added term"):
        found.predict(S[:2])
    placed = FuzzyCMeans(2, euclideanize="power", tol=1e-3, **words).fit(S)  # new objects go through the view
    assert (placed.predict(S[:5]) == placed.labels_[:5]).mean() >= 0.8


def test_estimators_refuse_what_is_no_euclideanisation(tmp_path: Path) -> None:
    S, kind, _, _ = data("iris")
    for wrong in ("magic", 3):
        with pytest.raises(InputError, match=r"euclideanize is .*; use one of spread"):
            FuzzyCMeans(2, euclideanize=wrong, kind=kind).fit(S)
    other = euclideanize(K14, kind="squared-distance", method="spread")
    with pytest.raises(InputError, match="made from another matrix"):
        FuzzyCMeans(2, euclideanize=other, kind=kind).fit(S)


def test_a_model_keeps_the_fused_view(tmp_path: Path) -> None:
    """New objects are seen through D + gamma f(D) too."""
    S, kind, _, _ = data("iris")
    found = euclideanize(S, kind=kind, method="power", tol=1e-3)
    best = cluster(found.relation, Run("fcm1", 2, random_state=0, tol=1e-3)).best
    best.model.save(tmp_path / "m.npz")
    model = Model.load(tmp_path / "m.npz")
    assert model.steps == found.relation.view.steps
    rows = np.random.default_rng(0).random((4, len(S))) + 0.1
    np.testing.assert_array_equal(model.predict_memberships(rows), best.model.predict_memberships(rows))


# ------------------------------------------------------------------------------------------------------------ views


def test_the_new_steps_of_a_view() -> None:
    D = data("random")[0]
    seen = relation(D, kind="squared-distance")
    everything = np.eye(len(D))
    for method, a in (("power", 0.3), ("exponential", 2.0), ("log", 0.7)):
        fused = seen.plus_fit(method, 3.5, a)
        wanted = D + 3.5 * delta_of(D, method, a)
        np.testing.assert_allclose(fused.matmat(everything), wanted, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(fused.rows([4, 2]), wanted[[4, 2]], rtol=1e-12, atol=1e-14)
        assert hash(fused.view) == hash(View("squared-distance", ((f"plus-{method}", (3.5, a)),)))
        assert fused.largest() == pytest.approx(wanted.max())
    raised = seen.floor(0.4)
    np.testing.assert_allclose(raised.matmat(everything), np.maximum(D, 0.4) * (1 - everything), rtol=1e-12)
    assert not raised.diagonal().any()


@pytest.mark.parametrize(
    ("step", "parameter"),
    [("plus-power", 1.0), ("plus-power", (1.0,)), ("power", (1.0, 2.0)), ("plus-log", (-1.0, 1.0)), ("floor", 0.0)],
)
def test_steps_with_wrong_numbers_are_refused(step: str, parameter: Any) -> None:
    with pytest.raises(InputError, match="a view's step is one of"):
        View("distance").then(step, parameter)


# --------------------------------------------------------------------------------------------------- the command line


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    code = app.run([*arguments, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


@pytest.mark.slow
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    S, kind, D, _ = data("iris")
    store, picture = str(tmp_path / "iris.zarr"), tmp_path / "ends.png"
    import_matrix(S, store, kind=kind, writing=Writing(dtype="float64", tile=20))
    lambda_1 = lowest(S**2)

    code, reported, _ = run(["spectrum", store, "--values", "4", "--tol", "1e-6", "--picture", str(picture)], capsys)
    assert code == 0
    assert reported["is_euclidean"] is False
    assert len(reported["lowest"]) == 4
    assert reported["lowest"][0] == pytest.approx(lambda_1, rel=1e-6)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert run(["spectrum", store, "--picture", str(picture)], capsys)[0] == 1  # it exists

    code, reported, _ = run(["euclideanize", store, "--method", "ultrametric"], capsys)
    assert code == 0
    assert {"method", "gamma", "alpha", "beta", "lambda_min", "residual", "scans", "stress", "ratio"} <= set(reported)
    assert reported["gamma"] == pytest.approx(dense_gamma(D, delta_of(D, "ultrametric", None)), rel=1e-4)
    assert reported["out"] == str(tmp_path / "iris.ultrametric.npz")
    assert Euclideanized.load(reported["out"], open_matrix(store)).gamma == reported["gamma"]

    code, reported, _ = run(["euclideanize", store, "--method", "ultrametric"], capsys)
    assert code == 1
    assert "exists" in reported["error"]
    out = str(tmp_path / "other.npz")
    code, reported, _ = run(["euclideanize", store, "--method", "power", "--alpha", "0.1", "--out", out], capsys)
    assert (code, reported["alpha"], reported["out"]) == (0, 0.1, out)
    code, reported, _ = run(["euclideanize", store, "--method", "power", "--alpha", "1", "--force"], capsys)
    assert code == 1
    assert "not Euclidean at alpha 1" in reported["error"]
    assert run(["euclideanize", store, "--method", "magic"], capsys)[0] == 2

    requested = ["cluster", store, str(tmp_path / "a"), "--rule", "fcm1", "--clusters", "3", "--n-init", "2"]
    code, reported, _ = run([*requested, "--euclideanize", "ultrametric"], capsys)
    assert code == 0
    made = euclideanize(S, kind=kind, method="ultrametric")
    best = cluster(made.relation, grid("fcm1", 3, n_init=2, random_state=0)).best
    assert reported["settings"][0]["objective"] == pytest.approx(best.objective, rel=1e-6)
    assert reported["euclideanized"]["gamma"] == pytest.approx(made.gamma)
    requested[2] = str(tmp_path / "b")
    code, again, _ = run([*requested, "--euclideanize", str(tmp_path / "iris.ultrametric.npz")], capsys)
    assert again["settings"][0]["objective"] == reported["settings"][0]["objective"]
    requested[2] = str(tmp_path / "c")
    code, reported, _ = run([*requested, "--euclideanize", "magic"], capsys)
    assert code == 1
    assert "use one of spread" in reported["error"]

    assert app.run(["spectrum", store]) == 0
    out = capsys.readouterr().out
    assert re.search(r"Euclidean +no; at least \d+ negative", out)
    assert app.run(["euclideanize", store, "--method", "log", "--floor-zeros", "0.001", "--tol", "0.01"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"floor +\d+ pairs raised to 0.001", out)
    assert re.search(r"alpha +0\.\d+ \(Euclidean up to", out)
