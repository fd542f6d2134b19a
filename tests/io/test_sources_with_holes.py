"""What a chunked source does not hold is missing or refused; it never becomes the fill value."""

import os

import h5py
import numpy as np
import pytest
import zarr

from dasrel.errors import InputError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.store.options import Policy, Writing

N = 24
PLACES = np.arange(N) ** 1.5
D = np.abs(np.subtract.outer(PLACES, PLACES))
HOLE = np.s_[8:16, 0:8]
MISSING = r"missing values \(NaN\), or a chunk that the source does not have: .* say Policy\(missing=VALUE\)"


def with_holes(a: np.ndarray = D, value: float = 7.0) -> np.ndarray:
    """The matrix with a value in place of the chunk that is lost, and of its mirror image."""
    a = a.astype("float64")
    a[HOLE] = a[HOLE[::-1]] = value
    return a


def zarr_source(path, a=D, **more):
    zarr.create_array(path, data=a, chunks=(8, 8), **more)


def lost_chunk(path):
    zarr_source(path)
    for name in ("1/0", "0/1"):
        os.unlink(path / "c" / name)


def lost_chunk_of_format_2(path):
    zarr_source(path, zarr_format=2, fill_value=0)
    for name in ("1.0", "0.1"):
        os.unlink(path / name)


def lost_chunk_of_integers(path):
    a = D.astype("int16")
    a[3, 20] = a[20, 3] = np.iinfo("int16").max  # the value by which holes are looked for
    zarr_source(path, a, fill_value=0)
    for name in ("1/0", "0/1"):
        os.unlink(path / "c" / name)


def lost_chunk_of_booleans(path):
    zarr_source(path, D > 3, fill_value=False)
    for name in ("1/0", "0/1"):
        os.unlink(path / "c" / name)


def lost_inner_chunk(path):
    """A shard in which a chunk was never written."""
    a = zarr.create_array(path, shape=(N, N), chunks=(8, 8), shards=(16, 16), dtype="f8", fill_value=0)
    for r in range(0, N, 8):
        for c in range(0, N, 8):
            if {r, c} != {0, 8}:
                a[r : r + 8, c : c + 8] = D[r : r + 8, c : c + 8]


def unwritten_hdf5_chunk(path):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("matrix", shape=(N, N), chunks=(8, 8), dtype="f8")
        for r in range(0, N, 8):
            for c in range(0, N, 8):
                if {r, c} != {0, 8}:
                    data[r : r + 8, c : c + 8] = D[r : r + 8, c : c + 8]


def unwritten_hdf5_integers(path):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("matrix", shape=(N, N), chunks=(8, 8), dtype="i4")
        for r in range(0, N, 8):
            for c in range(0, N, 8):
                if {r, c} != {0, 8}:
                    data[r : r + 8, c : c + 8] = D[r : r + 8, c : c + 8]


SOURCES = {
    "lost.zarr": (lost_chunk, D),
    "lost2.zarr": (lost_chunk_of_format_2, D),
    "bool.zarr": (lost_chunk_of_booleans, D > 3),
    "shard.zarr": (lost_inner_chunk, D),
    "float.h5": (unwritten_hdf5_chunk, D),
    "integer.h5": (unwritten_hdf5_integers, D.astype("int32")),
}


