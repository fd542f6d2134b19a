"""Check a matrix and write it into a STORE, whatever its size."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from dataclasses import MISSING, dataclass

from dasrel.commands.base import Input
from dasrel.commands.new_store import NewStore, PreparedStore
from dasrel.io.importing import import_matrix, prepare_import
from dasrel.io.options import Reading
from dasrel.names import KINDS, KindName, explain_kinds
from dasrel.store.options import Policy, Writing
from dasrel.util.option_fields import REQUIRED, group, option


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


class Import(NewStore):
    name = "import"
    example = "dasrel import distances.npy distances.zarr --kind distance"
    Options = ImportOptions
    source = Input("SOURCE", "The matrix: a file, a folder or a URL.", "source")

    def prepared(self, source: str, store: str, options: ImportOptions) -> PreparedStore:
        arguments = vars(options)
        return PreparedStore(
            store, lambda: import_matrix(source, store, **arguments), lambda: prepare_import(source, store, **arguments)
        )


OPERATION = Import()
