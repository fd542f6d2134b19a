"""Parameters of searches for eigenvalues: spectra, principal coordinates, Euclideanisation."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from functools import partial
from typing import Literal

from dasrel.errors import InputError
from dasrel.names import FITS, METHODS, MethodName
from dasrel.util.option_fields import MEMORY, SEARCH, option
from dasrel.util.text import shown

_search = partial(option, panel=SEARCH)
_tree = partial(option, panel="Hierarchical clustering")
_max_scans = partial(_search, help="Maximum number of scans; then the best result so far, with a warning.", least=1)


@dataclass(frozen=True)
class SpectrumParameters:
    """How to search the ends of a spectrum."""

    n_values: int = _search(8, "Eigenvalues shown at each end.", name="values", metavar="K", least=1)
    tol: float = _search(1e-3, "Residual of the outermost eigenvalues, relative to them.", above=0)
    max_scans: int = _max_scans(100)
    memory: int | str | None = _search(None, MEMORY, typed=str, metavar="SIZE")


@dataclass(frozen=True)
class EmbedParameters:
    """How to compute principal coordinates."""

    n_components: int = _search(10, "Number of axes.", name="components", metavar="K", least=1)
    correction: Literal["spread"] | None = _search(
        None, "Add a constant to all pairs first (Lingoes), so that no eigenvalue is negative."
    )
    tol: float = _search(1e-3, "Residual of the axes' eigenvalues, relative to them.", above=0, below=1)
    max_scans: int = _max_scans(100)
    memory: int | str | None = _search(None, MEMORY, typed=str, metavar="SIZE")

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise InputError(f"n_components is at least 1, not {self.n_components}")
        if self.correction not in (None, "spread"):
            raise InputError(f"correction is {shown(self.correction)!r}", remedy="use spread, or none")


@dataclass(frozen=True)
class EuclideanizeParameters:
    """How to make a matrix Euclidean."""

    method: MethodName = _search(MISSING, "The change that makes the matrix Euclidean.")
    alpha: float | None = _search(None, "Parameter of power, exponential and log; searched for if not given.", above=0)
    floor_zeros: float | None = _search(
        None, "Raise squared dissimilarities below VALUE to VALUE.", metavar="VALUE", above=0
    )
    tol: float = _search(1e-4, "Residual of the eigenvalue, relative to it.", above=0, below=1)
    max_scans: int = _max_scans(200)
    memory: int | str | None = _search(None, MEMORY, typed=str, metavar="SIZE")

    def __post_init__(self) -> None:
        method, alpha, floor_zeros = self.method, self.alpha, self.floor_zeros
        if method not in METHODS:
            raise InputError(f"method is {shown(method)!r}", remedy=f"use one of {', '.join(METHODS)}")
        if alpha is not None:
            if method not in FITS:
                raise InputError(f"alpha is for {', '.join(FITS)}; the method {method} has no parameter")
            if not (math.isfinite(alpha) and alpha > 0 and (alpha <= 1 or method == "exponential")):
                bounds = "above 0" if method == "exponential" else "above 0 and at most 1"
                raise InputError(f"alpha of the method {method} is {bounds}, not {alpha}")
        if floor_zeros is not None and not (math.isfinite(floor_zeros) and floor_zeros > 0):
            raise InputError(f"floor_zeros is a squared dissimilarity above 0, not {floor_zeros}")
        if not 0 < self.tol < 1 or self.max_scans < 1:
            raise InputError(f"tol lies between 0 and 1 and max_scans is at least 1, not {self.tol}, {self.max_scans}")
