"""The command `dasrel run`: what it says, its exit codes and its log."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dasrel.cli import app
from tests.helpers.processes import command
from tests.helpers.workflows import FILES, contents, edit, redone, run


@pytest.mark.slow
def test_the_command_says_what_it_did(done_workflow: Path) -> None:
    first = command("run", done_workflow / "w.toml", "--json", "--log-json", done_workflow / "log")
    assert first.returncode == 0, first.stderr
    assert {one["status"] for one in json.loads(first.stdout)["steps"]} == {"unchanged"}
    second = command("run", done_workflow / "w.toml")
    assert (second.returncode, second.stderr) == (0, "")
    assert f"nothing to do  {len(FILES)} steps are all up to date" in second.stdout
    status = command("run", "--status", done_workflow / "w.toml", "--json")
    report = json.loads(status.stdout)
    assert {one["status"] for one in report["steps"]} == {"done"}
    assert report["steps"][0]["outputs"] == [str(done_workflow / "w" / "matrix.zarr")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["steps"][0]["since"])
    edit(done_workflow / "w.toml", ("clusters = 2", "clusters = 3"))
    dry = command("run", "--dry-run", done_workflow / "w.toml")
    assert re.search(r"^a +would be done: clusters is \[3\], was \[2\]$", dry.stdout, re.MULTILINE)
    assert re.search(r"^b +nothing to do: up to date$", dry.stdout, re.MULTILINE)
    assert redone(done_workflow / "w.toml") == {"a", "labels"}


@pytest.mark.slow
def test_a_cluster_is_started_when_there_is_work(workflow_folder: Path, here: Callable[..., Any]) -> None:
    text = "[import]\nsource = 'd.npy'\nkind = 'distance'\n[cluster.a]\nrule = 'hard'\nclusters = 2\n"
    (workflow_folder / "w.toml").write_text(text + "[runtime]\ndask = 'local:workers=1,memory=1GB'\n")
    first = here("run", workflow_folder / "w.toml")
    assert first.returncode == 0, first.stderr
    assert "dasrel: scheduler tcp://127.0.0.1:" in first.stderr
    second = here("run", workflow_folder / "w.toml")
    assert (second.returncode, second.stderr) == (0, "")
    run(workflow_folder / "w.toml", out=workflow_folder / "other")
    assert contents(workflow_folder / "w") == contents(workflow_folder / "other")


def test_a_file_names_a_scheduler_only_if_the_command_line_allows_it(
    workflow_folder: Path, here: Callable[..., Any]
) -> None:
    """Nothing listens at port 9: what is allowed tries to connect, and fails at that."""
    text = "[import]\nsource = 'd.npy'\nkind = 'distance'\n[runtime]\nwait = 0.3\n"
    for key, value in (("scheduler", "tcp://127.0.0.1:9"), ("scheduler_file", "s.json")):
        (workflow_folder / "w.toml").write_text(f"{text}{key} = '{value}'\n")
        refused = here("run", workflow_folder / "w.toml")
        assert refused.returncode == 1
        assert f"names a Dask scheduler, which can run code here: [runtime] {key}; " in refused.stderr
        assert "say --allow-scheduler, or name it yourself by --scheduler" in refused.stderr
        assert not (workflow_folder / "w" / "matrix.zarr").exists()
        assert here("run", workflow_folder / "w.toml", "--status").returncode == 0
        allowed = here("run", workflow_folder / "w.toml", "--allow-scheduler")
        assert "cannot reach the scheduler" in allowed.stderr or "no scheduler has written" in allowed.stderr
        named = here("run", workflow_folder / "w.toml", "--scheduler", "tcp://127.0.0.1:9")
        assert "cannot reach the scheduler tcp://127.0.0.1:9" in named.stderr


@pytest.mark.slow
def test_exit_codes(workflow_folder: Path) -> None:
    (workflow_folder / "bad.toml").write_text("[clutser]")
    assert app.run(["run", str(workflow_folder / "bad.toml")]) == 1
    assert app.run(["run", str(workflow_folder / "nothing.toml")]) == 1
    assert app.run(["run"]) == 2
    assert app.run(["run", str(workflow_folder / "w.toml"), "--log-json", "-", "--json"]) == 2
    edit(workflow_folder / "w.toml", ("clusters = 2\nn_init = 2", "clusters = 3\nn_init = 2\nmax_iter = 1"))
    assert app.run(["run", str(workflow_folder / "w.toml"), "-q"]) == 0
    assert app.run(["run", str(workflow_folder / "w.toml"), "-q", "--strict"]) == 3
    edit(workflow_folder / "w.toml", ("max_iter = 1", "max_iter = 1\nstrict = true"))
    assert app.run(["run", str(workflow_folder / "w.toml"), "-q"]) == 3
    edit(workflow_folder / "w.toml", ("clusters = 3", "clusters = 1000"))
    assert app.run(["run", str(workflow_folder / "w.toml"), "-q"]) == 1


@pytest.mark.slow
def test_the_log_is_json_lines(workflow_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(workflow_folder / "w.toml", ("clusters = 2\nn_init = 2", "clusters = 3\nn_init = 2\nmax_iter = 1"))
    assert app.run(["run", str(workflow_folder / "w.toml"), "--log-json", "-"]) == 0
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
    assert app.run(["run", str(workflow_folder / "w.toml"), "--log-json", str(workflow_folder / "log"), "-q"]) == 0
    assert app.run(["run", str(workflow_folder / "w.toml"), "--log-json", str(workflow_folder / "log"), "-q"]) == 0
    again = [json.loads(line) for line in (workflow_folder / "log").read_text().splitlines()]
    assert [one["event"] for one in again].count("run-begin") == 2
    assert [one["event"] for one in again].count("step-unchanged") == 2 * len(FILES)


def test_no_credentials_anywhere(tmp_path: Path, here: Callable[..., Any]) -> None:
    """A source behind a URL with a password that cannot be reached: nothing that is written or printed has it."""
    (tmp_path / "w.toml").write_text(
        "[import]\nsource = 'http://me:hunter2@127.0.0.1:9/a.zarr?sig=s3cr3t'\nkind = 'distance'\n[tree]\n"
    )
    output = here("run", tmp_path / "w.toml", "--log-json", tmp_path / "log")
    also = here("run", "--status", tmp_path / "w.toml", "--json")
    dry = here("run", "--dry-run", tmp_path / "w.toml")
    assert (output.returncode, also.returncode, dry.returncode) == (1, 1, 1)
    texts = [text for done in (output, also, dry) for text in (done.stdout, done.stderr)]
    texts += [file.read_text() for file in tmp_path.rglob("*") if file.is_file() and file.name != "w.toml"]
    assert any("127.0.0.1" in text for text in texts)
    assert not any("hunter2" in text or "s3cr3t" in text for text in texts)


def test_nothing_heavy_is_loaded_when_nothing_is_to_do(done_workflow: Path) -> None:
    run(done_workflow / "w.toml")
    code = (
        "import sys; from dasrel.cli import app; assert app.run(['run', sys.argv[1], '-q']) == 0;"
        "print([name for name in ('sklearn', 'pandas', 'distributed', 'matplotlib') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(done_workflow / "w.toml")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"
