"""Lists of pairs."""

import gzip
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from dasrel.errors import InputError
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.io.readers import fields, pair_list, records as triplets, stream as streams
from dasrel.io.readers.pair_list import open_pairs
from dasrel.io.readers.parquet import open_parquet
from dasrel.io.readers.source import Source
from dasrel.store.options import Policy

EVERYTHING = slice(None)
NAN = np.nan


needs_compiled = pytest.mark.skipif(
    streams.library() is None, reason="no C compiler when dasrel was installed: lists are read field by field"
)


@pytest.fixture(params=["compiled", "not compiled"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "not compiled":
        monkeypatch.setattr(streams, "library", lambda: None)


def opened(path: Path, kind: str = "distance", duplicates: str = "error", **reading: object) -> Source:
    policy = Policy(duplicates=duplicates)  # type: ignore[arg-type]
    scratch = path.parent / f"scratch {path.name}"
    opener = open_parquet if path.suffix == ".parquet" else open_pairs
    return opener(path, Reading(format="pairs", **reading), kind, policy).spool(scratch)  # type: ignore[arg-type]


def write(folder: Path, text: str | bytes, name: str = "pairs.tsv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def whole(source: Source) -> np.ndarray:
    return source.block(EVERYTHING, EVERYTHING)


Triple = tuple[str, str, float]


def reference(rows: list[Triple], ids: list[str], duplicates: str) -> np.ndarray:
    """The matrix by way of a dict of lists."""
    found: dict[tuple[str, str], list[float]] = {}
    for a, b, x in rows:
        if x == x:
            found.setdefault((a, b), []).append(x)
    how = {"mean": lambda v: sum(v) / len(v), "min": min, "max": max, "last": lambda v: v[-1], "error": lambda v: v[0]}
    values = np.full((len(ids), len(ids)), NAN)
    for (a, b), several in found.items():
        values[ids.index(a), ids.index(b)] = how[duplicates](several)
    return values


def appearance(rows: list[Triple]) -> list[str]:
    return list(dict.fromkeys(name for a, b, _ in rows for name in (a, b)))


def test_both_directions(tmp_path: Path) -> None:
    path = write(tmp_path, "# a list\nb\ta\t0.5\n\na\tb\t0.75\na\tc\t1\n# more\nc\tc\t0\n")
    source = opened(path)
    assert list(source.ids or ()) == ["b", "a", "c"]
    assert source.mirrored
    np.testing.assert_array_equal(whole(source), [[0, 0.5, NAN], [0.75, 0, 1], [NAN, NAN, 0]])
    assert source.checksum == f"crc32c: {google_crc32c.value(path.read_bytes()):08x}"
    source.close()
    with pytest.raises(InputError, match="closed"):
        whole(source)


@pytest.mark.parametrize("text", ["a,b,1\na,c,2\nb,c,3\n", "b,a,1\na,c,2\nc,b,3\n", "c b 3\n  b   a 1\nc a 2"])
def test_a_triangle_needs_no_policy(tmp_path: Path, text: str) -> None:
    source = opened(write(tmp_path, text))
    assert not source.mirrored
    ids = list(source.ids or ())
    a, b, c = (ids.index(name) for name in "abc")
    expected = np.zeros((3, 3))
    for i, j, x in ((a, b, 1), (a, c, 2), (b, c, 3)):
        expected[i, j] = expected[j, i] = x
    np.testing.assert_array_equal(whole(source), expected)
    np.testing.assert_array_equal(source.block(slice(0, 1), slice(1, 3)), expected[0:1, 1:3])


@pytest.mark.parametrize("duplicates", ["mean", "min", "max", "last"])
def test_repeated_pairs(tmp_path: Path, duplicates: str) -> None:
    rows = [("a", "b", 4.0), ("b", "a", 8.0), ("a", "b", 1.0), ("a", "b", 2.5), ("c", "c", 0.0), ("b", "a", NAN)]
    path = write(tmp_path, "".join(f"{a}\t{b}\t{x}\n" for a, b, x in rows))
    expected = reference(rows, ["a", "b", "c"], duplicates)
    np.fill_diagonal(expected, 0)
    np.testing.assert_array_equal(whole(opened(path, duplicates=duplicates)), expected)
    with pytest.raises(
        InputError, match=r"pairs\.tsv: 1 pair .*: such as a and b \(4, 1, 2\.5\); say Policy\(duplicates='mean'\)"
    ):
        whole(opened(path))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh"), st.floats(0, 9) | st.just(NAN)),
        min_size=1,
        max_size=60,
    ),
    duplicates=st.sampled_from(["mean", "min", "max", "last"]),
)
def test_any_list(tmp_path_factory: pytest.TempPathFactory, rows: list[Triple], duplicates: str) -> None:
    """Blocks of two objects and runs of a few lines, so that a small list has many of both."""
    path = write(tmp_path_factory.mktemp("any"), "".join(f"{a},{b},{x!r}\n" for a, b, x in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triplets, "SIDE", 2)
        patch.setattr(pair_list, "CHUNK", 40)
        source = opened(path, duplicates=duplicates)
        ids = appearance(rows)
        assert list(source.ids or ()) == ids
        expected = reference(rows, ids, duplicates)
        both = ~np.isnan(expected) & ~np.isnan(expected.T)
        np.fill_diagonal(both, False)
        assert source.mirrored == both.any()
        if not source.mirrored:
            expected = np.where(np.isnan(expected), expected.T, expected)
        own = np.diagonal(expected)
        np.fill_diagonal(expected, np.where(np.isnan(own), 0, own))
        np.testing.assert_allclose(whole(source), expected, rtol=1e-15)
        for r in range(0, len(ids), 3):
            for c in range(r if not source.mirrored else 0, len(ids), 3):
                block = source.block(slice(r, r + 3), slice(c, c + 3))
                np.testing.assert_allclose(block, expected[r : r + 3, c : c + 3], rtol=1e-15)


def test_shuffled_over_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real blocks: 2,500 objects are three a side; runs and chunks of the file are many."""
    random = np.random.default_rng(3)
    n, m = 2500, 60_000
    cells = random.choice(n * n, m, replace=False)
    rows, columns, values = cells // n, cells % n, random.random(m)
    monkeypatch.setattr(pair_list, "CHUNK", 200_000)
    text = "".join(f"o{a}\to{b}\t{x!r}\n" for a, b, x in zip(rows, columns, values.tolist(), strict=True))
    ids = [f"o{k}" for k in range(n)]
    source = opened(write(tmp_path, text), ids=ids)
    assert source.n_objects == n
    expected = np.full((n, n), NAN)
    expected[rows, columns] = values
    own = np.diagonal(expected)
    np.fill_diagonal(expected, np.where(np.isnan(own), 0, own))
    np.testing.assert_array_equal(whole(source), expected)
    np.testing.assert_array_equal(source.block(slice(900, 2100), slice(1000, 2400)), expected[900:2100, 1000:2400])


def test_given_ids(tmp_path: Path) -> None:
    path = write(tmp_path, "b\ta\t1\n")
    source = opened(path, ids=["a", "x", "b"])
    np.testing.assert_array_equal(whole(source), [[0, NAN, 1], [NAN, 0, NAN], [1, NAN, 0]])
    with pytest.raises(InputError, match=r"pairs\.tsv: line 1: b is not among the given ids"):
        opened(path, ids=["a", "c"])
    with pytest.raises(InputError, match="an empty or a repeated name"):
        opened(path, ids=["a", "b", "a"])


def test_self_pairs_of_similarities(tmp_path: Path) -> None:
    path = write(tmp_path, "a\tb\t5\na\ta\t9\nc\tb\t1\n")
    with pytest.raises(InputError, match="kind similarity needs each object's value with itself, and b, c have none"):
        opened(path, "similarity")
    path = write(tmp_path, "a\tb\t5\na\ta\t9\nb\tb\t8\n", "full.tsv")
    np.testing.assert_array_equal(whole(opened(path, "similarity")), [[9, 5], [5, 8]])


def test_self_pairs_that_a_list_of_similarities_leaves_out(tmp_path: Path) -> None:
    path = write(tmp_path, "a\tb\t5\na\ta\t9\nc\tb\t1\na\tc\t2\n")
    policy = Policy(diagonal=9.0)
    matrix = import_matrix(path, tmp_path / "store", kind="similarity", policy=policy)
    assert matrix.manifest["input"]["diagonal"] == 9
    np.testing.assert_array_equal(matrix.diagonal, [9, 9, 9])
    np.testing.assert_array_equal(matrix.to_dask().compute()[np.triu_indices(3)], [9, 5, 2, 9, 1, 9])
    assert matrix.audit["missing"]["count"] == 0
    other = Policy(diagonal=10.0)
    with pytest.raises(InputError, match=r"is there and differs: 1 object of this block, e\.g\. a \(object 0\): 9"):
        import_matrix(path, tmp_path / "other", kind="similarity", policy=other)
    with pytest.raises(InputError, match="is for similarities and kernels: a distance of an object to itself is 0"):
        import_matrix(path, tmp_path / "other", kind="distance", policy=policy)
    incomplete = write(tmp_path, "a\tb\t5\nc\tb\t1\n", "incomplete.tsv")  # a filled diagonal is no missing pair
    filled = import_matrix(incomplete, tmp_path / "filled", kind="similarity", policy=Policy(diagonal=9.0, missing=0.0))
    assert filled.audit["missing"] == {"count": 1, "examples": [["a", "c"]]}


def test_layouts(tmp_path: Path) -> None:
    expected = [[0, 0.25], [0.25, 0]]
    m8 = "q\tt\t0.25\t100\t2\t0\t1\t100\t1\t100\t1e-50\t200\n"
    np.testing.assert_array_equal(whole(opened(write(tmp_path, m8, "a"))), expected)
    bits = opened(write(tmp_path, m8, "b"), columns=("query", "target", "bits"))
    np.testing.assert_array_equal(whole(bits), [[0, 200], [200, 0]])
    skani = "Ref_file\tQuery_file\tANI\tAlign_fraction_ref\na b.fa\tc.fa\t0.25\t77\n"
    source = opened(write(tmp_path, skani, "c"))
    assert list(source.ids or ()) == ["a b.fa", "c.fa"]
    np.testing.assert_array_equal(whole(source), expected)
    mash = "a.fa\tb.fa\t0.25\t0\t600/1000\n"
    np.testing.assert_array_equal(whole(opened(write(tmp_path, mash, "d"))), expected)
    named = 'when,"value, in m",to,from\r\n1,0.25,"b ""2""","a,1"\r\n'
    for columns in (("from", "to", "value, in m"), (4, 3, 2), ("4", "to", 2)):
        source = opened(write(tmp_path, named, f"e{columns[0]}"), columns=columns)
        assert list(source.ids or ()) == ["a,1", 'b "2"']
        np.testing.assert_array_equal(whole(source), expected)
    comment = "# from to weight\nNA b 0.25\n"
    source = opened(write(tmp_path, comment, "f"), columns=("from", "to", "weight"))
    assert list(source.ids or ()) == ["NA", "b"]
    spaced = "a, b, +0.25\n"
    source = opened(write(tmp_path, gzip.compress(spaced.encode()), "g.gz"))
    assert list(source.ids or ()) == ["a", "b"]
    np.testing.assert_array_equal(whole(source), expected)


@pytest.mark.usefixtures("either_way")
def test_quotes_around_fields_are_no_part_of_them(tmp_path: Path) -> None:
    """As R writes a table; what has a delimiter in quotes, or an empty name, is read field by field."""
    rows = ['"a b","#c",1', 'd,"e","2"', '"d","a b",3']
    source = opened(write(tmp_path, "\n".join(rows) + "\n", "plain.csv"))
    assert list(source.ids or ()) == ["a b", "#c", "d", "e"]
    source = opened(write(tmp_path, "\n".join([*rows, '"x,1","e",4', '"say ""hi""",e,5']) + "\n", "quoted.csv"))
    assert list(source.ids or ()) == ["a b", "#c", "d", "e", "x,1", 'say "hi"']
    block = whole(source)
    assert [block[0, 1], block[2, 3], block[0, 2], block[3, 4], block[3, 5]] == [1, 2, 3, 4, 5]
    with pytest.raises(InputError, match=r"line 4.*the id of the first object is empty"):
        opened(write(tmp_path, "\n".join([*rows, '"",e,4']) + "\n", "empty.csv"))


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    columns = {
        "score": pa.array([1, None, 3], pa.int32()),
        "a": pa.array(["x", "y", "y"]).dictionary_encode(),
        "b": pa.array(["y", "x", "z"], pa.large_string()),
        "number": pa.array([7, 8, 9]),
        "flag": pa.array([True, False, True]),
        "real": pa.array([0.5, 0.25, 0.125], pa.float32()),
    }
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    source = opened(path, columns=("a", "b", "score"))
    assert list(source.ids or ()) == ["x", "y", "z"]
    assert source.checksum is None
    assert not source.mirrored
    np.testing.assert_array_equal(whole(source), [[0, 1, NAN], [1, 0, 3], [NAN, 3, 0]])
    source = opened(path, columns=(4, "a", "real"))
    assert list(source.ids or ()) == ["7", "x", "8", "y", "9"]
    assert whole(source)[4, 3] == 0.125
    for wanted, message in (
        (("a", "b", "flag"), "column flag is of type bool; values must be numbers"),
        (("real", "b", "score"), "column real is of type float; ids must be text or whole numbers"),
        (("a", "b", "missing"), "no column missing; there are columns 1 to 6: score, a, b, number, flag, real"),
        (("a", "a", "score"), "a, a, score are not three different columns"),
        ((0, 1, 2), "no column 0"),
    ):
        with pytest.raises(InputError, match=message):
            opened(path, columns=wanted)
    parquet.write_table(pa.table({"a": ["x", None], "b": ["y", "z"], "v": [1.0, 2.0]}), path)
    with pytest.raises(InputError, match="row 2: the id of the first object is empty"):
        opened(path)
    content = path.read_bytes()
    with pytest.raises(InputError, match=r"cut\.parquet: cannot be read as Parquet"):
        opened(write(tmp_path, content[:-20], "cut.parquet"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"there are no pairs in it \(n = 0\)"),
        ("# nothing\n\n", r"there are no pairs in it \(n = 0\)"),
        ("from\tto\tvalue\n", r"there are no pairs in it \(n = 0\)"),
        ("a\tb\n", "no column 3; there are columns 1 to 2"),
        ("a\tb\t1\n# x\n\na\tc\t1\t2\n", "line 4 has 4 fields where 3 are expected"),
        ("a\tb\t1\na\tc\n", "line 2 has 2 fields where 3 are expected"),
        ("from,to,ident\na,b,95%\na,c,90%\n", r"line 2, column 3 \(ident\): '95%' is not a number: write it without"),
        ("from\tto\tlength\na\tb\t1\na\tc\tfar\n", r"line 3, column 3 \(length\): 'far' is not a number"),
        ("a\tb\t1\na\tc\t1_0\n", "line 2, column 3: '1_0' is not a number"),
        ("a\tb\t1\n\n\t c\t1\n", "line 3: the id of the first object is empty"),
        ("a\tb\t1\nb\t\t1\n", "line 2: the id of the second object is empty"),
        (b"a\tb\t1\n#\na\t\xff\t1\n", "line 3: the id of the second object is not UTF-8"),
    ],
)
@pytest.mark.usefixtures("either_way")
def test_errors(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        opened(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "pairs.tsv: " in str(caught.value)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, "from,to,value\na,b,1\n")
    with pytest.raises(InputError, match="no column weight; there are columns 1 to 3: from, to, value"):
        opened(path, columns=("from", "to", "weight"))
    path = write(tmp_path, "a,b,1\n", "plain")
    with pytest.raises(InputError, match="no column from; there are columns 1 to 3, no names"):
        opened(path, columns=("from", "to", "weight"))


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(b"a\tb\t1\n" * 1000)
    with pytest.raises(InputError, match=r"cut\.gz: the compressed file ends too early"):
        opened(write(tmp_path, packed[:-12], "cut.gz"))


def test_a_finished_spool_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a\tb\t1\na\tb\t3\n")
    opened(path).close()

    def never(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(pair_list, "_text_parts", never)
    np.testing.assert_array_equal(whole(opened(path, duplicates="mean")), [[0, 2], [2, 0]])
    with pytest.raises(AssertionError, match="read again"):
        opened(path, columns=(2, 1, 3))


def test_memory_is_predicted(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "a\tb\t1\n"))
    assert source.block_memory(1000, 1000) > 8_000_000


def parsed(text: bytes, width: int = 3, chosen: tuple[int, int, int] = (0, 1, 2)) -> pair_list.Part | None:
    """Lines as the compiled reader sees them; None if it leaves them to others."""
    layout = pair_list.ListLayout(Path("list"), b"\t", None, width, chosen)
    raw = np.frombuffer(bytearray(text), np.uint8)
    lines = pair_list.Lines(1, raw, text.count(b"\n"))
    return pair_list._parse_plain(layout, raw, lines, streams.BufferPool())


def random_rows(random: np.random.Generator, count: int) -> list[Triple]:
    names = [("ab cd-\u00e9x." * 9)[: random.integers(1, 90)].strip() + str(k) for k in range(60)]
    names += [str(k) for k in range(40)] + ["NA", "nan", "x" * 300]
    chosen = random.integers(0, len(names), (count, 2))
    values = random.random(count) * 10.0 ** random.integers(-30, 30, count)
    return [(names[a], names[b], x) for (a, b), x in zip(chosen.tolist(), values.tolist(), strict=True)]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_lists_have_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delimiter: str, end: str) -> None:
    """Comments, empty lines, absent values, other columns, long and short names, decimals of all kinds."""
    random = np.random.default_rng(len(delimiter + end) + ord(delimiter))
    rows = random_rows(random, 400)
    formats = ["{!r}", "{:.6g}", "{:.3f}", "{:.0f}", "{:.25e}", "{:+.9g}"]
    lines, expected = ["# first", ""], []
    for a, b, x in rows:
        report = (
            formats[random.integers(6)].format(x) if random.random() < 0.95 else str(random.choice(["NA", "", "nan"]))
        )
        lines += [delimiter.join((report, "9", b, "q", a))] + ["# more", ""] * (random.random() < 0.02)
        expected.append((a, b, float(report) if report not in ("NA", "") else NAN))
    monkeypatch.setattr(pair_list, "CHUNK", 700)
    text = "\ufeff" + end.join(lines) + end * int(random.integers(2))
    source = opened(write(tmp_path, text), duplicates="last", columns=(5, 3, 1))
    ids = appearance(rows)
    assert list(source.ids or ()) == ids
    values = reference(expected, ids, "last")
    if not source.mirrored:
        values = np.where(np.isnan(values), values.T, values)
    own = np.diagonal(values)
    np.fill_diagonal(values, np.where(np.isnan(own), 0, own))
    np.testing.assert_array_equal(whole(source), values)


@needs_compiled
def test_decimals_are_the_nearest_doubles() -> None:
    """As Python reads them; among them those that lie half way between two, or need more than 64 bits to be told."""
    random = np.random.default_rng(5)
    texts = ["0", "-0", "0.0", "00012.50", "1.", ".5", "-.5e1", "+7", "1e22", "1e23", "1E-22", "4.35", "0.1", "5e-324",
             "2.4703282292062327e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "9007199254740993",
             "9007199254740992.5", "1.00000000000000011102230246251565", "1.00000000000000011102230246251566",
             "9223372036854775808", "18446744073709551615", "18446744073709551616", "99999999999999999999",
             "0.000000000000000000000000001", "123456789.123456789", "0.12345678", "0.123456789", "1e-400",
             "9007199254740993e5", "9007199254740993e-5", "1234567890123456789e27",
             "1234567890123456789e-27"]  # fmt: skip
    for value in (random.random(3000) * 10.0 ** random.integers(-40, 40, 3000)).tolist():
        texts += [repr(value), f"{value:.17g}", f"{value:.{int(random.integers(0, 20))}e}", f"{-value:.6g}"]
    for low in random.integers(2**53, 2**54, 500, dtype=np.int64).tolist():
        texts += [str(low), f"{low}.5", f"{low}e-7", f"{low | 1}e3"]  # of the odd ones half are ties
    part = parsed("".join(f"a\tb\t{text}\n" for text in texts).encode())
    assert part is not None
    expected = np.array([float(text) for text in texts])
    np.testing.assert_array_equal(part.values.view(np.int64), expected.view(np.int64))
    for words in (" 1.5 ", "1.5 ", " 1.5"):
        part = parsed(f"a\tb\t{words}\n".encode())
        assert part is not None
        assert part.values == [1.5]
    part = parsed("".join(f"a\tb\t{word}\n" for word in fields.MISSING).encode())
    assert part is not None
    assert np.isnan(part.values).all()


@needs_compiled
@pytest.mark.parametrize(
    "text",
    [b"a\tb\t1", b"a\tb\n", b"a\tb\t1\t2\n", b"\tb\t1\n", b"a\t \t1\n", b" \t\t\n", b"a\tb\t1\n \n", b'"a"\tb\t1\n',
     b"a\tb\0\t1\n", b"a\tb\t1\r", b"a\rc\tb\t1\n", b"a\tb\t1\r\r\n", b"a\tb\tinf\n", b"a\tb\t1e999\n", b"a\tb\t1_0\n",
     b"a\tb\t0x1\n", b"a\tb\t1e\n", b"a\tb\t-\n", b"a\tb\t.\n", b"a\tb\t1.2.3\n", b"a\tb\t1,5\n", b"a\tb\t--1\n",
     b"a\tb\t0.1234x6\n", b"a\tb\t1.\xd9\xa1\n", b"a\tb\t" + b"1" * 200 + b"\n"],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_others(text: bytes) -> None:
    assert parsed(b"x\ty\t2\n") is not None
    assert parsed(b"x\ty\t2\n" + text) is None


@needs_compiled
def test_any_bytes_are_survived() -> None:
    """Of random bytes and damaged lists, what is understood is what Python understands."""
    random = np.random.default_rng(7)
    good = "".join(f"{a}\t{b}\t{x!r}\n" for a, b, x in random_rows(random, 30)).encode()
    marks = np.frombuffer(b'\t\n\r"#.e- \0N1a', np.uint8)
    understood = 0
    for _ in range(2000):
        start = good.find(b"\n", int(random.integers(len(good) - 1))) + 1
        piece = good[start : start + int(random.integers(400))]
        cut = piece.rfind(b"\n") + 1 if random.random() < 0.8 else len(piece)
        text = np.frombuffer(bytearray(piece[:cut]), np.uint8)
        where = random.random(text.size) < random.choice([0, 0.005, 0.1])
        text[where] = random.choice(marks, int(where.sum()))
        part = parsed(text.tobytes())
        if part is not None:
            lines = text.tobytes().replace(b"\r\n", b"\n").split(b"\n")
            rows = [line.split(b"\t") for line in lines if line and not line.startswith(b"#")]
            first, second = ([names[k] for k in codes.tolist()] for names, codes in (part.first, part.second))
            assert [row[:2] for row in rows] == [list(pair) for pair in zip(first, second, strict=True)]
            values = [NAN if row[2].strip() in (b"", b"NA") else float(row[2]) for row in rows]
            np.testing.assert_array_equal(part.values, values)
            assert part.first[0] == list(dict.fromkeys(name for row in rows for name in row[:2]))
            understood += len(rows) > 0
    assert understood > 100


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("text", [b"", b"\n", b"a\nbb\n", b"a\r\nbb", b"\xef\xbb\xbfa\n\n\n" + b"c" * 99 + b"\nd"])
def test_a_stream_in_blocks(tmp_path: Path, size: int, text: bytes) -> None:
    """The same lines and numbers as in the file, whatever the size of the blocks."""
    stream, spare = streams.Stream(write(tmp_path, text)), streams.BufferPool()
    found, number = b"", 1
    for first, block, count in stream.blocks(size, spare):
        assert (first, count) == (number, block.tobytes().count(b"\n"))
        assert block[-1] == ord("\n")
        number += count
        found += block.tobytes()
        spare.give(block.base)
    plain = text.removeprefix(streams.BOM)
    assert found == plain + b"\n" * (plain != b"" and not plain.endswith(b"\n"))
    assert stream.checksum() == f"crc32c: {google_crc32c.value(text):08x}"
    stream.close()


@pytest.mark.usefixtures("either_way")
def test_lines_of_blanks_are_no_pairs(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "a\tb\t1\n\t\t\n \t \t \n\t\t\n"))
    np.testing.assert_array_equal(whole(source), [[0, 1], [1, 0]])


@pytest.mark.usefixtures("either_way")
def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LONGEST_LINE", 1000)
    monkeypatch.setattr(pair_list, "CHUNK", 100)
    with pytest.raises(InputError, match="line 2 is longer than"):
        opened(write(tmp_path, "a\tb\t1\n" + "x" * 5000))


@needs_compiled
@pytest.mark.parametrize("side", [1, 3, 1024])
def test_records_are_sorted_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    """With blocks of one object there are more of them than the compiled way takes."""
    random = np.random.default_rng(side)
    names = random.integers(0, 400, (3000, 2)).tolist()
    text = "".join(f"{a}\t{b}\t{'NA' if (a * b) % 7 == 1 else a + b / 1000}\n" for a, b in names)
    monkeypatch.setattr(triplets, "SIDE", side)
    monkeypatch.setattr(pair_list, "CHUNK", 9000)
    found = []
    for way in ("a", "b"):
        opened(write(tmp_path, text, way)).close()
        found.append([(tmp_path / f"scratch {way}" / name).read_bytes() for name in (triplets.RECORDS, triplets.INDEX)])
        monkeypatch.setattr(streams, "library", lambda: None)
    assert found[0] == found[1]
    records = np.frombuffer(found[0][0], triplets.RECORD)
    ids = list(dict.fromkeys(name for pair in names for name in pair))
    expected = [(ids.index(a), ids.index(b), a + b / 1000) for a, b in names if (a * b) % 7 != 1]
    assert sorted(records.tolist()) == sorted(expected)


@pytest.mark.parametrize("delimiter", [" ", "\t"])
def test_a_byte_order_mark_inside_a_file_is_part_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delimiter: str
) -> None:
    """Also where a block begins with it: only that of the whole file is left out."""
    monkeypatch.setattr(pair_list, "CHUNK", 8)
    rows = [("ab", "cd", "1"), ("\ufeffe", '"cd"', "2"), ("\ufefff", '"ab"', "3")]
    text = "".join(delimiter.join(row) + "\n" for row in rows)
    source = opened(write(tmp_path, "\ufeff" + text))
    assert list(source.ids) == ["ab", "cd", "\ufeffe", "\ufefff"]
