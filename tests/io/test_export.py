"""What is written out reads back: by other programs to the same numbers, by dasrel to the same tiles."""

import numpy as np
import pytest
import zarr
from scipy.spatial.distance import pdist, squareform

from dasrel import Euclideanized, euclideanize, relation, watch
from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.io.export import export_matrix
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.names import EXPORTS
from dasrel.store.options import Writing
from tests.helpers.matrices import delta_of, squared_of
from tests.helpers.processes import ran

N, TILE = 70, 32
NAMES = [f"object_{k}" for k in range(N)]


def awkward(dtype: str) -> np.ndarray:
    """Symmetric values over many orders of magnitude, with all their digits."""
    rng = np.random.default_rng(11)
    a = (10.0 ** rng.uniform(-30, 30, (N, N)) * rng.random((N, N))).astype(dtype)
    a = np.triu(a, 1)
    a[0, 1], a[0, 2], a[0, 3] = 1e-5, 1.0, 16777216.0
    return a + a.T


@pytest.fixture(params=["float32", "float64"])
def store(request, tmp_path):
    path = tmp_path / "s.zarr"
    writing = Writing(dtype=request.param, tile=TILE)
    import_matrix(awkward(request.param), path, kind="distance", reading=Reading(ids=NAMES), writing=writing)
    return path


def read_back(out, wanted):
    """By the programs that people have, not by ours."""
    if wanted == "npy":
        return np.load(out)
    if wanted == "condensed":
        return squareform(np.load(out))
    if wanted == "zarr":
        return zarr.open_array(out, mode="r")[:]
    if wanted == "lsmat":
        header, *lines = [line.split("\t") for line in out.read_text().splitlines()]
        assert header == ["", *NAMES]
        assert [line[0] for line in lines] == NAMES
        return np.array([[float(word) for word in line[1:]] for line in lines])
    first, *lines = out.read_text().splitlines()
    assert int(first) == N
    assert [line.split()[0] for line in lines] == NAMES
    return np.array([[float(word) for word in line.split()[1:]] for line in lines])


SUFFIX = {"npy": ".npy", "condensed": ".npy", "lsmat": ".tsv", "phylip": ".phy", "zarr": ".zarr"}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("wanted", EXPORTS)
def test_round_trip(tmp_path, store, wanted):
    dtype = import_dtype(store)
    out = export_matrix(store, tmp_path / f"out{SUFFIX[wanted]}", format=wanted)
    np.testing.assert_array_equal(read_back(out, wanted).astype(dtype), awkward(dtype))
    reading = Reading(ids=NAMES)
    again = tmp_path / "again.zarr"
    import_matrix(out, again, kind="distance", reading=reading, writing=Writing(dtype=dtype, tile=TILE))
    for tile in (store / "values" / "c").rglob("*/*"):
        if tile.is_file():
            assert (again / tile.relative_to(store)).read_bytes() == tile.read_bytes()
    assert not list(tmp_path.glob(".*"))


def import_dtype(store):
    return zarr.open_array(store / "values", mode="r").dtype.name


def test_text_has_the_shortest_digits(tmp_path):
    a = np.array([[0, 0.1], [0.1, 0]], dtype=np.float32)
    import_matrix(a, tmp_path / "a.zarr", kind="distance")
    text = export_matrix(tmp_path / "a.zarr", tmp_path / "a.tsv", format="lsmat").read_text()
    assert [line.split("\t") for line in text.splitlines()] == [["", "0", "1"], ["0", "0", "0.1"], ["1", "0.1", "0"]]


def test_one_scan_and_progress(tmp_path, store):
    for wanted in EXPORTS:
        seen = []
        with watch(seen.append) as meter:
            export_matrix(store, tmp_path / f"out-{wanted}", format=wanted)
        assert meter.scans == 1
        assert seen[-1].tiles == seen[-1].tiles_total


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("wanted", EXPORTS)
def test_what_exists_is_kept_unless_forced(tmp_path, store, wanted):
    out = tmp_path / "out"
    out.write_text("precious")
    with pytest.raises(InputError, match="exists; say force=True"):
        export_matrix(store, out, format=wanted)
    assert out.read_text() == "precious"
    export_matrix(store, out, format=wanted, force=True)
    export_matrix(store, out, format=wanted, force=True)
    dtype = import_dtype(store)
    np.testing.assert_array_equal(read_back(out, wanted).astype(dtype), awkward(dtype))
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_store_is_not_exported(tmp_path, store):
    tile = store / "values" / "c" / "0" / "1"
    data = bytearray(tile.read_bytes())
    data[100] ^= 1
    tile.write_bytes(data)
    for wanted in ("npy", "condensed", "zarr", "lsmat", "phylip"):
        with pytest.raises(StoreError, match=r"corrupt.*tile \(0, 1\)"):
            export_matrix(store, tmp_path / f"out-{wanted}", format=wanted)
    assert not list(tmp_path.glob("out*"))
    assert not list(tmp_path.glob(".*"))


