"""One cluster in kernel space, against F10 written out densely: memberships, stops, cuts, predictions, scans."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from sklearn.datasets import load_digits

import dasrel
from dasrel.errors import DasrelWarning, InputError, Stopped
from dasrel.geometry.kernel_width import scale_of
from dasrel.oneclass import fit as oneclass
from dasrel.oneclass.fit import one_class, split_columns
from dasrel.oneclass.run import OneClassRun, rejected_count
from dasrel.oneclass.typicality import standing_out
from dasrel.partition.model import Model
from dasrel.util import progress
from tests.helpers import oneclass_oracle as oracle
from tests.helpers.faults import Killed, killed_after, stopped_after
from tests.helpers.matrices import blobs, distances, squared_of
from tests.helpers.stores import stored

PLAIN = {"tol": 1e-12, "stop": "sum"}


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(7)
    return np.concatenate([blobs(12, [[0, 0], [5, 1]], 4), rng.uniform(-9, 12, (6, 2))])


@pytest.fixture(scope="module")
def squared(points):
    return distances(points, "sqeuclidean")


@pytest.fixture(scope="module")
def matrix(squared, store_factory):
    return dasrel.open_matrix(store_factory(np.sqrt(squared), "distance", dtype="float64", tile=8))


# --------------------------------------------------------------------------------------------------------- the oracle


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize(("sigma", "gamma"), [(0.8, 1.0), (2.0, 0.5), (3.0, 8.0)])
def test_memberships_are_those_of_the_paper(matrix, squared, sigma, gamma, refit, constrained):
    gamma = max(gamma, 2.0) if refit else gamma  # else the cluster shrinks to a point
    run = OneClassRun(sigma, gamma, eta_refit=refit, constrained=constrained, **PLAIN)
    found = one_class(matrix, run).best
    K = oracle.gaussian_kernel(squared, sigma)
    u, eta, count, before = oracle.core(K, gamma, 1e-12, refit=refit, constrained=constrained)
    np.testing.assert_allclose(found.typicality, u, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.weights, before / before.sum(), rtol=0, atol=1e-9)
    assert (found.n_iter, found.converged) == (count, True)
    assert found.eta == pytest.approx(eta, rel=1e-9)


@pytest.mark.parametrize("kind", ["kernel", "similarity"])
def test_a_kernel_is_used_as_it_is(points, kind):
    K = points @ points.T + 3.0
    found = one_class(K, OneClassRun(eta_scale=2.0, **PLAIN), kind=kind).best
    u, eta, _, _ = oracle.core(K, 2.0, 1e-12)
    assert found.run.width is None
    np.testing.assert_allclose(found.typicality, u, rtol=0, atol=1e-9)
    assert found.eta == pytest.approx(eta, rel=1e-9)


def test_a_gaussian_of_a_kernel_and_a_relation_that_is_one(points, squared):
    S = points @ points.T
    u = oracle.core(oracle.gaussian_kernel(squared_of(S, "kernel"), 1.5), 1.0, 1e-12)[0]
    run = OneClassRun(1.5, **PLAIN)
    np.testing.assert_allclose(one_class(S, run, kind="kernel").best.typicality, u, rtol=0, atol=1e-9)
    seen = dasrel.relation(squared, kind="squared-distance").gaussian(1.5)
    found = one_class(seen, OneClassRun(**PLAIN)).best
    np.testing.assert_allclose(found.typicality, u, rtol=0, atol=1e-9)
    assert found.run.width == 1.5


def test_the_stop_of_table_i_by_sum_and_by_mean(squared):
    K = oracle.gaussian_kernel(squared, 2.0)
    for stop in ("sum", "mean"):
        found = one_class(squared, OneClassRun(2.0, tol=1e-3, stop=stop), kind="squared-distance").best
        u, _, count, _ = oracle.core(K, 1.0, 1e-3, per_object=stop == "mean")
        assert (found.n_iter, len(found.history)) == (count, count)
        np.testing.assert_allclose(found.typicality, u, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_float32_stores_and_two_workers(tmp_path, squared, client):
    matrix = stored(tmp_path / "d.zarr", np.sqrt(squared), "distance", dtype="float32", tile=8)
    runs = [OneClassRun(sigma, tol=1e-6) for sigma in (0.8, 2.0)]
    there = one_class(matrix, runs)
    for one in there.typicalities:
        u = oracle.core(oracle.gaussian_kernel(squared, one.run.width), 1.0, 1e-6, per_object=True)[0]
        np.testing.assert_allclose(one.typicality, u, rtol=0, atol=3e-6)


@pytest.mark.slow
def test_workers_and_threads_give_the_same_bits(matrix, workers):
    from dask.distributed import Client

    runs = [OneClassRun(), OneClassRun(0.8), OneClassRun(2.0, 0.5)]
    here = one_class(matrix, runs)
    with Client(workers.scheduler_address):
        there = one_class(matrix, runs)
    assert there.trials == here.trials
    np.testing.assert_array_equal(there.neighbourhood.distances, here.neighbourhood.distances)
    for a, b in zip(here.typicalities, there.typicalities, strict=True):
        np.testing.assert_array_equal(a.log_typicality, b.log_typicality)


# --------------------------------------------------------------------------------------------------------------- scans


@pytest.mark.slow
def test_all_widths_and_gammas_share_one_scan_per_iteration(matrix):
    runs = [OneClassRun(width, gamma, tol=1e-8) for width in (0.8, 1.5, 3.0) for gamma in (0.5, 1, 4)]
    alone = [one_class(matrix, run).best for run in runs]
    with progress.watch() as count:
        found = one_class(matrix, runs)
    assert found.scans == count.scans == 1 + max(one.n_iter for one in alone)  # the first finds the neighbours
    for one, other in zip(found.typicalities, alone, strict=True):
        assert one.n_iter == other.n_iter
        np.testing.assert_allclose(one.log_typicality, other.log_typicality, rtol=1e-12)


def test_an_automatic_width_takes_one_scan_more(matrix, squared):
    with progress.watch() as count:
        found = one_class(matrix)
    D = squared.copy()
    np.fill_diagonal(D, np.inf)
    d = np.sort(np.sqrt(D), axis=1)
    np.testing.assert_allclose(found.neighbourhood.distances, d[:, 6], rtol=1e-12)  # 30 objects: a quarter of 29
    assert found.neighbourhood.k == 7
    assert found.scale.typical == pytest.approx(np.quantile(d[:, 0], 0.9), rel=1e-12)
    tried = [trial.width for trial in found.trials]
    assert tried == pytest.approx(found.scale.typical * 2 ** np.arange(-3, 2.01, 0.5))
    chosen = tried.index(found.best.run.width)
    assert [one.run.width for one in found.ladders[0]] == tried[chosen - 2 : chosen + 3]
    assert found.best is found.ladders[0][2]
    assert found.scans == count.scans == 2 + max(one.n_iter for one in found.ladders[0])


def test_widths_are_compared_in_bundles_that_fit(matrix, monkeypatch):
    whole = one_class(matrix)
    original = oneclass.split_columns

    def split(relation, widths, memory):
        return [[0, 1, 2], list(range(3, 11))] if len(widths) == 11 else original(relation, widths, memory)

    monkeypatch.setattr(oneclass, "split_columns", split)
    parts = one_class(matrix)
    assert (parts.scans, parts.trials) == (whole.scans + 1, whole.trials)
    np.testing.assert_array_equal(parts.best.log_typicality, whole.best.log_typicality)


def test_little_memory_divides_the_runs(matrix, monkeypatch):
    runs = [OneClassRun(width) for width in (0.8, 1.0, 1.5, 2.0)]
    whole = one_class(matrix, runs)
    monkeypatch.setattr(
        oneclass, "split_columns", lambda relation, widths, memory: [[0], [1, 2], [3]] if len(widths) == 4 else []
    )
    with pytest.warns(DasrelWarning, match="memory does not allow 4 runs at once: they are made in 3 bundles"):
        parts = one_class(matrix, runs)
    for one, other in zip(whole.typicalities, parts.typicalities, strict=True):
        np.testing.assert_array_equal(one.log_typicality, other.log_typicality)


def test_bundles_are_as_wide_as_memory(matrix):
    seen = dasrel.relation(matrix)
    assert split_columns(seen, [1.0] * 5, 10**9) == [[0, 1, 2, 3, 4]]
    assert split_columns(seen, [1.0] * 3, 0) == [[0], [1], [2]]
    bundles = split_columns(seen, [0.1 * k for k in range(1, 60)], 150_000)
    assert [k for bundle in bundles for k in bundle] == list(range(59))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("scans", [1, 2, 4])
@pytest.mark.parametrize("how", [killed_after, stopped_after])
def test_a_resumed_computation_has_the_same_bits(matrix, tmp_path, scans, how):
    runs = [OneClassRun(), OneClassRun(1.5, 0.5, tol=1e-9), OneClassRun(4.0, max_iter=1)]
    with pytest.warns(DasrelWarning, match="1 of 7 runs did not converge"):
        whole = one_class(matrix, runs)
    keep = dasrel.Checkpoint(tmp_path / "kept")
    with pytest.raises((Killed, Stopped)), how(scans):
        one_class(matrix, runs, checkpoint=keep)
    with pytest.warns(DasrelWarning, match="1 of 7"):
        again = one_class(matrix, runs, checkpoint=replace(keep, resume=True))
    assert again.scans == whole.scans
    for one, other in zip(whole.typicalities, again.typicalities, strict=True):
        np.testing.assert_array_equal(one.log_typicality, other.log_typicality)
        assert (one.n_iter, one.history, one.eta) == (other.n_iter, other.history, other.eta)


# ---------------------------------------------------------------------------------------------------------------- cuts


def test_exactly_as_many_as_wanted_are_rejected(matrix):
    found = one_class(matrix, OneClassRun(1.5)).best
    for share, count in ((0.1, 3), (0.2, 6), (0.5, 15), (0.01, 1)):
        cut = found.outliers(share)
        assert cut.rejected.sum() == count
        np.testing.assert_array_equal(np.sort(np.flatnonzero(cut.rejected)), np.sort(cut.order[:count]))
        u = found.typicality
        assert u[cut.rejected].max() <= cut.alpha <= u[~cut.rejected].min()
        np.testing.assert_array_equal(np.argsort(u, kind="stable"), np.argsort(cut.ranks, kind="stable"))


def test_of_equal_objects_the_later_are_rejected_first():
    d = np.ones((6, 6)) - np.eye(6)
    found = one_class(d, OneClassRun(1.0), kind="distance").best
    assert np.ptp(found.log_typicality) < 1e-15
    tied = replace(found, log_typicality=np.zeros(6))
    np.testing.assert_array_equal(np.flatnonzero(tied.outliers(0.34).rejected), [3, 4, 5])


def test_objects_that_stand_out_are_rejected_by_themselves():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(200, 2)), [[9, 9], [-8, 7], [0, -10]]])
    found = one_class(distances(points), OneClassRun(0.7), kind="distance").best
    np.testing.assert_array_equal(np.flatnonzero(found.outliers().rejected), [200, 201, 202])
    regular = one_class(np.abs(np.subtract.outer(np.arange(60.0), np.arange(60.0))), OneClassRun(3.0), kind="distance")
    assert not regular.best.outliers().rejected.any()


def communities(n, groups, foreign, seed):
    """Return Bray-Curtis dissimilarities of simulated samples of 120 taxa, the first `foreign` unlike all others."""
    rng = np.random.default_rng(seed)
    kinds = rng.lognormal(0, 1.6, (groups, 120))
    shares = kinds[rng.integers(0, groups, n)] * rng.lognormal(0, 0.5, (n, 120))
    shares[:foreign] = rng.lognormal(0, 1.6, (foreign, 120))
    counts = np.array([rng.multinomial(2000, row / row.sum()) for row in shares])
    return squareform(pdist(counts, "braycurtis"))


@pytest.mark.parametrize("groups", [1, 3])
def test_planted_samples_stand_out_though_their_dissimilarities_are_bounded(groups):
    found = one_class(communities(300, groups, 12, groups), kind="distance").best
    cut = found.outliers()
    np.testing.assert_array_equal(np.sort(cut.order[:12]), np.arange(12))
    np.testing.assert_array_equal(np.flatnonzero(cut.rejected), np.arange(12))
    assert (cut.alone, cut.agreement()) == (12, (12, 12))


@pytest.mark.slow
def test_in_data_without_outliers_hardly_anything_stands_out():
    """At most 2 of 90 samples of clean data; the exponential bound of each is one of 100."""
    digits = load_digits().data
    samples = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        clean = [
            distances(rng.normal(size=(150, 2))), distances(rng.normal(size=(150, 20))),
            distances(rng.uniform(size=(150, 3))), communities(150, 1, 0, seed), communities(150, 3, 0, seed),
            distances(digits[rng.permutation(len(digits))[:150]]),
        ]  # fmt: skip
        samples += sum(bool(one_class(d, kind="distance").best.outliers().rejected.any()) for d in clean)
    assert samples <= 2


def test_gaps_of_an_exponential_tail_are_too_wide_in_one_of_a_hundred_samples():
    """Renyi 1953: j (x_(j) - x_(j+1)) of the largest are exponential; by Bonferroni at most 1 % have one above."""
    rng = np.random.default_rng(1)
    wide = sum(standing_out(rng.exponential(size=2000)) > 0 for _ in range(1000))
    assert wide <= 20  # binomial: 1 % and three standard deviations


def test_objects_that_only_their_neighbours_single_out_are_told():
    """A tight group looks typical to a narrow kernel: nothing is rejected, and the neighbours' ranks say why."""
    rng = np.random.default_rng(4)
    points = np.concatenate([rng.normal(size=(300, 3)), rng.normal(8, 0.1, (10, 3))])
    found = one_class(distances(points), OneClassRun(0.3), kind="distance").best
    cut = found.outliers()
    assert (cut.alone, int(cut.rejected.sum())) == (10, 0)
    np.testing.assert_array_equal(np.sort(cut.far[:10]), np.arange(300, 310))
    least = set(np.argsort(found.typicality)[:16]) & set(np.argsort(-found.neighbour_distances)[:16])
    assert cut.agreement() == (len(least), 16)  # a twentieth of 310 objects
    assert len(least) < 8
    assert sorted(cut.neighbour_ranks[300:]) == list(range(1, 11))


