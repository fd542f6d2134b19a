"""Commands that are stopped or killed, and resumed: the same bits, or a refusal that says why."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
from distributed import Client
from scipy.spatial.distance import cdist

import dasrel
from dasrel import watch
from dasrel.cmeans.fit import cluster
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import Stopped
from dasrel.store.matrix import open_matrix
from dasrel.store.options import Writing
from tests.helpers.faults import stopped_after
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.processes import CLUSTER, ran
from tests.helpers.runs import grid
from tests.helpers.stores import bits, result_files

# Runs are short here; that they do not converge is not the point.
pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")


@contextmanager
def sigterm(label, *, scans=0, tiles=0):
    """A real SIGTERM for this process, once, when a pass has come so far."""
    sent = []

    def look(progress):
        if progress.label == label and (progress.scans, progress.tiles) >= (scans, tiles) and not sent:
            sent.append(progress)
            os.kill(os.getpid(), signal.SIGTERM)

    with watch(look):
        yield
    assert sent


@pytest.mark.guarantee
def test_sigterm_and_then_resume(tmp_path, grouped_store, capfd):
    arguments = (*CLUSTER, "--max-iter", 9)
    assert ran("cluster", grouped_store, tmp_path / "whole", *arguments) == 0
    command = ("cluster", grouped_store, tmp_path / "out", *arguments, "--checkpoint", tmp_path / "kept")
    with sigterm("scan", scans=4):
        assert ran(*command, "--json") == 75
    report = capfd.readouterr()
    file = tmp_path / "kept" / "cluster-00000004.npz"
    assert re.fullmatch(
        f"dasrel: stopped by SIGTERM after 4 scans; the state is in {file}; run the same again with"
        r" --resume to continue from there\n", report.err.split("warning")[-1].split("\n", 1)[-1]
    )  # fmt: skip
    output = json.loads(report.out)
    assert (output["stopped"], output["scans"], output["checkpoint"]) == (True, 4, str(file))
    assert not (tmp_path / "out").exists()
    assert ran(*command) == 1
    assert "holds a checkpoint" in capfd.readouterr().err
    with sigterm("scan", scans=2):
        assert ran(*command, "--resume", "--every", 5) == 75
    assert "after 6 scans" in capfd.readouterr().err
    assert ran(*command, "--resume", "--verbose") == 0
    report = capfd.readouterr().err
    assert f"dasrel: resuming from {tmp_path / 'kept' / 'cluster-00000006.npz'}" in report
    assert re.search(r"dasrel: checkpoint cluster-00000007.npz: [\d.]+ kB in [\d.]+ s\n", report)
    assert result_files(tmp_path / "out") == result_files(tmp_path / "whole")
    assert not (tmp_path / "kept").exists()  # the results are safe now


def test_sigterm_without_a_checkpoint_ends_at_once(tmp_path, grouped_store, capfd):
    for command in (
        ("cluster", grouped_store, tmp_path / "out", *CLUSTER),
        ("spectrum", grouped_store, "--max-scans", 50, "--quiet"),
    ):
        with sigterm("scan", scans=1):
            assert ran(*command) == 143
        assert capfd.readouterr().err == "dasrel: stopped by SIGTERM; nothing was kept\n"
    assert list(tmp_path.iterdir()) == []
    for option in (("--every", 3), ("--time-limit", "1h")):
        assert ran("cluster", grouped_store, tmp_path / "out", *CLUSTER, *option) == 2
        assert f"{option[0]} needs --checkpoint DIR" in capfd.readouterr().err
    assert ran("spectrum", grouped_store, "--checkpoint", tmp_path / "c", "--time-limit", "soon") == 2
    assert "'soon' is no duration" in capfd.readouterr().err


def test_a_second_sigterm_ends_the_process(tmp_path, grouped_store):
    code = """
import os, signal, sys
from dasrel import watch; from dasrel.cli import app
def look(progress):
    if progress.label == "scan" and progress.scans >= 3:
        os.kill(os.getpid(), signal.SIGTERM)
with watch(look):
    app.run(sys.argv[1:])
