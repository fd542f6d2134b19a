"""The commands `dasrel tree` and `dasrel image`. As in `cli`: parse, one library call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dasrel.errors import shown
from dasrel.options import WRITING, DryRun, Force, OldStore, Place, command, option
from dasrel.talk import Talk

Orders = Literal["vat", "ivat", "labels", "eigen", "none"]

ScanMemory = Annotated[
    str | None, option("--memory", "Memory that may be taken; half of the machine's if not given.", WRITING)
]


@command
def tree_command(
    talk: Talk,
    place: Place,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the files.")],
    memory: ScanMemory = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Find the minimum spanning tree of a STORE: tree, single linkage and VAT order as files, in one scan."""
    if dry_run:
        from dasrel.forecast import forecast_tree

        talk.forecast(forecast_tree(store, out, memory=memory, force=force))
        return

    from dasrel.orders import save_tree
    from dasrel.outputs import check_out
    from dasrel.store import open_matrix
    from dasrel.tree import minimum_spanning_tree

    check_out(out, force=force)
    matrix = open_matrix(store)
    with talk.at(place):
        tree = minimum_spanning_tree(matrix, memory=memory)
    values = {"store": store, **save_tree(tree, matrix.ids, out, force=force), "seconds": talk.seconds}
    talk.result(
        values,
        [
            ("tree", shown(out, limit=400)),
            ("objects", f"{tree.n_objects:,}"),
            ("scans", str(tree.scans)),
            ("weights", f"{values['shortest']:g} to {values['longest']:g}, {values['units']}"),
            ("files", "tree.npz, edges.csv, linkage.npy, vat.csv"),
        ],
    )


@command
def image_command(
    talk: Talk,
    place: Place,
    store: OldStore,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The picture: .png, .pdf or .svg.")],
    order: Annotated[Orders, option("--order", "The order of the objects.", WRITING)] = "vat",
    result: Annotated[
        Path | None,
        option("--result", "A result of `dasrel cluster`: its labels order the objects.", WRITING, metavar="FOLDER"),
    ] = None,
    induced: Annotated[
        bool, option("--induced", "Show D(U), what the result's memberships say, not the matrix.", WRITING)
    ] = False,
    pixels: Annotated[int, option("--pixels", "Most dots a side.", WRITING, min=2, max=20_000)] = 1000,
    memory: ScanMemory = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Draw a STORE, whatever its size: as it is, in VAT order, as iVAT, or ordered by clusters or eigenvectors."""
    if (order == "labels" or induced) and result is None:
        raise typer.BadParameter("name the result of `dasrel cluster` that the labels are in", param_hint="--result")

    from dasrel.orders import draw

    asked: dict[str, Any] = {
        "order": order, "result": result, "induced": induced, "pixels": pixels, "memory": memory, "force": force,
    }  # fmt: skip
    if dry_run:
        from dasrel.forecast import forecast_image

        talk.forecast(forecast_image(store, out, **asked))
        return
    with talk.at(place):
        said = draw(store, out, **asked)
    said["scans"] = talk.meter.scans
    talk.result(
        {"store": store, **said, "seconds": talk.seconds},
        [
            ("picture", shown(out, limit=400)),
            ("shows", said["title"]),
            ("dots a side", str(said["side"])),
            ("scans", str(said["scans"])),
        ],
    )
