"""The minimum spanning tree by one scan against textbook algorithms and SciPy; ties, zeros, tilings, a cluster."""

import tracemalloc

import dask
import networkx
import numpy as np
import pytest
import scipy.cluster.hierarchy as hierarchy
import scipy.sparse.csgraph as csgraph
from distributed import Client
from hypothesis import given, settings, strategies as st
from scipy.spatial.distance import cdist, pdist, squareform

import dasrel
from dasrel.engine.reduce import PartialResult, Plan
from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.geometry.tree import Tree, forest_consumer, minimum_spanning_tree
from dasrel.kernels import forest as spanning_forest
from dasrel.store.array_matrix import ArrayMatrix
from tests.helpers.matrices import distances, normal_points, symmetric, tied
from tests.helpers.stores import stored


def kruskal(D):
    """The textbook: all pairs sorted by (weight, i, j), taken if they join two groups."""
    i, j = np.triu_indices(len(D), 1)
    group = np.arange(len(D))
    edges = []
    for e in sorted(range(i.size), key=lambda e: (D[i[e], j[e]], i[e], j[e])):
        a, b = group[i[e]], group[j[e]]
        if a != b:
            group[group == b] = a
            edges.append((i[e], j[e]))
    return np.array(edges)


def textbook_vat(D):
    """VAT of Bezdek and Hathaway; of equal candidates the pair that sorts first."""
    n = len(D)
    i, j = np.triu_indices(n, 1)
    order = [int(i[D[i, j].argmax()])]
    while len(order) < n:
        outside = [k for k in range(n) if k not in order]
        order.append(min((D[p, q], min(p, q), max(p, q), q) for p in order for q in outside)[3])
    return order


def bipartite_kruskal(weights):
    """The same for a tile off the diagonal: only rows against columns are pairs."""
    r, c = weights.shape
    whole = np.full((r + c, r + c), np.inf)
    whole[:r, r:] = weights
    whole[r:, :r] = weights.T
    edges = kruskal(whole)
    return np.column_stack([edges[:, 0], edges[:, 1] - r])


@settings(max_examples=80, deadline=None, print_blob=True)
@given(n=st.integers(2, 40), parts=st.integers(1, 6), values=st.sampled_from([1, 2, 4, 10, 100000]),
       seed=st.integers(0, 99), single=st.booleans())  # fmt: skip