def test_counts_and_shares(matrix):
    found = one_class(matrix, OneClassRun(1.5)).best
    assert found.outliers(12).rejected.sum() == 12
    assert found.outliers(1).rejected.sum() == 1
    with pytest.raises(InputError, match="reject is 16 of 30 objects; give at most 15, half of them"):
        found.outliers(16)


@pytest.mark.parametrize("reject", [0, -1, -0.1, 0.51, 1.0, 12.0, float("nan"), True, None])
def test_what_cannot_be_rejected(reject):
    with pytest.raises(InputError, match=r"at most 0\.5, a whole number of objects such as 12, or \"auto\""):
        rejected_count(reject, 10)


# --------------------------------------------------------------------------------------------------------- new objects


@pytest.mark.parametrize("constrained", [False, True])
def test_new_objects_have_the_typicality_of_equation_28(matrix, points, squared, tmp_path, constrained):
    sigma = 1.5
    result = one_class(matrix, OneClassRun(sigma, constrained=constrained, **PLAIN))
    found = result.best
    cut = found.outliers(0.2)
    found.model(result.relation, cut.threshold).save(tmp_path / "m.npz")
    model = Model.load(tmp_path / "m.npz")
    new = np.array([[0.1, 0.3], [4, 4], [30, 30]])
    rows = np.sqrt(((new[:, None] - points[None]) ** 2).sum(axis=2))
    K = oracle.gaussian_kernel(squared, sigma)
    _, eta, _, before = oracle.core(K, 1.0, 1e-12, constrained=constrained)
    expected = [oracle.new_membership(row, K, before, eta) for row in oracle.gaussian_kernel(rows**2, sigma)]
    np.testing.assert_allclose(np.exp(model.score_samples(rows)), expected, rtol=1e-9)
    own = model.score_samples(np.sqrt(squared))
    np.testing.assert_array_equal(own < model.threshold, cut.rejected)


