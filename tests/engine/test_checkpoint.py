"""Stopped, killed and gone on with: the same bits, or a refusal that says why."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import dasrel
from dasrel import cli, shifts, stopping, watch
from dasrel.checkpoint import Checkpoint
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError, Stopped, StoreError
from dasrel.estimators import FuzzyCMeans
from dasrel.euclidean import METHODS, euclideanize
from dasrel.picard import split_by_memory
from dasrel.results import cluster
from dasrel.runs import Run, grid
from dasrel.spectrum import spectrum
from dasrel.statefile import read_state, write_state
from dasrel.store import open_matrix
from dasrel.writer import Writing

# Runs are short here; that they do not converge is not the point.
pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")


class Killed(BaseException):
    """Stands for kill -9: nothing but what is on the disk survives it."""


@contextmanager
def killed_after(scans):
    """The scan after so many never comes to its end."""

    def look(progress):
        if progress.label == "scan" and progress.scans > scans:
            raise Killed

    with watch(look):
        yield


@contextmanager
def stopped_after(scans):
    """SIGTERM comes during the last of so many scans."""
    with stopping.limited(None) as stop:

        def look(progress):
            stop.signalled = progress.label == "scan" and progress.scans >= scans

        with watch(look):
            yield


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DasrelWarning)
        return function(*args, **kwargs)


def pieces(work, checkpoint, cut, *, cuts):
    """`work(checkpoint)` in as many processes as needed, each cut after so many scans; what it ends with."""
    for scans in cuts:
        try:
            with cut(scans):
                return quiet(work, checkpoint)
        except (Killed, Stopped):
            checkpoint = dataclasses.replace(checkpoint, resume=True)
    return quiet(work, checkpoint)


def bits(value):
    """Everything in a result, to the last bit, but for the seconds."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype == object else (value.dtype.str, value.shape, value.tobytes())
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if "seconds" not in f.name]
        return {name: bits(getattr(value, name)) for name in fields if name not in ("relation", "given")}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value.hex() if isinstance(value, float) else str(value) if isinstance(value, Run) else value


def points(n=90, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3)) + 4.0 * np.eye(3)[np.arange(n) % 3]


def squared(n=90):
    return cdist(points(n), points(n), "sqeuclidean")


