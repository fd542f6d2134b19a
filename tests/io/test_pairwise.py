"""Features and a metric, or a function of two ranges, into a store."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from scipy.spatial.distance import cdist, pdist, squareform
from sklearn.metrics import pairwise as sk
from sklearn.metrics import pairwise_distances, pairwise_kernels

import dasrel
from dasrel import DasrelError, InputError, MemoryLimitError, Policy, StoreError
from dasrel.features import read_features
from dasrel.metrics import ALIASES, KERNELS, OPTIONS, made_ready, resolve, tile_values
from dasrel.pairwise import from_blocks, pairwise
from dasrel.writer import Writing

N = 45
TILE = 16  # three tiles a side, the last one ragged
DOUBLE = Writing(tile=TILE, dtype="float64")
SINGLE = Writing(tile=TILE)


def numbers(n: int = N, p: int = 6, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, p))


def bits(n: int = N, p: int = 20, seed: int = 0) -> Any:
    found = np.random.default_rng(seed).random((n, p)) < 0.4
    found[:, 0] = True  # no row without ink
    found[:, 1] = False
    return found


def whole(matrix: dasrel.Matrix) -> Any:
    return matrix.to_dask().compute(scheduler="threads")


def files_of(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


# ---- every metric against SciPy and scikit-learn ----

SCIPY = ["braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "euclidean", "hamming",
         "minkowski", "sqeuclidean"]  # fmt: skip
SCIPY_BOOLEAN = ["dice", "jaccard", "rogerstanimoto", "russellrao", "sokalsneath", "yule"]
GONE = {"wminkowski", "kulczynski1", "sokalmichener"}
"""Known to older SciPy only."""


def test_every_name_of_both_libraries_is_known() -> None:
    known = set(OPTIONS) | {alias for others in ALIASES.values() for alias in others}
    with pytest.raises(ValueError, match="metric") as told:
        pairwise_distances(numbers(), metric="no such metric")
    theirs = set(sk.distance_metrics()) - {"precomputed"} | {name for name in known if f"'{name}'" in str(told.value)}
    assert theirs <= known
    assert {"euclidean", "haversine", "nan_euclidean", "yule", "l1"} <= theirs
    for name in known - GONE - {"simpson", "haversine", "nan_euclidean", "l1", "l2", "manhattan"}:
        cdist(np.abs(numbers(40)), np.abs(numbers(40)), name)  # SciPy knows it by this name
    assert {name: set(options) for name, options in KERNELS.items()} == {
        name: set(sk.KERNEL_PARAMS[name]) for name in sk.kernel_metrics()
    }


@pytest.mark.parametrize("metric", [*SCIPY, *SCIPY_BOOLEAN, "jensenshannon"])
@pytest.mark.parametrize("kind", ["distance", "squared-distance"])
def test_metrics_of_scipy(tmp_path: Path, metric: str, kind: str) -> None:
    x = bits() if metric in SCIPY_BOOLEAN else np.abs(numbers()) if metric == "jensenshannon" else numbers()
    expected = cdist(x, x, metric)
    np.fill_diagonal(expected, 0)
    if kind == "squared-distance" and metric != "sqeuclidean":
        expected **= 2
    found = pairwise(x, tmp_path / "s", metric=metric, kind=kind, writing=DOUBLE)
    np.testing.assert_allclose(whole(found), expected, rtol=1e-12, atol=1e-14)
    assert found.kind == kind
    assert found.manifest["provenance"]["stored"] == (
        "squares" if kind == "squared-distance" and metric != "sqeuclidean" else "values"
    )


@pytest.mark.parametrize("metric", ["l1", "l2", "manhattan", "cityblock", "cosine", "euclidean", "matching",
                                    "seuclidean", "mahalanobis", "haversine", "nan_euclidean"])  # fmt: skip
def test_metrics_of_scikit_learn(tmp_path: Path, metric: str) -> None:
    x = numbers()[:, :2] if metric == "haversine" else numbers()
    if metric == "nan_euclidean":
        x[3, 2] = x[40, 1] = np.nan
    theirs = "hamming" if metric == "matching" else metric
    found = whole(pairwise(x, tmp_path / "s", metric=metric, writing=DOUBLE))
    np.testing.assert_allclose(found, pairwise_distances(x, metric=theirs), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.diagonal(found), 0)


@pytest.mark.parametrize(("metric", "options"), [
    ("minkowski", {"p": 3}),
    ("minkowski", {"p": 1.5, "w": [1, 2, 3, 4, 5, 6]}),
    ("euclidean", {"w": [1, 2, 3, 4, 5, 6]}),
    ("cityblock", {"w": [0.5] * 6}),
    ("seuclidean", {"V": [1, 2, 3, 4, 5, 6]}),
    ("mahalanobis", {"VI": np.diag([1.0, 2, 3, 4, 5, 6])}),
])  # fmt: skip
def test_options(tmp_path: Path, metric: str, options: dict[str, Any]) -> None:
    x = numbers()
    found = pairwise(x, tmp_path / "s", metric=metric, metric_options=options, writing=DOUBLE)
    as_arrays = {key: np.asarray(value, float) if key != "p" else value for key, value in options.items()}
    np.testing.assert_allclose(whole(found), cdist(x, x, metric, **as_arrays), rtol=1e-12)
    assert set(found.manifest["provenance"]["options"]) == set(options)


def test_jensen_shannon_of_nearly_equal_rows_is_a_number(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((100, 20))
    x = np.concatenate([x, x * (1 + 1e-15 * np.random.default_rng(1).integers(0, 4, size=x.shape))])
    assert np.isnan(cdist(x, x, "jensenshannon")).any()  # SciPy takes the root of -1e-17
    found = whole(pairwise(x, tmp_path / "s", metric="jensenshannon", writing=Writing(tile=128, dtype="float64")))
    near = found[np.arange(100), np.arange(100) + 100]
    assert near.max() < 1e-7
    theirs = cdist(x, x, "jensenshannon")
    known = ~np.isnan(theirs)
    np.testing.assert_allclose(found[known], theirs[known], rtol=1e-12, atol=1e-7)


@pytest.mark.parametrize("metric", ["seuclidean", "mahalanobis"])
def test_statistics_come_from_all_rows(tmp_path: Path, metric: str) -> None:
    x = numbers() * np.linspace(1, 50, N)[:, None]  # strips of very different variance
    by_tiles = whole(pairwise(x, tmp_path / "tiles", metric=metric, writing=DOUBLE))
    at_once = whole(pairwise(x, tmp_path / "one", metric=metric, writing=Writing(tile=64, dtype="float64")))
    np.testing.assert_allclose(by_tiles, squareform(pdist(x, metric)), rtol=1e-10)
    np.testing.assert_array_equal(by_tiles, at_once)


@pytest.mark.parametrize(("metric", "kind"), [*((name, "kernel") for name in sorted(KERNELS)), ("rbf", "similarity")])
def test_kernels(tmp_path: Path, metric: str, kind: str) -> None:
    x = np.abs(numbers())
    found = pairwise(x, tmp_path / "s", metric=metric, kind=kind, writing=DOUBLE)
    values = whole(found)
    np.testing.assert_allclose(values, pairwise_kernels(x, metric=metric), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(values, values.T)
    np.testing.assert_array_equal(found.diagonal, np.diagonal(values))


def test_kernel_options(tmp_path: Path) -> None:
    x = numbers()
    options = {"gamma": 0.3, "coef0": 2, "degree": 2}
    found = pairwise(x, tmp_path / "s", metric="poly", kind="kernel", metric_options=options, writing=DOUBLE)
    np.testing.assert_allclose(whole(found), (0.3 * x @ x.T + 2) ** 2, rtol=1e-10)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine", "cityblock", "chebyshev", "simpson"])
@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_sparse_features(tmp_path: Path, metric: str, make: Any) -> None:
    x = numbers(p=30) * (np.random.default_rng(5).random((N, 30)) < 0.3)
    x[:, 0] += 1
    x[20:25] = x[5:10]  # duplicates
    x[:, 7] = 2.0
    dense = whole(pairwise(x, tmp_path / "dense", metric=metric, writing=DOUBLE))
    found = whole(pairwise(make(x), tmp_path / "sparse", metric=metric, writing=DOUBLE))
    np.testing.assert_allclose(found, dense, rtol=1e-10, atol=1e-14)
    if metric != "simpson":
        np.testing.assert_allclose(found, cdist(x, x, metric), rtol=1e-10, atol=1e-14)
    if metric in ("euclidean", "sqeuclidean"):
        np.testing.assert_array_equal(np.diagonal(found[20:25, 5:10]), 0)


# ---- the accuracy of Euclidean distances ----


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1.3e-7), ("float64", 1e-11)])
def test_euclidean_is_accurate_wherever_the_objects_lie(
    tmp_path: Path, metric: str, offset: float, dtype: Any, rtol: float
) -> None:
    x = numbers(700, 8) + offset
    x[::7] += 1e6  # two clusters far from each other: no centre is near to both
    x[100:110] = x[300:310]  # duplicates
    x[110:120] = x[310:320] * (1 + 1e-9)  # nearly
    found = whole(pairwise(x, tmp_path / "s", metric=metric, writing=Writing(tile=600, dtype=dtype)))
    np.testing.assert_allclose(found, cdist(x, x, metric), rtol=rtol)
    np.testing.assert_array_equal(np.diagonal(found), 0)
    np.testing.assert_array_equal(np.diagonal(found[100:110, 300:310]), 0)
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.parametrize(("store_dtype", "promised"), [("float32", 1e-9), ("float64", 1e-12)])
def test_the_promised_accuracy_before_rounding(store_dtype: str, promised: float) -> None:
    rng = np.random.default_rng(3)
    worst = 0.0
    for p, offset, spread in [(p, o, s) for p in (8, 64) for o in (0, 1e3, 1e8) for s in (1e-3, 1e-2, 3e-2, 0.1, 1)]:
        x = rng.normal(size=(600, p)) * spread + offset  # at some spread, many pairs are just not computed directly
        x[::2] += rng.normal(size=p)
        metric = made_ready(resolve("sqeuclidean", "distance", None), read_features(x), np.dtype(store_dtype))
        found = tile_values(metric, x, x, same=True, dtype=np.dtype(np.float64))
        expected = cdist(x, x, "sqeuclidean")
        apart = expected > 0
        worst = max(worst, float((np.abs(found - expected)[apart] / expected[apart]).max()))
    assert 0 < worst < promised


def test_euclidean_at_the_ends_of_the_numbers(tmp_path: Path) -> None:
    x = numbers(20, 3)
    tiny = pairwise(x * 1e-150, tmp_path / "tiny", metric="euclidean", writing=DOUBLE)
    np.testing.assert_allclose(whole(tiny), cdist(x, x) * 1e-150, rtol=1e-12)
    huge = pairwise(x * 1e150, tmp_path / "huge", metric="euclidean", writing=DOUBLE)
    np.testing.assert_allclose(whole(huge), cdist(x, x) * 1e150, rtol=1e-12)
    with pytest.raises(InputError, match="too large for float32; use --dtype float64"):
        pairwise(x * 1e150, tmp_path / "single", metric="euclidean", writing=SINGLE)
    assert not (tmp_path / "single").exists()


def test_integer_and_single_features_are_computed_in_double(tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 255, size=(N, 12), dtype=np.uint8)  # 255^2 does not fit into uint8
    found = whole(pairwise(x, tmp_path / "u8", metric="sqeuclidean", writing=DOUBLE))
    np.testing.assert_allclose(found, cdist(x.astype(float), x.astype(float), "sqeuclidean"), rtol=1e-12)
    y = numbers().astype(np.float32) + np.float32(1000)
    found = whole(pairwise(y, tmp_path / "f4", metric="euclidean", writing=DOUBLE))
    np.testing.assert_allclose(found, cdist(y.astype(float), y.astype(float)), rtol=1e-11)


# ---- Simpson ----


def simpson_by_hand(first: Any, second: Any) -> float:
    """Filippone 2009, equations 45 and 46, pixel by pixel."""
    a = b = c = 0
    for one, two in zip(first, second, strict=True):
        a += one > 0.5 and two > 0.5
        b += not one > 0.5 and two > 0.5
        c += one > 0.5 and not two > 0.5
    return 2 - 2 * a / min(a + b, a + c)


@pytest.mark.parametrize("pixels", [5, 64, 100, 256])
def test_simpson(tmp_path: Path, pixels: int) -> None:
    images = np.random.default_rng(pixels).random((40, pixels)) ** 1.5
    images[:, 2] = 0.9  # some ink in every image
    images[:, 3] = 0.5  # which is no ink
    expected = [[simpson_by_hand(a, b) for b in images] for a in images]
    for kind in ("distance", "squared-distance"):  # R is in the paper what is called squared-distance here
        found = whole(pairwise(images, tmp_path / kind, metric="simpson", kind=kind, writing=DOUBLE))
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)


def test_simpson_with_more_ink_than_sixteen_bits_count(tmp_path: Path) -> None:
    images = np.ones((3, 70_000), dtype=bool)
    images[1, ::2] = False
    images[2, 1::2] = False
    images[2, 0] = False
    images[2, 1] = True
    found = whole(pairwise(images, tmp_path / "s", metric="simpson", writing=DOUBLE))
    np.testing.assert_allclose(found[0], 0, atol=0)
    assert found[1, 2] == pytest.approx(2 - 2 * 1 / 35_000)


def test_blank_images_are_named(tmp_path: Path) -> None:
    images = bits().astype(float)
    images[[4, 9]] = 0.5
    with pytest.raises(InputError, match=r"without ink.*: m4 \(object 4\), m9 \(object 9\); leave") as told:
        pairwise(images, tmp_path / "s", metric="simpson", ids=[f"m{k}" for k in range(N)])
    assert "\n" not in str(told.value)
    assert not (tmp_path / "s").exists()


# ---- what is refused ----


@pytest.mark.parametrize(("arguments", "message"), [
    ({"metric": "euclidian"}, "no metric 'euclidian'; did you mean .*euclidean"),
    ({"metric": "rbf"}, "rbf is a kernel: say kind kernel"),
    ({"metric": "qqqqqqqq"}, "known: .*braycurtis"),
    ({"metric": "wminkowski"}, "use minkowski"),
    ({"metric": "canberra", "kind": "kernel"}, "canberra gives distances"),
    ({"metric": "rfb", "kind": "kernel"}, "did you mean rbf"),
    ({"metric": "euclidean", "kind": "squared"}, "kind must be distance"),
    ({"metric": "euclidean", "metric_options": {"q": 3}}, "no option q; it takes w"),
    ({"metric": "simpson", "metric_options": {"w": 3}}, "no option w; it takes none"),
    ({"metric": "haversine"}, "needs 2 columns"),
    ({"metric": "minkowski", "metric_options": {"p": -1}}, "metric minkowski: p must be above 0, not -1"),
    ({"metric": "cityblock", "metric_options": {"w": [1, 2]}}, "metric cityblock: "),
    ({"metric": "jaccard"}, "true or false .*: 0 .object 0., 1 .object 1., 2 .object 2. and 42 more"),
    ({"metric": "jensenshannon"}, "0 or more"),
    ({"metric": "chi2", "kind": "kernel"}, "0 or more"),
    ({"metric": "euclidean", "ids": ["a", "b"]}, "2 ids for 45 objects"),
])  # fmt: skip
def test_refused_before_a_store_is_begun(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as told:
        pairwise(numbers(), tmp_path / "s", **arguments)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("metric", "row", "message"), [
    ("cosine", np.zeros(6), r"rows of zeros: 5 \(object 5\)"),
    ("correlation", np.full(6, 3.0), r"constant rows: 5 \(object 5\)"),
])  # fmt: skip
def test_rows_without_a_value_are_named(tmp_path: Path, metric: str, row: Any, message: str) -> None:
    x = numbers()
    x[5] = row
    with pytest.raises(InputError, match=message):
        pairwise(x, tmp_path / "s", metric=metric)


def test_pairs_without_a_value_are_named(tmp_path: Path) -> None:
    x = np.abs(numbers())
    x[[3, 20]] = 0  # Bray-Curtis of two empty rows is 0 / 0
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(InputError, match=r"braycurtis gives no value .* 3 and 20; leave"),
    ):
        pairwise(x, tmp_path / "s", metric="braycurtis", writing=SINGLE)
    assert not (tmp_path / "s").exists()
    gaps = numbers(20, 2)
    gaps[2, 0] = gaps[17, 1] = np.nan
    with pytest.raises(InputError, match=r"nan_euclidean gives no value .* 2 and 17"):
        pairwise(gaps, tmp_path / "s", metric="nan_euclidean", writing=SINGLE)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_missing_and_infinite_features_are_named(tmp_path: Path, make: Any) -> None:
    x = numbers()
    x[7, 3] = np.nan
    x[11, 0] = np.inf
    x[30, 1:4] = -np.inf
    names = [f"m{k}" for k in range(N)]
    with pytest.raises(InputError, match=r"row 7 \(m7\), column 3: nan, row 11 \(m11\), column 0: inf, .* and 2 more"):
        pairwise(make(x), tmp_path / "s", metric="euclidean", ids=names)
    assert not (tmp_path / "s").exists()


def test_statistics_that_do_not_exist(tmp_path: Path) -> None:
    x = numbers()
    x[:, 2] = 4
    with pytest.raises(InputError, match="these are 0: column 2"):
        pairwise(x, tmp_path / "s", metric="seuclidean")
    with pytest.raises(InputError, match="has no inverse"):
        pairwise(x, tmp_path / "s", metric="mahalanobis")


@pytest.mark.parametrize(("features", "message"), [
    (np.zeros(4), "1 dimensions"),
    (np.zeros((0, 4)), "0 rows and 4 columns"),
    (np.zeros((4, 0)), "4 rows and 0 columns"),
    (np.array([["a", "b"]]), "features are numbers"),
    (np.zeros((3, 2), complex), "features are numbers"),
    (np.zeros((1, 2)), "single object"),
])  # fmt: skip
def test_arrays_that_are_no_features(tmp_path: Path, features: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pairwise(features, tmp_path / "s", metric="euclidean")


def test_memory_is_checked_before_a_store_is_begun(tmp_path: Path) -> None:
    with pytest.raises(MemoryLimitError, match="pairwise needs"):
        pairwise(numbers(), tmp_path / "s", metric="euclidean", writing=Writing(memory=1000))
    with pytest.raises(MemoryLimitError, match="from_blocks needs"):
        from_blocks(distances, N, tmp_path / "s", kind="distance", writing=Writing(memory=1000))
    assert not (tmp_path / "s").exists()


def test_predicted_memory_is_not_below_the_measured(tmp_path: Path) -> None:
    x = numbers(1100, 40)
    for data in (x, scipy.sparse.csr_array(x * (x > 1))):
        found = read_features(data)
        for name in ("euclidean", "cosine", "cityblock", "correlation", "canberra", "simpson"):
            metric = made_ready(resolve(name, "distance", None), found, np.dtype("f4"))
            predicted = metric.memory(1100, found.strip_bytes(1100, sparse=metric.takes_sparse), 4)
            tracemalloc.start()
            try:
                tile_values(metric, found.data, found.data, same=False, dtype=np.dtype("f4"))
                measured = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert measured <= predicted, name


# ---- files ----


def test_every_format_gives_the_same_tiles(tmp_path: Path) -> None:
    x = numbers().round(3)
    names = [f"object {k}" for k in range(N)]
    frame = pd.DataFrame(x, columns=list("abcdef"))
    named = frame.assign(who=names)[["who", *"abcdef"]]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    np.savez(tmp_path / "x.npz", x)
    np.savez_compressed(tmp_path / "named.npz", x=x, ids=np.array(names))
    scipy.sparse.save_npz(tmp_path / "sparse.npz", scipy.sparse.csc_array(x))
    frame.to_csv(tmp_path / "plain.csv", index=False)
    pd.DataFrame(x).to_csv(tmp_path / "indexed.csv")  # a first column of numbers without a header
    named.to_csv(tmp_path / "named.csv", index=False)
    named.to_csv(tmp_path / "named.tsv", index=False, sep="\t")
    named.to_csv(tmp_path / "named.csv.gz", index=False)
    frame.to_parquet(tmp_path / "plain.parquet")
    frame.assign(who=names).to_parquet(tmp_path / "named.parquet")
    frame.set_index(pd.Index([100, *range(2, N + 1)])).to_parquet(tmp_path / "indexed.parquet")
    expected = whole(pairwise(x, tmp_path / "expected", metric="euclidean", writing=DOUBLE))
    assert np.abs(expected - cdist(x, x)).max() < 1e-13
    sources = [p for p in sorted(tmp_path.iterdir()) if p.is_file()]
    assert len(sources) == 13
    for source in sources:
        found = pairwise(source, tmp_path / f"{source.name}.zarr", metric="euclidean", writing=DOUBLE)
        if source.name == "sparse.npz":
            np.testing.assert_allclose(whole(found), expected, rtol=1e-12)
        else:
            np.testing.assert_array_equal(whole(found), expected, err_msg=source.name)
        first = "object 0" if "named" in source.name else "100" if source.name == "indexed.parquet" else "0"
        assert found.ids[0] == first, source.name
        provenance = found.manifest["provenance"]
        assert provenance["source"] == str(source)
        assert provenance["size"] == source.stat().st_size
        assert provenance["metric"] == "euclidean"
        assert provenance["features"] == [N, 6]
        assert provenance["checksum"].startswith("crc32c: ")
    in_frame = pairwise(frame, tmp_path / "frame", metric="euclidean", writing=DOUBLE)
    np.testing.assert_array_equal(whole(in_frame), expected)


def test_given_ids_take_the_place_of_the_files(tmp_path: Path) -> None:
    pd.DataFrame({"id": ["x", "y"], "a": [1.0, 2.0]}).to_csv(tmp_path / "f.csv", index=False)
    found = pairwise(tmp_path / "f.csv", tmp_path / "s", metric="euclidean", ids=["p", "q"])
    assert list(found.ids) == ["p", "q"]
    (tmp_path / "names.txt").write_text("r\ns\n")
    found = pairwise(str(tmp_path / "f.csv"), tmp_path / "t", metric="euclidean", ids=str(tmp_path / "names.txt"))
    assert list(found.ids) == ["r", "s"]


@pytest.mark.parametrize(("name", "text", "message"), [
    ("f.csv", "id,a,b\nx,1,2\ny,3\n", "Expected 3 columns, got 2.*as many fields"),
    ("f.csv", "id,a,b\nx,1,2\ny,3,oops\n", "line 3, column 'b': 'oops' is not a number"),
    ("f.tsv", "id\ta\nx\t1\ny\t\n", r"row 1 \(y\), column 'a': nan"),
    ("f.csv", "1.5,2.5\n3,4\n5,6\n", "add a header line"),
    ("f.csv", "id,a\nx,1\n,2\n", "name"),
    ("f.csv", "id,a\nx,1\nx,2\n", "not unique: x"),
    ("f.csv", "", "f.csv"),
    ("f.csv", "id,a\n", "0 rows"),
    ("f.csv", "id\nx\ny\n", "0 columns"),
    ("f.npy", "not an array", "not a whole .npy"),
    ("f.npz", "not an archive", "f.npz"),
    ("f.parquet", "not a table", "not a whole Parquet"),
    ("f.xlsx", "?", "features are read from"),
])  # fmt: skip
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as told:
        pairwise(tmp_path / name, tmp_path / "s", metric="euclidean")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "s").exists()


def test_no_file_truncated_file_and_pickles(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        pairwise(tmp_path / "none.npy", tmp_path / "s", metric="euclidean")
    np.save(tmp_path / "cut.npy", numbers())
    data = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"not a whole \.npy"):
        pairwise(tmp_path / "cut.npy", tmp_path / "s", metric="euclidean")
    np.save(tmp_path / "objects.npy", np.array([[print]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="npy"):
        pairwise(tmp_path / "objects.npy", tmp_path / "s", metric="euclidean")
    np.savez(tmp_path / "two.npz", a=numbers(), b=numbers())
    with pytest.raises(InputError, match=r"holds a \(45, 6\), b \(45, 6\); one two-dimensional"):
        pairwise(tmp_path / "two.npz", tmp_path / "s", metric="euclidean")


# ---- writing: refuse, resume, force ----


def test_existing_stores_are_safe(tmp_path: Path) -> None:
    pairwise(numbers(), tmp_path / "s", metric="euclidean", writing=SINGLE)
    before = files_of(tmp_path / "s")
    with pytest.raises(StoreError, match="exists"):
        pairwise(numbers(), tmp_path / "s", metric="cityblock", writing=SINGLE)
    assert files_of(tmp_path / "s") == before
    forced = pairwise(
        numbers(), tmp_path / "s", metric="cityblock", writing=Writing(tile=TILE, force=True, dtype="float64")
    )
    np.testing.assert_allclose(whole(forced), cdist(numbers(), numbers(), "cityblock"), rtol=1e-12)


def test_pairwise_resumes_the_same_features_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers()
    pairwise(x, tmp_path / "whole", metric="euclidean", writing=SINGLE)
    computed = []
    module = sys.modules[pairwise.__module__]  # the package's attribute of this name is the function
    real = tile_values

    def failing(metric: Any, rows: Any, columns: Any, **rest: Any) -> Any:
        if len(computed) == 3:
            raise OSError("the machine is gone")
        computed.append(rows.shape)
        return real(metric, rows, columns, **rest)

    monkeypatch.setattr(module, "tile_values", failing)
    with dask.config.set(num_workers=1), pytest.raises(OSError, match="the machine is gone"):
        pairwise(x, tmp_path / "s", metric="euclidean", writing=SINGLE)
    monkeypatch.setattr(module, "tile_values", real)
    again = Writing(tile=TILE, resume=True)
    with pytest.raises(StoreError, match="begun with features_checksum"):
        pairwise(x + 1, tmp_path / "s", metric="euclidean", writing=again)
    with pytest.raises(StoreError, match="begun with metric euclidean, now it is cityblock"):
        pairwise(x, tmp_path / "s", metric="cityblock", writing=again)
    with dasrel.watch() as meter:
        pairwise(x, tmp_path / "s", metric="euclidean", writing=again)
    assert meter.tiles == 3  # of 6
    assert files_of(tmp_path / "s") == files_of(tmp_path / "whole")


# ---- a function of two ranges ----


def distances(rows: range, columns: range) -> Any:
    x = numbers()
    return cdist(x[rows.start : rows.stop], x[columns.start : columns.stop])


def test_from_blocks(tmp_path: Path) -> None:
    asked = []

    def function(rows: range, columns: range) -> Any:
        asked.append((rows, columns))
        return distances(rows, columns)

    names = [f"m{k}" for k in range(N)]
    found = from_blocks(function, N, tmp_path / "s", kind="distance", ids=names, writing=DOUBLE)
    np.testing.assert_array_equal(whole(found), cdist(numbers(), numbers()))
    strips = [range(0, 16), range(16, 32), range(32, 45)]
    assert sorted(asked, key=str) == sorted([(a, b) for a in strips for b in strips if a.start <= b.start], key=str)
    assert list(found.ids) == names
    assert found.manifest["provenance"]["source"] == f"function {__name__}.test_from_blocks.<locals>.function"


def test_from_blocks_takes_what_becomes_an_array(tmp_path: Path) -> None:
    found = from_blocks(lambda r, c: [[i * j for j in c] for i in r], 5, tmp_path / "s", kind="kernel")
    np.testing.assert_array_equal(whole(found), np.outer(range(5), range(5)))
    source = functools.partial(distances)
    found = from_blocks(source, N, tmp_path / "t", kind="distance")
    assert found.manifest["provenance"]["source"] == f"function {__name__}.distances"


MIDDLE = (range(0, 16), range(16, 32))
SPANS = "objects 0 to 15 against 16 to 31"


def with_flaw(flaw: Any, rows: range, columns: range) -> Any:
    return flaw(distances(rows, columns), rows, columns)


@pytest.mark.parametrize(("flaw", "message"), [
    (lambda d, r, c: d[: 15 if (r, c) == MIDDLE else 16], rf"shape \(15, 16\) for {SPANS}; it must be \(16, 16\)"),
    (lambda d, r, c: np.where((r, c) == MIDDLE, np.nan, d), f"{SPANS}: missing values"),
    (lambda d, r, c: np.where((r, c) == MIDDLE, np.inf, d), f"{SPANS}: infinite values"),
    (lambda d, r, c: d - ((r, c) == MIDDLE) * 9, f"{SPANS}: negative values.*m0 .object 0. and m16 "),
    (lambda d, r, c: d + 1, r"objects (.*) against \1: diagonal is not zero"),
    (lambda d, r, c: np.triu(d) if r == c else d, r"objects (.*) against \1: asymmetric"),
    (lambda d, r, c: d.astype(str), "type <U"),
    (lambda d, r, c: None, r"shape \(\)"),
])  # fmt: skip
def test_blocks_with_flaws_name_the_objects(tmp_path: Path, flaw: Any, message: str) -> None:
    with dask.config.set(num_workers=1), pytest.raises(InputError, match=message) as told:
        from_blocks(
            functools.partial(with_flaw, flaw), N, tmp_path / "s", kind="distance",
            ids=[f"m{k}" for k in range(N)], writing=SINGLE,
        )  # fmt: skip
    assert "\n" not in str(told.value)


def test_the_policy_applies_to_blocks(tmp_path: Path) -> None:
    policy = Policy(symmetrize="mean", diagonal="zero")
    flawed = functools.partial(with_flaw, lambda d, r, c: np.triu(d) * 2 + 1 if r == c else d)
    found = from_blocks(flawed, N, tmp_path / "s", kind="distance", policy=policy, writing=DOUBLE)
    expected = cdist(numbers(), numbers())
    for start in (0, 16, 32):
        expected[start : start + 16, start : start + 16] += 1
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(whole(found), expected, rtol=1e-12)
    assert found.manifest["input"]["symmetrize"] == "mean"


def test_arguments_of_from_blocks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="callable"):
        from_blocks("cdist", N, tmp_path / "s", kind="distance")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="retries"):
        from_blocks(distances, N, tmp_path / "s", kind="distance", retries=-1)
    with pytest.raises(InputError, match="kind must be"):
        from_blocks(distances, N, tmp_path / "s", kind="near")
    with pytest.raises(InputError, match="n = 0"):
        from_blocks(distances, 0, tmp_path / "s", kind="distance")
    assert not (tmp_path / "s").exists()


class Flaky:
    """Fails a given number of times for each tile; the count lies on disk, where all processes see it."""

    def __init__(self, folder: Path, fails: int) -> None:
        self.folder = folder
        self.fails = fails

    def __call__(self, rows: range, columns: range) -> Any:
        with open(self.folder / f"{rows.start}-{columns.start}", "a+", encoding="ascii") as file:
            file.write("x")
            file.flush()
            calls = os.fstat(file.fileno()).st_size
        if calls <= self.fails:
            raise TwoWords("docking", "failed")
        return distances(rows, columns)

    def calls(self) -> list[int]:
        return [len(p.read_text()) for p in sorted(self.folder.iterdir())]


class TwoWords(Exception):  # noqa: N818
    """An error that cannot be pickled and made again, as many cannot."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_a_failing_function_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=2)
    found = from_blocks(flaky, N, tmp_path / "s", kind="distance", writing=DOUBLE)
    np.testing.assert_array_equal(whole(found), cdist(numbers(), numbers()))
    assert flaky.calls() == [3] * 6


