"""Commands on matrices: import, pairwise, append, export, audit.

A command parses its options, makes one call of the library and prints the result. To add one, write a function of
`console: Console` and of options, decorate it with `@command`, and add it to the table of `dasrel.cli.app`. While it
runs, progress is drawn and errors become one line; `console.result` prints. What runs on Dask also takes
`runtime: Runtime` and stands inside `with console.at(runtime)`. The library is imported inside the commands, so that
`dasrel --help` is quick.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dasrel.cli.console import Console
from dasrel.cli.options import (
    DryRun,
    Kind,
    NewStore,
    OldStore,
    command,
    option,
)
from dasrel.engine.runtime import Runtime
from dasrel.names import KINDS, explain_kinds
from dasrel.options import (
    APPENDING,
    IDS,
    NEW_PAIRS,
    READING,
    PairwiseOptions,
    Policy,
    Reading,
    Writing,
)
from dasrel.util import limits
from dasrel.util.results import check_not_input
from dasrel.util.text import count_text, shown


def _kind(kind: str | None) -> str:
    """Return the kind, or raise a usage error that explains the four kinds."""
    if kind not in KINDS:
        problem = "it is missing" if kind is None else f"{kind!r} is no kind"
        raise typer.BadParameter(
            f"{problem}; say what the numbers are:\n{explain_kinds(lines=True)}", param_hint="--kind"
        )
    return kind


def _show_part(console: Console, store: str, done: Any) -> None:
    """Print what a part has written, and what is missing."""
    k, n = done.part
    values = {"store": store, "part": f"{k}/{n}", "tiles_written": done.written, "tiles_missing": done.missing}
    left = count_text(done.missing, "tile") if done.missing else "none"
    then = "" if done.complete else "; when all parts have ended: the same with --resume, without --part"
    lines = [("part", f"{k} of {n}: {count_text(done.written, 'tile')} written"), ("missing", left + then)]
    console.result({**values, "complete": done.complete, "seconds": console.seconds}, lines)


@command("dasrel import distances.npy distances.zarr --kind distance")
def import_command(
    console: Console,
    *,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The matrix: a file, a folder or a URL.")],
    store: NewStore,
    kind: Kind = None,
    reading: Reading,
    policy: Policy,
    writing: Writing,
    dry_run: DryRun = False,
    runtime: Runtime,
) -> None:
    """Check a matrix and write it into a STORE, whatever its size."""
    check_not_input(store, source, reading.ids)
    from dasrel.io.importing import import_matrix, prepare_import
    from dasrel.store.audit import audit_lines, audit_store

    given: dict[str, Any] = {"kind": _kind(kind), "reading": reading, "policy": policy, "writing": writing}
    if dry_run:
        with prepare_import(source, store, **given) as job:
            console.cost(job.cost())
        return
    with console.at(runtime), limits.limited(writing.time_limit):
        done = import_matrix(source, store, **given)
    if writing.part is not None:
        _show_part(console, store, done)
        return
    audit = audit_store(store)
    console.result({**audit, "seconds": console.seconds}, audit_lines(audit))


@command("dasrel pairwise features.csv distances.zarr --metric braycurtis")
def pairwise_command(
    console: Console,
    *,
    features: Annotated[str, typer.Argument(metavar="FEATURES", help="One row per object: npy, npz, CSV or Parquet.")],
    store: NewStore,
    options: PairwiseOptions,
    reading: Annotated[Reading, IDS],
    writing: Writing,
    dry_run: DryRun = False,
    runtime: Runtime,
) -> None:
    """Compute the dissimilarities of all pairs of rows of FEATURES into a STORE."""
    check_not_input(store, features, reading.ids)
    from dasrel.io.pairwise import pairwise, prepare_pairwise
    from dasrel.store.audit import audit_lines, audit_store

    given: dict[str, Any] = {**vars(options), "ids": reading.ids, "writing": writing}
    if dry_run:
        with prepare_pairwise(features, store, **given) as job:
            console.cost(job.cost())
        return
    with console.at(runtime), limits.limited(writing.time_limit):
        done = pairwise(features, store, **given)
    if writing.part is not None:
        _show_part(console, store, done)
        return
    audit = audit_store(store)
    console.result({**audit, "seconds": console.seconds}, audit_lines(audit))


@command("dasrel append distances.zarr rows.csv")
def append_command(
    console: Console,
    *,
    store: OldStore,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="One row per new object, with a value for every old one and then every new one: npy, npz, CSV, Zarr.",
        ),
    ],
    reading: Annotated[Reading, IDS],
    features: Annotated[
        list[str] | None,
        option(
            "--features",
            "SOURCE has features, and FILE those of the objects in the store; repeat for each file appended since.",
            READING,
            metavar="FILE",
        ),
    ] = None,
    policy: Annotated[Policy, NEW_PAIRS],
    writing: Annotated[Writing, APPENDING],
    dry_run: DryRun = False,
    runtime: Runtime,
) -> None:
    """Add objects to a STORE, which stays readable: all of them or, if interrupted, none."""
    from dasrel.io.append import append, prepare_append

    given: dict[str, Any] = {
        "ids": reading.ids,
        "features": features or None,
        "policy": policy,
        "memory": writing.memory,
    }
    if dry_run:
        console.cost(prepare_append(store, source, **given).cost())
        return
    with console.at(runtime), limits.limited(writing.time_limit):
        done = append(store, source, resume=writing.resume, force=writing.force, **given)
    report = done.report()
    size = "" if done.bytes_written is None else f", {done.bytes_written:,} bytes"
    kept = f", {done.tiles_kept:,} had already been written" if done.tiles_kept else ""
    lines = [
        ("store", shown(report["store"], limit=400)),
        ("objects", f"{done.objects_before:,} and {done.new_objects:,} more: {report['n_objects']:,}"),
        ("tiles", f"{done.tiles_written:,} new and {done.tiles_grown:,} grown of {report['tiles']:,}{size}{kept}"),
    ]
    console.result({**report, "seconds": console.seconds}, lines)