def made(path, D, **writing):
    return dasrel.import_matrix(D, path, kind="squared-distance", writing=Writing("float64", tile=32, **writing))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Squared distances between 90 points."""
    path = tmp_path_factory.mktemp("stores") / "plain.zarr"
    made(path, squared())
    return path


@pytest.fixture(scope="module")
def crooked(tmp_path_factory):
    """Distances to the fourth power, which are far from Euclidean."""
    path = tmp_path_factory.mktemp("stores") / "crooked.zarr"
    made(path, squared() ** 2 / 100)
    return path


def start(n=90, c=3):
    U = np.random.default_rng(3).uniform(0.01, 1, size=(n, c))
    return U / U.sum(axis=1, keepdims=True)


FEW = {"max_iter": 9}
BUNDLES = {
    "fcm1": grid("fcm1", [2, 3], n_init=2, fuzzifier=[1.5, 2], max_iter=14),
    "fcm2": grid("fcm2", 3, n_init=3, **FEW),
    "pcm1": grid("pcm1", 3, n_init=2, eta=["mean", "overall"], **FEW),
    "pcm2": grid("pcm2", [2, 3], n_init=2, eta="cut", eta_refit=True, **FEW),
    "hard": grid("hard", [3, 12], n_init=2, start=["random", "rows", "k-means++"]),
    "accelerated": grid("fcm1", 3, n_init=2, fuzzifier=[1.3, 3], accelerate=True, tol=1e-9, max_iter=24),
    "given": [
        Run("fcm1", 3, start=start(), stop="weights", norm=2, **FEW),
        Run("pcm1", 3, start=start(), **FEW),
        Run("fcm2", 3, entropy_weight=0.3, **FEW),
    ],
    "mixed": [*grid(["fcm1", "fcm2", "hard"], 3, n_init=2, **FEW), *grid("pcm2", 2, **FEW)],
}


@pytest.mark.parametrize("name", BUNDLES)
def test_a_clustering_that_was_killed_ends_with_the_same_bits(tmp_path, store, name):
    runs = BUNDLES[name]
    whole = quiet(cluster, store, runs, keep_all=name == "mixed")

    def work(checkpoint):
        return cluster(store, runs, keep_all=name == "mixed", checkpoint=checkpoint)

    for scans in (2, whole.scans // 2, whole.scans - 1):
        parts = pieces(work, Checkpoint(tmp_path / str(scans)), killed_after, cuts=[scans])
        assert bits(parts) == bits(whole), scans
    often = pieces(work, Checkpoint(tmp_path / "often", every=2), stopped_after, cuts=[2] * whole.scans)
    assert bits(often) == bits(whole)


def test_the_bundles_meet_what_they_are_there_for(store, crooked):
    """Else the test above would show less than it says."""
    hard, auto = (quiet(cluster, store, BUNDLES[name]) for name in ("hard", "fcm2"))
    assert sum(run.reseeded for run in hard.runs) > 0
    assert auto.first_scans >= 2
    healed = quiet(cluster, crooked, HEALED)
    assert all(run.negatives > 0 and run.beta > 0 for run in healed.runs[:4])
    assert sum(run.rejected for run in healed.runs) > 0


HEALED = [
    *grid(["fcm1", "pcm1"], 3, n_init=2, on_negative="heal", max_iter=9),
    Run("fcm2", 5, entropy_weight=0.1, on_negative="heal", accelerate=True, max_iter=60, tol=1e-10),
]


def test_healed_and_accelerated_runs_go_on_in_the_midst_of_it(tmp_path, crooked):
    whole = quiet(cluster, crooked, HEALED)

    def work(checkpoint):
        return cluster(crooked, HEALED, checkpoint=checkpoint)

    every_scan = pieces(work, Checkpoint(tmp_path), killed_after, cuts=[1] * whole.scans)
    assert bits(every_scan) == bits(whole)


def test_several_bundles(tmp_path, store):
    runs = grid("fcm1", 3, n_init=4, max_iter=5)
    relation = dasrel.relation(store)
    memory = next(m for m in range(100_000, 10**7, 5_000) if _bundles(relation, runs, m) == 2)
    whole = quiet(cluster, store, runs, memory=memory)
    assert whole.bundles == 2

    def work(checkpoint):
        return cluster(store, runs, memory=memory, checkpoint=checkpoint)

    for scans in (2, 5, 6, 8):
        folder = tmp_path / str(scans)
        assert bits(pieces(work, Checkpoint(folder), killed_after, cuts=[scans])) == bits(whole)
        # With more memory the bundles stay as they were begun; with less they cannot.
        with pytest.raises(Killed), killed_after(2):
            quiet(cluster, store, runs, memory=memory, checkpoint=Checkpoint(folder, force=True))
        wider = quiet(cluster, store, runs, checkpoint=Checkpoint(folder, resume=True))
        assert bits(wider) == bits(whole)
    with pytest.raises(Killed), killed_after(2):
        cluster(store, grid("fcm1", 3, n_init=4, max_iter=5, tol=0.0), checkpoint=Checkpoint(tmp_path / "wide"))
    with pytest.raises(MemoryLimitError, match="the checkpoint has 1 bundles"):
        quiet(cluster, store, grid("fcm1", 3, n_init=4, max_iter=5, tol=0.0), memory=memory,
              checkpoint=Checkpoint(tmp_path / "wide", resume=True))  # fmt: skip


def _bundles(relation, runs, memory):
    try:
        return len(split_by_memory(relation, runs, memory=memory)[0])
    except MemoryLimitError:
        return 0


def test_no_more_scans_are_repeated_than_was_said(tmp_path, store):
    runs = grid("fcm1", 3, max_iter=12, tol=0.0)
    for every, cut in ((1, 5), (3, 7), (5, 4)):
        checkpoint = Checkpoint(tmp_path / str(every), every=every)
        with pytest.raises(Killed), killed_after(cut):
            cluster(store, runs, checkpoint=checkpoint)
        kept = cut // every * every
        with watch() as counted:
            again = quiet(cluster, store, runs, checkpoint=dataclasses.replace(checkpoint, resume=True))
        assert counted.scans == 12 - kept
        assert again.scans == 12
    assert [file.name for file in Checkpoint(tmp_path / "1").files("cluster")] == [
        "cluster-00000011.npz", "cluster-00000010.npz",
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------- spectra and their like


def test_a_spectrum_goes_on(tmp_path, store):
    D = squared(80) + np.triu(np.random.default_rng(1).uniform(0, 9, (80, 80)), 1)
    D = np.triu(D, 1) + np.triu(D, 1).T
    whole = quiet(spectrum, D, kind="squared-distance", block=2, tol=1e-6)
    assert whole.scans > 8

    def work(checkpoint):
        return spectrum(D, kind="squared-distance", block=2, tol=1e-6, checkpoint=checkpoint)

    for scans in (1, 4, whole.scans - 1):
        assert pieces(work, Checkpoint(tmp_path / str(scans)), killed_after, cuts=[scans]) == whole
    assert pieces(work, Checkpoint(tmp_path / "all"), stopped_after, cuts=[1] * whole.scans) == whole


@pytest.mark.parametrize("method", METHODS)
def test_a_euclideanisation_goes_on(tmp_path, crooked, method):
    whole = quiet(euclideanize, crooked, method=method)

    def work(checkpoint):
        return euclideanize(crooked, method=method, checkpoint=checkpoint)

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
    # What has ended is there for whoever needs it next, for nothing.
    with watch() as counted:
        same(work(Checkpoint(tmp_path / "often", resume=True)))
    assert counted.scans == 0


def test_a_parameter_given_duplicates_and_a_floor(tmp_path):
    X = points(60)
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


def test_a_parameter_that_is_refused_is_refused_after_a_stop_too(tmp_path, crooked):
    def message(checkpoint):
        with pytest.raises(InputError, match=r"not Euclidean at alpha 0\.95") as told:
            euclideanize(crooked, method="power", alpha=0.95, checkpoint=checkpoint)
        return str(told.value)

    whole = message(None)
    for scans in (4, 9):
        folder = tmp_path / str(scans)
        with pytest.raises(Killed), killed_after(scans):
            euclideanize(crooked, method="power", alpha=0.95, checkpoint=Checkpoint(folder))
        assert message(Checkpoint(folder, resume=True)) == whole


def test_a_parameter_that_proves_wrong_is_chosen_again(tmp_path, crooked, monkeypatch):
    found_first = shifts._Parameter._search
    phases = []

    def too_far(self, ends, vectors, scans, phase):
        found_first(self, ends, vectors, scans, phase)
        phases.append(phase)
        self.alpha *= 1.5 if phase == "alpha 0" else 1.0

    def work(checkpoint):
        return euclideanize(crooked, method="power", checkpoint=checkpoint)

    monkeypatch.setattr(shifts._Parameter, "_search", too_far)
    whole = quiet(work, None)
    assert phases == ["alpha 0", "alpha 1"]
    found = pieces(work, Checkpoint(tmp_path), killed_after, cuts=[9] * whole.scans)
    assert bits(found) == bits(whole)


def test_an_estimator_goes_on_in_both_of_its_phases(tmp_path, crooked):
    def fitted(checkpoint):
        return FuzzyCMeans(
            3, n_init=2, max_iter=8, random_state=0, euclideanize="ultrametric", checkpoint=checkpoint
        ).fit(open_matrix(crooked))

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
def test_a_newest_checkpoint_that_is_damaged_gives_way_to_the_one_before(tmp_path, store, harm):
    runs = grid("fcm1", 3, max_iter=8, tol=0.0)
    whole = quiet(cluster, store, runs)
    with pytest.raises(Killed), killed_after(5):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path))
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
        pytest.warns(DasrelWarning, match=rf"{newest.name} cannot be read .*going on from {before.name}"),
        watch() as c,
    ):
        again = cluster(store, runs, checkpoint=Checkpoint(tmp_path, resume=True))
    assert bits(again)["partitions"] == bits(whole)["partitions"]
    assert (again.scans, c.scans) == (8, 4)
    for file in Checkpoint(tmp_path).files("cluster"):
        file.write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"cannot be read .*, nor any other"):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path, resume=True))


def test_a_checkpoint_of_something_else_is_refused_with_both_values(tmp_path, store, crooked):
    runs = grid("fcm1", 3, n_init=2, max_iter=8, tol=0.0)
    with pytest.raises(Killed), killed_after(2):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path))
    go_on = Checkpoint(tmp_path, resume=True)

    def refused(pattern, matrix=store, these=runs, **more):
        with pytest.raises(StoreError, match=pattern):
            cluster(matrix, these, checkpoint=go_on, **more)

    refused(r"relation matrix tiles is [0-9a-f]{16} there and [0-9a-f]{16} here", crooked)
    refused("run 0 max_iter is 8 there and 9 here", these=grid("fcm1", 3, n_init=2, max_iter=9, tol=0.0))
    refused("run 1 fuzzifier is 2.0 there and 3.0 here", these=[runs[0], dataclasses.replace(runs[1], fuzzifier=3.0)])
    refused("run 1 rule is fcm1 there and not given here", these=runs[:1])
    refused("run 0 start is random there and memberships [0-9a-f]+ here", these=[Run("fcm1", 3, start=start())])
    refused("keep_all is False there and True here", keep_all=True)
    refused("relation spread is 0.0 there and 2.0 here", dasrel.relation(store).spread(2.0))
    refused("relation matrix tile is 32 there and 96 here", squared(), kind="squared-distance")
    other = tmp_path / "renamed.zarr"
    dasrel.import_matrix(squared(), other, kind="squared-distance", writing=Writing("float64", tile=32),
                         reading=dasrel.Reading(ids=[f"x{k}" for k in range(90)]))  # fmt: skip
    refused(r"relation matrix ids is [0-9a-f]{16} there and [0-9a-f]{16} here", other)
    newest = go_on.files("cluster")[0]
    state = read_state(newest)
    for name, value, told in (("dasrel", "0.0.1", "dasrel is 0.0.1 there"), ("format", 9, "format is 9 there and 1 h")):
        write_state(newest, {**state, "about": {**state["about"], name: value}})
        refused(told)
    with pytest.raises(Killed), killed_after(1):
        spectrum(store, block=1, checkpoint=Checkpoint(tmp_path))
    with pytest.raises(StoreError, match=r"tol is 0\.001 there and 0\.01 here"):
        spectrum(store, block=1, tol=0.01, checkpoint=go_on)
    with pytest.raises(Killed), killed_after(3):
        euclideanize(crooked, checkpoint=Checkpoint(tmp_path))
    with pytest.raises(StoreError, match="method is ultrametric there and spread here"):
        euclideanize(crooked, method="spread", checkpoint=go_on)


def test_a_moved_store_and_more_memory_are_no_other_run(tmp_path, store):
    runs = grid("fcm1", 3, max_iter=6, tol=0.0)
    with pytest.raises(Killed), killed_after(2):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path / "c"))
    made(tmp_path / "elsewhere.zarr", squared())
    again = cluster(
        tmp_path / "elsewhere.zarr", runs, memory="1GiB", checkpoint=Checkpoint(tmp_path / "c", resume=True)
    )
    assert again.scans == 6


def test_nothing_is_overwritten_in_silence(tmp_path, store):
    runs = grid("fcm1", 3, max_iter=8, tol=0.0)
    with pytest.raises(Killed), killed_after(4):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path))
    kept = [file.name for file in Checkpoint(tmp_path).files("cluster")]
    with (
        watch() as counted,
        pytest.raises(StoreError, match=r"holds a checkpoint \(cluster-00000004\.npz\): say resume"),
    ):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path))
    assert counted.scans == 0
    with pytest.raises(Killed), killed_after(0):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path, force=True))
    assert [file.name for file in Checkpoint(tmp_path).files("cluster")] == kept  # until there is a new one
    with pytest.raises(Killed), killed_after(1):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path, force=True))
    assert [file.name for file in Checkpoint(tmp_path).files("cluster")] == ["cluster-00000001.npz"]
    Checkpoint(tmp_path).clear("cluster")
    assert not tmp_path.exists()


def test_resume_where_there_is_nothing_yet(tmp_path, store):
    runs = grid("fcm1", 3, max_iter=4, tol=0.0)
    with pytest.warns(DasrelWarning, match=r"no checkpoint of cluster in .* yet: from the beginning"):
        found = cluster(store, runs, checkpoint=Checkpoint(tmp_path / "new", resume=True))
    assert found.scans == 4


def test_folders_that_cannot_be_used_are_refused_before_the_first_scan(tmp_path, store):
    runs = grid("fcm1", 3)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", "/proc/nothing", tmp_path / "file" / "inside"):
        with watch() as counted, pytest.raises(StoreError, match="checkpoints cannot be written to"):
            cluster(store, runs, checkpoint=Checkpoint(folder))
        assert counted.scans == 0
    for every in (0, 1.5, True):
        with pytest.raises(InputError, match="give a whole number of scans"):
            Checkpoint(tmp_path, every=every)
    with pytest.raises(InputError, match="'soon' is no duration"):
        Checkpoint(tmp_path, time_limit="soon")
    with pytest.raises(InputError, match="a folder of this machine, not to 's3://bucket/kept'"):
        Checkpoint("s3://bucket/kept")


def test_two_at_once_do_not_share_a_folder(tmp_path, store):
    runs = grid("fcm1", 3, max_iter=4, tol=0.0)
    seen = []

    def meanwhile(progress):
        if progress.scans == 2 and not seen:
            seen.append(1)
            with pytest.raises(StoreError, match=f"is in use by process {os.getpid()}"):
                cluster(store, runs, checkpoint=Checkpoint(tmp_path, resume=True))

    with watch(meanwhile):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path))
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


def test_a_full_disk_does_not_end_the_work_but_a_stop_says_so(tmp_path, store):
    runs = grid("fcm1", 3, max_iter=5, tol=0.0)
    whole = cluster(store, runs)
    fault = r"could not be written: .*the work goes on, nothing is kept yet"
    with pytest.warns(DasrelWarning, match=fault) as told, full_disk():
        found = cluster(store, runs, checkpoint=Checkpoint(tmp_path / "a"))
    assert sum("could not be written" in str(one.message) for one in told) == 4
    assert bits(found) == bits(whole)
    assert [file.name for file in (tmp_path / "a").iterdir()] == [".cluster.lock"]

    with pytest.raises(Killed), killed_after(2):
        cluster(store, runs, checkpoint=Checkpoint(tmp_path / "b"))
    fault = r"stopped by SIGTERM, but the state .* the last one is .*cluster-00000002\.npz"
    with pytest.raises(StoreError, match=fault), stopped_after(1), full_disk():
        quiet(cluster, store, runs, checkpoint=Checkpoint(tmp_path / "b", resume=True))
    assert bits(quiet(cluster, store, runs, checkpoint=Checkpoint(tmp_path / "b", resume=True))) == bits(whole)


# ----------------------------------------------------------------------------------------------------------- stopping


def test_a_time_limit_stops_before_the_scan_that_would_end_too_late(tmp_path, store, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now)
    monkeypatch.setattr(stopping, "time", fake)
    monkeypatch.setattr("dasrel.checkpoint.time", fake)
    runs = grid("fcm1", 3, max_iter=20, tol=0.0)

    def seconds_a_scan(progress):
        if progress.tiles == 0:
            clock.now += 10 if progress.scans != 2 else 12

    with watch(seconds_a_scan), pytest.raises(Stopped, match="stopped by the time limit of 53 s after 4 scans") as told:
        cluster(store, runs, checkpoint=Checkpoint(tmp_path, every=100, time_limit=53))
    assert (told.value.scans, Path(told.value.checkpoint).name) == (4, "cluster-00000004.npz")  # 10 + 12 + 10 + 10 + 12
    with watch(seconds_a_scan), pytest.raises(Stopped, match="after 5 scans"):  # one in any case
        cluster(store, runs, checkpoint=Checkpoint(tmp_path, resume=True, time_limit="1s"))
    assert bits(cluster(store, runs, checkpoint=Checkpoint(tmp_path, resume=True))) == bits(cluster(store, runs))


def test_durations():
    told = {"90s": 90, "30m": 1800, "2h": 7200, "1h30m": 5400, "00:20:00": 1200, "1-02:00:00": 93600, "1.5h": 5400}
    for text, expected in {**told, 7: 7, 0.5: 0.5}.items():
        assert stopping.seconds(text) == expected
    for text in ("", "30", "h", "1h30", "10:30", "1:70:00", "-5s", -1, float("nan"), None, True, "1h 30m"):
        with pytest.raises(InputError, match="is no duration"):
            stopping.seconds(text)


def test_limits_inside_each_other():
    with stopping.limited("1h") as outer, stopping.limited(5) as inner:
        assert outer.reason(4000) == "the time limit of 1h"
        assert inner.reason(100) == "the time limit of 5 s"
        assert inner.reason() == ""
        outer.signalled = True
        assert inner.reason() == "SIGTERM"
    assert stopping.current().reason(1e9) == ""


def test_the_listener_gives_back_who_listened_before():
    before = signal.getsignal(signal.SIGTERM)
    with stopping.listening():
        assert signal.getsignal(signal.SIGTERM) is not before
        with pytest.raises(stopping.Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    with stopping.listening() as stop, stopping.kept():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason() == "SIGTERM"


# -------------------------------------------------------------------------------------------------------- the command


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


def ran(*arguments):
    return cli.run([str(argument) for argument in arguments])


def folder(path):
    """What a folder of results holds, but for seconds and its own name."""
    said = json.loads((path / "result.json").read_text())
    said = {name: value for name, value in said.items() if "seconds" not in name and name != "out"}
    files = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "result.json"}
    assert {"runs.csv", "labels.csv", "memberships.npy", "model.npz"} == set(files)
    return said, files


CLUSTER = ("--rule", "fcm1", "--clusters", 3, "--n-init", 2, "--tol", 0, "--quiet")


def test_sigterm_and_then_resume(tmp_path, store, capfd):
    arguments = (*CLUSTER, "--max-iter", 9)
    assert ran("cluster", store, tmp_path / "whole", *arguments) == 0
    command = ("cluster", store, tmp_path / "out", *arguments, "--checkpoint", tmp_path / "kept")
    with sigterm("scan", scans=4):
        assert ran(*command, "--json") == 75
    told = capfd.readouterr()
    file = tmp_path / "kept" / "cluster-00000004.npz"
    assert re.fullmatch(
        f"dasrel: stopped by SIGTERM after 4 scans; the state is in {file}: the same again with resume"
        r" \(--resume\) goes on from there\n", told.err.split("warning")[-1].split("\n", 1)[-1]
    )  # fmt: skip
    said = json.loads(told.out)
    assert (said["stopped"], said["scans"], said["checkpoint"]) == (True, 4, str(file))
    assert not (tmp_path / "out").exists()
    assert ran(*command) == 1
    assert "holds a checkpoint" in capfd.readouterr().err
    with sigterm("scan", scans=2):
        assert ran(*command, "--resume", "--every", 5) == 75
    assert "after 6 scans" in capfd.readouterr().err
    assert ran(*command, "--resume", "--verbose") == 0
    told = capfd.readouterr().err
    assert f"dasrel: going on from {tmp_path / 'kept' / 'cluster-00000006.npz'}" in told
    assert re.search(r"dasrel: checkpoint cluster-00000007.npz: [\d.]+ kiB in [\d.]+ s\n", told)
    assert folder(tmp_path / "out") == folder(tmp_path / "whole")
    assert not (tmp_path / "kept").exists()  # the results are safe now


def test_sigterm_without_a_checkpoint_ends_at_once(tmp_path, store, capfd):
    for command in (("cluster", store, tmp_path / "out", *CLUSTER), ("spectrum", store, "--max-scans", 50, "--quiet")):
        with sigterm("scan", scans=1):
            assert ran(*command) == 143
        assert capfd.readouterr().err == "dasrel: stopped by SIGTERM; nothing of it is kept\n"
    assert list(tmp_path.iterdir()) == []
    for option in (("--resume",), ("--every", 3), ("--time-limit", "1h")):
        assert ran("cluster", store, tmp_path / "out", *CLUSTER, *option) == 2
        assert f"{option[0]} needs --checkpoint DIR" in capfd.readouterr().err
    assert ran("spectrum", store, "--checkpoint", tmp_path / "c", "--time-limit", "soon") == 2
    assert "'soon' is no duration" in capfd.readouterr().err


def test_a_second_sigterm_ends_the_process(tmp_path, store):
    code = """