def test_what_is_left_of_a_failure_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=0)
    (tmp_path / "calls" / "16-32").touch()
    original = RuntimeError("no licence left")

    def function(rows: range, columns: range) -> Any:
        if (rows.start, columns.start) == (16, 32) and not (tmp_path / "mended").exists():
            raise original
        return flaky(rows, columns)

    with (
        dask.config.set(num_workers=1),
        pytest.raises(
            DasrelError, match="objects 16 to 31 against 32 to 44 after 3 tries: RuntimeError: no licence left; mend"
        ) as told,
    ):
        from_blocks(function, N, tmp_path / "s", kind="distance", writing=DOUBLE)
    assert told.value.__cause__ is original
    (tmp_path / "mended").touch()
    again = Writing(tile=TILE, dtype="float64", resume=True)
    with pytest.raises(StoreError, match=r"begun with source function .*, now it is function .*distances"):
        from_blocks(distances, N, tmp_path / "s", kind="distance", writing=again)
    found = from_blocks(function, N, tmp_path / "s", kind="distance", writing=again)
    np.testing.assert_array_equal(whole(found), cdist(numbers(), numbers()))
    assert flaky.calls() == [1] * 6


BLOCKS = """
import sys, time
import dask
import numpy as np
from dasrel.pairwise import from_blocks
from dasrel.writer import Writing

def function(rows, columns):
    with open(sys.argv[2], "a") as log:
        log.write(f"{rows.start // 8} {columns.start // 8}\\n")
    time.sleep(float(sys.argv[3]))
    return np.abs(np.subtract.outer(np.array(rows) ** 1.5, np.array(columns) ** 1.5))

if __name__ == "__main__":
    with dask.config.set(num_workers=2):
        from_blocks(function, 60, sys.argv[1], kind="distance", writing=Writing(tile=8, resume=sys.argv[4] == "resume"))
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(textwrap.dedent(BLOCKS))

    def command(store: str, log: str, seconds: float, how: str) -> list[str]:
        return [sys.executable, str(script), str(tmp_path / store), str(tmp_path / log), str(seconds), how]

    def calls(log: str) -> list[tuple[int, int]]:
        text = (tmp_path / log).read_text() if (tmp_path / log).exists() else ""
        return [(int(i), int(j)) for i, j in (line.split() for line in text.splitlines())]

    unhurt = subprocess.Popen(command("whole", "third", 0, "new"))
    killed = subprocess.Popen(command("killed", "first", 0.05, "new"))
    limit = time.monotonic() + 60
    while len(calls("first")) < 12 and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    with pytest.raises(StoreError, match="unfinished"):
        dasrel.open_matrix(tmp_path / "killed")
    done = ~np.isnan(np.asarray(zarr.open_group(tmp_path / "killed", mode="r")["progress"][..., 0]))  # type: ignore[index]
    missing = {(i, j) for i in range(8) for j in range(i, 8) if not done[i, j]}
    assert 10 < len(missing) < 36

    subprocess.run(command("killed", "second", 0, "resume"), check=True, timeout=60)
    assert sorted(calls("second")) == sorted(missing)
    assert unhurt.wait(60) == 0
    assert len(calls("third")) == 36
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    points = np.arange(60.0) ** 1.5
    expected = np.abs(np.subtract.outer(points, points)).astype(np.float32)
    np.testing.assert_array_equal(whole(dasrel.open_matrix(tmp_path / "killed")), expected)


# ---- on a cluster ----


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", scheduler_port=0,
        dashboard_address="127.0.0.1:0", worker_dashboard_address=None, silence_logs=50,
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster) as connected:
        yield connected


@pytest.mark.parametrize("metric", ["euclidean", "mahalanobis", "simpson", "canberra"])
def test_a_cluster_writes_the_same_bytes(tmp_path: Path, cluster: Any, metric: str) -> None:
    from distributed import Client

    x = numbers(300, 9) + 5
    np.save(tmp_path / "x.npy", x)
    sources = {"array": x, "sparse": scipy.sparse.csr_array(x), "mapped": tmp_path / "x.npy"}
    writing = Writing(tile=64)
    for name, source in sources.items():
        pairwise(source, tmp_path / f"{name}-threads", metric=metric, writing=writing)
    with Client(cluster):
        for name, source in sources.items():
            pairwise(source, tmp_path / f"{name}-cluster", metric=metric, writing=writing)
    for name in sources:
        assert files_of(tmp_path / f"{name}-threads") == files_of(tmp_path / f"{name}-cluster"), name


@pytest.mark.usefixtures("client")
def test_from_blocks_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=1)
    found = from_blocks(flaky, N, tmp_path / "s", kind="distance", writing=DOUBLE)
    np.testing.assert_array_equal(whole(found), cdist(numbers(), numbers()))
    assert flaky.calls() == [2] * 6


@pytest.mark.usefixtures("client")
def test_failures_on_a_cluster_are_told(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=9)
    with pytest.raises(DasrelError, match=r"after 2 tries: .*TwoWords: docking failed; mend") as told:
        from_blocks(flaky, N, tmp_path / "s", kind="distance", retries=1, writing=DOUBLE)
    assert "docking failed" in str(told.value.__cause__)
    x = np.abs(numbers())
    x[[3, 20]] = 0
    with pytest.raises(InputError, match=r"braycurtis gives no value .* 3 and 20; leave"):
        pairwise(x, tmp_path / "t", metric="braycurtis", writing=SINGLE)
