"""Contests: what is decided together on samples, the decision; both in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dasrel.partition.result import Ladder, RunResult
from dasrel.partition.run import Run
from dasrel.util import Float

MOST_DISTINCT = 2
"""Distinct ends of a value that continue, at most."""
REFINED = 3
"""Numbers of clusters of a range that are iterated on all objects, at most: the best one and its neighbours."""


@dataclass(frozen=True, eq=False)
class Contest:
    """What is decided together: the restarts of one requested setting."""

    runs: tuple[Run, ...]
    """The restarts, as requested."""
    values: tuple[Run, ...]
    """The first restart with each value of its ladder."""
    beta: float

    @property
    def is_decided(self) -> bool:
        """Whether it is decided on samples: else all good values go on to all objects."""
        return not self.runs[0].exact


@dataclass(frozen=True, eq=False)
class Finalist:
    """A run that goes on, with its centres on a level."""

    value: int
    """Which of the contest's values it has."""
    result: RunResult
    """How it ended on the level."""
    V: Float
    """(c, m)."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What a level says of a contest."""

    finalists: tuple[Finalist, ...]
    """The best one first."""
    ladders: tuple[Ladder, ...]
    """The choice among rules and among values; none if there was one value only."""
    index: float
    """The value of the validity index by which numbers of clusters are compared; NaN where it is not defined."""
    level: int = 0
    """The position of its level."""
    is_refined: bool = True
    """Whether finalists are iterated on all objects; else they have the centres of the sample."""

    @property
    def is_open(self) -> bool:
        """Whether finalists differ in their values."""
        return len({finalist.value for finalist in self.finalists}) > 1


def packed(contests: Sequence[Contest], decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return decisions for a checkpoint."""

    def row(contest: Contest, result: RunResult) -> list[Any]:
        settings = [value.setting for value in contest.values]
        return [settings.index(result.run.setting), result.run.restart, result.packed()]

    return [
        {
            "finalists": [
                [finalist.value, finalist.result.run.restart, finalist.result.packed(), finalist.V]
                for finalist in decision.finalists
            ],
            "ladders": [
                {**vars(ladder), "results": [row(contest, result) for result in ladder.results]}
                for ladder in decision.ladders
            ],
            "index": decision.index, "level": decision.level, "is_refined": decision.is_refined,
        }
        for contest, decision in zip(contests, decisions, strict=True)
    ]  # fmt: skip


def unpacked(contests: Sequence[Contest], stored: Sequence[dict[str, Any]]) -> list[Decision]:
    """Return decisions from what `packed` returned."""

    def result(contest: Contest, value: int, restart: int, values: dict[str, Any]) -> RunResult:
        return RunResult.unpacked(values, contest.values[value].changed(restart=restart))

    return [
        Decision(
            tuple(Finalist(value, result(contest, value, restart, values), V)
                  for value, restart, values, V in decision["finalists"]),
            tuple(Ladder(**ladder | {"results": tuple(result(contest, *row) for row in ladder["results"]),
                                     "silhouettes": tuple(ladder["silhouettes"])})
                  for ladder in decision["ladders"]),
            decision["index"], decision["level"], decision["is_refined"],
        )
        for contest, decision in zip(contests, stored, strict=True)
    ]  # fmt: skip
