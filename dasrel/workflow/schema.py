"""TOML workflows: tables of steps, reading, linking, names of outputs.

The tables of a workflow file, a class for each kind of step. Keys and defaults are those of the commands.

Workflow files: TOML that names steps, checked to the last word before anything is done.

Each table is a step, `[KIND.NAME]`, or `[KIND]` where there is one of its kind. The kinds are commands, and the keys
are the commands' options with underscores. Steps name each other by their names. Nothing in a file is run: no shell,
no templates, no imports; and names of steps are plain words, so that what they write stays in the folder `out`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dasrel.engine.runtime import TLS, Runtime, parsed_cluster
from dasrel.errors import InputError
from dasrel.util.text import did_you_mean, redacted, shown, some
from dasrel.vocabulary import INITS, METHODS, OPTIONS, TAKES, ExportName, KindName, MethodName, RuleName


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?\s*([kKMGTP]i?)?B?", text):
        raise ValueError("is no amount of memory; give such as 512MiB or 4GB")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


def _missing(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("fill="):
        try:
            value = float(value.removeprefix("fill="))
        except ValueError:
            raise ValueError("is neither max nor fill=VALUE") from None
    return value


Memory = Annotated[str, AfterValidator(_memory)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rules = Annotated[list[RuleName], BeforeValidator(_listed), Field(min_length=1)]
Counts = Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_listed), Field(min_length=1)]
Printable = Annotated[str, AfterValidator(_printable)]
Every = Annotated[int, Field(ge=1)]
"""Scans between two checkpoints; if not given, as many as read some gigabytes."""
Words = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


def _several(kind: Any) -> Any:
    return Annotated[list[kind], BeforeValidator(_listed), Field(min_length=1)]


class Table(BaseModel):
    """What all tables have in common: keys that are not known are refused, and values are not bent into a type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    HOW: ClassVar[tuple[str, ...]] = ("memory",)
    """Keys that change how a step works and not what it writes."""
    FILES: ClassVar[tuple[str, ...]] = ()
    """Keys that name files to read."""
    SUFFIXES: ClassVar[tuple[str, ...]] = ()
    """What the step writes in `out`: its name with each of these."""


class MatrixTable(Table):
    """A step that gives a matrix."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".zarr",)


class Made(MatrixTable):
    """A store that is written here."""

    store_dtype: Literal["float32", "float64"] = "float32"
    tile: Annotated[int, Field(ge=1)] | None = None
    compress: Literal["lz4"] | None = None
    memory: Memory = "1GiB"


class Import(Made):
    """`dasrel import`."""

    FILES = ("source", "ids")
    source: str
    kind: KindName
    format: str | None = None
    ids: str | None = None
    shape: Annotated[int, Field(ge=1)] | None = None
    dtype: str | None = None
    columns: Annotated[list[str | int], Field(min_length=3, max_length=3)] | None = None
    dataset: str | None = None
    symmetrize: Literal["mean", "max"] | None = None
    missing: Annotated[Literal["max"] | Number | None, BeforeValidator(_missing)] = None
    diagonal: Literal["zero"] | None = None
    clip_negative: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    duplicates: Literal["mean", "min", "max", "last"] | None = None


class Pairwise(Made):
    """`dasrel pairwise`."""

    FILES = ("features", "ids")
    features: str
    metric: str
    kind: KindName = "distance"
    metric_option: dict[str, Number] = Field(default_factory=dict)
    ids: str | None = None


class Demo(MatrixTable):
    """The digits of `dasrel demo`: Simpson's dissimilarity, squared-distance."""

    data: Literal["digits"] = "digits"


class Store(MatrixTable):
    """A store that is there already. It is read, never written."""

    FILES = ("path",)
    SUFFIXES = ()
    path: str


class Append(Table):
    """`dasrel append`: to the matrix of this workflow, in the order of the file."""

    FILES = ("source", "ids")
    store: str | None = None
    source: str
    ids: str | None = None
    symmetrize: Literal["mean", "max"] | None = None
    missing: Annotated[Number | None, BeforeValidator(_missing)] = None
    diagonal: Literal["zero"] | None = None
    clip_negative: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    memory: Memory = "1GiB"


