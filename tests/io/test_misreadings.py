"""Sources that could be taken for something else: read as what they are, or refused with both readings named."""

import numpy as np
import pytest

from dasrel import Policy, audit_store, relation
from dasrel.errors import InputError
from dasrel.io.append import append
from dasrel.io.importing import import_matrix
from dasrel.io.options import Reading
from dasrel.io.pairwise import pairwise
from dasrel.partition.run import Run
from dasrel.store.audit import audit_lines
from dasrel.store.options import Writing
from tests.helpers.matrices import line_distances

D = line_distances(6, "float64")


def imported(tmp_path, text, *, kind="distance", name="a.tsv", **more):
    (tmp_path / name).write_text(text)
    return import_matrix(
        tmp_path / name, tmp_path / "s.zarr", kind=kind, writing=Writing(dtype="float64", force=True), **more
    )


# ------------------------------------------------------------------------------------------------ matrices and pairs


@pytest.mark.parametrize("names", [("q1", "7"), ("q1", "7", "x"), ("7", "8"), ("1", "b", "c")])
@pytest.mark.parametrize("policy", [None, Policy(missing=1.0, diagonal="zero", symmetrize="max")])
def test_a_column_whose_name_is_a_number(tmp_path, names, policy):
    n = len(names)
    lines = [
        "\t".join(("name", *names)),
        *("\t".join((name, *map(str, row[:n]))) for name, row in zip(names, D[:n], strict=True)),
    ]
    matrix = imported(tmp_path, "\n".join(lines) + "\n", policy=policy)
    assert [str(name) for name in matrix.ids] == list(names)
    np.testing.assert_array_equal(matrix.rows(names), D[:n, :n])


AMBIGUOUS = {
    "a header that names some rows": "x\ta\t5\na\t0\t3\nb\t3\t0\n",
    "two rows of numbers with names": "a\t1\t2\nb\t3\t4\n",
    "whole numbers with one value on the diagonal": "1\t2\t3\n4\t1\t5\n6\t7\t1\n",
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_ambiguous_text_is_refused_with_both_readings(tmp_path, what):
    message = r"can be read as a matrix and as a list of pairs: .*; say Reading\(format='lsmat'\) for a matrix, or"
    with pytest.raises(InputError, match=message + r" Reading\(format='pairs'\) for one pair per line"):
        imported(tmp_path, AMBIGUOUS[what])
    pairs = imported(
        tmp_path, AMBIGUOUS[what], reading=Reading(format="pairs"), policy=Policy(missing=9.0), kind="distance"
    )
    assert pairs.n_objects > 3  # each line is a pair then


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("0\t1\t0.5\n0\t2\t0.75\n1\t2\t0.25\n", 3),  # pairs of numbered objects
        ("a\t1\t0.5\nb\t2\t0.75\nc\t2\t0.25\n", 5),  # of names with numbers
        ("a\tb\t7\nb\tc\t2\na\tc\t3\n", 3),  # a list that continues with the name that it has ended with
    ],
)
def test_lists_of_pairs_are_still_known(tmp_path, text, n):
    assert imported(tmp_path, text, policy=Policy(missing=1.0)).n_objects == n


def test_a_square_of_decimals_that_is_cut_short_is_no_list_of_pairs(tmp_path):
    with pytest.raises(InputError, match="2 rows for 3 columns"):
        imported(tmp_path, "0.000\t0.375\t0.309\n-0\t0.000\t0.267", policy=Policy(missing=0.5, symmetrize="mean"))


def test_rows_with_numbers_as_names_and_a_blank_end_are_no_list_of_pairs(tmp_path):
    text = "0\t0\t0.514\t0.807\n1\t0.514\t0\t0.786\n2\t0.807\t0.786\t0\n\v"
    with pytest.raises(InputError, match="line 4 has 1 field"):
        imported(tmp_path, text, policy=Policy(missing=0.5, symmetrize="mean"))


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("line", ['"', '""', '"a', 'a,",0.5', '0.5 a "b', '0.5\ta\t"b'])
@pytest.mark.parametrize("mark", [" ", "\t", ","])
def test_a_line_of_quotes_is_no_blank_line(tmp_path, mark, line):
    pairs = "".join(mark.join(row) + "\n" for row in (("0.5", "a", "b"), ("0.25", "a", "c"), ("0.75", "b", "c")))
    reading = Reading(format="pairs", columns=("2", "3", "1"))
    assert imported(tmp_path, pairs, reading=reading).n_objects == 3
    for end in ("", "\n"):
        with pytest.raises(InputError, match="line 4"):
            imported(tmp_path, pairs + line + end, reading=reading)


