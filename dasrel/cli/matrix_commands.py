"""Commands on matrices: import, pairwise, append, export, audit.

The command `dasrel`. Each subcommand is parse, one library call, print.

To add one: write a function of `talk: Talk` and of options, those of `dasrel.options` or new ones, and decorate it with
`@app.command(name)` and `@command`. Around it progress is drawn and errors become one line; `talk.result` prints. What
runs on Dask also takes `place: Place` and stands inside `with talk.at(place)`.
The library is imported inside the commands, so that `dasrel --help` is quick.

The command `dasrel append`. As in `cli`: parse, one library call, print.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from dasrel.cli.analysis_commands import spectrum_lines
from dasrel.cli.console import Console, as_option, complain
from dasrel.cli.options import (
    READING,
    REPAIRS,
    WRITING,
    Compress,
    DryRun,
    Force,
    Ids,
    Kind,
    Memory,
    NewStore,
    OldStore,
    Part,
    Place,
    Resume,
    StoreDtype,
    Tile,
    TimeLimit,
    command,
    duration,
    option,
)
from dasrel.errors import InputError
from dasrel.kernels.checks import Policy
from dasrel.util import limits
from dasrel.util.text import count_text, shown
from dasrel.vocabulary import FORMATS, KINDS, ExportName, explain_kinds

# ---------------------------------------------------------------------------------------- options of single commands


def _kind(kind: str | None) -> str:
    """The kind, or a usage error that explains the four words."""
    if kind not in KINDS:
        met = "it is missing" if kind is None else f"{kind!r} is no kind"
        raise typer.BadParameter(f"{met}; say what the numbers are:\n{explain_kinds(lines=True)}", param_hint="--kind")
    return kind


def _columns(text: str | None) -> tuple[str | int, str | int, str | int] | None:
    """Three columns by name or by number from 1."""
    if text is None:
        return None
    columns = [int(part) if part.isdecimal() else part for part in (p.strip() for p in text.split(","))]
    if len(columns) != 3 or "" in columns or 0 in columns:
        raise typer.BadParameter(
            f"{text!r} is not FIRST,SECOND,VALUE: three columns by name or by number from 1", param_hint="--columns"
        )
    return columns[0], columns[1], columns[2]


def _missing(text: str | None) -> Any:
    """What to fill missing pairs with."""
    if text is None:
        return "error"
    if text == "max":
        return "max"
    try:
        value = float(text.removeprefix("fill="))
    except ValueError:
        value = math.nan
    if not text.startswith("fill=") or not math.isfinite(value):
        raise typer.BadParameter(f"{text!r} is neither max nor fill=VALUE, such as fill=1", param_hint="--missing")
    return value


def _settings(texts: list[str] | None) -> dict[str, float]:
    """NAME=VALUE with a number, as often as wanted."""
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


def _part(text: str | None) -> tuple[int, int] | None:
    """The share of the tiles that is meant."""
    if text is None:
        return None
    from dasrel.store.writer import parse_part

    try:
        return parse_part(text)
    except InputError as error:
        raise typer.BadParameter(error.text(as_option), param_hint="--part") from None


def _show_part(talk: Console, store: str, done: Any) -> None:
    """What a part has done, and what is left to do."""
    k, n = done.part
    values = {"store": store, "part": f"{k}/{n}", "tiles_written": done.written, "tiles_missing": done.missing}
    left = count_text(done.missing, "tile") if done.missing else "none"
    then = "" if done.complete else "; when all parts have ended: the same with --resume, without --part"
    lines = [("part", f"{k} of {n}: {count_text(done.written, 'tile')} written"), ("missing", left + then)]
    talk.result({**values, "complete": done.complete, "seconds": talk.seconds}, lines)


@command
def import_command(
    talk: Console,
    place: Place,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The matrix: a file, a folder or a URL.")],
    store: NewStore,
    kind: Kind = None,
    format: Annotated[  # noqa: A002
        str | None, option("--format", f"One of {', '.join(FORMATS)}; found out if not given.", READING)
    ] = None,
    ids: Ids = None,
    shape: Annotated[int | None, option("--shape", "Objects in a raw binary file.", READING, metavar="N")] = None,
    dtype: Annotated[str | None, option("--dtype", "Numbers of a raw binary file: float32, <f8 ...", READING)] = None,
    columns: Annotated[
        str | None,
        option("--columns", "Columns of a list of pairs: names, or numbers from 1.", READING, metavar="A,B,V"),
    ] = None,
    dataset: Annotated[str | None, option("--dataset", "Array inside an npz, HDF5 or Zarr source.", READING)] = None,
    symmetrize: Annotated[
        Literal["mean", "max"] | None, option("--symmetrize", "One value for pairs that have two.", REPAIRS)
    ] = None,
    missing: Annotated[
        str | None, option("--missing", "A value for pairs that have none.", REPAIRS, metavar="fill=VALUE|max")
    ] = None,
    diagonal: Annotated[
        Literal["zero"] | None, option("--diagonal", "Set a distance's non-zero diagonal to zero.", REPAIRS)
    ] = None,
    clip_negative: Annotated[
        float, option("--clip-negative", "Distances from -TOL to 0 become 0.", REPAIRS, metavar="TOL", min=0)
    ] = 0.0,
    duplicates: Annotated[
        Literal["mean", "min", "max", "last"] | None,
        option("--duplicates", "One value for pairs that are listed more than once.", REPAIRS),
    ] = None,
    store_dtype: StoreDtype = "float32",
    tile: Tile = None,
    compress: Compress = None,
    memory: Memory = "1GiB",
    resume: Resume = False,
    force: Force = False,
    part: Part = None,
    time_limit: TimeLimit = None,
    dry_run: DryRun = False,
) -> None:
    """Check a matrix and put it into a STORE, whatever its size."""
    meant, chosen, fill, share = _kind(kind), _columns(columns), _missing(missing), _part(part)
    limit = duration(time_limit)

    from dasrel.io.array_files import Reading
    from dasrel.io.importing import import_matrix, import_part
    from dasrel.store.audit import audit_lines, audit_store
    from dasrel.store.writer import Writing

    given: dict[str, Any] = {
        "kind": meant,
        "reading": Reading(format, None if ids is None else str(ids), shape, dtype, chosen, dataset),
        "policy": Policy(symmetrize or "error", fill, diagonal or "error", clip_negative, duplicates or "error"),
        "writing": Writing(store_dtype, tile, compress, memory, resume, force, share, limit),
    }
    if dry_run:
        from dasrel.io.importing import estimate_import

        talk.forecast(estimate_import(source, store, **given))
        return
    with talk.at(place), limits.limited(limit):
        done = (import_matrix if share is None else import_part)(source, store, **given)
    if share is not None:
        _show_part(talk, store, done)
        return
    audit = audit_store(store)
    talk.result({**audit, "seconds": talk.seconds}, audit_lines(audit))


@command
def pairwise_command(
    talk: Console,
    place: Place,
    features: Annotated[str, typer.Argument(metavar="FEATURES", help="One row per object: npy, npz, CSV or Parquet.")],
    store: NewStore,
    metric: Annotated[str, option("--metric", "A metric of SciPy or scikit-learn, or simpson.", READING)],
    kind: Annotated[
        str, option("--kind", "Also squared-distance; similarity or kernel for a kernel.", READING)
    ] = "distance",
    settings: Annotated[
        list[str] | None,
        option("--metric-option", "A number that the metric takes, such as p=3.", READING, metavar="NAME=VALUE"),
    ] = None,
    ids: Ids = None,
    store_dtype: StoreDtype = "float32",
    tile: Tile = None,
    compress: Compress = None,
    memory: Memory = "1GiB",
    resume: Resume = False,
    force: Force = False,
    part: Part = None,
    time_limit: TimeLimit = None,
    dry_run: DryRun = False,
) -> None:
    """Compute all pairs of FEATURES into a STORE."""
    meant, chosen, share, limit = _kind(kind), _settings(settings), _part(part), duration(time_limit)

    from dasrel.io.array_files import Reading
    from dasrel.io.pairwise import pairwise, pairwise_part
    from dasrel.io.text_stream import given_ids
    from dasrel.store.audit import audit_lines, audit_store
    from dasrel.store.writer import Writing

    given: dict[str, Any] = {
        "metric": metric,
        "kind": meant,
        "ids": None if ids is None else given_ids(Reading(ids=str(ids))),
        "metric_options": chosen,
        "writing": Writing(store_dtype, tile, compress, memory, resume, force, share, limit),
    }
    if dry_run:
        from dasrel.io.pairwise import estimate_pairwise

        talk.forecast(estimate_pairwise(features, store, **given))
        return
    with talk.at(place), limits.limited(limit):
        done = (pairwise if share is None else pairwise_part)(features, store, **given)
    if share is not None:
        _show_part(talk, store, done)
        return
    audit = audit_store(store)
    talk.result({**audit, "seconds": talk.seconds}, audit_lines(audit))


@command
def export_command(
    talk: Console,
    store: OldStore,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file or folder to write.")],
    format: Annotated[ExportName, option("--format", "How to write it.", WRITING)],  # noqa: A002
    relation: Annotated[
        str | None,
        option(
            "--relation",
            "Write squared dissimilarities: Euclideanised by this file (.npz), or plain ones.",
            WRITING,
            metavar="FILE|plain",
        ),
    ] = None,
    memory: Memory = "1GiB",
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Write a STORE as a file for other tools."""
    from dasrel.geometry.euclidean import named_relation
    from dasrel.io.export import as_numbers, estimate_export, export_matrix

    given: Any = store if relation is None else named_relation(store, relation)
    if dry_run:
        talk.forecast(estimate_export(given, out, format=format, memory=memory, force=force))
        return
    written = str(export_matrix(given, out, format=format, memory=memory, force=force))
    numbers = as_numbers(given)
    values = {
        "store": store, "out": written, "format": format, "relation": relation, "kind": numbers.kind,
        "numbers": numbers.told, "seconds": talk.seconds,
    }  # fmt: skip
    lines = [("wrote", shown(written, limit=400)), ("format", format)]
    talk.result(values, lines if relation is None else [*lines, ("numbers", numbers.told)])


