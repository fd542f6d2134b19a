"""The parameters of HDBSCAN*: what one result is made with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from dasrel.util.option_fields import RUNNING, check_fields, option

_run = partial(option, panel=RUNNING)
SIZE = 15
"""Objects that a cluster has at least, if nothing is said and there are enough."""


@dataclass(frozen=True)
class DensityRun:
    """One clustering by density. Objects count themselves in `min_samples`, as in scikit-learn."""

    min_size: int | None = _run(
        None, f"Objects that a cluster has at least: if not given {SIZE}, a quarter of fewer than {4 * SIZE} objects.",
        metavar="N", least=2,
    )  # fmt: skip
    """Objects that a cluster has at least."""
    min_samples: int | None = _run(
        None, "Objects, itself included, that are as near to one as its core distance; like min-size if not given.",
        metavar="N", least=1,
    )  # fmt: skip
    """The core distance of an object is that to the nearest of which so many, itself included, are at least as near."""
    method: Literal["eom", "leaf"] = _run("eom", "Clusters of largest excess of mass (eom), or without a split (leaf).")
    """How clusters are chosen from the condensed tree."""
    epsilon: float = _run(0.0, "Clusters that are split at a distance below this are one.", metavar="D", least=0)
    """Clusters that are split at a distance below it are taken as one."""
    allow_single_cluster: bool = _run(False, "All objects may be one cluster.")
    """Whether all objects may be one cluster."""

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, n_objects: int) -> DensityRun:
        """Return the run with the numbers that so many objects are clustered with.

        >>> DensityRun().of(1_000).size, DensityRun().of(12).size, DensityRun(20).of(12).size
        (15, 3, 20)
        """
        size = max(2, min(SIZE, n_objects // 4)) if self.min_size is None else self.min_size
        return replace(self, min_size=size, min_samples=size if self.min_samples is None else self.min_samples)

    @property
    def size(self) -> int:
        """Objects that a cluster has at least, of a run with its numbers (`of`)."""
        return SIZE if self.min_size is None else self.min_size

    @property
    def samples(self) -> int:
        """The number of samples that is used, of a run with its numbers (`of`)."""
        return self.size if self.min_samples is None else self.min_samples
