"""Stores that several processes write together: the bytes of one process, also where one dies or runs twice."""

import json
import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest
import zarr
from scipy.spatial.distance import cdist

from dasrel import Policy
from dasrel.errors import InputError, StoreError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.io.pairwise import from_blocks, pairwise
from dasrel.store.matrix import open_matrix, read_manifest
from dasrel.store.options import Writing
from dasrel.store.tile_files import TileFiles
from dasrel.store.writer import PartDone, Writer
from dasrel.util.option_fields import parse_part
from tests.helpers.forks import programs
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.processes import script_line
from tests.helpers.stores import create_store, files

N, TILE = 150, 16
TILES = 55  # ten strips: 10 * 11 / 2


def features():
    return uniform_points(N, 4, 5)


def matrix():
    return distances(features())


def share(k, n, **more):
    return Writing(tile=TILE, part=(k, n), **more)


def test_many_processes_at_once_leave_the_bytes_of_one(tmp_path):
    """Four processes of the command line start together on a store that is not there; then one completes it."""
    a = matrix()
    a[3, 70] = a[70, 3] = np.nan
    np.save(tmp_path / "a.npy", a)
    store, alone = tmp_path / "s.zarr", tmp_path / "alone.zarr"
    command = [str(programs() / "dasrel"), "import", str(tmp_path / "a.npy")]
    requested = ["--kind", "distance", "--tile", str(TILE), "--missing", "max", "--json"]
    parts = [
        subprocess.Popen([*command, str(store), *requested, "--part", f"{k}/4"], stdout=subprocess.PIPE)
        for k in range(1, 5)
    ]
    report = [json.loads(process.communicate()[0]) for process in parts]
    assert [process.returncode for process in parts] == [0] * 4
    assert [one["tiles_written"] for one in report] == [13, 14, 14, 14]
    assert min(one["tiles_missing"] for one in report) == 0
    assert not any(one["complete"] for one in report)
    with pytest.raises(StoreError, match="unfinished"):
        open_matrix(store)
    for place, more in ((store, ["--resume"]), (alone, [])):
        subprocess.run([*command, str(place), *requested, *more], check=True, stdout=subprocess.DEVNULL)
    assert files(store) == files(alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "alone.zarr", "s.zarr"]
    np.testing.assert_array_equal(open_matrix(store).rows(["3"])[0, 70], np.float32(np.nanmax(a)))


DYING = """
    from pathlib import Path
    from dasrel.io.pairwise import pairwise
    from dasrel.store.writer import Writing

    folder, k, tiles = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    die_in("dasrel.store.tile_files.TileFiles.write", tiles, after=True)
    writing = Writing(tile=16, part=(k, 3), compress=sys.argv[4] or None)
    pairwise(folder / "x.npy", folder / "s.zarr", metric="rbf", kind="kernel", writing=writing)
"""


@pytest.mark.parametrize("compress", [None, "lz4"])
def test_parts_that_die_and_parts_that_run_twice(tmp_path, compress):
    """A kernel, so that the diagonal is written too; part 2 runs twice at the same time, and once more afterwards."""
    np.save(tmp_path / "x.npy", features())
    store = tmp_path / "s.zarr"
    moments = ((1, 5), (2, 7), (2, 1000))
    begun = [
        subprocess.Popen(script_line(DYING, tmp_path, k, tiles, compress or "", python=programs() / "python"))
        for k, tiles in moments
    ]
    codes = [process.wait() for process in begun]
    assert codes[0] == -signal.SIGKILL
    assert codes[1] in (-signal.SIGKILL, 0)  # its twin may have left it fewer than seven tiles
    assert codes[2] == 0
    same = {"metric": "rbf", "kind": "kernel"}
    writing = share(2, 3, compress=compress)
    assert pairwise(tmp_path / "x.npy", store, writing=writing, **same).written == 0
    pairwise(tmp_path / "x.npy", store, writing=Writing(tile=TILE, resume=True, compress=compress), **same)
    pairwise(tmp_path / "x.npy", tmp_path / "alone.zarr", writing=Writing(tile=TILE, compress=compress), **same)
    assert files(store) == files(tmp_path / "alone.zarr")


def block(rows, columns):
    x = features()
    return cdist(x[rows.start : rows.stop], x[columns.start : columns.stop])


