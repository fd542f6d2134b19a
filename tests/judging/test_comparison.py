"""`dasrel compare`: the measures of F09 by loops and permutations, objects by name, and what cannot be compared."""

import csv
import itertools
import json
import shutil
from math import comb, inf, log
from pathlib import Path

import numpy as np
import pytest

import dasrel
from dasrel.cli import app
from dasrel.errors import InputError, MemoryLimitError
from dasrel.judging.groupings import adjusted_rand_index
from dasrel.util import limits, progress
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.stores import stored

N = 40
IDS = [f"obj {k}" for k in range(N)]


def memberships(seed: int, n: int = N, c: int = 4) -> np.ndarray:
    """Random memberships with sum one, some of them zero."""
    rng = np.random.default_rng(seed)
    U = rng.gamma(0.5, size=(n, c))
    return U / U.sum(axis=1, keepdims=True)


def by_definition(U: np.ndarray, V: np.ndarray) -> tuple[float, float, float, list[int]]:
    """KL, its reverse, max |U - V| and the objects that moved, at the permutation of least squared differences."""
    best = min(itertools.permutations(range(V.shape[1])), key=lambda p: ((U - V[:, list(p)]) ** 2).sum())
    W = V[:, list(best)]
    kl, back, most = 0.0, 0.0, 0.0
    for k, i in itertools.product(range(len(U)), range(U.shape[1])):
        u, w = U[k, i], W[k, i]
        kl += u * log(u / w)
        back += w * log(w / u)
        most = max(most, abs(u - w))
    return kl, back, most, [k for k in range(len(U)) if U[k].argmax() != W[k].argmax()]


def rand_index(first: np.ndarray, second: np.ndarray) -> float:
    """The adjusted Rand index of Hubert and Arabie, from the counts of pairs."""
    cells = np.array([[((first == i) & (second == j)).sum() for j in np.unique(second)] for i in np.unique(first)])
    same = sum(comb(int(x), 2) for x in cells.ravel())
    rows, columns = (sum(comb(int(x), 2) for x in cells.sum(axis=axis)) for axis in (0, 1))
    expected = rows * columns / comb(len(first), 2)
    return (same - expected) / ((rows + columns) / 2 - expected)


@pytest.mark.parametrize("seed", range(5))
def test_measures_are_those_of_the_definitions_whatever_the_clusters_are_called(seed):
    U, V = memberships(seed), memberships(seed + 100)
    V = 0.7 * U[:, [2, 0, 3, 1]] + 0.3 * V
    found = dasrel.compare(U, V)
    kl, back, most, moved = by_definition(U, V)
    assert found.kl == pytest.approx(kl, rel=1e-12)
    assert found.kl_reversed == pytest.approx(back, rel=1e-12)
    assert found.changes.max() == pytest.approx(most, rel=1e-12)
    assert found.moved.tolist() == moved
    assert moved
    assert found.match == (1, 3, 0, 2)
    assert found.adjusted_rand_index == pytest.approx(rand_index(U.argmax(axis=1), V.argmax(axis=1)), rel=1e-12)
    assert str(len(moved)) in repr(found)


@pytest.mark.parametrize("m", [1.0, 1.5, 2.0])
def test_entropy_and_shift_terms_are_those_of_the_definitions(m):
    U = memberships(3)
    one = dasrel.compare(U, U, fuzzifier=m).report()["partitions"][0]
    assert one["entropy"] == pytest.approx(-sum(u * log(u) for u in U.ravel()))
    assert one["shift_a"] == pytest.approx(sum(u**m for u in U.ravel()))
    assert one["shift_b"] == pytest.approx(sum(sum(u ** (2 * m) for u in column) / sum(column**m) for column in U.T))


def test_a_partition_and_itself_are_equal():
    found = dasrel.compare(memberships(1), memberships(1))
    assert (found.kl, found.changes.max(), found.adjusted_rand_index, len(found.moved)) == (0, 0, 1, 0)


