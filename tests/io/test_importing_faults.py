"""Bad input gets one line; killed, full and distributed imports end in the same bytes as undisturbed ones."""

import os

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr

from dasrel import open_matrix
from dasrel.errors import InputError, StoreError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.store.options import Writing
from tests.helpers.matrices import line_distances
from tests.helpers.stores import files

N, TILE = 90, 16
WRITING = Writing(tile=TILE)


def changed(*cells: tuple[int, int, float]) -> np.ndarray:
    a = line_distances(N)
    for row, column, value in cells:
        a[row, column] = value
    return a


def both(row: int, column: int, value: float) -> np.ndarray:
    return changed((row, column, value), (column, row, value))


BAD = {
    "nan": (both(3, 70, np.nan), r"missing values \(NaN\): 3 \(object 3\) and 70 \(object 70\)"),
    "inf": (both(3, 70, np.inf), r"infinite values: 3 \(object 3\) and 70 \(object 70\) = inf"),
    "negative": (both(3, 70, -0.5), r"negative values in a distance: 3 .* and 70 .* = -0.5"),
    "diagonal": (changed((40, 40, 0.5)), r"diagonal is not zero: .* 40 \(object 40\): 0.5.*Policy\(diagonal='zero'\)"),
    "asymmetric": (changed((3, 70, 5.0)), r"asymmetric: .* 3 .* and 70 .*: 5 one way, .* Policy\(symmetrize='mean'\)"),
    "similarity": (
        1 - line_distances(N),
        r"largest value of its row, as in a similarity: .*; say kind='similarity'",
    ),
    "not square": (line_distances(N)[:, :80], r"not square: 90 rows, 80 columns"),
    "three dimensions": (np.zeros((2, 2, 2)), r"3 dimensions"),
    "no triangle": (np.zeros(11), r"11 values, which is no n\(n-1\)/2"),
    "n = 0": (np.zeros((0, 0)), r"no objects \(n = 0\)"),
    "n = 1": (np.zeros((1, 1)), r"a single object \(n = 1\), which has no pairs"),
    "complex": (np.zeros((3, 3), dtype=complex), r"complex128; save its real part"),
    "text": (np.full((3, 3), "x"), "save it as real numbers"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("way", ["file", "array"])
def test_bad_matrices(tmp_path, what, way):
    a, message = BAD[what]
    np.save(tmp_path / "a.npy", a)
    with pytest.raises(InputError, match=message) as caught:
        import_matrix(tmp_path / "a.npy" if way == "file" else a, tmp_path / "s.zarr", kind="distance", writing=WRITING)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy"]  # the store and the scratch are gone


def test_python_objects_are_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    np.save(tmp_path / "a.npy", np.full((3, 3), Bomb(), dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", np.full((3, 3), Bomb(), dtype=object))
    for source in (tmp_path / "a.npy", tmp_path / "a.npz", np.full((3, 3), None)):
        with pytest.raises(InputError, match=r"Python objects \(pickle\), which dasrel never loads"):
            import_matrix(source, tmp_path / "s.zarr", kind="distance")
    assert not (tmp_path / "exploded").exists()


def truncated_npy(path):
    np.save(path, line_distances(N))
    os.truncate(path, path.stat().st_size - 100)


def truncated_header(path):
    np.save(path, line_distances(N))
    os.truncate(path, 60)


def truncated_npz(path):
    np.savez_compressed(path, line_distances(N))
    os.truncate(path, path.stat().st_size - 100)


def truncated_hdf5(path):
    with h5py.File(path, "w") as file:
        file["matrix"] = line_distances(N)
    os.truncate(path, path.stat().st_size - 4000)


def damaged_npz(path):
    np.savez_compressed(path, line_distances(N))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 50] = bytes(50)
    path.write_bytes(data)


def short_mtx(path):
    path.write_text("%%MatrixMarket matrix coordinate real general\n3 3 4\n1 2 0.5\n2 1 0.5\n")


def wrong_mtx(path):
    path.write_text("%%MatrixMarket matrix coordinate real general\n%\n3 3 2\n1 2 0.5\n2 one 0.5\n")


def twice_mtx(path):
    path.write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 0.5\n1 2 0.5\n")


def outside_mtx(path):
    path.write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 0.5\n1 4 0.5\n")


def complex_mtx(path):
    path.write_text("%%MatrixMarket matrix coordinate complex general\n3 3 1\n1 2 0.5 1\n")


def dia_npz(path):
    scipy.sparse.save_npz(path, scipy.sparse.dia_array(np.eye(5)))


def empty(path):
    path.touch()


def not_npy(path):
    path.write_text("hello")


FILES = {
    "t.npy": (truncated_npy, r"t.npy is truncated: [\d,]+ bytes, but its header asks for [\d,]+"),
    "h.npy": (truncated_header, r"h.npy is no whole .npy file"),
    "t.npz": (truncated_npz, r"t.npz is no whole .npz file"),
    "t.h5": (truncated_hdf5, r"t.h5 cannot be read as HDF5"),
    "d.npz": (damaged_npz, r"d.npz, array arr_0 cannot be read \(.*\); is it damaged\?"),
    "s.mtx": (short_mtx, r"s.mtx is truncated: 2 entries, and its size line says 4"),
    "w.mtx": (wrong_mtx, r"w.mtx, line 5: 2 one 0.5 is not 3 numbers"),
    "2.mtx": (twice_mtx, r"2.mtx lists entry \(0, 1\) twice"),
    "o.mtx": (outside_mtx, r"o.mtx names a column beyond its 3 objects"),
    "c.mtx": (complex_mtx, r"c.mtx, line 1: coordinate complex cannot be used"),
    "dia.npz": (dia_npz, r"sparse matrix in dia form; save it as csr"),
    "e.npy": (empty, r"e.npy is empty"),
    "n.npy": (not_npy, r"n.npy has the suffix of a NumPy array file, but not its first bytes"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files(tmp_path, name):
    make, message = FILES[name]
    make(tmp_path / name)
    with pytest.raises(InputError, match=message) as caught:
        import_matrix(tmp_path / name, tmp_path / "s.zarr", kind="distance")
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*no.npy: No such file"):
        import_matrix(tmp_path / "no.npy", tmp_path / "s.zarr", kind="distance")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder is a folder, and not one of a Zarr array"):
        import_matrix(tmp_path / "folder", tmp_path / "s.zarr", kind="distance")
    with pytest.raises(InputError, match="a source of type dict is not known"):
        import_matrix({}, tmp_path / "s.zarr", kind="distance")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], "ids are not unique: a"),
        (["a", "b"], "2 ids for 3 objects"),
        (["a", "", "b"], "id of object 1 is empty"),
        (["a\x1b[31m", "b", "a\x1b[31m"], r"not unique: a\\x1b\[31m;"),
    ],
)
def test_bad_ids(tmp_path, ids, message):
    with pytest.raises(InputError, match=message):
        import_matrix(line_distances(3), tmp_path / "s.zarr", kind="distance", reading=Reading(ids=ids))
    assert not list(tmp_path.iterdir())


def test_no_condensed_similarity(tmp_path):
    with pytest.raises(InputError, match="no self-similarity values"):
        import_matrix(np.ones(3), tmp_path / "s.zarr", kind="similarity")


def test_an_existing_store_is_never_touched_without_a_word(tmp_path):
    import_matrix(line_distances(N), tmp_path / "s.zarr", kind="distance", writing=WRITING)
    before = files(tmp_path / "s.zarr")
    with pytest.raises(StoreError, match=r"exists \(state complete\); say force=True to replace it"):
        import_matrix(2 * line_distances(N), tmp_path / "s.zarr", kind="distance", writing=WRITING)
    with pytest.raises(StoreError, match=r"was begun with tile 16, now it is 8; use the same again"):
        import_matrix(line_distances(N), tmp_path / "s.zarr", kind="distance", writing=Writing(tile=8, resume=True))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for writing in (Writing(), Writing(force=True), Writing(resume=True)):
        with pytest.raises(StoreError, match="not a dasrel store"):
            import_matrix(line_distances(N), tmp_path / "other", kind="distance", writing=writing)
    assert files(tmp_path / "s.zarr") == before
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["file"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/s.zarr cannot be written \(.*\); choose another place"):
        import_matrix(line_distances(N), tmp_path / "file" / "s.zarr", kind="distance")


@pytest.mark.slow
def test_force_replaces_only_by_a_complete_store(tmp_path):
    store = tmp_path / "s.zarr"
    import_matrix(line_distances(N), store, kind="distance", writing=WRITING)
    before = files(store)
    force = Writing(tile=TILE, force=True)
    with pytest.raises(InputError, match="missing"):
        import_matrix(both(3, 70, np.nan), store, kind="distance", writing=force)
    assert files(store) == before
    matrix = import_matrix(line_distances(N) + 1 - np.eye(N), store, kind="distance", writing=force)
    assert matrix.audit["minimum"] >= 1
    import_matrix(line_distances(N) + 1 - np.eye(N), tmp_path / "t.zarr", kind="distance", writing=WRITING)
    assert files(store) == files(tmp_path / "t.zarr")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.zarr", "t.zarr"]


def test_resume_writes_only_what_is_missing(tmp_path, monkeypatch):
    from dasrel.store.tile_files import TileFiles

    np.save(tmp_path / "a.npy", line_distances(N))
    store, original, written = tmp_path / "s.zarr", TileFiles.write, []

    def stopping(self, i, j, tile, record):
        if len(written) >= 5:
            raise KeyboardInterrupt
        written.append((i, j))
        original(self, i, j, tile, record)

    with monkeypatch.context() as patch:
        patch.setattr(TileFiles, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            import_matrix(tmp_path / "a.npy", store, kind="distance", writing=WRITING)
    first = set(written)
    written.clear()

    def noting(self, i, j, tile, record):
        written.append((i, j))
        original(self, i, j, tile, record)

    monkeypatch.setattr(TileFiles, "write", noting)
    resume = Writing(tile=TILE, resume=True)
    matrix = import_matrix(tmp_path / "a.npy", store, kind="distance", writing=resume)
    assert first
    assert not first & set(written)
    assert first | set(written) == set(matrix.layout.tiles())


def test_a_changed_source_is_not_resumed(tmp_path, monkeypatch):
    from dasrel.store.writer import Writer

    np.save(tmp_path / "a.npy", line_distances(N))
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "finish", lambda self, checksum: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            import_matrix(tmp_path / "a.npy", tmp_path / "s.zarr", kind="distance", writing=WRITING)
    np.save(tmp_path / "a.npy", 2 * line_distances(N))
    with pytest.raises(
        StoreError, match=r"begun with modified \d+, now it is \d+; use the same again, or say force=True"
    ):
        import_matrix(tmp_path / "a.npy", tmp_path / "s.zarr", kind="distance", writing=Writing(tile=TILE, resume=True))


@pytest.mark.slow
def test_s3(tmp_path, s3):
    import_matrix(line_distances(N), tmp_path / "s.zarr", kind="distance", writing=Writing(tile=40))
    url = "s3://matrices/d.zarr"
    with pytest.raises(InputError, match="missing"):
        import_matrix(both(3, 70, np.nan), url, kind="distance", writing=Writing(tile=40))
    matrix = import_matrix(line_distances(N), url, kind="distance", writing=Writing(tile=40))
    assert matrix.n_objects == N
    again = open_matrix(url)
    np.testing.assert_array_equal(again.rows(["3", "70"]), line_distances(N)[[3, 70]])
    for i, j in again.layout.tiles():
        assert s3.cat(f"matrices/d.zarr/values/c/{i}/{j}") == (tmp_path / f"s.zarr/values/c/{i}/{j}").read_bytes()
    with pytest.raises(StoreError, match="exists"):
        import_matrix(line_distances(N), url, kind="distance")
    with pytest.raises(StoreError, match="no store at s3://matrices/none"):
        open_matrix("s3://matrices/none")


@pytest.mark.slow
def test_a_cluster_writes_the_same_bytes(tmp_path, workers):
    from distributed import Client

    np.save(tmp_path / "a.npy", line_distances(300))
    np.savez_compressed(tmp_path / "a.npz", line_distances(300))
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.coo_array(line_distances(300, "float64")), precision=17)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("matrix", data=line_distances(300), chunks=(32, 32))
    zarr.create_array(tmp_path / "z.zarr", data=line_distances(300), chunks=(64, 64))
    writing = Writing(tile=64)
    import_matrix(tmp_path / "a.npy", tmp_path / "threads.zarr", kind="distance", writing=writing)
    with Client(workers):
        import_matrix(tmp_path / "a.npy", tmp_path / "cluster.zarr", kind="distance", writing=writing)
        import_matrix(tmp_path / "a.npz", tmp_path / "packed.zarr", kind="distance", writing=writing)
        import_matrix(tmp_path / "a.mtx", tmp_path / "sparse.zarr", kind="distance", writing=writing)
        import_matrix(tmp_path / "a.h5", tmp_path / "hdf5.zarr", kind="distance", writing=writing)
        import_matrix(tmp_path / "z.zarr", tmp_path / "tiled.zarr", kind="distance", writing=writing)
        import_matrix(line_distances(300), tmp_path / "memory.zarr", kind="distance", writing=writing)
        np.save(tmp_path / "bad.npy", both(3, 70, np.nan))
        with pytest.raises(InputError, match=r"missing values \(NaN\): 3"):
            import_matrix(tmp_path / "bad.npy", tmp_path / "bad.zarr", kind="distance", writing=writing)
    assert not (tmp_path / "bad.zarr").exists()
    assert files(tmp_path / "cluster.zarr") == files(tmp_path / "threads.zarr")
    for name in ("packed", "sparse", "hdf5", "tiled", "memory"):
        assert files(tmp_path / f"{name}.zarr" / "values") == files(tmp_path / "threads.zarr" / "values")
