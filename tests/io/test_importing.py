"""Every array format gives the same tiles, bit for bit, as the .npy file of the same matrix."""

import gzip
import io
import pickle

import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import xarray
import zarr
from scipy.spatial.distance import squareform

from dasrel import Policy
from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.io.readers import stream as streams
from dasrel.io.readers.sniff import detect, open_source
from dasrel.io.readers.source import SequentialSource, Source
from dasrel.names import FORMATS
from dasrel.store.options import Writing
from tests.helpers import oracle
from tests.helpers.matrices import line_distances
from tests.helpers.stores import tiles

N, TILE = 90, 32
WRITING = Writing(tile=TILE)


@pytest.fixture
def expected(tmp_path):
    """The tiles of the matrix, checked against NumPy."""
    np.save(tmp_path / "expected.npy", line_distances(N))
    matrix = import_matrix(tmp_path / "expected.npy", tmp_path / "expected.zarr", kind="distance", writing=WRITING)
    for i, j in matrix.layout.tiles():
        part = line_distances(N)[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]
        np.testing.assert_array_equal(matrix.read_tile(i, j), part)
    return tiles(tmp_path / "expected.zarr")


def write_mtx_gz(path, a):
    text = io.BytesIO()
    scipy.io.mmwrite(text, scipy.sparse.coo_array(a.astype(np.float64)), precision=17)
    path.write_bytes(gzip.compress(text.getvalue()))


def write_hdf5(path, a):
    with h5py.File(path, "w") as file:
        file["anything"] = a
        file["names"] = np.arange(len(a))


def write_dataset(path, name, a, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=a, **options)


def write_zarr_group(path, a):
    group = zarr.create_group(path)
    group.create_array("d", data=a, chunks=(32, 32))
    group.create_array("other", data=a[:, :2])


WRITERS = {
    "a.npy": lambda path, a: np.save(path, a),
    "f.npy": lambda path, a: np.save(path, np.asfortranarray(a)),
    "b.npy": lambda path, a: np.save(path, a.astype(">f4")),
    "a.npz": lambda path, a: np.savez(path, matrix=a),
    "n.npz": lambda path, a: np.savez(path, names=np.array(["x"] * len(a)), matrix=a, weights=np.ones((len(a), 2))),
    "p.npz": lambda path, a: np.savez_compressed(path, matrix=a),
    "c.npy": lambda path, a: np.save(path, squareform(a)),
    "c.npz": lambda path, a: np.savez_compressed(path, squareform(a)),
    "a.mtx": lambda path, a: scipy.io.mmwrite(path, a.astype(np.float64), symmetry="general", precision=17),
    "s.mtx": lambda path, a: scipy.io.mmwrite(path, a.astype(np.float64), symmetry="symmetric", precision=17),
    "c.mtx": lambda path, a: scipy.io.mmwrite(
        path, scipy.sparse.coo_array(a.astype(np.float64)), symmetry="general", precision=17
    ),
    "cs.mtx": lambda path, a: scipy.io.mmwrite(
        path, scipy.sparse.coo_array(a.astype(np.float64)), symmetry="symmetric", precision=17
    ),
    "c.mtx.gz": write_mtx_gz,
    "a.h5": write_hdf5,
    "c.hdf5": lambda path, a: write_dataset(path, "deep/matrix", a, chunks=(16, 16), compression="gzip"),
    "o.h5": lambda path, a: write_dataset(path, "matrix", a, chunks=(7, 90), compression="gzip"),
    "v.h5": lambda path, a: write_dataset(path, "condensed", squareform(a), chunks=(1000,)),
    "a.zarr": lambda path, a: zarr.create_array(path, data=a, chunks=(16, 16)),
    "v2.zarr": lambda path, a: zarr.create_array(path, data=a, chunks=(40, 11), zarr_format=2),
    "g.zarr": write_zarr_group,
    "csr.npz": lambda path, a: scipy.sparse.save_npz(path, scipy.sparse.csr_array(a)),
    "csc.npz": lambda path, a: scipy.sparse.save_npz(path, scipy.sparse.csc_array(a)),
    "coo.npz": lambda path, a: scipy.sparse.save_npz(path, scipy.sparse.coo_array(a)),
}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_tiles(tmp_path, expected, name):
    WRITERS[name](tmp_path / name, line_distances(N))
    matrix = import_matrix(tmp_path / name, tmp_path / "out.zarr", kind="distance", writing=WRITING)
    assert tiles(tmp_path / "out.zarr") == expected
    assert matrix.manifest["provenance"]["source"] == str(tmp_path / name)
    assert not list(tmp_path.glob(".*"))  # no scratch is left


