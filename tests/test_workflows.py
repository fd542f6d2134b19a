"""The workflows, run for real as far as one machine allows."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy.spatial.distance import pdist, squareform

SCRIPT = Path(__file__).parent.parent / "workflows" / "local" / "cluster.sh"


def run(*arguments):
    """With the `dasrel` of the Python that runs the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", str(SCRIPT), *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False)


def test_the_local_script_can_be_run_again(tmp_path):
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + 20])
    np.save(tmp_path / "d.npy", squareform(pdist(points)))
    out = tmp_path / "out"
    tile = out / "matrix.zarr" / "values" / "c" / "0" / "0"
    written = []
    for _ in range(2):
        done = run(tmp_path / "d.npy", "distance", out, "2,3")
        assert (done.returncode, done.stderr) == (0, "")
        written.append(tile.stat().st_mtime_ns)
    assert written[0] == written[1]
    labels = (out / "clusters" / "fcm1-clusters2" / "labels.csv").read_text().splitlines()[1:]
    found = np.array([int(line.split(",")[1]) for line in labels])
    assert len(set(found[:30])) == len(set(found[30:])) == 1
    assert found[0] != found[30]
    assert (out / "ivat.png").stat().st_size > 1000


def test_the_local_script_stops_at_the_first_error(tmp_path):
    done = run(tmp_path / "nothing.npy", "distance", tmp_path / "out")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert run().returncode == 2
