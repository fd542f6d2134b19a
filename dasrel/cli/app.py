"""The command `dasrel`: the application, exit codes, and the commands `run` and `demo`.

The command `dasrel run`. As in `cli`: parse, one library call, print.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from dasrel import __version__
from dasrel.cli.analysis_commands import (
    cluster_command,
    euclideanize_command,
    image_command,
    plan_command,
    predict_command,
    spectrum_command,
    tree_command,
)
from dasrel.cli.console import Console, UsageError, complain, print_error, report
from dasrel.cli.matrix_commands import append_command, audit_command, export_command, import_command, pairwise_command
from dasrel.cli.options import RUNNING, WRITING, Force, Place, TimeLimit, command, option
from dasrel.util.limits import limited
from dasrel.util.text import count_text, redacted, shown, some

app = typer.Typer(
    name="dasrel",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Cluster objects known only by a pairwise matrix, of any size, metric or not.",
)


# ------------------------------------------------------------------------------------------------------ the commands


def _version(wanted: bool) -> None:
    if wanted:
        from dasrel import kernels

        print(f"dasrel {__version__} (kernels: {kernels.described()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("append")(append_command)
app.command("cluster")(cluster_command)
app.command("plan")(plan_command)
app.command("predict")(predict_command)
app.command("tree")(tree_command)
app.command("image")(image_command)
app.command("spectrum")(spectrum_command)
app.command("euclideanize")(euclideanize_command)
app.command("import")(import_command)
app.command("pairwise")(pairwise_command)
app.command("export")(export_command)
app.command("audit")(audit_command)


@app.command("demo")
@command
def demo_command(
    talk: Console,
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


NOT_CONVERGED = 3
"""The exit code of --strict."""
WORDS = {
    "done": "done", "unchanged": "as before", "failed": "failed", "waiting": "not done",
}  # fmt: skip


@app.command("run")
@command
def run_command(
    talk: Console,
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

    from dasrel.engine.runtime import environment
    from dasrel.workflow.schema import read_workflow

    workflow = read_workflow(file, out=out)
    if status or dry_run:
        from dasrel.workflow.status import plan

        planned = [one.as_dict(workflow.out) for one in plan(workflow, read=dry_run, trust=not check)]
        told = redacted({"workflow": str(workflow.path), "out": str(workflow.out), "steps": planned})
        talk.result({**told, "seconds": talk.seconds}, plan_lines(told, dry_run))
        return

    from dasrel.workflow.run import run_workflow
    from dasrel.workflow.status import Log

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