@pytest.mark.parametrize("name", WRITERS)
def test_opening_reads_the_header_and_tells_what_the_source_will_be(tmp_path, name):
    """Nothing is written before `spool`, and what it returns is as the header promised, and a complete `Source`."""
    path, folder = tmp_path / name, tmp_path / "folder"
    WRITERS[name](path, line_distances(N))
    folder.mkdir()
    before = sorted(tmp_path.rglob("*"))
    _, opened = open_source(path, kind="distance", reading=Reading(), policy=Policy())
    assert sorted(tmp_path.rglob("*")) == before
    source = opened
    if isinstance(opened, SequentialSource):
        assert opened.n_objects == N
        assert opened.reason
        source = opened.spool(folder)
        assert source.mirrored == opened.mirrored
        assert source.block_memory(100, 50) == opened.block_memory(100, 50)
        if opened.spool_bytes is not None:
            written = sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".json")
            assert opened.spool_bytes <= written <= opened.spool_bytes + 100
    assert source.n_objects == N
    for attribute in ("ids", "mirrored", "local", "provenance", "checksum"):
        assert attribute in Source.__annotations__
        assert hasattr(source, attribute)
    block = source.block(slice(0, 40), slice(40, 90))
    np.testing.assert_allclose(block, line_distances(N)[:40, 40:], rtol=1e-6)
    if not source.local:  # a task takes it to a worker by the name of its file
        sent = pickle.dumps(source)
        assert len(sent) < 4000 < block.nbytes
        np.testing.assert_array_equal(pickle.loads(sent).block(slice(0, 40), slice(40, 90)), block)
    source.close()


@pytest.mark.parametrize("name", ["a.npy", "c.npy", "p.npz"])
def test_content_tells_the_format_whatever_the_suffix(tmp_path, expected, name):
    WRITERS[name](tmp_path / name, line_distances(N))
    (tmp_path / name).rename(tmp_path / "thing")
    import_matrix(tmp_path / "thing", tmp_path / "out.zarr", kind="distance", writing=WRITING)
    assert tiles(tmp_path / "out.zarr") == expected


@pytest.mark.parametrize("condensed", [False, True])
def test_raw(tmp_path, expected, condensed):
    a = squareform(line_distances(N)) if condensed else line_distances(N)
    a.tofile(tmp_path / "a.bin")
    reading = Reading(shape=N, dtype="float32", format="condensed" if condensed else None)
    import_matrix(tmp_path / "a.bin", tmp_path / "out.zarr", kind="distance", reading=reading, writing=WRITING)
    assert tiles(tmp_path / "out.zarr") == expected
    with pytest.raises(InputError, match=r"Reading\(shape=N\)"):
        import_matrix(tmp_path / "a.bin", tmp_path / "b.zarr", kind="distance")
    reading = Reading(shape=N + 1, dtype="float32")
    with pytest.raises(InputError, match=r"truncated, or Reading\(shape=...\) or Reading\(dtype=...\) is wrong"):
        import_matrix(tmp_path / "a.bin", tmp_path / "b.zarr", kind="distance", reading=reading)


