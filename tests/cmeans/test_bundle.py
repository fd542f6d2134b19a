"""Bundles against the textbook oracle, in feature space, counted in scans, on threads and on a cluster."""

import os
from unittest import mock

import dask
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from dasrel.cmeans.bundle import _scan_memory
from dasrel.cmeans.fit import cluster
from dasrel.cmeans.ladder import LANCZOS_SCANS, largest_gram_eigenvalue
from dasrel.engine.relation import product_consumer, relation
from dasrel.engine.scan import needed_memory, needed_on_worker
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError
from dasrel.util import progress
from tests.helpers import oracle
from tests.helpers.faults import quiet
from tests.helpers.matrices import grouped_points, memberships, non_metric, squared
from tests.helpers.runs import Run, grid
from tests.helpers.stores import stored

PARAMETERS = {
    "fcm1": {"fuzzifier": 1.7},
    "fcm2": {"entropy_weight": 0.3},
    "pcm1": {"fuzzifier": 1.6},
    "pcm2": {},
    "hard": {},
}
RULES = list(PARAMETERS)


def make_store(path, D, kind="squared-distance", **writing):
    return stored(path, D, kind, **{"dtype": "float64", "tile": 16, **writing})


def oracle_eta(D, U, theta):
    """eta_i = sum u^theta d / sum u^theta, F09 D.24, at given memberships (c, n)."""
    d = oracle.relational_distances(D, U, theta)
    return (U**theta * d).sum(axis=1) / (U**theta).sum(axis=1)


def oracle_run(D, rule, U0, **more):
    parameters = PARAMETERS[rule]
    m = parameters.get("fuzzifier")
    eta = oracle_eta(D, U0, m or 1.0) if rule.startswith("pcm") else None
    found = oracle.run(D, rule, U0, m=m, lam=parameters.get("entropy_weight"), eta=eta, **more)
    return found, eta


def first_of_mode(d):
    """The first cluster in the same position for each, distances (c, n) within 1 % of their range; no chains here."""
    near = 0.01 * np.ptp(d)
    return np.array([min(j for j in range(len(d)) if np.abs(d[i] - d[j]).max() <= near) for i in range(len(d))])


def assert_like_oracle(matrix, D, *, rtol=1e-6, max_iter=300, **how):
    """All rules in one bundle, from given memberships, against the oracle one by one."""
    n = len(D)
    tol = 1e-9 if rtol < 1e-5 else 1e-6
    runs = [Run(rule, 3, init=memberships(n), tol=tol, max_iter=max_iter, **PARAMETERS[rule]) for rule in RULES]
    result = quiet(cluster, matrix, runs, **how)
    for rule, ours in zip(RULES, result.partitions, strict=True):
        theirs, eta = oracle_run(D, rule, memberships(n).T, tol=1e-9, max_iter=max_iter)
        assert ours.result.converged or max_iter < 300
        np.testing.assert_allclose(ours.memberships.T, theirs["U"], rtol=0, atol=rtol)
        np.testing.assert_allclose(ours.distances.T, theirs["d"], rtol=rtol, atol=rtol * D.max())
        if ours.result.converged:  # else ours is that of the centres before the last update
            assert ours.objective == pytest.approx(theirs["J_history"][-1], rel=rtol)
        labels = theirs["U"].argmax(axis=0)
        modes = first_of_mode(theirs["d"]) if rule.startswith("pcm") else np.arange(3)
        np.testing.assert_array_equal(ours.labels, modes[labels])
        if eta is not None:
            np.testing.assert_allclose(ours.result.eta, eta, rtol=rtol)
        if tol == 1e-9:
            assert ours.result.n_iter == theirs["iterations"]


def test_arrays_agree_with_the_oracle():
    D = squared(60)
    assert_like_oracle(D, D, kind="squared-distance")
    assert_like_oracle(np.sqrt(D), D, kind="distance")
    gram = grouped_points(60) @ grouped_points(60).T
    assert_like_oracle(gram, D, kind="kernel")


def test_stores_agree_with_the_oracle(tmp_path):
    D = squared(60)
    assert_like_oracle(make_store(tmp_path / "m64", np.sqrt(D), kind="distance"), D)
    # float32 holds seven digits of the values, and products are summed in it: five are left
    assert_like_oracle(make_store(tmp_path / "m32", D, dtype="float32"), D, rtol=2e-5)


