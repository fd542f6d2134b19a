"""Dendrograms against SciPy: cuts, cophenetic distances, orders; formats that others read; a million leaves."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import cophenet, fcluster, is_valid_linkage, leaves_list, linkage

import dasrel
from dasrel.geometry.dendrogram import Dendrogram
from tests.helpers.matrices import distances, grouped_points, simpson, uniform_points
from tests.helpers.stores import stored


@pytest.fixture(scope="module")
def points() -> Any:
    return uniform_points(80, 3, 7)


@pytest.fixture(scope="module")
def merges(points: Any) -> Any:
    from scipy.spatial.distance import pdist

    return linkage(pdist(points), "average")


@pytest.fixture(scope="module")
def found(points: Any) -> Dendrogram:
    return dasrel.linkage(distances(points), kind="distance", method="average")


def same_partition(first: Any, second: Any) -> bool:
    """Whether two labellings have the same clusters."""
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    return len(pairs) == len(set(first.tolist())) == len(set(second.tolist()))


def test_cuts_are_those_of_scipy(found: Dendrogram, merges: Any) -> None:
    heights = np.array([0, *merges[:, 2], np.inf])
    for k in (1, 2, 3, 10, 79, 80):
        labels = found.cut(k)
        between = (heights[80 - k] + min(heights[81 - k], 1e9)) / 2  # SciPy 1.13 makes no 80 of "maxclust"
        assert same_partition(labels, fcluster(merges, between, "distance"))
        assert labels.max() + 1 == k
        first = [int(np.flatnonzero(labels == c)[0]) for c in range(k)]
        assert first == sorted(first)  # numbered by their first objects
    for height in (0.2, float(merges[40, 2])):
        assert same_partition(found.cut(height=height), fcluster(merges, height, "distance"))
        assert found.clusters_at(height) == len(set(fcluster(merges, height, "distance")))
    for height, told in ((0.0, "every object is a cluster of its own"), (float(merges[-1, 2]), "are one cluster")):
        with pytest.warns(dasrel.DasrelWarning, match=told):
            assert found.clusters_at(height) == len(set(fcluster(merges, height, "distance")))


def test_bad_cuts_get_one_line(found: Dendrogram) -> None:
    with pytest.raises(dasrel.InputError, match="81 clusters cannot be made of 80 objects; give 1 to 80"):
        found.cut(81)
    for wrong in (0, -1):
        with pytest.raises(dasrel.InputError, match="cannot be made of 80 objects"):
            found.cut(wrong)
    for given in ({}, {"n_clusters": 2, "height": 1.0}):
        with pytest.raises(dasrel.InputError, match="either a number of clusters or a height"):
            found.cut(**given)  # type: ignore[arg-type]
    with pytest.raises(dasrel.InputError, match="not NaN"):
        found.cut(height=float("nan"))
    with pytest.raises(dasrel.InputError, match=r"n_clusters is 2\.5; give a whole number"):
        found.cut(2.5)  # type: ignore[arg-type]
    with pytest.warns(dasrel.DasrelWarning, match="all objects are one cluster: the last merge is at .*, distance"):
        assert (found.cut(height=1e9) == 0).all()


def test_orders_and_cophenetic_distances_are_those_of_scipy(found: Dendrogram, merges: Any) -> None:
    np.testing.assert_array_equal(found.leaf_order(), leaves_list(merges))
    i, j = np.triu_indices(80, 1)
    np.testing.assert_allclose(found.cophenetic(i, j), cophenet(merges))
    np.testing.assert_array_equal(found.cophenetic(j, i), found.cophenetic(i, j))
    assert found.cophenetic(5, 5).tolist() == [0.0]
    with pytest.raises(dasrel.InputError, match="positions from 0 to 79"):
        found.cophenetic([0], [80])


@pytest.mark.parametrize("method", ["single", "average", "ward"])
def test_cophenetic_correlation_is_that_of_scipy_in_one_scan(tmp_path: Path, points: Any, method: str) -> None:
    from scipy.spatial.distance import pdist

    matrix = stored(tmp_path / "d.zarr", distances(points), dtype="float64", tile=23)
    dendrogram = dasrel.linkage(matrix, method=method)
    with dasrel.watch() as meter:
        correlation = dendrogram.cophenetic_correlation(matrix)
    assert meter.scans == 1
    assert correlation == pytest.approx(cophenet(linkage(pdist(points), method), pdist(points))[0], rel=1e-9)
    with pytest.raises(dasrel.InputError, match="the dendrogram has 80 objects and the matrix 5"):
        dendrogram.cophenetic_correlation(np.ones((5, 5)) - np.eye(5), kind="distance")


def test_cophenetic_correlation_of_other_kinds() -> None:
    S = simpson(60)
    found = dasrel.linkage(S, kind="similarity", method="average", as_similarity=True)
    i, j = np.triu_indices(60, 1)
    expected = np.corrcoef(found.cophenetic(i, j), S[i, j])[0, 1]
    assert found.cophenetic_correlation(S, kind="similarity") == pytest.approx(expected, rel=1e-9)
    squares = distances(uniform_points(60, 3)) ** 2
    ward = dasrel.linkage(squares, kind="squared-distance", method="ward")
    expected = np.corrcoef(ward.cophenetic(i, j), np.sqrt(squares[i, j]))[0, 1]
    assert ward.cophenetic_correlation(squares, kind="squared-distance") == pytest.approx(expected, rel=1e-9)
    equal = np.ones((6, 6)) - np.eye(6)
    flat = dasrel.linkage(equal, kind="distance")
    assert np.isnan(flat.cophenetic_correlation(equal, kind="distance"))


def test_scipy_takes_it(found: Dendrogram, merges: Any) -> None:
    Z = found.to_scipy()
    assert is_valid_linkage(Z)
    np.testing.assert_allclose(Z, merges)
    S = simpson(30)
    assert is_valid_linkage(dasrel.linkage(S, kind="similarity", as_similarity=True).to_scipy())


def parsed(text: str) -> tuple[dict[str, float], int]:
    """A small reader of Newick: the distance of every leaf from the root, and the number of inner nodes."""
    depth: dict[str, float] = {}
    inner, at = 0, 0
    nodes: list[list[tuple[str, float]]] = [[]]

    def length() -> float:
        nonlocal at
        if text[at] != ":":
            return 0.0
        end = at + 1
        while text[end] not in ",);":
            end += 1
        value, at = float(text[at + 1 : end]), end
        return value

    while text[at] != ";":
        if text[at] == "(":
            nodes.append([])
            at += 1
        elif text[at] == ",":
            at += 1
        elif text[at] == ")":
            at += 1
            leaves, more = nodes.pop(), length()
            nodes[-1] += [(name, far + more) for name, far in leaves]
            inner += 1
        else:
            name = ""
            if text[at] == "'":
                at += 1
                while text[at] != "'" or text[at + 1] == "'":
                    step = 2 if text[at] == "'" else 1
                    name, at = name + text[at], at + step
                at += 1
            else:
                while text[at] not in ":,);":
                    name, at = name + text[at], at + 1
            nodes[-1].append((name, length()))
    depth.update(nodes[0])
    return depth, inner


def test_newick_has_all_names_and_all_leaves_at_the_height_of_the_root(found: Dendrogram) -> None:
    names = [f"it's (no {k}), _really_" if k % 2 else f"n{k}" for k in range(80)]
    depth, inner = parsed(found.to_newick(names))
    assert set(depth) == set(names)
    assert inner == 79
    np.testing.assert_allclose(list(depth.values()), found.heights[-1], rtol=1e-6)


def test_networkx_has_every_merge(found: Dendrogram) -> None:
    graph = found.to_networkx([f"n{k}" for k in range(80)])
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (159, 158)
    assert graph.nodes[158]["size"] == 80
    assert graph.nodes[158]["height"] == found.heights[-1]
    assert all(degree == 2 for node, degree in graph.out_degree() if not isinstance(node, str))
    with pytest.raises(dasrel.InputError, match="2 ids for a dendrogram of 80 objects"):
        found.to_networkx(["a", "b"])


def test_the_largest_gap_shows_the_number_of_groups() -> None:
    found = dasrel.linkage(distances(grouped_points(90, groups=4, apart=12.0)), kind="distance", method="complete")
    assert found.largest_gap() == 4
    with pytest.raises(dasrel.InputError, match="2 objects have no gap between heights"):
        dasrel.linkage(np.array([[0, 1.0], [1.0, 0]]), kind="distance").largest_gap()


def test_saved_and_loaded(found: Dendrogram, tmp_path: Path) -> None:
    found.save(tmp_path / "d.npz")
    loaded = Dendrogram.load(tmp_path / "d.npz")
    np.testing.assert_array_equal(loaded.children, found.children)
    np.testing.assert_array_equal(loaded.heights, found.heights)
    assert (loaded.method, loaded.units) == ("average", "distance")
    with pytest.raises(dasrel.StoreError, match="no dendrogram at"):
        Dendrogram.load(tmp_path / "none.npz")
    for change in (found.children[::-1].copy(), found.children + 1):
        Dendrogram(change, found.heights, "average", "distance").save(tmp_path / "bad.npz")
        with pytest.raises(dasrel.StoreError, match="is a damaged dendrogram"):
            Dendrogram.load(tmp_path / "bad.npz")
    Dendrogram(found.children, found.heights[::-1].copy(), "average", "distance").save(tmp_path / "bad.npz")
    with pytest.raises(dasrel.StoreError, match="heights that are not in order"):
        Dendrogram.load(tmp_path / "bad.npz")


def test_a_chain_of_many_leaves_needs_no_recursion() -> None:
    n = 100_000
    assert n > 10 * sys.getrecursionlimit()
    children = np.column_stack([np.arange(1, n), np.concatenate([[0], np.arange(n, 2 * n - 2)])])
    found = Dendrogram(np.sort(children, axis=1), np.arange(1.0, n), "single", "distance")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.bincount(found.cut(3)).max() == n - 2
        assert len(found.leaf_order()) == n
        assert found.to_newick().count("(") == n - 1
        assert found.cophenetic([0], [n - 1]).tolist() == [n - 1.0]
