"""All kinds of cases, and what they begin with."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.system.fuzz import archives, results, stores, workflows
from tests.system.fuzz.damage import Rng
from tests.system.fuzz.judge import Case
from tests.system.fuzz.runner import Generator
from tests.system.fuzz.sources import SOURCES

WITH_BASE: dict[str, Callable[[Rng, Path, Path], Case]] = {
    "store": stores.store_case, "model": archives.model, "relation": archives.relation,
    "checkpoint": archives.checkpoint, "tree": archives.tree, "rows": archives.rows, "workflow": workflows.workflow,
    "state": workflows.workflow_state, "result": results.result,
}  # fmt: skip
"""Kinds that damage a copy of something that dasrel has written."""
NAMES = (*SOURCES, *WITH_BASE)


def generators(base: Path) -> dict[str, Generator]:
    """The generator of each kind; `base` is a folder made by `base.build`."""
    return {**SOURCES, **{name: partial(_with_base, make, base) for name, make in WITH_BASE.items()}}


def _with_base(make: Callable[[Rng, Path, Path], Case], base: Path, rng: Rng, folder: Path) -> Case:
    return make(rng, folder, base)
