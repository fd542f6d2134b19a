"""Workflow files: reading, checking, links between steps, names of outputs.

A workflow is a TOML file. Each table is a step, `[KIND.NAME]`, or `[KIND]` if it is the only one of its kind. The kinds
are commands, and the keys are the commands' options with underscores; see `workflow.tables`. Steps refer to each other
by name. A file is checked completely before anything is done, and nothing in it is run: no shell, no templates, no
imports. Names of steps are letters, digits, _ and -, so that outputs stay in the folder `out`. Before the first table,
`out` names this folder, and `report = true` asks for a page about the results in it, report.html.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dasrel.commands.base import RENAMED, Operation, Reads
from dasrel.commands.operations import OPERATIONS, STEPS
from dasrel.engine.cluster_settings import RUNS_CODE, parsed_cluster
from dasrel.engine.runtime import TLS, Runtime
from dasrel.errors import InputError
from dasrel.util.reading import open_regular
from dasrel.util.text import did_you_mean, redacted, shown, some
from dasrel.workflow.tables import RuntimeTable, Table, table_of


@cache
def kinds() -> list[str]:
    """Return all kinds of steps; imports all operations."""
    return [name for name in (*OPERATIONS, *STEPS) if table_of(name) is not None]


def as_key(name: str, value: str | None) -> str:
    """Write an option of a remedy as a workflow file does. What has no key there, such as `resume`, is named only.

    >>> as_key("Policy.symmetrize", "mean"), as_key("Writing.dtype", None), as_key("resume", "True")
    ('symmetrize = "mean"', 'store_dtype', 'resume')
    """
    key = RENAMED.get(name, name.rpartition(".")[2])
    tables = [*(table_of(kind) for kind in kinds()), RuntimeTable]
    if value is None or not any(table is not None and key in table.model_fields for table in tables):
        return key
    return f"{key} = {value}" if value.isupper() or value.isdecimal() else f'{key} = "{value}"'


NAME = re.compile(r"[A-Za-z0-9_-]+")
SETTING = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
LARGEST = 1 << 20
"""Maximum size of a workflow file, in bytes."""


@dataclass(frozen=True)
class Step:
    """A checked table, with the steps and files that it uses."""

    name: str
    kind: str
    table: Any
    """The checked table: of the class that `table_of` returns."""
    uses: Mapping[str, str] = field(default_factory=dict)
    """Keys whose value is another step, with its name."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """For those that use one setting of a cluster step: its folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Keys whose value is a file, a folder or a URL: absolute."""

    @property
    def operation(self) -> Operation:
        """What it does."""
        operation: Operation = self.table.OPERATION
        return operation

    @property
    def is_matrix(self) -> bool:
        """Whether its output is a matrix."""
        return self.operation.gives_matrix

    @property
    def exists(self) -> bool:
        """Whether it is a matrix that exists already: the step writes nothing."""
        return self.operation.gives_matrix and not self.operation.suffixes

    @property
    def grows(self) -> bool:
        """Whether it appends to a matrix."""
        return self.operation.grows


@dataclass(frozen=True)
class Workflow:
    """A checked workflow file."""

    path: Path
    out: Path
    runtime: Runtime
    steps: Mapping[str, Step]
    """By name, each after those that it uses."""
    report: bool = False
    """Whether a page about the results, report.html, is written at the end of a run."""


def read_workflow(path: str | Path, *, out: str | Path | None = None) -> Workflow:
    """Read and check a workflow file.

    Parameters
    ----------
    out
        A folder for the outputs of the steps, instead of the file's `out`.
    """
    path = Path(path)
    where = shown(path, limit=200)
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{where} has {path.stat().st_size:,} bytes", remedy=f"give at most {LARGEST:,}")
        with open(open_regular(path), encoding="utf-8") as file:
            content = tomllib.loads(file.read())
    except OSError as error:
        raise InputError(f"cannot read the workflow {where}: {error.strerror}") from None
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"{where} is not a workflow: its values are nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise InputError(f"{where} is not TOML: {shown(error, limit=200)}") from None
    folder = path.resolve().parent
    given = content.pop("out", path.stem)
    runtime = content.pop("runtime", {})
    page = content.pop("report", False)
    faults = (
        []
        if isinstance(given, str) and given and "\0" not in given
        else [f"out: {shown(repr(given))} is no folder; give its name"]
    )
    if not isinstance(page, bool):
        instead = ", and no table" if isinstance(page, dict) else ""
        faults.append(
            f"report: {shown(repr(page))} is neither true nor false{instead}: write report = true above all tables"
        )
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
    return Workflow(path.resolve(), target, place, _ordered(linked, where), page)


def _several_faults(faults: list[str]) -> str:
    return some(faults, show=3).replace(", [", "; [")


def _steps(content: dict[str, Any], memory: str | None) -> tuple[dict[str, Step], list[str]]:
    """Return the tables as steps, and the faults found in them."""
    steps: dict[str, Step] = {}
    faults: list[str] = []
    for kind, tables in content.items():
        if table_of(kind) is None:
            faults.append(f"[{shown(kind)}]: unknown; {did_you_mean(kind, [*kinds(), 'runtime', 'out', 'report'])}")
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
                usual = {} if memory is None or "memory" not in _table(kind).model_fields else {"memory": memory}
                step = _checked(kind, name, {**usual, **table}, place, faults)
                if step is not None:
                    steps[name] = step
    return steps, faults


def _default_name(kind: str) -> str:
    return "matrix" if _table(kind).OPERATION.gives_matrix else kind


def _matrices() -> list[str]:
    return [kind for kind in kinds() if _default_name(kind) == "matrix"]


def _table(kind: str) -> type[Table]:
    table = table_of(kind)
    assert table is not None
    return table


def _checked(kind: str, name: str, table: dict[str, Any], place: str, faults: list[str]) -> Step | None:
    try:
        checked = _table(kind).model_validate(table)
        checked.options()  # which may refuse values that do not go together
        return Step(name, kind, checked)
    except ValidationError as error:
        faults += fault_lines(place, _table(kind).model_fields, error)
    except InputError as error:
        faults.append(f"{place}: {error.text(as_key)}")
    return None


def fault_lines(place: str, known: Iterable[str], error: ValidationError) -> list[str]:
    """Return the faults that pydantic found, a line each: where, what, and the nearest known name."""
    faults: dict[str, list[str]] = {}
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
        faults.setdefault(f"{place}{shown(where)}{numbers}", []).append(what)
    return [f"{where}: {' or '.join(_shortened(parts))}" for where, parts in faults.items()]


def _shortened(parts: list[str]) -> list[str]:
    """Shorten the faults that a union reports for each of its members: all but the first only continue it."""
    return [part if k == 0 else part.partition(" should be ")[2] or part for k, part in enumerate(dict.fromkeys(parts))]


def _runtime(table: Any, folder: Path, faults: list[str]) -> tuple[Runtime, str | None]:
    """Return where to run, and the default memory of the steps."""
    try:
        given = RuntimeTable.model_validate(table).model_dump(exclude_none=True)
        memory = given.pop("memory", None)
        for name in parsed_cluster(given["dask"])[1] if "dask" in given else ():
            if name in RUNS_CODE:
                faults.append(
                    f"[runtime] dask: {name} names a program to run, which a workflow file may not; give it by --dask"
                    " or DASREL_DASK"
                )
        for key in ("scheduler_file", *TLS):  # as all paths, they are relative to the workflow file
            given |= {key: str(folder / given[key])} if key in given else {}
        return Runtime(**given), memory
    except ValidationError as error:
        faults += fault_lines("[runtime]", RuntimeTable.model_fields, error)
    except InputError as error:
        faults.append(f"[runtime] {redacted(error.text(as_key))}")
    return Runtime(), None


# ------------------------------------------------------------------------------------------------ links between steps


def _linked(step: Step, steps: Mapping[str, Step], folder: Path, faults: list[str]) -> Step:
    """Return the step with its files and the steps that it uses."""
    place = f"[{step.kind}.{step.name}]"
    table = step.table
    uses: dict[str, str] = {}
    settings: dict[str, str] = {}
    files: dict[str, str] = {}
    for key in table.FILES:
        if getattr(table, key) is not None:
            files[key] = _located(getattr(table, key), folder)

    def take(key: str, wanted: str, kinds: Iterable[str], also: Iterable[str] = ()) -> None:
        source = steps.get(wanted)
        if source is None or source.kind not in kinds:
            those = [name for name, other in steps.items() if other.kind in kinds and name != step.name]
            listed = [*those, *also]
            hint = (
                f"; {did_you_mean(wanted, listed)}"
                if listed
                else f"; there is no step of the kind {' or '.join(kinds)}"
            )
            faults.append(f"{place} {key}: no step {shown(wanted)!r}{hint}")
        else:
            uses[key] = wanted

    def take_result(key: str, wanted: str, kinds: Iterable[str], also: Iterable[str] = ()) -> None:
        name, slash, setting = wanted.partition("/")
        take(key, name, kinds, also)
        if slash and not SETTING.fullmatch(setting):
            faults.append(f"{place} {key}: {shown(wanted)!r} is not STEP or STEP/SETTING, such as k/fcm1-clusters3")
        elif slash:
            settings[key] = setting

    def is_file(value: str, suffixes: tuple[str, ...]) -> bool:
        first, slash, _ = value.partition("/")
        return value.endswith(suffixes) if suffixes else first not in steps and bool(slash or not NAME.fullmatch(first))

    def _take(key: str, value: Any, reads: Reads) -> None:
        """Find the step or the file that a value names."""
        if isinstance(value, list):
            for k, each in enumerate(value):
                _take(f"{key} {k}", each, reads)
        elif not isinstance(value, str) or (value in reads.words and value not in steps):
            return
        elif is_file(value, reads.suffixes):
            files[key] = _located(value, folder)
        elif any(_table(kind).OPERATION.has_settings for kind in reads.steps):
            take_result(key, value, reads.steps, reads.words)
        else:
            take(key, value, reads.steps, reads.words)

    if hasattr(table, "store"):
        matrices = [name for name, other in steps.items() if other.is_matrix]
        if table.store is not None:
            take("store", table.store, _matrices())
        elif len(matrices) > 1:
            faults.append(f"{place} store: missing; there are several matrices: {', '.join(matrices)}")
        elif matrices:
            uses["store"] = matrices[0]
        if "store" in uses:
            _appended(step, steps, uses, files, folder, faults)
    for key, reads in table.READS.items():
        if reads.steps:
            _take(key, getattr(table, key), reads)
    return Step(step.name, step.kind, table, uses, settings, files)


def _appended(
    step: Step, steps: Mapping[str, Step], uses: dict[str, str], files: dict[str, str], folder: Path, faults: list[str]
) -> None:
    """Order the appends to a matrix: each uses the one before it, and all other steps use the last."""
    base = steps[uses["store"]]
    several = sum(other.is_matrix for other in steps.values()) > 1
    chain = [other for other in steps.values() if other.grows and (other.table.store == base.name or not several)]
    before = chain[: chain.index(step)] if step in chain else chain
    if before:
        uses["store"] = before[-1].name
    if not step.grows:
        return
    first, listed = base.operation.source, base.operation.grows_with
    if first is not None and listed is not None:  # its appends need what the objects in the store were made of
        for k, text in enumerate([getattr(base.table, str(first.key)), *(other.table.source for other in before)]):
            files[f"{listed} {k}"] = _located(text, folder)
    elif not base.operation.can_grow:
        those = " and ".join(kind for kind in _matrices() if _table(kind).OPERATION.can_grow)
        faults.append(f"[{step.kind}.{step.name}]: {base.name} is made by [{base.kind}]; {step.kind} is for {those}")


def _located(text: str, folder: Path) -> str:
    """Return a URL unchanged, and a path relative to the folder of the workflow file."""
    if "://" in text:
        return text
    if "\0" in text:
        raise InputError(f"{shown(text, limit=200)} is no path: it has a NUL character", remedy="give another name")
    try:
        return str(folder / Path(text).expanduser())
    except RuntimeError:
        raise InputError(
            f"{shown(text, limit=200)}: there is no user of this name", remedy="write the path of the folder in full"
        ) from None


def _ordered(steps: Mapping[str, Step], where: str) -> dict[str, Step]:
    """Return the steps, each after those that it uses, otherwise in the order of the file."""
    ordered: dict[str, Step] = {}
    for first in sorted(steps, key=lambda name: not steps[name].is_matrix):
        waiting = {first: iter(steps[first].uses.values())}  # chains of steps may be long: no recursion
        while waiting:
            name = next(reversed(waiting))
            other = next(waiting[name], None)
            if other is None:
                ordered.setdefault(name, steps[name])
                del waiting[name]
            elif other in waiting:
                chain_of = [*waiting, other][list(waiting).index(other) :]
                raise InputError(
                    f"{where}: the steps {some(chain_of, show=12).replace(', ', ' -> ')} wait for each other"
                )
            elif other not in ordered:
                waiting[other] = iter(steps[other].uses.values())
    return ordered


def outputs(step: Step) -> tuple[str, ...]:
    """Return the names of the files and folders that a step writes in `out`."""
    return tuple(f"{step.name}{suffix}" for suffix in step.operation.outputs(step.table.options()))
