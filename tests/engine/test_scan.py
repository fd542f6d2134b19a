"""The scan: any shape against a dense computation, the same bits everywhere, every tile read once, clear refusals."""

import operator
import os
import shutil

import dask
import dask.array as da
import dask.threaded
import numpy as np
import pytest
import zarr
from dask.system import CPU_COUNT
from hypothesis import given, settings, strategies as st

import dasrel
from dasrel.engine.reduce import Plan
from dasrel.engine.relation import LeftProducts, left_products, product_consumer, product_shape, relation
from dasrel.engine.scan import FOLD_BYTES, build_graph, needed_memory, network_bytes, run_here, scan
from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.kernels.products import View
from dasrel.store.array_matrix import ArrayMatrix
from dasrel.store.layout import Layout
from tests.helpers.matrices import squared_of, symmetric
from tests.helpers.scans import reduction
from tests.helpers.stores import create_store, files, stored


def viewed(D, steps):
    """The dense oracle of the views, as K14 and F10 write them."""
    eye = np.eye(len(D), dtype=bool)
    for name, a in steps:
        if name == "power":
            D = D**a
        elif name == "exponential":
            D = np.expm1(-a * np.sqrt(D)) ** 2  # 1 - exp(-x) without its rounding at small x
        elif name == "log":
            D = (np.log1p(np.sqrt(D) ** a) / np.log(2)) ** 2
        elif name == "gaussian":
            D = np.exp(-D / (2 * a**2))
        elif name == "spread":
            D = np.where(eye, D, D + a)
    return D


