"""Sums of tiles by labels, compiled and by BLAS, against plain sums of rows and columns."""

from itertools import pairwise

import numpy as np
import pytest

from dasrel.kernels import label_sums


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 700), (300, 65), (257, 128), (513, 31)])
def test_sums_by_label_are_the_sums_of_the_rows_and_columns_with_it(monkeypatch, rows, columns, dtype, compiled):
    if compiled and label_sums._native() is None:
        pytest.skip("the library was not compiled here")
    if not compiled:
        monkeypatch.setattr(label_sums, "_native", lambda: None)
    rng = np.random.default_rng(rows)
    wide = rng.random((rows, columns + 5)).astype(dtype)
    panel = wide[:, 2 : columns + 2]  # rows that are not adjacent
    first = [0, 2, 3, 403]  # a partition of two clusters, of one, and of more clusters than objects
    row_labels = np.array([rng.integers(a, b, rows) for a, b in pairwise(first)], dtype=np.int32)
    column_labels = np.array([rng.integers(a, b, columns) for a, b in pairwise(first)], np.int32)
    down, across = np.ones((403, rows)), np.ones((403, columns))
    label_sums.add_label_sums(panel, row_labels, column_labels, first, down, across)
    only_down = np.ones((403, rows))
    label_sums.add_label_sums(panel, row_labels, column_labels, first, only_down, None)

    exact = panel.astype(np.float64)
    rtol = 1e-13 if dtype == "float64" else 1e-5
    for p in range(3):
        for k in range(first[p], first[p + 1]):
            np.testing.assert_allclose(down[k], 1 + exact[:, column_labels[p] == k].sum(axis=1), rtol=rtol)
            np.testing.assert_allclose(across[k], 1 + exact[row_labels[p] == k].sum(axis=0), rtol=rtol)
    np.testing.assert_array_equal(only_down, down)
