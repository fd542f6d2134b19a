"""Principal coordinates against dense eigenvectors of W(D), and new objects against the points they are."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import dasrel
from dasrel import watch
from dasrel.engine.relation import relation
from dasrel.geometry.embedding import embed, prepare_embed
from dasrel.geometry.options import EmbedParameters
from tests.helpers.faults import Killed, killed_after
from tests.helpers.matrices import distances, gram, grouped_points, mirrored, simpson, squared_of, uniform_points
from tests.helpers.stores import bits, stored


def dense(D: Any, n_components: int) -> tuple[Any, Any, Any]:
    """Eigenvalues of W(D), descending, all of them; coordinates of the first axes; all eigenvectors."""
    values, vectors = np.linalg.eigh(gram(D))
    values, vectors = values[::-1], vectors[:, ::-1]
    return values, vectors[:, :n_components] * np.sqrt(values[:n_components]), vectors


def up_to_sign(found: Any, expected: Any) -> Any:
    return found * np.sign((found * expected).sum(axis=0))


def communities(n: int) -> Any:
    """Bray-Curtis dissimilarities of counts of species in four kinds of places: far from Euclidean."""
    rng = np.random.default_rng(3)
    places = rng.dirichlet(np.full(60, 0.1), 4)
    counts = [rng.multinomial(500, rng.dirichlet(20 * places[k % 4] + 0.01)) for k in range(n)]
    return distances(np.array(counts, dtype=float), "braycurtis")


@pytest.mark.parametrize("kind", ["distance", "squared-distance", "similarity", "kernel"])
def test_axes_are_those_of_the_dense_matrix(kind: str, tmp_path: Path) -> None:
    """On a store of several tiles."""
    S = communities(150) if "distance" in kind else simpson(150)
    D = squared_of(S, kind)
    matrix = stored(tmp_path / "s.zarr", S, kind, dtype="float64", tile=40)
    with watch() as meter:
        found = embed(matrix, n_components=4, tol=1e-8)
    assert found.scans == meter.scans
    assert found.converged
    values, coordinates, _ = dense(D, 4)
    np.testing.assert_allclose(found.eigenvalues, values[:4], rtol=1e-9)
    np.testing.assert_allclose(up_to_sign(found.coordinates, coordinates), coordinates, atol=1e-6 * values[0] ** 0.5)
    np.testing.assert_allclose(found.row_means, D.mean(axis=1), rtol=1e-12)
    assert found.positive_sum + found.negative_sum == pytest.approx(values.sum(), rel=1e-9)


def test_residuals_are_lengths_of_what_is_left() -> None:
    D = communities(300) ** 2
    found = embed(D, kind="squared-distance", n_components=6, tol=0.02)
    V = found.coordinates / np.sqrt(found.eigenvalues)
    left = np.linalg.norm(gram(D) @ V - V * found.eigenvalues, axis=0)
    assert (left > 1e-6 * found.eigenvalues).any()  # the search has ended before all is exact
    np.testing.assert_allclose(left, found.residuals, rtol=1e-6, atol=1e-10)
    assert (found.residuals <= 0.02 * found.eigenvalues).all()


def test_shares_and_the_negative_share() -> None:
    D = communities(600) ** 2
    values, _, _ = dense(D, 1)
    positive, negative = values[values > 0].sum(), -values[values < 0].sum()
    found = embed(D, kind="squared-distance")
    assert 0.1 < negative / (positive + negative) < 0.4  # the case is one in which it matters
    np.testing.assert_allclose(found.shares, values[:10] / positive, rtol=0.02)
    assert found.negative_share == pytest.approx(negative / (positive + negative), rel=0.1)
    assert 0 < found.negative_share_least <= negative / (positive + negative)
    assert 0 < found.n_negative <= (values < 0).sum()
    assert found.lowest >= values[-1]


def test_all_eigenvalues_of_a_small_matrix_are_exact() -> None:
    D = mirrored(np.random.default_rng(4).random((9, 9)) + 0.5)
    with pytest.warns(dasrel.DasrelWarning, match="10 axes were requested"):
        found = embed(D, kind="squared-distance")
    values = dense(D, 1)[0]
    positive, negative = values[values > 1e-9].sum(), -values[values < -1e-9].sum()
    assert found.stopped == "exhausted"
    assert found.n_components == (values > 1e-9).sum()
    np.testing.assert_allclose(found.shares, values[: found.n_components] / positive, rtol=1e-9)
    assert found.negative_share == pytest.approx(negative / (positive + negative), rel=1e-9)
    assert found.negative_share_least == pytest.approx(found.negative_share, rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_points_are_found_again(dtype: str, tmp_path: Path) -> None:
    X = grouped_points(200)
    matrix = stored(tmp_path / "s.zarr", distances(X), dtype=dtype, tile=64)
    with pytest.warns(dasrel.DasrelWarning, match="10 axes were requested and 3 eigenvalues are positive"):
        found = embed(matrix)
    assert found.n_components == 3
    assert found.shares.sum() == pytest.approx(1, rel=1e-5)
    assert found.negative_share < 1e-5
    np.testing.assert_allclose(distances(found.coordinates), distances(X), rtol=1e-4)
    np.testing.assert_allclose(found.coordinates.mean(axis=0), 0, atol=1e-9)


def test_the_spread_makes_all_eigenvalues_positive() -> None:
    d = communities(150)
    found = embed(d, kind="distance", n_components=5, correction="spread", tol=1e-8)
    lowest = np.linalg.eigvalsh(gram(d**2))[0]
    assert found.spread == pytest.approx(-2 * lowest, rel=1e-6)
    spread = d**2 + found.spread * (1 - np.eye(150))
    values, coordinates, _ = dense(spread, 5)
    np.testing.assert_allclose(found.eigenvalues, values[:5], rtol=1e-8)
    np.testing.assert_allclose(up_to_sign(found.coordinates, coordinates), coordinates, atol=1e-6)
    np.testing.assert_allclose(found.shares, values[:5] / values.sum(), rtol=1e-8)
    assert (found.negative_share, found.negative_sum, found.n_negative) == (0, 0, 0)
    assert embed(distances(uniform_points(50)), kind="distance", n_components=2, correction="spread").spread == 0


def gower(D: Any, new: Any, n_components: int) -> Any:
    """Gower 1968, eq. 10: x* = Lambda^-1 X'(b - d*) / 2, b the squared distances to the centroid."""
    values, X, _ = dense(D, n_components)
    b = np.diag(gram(D))
    return np.stack([X.T @ (b - row) / (2 * values[:n_components]) for row in new])


