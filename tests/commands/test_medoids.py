"""`dasrel medoids`: files, interruptions, predictions, pages, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from dasrel.cli import app
from dasrel.util import progress
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.stores import files, stored

N = 90
IDS = [f"obj {k}" for k in range(N)]
D = distances(grouped_points(N, groups=3, apart=7.0))


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


def test_files_of_a_result(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.watch() as count:
        result = run("medoids d.zarr out --clusters 2-4", capsys)
    assert count.scans == result["scans"]
    assert result == json.loads(Path("out/result.json").read_text())
    assert result["n_clusters"] == 3
    top = ["labels.csv", "medoids.csv", "model.npz"]
    folders = ["clusters2", "clusters3", "clusters4"]
    names = sorted([*folders, "medoids.png", "numbers.csv", "result.json", *top])
    assert sorted(file.name for file in Path("out").iterdir()) == names
    for name in ("labels.csv", "medoids.csv", "model.npz"):
        assert Path("out", name).read_bytes() == Path("out/clusters3", name).read_bytes()
    for c in (2, 3, 4):
        medoids, labels = rows_of(f"out/clusters{c}/medoids.csv"), rows_of(f"out/clusters{c}/labels.csv")
        at = [IDS.index(row["medoid"]) for row in medoids]
        assert [row["id"] for row in labels] == IDS
        assert [int(row["label"]) for row in labels] == D[:, at].argmin(axis=1).tolist()
        np.testing.assert_allclose([float(row["distance"]) for row in labels], D[:, at].min(axis=1), rtol=1e-6)
        for row, medoid in zip(medoids, at, strict=True):
            members = [k for k in range(N) if labels[k]["label"] == row["cluster"]]
            assert int(row["size"]) == len(members)
            mean = D[members, medoid].sum() / (len(members) - 1)
            assert float(row["mean_dissimilarity"]) == pytest.approx(mean, rel=1e-6)
    assert [int(row["n_clusters"]) for row in rows_of("out/numbers.csv")] == [2, 3, 4]


def test_lines_and_a_page(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["medoids", "d.zarr", "out", "--clusters", "2,3"]) == 0
    printed = capsys.readouterr().out
    assert "recommended  3 clusters, by the mean silhouette" in printed
    assert "3 clusters   silhouette" in printed
    assert app.run(["report", "out", "-o", "page.html", "--quiet"]) == 0
    page = Path("page.html").read_text()
    for text in ("3 medoids of 90 objects", "Number of clusters", "stars the medoids", "obj "):
        assert text in page, text
    assert app.run(["medoids", "d.zarr", "new", "--clusters", "3", "--dry-run"]) == 0
    assert "scans" in capsys.readouterr().out
    assert app.run(["medoids", "d.zarr", "three", "--clusters", "3"]) == 0
    assert Path("three/medoids.png").is_file()
    assert app.run(["medoids", "d.zarr", "one", "--clusters", "1"]) == 0
    assert Path("one/medoids.png").is_file()
    assert app.run(["report", "one", "-o", "one.html", "--quiet"]) == 0
    assert "its medoid is the most central object" in Path("one.html").read_text()


def test_an_interrupted_command_is_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = "--clusters 2,3 --checkpoint kept --no-picture"
    assert app.run(f"medoids d.zarr out {kept}".split()) == 0
    assert app.run(f"medoids d.zarr later {kept} --time-limit 0.000001s".split()) == 75
    assert not Path("later").exists()
    assert app.run(f"medoids d.zarr later {kept} --resume".split()) == 0
    whole, later = files(Path("out")), files(Path("later"))
    assert {name: whole[name] for name in whole if not name.endswith("result.json")} == {
        name: later[name] for name in later if not name.endswith("result.json")
    }


def test_weights_and_new_objects(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = np.random.default_rng(0).integers(1, 9, N)
    lines = [f"{name},{weight}" for name, weight in zip(IDS, weights, strict=True)]
    Path("w.csv").write_text("\n".join(["id,weight", *reversed(lines)]) + "\n")
    result = run("medoids d.zarr out --clusters 3 --weights w.csv --no-picture", capsys)
    expected = dasrel.kmedoids(D, dasrel.MedoidRun(3), kind="distance", weights=weights).best
    assert [row["medoid"] for row in result["medoids"]] == [IDS[k] for k in expected.medoids]
    assert result["numbers"][0]["objective"] == pytest.approx(expected.objective)
    np.save("rows.npy", D[:20])
    run("predict out rows.npy new.csv", capsys)
    assert [row["label"] for row in rows_of("new.csv")] == [row["label"] for row in rows_of("out/labels.csv")][:20]


def test_refusals(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("zero.csv").write_text("\n".join(["id,weight", *(f"{name},0" for name in IDS)]))
    Path("text.csv").write_text("\n".join(["id,weight", *(f"{name},x" for name in IDS)]))
    for options, message in (
        ("--clusters 91", "91 clusters of 90 objects"),
        ("--clusters 0", "0"),
        ("", "clusters"),
        ("--clusters 2 --n-init 0", "n-init"),
        ("--clusters 2 --weights none.csv", "there is no file none.csv"),
        ("--clusters 2 --weights zero.csv", "the weight of obj 0 is 0; give a number above 0"),
        ("--clusters 2 --weights text.csv", "weights that are no numbers"),
    ):
        assert app.run(["medoids", "d.zarr", "out", *options.split()]) in (1, 2), options
        printed = capsys.readouterr().err
        assert message in printed, (options, printed)
        assert "Traceback" not in printed
        assert not Path("out").exists()
