"""Pictures of dendrograms: the top of the tree, the order of its leaves, files of both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

import dasrel
from dasrel.geometry.dendrogram import Dendrogram
from dasrel.report.figures import dendrogram as pictures
from tests.helpers.matrices import distances, grouped_points, simpson, uniform_points


@pytest.fixture(scope="module")
def square() -> Any:
    return distances(uniform_points(120, 3, 9))


@pytest.fixture(scope="module")
def found(square: Any) -> Dendrogram:
    return dasrel.linkage(square, kind="distance", method="complete")


def test_the_top_of_a_tree_has_its_last_merges(found: Dendrogram) -> None:
    top = pictures.top_of(found, 20)
    np.testing.assert_array_equal(top.branches, found.cut(20))
    np.testing.assert_array_equal(top.heights, found.heights[-19:])
    sizes = np.bincount(top.branches).tolist()
    np.testing.assert_array_equal(found.sizes[top.nodes], sizes)
    for a, b in top.children.tolist():
        sizes.append(sizes[a] + sizes[b])
    np.testing.assert_array_equal(sizes[20:], found.sizes[120 + 100 :])
    whole = pictures.top_of(found, 500)
    np.testing.assert_array_equal(whole.children, found.children)


def test_leaves_are_ordered_as_scipy_orders_them(found: Dendrogram, square: Any) -> None:
    top = pictures.top_of(found, 500)
    order = pictures._leaf_order(found, top, square)
    best = optimal_leaf_ordering(linkage(squareform(square), "complete"), squareform(square))
    length = np.abs(square[order[1:], order[:-1]]).sum()
    assert length == pytest.approx(square[leaves_list(best)[1:], leaves_list(best)[:-1]].sum())
    assert length < square[found.leaf_order()[1:], found.leaf_order()[:-1]].sum()


def test_the_matrix_has_the_means_of_branches(
    found: Dendrogram, square: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []
    real = pictures._leaf_order
    monkeypatch.setattr(pictures, "_leaf_order", lambda *given: (seen.append(given[2]), real(*given))[1])
    with dasrel.watch() as meter:
        dasrel.dendrogram_figure(found, tmp_path / "d.png", matrix=square, kind="distance", leaves=15)
    assert meter.scans == 1
    one_hot = np.eye(15)[found.cut(15)]
    sizes = one_hot.sum(axis=0)
    np.testing.assert_allclose(seen[0], one_hot.T @ square @ one_hot / np.outer(sizes, sizes))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_files_of_both_formats(found: Dendrogram, square: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"d{suffix}"
    dasrel.dendrogram_figure(found, path, matrix=square, kind="distance", labels=found.cut(4), leaves=30)
    if suffix == ".png":
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        again = tmp_path / "again.svg"
        dasrel.dendrogram_figure(found, again, matrix=square, kind="distance", labels=found.cut(4), leaves=30)


def test_clusters_are_coloured_and_what_is_above_them_is_grey(found: Dendrogram) -> None:
    labels = found.cut(5)
    top = pictures.top_of(found, 40)
    colours = pictures._colours(top, labels, found)
    assert len(set(map(tuple, colours[:40]))) == 5
    assert pictures.GREY not in colours[:40]
    assert colours[-4:] == [pictures.GREY] * 4  # the four merges above the cut
    assert pictures.GREY not in colours[:-4]


def test_every_kind_and_shape_is_drawn(tmp_path: Path) -> None:
    S = simpson(40)
    similar = dasrel.linkage(S, kind="similarity", as_similarity=True)
    dasrel.dendrogram_figure(similar, tmp_path / "s.png", matrix=S, kind="similarity", labels=similar.cut(3))
    two = np.array([[0, 2.0], [2.0, 0]])
    dasrel.dendrogram_figure(dasrel.linkage(two, kind="distance"), tmp_path / "2.png", matrix=two, kind="distance")
    equal = np.ones((6, 6)) - np.eye(6)
    dasrel.dendrogram_figure(dasrel.linkage(equal, kind="distance"), tmp_path / "e.png", matrix=equal, kind="distance")
    zeros = np.zeros((5, 5))
    dasrel.dendrogram_figure(dasrel.linkage(zeros, kind="distance"), tmp_path / "z.png", matrix=zeros, kind="distance")
    many = dasrel.linkage(distances(grouped_points(700)), kind="distance", method="ward")
    dasrel.dendrogram_figure(many, tmp_path / "m.png", labels=many.cut(25))
    assert len(list(tmp_path.glob("*.png"))) == 5


def test_refusals(found: Dendrogram, tmp_path: Path) -> None:
    with pytest.raises(dasrel.InputError, match=r"ends with \.png or \.svg"):
        dasrel.dendrogram_figure(found, tmp_path / "d.gif")
    with pytest.raises(dasrel.InputError, match="leaves is 501; give 2 to 500"):
        dasrel.dendrogram_figure(found, tmp_path / "d.png", leaves=501)
    with pytest.raises(dasrel.InputError, match=r"labels have shape \(3,\); give 120 whole numbers"):
        dasrel.dendrogram_figure(found, tmp_path / "d.png", labels=np.zeros(3, dtype=int))
    with pytest.raises(dasrel.InputError, match="the dendrogram has 120 objects and the matrix 5"):
        dasrel.dendrogram_figure(found, tmp_path / "d.png", matrix=np.zeros((5, 5)), kind="distance")
