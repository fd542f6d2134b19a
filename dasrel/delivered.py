"""What the runs of a clustering have come to so far: a row for each that has ended, the best of each setting, and the
bundle under way. All of it goes into a checkpoint and comes back from there to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel import rules
from dasrel.errors import MemoryLimitError, count_text
from dasrel.identity import digest
from dasrel.model import Model
from dasrel.motion import Outcome
from dasrel.picard import Bundle, Work
from dasrel.runs import Run

Float = NDArray[np.float64]

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


class SoFar:
    """What has been delivered, what was used, and the bundle that is under way."""

    def __init__(self, runs: Sequence[Run], keep_all: bool) -> None:
        self.table: list[RunResult | None] = [None] * len(runs)
        self.best: dict[tuple[Any, ...], Outcome] = {}
        self.kept: dict[int, Outcome] = {}
        self.work = Work()
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
    def unpacked(state: dict[str, Any] | None, runs: Sequence[Run], keep_all: bool) -> SoFar:
        """What `packed` made; the beginning, where there is nothing."""
        so_far = SoFar(runs, keep_all)
        if state is None:
            return so_far
        for place, row in state["rows"]:
            so_far.table[place] = RunResult.unpacked(row, runs[place])
        held = {one["place"]: Outcome.unpacked(one, runs) for one in state["outcomes"]}
        so_far.best = {runs[place].setting: held[place] for place in state["best"]}
        so_far.kept = held if keep_all else {}
        so_far.work = Work(state["columns"], *state["seconds"])
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
            f" {len(bundles)};"
            " raise memory (--memory)"
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