def test_zeros_make_kl_infinite_in_one_direction_only():
    U = np.array([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]])
    hard = np.eye(2)[[0, 0, 1]]
    found = dasrel.compare(hard, U)
    assert found.kl == pytest.approx(log(2) - 2 * log(0.9))
    assert found.kl_reversed == inf
    tiny = np.array([[1.0, 1e-300], [1.0, 0.0], [0.0, 1.0]])
    assert dasrel.compare(tiny, hard).kl == 0  # 1e-300 log(1e-300 / 1e-400) is nothing
    report = dasrel.compare(U, hard).report()
    assert (report["kl"], report["note"]) == (inf, None)


def test_different_numbers_of_clusters_have_a_rand_index_and_moves_and_no_kl():
    first = np.array(["a", "a", "a", "b", "b", "b", "b", "b"])
    second = np.array(["y", "y", "y", "x", "x", "x", "z", "z"])
    for a, b, match, moved in (
        (first, second, (1, 0), [6, 7]),  # z is the match of no cluster
        (second, first, (1, 0, None), [6, 7]),
    ):
        found = dasrel.compare(a, b)
        assert found.match == match
        assert found.moved.tolist() == moved
        assert (found.kl, found.kl_reversed, found.changes) == (None, None, None)
        assert found.adjusted_rand_index == pytest.approx(rand_index(first, second))
        assert f"{len(set(a))} and {len(set(b))} clusters" in found.report()["note"]
    header, lines = found.table()
    assert header == ["id", "label_a", "label_b", "matched_label", "membership_a", "membership_b"]
    assert list(lines) == [[k, "z", "b", "x", 1.0, 1.0] for k in ("6", "7")]


def test_partitions_and_clusterings_are_matched_by_name(tmp_path):
    D = distances(grouped_points(N))
    mixed = np.random.default_rng(0).permutation(N)
    stored(tmp_path / "d.zarr", D, ids=IDS, dtype="float64", tile=16)
    stored(tmp_path / "e.zarr", D[np.ix_(mixed, mixed)], ids=[IDS[k] for k in mixed], dtype="float64", tile=16)
    run = dasrel.Run("pcm2", 3, entropy_weight=2.0, eta_scale=1.0, init="k-means++")
    first, second = (dasrel.cluster(tmp_path / name, run) for name in ("d.zarr", "e.zarr"))
    with progress.watch() as counted:
        found = dasrel.compare(first, second.best)
    assert counted.scans == 0
    assert (found.matched_by, found.ids) == ("id", IDS)
    assert np.array_equal(found.b.U, second.best.memberships[np.argsort(mixed)])
    assert found.adjusted_rand_index == pytest.approx(1.0)
    assert found.a.eta == pytest.approx(first.best.model.eta)
    assert found.a.theta == 1.0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a store with names, and results of one and of several settings."""
    folder = tmp_path_factory.mktemp("results")
    stored(folder / "d.zarr", distances(grouped_points(N, apart=2.0)), ids=IDS, dtype="float64", tile=16)
    for out, more in (
        ("a", "--rule fcm1 --fuzzifier 1.5 --clusters 3"),
        ("b", "--rule fcm1 --fuzzifier 2 --clusters 3"),
        ("several", "--rule hard --clusters 2,3"),
    ):
        words = ["cluster", str(folder / "d.zarr"), str(folder / out), *more.split(), "--n-init", "2"]
        assert app.run([*words, "--no-picture", "-q"]) == 0
    return folder


@pytest.fixture
def results(made, tmp_path, monkeypatch):
    """A copy of them as the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("results")
