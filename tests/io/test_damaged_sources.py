"""A damaged source gets one line that names it; a small file that claims much is refused at once."""

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
import zarr
from pyarrow import parquet

from dasrel.errors import DasrelError, InputError
from dasrel.io.append import append
from dasrel.io.importing import import_matrix
from dasrel.io.pairwise import pairwise
from dasrel.store.options import Writing
from tests.helpers.matrices import line_distances

D = line_distances(9, "float64")


# ------------------------------------------------------------------------------------------------------ how to damage


def npy_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def claim(shape, data=bytes(10), descr="'<f8'"):
    """The bytes of a .npy file whose header is not checked against anything."""
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n", data)


def header(text, data=bytes(10)):
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + data


def zipped(members, how=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def patched(data, *changes):
    """Replace bytes: (offset, new bytes)."""
    data = bytearray(data)
    for at, new in changes:
        data[at : at + len(new)] = new
    return bytes(data)


def archive(*changes, central=(), how=zipfile.ZIP_DEFLATED):
    """An .npz with changes to the header of its member, and to the central directory."""
    data = zipped({"a.npy": npy_bytes(D)}, how)
    directory = data.rfind(b"PK\1\2")
    return patched(data, *changes, *((directory + at, new) for at, new in central))


def sparse(*, drop=(), **changed):
    out = io.BytesIO()
    scipy.sparse.save_npz(out, scipy.sparse.csr_array(D))
    with zipfile.ZipFile(out) as kept:
        members = {name: kept.read(name) for name in kept.namelist() if name.removesuffix(".npy") not in drop}
    return zipped(members | {f"{name}.npy": npy_bytes(np.asarray(array)) for name, array in changed.items()})


def bomb():
    """Nearly 300 MB of zeros in 300 kB."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed,
        packed.open("a.npy", "w") as member,
    ):
        member.write(claim("(6000, 6000)", b""))
        for _ in range(6000 * 6000 * 8 // (1 << 20) + 1):
            member.write(bytes(1 << 20))
    return out.getvalue()


def text_bomb(start, line):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as packed:
        packed.write(start)
        for _ in range(100):
            packed.write(line * ((1 << 20) // len(line)))
    return out.getvalue()


def hdf5(fill):
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return out.getvalue()


def long_names():
    """Names that claim 4 GB each in their references."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["matrix"] = np.zeros((9, 9))
        file["order"] = ["a name that is long enough to be found"] * 9
        at = file["order"].id.get_offset()
    data = bytearray(out.getvalue())
    data[at : at + 4] = b"\xff\xff\xff\xff"
    return bytes(data)


def ordered(make):
    def fill(file):
        file["matrix"] = D
        make(file)

    return hdf5(fill)


def many(file):
    for k in range(5):
        file.create_dataset(f"g{k}/matrix{k}", data=D, chunks=(3, 3))


def broken(signature, *, inside=False):
    """An HDF5 file with a structure of this signature overwritten."""
    data = hdf5(many)
    at = data.find(signature, 0 if inside else 200)
    assert at > 0
    return patched(data, (at + 8, b"\xff" * 52) if inside else (at, b"XXXX"))


def packed_hdf5(file):
    file.create_dataset("matrix", data=D, chunks=(9, 9), compression="gzip")


def bad_filter():
    data = hdf5(packed_hdf5)
    at = data.find(b"\x78\x5e") if b"\x78\x5e" in data else data.find(b"\x78\x9c")
    assert at > 0
    return patched(data, (at + 2, b"\xff" * 20))


def parquet_bytes(names):
    out = io.BytesIO()
    columns = [pa.array(["a", "b"]), pa.array(["b", "c"]), pa.array([1.0, 2.0])]
    parquet.write_table(pa.table(columns, names=names), out)
    return out.getvalue()


TEXT = gzip.compress(b"\tx\ty\nx\t0\t1\ny\t1\t0\n")
MTX = "%%MatrixMarket matrix {} real general\n"
MANY = "9" * 5000
READ = r"cannot be read( as \w+)? \(.+\); is it damaged\? Write or copy it again"

FILES = {
    # npy
    **{f"cut{k}.npy": (npy_bytes(D)[:k], "no whole .npy file") for k in (7, 8, 9, 40)},
    "none.npy": (claim("(0, 0)", b""), r"no objects \(n = 0\)"),
    "nested.npy": (header("(" * 3000 + ")" * 3000 + "\n"), "no whole .npy file"),
    "deep.npy": (claim("(" * 90 + "3" + ",)" * 90), "no whole .npy file"),
    "negative.npy": (claim("(-3, -3)", bytes(72)), "no whole .npy file"),
    "huge.npy": (claim("(4294967296, 4294967296)"), "huge.npy is truncated: .* its header asks for 147,573,952,589"),
    # npz
    "encrypted.npz": (archive((6, b"\1"), central=[(8, b"\1")]), "array a cannot be read .*encrypted"),
    "method.npz": (archive((8, b"\x4d\0"), central=[(10, b"\x4d\0")]), "array a cannot be read .*not supported"),
    "local.npz": (archive((0, b"PKxx")), "array a cannot be read"),
    "place.npz": (archive(central=[(42, struct.pack("<I", 10**8))]), "array a cannot be read"),
    "name.npz": (archive((26, struct.pack("<H", 60000)), how=zipfile.ZIP_STORED), "array a cannot be read"),
    "lzma.npz": (archive((60, bytes(30)), how=zipfile.ZIP_LZMA), "array a (cannot be read|is no whole)"),
    "short.npz": (archive(central=[(24, struct.pack("<I", 300))]), "array a cannot be read .*CRC-32"),
    "claim.npz": (zipped({"a.npy": claim(f"({2**63 - 1}, {2**63 - 1})")}), "is damaged: its header asks for 680,564,"),
    "bomb.npz": (bomb(), "bomb.npz, array a unpacks to 288 MB or more, over 200 times its size"),
    "indptr.npz": (sparse(drop=["indptr"]), r"There is no item named 'indptr.npy' in the archive"),
    "below.npz": (sparse(indices=np.full(72, -1)), "names a column beyond its 9 objects"),
    "half.npz": (sparse(indices=np.full(72, 0.5)), "its indices are not whole numbers"),
    "rows.npz": (sparse(indptr=[0, 5, 3]), "indptr does not divide its entries into rows"),
    "block.npz": (sparse(data=np.ones((72, 1, 1))), "its arrays are no vectors"),
    "falling.npz": (sparse(indptr=[0, 9, 8, 27, 36, 45, 54, 63, 70, 72]), "indptr does not divide its entries"),
    "sizes.npz": (sparse(indices=np.arange(3)), "its arrays have different sizes"),
    "scalar.npz": (sparse(shape=3), "its format or shape is damaged"),
    "words.npz": (sparse(shape=["a", "b"]), "its format or shape is damaged"),
    "forms.npz": (sparse(format=["csr", "csc"]), "its format or shape is damaged"),
    "objects.npz": (sparse(shape=[2**62, 2**62]), "claims 4,611,686,018,427,387,904 objects; at most 2,147,483,647"),
    "wide.npz": (sparse(shape=[2 * 10**8] * 2), "claims 200,000,000 objects: .* take 25.6 GB of memory"),
    # HDF5
    **{f"{name.decode()}.h5": (broken(name), READ) for name in (b"TREE", b"HEAP", b"SNOD")},
    **{f"in{name.decode()}.h5": (broken(name, inside=True), READ) for name in (b"TREE", b"HEAP", b"SNOD")},
    "filter.h5": (bad_filter(), READ),
    "group.h5": (ordered(lambda file: file.create_group("order")), "no usable names: order is a group"),
    "scalar.h5": (ordered(lambda file: file.__setitem__("order", b"abc")), r"order is of shape \(\)"),
    "table.h5": (ordered(lambda file: file.__setitem__("order", np.zeros((9, 2)))), r"order is of shape \(9, 2\)"),
    "long.h5": (long_names(), "order claims more bytes than the file has"),
    "void.h5": (ordered(lambda file: file.__setitem__("order", h5py.Empty("f"))), "order is empty"),
    "few.h5": (ordered(lambda file: file.__setitem__("order", [b"a", b"b"])), "2 ids for 9 objects"),
    "empty.h5": (hdf5(lambda file: file.__setitem__("matrix", h5py.Empty("f"))), "no square or condensed array"),
    "claim.h5": (
        hdf5(lambda file: file.create_dataset("matrix", shape=(2**40,) * 2, chunks=(64, 64), dtype="f4")),
        "never written|too many chunks",
    ),
    # text and pairs
    "twice.parquet": (parquet_bytes(["x", "x", "v"]), "several columns named x; rename or drop the repeats"),
    "cut.tsv.gz": (TEXT[:-6], "the compressed file ends too early"),
    "crc.tsv.gz": (patched(TEXT, (14, b"\xff")), "damaged compressed file"),
    "more.tsv.gz": (TEXT + b"junk", "damaged compressed file"),
    "bomb.tsv.gz": (
        text_bomb(b"\tx\ty\nx\t0\t1\ny\t", b"0"),
        r"bomb.tsv.gz unpacks to .* MB or more, over 200 times its size",
    ),
    "bits.mtx.gz": (
        patched(gzip.compress((MTX.format("array") + "3 3\n" + "1\n" * 9).encode()), (45, b"\xff\xff")),
        "bits.mtx.gz",
    ),
    "digits.phy": (f"{MANY}\na 0 1\nb 1 0\n", "begins with the number of objects, not '999"),
    "digits.mtx": (MTX.format("coordinate") + f"{MANY} {MANY} 3\n1 2 0.5\n", r"line 2: 999.* is no size"),
    "entries.mtx": (MTX.format("coordinate") + f"3 3 {MANY}\n1 2 0.5\n", r"line 2: 3 3 999.* is no size"),
    "rows.mtx": (
        MTX.format("coordinate") + "200000000 200000000 3\n1 2 0.5\n2 1 0.5\n1 1 0\n",
        "rows.mtx claims 200,000,000 objects: their names and tables alone take 25.6 GB of memory, .* is 1.07 GB",
    ),
    "dense.mtx": (
        MTX.format("array") + "200000000 200000000\n1\n",
        r"claims 40,000,000,000,000,000 entries, which its \d+ bytes cannot hold",
    ),
    "half.mtx": (MTX.format("coordinate") + "3 3 1\n1.5 2 0.5\n", r"an entry has the place \(1.5, 2\)"),
    "nan.mtx": (MTX.format("coordinate") + "3 3 1\nnan 2 0.5\n", r"an entry has the place \(nan, 2\)"),
    "rows.phy": ("100000000\na\nb 1\n", "claims 100,000,000 objects, which its 16 bytes cannot hold"),
}


@pytest.mark.parametrize("name", FILES)
def test_import_says_what_is_wrong(tmp_path, name):
    content, message = FILES[name]
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message) as caught:
        import_matrix(tmp_path / name, tmp_path / "s.zarr", kind="distance")
    assert "\n" not in str(caught.value)
    assert name in str(caught.value) or "objects" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [name]


