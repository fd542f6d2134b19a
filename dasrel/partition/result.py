"""Partitions that runs have found: `RunResult` without and `Partition` with memberships, and the `Ladder` of "auto"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasrel.partition import rules
from dasrel.partition.model import Model
from dasrel.partition.run import Run
from dasrel.util import Float, html
from dasrel.util.text import count_text

_ROWS = 20
"""Clusters that a notebook lists."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """The result of one run without its arrays: a row of the table."""

    run: Run
    converged: bool
    n_iter: int
    """Iterations; for pcm1 and pcm2 those of the fcm2 run before are included."""
    objective: float
    score: float
    """The number by which runs of one setting are compared: the objective, except in the two cases of `fit`."""
    objectives: tuple[float, ...]
    """The objective after each iteration, without rejected accelerated steps."""
    entropy: float
    """O(U) = -sum u log u."""
    membership_sums: tuple[float, ...]
    """Sum of the memberships of each cluster."""
    beta: float
    """Spread at the end: the given one and what healing added."""
    entropy_weight: float | None
    """lambda as it was used."""
    eta: tuple[float, ...] | None
    flat: bool
    """Whether the memberships of every object are equal in all clusters, to within 0.01."""
    coincident_clusters: int
    """Pairs of clusters in the same position: distances to them differ by less than 1 % of their range."""
    reseeded: int
    """How often an empty cluster was given a new object."""
    empty: int
    """Clusters in which no object has its largest membership."""
    negative_distances: int
    """Distances below zero, summed over iterations."""
    rises: int
    """Iterations in which the objective rose beyond rounding: none on a Euclidean relation."""
    rejected: int
    """Accelerated steps that were rejected."""
    objective_change: float | None = None
    """Relative change of the objective over the last two iterations; None where they cannot be compared."""
    largest_change: float | None = None
    """max |U - U'| of the last iteration (F09 42)."""
    objects: int | None = None
    """Objects of the sample that the centres come from, where they were not iterated on all; else None."""
    changes: tuple[float, ...] = ()
    """max |U - U'| from each iteration to the next, with `history`: as long as the objectives. NaN for the first
    iteration from centres without memberships."""
    modes: tuple[int, ...] | None = None
    """For each cluster of pcm1 and pcm2 the first cluster that coincides with it; see `Model.modes`."""
    stopped_early: bool = False
    """Whether it was stopped because it could not win any more, with `race`."""

    @property
    def n_modes(self) -> int | None:
        """Number of different positions in which the clusters of pcm1 and pcm2 ended; None for the other rules."""
        return None if self.modes is None else len(set(self.modes))

    def __repr__(self) -> str:
        ended = f"{'converged' if self.converged else 'stopped'} after {count_text(self.n_iter, 'iteration')}"
        return f"<RunResult of {self.run!r}: objective {self.objective:.6g}, {ended}>"

    @property
    def is_sound(self) -> bool:
        """Whether all clusters are distinct and have objects."""
        return not (self.flat or self.coincident_clusters or self.empty)

    def packed(self) -> dict[str, Any]:
        """Return the values for a checkpoint, without the run."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "run"}
        return values | {"objectives": np.array(self.objectives), "changes": np.array(self.changes)}

    @staticmethod
    def unpacked(stored: dict[str, Any], run: Run) -> RunResult:
        """Return the result of a run from what `packed` returned."""
        values = stored | {"objectives": stored["objectives"].tolist(), "changes": stored["changes"].tolist()}
        sequences = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return RunResult(run=run, **values | sequences)

    def described(self) -> str:
        """Return the parameters that the rule has, with their values, as text for people."""
        used = {"fuzzifier": self.run.fuzzifier, "entropy weight": self.entropy_weight, "spread": self.beta or None}
        used["eta scale"] = self.run.eta_scale
        return ", ".join(f"{name} {value:.4g}" for name, value in used.items() if isinstance(value, (int, float)))

    def row(self) -> dict[str, Any]:
        """Return plain values, for a table or a file."""
        values: dict[str, Any] = self.run.parameters()
        for name in ("converged", "n_iter", "objective", "objective_change", "largest_change", "score", "entropy",
                     "beta", "flat", "coincident_clusters", "n_modes", "reseeded", "empty", "negative_distances",
                     "rises", "rejected", "stopped_early", "objects"):  # fmt: skip
            values[name] = getattr(self, name)
        if self.entropy_weight is not None:
            values["entropy_weight_used"] = self.entropy_weight
        if self.eta is not None:
            values["eta_used"] = list(self.eta)
        values["membership_sums"] = list(self.membership_sums)
        return values


@dataclass(frozen=True, eq=False)
class Ladder:
    """The values that "auto" tried for a setting, and the choice."""

    parameter: str
    results: tuple[RunResult, ...]
    """The best run of each value that was run where it was decided, from fuzzy to crisp; of the parameter "rule" the
    best run of each rule."""
    silhouettes: tuple[float, ...]
    """Mean silhouette of each."""
    chosen: int
    reason: str
    runner_up: int | None = None
    """The value that would be chosen next, after a small change of silhouettes."""
    distance: float = math.inf
    """How large that change would have to be."""
    objects: int | None = None
    """Objects of the sample on which it was decided; None for all objects."""

    def __repr__(self) -> str:
        chosen = self._value(self.chosen)
        text = chosen if isinstance(chosen, str) else f"{chosen:.6g}"
        return f"<Ladder of {self.parameter}: {text} of {count_text(len(self.results), 'value')}>"

    def _value(self, k: int) -> Any:
        return getattr(self.results[k].run, self.parameter)

    def report(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = [
            {
                "value": getattr(result.run, self.parameter), "silhouette": silhouette, "objective": result.objective,
                "converged": result.converged, "coincident_clusters": result.coincident_clusters,
                "empty": result.empty,
            }
            for result, silhouette in zip(self.results, self.silhouettes, strict=True)
        ]  # fmt: skip
        return {
            "parameter": self.parameter, "chosen": self._value(self.chosen), "reason": self.reason,
            "decided_on": self.objects,
            "runner_up": None if self.runner_up is None else self._value(self.runner_up),
            "distance": self.distance if math.isfinite(self.distance) else None,
            "values": values,
        }  # fmt: skip


@dataclass(frozen=True)
class LevelReport:
    """What was done on a level: on a sample, or on all objects."""

    objects: int
    runs: int
    n_iter: int
    """Iterations of all runs together."""
    columns: int
    """Columns that were multiplied with the matrix of the level: the clusters of its runs times their iterations."""
    seconds: float


class Start(NamedTuple):
    """The first centres of a run."""

    V: Float
    """Weights of the objects, (1, c, n)."""
    U: Float | None = None
    """The memberships (1, c, n) that the weights were made from; None where there are none."""


@dataclass(frozen=True, eq=False)
class Partition:
    """A run with its memberships. They, the distances, labels, objective and medoids belong to the same centres."""

    result: RunResult
    memberships: Float
    """(n, c)."""
    distances: Float
    """Squared dissimilarities to the centres, spread included, (n, c)."""
    model: Model

    def __repr__(self) -> str:
        run, n = self.result.run, len(self.memberships)
        sizes = ", ".join(f"{size:,}" for size in self.sizes[:10]) + (", ..." if run.n_clusters > 10 else "")
        clusters = count_text(run.n_clusters, "cluster")
        return f"<Partition: {run.rule}, {count_text(n, 'object')} in {clusters} of {sizes}>"

    def _repr_html_(self) -> str:
        result, n, sizes = self.result, len(self.memberships), self.sizes
        largest, labels, medoids = self.memberships.max(axis=1), self.labels, self.medoids
        rows = [
            (
                k, f"{sizes[k]:,}", html.bar(sizes[k] / n), self.model.ids[medoids[k]],
                f"{largest[labels == k].mean():.3f}" if sizes[k] else "none",
            )
            for k in range(min(len(sizes), _ROWS))
        ]  # fmt: skip
        more = [f"{len(sizes) - _ROWS:,} more clusters"] if len(sizes) > _ROWS else []
        facts = [
            ("rule", ", ".join(filter(None, [result.run.rule, result.described()]))),
            ("objects", f"{n:,}"),
            ("objective", f"{result.objective:.6g}"),
            ("converged", f"{'yes' if result.converged else 'no'}, {count_text(result.n_iter, 'iteration')}"),
            ("border", f"{count_text(len(self.border()), 'object')} with no membership of 0.5"),
            *([] if result.is_sound else [("beware", "some clusters coincide or have no objects")]),
        ]
        header = ("cluster", "objects", "", "medoid", "mean membership")
        return html.card("Partition", facts, html.table(header, [*rows, *([more] if more else [])]))

    @property
    def labels(self) -> NDArray[np.intp]:
        """The cluster of largest membership of each object; the lowest number on a tie, and in a mode (`modes`)."""
        return self.model.labels(self.memberships)

    @property
    def objective(self) -> float:
        """The objective at these memberships and centres."""
        return self.result.objective

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Number of objects with each label; 0 for a cluster that coincides with an earlier one of pcm1 or pcm2."""
        return np.bincount(self.labels, minlength=self.memberships.shape[1]).astype(np.intp)

    @property
    def medoids(self) -> NDArray[np.intp]:
        """Position of the member that is nearest to the centre of each cluster; of a cluster without any, of all."""
        is_member = self.labels[:, None] == np.arange(self.distances.shape[1])
        eligible = is_member | ~is_member.any(axis=0)
        nearest: NDArray[np.intp] = np.where(eligible, self.distances, np.inf).argmin(axis=0)
        return nearest

    @property
    def entropy(self) -> float:
        """O(U) = -sum u log u."""
        return self.result.entropy

    def border(self, threshold: float = 0.5) -> NDArray[np.intp]:
        """Return the positions of objects whose largest membership is below the threshold."""
        return np.flatnonzero(self.memberships.max(axis=1) < threshold)

    def image(self, objects: Sequence[int] | NDArray[np.intp]) -> Float:
        """Return the induced dissimilarity D(U) = 1 - U'U / max(U'U) (K14 17) of chosen objects, (k, k)."""
        return rules.induced_dissimilarity(self.memberships.T, np.asarray(objects, dtype=np.intp))
