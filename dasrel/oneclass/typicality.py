"""How typical objects are of one cluster in kernel space (F10): memberships, outliers, models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.relation import Relation
from dasrel.errors import InputError
from dasrel.oneclass.run import OneClassRun, rejected_count
from dasrel.partition.model import Model
from dasrel.util import Float

Mask = NDArray[np.bool_]
LEVEL = 0.01
"""The chance, at most, that a sample with an exponential tail has outliers by itself; see `standing_out`."""
MOST_STANDING_OUT = 0.1
"""The largest share of the objects that can stand out from the others."""
AGREED = 0.5
"""The least Jaccard coefficient of the least typical objects with those that stand out, for "auto" to reject any."""


@dataclass(frozen=True, eq=False)
class Typicality:
    """The result of one run: how typical every object is."""

    run: OneClassRun
    """With the width that was used."""
    log_typicality: Float
    """log u, (n,): at most 0; it does not underflow."""
    weights: Float
    """The centre v: weights of the objects, (n,), sum 1. `log_typicality` are the distances to it."""
    half: float
    """v'D v / 2 of the squared distances D in kernel space."""
    eta: float
    converged: bool
    n_iter: int
    history: tuple[float, ...]
    """The change of the memberships in every iteration, as it is compared with `tol`."""
    neighbour_distances: Float
    """(n,) distances to the k-th nearest neighbour, square roots of D: a score that needs no width."""
    n_neighbours: int
    """Which neighbour that is."""
    negative_distances: int = 0
    """Squared distances below zero that were set to zero: the matrix is not Euclidean, or the kernel not definite."""

    @property
    def typicality(self) -> Float:
        """The memberships u, (n,), from 0 to 1."""
        u: Float = np.exp(self.log_typicality)
        return u

    def kernel_sum_of(self, log_typicality: Any) -> Any:
        """Return (K v)(x) of a point of this log typicality: d = 2 - 2 (K v)(x) - half."""
        return (2 - self.half + self.eta * (log_typicality - self._log_scale)) / 2

    def log_typicality_at(self, kernel_sum: Any) -> Any:
        """Return the log typicality of a point with this (K v)(x)."""
        return (2 * kernel_sum - 2 + self.half) / self.eta + self._log_scale if self.eta > 0 else -np.inf

    @property
    def density(self) -> Float:
        """f = u - u(far) (33), (n,), far a point away from all objects. Not a probability: its integral is not 1."""
        if self.run.width is None:
            raise InputError("a density needs a width: without one, no point is away from all objects")
        far = np.exp(self._log_scale - (2 - self.half) / self.eta)
        f: Float = self.typicality - far
        return f

    @property
    def _log_scale(self) -> float:
        """The logarithm of what unconstrained memberships are multiplied by."""
        return -self._log_sum if self.run.constrained else 0.0

    _log_sum: float = 0.0
    """log sum u of the unconstrained memberships; of constrained runs only."""

    def outliers(self, reject: float | Literal["auto"] = "auto") -> Cut:
        """Return the objects that are rejected: the least typical ones, of equal ones those later in the matrix first.

        Parameters
        ----------
        reject
            A whole number is how many are rejected, at least 1 and at most half of them; a number below 1 is their
            share, at most 0.5. "auto" rejects the least typical objects as far as these are those that stand out by
            their distance to the k-th neighbour, judged by the gaps between the largest distances (`standing_out`);
            none where no object stands out, or where less than half of these and those agree.

        Cost: no scan.
        """
        log_u = self.log_typicality
        order = np.lexsort((-np.arange(len(log_u)), log_u))
        far = np.lexsort((-np.arange(len(log_u)), -self.neighbour_distances))
        alone = standing_out(self.neighbour_distances)
        count = _agreeing(order, far[:alone]) if isinstance(reject, str) else rejected_count(reject, len(log_u))
        rejected = np.zeros(len(log_u), dtype=bool)
        rejected[order[:count]] = True
        inside = float(log_u[order[count]])
        # Without outliers, new objects are rejected that are clearly below all that are known.
        below = float(log_u[order[count - 1]]) if count else inside - 2e-9 * (1 + abs(inside))
        threshold = (inside + below) / 2
        return Cut(threshold, rejected, order, far, alone)

    def model(self, relation: Relation, threshold: float | None = None) -> Model:
        """Return what predicts the typicality of new objects from their rows (28); see `Model.score_samples`."""
        source, beta, half = relation.matrix, relation.beta, self.half
        steps = relation.view.steps
        if self.run.width is not None:  # a spread is part of what the kernel sees
            steps = (*steps, *((("spread", beta),) if beta else ()), ("kernel-distance", float(self.run.width)))
            beta = 0.0
        half -= beta / 2 * (1 - float(self.weights @ self.weights))
        own = source.diagonal
        return Model(
            "pcm2", self.weights[None], np.array([half]), source.kind, np.asarray(source.ids),
            beta=beta, eta=np.array([self.eta]), steps=steps,
            diagonal=None if own is None else np.asarray(own, dtype=np.float64), has_terms=bool(relation.terms),
            threshold=None if threshold is None else threshold - self._log_scale,
        )  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Return plain values for a table."""
        u = self.typicality
        return {
            "width": self.run.width, "eta_scale": self.run.eta_scale, "eta": self.eta,
            "converged": self.converged, "n_iter": self.n_iter, "typicality_min": float(u.min()),
            "typicality_median": float(np.median(u)), "typicality_max": float(u.max()),
            "negative_distances": self.negative_distances,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Cut:
    """The objects above and below a threshold of typicality (36)."""

    threshold: float
    """log alpha, midway between the log typicalities of the last rejected and the first kept object."""
    rejected: Mask
    """(n,)"""
    order: NDArray[np.intp]
    """Objects by increasing typicality."""
    far: NDArray[np.intp]
    """Objects by decreasing distance to their k-th neighbour."""
    alone: int
    """How many of these stand out by it."""

    @property
    def alpha(self) -> float:
        """The threshold as a typicality."""
        return float(np.exp(self.threshold))

    @property
    def ranks(self) -> NDArray[np.intp]:
        """The rank of every object: 1 is the least typical."""
        return _ranks(self.order)

    @property
    def neighbour_ranks(self) -> NDArray[np.intp]:
        """The rank of every object by its distance to the k-th neighbour: 1 is the farthest."""
        return _ranks(self.far)

    def agreement(self) -> tuple[int, int]:
        """Return how many of the least typical objects are as many of the farthest, and how many were compared.

        Compared are the rejected ones, or if there are none a twentieth of all.
        """
        count = int(self.rejected.sum()) or -(-len(self.order) // 20)
        return len(np.intersect1d(self.order[:count], self.far[:count])), count


def standing_out(distances: Float) -> int:
    """Return how many objects stand out by their distances to neighbours: those above the last gap that is too wide.

    Sorted, j times the gap between the j-th and the next largest of n values of an exponential tail is an exponential
    variable, whose mean is the scale of the tail (Renyi 1953). A gap is too wide if that is above log(m / 0.01) means,
    m the number of gaps that are looked at, one for each tenth object: with such a tail it happens in one of a hundred
    samples. The scale is the widest of three that the inner part of the distances gives, from its quantiles 0.25, 0.5,
    0.75 and 0.9, so that a tenth of outliers does not change it. Tails of Gaussian and uniform data are shorter, and
    give fewer.

    >>> standing_out(np.array([*np.linspace(1, 2, 50), 9.0, 10.0]))
    2
    """
    low, middle, high, tail = np.quantile(distances, [0.25, 0.5, 0.75, 0.9]).tolist()
    scale = max((tail - middle) / np.log(5), (tail - high) / np.log(2.5), (high - low) / np.log(3))
    most = max(1, int(MOST_STANDING_OUT * len(distances)))
    largest = np.sort(distances)[::-1][: most + 1]
    gaps = largest[:-1] - largest[1:]
    rounding = 1e-6 * largest[0]
    wide = (np.arange(1, len(gaps) + 1) * gaps > np.log(most / LEVEL) * scale) & (gaps > rounding)
    return int(np.flatnonzero(wide)[-1]) + 1 if wide.any() else 0


def _agreeing(order: NDArray[np.intp], alone: NDArray[np.intp]) -> int:
    """Return the number of least typical objects that agree best with those that stand out, or 0 if few do."""
    if not len(alone):
        return 0
    most = min(2 * len(alone), len(order) - 1)
    both = np.cumsum(np.isin(order[:most], alone))
    jaccard = both / (len(alone) + np.arange(1, most + 1) - both)
    best = int(jaccard.argmax())
    return best + 1 if jaccard[best] >= AGREED else 0


def _ranks(order: NDArray[np.intp]) -> NDArray[np.intp]:
    ranks = np.empty(len(order), dtype=np.intp)
    ranks[order] = np.arange(1, len(order) + 1)
    return ranks
