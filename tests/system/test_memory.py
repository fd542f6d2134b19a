"""Memory is predicted, and what is predicted is enough: measured in processes of their own, and under a real limit."""

import numpy as np
import pytest

import dasrel
from dasrel.store.options import Writing
from tests.helpers.matrices import grouped_points, symmetric
from tests.helpers.processes import measured
from tests.helpers.stores import stored

SCAN = """
import resource
from concurrent.futures import ThreadPoolExecutor
import dask, numpy as np
from dasrel import open_matrix
from dasrel.engine.relation import product_consumer
from dasrel.engine.relation import relation
from dasrel.engine.scan import needed_memory

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
with peak_memory() as peak:
    if limited:  # no more than this may be allocated, or the process fails
        resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + predicted,) * 2)
    seen.left(U)
print(predicted, peak[0])
"""


@pytest.fixture(scope="module")
def store(store_factory):
    return store_factory(symmetric(3000), tile=512)


@pytest.mark.parametrize(("columns", "threads"), [(4, 4), (64, 2), (300, 1), (300, 4)])
def test_a_scan_takes_no_more_than_predicted(store, columns, threads):
    predicted, peak = measured(SCAN, store, columns, threads, "free")
    assert peak <= predicted


@pytest.mark.guarantee
def test_a_scan_runs_within_a_real_limit_of_what_was_predicted(store):
    predicted, peak = measured(SCAN, store, 200, 2, "limited")
    assert peak <= predicted


def test_memory_does_not_grow_with_the_matrix(tmp_path):
    """Four times the tiles: only the columns, n k numbers in and out, may grow."""
    peaks = []
    for n in (1500, 3000):
        path = tmp_path / f"{n}.zarr"
        stored(path, symmetric(n, 0), tile=256)
        predicted, peak = measured(SCAN, path, 2, 2, "free")
        peaks.append(peak)
        assert peak <= predicted
    assert peaks[1] < np.square(3000) * 4 / 4  # a quarter of the float32 matrix