def test_a_function_in_parts(tmp_path):
    called = []

    def counted(rows, columns):
        called.append((rows.start, columns.start))
        return block(rows, columns)

    for k in (3, 1, 2):
        done = from_blocks(counted, N, tmp_path / "s.zarr", kind="distance", writing=share(k, 3))
    assert done == PartDone((2, 3), 18, 0, complete=False)
    assert len(called) == len(set(called)) == TILES
    from_blocks(counted, N, tmp_path / "s.zarr", kind="distance", writing=Writing(tile=TILE, resume=True))
    assert len(called) == TILES
    from_blocks(counted, N, tmp_path / "alone.zarr", kind="distance", writing=Writing(tile=TILE))
    assert files(tmp_path / "s.zarr") == files(tmp_path / "alone.zarr")


def test_what_the_parts_left_is_written_by_the_last_call(tmp_path):
    np.save(tmp_path / "a.npy", matrix())
    store = tmp_path / "s.zarr"
    assert import_matrix(tmp_path / "a.npy", store, kind="distance", writing=share(2, 4)).missing == TILES - 14
    import_matrix(tmp_path / "a.npy", store, kind="distance", writing=Writing(tile=TILE, resume=True))
    before = files(store)
    late = import_matrix(
        tmp_path / "a.npy", store, kind="distance", writing=share(3, 4)
    )  # a job that was queued too long
    assert late == PartDone((3, 4), 0, 0, complete=True)
    assert files(store) == before
    with pytest.raises(StoreError, match="begun with kind distance, now it is similarity"):
        import_matrix(tmp_path / "a.npy", store, kind="similarity", writing=share(3, 4))


def test_a_part_that_is_overtaken(tmp_path, monkeypatch):
    """While a part still writes, somebody else makes the store complete: nothing is lost, and the part is content."""
    np.save(tmp_path / "a.npy", matrix())
    store, original = tmp_path / "s.zarr", TileFiles.write

    def overtaken(self, i, j, tile, record):
        monkeypatch.setattr(TileFiles, "write", original)
        import_matrix(tmp_path / "a.npy", store, kind="distance", writing=Writing(tile=TILE, resume=True))
        original(self, i, j, tile, record)

    monkeypatch.setattr(TileFiles, "write", overtaken)
    done = import_matrix(tmp_path / "a.npy", store, kind="distance", writing=share(1, 1))
    assert done.complete
    import_matrix(tmp_path / "a.npy", tmp_path / "alone.zarr", kind="distance", writing=Writing(tile=TILE))
    assert files(store) == files(tmp_path / "alone.zarr")


def test_of_two_that_begin_one_wins(tmp_path, monkeypatch):
    """Between the look and the rename of one part the other has begun, and even written tiles."""
    np.save(tmp_path / "a.npy", matrix())
    store, rename = tmp_path / "s.zarr", os.rename

    def slow(source, target):
        monkeypatch.setattr(os, "rename", rename)
        assert import_matrix(tmp_path / "a.npy", store, kind="distance", writing=share(2, 2)).written == 28
        rename(source, target)

    monkeypatch.setattr(os, "rename", slow)
    assert import_matrix(tmp_path / "a.npy", store, kind="distance", writing=share(1, 2)).missing == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "s.zarr"]


def test_an_object_store_is_begun_by_one(tmp_path):
    """There is no rename there. A Zarr store in memory stands for it: it has no path either."""
    store = zarr.storage.MemoryStore()
    with pytest.raises(StoreError, match=r"not begun.*; run part 0 of 2 .*first"):
        import_matrix(matrix(), store, kind="distance", writing=share(1, 2))
    assert import_matrix(matrix(), store, kind="distance", writing=share(0, 2)) == PartDone((0, 2), 0, TILES, False)
    for k in (2, 0, 1):
        done = import_matrix(matrix(), store, kind="distance", writing=share(k, 2))
    assert done.missing == 0
    found = import_matrix(matrix(), store, kind="distance", writing=Writing(tile=TILE, resume=True))
    np.testing.assert_array_equal(found.rows(["7"])[0], matrix()[7].astype("float32"))


