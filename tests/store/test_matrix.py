"""The store by itself: what it says, what it refuses, and that any Zarr reader can read it."""

import json
import math
import os
import pickle
import shutil

import numpy as np
import pytest
import zarr

from dasrel import open_matrix
from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.kernels.checks import TileStatistics
from dasrel.store.array_matrix import as_matrix
from dasrel.store.layout import Layout
from dasrel.store.matrix import is_store, read_manifest
from dasrel.store.options import Writing
from dasrel.store.tile_files import default_tile
from dasrel.util import limits
from tests.helpers.matrices import line_distances
from tests.helpers.stores import create_store

N, TILE = 70, 32
NAMES = [f"o{k}" for k in range(N)]


@pytest.fixture(params=[None, "lz4"])
def store(request, tmp_path):
    path = tmp_path / "s.zarr"
    writing = Writing(tile=TILE, compress=request.param)
    import_matrix(line_distances(N), path, kind="distance", reading=Reading(ids=NAMES), writing=writing)
    return path


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "p.zarr"
    import_matrix(line_distances(N), path, kind="distance", reading=Reading(ids=NAMES), writing=Writing(tile=TILE))
    return path


def test_any_zarr_reader_reads_it(store):
    group = zarr.open_group(store, mode="r")
    values = group["values"]
    assert values.shape == (N, N)
    assert values.chunks == (TILE, TILE)
    assert math.isnan(values.fill_value)
    assert values.metadata.dimension_names == ("object", "other_object")
    assert list(group["ids"][:]) == NAMES
    strip = np.arange(N) // TILE
    stored = strip[:, None] <= strip
    np.testing.assert_array_equal(values[:][stored], line_distances(N)[stored])
    assert np.isnan(values[:][~stored]).all()
    names = {p.name for p in store.iterdir()}
    assert names == {"zarr.json", "values", "ids", "records", "checksums"}
    manifest = group.attrs["dasrel"]
    assert (manifest["kind"], manifest["n_objects"], manifest["state"]) == ("distance", N, "complete")


def test_any_zarr_reader_sees_a_wrong_checksum(store):
    tile = store / "values" / "c" / "0" / "1"
    data = bytearray(tile.read_bytes())
    data[50] ^= 4
    tile.write_bytes(data)
    with pytest.raises(ValueError, match="checksum"):
        zarr.open_array(store / "values", mode="r")[:TILE, TILE : 2 * TILE]


def test_the_matrix_as_an_array(store, monkeypatch):
    """NumPy gets both triangles or a refusal, never an array of one object."""
    for matrix in (open_matrix(store), as_matrix(line_distances(N), kind="distance")):
        found = np.asarray(matrix)
        np.testing.assert_array_equal(found, line_distances(N))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(np.asarray(matrix, dtype=np.float64), line_distances(N).astype(np.float64))
        assert np.array(matrix).flags.writeable
    with pytest.raises(ValueError, match="without a copy"):
        np.array(open_matrix(store), copy=False)
    monkeypatch.setattr(limits, "free_memory", lambda: 2 * 4 * N * N - 1)
    with pytest.raises(MemoryLimitError, match=r"the matrix as one array takes .*; use `to_dask\(\)`"):
        np.asarray(open_matrix(store))
    monkeypatch.setattr(limits, "free_memory", lambda: 2 * 4 * N * N)
    assert np.asarray(open_matrix(store)).shape == (N, N)


def test_rows_and_dask(store):
    matrix = open_matrix(store)
    np.testing.assert_array_equal(matrix.rows(["o69", "o0", "o33", "o0"]), line_distances(N)[[69, 0, 33, 0]])
    full = matrix.to_dask()
    assert full.shape == matrix.shape == (N, N)
    np.testing.assert_array_equal(full.compute(scheduler="threads"), line_distances(N))
    np.testing.assert_array_equal(full[65:, 3].compute(scheduler="sync"), line_distances(N)[65:, 3])
    with pytest.raises(InputError, match=r"no such objects in .*: x, y$"):
        matrix.rows(["x", "o1", "y"])
    with pytest.raises(InputError, match="no tile"):
        matrix.read_tile(1, 0)


