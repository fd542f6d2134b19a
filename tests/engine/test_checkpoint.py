"""Stopped or killed, then resumed: the same bits, or a refusal that says why."""

import dataclasses
import os
import resource
import zipfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import dasrel
from dasrel import watch
from dasrel.cmeans.bundle import split_by_memory
from dasrel.cmeans.fit import cluster
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError, Stopped, StoreError
from dasrel.estimators.cmeans import FuzzyCMeans
from dasrel.geometry import gamma_search
from dasrel.geometry.euclidean import euclideanize, spectrum
from dasrel.kernels import native
from dasrel.names import METHODS
from dasrel.store.matrix import open_matrix
from dasrel.store.options import Writing
from dasrel.util import limits
from dasrel.util.archives import read_state, write_state
from tests.helpers.faults import Killed, killed_after, quiet, stopped_after
from tests.helpers.matrices import grouped_points, memberships, squared
from tests.helpers.runs import Run, grid
from tests.helpers.stores import bits, stored

# Runs are short here; that they do not converge is not the point.
pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")


def pieces(work, checkpoint, cut, *, cuts):
    """`work(checkpoint)` in as many processes as needed, each cut after so many scans; what it ends with."""
    for scans in cuts:
        try:
            with cut(scans):
                return quiet(work, checkpoint)
        except (Killed, Stopped):
            checkpoint = dataclasses.replace(checkpoint, resume=True)
    return quiet(work, checkpoint)


