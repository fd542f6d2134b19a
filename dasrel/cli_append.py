"""The command `dasrel append`. As in `cli`: parse, one library call, print."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from dasrel import stopping
from dasrel.errors import shown
from dasrel.intake import Policy
from dasrel.options import (
    READING,
    REPAIRS,
    WRITING,
    DryRun,
    Ids,
    Memory,
    OldStore,
    Place,
    TimeLimit,
    command,
    duration,
    option,
)
from dasrel.talk import Talk


@command
def append_command(
    talk: Talk,
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
        from dasrel.forecast import forecast_append

        talk.forecast(forecast_append(store, source, **given))
        return

    from dasrel.append import append

    with talk.at(place), stopping.limited(limit):
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