def test_a_cluster_of_two_processes_agrees_with_the_oracle_and_with_threads_to_the_bit(client, tmp_path):
    D = squared(n=70)
    matrix = make_store(tmp_path / "m", D, tile=32)
    weights = {rule: {"entropy_weight": 9.0} for rule in ("fcm2", "pcm1", "pcm2")}
    given = {rule: {**weights.get(rule, {}), **PARAMETERS[rule]} for rule in RULES}
    runs = [run for rule in RULES for run in grid(rule, [2, 3], n_init=3, max_iter=5, **given[rule])]
    assert len(set(client.run(os.getpid).values()) - {os.getpid()}) == 2
    assert_like_oracle(matrix, D, max_iter=12)
    with progress.watch() as counted:
        there = quiet(cluster, matrix, runs)
    assert there.scans == counted.scans == max(r.n_iter for r in there.runs) + there.first_scans
    with dask.config.set(num_workers=1), no_client():
        one = quiet(cluster, matrix, runs)
    with dask.config.set(num_workers=4), no_client():
        four = quiet(cluster, matrix, runs)
    for other in (one, four):
        assert [r.objectives for r in other.runs] == [r.objectives for r in there.runs]
        for a, b in zip(other.partitions, there.partitions, strict=True):
            assert a.memberships.tobytes() == b.memberships.tobytes()
            assert a.model.V.tobytes() == b.model.V.tobytes()


def no_client():
    """The threads of this process, although a cluster is there."""
    return mock.patch("dasrel.util.parallel.active_client", return_value=None)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_on_one_thread_and_on_four(tmp_path):
    n = 1500  # above the size where everything happens on the calling thread
    X = np.random.default_rng(0).normal(size=(n, 4))
    matrix = make_store(tmp_path / "m", cdist(X, X, "sqeuclidean"), dtype="float64", tile=256)
    runs = [
        *grid("fcm1", 3, n_init=20, max_iter=12, fuzzifier=1.5),
        *grid("fcm2", 3, n_init=20, max_iter=12, accelerate=[False, True]),
        *grid("hard", 4, n_init=20, init="k-means++", max_iter=12),
    ]
    found = []
    for threads in (1, 4):
        with dask.config.set(num_workers=threads):
            found.append(quiet(cluster, matrix, runs, keep_all=True))
    for a, b in zip(found[0].kept, found[1].kept, strict=True):
        assert a.memberships.tobytes() == b.memberships.tobytes()
    other = quiet(cluster, matrix, grid("fcm1", 3, n_init=1, random_state=1, max_iter=12, fuzzifier=1.5))
    assert not np.array_equal(other.best.memberships, found[0].kept[0].memberships)


def feature_space_fcm(X, U, m, steps):
    """Fuzzy c-means as Bezdek writes it, with centres in feature space."""
    for _ in range(steps):
        centres = (U**m @ X) / (U**m).sum(axis=1, keepdims=True)
        d = cdist(centres, X, "sqeuclidean")
        U = 1.0 / ((d[:, None, :] / d[None, :, :]) ** (1 / (m - 1))).sum(axis=1)
    return U


def lloyd(X, U, steps):
    for _ in range(steps):
        centres = (U @ X) / U.sum(axis=1, keepdims=True)
        labels = cdist(centres, X, "sqeuclidean").argmin(axis=0)
        U = np.eye(len(U))[:, labels]
    return labels


def test_duality_with_feature_space():
    X = grouped_points(80)
    D = cdist(X, X, "sqeuclidean")
    for steps in (1, 5, 40):
        fuzzy = quiet(
            cluster, D, Run("fcm1", 3, init=memberships(80), tol=0, max_iter=steps), kind="squared-distance"
        ).best
        np.testing.assert_allclose(fuzzy.memberships.T, feature_space_fcm(X, memberships(80).T, 2.0, steps), atol=1e-9)
        hard = quiet(
            cluster, D, Run("hard", 3, init=memberships(80), tol=0, max_iter=steps), kind="squared-distance"
        ).best
        np.testing.assert_array_equal(hard.labels, lloyd(X, memberships(80).T, steps))