FEW = {"max_iter": 9}
BUNDLES = {
    "fcm1": grid("fcm1", [2, 3], n_init=2, fuzzifier=[1.5, 2], max_iter=14),
    "fcm2": grid("fcm2", 3, n_init=3, **FEW),
    "pcm1": grid("pcm1", 3, n_init=2, eta=["mean", "overall"], **FEW),
    "pcm2": grid("pcm2", [2, 3], n_init=2, eta="cut", eta_refit=True, **FEW),
    "hard": grid("hard", [3, 12], n_init=2, init=["random", "rows", "k-means++"]),
    "accelerated": grid("fcm1", 3, n_init=2, fuzzifier=[1.3, 3], accelerate=True, tol=1e-9, max_iter=24),
    "given": [
        Run("fcm1", 3, init=memberships(90), stop="weights", norm=2, **FEW),
        Run("pcm1", 3, init=memberships(90), **FEW),
        Run("fcm2", 3, entropy_weight=0.3, **FEW),
    ],
    "history": grid(["fcm1", "hard"], 3, n_init=2, history=True, accelerate=True, tol=1e-9, max_iter=20),
    "steady": grid("hard", 6, n_init=4, tol=0.05),
    "race": grid("fcm2", 3, n_init=8, entropy_weight=2.0, tol=1e-9, race=True),
    "mixed": [*grid(["fcm1", "fcm2", "hard"], 3, n_init=2, **FEW), *grid("pcm2", 2, **FEW)],
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", BUNDLES)
def test_a_clustering_that_was_killed_ends_with_the_same_bits(tmp_path, grouped_store, name):
    runs = BUNDLES[name]
    whole = quiet(cluster, grouped_store, runs, keep_all=name == "mixed")

    def work(checkpoint):
        return cluster(grouped_store, runs, keep_all=name == "mixed", checkpoint=checkpoint)

    for scans in (2, whole.scans // 2, whole.scans - 1):
        parts = pieces(work, Checkpoint(tmp_path / str(scans)), killed_after, cuts=[scans])
        assert bits(parts) == bits(whole), scans
    often = pieces(work, Checkpoint(tmp_path / "often", every=2), stopped_after, cuts=[2] * whole.scans)
    assert bits(often) == bits(whole)


def test_the_bundles_meet_what_they_are_there_for(grouped_store, crooked_store):
    """Else the test above would show less than it says."""
    hard, auto = (quiet(cluster, grouped_store, BUNDLES[name]) for name in ("hard", "fcm2"))
    assert sum(run.reseeded for run in hard.runs) > 0
    assert auto.first_scans >= 2
    healed = quiet(cluster, crooked_store, HEALED)
    assert all(run.negative_distances > 0 and run.beta > 0 for run in healed.runs[:4])
    assert sum(run.rejected for run in healed.runs) > 0


HEALED = [
    *grid(["fcm1", "pcm1"], 3, n_init=2, on_negative="heal", max_iter=9),
    Run("fcm2", 5, entropy_weight=0.1, on_negative="heal", accelerate=True, max_iter=60, tol=1e-10),
]


@pytest.mark.slow
def test_healed_and_accelerated_runs_go_on_in_the_midst_of_it(tmp_path, crooked_store):
    whole = quiet(cluster, crooked_store, HEALED)

    def work(checkpoint):
        return cluster(crooked_store, HEALED, checkpoint=checkpoint)

    every_scan = pieces(work, Checkpoint(tmp_path), killed_after, cuts=[1] * whole.scans)
    assert bits(every_scan) == bits(whole)


@pytest.mark.slow
def test_several_bundles(tmp_path, grouped_store):
    runs = grid("fcm1", 3, n_init=4, max_iter=5)
    relation = dasrel.relation(grouped_store)
    memory = next(m for m in range(100_000, 10**7, 5_000) if _bundles(relation, runs, m) == 2)
    whole = quiet(cluster, grouped_store, runs, memory=memory)
    assert whole.bundles == 2

    def work(checkpoint):
        return cluster(grouped_store, runs, memory=memory, checkpoint=checkpoint)

    for scans in (2, 5, 6, 8):
        folder = tmp_path / str(scans)
        assert bits(pieces(work, Checkpoint(folder), killed_after, cuts=[scans])) == bits(whole)
        # With more memory the bundles stay as they were begun; with less they cannot.
        with pytest.raises(Killed), killed_after(2):
            quiet(cluster, grouped_store, runs, memory=memory, checkpoint=Checkpoint(folder, force=True))
        wider = quiet(cluster, grouped_store, runs, checkpoint=Checkpoint(folder, resume=True))
        assert bits(wider) == bits(whole)
    with pytest.raises(Killed), killed_after(2):
        cluster(grouped_store, grid("fcm1", 3, n_init=4, max_iter=5, tol=0.0), checkpoint=Checkpoint(tmp_path / "wide"))
    with pytest.raises(MemoryLimitError, match="the checkpoint has 1 bundle"):
        quiet(cluster, grouped_store, grid("fcm1", 3, n_init=4, max_iter=5, tol=0.0), memory=memory,
              checkpoint=Checkpoint(tmp_path / "wide", resume=True))  # fmt: skip


def _bundles(relation, runs, memory):
    try:
        return len(split_by_memory(relation, runs, memory=memory)[0])
    except MemoryLimitError:
        return 0


def test_no_more_scans_are_repeated_than_stated(tmp_path, grouped_store):
    runs = grid("fcm1", 3, max_iter=12, tol=0.0)
    for every, cut in ((1, 5), (3, 7), (5, 4)):
        checkpoint = Checkpoint(tmp_path / str(every), every=every)
        with pytest.raises(Killed), killed_after(cut):
            cluster(grouped_store, runs, checkpoint=checkpoint)
        kept = cut // every * every
        with watch() as counted:
            again = quiet(cluster, grouped_store, runs, checkpoint=dataclasses.replace(checkpoint, resume=True))
        assert counted.scans == 12 - kept
        assert again.scans == 12
    assert [file.name for file in Checkpoint(tmp_path / "1").files("cluster")] == [
        "cluster-00000011.npz", "cluster-00000010.npz",
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------- spectra and their like


def test_a_spectrum_goes_on(tmp_path, grouped_store):
    D = squared(80) + np.triu(np.random.default_rng(1).uniform(0, 9, (80, 80)), 1)
    D = np.triu(D, 1) + np.triu(D, 1).T
    whole = quiet(spectrum, D, kind="squared-distance", block=2, tol=1e-6)
    assert whole.scans > 8

    def work(checkpoint):
        return spectrum(D, kind="squared-distance", block=2, tol=1e-6, checkpoint=checkpoint)

    for scans in (1, 4, whole.scans - 1):
        assert pieces(work, Checkpoint(tmp_path / str(scans)), killed_after, cuts=[scans]) == whole
    assert pieces(work, Checkpoint(tmp_path / "all"), stopped_after, cuts=[1] * whole.scans) == whole


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("method", METHODS)
def test_a_euclideanisation_goes_on(tmp_path, crooked_store, method):
    whole = quiet(euclideanize, crooked_store, method=method)

    def work(checkpoint):
        return euclideanize(crooked_store, method=method, checkpoint=checkpoint)

    def same(found):
        assert bits(found) == bits(whole)
        assert found.relation.view == whole.relation.view
        assert (found.relation.beta, len(found.relation.terms)) == (whole.relation.beta, len(whole.relation.terms))
        terms = [[bits(term) for _, term in one.relation.terms] for one in (found, whole)]
        assert terms[0] == terms[1]

    for scans in {1, 2, whole.scans // 2, whole.scans - 1}:
        same(pieces(work, Checkpoint(tmp_path / str(scans)), killed_after, cuts=[scans]))
    step = 1 if whole.scans < 10 else 5
    same(pieces(work, Checkpoint(tmp_path / "often", every=2), stopped_after, cuts=[step] * whole.scans))
    # What has ended can be read again at no cost.
    with watch() as counted:
        same(work(Checkpoint(tmp_path / "often", resume=True)))
    assert counted.scans == 0


def test_a_parameter_given_duplicates_and_a_floor(tmp_path):
    X = grouped_points(60)
    X[7], X[30] = X[6], X[31]
    D = cdist(X, X, "sqeuclidean") ** 2 / 100
    D[3, 4] = D[4, 3] = 1e-12
    how = {"method": "power", "alpha": 0.08, "floor_zeros": 0.01, "kind": "squared-distance"}
    whole = quiet(euclideanize, D, **how)
    for scans in range(1, whole.scans, 3):
        found = pieces(lambda kept: euclideanize(D, checkpoint=kept, **how), Checkpoint(tmp_path / str(scans)),
                       killed_after, cuts=[scans])  # fmt: skip
        assert bits(found) == bits(whole)
    D[3, 4] = D[4, 3] = 1.0
    how = {"method": "ultrametric", "kind": "squared-distance"}
    whole = quiet(euclideanize, D, **how)
    assert whole.merged == 2
    for scans in (1, 2, 3):
        found = pieces(lambda kept: euclideanize(D, checkpoint=kept, **how), Checkpoint(tmp_path / f"u{scans}"),
                       killed_after, cuts=[scans])  # fmt: skip
        assert bits(found) == bits(whole)


def test_a_parameter_that_is_refused_is_refused_after_a_stop_too(tmp_path, crooked_store):
    def message(checkpoint):
        with pytest.raises(InputError, match=r"not Euclidean at alpha 0\.95") as reported:
            euclideanize(crooked_store, method="power", alpha=0.95, checkpoint=checkpoint)
        return str(reported.value)

    whole = message(None)
    for scans in (4, 9):
        folder = tmp_path / str(scans)
        with pytest.raises(Killed), killed_after(scans):
            euclideanize(crooked_store, method="power", alpha=0.95, checkpoint=Checkpoint(folder))
        assert message(Checkpoint(folder, resume=True)) == whole


def test_a_parameter_that_proves_wrong_is_chosen_again(tmp_path, crooked_store, monkeypatch):
    found_first = gamma_search._Parameter._search_boundary
    phases = []

    def too_far(self, ends, vectors, scans, phase):
        found_first(self, ends, vectors, scans, phase)
        phases.append(phase)
        self.alpha *= 1.5 if phase == "alpha 0" else 1.0

    def work(checkpoint):
        return euclideanize(crooked_store, method="power", checkpoint=checkpoint)

    monkeypatch.setattr(gamma_search._Parameter, "_search_boundary", too_far)
    whole = quiet(work, None)
    assert phases == ["alpha 0", "alpha 1"]
    found = pieces(work, Checkpoint(tmp_path), killed_after, cuts=[9] * whole.scans)
    assert bits(found) == bits(whole)


def test_an_estimator_goes_on_in_both_of_its_phases(tmp_path, crooked_store):
    def fitted(checkpoint):
        return FuzzyCMeans(
            3, n_init=2, max_iter=8, random_state=0, euclideanize="ultrametric", checkpoint=checkpoint
        ).fit(open_matrix(crooked_store))

    whole = quiet(fitted, None)
    before = whole.euclideanized_.scans
    for scans in (2, before, before + 3):
        found = pieces(fitted, Checkpoint(tmp_path / str(scans)), killed_after, cuts=[scans])
        assert (found.memberships_ == whole.memberships_).all()
        assert found.runs_ == whole.runs_
        assert (found.n_scans_, found.euclideanized_.report()) == (whole.n_scans_, whole.euclideanized_.report())


# ------------------------------------------------------------------------------------------------------- what is kept


def test_a_state_comes_back_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    state = {
        "numbers": [0.1, -0.0, float("inf"), float("-inf"), 5e-324, 1 / 3, 2**70, True, None, "word"],
        "small": rng.normal(size=(3, 4)),
        "turned": np.asfortranarray(rng.normal(size=(70, 300))),
        "large": rng.normal(size=(1, 40, 300)),
        "whole": np.arange(5, dtype=np.uint64) * 2**62,
        "truth": rng.normal(size=9) > 0,
        "nothing": np.empty((0, 7)),
        "inside": [{"a": rng.normal(size=2)}, []],
    }
    size = write_state(tmp_path / "s.npz", state)
    assert size == (tmp_path / "s.npz").stat().st_size
    assert [file.name for file in tmp_path.iterdir()] == ["s.npz"]
    found = read_state(tmp_path / "s.npz")
    assert found["numbers"] == state["numbers"]
    assert str(found["numbers"][1]) == "-0.0"
    for name in ("small", "turned", "large", "whole", "truth", "nothing"):
        assert bits(found[name]) == bits(state[name])
        assert found[name].flags.f_contiguous == state[name].flags.f_contiguous
        assert found[name].flags.writeable
    assert (found["inside"][0]["a"] == state["inside"][0]["a"]).all()
    with zipfile.ZipFile(tmp_path / "s.npz") as file:
        members = {name: file.read(name) for name in file.namelist()}
    assert all(data.startswith(b"\x93NUMPY") for data in members.values())
    assert not any(b"|O" in data[:200] for data in members.values())
    with pytest.raises(TypeError, match="are not kept"):
        write_state(tmp_path / "o.npz", {"a": np.array([None, "x"], dtype=object)})


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "pickled", "other"])
def test_a_newest_checkpoint_that_is_damaged_gives_way_to_the_one_before(tmp_path, grouped_store, harm):
    runs = grid("fcm1", 3, max_iter=8, tol=0.0)
    whole = quiet(cluster, grouped_store, runs)
    with pytest.raises(Killed), killed_after(5):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path))
    newest, before = Checkpoint(tmp_path).files("cluster")
    data = bytearray(newest.read_bytes())
    if harm == "cut":
        newest.write_bytes(data[: len(data) // 2])
    elif harm == "flipped":
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
    elif harm == "empty":
        newest.write_bytes(b"")
    elif harm == "pickled":
        np.savez(newest, about=np.array([{"a": 1}], dtype=object), checksum=np.array(1))
    else:
        np.savez(newest, x=np.zeros(3))
    with (
        pytest.warns(DasrelWarning, match=rf"{newest.name} cannot be read .*resuming from {before.name}"),
        watch() as c,
    ):
        again = cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, resume=True))
    assert bits(again)["partitions"] == bits(whole)["partitions"]
    assert (again.scans, c.scans) == (8, 4)
    for file in Checkpoint(tmp_path).files("cluster"):
        file.write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"cannot be read .*, nor any other"):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, resume=True))