import os, signal, sys
from dasrel import cli, watch
def look(progress):
    if progress.label == "scan" and progress.scans >= 3:
        os.kill(os.getpid(), signal.SIGTERM)
with watch(look):
    cli.run(sys.argv[1:])
"""
    command = ["cluster", str(store), str(tmp_path / "out"), *map(str, CLUSTER), "--checkpoint", str(tmp_path / "kept")]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == "dasrel: stopped at once by a second SIGTERM"
    assert Checkpoint(tmp_path / "kept").files("cluster")[0].name == "cluster-00000002.npz"


def test_spectrum_and_euclideanize_stop_and_go_on(tmp_path, crooked, capfd):
    kept = ("--checkpoint", tmp_path / "kept")
    spectra = ("spectrum", crooked, "--tol", 1e-9, "--json")
    assert ran(*spectra) == 0
    whole = json.loads(capfd.readouterr().out)
    with sigterm("scan", scans=2):
        assert ran(*spectra, *kept) == 75
    assert json.loads(capfd.readouterr().out)["scans"] == 2
    assert ran(*spectra, *kept, "--resume") == 0
    again = json.loads(capfd.readouterr().out)
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}
    changed = ("euclideanize", crooked, "--method", "log", "--json")
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


def test_kill_9_again_and_again(tmp_path, crooked):
    arguments = (*CLUSTER, "--max-iter", 60, "--euclideanize", "ultrametric")
    assert ran("cluster", crooked, tmp_path / "whole", *arguments) == 0
    kept = Checkpoint(tmp_path / "kept")
    command = ("cluster", crooked, tmp_path / "out", *arguments, "--checkpoint", kept.path, "--resume")
    for phase, number in (("euclideanize", 2), ("cluster", 3), ("cluster", 30)):
        process = subprocess.Popen([sys.executable, "-m", "dasrel", *map(str, command)], stderr=subprocess.DEVNULL)
        while not any(int(file.stem.split("-")[1]) >= number for file in kept.files(phase)):
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert 1 <= len(kept.files(phase)) <= 3  # killed between writing and removing, there is one more
    assert ran(*command) == 0
    assert folder(tmp_path / "out") == folder(tmp_path / "whole")
    assert not (tmp_path / "kept").exists()


def tiles(path):
    """All that a store holds."""
    found = open_matrix(path)
    return found.audit, [found.read_tile(i, j).tobytes() for i, j in found.layout.tiles()], found.ids.tolist()


def test_stores_stop_between_two_tiles_and_go_on(tmp_path, capfd):
    np.save(tmp_path / "x.npy", points())
    np.save(tmp_path / "d.npy", np.sqrt(squared()))
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
        told = capfd.readouterr()
        assert json.loads(told.out)["stopped"] is True
        done = int(re.search(r"stopped by SIGTERM after (\d+) of 21 tiles; the same again with resume", told.err)[1])
        assert 3 <= done < 21
        with watch() as counted:
            assert ran(command, source, store, *options, "--resume", "--time-limit", "0s") == 75  # one in any case
        assert 1 <= counted.tiles < 21 - done
        assert "stopped by the time limit of 0 s" in capfd.readouterr().err
        assert ran(command, source, store, *options, "--resume") == 0
        assert tiles(store) == tiles(whole)
        assert ran(command, source, store, *options, "--force", "--time-limit", "1h") == 1
        assert "cannot be gone on with after a time limit" in capfd.readouterr().err
        with sigterm(name, tiles=3):
            assert ran(command, source, store, *options, "--force") == 143
        assert tiles(store) == tiles(whole)
        assert ran(command, source, store, *options, "--time-limit", "10") == 2


def test_blocks_of_a_function_stop_in_time(tmp_path):
    called = []

    def block(rows, columns):
        called.append((rows.start, columns.start))
        time.sleep(0.05)
        return cdist(points()[rows.start : rows.stop], points()[columns.start : columns.stop])

    writing = Writing("float64", tile=16, time_limit=0.2)
    with pytest.raises(Stopped, match=r"the time limit of 0.2 s after \d+ of 21 tiles"):
        dasrel.from_blocks(block, 90, tmp_path / "a.zarr", kind="distance", writing=writing)
    first = len(called)
    writing = dataclasses.replace(writing, time_limit=None, resume=True)
    found = dasrel.from_blocks(block, 90, tmp_path / "a.zarr", kind="distance", writing=writing)
    assert len(called) == len(set(called)) == 21 > first
    assert found.n_objects == 90


def test_on_a_cluster_tiles_and_scans_stop_and_go_on(tmp_path, store):
    from distributed import Client, LocalCluster

    runs = grid("fcm1", 3, max_iter=7, tol=0.0)
    whole = cluster(store, runs)
    np.save(tmp_path / "x.npy", points())
    plain = dasrel.pairwise(tmp_path / "x.npy", tmp_path / "a.zarr", metric="euclidean", writing=Writing(tile=8))
    settings = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "scheduler_port": 0}
    with LocalCluster(**settings, silence_logs=50) as there, Client(there):
        with pytest.raises(Stopped), stopped_after(3):
            cluster(store, runs, checkpoint=Checkpoint(tmp_path / "c"))
        found = cluster(store, runs, checkpoint=Checkpoint(tmp_path / "c", resume=True))
        assert bits(found) == bits(whole)
        writing = Writing(tile=8, time_limit=0.0)
        with pytest.raises(Stopped, match=r"the time limit of 0 s after \d+ of 78 tiles"):
            dasrel.pairwise(tmp_path / "x.npy", tmp_path / "b.zarr", metric="euclidean", writing=writing)
        dasrel.pairwise(
            tmp_path / "x.npy", tmp_path / "b.zarr", metric="euclidean", writing=Writing(tile=8, resume=True)
        )
    assert tiles(tmp_path / "b.zarr") == tiles(plain.store)