@pytest.mark.parametrize("width", [1.5, None])
def test_spreads_and_other_views_reach_new_objects(squared, width):
    seen = dasrel.relation(squared, kind="squared-distance").power(0.9).spread(0.4)
    result = one_class(seen, OneClassRun(width, **PLAIN))
    D = squared**0.9 + 0.4 * (1 - np.eye(len(squared)))
    K = -0.5 * D if width is None else oracle.gaussian_kernel(D, width)
    u, eta, _, before = oracle.core(K, 1.0, 1e-12)
    np.testing.assert_allclose(result.best.typicality, u, rtol=0, atol=1e-9)
    v, row = before / before.sum(), squared[3]
    new = row**0.9 + 0.4  # a new object at the place of an old one is another object
    own = new if width is None else oracle.gaussian_kernel(new, width)
    d = new @ v + v @ K @ v if width is None else 1 - 2 * own @ v + v @ K @ v
    model = result.best.model(result.relation)
    assert model.score_samples(row[None])[0] == pytest.approx(-d / eta, rel=1e-9)


def test_models_of_clusterings_have_no_typicality(squared):
    clustering = dasrel.cluster(squared, dasrel.Run("hard", 2), kind="squared-distance")
    with pytest.raises(InputError, match="the model of a clustering"):
        clustering.best.model.score_samples(squared)