def test_a_name_of_ten_characters_holds_no_value(tmp_path):
    spaced = "3\nleft one  0.00000\nright two 0.60500 0.00000\nthird one 0.57500 0.56900 0.00000\n"
    matrix = imported(tmp_path, spaced, name="a.phy")
    assert [str(name) for name in matrix.ids] == ["left one", "right two", "third one"]
    swapped = "3\n0.0000 a\nb_b 0.6050 0.0000\nc-1 0.5750 0.5690 0.0000\n"
    with pytest.raises(InputError, match=r"line 2: no name of ten characters.*'0.0000 a'; write names without blanks"):
        imported(tmp_path, swapped, name="b.phy")


# ------------------------------------------------------------------------------------------------------ decimal commas

COMMA = r"line \d(, column \d.*)?: '1,5' has a decimal comma: write the file with decimal points \(1.5\)"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", '"";"a";"b"\n"a";"0";"1,5"\n"b";"1,5";"0"\n'),
        ("b.csv", '"","a","b"\n"a","0","1,5"\n"b","1,5","0"\n'),
        ("c.csv", ";a;b\na;0;1,5\nb;1,5;0\n"),
        ("d.csv", '0,"1,5"\n"1,5",0\n'),
        ("e.tsv", "\ta\tb\na\t0\t1,5\nb\t1,5\t0\n"),
        ("f.csv", "a;b;1,5\nb;c;2,5\na;c;1\n"),
        ("g.csv", 'a,b,"1,5"\nb,c,"2,5"\na,c,1\n'),
        ("h.csv", '"",a,b,c\na,0,1,1\nb,1,0,2\nc,1,2,"1,5"\n'),
    ],
)
def test_decimal_commas_are_named(tmp_path, name, text):
    with pytest.raises(InputError, match=COMMA):
        imported(tmp_path, text, name=name)


def test_quoted_fields_are_one_field(tmp_path):
    text = '"","a,1","b ""x"""\n"a,1","0","1.5"\n"b ""x""","1.5",0\n'
    matrix = imported(tmp_path, text, name="a.csv")
    assert [str(name) for name in matrix.ids] == ["a,1", 'b "x"']
    np.testing.assert_array_equal(matrix.rows(list(matrix.ids)), [[0, 1.5], [1.5, 0]])


def test_names_with_commas_between_semicolons(tmp_path):
    matrix = imported(tmp_path, ";1,2-diol;b\n1,2-diol;0;1.5\nb;1.5;0\n", name="a.csv")
    assert [str(name) for name in matrix.ids] == ["1,2-diol", "b"]


# -------------------------------------------------------------------------------------------------- kinds and triangles


@pytest.mark.parametrize("kind", ["similarity", "kernel"])
def test_a_distance_is_no_similarity(tmp_path, kind):
    message = rf"smallest value of its row, as in a distance, but the kind is {kind}: .*; say kind='distance'"
    with pytest.raises(InputError, match=message):
        import_matrix(D, tmp_path / "s.zarr", kind=kind)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("values", [np.ones((4, 4)), np.eye(4), np.full((4, 4), -1.0) + 2 * np.eye(4)])
def test_similarities_that_are_none_of_a_distance(tmp_path, values):
    assert import_matrix(values, tmp_path / "s.zarr", kind="similarity").n_objects == 4


def test_kernels_are_never_refused(tmp_path):
    points = np.random.default_rng(3).normal(size=(5, 2))
    for k, kernel in enumerate((points @ points.T, points[:, :1] @ points[:, :1].T)):
        matrix = import_matrix(kernel, tmp_path / f"{k}.zarr", kind="kernel")
        np.testing.assert_allclose(matrix.rows(range(5)), kernel, rtol=1e-6, atol=1e-7)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("triangle", [np.triu, np.tril])
