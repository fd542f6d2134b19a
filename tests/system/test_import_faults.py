"""Imports that are killed, meet a full disk or run elsewhere end in the same bytes as undisturbed ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import dask.array as da
import numpy as np
import pytest

from dasrel import Policy, open_matrix
from dasrel.errors import StoreError
from dasrel.readers import import_matrix
from dasrel.store import read_manifest
from dasrel.writer import Writing
from tests.helpers.matrices import line_distances
from tests.helpers.stores import files

N, TILE = 90, 16
WRITING = Writing(tile=TILE)

KILLED = """
    import os, signal, sys
    import dasrel.store, dasrel.writer, zarr
    from dasrel import Policy
    from dasrel.readers import import_matrix
    from dasrel.writer import Writing

    where, count, source, store = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    calls = 0

    def die_in(owner, name, after):
        original = getattr(owner, name)
        def dying(*args, **options):
            global calls
            calls += 1
            if calls >= count and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **options)
            if calls >= count and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(owner, name, dying)

    place = {
        "before-rename": (os, "replace", False),
        "after-chunk": (dasrel.store, "_write_aside", True),
        "after-record": (dasrel.store.TileFiles, "write", True),
        "creating": (zarr.Group, "create_array", False),
        "deleting": (zarr.Group, "__delitem__", False),
        "deleted": (zarr.Group, "__delitem__", True),
    }[where]
    die_in(*place)
    policy = Policy(missing="max", symmetrize="mean")
    import_matrix(source, store, kind="distance", policy=policy, writing=Writing(tile=16))
"""


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("before-rename", 1), ("before-rename", 9), ("after-chunk", 1), ("after-chunk", 20), ("after-record", 7),
        ("after-record", 21), ("after-record", 22), ("after-chunk", 43), ("creating", 1), ("creating", 3),
        ("creating", 4), ("deleting", 1), ("deleted", 1),
    ],
)  # fmt: skip
def test_killed_and_resumed_is_the_same_to_the_last_byte(tmp_path, where, count):
    """21 tiles of two chunks each, the values and the record; two tiles wait for the maximum and are written again."""
    a = np.random.default_rng(2).random((N, N))
    np.fill_diagonal(a, 0)
    a[3, 70] = a[70, 3] = a[4, 5] = a[5, 4] = np.nan
    np.savez_compressed(tmp_path / "a.npz", a)
    policy = Policy(missing="max", symmetrize="mean")
    import_matrix(tmp_path / "a.npz", tmp_path / "good.zarr", kind="distance", policy=policy, writing=WRITING)
    store = tmp_path / "s.zarr"
    script = [sys.executable, "-c", textwrap.dedent(KILLED), where, str(count), str(tmp_path / "a.npz"), str(store)]
    done = subprocess.run(script, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    if store.exists() and (store / "zarr.json").exists():
        assert read_manifest(store)[0]["state"] in ("begun", "writing")
        with pytest.raises(StoreError, match="unfinished"):
            open_matrix(store)
        with pytest.raises(StoreError, match=r"exists.*or --resume to go on"):
            import_matrix(tmp_path / "a.npz", store, kind="distance", policy=policy, writing=WRITING)
        with pytest.raises(StoreError, match="begun with symmetrize mean, now it is max"):
            import_matrix(
                tmp_path / "a.npz", store, kind="distance", policy=Policy(missing="max", symmetrize="max"),
                writing=Writing(tile=TILE, resume=True),
            )  # fmt: skip
    resume = Writing(tile=TILE, resume=True)
    import_matrix(tmp_path / "a.npz", store, kind="distance", policy=policy, writing=resume)
    assert files(store) == files(tmp_path / "good.zarr")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "good.zarr", "s.zarr"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small tmpfs")
def test_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    np.save(tmp_path / "a.npy", line_distances(600))
    writing = Writing(tile=100)
    import_matrix(tmp_path / "a.npy", tmp_path / "good.zarr", kind="distance", writing=writing)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(StoreError, match=r"the disk is full.*nothing was lost.*--resume"):
            import_matrix(tmp_path / "a.npy", disk / "s.zarr", kind="distance", writing=writing)
        assert list(disk.rglob("values/c/*/*"))
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        resume = Writing(tile=100, resume=True)
        import_matrix(tmp_path / "a.npy", disk / "s.zarr", kind="distance", writing=resume)
        assert files(disk / "s.zarr") == files(tmp_path / "good.zarr")
        with pytest.raises(StoreError, match="the disk is full"):  # while it is being put aside
            import_matrix(da.zeros((1500, 1500), chunks=(70, 1500)), disk / "t.zarr", kind="distance", writing=writing)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_limit_on_file_size_leaves_no_half_tile(tmp_path):
    """Where nobody may mount, a limit on the size of files stands in for a full disk."""
    np.save(tmp_path / "a.npy", line_distances(600))
    script = """
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        from dasrel.readers import import_matrix
        from dasrel.writer import Writing
        try:
            import_matrix(sys.argv[1], sys.argv[2], kind="distance", writing=Writing(tile=100))
        except OSError as error:
            print(error.errno)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "a.npy"), str(tmp_path / "s.zarr")],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "27"
    assert not [p for p in (tmp_path / "s.zarr" / "values").rglob("*") if p.is_file() and p.name != "zarr.json"]


def test_memory_stays_below_what_was_predicted(tmp_path):
    """8192 objects in float64: 512 MiB of source; the tasks' predicted memory against what the kernel says."""
    n = 8192
    x = np.random.default_rng(0).random(n)
    square = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.float64, shape=(n, n))
    for k in range(0, n, 512):
        square[k : k + 512] = np.abs(x[k : k + 512, None] - x)
    del square
    script = """
        import sys, threading
        from pathlib import Path
        from dasrel import readers, tasks

        def anonymous():
            return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024

        said = {}
        original = tasks.run
        def run(*args, **options):
            said["task"] = options["task_memory"]
            said["threads"] = tasks.threads_that_fit(options["task_memory"], options["memory"], "import")
            said["before"] = said["peak"] = anonymous()
            done = threading.Event()
            def watch():
                while not done.wait(0.002):
                    said["peak"] = max(said["peak"], anonymous())
            thread = threading.Thread(target=watch)
            thread.start()
            try:
                return original(*args, **options)
            finally:
                done.set()
                thread.join()
        tasks.run = run
        readers.import_matrix(sys.argv[1], sys.argv[2], kind="distance")
        print(said["peak"] - said["before"], said["task"] * said["threads"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "a.npy"), str(tmp_path / "s.zarr")],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    used, predicted = (int(word) for word in done.stdout.split())
    assert 0 < used < predicted < 1 << 30
