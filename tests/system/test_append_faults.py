"""Appends that are killed, that meet each other, full disks or other machines: never half a store."""

import gc
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import dasrel
from dasrel import InputError, Policy, StoreError, Writing
from dasrel.io.append import append
from dasrel.kernels.checks import TileStatistics
from dasrel.store import manifest
from dasrel.store.audit import audit_store
from dasrel.store.growth import append_transaction
from dasrel.store.matrix import open_matrix
from dasrel.store.tile_files import TileFiles
from dasrel.util import limits
from tests.helpers.faults import small_disk
from tests.helpers.matrices import distances_with_zeros
from tests.helpers.processes import script_line
from tests.helpers.stores import assert_alike, facts, marks, stored

PLACES = {
    "replace": ("os.replace", False),
    "replaced": ("os.replace", True),
    "record": ("dasrel.store.tile_files.TileFiles.write", True),
    "creating": ("zarr.Group.create_array", False),
    "created": ("zarr.Group.create_array", True),
    "resizing": ("zarr.Array.resize", False),
    "filling": ("zarr.Array.__setitem__", False),
    "filled": ("zarr.Array.__setitem__", True),
    "committing": ("zarr.core.attributes.Attributes.__setitem__", False),
    "committed": ("zarr.core.attributes.Attributes.__setitem__", True),
    "deleting": ("zarr.Group.__delitem__", False),
    "deleted": ("zarr.Group.__delitem__", True),
}
KILLING = """
    import json
    import dasrel.store.tile_files, zarr
    from dasrel.io.append import append

    rows, cases = sys.argv[1], json.loads(sys.argv[2])
    for place, after, count, store in cases:
        child = os.fork()  # before Zarr has started its thread: the imports are paid for once
        if child == 0:
            die_in(place, count, after)
            append(store, rows)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (store, status)
"""
KILLED = [
    *("creating:1", "created:1", "filling:1", "filled:1", "resizing:2", "replace:1", "record:1", "replaced:9"),
    *("record:9", "replaced:20", "created:2", "filled:2", "committing:1", "committed:1", "deleting:1", "deleted:1"),
]


def test_killed_at_any_moment(tmp_path: Path) -> None:
    square = distances_with_zeros(34, "float32")
    good, plain = tmp_path / "good", tmp_path / "plain"
    stored(plain, square[:20, :20], tile=8)
    shutil.copytree(plain, good)
    np.save(tmp_path / "rows.npy", square[20:])
    append(good, tmp_path / "rows.npy")
    before, after = facts(plain), facts(good)
    for case in KILLED:
        shutil.copytree(plain, tmp_path / case)
    split = [(case, *case.split(":")) for case in KILLED]
    cases = [(*PLACES[where], int(count), str(tmp_path / case)) for case, where, count in split]
    subprocess.run(script_line(KILLING, tmp_path / "rows.npy", json.dumps(cases)), check=True, timeout=120)
    kept = 0
    for case in KILLED:
        store = tmp_path / case
        committed = case in ("committed:1", "deleting:1", "deleted:1")
        assert facts(store) == (after if committed else before), case
        size = 34 if committed else 20
        matrix = open_matrix(store)
        np.testing.assert_array_equal(matrix.rows(matrix.ids), square[:size, :size])
        assert audit_store(store, verify=True)["verified"]["bad"] == []
        if committed:
            with pytest.raises(InputError, match="14 rows and 34 columns"):
                append(store, tmp_path / "rows.npy")
        else:
            done = append(store, tmp_path / "rows.npy")
            assert (
                done.tiles_written + done.tiles_grown + done.tiles_kept == 12
            )  # 15 tiles, of which 3 are old and full
            kept += done.tiles_kept
            assert done.resumed == (case not in ("creating:1", "replace:1"))  # killed before it was written down
        assert_alike(store, good)
        assert not list(store.rglob("*.partial"))
        if committed:  # and it goes on growing
            assert append(store, distances_with_zeros(37, "float32")[34:]).matrix.n_objects == 37
    assert kept >= 40  # what was written before the kill was not written again


