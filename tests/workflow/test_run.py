"""Workflows: files checked to the last word, steps done once, runs that were killed gone on with, one run at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import typer
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel import cli, demo, euclidean, ledger, model, standing, store, tables, words, workflow
from dasrel.contents import Contents, read, signature
from dasrel.errors import DasrelError, DasrelWarning, InputError, redacted
from dasrel.ledger import Log
from dasrel.lock import Lock, LockedError, holder
from dasrel.recipe import read_workflow
from dasrel.rules import RULES
from dasrel.runs import _FILLED, STARTS
from dasrel.runtime import Runtime
from dasrel.standing import plan
from dasrel.workflow import run_workflow

N = 40
SMALL = """
[import]
source = "d.npy"
kind = "distance"
tile = 16

[spectrum]

[euclideanize.ultra]
method = "ultrametric"

[cluster.a]
rule = "fcm1"
clusters = 2
n_init = 2

[cluster.b]
rule = "hard"
clusters = [2, 3]
n_init = 2
euclideanize = "ultra"

[image.ivat]
order = "ivat"
pixels = 20

[image.labels]
order = "labels"
result = "a"
pixels = 20

[figure.who]
result = "b/hard-clusters3"

[tree]

[export.all]
format = "npy"
"""
FILES = {
    "matrix": "matrix.zarr", "spectrum": "spectrum.json", "ultra": "ultra.npz", "a": "a", "b": "b", "ivat": "ivat.png",
    "labels": "labels.png", "who": "who.png", "tree": "tree", "all": "all.npy",
}  # fmt: skip


def points() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(size=(N // 2, 2)), rng.normal(size=(N // 2, 2)) + 20])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "d.npy", squareform(pdist(points())))
    (tmp_path / "w.toml").write_text(SMALL)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workflow that has been run, to be copied."""
    home = tmp_path_factory.mktemp("finished")
    np.save(home / "d.npy", squareform(pdist(points())))
    (home / "w.toml").write_text(SMALL)
    assert run(home / "w.toml") == dict.fromkeys(FILES, "done")
    return home


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """A copy of it. Other inodes and times: all is read once more, and found to be the same."""
    shutil.copytree(finished, tmp_path / "done")
    return tmp_path / "done"


