"""Cluster a matrix: from runs to the best partitions.

Clustering a matrix: all runs, the best run of every setting, and what a person asks of it.

How a best run is chosen. Runs are compared only within a setting: the same rule, number of clusters and parameters,
so that they differ in their start alone. The lowest objective wins, the earlier run on a tie. Two cases need care:

- healing gives each run its own beta; they are compared at the beta that they began with, where the objective is
  J(beta_0) = J(beta) - (beta - beta_0)/2 (A - B);
- pcm1 and pcm2 estimate eta from the fcm2 run that they begin with, so that each minimises another function; they are
  compared by the objectives of those fcm2 runs (with eta="overall", or given memberships, by their own).

Objectives of different settings say nothing about each other: a grid has one best run per setting.

What the runs of a clustering have come to so far: a row for each that has ended, the best of each setting, and the
bundle under way. All of it goes into a checkpoint and comes back from there to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.clustering import rules
from dasrel.clustering.bundle import (
    Bundle,
    BundleStats,
    Outcome,
    entropy_weights,
    first_bundle,
    run_bundle,
    split_by_memory,
)
from dasrel.clustering.model import Model
from dasrel.clustering.runs import Run, checked_runs
from dasrel.engine.checkpoint import Checkpoint, checkpoint_writer
from dasrel.engine.relation import Relation, relation as as_relation
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError
from dasrel.util import Float
from dasrel.util.files import digest
from dasrel.util.text import count_text, some


@dataclass(frozen=True, eq=False)
class Partition:
    """A run with its memberships. They, the distances, labels, objective and medoids belong to the same centres."""

    result: RunResult
    memberships: Float
    """(n, c)."""
    distances: Float
    """Squared dissimilarities to the centres, spread included, (n, c)."""
    model: Model

    @property
    def labels(self) -> NDArray[np.intp]:
        """The cluster of largest membership of each object; the lowest number on a tie."""
        largest: NDArray[np.intp] = self.memberships.argmax(axis=1)
        return largest

    @property
    def objective(self) -> float:
        """The objective at these memberships and centres."""
        return self.result.objective

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Number of objects with each label."""
        return np.bincount(self.labels, minlength=self.memberships.shape[1]).astype(np.intp)

    @property
    def medoids(self) -> NDArray[np.intp]:
        """Position of the object nearest to each centre."""
        nearest: NDArray[np.intp] = self.distances.argmin(axis=0)
        return nearest

    @property
    def entropy(self) -> float:
        """O(U) = -sum u log u."""
        return self.result.entropy

    def border(self, threshold: float = 0.5) -> NDArray[np.intp]:
        """Positions of objects whose largest membership is below the threshold."""
        return np.flatnonzero(self.memberships.max(axis=1) < threshold)

    def image(self, objects: Sequence[int] | NDArray[np.intp]) -> Float:
        """The induced dissimilarity D(U) = 1 - U'U / max(U'U) (K14 17) of chosen objects, (k, k)."""
        return rules.induced_dissimilarity(self.memberships.T, np.asarray(objects, dtype=np.intp))


@dataclass(frozen=True, eq=False)
class Clustering:
    """All that `cluster` found."""

    partitions: tuple[Partition, ...]
    """The best run of every setting, in the order in which settings were given."""
    kept: tuple[Partition, ...]
    """Every run, in the order given, if that was asked for; else empty."""
    runs: tuple[RunResult, ...]
    """Every run, in the order given."""
    scans: int
    first_scans: int
    """Of them, those before the first iteration, for entropy_weight="auto"."""
    bundles: int
    columns: tuple[int, ...]
    """Columns multiplied in each iteration's scan."""
    seconds: float
    update_seconds: float
    """Of them, outside scans: membership updates."""
    largest_eigenvalue: float | None
    """lambda_max of -1/2 P D P without spread, where it was needed."""
    warnings: tuple[str, ...]

    @property
    def best(self) -> Partition:
        """The best run, where there is one setting; objectives of several settings cannot be compared."""
        if len(self.partitions) > 1:
            raise InputError(
                f"there are {count_text(len(self.partitions), 'setting')} and their objectives cannot be compared:"
                " choose from"
                " partitions, or compare them by a validity index"
            )
        return self.partitions[0]

    def table(self) -> list[dict[str, Any]]:
        """One row per run, plain values."""
        chosen = {id(partition.result) for partition in self.partitions}
        return [{"run": k, **r.row(), "best": id(r) in chosen} for k, r in enumerate(self.runs)]


