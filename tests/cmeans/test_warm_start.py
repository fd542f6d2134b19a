"""Warm starts: the old centres on a grown matrix, clusters that keep their numbers, and the report of what moved."""

import csv
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import dasrel
from dasrel import InputError, StoreError, Writing
from dasrel.cmeans.warm_start import (
    Moves,
    keep_numbers,
    load_previous,
    memberships_at,
    numbered_as,
    renumbered,
)
from dasrel.engine.relation import relation
from dasrel.io.append import append
from dasrel.partition.rules import matching_order
from dasrel.util import progress
from tests.helpers.processes import ran
from tests.helpers.runs import Run

OLD, ALL = 90, 110


def blobs(spread: float = 0.3) -> Any:
    """Three groups of points in the plane; objects of all groups in turn."""
    random = np.random.default_rng(4)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]])
    return centres[np.arange(ALL) % 3] + spread * random.normal(size=(ALL, 2))


def stored(folder: Path, points: Any, kind: str = "distance") -> Path:
    square = cdist(points, points) if kind == "distance" else points @ points.T
    names = dasrel.Reading(ids=[f"x{k}" for k in range(OLD)])
    writing = Writing(tile=32, dtype="float64")
    dasrel.import_matrix(square[:OLD, :OLD], folder, kind=kind, reading=names, writing=writing)
    return folder


def grow(store: Path, points: Any, kind: str = "distance") -> None:
    square = cdist(points, points) if kind == "distance" else points @ points.T
    append(store, square[OLD:], ids=[f"x{k}" for k in range(OLD, ALL)])


def fuzzy(points: Any, U: Any, m: float = 2.0) -> Any:
    """Memberships at the centres that memberships U make: Bezdek's fuzzy c-means on points, by the book."""
    W = U**m
    centres = (W / W.sum(axis=0)).T @ points[: len(U)]
    d = cdist(points, centres, "sqeuclidean")
    return 1 / (d[:, :, None] / d[:, None, :]).sum(axis=2)


# ------------------------------------------------------------------------------------------------------------- matching


def test_the_order_has_the_largest_overlap_of_all() -> None:
    random = np.random.default_rng(0)
    for c in (1, 2, 4, 6):
        before, now = random.dirichlet(np.ones(c), 50), random.dirichlet(np.ones(c), 50)
        best = max(itertools.permutations(range(c)), key=lambda p: (before * now[:, list(p)]).sum())
        assert matching_order(before, now).tolist() == list(best)


def test_clusters_that_are_alike_stay_where_they_are() -> None:
    same = np.full((20, 4), 0.25)
    assert matching_order(same, same).tolist() == [0, 1, 2, 3]
    assert matching_order(np.zeros((3, 2)), np.zeros((3, 2))).tolist() == [0, 1]


@pytest.mark.parametrize("rule", ["fcm1", "pcm2"])
def test_all_that_is_numbered_by_clusters_is_renumbered(tmp_path: Path, rule: str) -> None:
    points = blobs()
    store = stored(tmp_path / "s", points)
    best = dasrel.cluster(store, Run(rule, 3, init="k-means++")).best
    order = np.array([2, 0, 1])
    other = renumbered(best, order)
    back = np.argsort(order)  # where each of the old numbers has gone
    np.testing.assert_array_equal(other.labels, back[best.labels])
    np.testing.assert_array_equal(other.medoids, best.medoids[order])
    np.testing.assert_array_equal(other.sizes, best.sizes[order])
    np.testing.assert_allclose(other.result.membership_sums, other.memberships.sum(axis=0))
    rows = cdist(points[OLD:], points[:OLD])
    np.testing.assert_allclose(other.model.predict_memberships(rows), best.model.predict_memberships(rows)[:, order])
    assert other.objective == best.objective


# ---------------------------------------------------------------------------------------------------------- warm starts