class Spectrum(Table):
    """`dasrel spectrum`."""

    HOW = ("every",)  # memory is no mere how: less of it can mean fewer steps of the search
    SUFFIXES = (".json", ".png")
    store: str | None = None
    values: Annotated[int, Field(ge=1)] = 8
    tol: Positive = 1e-3
    max_scans: Annotated[int, Field(ge=1)] = 100
    memory: Memory | None = None
    every: Every | None = None
    picture: bool = False


class Euclideanize(Table):
    """`dasrel euclideanize`."""

    HOW = ("every",)
    SUFFIXES = (".npz",)
    store: str | None = None
    method: MethodName
    alpha: Positive | None = None
    floor_zeros: Positive | None = None
    tol: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    max_scans: Annotated[int, Field(ge=1)] = 200
    memory: Memory | None = None
    every: Every | None = None


class Cluster(Table):
    """`dasrel cluster`."""

    HOW = ("memory", "strict", "every")
    SUFFIXES = ("",)
    store: str | None = None
    rule: Rules
    clusters: Counts
    fuzzifier: _several(Annotated[float, Field(gt=1, allow_inf_nan=False)]) | None = None  # type: ignore[valid-type]
    entropy_weight: _several(Literal["auto"] | Positive) | None = None  # type: ignore[valid-type]
    spread_scale: _several(Positive) | None = None  # type: ignore[valid-type]
    n_init: Annotated[int, Field(ge=1)] = 10
    init: Words = Field(default_factory=lambda: ["random"])
    seed: Annotated[int, Field(ge=0)] = 0
    max_iter: Annotated[int, Field(ge=1)] = 300
    tol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    on_negative: Literal["error", "heal"] = "error"
    spread: _several(Annotated[float, Field(ge=0, allow_inf_nan=False)]) = Field(default_factory=lambda: [0.0])  # type: ignore[valid-type]
    euclideanize: str | None = None
    accelerate: bool = False
    warm_start: Literal[True] | str | None = None
    """A cluster step, a folder of results, or true: the last result of this very step, if it has one that fits."""
    memory: Memory | None = None
    strict: bool = False
    every: Every | None = None

    @model_validator(mode="after")
    def _numbers_fit_rules(self) -> Cluster:
        for name, rules in TAKES.items():
            if getattr(self, name) is not None and not set(self.rule) & set(rules):
                raise ValueError(f"{name} is for {' and '.join(rules)}, not {', '.join(self.rule)}")
        return self


class Tree(Table):
    """`dasrel tree`."""

    SUFFIXES = ("",)
    store: str | None = None
    memory: Memory | None = None


class Image(Table):
    """`dasrel image`."""

    SUFFIXES = (".png", ".pdf", ".svg")
    store: str | None = None
    order: Literal["vat", "ivat", "labels", "eigen", "none"] = "vat"
    result: str | None = None
    induced: bool = False
    pixels: Annotated[int, Field(ge=2, le=20_000)] = 1000
    format: Literal["png", "pdf", "svg"] = "png"
    memory: Memory | None = None

    @model_validator(mode="after")
    def _labels_come_from_a_result(self) -> Image:
        if (self.order == "labels" or self.induced) and self.result is None:
            raise ValueError("result is missing: name the cluster step that the labels are in")
        return self


class Figure(Table):
    """A picture of the memberships of a result, and of the dissimilarity that they induce."""

    SUFFIXES = (".png",)
    result: str
    title: str = ""


class Export(Table):
    """`dasrel export`."""

    SUFFIXES = (".npy", ".lsmat", ".phy", ".zarr")
    store: str | None = None
    format: ExportName
    relation: str | None = None
    memory: Memory = "1GiB"


class Where(Table):
    """`[runtime]`: the fields of `dasrel.runtime.Runtime`, and the memory of steps that do not name theirs."""

    scheduler: Printable | None = None
    scheduler_file: Printable | None = None
    dask: Printable | None = None
    workers: Annotated[int, Field(ge=1)] | None = None
    wait: Positive | None = None
    tls_ca: Printable | None = None
    tls_cert: Printable | None = None
    tls_key: Printable | None = None
    memory: Memory | None = None