def test_synthetic_1_under_shifts():
    """F09 3.1, with the parameters of its figure 2: a shift moves fcm1's memberships far, fcm2's hardly at all."""
    rng = np.random.default_rng(1)
    X = np.vstack([rng.normal((0, 0), 1, (200, 2)), rng.normal((6, 6), 1, (200, 2)), rng.uniform(-6, 12, (20, 2))])
    D = cdist(X, X, "sqeuclidean")
    first = np.column_stack([np.arange(420) < 200, np.arange(420) >= 200]).astype(float)
    shifts = [0.0, 100.0, 200.0, 400.0]  # alpha; the spread is 2 alpha
    moved = {}
    for rule, parameters in {"fcm2": {"entropy_weight": 20.0}, "fcm1": {"fuzzifier": 1.5}}.items():
        runs = [Run(rule, 2, init=first, spread=2 * alpha, tol=1e-8, max_iter=3000, **parameters) for alpha in shifts]
        found = quiet(cluster, D, runs, kind="squared-distance").partitions
        moved[rule] = max(np.abs(p.memberships - found[0].memberships).max() for p in found)
    assert moved["fcm2"] <= 0.05
    assert moved["fcm1"] > 0.3


def test_possibilistic_clusters_coincide_when_their_spreads_are_wide():
    with pytest.warns(DasrelWarning, match="coincident clusters"):
        wide = cluster(squared(60), Run("pcm2", 3, entropy_weight=1.0, eta_scale=20), kind="squared-distance").best
    assert wide.result.coincident_clusters == 3
    spans = np.ptp(wide.distances, axis=1)  # of each object, over the three centres
    assert spans.max() < 0.01 * wide.distances.max()
    narrow = cluster(squared(60), Run("pcm2", 3, entropy_weight=1.0, eta_scale=0.5), kind="squared-distance").best
    assert sorted(np.bincount(narrow.labels)) == [20, 20, 20]


@pytest.mark.slow
def test_500_runs_make_the_scans_of_the_slowest():
    runs = [
        *grid("fcm1", [2, 3, 4], fuzzifier=[1.3, 1.6], n_init=40),
        *grid("fcm2", [2, 3], entropy_weight=[0.5, 2.0], n_init=30),
        *grid("pcm1", 3, entropy_weight=1.0, n_init=40),
        *grid("pcm2", 3, entropy_weight=1.0, n_init=20, eta=["mean", "overall"]),
        *grid("hard", [2, 3], n_init=15),
    ]
    runs += grid("fcm1", 5, n_init=500 - len(runs))
    assert len(runs) == 500
    with progress.watch() as counted:
        result = quiet(cluster, squared(60), runs, kind="squared-distance")
    slowest = max(r.n_iter for r in result.runs)
    assert result.bundles == 1
    assert result.first_scans == 0
    assert counted.scans == result.scans == slowest
    # runs that have ended have left: the columns of scan t are those of the runs with at least t iterations,
    # and one more in the first scan for the mean that eta="overall" asks for
    clusters, iterations = np.array([r.run.n_clusters for r in result.runs]), np.array([r.n_iter for r in result.runs])
    expected = [int(clusters[iterations >= t].sum()) for t in range(1, slowest + 1)]
    expected[0] += 1
    assert list(result.columns) == expected
    assert expected[-1] < expected[0] / 10
    assert all(r.rises == 0 for r in result.runs)
    assert len(result.partitions) == 6 + 4 + 1 + 2 + 2 + 1


@pytest.mark.parametrize(
    "how",
    [
        {"rule": "fcm2"},
        {"rule": "fcm2", "accelerate": True},
        {"rule": "pcm2"},
        {"rule": "pcm1", "eta": "cut", "eta_cut": 0.4},
        {"rule": "pcm1", "eta": "overall", "eta_refit": True},
        {"rule": "fcm1", "init": "rows"},
        {"rule": "hard", "init": "k-means++"},
        {"rule": "fcm1", "accelerate": True, "stop": "weights"},
        {"rule": "fcm1", "norm": 2},
    ],
)
def test_scans_are_counted_in_every_mode(how):
    with progress.watch() as counted:
        how_rule = how.pop("rule")
        result = quiet(cluster, squared(60), grid(how_rule, 3, n_init=5, **how), kind="squared-distance")
    assert all(r.converged for r in result.runs)
    assert counted.scans == result.scans
    automatic = result.requested[0].entropy_weight == "auto"
    assert (1 <= result.first_scans <= LANCZOS_SCANS) if automatic else result.first_scans == 0
    slowest = max(r.n_iter for r in result.runs if r.run.rule == ("fcm2" if automatic else how_rule))
    silhouettes = 0
    if automatic:
        silhouettes = 1
        if result.requested[0].is_possibilistic:  # they begin where the fcm2 run that was chosen has ended
            before = result.partitions[0].result.n_iter - len(result.partitions[0].result.objectives)
            slowest += result.partitions[0].result.n_iter - before
    assert result.scans == result.first_scans + slowest + silhouettes