def test_the_density_is_the_typicality_above_that_of_a_far_point(matrix, squared, points):
    found = one_class(matrix, OneClassRun(1.5, **PLAIN)).best
    K = oracle.gaussian_kernel(squared, 1.5)
    u, eta, _, before = oracle.core(K, 1.0, 1e-12)
    far = oracle.new_membership(np.zeros(len(points)), K, before, eta)
    np.testing.assert_allclose(found.density, u - far, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="a density needs a width"):
        _ = one_class(matrix, OneClassRun(None)).best.density


def test_large_gammas_give_kernel_density_estimates(matrix, squared):
    """F10 (35): for a large eta the order of the objects is that of the sums of kernels."""
    found = one_class(matrix, OneClassRun(1.5, 1e4)).best
    density = oracle.gaussian_kernel(squared, 1.5).mean(axis=1)
    np.testing.assert_allclose(found.kernel_sum_of(found.log_typicality), density, rtol=1e-4)


# -------------------------------------------------------------------------------------------------- clusters in kernels


def test_several_clusters_in_kernel_space_collapse_and_that_is_said(matrix, squared):
    """F10 (11) to (17): without competition the centres are one, which pcm2 on the kernel's distances reports."""
    seen = dasrel.relation(matrix).kernel_distance(1.5)
    K = oracle.gaussian_kernel(squared, 1.5)
    np.testing.assert_allclose(seen.left(np.eye(len(K))), 2 - 2 * K, rtol=1e-12, atol=1e-15)
    with pytest.warns(DasrelWarning, match="clusters without objects"):
        found = dasrel.cluster(seen, dasrel.grid("pcm2", 2, eta_scale=4.0, entropy_weight=0.1, n_init=3))
    assert not found.best.result.is_sound