@pytest.mark.parametrize("tile", [6, 3])
@pytest.mark.parametrize("policy", [Policy(), Policy(symmetrize="mean")])
def test_a_triangle_of_zeros_is_recognised(tmp_path, triangle, tile, policy):
    writing = Writing(tile=tile, dtype="float64")
    with pytest.raises(
        InputError, match=r"one triangle of the matrix is all zeros: .*; say Policy\(symmetrize='max'\)"
    ):
        import_matrix(triangle(D), tmp_path / "s.zarr", kind="distance", policy=policy, writing=writing)
    matrix = import_matrix(
        triangle(D), tmp_path / "s.zarr", kind="distance", policy=Policy(symmetrize="max"), writing=writing
    )
    np.testing.assert_array_equal(matrix.rows(range(6)), D)


def test_other_asymmetry_is_still_averaged(tmp_path):
    a = D.copy()
    a[1, 4] = a[4, 1] + 2
    matrix = import_matrix(a, tmp_path / "s.zarr", kind="distance", policy=Policy(symmetrize="mean"))
    assert matrix.rows([1])[0, 4] == np.float32(a[4, 1] + 1)


# ---------------------------------------------------------------------------------------------- repairs and tiny values


def test_the_audit_shows_a_fill_of_zero(tmp_path):
    a = D.copy()
    a[1, 4] = a[4, 1] = np.nan
    import_matrix(a, tmp_path / "s.zarr", kind="distance", policy=Policy(missing=0.0))
    assert dict(audit_lines(audit_store(tmp_path / "s.zarr")))["repairs allowed"] == "missing 0"
    import_matrix(D, tmp_path / "t.zarr", kind="distance")
    assert dict(audit_lines(audit_store(tmp_path / "t.zarr")))["repairs allowed"] == "none"


def test_values_that_float32_loses(tmp_path):
    with pytest.raises(
        InputError, match=r"values too small for float32: .*; use Writing\(dtype='float64'\), or rescale"
    ):
        import_matrix(1e-60 * D, tmp_path / "s.zarr", kind="distance")
    matrix = import_matrix(1e-60 * D, tmp_path / "s.zarr", kind="distance", writing=Writing(dtype="float64"))
    np.testing.assert_array_equal(matrix.rows(range(6)), 1e-60 * D)


@pytest.mark.parametrize("scale", [1e-160, 1e-170, 1e-200])
def test_squares_that_vanish(tmp_path, scale):
    matrix = import_matrix(scale * D, tmp_path / "s.zarr", kind="distance", writing=Writing(dtype="float64"))
    with pytest.raises(InputError, match=r"squared dissimilarities reach .*, beyond what float64 products can hold"):
        relation(matrix)


def test_equal_objects_are_no_vanished_squares(tmp_path):
    assert relation(import_matrix(np.zeros((4, 4)), tmp_path / "s.zarr", kind="distance")).largest() == 0


@pytest.mark.parametrize("fuzzifier", [1e308, 1e6])
def test_a_fuzzifier_without_meaning(fuzzifier):
    with pytest.raises(InputError, match=r"fuzzifier is .*: memberships of .* are 0 for a computer; give at most"):
        Run("fcm1", 3, fuzzifier=fuzzifier)


@pytest.mark.parametrize("name", ["policy", "reading", "writing"])
def test_a_dict_is_no_option_group(tmp_path, name):
    message = rf"{name} is of type dict; give a dasrel.{name.capitalize()}, such as {name.capitalize()}\(\)"
    with pytest.raises(InputError, match=message):
        import_matrix(D, tmp_path / "s.zarr", kind="distance", **{name: {"missing": 1}})
    if name == "writing":
        with pytest.raises(InputError, match=message):
            pairwise(D, tmp_path / "s.zarr", metric="euclidean", writing={"tile": 3})
    if name == "policy":
        import_matrix(D, tmp_path / "s.zarr", kind="distance")
        with pytest.raises(InputError, match=message):
            append(tmp_path / "s.zarr", np.ones((1, 7)), policy={"missing": 1})