TABLES: dict[str, type[Table]] = {
    "import": Import,
    "pairwise": Pairwise,
    "demo": Demo,
    "store": Store,
    "append": Append,
    "spectrum": Spectrum,
    "euclideanize": Euclideanize,
    "cluster": Cluster,
    "tree": Tree,
    "image": Image,
    "figure": Figure,
    "export": Export,
}
"""The kinds of steps, in the order of their work."""


def as_key(name: str, value: str | None) -> str:
    """Write an option of a remedy as a workflow file does. What has no key there, such as `resume`, is named only.

    >>> as_key("Policy.symmetrize", "mean"), as_key("Writing.dtype", None), as_key("resume", "True")
    ('symmetrize = "mean"', 'store_dtype', 'resume')
    """
    key = OPTIONS.get(name, name.rpartition(".")[2])
    tables: list[type[Table]] = [*TABLES.values(), Where]
    if value is None or not any(key in table.model_fields for table in tables):
        return key
    return f"{key} = {value}" if value.isupper() or value.isdecimal() else f'{key} = "{value}"'


NAME = re.compile(r"[A-Za-z0-9_-]+")
SETTING = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
LARGEST = 1 << 20
"""Bytes of a workflow file."""
RUNS_CODE = ("python", "prologue", "directive", "image", "spec")
"""Settings of a cluster that name programs or lines of shell."""


@dataclass(frozen=True)
class Step:
    """One table, checked, with what it takes from others."""

    name: str
    kind: str
    asked: Any
    """The table's values; a model of this module."""
    uses: Mapping[str, str] = field(default_factory=dict)
    """Keys whose value is another step, with its name."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of these, where one setting of a cluster step is meant: its folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Keys whose value is a file, a folder or a URL: absolute."""

    @property
    def is_matrix(self) -> bool:
        """Whether it gives a matrix."""
        return isinstance(self.asked, MatrixTable)


@dataclass(frozen=True)
class Workflow:
    """A workflow file, checked."""

    path: Path
    out: Path
    runtime: Runtime
    steps: Mapping[str, Step]
    """By name, each behind those that it uses."""


def read_workflow(path: str | Path, *, out: str | Path | None = None) -> Workflow:
    """Read and check a workflow file.

    Parameters
    ----------
    out
        A folder for what the steps write, instead of the file's `out`.
    """
    path = Path(path)
    where = shown(path, limit=200)
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{where} has {path.stat().st_size:,} bytes; a workflow file has at most {LARGEST:,}")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the workflow {where}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where} is not TOML: {shown(error, limit=200)}") from None
    folder = path.resolve().parent
    given = content.pop("out", path.stem)
    runtime = content.pop("runtime", {})
    faults = [] if isinstance(given, str) and given else [f"out: {shown(repr(given))} is no folder; give its name"]
    place, memory = _runtime(runtime, folder, faults)
    steps, more = _steps(content, memory)
    faults += more
    if faults:
        raise InputError(f"{where}: {_several_faults(faults)}")
    target = folder / given if out is None else Path(out).resolve()
    linked = {name: _linked(step, steps, folder, faults) for name, step in steps.items()}
    if not any(step.is_matrix for step in linked.values()):
        faults.append(f"there is no matrix; add a table {', '.join(f'[{k}]' for k in _matrices())}")
    if faults:
        raise InputError(f"{where}: {_several_faults(faults)}")
    return Workflow(path.resolve(), target, place, _ordered(linked, where))


def _several_faults(faults: list[str]) -> str:
    return some(faults, show=3).replace(", [", "; [")


def _steps(content: dict[str, Any], memory: str | None) -> tuple[dict[str, Step], list[str]]:
    """The tables as steps, and what is wrong with them."""
    steps: dict[str, Step] = {}
    faults: list[str] = []
    for kind, tables in content.items():
        if kind not in TABLES:
            faults.append(f"[{shown(kind)}]: unknown; {did_you_mean(kind, [*TABLES, 'runtime', 'out'])}")
            continue
        if not isinstance(tables, dict):
            faults.append(f"{kind}: {shown(repr(tables))} is no table; write [{kind}] and its keys below")
            continue
        named = bool(tables) and all(isinstance(value, dict) for value in tables.values())
        for name, table in tables.items() if named else [(_default_name(kind), tables)]:
            place = f"[{kind}.{shown(name)}]" if named else f"[{kind}]"
            if not NAME.fullmatch(name):
                faults.append(f"{place}: a name is made of letters, digits, _ and -")
            elif name in steps:
                faults.append(f"{place}: the name {name} is taken by [{steps[name].kind}.{name}]; choose another")
            else:
                usual = {} if memory is None or "memory" not in TABLES[kind].model_fields else {"memory": memory}
                step = _checked(kind, name, {**usual, **table}, place, faults)
                if step is not None:
                    steps[name] = step
    return steps, faults


