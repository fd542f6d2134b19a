"""Atomic files and folders, the lock, disk errors, archives and checksums."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.errors import InputError, StoreError
from dasrel.store.array_matrix import as_matrix
from dasrel.store.matrix import open_matrix
from dasrel.store.options import Writing
from dasrel.util import files
from dasrel.util.archives import ArchiveFormat, json_array, load_archive, load_array, save_archive
from dasrel.util.files import (
    LockedError,
    crc32c,
    disk_error_text,
    disk_errors,
    exclusive_lock,
    file_crc32c,
    full_disk,
    lock_owner,
    remove_temporary_files,
    replacing,
    replacing_folder,
)
from dasrel.util.limits import machine_memory, memory_limit

# ----------------------------------------------------------------------------------------------------------- checksums


def test_crc32c_of_the_examples_of_rfc_3720(tmp_path: Path) -> None:
    """Section B.4: 32 bytes of zeros, of ones, ascending and descending."""
    ascending = np.arange(32, dtype=np.uint8)
    for data, expected in (
        (np.zeros(32, np.uint8), 0x8A9136AA),
        (np.full(32, 255, np.uint8), 0x62A8AB43),
        (ascending, 0x46DD794E),
        (np.ascontiguousarray(ascending[::-1]), 0x113FDB5C),
    ):
        assert crc32c(data) == crc32c(data.tobytes()) == crc32c(data.view("<f8").reshape(2, 2)) == expected
        assert data.flags.writeable
        (tmp_path / "f").write_bytes(data.tobytes())
        assert file_crc32c(tmp_path / "f", chunk=5) == expected


# -------------------------------------------------------------------------------------------------- atomic replacement


def _fail_half_way(temporary: Path) -> None:
    assert temporary.name.startswith(".a.txt.")
    assert temporary.suffix == ".partial"
    temporary.write_text("ne")
    raise OSError("no more")


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_or_stays(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="no more"), replacing(path, sync=sync) as temporary:
        _fail_half_way(temporary)
    assert path.read_text() == "old"
    with replacing(path, sync=sync) as one, replacing(path, sync=sync) as other:
        one.write_text("new")
        other.write_text("other")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_never_replaces_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "folder") as temporary:
        temporary.write_text("new")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    with umask(0o027):
        with replacing(tmp_path / "f") as temporary:
            temporary.write_text("x")
        with replacing_folder(tmp_path / "d"):
            pass
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750


def test_a_folder_is_replaced_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()  # an empty folder is not a result

    def refuse() -> None:
        raise InputError("it exists")

    with replacing_folder(path, check=refuse) as temporary:
        (temporary / "a").write_text("1")
    with pytest.raises(InputError, match="it exists"), replacing_folder(path, check=refuse) as temporary:
        (temporary / "a").write_text("2")
    assert (path / "a").read_text() == "1"
    # What a process leaves that was killed between the two renames, and what only looks like it.
    (tmp_path / f".out.{'0' * 16}.old").mkdir()
    (tmp_path / ".out.mine.old").mkdir()
    with replacing_folder(path) as temporary:
        (temporary / "b").write_text("3")
    assert [one.name for one in path.iterdir()] == ["b"]
    assert sorted(one.name for one in tmp_path.iterdir()) == [".out.mine.old", "out"]


def test_files_and_folders_take_each_others_place(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("a file")
    with replacing_folder(path) as temporary:
        (temporary / "a").touch()
    assert path.is_dir()
    with replacing_folder(path, make=False) as temporary:
        temporary.write_text("a file again")
    assert path.read_text() == "a file again"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    names = [f"in/3.{'a' * 32}.partial", "square.partial", f".a.npz.{'0' * 16}.partial", ".a.npz.1234.partial"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "kept").touch()
    remove_temporary_files(tmp_path, age=600)
    assert all((tmp_path / name).exists() for name in names)
    os.utime(tmp_path / names[0], (time.time() - 700,) * 2)
    remove_temporary_files(tmp_path, age=600)
    assert [(tmp_path / name).exists() for name in names] == [False, True, True, True]
    remove_temporary_files(tmp_path, ".a.npz*")
    assert [(tmp_path / name).exists() for name in names] == [False, True, False, False]
    remove_temporary_files(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "kept"]


# ---------------------------------------------------------------------------------------------------------------- lock


def lock(path: Path, **more: Any) -> AbstractContextManager[bool]:
    return exclusive_lock(path, lambda owner: f"{owner} works here", **more)


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without flock, as its system call says."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def owned(path: Path, **changed: Any) -> None:
    owner = {"pid": 1, "host": socket.gethostname(), "started": None, "since": "2020-01-01T00:00:00Z"}
    path.write_text(json.dumps({**owner, **changed}))


@pytest.mark.usefixtures("no_flock")
def test_without_flock_the_owner_decides(tmp_path: Path) -> None:
    path = tmp_path / ".s.lock"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        owned(path, pid=other.pid, started=files._started(other.pid))
        with pytest.raises(LockedError, match=rf"process {other.pid} on .* works here .*; wait for"), lock(path):
            pass
        assert path.exists()
        assert other.stdin is not None
        other.stdin.close()
        other.wait()
    with lock(path) as enforced:  # it has ended
        assert not enforced
        with pytest.raises(LockedError, match=f"process {os.getpid()} on"), lock(path):  # this one has not
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flock", [True, False])
def test_owners_on_other_hosts(tmp_path: Path, flock: bool, request: pytest.FixtureRequest) -> None:
    if not flock:
        request.getfixturevalue("no_flock")
    path = tmp_path / ".s.lock"
    owned(path, host="far.away")
    assert (lock_owner(path) or {})["host"] == "far.away"
    with (
        pytest.raises(LockedError, match=r"process 1 on far.away .* is dead, remove .*\.s\.lock and run again"),
        lock(path),
    ):
        pass
    with lock(path, take_over=True) as enforced:
        assert enforced is flock
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "4711\n"], ids=["empty", "a number"])
def test_lock_files_without_an_owner(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.0)
    path = tmp_path / ".s.lock"
    path.write_text(content)
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match=r"^another process works here"), lock(path):
            pass
    with lock(path) as enforced:
        assert enforced
    assert not path.exists()


def test_where_no_lock_can_be_made_the_work_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with lock(tmp_path / "file" / ".s.lock") as enforced:
        assert not enforced
    with lock(tmp_path / "new" / ".s.lock") as enforced:
        assert enforced


# --------------------------------------------------------------------------------------------------------- disk errors


def refusal(number: int, path: Path | None) -> OSError:
    return OSError(number, os.strerror(number), None if path is None else str(path))


def test_disk_errors_in_one_line(tmp_path: Path) -> None:
    store, source = tmp_path / "s.zarr", tmp_path / "source.csv"

    def output(error: Exception, place: Path | None = store) -> str:
        with (
            pytest.raises(StoreError) as found,
            disk_errors(place, full="nothing is lost", retry="free some", denied="go away", name="s"),
        ):
            raise error
        return str(found.value)

    for number in (errno.ENOSPC, errno.EDQUOT):
        assert output(refusal(number, source)) == "the disk is full: nothing is lost; free some"
    assert output(OSError("1000 requested and 12 written")) == "the disk is full: nothing is lost; free some"
    for number, text in ((errno.EACCES, "Permission denied"), (errno.EROFS, "Read-only file system")):
        for path in (store, store / "values" / "c", tmp_path / ".s.zarr.lock", tmp_path):
            assert output(refusal(number, path)) == f"s cannot be written ({text}); go away"
        assert output(refusal(number, None), None) == f"s cannot be written ({text}); go away"
    deep = tmp_path / "none" / "s.zarr"
    assert output(refusal(errno.ENOENT, deep), deep) == "s cannot be written (No such file or directory); go away"
    # What is not about the store is not translated.
    for other in (
        refusal(errno.EACCES, source), refusal(errno.ENOENT, store / "values"), refusal(errno.EACCES, None),
        refusal(errno.EIO, store), ValueError("no"),
    ):  # fmt: skip
        with pytest.raises(type(other)) as found, disk_errors(store, full="", denied=""):
            raise other
        assert found.value is other


def test_a_full_disk_is_seen_through_other_errors() -> None:
    error = StoreError("it did not work")
    assert not full_disk(error)
    error.__cause__ = refusal(errno.ENOSPC, None)
    assert full_disk(error)


def test_temporary_names_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error, replacing(tmp_path / "none" / "a.npz") as temporary:
        temporary.write_text("x")
    assert disk_error_text(error.value) == f"{tmp_path}/none/a.npz: No such file or directory"
    assert disk_error_text(ValueError("x")) is None


# ------------------------------------------------------------------------------------------------------------ archives

FORM = ArchiveFormat("thing", "thing_version", 2, ("a",), ("b",), source="; `make` makes one", remedy="make it again")


def test_archives(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    save_archive(path, FORM, {"a": np.arange(3), "b": np.eye(2)}, {"name": "é\n"})
    arrays, about = load_archive(path, FORM)
    assert (arrays["a"].tolist(), arrays["b"].tolist()) == ([0, 1, 2], [[1, 0], [0, 1]])
    assert (about["thing_version"], about["name"]) == (2, "é\n")
    save_archive(path, FORM, {"a": np.arange(3)}, {})
    assert list(load_archive(path, FORM)[0]) == ["a"]
    assert list(tmp_path.iterdir()) == [path]


def test_archives_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"

    def output() -> str:
        with pytest.raises(StoreError) as error:
            load_archive(path, FORM)
        return str(error.value)

    assert output() == f"no thing at {path}; `make` makes one"
    save_archive(path, ArchiveFormat("thing", "thing_version", 3, ()), {}, {})  # a later one, with other arrays
    assert output() == f"{path} has thing version 3, this dasrel reads version 2: make it again"
    save_archive(path, FORM, {"b": np.eye(2)}, {})
    assert f"{path} is not a dasrel thing: " in output()
    whole = path.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2]):
        path.write_bytes(content)
        assert f"{path} is not a dasrel thing: " in output()
    about = json_array({"thing_version": 2})
    for members in ({"a": np.eye(2)}, {"about": json_array([2])}, {"about": about, "a": np.array([None])}):
        np.savez(path, **members)
        assert f"{path} is not a dasrel thing: " in output()
    with pytest.raises(ValueError, match="allow_pickle"):
        save_archive(path, FORM, {"a": np.array([None])}, {})


# ------------------------------------------------------------------------------------------------------- memory limits


def test_memory_limits() -> None:
    assert memory_limit(None) == machine_memory() // 2
    assert [memory_limit(text) for text in ("1GiB", "1.5 kB", "7", 7, 0)] == [1 << 30, 1500, 7, 7, 0]
    for nonsense in ("much", "", "GB", "2 elephants", "-1GB", -1, True, float("nan"), [1]):
        with pytest.raises(InputError, match=r"memory is .*; give a number of bytes, or such as 2GB or 512MiB"):
            memory_limit(nonsense)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ identity of matrices


def test_what_a_matrix_is_known_by(tmp_path: Path) -> None:
    """A fingerprint is that of the values, an identity that of the tiles too, a content hash that of a whole store."""
    from dasrel.io.importing import import_matrix

    points = np.random.default_rng(3).integers(0, 50, size=(40, 2)).astype(float)
    square = np.abs(points[:, None] - points[None]).sum(axis=2)
    stores = [tmp_path / name for name in ("a", "b", "c")]
    for store, tile, scale in zip(stores, (16, 8, 16), (1, 1, 2), strict=True):
        import_matrix(scale * square, store, kind="distance", writing=Writing("float64", tile=tile))
    import_matrix(square, tmp_path / "again", kind="distance", writing=Writing("float64", tile=16))
    a, b, c = map(open_matrix, stores)
    again, array = open_matrix(tmp_path / "again"), as_matrix(square, kind="distance")
    assert a.fingerprint() == b.fingerprint() == again.fingerprint() == array.fingerprint() != c.fingerprint()
    assert a.identity() == again.identity()
    assert len({json.dumps(one.identity()) for one in (a, b, c)}) == 3
    assert a.content_hash(verify=True) == again.content_hash(verify=False) != c.content_hash(verify=True)
    tile = tmp_path / "a" / "values" / "c" / "0" / "1"
    tile.write_bytes(bytes([tile.read_bytes()[0] ^ 1]) + tile.read_bytes()[1:])
    assert a.content_hash(verify=False) == again.content_hash(verify=True)
    with pytest.raises(StoreError, match=r"tile .*0/1 is corrupt"):
        a.content_hash(verify=True)
    tile.unlink()
    with pytest.raises(StoreError, match=r"tile .*0/1 cannot be read"):
        a.content_hash(verify=False)


def test_archives_that_wait_or_claim_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe would wait for a writer, and the header of a small array could ask for any amount of memory."""
    path = tmp_path / "a.npz"
    os.mkfifo(path)
    with pytest.raises(StoreError, match="is not a regular file"):
        load_archive(path, FORM)
    with pytest.raises(StoreError, match="is not a regular file"):
        load_array(path)
    path.unlink()
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}".ljust(117) + b"\n"
    claims = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
    save_archive(path, FORM, {"a": np.arange(3.0)}, {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("b.npy", claims)
    with pytest.raises(StoreError, match="does not have 192 bytes"):
        load_archive(path, FORM)
    (tmp_path / "b.npy").write_bytes(claims)
    with pytest.raises(StoreError, match="does not have 192 bytes"):
        load_array(tmp_path / "b.npy")


@pytest.mark.parametrize(("at", "value"), [(6, 0x20), (6, 0x01), (8, 99), (4, 255)])
def test_archives_that_zipfile_does_not_read_are_refused(tmp_path: Path, at: int, value: int) -> None:
    """Patched, encrypted, compressed in an unknown way, or of a version to come."""
    path = tmp_path / "a.npz"
    save_archive(path, FORM, {"a": np.arange(3.0)}, {})
    data = bytearray(path.read_bytes())
    for magic, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        data[data.index(magic) + at + shift] = value
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is not a dasrel"):
        load_archive(path, FORM)


def test_arrays_keep_their_order_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(path, values)
    assert load_array(path).flags.f_contiguous
    np.testing.assert_array_equal(load_array(path), values)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="no whole"):
        load_array(path)
