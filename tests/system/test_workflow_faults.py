"""Workflows that are killed or stopped at any moment, or run twice at once: resumed, with the same bytes."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dasrel.store import tile_files
from dasrel.workflow import run as run_module, status
from dasrel.workflow.schema import read_workflow
from dasrel.workflow.status import plan
from tests.helpers.processes import command
from tests.helpers.workflows import FILES, appending, contents, edit, redone, run


class Kill(BaseException):
    """Stands for kill -9: nothing after it is done, not even what stands in `finally`, as far as that matters here."""


MOMENTS = [
    ("dasrel.workflow.run.run_step", "before"),
    ("dasrel.workflow.run.run_step", "after"),
    ("dasrel.workflow.run.write_json", "before"),
    ("dasrel.workflow.run.write_json", "after"),
    ("os.rename", "before"),
    ("os.rename", "after"),
    ("dasrel.workflow.status.StateFile.save", "before"),
    ("dasrel.workflow.status.StateFile.save", "after"),
]


@pytest.mark.parametrize("fresh", [True, False], ids=["first time", "again"])
def test_a_run_may_end_at_any_moment(done_workflow: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
    """A run that ends before or after the k-th of every move that it makes on disk, for all k, is resumed."""
    text = "[import]\nsource = 'd.npy'\nkind = 'distance'\n[cluster.a]\nrule = 'hard'\nclusters = 2\nseed = 5\n"
    (done_workflow / "w.toml").write_text(text)
    run(done_workflow / "w.toml")
    wanted = {name: raw for name, raw in contents(done_workflow / "w").items() if name.startswith(("matrix", "a/"))}
    (done_workflow / "w.toml").write_text(text.replace("seed = 5", "seed = 6").replace("'d.npy'", "'d.npy'\ntile = 32"))
    run(done_workflow / "w.toml")
    (done_workflow / "w.toml").write_text(text)
    home = done_workflow.parent / "trial"
    ends = 0
    for place, when in MOMENTS[2:6] if fresh else MOMENTS:
        for k in range(50):
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(done_workflow, home, ignore=shutil.ignore_patterns("w") if fresh else None)
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
    owners = {"os": os, "dasrel.workflow.run": run_module, "dasrel.workflow.status.StateFile": status.StateFile}
    target: Any = owners.get(module, tile_files.TileFiles)
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
            _killing(patch, "dasrel.store.tile_files.TileFiles.write", "after", 10 + 3)  # the import writes ten
        else:
            _killing(patch, "dasrel.workflow.run.run_step", moment, 1)
        with pytest.raises(Kill):
            run(path)
    assert redone(path) == {"one", "all", "tree"}
    assert contents(tmp_path / "w") == contents(tmp_path / "other")
    assert redone(path) == set()


def test_what_an_interrupted_step_has_left_is_gone_on_with(
    workflow_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import resumes with its tiles, and a changed parameter begins anew."""
    edit(workflow_folder / "w.toml", ("tile = 16", "tile = 4"))
    plain = tile_files.TileFiles.write
    written: list[tuple[int, int]] = []

    def write(self: Any, i: int, j: int, *rest: Any) -> None:
        if len(written) >= 10:
            raise Kill
        plain(self, i, j, *rest)
        written.append((i, j))

    monkeypatch.setattr(tile_files.TileFiles, "write", write)
    with pytest.raises(Kill):
        run(workflow_folder / "w.toml")
    planned = plan(read_workflow(workflow_folder / "w.toml"))
    assert (planned[0].status, planned[0].why) == ("pending", "it was interrupted")
    before = list(written)

    def write_on(self: Any, i: int, j: int, *rest: Any) -> None:
        plain(self, i, j, *rest)
        written.append((i, j))

    monkeypatch.setattr(tile_files.TileFiles, "write", write_on)
    assert redone(workflow_folder / "w.toml") == set(FILES)
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


def test_the_real_kill(workflow_folder: Path) -> None:
    """kill -9 at three moments of a real process, each resumed, and the same bits at the end."""
    (workflow_folder / "w.toml").write_text(FEW)
    words = [sys.executable, "-m", "dasrel", "run", str(workflow_folder / "w.toml"), "--quiet"]
    for step in ("matrix", "a", "tree"):
        with subprocess.Popen([*words, "--log-json", str(workflow_folder / step)], stderr=subprocess.PIPE) as process:
            waits_for(process, workflow_folder / step, step)
            process.send_signal(signal.SIGKILL)
        assert (workflow_folder / "w" / status.LOCK).exists()
    end = command("run", workflow_folder / "w.toml")
    assert end.returncode == 0, end.stderr
    assert "took over the lock of process" in end.stderr
    assert not (workflow_folder / "w" / status.LOCK).exists()
    run(workflow_folder / "w.toml", out=workflow_folder / "other")
    assert contents(workflow_folder / "w") == contents(workflow_folder / "other")


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


def test_a_run_that_is_stopped_goes_on(workflow_folder: Path) -> None:
    """Exit 75 in the middle of a step, by SIGTERM, and before it, by a time limit; the same bits at the end."""
    (workflow_folder / "w.toml").write_text(LONG)
    words = [
        sys.executable,
        "-m",
        "dasrel",
        "run",
        str(workflow_folder / "w.toml"),
        "--log-json",
        str(workflow_folder / "log"),
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        waits_for(process, workflow_folder / "log", "a")
        while not list((workflow_folder / "w" / ".work" / "a").glob("*/checkpoint/*.npz")):
            assert process.poll() is None
            time.sleep(0.005)
        process.terminate()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 75, error
    assert "stopped by SIGTERM after" in error
    again = command("run", workflow_folder / "w.toml", "--time-limit", "0s")
    assert again.returncode == 75
    assert "stopped by the time limit of 0 s before the step a" in again.stderr
    events = [json.loads(line)["event"] for line in (workflow_folder / "log").read_text().splitlines()]
    assert events[-2:] == ["step-stopped", "run-stopped"]
    stood = {one.step.name: (one.status, one.why) for one in plan(read_workflow(workflow_folder / "w.toml"))}
    assert stood["a"] == ("pending", "it was stopped")
    assert stood["tree"] == ("pending", "not done yet")
    edit(workflow_folder / "w.toml", ("every = 100", "every = 2000"))  # a key that changes no result
    assert redone(workflow_folder / "w.toml") == {"a", "tree"}
    run(workflow_folder / "w.toml", out=workflow_folder / "other")
    assert contents(workflow_folder / "w") == contents(workflow_folder / "other")
    assert not (workflow_folder / "w" / status.LOCK).exists()


def test_two_runs_of_one_workflow(workflow_folder: Path) -> None:
    """Two schedulers at the same time: one does the work, the other is told who does."""
    (workflow_folder / "w.toml").write_text(FEW)
    words = [sys.executable, "-m", "dasrel", "run", str(workflow_folder / "w.toml")]
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
