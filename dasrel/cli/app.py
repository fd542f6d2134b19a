"""The command `dasrel`: its commands, exit codes, and the command `run`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from dasrel import __version__
from dasrel.cli.commands import add_commands
from dasrel.cli.console import Console, UsageError, complain, print_error, report
from dasrel.cli.help import HelpfulCommand, HelpfulGroup
from dasrel.cli.options import TimeLimit, command, option
from dasrel.commands.base import NOT_CONVERGED
from dasrel.commands.operations import OPERATIONS
from dasrel.engine.runtime import Runtime, environment
from dasrel.errors import InputError
from dasrel.util.limits import limited
from dasrel.util.option_fields import SURVIVING, WRITING
from dasrel.util.text import count_text, redacted, shown, some

STEPS = "Steps"
STATUS_TEXT = {"done": "done", "unchanged": "up to date", "failed": "failed", "waiting": "not done"}

# ------------------------------------------------------------------------------------------------------ run


@command("dasrel run workflow.toml")
def run_command(
    console: Console,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The workflow.")],
    out: Annotated[
        Path | None, option("--out", "A folder for the outputs, instead of the file's `out`.", WRITING, metavar="DIR")
    ] = None,
    log_json: Annotated[
        str | None,
        option("--log-json", "Log events, one JSON object per line; - is stdout.", WRITING, metavar="FILE|-"),
    ] = None,
    status: Annotated[bool, option("--status", "Only print the status of the steps. Reads no data.", WRITING)] = False,
    dry_run: Annotated[bool, option("--dry-run", "Only print what would be done, and why.", WRITING)] = False,
    resume: Annotated[bool, option("--resume", "Continue an interrupted run, as every run does.", SURVIVING)] = False,
    time_limit: TimeLimit = None,
    check: Annotated[
        bool, option("--check", "Read all inputs again, even those whose size and time are unchanged.", STEPS)
    ] = False,
    strict: Annotated[
        bool, option("--strict", f"Exit with {NOT_CONVERGED} if a result has not converged.", STEPS)
    ] = False,
    allow_scheduler: Annotated[
        bool,
        option("--allow-scheduler", "Connect to the scheduler that the file names. It can run code here.", STEPS),
    ] = False,
    runtime: Runtime,
) -> None:
    """Run the steps of a workflow that are not done, or whose inputs or parameters have changed."""
    if log_json == "-" and console.json:
        raise typer.BadParameter("the log and the result cannot both go to stdout", param_hint="--log-json")

    from dasrel.workflow.schema import read_workflow

    workflow = read_workflow(file, out=out)
    if status or dry_run:
        from dasrel.workflow.status import plan

        planned = [step.as_dict(workflow.out) for step in plan(workflow, read=dry_run, trust=not check)]
        listed = redacted({"workflow": str(workflow.path), "out": str(workflow.out), "steps": planned})
        console.result({**listed, "seconds": console.seconds}, plan_lines(listed, dry_run))
        _fail(listed["steps"])
        return

    from dasrel.workflow.run import run_workflow
    from dasrel.workflow.status import Log

    if log_json == "-":
        console.quiet = True  # nothing else goes to stdout
    where = runtime.over(environment())
    if where.place is None and workflow.runtime.place in ("scheduler", "scheduler_file") and not allow_scheduler:
        raise InputError(
            f"{shown(file, limit=200)} names a Dask scheduler, which can run code here",
            where=f"[runtime] {workflow.runtime.place}",
            remedy="if you trust both, say {allow_scheduler=True}, or name it yourself by {Runtime.scheduler}",
        )
    where = where.over(workflow.runtime)
    with Log(log_json) as log, limited(time_limit):
        outcome = run_workflow(
            workflow, log=log, tell=console.tell, connected=lambda: console.at(where), trust=not check
        )
    left = outcome.not_converged
    result = {"workflow": str(workflow.path), "out": str(workflow.out), "steps": outcome.steps, "not_converged": left,
              "report": outcome.report}  # fmt: skip
    console.result({**redacted(result), "seconds": console.seconds}, run_lines(result))
    _fail(outcome.steps)
    wanted = [name for name in left if strict or getattr(workflow.steps[name].table, "strict", False)]
    if wanted:
        complain(f"not converged: {some(wanted)}; the results are written nevertheless: raise max_iter or tol")
        raise typer.Exit(NOT_CONVERGED)


def _fail(steps: list[dict[str, Any]]) -> None:
    """Exit with 1 if a step has failed, or cannot be done."""
    failed = [step for step in steps if step["status"] == "failed"]
    if failed:
        complain(f"{some([step['step'] for step in failed])} failed: {failed[0]['why']}")
        raise typer.Exit(1)


def plan_lines(listed: dict[str, Any], dry_run: bool) -> list[tuple[str, str]]:
    """Return the lines that print the status of the steps of a workflow."""
    lines = []
    for step in listed["steps"]:
        since = f", since {step['since']}" if step["since"] else ""
        where = ", ".join(shown(path, limit=400) for path in step["outputs"] if path)
        if dry_run:
            action = "nothing to do" if step["status"] == "done" else "would be done"
            lines.append((step["step"], f"{action}: {step['why']}"))
        else:
            lines.append(
                (step["step"], f"{step['status']}{since}: {where if step['status'] == 'done' else step['why']}")
            )
    return lines


def run_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print what a run has done."""
    lines = []
    for step in result["steps"]:
        text = STATUS_TEXT[step["status"]]
        if step["status"] == "done":
            scans = count_text(step["scans"], "scan")
            text += f" in {step['seconds']:.1f} s, {scans}: {step['why']}"
        elif step["status"] != "unchanged":
            text += f": {step['why']}"
        if step["step"] in result["not_converged"]:
            text += " (not converged)"
        lines.append((step["step"], shown(text, limit=400)))
    if all(step["status"] == "unchanged" for step in result["steps"]):
        lines.append(("nothing to do", f"{count_text(len(lines), 'step is', 'steps are all')} up to date"))
    page = [("page", shown(result["report"], limit=400))] if result.get("report") else []
    return [*lines, *page, ("out", shown(result["out"], limit=400))]