@command
def audit_command(
    talk: Console,
    place: Place,
    store: OldStore,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every tile; exit 1 if one is bad.")] = False,
    spectrum: Annotated[bool, typer.Option("--spectrum", help="Also: is it Euclidean? Takes some scans.")] = False,
    memory: Memory = "1GiB",
    dry_run: DryRun = False,
) -> None:
    """Show what is in a STORE and how it came there."""
    if dry_run:
        from dasrel.geometry.euclidean import estimate_spectrum
        from dasrel.store.audit import estimate_audit

        cost = estimate_audit(store, verify=verify, memory=memory)
        if spectrum:
            ends = estimate_spectrum(store, memory=memory)
            cost = replace(cost, scans=cost.scans + ends.scans, memory=max(cost.memory, ends.memory))
        talk.forecast(cost)
        return

    from dasrel.store.audit import audit_lines, audit_store

    with talk.at(place):
        audit = audit_store(store, verify=verify, memory=memory)
        lines = audit_lines(audit)
        if spectrum:
            from dasrel.geometry.euclidean import spectrum as ends_of

            audit["spectrum"] = ends_of(store, memory=memory).as_dict()
            lines += spectrum_lines(audit["spectrum"])[1:]
    talk.result(audit, lines)
    if verify and audit["verified"]["bad"]:
        complain(
            f"{count_text(len(audit['verified']['bad']), 'fault')}; restore these tiles from a copy, or import again"
        )
        raise typer.Exit(1)


