"""What a person can ask for, in one form: an `Operation` is a command, a step of workflows and a part of pages.

A file of this room declares the options of one operation, checks them (`prepare`), estimates what the work will cost,
does it, says what was found in lines, and adds a part to pages. The command line, workflow files and pages go over the
tuple in `dasrel.commands.operations`; none of them knows an operation by its name.

A file is imported when its operation is wanted; its first line, which is read without importing it, is the help. Files
import matplotlib, by way of `dasrel.report.figures`, where they draw.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dasrel.errors import InputError
from dasrel.geometry.options import EmbedParameters, SpectrumParameters
from dasrel.io.options import PairwiseParameters, Reading
from dasrel.partition.run import Run
from dasrel.store.options import Policy, Writing
from dasrel.util.option_fields import Option, OptionField, Reads, option_fields
from dasrel.util.results import check_not_input, check_out, finished_result, result_folder
from dasrel.util.text import redacted, shown

if TYPE_CHECKING:
    from dasrel.engine.checkpoint import Checkpoint
    from dasrel.report.page_parts import ResultPart
    from dasrel.report.result_reading import Source

Lines = list[tuple[str, str]]
"""What is printed: a name and a text for each line."""
Result = dict[str, Any]
"""What an operation found, in plain values."""
NOT_CONVERGED = 3
"""The exit code where a result has not converged that was to converge."""

RENAMED = {
    key: each.name
    for group in (Reading, Policy, Writing, Run, PairwiseParameters, SpectrumParameters, EmbedParameters)
    for each in option_fields(group)
    for key in (f"{group.__name__}.{each.field}", each.field)
    if each.name != each.field and not (key == each.field and group in (Reading, Policy, Writing))
}
"""Keywords of Python, perhaps with their group, that commands and workflow files have another name for."""

# ------------------------------------------------------------------------------------------- what is read and written

MATRIX = "matrix"
"""Stands for the kinds of steps that give a matrix."""


@dataclass(frozen=True)
class Input:
    """The first argument: what is read."""

    metavar: str
    help: str
    key: str | None = None
    """Its key in workflow files, if it is none of `store`."""
    several: bool = False
    """Whether there may be more than one."""
    kind: Any = str


@dataclass(frozen=True)
class Output:
    """What is written: the last argument, or a flag."""

    metavar: str
    help: str
    flag: str | None = None
    """Such as "--out -o"; without one it is an argument."""
    default: Any = ...
    """Where it is written if it is not given; ...: it must be given; None: nowhere, or where the operation chooses."""


STORE = Input("STORE", "A store: a folder or a URL such as s3://...", "store")
NEW_STORE = Output("STORE", "The store to write: a folder or a URL such as s3://...")
FOLDER = Output("OUT", "A folder for the results.")


@dataclass(frozen=True)
class Target:
    """Where a result is written."""

    path: Any = None
    """A file or a folder; None to write nothing."""
    force: bool = False
    """Replace what exists, once the new one is complete."""
    resume: bool = False
    """Return the result of the same work that is there already, and replace what an interrupted process left."""
    final: Any = None
    """The place that the result names as its own, if it is moved there later."""

    @property
    def named(self) -> str:
        """The place that the result names."""
        return str(self.path if self.final is None else self.final)

    def check(self, *inputs: object) -> None:
        """Raise if the result would replace what is read."""
        check_not_input(self.path, *inputs)

    def header(self, store: str, digest: str, requested: Any) -> Result:
        """Return what identifies work in its result.json: the matrix by its digest, and options that change the result.

        Parameters
        ----------
        requested
            The options that change the result, or an operation's options, of which memory and pictures do not.
        """
        if not isinstance(requested, dict):
            requested = {name: value for name, value in asdict(requested).items() if name not in ("memory", "picture")}
        header: Result = redacted({"store": store, "matrix": digest, "out": self.named, "requested": requested})
        return header

    def finished(self, header: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of the same work that is in the folder already, with `resume`. Raise if it cannot be used.

        Parameters
        ----------
        header
            What identifies the work in its result.json.
        """
        result = finished_result(self.path, header) if self.resume else None
        if result is None:
            check_out(self.path, force=self.force)
        return result


class Prepared:
    """Checked work. A subclass has `cost` and `run`."""

    finished: Result | None = None
    """The result, where the same work has been done already."""

    def cost(self) -> Any:
        """Estimate the cost of `run`: values `as_dict`, and `lines` for people. Raise where `run` would."""
        raise NotImplementedError

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Do the work, write the result, and return it in plain values."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove temporary files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(eq=False, kw_only=True)
class PreparedFolder(Prepared):
    """Checked work whose result is a folder. A subclass has `cost` and `compute`."""

    target: Target
    header: Result
    """What identifies the work in its result.json."""

    def __post_init__(self) -> None:
        self.finished = self.target.finished(self.header)

    @property
    def out(self) -> Path:
        """The folder."""
        return Path(self.target.path)

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Do the work and write the folder, or return the result of the same work that is there already."""
        return self.compute(checkpoint) if self.finished is None else self.finished

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Do the work, write the folder, and return its result.json."""
        raise NotImplementedError

    def folder(self, result: Result) -> AbstractContextManager[Path]:
        """Return a context with a temporary folder to be filled, which takes its place at the end, with result.json."""
        return result_folder(self.out, result, force=self.target.force)