def test_a_matrix_travels(store):
    matrix = open_matrix(store)
    again = pickle.loads(pickle.dumps(matrix))
    assert repr(again) == repr(matrix)
    np.testing.assert_array_equal(again.read_tile(0, 2), matrix.read_tile(0, 2))


def test_a_relative_path_still_means_the_same_from_another_folder(store, monkeypatch, tmp_path):
    monkeypatch.chdir(store.parent)
    matrix = open_matrix(store.name)
    travelling = pickle.dumps(matrix)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    np.testing.assert_array_equal(matrix.read_tile(0, 1), line_distances(N)[:TILE, TILE : 2 * TILE])
    np.testing.assert_array_equal(
        pickle.loads(travelling).read_tile(1, 1), line_distances(N)[TILE : 2 * TILE, TILE : 2 * TILE]
    )


def test_similarities_have_their_diagonal(tmp_path):
    a = 2 - line_distances(N).astype("float64")
    for name, writing in (("a", Writing(tile=TILE)), ("b", Writing(tile=TILE, compress="lz4", dtype="float64"))):
        matrix = import_matrix(a, tmp_path / f"{name}.zarr", kind="similarity", writing=writing)
        np.testing.assert_array_equal(matrix.diagonal, np.full(N, 2.0))
        assert matrix.audit["diagonal"] == {"minimum": 2.0, "maximum": 2.0}
    assert import_matrix(line_distances(N), tmp_path / "c.zarr", kind="distance").diagonal is None


def change_manifest(store, **values):
    path = store / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["dasrel"].update(values)
    path.write_text(json.dumps(document))


def test_another_format_version_is_refused_and_both_are_printed(plain):
    change_manifest(plain, format_version=99)
    with pytest.raises(StoreError, match="format version 99, this dasrel reads version 1"):
        open_matrix(plain)


def test_an_unfinished_store_is_refused(plain):
    change_manifest(plain, state="writing")
    with pytest.raises(StoreError, match=r"unfinished \(state writing\).*resume=True"):
        open_matrix(plain)


def test_what_is_no_store(tmp_path):
    with pytest.raises(StoreError, match=r"no store at .*none; `dasrel import"):
        open_matrix(tmp_path / "none")
    zarr.create_group(tmp_path / "group")
    with pytest.raises(StoreError, match="not a dasrel store"):
        open_matrix(tmp_path / "group")
    zarr.create_array(tmp_path / "array", data=np.zeros(3))
    (tmp_path / "file").write_text("x")
    for name in ("none", "group", "array", "file"):
        assert not is_store(tmp_path / name)
    for name in ("group", "array", "file"):
        with pytest.raises(StoreError, match="not a dasrel store"):
            create_store(tmp_path / name, n_objects=3, kind="distance")
    assert (tmp_path / "array" / "zarr.json").exists()


def test_an_error_on_the_way_is_not_taken_for_an_empty_place(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "zarr.json").write_text("{ not json")
    with pytest.raises(StoreError, match="cannot be opened"):
        create_store(tmp_path / "broken", n_objects=3, kind="distance")
    assert (tmp_path / "broken" / "zarr.json").read_text() == "{ not json"


def test_damaged_tiles_are_named(plain):
    matrix = open_matrix(plain)
    tile = plain / "values" / "c" / "1" / "2"
    good = tile.read_bytes()
    os.truncate(tile, 100)
    with pytest.raises(
        StoreError, match=r"the tile has 100 bytes instead of .*: tile \(1, 2\) .*objects 32 to 63 against 64 to 69;"
    ):
        matrix.read_tile(1, 2)
    tile.unlink()
    with pytest.raises(StoreError, match=r"the tile is missing: tile \(1, 2\).*; `dasrel audit STORE --verify`"):
        matrix.read_tile(1, 2)
    tile.write_bytes(good[:9] + bytes([good[9] ^ 1]) + good[10:])
    with pytest.raises(StoreError, match=r"is corrupt \(checksum [0-9a-f]{8}, stored [0-9a-f]{8}\): tile \(1, 2\)"):
        matrix.files.read(1, 2, verify=True)