def run(path: Path, *, out: Path | None = None, trust: bool = True) -> dict[str, str]:
    """What has become of each step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DasrelWarning)
        return {one["step"]: one["status"] for one in run_workflow(read_workflow(path, out=out), trust=trust).steps}


def redone(path: Path) -> set[str]:
    found = run(path)
    assert set(found.values()) <= {"done", "unchanged"}
    return {name for name, status in found.items() if status == "done"}


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


def contents(out: Path) -> dict[str, bytes]:
    """All bytes that a workflow has written, without the files that tell times and paths."""
    return {
        str(file.relative_to(out)): re.sub(rb'"source": ".*?"', b"", file.read_bytes())
        for file in sorted(out.rglob("*"))
        if file.is_file() and file.name not in ("result.json", standing.STATE, standing.LOCK)
    }


def command(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "dasrel", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, **more)


# ------------------------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[cluster.k10]\nentropy_wieght = 0.5", "[cluster.k10] entropy_wieght: unknown; did you mean entropy_weight?"),
        ("[clutser.k]", "[clutser]: unknown; did you mean cluster?"),
        ("[shell]\nrun = 'rm'", "[shell]: unknown; there are import, pairwise, demo, store, append, spectrum"),
        ("cluster = 3", "cluster: 3 is no table; write [cluster] and its keys below"),
        ("[cluster.k]\nclusters = '3'", "[cluster.k] clusters[0]: '3' should be a valid integer"),
        ("[cluster.k]\nclusters = [2, 0]", "[cluster.k] clusters[1]: 0 should be greater than or equal to 1"),
        ("[cluster.k]\nn_init = true", "[cluster.k] n_init: True should be a valid integer"),
        ("[cluster.k]\nfuzzifier = 1", "[cluster.k] fuzzifier[0]: 1 should be greater than 1"),
        ("[cluster.k]\ntol = inf", "[cluster.k] tol: inf should be a finite number"),
        ("[cluster.k]\nentropy_weight = 'lots'", "'lots' should be 'auto' or a valid number"),
        ("[cluster.k]\nrule = 'fcm3'", "[cluster.k] rule[0]: 'fcm3' should be 'fcm1', 'fcm2'"),
        ("[cluster.k]\nrule = 'hard'", "[cluster.k] clusters: missing"),
        ("[cluster.k]\nrule = 'hard'\nclusters = 2\nfuzzifier = 2", "[cluster.k]: fuzzifier is for fcm1 and pcm1"),
        ("[cluster.k]\nmemory = 'much'", "[cluster.k] memory: 'much' is no amount of memory"),
        ("[image]\norder = 'labels'", "[image]: result is missing"),
        ("[image]\nresult = 'k'", "[image.image] result: no step 'k'; there is no step of the kind cluster"),
        ("[tree.'../up']", "[tree.../up]: a name is made of letters, digits, _ and -"),
        ("[tree.x]\n[image.x]", "[image.x]: the name x is taken by [tree.x]; choose another"),
        ("[tree]\nstore = 'matrx'", "[tree.tree] store: no step 'matrx'; did you mean matrix?"),
        ("[spectrum]\nvalues = 3\n[spectrum.b]", "[spectrum] b: unknown; there are store, values"),
        ("[append.x]\nsource = 'a'", "[append.x]: matrix is made by [demo]; append is for import and pairwise"),
        ("[runtime]\nclustr = 'local'", "[runtime] clustr: unknown; did you mean cluster?"),
        ("[runtime]\nworkers = 'two'", "[runtime] workers: 'two' should be a valid integer"),
        ("[runtime]\ncluster = 'cloud'", "[runtime] cluster 'cloud' is none of local"),
        ('[runtime]\nscheduler = "a\\nb"', "[runtime] scheduler: 'a\\nb' has characters that cannot be printed"),
        ("out = 3", "out: 3 is no folder"),
        ("a = ", "is not TOML: Invalid value"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "w.toml"
    top, _, rest = text.partition("\n") if text.startswith("out") else ("", "", text)
    path.write_text(f"{top}\n[demo]\n{rest}" if not rest.startswith(("cluster =", "a =")) else f"{rest}\n[demo]\n")
    with pytest.raises(InputError) as error:
        read_workflow(path)
    assert str(error.value).startswith(str(path))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_all_faults_are_told_the_first_few_by_name(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[demo]\n" + "".join(f"[tree.t{k}]\nx = 1\n" for k in range(5)))
    with pytest.raises(InputError, match=r"\[tree.t0\] x: .*\[tree.t2\] x: .* and 2 more"):
        read_workflow(tmp_path / "w.toml")


def test_a_workflow_needs_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[tree]")
    with pytest.raises(InputError, match="there is no matrix"):
        read_workflow(tmp_path / "w.toml")
    (tmp_path / "w.toml").write_text("[store.a]\npath='a'\n[store.b]\npath='b'\n[tree]")
    with pytest.raises(InputError, match="several matrices: a, b"):
        read_workflow(tmp_path / "w.toml")


def test_steps_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    one = "rule = 'hard'\nclusters = 2\ninit = "
    (tmp_path / "w.toml").write_text(f"[demo]\n[cluster.a]\n{one}'b'\n[cluster.b]\n{one}'a'")
    with pytest.raises(InputError, match="a -> b -> a wait for each other"):
        read_workflow(tmp_path / "w.toml")


@pytest.mark.parametrize("setting", ["../x", "a/b", "..", ".hidden", ""])
def test_a_setting_does_not_lead_elsewhere(tmp_path: Path, setting: str) -> None:
    text = f"[demo]\n[cluster.a]\nrule = 'hard'\nclusters = 2\n[figure]\nresult = 'a/{setting}'"
    (tmp_path / "w.toml").write_text(text)
    with pytest.raises(InputError, match="is not STEP or STEP/SETTING"):
        read_workflow(tmp_path / "w.toml")


@pytest.mark.parametrize("setting", ["prologue=touch x", "python=/tmp/evil", "directive=--wrap=x"])
def test_a_file_cannot_say_what_a_cluster_runs(tmp_path: Path, setting: str) -> None:
    (tmp_path / "w.toml").write_text(f"[demo]\n[runtime]\ncluster = 'slurm:memory=1GB,{setting}'")
    with pytest.raises(InputError, match="a workflow file does not"):
        read_workflow(tmp_path / "w.toml")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(
        "[import]\nsource = 'x/d.npy'\nkind = 'distance'\nids = '/ids'\n"
        "[runtime]\nscheduler = 'tls://a:1'\ntls_ca = 'ca'\ntls_cert = 'c'\ntls_key = 'k'\nmemory = '2GiB'\n[tree]"
    )
    found = read_workflow(tmp_path / "w.toml")
    assert found.out == tmp_path / "w"
    assert found.steps["matrix"].files == {"source": str(tmp_path / "x/d.npy"), "ids": "/ids"}
    assert found.runtime.tls_ca == str(tmp_path / "ca")
    assert [step.asked.memory for step in found.steps.values()] == ["2GiB", "2GiB"]
    assert read_workflow(tmp_path / "w.toml", out=tmp_path / "else").out == tmp_path / "else"


def test_tables_are_the_commands() -> None:
    """Every option of a command is a key with the same default, and words are those that the library knows."""
    of_the_run = {"out", "resume", "force", "checkpoint", "time_limit", "dry_run", "json", "quiet", "verbose"}
    of_the_run |= {field.name for field in dataclasses.fields(Runtime)}
    group = typer.main.get_command(cli.app)
    for kind, table in tables.TABLES.items():
        if kind in ("demo", "store", "figure"):
            continue
        options = {option.name: option for option in group.commands[kind].params if option.name not in of_the_run}
        keys = {"metric_option": "settings"}
        known = {keys.get(name, name) for name in table.model_fields}
        assert set(options) - known <= {"part", "relation", "features", "probe", "store"}, kind
        assert known - set(options) <= {"picture", "every", "store", "format"}, kind
        for name, field in table.model_fields.items():
            option = options.get(keys.get(name, name))
            if option is None or option.required or field.is_required() or name in ("picture", "settings", "every"):
                continue
            ours = field.get_default(call_default_factory=True)
            theirs = option.default
            if isinstance(ours, list):
                theirs = [type(ours[0])(part) for part in str(theirs).split(",")]
            assert (ours or None) == (theirs or None), (kind, name)
    assert set(tables.Where.model_fields) == {field.name for field in dataclasses.fields(Runtime)} | {"memory"}
    assert set(words.RULES) == set(RULES) == set(_FILLED)
    assert words.STARTS == STARTS
    assert words.METHODS == euclidean.METHODS == get_args(tables.Euclideanize.model_fields["method"].annotation)
    assert set(get_args(tables.Kind)) == set(dasrel.KINDS)
    versions = {"store": store.FORMAT_VERSION, "euclidean": euclidean.FILE_VERSION, "model": model.MODEL_VERSION}
    assert {name: standing.FORMATS[name] for name in versions} == versions


# ----------------------------------------------------------------------------------------------- what is done, and when


def test_steps_write_what_commands_write(finished: Path) -> None:
    out = finished / "w"
    assert sorted(entry.name for entry in out.iterdir()) == sorted([*FILES.values(), standing.STATE, ".work"])
    assert list((out / ".work").iterdir()) == []
    full = squareform(pdist(points())).astype("f4")
    assert np.array_equal(np.load(out / "all.npy"), full)
    labels = [int(line.split(",")[1]) for line in (out / "a" / "labels.csv").read_text().splitlines()[1:]]
    assert len(set(labels[: N // 2])) == len(set(labels[N // 2 :])) == 1
    assert labels[0] != labels[-1]
    assert json.loads((out / "spectrum.json").read_text())["is_euclidean"] is True
    said = json.loads((out / "a" / "result.json").read_text())
    assert (said["store"], said["out"]) == (str(out / "matrix.zarr"), str(out / "a"))
    assert run_command_line(finished, "a") == contents(out / "a")


def run_command_line(finished: Path, name: str) -> dict[str, bytes]:
    """The same by `dasrel cluster`."""
    other = finished / "other"
    line = f"cluster {finished}/w/matrix.zarr {other} --rule fcm1 --clusters 2 --n-init 2 --quiet --force"
    assert cli.run(line.split()) == 0
    return contents(other)


def test_a_second_run_does_nothing(done: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (done / "w").rglob("*") if path.name != standing.STATE}
    assert redone(done / "w.toml") == set()
    assert redone(done / "w.toml") == set()
    assert {path: path.stat().st_mtime_ns for path in (done / "w").rglob("*") if path.name != standing.STATE} == before


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
def test_a_change_redoes_what_depends_on_it(done: Path, change: tuple[str, str], steps: set[str]) -> None:
    edit(done / "w.toml", change)
    assert redone(done / "w.toml") == steps
    assert redone(done / "w.toml") == set()


def test_a_setting_that_stays_the_same_redoes_nothing(done: Path) -> None:
    edit(done / "w.toml", ("clusters = [2, 3]", "clusters = [3, 4]"))
    assert redone(done / "w.toml") == {"b"}  # `who` draws the setting of three clusters


def test_an_input_is_known_by_its_content(done: Path) -> None:
    matrix = np.load(done / "d.npy")
    os.utime(done / "d.npy", ns=(1, 1))
    assert redone(done / "w.toml") == set()
    (done / "d.npy").rename(done / "e.npy")
    edit(done / "w.toml", ("d.npy", "e.npy"))
    assert redone(done / "w.toml") == set()
    matrix[0, 1] = matrix[1, 0] = 0.5
    np.save(done / "e.npy", matrix)
    assert redone(done / "w.toml") == set(FILES)
    assert np.load(done / "w" / "all.npy")[0, 1] == 0.5


def test_a_source_that_was_not_touched_is_not_read_again(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(done / "w.toml")
    monkeypatch.setattr("dasrel.contents.read", lambda *a, **k: pytest.fail("read"))
    assert redone(done / "w.toml") == set()


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
def test_what_is_damaged_is_made_again(done: Path, spoil: Callable[[Path], Any], steps: set[str]) -> None:
    """And nothing else, because it comes out the same as before."""
    before = contents(done / "w")
    spoil(done / "w")
    assert redone(done / "w.toml") == steps
    assert contents(done / "w") == before


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)


def test_damage_that_cannot_be_seen_from_outside_is_found_by_reading(done: Path) -> None:
    run(done / "w.toml")
    file = done / "w" / "all.npy"
    state = json.loads((done / "w" / standing.STATE).read_text())
    flip(file)
    state["files"][str(file)]["signature"] = signature(file)
    (done / "w" / standing.STATE).write_text(json.dumps(state))
    assert redone(done / "w.toml") == set()
    assert run(done / "w.toml", trust=False)["all"] == "done"


def test_another_format_of_dasrel_makes_all_anew(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(standing.FORMATS, "store", 99)
    assert {one.why for one in plan(read_workflow(done / "w.toml")) if one.key} == {"dasrel writes another format now"}
    assert redone(done / "w.toml") == set(FILES)


def test_plans_say_why(done: Path) -> None:
    edit(done / "w.toml", ("clusters = 2", "clusters = 3"))
    (done / "w" / "ivat.png").unlink()
    planned = {one.step.name: (one.status, one.why) for one in plan(read_workflow(done / "w.toml"))}
    assert planned["a"] == ("stale", "clusters is [3], was [2]")
    assert planned["labels"] == ("stale", "waits for a")
    assert planned["ivat"] == ("stale", "ivat.png is missing")
    assert planned["b"] == ("done", "as before")
    before = (done / "w" / standing.STATE).stat().st_mtime_ns
    os.utime(done / "d.npy", ns=(1, 1))
    touched = {one.step.name: (one.status, one.why) for one in plan(read_workflow(done / "w.toml"), read=False)}
    assert touched["matrix"] == ("stale", f"source has been touched: {done}/d.npy")
    assert (done / "w" / standing.STATE).stat().st_mtime_ns == before


def test_a_step_that_fails_stops_only_what_uses_it(folder: Path) -> None:
    edit(folder / "w.toml", ("clusters = 2", "clusters = 99"))
    found = run(folder / "w.toml")
    assert {name for name, status in found.items() if status == "failed"} == {"a"}
    assert {name for name, status in found.items() if status == "waiting"} == {"labels"}
    planned = {one.step.name: (one.status, one.why) for one in plan(read_workflow(folder / "w.toml"))}
    assert planned["a"][0] == "failed"
    assert "n_clusters is 99" in planned["a"][1]
    assert planned["labels"] == ("pending", "needs a, which failed")
    edit(folder / "w.toml", ("clusters = 99", "clusters = 2"))
    assert redone(folder / "w.toml") == {"a", "labels"}


def test_a_missing_source_is_a_failure(folder: Path) -> None:
    (folder / "d.npy").unlink()
    outcome = run_workflow(read_workflow(folder / "w.toml"))
    assert outcome.having("failed") == ["matrix"]
    assert "d.npy is not there" in outcome.steps[0]["why"]
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
    assert "d.npy is not there" in outcome.steps[0]["why"]


def test_what_others_have_written_is_never_touched(folder: Path) -> None:
    (folder / "w" / "a").mkdir(parents=True)
    (folder / "w" / "a" / "mine").write_text("mine")
    outcome = run_workflow(read_workflow(folder / "w.toml"))
    assert outcome.having("failed") == ["a"]
    assert "was not written by this workflow" in next(one["why"] for one in outcome.steps if one["step"] == "a")
    assert (folder / "w" / "a" / "mine").read_text() == "mine"


def test_a_state_that_cannot_be_read_is_refused(done: Path) -> None:
    (done / "w" / standing.STATE).write_text('{"version": 1, "steps"')
    with pytest.raises(DasrelError, match="cannot be read"):
        run(done / "w.toml")
    (done / "w" / standing.STATE).write_text('{"version": 9}')
    with pytest.raises(DasrelError, match="has version 9"):
        run(done / "w.toml")


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

    def said(step: str) -> dict[str, Any]:
        return dict(json.loads((tmp_path / "w" / step / "result.json").read_text()))

    assert "warm_start" not in said("k")
    assert said("j")["warm_start"]["moved"] == 0
    assert redone(tmp_path / "w.toml") == set()
    squares[0, 1] = squares[1, 0] = squares[0, 1] * 1.01
    np.save(tmp_path / "d.npy", squares)
    assert redone(tmp_path / "w.toml") == {"matrix", "e", "all", "k", "j"}
    assert said("k")["warm_start"]["moved"] == 0
    assert said("k")["settings"][0]["iterations"] < 10
    edit(tmp_path / "w.toml", ("clusters = 2\nwarm_start = true", "clusters = 3\nwarm_start = true"))
    found = run(tmp_path / "w.toml")
    assert (found["k"], found["j"]) == ("done", "failed")  # j was asked for two clusters from a result of three
    assert "warm_start" not in said("k")


def test_the_digits_are_those_of_the_demo(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[demo]")
    assert run(tmp_path / "w.toml") == {"matrix": "done"}
    demo.build_digits(tmp_path / "digits.zarr")
    assert contents(tmp_path / "w" / "matrix.zarr") == contents(tmp_path / "digits.zarr")


# -------------------------------------------------------------------------------------------------------------- appends


def write_rows(folder: Path, name: str, first: int, last: int) -> None:
    full = squareform(pdist(points()))
    np.save(folder / name, full[first:last, :last])


def appending(folder: Path) -> Path:
    full = squareform(pdist(points()))
    np.save(folder / "d.npy", full[:30, :30])
    write_rows(folder, "e.npy", 30, 36)
    path = folder / "w.toml"
    path.write_text(
        "[import]\nsource = 'd.npy'\nkind = 'distance'\ntile = 8\n[append.one]\nsource = 'e.npy'\n"
        "[export.all]\nformat = 'npy'\n[tree]\n"
    )
    return path


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


# -------------------------------------------------------------------------------------------------------- interruptions


class Kill(BaseException):
    """Stands for kill -9: nothing after it is done, not even what stands in `finally`, as far as that matters here."""


MOMENTS = [
    ("dasrel.workflow.do", "before"),
    ("dasrel.workflow.do", "after"),
    ("dasrel.workflow.write_json", "before"),
    ("dasrel.workflow.write_json", "after"),
    ("os.rename", "before"),
    ("os.rename", "after"),
    ("dasrel.ledger.State.save", "before"),
    ("dasrel.ledger.State.save", "after"),
]


@pytest.mark.parametrize("fresh", [True, False], ids=["first time", "again"])
def test_a_run_may_end_at_any_moment(done: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
    """A run that ends before or after the k-th of every move that it makes on disk, for all k, is gone on with."""
    text = "[import]\nsource = 'd.npy'\nkind = 'distance'\n[cluster.a]\nrule = 'hard'\nclusters = 2\nseed = 5\n"
    (done / "w.toml").write_text(text)
    run(done / "w.toml")
    wanted = {name: raw for name, raw in contents(done / "w").items() if name.startswith(("matrix", "a/"))}
    (done / "w.toml").write_text(text.replace("seed = 5", "seed = 6").replace("'d.npy'", "'d.npy'\ntile = 32"))
    run(done / "w.toml")
    (done / "w.toml").write_text(text)
    home = done.parent / "trial"
    ends = 0
    for place, when in MOMENTS[2:6] if fresh else MOMENTS:
        for k in range(50):
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(done, home, ignore=shutil.ignore_patterns("w") if fresh else None)
            with monkeypatch.context() as patch:
                killed = _killing(patch, place, when, k)
                with contextlib.suppress(Kill):
                    run(home / "w.toml")
            if not killed:
                break
            ends += 1
            assert set(run(home / "w.toml").values()) <= {"done", "unchanged"}, (place, when, k)
            found = contents(home / "w")
            assert {name: found[name] for name in wanted} == wanted, (place, when, k)
            assert not list((home / "w" / ".work").iterdir())
    assert ends >= (10 if fresh else 30)


def _killing(patch: pytest.MonkeyPatch, place: str, when: str, k: int) -> list[int]:
    """Let the k-th call of a function be the last."""
    module, _, name = place.rpartition(".")
    owners = {"os": os, "dasrel.workflow": workflow, "dasrel.ledger.State": ledger.State}
    target: Any = owners.get(module, store.TileFiles)
    plain = getattr(target, name)
    calls: list[int] = []
    killed: list[int] = []

    def call(*positional: Any, **named: Any) -> Any:
        if killed:
            raise Kill
        calls.append(1)
        if len(calls) - 1 == k:
            if when == "after":
                plain(*positional, **named)
            killed.append(k)
            raise Kill
        return plain(*positional, **named)

    patch.setattr(target, name, call)
    return killed


@pytest.mark.parametrize("moment", ["tile", "before", "after"])
def test_an_append_may_end_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """While tiles are written, and around the moment when all is appended but not written down: the import stays."""
    path = appending(tmp_path)
    run(path, out=tmp_path / "other")
    with monkeypatch.context() as patch:
        if moment == "tile":
            _killing(patch, "dasrel.store.TileFiles.write", "after", 10 + 3)  # the import writes ten
        else:
            _killing(patch, "dasrel.workflow.do", moment, 1)
        with pytest.raises(Kill):
            run(path)
    assert redone(path) == {"one", "all", "tree"}
    assert contents(tmp_path / "w") == contents(tmp_path / "other")
    assert redone(path) == set()


def test_what_an_interrupted_step_has_left_is_gone_on_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import goes on with its tiles, and a changed parameter begins anew."""
    edit(folder / "w.toml", ("tile = 16", "tile = 4"))
    plain = store.TileFiles.write
    written: list[tuple[int, int]] = []

    def write(self: Any, i: int, j: int, *rest: Any) -> None:
        if len(written) >= 10:
            raise Kill
        plain(self, i, j, *rest)
        written.append((i, j))

    monkeypatch.setattr(store.TileFiles, "write", write)
    with pytest.raises(Kill):
        run(folder / "w.toml")
    planned = plan(read_workflow(folder / "w.toml"))
    assert (planned[0].status, planned[0].why) == ("pending", "it was interrupted")
    before = list(written)

    def write_on(self: Any, i: int, j: int, *rest: Any) -> None:
        plain(self, i, j, *rest)
        written.append((i, j))

    monkeypatch.setattr(store.TileFiles, "write", write_on)
    assert redone(folder / "w.toml") == set(FILES)
    assert sorted(written) == [(i, j) for i in range(10) for j in range(i, 10)]
    assert len(before) >= 10
    assert before == written[: len(before)]


