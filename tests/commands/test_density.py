"""`dasrel density`: files, interruptions, predictions, pages, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import DBSCAN, HDBSCAN
from sklearn.datasets import make_moons

import dasrel
from dasrel.cli import app
from dasrel.util import progress
from tests.helpers.matrices import distances
from tests.helpers.stores import files, stored

N = 120
IDS = [f"obj {k}" for k in range(N)]
D = distances(make_moons(N, noise=0.07, random_state=1)[0])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    stored("d.zarr", D, ids=IDS, dtype="float64", tile=25)
    return tmp_path


def rows_of(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def run(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert app.run([*line.split(), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.slow
def test_files_of_a_result(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.watch() as count:
        result = run("density d.zarr out --min-size 6 --min-samples 2 --eps 0.1,0.3", capsys)
    assert count.scans == result["scans"] == 2
    assert result == json.loads(Path("out/result.json").read_text())
    names = ["condensed_tree.csv", "dbscan.csv", "density.png", "labels.csv", "model.npz", "result.json"]
    assert sorted(file.name for file in Path("out").iterdir()) == names
    theirs = HDBSCAN(min_cluster_size=6, min_samples=2, metric="precomputed", algorithm="brute", copy=True).fit(D)
    table = rows_of("out/labels.csv")
    assert [row["id"] for row in table] == IDS
    labels = np.array([int(row["label"]) for row in table])
    pairs = set(zip(labels.tolist(), theirs.labels_.tolist(), strict=True))
    assert len(pairs) == len(set(labels.tolist())) == len(set(theirs.labels_.tolist()))
    np.testing.assert_allclose([float(row["probability"]) for row in table], theirs.probabilities_, atol=1e-6)
    (setting,) = result["settings"]
    assert setting["noise"] == (theirs.labels_ < 0).sum()
    assert sorted(setting["sizes"]) == sorted(np.bincount(theirs.labels_[theirs.labels_ >= 0]))
    tree = rows_of("out/condensed_tree.csv")
    assert [row["id"] for row in tree if row["id"]] == IDS
    below = {int(row["child"]): int(row["size"]) for row in tree if row["child"]}
    for cluster, size in below.items():
        inside = [cluster]
        for child in below:
            if any(row["child"] == str(child) and int(row["parent"]) in inside for row in tree):
                inside.append(child)
        assert size == sum(row["id"] != "" and int(row["parent"]) in inside for row in tree)
    columns = rows_of("out/dbscan.csv")
    for eps in ("0.1", "0.3"):
        expected = DBSCAN(eps=float(eps), min_samples=2, metric="precomputed").fit(D).labels_
        assert [int(row[f"eps{eps}"]) for row in columns] == expected.tolist()  # with two samples there is no border


def test_several_settings_share_the_scans(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.watch() as count:
        result = run("density d.zarr out --min-size 5,9 --min-samples 1,3,7 --no-picture", capsys)
    assert count.scans == 2
    folders = [f"size{size}-samples{samples}" for size in (5, 9) for samples in (1, 3, 7)]
    assert [setting["folder"] for setting in result["settings"]] == folders
    for setting in result["settings"]:
        labels = [int(row["label"]) for row in rows_of(f"out/{setting['folder']}/labels.csv")]
        run_ = dasrel.DensityRun(setting["min_size"], setting["min_samples"])
        assert labels == dasrel.hdbscan(D, run_, kind="distance").best.labels.tolist()
    with progress.watch() as count:
        run("density d.zarr one --min-size 5 --min-samples 1 --no-picture", capsys)
    assert count.scans == 1


def test_an_interrupted_command_is_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = "--min-size 5 --checkpoint kept --no-picture"
    assert app.run(f"density d.zarr out {kept}".split()) == 0
    assert app.run(f"density d.zarr later {kept} --time-limit 0.000001s".split()) == 75
    assert not Path("later").exists()
    assert app.run(f"density d.zarr later {kept} --resume".split()) == 0
    whole, later = files(Path("out")), files(Path("later"))
    assert {name: whole[name] for name in whole if name != "result.json"} == {
        name: later[name] for name in later if name != "result.json"
    }


def test_new_objects(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("density d.zarr out --min-size 6 --no-picture", capsys)
    np.save("rows.npy", np.vstack([D[:30], np.full((1, N), 50.0)]))
    result = run("predict out rows.npy new.csv", capsys)
    placed, known = rows_of("new.csv"), rows_of("out/labels.csv")
    assert result["n_objects"] == len(placed) == 31
    assert (placed[30]["label"], float(placed[30]["probability"])) == ("-1", 0)
    firm = [k for k in range(30) if float(known[k]["probability"]) > 0.5]
    assert len(firm) > 10
    assert all(placed[k]["label"] == known[k]["label"] for k in firm)


def test_a_page_and_noise(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["density", "d.zarr", "out", "--min-size", "5,100", "--min-samples", "3", "--eps", "0.2"]) == 0
    assert "no cluster of at least 100 objects stands out" in capsys.readouterr().err
    assert app.run(["report", "out", "-o", "page.html", "--quiet"]) == 0
    page = Path("page.html").read_text()
    for text in ("all is noise", "DBSCAN at fixed distances", "Condensed tree", "by density among 120 objects"):
        assert text in page, text
    assert app.run(["density", "d.zarr", "new", "--dry-run"]) == 0
    assert "scans" in capsys.readouterr().out


def test_refusals(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        ("--min-size 121", "min_size is 121, and there are 120 objects; give --min-size NUMBER of at most 120"),
        ("--min-samples 121", "min_samples is 121, and there are 120 objects"),
        ("--min-size 1", "min_size"),
        ("--eps 0", "eps"),
        ("--method best", "best"),
    ):
        assert app.run(["density", "d.zarr", "out", *options.split()]) in (1, 2), options
        printed = capsys.readouterr().err
        assert message in printed.replace("min-size is", "min_size is").replace("min-samples is", "min_samples is")
        assert "Traceback" not in printed
        assert not Path("out").exists()
