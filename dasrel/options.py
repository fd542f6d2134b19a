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
from dataclasses import dataclass
from functools import partial

from dasrel.errors import InputError
from dasrel.io.options import PairwiseParameters as PairwiseOptions, Reading
from dasrel.names import (
    ORDERS,
    VIEWS,
    OrderName,
    ViewName,
)
from dasrel.partition.run import Run
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
    Run, PairwiseOptions, ImageOptions,
)  # fmt: skip
RENAMED = {
    key: one.name
    for group in (*GROUPS, *OPERATIONS)
    for one in option_fields(group)
    for key in (f"{group.__name__}.{one.field}", *([] if group in GROUPS else [one.field]))
    if one.name != one.field
}
"""Keywords of Python, perhaps with their group, that commands and workflow files have another name for."""