FEW = """
[import]
source = "d.npy"
kind = "distance"
tile = 8

[cluster.a]
rule = "fcm1"
clusters = 2
every = 1

[tree]
"""


def test_the_real_kill(folder: Path) -> None:
    """kill -9 at three moments of a real process, each gone on with, and the same bits at the end."""
    (folder / "w.toml").write_text(FEW)
    words = [sys.executable, "-m", "dasrel", "run", str(folder / "w.toml"), "--quiet"]
    for step in ("matrix", "a", "tree"):
        with subprocess.Popen([*words, "--log-json", str(folder / step)], stderr=subprocess.PIPE) as process:
            waits_for(process, folder / step, step)
            process.send_signal(signal.SIGKILL)
        assert (folder / "w" / standing.LOCK).exists()
    end = command("run", folder / "w.toml")
    assert end.returncode == 0, end.stderr
    assert "took over the lock of process" in end.stderr
    assert not (folder / "w" / standing.LOCK).exists()
    run(folder / "w.toml", out=folder / "other")
    assert contents(folder / "w") == contents(folder / "other")


def waits_for(process: subprocess.Popen[Any], log: Path, step: str) -> None:
    """Until a step has begun."""
    limit = time.monotonic() + 60
    while not (log.exists() and f'"step-begin", "step": "{step}"' in log.read_text()):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.005)


