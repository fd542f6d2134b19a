"""Widths of a Gaussian kernel that show something, from the nearest neighbours of the objects.

The automatic width is the one whose kernel density predicts each object best from the others (likelihood of leave one
out). The density of n points is f_h = sum over j != h of exp(-D_hj / (2 sigma^2)) / ((n - 1) (sigma sqrt(2 pi))^p), so
that up to a constant its mean logarithm is mean log (sum of kernels) - p log sigma. It needs no features, but their
number p: that is replaced by the intrinsic dimension, which neighbours tell (Levina and Bickel 2004).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dasrel.engine.neighbours import nearest_neighbours
from dasrel.engine.relation import Relation
from dasrel.errors import InputError
from dasrel.util import Float
from dasrel.util.text import some

SEEN = 1e-4
"""The least that the kernel of equal weights must differ from that of separate, or of equal, objects."""
NEIGHBOURS = 20
"""The neighbour whose distance is a score of its own, where there are enough objects; see `neighbour_count`."""
COPY = 1e-12
"""What the distance to a copy counts as in the dimension, relative to that of the last neighbour."""
TRIED = tuple(2 ** (k / 2) for k in range(-6, 5))
"""Widths that are compared for "auto", as multiples of `Scale.typical`."""
LEFT_OUT = 0.05
"""Share of the objects, those of least density, that do not count in the likelihood: perhaps outliers."""
COMPANY = 2.0
"""The least kernel of others that the median object must see, next to its own of 1: with less, typicalities hardly
differ, and float32 cannot order them."""
NONE = 1e-6
"""The least sum of kernels that can be distinguished from none."""


@dataclass(frozen=True)
class Scale:
    """What nearest neighbours say of widths; distances are square roots of D."""

    nearest: float
    """The smallest distance above 0 between an object and its nearest neighbour."""
    typical: float
    """The 0.9-quantile of the distances to the nearest neighbour: nine objects in ten have one nearer."""
    largest: float
    """A bound of all distances."""
    dimension: float | None = None
    """The intrinsic dimension, by the distances to the first neighbours; None where these do not tell."""

    @property
    def usable(self) -> tuple[float, float]:
        """Widths below the first see no neighbours, widths above the second see all objects as equal."""
        return self.nearest / 4, 10 * self.largest

    @property
    def tried(self) -> list[float]:
        """The widths that are compared for "auto"."""
        return [factor * self.typical for factor in TRIED]


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The distances of objects to one of their nearest neighbours: large ones belong to objects that are alone."""

    distances: Float
    """(n,) square roots of D."""
    k: int
    """Which neighbour it is, 1 for the nearest."""
    scale: Scale


