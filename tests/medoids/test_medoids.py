"""k-medoids, against all sets of medoids, scikit-learn's silhouettes, and by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

import dasrel
from dasrel import MedoidRun
from dasrel.medoids import fit
from dasrel.util import progress
from tests.helpers.matrices import distances, gram, grouped_points, uniform_points
from tests.helpers.stores import stored


def objective(D: Any, medoids: Any, weights: Any = 1.0) -> float:
    return float((weights * D[:, list(medoids)].min(axis=1)).sum())


def best_of_all(D: Any, c: int, weights: Any = 1.0) -> float:
    return min(objective(D, some, weights) for some in itertools.combinations(range(len(D)), c))


@pytest.fixture
def small_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of more than 50 objects are searched by batches of 40."""
    for name, value in {"ALL": 50, "NUMBERS": 0, "LEAST": 40, "START_BATCH": 20, "START_CANDIDATES": 30}.items():
        monkeypatch.setattr(fit, name, value)


def test_the_best_of_all_sets_of_medoids() -> None:
    for seed in range(4):
        D = distances(uniform_points(14, 2, seed))
        found = dasrel.kmedoids(D, [MedoidRun(c) for c in (1, 2, 3, 4)], kind="distance")
        for result in found.results:
            c = result.run.n_clusters
            assert result.objective == pytest.approx(best_of_all(D, c), rel=1e-6)
            assert result.objective == pytest.approx(objective(D, result.medoids), rel=1e-6)
            np.testing.assert_array_equal(result.labels[result.medoids], np.arange(c))
            np.testing.assert_allclose(result.distances, D[:, result.medoids].min(axis=1), rtol=1e-6)


def test_no_swap_of_all_objects_is_better_and_silhouettes_are_right() -> None:
    D = distances(grouped_points(130, groups=5, apart=3.0))
    found = dasrel.kmedoids(D, [MedoidRun(c) for c in (1, 3, 5, 7)], kind="distance")
    for result in found.results:
        for i, x in itertools.product(range(len(result.medoids)), range(len(D))):
            tried = result.medoids.copy()
            tried[i] = x
            assert objective(D, tried) >= result.objective * (1 - 2e-6)
        if result.run.n_clusters > 1:
            expected = silhouette_score(D, result.labels, metric="precomputed")
            assert result.silhouette == pytest.approx(expected, rel=1e-6)
    assert found.best is max(found.results[1:], key=lambda result: result.silhouette)
    assert np.isnan(found.results[0].silhouette)


def test_a_batch_is_followed_by_exact_steps(small_batch: None) -> None:
    D = distances(grouped_points(300, groups=4, apart=5.0))
    with progress.watch() as count:
        found = dasrel.kmedoids(D, [MedoidRun(c) for c in (2, 4, 6)], kind="distance")
    most = max(result.moves for result in found.results)
    assert found.batch == 60  # ten for each of six clusters
    assert most > 0
    assert count.scans == found.scans == 3 + 2 * most
    for result in found.results:
        for k, medoid in enumerate(result.medoids):
            inside = np.flatnonzero(result.labels == k)
            sums = D[np.ix_(inside, inside)].sum(axis=1)
            assert sums[inside == medoid][0] <= sums.min() * (1 + 1e-6)
    best = dasrel.kmedoids(D, MedoidRun(4, n_init=30), kind="distance").best
    assert found.results[1].objective <= 1.005 * best.objective


def test_every_kind_and_a_store(tmp_path: Path) -> None:
    D = distances(grouped_points(60, groups=3, apart=6.0))
    expected = dasrel.kmedoids(D, MedoidRun(3), kind="distance").best
    S = gram(D**2)
    for kind, values in (("squared-distance", D**2), ("kernel", S), ("similarity", S)):
        found = dasrel.kmedoids(values, MedoidRun(3), kind=kind).best
        np.testing.assert_array_equal(found.medoids, expected.medoids)
        np.testing.assert_allclose(found.distances, expected.distances, atol=1e-6)
    for tile in (7, 25, 60):
        path = stored(tmp_path / f"{tile}.zarr", D, tile=tile)
        found = dasrel.kmedoids(path, MedoidRun(3)).best
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_allclose(found.silhouettes, expected.silhouettes, atol=1e-6)


