"""Sums over pairs with the same label, compiled and by BLAS, against plain sums of parts of the panel."""

import numpy as np
import pytest

from dasrel.kernels import within_sums


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 700), (300, 65), (129, 128), (513, 31)])
@pytest.mark.parametrize("clusters", [1, 4, 400])
def test_sums_over_pairs_with_the_same_label(monkeypatch, rows, columns, clusters, dtype, compiled):
    if compiled and within_sums._native() is None:
        pytest.skip("the library was not compiled here")
    if not compiled:
        monkeypatch.setattr(within_sums, "_native", lambda: None)
        monkeypatch.setattr(within_sums, "BATCH_BYTES", 2**18)  # some partitions at a time
    rng = np.random.default_rng(rows)
    panel = rng.random((rows, columns + 5)).astype(dtype)[:, 2 : columns + 2]  # rows that are not adjacent
    row_labels = rng.integers(0, clusters, (5, rows + 3)).astype(np.uint16)[:, 1 : rows + 1]
    column_labels = rng.integers(0, clusters, (5, columns)).astype(np.uint16)
    sums = np.ones((5, clusters))
    within_sums.add_within_sums(panel, row_labels, column_labels, sums)
    exact = panel.astype(np.float64)
    for p in range(5):
        for k in range(clusters):
            expected = 1 + exact[row_labels[p] == k][:, column_labels[p] == k].sum()
            assert sums[p, k] == pytest.approx(expected, rel=1e-13 if dtype == "float64" else 1e-6)
