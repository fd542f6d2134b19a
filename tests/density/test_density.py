"""Clusters by density, against scikit-learn's HDBSCAN and DBSCAN, SciPy's single linkage, and by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import DBSCAN, HDBSCAN
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

import dasrel
from dasrel import DensityRun
from dasrel.density.condensed import condense
from dasrel.density.fit import distances_of
from dasrel.util import progress
from tests.helpers.matrices import distances, gram
from tests.helpers.stores import stored

pytestmark = pytest.mark.filterwarnings("ignore:.*all objects are noise:dasrel.DasrelWarning")


def fifteen() -> list[Any]:
    """Point sets of several shapes, whose distances have no ties."""
    sets = []
    for seed in range(3):
        sets += [
            make_moons(150, noise=0.08, random_state=seed)[0],
            make_circles(150, noise=0.05, factor=0.4, random_state=seed)[0],
            make_blobs(180, centers=4, random_state=seed)[0] @ np.array([[0.6, -0.6], [-0.4, 0.8]]),
            make_blobs(180, centers=3, cluster_std=[0.3, 1, 2.5], random_state=seed)[0],
            np.random.default_rng(seed).random((120, 3)),
        ]
    return sets


def same(found: Any, labels: Any) -> bool:
    return adjusted_rand_score(found, labels) == 1 and bool(((found < 0) == (labels < 0)).all())


def reachability(D: Any, min_samples: int) -> Any:
    core = np.sort(D, axis=1)[:, min_samples - 1]
    R = np.maximum(np.maximum(D, core[:, None]), core)
    np.fill_diagonal(R, 0)
    return R


def test_labels_and_probabilities_are_those_of_scikit_learn() -> None:
    """Up to two samples, the object and its nearest, mutual reachability has no ties where the distances have none."""
    runs = [
        DensityRun(size, samples, method=method, allow_single_cluster=single)
        for size in (5, 9) for samples in (1, 2) for method in ("eom", "leaf") for single in (False, True)
    ]  # fmt: skip
    for X in fifteen():
        D = distances(X)
        for result in dasrel.hdbscan(D, runs, kind="distance").results:
            run = result.run
            theirs = HDBSCAN(
                min_cluster_size=run.min_size, min_samples=run.min_samples, cluster_selection_method=run.method,
                allow_single_cluster=run.allow_single_cluster, metric="precomputed", algorithm="brute", copy=True,
            ).fit(D)  # fmt: skip
            assert same(result.labels, theirs.labels_), run
            np.testing.assert_allclose(result.probabilities, theirs.probabilities_, atol=1e-6)
            assert result.sizes.sum() == (theirs.labels_ >= 0).sum()


def test_many_samples_make_the_single_linkage_of_mutual_reachability(tmp_path: Path) -> None:
    for X in fifteen()[:5]:
        D = distances(X)
        matrix = stored(tmp_path / "d.zarr", D, dtype="float64", tile=33, force=True)
        with progress.watch() as count:
            found = dasrel.hdbscan(matrix, [DensityRun(8, samples) for samples in (1, 4, 10)])
        assert count.scans == found.scans == 2
        for samples, tree in found.trees.items():
            R = reachability(D, samples)
            np.testing.assert_allclose(found.core_distances(samples), np.sort(D, axis=1)[:, samples - 1])
            np.testing.assert_allclose(cophenet(tree.linkage()), cophenet(linkage(squareform(R), "single")))


def test_clusters_do_not_depend_on_the_order_of_the_objects(tmp_path: Path) -> None:
    """Nor on tiles; scikit-learn's do, where mutual reachability has ties."""
    rng = np.random.default_rng(5)
    runs = [DensityRun(6, 5), DensityRun(5, 9, method="leaf"), DensityRun(4, 4, epsilon=0.3)]
    whole = np.round(rng.random((90, 2)) * 12)  # many equal distances, and duplicates
    for X in (*fifteen()[:4], whole):
        D, order = distances(X, "cityblock"), rng.permutation(len(X))
        first = dasrel.hdbscan(D, runs, kind="distance")
        matrix = stored(tmp_path / "d.zarr", D[order][:, order], dtype="float64", tile=40, force=True)
        second = dasrel.hdbscan(matrix, runs)
        for a, b in zip(first.results, second.results, strict=True):
            assert same(a.labels[order], b.labels)
            np.testing.assert_allclose(a.probabilities[order], b.probabilities)
            np.testing.assert_allclose(a.outlier_scores[order], b.outlier_scores)
            np.testing.assert_allclose(np.sort(a.stabilities), np.sort(b.stabilities))