def test_a_file_larger_than_memory_is_asked_for_row_by_row(tmp_path, expected, monkeypatch):
    monkeypatch.setattr("dasrel.io.readers.flat.FlatFile.large", lambda self: True)
    for name in ("a.npy", "f.npy", "a.npz"):
        WRITERS[name](tmp_path / name, line_distances(N))
        import_matrix(tmp_path / name, tmp_path / f"{name}.zarr", kind="distance", writing=WRITING)
        assert tiles(tmp_path / f"{name}.zarr") == expected


def test_r_dist_order_is_scipy_order(tmp_path):
    # print(c(dist(c(0, 1, 3, 7)))) in R gives 1 3 7 2 6 4: the lower triangle, column by column.
    np.save(tmp_path / "r.npy", np.array([1, 3, 7, 2, 6, 4]))
    matrix = import_matrix(tmp_path / "r.npy", tmp_path / "r.zarr", kind="distance")
    x = np.array([0, 1, 3, 7])
    np.testing.assert_array_equal(matrix.read_tile(0, 0), np.abs(x[:, None] - x))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    "how", ["numpy", "dask", "odd dask", "xarray", "xarray of dask", "zarr", "sparse", "condensed"]
)
def test_arrays_in_python(tmp_path, expected, how):
    a = line_distances(N)
    names = [f"s{k}" for k in range(N)]
    array = {
        "numpy": lambda: a,
        "dask": lambda: da.from_array(a, chunks=16),
        "odd dask": lambda: da.from_array(a, chunks=((20, 70), (33, 50, 7))),
        "xarray": lambda: xarray.DataArray(a, dims=("x", "y"), coords={"x": names}),
        "xarray of dask": lambda: xarray.DataArray(da.from_array(a, chunks=40), dims=("x", "y"), coords={"x": names}),
        "zarr": lambda: zarr.create_array(zarr.storage.MemoryStore(), data=a, chunks=(25, 25)),
        "sparse": lambda: scipy.sparse.csc_matrix(a),
        "condensed": lambda: squareform(a),
    }[how]()
    matrix = import_matrix(array, tmp_path / "out.zarr", kind="distance", writing=WRITING)
    assert tiles(tmp_path / "out.zarr") == expected
    assert list(matrix.ids) == (names if "xarray" in how else [str(k) for k in range(N)])


def test_each_chunk_is_read_once_however_it_lies(tmp_path):
    a = line_distances(N)
    for chunks in (16, 40, ((20, 70), (33, 50, 7))):
        seen: list[tuple[int, ...]] = []

        def note(block, block_info=None, seen=seen):
            seen.append(tuple(block_info[0]["chunk-location"]))
            return block

        array = da.from_array(a, chunks=chunks)
        counted = array.map_blocks(note, dtype=a.dtype, meta=np.empty((0, 0), a.dtype))
        import_matrix(counted, tmp_path / f"{len(list(tmp_path.iterdir()))}.zarr", kind="distance", writing=WRITING)
        assert sorted(seen) == sorted(np.ndindex(*array.numblocks))


def test_tiles_follow_the_chunks_of_the_source(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=line_distances(1000), chunks=(100, 100))
    matrix = import_matrix(tmp_path / "a.zarr", tmp_path / "out.zarr", kind="distance")
    assert matrix.tile % 100 == 0


def test_unifrac_hdf5_names(tmp_path, expected):
    names = [f"sample.{k}" for k in range(N)]
    with h5py.File(tmp_path / "u.h5", "w") as file:
        file["matrix"] = line_distances(N)
        file["order"] = np.array(names, dtype=h5py.string_dtype())
        file["pcoa_samples"] = np.ones((N, N))
    matrix = import_matrix(tmp_path / "u.h5", tmp_path / "out.zarr", kind="distance", writing=WRITING)
    assert list(matrix.ids) == names
    assert tiles(tmp_path / "out.zarr") == expected


