"""The command that computes principal coordinates."""

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
from dasrel.options import EmbedOptions
from dasrel.util.results import check_not_input

if TYPE_CHECKING:
    from dasrel.geometry.embedding import Colours, Embedding


@command("dasrel embed distances.zarr out --components 3")
def embed_command(
    console: Console,
    *,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the results.")],
    options: EmbedOptions,
    force: Force = False,
    dry_run: DryRun = False,
    checkpoint: Checkpoint | None,
    runtime: Runtime,
) -> None:
    """Compute principal coordinates of the objects of a STORE, and draw them, in a few scans."""
    from dasrel.judging.embedding_job import embedding_lines, prepare_embedding

    check_not_input(out, store, options.result, options.labels)
    if dry_run:
        console.cost(prepare_embedding(store, options, out, force=force).cost())
        return
    checkpoint = checkpoint and replace(checkpoint, force=force)
    job = prepare_embedding(store, options, out, force=force, resume=console.resume)
    with nullcontext() if job.finished else console.at(runtime):
        result = job.run(checkpoint=checkpoint, draw=picture if options.picture else None)
    console.finish(checkpoint, out, "embed")
    console.result(result, embedding_lines(result))


def picture(found: Embedding, colours: Colours | None, folder: Path) -> None:
    """Draw the axes into the folder; matplotlib is imported only here, after the work."""
    from dasrel.report.figures.embedding import draw_embedding

    draw_embedding(found, colours, folder)