# ----------------------------------------------------------------------------------------------------------- bad inputs


@pytest.mark.parametrize("width", [0, -1.0, float("nan"), float("inf"), "wide", True])
def test_widths_that_are_none(width):
    with pytest.raises(InputError, match=r"width is .*; give a finite number above 0, or"):
        OneClassRun(width)


@pytest.mark.parametrize("more", [{"eta_scale": 0}, {"stop": "max"}, {"tol": -1}, {"max_iter": 0}, {"tol": "x"}])
def test_other_parameters_that_are_refused(more):
    with pytest.raises(InputError, match=next(iter(more))):
        OneClassRun(**more)


def test_widths_without_neighbours_or_differences_name_the_usable_ones(matrix):
    with pytest.raises(InputError, match=r"0\.0001 \(no object sees another\).*from 0\.0.* to .*, or auto"):
        one_class(matrix, [OneClassRun(1.0), OneClassRun(1e-4)])
    with pytest.raises(InputError, match=r"1e\+08 \(all objects look equal\)") as told:
        one_class(matrix, OneClassRun(1e8))
    assert "{" not in told.value.text(lambda name, value: name)
    low, high = scale_of(dasrel.relation(matrix)).usable
    found = one_class(matrix, [OneClassRun(low), OneClassRun(high)])
    assert all(np.ptp(one.log_typicality) > 0 for one in found.typicalities)


