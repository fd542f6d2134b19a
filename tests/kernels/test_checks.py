"""The checks and repairs of one tile, against plain NumPy on the whole matrix."""

import numpy as np
import pytest

from dasrel.errors import InputError
from dasrel.kernels import checks
from dasrel.kernels.checks import TileStatistics, column_sums
from dasrel.store.options import Policy

F32, F64 = np.dtype("float32"), np.dtype("float64")


def square(n: int, seed: int = 0) -> np.ndarray:
    """Symmetric, positive, zero diagonal."""
    a = np.random.default_rng(seed).random((n, n)) + 0.1
    a = (a + a.T) / 2
    np.fill_diagonal(a, 0)
    return a


def diagonal_tile(a, *, kind="distance", dtype=F64, policy=None, ids=None):
    ids = ids or [f"o{k}" for k in range(len(a))]
    return checks.check_tile(a, None, place=(0, 0), kind=kind, dtype=dtype, policy=policy or Policy(), ids=ids)


def off_tile(a, m, *, kind="distance", dtype=F64, policy=None):
    """The tile of the first m rows against the rest."""
    ids = [f"o{k}" for k in range(len(a))]
    return checks.check_tile(
        a[:m, m:], a[m:, :m], place=(0, m), kind=kind, dtype=dtype, policy=policy or Policy(), ids=ids
    )


@pytest.mark.parametrize("n", [2, 511, 512, 513, 1300])
def test_a_good_tile_is_kept_bit_for_bit(n):
    a = square(n).astype(np.float32)
    tile, record = diagonal_tile(a, dtype=F32)
    np.testing.assert_array_equal(tile, a)
    upper = a[np.triu_indices(n, 1)]
    assert (record.minimum, record.maximum, record.pairs) == (upper.min(), upper.max(), upper.size)
    assert record.total == pytest.approx(upper.sum(dtype=np.float64), rel=1e-6)  # rows are summed in float32
    assert (record.zeros, record.asymmetry, record.diagonal_minimum, record.diagonal_maximum) == (0, 0, 0, 0)


def test_an_off_diagonal_tile_is_compared_with_its_mirror():
    a = square(1100)
    tile, record = off_tile(a, 600)
    np.testing.assert_array_equal(tile, a[:600, 600:])
    assert record.pairs == 600 * 500
    a[1000, 5] += 0.25
    with pytest.raises(InputError, match=r"asymmetric: 1 pair .*o5 \(object 5\) and o1000 \(object 1000\).*symmetrize"):
        off_tile(a, 600)


@pytest.mark.parametrize("how", ["mean", "mean-square", "max"])
def test_symmetrize_as_numpy_does(how):
    a = np.random.default_rng(1).random((700, 700))
    np.fill_diagonal(a, 0)
    expected = {"mean": (a + a.T) / 2, "mean-square": np.sqrt((a**2 + a.T**2) / 2), "max": np.maximum(a, a.T)}[how]
    policy = Policy(symmetrize=how)
    tile, record = diagonal_tile(a, policy=policy)
    np.testing.assert_allclose(tile, expected, rtol=1e-15)
    np.testing.assert_array_equal(tile, tile.T)
    difference = np.abs(a - a.T)
    assert record.asymmetry == difference.max()
    row, column = int(record.asymmetry_row), int(record.asymmetry_column)
    assert difference[row, column] == difference.max()
    assert row < column
    assert record.asymmetric == np.count_nonzero(np.triu(difference > 0))
    tile, _ = off_tile(a, 300, policy=policy)
    np.testing.assert_allclose(tile, expected[:300, 300:], rtol=1e-15)


def test_rounding_is_no_asymmetry_but_is_recorded_and_the_tile_is_symmetric():
    a = square(40).astype(np.float32)
    a[20, 3] = np.nextafter(a[20, 3], np.float32(9))
    tile, record = diagonal_tile(a, dtype=F32)
    np.testing.assert_array_equal(tile, tile.T)
    assert tile[20, 3] == a[3, 20]
    assert (record.asymmetric, record.asymmetry) == (0, np.abs(a - a.T).max())


