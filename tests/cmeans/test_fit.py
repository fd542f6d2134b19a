"""Results, models on disk, and new objects."""

import json
import pickle
import re

import numpy as np
import pytest
import zarr
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_samples

from dasrel.cmeans.fit import cluster
from dasrel.commands.cluster import save_clustering, write_clustering
from dasrel.engine.relation import relation
from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.io.features import read_rows
from dasrel.partition.model import Model
from dasrel.store.array_matrix import as_matrix
from dasrel.util import progress
from tests.helpers import oracle
from tests.helpers.faults import quiet
from tests.helpers.matrices import distances, grouped_points, uniform_points
from tests.helpers.runs import Run, grid

RUNS = {
    "fcm1": Run("fcm1", 3, fuzzifier=1.8),
    "fcm2": Run("fcm2", 3, entropy_weight=0.8),
    "pcm1": Run("pcm1", 3, entropy_weight=0.8, fuzzifier=1.5, eta_scale=0.7),
    "pcm2": Run("pcm2", 3, entropy_weight=0.8, eta_scale=0.7),
    "hard": Run("hard", 3, init="k-means++"),
}


@pytest.mark.parametrize("rule", list(RUNS))
def test_a_saved_model_reproduces_the_memberships_of_the_training_rows(rule, tmp_path):
    D = distances(grouped_points(60))
    best = cluster(D, RUNS[rule], kind="distance").best
    best.model.save(tmp_path / "model.npz")
    model = Model.load(tmp_path / "model.npz")
    np.testing.assert_allclose(model.predict_memberships(D), best.memberships, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(model.predict(D), best.labels)
    assert [p.name for p in tmp_path.iterdir()] == ["model.npz"]  # nothing left aside


@pytest.mark.parametrize("rule", list(RUNS))
def test_new_objects_are_placed_as_in_feature_space(rule):
    """The centres are means of points, so that distances to them can be had without the matrix."""
    X, Z = grouped_points(60), grouped_points(25, 9)
    best = cluster(distances(grouped_points(60)), RUNS[rule], kind="distance").best
    centres = best.model.V @ X
    d = cdist(centres, Z, "sqeuclidean")
    run = RUNS[rule]
    expected = oracle.updated(rule, d, run.fuzzifier, run.entropy_weight, best.result.eta)
    np.testing.assert_allclose(best.model.predict_memberships(cdist(Z, X)).T, expected, atol=1e-9)


def test_a_spread_moves_new_objects_by_all_of_it():
    """On the 61 x 61 matrix with the spread written into it, the new object being the last."""
    X, beta = grouped_points(60), 7.0
    Z = grouped_points(1, 9)
    best = cluster(distances(grouped_points(60)), Run("fcm1", 3, spread=beta), kind="distance").best
    whole = oracle.spread_matrix(cdist(np.vstack([X, Z]), np.vstack([X, Z]), "sqeuclidean"), beta)
    V = np.hstack([best.model.V, np.zeros((3, 1))])
    d = np.array([whole[-1] @ v - 0.5 * v @ whole @ v for v in V])[:, None]
    np.testing.assert_allclose(
        best.model.predict_memberships(cdist(Z, X)).T, oracle.updated("fcm1", d, 2.0, None, None), atol=1e-9
    )


def test_rows_come_as_arrays_files_and_zarr(tmp_path, monkeypatch):
    rows = cdist(grouped_points(25, 9), grouped_points(60))
    model = cluster(distances(grouped_points(60)), RUNS["fcm1"], kind="distance").best.model
    expected = model.predict_memberships(rows)
    np.save(tmp_path / "rows.npy", rows)
    stored = zarr.create_array(str(tmp_path / "rows.zarr"), shape=rows.shape, chunks=(7, 20), dtype="float64")
    stored[:] = rows
    monkeypatch.setattr("dasrel.io.features.ROW_BYTES", 8 * 60 * 4)  # four rows at a time
    for given in (rows, rows.tolist(), stored, tmp_path / "rows.npy", str(tmp_path / "rows.zarr")):
        np.testing.assert_allclose(model.predict_memberships(given), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.predict_memberships(rows.astype(np.float32)), expected, atol=1e-5)
    before = rows.copy()
    model.predict(rows)
    np.testing.assert_array_equal(rows, before)


def test_similarities_need_the_similarity_of_new_objects_with_themselves():
    X, Z = grouped_points(60), grouped_points(25, 9)
    own = (Z * Z).sum(axis=1)
    model = cluster(X @ X.T, RUNS["fcm1"], kind="kernel").best.model
    same = cluster(distances(grouped_points(60)), RUNS["fcm1"], kind="distance").best.model
    np.testing.assert_allclose(
        model.predict_memberships(Z @ X.T, self_similarity=own), same.predict_memberships(cdist(Z, X)), atol=1e-6
    )
    with pytest.raises(InputError, match="say self_similarity=NUMBER"):
        model.predict(Z @ X.T)
    with pytest.raises(InputError, match="one finite number, or 25"):
        model.predict(Z @ X.T, self_similarity=[1.0, 2.0])
    with pytest.raises(InputError, match="kind distance"):
        same.predict(cdist(Z, X), self_similarity=1.0)


def test_views_are_kept_in_the_model():
    X, Z = grouped_points(60), grouped_points(25, 9)
    seen = relation(distances(grouped_points(60)), kind="distance").power(0.5)
    model = cluster(seen, RUNS["fcm1"]).best.model
    roots = cluster(np.sqrt(distances(grouped_points(60))), RUNS["fcm1"], kind="distance").best.model
    np.testing.assert_allclose(
        model.predict_memberships(cdist(Z, X)), roots.predict_memberships(np.sqrt(cdist(Z, X))), atol=1e-9
    )


class Ultrametric:
    """A term that needs no tiles."""

    def left(self, U):
        return U.sum(axis=1, keepdims=True) - U

    def diagonal(self):
        return np.zeros(60)

    def largest(self):
        return 1.0


def test_a_term_that_new_objects_have_no_values_for_is_refused():
    model = cluster(
        relation(distances(grouped_points(60)), kind="distance").plus(Ultrametric(), 2.0), RUNS["fcm1"]
    ).best.model
    spread = cluster(
        distances(grouped_points(60)), Run("fcm1", 3, fuzzifier=1.8, spread=2.0), kind="distance"
    ).best.model
    np.testing.assert_allclose(model.V, spread.V, atol=1e-9)
    with pytest.raises(InputError, match="added term"):
        model.predict(distances(grouped_points(60)))


def test_rows_from_a_file_with_names(tmp_path):
    model = cluster(distances(grouped_points(60)), RUNS["fcm1"], kind="distance").best.model
    rows, names = distances(grouped_points(60))[:5], [f"new{k}" for k in range(5)]
    header = ",".join(["id", *map(str, model.ids)])
    lines = [",".join([name, *map(repr, row.tolist())]) for name, row in zip(names, rows, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join([header, *lines]))
    found = read_rows(tmp_path / "rows.csv", checksum=False)
    assert (found.ids, "checksum" in found.provenance) == (names, False)
    expected = model.predict_memberships(rows)
    for given in (tmp_path / "rows.csv", found):
        np.testing.assert_array_equal(model.predict_memberships(given), expected)
    wrong = header.replace(f",{model.ids[-1]}", ",other")
    (tmp_path / "rows.csv").write_text("\n".join([wrong, *lines]))
    with pytest.raises(InputError, match="1 object has no column: 59; columns of no object: other;"):
        model.predict(tmp_path / "rows.csv")


def test_wrong_rows_are_refused(tmp_path):
    model = cluster(distances(grouped_points(60)), RUNS["fcm1"], kind="distance").best.model
    bad = distances(grouped_points(60))
    bad[3, 4] = np.nan
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "pickled.npy", np.array([[{}]], dtype=object))
    for rows, message in [
        (distances(grouped_points(60))[:, :59], r"\(60, 59\).*\(k, 60\)"),
        (distances(grouped_points(60))[0], r"\(60,\)"),
        (bad, "row 3, column 4"),
        (np.full((2, 60), "a"), "give numbers"),
        (tmp_path / "text.npy", "is no whole .npy file"),
        (tmp_path / "pickled.npy", r"holds Python objects \(pickle\), which dasrel never loads"),
        (tmp_path / "missing.npy", "no rows at"),
        (tmp_path / "missing.zarr", "no rows at"),
    ]:
        with pytest.raises(InputError, match=message) as refused:
            model.predict(rows)
        assert "\n" not in str(refused.value)


def test_negative_distances_of_new_objects_are_counted():
    model = cluster(distances(grouped_points(60)), RUNS["fcm1"], kind="distance").best.model
    with pytest.warns(DasrelWarning, match="3 distances of new objects"):
        U = model.predict_memberships(np.zeros((1, 60)))  # at every training object at once: no such point
    assert np.isfinite(U).all()


class Evil:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_broken_and_foreign_models_are_refused(tmp_path, capsys):
    path = tmp_path / "model.npz"
    cluster(distances(grouped_points(60)), RUNS["pcm1"], kind="distance").best.model.save(path)
    whole = path.read_bytes()
    with np.load(path, allow_pickle=False) as file:
        parts = {name: file[name] for name in file.files}
    about = json.loads(parts["about"].tobytes())

    def changed(**new):
        return np.frombuffer(json.dumps({**about, **new}).encode(), dtype=np.uint8)

    cases = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"hello",
        "pickle": pickle.dumps(Evil()),
        "version": {**parts, "about": changed(model_version=99)},
        "rule": {**parts, "about": changed(rule="fcm9")},
        "kind": {**parts, "about": changed(kind="kernel")},
        "json": {**parts, "about": np.frombuffer(b"{", dtype=np.uint8)},
        "shape": {**parts, "V": parts["V"][:, :5]},
        "nan": {**parts, "half": parts["half"] * np.nan},
        "object": {**parts, "ids": np.array([Evil()], dtype=object)},
        "missing": {"V": parts["V"]},
    }
    for name, content in cases.items():
        target = tmp_path / f"{name}.npz"
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            np.savez(target, **content)
        with pytest.raises(StoreError, match=name if name == "version" else "model") as refused:
            Model.load(target)
        assert "\n" not in str(refused.value)
    with pytest.raises(StoreError, match="no model at"):
        Model.load(tmp_path / "nowhere.npz")
    assert capsys.readouterr().out == ""


