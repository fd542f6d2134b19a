"""Commands that are killed at their very end, and resumed: the same files, exit code 0, and nothing left to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.util.results import without_times
from tests.helpers.matrices import distances
from tests.helpers.processes import killed, ran

RESULTS = ("result.json", "run.state.json")
KEPT = "--checkpoint state"
RUNS = "--rule fcm1 --clusters 2 --n-init 2 --max-iter 4 --tol 0"
BASE = "import d.npy base.zarr --kind distance --tile 16"
COMMANDS = {
    "import": "import d.npy s.zarr --kind distance --tile 16",
    "import text": "import d.csv s.zarr --kind distance --tile 16",
    "import over": "import d.npy base.zarr --kind distance --tile 20 --force",
    "pairwise": "pairwise x.npy s.zarr --metric euclidean --tile 16",
    "append": "append base.zarr rows.npy",
    "append features": "append made.zarr y.npy --features x.npy",
    "cluster": f"cluster base.zarr out {RUNS} {KEPT}",
    "cluster without checkpoint": f"cluster base.zarr out {RUNS}",
    "cluster over": f"cluster base.zarr old {RUNS} --force",
    "spectrum": f"spectrum base.zarr --picture s.png {KEPT}",
    "euclideanize": f"euclideanize base.zarr --method spread --out e.npz {KEPT}",
    "tree": "tree base.zarr tree",
    "linkage": f"tree base.zarr linked --linkage average {KEPT}",
    "workflow": "run w.toml",
}
WORKFLOW = """
out = "out"
[pairwise]
features = "x.npy"
metric = "euclidean"
tile = 16
[append.more]
source = "y.npy"
[cluster.k]
rule = "hard"
clusters = 2
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the commands read."""
    home = tmp_path_factory.mktemp("given")
    points = np.random.default_rng(2).normal(size=(56, 3))
    square = distances(points)
    np.save(home / "x.npy", points[:48])
    np.save(home / "y.npy", points[48:])
    np.save(home / "d.npy", square[:48, :48])
    np.save(home / "rows.npy", square[48:])
    np.savetxt(home / "d.csv", square[:48, :48], delimiter=",")
    (home / "w.toml").write_text(WORKFLOW)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(home)
    for line in (
        BASE,
        "pairwise x.npy made.zarr --metric cityblock --tile 16",
        "cluster base.zarr old --rule hard --clusters 2",
    ):
        assert ran(*line.split(), "--quiet") == 0
    monkeypatch.undo()
    return home


def content(folder: Path) -> dict[str, Any]:
    """All files below a folder by their names, JSON results without times and versions."""
    found: dict[str, Any] = {}
    for file in folder.rglob("*"):
        if file.is_file():
            text = file.read_bytes()
            found[str(file.relative_to(folder))] = without_times(json.loads(text)) if file.name in RESULTS else text
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_complete_has_nothing_left_to_do(
    name: str, given: Path, tmp_path: Path, here: Callable[..., Any]
) -> None:
    home = tmp_path / "home"
    shutil.copytree(given, home)
    words = COMMANDS[name].split()
    assert here(*words, "--quiet", cwd=home).returncode == 0
    wanted = content(home)
    done = here(*words, "--resume", cwd=home)
    assert done.returncode == 0, done.stderr
    if name != "spectrum":  # it is printed, and not kept
        assert "nothing to do" in done.stdout
    assert content(home) == wanted
    if name not in ("spectrum", "workflow"):
        report = json.loads(here(*words, "--resume", "--json", cwd=home).stdout)
        assert report["nothing_to_do"] is True


MOMENTS = [
    # In the middle of the removal of the tiles' progress records, and of the scratch folder of a text.
    ("import", "os.unlink", 0, 12),
    ("import text", "os.unlink", 0, 12),
    ("append", "os.unlink", 0, 8),
    # When the store is complete, and has just replaced the old one, which is then removed.
    ("import", "dasrel.store.writer.Writer.finish", 1, 1),
    ("import over", "dasrel.util.files._remove", 0, 1),
    ("import over", "os.rename", 0, 3),  # between the two renames: the old one is away, the new one not in its place
    ("pairwise", "dasrel.store.writer.Writer.finish", 1, 1),
    ("append", "dasrel.store.growth._clean", 0, 1),
    ("append features", "dasrel.store.growth._clean", 1, 1),
    ("cluster", "dasrel.util.files.move_into_place", 0, 1),
    pytest.param("cluster", "dasrel.util.files.move_into_place", 1, 1, marks=pytest.mark.guarantee),
    ("cluster over", "dasrel.util.files._remove", 0, 1),
    ("cluster without checkpoint", "dasrel.commands.cluster.write_clustering", 1, 1),
    ("spectrum", "dasrel.report.figures.spectrum.draw_spectrum", 1, 1),
    ("euclideanize", "dasrel.geometry.euclidean.save_archive", 1, 1),
    ("tree", "dasrel.util.files.move_into_place", 0, 1),
    ("tree", "dasrel.util.files.move_into_place", 1, 1),
    ("linkage", "dasrel.util.files.move_into_place", 0, 1),
    ("linkage", "dasrel.util.files.move_into_place", 1, 1),
    ("workflow", "dasrel.store.growth._clean", 0, 1),
    ("workflow", "dasrel.workflow.run.write_json", 0, 2),
]


@pytest.mark.parametrize(("name", "place", "after", "count"), MOMENTS)
def test_the_same_files_after_a_kill(
    name: str,
    place: str,
    after: int,
    count: int,
    given: Path,
    tmp_path: Path,
    here: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of a kill is a call of a function; one that is never made fails the test."""
    home, words = tmp_path / "home", COMMANDS[name].split()
    shutil.copytree(given, home)
    assert here(*words, "--quiet", cwd=home).returncode == 0
    wanted = content(home)
    shutil.rmtree(home)
    shutil.copytree(given, home)
    monkeypatch.chdir(home)
    killed(place, after, count, *words, "--quiet")
    done = here(*words, "--resume", cwd=home)
    assert done.returncode == 0, done.stderr
    assert content(home) == wanted


