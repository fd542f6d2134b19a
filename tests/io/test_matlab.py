"""MATLAB files as SciPy writes them (version 5), and as MATLAB writes version 7.3 with HDF5."""

import struct

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from scipy.spatial.distance import squareform

from dasrel.errors import InputError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.io.readers.sniff import detect, open_source
from dasrel.store.options import Policy, Writing

N = 40
PLACES = np.arange(N) ** 1.5
D = np.abs(np.subtract.outer(PLACES, PLACES))
WRITING = Writing(tile=16, dtype="float64")


def matlab_73(path, **variables):
    """Write a file as MATLAB does: a header of 512 bytes, numbers by columns, chunks of deflated numbers."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in variables.items():
            array = np.atleast_2d(np.asarray(array))
            chunks = tuple(min(16, size) for size in array.T.shape)
            data = file.create_dataset(name, data=array.T, chunks=chunks, compression="gzip")
            data.attrs["MATLAB_class"] = np.bytes_("double")
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Tue Nov 17".ljust(124) + b"\x00\x02IM")


WRITERS = {
    "plain": lambda path, **variables: scipy.io.savemat(path, variables),
    "packed": lambda path, **variables: scipy.io.savemat(path, variables, do_compression=True),
    "7.3": matlab_73,
}


def imported(tmp_path, **more):
    return import_matrix(tmp_path / "a.mat", tmp_path / "s.zarr", **({"kind": "distance", "writing": WRITING} | more))


@pytest.mark.parametrize("how", WRITERS)
def test_a_square_matrix(tmp_path, how):
    WRITERS[how](tmp_path / "a.mat", D=D)
    assert detect(tmp_path / "a.mat", Reading()) == "mat"
    assert open_source(tmp_path / "a.mat", kind="distance", reading=Reading(), policy=Policy())[1].n_objects == N
    np.testing.assert_array_equal(imported(tmp_path).rows(range(N)), D)


@pytest.mark.parametrize("how", WRITERS)
def test_rows_are_rows(tmp_path, how):
    """MATLAB's numbers are by columns: the row of an asymmetric pair is the first of its two objects."""
    a = D.copy()
    a[2, 30] = 500
    WRITERS[how](tmp_path / "a.mat", D=a)
    with pytest.raises(InputError, match=rf"2 \(object 2\) and 30 \(object 30\): 500 one way, {a[30, 2]:g} the other"):
        imported(tmp_path)


@pytest.mark.parametrize("how", WRITERS)
def test_the_variable_is_chosen(tmp_path, how):
    WRITERS[how](tmp_path / "a.mat", first=D, second=2 * D, table=np.ones((N, 3)))
    with pytest.raises(InputError, match=r"has 2 arrays \(first, second\); choose one with Reading\(dataset=NAME\)"):
        imported(tmp_path)
    with pytest.raises(InputError, match="has no array third; there are: first, second"):
        imported(tmp_path, reading=Reading(dataset="third"))
    np.testing.assert_array_equal(imported(tmp_path, reading=Reading(dataset="second")).rows(range(N)), 2 * D)


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("shape", [(1, -1), (-1, 1)])
def test_the_vector_of_pdist(tmp_path, how, shape):
    WRITERS[how](tmp_path / "a.mat", y=squareform(D).reshape(shape))
    np.testing.assert_array_equal(imported(tmp_path).rows(range(N)), D)
    with pytest.raises(InputError, match="no self-similarity values"):
        imported(tmp_path, kind="similarity", writing=Writing(force=True))


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "single", "bool"])
def test_other_numbers(tmp_path, dtype, packed):
    a = np.minimum(D, 200).astype(dtype)
    scipy.io.savemat(tmp_path / "a.mat", {"D": a}, do_compression=packed)
    np.testing.assert_array_equal(imported(tmp_path).rows(range(N)), a.astype("float64"))