def test_a_model_is_a_warm_start_for_a_matrix_with_its_objects(tmp_path):
    D = distances(grouped_points(60))
    cold = cluster(D, Run("fcm1", 3, tol=1e-6), kind="distance")
    cold.best.model.save(tmp_path / "m.npz")
    model = Model.load(tmp_path / "m.npz")
    warm = cluster(D, Run("fcm1", 3, tol=1e-6, init=model), kind="distance")
    assert warm.scans <= 2 < cold.scans
    np.testing.assert_allclose(warm.best.memberships, cold.best.memberships, atol=1e-5)
    names = [f"x{k}" for k in range(60)]
    other = as_matrix(D, kind="distance", ids=names)
    with progress.watch() as counted:
        for matrix, run, message in [
            (other, Run("fcm1", 3, init=model), "60 of its 60 not among the 60 of the matrix"),
            (as_matrix(D[:50, :50], kind="distance"), Run("fcm1", 3, init=model), "10 of its 60 not among the 50"),
            (as_matrix(D, kind="distance"), Run("fcm1", 2, init=model), "3 clusters, not 2"),
            (as_matrix(D, kind="distance"), Run("pcm1", 3, init=model, eta="cut"), "needs memberships"),
        ]:
            with pytest.raises(InputError, match=message):
                cluster(matrix, run)
    assert counted.scans == 0


