"""Workers and schedulers that die, for real: the same bits, or one line and a way to resume."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest

import dasrel
from dasrel import Writing
from dasrel.engine.launch import start
from dasrel.engine.runtime import PATIENT, Runtime, connect
from dasrel.errors import ClusterError, StoreError
from dasrel.store.array_matrix import ArrayMatrix
from dasrel.util import parallel
from tests.helpers.faults import Blocks, DeadlyTiles, Tokens, kill_a_worker, struck, worker_processes
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.processes import dask_cluster, ran
from tests.helpers.runs import grid
from tests.helpers.stores import bits, files, result_files

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")

N, TILE = 180, 30  # 21 tiles
RUNS = grid("fcm1", 3, n_init=2, max_iter=8, tol=0.0)
DOUBLE = Writing("float64", tile=TILE)


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    return source / "d.zarr"


@pytest.fixture(scope="module")
def whole(store: Path) -> Any:
    """The clustering on local threads."""
    return bits(dasrel.cluster(store, RUNS))


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
    with parallel.bound_to(workers):
        yield workers


def test_workers_that_are_killed_while_a_local_cluster_starts(store: Path) -> None:
    """Two of them, before they have begun: the cluster is started again."""
    killed: list[int] = []

    def kill() -> None:
        until = time.monotonic() + 120
        while len(killed) < 2 and time.monotonic() < until:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if child.pid not in before and "spawn_main" in " ".join(child.cmdline()):
                        child.kill()
                        killed.append(child.pid)
                        before.add(child.pid)
            time.sleep(0.02)

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    killer = threading.Thread(target=kill)
    killer.start()
    with connect(Runtime(dask="local:workers=2,memory=1GB", wait=240)) as client:
        killer.join()
        assert len(killed) == 2
        assert len(client.run(os.getpid)) == 2


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


@pytest.mark.guarantee
def test_a_worker_that_dies_between_scans(client: Any, store: Path) -> None:
    matrix = dasrel.open_matrix(store)
    relation = dasrel.relation(matrix)
    V = np.random.default_rng(1).random((N, 3))
    first = relation.matmat(V)
    np.testing.assert_allclose(first, distances(grouped_points(180)) ** 2 @ V, rtol=1e-10)
    for count in (1, 3):  # one, and all at once
        settled(client)
        for one in worker_processes(client)[:count]:
            one.kill()
        assert (relation.matmat(V) == first).all()


def test_tiles_that_were_sent_are_sent_again(client: Any, whole: Any) -> None:
    """An array of this process: what a worker had of it is lost with the worker."""
    matrix = ArrayMatrix(distances(grouped_points(180)), "distance", tile=TILE)
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
            dasrel.pairwise(grouped_points(180), place, metric="cityblock", writing=DOUBLE)
        else:
            dasrel.append(place, rows)

    rows = tmp_path / "rows.npy"
    np.save(rows, distances(grouped_points(180))[100:])
    if name == "append":
        for place in ("here", "there"):
            square = distances(grouped_points(180))[:100, :100]
            dasrel.import_matrix(square, tmp_path / place, kind="distance", writing=DOUBLE)
    with struck(name, [(0, 2), (0, 8)], lambda: kill_a_worker(client)):
        write(tmp_path / "there")
    with parallel.bound_to(None):
        write(tmp_path / "here")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_features_that_were_sent_are_sent_again(client: Any, tmp_path: Path) -> None:
    """All workers die at once, and with them every copy of the features."""

    def strike() -> None:
        for one in worker_processes(client):
            one.kill()

    with struck("pairwise", [(0, 5)], strike):
        dasrel.pairwise(grouped_points(180), tmp_path / "there", metric="cityblock", writing=DOUBLE)
    with parallel.bound_to(None):
        dasrel.pairwise(grouped_points(180), tmp_path / "here", metric="cityblock", writing=DOUBLE)
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_function_that_kills_its_workers(client: Any, tmp_path: Path) -> None:
    """By a signal, and by taking more memory than there is; then it is well behaved."""
    tokens = Tokens.made(tmp_path / "tokens", "0-0", "30-90", "150-150", "memory-60-60")
    blocks = Blocks(tokens, os.getpid())
    dasrel.from_blocks(blocks, N, tmp_path / "there", kind="distance", writing=DOUBLE)
    assert tokens.left() == []
    with parallel.bound_to(None):
        dasrel.from_blocks(blocks, N, tmp_path / "here", kind="distance", writing=DOUBLE)
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_function_that_always_takes_too_much(tmp_path: Path) -> None:
    tokens = Tokens.made(tmp_path / "tokens", "memory-always")
    blocks = Blocks(tokens, os.getpid())
    report = r"2 workers died over the same piece of work, .*lack memory: give them more.* resume=True"
    once_more = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with once_more, pytest.raises(ClusterError, match=report), connect(Runtime(dask="local:workers=3,memory=400MB")):
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
    requested = ["--rule", "fcm1", "--clusters", "3", "--n-init", "2", "--max-iter", "40", "--tol", "0", "--quiet"]
    assert ran("cluster", store, tmp_path / "whole", *requested) == 0
    kept, out = tmp_path / "kept", tmp_path / "out"
    command = ["cluster", store, out, *requested, "--checkpoint", kept]
    with dask_cluster(tmp_path, workers=3) as (file, scheduler):
        place = ["--scheduler-file", file, "--workers", "3", "--wait", "240"]
        line = [sys.executable, "-m", "dasrel", *map(str, [*command, *place])]
        with (tmp_path / "output").open("w") as output:
            process = subprocess.Popen(line, stdout=output, stderr=output)
        until = time.monotonic() + 240
        while not list(kept.glob("cluster-*[3-9].npz")):
            assert process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < until
            time.sleep(0.005)
        scheduler.kill()
        assert process.wait(240) == 1
    lines = [one for one in (tmp_path / "output").read_text().splitlines() if "warning" not in one]
    assert len(lines) == 1, lines
    assert re.fullmatch(r"dasrel: the connection to the scheduler tcp://\S+ was lost; .*--resume.*", lines[0])
    assert not out.exists()
    with struck("scan", [(3, 0)], lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert ran(*command, "--resume") == 75
    assert ran(*command, "--resume", "--dask", "local:workers=3", "--wait", "240") == 0
    assert result_files(out) == result_files(tmp_path / "whole")
