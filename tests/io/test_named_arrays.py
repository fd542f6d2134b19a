"""Arrays with names, with a file and without: data frames, condensed vectors, ids as a keyword."""

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel.errors import InputError, StoreError
from dasrel.io.features import read_features
from dasrel.io.importing import import_matrix, prepare_import
from dasrel.io.options import Reading
from dasrel.store.options import Policy, Writing
from dasrel.util.progress import watch

N = 70
POINTS = np.random.default_rng(3).normal(size=(N, 3))
D = squareform(pdist(POINTS))
NAMES = [f"tree {k}" for k in range(N)]
FRAME = pd.DataFrame(D, NAMES, NAMES)


def test_a_frame_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = import_matrix(FRAME, kind="distance", writing=Writing(tile=32, dtype="float64"))
    assert list(matrix.ids) == NAMES
    np.testing.assert_array_equal(np.asarray(matrix), D)
    assert list(tmp_path.iterdir()) == []
    assert repr(matrix) == "<Matrix the store in memory: 70 objects, kind distance, tile 32>"
    with pytest.raises(InputError, match="no such objects in the store in memory: shrub"):
        matrix.rows(["shrub"])


def test_a_store_in_memory_does_all_that_others_do(tmp_path: Path) -> None:
    matrix = import_matrix(FRAME, kind="distance", writing=Writing(tile=32))
    on_disk = import_matrix(FRAME, tmp_path / "d.zarr", kind="distance", writing=Writing(tile=32))
    runs = dasrel.grid("fcm2", 3, n_init=2, entropy_weight=0.5)
    here, there = dasrel.cluster(matrix, runs), dasrel.cluster(on_disk, runs)
    np.testing.assert_array_equal(here.best.memberships, there.best.memberships)
    assert dasrel.spectrum(matrix).lowest == dasrel.spectrum(on_disk).lowest
    assert dasrel.audit_store(matrix.store, verify=True)["verified"] == {"tiles": 6, "bad": []}
    dasrel.export_matrix(matrix, tmp_path / "d.npy", format="npy")
    np.testing.assert_allclose(np.load(tmp_path / "d.npy"), D, rtol=1e-6)


def test_repairs_are_made_and_recorded() -> None:
    wrong = FRAME.copy()
    wrong.iloc[0, 1] += 0.5
    with pytest.raises(InputError, match=r"asymmetric.*tree 0 \(object 0\) and tree 1 \(object 1\)"):
        import_matrix(wrong, kind="distance")
    matrix = import_matrix(wrong, kind="distance", policy=Policy(symmetrize="mean"), writing=Writing(dtype="float64"))
    assert matrix.rows(["tree 1"])[0, 0] == pytest.approx(D[0, 1] + 0.25)
    assert matrix.manifest["input"]["symmetrize"] == "mean"


@pytest.mark.parametrize("form", ["list", "index", "array", "file", "path"])
def test_ids_as_a_keyword(tmp_path: Path, form: str) -> None:
    (tmp_path / "ids.txt").write_text("\n".join(NAMES) + "\n")
    ids: Any = {
        "list": NAMES,
        "index": pd.Index(NAMES),
        "array": np.array(NAMES),
        "file": str(tmp_path / "ids.txt"),
        "path": tmp_path / "ids.txt",
    }[form]
    assert list(import_matrix(D, kind="distance", ids=ids).ids) == NAMES
    np.save(tmp_path / "d.npy", D)
    assert list(import_matrix(tmp_path / "d.npy", tmp_path / "d.zarr", kind="distance", ids=ids).ids) == NAMES


def test_ids_replace_those_of_a_frame() -> None:
    other = pd.DataFrame(D, NAMES, NAMES[::-1])  # whose names would be refused
    assert import_matrix(other, kind="distance", ids=NAMES).ids[0] == "tree 0"
    with pytest.raises(InputError, match="the same objects in different orders"):
        import_matrix(other, kind="distance")
    with pytest.raises(InputError, match="ids are given twice, as ids and in reading; give them once"):
        import_matrix(D, kind="distance", ids=NAMES, reading=Reading(ids=NAMES))
    with pytest.raises(InputError, match="3 ids for 70 objects"):
        import_matrix(D, kind="distance", ids=["a", "b", "c"])


def test_condensed_vectors_of_numpy_and_pandas() -> None:
    for source in (pdist(POINTS), pd.Series(pdist(POINTS))):
        matrix = import_matrix(source, kind="distance", ids=NAMES, writing=Writing(tile=32, dtype="float64"))
        np.testing.assert_array_equal(np.asarray(matrix), D)
        assert list(matrix.ids) == NAMES
    with pytest.raises(InputError, match="is a condensed vector: it has no self-similarity values"):
        import_matrix(pd.Series(pdist(POINTS)), kind="similarity")