STEPS = st.lists(
    st.tuples(st.sampled_from(["power", "exponential", "log", "spread", "gaussian"]), st.floats(0.1, 2.0)),
    max_size=3,
)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(
    n=st.integers(2, 60),
    parts=st.integers(1, 7),
    k=st.integers(1, 9),
    kind=st.sampled_from(["distance", "squared-distance", "similarity", "kernel"]),
    steps=STEPS,
    seed=st.integers(0, 99),
)
def test_any_shape_kind_and_view_equals_the_dense_oracle(n, parts, k, kind, steps, seed):
    values = symmetric(n, seed, kind)
    tile = -(-n // parts)
    V = np.random.default_rng(seed).normal(size=(n, k))
    found = relation(ArrayMatrix(values, kind, tile=tile))
    for name, a in steps:
        found = getattr(found, name)(a)
    expected = viewed(squared_of(values, kind), steps)
    np.testing.assert_allclose(found.matmat(V), expected @ V, rtol=1e-9, atol=1e-9 * np.abs(expected).max() * n)
    np.testing.assert_allclose(found.diagonal(), np.diagonal(expected), atol=1e-12)
    assert found.largest() >= np.abs(expected).max() * (1 - 1e-9)
    np.testing.assert_allclose(found.rows([n - 1, 0]), expected[[n - 1, 0]], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("compress", [None, "lz4"])
@pytest.mark.parametrize("kind", ["distance", "similarity"])
def test_float32_stores_stay_within_the_error_bound(tmp_path, compress, kind):
    """float32 products of at most `tile` terms, float64 sums: |error| <= tile eps32 |F(D)| |V| for every element."""
    values = symmetric(300, 3, kind).astype(np.float32).astype(np.float64)
    matrix = stored(tmp_path / "d.zarr", values, kind, tile=77, compress=compress)
    V = np.random.default_rng(0).normal(size=(300, 5))
    D = squared_of(values, kind)
    scale = np.abs(values).max() * 4 if kind == "similarity" else 1.0
    bound = (matrix.tile + 4) * np.finfo(np.float32).eps * ((np.abs(D) + scale) @ np.abs(V))
    assert (np.abs(relation(matrix).matmat(V) - D @ V) <= bound).all()


def test_float64_stores_stay_float64(tmp_path):
    values = symmetric(200, 1)
    matrix = stored(tmp_path / "d.zarr", values, dtype="float64", tile=64)
    V = np.random.default_rng(0).normal(size=(200, 3))
    np.testing.assert_allclose(relation(matrix).matmat(V), values**2 @ V, rtol=1e-12, atol=1e-12)


def test_permuting_objects_permutes_results():
    values = symmetric(90, 5)
    order = np.random.default_rng(1).permutation(90)
    V = np.random.default_rng(2).normal(size=(90, 4))
    plain = relation(ArrayMatrix(values, "distance", tile=32)).matmat(V)
    mixed = relation(ArrayMatrix(values[np.ix_(order, order)], "distance", tile=32)).matmat(V[order])
    np.testing.assert_allclose(mixed, plain[order], rtol=1e-12)


@pytest.mark.parametrize("scheduled", [True, False])
def test_threads_beyond_the_cores_only_while_tiles_are_waited_for(tmp_path, monkeypatch, scheduled):
    requested = []
    by_dask, without = dask.threaded.get, run_here
    monkeypatch.setattr("dasrel.engine.scan.SMALL", 0)
    if scheduled:
        monkeypatch.setattr("dasrel.engine.scan.UNSCHEDULED", 0)
        monkeypatch.setattr(
            dask.threaded, "get", lambda *of, pool: requested.append(pool._max_workers) or by_dask(*of, num_workers=2)
        )
    else:
        monkeypatch.setattr(
            "dasrel.engine.scan.run_here", lambda *of, threads: requested.append(threads) or without(*of, threads=2)
        )
    values = symmetric(100)
    matrix = stored(tmp_path / "d.zarr", values, tile=32)
    for sums in (relation(matrix).row_sums() for _ in range(2)):
        np.testing.assert_allclose(sums, (values**2).sum(axis=1), rtol=1e-5)
    assert requested == [CPU_COUNT, CPU_COUNT]  # what is read ahead is waited for by others
    relation(stored(tmp_path / "z.zarr", values, tile=32, compress="lz4")).row_sums()
    relation(values, kind="distance").row_sums()
    np.save(tmp_path / "d.npy", values)
    relation(np.load(tmp_path / "d.npy", mmap_mode="r"), kind="distance").row_sums()
    with dask.config.set(num_workers=5):
        relation(matrix).row_sums()
    assert requested[2:] == [CPU_COUNT + 2, CPU_COUNT, CPU_COUNT + 2, 5]


def test_the_same_bits_for_any_number_of_threads_with_and_without_a_scheduler(tmp_path, monkeypatch):
    monkeypatch.setattr("dasrel.engine.scan.SMALL", 0)  # on several threads though the matrix is small
    matrix = stored(tmp_path / "d.zarr", symmetric(500, 2), tile=48)
    U = np.random.default_rng(0).random((7, 500))
    means = reduction(_mean, _half_way)  # not associative: only the same tree gives the same bits
    results = []
    for most in (0, matrix.layout.total_bytes):  # bytes of a matrix that is scanned without Dask's scheduler
        monkeypatch.setattr("dasrel.engine.scan.UNSCHEDULED", most)
        for threads in (1, 2, 4, 7):
            with dask.config.set(num_workers=threads):
                (product,), mean = scan(matrix, [product_consumer(matrix, [(View("distance"), U)]), means])
                results.append((product, mean))
    assert all((product == results[0][0]).all() and mean == results[0][1] for product, mean in results)


def _mean(tile, on_diagonal):
    return float(tile.mean(dtype=np.float64))


def _half_way(first, second):
    return (first + second) / 2


def test_a_prepared_scan_checks_memory_once_and_takes_any_columns(tmp_path, monkeypatch):
    values = symmetric(150, 4)
    seen = relation(stored(tmp_path / "d.zarr", values, tile=40, dtype="float64"))
    estimated = []
    monkeypatch.setattr("dasrel.engine.scan.needed_memory", lambda *of: estimated.append(of) or needed_memory(*of))
    prepared = LeftProducts([(seen, 3), (seen.spread(2.0), 1)])
    rng = np.random.default_rng(0)
    with dasrel.watch() as meter:
        for _ in range(3):
            U, one = rng.normal(size=(3, 150)), rng.normal(size=(1, 150))
            first, second = prepared.run([U, one])
            np.testing.assert_allclose(first, U @ values**2, rtol=1e-12, atol=1e-12)
            spread = values**2 + 2.0 * (1 - np.eye(150))
            np.testing.assert_allclose(second, one @ spread, rtol=1e-12, atol=1e-12)
    assert (meter.scans, meter.tiles, len(estimated)) == (3, 3 * len(seen.matrix.layout.tiles()), 1)
    with pytest.raises(InputError, match=r"\[3, 1\] columns cannot be run with \[3, 2\]"):
        prepared.run([U, np.ones((2, 150))])
    with pytest.raises(InputError, match="NaN or infinite"):
        prepared.run([U, np.full((1, 150), np.nan)])


def test_a_prepared_scan_that_does_not_fit_reads_nothing(tmp_path):
    seen = relation(stored(tmp_path / "d.zarr", symmetric(150, 4), tile=40))
    prepared = LeftProducts([(seen, 3)], memory=1000)
    with dasrel.watch() as meter, pytest.raises(MemoryLimitError, match="a scan needs"):
        prepared.run([np.ones((3, 150))])
    assert (meter.scans, meter.tiles) == (0, 0)


def test_the_number_of_parts_folded_in_a_task_does_not_change_bits(tmp_path, monkeypatch):
    seen = relation(stored(tmp_path / "d.zarr", symmetric(300, 2), tile=20))
    U = np.random.default_rng(0).random((7, 300))
    plain = seen.left(U)
    monkeypatch.setattr("dasrel.engine.scan.FOLD_BYTES", 1)
    assert FOLD_BYTES > 1
    assert (seen.left(U) == plain).all()


def test_one_product_is_one_scan_and_reads_each_tile_once(tmp_path, monkeypatch):
    matrix = stored(tmp_path / "d.zarr", symmetric(200, 0), tile=48)
    reads = []
    original = type(matrix.files).read

    def read(self, i, j, **options):
        reads.append((i, j))
        return original(self, i, j, **options)

    monkeypatch.setattr(type(matrix.files), "read", read)
    seen = relation(matrix)
    consumer = product_consumer(matrix, [(seen.view, np.ones((2, 200)))])
    build_graph(Plan(matrix.layout), matrix.files, {}, [consumer], lambda tiles, size: None)
    assert reads == []
    with dasrel.watch() as meter:
        seen.matmat(np.ones((200, 3)))
    assert sorted(reads) == matrix.layout.tiles()
    assert (meter.scans, meter.tiles, meter.bytes) == (1, 15, 15 * 48 * 48 * 4)


def test_everybody_shares_one_scan(tmp_path):
    values = symmetric(150, 4)
    matrix = stored(tmp_path / "d.zarr", values, tile=40, dtype="float64")
    base = relation(matrix)
    U = np.random.default_rng(0).normal(size=(3, 150))
    edges = np.linspace(0, 1, 11)
    histogram = reduction(Histogram(edges), operator.add)
    ends = reduction(extremes, lambda x, y: (min(x[0], y[0]), max(x[1], y[1])))
    products = product_consumer(matrix, [(base.view, U), (base.gaussian(0.5).view, U), (base.view, U[:1])])
    with dasrel.watch() as meter:
        (plain, kernel, first), counts, (low, high) = scan(matrix, [products, histogram, ends])
    assert (meter.scans, meter.tiles) == (1, len(matrix.layout.tiles()))
    np.testing.assert_allclose(plain, U @ values**2, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(first, plain[:1], rtol=1e-12)
    np.testing.assert_allclose(kernel, U @ np.exp(-(values**2) / 0.5), rtol=1e-12, atol=1e-12)
    above = values[np.triu_indices(150, 1)]
    np.testing.assert_array_equal(counts, np.histogram(above, edges)[0])
    assert (low, high) == (above.min(), above.max())


def extremes(tile, on_diagonal):
    values = tile[np.triu_indices(len(tile), 1)] if on_diagonal else tile
    return values.min(initial=np.inf), values.max(initial=-np.inf)


class Histogram:
    def __init__(self, edges):
        self.edges = edges

    def __call__(self, tile, on_diagonal):
        return np.histogram(tile[np.triu_indices(len(tile), 1)] if on_diagonal else tile, self.edges)[0]


def test_several_relations_in_one_scan_with_spread_and_a_term(tmp_path):
    values = symmetric(80, 6)
    base = relation(ArrayMatrix(values, "distance", tile=33))
    extra = symmetric(80, 7)

    class Extra:
        def left(self, U):
            return U @ extra

        def diagonal(self):
            return np.diagonal(extra)

        def largest(self):
            return np.abs(extra).max()

    U = np.random.default_rng(0).normal(size=(2, 80))
    with dasrel.watch() as meter:
        spread, summed = left_products([(base.spread(3.0), U), (base.plus(Extra(), 2.5), U)])
    assert meter.scans == 1
    np.testing.assert_allclose(spread, U @ (values**2 + 3 * (1 - np.eye(80))), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(summed, U @ (values**2 + 2.5 * extra), rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match="cannot follow a term"):
        base.plus(Extra(), 1.0).power(0.5)
    with pytest.raises(InputError, match="same matrix"):
        left_products([(base, U), (relation(values, kind="distance"), U)])


def test_views_write_nothing(tmp_path, monkeypatch):
    """No transformed matrix comes to be, in the store or in a scratch folder."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    seen = relation(stored(tmp_path / "d.zarr", symmetric(80, 6), tile=33))
    before = files(tmp_path)
    U = np.random.default_rng(0).normal(size=(2, 80))
    for view in (seen.power(0.5), seen.log(1.0), seen.gaussian(2.0), seen.kernel_distance(2.0), seen.spread(3.0)):
        view.left(U)
        view.gram(U.T)
    assert files(tmp_path) == before


def test_centred_gram_product_row_sums_and_mean():
    values = symmetric(70, 8)
    D = values**2
    P = np.eye(70) - 1 / 70
    seen = relation(values, kind="distance")
    V = np.random.default_rng(0).normal(size=(70, 3))
    np.testing.assert_allclose(seen.gram(V), -0.5 * P @ D @ P @ V, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(seen.row_sums(), D.sum(axis=0), rtol=1e-12)
    assert seen.mean() == pytest.approx(D.mean())
    np.testing.assert_allclose(seen.matmat(V[:, 0]), D @ V[:, 0], rtol=1e-12)


def test_arrays_of_every_sort_need_no_store(tmp_path):
    values = symmetric(60, 9)
    np.save(tmp_path / "d.npy", values)
    stored = zarr.create_array(str(tmp_path / "plain.zarr"), shape=values.shape, chunks=(17, 23), dtype="float64")
    stored[:] = values
    V = np.random.default_rng(0).normal(size=(60, 2))
    mapped = np.load(tmp_path / "d.npy", mmap_mode="r")
    for array in (values, mapped, stored, da.from_array(values, chunks=(13, 29)), values.tolist()):
        np.testing.assert_allclose(relation(array, kind="distance").matmat(V), values**2 @ V, rtol=1e-12)
    whole = np.round(values * 10).astype(np.int64)
    np.testing.assert_allclose(relation(whole, kind="distance").matmat(V), (whole**2) @ V, rtol=1e-12)


def test_directly_given_arrays_are_checked_like_an_import():
    values = symmetric(50, 0)
    for spoil, message in [
        (lambda a: (a.__setitem__((3, 7), np.nan), a.__setitem__((7, 3), np.nan)), "missing values"),
        (lambda a: a.__setitem__((3, 7), 5.0), "asymmetric"),
        (lambda a: a.__setitem__((4, 4), 1.0), "diagonal is not zero"),
        (lambda a: (a.__setitem__((3, 7), -1.0), a.__setitem__((7, 3), -1.0)), "negative"),
        (lambda a: (a.__setitem__((3, 7), np.inf), a.__setitem__((7, 3), np.inf)), "infinite"),
    ]:
        bad = values.copy()
        spoil(bad)
        with pytest.raises(InputError, match=message) as caught:
            relation(bad, kind="distance")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="square"):
        relation(values[:, :10], kind="distance")
    with pytest.raises(InputError, match=r"squared-distance.*similarity.*kernel"):
        relation(values)
    with pytest.raises(InputError, match="give numbers"):
        relation(values.astype(str), kind="distance")


def test_wrong_columns_are_refused_before_reading(tmp_path):
    matrix = stored(tmp_path / "d.zarr", symmetric(40, 0), tile=16)
    seen = relation(matrix)
    bad = np.ones((40, 2))
    bad[3, 1] = np.nan
    with dasrel.watch() as meter:
        with pytest.raises(InputError, match=r"shape \(39, 2\)"):
            seen.matmat(np.ones((39, 2)))
        with pytest.raises(InputError, match="NaN or infinite"):
            seen.matmat(bad)
    assert (meter.scans, meter.tiles) == (0, 0)


def test_values_beyond_float32_products_are_refused():
    huge = symmetric(10, 0).astype(np.float32) * np.float32(1e20)
    with pytest.raises(InputError, match="rescale"):
        relation(huge, kind="distance")
    assert relation(huge.astype(np.float64), kind="distance").matmat(np.ones(10)).max() > 1e39


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (os.unlink, "is missing"),
        (lambda path: os.truncate(path, 100), "has 100 bytes instead of"),
        (lambda path: flip(path), "is corrupt"),
    ],
)
def test_a_bad_tile_is_named_with_its_file_and_objects(tmp_path, spoil, message):
    matrix = stored(tmp_path / "d.zarr", symmetric(100, 0), tile=48)
    spoil(matrix.files.file(0, 2))
    with pytest.raises(StoreError, match=message) as caught:
        relation(matrix).matmat(np.ones(100))
    report = str(caught.value)
    assert "tile (0, 2)" in report
    assert "values/c/0/2" in report
    assert "objects 0 to 47 against 96 to 99" in report
    assert "audit" in report


def flip(path):
    """Change one byte and keep the size."""
    with open(path, "r+b") as file:
        file.seek(8)
        byte = file.read(1)
        file.seek(8)
        file.write(bytes([byte[0] ^ 1]))


def test_a_tile_that_rots_between_scans_is_noticed(tmp_path):
    matrix = stored(tmp_path / "d.zarr", symmetric(100, 0), tile=48)
    relation(matrix).matmat(np.ones(100))
    flip(matrix.files.file(1, 1))
    with pytest.raises(StoreError, match="corrupt"):
        relation(matrix).matmat(np.ones(100))


def test_an_unfinished_store_is_refused(tmp_path):
    create_store(tmp_path / "d.zarr", n_objects=10, kind="distance")
    with pytest.raises(StoreError, match="resume=True"):
        relation(tmp_path / "d.zarr")


def test_memory_is_predicted_and_refused_before_the_first_read(tmp_path):
    matrix = stored(tmp_path / "d.zarr", symmetric(400, 0), tile=128)
    U = np.ones((50, 400))
    refusal = pytest.raises(MemoryLimitError, match=r"a scan needs .* limit is 102 kB")
    with dasrel.watch() as meter, refusal as caught:
        relation(matrix).left(U, memory="100kiB")
    assert meter.scans == 0
    assert "fewer columns" in str(caught.value)
    relation(matrix).left(U, memory="64MiB")


def test_the_plan_for_a_million_objects_without_data():
    """Task counts in the thousands, and what travels below a tenth of the tiles: 4 k / (g t)."""
    layout = Layout(1_000_000, 4096, np.dtype("float32"))
    plan = Plan(layout)
    assert plan.group_side == 4
    covered = sum(len(plan.tiles(group)) for group in plan.groups())
    assert covered == len(layout.tiles())

    class Million:
        kind, diagonal = "squared-distance", None

    source = Million()
    source.layout = layout
    U = np.lib.stride_tricks.as_strided(np.zeros(1), shape=(150, 1_000_000), strides=(0, 0))
    consumer = product_consumer(source, [(View("squared-distance"), U)])
    shape = product_shape(source, [(View("squared-distance"), 150)])
    travel = network_bytes(source, [shape], 64)
    sums = layout.total_bytes * 4 * 150 / (4 * 4096)  # 4 k / (g t) of the tiles
    assert travel.workers == pytest.approx(sums + 61 * 4 * 150 * 10**6, rel=0.05)
    # 152 columns are multiplied, and the last strip counts as a whole one.
    assert travel.caller == pytest.approx((4 + 8) * 150 * 10**6, rel=0.03)
    lazy = type(consumer)(consumer.kernel, consumer.finish, part_bytes=consumer.part_bytes)
    graph, wanted = build_graph(plan, None, {}, [lazy], lambda tiles, size: None)
    assert 1_000 < len(graph) < 10_000
    assert len(wanted[0]) == plan.strips == 62


def test_progress_tells_scans_tiles_and_bytes(tmp_path):
    matrix = stored(tmp_path / "d.zarr", symmetric(200, 0), tile=48)
    events = []
    with dasrel.watch(events.append):
        relation(matrix).matmat(np.ones(200))
        relation(matrix).matmat(np.ones(200))
    last = events[-1]
    assert (last.label, last.scans, last.tiles, last.tiles_total) == ("scan", 2, 15, 15)
    assert last.bytes == last.bytes_total == matrix.layout.total_bytes
    assert {event.scans for event in events} == {1, 2}


def test_blas_threads_are_limited_while_a_scan_runs_and_given_back(tmp_path):
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads(*ignored):
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    matrix = stored(tmp_path / "d.zarr", symmetric(60, 0), tile=16)
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        during = scan(matrix, [reduction(threads, set.union)])[0]
        assert during == {1}
        assert threads() == before == {2}


def test_a_store_that_moved_away_says_so(tmp_path):
    matrix = stored(tmp_path / "d.zarr", symmetric(30, 0), tile=16)
    shutil.rmtree(tmp_path / "d.zarr")
    with pytest.raises(StoreError, match="was removed or replaced"):
        relation(matrix).matmat(np.ones(30))


@pytest.mark.parametrize("memory", ["lots", "", "MB", "-1GB", True, float("inf"), -5])
def test_memory_that_is_no_size_is_refused(memory):
    with pytest.raises(InputError, match="give a number of bytes, or such as 2GB"):
        scan(ArrayMatrix(symmetric(6), "distance"), [], memory=memory)