def test_new_objects_by_gowers_formula() -> None:
    X = grouped_points(90)
    old, new = X[:80], X[80:]
    found = embed(distances(old), kind="distance", n_components=3, tol=1e-9)
    placed = found.project(cdist(new, old, "sqeuclidean"))
    np.testing.assert_allclose(cdist(placed, found.coordinates), cdist(new, old), rtol=1e-8)

    d = communities(120)
    for correction in (None, "spread"):
        found = embed(d[:100, :100], kind="distance", n_components=4, tol=1e-9, correction=correction)
        D, rows = d[:100, :100] ** 2 + found.spread * (1 - np.eye(100)), d[100:, :100] ** 2 + found.spread
        expected = gower(D, rows, 4)
        placed = found.project(d[100:, :100] ** 2)
        np.testing.assert_allclose(up_to_sign(placed, expected), expected, atol=1e-6)
    found = embed(d, kind="distance", n_components=4, tol=1e-9)
    np.testing.assert_allclose(found.project(d**2), found.coordinates, atol=1e-7)


def test_signs_follow_a_rule() -> None:
    found = embed(communities(100), kind="distance", n_components=6)
    farthest = np.abs(found.coordinates).argmax(axis=0)
    assert (found.coordinates[farthest, np.arange(6)] > 0).all()
    x = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # two are equally far: the first one is positive
    line = embed(np.abs(x[:, None] - x), kind="distance", n_components=1)
    np.testing.assert_allclose(line.coordinates[:, 0], -x, atol=1e-12)


def test_scans_stop_at_a_limit_with_a_warning() -> None:
    D = mirrored(np.random.default_rng(0).random((400, 400)))
    with pytest.warns(dasrel.DasrelWarning, match="did not converge to tol because 3 scans were not enough"):
        found = embed(D, kind="distance", max_scans=3)
    assert (found.scans, found.converged, found.stopped) == (3, False, "scans")


def test_a_search_that_was_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    d = communities(200)
    whole = embed(d, kind="distance")
    assert whole.scans > 3
    for scans in range(1, whole.scans):
        checkpoint = dasrel.Checkpoint(tmp_path / str(scans))
        with pytest.raises(Killed), killed_after(scans):
            embed(d, kind="distance", checkpoint=checkpoint)
        again = embed(d, kind="distance", checkpoint=dataclasses.replace(checkpoint, resume=True))
        assert bits(again) == bits(whole)
    with pytest.raises(dasrel.StoreError, match="n_components is 10 there and 9 here"):
        embed(d, kind="distance", n_components=9, checkpoint=dataclasses.replace(checkpoint, resume=True))


def test_the_cost_is_an_upper_bound(tmp_path: Path) -> None:
    matrix = stored(tmp_path / "s.zarr", communities(300), tile=100)
    cost = prepare_embed(matrix, EmbedParameters()).cost()
    assert cost.scans.least <= embed(matrix).scans <= cost.scans.most
    with pytest.raises(dasrel.MemoryLimitError, match="raise memory"):
        prepare_embed(matrix, EmbedParameters(memory="100kB")).cost()


def test_refusals() -> None:
    D = distances(uniform_points(20))
    for given, message in [
        ({"n_components": 0}, "n_components is at least 1, not 0"),
        ({"correction": "cailliez"}, "correction is 'cailliez'; use spread, or none"),
        ({"tol": 2}, "tol lies between 0 and 1"),
        ({"max_scans": 0}, "max_scans are at least 1"),
    ]:
        with pytest.raises(dasrel.InputError, match=message):
            embed(D, kind="distance", **given)
    with pytest.raises(dasrel.InputError, match="single object"):
        embed(np.zeros((1, 1)), kind="distance")
    with pytest.raises(dasrel.InputError, match="all at one place"):
        embed(np.zeros((5, 5)), kind="distance")
    with pytest.raises(dasrel.InputError, match="diagonal that is not zero"):
        embed(relation(D, kind="distance").gaussian(1.0))
    found = embed(D, kind="distance", n_components=2)
    with pytest.raises(dasrel.InputError, match=r"shape \(2, 19\)"):
        found.project(D[:2, :19])
    assert "20 objects: 2 axes" in repr(found)
    assert "negative" in found._repr_html_()
