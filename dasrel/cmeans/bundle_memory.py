"""Memory of bundles: how many runs fit into one, and the search for automatic entropy weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from dasrel.engine.reduce import Plan
from dasrel.engine.relation import Relation, product_shape
from dasrel.engine.scan import brought_here, needed_memory, needed_on_worker
from dasrel.engine.worker_cache import WorkerMemory
from dasrel.errors import MemoryLimitError
from dasrel.partition.run import Run
from dasrel.util import limits, parallel
from dasrel.util.text import count_text, size_text

LANCZOS_BLOCK = 4
"""Columns of a Lanczos step."""
LANCZOS_SCANS = 10
"""Most scans that entropy_weight="auto" takes, once for all runs, before the first iteration."""
IndexedRuns = list[tuple[int, Run]]
"""Runs of a bundle, each with its position in the list of all runs."""


def split_by_memory(
    relation: Relation,
    runs: Sequence[Run],
    *,
    keep_all: bool = False,
    memory: int | str | None = None,
    workers: WorkerMemory | None = None,
    has_terms: bool | None = None,
) -> tuple[list[IndexedRuns], int]:
    """Return bundles of runs, in order, as wide as memory allows, and the bytes that their scans may take.

    A column takes in the caller: memberships and weights (16 n bytes, and 24 n more if accelerated), their copy in
    the matrix's precision, and the memory of the scan. The best run of every setting, or every run, is kept besides
    (24 n c bytes each).

    Parameters
    ----------
    workers
        The workers to plan for; by default those of the active client. None of either: the scan runs on threads here.
    has_terms
        Whether the relation has terms, which are added in float64; by default those of `relation` count.

    Cost: none.
    """
    limit = limits.memory_limit(memory)
    n, item = relation.n_objects, relation.matrix.dtype.itemsize
    of_scan = _scan_memory(relation)
    keeping = [run.n_clusters for run in (runs if keep_all else {run.setting: run for run in runs}.values())]
    kept = 24 * n * sum(keeping)
    widest = max(run.n_clusters for run in runs)
    update = 4 * 8 * n * widest * min(limits.thread_count(waiting=False), len(runs))
    if workers is None:
        client = parallel.active_client()
        workers = {} if client is None else limits.worker_memory(client)
    column_bytes = 8 if (bool(relation.terms) if has_terms is None else has_terms) else item

    def needed(columns: int, held: int) -> int:
        (fixed, task), _, brought = of_scan(columns)
        return held + fixed + (brought if workers else task)

    def fits(columns: int, held: int) -> bool:
        _, (task, beside), _ = of_scan(columns)
        there = all(not most or task * threads + beside <= most for most, threads in workers.values())
        return there and needed(columns, held) <= limit

    bundles: list[IndexedRuns] = [[]]
    columns, held = 0, kept + update
    most_held = held
    extra = int(any(run.eta == "overall" for run in runs))
    for index, run in enumerate(runs):
        mine = n * run.n_clusters * (16 + column_bytes + (24 if run.accelerate else 0))
        if bundles[-1] and not fits(columns + run.n_clusters + extra, held + mine):
            bundles.append([])
            columns, held = 0, kept + update
        if not bundles[-1] and not fits(run.n_clusters + extra, held + mine):
            _, (task, there), _ = of_scan(run.n_clusters + extra)
            limits.check_workers(
                workers, task, f"a scan for one run of {count_text(run.n_clusters, 'cluster')}", kept=there
            )
            raise MemoryLimitError(
                f"one run of {count_text(run.n_clusters, 'cluster')} on {count_text(n, 'object')} needs"
                f" {size_text(needed(run.n_clusters + extra, held + mine))}"
                f" ({size_text(kept)} of it for {count_text(len(keeping), 'kept result')}) and the limit is"
                f" {size_text(limit)}",
                remedy="raise {memory}, keep fewer results, or use smaller tiles",
            )
        bundles[-1].append((index, run))
        columns += run.n_clusters
        held += mine
        most_held = max(most_held, held)
    return bundles, limit - most_held


def eigenvalue_memory(n: int) -> int:
    """Return the bytes of the basis in the search for entropy_weight="auto"."""
    return 8 * n * LANCZOS_BLOCK * (2 * LANCZOS_SCANS + 8)


def check_eigenvalue_memory(relation: Relation, *, memory: int | str | None = None) -> None:
    """Raise if the search for entropy_weight="auto" does not fit into memory."""
    limit, n = limits.memory_limit(memory), relation.n_objects
    (fixed, task), _, _ = _scan_memory(relation)(LANCZOS_BLOCK)
    needed = eigenvalue_memory(n) + fixed + (0 if parallel.active_client() is not None else task)
    if needed > limit:
        raise MemoryLimitError(
            f"the automatic entropy weight needs {size_text(needed)} for {count_text(n, 'object')} and the limit is"
            f" {size_text(limit)}",
            remedy="raise {memory}, or say {entropy_weight=NUMBER}",
        )


def _scan_memory(relation: Relation) -> Callable[[int], tuple[tuple[int, int], tuple[int, int], int]]:
    """Return a function of the number of columns: the bytes of a scan.

    (in the caller, in one task here), (in one task on a worker, besides on that worker), in the caller for the parts
    that workers send.
    """
    source: Any = relation.matrix

    @cache
    def needed(columns: int) -> tuple[tuple[int, int], tuple[int, int], int]:
        wide = [product_shape(source, [(relation.view, columns)])]
        return needed_memory(source, wide), needed_on_worker(source, wide), brought_here(Plan(source.layout), wide)

    return needed
