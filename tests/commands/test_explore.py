"""`dasrel explore`: what it says of groups, of none and of crooked ones; interruptions; refusals."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from dasrel.cli import app
from dasrel.util import progress
from tests.helpers.matrices import distances, grouped_points, uniform_points
from tests.helpers.stores import files, stored

pytestmark = pytest.mark.filterwarnings("ignore::dasrel.DasrelWarning")
PARTS = ["axes", "clusters", "density", "outliers", "spectrum.json", "tree"]


def explored(D: Any, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    shutil.rmtree("d.zarr", ignore_errors=True)
    stored("d.zarr", D, tile=80)
    capsys.readouterr()
    assert app.run(["explore", "d.zarr", "out", "--json", *options]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def labels(path: str) -> list[int]:
    with open(path, encoding="utf-8", newline="") as lines:
        return [int(row["label"]) for row in csv.DictReader(lines)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_groups_that_all_methods_find(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.watch() as count:
        result = explored(distances(grouped_points(150, groups=3, apart=9.0)), capsys, "--clusters", "2-5")
    assert result == json.loads(Path("out/result.json").read_text())
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(
        [*PARTS, "agreement.csv", "page.html", "result.json"]
    )
    assert result["answer"] == "3 groups, by c-means and by density alike."
    assert count.scans - 1 == result["scans"] == sum(part["scans"] for part in result["parts"])  # one is for the page
    by_means, by_density = labels("out/clusters/best/labels.csv"), labels("out/density/labels.csv")
    kept = np.array(by_density) >= 0
    row = result["agreement"][0]
    assert (row["first"], row["second"], row["objects"]) == ("c-means", "density", kept.sum())
    expected = adjusted_rand_score(np.array(by_means)[kept], np.array(by_density)[kept])
    assert row["adjusted_rand_index"] == pytest.approx(expected)
    page = Path("out/page.html").read_text()
    assert "<h1>3 groups, by c-means and by density alike</h1>" in page
    for text in (
        "3 groups, by c-means and by density alike",
        "Do the methods agree?",
        "What to do next",
        "Condensed tree",
    ):
        assert text in page, text


@pytest.mark.slow
def test_noise_has_no_clusters_and_moons_are_left_to_density(capsys: pytest.CaptureFixture[str]) -> None:
    less = ["--leave-out", "outliers,embed,spectrum", "--clusters", "2-5"]
    result = explored(distances(uniform_points(200, 4)), capsys, *less)
    assert result["answer"].startswith("No clusters: the 200 objects have no more structure than chance gives")
    assert result["left_out"] == dict.fromkeys(["outliers", "embed", "spectrum"], "it was not wanted")
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "agreement.csv", "clusters", "density", "page.html", "result.json", "tree",
    ]  # fmt: skip
    moons = distances(make_moons(200, noise=0.04, random_state=0)[0])
    result = explored(moons, capsys, *less, "--force")
    assert result["answer"].startswith("2 dense groups stand apart, of other shapes than c-means looks for")


@pytest.mark.slow
def test_what_was_not_tested_is_not_said_and_what_is_replaced_goes(capsys: pytest.CaptureFixture[str]) -> None:
    D = distances(uniform_points(60, 4))
    less = ["--leave-out", "tree,outliers,embed,spectrum", "--clusters", "2"]
    explored(D, capsys, *less)
    assert Path("out/clusters").is_dir()
    Path("out/page.html").unlink()  # as if killed before it was written
    assert app.run(["explore", "d.zarr", "out", "--resume", *less]) == 0
    assert Path("out/page.html").is_file()
    result = explored(D, capsys, "--leave-out", "cluster,tree,outliers,embed,spectrum", "--force")
    assert result["answer"] == "No dense groups among the 60 objects; whether there are compact ones was not tested."
    assert not Path("out/clusters").exists()
    result = explored(np.array([[0.0, 1.0], [1.0, 0.0]]), capsys, *less, "--force")
    assert result["left_out"]["cluster"] == "there are only 2 objects"


@pytest.mark.slow
def test_an_interrupted_exploration_is_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    D = distances(grouped_points(90, groups=3, apart=9.0))
    explored(D, capsys, "--clusters", "2,3")
    line = ["explore", "d.zarr", "later", "--clusters", "2,3", "--checkpoint", "kept", "--quiet"]
    stops = 0
    while (code := app.run([*line, "--time-limit", "0.5s", *(["--resume"] if stops else [])])) == 75:
        assert not Path("later/result.json").exists()
        stops += 1
        assert stops < 60
    assert code == 0
    assert stops > 0
    with progress.watch() as count:
        assert app.run([*line, "--resume"]) == 0
    assert count.scans == 0
    whole, later = files(Path("out")), files(Path("later"))
    assert set(whole) == set(later)
    for name in whole:
        if name.endswith((".csv", ".npy")) and "runs" not in name:
            assert whole[name] == later[name], name


def test_the_cost_and_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    stored("d.zarr", distances(grouped_points(60, groups=3)), tile=20)
    with progress.watch() as count:
        assert app.run(["explore", "d.zarr", "out", "--dry-run", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert cost["facts"]["scans_of_density"] == 2
    parts = sum(value for name, value in cost["facts"].items() if name.startswith("scans_of_"))
    assert cost["scans"]["typical"] == pytest.approx(parts, abs=3)
    assert count.scans == 0
    assert not Path("out").exists()
    for options, message in (
        (["--leave-out", "pictures"], "there is no part pictures"),
        (["--clusters", "0"], "clusters"),
    ):
        assert app.run(["explore", "d.zarr", "out", *options]) in (1, 2)
        assert message in capsys.readouterr().err
    Path("out").mkdir()
    Path("out/mine.txt").touch()
    for force in ([], ["--force"]):
        assert app.run(["explore", "d.zarr", "out", *force]) == 1
        assert Path("out/mine.txt").exists()
