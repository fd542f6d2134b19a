"""Complete rows: those of the matrix, in any order and however often, from the tiles of their strips only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel import Matrix, watch
from dasrel.engine.relation import read_rows, relation
from dasrel.errors import StoreError
from dasrel.store.array_matrix import as_matrix
from tests.helpers.matrices import symmetric
from tests.helpers.stores import stored

N, TILE = 130, 10
WANTED = ([], [0], [129, 3, 3, 64], range(N), [77, 5, 129, 5, 0])


@pytest.fixture
def matrix(tmp_path: Path) -> Matrix:
    return stored(tmp_path / "d.zarr", symmetric(N, 3), tile=TILE)


def check(matrix: Any) -> None:
    values = symmetric(N, 3).astype(np.float32)
    for positions in WANTED:
        where = np.array(positions, dtype=np.intp)
        assert np.array_equal(read_rows(matrix, where), values[where])


def test_rows_are_those_of_the_matrix(matrix: Matrix) -> None:
    check(matrix)
    check(as_matrix(symmetric(N, 3).astype(np.float32), kind="distance"))


@pytest.mark.cluster
def test_rows_come_from_the_workers_before_and_after_tiles_are_pinned(matrix: Matrix, client: Any) -> None:
    check(matrix)
    relation(matrix).row_sums()
    check(matrix)
    with watch() as meter:
        check(matrix)
    assert (meter.scans, meter.tiles) == (0, 0)


def test_only_the_tiles_of_their_strips_are_read_and_counted(matrix: Matrix) -> None:
    """Two objects of one strip, and one of another: 13 tiles of each."""
    with watch() as meter:
        read_rows(matrix, np.array([31, 38, 127]))
    assert (meter.scans, meter.tiles, meter.bytes) == (0, 26, 26 * matrix.layout.tile_bytes)


@pytest.mark.cluster
def test_workers_read_a_tile_of_two_strips_once(matrix: Matrix, client: Any) -> None:
    with watch() as meter:
        read_rows(matrix, np.array([31, 38, 127]))
    assert (meter.scans, meter.tiles, meter.bytes) == (0, 25, 25 * matrix.layout.tile_bytes)


def test_a_damaged_tile_is_no_row(matrix: Matrix) -> None:
    tile = Path(matrix.files.file(0, 3))
    content = bytearray(tile.read_bytes())
    content[7] ^= 1
    tile.write_bytes(content)
    assert read_rows(matrix, np.array([50])).shape == (1, N)
    with pytest.raises(StoreError, match=r"corrupt.*tile \(0, 3\)"):
        read_rows(matrix, np.array([33]))