@pytest.mark.parametrize(("how", "expected"), [("mean", 2.5e38), ("mean-square", 6.5e76**0.5)])
def test_mean_of_two_large_values_stays_finite(how, expected):
    a = np.array([[0, 3e38], [2e38, 0]], dtype=np.float32)
    tile, _ = diagonal_tile(a, dtype=F32, policy=Policy(symmetrize=how))
    assert tile[0, 1] == pytest.approx(expected)


def test_the_mean_square_keeps_the_bits_of_equal_values_and_hides_no_negative_one():
    a = square(40)
    a[3, 20] += 0.5
    tile, _ = diagonal_tile(a, policy=Policy(symmetrize="mean-square"))
    same = a == a.T
    np.testing.assert_array_equal(tile[same], a[same])
    assert tile[3, 20] == tile[20, 3] == pytest.approx(np.sqrt((a[3, 20] ** 2 + a[20, 3] ** 2) / 2))
    a[5, 6] = -1e-7
    with pytest.raises(InputError, match="negative"):
        diagonal_tile(a, policy=Policy(symmetrize="mean-square"))
    tile, record = diagonal_tile(a, policy=Policy(symmetrize="mean-square", clip_negative=1e-6))
    assert (tile[5, 6], tile[6, 5], record.clipped) == (0, 0, 1)


def test_missing_is_an_error_that_names_the_pair():
    a = square(5)
    a[1, 3] = a[3, 1] = np.nan
    with pytest.raises(
        InputError, match=r"missing values.*o1 \(object 1\) and o3 \(object 3\).*Policy\(missing=VALUE\)"
    ):
        diagonal_tile(a)


def test_missing_is_filled_with_a_value_and_counted_once_per_pair():
    a = square(600)
    a[1, 3] = a[3, 1] = a[10, 590] = a[590, 10] = np.nan
    tile, record = diagonal_tile(a, policy=Policy(missing=0.75))
    np.testing.assert_array_equal(tile, np.where(np.isnan(a), 0.75, a))
    assert record.missing == 2
    assert record.missing_places[:4] == (1, 3, 10, 590)
    assert record.pairs == 600 * 599 / 2


def test_missing_pairs_wait_for_the_maximum_and_hide_no_other_flaw():
    a = square(6)
    a[1, 3] = a[3, 1] = np.nan
    tile, record = diagonal_tile(a, policy=Policy(missing="max"))
    assert np.isnan(tile[1, 3])
    assert np.isnan(tile[3, 1])
    assert (record.pairs, record.missing) == (14, 1)
    known = a[np.triu_indices(6, 1)]
    assert record.total == pytest.approx(np.nansum(known))
    for value, message in ((np.inf, "infinite"), (-0.5, "negative")):
        b = a.copy()
        b[0, 2] = b[2, 0] = value
        with pytest.raises(InputError, match=message):
            diagonal_tile(b, policy=Policy(missing="max"))


def test_a_missing_diagonal_of_distances_is_zero_when_missing_is_named():
    a = square(5)
    np.fill_diagonal(a, np.nan)
    for policy in (Policy(missing=0.5), Policy(missing="max")):
        tile, record = diagonal_tile(a, policy=policy)
        np.testing.assert_array_equal(np.diagonal(tile), 0)
        assert record.missing == 0
    with pytest.raises(InputError, match="missing"):
        diagonal_tile(a)


def test_one_direction_only():
    a = square(5)
    a[3, 1] = np.nan
    for policy in (Policy(), Policy(missing=0.5), Policy(missing="max")):
        with pytest.raises(InputError, match=r"in one direction only.*o1.*o3.*Policy\(symmetrize='mean'\)"):
            diagonal_tile(a, policy=policy)
    tile, record = diagonal_tile(a, policy=Policy(symmetrize="mean"))
    assert tile[1, 3] == tile[3, 1] == a[1, 3]
    assert record.missing == 0


