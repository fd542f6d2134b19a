"""The layout of the code: imports go one way, and nothing runs what it finds in data."""

import ast
import re
from pathlib import Path

import pytest

import dasrel

HERE = Path(dasrel.__file__).parent
# Each module may import only those that stand before it.
ORDER = [
    *("_version", "errors", "vocabulary", "stopping", "meter", "statefile", "checkpoint"),
    *("tasks", "workers", "mapping", "compiled", "record", "intake", "skinny", "tiles", "forest", "rules"),
    *("source", "store", "writer", "claim", "growing", "parts"),
    *("arrays", "sparse", "spool", "guess", "rows", "text", "pairlist", "pairs", "formats", "readers"),
    *("features", "metrics", "pairwise", "additions", "append", "audit"),
    *("ahead", "graph", "scan", "direct", "products", "relation", "identity"),
    *("tree", "ultrametric", "images", "lanczos", "spectrum"),
    *("distortion", "pencil", "shifts", "euclidean", "export"),
    *("model", "runs", "starts", "motion", "picard", "delivered", "results", "outputs", "matching"),
    *("asked", "orders", "estimators"),
    *("probe", "planning", "forecast"),
    *("figures", "demo", "clusters", "runtime"),
    *("contents", "lock", "ledger", "tables", "recipe", "steps", "standing", "workflow"),
    *("progress", "talk", "options"),
    *("cli_append", "cli_plan", "cli_cluster", "cli_pictures", "cli_structure", "cli_run", "cli", "__main__"),
]
MODULES = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "__init__")


def tree(module: str) -> ast.Module:
    return ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))


def imported(module: str) -> set[str]:
    """The dasrel modules that a module imports, wherever in it; other names of the package count as `dasrel`."""
    found = set()
    for node in ast.walk(tree(module)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} uses a relative import"
            names = [node.module or ""]
            if node.module == "dasrel":
                names = [f"dasrel.{a.name}" if a.name in MODULES else "dasrel" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.removeprefix("dasrel.") for name in names if name.split(".")[0] == "dasrel"}
    return found


def test_every_module_has_its_place() -> None:
    assert [module for module in MODULES if module not in ORDER] == []
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    before = ORDER[: ORDER.index(module)]
    assert sorted(imported(module) - set(before)) == []


@pytest.mark.parametrize("module", [*MODULES, "__init__"])
def test_data_is_never_run(module: str) -> None:
    """No eval, no unpickling: pickle may write, to see whether an object can travel, but not read."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"line {node.lineno}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pickle":
            assert node.attr in ("dumps", "PicklingError"), f"line {node.lineno}"
        if isinstance(node, ast.ImportFrom):
            assert node.module not in ("pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve")
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name not in ("joblib", "dill", "cloudpickle", "marshal", "shelve")
                assert alias.name != "pickle" or alias.asname is None
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


def test_test_files_import_helpers_only() -> None:
    """What two of them need is in tests/helpers or a fixture of conftest.py."""
    for path in Path(__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert [one for one in names if re.match(r"tests(?!\.helpers\b)|test_|conftest", one)] == [], path


def test_public_names_are_all_there() -> None:
    """The names that a type checker sees, those that are imported on demand, and `__all__` are the same."""
    seen = {
        (node.module, alias.name)
        for block in tree("__init__").body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {(f"dasrel.{home}", name) for home, names in dasrel._HOMES.items() for name in names}
    assert sorted(dasrel.__all__) == sorted([*(name for _, name in seen), "__version__"])
    for _, name in seen:
        assert not isinstance(getattr(dasrel, name), type(ast)), f"dasrel.{name} is a module"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dasrel.nonsense
