"""Workers, schedulers, processes, disks and servers that fail, for real: the same bits, or one line and a way on.

What single modules do about faults of their own is tested with them: kills of an import, an append, a workflow and of a
clustering with checkpoints in test_import_faults, test_append, test_workflow and test_checkpoint.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import dasrel
from dasrel import Writing, cli, outputs, tasks, text, watch, writer
from dasrel.clusters import start
from dasrel.direct import DirectMatrix
from dasrel.errors import ClusterError, InputError, StoreError
from dasrel.runs import grid
from dasrel.runtime import PATIENT, Runtime, connect
from dasrel.store import TileFiles
from tests.engine.test_checkpoint import bits, folder
from tests.engine.test_runtime import cluster as runtime_cluster
from tests.helpers.faults import (
    Blocks,
    DeadlyTiles,
    Front,
    Tokens,
    kill_a_worker,
    killed,
    small_disk,
    struck,
    worker_processes,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")

N, TILE = 180, 30  # 21 tiles
RUNS = grid("fcm1", 3, n_init=2, max_iter=8, tol=0.0)
DOUBLE = Writing("float64", tile=TILE)


def points(n: int = N) -> Any:
    return np.random.default_rng(0).normal(size=(n, 3)) + 4.0 * np.eye(3)[np.arange(n) % 3]


def distances(n: int = N) -> Any:
    return cdist(points(n), points(n))


def files(path: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes."""
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


