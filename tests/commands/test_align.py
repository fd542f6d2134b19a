"""Alignments from options: result folders, the command, workflow steps, interruptions, costs, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import MemoryLimitError
from dasrel.util import progress
from dasrel.util.results import without_times
from tests.helpers.commands import prepared
from tests.helpers.faults import Killed, killed_after
from tests.helpers.matrices import blobs, distances

FEW = ("--clusters", "2-5", "--n-init", "2")


@pytest.fixture(scope="module")
def points() -> Any:
    return blobs(16, [[0, 0], [9, 0], [4, 8]], 2)


@pytest.fixture(scope="module")
def groups(points: Any, store_factory: Any) -> str:
    return str(store_factory(distances(points), dtype="float64", tile=16))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_command_writes_a_result_that_others_read(groups: str, points: Any, tmp_path: Path, here: Any) -> None:
    out = tmp_path / "out"
    done = here("align", groups, out, *FEW, "--json")
    result = json.loads(done.stdout)
    assert result["n_clusters"] == 3
    assert sorted(result["sizes"]) == [16, 16, 16]
    assert (out / "alignment.png").read_bytes().startswith(b"\x89PNG")
    table = rows_of(out / "alignment.csv")
    assert len(table) == 4 * result["widths"]
    (best,) = [row for row in table if row["best"] == "true"]
    assert (int(best["n_clusters"]), float(best["width"])) == (3, result["width"])
    assert float(best["alignment"]) == max(float(row["alignment"]) for row in table) == result["alignment"]
    # the alignment of the files: that of the stored memberships with the kernel of the stored width
    U = np.load(out / "memberships.npy")
    P = np.minimum(U[:, None], U[None]).sum(axis=2)
    K = np.exp(-distances(points, "sqeuclidean") / (2 * result["width"] ** 2))
    expected = (K * P).sum() / np.sqrt((K * K).sum() * (P * P).sum())
    assert result["alignment"] == pytest.approx(expected, abs=1e-10)
    np.save(tmp_path / "row.npy", distances(np.concatenate([points, [[9, 1]]]))[-1:, :-1])
    assert here("predict", out, tmp_path / "row.npy", tmp_path / "new.csv").returncode == 0
    labels = [int(row["label"]) for row in rows_of(out / "labels.csv")]
    assert int(rows_of(tmp_path / "new.csv")[0]["label"]) == labels[20]
    assert here("validity", groups, out).returncode == 0


def test_what_is_printed_names_the_choice_and_all_numbers(groups: str, tmp_path: Path, here: Any) -> None:
    text = here("align", groups, tmp_path / "out", *FEW, "--no-picture").stdout
    lines = dict(line.split("  ", 1) for line in text.splitlines())
    assert lines["clusters"].strip().startswith("3, fuzzifier 2, sizes 16 16 16")
    assert "searched from" in lines["width"]
    assert [name for name in lines if name.endswith(" clusters")] == [f"{c} clusters" for c in range(2, 6)]
    assert not (tmp_path / "out" / "alignment.png").exists()


@pytest.mark.parametrize(
    "more", [(), ("--width", "1,2.5"), ("--search", "evolution", "--population", "6", "--generations", "3")]
)
def test_scans_are_within_the_estimate(groups: str, tmp_path: Path, here: Any, more: tuple[str, ...]) -> None:
    estimate = json.loads(here("align", groups, tmp_path / "out", *FEW, *more, "--dry-run", "--json").stdout)
    assert not (tmp_path / "out").exists()
    with progress.watch() as counted:
        done = json.loads(here("align", groups, tmp_path / "out", *FEW, *more, "--json").stdout)
    assert done["scans"] == counted.scans
    assert estimate["scans"]["least"] <= done["scans"] <= estimate["scans"]["most"]
    assert estimate["facts"]["partitions"] == 4


@pytest.mark.parametrize("scans", [2, 5, 6])
def test_a_killed_job_is_resumed_to_the_same_files(groups: str, tmp_path: Path, scans: int) -> None:
    options = {"n_clusters": [2, 3], "n_init": 1, "picture": False}
    whole = prepared("align", groups, tmp_path / "whole", **options).run()
    assert whole["scans"] > scans
    keep = Checkpoint(tmp_path / "kept")
    with pytest.raises(Killed), killed_after(scans):
        prepared("align", groups, tmp_path / "out", **options).run(keep)
    assert not (tmp_path / "out").exists()
    again = Checkpoint(tmp_path / "kept", resume=True)
    result = prepared("align", groups, tmp_path / "out", **options).run(again)
    for one in (whole, result):
        del one["out"]
    assert without_times(result) == without_times(whole)
    for name in ("alignment.csv", "labels.csv", "memberships.npy"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with progress.watch() as counted:
        done = prepared("align", groups, tmp_path / "out", resume=True, **options).run()
    assert counted.scans == 0
    assert done["n_clusters"] == result["n_clusters"]


def test_a_workflow_has_the_same_files_as_the_command(groups: str, tmp_path: Path, here: Any) -> None:
    (tmp_path / "w.toml").write_text(
        f'[store]\npath = "{groups}"\n[align]\nclusters = "2-5"\nn_init = 2\npicture = false\n', encoding="utf-8"
    )
    assert here("run", tmp_path / "w.toml", "--dry-run").returncode == 0
    done = json.loads(here("run", tmp_path / "w.toml", "--json").stdout)
    assert [one["status"] for one in done["steps"] if one["step"] == "align"] == ["done"]
    assert here("align", groups, tmp_path / "out", *FEW, "--no-picture").returncode == 0
    for name in ("alignment.csv", "labels.csv"):
        assert (tmp_path / "w" / "align" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    again = json.loads(here("run", tmp_path / "w.toml", "--json").stdout)
    assert [one["status"] for one in again["steps"] if one["step"] == "align"] == ["unchanged"]


def test_memory_that_is_too_small_is_said_before_any_scan(groups: str, tmp_path: Path) -> None:
    job = prepared("align", groups, tmp_path / "out", memory=20_000)
    with progress.watch() as counted, pytest.raises(MemoryLimitError):
        job.cost()
    assert counted.scans == 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--width", "0"], "width is 0.0; give a finite number above 0"),
        (["--width", "none"], "kind distance is no kernel and needs a width"),
        (["--width", "1e-9"], "cannot be used: 1e-09 (no object sees another); say --width from"),
        (["--clusters", "1"], "--clusters is 1; give a whole number of at least 2"),
        (["--clusters", "2-60"], "--clusters is 60 for 48 objects; give 2 to 48"),
        (["--search", "evolution", "--width", "2"], "leave --width out, or say --search grid"),
        (["--population", "2"], "--population is 2; give a whole number of at least 5"),
    ],
)
def test_bad_options_get_one_line(groups: str, tmp_path: Path, here: Any, asked: list[str], told: str) -> None:
    done = here("align", groups, tmp_path / "out", "--n-init", "1", *asked)
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if not line.startswith("scan ")]
    assert len(errors) == 1
    assert told in errors[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--width", "auto,2"], "auto and none stand alone"),
        (["--width", "wide"], "wide"),
        (["--clusters", "7-3"], "is an empty range"),
        (["--rule", "hard", "--fuzzifier", "2"], "fuzzifier is for fcm1 and pcm1, not hard"),
    ],
)
def test_options_that_cannot_be_read_are_wrong_usage(
    groups: str, tmp_path: Path, here: Any, asked: list[str], told: str
) -> None:
    done = here("align", groups, tmp_path / "out", *asked)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_an_existing_folder_is_not_replaced_by_accident(groups: str, tmp_path: Path, here: Any) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    done = here("align", groups, tmp_path / "out", "--force")
    assert done.returncode == 1
    assert "is no folder of results" in done.stderr
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    assert here("align", groups, groups, "--force").returncode == 1
    assert dasrel.open_matrix(groups).n_objects == 48


def test_options_of_an_evolution_are_refused_without_one(groups: str, tmp_path: Path, here: Any) -> None:
    done = here("align", groups, tmp_path / "out", "--population", "7")
    assert done.returncode == 2
    assert "--population is for an evolution; leave --population out, or say --search evolution" in done.stderr