def _default_name(kind: str) -> str:
    return "matrix" if kind in _matrices() else kind


def _matrices() -> list[str]:
    return [kind for kind, table in TABLES.items() if issubclass(table, MatrixTable)]


def _checked(kind: str, name: str, table: dict[str, Any], place: str, faults: list[str]) -> Step | None:
    try:
        return Step(name, kind, TABLES[kind].model_validate(table))
    except ValidationError as error:
        faults += explained(place, TABLES[kind].model_fields, error)
        return None


def explained(place: str, known: Iterable[str], error: ValidationError) -> list[str]:
    """What pydantic found, each fault in one line: where, what, and the nearest word that would do."""
    told: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False, include_context=False):
        where = "".join(f"[{part}]" if isinstance(part, int) else f" {part}" for part in fault["loc"][:1])
        numbers = "".join(f"[{part}]" for part in fault["loc"][1:] if isinstance(part, int))
        what = fault["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            what = f"unknown; {did_you_mean(str(fault['loc'][0]), known)}"
        elif fault["type"] == "missing":
            what = "missing"
        elif fault["loc"]:
            what = f"{shown(repr(fault['input']))} {what}"
        told.setdefault(f"{place}{shown(where)}{numbers}", []).append(what)
    return [f"{where}: {' or '.join(_shortened(parts))}" for where, parts in told.items()]


def _shortened(parts: list[str]) -> list[str]:
    """Faults of one value, which a union has for each of its members, without what the first has said already."""
    return [part if k == 0 else part.partition(" should be ")[2] or part for k, part in enumerate(dict.fromkeys(parts))]


def _runtime(table: Any, folder: Path, faults: list[str]) -> tuple[Runtime, str | None]:
    """Where to run, and the memory of steps that do not name theirs."""
    try:
        given = Where.model_validate(table).model_dump(exclude_none=True)
        memory = given.pop("memory", None)
        for name in parsed_cluster(given["dask"])[1] if "dask" in given else ():
            if name in RUNS_CODE:
                faults.append(
                    f"[runtime] dask: {name} says what is run, and a workflow file does not; give it by --dask"
                    " or DASREL_DASK"
                )
        for key in ("scheduler_file", *TLS):  # as all paths, they are relative to the workflow file
            given |= {key: str(folder / given[key])} if key in given else {}
        return Runtime(**given), memory
    except ValidationError as error:
        faults += explained("[runtime]", Where.model_fields, error)
    except InputError as error:
        faults.append(f"[runtime] {redacted(error.text(as_key))}")
    return Runtime(), None


# ------------------------------------------------------------------------------------------ what steps take from others


def _linked(step: Step, steps: Mapping[str, Step], folder: Path, faults: list[str]) -> Step:
    """The step with its files and the steps that it uses."""
    place = f"[{step.kind}.{step.name}]"
    asked = step.asked
    uses: dict[str, str] = {}
    settings: dict[str, str] = {}
    files: dict[str, str] = {}
    for key in asked.FILES:
        if getattr(asked, key) is not None:
            files[key] = _located(getattr(asked, key), folder)

    def take(key: str, word: str, kinds: Iterable[str], also: Iterable[str] = ()) -> None:
        found = steps.get(word)
        if found is None or found.kind not in kinds:
            those = [name for name, other in steps.items() if other.kind in kinds and name != step.name]
            listed = [*those, *also]
            hint = (
                f"; {did_you_mean(word, listed)}" if listed else f"; there is no step of the kind {' or '.join(kinds)}"
            )
            faults.append(f"{place} {key}: no step {shown(word)!r}{hint}")
        else:
            uses[key] = word

    def take_result(key: str, word: str, also: Iterable[str] = ()) -> None:
        name, slash, setting = word.partition("/")
        take(key, name, ["cluster"], also)
        if slash and not SETTING.fullmatch(setting):
            faults.append(f"{place} {key}: {shown(word)!r} is not STEP or STEP/SETTING, such as k/fcm1-clusters3")
        elif slash:
            settings[key] = setting

    if hasattr(asked, "store"):
        matrices = [name for name, other in steps.items() if other.is_matrix]
        if asked.store is not None:
            take("store", asked.store, _matrices())
        elif len(matrices) > 1:
            faults.append(f"{place} store: missing; there are several matrices: {', '.join(matrices)}")
        elif matrices:
            uses["store"] = matrices[0]
        if "store" in uses:
            _appended(step, steps, uses, files, folder, faults)
    for key, also in (("euclideanize", METHODS), ("relation", ("plain",))):
        wanted = getattr(asked, key, None)
        if wanted is not None and wanted.endswith(".npz"):
            files[key] = _located(wanted, folder)
        elif wanted is not None and (wanted not in also or wanted in steps):
            take(key, wanted, ["euclideanize"], also)
    for k, word in enumerate(getattr(asked, "init", [])):
        if word.endswith((".npz", ".npy")):
            files[f"init {k}"] = _located(word, folder)
        elif word not in INITS:
            take_result(f"init {k}", word, INITS)
    previous = getattr(asked, "warm_start", None)
    if isinstance(previous, str) and (previous.partition("/")[0] in steps or NAME.fullmatch(previous)):
        take_result("warm_start", previous)
    elif isinstance(previous, str):
        files["warm_start"] = _located(previous, folder)
    if getattr(asked, "result", None) is not None:
        take_result("result", asked.result)
    return Step(step.name, step.kind, asked, uses, settings, files)


def _appended(
    step: Step, steps: Mapping[str, Step], uses: dict[str, str], files: dict[str, str], folder: Path, faults: list[str]
) -> None:
    """What is appended to a matrix is part of it: an append comes behind the one before, all others behind the last."""
    base = steps[uses["store"]]
    several = sum(other.is_matrix for other in steps.values()) > 1
    chain = [one for one in steps.values() if one.kind == "append" and (one.asked.store == base.name or not several)]
    before = chain[: chain.index(step)] if step in chain else chain
    if before:
        uses["store"] = before[-1].name
    if step.kind != "append":
        return
    if base.kind == "pairwise":  # whose appends are features too, and want those of the objects that are there
        for k, text in enumerate([base.asked.features, *(one.asked.source for one in before)]):
            files[f"features {k}"] = _located(text, folder)
    elif base.kind != "import":
        faults.append(f"[append.{step.name}]: {base.name} is made by [{base.kind}]; append is for import and pairwise")


def _located(text: str, folder: Path) -> str:
    """A URL as it is, a path from the folder of the workflow file."""
    return text if "://" in text else str(folder / Path(text).expanduser())


def _ordered(steps: Mapping[str, Step], where: str) -> dict[str, Step]:
    """Steps behind those that they use, else as in the file."""
    ordered: dict[str, Step] = {}

    def place(name: str, waiting: tuple[str, ...]) -> None:
        if name in waiting:
            raise InputError(f"{where}: the steps {' -> '.join([*waiting, name])} wait for each other")
        if name not in ordered:
            for other in steps[name].uses.values():
                place(other, (*waiting, name))
            ordered[name] = steps[name]

    for name in sorted(steps, key=lambda name: not steps[name].is_matrix):
        place(name, ())
    return ordered


def outputs(step: Step) -> tuple[str, ...]:
    """The names of what a step writes in `out`; each is a file or a folder."""
    name, asked = step.name, step.asked
    if step.kind == "spectrum":
        return (f"{name}.json", f"{name}.png") if asked.picture else (f"{name}.json",)
    if step.kind == "image":
        return (f"{name}.{asked.format}",)
    if step.kind == "export":
        return (f"{name}{EXPORTED[asked.format]}",)
    return tuple(f"{name}{suffix}" for suffix in asked.SUFFIXES)


EXPORTED = {"npy": ".npy", "condensed": ".npy", "lsmat": ".lsmat", "phylip": ".phy", "zarr": ".zarr"}
"""The suffix of each format."""
