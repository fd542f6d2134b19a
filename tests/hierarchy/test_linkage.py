"""Agglomerative clustering against SciPy, and against a dense oracle of the rule for ties in exact arithmetic."""

from __future__ import annotations

import fcntl
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import squareform

import dasrel
from dasrel.geometry.dendrogram import in_merge_order
from dasrel.hierarchy import linkage as agglomerative
from dasrel.hierarchy.linkage import LinkageJob, prepare_linkage
from dasrel.hierarchy.rounds import Rounds, RowArray, RowFile, row_threads
from dasrel.kernels import linkage_rows as row_linkage
from dasrel.kernels.linkage_rows import NearLists
from dasrel.store.array_matrix import ArrayMatrix
from dasrel.util import parallel
from tests.helpers.matrices import distances, grouped_points, line_distances, mirrored, simpson, tied, uniform_points
from tests.helpers.stores import stored

METHODS = ("single", "complete", "average", "weighted", "ward")


def scipy_merges(D: Any, method: str) -> Any:
    return scipy_linkage(squareform(D, checks=False), method)


def exact_greedy(D: Any, method: str) -> tuple[list[tuple[int, int]], list[Fraction]]:
    """Merge the pair of the smallest (value, smallest member, other smallest member), one after the other.

    Values are fractions, by the definitions of the linkages: means over all pairs, the farthest pair, the mean of two
    parts, Lance and Williams's recurrence of Ward for squared dissimilarities.
    """
    n = len(D)
    value = {(i, j): Fraction(float(D[i, j])) for i in range(n) for j in range(i + 1, n)}
    size, number = dict.fromkeys(range(n), 1), {k: k for k in range(n)}
    merges, heights = [], []
    while len(size) > 1:
        height, a, b = min((v, i, j) for (i, j), v in value.items())
        merges.append((min(number[a], number[b]), max(number[a], number[b])))
        heights.append(height)
        for c in size:
            if c in (a, b):
                continue
            x, y = value[min(a, c), max(a, c)], value.pop((min(b, c), max(b, c)))
            if method == "complete":
                new = max(x, y)
            elif method == "average":
                new = (size[a] * x + size[b] * y) / (size[a] + size[b])
            elif method == "weighted":
                new = (x + y) / 2
            else:
                total = size[a] + size[b] + size[c]
                new = ((size[a] + size[c]) * x + (size[b] + size[c]) * y - size[c] * height) / total
            value[min(a, c), max(a, c)] = new
        del value[a, b]
        size[a] += size.pop(b)
        number[a] = n + len(merges) - 1
    return merges, heights


def on_file(monkeypatch: pytest.MonkeyPatch, fitting: int) -> None:
    """Let so many clusters fit into memory."""
    monkeypatch.setattr(LinkageJob, "clusters_in_memory", lambda self, kept: min(fitting, self.n_objects))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("method", METHODS)