CHUNKS = {
    "gzip": ({"compressors": zarr.codecs.GzipCodec()}, slice(12, 18), b"\xff" * 6),
    "zstd": ({}, slice(4, 10), b"\xff" * 6),
    "crc32c": ({"compressors": zarr.codecs.Crc32cCodec()}, slice(3, 4), b"\xff"),
    "short": ({"compressors": None}, slice(10, None), b""),
}


@pytest.mark.parametrize("tile", [3, 4], ids=["in place", "spooled"])
@pytest.mark.parametrize("how", CHUNKS)
def test_a_damaged_zarr_chunk(tmp_path, how, tile):
    options, where, new = CHUNKS[how]
    zarr.create_array(tmp_path / "a.zarr", data=D + 1 - np.eye(9), chunks=(3, 3), **options)
    chunk = tmp_path / "a.zarr" / "c" / "0" / "1"
    data = bytearray(chunk.read_bytes())
    data[where] = new
    chunk.write_bytes(data)
    with pytest.raises(InputError, match=f"a.zarr {READ}") as caught:
        import_matrix(tmp_path / "a.zarr", tmp_path / "s.zarr", kind="distance", writing=Writing(tile=tile))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "s.zarr").exists()


def test_a_zarr_array_that_claims_too_much(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", shape=(2**40, 2**40), chunks=(64, 64), dtype="f4")
    with pytest.raises(InputError, match="in chunks of 64 x 64: too many chunks"):
        import_matrix(tmp_path / "a.zarr", tmp_path / "s.zarr", kind="distance")


@pytest.mark.parametrize("place", ["filters", "compressor"])
def test_no_code_of_a_zarr_source_is_run(tmp_path, place):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    zarr.create_array(tmp_path / "a.zarr", data=D, chunks=(9, 9), zarr_format=2, compressors=None)
    about = json.loads((tmp_path / "a.zarr" / ".zarray").read_text())
    codec = {"id": "pickle", "protocol": 5}
    about[place] = [codec] if place == "filters" else codec
    (tmp_path / "a.zarr" / ".zarray").write_text(json.dumps(about))
    (tmp_path / "a.zarr" / ".zmetadata").unlink(missing_ok=True)
    (tmp_path / "a.zarr" / "0.0").write_bytes(pickle.dumps(Payload()))
    import_matrix(D, tmp_path / "old.zarr", kind="distance")
    for call in (
        lambda: import_matrix(tmp_path / "a.zarr", tmp_path / "s.zarr", kind="distance"),
        lambda: append(tmp_path / "old.zarr", tmp_path / "a.zarr"),
    ):
        with pytest.raises(InputError, match=r"a\.zarr .*pickle"):
            call()
    assert not (tmp_path / "ran").exists()


def test_known_codecs_are_decoded(tmp_path):
    codecs = zarr.codecs
    for k, more in enumerate((
        {"compressors": codecs.BloscCodec(cname="lz4")},
        {"compressors": [codecs.GzipCodec(), codecs.Crc32cCodec()]},
        {"shards": (6, 6)},
        {"zarr_format": 2, "compressors": None},
        {"zarr_format": 2},
    )):  # fmt: skip
        zarr.create_array(tmp_path / f"{k}.zarr", data=D + 1 - np.eye(9), chunks=(3, 3), **more)
        assert import_matrix(tmp_path / f"{k}.zarr", tmp_path / f"s{k}.zarr", kind="distance").n_objects == 9


def test_a_pipe_is_no_source(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"a\.npy is a pipe or a device; write its content to a file first"):
        import_matrix(tmp_path / "a.npy", tmp_path / "s.zarr", kind="distance")


def test_folders_that_are_no_source(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "zarr.json").write_text("[1]")
    with pytest.raises(InputError, match="empty is a folder, and not one of a Zarr array or group"):
        import_matrix(tmp_path / "empty", tmp_path / "s.zarr", kind="distance")
    with pytest.raises(InputError, match="list cannot be opened as Zarr"):
        import_matrix(tmp_path / "list", tmp_path / "s.zarr", kind="distance")
    for call in (pairwise, append):
        with pytest.raises(DasrelError) as caught:
            call(tmp_path / "empty", tmp_path / "s.zarr", **({"metric": "euclidean"} if call is pairwise else {}))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["source", "store"])
