"""Memory is predicted, and what is predicted is enough: measured in processes of their own, and under a real limit."""

import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.matrices import symmetric
from tests.helpers.stores import stored

MEASURE = """
import resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
import dask, numpy as np
from dasrel import open_matrix
from dasrel.products import product_consumer
from dasrel.relation import relation
from dasrel.scan import needed_memory

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024

path, columns, threads, limited = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "limited"
matrix = open_matrix(path)
seen = relation(matrix)
U = np.random.default_rng(0).random((columns, matrix.n_objects), dtype=np.float32)
fixed, task = needed_memory(matrix, [product_consumer(matrix, [(seen.view, U)])])
predicted = fixed + threads * task
dask.config.set(num_workers=threads)
relation(matrix).left(U[:1])  # imports, thread pools and their stacks are there before, and BLAS's own buffers:
gate = threading.Barrier(threads)

def warm(_):
    gate.wait()
    for _ in range(50):
        np.ones((columns, 512), np.float32) @ np.ones((512, 512), np.float32)

with ThreadPoolExecutor(threads) as pool:
    list(pool.map(warm, range(threads)))
base, done, peak = status("RssAnon"), threading.Event(), [0]

def watch():
    while not done.wait(0.001):
        peak[0] = max(peak[0], status("RssAnon") - base)

watcher = threading.Thread(target=watch)
watcher.start()
if limited:  # no more than this may be allocated, or the process fails
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + predicted,) * 2)
seen.left(U)
done.set()
watcher.join()
print(predicted, peak[0])
"""


def measured(path, columns, threads, how="free"):
    command = [sys.executable, "-c", MEASURE, str(path), str(columns), str(threads), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    predicted, peak = (int(word) for word in done.stdout.split())
    return predicted, peak


@pytest.fixture(scope="module")
def store(store_factory):
    return store_factory(symmetric(3000), tile=512)


@pytest.mark.parametrize(("columns", "threads"), [(4, 4), (64, 2), (300, 1), (300, 4)])
def test_a_scan_takes_no_more_than_predicted(store, columns, threads):
    predicted, peak = measured(store, columns, threads)
    assert peak <= predicted


def test_a_scan_runs_within_a_real_limit_of_what_was_predicted(store):
    predicted, peak = measured(store, 200, 2, "limited")
    assert peak <= predicted


def test_memory_does_not_grow_with_the_matrix(tmp_path):
    """Four times the tiles: only the columns, n k numbers in and out, may grow."""
    peaks = []
    for n in (1500, 3000):
        path = tmp_path / f"{n}.zarr"
        stored(path, symmetric(n, 0), tile=256)
        predicted, peak = measured(path, 2, 2)
        peaks.append(peak)
        assert peak <= predicted
    assert peaks[1] < np.square(3000) * 4 / 4  # a quarter of the float32 matrix