def test_what_a_dead_worker_left_is_swept_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies while it writes aside, and another one writes the same tile."""
    store = tmp_path / "d.zarr"
    dasrel.import_matrix(distances_with_zeros(40)[:30, :30], store, kind="distance", writing=Writing(tile=16))
    np.save(tmp_path / "rows.npy", distances_with_zeros(40)[30:])
    plain = TileFiles.write

    def write(files: TileFiles, i: int, j: int, tile: Any, record: TileStatistics) -> None:
        plain(files, i, j, tile, record)
        (store / f"values/c/{i}/{j}.{'0' * 32}.partial").write_bytes(b"half")

    monkeypatch.setattr(TileFiles, "write", write)
    dasrel.append(store, tmp_path / "rows.npy")
    assert open_matrix(store).n_objects == 40
    assert not list(store.rglob("*.partial"))


def test_a_reader_never_sees_half(tmp_path: Path) -> None:
    """Reads all of it again and again, while the store grows five times."""
    import threading

    square = distances_with_zeros(100, "float32")
    stored(store := tmp_path / "s", square[:10, :10], tile=8)
    first = open_matrix(store)
    sizes, faults, over = set(), [], threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                matrix = open_matrix(store)
                n = matrix.n_objects
                sizes.add(n)
                if not np.array_equal(matrix.rows(matrix.ids), square[:n, :n]) or len(matrix.ids) != n:
                    faults.append(n)
                if not np.array_equal(first.rows(first.ids), square[:10, :10]):
                    faults.append("first")
            except Exception as error:
                faults.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(10, 100, 18):
            append(store, square[n : n + 18, : n + 18])
    finally:
        over.set()
        reader.join()
    assert faults == []
    assert sizes <= set(range(10, 101, 18))
    assert open_matrix(store).n_objects == 100


def test_a_reader_that_opens_while_an_append_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has seen that there is progress, and when it looks at it there is none any more."""
    square = distances_with_zeros(40, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    with suppress(ZeroDivisionError), append_transaction(store, [f"new{k}" for k in range(20)], {}):
        raise ZeroDivisionError
    assert (store / "progress").exists()
    check = manifest._check_array

    def slow(group: Any, name: str, *rest: Any) -> Any:
        if name == "progress":
            monkeypatch.undo()
            shutil.rmtree(store / "progress")  # as the append does at its end
        return check(group, name, *rest)

    monkeypatch.setattr(manifest, "_check_array", slow)
    matrix = open_matrix(store)
    assert np.array_equal(matrix.rows(matrix.ids), square[:20, :20])


def test_an_unfinished_append_of_something_else(tmp_path: Path) -> None:
    square = distances_with_zeros(40, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    with (
        pytest.raises(RuntimeError, match="stop"),
        append_transaction(store, [str(k) for k in range(20, 40)], {"source": "other"}),
    ):
        raise RuntimeError("stop")
    assert open_matrix(store).n_objects == 20
    with pytest.raises(StoreError, match=r"was begun and not finished, with objects 40; now it is 30; .*force=True"):
        append(store, square[20:30, :30])
    done = append(store, square[20:30, :30], force=True)
    assert not done.resumed
    np.testing.assert_array_equal(done.matrix.rows(done.matrix.ids), square[:30, :30])
    assert zarr.open_group(store, mode="r")["values"].shape == (30, 30)  # type: ignore[union-attr]
    assert audit_store(store, verify=True)["verified"]["bad"] == []


def test_two_at_once(tmp_path: Path) -> None:
    square = distances_with_zeros(30, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    with append_transaction(store, [str(k) for k in range(20, 30)], {"source": "other"}):
        for more in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(
                StoreError, match=rf"s is being written by process {os.getpid()} on .*; wait for its end"
            ):
                append(store, square[20:], **more)
    append(store, square[20:], force=True)


def test_where_folders_cannot_be_locked(tmp_path: Path) -> None:
    """A store in memory stands for a remote one: the record of who is at work has to do."""
    square = distances_with_zeros(30, "float32")
    store = zarr.storage.MemoryStore()
    dasrel.import_matrix(square[:20, :20], store, kind="distance", writing=Writing(tile=8))

    def begun_by(owner: dict[str, Any]) -> None:
        with (
            pytest.raises(RuntimeError, match="stop"),
            append_transaction(store, list(map(str, range(20, 30))), about, force=True),
        ):
            raise RuntimeError("stop")
        zarr.open_group(store)["progress"].attrs["owner"] = owner

    with pytest.raises(InputError, match="missing"):
        append(store, np.full((10, 30), np.nan))
    source = square[20:]
    about = {"as": "rows", "source": "array of float32", "size": source.nbytes, "checksum": checksum(source)}
    about |= {"policy": Policy().record()}
    begun_by({"host": "elsewhere", "pid": 1, "token": "x"})
    with pytest.raises(StoreError, match="is in progress, by process 1 on elsewhere; wait for it, or say resume=True"):
        append(store, source)
    done = append(store, source, resume=True)
    assert done.resumed
    np.testing.assert_array_equal(done.matrix.rows(done.matrix.ids), square)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    source = distances_with_zeros(33, "float32")[30:]
    about |= {"size": source.nbytes, "checksum": checksum(source)}
    with pytest.raises(RuntimeError, match="stop"), append_transaction(store, list(map(str, range(30, 33))), about):
        raise RuntimeError("stop")
    owner = {"host": os.uname().nodename, "pid": ended.pid, "token": "x"}
    zarr.open_group(store)["progress"].attrs["owner"] = owner  # one who is known to be dead
    assert append(store, source).resumed


def checksum(array: Any) -> str:
    import google_crc32c

    return f"crc32c: {google_crc32c.value(array.tobytes()):08x}"


def test_one_who_was_taken_over_adds_nothing(tmp_path: Path) -> None:
    square = distances_with_zeros(30, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    with append_transaction(store, ["a"], {}) as (under_way, _):
        for tile in under_way.tiles():
            under_way.files.write(*tile, np.zeros(under_way.layout.shape(*tile), "float32"), TileStatistics())
        zarr.open_group(store)["progress"].attrs["owner"] = {"host": "elsewhere", "pid": 1, "token": "x"}
        with pytest.raises(StoreError, match=r"another append to .* has taken over"):
            under_way.commit(None)
    assert open_matrix(store).n_objects == 20


def test_read_only(tmp_path: Path) -> None:
    square = distances_with_zeros(30, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    with pytest.raises(StoreError, match="read-only"):
        append(LocalStore(store, read_only=True), square[20:])
    if os.geteuid() != 0:
        for path in [store, *store.rglob("*")]:
            path.chmod(path.stat().st_mode & 0o555)
        with pytest.raises(StoreError, match=r"cannot be written .* not read-only"):
            append(store, square[20:])
        for path in [store, *store.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o700)
    assert open_matrix(store).n_objects == 20


def test_full_disk(tmp_path: Path) -> None:
    square, store = distances_with_zeros(600, "float32"), tmp_path / "disk" / "s"
    np.save(tmp_path / "rows.npy", square[250:])
    with small_disk(tmp_path / "disk", "size=700k") as disk:
        stored(store, square[:250, :250], tile=100)
        shutil.copytree(store, tmp_path / "good")
        append(tmp_path / "good", tmp_path / "rows.npy")
        before = facts(store)
        with pytest.raises(StoreError, match=r"the disk is full: .* nothing was lost; free some space"):
            append(store, tmp_path / "rows.npy")
        assert facts(store) == before
        assert audit_store(store, verify=True)["verified"]["bad"] == []
        gc.collect()  # the error's frames hold maps of tiles that were replaced
        disk.remount("size=8m,ro")
        with pytest.raises(StoreError, match=r"cannot be written .* not read-only"):
            append(store, tmp_path / "rows.npy")
        disk.remount("rw")
        assert append(store, tmp_path / "rows.npy").tiles_kept > 0
        assert_alike(store, tmp_path / "good")


def test_s3(tmp_path: Path, s3: Any) -> None:
    square = distances_with_zeros(40, "float32")
    url, whole = "s3://matrices/d.zarr", tmp_path / "whole"
    dasrel.import_matrix(square, whole, kind="distance", writing=Writing(tile=16))
    dasrel.import_matrix(square[:30, :30], url, kind="distance", writing=Writing(tile=16))
    reader = open_matrix(url)
    done = append(url, square[30:])
    assert (done.tiles_written, done.tiles_grown) == (3, 2)
    assert done.bytes_written == 5 * (16 * 16 * 4 + 4)
    for i, j in done.matrix.layout.tiles():
        assert s3.cat(f"matrices/d.zarr/values/c/{i}/{j}") == (whole / f"values/c/{i}/{j}").read_bytes()
    assert facts(url) == facts(whole)
    np.testing.assert_array_equal(reader.rows(["3", "29"]), square[[3, 29], :30])


def test_on_a_cluster(tmp_path: Path, workers: Any) -> None:
    from distributed import Client

    square, features = (
        distances_with_zeros(60, "float32"),
        np.random.default_rng(3).integers(0, 2, (60, 40)).astype("float64"),
    )
    np.save(tmp_path / "rows.npy", square[40:])
    np.save(tmp_path / "old.npy", features[:40])
    np.save(tmp_path / "new.npy", features[40:])
    dasrel.import_matrix(square, tmp_path / "whole", kind="distance", writing=Writing(tile=16))
    dasrel.import_matrix(square[:40, :40], tmp_path / "s", kind="distance", writing=Writing(tile=16))
    dasrel.pairwise(features, tmp_path / "all", metric="cityblock", writing=Writing(tile=16))
    dasrel.pairwise(tmp_path / "old.npy", tmp_path / "p", metric="cityblock", writing=Writing(tile=16))
    with Client(workers):
        append(tmp_path / "s", tmp_path / "rows.npy")
        append(tmp_path / "p", tmp_path / "new.npy", features=tmp_path / "old.npy")
    assert_alike(tmp_path / "s", tmp_path / "whole")
    assert_alike(tmp_path / "p", tmp_path / "all")


def test_stopped_and_gone_on_with(tmp_path: Path) -> None:
    """A time limit lets the first tile be written; the rest is for the next call."""
    square = distances_with_zeros(60, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    with limits.limited(0.0), pytest.raises(dasrel.Stopped, match="run the same append again to continue"):
        append(store, square[20:])
    assert open_matrix(store).n_objects == 20
    done = append(store, square[20:])
    assert done.resumed
    assert done.tiles_kept >= 1
    np.testing.assert_array_equal(done.matrix.rows(done.matrix.ids), square)


def test_what_was_made_from_the_smaller_store_is_refused(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((40, 2))
    square = np.abs(points[:, None] - points[None]).max(axis=2)
    store = tmp_path / "s"
    dasrel.import_matrix(square[:30, :30], store, kind="distance")
    made = dasrel.euclideanize(store, method="spread")
    made.save(tmp_path / "e.npz")
    append(store, square[30:])
    for given in (made, tmp_path / "e.npz"):
        with pytest.raises(InputError, match="another matrix: number of objects 30 there and 40 here") as caught:
            dasrel.FuzzyCMeans(2, euclideanize=given).fit(str(store))
        assert "\n" not in str(caught.value)


def test_a_matrix_travels_as_it_was(tmp_path: Path) -> None:
    import pickle

    square = distances_with_zeros(30, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    sent = pickle.dumps(open_matrix(store))
    append(store, square[20:])
    arrived = pickle.loads(sent)
    assert arrived.n_objects == 20
    np.testing.assert_array_equal(arrived.rows(arrived.ids), square[:20, :20])


def test_memory_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    square = distances_with_zeros(30, "float32")
    stored(store := tmp_path / "s", square[:20, :20], tile=8)
    seen = marks(store)
    with pytest.raises(dasrel.MemoryLimitError, match="append needs"):
        append(store, square[20:], memory="1MiB")
    assert marks(store) == seen
    assert append(store, square[20:]).matrix.n_objects == 30
