"""Check a matrix and write it into a STORE, whatever its size."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from dataclasses import MISSING, dataclass

from dasrel.commands.base import NEW_STORE, Input, Lines, Operation, Prepared, Result, Target
from dasrel.commands.new_store import resumed, store_lines, store_result
from dasrel.engine.checkpoint import Checkpoint
from dasrel.io.importing import import_matrix, prepare_import
from dasrel.io.options import Reading
from dasrel.names import KINDS, KindName, explain_kinds
from dasrel.store.options import Policy, Writing
from dasrel.util.limits import Cost
from dasrel.util.option_fields import REQUIRED, group, option
from dasrel.util.results import check_not_input


@dataclass(frozen=True)
class ImportOptions:
    """What a matrix holds, how it is read, what is done about its flaws, and how the store is written."""

    kind: KindName = option(
        MISSING, f"What the numbers are: {', '.join(KINDS)}.", REQUIRED, metavar="KIND",
        explain=lambda: f"say what the numbers are:\n{explain_kinds(lines=True)}",
    )  # fmt: skip
    reading: Reading = group(Reading)
    policy: Policy = group(Policy)
    writing: Writing = group(Writing)


class Import(Operation):
    name = "import"
    example = "dasrel import distances.npy distances.zarr --kind distance"
    Options = ImportOptions
    source = Input("SOURCE", "The matrix: a file, a folder or a URL.", "source")
    target = NEW_STORE
    is_step = True
    gives_matrix = True
    can_grow = True
    suffixes = (".zarr",)
    summarized = ("n_objects", "kind")

    def prepare(self, source: str, target: Target, options: ImportOptions) -> PreparedImport:
        """Check that the store does not replace what is read; all else is checked under the lock of the store."""
        check_not_input(target.path, source, options.reading.ids)
        return PreparedImport(source, str(target.path), options)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the store, or of a part of it."""
        return store_lines(result)

    def in_step(self, options: ImportOptions) -> ImportOptions:
        """Return options with which an interrupted import is resumed."""
        resumed_options: ImportOptions = resumed(options)
        return resumed_options


@dataclass(frozen=True)
class PreparedImport(Prepared):
    """A matrix to be imported."""

    matrix: str
    store: str
    options: ImportOptions

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Write the store. Cost: that of `import_matrix`."""
        return store_result(self.store, import_matrix(self.matrix, self.store, **vars(self.options)))

    def cost(self) -> Cost:
        """Estimate the cost of `run`, from the header of the source; raise where `run` would."""
        with prepare_import(self.matrix, self.store, **vars(self.options)) as job:
            return job.cost()


OPERATION = Import()
