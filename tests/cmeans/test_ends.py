"""How runs end, and what they report on the way: histories, few objects that change, races, modes."""

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

import dasrel
from dasrel.cli import app
from dasrel.cmeans import run_state
from dasrel.cmeans.bundle import BundleResults
from dasrel.cmeans.fit import cluster
from dasrel.cmeans.run_state import RunState
from dasrel.errors import InputError, StoreError
from dasrel.partition.model import Model
from dasrel.partition.result import Start
from dasrel.store.array_matrix import as_matrix
from dasrel.util import progress
from tests.helpers import oracle
from tests.helpers.faults import quiet
from tests.helpers.matrices import blobs, distances, memberships, squared
from tests.helpers.runs import Run, grid
from tests.helpers.stores import bits, stored


@pytest.fixture(scope="module")
def digits():
    """Squared distances of 1,797 handwritten digits."""
    X = load_digits().data
    return as_matrix(cdist(X, X, "sqeuclidean"), kind="squared-distance")


@pytest.fixture(scope="module")
def some_digits():
    """Squared distances of every third of them."""
    X = load_digits().data[::3]
    return as_matrix(cdist(X, X, "sqeuclidean"), kind="squared-distance")


# ------------------------------------------------------------------------------------------------------------ history


@pytest.mark.parametrize(
    ("rule", "parameters"), [("fcm1", {"m": 1.7}), ("fcm2", {"lam": 2.0}), ("hard", {})], ids=["fcm1", "fcm2", "hard"]
)
def test_changes_are_those_between_iterations(rule, parameters):
    D, U0, steps = squared(60), memberships(60), 6
    names = {"m": "fuzzifier", "lam": "entropy_weight"}
    given = {names[name]: value for name, value in parameters.items()}
    found = quiet(
        cluster, D, Run(rule, 3, init=U0, history=True, max_iter=steps, tol=0, **given), kind="squared-distance"
    ).best.result
    U = [U0.T, *(oracle.run(D, rule, U0.T, max_iter=k + 1, tol=0, **parameters)["U"] for k in range(steps))]
    expected = [np.abs(after - before).max() for before, after in pairwise(U)]
    np.testing.assert_allclose(found.changes, expected, atol=1e-9)
    assert len(found.changes) == len(found.objectives) == steps


def test_a_history_costs_no_scan_and_changes_nothing_else():
    D = squared(80)
    for accelerate in (False, True):
        runs = [grid("fcm1", 3, n_init=3, tol=1e-8, accelerate=accelerate, history=on) for on in (False, True)]
        with progress.watch() as plain:
            without = quiet(cluster, D, runs[0], kind="squared-distance")
        with progress.watch() as counted:
            found = quiet(cluster, D, runs[1], kind="squared-distance")
        assert counted.scans == plain.scans
        assert bits(found.best.memberships) == bits(without.best.memberships)
        assert [one.objectives for one in found.runs] == [one.objectives for one in without.runs]
        assert {one.changes for one in without.runs} == {()}
        assert without.history() == []
        for one in found.runs:
            assert len(one.changes) == len(one.objectives)
            assert one.changes[-1] < 1e-8
            assert max(one.changes[:3]) > 0.01


def test_an_accelerated_step_is_compared_with_the_memberships_before_it():
    run = Run("fcm1", 3, fuzzifier=3.0, tol=1e-9, accelerate=True, history=True)
    found = quiet(cluster, squared(60), run, kind="squared-distance").best.result
    assert found.rejected or found.n_iter > run_state.PLAIN_STEPS + 3  # some steps were accelerated
    assert np.isfinite(found.changes).all()
    far = quiet(cluster, squared(60), Run("fcm1", 3, init="k-means++", history=True), kind="squared-distance")
    assert np.isnan(far.best.result.changes[0])  # objects as centres have no memberships
    assert far.history()[0]["change"] is None


