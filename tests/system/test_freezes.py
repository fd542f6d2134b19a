"""Processes of a cluster that are stopped and not killed (SIGSTOP): others get their work, or the command ends."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import dasrel
from dasrel import Writing
from dasrel.engine.runtime import Runtime, connect
from dasrel.errors import DasrelWarning
from tests.helpers.faults import SlowBlocks, struck
from tests.helpers.processes import dask_cluster, dask_worker, end, ran
from tests.helpers.runs import grid
from tests.helpers.stores import bits, files, result_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("patience"),
    pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning"),
]
RUNS = grid("fcm1", 3, n_init=2, max_iter=8, tol=0.0)
STALL = 4.0


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    return source / "d.zarr"


@pytest.fixture(scope="module")
def whole(store: Path) -> Any:
    """The clustering on local threads."""
    return bits(dasrel.cluster(store, RUNS))


def given_up(warned: pytest.WarningsRecorder) -> list[str]:
    return [str(one.message) for one in warned if "given to others" in str(one.message)]


def test_a_worker_of_a_nanny_that_is_stopped_for_ever(store: Path, whole: Any, tmp_path: Path) -> None:
    """In a scan, and while tiles are written: its nanny ends it, and its work is done by others."""
    stopped: list[int] = []
    writing = Writing("float64", tile=30)

    def stop_one() -> None:
        pid = next(pid for pid in client.run(os.getpid).values() if pid not in stopped)
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    with connect(Runtime(dask="local:workers=3,memory=1GB", stall=STALL)) as client:
        with pytest.warns(DasrelWarning) as warned, struck("scan", [(2, 0)], stop_one):
            found = dasrel.cluster(store, RUNS)
        assert bits(found) == whole
        assert re.match(
            r"worker tcp://127\.0\.0\.1:\d+ \(127\.0\.0\.1\) gave no sign of life for ", given_up(warned)[0]
        )
        with pytest.warns(DasrelWarning) as warned, struck("from_blocks", [(0, 2)], stop_one):
            dasrel.from_blocks(SlowBlocks(), 180, tmp_path / "there", kind="distance", writing=writing)
        assert given_up(warned)
        assert not any(psutil.pid_exists(pid) for pid in stopped)
    dasrel.from_blocks(SlowBlocks(0), 180, tmp_path / "here", kind="distance", writing=writing)
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_stopped_worker_without_a_nanny_that_comes_back(store: Path, whole: Any, tmp_path: Path) -> None:
    """Nobody can end it: it is removed, and the scan is done again. When it comes back it ends."""
    with dask_cluster(tmp_path, workers=2) as (file, _):
        third = dask_worker(Path(file), tmp_path)
        try:
            with connect(Runtime(scheduler_file=file, workers=3, stall=STALL)) as client:
                with (
                    pytest.warns(DasrelWarning) as warned,
                    struck("scan", [(3, 4)], lambda: third.send_signal(signal.SIGSTOP)),
                ):
                    found = dasrel.cluster(store, RUNS)
                assert bits(found) == whole
                assert len(given_up(warned)) >= 1
                third.send_signal(signal.SIGCONT)
                third.wait(60)  # it finds that it was removed, and ends
                assert bits(dasrel.cluster(store, RUNS)) == whole
                assert len(client.run(os.getpid)) == 2
        finally:
            end([third])


def test_a_scheduler_that_is_stopped_for_ever_leaves_a_checkpoint(tmp_path: Path, store: Path) -> None:
    requested = ["--rule", "fcm1", "--clusters", "3", "--n-init", "2", "--max-iter", "40", "--tol", "0", "--quiet"]
    assert ran("cluster", store, tmp_path / "whole", *requested) == 0
    kept, out = tmp_path / "kept", tmp_path / "out"
    command = ["cluster", store, out, *requested, "--checkpoint", kept]
    with dask_cluster(tmp_path, workers=2) as (file, scheduler):
        line = [sys.executable, "-m", "dasrel", *map(str, [*command, "--scheduler-file", file, "--stall", STALL])]
        with (tmp_path / "output").open("w") as output:
            process = subprocess.Popen(line, stdout=output, stderr=output)
        until = time.monotonic() + 240
        while not list(kept.glob("cluster-*[3-9].npz")):
            assert process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < until
            time.sleep(0.005)
        scheduler.send_signal(signal.SIGSTOP)
        assert process.wait(120) == 1
    lines = [one for one in (tmp_path / "output").read_text().splitlines() if "did not converge" not in one]
    assert len(lines) == 1, lines
    assert re.fullmatch(
        r"dasrel: the scheduler tcp://\S+ has given no answer for 4(\.0)? s; see whether it is stopped \(--stall allows"
        r" more time\), or start it again, and .*--resume.*",
        lines[0],
    )
    assert not out.exists()
    assert ran(*command, "--resume") == 0
    assert result_files(out) == result_files(tmp_path / "whole")


def test_a_process_that_stands_still_for_less_is_waited_for(store: Path, whole: Any, tmp_path: Path) -> None:
    """A scheduler, and then all workers, for shorter than allowed: nobody is given up."""
    with (
        dask_cluster(tmp_path, workers=2) as (file, scheduler),
        connect(Runtime(scheduler_file=file, workers=2, stall=60)) as client,
    ):
        everybody = [psutil.Process(pid) for pid in (scheduler.pid, *client.run(os.getpid).values())]

        def pause(processes: list[psutil.Process]) -> None:
            for process in processes:
                process.suspend()
            threading.Timer(3.0, lambda: [process.resume() for process in processes]).start()

        with struck("scan", [(2, 0)], lambda: pause(everybody[:1])):
            assert bits(dasrel.cluster(store, RUNS)) == whole
        with struck("scan", [(2, 0)], lambda: pause(everybody[1:])):
            assert bits(dasrel.cluster(store, RUNS)) == whole
        assert len(client.run(os.getpid)) == 2