@pytest.mark.parametrize("kind", ["distance", "kernel"])
def test_the_old_centres_on_a_grown_matrix(tmp_path: Path, kind: str) -> None:
    """New objects have no weight in them: memberships are those of the book's formula, at one scan."""
    points = blobs(1.0)
    store = stored(tmp_path / "s", points, kind)
    before = dasrel.cluster(store, Run("fcm1", 3, tol=1e-10)).best
    grow(store, points, kind)
    matrix = dasrel.open_matrix(store)
    model = before.model.grown(matrix.ids, matrix.diagonal)
    with progress.watch() as counted:
        found = memberships_at(relation(matrix), model)
    assert counted.scans == 1
    np.testing.assert_allclose(found, fuzzy(points, before.memberships), atol=1e-6)
    np.testing.assert_allclose(found[:OLD], before.memberships, atol=1e-7)
    # The first step of a run from there, and it reads no row besides its scans.
    with progress.watch() as counted, pytest.warns(dasrel.DasrelWarning, match="did not converge"):
        step = dasrel.cluster(store, Run("fcm1", 3, init=before.model, max_iter=1)).best
    assert counted.tiles == len(matrix.layout.tiles())
    np.testing.assert_allclose(step.memberships, found, atol=1e-9)
    # A model of the grown matrix is one like any other.
    rows = cdist(points[:4], points) if kind == "distance" else points[:4] @ points.T
    own = None if kind == "distance" else (points[:4] ** 2).sum(axis=1)
    old = before.model.predict_memberships(rows[:, :OLD], self_similarity=own)
    np.testing.assert_allclose(model.predict_memberships(rows, self_similarity=own), old, atol=1e-12)


def test_objects_are_known_by_their_names(tmp_path: Path) -> None:
    points = blobs()
    store = stored(tmp_path / "s", points)
    model = dasrel.cluster(store, Run("fcm1", 3)).best.model
    shuffle = np.random.default_rng(0).permutation(ALL)
    names = [f"x{k}" for k in shuffle]
    square = cdist(points[shuffle], points[shuffle])
    dasrel.import_matrix(square, tmp_path / "t", kind="distance", reading=dasrel.Reading(ids=names))
    warm = dasrel.cluster(tmp_path / "t", Run("fcm1", 3, init=model)).best
    cold = dasrel.cluster(store, Run("fcm1", 3, init=model)).best
    at = {name: k for k, name in enumerate(names)}
    np.testing.assert_array_equal(warm.labels[[at[f"x{k}"] for k in range(OLD)]], cold.labels)
    with pytest.raises(InputError, match=r"1 of its 90 not among the 89 of the matrix: x0"):
        model.grown(np.array([f"x{k}" for k in range(1, OLD)]))


@pytest.mark.slow
def test_numbers_of_a_cold_run_become_those_of_before(tmp_path: Path) -> None:
    points = blobs()
    store = stored(tmp_path / "s", points)
    first = dasrel.cluster(store, Run("fcm1", 3, random_state=1))
    dasrel.save_clustering(first, tmp_path / "r")
    previous = load_previous(tmp_path / "r")
    grow(store, points)
    orders = set()
    for seed in range(6):
        cold = dasrel.cluster(store, Run("fcm1", 3, random_state=seed))
        kept, moves = keep_numbers(cold, previous, relation(store))
        np.testing.assert_array_equal(kept.best.labels[:OLD], first.best.labels)
        # Well separated groups: new objects are where others of their group are.
        np.testing.assert_array_equal(kept.best.labels[OLD:], first.best.labels[np.arange(OLD, ALL) % 3])
        assert (moves.report()["moved"], moves.report()["new_objects"]) == (0, ALL - OLD)
        np.testing.assert_allclose(kept.runs[0].membership_sums, kept.best.memberships.sum(axis=0))
        orders.add(moves.order)
    assert len(orders) > 1  # or nothing was shown


def test_what_moved() -> None:
    before = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.45, 0.55]])
    now = np.array([[0.2, 0.8], [0.85, 0.15], [0.4, 0.6], [0.9, 0.1], [0.6, 0.4], [0.1, 0.9]])
    places = np.array([1, 0, 2, 3])
    moves = Moves(np.array(list("abcdef"), dtype=object), places, before, now, (0, 1))
    assert moves.report() == {
        "objects_before": 4,
        "new_objects": 2,
        "order": [0, 1],
        "moved": 2,
        "moved_ids": ["a", "d"],
        "sizes_before": [2, 2],
        "sizes": [3, 3],
        "new_per_cluster": [1, 1],
        "largest_change": {"membership": pytest.approx(0.6), "id": "a"},
    }
    header, lines = moves.table()
    assert header == ["id", "label_before", "label", "membership_before", "membership"]
    assert list(lines) == [["a", 0, 1, 0.8, 0.8], ["d", 1, 0, 0.55, 0.9]]


