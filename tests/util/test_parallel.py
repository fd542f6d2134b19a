"""Mapped files on workers: the same values as anywhere, no more memory than was estimated; BLAS on one thread."""

import json
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from distributed import Client

import dasrel
from dasrel.store.options import Writing
from dasrel.util import limits, parallel
from tests.helpers.matrices import symmetric
from tests.helpers.processes import local_cluster, most_memory


@pytest.fixture
def as_worker(monkeypatch):
    """Makes this process believe that it is a worker, and counts how often pages are let go of."""
    gone = []
    found = parallel._map_of

    class Seen:
        def __init__(self, inner):
            self.inner = inner

        def madvise(self, advice):
            gone.append(advice)
            self.inner.madvise(advice)

    def seen(array):
        inner = found(array)
        return None if inner is None else Seen(inner)

    def turn_on():
        monkeypatch.setattr(parallel, "on_worker", lambda: True)
        monkeypatch.setattr(parallel, "_map_of", seen)
        return gone

    return turn_on


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_part_is_a_view_here_and_a_copy_on_a_worker(tmp_path, as_worker, order):
    values = np.asarray(np.random.default_rng(0).random((300, 170)), order=order)
    np.save(tmp_path / "m.npy", values)
    table = np.asarray(np.load(tmp_path / "m.npy", mmap_mode="r"))
    some = np.array([5, 160, 5, 0])
    requested = [
        (slice(20, 290), slice(3, 9)), (slice(0, 300), slice(None)), (slice(7, 7), slice(2, 4)), (slice(None), some)
    ]  # fmt: skip
    assert np.shares_memory(parallel.part(table, *requested[0]), table)
    gone = as_worker()
    for rows, columns in requested:
        part = parallel.part(table, rows, columns)
        assert np.array_equal(part, values[rows][:, columns])
        assert not np.shares_memory(part, table)
    assert set(gone) == {mmap.MADV_DONTNEED}
    inside = np.ones((4, 4))
    assert np.shares_memory(parallel.part(inside, slice(1, 3)), inside)  # not mapped: nothing to let go of


@pytest.mark.parametrize("form", ["square", "fortran", "condensed", "sparse"])
def test_imports_are_the_same_on_a_worker(tmp_path, as_worker, form):
    n = 150
    values = symmetric(n, 1)
    path, options = tmp_path / "d.npy", {}
    if form == "condensed":
        values = values.astype(np.float32)
        np.save(path, values[np.triu_indices(n, 1)])
        options = {"reading": dasrel.Reading(format="condensed")}
    elif form == "sparse":
        path = tmp_path / "d.mtx"
        lines = [f"{j + 1} {i + 1} {values[i, j]!r}" for i in range(n) for j in range(i + 1, n)]
        head = ["%%MatrixMarket matrix coordinate real symmetric", f"{n} {n} {len(lines)}"]
        path.write_text("\n".join(head + lines).replace("np.float64(", "").replace(")", "") + "\n", encoding="ascii")
    else:
        np.save(path, np.asarray(values, order="F" if form == "fortran" else "C"))
    gone = as_worker()
    matrix = dasrel.import_matrix(path, tmp_path / "m.zarr", kind="distance", writing=Writing(tile=40), **options)
    assert len(gone) > 10
    np.testing.assert_allclose(matrix.to_dask().compute(), values, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_file_larger_than_a_worker_is_imported_in_its_memory(tmp_path):
    """Dask counts mapped files as a worker's memory, and what tasks keep adds up."""
    n, limit = 11_000, 380_000_000
    square = np.lib.format.open_memmap(tmp_path / "d.npy", "w+", np.float32, (n, n))
    square[:] = 1
    np.fill_diagonal(square, 0)
    del square
    with local_cluster(memory_limit=limit, n_workers=1) as workers, Client(workers) as client:
        (pid,) = client.run(os.getpid).values()
        idle = most_memory(pid)
        matrix = dasrel.import_matrix(
            tmp_path / "d.npy", tmp_path / "m.zarr", kind="distance", writing=Writing(tile=1024)
        )
        assert list(client.run(os.getpid).values()) == [pid]
        peak = most_memory(pid)
    assert os.path.getsize(tmp_path / "d.npy") > 1.2 * limit
    assert matrix.layout.total_bytes > 0.7 * limit
    assert peak - idle < 100e6 < limits.room_of(limit)


LIMITED = """
import threadpoolctl
from dasrel.util import parallel

with parallel.single_threaded_blas():
    pass
import numpy as np
from dasrel.judging import structure
during = []
quality = structure._chance
def spied(*given):
    during.extend(found["num_threads"] for found in threadpoolctl.threadpool_info() if found["user_api"] == "blas")
    return quality(*given)
structure._chance = spied
x = np.random.default_rng(0).normal(size=(40, 2))
structure.judge_structure(((x[:, None] - x) ** 2).sum(axis=2), np.arange(40) % 2, 2)
print(during)
"""


@pytest.mark.slow
def test_a_blas_that_is_loaded_later_is_limited_too() -> None:
    """SciPy has its own: on many threads it would wait for them in loops, and its bits would depend on their number."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {1}