def cluster(
    matrix: Any,
    runs: Run | Sequence[Run],
    *,
    kind: str | None = None,
    keep_all: bool = False,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Clustering:
    """Make all runs together, one scan per iteration for all of them, and return the best run of every setting.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a `Relation`.
    runs
        From `Run` or `grid`.
    kind
        What the numbers of an array are.
    keep_all
        Whether the memberships of all runs are kept, not only those of the best run of every setting.
    memory
        Memory that may be taken on this machine, such as "2GiB"; by default half of the machine's. Runs that do not
        fit into one bundle are split into several, with a warning.
    checkpoint
        Writes down the state between scans, to go on from to the same bits.

    Cost: as many scans as the slowest run has iterations, and at most 10 before for entropy_weight="auto"; about
    44 n c bytes per run (float32) and 24 n c bytes per result that is kept.
    """
    listed = [runs] if isinstance(runs, Run) else list(runs)
    relation = matrix if isinstance(matrix, Relation) else as_relation(matrix, kind=kind)
    if isinstance(matrix, Relation) and kind is not None:
        raise InputError("a relation knows its kind; leave kind out")
    source = relation.matrix
    listed = checked_runs(listed, relation.n_objects, source.ids, source.diagonal)
    notes = _Notes()
    if any(run.rule == "hard" and (run.spread or relation.beta) for run in listed):
        notes.add("the rule hard runs without the spread: its objective is the same, but a spread freezes its steps")
        listed = [replace(run, spread=0.0) if run.rule == "hard" else run for run in listed]
    bundles, scan_memory = split_by_memory(relation, listed, keep_all=keep_all, memory=memory)

    def about() -> dict[str, Any]:
        return {"relation": relation.identity(), "keep_all": keep_all, "run": [named(run) for run in listed]}

    with checkpoint_writer(checkpoint, "cluster", about) as keep:
        bundles = same_bundles(bundles, keep.state("bundles"))
        if len(bundles) > 1:
            notes.add(
                f"{count_text(len(listed), 'run')} do not fit into memory at once and were split into"
                f" {count_text(len(bundles), 'bundle')}, each with its own scans",
                remedy="raise {memory} to make fewer scans",
            )
        first = entropy_weights(relation, listed, scan_memory, keep)
        if first["without_value"]:
            notes.add("all objects are alike, so that the automatic entropy weight has no value: 1 was used")
        weights = {int(place): value for place, value in first["weights"].items()}
        so_far = BundleResults.unpacked(keep.state("bundles"), listed, keep_all)
        while so_far.bundle < len(bundles):
            here = so_far.under_way or first_bundle(relation, bundles[so_far.bundle], weights)

            def step(bundle: Bundle | None) -> None:
                keep.step("bundles", lambda: {**so_far.packed(bundle), "bundles": places_of(bundles)})

            run_bundle(relation, here, deliver=so_far.deliver, on_step=step, work=so_far.work, memory=scan_memory)
            so_far.bundle, so_far.under_way = so_far.bundle + 1, None
            if so_far.bundle < len(bundles):
                step(None)
        scans, seconds = keep.scans, keep.seconds

    results = tuple(result for result in so_far.table if result is not None)
    _look_back(results, first["eigenvalue"], relation.n_objects, notes)
    best, kept = so_far.best, so_far.kept
    partitions = tuple(_partition(relation, best[key], results) for key in dict.fromkeys(r.setting for r in listed))
    all_of_them = tuple(_partition(relation, kept[place], results) for place in sorted(kept))
    return Clustering(
        partitions, all_of_them, results, scans=scans, first_scans=first["scans"], bundles=len(bundles),
        columns=tuple(so_far.work.columns), seconds=seconds, update_seconds=so_far.work.update_seconds,
        largest_eigenvalue=first["eigenvalue"],
        warnings=notes.told(),
    )  # fmt: skip


class _Notes:
    """Warnings: each is given once, and kept with the result."""

    def __init__(self) -> None:
        self._notes: list[DasrelWarning] = []

    def add(self, problem: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self._notes.append(DasrelWarning(problem, where=where, remedy=remedy))

    def told(self) -> tuple[str, ...]:
        for note in self._notes:
            warnings.warn(note, stacklevel=3)
        return tuple(map(str, self._notes))


def _look_back(results: Sequence[RunResult], eigenvalue: float | None, n: int, notes: _Notes) -> None:
    """What a user should know of how it went."""
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


def _partition(relation: Relation, outcome: Outcome, results: Sequence[RunResult]) -> Partition:
    run, source = outcome.run, relation.matrix
    diagonal = source.diagonal
    lam = outcome.entropy_weight if run.rule == "fcm2" else None
    model = Model(
        rule=run.rule, V=outcome.V, half=outcome.half, kind=source.kind, ids=np.array(source.ids, dtype=object),
        beta=outcome.beta, fuzzifier=run.fuzzifier, entropy_weight=lam,
        eta=outcome.eta, steps=relation.view.steps, diagonal=None if diagonal is None else np.asarray(diagonal),
        has_terms=bool(relation.terms),
    )  # fmt: skip
    return Partition(results[outcome.place], outcome.U.T, outcome.d.T, model)


_STORED = {
    "init": "start", "random_state": "seed",
    "membership_sums": "sizes", "coincident_clusters": "coincident", "negative_distances": "negatives",
}  # fmt: skip
"""The names that checkpoints hold for what has another name here: their format does not change."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """What is known of every run: a row of the table."""

    run: Run
    converged: bool
    n_iter: int
    """Iterations; for pcm1 and pcm2 those of the fcm2 run before are included."""
    objective: float
    score: float
    """What runs of one setting are compared by; the objective, save for the two cases above."""
    history: tuple[float, ...]
    """The objective after each iteration; accelerated steps that were taken back are left out."""
    entropy: float
    """O(U) = -sum u log u."""
    membership_sums: tuple[float, ...]
    """Sum of the memberships of each cluster."""
    beta: float
    """Spread at the end: what was given and what healing added."""
    entropy_weight: float | None
    """lambda as it was used."""
    eta: tuple[float, ...] | None
    flat: bool
    """Whether U says nothing: all clusters alike for every object, to within 0.01."""
    coincident_clusters: int
    """Pairs of clusters at one place: distances to them differ by less than 1 % of their range."""
    reseeded: int
    """How often an empty cluster was given a new object."""
    empty: int
    """Clusters that are empty at the end, because no object lies away from its centre."""
    negative_distances: int
    """Distances below zero, summed over iterations."""
    rises: int
    """Iterations in which the objective rose beyond rounding: never on a Euclidean relation."""
    rejected: int
    """Accelerated steps that were taken back."""

    def packed(self) -> dict[str, Any]:
        """For a checkpoint: all but the run."""
        values = {_STORED.get(f.name, f.name): getattr(self, f.name) for f in fields(self) if f.name != "run"}
        return {**values, "history": np.array(self.history)}

    @staticmethod
    def unpacked(kept: dict[str, Any], run: Run) -> RunResult:
        """What `packed` made."""
        eta = None if kept["eta"] is None else tuple(kept["eta"])
        tuples = {"history": tuple(kept["history"].tolist()), "sizes": tuple(kept["sizes"]), "eta": eta}
        values = {**kept, **tuples}
        return RunResult(run=run, **{f.name: values[_STORED.get(f.name, f.name)] for f in fields(RunResult)[1:]})

    def row(self) -> dict[str, Any]:
        """Plain values, for a table or a file."""
        values: dict[str, Any] = self.run.parameters()
        for name in ("converged", "n_iter", "objective", "score", "entropy", "beta", "flat", "coincident_clusters",
                     "reseeded", "empty", "negative_distances", "rises", "rejected"):  # fmt: skip
            values[name] = getattr(self, name)
        if self.entropy_weight is not None:
            values["entropy_weight_used"] = self.entropy_weight
        if self.eta is not None:
            values["eta_used"] = list(self.eta)
        values["membership_sums"] = list(self.membership_sums)
        return values


def row_of(outcome: Outcome) -> RunResult:
    """The row of the table that an outcome makes."""
    U = outcome.U[None]
    return RunResult(
        run=outcome.run, converged=outcome.converged, n_iter=outcome.n_iter, objective=outcome.objective,
        score=outcome.score, history=outcome.history, entropy=float(rules.entropy(U)[0]),
        membership_sums=tuple(outcome.U.sum(axis=1).tolist()), beta=outcome.beta, entropy_weight=outcome.entropy_weight,
        eta=None if outcome.eta is None else tuple(outcome.eta.tolist()), flat=bool(rules.is_flat(U)[0]),
        coincident_clusters=0 if outcome.run.rule == "hard" else _coincident(outcome.d),
        reseeded=outcome.reseeded, empty=outcome.empty, negative_distances=outcome.negatives, rises=outcome.rises,
        rejected=outcome.rejected,
    )  # fmt: skip


def _coincident(d: Float) -> int:
    near = 0.01 * float(d.max() - d.min())
    return sum(float(np.abs(d[i] - d[j]).max()) <= near for i in range(len(d)) for j in range(i))


class BundleResults:
    """What has been delivered, what was used, and the bundle that is under way."""

    def __init__(self, runs: Sequence[Run], keep_all: bool) -> None:
        self.table: list[RunResult | None] = [None] * len(runs)
        self.best: dict[tuple[Any, ...], Outcome] = {}
        self.kept: dict[int, Outcome] = {}
        self.work = BundleStats()
        self.bundle = 0
        self.under_way: Bundle | None = None
        self._keep_all = keep_all

    def deliver(self, outcome: Outcome) -> None:
        self.table[outcome.place] = row_of(outcome)
        so_far = self.best.get(outcome.run.setting)
        better = so_far is None or (outcome.score, outcome.place) < (so_far.score, so_far.place)
        if better or self._keep_all:
            outcome = replace(outcome, d=outcome.d.copy())  # it was a slice of the whole bundle's
        if better:
            self.best[outcome.run.setting] = outcome
        if self._keep_all:
            self.kept[outcome.place] = outcome

    def packed(self, under_way: Bundle | None) -> dict[str, Any]:
        """For a checkpoint."""
        rows = [(place, row) for place, row in enumerate(self.table) if row is not None]
        held = {outcome.place: outcome for outcome in (*self.best.values(), *self.kept.values())}
        return {
            "rows": [[place, row.packed()] for place, row in rows],
            "outcomes": [outcome.packed() for outcome in held.values()],
            "best": [outcome.place for outcome in self.best.values()],
            "columns": self.work.columns,
            "seconds": [self.work.scan_seconds, self.work.update_seconds],
            "bundle": self.bundle,
            "under_way": None if under_way is None else under_way.packed(),
        }

    @staticmethod
    def unpacked(state: dict[str, Any] | None, runs: Sequence[Run], keep_all: bool) -> BundleResults:
        """What `packed` made; the beginning, where there is nothing."""
        so_far = BundleResults(runs, keep_all)
        if state is None:
            return so_far
        for place, row in state["rows"]:
            so_far.table[place] = RunResult.unpacked(row, runs[place])
        held = {one["place"]: Outcome.unpacked(one, runs) for one in state["outcomes"]}
        so_far.best = {runs[place].setting: held[place] for place in state["best"]}
        so_far.kept = held if keep_all else {}
        so_far.work = BundleStats(state["columns"], *state["seconds"])
        so_far.bundle = state["bundle"]
        so_far.under_way = None if state["under_way"] is None else Bundle.unpacked(state["under_way"], runs)
        return so_far


def places_of(bundles: list[list[tuple[int, Run]]]) -> list[list[int]]:
    return [[place for place, _ in bundle] for bundle in bundles]


def same_bundles(bundles: list[list[tuple[int, Run]]], state: dict[str, Any] | None) -> list[list[tuple[int, Run]]]:
    """The bundles of the checkpoint, even if memory would now allow wider ones: their state is what there is."""
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
    return [[(place, runs[place]) for place in bundle] for bundle in begun]


def named(run: Run) -> dict[str, Any]:
    """A run as a checkpoint knows it; a start that is no word by its numbers."""
    values = run.parameters()
    if isinstance(run.init, Model):
        eta = () if run.init.eta is None else (run.init.eta,)
        values["init"] = "model " + digest(np.ascontiguousarray(one).tobytes() for one in (run.init.V, *eta))
    elif not isinstance(run.init, str):
        values["init"] = "memberships " + digest([np.asarray(run.init, dtype=np.float64).tobytes()])
    return {_STORED.get(name, name): value for name, value in values.items()}
