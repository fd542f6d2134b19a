"""Compute the dissimilarities of all pairs of rows of FEATURES into a STORE."""

# ruff: noqa: RUF009 - `group` returns a dataclass field

from __future__ import annotations

from dataclasses import dataclass, fields

from dasrel.commands.base import Input
from dasrel.commands.new_store import NewStore, PreparedStore
from dasrel.io.options import IDS, PairwiseParameters, Reading
from dasrel.io.pairwise import pairwise, prepare_pairwise
from dasrel.store.options import Writing
from dasrel.util.option_fields import group


@dataclass(frozen=True)
class PairwiseOptions(PairwiseParameters):
    """What to compute from features, and how the store is written."""

    reading: Reading = group(IDS)
    writing: Writing = group(Writing)


class Pairwise(NewStore):
    name = "pairwise"
    example = "dasrel pairwise features.csv distances.zarr --metric braycurtis"
    Options = PairwiseOptions
    source = Input("FEATURES", "One row per object: npy, npz, CSV or Parquet.", "features")
    grows_with = "features"

    def prepared(self, source: str, store: str, options: PairwiseOptions) -> PreparedStore:
        arguments = {each.name: getattr(options, each.name) for each in fields(PairwiseParameters)}
        arguments |= {"ids": options.reading.ids, "writing": options.writing}
        return PreparedStore(
            store, lambda: pairwise(source, store, **arguments), lambda: prepare_pairwise(source, store, **arguments)
        )


OPERATION = Pairwise()