LONG = """
[import]
source = "d.npy"
kind = "distance"

[cluster.a]
rule = "fcm1"
clusters = 2
n_init = 1
tol = 0
max_iter = 1500
every = 100

[tree]
"""


def test_a_run_that_is_stopped_goes_on(folder: Path) -> None:
    """Exit 75 in the middle of a step, by SIGTERM, and before it, by a time limit; the same bits at the end."""
    (folder / "w.toml").write_text(LONG)
    words = [sys.executable, "-m", "dasrel", "run", str(folder / "w.toml"), "--log-json", str(folder / "log")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        waits_for(process, folder / "log", "a")
        while not list((folder / "w" / ".work" / "a").glob("*/checkpoint/*.npz")):
            assert process.poll() is None
            time.sleep(0.005)
        process.terminate()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 75, error
    assert "stopped by SIGTERM after" in error
    again = command("run", folder / "w.toml", "--time-limit", "0s")
    assert again.returncode == 75
    assert "stopped by the time limit of 0 s before the step a" in again.stderr
    events = [json.loads(line)["event"] for line in (folder / "log").read_text().splitlines()]
    assert events[-2:] == ["step-stopped", "run-stopped"]
    stood = {one.step.name: (one.status, one.why) for one in plan(read_workflow(folder / "w.toml"))}
    assert stood["a"] == ("pending", "it was stopped")
    assert stood["tree"] == ("pending", "not done yet")
    edit(folder / "w.toml", ("every = 100", "every = 2000"))  # a key that changes no result
    assert redone(folder / "w.toml") == {"a", "tree"}
    run(folder / "w.toml", out=folder / "other")
    assert contents(folder / "w") == contents(folder / "other")
    assert not (folder / "w" / standing.LOCK).exists()


# ------------------------------------------------------------------------------------------------------------- the lock


def test_a_lock_lets_one_in(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lock(path):
        owner = json.loads(path.read_text())
        assert (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(LockedError, match=rf"process {os.getpid()} on .* is at work"), Lock(path):
            pass
    assert list(tmp_path.iterdir()) == []
    assert holder(path) is None


def test_locks_of_the_dead_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    gone = subprocess.Popen(["true"])
    gone.wait()
    owner = {"pid": gone.pid, "host": socket.gethostname(), "started": "x 1", "since": "2020-01-01T00:00:00Z"}
    # Another process that has its number now, a machine that was started again, and a file that says nothing.
    for content in (owner, {**owner, "pid": os.getppid()}, {**owner, "started": None}, {}):
        path.write_text(json.dumps(content) if content else "")
        notes: list[str] = []
        with Lock(path, notes.append):
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert len(notes) == 1
        assert not path.exists()


def test_locks_of_other_hosts_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"pid": 1, "host": "far.away", "started": None, "since": "2020-01-01T00:00:00Z"}))
    with (
        pytest.raises(LockedError, match=rf"process 1 on far.away since 2020.* remove {re.escape(str(path))}"),
        Lock(path),
    ):
        pass
    assert path.exists()
    assert (holder(path) or {})["host"] == "far.away"