def test_equal_to_scipy_on_200_random_matrices(method: str) -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 60))
        kind = seed % 3
        D = (
            distances(rng.random((n, 3))) if kind == 0
            else mirrored(rng.random((n, n))) if kind == 1  # far from any metric
            else distances(grouped_points(n, seed))
        )  # fmt: skip
        tile = int(rng.integers(max(1, n // 5), n + 3))
        found = dasrel.linkage(ArrayMatrix(D, "distance", tile=tile), method=method)
        expected = scipy_merges(D, method)
        np.testing.assert_array_equal(found.children, expected[:, :2], err_msg=f"seed {seed}")
        np.testing.assert_allclose(found.to_scipy(), expected, rtol=1e-9, err_msg=f"seed {seed}")


@pytest.mark.parametrize("method", METHODS)
def test_float32_stores_agree_with_scipy_on_the_stored_values(tmp_path: Path, method: str) -> None:
    D = distances(uniform_points(300, 6, 3), dtype="float32")
    matrix = stored(tmp_path / "d.zarr", D, tile=70)
    found = dasrel.linkage(matrix, method=method)
    expected = scipy_merges(D.astype(np.float64), method)
    np.testing.assert_allclose(found.heights, expected[:, 2], rtol=1e-5)
    assert found.scans == 1


@pytest.mark.parametrize("method", METHODS)
def test_bits_do_not_depend_on_tiles_threads_memory_or_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    import dask

    D = distances(uniform_points(400, 5, 1), dtype="float32")
    first = dasrel.linkage(ArrayMatrix(D, "distance", tile=400), method=method)
    others = []
    for tile, threads, fitting in ((37, 1, 400), (128, 3, 150), (400, 2, 399), (90, 2, 1)):
        with monkeypatch.context() as patch, dask.config.set(num_workers=threads):
            on_file(patch, fitting)
            patch.setattr(agglomerative, "KEPT_IN_MEMORY", 1)
            job = prepare_linkage(ArrayMatrix(D, "distance", tile=tile), method, scratch=tmp_path)
            others.append(job.run())
    for other in others:
        np.testing.assert_array_equal(other.children, first.children)
        np.testing.assert_array_equal(other.heights, first.heights)
    assert list(tmp_path.iterdir()) == []
    if method != "single":
        assert others[1].bytes_written > others[0].bytes_written == 0
        assert others[1].rounds == first.rounds


@pytest.mark.parametrize("method", METHODS)
def test_kernels_in_c_and_numpy_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    if row_linkage._native() is None:
        pytest.skip("the library was not compiled here")
    for dtype in ("float32", "float64"):
        D = distances(grouped_points(150), dtype=dtype)
        compiled = dasrel.linkage(D, kind="distance", method=method)
        with monkeypatch.context() as patch:
            patch.setattr(row_linkage, "_native", lambda: None)
            plain = dasrel.linkage(D, kind="distance", method=method)
        np.testing.assert_array_equal(compiled.children, plain.children)
        np.testing.assert_array_equal(compiled.heights, plain.heights)


@pytest.mark.parametrize("method", ["complete", "average", "weighted"])
@pytest.mark.parametrize("values", [2, 3, 6])
def test_ties_follow_the_stated_rule(monkeypatch: pytest.MonkeyPatch, method: str, values: int) -> None:
    for seed in range(15):
        D = tied(26, values, seed)
        merges, heights = exact_greedy(D, method)
        with monkeypatch.context() as patch:
            on_file(patch, 26 if seed % 2 else 9)
            found = dasrel.linkage(ArrayMatrix(D, "distance", tile=7 + seed), method=method)
        assert [tuple(pair) for pair in found.children.tolist()] == merges, f"seed {seed}"
        np.testing.assert_allclose(found.heights, [float(h) for h in heights], rtol=1e-12)


@pytest.mark.parametrize("method", ["complete", "average", "weighted", "ward"])
@pytest.mark.parametrize("n", [2, 3, 4, 17])
def test_all_values_equal(method: str, n: int) -> None:
    D = np.ones((n, n)) - np.eye(n)
    merges, heights = exact_greedy(D, method)
    found = dasrel.linkage(D, kind="distance", method=method)
    assert [tuple(pair) for pair in found.children.tolist()] == merges
    assert found.heights.tolist() == [float(h) for h in heights] == [1.0] * (n - 1)


@pytest.mark.parametrize("method", METHODS)
def test_duplicates_come_first_and_at_height_zero(method: str) -> None:
    points = np.repeat(uniform_points(12, 3, 4), 3, axis=0)
    found = dasrel.linkage(distances(points), kind="distance", method=method)
    assert (found.heights[:24] == 0).all()
    assert found.heights[24] > 0
    np.testing.assert_array_equal(found.cut(12), np.repeat(np.arange(12), 3))
    expected = scipy_merges(distances(points), method)
    np.testing.assert_allclose(found.heights, expected[:, 2], rtol=1e-9, atol=1e-12)


def test_one_object_is_refused_and_two_are_merged() -> None:
    with pytest.raises(dasrel.InputError, match=r"a single object \(n = 1\), which has no pairs; give at least 2"):
        dasrel.linkage(np.zeros((1, 1)), kind="distance")
    two = dasrel.linkage(np.array([[0.0, 3.0], [3.0, 0.0]]), kind="distance", method="ward")
    assert two.to_scipy().tolist() == [[0.0, 1.0, 3.0, 2.0]]


def rounds_of(D: Any, method: str, *, until: int = 1, bound: float | None = None) -> Rounds:
    """Rounds on rows in memory until so many clusters are left; `bound`: of all values but the nearest, if given."""
    rows, near = D.copy(), NearLists.empty(len(D))
    np.fill_diagonal(rows, np.inf)
    near.add(rows, 0)
    if bound is not None:
        near.slots[:, 1:], near.values[:, 1:] = -1, bound
    rounds = Rounds(method, RowArray(rows), near)
    with row_threads() as pool:
        rounds.run(until, pool)
    return rounds


@pytest.mark.parametrize("method", METHODS)
def test_a_union_that_stays_the_nearest_needs_no_search(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """In 16 triples, far apart, two objects are merged, and the third finds its value to the union in its row."""
    points = np.concatenate([100.0 * k + np.array([0.0, 1.0, 2.5]) for k in range(16)])
    D = np.abs(points[:, None] - points)
    searched: list[int] = []

    def counting(method: str, tasks: Any, log: Any, real: Any = row_linkage.update_rows) -> Any:
        searched.extend(task.slot for task in tasks if task.other is None)
        return real(method, tasks, log)

    monkeypatch.setattr("dasrel.hierarchy.rounds.update_rows", counting)
    for bound in (None, 0.0):  # 0: that all others are farther than the nearest is not known
        rounds = rounds_of(D**2 if method == "ward" else D, method, until=16, bound=bound)
        assert rounds.clusters == 16
        thirds = set(searched) & set(range(2, 48, 3))
        assert thirds == (set() if bound is None else set(range(2, 48, 3)))


@pytest.mark.parametrize("method", ["complete", "average", "ward"])
def test_states_are_resumed(tmp_path: Path, method: str) -> None:
    D = distances(grouped_points(60)) ** (2 if method == "ward" else 1)
    expected = rounds_of(D, method).made
    rows, near = D.copy(), NearLists.empty(60)
    np.fill_diagonal(rows, np.inf)
    near.add(rows, 0)
    rows.tofile(tmp_path / "rows")
    with open(tmp_path / "rows", "r+b") as file, row_threads() as pool:

        def row_file() -> RowFile:
            return RowFile(tmp_path / "rows", file.fileno(), 60, D.dtype, np.arange(60), 60)

        rounds = Rounds(method, row_file(), near)
        rounds.run(25, pool)
        resumed = Rounds.restored(method, row_file(), rounds.state())
        resumed.run(1, pool)
    found, heights = np.sort(resumed.made.heights), np.sort(expected.heights)
    np.testing.assert_allclose(found, heights, rtol=0)


def test_neighbours_that_go_round_in_a_circle_are_searched_again() -> None:
    """As after sums whose rounding made a union nearer than its parts: no pair is reciprocal, no chain has an end."""
    D = distances(uniform_points(7, 2, 5))
    rows, near = D.copy(), NearLists.empty(7)
    np.fill_diagonal(rows, np.inf)
    near.slots[:, 0], near.values[:, [0, -1]] = (np.arange(7) + 1) % 7, 0.1
    rounds = Rounds("average", RowArray(rows), near)
    with row_threads() as pool:
        rounds.run(1, pool)
    np.testing.assert_allclose(np.sort(rounds.made.heights), scipy_merges(D, "average")[:, 2])


@pytest.mark.parametrize("method", ["complete", "average", "weighted", "ward"])
def test_rows_read_are_bounded_on_chains_and_hubs(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Where few pairs are reciprocal there are many rounds, but each of them reads few rows."""
    n = 400
    gaps = np.cumsum(1.0 + 1e-3 * np.arange(n))  # each object's nearest neighbour is the one before
    chain = np.abs(gaps[:, None] - gaps)
    hub = mirrored(10.0 + np.random.default_rng(0).random((n, n)))
    hub[0, 1:] = hub[1:, 0] = 1.0 + 0.01 * np.arange(1, n)  # everybody's nearest neighbour is object 0
    for D in (chain, hub):
        read = 0

        def counting(method: str, tasks: Any, log: Any, real: Any = row_linkage.update_rows) -> Any:
            nonlocal read
            read += sum(1 if task.other is None else 2 for task in tasks)
            return real(method, tasks, log)

        monkeypatch.setattr("dasrel.hierarchy.rounds.update_rows", counting)
        rounds = rounds_of(D**2 if method == "ward" else D, method)
        assert rounds.rounds <= 3 * n
        assert read <= (2 + 3) * n + 17 * rounds.rounds + n  # merges, searches, and rows that are moved together
        _, heights = in_merge_order(rounds.made.children, rounds.made.members, rounds.made.heights)
        expected = scipy_merges(D, method)[:, 2]
        np.testing.assert_allclose(np.sqrt(heights) if method == "ward" else heights, expected, rtol=1e-9)


def test_kinds_have_their_own_units(tmp_path: Path) -> None:
    D = distances(uniform_points(40, 3, 2))
    plain = dasrel.linkage(D, kind="distance", method="complete")
    squares = dasrel.linkage(D**2, kind="squared-distance", method="complete")
    assert (plain.units, squares.units) == ("distance", "squared dissimilarity")
    np.testing.assert_array_equal(plain.children, squares.children)
    np.testing.assert_allclose(plain.heights**2, squares.heights)
    by_ward = [
        dasrel.linkage(D, kind="distance", method="ward"),
        dasrel.linkage(D**2, kind="squared-distance", method="ward"),
    ]
    assert [one.units for one in by_ward] == ["distance", "distance"]
    np.testing.assert_allclose(by_ward[0].heights, by_ward[1].heights)
    S = simpson(40)
    own = np.diagonal(S)
    seen = dasrel.linkage(S, kind="similarity", method="average")
    expected = scipy_merges(own[:, None] + own - 2 * S, "average")
    np.testing.assert_allclose(seen.heights, expected[:, 2], atol=1e-12)


@pytest.mark.parametrize("method", ["single", "complete", "average", "weighted"])
def test_similarities_as_they_are_merge_the_largest_first(method: str) -> None:
    S = mirrored(np.random.default_rng(3).random((50, 50))) + np.eye(50)
    found = dasrel.linkage(S, kind="similarity", method=method, as_similarity=True)
    expected = scipy_merges(mirrored(2 - S), method)
    np.testing.assert_allclose(found.heights, 2 - expected[:, 2])
    np.testing.assert_array_equal(found.children, expected[:, :2])
    assert found.is_similarity
    np.testing.assert_array_equal(found.cut(7), found.cut(height=float(found.heights[50 - 7 - 1])))


def test_l7_five_points() -> None:
    """L7, example 1: the sequence of clusterings, and the levels of both proximity dendrograms, as it prints them."""
    points = np.array([[1, 1], [2, 1], [5, 4], [6, 5], [6.5, 6]])
    by_distance = dasrel.linkage(distances(points), kind="distance", method="single")
    np.testing.assert_allclose(by_distance.heights, [1, 1.1, 1.4, 4.2], atol=0.05)
    sequence = [[0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [0, 0, 1, 2, 2], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]
    assert [by_distance.cut(k).tolist() for k in (5, 4, 3, 2, 1)] == sequence
    printed = np.array(
        [[1, 0.75, 0.26, 0.21, 0.18], [0.75, 1, 0.44, 0.35, 0.20], [0.26, 0.44, 1, 0.96, 0.90],
         [0.21, 0.35, 0.96, 1, 0.98], [0.18, 0.20, 0.90, 0.98, 1]]
    )  # fmt: skip
    by_tanimoto = dasrel.linkage(printed, kind="similarity", method="single", as_similarity=True)
    assert by_tanimoto.heights.tolist() == [0.98, 0.96, 0.75, 0.44]
    sequence = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 3], [0, 1, 2, 2, 2], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]
    assert [by_tanimoto.cut(k).tolist() for k in (5, 4, 3, 2, 1)] == sequence


def test_relations_of_euclideanize(crooked_store: Path) -> None:
    changed = dasrel.euclideanize(crooked_store, method="spread")
    dense = changed.relation.rows(range(90))
    for method in ("single", "complete", "average"):
        found = dasrel.linkage(changed.relation, method=method)
        np.testing.assert_allclose(found.heights, scipy_merges(dense, method)[:, 2], rtol=1e-9)
    found = dasrel.linkage(changed.relation, method="ward")
    np.testing.assert_allclose(found.heights, scipy_merges(np.sqrt(dense), "ward")[:, 2], rtol=1e-9)
    delta = dasrel.euclideanize(crooked_store, method="ultrametric").relation
    found = dasrel.linkage(delta, method="average")
    np.testing.assert_allclose(found.heights, scipy_merges(delta.rows(range(90)), "average")[:, 2], rtol=1e-9)


def test_ward_of_indefinite_similarities_warns(tmp_path: Path) -> None:
    S = np.eye(4) + 0.1
    S[0, 1] = S[1, 0] = 3.0  # D = 1.1 + 1.1 - 6 < 0
    with pytest.warns(dasrel.DasrelWarning, match="negative squared height, down to -3.8: the dissimilarities are not"):
        found = dasrel.linkage(S, kind="similarity", method="ward")
    assert found.heights[0] == 0


def test_large_values_are_summed_in_float64() -> None:
    D = (distances(uniform_points(60, 3)) * 1e36).astype(np.float32)
    found = dasrel.linkage(D, kind="distance", method="average")
    np.testing.assert_allclose(found.heights, scipy_merges(D.astype(np.float64), "average")[:, 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "centroid"}, "centroid linkage is not reducible.*use average or ward"),
        ({"method": "median"}, "median linkage is not reducible"),
        ({"method": "averag"}, "no linkage 'averag'; use one of single, complete, average"),
        (
            {"method": "complete", "as_similarity": True},
            "the matrix is of kind distance: its values are no similarities",
        ),
        ({"method": "ward", "as_similarity": True}, "Ward's linkage needs dissimilarities"),
        ({"method": "average", "memory": 1000}, "needs .* beside the rows, and the limit is 1 kB; raise memory"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(dasrel.DasrelError, match=message) as raised:
        dasrel.linkage(line_distances(30), kind="distance", **arguments)
    assert "\n" not in str(raised.value)


def test_infinities_are_refused() -> None:
    D = line_distances(5, "float64")
    D[1, 2] = D[2, 1] = np.inf
    with pytest.raises(dasrel.InputError, match="inf"):
        dasrel.linkage(D, kind="distance")


def test_scratch_that_is_too_small_or_not_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    D = line_distances(64)
    on_file(monkeypatch, 8)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda folder: type("usage", (), {"free": 10_000}))
        for checkpoint, size in ((None, 16.4), (dasrel.Checkpoint(tmp_path / "kept"), 24.6)):
            wanted = rf"has 10 kB free, and average linkage of 64 objects needs up to {size} kB; name"
            with pytest.raises(dasrel.StoreError, match=wanted):
                dasrel.linkage(D, kind="distance", scratch=tmp_path, checkpoint=checkpoint)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(dasrel.StoreError, match=r"scratch folder .* cannot be written: .*; name another with scratch"):
        dasrel.linkage(D, kind="distance", scratch=file)


def test_a_disk_that_fills_up_is_told_and_can_be_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    D = distances(uniform_points(200, 3))
    whole = dasrel.linkage(D, kind="distance")
    on_file(monkeypatch, 20)
    real, left = os.pwrite, 260

    def short(descriptor: int, data: Any, at: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, at)

    saved = dasrel.Checkpoint(tmp_path / "saved")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", short)
        with pytest.raises(
            dasrel.StoreError, match=r"the disk is full: the scratch folder .* is kept; free some space"
        ) as raised:
            dasrel.linkage(D, kind="distance", checkpoint=saved)
    assert "\n" not in str(raised.value)
    found = dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path / "saved", resume=True))
    np.testing.assert_array_equal(found.heights, whole.heights)
    assert not list((tmp_path / "saved").glob("*.rows"))


def test_interrupted_rounds_resume_with_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    D = distances(uniform_points(300, 4, 2), dtype="float32")
    whole = dasrel.linkage(D, kind="distance", method="average")
    on_file(monkeypatch, 30)
    stops = 0
    for attempt in range(200):
        try:
            found = dasrel.linkage(
                D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, resume=attempt > 0, time_limit=0.0)
            )
            break
        except dasrel.Stopped:
            stops += 1
    assert stops > 5
    np.testing.assert_array_equal(found.children, whole.children)
    np.testing.assert_array_equal(found.heights, whole.heights)
    assert (found.scans, found.rounds) == (1, whole.rounds)
    again = dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, resume=True))
    np.testing.assert_array_equal(again.heights, whole.heights)
    assert not list(tmp_path.glob("*.rows"))
    with pytest.raises(dasrel.StoreError, match="linkage is average there and ward here"):
        dasrel.linkage(D, kind="distance", method="ward", checkpoint=dasrel.Checkpoint(tmp_path, resume=True))


def test_a_lost_scratch_file_means_to_begin_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    D = distances(uniform_points(120, 4, 2))
    on_file(monkeypatch, 10)
    with pytest.raises(dasrel.Stopped):
        dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, time_limit=0.0))
    (rows,) = tmp_path.glob("*.rows")
    rows.unlink()
    with pytest.warns(dasrel.DasrelWarning, match=r"scratch file .* is gone: from the beginning"):
        found = dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, resume=True))
    np.testing.assert_allclose(found.heights, scipy_merges(D, "average")[:, 2])


@pytest.mark.slow
def test_workers_give_the_same_bits(client: Any, tmp_path: Path) -> None:
    D = distances(uniform_points(150, 4, 2), dtype="float32")
    matrix = stored(tmp_path / "d.zarr", D, tile=40)
    with_workers = dasrel.linkage(matrix, method="ward", scratch=tmp_path / "scratch")
    assert with_workers.bytes_written > 0
    with parallel.bound_to(None):
        here = dasrel.linkage(matrix, method="ward")
    np.testing.assert_array_equal(with_workers.children, here.children)
    np.testing.assert_array_equal(with_workers.heights, here.heights)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_memory_and_bytes_of_a_plan(tmp_path: Path) -> None:
    matrix = stored(tmp_path / "d.zarr", line_distances(200), tile=50)
    inside = prepare_linkage(matrix, "average").cost()
    assert inside.facts["scratch_bytes"] == 0
    assert inside.memory >= 200 * 200 * 4
    fixed = prepare_linkage(matrix, "average")._fixed()
    outside = prepare_linkage(matrix, "average", memory=fixed + 50 * 50 * 4).cost()
    assert outside.facts["scratch_bytes"] == 300 * 200 * 4
    assert outside.memory <= fixed + 50 * 50 * 4
    assert outside.facts["written_bytes"] == (200 + 150) * 200 * 4


# ---------------------------------------------------------------------------------------------- names of scratch files


def test_a_scratch_file_follows_no_link_and_has_a_name_that_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    D, scratch, victim = line_distances(40), tmp_path / "shared", tmp_path / "victim"
    on_file(monkeypatch, 8)
    scratch.mkdir()
    victim.write_text("precious")
    (scratch / f"dasrel-average-{os.getpid()}.rows").symlink_to(victim)
    made, real = [], os.open

    def opened(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and Path(path).parent == scratch:
            made.append((Path(path).name, flags & (os.O_EXCL | os.O_NOFOLLOW), mode))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    for _ in range(2):
        dasrel.linkage(D, kind="distance", scratch=scratch)
    assert victim.read_text() == "precious"
    assert {(flags, mode) for _, flags, mode in made} == {(os.O_EXCL | os.O_NOFOLLOW, 0o600)}
    assert len({name for name, _, _ in made}) == 2
    assert len(list(scratch.iterdir())) == 1  # the link of somebody else


def test_what_is_in_the_place_of_a_scratch_file_is_not_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link, a second name of a file, a pipe: from the beginning, and they stay as they are."""
    D = distances(uniform_points(120, 4, 2))
    whole = dasrel.linkage(D, kind="distance")
    on_file(monkeypatch, 10)
    for k, put in enumerate((Path.symlink_to, Path.hardlink_to, lambda path, victim: os.mkfifo(path))):
        kept = tmp_path / str(k)
        with pytest.raises(dasrel.Stopped):
            dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(kept, time_limit=0.0))
        (rows,) = kept.glob("*.rows")
        victim = tmp_path / "victim"
        content = rows.read_bytes()
        victim.write_bytes(content)
        rows.unlink()
        put(rows, victim)  # type: ignore[operator]
        with pytest.warns(dasrel.DasrelWarning, match="is gone: from the beginning"):
            found = dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(kept, resume=True))
        np.testing.assert_array_equal(found.heights, whole.heights)
        assert victim.read_bytes() == content
        assert rows.exists() or rows.is_symlink()
        victim.unlink()
        rows.unlink()


def test_a_state_of_an_earlier_job_does_not_meet_a_newer_scratch_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Begun anew and killed before its first state: the states there are those of the first job."""
    D = distances(uniform_points(150, 4, 2))
    whole = dasrel.linkage(D, kind="distance")
    on_file(monkeypatch, 10)
    for attempt in range(4):
        with pytest.raises(dasrel.Stopped):
            dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, resume=attempt > 0, time_limit=0))
    with monkeypatch.context() as patch:
        patch.setattr("dasrel.hierarchy.linkage._filled", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, force=True))
    assert len(list(tmp_path.glob("*.rows"))) == 1  # that of the first job went with it
    with pytest.warns(dasrel.DasrelWarning, match="is gone: from the beginning"):
        found = dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, resume=True))
    np.testing.assert_array_equal(found.heights, whole.heights)
    np.testing.assert_array_equal(found.children, whole.children)
    assert not [one.name for one in tmp_path.iterdir() if "rows" in one.name or "scratch" in one.name]


def test_a_scratch_file_in_use_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    D = line_distances(60)
    on_file(monkeypatch, 10)
    with pytest.raises(dasrel.Stopped):
        dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, time_limit=0.0))
    (rows,) = tmp_path.glob("*.rows")
    with open(rows) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(dasrel.StoreError, match="is in use by another process; wait for its end"):
            dasrel.linkage(D, kind="distance", checkpoint=dasrel.Checkpoint(tmp_path, resume=True))