def test_a_checkpoint_of_something_else_is_refused_with_both_values(tmp_path, grouped_store, crooked_store):
    runs = grid("fcm1", 3, n_init=2, max_iter=8, tol=0.0)
    with pytest.raises(Killed), killed_after(2):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path))
    go_on = Checkpoint(tmp_path, resume=True)

    def refused(pattern, matrix=grouped_store, these=runs, **more):
        with pytest.raises(StoreError, match=pattern):
            cluster(matrix, these, checkpoint=go_on, **more)

    refused(r"relation matrix tiles is [0-9a-f]{16} there and [0-9a-f]{16} here", crooked_store)
    refused("run 0 max_iter is 8 there and 9 here", these=grid("fcm1", 3, n_init=2, max_iter=9, tol=0.0))
    refused("run 1 fuzzifier is 2.0 there and 3.0 here", these=[runs[0], dataclasses.replace(runs[1], fuzzifier=3.0)])
    refused("run 1 rule is fcm1 there and not given here", these=runs[:1])
    refused("run 0 init is random there and memberships [0-9a-f]+ here", these=[Run("fcm1", 3, init=memberships(90))])
    refused("keep_all is False there and True here", keep_all=True)
    refused("relation spread is 0.0 there and 2.0 here", dasrel.relation(grouped_store).spread(2.0))
    refused("relation matrix tile is 32 there and 96 here", squared(90), kind="squared-distance")
    other = tmp_path / "renamed.zarr"
    dasrel.import_matrix(squared(90), other, kind="squared-distance", writing=Writing("float64", tile=32),
                         reading=dasrel.Reading(ids=[f"x{k}" for k in range(90)]))  # fmt: skip
    refused(r"relation matrix ids is [0-9a-f]{16} there and [0-9a-f]{16} here", other)
    newest = go_on.files("cluster")[0]
    state = read_state(newest)
    for name, value, reported in (
        ("format", 9, "format is 9 there and 1 h"),
        ("kernels", "avx9-1", f"kernels is avx9-1 there and {native.signature()} here"),
    ):
        write_state(newest, {**state, "about": {**state["about"], name: value}})
        refused(reported)
    with pytest.raises(Killed), killed_after(1):
        spectrum(grouped_store, block=1, checkpoint=Checkpoint(tmp_path))
    with pytest.raises(StoreError, match=r"tol is 0\.001 there and 0\.01 here"):
        spectrum(grouped_store, block=1, tol=0.01, checkpoint=go_on)
    with pytest.raises(Killed), killed_after(3):
        euclideanize(crooked_store, checkpoint=Checkpoint(tmp_path))
    with pytest.raises(StoreError, match="method is ultrametric there and spread here"):
        euclideanize(crooked_store, method="spread", checkpoint=go_on)