def test_damaged_compressed_tiles_are_named(tmp_path):
    path = tmp_path / "s.zarr"
    matrix = import_matrix(line_distances(N), path, kind="distance", writing=Writing(tile=TILE, compress="lz4"))
    tile = path / "values" / "c" / "1" / "2"
    data = tile.read_bytes()
    tile.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    with pytest.raises(StoreError, match=r"the tile cannot be read .*: tile \(1, 2\)"):
        matrix.read_tile(1, 2)
    tile.unlink()
    with pytest.raises(StoreError, match=r"the tile is missing: tile \(1, 2\)"):
        matrix.read_tile(1, 2)


def test_layout():
    layout = Layout(70, 32, np.dtype("float32"))
    assert layout.n_blocks == 3
    assert layout.tiles() == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    assert layout.shape(1, 2) == (32, 6)
    assert (layout.tile_bytes, layout.total_bytes) == (4096, 6 * 4096)


@pytest.mark.parametrize("n", [2, 255, 256, 1023, 1797, 8192, 20_480, 100_003, 10**6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_default_tiles(n, dtype):
    side = default_tile(n, np.dtype(dtype))
    assert side * side * np.dtype(dtype).itemsize <= 64 << 20
    n_blocks = math.ceil(n / side)
    assert n_blocks >= 4 or n <= 1024
    assert n_blocks * side - n < 16 * n_blocks + 16  # little padding


def test_a_store_is_finished_only_when_every_tile_is_there(tmp_path):
    writer = create_store(tmp_path / "s.zarr", n_objects=4, kind="distance", writing=Writing(tile=2))
    assert writer.missing() == [(0, 0), (0, 1), (1, 1)]
    writer.files.write(0, 1, np.ones((2, 2)), TileStatistics(minimum=1, maximum=1, total=4, pairs=4))
    assert writer.missing() == [(0, 0), (1, 1)]
    with pytest.raises(StoreError, match=r"2 tiles are not written: \(0, 0\), \(1, 1\)"):
        writer.finish()
    for k in (0, 1):
        tile = np.array([[0, 3], [3, 0]])
        writer.files.write(k, k, tile, TileStatistics(3, 3, 3, 1, diagonal_minimum=0, diagonal_maximum=0))
    matrix = writer.finish(checksum="mine")
    assert matrix.manifest["provenance"]["checksum"] == "mine"
    assert matrix.audit["mean"] == pytest.approx(10 / 6)
    np.testing.assert_array_equal(matrix.rows(["2"]), [[1, 1, 0, 3]])


def test_a_task_that_comes_too_late_does_not_bring_an_abandoned_store_back(tmp_path):
    writer = create_store(tmp_path / "s.zarr", n_objects=4, kind="distance", writing=Writing(tile=2))
    writer.abandon()
    with pytest.raises(OSError, match=r"s\.zarr"):
        writer.files.write(0, 0, np.zeros((2, 2)), TileStatistics())
    assert not list(tmp_path.iterdir())


def test_an_abandoned_store_without_folders_may_be_begun_again():
    memory = zarr.storage.MemoryStore()
    create_store(memory, n_objects=4, kind="distance").abandon()
    assert read_manifest(memory)[0]["state"] == "abandoned"
    assert len(create_store(memory, n_objects=5, kind="kernel").missing()) == 1


def test_creating_checks_its_arguments(tmp_path):
    for options, message in (
        ({"n_objects": 0}, "n = 0"),
        ({"n_objects": 1}, "n = 1"),
        ({"kind": "metric"}, "kind must be one of the four"),
        ({"writing": Writing(tile=0)}, "tile must be at least 1"),
        ({"writing": Writing(dtype="int8")}, "dtype must be float32 or float64"),
        ({"writing": Writing(compress="zip")}, "compress must be lz4"),
        ({"ids": ["a"]}, "1 id for 3 objects"),
    ):
        with pytest.raises(InputError, match=message):
            create_store(tmp_path / "s.zarr", **{"n_objects": 3, "kind": "distance", **options})
    assert not list(tmp_path.iterdir())


def test_a_new_store_under_an_old_name_is_read_anew(tmp_path):
    path = tmp_path / "s.zarr"
    for tile, compress in ((32, "lz4"), (16, "lz4"), (20, None)):
        matrix = import_matrix(line_distances(N), path, kind="distance", writing=Writing(tile=tile, compress=compress))
        np.testing.assert_array_equal(matrix.rows(["3"]), line_distances(N)[[3]])
        shutil.rmtree(path)
