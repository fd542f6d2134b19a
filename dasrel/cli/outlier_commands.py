"""The command that finds outliers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasrel.cli.console import Console
from dasrel.cli.options import DryRun, Force, OldStore, command
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.runtime import Runtime
from dasrel.options import OutlierOptions
from dasrel.util.results import check_not_input

if TYPE_CHECKING:
    from dasrel.oneclass.fit import OneClass
    from dasrel.oneclass.segments import OutlierResult


@command("dasrel outliers distances.zarr out --reject 0.05")
def outliers_command(
    console: Console,
    *,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the results.")],
    options: OutlierOptions,
    force: Force = False,
    dry_run: DryRun = False,
    checkpoint: Checkpoint | None,
    runtime: Runtime,
) -> None:
    """Find the objects of a STORE that are like no others, and clusters of any shape among the rest."""
    from dasrel.oneclass.job import outlier_lines, prepare_outliers
    from dasrel.oneclass.segments import COMMANDS

    check_not_input(out, store, options.features)
    if dry_run:
        console.cost(prepare_outliers(store, options, out, force=force).cost())
        return
    checkpoint = checkpoint and replace(checkpoint, force=force)
    job = prepare_outliers(store, options, out, force=force, resume=console.resume)
    with nullcontext() if job.finished else console.at(runtime):
        result = job.run(checkpoint=checkpoint, draw=pictures if options.picture else None)
    console.finish(checkpoint, out, *COMMANDS)
    console.result(result, outlier_lines(result))


def pictures(found: OneClass, results: list[OutlierResult], folder: Path) -> None:
    """Draw typicalities into the folder; matplotlib is imported only here, after the work."""
    from dasrel.report.figures.matrix import matrix_image
    from dasrel.report.figures.outliers import outlier_pictures

    outlier_pictures(found, results, folder, matrix_image=matrix_image)
