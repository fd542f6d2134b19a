"""Use an existing store, which is read and never written: a kind of step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dasrel.commands.base import Input, Operation, Prepared, Target
from dasrel.errors import InputError
from dasrel.store.matrix import store_manifest
from dasrel.util.text import is_url, shown


@dataclass(frozen=True)
class StoreOptions:
    """There is nothing to choose."""


class Store(Operation):
    name = "store"
    Options = StoreOptions
    source = Input("STORE", "The store.", "path")
    target = None
    is_step = True
    gives_matrix = True
    suffixes = ()

    def prepare(self, source: str, target: Target, options: StoreOptions) -> Prepared:
        """Raise if a folder of this machine is no store."""
        if not is_url(source) and store_manifest(Path(source)) is None:
            raise InputError(
                f"path {shown(source, limit=200)} is not a dasrel store", remedy="`dasrel import` makes one"
            )
        return Prepared()


OPERATION = Store()
