"""Inner products of kernels with proximity matrices, compiled and by NumPy, against plain sums over pairs."""

from itertools import pairwise

import numpy as np
import pytest

from dasrel.kernels import proximity
from dasrel.kernels.proximity import Gaussians, InnerProducts, add_inner_products, proximity_sums


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request, monkeypatch):
    if request.param == "compiled" and proximity._native() is None:
        pytest.skip("the library was not compiled here")
    if request.param == "numpy":
        monkeypatch.setattr(proximity, "_native", lambda: None)


def min_sum(U, V):
    """P of Q09 (3), pair by pair."""
    return np.array([[sum(min(a, b) for a, b in zip(u, v, strict=True)) for v in V.T] for u in U.T])


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("widths", [1, 2, 5])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 65), (9, 64), (4, 130), (262, 7)])
def test_sums_are_those_over_all_pairs(rows, columns, widths, dtype):
    rng = np.random.default_rng(rows * widths)
    K = rng.random((widths, rows, columns + 4)).astype(dtype)[:, :, 1 : columns + 1]  # rows that are not adjacent
    first = [0, 2, 3, 3 + 5, 8 + 2, 10 + 3]
    U = rng.random((first[-1], rows + 2)).astype(dtype)[:, 1 : rows + 1]
    V = rng.random((first[-1], columns)).astype(dtype)
    found = InnerProducts.zeros(widths, len(first) - 1)
    down, across = np.ones((widths, rows + 3)), np.ones((widths, columns))
    add_inner_products(K, U, V, first, found, down[:, 2 : rows + 2], across)
    again, only_down = InnerProducts.zeros(widths, len(first) - 1), np.ones((widths, rows))
    add_inner_products(K, U, V, first, again, only_down, None)

    exact, rtol = K.astype(np.float64), 1e-13 if dtype == "float64" else 2e-6
    for p, (begin, end) in enumerate(pairwise(first)):
        P = min_sum(U[begin:end].astype(np.float64), V[begin:end].astype(np.float64))
        np.testing.assert_allclose(found.own[p], (P * P).sum(), rtol=rtol)
        np.testing.assert_allclose(found.products[:, p], (exact * P).sum(axis=(1, 2)), rtol=rtol)
    np.testing.assert_allclose(found.squares, (exact * exact).sum(axis=(1, 2)), rtol=rtol)
    np.testing.assert_allclose(down[:, 2 : rows + 2], 1 + exact.sum(axis=2), rtol=rtol)
    np.testing.assert_allclose(across, 1 + exact.sum(axis=1), rtol=rtol)
    assert (down[:, :2] == 1).all()
    assert (down[:, rows + 2 :] == 1).all()
    np.testing.assert_array_equal(again.products, found.products)
    np.testing.assert_array_equal(only_down, down[:, 2 : rows + 2])


@pytest.mark.usefixtures("kernel")
def test_sums_are_added_to_what_is_there():
    rng = np.random.default_rng(0)
    K, U = rng.random((2, 5, 70)), rng.random((3, 70))
    once, twice = InnerProducts.zeros(2, 1), InnerProducts.zeros(2, 1)
    add_inner_products(K, U[:, :5], U, [0, 3], once, np.zeros((2, 5)), None)
    for _ in range(2):
        add_inner_products(K, U[:, :5], U, [0, 3], twice, np.zeros((2, 5)), None)
    for a, b in zip(once.arrays, twice.arrays, strict=True):
        np.testing.assert_array_equal(2 * a, b)
    once.add(twice, 0.5)
    np.testing.assert_array_equal(once.products, twice.products)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(5, 66), (8, 128)])
def test_gaussian_kernels_are_made_of_the_panel(rows, columns, squared, dtype):
    rng = np.random.default_rng(3)
    x, widths = rng.random((rows, columns)).astype(dtype), (0.2, 0.7, 3.0)
    U, V = (rng.random((4, k)).astype(dtype) for k in (rows, columns))
    found, down, across = InnerProducts.zeros(3, 2), np.zeros((3, rows)), np.zeros((3, columns))
    add_inner_products(x[None], U, V, [0, 1, 4], found, down, across, Gaussians(widths, squared))
    D = x.astype(np.float64) ** (2 if squared else 1)
    K = np.array([np.exp(-D / (2 * w**2)) for w in widths])
    rtol = 1e-13 if dtype == "float64" else 2e-6
    for p, span in enumerate((slice(0, 1), slice(1, 4))):
        P = min_sum(U[span].astype(np.float64), V[span].astype(np.float64))
        np.testing.assert_allclose(found.products[:, p], (K * P).sum(axis=(1, 2)), rtol=rtol)
    np.testing.assert_allclose(found.squares, (K * K).sum(axis=(1, 2)), rtol=rtol)
    np.testing.assert_allclose(down, K.sum(axis=2), rtol=rtol)
    np.testing.assert_allclose(across, K.sum(axis=1), rtol=rtol)


def test_row_sums_of_a_proximity_matrix_need_no_matrix():
    rng = np.random.default_rng(1)
    U = rng.dirichlet(np.ones(4), 60).T
    U[:, 10:20] = U[:, 5:6]  # ties
    np.testing.assert_allclose(proximity_sums(U), min_sum(U, U).sum(axis=1), rtol=1e-13)
