"""Agglomerations on a scratch file that get kill -9 at random moments, and are resumed: the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dasrel
from dasrel.hierarchy.linkage import prepare_linkage
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.processes import command, killed
from tests.helpers.stores import stored

N = 400


@pytest.mark.parametrize("seed", range(3))
def test_the_same_bits_after_kills(tmp_path: Path, seed: int) -> None:
    matrix = stored(tmp_path / "d.zarr", distances(uniform_points(N, 4, seed)), tile=100)
    memory = prepare_linkage(matrix, "average")._fixed() + 40 * 40 * 4  # forty clusters fit
    line = ["tree", tmp_path / "d.zarr", tmp_path / "out", "--linkage", "average", "--memory", memory, "--no-picture"]
    line += ["--checkpoint", tmp_path / "kept", "--resume", "--quiet"]
    rng = np.random.default_rng(seed)
    # In the scan that fills the file, between two rows, and while a state is written.
    killed("os.pwrite", int(rng.integers(2)), int(rng.integers(1, 2 * N)), *line)
    killed("dasrel.hierarchy.rounds.RowFile.keep", int(rng.integers(2)), int(rng.integers(1, 200)), *line)
    killed("dasrel.util.archives.write_state", int(rng.integers(2)), 2, *line)
    killed("dasrel.hierarchy.rounds.Rounds.move", int(rng.integers(2)), 1, *line)
    done = command(*line)
    assert done.returncode == 0, done.stderr
    whole = dasrel.linkage(matrix, method="average")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "linkage.npy"), whole.to_scipy())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.zarr", "out"]
