"""Commands that analyse a store: cluster, plan, predict, validity, compare, spectrum, euclideanize, tree, image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dasrel.cli.console import Console
from dasrel.cli.options import DryRun, Force, command, option
from dasrel.io.options import IDS
from dasrel.options import (
    READING,
    Reading,
)
from dasrel.util.results import check_not_input
from dasrel.util.text import shown


@command("dasrel predict out rows.csv new.csv")
def predict_command(
    console: Console,
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="model.npz of a result, or its folder.")],
    rows: Annotated[
        str,
        typer.Argument(
            metavar="ROWS",
            help="One row per new object, with a value for every object of the model: npy, npz, CSV, Zarr.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The CSV file to write.")],
    reading: Annotated[Reading, IDS],
    self_similarity: Annotated[
        float | None,
        option(
            "--self-similarity",
            "Value of a new object with itself; for similarities and kernels.",
            READING,
            metavar="S",
        ),
    ] = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Assign new objects to the clusters of a MODEL, or tell outliers, from their values to its objects."""
    check_not_input(out, model, rows, reading.ids)
    if dry_run:
        from dasrel.cmeans.output import estimate_predict

        console.cost(estimate_predict(model, rows, out, force=force))
        return

    import numpy as np

    from dasrel.cmeans.output import save_outliers, save_predictions
    from dasrel.io.features import read_rows
    from dasrel.io.readers.stream import given_ids
    from dasrel.partition.model import load_model
    from dasrel.util.results import check_file

    check_file(out, force=force)
    known = load_model(model)
    found = read_rows(rows, checksum=False)
    names = found.ids if reading.ids is None else given_ids(reading.ids)
    lines = [("wrote", shown(out, limit=400))]
    if known.threshold is not None:
        scores = known.score_samples(found, self_similarity=self_similarity)
        rejected = save_outliers(out, scores, known.threshold, names, force=force)
        result = {"out": str(out), "n_objects": len(scores), "outliers": rejected}
        lines += [("objects", f"{len(scores):,}"), ("outliers", f"{rejected:,}")]
        console.result({**result, "seconds": console.seconds}, lines)
        return
    memberships = known.predict_memberships(found, self_similarity=self_similarity)
    labels = known.labels(memberships)
    save_predictions(out, memberships, labels, names, force=force)
    sizes = np.bincount(labels, minlength=known.n_clusters).tolist()
    result = {"out": str(out), "n_objects": len(memberships), "n_clusters": known.n_clusters, "sizes": sizes}
    lines.append(("objects", f"{len(memberships):,}"))
    console.result({**result, "seconds": console.seconds}, [*lines, ("sizes", " ".join(f"{k:,}" for k in sizes))])