RACE = """
import sys, time
from pathlib import Path
from dasrel.lock import Lock, LockedError
path, log = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
try:
    with Lock(path):
        with log.open("a") as file:
            file.write("in\\n")
        time.sleep(float(sys.argv[3]))
        print("won")
except LockedError as error:
    print("lost", error)
"""


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_once_one_wins(tmp_path: Path, stale: bool) -> None:
    """Real processes, that all begin at the same moment."""
    path = tmp_path / "lock"
    if stale:
        gone = subprocess.Popen(["true"])
        gone.wait()
        owner = {"pid": gone.pid, "host": socket.gethostname(), "started": None, "since": ""}
        path.write_text(json.dumps(owner))
    words = [sys.executable, "-c", RACE, str(path), str(tmp_path / "log"), "2"]
    several = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for one in several:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in several:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    said = [one.communicate(timeout=200)[0] for one in several]
    assert sum(text.startswith("won") for text in said) == 1, said
    assert sum("is at work on this workflow" in text for text in said) == 5, said
    assert (tmp_path / "log").read_text() == "in\n"


def test_two_runs_of_one_workflow(folder: Path) -> None:
    """Two schedulers at the same time: one does the work, the other is told who does."""
    (folder / "w.toml").write_text(FEW)
    words = [sys.executable, "-m", "dasrel", "run", str(folder / "w.toml")]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(*one.communicate(timeout=100), one.returncode) for one in both]
    codes = sorted(code for _, _, code in ended)
    if codes == [0, 0]:  # the second came when the first had ended
        assert any("nothing to do" in out for out, _, _ in ended)
    else:
        assert codes == [0, 1]
        error = next(error for _, error, code in ended if code == 1)
        assert "is at work on this workflow" in error
        assert len(error.splitlines()) == 1


