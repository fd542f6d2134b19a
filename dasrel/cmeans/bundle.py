"""Bundles: the runs that share scans, in as few bundles as memory allows, and the best of every setting.

A bundle is any mixture of runs that take part in the same scans:

    scans of a bundle = iterations of its slowest run
    scans in all      = the sum of that over bundles + scans for entropy_weight="auto" (1 to `LANCZOS_SCANS`, once for
                        all runs, if any needs it)

All runs are in one bundle unless memory forbids it (`split_by_memory`). The iterations of pcm1 and pcm2 include those
of the fcm2 run that they begin with. Random, given and warm starts cost no scan; "rows" and "k-means++" read rows, see
`first_starts`.

`BundleResults` is the state between two scans: a checkpoint saves it, and resumed runs continue to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from dasrel.cmeans.run_state import SMALL_UPDATE, BundleContext, FinishedRun, RunState
from dasrel.cmeans.starts import first_starts, starting_spread, unspread
from dasrel.engine.checkpoint import CheckpointWriter
from dasrel.engine.reduce import Plan
from dasrel.engine.relation import LeftProducts, Relation, product_shape
from dasrel.engine.scan import brought_here, needed_memory, needed_on_worker
from dasrel.engine.worker_cache import WorkerMemory
from dasrel.errors import InputError, MemoryLimitError
from dasrel.partition.result import RunResult, Start
from dasrel.partition.run import Run
from dasrel.util import Float, limits, parallel, progress
from dasrel.util.text import count_text, size_text

IndexedRuns = list[tuple[int, Run]]
"""Runs of a bundle, each with its position in the list of all runs."""

_PLAIN = ("columns", "scan_seconds", "update_seconds", "bundle", "iteration", "mean_distance")
"""The fields of `BundleResults` that a checkpoint holds as they are."""


def run_bundles(
    relation: Relation,
    runs: Sequence[Run],
    *,
    phase: str,
    keep: CheckpointWriter,
    starts: Mapping[int, Start],
    keep_all: bool,
    memory: int | str | None,
    warn: Callable[..., None],
    later: int = 0,
) -> BundleResults:
    """Run all runs, bundle after bundle, and return their results.

    Parameters
    ----------
    runs
        Without "auto".
    phase
        The name of these runs in checkpoints.
    starts
        First centres that are known already, by the index of the run.
    warn
        Called if there are several bundles.
    later
        Most scans of the job that may follow, for the time left.

    Cost: as many scans as the slowest run of each bundle has iterations.
    """
    bundles, scan_memory = split_by_memory(relation, runs, keep_all=keep_all, memory=memory)
    bundles = _resumed_bundles(bundles, keep.state(phase))
    if len(bundles) > 1:
        warn(
            f"{count_text(len(runs), 'run')} do not fit into memory at once and were split into"
            f" {count_text(len(bundles), 'bundle')}, each with its own scans",
            remedy="raise {memory} to make fewer scans",
        )
    indices = [[index for index, _ in bundle] for bundle in bundles]
    most = [max(run.most_iterations for _, run in bundle) for bundle in bundles]
    results = BundleResults.unpacked(keep.state(phase), runs, keep_all)
    results.bundles = len(bundles)

    def save() -> None:
        keep.step(phase, lambda: {**results.packed(), "bundles": indices})

    while results.bundle < len(bundles):
        if not results.active:
            results.begin(_first_states(relation, bundles[results.bundle], starts))
        iterate(relation, results, save=save, memory=scan_memory, later=later + sum(most[results.bundle + 1 :]))
        results.bundle += 1
        if results.bundle < len(bundles):
            save()
    return results


def _resumed_bundles(bundles: list[IndexedRuns], state: dict[str, Any] | None) -> list[IndexedRuns]:
    """Return the bundles of the checkpoint, even if memory would now allow wider ones: their states are saved."""
    if state is None:
        return bundles
    begun: list[list[int]] = state["bundles"]
    if len(begun) < len(bundles):
        raise MemoryLimitError(
            f"the checkpoint has {count_text(len(begun), 'bundle')} and memory allows only smaller ones here,"
            f" {len(bundles)}",
            remedy="raise {memory}",
        )
    runs = {index: run for bundle in bundles for index, run in bundle}
    return [[(index, runs[index]) for index in bundle] for bundle in begun]


def _first_states(relation: Relation, runs: IndexedRuns, known: Mapping[int, Start]) -> list[RunState]:
    """Return runs at their initial centres. Cost: that of `first_starts`."""
    betas = {index: starting_spread(relation, run) for index, run in runs}
    unknown = [(index, run) for index, run in runs if index not in known]
    computed = first_starts(unspread(relation), [run for _, run in unknown], [betas[index] for index, _ in unknown])
    starts = {**known, **{index: start for (index, _), start in zip(unknown, computed, strict=True)}}
    return [RunState(run, index, starts[index], betas[index]) for index, run in runs]


class BundleResults:
    """Results of finished runs, and the runs of the present bundle that are active."""

    def __init__(self, runs: Sequence[Run], keep_all: bool) -> None:
        self.table: list[RunResult | None] = [None] * len(runs)
        self.best: dict[tuple[Any, ...], FinishedRun] = {}
        """By setting."""
        self.kept: dict[int, FinishedRun] = {}
        """By index, if all are kept."""
        self.columns: list[int] = []
        """Columns of each scan, in order."""
        self.scan_seconds = self.update_seconds = 0.0
        self.bundles = 1
        self.bundle = 0
        """Index of the present bundle."""
        self.begin([])
        self._keep_all = keep_all

    def begin(self, active: list[RunState]) -> None:
        """Begin a bundle of these runs."""
        self.active = active
        self.iteration = 0
        self.mean_distance: float | None = None
        """The mean of D, after the first scan, if a run needs it."""

    def advance(self, Y: Float, context: BundleContext, map_all: Callable[..., Any]) -> None:
        """Do one iteration of all active runs, given Y = D V of their centres, which is overwritten."""
        before = {id(state): state.falling_objective for state in self.active if state.run.race}
        ends = np.cumsum([state.run.n_clusters for state in self.active]).tolist()

        def step(state: RunState, end: int) -> FinishedRun | None:
            best = self.score_to_beat(state, before) if state.run.race else None
            return state.advance(Y[None, end - state.run.n_clusters : end], context, self.mean_distance, best)

        finished = list(map_all(step, self.active, ends))
        _refuse_negatives(self.active)
        for result in finished:
            if result is not None:
                self.add(result)
        self.active = [state for state, result in zip(self.active, finished, strict=True) if result is None]

    def add(self, finished: FinishedRun) -> None:
        """Add a run; its arrays are kept if it is the best of its setting, or if all are kept."""
        result, setting = finished.result, finished.result.run.setting
        self.table[finished.index] = result
        best = self.best.get(setting)
        better = best is None or finished.rank < best.rank
        if better or self._keep_all:
            finished = replace(finished, d=finished.d.copy())  # it was a slice of the product of all runs
        if better:
            self.best[setting] = finished
        if self._keep_all:
            self.kept[finished.index] = finished

    def score_to_beat(self, state: RunState, objectives: Mapping[int, float | None]) -> float | None:
        """Return the lowest score that another run of the setting has reached or will reach: an objective only falls.

        `objectives` are those of the active runs after the last iteration, by the identity of their states.
        """
        others = [
            objectives[id(other)]
            for other in self.active
            if other is not state and id(other) in objectives and other.run.setting == state.run.setting
        ]
        known = [score for score in (self.best_score(state.run), *others) if score is not None]
        return min(known, default=None)

    def best_score(self, run: Run) -> float | None:
        """Return the lowest score of the finished runs of a setting, if the best of them has converged and is sound."""
        best = self.best.get(run.setting)
        is_final = best is not None and best.result.converged and best.result.is_sound
        return best.result.score if best is not None and is_final else None

    def best_result(self, setting: tuple[Any, ...]) -> RunResult:
        """Return the best run of a setting without its arrays."""
        ranked = [
            (not row.is_sound, row.score, index)
            for index, row in enumerate(self.table)
            if row is not None and row.run.setting == setting
        ]
        best = self.table[min(ranked)[2]]
        assert best is not None
        return best

    def settings(self) -> set[tuple[Any, ...]]:
        """Return the settings of the finished runs."""
        return {row.run.setting for row in self.results()}

    def forget_others(self, wanted: Sequence[FinishedRun]) -> None:
        """Release the arrays of all best runs but these."""
        self.best = {setting: run for setting, run in self.best.items() if any(run is other for other in wanted)}

    def change_results(self, change: Callable[[RunResult], RunResult]) -> None:
        """Change the result of every run, without its arrays."""
        self.table = [None if row is None else change(row) for row in self.table]

        def changed(finished: FinishedRun) -> FinishedRun:
            row = self.table[finished.index]
            assert row is not None
            return replace(finished, result=row)

        self.best = {setting: changed(run) for setting, run in self.best.items()}
        self.kept = {index: changed(run) for index, run in self.kept.items()}

    def results(self) -> list[RunResult]:
        """Return the finished runs in order."""
        return [row for row in self.table if row is not None]

    def packed(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        rows = [(index, row) for index, row in enumerate(self.table) if row is not None]
        held = {finished.index: finished for finished in (*self.best.values(), *self.kept.values())}
        return {
            "rows": [[index, row.packed()] for index, row in rows],
            "finished": [finished.packed() for finished in held.values()],
            "best": [finished.index for finished in self.best.values()],
            "active": [state.packed() for state in self.active],
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @staticmethod
    def unpacked(state: dict[str, Any] | None, runs: Sequence[Run], keep_all: bool) -> BundleResults:
        """Return the results from what `packed` returned; empty ones without a state."""
        results = BundleResults(runs, keep_all)
        if state is None:
            return results
        rows = {index: RunResult.unpacked(row, runs[index]) for index, row in state["rows"]}
        results.table = [rows.get(index) for index in range(len(runs))]
        held = {arrays["index"]: FinishedRun(result=rows[arrays["index"]], **arrays) for arrays in state["finished"]}
        results.best = {runs[index].setting: held[index] for index in state["best"]}
        results.kept = held if keep_all else {}
        results.active = [RunState.unpacked(stored, runs) for stored in state["active"]]
        vars(results).update({name: state[name] for name in _PLAIN})
        return results


def iterate(
    relation: Relation, results: BundleResults, *, save: Callable[[], None], memory: int, later: int = 0
) -> None:
    """Iterate the active runs together until the last has ended; the columns of a run that ends are dropped.

    Parameters
    ----------
    save
        Called after every iteration that is not the last.
    memory
        Bytes that the scans may use, besides the arrays of the runs.
    later
        Most scans of the job that may follow this bundle, for the time left.

    Cost: as many scans as the slowest run has iterations.
    """
    base = unspread(relation)
    n, dtype = base.n_objects, base.matrix.dtype
    context = BundleContext(n, base.largest(), min(n, base.matrix.layout.tile), dtype)
    wants_mean = any(state.run.eta == "overall" for state in results.active)
    width = 0
    with ThreadPoolExecutor(limits.thread_count(waiting=False)) as pool:
        while results.active:
            results.iteration += 1
            active = results.active
            most = results.iteration - 1 + max(state.most_left for state in active)
            note = f"iteration {results.iteration} of at most {most}, {count_text(len(active), 'run')} active"
            progress.current().say(note, iteration=results.iteration, most=most + later)
            began = time.perf_counter()
            # Terms are added in float64; products with tiles are taken in the tiles' precision anyway.
            with_mean = wants_mean and results.iteration == 1
            stacked = _stacked(active, n, np.dtype(np.float64) if base.terms else dtype, with_mean=with_mean)
            prepared = time.perf_counter()
            if len(stacked) != width:  # runs have ended since the last scan
                width = len(stacked)
                products = LeftProducts([(base, width)], memory=memory)
            (Y,) = products.run([stacked])
            scanned = time.perf_counter()
            del stacked
            if with_mean:
                results.mean_distance = float(Y[-1].sum() / n)
            results.columns.append(len(Y))
            threaded = width * n > SMALL_UPDATE
            results.advance(Y, context, pool.map if threaded else map)
            del Y
            results.scan_seconds += scanned - prepared
            results.update_seconds += time.perf_counter() - scanned + prepared - began
            if results.active:
                save()
    progress.current().say("")


def _stacked(active: Sequence[RunState], n: int, dtype: np.dtype[Any], *, with_mean: bool) -> Any:
    """Return the centres of all runs, and with the mean a row of equal weights below them."""
    total = sum(state.run.n_clusters for state in active)
    stacked = np.empty((total + with_mean, n), dtype)
    at = 0
    for state in active:
        stacked[at : at + state.run.n_clusters] = state.W.V[0]
        at += state.run.n_clusters
    stacked[total:] = 1.0 / n
    return stacked


def _refuse_negatives(active: Sequence[RunState]) -> None:
    """Raise if runs without healing have met distances below zero, as RFCM does."""
    stopped = [state for state in active if state.stopped_by_negatives]
    if not stopped:
        return
    first = stopped[0]
    raise InputError(
        f"{count_text(first.stopped_by_negatives, 'distance to a centre is', 'distances to centres are')} negative in"
        f" iteration {first.n_iter} of run {first.index} ({first.rule}, {count_text(first.run.n_clusters, 'cluster')};"
        f" {len(stopped)} of {count_text(len(active), 'run')} met some): the dissimilarities are not Euclidean",
        remedy="say {on_negative=heal} (NERFCM), or {spread=BETA} (-2 lambda_1, lambda_1 the smallest eigenvalue of"
        " -1/2 P D P, always suffices), or Euclideanise the matrix",
    )


# --------------------------------------------------------------------------------------------------------------- memory


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
