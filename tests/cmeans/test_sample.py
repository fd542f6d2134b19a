"""Starts from a sample: the same fixed points from fewer columns, whatever the tiles and threads."""

from unittest import mock

import dask
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score

import dasrel
from dasrel import MemoryLimitError
from dasrel.cmeans import sample
from dasrel.cmeans.sample import draw_samples
from dasrel.engine.relation import relation
from dasrel.util import progress
from tests.helpers.faults import quiet
from tests.helpers.stores import stored


@pytest.fixture
def small_samples(monkeypatch):
    """Samples of 60 objects, so that small matrices have them."""
    monkeypatch.setattr(sample, "LEAST", 60)
    monkeypatch.setattr(sample, "PER_CLUSTER", 1)


def groups(n=400, seed=0):
    """Four groups, one of them of six objects, far away."""
    rng = np.random.default_rng(seed)
    truth = np.concatenate([rng.integers(0, 3, n - 6), np.full(6, 3)])
    X = rng.normal(size=(n, 3)) + 12 * np.eye(4, 3)[truth]
    X[truth == 3] += 40
    order = rng.permutation(n)
    return X[order], truth[order]


@pytest.mark.parametrize("kind", ["distance", "squared-distance", "kernel"])
def test_the_sample_has_the_dissimilarities_of_its_objects(small_samples, kind, tmp_path):
    X, truth = groups()
    values = {"distance": cdist(X, X), "squared-distance": cdist(X, X, "sqeuclidean"), "kernel": X @ X.T}[kind]
    matrix = stored(tmp_path / "s", values, kind, dtype="float64", tile=64)
    with progress.watch() as counted:
        drawn = draw_samples(relation(matrix), 60, 0, 0)[0]
    assert counted.scans == 2
    assert len(drawn.positions) == len(set(drawn.positions.tolist())) == 60
    assert (np.diff(drawn.positions) > 0).all()
    np.testing.assert_allclose(drawn.D, cdist(X, X, "sqeuclidean")[np.ix_(drawn.positions, drawn.positions)], atol=1e-8)
    assert 3 in truth[drawn.positions]  # the small group is not missed


@pytest.mark.slow
def test_the_sample_depends_on_the_seed_alone(small_samples, tmp_path):
    X, _ = groups()
    D = cdist(X, X)
    drawn = [
        draw_samples(relation(stored(tmp_path / str(k), D, dtype="float64", tile=tile)), 60, 0, seed)
        for k, (tile, seed) in enumerate([(64, 0), (100, 0), (400, 0), (64, 1)])
    ]
    seen = [sample.positions.tolist() for (sample,) in drawn]
    assert seen[0] == seen[1] == seen[2] != seen[3]


def test_terms_of_a_relation_are_in_the_sample(small_samples):
    X, _ = groups(120)
    changed = dasrel.euclideanize(cdist(X, X) ** 2, method="ultrametric", kind="distance").relation
    drawn = draw_samples(changed, 60, 0, 0)[0]
    rows = changed.rows(drawn.positions.tolist())[:, drawn.positions]
    np.testing.assert_allclose(drawn.D, rows, rtol=1e-9)


@pytest.mark.parametrize("rule", ["fcm1", "fcm2", "hard"])
def test_runs_end_at_fixed_points_as_good_as_those_of_full_restarts(small_samples, rule):
    X, truth = groups()
    D = cdist(X, X)
    value = {"fcm1": {"fuzzifier": 1.5}, "fcm2": {"entropy_weight": 20.0}, "hard": {}}[rule]
    found = quiet(dasrel.cluster, D, dasrel.grid(rule, 4, n_init=10, **value), kind="distance")
    full = quiet(dasrel.cluster, D, dasrel.grid(rule, 4, n_init=10, init="k-means++", **value), kind="distance")
    assert found.sample["objects"] == 60
    assert found.sample["runs"] == 10
    assert sum(found.columns) < sum(full.columns) / 2
    assert found.best.objective <= full.best.objective * (1 + 1e-6)
    assert adjusted_rand_score(truth, found.best.labels) == 1
    again = quiet(
        dasrel.cluster, D, dasrel.Run(rule, 4, init=found.best.memberships, max_iter=2, tol=0, **value), kind="distance"
    )
    assert np.abs(again.best.memberships - found.best.memberships).max() < 1e-4


