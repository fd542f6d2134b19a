"""Options that several commands take, each written down once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dasrel.intake import KINDS

READING = "Reading the source"
REPAIRS = "Repairs: without them each flaw is an error"
WRITING = "Writing"
RUNNING = "Runs: lists such as 2,3,4 make one run of each"
TALKING = "Talking"


def option(name: str, text: str, panel: str, **more: Any) -> Any:
    """An option: its name, its help and the panel of the help that it stands in."""
    return typer.Option(*name.split(), help=text, rich_help_panel=panel, **more)


Json = Annotated[bool, option("--json", "Print one JSON object on stdout and nothing else there.", TALKING)]
Quiet = Annotated[bool, option("--quiet -q", "Print errors and warnings only.", TALKING)]
Verbose = Annotated[
    int, option("--verbose -v", "Say more; -vv shows tracebacks.", TALKING, count=True, show_default=False)
]
Kind = Annotated[str | None, option("--kind", f"What the numbers are: {', '.join(KINDS)}. Needed.", READING)]
StoreDtype = Annotated[Literal["float32", "float64"], option("--store-dtype", "Numbers in the store.", WRITING)]
Tile = Annotated[int | None, option("--tile", "Objects a side of a tile; else at most 64 MiB a tile.", WRITING, min=1)]
Compress = Annotated[Literal["lz4"] | None, option("--compress", "Smaller on disk, slower to read.", WRITING)]
Memory = Annotated[str, option("--memory", "Memory that the work may take, such as 512MiB.", WRITING)]
Resume = Annotated[bool, option("--resume", "Go on with an unfinished store.", WRITING)]
Force = Annotated[bool, option("--force", "Replace what exists, once the new one is whole.", WRITING)]
Ids = Annotated[Path | None, option("--ids", "Object names, one per line.", READING, metavar="FILE")]
NewStore = Annotated[str, typer.Argument(metavar="STORE", help="Where to write: a folder or a URL such as s3://...")]
OldStore = Annotated[str, typer.Argument(metavar="STORE", help="A store: a folder or a URL such as s3://...")]