def test_a_moved_store_and_more_memory_are_no_other_run(tmp_path, grouped_store):
    runs = grid("fcm1", 3, max_iter=6, tol=0.0)
    with pytest.raises(Killed), killed_after(2):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path / "c"))
    stored(tmp_path / "elsewhere.zarr", squared(90), "squared-distance", dtype="float64", tile=32)
    again = cluster(
        tmp_path / "elsewhere.zarr", runs, memory="1GiB", checkpoint=Checkpoint(tmp_path / "c", resume=True)
    )
    assert again.scans == 6


def test_nothing_is_overwritten_in_silence(tmp_path, grouped_store):
    runs = grid("fcm1", 3, max_iter=8, tol=0.0)
    with pytest.raises(Killed), killed_after(4):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path))
    kept = [file.name for file in Checkpoint(tmp_path).files("cluster")]
    with (
        watch() as counted,
        pytest.raises(StoreError, match=r"holds a checkpoint \(cluster-00000004\.npz\); say resume=True"),
    ):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path))
    assert counted.scans == 0
    with pytest.raises(Killed), killed_after(0):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, force=True))
    assert [file.name for file in Checkpoint(tmp_path).files("cluster")] == kept  # until there is a new one
    with pytest.raises(Killed), killed_after(1):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, force=True))
    assert [file.name for file in Checkpoint(tmp_path).files("cluster")] == ["cluster-00000001.npz"]
    Checkpoint(tmp_path).clear("cluster")
    assert not tmp_path.exists()


