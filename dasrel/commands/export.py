"""Write a STORE in a format of other tools."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from dataclasses import dataclass

from dasrel.commands.base import Lines, Operation, Output, Prepared, Reads, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.geometry.euclidean import named_relation
from dasrel.io.export import SUFFIXES, ExportJob, prepare_export
from dasrel.names import ExportName
from dasrel.util.limits import Cost
from dasrel.util.option_fields import FIXED_MEMORY, WRITING, option
from dasrel.util.results import check_not_input
from dasrel.util.text import shown


@dataclass(frozen=True)
class ExportOptions:
    """What to write in a format of other tools."""

    format: ExportName | None = option(
        None, "Format of the output; if not given, that of the suffix of OUT: .npy, .lsmat, .phy or .zarr.", WRITING
    )  # fmt: skip
    relation: str | None = option(
        None, "Write squared dissimilarities: Euclideanised by a file (.npz) of `dasrel euclideanize`, or plain.",
        WRITING, metavar="FILE|plain", reads=Reads(steps=("euclideanize",), words=("plain",), suffixes=(".npz",)),
    )  # fmt: skip
    memory: int | str = option("1GiB", FIXED_MEMORY, WRITING, typed=str, metavar="SIZE", effort=True)


class Export(Operation):
    name = "export"
    example = "dasrel export distances.zarr distances.lsmat --format lsmat"
    Options = ExportOptions
    target = Output("OUT", "The file or folder to write.")
    is_step = True
    summarized = ("format",)

    def prepare(self, source: str, target: Target, options: ExportOptions) -> PreparedExport:
        """Check the store, the relation, the format and the output. Cost: no tile is read."""
        check_not_input(target.path, source, options.relation)
        given = source if options.relation is None else named_relation(source, options.relation)
        job = prepare_export(given, target.path, format=options.format, memory=options.memory, force=target.force)
        return PreparedExport(source, options, job)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of an export."""
        lines = [("wrote", shown(result["out"], limit=400)), ("format", result["format"])]
        return lines if result["relation"] is None else [*lines, ("numbers", result["numbers"])]

    def outputs(self, options: ExportOptions) -> tuple[str, ...]:
        """Return the suffix of the format."""
        return (SUFFIXES[options.format or "npy"],)


@dataclass(frozen=True)
class PreparedExport(Prepared):
    """A matrix to be written."""

    store: str
    options: ExportOptions
    job: ExportJob

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Write the matrix. Cost: one scan."""
        written, numbers = str(self.job.run()), self.job.given
        return {
            "store": self.store, "out": written, "format": self.job.format, "relation": self.options.relation,
            "kind": numbers.kind, "numbers": numbers.description,
        }  # fmt: skip

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        return self.job.cost()


OPERATION = Export()
