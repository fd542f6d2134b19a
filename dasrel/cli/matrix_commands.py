"""Commands on matrices: import, pairwise, append, export, audit.

A command parses its options, makes one call of the library and prints the result. To add one, write a function of
`console: Console` and of options, decorate it with `@command`, and add it to the table of `dasrel.cli.app`. While it
runs, progress is drawn and errors become one line; `console.result` prints. What runs on Dask also takes
`runtime: Runtime` and stands inside `with console.at(runtime)`. The library is imported inside the commands, so that
`dasrel --help` is quick.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from dasrel.cli.analysis_commands import spectrum_lines
from dasrel.cli.console import Console, complain
from dasrel.cli.options import (
    DryRun,
    Force,
    Ids,
    Kind,
    Memory,
    NewStore,
    OldStore,
    TimeLimit,
    command,
    duration,
    option,
)
from dasrel.engine.runtime import Runtime
from dasrel.options import NEW_PAIRS, READING, WRITING, Policy, Reading, Writing
from dasrel.util import limits
from dasrel.util.text import count_text, shown
from dasrel.vocabulary import KINDS, ExportName, explain_kinds


def _kind(kind: str | None) -> str:
    """Return the kind, or raise a usage error that explains the four kinds."""
    if kind not in KINDS:
        problem = "it is missing" if kind is None else f"{kind!r} is no kind"
        raise typer.BadParameter(
            f"{problem}; say what the numbers are:\n{explain_kinds(lines=True)}", param_hint="--kind"
        )
    return kind


def _settings(texts: list[str] | None) -> dict[str, float]:
    """Return the numbers of repeated NAME=VALUE."""
    settings = {}
    for text in texts or []:
        name, _, value = text.partition("=")
        try:
            settings[name] = float(value)
        except ValueError:
            raise typer.BadParameter(
                f"{text!r} is not NAME=NUMBER, such as p=3", param_hint="--metric-option"
            ) from None
    return settings


def _show_part(console: Console, store: str, done: Any) -> None:
    """Print what a part has written, and what is missing."""
    k, n = done.part
    values = {"store": store, "part": f"{k}/{n}", "tiles_written": done.written, "tiles_missing": done.missing}
    left = count_text(done.missing, "tile") if done.missing else "none"
    then = "" if done.complete else "; when all parts have ended: the same with --resume, without --part"
    lines = [("part", f"{k} of {n}: {count_text(done.written, 'tile')} written"), ("missing", left + then)]
    console.result({**values, "complete": done.complete, "seconds": console.seconds}, lines)


@command
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
    from dasrel.io.importing import estimate_import, import_matrix
    from dasrel.store.audit import audit_lines, audit_store

    given: dict[str, Any] = {"kind": _kind(kind), "reading": reading, "policy": policy, "writing": writing}
    if dry_run:
        console.cost(estimate_import(source, store, **given))
        return
    with console.at(runtime), limits.limited(writing.time_limit):
        done = import_matrix(source, store, **given)
    if writing.part is not None:
        _show_part(console, store, done)
        return
    audit = audit_store(store)
    console.result({**audit, "seconds": console.seconds}, audit_lines(audit))


@command
def pairwise_command(
    console: Console,
    *,
    features: Annotated[str, typer.Argument(metavar="FEATURES", help="One row per object: npy, npz, CSV or Parquet.")],
    store: NewStore,
    metric: Annotated[str, option("--metric", "A metric of SciPy or scikit-learn, or simpson.", READING)],
    kind: Annotated[
        str, option("--kind", "Also squared-distance; similarity or kernel for a kernel.", READING)
    ] = "distance",
    metric_option: Annotated[
        list[str] | None,
        option("--metric-option", "A number that the metric takes, such as p=3.", READING, metavar="NAME=VALUE"),
    ] = None,
    ids: Ids = None,
    writing: Writing,
    dry_run: DryRun = False,
    runtime: Runtime,
) -> None:
    """Compute the dissimilarities of all pairs of rows of FEATURES into a STORE."""
    chosen, settings = _kind(kind), _settings(metric_option)

    from dasrel.io.pairwise import estimate_pairwise, pairwise
    from dasrel.io.text_stream import given_ids
    from dasrel.store.audit import audit_lines, audit_store

    given: dict[str, Any] = {
        "metric": metric,
        "kind": chosen,
        "ids": None if ids is None else given_ids(Reading(ids=str(ids))),
        "metric_options": settings,
        "writing": writing,
    }
    if dry_run:
        console.cost(estimate_pairwise(features, store, **given))
        return
    with console.at(runtime), limits.limited(writing.time_limit):
        done = pairwise(features, store, **given)
    if writing.part is not None:
        _show_part(console, store, done)
        return
    audit = audit_store(store)
    console.result({**audit, "seconds": console.seconds}, audit_lines(audit))


@command
def export_command(
    console: Console,
    store: OldStore,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file or folder to write.")],
    format: Annotated[ExportName, option("--format", "Format of the output.", WRITING)],  # noqa: A002
    relation: Annotated[
        str | None,
        option(
            "--relation",
            "Write squared dissimilarities: Euclideanised by a file (.npz) of `dasrel euclideanize`, or plain.",
            WRITING,
            metavar="FILE|plain",
        ),
    ] = None,
    memory: Memory = "1GiB",
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Write a STORE in a format of other tools."""
    from dasrel.geometry.euclidean import named_relation
    from dasrel.io.export import as_numbers, estimate_export, export_matrix

    given: Any = store if relation is None else named_relation(store, relation)
    if dry_run:
        console.cost(estimate_export(given, out, format=format, memory=memory, force=force))
        return
    written = str(export_matrix(given, out, format=format, memory=memory, force=force))
    numbers = as_numbers(given)
    values = {
        "store": store, "out": written, "format": format, "relation": relation, "kind": numbers.kind,
        "numbers": numbers.description, "seconds": console.seconds,
    }  # fmt: skip
    lines = [("wrote", shown(written, limit=400)), ("format", format)]
    console.result(values, lines if relation is None else [*lines, ("numbers", numbers.description)])