class Operation:
    """One thing that a person can ask for. The first line of its file is its help."""

    name: ClassVar[str]
    example: ClassVar[str]
    """A command line."""
    Options: ClassVar[type]
    """A frozen dataclass; see `dasrel.util.option_fields`."""
    source: ClassVar[Input | None] = STORE
    target: ClassVar[Output | None] = FOLDER

    # On the command line.
    has_cost: ClassVar[bool] = True
    """Whether there is a --dry-run."""
    only_cost: ClassVar[bool] = False
    """Whether it does nothing but estimate a cost."""
    on_dask: ClassVar[bool] = True
    """Whether the work runs on a cluster where there is one."""
    saves: ClassVar[tuple[str, ...]] = ()
    """What a checkpoint folder knows its computations by; without any it takes no checkpoint."""

    # In workflows.
    is_step: ClassVar[bool] = False
    gives_matrix: ClassVar[bool] = False
    can_grow: ClassVar[bool] = False
    """Whether later steps may append to its matrix."""
    grows_with: ClassVar[str | None] = None
    """The option of such a step that takes what the matrix, as it is by then, was made of."""
    grows: ClassVar[bool] = False
    """Whether a step appends its `source` to the matrix that it reads: later steps read the larger one."""
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    """What a step writes: its name with each of these."""
    summarized: ClassVar[tuple[str, ...]] = ()
    """Values of the result that the state of a workflow keeps."""
    has_settings: ClassVar[bool] = False
    """Whether a result may have several settings, which other steps may name: `folders` of its summary."""

    # On pages.
    marks: ClassVar[Mapping[str, frozenset[str]]] = {}
    """For each kind of its results, keys by which its JSON object is known."""

    # ------------------------------------------------------------------------------------------------------- the work

    def prepare(self, source: Any, target: Target, options: Any) -> Prepared:
        """Check everything that can be checked before a tile is read, and return the work."""
        raise NotImplementedError

    def lines(self, result: Result) -> Lines:
        """Return what is printed of a result."""
        raise NotImplementedError

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of a result."""
        raise NotImplementedError

    def failure(self, result: Result, options: Any) -> tuple[str, int] | None:
        """Return a line and an exit code where a result that was written is not what was wanted."""
        return None

    def saves_state(self, options: Any) -> bool:
        """Return whether work with these options has a state that a checkpoint can save."""
        return bool(self.saves)

    # ---------------------------------------------------------------------------------------------------- in workflows

    def outputs(self, options: Any) -> tuple[str, ...]:
        """Return the suffixes of what a step with these options writes."""
        return self.suffixes

    def summary(self, result: Result) -> Result:
        """Return what the state of a workflow keeps of a result."""
        return {name: result[name] for name in self.summarized}

    def grown(self, store: str, before: int) -> Result | None:
        """Return what a step that grows a matrix has done, if the matrix has more appends than those before it."""
        return None

    def in_step(self, options: Any) -> Any:
        """Return the options of a step, where some follow from its being one."""
        return options

    # ------------------------------------------------------------------------------------------------------- to repeat

    def repeated(self, source: str, out: str, requested: Mapping[str, Any]) -> str:
        """Return the command line that makes a result again: options with their default value are left out.

        Parameters
        ----------
        requested
            Values of options, by the names of their fields.
        """
        words = ["dasrel", self.name, source]
        if self.target is not None:
            words += [out] if self.target.flag is None else [self.target.flag.split()[0], out]
        for each in option_fields(self.Options):
            value = requested.get(each.field)
            if value is None or (each.default is not MISSING and value == each.default):
                continue
            if isinstance(value, bool):
                words.append(flag_of(each) if value else f"--no-{each.name.replace('_', '-')}")
            else:
                text = ",".join(map(value_text, value)) if isinstance(value, list) else value_text(value)
                words += [flag_of(each), text]
        return " ".join(shlex.quote(shown(redacted(word), limit=4096)) for word in words)


def flag_of(each: OptionField) -> str:
    """Return the flag of an option."""
    return f"--{each.name.replace('_', '-')}"


def value_text(value: Any) -> str:
    """Write a number with all of its digits, and no more: "2" for 2.0."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise if a value of an option is none of its choices."""
    if value not in choices:
        raise InputError(f"{name} is {shown(value)!r}", remedy=f"use one of {', '.join(choices)}")


__all__ = [
    "FOLDER", "MATRIX", "NEW_STORE", "NOT_CONVERGED", "STORE", "Input", "Lines", "Operation", "Option", "Output",
    "Prepared", "PreparedFolder", "Reads", "Result", "Target", "check_choice", "flag_of", "value_text",
]  # fmt: skip