# ---------------------------------------------------------------------------------------------------------- the command


def test_the_command_says_what_it_did(done: Path) -> None:
    first = command("run", done / "w.toml", "--json", "--log-json", done / "log")
    assert first.returncode == 0, first.stderr
    assert {one["status"] for one in json.loads(first.stdout)["steps"]} == {"unchanged"}
    second = command("run", done / "w.toml")
    assert (second.returncode, second.stderr) == (0, "")
    assert f"nothing to do  all {len(FILES)} steps are as before" in second.stdout
    status = command("run", "--status", done / "w.toml", "--json")
    told = json.loads(status.stdout)
    assert {one["status"] for one in told["steps"]} == {"done"}
    assert told["steps"][0]["outputs"] == [str(done / "w" / "matrix.zarr")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told["steps"][0]["since"])
    edit(done / "w.toml", ("clusters = 2", "clusters = 3"))
    dry = command("run", "--dry-run", done / "w.toml")
    assert re.search(r"^a +would be done: clusters is \[3\], was \[2\]$", dry.stdout, re.MULTILINE)
    assert re.search(r"^b +nothing to do: as before$", dry.stdout, re.MULTILINE)
    assert redone(done / "w.toml") == {"a", "labels"}


def test_a_cluster_is_started_when_there_is_work(folder: Path) -> None:
    text = "[import]\nsource = 'd.npy'\nkind = 'distance'\n[cluster.a]\nrule = 'hard'\nclusters = 2\n"
    (folder / "w.toml").write_text(text + "[runtime]\ncluster = 'local:workers=1,memory=1GB'\n")
    first = command("run", folder / "w.toml")
    assert first.returncode == 0, first.stderr
    assert "dasrel: scheduler tcp://127.0.0.1:" in first.stderr
    second = command("run", folder / "w.toml")
    assert (second.returncode, second.stderr) == (0, "")
    run(folder / "w.toml", out=folder / "other")
    assert contents(folder / "w") == contents(folder / "other")