def test_edges_equal_the_textbook_on_tied_matrices_whatever_the_tiles(n, parts, values, seed, single):
    D = tied(n, values, seed).astype(np.float32 if single else np.float64)
    tree = minimum_spanning_tree(ArrayMatrix(D, "distance", tile=-(-n // parts)))
    expected = kruskal(D)
    np.testing.assert_array_equal(tree.edges, expected)
    np.testing.assert_array_equal(tree.weights, D[expected[:, 0], expected[:, 1]])
    i, j = np.triu_indices(n, 1)
    first = D[i, j].argmax()
    assert tree.largest == (D.max(), i[first], j[first])
    assert tree.vat_order().tolist() == textbook_vat(D)


SHAPES = {
    "noise": lambda n: np.random.default_rng(0).random((n, n)),
    "clusters": lambda n: _between(normal_points(2 * n) + 9 * np.random.default_rng(1).integers(0, 2, (2 * n, 3)), n),
    "outliers": lambda n: _between(np.random.default_rng(2).standard_cauchy((2 * n, 2)), n),
    "far outliers": lambda n: _between(np.random.default_rng(2).standard_cauchy((2 * n, 2)) ** 3, n),
    "grid": lambda n: _between(np.random.default_rng(3).integers(0, 9, (2 * n, 2)).astype(float), n),
    "grid in clusters": lambda n: _between(
        np.random.default_rng(4).integers(0, 7, (2 * n, 2)) + 50.0 * (np.arange(2 * n)[:, None] % 3), n
    ),
    "few values": lambda n: np.random.default_rng(6).integers(0, 3, (n, n)).astype(float),
}  # fmt: skip


def _between(X, n):
    return cdist(X[:n], X[n:])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("on_diagonal", [False, True])
def test_every_way_through_a_tile_gives_the_textbook_tree(shape, on_diagonal):
    """Tiles large enough for light edges and shrinking, with structure that takes each of the ways."""
    weights = SHAPES[shape](270 if on_diagonal else 150).astype(np.float32)
    if on_diagonal:
        weights = np.triu(weights, 1) + np.triu(weights, 1).T
    found = spanning_forest.spanning_tree(weights, on_diagonal)
    expected = kruskal(weights) if on_diagonal else bipartite_kruskal(weights)
    np.testing.assert_array_equal(np.column_stack([found.i, found.j]), expected)
    np.testing.assert_array_equal(found.weights, weights[expected[:, 0], expected[:, 1]])


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (2, 290), (290, 3), (20, 260)])
@pytest.mark.parametrize("values", [None, 3])
def test_narrow_tiles_at_the_edge_of_a_matrix(shape, values):
    rng = np.random.default_rng(0)
    weights = rng.random(shape) if values is None else rng.integers(0, values, shape).astype(float)
    found = spanning_forest.spanning_tree(weights, False)
    np.testing.assert_array_equal(np.column_stack([found.i, found.j]), bipartite_kruskal(weights))


def test_shapes_take_all_three_ways(monkeypatch):
    """The test above means something only if light edges, shrinking and Prim are each used by some shape."""
    ways = {shape: set() for shape in SHAPES}
    shrink, prim = spanning_forest._edges_between, spanning_forest._prim
    for shape, make in SHAPES.items():
        monkeypatch.setattr(spanning_forest, "_edges_between", lambda *a, s=shape: ways[s].add("shrink") or shrink(*a))
        monkeypatch.setattr(spanning_forest, "_prim", lambda *a, s=shape: ways[s].add("prim") or prim(*a))
        spanning_forest.spanning_tree(make(150).astype(np.float32), False)
    assert ways["noise"] == set()
    assert "shrink" in ways["clusters"]
    assert ways["far outliers"] == {"prim"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weight_equals_scipy_where_there_are_no_zeros(dtype):
    D = distances(normal_points(700)).astype(dtype)
    tree = minimum_spanning_tree(ArrayMatrix(D, "distance", tile=300))
    theirs = csgraph.minimum_spanning_tree(D)
    np.testing.assert_array_equal(tree.weights, np.sort(theirs.data))


@pytest.mark.parametrize("kind", ["squared-distance", "similarity", "kernel"])
def test_other_kinds_are_trees_of_squared_dissimilarities(kind):
    X = normal_points(90)
    D = cdist(X, X, "sqeuclidean")
    values = D if kind == "squared-distance" else X @ X.T
    values = (values + values.T) / 2
    tree = minimum_spanning_tree(ArrayMatrix(values, kind, tile=40))
    np.testing.assert_array_equal(tree.edges, kruskal(D))
    np.testing.assert_allclose(tree.weights, np.sort(D[tree.edges[:, 0], tree.edges[:, 1]]), rtol=1e-9)
    np.testing.assert_array_equal(tree.squared, tree.weights)
    far = np.sort(np.argwhere(np.equal(D, D.max()))[0])
    assert tree.largest[1:] == tuple(far)


def test_similarities_give_the_same_bits_whatever_the_tiles():
    """s_ii + s_jj - 2 s_ij rounds, and differently the other way round: each pair must have one value."""
    values = symmetric(120, 3, "similarity").astype(np.float32)
    trees = [minimum_spanning_tree(ArrayMatrix(values, "similarity", tile=t)) for t in (120, 50, 16)]
    for other in trees[1:]:
        same(trees[0], other)


def test_a_similarity_above_both_self_similarities_counts_as_dissimilarity_zero():
    values = np.array([[1.0, 5, 0], [5, 1, 0.5], [0, 0.5, 1]])
    tree = minimum_spanning_tree(values, kind="similarity")
    assert tree.edges.tolist() == [[0, 1], [1, 2]]
    assert tree.weights.tolist() == [0, 1]


def test_rounding_asymmetry_of_an_array_does_not_show():
    """Below the tolerance of the check the two halves may differ; the upper one counts, on every tile."""
    D = distances(normal_points(60))
    D[np.tril_indices(60, -1)] *= 1 + 4e-16
    trees = [minimum_spanning_tree(ArrayMatrix(D, "distance", tile=t)) for t in (60, 25)]
    same(*trees)
    np.testing.assert_array_equal(trees[0].weights, np.sort(D[trees[0].edges[:, 0], trees[0].edges[:, 1]]))


def same(one, other):
    np.testing.assert_array_equal(one.edges, other.edges)
    np.testing.assert_array_equal(one.weights, other.weights)
    assert one.largest == other.largest


def test_one_scan_and_the_same_tree_on_threads_and_two_processes(tmp_path, workers):
    """Tiles over 8 MiB in all, so that threads are used; whole numbers, so that ties abound."""
    D = tied(1700, 3000)
    matrix = stored(tmp_path / "d.zarr", D, tile=300)
    with dasrel.watch() as meter:
        here = minimum_spanning_tree(matrix)
        assert (meter.scans, meter.tiles) == (1, len(matrix.layout.tiles()))
    assert here.scans == 1
    ranks = np.zeros(D.shape)
    i, j = np.triu_indices(len(D), 1)
    ranks[i, j] = 1.0 + np.lexsort((j, i, D[i, j])).argsort()  # no two equal, none zero: SciPy's tree is the tree
    theirs = csgraph.minimum_spanning_tree(ranks).tocoo()
    order = theirs.data.argsort()
    np.testing.assert_array_equal(here.edges, np.column_stack([theirs.row, theirs.col])[order])
    for threads in (1, 3):
        with dask.config.set(num_workers=threads):
            same(here, minimum_spanning_tree(dasrel.open_matrix(matrix.store)))
    with Client(workers):
        same(here, minimum_spanning_tree(dasrel.open_matrix(matrix.store)))


def test_predicted_memory_is_above_what_a_tile_takes():
    wanted = {"distance": ("noise", "outliers", "far outliers", "grid in clusters"), "similarity": ("outliers",)}
    for kind, shapes in wanted.items():
        for shape in shapes:
            weights = SHAPES[shape](700).astype(np.float32)
            whole = np.block(
                [[np.zeros((700, 700), np.float32), weights], [weights.T, np.zeros((700, 700), np.float32)]]
            )
            np.fill_diagonal(whole, 3.0 if kind == "similarity" else 0.0)
            source = ArrayMatrix(whole, kind, tile=700)
            consumer = forest_consumer(source)
            plan = Plan(source.layout)
            for i, j in ((0, 1), (0, 0)):
                tile = source.files.read_checked(i, j)
                shares = consumer.share(plan.span(i)), consumer.share(plan.span(j))
                partial = PartialResult(consumer.kernel, plan, (i, j), shares)
                tracemalloc.start()
                partial.add(tile, i, j)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak <= consumer.task_memory, (kind, shape, i, j)


def test_a_scan_that_cannot_fit_is_refused():
    with pytest.raises(MemoryLimitError, match="raise memory"):
        minimum_spanning_tree(symmetric(300), kind="distance", memory="100kB")


@pytest.mark.parametrize("n", [2, 3, 10, 300])
def test_linkage_equals_scipy(n):
    condensed = pdist(normal_points(n, seed=n))
    tree = minimum_spanning_tree(ArrayMatrix(squareform(condensed), "distance", tile=max(1, n // 3)))
    np.testing.assert_array_equal(tree.linkage(), hierarchy.linkage(condensed, "single"))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 40), values=st.integers(1, 8), seed=st.integers(0, 99))
def test_linkage_of_tied_matrices_is_valid_and_has_scipys_heights_and_cuts(n, values, seed):
    D = tied(n, values, seed)
    tree = minimum_spanning_tree(D, kind="distance")
    merges, theirs = tree.linkage(), hierarchy.linkage(squareform(D), "single")
    assert hierarchy.is_valid_linkage(merges)
    np.testing.assert_array_equal(merges[:, 2], theirs[:, 2])
    np.testing.assert_array_equal(hierarchy.cophenet(merges), hierarchy.cophenet(theirs))
    for height in (-0.5, 0.0, values / 2, np.inf):
        labels = tree.components(height)
        graph = networkx.Graph([(i, j) for i in range(n) for j in range(i) if D[i, j] <= height])
        graph.add_nodes_from(range(n))
        groups = sorted(sorted(group) for group in networkx.connected_components(graph))
        assert groups == [np.flatnonzero(labels == k).tolist() for k in range(labels.max() + 1)]


def test_merges_are_ranges_of_the_vat_order():
    D = distances(normal_points(50))
    tree = minimum_spanning_tree(D, kind="distance")
    order, heights = tree.vat_order(), tree.join_heights()
    sets = {frozenset(order[a:b].tolist()) for a, b in zip(*tree.merges, strict=True)}
    nodes = hierarchy.to_tree(hierarchy.linkage(squareform(D), "single"), rd=True)[1]
    assert sets == {frozenset(node.pre_order()) for node in nodes if not node.is_leaf()}
    np.testing.assert_array_equal(np.sort(heights[1:]), tree.weights)
    assert heights[0] == 0


def test_all_equal_and_two_objects():
    tree = minimum_spanning_tree(np.ones((5, 5)) - np.eye(5), kind="distance")
    assert tree.edges.tolist() == [[0, 1], [0, 2], [0, 3], [0, 4]]
    assert tree.vat_order().tolist() == [0, 1, 2, 3, 4]
    nothing = minimum_spanning_tree(np.zeros((3, 3)), kind="distance")
    assert nothing.edges.tolist() == [[0, 1], [0, 2]]
    assert nothing.largest == (0.0, 0, 1)
    two = minimum_spanning_tree(np.array([[0, 3.0], [3, 0]]), kind="distance")
    assert (two.edges.tolist(), two.weights.tolist(), two.squared.tolist()) == ([[0, 1]], [3.0], [9.0])
    assert two.linkage().tolist() == [[0, 1, 3, 2]]
    assert repr(two) == "<Tree: 2 objects, distance up to 3>"


def test_networkx_sees_the_same_tree():
    D = distances(normal_points(40))
    tree = minimum_spanning_tree(D, kind="distance")
    theirs = networkx.minimum_spanning_tree(networkx.from_numpy_array(D))
    ours = tree.to_networkx()
    assert networkx.utils.graphs_equal(networkx.Graph(sorted(ours.edges)), networkx.Graph(sorted(theirs.edges)))
    assert ours.size("weight") == pytest.approx(theirs.size("weight"))
    named = tree.to_networkx([f"x{k}" for k in range(40)])
    assert sorted(named) == sorted(f"x{k}" for k in range(40))
    with pytest.raises(InputError, match="2 ids for a tree of 40 objects"):
        tree.to_networkx(["a", "b"])


def test_saved_and_loaded(tmp_path):
    tree = minimum_spanning_tree(tied(30, 5), kind="squared-distance")
    tree.save(tmp_path / "t.npz")
    again = Tree.load(tmp_path / "t.npz")
    same(tree, again)
    assert (again.kind, again.scans) == ("squared-distance", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


def _changed(path, **parts):
    with np.load(path, allow_pickle=False) as file:
        return {**{name: file[name] for name in file.files}, **parts}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"edges": np.array([[0, 1], [0, 1], [2, 3]])}, "do not connect all"),
        ({"edges": np.array([[0, 1], [1, 2], [2, 9]])}, "pairs i < j of 4"),
        ({"weights": np.array([3.0, 2, 1])}, "ascending"),
        ({"weights": np.array([1.0, 2])}, "shapes"),
        ({"edges": np.zeros((3, 2))}, "types"),
        ({"largest": np.array([9.0, 2, 1])}, "largest"),
        ({"about": np.frombuffer(b'{"tree_version": 9, "kind": "distance"}', np.uint8)}, "version 9"),
        ({"about": np.frombuffer(b"[]", np.uint8)}, "not a dasrel tree"),
        ({"weights": np.array([None, 1, 2])}, "not a dasrel tree"),
    ],
)
def test_damaged_files_are_refused(tmp_path, parts, message):
    path = tmp_path / "t.npz"
    minimum_spanning_tree(tied(4, 5), kind="distance").save(path)
    np.savez(tmp_path / "bad.npz", **_changed(path, **parts))
    with pytest.raises(StoreError, match=message):
        Tree.load(tmp_path / "bad.npz")


def test_files_that_are_no_trees_are_refused(tmp_path):
    with pytest.raises(StoreError, match="no tree at"):
        Tree.load(tmp_path / "none.npz")
    path = tmp_path / "t.npz"
    minimum_spanning_tree(tied(4, 5), kind="distance").save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(StoreError, match="not a dasrel tree"):
        Tree.load(path)
    with pytest.raises(InputError, match="NaN"):
        minimum_spanning_tree(tied(4, 5), kind="distance").components(float("nan"))
