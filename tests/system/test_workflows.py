"""The workflows, run for real as far as one machine allows."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.workflow.schema import read_workflow
from tests.helpers.forks import programs
from tests.helpers.matrices import blobs, distances

FOLDER = Path(__file__).parents[2] / "workflows"
SNAKEMAKE = shutil.which("snakemake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def run(*words: object, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command line, with the `dasrel` of the Python that runs the tests, forked."""
    path = os.pathsep.join([str(programs()), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, **({} if home is None else {"HOME": str(home)})}
    line = [str(word) for word in words]
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False, timeout=250)


def labels(file: Path) -> list[int]:
    return [int(line.split(",")[1]) for line in file.read_text().splitlines()[1:]]


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """Two groups of thirty points, far apart."""
    np.save(tmp_path / "d.npy", distances(blobs(30, [[0, 0], [20, 20]])))
    return tmp_path / "d.npy"


def test_the_digits(tmp_path: Path, few_digits: Any, here: Callable[..., Any]) -> None:
    """Run twice; the second time there is nothing to do."""
    from sklearn.metrics import adjusted_rand_score

    out = tmp_path / "out"
    first = here("run", FOLDER / "local" / "digits.toml", "--out", out, "--quiet")
    assert first.returncode == 0, first.stderr
    second = here("run", FOLDER / "local" / "digits.toml", "--out", out)
    assert (second.returncode, second.stderr) == (0, "")
    assert "nothing to do  9 steps are all up to date" in second.stdout
    assert adjusted_rand_score(few_digits, labels(out / "hard" / "labels.csv")) > 0.5
    assert json.loads((out / "spectrum.json").read_text())["is_euclidean"] is False
    assert np.load(out / "pairs.npy").shape == (300 * 299 // 2,)
    for name in ("spectrum", "ivat", "clusters", "memberships"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_files_that_the_readme_shows_are_right(tmp_path: Path) -> None:
    text = (FOLDER / "local" / "README.md").read_text()
    (tmp_path / "own.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    assert list(read_workflow(tmp_path / "own.toml").steps) == ["matrix", "fuzzy", "ivat"]
    read_workflow(FOLDER / "kubernetes" / "workflow.toml")


def test_the_line_for_cron(tmp_path: Path, matrix: Path) -> None:
    """As cron runs it, by sh, with the paths of this machine."""
    (line,) = [one for one in (FOLDER / "local" / "crontab").read_text().splitlines() if not one.startswith("#")]
    assert line.split()[:5] == ["0", "2", "*", "*", "*"]
    (tmp_path / "workflow.toml").write_text(
        f"[import]\nsource = '{matrix}'\nkind = 'distance'\n[cluster.k]\nrule = 'hard'\nclusters = 2\n"
    )
    for _ in range(2):
        done = run("sh", "-c", " ".join(line.split()[5:]).replace("/data", str(tmp_path)))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = labels(tmp_path / "workflow" / "k" / "labels.csv")
    assert len(set(found[:30])) == len(set(found[30:])) == 1
    events = [json.loads(line)["event"] for line in (tmp_path / "workflow.log").read_text().splitlines()]
    assert events.count("step-done") == events.count("step-unchanged") == 2


@pytest.mark.skipif(SNAKEMAKE is None, reason="snakemake is not installed; the extra `test` brings it")
def test_snakemake(tmp_path: Path, matrix: Path) -> None:
    """Run, run again with nothing to do, and once more with another matrix."""
    out = tmp_path / "out"
    words = [SNAKEMAKE, "--cores", 2, "--snakefile", FOLDER / "snakemake" / "Snakefile", "--directory", out]
    words += ["--config", f"matrix={matrix}", "clusters=2,3", "starts=2"]
    first = run(*words, home=tmp_path)
    assert first.returncode == 0, first.stderr
    found = labels(out / "clusters2" / "labels.csv")
    assert len(set(found[:30])) == len(set(found[30:])) == 1
    assert found[0] != found[30]
    assert len(set(labels(out / "clusters3" / "labels.csv"))) == 3
    assert (out / "ivat.png").stat().st_size > 1000
    second = run(*words, home=tmp_path)
    assert "Nothing to be done" in second.stderr + second.stdout
    tile = out / "matrix.zarr" / "values" / "c" / "0" / "0"
    before = tile.read_bytes(), tile.stat().st_ino
    np.save(matrix, 2 * np.load(matrix))
    third = run(*words, home=tmp_path)
    assert third.returncode == 0, third.stderr
    assert (tile.read_bytes() != before[0], tile.stat().st_ino != before[1]) == (True, True)
    assert labels(out / "clusters2" / "labels.csv")[0] != labels(out / "clusters2" / "labels.csv")[30]
