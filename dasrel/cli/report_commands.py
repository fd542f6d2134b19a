"""The command that writes a page about results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dasrel.cli.console import Console
from dasrel.cli.options import Force, command, option
from dasrel.options import WRITING


@command("dasrel report out --out report.html")
def report_command(
    console: Console,
    *,
    results: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULT...",
            help="Folders of cluster, outliers, align, embed, tree or run; stores; files of euclideanize; JSON files of"
            " spectrum, audit and validity (--json).",
        ),
    ],
    out: Annotated[Path, option("--out -o", "The page to write.", WRITING, metavar="PAGE.html")] = Path("report.html"),
    force: Force = False,
) -> None:
    """Write one HTML page about results: verdicts in words, pictures and tables; no other file is needed."""
    from dasrel.report.page import prepare_report, report_lines

    done = prepare_report(results, out, force=force).run()
    console.result({**done, "seconds": console.seconds}, report_lines(done))
