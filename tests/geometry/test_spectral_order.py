"""Orders by leading eigenvectors: against dense eigenvectors, on groups that are known, and their refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import make_moons

import dasrel
from dasrel.errors import InputError
from dasrel.geometry.spectral_order import spectral_order, spectral_order_cost


def six_groups() -> tuple[Any, Any]:
    """Groups of unequal size in the plane, mixed up: two coordinates, so that two eigenvectors of W(D) have it all."""
    rng = np.random.default_rng(0)
    middles = np.array([[0, 0], [6, 0], [3, 5], [9, 5], [0, 10], [6, 10]])
    truth = rng.permutation(np.repeat(np.arange(6), [120, 60, 90, 150, 40, 100]))
    points = middles[truth] + rng.normal(0, 0.8, (len(truth), 2))
    return cdist(points, points), truth


def communities() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 5, 300)
    shares = rng.gamma(40 * rng.dirichlet(np.full(100, 0.3), 5)[truth] + 1e-3)
    counts = rng.poisson(3000 * shares / shares.sum(axis=1, keepdims=True))
    return cdist(counts, counts, "braycurtis"), truth


def on_a_line() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    truth = rng.permutation(np.repeat(np.arange(3), 50))
    line = (10 * truth + rng.normal(size=150))[:, None]
    return cdist(line, line), truth


def relation_of(distances: Any) -> Any:
    return dasrel.relation(distances, kind="distance")


@pytest.mark.parametrize("made", [six_groups, communities, on_a_line])
def test_groups_become_blocks(made: Any) -> None:
    distances, truth = made()
    found = spectral_order(relation_of(distances))
    assert sorted(found.order) == list(range(len(truth)))
    assert np.count_nonzero(np.diff(truth[found.order])) <= truth.max() + 2  # as many changes as groups, or nearly
    assert found.n_groups == truth.max() + 1
    assert (np.diff(found.groups[found.order]) >= 0).all()


def test_groups_of_any_shape_become_blocks() -> None:
    points, truth = make_moons(300, noise=0.05, random_state=0)
    found = spectral_order(relation_of(cdist(points, points)), width=0.15, n_vectors=2)
    assert np.count_nonzero(np.diff(truth[found.order])) == 1


def test_near_groups_are_neighbours() -> None:
    distances, truth = on_a_line()
    found = spectral_order(relation_of(distances), n_vectors=3)
    in_order = [int(truth[found.order[k]]) for k in (0, 75, 149)]
    assert in_order in ([0, 1, 2], [2, 1, 0])


def test_eigenvalues_are_those_of_the_dense_kernel() -> None:
    distances, _ = six_groups()
    found = spectral_order(relation_of(distances), width=1.5)
    kernel = np.exp(-(distances**2) / (2 * 1.5**2))
    np.fill_diagonal(kernel, 0)
    scale = 1 / np.sqrt(kernel.sum(axis=1))
    values = np.linalg.eigvalsh(kernel * np.outer(scale, scale))[::-1]
    np.testing.assert_allclose(found.eigenvalues, values[: len(found.eigenvalues)], atol=0.003)
    assert found.eigenvalues[0] == pytest.approx(1, abs=1e-6)
    gaps = values[1:12] - values[2:13]
    assert found.n_groups == gaps.argmax() + 2


def test_scans_are_counted() -> None:
    relation = relation_of(six_groups()[0])
    for width in (None, 1.5):
        cost, _ = spectral_order_cost(relation, None, width=width is not None, memory=None)
        with dasrel.watch() as meter:
            spectral_order(relation, width=width)
        assert cost.least < meter.scans <= cost.most


def test_small_and_equal_objects() -> None:
    assert spectral_order(relation_of(np.zeros((4, 4)))).order.tolist() == [0, 1, 2, 3]
    two = spectral_order(relation_of(np.array([[0.0, 1.0], [1.0, 0.0]])))
    assert (two.order.tolist(), two.n_groups) == ([0, 1], 1)
    far = spectral_order(relation_of(np.abs(np.subtract.outer([0.0, 5.0, 9.0], [0.0, 5.0, 9.0]))))
    assert sorted(far.order) == [0, 1, 2]
    with pytest.raises(InputError, match="5 eigenvectors of 4 objects; give 1 to 4"):
        spectral_order(relation_of(np.zeros((4, 4))), n_vectors=5)
