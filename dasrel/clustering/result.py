"""The result of a clustering: its runs, the best partition of every setting, and validity indices of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dasrel.clustering.runs import Partition, RunResult
from dasrel.clustering.validity import Grouping, Validity, judged
from dasrel.engine.relation import Relation
from dasrel.errors import InputError
from dasrel.util.text import count_text


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
    relation: Relation | None = field(default=None, repr=False)
    """What was clustered; None where the result was read from a file."""

    @property
    def best(self) -> Partition:
        """The best run of the only setting; objectives of several settings cannot be compared."""
        if len(self.partitions) > 1:
            raise InputError(
                f"there are {count_text(len(self.partitions), 'setting')} and their objectives cannot be compared:"
                " choose from partitions, or compare them by a validity index"
            )
        return self.partitions[0]

    def validity(
        self, *, indices: Sequence[str] | None = None, samples: bool = True, memory: int | str | None = None
    ) -> Validity:
        """Compute validity indices of every run, or without `keep_all` of the best run of every setting.

        All are judged by the dissimilarities that were given to `cluster`, without the spreads that runs have added.
        Partitions are named by the numbers of their runs; one with a single cluster has NaN. See `dasrel.validity`.

        Cost: one scan, unless memory divides the partitions.
        """
        if self.relation is None:
            raise InputError("this result has no matrix; give it to dasrel.validity together with the partitions")
        number = {id(result): k for k, result in enumerate(self.runs)}
        partitions = [
            Grouping.of_memberships(f"run {number[id(one.result)]}", one.memberships.T, one.result.run.theta)
            for one in self.kept or self.partitions
        ]
        return judged(self.relation, partitions, indices=indices, samples=samples, memory=memory)

    def table(self) -> list[dict[str, Any]]:
        """Return one row per run, plain values."""
        chosen = {id(partition.result) for partition in self.partitions}
        return [{"run": k, **r.row(), "best": id(r) in chosen} for k, r in enumerate(self.runs)]
