"""The values of pairs in the units of a dendrogram: as stored, squared, or similarities as they are.

units                    kind distance    squared-distance    similarity, kernel       relation D
distance                 d                -                   -                        sqrt(D), of distances
squared dissimilarity    d^2              D                   s_ii + s_jj - 2 s_ij     D
similarity               -                -                   s                        -
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.errors import InputError
from dasrel.kernels.forest import mirrored
from dasrel.kernels.products import View
from dasrel.names import is_similarity
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from dasrel.store.matrix import Matrix
from dasrel.util import Array

DISTANCE, SQUARED, SIMILARITY = "distance", "squared dissimilarity", "similarity"


@dataclass(frozen=True)
class PairValues:
    """Makes values of pairs from tiles. Get one with `pair_values`."""

    matrix: Matrix | ArrayMatrix
    units: str
    relation: Relation | None = None
    """Where the matrix is seen as a relation that is not its plain view."""
    may_be_negative: bool = False
    """Whether a squared dissimilarity below 0, which only some similarities and relations have, stays as it is."""

    @property
    def is_similarity(self) -> bool:
        """Whether larger means more similar."""
        return self.units == SIMILARITY

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must find again. Cost: no scan; reads the records of the tiles."""
        seen = self.matrix if self.relation is None else self.relation
        return {"values": seen.identity(), "units": self.units}

    def largest(self) -> float:
        """Return an upper bound of the size of the values. Cost: no scan."""
        audit = self.matrix.audit
        if self.units == SQUARED or self.relation is not None:
            bound = (self.relation or Relation(self.matrix, View(self.matrix.kind))).largest()
            return bound if self.units == SQUARED else float(np.sqrt(bound))
        return max((abs(audit[name]) for name in ("minimum", "maximum") if audit[name] is not None), default=0.0)

    def block(self, tile: Array, rows: slice, columns: slice) -> Array:
        """Return the values of the tile of these objects; that of plain values is the tile itself.

        Diagonal tiles are symmetric to the last bit.
        """
        kind = self.matrix.kind
        if self.relation is not None:
            values = self.relation.block(tile, rows, columns)
        elif self.units == SIMILARITY or (self.units == DISTANCE) or kind == "squared-distance":
            values = tile
        else:
            own = self.matrix.diagonal
            values = View(kind).apply(
                tile, np.empty_like(tile, order="C"), row_self=None if own is None else own[rows],
                column_self=None if own is None else own[columns],
            )  # fmt: skip
        if self.units == SQUARED and not self.may_be_negative and (self.relation or is_similarity(kind)):
            values = np.maximum(values, 0)
        if self.units == DISTANCE and self.relation is not None:
            values = np.sqrt(np.maximum(values, 0))
        return mirrored(values) if rows == columns else values


def pair_values(matrix: Any, *, kind: str | None = None, squared: bool = False, direct: bool = False) -> PairValues:
    """Return the values of the pairs of a matrix or a relation; see the module.

    Parameters
    ----------
    squared
        Whether distances are squared.
    direct
        Whether similarities are used as they are.
    """
    if isinstance(matrix, Relation):
        relation = as_dissimilarity(matrix, kind)
        if direct:
            raise InputError("a relation has dissimilarities", remedy="give the matrix itself to use its similarities")
        units = DISTANCE if relation.matrix.kind == "distance" and not squared else SQUARED
        return PairValues(relation.matrix, units, relation, may_be_negative=squared)
    source = as_matrix(matrix, kind=kind)
    if direct and not is_similarity(source.kind):
        raise InputError(f"the matrix is of kind {source.kind}: its values are no similarities")
    if direct:
        return PairValues(source, SIMILARITY)
    units = DISTANCE if source.kind == "distance" and not squared else SQUARED
    return PairValues(source, units, may_be_negative=squared)