def test_a_dataset_can_be_named(tmp_path):
    np.savez(tmp_path / "two.npz", a=line_distances(N), b=2 * line_distances(N))
    with pytest.raises(InputError, match=r"2 arrays \(a, b\); choose one with Reading\(dataset=NAME\)"):
        import_matrix(tmp_path / "two.npz", tmp_path / "x.zarr", kind="distance")
    with pytest.raises(InputError, match="no array c; there are: a, b"):
        import_matrix(tmp_path / "two.npz", tmp_path / "x.zarr", kind="distance", reading=Reading(dataset="c"))
    matrix = import_matrix(tmp_path / "two.npz", tmp_path / "x.zarr", kind="distance", reading=Reading(dataset="b"))
    assert matrix.audit["maximum"] == float(2 * line_distances(N).max())


def test_ids_from_a_file_and_from_python(tmp_path):
    np.save(tmp_path / "a.npy", line_distances(3))
    (tmp_path / "ids.txt").write_text("ä\n../b\n$(c)\n", encoding="utf-8")
    reading = Reading(ids=str(tmp_path / "ids.txt"))
    matrix = import_matrix(tmp_path / "a.npy", tmp_path / "a.zarr", kind="distance", reading=reading)
    assert list(matrix.ids) == ["ä", "../b", "$(c)"]
    matrix = import_matrix(
        line_distances(3), tmp_path / "b.zarr", kind="distance", reading=Reading(ids=["p", "q", "r"])
    )
    assert list(matrix.ids) == ["p", "q", "r"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compress", [None, "lz4"])
def test_store_dtypes_and_compression(tmp_path, dtype, compress):
    a = line_distances(N, "float64")
    writing = Writing(dtype=dtype, tile=TILE, compress=compress)
    matrix = import_matrix(a, tmp_path / "a.zarr", kind="distance", writing=writing)
    assert matrix.dtype == dtype
    np.testing.assert_array_equal(matrix.to_dask().compute(scheduler="sync"), a.astype(dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint32", "bool", "float16"])
def test_integers_and_booleans(tmp_path, dtype):
    a = (line_distances(N) > 0.5).astype(dtype)
    np.save(tmp_path / "a.npy", a)
    matrix = import_matrix(tmp_path / "a.npy", tmp_path / "a.zarr", kind="distance", writing=WRITING)
    np.testing.assert_array_equal(matrix.to_dask().compute(scheduler="sync"), a.astype("float32"))


def test_absent_entries_of_a_sparse_matrix(tmp_path):
    a = np.array([[1, 0, 0.5], [0, 1, 0], [0.5, 0, 1]])
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_array(a))
    matrix = import_matrix(tmp_path / "s.npz", tmp_path / "s.zarr", kind="similarity")
    np.testing.assert_array_equal(matrix.read_tile(0, 0), a.astype("float32"))
    np.testing.assert_array_equal(matrix.diagonal, [1, 1, 1])
    d = scipy.sparse.csr_array(np.array([[0, 0, 0.5], [0, 0, 0], [0.5, 0, 0]]))
    scipy.io.mmwrite(tmp_path / "d.mtx", d)
    with pytest.raises(InputError, match=r"missing values.*0 \(object 0\) and 1 \(object 1\)"):
        import_matrix(tmp_path / "d.mtx", tmp_path / "d.zarr", kind="distance")
    matrix = import_matrix(tmp_path / "d.mtx", tmp_path / "d.zarr", kind="distance", policy=Policy(missing=2.0))
    np.testing.assert_array_equal(matrix.read_tile(0, 0), [[0, 2, 0.5], [2, 0, 2], [0.5, 2, 0]])
    assert matrix.audit["missing"]["count"] == 2


def test_an_explicit_zero_of_a_sparse_distance_is_a_value(tmp_path):
    text = "%%MatrixMarket matrix coordinate real symmetric\n% a comment\n3 3 3\n2 1 0\n3 1 0.5\n\n3 2 0.25\n"
    (tmp_path / "z.mtx").write_text(text)
    matrix = import_matrix(tmp_path / "z.mtx", tmp_path / "z.zarr", kind="distance")
    np.testing.assert_array_equal(matrix.read_tile(0, 0), [[0, 0, 0.5], [0, 0, 0.25], [0.5, 0.25, 0]])
    assert matrix.audit["zeros"] == {"count": 1, "examples": [["0", "1"]]}


@pytest.mark.parametrize("compiled", [True, False])
def test_an_explicit_nan_of_a_sparse_similarity_is_missing(tmp_path, monkeypatch, compiled):
    """Entries that are not listed are 0; one that is listed without a value is not."""
    if not compiled:
        monkeypatch.setattr(streams, "library", lambda: None)
    text = "%%MatrixMarket matrix coordinate real symmetric\n3 3 4\n1 1 1\n2 2 1\n3 3 1\n2 1 nan\n"
    (tmp_path / "s.mtx").write_text(text)
    with pytest.raises(InputError, match=r"missing values.*0 \(object 0\) and 1 \(object 1\)"):
        import_matrix(tmp_path / "s.mtx", tmp_path / "s.zarr", kind="similarity")
    matrix = import_matrix(tmp_path / "s.mtx", tmp_path / "s.zarr", kind="similarity", policy=Policy(missing=0.25))
    np.testing.assert_array_equal(matrix.read_tile(0, 0), [[1, 0.25, 0], [0.25, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
def test_an_entry_that_is_listed_twice_is_refused(tmp_path, symmetry):
    other = "2 1 5" if symmetry == "general" else "1 2 5"  # in a symmetric file both are the same pair
    head = f"%%MatrixMarket matrix coordinate real {symmetry}\n3 3 3\n"
    (tmp_path / "t.mtx").write_text(f"{head}2 1 5\n3 1 4\n{other}\n")
    with pytest.raises(InputError, match=r"t\.mtx lists entry \(.*\) twice; add up or drop the repeats"):
        import_matrix(tmp_path / "t.mtx", tmp_path / "t.zarr", kind="distance", policy=Policy(missing=9.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.mtx"]


def test_sparse_entries_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "dasrel.io.readers.records.SIDE", 16
    )  # many small runs and blocks: the sort on disk has work to do
    monkeypatch.setattr("dasrel.io.readers.mtx.COPY", 1000)
    monkeypatch.setattr("dasrel.io.readers.npz.PIECE", 97)
    rng = np.random.default_rng(3)
    a = line_distances(64, "float64")
    row, column = np.nonzero(a)
    order = rng.permutation(row.size)
    lines = [f"{r + 1} {c + 1} {a[r, c]!r}" for r, c in zip(row[order].tolist(), column[order].tolist(), strict=True)]
    lines = [line.replace("np.float64(", "").rstrip(")") for line in lines]
    head = f"%%MatrixMarket matrix coordinate real general\n64 64 {len(lines)}\n"
    (tmp_path / "a.mtx").write_text(head + "\n".join(lines))
    writing = Writing(tile=20, dtype="float64")
    places = row[order], column[order]
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.coo_array((a[places], places)))
    for name in ("a.mtx", "a.npz"):
        matrix = import_matrix(tmp_path / name, tmp_path / f"{name}.zarr", kind="distance", writing=writing)
        np.testing.assert_array_equal(matrix.to_dask().compute(scheduler="sync"), a)


def test_a_sparse_array_in_memory_keeps_its_type(tmp_path):
    a = line_distances(N)
    for dtype, given in (("float32", scipy.sparse.csc_array(a)), ("float64", scipy.sparse.coo_matrix(a.astype(int)))):
        _, source = open_source(given, kind="distance", reading=Reading(), policy=Policy())
        block = source.block(slice(0, N), slice(0, N))
        assert block.dtype == dtype
        wanted = np.where((given.toarray() == 0) & ~np.eye(N, dtype=bool), np.nan, given.toarray())
        np.testing.assert_array_equal(block, wanted)


def test_what_an_earlier_import_has_spooled_is_removed(tmp_path):
    """A store is imported from another source after the import of a text was stopped."""
    (tmp_path / ".s.zarr.scratch").mkdir()
    (tmp_path / ".s.zarr.scratch" / "values.f8").write_bytes(b"old")
    import_matrix(line_distances(N), tmp_path / "s.zarr", kind="distance")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.zarr"]


@pytest.mark.parametrize(
    ("kind", "how", "keeps"),
    [("distance", "mean-square", True), ("distance", "mean", False), ("squared-distance", "mean", True)],
)
def test_which_mean_keeps_the_objective_of_both_values(tmp_path, kind, how, keeps):
    """F09 2.3: G(U) of an asymmetric R is that of (R + R')/2; R are the squares of kind distance."""
    rng = np.random.default_rng(3)
    a = rng.random((N, N)) + 0.1
    np.fill_diagonal(a, 0)
    U = rng.dirichlet(np.ones(3), N).T
    power = 2 if kind == "distance" else 1
    writing = Writing(tile=TILE, dtype="float64")
    matrix = import_matrix(a, tmp_path / "a.zarr", kind=kind, policy=Policy(symmetrize=how), writing=writing)
    stored = matrix.to_dask().compute(scheduler="sync")
    before, after = (oracle.functional("fcm1", values**power, U, 2.0, None, None) for values in (a, stored))
    assert (after == pytest.approx(before, rel=1e-12)) == keeps
    assert matrix.manifest["input"]["symmetrize"] == how


@pytest.mark.parametrize("kind", ["squared-distance", "similarity", "kernel"])
def test_the_mean_square_is_for_distances(tmp_path, kind):
    with pytest.raises(InputError, match=f"not for kind {kind}; say Policy.symmetrize='mean'., which keeps"):
        import_matrix(np.eye(3), tmp_path / "a.zarr", kind=kind, policy=Policy(symmetrize="mean-square"))
    assert not (tmp_path / "a.zarr").exists()


def test_policies_are_recorded(tmp_path):
    a = np.random.default_rng(0).random((N, N)) + 0.5
    np.fill_diagonal(a, 0.25)
    a[3, 50] = a[50, 3] = np.nan
    a[4, 60] = a[60, 4] = -1e-6
    policy = Policy(symmetrize="mean", missing="max", diagonal="zero", clip_negative=1e-5)
    writing = Writing(tile=TILE, dtype="float64")
    matrix = import_matrix(a, tmp_path / "a.zarr", kind="distance", policy=policy, writing=writing)
    wanted = np.maximum((a + a.T) / 2, 0)
    wanted[np.isnan(wanted)] = np.nanmax(np.triu(wanted, 1))
    np.fill_diagonal(wanted, 0)
    np.testing.assert_allclose(matrix.to_dask().compute(scheduler="sync"), wanted, rtol=1e-15)
    assert matrix.manifest["input"] == {
        "symmetrize": "mean", "missing": "max", "diagonal": "zero", "clip_negative": 1e-5, "duplicates": "error",
    }  # fmt: skip
    upper = wanted[np.triu_indices(N, 1)]
    audit = matrix.audit
    assert audit["pairs"] == upper.size
    assert audit["mean"] == pytest.approx(upper.mean(), rel=1e-12)
    assert (audit["minimum"], audit["maximum"]) == (upper.min(), pytest.approx(upper.max(), rel=1e-15))
    assert audit["missing"] == {"count": 1, "examples": [["3", "50"]]}
    assert audit["clipped"] == {"count": 1, "lowest": -1e-6}
    assert audit["zeros"] == {"count": 1, "examples": [["4", "60"]]}
    assert audit["diagonal"] == {"minimum": 0.25, "maximum": 0.25}
    difference = np.abs(a - a.T)
    assert audit["asymmetry"]["largest"] == pytest.approx(np.nanmax(difference))
    assert audit["asymmetry"]["pairs"] == np.count_nonzero(np.triu(difference > 0))
    row, column = (int(name) for name in audit["asymmetry"]["where"])
    assert difference[row, column] == np.nanmax(difference)


def test_missing_max_fills_a_tile_without_any_value(tmp_path):
    a = line_distances(N)
    a[:TILE, TILE : 2 * TILE] = np.nan
    a[TILE : 2 * TILE, :TILE] = np.nan
    matrix = import_matrix(a, tmp_path / "a.zarr", kind="distance", policy=Policy(missing="max"), writing=WRITING)
    wanted = np.where(np.isnan(a), np.nanmax(a), a)
    np.testing.assert_array_equal(matrix.to_dask().compute(scheduler="sync"), wanted)
    a = np.full((4, 4), np.nan)
    with pytest.raises(InputError, match="all values are missing"):
        import_matrix(a, tmp_path / "b.zarr", kind="distance", policy=Policy(missing="max"))
    assert not (tmp_path / "b.zarr").exists()


def test_the_checksum_of_the_source_is_kept(tmp_path):
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", line_distances(N))
    one = import_matrix(tmp_path / "a.npy", tmp_path / "a.zarr", kind="distance").manifest["provenance"]
    two = import_matrix(tmp_path / "b.npy", tmp_path / "b.zarr", kind="distance").manifest["provenance"]
    other = line_distances(N)
    other[0, 1] = other[1, 0] = 0.123
    three = import_matrix(other, tmp_path / "c.zarr", kind="distance").manifest["provenance"]
    assert one["checksum"] == two["checksum"] != three["checksum"]
    assert one["size"] == (tmp_path / "a.npy").stat().st_size
    assert "modified" not in one


def test_memory_is_checked_before_anything_is_written(tmp_path):
    with pytest.raises(MemoryLimitError, match=r"import needs .* for one task and the limit is 1.05 MB"):
        import_matrix(line_distances(N), tmp_path / "a.zarr", kind="distance", writing=Writing(memory="1MiB"))
    assert not list(tmp_path.iterdir())


def test_formats_are_described_and_names_are_checked(tmp_path):
    np.save(tmp_path / "a.npy", line_distances(3))
    assert detect(tmp_path / "a.npy", Reading()) == "npy"
    assert all(FORMATS.values())
    with pytest.raises(InputError, match="no format excel; there are: npy, npz"):
        import_matrix(tmp_path / "a.npy", tmp_path / "a.zarr", kind="distance", reading=Reading(format="excel"))
    with pytest.raises(InputError, match="is no condensed vector"):
        import_matrix(tmp_path / "a.npy", tmp_path / "a.zarr", kind="distance", reading=Reading(format="condensed"))


def test_a_dasrel_store_is_no_source(tmp_path):
    import_matrix(line_distances(3), tmp_path / "a.zarr", kind="distance")
    with pytest.raises(InputError, match="dasrel store already"):
        import_matrix(tmp_path / "a.zarr", tmp_path / "b.zarr", kind="distance")


def test_the_same_bytes_for_every_reader(tmp_path):
    """Any Zarr reader sees the upper tiles, and NaN, not zeros, in the tiles below the diagonal."""
    import_matrix(line_distances(N), tmp_path / "a.zarr", kind="distance", writing=WRITING)
    values = zarr.open_array(tmp_path / "a.zarr" / "values", mode="r")[:]
    block = np.arange(N) // TILE
    stored = block[:, None] <= block[None, :]
    np.testing.assert_array_equal(values[stored], line_distances(N)[stored])
    assert np.isnan(values[~stored]).all()


def test_an_unknown_kind_is_explained(tmp_path):
    with pytest.raises(InputError, match=r"kind must be one of the four .distance: .*squared-distance: .*kernel: "):
        import_matrix(line_distances(N), tmp_path / "a.zarr", kind="dissimilarity")


def test_a_zarr_store_object_and_a_memory_store(tmp_path):
    store = zarr.storage.MemoryStore()
    matrix = import_matrix(line_distances(N), store, kind="distance", writing=WRITING)
    np.testing.assert_array_equal(matrix.to_dask().compute(scheduler="sync"), line_distances(N))
    with pytest.raises(StoreError, match="exists"):
        import_matrix(line_distances(N), store, kind="distance")
