"""Block Lanczos and the spectrum's ends, against dense eigenvalues; scans counted, the same bits everywhere."""

import json
import tracemalloc
from dataclasses import replace

import dask
import numpy as np
import pytest
import scipy.linalg
from distributed import Client
from hypothesis import given, settings, strategies as st
from threadpoolctl import threadpool_limits

import dasrel
from dasrel.engine.relation import relation
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError
from dasrel.geometry.euclidean import spectrum
from dasrel.geometry.lanczos import LanczosState, Metric, Search, lanczos, search_memory
from dasrel.util.archives import read_state, write_state
from tests.helpers.matrices import K14, distances, mirrored, normal_points, simpson, symmetric
from tests.helpers.stores import stored


def gaussian_noise(n, seed=0):
    return mirrored(np.abs(np.random.default_rng(seed).normal(size=(n, n))))


def duplicated(n, seed=0):
    """Few different values, and every object several times."""
    rng = np.random.default_rng(seed)
    small = mirrored(rng.integers(1, 4, size=(n // 5, n // 5)).astype(float))
    which = rng.integers(0, n // 5, size=n)
    return small[np.ix_(which, which)]


def centred(D):
    """W(D) = -1/2 P D P, and an orthonormal basis of the centred vectors."""
    n = len(D)
    P = np.eye(n) - 1 / n
    basis = np.linalg.qr(np.hstack([np.ones((n, 1)), np.eye(n)[:, 1:]]))[0][:, 1:]
    return -0.5 * P @ D @ P, basis


def dense(D):
    """Eigenvalues of W(D) on the centred vectors, ascending."""
    with threadpool_limits(1):  # many small problems: threads would only wait for each other
        W, basis = centred(np.asarray(D, dtype=float))
        return np.linalg.eigvalsh(basis.T @ W @ basis)


def search_of(D, kind="squared-distance", **how):
    seen = relation(D, kind=kind)
    return lanczos(seen.gram, seen.n_objects, search=Search(**how))


def test_the_example_of_k14():
    found = search_of(K14, lowest=3)
    np.testing.assert_allclose(found.lowest.values, [-11.31, 15.77, 49.28], atol=0.005)  # its zero belongs to e
    assert (found.scans, found.stopped, found.converged) == (1, "exhausted", True)
    report = spectrum(K14, kind="squared-distance")
    assert report.is_euclidean is False
    assert report.n_negative == 1
    assert report.spread == pytest.approx(2 * 11.31, abs=0.01)


MATRICES = {
    "uniform noise": symmetric(300),
    "gaussian noise": gaussian_noise(200),
    "points": distances(normal_points(150, 3), "sqeuclidean"),
    "more dimensions than the block": distances(normal_points(120, 30), "sqeuclidean"),
    "tied": duplicated(200),
    "constant": mirrored(np.ones((40, 40))),
    "zero": np.zeros((30, 30)),
    "two": K14[:2, :2],
    "three": K14[:3, :3],
    "nine": symmetric(9),
    "ten": symmetric(10),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", MATRICES)
def test_both_ends_agree_with_the_dense_eigenvalues(name, dtype):
    D = MATRICES[name].astype(dtype)
    n, exact = len(D), dense(D)
    rounding = n * np.finfo(dtype).eps * D.max()
    search = Search(lowest=3, highest=2, tol=1e-4, floor=rounding, vectors=True)
    states = []
    found = lanczos(relation(D, kind="squared-distance").gram, n, search=search, on_step=states.append)
    assert found.converged
    basis = np.vstack([*states[-1].basis, states[-1].fresh])
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-13)
    W, _ = centred(D.astype(float))
    for end, expected in ((found.lowest, exact[:3]), (found.highest, exact[::-1][:2])):
        assert len(end.values) == len(expected)
        np.testing.assert_allclose(end.values, expected, rtol=1e-6, atol=rounding)
        assert (np.abs(end.values - expected) <= end.residuals + rounding).all()
        assert end.vectors.shape == (n, len(expected))
        np.testing.assert_allclose(end.vectors.T @ end.vectors, np.eye(len(expected)), atol=1e-12)
        np.testing.assert_allclose(end.vectors.sum(axis=0), 0, atol=1e-6)
        true = np.linalg.norm(W @ end.vectors - end.vectors * end.values, axis=0)
        np.testing.assert_allclose(true, end.residuals, rtol=0.01, atol=rounding)
    assert (found.ritz >= exact[0] - rounding).all()
    assert (found.ritz <= exact[-1] + rounding).all()


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 40),
    block=st.integers(1, 12),
    lowest=st.integers(0, 6),
    highest=st.integers(0, 6),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_any_shape_gives_the_ends_of_the_spectrum(n, block, lowest, highest, seed, scale):
    D = scale * gaussian_noise(n, seed)
    if lowest + highest == 0:
        lowest = 1
    found = search_of(D, lowest=lowest, highest=highest, block=block, tol=1e-9)
    exact, close = dense(D), 1e-7 * scale * n
    assert found.converged
    np.testing.assert_allclose(found.lowest.values, exact[:lowest], atol=close, rtol=0)
    np.testing.assert_allclose(found.highest.values, exact[::-1][:highest], atol=close, rtol=0)


def test_more_values_than_one_block_can_see():
    """Of a multiple eigenvalue a block sees as many copies as it is wide: another block is drawn."""
    D = mirrored(np.ones((50, 50)))
    found = search_of(D, lowest=10, block=4)
    np.testing.assert_allclose(found.lowest.values, np.full(10, 0.5), rtol=1e-14)
    assert (found.scans, found.stopped) == (3, "exhausted")


def test_operators_that_are_not_centred():
    D = symmetric(200)
    seen = relation(D, kind="squared-distance")
    search = Search(lowest=2, highest=2, tol=1e-8, centre=False)
    found = lanczos(seen.matmat, 200, search=search)
    exact = np.linalg.eigvalsh(D)
    np.testing.assert_allclose(found.lowest.values, exact[:2], rtol=1e-12)
    np.testing.assert_allclose(found.highest.values, exact[::-1][:2], rtol=1e-12)
    assert found.highest.vectors is None
    kernel = lanczos(seen.gaussian(0.5).matmat, 200, search=search)
    np.testing.assert_allclose(kernel.highest.values, np.linalg.eigvalsh(np.exp(-D / 0.5))[::-1][:2], rtol=1e-12)
    same = lanczos(lambda V: V, 200, search=Search(lowest=2, centre=False, vectors=True))  # returns what it was given
    np.testing.assert_allclose(same.lowest.values, 1, rtol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(same.lowest.vectors, axis=0), 1, rtol=1e-12)
    assert same.scans == 1


@pytest.mark.parametrize("n", [3, 10, 150])
def test_a_pencil_agrees_with_scipy(n):
    rng = np.random.default_rng(n)
    A, basis = centred(symmetric(n, 1))
    X = rng.normal(size=(n, n + 5))
    P = np.eye(n) - 1 / n
    B = P @ X @ X.T @ P
    inverse = basis @ np.linalg.inv(basis.T @ B @ basis) @ basis.T
    exact = scipy.linalg.eigh(basis.T @ A @ basis, basis.T @ B @ basis, eigvals_only=True)
    metric = Metric(product=lambda V: B @ V, solve=lambda V: inverse @ V)
    search = Search(lowest=2, highest=1, tol=1e-6, vectors=True)
    found = lanczos(lambda V: A @ V, n, search=search, metric=metric)
    assert found.converged
    np.testing.assert_allclose(found.lowest.values, exact[:2], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.highest.values, exact[-1:], rtol=1e-9)
    x = found.lowest.vectors
    np.testing.assert_allclose(x.T @ B @ x, np.eye(2), atol=1e-9)
    r = inverse @ (A @ x) - x * found.lowest.values
    np.testing.assert_allclose(
        np.sqrt(np.einsum("ij,ij->j", r, B @ r)), found.lowest.residuals, rtol=0.05, atol=1e-11 * abs(exact).max()
    )


def test_the_pencil_with_itself_is_one():
    B, _ = centred(distances(normal_points(30, 40), "sqeuclidean"))
    inverse = np.linalg.pinv(B, rcond=1e-10)
    metric = Metric(product=lambda V: B @ V, solve=lambda V: inverse @ V)
    found = lanczos(lambda V: B @ V, 30, metric=metric, search=Search(highest=1))
    assert found.lowest.values[0] == pytest.approx(1, rel=1e-9)
    assert found.highest.values[0] == pytest.approx(1, rel=1e-9)


def test_scans_on_digits_are_those_of_a_good_block_lanczos(tmp_path):
    """At most two more than 5, 6 and 8, which a dense reference with block 8 needs on such data."""
    S = simpson(1000)
    own = np.diagonal(S)
    exact = dense(own[:, None] + own[None, :] - 2 * S)
    matrix = stored(tmp_path / "digits.zarr", S, kind="similarity", tile=512, dtype="float32")
    seen = relation(matrix)
    for tol, scans in ((1e-2, 5), (1e-3, 6), (1e-6, 8)):
        with dasrel.watch() as meter:
            found = lanczos(seen.gram, matrix.n_objects, search=Search(tol=tol))
        assert found.stopped == "converged"
        assert meter.scans == found.scans == len(found.history) <= scans + 2
        assert meter.tiles == found.scans * len(matrix.layout.tiles())
        assert abs(found.lowest.values[0] - exact[0]) <= found.lowest.residuals[0] <= tol * abs(exact[0])
    lowest = found.history[:, 0]
    assert (np.diff(lowest) <= 1e-6 * abs(exact[0])).all()  # a Ritz value only falls
    assert (np.diff(found.history[:, 2]) >= -1e-6 * exact[-1]).all()


def test_float32_products_end_at_their_rounding_and_say_so():
    D = symmetric(500).astype(np.float32)
    found = search_of(D, tol=1e-12, vectors=True)
    assert (found.stopped, found.converged) == ("rounding", False)
    assert found.scans < 60
    W, _ = centred(D.astype(float))
    x = found.lowest.vectors[:, 0]
    true = np.linalg.norm(W @ x - found.lowest.values[0] * x)
    assert true / 3 <= found.lowest.residuals[0] <= 3 * true
    assert true / 3 <= found.noise <= 3 * true
    assert found.lowest.values[0] == pytest.approx(dense(D)[0], rel=1e-6)


def test_a_budget_that_is_too_small_gives_the_best_so_far():
    D = symmetric(400)
    found = search_of(D, max_scans=4)
    assert (found.scans, found.stopped, found.converged) == (4, "scans", False)
    assert dense(D)[0] <= found.lowest.values[0]
    with pytest.warns(DasrelWarning, match=r"4 scans were not enough.*raise max_scans") as report:
        result = spectrum(D, kind="squared-distance", max_scans=4)
    assert "\n" not in str(report[0].message)
    assert report[0].filename == __file__
    assert result.is_euclidean is False
    assert result.spread == -2 * (result.lowest[0] - result.lowest_residuals[0])
    assert dense(D + result.spread * (1 - np.eye(400)))[0] >= 0


def test_memory_is_a_budget_too():
    work, one, _ = search_memory(Search(max_scans=40), 400, 399, False)
    assert one == 8 * 400 * 8
    found = search_of(symmetric(400), max_scans=40, memory=work + 5 * one)
    assert (found.scans, found.stopped, found.converged) == (5, "memory", False)
    with pytest.raises(MemoryLimitError, match=r"eigenvalues of 400 objects need .* raise memory"):
        search_of(symmetric(400), memory="100kB")
    work, one, _ = search_memory(Search(), 400, 399, False)
    with pytest.warns(DasrelWarning, match="memory for the basis was full"):
        spectrum(symmetric(400), kind="squared-distance", memory=2 * (work + 5 * one), tol=1e-9)


@pytest.mark.parametrize("with_metric", [False, True])
def test_memory_is_predicted(with_metric):
    """With a limit just above what is predicted for ten scans, ten scans stay below the limit."""
    n, values = 20_000, np.linspace(-1, 1, 20_000)[:, None]
    metric = Metric(product=lambda V: V * 2, solve=lambda V: V / 2) if with_metric else None
    search = Search(max_scans=10, tol=1e-9, centre=False, vectors=True)
    work, step, scans = search_memory(search, n, n, with_metric)
    assert scans == 10
    limit = work + 10 * step
    search = replace(search, memory=limit)
    tracemalloc.start()
    try:
        found = lanczos(lambda V: values * V, n, search=search, metric=metric)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.scans, found.stopped) == (10, "scans")
    assert 0.5 * limit < peak <= limit


@pytest.mark.parametrize("with_metric", [False, True])
def test_a_search_goes_on_from_a_file_to_the_same_bits(tmp_path, with_metric):
    D = symmetric(300).astype(np.float32)
    seen = relation(D, kind="squared-distance")
    weights = np.linspace(1, 2, 300)[:, None]
    metric = Metric(product=lambda V: V * weights, solve=lambda V: V / weights) if with_metric else None
    how = {"search": Search(lowest=2, highest=1, centre=not with_metric, vectors=True), "metric": metric}
    whole = lanczos(seen.gram, 300, **how)
    path = tmp_path / "search.npz"

    def save(state):
        write_state(path, state.packed())
        if state.scans == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lanczos(seen.gram, 300, on_step=save, **how)
    assert [p.name for p in tmp_path.iterdir()] == ["search.npz"]
    calls = []
    state = LanczosState.unpacked(read_state(path))
    rest = lanczos(seen.gram, 300, state=state, on_step=lambda state: calls.append(state.scans), **how)
    assert calls == list(range(6, whole.scans + 1))
    same_bits(rest, whole)
    # A finished search can be asked for more.
    state = LanczosState.unpacked(read_state(path))
    assert lanczos(seen.gram, 300, state=state, search=Search(centre=not with_metric, tol=0.5), metric=metric).scans < 8
    same_bits(lanczos(seen.gram, 300, state=state, **how), whole)


def same_bits(a, b):
    assert (a.scans, a.stopped, a.noise) == (b.scans, b.stopped, b.noise)
    for x, y in ((a.lowest, b.lowest), (a.highest, b.highest)):
        assert (x.values == y.values).all()
        assert (x.residuals == y.residuals).all()
        assert (x.vectors == y.vectors).all()
    assert (a.history == b.history).all()
    assert (a.ritz == b.ritz).all()


def test_states_that_do_not_fit_are_refused():
    seen = relation(symmetric(50), kind="squared-distance")
    kept = []
    lanczos(seen.gram, 50, search=Search(max_scans=2), on_step=kept.append)
    with pytest.raises(InputError, match="50 objects and block 8, this one 50 and block 4"):
        lanczos(seen.gram, 50, search=Search(block=4), state=kept[0])
    with pytest.raises(InputError, match="both have a metric, or neither"):
        lanczos(seen.gram, 50, state=kept[0], metric=Metric(product=lambda V: V, solve=lambda V: V))


def test_the_same_bits_on_threads_and_on_two_processes(tmp_path, workers):
    D = symmetric(1600)
    matrix = stored(tmp_path / "d.zarr", D, tile=256, dtype="float64")
    search = Search(lowest=1, highest=1, max_scans=6, vectors=True)

    def run():
        seen = relation(dasrel.open_matrix(matrix.store))
        return lanczos(seen.gram, 1600, search=search)

    with dask.config.set(num_workers=1):
        one = run()
    with dask.config.set(num_workers=4), threadpool_limits(1):
        same_bits(run(), one)
    with Client(workers):
        same_bits(run(), one)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lowest": 0}, "at least one eigenvalue"),
        ({"lowest": -1, "highest": 3}, "at least one eigenvalue"),
        ({"tol": 0.0}, "tol lies between 0 and 1"),
        ({"tol": float("nan")}, "tol lies between 0 and 1"),
        ({"floor": -1.0}, "floor is >= 0"),
        ({"block": 0}, "block and max_scans are at least 1"),
        ({"max_scans": 0}, "block and max_scans are at least 1"),
    ],
)
def test_searches_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        Search(**wrong)