def test_gammas_at_which_everything_underflows(squared):
    with pytest.raises(InputError, match=r"every typicality underflows at eta_scale 1e-06"):
        one_class(squared, OneClassRun(0.5, 1e-6, max_iter=1), kind="squared-distance")


def test_a_cluster_that_shrinks_to_one_object(squared):
    with pytest.warns(DasrelWarning, match=r"has shrunk to 1 object at eta_scale 0\.3"):
        found = one_class(squared, OneClassRun(2.0, 0.3, eta_refit=True), kind="squared-distance").best
    assert sorted(found.typicality)[-2:] == [0, 1]


def test_few_and_equal_objects():
    with pytest.raises(InputError, match="a single object"):
        one_class(np.zeros((1, 1)), kind="distance")
    two = one_class(np.array([[0, 1.0], [1, 0]]), OneClassRun(1.0), kind="distance").best
    assert two.typicality[0] == two.typicality[1]
    with pytest.warns(DasrelWarning, match="all objects are equal: every typicality is 1"):
        equal = one_class(np.zeros((4, 4)), kind="distance").best
    np.testing.assert_array_equal(equal.typicality, 1)
    assert not equal.outliers().rejected.any()
    np.testing.assert_array_equal(np.flatnonzero(equal.outliers(0.25).rejected), [3])


def test_duplicates_have_equal_typicality(points):
    twice = np.concatenate([points, points])
    found = one_class(distances(twice), kind="distance")
    np.testing.assert_allclose(found.best.typicality[:30], found.best.typicality[30:], rtol=1e-13)
    assert found.best.run.width > 0


def test_a_matrix_that_is_not_euclidean_still_has_typicalities(crooked_store):
    with pytest.warns(DasrelWarning, match="negative and set to 0.*not Euclidean"):
        found = one_class(crooked_store, OneClassRun(None)).best
    assert found.negative_distances > 0
    assert np.isfinite(found.typicality).all()


def test_what_is_refused_before_any_scan(matrix, squared):
    seen = dasrel.relation(matrix)
    with pytest.raises(InputError, match="there is no run"):
        one_class(matrix, [])
    with pytest.raises(InputError, match="is a Gaussian kernel already"):
        one_class(seen.gaussian(1.0), OneClassRun(2.0))
    with pytest.raises(InputError, match="a relation knows its kind"):
        one_class(seen, kind="distance")
    with pytest.raises(InputError, match="gaussian cannot follow a term"):
        one_class(seen.plus(dasrel.ultrametric(dasrel.minimum_spanning_tree(matrix)), 1.0), OneClassRun(1.0))
    with pytest.raises(InputError, match="there are 2 results"):
        _ = one_class(matrix, [OneClassRun(1.0), OneClassRun(2.0)]).best
