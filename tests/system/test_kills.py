"""Commands that get kill -9 and are resumed: the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dasrel
from tests.helpers.matrices import grouped_points
from tests.helpers.processes import CLUSTER, killed, ran
from tests.helpers.stores import files, result_files

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")
SHORT = (*CLUSTER, "--max-iter", 6)


@pytest.fixture
def store(source: Path) -> Path:
    return source / "d.zarr"


@pytest.mark.parametrize(
    "moments",
    [
        [("scan", 1, 1), ("scan", 4, 0)],
        [("numpy.save", 0, 1), ("dasrel.outputs._replace", 0, 1)],  # while the results are written, and before a rename
        [("dasrel.outputs._replace", 1, 1)],  # they are in place, and the checkpoint is not yet removed
    ],
)
def test_a_clustering_that_is_killed(tmp_path: Path, store: Path, moments: list[tuple[str, int, int]]) -> None:
    assert ran("cluster", store, tmp_path / "whole", *SHORT) == 0
    out = tmp_path / "out"
    command = ["cluster", store, out, *SHORT, "--checkpoint", tmp_path / "kept", "--resume"]
    for moment in moments:
        killed(*moment, *command)
    if out.exists():
        before = files(out)
        assert ran(*command) == 1  # it is there, and whole
        assert files(out) == before
    else:
        assert ran(*command) == 0
        assert not (tmp_path / "kept").exists()
    assert result_files(out) == result_files(tmp_path / "whole")


def test_spectrum_and_euclideanize_that_are_killed(
    tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = ("--checkpoint", tmp_path / "kept", "--resume")
    spectrum = ("spectrum", store, "--tol", 1e-9, "--json", "--quiet")
    changed = ("euclideanize", store, "--method", "ultrametric", "--json", "--quiet", "--out")
    assert ran(*spectrum) == 0
    whole = json.loads(capfd.readouterr().out)
    killed("scan", 2, 0, *spectrum, *kept)
    assert ran(*spectrum, *kept) == 0
    assert {**json.loads(capfd.readouterr().out), "seconds": 0} == {**whole, "seconds": 0}
    assert ran(*changed, tmp_path / "a.npz") == 0
    killed("scan", 3, 0, *changed, tmp_path / "b.npz", *kept)  # in the tree, or in the search behind it
    killed("os.replace", 0, 3, *changed, tmp_path / "b.npz", *kept)
    assert not (tmp_path / "b.npz").exists()
    assert ran(*changed, tmp_path / "b.npz", *kept) == 0
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    left = {one.suffix for one in tmp_path.iterdir() if one.name not in ("a.npz", "b.npz")}
    assert left <= {".partial"}  # what was being written when it was killed is not taken for the file


def test_pairwise_and_append_that_are_killed(tmp_path: Path, source: Path) -> None:
    old, new = tmp_path / "old.npy", tmp_path / "new.npy"
    np.save(old, grouped_points(180)[:100])
    np.save(new, grouped_points(180)[100:])
    whole, store = tmp_path / "whole", tmp_path / "s"
    made = (old, "--metric", "cityblock", "--tile", 30, "--quiet")
    assert ran("pairwise", made[0], whole, *made[1:]) == 0
    killed("pairwise", 0, 4, "pairwise", made[0], store, *made[1:])
    killed("dasrel.writer.open_matrix", 0, 1, "pairwise", made[0], store, *made[1:], "--resume")  # complete by then
    assert files(store) == files(whole)
    added = (new, "--features", old, "--quiet")
    assert ran("append", whole, *added) == 0
    killed("append", 0, 3, "append", store, *added)
    assert dasrel.open_matrix(store).n_objects == 100
    assert ran("append", store, *added) == 0
    found, expected = dasrel.open_matrix(store), dasrel.open_matrix(whole)
    assert (found.rows(found.ids) == expected.rows(expected.ids)).all()
    assert sorted(one.name for one in tmp_path.iterdir()) == [".s.lock", "new.npy", "old.npy", "s", "whole"]
