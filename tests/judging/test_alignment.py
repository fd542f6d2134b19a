"""Alignment of kernels and partitions, against Q09 written out densely; searches, scans, resumption, refusals."""

from dataclasses import replace

import numpy as np
import pytest

import dasrel
from dasrel.commands.align import align, prepare_alignment
from dasrel.engine.relation import relation
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError, Stopped
from dasrel.judging import alignment as alignment_scan
from dasrel.judging.alignment import surface, surface_memory
from dasrel.judging.alignment_search import WIDTHS, Evolution
from dasrel.util import progress
from tests.helpers.faults import Killed, killed_after, stopped_after
from tests.helpers.matrices import distances, non_metric

GENERATORS = {
    2: [[-1, -1], [1, 1]],
    3: [[0, 1.5], [1.5, -1], [-1.5, -1]],
    4: [[1.3, 1.3], [1.3, -1.3], [-1.3, 1.3], [-1.3, -1.3]],
    6: [[x, y] for x in (-2.6, 0, 2.6) for y in (-1.3, 1.3)],
}
"""Centres of Gaussian generators, as in Q09's figures 1, 9, 8 and 4 (which print no coordinates)."""
PRINTED = {2: 0.9540, 3: 0.92225, 4: 0.9537, 6: 0.9758}
"""The alignments of Q09's table 2, and of its three generators."""