def test_clip_negative():
    a = square(600)
    a[2, 4] = a[4, 2] = -1e-9
    with pytest.raises(InputError, match=r"negative.*o2 .*o4 .*= -1e-09.*Policy\(clip_negative=TOL\)"):
        diagonal_tile(a)
    with pytest.raises(InputError, match="negative"):
        diagonal_tile(a, policy=Policy(clip_negative=1e-10))
    tile, record = diagonal_tile(a, policy=Policy(clip_negative=1e-8))
    np.testing.assert_array_equal(tile, np.maximum(a, 0))
    assert (record.clipped, record.lowest_clipped, record.zeros) == (1, -1e-9, 1)
    assert record.zero_places[:2] == (2, 4)


def test_infinite_in_either_half_is_named():
    for place in ((0, 4), (4, 0)):
        a = square(5)
        a[place] = np.inf
        with pytest.raises(InputError, match=r"infinite values: o0 \(object 0\) and o4 \(object 4\) = inf"):
            off_tile(a, 2)


def test_diagonal():
    a = square(5)
    a[3, 3] = 0.01
    with pytest.raises(InputError, match=r"diagonal is not zero: 1 object .*o3.*0.01.*Policy\(diagonal='zero'\)"):
        diagonal_tile(a)
    tile, record = diagonal_tile(a, policy=Policy(diagonal="zero"))
    assert tile[3, 3] == 0
    assert record.diagonal_maximum == 0.01


def test_a_similarity_handed_over_as_a_distance():
    with pytest.raises(InputError, match="largest value of its row, as in a similarity"):
        diagonal_tile(1 - square(5))
    tile, record = diagonal_tile(1 - square(5), kind="similarity")
    np.testing.assert_array_equal(tile, 1 - square(5))
    assert record.diagonal_minimum == 1


def test_too_large_for_float32():
    a = square(3)
    a[0, 1] = a[1, 0] = 1e39
    with pytest.raises(InputError, match=r"too large for float32.*Writing\(dtype='float64'\)"):
        diagonal_tile(a, dtype=F32)
    assert diagonal_tile(a)[0][0, 1] == 1e39


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", ">f4", "float16"])
def test_any_real_dtype(dtype):
    a = np.zeros((4, 4), dtype=dtype)
    a[0, 1] = a[1, 0] = 1
    tile, record = diagonal_tile(a, dtype=F32)
    np.testing.assert_array_equal(tile, a.astype(np.float32))
    assert (record.zeros, record.maximum) == (5, 1)


def test_record_round_trip_and_merge():
    record = TileStatistics(
        minimum=1, maximum=2, total=3, pairs=4, zero_places=(0, 1, 2, 3, -1, -1), source_checksum=2**32 - 1
    )
    assert TileStatistics.from_row(record.to_row()) == record
    other = TileStatistics(minimum=0, maximum=1, total=1, pairs=1, asymmetry=0.5, asymmetry_row=7, asymmetry_column=9,
                   zero_places=(4, 5, 6, 7, -1, -1))  # fmt: skip
    both = record.merged(other)
    assert (both.minimum, both.maximum, both.total, both.pairs) == (0, 2, 4, 5)
    assert (both.asymmetry, both.asymmetry_row, both.asymmetry_column) == (0.5, 7, 9)
    assert both.zero_places == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "bad", [{"symmetrize": "min"}, {"missing": np.inf}, {"missing": "min"}, {"clip_negative": -1}, {"diagonal": "one"}]
)
def test_policies_are_checked(bad):
    with pytest.raises(InputError):
        Policy(**bad)


def test_policies_without_meaning_for_a_kind():
    for policy in (Policy(missing="max"), Policy(diagonal="zero"), Policy(clip_negative=1)):
        with pytest.raises(InputError, match="no meaning for kind kernel"):
            policy.check_kind("kernel")
    with pytest.raises(InputError, match="negative"):
        Policy(missing=-1.0).check_kind("distance")
    Policy(missing=-1.0).check_kind("similarity")


needs_compiled = pytest.mark.skipif(
    checks._native_checks() is None,
    reason="no C compiler when dasrel was installed, or a processor without AVX2 or NEON",
)