def test_the_largest_eigenvalue_is_that_of_the_centred_matrix():
    for D in (squared(60), non_metric(40), squared(n=3), np.array([[0.0, 2.0], [2.0, 0.0]]), np.zeros((5, 5))):
        dense = np.linalg.eigvalsh(oracle.centred(D))[-1]
        found = largest_gram_eigenvalue(relation(D, kind="squared-distance").gram, len(D))
        assert found == pytest.approx(dense, rel=1e-2, abs=1e-12)
        assert found <= dense * (1 + 1e-12) + 1e-12


def test_automatic_entropy_weights_are_halves_of_the_threshold_and_above_it_runs_collapse():
    D = squared(60)
    threshold = 2 * np.linalg.eigvalsh(oracle.centred(D))[-1] / len(D)
    result = quiet(cluster, D, [Run("fcm2", 3), Run("fcm2", 3, spread=50)], kind="squared-distance")
    values = [r.entropy_weight for r in result.runs]
    assert values[:9] == pytest.approx([threshold / 2**k for k in range(1, 10)], rel=1e-2)
    assert values[9:] == pytest.approx([(threshold + 50 / len(D)) / 2**k for k in range(1, 10)], rel=1e-2)
    with pytest.warns(DasrelWarning) as report:
        over = cluster(D, [Run("fcm2", 3), Run("fcm2", 3, entropy_weight=1.5 * threshold)], kind="squared-distance")
    assert [p.result.flat for p in over.partitions] == [False, True]
    assert any("above the value" in str(w.message) for w in report)
    assert any("U = 1/c" in str(w.message) for w in report)


def test_histories_never_rise_on_euclidean_data_and_acceleration_ends_in_the_same_place():
    runs = [run for rule in RULES for run in grid(rule, 3, n_init=6, tol=1e-9, **PARAMETERS[rule])]
    plain = quiet(cluster, squared(60), runs, kind="squared-distance")
    for r in plain.runs:
        steps = np.diff(r.objectives)
        if not r.run.is_possibilistic:  # whose history changes its function after the fcm2 run
            assert (steps <= 1e-12 * abs(r.objectives[0])).all()
        assert r.rises == 0
    kw = {"fuzzifier": 2.5, "n_init": 8, "tol": 1e-9, "max_iter": 1000}
    slow = quiet(cluster, squared(60), grid("fcm1", 3, **kw), kind="squared-distance")
    fast = quiet(cluster, squared(60), grid("fcm1", 3, **kw, accelerate=True), kind="squared-distance")
    assert all(r.converged for r in (*slow.runs, *fast.runs))
    assert fast.scans < slow.scans
    np.testing.assert_allclose([r.objective for r in fast.runs], [r.objective for r in slow.runs], rtol=1e-9)


def test_negative_distances_are_refused_or_healed():
    D = non_metric(40)
    with pytest.raises(InputError, match=r"\d+ distances to centres are negative.*heal.*spread.*Euclideanise"):
        cluster(D, Run("fcm1", 3, init=memberships(40), fuzzifier=1.2), kind="squared-distance")
    run = Run("fcm1", 3, init=memberships(40), fuzzifier=1.2, on_negative="heal", tol=1e-10, max_iter=500)
    with pytest.warns(DasrelWarning, match="healed"):
        ours = cluster(D, run, kind="squared-distance").best
    theirs = oracle.run(D, "fcm1", memberships(40).T, m=1.2, heal=True, tol=1e-10, max_iter=500)
    assert ours.result.beta == pytest.approx(theirs["beta"], rel=1e-9)
    assert ours.result.beta > 0
    np.testing.assert_allclose(ours.memberships.T, theirs["U"], atol=1e-6)


