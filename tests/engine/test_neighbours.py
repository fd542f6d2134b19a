"""Nearest neighbours by one scan, against a sort of the complete matrix."""

import numpy as np
import pytest

import dasrel
from dasrel.engine.neighbours import nearest_neighbours
from dasrel.engine.relation import relation
from dasrel.kernels import nearest
from dasrel.util import progress
from tests.helpers.matrices import distances, gram, squared_of, uniform_points
from tests.helpers.stores import stored


def expected(D, k, kept=None):
    D = D.copy()
    np.fill_diagonal(D, np.inf)
    if kept is not None:
        D[~kept], D[:, ~kept] = np.inf, np.inf
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(D, order, axis=1)
    return values, np.where(np.isinf(values), -1, order)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("tile", [16, 70])
@pytest.mark.parametrize("some", [False, True])
def test_neighbours_of_stores(tmp_path, k, tile, some):
    d = distances(uniform_points(70, 3, 2))
    matrix = stored(tmp_path / "d.zarr", d, dtype="float64", tile=tile)
    kept = np.random.default_rng(3).random(70) < 0.6 if some else None
    with progress.watch() as count:
        found = nearest_neighbours(relation(matrix), k, kept=kept)
    values, positions = expected(d**2, k, kept)
    np.testing.assert_allclose(found.squared, values, rtol=1e-14)
    np.testing.assert_array_equal(found.positions, positions)
    assert count.scans == 1


def test_more_neighbours_than_objects_and_ties(tmp_path):
    d = np.ones((5, 5)) - np.eye(5)
    found = nearest_neighbours(relation(d, kind="distance"), 6)
    values, positions = expected(d, 6)
    np.testing.assert_array_equal(found.squared[:, :4], values[:, :4])
    np.testing.assert_array_equal(found.positions[:, :4], positions[:, :4])
    assert (found.positions[:, 4:] == -1).all()
    assert np.isinf(found.squared[:, 4:]).all()


def test_similarities_and_spreads(tmp_path):
    X = uniform_points(40, 3, 5)
    S = X @ X.T
    D = squared_of(S, "kernel") + 0.3 * (1 - np.eye(40))
    found = nearest_neighbours(dasrel.relation(S, kind="kernel").spread(0.3), 2)
    values, positions = expected(D, 2)
    np.testing.assert_allclose(found.squared, values, rtol=1e-12)
    np.testing.assert_array_equal(found.positions, positions)


def test_stored_values_are_not_squared(tmp_path):
    d = distances(uniform_points(60, 3, 7)).astype(np.float32)
    matrix = stored(tmp_path / "d.zarr", d, dtype="float32", tile=25)
    found = nearest_neighbours(matrix, 5)
    values, positions = expected(d.astype(float), 5)
    np.testing.assert_array_equal(found.distances, values)
    np.testing.assert_array_equal(found.positions, positions)
    squares = nearest_neighbours(stored(tmp_path / "s.zarr", d**2, kind="squared-distance", dtype="float32"), 5)
    np.testing.assert_array_equal(squares.distances, np.sqrt(expected((d**2).astype(float), 5)[0]))
    S = gram(d.astype(float) ** 2)
    seen = nearest_neighbours(stored(tmp_path / "k.zarr", S, kind="kernel", dtype="float64", tile=25), 5)
    np.testing.assert_allclose(seen.distances, values, rtol=1e-6)
    np.testing.assert_array_equal(seen.positions, positions)


def test_equally_near_objects_come_by_position(tmp_path, monkeypatch):
    d = np.random.default_rng(4).integers(1, 4, (90, 90)).astype(float)
    d = np.triu(d, 1) + np.triu(d, 1).T
    values, positions = expected(d, 7)
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(nearest, "_native", lambda: None)
        for tile in (7, 32, 90):
            matrix = stored(tmp_path / f"{tile}{compiled}.zarr", d, dtype="float32", tile=tile)
            found = nearest_neighbours(matrix, 7)
            np.testing.assert_array_equal(found.values, values)
            np.testing.assert_array_equal(found.positions, positions)
