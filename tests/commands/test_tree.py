"""`dasrel tree --linkage`: its files against SciPy, cuts, indices, refusals, dry runs, resuming."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score, silhouette_score

import dasrel
from dasrel.hierarchy.linkage import LinkageJob
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.stores import stored


@pytest.fixture(scope="module")
def square() -> Any:
    return distances(grouped_points(80, groups=4, apart=9.0))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, square: Any) -> Path:
    home = tmp_path_factory.mktemp("tree")
    stored(home / "d.zarr", square, dtype="float64", tile=30, ids=[f"o{k}" for k in range(80)])
    return home


def table(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_files_agree_with_scipy(place: Path, square: Any, here: Callable[..., Any]) -> None:
    words = ("tree", "d.zarr", "a", "--linkage", "average", "--clusters", "2,4,7")
    done = here(*words, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    expected = linkage(squareform(square), "average")
    np.testing.assert_allclose(np.load(place / "a" / "linkage.npy"), expected)
    labels = table(place / "a" / "labels.csv")
    assert list(labels) == ["id", "label_2", "label_4", "label_7"]
    assert labels["id"] == [f"o{k}" for k in range(80)]
    for k in (2, 4, 7):
        assert adjusted_rand_score(labels[f"label_{k}"], fcluster(expected, k, "maxclust")) == 1
    for row, k in zip(result["cuts"], (2, 4, 7), strict=True):
        truth = fcluster(expected, k, "maxclust")
        assert row["silhouette"] == pytest.approx(silhouette_score(square, truth, metric="precomputed"))
        assert row["sizes"] == sorted(np.bincount(truth)[1:].tolist(), reverse=True)
    assert result["recommended"] == "label_4"
    assert result["largest_gap"] == 4
    assert result["scans"] == 3  # the dendrogram, the indices, the picture
    assert dasrel.Dendrogram.load(place / "a" / "dendrogram.npz").n_objects == 80
    assert (place / "a" / "tree.nwk").read_text().count("(") == 79
    assert (place / "a" / "dendrogram.png").read_bytes().startswith(b"\x89PNG")
    saved = json.loads((place / "a" / "result.json").read_text())
    assert result == saved


def test_one_cut_is_a_file_that_validity_reads(place: Path, here: Callable[..., Any]) -> None:
    assert here("tree", "d.zarr", "b", "--linkage", "ward", "--no-picture", "--quiet", cwd=place).returncode == 0
    assert list(table(place / "b" / "labels.csv")) == ["id", "label"]
    assert not (place / "b" / "dendrogram.png").exists()
    done = here("validity", "d.zarr", "b/labels.csv", "--index", "silhouette", "--json", cwd=place)
    judged = json.loads(done.stdout)["partitions"][0]["silhouette"]
    said = json.loads((place / "b" / "result.json").read_text())["cuts"][0]
    assert said["silhouette"] == pytest.approx(judged)
    assert said["n_clusters"] == 4


def test_cuts_at_heights(place: Path, square: Any, here: Callable[..., Any]) -> None:
    words = ("tree", "d.zarr", "c", "--linkage", "complete", "--height", "2.5,1000", "--no-picture")
    done = here(*words, cwd=place)
    assert done.returncode == 0
    assert "at the height 1000 all objects are one cluster: the last merge is at" in done.stderr
    labels = table(place / "c" / "labels.csv")
    assert list(labels) == ["id", "label_height_2.5", "label_height_1000"]
    truth = fcluster(linkage(squareform(square), "complete"), 2.5, "distance")
    assert adjusted_rand_score(labels["label_height_2.5"], truth) == 1
    assert set(labels["label_height_1000"]) == {"0"}


def identities() -> Any:
    """Identities in percent of six genomes: three species, of which two are near."""
    values = np.full((6, 6), 70.0)
    values[:4, :4] = 92.0
    for pair, identity in (((0, 1), 97.5), ((2, 3), 96.0), ((4, 5), 98.0)):
        values[pair] = values[pair[::-1]] = identity
    np.fill_diagonal(values, 100)
    return values


@pytest.mark.parametrize("linkage_name", ["single", "complete", "average", "weighted"])
def test_heights_of_similarities_are_similarities(tmp_path: Path, here: Callable[..., Any], linkage_name: str) -> None:
    stored(tmp_path / "s.zarr", identities(), kind="similarity", dtype="float64", tile=4)
    words = ("tree", "s.zarr", "out", "--linkage", linkage_name, "--height", "95", "--no-picture")
    done = here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert "heights 98 to 70, similarity" in done.stdout
    assert "at 95" in done.stdout
    assert table(tmp_path / "out" / "labels.csv")["label"] == ["0", "0", "1", "1", "2", "2"]
    merges = linkage(squareform(100 - identities()), linkage_name)
    np.testing.assert_allclose(dasrel.Dendrogram.load(tmp_path / "out" / "dendrogram.npz").heights, 100 - merges[:, 2])
    np.testing.assert_allclose(np.load(tmp_path / "out" / "linkage.npy")[:, 2], 2 * merges[:, 2])  # for SciPy


@pytest.mark.parametrize(
    ("height", "what", "count"),
    [("0.05", "all objects will be one cluster", 1), ("99", "every object will be a cluster of its own", 6)],
)
def test_cuts_outside_of_the_values_are_warned_of_before_and_after(
    tmp_path: Path, here: Callable[..., Any], height: str, what: str, count: int
) -> None:
    stored(tmp_path / "s.zarr", identities(), kind="similarity", dtype="float64", tile=4)
    words = ("tree", "s.zarr", "out", "--linkage", "average", "--height", height, "--no-picture")
    before = here(*words, "--dry-run", cwd=tmp_path).stderr
    assert f"at the height {height} {what}: the values of the store, similarity, are 70 to 98" in before
    done = here(*words, cwd=tmp_path)
    assert done.stderr.startswith(before)
    after = "all objects are one cluster" if count == 1 else "every object is a cluster of its own"
    assert f"at the height {height} {after}" in done.stderr.removeprefix(before)
    assert len(set(table(tmp_path / "out" / "labels.csv")["label"])) == count


def test_cuts_that_only_the_dendrogram_shows_to_be_none(place: Path, here: Callable[..., Any], square: Any) -> None:
    top = linkage(squareform(square), "average")[-1, 2]
    assert top < square.max()
    words = ("tree", "d.zarr", "high", "--linkage", "average", "--height", f"{(top + square.max()) / 2:.6f}")
    before = here(*words, "--dry-run", cwd=place).stderr
    assert before == ""
    assert "all objects are one cluster: the last merge is at" in here(*words, "--no-picture", cwd=place).stderr


def test_heights_where_objects_are_not_equally_similar_to_themselves(tmp_path: Path, here: Callable[..., Any]) -> None:
    values = identities()
    values[0, 0] = 99
    stored(tmp_path / "s.zarr", values, kind="similarity", dtype="float64", tile=4)
    words = ("tree", "s.zarr", "out", "--linkage", "average", "--height", "95", "--no-picture")
    done = here(*words, cwd=tmp_path)
    assert "heights are s_ii + s_jj - 2 s_ij; say --as-similarity" in done.stderr
    assert "squared dissimilarity" in done.stdout
    done = here(*words, "--as-similarity", "--force", cwd=tmp_path)
    assert "warning" not in done.stderr
    assert len(set(table(tmp_path / "out" / "labels.csv")["label"])) == 3


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--linkage average --clusters 81", 1, "81 clusters cannot be made of 80 objects; give 1 to 80"),
        ("--linkage centroid", 2, "centroid linkage is not reducible"),
        ("--linkage avarage", 2, "no linkage 'avarage'; use one of single"),
        ("--clusters 3", 2, "are for a linkage; add --linkage average"),
        ("--linkage average --clusters 3 --height 1", 2, "cut into numbers of clusters or at heights, not both"),
        ("--linkage average --height nan", 2, "the height of a cut is a finite number"),
        ("--linkage average --clusters 0", 1, "--clusters is 0; give a whole number of at least 1"),
        ("--linkage average --as-similarity", 1, "the matrix is of kind distance"),
        ("--checkpoint kept", 1, "no state to save; leave out --checkpoint, or say --linkage average"),
        ("--linkage average --memory 1kB", 1, "the limit is 1 kB; raise --memory"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    place: Path, here: Callable[..., Any], options: str, code: int, message: str
) -> None:
    before = sorted(place.iterdir())
    done = here("tree", "d.zarr", "refused", *options.split(), cwd=place)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(place.iterdir()) == before


@pytest.mark.slow
def test_resumed_after_a_time_limit_with_the_same_files(
    place: Path, here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinkageJob, "clusters_in_memory", lambda self, kept: 8)
    words = ("tree", "d.zarr", "whole", "--linkage", "average", "--checkpoint", "kept-whole")
    assert here(*words, "--quiet", cwd=place).returncode == 0
    line = ("tree", "d.zarr", "parts", "--linkage", "average", "--checkpoint", "kept", "--time-limit", "0s", "--quiet")
    codes = [here(*line, cwd=place).returncode]
    while codes[-1] == 75 and len(codes) < 60:
        codes.append(here(*line, "--resume", cwd=place).returncode)
    assert codes == [75] * (len(codes) - 1) + [0]
    assert len(codes) > 3
    for name in ("linkage.npy", "labels.csv", "tree.nwk", "dendrogram.png"):
        assert (place / "parts" / name).read_bytes() == (place / "whole" / name).read_bytes()
    assert not (place / "kept").exists()
    assert not list(place.glob("*.rows"))
    done = here(*line, "--resume", "--json", cwd=place)
    assert json.loads(done.stdout)["nothing_to_do"] is True


def test_a_plan_has_bytes_and_scratch_space(place: Path, here: Callable[..., Any]) -> None:
    before = sorted(place.iterdir())
    words = ("tree", "d.zarr", "dry", "--linkage", "average", "--dry-run")
    told = json.loads(here(*words, "--json", cwd=place).stdout)
    assert told["facts"] == {"linkage": "average", "scratch_bytes": 0}
    assert told["scans"] == {"least": 2, "typical": 3, "most": 3}
    fixed = dasrel.hierarchy.linkage.prepare_linkage(str(place / "d.zarr"), "average")._fixed()
    told = json.loads(here(*words, "--memory", str(fixed + 20 * 20 * 8), "--json", cwd=place).stdout)
    assert told["facts"]["scratch_bytes"] == 120 * 80 * 8
    assert told["facts"]["written_bytes"] == (80 + 60) * 80 * 8
    assert "scratch" in here(*words, "--memory", str(fixed + 20 * 20 * 8), cwd=place).stdout
    assert sorted(place.iterdir()) == before


@pytest.mark.slow
def test_a_step_of_a_workflow(place: Path, square: Any, tmp_path: Path, here: Callable[..., Any]) -> None:
    np.save(tmp_path / "d.npy", square)
    (tmp_path / "w.toml").write_text(
        'out = "out"\n[import]\nsource = "d.npy"\nkind = "distance"\nstore_dtype = "float64"\n'
        '[tree]\nlinkage = "ward"\nclusters = [3, 4]\n'
    )
    assert here("run", "w.toml", "--quiet", cwd=tmp_path).returncode == 0
    found = next(tmp_path.rglob("linkage.npy"))
    np.testing.assert_allclose(np.load(found), linkage(squareform(square), "ward"))
    assert list(table(found.with_name("labels.csv"))) == ["id", "label_3", "label_4"]
    (tmp_path / "bad.toml").write_text((tmp_path / "w.toml").read_text().replace("ward", "median"))
    done = here("run", "bad.toml", cwd=tmp_path)
    assert done.returncode != 0
    assert "median linkage is not reducible" in done.stderr
