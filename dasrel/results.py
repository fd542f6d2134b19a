"""Clustering a matrix: all runs, the best run of every setting, and what a person asks of it.

How a best run is chosen. Runs are compared only within a setting: the same rule, number of clusters and parameters,
so that they differ in their start alone. The lowest objective wins, the earlier run on a tie. Two cases need care:

- healing gives each run its own beta; they are compared at the beta that they began with, where the objective is
  J(beta_0) = J(beta) - (beta - beta_0)/2 (A - B);
- pcm1 and pcm2 estimate eta from the fcm2 run that they begin with, so that each minimises another function; they are
  compared by the objectives of those fcm2 runs (with eta="overall", or given memberships, by their own).

Objectives of different settings say nothing about each other: a grid has one best run per setting.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel import meter, rules
from dasrel.errors import DasrelWarning, InputError, some
from dasrel.model import Model
from dasrel.motion import Outcome
from dasrel.picard import Work, run_bundle, split_by_memory, starting_spread, unspread
from dasrel.relation import Relation
from dasrel.relation import relation as as_relation
from dasrel.runs import Run, check_runs
from dasrel.starts import largest_gram_eigenvalue

Float = NDArray[np.float64]
Array = NDArray[Any]


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
    sizes: tuple[float, ...]
    """Sum of the memberships of each cluster."""
    beta: float
    """Spread at the end: what was given and what healing added."""
    entropy_weight: float | None
    """lambda as it was used."""
    eta: tuple[float, ...] | None
    flat: bool
    """Whether U says nothing: all clusters alike for every object, to within 0.01."""
    coincident: int
    """Pairs of clusters at one place: distances to them differ by less than 1 % of their range."""
    reseeded: int
    """How often an empty cluster was given a new object."""
    empty: int
    """Clusters that are empty at the end, because no object lies away from its centre."""
    negatives: int
    """Distances below zero, summed over iterations."""
    rises: int
    """Iterations in which the objective rose beyond rounding: never on a Euclidean relation."""
    rejected: int
    """Accelerated steps that were taken back."""

    def row(self) -> dict[str, Any]:
        """Plain values, for a table or a file."""
        values: dict[str, Any] = self.run.parameters()
        for name in ("converged", "n_iter", "objective", "score", "entropy", "beta", "flat", "coincident",
                     "reseeded", "empty", "negatives", "rises", "rejected"):  # fmt: skip
            values[name] = getattr(self, name)
        if self.entropy_weight is not None:
            values["entropy_weight"] = self.entropy_weight
        if self.eta is not None:
            values["eta_values"] = list(self.eta)
        values["sizes"] = list(self.sizes)
        return values


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
                f"there are {len(self.partitions)} settings and their objectives cannot be compared: choose from"
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

    Cost: as many scans as the slowest run has iterations, and at most 10 before for entropy_weight="auto"; about
    44 n c bytes per run (float32) and 24 n c bytes per result that is kept.
    """
    began = time.perf_counter()
    listed = [runs] if isinstance(runs, Run) else list(runs)
    relation = matrix if isinstance(matrix, Relation) else as_relation(matrix, kind=kind)
    if isinstance(matrix, Relation) and kind is not None:
        raise InputError("a relation knows its kind; leave kind out")
    check_runs(listed, relation.n_objects, relation.matrix.ids)
    notes = _Notes()
    if any(run.rule == "hard" and (run.spread or relation.beta) for run in listed):
        notes.add("the rule hard runs without the spread: its objective is the same, but a spread freezes its steps")
        listed = [replace(run, spread=0.0) if run.rule == "hard" else run for run in listed]
    bundles, scan_memory = split_by_memory(relation, listed, keep_all=keep_all, memory=memory)
    if len(bundles) > 1:
        notes.add(
            f"{len(listed)} runs do not fit into memory at once and were split into {len(bundles)} bundles, each with"
            " its own scans; raise memory to make fewer scans"
        )

    with meter.watch() as counted:
        weights, eigenvalue = _entropy_weights(relation, listed, scan_memory, notes)
        first_scans = counted.scans
        table: list[RunResult | None] = [None] * len(listed)
        best: dict[tuple[Any, ...], Outcome] = {}
        kept: dict[int, Outcome] = {}

        def deliver(outcome: Outcome) -> None:
            table[outcome.place] = _row(outcome)
            so_far = best.get(outcome.run.setting)
            better = so_far is None or (outcome.score, outcome.place) < (so_far.score, so_far.place)
            if better or keep_all:
                outcome = replace(outcome, d=outcome.d.copy())  # it was a slice of the whole bundle's
            if better:
                best[outcome.run.setting] = outcome
            if keep_all:
                kept[outcome.place] = outcome

        work = Work()
        for bundle in bundles:
            run_bundle(relation, bundle, weights, deliver=deliver, work=work, memory=scan_memory)
        scans = counted.scans

    results = tuple(result for result in table if result is not None)
    _look_back(results, eigenvalue, relation.n_objects, notes)
    partitions = tuple(_partition(relation, best[key], results) for key in dict.fromkeys(r.setting for r in listed))
    all_of_them = tuple(_partition(relation, kept[place], results) for place in sorted(kept))
    return Clustering(
        partitions, all_of_them, results, scans=scans, first_scans=first_scans, bundles=len(bundles),
        columns=tuple(work.columns), seconds=time.perf_counter() - began, update_seconds=work.update_seconds,
        largest_eigenvalue=eigenvalue,
        warnings=notes.told(),
    )  # fmt: skip


