"""A stage of a clustering: runs that begin together, in as few bundles as memory allows, and the best of every setting.

`BundleResults` holds the results of finished runs, the best of each setting and the running bundle; a checkpoint saves
it, and a resumed stage continues from it to the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dasrel.cmeans.bundle import (
    Bundle,
    BundleStats,
    FinishedRun,
    RunState,
    run_bundle,
    starting_spread,
    unspread,
)
from dasrel.cmeans.bundle_memory import LANCZOS_BLOCK, LANCZOS_SCANS, IndexedRuns, split_by_memory
from dasrel.cmeans.starts import first_starts
from dasrel.engine.checkpoint import CheckpointWriter
from dasrel.engine.relation import Relation
from dasrel.errors import MemoryLimitError
from dasrel.geometry.lanczos import Operator, Search, lanczos
from dasrel.partition.result import RunResult, Start
from dasrel.partition.run import Run
from dasrel.util import Float
from dasrel.util.text import count_text


def run_stage(
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
    """Run all runs and return their results.

    Parameters
    ----------
    runs
        Without "auto".
    phase
        The name of the stage in checkpoints.
    starts
        First centres that are known already, by the index of the run.
    warn
        Called if there are several bundles.
    later
        Most scans of the job that may follow this stage, for the time left.

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
    done = BundleResults.unpacked(keep.state(phase), runs, keep_all)
    done.bundles = len(bundles)
    while done.bundle < len(bundles):
        bundle = done.running or _first_bundle(relation, bundles[done.bundle], starts)

        def step(running: Bundle | None) -> None:
            keep.step(phase, lambda: {**done.packed(running), "bundles": indices})

        run_bundle(
            relation, bundle, deliver=done.add, on_step=step, stats=done.stats, memory=scan_memory,
            best_score=done.best_score, later=later + sum(most[done.bundle + 1 :]),
        )  # fmt: skip
        done.bundle, done.running = done.bundle + 1, None
        if done.bundle < len(bundles):
            step(None)
    return done


class BundleResults:
    """Results of finished runs, and the bundle that is running."""

    def __init__(self, runs: Sequence[Run], keep_all: bool) -> None:
        self.table: list[RunResult | None] = [None] * len(runs)
        self.best: dict[tuple[Any, ...], FinishedRun] = {}
        """By setting."""
        self.kept: dict[int, FinishedRun] = {}
        """By index, if all are kept."""
        self.stats = BundleStats()
        self.bundles = 1
        self.bundle = 0
        """Index of the running bundle."""
        self.running: Bundle | None = None
        """Its state in the checkpoint that was resumed."""
        self._keep_all = keep_all

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
        self.best = {setting: one for setting, one in self.best.items() if any(one is other for other in wanted)}

    def change_results(self, change: Callable[[RunResult], RunResult]) -> None:
        """Change the result of every run, without its arrays."""
        self.table = [None if row is None else change(row) for row in self.table]

        def changed(finished: FinishedRun) -> FinishedRun:
            row = self.table[finished.index]
            assert row is not None
            return replace(finished, result=row)

        self.best = {setting: changed(one) for setting, one in self.best.items()}
        self.kept = {index: changed(one) for index, one in self.kept.items()}

    def results(self) -> list[RunResult]:
        """Return the finished runs in order."""
        return [row for row in self.table if row is not None]

    def packed(self, running: Bundle | None = None) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        rows = [(index, row) for index, row in enumerate(self.table) if row is not None]
        held = {finished.index: finished for finished in (*self.best.values(), *self.kept.values())}
        return {
            "rows": [[index, row.packed()] for index, row in rows],
            "finished": [finished.packed() for finished in held.values()],
            "best": [finished.index for finished in self.best.values()],
            "columns": self.stats.columns,
            "seconds": [self.stats.scan_seconds, self.stats.update_seconds],
            "bundle": self.bundle,
            "running": None if running is None else running.packed(),
        }

    @staticmethod
    def unpacked(state: dict[str, Any] | None, runs: Sequence[Run], keep_all: bool) -> BundleResults:
        """Return the results from what `packed` returned; empty ones without a state."""
        done = BundleResults(runs, keep_all)
        if state is None:
            return done
        rows = {index: RunResult.unpacked(row, runs[index]) for index, row in state["rows"]}
        done.table = [rows.get(index) for index in range(len(runs))]
        held = {arrays["index"]: FinishedRun(result=rows[arrays["index"]], **arrays) for arrays in state["finished"]}
        done.best = {runs[index].setting: held[index] for index in state["best"]}
        done.kept = held if keep_all else {}
        done.stats = BundleStats(state["columns"], *state["seconds"])
        done.bundle = state["bundle"]
        done.running = None if state["running"] is None else Bundle.unpacked(state["running"], runs)
        return done


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
    runs = dict(one for bundle in bundles for one in bundle)
    return [[(index, runs[index]) for index in bundle] for bundle in begun]