def test_exit_codes(folder: Path) -> None:
    (folder / "bad.toml").write_text("[clutser]")
    assert cli.run(["run", str(folder / "bad.toml")]) == 1
    assert cli.run(["run", str(folder / "nothing.toml")]) == 1
    assert cli.run(["run"]) == 2
    assert cli.run(["run", str(folder / "w.toml"), "--log-json", "-", "--json"]) == 2
    edit(folder / "w.toml", ("clusters = 2\nn_init = 2", "clusters = 3\nn_init = 2\nmax_iter = 1"))
    assert cli.run(["run", str(folder / "w.toml"), "-q"]) == 0
    assert cli.run(["run", str(folder / "w.toml"), "-q", "--strict"]) == 3
    edit(folder / "w.toml", ("max_iter = 1", "max_iter = 1\nstrict = true"))
    assert cli.run(["run", str(folder / "w.toml"), "-q"]) == 3
    edit(folder / "w.toml", ("clusters = 3", "clusters = 1000"))
    assert cli.run(["run", str(folder / "w.toml"), "-q"]) == 1


def test_the_log_is_json_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder / "w.toml", ("clusters = 2\nn_init = 2", "clusters = 3\nn_init = 2\nmax_iter = 1"))
    assert cli.run(["run", str(folder / "w.toml"), "--log-json", "-"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in events[:3]] == ["run-begin", "step-begin", "step-done"]
    assert events[-1]["event"] == "run-end"
    assert events[-1]["done"] == len(FILES)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", one["time"]) for one in events)
    done = {one["step"]: one for one in events if one["event"] == "step-done"}
    assert set(done) == set(FILES)
    assert all(len(one["key"]) == 64 and one["seconds"] >= 0 for one in done.values())
    assert done["tree"]["scans"] == 1
    warned = [one for one in events if one["event"] == "warning"]
    assert any("did not converge" in one["message"] and one["step"] == "a" for one in warned)
    assert cli.run(["run", str(folder / "w.toml"), "--log-json", str(folder / "log"), "-q"]) == 0
    assert cli.run(["run", str(folder / "w.toml"), "--log-json", str(folder / "log"), "-q"]) == 0
    again = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    assert [one["event"] for one in again].count("run-begin") == 2
    assert [one["event"] for one in again].count("step-unchanged") == 2 * len(FILES)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:pass@host/b", "s3://***@host/b"),
        ("at https://tok3n@host/x and more", "at https://***@host/x and more"),
        ("https://h/a?X-Amz-Signature=abc&b=1 failed", "https://h/a?*** failed"),
        ("{'secret': 'abc', 'endpoint': 'e'}", "{'secret': '***', 'endpoint': 'e'}"),
        ("password=hunter2, next", "password=***, next"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=***"),
        ("key is [3], was [2]; me@home.org", "key is [3], was [2]; me@home.org"),
    ],
)
def test_credentials_are_taken_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted({"a": [text, 1, None]}) == {"a": [shown, 1, None]}


