"""An order of the objects in which groups are blocks, from the leading eigenvectors of a Gaussian kernel.

One eigenvector cannot separate several groups (Q09, Weiss 1999): of k groups that are far from each other, the leading
k eigenvectors of the normalised kernel N = S A S, A = K - I, S = diag(A 1)^(-1/2), span the indicators of the groups
(Ng, Jordan and Weiss 2001). Each object is a row of these vectors, of length 1, and belongs to one of k nearly
orthogonal directions, which a QR decomposition with column pivoting finds (Damle, Minden and Ying 2019). The groups are
put in an order in which near ones are neighbours, and in each group the objects that point most clearly in its
direction come first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.linalg import qr
from scipy.spatial.distance import squareform

from dasrel.engine.relation import Relation, product_shape
from dasrel.engine.scan import scan_memory
from dasrel.errors import InputError
from dasrel.geometry.lanczos import Search, estimate_search, lanczos
from dasrel.util import Float, Index
from dasrel.util.limits import Range, memory_limit
from dasrel.util.text import count_text

MOST_VECTORS = 12
"""Eigenvectors among which the largest gap is looked for."""
WIDTH_SHARE = 1 / 6
"""The automatic width, as a share of the root mean square dissimilarity. With 1/8 to 1/3, groups in the plane, in ten
dimensions, of handwritten digits and of simulated communities became blocks; with 1/2 some did not."""
TOL, MAX_SCANS, TYPICAL_SCANS = 2e-3, 30, 10
"""Residuals of the eigenvectors; most scans of Lanczos, and those that it usually takes."""

ALONE = 1e-12
"""An object whose kernel with all others has a smaller sum belongs to no group more than to another."""


@dataclass(frozen=True, eq=False)
class SpectralOrder:
    """Objects in an order in which groups are blocks."""

    order: Index
    """Positions of the objects, first to last."""
    groups: Index
    """The group of each object, numbered in this order."""
    eigenvalues: Float
    """The highest ones of the normalised kernel, the first is 1; as many as there are groups lie above the gap."""
    width: float
    """Of the Gaussian kernel."""

    @property
    def n_groups(self) -> int:
        """Number of groups, which is the number of eigenvectors used."""
        return int(self.groups.max()) + 1


def spectral_order(
    relation: Relation, *, width: float | None = None, n_vectors: int | None = None, memory: int | str | None = None
) -> SpectralOrder:
    """Return an order of the objects in which groups are blocks; see the module.

    Parameters
    ----------
    width
        Of the Gaussian kernel exp(-D / (2 width^2)); by default a sixth of the root mean square dissimilarity.
    n_vectors
        Number of eigenvectors and groups; by default that with the largest gap to the next eigenvalue, 2 to 12.

    Cost: a scan for the width if it is not given, one for the row sums, those of Lanczos (about ten, at most 30), and
    one for the dissimilarities between groups.
    """
    n = relation.n_objects
    if n_vectors is not None and not 1 <= n_vectors <= n:
        raise InputError(
            f"{count_text(n_vectors, 'eigenvector')} of {count_text(n, 'object')}", remedy=f"give 1 to {n}"
        )
    width = automatic_width(relation, memory=memory) if width is None else width
    if n < 3 or n_vectors == 1 or not width:  # nothing to tell apart
        return SpectralOrder(np.arange(n), np.zeros(n, np.intp), np.ones(1), width)
    kernel = relation.gaussian(width)
    degrees = kernel.row_sums(memory=memory) - 1
    scale = np.zeros((n, 1))  # and 0 for objects whose kernel with all others is 0
    scale[degrees > ALONE, 0] = 1 / np.sqrt(degrees[degrees > ALONE])

    def normalised(V: Float) -> Float:
        product: Float = scale * (kernel.matmat(scale * V, memory=memory) - scale * V)
        return product

    pairs = lanczos(normalised, n, search=_search(n, n_vectors)).highest
    assert pairs.vectors is not None
    count = n_vectors or int(np.argmax(-np.diff(pairs.values)[1:])) + 2
    rows = pairs.vectors[:, :count]
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
    group, strength = _directions(rows)
    _, group = np.unique(group, return_inverse=True)
    rank = _ranks(relation, group, memory)
    order = np.lexsort((-strength, rank[group])).astype(np.intp)
    return SpectralOrder(order, rank[group].astype(np.intp), pairs.values, width)


def automatic_width(relation: Relation, *, memory: int | str | None = None) -> float:
    """Return a sixth of the root mean square dissimilarity; 0 if all objects are equal. Cost: one scan."""
    return float(np.sqrt(max(relation.mean(memory=memory), 0.0))) * WIDTH_SHARE


def spectral_order_cost(
    relation: Relation, n_vectors: int | None, *, width: bool, memory: int | str | None
) -> tuple[Range, int]:
    """Return the scans of `spectral_order`, and the bytes that it needs; `width`: whether one is given."""
    n, source = relation.n_objects, relation.matrix
    search = _search(n, n_vectors)
    basis, most = estimate_search(search, n, metric=False)
    other = 2 if width else 3
    shape = product_shape(source, [(relation.gaussian(1.0).view, search.block)])
    needed = basis + scan_memory(source, [shape], memory_limit(memory))
    return Range(other, other + min(TYPICAL_SCANS, most), other + most), needed


def _search(n: int, n_vectors: int | None) -> Search:
    count = min(n_vectors or MOST_VECTORS + 1, n)
    # Of groups far from each other all eigenvalues are 1: a block must be as wide as there are of them.
    return Search(lowest=0, highest=count, tol=TOL, max_scans=MAX_SCANS, block=count, centre=False, vectors=True)


def _directions(rows: Float) -> tuple[Index, Float]:
    """Return, of each row of length 1, the direction that it belongs to, and its component in it."""
    count = rows.shape[1]
    _, _, pivots = qr(rows.T, mode="economic", pivoting=True)
    left, _, right = np.linalg.svd(rows[pivots[:count]].T)  # the orthogonal matrix nearest to the chosen rows
    components = np.abs(rows @ (left @ right))
    group = components.argmax(axis=1).astype(np.intp)
    return group, components[np.arange(len(rows)), group]


def _ranks(relation: Relation, group: Index, memory: int | str | None) -> Index:
    """Return the place of each group in an order in which near groups are neighbours, the largest end first."""
    sizes = np.bincount(group)
    count = sizes.size
    if count < 3:
        return np.argsort(np.argsort(-sizes, kind="stable"))
    weights = np.zeros((count, len(group)))
    weights[group, np.arange(len(group))] = 1 / sizes[group]
    apart = relation.left(weights, memory=memory) @ weights.T
    apart = (apart + apart.T) / 2
    np.fill_diagonal(apart, 0)
    pairs = squareform(np.maximum(apart, 0), checks=False)
    places = leaves_list(optimal_leaf_ordering(linkage(pairs, "average"), pairs))
    if sizes[places[-1]] > sizes[places[0]]:
        places = places[::-1]
    rank = np.empty(count, np.intp)
    rank[places] = np.arange(count)
    return rank
