"""Clusters joined by segments: all pairs of the paper's procedure from features, and Stewart's distances."""

import numpy as np
import pytest

import dasrel
from dasrel.engine.scan import scan
from dasrel.errors import InputError
from dasrel.geometry.tree import forest_consumer
from dasrel.oneclass import segments
from dasrel.oneclass.fit import one_class
from dasrel.oneclass.run import OneClassRun
from dasrel.oneclass.segments import segment_clusters
from dasrel.util import progress
from tests.helpers import oneclass_oracle as oracle
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.stores import stored


@pytest.fixture(scope="module")
def points():
    """Two crescents and some noise, 70 points."""
    rng = np.random.default_rng(5)
    angle = rng.uniform(0, np.pi, 60)
    side = np.arange(60) % 2
    crescents = np.column_stack([np.cos(angle) + side, np.sin(angle) * (1 - 2 * side) + 0.4 * side])
    return np.concatenate([2 * crescents + rng.normal(0, 0.1, (60, 2)), rng.uniform(-3, 5, (10, 2))])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("sigma", [0.2, 0.35, 0.6, 2.0])
def test_labels_are_those_of_the_paper(points, tmp_path, sigma):
    D = distances(points, "sqeuclidean")
    matrix = stored(tmp_path / "d.zarr", np.sqrt(D), "distance", dtype="float64", tile=16)
    result = one_class(matrix, OneClassRun(sigma, tol=1e-10))
    found, cut = result.best, result.best.outliers(0.15)
    _, eta, _, before = oracle.core(oracle.gaussian_kernel(D, sigma), 1.0, 1e-10, per_object=True)
    expected = oracle.labels_by_segments(points, sigma, before, eta, cut.alpha, ~cut.rejected)
    for features in (None, points):
        made = segment_clusters(result.relation, found, cut, features=features)
        np.testing.assert_array_equal(made.labels, expected)
        assert made.complete
        assert made.is_euclidean is (True if features is None else None)
        np.testing.assert_array_equal(made.sizes, np.bincount(expected[expected >= 0]))
        assert made.tested["tree"] == (~cut.rejected).sum() - 1


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["distance", "squared-distance", "kernel"])
def test_float32_of_every_kind_gives_the_same_clusters(points, tmp_path, kind):
    values = {"distance": distances(points), "squared-distance": distances(points, "sqeuclidean"),
              "kernel": points @ points.T}[kind]  # fmt: skip
    matrix = stored(tmp_path / "m.zarr", values, kind, dtype="float32", tile=32)
    result = one_class(matrix, OneClassRun(0.35, tol=1e-10))
    made = segment_clusters(result.relation, result.best, result.best.outliers(0.15))
    D = distances(points, "sqeuclidean")
    exact = one_class(D, OneClassRun(0.35, tol=1e-10), kind="squared-distance").best
    _, eta, _, before = oracle.core(oracle.gaussian_kernel(D, 0.35), 1.0, 1e-10, per_object=True)
    cut = exact.outliers(0.15)
    np.testing.assert_array_equal(
        made.labels, oracle.labels_by_segments(points, 0.35, before, eta, cut.alpha, ~cut.rejected)
    )


@pytest.mark.slow
def test_views_change_nothing(points):
    D = distances(points, "sqeuclidean")
    root = D**0.9 + 0.05 * (1 - np.eye(len(D)))  # a power below 1 of a Euclidean D, with a spread, is Euclidean
    seen = dasrel.relation(D, kind="squared-distance").power(0.9).spread(0.05)
    plain = one_class(root, OneClassRun(0.2), kind="squared-distance")
    other = one_class(seen, OneClassRun(0.2))
    first = segment_clusters(plain.relation, plain.best, plain.best.outliers(0.1))
    second = segment_clusters(other.relation, other.best, other.best.outliers(0.1))
    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.n_clusters > 1


def test_what_was_not_tested_is_said(points, monkeypatch):
    result = one_class(distances(points), OneClassRun(0.2), kind="distance")
    cut = result.best.outliers(0.15)
    whole = segment_clusters(result.relation, result.best, cut)
    monkeypatch.setattr(segments, "MOST", 0)
    part = segment_clusters(result.relation, result.best, cut)
    assert (whole.complete, part.complete) == (True, False)
    assert "all" in whole.tested
    assert set(part.tested) == {"tree", "neighbours"}
    assert part.n_clusters >= whole.n_clusters


def test_scans_are_counted(points, monkeypatch):
    result = one_class(distances(points), OneClassRun(0.2), kind="distance")
    with progress.watch() as counted:
        made = segment_clusters(result.relation, result.best, result.best.outliers(0.15), check=False)
    assert counted.scans == 2  # the spanning tree, and the neighbours
    assert made.is_euclidean is None


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["distance", "kernel"])
@pytest.mark.parametrize("some", [0, 1, 2, 30])
def test_the_spanning_tree_of_some_objects(tmp_path, kind, some):
    X = uniform_points(50, 3, 1)
    values = distances(X) if kind == "distance" else X @ X.T
    matrix = stored(tmp_path / "m.zarr", values, kind, dtype="float64", tile=12)
    kept = np.zeros(50, dtype=bool)
    kept[np.random.default_rng(some).permutation(50)[:some]] = True
    forest = scan(matrix, [forest_consumer(matrix, kept)])[0]
    if some < 2:
        assert forest is None
        return
    names = np.flatnonzero(kept)
    part = dasrel.minimum_spanning_tree(values[np.ix_(names, names)], kind=kind)
    np.testing.assert_array_equal(np.column_stack([forest.i, forest.j]), names[part.edges])
    np.testing.assert_array_equal(forest.weights, part.weights)


def test_clusters_need_a_width(points):
    result = one_class(points @ points.T, kind="kernel")
    with pytest.raises(InputError, match="need a width: without one the cut is a ball"):
        segment_clusters(result.relation, result.best, result.best.outliers(0.1))
