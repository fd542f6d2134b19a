"""All operations, in the order of the help."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import cast

from dasrel.commands.base import Operation

OPERATIONS: tuple[str, ...] = (
    "import",
    "pairwise",
    "append",
    "audit",
    "explore",
    "export",
    "cluster",
    "plan",
    "align",
    "outliers",
    "density",
    "medoids",
    "neighbours",
    "predict",
    "validity",
    "compare",
    "spectrum",
    "euclideanize",
    "embed",
    "tree",
    "image",
    "report",
    "demo",
)  # fmt: skip
"""The names of the commands. Each has a file in this folder, whose `OPERATION` it is."""
STEPS = ("store", "figure")
"""Those that are steps of workflows and no commands."""


def operation(name: str) -> Operation:
    """Return an operation; imports its file."""
    return cast(Operation, import_module(f"{__package__}.{_module(name)}").OPERATION)


@cache
def summary(name: str) -> str:
    """Return the help of an operation: the first line of its file, which is not imported for it."""
    with Path(__file__).with_name(f"{_module(name)}.py").open(encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def _module(name: str) -> str:
    return f"{name}_" if iskeyword(name) else name
