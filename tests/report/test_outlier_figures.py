"""Figures of outliers: they are drawn, show what they should, and refuse what has no plane."""

import matplotlib.image
import numpy as np
import pytest

from dasrel.errors import InputError
from dasrel.oneclass.fit import one_class
from dasrel.oneclass.run import OneClassRun
from dasrel.report.figures.outliers import density_figure, outlier_order
from tests.helpers.matrices import distances, normal_points


def test_the_order_is_by_cluster_then_typicality_with_outliers_last():
    order = outlier_order(np.array([1, -1, 0, 0, 1]), np.array([-0.1, -9, -0.3, -0.2, -0.5]))
    np.testing.assert_array_equal(order, [3, 2, 0, 4, 1])


def test_the_plane_is_dark_where_the_points_are(tmp_path):
    points = np.concatenate([normal_points(60, 2, 1), [[12.0, 12.0]]])
    found = one_class(distances(points), OneClassRun(1.0), kind="distance").best
    path = density_figure(points, found, found.outliers(0.02), tmp_path / "d.png", pixels=60)
    image = matplotlib.image.imread(path)[..., :3].mean(axis=2)
    height, width = image.shape
    plane = image[int(0.15 * height) : int(0.9 * height), int(0.1 * width) : int(0.75 * width)]
    lower_left = plane[-plane.shape[0] // 3 :, : plane.shape[1] // 3].mean()
    upper_left = plane[: plane.shape[0] // 3, : plane.shape[1] // 3].mean()
    assert lower_left < upper_left - 0.1
    assert [one.name for one in tmp_path.iterdir()] == ["d.png"]


def test_what_has_no_plane_is_refused(tmp_path):
    points = normal_points(20, 3, 1)
    found = one_class(distances(points), OneClassRun(1.0), kind="distance").best
    with pytest.raises(InputError, match="give two coordinates for each of 20 objects"):
        density_figure(points, found, found.outliers(0.1), tmp_path / "d.png")
    linear = one_class(distances(points), OneClassRun(None), kind="distance").best
    with pytest.raises(InputError, match="needs a width"):
        density_figure(points[:, :2], linear, linear.outliers(0.1), tmp_path / "d.png")
    assert not list(tmp_path.iterdir())
