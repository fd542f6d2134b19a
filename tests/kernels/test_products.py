"""The compiled kernel for few columns, against NumPy in float64."""

import numpy as np
import pytest

from dasrel.kernels import products
from dasrel.kernels.products import Strips, View

pytestmark = pytest.mark.skipif(
    not products.has_native_products(),
    reason="no C compiler when dasrel was installed, or a processor without AVX2 or NEON",
)


# The kernel works on 12 rows, whose sums across are added up after 192, and on 2,048 or 4,096 columns in pieces of 256,
# in vectors of 8 or 4 and up to four rows at once: shapes on both sides of each.
@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (7, 5), (24, 256), (97, 1027), (192, 2048), (200, 2100), (26, 4360)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8, 11, 32])
def test_products_both_ways(shape, dtype, k):
    rng = np.random.default_rng(k)
    wide = rng.standard_normal((shape[0], shape[1] + 3)).astype(dtype)  # rows that do not follow each other closely
    panel = wide[:, : shape[1]]
    rows, columns = (rng.standard_normal((k, size)).astype(dtype) for size in shape)
    row_sums, column_sums = np.ones((k, shape[0])), np.ones((k, shape[1]))
    assert products._add_products_native(panel, rows, columns, row_sums, column_sums)
    exact = panel.astype(np.float64)
    for found, other, along in ((row_sums, columns, exact.T), (column_sums, rows, exact)):
        truth = other.astype(np.float64) @ along
        # At most 4,096 / 4 products one after the other, then four or eight sums, in the panel's precision.
        bound = np.abs(other).astype(np.float64) @ np.abs(along) * np.finfo(dtype).eps * 1030
        assert (np.abs(found - 1 - truth) <= bound + 1e-15).all()


def test_a_tile_on_the_diagonal_has_one_product():
    rng = np.random.default_rng(0)
    panel, columns = rng.random((50, 50)), rng.random((3, 50))
    sums = np.zeros((3, 50))
    assert products._add_products_native(panel, columns, columns, sums, None)
    np.testing.assert_allclose(sums, columns @ panel.T, rtol=1e-13)


@pytest.mark.parametrize(
    "panel",
    [np.ones((40, 30), np.float32).T, np.ones((30, 80), np.float32)[:, ::2], np.ones((30, 40), np.float16)],
    ids=["columns first", "every other", "half precision"],
)
def test_what_it_cannot_do_is_left_to_blas(panel):
    rows, columns = np.ones((2, 30), panel.dtype), np.ones((2, 40), panel.dtype)
    sums = np.zeros((2, 30)), np.zeros((2, 40))
    assert not products._add_products_native(panel, rows, columns, *sums)
    assert not sums[0].any()
    assert not sums[1].any()
    products.add_products(panel, [(View("squared-distance"), Strips(rows, columns))], [sums[0]], [sums[1]])
    assert (sums[0] == 40).all()
    assert (sums[1] == 30).all()


def test_many_columns_are_left_to_blas():
    many = products.MOST_COLUMNS + 1
    panel, rows, columns = (np.ones(shape, np.float32) for shape in ((5, 6), (many, 5), (many, 6)))
    assert not products._add_products_native(panel, rows, columns, np.zeros((many, 5)), np.zeros((many, 6)))


@pytest.mark.parametrize("kind", ["distance", "squared-distance"])
def test_with_and_without_it_products_agree(kind, monkeypatch):
    rng = np.random.default_rng(1)
    tile = rng.random((300, 410), dtype=np.float32)
    strips = Strips(rng.random((5, 300), dtype=np.float32), rng.random((5, 410), dtype=np.float32))

    def both():
        sums = np.zeros((5, 300)), np.zeros((5, 410))
        products.add_products(tile, [(View(kind), strips)], [sums[0]], [sums[1]])
        return sums

    compiled = both()
    monkeypatch.setattr(products, "_native_products", lambda: None)
    assert not products.has_native_products()
    for with_it, without in zip(compiled, both(), strict=True):
        np.testing.assert_allclose(with_it, without, rtol=2e-6)
        assert (with_it != without).any()  # two ways to add up: if all bits agreed, one was not taken