def test_what_is_complete_is_resumed_by_the_same_command_only(
    given: Path, tmp_path: Path, here: Callable[..., Any]
) -> None:
    home = tmp_path / "home"
    shutil.copytree(given, home)
    before = content(home)
    for line, report in (
        ("import d.npy base.zarr --kind distance --tile 8 --resume", "was begun with tile 16, now it is 8"),
        ("import d.npy base.zarr --kind squared-distance --tile 16 --resume", "was begun with kind distance"),
        (f"cluster base.zarr old {RUNS} --resume", "old exists"),
        ("tree made.zarr old --resume", "old exists"),
        ("append base.zarr d.npy --resume", "48 rows and 48 columns"),
    ):
        done = here(*line.split(), cwd=home)
        assert (done.returncode, report in done.stderr) == (1, True), done.stderr
    assert content(home) == before
    later = time.time_ns() + 10**9
    os.utime(home / "d.npy", ns=(later, later))
    done = here(*BASE.split(), "--resume", cwd=home)
    assert done.returncode == 1
    assert "is complete, and its source was modified since: d.npy; say --force to import it anew" in done.stderr


def test_an_unfinished_append_survives_a_resumed_import(
    given: Path, tmp_path: Path, here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(given, home)
    monkeypatch.chdir(home)
    killed("dasrel.store.tile_files.TileFiles.write", 1, 3, "append", "base.zarr", "rows.npy", "--quiet")
    assert here(*BASE.split(), "--resume", "--quiet").returncode == 0
    done = here("append", "base.zarr", "rows.npy", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tiles_kept"] >= 1


def test_the_bench_of_kills(tmp_path: Path) -> None:
    """A few kills, to see that bench/kills.py works and would notice a difference."""
    bench = Path(__file__).parents[2] / "bench" / "kills.py"
    line = [sys.executable, bench, "--kills", "4", "--cases", "import,tree", "--n", "64", "--dir", tmp_path]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    total = json.loads(done.stdout.splitlines()[-1])
    assert total["different"] == 0
    assert total["kills"] >= 4
    assert list(tmp_path.iterdir()) == []
