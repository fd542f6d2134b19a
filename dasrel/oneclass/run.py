"""What to run to find outliers: `OneClassRun`, one cluster in kernel space (F10) with its parameters.

Its fields are the only place where these parameters have their defaults, bounds and help. Neither NumPy nor Dask is
imported, so that the command line starts quickly.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from dasrel.errors import InputError
from dasrel.partition.run import Run
from dasrel.util.option_fields import RUNNING, check_fields, option, same
from dasrel.util.text import count_text, shown

MOST_REJECTED = 0.5
"""The largest share of the objects that can be outliers."""
_run = partial(option, panel=RUNNING)


@dataclass(frozen=True)
class OneClassRun:
    """One cluster in kernel space: its parameters. The matrix is seen through a Gaussian kernel of `width`."""

    width: float | Literal["auto"] | None = _run(
        "auto", "Widths of the Gaussian kernel; none takes the matrix itself as a kernel.", metavar="W", above=0
    )
    """sigma, on the scale of the dissimilarities; "auto" is the one whose kernel density predicts each object best from
    the others (see `dasrel.geometry.kernel_width`), and for kinds similarity and kernel None: the matrix itself is the
    kernel."""
    eta_scale: float = _run(1.0, "gamma: large values give kernel densities.", metavar="G", above=0)
    """gamma: small values follow the densest part of the data, large ones give kernel density estimates."""
    eta_refit: bool = _run(False, "Estimate eta again at every iteration.")
    """Estimate eta (27) at every iteration instead of once."""
    constrained: bool = _run(False, "Scale the memberships to sum 1 (49). The order of the objects does not change.")
    tol: float = same(
        Run, "tol", default=1e-5, help="Converged when typicalities change by less than this on average.", rare=False
    )
    stop: Literal["mean", "sum"] = _run("mean", "What is compared with the tolerance.")
    """What is compared with `tol`: the mean change of the memberships, or their sum as in F10's table I."""
    max_iter: int = same(Run, "max_iter", rare=False)

    def __post_init__(self) -> None:
        check_fields(self)

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint knows the run by."""
        return dict(vars(self))


def check_reject(reject: Any, name: str = "reject") -> None:
    """Raise unless it is a share above 0 and at most 0.5, a whole number of objects, or "auto"."""
    whole = isinstance(reject, numbers.Integral) and not isinstance(reject, bool)
    share = isinstance(reject, numbers.Real) and not whole and 0 < float(reject) <= MOST_REJECTED
    if isinstance(reject, bool) or not (share or (whole and int(reject) >= 1) or reject == "auto"):
        raise InputError(
            f"{name} is {shown(reject)}",
            remedy='give a share above 0 and at most 0.5, a whole number of objects such as 12, or "auto"',
            option=name,
        )


def rejected_count(reject: float, n: int, name: str = "reject") -> int:
    """Return the number of objects to reject: a whole number is the count, a number below 1 a share.

    >>> rejected_count(0.1, 290), rejected_count(0.05, 10), rejected_count(12, 290), rejected_count(1, 290)
    (29, 1, 12, 1)
    """
    check_reject(reject, name)
    if isinstance(reject, numbers.Integral):
        if reject > max(1, MOST_REJECTED * n):
            raise InputError(
                f"{name} is {reject} of {count_text(n, 'object')}",
                remedy=f"give at most {max(1, n // 2):,}, half of them",
                option=name,
            )
        return min(n - 1, int(reject))
    return max(1, min(n - 1, math.ceil(float(reject) * n - 1e-9)))
