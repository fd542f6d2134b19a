"""Estimate what `dasrel cluster` would cost, here and on a cluster: scans, bytes, memory and time."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from dasrel.cmeans.plan import ClusteringPlan, Fleet, plan_clustering
from dasrel.commands.base import Operation, Prepared, Target
from dasrel.commands.cluster import RunOptions, make_runs
from dasrel.engine.launch import planned_workers
from dasrel.partition.run import Run
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util.option_fields import RUNNING, memory_option, option

_worker = partial(option, panel="Workers to plan for")


@dataclass(frozen=True)
class PlanOptions(RunOptions):
    """Which runs to plan, and for which workers."""

    memory: int | str | None = memory_option(RUNNING, rare=True)
    workers: list[int] = _worker(
        list(Fleet.counts), "Number of workers; a list such as 4,16 plans for each.", metavar="W"
    )
    worker_memory: str = _worker(Fleet.memory, "Memory of each worker.", metavar="SIZE")
    worker_threads: int = _worker(Fleet.threads, "Threads of each worker.", least=1, metavar="N")
    dask: str | None = _worker(
        None, "The same for a cluster that is not there yet, as other commands take it: slurm:jobs=32,memory=64GB.",
        metavar="CLUSTER",
    )  # fmt: skip
    bandwidth: str | None = _worker(
        None, "Bytes that the storage gives all workers a second; what is measured here, if not given.", metavar="SIZE"
    )  # fmt: skip
    price: float | None = _worker(None, "Price of a worker for an hour.", metavar="X", least=0)
    probe: float = _worker(2.0, "Time to spend on measuring the speed of the store.", metavar="SECONDS", least=0.01)

    def __post_init__(self) -> None:
        super().__post_init__()
        Fleet(**self.fleet)

    @property
    def fleet(self) -> dict[str, Any]:
        """The workers, as `plan_clustering` takes them."""
        size = {"counts": self.workers, "memory": self.worker_memory, "threads": self.worker_threads}
        size |= {} if self.dask is None else planned_workers(self.dask)
        return {**size, "bandwidth": self.bandwidth, "price": self.price}


class Plan(Operation):
    name = "plan"
    example = "dasrel plan distances.zarr --clusters 2-10"
    Options = PlanOptions
    target = None
    only_cost = True
    on_dask = False

    def prepare(self, source: str, target: Target, options: PlanOptions) -> PreparedPlan:
        """Check options and the store, and make the runs. Cost: reads given models, and no tile."""
        planned = source.isdecimal() and not os.path.lexists(source)
        return PreparedPlan(options, int(source) if planned else open_matrix(source), make_runs(options))


@dataclass(eq=False)
class PreparedPlan(Prepared):
    """Runs to be estimated."""

    options: PlanOptions
    matrix: Matrix | int
    """The store, or the number of objects of one that is not there yet."""
    runs: list[Run]

    def cost(self) -> ClusteringPlan:
        """Estimate; see `plan_clustering`. Cost: a few tiles are read, and nothing is written."""
        options = self.options
        return plan_clustering(
            self.matrix, self.runs, euclideanize=options.euclideanize, memory=options.memory, workers=options.fleet,
            probe_seconds=options.probe, judge=True,
        )  # fmt: skip


OPERATION = Plan()