def _first_bundle(relation: Relation, runs: IndexedRuns, known: Mapping[int, Start]) -> Bundle:
    """Return runs at their initial centres. Cost: that of `first_starts`."""
    betas = {index: starting_spread(relation, run) for index, run in runs}
    unknown = [(index, run) for index, run in runs if index not in known]
    made = first_starts(unspread(relation), [run for _, run in unknown], [betas[index] for index, _ in unknown])
    starts = {**known, **{index: start for (index, _), start in zip(unknown, made, strict=True)}}
    return Bundle([RunState(run, index, starts[index], betas[index], _weight(run)) for index, run in runs])


def _weight(run: Run) -> float | None:
    """Return lambda of a run, where it needs one."""
    needed = run.rule == "fcm2" or (run.is_possibilistic and isinstance(run.init, str))
    return float(run.entropy_weight) if needed and run.entropy_weight is not None else None


# ------------------------------------------------------------------------------------------------- largest eigenvalue


def top_eigenvalue(relation: Relation, memory: int | str | None, keep: CheckpointWriter) -> dict[str, Any]:
    """Return the largest eigenvalue of W(D) without spread, and the scans that it took, saved in checkpoints.

    Cost: that of `largest_gram_eigenvalue`.
    """
    found: dict[str, Any] | None = keep.result("first")
    if found is None:
        base = unspread(relation)
        gram = _replayable(lambda V: base.gram(V, memory=memory), keep)
        value = largest_gram_eigenvalue(gram, base.n_objects, memory=memory)
        found = {"eigenvalue": value, "scans": keep.scans}
        keep.finish("first", found)
    return found


def largest_gram_eigenvalue(gram: Operator, n: int, *, rtol: float = 1e-3, memory: int | str | None = None) -> float:
    """Return the largest eigenvalue of W(D) = -1/2 P D P, from below, by block Lanczos; `gram` is X -> W(D) X.

    A spread beta adds beta/2 to it.

    Cost: one scan per step, until the residual is below `rtol` of the eigenvalue, at most `LANCZOS_SCANS`; a basis of
    2 x 4 x 10 columns.
    """
    if n == 1:
        return 0.0
    search = Search(
        lowest=0, highest=1, tol=rtol, block=min(LANCZOS_BLOCK, n - 1), max_scans=LANCZOS_SCANS, memory=memory
    )
    return float(lanczos(gram, n, search=search).highest.values[0])


def _replayable(gram: Operator, keep: CheckpointWriter) -> Operator:
    """Return the operator with its products saved in checkpoints: a resumed search gets those again, in order."""
    products: list[Float] = keep.state("first") or []
    used = itertools.count()

    def multiply(V: Float) -> Float:
        k = next(used)
        if k == len(products):
            products.append(gram(V))
            keep.step("first", lambda: products)
        return products[k]

    return multiply