def test_each_run_is_healed_by_its_own_beta_and_a_spread_known_in_advance_needs_none():
    D = non_metric(40)
    healed = quiet(cluster, D, grid("fcm1", 3, fuzzifier=1.2, n_init=4, on_negative="heal"), kind="squared-distance")
    assert len({r.beta for r in healed.runs}) == 4
    beta = -2 * oracle.smallest_eigenvalue(D)
    spread = quiet(cluster, D, grid("fcm1", 3, fuzzifier=1.2, n_init=4, spread=beta), kind="squared-distance")
    assert all(r.negative_distances == 0 and r.beta == beta and r.rises == 0 for r in spread.runs)
    # the same as a relation that has the spread, and as the oracle on a matrix that has it
    again = quiet(cluster, relation(D, kind="squared-distance").spread(beta), grid("fcm1", 3, fuzzifier=1.2, n_init=4))
    assert [r.objectives for r in again.runs] == [r.objectives for r in spread.runs]
    run = Run("fcm2", 3, entropy_weight=0.3, init=memberships(40), spread=beta, tol=1e-11)
    ours = quiet(cluster, D, run, kind="squared-distance").best
    theirs = oracle.run(oracle.spread_matrix(D, beta), "fcm2", memberships(40).T, lam=0.3, tol=1e-11, max_iter=300)
    np.testing.assert_allclose(ours.memberships.T, theirs["U"], atol=1e-6)


def test_hard_runs_without_the_spread():
    D = squared(60)
    plain = cluster(D, Run("hard", 3), kind="squared-distance")
    with pytest.warns(DasrelWarning, match="hard runs without the spread"):
        spread = cluster(D, Run("hard", 3, spread=100), kind="squared-distance")
    assert spread.best.objective == plain.best.objective
    assert spread.runs[0].beta == 0


@pytest.mark.parametrize("rule", ["pcm1", "pcm2"])
def test_possibilistic_runs_start_from_an_fcm2_run(rule):
    D = squared(60)
    U0 = np.random.default_rng(np.random.SeedSequence((0, 0))).standard_exponential((60, 3))
    U0 /= U0.sum(axis=1, keepdims=True)
    fuzzy = oracle.run(D, "fcm2", U0.T, lam=1.0, tol=1e-10, max_iter=500)
    m = 1.6 if rule == "pcm1" else None
    theta = m or 1.0
    power = fuzzy["U"] ** theta
    weighted = (power * fuzzy["d"]).sum(axis=1) / power.sum(axis=1)
    cut = np.array([fuzzy["d"][i][fuzzy["U"][i] > 0.6].mean() for i in range(3)])
    overall = np.full(3, D.sum() / (2 * 60**2) / (theta * np.sqrt(3)))
    more = {"fuzzifier": m} if m else {}
    for how, eta in {"mean": weighted, "cut": cut, "overall": overall}.items():
        extra = {"eta_cut": 0.6} if how == "cut" else {}
        run = Run(rule, 3, entropy_weight=1.0, eta_scale=0.7, eta=how, tol=1e-10, **more, **extra)
        ours = quiet(cluster, D, run, kind="squared-distance").best
        np.testing.assert_allclose(ours.result.eta, 0.7 * eta, rtol=1e-6)
        theirs = oracle.run(D, rule, fuzzy["U"], m=m, eta=0.7 * eta, tol=1e-10, max_iter=500)
        np.testing.assert_allclose(ours.memberships.T, theirs["U"], atol=1e-6)
        assert ours.result.n_iter == fuzzy["iterations"] + theirs["iterations"]


def test_spreads_that_are_estimated_again_fit_the_last_memberships():
    D = squared(60)
    # small enough to stay where they are: the spreads shrink to a fixed point
    ours = quiet(
        cluster, D, Run("pcm2", 3, entropy_weight=1.0, eta_refit=True, tol=1e-9, max_iter=2000), kind="squared-distance"
    )
    best = ours.best
    U, d = best.memberships.T, best.distances.T
    assert best.result.converged
    np.testing.assert_allclose(best.result.eta, (U * d).sum(axis=1) / U.sum(axis=1), rtol=1e-4)


