"""Widths of a Gaussian kernel that show something, from the distances of objects to their nearest neighbours."""

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


@dataclass(frozen=True)
class Scale:
    """What nearest neighbours say of widths; distances are square roots of D."""

    nearest: float
    """The smallest distance above 0 between an object and its nearest neighbour."""
    typical: float
    """The 0.9-quantile of the distances to the nearest neighbour: nine objects in ten have one nearer."""
    largest: float
    """A bound of all distances."""

    @property
    def width(self) -> float:
        """The width for "auto": `typical`, so that nearly every object has a neighbour within the kernel."""
        return self.typical

    @property
    def usable(self) -> tuple[float, float]:
        """Widths below the first see no neighbours, widths above the second see all objects as equal."""
        return self.nearest / 4, 10 * self.largest


def scale_of(relation: Relation, *, memory: int | str | None = None) -> Scale:
    """Measure the distances of objects to their nearest neighbours. Cost: one scan."""
    squared = nearest_neighbours(relation, memory=memory).squared[:, 0]
    nearest = np.sqrt(np.maximum(squared, 0.0))
    positive = nearest[nearest > 0]
    largest = float(np.sqrt(relation.largest()))
    if not positive.size:  # each object has a copy: the distances to others are not known, but bounded
        value = largest or 1.0
        return Scale(value, value / 2, value)
    typical = float(np.quantile(nearest, 0.9))
    return Scale(float(positive.min()), typical if typical > 0 else float(positive.min()), largest)


def check_widths(relation: Relation, first: dict[float, Float], *, memory: int | str | None = None) -> None:
    """Raise if a width is so small that no object sees another, or so large that all are equal.

    Parameters
    ----------
    first
        For each width, K v of equal weights 1/n.

    Cost: no scan; where it raises, one, to name usable widths.
    """
    n = relation.n_objects
    if relation.largest() == 0:
        return
    small = [width for width, Y in first.items() if n * Y.max() - 1 < SEEN]
    large = [width for width, Y in first.items() if 1 - Y.min() < SEEN**2]
    if not (small or large):
        return
    low, high = scale_of(relation, memory=memory).usable
    wrong = [*(f"{w:g} (no object sees another)" for w in small), *(f"{w:g} (all objects look equal)" for w in large)]
    raise InputError(
        f"{'a width' if len(wrong) == 1 else 'widths'} cannot be used: {some(wrong)}",
        remedy=f"say {{width}} from {low:.3g} to {high:.3g}, or auto",
    )
