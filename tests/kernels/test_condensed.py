"""Condensed vectors: blocks of the square that SciPy's `squareform` makes of them."""

import numpy as np
import pytest
from scipy.spatial.distance import squareform

from dasrel.errors import InputError
from dasrel.kernels.condensed import CondensedSquare, check_condensed, square_side, triangle_block

N = 11
VECTOR = np.random.default_rng(0).random(N * (N - 1) // 2)


@pytest.mark.parametrize("rows", [slice(0, 4), slice(4, 8), slice(8, 11)])
@pytest.mark.parametrize("columns", [slice(0, 4), slice(4, 8), slice(8, 11)])
def test_any_tile_is_that_of_the_square(rows: slice, columns: slice) -> None:
    square = CondensedSquare(VECTOR, square_side(VECTOR.shape, "it"))
    assert square.shape == (N, N)
    np.testing.assert_array_equal(square[rows, columns], squareform(VECTOR)[rows, columns])


def test_a_vector_with_its_diagonal() -> None:
    whole = squareform(VECTOR) + np.diag(np.arange(1.0, N + 1))
    packed = whole[np.triu_indices(N)]
    for rows, columns in ((slice(0, 5), slice(0, 5)), (slice(0, 5), slice(5, N)), (slice(5, N), slice(5, N))):
        found = triangle_block(packed, N, rows, columns, diagonal=True)
        np.testing.assert_array_equal(found, whole[rows, columns])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((20,), r"it has 20 values, which is no n\(n-1\)/2"),
        ((3, 4), "it is not square: 3 rows, 4 columns"),
        ((2, 2, 2), "it has 3 dimensions"),
    ],
)
def test_other_shapes_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        square_side(shape, "it")


def test_similarities_need_their_diagonal() -> None:
    check_condensed("distance", "it")
    with pytest.raises(InputError, match="it is a condensed vector: it has no self-kernel values; give the full matr"):
        check_condensed("kernel", "it")
