"""A store may have more tiles than a process may have open files."""

import subprocess
import sys

import numpy as np

from tests.helpers.matrices import distances, grouped_points

LIMIT = 256
COMMANDS = """
import os, resource, sys
from dasrel.cli import app

limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.chdir(sys.argv[2])
for command in (
    "import most.npy store.zarr --kind distance --tile 16",
    "append store.zarr rest.npy",
    "cluster store.zarr cluster --clusters 3 --n-init 2 --max-iter 5 --no-picture",
    "tree store.zarr tree --linkage average --no-picture",
    "outliers store.zarr outliers --no-picture",
    "embed store.zarr embedding --components 2 --no-picture",
    "density store.zarr density --no-picture",
    "neighbours store.zarr neighbours.npz --k 3",
    "spectrum store.zarr --max-scans 20",
    "euclideanize store.zarr --method ultrametric --out ultrametric.npz",
    "align store.zarr align --max-iter 2 --no-picture",
    "image store.zarr image.png",
    "predict cluster rest.npy labels.csv",
    "report cluster --out report.html",
    "audit store.zarr --verify",
    "export store.zarr again.npy --format npy",
):
    assert app.run([*command.split(), "--quiet"]) == 0, command
print("left open", len(os.listdir("/proc/self/fd")))
"""


def test_every_command_works_with_more_tiles_than_open_files(tmp_path):
    values = distances(grouped_points(1000), dtype="float32")
    np.save(tmp_path / "most.npy", values[:900, :900])
    np.save(tmp_path / "rest.npy", values[900:])
    line = [sys.executable, "-c", COMMANDS, str(LIMIT), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < LIMIT // 4
    assert len(list(tmp_path.glob("store.zarr/values/c/*/*"))) > 4 * LIMIT
    assert np.array_equal(np.load(tmp_path / "again.npy"), values)