def test_what_is_no_square_leaves_nothing_behind(tmp_path: Path) -> None:
    for source in (FRAME.iloc[:, :5], FRAME.assign(kind="x"), FRAME.rename(columns={"tree 3": "shrub"})):
        with pytest.raises(InputError) as caught:
            import_matrix(source, tmp_path / "d.zarr", kind="distance")
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def test_an_estimate_names_the_source_and_not_its_values() -> None:
    with prepare_import(FRAME, "d.zarr", kind="distance") as job:
        assert job.facts["source"] == "pandas array of 70 x 70 float64"


def test_features_of_a_frame_keep_their_names(tmp_path: Path) -> None:
    table = pd.DataFrame(POINTS, NAMES, ["height", "girth", "age"])
    assert read_features(table).columns == ["height", "girth", "age"]
    matrix = dasrel.pairwise(table, tmp_path / "d.zarr", metric="euclidean")
    assert list(matrix.ids) == NAMES
    np.testing.assert_allclose(np.asarray(matrix), D, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="column 'genus' of the data frame holds values of type"):
        dasrel.pairwise(table.assign(genus="acer"), tmp_path / "e.zarr", metric="euclidean")


@pytest.mark.parametrize("form", ["frame", "condensed", "series"])
def test_without_a_store(form: str) -> None:
    """Names reach the model; an array is read once before the first scan, and no more often than a store after it."""
    source: Any = {"frame": FRAME, "condensed": pdist(POINTS), "series": pd.Series(pdist(POINTS))}[form]
    run = dasrel.Run("fcm2", 3, entropy_weight=0.5, init="random", random_state=1)
    with watch() as meter:
        found = dasrel.cluster(source, run, kind="distance")
    assert meter.scans == found.scans == found.best.result.n_iter
    plain = dasrel.cluster(D, run, kind="distance")
    np.testing.assert_array_equal(found.best.memberships, plain.best.memberships)
    assert list(found.best.model.ids) == (NAMES if form == "frame" else [str(k) for k in range(N)])


def test_relations_take_ids() -> None:
    found = dasrel.relation(pdist(POINTS), kind="distance", ids=NAMES)
    assert list(found.matrix.ids) == NAMES
    assert list(dasrel.cluster(found, dasrel.Run("hard", 2)).best.model.ids) == NAMES
    matrix = import_matrix(FRAME, kind="distance")
    with pytest.raises(InputError, match="an open matrix knows the ids of its objects; leave ids out"):
        dasrel.relation(matrix, ids=NAMES)


def test_a_condensed_vector_is_checked_like_a_square() -> None:
    wrong = pdist(POINTS)
    wrong[0] = np.nan  # of the pair (0, 1)
    with pytest.raises(InputError, match=r"missing.*: oak \(object 0\) and tree 1 \(object 1\)"):
        dasrel.relation(wrong, kind="distance", ids=["oak", *NAMES[1:]])
    wrong[0] = -1
    with pytest.raises(InputError, match="negative"):
        dasrel.relation(wrong, kind="distance")


def test_a_tile_of_a_store_in_memory_is_the_one_that_was_written() -> None:
    matrix = import_matrix(FRAME, kind="distance", writing=Writing(tile=32, dtype="float64"))
    tile = matrix.read_tile(0, 1)
    np.testing.assert_array_equal(tile, D[:32, 32:64])
    assert not tile.flags.writeable  # nothing was copied
    values = zarr.open_group(matrix.store, mode="r+")["values"]
    values[:32, 32:64] = np.asarray(D[:32, 32:64]) + 1
    with pytest.raises(StoreError, match="the tile is not the one that was written here"):
        matrix.read_tile(0, 1)


@pytest.mark.parametrize("compress", [None, "lz4"])
def test_compressed_tiles_in_memory(compress: Any) -> None:
    matrix = import_matrix(FRAME, kind="distance", writing=Writing(tile=32, dtype="float64", compress=compress))
    np.testing.assert_array_equal(np.asarray(matrix), D)


@pytest.mark.slow
@pytest.mark.cluster
def test_vectors_and_stores_in_memory_on_a_cluster(client: Any, tmp_path: Path) -> None:
    """Workers have no memory in common with this process: tiles are sent to them, with the same result."""
    np.save(tmp_path / "d.npy", D)
    np.testing.assert_array_equal(np.asarray(import_matrix(tmp_path / "d.npy", kind="distance")), D.astype(np.float32))
    run = dasrel.Run("fcm2", 3, entropy_weight=0.5, init="random", random_state=1)
    for source in (pdist(POINTS), import_matrix(FRAME, kind="distance")):
        kind = "distance" if isinstance(source, np.ndarray) else None
        there = dasrel.cluster(source, run, kind=kind)
        with dask.config.set(scheduler="threads"):
            here = dasrel.cluster(D if kind else FRAME.astype(np.float32), run, kind="distance")
        np.testing.assert_allclose(there.best.memberships, here.best.memberships, atol=1e-5)
