"""`Run` and `grid` with the papers' parameters and random starts: each run is one optimisation on all objects.

The defaults of dasrel choose parameters from ladders and start from a sample; tests of the rules themselves do not.
"""

from collections.abc import Sequence
from typing import Any

import dasrel

PAPERS: dict[str, dict[str, Any]] = {
    "fcm1": {"fuzzifier": 2.0},
    "pcm1": {"eta_scale": 1.0},
    "pcm2": {"eta_scale": 1.0},
}


def _filled(rule: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"init": "random", "accelerate": False, "stop": "memberships", **PAPERS.get(rule, {}), **more}


def Run(rule: str, n_clusters: int, **more: Any) -> dasrel.Run:  # noqa: N802 - it stands for the class
    """Return a run."""
    return dasrel.Run(rule, n_clusters, **_filled(rule, more))


def grid(rule: str | Sequence[str], n_clusters: int | Sequence[int], **more: Any) -> list[dasrel.Run]:
    """Return runs for every combination of the values."""
    rules = [rule] if isinstance(rule, str) else rule
    return [run for one in rules for run in dasrel.grid(one, n_clusters, **_filled(one, more))]
