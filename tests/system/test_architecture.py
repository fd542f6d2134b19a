"""The layout of the code: imports go one way, and nothing runs what it finds in data."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import dasrel
from dasrel import errors

pytestmark = pytest.mark.guarantee
HERE = Path(dasrel.__file__).parent
# A room imports only rooms before it. What lies beside the rooms: everybody may import `errors` and `names`, which
# import nothing of dasrel.
ROOMS = (
    "util", "kernels", "store", "engine", "io", "geometry", "partition", "judging", "cmeans", "oneclass", "hierarchy",
    "density", "medoids", "estimators", "report", "commands", "workflow", "cli",
)  # fmt: skip
METHODS = {"cmeans", "oneclass", "hierarchy", "density", "medoids"}
BESIDE = {
    "__init__.py",
    "__init__.pyi",
    "__main__.py",
    "errors.py",
    "py.typed",
    "names.py",
}
MODULES = sorted(path.relative_to(HERE).with_suffix("").as_posix() for path in HERE.rglob("*.py"))


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))


def modules_named(module: str) -> set[str]:
    """Return all that a module imports, anywhere in it, by its full name."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} uses a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@cache
def imported(module: str) -> set[str]:
    """Return the dasrel modules that a module imports, anywhere in it; public names count as `__init__`."""
    return {home(name) for name in modules_named(module) if name.split(".")[0] == "dasrel"} - {module}


def home(name: str) -> str:
    """Return the module of a dotted name such as `dasrel.util.text.shown`."""
    parts = name.split(".")[1:]
    while parts and "/".join(parts) not in MODULES:
        if "/".join([*parts, "__init__"]) in MODULES:
            return "/".join([*parts, "__init__"])
        parts.pop()
    return "/".join(parts) or "__init__"


def level(module: str) -> int:
    """Return how high a module stands: what it imports stands lower, or in the same room."""
    room = module.split("/")[0]
    if room in ROOMS:
        return ROOMS.index(room)
    return {"__main__": len(ROOMS)}.get(room, -1)


def test_the_rooms_are_these() -> None:
    assert {path.name for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)
    assert {path.name for path in HERE.iterdir() if path.is_file()} == BESIDE


def test_imports_go_one_way() -> None:
    for module in MODULES:
        assert [other for other in sorted(imported(module)) if level(other) > level(module)] == [], module
        if level(module) < 0:
            assert imported(module) == set(), module


def test_imports_have_no_cycles() -> None:
    graph = {module: imported(module) - {"__init__"} for module in MODULES}
    chains: dict[str, int] = {}
    for module in TopologicalSorter(graph).static_order():
        chains[module] = 1 + max((chains[other] for other in graph[module] - {module}), default=0)
    assert set(chains) == {*MODULES}
    # A call should be followed from the command to the tile in a few files, imports for type checkers included.
    assert max(chains.values()) <= 16


def test_files_can_be_read_from_top_to_bottom() -> None:
    lines = {module: len((HERE / f"{module}.py").read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {module: count for module, count in lines.items() if count > 650} == {}


def test_data_is_never_run() -> None:
    """No eval, no unpickling: pickle may write, to see whether an object can travel, but not read."""
    for module, node in ((name, node) for name in MODULES for node in ast.walk(tree(name))):
        where = f"{module}, line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), where
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pickle":
            assert node.attr in ("dumps", "PicklingError"), where
        if isinstance(node, ast.ImportFrom):
            assert node.module not in ("pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"), where
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name not in ("joblib", "dill", "cloudpickle", "marshal", "shelve"), where
                assert alias.name != "pickle" or alias.asname is None, where
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), where
            assert node.value.value is False, where


# What is advised after a sign of punctuation in the text of an error would be shown as it stands: only a remedy names
# options as Python, the command line or a workflow writes them.
ADVICE = re.compile(
    r"[;:,] (?:or |so )?(?:give|say|use|make|choose|raise|leave|try|add|run|install|set|look|remove|convert|check|wait"
    r"|write|export|copy|repair|request|move|read|did you mean) |(?:is|are) needed\b"
)
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and hasattr(value, "text")}


def test_what_to_do_about_an_error_is_its_remedy() -> None:
    texts = {"InputError('x; give y')", "StoreError(f'{a} is bad: use {b}')", "InputError(f'{a} {did_you_mean(b)}')"}
    assert all(advice_in(ast.parse(text)) for text in texts)
    assert not advice_in(ast.parse("InputError(f'{a}: bad', remedy='give b; use c')"))
    faults = [f"{module}: {text}" for module in MODULES for text in advice_in(tree(module))]
    assert not faults, "\n".join(faults)


def advice_in(tree: ast.AST) -> list[str]:
    """Return the texts of errors, raised or returned, that hold an advice."""
    texts = [
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and getattr(node.func, "id", None) in ERRORS
    ]
    return [text for text in texts if ADVICE.search(text) or "did_you_mean(" in text]


