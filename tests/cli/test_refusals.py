"""What the command line and workflow files refuse: one line, the right exit code, and nothing written."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.cli import app
from tests.helpers.matrices import line_distances
from tests.helpers.processes import ran, refused

CLUSTER = "cluster d.zarr out --rule fcm1 --clusters 2"
WORKFLOWS = {
    "digits": ("[store]\npath = 'd.zarr'\n[cluster]\nrule = 'hard'\nclusters = " + "9" * 5000, "is not TOML"),
    "nested": ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "nul": ("[import]\nsource = \"a\\u0000b\"\nkind = 'distance'", "NUL character"),
    "nul in out": ("out = \"a\\u0000b\"\n[import]\nsource = 'd.npy'\nkind = 'distance'", "is no folder"),
    "user": ("[import]\nsource = '~nosuchuser/b'\nkind = 'distance'", "there is no user of this name"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with a matrix and its store."""
    monkeypatch.chdir(tmp_path)
    np.save("d.npy", line_distances(24, "float64"))
    assert ran("import", "d.npy", "d.zarr", "--kind", "distance", "--tile", 8, "--quiet") == 0
    return tmp_path


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_files_that_cannot_be_read(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, report = WORKFLOWS[name]
    Path("w.toml").write_text(text)
    line = refused(["run", "w.toml"], capfd)
    assert report in line
    assert "unexpected" not in line


@pytest.mark.slow
def test_a_workflow_of_1500_chained_steps(folder: Path, here: Callable[..., Any]) -> None:
    steps = [f"[cluster.c{k}]\nrule = 'hard'\nclusters = 2\nwarm_start = 'c{k + 1}'\n" for k in range(1500)]
    last = "[cluster.c1500]\nrule = 'hard'\nclusters = 2\n"
    Path("w.toml").write_text("[store]\npath = 'd.zarr'\n" + "".join(steps) + last)
    done = here("run", "w.toml", "--status")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["matrix", "c1500", "c1499"]
    Path("w.toml").write_text("[store]\npath = 'd.zarr'\n" + "".join(steps) + last + "warm_start = 'c0'\n")
    done = here("run", "w.toml", "--status")
    assert done.returncode == 1
    assert "wait for each other" in done.stderr


def test_the_root_is_no_store(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "/ " in refused(["import", "d.npy", "/", "--kind", "distance", "--force"], capfd)


@pytest.mark.parametrize(
    ("option", "code"),
    [("--n-init 0", 1), ("--seed -2", 1), ("--max-iter 0", 1), ("--tol -1", 1), ("--n-init x", 2), ("--memory lots", 2),
     ("--memory -5GB", 2), ("--no-such 1", 2), ("--fuzzifier 1e308", 1), ("--n-init 1000000000", 1)],
)  # fmt: skip
def test_exit_codes(option: str, code: int, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """2 where the command line cannot be read, 1 where a value in it is refused."""
    line = refused([*CLUSTER.split(), *option.split()], capfd, code)
    assert "unexpected" not in line
    assert not Path("out").exists()


def test_no_output_replaces_an_input(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ran(*CLUSTER.split(), "--n-init", 1, "--quiet") == 0
    np.save("rows.npy", line_distances(24)[:2])
    os.symlink("rows.npy", "link.npy")
    os.link("rows.npy", "hard.npy")
    os.symlink("d.zarr", "link.zarr")
    capfd.readouterr()
    before = {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}
    for line in (
        "predict out rows.npy rows.npy --force",
        "predict out rows.npy link.npy --force",
        "predict out rows.npy hard.npy --force",
        "predict out rows.npy out/model.npz --force --ids out/model.npz",
        "import d.zarr link.zarr --kind distance --force",
        "pairwise rows.npy rows.npy --metric euclidean --force",
        "export d.zarr d.zarr --format zarr --force",
        "cluster d.zarr out --rule hard --clusters 2 --warm-start out --force",
        "tree d.zarr link.zarr --force",
        "euclideanize d.zarr --method spread --out d.zarr --force",
    ):
        assert "would replace what is read" in refused(line.split(), capfd), line
    assert {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()} == before


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("redirect", "options", "code"),
    [(">&-", "", 0), ("2>&-", "", 0), (">&- 2>&-", "", 0), ("> /dev/full", "", 1), ("> /dev/full", "--json", 1),
     ("2> /dev/full", "", 0)],
)  # fmt: skip
def test_closed_and_full_outputs(redirect: str, options: str, code: int, folder: Path) -> None:
    shell = f"exec {sys.executable} -m dasrel audit d.zarr {options} {redirect}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == code  # one line where it fails
    assert "unexpected" not in done.stderr


def test_too_few_threads(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def no_thread(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("dasrel.commands.audit.audit_store", no_thread)
    assert "no thread can be started" in refused(["audit", "d.zarr"], capfd)


@pytest.mark.slow
def test_an_address_space_that_is_too_small(folder: Path) -> None:
    """However little memory there is: no traceback."""
    for limit in (300 << 20, 700 << 20):
        done = subprocess.run(
            [sys.executable, "-m", "dasrel", "audit", "d.zarr"],
            capture_output=True, text=True, timeout=120, check=False,
            preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert "unexpected" not in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cluster a b --k 3", "there is no option --k: here it is --clusters"),
        ("cluster a b --random-state 3", "there is no option --random-state: here it is --seed"),
        ("validity a --result out", "there is no option --result: here it is LABELS"),
        ("audit a --k 3", "No such option: --k"),  # it has none by another name
        ("cluster a b --clusters auto", "'auto': give whole numbers with commas between them, such as 3, 2,5 or 2-10"),
        ("cluster a b --clusters 2..5", "such as 3, 2,5 or 2-10"),
        ("pairwise a b --metric dtw", "compares whole objects, not rows of features: `dasrel.from_blocks`"),
    ],
)
def test_words_of_other_programs(line: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert app.run(line.split()) in (1, 2)
    assert message in capfd.readouterr().err


def test_an_unknown_option_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert app.run(["audit", "x", "--no-such"]) == 2
    assert "No such option" in capfd.readouterr().err


@pytest.mark.timeout(120)
def test_a_pipe_in_the_place_of_any_file_is_refused_at_once(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Opening one waits until somebody writes into it, perhaps for ever."""
    np.save("rows.npy", line_distances(24, "float64")[:2])
    Path("w.toml").write_text("[store]\npath = 'd.zarr'\n[tree.t]\npicture = false\n")
    assert ran(*CLUSTER.split(), "--n-init", 1, "--no-picture", "-q") == 0
    assert ran("density", "d.zarr", "dense", "--min-size", 3, "--no-picture", "-q") == 0
    assert ran("run", "w.toml", "-q") == 0
    for place, line in (
        ("out/model.npz", "predict out rows.npy new.csv"),
        ("dense/model.npz", "predict dense rows.npy new.csv"),
        ("rows.npy", "predict out rows.npy new.csv"),
        ("out/memberships.npy", "compare out out"),
        ("out/result.json", "report out/result.json"),
        ("out/result.json", "report out"),
        ("w/run.state.json", "run w.toml --status"),
        ("w/run.state.json", "report w"),
        ("w.toml", "run w.toml --status"),
        ("scheduler.json", "tree d.zarr new --scheduler-file scheduler.json"),
        ("d.zarr/zarr.json", "audit d.zarr"),
        ("d.zarr/ids/zarr.json", "audit d.zarr"),
    ):
        there = Path(place).exists()
        if there:
            os.rename(place, "kept")
        os.mkfifo(place)
        assert "unexpected" not in refused(line.split(), capfd), line
        os.unlink(place)
        if there:
            os.rename("kept", place)