def test_a_nul_in_a_path(tmp_path, what):
    places = {"source": str(tmp_path / "a.npy"), "store": str(tmp_path / "s.zarr")}
    np.save(tmp_path / "a.npy", D)
    places[what] += "\0x"
    with pytest.raises(InputError, match=r"\\x00x is no path: it has a NUL character"):
        import_matrix(places["source"], places["store"], kind="distance")
    with pytest.raises(InputError, match=r"NUL|no such file"):
        pairwise(places["source"], places["store"], metric="euclidean")


FEATURES = {
    name: FILES[name]
    for name in ("cut9.npy", "nested.npy", "huge.npy", "encrypted.npz", "method.npz", "claim.npz", "twice.parquet")
} | {
    "bomb.npz": FILES["bomb.npz"],
    "lzma.npz": FILES["lzma.npz"],
    "cut.csv.gz": (TEXT[:-6], "ends too early"),
    "bomb.csv.gz": (text_bomb(b"id,a,b\n", b"x,0,1\n"), "over 200 times its size"),
    "indptr.npz": (sparse(drop=["indptr"]), "indptr"),
    "far.npz": (sparse(indices=np.full(72, 10**6)), READ),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", FEATURES)
def test_pairwise_and_append_say_what_is_wrong(tmp_path, name):
    content, message = FEATURES[name]
    (tmp_path / name).write_bytes(content)
    import_matrix(D, tmp_path / "old.zarr", kind="distance")
    with pytest.raises(InputError, match=message) as caught:
        pairwise(tmp_path / name, tmp_path / "s.zarr", metric="euclidean")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=message) as caught:
        append(tmp_path / "old.zarr", tmp_path / name)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "old.zarr"])


