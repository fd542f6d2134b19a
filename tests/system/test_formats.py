"""What version 0.2 has written opens: the files of tests/data/formats, which are not written again."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dasrel
from dasrel.cli import app
from dasrel.engine.checkpoint import Checkpoint
from dasrel.geometry.tree import Tree
from dasrel.kernels import native
from dasrel.util.archives import read_state

FORMATS = Path(__file__).parents[1] / "data" / "formats"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that wrote the files, in a copy of them."""
    place = tmp_path / "formats"
    shutil.copytree(FORMATS, place)
    monkeypatch.chdir(place)
    spec = importlib.util.spec_from_file_location("make_formats", FORMATS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stores_hold_their_sources(make: ModuleType) -> None:
    for kind in dasrel.KINDS:
        store = f"stores/{kind}.zarr"
        np.testing.assert_array_equal(np.asarray(dasrel.open_matrix(store)), make.matrix(kind))
        assert dasrel.audit_store(store, verify=True)["verified"] == {"tiles": 3, "bad": []}
    grown = dasrel.open_matrix("stores/appended.zarr")
    assert [str(name) for name in grown.ids] == [f"é{k}" for k in range(make.N)]
    np.testing.assert_array_equal(np.asarray(grown), make.matrix("distance").astype("float32"))


def test_models_trees_and_relations_are_loaded(make: ModuleType) -> None:
    D, groups = make.matrix("distance"), np.arange(make.N) % 2
    for rule in make.RULES:
        model = dasrel.Model.load(f"models/{rule}.npz")
        assert (model.rule, model.kind, model.n_clusters) == (rule, "distance", 2)
        if not rule.startswith("pcm"):  # whose clusters may end in one mode
            found = model.predict(D)
            assert np.array_equal(found, found[:2][groups])
    tree = Tree.load("trees/tree.npz")
    heights = dasrel.Dendrogram.load("trees/dendrogram.npz").heights
    assert tree.weights.sum() == pytest.approx(dasrel.minimum_spanning_tree(D, kind="distance").weights.sum())
    np.testing.assert_allclose(heights, dasrel.linkage(D, kind="distance", method="average").heights, rtol=1e-12)
    loaded = dasrel.Euclideanized.load("trees/euclidean.npz", "stores/distance.zarr")
    expected = D**2 + loaded.gamma * dasrel.ultrametric(tree).block(slice(0, make.N), slice(0, make.N))
    np.testing.assert_allclose(loaded.relation.rows(range(make.N)), expected, rtol=1e-12, atol=1e-12)


def test_a_result_is_shown_and_is_a_warm_start(make: ModuleType) -> None:
    dasrel.write_report("result", "page.html")
    line = "cluster stores/distance.zarr warm --rule fcm2 --clusters 2 --warm-start result --quiet"
    assert app.run(line.split()) == 0


def test_a_checkpoint_is_resumed(make: ModuleType) -> None:
    state = read_state(Checkpoint("checkpoint").files("cluster")[0])
    resumed = make.clustering("other", "--checkpoint", "checkpoint", "--resume")
    if state["about"]["kernels"] != native.signature():
        assert app.run(resumed) == 1  # with other kernels the bits would be others
        return
    assert app.run(resumed) == 0
    found, kept = (np.load(Path(folder) / "memberships.npy") for folder in ("other", "result"))
    np.testing.assert_allclose(found, kept, rtol=1e-9)
    assert json.loads(Path("other/result.json").read_text())["scans"] > 1


def test_the_steps_of_a_workflow_are_done(make: ModuleType) -> None:
    before = Path("workflow/steps/tree/result.json").read_bytes()
    assert app.run(["run", "workflow/steps.toml", "--quiet"]) == 0
    assert Path("workflow/steps/tree/result.json").read_bytes() == before
