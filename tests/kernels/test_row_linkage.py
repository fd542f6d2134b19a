"""Lists of the nearest clusters, against a sort of all pairs of value and slot."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dasrel.kernels import linkage_rows as row_linkage
from dasrel.kernels.linkage_rows import KEPT, MergeLog, NearLists, RowTask, update_rows


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(row_linkage, "_native", lambda: None)
    elif row_linkage._native() is None:
        pytest.skip("the library was not compiled here")
    return str(request.param)


def expected_lists(keys: Any) -> tuple[list[list[int]], list[list[float]]]:
    """The KEPT smallest finite keys of each row, by value, then slot."""
    slots, values = [], []
    for row in keys.tolist():
        pairs = sorted((value, slot) for slot, value in enumerate(row) if value != np.inf)[:KEPT]
        pairs += [(np.inf, -1)] * (KEPT - len(pairs))
        slots.append([slot for _, slot in pairs])
        values.append([value for value, _ in pairs])
    return slots, values


def random_values(kind: str, shape: tuple[int, int], dtype: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape) if kind == "distinct" else rng.integers(3, size=shape).astype(float)
    if kind == "sparse":
        values[rng.random(shape) < 0.97] = np.inf
    return values.astype(dtype)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["distinct", "tied", "sparse"])
@pytest.mark.parametrize("wide", [1, 5, KEPT, 63, 64, 65, 1000])
def test_lists_have_the_nearest_of_all_blocks_in_any_order(kind: str, dtype: str, wide: int) -> None:
    block = random_values(kind, (9, wide), dtype, wide)
    edges = sorted({0, wide // 3, wide // 2, wide})
    parts = list(pairwise(edges))
    for order in (parts, parts[::-1]):
        lists = NearLists.empty(9)
        for start, stop in order:
            before = block.copy()
            lists.add(block[:, start:stop], start)
            np.testing.assert_array_equal(block, before)
        slots, values = expected_lists(block)
        assert lists.slots.tolist() == slots
        assert lists.values.tolist() == values


@pytest.mark.usefixtures("kernel")
def test_lists_may_lie_apart_in_memory() -> None:
    block, all_lists = random_values("distinct", (9, 100), "float32", 1), NearLists.empty(18)
    all_lists[::2].add(block, 0)
    assert all_lists.slots[::2].tolist() == expected_lists(block)[0]
    assert (all_lists.slots[1::2] == -1).all()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("method", row_linkage.METHODS)
def test_rows_without_merges_are_listed_by_values_or_by_means_of_sums(method: str) -> None:
    rng = np.random.default_rng(3)
    n = 300
    sizes = rng.integers(1, 5, size=n).astype(float)
    rows = rng.integers(1, 40, size=(4, n)).astype("float32")
    log = MergeLog.of(sizes)
    lists = update_rows(method, [RowTask(slot, rows[slot].copy(), 0) for slot in range(4)], log)
    keys = rows / (sizes[:4, None] * sizes) if method == "average" else rows.astype(float)
    slots, values = expected_lists(keys)
    assert lists.slots.tolist() == slots
    assert lists.values.tolist() == values
