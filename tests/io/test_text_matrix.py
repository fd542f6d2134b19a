"""Square matrices in text."""

import gzip
import os
import zipfile
from pathlib import Path

import google_crc32c
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from dasrel.errors import InputError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.io.readers import stream as streams, text_square as text_matrix
from dasrel.io.readers.sniff import sniff
from dasrel.io.readers.source import Source
from dasrel.io.readers.text_square import open_text
from dasrel.store.matrix import Matrix
from tests.helpers.matrices import symmetric

EVERYTHING = slice(None)


def opened(path: Path, form: str = "lsmat", kind: str = "distance", **reading: object) -> Source:
    return open_text(path, Reading(format=form, **reading), kind).spool(path.parent / "scratch")  # type: ignore[arg-type]


def matrix(path: Path, form: str = "lsmat", kind: str = "distance") -> np.ndarray:
    source = opened(path, form, kind)
    values = source.block(EVERYTHING, EVERYTHING)
    source.close()
    return values


def write(folder: Path, content: str | bytes, name: str = "matrix.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- CSV and TSV


def test_lsmat_by_hand(tmp_path: Path) -> None:
    path = write(tmp_path, "# a comment\n#another\n\n\ta\tb\tc d\na\t0\t1.5\t-2e-3\n\nb\t1.5\t0\t\nc d\t2\tnan\tNA\n")
    source = opened(path)
    assert list(source.ids or ()) == ["a", "b", "c d"]
    assert source.n_objects == 3
    assert source.mirrored
    expected = np.array([[0, 1.5, -2e-3], [1.5, 0, np.nan], [2, np.nan, np.nan]])
    np.testing.assert_array_equal(source.block(EVERYTHING, EVERYTHING), expected)
    np.testing.assert_array_equal(source.block(slice(1, 3), slice(0, 2)), expected[1:3, 0:2])
    assert source.checksum == f"crc32c: {google_crc32c.value(path.read_bytes()):08x}"
    assert source.provenance["size"] == path.stat().st_size
    source.close()
    with pytest.raises(InputError, match="closed"):
        source.block(EVERYTHING, EVERYTHING)


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("layout", ["both", "no header", "no index", "neither", "corner"])
@pytest.mark.parametrize("named", [True, False])
def test_pandas(tmp_path: Path, separator: str, layout: str, named: bool) -> None:
    values = symmetric(7)
    ids = [f"x,{k};y" if separator == "\t" else f"x {k}" for k in range(7)] if named else list(range(7))
    options = {
        "both": {},
        "no header": {"header": False},
        "no index": {"index": False},
        "neither": {"header": False, "index": False},
        "corner": {"index_label": "id"},
    }[layout]
    path = tmp_path / "m.csv"
    pd.DataFrame(values, index=ids, columns=ids).to_csv(path, sep=separator, **options)
    if layout == "no header" and not named:  # numbers all over, one column too many
        with pytest.raises(InputError, match="7 rows for 8 columns"):
            opened(path)
        return
    assert sniff(path) == "lsmat"
    source = opened(path)
    np.testing.assert_array_equal(source.block(EVERYTHING, EVERYTHING), values)
    nameless = layout == "neither" or (layout == "no index" and not named)
    assert source.ids is None if nameless else list(source.ids or ()) == [str(name) for name in ids]


def test_a_lattice_is_no_header(tmp_path: Path) -> None:
    """|i - j| begins with 0, 1, 2, ... and so does a header without names."""
    values = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
    path = tmp_path / "m.csv"
    np.savetxt(path, values, delimiter=",", fmt="%d")
    np.testing.assert_array_equal(matrix(path), values)
    pd.DataFrame(values).to_csv(path, index=False)
    np.testing.assert_array_equal(matrix(path), values)


def test_numpy_savetxt_and_r(tmp_path: Path) -> None:
    values = symmetric(4)
    path = tmp_path / "m.txt"
    np.savetxt(path, values, fmt="%.18e")
    assert sniff(path) == "lsmat"
    np.testing.assert_array_equal(matrix(path), values)
    for mark in (" ", "\t", ","):  # write.table: quoted names, no corner
        lines = [mark.join(f'"n ""{k}"' for k in range(4))]
        lines += [mark.join([f'"n ""{k}"', *map(repr, row)]) for k, row in enumerate(values.tolist())]
        path = write(tmp_path, "\r\n".join(lines) + "\r\n", f"r{ord(mark)}.txt")
        source = opened(path)
        assert list(source.ids or ()) == [f'n "{k}' for k in range(4)]
        np.testing.assert_array_equal(source.block(EVERYTHING, EVERYTHING), values)


def test_byte_order_mark_and_no_last_newline(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf,\xc3\xa4,b\r\n\xc3\xa4,0,1\r\nb,1,0")
    source = opened(path, "csv")
    assert list(source.ids or ()) == ["ä", "b"]
    np.testing.assert_array_equal(source.block(EVERYTHING, EVERYTHING), [[0, 1], [1, 0]])


@pytest.mark.parametrize("text", ["0", "0.0\n", "\ta\na\t0\n", "a\t0\n"])
def test_one_object(tmp_path: Path, text: str) -> None:
    np.testing.assert_array_equal(matrix(write(tmp_path, text)), [[0.0]])


def test_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = symmetric(60)
    path = tmp_path / "m.tsv"
    ids = [f"s{k}" for k in range(60)]
    pd.DataFrame(values, ids, ids).to_csv(path, sep="\t")
    monkeypatch.setattr(streams, "CHUNK", 9000)
    monkeypatch.setattr(text_matrix, "BATCH", 3000)
    np.testing.assert_array_equal(matrix(path), values)


@settings(max_examples=40, deadline=None)
@given(
    values=st.integers(1, 6).flatmap(lambda n: hnp.arrays(np.float64, (n, n), elements=st.floats(width=64))),
    mark=st.sampled_from(",\t;"),
)
def test_float64_survives(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray, mark: str) -> None:
    folder = tmp_path_factory.mktemp("exact")
    ids = [f"i{k}" for k in range(len(values))]
    rows = [mark.join([name, *map(repr, row)]) for name, row in zip(ids, values.tolist(), strict=True)]
    path = write(folder, "\n".join([mark.join(["", *ids]), *rows]))
    np.testing.assert_array_equal(matrix(path), values)


def test_fields_that_only_python_reads(tmp_path: Path) -> None:
    path = write(tmp_path, " , a, b\na, 0, +1.5\nb , +1.5, 0\n")
    source = opened(path)
    assert list(source.ids or ()) == ["a", "b"]
    np.testing.assert_array_equal(source.block(EVERYTHING, EVERYTHING), [[0, 1.5], [1.5, 0]])


def test_gzip_and_qza(tmp_path: Path) -> None:
    text = b"\ta\tb\na\t0\t0.25\nb\t0.25\t0\n"
    packed = write(tmp_path, gzip.compress(text[:10]) + gzip.compress(text[10:]), "m.tsv.gz")
    assert sniff(packed) == "lsmat"
    source = opened(packed)
    np.testing.assert_array_equal(source.block(EVERYTHING, EVERYTHING), [[0, 0.25], [0.25, 0]])
    assert source.checksum == f"crc32c: {google_crc32c.value(packed.read_bytes()):08x}"
    qza = tmp_path / "m.qza"
    with zipfile.ZipFile(qza, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("0a1b/VERSION", "QIIME 2\n")
        file.writestr("0a1b/data/distance-matrix.tsv", text)
        file.writestr("0a1b/provenance/data/distance-matrix.tsv", "nothing")
    np.testing.assert_array_equal(matrix(qza, "qza"), [[0, 0.25], [0.25, 0]])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.qza", "m.tsv.gz", "scratch"]


def imported(path: Path, ids: str | list[str]) -> Matrix:
    return import_matrix(path, kind="distance", ids=ids, reading=Reading(format="lsmat"))


def test_given_ids_take_the_place_of_names(tmp_path: Path) -> None:
    path = write(tmp_path, "\ta\tb\na\t0\t1\nb\t1\t0\n")
    names = write(tmp_path, "first\nsecond\n\n", "names.txt")
    assert list(imported(path, str(names)).ids) == ["first", "second"]
    assert list(imported(path, ["p", "q"]).ids) == ["p", "q"]
    with pytest.raises(InputError, match="3 ids for 2 objects"):
        imported(path, ["p", "q", "r"])
    with pytest.raises(InputError, match="same in another order: object 0 is a in it, and b by the ids") as error:
        imported(path, ["b", "a"])
    assert error.value.text().endswith("leave ids out")


def test_a_finished_spool_is_used_again(tmp_path: Path) -> None:
    path = write(tmp_path, "\ta\tb\na\t0\t1\nb\t1\t0\n")
    opened(path).close()
    values = tmp_path / "scratch" / "values.f8"
    before = values.stat()
    assert opened(path).ids == ["a", "b"]
    assert (values.stat().st_ino, values.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    path.write_text("\ta\tb\na\t0\t7\nb\t7\t0\n")
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(matrix(path), [[0, 7], [7, 0]])


def test_a_failed_spool_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, "\ta\tb\na\t0\t1\nb\t1\tx\n")
    for _ in range(2):
        with pytest.raises(InputError, match="line 3, column 3"):
            opened(path)
    assert not (tmp_path / "scratch" / "finished.json").exists()


# --- PHYLIP


LOWER = [[], [0.5], [0.25, 1.0], [2.0, 3.0, 4.0]]
FULL = np.array([[0, 0.5, 0.25, 2], [0.5, 0, 1, 3], [0.25, 1, 0, 4], [2, 3, 4, 0]])
NAMES = ["a", "genome b.fa", "c", "d"]


def phylip(rows: list[list[float]], mark: str = "\t", count: str = "4", end: str = "", names: list[str] = NAMES) -> str:
    lines = [mark.join([name, *(f"{x:g}" for x in row)]) + end for name, row in zip(names, rows, strict=True)]
    return "\n".join([count, *lines]) + "\n"


WITH_DIAGONAL = [[*row, 0.0] for row in LOWER]


@pytest.mark.parametrize(
    "text",
    [
        phylip(FULL.tolist()),
        phylip(FULL.tolist(), count="\t4"),
        phylip(FULL.tolist(), end="\t"),
        phylip(LOWER),
        phylip(LOWER, count="  4 "),
        phylip(LOWER, end="\t"),
        phylip(WITH_DIAGONAL),
        phylip(FULL.tolist(), mark="  ", names=["a", "b", "c", "d"]),
        phylip(LOWER, mark=" ", names=["a", "b", "c", "d"]),
        phylip(WITH_DIAGONAL, mark=" ", names=["a", "b", "c", "d"]),
        phylip(FULL.tolist(), mark=" ", names=["Homo sapie", "Pan       ", "Gorilla go", "Pongo"]),
        "4\nHomo sapie0 0.5 0.25 2\nPan       0.5 0 1 3\nGorilla go0.25 1 0 4\nPongo     2 3 4 0\n",
        "   4\na  0 0.5\n   0.25 2\nb  0.5 0 1\n  3\nc  0.25 1\n 0 4\nd 2\n 3\n 4 0\n",
    ],
)  # fmt: skip
def test_phylip(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text, "m.phy")
    assert sniff(path) == "phylip"
    source = opened(path, "phylip")
    assert source.n_objects == 4
    np.testing.assert_array_equal(source.block(EVERYTHING, EVERYTHING), FULL)
    np.testing.assert_array_equal(source.block(slice(0, 2), slice(2, 4)), FULL[0:2, 2:4])
    np.testing.assert_array_equal(source.block(slice(1, 3), slice(1, 4)), FULL[1:3, 1:4])


def test_phylip_names(tmp_path: Path) -> None:
    lower, square = opened(write(tmp_path, phylip(LOWER), "l.phy"), "phylip"), None
    assert list(lower.ids or ()) == NAMES
    assert not lower.mirrored
    text = "2\nHomo sapie 0 1\nPan_trogloextra 1 0\n"
    square = opened(write(tmp_path, text, "s.phy"), "phylip")
    assert list(square.ids or ()) == ["Homo sapie", "Pan_trogloextra"]
    assert square.mirrored


def test_lower_and_square_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK", 5000)
    monkeypatch.setattr(text_matrix, "BATCH", 1500)
    values = symmetric(40)
    names = [f"g{k}" for k in range(40)]
    lines = [(name, [repr(x) for x in row]) for name, row in zip(names, values.tolist(), strict=True)]
    square = write(tmp_path, "40\n" + "".join("\t".join([a, *b]) + "\n" for a, b in lines), "s.phy")
    lower = write(tmp_path, "40\n" + "".join("\t".join([a, *b[:k]]) + "\n" for k, (a, b) in enumerate(lines)), "l.phy")
    one, other = opened(square, "phylip"), opened(lower, "phylip")
    other_values = other.block(EVERYTHING, EVERYTHING)
    np.testing.assert_array_equal(other_values, values)
    # The scratch folder is shared here, so read the square again.
    np.testing.assert_array_equal(opened(square, "phylip").block(EVERYTHING, EVERYTHING), other_values)
    assert list(one.ids or ()) == list(other.ids or ())


def test_similarities_without_diagonal(tmp_path: Path) -> None:
    path = write(tmp_path, phylip(LOWER), "m.phy")
    with pytest.raises(InputError, match=r"m\.phy: the triangle has no diagonal, and kind similarity .* --diagonal"):
        opened(path, "phylip", "similarity")


# --- errors


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("lsmat", "", "the file is empty"),
        ("lsmat", "\n \n", "the file is empty"),
        ("lsmat", "\ta\tb\na\t0\t1\nb\t1\n", "line 3 has 2 fields where 3 are expected .* header at line 1"),
        ("lsmat", "\ta\tb\na\t0\t1\t2\nb\t1\t0\n", "line 3 has 3 fields where 4 are expected"),
        ("lsmat", "\ta\tb\na\t0\t1\nb\t1\t0\t5\n", "line 3 has 4 fields where 3 are expected"),
        ("lsmat", "0,1,2\n1,0\n2,3,0\n", "line 2 has 2 fields where 3 are expected"),
        ("lsmat", "\ta\tb\na\t0\tx\nb\t1\t0\n", r"line 2, column 3 \(b\): 'x' is not a number"),
        ("lsmat", "0,1\n1_0,0\n", "line 2, column 1: '1_0' is not a number"),
        ("lsmat", "\ta\tb\na\t0\t\x1b[31m\nb\t1\t0\n", r"'\\\\x1b\[31m' is not a number"),
        ("lsmat", "\ta\tb\tc\na\t0\t1\t2\nb\t1\t0\t3\n", "2 rows for the 3 columns of the header .* cut short"),
        ("lsmat", "\ta\tb\n", "0 rows for the 2 columns of the header at line 1: the file is cut short"),
        ("lsmat", "0,1,2\n1,0,3\n", "2 rows for 3 columns: a matrix must be square"),
        ("lsmat", "0,5\n5,0\n2,3\n", "3 rows for 2 columns: a matrix must be square"),
        ("lsmat", "0,1\n1,0\n2,3\n4,5\n", "line 4: more than 2 rows"),
        ("lsmat", "\ta\tb\na\t0\t1\nb\t1\t0\nc\t2\t2\n", "line 4: more rows than the 2 columns of the header"),
        ("lsmat", "\ta\tb\na\t0\t1\nc\t1\t0\n", "line 3: the row is named c, but its column in the header is b"),
        ("lsmat", "\ta\ta\na\t0\t1\na\t1\t0\n", "line 3: id a was met before, at line 2"),
        ("lsmat", "a,a\n0,1\n1,0\n", "header: id a is there twice"),
        ("lsmat", "\ta\t\na\t0\t1\n\t1\t0\n", "line 3, column 1: the id is empty"),
        ("lsmat", b"\ta\t\xff\na\t0\t1\n\xff\t1\t0\n", r"line 1: \\xff is not UTF-8"),
        ("lsmat", b"a\t0\t1\n\xe9\t1\t0\n", r"line 2: \\xe9 is not UTF-8"),
        ("lsmat", "\t\n", "0 rows for the 1 column"),
        ("phylip", "", "the file is empty"),
        ("phylip", "\ta\tb\n", "begins with the number of objects"),
        ("phylip", "0\n", r"no objects \(n = 0\)"),
        ("phylip", "99999999\na\nb\t1\n", "claims 99,999,999 objects, which its 15 bytes cannot hold; it is cut short"),
        ("phylip", "3\n", "0 rows for the 3 objects that line 1 announces"),
        ("phylip", "3\na\t0\t1\t2\nb\t1\t0\t3\n", "2 rows for the 3 objects that line 1 announces: .* cut short"),
        ("phylip", "3\na\nb\t1\nc\t1\n", "line 4 has 2 fields where 3 are expected"),
        ("phylip", "2\na\nb\t1\nc\t1\t2\n", "line 4: more rows than the 2 objects"),
        ("phylip", "4\na\t0\t1\t2\nb\t1\t0\t3\nc\t1\t0\t3\n", "line 2: the first row has 3 values; of 4 objects"),
        ("phylip", "2\na 0 1\nb 1 y\n", "line 3, column 3: 'y' is not a number"),
        ("phylip", "3\na\nb 1\nc \ufeff 2\n", r"line 4, column 2: '\\\\ufeff' is not a number"),
        ("phylip", "2\na\t0\t1\na\t1\t0\n", "line 3: id a was met before, at line 2"),
    ],
)  # fmt: skip
def test_errors(tmp_path: Path, form: str, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        opened(path, form)
    assert "\n" not in str(caught.value)
    assert "matrix.txt" in str(caught.value)


def test_damaged_files(tmp_path: Path) -> None:
    text = b"\ta\tb\na\t0\t0.25\nb\t0.25\t0\n"
    packed = gzip.compress(text)
    with pytest.raises(InputError, match=r"cut\.gz: the compressed file ends too early"):
        opened(write(tmp_path, packed[:-9], "cut.gz"))
    flipped = packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]
    with pytest.raises(InputError, match=r"bad\.gz: damaged compressed file"):
        opened(write(tmp_path, flipped, "bad.gz"))
    with pytest.raises(InputError, match=r"no\.qza: cannot be read as a zip"):
        opened(write(tmp_path, text, "no.qza"), "qza")
    other = tmp_path / "other.qza"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("0a1b/data/feature-table.biom", "x")
    with pytest.raises(InputError, match=r"other\.qza: no <uuid>/data/distance-matrix\.tsv .*feature-table\.biom"):
        opened(other, "qza")
    good = tmp_path / "good.qza"
    with zipfile.ZipFile(good, "w") as file:
        file.writestr("0a1b/data/distance-matrix.tsv", text)
    content = good.read_bytes()
    with pytest.raises(InputError, match=r"broken\.qza: damaged compressed file"):
        opened(write(tmp_path, content.replace(b"0.25\t0\n", b"0.26\t0\n"), "broken.qza"), "qza")
    with pytest.raises(InputError, match=r"absent\.txt: cannot be read: No such file"):
        opened(tmp_path / "absent.txt")


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK", 1000)
    monkeypatch.setattr(streams, "LONGEST_LINE", 5000)
    with pytest.raises(InputError, match="line 1 is longer than"):
        opened(write(tmp_path, b"1" * 20_000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", None),
        (b"\x89HDF\r\n\x1a\n\0\0", None),
        (b"just words\nand more words here\n", None),
        (b"0.5\n0.25\n0.125\n", None),
        (b"a\tb\t0.5\n", "pairs"),
        (b"a\tb\t0.5\na\tc\t0.25\n", "pairs"),
        (b"a,b,0.5\nb,c,0.25\n", "pairs"),
        (b"source,target,distance\na,b,0.25\n", "pairs"),
        (b"i,j,d\n0,1,0.5\n0,2,0.25\n1,2,1\n", "pairs"),
        (b"0 1 0.5\n0 2 0.25\n1 2 0.75\n", "pairs"),
        (b"0 1 0.5\n0 2 0.25\n1 2 0.75\n2 3 0.5\n", "pairs"),
        (b"0 1 2\n1 0 3\n2 3 0\n", "lsmat"),
        (b"q1\tt1\t0.98\t100\t2\t0\t1\t100\t1\t100\t1e-50\t200\n" * 2, "pairs"),
        (b"1\t2\t0.98\t100\t2\t0\t1\t100\t1\t100\t1e-50\t200\n" * 2, "pairs"),
        (b"Ref_file\tQuery_file\tANI\tAlign_fraction_ref\na.fa\tb.fa\t98.1\t77\n", "pairs"),
        (b"# mash\na.fna\tb.fna\t0.02\t0\t600/1000\nb.fna\tc.fna\t0.03\t0\t600/1000\n", "pairs"),
        (b"id,a,b\na,0,1\nb,1,0\n", "lsmat"),
        (b"a,b\n0,1\n1,0\n", "lsmat"),
        (b"0,1\n1,0\n", "lsmat"),
        (b"\t3\na\nb\t1\nc\t1\t2\n", "phylip"),
    ],
)
def test_sniff(tmp_path: Path, text: bytes, expected: str | None) -> None:
    assert sniff(write(tmp_path, text)) == expected
    assert sniff(write(tmp_path, gzip.compress(text), "m.gz")) == expected
