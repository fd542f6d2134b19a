"""Folders that several machines or containers share: slow, without locks, with processes of the same number."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.faults import killed_after
from tests.helpers.matrices import distances, grouped_points, uniform_points
from tests.helpers.processes import ran
from tests.helpers.stores import files, stored

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]
LINES = (
    "import d.npy s.zarr --kind distance --tile 16",
    "append s.zarr rows.npy",
    "cluster s.zarr out --rule fcm1 --clusters 3 --n-init 2 --max-iter 6 --tol 0 --no-picture",
    "tree s.zarr tree --linkage average --no-picture",
)


def content(folder: Path) -> dict[str, bytes]:
    """All files of a result but that with its times and its name."""
    return {name: content for name, content in files(folder).items() if name != "result.json"}


def test_two_process_namespaces_with_one_scratch_folder(tmp_path: Path) -> None:
    """Both have the same process numbers; each gets its own bits, and nothing is left."""
    if shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], check=False).returncode:
        pytest.skip("unshare is not there or not allowed, which needs root")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    points = {"a": grouped_points(300), "b": uniform_points(300)}
    for name, these in points.items():
        stored(tmp_path / f"{name}.zarr", distances(these), tile=32)
        assert ran("tree", tmp_path / f"{name}.zarr", tmp_path / name, "--linkage", "average", "--quiet") == 0
    environment = {**os.environ, "TMPDIR": str(scratch)}
    begun = []
    for name in points:
        words = ["tree", tmp_path / f"{name}.zarr", tmp_path / f"{name}-2", "--linkage", "average", "--quiet"]
        line = [*UNSHARE, sys.executable, "-m", "dasrel", *map(str, words)]
        begun.append(subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True))
    for process in begun:
        assert process.wait(200) == 0, process.communicate()[1]
        process.communicate()
    for name in points:
        assert content(tmp_path / f"{name}-2") == content(tmp_path / name)
    assert list(scratch.iterdir()) == []


def test_a_file_system_that_is_slow_and_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS without a lock server, and Lustre without `flock`: the same bits, and after a kill as well."""
    values = distances(grouped_points(70), dtype="float32")
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "d.npy", values[:60, :60])
        np.save(tmp_path / name / "rows.npy", values[60:])
    monkeypatch.chdir(tmp_path / "here")
    for line in LINES:
        assert ran(*line.split(), "--quiet") == 0

    def refuse(*about: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def slow(plain: Any) -> Any:
        def delayed(*about: Any, **more: Any) -> Any:
            time.sleep(0.002)
            return plain(*about, **more)

        return delayed

    monkeypatch.chdir(tmp_path / "there")
    monkeypatch.setattr(fcntl, "flock", refuse)
    for name in ("open", "rename", "replace", "mkdir", "stat", "fsync"):
        monkeypatch.setattr(os, name, slow(getattr(os, name)))
    for line in LINES:
        if line.startswith("cluster"):
            kept = [*line.split(), "--quiet", "--checkpoint", "kept"]
            with killed_after(3):
                assert ran(*kept) == 1
            assert ran(*kept, "--resume") == 0
        else:
            assert ran(*line.split(), "--quiet") == 0
    assert files(tmp_path / "there" / "s.zarr") == files(tmp_path / "here" / "s.zarr")
    for name in ("out", "tree"):
        assert content(tmp_path / "there" / name) == content(tmp_path / "here" / name)
