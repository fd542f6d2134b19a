"""The result of a clustering: its runs, the best partition of every setting, and validity indices of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.ladder import Restarts
from dasrel.engine.relation import Relation
from dasrel.errors import InputError
from dasrel.judging.groupings import Grouping
from dasrel.judging.structure import Structure, judge_structure, sampled_positions
from dasrel.judging.validity import Validity, compute_indices
from dasrel.partition.result import Ladder, LevelReport, Partition, RunResult
from dasrel.partition.run import Run
from dasrel.util import PathLike, html
from dasrel.util.text import count_text, time_text

_ROWS = 20
"""Settings that a notebook lists."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """The result of `cluster`."""

    partitions: tuple[Partition, ...]
    """The best run of every setting, in the order in which settings were given."""
    kept: tuple[Partition, ...]
    """Every run, in the order given, with `keep_all`; else empty."""
    runs: tuple[RunResult, ...]
    """Every run, in the order given."""
    scans: int
    first_scans: int
    """Of them, those before the first iteration, for entropy_weight="auto" and for a sample."""
    bundles: int
    columns: tuple[int, ...]
    """Columns multiplied in each iteration's scan."""
    seconds: float
    update_seconds: float
    """Of them, outside scans: membership updates."""
    largest_eigenvalue: float | None
    """lambda_max of -1/2 P D P without spread, where it was needed."""
    warnings: tuple[str, ...]
    requested: tuple[Run, ...]
    """The run of each partition as it was requested: with "auto" where the partition's has a number."""
    ladders: tuple[tuple[Ladder, ...], ...]
    """The values that "auto" tried for each partition, and why one was chosen."""
    restarts: tuple[Restarts | None, ...]
    """How the restarts of each partition have ended on the sample; None without one."""
    sample: dict[str, Any] | None
    """Objects of the sample that runs started from, runs on it, and those of them that went on to all objects."""
    levels: tuple[LevelReport, ...]
    """What was done on samples, and on all objects, which come last."""
    quality: Validity | None
    """Validity indices of the partitions, with `judge` or where "auto" chose all of them; else None."""
    relation: Relation | None = field(default=None, repr=False)
    """What was clustered; None where the result was read from a file."""

    def __repr__(self) -> str:
        settings = ", ".join(
            f"{result.run.rule} with {count_text(result.run.n_clusters, 'cluster')}" for result in self._some()
        )
        more = f" and {len(self.partitions) - 5} more" if len(self.partitions) > 5 else ""
        return f"<Clustering: {count_text(len(self.runs), 'run')}, {count_text(self.scans, 'scan')}; {settings}{more}>"

    def _repr_html_(self) -> str:
        values = {} if self.quality is None else self.quality.values
        indices = [index for index in ("silhouette", "fuzzy_silhouette") if index in values]
        known = len(self.partitions) > 1 and "fuzzy_silhouette" in values  # else it would take a scan
        best = self.recommended() if known else None
        chosen = 0 if len(self.partitions) == 1 else best
        listed = sorted({*range(min(len(self.partitions), _ROWS)), *(() if best is None else (best,))})
        rows = [
            (
                result.run.rule, result.run.n_clusters, result.described(), f"{result.objective:.6g}",
                "yes" if result.converged else "no", "yes" if result.is_sound else "no",
                *(f"{values[index][k]:.4f}" for index in indices), "recommended" if k == best else "",
            )
            for k, result in ((k, self.partitions[k].result) for k in listed)
        ]  # fmt: skip
        left = len(self.partitions) - len(listed)
        facts = [
            ("runs", f"{len(self.runs):,}; {sum(run.converged for run in self.runs):,} converged"),
            ("scans", f"{self.scans:,} in {time_text(self.seconds)}"),
            *(("parameter", ladder.reason) for ladder in (() if chosen is None else self.ladders[chosen])),
            *(("warning", note) for note in self.warnings),
            *([("not listed", count_text(left, "setting"))] if left > 0 else []),
        ]
        names = [index.replace("_", " ") for index in indices]
        header = ("rule", "clusters", "parameters", "objective", "converged", "distinct", *names, "")
        return html.card("Clustering", facts, html.table(header, rows))

    def _some(self) -> list[RunResult]:
        return [partition.result for partition in self.partitions[:5]]

    @property
    def best(self) -> Partition:
        """The best partition: of several settings the one that `recommended` names by the fuzzy silhouette."""
        return self.partitions[self.recommended()]

    def recommended(self, index: str = "fuzzy_silhouette") -> int:
        """Return the position of the partition that is best by a validity index, among the sound ones if there are any.

        Only partitions that were iterated on all objects count, if there are any: numbers of clusters that a sample has
        ruled out do not. Objectives of several settings cannot be compared. The first is taken if the index is not
        defined for any, such as a silhouette of single clusters.

        Cost: no scan where the indices are known (`quality`), else one.
        """
        if len(self.partitions) == 1:
            return 0
        every = range(len(self.partitions))
        refined = [k for k in every if self.partitions[k].result.objects is None] or list(every)
        sound = [k for k in refined if self.partitions[k].result.is_sound] or refined
        known = self.quality is not None and index in self.quality.values
        quality = self.quality if known else self._validity_of(self.partitions, [index], samples=False)
        assert quality is not None
        among = quality.take(sound)
        return sound[0 if np.isnan(among[index]).all() else among.best(index)]

    def structure(self, which: int | None = None, *, memory: int | str | None = None) -> Structure | None:
        """Return how sure the clusters of a partition are, by default of the recommended one.

        Compares a sample of at most 1,000 objects with data without groups, its halves with each other, and the
        partition with average linkage; see `dasrel.judging.structure`. None with a single cluster or too few objects.

        Cost: no scan where the result was judged, else one; under a second, whatever the size of the matrix.
        """
        partition = self.partitions[self.recommended() if which is None else which]
        run = self.requested[0]
        pairs = None if self.quality is None else self.quality.pairs
        if pairs is None:
            pairs = self._validity_of(
                [partition], ["silhouette"], samples=False, positions=self._sampled(), memory=memory
            ).pairs
        assert pairs is not None
        labels = partition.labels
        n_labels = len(np.unique(labels))
        return judge_structure(pairs.D, labels[pairs.positions], n_labels, random_state=run.random_state)

    def validity(
        self, *, indices: Sequence[str] | None = None, samples: bool = True, memory: int | str | None = None
    ) -> Validity:
        """Compute validity indices of every run, or without `keep_all` of the best run of every setting.

        All are judged by the dissimilarities that were given to `cluster`, without the spreads that runs have added.
        Partitions are named by the numbers of their runs; one with a single cluster has NaN. See `dasrel.validity`.

        Cost: one scan, unless memory divides the partitions.
        """
        positions = None if self.relation is None else self._sampled()
        partitions = self.kept or self.partitions
        return self._validity_of(partitions, indices, samples=samples, positions=positions, memory=memory)

    def _sampled(self) -> NDArray[np.intp]:
        """Return the objects that `structure` is judged by, which come with the validity indices."""
        return sampled_positions(self.partitions[0].model.n_objects, self.requested[0].random_state)

    def _validity_of(
        self,
        partitions: Sequence[Partition],
        indices: Sequence[str] | None,
        *,
        samples: bool,
        positions: NDArray[np.intp] | None = None,
        memory: int | str | None = None,
    ) -> Validity:
        if self.relation is None:
            raise InputError(
                "this result has no matrix", remedy="give it to dasrel.validity together with the partitions"
            )
        number = {id(result): k for k, result in enumerate(self.runs)}
        groupings = [
            Grouping.of_memberships(
                f"run {number[id(partition.result)]}",
                partition.memberships.T,
                partition.result.run.theta,
                partition.model.modes,
            )
            for partition in partitions
        ]
        return compute_indices(
            self.relation, groupings, indices=indices, samples=samples, positions=positions, memory=memory
        )

    def report(self, path: PathLike = "report.html", *, force: bool = False) -> Path:
        """Write one HTML page about this result, which needs no network and no other file, and return its path.

        It is that of `dasrel report`; see `dasrel.write_report`.

        Parameters
        ----------
        force
            Replace a file that exists.

        Cost: one scan for the picture of the matrix if a scan reads at most 2 GiB, and one for silhouettes if the
        result was not judged.
        """
        from dasrel import write_report  # of a room above this one

        return write_report(self, path, force=force)

    def history(self) -> list[dict[str, Any]]:
        """Return one row per iteration of every run with `history`: its objective, and max |U - U'| (F09 42).

        Rejected accelerated steps have no row. None stands for the change of a first iteration without memberships.
        """
        return [
            {"run": k, "iteration": at + 1, "objective": objective, "change": None if math.isnan(change) else change}
            for k, result in enumerate(self.runs)
            if result.changes
            for at, (objective, change) in enumerate(zip(result.objectives, result.changes, strict=True))
        ]

    def table(self) -> list[dict[str, Any]]:
        """Return one row per run, plain values."""
        chosen = {id(partition.result) for partition in self.partitions}
        return [{"run": k, **r.row(), "best": id(r) in chosen} for k, r in enumerate(self.runs)]
