# mypy: implicit-reexport
"""Option groups: each declared once, for Python, the command line and workflow files.

A group is a frozen dataclass. Python uses it as it is, or its fields are the keywords of a function. The decorator
`dasrel.cli.options.command` makes a command-line option of each field, and `dasrel.workflow.tables.with_options` makes
a key of a TOML table of it. What both need beyond the type and the default of a field is in its metadata: an `Option`.

`Runtime` and `Checkpoint`, which do more than hold values, are declared with the same metadata in `dasrel.engine`.
This module imports neither Zarr nor Dask, so that the command line starts quickly.
"""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

import os
from dataclasses import MISSING, asdict, dataclass
from functools import partial
from typing import Any, Literal

from dasrel.errors import InputError
from dasrel.io.options import PairwiseParameters as PairwiseOptions, Reading
from dasrel.names import (
    INDICES,
    INITS,
    METHODS,
    ORDERS,
    RULES,
    TAKES,
    VIEWS,
    IndexName,
    OrderName,
    RuleName,
    ViewName,
)
from dasrel.store.options import (
    Policy,
    Writing,
    _one_of,
)
from dasrel.util.option_fields import (
    FIXED_MEMORY as FIXED_MEMORY,
    MEMORY,
    PLACE as PLACE,
    READING as READING,
    REPAIRS as REPAIRS,
    REPLACE as REPLACE,
    RUNNING,
    SEARCH,
    SURVIVING as SURVIVING,
    TIME_LIMIT as TIME_LIMIT,
    WRITING,
    Option as Option,
    OptionField as OptionField,
    Selection as Selection,
    build_group as build_group,
    option as option,
    option_fields as option_fields,
)
from dasrel.util.option_values import (
    check_part as check_part,
    parse_columns as parse_columns,
    parse_fill as parse_fill,
    parse_missing as parse_missing,
    parse_part as parse_part,
    parse_reject as parse_reject,
    whole_numbers as whole_numbers,
)

# ----------------------------------------------------------------------------------------------------------- the groups


_writing = partial(option, panel=WRITING)
_run = partial(option, panel=RUNNING)


@dataclass(frozen=True)
class RunOptions:
    """Which runs of the clustering to make: one of each combination of the listed values."""

    n_clusters: list[int] = _run(
        MISSING, "Number of clusters; 2-10 tries them all and recommends one.", name="clusters", metavar="C", least=1
    )
    rule: list[RuleName] = _run(["fcm2"], f"{', '.join(RULES[:-1])} or {RULES[-1]}.")
    fuzzifier: list[Literal["auto"] | float] | None = _run(
        None, "Fuzzifier m, above 1: of fcm1, auto if not given, and of pcm1, 2 if not given.", metavar="M", above=1
    )
    entropy_weight: list[Literal["auto"] | float] | None = _run(
        None, "lambda of fcm2, and of the fcm2 runs that initialise pcm; auto if not given.", metavar="LAMBDA", above=0
    )
    eta_scale: list[Literal["auto"] | float] | None = _run(
        None, "Factor on the cluster widths of pcm; auto if not given.", above=0, rare=True
    )
    eta: Literal["mean", "cut", "overall"] | None = _run(
        None, "How the cluster widths of pcm are estimated; mean if not given.", rare=True
    )
    eta_cut: float | None = _run(
        None, "Membership above which members count for cut; 0.5 if not given.", least=0, below=1, rare=True
    )
    eta_refit: bool | None = _run(None, "Estimate the widths of pcm again at every iteration.", rare=True)
    n_init: int = _run(10, "Restarts of each combination.", metavar="N", least=1)
    init: list[str] = _run(["sample"], f"{', '.join(INITS)}, a model (.npz) or memberships (.npy).", rare=True)
    random_state: int = _run(0, "Seed of random numbers.", name="seed", least=0)
    max_iter: int = _run(300, "Maximum number of iterations.", least=1, rare=True)
    tol: float = _run(
        1e-5,
        "Converged when no membership changes by more than this; for hard, also when fewer than this share of the"
        " objects change their cluster in three iterations one after the other.",
        least=0,
        rare=True,
    )
    on_negative: Literal["error", "heal"] = _run(
        "error", "Stop at negative squared distances to centres, or heal: add a constant."
    )
    spread: list[float] = _run(
        [0.0], "Constant added to squared dissimilarities between objects.", metavar="BETA", least=0, rare=True
    )
    euclideanize: str | None = _run(
        None,
        f"First make the matrix Euclidean: {', '.join(METHODS)}, or a file (.npz) of `dasrel euclideanize`.",
        metavar="METHOD|FILE",
    )
    stop: Literal["memberships", "weights"] = _run(
        "memberships", "What is compared between iterations: memberships, or weights of the centres.", rare=True
    )
    norm: float | None = _run(
        None, "p-norm of the change; the largest change if not given.", metavar="P", least=1, rare=True
    )
    accelerate: bool = _run(True, "Accelerate the iteration: fewer scans, other intermediate results.", rare=True)
    history: bool = _run(
        False, "Write the largest change of a membership at each iteration of every run: history.csv.", rare=True
    )
    race: bool = _run(
        False, "Stop runs early that, as they fall, cannot become the best of their setting any more.", rare=True
    )

    def __post_init__(self) -> None:
        for name, takers in TAKES.items():
            if getattr(self, name) is not None and not set(self.rule) & set(takers):
                raise InputError(f"{name} is for {' and '.join(takers)}, not {', '.join(self.rule)}")

    def as_dict(self) -> dict[str, Any]:
        """Return the values as `dasrel.cmeans.job.make_runs` takes them, without some that are not given."""
        not_given = {**dict.fromkeys([*TAKES, "norm"]), "history": False, "race": False}
        return {
            name: value for name, value in asdict(self).items() if name not in not_given or value != not_given[name]
        }