def test_a_condensed_tree_by_hand() -> None:
    """Objects 0, 1, 2 within 1, objects 3, 4, 5 within 2, both apart by 4, and object 6 apart by 10."""
    x = np.array([0.0, 1, 2, 6, 8, 10, 20])
    D = np.abs(x[:, None] - x)
    found = dasrel.hdbscan(D, DensityRun(3, 1), kind="distance").best
    tree = found.tree
    assert tree.parents.tolist() == [-1, 0, 0]
    assert tree.births.tolist() == [0, 1 / 4, 1 / 4]
    assert sorted(tree.sizes.tolist()) == [3, 3, 7]
    left, right = tree.clusters[0], tree.clusters[3]
    assert tree.clusters.tolist() == [left] * 3 + [right] * 3 + [0]
    assert tree.leaves_at.tolist() == [1, 1, 1, 0.5, 0.5, 0.5, 0.1]
    assert tree.stabilities[[0, left, right]].tolist() == pytest.approx([0.1 + 6 / 4, 3 * 0.75, 3 * 0.25])
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1, -1]
    assert found.probabilities.tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert found.outlier_scores.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0.9])
    joined = dasrel.hdbscan(D, DensityRun(3, 1, epsilon=5, allow_single_cluster=True), kind="distance").best
    assert joined.labels.tolist() == [0, 0, 0, 0, 0, 0, -1]
    assert dasrel.hdbscan(D, DensityRun(3, 1, epsilon=3), kind="distance").best.n_clusters == 2


def test_several_parts_at_one_distance_are_one_split() -> None:
    """Three triangles at the same distance from each other: no two of them are nearer to each other."""
    D = np.full((9, 9), 5.0)
    for k in range(0, 9, 3):
        D[k : k + 3, k : k + 3] = 1
    np.fill_diagonal(D, 0)
    tree = dasrel.hdbscan(D, DensityRun(2, 1), kind="distance").best.tree
    assert tree.parents.tolist() == [-1, 0, 0, 0]
    assert tree.births.tolist() == [0, 0.2, 0.2, 0.2]


def test_dbscan_is_that_of_scikit_learn() -> None:
    """Core objects and noise are the same; a border object is with its nearest core object within eps."""
    for X in fifteen()[:5]:
        D = distances(X)
        for samples in (1, 2, 5, 8):
            found = dasrel.hdbscan(D, DensityRun(5, samples), kind="distance")
            for eps in np.quantile(D[D > 0], [0.0005, 0.003, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.3, 1]):
                theirs = DBSCAN(eps=eps, min_samples=samples, metric="precomputed").fit(D)
                labels, core = found.dbscan(eps, samples), np.zeros(len(D), dtype=bool)
                core[theirs.core_sample_indices_] = True
                np.testing.assert_array_equal(labels[core], theirs.labels_[core])
                np.testing.assert_array_equal(labels < 0, theirs.labels_ < 0)
                border = np.flatnonzero((labels >= 0) & ~core)
                nearest = np.where(core, D[border], np.inf).argmin(axis=1) if border.size else border
                np.testing.assert_array_equal(labels[border], labels[nearest])
        with pytest.raises(dasrel.InputError, match="eps is 0"):
            found.dbscan(0)
        with pytest.raises(dasrel.InputError, match="no tree for min_samples 3"):
            found.dbscan(1, 3)


def test_other_kinds_have_square_roots(tmp_path: Path) -> None:
    D = distances(fifteen()[0])
    runs = [DensityRun(6, 2), DensityRun(5, 1)]
    plain = dasrel.hdbscan(D, runs, kind="distance")
    for kind, values in (("squared-distance", D**2), ("kernel", gram(D**2))):
        found = dasrel.hdbscan(stored(tmp_path / kind, values, kind=kind, dtype="float64", tile=40), runs)
        for a, b in zip(plain.results, found.results, strict=True):
            np.testing.assert_array_equal(a.labels, b.labels)
            np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-5)
            np.testing.assert_allclose(a.core_distances, b.core_distances, rtol=1e-5, atol=1e-7)
        for eps in (0.05, 0.1, 0.2):
            np.testing.assert_array_equal(found.dbscan(eps), plain.dbscan(eps))
        assert distances_of(found.trees[1])[-1] == pytest.approx(distances_of(plain.trees[1])[-1])