def test_ids_of_any_kind_survive(tmp_path):
    names = [f"ß {k}\x00\n'" for k in range(60)]
    model = cluster(as_matrix(distances(grouped_points(60)), kind="distance", ids=None), RUNS["hard"]).best.model
    odd = Model(**{**model.__dict__, "ids": np.array(names, dtype=object)})
    odd.save(tmp_path / "m.npz")
    assert Model.load(tmp_path / "m.npz").ids.tolist() == names


def test_a_medoid_is_a_member_of_its_cluster():
    """In noise the object nearest to a centre may be in another cluster."""
    D = distances(uniform_points(150, 12, 0))
    best = cluster(D, grid("fcm2", 6, entropy_weight=0.05, init="random", n_init=1), kind="distance").best
    assert best.labels[best.distances.argmin(axis=0)].tolist() != list(range(6))
    assert best.labels[best.medoids].tolist() == list(range(6))
    for k in range(6):
        assert best.distances[best.medoids[k], k] == best.distances[best.labels == k, k].min()


def test_what_a_partition_says_of_itself():
    D = distances(grouped_points(60))
    X = grouped_points(60)
    best = cluster(D, RUNS["fcm2"], kind="distance").best
    U = best.memberships
    assert U.shape == best.distances.shape == (60, 3)
    np.testing.assert_allclose(best.distances, cdist(X, best.model.V @ X, "sqeuclidean"), atol=1e-9)
    np.testing.assert_array_equal(best.labels, U.argmax(axis=1))
    np.testing.assert_array_equal(best.sizes, np.bincount(U.argmax(axis=1)))
    np.testing.assert_array_equal(best.medoids, cdist(X, best.model.V @ X).argmin(axis=0))
    np.testing.assert_allclose(best.result.membership_sums, U.sum(axis=0))
    assert best.entropy == pytest.approx(-(U[U > 0] * np.log(U[U > 0])).sum())
    np.testing.assert_array_equal(best.border(0.9), np.flatnonzero(U.max(axis=1) < 0.9))
    inner = U @ U.T
    np.testing.assert_allclose(best.image(range(5)), (1 - inner / inner.max())[:5, :5], atol=1e-12)
    # the objective of the two blocks, centres and memberships: sum u d + lambda sum u log u
    assert best.objective == pytest.approx((U * best.distances).sum() + 0.8 * (U * np.log(U)).sum())


def fuzzy_silhouette(d, U):
    """Campello and Hruschka's index, from scikit-learn's silhouettes."""
    top = np.sort(U, axis=1)
    weights = top[:, -1] - top[:, -2]
    return float(weights @ silhouette_samples(d, U.argmax(axis=1), metric="precomputed") / weights.sum())