@command
def audit_command(
    console: Console,
    *,
    store: OldStore,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read and check every tile; exit with 1 if one is damaged.")
    ] = False,
    spectrum: Annotated[
        bool, typer.Option("--spectrum", help="Also test whether it is Euclidean, in a few scans.")
    ] = False,
    memory: Memory = "1GiB",
    dry_run: DryRun = False,
    runtime: Runtime,
) -> None:
    """Describe a STORE: its objects, values, repairs and source."""
    if dry_run:
        from dasrel.geometry.euclidean import estimate_spectrum
        from dasrel.store.audit import estimate_audit

        cost = estimate_audit(store, verify=verify, memory=memory)
        if spectrum:
            ends = estimate_spectrum(store, memory=memory)
            cost = replace(cost, scans=cost.scans + ends.scans, memory=max(cost.memory, ends.memory))
        console.cost(cost)
        return

    from dasrel.store.audit import audit_lines, audit_store

    with console.at(runtime):
        audit = audit_store(store, verify=verify, memory=memory)
        lines = audit_lines(audit)
        if spectrum:
            from dasrel.geometry.euclidean import spectrum as compute_spectrum

            audit["spectrum"] = compute_spectrum(store, memory=memory).as_dict()
            lines += spectrum_lines(audit["spectrum"])[1:]
    console.result(audit, lines)
    if verify and audit["verified"]["bad"]:
        complain(
            f"{count_text(len(audit['verified']['bad']), 'fault')}; restore these tiles from a copy, or import again"
        )
        raise typer.Exit(1)


@command
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
    ids: Ids = None,
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
    memory: Memory = "1GiB",
    resume: Annotated[
        bool, option("--resume", "Resume even if the previous process may still be running.", WRITING)
    ] = False,
    force: Annotated[bool, option("--force", "Discard an unfinished append of another source.", WRITING)] = False,
    dry_run: DryRun = False,
    time_limit: TimeLimit = None,
    runtime: Runtime,
) -> None:
    """Add objects to a STORE, which stays readable: all of them or, if interrupted, none."""
    from dasrel.io.append import append, estimate_append

    limit = duration(time_limit)
    given: dict[str, Any] = {
        "ids": None if ids is None else str(ids),
        "features": features or None,
        "policy": policy,
        "memory": memory,
    }
    if dry_run:
        console.cost(estimate_append(store, source, **given))
        return
    with console.at(runtime), limits.limited(limit):
        done = append(store, source, resume=resume, force=force, **given)
    report = done.report()
    size = "" if done.bytes_written is None else f", {done.bytes_written:,} bytes"
    kept = f", {done.tiles_kept:,} had already been written" if done.tiles_kept else ""
    lines = [
        ("store", shown(report["store"], limit=400)),
        ("objects", f"{done.objects_before:,} and {done.new_objects:,} more: {report['n_objects']:,}"),
        ("tiles", f"{done.tiles_written:,} new and {done.tiles_grown:,} grown of {report['tiles']:,}{size}{kept}"),
    ]
    console.result({**report, "seconds": console.seconds}, lines)
