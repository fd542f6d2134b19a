"""The command that finds the number of clusters and the width of a kernel that agree best."""

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
from dasrel.options import AlignOptions
from dasrel.util.results import check_not_input

if TYPE_CHECKING:
    from dasrel.judging.alignment_search import Alignment


@command("dasrel align distances.zarr out --clusters 2-10")
def align_command(
    console: Console,
    *,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the results.")],
    options: AlignOptions,
    force: Force = False,
    dry_run: DryRun = False,
    checkpoint: Checkpoint | None,
    runtime: Runtime,
) -> None:
    """Find the number of clusters of a STORE, and the width of a Gaussian kernel that shows the same structure."""
    from dasrel.cmeans.align_job import COMMANDS, align_lines, prepare_align

    check_not_input(out, store)
    if dry_run:
        console.cost(prepare_align(store, out, options, force=force).cost())
        return
    checkpoint = checkpoint and replace(checkpoint, force=force)
    job = prepare_align(store, out, options, force=force, resume=console.resume)
    with nullcontext() if job.finished else console.at(runtime):
        result = job.run(checkpoint=checkpoint, draw=picture if options.picture else None)
    console.finish(checkpoint, out, *COMMANDS)
    console.result(result, align_lines(result))


def picture(found: Alignment, folder: Path) -> None:
    """Draw the alignments into the folder; matplotlib is imported only here, after the work."""
    from dasrel.report.figures.alignment import alignment_picture

    alignment_picture(found, folder)
