"""Files written by dasrel 0.1.0 open and give the same bits; tests/data/formats/README.md says what they are."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dasrel

FORMATS = Path(__file__).parents[1] / "data" / "formats"
MADE = json.loads((FORMATS / "made.json").read_text(encoding="utf-8"))
STORE = "stores/distance-float64.zarr"
KINDS = ("distance", "squared-distance", "similarity", "kernel")
METHODS = ("spread", "ultrametric", "power", "exponential", "log")
MODELS = ("fcm1", "fcm2", "pcm1", "pcm2", "hard", "kernel", "spread")


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """The script that wrote the files."""
    spec = importlib.util.spec_from_file_location("make_formats", FORMATS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def same_kernel(make: ModuleType) -> bool:
    """Whether products and functions have the last bits here that they had where the files were written."""
    found = make.numbers(str(FORMATS / STORE))
    return all(MADE[name] == word for name, word in found.items())


@pytest.fixture(autouse=True)
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: ModuleType) -> None:
    """Work in a copy of the files; the sources have the modification time that an interrupted import has recorded."""
    place = tmp_path / "formats"
    shutil.copytree(FORMATS, place)
    for source in (place / "sources").iterdir():
        os.utime(source, ns=(make.MODIFIED, make.MODIFIED))
    monkeypatch.chdir(place)


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of dasrel, which must exit with this code."""
    paths = [str(Path(dasrel.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "dasrel", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def resumed(*arguments: str) -> bool:
    """Resume a command to its end; False if this dasrel has another version, which must say so instead."""
    if dasrel.__version__ == MADE["version"]:
        run(*arguments)
        return True
    reported = run(*arguments, code=1).stderr
    assert MADE["version"] in reported
    assert dasrel.__version__ in reported
    return False


def bits(array: Any) -> tuple[Any, ...]:
    array = np.asarray(array)
    return array.dtype, array.shape, array.tobytes()


def check_same(found: Any, expected: Any, exact: bool, tolerance: float = 1e-12) -> None:
    """Compare bits, or values to a tolerance where the last bits of products are others."""
    if exact:
        assert bits(found) == bits(expected)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def members(path: str | Path) -> dict[str, Any]:
    """The arrays of an .npz file as bits, its description as values without the version of dasrel that wrote it."""
    with np.load(path, allow_pickle=False) as file:
        found = {name: bits(file[name]) for name in file.files if name != "about"}
        about = json.loads(file["about"].tobytes())
    assert about.pop("dasrel")
    return {**found, "about": about}


def tile_bytes(store: str | Path) -> dict[str, bytes]:
    """Each tile of a store as it lies on disk."""
    home = Path(store, "values", "c")
    return {file.relative_to(home).as_posix(): file.read_bytes() for file in home.glob("*/*")}


def manifest(store: str | Path) -> dict[str, Any]:
    """The description that a store holds, without the version of dasrel that wrote it."""
    about: dict[str, Any] = json.loads(Path(store, "zarr.json").read_text(encoding="utf-8"))["attributes"]["dasrel"]
    for one in (about["provenance"], *about["provenance"].get("appends", ())):
        assert one.pop("dasrel")
    return about


def values(store: str | Path) -> np.ndarray:
    """All values of a store; the diagonal of similarities is kept beside them."""
    matrix = dasrel.open_matrix(store)
    found: np.ndarray = matrix.rows(matrix.ids)
    return found


# ------------------------------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_gives_its_source(kind: str, dtype: str) -> None:
    store, source = f"stores/{kind}-{dtype}.zarr", np.load(f"sources/{kind}.npy")
    matrix = dasrel.open_matrix(store)
    assert (matrix.kind, matrix.n_objects, [str(name) for name in matrix.ids]) == (kind, 24, [*map(str, range(24))])
    assert bits(values(store)) == bits(source.astype(dtype))
    if kind in ("similarity", "kernel"):
        assert bits(matrix.diagonal) == bits(np.diag(source).astype(dtype).astype("float64"))
    assert dasrel.audit_store(store, verify=True)["verified"]["tiles"] == 6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_import_writes_the_same_store(kind: str, dtype: Any) -> None:
    writing = dasrel.Writing(tile=10, dtype=dtype)
    dasrel.import_matrix(f"sources/{kind}.npy", "again.zarr", kind=kind, writing=writing)
    old = f"stores/{kind}-{dtype}.zarr"
    assert tile_bytes("again.zarr") == tile_bytes(old)
    assert manifest("again.zarr").items() >= manifest(old).items()
    assert dasrel.audit_store(old)["without_checksums"][-1] == "places of 6 tiles"


def test_a_compressed_store_gives_its_source() -> None:
    source = np.load("sources/distance.npy").astype("float32")
    assert bits(values("stores/compressed.zarr")) == bits(source)
    assert dasrel.audit_store("stores/compressed.zarr", verify=True)["verified"]["tiles"] == 6


def test_a_repaired_store_keeps_its_names_and_repairs(make: ModuleType) -> None:
    expected = np.load("sources/flawed.npy")
    expected[3, 7] = expected[7, 3] = (expected[3, 7] + expected[7, 3]) / 2
    expected[2, 11] = expected[11, 2] = np.nanmax(expected)
    expected[5, 5] = 0
    matrix = dasrel.open_matrix("stores/repaired.zarr")
    assert [str(name) for name in matrix.ids] == make.NAMES
    assert bits(values("stores/repaired.zarr")) == bits(expected)
    audit = dasrel.audit_store("stores/repaired.zarr", verify=True)
    assert audit["missing"]["count"] == 1
    assert audit["asymmetry"]["pairs"] == 1
    assert audit["asymmetry"]["largest"] == pytest.approx(0.5)
    assert audit["diagonal"]["maximum"] == 0.25
    repairs = {"symmetrize": "mean", "missing": "max", "diagonal": "zero"}
    assert {name: audit["input"][name] for name in repairs} == repairs


def test_an_interrupted_import_is_resumed() -> None:
    before = tile_bytes("stores/interrupted.zarr")
    assert len(before) == 3
    times = {name: Path("stores/interrupted.zarr/values/c", name).stat().st_mtime_ns for name in before}
    with pytest.raises(dasrel.StoreError):
        dasrel.open_matrix("stores/interrupted.zarr")
    requested = ("--kind", "distance", "--store-dtype", "float64", "--tile", "10")
    if not resumed("import", "sources/distance.npy", "stores/interrupted.zarr", *requested, "--resume"):
        return
    assert tile_bytes("stores/interrupted.zarr") == tile_bytes(STORE)
    assert manifest("stores/interrupted.zarr").items() >= manifest(STORE).items()
    assert {name: Path("stores/interrupted.zarr/values/c", name).stat().st_mtime_ns for name in before} == times
    assert dasrel.audit_store("stores/interrupted.zarr", verify=True)["verified"]["tiles"] == 6


def test_an_appended_store_gives_all_objects() -> None:
    assert bits(values("stores/appended.zarr")) == bits(np.load("sources/distance.npy"))
    assert tile_bytes("stores/appended.zarr") == tile_bytes(STORE)
    assert dasrel.audit_store("stores/appended.zarr", verify=True)["verified"]["tiles"] == 6


def test_an_interrupted_append_shows_the_old_objects_and_is_resumed() -> None:
    source = np.load("sources/distance.npy")
    assert bits(values("stores/appending.zarr")) == bits(np.ascontiguousarray(source[:18, :18]))
    run("append", "stores/appending.zarr", "sources/added.npy")
    assert bits(values("stores/appending.zarr")) == bits(source)
    assert tile_bytes("stores/appending.zarr") == tile_bytes(STORE)
    assert manifest("stores/appending.zarr")["audit"] == manifest("stores/appended.zarr")["audit"]


# ------------------------------------------------------------------------------------------ models, trees and relations


@pytest.mark.parametrize("name", MODELS)
def test_a_model_predicts_the_same(name: str, same_kernel: bool) -> None:
    model = dasrel.Model.load(f"models/{name}.npz")
    kind = {"kernel": "kernel", "spread": "distance"}.get(name, "squared-distance")
    assert (model.rule, model.kind) == ({"kernel": "fcm2", "spread": "fcm1"}.get(name, name), kind)
    assert model.beta == (8 if name == "spread" else 0)
    with np.load("sources/new.npz") as new:
        rows, own = new[kind], np.diag(new["own"])
    given = {"self_similarity": own} if kind == "kernel" else {}
    check_same(model.predict_memberships(rows, **given), np.load(f"models/{name}-predicted.npy"), same_kernel)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_saved_as_it_was(name: str) -> None:
    dasrel.Model.load(f"models/{name}.npz").save("again.npz")
    assert members("again.npz") == members(f"models/{name}.npz")


def test_a_tree_is_loaded_and_saved_as_it_was() -> None:
    loaded = dasrel.Euclideanized.load("relations/ultrametric.npz", STORE)
    assert loaded.tree is not None
    tree = type(loaded.tree).load("tree/tree.npz")
    order = [int(line.split(",")[1]) for line in Path("tree/vat.csv").read_text(encoding="utf-8").splitlines()[1:]]
    assert tree.vat_order().tolist() == order
    assert bits(tree.linkage()) == bits(np.load("tree/linkage.npy"))
    tree.save("again.npz")
    assert members("again.npz") == members("tree/tree.npz")


def test_a_new_tree_has_the_same_files() -> None:
    run("tree", STORE, "again")
    assert members("again/tree.npz") == members("tree/tree.npz")
    for name in ("edges.csv", "linkage.npy", "vat.csv"):
        assert Path("again", name).read_bytes() == Path("tree", name).read_bytes(), name


@pytest.mark.parametrize("method", METHODS)
def test_a_relation_gives_the_same_values(method: str, same_kernel: bool) -> None:
    loaded = dasrel.Euclideanized.load(f"relations/{method}.npz", STORE)
    kept = members(f"relations/{method}.npz")["about"]
    assert loaded.method == method
    assert {name: kept[name] for name in loaded.report()} == loaded.report()
    dasrel.export_matrix(loaded.relation, "again.npy", format="npy")
    expected = np.load(f"relations/{method}.npy")
    check_same(np.load("again.npy"), expected, same_kernel)
    np.testing.assert_allclose(loaded.relation.rows(range(24)), expected, rtol=1e-12, atol=1e-12)
    loaded.save("again.npz")
    assert members("again.npz") == members(f"relations/{method}.npz")


def test_the_spread_is_added_off_the_diagonal() -> None:
    loaded = dasrel.Euclideanized.load("relations/spread.npz", STORE)
    source = np.load("sources/distance.npy")
    expected = (source**2 + loaded.gamma) * ~np.eye(24, dtype=bool)
    np.testing.assert_allclose(np.load("relations/spread.npy"), expected, rtol=1e-14)


def test_a_result_is_a_warm_start(same_kernel: bool) -> None:
    run("cluster", "stores/appended.zarr", "warm", "--rule", "fcm2", "--clusters", "3", "--warm-start", "result")
    expected = np.load("result-warm-start.npy")
    check_same(np.load("warm/memberships.npy"), expected, same_kernel, 1e-9)
    reported = json.loads(Path("warm/result.json").read_text(encoding="utf-8"))
    assert reported["n_objects"] == 24


def test_a_result_predicts_its_own_labels() -> None:
    np.save("rows.npy", np.load("sources/distance.npy")[:18, :18])
    run("predict", "result", "rows.npy", "new.csv")
    found, kept = (
        [line.split(",")[:2] for line in Path(file).read_text(encoding="utf-8").splitlines()[1:]]
        for file in ("new.csv", "result/labels.csv")
    )
    assert found == kept
    assert [int(label) for _, label in kept] == np.load("result/memberships.npy").argmax(axis=1).tolist()


# -------------------------------------------------------------------------------------------- checkpoints and workflows


def resumed_in_two_turns(name: str, scans: int, *command: str) -> bool:
    """Resume a command for one scan, which shows that its checkpoint is used, and then to its end."""
    kept = ("--checkpoint", f"checkpoints/{name}", "--resume")
    assert [file.name for file in Path("checkpoints", name).iterdir()] == [f"{name}-{scans:08d}.npz"]
    if dasrel.__version__ == MADE["version"]:
        run(*command, *kept, "--time-limit", "0s", code=75)
        assert Path("checkpoints", name, f"{name}-{scans + 1:08d}.npz").exists()
    return resumed(*command, *kept)


def test_a_clustering_is_resumed(make: ModuleType, same_kernel: bool) -> None:
    if not resumed_in_two_turns("cluster", 12, "cluster", STORE, "finished", *make.CLUSTERED):
        return
    found = {folder.name.split("-")[0]: np.load(folder / "memberships.npy") for folder in Path("finished").glob("*-*/")}
    assert sorted(found) == ["fcm1", "hard", "pcm2"]
    for rule, memberships in found.items():
        check_same(memberships, np.load(f"checkpoints/cluster-{rule}.npy"), same_kernel or rule == "hard", 1e-9)


def test_a_spectrum_is_resumed(same_kernel: bool) -> None:
    command = ("spectrum", STORE, "--tol", "1e-9", "--json")
    kept = ("--checkpoint", "checkpoints/spectrum", "--resume")
    if dasrel.__version__ != MADE["version"]:
        assert not resumed(*command, *kept)
        return
    run(*command, *kept, "--time-limit", "0s", code=75)
    assert Path("checkpoints/spectrum/spectrum-00000003.npz").exists()
    found = json.loads(run(*command, *kept).stdout)
    expected = json.loads(Path("checkpoints/spectrum.json").read_text(encoding="utf-8"))
    for name in ("lowest", "highest"):
        check_same(found[name], expected[name], same_kernel, 1e-9)
    assert found["scans"] == expected["scans"]


def test_a_euclideanization_is_resumed(same_kernel: bool) -> None:
    command = ("euclideanize", STORE, "--method", "power", "--out", "finished.npz")
    if not resumed_in_two_turns("euclideanize", 2, *command):
        return
    found, expected = members("finished.npz"), members("checkpoints/euclideanize.npz")
    found["about"].pop("requested")  # earlier versions did not write it
    if same_kernel:
        assert found == expected
    for name in ("gamma", "alpha"):
        assert found["about"][name] == pytest.approx(expected["about"][name], rel=1e-3)


def test_a_workflow_redoes_only_what_other_defaults_change() -> None:
    before = {file: file.read_bytes() for file in Path("workflow").rglob("*") if file.is_file()}
    reported = json.loads(run("run", "workflow/steps.toml", "--json").stdout)
    assert {step["step"]: step["status"] for step in reported["steps"]} == {
        "matrix": "unchanged", "euclideanize": "unchanged", "fuzzy": "done", "tree": "unchanged",
    }  # fmt: skip
    after = {file: file.read_bytes() for file in Path("workflow").rglob("*") if file.is_file()}
    state = Path("workflow/steps/run.state.json")
    fuzzy = Path("workflow/steps/fuzzy")
    assert {file: content for file, content in after.items() if file != state and fuzzy not in file.parents} == {
        file: content for file, content in before.items() if file != state and fuzzy not in file.parents
    }


def test_products_have_the_recorded_bits(same_kernel: bool) -> None:
    factors = np.random.default_rng(5).normal(size=(24, 3))
    found = dasrel.relation(dasrel.open_matrix(STORE)).matmat(factors)
    np.testing.assert_allclose(found, np.load("sources/distance.npy") ** 2 @ factors, rtol=1e-12, atol=1e-10)
    if not same_kernel:
        pytest.skip("products or functions have other last bits here: results were compared to a tolerance")