@command
def append_command(
    talk: Console,
    place: Place,
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
            "SOURCE has features, and the old objects' are in FILE; once for each file that was added.",
            READING,
            metavar="FILE",
        ),
    ] = None,
    symmetrize: Annotated[
        Literal["mean", "max"] | None, option("--symmetrize", "One value for new pairs that have two.", REPAIRS)
    ] = None,
    missing: Annotated[
        str | None, option("--missing", "A value for pairs that have none.", REPAIRS, metavar="fill=VALUE")
    ] = None,
    diagonal: Annotated[
        Literal["zero"] | None, option("--diagonal", "Set a distance's non-zero diagonal to zero.", REPAIRS)
    ] = None,
    clip_negative: Annotated[
        float, option("--clip-negative", "Distances from -TOL to 0 become 0.", REPAIRS, metavar="TOL", min=0)
    ] = 0.0,
    memory: Memory = "1GiB",
    resume: Annotated[
        bool, option("--resume", "Go on, though whoever began may seem to be at work still.", WRITING)
    ] = False,
    force: Annotated[bool, option("--force", "Drop an unfinished append of something else.", WRITING)] = False,
    time_limit: TimeLimit = None,
    dry_run: DryRun = False,
) -> None:
    """Add objects to a STORE, which stays readable: all of them or, if it is interrupted, none yet."""
    limit = duration(time_limit)
    given: dict[str, Any] = {
        "ids": None if ids is None else str(ids),
        "features": features or None,
        "policy": Policy(symmetrize or "error", _fill(missing), diagonal or "error", clip_negative),
        "memory": memory,
    }
    if dry_run:
        from dasrel.io.append import estimate_append

        talk.forecast(estimate_append(store, source, **given))
        return

    from dasrel.io.append import append

    with talk.at(place), limits.limited(limit):
        done = append(store, source, resume=resume, force=force, **given)
    report = done.report()
    size = "" if done.bytes_written is None else f", {done.bytes_written:,} bytes"
    kept = f", {done.tiles_kept:,} had been written before" if done.tiles_kept else ""
    lines = [
        ("store", shown(report["store"], limit=400)),
        ("objects", f"{done.objects_before:,} and {done.new_objects:,} more: {report['n_objects']:,}"),
        ("tiles", f"{done.tiles_written:,} new and {done.tiles_grown:,} grown of {report['tiles']:,}{size}{kept}"),
    ]
    talk.result({**report, "seconds": talk.seconds}, lines)


def _fill(text: str | None) -> Literal["error"] | float:
    if text is None:
        return "error"
    try:
        if not text.startswith("fill="):
            raise ValueError
        return float(text.removeprefix("fill="))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not fill=VALUE, such as fill=1", param_hint="--missing") from None