NOT_CONVERGED = 3
"""The exit code of `strict` when a result has not converged."""


@dataclass(frozen=True)
class ClusterOptions:
    """How to make the runs of a clustering."""

    warm_start: str | None = _run(None, "Start from a result, perhaps of fewer objects.", metavar="RESULT")
    choose: IndexName = _run(
        "fuzzy_silhouette", f"Validity index that recommends a setting: {', '.join(INDICES)}.", rare=True
    )
    border: float = _run(
        0.9, "Objects whose largest membership is below this are on a border.", least=0, most=1, rare=True
    )
    picture: bool = _run(True, "Draw the partition, and the validity indices of several settings.", rare=True)
    memory: int | str | None = _run(None, MEMORY, typed=str, metavar="SIZE", rare=True)
    strict: bool = _run(False, f"Exit with {NOT_CONVERGED} if a result has not converged.", rare=True)


# ------------------------------------------------------------------------------------------- options of one operation


_search = partial(option, panel=SEARCH)
_max_scans = partial(_search, help="Maximum number of scans; then the best result so far, with a warning.", least=1)


@dataclass(frozen=True)
class ImageOptions:
    """How to draw a matrix."""

    order: OrderName | None = _writing(None, "Order of the objects; labels with a result, else vat, if not given.")
    result: str | os.PathLike[str] | None = _writing(
        None, "A result of `dasrel cluster`, whose clusters are shown.", typed=str, metavar="FOLDER"
    )
    view: ViewName = _writing(
        "matrix",
        "Show the matrix, its Gaussian kernel, or proximities or dissimilarities of a result's memberships.",
    )
    width: float | None = _writing(
        None, "Width of the kernel, also of order eigen; a sixth of the root mean square if not given.", above=0
    )
    vectors: int | None = _writing(
        None, "Eigenvectors and blocks of order eigen; those before the largest gap if not given.", least=1
    )
    pixels: int = _writing(1000, "Maximum number of pixels per side.", least=2, most=20_000)
    memory: int | str | None = _writing(None, MEMORY, typed=str, metavar="SIZE")

    def __post_init__(self) -> None:
        if self.order is not None:
            _one_of("order", self.order, ORDERS)
        _one_of("view", self.view, VIEWS)
        if self.result is None and (self.order == "labels" or self.view in ("proximity", "induced")):
            raise InputError(
                "an order by labels, and what memberships say, need a result of `dasrel cluster`",
                remedy="name it as {result}",
            )
        if self.order == "ivat" and self.view != "matrix":
            raise InputError("the order ivat has values of its own", remedy="say {order=vat} to see others in it")
        if self.width is not None and self.order != "eigen" and self.view != "kernel":
            raise InputError("a width is that of a kernel: it goes with the view kernel and the order eigen only")
        if self.vectors is not None and self.order != "eigen":
            raise InputError("a number of eigenvectors goes with the order eigen only")


GROUPS = (Reading, Policy, Writing)
"""Groups that Python's functions take as one argument. The fields of all others are their keywords."""
OPERATIONS = (
    RunOptions, ClusterOptions, PairwiseOptions, ImageOptions,
)  # fmt: skip
RENAMED = {
    key: one.name
    for group in (*GROUPS, *OPERATIONS)
    for one in option_fields(group)
    for key in (f"{group.__name__}.{one.field}", *([] if group in GROUPS else [one.field]))
    if one.name != one.field
}
"""Keywords of Python, perhaps with their group, that commands and workflow files have another name for."""
