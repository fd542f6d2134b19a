"""The parameters of a search for medoids."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from functools import partial

from dasrel.util.option_fields import RUNNING, check_fields, option

_run = partial(option, panel=RUNNING)
STARTS = 10


@dataclass(frozen=True)
class MedoidRun:
    """One search: a number of clusters, and how often it begins anew."""

    n_clusters: int = _run(
        MISSING, "Number of clusters; 2-10 tries them all and recommends one.", name="clusters", metavar="C", least=1
    )
    n_init: int = _run(STARTS, "Starts; the best ones continue with all objects.", metavar="N", least=1)
    random_state: int = _run(0, "Seed of random numbers.", name="seed", least=0)

    def __post_init__(self) -> None:
        check_fields(self)
