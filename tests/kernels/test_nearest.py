"""Nearest neighbours of panels, compiled and by NumPy, against a sort of the complete matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dasrel.kernels import nearest
from dasrel.kernels.nearest import Lists, Objects, merge_panel, merged


def by_sorting(values: Any, names: Any, k: int) -> tuple[Any, Any]:
    order = np.lexsort((np.broadcast_to(names, values.shape), values), axis=1)[:, :k]
    found, positions = np.full((len(values), k), np.inf), np.full((len(values), k), -1)
    found[:, : order.shape[1]] = np.take_along_axis(values, order, axis=1)
    positions[:, : order.shape[1]] = names[order]
    positions[np.isinf(found)] = -1
    return found, positions


@pytest.fixture(params=["compiled", "numpy"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled" and nearest._native() is None:
        pytest.skip("the library was not compiled here")
    if request.param == "numpy":
        monkeypatch.setattr(nearest, "_native", lambda: None)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lists_are_the_first_of_a_sort_by_value_and_position(way: None, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for rows, columns, k, levels in ((1, 1, 1, 9), (5, 300, 3, 4), (130, 70, 7, 10**6), (40, 200, 60, 3), (9, 4, 6, 2)):
        wide = rng.integers(0, levels, (rows, columns + 5)).astype(dtype)
        wide[rng.random(wide.shape) < 0.1] = np.inf
        panel = wide[:, 2 : columns + 2]
        down, across = np.sort(rng.permutation(2 * rows)[:rows]), np.sort(rng.permutation(2 * columns)[:columns])
        of_rows, of_columns = Lists.empty(2 * rows, k), Lists.empty(2 * columns, k)
        for band in (slice(0, rows // 3), slice(rows // 3, rows)):  # in two panels
            on_rows, on_columns = Objects(of_rows, down[band], 100), Objects(of_columns, across, 1000)
            if rows // 3 or band.start or band.stop:
                merge_panel(panel[band], on_rows, on_columns, on_diagonal=False)
        for lists, at, values, names in (
            (of_rows, down, panel, across + 1000), (of_columns, across, panel.T, down + 100),
        ):  # fmt: skip
            expected = by_sorting(values.astype(float), names, k)
            np.testing.assert_array_equal(lists.values[at], expected[0])
            np.testing.assert_array_equal(lists.positions[at], expected[1])
            rest = np.setdiff1d(np.arange(len(lists.values)), at)
            assert (lists.positions[rest] == -1).all()


def test_on_the_diagonal_the_upper_triangle_counts(way: None) -> None:
    rng = np.random.default_rng(2)
    for n, k in ((1, 2), (30, 4), (200, 9)):
        upper = np.triu(rng.integers(0, 50, (n, n)), 1).astype(np.float32)
        lists = Lists.empty(n, k)
        panel = upper + np.tril(np.full((n, n), -1, dtype=np.float32))  # what is below would come first
        for start in range(0, n, 77):
            rows = np.arange(start, min(start + 77, n))
            merge_panel(panel[rows], Objects(lists, rows, 5), Objects(lists, np.arange(n), 5), on_diagonal=True)
        whole = (upper + upper.T).astype(float)
        np.fill_diagonal(whole, np.inf)
        values, positions = by_sorting(whole, np.arange(n) + 5, k)
        np.testing.assert_array_equal(lists.values, values)
        np.testing.assert_array_equal(lists.positions, positions)


def test_merged_lists_are_the_first_of_both(way: None) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, 20, (50, 13)).astype(float)
    names = np.arange(13)
    first = Lists(*by_sorting(values[:, :4], names[:4], 6))
    second = Lists(*by_sorting(values[:, 4:], names[4:], 6))
    expected = by_sorting(values, names, 6)
    for found in (merged(first, second), merged(second, first)):
        np.testing.assert_array_equal(found.values, expected[0])
        np.testing.assert_array_equal(found.positions, expected[1])