@pytest.mark.parametrize("tile", [8, 7], ids=["in place", "spooled"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_lost_chunk_is_missing(tmp_path, name, tile):
    make, a = SOURCES[name]
    make(tmp_path / name)
    writing = Writing(tile=tile, dtype="float64")
    with pytest.raises(InputError, match=MISSING):
        import_matrix(tmp_path / name, tmp_path / "s.zarr", kind="distance", writing=writing)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    filled = import_matrix(
        tmp_path / name, tmp_path / "s.zarr", kind="distance", writing=writing, policy=Policy(missing=7.0)
    )
    np.testing.assert_array_equal(filled.rows(range(N)), with_holes(a))
    assert filled.audit["missing"]["count"] == 64


def test_an_integer_that_looks_like_a_hole_is_none(tmp_path):
    lost_chunk_of_integers(tmp_path / "a.zarr")
    filled = import_matrix(
        tmp_path / "a.zarr", tmp_path / "s.zarr", kind="distance", writing=Writing(tile=8), policy=Policy(missing=7.0)
    )
    expected = with_holes(D.astype("int16"))
    expected[3, 20] = expected[20, 3] = 32767
    np.testing.assert_array_equal(filled.rows(range(N)), expected)
    assert filled.audit["missing"]["count"] == 64


def test_chunks_under_other_names_are_missing(tmp_path):
    zarr_source(tmp_path / "a.zarr")
    about = tmp_path / "a.zarr" / "zarr.json"
    about.write_text(about.read_text().replace('"separator": "/"', '"separator": "."'))
    with pytest.raises(InputError, match=MISSING):
        import_matrix(tmp_path / "a.zarr", tmp_path / "s.zarr", kind="distance")


def test_an_array_in_memory_with_a_lost_chunk(tmp_path):
    lost_chunk(tmp_path / "a.zarr")
    with pytest.raises(InputError, match=MISSING):
        import_matrix(zarr.open_array(tmp_path / "a.zarr"), tmp_path / "s.zarr", kind="distance")


@pytest.mark.parametrize("how", ["zarr", "hdf5"])
def test_a_condensed_vector_with_a_lost_chunk(tmp_path, how):
    vector = np.arange(1.0, 67.0)
    if how == "zarr":
        source = tmp_path / "a.zarr"
        zarr.create_array(source, data=vector, chunks=(11,))
        os.unlink(source / "c" / "2")
    else:
        source = tmp_path / "a.h5"
        with h5py.File(source, "w") as file:
            data = file.create_dataset("matrix", shape=(66,), chunks=(11,), dtype="f8")
            data[:22], data[33:] = vector[:22], vector[33:]
    with pytest.raises(InputError, match=MISSING):
        import_matrix(source, tmp_path / "s.zarr", kind="distance")
    filled = import_matrix(source, tmp_path / "s.zarr", kind="distance", policy=Policy(missing=0.5))
    vector[22:33] = 0.5
    np.testing.assert_array_equal(filled.rows(range(12))[np.triu_indices(12, 1)], vector)


def virtual(path, *, holder="values.h5", part=N):
    with h5py.File(path.parent / "values.h5", "w") as file:
        file["d"] = D
    layout = h5py.VirtualLayout((N, N), "f8")
    layout[:part] = h5py.VirtualSource(holder, "d", shape=(N, N))[:part]
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("matrix", layout)


def test_a_virtual_dataset(tmp_path):
    virtual(tmp_path / "a.h5")
    matrix = import_matrix(tmp_path / "a.h5", tmp_path / "s.zarr", kind="distance", writing=Writing(dtype="float64"))
    np.testing.assert_array_equal(matrix.rows(range(N)), D)


def test_a_virtual_dataset_without_its_file(tmp_path):
    virtual(tmp_path / "a.h5", holder="gone.h5")
    with pytest.raises(InputError, match=r"is virtual, and the file gone.h5 that holds its values is not there"):
        import_matrix(tmp_path / "a.h5", tmp_path / "s.zarr", kind="distance")


def test_a_virtual_dataset_with_a_part_of_no_file(tmp_path):
    virtual(tmp_path / "a.h5", part=N - 1)
    with pytest.raises(InputError, match=rf"its files provide {(N - 1) * N} of {N * N} values"):
        import_matrix(tmp_path / "a.h5", tmp_path / "s.zarr", kind="distance")


def test_a_virtual_dataset_of_a_file_with_holes(tmp_path):
    virtual(tmp_path / "a.h5")
    unwritten_hdf5_chunk(tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5", "r") as source, h5py.File(tmp_path / "values.h5", "w") as target:
        source.copy("matrix", target, "d")
    with pytest.raises(InputError, match=r"values.h5, dataset d, has absent chunks"):
        import_matrix(tmp_path / "a.h5", tmp_path / "s.zarr", kind="distance")


@pytest.mark.parametrize("chunks", [None, (8, 8)])
def test_a_dataset_that_was_never_written(tmp_path, chunks):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("matrix", shape=(N, N), dtype="f8", chunks=chunks)
    with pytest.raises(InputError, match="dataset matrix, was declared but never written: it has no values"):
        import_matrix(tmp_path / "a.h5", tmp_path / "s.zarr", kind="distance", reading=Reading())


@pytest.mark.parametrize("size", [None, 8 * N * N - 8])
def test_external_values_that_are_not_all_there(tmp_path, size):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        where = [("a.raw", 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("matrix", shape=(N, N), dtype="f8", external=where)
    if size is not None:
        (tmp_path / "a.raw").write_bytes(D.tobytes()[:size])
    message = r"a.raw: No such file" if size is None else r"4,600 bytes of 4,608: they are truncated"
    with pytest.raises(InputError, match=message):
        import_matrix(tmp_path / "a.h5", tmp_path / "s.zarr", kind="distance")