def test_appended_rows_with_a_lost_chunk(tmp_path):
    import_matrix(D, tmp_path / "old.zarr", kind="distance")
    rows = np.hstack([D[:2] + 1, [[0, 1], [1, 0]]])
    zarr.create_array(tmp_path / "rows.zarr", data=rows, chunks=(1, 11))
    os.unlink(tmp_path / "rows.zarr" / "c" / "1" / "0")
    with pytest.raises(InputError, match=r"missing values \(NaN\)|in one direction only"):
        append(tmp_path / "old.zarr", tmp_path / "rows.zarr")


def test_a_damaged_array_of_an_archive_is_not_passed_over_for_another(tmp_path: Path) -> None:
    """The other one, a number, could be a condensed matrix of two objects."""
    path = tmp_path / "m.npz"
    np.savez(path, m=np.array([[0.0, 1.0], [1.0, 0.0]]), other=np.array([0.5]))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x93NUMPY", b"\x93NUMPX", 1))
    with pytest.raises(InputError, match="array m cannot be read"):
        import_matrix(path, tmp_path / "s.zarr", kind="distance")


def test_a_dataset_matrix_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["matrix"] = h5py.Empty("f8")
        file["order"] = np.array([0.5])
    with pytest.raises(InputError, match="matrix, is no square"):
        import_matrix(path, tmp_path / "s.zarr", kind="distance")


def test_an_unknown_version_of_npy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.array([[0.0, 1.0], [1.0, 0.0]]))
    data = bytearray(path.read_bytes())
    data[6] = 34
    path.write_bytes(data)
    with pytest.raises(InputError, match="format version"):
        import_matrix(path, tmp_path / "s.zarr", kind="distance")
