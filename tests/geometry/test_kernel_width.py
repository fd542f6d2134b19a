"""The automatic width against scikit-learn's densities with one object left out, and dimensions that are known."""

import numpy as np
import pytest
from sklearn.neighbors import KernelDensity

import dasrel
from dasrel.geometry import kernel_width
from dasrel.geometry.kernel_width import WidthTrial, chosen_width, intrinsic_dimension, neighbourhood_of, predicts
from dasrel.util import progress
from tests.helpers.matrices import distances


def left_out(points, width):
    """Return the mean log density of each point by a kernel density of the others."""
    others = ~np.eye(len(points), dtype=bool)
    scores = [KernelDensity(bandwidth=width).fit(points[keep]).score_samples(points[~keep]) for keep in others]
    return float(np.mean(scores))


def test_the_criterion_is_the_likelihood_of_leave_one_out(monkeypatch):
    points = np.random.default_rng(0).normal(size=(40, 3))
    D = distances(points, "sqeuclidean")
    monkeypatch.setattr(kernel_width, "LEFT_OUT", 0.0)
    widths = [0.3, 0.6, 1.2]
    found = [predicts(np.exp(D / (-2 * width**2)).sum(axis=1) - 1, width, 3.0) for width in widths]
    expected = [left_out(points, width) for width in widths]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-9)  # up to a constant


def test_objects_of_least_density_do_not_count():
    sums = np.array([*np.full(95, 2.0), *np.full(5, 1e-9)])
    assert predicts(sums, 1.0, 4.0) == pytest.approx(np.log(2))


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_dimensions_of_a_plane_in_space(dimension):
    """Uniform points of so many dimensions, embedded in ten: the estimate is within a sixth (edges make it smaller)."""
    rng = np.random.default_rng(dimension)
    points = rng.uniform(size=(1500, dimension)) @ np.linalg.qr(rng.normal(size=(10, dimension)))[0].T
    near = neighbourhood_of(dasrel.relation(distances(points), kind="distance"))
    assert near.k == 20
    assert near.scale.dimension == pytest.approx(dimension, rel=1 / 6)


def test_dimensions_that_neighbours_do_not_tell():
    assert intrinsic_dimension(np.ones((5, 1))) is None  # one neighbour
    assert intrinsic_dimension(np.ones((5, 3))) is None  # all equally far
    assert intrinsic_dimension(np.zeros((5, 3))) is None  # copies only
    # By hand: logarithms of T_k / T_j are log 4 and log 2, and their mean log(8) / 2.
    assert intrinsic_dimension(np.array([[1.0, 2.0, 4.0]])) == pytest.approx(2 / np.log(8))


def test_the_width_has_the_largest_likelihood_among_those_with_company():
    scale = neighbourhood_of(dasrel.relation(distances(np.arange(30.0)[:, None]), kind="distance")).scale
    trials = [
        WidthTrial(0.1, 9.0, 0.0, usable=False), WidthTrial(0.5, 5.0, 1.0, usable=True),
        WidthTrial(1.0, 3.0, 2.5, usable=True), WidthTrial(2.0, 1.0, 9.0, usable=True),
    ]  # fmt: skip
    assert chosen_width(trials, scale) == 1.0
    assert chosen_width(trials[:2], scale) == 0.5  # nobody has company
    assert chosen_width(trials[:1], scale) == scale.typical


def test_distances_to_neighbours_take_one_scan():
    d = distances(np.random.default_rng(2).normal(size=(100, 2)))
    with progress.watch() as counted:
        near = neighbourhood_of(dasrel.relation(d, kind="distance"))
    assert counted.scans == 1
    np.testing.assert_allclose(near.distances, np.sort(d, axis=1)[:, 20], rtol=1e-6)  # column 0 is the object itself