def test_no_credentials_anywhere(tmp_path: Path) -> None:
    """A source behind a URL with a password that cannot be reached: nothing that is written or printed has it."""
    (tmp_path / "w.toml").write_text(
        "[import]\nsource = 'http://me:hunter2@127.0.0.1:9/a.zarr?sig=s3cr3t'\nkind = 'distance'\n[tree]\n"
    )
    said = command("run", tmp_path / "w.toml", "--log-json", tmp_path / "log")
    also = command("run", "--status", tmp_path / "w.toml", "--json")
    assert said.returncode == 1
    texts = [said.stdout, said.stderr, also.stdout, also.stderr]
    texts += [file.read_text() for file in tmp_path.rglob("*") if file.is_file() and file.name != "w.toml"]
    assert any("127.0.0.1" in text for text in texts)
    assert not any("hunter2" in text or "s3cr3t" in text for text in texts)


def test_nothing_heavy_is_loaded_when_nothing_is_to_do(done: Path) -> None:
    run(done / "w.toml")
    code = (
        "import sys; from dasrel import cli; assert cli.run(['run', sys.argv[1], '-q']) == 0;"
        "print([name for name in ('zarr', 'scipy', 'sklearn', 'distributed', 'matplotlib') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(done / "w.toml")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


# --------------------------------------------------------------------------------------------------------- the contents


def test_words_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    known = Contents()
    first = known.of(tmp_path / "a")
    assert first == read(tmp_path / "a") != read(tmp_path / "a" / "x")
    (tmp_path / "a" / "y").write_text("2")
    assert known.of(tmp_path / "a") != first
    assert read(tmp_path / "a", leave_out=("y",)) == first
    with pytest.raises(InputError, match="is not there"):
        known.of(tmp_path / "b")


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Log(str(tmp_path / "no" / "log"))
