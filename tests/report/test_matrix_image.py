"""Pictures of matrices against dense block means; iVAT against its definition; files that can be looked at."""

import tracemalloc

import matplotlib.image
import numpy as np
import pytest
import scipy.sparse.csgraph as csgraph
from distributed import Client
from hypothesis import given, settings, strategies as st
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel.engine.reduce import PartialResult, Plan
from dasrel.errors import InputError
from dasrel.geometry.tree import minimum_spanning_tree
from dasrel.report.figures.downsample import induced_image
from dasrel.report.figures.matrix import image_consumer, ivat_image, matrix_image, proximity_image
from dasrel.report.figures.matrix_drawing import CLUSTERS, LINE, Block, colour_range, write_image
from dasrel.store.array_matrix import ArrayMatrix
from tests.helpers.commands import prepared
from tests.helpers.matrices import distances, normal_points, squared_of, symmetric
from tests.helpers.stores import stored


def block_means(values, pixels):
    """Means over the blocks of a dense matrix; the cell of place p is floor(p pixels / n)."""
    n = len(values)
    cell = np.array([p * min(pixels, n) // n for p in range(n)])
    result = np.empty((cell[-1] + 1,) * 2)
    for a in range(len(result)):
        for b in range(len(result)):
            result[a, b] = values[np.ix_(cell == a, cell == b)].mean()
    return result


def minimax(D):
    """The heaviest edge of the best path between each two objects, by Floyd and Warshall's loop."""
    result = D.copy()
    for k in range(len(D)):
        result = np.minimum(result, np.maximum(result[:, k, None], result[None, k, :]))
    return result


@settings(max_examples=50, deadline=None, print_blob=True)
@given(n=st.integers(2, 40), parts=st.integers(1, 6), pixels=st.integers(1, 50), seed=st.integers(0, 99),
       kind=st.sampled_from(["distance", "squared-distance", "similarity"]), ordered=st.booleans())  # fmt: skip
def test_a_matrix_in_any_order_equals_dense_block_means(n, parts, pixels, seed, kind, ordered):
    values = symmetric(n, seed, kind)
    order = np.random.default_rng(seed).permutation(n) if ordered else None
    found = matrix_image(ArrayMatrix(values, kind, tile=-(-n // parts)), order, pixels)
    seen = squared_of(values, kind) if kind == "similarity" else values
    seen = seen if order is None else seen[np.ix_(order, order)]
    np.testing.assert_allclose(found, block_means(seen, pixels), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found, found.T)


def test_one_pixel_an_object_is_the_matrix_itself_by_one_scan(tmp_path):
    values = symmetric(150, 1).astype(np.float32)
    matrix = stored(tmp_path / "d.zarr", values, tile=64)
    order = np.random.default_rng(0).permutation(150)
    with dasrel.watch() as meter:
        found = matrix_image(matrix, order, 1000)
        assert (meter.scans, meter.tiles) == (1, len(matrix.layout.tiles()))
    np.testing.assert_array_equal(found, values[np.ix_(order, order)])


def test_two_processes_give_the_same_bits(tmp_path, workers):
    values = symmetric(300, 1, "similarity")
    matrix = stored(tmp_path / "d.zarr", values, "similarity", tile=64)
    order = np.random.default_rng(0).permutation(300)
    here = matrix_image(matrix, order, 90)
    with Client(workers):
        np.testing.assert_array_equal(matrix_image(dasrel.open_matrix(matrix.store), order, 90), here)


def test_predicted_memory_is_above_what_a_tile_takes():
    for kind in ("distance", "similarity"):
        source = ArrayMatrix(symmetric(1200, 1, kind).astype(np.float32), kind, tile=600)
        consumer = image_consumer(source, np.random.default_rng(0).permutation(1200), 400)
        plan = Plan(source.layout)
        for i, j in ((0, 1), (0, 0)):
            tile = source.files.read_checked(i, j)
            shares = (consumer.share(plan.span(i)), consumer.share(plan.span(j)))
            tracemalloc.start()
            PartialResult(consumer.kernel, plan, (i, j), shares).add(tile, i, j)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak <= consumer.task_memory, (kind, i, j)


def test_bands_and_many_groups_add_up(monkeypatch):
    """Small bands and 13 tiles a side: cells that are cut by bands, tiles and groups of tiles."""
    values = symmetric(130, 2)
    monkeypatch.setattr("dasrel.kernels.products.PANEL_BYTES", 1)
    order = np.random.default_rng(0).permutation(130)
    for chosen in (order, None):
        seen = values if chosen is None else values[np.ix_(chosen, chosen)]
        for tile in (10, 128):
            found = matrix_image(ArrayMatrix(values, "distance", tile=tile), chosen, 7)
            np.testing.assert_allclose(found, block_means(seen, 7), rtol=1e-12)


@settings(max_examples=40, deadline=None, print_blob=True)
@given(
    n=st.integers(2, 30), values=st.sampled_from([1, 3, 20, None]), pixels=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_ivat_equals_minimax_paths_in_vat_order(n, values, pixels, seed):
    if values is None:
        D = distances(normal_points(n, 2, seed))
    else:
        D = np.triu(np.random.default_rng(seed).integers(0, values, (n, n)), 1).astype(float)
        D += D.T
    tree = minimum_spanning_tree(D, kind="distance")
    order = tree.vat_order()
    dense = minimax(D)[np.ix_(order, order)]
    np.testing.assert_array_equal(ivat_image(tree, n), dense)
    found = ivat_image(tree, pixels)
    np.testing.assert_allclose(found, block_means(dense, pixels), rtol=1e-12, atol=1e-12 * max(1.0, dense.max()))
    assert found.min() >= 0


def test_ivat_needs_no_scan():
    tree = minimum_spanning_tree(distances(normal_points(50, 2)), kind="distance")
    with dasrel.watch() as meter:
        assert ivat_image(tree, 20).shape == (20, 20)
        assert meter.scans == 0


def test_ivat_shows_blocks_where_there_are_clusters():
    """Three far groups: within a block the picture is below the gap, between blocks at it or above."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2)) + 100 * (np.arange(90)[:, None] % 3)
    D = squareform(pdist(X))
    tree = minimum_spanning_tree(D, kind="distance")
    labels = csgraph.connected_components(D < 20, directed=False)[1][tree.vat_order()]
    same = labels[:, None] == labels[None, :]
    picture = ivat_image(tree, 90)
    assert picture[same].max() < 20 < picture[~same].min()
    np.testing.assert_array_equal(labels.reshape(3, 30), np.repeat(labels[::30], 30).reshape(3, 30))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), c=st.integers(1, 5), pixels=st.integers(1, 50), seed=st.integers(0, 99))
def test_induced_picture_equals_the_formula(n, c, pixels, seed):
    rng = np.random.default_rng(seed)
    U = rng.dirichlet(np.ones(c), n).T
    order = rng.permutation(n)
    product = U.T @ U
    dense = (1 - product / product.max())[np.ix_(order, order)]
    np.testing.assert_allclose(induced_image(U, order, pixels), block_means(dense, pixels), atol=1e-12)


def test_bad_arguments_are_refused():
    D = distances(normal_points(5, 2))
    for order in ([0, 1, 2, 3], [0, 1, 2, 3, 3], [0.0, 1, 2, 3, 4], [1, 2, 3, 4, 5]):
        with pytest.raises(InputError, match="positions 0 to 4 once"):
            matrix_image(D, order, 3, kind="distance")
    with pytest.raises(InputError, match="at least one pixel"):
        matrix_image(D, None, 0, kind="distance")
    with pytest.raises(InputError, match="memberships have shape"):
        induced_image(np.ones(3))
    with pytest.raises(InputError, match="numbers >= 0"):
        induced_image(np.array([[0.5, np.nan]]))
    with pytest.raises(InputError, match="all memberships are 0"):
        induced_image(np.zeros((2, 3)))


def test_a_written_picture_has_each_value_as_a_square_of_dots(tmp_path):
    """Read the file back: the drawn part is the array, value by value, from black to white."""
    values = np.arange(25.0).reshape(5, 5)
    values = values + values.T
    write_image(values, tmp_path / "p.png", n_objects=1000, title="five \x1b[31m", label="distance")
    dots = matplotlib.image.imread(tmp_path / "p.png")[:, :, 0]
    scale = 80  # 400 dots for 5 values
    drawn = dots[50 : 50 + 400, 100 : 100 + 400][scale // 2 :: scale, scale // 2 :: scale]
    off = values[~np.eye(5, dtype=bool)]
    expected = np.clip((values - off.min()) / (off.max() - off.min()), 0, 1)
    np.testing.assert_allclose(drawn, expected, atol=1 / 250)
    assert dots.shape == (50 + 400 + 65, 100 + 400 + 150)
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


@pytest.mark.parametrize("name", ["p.png", "p.pdf", "p.svg", "no_suffix"])
def test_other_files_and_constant_pictures(tmp_path, name):
    write_image(np.zeros((3, 3)), tmp_path / name, colours="viridis")
    assert (tmp_path / name).stat().st_size > 500


def test_pictures_that_cannot_be_written_are_refused(tmp_path):
    good = np.eye(3)
    with pytest.raises(InputError, match=r"written as \.xyz"):
        write_image(good, tmp_path / "p.xyz")
    with pytest.raises(InputError, match="colours are one of"):
        write_image(good, tmp_path / "p.png", colours="jet")
    for bad in (np.zeros((2, 3)), np.zeros(3), np.zeros((0, 0)), np.full((2, 2), np.nan)):
        with pytest.raises(InputError, match="square array of finite numbers"):
            write_image(bad, tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []


def dense_proximity(U):
    """Q09: P_kl = sum_i min(u_ik, u_il)."""
    return sum(np.minimum(u[:, None], u[None, :]) for u in U)


def test_proximities_equal_the_formula():
    rng = np.random.default_rng(4)
    U = rng.dirichlet(np.ones(4), 90).T
    order = rng.permutation(90)
    dense = dense_proximity(U)[np.ix_(order, order)]
    np.testing.assert_allclose(proximity_image(U, order, 90), dense, atol=1e-14)
    found = proximity_image(U, order, 20)
    np.testing.assert_allclose(found, block_means(dense, 20), atol=4 / 512)
    with pytest.raises(InputError, match="give \\(clusters, objects\\)"):
        proximity_image(np.ones(3))


def test_stored_similarities_are_drawn_as_such(tmp_path):
    """A similarity of 0 to 100: the image has the stored values, and alike is dark."""
    rng = np.random.default_rng(5)
    values = rng.uniform(0, 100, (30, 30))
    values = (values + values.T) / 2
    np.fill_diagonal(values, 100)
    store = tmp_path / "s.zarr"
    dasrel.import_matrix(values, store, kind="similarity")
    job = prepared("image", store, tmp_path / "s.png", order="none")
    drawn = job._values(np.arange(30), None, None)
    np.testing.assert_allclose(drawn.image, values, rtol=1e-6)
    assert (drawn.label, drawn.is_similarity) == ("similarity", True)


def test_a_kernel_is_drawn_at_its_width(tmp_path):
    distances = np.abs(np.subtract.outer(np.arange(20.0), np.arange(20.0)))
    store = tmp_path / "d.zarr"
    dasrel.import_matrix(distances, store, kind="distance")
    job = prepared("image", store, tmp_path / "k.png", order="none", view="kernel", width=3.0)
    drawn = job._values(np.arange(20), None, None)
    np.testing.assert_allclose(drawn.image, np.exp(-(distances**2) / 18), rtol=1e-5)


def test_blocks_and_clusters_are_beside_the_axes(tmp_path):
    """Boundaries have a colour that no value has; strips have a colour for each cluster."""
    values = np.kron(1 - np.eye(2), np.ones((50, 50)))
    write_image(values, tmp_path / "b.png", blocks=[Block("0", 40), Block("1", 60)])
    write_image(values, tmp_path / "c.png", clusters=np.repeat([0, 1], [40, 60]))
    colours = {"b": [LINE], "c": list(CLUSTERS[:2])}
    for name, wanted in colours.items():
        dots = (255 * matplotlib.image.imread(tmp_path / f"{name}.png")[:, :, :3]).round().astype(int)
        found = {tuple(one) for one in np.unique(dots.reshape(-1, 3), axis=0)}
        for colour in wanted:
            assert tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5)) in found


def test_colours_use_the_whole_range():
    """One pixel far from all others does not take the colours of the rest."""
    values = np.random.default_rng(0).uniform(1, 2, (100, 100))
    values = (values + values.T) / 2
    np.fill_diagonal(values, 0)
    low, high, extend = colour_range(values)
    assert 1 <= low < 1.2
    values[3, 4] = values[4, 3] = 1000
    low, high, extend = colour_range(values)
    assert (high < 2, extend) == (True, "both")
    assert colour_range(np.zeros((3, 3)))[2] == "neither"
