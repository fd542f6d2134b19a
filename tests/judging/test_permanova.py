"""PERMANOVA against Anderson's definition with plain sums over pairs, and against a count of all partitions."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dasrel
from dasrel import permanova, watch
from dasrel.engine.relation import relation
from dasrel.judging.groupings import given_groupings
from dasrel.judging.permanova import prepare_permanova
from dasrel.kernels import within_sums
from tests.helpers.matrices import distances, grouped_points, simpson, squared_of, uniform_points
from tests.helpers.stores import stored


def pseudo_f(D: Any, labels: Any) -> float:
    """Anderson 2001, p. 37: SS_T = sum_{i<j} d^2 / N, SS_W = sum over groups of sum_{i<j} d^2 / n, here unbalanced."""
    n, groups = len(D), np.unique(labels)
    total = sum(D[i, j] for i, j in combinations(range(n), 2)) / n
    within = 0.0
    for group in groups:
        members = np.flatnonzero(labels == group)
        within += sum(D[i, j] for i, j in combinations(members, 2)) / len(members)
    return ((total - within) / (len(groups) - 1)) / (within / (n - len(groups)))


def permuted_labels(labels: Any, seed: int, number: int) -> Any:
    """The permutation of this number, as the documentation of seeds has it: independent of all others."""
    shuffled = np.unique(labels, return_inverse=True)[1].astype(np.uint16)
    np.random.default_rng((seed, number)).shuffle(shuffled)
    return shuffled


@pytest.mark.parametrize("kind", ["distance", "squared-distance", "similarity"])
@pytest.mark.parametrize("compiled", [True, False])
def test_every_permutation_has_the_pseudo_f_of_the_definition(
    kind: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled and within_sums._native() is None:
        pytest.skip("the library was not compiled here")
    if not compiled:
        monkeypatch.setattr(within_sums, "_native", lambda: None)
    S = simpson(70) if kind == "similarity" else distances(grouped_points(70, apart=1.0))
    matrix = stored(tmp_path / "s.zarr", S, kind, dtype="float64", tile=32)
    labels = np.array(["north", "south", "east"])[np.random.default_rng(1).integers(0, 3, 70)]
    with watch() as meter:
        found = permanova(matrix, labels, permutations=20, random_state=7)
    assert found.scans == meter.scans == 1
    D = squared_of(S, kind)
    assert found.pseudo_f == pytest.approx(pseudo_f(D, labels), rel=1e-10)
    expected = [pseudo_f(D, permuted_labels(labels, 7, k)) for k in range(1, 21)]
    np.testing.assert_allclose(found.permuted, expected, rtol=1e-10)
    assert found.p_value == (1 + sum(found.pseudo_f <= F for F in expected)) / 21
    n, sizes = 70, np.unique(labels, return_counts=True)[1]
    assert found.sizes == tuple(sizes)
    within = 1 - found.r_squared
    assert found.pseudo_f == pytest.approx((found.r_squared / 2) / (within / (n - 3)), rel=1e-10)


@pytest.mark.slow
def test_groups_that_differ_and_groups_that_do_not() -> None:
    D, rng = distances(grouped_points(120)), np.random.default_rng(0)
    real = permanova(D, np.arange(120) % 3, kind="distance")
    assert (real.p_value, real.permutations) == (1 / 1000, 999)
    found = [permanova(D, rng.integers(0, 3, 120), kind="distance", permutations=199).p_value for _ in range(60)]
    assert 0.3 < np.mean(found) < 0.7  # uniform: the mean of 60 has a standard deviation of 0.04
    assert np.mean(np.array(found) < 0.1) < 0.3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_permutations_with_the_same_groups_count_as_equal(dtype: str, tmp_path: Path) -> None:
    """Of the 10 ways to divide six objects into two groups of three, one is as good as the given one: itself."""
    points = np.array([0.1, 0.23, 0.35, 10.7, 10.9, 11.01])
    matrix = stored(tmp_path / "s.zarr", distances(points[:, None]), dtype=dtype)
    labels = np.array([0, 0, 0, 1, 1, 1])
    found = permanova(matrix, labels, permutations=400)
    same = 0
    for number in range(1, 401):
        permuted = permuted_labels(labels, 0, number)
        same += len(set(permuted[:3])) == 1 and len(set(permuted[3:])) == 1
    assert 20 < same < 70  # a tenth
    assert found.p_value == (1 + same) / 401


@pytest.mark.slow
def test_float32_tiles_in_many_panels(tmp_path: Path) -> None:
    X = uniform_points(700, 6, 3)
    matrix = stored(tmp_path / "s.zarr", distances(X), dtype="float32", tile=300)
    labels = np.random.default_rng(0).integers(0, 5, 700)
    found = permanova(matrix, labels, permutations=3)
    D = distances(X, "sqeuclidean")
    assert found.pseudo_f == pytest.approx(pseudo_f(D, labels), rel=1e-4)
    wide = permanova(distances(X), labels, kind="distance", permutations=3)
    np.testing.assert_allclose(found.permuted, wide.permuted, rtol=1e-4)


def test_memory_divides_permutations_into_scans_with_the_same_bits(tmp_path: Path) -> None:
    matrix = stored(tmp_path / "s.zarr", distances(uniform_points(600)), tile=100)
    labels = np.arange(600) % 4
    whole = permanova(matrix, labels, permutations=999)
    with watch() as meter:
        parts = permanova(matrix, labels, permutations=999, memory="1500kB")
    assert parts.scans == meter.scans > 1
    np.testing.assert_array_equal(parts.permuted, whole.permuted)
    job = prepare_permanova(relation(matrix), given_groupings(labels, matrix.ids, 1.0), 999, memory="1500kB")
    assert (job.scans, job.needed <= 1_500_000) == (parts.scans, True)
    with pytest.raises(dasrel.MemoryLimitError, match="raise memory"):
        permanova(matrix, labels, memory="100kB")


def test_on_workers_the_bits_are_the_same(client: Any, store: str) -> None:
    labels = np.arange(300) % 4
    there = permanova(store, labels, permutations=99)
    from dasrel.util import parallel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "active_client", lambda: None)
        here = permanova(store, labels, permutations=99)
    np.testing.assert_array_equal(there.permuted, here.permuted)


def test_labels_by_name_in_any_order() -> None:
    D, names = distances(grouped_points(30)), [f"o{k}" for k in range(30)]
    frame = pd.DataFrame(D, index=names, columns=names)
    labels = pd.Series(np.arange(30) % 3, index=names)
    found = permanova(frame, labels[::-1], kind="distance", permutations=9)
    assert found.pseudo_f == permanova(D, np.arange(30) % 3, kind="distance", permutations=9).pseudo_f


def test_refusals() -> None:
    D = distances(uniform_points(12))
    for labels, message in [
        (np.zeros(12), "one cluster only"),
        (np.arange(12), "as many groups as objects"),
        (np.arange(11) % 2, r"shape \(11,\)"),
        ([np.arange(12) % 2, np.arange(12) % 3], "2 partitions; give the labels of one"),
    ]:
        with pytest.raises(dasrel.InputError, match=message):
            permanova(D, labels, kind="distance")
    for given, message in [
        ({"permutations": 0}, "permutations is 0; give a whole number of at least 1"),
        ({"permutations": 9.5}, "permutations is 9.5"),
        ({"random_state": -1}, "random_state is -1"),
    ]:
        with pytest.raises(dasrel.InputError, match=message):
            permanova(D, np.arange(12) % 2, kind="distance", **given)
    same = np.zeros((6, 6))
    same[:3, 3:] = same[3:, :3] = 1.0
    found = permanova(same, [0, 0, 0, 1, 1, 1], kind="distance", permutations=9)
    assert found.pseudo_f == np.inf
    assert "pseudo-F inf" in repr(found)
    assert "p-value" in found._repr_html_()