def test_refusals(tmp_path, store):
    with pytest.raises(InputError, match="format must be one of npy, condensed"):
        export_matrix(store, tmp_path / "out", format="excel")
    with pytest.raises(InputError, match="is a URL"):
        export_matrix(store, "s3://bucket/out", format="zarr")
    with pytest.raises(InputError, match="no folder"):
        export_matrix(store, tmp_path / "no" / "out", format="npy")
    for wanted in EXPORTS:
        with pytest.raises(MemoryLimitError, match="raise memory"):
            export_matrix(store, tmp_path / "out", format=wanted, memory="1MB")
    assert not (tmp_path / "out").exists()


def test_the_suffix_tells_the_format(tmp_path, store, capfd):
    for suffix, name in ((".npy", "npy"), (".lsmat", "lsmat"), (".phy", "phylip"), (".zarr", "zarr")):
        out = tmp_path / f"d{suffix}"
        assert ran("export", store, out, "--quiet") == 0
        assert ran("export", store, tmp_path / "same", "--format", name, "--force", "--quiet") == 0
        if out.is_file():
            assert out.read_bytes() == (tmp_path / "same").read_bytes()
            (tmp_path / "same").unlink()
        else:
            assert (zarr.open_array(out)[:] == zarr.open_array(tmp_path / "same")[:]).all()
    assert ran("export", store, tmp_path / "d.xyz") == 1
    assert "d.xyz does not tell its format; say --format NAME with one of npy, " in capfd.readouterr().err


def test_force_never_removes_a_folder_of_something_else(tmp_path, store):
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "folder", store):
        with pytest.raises(InputError, match="not an exported Zarr array"):
            export_matrix(store, out, format="zarr", force=True)
    assert (store / "values" / "c" / "0" / "0").exists()


def test_similarities_keep_their_diagonal(tmp_path):
    a = np.exp(-awkward("float64"))
    import_matrix(a, tmp_path / "a.zarr", kind="similarity", writing=Writing(dtype="float64"))
    np.testing.assert_array_equal(np.load(export_matrix(tmp_path / "a.zarr", tmp_path / "a.npy", format="npy")), a)
    for wanted in ("condensed", "phylip"):
        with pytest.raises(InputError, match="holds distances"):
            export_matrix(tmp_path / "a.zarr", tmp_path / "out", format=wanted)


def test_names_that_a_text_cannot_hold(tmp_path):
    a = np.array([[0, 1], [1, 0]])
    import_matrix(a, tmp_path / "a.zarr", kind="distance", reading=Reading(ids=["a b", "c\td"]))
    with pytest.raises(InputError, match=r"ids with blanks .* 'a b', 'c\\td'"):
        export_matrix(tmp_path / "a.zarr", tmp_path / "out", format="phylip")
    with pytest.raises(InputError, match=r"ids with tabs or line ends .* 'c\\td'"):
        export_matrix(tmp_path / "a.zarr", tmp_path / "out", format="lsmat")
    assert not (tmp_path / "out").exists()


def test_memory_of_an_export_is_bounded_by_rows(tmp_path):
    """With room for a few rows only, text comes out the same."""
    a = np.abs(np.subtract.outer(np.arange(900.0), np.arange(900.0)))
    import_matrix(a, tmp_path / "a.zarr", kind="distance")
    whole = export_matrix(tmp_path / "a.zarr", tmp_path / "a.tsv", format="lsmat").read_bytes()
    few = export_matrix(tmp_path / "a.zarr", tmp_path / "b.tsv", format="lsmat", memory=(16 << 20) + 5 * 900 * 100)
    assert few.read_bytes() == whole


