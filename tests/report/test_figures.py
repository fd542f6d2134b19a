"""Pictures: they are there, they show what they should, and they are whole or absent."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import dasrel
from dasrel.errors import InputError
from dasrel.report.figures import clustering as clustering_figures
from dasrel.report.figures.downsample import cluster_order
from dasrel.report.figures.partition import PIXELS, partition_figure


def colours(path: Path) -> set[tuple[int, ...]]:
    """The different colours of a picture, in steps of 1/16."""
    pixels = matplotlib.image.imread(path)
    return {tuple(pixel) for pixel in (pixels[..., :3] * 16).astype(int).reshape(-1, 3).tolist()}


def random_memberships(n: int, c: int) -> np.ndarray:
    drawn = np.random.default_rng(3).standard_exponential((n, c)) ** 3
    return drawn / drawn.sum(axis=1, keepdims=True)


def test_the_order_is_by_cluster_and_decreasing_membership() -> None:
    U = random_memberships(200, 4)
    order = cluster_order(U)
    assert sorted(order) == list(range(200))
    labels, most = U.argmax(axis=1)[order], U.max(axis=1)[order]
    for k in range(1, 200):
        assert labels[k] > labels[k - 1] or (labels[k] == labels[k - 1] and most[k] <= most[k - 1])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("n", [1, 5, 3 * PIXELS])
def test_a_picture_is_drawn(tmp_path: Path, n: int) -> None:
    truth = np.arange(n) % 3
    path = partition_figure(random_memberships(n, 4), tmp_path / "new" / "p.png", truth=truth, title="a & b $x^2")
    pixels = matplotlib.image.imread(path)
    assert min(pixels.shape[:2]) > 500
    assert len(colours(path)) > 20
    assert [one.name for one in path.parent.iterdir()] == ["p.png"]


@pytest.mark.slow
def test_truth_adds_its_colours(tmp_path: Path) -> None:
    """Orange is in neither of the two maps of colours; it is the second class's."""
    U = random_memberships(40, 3)
    partition_figure(U, tmp_path / "without.png")
    partition_figure(U, tmp_path / "with.png", truth=["a", "b"] * 20)
    orange = (16, 7, 0)  # ff7f0e
    assert orange in colours(tmp_path / "with.png")
    assert orange not in colours(tmp_path / "without.png")


def test_blocks_are_dark_and_the_rest_is_light(tmp_path: Path) -> None:
    """Hard clusters: D(U) is 0 within them and 1 between them, so the two ends of the map are there, the middle not."""
    partition_figure(np.eye(3)[np.arange(300) % 3], tmp_path / "p.png")
    pixels = matplotlib.image.imread(tmp_path / "p.png")[..., :3]
    wide = pixels.shape[1]
    matrix = pixels[:, int(wide * 0.47) : int(wide * 0.92)]  # left of the colour bar

    def share(colour: tuple[int, int, int]) -> float:
        return float((np.abs(matrix - np.array(colour) / 255).max(axis=2) < 0.02).mean())

    dark, light = share((68, 1, 84)), share((253, 231, 37))  # the ends of viridis
    assert light / dark == pytest.approx(2, rel=0.1)  # six blocks of nine against three


@pytest.mark.parametrize(
    ("U", "truth", "message"),
    [
        (np.ones(4), None, "memberships of shape"),
        (np.full((4, 2), np.nan), None, "finite"),
        (np.ones((4, 2)), [1, 2], "one class for each of the 4"),
        (np.ones((40, 2)), range(40), "at most 20"),
    ],
)
def test_refused(tmp_path: Path, U: np.ndarray, truth: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        partition_figure(U, tmp_path / "p.png", truth=truth)
    assert list(tmp_path.iterdir()) == []


def test_names_of_clusters_may_be_equal_but_must_be_enough(tmp_path: Path) -> None:
    partition_figure(random_memberships(9, 3), tmp_path / "p.png", names=["a", "a", "a long name"])
    with pytest.raises(InputError, match="2 names for 3 clusters"):
        partition_figure(random_memberships(9, 3), tmp_path / "q.png", names=["a", "b"])
    assert [one.name for one in tmp_path.iterdir()] == ["p.png"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.png").mkdir()
    with pytest.raises(OSError, match=r"p\.png"):
        partition_figure(random_memberships(5, 2), tmp_path / "p.png")
    assert [one.name for one in tmp_path.iterdir()] == ["p.png"]


def test_coincident_clusters_of_pcm_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups and four clusters: two modes."""
    rng = np.random.default_rng(0)
    points = np.repeat([0.0, 50.0], 40) + rng.normal(size=80)
    distances, runs = np.abs(np.subtract.outer(points, points)), dasrel.grid("pcm2", 4, n_init=2, eta_scale=4.0)
    with pytest.warns(dasrel.DasrelWarning, match="coincident clusters"):
        found = dasrel.cluster(distances, runs, kind="distance")
    drawn = []
    monkeypatch.setattr(clustering_figures, "partition_figure", lambda U, *_, **more: drawn.append((U.shape, more)))
    clustering_figures.draw_clustering(found, tmp_path)
    n_modes = found.best.result.n_modes
    assert n_modes is not None
    assert n_modes < 4
    [(shape, more)] = drawn
    assert shape == (80, n_modes)
    assert f"{n_modes} mode" in more["title"]
