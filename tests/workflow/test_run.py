"""Workflows: files checked to the last word, steps done once, killed runs resumed, one run at a time."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel.cli import app
from dasrel.commands import demo
from dasrel.errors import DasrelError
from dasrel.workflow import status
from dasrel.workflow.run import run_workflow
from dasrel.workflow.schema import read_workflow
from dasrel.workflow.status import plan, signature
from tests.helpers.workflows import FILES, N, appending, contents, edit, points, redone, run, write_rows

# ----------------------------------------------------------------------------------------------- what is done, and when


@pytest.mark.slow
def test_steps_write_what_commands_write(finished_workflow: Path) -> None:
    out = finished_workflow / "w"
    assert sorted(entry.name for entry in out.iterdir()) == sorted([*FILES.values(), status.STATE, ".work"])
    assert list((out / ".work").iterdir()) == []
    full = squareform(pdist(points())).astype("f4")
    assert np.array_equal(np.load(out / "all.npy"), full)
    labels = [int(line.split(",")[1]) for line in (out / "a" / "labels.csv").read_text().splitlines()[1:]]
    assert len(set(labels[: N // 2])) == len(set(labels[N // 2 :])) == 1
    assert labels[0] != labels[-1]
    assert json.loads((out / "spectrum.json").read_text())["is_euclidean"] is True
    output = json.loads((out / "a" / "result.json").read_text())
    assert (output["store"], output["out"]) == (str(out / "matrix.zarr"), str(out / "a"))
    assert run_command_line(finished_workflow, "a") == contents(out / "a")


def run_command_line(finished_workflow: Path, name: str) -> dict[str, bytes]:
    """The same by `dasrel cluster`."""
    other = finished_workflow / "other"
    line = f"cluster {finished_workflow}/w/matrix.zarr {other} --rule fcm1 --clusters 2 --fuzzifier 2 --n-init 2"
    assert app.run([*line.split(), "--quiet", "--force"]) == 0
    return contents(other)


def test_a_second_run_does_nothing(done_workflow: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (done_workflow / "w").rglob("*") if path.name != status.STATE}
    assert redone(done_workflow / "w.toml") == set()
    assert redone(done_workflow / "w.toml") == set()
    assert {
        path: path.stat().st_mtime_ns for path in (done_workflow / "w").rglob("*") if path.name != status.STATE
    } == before


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (('clusters = 2', 'clusters = 3'), {"a", "labels"}),
        (('method = "ultrametric"', 'method = "spread"'), {"ultra", "b"}),  # b is the same again: who uses it, stays
        (('order = "ivat"', 'order = "none"'), {"ivat"}),
        (("tile = 16", "tile = 32"), set(FILES)),
        (("tile = 16", 'tile = 16\nmemory = "2GiB"'), set()),
        (('format = "npy"', 'format = "condensed"'), {"all"}),
        (("[tree]", "[tree.other]"), {"other"}),
    ],
)  # fmt: skip
def test_a_change_redoes_what_depends_on_it(done_workflow: Path, change: tuple[str, str], steps: set[str]) -> None:
    edit(done_workflow / "w.toml", change)
    assert redone(done_workflow / "w.toml") == steps
    assert redone(done_workflow / "w.toml") == set()


@pytest.mark.slow
def test_what_uses_a_setting_is_redone_with_it(done_workflow: Path) -> None:
    """Runs on a sample share products, whose last bits depend on their number: `who` draws three clusters."""
    edit(done_workflow / "w.toml", ("clusters = [2, 3]", "clusters = [3, 4]"))
    assert redone(done_workflow / "w.toml") == {"b", "who"}


@pytest.mark.slow
def test_an_input_is_known_by_its_content(done_workflow: Path) -> None:
    matrix = np.load(done_workflow / "d.npy")
    os.utime(done_workflow / "d.npy", ns=(1, 1))
    assert redone(done_workflow / "w.toml") == set()
    (done_workflow / "d.npy").rename(done_workflow / "e.npy")
    edit(done_workflow / "w.toml", ("d.npy", "e.npy"))
    assert redone(done_workflow / "w.toml") == set()
    matrix[0, 1] = matrix[1, 0] = 0.5
    np.save(done_workflow / "e.npy", matrix)
    assert redone(done_workflow / "w.toml") == set(FILES)
    assert np.load(done_workflow / "w" / "all.npy")[0, 1] == 0.5


def test_a_source_that_was_not_touched_is_not_read_again(done_workflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(done_workflow / "w.toml")
    monkeypatch.setattr("dasrel.workflow.status.read", lambda *a, **k: pytest.fail("read"))
    assert redone(done_workflow / "w.toml") == set()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("spoil", "steps"),
    [
        (lambda out: shutil.rmtree(out / "a"), {"a"}),
        (lambda out: (out / "a" / "labels.csv").unlink(), {"a"}),
        (lambda out: (out / "a" / "result.json").write_text("{}"), {"a"}),
        (lambda out: (out / "ivat.png").unlink(), {"ivat"}),
        (lambda out: (out / "ultra.npz").write_bytes(b"PK"), {"ultra"}),
        (lambda out: (out / "matrix.zarr" / "values" / "c" / "0" / "1").unlink(), {"matrix"}),
        (lambda out: flip(out / "matrix.zarr" / "values" / "c" / "1" / "2"), {"matrix"}),
        (lambda out: (out / "matrix.zarr" / "zarr.json").write_text("{}"), {"matrix"}),
        (lambda out: (out / "matrix.zarr" / "ids" / "c" / "0").write_bytes(b"x"), {"matrix"}),
    ],
)  # fmt: skip
def test_what_is_damaged_is_made_again(done_workflow: Path, spoil: Callable[[Path], Any], steps: set[str]) -> None:
    """And nothing else, because it comes out the same as before."""
    before = contents(done_workflow / "w")
    spoil(done_workflow / "w")
    assert redone(done_workflow / "w.toml") == steps
    assert contents(done_workflow / "w") == before


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)


def test_damage_that_cannot_be_seen_from_outside_is_found_by_reading(done_workflow: Path) -> None:
    run(done_workflow / "w.toml")
    file = done_workflow / "w" / "all.npy"
    state = json.loads((done_workflow / "w" / status.STATE).read_text())
    flip(file)
    state["files"][str(file)]["signature"] = signature(file)
    (done_workflow / "w" / status.STATE).write_text(json.dumps(state))
    assert redone(done_workflow / "w.toml") == set()
    assert run(done_workflow / "w.toml", trust=False)["all"] == "done"


@pytest.mark.slow
def test_another_format_of_dasrel_makes_all_anew(done_workflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(status.FORMATS, "store", 99)
    assert {one.why for one in plan(read_workflow(done_workflow / "w.toml")) if one.key} == {
        "dasrel writes another format now"
    }
    assert redone(done_workflow / "w.toml") == set(FILES)


def test_plans_say_why(done_workflow: Path) -> None:
    edit(done_workflow / "w.toml", ("clusters = 2", "clusters = 3"))
    (done_workflow / "w" / "ivat.png").unlink()
    planned = {one.step.name: (one.status, one.why) for one in plan(read_workflow(done_workflow / "w.toml"))}
    assert planned["a"] == ("stale", "clusters is [3], was [2]")
    assert planned["labels"] == ("stale", "waits for a")
    assert planned["ivat"] == ("stale", "ivat.png is missing")
    assert planned["b"] == ("done", "up to date")
    before = (done_workflow / "w" / status.STATE).stat().st_mtime_ns
    os.utime(done_workflow / "d.npy", ns=(1, 1))
    touched = {
        one.step.name: (one.status, one.why) for one in plan(read_workflow(done_workflow / "w.toml"), read=False)
    }
    assert touched["matrix"] == ("stale", f"source may have changed: {done_workflow}/d.npy")
    assert (done_workflow / "w" / status.STATE).stat().st_mtime_ns == before


@pytest.mark.parametrize("option", ["--status", "--dry-run"])
def test_an_input_that_is_missing_is_a_failure_before_anything_runs(tmp_path, here, option) -> None:
    (tmp_path / "w.toml").write_text('[store]\npath = "none.zarr"\n[cluster]\nclusters = 2\n', encoding="utf-8")
    done = here("run", tmp_path / "w.toml", option)
    assert done.returncode == 1
    assert "none.zarr does not exist" in done.stderr


@pytest.mark.slow
def test_a_step_that_fails_stops_only_what_uses_it(workflow_folder: Path) -> None:
    edit(workflow_folder / "w.toml", ("clusters = 2", "clusters = 99"))
    found = run(workflow_folder / "w.toml")
    assert {name for name, status in found.items() if status == "failed"} == {"a"}
    assert {name for name, status in found.items() if status == "waiting"} == {"labels"}
    planned = {one.step.name: (one.status, one.why) for one in plan(read_workflow(workflow_folder / "w.toml"))}
    assert planned["a"][0] == "failed"
    assert "clusters is 99" in planned["a"][1]
    assert planned["labels"] == ("pending", "needs a, which failed")
    edit(workflow_folder / "w.toml", ("clusters = 99", "clusters = 2"))
    assert redone(workflow_folder / "w.toml") == {"a", "labels"}


def test_a_missing_source_is_a_failure(workflow_folder: Path) -> None:
    (workflow_folder / "d.npy").unlink()
    outcome = run_workflow(read_workflow(workflow_folder / "w.toml"))
    assert outcome.having("failed") == ["matrix"]
    assert "d.npy does not exist" in outcome.steps[0]["why"]
    assert len(outcome.having("waiting")) == len(FILES) - 1


def test_a_source_may_go_when_its_work_is_done(tmp_path: Path) -> None:
    path = appending(tmp_path)
    run(path)
    (tmp_path / "d.npy").unlink()
    (tmp_path / "e.npy").unlink()
    assert redone(path) == set()
    edit(path, ("'e.npy'", "'f.npy'"))
    assert run(path)["one"] == "failed"  # that is another one
    edit(path, ("'f.npy'", "'e.npy'"))
    assert redone(path) == set()
    shutil.rmtree(tmp_path / "w" / "matrix.zarr")
    outcome = run_workflow(read_workflow(path))
    assert outcome.having("failed") == ["matrix"]
    assert "d.npy does not exist" in outcome.steps[0]["why"]


@pytest.mark.slow
def test_what_others_have_written_is_never_touched(workflow_folder: Path) -> None:
    (workflow_folder / "w" / "a").mkdir(parents=True)
    (workflow_folder / "w" / "a" / "mine").write_text("mine")
    outcome = run_workflow(read_workflow(workflow_folder / "w.toml"))
    assert outcome.having("failed") == ["a"]
    assert "was not written by this workflow" in next(one["why"] for one in outcome.steps if one["step"] == "a")
    assert (workflow_folder / "w" / "a" / "mine").read_text() == "mine"


def test_a_state_that_cannot_be_read_is_refused(done_workflow: Path) -> None:
    (done_workflow / "w" / status.STATE).write_text('{"version": 1, "steps"')
    with pytest.raises(DasrelError, match="cannot be read"):
        run(done_workflow / "w.toml")
    (done_workflow / "w" / status.STATE).write_text('{"version": 9}')
    with pytest.raises(DasrelError, match="has version 9"):
        run(done_workflow / "w.toml")


def test_features_and_stores_that_are_there(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", points())
    (tmp_path / "names").write_text("".join(f"object{k}\n" for k in range(N)))
    (tmp_path / "w.toml").write_text(
        "[pairwise.p]\nfeatures = 'x.npy'\nmetric = 'minkowski'\nmetric_option = {p = 3}\nids = 'names'\n"
        "[tree.t]\nstore = 'p'\n[store.s]\npath = 'w/p.zarr'\n[tree.u]\nstore = 's'\n"
    )
    assert run(tmp_path / "w.toml") == {"p": "done", "s": "unchanged", "t": "done", "u": "done"}
    assert redone(tmp_path / "w.toml") == set()
    assert contents(tmp_path / "w" / "t") == contents(tmp_path / "w" / "u")
    matrix = dasrel.open_matrix(tmp_path / "w" / "p.zarr")
    assert list(matrix.ids[:2]) == ["object0", "object1"]
    assert np.allclose(matrix.rows(["object0"])[0], squareform(pdist(points(), "minkowski", p=3))[0], rtol=1e-6)


@pytest.mark.slow
def test_relations_and_warm_starts(tmp_path: Path) -> None:
    """An export of what a Euclideanisation makes, and a cluster step that begins where it had ended."""
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.normal(size=(N // 2, 2)), rng.normal(size=(N // 2, 2)) + 3])
    squares = squareform(pdist(points, "cityblock"))
    np.save(tmp_path / "d.npy", squares)
    (tmp_path / "w.toml").write_text(
        "[import]\nsource = 'd.npy'\nkind = 'squared-distance'\nstore_dtype = 'float64'\n"
        "[euclideanize.e]\nmethod = 'spread'\n[export.all]\nformat = 'npy'\nrelation = 'e'\n"
        "[cluster.k]\nrule = 'fcm1'\nclusters = 2\nwarm_start = true\n"
        "[cluster.j]\nrule = 'fcm1'\nclusters = 2\nwarm_start = 'k'\n"
    )
    assert redone(tmp_path / "w.toml") == {"matrix", "e", "all", "k", "j"}
    # Euclidean as it is, so that the spread is 0 (city-block distances are squared distances).
    assert np.array_equal(np.load(tmp_path / "w" / "all.npy"), squares)

    def output(step: str) -> dict[str, Any]:
        return dict(json.loads((tmp_path / "w" / step / "result.json").read_text()))

    assert "warm_start" not in output("k")
    assert output("j")["warm_start"]["moved"] == 0
    assert redone(tmp_path / "w.toml") == set()
    squares[0, 1] = squares[1, 0] = squares[0, 1] * 1.01
    np.save(tmp_path / "d.npy", squares)
    assert redone(tmp_path / "w.toml") == {"matrix", "e", "all", "k", "j"}
    assert output("k")["warm_start"]["moved"] == 0
    assert output("k")["settings"][0]["n_iter"] < 10
    edit(tmp_path / "w.toml", ("clusters = 2\nwarm_start = true", "clusters = 3\nwarm_start = true"))
    found = run(tmp_path / "w.toml")
    assert (found["k"], found["j"]) == ("done", "failed")  # j was asked for two clusters from a result of three
    assert "warm_start" not in output("k")


def test_the_digits_are_those_of_the_demo(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[demo]")
    assert run(tmp_path / "w.toml") == {"matrix": "done"}
    demo.build_digits(tmp_path / "digits.zarr")
    assert contents(tmp_path / "w" / "matrix.zarr") == contents(tmp_path / "digits.zarr")


# -------------------------------------------------------------------------------------------------------------- appends


@pytest.mark.slow
def test_what_is_appended_is_part_of_the_matrix(tmp_path: Path) -> None:
    path = appending(tmp_path)
    full = squareform(pdist(points())).astype("f4")
    assert redone(path) == {"matrix", "one", "all", "tree"}
    assert np.array_equal(np.load(tmp_path / "w" / "all.npy"), full[:36, :36])
    assert redone(path) == set()
    write_rows(tmp_path, "f.npy", 36, 40)
    with path.open("a") as file:
        file.write("[append.two]\nsource = 'f.npy'\n")
    first = (tmp_path / "w" / "matrix.zarr" / "values" / "c" / "0" / "0").stat().st_mtime_ns
    # TOML has no two tables of one name, so the second append stands beside the first.
    assert redone(path) == {"two", "all", "tree"}
    assert np.array_equal(np.load(tmp_path / "w" / "all.npy"), full)
    assert (tmp_path / "w" / "matrix.zarr" / "values" / "c" / "0" / "0").stat().st_mtime_ns == first
    assert redone(path) == set()


@pytest.mark.slow
def test_another_append_begins_with_the_import(tmp_path: Path) -> None:
    path = appending(tmp_path)
    run(path)
    write_rows(tmp_path, "e.npy", 30, 34)
    assert redone(path) == {"matrix", "one", "all", "tree"}
    assert np.load(tmp_path / "w" / "all.npy").shape == (34, 34)
    edit(path, ("[append.one]\nsource = 'e.npy'\n", ""))
    assert redone(path) == {"matrix", "all", "tree"}
    assert np.load(tmp_path / "w" / "all.npy").shape == (30, 30)


def test_features_are_appended_to_features(tmp_path: Path) -> None:
    for name, rows in (("x", slice(0, 30)), ("y", slice(30, 36)), ("z", slice(36, 40))):
        np.save(tmp_path / f"{name}.npy", points()[rows])
    (tmp_path / "w.toml").write_text(
        "[pairwise]\nfeatures = 'x.npy'\nmetric = 'euclidean'\ntile = 8\n"
        "[append.y]\nsource = 'y.npy'\n[append.z]\nsource = 'z.npy'\n[export.all]\nformat = 'npy'\n"
    )
    assert redone(tmp_path / "w.toml") == {"matrix", "y", "z", "all"}
    assert np.allclose(np.load(tmp_path / "w" / "all.npy"), squareform(pdist(points())), rtol=1e-6, atol=1e-6)
    assert redone(tmp_path / "w.toml") == set()


@pytest.mark.parametrize("what", ["folder", "file", "array"])
def test_a_path_that_is_no_store_is_refused(tmp_path: Path, what: str) -> None:
    place = tmp_path / "none.zarr"
    if what == "folder":
        place.mkdir()
        (place / "notes").write_text("nothing")
    elif what == "file":
        place.write_text("nothing")
    else:
        dasrel.import_matrix(np.ones((4, 4)) - np.eye(4), tmp_path / "s.zarr", kind="distance")
        dasrel.export_matrix(tmp_path / "s.zarr", place, format="zarr")
    (tmp_path / "w.toml").write_text("[store.s]\npath = 'none.zarr'\n[tree.t]\nstore = 's'\n")
    first, second = run_workflow(read_workflow(tmp_path / "w.toml")).steps
    assert (first["status"], second["status"]) == ("failed", "waiting")
    assert first["why"] == f"path {place} is not a dasrel store; `dasrel import` makes one"