def test_weights_are_copies_of_objects() -> None:
    rng = np.random.default_rng(3)
    D = distances(uniform_points(12, 2, 1))
    weights = rng.integers(1, 5, 12)
    copies = np.repeat(np.arange(12), weights)
    weighted = dasrel.kmedoids(D, MedoidRun(3), kind="distance", weights=weights).best
    repeated = dasrel.kmedoids(D[np.ix_(copies, copies)], MedoidRun(3), kind="distance").best
    assert weighted.objective == pytest.approx(best_of_all(D, 3, weights), rel=1e-6)
    assert repeated.objective == pytest.approx(weighted.objective, rel=1e-6)
    np.testing.assert_array_equal(np.unique(copies[repeated.medoids]), weighted.medoids)
    assert weighted.silhouette == pytest.approx(repeated.silhouette, rel=1e-5)


def test_weights_beyond_one_batch(small_batch: None) -> None:
    D = distances(grouped_points(90, groups=3, apart=6.0))
    once = dasrel.kmedoids(D, MedoidRun(3), kind="distance")
    twice = dasrel.kmedoids(D, MedoidRun(3), kind="distance", weights=np.full(90, 2.0))
    np.testing.assert_array_equal(once.best.medoids, twice.best.medoids)
    assert twice.best.objective == pytest.approx(2 * once.best.objective)


def test_objects_that_are_equal() -> None:
    same = dasrel.kmedoids(np.zeros((6, 6)), [MedoidRun(1), MedoidRun(3), MedoidRun(6)], kind="distance")
    for result in same.results:
        assert result.objective == 0
        assert len(set(result.medoids.tolist())) == result.run.n_clusters
        assert (result.sizes > 0).all()
    flat = dasrel.kmedoids(1.0 - np.eye(7), MedoidRun(3), kind="distance").best
    assert flat.objective == 4


def test_the_same_bits_after_a_stop(tmp_path: Path, small_batch: None) -> None:
    D = distances(grouped_points(300, groups=4, apart=5.0))
    runs = [MedoidRun(c) for c in (2, 4, 6)]
    expected = dasrel.kmedoids(D, runs, kind="distance")
    stops = 0
    while True:
        kept = dasrel.Checkpoint(tmp_path, resume=stops > 0, time_limit=1e-6)
        try:
            found = dasrel.kmedoids(D, runs, kind="distance", checkpoint=kept)
            break
        except dasrel.Stopped:
            stops += 1
    assert stops >= 2
    for one, other in zip(found.results, expected.results, strict=True):
        np.testing.assert_array_equal(one.labels, other.labels)
        assert (one.objective, one.silhouette, one.moves) == (other.objective, other.silhouette, other.moves)
    np.testing.assert_array_equal(found.coordinates, expected.coordinates)


def test_new_objects_have_the_nearest_medoid(tmp_path: Path) -> None:
    X = grouped_points(60, groups=3, apart=6.0)
    D = distances(X)
    found = dasrel.kmedoids(D[:50, :50], MedoidRun(3), kind="distance")
    found.model().save(tmp_path / "model.npz")
    model = dasrel.Model.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(model.predict(D[50:, :50]), D[50:][:, found.best.medoids].argmin(axis=1))


def test_the_map_of_points_in_a_plane_is_the_plane() -> None:
    X = uniform_points(80, 2, 4)
    found = dasrel.kmedoids(distances(X), MedoidRun(2), kind="distance")
    np.testing.assert_allclose(distances(found.coordinates), distances(X), atol=1e-5)


def test_refusals() -> None:
    D = distances(uniform_points(9, 2))
    with pytest.raises(dasrel.InputError, match="10 clusters of 9 objects"):
        dasrel.kmedoids(D, MedoidRun(10), kind="distance")
    with pytest.raises(dasrel.InputError, match="n_clusters is 0"):
        MedoidRun(0)
    with pytest.raises(dasrel.InputError, match="there is no run"):
        dasrel.kmedoids(D, [], kind="distance")
    for weights in ([1.0] * 8, [0.0] + [1.0] * 8, [np.nan] * 9):
        with pytest.raises(dasrel.InputError, match="weights are not one number above 0 for each object"):
            dasrel.kmedoids(D, MedoidRun(2), kind="distance", weights=weights)
    with pytest.raises(dasrel.MemoryLimitError):
        dasrel.kmedoids(D, MedoidRun(2), kind="distance", memory="100B")


@pytest.mark.cluster
def test_the_same_bits_on_a_cluster(tmp_path: Path, workers: Any, small_batch: None) -> None:
    from distributed import Client

    path = stored(tmp_path / "d.zarr", distances(grouped_points(300, groups=4, apart=5.0)), tile=40)
    here = dasrel.kmedoids(path, MedoidRun(4)).best
    with Client(workers):
        there = dasrel.kmedoids(path, MedoidRun(4)).best
    np.testing.assert_array_equal(there.labels, here.labels)
    assert (there.objective, there.silhouette) == (here.objective, here.silhouette)
