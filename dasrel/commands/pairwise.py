"""Compute the dissimilarities of all pairs of rows of FEATURES into a STORE."""

# ruff: noqa: RUF009 - `group` returns a dataclass field

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dasrel.commands.base import NEW_STORE, Input, Lines, Operation, Prepared, Result, Target
from dasrel.commands.new_store import resumed, store_lines, store_result
from dasrel.engine.checkpoint import Checkpoint
from dasrel.io.options import IDS, PairwiseParameters, Reading
from dasrel.io.pairwise import pairwise, prepare_pairwise
from dasrel.store.options import Writing
from dasrel.util.limits import Cost
from dasrel.util.option_fields import group
from dasrel.util.results import check_not_input


@dataclass(frozen=True)
class PairwiseOptions(PairwiseParameters):
    """What to compute from features, and how the store is written."""

    reading: Reading = group(IDS)
    writing: Writing = group(Writing)


class Pairwise(Operation):
    name = "pairwise"
    example = "dasrel pairwise features.csv distances.zarr --metric braycurtis"
    Options = PairwiseOptions
    source = Input("FEATURES", "One row per object: npy, npz, CSV or Parquet.", "features")
    target = NEW_STORE
    is_step = True
    gives_matrix = True
    can_grow = True
    grows_with = "features"
    suffixes = (".zarr",)
    summarized = ("n_objects", "kind")

    def prepare(self, source: str, target: Target, options: PairwiseOptions) -> PreparedPairwise:
        """Check that the store does not replace what is read; all else is checked under the lock of the store."""
        check_not_input(target.path, source, options.reading.ids)
        return PreparedPairwise(source, str(target.path), options)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the store, or of a part of it."""
        return store_lines(result)

    def in_step(self, options: PairwiseOptions) -> PairwiseOptions:
        """Return options with which an interrupted computation is resumed."""
        resumed_options: PairwiseOptions = resumed(options)
        return resumed_options


@dataclass(frozen=True)
class PreparedPairwise(Prepared):
    """Dissimilarities to be computed."""

    features: str
    store: str
    options: PairwiseOptions

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Write the store. Cost: that of `dasrel.pairwise`."""
        return store_result(self.store, pairwise(self.features, self.store, **self._arguments()))

    def cost(self) -> Cost:
        """Estimate the cost of `run`; reads the features. Raise where `run` would."""
        with prepare_pairwise(self.features, self.store, **self._arguments()) as job:
            return job.cost()

    def _arguments(self) -> dict[str, Any]:
        parameters = {each.name: getattr(self.options, each.name) for each in fields(PairwiseParameters)}
        return {**parameters, "ids": self.options.reading.ids, "writing": self.options.writing}


OPERATION = Pairwise()