def test_starts_from_rows_and_objects_are_what_they_say():
    D = squared(60)
    rng = np.random.default_rng(np.random.SeedSequence((5, 2)))
    rows = rng.choice(60, size=3, replace=False)
    V = D[rows] / D[rows].sum(axis=1, keepdims=True)
    d = V @ D - 0.5 * np.einsum("in,nk,ik->i", V, D, V)[:, None]
    expected = oracle.updated("fcm2", d, None, 1.0, None)
    run = Run("fcm2", 3, entropy_weight=1.0, init="rows", random_state=5, restart=2, max_iter=1)
    ours = quiet(cluster, D, run, kind="squared-distance").best
    np.testing.assert_allclose(ours.memberships.T, expected, atol=1e-9)
    runs = grid("hard", 3, init="k-means++", n_init=20, max_iter=1)
    seeds = quiet(cluster, D, runs, kind="squared-distance", keep_all=True)
    for one in seeds.kept:
        assert sorted(np.unique(one.model.V).tolist()) == [0.0, 1.0]  # one object each
        objects = one.model.V.argmax(axis=1)
        assert len(set(objects.tolist())) == 3
        np.testing.assert_allclose(one.distances.T, D[objects], atol=1e-9)
    found = sum(len({int(k) % 3 for k in one.model.V.argmax(axis=1)}) == 3 for one in seeds.kept)
    assert found >= 12  # 2 of 9 when drawn blindly: far objects are preferred


def test_random_starts_depend_on_seed_and_restart_only(tmp_path):
    D = squared(60)
    small, large = (make_store(tmp_path / str(tile), D, tile=tile) for tile in (16, 64))
    runs = grid("fcm2", 3, entropy_weight=1.0, n_init=3, max_iter=1)
    a, b = (quiet(cluster, m, runs, keep_all=True).kept for m in (small, large))
    alone = quiet(cluster, small, runs[2]).best
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.memberships, y.memberships, rtol=0, atol=1e-12)
    np.testing.assert_allclose(alone.memberships, a[2].memberships, rtol=0, atol=1e-12)
    assert np.abs(a[0].memberships - a[1].memberships).max() > 1e-3


def test_a_bundle_too_wide_for_memory_is_split_and_says_so():
    D = squared(n=400)
    runs = grid("fcm1", 5, n_init=20, max_iter=5, tol=0)
    whole = quiet(cluster, D, runs, kind="squared-distance")
    with pytest.warns(DasrelWarning) as report:
        parts = cluster(D, runs, kind="squared-distance", memory="1MB")
    assert any(f"20 runs do not fit into memory at once and were split into {parts.bundles} bundles" in str(w.message)
               for w in report)  # fmt: skip
    assert parts.bundles > 1
    assert parts.scans == 5 * parts.bundles
    np.testing.assert_allclose([r.objective for r in parts.runs], [r.objective for r in whole.runs], rtol=1e-12)
    with progress.watch() as counted, pytest.raises(MemoryLimitError, match="one run of 5 clusters"):
        cluster(D, runs, kind="squared-distance", memory="100kB")
    assert counted.scans == 0


def test_emptied_clusters_are_seeded_again():
    X = np.concatenate([np.zeros(10), np.ones(10), [50.0]])[:, None]
    D = cdist(X, X, "sqeuclidean")
    U = np.zeros((21, 3))
    U[:, 0] = U[0, 1] = U[0, 2] = 1.0  # two centres on the same object, the third at the grand mean
    found = quiet(cluster, D, Run("hard", 3, init=U), kind="squared-distance")
    assert found.runs[0].reseeded > 0
    assert found.runs[0].empty == 0
    assert sorted(np.bincount(found.best.labels)) == [1, 10, 10]
    assert found.best.objective == pytest.approx(0, abs=1e-9)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("how", ["random", "rows", "k-means++"])