ACTIONS = """
import warnings
import numpy as np, dasrel
from dasrel.geometry import euclidean
from dasrel.io import export
from dasrel.geometry.options import EuclideanizeParameters, SpectrumParameters
from tests.helpers.commands import prepared
from dasrel.hierarchy.linkage import prepare_linkage
from dasrel.cmeans.plan import plan_clustering
from dasrel.store.writer import Writing
from dasrel.names import INDICES

warnings.simplefilter("ignore")
store, out, what = sys.argv[1:]

def actions(path, folder):
    relation = dasrel.Euclideanized.load(store + ".npz", path).relation if path == store else dasrel.relation(path)
    named = lambda path: euclidean.named_relation(path, store + ".npz")
    runs = dasrel.grid("fcm2", 10, n_init=20, entropy_weight=0.1, max_iter=5, init="random", accelerate=False)
    auto = dasrel.grid("fcm2", 2, max_iter=3, init="random")
    ultrametric = EuclideanizeParameters("ultrametric", max_scans=12)
    files = [f"{folder}/{c}.npy" for c in (2, 30, 100)]
    for c, file in zip((2, 30, 100), files):
        memberships = np.random.default_rng(c).dirichlet(np.ones(c), dasrel.open_matrix(path).n_objects)
        np.save(file, memberships if c == 30 else memberships.argmax(axis=1))
    judging = prepared("validity", path, labels=files, indices=list(INDICES))
    testing = prepared("validity", path, labels=files[:1], indices=["silhouette"], permutations=999)
    axes = prepared("embed", path, folder + "/axes", force=True, max_scans=12, picture=False)
    widths = ["auto", *(w / 10 for w in range(5, 15))]
    more = {"width": widths, "eta_scale": [1.0, 4.0], "max_iter": 5, "picture": False}
    odd = prepared("outliers", path, folder + "/o", force=True, **more)
    aligned = prepared("align", path, folder + "/a", force=True, n_init=1, max_iter=5, picture=False)
    inside = prepare_linkage(path, "average", scratch=folder)
    outside = prepare_linkage(path, "ward", scratch=folder, memory="45MB" if path == store else None)
    return {
        "align": (aligned.cost, aligned.run),
        "outliers": (odd.cost, odd.run),
        "linkage": (inside.cost, inside.run),
        "linkage past memory": (outside.cost, outside.run),
        "validity": (judging.cost, judging.run),
        "permutations": (testing.cost, testing.run),
        "embed": (axes.cost, axes.run),
        "cluster": (lambda: plan_clustering(path, runs, probe_seconds=0.05), lambda: dasrel.cluster(path, runs)),
        "auto": (lambda: plan_clustering(path, auto, probe_seconds=0.05), lambda: dasrel.cluster(path, auto)),
        "spectrum": (
            lambda: euclidean.prepare_spectrum(path, SpectrumParameters(max_scans=12)).cost(),
            lambda: dasrel.spectrum(path, max_scans=12)),
        "euclideanize": (
            lambda: euclidean.prepare_euclideanize(path, ultrametric).cost(folder + "/e.npz"),
            lambda: dasrel.euclideanize(path, method="ultrametric", max_scans=12)),
        "export": (
            lambda: export.prepare_export(named(path), folder + "/1.npy", format="npy").cost(),
            lambda: dasrel.export_matrix(relation, folder + "/2.npy", format="npy", force=True)),
        "lsmat": (
            lambda: export.prepare_export(named(path), folder + "/1.tsv", format="lsmat").cost(),
            lambda: dasrel.export_matrix(relation, folder + "/2.tsv", format="lsmat", force=True)),
    }[what]

small = out + "/small.zarr"  # imports, thread pools and BLAS's own buffers are there before
line = np.arange(600.0)
dasrel.import_matrix(np.abs(line[:, None] - line), small, kind="distance", writing=Writing(tile=256))
actions(small, out)[1]()
foretell, act = actions(store, out)
predicted = foretell().memory
with peak_memory() as peak:
    act()
print(predicted, peak[0])
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A store of several MB, and a file that Euclideanises it."""
    path = tmp_path_factory.mktemp("large") / "d.zarr"
    found = dasrel.pairwise(
        grouped_points(2500).astype(np.float32), path, metric="chebyshev", writing=Writing(tile=512)
    )
    dasrel.euclideanize(found, method="ultrametric", tol=0.1).save(f"{path}.npz")
    return path


KEPT_BY_MALLOC = 2 * 2**20
"""Between arrays, in the arenas of two to four threads: it differs from run to run by as much, whatever the matrix."""


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("cluster", marks=pytest.mark.guarantee),
        *("auto", "spectrum", "euclideanize", "export", "lsmat", "validity", "outliers", "linkage"),
        *("linkage past memory", "permutations", "embed", "align"),
    ],
)
def test_no_more_memory_than_predicted(tmp_path, large, what):
    predicted, peak = measured(ACTIONS, large, tmp_path, what)
    assert peak <= predicted + KEPT_BY_MALLOC


IMPORT = """
from dasrel.io import importing; from dasrel.util import parallel; from dasrel.util import limits

said, original = {}, parallel.run

def run(*args, **options):
    said["task"] = options["task_memory"]
    said["threads"] = limits.threads_that_fit(options["task_memory"], options["memory"], "import")
    with peak_memory() as said["peak"]:
        return original(*args, **options)

parallel.run = run
importing.import_matrix(sys.argv[1], sys.argv[2], kind="distance")
print(said["task"] * said["threads"], said["peak"][0])
"""


def test_memory_stays_below_what_was_predicted(tmp_path):
    """8192 objects in float64: 512 MiB of source; the tasks' predicted memory against what the kernel says."""
    n = 8192
    x = np.random.default_rng(0).random(n)
    square = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.float64, shape=(n, n))
    for k in range(0, n, 512):
        square[k : k + 512] = np.abs(x[k : k + 512, None] - x)
    del square
    predicted, used = measured(IMPORT, tmp_path / "a.npy", tmp_path / "s.zarr")
    assert 0 < used < predicted < 1 << 30