def test_the_history_of_every_run_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stored("d.zarr", np.sqrt(squared(60)), dtype="float64", tile=32)
    words = "cluster d.zarr out --rule fcm1,hard --clusters 3 --fuzzifier 2 --n-init 2 --init random --no-picture"
    assert app.run([*words.split(), "--history", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requested"]["history"] is True
    with open("out/history.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with open("out/runs.csv", encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    for one in runs:
        mine = [row for row in rows if row["run"] == one["run"]]
        assert [int(row["iteration"]) for row in mine] == [k + 1 for k in range(len(mine))]
        assert len(mine) == int(one["n_iter"]) - int(one["rejected"])
        assert float(mine[-1]["objective"]) == pytest.approx(float(one["objective"]))
        assert float(mine[-1]["change"]) < 1e-5
    assert app.run([*words.replace(" out ", " plain ").split(), "--json"]) == 0
    assert not (tmp_path / "plain" / "history.csv").exists()
    assert "history" not in json.loads(capsys.readouterr().out)["requested"]


def test_a_workflow_writes_a_history_too(tmp_path):
    np.save(tmp_path / "d.npy", np.sqrt(squared(40)))
    keys = 'rule = "hard"\nclusters = 3\nhistory = true\nrace = true\npicture = false'
    (tmp_path / "w.toml").write_text(f'[import]\nsource = "d.npy"\nkind = "distance"\n[cluster]\n{keys}\n')
    assert app.run(["run", str(tmp_path / "w.toml"), "-q"]) == 0
    assert (tmp_path / "w" / "cluster" / "history.csv").is_file()


@pytest.mark.parametrize("name", ["history", "race", "accelerate"])
def test_a_switch_is_true_or_false(name):
    with pytest.raises(InputError, match=f"{name} is yes; give True or False"):
        dasrel.Run("hard", 2, **{name: "yes"})


@pytest.mark.parametrize(
    "runs",
    [
        grid("fcm1", 3, n_init=2, max_iter=40),
        [
            *grid("pcm2", 3, n_init=2, entropy_weight=2.0, max_iter=30),
            *grid("fcm2", 3, entropy_weight=2.0, max_iter=20),
        ],
        [dasrel.Run("pcm1", 3, max_iter=50), dasrel.Run("fcm2", 2, max_iter=50)],
    ],
    ids=["one rule", "fcm2 first", "automatic values"],
)
def test_iterations_are_told_as_a_fraction_and_the_scans_left_are_those_of_the_job(runs):
    told = []
    with progress.watch(told.append):
        found = quiet(cluster, squared(60), runs, kind="squared-distance", judge=True)
    steps = [one for one in told if one.note.startswith("iteration")]
    assert len({one.scans for one in steps}) >= found.scans - found.first_scans - 2
    for one in steps:
        words = one.note.replace(",", "").split()
        assert int(words[1]) <= int(words[5])
        assert one.iterations.now == int(words[1])
        left = one.iterations.most - one.iterations.now
        assert one.scans + left >= found.scans
    most = max(2 * run.max_iter if run.rule.startswith("pcm") else run.max_iter for run in runs)
    assert steps[0].iterations.most <= most + 3


def test_the_summary_tells_iterations_as_a_fraction(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stored("d.zarr", np.sqrt(squared(60)), dtype="float64", tile=32)
    for rule, most in (("hard", 70), ("pcm2", 140)):
        words = f"cluster d.zarr {rule} --rule {rule} --clusters 3 --n-init 1 --no-picture --max-iter 70"
        assert app.run(words.split()) == 0
        (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("converged")]
        assert f"of at most {most} iterations (run " in line


# --------------------------------------------------------------------------------------------- few objects that change


def lloyd(D, labels, c, tol, steps=3):
    """Hard c-means by loops until no object changes, or fewer than tol n do in so many steps; iterations, labels."""
    n, few = len(D), 0
    for iteration in range(1, 1000):
        d = np.empty((c, n))
        for i in range(c):
            mine = np.flatnonzero(labels == i)
            d[i] = D[mine].mean(axis=0) - 0.5 * D[np.ix_(mine, mine)].mean()
        new = d.argmin(axis=0)
        changed = int((new != labels).sum())
        few = few + 1 if changed < tol * n else 0
        labels = new
        if changed == 0 or few == steps:
            return iteration, labels
    raise AssertionError


@pytest.mark.parametrize("tol", [1e-5, 0.01, 0.03, 0.1])
def test_hard_stops_when_few_objects_change_in_three_iterations(tol):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 3))
    D = cdist(X, X, "sqeuclidean")
    fewer = 0
    for seed in range(5):
        start = np.random.default_rng(seed).integers(0, 5, len(X))
        run = Run("hard", 5, init=np.eye(5)[start], tol=tol)
        found = cluster(D, run, kind="squared-distance").best
        iterations, labels = lloyd(D, start, 5, tol)
        assert (found.result.n_iter, found.result.converged) == (iterations, True)
        np.testing.assert_array_equal(found.labels, labels)
        fewer += iterations < lloyd(D, start, 5, 0)[0]
    assert (fewer > 0) == (tol > 1e-5)


def test_weights_of_the_centres_stop_hard_as_the_other_rules():
    D = squared(60)
    for tol in (0.3, 1e-9):
        run = Run("hard", 3, stop="weights", tol=tol)
        assert cluster(D, run, kind="squared-distance").best.result.converged
    none = Run("hard", 3, tol=0, max_iter=30)
    assert quiet(cluster, D, none, kind="squared-distance").best.result.n_iter == 30


@pytest.mark.slow
def test_the_share_costs_little_on_digits(digits):
    exact, default, coarse = (
        cluster(digits, grid("hard", 10, n_init=8, init="k-means++", accelerate=True, tol=tol), keep_all=True)
        for tol in (1e-12, 1e-5, 2e-3)
    )
    assert bits(default.kept[3].memberships) == bits(exact.kept[3].memberships)
    assert [one.objective for one in default.runs] == [one.objective for one in exact.runs]
    for few, all_of_them in zip(coarse.runs, exact.runs, strict=True):
        assert few.n_iter <= all_of_them.n_iter
        assert few.objective == pytest.approx(all_of_them.objective, rel=1e-4)
    assert coarse.scans < exact.scans
    assert coarse.best.objective == pytest.approx(exact.best.objective, rel=1e-4)


# --------------------------------------------------------------------------------------------------------------- races


def state_with(history, **more):
    run = Run("fcm2", 2, entropy_weight=1.0, race=True, **more)
    state = RunState(run, 0, Start(np.full((1, 2, 4), 0.25)), 0.0)
    state.objectives = list(history)
    return state


@pytest.mark.parametrize("q", [0.3, 0.7, 0.9, 0.97])
def test_a_run_that_falls_geometrically_is_never_stopped_above_its_limit(q):
    limit, falls = 5.0, [5.0 + 3.0 * q**k for k in range(200)]
    stopped = []
    for k in range(1, 200):
        assert not state_with(falls[:k])._cannot_win(limit)
        assert not state_with(falls[:k])._cannot_win(limit + 1e-3)
        stopped.append(state_with(falls[:k])._cannot_win(limit - 0.1))
    assert not any(stopped[: 2 * run_state.RACE_STEPS])
    assert any(stopped)


@pytest.mark.parametrize(
    "change",
    [{"reseeded": 1}, {"rises": 1}, {"negatives": 2}, {"beta": 0.5}, {"first": True}],
    ids=lambda change: next(iter(change)),
)
def test_runs_whose_objective_may_do_anything_are_never_stopped(change):
    falls = [5.0 + 3.0 * 0.5**k for k in range(40)]
    assert state_with(falls)._cannot_win(1.0)
    state = state_with(falls)
    for name, value in change.items():
        setattr(state, name, value)
    assert not state._cannot_win(1.0)
    slower = [*falls[:20], *(falls[20] - 0.01 * k for k in range(20))]  # it falls faster and faster
    assert not state_with(slower)._cannot_win(1.0)


RACES = {
    "fcm1": {"fuzzifier": 1.2},
    "fcm2": {"entropy_weight": 60.0},
    "hard": {},
    "pcm2": {"entropy_weight": 60.0, "eta_scale": 0.5},
}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("accelerate", [False, True])
@pytest.mark.parametrize("rule", RACES)
def test_the_winner_of_a_race_is_that_of_all_runs(some_digits, rule, accelerate):
    how = {"n_init": 8, "accelerate": accelerate, "max_iter": 60, "tol": 1e-4, **RACES[rule]}
    alone, raced = (quiet(cluster, some_digits, grid(rule, 10, race=on, **how)) for on in (False, True))
    assert_same_best(raced, alone)
    winner = [next(k for k, one in enumerate(of.runs) if one is of.best.result) for of in (alone, raced)]
    assert winner[0] == winner[1]
    assert not any(one.stopped_early for one in alone.runs)
    best = raced.best.result
    for one, other in zip(raced.runs, alone.runs, strict=True):
        if one.stopped_early:
            assert not one.converged
            assert one.n_iter <= other.n_iter
            assert min(one.score, other.score) > best.score
        else:
            assert one.n_iter == other.n_iter
            np.testing.assert_allclose(one.objectives, other.objectives, rtol=1e-9)


def assert_same_best(raced, alone):
    """The same but for rounding: products of fewer columns are summed in another order."""
    np.testing.assert_allclose(raced.best.memberships, alone.best.memberships, rtol=0, atol=1e-6)
    assert raced.best.objective == pytest.approx(alone.best.objective, rel=1e-12)


def test_a_race_saves_scans_and_does_not_complain_of_the_runs_that_it_stopped(some_digits):
    how = {"n_init": 12, "entropy_weight": 60.0, "tol": 1e-6, "max_iter": 300}
    alone, raced = (cluster(some_digits, grid("fcm2", 10, race=on, **how)) for on in (False, True))
    assert_same_best(raced, alone)
    assert sum(one.stopped_early for one in raced.runs) > 0
    assert sum(raced.columns) < sum(alone.columns)
    assert not [text for text in raced.warnings if "converge" in text]
    assert raced.table()[0]["race"] is True


def test_only_a_sound_run_that_has_converged_stops_others():
    results = BundleResults([Run("fcm2", 2, entropy_weight=1.0)] * 2, keep_all=False)
    found = quiet(
        cluster, squared(40), Run("fcm2", 2, entropy_weight=1.0), keep_all=True, kind="squared-distance"
    ).kept[0]
    empty = np.zeros((2, 40))
    for change, score in (
        ({"converged": False}, None),
        ({"coincident_clusters": 1}, None),
        ({"empty": 1}, None),
        ({}, found.result.score),
    ):
        row = run_state.replace(found.result, **change)
        results.best[row.run.setting] = run_state.FinishedRun(0, row, empty, empty, empty, np.zeros(2))
        assert results.best_score(row.run) == score
    assert results.best_score(Run("hard", 2)) is None


# --------------------------------------------------------------------------------------------------------------- modes

CENTRES = [[0.0, 0.0], [30.0, 0.0], [0.0, 30.0]]


@pytest.fixture(scope="module")
def seeking():
    """Five clusters of pcm2 on three far groups, and the points."""
    X = blobs(30, CENTRES)
    run = Run("pcm2", 5, entropy_weight=0.5, eta_scale=4.0, init="k-means++", random_state=1)
    return X, quiet(cluster, distances(X), run, kind="distance").best


def test_clusters_of_pcm_that_coincide_are_one_mode(seeking):
    X, best = seeking
    centres = best.model.V @ X
    nearest = cdist(centres, CENTRES).argmin(axis=1)
    assert set(nearest) == {0, 1, 2}
    expected = [int(np.flatnonzero(nearest == group)[0]) for group in nearest]
    assert best.result.modes == best.model.modes == tuple(expected)
    assert best.result.n_modes == 3
    groups = np.repeat([0, 1, 2], 30)
    first = [int(np.flatnonzero(nearest == group)[0]) for group in range(3)]
    np.testing.assert_array_equal(best.labels, np.array(first)[groups])
    assert [best.sizes[k] for k in first] == [30, 30, 30]
    assert best.sizes.sum() == 90
    assert best.memberships.shape == (90, 5)  # the partition itself is as it was


def test_modes_are_kept_by_models_and_used_for_new_objects(seeking, tmp_path):
    X, best = seeking
    best.model.save(tmp_path / "m.npz")
    model = Model.load(tmp_path / "m.npz")
    assert model.modes == best.model.modes
    new = blobs(5, CENTRES, seed=7)
    np.testing.assert_array_equal(model.predict(cdist(new, X)), best.labels[[0] * 5 + [30] * 5 + [60] * 5])
    assert dasrel.compare(best, best.labels.astype(str)).adjusted_rand_index == 1
    for wrong in ((0, 1), (1, 1, 2, 3, 4), (0, 1, 2, 3, -1)):
        run_state.replace(model, modes=wrong).save(tmp_path / "wrong.npz")
        with pytest.raises(StoreError, match="is a damaged model: modes"):
            Model.load(tmp_path / "wrong.npz")


def test_clusters_keep_their_modes_when_they_are_renumbered(seeking):
    from dasrel.cmeans.warm_start import renumbered

    _, best = seeking
    order = np.array([3, 4, 0, 2, 1])
    other = renumbered(best, order)
    assert other.model.modes == other.result.modes
    for i in range(5):
        for j in range(5):
            together = best.model.modes[order[i]] == best.model.modes[order[j]]
            assert (other.model.modes[i] == other.model.modes[j]) == together
        assert other.model.modes[i] <= i
    same = best.labels[:, None] == best.labels
    np.testing.assert_array_equal(other.labels[:, None] == other.labels, same)


def test_validity_is_that_of_the_modes(seeking):
    X, best = seeking
    groups = np.repeat([0, 1, 2], 30)
    judged = dasrel.validity(distances(X), {"modes": best, "groups": groups}, kind="distance")
    assert judged["silhouette"][0] == pytest.approx(judged["silhouette"][1])
    assert judged.n_clusters == (3, 3)


def test_a_result_says_how_many_modes_there_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stored("d.zarr", distances(blobs(30, CENTRES)), dtype="float64", tile=32)
    numbers = "--entropy-weight 0.5 --eta-scale 4 --seed 1 --init k-means++ --n-init 1"
    words = ["cluster", "d.zarr", "out", "--rule", "pcm2", "--clusters", "5", *numbers.split(), "--no-picture"]
    assert app.run(words) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["modes"] == "5 clusters ended in 3 modes"
    assert lines["sizes"] == "30 30 30"
    (one,) = json.loads((tmp_path / "out" / "result.json").read_text())["settings"]
    assert one["n_modes"] == 3
    assert [one["modes"][k] for k in one["modes"]] == one["modes"]  # the first of a mode is its own
    assert sorted(one["sizes"]) == [0, 0, 30, 30, 30]
    with open("out/labels.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {int(row["label"]) for row in rows} == set(one["modes"])
    assert all(row["second_label"] in {str(k) for k in one["modes"]} - {row["label"]} for row in rows)
    U = np.load("out/memberships.npy")
    np.testing.assert_allclose([float(row["membership"]) for row in rows], U.max(axis=1))
    assert app.run(["validity", "d.zarr", "out", "out/labels.csv", "--index", "silhouette", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)["partitions"]
    assert judged[0]["silhouette"] == pytest.approx(judged[1]["silhouette"])


def test_one_mode_has_no_second_label_and_other_rules_have_no_modes(tmp_path, monkeypatch):
    D = squared(60)
    wide = quiet(cluster, D, Run("pcm2", 3, entropy_weight=1.0, eta_scale=20), kind="squared-distance", judge=True)
    assert (wide.best.result.n_modes, set(wide.best.labels)) == (1, {0})
    quiet(dasrel.save_clustering, wide, tmp_path / "out")
    with open(tmp_path / "out" / "labels.csv", encoding="utf-8", newline="") as file:
        assert {row["second_label"] for row in csv.DictReader(file)} == {""}
    flat = quiet(cluster, D, Run("fcm1", 3, fuzzifier=3.0), kind="squared-distance").best
    assert (flat.result.modes, flat.result.n_modes) == (None, None)