@pytest.mark.parametrize("name", ["FuzzyCMeans", "EntropyFuzzyCMeans", "EntropyPossibilisticCMeans", "HardCMeans"])
def test_estimators_go_on_from_a_model_of_fewer_objects(tmp_path: Path, name: str) -> None:
    points = blobs()
    square = cdist(points, points)
    kind: Any = getattr(dasrel, name)
    more = {"entropy_weight": 0.5} if "Entropy" in name else {}
    first = kind(3, kind="distance", random_state=0, **more).fit(square[:OLD, :OLD])
    first.model_.save(tmp_path / "m.npz")
    for init in (first.model_, tmp_path / "m.npz", str(tmp_path / "m.npz")):
        again = kind(3, kind="distance", init=init, **more).fit(square)
        np.testing.assert_array_equal(again.labels_[:OLD], first.labels_)
        assert again.labels_.shape == (ALL,)
        assert len(again.runs_) == 1


def test_a_partition_takes_the_numbers_of_its_model(tmp_path: Path) -> None:
    points = blobs()
    store = stored(tmp_path / "s", points)
    best = dasrel.cluster(store, Run("fcm1", 3)).best
    other = renumbered(best, np.array([1, 2, 0]))
    np.testing.assert_array_equal(numbered_as(other, best.model).memberships, best.memberships)


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has grown since it was clustered, the results, and results that do not fit."""
    folder = tmp_path_factory.mktemp("made")
    points = blobs(1.2)
    stored(folder / "s.zarr", points)
    for rule in ("fcm1 --fuzzifier 1.5", "pcm2 --entropy-weight 0.5", "fcm2"):
        assert ran(*f"cluster {folder}/s.zarr {folder}/{rule[:4]} --rule {rule} --clusters 3 --quiet".split()) == 0
    grow(folder / "s.zarr", points)
    shutil.copytree(folder / "fcm1", folder / "torn")
    np.save(folder / "torn" / "memberships.npy", np.zeros((5, 3)))
    dasrel.import_matrix(cdist(points[:OLD], points[:OLD]), folder / "plain.zarr", kind="distance")
    dasrel.save_clustering(dasrel.cluster(folder / "plain.zarr", Run("fcm1", 3)), folder / "other")
    return folder


@pytest.fixture
def results(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, in the present folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_command_goes_on_and_tells_what_moved(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        ran(
            "cluster",
            "s.zarr",
            "cold",
            "--rule",
            "fcm1",
            "--clusters",
            "3",
            "--fuzzifier",
            "1.5",
            "--n-init",
            "1",
            "--init",
            "random",
            "--json",
        )
        == 0
    )
    cold = json.loads(capsys.readouterr().out)
    assert ran("cluster", "s.zarr", "warm", "--rule", "fcm1", "--clusters", "3", "--warm-start", "fcm1", "--json") == 0
    warm = json.loads(capsys.readouterr().out)
    assert warm["settings"][0]["fuzzifier"] == 1.5  # that of the model, as no other was asked for
    assert (warm["runs"], warm["requested"]["warm_start"]) == (1, "fcm1")
    assert warm["scans"] < cold["scans"]
    assert warm["settings"][0]["objective"] == pytest.approx(cold["settings"][0]["objective"], rel=1e-6)
    reported = warm["warm_start"]
    assert reported["from"] == "fcm1"
    labels = {}
    for folder in ("fcm1", "warm"):
        with open(results / folder / "labels.csv", encoding="utf-8") as file:
            labels[folder] = {row["id"]: row["label"] for row in csv.DictReader(file)}
    moved = [name for name, label in labels["fcm1"].items() if labels["warm"][name] != label]
    assert reported["moved"] == len(moved) < 10
    assert reported["moved_ids"] == moved
    with open(results / "warm" / "moved.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["label_before"], row["label"]) for row in rows] == [
        (name, labels["fcm1"][name], labels["warm"][name]) for name in moved
    ]
    assert (reported["objects_before"], reported["new_objects"]) == (OLD, ALL - OLD)
    assert sum(reported["sizes_before"]) == OLD
    assert reported["sizes"] == warm["settings"][0]["sizes"]
    assert sum(reported["new_per_cluster"]) == ALL - OLD
    assert json.loads((results / "warm" / "result.json").read_text())["warm_start"] == reported
    # A model by itself does as well, for one scan more.
    shutil.copy(results / "fcm1" / "model.npz", results / "alone.npz")
    assert (
        ran("cluster", "s.zarr", "again", "--rule", "fcm1", "--clusters", "3", "--warm-start", "alone.npz", "--json")
        == 0
    )
    alone = json.loads(capsys.readouterr().out)
    assert alone["scans"] == warm["scans"] + 1
    change = alone["warm_start"]["largest_change"]["membership"]
    assert change == pytest.approx(reported["largest_change"]["membership"], abs=1e-6)
    assert {**alone["warm_start"], "from": 0, "largest_change": 0} == {**reported, "from": 0, "largest_change": 0}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("rule", ["pcm2", "fcm2"])
def test_numbers_of_the_model_are_kept(results: Path, capsys: pytest.CaptureFixture[str], rule: str) -> None:
    assert ran(*f"cluster s.zarr warm --rule {rule} --clusters 3 --warm-start {rule}/model.npz".split()) == 0
    out = capsys.readouterr().out
    assert "objects changed their cluster" in out
    assert "new         20 objects: " in out
    before, now = dasrel.Model.load(f"{rule}/model.npz"), dasrel.Model.load("warm/model.npz")
    assert now.n_objects == ALL
    if rule == "pcm2":
        np.testing.assert_array_equal(now.eta, before.eta)
    else:
        assert now.entropy_weight == before.entropy_weight


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("--rule fcm2 --clusters 3 --warm-start fcm1", "has rule fcm1, and fcm2 was requested"),
        ("--rule fcm1 --clusters 4 --warm-start fcm1", "has clusters 3, and 4 was requested"),
        ("--rule fcm1 --clusters 3,4 --warm-start fcm1", "one run, and 2 were requested"),
        ("--rule fcm1 --clusters 3 --warm-start fcm1 --init rows", "leave --init out"),
        ("--rule pcm2 --clusters 3 --warm-start pcm2 --eta-scale 2", "eta_scale is of no use here"),
        ("--rule fcm1 --clusters 3 --warm-start nothing", "no model at nothing"),
        ("--rule fcm1 --clusters 3 --warm-start torn", "has shape (5, 3), and the model beside it has 90 objects"),
        ("--rule fcm1 --clusters 3 --warm-start other", "90 of its 90 not among the 110 of the matrix"),
    ],
)
def test_refused_warm_starts(results: Path, capsys: pytest.CaptureFixture[str], line: str, reported: str) -> None:
    assert ran(*f"cluster s.zarr out {line}".split()) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert reported in error
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_job_loads_no_geometry_that_it_does_not_need() -> None:
    """Trees, pencils and gamma searches are loaded only to Euclideanise; neither is scikit-learn needed."""
    script = "import sys, dasrel.commands.cluster; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "dasrel.cmeans.fit" in loaded
    unneeded = ("dasrel.geometry.euclidean", "dasrel.geometry.tree", "sklearn", "matplotlib")
    assert [name for name in unneeded if name in loaded] == []


def test_a_damaged_file_of_memberships(tmp_path: Path) -> None:
    points = blobs()
    dasrel.save_clustering(dasrel.cluster(stored(tmp_path / "s", points), Run("fcm1", 3)), tmp_path / "r")
    (tmp_path / "r" / "memberships.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(StoreError, match=r"memberships.npy is no whole .npy file"):
        load_previous(tmp_path / "r")
