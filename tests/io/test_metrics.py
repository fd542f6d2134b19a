"""Every metric against SciPy, scikit-learn and by hand; the accuracy of Euclidean distances."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.spatial.distance import cdist, pdist, squareform
from sklearn.metrics import pairwise as sk, pairwise_distances, pairwise_kernels

import dasrel
from dasrel import InputError
from dasrel.io.features import read_features
from dasrel.io.metrics import made_ready, resolve, tile_values
from dasrel.io.options import ALIASES, DISTANCES, KERNELS
from dasrel.io.pairwise import pairwise
from dasrel.store.options import Writing
from tests.helpers.matrices import normal_points
from tests.helpers.stores import whole

N = 45
TILE = 16  # three tiles a side, the last one ragged
DOUBLE = Writing(tile=TILE, dtype="float64")
SINGLE = Writing(tile=TILE)


def inked(n: int = N, p: int = 20, seed: int = 0) -> Any:
    found = np.random.default_rng(seed).random((n, p)) < 0.4
    found[:, 0] = True  # no row without ink
    found[:, 1] = False
    return found


# ---- every metric against SciPy and scikit-learn ----

SCIPY = ["braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "euclidean", "hamming",
         "minkowski", "sqeuclidean"]  # fmt: skip


SCIPY_BOOLEAN = ["dice", "jaccard", "rogerstanimoto", "russellrao", "sokalsneath", "yule"]


GONE = {"wminkowski", "kulczynski1", "sokalmichener"}


"""Known to older SciPy only."""


def test_every_name_of_both_libraries_is_known() -> None:
    known = set(DISTANCES) | {alias for others in ALIASES.values() for alias in others}
    with pytest.raises(ValueError, match="metric") as report:
        pairwise_distances(normal_points(N, 6), metric="no such metric")
    theirs = set(sk.distance_metrics()) - {"precomputed"} | {name for name in known if f"'{name}'" in str(report.value)}
    assert theirs <= known
    assert {"euclidean", "haversine", "nan_euclidean", "yule", "l1"} <= theirs
    for name in known - GONE - {"simpson", "haversine", "nan_euclidean", "l1", "l2", "manhattan"}:
        cdist(np.abs(normal_points(40, 6)), np.abs(normal_points(40, 6)), name)  # SciPy knows it by this name
    assert {name: set(options) for name, options in KERNELS.items()} == {
        name: set(sk.KERNEL_PARAMS[name]) for name in sk.kernel_metrics()
    }


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("metric", [*SCIPY, *SCIPY_BOOLEAN, "jensenshannon"])
@pytest.mark.parametrize("kind", ["distance", "squared-distance"])
def test_metrics_of_scipy(tmp_path: Path, metric: str, kind: str) -> None:
    x = (
        inked()
        if metric in SCIPY_BOOLEAN
        else np.abs(normal_points(N, 6))
        if metric == "jensenshannon"
        else normal_points(N, 6)
    )
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


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("metric", ["l1", "l2", "manhattan", "cityblock", "cosine", "euclidean", "matching",
                                    "seuclidean", "mahalanobis", "haversine", "nan_euclidean"])  # fmt: skip
def test_metrics_of_scikit_learn(tmp_path: Path, metric: str) -> None:
    x = normal_points(N, 6)[:, :2] if metric == "haversine" else normal_points(N, 6)
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
    x = normal_points(N, 6)
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
    x = normal_points(N, 6) * np.linspace(1, 50, N)[:, None]  # strips of very different variance
    by_tiles = whole(pairwise(x, tmp_path / "tiles", metric=metric, writing=DOUBLE))
    at_once = whole(pairwise(x, tmp_path / "one", metric=metric, writing=Writing(tile=64, dtype="float64")))
    np.testing.assert_allclose(by_tiles, squareform(pdist(x, metric)), rtol=1e-10)
    np.testing.assert_array_equal(by_tiles, at_once)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("metric", "kind"), [*((name, "kernel") for name in sorted(KERNELS)), ("rbf", "similarity")])
def test_kernels(tmp_path: Path, metric: str, kind: str) -> None:
    x = np.abs(normal_points(N, 6))
    found = pairwise(x, tmp_path / "s", metric=metric, kind=kind, writing=DOUBLE)
    values = whole(found)
    np.testing.assert_allclose(values, pairwise_kernels(x, metric=metric), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(values, values.T)
    np.testing.assert_array_equal(found.diagonal, np.diagonal(values))


def test_kernel_options(tmp_path: Path) -> None:
    x = normal_points(N, 6)
    options = {"gamma": 0.3, "coef0": 2, "degree": 2}
    found = pairwise(x, tmp_path / "s", metric="poly", kind="kernel", metric_options=options, writing=DOUBLE)
    np.testing.assert_allclose(whole(found), (0.3 * x @ x.T + 2) ** 2, rtol=1e-10)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine", "cityblock", "chebyshev", "simpson"])
@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_sparse_features(tmp_path: Path, metric: str, make: Any) -> None:
    x = normal_points(N, 30) * (np.random.default_rng(5).random((N, 30)) < 0.3)
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


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1.3e-7), ("float64", 1e-11)])
def test_euclidean_is_accurate_wherever_the_objects_lie(
    tmp_path: Path, metric: str, offset: float, dtype: Any, rtol: float
) -> None:
    x = normal_points(700, 8) + offset
    x[::7] += 1e6  # two clusters far from each other: no centre is near to both
    x[100:110] = x[300:310]  # duplicates
    x[110:120] = x[310:320] * (1 + 1e-9)  # nearly
    found = whole(pairwise(x, tmp_path / "s", metric=metric, writing=Writing(tile=600, dtype=dtype)))
    np.testing.assert_allclose(found, cdist(x, x, metric), rtol=rtol)
    np.testing.assert_array_equal(np.diagonal(found), 0)
    np.testing.assert_array_equal(np.diagonal(found[100:110, 300:310]), 0)
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.slow(after=1)
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
    x = normal_points(20, 3)
    tiny = pairwise(x * 1e-150, tmp_path / "tiny", metric="euclidean", writing=DOUBLE)
    np.testing.assert_allclose(whole(tiny), cdist(x, x) * 1e-150, rtol=1e-12)
    huge = pairwise(x * 1e150, tmp_path / "huge", metric="euclidean", writing=DOUBLE)
    np.testing.assert_allclose(whole(huge), cdist(x, x) * 1e150, rtol=1e-12)
    with pytest.raises(InputError, match=r"too large for float32; use Writing\(dtype='float64'\)"):
        pairwise(x * 1e150, tmp_path / "single", metric="euclidean", writing=SINGLE)
    assert not (tmp_path / "single").exists()


def test_integer_and_single_features_are_computed_in_double(tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 255, size=(N, 12), dtype=np.uint8)  # 255^2 does not fit into uint8
    found = whole(pairwise(x, tmp_path / "u8", metric="sqeuclidean", writing=DOUBLE))
    np.testing.assert_allclose(found, cdist(x.astype(float), x.astype(float), "sqeuclidean"), rtol=1e-12)
    y = normal_points(N, 6).astype(np.float32) + np.float32(1000)
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


@pytest.mark.slow(after=1)
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
    images = inked().astype(float)
    images[[4, 9]] = 0.5
    with pytest.raises(InputError, match=r"without ink.*: m4 \(object 4\), m9 \(object 9\); leave") as report:
        pairwise(images, tmp_path / "s", metric="simpson", ids=[f"m{k}" for k in range(N)])
    assert "\n" not in str(report.value)
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_tanimoto_of_l7(tmp_path: Path) -> None:
    """L7, example 1, as it prints the matrix; but for x2 and x5, where 19 / (5 + 78.25 - 19) is 0.30 and not 0.20."""
    points = np.array([[1, 1], [2, 1], [5, 4], [6, 5], [6.5, 6]])
    printed = np.array(
        [[1, 0.75, 0.26, 0.21, 0.18], [0.75, 1, 0.44, 0.35, 0.30], [0.26, 0.44, 1, 0.96, 0.90],
         [0.21, 0.35, 0.96, 1, 0.98], [0.18, 0.30, 0.90, 0.98, 1]]
    )  # fmt: skip
    found = dasrel.pairwise(points, tmp_path / "t.zarr", metric="tanimoto", kind="similarity")
    np.testing.assert_allclose(np.asarray(found), printed, atol=0.00501)
    levels = dasrel.linkage(found, method="single", as_similarity=True).heights
    np.testing.assert_allclose(levels, [0.98, 0.96, 0.75, 0.44], atol=0.00501)
    x = normal_points(N, 6)
    dense = np.array([[a @ b / (a @ a + b @ b - a @ b) for b in x] for a in x])
    writing = dasrel.Writing(dtype="float64", tile=7)
    found = dasrel.pairwise(x, tmp_path / "x.zarr", metric="tanimoto", kind="similarity", writing=writing)
    np.testing.assert_allclose(np.asarray(found), dense, atol=1e-12)
    with pytest.raises(InputError, match=r"metric tanimoto gives similarities.*; say kind='similarity'"):
        dasrel.pairwise(points, tmp_path / "u.zarr", metric="tanimoto")
    with pytest.raises(InputError, match="metric tanimoto has no value for rows of zeros"):
        dasrel.pairwise(np.eye(4)[:, :3], tmp_path / "v.zarr", metric="tanimoto", kind="similarity")
