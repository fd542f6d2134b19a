"""The figure of an alignment: the sorted kernel in it, and that it is drawn for every kind of search."""

import matplotlib.image
import numpy as np
import pytest

import dasrel
from dasrel.engine.relation import relation
from dasrel.report.figures.alignment import MOST_WIDTHS, _some_widths, draw_alignment
from dasrel.report.figures.group_means import kernel_image
from dasrel.util import progress
from tests.helpers.matrices import blobs, distances


@pytest.fixture(scope="module")
def points():
    return blobs(10, [[0, 0], [9, 0]], 2)


@pytest.mark.parametrize("pixels", [7, 20])
@pytest.mark.parametrize("kind", ["distance", "squared-distance"])
def test_the_image_has_the_means_of_the_kernel_not_the_kernel_of_means(store_factory, points, kind, pixels):
    D = distances(points, "sqeuclidean")
    path = store_factory(np.sqrt(D) if kind == "distance" else D, kind, dtype="float64", tile=6)
    order = np.random.default_rng(0).permutation(20)
    with progress.watch() as counted:
        image = kernel_image(relation(path), 1.5, order, pixels)
    assert counted.scans == 1
    K = np.exp(-D / (2 * 1.5**2))[np.ix_(order, order)]
    at = np.arange(20) * pixels // 20
    expected = [[K[np.ix_(at == a, at == b)].mean() for b in range(pixels)] for a in range(pixels)]
    np.testing.assert_allclose(image, expected, rtol=1e-12)


def test_a_stored_kernel_is_drawn_as_it_is(store_factory, points):
    K = points @ points.T
    path = store_factory(K, "kernel", dtype="float64", tile=6)
    np.testing.assert_allclose(kernel_image(relation(path), None), K, rtol=1e-13)


@pytest.mark.parametrize(
    "given",
    [{}, {"width": [1.0, 2.0]}, {"width": 2.0}, {"search": dasrel.Evolution(40, 2)}, {"n_clusters": 2}],
)
def test_a_picture_of_every_search(points, tmp_path, given):
    found = dasrel.align(distances(points), kind="distance", **({"n_clusters": [2, 3, 4]} | given))
    with progress.watch() as counted:
        draw_alignment(found, tmp_path)
    assert counted.scans == 1
    image = matplotlib.image.imread(tmp_path / "alignment.png")
    assert image.shape[0] > 300
    assert image[..., :3].std() > 0.1  # not blank


def test_of_many_widths_the_best_is_drawn():
    widths = np.sort(np.random.default_rng(0).uniform(0.1, 3, 500))
    chosen = _some_widths(widths, 333)
    assert 333 in chosen
    assert len(chosen) <= MOST_WIDTHS
    assert (np.diff(chosen) > 0).all()
