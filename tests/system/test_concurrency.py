"""Two processes that write to one place: one wins, and the other is refused in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from dasrel import Writing, outputs, text, writer
from dasrel.errors import InputError, StoreError
from dasrel.runs import grid
from dasrel.store import TileFiles
from tests.helpers.matrices import distances, grouped_points

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge:dasrel.DasrelWarning")


@pytest.fixture
def store(source: Path) -> Path:
    return source / "d.zarr"


def at_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, other: Callable[[], Any]) -> None:
    """Let `other` happen when a function is called for the first time, before it does its work."""
    original = getattr(owner, name)

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        other()
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, late)


def test_two_imports_into_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one comes while the source is put aside, while tiles are written, and while a store is replaced."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    np.savetxt(first, distances(grouped_points(60)), delimiter=",")
    np.savetxt(second, 2 * distances(grouped_points(60)), delimiter=",")
    store, refused = tmp_path / "s", []

    def other(**how: Any) -> None:
        with pytest.raises(StoreError, match=f"{store} is being written by another process; wait"):
            dasrel.import_matrix(second, store, kind="distance", writing=Writing(tile=20, **how))
        refused.append(how)

    for owner, name in ((text, "open_text"), (writer, "create_group"), (TileFiles, "write")):
        for how in ({}, {"force": True}, {"resume": True}):
            at_once(monkeypatch, owner, name, lambda how=how: other(**how))
            dasrel.import_matrix(first, store, kind="distance", writing=Writing(tile=20, force=True))
            found = dasrel.open_matrix(store)
            np.testing.assert_array_equal(found.rows(found.ids), distances(grouped_points(60)).astype("float32"))
    assert len(refused) == 9
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first.csv", "s", "second.csv"]
    # Whoever was refused may come again afterwards.
    dasrel.import_matrix(second, store, kind="distance", writing=Writing(tile=20, force=True))


def test_many_processes_write_one_store(tmp_path: Path) -> None:
    """Real processes that begin together: one makes its store, the others say why not in one line."""
    sources = [tmp_path / f"x{k}.npy" for k in range(4)]
    for k, one in enumerate(sources):
        np.save(one, (k + 1) * grouped_points(60))
    line = [sys.executable, "-m", "dasrel", "pairwise"]
    processes = [
        subprocess.Popen([*line, str(one), str(tmp_path / "s"), "--metric", "euclidean", "--tile", "4", "--quiet"],
                         stderr=subprocess.PIPE, text=True)
        for one in sources
    ]  # fmt: skip
    told = [process.communicate(timeout=240)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 1, 1, 1], told
    for code, said in zip(codes, told, strict=True):
        assert re.fullmatch(r"dasrel: .* (is being written by|exists \(state complete\)).*\n" if code else "", said)
    scale = codes.index(0) + 1
    found = dasrel.open_matrix(tmp_path / "s")
    np.testing.assert_allclose(found.rows(found.ids), scale * distances(grouped_points(60)), rtol=1e-6)


def test_two_clusterings_into_one_folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    three, two = (dasrel.cluster(store, grid("hard", k, n_init=1)) for k in (3, 2))
    at_once(monkeypatch, outputs, "_replace", lambda: outputs.save_clustering(two, out))
    with pytest.raises(InputError, match=r"out exists; choose another place"):
        outputs.save_clustering(three, out)
    assert np.load(out / "memberships.npy").shape == (180, 2)
    at_once(monkeypatch, outputs, "_replace", lambda: outputs.save_clustering(two, out, force=True))
    outputs.save_clustering(three, out, force=True)
    assert np.load(out / "memberships.npy").shape == (180, 3)
    assert json.loads((out / "result.json").read_text())["settings"][0]["n_clusters"] == 3
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