WRITES_PLAINLY = {
    ("cli/help", "write_text"),  # no file: the lines of a help
    ("__main__", "open"),  # the null device, for a process without stdout
    ("engine/readahead", "open"),  # the null device
    ("workflow/status", "open"),  # a log, which is appended to
    # In folders that this process has just made, under names that nobody knew, or (import) for this user only:
    ("util/results", "write_text"),
    ("commands/tree", "write_text"),
    ("commands/spectrum", "write_text"),
    ("io/importing", "write_text"),
    ("io/neighbour_graph", "open"),  # no files: members of an archive that was made exclusively
    ("io/readers/source", "open"),  # appends to a file that was made exclusively
}


def test_files_are_made_exclusively() -> None:
    """A file that is written over may be a link that somebody else has put there."""
    plain = set()
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            text = ast.unparse(node)
            writes = name == "open" and re.search(r"'[wa]b?\+?'", text)
            if name in ("write_text", "write_bytes") or writes:
                plain.add((module, name))
            if name == "open" and "O_CREAT" in text:
                assert "O_EXCL" in text, f"{module}: {text}"
            assert name not in ("mktemp", "getpid") or module in ("engine/scan", "util/parallel", "util/files"), module
    assert plain == WRITES_PLAINLY


def test_imports_are_declared() -> None:
    """What dasrel imports is Python's own or a dependency in pyproject.toml; IPython is there where a notebook runs."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    written = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    declared = {re.split(r"[\[<>=;]", line)[0].strip().lower() for line in written}
    names = {module: {*found} for module, found in packages_distributions().items()}
    used = {name.partition(".")[0] for module in MODULES for name in modules_named(module)}
    for name in sorted(used - sys.stdlib_module_names - {"dasrel", "IPython"}):
        known = {one.lower().replace("_", "-") for one in names.get(name, {name})}
        assert known & declared, f"{name} is imported and not declared in pyproject.toml"


def test_test_files_import_helpers_only() -> None:
    """What two of them need is in tests/helpers or a fixture of conftest.py. The fuzzer is a program of its own."""
    other = re.compile(r"tests(?!\.helpers\b|\.system\.fuzz\b)|test_|conftest")
    for path in Path(__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert [one for one in names if other.match(one)] == [], path


def test_each_promise_has_a_test_that_is_always_run() -> None:
    """The table of CONTRIBUTING.md names tests that are there, and in each row one that is quick or a `guarantee`."""
    root = Path(__file__).parents[2]
    table = (root / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| promise |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line) for line in table.splitlines()[2:]]
    assert len(rows) > 12
    for row in rows:
        always = [is_always_run(root / file, name) for file, name in row]
        assert any(always), row


def test_tests_that_pages_name_are_there() -> None:
    root = Path(__file__).parents[2]
    named = {
        test
        for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
        for test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) >= 40
    absent = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (root / file).read_text("utf-8")]
    assert absent == []


def is_always_run(file: Path, name: str) -> bool:
    """Return whether `python -m pytest` runs a test, or a case of it; fail if there is no test of this name."""
    text = file.read_text(encoding="utf-8")
    (test,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    marks = " ".join(map(ast.unparse, test.decorator_list))
    if file.parent.name == "system" or "workers" in ast.unparse(test.args) or re.search(r"slow(?!\(after)", marks):
        return "mark.guarantee" in text  # of this test, of some of its cases, or of the whole file
    return True


def test_help_begins_with_an_overview() -> None:
    """It names what most people need, in about twenty lines."""
    assert dasrel.__doc__ is not None
    assert 15 <= len(dasrel.__doc__.splitlines()) <= 30
    named = set(re.findall(r"\b[a-zA-Z_]+\b", dasrel.__doc__))
    wanted = {name for name in dasrel.__all__ if name[0].islower()} | {
        "Run",
        "Checkpoint",
        "Runtime",
        "FuzzyCMeans",
    }
    assert sorted(wanted - named) == []


def test_what_the_command_line_needs_to_begin_is_light() -> None:
    """Options, messages and help need neither NumPy nor what takes longer to import."""
    light = [
        "names",
        "errors",
        "io.options",
        "store.options",
        "partition.run",
        "kernels.native",
        "engine.checkpoint",
        "engine.runtime",
    ]
    light += [f"util.{name}" for name in ("text", "limits", "results", "progress", "drawing", "files", "option_fields")]
    code = f"import sys, {', '.join(f'dasrel.{name}' for name in light)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "scipy", "dask", "distributed", "zarr", "pydantic", "rich", "asyncio"} & {*loaded} == set()


def test_public_names_are_all_there() -> None:
    """Every name of the stub is found where it says, and `dasrel` has no others."""
    for name in dasrel.__all__:
        assert not isinstance(getattr(dasrel, name), type(ast)), f"dasrel.{name} is a module"
    assert dir(dasrel) == sorted(dasrel.__all__)
    with pytest.raises(AttributeError, match="No dasrel attribute nonsense"):
        _ = dasrel.nonsense