def test_resume_where_there_is_nothing_yet(tmp_path, grouped_store):
    runs = grid("fcm1", 3, max_iter=4, tol=0.0)
    with pytest.warns(DasrelWarning, match=r"no checkpoint of cluster in .* yet: from the beginning"):
        found = cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path / "new", resume=True))
    assert found.scans == 4


def test_folders_that_cannot_be_used_are_refused_before_the_first_scan(tmp_path, grouped_store):
    runs = grid("fcm1", 3)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", "/proc/nothing", tmp_path / "file" / "inside"):
        with watch() as counted, pytest.raises(StoreError, match="checkpoints cannot be written to"):
            cluster(grouped_store, runs, checkpoint=Checkpoint(folder))
        assert counted.scans == 0
    for every in (0, 1.5, True):
        with pytest.raises(InputError, match="give a whole number of scans"):
            Checkpoint(tmp_path, every=every)
    with pytest.raises(InputError, match="'soon' is no duration"):
        Checkpoint(tmp_path, time_limit="soon")
    with pytest.raises(InputError, match="a folder of this machine, not to 's3://bucket/kept'"):
        Checkpoint("s3://bucket/kept")


def test_two_at_once_do_not_share_a_folder(tmp_path, grouped_store):
    runs = grid("fcm1", 3, max_iter=4, tol=0.0)
    seen = []

    def meanwhile(progress):
        if progress.scans == 2 and not seen:
            seen.append(1)
            with pytest.raises(StoreError, match=f"is in use by process {os.getpid()}"):
                cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, resume=True))

    with watch(meanwhile):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path))
    assert seen


