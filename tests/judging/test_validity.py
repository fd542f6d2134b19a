"""Validity indices against scikit-learn, feature space and sums over pairs; their scans and memory; bad input."""

from unittest import mock

import dask
import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn import metrics

import dasrel
from dasrel.engine.relation import relation
from dasrel.errors import InputError, MemoryLimitError
from dasrel.names import INDICES
from dasrel.util import progress
from tests.helpers.faults import quiet
from tests.helpers.matrices import distances, grouped_points, non_metric, squared, symmetric
from tests.helpers.runs import grid
from tests.helpers.stores import stored

N = 120
POINTS = grouped_points(N)
GROUPS = np.arange(N) % 3


def some_labels(n, clusters, seed=0):
    """Labels that follow the groups for the most part; every cluster has an object."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < 0.8, np.arange(n) % clusters, rng.integers(0, clusters, n))
    labels[:clusters] = np.arange(clusters)
    return labels


def some_memberships(n, clusters, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(clusters, 0.4), n)


def in_feature_space(X, U, m):
    """The indices of centres as their papers define them, by points X (n, p) and memberships (c, n)."""
    w = U**m
    c, n = U.shape
    centres = w @ X / w.sum(axis=1, keepdims=True)
    d = cdist(centres, X)
    apart = cdist(centres, centres)
    other = ~np.eye(c, dtype=bool)
    J = (w * d**2).sum()
    least = apart[other].min() ** 2
    to_mean = X - X.mean(axis=0)
    S = (w * d).sum(axis=1) / w.sum(axis=1)
    R = np.array([max((S[i] + S[j]) / apart[i, j] for j in range(c) if j != i) for i in range(c)])
    return {
        "xie_beni": J / (n * least),
        "kwon": (J + ((centres - X.mean(axis=0)) ** 2).sum() / c) / least,
        "pbm": (np.sqrt((to_mean**2).sum(axis=1)).sum() * apart.max() / (c * (w * d).sum())) ** 2,
        "davies_bouldin": R.mean(),
    }


def by_pairs(d, labels):
    """The indices of pairs, from the list of all pairs."""
    i, j = np.triu_indices(len(d), 1)
    different = labels[i] != labels[j]
    pairs = d[i, j]
    return {
        "within_between": pairs[~different].mean() / pairs[different].mean(),
        "pearson_gamma": np.corrcoef(pairs, different)[0, 1],
        "dunn": pairs[different].min() / pairs[~different].max(),
    }


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("clusters", [2, 3, 7, 40])
def test_indices_of_labels_are_scikit_learns(clusters):
    d, labels = distances(POINTS), some_labels(N, clusters)
    found = dasrel.validity(d, labels, kind="distance")
    theirs = metrics.silhouette_samples(d, labels, metric="precomputed")
    np.testing.assert_allclose(found.silhouettes[0], theirs, atol=1e-12)
    np.testing.assert_allclose(dasrel.silhouette_samples(d, labels, kind="distance"), theirs, atol=1e-12)
    assert found["silhouette"][0] == pytest.approx(metrics.silhouette_score(d, labels, metric="precomputed"))
    assert found["fuzzy_silhouette"][0] == found["silhouette"][0]
    assert found["calinski_harabasz"][0] == pytest.approx(metrics.calinski_harabasz_score(POINTS, labels))
    assert found["davies_bouldin"][0] == pytest.approx(metrics.davies_bouldin_score(POINTS, labels))
    means = [theirs[labels == k].mean() for k in range(clusters)]
    np.testing.assert_allclose(found.cluster_silhouettes[0], means, atol=1e-12)


@pytest.mark.parametrize("kind", ["distance", "squared-distance", "similarity", "kernel"])
def test_all_kinds_agree_with_feature_space_and_with_pairs(kind):
    d = distances(POINTS)
    products = POINTS @ POINTS.T
    values = {"distance": d, "squared-distance": d**2}.get(kind, (products + products.T) / 2)
    U, labels = some_memberships(N, 4), some_labels(N, 5)
    found = dasrel.validity(values, {"fuzzy": U, "labels": labels}, kind=kind, fuzzifier=1.7, indices=list(INDICES))
    one_hot = np.eye(5)[labels]
    for k, (u, m, mine) in enumerate([(U, 1.7, U.argmax(axis=1)), (one_hot, 1.0, labels)]):
        expected = {**in_feature_space(POINTS, u.T, m), **by_pairs(d, mine)}
        expected["calinski_harabasz"] = metrics.calinski_harabasz_score(POINTS, mine)
        expected["silhouette"] = metrics.silhouette_score(d, mine, metric="precomputed")
        expected["partition_coefficient"] = (u**2).sum() / N
        c = u.shape[1]
        expected["modified_partition_coefficient"] = 1 - c / (c - 1) * (1 - (u**2).sum() / N)
        expected["partition_entropy"] = -sum(x * np.log(x) for x in u.ravel() if x > 0) / N
        for name, value in expected.items():
            assert found[name][k] == pytest.approx(value, rel=1e-6), (name, k)


def test_the_fuzzy_silhouette_weighs_objects_by_their_two_largest_memberships():
    d, U = distances(POINTS), some_memberships(N, 4)
    s = metrics.silhouette_samples(d, U.argmax(axis=1), metric="precomputed")
    ordered = np.sort(U, axis=1)
    weights = ordered[:, -1] - ordered[:, -2]
    found = dasrel.validity(d, U, kind="distance", indices=["fuzzy_silhouette"])
    assert found["fuzzy_silhouette"][0] == pytest.approx((weights * s).sum() / weights.sum(), rel=1e-12)


def test_a_cluster_of_one_object_has_silhouette_0_and_equal_objects_too():
    d = np.array([[0, 1, 5.0], [1, 0, 5], [5, 5, 0]])
    np.testing.assert_allclose(dasrel.silhouette_samples(d, [0, 0, 7], kind="distance"), [0.8, 0.8, 0])
    equal = np.zeros((4, 4))
    np.testing.assert_array_equal(dasrel.silhouette_samples(equal, list("aabb"), kind="distance"), np.zeros(4))


def test_float32_stores_agree_with_scikit_learn_to_six_digits(tmp_path):
    X = grouped_points(700, apart=2.0)
    d = distances(X, dtype="float32")
    matrix = stored(tmp_path / "m", d, tile=128)
    partitions = [some_labels(700, c) for c in (2, 5, 9)]
    found = dasrel.validity(matrix, partitions)
    for k, labels in enumerate(partitions):
        theirs = metrics.silhouette_samples(d.astype(np.float64), labels, metric="precomputed")
        np.testing.assert_allclose(found.silhouettes[k], theirs, atol=1e-6)
        assert found["calinski_harabasz"][k] == pytest.approx(metrics.calinski_harabasz_score(X, labels), rel=1e-5)
        assert found["davies_bouldin"][k] == pytest.approx(metrics.davies_bouldin_score(X, labels), rel=1e-5)


def test_views_spreads_and_ultrametrics_are_judged_as_they_are_seen(tmp_path):
    matrix = stored(tmp_path / "m", non_metric(60), "squared-distance", dtype="float64", tile=16)
    tree = dasrel.ultrametric(dasrel.minimum_spanning_tree(matrix))
    labels, U = np.arange(60) % 3, some_memberships(60, 3)
    base = relation(matrix)
    for seen in (base.spread(7.5), base.power(0.4), base.log(1.2).spread(2.0), base.plus(tree, 0.8)):
        D = seen.rows(range(60))
        np.fill_diagonal(D, 0)  # but for rounding it is
        found = dasrel.validity(seen, [labels, U])
        dense = dasrel.validity((D + D.T) / 2, [labels, U], kind="squared-distance")
        theirs = metrics.silhouette_samples(np.sqrt(D), labels, metric="precomputed")
        np.testing.assert_allclose(found.silhouettes[0], theirs, atol=1e-9)
        for name in found.values:
            np.testing.assert_allclose(found[name], dense[name], rtol=1e-9, err_msg=name)
    for seen in (base.spread(7.5), base.power(0.4), base.log(1.2).spread(2.0)):
        pairs = by_pairs(np.sqrt(seen.rows(range(60))), labels)
        assert dasrel.validity(seen, labels, indices=["dunn"])["dunn"][0] == pytest.approx(pairs["dunn"])


def test_a_negative_squared_dissimilarity_has_distance_0():
    S = symmetric(40, kind="similarity") + 3 * (1 - np.eye(40))  # off the diagonal more similar than to themselves
    D = np.diag(S)[:, None] + np.diag(S) - 2 * S
    assert (D < 0).any()
    d, labels = np.sqrt(np.maximum(D, 0)), np.arange(40) % 2
    found = dasrel.validity(S, labels, kind="similarity", indices=list(INDICES))
    np.testing.assert_allclose(
        found.silhouettes[0], metrics.silhouette_samples(d, labels, metric="precomputed"), atol=1e-12
    )
    assert found["pearson_gamma"][0] == pytest.approx(by_pairs(d, labels)["pearson_gamma"])
    assert found["within_between"][0] == pytest.approx(by_pairs(d, labels)["within_between"])


def test_a_cluster_that_is_nowhere_the_largest_has_no_silhouette_and_disturbs_no_other():
    d, U = distances(POINTS), np.zeros((N, 4))
    U[np.arange(N), np.array([0, 1, 3])[GROUPS]] = 0.7
    U[:, 2] = 0.3
    found = dasrel.validity(d, U, kind="distance")
    assert found.n_clusters == (3,)
    theirs = metrics.silhouette_samples(d, GROUPS, metric="precomputed")
    np.testing.assert_allclose(found.silhouettes[0], theirs, atol=1e-12)
    assert np.isnan(found.cluster_silhouettes[0]).tolist() == [False, False, True, False]
    assert found["xie_beni"][0] == pytest.approx(in_feature_space(POINTS, U.T, 2.0)["xie_beni"])


# ------------------------------------------------------------------------------------------------------ scans, memory


def test_all_indices_of_many_partitions_take_one_scan(tmp_path):
    matrix = stored(tmp_path / "m", distances(POINTS), tile=50)
    partitions = [*(some_labels(N, c) for c in range(2, 21)), *(some_memberships(N, c) for c in (2, 3, 4))]
    with progress.watch() as counted:
        found = dasrel.validity(matrix, partitions, indices=list(INDICES))
    assert counted.scans == found.scans == 1
    with progress.watch() as counted:
        assert dasrel.validity(matrix, partitions, indices=["partition_entropy"]).scans == 0
    assert counted.scans == 0


def test_partitions_that_do_not_fit_together_take_several_scans_and_have_the_same_values():
    d = distances(grouped_points(400))
    partitions = [some_labels(400, c) for c in range(2, 12)] + [some_memberships(400, 5)]
    together = dasrel.validity(d, partitions, kind="distance")
    with progress.watch() as counted:
        divided = dasrel.validity(d, partitions, kind="distance", memory="5MB")
    assert counted.scans == divided.scans > 1 == together.scans
    for name in together.values:
        np.testing.assert_allclose(divided[name], together[name], rtol=1e-12)
    with progress.watch() as counted, pytest.raises(MemoryLimitError, match="validity indices of a partition"):
        dasrel.validity(d, partitions, kind="distance", memory="100kB")
    assert counted.scans == 0


def test_workers_and_threads_give_the_same_bits(client, tmp_path):
    matrix = stored(tmp_path / "m", distances(POINTS), tile=32)
    partitions = [some_labels(N, 3), some_labels(N, 40), some_memberships(N, 4)]
    with progress.watch() as counted:
        there = dasrel.validity(matrix, partitions, indices=list(INDICES))
    assert counted.scans == there.scans == 1
    results = []
    for threads in (1, 3):
        with dask.config.set(num_workers=threads), mock.patch("dasrel.util.parallel.active_client", return_value=None):
            results.append(dasrel.validity(matrix, partitions, indices=list(INDICES)))
    for here in results:
        for name in INDICES:
            np.testing.assert_array_equal(here[name], there[name], err_msg=name)
        for mine, theirs in zip(here.silhouettes, there.silhouettes, strict=True):
            np.testing.assert_array_equal(mine, theirs)


# ------------------------------------------------------------------------------------------------------------- results


def test_every_run_of_a_clustering_is_judged_in_one_scan(tmp_path):
    matrix = stored(tmp_path / "m", squared(90), "squared-distance", dtype="float64", tile=32)
    result = quiet(dasrel.cluster, matrix, grid("fcm1", [1, 2, 3, 4], fuzzifier=1.3, n_init=2), keep_all=True)
    with progress.watch() as counted:
        found = result.validity()
    assert counted.scans == 1
    assert found.names == tuple(f"run {k}" for k in range(8))
    assert found.best() in (4, 5)
    assert np.isnan(found["silhouette"][:2]).all()
    d = np.sqrt(squared(90))
    for one, s in zip(result.kept[2:], found.silhouettes[2:], strict=True):
        np.testing.assert_allclose(s, metrics.silhouette_samples(d, one.labels, metric="precomputed"), atol=1e-9)
    three = result.kept[4]
    expected = in_feature_space(grouped_points(90), three.memberships.T, 1.3)
    for name, value in expected.items():
        assert found[name][4] == pytest.approx(value, rel=1e-6)
    same = dasrel.validity(matrix, three)
    assert same["xie_beni"][0] == pytest.approx(expected["xie_beni"], rel=1e-6)
    best = quiet(dasrel.cluster, matrix, grid("hard", [2, 3], n_init=3)).validity(samples=False)
    assert len(best.names) == 2
    assert best.silhouettes == ()


def test_the_table_says_what_is_best_and_what_is_not_defined():
    d = distances(POINTS)
    found = dasrel.validity(d, {"right": GROUPS, "wrong": np.arange(N) // 60}, kind="distance")
    for index in ("silhouette", "xie_beni", "davies_bouldin", "calinski_harabasz", "pearson_gamma", "within_between"):
        assert found.best(index) == 0
    rows = found.table()
    assert [row["partition"] for row in rows] == ["right", "wrong"]
    assert rows[0]["n_clusters"] == 3
    alone = dasrel.validity(d[:3, :3], [0, 1, 2], kind="distance")  # no pair within a cluster
    assert alone.table()[0]["calinski_harabasz"] is None
    with pytest.raises(InputError, match="no index 'silhouete' here; did you mean silhouette"):
        found["silhouete"]
    assert "2 partitions" in repr(found)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(N), "the partition has one cluster only"),
        (np.arange(N - 1), r"the partition has shape \(119,\); give 120 labels"),
        ([GROUPS, np.arange(7)], r"partition 1 has shape \(7,\)"),
        (np.full((N, 2), 0.4), "the memberships of object 0 sum to 0.8, not to 1 .120 such objects"),
        (np.tile([1.5, -0.5], (N, 1)), "the membership of object 0 in cluster 0 is 1.5 .240 such"),
        (np.where(np.arange(N) == 3, np.nan, 1.0), "the partition has no label .NaN. for 1 object: 3"),
        ([], "there is no partition"),
        (np.zeros((N, 2, 2)), "has shape"),
        (np.array([1j] * N), "labels of type complex128"),
    ],
)
def test_a_bad_partition_gets_one_clear_line(given, message):
    with progress.watch() as counted, pytest.raises(InputError, match=message):
        dasrel.validity(distances(POINTS), given, kind="distance")
    assert counted.scans == 0


def test_bad_options_get_one_clear_line():
    d = distances(POINTS)
    with pytest.raises(InputError, match="no validity index 'dun'; did you mean dunn"):
        dasrel.validity(d, GROUPS, kind="distance", indices=["dun"])
    with pytest.raises(InputError, match=r"fuzzifier is 0\.5; give a finite number of at least 1"):
        dasrel.validity(d, GROUPS, kind="distance", fuzzifier=0.5)
    with pytest.raises(InputError, match="as in a Gaussian kernel; give the matrix itself"):
        dasrel.validity(relation(d, kind="distance").gaussian(1.0), GROUPS)
    with pytest.raises(InputError, match="these are 2 partitions; give one"):
        dasrel.silhouette_samples(d, [GROUPS, GROUPS], kind="distance")
    with pytest.raises(InputError, match="a relation knows its kind"):
        dasrel.validity(relation(d, kind="distance"), GROUPS, kind="distance")


def test_labels_with_names_are_matched_by_them():
    names = [f"o{k}" for k in range(N)]
    frame = pd.DataFrame(distances(POINTS), names, names)
    labels, U = some_labels(N, 4), some_memberships(N, 3)
    order = np.random.default_rng(0).permutation(N)
    mixed = [names[k] for k in order]
    expected = dasrel.validity(frame, {"labels": labels, "fuzzy": U}, kind="distance")
    given = {"labels": pd.Series(labels[order], mixed), "fuzzy": pd.DataFrame(U[order], mixed)}
    found = dasrel.validity(frame, given, kind="distance")
    for index in expected.values:
        np.testing.assert_array_equal(found[index], expected[index])
    for wrong, message in (
        (pd.Series(labels, [*names[1:], "x"]), "the partition: 1 object has no label: o0; labels of no object: x;"),
        (pd.Series(labels, [*names[1:], "o1"]), "the partition: names of labels are not unique: o1"),
    ):
        with pytest.raises(InputError, match=message):
            dasrel.validity(frame, wrong, kind="distance")


def test_names_of_labels_where_the_matrix_has_none():
    """An index that is no permutation of 0, 1, ... says nothing about the objects; one that is, puts them in order."""
    labels, d = some_labels(N, 4), distances(POINTS)
    expected = dasrel.silhouette_samples(d, labels, kind="distance")
    sampled = pd.Series(labels, np.arange(N) * 3 + 1)
    np.testing.assert_array_equal(dasrel.silhouette_samples(d, sampled, kind="distance"), expected)
    np.testing.assert_array_equal(dasrel.silhouette_samples(d, pd.Series(labels), kind="distance"), expected)
    turned = pd.Series(labels)[::-1]
    np.testing.assert_array_equal(dasrel.silhouette_samples(d, turned, kind="distance"), expected)
