"""Disks that are full or read-only: one line, nothing lost, and a way to resume."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from dasrel import watch
from tests.helpers.faults import (
    small_disk,
)
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.processes import CLUSTER, killed, line_of, ran
from tests.helpers.stores import files, result_files

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")
SHORT = (*CLUSTER, "--max-iter", 6)


@pytest.fixture
def store(source: Path) -> Path:
    return source / "d.zarr"


def test_a_disk_that_fills(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each command says so in one line and exits 1; what was there stays, and goes on when there is room again."""
    with small_disk(tmp_path / "disk", "size=450k") as disk:
        goods, store = tmp_path / "good", disk.path / "s"
        commands = {
            "import": (source / "d.npy", "--kind", "distance", "--store-dtype", "float64", "--tile", 30, "--quiet"),
            "pairwise": (source / "x.npy", "--metric", "cityblock", "--store-dtype", "float64", "--tile", 30, "-q"),
        }
        for name, (first, *more) in commands.items():
            disk.remount("size=120k")
            good = goods / name
            assert ran(name, first, good, *more) == 0
            assert ran(name, first, store, *more) == 1
            assert re.search(rf"the disk is full: {store} is unfinished.* run again with --resume", line_of(capfd))
            disk.remount("size=450k")
            assert ran(name, first, store, *more, "--resume") == 0
            assert files(store) == files(good)
            assert ran(name, first, store, *more, "--force") == 1  # there is no room for two
            assert re.search(rf"the disk is full: the old {store} is as it was; free some", line_of(capfd))
            assert files(store) == files(good)
            disk.remount("size=2m")
            assert ran(name, first, store, *more, "--force") == 0
            assert files(store) == files(good)
            assert sorted(one.name for one in disk.path.iterdir()) == ["s"]
            for one in sorted(store.rglob("*"), reverse=True):
                one.rmdir() if one.is_dir() else one.unlink()
            store.rmdir()


def test_results_and_a_disk_that_fills(tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ran("cluster", store, tmp_path / "whole", *SHORT) == 0
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        out, kept = disk.path / "out", tmp_path / "kept"
        for spare in (0, 1, 3):  # nothing goes, or a file or two
            hog = disk.fill()
            os.truncate(hog, hog.stat().st_size - spare * 4096)
            command = ("cluster", store, out, *SHORT, "--checkpoint", kept, "--resume")
            assert ran(*command) == 1
            assert re.search(r"No space left on device|the disk is full", line_of(capfd))
            assert sorted(one.name for one in disk.path.iterdir()) == ["hog"]
            assert list(kept.glob("cluster-*.npz"))  # the work is not lost
            hog.unlink()
        with watch() as counted:
            assert ran(*command) == 0
        assert counted.scans <= 1  # the last one is for the medoids
        assert result_files(out) == result_files(tmp_path / "whole")
        before = files(out)
        hog = disk.fill()
        assert ran("cluster", store, out, *SHORT, "--force") == 1
        assert files(out) == before
        for other in (
            ("euclideanize", store, "--method", "ultrametric", "--out", disk.path / "e.npz"),
            ("export", store, disk.path / "d.npy", "--format", "npy"),
            ("tree", store, disk.path / "tree"),
        ):
            capfd.readouterr()
            assert ran(*other, "--quiet") == 1
            assert re.search(r"No space left on device|the disk is full", line_of(capfd))
        assert sorted(one.name for one in disk.path.iterdir()) == ["hog", "out"]
        # Checkpoints that do not fit are told of, and do not end the work.
        (disk.path / "kept").mkdir()
        assert ran("cluster", store, tmp_path / "second", *SHORT, "--checkpoint", disk.path / "kept") in (0, 1)
        hog.unlink()


def test_a_store_that_is_read_only(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.npy"
    np.save(rows, distances(grouped_points(200))[180:])
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        store = disk.path / "s"
        make = (source / "d.npy", store, "--kind", "distance", "--tile", 30, "--quiet")
        assert ran("import", *make) == 0
        begun = disk.path / "begun"
        killed("import", 0, 3, "import", source / "d.npy", begun, "--kind", "distance", "--tile", 30, "--quiet")
        disk.remount("ro")
        before = files(disk.path)
        assert ran("cluster", store, tmp_path / "out", *SHORT) == 0
        assert ran("spectrum", store, "--quiet") == 0
        assert ran("audit", store, "--verify", "--quiet") == 0
        capfd.readouterr()
        refused = [
            ("append", store, rows, "--quiet"),
            ("import", *make, "--force"),
            ("import", source / "d.npy", begun, "--kind", "distance", "--tile", 30, "--quiet", "--resume"),
            ("pairwise", source / "x.npy", disk.path / "new", "--metric", "euclidean", "--quiet"),
            ("cluster", store, disk.path / "out", *SHORT),
        ]
        for command in refused:
            assert ran(*command) == 1
            assert "Read-only file system" in line_of(capfd), command
        assert ran("cluster", store, tmp_path / "more", *SHORT, "--checkpoint", disk.path / "kept") == 1
        assert "checkpoints cannot be written to" in line_of(capfd)
        assert files(disk.path) == before
