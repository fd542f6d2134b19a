"""What is foretold comes true: plans and dry runs against real runs, and neither writes anything."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import squareform
from zarr.storage import MemoryStore

import dasrel
from dasrel import watch
from dasrel.cli.app import run
from dasrel.cmeans.fit import prepare_clustering
from dasrel.cmeans.plan import expected_scans, measure, plan_clustering
from dasrel.engine.relation import relation
from dasrel.engine.worker_cache import PINNED_SHARE
from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.geometry.euclidean import euclidean_scans
from dasrel.store.options import Writing
from dasrel.util import limits
from dasrel.util.limits import Range, limit_for
from tests.helpers.commands import prepared
from tests.helpers.faults import quiet
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.runs import Run, grid

N, TILE = 300, 64


@pytest.fixture(scope="module")
def matrix() -> np.ndarray:
    return distances(grouped_points(N), "chebyshev")


@pytest.fixture(scope="module")
def store(tmp_path_factory, matrix) -> Path:
    path = tmp_path_factory.mktemp("plan") / "s.zarr"
    dasrel.import_matrix(matrix, path, kind="distance", writing=Writing(tile=TILE))
    return path


def snapshot(folder: Path) -> list[tuple[str, int, int]]:
    """Everything below a folder, with sizes and times of change."""
    found = [(str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))]
    return [one for one in found if not one[0].endswith("__pycache__")]


# ------------------------------------------------------------------------------------------------------------- the plan


def test_a_matrix_and_a_cluster_that_are_not_there_are_planned_like_those_that_are(tmp_path, capfd) -> None:
    """What does not depend on speed is that of a store of as many objects; seconds follow from what was stated."""
    dasrel.import_matrix(distances(grouped_points(N)), tmp_path / "s.zarr", kind="distance")
    options = ["--rule", "fcm2", "--clusters", "3", "--init", "random", "--probe", "0.05", "--json"]
    options += ["--dask", "slurm:jobs=2,processes=2,cores=4,memory=8GB", "--bandwidth", "1MB", "--price", "3.5"]
    plans = []
    for source in (str(tmp_path / "s.zarr"), str(N)):
        assert run(["plan", source, *options]) == 0
        plans.append(json.loads(capfd.readouterr().out))
    for name in ("n_objects", "tile", "tiles", "bytes_per_scan", "memory", "task_memory", "scans", "columns"):
        assert plans[0][name] == plans[1][name], name
    (real,), (planned,) = (plan["workers"] for plan in plans)
    for name in ("workers", "threads", "worker_memory", "held", "memory_for_all", "travel_bytes"):
        assert real[name] == planned[name], name
    assert (planned["workers"], planned["threads"], plans[1]["fleet"]["memory"]) == (4, 2, 4 * 10**9)
    size = plans[1]["bytes_per_scan"]
    for row in (real, planned):
        assert row["first_scan_seconds"] >= size / 1e6
        for name, seconds in row["total_seconds"].items():
            assert row["price"][name] == pytest.approx(3.5 * 4 * seconds / 3600)
    assert plans[1]["speed"]["stated"]
    assert plans[1]["store"] is None


def test_what_of_a_plan_cannot_be_known_is_asked_for(capfd) -> None:
    wrong = {
        (): "the speed of reading a store that .* is not known; give the bandwidth of the storage, such as 2GB",
        ("--bandwidth", "fast"): "bandwidth of the storage",
        ("--dask", "slurm:jobs=2"): "memory is missing",
        ("--dask", "mpi:memory=2GB"): "the number of workers is not in it; name workers, --workers",
        ("--dask", "slurm:job=2"): "it has no setting",
    }
    for options, report in wrong.items():
        assert run(["plan", "1000", "--clusters", "3", *options]) in (1, 2)
        assert re.search(report, capfd.readouterr().err), options


def test_what_follows_from_the_store_and_the_runs(store) -> None:
    runs = grid(["fcm1", "hard"], [2, 3], n_init=4)
    plan = plan_clustering(store, runs, probe_seconds=0.05)
    assert (plan.n_objects, plan.kind, plan.dtype, plan.tile) == (N, "distance", "float32", TILE)
    assert plan.tiles == plan.tasks == 15  # five tiles a side
    assert plan.bytes_per_scan == 15 * TILE * TILE * 4
    assert (plan.runs, plan.n_settings, plan.columns, plan.bundles) == (16, 4, 2 * 4 * (2 + 3), 1)
    assert plan.scans == Range(1, 54, 300)
    assert plan.first_scan_seconds >= plan.scan_seconds > 0
    assert plan.stays_in_memory
    seconds = plan.total_seconds
    assert seconds.least <= seconds.typical <= seconds.most
    assert seconds.most == pytest.approx(plan.first_scan_seconds + 299 * plan.scan_seconds)
    json.dumps(plan.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        ("hard", {}),
        ("fcm1", {"fuzzifier": 1.5}),
        ("fcm2", {}),
        ("pcm2", {}),
        ("fcm1", {"tol": 0, "max_iter": 7}),
        ("pcm1", {"entropy_weight": 1.0, "tol": 0, "max_iter": 5}),
        ("fcm2", {"accelerate": True}),
        ("fcm1", {"max_iter": 1}),
    ],
)
@pytest.mark.filterwarnings("ignore::dasrel.errors.DasrelWarning")
def test_scans_lie_in_the_range(rule, more) -> None:
    euclidean = distances(grouped_points(120))
    runs = grid(rule, 3, n_init=3, **more)
    plan = plan_clustering(euclidean, runs, kind="distance", probe_seconds=0.02)
    found = dasrel.cluster(euclidean, runs, kind="distance")
    assert plan.scans.least <= found.scans <= plan.scans.most
    assert plan.scans.least <= plan.scans.typical <= plan.scans.most
    assert plan.first_scans.least <= found.first_scans <= plan.first_scans.most
    if more.get("tol") == 0:
        assert found.scans - found.first_scans == plan.n_iter.least == plan.n_iter.most
    assert plan.columns == max(found.columns)
    stages = 2 if rule == "pcm2" else 1  # pcm2 begins where the fcm2 run that was chosen for it has ended
    assert plan.bundles * stages == found.bundles


@pytest.mark.parametrize("given", [3, [2, 3, 4], Run("fcm1", 3, fuzzifier=2.0, init="random")])
def test_scans_are_expected_as_planned(store, given) -> None:
    job = prepare_clustering(store, given, judge=True)
    planned = plan_clustering(store, given, judge=True, probe_seconds=0.01)
    assert expected_scans(job.relation, job.runs, judge=True) == planned.scans.typical
    assert expected_scans(job.relation, job.runs, judge=True, memory=1000) == 0


def test_the_time_left_is_told_from_the_first_scan(store, tmp_path) -> None:
    seen = []
    job = prepared("cluster", str(store), tmp_path / "out", n_clusters=[3], picture=False)
    with watch(seen.append):
        quiet(job.run)
    assert seen[0].iterations is None
    assert seen[0].expected is not None
    assert seen[0].expected.now == 1


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("method", ["spread", "ultrametric", "power", "exponential", "log"])
def test_scans_for_a_euclideanisation(tmp_path, store, method) -> None:
    runs = grid("fcm1", 2, max_iter=3, tol=0)
    plan = plan_clustering(store, runs, euclideanize=method, probe_seconds=0.02)
    with watch() as counted:
        found = dasrel.euclideanize(store, method=method)
    assert plan.euclideanize_scans.least <= counted.scans <= plan.euclideanize_scans.most
    assert plan.scans == plan.n_iter + plan.euclideanize_scans
    found.save(tmp_path / "r.npz")
    for known in (tmp_path / "r.npz", str(tmp_path / "r.npz"), found):
        assert plan_clustering(store, runs, euclideanize=known, probe_seconds=0.02).scans == Range(3, 3, 3)


def test_starts_that_read_rows_are_listed(store) -> None:
    runs = [Run("fcm1", 4, init=start) for start in ("random", "rows", "k-means++")]
    assert plan_clustering(store, runs, probe_seconds=0.02).start_reads == 1 + 3
    assert plan_clustering(store, runs[:1], probe_seconds=0.02).start_reads == 0


@pytest.mark.filterwarnings("ignore::dasrel.errors.DasrelWarning")
def test_bundles_are_those_of_the_run(store) -> None:
    runs = grid("hard", 20, n_init=40, max_iter=2, tol=0)
    memory = 10_000_000
    plan = plan_clustering(store, runs, memory=memory, probe_seconds=0.02)
    found = dasrel.cluster(store, runs, memory=memory)
    assert plan.bundles == found.bundles > 1
    assert plan.columns == max(found.columns)
    assert plan.scans == Range(2 * plan.bundles, 2 * plan.bundles, 2 * plan.bundles)
    assert found.scans == 2 * plan.bundles
    assert plan.memory <= memory


def test_the_plan_refuses_what_the_run_refuses(store, tmp_path) -> None:
    one = Run("fcm1", 2)
    for runs, more, error in [
        ([], {}, InputError),
        (Run("hard", N + 1), {}, InputError),
        (Run("hard", 200), {"memory": 1_000_000}, MemoryLimitError),
        (Run("fcm2", 2), {"memory": 100_000}, MemoryLimitError),
    ]:
        with pytest.raises(error) as planned:
            plan_clustering(store, runs, probe_seconds=0.02, **more)
        with pytest.raises(error) as refused:
            dasrel.cluster(store, runs, **more)
        assert str(planned.value) == str(refused.value)
    with pytest.raises(InputError, match="euclideanize is 'magic'"):
        plan_clustering(store, one, euclideanize="magic")
    with pytest.raises(StoreError, match="no Euclideanisation at"):
        plan_clustering(store, one, euclideanize=tmp_path / "none.npz")
    with pytest.raises(StoreError, match="no store at"):
        plan_clustering(tmp_path / "none.zarr", one)
    for workers, message in [
        ({"counts": (0,)}, "at least one of each"),
        ({"memory": "much"}, "worker's memory is 'much'; give"),
        ({"count": 2}, "workers has no 'count'; there are counts, memory, threads, network"),
    ]:
        with pytest.raises(InputError, match=message):
            plan_clustering(store, one, workers=workers)


# --------------------------------------------------------------------------------------------------------------- memory

# ---------------------------------------------------------------------------------------------------- speed and workers


def test_the_probe_reads_tiles_and_changes_nothing(store) -> None:
    before = snapshot(store)
    with watch() as counted:
        speed = measure(relation(store), grid("fcm1", 3, n_init=5), 15, seconds=0.1)
    assert snapshot(store) == before
    assert counted.scans == 0
    assert speed.read > 0
    assert speed.product > 0
    assert speed.update > 0
    assert speed.cold in (True, False, None)
    assert speed.columns == 15
    assert speed.seconds < 30


def test_a_missing_tile_is_named_by_the_probe(tmp_path, matrix) -> None:
    dasrel.import_matrix(matrix, tmp_path / "s.zarr", kind="distance", writing=Writing(tile=TILE))
    (tmp_path / "s.zarr" / "values" / "c" / "0" / "1").unlink()
    with pytest.raises(StoreError, match=r"is missing: tile \(0, 1\) of "):
        plan_clustering(tmp_path / "s.zarr", Run("hard", 2))


@pytest.mark.parametrize("where", ["memory", "compressed", "array"])
def test_other_places(tmp_path, matrix, where) -> None:
    """A store that is no local folder (as on S3), one that is compressed, and an array."""
    run_one, more = Run("fcm1", 2), {}
    if where == "memory":
        source = dasrel.import_matrix(matrix, MemoryStore(), kind="distance", writing=Writing(tile=TILE))
    elif where == "compressed":
        source = tmp_path / "s.zarr"
        dasrel.import_matrix(matrix, source, kind="distance", writing=Writing(tile=TILE, compress="lz4"))
    else:
        source, more = matrix, {"kind": "distance"}
    plan = plan_clustering(source, run_one, probe_seconds=0.05, **more)
    assert plan.bytes_per_scan > 0
    assert plan.speed.read > 0
    assert plan.stays_in_memory == (where != "compressed")  # what is decoded is so at every scan
    if where == "compressed":
        assert plan.task_memory >= 2 * TILE * TILE * 4


@pytest.mark.slow
def test_a_store_on_s3(capsys, s3, matrix) -> None:
    url = "s3://matrices/plan.zarr"
    dasrel.import_matrix(matrix, url, kind="distance", writing=Writing(tile=TILE))
    before = s3.find("matrices", detail=True)
    printed = answer(capsys, "plan", url, "--rule", "hard", "--clusters", "2", "--probe", "0.1")
    assert (printed["store"], printed["tiles"], printed["stays_in_memory"]) == (url, 15, False)
    assert printed["speed"]["cold"] is None
    assert answer(capsys, "spectrum", url, "--dry-run")["n_objects"] == N
    assert s3.find("matrices", detail=True) == before


def test_more_workers_hold_more_tiles(store) -> None:
    tile_bytes = TILE * TILE * 4
    runs = Run("hard", 2)
    here = plan_clustering(store, runs, probe_seconds=0.02)
    # A part of what a worker has is for tiles, less one task: room for 4 of the 15, so 3 workers hold 12 and 4 all.
    task = here.task_memory + tile_bytes  # the tile is mapped, which is no memory of ours here, but a worker's

    def planned(counts: tuple[int, ...], memory: int) -> Any:
        workers = {"counts": counts, "memory": memory}
        return plan_clustering(store, runs, workers=workers, probe_seconds=0.02).workers

    rows = planned((1, 3, 4, 8), limit_for(int((4 * tile_bytes + task) / PINNED_SHARE) + 1))
    assert [row.held for row in rows] == [4 / 15, 12 / 15, 1, 1]
    assert all(row.fits for row in rows)
    assert rows[0].travel_bytes < rows[1].travel_bytes
    assert planned((1,), rows[0].memory_for_all)[0].held == 1
    (row,) = planned((1,), 10_000)
    assert (row.fits, row.scan_seconds, row.total_seconds) == (False, None, None)
    assert "give workers more memory" in row.trouble


# --------------------------------------------------------------------------------------------------- the command line


def answer(capsys, *words: object) -> dict:
    assert run([*map(str, words), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert isinstance(printed, dict)
    return printed


def test_plan_on_the_command_line(capsys, store) -> None:
    before = snapshot(store.parent)
    weight = ("--entropy-weight", "9", "--init", "random", "--no-accelerate")
    wanted = ("plan", store, "--rule", "fcm2", "--clusters", "2,3", "--n-init", "5", "--probe", "0.05", *weight)
    printed = answer(capsys, *wanted, "--workers", "2,64", "--worker-memory", "1GB", "--worker-threads", "2")
    assert (printed["runs"], printed["columns"], printed["tiles"]) == (10, 25, 15)
    assert [row["workers"] for row in printed["workers"]] == [2, 64]
    fleet = {"counts": [2, 64], "memory": "1GB", "threads": 2, "network": 1e9, "bandwidth": None, "price": None}
    assert printed["fleet"] == fleet
    assert printed["scans"]["most"] == 301  # the iterations, and one for validity indices
    assert run([*map(str, wanted)]) == 0
    text = capsys.readouterr().out
    assert "tiles           15, 64 objects per side, float32; 15 tasks per scan\n" in text
    assert "scans           55 or so, 2 to 301: iterations 54 or so, 1 to 300; validity indices 1\n" in text
    assert "\n16 workers      of 8.59 GB: all tiles in memory; " in text
    assert snapshot(store.parent) == before


def test_plan_wants_sensible_words(capsys, store) -> None:
    for words, report in [
        (("--rule", "fcm9", "--clusters", "2"), "'fcm9' is not one of"),
        (("--rule", "fcm1", "--clusters", "two"), "give whole numbers"),
        (("--rule", "hard", "--clusters", "2", "--fuzzifier", "2"), "fuzzifier is for fcm1 and pcm1"),
        (("--rule", "hard", "--clusters", "2", "--workers", "0"), "at least one of each"),
        (("--rule", "hard", "--clusters", "2", "--worker-memory", "much"), "such as 2GB"),
        (("--rule", "hard"), "--clusters"),
    ]:
        assert run(["plan", str(store), *words]) == 2
        assert report in capsys.readouterr().err


def test_a_dry_run_of_cluster_is_the_plan(capsys, store, tmp_path) -> None:
    wanted = ("--rule", "hard", "--clusters", "2")
    printed = answer(capsys, "cluster", store, tmp_path / "out", *wanted, "--dry-run")
    assert printed["out"] == str(tmp_path / "out")
    assert printed["dry_run"] is True
    assert printed["columns"] == 4  # two distinct runs at most continue from the sample
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    assert run(["cluster", str(store), str(tmp_path / "out"), *wanted, "--dry-run"]) == 1
    assert "exists; choose another place" in capsys.readouterr().err


@pytest.fixture
def sources(tmp_path, matrix) -> Path:
    """One matrix in many files."""
    folder = tmp_path / "sources"
    folder.mkdir()
    np.save(folder / "square.npy", matrix)
    np.save(folder / "condensed.npy", squareform(matrix, checks=False))
    np.savez(folder / "plain.npz", m=matrix)
    np.savez_compressed(folder / "packed.npz", m=matrix)
    matrix.astype("<f4").tofile(folder / "raw.bin")
    dasrel.import_matrix(matrix, folder / "s.zarr", kind="distance")
    for name, suffix in (("lsmat", "tsv"), ("phylip", "phy"), ("zarr", "zarr")):
        dasrel.export_matrix(folder / "s.zarr", folder / f"{name}.{suffix}", format=name)
    (folder / "pairs.tsv").write_text("a\tb\t1\nb\ta\t1\n")
    (folder / "m.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n% a\n3 3 1\n2 1 5\n")
    return folder


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("file", "name", "n"),
    [
        ("square.npy", "npy", N),
        ("condensed.npy", "npy", N),
        ("plain.npz", "npz", N),
        ("packed.npz", "npz", N),
        ("raw.bin", "raw", N),
        ("lsmat.tsv", "lsmat", N),
        ("phylip.phy", "phylip", N),
        ("zarr.zarr", "zarr", N),
        ("pairs.tsv", "pairs", None),
        ("m.mtx", "mtx", 3),
    ],
)
def test_dry_import(capsys, sources, tmp_path, file, name, n) -> None:
    more = ("--shape", N, "--dtype", "<f4") if name == "raw" else ()
    before = snapshot(tmp_path)
    words = ("import", sources / file, tmp_path / "new.zarr", "--kind", "distance", *more)
    printed = answer(capsys, *words, "--dry-run")
    assert snapshot(tmp_path) == before
    assert (printed["facts"]["format"], printed["n_objects"]) == (name, n)
    assert printed["memory"] > 0
    if n == N:
        done = answer(capsys, *words)
        assert done["n_objects"] == n
        facts = printed["facts"]
        assert (facts["tiles"], facts["tile"], facts["dtype"]) == (done["tiles"], done["tile"], "float32")
        assert 0.9 < printed["outputs"][0]["bytes"] / done["bytes_on_disk"] < 1.1


@pytest.mark.slow
def test_dry_import_refuses_what_an_import_refuses(capsys, sources, tmp_path) -> None:
    (tmp_path / "cut.npy").write_bytes((sources / "square.npy").read_bytes()[:-8])
    (tmp_path / "ids.txt").write_text("a\nb\n")
    for words, report in [
        ((sources / "none.npy", tmp_path / "new.zarr"), "cannot read"),
        ((tmp_path / "cut.npy", tmp_path / "new.zarr"), "is truncated"),
        ((sources / "square.npy", sources / "s.zarr"), "exists (state complete)"),
        ((sources / "square.npy", tmp_path / "new.zarr", "--memory", "1MB"), "raise --memory"),
        ((sources / "square.npy", tmp_path / "new.zarr", "--ids", tmp_path / "ids.txt"), "2 ids for 300"),
    ]:
        ends = []
        for dry in (("--dry-run",), ()):
            assert run(["import", *map(str, words), "--kind", "distance", *dry]) == 1
            ends.append(capsys.readouterr().err)
        assert report in ends[0]
        assert ends[0] == ends[1]
        assert not (tmp_path / "new.zarr").exists()


def test_dry_pairwise(capsys, tmp_path) -> None:
    np.save(tmp_path / "x.npy", grouped_points(N))
    before = snapshot(tmp_path)
    words = ("pairwise", tmp_path / "x.npy", tmp_path / "new.zarr", "--metric", "cityblock")
    printed = answer(capsys, *words, "--dry-run")
    assert snapshot(tmp_path) == before
    assert printed["n_objects"] == N
    done = answer(capsys, *words)
    assert (printed["facts"]["tiles"], printed["facts"]["tile"]) == (done["tiles"], done["tile"])
    assert 0.9 < printed["outputs"][0]["bytes"] / done["bytes_on_disk"] < 1.1
    assert run([*map(str, words), "--dry-run"]) == 1
    assert "exists (state complete)" in capsys.readouterr().err
    assert run(["pairwise", str(tmp_path / "x.npy"), str(tmp_path / "n"), "--metric", "citiblock", "--dry-run"]) == 2
    assert "cityblock" in capsys.readouterr().err


COMMANDS = {
    "spectrum": ("--picture", "a.png"),
    "euclideanize": ("--method", "ultrametric", "--out", "r.npz"),
    "tree": ("folder",),
    "image": ("i.png",),
    "export": ("o.npy", "--format", "npy"),
    "image --order eigen": ("e.png",),
    "image --order ivat": ("v.png",),
    "export --format lsmat": ("o.tsv",),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_dry_run_says_what_a_real_one_does(capsys, monkeypatch, store, tmp_path, name) -> None:
    monkeypatch.chdir(tmp_path)
    command, *more = name.split()
    words = [command, store, *COMMANDS[name], *more]
    before = snapshot(store)
    with watch() as counted:
        printed = answer(capsys, *words, "--dry-run")
    assert list(tmp_path.iterdir()) == []
    assert snapshot(store) == before
    assert (counted.scans, counted.tiles) == (0, 0)
    assert printed["bytes_per_scan"] == 15 * TILE * TILE * 4
    with watch() as counted:
        assert run([*map(str, words), "--quiet"]) == 0
    assert printed["scans"]["least"] <= counted.scans <= printed["scans"]["most"]
    for output in printed["outputs"]:
        path = Path(output["path"])
        real = sum(one.stat().st_size for one in path.rglob("*")) if path.is_dir() else path.stat().st_size
        if path.suffix != ".png":  # how well a picture packs, nobody knows
            assert 0.5 < output["bytes"] / real < 2
    ends = []
    for dry in (("--dry-run",), ()):  # what is there now is refused by both
        assert run([*map(str, words), *dry]) == 1
        ends.append(capsys.readouterr().err)
    assert "exists" in ends[0]
    assert ends[0] == ends[1]
    assert run([*map(str, words), "--force", "--dry-run", "--memory", "10kB"]) == 1  # too little for either
    assert re.search(r"needs? .* and the limit is", capsys.readouterr().err)


@pytest.mark.slow
def test_dry_predict(capsys, store, tmp_path, matrix) -> None:
    assert run(["cluster", str(store), str(tmp_path / "out"), "--rule", "hard", "--clusters", "3", "--quiet"]) == 0
    np.save(tmp_path / "rows.npy", matrix[:50])
    before = snapshot(tmp_path)
    words = ("predict", tmp_path / "out", tmp_path / "rows.npy", tmp_path / "new.csv")
    printed = answer(capsys, *words, "--dry-run")
    assert snapshot(tmp_path) == before
    assert printed["facts"]["n_clusters"] == 3
    assert run(["predict", str(tmp_path / "out"), "none.npy", str(tmp_path / "new.csv"), "--dry-run"]) == 1
    assert "no rows at none.npy" in capsys.readouterr().err


@pytest.mark.slow
def test_export_of_a_relation_on_the_command_line(capsys, store, tmp_path, matrix) -> None:
    file, out = tmp_path / "r.npz", tmp_path / "o.npy"
    assert run(["euclideanize", str(store), "--method", "spread", "--out", str(file), "--json"]) == 0
    gamma = json.loads(capsys.readouterr().out)["gamma"]
    dry = answer(capsys, "export", store, out, "--format", "npy", "--relation", file, "--dry-run")
    assert dry["facts"]["numbers"] == "squared dissimilarities, kind squared-distance"
    printed = answer(capsys, "export", store, out, "--format", "npy", "--relation", file)
    assert (printed["kind"], printed["relation"]) == ("squared-distance", str(file))
    stored = matrix.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(np.load(out), (stored**2 + gamma) * (1 - np.eye(N)), rtol=1e-6)
    assert run(["export", str(store), str(out), "--format", "npy", "--relation", "plain", "--force"]) == 0
    assert "numbers  squared dissimilarities, kind squared-distance" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(out), stored**2, rtol=1e-6)
    for relation_file in ("none.npz", str(out)):
        assert run(["export", str(store), str(tmp_path / "p"), "--format", "npy", "--relation", relation_file]) == 1
        assert "Euclideanisation" in capsys.readouterr().err


def test_a_range_adds_up() -> None:
    assert Range(1, 2, 3) + Range(10, 20, 30) == Range(11, 22, 33)
    assert euclidean_scans("spread", 5) == Range(2, 5, 6)
    assert limits.range_text(Range(2, 2, 2)) == "2"


@pytest.mark.slow
def test_dry_append(capsys, matrix, tmp_path) -> None:
    some = len(matrix) - 70
    dasrel.import_matrix(matrix[:some, :some], tmp_path / "s.zarr", kind="distance", writing=Writing(tile=TILE))
    np.save(tmp_path / "new.npy", matrix[some:])
    words = ("append", tmp_path / "s.zarr", tmp_path / "new.npy")
    before = snapshot(tmp_path)
    printed = answer(capsys, *words, "--dry-run")
    assert snapshot(tmp_path) == before
    done = answer(capsys, *words)
    assert printed["n_objects"] == done["n_objects"] == len(matrix)
    tiles = printed["facts"]["tiles_written"], printed["facts"]["tiles_grown"]
    assert tiles == (done["tiles_written"], done["tiles_grown"])
    assert printed["outputs"][0]["bytes"] == done["bytes_written"]
    ends = []
    for dry in (("--dry-run",), ()):  # the objects are there now
        assert run([*map(str, words), *dry]) == 1
        ends.append(capsys.readouterr().err)
    assert ends[0] == ends[1]
    assert run([*map(str, words), "--time-limit", "soon"]) == 2


@pytest.mark.slow
def test_a_dry_append_needs_the_memory_of_a_real_one(capsys, matrix, tmp_path) -> None:
    dasrel.import_matrix(matrix[:-5, :-5], tmp_path / "s.zarr", kind="distance", writing=Writing(tile=TILE))
    np.save(tmp_path / "new.npy", matrix[-5:])
    words = ("append", tmp_path / "s.zarr", tmp_path / "new.npy")
    before, ends = snapshot(tmp_path / "s.zarr" / "values"), []
    for dry in (("--dry-run",), ()):
        assert run([*map(str, words), "--memory", "1MB", *dry]) == 1
        ends.append(capsys.readouterr().err)
    assert "append needs" in ends[0]
    assert ends[0] == ends[1]
    assert snapshot(tmp_path / "s.zarr" / "values") == before


def test_dry_audit(capsys, store) -> None:
    with watch() as counted:
        printed = answer(capsys, "audit", store, "--verify", "--dry-run")
    assert counted.tiles == 0
    assert printed["scans"]["most"] == 1
    with watch() as counted:
        answer(capsys, "audit", store, "--verify")
    assert counted.scans == 1
