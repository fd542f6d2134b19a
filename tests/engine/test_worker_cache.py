"""The scan on a real cluster of worker processes: the same bits, tiles pinned, a lost worker costs only its tiles."""

import json
import mmap
import os
import platform
import re
import resource
import signal
import socket

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dasrel
from dasrel.cli import app
from dasrel.engine import worker_cache
from dasrel.engine.reduce import Plan
from dasrel.engine.relation import left_products, product_shape, relation
from dasrel.engine.scan import network_bytes
from dasrel.engine.workers import _reachable
from dasrel.errors import MemoryLimitError, StoreError
from dasrel.kernels.checks import TileStatistics
from dasrel.store.options import Writing
from dasrel.util import limits, parallel
from tests.helpers.matrices import symmetric
from tests.helpers.processes import local_cluster, most_memory
from tests.helpers.stores import create_store, stored

N, TILE = 500, 64


@pytest.fixture
def matrix(tmp_path):
    return stored(tmp_path / "d.zarr", symmetric(N, 1), tile=TILE)


U = np.random.default_rng(0).random((5, N))


@pytest.mark.guarantee
def test_two_processes_give_the_same_bits_and_later_scans_read_nothing(matrix, workers):
    seen = relation(matrix)
    wanted = [(seen, U), (seen.gaussian(0.7).spread(0.2), U[:2])]
    local = left_products(wanted)
    tiles = len(matrix.layout.tiles())
    with Client(workers) as client, dasrel.watch() as meter:
        first = left_products(wanted)
        assert (meter.scans, meter.tiles, meter.bytes) == (1, tiles, matrix.layout.total_bytes)
        second = left_products(wanted)
        assert (meter.scans, meter.tiles) == (2, tiles)
        assert worker_cache.worker_cache(matrix, client).futures.keys() == set(Plan(matrix.layout).groups())
    for a, b, c in zip(first, second, local, strict=True):
        assert (a == c).all()
        assert (b == c).all()


def test_results_pass_through_the_scheduler_where_workers_cannot_be_reached(matrix, client, monkeypatch):
    direct = relation(matrix).left(U)
    requested = []
    plain = client.gather
    monkeypatch.setattr(client, "gather", lambda given, direct: requested.append(direct) or plain(given, direct=direct))
    assert (relation(matrix).left(U) == direct).all()
    monkeypatch.setattr("dasrel.engine.workers._reachable", lambda address: False)
    assert (relation(matrix).left(U) == direct).all()
    assert requested == [True, None]


def test_columns_are_sent_as_data_and_never_in_a_graph(matrix, client):
    """4 MB of them; and data of 4 MB inside a graph are noticed, as in every test."""
    wide = np.random.default_rng(1).random((2000, N)).astype(np.float32)
    product = relation(matrix).left(wide)
    np.testing.assert_allclose(product, wide @ symmetric(N, 1).astype(float) ** 2, rtol=1e-3)
    with pytest.warns(UserWarning, match="Sending large graph of size 3.8. MiB"):
        client.get({"sum": (np.sum, wide)}, ["sum"])


@pytest.mark.parametrize("brought_here", [True, False])
def test_no_more_bytes_pass_the_network_than_estimated(matrix, client, monkeypatch, brought_here):
    """The caller sends each column once, two workers want them all, and all sums come back."""
    if not brought_here:
        monkeypatch.setattr("dasrel.engine.scan.HERE_BYTES", 0)
    k, seen = 400, relation(matrix)
    U = np.random.default_rng(1).random((k, N)).astype(np.float32)
    consumer = product_shape(matrix, [(seen.view, k)])
    seen.left(U)  # tiles are pinned, and Dask's counters are known
    with dasrel.watch() as meter:
        seen.left(U)
    estimate = network_bytes(matrix, [consumer], 2)
    plan = Plan(matrix.layout)
    columns = 4 * k * N
    widths = [plan.span(strip).stop - plan.span(strip).start for strip in range(plan.strips)]
    sums = 4 * k * sum(widths[a] + widths[b] * (a != b) for a, b in plan.groups())
    least = columns + (sums if brought_here else 8 * k * N)
    assert least < meter.network <= estimate.caller + estimate.workers
    assert estimate.caller + estimate.workers < 3 * meter.network


def test_a_command_tells_how_much_it_sent(matrix, client, capfd):
    assert app.run(["spectrum", str(matrix.store), "--json"]) == 0
    output = json.loads(capfd.readouterr().out)
    assert output["network_bytes"] > 8 * N * output["scans"]
    assert app.run(["spectrum", str(matrix.store)]) == 0
    assert re.search(r"^network +\S+ .?B sent in scans, \S+ .?B in each$", capfd.readouterr().out, re.MULTILINE)


def test_which_workers_can_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert _reachable(f"tcp://127.0.0.1:{port}")
        assert not _reachable(f"tls://127.0.0.1:{port}")  # the worker would warn of it
    _reachable.cache_clear()
    for address in (f"tcp://127.0.0.1:{port}", "inproc://127.0.0.1/4711/1", "tcp://worker-7.invalid:8786"):
        assert not _reachable(address)


@pytest.mark.slow
def test_arrays_in_memory_and_dask_arrays_go_to_the_workers(client):
    values = symmetric(300, 2)
    V = np.random.default_rng(0).random((300, 3))
    for array in (values, da.from_array(values, chunks=(70, 90)), da.from_array(values, chunks=150).persist()):
        seen = relation(array, kind="distance")
        with dasrel.watch() as meter:
            first = seen.matmat(V)
            read = meter.tiles
            second = seen.matmat(V)
        assert meter.tiles == read == len(seen.matrix.layout.tiles())
        np.testing.assert_allclose(first, values**2 @ V, rtol=1e-12)
        assert (first == second).all()