# ------------------------------------------------------------------------------------------------------ the commands

COMMANDS = {
    "run": run_command,
}
"""All commands, in the order of the help."""


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the command line; with a name, only this command has its options."""
    app = typer.Typer(
        name="dasrel",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        cls=HelpfulGroup,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Cluster objects known only by a pairwise matrix, of any size, metric or not.\n\nExample: dasrel demo",
    )
    app.callback()(_options)
    for name, function in COMMANDS.items():
        app.command(name, cls=HelpfulCommand)(function)
    add_commands(app, OPERATIONS, wanted)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from dasrel.kernels import native

        print(f"dasrel {__version__} (kernels: {native.described()})")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# -------------------------------------------------------------------------------------------------------------- main


def run(arguments: list[str]) -> int:
    """Run one command line in this process and return its exit code.

    0: done; 1: error; 2: wrong usage; 3: not converged (--strict); 75: stopped, can be resumed; 130: interrupted;
    143: stopped by SIGTERM.
    """
    wants_json, trace = "--json" in arguments, "-vv" in arguments
    try:
        wanted = next((argument for argument in arguments if not argument.startswith("-")), "")
        app = build_app(wanted)
        gc.enable()  # see `__main__`
        code = app(arguments, prog_name="dasrel", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except UsageError as error:
        return _show_usage(error, wants_json)
    except (KeyboardInterrupt, typer.Abort):
        return report(KeyboardInterrupt(), json=wants_json, trace=trace)
    except Exception as error:
        return report(error, json=wants_json, trace=trace)


OTHER_NAMES = {
    "--clusters": ("--k", "-k", "--n-clusters", "--n_clusters", "--num-clusters", "--nclust"),
    "--seed": ("--random-state", "--random_state", "--random-seed"),
    "--n-init": ("--starts", "--restarts", "--n_init", "--nstart"),
    "--max-iter": ("--iterations", "--max_iter"),
    "LABELS": ("--result", "--labels"),
}
"""What options and arguments are called in other programs."""


def _called_here(error: Any) -> str | None:
    """Return a line that says what an option of other programs is called here, if the command has it."""
    wanted = getattr(error, "option_name", None)
    if error.ctx is None or wanted is None:
        return None
    known = {name for parameter in error.ctx.command.params for name in (*parameter.opts, parameter.metavar)}
    names = [here for here, others in OTHER_NAMES.items() if wanted in others and here in known]
    return f"there is no option {wanted}: here it is {names[0]}" if names else None


def _show_usage(error: Any, wants_json: bool) -> int:
    text = _called_here(error) or cast(str, error.format_message()).replace("Value error, ", "")
    if not text:
        return 2  # there were no arguments, and the help was shown
    if error.ctx is not None:
        print(error.ctx.get_usage(), file=sys.stderr)
        print(f"Try '{error.ctx.command_path} --help'.\n", file=sys.stderr)
    print("\n".join(shown(part, limit=4000) for part in f"dasrel: {text}".split("\n")), file=sys.stderr)
    if wants_json:
        print_error(text)
    return 2
