"""Errors and warnings: one line for people, with the options of the interface that shows it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
import re
import tomllib
import warnings
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import typer
from distributed.core import error_message
from pydantic import TypeAdapter, ValidationError

import dasrel
from dasrel import errors
from dasrel.cli.app import build_app, run
from dasrel.cli.console import Console, as_option
from dasrel.errors import OPTION, DasrelError, DasrelWarning, InputError, Stopped, StoreError
from dasrel.workflow.schema import as_key, kinds
from dasrel.workflow.tables import RuntimeTable, table_of


def options(command: Any) -> dict[str, Any]:
    """Return the options of a command, each with its type."""
    found = {}
    for parameter in inspect.signature(command).parameters.values():
        kind, info = get_args(parameter.annotation)[:2]
        if isinstance(info, typer.models.OptionInfo):
            found |= {name: kind for name in (info.default, *(info.param_decls or ())) if str(name).startswith("--")}
    return found


HERE = Path(dasrel.__file__).parent
LIBRARY = [path for path in sorted(HERE.rglob("*.py")) if path.relative_to(HERE).parts[0] not in ("cli", "workflow")]
COMMANDS = {str(one.name): options(one.callback) for one in build_app().registered_commands}
CLASSES = [item for item in vars(errors).values() if inspect.isclass(item) and issubclass(item, errors._Message)]


# ------------------------------------------------------------------------------------------ what the source code says


@cache
def texts(path: Path) -> list[str]:
    """Return every string of a module that is no docstring, nor one line of help on a format."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        helps = any(isinstance(target, ast.Name) and "FORMATS" in target.id for target in targets)
        if helps or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            skipped |= {id(part) for part in ast.walk(node)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [node.value for node in strings if id(node) not in skipped]


@pytest.fixture(scope="module")
def named() -> list[tuple[str, str | None]]:
    """Every option that a remedy names, with its value."""
    options = {option.groups() for path in LIBRARY for text in texts(path) for option in OPTION.finditer(text)}
    return sorted(options - {("path", None), ("task.description", None)}, key=str)  # templates, of util.files and rich


def is_placeholder(value: str | None) -> bool:
    return value is None or value.isupper()


def allows(hint: Any, value: str) -> bool:
    """Whether a type takes a word: Literal types list theirs, and any other takes it if it is a str."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_args(hint):
        return any(allows(part, value) for part in get_args(hint))
    return hint in (str, Any) or (hint is bool and value == "True")


def test_the_remedies_are_found(named: list[Any]) -> None:
    assert {("Policy.symmetrize", "mean"), ("resume", "True"), ("memory", None), ("Writing.dtype", "float64")} <= set(
        named
    )
    assert len(named) > 40


def hints_of(name: str) -> list[Any]:
    """Return the types that a keyword has in the public functions and classes that take it."""
    group, _, field = name.rpartition(".")
    if group:
        owner = getattr(dasrel, group)
        assert field in {one.name for one in dataclasses.fields(owner)}, name
        return [get_type_hints(owner)[field]]
    hints = []
    for owner in (getattr(dasrel, one) for one in dasrel.__all__):
        members = [item for key, item in vars(owner).items() if key[0] != "_"] if inspect.isclass(owner) else []
        for item in [owner, *members]:
            if callable(item) and item not in CLASSES and field in inspect.signature(item).parameters:
                home = item.__init__ if inspect.isclass(item) else inspect.unwrap(item)
                hints.append(get_type_hints(home).get(field, Any))
    return hints


def test_remedies_name_real_keywords(named: list[Any]) -> None:
    for name, value in named:
        hints = hints_of(name)
        assert hints, f"no public function takes {name}"
        assert is_placeholder(value) or any(allows(hint, value) for hint in hints), f"{name} does not take {value}"


def test_remedies_name_real_options(named: list[Any]) -> None:
    for name, value in named:
        option, _, word = as_option(name, value).partition(" ")
        kinds = [known[option] for known in COMMANDS.values() if option in known]
        assert kinds, f"no command has {option}"
        if value is not None:
            assert {kind is bool for kind in kinds} == {value == "True"}, option
        if word and not is_placeholder(value):
            assert any(allows(kind, word) for kind in kinds), f"{option} does not take {word}"


NO_KEYS = {"checkpoint", "force", "out", "part", "resume", "self_similarity", "time_limit"}
"""What is said to `dasrel run` itself, and what no step has."""


def test_remedies_name_real_keys(named: list[Any]) -> None:
    """A key is one of a table, and takes the value that goes with it."""
    for name, value in named:
        text = as_key(name, value)
        key = text.partition(" = ")[0]
        fields = [
            table.model_fields[key] for table in (*map(table_of, kinds()), RuntimeTable) if key in table.model_fields
        ]
        assert bool(fields) == (key not in NO_KEYS), text
        if fields and not is_placeholder(value):
            assert any(takes(field, tomllib.loads(text)[key]) for field in fields), text


def takes(field: Any, value: Any) -> bool:
    try:
        TypeAdapter(Annotated[field.annotation, *field.metadata, None]).validate_python(value)
    except ValidationError:
        return False
    return True


def test_the_library_speaks_no_command_line() -> None:
    """Options stand in braces, or in whole commands between backticks, which exist."""
    library = [path for path in LIBRARY if path.parent.name not in ("commands", "report")]
    for path, text in ((one, text) for one in library for text in texts(one)):
        assert re.search(r"(?<![-\w])--[a-z]", re.sub(r"`[^`]*`", "", text)) is None, f"{path.name}: {text}"
        for name, rest in re.findall(r"`dasrel ([a-z]+)([^`]*)`", text):
            assert set(re.findall(r"--[a-z-]+", rest)) <= set(COMMANDS[name]), f"{path.name}: {text}"


# ---------------------------------------------------------------------------------------------------- one line of text


def test_python_writes_keywords() -> None:
    error = InputError("p", where="w", remedy="say {kind=kernel}, {resume=True}, {Policy.missing=VALUE} or {tile}")
    assert str(error) == "p: w; say kind='kernel', resume=True, Policy(missing=VALUE) or tile"
    assert (error.problem, error.where) == ("p", "w")
    assert str(InputError("p", remedy="see {Reading.columns}")) == "p; see Reading(columns=...)"


def test_commands_write_options() -> None:
    error = InputError("p", remedy="say {Policy.clip_negative=TOL}, {Writing.dtype=float64}, {resume=True} or {memory}")
    assert error.text(as_option) == "p; say --clip-negative TOL, --store-dtype float64, --resume or --memory"
    assert as_option("Policy.missing", "VALUE") == "--missing fill=VALUE"
    assert as_option("Policy.missing", "max") == "--missing max"
    assert as_option("n_clusters", None) == "--clusters"


def test_workflows_write_keys() -> None:
    error = InputError(
        "p", remedy="say {Policy.symmetrize=mean}, {Policy.missing=VALUE}, {Writing.dtype} or {force=True}"
    )
    assert error.text(as_key) == 'p; say symmetrize = "mean", missing = VALUE, store_dtype or force'


def test_data_is_no_template() -> None:
    """A file may have any name."""
    error = StoreError("no store at {force=True}", where="{memory}")
    assert str(error) == error.text(as_option) == "no store at {force=True}: {memory}"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_errors_travel(kind: type[Any]) -> None:
    """By pickle, and as workers of Dask send them to the client."""
    more = {"scans": 3, "checkpoint": "c.npz"} if kind is Stopped else {"where": "w"}
    error = kind("p", remedy="say {resume=True}", **more)
    again = pickle.loads(pickle.dumps(error))
    sent = pickle.loads(error_message(error)["exception"].data)
    for one in (again, sent):
        assert type(one) is kind
        assert vars(one) == vars(error)
        assert str(one) == str(error)
    assert str(error).endswith("; say resume=True")


def test_warnings_are_shown_as_options(capfd: pytest.CaptureFixture[str]) -> None:
    note = DasrelWarning("slow", where="runs 1, 2", remedy="raise {max_iter}")
    with pytest.warns(DasrelWarning, match=r"^slow: runs 1, 2; raise max_iter$"):
        warnings.warn(note, stacklevel=1)
    with Console(json=False, quiet=True, verbose=0):
        warnings.warn(note, stacklevel=1)
        warnings.warn("plain", DasrelWarning, stacklevel=1)
    assert capfd.readouterr().err == "dasrel: warning: slow: runs 1, 2; raise --max-iter\ndasrel: warning: plain\n"


# --------------------------------------------------------------------------------------------------------- in commands


def distances(n: int = 12) -> Any:
    """Give distances of points on a line, far from Euclidean when squared twice."""
    x = np.arange(n, dtype=np.float64)
    return np.abs(x[:, None] - x)


def changed(i: int, j: int, value: float) -> Any:
    square = distances()
    square[i, j] = value
    return square


SOURCES = {
    "good": distances(),
    "asymmetric": changed(1, 2, 9.0),
    "one-way": changed(1, 2, np.nan),
    "nan": np.where(np.eye(12, k=1) + np.eye(12, k=-1) > 0, np.nan, distances()),
    "negative": -distances(),
    "diagonal": distances() + np.diag(np.r_[0.5, np.zeros(11)]),
    "similarity": 100 - distances(),
    "large": distances() * 1e300,
    "far": distances() * 1e25,
    "rows": np.zeros((1, 13)),
}
NEW = "new.zarr --kind distance"
CASES = [
    (f"import asymmetric.npy {NEW}", "--symmetrize mean or --symmetrize max"),
    (f"import one-way.npy {NEW}", "--symmetrize mean or --symmetrize max"),
    (f"import nan.npy {NEW}", "--missing fill=VALUE or --missing max"),
    (f"import negative.npy {NEW}", "--clip-negative TOL to set rounding below zero to 0, or --kind similarity"),
    (f"import diagonal.npy {NEW}", "--diagonal zero"),
    (f"import similarity.npy {NEW}", "say --kind similarity, or --diagonal zero if it is a distance"),
    (f"import large.npy {NEW}", "--store-dtype float64"),
    (f"import good.bin {NEW}", "--shape N (objects) and --dtype TYPE"),
    (f"import good.pairs {NEW} --format pairs --columns 1,2,7", "--columns"),
    ("import good.npy store.zarr --kind distance", "--force"),
    ("pairwise far.npy new.zarr --metric sqeuclidean", "--store-dtype float64"),
    ("append named.zarr rows.npy", "--ids FILE"),
    ("export store.zarr good.npy --format npy", "--force"),
    ("image store.zarr good.npy", "--force"),
    ("cluster store.zarr used --rule fcm1 --clusters 2", "--force"),
    ("cluster far.zarr out --rule fcm1 --clusters 3 --n-init 1 --fuzzifier 1.2", "--on-negative heal"),
    ("cluster store.zarr out --rule fcm1 --clusters 2 --memory 1kB", "--memory"),
    ("cluster store.zarr out --rule fcm1 --clusters 2 --tls-ca ca.pem", "--tls-ca, --tls-cert and --tls-key"),
    ("spectrum store.zarr --wait 3", "--scheduler, --scheduler-file or --dask"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sources")
    for name, square in SOURCES.items():
        np.save(place / f"{name}.npy", square)
    distances().tofile(place / "good.bin")
    (place / "good.pairs").write_text("a\tb\t1\na\tc\t2\nb\tc\t1\n")
    (place / "used").mkdir()
    dasrel.import_matrix(distances(), place / "store.zarr", kind="distance")
    names = dasrel.Reading(ids=list("abcdefghijkl"))
    dasrel.import_matrix(distances(), place / "named.zarr", kind="distance", reading=names)
    dasrel.import_matrix(distances() ** 4, place / "far.zarr", kind="distance")
    return place


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_commands_name_options_that_they_have(
    line: str, wanted: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert run(line.split()) in (1, 2)
    report = capfd.readouterr().err.strip().splitlines()[-1]
    assert report.startswith("dasrel: ")
    assert wanted in report
    assert set(re.findall(r"(?<![-\w])--[a-z-]+", report)) <= set(COMMANDS[line.split()[0]])
    assert re.search(r"\b[a-z_]+='|[A-Z][a-z]+\(|\{", report) is None  # nothing of Python, no braces


def test_arrays_are_referred_to_import_matrix() -> None:
    with pytest.raises(InputError) as caught:
        dasrel.relation(SOURCES["asymmetric"], kind="distance")
    assert str(caught.value) == (
        "asymmetric: 1 pair in this block, the worst 1 (object 1) and 2 (object 2): 9 one way, 1 the other;"
        " `dasrel.import_matrix` can repair and record it: say Policy(symmetrize='mean') or Policy(symmetrize='max')"
    )
    assert isinstance(caught.value, DasrelError)