def test_odd_matrices_run(rule, how):
    extreme = {"fuzzifier": 1.001} if rule in ("fcm1", "pcm1") else {}
    doubled = squared(n=6)[np.ix_(np.arange(12) % 6, np.arange(12) % 6)]
    equal = 3.0 * (1 - np.eye(9))
    for D in (np.zeros((7, 7)), equal, doubled, doubled * 1e-12, doubled * 1e12, equal[:2, :2]):
        clusters = sorted({1, min(len(D), 3), len(D)})
        runs = [run for more in ({}, extreme) for run in grid(rule, clusters, n_init=2, init=how, max_iter=20, **more)]
        for partition in quiet(cluster, D, runs, kind="squared-distance").partitions:
            assert np.isfinite(partition.memberships).all()
            assert np.isfinite(partition.distances).all()
            assert np.isfinite(partition.objective)
            if rule in ("fcm1", "fcm2", "hard"):
                np.testing.assert_allclose(partition.memberships.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_results_do_not_depend_on_the_scale(rule):
    """Distances that are r times as large, with lambda r times as large, give the same memberships."""
    found = []
    for scale in (1.0, 1e-12, 1e12):
        more = {} if rule in ("fcm1", "hard") else {"entropy_weight": 0.5 * scale}
        runs = grid(rule, 3, max_iter=30, tol=0, **more)
        found.append(quiet(cluster, squared(60) * scale, runs, kind="squared-distance").best.memberships)
    np.testing.assert_allclose(found[1], found[0], atol=1e-8)
    np.testing.assert_allclose(found[2], found[0], atol=1e-8)


def test_a_run_that_does_not_converge_warns():
    runs = [Run("fcm1", 3, fuzzifier=1.3, init="k-means++", max_iter=2), Run("hard", 1)]
    with pytest.warns(DasrelWarning, match="1 of 2 runs did not converge"):
        result = cluster(squared(60), runs, kind="squared-distance")
    assert [r.converged for r in result.runs] == [False, True]


BAD = [
    ({"n_clusters": 0}, "at least 1"),
    ({"n_clusters": 2.5}, "whole number"),
    ({"n_clusters": 61}, "1 to 60"),
    ({"fuzzifier": 1}, "above 1"),
    ({"fuzzifier": np.nan}, "above 1"),
    ({"rule": "fcm2", "entropy_weight": 0}, "above 0"),
    ({"rule": "fcm2", "entropy_weight": -1.0}, "above 0"),
    ({"rule": "fcm2", "fuzzifier": 2}, "takes no fuzzifier"),
    ({"rule": "fcm3"}, "fcm1, fcm2, pcm1, pcm2, hard"),
    ({"rule": "pcm1", "eta_scale": 0}, "above 0"),
    ({"rule": "pcm1", "eta": "median"}, "mean, cut, overall"),
    ({"rule": "pcm1", "eta": "cut", "eta_cut": 1.0}, "below 1"),
    ({"rule": "pcm1", "eta_cut": 0.5}, "unless eta='cut'"),
    ({"spread": -1}, "of at least 0"),
    ({"on_negative": "clip"}, "error, heal"),
    ({"init": "best"}, "sample, k-means\\+\\+, random, rows"),
    ({"init": np.full((60, 2), 0.5)}, r"give \(60, 3\)"),
    ({"init": np.full((60, 3), np.nan)}, "nan .180 such.; give 0 to 1"),
    ({"init": np.full((60, 3), -0.1)}, "give 0 to 1"),
    ({"init": np.tile([0.5, 0.5, 0.0], (60, 1))}, "cluster 2 has no membership"),
    ({"max_iter": 0}, "at least 1"),
    ({"tol": -1}, "of at least 0"),
    ({"norm": 0.5}, "at least 1"),
    ({"random_state": -1}, "at least 0"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[str(k) for k in range(len(BAD))])
def test_bad_input_is_refused_before_a_scan(wrong, message):
    given = {"rule": "fcm1", "n_clusters": 3, **wrong}
    with progress.watch() as counted, pytest.raises(InputError, match=message) as refused:
        cluster(squared(60), [Run(**given)], kind="squared-distance")
    assert counted.scans == 0
    assert "\n" not in str(refused.value)


def test_grids_are_products():
    runs = grid(["fcm2", "pcm2"], range(2, 4), n_init=2, random_state=9, entropy_weight=np.array([0.1, 0.2]))
    assert len(runs) == 2 * 2 * 2 * 2
    assert len({run.setting for run in runs}) == 8
    assert {(run.random_state, run.restart) for run in runs} == {(9, 0), (9, 1)}
    for wrong, message in [({"fuzzyfier": 2}, "no such setting"), ({"fuzzifier": []}, "empty list")]:
        with pytest.raises(InputError, match=message):
            grid("fcm1", 3, **wrong)
    with pytest.raises(InputError, match="no run to make"):
        cluster(squared(60), [], kind="squared-distance")


@pytest.mark.parametrize("columns", [1, 2, 5, 32, 33, 100])
def test_memory_of_a_wide_bundle_is_that_of_its_scan(columns: int) -> None:
    """Without making the columns; on both sides of where the compiled kernel leaves off."""
    seen = relation(np.abs(np.subtract.outer(np.arange(300.0), np.arange(300.0))), kind="distance")
    consumer = product_consumer(seen.matrix, [(seen.view, np.zeros((columns, 300)))])
    here, there, _ = _scan_memory(seen)(columns)
    assert here == needed_memory(seen.matrix, [consumer])
    assert there == needed_on_worker(seen.matrix, [consumer])