"""
    command = ("cluster", grouped_store, tmp_path / "out", *CLUSTER, "--checkpoint", tmp_path / "kept")
    done = subprocess.run([sys.executable, "-c", code, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == "dasrel: stopped at once by a second SIGTERM"
    assert Checkpoint(tmp_path / "kept").files("cluster")[0].name == "cluster-00000002.npz"


def test_spectrum_and_euclideanize_stop_and_go_on(tmp_path, crooked_store, capfd):
    kept = ("--checkpoint", tmp_path / "kept")
    spectra = ("spectrum", crooked_store, "--tol", 1e-9, "--json")
    assert ran(*spectra) == 0
    whole = json.loads(capfd.readouterr().out)
    with sigterm("scan", scans=2):
        assert ran(*spectra, *kept) == 75
    assert json.loads(capfd.readouterr().out)["scans"] == 2
    assert ran(*spectra, *kept, "--resume") == 0
    again = json.loads(capfd.readouterr().out)
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}
    changed = ("euclideanize", crooked_store, "--method", "log", "--json")
    assert ran(*changed, "--out", tmp_path / "a.npz") == 0
    whole = json.loads(capfd.readouterr().out)
    for scans in (1, 9, 9):
        with sigterm("scan", scans=scans):
            assert ran(*changed, "--out", tmp_path / "b.npz", *kept, "--resume") == 75
    capfd.readouterr()
    assert ran(*changed, "--out", tmp_path / "b.npz", *kept, "--resume") == 0
    again = json.loads(capfd.readouterr().out)
    assert {**again, "seconds": 0, "out": 0} == {**whole, "seconds": 0, "out": 0}
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert not (tmp_path / "kept").exists()


def test_kill_9_again_and_again(tmp_path, crooked_store):
    arguments = (*CLUSTER, "--max-iter", 60, "--euclideanize", "ultrametric")
    assert ran("cluster", crooked_store, tmp_path / "whole", *arguments) == 0
    kept = Checkpoint(tmp_path / "kept")
    command = ("cluster", crooked_store, tmp_path / "out", *arguments, "--checkpoint", kept.path, "--resume")
    for phase, number in (("euclideanize", 2), ("cluster", 3), ("cluster", 30)):
        process = subprocess.Popen([sys.executable, "-m", "dasrel", *map(str, command)], stderr=subprocess.DEVNULL)
        while not any(int(file.stem.split("-")[1]) >= number for file in kept.files(phase)):
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert 1 <= len(kept.files(phase)) <= 3  # killed between writing and removing, there is one more
    assert ran(*command) == 0
    assert result_files(tmp_path / "out") == result_files(tmp_path / "whole")
    assert not (tmp_path / "kept").exists()


def tiles(path):
    """All that a store holds."""
    found = open_matrix(path)
    return found.audit, [found.read_tile(i, j).tobytes() for i, j in found.layout.tiles()], found.ids.tolist()


def test_stores_stop_between_two_tiles_and_go_on(tmp_path, capfd):
    np.save(tmp_path / "x.npy", grouped_points(90))
    np.save(tmp_path / "d.npy", distances(grouped_points(90)))
    commands = {
        "pairwise": ("pairwise", tmp_path / "x.npy", "--metric", "euclidean"),
        "import": ("import", tmp_path / "d.npy", "--kind", "distance"),
    }
    for name, (command, source, *options) in commands.items():
        options = [*options, "--tile", 16, "--json"]
        whole, store = tmp_path / f"{name}.zarr", tmp_path / f"{name}-stopped.zarr"
        assert ran(command, source, whole, *options) == 0
        capfd.readouterr()
        with sigterm(name, tiles=3):
            assert ran(command, source, store, *options) == 75
        report = capfd.readouterr()
        assert json.loads(report.out)["stopped"] is True
        done = int(
            re.search(r"stopped by SIGTERM after (\d+) of 21 tiles; run the same again with --resume", report.err)[1]
        )
        assert 3 <= done < 21
        with watch() as counted:
            assert ran(command, source, store, *options, "--resume", "--time-limit", "0s") == 75  # one in any case
        assert 1 <= counted.tiles < 21 - done
        assert "stopped by the time limit of 0 s" in capfd.readouterr().err
        assert ran(command, source, store, *options, "--resume") == 0
        assert tiles(store) == tiles(whole)
        assert ran(command, source, store, *options, "--force", "--time-limit", "1h") == 1
        assert "cannot be resumed after a time limit" in capfd.readouterr().err
        with sigterm(name, tiles=3):
            assert ran(command, source, store, *options, "--force") == 143
        assert tiles(store) == tiles(whole)
        assert ran(command, source, store, *options, "--time-limit", "10") == 2


def test_blocks_of_a_function_stop_in_time(tmp_path):
    called = []

    def block(rows, columns):
        called.append((rows.start, columns.start))
        time.sleep(0.05)
        return cdist(grouped_points(90)[rows.start : rows.stop], grouped_points(90)[columns.start : columns.stop])

    writing = Writing("float64", tile=16, time_limit=0.2)
    with pytest.raises(Stopped, match=r"the time limit of 0.2 s after \d+ of 21 tiles"):
        dasrel.from_blocks(block, 90, tmp_path / "a.zarr", kind="distance", writing=writing)
    first = len(called)
    writing = dataclasses.replace(writing, time_limit=None, resume=True)
    found = dasrel.from_blocks(block, 90, tmp_path / "a.zarr", kind="distance", writing=writing)
    assert len(called) == len(set(called)) == 21 > first
    assert found.n_objects == 90


def test_on_a_cluster_tiles_and_scans_stop_and_go_on(tmp_path, grouped_store, workers):
    runs = grid("fcm1", 3, max_iter=7, tol=0.0)
    whole = cluster(grouped_store, runs)
    np.save(tmp_path / "x.npy", grouped_points(90))
    plain = dasrel.pairwise(tmp_path / "x.npy", tmp_path / "a.zarr", metric="euclidean", writing=Writing(tile=8))
    with Client(workers):
        with pytest.raises(Stopped), stopped_after(3):
            cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path / "c"))
        found = cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path / "c", resume=True))
        assert bits(found) == bits(whole)
        writing = Writing(tile=8, time_limit=0.0)
        with pytest.raises(Stopped, match=r"the time limit of 0 s after \d+ of 78 tiles"):
            dasrel.pairwise(tmp_path / "x.npy", tmp_path / "b.zarr", metric="euclidean", writing=writing)
        dasrel.pairwise(
            tmp_path / "x.npy", tmp_path / "b.zarr", metric="euclidean", writing=Writing(tile=8, resume=True)
        )
    assert tiles(tmp_path / "b.zarr") == tiles(plain.store)
