"""The exponential of a panel, compiled and by NumPy, against the exponential in double precision."""

import numpy as np
import pytest

from dasrel.kernels import exponential
from dasrel.kernels.products import View


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request, monkeypatch):
    if request.param == "compiled" and exponential._native() is None:
        pytest.skip("the library was not compiled here")
    if request.param == "numpy":
        monkeypatch.setattr(exponential, "_native", lambda: None)
    return exponential.exponential


def test_float32_is_within_two_units_in_the_last_place(kernel):
    units = 3 if exponential._native() is None else 2  # NumPy promises 2.52
    x = np.linspace(-87.2, 88.2, 1_000_001).astype(np.float32)[None]
    out = np.empty_like(x)
    kernel(x, 1.0, out)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(out - exact) <= units * np.spacing(exact.astype(np.float32))).all()


def test_numbers_at_the_ends(kernel):
    x = np.array([[np.nan, -np.inf, -1e30, -104, 0, -0.0, 1e4, np.inf]], dtype=np.float32)
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        kernel(x, 1.0, out)
    np.testing.assert_array_equal(out, [[np.nan, 0, 0, 0, 1, 1, np.inf, np.inf]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1, 7, 8, 9, 41])
@pytest.mark.parametrize("squared", [True, False])
def test_panels_of_any_shape_in_place_or_not(kernel, dtype, columns, squared):
    wide = np.random.default_rng(columns).random((5, columns + 6)).astype(dtype)
    x = wide[:, 3 : columns + 3]  # rows that are not adjacent
    exact = np.exp(-0.7 * x.astype(np.float64) ** (2 if squared else 1))
    out = np.full((5, columns + 2), 9, dtype=dtype)
    kernel(x, -0.7, out[:, :columns], squared=squared)
    np.testing.assert_allclose(out[:, :columns], exact, rtol=1e-6 if dtype == "float32" else 1e-14)
    assert (out[:, columns:] == 9).all()
    before = wide.copy()
    kernel(x, -0.7, x, squared=squared)
    np.testing.assert_array_equal(x, out[:, :columns])
    assert (wide[:, :3] == before[:, :3]).all()
    assert (wide[:, columns + 3 :] == before[:, columns + 3 :]).all()


@pytest.mark.parametrize("kind", ["distance", "squared-distance", "kernel"])
def test_the_gaussian_view_is_the_same_alone_and_after_other_steps(kernel, kind):
    values = np.random.default_rng(0).random((6, 6)).astype(np.float32)
    own = np.full(6, 2.0)
    given = {"row_self": own, "column_self": own} if kind == "kernel" else {"row_self": None, "column_self": None}
    D = {"distance": values.astype(float) ** 2, "squared-distance": values.astype(float), "kernel": 4.0 - 2 * values}[
        kind
    ]
    np.fill_diagonal(D, 0)
    exact = np.exp(-D / (2 * 0.3**2))
    for view in (View(kind, (("gaussian", 0.3),)), View(kind, (("power", 1.0), ("gaussian", 0.3)))):
        seen = view.apply(values, np.empty_like(values), offset=0, **given)
        np.testing.assert_allclose(seen, exact, rtol=2e-5, atol=1e-30)
        assert (np.diagonal(seen) == 1).all()


def test_squared_distances_in_kernel_space():
    """F10 (15): k_ii + k_jj - 2 k_ij with k_ii = 1."""
    D = np.random.default_rng(1).random((4, 4))
    seen = View("squared-distance", (("kernel-distance", 0.6),))
    np.testing.assert_allclose(
        seen.apply(D, np.empty_like(D), row_self=None, column_self=None), 2 - 2 * np.exp(-D / 0.72), rtol=1e-13
    )
    assert seen.at_zero == 0