def test_duplicates_and_equal_distances() -> None:
    x = np.repeat([0.0, 1.0, 9.0], [6, 5, 4])
    D = np.abs(x[:, None] - x)
    found = dasrel.hdbscan(D, DensityRun(4, 3), kind="distance").best
    assert found.labels.tolist() == x.astype(int).clip(max=2).tolist()
    assert np.isfinite(found.probabilities).all()
    assert found.outlier_scores.max() == 0
    for every in (0.0, 2.0):
        equal = np.full((8, 8), every)
        np.fill_diagonal(equal, 0)
        with pytest.warns(dasrel.DasrelWarning, match="no cluster of at least 3 objects stands out"):
            assert (dasrel.hdbscan(equal, DensityRun(3), kind="distance").best.labels == -1).all()
        single = DensityRun(3, allow_single_cluster=True)
        assert (dasrel.hdbscan(equal, single, kind="distance").best.labels == 0).all()


def test_new_objects_that_are_copies_of_old_ones_get_their_labels(tmp_path: Path) -> None:
    for X in fifteen()[:5]:
        D = distances(X)
        found = dasrel.hdbscan(D, [DensityRun(6, 1), DensityRun(8, 4)], kind="distance")
        for result in found.results:
            found.model(result).save(tmp_path / "m.npz")
            placed = dasrel.DensityModel.load(tmp_path / "m.npz").predict(D)
            clear = (result.labels >= 0) & (result.probabilities > 0.5)
            agree = (placed.labels == result.labels)[clear].mean()
            assert agree > 0.97
        far = found.model(found.results[1]).predict(np.full((1, len(D)), 100 * D.max()))
        assert (far.labels[0], far.probabilities[0]) == (-1, 0)
        assert far.outlier_scores[0] > 0.9


def test_an_interrupted_computation_is_resumed(tmp_path: Path) -> None:
    D = distances(fifteen()[0])
    whole = dasrel.hdbscan(D, DensityRun(6, 3), kind="distance").best
    with pytest.raises(dasrel.Stopped):
        dasrel.hdbscan(
            D, DensityRun(6, 3), kind="distance", checkpoint=dasrel.Checkpoint(tmp_path / "kept", time_limit=1e-9)
        )
    with progress.watch() as count:
        again = dasrel.hdbscan(
            D, DensityRun(6, 3), kind="distance", checkpoint=dasrel.Checkpoint(tmp_path / "kept", resume=True)
        )
    assert (again.scans, count.scans) == (2, 1)
    np.testing.assert_array_equal(again.best.labels, whole.labels)
    np.testing.assert_array_equal(again.best.probabilities, whole.probabilities)


def test_the_default_size_follows_from_the_number_of_objects() -> None:
    """Two groups of six are found without any option; only a number that was given is refused."""
    x = np.concatenate([np.arange(6.0), 100 + np.arange(6.0)])
    found = dasrel.hdbscan(np.abs(x[:, None] - x), kind="distance").best
    assert (found.run.size, found.run.samples) == (3, 3)
    assert found.labels.tolist() == [0] * 6 + [1] * 6
    for n, size in ((2, 2), (59, 14), (60, 15), (10**6, 15)):
        assert DensityRun().of(n).size == size


def test_refusals() -> None:
    D = distances(fifteen()[4][:20])
    for run, message in (
        (DensityRun(21), "min_size is 21, and there are 20 objects; give min_size=NUMBER of at most 20"),
        (DensityRun(5, 21), "min_samples is 21, and there are 20 objects"),
    ):
        with pytest.raises(dasrel.InputError, match=message):
            dasrel.hdbscan(D, run, kind="distance")
    for wrong in ({"min_size": 1}, {"min_samples": 0}, {"method": "best"}, {"epsilon": -1.0}, {"epsilon": np.nan}):
        with pytest.raises(dasrel.InputError):
            DensityRun(**wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dasrel.hdbscan(D, DensityRun(20, 20), kind="distance").best.n_clusters == 0
    assert condense(np.array([[0, 1]]), np.array([2.0]), 2).clusters.tolist() == [0, 0]