@contextmanager
def full_disk():
    """No file grows beyond 1000 bytes: the system's own refusal, after a part was written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_does_not_end_the_work_but_a_stop_says_so(tmp_path, grouped_store):
    runs = grid("fcm1", 3, max_iter=5, tol=0.0)
    whole = cluster(grouped_store, runs)
    fault = r"could not be written: .*the work continues, nothing is kept yet"
    with pytest.warns(DasrelWarning, match=fault) as reported, full_disk():
        found = cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path / "a"))
    assert sum("could not be written" in str(one.message) for one in reported) == 4
    assert bits(found) == bits(whole)
    assert list((tmp_path / "a").iterdir()) == []

    with pytest.raises(Killed), killed_after(2):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path / "b"))
    fault = r"stopped by SIGTERM, but the state .* the last one is .*cluster-00000002\.npz"
    with pytest.raises(StoreError, match=fault), stopped_after(1), full_disk():
        quiet(cluster, grouped_store, runs, checkpoint=Checkpoint(tmp_path / "b", resume=True))
    assert bits(quiet(cluster, grouped_store, runs, checkpoint=Checkpoint(tmp_path / "b", resume=True))) == bits(whole)


# ----------------------------------------------------------------------------------------------------------- stopping


def test_a_time_limit_stops_before_the_scan_that_would_end_too_late(tmp_path, grouped_store, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now)
    monkeypatch.setattr(limits, "time", fake)
    monkeypatch.setattr("dasrel.engine.checkpoint.time", fake)
    runs = grid("fcm1", 3, max_iter=20, tol=0.0)

    def seconds_a_scan(progress):
        if progress.tiles == 0:
            clock.now += 10 if progress.scans != 2 else 12

    with (
        watch(seconds_a_scan),
        pytest.raises(Stopped, match="stopped by the time limit of 53 s after 4 scans") as reported,
    ):
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, every=100, time_limit=53))
    assert (reported.value.scans, Path(reported.value.checkpoint).name) == (
        4,
        "cluster-00000004.npz",
    )  # 10 + 12 + 10 + 10 + 12
    with watch(seconds_a_scan), pytest.raises(Stopped, match="after 5 scans"):  # one in any case
        cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, resume=True, time_limit="1s"))
    assert bits(cluster(grouped_store, runs, checkpoint=Checkpoint(tmp_path, resume=True))) == bits(
        cluster(grouped_store, runs)
    )