def points(kind: str) -> np.ndarray:
    """A matrix that is not Euclidean: the largest of coordinate differences, or a similarity made of it."""
    rng = np.random.default_rng(3)
    d = squareform(pdist(rng.normal(size=(N, 4)) + np.repeat([[0], [3]], N // 2, axis=0), "chebyshev"))
    if kind == "distance":
        return d
    if kind == "squared-distance":
        return d * d
    s = 5 - d
    return s + np.diag(rng.random(N))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("method", ["spread", "ultrametric", "power", "exponential", "log"])
@pytest.mark.parametrize("kind", ["distance", "squared-distance", "similarity"])
def test_a_relation_is_written_as_squared_dissimilarities(tmp_path, method, kind):
    values = points(kind)
    writing = Writing(dtype="float64", tile=TILE)
    import_matrix(values, tmp_path / "s.zarr", kind=kind, reading=Reading(ids=NAMES), writing=writing)
    euclideanize(tmp_path / "s.zarr", method=method).save(tmp_path / "r.npz")
    found = Euclideanized.load(tmp_path / "r.npz", tmp_path / "s.zarr")
    assert found.gamma > 0
    D = squared_of(values, kind)
    np.fill_diagonal(D, 0)
    expected = D + found.gamma * delta_of(D, method, found.alpha)
    for wanted in EXPORTS:
        with watch() as meter:
            out = export_matrix(found.relation, tmp_path / f"out{SUFFIX[wanted]}", format=wanted, force=True)
        assert meter.scans == 1
        written = read_back(out, wanted)
        np.testing.assert_allclose(written, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(written, written.T)
    centred = expected - expected.mean(axis=0) - expected.mean(axis=1)[:, None] + expected.mean()
    assert np.linalg.eigvalsh(-0.5 * centred)[0] > -1e-9  # which was the point of it


def test_a_relation_in_zarr_says_what_its_numbers_are(tmp_path):
    store = tmp_path / "s.zarr"
    import_matrix(points("distance"), store, kind="distance", writing=Writing(tile=TILE))
    out = export_matrix(relation(store), tmp_path / "out.zarr", format="zarr")
    attributes = dict(zarr.open_array(out, mode="r").attrs)
    assert attributes == {"kind": "squared-distance", "numbers": "squared dissimilarities"}
    plain = export_matrix(store, tmp_path / "plain.zarr", format="zarr")
    assert dict(zarr.open_array(plain, mode="r").attrs) == {"kind": "distance"}


def test_a_relation_keeps_the_type_of_the_store(tmp_path):
    values = points("distance").astype(np.float32)
    import_matrix(values, tmp_path / "s.zarr", kind="distance", writing=Writing(tile=TILE))
    out = np.load(export_matrix(relation(tmp_path / "s.zarr"), tmp_path / "a.npy", format="npy"))
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, (values.astype(np.float64) ** 2).astype(np.float32))


def test_a_plain_relation_of_a_similarity_goes_into_every_format(tmp_path):
    values = points("similarity")
    import_matrix(
        values, tmp_path / "s.zarr", kind="similarity", reading=Reading(ids=NAMES), writing=Writing("float64")
    )
    expected = squared_of(values, "similarity")
    np.fill_diagonal(expected, 0)
    for wanted in EXPORTS:
        out = export_matrix(relation(tmp_path / "s.zarr"), tmp_path / f"out{SUFFIX[wanted]}", format=wanted, force=True)
        np.testing.assert_allclose(read_back(out, wanted), expected, rtol=1e-12, atol=1e-13)
    kernel = relation(tmp_path / "s.zarr").gaussian(1.0)
    with pytest.raises(InputError, match=r"holds distances, and .* is a kernel"):
        export_matrix(kernel, tmp_path / "k.npy", format="condensed")
    np.testing.assert_allclose(
        np.load(export_matrix(kernel, tmp_path / "k.npy", format="npy")), np.exp(-expected / 2), rtol=1e-12
    )


def test_floored_zeros_and_a_spread_are_in_the_export(tmp_path):
    values = points("squared-distance")
    values[0, 1] = values[1, 0] = 0
    seen = relation(values, kind="squared-distance").floor(0.25).spread(2.0)
    expected = np.maximum(values, 0.25) + 2
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(np.load(export_matrix(seen, tmp_path / "a.npy", format="npy")), expected, rtol=1e-15)