def both_ways(monkeypatch, upper, lower, kind="similarity", policy=None):
    """What the check of a tile off the diagonal comes to, with the compiled pass and without: bytes, or a message."""
    ids = [f"o{k}" for k in range(sum(upper.shape))]
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(checks, "_native_checks", lambda: None)
            try:
                tile, record = checks.check_tile(
                    upper, lower, place=(0, upper.shape[0]), kind=kind, dtype=upper.dtype, policy=policy or Policy(),
                    ids=ids,
                )  # fmt: skip
                found.append((tile.tobytes(), record.to_row().tobytes()))
            except InputError as error:
                found.append(str(error))
    assert found[0] == found[1]
    return found[0]


# The compiled pass works on blocks of 256 rows and 64 columns, in vectors of 8 or 4: shapes on both sides of each.
SHAPES = [(1, 1), (1, 9), (9, 1), (3, 5), (8, 8), (33, 64), (255, 300), (256, 65), (257, 63), (600, 70)]


@needs_compiled
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("shape", SHAPES)
def test_with_and_without_the_compiled_pass(shape, dtype, monkeypatch):
    rng = np.random.default_rng(shape[0])
    wide = (rng.standard_normal((shape[0], shape[1] + 5)) * 10.0 ** rng.integers(-9, 9, (shape[0], 1))).astype(dtype)
    upper = wide[:, 2 : 2 + shape[1]]  # rows that do not follow each other closely, or begin anywhere
    lower = np.ascontiguousarray(upper.T)
    for mirror in (lower, None):
        tile, row = both_ways(monkeypatch, upper, mirror)
        assert tile == upper.tobytes()
        record = TileStatistics.from_row(np.frombuffer(row))
        assert (record.minimum, record.maximum, record.pairs) == (upper.min(), upper.max(), upper.size)
        exact = np.abs(upper).sum(dtype=np.float64)
        assert record.total == pytest.approx(upper.sum(dtype=np.float64), abs=1e-12 * exact)
    both_ways(monkeypatch, np.asfortranarray(upper), lower)
    assert "negative" in both_ways(monkeypatch, upper - abs(upper.max()) - 1, None, kind="distance")


@needs_compiled
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("shape", [(9, 9), (257, 67)])
def test_every_flaw_is_seen_by_the_compiled_pass(shape, dtype, monkeypatch):
    """In the middle, in what is left over of blocks and vectors, and on either side of the diagonal."""
    good = np.random.default_rng(2).random(shape).astype(dtype) + dtype.type(1)
    rows, columns = {0, 3, shape[0] // 2, shape[0] - 1}, {0, 5, shape[1] // 2, shape[1] - 1}
    words = {"asymmetric": 7, "one direction": np.nan, "infinite": np.inf}
    for r in rows:
        for c in columns:
            for word, value in words.items():
                upper, lower = good.copy(), good.T.copy()
                upper[r, c] = value
                assert word in both_ways(monkeypatch, upper, lower)
                upper[r, c], lower[c, r] = good[r, c], value
                assert word in both_ways(monkeypatch, upper, lower)
            upper = good.copy()
            upper[r, c] = np.nan
            assert "missing" in both_ways(monkeypatch, upper, upper.T.copy())
            _, row = both_ways(monkeypatch, upper, upper.T.copy(), "distance", Policy(missing="max"))
            record = TileStatistics.from_row(np.frombuffer(row))
            assert (record.pairs, record.missing) == (good.size - 1, 1)
            assert record.total == pytest.approx(np.nansum(upper, dtype=np.float64), rel=1e-12)


@needs_compiled
def test_the_sign_of_zero_is_not_kept_in_records(monkeypatch):
    for zeros in ([0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]):
        upper = np.tile(np.array(zeros, np.float32), (20, 40))
        tile, row = both_ways(monkeypatch, upper, None)
        assert tile == upper.tobytes()
        assert not np.signbit(np.frombuffer(row)[:3]).any()


@pytest.mark.parametrize("width", [1, 2, 7, 20_000])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_columns_are_summed_row_by_row(width, dtype):
    rng = np.random.default_rng(width)
    band = (rng.random((256, width)) * 10.0 ** rng.integers(-12, 12, (256, width))).astype(dtype)
    sums = np.zeros(width)
    for row in band:
        sums += row
    np.testing.assert_array_equal(column_sums(band), sums)
    taken = checks._taken(band, None, np.empty_like(band))
    if taken is not None:
        np.testing.assert_array_equal(taken[3], sums)