def test_only_a_part_is_pinned_when_only_a_part_fits(matrix, workers):
    local = relation(matrix).left(U)
    with Client(workers) as client:
        part_pinned(matrix, client)
        assert (relation(matrix).left(U) == local).all()


def part_pinned(matrix, client):
    """Let the workers look small, and see what is pinned."""
    plan = Plan(matrix.layout)
    groups = plan.groups()
    one = matrix.layout.tile_bytes
    room = 10 * one  # on each of two workers
    memory = dict.fromkeys(client.scheduler_info()["workers"], (int(room / worker_cache.PINNED_SHARE) + 1, 1))
    pins = worker_cache.worker_cache(matrix, client)
    held, read = pins.pin(matrix.files, {g: plan.tiles(g) for g in groups}, one, 0, memory)
    assert len(held) == 20
    assert read == set(groups)
    wait(list(held.values()))
    assert sorted(len(keys) for keys in client.has_what().values()) == [10, 10]
    again, read = pins.pin(matrix.files, {g: plan.tiles(g) for g in groups}, one, 0, memory)
    assert again.keys() == held.keys()
    assert len(read) == len(groups) - 20


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("tile", "free"), [(2048, None), (1024, None), (1024, 0)])
@pytest.mark.cluster
def test_tiles_that_are_not_pinned_do_not_fill_a_small_worker(tmp_path, tile, free):
    """Dask counts files that a worker has mapped as its memory, pauses it at 0.8 of its limit, and ends it at 0.95.

    One tile a task, several of them, and several past the operating system's cache.
    """
    n, limit = 14_000, 380_000_000
    writer = create_store(tmp_path / "m.zarr", n_objects=n, kind="distance", writing=Writing(tile=tile))
    for i, j in writer.layout.tiles():
        ones = np.ones(writer.layout.shape(i, j), dtype=np.float32)
        if i == j:
            np.fill_diagonal(ones, 0)
        writer.files.write(i, j, ones, TileStatistics(1.0, 1.0, 0.0, 1.0, diagonal_minimum=0.0, diagonal_maximum=0.0))
    matrix = writer.finish()
    assert matrix.layout.total_bytes > limit
    with local_cluster(memory_limit=limit, n_workers=1) as workers, Client(workers) as client:
        if free is not None:
            client.run(exec, f"from dasrel.util import limits; limits.free_memory = lambda: {free}", {})
        (pid,) = client.run(os.getpid).values()
        idle = most_memory(pid)
        with dasrel.watch() as meter:
            for _ in range(3):
                assert (relation(matrix).row_sums() == n - 1).all()
        assert list(client.run(os.getpid).values()) == [pid]
        peak = most_memory(pid)
        assert 0 < len(worker_cache.worker_cache(matrix, client).futures) < len(Plan(matrix.layout).groups()) / 2
    assert meter.bytes > 2 * matrix.layout.total_bytes
    assert peak - idle < limits.room_of(limit)


def test_sums_on_the_workers_and_here_have_the_same_bits(matrix, client, monkeypatch):
    here = relation(matrix).left(U)
    monkeypatch.setattr("dasrel.engine.scan.HERE_BYTES", 0)  # as if there were too many of them to bring here
    there = relation(matrix).left(U)
    assert (here == there).all()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_lost_worker_costs_only_its_tiles(matrix):
    with local_cluster(n_workers=3) as workers, Client(workers) as client:
        seen = relation(matrix)
        first = seen.left(U)
        pids = client.run(os.getpid)
        os.kill(sorted(pids.values())[0], signal.SIGKILL)
        second = seen.left(U)
        third = seen.left(U)
    local = relation(dasrel.open_matrix(matrix.store)).left(U)
    assert (first == local).all()
    assert (second == local).all()
    assert (third == local).all()


def test_a_bad_tile_on_a_worker_is_named_here(matrix, client):
    os.truncate(matrix.files.file(1, 3), 10)
    with pytest.raises(StoreError, match=r"tile \(1, 3\)"):
        relation(matrix).left(U)


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_that_are_too_small_are_refused_before_the_first_tile(matrix):
    with local_cluster(memory_limit="400MB", n_workers=1) as workers, Client(workers):
        wide = np.ones((80_000, N), dtype=np.float32)
        refusal = pytest.raises(MemoryLimitError, match=r"on worker tcp://127\.0\.0\.1:\d+ .*220 MB")
        with dasrel.watch() as meter, refusal:
            relation(matrix).left(wide)
        assert (meter.scans, meter.tiles) == (0, 0)


def test_progress_comes_from_the_workers(matrix, client):
    events = []
    with dasrel.watch(events.append):
        relation(matrix).left(U)
    assert events[-1].tiles == events[-1].tiles_total == len(matrix.layout.tiles())
    assert [e.tiles for e in events] == sorted(e.tiles for e in events)


def faults_of_many_arrays():
    """Pages that the system had to give to this process for fifty arrays of 1 MB, one after the other."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(2**17)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.slow
def test_a_worker_keeps_the_memory_of_one_task_for_the_next():
    """Dask's setting for workers takes and gives back every page of every array."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another malloc")
    with local_cluster(n_workers=1) as cluster, Client(cluster) as client:  # a shared worker is prepared already
        before = client.run(faults_of_many_arrays)
        client.run(parallel.prepare_worker)
        client.run(faults_of_many_arrays)  # what is kept must be taken once
        after = client.run(faults_of_many_arrays)
    for worker, pages in before.items():
        assert pages >= 50 * 2**20 // mmap.PAGESIZE
        assert after[worker] < pages / 10
