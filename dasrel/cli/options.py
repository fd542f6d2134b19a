"""Option groups shared by commands.

Options that several commands take, each written down once, and what makes a command of a function.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from dasrel.cli.console import Console, as_option
from dasrel.engine.runtime import WAIT, Runtime
from dasrel.errors import InputError
from dasrel.util.text import seconds
from dasrel.vocabulary import INITS, KINDS, METHODS, RULES, TAKES

READING = "Reading the source"
REPAIRS = "Repairs: without them each flaw is an error"
WRITING = "Writing"
RUNNING = "Runs: lists such as 2,3,4 make one run of each"
KEEPING = "Runs that survive: exit 75 means that --resume goes on"
PLACE = "Where to run: local threads, or a Dask cluster (also DASREL_DASK=...)"
TALKING = "Talking"


def option(name: str, text: str, panel: str, **more: Any) -> Any:
    """An option: its name, its help and the panel of the help that it stands in."""
    return typer.Option(*name.split(), help=text, rich_help_panel=panel, **more)


Kind = Annotated[str | None, option("--kind", f"What the numbers are: {', '.join(KINDS)}. Needed.", READING)]
StoreDtype = Annotated[Literal["float32", "float64"], option("--store-dtype", "Numbers in the store.", WRITING)]
Tile = Annotated[int | None, option("--tile", "Objects a side of a tile; else at most 64 MiB a tile.", WRITING, min=1)]
Compress = Annotated[Literal["lz4"] | None, option("--compress", "Smaller on disk, slower to read.", WRITING)]
Memory = Annotated[str, option("--memory", "Memory that the work may take, such as 512MiB.", WRITING)]
Resume = Annotated[bool, option("--resume", "Go on with an unfinished store.", WRITING)]
Force = Annotated[bool, option("--force", "Replace what exists, once the new one is whole.", WRITING)]
TimeLimit = Annotated[
    str | None,
    option("--time-limit", "Stop in time, such as 30m, 2h or HH:MM:SS.", KEEPING, metavar="DURATION"),
]
Part = Annotated[
    str | None,
    option("--part", "Write share K of N of the tiles; other processes write the rest.", WRITING, metavar="K/N"),
]
RunMemory = Annotated[
    str | None, option("--memory", "Memory that may be taken; half of the machine's if not given.", RUNNING)
]
DryRun = Annotated[bool, option("--dry-run", "Only say what would be read, written and taken; write nothing.", WRITING)]
Ids = Annotated[Path | None, option("--ids", "Object names, one per line.", READING, metavar="FILE")]
NewStore = Annotated[str, typer.Argument(metavar="STORE", help="Where to write: a folder or a URL such as s3://...")]
OldStore = Annotated[str, typer.Argument(metavar="STORE", help="A store: a folder or a URL such as s3://...")]


def comma_list(
    text: str, name: str, number: type[int] | type[float] | None = None, word: str | None = None
) -> list[Any]:
    """The values of a comma list; a word may stand among the numbers."""
    values: list[Any] = []
    for part in (piece.strip() for piece in text.split(",")):
        try:
            if not part:
                raise ValueError
            values.append(part if number is None or part == word else number(part))
        except ValueError:
            wanted = {None: "words", int: "whole numbers", float: "numbers"}[number]
            also = f" or {word}" if word else ""
            raise typer.BadParameter(
                f"{text!r}: give {wanted}{also} with commas between them", param_hint=f"--{name}"
            ) from None
    return values


# ------------------------------------------------------------------------------ groups: dataclasses, one option a field


def duration(text: str | None) -> float | None:
    """The seconds of --time-limit."""
    try:
        return None if text is None else seconds(text)
    except InputError as error:
        raise typer.BadParameter(error.text(as_option), param_hint="--time-limit") from None


@dataclass(frozen=True)
class Output:
    """How a command talks; every command takes these, as `talk`."""

    json: Annotated[bool, option("--json", "Print one JSON object on stdout and nothing else there.", TALKING)] = False
    quiet: Annotated[bool, option("--quiet -q", "Print errors and warnings only.", TALKING)] = False
    verbose: Annotated[
        int, option("--verbose -v", "Say more; -vv shows tracebacks.", TALKING, count=True, show_default=False)
    ] = 0


@dataclass(frozen=True)
class Keeping:
    """Checkpoints of a long computation: a parameter `keeping: Keeping`, whose `made` the library takes."""

    checkpoint: Annotated[
        Path | None, option("--checkpoint", "A folder for the state between scans.", KEEPING, metavar="DIR")
    ] = None
    every: Annotated[int, option("--every", "Scans between two checkpoints.", KEEPING, metavar="N", min=1)] = 1
    resume: Annotated[bool, option("--resume", "Go on from the last checkpoint, if there is one.", KEEPING)] = False
    time_limit: TimeLimit = None

    def __post_init__(self) -> None:
        for name, given in (("--every", self.every != 1), ("--resume", self.resume), ("--time-limit", self.time_limit)):
            if given and self.checkpoint is None:
                raise InputError(f"{name} needs --checkpoint DIR, a folder for the state")
        if self.time_limit is not None:
            seconds(self.time_limit)

    def made(self, *, force: bool) -> Any:
        """The `dasrel.Checkpoint` that was asked for, or None."""
        if self.checkpoint is None:
            return None
        from dasrel.engine.checkpoint import Checkpoint

        return Checkpoint(self.checkpoint, self.every, self.resume, force, self.time_limit)


@dataclass(frozen=True)
class Place(Runtime):
    """Where a command runs: a parameter `place: Place`, for `with talk.at(place)` around the work."""

    scheduler: Annotated[
        str | None, option("--scheduler", "A Dask scheduler, such as tcp://host:8786.", PLACE, metavar="ADDRESS")
    ] = None
    scheduler_file: Annotated[
        str | None, option("--scheduler-file", "The file that a Dask scheduler has written.", PLACE, metavar="FILE")
    ] = None
    dask: Annotated[
        str | None,
        option("--dask", "Start a cluster: local:workers=4,memory=4GB, slurm:..., kubernetes:..., mpi.", PLACE),
    ] = None
    workers: Annotated[int | None, option("--workers", "Begin when N workers are there.", PLACE, metavar="N")] = None
    wait: Annotated[
        float | None, option("--wait", f"Most time to wait for them; {WAIT:g} if not given.", PLACE, metavar="SECONDS")
    ] = None
    tls_ca: Annotated[str | None, option("--tls-ca", "Who signs the certificates.", PLACE, metavar="FILE")] = None
    tls_cert: Annotated[str | None, option("--tls-cert", "Our certificate.", PLACE, metavar="FILE")] = None
    tls_key: Annotated[str | None, option("--tls-key", "Its key.", PLACE, metavar="FILE")] = None


@dataclass(frozen=True)
class RunOptions:
    """Which runs to make: options of `dasrel cluster` and of `dasrel plan`."""

    rule: Annotated[str, option("--rule", f"Of {', '.join(RULES)}.", RUNNING)]
    clusters: Annotated[str, option("--clusters", "Number of clusters.", RUNNING, metavar="C")]
    fuzzifier: Annotated[
        str | None, option("--fuzzifier", "m of fcm1 and pcm1, above 1; 2 if not given.", RUNNING, metavar="M")
    ] = None
    entropy_weight: Annotated[
        str | None,
        option("--entropy-weight", "lambda of fcm2, and of what pcm begins with; auto if not given.", RUNNING),
    ] = None
    spread_scale: Annotated[
        str | None, option("--spread-scale", "Factor of the widths of pcm's clusters; 1 if not given.", RUNNING)
    ] = None
    n_init: Annotated[int, option("--n-init", "Runs of each, from different starts.", RUNNING, metavar="N")] = 10
    init: Annotated[str, option("--init", f"{', '.join(INITS)}, a model (.npz) or memberships (.npy).", RUNNING)] = (
        "random"
    )
    seed: Annotated[int, option("--seed", "The same seed gives the same bits.", RUNNING, min=0)] = 0
    max_iter: Annotated[int, option("--max-iter", "Most iterations.", RUNNING)] = 300
    tol: Annotated[float, option("--tol", "Converged when no membership changes by as much.", RUNNING)] = 1e-5
    on_negative: Annotated[
        Literal["error", "heal"], option("--on-negative", "Negative distances to centres: stop, or heal.", RUNNING)
    ] = "error"
    spread: Annotated[
        str, option("--spread", "Added to squared dissimilarities off the diagonal.", RUNNING, metavar="BETA")
    ] = "0"
    euclideanize: Annotated[
        str | None,
        option(
            "--euclideanize",
            f"{', '.join(METHODS)}, or a file (.npz) of them.",
            RUNNING,
            metavar="METHOD|FILE",
        ),
    ] = None
    accelerate: Annotated[bool, option("--accelerate", "Fewer iterations, on another path.", RUNNING)] = False

    def asked(self) -> dict[str, Any]:
        """As `dasrel.asked.make_runs` takes it, and as result.json tells it."""
        rules = comma_list(self.rule, "rule")
        unknown = [name for name in rules if name not in RULES]
        if unknown:
            raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(RULES)}", param_hint="--rule")
        numbers: dict[str, list[Any]] = {}
        for name, takers in TAKES.items():
            text, hint = getattr(self, name), name.replace("_", "-")
            if text is None:
                continue
            if not set(rules) & set(takers):
                told = f"it is for {' and '.join(takers)}, not {self.rule}"
                raise typer.BadParameter(told, param_hint=f"--{hint}")
            numbers[name] = comma_list(text, hint, float, "auto" if name == "entropy_weight" else None)
        return {
            "rule": rules,
            "n_clusters": comma_list(self.clusters, "clusters", int),
            **numbers,
            "init": comma_list(self.init, "init"),
            "n_init": self.n_init,
            "random_state": self.seed,
            "max_iter": self.max_iter,
            "tol": self.tol,
            "on_negative": self.on_negative,
            "spread": comma_list(self.spread, "spread", float),
            "euclideanize": self.euclideanize,
            "accelerate": self.accelerate,
        }


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command for Typer of a function whose first parameter is `talk: Talk`.

    The command has the function's other parameters as options, and those of `Talking`; the function runs inside the
    `Talk` that they describe. A parameter whose type is a dataclass, such as `place: Place`, stands for a group: each
    field is an option, and the function gets the whole. What such a class refuses is a wrong use of the command.
    """
    own = inspect.signature(function).parameters
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hints[name] for name in own if dataclasses.is_dataclass(hints[name])}
    fields = {name: _fields(group) for name, group in {**groups, "talk": Output}.items()}
    taken = [own[name].replace(annotation=hints[name]) for name in own if name not in fields]
    options = [*taken, *(field for group in fields.values() for field in group)]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        made = {name: {field.name: given.pop(field.name) for field in group} for name, group in fields.items()}
        with Console(**made.pop("talk")) as talk:
            for name, values in made.items():
                try:
                    given[name] = groups[name](**values)
                except InputError as error:
                    raise typer.BadParameter(error.text(as_option)) from None
            function(talk=talk, **given)

    wrapper: Any = run
    wrapper.__signature__ = inspect.Signature([option.replace(kind=option.KEYWORD_ONLY) for option in options])
    wrapper.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _fields(group: Any) -> list[inspect.Parameter]:
    """The fields of a group as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
