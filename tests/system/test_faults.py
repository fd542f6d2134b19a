"""Commands that are killed, disks that are full or read-only, two writers of one place: the same bits, or one line."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from dasrel import Writing, watch
from dasrel.commands import cluster as output
from dasrel.errors import InputError, StoreError
from dasrel.io.readers import text_square as text_matrix
from dasrel.store import writer
from dasrel.store.tile_files import TileFiles
from dasrel.util import files as util_files
from tests.helpers.faults import small_disk
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.processes import CLUSTER, killed, line_of, ran
from tests.helpers.runs import grid
from tests.helpers.stores import files, result_files

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")
SHORT = (*CLUSTER, "--max-iter", 6)


@pytest.fixture
def store(source: Path) -> Path:
    return source / "d.zarr"


@pytest.mark.parametrize(
    "moments",
    [
        [("scan", 1, 1), ("scan", 4, 0)],
        [
            ("numpy.save", 0, 1),
            ("dasrel.util.files.move_into_place", 0, 1),
        ],  # while the results are written, and before a rename
        [("dasrel.util.files.move_into_place", 1, 1)],  # they are in place, and the checkpoint is not yet removed
    ],
)
def test_a_clustering_that_is_killed(tmp_path: Path, store: Path, moments: list[tuple[str, int, int]]) -> None:
    assert ran("cluster", store, tmp_path / "whole", *SHORT) == 0
    out = tmp_path / "out"
    command = ["cluster", store, out, *SHORT, "--checkpoint", tmp_path / "kept", "--resume"]
    for moment in moments:
        killed(*moment, *command)
    before = files(out) if out.exists() else None  # it is there, and whole
    assert ran(*command) == 0
    assert not (tmp_path / "kept").exists()
    assert before is None or files(out) == before
    assert result_files(out) == result_files(tmp_path / "whole")


def test_spectrum_and_euclideanize_that_are_killed(
    tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = ("--checkpoint", tmp_path / "kept", "--resume")
    spectrum = ("spectrum", store, "--tol", 1e-9, "--json", "--quiet")
    changed = ("euclideanize", store, "--method", "ultrametric", "--json", "--quiet", "--out")
    assert ran(*spectrum) == 0
    whole = json.loads(capfd.readouterr().out)
    killed("scan", 2, 0, *spectrum, *kept)
    assert ran(*spectrum, *kept) == 0
    assert {**json.loads(capfd.readouterr().out), "seconds": 0} == {**whole, "seconds": 0}
    assert ran(*changed, tmp_path / "a.npz") == 0
    killed("scan", 3, 0, *changed, tmp_path / "b.npz", *kept)  # in the tree, or in the search behind it
    killed("os.replace", 0, 3, *changed, tmp_path / "b.npz", *kept)
    assert not (tmp_path / "b.npz").exists()
    assert ran(*changed, tmp_path / "b.npz", *kept) == 0
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    left = {one.suffix for one in tmp_path.iterdir() if one.name not in ("a.npz", "b.npz")}
    assert left <= {".partial"}  # what was being written when it was killed is not taken for the file


def test_pairwise_and_append_that_are_killed(tmp_path: Path, source: Path) -> None:
    old, new = tmp_path / "old.npy", tmp_path / "new.npy"
    np.save(old, grouped_points(180)[:100])
    np.save(new, grouped_points(180)[100:])
    whole, store = tmp_path / "whole", tmp_path / "s"
    made = (old, "--metric", "cityblock", "--tile", 30, "--quiet")
    assert ran("pairwise", made[0], whole, *made[1:]) == 0
    killed("pairwise", 0, 4, "pairwise", made[0], store, *made[1:])
    killed(
        "dasrel.store.writer.open_matrix", 0, 1, "pairwise", made[0], store, *made[1:], "--resume"
    )  # complete by then
    assert files(store) == files(whole)
    added = (new, "--features", old, "--quiet")
    assert ran("append", whole, *added) == 0
    killed("append", 0, 3, "append", store, *added)
    assert dasrel.open_matrix(store).n_objects == 100
    assert ran("append", store, *added) == 0
    found, expected = dasrel.open_matrix(store), dasrel.open_matrix(whole)
    assert (found.rows(found.ids) == expected.rows(expected.ids)).all()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new.npy", "old.npy", "s", "whole"]


# ---------------------------------------------------------------------------------------------------------------- disks


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
        assert counted.scans <= 2  # the last iteration, and the validity indices
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
        # Checkpoints that do not fit are reported, and do not end the work.
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


# ---------------------------------------------------------------------------------------------------------- two at once


def at_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, other: Callable[[], Any]) -> None:
    """Let `other` happen when a function is called for the first time, before it does its work."""
    original = getattr(owner, name)

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        other()
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, late)


def test_two_imports_into_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one comes while the source is spooled, while tiles are written, and while a store is replaced."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    np.savetxt(first, distances(grouped_points(60)), delimiter=",")
    np.savetxt(second, 2 * distances(grouped_points(60)), delimiter=",")
    store, refused = tmp_path / "s", []

    def other(**how: Any) -> None:
        with pytest.raises(StoreError, match=rf"{store} is being written by process {os.getpid()} on .*; wait"):
            dasrel.import_matrix(second, store, kind="distance", writing=Writing(tile=20, **how))
        refused.append(how)

    for owner, name in ((text_matrix, "open_text"), (writer, "create_group"), (TileFiles, "write")):
        for how in ({}, {"force": True}, {"resume": True}):
            at_once(monkeypatch, owner, name, lambda how=how: other(**how))
            dasrel.import_matrix(first, store, kind="distance", writing=Writing(tile=20, force=True))
            found = dasrel.open_matrix(store)
            np.testing.assert_array_equal(found.rows(found.ids), distances(grouped_points(60)).astype("float32"))
    assert len(refused) == 9
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first.csv", "s", "second.csv"]
    # A refused process may try again afterwards.
    dasrel.import_matrix(second, store, kind="distance", writing=Writing(tile=20, force=True))


def test_many_processes_write_one_store(tmp_path: Path) -> None:
    """Real processes that begin together: one makes its store, the others say why not in one line."""
    sources = [tmp_path / f"x{k}.npy" for k in range(4)]
    for k, one in enumerate(sources):
        np.save(one, (k + 1) * grouped_points(60))
    line = [sys.executable, "-m", "dasrel", "pairwise"]
    processes = [
        subprocess.Popen([*line, str(one), str(tmp_path / "s"), "--metric", "euclidean", "--tile", "4", "--quiet"],
                         stderr=subprocess.PIPE, text=True)
        for one in sources
    ]  # fmt: skip
    report = [process.communicate(timeout=240)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 1, 1, 1], report
    for code, printed in zip(codes, report, strict=True):
        assert re.fullmatch(r"dasrel: .* (is being written by|exists \(state complete\)).*\n" if code else "", printed)
    scale = codes.index(0) + 1
    found = dasrel.open_matrix(tmp_path / "s")
    np.testing.assert_allclose(found.rows(found.ids), scale * distances(grouped_points(60)), rtol=1e-6)


def test_two_clusterings_into_one_folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    three, two = (dasrel.cluster(store, grid("hard", k, n_init=1)) for k in (3, 2))
    at_once(monkeypatch, util_files, "move_into_place", lambda: output.save_clustering(two, out))
    with pytest.raises(InputError, match=r"out exists; choose another place"):
        output.save_clustering(three, out)
    assert np.load(out / "memberships.npy").shape == (180, 2)
    at_once(monkeypatch, util_files, "move_into_place", lambda: output.save_clustering(two, out, force=True))
    output.save_clustering(three, out, force=True)
    assert np.load(out / "memberships.npy").shape == (180, 3)
    assert json.loads((out / "result.json").read_text())["settings"][0]["n_clusters"] == 3
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
