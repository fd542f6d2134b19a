"""The medoids of clusters, against all pairs in memory."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import dasrel
from dasrel.engine.relation import relation
from dasrel.judging.medoids import Medoids, medoids
from dasrel.util import progress

N, CLUSTERS = 90, 7
rng = np.random.default_rng(5)
POINTS = rng.normal(size=(N, 3))
LABELS = rng.integers(0, CLUSTERS, N)
LABELS[LABELS == 3] = 4  # a cluster without objects
LABELS[:2], LABELS[LABELS == 6] = 5, 0
LABELS[2] = 6  # one of a single object


def expected(d: np.ndarray, labels: np.ndarray, k: int) -> tuple[int, float]:
    inside = np.flatnonzero(labels == k)
    sums = d[np.ix_(inside, inside)].sum(axis=1)
    return int(inside[sums.argmin()]), float(sums.min() / max(len(inside) - 1, 1))


def check(found: Medoids, d: np.ndarray, labels: np.ndarray) -> None:
    for k in range(CLUSTERS):
        if (labels == k).any():
            position, mean = expected(d, labels, k)
            assert found.positions[k] == position
            assert found.means[k] == pytest.approx(mean, rel=1e-5)
        else:
            assert found.positions[k] == -1
            assert np.isnan(found.means[k])


@pytest.mark.parametrize("kind", ["distance", "squared-distance", "kernel"])
def test_medoids_of_any_kind_from_one_scan(kind: str, tmp_path: Path) -> None:
    d = cdist(POINTS, POINTS)
    stored = {"distance": d, "squared-distance": d**2, "kernel": POINTS @ POINTS.T}[kind]
    matrix = dasrel.import_matrix(
        stored, tmp_path / "store", kind=kind, writing=dasrel.Writing(tile=16, dtype="float64")
    )
    other = np.random.default_rng(1).integers(0, CLUSTERS, N)
    with progress.watch() as counted:
        found = medoids(relation(matrix), [(LABELS, CLUSTERS), (other, CLUSTERS)])
    assert counted.scans == 1
    check(found[0], d, LABELS)
    check(found[1], d, other)
    with progress.watch() as counted:  # the silhouettes' scan has them
        judged = dasrel.validity(matrix, [LABELS, other], indices=["silhouette"])
    assert counted.scans == 1
    packed = np.unique(LABELS)
    np.testing.assert_array_equal(judged.medoids[0].positions, found[0].positions[packed])
    np.testing.assert_array_equal(judged.medoids[1].positions, found[1].positions)


def test_lines_follow_the_numbers_that_clusters_have_now() -> None:
    found = Medoids(np.array([4, -1, 0]), np.array([0.5, np.nan, 0.25]))
    header, rows = found.table(np.array([1, 1, 0, 0, 0]), list("abcde"))
    assert header == ["cluster", "medoid", "size", "mean_dissimilarity"]
    assert rows == [[0, "e", 3, 0.5], [1, "a", 2, 0.25], [2, None, 0, None]]


def test_medoids_of_a_dendrogram_with_more_clusters_than_are_judged(here, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dasrel.commands.tree.MOST_JUDGED", 10)
    d = cdist(POINTS, POINTS)
    np.save(tmp_path / "d.npy", d)
    monkeypatch.chdir(tmp_path)
    here("import", "d.npy", "d.zarr", "--kind", "distance", "--tile", "32")
    here("tree", "d.zarr", "out", "--linkage", "average", "--clusters", "4,30,90", "--no-picture")
    rows = list(csv.DictReader((tmp_path / "out" / "medoids.csv").read_text().splitlines()))
    labels = list(csv.DictReader((tmp_path / "out" / "labels.csv").read_text().splitlines()))
    assert [row["cut"] for row in rows] == ["label_4"] * 4 + ["label_30"] * 30 + ["label_90"] * 90
    for row in rows:
        own = np.array([int(line[row["cut"]]) for line in labels])
        position, mean = expected(d, own, int(row["cluster"]))
        assert row["medoid"] == labels[position]["id"]
        assert float(row["mean_dissimilarity"]) == pytest.approx(mean, rel=1e-5, abs=1e-12)
        assert int(row["size"]) == (own == int(row["cluster"])).sum()
