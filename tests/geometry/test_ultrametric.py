"""The ultrametric's product and solve against the dense cophenetic matrix and its pseudo-inverse."""

import numpy as np
import pytest
import scipy.cluster.hierarchy as hierarchy
from hypothesis import given, settings, strategies as st
from scipy.spatial.distance import pdist, squareform

from dasrel.engine.relation import relation
from dasrel.errors import InputError
from dasrel.geometry import tree
from dasrel.geometry.tree import Tree, minimum_spanning_tree, ultrametric
from dasrel.store.array_matrix import ArrayMatrix
from tests.helpers.matrices import distances, gram, normal_points, tied


def dense(D):
    """Single linkage's cophenetic matrix of squared dissimilarities, by SciPy."""
    return squareform(hierarchy.cophenet(hierarchy.linkage(squareform(D), "single")))


def check(D, seed=0):
    n = len(D)
    found = ultrametric(minimum_spanning_tree(ArrayMatrix(D, "squared-distance", tile=-(-n // 3))))
    Delta = dense(D)
    V = np.random.default_rng(seed).normal(size=(n, 4))
    scale = max(Delta.max(), 1e-300)
    np.testing.assert_allclose(found.left(V.T).T / scale, Delta @ V / scale, atol=1e-12 * n)
    np.testing.assert_allclose(found.gram(V) / scale, gram(Delta) @ V / scale, atol=1e-12 * n)
    inverse = np.linalg.pinv(gram(Delta), rcond=1e-11, hermitian=True)
    solved = found.solve(V)
    np.testing.assert_allclose(
        solved * scale, inverse @ V * scale, rtol=1e-7, atol=1e-7 * np.abs(inverse * scale).max()
    )
    assert found.largest() == Delta.max()
    same = found.groups[:, None] == found.groups[None, :]
    np.testing.assert_array_equal(same, Delta == 0)
    return found


@pytest.mark.parametrize("n", [2, 3, 4, 50, 200])
def test_random_matrices(n):
    check(distances(normal_points(n, seed=n)) ** 2)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(n=st.integers(2, 40), values=st.sampled_from([1, 2, 3, 6, 50, 1000]), seed=st.integers(0, 99))
def test_tied_matrices_with_zeros_and_chains_of_zeros(n, values, seed):
    check(tied(n, values, seed), seed)


def test_exact_duplicates_and_equal_values():
    X = np.random.default_rng(0).normal(size=(20, 2))[np.random.default_rng(1).integers(0, 20, 50)]
    found = check(squareform(pdist(X)) ** 2)
    assert found.groups.max() + 1 == len(np.unique(X, axis=0))
    check(np.ones((6, 6)) - np.eye(6))
    check(np.zeros((4, 4)))


def test_a_chain_ten_thousand_deep_needs_no_recursion():
    """Each object joins the cluster of all before it: Delta_ij = max(i, j), known in closed form."""
    n = 10_000
    edges = np.column_stack([np.arange(n - 1), np.arange(1, n)])
    tree = Tree(edges, np.arange(1.0, n), (n - 1.0, 0, n - 1), "squared-distance")
    found = ultrametric(tree)
    v = np.random.default_rng(0).normal(size=n)
    k = np.arange(n)
    below, above = np.cumsum(v) - v, np.cumsum((k * v)[::-1])[::-1] - k * v
    np.testing.assert_allclose(found.left(v[None])[0], k * below + above, rtol=1e-9, atol=1e-9 * n * n)
    centred = v - v.mean()
    np.testing.assert_allclose(found.gram(found.solve(v)), centred, atol=1e-8)


def test_heights_over_many_orders_of_magnitude():
    """Near duplicates: the solve is checked by putting its answer back, relative to what rounding allows."""
    n = 60
    rng = np.random.default_rng(0)
    weights = np.sort(10.0 ** rng.uniform(-9, 3, n - 1))
    edges = np.array([(rng.integers(0, k), k) for k in range(1, n)])
    found = ultrametric(Tree(edges, weights, (2000.0, 0, 1), "squared-distance"))
    Delta = found.left(np.eye(n))
    b = rng.normal(size=n)
    x = found.solve(b)
    residual = gram(Delta) @ x - (b - b.mean())
    assert np.abs(residual).max() <= 1e-13 * n * np.abs(Delta).max() * np.abs(x).max()


def test_columns_in_blocks_give_the_same_bits(monkeypatch):
    found = ultrametric(minimum_spanning_tree(distances(normal_points(80)), kind="distance"))
    U = np.random.default_rng(0).normal(size=(7, 80))
    at_once = found.left(U)
    monkeypatch.setattr(tree, "_BLOCK_BYTES", 8 * 80 * 2)
    np.testing.assert_array_equal(found.left(U), at_once)


def test_kind_distance_is_squared_and_relations_take_it_as_a_term():
    d = distances(normal_points(70))
    matrix = ArrayMatrix(d, "distance", tile=30)
    term = ultrametric(minimum_spanning_tree(matrix))
    seen = relation(matrix).plus(term, 6.7)
    V = np.random.default_rng(0).normal(size=(70, 3))
    expected = d**2 + 6.7 * dense(d**2)
    np.testing.assert_allclose(seen.matmat(V), expected @ V, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(seen.rows([3, 69]), expected[[3, 69]], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(seen.diagonal(), np.zeros(70))
    assert seen.largest() >= expected.max() * (1 - 1e-12)


def test_vectors_and_wrong_shapes():
    found = ultrametric(minimum_spanning_tree(distances(normal_points(9)), kind="distance"))
    v = np.arange(9.0)
    assert found.solve(v).shape == found.gram(v).shape == (9,)
    np.testing.assert_array_equal(found.solve(v), found.solve(v[:, None])[:, 0])
    for call in (found.solve, found.gram):
        with pytest.raises(InputError, match="do not fit 9 objects"):
            call(np.zeros((8, 2)))
    with pytest.raises(InputError, match="give 9 columns"):
        found.left(np.zeros((2, 8)))
