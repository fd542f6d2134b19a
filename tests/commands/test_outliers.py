"""Outliers from options: result folders, grids, pictures, models, interruptions, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.commands.outliers import OPERATION
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.oneclass.segments import SavedSegments, _Follower
from dasrel.partition.model import Model
from dasrel.report.verdict import outlier_verdict
from dasrel.util import progress
from dasrel.util.results import without_times
from tests.helpers import oneclass_oracle as oracle
from tests.helpers.commands import prepared
from tests.helpers.faults import Killed, killed_after
from tests.helpers.matrices import distances


@pytest.fixture(scope="module")
def points() -> Any:
    return oracle.figure_1(4)[0]


@pytest.fixture(scope="module")
def shapes(points: Any, store_factory: Any) -> str:
    """The distances of figure 1 of F10, in 15 tiles."""
    return str(store_factory(distances(points), dtype="float64", tile=64))


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_figure_1_of_the_paper_from_distances_and_from_features(
    shapes: str, points: Any, tmp_path: Path, here: Any
) -> None:
    """Six clusters at sigma 0.5 with 10 % rejected, gamma 1 and eps 0.01."""
    np.save(tmp_path / "x.npy", points)
    asked = ["--width", "0.5", "--reject", "0.1", "--clusters"]
    done = here("outliers", shapes, tmp_path / "out", *asked, "--json")
    result = json.loads(done.stdout)
    (setting,) = result["settings"]
    assert (setting["outliers"], setting["clusters"]["n_clusters"]) == (29, 6)
    assert setting["clusters"]["complete"]
    assert setting["clusters"]["is_euclidean"]
    rows = lines_of(tmp_path / "out" / "outliers.csv")
    D = distances(points, "sqeuclidean")
    u = oracle.core(oracle.gaussian_kernel(D, 0.5), 1.0, 1e-5, per_object=True)[0]
    np.testing.assert_allclose([float(row["typicality"]) for row in rows], u, rtol=0, atol=1e-9)
    assert [int(row["rank"]) for row in rows] == (np.argsort(np.argsort(u)) + 1).tolist()
    assert sum(row["outlier"] == "true" for row in rows) == 29
    assert all((row["cluster"] == "-1") == (row["outlier"] == "true") for row in rows)
    assert (tmp_path / "out" / "outliers.png").read_bytes().startswith(b"\x89PNG")
    again = here("outliers", shapes, tmp_path / "again", *asked, "--features", tmp_path / "x.npy", "--no-picture")
    assert again.returncode == 0
    assert (tmp_path / "again" / "outliers.csv").read_bytes() == (tmp_path / "out" / "outliers.csv").read_bytes()
    assert not (tmp_path / "again" / "outliers.png").exists()


@pytest.mark.slow
def test_features_of_other_objects_are_told(shapes: str, points: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", points[::-1])
    np.save(tmp_path / "few.npy", points[:5])
    options = {"width": [0.5], "reject": 0.1, "clusters": True}
    order = np.random.default_rng(0).permutation(len(points))
    lines = ["sample-id,x,y", *(f"{k},{points[k][0]!r},{points[k][1]!r}" for k in order)]
    (tmp_path / "named.csv").write_text("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n")
    named = {**options, "features": str(tmp_path / "named.csv"), "picture": False}
    prepared("outliers", shapes, tmp_path / "by-name", **named).run()  # rows with names are in any order
    with pytest.raises(InputError, match="features give other clusters than the matrix"):
        prepared("outliers", shapes, tmp_path / "o", **options, features=str(tmp_path / "other.npy")).run()
    with pytest.raises(InputError, match="has 5 rows and the store 290 objects"):
        prepared("outliers", shapes, tmp_path / "o", **options, features=str(tmp_path / "few.npy")).run()
    assert not (tmp_path / "o").exists()


def test_a_grid_has_a_folder_for_each_setting(shapes: str, tmp_path: Path) -> None:
    options = {"width": ["auto", 0.5, 1.0], "eta_scale": [1.0, 4.0], "reject": 0.1, "picture": False}
    job = prepared("outliers", shapes, tmp_path / "out", **options)
    with progress.watch() as counted:
        result = job.run()
    assert counted.scans == result["scans"]
    cost = job.cost()
    assert cost.scans.least <= counted.scans <= cost.scans.most
    assert cost.facts == {"settings": 6, "columns": 14, "bundles": 1}
    names = [one["folder"] for one in result["settings"]]
    assert names[:3] == ["widthauto-scale1", "widthauto-scale4", "width0.5-scale1"]
    assert [len(one["ladder"]) for one in result["settings"]] == [5, 5, 0, 0, 0, 0]
    assert result["settings"][0]["ladder"][2]["same_outliers"] == 29
    for name in names:
        model = Model.load(tmp_path / "out" / name / "model.npz")
        scores = model.score_samples(np.asarray(job.prepared.relation.matrix))
        rejected = [row["outlier"] == "true" for row in lines_of(tmp_path / "out" / name / "outliers.csv")]
        np.testing.assert_array_equal(scores < model.threshold, rejected)


def test_new_objects_are_predicted_by_the_command(shapes: str, points: Any, tmp_path: Path, here: Any) -> None:
    here("outliers", shapes, tmp_path / "out", "--width", "0.5", "--reject", "0.1", "--no-picture")
    new = np.array([points[0] + 0.05, [9.9, -9.9]])
    np.save(tmp_path / "rows.npy", np.sqrt(((new[:, None] - points[None]) ** 2).sum(axis=2)))
    done = here("predict", tmp_path / "out", tmp_path / "rows.npy", tmp_path / "new.csv", "--json")
    found = json.loads(done.stdout)
    assert (found["n_objects"], found["outliers"]) == (2, 1)
    assert [row["outlier"] for row in lines_of(tmp_path / "new.csv")] == ["false", "true"]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("scans", [1, 3, 5])
def test_a_killed_job_is_resumed_to_the_same_files(shapes: str, tmp_path: Path, scans: int) -> None:
    options = {"width": ["auto", 0.7], "reject": 0.1, "clusters": True, "picture": False}
    whole = prepared("outliers", shapes, tmp_path / "whole", **options).run()
    kept = tmp_path / "kept"
    with pytest.raises(Killed), killed_after(scans):
        prepared("outliers", shapes, tmp_path / "out", **options).run(Checkpoint(kept))
    assert not (tmp_path / "out").exists()
    again = prepared("outliers", shapes, tmp_path / "out", **options).run(Checkpoint(kept, resume=True))
    same = without_times(whole) | {"out": str(tmp_path / "out")}
    assert without_times(again) == same
    for name in ("widthauto", "width0.7"):
        files = [(tmp_path / out / name / "outliers.csv").read_bytes() for out in ("whole", "out")]
        assert files[0] == files[1]
    finished = prepared("outliers", shapes, tmp_path / "out", resume=True, **options)
    with progress.watch() as counted:
        assert without_times(finished.run()) == same
    assert counted.scans == 0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("strips", [1, 4, 7])
def test_segments_are_resumed_where_they_were_stopped(
    shapes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strips: int
) -> None:
    options = {"width": [0.5, 0.7], "reject": 0.1, "clusters": True, "picture": False}
    whole = prepared("outliers", shapes, tmp_path / "whole", **options).run()
    reads = {"before": 0, "after": 0}
    now = "before"
    real = _Follower._add

    def add(*given: Any) -> None:
        reads[now] += 1
        real(*given)

    monkeypatch.setattr(_Follower, "_add", add)
    kept = tmp_path / "kept"
    with monkeypatch.context() as patch:
        part, left = SavedSegments.part, strips

        def dying(self: SavedSegments, sums: Any, objects: int) -> None:
            nonlocal left
            part(self, sums, objects)
            left -= 1
            if not left:
                raise Killed

        patch.setattr(SavedSegments, "part", dying)
        with pytest.raises(Killed):
            prepared("outliers", shapes, tmp_path / "out", **options).run(Checkpoint(kept))
    now = "after"
    again = prepared("outliers", shapes, tmp_path / "out", **options).run(Checkpoint(kept, resume=True))
    assert without_times(again) == without_times(whole) | {"out": str(tmp_path / "out")}  # scans too
    for name in ("width0.5", "width0.7"):
        files = [(tmp_path / out / name / "outliers.csv").read_bytes() for out in ("whole", "out")]
        assert files[0] == files[1]
    total = dict(reads)
    reads |= {"before": 0, "after": 0}
    prepared("outliers", shapes, tmp_path / "third", **options).run()
    assert total["before"] + total["after"] == reads["after"]  # no strip is followed twice


def test_a_checkpoint_of_other_options_is_refused(shapes: str, tmp_path: Path) -> None:
    with pytest.raises(Killed), killed_after(2):
        prepared("outliers", shapes, tmp_path / "o", width=[0.5]).run(Checkpoint(tmp_path / "k"))
    other = prepared("outliers", shapes, tmp_path / "o", width=[0.6])
    with pytest.raises(StoreError, match=r"belongs to something else: run.*width"):
        other.run(Checkpoint(tmp_path / "k", resume=True))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--width", "0"], "width is 0.0; give a finite number above 0"),
        (["--width", "1e-9"], "no object sees another"),
        (["--width", "1e9"], "all objects look equal"),
        (["--width", "1,1"], "given twice"),
        (["--reject", "0.7"], "above 0 and at most 0.5"),
        (["--eta-scale", "0"], "--eta-scale is 0.0; give a finite number above 0"),
        (
            ["--reject", "1.0"],
            "--reject is 1.0; give a share above 0 and at most 0.5, a whole number of objects such as 12",
        ),
        (["--reject", "200"], "--reject is 200 of 290 objects; give at most 145, half of them"),
        (["--clusters", "--width", "none"], "need a width"),
        (["--euclideanize", "ultrametric"], "cannot see an added ultrametric"),
        (["--max-iter", "0"], "--max-iter is 0; give a whole number of at least 1"),
    ],
)
def test_bad_options_get_one_line(shapes: str, tmp_path: Path, here: Any, asked: list[str], told: str) -> None:
    done = here("outliers", shapes, tmp_path / "out", *asked)
    assert done.returncode == 1, done.stderr
    assert told in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("dasrel:")]) == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [["--width", "wide"], ["--reject", "some"], ["--features", "x.npy"]])
def test_options_that_cannot_be_read_are_wrong_usage(shapes: str, tmp_path: Path, here: Any, asked: list[str]) -> None:
    done = here("outliers", shapes, tmp_path / "out", *asked)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_segments_of_a_matrix_that_is_not_euclidean(crooked_store: Path, tmp_path: Path) -> None:
    options = {"width": [20.0], "clusters": True}
    with (
        pytest.warns(DasrelWarning, match="not Euclidean"),
        pytest.raises(InputError, match="there are no segments between objects"),
    ):
        prepared("outliers", str(crooked_store), tmp_path / "o", **options).run()
    changed = {"width": [20.0], "clusters": True, "euclideanize": "spread"}
    result = prepared("outliers", str(crooked_store), tmp_path / "o", **changed).run()
    assert result["euclideanized"]["method"] == "spread"


@pytest.fixture(scope="module")
def tight(store_factory: Any) -> str:
    """A cloud, and a tight group of ten that a narrow kernel takes for typical."""
    rng = np.random.default_rng(4)
    points = np.concatenate([rng.normal(size=(300, 3)), rng.normal(8, 0.1, (10, 3))])
    return str(store_factory(distances(points), dtype="float64", tile=128))


def test_outliers_that_stand_out_by_one_score_only_are_told(tight: str, tmp_path: Path) -> None:
    result = prepared("outliers", tight, tmp_path / "narrow", width=[0.3], picture=False).run()
    (setting,) = result["settings"]
    ids = {str(k) for k in range(300, 310)}
    assert (setting["outliers"], setting["neighbours"]["standing_out"]) == (0, 10)
    assert set(setting["neighbours"]["standing_out_ids"]) == ids
    told = [text for _, text in OPERATION.lines(result)]
    assert "no outliers stand out" in told
    assert any("by their neighbours 10 stand out" in text for text in told)
    assert any("the two scores disagree, look at both" in text for text in told)
    assert [said.level for said in outlier_verdict(result, setting)] == ["caution", "caution"]
    rows = lines_of(tmp_path / "narrow" / "outliers.csv")
    assert {k for k, row in enumerate(rows) if int(row["neighbour_rank"]) <= 10} == set(range(300, 310))
    wide = prepared("outliers", tight, tmp_path / "wide", width=[4.0], picture=False).run()["settings"][0]
    assert (set(wide["outlier_ids"]), wide["neighbours"]["same"]) == (ids, 10)


def test_a_number_of_objects_is_rejected(tight: str, tmp_path: Path, here: Any) -> None:
    done = here("outliers", tight, tmp_path / "o", "--width", "4", "--reject", "12", "--no-picture", "--json")
    result = json.loads(done.stdout)
    assert (result["requested"]["reject"], result["settings"][0]["outliers"]) == (12, 12)
    text = f'[store]\npath = "{tight}"\n[outliers]\nwidth = 4\nreject = 12\npicture = false\n'
    (tmp_path / "w.toml").write_text(text, encoding="utf-8")
    assert here("run", tmp_path / "w.toml").returncode == 0
    files = [path / "outliers.csv" for path in (tmp_path / "w" / "outliers", tmp_path / "o")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_nearly_all_objects_in_one_cluster_are_told(tight: str, tmp_path: Path) -> None:
    job = prepared("outliers", tight, tmp_path / "o", width=[4.0], clusters=True, picture=False)
    result = job.run()
    told = "\n".join(text for _, text in OPERATION.lines(result))
    assert "all objects that are no outliers are in one cluster: groups that touch or differ in density" in told
    assert "dasrel tree STORE OUT --linkage average" in told
    (said,) = [said for said in outlier_verdict(result, result["settings"][0]) if "of any shape" in said.text]
    assert (said.level, "`dasrel density STORE OUT`" in said.text) == ("caution", True)


@pytest.mark.slow
def test_a_workflow_has_the_same_files_as_the_command(shapes: str, tmp_path: Path, here: Any) -> None:
    text = f'[store]\npath = "{shapes}"\n[outliers]\nwidth = [0.5, 1]\nreject = 0.1\n'
    (tmp_path / "w.toml").write_text(text, encoding="utf-8")
    assert here("run", tmp_path / "w.toml").returncode == 0
    here("outliers", shapes, tmp_path / "out", "--width", "0.5,1", "--reject", "0.1")
    for name in ("width0.5", "width1"):
        files = [tmp_path / out / name / "outliers.csv" for out in ("w/outliers", "out")]
        assert files[0].read_bytes() == files[1].read_bytes()
    done = here("run", tmp_path / "w.toml")
    assert "up to date" in done.stdout