def neighbour_count(n: int) -> int:
    """Return which neighbour's distance is the score of n objects: the 20th, of fewer than 81 objects an earlier one.

    A neighbour among the nearest quarter: outliers that are near each other are further from it, others are not.

    >>> neighbour_count(1000), neighbour_count(65), neighbour_count(3)
    (20, 16, 1)
    """
    return max(1, min(NEIGHBOURS, (n - 1) // 4))


def neighbourhood_of(relation: Relation, k: int | None = None, *, memory: int | str | None = None) -> Neighbourhood:
    """Measure the distances of objects to their k-th nearest neighbours, by default `neighbour_count`.

    Cost: one scan; 24 k n bytes.
    """
    k = neighbour_count(relation.n_objects) if k is None else k
    squared = nearest_neighbours(relation, k, memory=memory).squared
    distances = np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)
    return Neighbourhood(distances[:, -1].copy(), k, _scale(relation, distances))


def scale_of(relation: Relation, *, memory: int | str | None = None) -> Scale:
    """Measure the distances of objects to their nearest neighbours. Cost: one scan."""
    return neighbourhood_of(relation, 1, memory=memory).scale


def _scale(relation: Relation, distances: Float) -> Scale:
    nearest = distances[:, 0]
    positive = nearest[nearest > 0]
    largest = float(np.sqrt(relation.largest()))
    dimension = intrinsic_dimension(distances)
    if not positive.size:  # each object has a copy: the distances to others are not known, but bounded
        value = largest or 1.0
        return Scale(value, value / 2, value, dimension)
    typical = float(np.quantile(nearest, 0.9))
    return Scale(float(positive.min()), typical if typical > 0 else float(positive.min()), largest, dimension)


def intrinsic_dimension(distances: Float) -> float | None:
    """Return the maximum-likelihood dimension from distances to neighbours, (n, k), nearest first.

    The mean of log (T_k / T_j) over the neighbours j < k of all objects is the inverse of the dimension (Levina and
    Bickel 2004, averaged as by MacKay and Ghahramani 2005). Copies are a place of dimension 0, and make it small.
    """
    apart = distances[np.isfinite(distances[:, -1]) & (distances[:, -1] > 0)]
    if apart.shape[1] < 2 or not len(apart):
        return None
    total, last = 0.0, apart[:, -1]
    for column in apart[:, :-1].T:
        total -= float(np.log(np.maximum(column / last, COPY)).sum())
    mean = total / (len(apart) * (apart.shape[1] - 1))
    return 1.0 / mean if mean > 1e-9 else None


def predicts(sums: Float, width: float, dimension: float) -> float:
    """Return how well a density predicts objects from the others: the mean log likelihood, up to a constant.

    Parameters
    ----------
    sums
        For each object the sum of kernels of this width with the others, (n,).
    """
    logarithms = np.sort(np.log(np.maximum(sums, NONE)))
    return float(logarithms[int(LEFT_OUT * len(logarithms)) :].mean() - dimension * np.log(width))


@dataclass(frozen=True)
class WidthTrial:
    """How one width did among those that are compared for "auto"."""

    width: float
    likelihood: float
    """Of leaving one out, see `predicts`."""
    company: float
    """The kernel of others that the median object sees."""
    usable: bool
    """Whether some objects see each other, and not all are equal."""


def try_width(width: float, density: Float, scale: Scale) -> WidthTrial:
    """Judge a width by K v of equal weights 1/n, (n,)."""
    sums = len(density) * density - 1
    likelihood = predicts(sums, width, scale.dimension or 0.0)
    usable = not (_unseen(density, len(density)) or _equal(density))
    return WidthTrial(width, likelihood, float(np.median(sums)), usable)


def chosen_width(trials: list[WidthTrial], scale: Scale) -> float:
    """Return the width of the largest likelihood, among those at which the median object sees others.

    Without a dimension, and where no width is usable, it is `Scale.typical`.
    """
    usable = [trial for trial in trials if trial.usable]
    if scale.dimension is None or not usable:
        return scale.typical
    seen = [trial for trial in usable if trial.company >= COMPANY]
    return max(seen or usable, key=lambda trial: trial.likelihood).width


def _unseen(density: Float, n: int) -> bool:
    return bool(n * density.max() - 1 < SEEN)


def _equal(density: Float) -> bool:
    return bool(1 - density.min() < SEEN**2)


def check_widths(relation: Relation, first: dict[float, Float], *, memory: int | str | None = None) -> None:
    """Raise if a width is so small that no object sees another, or so large that all are equal.

    Parameters
    ----------
    first
        For each width, K v of equal weights 1/n, or the smallest and the largest of it.

    Cost: no scan; where it raises, one, to name usable widths.
    """
    if relation.largest() == 0:
        return
    small = [width for width, Y in first.items() if _unseen(Y, relation.n_objects)]
    large = [width for width, Y in first.items() if _equal(Y)]
    if not (small or large):
        return
    low, high = scale_of(relation, memory=memory).usable
    wrong = [*(f"{w:g} (no object sees another)" for w in small), *(f"{w:g} (all objects look equal)" for w in large)]
    raise InputError(
        f"{'a width' if len(wrong) == 1 else 'widths'} cannot be used: {some(wrong)}",
        remedy=f"say {{width}} from {low:.3g} to {high:.3g}, or auto",
    )