@pytest.mark.slow
def test_the_result_does_not_depend_on_tiles_or_threads(small_samples, tmp_path):
    X, _ = groups()
    D = cdist(X, X)
    found = []
    for tile, threads in [(64, 1), (64, 3), (200, 2)]:
        path = tmp_path / f"s{tile}"
        if not path.exists():
            stored(path, D, dtype="float64", tile=tile)
        with dask.config.set(num_workers=threads):
            found.append(quiet(dasrel.cluster, path, dasrel.grid("fcm2", 4, n_init=5)))
    assert found[0].best.memberships.tobytes() == found[1].best.memberships.tobytes()
    np.testing.assert_allclose(found[2].best.memberships, found[0].best.memberships, atol=1e-6)


@pytest.mark.slow
def test_on_workers(small_samples, client, tmp_path):
    X, _ = groups()
    matrix = stored(tmp_path / "s", cdist(X, X), dtype="float64", tile=64)
    there = quiet(dasrel.cluster, matrix, dasrel.grid("fcm2", 4, n_init=5))
    with mock.patch("dasrel.util.parallel.active_client", return_value=None):
        here = quiet(dasrel.cluster, matrix, dasrel.grid("fcm2", 4, n_init=5))
    assert here.best.memberships.tobytes() == there.best.memberships.tobytes()


def test_a_sample_that_does_not_fit_is_refused(monkeypatch):
    X, _ = groups()
    with pytest.raises(MemoryLimitError, match="a sample of 400 objects needs"):
        dasrel.cluster(cdist(X, X), dasrel.Run("hard", 2), kind="distance", memory=3_000_000)


def test_few_different_objects_make_a_smaller_sample(small_samples):
    X = np.repeat(groups(40)[0], 10, axis=0)
    found = quiet(dasrel.cluster, cdist(X, X), dasrel.grid("fcm2", 3, n_init=3), kind="distance")
    assert found.sample["objects"] < 60
    assert found.best.result.is_sound


@pytest.mark.parametrize("eta", ["mean", "cut", "overall"])
def test_possibilistic_runs_start_from_the_fcm2_run_of_the_sample(small_samples, eta):
    X, truth = groups()
    given = {"entropy_weight": 20.0, "eta_scale": 0.25, "eta": eta}
    found = quiet(dasrel.cluster, cdist(X, X), dasrel.grid("pcm2", 4, n_init=5, **given), kind="distance")
    assert found.best.result.is_sound
    assert adjusted_rand_score(truth, found.best.labels) > 0.9


@pytest.mark.parametrize("init", ["sample", "k-means++"])
def test_the_plan_counts_the_scans_and_the_memory_of_the_sample(small_samples, init):
    X, _ = groups()
    runs = dasrel.grid("fcm1", 3, n_init=3, fuzzifier=1.5, init=init)
    plan = dasrel.plan_clustering(cdist(X, X), runs, kind="distance", judge=True, probe_seconds=0.02)
    found = quiet(dasrel.cluster, cdist(X, X), runs, kind="distance", judge=True)
    assert found.first_scans == plan.first_scans.typical == (2 if init == "sample" else 0)
    assert plan.judging_scans.most == 1
    slowest = max(one.n_iter for one in found.runs)
    assert found.scans == found.first_scans + slowest + plan.judging_scans.most


def test_the_plan_refuses_a_sample_that_does_not_fit(monkeypatch):
    X, _ = groups()
    with pytest.raises(MemoryLimitError, match="a sample of 400 objects needs"):
        dasrel.plan_clustering(cdist(X, X), dasrel.Run("hard", 2), kind="distance", memory=3_000_000)
