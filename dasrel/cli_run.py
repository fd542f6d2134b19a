"""The command `dasrel run`. As in `cli`: parse, one library call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dasrel.errors import count_text, redacted, shown, some
from dasrel.options import RUNNING, WRITING, Place, TimeLimit, command, option
from dasrel.stopping import limited
from dasrel.talk import Talk, complain

NOT_CONVERGED = 3
"""The exit code of --strict."""
WORDS = {
    "done": "done", "unchanged": "as before", "failed": "failed", "waiting": "not done",
}  # fmt: skip


@command
def run_command(
    talk: Talk,
    place: Place,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The workflow.")],
    out: Annotated[
        Path | None, option("--out", "For what the steps write, instead of the file's `out`.", WRITING, metavar="DIR")
    ] = None,
    log_json: Annotated[
        str | None,
        option("--log-json", "One JSON object a line for each event; - is stdout.", WRITING, metavar="FILE|-"),
    ] = None,
    status: Annotated[bool, option("--status", "Only say how the steps stand. Reads no data.", WRITING)] = False,
    dry_run: Annotated[bool, option("--dry-run", "Only say what would be done, and why.", WRITING)] = False,
    time_limit: TimeLimit = None,
    check: Annotated[
        bool, option("--check", "Read all files again, even those that look the same as before.", RUNNING)
    ] = False,
    strict: Annotated[
        bool, option("--strict", f"Exit {NOT_CONVERGED} if a result has not converged.", RUNNING)
    ] = False,
) -> None:
    """Run the steps of a workflow that are not done yet, or that have changed."""
    if log_json == "-" and talk.json:
        raise typer.BadParameter("the log and the result cannot both go to stdout", param_hint="--log-json")

    from dasrel.recipe import read_workflow
    from dasrel.runtime import environment

    workflow = read_workflow(file, out=out)
    if status or dry_run:
        from dasrel.standing import plan

        planned = [one.as_dict(workflow.out) for one in plan(workflow, read=dry_run, trust=not check)]
        told = redacted({"workflow": str(workflow.path), "out": str(workflow.out), "steps": planned})
        talk.result({**told, "seconds": talk.seconds}, plan_lines(told, dry_run))
        return

    from dasrel.ledger import Log
    from dasrel.workflow import run_workflow

    if log_json == "-":
        talk.quiet = True  # nothing else goes to stdout
    where = place.over(environment()).over(workflow.runtime)
    with Log(log_json) as log, limited(time_limit):
        outcome = run_workflow(workflow, log=log, tell=talk.tell, connected=lambda: talk.at(where), trust=not check)
    left = outcome.not_converged
    result = {"workflow": str(workflow.path), "out": str(workflow.out), "steps": outcome.steps, "not_converged": left}
    talk.result({**redacted(result), "seconds": talk.seconds}, run_lines(result))
    failed = outcome.having("failed")
    if failed:
        first = next(one for one in outcome.steps if one["status"] == "failed")
        complain(f"{some(failed)} failed: {first['why']}")
        raise typer.Exit(1)
    wanted = [name for name in left if strict or getattr(workflow.steps[name].asked, "strict", False)]
    if wanted:
        complain(f"not converged: {some(wanted)}; the results are written all the same: raise max_iter or tol")
        raise typer.Exit(NOT_CONVERGED)


def plan_lines(told: dict[str, Any], dry_run: bool) -> list[tuple[str, str]]:
    """How the steps of a workflow stand, for people."""
    lines = []
    for one in told["steps"]:
        since = f", since {one['since']}" if one["since"] else ""
        where = ", ".join(shown(path, limit=400) for path in one["outputs"] if path)
        if dry_run:
            word = "nothing to do" if one["status"] == "done" else "would be done"
            lines.append((one["step"], f"{word}: {one['why']}"))
        else:
            lines.append((one["step"], f"{one['status']}{since}: {where if one['status'] == 'done' else one['why']}"))
    return lines


def run_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What a run has done, for people."""
    lines = []
    for one in result["steps"]:
        told = WORDS[one["status"]]
        if one["status"] == "done":
            scans = f"{one['scans']:,} scan{'' if one['scans'] == 1 else 's'}"
            told += f" in {one['seconds']:.1f} s, {scans}: {one['why']}"
        elif one["status"] != "unchanged":
            told += f": {one['why']}"
        if one["step"] in result["not_converged"]:
            told += " (not converged)"
        lines.append((one["step"], shown(told, limit=400)))
    if all(one["status"] == "unchanged" for one in result["steps"]):
        lines.append(("nothing to do", f"{count_text(len(lines), 'step is', 'steps are all')} as before"))
    return [*lines, ("out", shown(result["out"], limit=400))]
