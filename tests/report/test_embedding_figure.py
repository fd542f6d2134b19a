"""The figure of an embedding: colours of groups, paleness of memberships, few axes, and refusals."""

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import dasrel
from dasrel.report.figures import embedding as embedding_module
from dasrel.report.figures.embedding import embedding_figure
from dasrel.report.figures.matrix_drawing import CLUSTERS
from tests.helpers.matrices import distances, grouped_points


@pytest.fixture(scope="module")
def found() -> Any:
    return dasrel.embed(distances(grouped_points(90, apart=12.0)), kind="distance", n_components=3)


def share_of(path: Path, colour: Any) -> float:
    """The share of the pixels of the scatter plots that have this colour."""
    image = matplotlib.image.imread(path)[..., :3]
    plots = image[int(0.1 * image.shape[0]) : int(0.75 * image.shape[0]), : int(0.72 * image.shape[1])]
    return float((np.abs(plots - np.array(to_rgb(colour))).max(axis=2) < 0.02).mean())


def test_every_group_has_its_colour(tmp_path: Path, found: Any) -> None:
    labels = np.array(["a", "b", "c"])[np.arange(90) % 3]
    path = embedding_figure(found, tmp_path / "e.png", labels=labels)
    assert all(share_of(path, colour) > 0.0005 for colour in CLUSTERS[:3])
    assert share_of(path, CLUSTERS[3]) == 0
    plain = embedding_figure(found, tmp_path / "plain.png")
    assert share_of(plain, CLUSTERS[0]) > 0.0015
    assert share_of(plain, CLUSTERS[1]) == 0


def test_objects_between_clusters_are_pale(tmp_path: Path, found: Any) -> None:
    sure = np.eye(3)[np.arange(90) % 3]
    path = embedding_figure(found, tmp_path / "sure.png", memberships=sure)
    assert share_of(path, CLUSTERS[1]) > 0.0005
    unsure = 0.3 * sure + 0.7 / 3
    pale = embedding_figure(found, tmp_path / "pale.png", memberships=unsure)
    assert share_of(pale, CLUSTERS[1]) < share_of(path, CLUSTERS[1]) / 2  # the frames of the names are left


def test_no_object_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first axis is far longer than the others, as for iris."""
    points = grouped_points(90) * [20.0, 1.0, 0.2]
    found, drawn = dasrel.embed(distances(points), kind="distance", n_components=3), []
    monkeypatch.setattr(embedding_module, "save_figure", lambda figure, path, dpi: drawn.append(figure))
    embedding_figure(found, tmp_path / "e.png", labels=np.arange(90) % 3)
    (figure,) = drawn
    figure.canvas.draw()  # the layout may change limits
    for panel, columns in zip(figure.axes[:2], ((0, 1), (2, 1)), strict=True):
        for (low, high), k in zip((panel.get_xlim(), panel.get_ylim()), columns, strict=True):
            values = found.coordinates[:, k]
            assert low < values.min() <= values.max() < high
        x, y = panel.transData.transform([[0, 0], [1, 0], [0, 1]])[1:] - panel.transData.transform([0, 0])
        assert x[0] == pytest.approx(y[1])  # one scale for both axes


@pytest.mark.parametrize("axes", [1, 2])
def test_few_axes_many_groups_and_many_objects(axes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_module, "DRAWN", 50)
    few = dasrel.embed(distances(grouped_points(90)), kind="distance", n_components=axes)
    path = embedding_figure(few, tmp_path / "e.png", labels=np.arange(90) // 2, title="$many$ groups")
    assert matplotlib.image.imread(path).std() > 0.05


def test_refusals(tmp_path: Path, found: Any) -> None:
    with pytest.raises(dasrel.InputError, match=r"labels have shape \(3,\)"):
        embedding_figure(found, tmp_path / "e.png", labels=[1, 2, 3])
    with pytest.raises(dasrel.InputError, match=r"memberships of shape \(2, 3\)"):
        embedding_figure(found, tmp_path / "e.png", memberships=np.ones((2, 3)))
    assert not list(tmp_path.iterdir())
