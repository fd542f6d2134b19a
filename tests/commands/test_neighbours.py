"""`dasrel neighbours` and `dasrel.neighbours`, against a sort of the matrix and scikit-learn's graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from scipy.sparse import load_npz
from sklearn.neighbors import NearestNeighbors, radius_neighbors_graph

import dasrel
from dasrel.cli import app
from dasrel.io import neighbour_graph
from dasrel.util import progress
from tests.helpers.matrices import distances, gram, grouped_points
from tests.helpers.stores import stored

N = 90
IDS = [f"obj {k}" for k in range(N)]
X = grouped_points(N)
D = distances(X)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    stored("d.zarr", D, ids=IDS, dtype="float64", tile=7)  # groups of four tiles
    stored("k.zarr", gram(D**2), kind="kernel", dtype="float64", tile=25)
    return tmp_path


def run(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    with progress.watch() as count:
        assert app.run([*line.split(), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (count.scans, result["scans"]) == (1, 1)
    return result


def test_files_of_the_nearest(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run("neighbours d.zarr out --k 6", capsys)
    assert result == json.loads(Path("out/result.json").read_text())
    expected = NearestNeighbors(n_neighbors=6, metric="precomputed").fit(D).kneighbors_graph(mode="distance")
    graph = load_npz("out/neighbours.npz")
    np.testing.assert_array_equal(graph.toarray(), expected.toarray())
    assert result["pairs"] == graph.nnz == 6 * N
    indices, values = np.load("out/knn_indices.npy"), np.load("out/knn_dists.npy")
    order = np.argsort(D, axis=1, kind="stable")[:, :7]  # no two objects are at distance 0
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(D, order, axis=1))
    pairs = parquet.read_table("out/pairs.parquet").to_pydict()
    assert pairs["first"][:7] == [IDS[0]] * 6 + [IDS[1]]
    assert pairs["second"][:6] == [IDS[k] for k in order[0, 1:]]
    np.testing.assert_array_equal(pairs["value"], values[:, 1:].ravel())
    assert not list(Path("out").glob("*.data"))


def test_pairs_within_a_distance(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    within = float(np.sort(D[np.triu_indices(N, 1)])[300])  # the distance of a pair: it belongs to them
    expected = radius_neighbors_graph(D, within, mode="distance", metric="precomputed").toarray()
    seen = {}
    for at_once in (2**21, 50):
        monkeypatch.setattr(neighbour_graph, "AT_ONCE", at_once)
        result = run(f"neighbours d.zarr out{at_once} --within {within!r}", capsys)
        graph = load_npz(f"out{at_once}/neighbours.npz")
        np.testing.assert_array_equal(graph.toarray(), expected)
        assert graph.has_sorted_indices
        assert (result["pairs"], result["alone"]) == (301, int((expected.sum(axis=1) == 0).sum()))
        pairs = parquet.read_table(f"out{at_once}/pairs.parquet").to_pydict()
        known = {(a, b): v for a, b, v in zip(pairs["first"], pairs["second"], pairs["value"], strict=True)}
        assert known == {(IDS[i], IDS[j]): D[i, j] for i, j in np.argwhere(np.triu(expected) > 0)}
        seen[at_once] = [file.name for file in sorted(Path(f"out{at_once}").iterdir())]
    assert seen[50] == seen[2**21] == ["neighbours.npz", "pairs.parquet", "result.json"]
    np.testing.assert_array_equal(dasrel.neighbours("d.zarr", within=within).toarray(), expected)
    assert dasrel.neighbours("d.zarr", within=0).nnz == 0


def test_similarities_have_distances(place: Path) -> None:
    nearest = dasrel.neighbours("k.zarr", k=4)
    order = np.argsort(D + np.diag(np.full(N, np.inf)), axis=1)[:, :4]
    np.testing.assert_array_equal(nearest.positions, order)
    np.testing.assert_allclose(nearest.distances, np.take_along_axis(D, order, axis=1), rtol=1e-9)
    within = float(np.median(D))
    pairs = dasrel.neighbours("k.zarr", within=within * (1 + 1e-9))
    np.testing.assert_array_equal(pairs.toarray() > 0, (within >= D) & ~np.eye(N, dtype=bool))


def test_duplicates_are_neighbours_at_distance_0() -> None:
    d = np.ones((6, 6)) - np.eye(6)
    d[1, 4] = d[4, 1] = 0
    nearest = dasrel.neighbours(d, k=2, kind="distance")
    assert nearest.positions.tolist() == [[1, 2], [4, 0], [0, 1], [0, 1], [1, 0], [0, 1]]
    pairs = dasrel.neighbours(d, within=0, kind="distance")
    assert (pairs.nnz, pairs.indices.tolist(), pairs.data.tolist()) == (2, [4, 1], [0, 0])


def test_refusals(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for options, message in (
        ("--k 90", "k is 90, and each of 90 objects has 89 others; give --k NUMBER of 1 to 89"),
        ("--k 0", "--k is 0; give a whole number of at least 1"),
        ("--k 3 --within 1", "k and within are both given"),
        ("--within -1", "--within is -1.0; give a finite number of at least 0"),
        ("--within nan", "--within is nan; give a finite number of at least 0"),
        ("--within inf", "finite"),
    ):
        assert app.run(["neighbours", "d.zarr", "out", *options.split()]) in (1, 2), options
        printed = capsys.readouterr().err
        assert message in printed, printed
        assert not Path("out").exists()
    assert app.run(["neighbours", "d.zarr", "out", "--dry-run"]) == 0
    monkeypatch.setattr(neighbour_graph, "memory_limit", lambda memory: 100_000)  # the scan itself has its own
    with pytest.raises(dasrel.MemoryLimitError, match=r"4,005 pairs within 1e\+09 take"):
        dasrel.neighbours("k.zarr", within=1e9)