def test_nan_is_missing(tmp_path):
    a = D.copy()
    a[3, 5] = a[5, 3] = np.nan
    scipy.io.savemat(tmp_path / "a.mat", {"D": a})
    with pytest.raises(InputError, match=r"missing values \(NaN\): 3 \(object 3\) and 5"):
        imported(tmp_path)
    a[3, 5] = a[5, 3] = 1
    np.testing.assert_array_equal(imported(tmp_path, policy=Policy(missing=1.0)).rows(range(N)), a)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (scipy.sparse.csc_array(D), "sparse"),
        (D + 1j, "complex"),
        ({"a": 1}, "a struct"),
        ("text", "text"),
        (np.ones((N, 3)), "of shape 40 x 3"),
        (np.ones((3, 3, 3)), "of shape 3 x 3 x 3"),
    ],
)
def test_variables_that_are_no_matrix(tmp_path, value, what):
    scipy.io.savemat(tmp_path / "a.mat", {"D": value})
    with pytest.raises(InputError, match="no square matrix of numbers and no condensed vector, but D"):
        imported(tmp_path)
    with pytest.raises(InputError, match=rf"variable D is {what}; save full\(X\) of a real matrix"):
        imported(tmp_path, reading=Reading(dataset="D"))


def test_old_and_damaged_files(tmp_path):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"D": D}, format="4")
    with pytest.raises(InputError, match=r"no MATLAB file of version 5 or 7.3; save it in MATLAB with -v7"):
        imported(tmp_path)
    for packed in (False, True):
        scipy.io.savemat(path, {"D": D}, do_compression=packed)
        good = path.read_bytes()
        for size in (130, 140, 200, len(good) - 9):
            path.write_bytes(good[:size])
            with pytest.raises(InputError, match=r"a.mat .*(truncated|damaged)") as caught:
                imported(tmp_path)
            assert "\n" not in str(caught.value)
        path.write_bytes(good[:136] + bytes(40) + good[176:])
        with pytest.raises(InputError, match=r"a.mat cannot be read as MATLAB 5|has no square"):
            imported(tmp_path)
    path.write_bytes(good[:-100] + bytes(100))
    with pytest.raises(InputError, match=r"a.mat cannot be read as MATLAB 5 \(.*\); is it damaged|is truncated"):
        imported(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mat"]


def test_a_header_that_matlab_takes_for_version_4(tmp_path):
    """A zero among the first four bytes: SciPy and MATLAB would read other numbers, if any."""
    scipy.io.savemat(tmp_path / "a.mat", {"D": D})
    damaged = bytearray((tmp_path / "a.mat").read_bytes())
    damaged[3] = 0
    (tmp_path / "a.mat").write_bytes(damaged)
    with pytest.raises(InputError, match=r"is no MATLAB file of version 5 or 7\.3; save it in MATLAB with -v7"):
        imported(tmp_path)


@pytest.mark.slow
def test_a_small_file_that_claims_much(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"D": np.zeros((3, 3))})
    data = bytearray((tmp_path / "a.mat").read_bytes())
    at = data.index(struct.pack("<ii", 3, 3))
    data[at : at + 8] = struct.pack("<ii", 2**31 - 1, 2**31 - 1)
    (tmp_path / "a.mat").write_bytes(data)
    with pytest.raises(InputError, match=r"variable D of shape \(2147483647, 2147483647\) has 72 bytes of numbers"):
        imported(tmp_path)
    scipy.io.savemat(tmp_path / "a.mat", {"D": np.zeros((4000, 4000))}, do_compression=True)
    assert (tmp_path / "a.mat").stat().st_size < 200_000
    with pytest.raises(InputError, match=r"unpacks to 128 MB or more, over 200 times its size"):
        imported(tmp_path)


@pytest.mark.slow
def test_unpacking_takes_memory_for_a_few_pieces(tmp_path):
    """The numbers of a compressed variable come in pieces of at most 4 MiB, whatever its size."""
    from dasrel.io.readers import matlab

    a = np.random.default_rng(1).integers(0, 9, (1500, 1500)).astype("float64")
    scipy.io.savemat(tmp_path / "a.mat", {"D": a}, do_compression=True)
    (one,) = matlab._variables(tmp_path / "a.mat")
    pieces = list(matlab._unpacked(tmp_path / "a.mat", one))
    assert max(map(len, pieces)) <= matlab.COPY
    assert b"".join(pieces)[one.skip :][: a.nbytes] == a.T.tobytes()


def test_every_damaged_byte_of_a_compressed_variable_is_found(tmp_path):
    """Also those after the last number: the checksum is at the very end."""
    WRITERS["packed"](tmp_path / "a.mat", D=D)
    whole = (tmp_path / "a.mat").read_bytes()
    for at in [*range(len(whole) - 4, len(whole)), *range(300, len(whole), 997)]:
        (tmp_path / "a.mat").write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(InputError):
            imported(tmp_path)
