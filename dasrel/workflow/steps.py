"""Run one step of a workflow: its operation, in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasrel.commands.base import Target
from dasrel.store.audit import audit_store
from dasrel.store.matrix import store_manifest
from dasrel.workflow.schema import Step

Summary = dict[str, Any]
BETWEEN = 4 << 30
"""Bytes read between two checkpoints: about a second or two of work, which an interruption may repeat."""


@dataclass(frozen=True)
class Job:
    """A step to run now."""

    step: Step
    work: Path
    """The folder to write in. It may hold files of an interrupted run of the same step."""
    out: Path
    """The folder that the files are moved to when the step is done."""
    places: Mapping[str, str]
    """For each key that names a step or a file, its path."""
    appends: int = 0
    """Number of appends to the matrix before this step."""

    @property
    def store(self) -> str:
        """The path of the store of this step."""
        return self.places["store"]

    def file(self, suffix: str = "") -> Path:
        """Return the path of an output, in the folder to write in."""
        return self.work / f"{self.step.name}{suffix}"

    def checkpoint(self) -> Any:
        """Return the checkpoint settings; an existing checkpoint is resumed."""
        from dasrel.engine.checkpoint import Checkpoint
        from dasrel.store.matrix import open_matrix

        folder = self.work / "checkpoint"
        scan = open_matrix(self.store).layout.total_bytes
        every = self.step.table.every or max(1, BETWEEN // max(scan, 1 << 20))
        return Checkpoint(folder, every=every, resume=any(folder.glob("*.npz")))


def run_step(job: Job) -> Summary:
    """Run a step, and return a summary of its result in plain values."""
    operation = job.step.operation
    source = None if operation.source is None else job.places[str(operation.source.key)]
    if operation.grows and source is not None and (grown := operation.grown(source, job.appends)) is not None:
        return operation.summary(grown)  # the process was killed after the append
    options = job.step.table.options(job.places)
    suffix = next(iter(operation.outputs(options)), "")
    target = Target(job.file(suffix), force=True, final=job.out / f"{job.step.name}{suffix}")
    if operation.gives_matrix and _is_complete(target.path):  # before the run was interrupted
        return operation.summary(audit_store(target.path))
    with operation.prepare(source, target, options) as prepared:
        result = prepared.run(job.checkpoint() if operation.saves_state(options) else None)
    return operation.summary(result)


def _is_complete(store: Path) -> bool:
    return (store_manifest(store) or {}).get("state") == "complete"
