"""Agglomerations on a scratch file that get kill -9 at random moments, and are resumed: the same bits."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dasrel
from dasrel.hierarchy.linkage import prepare_linkage
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.processes import command, killed
from tests.helpers.stores import stored

N = 400


@pytest.mark.parametrize("seed", range(3))
def test_the_same_bits_after_kills(tmp_path: Path, seed: int) -> None:
    matrix = stored(tmp_path / "d.zarr", distances(uniform_points(N, 4, seed)), tile=100)
    memory = prepare_linkage(matrix, "average")._fixed() + 40 * 40 * 4  # forty clusters fit
    line = ["tree", tmp_path / "d.zarr", tmp_path / "out", "--linkage", "average", "--memory", memory, "--no-picture"]
    line += ["--checkpoint", tmp_path / "kept", "--resume", "--quiet"]
    rng = np.random.default_rng(seed)
    # In the scan that fills the file, between two rows, and while a state is written.
    killed("os.pwrite", int(rng.integers(2)), int(rng.integers(1, 2 * N)), *line)
    killed("dasrel.hierarchy.rounds.RowFile.keep", int(rng.integers(2)), int(rng.integers(1, 200)), *line)
    killed("dasrel.util.archives.write_state", int(rng.integers(2)), 2, *line)
    killed("dasrel.hierarchy.rounds.Rounds.move", int(rng.integers(2)), 1, *line)
    done = command(*line)
    assert done.returncode == 0, done.stderr
    whole = dasrel.linkage(matrix, method="average")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "linkage.npy"), whole.to_scipy())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.zarr", "out"]


CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount")


def container(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run dasrel as process 1 of a namespace, with `folder / job` seen as `folder / .. / job`."""
    seen, own = folder.parent / "job", folder / "job"
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    line = [*CONTAINER, "sh", "-c", script, "sh", own, seen, sys.executable, "-m", "dasrel", *words]
    return subprocess.run([str(word) for word in line], capture_output=True, text=True, timeout=300, check=False)


def test_two_containers_share_a_scratch_folder(tmp_path: Path) -> None:
    """Both jobs are process 1 and have a checkpoint of the same path; each resumes from its own file."""
    probe = [*CONTAINER, "mount", "--bind", str(tmp_path), str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make a namespace: unshare --user --pid --mount fails")
    (tmp_path / "job").mkdir()
    (tmp_path / "shared").mkdir()
    jobs = {}
    for seed in range(2):
        home = tmp_path / str(seed)
        (home / "job").mkdir(parents=True)
        matrix = stored(home / "job" / "d.zarr", distances(uniform_points(N, 4, seed)), tile=100)
        memory = prepare_linkage(matrix, "average")._fixed() + 40 * 40 * 4
        seen = tmp_path / "job"
        line = ["tree", seen / "d.zarr", seen / "out", "--linkage", "average", "--memory", memory, "--no-picture"]
        line += ["--scratch", tmp_path / "shared", "--checkpoint", seen / "kept", "--quiet"]
        jobs[home] = (line, dasrel.linkage(matrix, method="average").to_scipy())
    for home, (line, _) in jobs.items():
        stopped = container(home, *line, "--time-limit", "0.01s")
        assert stopped.returncode == 75, stopped.stderr
    rows = [one.name for one in (tmp_path / "shared").iterdir()]
    assert len(rows) == 2
    for home, (line, whole) in jobs.items():
        completed = container(home, *line, "--resume")
        assert completed.returncode == 0, completed.stderr
        assert "from the beginning" not in completed.stderr
        np.testing.assert_array_equal(np.load(home / "job" / "out" / "linkage.npy"), whole)
    assert list((tmp_path / "shared").iterdir()) == []