def test_the_best_run_of_each_setting_is_chosen_and_settings_are_compared_by_the_fuzzy_silhouette():
    D = distances(grouped_points(60))
    runs = [*grid("hard", [3, 4], n_init=10), *grid("fcm1", 3, fuzzifier=[1.5, 2.0], n_init=2)]
    result = cluster(D, runs, kind="distance", keep_all=True)
    assert len(result.partitions) == 4
    assert len(result.kept) == len(result.runs) == 24
    for partition in result.partitions:
        rivals = [r for r in result.runs if r.run.setting == partition.result.run.setting]
        assert partition.objective == min(r.objective for r in rivals)
    assert result.quality is None
    values = [fuzzy_silhouette(D, partition.memberships) for partition in result.partitions]
    assert result.best is result.partitions[int(np.argmax(values))]
    table = result.table()
    assert [row["best"] for row in table].count(True) == 4
    assert json.loads(json.dumps(table))[0]["rule"] == "hard"


def test_healed_runs_are_compared_at_the_same_spread():
    X = grouped_points(30)
    D = cdist(X, X) ** 4 / 1000
    with pytest.warns(DasrelWarning):
        found = cluster(
            D, grid("fcm1", 3, n_init=6, on_negative="heal", tol=1e-9), kind="squared-distance", keep_all=True
        )
    for one in found.kept:
        plain = oracle.functional("fcm1", D, one.memberships.T, 2.0, None, None)
        assert one.result.score == pytest.approx(plain, rel=1e-5)
    assert found.best.result.score == min(r.score for r in found.runs)


def test_a_store_s_path_an_array_and_a_relation_are_taken():
    D = distances(grouped_points(60))
    with pytest.raises(InputError, match="kind"):
        cluster(D, Run("hard", 2))
    with pytest.raises(InputError, match="knows its kind"):
        cluster(relation(D, kind="distance"), Run("hard", 2), kind="distance")
    with pytest.raises(InputError, match=r"dasrel\.Run"):
        cluster(D, ["hard"], kind="distance")


def test_a_kernel_seen_as_a_relation_is_refused():
    D = distances(grouped_points(20))
    with pytest.raises(InputError, match="as in a Gaussian kernel; give the matrix"):
        cluster(relation(D, kind="distance").gaussian(1.0), Run("hard", 2))


def test_results_have_short_names():
    D = distances(grouped_points(60))
    found = quiet(cluster, D, grid("hard", range(2, 10), n_init=3), kind="distance")
    assert len(repr(found)) < 300
    assert repr(found).startswith("<Clustering: 24 runs, ")
    assert re.fullmatch(r"<Partition: hard, 60 objects in 2 clusters of \d+, \d+>", repr(found.partitions[0]))


def test_settings_without_a_silhouette_have_a_recommended_one(tmp_path):
    D = distances(grouped_points(60))
    found = quiet(cluster, D, [Run("fcm1", 1, fuzzifier=2), Run("hard", 1)], kind="distance", judge=True)
    assert np.isnan(found.quality["fuzzy_silhouette"]).all()
    assert found.recommended() == 0
    assert found.best is found.partitions[0]
    assert save_clustering(found, tmp_path / "out")["recommended"]["reason"].startswith(
        "the first setting: there is no"
    )


def test_a_picture_that_cannot_be_drawn_does_not_lose_the_result(tmp_path, monkeypatch):
    def draw(found, folder, index):
        raise RuntimeError("no font")

    monkeypatch.setattr("dasrel.report.figures.clustering.draw_clustering", draw)
    found = cluster(distances(grouped_points(60)), RUNS["hard"], kind="distance")
    with pytest.warns(DasrelWarning, match=r"no picture could be drawn \(no font\)"):
        write_clustering(found, tmp_path / "out", picture=True)
    assert (tmp_path / "out" / "labels.csv").is_file()


def test_a_full_disk_is_an_error_while_a_picture_is_drawn(tmp_path, monkeypatch):
    def draw(found, folder, index):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dasrel.report.figures.clustering.draw_clustering", draw)
    found = cluster(distances(grouped_points(60)), RUNS["hard"], kind="distance")
    with pytest.raises(OSError, match=r"No space|disk is full"):
        write_clustering(found, tmp_path / "out", picture=True)
    assert list(tmp_path.iterdir()) == []


def test_equal_objects_have_a_result_folder(tmp_path):
    found = quiet(cluster, np.zeros((5, 5)), Run("fcm2", 2, entropy_weight="auto"), kind="distance")
    assert found.best.result.coincident_clusters == 1
    assert save_clustering(found, tmp_path / "out")["settings"][0]["coincident_clusters"] == 1
