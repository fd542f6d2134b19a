"""What to run to find outliers: `OneClassRun`, one cluster in kernel space (F10) with its parameters.

Its fields are the only place where these parameters have their defaults, bounds and help. Neither NumPy nor Dask is
imported, so that the command line starts quickly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from dasrel.partition.run import Run
from dasrel.util.option_fields import RUNNING, check_fields, check_number, option, same

MOST_REJECTED = 0.5
"""The largest share of the objects that can be outliers."""
_run = partial(option, panel=RUNNING)


@dataclass(frozen=True)
class OneClassRun:
    """One cluster in kernel space: its parameters. The matrix is seen through a Gaussian kernel of `width`."""

    width: float | Literal["auto"] | None = _run(
        "auto", "Widths of the Gaussian kernel; none takes the matrix itself as a kernel.", metavar="W", above=0
    )
    """sigma, on the scale of the dissimilarities; "auto" is estimated from the nearest neighbours (see `Scale`), and
    for kinds similarity and kernel is None: the matrix itself is the kernel."""
    eta_scale: float = _run(1.0, "gamma: large values give kernel densities.", metavar="G", above=0)
    """gamma: small values follow the densest part of the data, large ones give kernel density estimates."""
    eta_refit: bool = _run(False, "Estimate eta again at every iteration.")
    """Estimate eta (27) at every iteration instead of once."""
    constrained: bool = _run(False, "Scale the memberships to sum 1 (49). The order of the objects does not change.")
    tol: float = same(Run, "tol", help="Converged when typicalities change by less than this on average.", rare=False)
    stop: Literal["mean", "sum"] = _run("mean", "What is compared with the tolerance.")
    """What is compared with `tol`: the mean change of the memberships, or their sum as in F10's table I."""
    max_iter: int = same(Run, "max_iter", rare=False)

    def __post_init__(self) -> None:
        check_fields(self)

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint knows the run by."""
        return dict(vars(self))


def rejected_count(reject: float, n: int, name: str = "reject") -> int:
    """Return the number of objects to reject for a share of them above 0 and at most 0.5.

    >>> rejected_count(0.1, 290), rejected_count(0.05, 10)
    (29, 1)
    """
    check_number(name, reject, above=0, most=MOST_REJECTED, words=("auto",))
    return max(1, min(n - 1, math.ceil(float(reject) * n - 1e-9)))
