"""Imports that are killed, meet a full disk or run elsewhere end in the same bytes as undisturbed ones."""

import subprocess
import sys
import textwrap
from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest

from dasrel import Policy, open_matrix
from dasrel.errors import StoreError
from dasrel.io.importing import import_matrix
from dasrel.store.matrix import read_manifest
from dasrel.store.options import Writing
from tests.helpers.faults import small_disk
from tests.helpers.matrices import line_distances
from tests.helpers.processes import killed
from tests.helpers.stores import files

N, TILE = 90, 16
WRITING = Writing(tile=TILE)

RENAME, CHUNK, RECORD = (
    "os.replace",
    "dasrel.store.tile_files.TileFiles._put",
    "dasrel.store.tile_files.TileFiles.write",
)
CREATE, DELETE = "zarr.Group.create_array", "zarr.Group.__delitem__"


@pytest.mark.parametrize(
    ("place", "after", "count"),
    [
        *((RENAME, 0, 1), (RENAME, 0, 9), (CHUNK, 1, 1), (CHUNK, 1, 20), (RECORD, 1, 7), (RECORD, 1, 21)),
        *((RECORD, 1, 22), (CHUNK, 1, 43), (CREATE, 0, 1), (CREATE, 0, 3), (CREATE, 0, 4), (DELETE, 0, 1)),
        (DELETE, 1, 1),
    ],
)
def test_killed_and_resumed_is_the_same_to_the_last_byte(tmp_path, place, after, count):
    """21 tiles of two chunks each, the values and the record; two tiles wait for the maximum and are written again."""
    a = np.random.default_rng(2).random((N, N))
    np.fill_diagonal(a, 0)
    a[3, 70] = a[70, 3] = a[4, 5] = a[5, 4] = np.nan
    np.savez_compressed(tmp_path / "a.npz", a)
    policy = Policy(missing="max", symmetrize="mean")
    import_matrix(tmp_path / "a.npz", tmp_path / "good.zarr", kind="distance", policy=policy, writing=WRITING)
    store = tmp_path / "s.zarr"
    options = ("--kind", "distance", "--missing", "max", "--symmetrize", "mean", "--tile", TILE)
    killed(place, after, count, "import", tmp_path / "a.npz", store, *options)
    if store.exists() and (store / "zarr.json").exists():
        complete = place == DELETE  # only what is obsolete is left to be removed
        assert read_manifest(store)[0]["state"] in (("complete",) if complete else ("begun", "writing"))
        with nullcontext() if complete else pytest.raises(StoreError, match="unfinished"):
            open_matrix(store)
        with pytest.raises(
            StoreError, match=r"exists.*force=True to replace it" + ", or resume=True to continue" * (not complete)
        ):
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


def test_full_disk(tmp_path):
    np.save(tmp_path / "a.npy", line_distances(600))
    writing, store = Writing(tile=100), tmp_path / "disk" / "s.zarr"
    import_matrix(tmp_path / "a.npy", tmp_path / "good.zarr", kind="distance", writing=writing)
    with small_disk(tmp_path / "disk", "size=600k") as disk:
        with pytest.raises(StoreError, match=r"the disk is full.*nothing was lost.*resume=True"):
            import_matrix(tmp_path / "a.npy", store, kind="distance", writing=writing)
        assert list(store.rglob("values/c/*/*"))
        disk.remount("size=8m")
        import_matrix(tmp_path / "a.npy", store, kind="distance", writing=Writing(tile=100, resume=True))
        assert files(store) == files(tmp_path / "good.zarr")
        with pytest.raises(StoreError, match="the disk is full"):  # while it is being spooled
            import_matrix(
                da.zeros((1500, 1500), chunks=(70, 1500)), store.with_name("t.zarr"), kind="distance", writing=writing
            )


def test_a_limit_on_file_size_leaves_no_half_tile(tmp_path):
    """Where nobody may mount, a limit on the size of files stands in for a full disk."""
    np.save(tmp_path / "a.npy", line_distances(600))
    script = """
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        from dasrel.io.importing import import_matrix
        from dasrel.store.writer import Writing
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
