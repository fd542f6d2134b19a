"""Cluster a matrix: initial centres, bundles of runs, the best partition of every setting.

How the best run is chosen. Runs are compared only within a setting: the same rule, number of clusters and parameters,
so that they differ only in their initial memberships. The lowest objective wins, the earlier run on a tie. Two cases:

- healing gives each run its own beta; they are compared at the beta that they began with, where the objective is
  J(beta_0) = J(beta) - (beta - beta_0)/2 (A - B);
- pcm1 and pcm2 estimate eta from the fcm2 run that they begin with, so that each minimises another function; they are
  compared by the objectives of those fcm2 runs (with eta="overall", or given memberships, by their own).

Objectives of different settings are not comparable: a grid has one best run per setting.

`BundleResults` holds the results of finished runs, the best of each setting and the running bundle; a checkpoint saves
it, and a resumed clustering continues from it to the same bits.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dasrel.clustering import rules
from dasrel.clustering.bundle import (
    LANCZOS_BLOCK,
    LANCZOS_SCANS,
    Bundle,
    BundleStats,
    FinishedRun,
    IndexedRuns,
    RunState,
    Start,
    run_bundle,
    split_by_memory,
    starting_spread,
    unspread,
)
from dasrel.clustering.model import Model
from dasrel.clustering.result import Clustering
from dasrel.clustering.runs import Partition, Run, RunResult, checked_runs, stored_run
from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer
from dasrel.engine.relation import Relation, relation as as_relation
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError
from dasrel.geometry.lanczos import Operator, Search, lanczos
from dasrel.util import Float
from dasrel.util.text import count_text, some


def cluster(
    matrix: Any,
    runs: Run | Sequence[Run],
    *,
    kind: str | None = None,
    keep_all: bool = False,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Clustering:
    """Run all runs together, one scan per iteration for all of them, and return the best run of every setting.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a `Relation`.
    runs
        From `Run` or `grid`.
    kind
        What the numbers of an array are.
    keep_all
        Whether the memberships of all runs are returned, not only those of the best run of every setting.
    memory
        Memory that may be used on this machine, such as "2GiB"; by default half of the machine's. Runs that do not
        fit into one bundle are split into several, with a warning.
    checkpoint
        Saves the state between scans, to be resumed to the same bits.

    Cost: as many scans as the slowest run has iterations, and at most 10 before for entropy_weight="auto"; about
    44 n c bytes per run (float32) and 24 n c bytes per result that is kept.
    """
    return prepare_clustering(matrix, runs, kind=kind, keep_all=keep_all, memory=memory).run(checkpoint)


def prepare_clustering(
    matrix: Any,
    runs: Run | Sequence[Run],
    *,
    kind: str | None = None,
    keep_all: bool = False,
    memory: int | str | None = None,
) -> PreparedClustering:
    """Check the arguments of `cluster` against the matrix. Cost: no tile is read."""
    listed = [runs] if isinstance(runs, Run) else list(runs)
    relation = given_relation(matrix, kind)
    source = relation.matrix
    return PreparedClustering(
        relation, checked_runs(listed, relation.n_objects, source.ids, source.diagonal), keep_all, memory
    )


def given_relation(matrix: Any, kind: str | None) -> Relation:
    """Return the relation of a matrix, of an array of this kind, or the given relation."""
    if not isinstance(matrix, Relation):
        return as_relation(matrix, kind=kind)
    if kind is not None:
        raise InputError("a relation knows its kind; leave kind out")
    return matrix


@dataclass(frozen=True, eq=False)
class PreparedClustering:
    """A clustering with checked arguments, to be run, or to be estimated by `planning`."""

    relation: Relation
    runs: list[Run]
    keep_all: bool
    memory: int | str | None

    def run(self, checkpoint: Checkpoint | None) -> Clustering:
        """Run it; see `cluster`."""
        relation, runs, notes = self.relation, self.runs, _Warnings()
        if any(run.rule == "hard" and (run.spread or relation.beta) for run in runs):
            notes.add(
                "the rule hard runs without the spread: its objective is the same, but a spread freezes its steps"
            )
            runs = [replace(run, spread=0.0) if run.rule == "hard" else run for run in runs]
        bundles, scan_memory = split_by_memory(relation, runs, keep_all=self.keep_all, memory=self.memory)

        def about() -> dict[str, Any]:
            identity = relation.identity()
            return {"relation": identity, "keep_all": self.keep_all, "run": [stored_run(run) for run in runs]}

        with checkpoint_writer(checkpoint, "cluster", about) as keep:
            bundles = _resumed_bundles(bundles, keep.state("bundles"))
            if len(bundles) > 1:
                notes.add(
                    f"{count_text(len(runs), 'run')} do not fit into memory at once and were split into"
                    f" {count_text(len(bundles), 'bundle')}, each with its own scans",
                    remedy="raise {memory} to make fewer scans",
                )
            first = entropy_weights(relation, runs, scan_memory, keep)
            if first["without_value"]:
                notes.add("all objects are equal, so that the automatic entropy weight has no value: 1 was used")
            weights = {int(index): value for index, value in first["weights"].items()}
            indices = [[index for index, _ in bundle] for bundle in bundles]
            done = BundleResults.unpacked(keep.state("bundles"), runs, self.keep_all)
            while done.bundle < len(bundles):
                bundle = done.running or first_bundle(relation, bundles[done.bundle], weights)

                def step(running: Bundle | None) -> None:
                    keep.step("bundles", lambda: {**done.packed(running), "bundles": indices})

                run_bundle(relation, bundle, deliver=done.add, on_step=step, stats=done.stats, memory=scan_memory)
                done.bundle, done.running = done.bundle + 1, None
                if done.bundle < len(bundles):
                    step(None)
            scans, seconds = keep.scans, keep.seconds

        results = tuple(result for result in done.table if result is not None)
        _check_results(results, first["eigenvalue"], relation.n_objects, notes)
        settings = dict.fromkeys(run.setting for run in runs)
        return Clustering(
            tuple(_partition(relation, done.best[setting]) for setting in settings),
            tuple(_partition(relation, done.kept[index]) for index in sorted(done.kept)),
            results, scans=scans, first_scans=first["scans"], bundles=len(bundles), columns=tuple(done.stats.columns),
            seconds=seconds, update_seconds=done.stats.update_seconds, largest_eigenvalue=first["eigenvalue"],
            warnings=notes.issue(), relation=relation,
        )  # fmt: skip


class _Warnings:
    """Warnings of a clustering: each is issued once, and returned with the result."""

    def __init__(self) -> None:
        self._notes: list[DasrelWarning] = []

    def add(self, problem: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self._notes.append(DasrelWarning(problem, where=where, remedy=remedy))

    def issue(self) -> tuple[str, ...]:
        for note in self._notes:
            warnings.warn(note, stacklevel=4)  # at the caller of `cluster`
        return tuple(map(str, self._notes))


def _check_results(results: Sequence[RunResult], eigenvalue: float | None, n: int, notes: _Warnings) -> None:
    """Add a warning for each way in which runs ended badly."""
    total = len(results)

    def tell(which: list[int], text: str, remedy: str | None = None) -> None:
        if which:
            notes.add(f"{len(which)} of {count_text(total, 'run')} {text}", where=f"runs {some(which)}", remedy=remedy)

    def those(test: Any) -> list[int]:
        return [k for k, r in enumerate(results) if test(r)]

    tell(those(lambda r: not r.converged), "did not converge", "raise {max_iter} or {tol}")
    if eigenvalue is not None:
        above = those(lambda r: r.run.rule == "fcm2" and r.entropy_weight > 2 * (eigenvalue + r.beta / 2) / n)
        tell(above, "have an entropy weight above the value at which U = 1/c attracts, 2 lambda_max / n")
    fuzzy = those(lambda r: r.flat and not r.run.is_possibilistic)
    tell(fuzzy, "ended with U = 1/c, which says nothing", "lower {fuzzifier} or {entropy_weight}")
    pairs = those(lambda r: r.coincident_clusters and r.run.is_possibilistic)
    tell(pairs, "ended with coincident clusters", "lower {spread_scale} or {n_clusters}")
    pairs = those(lambda r: r.coincident_clusters and not r.flat and not r.run.is_possibilistic)
    tell(pairs, "ended with coincident clusters", "lower {fuzzifier}, {entropy_weight} or {n_clusters}")
    healed = those(lambda r: r.negative_distances and r.run.on_negative == "heal" and r.run.rule != "hard")
    tell(healed, "met negative distances and were healed by a spread of their own (beta in the table)")
    left = those(lambda r: r.negative_distances and (r.run.on_negative != "heal" or r.run.rule == "hard"))
    tell(left, "met negative distances: the relation is not Euclidean, and the objective may rise")
    rises = those(lambda r: r.rises)
    tell(rises, "saw the objective rise: the relation is not Euclidean", "say {on_negative=heal} or {spread=BETA}")
    tell(those(lambda r: r.empty), "ended with empty clusters: there are fewer different objects than clusters")


def _partition(relation: Relation, finished: FinishedRun) -> Partition:
    result, source = finished.result, relation.matrix
    run, diagonal = result.run, source.diagonal
    model = Model(
        rule=run.rule, V=finished.V, half=finished.half, kind=source.kind, ids=np.array(source.ids, dtype=object),
        beta=result.beta, fuzzifier=run.fuzzifier, entropy_weight=result.entropy_weight if run.rule == "fcm2" else None,
        eta=None if result.eta is None else np.array(result.eta), steps=relation.view.steps,
        diagonal=None if diagonal is None else np.asarray(diagonal), has_terms=bool(relation.terms),
    )  # fmt: skip
    return Partition(result, finished.U.T, finished.d.T, model)


class BundleResults:
    """Results of finished runs, and the bundle that is running."""

    def __init__(self, runs: Sequence[Run], keep_all: bool) -> None:
        self.table: list[RunResult | None] = [None] * len(runs)
        self.best: dict[tuple[Any, ...], FinishedRun] = {}
        """By setting."""
        self.kept: dict[int, FinishedRun] = {}
        """By index, if all are kept."""
        self.stats = BundleStats()
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
        better = best is None or (result.score, finished.index) < (best.result.score, best.index)
        if better or self._keep_all:
            finished = replace(finished, d=finished.d.copy())  # it was a slice of the product of all runs
        if better:
            self.best[setting] = finished
        if self._keep_all:
            self.kept[finished.index] = finished

    def packed(self, running: Bundle | None) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        rows = [(index, row) for index, row in enumerate(self.table) if row is not None]
        held = {finished.index: finished for finished in (*self.best.values(), *self.kept.values())}
        return {
            "rows": [[index, row.packed()] for index, row in rows],
            "outcomes": [finished.packed() for finished in held.values()],
            "best": [finished.index for finished in self.best.values()],
            "columns": self.stats.columns,
            "seconds": [self.stats.scan_seconds, self.stats.update_seconds],
            "bundle": self.bundle,
            "under_way": None if running is None else running.packed(),
        }

    @staticmethod
    def unpacked(state: dict[str, Any] | None, runs: Sequence[Run], keep_all: bool) -> BundleResults:
        """Return the results from what `packed` returned; empty ones without a state."""
        done = BundleResults(runs, keep_all)
        if state is None:
            return done
        rows = {index: RunResult.unpacked(row, runs[index]) for index, row in state["rows"]}
        done.table = [rows.get(index) for index in range(len(runs))]
        held = {one["place"]: FinishedRun.unpacked(one, rows[one["place"]]) for one in state["outcomes"]}
        done.best = {runs[index].setting: held[index] for index in state["best"]}
        done.kept = held if keep_all else {}
        done.stats = BundleStats(state["columns"], *state["seconds"])
        done.bundle = state["bundle"]
        done.running = None if state["under_way"] is None else Bundle.unpacked(state["under_way"], runs)
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


# ---------------------------------------------------------------------------------- entropy weights and initial centres


def entropy_weights(relation: Relation, runs: Sequence[Run], memory: int, keep: CheckpointWriter) -> dict[str, Any]:
    """Return lambda of every run that needs one, by index: as given, or lambda_c / 2 = lambda_max(K) / n with spread.

    Cost: no scan, or those of `largest_gram_eigenvalue`.
    """
    if keep.result("first") is not None:
        return cast(dict[str, Any], keep.result("first"))
    weights: dict[str, float] = {}
    automatic = []
    for index, run in enumerate(runs):
        begins_with_fcm2 = run.rule == "fcm2" or (run.is_possibilistic and isinstance(run.init, str))
        if begins_with_fcm2 and run.entropy_weight == "auto":
            automatic.append(index)
        elif begins_with_fcm2 and run.entropy_weight is not None:
            weights[str(index)] = float(run.entropy_weight)
    eigenvalue, without_value = None, False
    if automatic:
        base = unspread(relation)
        gram = _replayable(lambda V: base.gram(V, memory=memory), keep)
        eigenvalue = largest_gram_eigenvalue(gram, base.n_objects, memory=memory)
        for index in automatic:
            value = (eigenvalue + starting_spread(relation, runs[index]) / 2) / relation.n_objects
            without_value = without_value or not value > 0
            weights[str(index)] = value if value > 0 else 1.0
    found = {"weights": weights, "eigenvalue": eigenvalue, "without_value": without_value, "scans": keep.scans}
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


def first_bundle(relation: Relation, runs: IndexedRuns, entropy_weights: dict[int, float]) -> Bundle:
    """Return runs at their initial centres.

    Parameters
    ----------
    runs
        (index, run): index is the position in the list of all runs.
    entropy_weights
        By index, for fcm2 and for the rules that begin with it.

    Cost: that of `first_starts`.
    """
    betas = [starting_spread(relation, run) for _, run in runs]
    starts = first_starts(unspread(relation), [run for _, run in runs], betas)
    return Bundle(
        [
            RunState(run, index, start, beta, entropy_weights.get(index))
            for (index, run), start, beta in zip(runs, starts, betas, strict=True)
        ]
    )


def generator(run: Run) -> np.random.Generator:
    """Return the random generator of a run."""
    return np.random.default_rng(np.random.SeedSequence((run.random_state, run.restart)))


def first_starts(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[Start]:
    """Return the first centres of every run of a bundle.

    pcm1 and pcm2 with a named `init` get those of the fcm2 run that they begin with. Random numbers are drawn object by
    object from (random_state, restart) of a run: they depend neither on the tiles nor on the other runs of the bundle.

    Parameters
    ----------
    relation
        Without its spread.
    betas
        The spread of each run.

    Cost: no scan for "random", memberships and models. All "rows" runs together read the tiles of the strips that hold
    the rows, at most the bytes of a scan; all "k-means++" runs together read as much once for each cluster but the
    last, of the run with the most clusters. These reads are not counted as scans.
    """
    n = relation.n_objects
    starts: list[Start | None] = [None] * len(runs)
    for k, run in enumerate(runs):
        if isinstance(run.init, Model):
            starts[k] = Start(np.array(run.init.V, dtype=np.float64)[None])
        elif not isinstance(run.init, str):
            starts[k] = from_memberships(np.asarray(run.init, dtype=np.float64).T[None], run.theta)
        elif run.init == "random":
            # exponential numbers over their sum: uniform over all memberships with sum 1
            drawn = generator(run).standard_exponential((n, run.n_clusters))
            U = np.ascontiguousarray(drawn.T)[None]
            U /= U.sum(axis=1, keepdims=True)
            starts[k] = from_memberships(U, 1.0 if run.is_possibilistic else run.theta)
    rows = [k for k, run in enumerate(runs) if isinstance(run.init, str) and run.init == "rows"]
    if rows:
        drawn_rows = _from_rows(relation, [runs[k] for k in rows], [betas[k] for k in rows])
        for k, V in zip(rows, drawn_rows, strict=True):
            starts[k] = Start(V)
    apart = [k for k, run in enumerate(runs) if isinstance(run.init, str) and run.init == "k-means++"]
    if apart:
        chosen = _far_apart(relation, [runs[k] for k in apart], [betas[k] for k in apart])
        for k, objects in zip(apart, chosen, strict=True):
            V = np.zeros((1, len(objects), n))
            V[0, np.arange(len(objects)), objects] = 1.0
            starts[k] = Start(V)
    return [start for start in starts if start is not None]


def from_memberships(U: Float, theta: float) -> Start:
    """Return the centres of memberships (1, c, n)."""
    U = np.ascontiguousarray(U)
    return Start(rules.weights(U, theta).V, U)


def _from_rows(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[Float]:
    """Return c different random rows of D for each run, each divided by its sum (K14)."""
    picked = [generator(run).choice(relation.n_objects, size=run.n_clusters, replace=False) for run in runs]
    rows = relation.rows(np.concatenate(picked).tolist())
    result, at = [], 0
    for objects, beta in zip(picked, betas, strict=True):
        V = _spread(rows[at : at + len(objects)], objects, beta)
        at += len(objects)
        total = V.sum(axis=1)
        lonely = total <= 0  # an object at distance zero from all others is a centre itself
        V[lonely, objects[lonely]] = total[lonely] = 1.0
        result.append((V / total[:, None])[None])
    return result


def _far_apart(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[NDArray[np.intp]]:
    """Return objects drawn one after another, each with probability proportional to its distance from those before."""
    n = relation.n_objects
    draws = [generator(run).random(run.n_clusters) for run in runs]
    chosen = [[int(draw[0] * n)] for draw in draws]
    nearest: list[Float | None] = [None] * len(runs)
    for j in range(1, max(run.n_clusters for run in runs)):
        moving = [r for r, run in enumerate(runs) if run.n_clusters > j]
        rows = relation.rows([chosen[r][-1] for r in moving])
        for row, r in zip(rows, moving, strict=True):
            d = _spread(row[None], np.array(chosen[r][-1:]), betas[r])[0]
            before = nearest[r]
            near = d if before is None else np.minimum(before, d)
            near[chosen[r]] = 0.0
            nearest[r] = near
            odds = near if near.max() > 0 else np.isin(np.arange(n), chosen[r], invert=True).astype(np.float64)
            sums = np.cumsum(odds / odds.max())
            chosen[r].append(int(np.searchsorted(sums, draws[r][j] * sums[-1], side="right").clip(0, n - 1)))
    return [np.array(objects, dtype=np.intp) for objects in chosen]


def _spread(rows: Float, objects: NDArray[np.intp], beta: float) -> Float:
    """Return rows of D plus a spread; negative values, as of similarities that are no kernel, become zero."""
    spread = np.maximum(rows + beta, 0.0)
    spread[np.arange(len(objects)), objects] = 0.0
    return spread
