"""The command `dasrel`. Each subcommand is parse, one library call, print.

To add one: write a function of `talk: Talk` and of options, those of `dasrel.options` or new ones, and decorate it with
`@app.command(name)` and `@command`. Around it progress is drawn and errors become one line; `talk.result` prints. What
runs on Dask also takes `place: Place` and stands inside `with talk.at(place)`.
The library is imported inside the commands, so that `dasrel --help` is quick.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from dasrel import stopping
from dasrel._version import __version__
from dasrel.cli_append import append_command
from dasrel.cli_cluster import cluster_command, predict_command
from dasrel.cli_pictures import image_command, tree_command
from dasrel.cli_plan import plan_command
from dasrel.cli_run import run_command
from dasrel.cli_structure import euclideanize_command, spectrum_command, spectrum_lines
from dasrel.errors import InputError, count_text, shown
from dasrel.intake import Policy
from dasrel.options import (
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
from dasrel.talk import Talk, UsageError, complain, print_error, report
from dasrel.vocabulary import FORMATS, KINDS, ExportName, explain_kinds

app = typer.Typer(
    name="dasrel",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Cluster objects known only by a pairwise matrix, of any size, metric or not.",
)


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
    from dasrel.parts import parse_part

    try:
        return parse_part(text)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--part") from None


def _show_part(talk: Talk, store: str, done: Any) -> None:
    """What a part has done, and what is left to do."""
    k, n = done.part
    values = {"store": store, "part": f"{k}/{n}", "tiles_written": done.written, "tiles_missing": done.missing}
    left = count_text(done.missing, "tile") if done.missing else "none"
    then = "" if done.complete else "; when all parts have ended: the same with --resume, without --part"
    lines = [("part", f"{k} of {n}: {count_text(done.written, 'tile')} written"), ("missing", left + then)]
    talk.result({**values, "complete": done.complete, "seconds": talk.seconds}, lines)


# ------------------------------------------------------------------------------------------------------ the commands


def _version(wanted: bool) -> None:
    if wanted:
        from dasrel import compiled

        print(f"dasrel {__version__} (kernels: {compiled.described()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("import")
@command
def import_command(
    talk: Talk,
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

    from dasrel.audit import audit_lines, audit_store
    from dasrel.readers import import_matrix, import_part
    from dasrel.source import Reading
    from dasrel.writer import Writing

    given: dict[str, Any] = {
        "kind": meant,
        "reading": Reading(format, None if ids is None else str(ids), shape, dtype, chosen, dataset),
        "policy": Policy(symmetrize or "error", fill, diagonal or "error", clip_negative, duplicates or "error"),
        "writing": Writing(store_dtype, tile, compress, memory, resume, force, share, limit),
    }
    if dry_run:
        from dasrel.forecast import forecast_import

        talk.forecast(forecast_import(source, store, **given))
        return
    with talk.at(place), stopping.limited(limit):
        done = (import_matrix if share is None else import_part)(source, store, **given)
    if share is not None:
        _show_part(talk, store, done)
        return
    audit = audit_store(store)
    talk.result({**audit, "seconds": talk.seconds}, audit_lines(audit))


@app.command("pairwise")
@command
def pairwise_command(
    talk: Talk,
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

    from dasrel.audit import audit_lines, audit_store
    from dasrel.pairwise import pairwise, pairwise_part
    from dasrel.source import Reading
    from dasrel.spool import given_ids
    from dasrel.writer import Writing

    given: dict[str, Any] = {
        "metric": metric,
        "kind": meant,
        "ids": None if ids is None else given_ids(Reading(ids=str(ids))),
        "metric_options": chosen,
        "writing": Writing(store_dtype, tile, compress, memory, resume, force, share, limit),
    }
    if dry_run:
        from dasrel.forecast import forecast_pairwise

        talk.forecast(forecast_pairwise(features, store, **given))
        return
    with talk.at(place), stopping.limited(limit):
        done = (pairwise if share is None else pairwise_part)(features, store, **given)
    if share is not None:
        _show_part(talk, store, done)
        return
    audit = audit_store(store)
    talk.result({**audit, "seconds": talk.seconds}, audit_lines(audit))


@app.command("export")
@command
def export_command(
    talk: Talk,
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
    from dasrel.export import as_numbers, export_matrix, named_relation

    if dry_run:
        from dasrel.forecast import forecast_export

        talk.forecast(forecast_export(store, out, format=format, relation=relation, memory=memory, force=force))
        return
    given: Any = store if relation is None else named_relation(store, relation)
    written = str(export_matrix(given, out, format=format, memory=memory, force=force))
    numbers = as_numbers(given)
    values = {
        "store": store, "out": written, "format": format, "relation": relation, "kind": numbers.kind,
        "numbers": numbers.told, "seconds": talk.seconds,
    }  # fmt: skip
    lines = [("wrote", shown(written, limit=400)), ("format", format)]
    talk.result(values, lines if relation is None else [*lines, ("numbers", numbers.told)])


@app.command("audit")
@command
def audit_command(
    talk: Talk,
    place: Place,
    store: OldStore,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every tile; exit 1 if one is bad.")] = False,
    spectrum: Annotated[bool, typer.Option("--spectrum", help="Also: is it Euclidean? Takes some scans.")] = False,
    memory: Memory = "1GiB",
    dry_run: DryRun = False,
) -> None:
    """Show what is in a STORE and how it came there."""
    if dry_run:
        from dasrel.forecast import forecast_audit

        talk.forecast(forecast_audit(store, verify=verify, spectrum=spectrum, memory=memory))
        return

    from dasrel.audit import audit_lines, audit_store

    with talk.at(place):
        audit = audit_store(store, verify=verify, memory=memory)
        lines = audit_lines(audit)
        if spectrum:
            from dasrel.spectrum import spectrum as ends_of

            audit["spectrum"] = ends_of(store, memory=memory).as_dict()
            lines += spectrum_lines(audit["spectrum"])[1:]
    talk.result(audit, lines)
    if verify and audit["verified"]["bad"]:
        complain(
            f"{count_text(len(audit['verified']['bad']), 'fault')}; restore these tiles from a copy, or import again"
        )
        raise typer.Exit(1)


app.command("append")(append_command)
app.command("cluster")(cluster_command)
app.command("plan")(plan_command)
app.command("predict")(predict_command)
app.command("tree")(tree_command)
app.command("image")(image_command)
app.command("spectrum")(spectrum_command)
app.command("euclideanize")(euclideanize_command)
app.command("run")(run_command)


@app.command("demo")
@command
def demo_command(
    talk: Talk,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="[OUT]", help="A folder for all of it. If not given, the picture is kept, here."),
    ] = None,
    force: Force = False,
) -> None:
    """Store and cluster scikit-learn's digits, and draw a picture."""
    from dasrel.demo import demo_lines, run_demo

    result = run_demo(out, force=force)
    talk.result({**result, "seconds": talk.seconds}, demo_lines(result))


# -------------------------------------------------------------------------------------------------------------- main


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code: 0, 1 (error), 2 (usage), 3 (not converged), 75 (stopped, can be
    gone on with), 130 (interrupted), 143 (SIGTERM). `dasrel.__main__` is what starts a process."""
    wants_json, trace = "--json" in arguments, "-vv" in arguments
    try:
        code = app(arguments, prog_name="dasrel", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except UsageError as error:
        return _show_usage(error, wants_json)
    except (KeyboardInterrupt, typer.Abort):
        return report(KeyboardInterrupt(), json=wants_json, trace=trace)
    except Exception as error:
        return report(error, json=wants_json, trace=trace)


def _show_usage(error: Any, wants_json: bool) -> int:
    text = cast(str, error.format_message()).replace("Value error, ", "")
    if not text:
        return 2  # there were no arguments, and the help was shown
    if error.ctx is not None:
        print(error.ctx.get_usage(), file=sys.stderr)
        print(f"Try '{error.ctx.command_path} --help'.\n", file=sys.stderr)
    print("\n".join(shown(part, limit=4000) for part in f"dasrel: {text}".split("\n")), file=sys.stderr)
    if wants_json:
        print_error(text)
    return 2