def generated(count, each=30, spread=0.4, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([centre + spread * rng.normal(size=(each, 2)) for centre in np.array(GENERATORS[count])])


def proximity_matrix(U):
    """Q09 (3), for memberships (c, n)."""
    return np.minimum(U[:, :, None], U[:, None, :]).sum(axis=0)


def aligned(K, P):
    """Q09's equation of section 6."""
    return (K * P).sum() / np.sqrt((K * K).sum() * (P * P).sum())


def centred(K):
    H = np.eye(len(K)) - 1 / len(K)
    return H @ K @ H


@pytest.fixture(scope="module")
def points():
    return generated(3, each=15)


@pytest.fixture(scope="module")
def matrix(points, store_factory):
    return dasrel.open_matrix(store_factory(distances(points), "distance", dtype="float64", tile=8))


@pytest.fixture(scope="module")
def partitions(points):
    """Memberships of several kinds; the last do not sum to one, as those of pcm."""
    rng, n = np.random.default_rng(5), len(points)
    return [rng.dirichlet(np.ones(c), n).T for c in (2, 3, 7)] + [rng.random((4, n))]


# --------------------------------------------------------------------------------------------------------- the oracle


@pytest.mark.parametrize("tile", [7, 16, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["distance", "squared-distance"])
def test_alignments_are_those_of_the_dense_matrices(store_factory, points, partitions, kind, dtype, tile):
    D = distances(points, "sqeuclidean")
    stored = np.sqrt(D) if kind == "distance" else D
    path = store_factory(stored, kind, dtype=dtype, tile=tile)
    widths = [0.3, 0.9, 2.5]
    found = surface(relation(path), partitions, widths)
    tolerance = 1e-12 if dtype == "float64" else 2e-6
    for j, width in enumerate(widths):
        K = np.exp(-D / (2 * width**2))
        for i, U in enumerate(partitions):
            P = proximity_matrix(U)
            assert found.alignment[i, j] == pytest.approx(aligned(K, P), abs=tolerance)
            assert found.centred[i, j] == pytest.approx(aligned(centred(K), centred(P)), abs=20 * tolerance)
        np.testing.assert_allclose(found.densities[:, j], [K.mean(0).min(), K.mean(0).max()], rtol=20 * tolerance)


def test_without_the_library_and_with_other_views(matrix, points, partitions, monkeypatch):
    D = distances(points, "sqeuclidean")
    compiled = surface(relation(matrix), partitions, [0.5, 1.0])
    seen = relation(matrix).power(0.5).spread(0.25)
    K = np.exp(-(np.sqrt(D) + 0.25 * (D > 0)) / 2)
    viewed = surface(seen, partitions, [1.0])
    np.testing.assert_allclose(
        viewed.alignment[:, 0], [aligned(K, proximity_matrix(U)) for U in partitions], rtol=1e-12
    )
    monkeypatch.setattr(alignment_scan.proximity, "_native", lambda: None)
    plain = surface(relation(matrix), partitions, [0.5, 1.0])
    np.testing.assert_allclose(plain.alignment, compiled.alignment, rtol=1e-12)
    np.testing.assert_allclose(plain.centred, compiled.centred, rtol=1e-9)


@pytest.mark.parametrize("kind", ["kernel", "similarity"])
def test_a_kernel_is_used_as_it_is_and_only_the_number_of_clusters_is_searched(store_factory, points, kind):
    K = np.exp(-distances(points, "sqeuclidean") / 2)
    path = store_factory(K, kind, dtype="float64", tile=11)
    found = align(path, n_clusters=range(2, 6))
    assert found.widths == (None,)
    assert found.n_clusters == 2 + int(found.values[:, 0].argmax())
    for one, values in zip(found.partitions, found.values, strict=True):
        P = proximity_matrix(one.memberships.T)
        assert values[0] == pytest.approx(aligned(K, P), abs=1e-12)
    # of a kernel seen through a width: the Gaussian of its squared distances 2 - 2 k
    gaussian = align(path, n_clusters=3, width=0.9)
    seen = np.exp(-(2 - 2 * K) / (2 * 0.9**2))
    assert gaussian.alignment == pytest.approx(aligned(seen, proximity_matrix(gaussian.partition.memberships.T)))


def test_a_constant_matrix_has_no_centred_alignment(matrix):
    n = matrix.n_objects
    found = surface(relation(matrix), [np.full((2, n), 0.5)], [1e4])
    assert found.alignment[0, 0] == pytest.approx(1, abs=1e-6)  # a flat partition and a wide kernel: Q09's trap
    assert found.centred[0, 0] == 0


# -------------------------------------------------------------------------------------------------------- the answers


@pytest.mark.parametrize("count", list(GENERATORS))
def test_the_number_of_generators_is_found(count):
    """Q09, table 2 and section 8. Its points are not printed, so that the alignments agree only roughly."""
    found = align(distances(generated(count), dtype="float32"), kind="distance")
    i, _ = found.best("centred")
    assert found.n_clusters == count
    assert found.partitions[i].result.run.n_clusters == count
    assert found.alignment == pytest.approx(PRINTED[count], abs=0.07)
    assert found.bounds[0] < found.width <= found.bounds[1]


def test_iris_has_two_clusters():
    """As Q09 finds, and as the literature does that it names."""
    from sklearn.datasets import load_iris

    found = align(distances(load_iris().data), kind="distance")
    assert found.n_clusters == 2
    assert sorted(found.partition.sizes) in ([50, 100], [53, 97])  # setosa, and three of versicolor


def test_five_groups_in_eight_dimensions():
    from sklearn.datasets import make_blobs
    from sklearn.metrics import adjusted_rand_score

    points, labels = make_blobs(400, 8, centers=5, cluster_std=2.5, random_state=0)
    found = align(distances(points, dtype="float32"), kind="distance")
    assert found.n_clusters == 5
    assert adjusted_rand_score(found.partition.labels, labels) == 1


def test_five_groups_as_a_kernel():
    """Narrower than the groups: the blocks are pale, and rule fcm2 still finds them."""
    from sklearn.datasets import make_blobs

    D = distances(make_blobs(300, 2, centers=5, cluster_std=1, random_state=3)[0], "sqeuclidean")
    found = align(np.exp(-D / 8), kind="kernel")
    assert (found.n_clusters, found.partition.result.run.rule) == (5, "fcm2")


@pytest.mark.parametrize("rule", ["fcm2", "hard"])
def test_partitions_of_other_rules(matrix, rule):
    assert align(matrix, n_clusters=range(2, 7), rule=rule).n_clusters == 3


def test_the_evolution_finds_what_the_grid_finds(matrix):
    ladder = align(matrix, n_clusters=range(2, 8))
    evolved = align(matrix, n_clusters=range(2, 8), search="evolution")
    assert evolved.n_clusters == ladder.n_clusters == 3
    assert evolved.width == pytest.approx(ladder.width, rel=0.05)
    assert evolved.alignment == pytest.approx(ladder.alignment, abs=1e-3)
    assert evolved.search == "evolution"


def test_flat_and_coincident_partitions_are_shown_and_not_chosen():
    """In many dimensions memberships of m = 2 are all alike: such a partition is aligned best with a wide kernel."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 40)) + 1.2 * np.repeat(np.eye(3, 40), 20, axis=0)
    runs = [*dasrel.grid("fcm1", [2, 4], fuzzifier=2.0), *dasrel.grid("fcm1", 3, fuzzifier=1.1)]
    with pytest.warns(DasrelWarning, match="ended with U = 1/c"):
        found = align(distances(points), rule=runs, kind="distance")
    best = found.values.max(axis=1)
    assert found.sound.tolist() == [False, True, False]
    assert best[0] > best[1]
    assert found.n_clusters == 3
    assert not any(row["best"] for row in found.table() if not row["sound"])


def test_negative_distances_are_healed():
    with pytest.warns(DasrelWarning) as told:
        found = align(non_metric(40), kind="squared-distance", n_clusters=range(2, 5))
    assert any("healed by a spread" in str(one.message) for one in told)
    assert found.n_clusters == 3
    assert any(one.result.negative_distances for one in found.partitions)


def test_the_table_has_all_pairs(matrix):
    found = align(matrix, n_clusters=[4, 2], width=[2.0, 0.5, 1.0])
    rows = found.table()
    assert [(row["n_clusters"], row["width"]) for row in rows] == [(c, w) for c in (2, 4) for w in (0.5, 1.0, 2.0)]
    assert [row["alignment"] for row in rows] == found.values.ravel().tolist()
    best = max(rows, key=lambda row: row["alignment"])
    assert best["best"]
    assert (found.n_clusters, found.width, found.alignment) == (best["n_clusters"], best["width"], best["alignment"])
    assert [row["alignment"] for row in found.by_clusters()] == found.values.max(axis=1).tolist()


# ------------------------------------------------------------------------------------------------------ scans and bits


def scans_of_clustering(matrix, numbers):
    runs = prepare_alignment(matrix, n_clusters=numbers).runs
    return dasrel.cluster(matrix, runs).scans


def test_all_pairs_of_a_grid_take_one_scan(matrix, partitions):
    with progress.watch() as counted:
        surface(relation(matrix), partitions, np.geomspace(0.1, 3, 12).tolist())
    assert counted.scans == 1


def test_scans_are_those_of_the_docstring(matrix, points, store_factory):
    numbers = [2, 3, 4]
    before = scans_of_clustering(matrix, numbers)
    with progress.watch() as counted:
        automatic = align(matrix, n_clusters=numbers)
    assert counted.scans == automatic.scans == before + 3
    assert WIDTHS < len(automatic.widths) <= WIDTHS + 16
    assert align(matrix, n_clusters=numbers, width=[0.5, 1.0]).scans == before + 1
    evolved = align(matrix, n_clusters=numbers, search=Evolution(10, 3))
    assert before + 1 + 1 < evolved.scans <= before + 1 + 4
    kernel = store_factory(points @ points.T, "kernel", dtype="float64", tile=16)
    assert align(kernel, n_clusters=numbers).scans == scans_of_clustering(kernel, numbers) + 1


def test_workers_and_threads_give_the_same_bits(matrix, partitions, workers):
    import dask
    from distributed import Client

    widths = [0.5, 1.0, 2.0]
    found = []
    for threads in (1, 2):
        with dask.config.set(num_workers=threads):
            found.append(surface(relation(matrix), partitions, widths))
    with Client(workers.scheduler_address):
        found.append(surface(relation(matrix), partitions, widths))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].alignment, other.alignment)
        np.testing.assert_array_equal(found[0].centred, other.centred)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("how", [killed_after, stopped_after])
@pytest.mark.parametrize("search", ["grid", Evolution(8, 4)])
@pytest.mark.parametrize("after", [1, 3])
def test_a_resumed_search_has_the_same_bits(matrix, tmp_path, how, search, after):
    numbers = [2, 3]
    whole = align(matrix, n_clusters=numbers, search=search)
    scans = scans_of_clustering(matrix, numbers) + after - 2  # in the iterations, and in the search
    keep = dasrel.Checkpoint(tmp_path / "kept")
    with pytest.raises((Killed, Stopped)), how(scans):
        align(matrix, n_clusters=numbers, search=search, checkpoint=keep)
    again = align(matrix, n_clusters=numbers, search=search, checkpoint=replace(keep, resume=True))
    assert again.scans == whole.scans
    assert again.widths == whole.widths
    np.testing.assert_array_equal(again.values, whole.values)
    np.testing.assert_array_equal(again.centred, whole.centred)


# -------------------------------------------------------------------------------------------------------------- memory


def test_little_memory_divides_the_widths(matrix, partitions):
    seen, widths = relation(matrix), np.geomspace(0.1, 3, 40).tolist()
    first = [0, 2, 5, 12, 16]
    one = surface_memory(seen, first, widths[:1])
    assert one < surface_memory(seen, first, widths)
    with progress.watch() as counted:
        divided = surface(seen, partitions, widths, memory=one + 20_000)
    assert 1 < counted.scans < 40
    np.testing.assert_array_equal(divided.alignment, surface(seen, partitions, widths).alignment)
    with pytest.raises(MemoryLimitError, match="a scan needs"):
        surface_memory(seen, first, widths, memory=10_000)
    with pytest.raises(MemoryLimitError):
        surface(seen, partitions, widths, memory=10_000)


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"width": 0}, "width is 0; give numbers above 0, or auto"),
        ({"width": [1.0, -2.0]}, "width is -2.0; give"),
        ({"width": float("nan")}, "width is nan"),
        ({"width": []}, "width is empty"),
        ({"width": "wide"}, "width is wide"),
        ({"width": None}, "kind distance is no kernel and needs a width"),
        ({"n_clusters": []}, "n_clusters is empty"),
        ({"n_clusters": 1}, "n_clusters is 1; give whole numbers of at least 2"),
        ({"n_clusters": [2, 2.5]}, "n_clusters is 2.5"),
        ({"n_clusters": [2, 46]}, "n_clusters is 46 for 45 objects; give 2 to 45"),
        ({"rule": "fcm3"}, "no rule 'fcm3'"),
        ({"rule": []}, "there is no run"),
        ({"rule": [3]}, "a run is of type int; make runs with dasrel.Run"),
        ({"rule": dasrel.grid("hard", 1)}, "a partition into one cluster"),
        ({"rule": dasrel.grid("hard", 2), "n_clusters": 3}, "leave n_clusters out"),
        ({"rule": dasrel.grid("hard", 2), "n_init": 3}, "leave n_init out"),
        ({"population": 6}, "population without an evolution; say search='evolution'"),
        ({"n_starts": 6}, "no such setting of a run: n_starts"),
        ({"search": "random"}, "no search 'random'"),
        ({"search": 3}, "search is 3"),
        ({"search": "evolution", "width": 1.0}, "leave width out"),
        ({"kind": "kernel"}, "kind"),
    ],
)
def test_arguments_that_are_refused_before_any_scan(matrix, given, message):
    with progress.watch() as counted, pytest.raises(InputError, match=message):
        align(matrix, **given)
    assert counted.scans == 0


@pytest.mark.parametrize("given", [{"population": 4}, {"generations": 0}, {"random_state": -1}, {"population": 7.5}])
def test_evolutions_that_are_refused(given):
    with pytest.raises(InputError, match=f"{next(iter(given))} is"):
        Evolution(**given)


def test_matrices_without_structure():
    with pytest.raises(InputError, match="single object"):
        align(np.zeros((1, 1)), kind="distance")
    with pytest.raises(InputError, match="all objects are equal"):
        align(np.zeros((6, 6)), kind="distance")
    with pytest.raises(InputError, match="no kernel"):
        align(dasrel.relation(np.eye(4), kind="kernel").power(0.5), width=None)


def test_few_objects():
    found = align(np.array([[0, 1.0], [1.0, 0]]), kind="distance")
    assert (found.n_clusters, len(found.partitions)) == (2, 1)


def test_widths_at_which_kernels_are_constant_name_the_usable_ones(matrix):
    with pytest.raises(
        InputError, match=r"widths cannot be used: 1e-05 \(no object sees another\), 1e\+06 \(all objects"
    ):
        align(matrix, n_clusters=2, width=[1e-5, 1.0, 1e6])


def test_parameters_of_runs_and_of_evolutions_are_keywords(matrix):
    given = {"n_init": 2, "random_state": 3, "max_iter": 50, "fuzzifier": 1.5}
    runs = dasrel.grid("fcm1", [2, 3], on_negative="heal", exact=True, **given)
    named, listed = align(matrix, n_clusters=[2, 3], **given), align(matrix, rule=runs)
    assert named.values.tobytes() == listed.values.tobytes()
    assert [repr(p.result.run) for p in named.partitions] == [repr(p.result.run) for p in listed.partitions]
    evolution = {"population": 6, "generations": 3}
    named = align(matrix, n_clusters=2, n_init=1, search="evolution", **evolution, random_state=4)
    listed = align(matrix, n_clusters=2, n_init=1, search=Evolution(**evolution, random_state=4), random_state=4)
    assert named.widths == listed.widths
    assert named.values.tobytes() == listed.values.tobytes()
