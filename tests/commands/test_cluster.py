"""`dasrel cluster`, `dasrel predict` and `dasrel demo`, run as a user runs them: files, exit codes, who hears what."""

import csv
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas
import pytest
import zarr
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel.cli import app
from dasrel.cmeans.fit import cluster
from dasrel.commands import demo
from dasrel.commands.cluster import folder_names, save_clustering
from dasrel.errors import InputError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.partition.model import Model
from tests.helpers import oracle
from tests.helpers.matrices import blobs, distances
from tests.helpers.processes import command
from tests.helpers.runs import Run, grid

N = 45
NAMES = ["a,b", 'say "hi"', "two\nlines", "\rreturn", "tab\there", "bell\x07", "späte Überraschung", " space ", "=1+1"]
NAMES += [f"o{k}" for k in range(len(NAMES), N)]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def points() -> Any:
    return blobs(N // 3, [[0, 0], [7, 1], [2, 8]], 8)


@pytest.fixture
def folder(tmp_path: Path, points: Any) -> Path:
    """A folder with a store of 45 objects, some of which have awkward names, in 6 tiles."""
    reading, writing = Reading(ids=NAMES), dasrel.Writing(tile=16)
    import_matrix(distances(points), tmp_path / "d.zarr", kind="distance", reading=reading, writing=writing)
    return tmp_path


# ------------------------------------------------------------------------------------------------------- one setting


def test_the_first_line_tells_how_many_modes_are_left(folder: Path, here: Any) -> None:
    given = ["--clusters", 5, "--rule", "pcm2", "--entropy-weight", 2, "--eta-scale", 4, "--no-picture"]
    done = here("cluster", folder / "d.zarr", folder / "out", *given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split(maxsplit=1) == ["modes", "5 clusters ended in 3 modes"]


@pytest.mark.slow
def test_a_clustering_from_end_to_end(folder: Path, points: Any) -> None:
    line = (
        "cluster d.zarr out --rule fcm2 --clusters 3 --entropy-weight 2 --n-init 4 --seed 3 --tol 1e-7 --json --quiet"
        " --init random --no-accelerate"
    )
    done = command(*line.split(), cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert json.loads((folder / "out" / "result.json").read_text()) == result
    assert sorted(os.listdir(folder / "out")) == [
        "labels.csv",
        "medoids.csv",
        "memberships.npy",
        "model.npz",
        "partition.png",
        "result.json",
        "runs.csv",
        "validity.csv",
    ]

    # the oracle, from the start that the best run had, comes to the same end
    setting = result["settings"][0]
    draws = np.random.default_rng(np.random.SeedSequence((3, setting["restart"]))).standard_exponential((N, 3))
    D = squareform(pdist(points, "sqeuclidean"))
    expected = oracle.run(D, "fcm2", (draws / draws.sum(axis=1, keepdims=True)).T, lam=2.0, tol=1e-7, max_iter=300)
    U = np.load(folder / "out" / "memberships.npy", allow_pickle=False)
    assert U.shape == (N, 3)
    assert U.flags.c_contiguous
    np.testing.assert_allclose(U, expected["U"].T, atol=1e-4)
    assert setting["objective"] == pytest.approx(expected["J_history"][-1], rel=1e-5)
    own = expected["U"].argmax(axis=0)
    sums = np.where(own[:, None] == own, np.sqrt(D), 0).sum(axis=1)
    medoids = [min(np.flatnonzero(own == k), key=lambda j: sums[j]) for k in range(3)]
    assert setting["medoids"] == [NAMES[k] for k in medoids]
    rows = read_csv(folder / "out" / "medoids.csv")
    assert [(row["medoid"], int(row["size"])) for row in rows] == list(
        zip(setting["medoids"], setting["sizes"], strict=True)
    )
    means = [sums[j] / (size - 1) for j, size in zip(medoids, setting["sizes"], strict=True)]
    np.testing.assert_allclose([float(row["mean_dissimilarity"]) for row in rows], means, rtol=1e-5)
    assert setting["sizes"] == np.bincount(expected["U"].argmax(axis=0)).tolist()

    rows = read_csv(folder / "out" / "labels.csv")
    assert [row["id"] for row in rows] == NAMES
    assert [int(row["label"]) for row in rows] == U.argmax(axis=1).tolist()
    assert [float(row["membership"]) for row in rows] == U.max(axis=1).tolist()
    assert pandas.read_csv(folder / "out" / "labels.csv")["id"].tolist() == NAMES

    runs = read_csv(folder / "out" / "runs.csv")
    assert [row["run"] for row in runs] == ["0", "1", "2", "3"]
    assert [k for k, row in enumerate(runs) if row["best"] == "true"] == [setting["run"]]
    assert min(float(row["objective"]) for row in runs) == setting["objective"]
    assert {row["rule"] for row in runs} == {"fcm2"}
    assert all(len(row["membership_sums"].split()) == 3 for row in runs)

    assert result["scans"] == max(int(row["n_iter"]) for row in runs) + 1  # and one for the validity indices
    assert (result["runs"], result["runs_converged"], result["converged"]) == (4, 4, True)
    assert (result["n_objects"], result["kind"], result["store"]) == (N, "distance", "d.zarr")
    assert result["versions"]["dasrel"] == dasrel.__version__
    assert result["warnings"] == []
    assert result["requested"]["entropy_weight"] == [2.0]


def test_people_get_lines(folder: Path, here: Callable[..., Any]) -> None:
    done = here("cluster", "d.zarr", "out", "--rule", "fcm1", "--clusters", 3, "--n-init", 2, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["results"] == "out"
    assert lines["objects"] == "45, kind distance"
    assert re.fullmatch(r"\d, the best of 2 on a sample of 45 objects; \d converged", lines["runs"])
    assert lines["rule"] == "fcm1, 3 clusters, fuzzifier 2"
    assert lines["fuzzifier"].startswith("2: the largest fuzzifier whose silhouette, ")
    assert float(lines["silhouette"]) > 0.5
    assert lines["sizes"] == "15 15 15"
    assert "\n" not in lines["medoids"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_files(folder: Path) -> None:
    line = (
        "cluster d.zarr {} --rule pcm1,hard,fcm1 --eta-scale 0.3 --clusters 2,3 --n-init 3 --seed {} -q --init random"
    )
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert (
            app.run(
                [part if part != "d.zarr" else str(folder / part) for part in line.format(folder / out, seed).split()]
            )
            == 0
        )
    names = sorted(str(path.relative_to(folder / "a")) for path in (folder / "a").rglob("*") if path.is_file())
    assert len(names) == 5 + 7 * 4  # three tables, two pictures, and four files of each setting and of the best one
    for name in names:
        if not name.endswith((".json", ".npz")):  # times and zip dates differ
            assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes(), name
    assert (folder / "a" / "runs.csv").read_bytes() != (folder / "c" / "runs.csv").read_bytes()


# ----------------------------------------------------------------------------------------------------- many settings


def test_a_grid_is_one_bundle(folder: Path, here: Callable[..., Any]) -> None:
    line = (
        "cluster d.zarr out --rule fcm1,fcm2 --clusters 2,3 --fuzzifier 1.2,2 --entropy-weight 2 --n-init 3 --json -q"
        " --init random"
    )
    done = here(*line.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    names = [one["folder"] for one in result["settings"]]
    assert names == [
        *("fcm1-clusters2-fuzzifier1.2", "fcm1-clusters2-fuzzifier2", "fcm1-clusters3-fuzzifier1.2"),
        *("fcm1-clusters3-fuzzifier2", "fcm2-clusters2", "fcm2-clusters3"),
    ]
    others = ["best", "partition.png", "result.json", "runs.csv", "validity.csv", "validity.png"]
    assert sorted(os.listdir(folder / "out")) == sorted([*names, *others])
    assert result["recommended"]["folder"] in names
    chosen = folder / "out" / result["recommended"]["folder"]
    assert (folder / "out" / "best" / "labels.csv").read_bytes() == (chosen / "labels.csv").read_bytes()
    runs = read_csv(folder / "out" / "runs.csv")
    assert len(runs) == result["runs"] == 18
    assert result["bundles"] == 1
    assert result["scans"] == max(int(row["n_iter"]) for row in runs) + 1  # and one for the validity indices
    for one in result["settings"]:
        where = folder / "out" / one["folder"]
        assert sorted(os.listdir(where)) == ["labels.csv", "medoids.csv", "memberships.npy", "model.npz"]
        U = np.load(where / "memberships.npy")
        assert U.shape == (N, one["n_clusters"])
        assert np.bincount(U.argmax(axis=1)).tolist() == one["sizes"]
        assert Model.load(where / "model.npz").rule == one["rule"]
        mine = [
            row for row in runs
            if (row["rule"], row["n_clusters"], row["fuzzifier"] or None)
            == (one["rule"], str(one["n_clusters"]), str(one["fuzzifier"]) if "fuzzifier" in one else None)
        ]  # fmt: skip
        assert len(mine) == 3
        assert min(float(row["score"]) for row in mine) == float(runs[one["run"]]["score"])


def test_folder_names_are_unique_and_plain() -> None:
    runs = grid("fcm2", [2, 3], entropy_weight=["auto", 0.1, 0.1 + 1e-15], spread=[0, 1e-7])
    names = folder_names(runs)
    assert len(set(names)) == len(runs) == 12
    assert names[0] == "fcm2-clusters2-entropy-weightauto-spread0"
    assert all(name.replace("-", "").replace(".", "").isalnum() for name in names)
    assert folder_names([Run("hard", 3)]) == ["."]


def test_options_reach_the_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    def fake(*positional: Any, **named: Any) -> None:
        calls.append((*positional, named))
        raise InputError("stop here")

    monkeypatch.setattr("dasrel.commands.cluster.prepare_clustering", fake)
    line = (
        f"cluster {folder}/d.zarr {tmp_path}/out --rule pcm1 --clusters 4 --fuzzifier 1.5 --entropy-weight auto,0.5"
        " --eta-scale 2 --n-init 2 --init rows,k-means++ --seed 9 --max-iter 7 --tol 0.5 --on-negative heal"
        " --spread 0,3 --accelerate --memory 2GiB --eta cut --eta-cut 0.3 --eta-refit --stop weights --norm 2"
    )
    assert app.run(line.split()) == 1
    ((matrix, runs, named),) = calls
    assert (matrix.store, named) == (str(folder / "d.zarr"), {"judge": True, "memory": "2GiB"})
    assert len(runs) == 2 * 2 * 2 * 2
    common = {
        "rule": "pcm1", "n_clusters": 4, "fuzzifier": 1.5, "eta_scale": 2.0, "random_state": 9, "max_iter": 7,
        "tol": 0.5, "on_negative": "heal", "accelerate": True, "eta": "cut", "eta_cut": 0.3, "eta_refit": True,
        "stop": "weights", "norm": 2,
    }  # fmt: skip
    for run in runs:
        assert {name: getattr(run, name) for name in common} == common
    varied = {(run.init, run.entropy_weight, run.spread, run.restart) for run in runs}
    assert varied == {
        (start, weight, spread, k)
        for start in ("rows", "k-means++") for weight in ("auto", 0.5) for spread in (0.0, 3.0) for k in (0, 1)
    }  # fmt: skip


def test_starts_from_files(folder: Path) -> None:
    store, first, second = (str(folder / name) for name in ("d.zarr", "first", "second"))
    words = ["--rule", "fcm1", "--clusters", "3", "--fuzzifier", "2", "--tol", "1e-6", "-q"]
    assert app.run(["cluster", store, first, *words]) == 0
    inits = f"{first}/model.npz,{first},{first}/memberships.npy"
    assert app.run(["cluster", store, second, *words, "--init", inits]) == 0
    runs = read_csv(folder / "second" / "runs.csv")
    assert [row["init"] for row in runs] == ["model", "model", "memberships"]  # each once, whatever n_init
    assert all(int(row["n_iter"]) <= 4 for row in runs)


# --------------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("--clusters 0", "--clusters is 0; give a whole number of at least 1"),
        ("--clusters 46", "--clusters is 46 for 45 objects; give 1 to 45"),
        ("--clusters 3 --fuzzifier 1", "fuzzifier is 1.0; give a finite number above 1"),
        ("--clusters 3 --fuzzifier nan", "fuzzifier is nan"),
        ("--clusters 3 --rule fcm2 --entropy-weight -1", "--entropy-weight is -1.0; give a finite number above 0"),
        ("--clusters 3 --spread -2", "spread is -2.0"),
        ("--clusters 3 --init nearest", "init is 'nearest'; use sample, k-means++, random, rows"),
        ("--clusters 3 --init none.npz", "no model at none.npz"),
        ("--clusters 3 --init none.npy", "none.npy: No such file"),
        ("--clusters 3 --memory 1kB", "the limit is"),
    ],
)
def test_bad_values_exit_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, report: str
) -> None:
    monkeypatch.chdir(folder)
    rule = [] if "--rule" in line else ["--rule", "fcm1"]
    assert app.run(["cluster", "d.zarr", "out", *rule, *line.split(), "--json"]) == 1
    out, err = capsys.readouterr()
    assert report in json.loads(out)["error"]
    assert err.count("\n") == 1
    assert os.listdir(folder) == ["d.zarr"]


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("cluster d.zarr out", "--clusters"),
        ("cluster d.zarr out --rule fcm1", "--clusters"),
        ("cluster d.zarr out --rule fcm3 --clusters 2", "'fcm3' is not one of fcm1, fcm2"),
        ("cluster d.zarr out --rule fcm1 --clusters two", "'two': give whole numbers with commas"),
        ("cluster d.zarr out --rule fcm1 --clusters 2,,3", "'2,,3': give whole numbers"),
        ("cluster d.zarr out --rule fcm1 --clusters 2.5", "whole numbers"),
        ("cluster d.zarr out --rule fcm1 --clusters 2 --fuzzifier much", "give numbers or auto with commas"),
        ("cluster d.zarr out --clusters 10-2", "'10-2' is an empty range; give the smaller number first, such as 2-10"),
        ("cluster d.zarr out --clusters 1-99999", "has 99,999 numbers"),
        ("cluster d.zarr out --rule k-means --clusters 2", "it is called hard here"),
        ("cluster d.zarr out --rule fcm2 --clusters 2 --entropy-weight much", "give numbers or auto"),
        ("cluster d.zarr out --rule hard --clusters 2 --fuzzifier 2", "fuzzifier is for fcm1 and pcm1, not hard"),
        ("cluster d.zarr out --rule fcm1 --clusters 2 --eta-scale 2", "eta_scale is for pcm1 and pcm2, not fcm1"),
        ("cluster d.zarr out --rule fcm1 --clusters 2 --on-negative ignore", "--on-negative"),
        ("cluster d.zarr out --rule fcm1 --cluster 2", "--clusters"),
        ("spectrum d.zarr --cluster local:workers=2", "No such option: --cluster"),
        ("cluster d.zarr", "OUT"),
        ("predict model.npz rows.npy", "OUT"),
    ],
)
def test_wrong_usage_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, report: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.run([*line.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    assert report in err
    assert list(json.loads(out)) == ["error"]
    assert os.listdir(tmp_path) == []


def test_stores_that_cannot_be_used(folder: Path, here: Callable[..., Any]) -> None:
    words = ["--rule", "fcm1", "--clusters", "3"]
    done = here("cluster", "none.zarr", "out", *words, cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dasrel: no store at none.zarr")

    group = zarr.open_group(folder / "d.zarr", mode="r+")
    group.attrs["dasrel"] = {**group.attrs["dasrel"], "state": "writing"}
    done = here("cluster", "d.zarr", "out", *words, "--json", cwd=folder)
    assert done.returncode == 1
    assert "unfinished" in json.loads(done.stdout)["error"]
    assert os.listdir(folder) == ["d.zarr"]


def test_negative_distances_stop_or_are_healed(tmp_path: Path, here: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    D = np.triu(rng.random((30, 30)) ** 4, 1)  # far from any metric
    np.save(tmp_path / "d.npy", D + D.T)
    assert here("import", "d.npy", "d.zarr", "--kind", "squared-distance", "-q", cwd=tmp_path).returncode == 0
    line = "cluster d.zarr out --rule fcm1 --fuzzifier 1.2 --clusters 4 --max-iter 1000 --json"
    done = here(*line.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert "distances to centres are negative" in json.loads(done.stdout)["error"]
    done = here(*line.split(), "--on-negative", "heal", cwd=tmp_path)
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["settings"][0]["beta"] > 0
    assert any("healed by a spread" in text for text in result["warnings"])
    assert next(line for line in done.stderr.splitlines() if "healed by a spread" in line).startswith(
        "dasrel: warning: "
    )


def test_strict_exits_3(folder: Path, here: Callable[..., Any]) -> None:
    line = "cluster d.zarr {} --rule fcm1 --clusters 3 --max-iter 2 --init random --json"
    done = here(*line.format("a").split(), cwd=folder)
    assert done.returncode == 0
    assert json.loads(done.stdout)["converged"] is False
    assert "did not converge" in done.stderr

    done = here(*line.format("b").split(), "--strict", cwd=folder)
    assert done.returncode == 3
    assert json.loads(done.stdout)["converged"] is False
    assert done.stderr.splitlines()[-1].startswith("dasrel: not converged")
    assert (folder / "b" / "result.json").is_file()

    done = here("cluster", "d.zarr", "c", "--rule", "fcm1", "--clusters", "3", "--strict", "-q", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --------------------------------------------------------------------------------------------------- what exists stays


@pytest.mark.slow
def test_an_existing_result_is_only_replaced_by_force(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    line = ["cluster", "d.zarr", "out", "--rule", "fcm1", "-q", "--clusters"]
    assert app.run([*line, "2"]) == 0
    before = (folder / "out" / "result.json").read_bytes()
    assert app.run([*line, "3"]) == 1
    assert (folder / "out" / "result.json").read_bytes() == before
    assert app.run([*line, "2,3", "--force"]) == 0
    assert {"fcm1-clusters2", "fcm1-clusters3", "result.json"} < set(os.listdir(folder / "out"))
    assert app.run([*line, "3", "--force"]) == 0
    assert np.load(folder / "out" / "memberships.npy").shape == (N, 3)
    assert sorted(os.listdir(folder)) == ["d.zarr", "out"]


def test_force_replaces_nothing_but_results(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "home").mkdir()
    (folder / "home" / "thesis.tex").write_text("years of work")
    (folder / "file").write_text("mine")
    (folder / "link").symlink_to("home")
    for out in ("home", "file", "link", "d.zarr"):
        assert app.run(["cluster", "d.zarr", out, "--rule", "fcm1", "--clusters", "2", "--force"]) == 1
        report = "would replace what is read" if out == "d.zarr" else "is no folder of results"
        assert report in capsys.readouterr().err
    assert (folder / "home" / "thesis.tex").read_text() == "years of work"
    assert dasrel.open_matrix(folder / "d.zarr").n_objects == N


def test_a_failure_while_writing_leaves_the_old_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cluster(folder / "d.zarr", grid("fcm1", 3))
    save_clustering(found, folder / "out")
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Model, "save", full)
    with pytest.raises(OSError, match="No space"):
        save_clustering(found, folder / "out", force=True)
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == before
    assert sorted(os.listdir(folder)) == ["d.zarr", "out"]


# ------------------------------------------------------------------------------------------------------------ predict


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    words = ["--rule", "fcm2", "--entropy-weight", "2", "--clusters", "3", "--tol", "1e-8", "-q"]
    assert app.run(["cluster", "d.zarr", "out", *words]) == 0
    return folder / "out" / "model.npz"


def test_predict_in_all_forms(folder: Path, model: Path, points: Any, here: Callable[..., Any]) -> None:
    fresh = np.random.default_rng(1).normal(3, 3, (6, 2))
    rows = np.linalg.norm(fresh[:, None] - points[None], axis=2)
    U = np.load(folder / "out" / "memberships.npy")
    centres = (U / U.sum(axis=0)).T @ points  # on Euclidean distances a centre is a weighted mean
    d = ((fresh[:, None] - centres[None]) ** 2).sum(axis=2)
    expected = np.exp(-d / 2) / np.exp(-d / 2).sum(axis=1, keepdims=True)

    np.save(folder / "r.npy", rows)
    np.savez(folder / "r.npz", rows=rows, names=np.array([f"n{k}" for k in range(6)]))
    zarr.create_array(folder / "r.zarr", data=rows, chunks=(2, 10))
    with (folder / "r.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *NAMES])
        writer.writerows([f"c{k}", *row] for k, row in enumerate(rows))
    (folder / "names").write_text("".join(f"x{k}\n" for k in range(6)))

    for source, more, first in (
        ("r.npy", [], "0"),
        ("r.npy", ["--ids", "names"], "x0"),
        ("r.npz", [], "n0"),
        ("r.zarr", [], "0"),
        ("r.csv", [], "c0"),
    ):
        done = here("predict", "out", source, "new.csv", "--json", "--force", *more, cwd=folder)
        assert (done.returncode, done.stderr) == (0, ""), source
        result = json.loads(done.stdout)
        assert (result["n_objects"], result["n_clusters"], result["out"]) == (6, 3, "new.csv")
        assert result["sizes"] == np.bincount(expected.argmax(axis=1), minlength=3).tolist()
        table = read_csv(folder / "new.csv")
        assert table[0]["id"] == first
        assert [int(row["label"]) for row in table] == expected.argmax(axis=1).tolist()
        got = np.array([[float(row[f"cluster{k}"]) for k in range(3)] for row in table])
        np.testing.assert_allclose(got, expected, atol=1e-4)
        assert [float(row["membership"]) for row in table] == got.max(axis=1).tolist()


def test_predict_of_a_kernel_needs_the_self_similarity(tmp_path: Path, points: Any) -> None:
    kernel = np.exp(-squareform(pdist(points, "sqeuclidean")) / 20)
    import_matrix(kernel, tmp_path / "k.zarr", kind="kernel")
    found = cluster(tmp_path / "k.zarr", grid("fcm1", 3))
    found.best.model.save(tmp_path / "model.npz")
    np.save(tmp_path / "rows.npy", kernel[:4])
    line = ["predict", str(tmp_path / "model.npz"), str(tmp_path / "rows.npy"), str(tmp_path / "new.csv"), "-q"]
    assert app.run(line) == 1
    assert app.run([*line, "--self-similarity", "1"]) == 0
    got = [[float(row[f"cluster{k}"]) for k in range(3)] for row in read_csv(tmp_path / "new.csv")]
    np.testing.assert_allclose(got, found.best.memberships[:4], atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "more", "report"),
    [
        (np.ones((2, 7)), [], "give (k, 45)"),
        (np.full((2, 45), np.nan), [], "row 0, column 0 of the new rows is nan"),
        (np.ones((2, 45)), ["--ids", "three"], "3 ids for 2 new objects"),
        (np.ones((2, 45)), ["--self-similarity", "1"], "self_similarity is for similarities and kernels"),
    ],
)
def test_rows_that_cannot_be_placed(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str], rows: Any, more: list[str], report: str
) -> None:
    np.save(folder / "r.npy", rows)
    (folder / "three").write_text("a\nb\nc\n")
    assert app.run(["predict", "out/model.npz", "r.npy", "new.csv", "--json", *more]) == 1
    assert report in json.loads(capsys.readouterr().out)["error"]
    assert not (folder / "new.csv").exists()


def test_named_columns_come_in_any_order(folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(0).uniform(0, 5, N)
    for name, order in (("plain", range(N)), ("mixed", np.random.default_rng(1).permutation(N))):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *(NAMES[k] for k in order)])
            writer.writerow(["x", *(values[k] for k in order)])
        assert app.run(["predict", "out", f"{name}.csv", f"{name}-new.csv"]) == 0
    assert (folder / "mixed-new.csv").read_text() == (folder / "plain-new.csv").read_text()
    with (folder / "other.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *NAMES[:-1], "stranger"])
        writer.writerow(["x", *values])
    capsys.readouterr()
    assert app.run(["predict", "out", "other.csv", "other-new.csv"]) == 1
    told = "other.csv: 1 object has no column: o44; columns of no object: stranger; columns are named as the objects of"
    assert told in capsys.readouterr().err
    assert not (folder / "other-new.csv").exists()


@pytest.mark.slow
def test_files_that_are_no_models_or_rows(folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "junk.npz").write_bytes(b"no zip file")
    (folder / "junk.npy").write_bytes(b"no array")
    np.save(folder / "r.npy", np.ones((2, N)))
    assert app.run(["cluster", "d.zarr", "many", "--rule", "fcm1", "--clusters", "2,3", "-q"]) == 0
    for arguments, report in (
        (["none.npz", "r.npy", "new.csv"], "no model at none.npz"),
        (["junk.npz", "r.npy", "new.csv"], "junk.npz is not a dasrel model"),
        (["many", "r.npy", "new.csv"], "no model in many; choose one of its settings, such as many/best"),
        (["d.zarr", "r.npy", "new.csv"], "no model in d.zarr"),
        (["out", "none.npy", "new.csv"], "no rows at none.npy"),
        (["out", "junk.npy", "new.csv"], "junk.npy is no whole .npy file"),
        (["out", "d.zarr", "new.csv"], "d.zarr is not a Zarr array of rows"),
        (["out", "r.npy", "r.npy"], "r.npy would replace what is read"),
        (["out", "r.npy", "out", "--force"], "out would replace what is read"),
    ):
        assert app.run(["predict", *arguments]) == 1
        captured = capsys.readouterr()
        assert report in captured.err
        assert captured.err.count("\n") == 1
    assert not (folder / "new.csv").exists()


# --------------------------------------------------------------------------------------------------------------- demo


@pytest.mark.slow
def test_demo(tmp_path: Path, few_digits: Any, here: Callable[..., Any]) -> None:
    from sklearn.metrics import adjusted_rand_score

    done = here("demo", "kept", "--json", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert sorted(os.listdir(tmp_path / "kept")) == ["dasrel-demo.html", "dasrel-demo.png", "digits.zarr", "results"]
    assert result["audit"]["n_objects"] == 300
    assert result["runs"] == 25
    assert result["scans"] * 5 < result["scans_one_by_one"]

    truth = few_digits
    clusters = tmp_path / "kept" / "results" / "clusters"
    saved = json.loads((clusters / "result.json").read_text())
    for one, setting in zip(result["settings"], saved["settings"], strict=True):
        rows = read_csv(clusters / setting["folder"] / "labels.csv")
        labels = np.array([int(row["label"]) for row in rows])
        assert [int(row["id"][5]) for row in rows] == truth.tolist()
        assert one["adjusted_rand_index"] == pytest.approx(adjusted_rand_score(truth, labels))
        if one["n_clusters"] == 10:
            assert one["adjusted_rand_index"] > 0.5
            # right under an assignment: at least by giving each cluster a digit of its own, at most its commonest digit
            commonest = sum(np.bincount(truth[labels == k]).max() for k in range(10)) / len(truth)
            assert 0.6 < result["accuracy"] <= commonest + 1e-12
    assert [one["n_clusters"] for one in result["settings"]] == [6, 8, 10, 12, 14]
    assert result["recommended"] == max(result["settings"], key=lambda one: one["index"])["n_clusters"]

    typicalities = read_csv(tmp_path / "kept" / "results" / "outliers" / "outliers.csv")
    lowest = sorted(typicalities, key=lambda row: float(row["typicality"]))
    assert result["outliers"]["ids"][0] == lowest[0]["id"]
    assert result["outliers"]["count"] == sum(row["outlier"] == "true" for row in typicalities) == 6  # 2 % of 300
    cut = [int(row["label"]) for row in read_csv(tmp_path / "kept" / "results" / "dendrogram" / "labels.csv")]
    assert len(set(cut)) == result["dendrogram"]["n_clusters"]
    assert result["dendrogram"]["adjusted_rand_index"] == pytest.approx(adjusted_rand_score(truth, cut))
    page = (tmp_path / "kept" / "dasrel-demo.html").read_text()
    assert lowest[0]["id"] in page
    assert "average" in page

    pixels = matplotlib.image.imread(tmp_path / "kept" / "dasrel-demo.png")[..., :3]
    assert len({tuple(pixel) for pixel in (pixels * 16).astype(int).reshape(-1, 3).tolist()}) > 50

    done = here("demo", "kept")
    assert done.returncode == 1
    assert done.stderr.startswith("dasrel: kept/digits.zarr exists")


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
def test_demo_without_a_folder_keeps_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "STARTS", 1)
    monkeypatch.setattr(demo, "CLUSTERS", (demo.DRAWN,))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dasrel-demo.png").write_text("an earlier one")
    assert app.run(["demo"]) == 0
    picture, page = capsys.readouterr().out.splitlines()[-2:]
    assert picture.split(maxsplit=1) == ["picture", "dasrel-demo.png (an earlier one was replaced)"]
    uri = (tmp_path / "dasrel-demo.html").as_uri()
    assert page.split(maxsplit=1) == ["page", f"dasrel-demo.html; open {uri} in a browser"]
    assert sorted(os.listdir(tmp_path)) == ["dasrel-demo.html", "dasrel-demo.png"]
    assert matplotlib.image.imread(tmp_path / "dasrel-demo.png").shape[2] >= 3
    text = (tmp_path / "dasrel-demo.html").read_text()  # names nothing that is gone
    assert "dasrel cluster FOLDER/digits.zarr FOLDER/results/clusters" in text
    assert f"{tempfile.gettempdir()}/tmp" not in text