def ran(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def line_of(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that a command has said on stderr, but for warnings and progress."""
    told = capfd.readouterr().err.splitlines()
    lines = [line for line in told if line.startswith("dasrel: ") and not line.startswith("dasrel: warning")]
    assert len(lines) == 1, told
    return lines[0]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Distances and features as files, and the store and the clustering that undisturbed local threads make of them."""
    place = tmp_path_factory.mktemp("source")
    np.save(place / "d.npy", distances())
    np.save(place / "x.npy", points())
    dasrel.import_matrix(place / "d.npy", place / "d.zarr", kind="distance", writing=DOUBLE)
    return place


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    return source / "d.zarr"


@pytest.fixture(scope="module")
def whole(store: Path) -> Any:
    """The clustering on local threads."""
    return bits(dasrel.cluster(store, RUNS))


# -------------------------------------------------------------------------------------------------------------- workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """Three worker processes; a nanny starts a new one for each that dies."""
    from distributed import Client

    started = start("local", {"workers": 3, "memory": "1GB"}, security=None, level=logging.CRITICAL)
    client = Client(started.target, set_as_default=False, timeout=120)
    with dask.config.set(PATIENT):  # as `connect` does
        yield client
    client.close()
    started.close()


def settled(client: Any) -> None:
    """Wait until all three are there, and the scheduler knows of them and of nobody else."""
    until = time.monotonic() + 120
    while len(worker_processes(client)) < 3 or len(client.cluster.scheduler.workers) != 3:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(client.run(os.getpid)) == 3


@pytest.fixture
def client(workers: Any) -> Iterator[Any]:
    """All three of them, for what runs in this test; fixtures of the module still run on local threads."""
    settled(workers)
    with tasks.bound_to(workers):
        yield workers


def test_workers_that_die_while_they_pin_tiles(client: Any, tmp_path: Path, store: Path, whole: Any) -> None:
    matrix = dasrel.open_matrix(store)
    tokens = Tokens.made(tmp_path / "tokens", "0-0", "1-4", "5-5")
    matrix.files = DeadlyTiles(matrix.files.store, matrix.layout, True, tokens=tokens, home=os.getpid())
    assert bits(dasrel.cluster(matrix, RUNS)) == whole
    assert tokens.left() == []


def test_workers_that_die_in_scans_again_and_again(client: Any, store: Path, whole: Any) -> None:
    """In the first scan, in the midst of others, and at the end of one."""
    with struck("scan", [(1, 2), (3, 0), (4, 9), (6, 21)], lambda: kill_a_worker(client)):
        found = dasrel.cluster(store, RUNS)
    assert bits(found) == whole


def test_a_worker_that_dies_between_scans(client: Any, store: Path) -> None:
    matrix = dasrel.open_matrix(store)
    relation = dasrel.relation(matrix)
    V = np.random.default_rng(1).random((N, 3))
    first = relation.matmat(V)
    np.testing.assert_allclose(first, distances() ** 2 @ V, rtol=1e-10)
    for count in (1, 3):  # one, and all at once
        settled(client)
        for one in worker_processes(client)[:count]:
            one.kill()
        assert (relation.matmat(V) == first).all()


def test_tiles_that_were_sent_are_sent_again(client: Any, whole: Any) -> None:
    """An array of this process: what a worker had of it is lost with the worker."""
    matrix = DirectMatrix(distances(), "distance", tile=TILE)
    with struck("scan", [(2, 0), (4, 9)], lambda: kill_a_worker(client)):
        found = dasrel.cluster(matrix, RUNS)
    assert bits(found)["runs"] == whole["runs"]
    assert found.scans == whole["scans"]


@pytest.mark.parametrize("name", ["import", "pairwise", "append"])
def test_workers_that_die_while_they_write(client: Any, tmp_path: Path, source: Path, name: str) -> None:
    def write(place: Path) -> None:
        if name == "import":
            dasrel.import_matrix(source / "d.npy", place, kind="distance", writing=DOUBLE)
        elif name == "pairwise":
            dasrel.pairwise(points(), place, metric="cityblock", writing=DOUBLE)
        else:
            dasrel.append(place, rows)

    rows = tmp_path / "rows.npy"
    np.save(rows, distances()[100:])
    if name == "append":
        for place in ("here", "there"):
            square = distances()[:100, :100]
            dasrel.import_matrix(square, tmp_path / place, kind="distance", writing=DOUBLE)
    with struck(name, [(0, 2), (0, 8)], lambda: kill_a_worker(client)):
        write(tmp_path / "there")
    with tasks.bound_to(None):
        write(tmp_path / "here")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_function_that_kills_its_workers(client: Any, tmp_path: Path) -> None:
    """By a signal, and by taking more memory than there is; then it is well behaved."""
    tokens = Tokens.made(tmp_path / "tokens", "0-0", "30-90", "150-150", "memory-60-60")
    blocks = Blocks(tokens, os.getpid())
    dasrel.from_blocks(blocks, N, tmp_path / "there", kind="distance", writing=DOUBLE)
    assert tokens.left() == []
    with tasks.bound_to(None):
        dasrel.from_blocks(blocks, N, tmp_path / "here", kind="distance", writing=DOUBLE)
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_function_that_always_takes_too_much(tmp_path: Path) -> None:
    tokens = Tokens.made(tmp_path / "tokens", "memory-always")
    blocks = Blocks(tokens, os.getpid())
    told = r"2 workers died over the same piece of work, .*lack memory: give them more.* --resume"
    once_more = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with once_more, pytest.raises(ClusterError, match=told), connect(Runtime(cluster="local:workers=3,memory=400MB")):
        dasrel.from_blocks(blocks, N, tmp_path / "s", kind="distance", writing=DOUBLE)
    with pytest.raises(StoreError, match="unfinished"):
        dasrel.open_matrix(tmp_path / "s")
    tokens.take("memory-always")
    resume = Writing("float64", tile=TILE, resume=True)
    found = dasrel.from_blocks(blocks, N, tmp_path / "s", kind="distance", writing=resume)
    line = np.arange(N) ** 1.5
    np.testing.assert_array_equal(found.rows(found.ids), np.abs(np.subtract.outer(line, line)))


def test_a_worker_that_stands_still_for_a_while(client: Any, store: Path, whole: Any) -> None:
    stopped = []

    def strike() -> None:
        slow = worker_processes(client)[0]
        slow.suspend()
        stopped.append(slow)
        threading.Timer(2.0, slow.resume).start()

    with struck("scan", [(2, 0), (5, 9)], strike):
        found = dasrel.cluster(store, RUNS)
    assert bits(found) == whole
    assert len(stopped) == 2
    time.sleep(2.0)  # until nobody stands still any more


def test_a_scheduler_that_is_lost_leaves_a_checkpoint(tmp_path: Path, store: Path) -> None:
    """In a process of its own; the work goes on from there on local threads, and on a new cluster."""
    asked = ["--rule", "fcm1", "--clusters", "3", "--n-init", "2", "--max-iter", "40", "--tol", "0", "--quiet"]
    assert ran("cluster", store, tmp_path / "whole", *asked) == 0
    kept, out = tmp_path / "kept", tmp_path / "out"
    command = ["cluster", store, out, *asked, "--checkpoint", kept]
    with runtime_cluster(tmp_path, workers=3) as (file, scheduler):
        place = ["--scheduler-file", file, "--workers", "3", "--wait", "240"]
        line = [sys.executable, "-m", "dasrel", *map(str, [*command, *place])]
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen(line, stdout=said, stderr=said)
        until = time.monotonic() + 240
        while not list(kept.glob("cluster-*[3-9].npz")):
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < until
            time.sleep(0.005)
        scheduler.kill()
        assert process.wait(240) == 1
    lines = [one for one in (tmp_path / "said").read_text().splitlines() if "warning" not in one]
    assert len(lines) == 1, lines
    assert re.fullmatch(r"dasrel: the connection to the scheduler tcp://\S+ was lost; .*--resume.*", lines[0])
    assert not out.exists()
    with struck("scan", [(3, 0)], lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert ran(*command, "--resume") == 75
    assert ran(*command, "--resume", "--cluster", "local:workers=3", "--wait", "240") == 0
    assert folder(out) == folder(tmp_path / "whole")


# ----------------------------------------------------------------------------------------------- kill -9 of the command


CLUSTER = ("--rule", "fcm1", "--clusters", 3, "--n-init", 2, "--tol", 0, "--max-iter", 6, "--quiet")


@pytest.mark.parametrize(
    "moments",
    [
        [("scan", 1, 1), ("scan", 4, 0)],
        [("numpy.save", 0, 1), ("dasrel.outputs._replace", 0, 1)],  # while the results are written, and before a rename
        [("dasrel.outputs._replace", 1, 1)],  # they are in place, and the checkpoint is not yet removed
    ],
)
def test_a_clustering_that_is_killed(tmp_path: Path, store: Path, moments: list[tuple[str, int, int]]) -> None:
    assert ran("cluster", store, tmp_path / "whole", *CLUSTER) == 0
    out = tmp_path / "out"
    command = ["cluster", store, out, *CLUSTER, "--checkpoint", tmp_path / "kept", "--resume"]
    for moment in moments:
        killed(*moment, *command)
    if out.exists():
        before = files(out)
        assert ran(*command) == 1  # it is there, and whole
        assert files(out) == before
    else:
        assert ran(*command) == 0
        assert not (tmp_path / "kept").exists()
    assert folder(out) == folder(tmp_path / "whole")


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
    np.save(old, points()[:100])
    np.save(new, points()[100:])
    whole, store = tmp_path / "whole", tmp_path / "s"
    made = (old, "--metric", "cityblock", "--tile", TILE, "--quiet")
    assert ran("pairwise", made[0], whole, *made[1:]) == 0
    killed("pairwise", 0, 4, "pairwise", made[0], store, *made[1:])
    killed("dasrel.writer.open_matrix", 0, 1, "pairwise", made[0], store, *made[1:], "--resume")  # complete by then
    assert files(store) == files(whole)
    added = (new, "--features", old, "--quiet")
    assert ran("append", whole, *added) == 0
    killed("append", 0, 3, "append", store, *added)
    assert dasrel.open_matrix(store).n_objects == 100
    assert ran("append", store, *added) == 0
    found, expected = dasrel.open_matrix(store), dasrel.open_matrix(whole)
    assert (found.rows(found.ids) == expected.rows(expected.ids)).all()
    assert sorted(one.name for one in tmp_path.iterdir()) == [".s.lock", "new.npy", "old.npy", "s", "whole"]


# ---------------------------------------------------------------------------------------------------------------- disks


def test_a_disk_that_fills(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each command says so in one line and exits 1; what was there stays, and goes on when there is room again."""
    with small_disk(tmp_path / "disk", "size=450k") as disk:
        goods, store = tmp_path / "good", disk.path / "s"
        commands = {
            "import": (source / "d.npy", "--kind", "distance", "--store-dtype", "float64", "--tile", TILE, "--quiet"),
            "pairwise": (source / "x.npy", "--metric", "cityblock", "--store-dtype", "float64", "--tile", TILE, "-q"),
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
    assert ran("cluster", store, tmp_path / "whole", *CLUSTER) == 0
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        out, kept = disk.path / "out", tmp_path / "kept"
        for spare in (0, 1, 3):  # nothing goes, or a file or two
            hog = disk.fill()
            os.truncate(hog, hog.stat().st_size - spare * 4096)
            command = ("cluster", store, out, *CLUSTER, "--checkpoint", kept, "--resume")
            assert ran(*command) == 1
            assert re.search(r"No space left on device|the disk is full", line_of(capfd))
            assert sorted(one.name for one in disk.path.iterdir()) == ["hog"]
            assert list(kept.glob("cluster-*.npz"))  # the work is not lost
            hog.unlink()
        with watch() as counted:
            assert ran(*command) == 0
        assert counted.scans <= 1  # the last one is for the medoids
        assert folder(out) == folder(tmp_path / "whole")
        before = files(out)
        hog = disk.fill()
        assert ran("cluster", store, out, *CLUSTER, "--force") == 1
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
        assert ran("cluster", store, tmp_path / "second", *CLUSTER, "--checkpoint", disk.path / "kept") in (0, 1)
        hog.unlink()


def test_a_store_that_is_read_only(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.npy"
    np.save(rows, distances(200)[180:])
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        store = disk.path / "s"
        make = (source / "d.npy", store, "--kind", "distance", "--tile", TILE, "--quiet")
        assert ran("import", *make) == 0
        begun = disk.path / "begun"
        killed("import", 0, 3, "import", source / "d.npy", begun, "--kind", "distance", "--tile", TILE, "--quiet")
        disk.remount("ro")
        before = files(disk.path)
        assert ran("cluster", store, tmp_path / "out", *CLUSTER) == 0
        assert ran("spectrum", store, "--quiet") == 0
        assert ran("audit", store, "--verify", "--quiet") == 0
        capfd.readouterr()
        refused = [
            ("append", store, rows, "--quiet"),
            ("import", *make, "--force"),
            ("import", source / "d.npy", begun, "--kind", "distance", "--tile", TILE, "--quiet", "--resume"),
            ("pairwise", source / "x.npy", disk.path / "new", "--metric", "euclidean", "--quiet"),
            ("cluster", store, disk.path / "out", *CLUSTER),
        ]
        for command in refused:
            assert ran(*command) == 1
            assert "Read-only file system" in line_of(capfd), command
        assert ran("cluster", store, tmp_path / "more", *CLUSTER, "--checkpoint", disk.path / "kept") == 1
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
    """A second one comes while the source is put aside, while tiles are written, and while a store is replaced."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    np.savetxt(first, distances(60), delimiter=",")
    np.savetxt(second, 2 * distances(60), delimiter=",")
    store, refused = tmp_path / "s", []

    def other(**how: Any) -> None:
        with pytest.raises(StoreError, match=f"{store} is being written by another process; wait"):
            dasrel.import_matrix(second, store, kind="distance", writing=Writing(tile=20, **how))
        refused.append(how)

    for owner, name in ((text, "open_text"), (writer, "create_group"), (TileFiles, "write")):
        for how in ({}, {"force": True}, {"resume": True}):
            at_once(monkeypatch, owner, name, lambda how=how: other(**how))
            dasrel.import_matrix(first, store, kind="distance", writing=Writing(tile=20, force=True))
            found = dasrel.open_matrix(store)
            np.testing.assert_array_equal(found.rows(found.ids), distances(60).astype("float32"))
    assert len(refused) == 9
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first.csv", "s", "second.csv"]
    # Whoever was refused may come again afterwards.
    dasrel.import_matrix(second, store, kind="distance", writing=Writing(tile=20, force=True))


def test_many_processes_write_one_store(tmp_path: Path) -> None:
    """Real processes that begin together: one makes its store, the others say why not in one line."""
    sources = [tmp_path / f"x{k}.npy" for k in range(4)]
    for k, one in enumerate(sources):
        np.save(one, (k + 1) * points(60))
    line = [sys.executable, "-m", "dasrel", "pairwise"]
    processes = [
        subprocess.Popen([*line, str(one), str(tmp_path / "s"), "--metric", "euclidean", "--tile", "4", "--quiet"],
                         stderr=subprocess.PIPE, text=True)
        for one in sources
    ]  # fmt: skip
    told = [process.communicate(timeout=240)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 1, 1, 1], told
    for code, said in zip(codes, told, strict=True):
        assert re.fullmatch(r"dasrel: .* (is being written by|exists \(state complete\)).*\n" if code else "", said)
    scale = codes.index(0) + 1
    found = dasrel.open_matrix(tmp_path / "s")
    np.testing.assert_allclose(found.rows(found.ids), scale * distances(60), rtol=1e-6)


def test_two_clusterings_into_one_folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    three, two = (dasrel.cluster(store, grid("hard", k, n_init=1)) for k in (3, 2))
    at_once(monkeypatch, outputs, "_replace", lambda: outputs.save_clustering(two, out))
    with pytest.raises(InputError, match=r"out exists; choose another place"):
        outputs.save_clustering(three, out)
    assert np.load(out / "memberships.npy").shape == (N, 2)
    at_once(monkeypatch, outputs, "_replace", lambda: outputs.save_clustering(two, out, force=True))
    outputs.save_clustering(three, out, force=True)
    assert np.load(out / "memberships.npy").shape == (N, 3)
    assert json.loads((out / "result.json").read_text())["settings"][0]["n_clusters"] == 3
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


# ------------------------------------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    """A server that speaks S3, behind one that fails when it is told to; requests are given up after a second."""
    s3fs = pytest.importorskip("s3fs")
    server_of = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    made = Front(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", made.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing-geheim")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "3")
        patch.setattr(s3fs.S3FileSystem, "read_timeout", 1)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("failing-matrices")
        yield made
        s3fs.S3FileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda told: None)
        gc.collect()  # requests that were given up complain when they are collected, now or in another test
    made.close()
    server.stop()


def counted(answers: dict[int, float], part: str) -> Callable[[str, str], float | None]:
    """A fault that answers request number k for paths with `part` in them by itself, counted from 1."""
    number = [0]

    def fault(method: str, path: str) -> float | None:
        if part not in path:
            return None
        number[0] += 1
        return answers.get(number[0])

    return fault


def test_a_server_that_fails_for_a_while(front: Front) -> None:
    """Errors, refusals and silence, to reads and writes: all are tried again, after a while."""
    square = distances(40)
    front.fault = counted({1: 503, 2: 500, 4: 503, 6: 0.0, 8: 500}, "/values/c/")
    dasrel.import_matrix(square, "s3://failing-matrices/a", kind="distance", writing=Writing("float64", tile=20))
    front.fault = counted({1: 500, 2: 503, 4: 3.0, 6: 500}, "/values/c/")
    front.seen.clear()
    found = dasrel.open_matrix("s3://failing-matrices/a")
    np.testing.assert_array_equal(found.rows(found.ids), square)
    times = [at for _, path, _, at in front.seen if "/values/c/0/0" in path]
    assert sum(answer is not None for _, _, answer, _ in front.seen) == 4
    assert len(times) >= 3


def test_a_server_that_fails_for_good(front: Front, capfd: pytest.CaptureFixture[str]) -> None:
    url, matrix = "s3://failing-matrices/b", distances(40)
    front.fault = lambda method, path: 503 if method == "PUT" and "/values/c/" in path else None
    front.seen.clear()
    with pytest.raises(StoreError, match=rf"{url} cannot be written: .*; what is written stays.* --resume"):
        dasrel.import_matrix(matrix, url, kind="distance", writing=Writing("float64", tile=20))
    tries = [one for one in front.seen if one[2] is not None]
    assert 3 <= len(tries) <= 100  # bounded: of 3 tiles at once
    front.fault = lambda method, path: None
    resume = Writing("float64", tile=20, resume=True)
    dasrel.import_matrix(matrix, url, kind="distance", writing=resume)
    front.fault = lambda method, path: 500 if "/values/c/" in path else None
    capfd.readouterr()
    assert ran("spectrum", url, "--quiet") == 1
    assert re.search(r"tile \(0, 0\) of s3://\S+, .* cannot be read: .*(Unavailable|Error|not now)", line_of(capfd))
    front.fault = lambda method, path: 500
    assert ran("spectrum", url, "--quiet") == 1
    assert re.search(rf"{url} cannot be opened: ", line_of(capfd))
