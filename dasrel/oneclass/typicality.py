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
FAR = 3.0
"""Interquartile ranges below the first quartile, from which an object is an outlier by itself (Tukey's far out)."""
ALONE = 1e-6
"""The least density of other objects, relative to an object's own, that can be distinguished from none."""


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
    negative_distances: int = 0
    """Squared distances below zero that were set to zero: the matrix is not Euclidean, or the kernel not definite."""

    @property
    def typicality(self) -> Float:
        """The memberships u, (n,), from 0 to 1."""
        u: Float = np.exp(self.log_typicality)
        return u

    @property
    def kernel_sums(self) -> Float:
        """(K v)_h of every object, for a Gaussian kernel: a density with the weights v (31)."""
        sums: Float = self.kernel_sum_of(self.log_typicality)
        return sums

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
        """Return the objects that are rejected: the `reject` n of lowest typicality, or those far below the others.

        Of objects with equal typicality at the cut, those later in the matrix are rejected first. "auto" rejects as
        many as have a density of other objects, (K v)_h - v_h, that is less than a tenth of its first quartile and, in
        logarithms, more than three interquartile ranges below it; without a width, as have a log typicality that is
        more than three interquartile ranges below its first quartile. Cost: no scan.
        """
        log_u = self.log_typicality
        order = np.lexsort((-np.arange(len(log_u)), log_u))
        count, below = 0, float("inf")
        if isinstance(reject, str):
            score, least = log_u, 0.0
            if self.run.width is not None:
                score = np.log(np.maximum(self.kernel_sums - self.weights, ALONE * self.weights))
                least = np.log(10)
            low, high = np.quantile(score, [0.25, 0.75])
            fence = float(low - max(FAR * (high - low), least))
            count = min(int((score < fence).sum()), len(log_u) - 1)
            below = fence if self.run.width is None else self.log_typicality_at(np.exp(fence))
        else:
            count = rejected_count(reject, len(log_u))
        rejected = np.zeros(len(log_u), dtype=bool)
        rejected[order[:count]] = True
        inside = float(log_u[order[count]])
        if count:
            threshold = (inside + float(log_u[order[count - 1]])) / 2
        else:  # for new objects; clearly below all that are known
            threshold = min(below, inside - 1e-9 * (1 + abs(inside)))
        return Cut(threshold, rejected, order)

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

    @property
    def alpha(self) -> float:
        """The threshold as a typicality."""
        return float(np.exp(self.threshold))

    @property
    def ranks(self) -> NDArray[np.intp]:
        """The rank of every object: 1 is the least typical."""
        ranks = np.empty(len(self.order), dtype=np.intp)
        ranks[self.order] = np.arange(1, len(self.order) + 1)
        return ranks
