"""Clusters whose workers come and go: every few seconds one joins, and the oldest is killed or told to leave."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from dasrel import Writing
from dasrel.engine.runtime import Runtime, connect
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.processes import dask_cluster, dask_worker, end
from tests.helpers.runs import grid
from tests.helpers.stores import bits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("patience"),
    pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning"),
]
PAUSE = 1.0
"""Seconds from the moment that a new worker is there until the oldest goes."""
LEAST = 3
"""Workers that come and go in each piece of work."""


@contextmanager
def elastic(folder: Path) -> Iterator[list[str]]:
    """Connect to a cluster of two workers, of which none stays; yield how each went that has gone."""
    gone: list[str] = []
    ended = threading.Event()
    with dask_cluster(folder, workers=0) as (file, _):
        working = [dask_worker(Path(file), folder) for _ in range(2)]
        left: list[Any] = []

        def change() -> None:
            """A preempted worker is killed; one of a batch system, or of adaptive scaling, gets SIGTERM."""
            while not ended.is_set():
                working.append(dask_worker(Path(file), folder))
                client.wait_for_workers(len(working), timeout=240)
                if ended.wait(PAUSE):
                    return
                how = (signal.SIGKILL, signal.SIGTERM)[len(gone) % 2]
                left.append(working.pop(0))
                left[-1].send_signal(how)
                gone.append(how.name)

        with connect(Runtime(scheduler_file=file, workers=2)) as client:
            changing = threading.Thread(target=change)
            changing.start()
            try:
                yield gone
            finally:
                ended.set()
                changing.join()
        end([*working, *left])


def lasted(work: Callable[[], Any], gone: list[str]) -> list[Any]:
    """Results of the work, done again until so many workers have gone during it."""
    results, before = [], len(gone)
    until = time.monotonic() + 240
    while len(gone) < before + LEAST:
        results.append(work())
        assert time.monotonic() < until
    return results


def test_a_clustering_and_a_linkage_have_the_same_bits(tmp_path: Path) -> None:
    store = tmp_path / "d.zarr"
    dasrel.import_matrix(distances(grouped_points(900)), store, kind="distance", writing=Writing("float64", tile=30))
    runs = grid("fcm1", 3, n_init=2, max_iter=30, tol=0.0)

    def linked() -> dasrel.Dendrogram:
        return dasrel.linkage(dasrel.open_matrix(store), method="average", scratch=tmp_path)

    clustering, dendrogram = bits(dasrel.cluster(store, runs)), linked()
    folder = tmp_path / "cluster"
    folder.mkdir()
    with elastic(folder) as gone:
        for result in lasted(lambda: dasrel.cluster(dasrel.open_matrix(store), runs), gone):
            assert bits(result) == clustering
        for result in lasted(linked, gone):
            assert np.array_equal(result.children, dendrogram.children)
            assert result.heights.tobytes() == dendrogram.heights.tobytes()
    assert set(gone) == {"SIGKILL", "SIGTERM"}
