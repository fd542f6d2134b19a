"""Levels: settings are decided on samples, and all objects see few runs."""

import csv
import json

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import dasrel
from dasrel.cmeans import levels, sample
from dasrel.cmeans.levels import Level
from dasrel.cmeans.starts import at_objects
from dasrel.partition.result import Start
from tests.helpers.faults import quiet
from tests.helpers.stores import stored


@pytest.fixture
def small_samples(monkeypatch):
    """Samples of 60 objects, and second ones from 960 on."""
    monkeypatch.setattr(sample, "LEAST", 60)
    monkeypatch.setattr(sample, "PER_CLUSTER", 1)


def blobs(n, groups=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) + 9 * np.eye(groups, 4)[rng.integers(0, groups, n)]
    return cdist(X, X)


def level_of(D):
    return Level(np.arange(len(D)), (D**2).astype(np.float32), has_all=True)


def test_runs_side_by_side_end_where_each_ends_alone():
    D = blobs(90)
    runs = [dasrel.Run("fcm1", c, fuzzifier=1.5) for c in (2, 3, 4)] + [dasrel.Run("fcm2", 4, entropy_weight=2.0)]

    def trail(level, run):
        """A run, and then another one from its end."""
        first = yield level.state(run, 0.0, at_objects(np.arange(run.n_clusters) * 7, level.size))
        second = yield level.state(run, 0.0, Start(first.V[None]), fine=True)
        return first, second

    together, alone = level_of(D), []
    with together.threads():
        found = together.follow(trail(together, run) for run in runs)
    for run in runs:
        level = level_of(D)
        with level.threads():
            alone += level.follow([trail(level, run)])
    assert together.runs == 2 * len(runs)
    assert together.n_iter == sum(end.result.n_iter for ends in found for end in ends)
    for ends, expected in zip(found, alone, strict=True):
        for end, other in zip(ends, expected, strict=True):
            assert end.result.n_iter == other.result.n_iter
            np.testing.assert_allclose(end.U, other.U, atol=1e-5)


@pytest.mark.parametrize("columns", [1, levels.NARROW, levels.NARROW + 1, 70])
def test_products_of_a_level_are_those_of_its_matrix(columns, monkeypatch):
    monkeypatch.setattr(levels, "BLOCK", 32)
    D = blobs(100)
    V = np.random.default_rng(1).dirichlet(np.ones(100), columns)
    level = level_of(D)
    with level.threads():
        np.testing.assert_allclose(level.multiply(V), V @ D**2, rtol=1e-5)


def restarts_of(X, clusters):
    found = quiet(dasrel.cluster, cdist(X, X), dasrel.grid("fcm2", clusters, entropy_weight=0.5), kind="distance")
    return found.restarts[0]


def test_restarts_that_end_in_the_same_clusters_are_counted():
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(80, 2))
    square = noise + 9 * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])[np.arange(80) % 4]
    apart = restarts_of(square, 4)
    assert (apart.runs, apart.finished, apart.same, apart.objects) == (10, 5, 5, 80)
    angles = rng.uniform(0, 2 * np.pi, 80)  # on a circle any rotation of three arcs is nearly as good
    circle = restarts_of(9 * np.stack([np.cos(angles), np.sin(angles)], axis=1), 3)
    assert circle.finished == 5
    assert 1 <= circle.same < 5


def test_contests_that_do_not_fit_together_are_decided_one_after_another(small_samples, monkeypatch):
    D = blobs(300)
    runs = dasrel.grid("auto", [2, 3, 4], n_init=2)
    found = quiet(dasrel.cluster, D, runs, kind="distance")
    monkeypatch.setattr(levels, "HELD", 10**9)
    again = quiet(dasrel.cluster, D, runs, kind="distance")
    for one, other in zip(found.partitions, again.partitions, strict=True):
        assert one.result.run.setting == other.result.run.setting
        np.testing.assert_allclose(one.memberships, other.memberships, atol=1e-4)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("n", [400, 1200])
def test_of_a_range_the_best_number_and_its_neighbours_are_iterated_on_all_objects(small_samples, tmp_path, n):
    """With 1,200 objects there are two samples; the others in validity.csv say so."""
    store = stored(tmp_path / "s", blobs(n), tile=200)
    result = quiet(dasrel.cluster, store, range(2, 9), judge=True)
    refined = [p.result.run.n_clusters for p in result.partitions if p.result.objects is None]
    assert result.best.result.run.n_clusters == 4
    assert refined == [3, 4, 5]
    first, *second, everything = (level.objects for level in result.levels)
    assert (first, len(second), everything) == (60, int(n == 1200), n)
    assert result.levels[-1].runs <= 2 * 3 + 4
    dasrel.save_clustering(result, tmp_path / "out")
    with open(tmp_path / "out" / "validity.csv", newline="") as file:
        rows = [row["iterated_on"] for row in csv.DictReader(file)]
    assert rows == ["all" if c in refined else "sample" for c in range(2, 9)]
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [level["objects"] for level in written["levels"]] == [level.objects for level in result.levels]


def test_exact_iterates_every_number_on_all_objects(small_samples):
    result = quiet(dasrel.cluster, blobs(300), dasrel.grid("auto", [2, 4, 6, 8], exact=True), kind="distance")
    assert all(partition.result.objects is None for partition in result.partitions)
    assert all(ladder.objects is None for ladders in result.ladders for ladder in ladders)
