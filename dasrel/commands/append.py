"""Add objects to a STORE, which stays readable: all of them or, if interrupted, none."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from dataclasses import MISSING, dataclass, replace
from typing import Any

from dasrel.commands.base import Lines, Operation, Prepared, Reads, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.io.append import append, prepare_append
from dasrel.io.options import IDS, Reading
from dasrel.store.growth import finished_append
from dasrel.store.matrix import open_matrix
from dasrel.store.options import APPENDING, NEW_PAIRS, Policy, Writing
from dasrel.util.limits import Cost, limited
from dasrel.util.option_fields import READING, group, option
from dasrel.util.text import shown


@dataclass(frozen=True)
class AppendOptions:
    """What to append, what is done about flaws of the new values, and how they are written."""

    source: str = option(
        MISSING, "One row per new object, with a value for every old one and then every new one: npy, npz, CSV, Zarr.",
        READING, metavar="SOURCE", argument=True, reads=Reads(),
    )  # fmt: skip
    reading: Reading = group(IDS)
    features: list[str] | None = option(
        None, "SOURCE has features, and FILE those of the objects in the store; repeat for each file appended since.",
        READING, metavar="FILE", repeated=True, command_only=True,
    )  # fmt: skip
    policy: Policy = group(NEW_PAIRS)
    writing: Writing = group(APPENDING)


class Append(Operation):
    name = "append"
    example = "dasrel append distances.zarr rows.csv"
    Options = AppendOptions
    target = None
    is_step = True
    grows = True
    suffixes = ()

    def prepare(self, source: str, target: Target, options: AppendOptions) -> PreparedAppend:
        """Return the work: the rows are checked against the store under its lock."""
        return PreparedAppend(source, options)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of an append."""
        size = "" if result["bytes_written"] is None else f", {result['bytes_written']:,} bytes"
        kept = f", {result['tiles_kept']:,} had already been written" if result["tiles_kept"] else ""
        before, new, tiles = result["objects_before"], result["new_objects"], result["tiles"]
        return [
            ("store", shown(result["store"], limit=400)),
            ("objects", f"{before:,} and {new:,} more: {result['n_objects']:,}"),
            ("tiles", f"{result['tiles_written']:,} new and {result['tiles_grown']:,} grown of {tiles:,}{size}{kept}"),
        ]

    def in_step(self, options: AppendOptions) -> AppendOptions:
        """Return options that discard an unfinished append of a step that was changed."""
        return replace(options, writing=replace(options.writing, force=True))

    def grown(self, store: str, before: int) -> Result | None:
        """Return what the last append has added, if there are more than so many."""
        matrix = open_matrix(store)
        if len(matrix.manifest["provenance"].get("appends", [])) <= before:
            return None
        return {"store": store, "n_objects": matrix.n_objects, "new_objects": finished_append(store, None, {})}

    def summary(self, result: Result) -> Result:
        """Return what the state of a workflow keeps of an append."""
        values = {name: result[name] for name in ("n_objects", "new_objects")}
        return {**values, "kind": open_matrix(result["store"]).kind}


@dataclass(frozen=True)
class PreparedAppend(Prepared):
    """Objects to be appended."""

    store: str
    options: AppendOptions

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Append the objects. Cost: that of `dasrel.append`."""
        writing = self.options.writing
        arguments: dict[str, Any] = {**self._arguments(), "resume": writing.resume, "force": writing.force}
        with limited(writing.time_limit):
            return append(self.store, self.options.source, **arguments).report()

    def cost(self) -> Cost:
        """Estimate the cost of `run`; reads the new rows. Raise where `run` would."""
        return prepare_append(self.store, self.options.source, **self._arguments()).cost()

    def _arguments(self) -> dict[str, Any]:
        options = self.options
        return {"ids": options.reading.ids, "features": options.features, "policy": options.policy,
                "memory": options.writing.memory}  # fmt: skip


OPERATION = Append()