def test_a_part_with_bad_values_takes_nothing_from_the_others(tmp_path):
    a = matrix()
    a[149, 148] = a[148, 149] = np.nan
    np.save(tmp_path / "a.npy", a)
    store = tmp_path / "s.zarr"
    import_matrix(tmp_path / "a.npy", store, kind="distance", writing=share(1, 2))
    before = files(store)
    with pytest.raises(InputError, match="missing"):
        import_matrix(tmp_path / "a.npy", store, kind="distance", writing=share(2, 2))
    assert before.items() <= files(store).items()


def test_sources_that_are_read_as_a_whole_are_refused(tmp_path):
    a, store = matrix(), tmp_path / "s.zarr"
    np.savetxt(tmp_path / "a.csv", a, delimiter=",")
    np.savez_compressed(tmp_path / "a.npz", a)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("matrix", data=a, chunks=(10, 150))
        file.create_dataset("fits", data=a, chunks=(8, 8))
        file.create_dataset("misfits", data=a, chunks=(25, 25))
    for name, dataset, message in (
        ("a.csv", None, r"a\.csv is text \(lsmat\): it must be read as a whole.*part="),
        ("a.npz", None, r"a\.npz is compressed: it must be read as a whole"),
        ("a.h5", "matrix", r"chunks that are not square, which do not fit tiles of 16"),
        ("a.h5", "misfits", r"chunks of 25, which do not fit tiles of 16.*tile="),
    ):
        with pytest.raises(InputError, match=message):
            import_matrix(
                tmp_path / name, store, kind="distance", reading=Reading(dataset=dataset), writing=share(1, 2)
            )
        assert not store.exists()
    fits = Reading(dataset="fits")
    assert import_matrix(tmp_path / "a.h5", store, kind="distance", reading=fits, writing=share(1, 2)).written == 27


def test_what_is_no_part(tmp_path):
    for text in ("", "3", "3/", "/3", "-1/3", "1/3/5", "a/b", "1 /3", "³/4"):
        with pytest.raises(InputError, match="is not K/N"):
            parse_part(text)
    for text in ("4/3", "1/0", "0/0"):
        with pytest.raises(InputError, match="there is no part"):
            parse_part(text)
    assert parse_part("0/3") == (0, 3)
    a = matrix()
    with pytest.raises(InputError, match="remove the old one"):
        import_matrix(a, tmp_path / "s.zarr", kind="distance", writing=share(1, 2, force=True))
    with pytest.raises(InputError, match="there is no part"):
        Writing(part=(4, 3))
    assert list(tmp_path.iterdir()) == []
    done = subprocess.run(
        [sys.executable, "-m", "dasrel", "import", "a.npy", "s.zarr", "--kind", "distance", "--part", "5/4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no part 5/4" in done.stderr


def test_parts_must_agree(tmp_path):
    store = tmp_path / "s.zarr"
    pairwise(features(), store, metric="euclidean", writing=share(1, 2))
    with pytest.raises(StoreError, match="begun with metric euclidean, now it is cityblock"):
        pairwise(features(), store, metric="cityblock", writing=share(2, 2))
    with pytest.raises(StoreError, match="begun with tile 16, now it is 32"):
        pairwise(features(), store, metric="euclidean", writing=Writing(tile=32, part=(2, 2)))
    with pytest.raises(StoreError, match="other ids"):
        pairwise(features(), store, metric="euclidean", writing=share(2, 2), ids=[f"a{k}" for k in range(N)])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(StoreError, match="not a dasrel store"):
        pairwise(features(), tmp_path / "other", metric="euclidean", writing=share(1, 2))


def test_what_a_part_writes_aside_is_left_alone_while_it_may_live(tmp_path):
    """Resuming sweeps away what a killed process left; a file that was touched just now may be a living part's."""
    store = tmp_path / "s.zarr"
    import_matrix(matrix(), store, kind="distance", writing=share(1, 2))
    old, new = store / "values" / "c" / "0" / "0.old.partial", store / "values" / "c" / "0" / "0.new.partial"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    manifest = read_manifest(store)[0]
    writer = create_store(
        store, n_objects=N, kind="distance", policy=Policy(), writing=Writing(tile=TILE, resume=True),
        provenance={key: value for key, value in manifest["provenance"].items() if key != "dasrel"},
    )  # fmt: skip
    assert isinstance(writer, Writer)
    assert (old.exists(), new.exists()) == (False, True)
    import_matrix(matrix(), store, kind="distance", writing=Writing(tile=TILE, resume=True))
    assert list(store.rglob("*.partial")) == []
