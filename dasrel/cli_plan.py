"""The command `dasrel plan`, and what `dasrel cluster --dry-run` says. As in `cli`: parse, one library call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasrel.errors import InputError, count_text, shown, size_text, time_text
from dasrel.options import OldStore, RunMemory, RunOptions, comma_list, command, option
from dasrel.talk import Talk

if TYPE_CHECKING:
    from dasrel.planning import ClusteringPlan, Fleet, OnWorkers, Range

THINKING = "Workers to think of"


@command
def plan_command(
    talk: Talk,
    runs: RunOptions,
    store: OldStore,
    memory: RunMemory = None,
    workers: Annotated[
        str, option("--workers", "How many; a list such as 4,16 shows each.", THINKING, metavar="W")
    ] = "1,2,4,8,16",
    worker_memory: Annotated[str, option("--worker-memory", "Of each worker.", THINKING)] = "8GiB",
    worker_threads: Annotated[int, option("--worker-threads", "Of each worker.", THINKING, min=1)] = 1,
    probe: Annotated[
        float, option("--probe", "How long to measure the store's speed.", THINKING, metavar="SECONDS", min=0.01)
    ] = 2.0,
) -> None:
    """What `dasrel cluster` would cost, here and on a cluster: scans, bytes, memory and time."""
    from dasrel.planning import Fleet

    counts = comma_list(workers, "workers", int)
    try:
        fleet = Fleet(tuple(counts), worker_memory, worker_threads)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    show_plan(talk, store, runs.asked(), memory=memory, fleet=fleet, probe=probe)


def show_plan(
    talk: Talk,
    store: str,
    asked: dict[str, Any],
    *,
    memory: str | None,
    fleet: Fleet | None = None,
    probe: float = 2.0,
    out: Path | None = None,
    force: bool = False,
) -> None:
    """Print the plan of what was asked for; refuses what a real run would refuse before it begins."""
    from dasrel.asked import runs_asked
    from dasrel.outputs import check_out
    from dasrel.planning import plan_clustering

    listed, _ = runs_asked(asked)
    if out is not None:
        check_out(out, force=force)
    plan = plan_clustering(
        store, listed, euclideanize=asked["euclideanize"], memory=memory, fleet=fleet, probe_seconds=probe
    )
    values = {"dry_run": True, "out": None if out is None else str(out), **plan.as_dict(), "seconds": talk.seconds}
    lines = plan_lines(plan)
    if out is not None:
        lines.append(("would write", shown(out, limit=400)))
    talk.result(values, lines)


def plan_lines(plan: ClusteringPlan) -> list[tuple[str, str]]:
    """A plan for people: names and texts."""
    from dasrel.forecast import range_text

    several = (
        ""
        if plan.bundles == 1
        else f", in {count_text(plan.bundles, 'bundle')}: memory does not allow them all at once"
    )
    parts = [("iterations", plan.n_iter), ("entropy weight", plan.first_scans)]
    parts += [("euclideanize", plan.euclideanize_scans)]
    told = [f"{name} {range_text(part)}" for name, part in parts if part.most]
    of = f": {'; '.join(told)}" if len(told) > 1 else ""
    cold = {True: ", cold", False: ", from memory: it could not be had cold", None: ""}[plan.speed.cold]
    then = "from memory" if plan.stays_in_memory else "read again: the tiles do not fit into this machine's free memory"
    lines = [
        ("objects", f"{plan.n_objects:,}, kind {plan.kind}"),
        (
            "tiles",
            f"{plan.tiles:,}, {count_text(plan.tile, 'object')} a side, {plan.dtype};"
            f" {count_text(plan.tasks, 'task')} a scan",
        ),
        (
            "runs",
            f"{plan.runs:,} of {count_text(plan.n_settings, 'setting')}, {count_text(plan.columns, 'column')} at"
            f" most{several}",
        ),
        ("scans", range_text(plan.scans) + of),
        ("one scan reads", size_text(plan.bytes_per_scan)),
        ("memory", f"{size_text(plan.memory)} here, {size_text(plan.task_memory)} of it a task"),
        (
            "measured",
            f"reading {size_text(int(plan.speed.read))}/s{cold}; products {size_text(int(plan.speed.product))}/s",
        ),
        ("a scan", f"{time_text(plan.first_scan_seconds)} at first, then {time_text(plan.scan_seconds)}, {then}"),
        ("time", times_text(plan.total_seconds)),
    ]
    if plan.start_reads:
        lines.insert(4, ("starts", f"read as much as {count_text(plan.start_reads, 'scan')} at most, besides"))
    each = size_text(_bytes(plan.fleet.memory))
    for row in plan.workers:
        lines.append((count_text(row.workers, "worker"), _worker_text(row, each)))
    return lines


def _worker_text(row: OnWorkers, each: str) -> str:

    if not row.fits or row.scan_seconds is None or row.total_seconds is None:
        return f"of {each}: no; {row.trouble}"
    held = (
        "all tiles held"
        if row.held == 1
        else f"{row.held:.0%} of the tiles held, all from {size_text(row.memory_for_all)}"
    )
    return (
        f"of {each}: {held}; {size_text(row.travel_bytes)} travel; {time_text(row.scan_seconds)} a scan,"
        f" {time_text(row.total_seconds.typical)} in all"
    )


def times_text(seconds: Range) -> str:
    """A range of times for people."""
    if seconds.least == seconds.most:
        return time_text(seconds.most)
    return f"{time_text(seconds.typical)} or so, {time_text(seconds.least)} to {time_text(seconds.most)}"


def _bytes(memory: int | str) -> int:
    from dask.utils import parse_bytes

    return int(parse_bytes(memory))
