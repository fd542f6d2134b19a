"""The rules against the textbook oracle, against feature space, and against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.spatial.distance import cdist
from scipy.special import expit, logsumexp, softmax

from dasrel.errors import InputError
from dasrel.names import RULES
from dasrel.partition import rules
from dasrel.partition.rules import Rule
from tests.helpers import oracle
from tests.helpers.matrices import symmetric

PARAMETERS = {
    "fcm1": {"m": 1.7},
    "fcm2": {"lam": 0.6},
    "pcm1": {"m": 1.6, "eta": [1.3, 0.8, 2.0]},
    "pcm2": {"eta": [1.3, 0.8, 2.0]},
    "hard": {},
}


def euclidean(n=30, seed=0):
    points = np.random.default_rng(seed).normal(size=(n, 3)) + 3.0 * (np.arange(n) % 3)[:, None]
    return cdist(points, points, "sqeuclidean") / 10


def noise(n=30, seed=0):
    return 2 * symmetric(n, seed)


def from_similarity(n=30, seed=0):
    s = np.random.default_rng(seed).uniform(-1, 1, size=(n, n))
    s = (s + s.T) / 2
    np.fill_diagonal(s, 1.0)
    return np.diag(s)[:, None] + np.diag(s)[None, :] - 2 * s


def random_start(runs, c, n, seed=0):
    U = np.random.default_rng(seed).uniform(0.01, 1, size=(runs, c, n))
    return U / U.sum(axis=1, keepdims=True)


def iterate(D, rule, U, *, beta=0.0, heal=False, max_iter=25, tol=0.0):
    """The loop of a stack with a dense product; stops when all runs stand still."""
    beta = np.broadcast_to(np.asarray(beta, dtype=float), (len(U),)).copy()
    history, iterations = [], 0
    while iterations < max_iter:
        iterations += 1
        W = rules.weights(U, rule.theta)
        d, half = rules.distances(W.V @ D, W, beta=beta)
        left = rules.clip_negative(d, tol=rules.rounding(len(D), np.abs(D).max()))
        if heal:
            beta += rules.heal(d, W)
        elif rule.name in ("fcm1", "pcm1"):
            assert not left.any()
        history.append(rules.objective(rule, U, W, half, beta=beta))
        before, U = U, rules.memberships(rule, d)
        if (rules.change(U, before) < tol).all():
            break
    W = rules.weights(U, rule.theta)
    history.append(rules.objective(rule, U, W, rules.distances(W.V @ D, W)[1], beta=beta))
    return {"U": U, "d": d, "J": np.array(history), "iterations": iterations, "beta": beta, "W": W}


def assert_same(D, name, *, heal=False, beta=0.0, runs=3, parameters=None):
    parameters = PARAMETERS[name] if parameters is None else parameters
    U0 = random_start(runs, 3, len(D), seed=7)
    ours = iterate(D, Rule(name, **parameters), U0, beta=beta, heal=heal)
    for r in range(runs):
        theirs = oracle.run(D, name, U0[r], **parameters, beta=beta, heal=heal, max_iter=25, tol=0.0)
        np.testing.assert_allclose(ours["U"][r], theirs["U"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(ours["d"][r], theirs["d"], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ours["J"][:, r], theirs["J_history"], rtol=1e-9, atol=1e-9)
        assert ours["beta"][r] == pytest.approx(theirs["beta"], rel=1e-9, abs=1e-12)
    return ours


# The oracle itself


def test_oracle_knows_the_example_of_k14():
    D = np.array([[0, 9, 36, 81], [9, 0, 49, 36], [36, 49, 0, 4], [81, 36, 4, 0]], dtype=float)
    np.testing.assert_allclose(np.linalg.eigvalsh(oracle.centred(D)), [-11.31, 0, 15.77, 49.28], atol=0.006)
    assert oracle.smallest_eigenvalue(oracle.spread_matrix(D, 2 * 11.32)) > -1e-9


def test_oracle_distances_agree_in_both_forms():
    D, U = noise(), random_start(1, 3, 30)[0]
    kernel = oracle.kernel_distances(oracle.centred(D), U, 1.7)
    np.testing.assert_allclose(kernel, oracle.relational_distances(D, U, 1.7), atol=1e-12)


# Rules against the oracle


@pytest.mark.parametrize("name", RULES)
def test_euclidean(name):
    assert_same(euclidean(), name)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("make", [noise, from_similarity])
def test_non_euclidean_with_the_eigenvalue_spread(name, make):
    D = make()
    lowest = oracle.smallest_eigenvalue(D)
    assert lowest < -0.5
    assert_same(D, name, beta=-2 * lowest)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("make", [noise, from_similarity])
def test_non_euclidean_with_healing(name, make):
    # singletons and pairs make negative distances sure at the start, so healing has work to do
    D = make() ** 4
    U0 = np.full((1, 3, 30), 1e-3)
    i, k = np.unravel_index(D.argmax(), D.shape)
    U0[0, 0, [i, k]] = 0.9
    U0[0, 1, :10] = 0.5
    U0[0, 2, 10:] = 0.5
    parameters = PARAMETERS[name]
    theirs = oracle.run(D, name, U0[0], **parameters, heal=True, max_iter=25, tol=0.0)
    assert theirs["beta"] > 0
    ours = iterate(D, Rule(name, **parameters), U0, heal=True)
    np.testing.assert_allclose(ours["U"][0], theirs["U"], rtol=0, atol=1e-9)
    assert ours["beta"][0] == pytest.approx(theirs["beta"], rel=1e-9)
    assert_same(D, name, heal=True)


@pytest.mark.parametrize("name", ["fcm1", "fcm2"])
def test_stops_with_the_oracle(name):
    D, U0 = euclidean(), random_start(1, 3, 30)
    ours = iterate(D, Rule(name, **PARAMETERS[name]), U0, max_iter=500, tol=1e-6)
    theirs = oracle.run(D, name, U0[0], **PARAMETERS[name], max_iter=500, tol=1e-6)
    assert ours["iterations"] == theirs["iterations"] < 500


def test_each_run_has_its_own_parameters():
    D, U0 = euclidean(), random_start(3, 3, 30)
    fuzzy = iterate(D, Rule("fcm1", m=[1.3, 2.0, 2.5]), U0)
    entropic = iterate(D, Rule("fcm2", lam=[0.3, 0.6, 5.0]), U0)
    eta = np.array([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [2.0, 1.0, 0.7]])
    typical = iterate(D, Rule("pcm1", m=[1.3, 2.0, 2.5], eta=eta), U0)
    for r in range(3):
        m, lam = [1.3, 2.0, 2.5][r], [0.3, 0.6, 5.0][r]
        options = {"max_iter": 25, "tol": 0.0}
        for ours, theirs in (
            (fuzzy, oracle.run(D, "fcm1", U0[r], m=m, **options)),
            (entropic, oracle.run(D, "fcm2", U0[r], lam=lam, **options)),
            (typical, oracle.run(D, "pcm1", U0[r], m=m, eta=eta[r], **options)),
        ):
            np.testing.assert_allclose(ours["U"][r], theirs["U"], rtol=0, atol=1e-9)
            np.testing.assert_allclose(ours["J"][:, r], theirs["J_history"], rtol=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_a_run_has_the_same_bits_alone_and_in_a_stack(name):
    U0, rule = random_start(5, 3, 30), Rule(name, **PARAMETERS[name])
    Y = random_start(5, 3, 30, seed=3)  # not a product: BLAS may change bits with the width
    together, alone = rules.weights(U0, rule.theta), rules.weights(U0[3:4], rule.theta)
    np.testing.assert_array_equal(together.V[3], alone.V[0])
    d, half = rules.distances(Y, together, beta=0.3)
    d_alone, half_alone = rules.distances(Y[3:4], alone, beta=0.3)
    np.testing.assert_array_equal(d[3], d_alone[0])
    d, d_alone = np.abs(d), np.abs(d_alone)
    np.testing.assert_array_equal(rules.memberships(rule, d)[3], rules.memberships(rule, d_alone)[0])
    J, J_alone = rules.objective(rule, U0, together, half), rules.objective(rule, U0[3:4], alone, half_alone)
    assert J[3] == J_alone[0]


# Duality with feature space


def test_fcm1_on_squared_distances_is_fuzzy_c_means():
    rng = np.random.default_rng(4)
    X = np.concatenate([rng.normal(at, 1.0, size=(25, 4)) for at in (0, 3, 6)])
    start = random_start(1, 3, len(X))
    U = start[0]
    for _ in range(40):
        centres = (U**2.2 @ X) / (U**2.2).sum(axis=1, keepdims=True)
        apart = cdist(centres, X, "sqeuclidean")
        U = 1.0 / ((apart[:, None, :] / apart[None, :, :]) ** (1 / 1.2)).sum(axis=1)
    ours = iterate(cdist(X, X, "sqeuclidean"), Rule("fcm1", m=2.2), start, max_iter=40)
    np.testing.assert_allclose(ours["U"][0], U, rtol=0, atol=1e-9)
    np.testing.assert_allclose(ours["d"][0], apart, rtol=1e-8)


def test_hard_is_lloyd():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(120, 2))
    start = np.eye(4)[rng.integers(0, 4, size=120)].T
    labels = start.argmax(axis=0)
    for _ in range(30):
        centres = np.array([X[labels == i].mean(axis=0) for i in range(4)])
        labels = cdist(centres, X, "sqeuclidean").argmin(axis=0)
    ours = iterate(cdist(X, X, "sqeuclidean"), Rule("hard"), start[None], max_iter=30)
    np.testing.assert_array_equal(rules.labels(ours["U"])[0], labels)
    centres = np.array([X[labels == i].mean(axis=0) for i in range(4)])
    assert ours["J"][-1, 0] == pytest.approx(((X - centres[labels]) ** 2).sum(), rel=1e-12)


# The objective never increases


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(RULES),
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(4, 24),
    c=st.integers(1, 4),
    m=st.floats(1.05, 4.0),
    width=st.floats(0.05, 5.0),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_objective_never_increases(name, seed, n, c, m, width, scale):
    D = scale * noise(n, seed) ** 2
    beta = max(0.0, -2.001 * oracle.smallest_eigenvalue(D))
    given_words = {"m": m, "lam": width * scale, "eta": np.full((1, c), width * scale)}
    words = {"fcm1": ["m"], "fcm2": ["lam"], "pcm1": ["m", "eta"], "pcm2": ["eta"], "hard": []}[name]
    rule = Rule(name, **{word: given_words[word] for word in words})
    J = iterate(D, rule, random_start(2, c, n, seed), beta=beta, max_iter=20)["J"]
    assert np.isfinite(J).all()
    room = 1e-11 * n * (D.max() + beta + width * scale)
    assert (np.diff(J, axis=0) <= room).all()


def test_objective_under_a_shift_adds_alpha_times_a_minus_b():
    D, U, alpha = noise(), random_start(2, 3, 30), 1.9
    rule = Rule("fcm1", m=1.7)
    W = rules.weights(U, rule.theta)
    half = rules.distances(W.V @ D, W)[1]
    A, B = rules.shift_terms(W)
    for r in range(2):
        power = U[r] ** 1.7
        assert A[r] == pytest.approx(power.sum(), rel=1e-12)
        assert B[r] == pytest.approx(sum((p**2).sum() / p.sum() for p in power), rel=1e-12)
    moved = rules.objective(rule, U, W, half, beta=2 * alpha) - rules.objective(rule, U, W, half)
    np.testing.assert_allclose(moved, alpha * (A - B), rtol=1e-11)


# The shift study of F09


def test_pre_shift_and_post_shift_are_the_spread():
    D, U, alpha = noise(), random_start(1, 3, 30), 2.5
    W = rules.weights(U, 1.4)
    d = rules.distances(W.V @ D, W, beta=2 * alpha)[0][0]
    pre = oracle.kernel_distances(oracle.centred(oracle.spread_matrix(D, 2 * alpha)), U[0], 1.4)
    post = oracle.kernel_distances(oracle.centred(D) + alpha * np.eye(30), U[0], 1.4)
    np.testing.assert_allclose(d, pre, atol=1e-12)
    np.testing.assert_allclose(d, post, atol=1e-12)


def test_fcm2_hardly_moves_under_a_shift_and_fcm1_does():
    rng = np.random.default_rng(1)
    clouds = [rng.normal(0, 1, (200, 2)), rng.normal(6, 1, (200, 2)), rng.uniform(-6, 12, (20, 2))]
    X = np.concatenate(clouds)
    D = cdist(X, X, "sqeuclidean")
    U0 = random_start(1, 2, 420)
    U0[0, :, :200] += [[0.2], [0.0]]  # the same cluster first, with and without the shift
    U0 /= U0.sum(axis=1, keepdims=True)
    moved = {}
    for rule in (Rule("fcm2", lam=20.0), Rule("fcm1", m=2.0)):
        still, shifted = (iterate(D, rule, U0, beta=b, max_iter=300, tol=1e-7)["U"] for b in (0.0, 800.0))
        moved[rule.name] = rules.change(still, shifted)[0]
    assert moved["fcm2"] <= 0.05
    assert moved["fcm1"] >= 0.3


def test_hard_keeps_its_objective_under_a_shift_but_for_a_constant():
    # A - B = n - c for a partition without empty clusters, F09 2.4
    U = np.eye(3)[np.arange(30) % 3].T[None]
    A, B = rules.shift_terms(rules.weights(U, 1.0))
    assert A[0] - B[0] == pytest.approx(27, rel=1e-14)


# Extremes


EXTREME = [(name, PARAMETERS[name]) for name in RULES]
EXTREME += [(name, PARAMETERS[name] | {"m": m}) for name in ("fcm1", "pcm1") for m in (1.0001, 2.0, 60.0)]


@pytest.mark.parametrize("exponent", [-40, 40])
@pytest.mark.parametrize(("name", "parameters"), EXTREME)
def test_a_scale_that_is_a_power_of_two_changes_no_bit(name, parameters, exponent):
    scale, D, U0 = 2.0**exponent, euclidean(), random_start(2, 3, 30)
    scaled = {k: np.multiply(v, scale) if k in ("lam", "eta") else v for k, v in parameters.items()}
    plain = iterate(D, Rule(name, **parameters), U0)
    other = iterate(D * scale, Rule(name, **scaled), U0)
    assert np.isfinite(plain["U"]).all()
    assert np.isfinite(plain["J"]).all()
    np.testing.assert_array_equal(plain["U"], other["U"])


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("name", RULES)
def test_other_scales(name, scale):
    D, U0 = euclidean(), random_start(2, 3, 30)
    scaled = {k: np.multiply(v, scale) if k in ("lam", "eta") else v for k, v in PARAMETERS[name].items()}
    plain = iterate(D, Rule(name, **PARAMETERS[name]), U0)
    other = iterate(D * scale, Rule(name, **scaled), U0)
    np.testing.assert_allclose(plain["U"], other["U"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(plain["J"] * scale, other["J"], rtol=1e-9)


@pytest.mark.parametrize("m", [1.0001, 1.01, 1.7, 2.0, 60.0])
def test_fuzzifiers_far_out(m):
    d = 10.0 ** np.random.default_rng(0).uniform(-12, 12, size=(2, 3, 200))
    d[1] = 1e12 * (1 + 1e-4 * np.random.default_rng(1).uniform(size=(3, 200)))  # nearly equal: not all ones and zeros
    U = rules.memberships(Rule("fcm1", m=m), d)
    np.testing.assert_allclose(U, softmax(-np.log(d) / (m - 1), axis=1), rtol=0, atol=1e-10)
    typical = rules.memberships(Rule("pcm1", m=m, eta=[1e-12, 1.0, 1e12]), d)
    x = (np.log(d) - np.log([1e-12, 1.0, 1e12])[:, None]) / (m - 1)
    np.testing.assert_allclose(typical, expit(-x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["fcm2", "pcm1", "pcm2"])
def test_distances_far_from_the_width_of_a_rule(name):
    d = np.array([[[1e-300, 1e-12, 1.0, 1e12, 1e300], [1e300, 1.0, 1e-12, 1e12, 1e-300]]])
    words = {"fcm2": {"lam": 1e-12}, "pcm1": {"m": 1.0001, "eta": [1e-12, 1e-12]}, "pcm2": {"eta": [1e-12, 1e-12]}}
    U = rules.memberships(Rule(name, **words[name]), d)
    e = np.exp(-1.0)
    expected = {
        "fcm2": [[1, 1, 0, 0.5, 0], [0, 0, 1, 0.5, 1]],
        "pcm1": [[1, 0.5, 0, 0, 0], [0, 0, 0.5, 0, 1]],
        "pcm2": [[1, e, 0, 0, 0], [0, 0, e, 0, 1]],
    }[name]
    np.testing.assert_allclose(U[0], expected, rtol=0, atol=1e-12)


def test_weights_do_not_underflow():
    U = 10.0 ** -np.array([[[200.0, 200.5, 201.0, 300.0], [0.0, 1.0, 2.0, 3.0]]])
    W = rules.weights(U, 900.0)
    logs = 900.0 * np.log(U)
    np.testing.assert_allclose(W.V, np.exp(logs - logsumexp(logs, axis=2, keepdims=True)), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(W.V.sum(axis=2), 1.0, rtol=1e-14)
    np.testing.assert_allclose(W.norms, (W.V**2).sum(axis=2), rtol=1e-14)
    assert not W.empty.any()
    assert W.mass[0].tolist() == [0.0, 1.0]


# Zero distances, ties, empty clusters, blocks


def test_zero_distances_are_split_equally():
    d = np.array([[[0.0, 1.0, 0.0, 5.0], [0.0, 0.0, 2.0, 5.0], [3.0, 4.0, 0.0, 5.0]]])
    for m in (2.0, 1.5, 1.0001):
        U = rules.memberships(Rule("fcm1", m=m), d)[0]
        third = 1 / 3
        np.testing.assert_allclose(U, [[0.5, 0, 0.5, third], [0.5, 1, 0, third], [0, 0, 0.5, third]], rtol=1e-14)


def test_hard_takes_the_lowest_index_on_a_tie():
    d = np.array([[[1.0, 2.0, 0.0], [1.0, 1.0, 0.0], [0.5, 1.0, 0.0]]])
    assert rules.memberships(Rule("hard"), d)[0].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("rule", [Rule("pcm1", m=1.5, eta=[0.0, 4.0]), Rule("pcm2", eta=[0.0, 4.0])])
def test_a_cluster_of_spread_zero_keeps_what_is_at_its_centre(rule):
    U = rules.memberships(rule, np.array([[[0.0, 1e-9, 4.0], [0.0, 4.0, 4.0]]]))[0]
    at_four = 0.5 if rule.name == "pcm1" else np.exp(-1.0)
    np.testing.assert_allclose(U, [[1, 0, 0], [1, at_four, at_four]], rtol=1e-14)


@pytest.mark.parametrize("theta", [1.0, 1.5, 2.0])
def test_empty_clusters_are_marked_and_never_nan(theta):
    D, U = euclidean(), random_start(2, 3, 30)
    U[1, 2] = 0.0
    W = rules.weights(U, theta)
    assert W.empty.tolist() == [[False] * 3, [False, False, True]]
    assert W.mass[1, 2] == 0
    np.testing.assert_allclose(W.V.sum(axis=2), 1.0, rtol=1e-13)
    d, half = rules.distances(W.V @ D, W)
    assert np.isfinite(d).all()
    rule = Rule("hard") if theta == 1 else Rule("fcm1", m=theta)
    J = rules.objective(rule, U, W, half)
    assert J[1] == pytest.approx(oracle.functional(rule.name, D, U[1], theta, None, None), rel=1e-12)


def test_all_objects_equal():
    D, U0 = np.zeros((6, 6)), random_start(1, 2, 6)
    fuzzy = iterate(D, Rule("fcm1", m=2.0), U0, max_iter=3)
    np.testing.assert_array_equal(fuzzy["U"], 0.5)
    hard = iterate(D, Rule("hard"), U0, max_iter=3)
    assert hard["W"].empty.tolist() == [[False, True]]


@pytest.mark.parametrize("m", [2.0, 1.7])
def test_many_objects_are_worked_on_in_blocks(m):
    d = np.random.default_rng(2).uniform(0.1, 2, size=(1, 3, 70_001))
    d[0, 1, [0, 30_000, 70_000]] = 0.0
    U = rules.memberships(Rule("fcm1", m=m), d)
    with np.errstate(divide="ignore"):
        expected = softmax(-np.log(np.maximum(d, 1e-200)) / (m - 1), axis=1)
    np.testing.assert_allclose(U, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_out_may_be_the_input(name):
    rule, d, Y = Rule(name, **PARAMETERS[name]), random_start(2, 3, 30), random_start(2, 3, 30, seed=1)
    d[0, 0, 0] = 0.0
    U = rules.memberships(rule, d)
    V = rules.weights(U, rule.theta)
    far, _ = rules.distances(Y, V, beta=[0.0, 2.0])
    assert rules.distances(Y, V, beta=[0.0, 2.0], out=Y)[0] is Y
    np.testing.assert_array_equal(far, Y)
    assert rules.memberships(rule, d, out=d) is d
    np.testing.assert_array_equal(U, d)
    np.testing.assert_array_equal(rules.weights(U, rule.theta, out=U).V, V.V)


# Negative distances


def test_clip_negative_counts_what_rounding_does_not_explain():
    d = np.array([[[-1e-15, -1e-3, 2.0]], [[-2e-12, 0.0, -1e-14]], [[1.0, 2.0, 3.0]]])
    assert rules.clip_negative(d, tol=[1e-12, 1e-12, 1e-12]).tolist() == [1, 1, 0]
    assert d.tolist() == [[[0.0, -1e-3, 2.0]], [[-2e-12, 0.0, 0.0]], [[1.0, 2.0, 3.0]]]
    assert rules.rounding(100, 3.0) == 300 * 2.0**-52
    assert rules.rounding(100, 3.0, dtype=np.float32) == 300 * 2.0**-23


def test_heal_by_hand():
    # v = (1/2, 1/2, 0): ||v||^2 = 1/2, so ||v - e_k||^2 = 1/2, 1/2, 3/2
    U = np.array([[[1.0, 1.0, 0.0]], [[1.0, 1.0, 0.0]]])
    W = rules.weights(U, 1.0)
    d = np.array([[[1.0, 2.0, -3.0]], [[1.0, 2.0, 3.0]]])
    np.testing.assert_allclose(rules.heal(d, W), [4.0, 0.0], rtol=1e-15)
    np.testing.assert_allclose(d, [[[2.0, 3.0, 0.0]], [[1.0, 2.0, 3.0]]], rtol=1e-15)


def test_heal_next_to_an_object_is_exact():
    # v = (1 - 2e, e, e): ||v - e_1||^2 = 4 e^2 + 2 e^2, where ||v||^2 - 2 v_1 + 1 has no correct digit left
    e = 1e-9
    W = rules.weights(np.array([[[1 - 2 * e, e, e]]]), 1.0)
    d = np.array([[[-3e-18, 1.0, 1.0]]])
    assert rules.heal(d, W)[0] == pytest.approx(1.0, rel=1e-6)
    single = rules.weights(np.array([[[0.0, 1.0, 0.0]]]), 1.0)
    d = np.array([[[1.0, 0.0, 2.0]]])
    assert rules.heal(d, single)[0] == 0
    assert d.tolist() == [[[1.0, 0.0, 2.0]]]


def test_heal_is_the_least_spread_that_does_it():
    D = noise(12) ** 4
    i, k = np.unravel_index(D.argmax(), D.shape)
    U = np.full((1, 1, 12), 1e-4)
    U[0, 0, [i, k]] = 1.0
    W = rules.weights(U, 1.0)
    d, _ = rules.distances(W.V @ D, W)
    assert d.min() < -0.1
    delta = rules.heal(d.copy(), W)[0]
    least = min(oracle.relational_distances(oracle.spread_matrix(D, delta), U[0], 1.0).ravel())
    assert least == pytest.approx(0.0, abs=1e-12)


def test_new_objects_are_seen_as_if_they_had_been_there_without_weight():
    D, beta = noise(20), 1.5
    U = random_start(2, 3, 20)
    U[:, :, 16:] = 0.0  # four objects that no centre knows
    everything = rules.weights(U, 1.3)
    d, _ = rules.distances(everything.V @ D, everything, beta=[0.0, beta])
    W = rules.weights(U[:, :, :16], 1.3)
    half = rules.distances(W.V @ D[:16, :16], W)[1]
    new = rules.new_distances(W.V @ D[:16, 16:], half, W.norms, beta=[0.0, beta])
    np.testing.assert_allclose(new, d[:, :, 16:], rtol=1e-12)


# Spreads, entropy, labels, induced dissimilarity


def test_eta_by_hand():
    U = np.array([[[1.0, 0.5, 0.1], [0.2, 0.4, 0.4]]])
    d = np.array([[[1.0, 3.0, 8.0], [5.0, 10.0, 20.0]]])
    # theta 1: (1 + 1.5 + 0.8) / 1.6 and (1 + 4 + 8) / 1; theta 2: (1 + 0.75 + 0.08) / 1.26 and (0.2 + 1.6 + 3.2) / 0.36
    np.testing.assert_allclose(rules.eta_from_weights(rules.weights(U, 1.0).V, d), [[3.3 / 1.6, 13.0]], rtol=1e-14)
    eta = rules.eta_from_weights(rules.weights(U, 2.0).V, d, scale=0.5)
    np.testing.assert_allclose(eta, [[0.5 * 1.83 / 1.26, 0.5 * 5.0 / 0.36]], rtol=1e-14)
    eta, none = rules.eta_above_cut(U, d, cut=0.3)
    assert eta.tolist() == [[2.0, 15.0]]
    assert none.tolist() == [[False, False]]
    eta, none = rules.eta_above_cut(U, d, cut=0.4)
    assert eta.tolist() == [[2.0, 0.0]]
    assert none.tolist() == [[False, True]]


def test_eta_overall_by_hand():
    # points 0, 2, 4 on a line: squared distances 4, 4, 16 twice; mean squared distance to the mean 8/3
    assert rules.eta_overall(48.0, 3, c=4, q=2.0) == pytest.approx(2 / 3, rel=1e-15)
    # with 3 added off the diagonal the sum is 48 + 18
    assert rules.eta_overall(48.0, 3, c=1, q=1.0, beta=3.0) == pytest.approx(66 / 18, rel=1e-15)


def test_entropy_by_hand():
    U = np.array([[[0.5, 1.0], [0.5, 0.0]], [[0.25, 0.25], [0.75, 0.75]]])
    expected = [np.log(2), 2 * (0.25 * np.log(4) + 0.75 * np.log(4 / 3))]
    np.testing.assert_allclose(rules.entropy(U), expected, rtol=1e-14)


def test_flat_runs():
    U = np.full((4, 3, 5), 1 / 3)
    U[1, 0, 4] += 0.02  # one object that leans is enough
    U[2] = [0.9, 0.1, 0.5, 0.2, 0.3]  # coincident possibilistic clusters
    U[3] = random_start(1, 3, 5)[0]
    assert rules.is_flat(U).tolist() == [True, False, True, False]
    assert not rules.is_flat(np.ones((1, 1, 5)))[0]


def test_a_collapsed_run_is_flat():
    D, U0 = euclidean(), random_start(1, 3, 30)
    top = np.linalg.eigvalsh(oracle.centred(D))[-1]
    threshold = 2 * top / 30
    above, below = (iterate(D, Rule("fcm2", lam=f * threshold), U0, max_iter=400)["U"] for f in (1.2, 0.5))
    assert rules.is_flat(above)[0]
    assert not rules.is_flat(below)[0]


def test_labels_and_change():
    U = np.array([[[0.5, 0.2, 0.3], [0.5, 0.8, 0.3], [0.0, 0.0, 0.4]]])
    assert rules.labels(U).tolist() == [[0, 1, 2]]
    moved = U.copy()
    moved[0, 0, 0] -= 0.3
    moved[0, 1, 0] += 0.4
    np.testing.assert_allclose(rules.change(moved, U), [0.4], rtol=1e-14)
    np.testing.assert_allclose(rules.change(moved, U, p=2), [0.5], rtol=1e-14)
    np.testing.assert_allclose(rules.change(moved, U, p=1), [0.7], rtol=1e-14)
    assert rules.change(U, U, p=2)[0] == 0


def test_induced_dissimilarity_is_a_part_of_the_whole_picture():
    U = random_start(1, 3, 12)[0]
    coupling = np.array([[sum(U[i, a] * U[i, b] for i in range(3)) for b in range(12)] for a in range(12)])
    whole = 1 - coupling / coupling.max()
    chosen = np.array([7, 2, 5])
    np.testing.assert_allclose(rules.induced_dissimilarity(U, chosen), whole[np.ix_(chosen, chosen)], atol=1e-14)
    np.testing.assert_array_equal(rules.induced_dissimilarity(np.zeros((2, 3)), np.arange(2)), 1.0)


# What a rule is


def test_exponents():
    assert Rule("fcm1", m=[1.5, 2.0]).theta.tolist() == [1.5, 2.0]
    assert Rule("pcm1", m=3, eta=[1]).theta.tolist() == [3.0]
    for rule in (Rule("fcm2", lam=3), Rule("pcm2", eta=[3]), Rule("hard")):
        assert rule.theta.tolist() == [1.0]


def test_take_keeps_the_parameters_of_the_runs_that_stay():
    rule = Rule("pcm1", m=2.0, eta=np.arange(1.0, 7.0).reshape(3, 2)).take(np.array([True, False, True]))
    assert rule.m.tolist() == [2.0]
    assert rule.eta.tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert Rule("fcm1", m=[1.5, 2.0, 2.5]).take(np.array([2])).m.tolist() == [2.5]
    assert Rule("fcm1", m=[1.5, 2.0]).take(np.zeros(2, dtype=bool)).m.tolist() == []


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("kmeans", {}, "unknown rule 'kmeans'; use one of fcm1, fcm2"),
        ("fcm1", {}, "fcm1 needs a value for fuzzifier"),
        ("fcm1", {"m": 1.0}, "fuzzifier is 1.0; give a finite number above 1"),
        ("fcm1", {"m": [2.0, np.nan]}, "fuzzifier is nan"),
        ("fcm1", {"m": np.inf}, "fuzzifier is inf"),
        ("fcm1", {"m": [[2.0]]}, r"fuzzifier has shape \(1, 1\); give at most 1 dimension$"),
        ("fcm2", {"lam": 0.0}, "entropy_weight is 0.0; give a finite number above 0"),
        ("fcm2", {"lam": 1.0, "m": 2.0}, "fcm2 takes no fuzzifier"),
        ("pcm2", {"eta": [1.0, -1.0]}, "eta is -1.0; give a finite number not negative"),
        ("hard", {"m": 2.0}, "hard takes no fuzzifier"),
    ],
)
def test_wrong_parameters_are_refused(name, words, message):
    with pytest.raises(InputError, match=message):
        Rule(name, **words)


def test_negligible_weights_are_zero():
    """As float32 they would be subnormal, and products with them slow."""
    U = np.array([[[1.0, 0.5, 1e-20, 1e-29, 1e-31, 1e-300], [1e-200, 2e-200, 0.0, 1e-231, 1e-229, 1e-300]]])
    V = rules.weights(U, 1.0).V[0]
    np.testing.assert_allclose(V[0], [1 / 1.5, 0.5 / 1.5, 1e-20 / 1.5, 1e-29 / 1.5, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(V[1], [1 / 3, 2 / 3, 0, 0, 1e-29 / 3, 0], rtol=1e-12)
    assert (V[V > 0].astype(np.float32) >= np.finfo(np.float32).tiny).all()