def test_operators_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="1 object has no spectrum"):
        lanczos(lambda V: V, 1)
    with pytest.raises(InputError, match=r"shape \(3, 8\) for \(20, 8\)"):
        lanczos(lambda V: V[:3], 20)
    with pytest.raises(InputError, match="NaN or infinite"):
        lanczos(lambda V: V * np.nan, 20)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["points", "more dimensions than the block", "constant", "zero", "two", "three"])
def test_euclidean_matrices_are_recognised(name, dtype):
    D = MATRICES[name].astype(dtype) if name != "three" else distances(normal_points(3, 2), "sqeuclidean").astype(dtype)
    result = spectrum(D, kind="squared-distance")
    exact = dense(D)
    assert result.is_euclidean is True
    assert (result.spread, result.n_negative, result.converged) == (0.0, 0, True)
    assert result.entropy_threshold == pytest.approx(2 * exact[-1] / len(D), rel=1e-5)
    assert len(result.lowest) == len(result.highest) == min(8, len(D) - 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_spread_makes_a_matrix_euclidean_and_hardly_more(dtype):
    for D in (
        symmetric(300),
        gaussian_noise(100),
        duplicated(100),
        distances(normal_points(60, 3), "sqeuclidean") ** 2,
        K14,
    ):
        D = D.astype(dtype)
        n, exact = len(D), dense(D)
        result = spectrum(D, kind="squared-distance")
        assert result.is_euclidean is False
        assert -2 * exact[0] <= result.spread + result.rounding
        assert result.spread <= -2 * exact[0] * 1.002 + result.rounding
        assert result.lowest[0] == pytest.approx(exact[0], rel=1e-3)
        assert result.highest[0] == pytest.approx(exact[-1], rel=1e-3)
        assert 0 < result.n_negative <= (exact < 0).sum()
        threshold = 2 * exact[-1] / n  # of the matrix as it is: fcm2 runs without the spread
        assert result.entropy_threshold == pytest.approx(threshold, rel=2e-3)
        shifted = spectrum(relation(D, kind="squared-distance").spread(result.spread))
        assert shifted.is_euclidean is not False


def test_a_store_its_path_an_array_and_a_relation_give_the_same(tmp_path):
    S = simpson(300)
    matrix = stored(tmp_path / "s.zarr", S, kind="similarity", tile=128, dtype="float64")
    with dasrel.watch() as meter:
        result = spectrum(matrix)
    assert meter.scans == result.scans == len(result.history)
    assert spectrum(tmp_path / "s.zarr") == spectrum(relation(matrix)) == result
    assert spectrum(S, kind="similarity").lowest == pytest.approx(result.lowest, rel=1e-9)
    own = np.diagonal(S)
    exact = dense(own[:, None] + own[None, :] - 2 * S)
    for values, residuals, expected in (
        (result.lowest, result.lowest_residuals, exact[:8]),
        (result.highest, result.highest_residuals, exact[::-1][:8]),
    ):
        assert (np.abs(np.array(values) - expected) <= np.array(residuals) + 1e-9).all()
    report = json.loads(json.dumps(result.as_dict()))
    assert report["lowest"] == list(result.lowest)
    assert report["is_euclidean"] is False
    with pytest.raises(InputError, match="n_values is at least 1"):
        spectrum(matrix, n_values=0)
    with pytest.raises(InputError, match="no dissimilarity"):
        spectrum(relation(matrix).gaussian(1.0))


def test_an_undecided_matrix_is_reported_as_undecided():
    """A matrix that is just Euclidean, looked at too briefly: no verdict, and a spread that is safe."""
    D = symmetric(600)
    D += -2 * dense(D)[0] * 1.0001 * (1 - np.eye(600))
    with pytest.warns(DasrelWarning, match="3 scans were not enough"):
        result = spectrum(D, kind="squared-distance", max_scans=3)
    assert result.is_euclidean is None
    assert result.as_dict()["is_euclidean"] is None
    assert result.n_negative == 0
    whole = spectrum(D, kind="squared-distance", max_scans=75)  # 75 times 8 are more than there are dimensions
    assert (whole.is_euclidean, whole.spread) == (True, 0.0)
