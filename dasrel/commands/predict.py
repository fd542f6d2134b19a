"""Assign new objects to the clusters of a MODEL, or tell outliers, from their values to its objects."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.commands.base import Input, Lines, Operation, Output as Written, Prepared, Result, Target
from dasrel.density.model import DensityModel, is_density_model
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import InputError
from dasrel.io.features import read_rows
from dasrel.io.options import IDS, Reading
from dasrel.io.readers.stream import given_ids
from dasrel.partition.model import Model, model_path
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.option_fields import READING, group, option
from dasrel.util.results import check_file, check_not_input, write_csv
from dasrel.util.text import count_text, shown


@dataclass(frozen=True)
class PredictOptions:
    """What is known of the new objects."""

    rows: str = option(
        MISSING,
        "One row per new object, with a value for every object of the model: npy, npz, CSV, Zarr.",
        READING,
        metavar="ROWS",
        argument=True,
    )
    reading: Reading = group(IDS)
    self_similarity: float | None = option(
        None, "Value of a new object with itself; for similarities and kernels.", READING, metavar="S"
    )


class Predict(Operation):
    name = "predict"
    example = "dasrel predict out rows.csv new.csv"
    Options = PredictOptions
    source = Input("MODEL", "model.npz of a result, or its folder.")
    target = Written("OUT", "The CSV file to write.")
    on_dask = False

    def prepare(self, source: str, target: Target, options: PredictOptions) -> PreparedPredictions:
        """Read the model. Cost: the rows only have to exist."""
        check_not_input(target.path, source, options.rows, options.reading.ids)
        check_file(target.path, force=target.force)
        path = model_path(source)
        model = DensityModel.load(path) if is_density_model(path) else Model.load(path)
        if "://" not in options.rows and not os.path.exists(options.rows):
            raise InputError(f"no rows at {shown(options.rows, limit=200)}: there is no such file or folder")
        return PreparedPredictions(model, options, Path(target.path))

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the predictions."""
        lines = [("wrote", shown(result["out"], limit=400)), ("objects", f"{result['n_objects']:,}")]
        if "outliers" in result:
            return [*lines, ("outliers", f"{result['outliers']:,}")]
        if "noise" in result:
            lines.append(("noise", f"{result['noise']:,}"))
        return [*lines, ("sizes", " ".join(f"{size:,}" for size in result["sizes"]))]


@dataclass(frozen=True, eq=False)
class PreparedPredictions(Prepared):
    """New objects to be assigned."""

    model: Model | DensityModel
    options: PredictOptions
    out: Path

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Assign them, and write a line for each. Cost: no scan; one read of the rows, 32 MiB at a time."""
        model, options = self.model, self.options
        rows = read_rows(options.rows, checksum=False)
        ids = rows.ids if options.reading.ids is None else given_ids(options.reading.ids)
        if isinstance(model, DensityModel):
            placed = model.predict(rows, self_similarity=options.self_similarity)
            columns = [placed.labels.tolist(), placed.probabilities.tolist(), placed.outlier_scores.tolist()]
            count = len(placed.labels)
            self._write(["label", "probability", "outlier_score"], columns, ids, count)
            sizes = np.bincount(placed.labels[placed.labels >= 0], minlength=model.n_clusters).tolist()
            noise = int((placed.labels < 0).sum())
            counts = {"n_objects": count, "n_clusters": model.n_clusters, "sizes": sizes, "noise": noise}
            return {"out": str(self.out), **counts}
        if model.threshold is not None:
            scores = model.score_samples(rows, self_similarity=options.self_similarity)
            rejected = scores < model.threshold
            columns = [np.exp(scores).tolist(), ["true" if outlier else "false" for outlier in rejected.tolist()]]
            self._write(["typicality", "outlier"], columns, ids, len(scores))
            return {"out": str(self.out), "n_objects": len(scores), "outliers": int(rejected.sum())}
        memberships = model.predict_memberships(rows, self_similarity=options.self_similarity)
        labels, (count, clusters) = model.labels(memberships), memberships.shape
        columns = [labels.tolist(), memberships.max(axis=1, initial=0).tolist(), *memberships.T.tolist()]
        self._write(["label", "membership", *(f"cluster{k}" for k in range(clusters))], columns, ids, count)
        sizes = np.bincount(labels, minlength=clusters).tolist()
        return {"out": str(self.out), "n_objects": count, "n_clusters": clusters, "sizes": sizes}

    def _write(self, header: list[str], columns: list[list[Any]], ids: Sequence[str] | None, count: int) -> None:
        if ids is not None and len(ids) != count:
            problem = f"{count_text(len(ids), 'id')} for {count_text(count, 'new object')}"
            raise InputError(problem, remedy="give one for each")
        names = [str(k) for k in range(count)] if ids is None else ids
        write_csv(self.out, ["id", *header], zip(names, *columns, strict=True))

    def cost(self) -> Cost:
        """Estimate the cost of `run`: it depends on the size of the rows."""
        rows, n, c = self.options.rows, self.model.n_objects, self.model.n_clusters
        size = os.path.getsize(rows) if os.path.isfile(rows) else 0
        outputs = (Output(str(self.out), size // (8 * n) * (20 + 12 * c)),)
        facts = {"rows": rows, "values_a_row": n, "n_clusters": c}
        return Cost("predict", None, Range(0, 0, 0), 0, 2 * size + 16 * n * c, outputs, facts)


OPERATION = Predict()