def test_the_command_compares_folders_labels_and_memberships(capsys):
    U, V = np.load("a/memberships.npy"), np.load("b/memberships.npy")
    kl, _, most, moved = by_definition(U, V)
    with progress.watch() as counted:
        assert app.run(["compare", "a", "b", "-o", "moved.csv", "--json"]) == 0
    assert (counted.scans, counted.tiles) == (0, 0)
    found = json.loads(capsys.readouterr().out)
    assert found["kl"] == pytest.approx(kl)
    assert found["largest_change"]["membership"] == pytest.approx(most)
    assert [row["fuzzifier"] for row in found["partitions"]] == [1.5, 2.0]
    assert found["moved"] == len(moved)
    with open("moved.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [IDS[k] for k in moved]
    for k, row in zip(moved, rows, strict=True):
        assert (int(row["label_a"]), int(row["label_b"])) == (U[k].argmax(), V[k].argmax())
        assert float(row["membership_b"]) == V[k].max()

    assert app.run(["compare", "a/memberships.npy", "b/memberships.npy", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row["fuzzifier"] for row in again["partitions"]] == [1.5, 2.0]
    assert again["matched_by"] == "id"
    assert app.run(["compare", "a", "a/labels.csv"]) == 0
    printed = capsys.readouterr().out
    assert "infinite: a membership is 0 in the second partition only" in printed
    assert any(line.split() == ["moved", "0", "objects"] for line in printed.splitlines())
    assert any(line.split() == ["ARI", "1"] for line in printed.splitlines())


def test_the_command_says_that_numbers_of_clusters_differ(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("two.npy", np.arange(N) % 2)
    np.save("three.npy", np.arange(N) % 3)
    assert app.run(["compare", "two.npy", "three.npy"]) == 0
    assert "not defined: 2 and 3 clusters" in capsys.readouterr().out
    assert app.run(["compare", "two.npy", "three.npy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kl"], found["largest_change"]) == (None, None)


def lines_of(name, lines):
    with open(name, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


@pytest.mark.usefixtures("results")
def test_what_cannot_be_compared_gets_one_line(capsys):
    lines_of("other.csv", ["id,label", *(f"{name},1" for name in [*IDS[1:], "new"])])
    lines_of("fewer.csv", ["label", "1", "2"])
    lines_of("twice.csv", ["id,label", *(f"{name},1" for name in [*IDS, IDS[0]])])
    np.save("cube.npy", np.zeros((2, 2, 2)))
    np.save("large.npy", np.full((N, 2), 1.5))
    np.save("words.npy", np.array([["a", "b"]] * N))
    np.save("none.npy", np.zeros((0, 2)))
    capsys.readouterr()
    cases = [
        (
            "a other.csv",
            "other.csv has no label for 1 object of a, and labels for 1 object that it does not have: obj 0",
        ),
        ("a fewer.csv", "a has 40 objects and fewer.csv 2; compare partitions of the same objects"),
        ("twice.csv a", "twice.csv has more than one label for obj 0"),
        ("a twice.csv", "twice.csv has more than one label for obj 0"),
        ("a several", "choose one of its settings, such as several/best"),
        ("a nowhere", "there is no file nowhere with labels"),
        ("a d.zarr", "there is no result of `dasrel cluster` with memberships in d.zarr"),
        ("cube.npy a", "cube.npy has shape (2, 2, 2); give labels (n,), or memberships (n, clusters)"),
        ("none.npy a", "none.npy has shape (0, 2)"),
        ("a large.npy", "large.npy: the membership of object 0 in cluster 0 is 1.5 (80 such); give 0 to 1"),
        ("a words.npy", "words.npy has memberships of type"),
        ("a b -o a/labels.csv", "a/labels.csv exists"),
    ]
    for words, message in cases:
        assert app.run(["compare", *words.split()]) == 1, words
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
        assert "unexpected" not in told


@pytest.mark.usefixtures("results")
def test_a_damaged_result_gets_one_line(capsys):
    file = Path("b/memberships.npy")
    file.write_bytes(file.read_bytes()[:-9])
    assert app.run(["compare", "a", "b"]) == 1
    told = capsys.readouterr().err
    assert "b/memberships.npy is no whole .npy file" in told
    assert told.count("\n") == 1


def test_a_label_for_every_object_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(limits, "memory_limit", lambda *_: 10**6)
    with pytest.raises(MemoryLimitError, match="the first partition has 1,000 different labels of 1,000 objects"):
        dasrel.compare(np.arange(1000), np.zeros(1000))


@pytest.mark.parametrize("fuzzifier", [0.5, np.nan, np.inf])
def test_a_fuzzifier_below_one_is_refused(fuzzifier):
    with pytest.raises(InputError, match="fuzzifier is"):
        dasrel.compare(memberships(0), memberships(1), fuzzifier=fuzzifier)


def test_adjusted_rand_index_of_as_many_labels_as_objects() -> None:
    """A table of all pairs of labels would take 320 GB."""
    alone = np.arange(200_000)
    assert adjusted_rand_index(alone, alone[::-1]) == 1
    assert adjusted_rand_index(alone, np.zeros(200_000)) == 0
    assert adjusted_rand_index(alone[:1], alone[:1]) == 1