class _Notes:
    """Warnings: each is given once, and kept with the result."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        self._texts.append(text)

    def told(self) -> tuple[str, ...]:
        for text in self._texts:
            warnings.warn(text, DasrelWarning, stacklevel=3)
        return tuple(self._texts)


def _entropy_weights(
    relation: Relation, runs: Sequence[Run], memory: int, notes: _Notes
) -> tuple[dict[int, float], float | None]:
    """lambda of every run that needs one: as given, or lambda_c / 2 = lambda_max(K) / n with the run's spread."""
    weights: dict[int, float] = {}
    automatic = []
    for place, run in enumerate(runs):
        begins_with_fcm2 = run.rule == "fcm2" or (run.is_possibilistic and isinstance(run.start, str))
        if begins_with_fcm2 and run.entropy_weight == "auto":
            automatic.append(place)
        elif begins_with_fcm2 and run.entropy_weight is not None:
            weights[place] = float(run.entropy_weight)
    if not automatic:
        return weights, None
    eigenvalue = largest_gram_eigenvalue(unspread(relation), memory=memory)
    for place in automatic:
        value = (eigenvalue + starting_spread(relation, runs[place]) / 2) / relation.n_objects
        if not value > 0:
            notes.add('all objects are alike, so that entropy_weight="auto" has no value: 1 was used')
            value = 1.0
        weights[place] = value
    return weights, eigenvalue


def _row(outcome: Outcome) -> RunResult:
    U = outcome.U[None]
    return RunResult(
        run=outcome.run, converged=outcome.converged, n_iter=outcome.n_iter, objective=outcome.objective,
        score=outcome.score, history=outcome.history, entropy=float(rules.entropy(U)[0]),
        sizes=tuple(outcome.U.sum(axis=1).tolist()), beta=outcome.beta, entropy_weight=outcome.entropy_weight,
        eta=None if outcome.eta is None else tuple(outcome.eta.tolist()), flat=bool(rules.is_flat(U)[0]),
        coincident=0 if outcome.run.rule == "hard" else _coincident(outcome.d),
        reseeded=outcome.reseeded, empty=outcome.empty, negatives=outcome.negatives, rises=outcome.rises,
        rejected=outcome.rejected,
    )  # fmt: skip


def _coincident(d: Float) -> int:
    near = 0.01 * float(d.max() - d.min())
    return sum(float(np.abs(d[i] - d[j]).max()) <= near for i in range(len(d)) for j in range(i))


def _look_back(results: Sequence[RunResult], eigenvalue: float | None, n: int, notes: _Notes) -> None:
    """What a user should know of how it went."""
    total = len(results)

    def tell(which: list[int], text: str) -> None:
        if which:
            notes.add(f"{len(which)} of {total} runs {text} (runs {some(which)})")

    def those(test: Any) -> list[int]:
        return [k for k, r in enumerate(results) if test(r)]

    tell(those(lambda r: not r.converged), "did not converge within max_iter iterations; raise max_iter or tol")
    if eigenvalue is not None:
        above = those(lambda r: r.run.rule == "fcm2" and r.entropy_weight > 2 * (eigenvalue + r.beta / 2) / n)
        tell(above, "have an entropy_weight above the value at which U = 1/c attracts, 2 lambda_max / n")
    fuzzy = those(lambda r: r.flat and not r.run.is_possibilistic)
    tell(fuzzy, "ended with U = 1/c, which says nothing; lower the fuzzifier or the entropy_weight")
    pairs = those(lambda r: r.coincident and r.run.is_possibilistic)
    tell(pairs, "ended with coincident clusters; lower spread_scale, or ask for fewer clusters")
    pairs = those(lambda r: r.coincident and not r.flat and not r.run.is_possibilistic)
    tell(pairs, "ended with coincident clusters; lower the fuzzifier or the entropy_weight, or ask for fewer clusters")
    healed = those(lambda r: r.negatives and r.run.on_negative == "heal" and r.run.rule != "hard")
    tell(healed, "met negative distances and were healed by a spread of their own (beta in the table)")
    left = those(lambda r: r.negatives and (r.run.on_negative != "heal" or r.run.rule == "hard"))
    tell(left, "met negative distances: the relation is not Euclidean, and the objective may rise")
    tell(those(lambda r: r.rises), "saw the objective rise: the relation is not Euclidean; heal, or give a spread")
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
