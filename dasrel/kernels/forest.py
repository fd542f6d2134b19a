"""Minimum spanning forest of a tile, and the merge of two forests. Pure functions.

The minimum spanning tree of a graph is that of the union of its parts' trees, for any parts. Edges are ordered by
(weight, i, j), i < j, so no two are equal and there is one minimum spanning tree, however the matrix is cut into tiles.
A weight of 0 is an edge like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

from dasrel.kernels.products import View
from dasrel.kernels.transpose import Transpose
from dasrel.names import is_similarity

Array = NDArray[Any]
SMALL = 256  # objects of a tile below which Prim's algorithm is as fast as any
MOST_EDGES = 64  # edges per object that are sorted; without ties there are about seven


class Edges(NamedTuple):
    """Edges as three vectors."""

    weights: Array
    i: NDArray[np.int64]
    j: NDArray[np.int64]


@dataclass(frozen=True)
class Forest:
    """Edges without a cycle, sorted by (weight, i, j), i < j; and the largest weight of all pairs."""

    weights: Array
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    largest: tuple[float, int, int]
    """The largest weight of all pairs, not only of the edges, and the first pair (by i, then j) that has it."""

    def __sizeof__(self) -> int:
        return int(self.weights.nbytes + self.i.nbytes + self.j.nbytes)


NO_PAIR = (-np.inf, 0, 0)  # the largest weight of no pairs


def seen_as_dissimilarity(tile: Array, kind: str, row_self: Array | None, column_self: Array | None) -> Array:
    """Return the weights of a tile: distances or squared distances as stored, similarities as max(D, 0).

    Distances are not squared: the order is the same, and no two that differ become equal by rounding. Of a diagonal
    tile only the upper triangle counts: the other half may differ in the last bit (see `mirrored`).

    Cost: one copy of a tile of similarities.
    """
    if not is_similarity(kind):
        return tile
    values = View(kind).apply(tile, np.empty_like(tile, order="C"), row_self=row_self, column_self=column_self)
    return np.maximum(values, 0, out=values)


def raised(weights: Array, row_floors: Array, column_floors: Array) -> Array:
    """Return max(weight, floor of the row, floor of the column): mutual reachability, of core distances.

    Cost: one copy of the tile.
    """
    result: Array = np.maximum(weights, row_floors[:, None].astype(weights.dtype, copy=False))
    np.maximum(result, column_floors[None, :].astype(weights.dtype, copy=False), out=result)
    return result


def mirrored(tile: Array) -> Array:
    """Return a square tile whose lower triangle is the upper one, diagonal 0."""
    result = np.empty(tile.shape, dtype=tile.dtype)
    transpose = Transpose(tile.dtype)
    for a in range(0, len(tile), Transpose.SIDE):
        rows = slice(a, a + Transpose.SIDE)
        result[rows, a:] = tile[rows, a:]
        transpose(tile[rows, a:], result[a:, rows])
        corner = np.triu(tile[rows, rows], 1)
        result[rows, rows] = corner + corner.T
    return result


def spanning_tree(weights: Array, on_diagonal: bool) -> Edges:
    """Return the minimum spanning tree of one tile: edge weights, rows i and columns j within the tile, sorted.

    A diagonal tile is a complete graph of its objects, given by its upper triangle; another joins its rows to its
    columns only, and every row comes before every column in the order of objects.

    First only the light edges are used, so few that sorting them is cheap. Where they connect all objects, as in
    noise, they hold the tree. Where some objects stay apart, the tile is shrunk to the connected components. Where
    light edges are many (ties), or connect few objects, Prim's algorithm is used, in four times the time.

    Cost: three passes over the tile, two copies of it at most.
    """
    n = sum(weights.shape) if not on_diagonal else len(weights)
    if n >= SMALL:
        limit, most = _light(weights, n, on_diagonal)
        light = _where(weights, on_diagonal, most, lambda values, _: values <= limit)
        if light is not None:
            tree, labels = _kruskal(light, weights.shape, on_diagonal)
            parts = int(labels.max()) + 1
            if parts == 1:
                return tree
            if parts <= n // 4:
                weights = mirrored(weights) if on_diagonal else weights
                between = _edges_between(weights, on_diagonal, labels, parts)
                if between is not None:
                    return _kruskal(_joined(tree, between), weights.shape, on_diagonal)[0]
    return _prim(mirrored(weights) if on_diagonal else weights, on_diagonal)


def edge_memory(tile: int) -> int:
    """Return the most bytes that a tile's edges take while they are found and sorted, copies of the tile excluded."""
    return 2 * tile * MOST_EDGES * 100 + 2 * 2**20


def _light(weights: Array, n: int, on_diagonal: bool) -> tuple[Any, int]:
    """Return a weight with about ln(n) + 4 edges per object up to it, enough to connect noise; and the most edges."""
    pairs = weights.size / 2 if on_diagonal else weights.size
    wanted = n / 2 * (np.log(n) + 4)
    sample = weights[:: max(1, len(weights) // 64)].ravel()
    place = min(sample.size - 1, int(sample.size * wanted / pairs))
    return np.partition(sample, place)[place], MOST_EDGES * n


def _where(
    weights: Array,
    on_diagonal: bool,
    most: int,
    test: Callable[[Array, Array], Array],
    rows: Array | None = None,
    columns: Array | None = None,
) -> Edges | None:
    """Return the edges that pass a test, among some rows and columns or all; None if there are more than `most`.

    The test receives the values of a band of rows, and the rows.
    """
    edges: list[tuple[Array, Array]] = []
    count = 0
    of = np.arange(len(weights)) if rows is None else rows
    for start in range(0, len(of), 64):
        band = of[start : start + 64]
        values = weights[start : start + 64] if rows is None else weights[band]
        values = values if columns is None else values.take(columns, axis=1)
        i, j = np.divmod(np.flatnonzero(test(values, band)), values.shape[1])
        i, j = band[i], j if columns is None else columns[j]
        if on_diagonal:
            above = i < j
            i, j = i[above], j[above]
        edges.append((i, j))
        count += i.size
        if count > most:
            return None
    i, j = (np.concatenate([part[k] for part in edges] or [of[:0]]) for k in (0, 1))
    return Edges(weights[i, j], i, j)


def _edges_between(weights: Array, on_diagonal: bool, labels: Array, parts: int) -> Edges | None:
    """Return all edges between parts that are in some minimum spanning tree: equal to the minimax path's heaviest edge.

    The tile is shrunk to the lightest weight between each two parts; the tree of the shrunk tile has the minimax paths.
    """
    of_rows, of_columns = (labels, labels) if on_diagonal else np.split(labels, [len(weights)])
    shrunk = _shrunk(Transpose(weights.dtype)(_shrunk(weights, of_rows, parts)), of_columns, parts)
    shrunk = np.minimum(shrunk, shrunk.T)
    tree = spanning_tree(shrunk, True)
    rank = np.arange(1.0, parts)  # not the weights: SciPy takes 0 for no edge
    graph = csr_array((rank, (tree.i, tree.j)), shape=(parts, parts))
    order, before = breadth_first_order(graph, 0, directed=False)
    place = np.empty(parts, dtype=np.int64)
    place[order] = np.arange(parts)
    minimax = np.full((parts, parts), -np.inf, dtype=weights.dtype)
    for k in range(1, parts):
        q = place[before[order[k]]]
        np.maximum(minimax[q, :k], shrunk[order[k], order[q]], out=minimax[k, :k])
        minimax[:k, k] = minimax[k, :k]
    row_place, column_place = place[of_rows], place[of_columns]

    def on_a_path(places: Array) -> Callable[[Array, Array], Array]:
        return lambda values, band: np.equal(values, minimax.take(row_place[band], axis=0).take(places, axis=1))

    # One part is usually nearly everything: its own rows against its own columns need not be tested.
    main = np.bincount(labels).argmax()
    most = MOST_EDGES * len(labels)
    other_rows, other_columns = np.flatnonzero(of_rows != main), np.flatnonzero(of_columns != main)
    first = _where(weights, on_diagonal, most, on_a_path(column_place), other_rows)
    rest = np.flatnonzero(of_rows == main)
    second = _where(weights, on_diagonal, most, on_a_path(column_place[other_columns]), rest, other_columns)
    return None if first is None or second is None else _joined(first, second)


def _joined(first: Edges, second: Edges) -> Edges:
    return Edges(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _shrunk(weights: Array, labels: Array, parts: int) -> Array:
    """Return for each part the minimum over its rows, infinite where it has none; (parts, columns)."""
    result = np.full((parts, weights.shape[1]), np.inf, dtype=weights.dtype)
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], np.arange(parts + 1))
    sizes = np.diff(first)
    alone = order[first[:-1][sizes == 1]]
    result[labels[alone]] = weights[alone]
    for part in np.flatnonzero(sizes > 1):
        # A few rows at a time: a part may be nearly all of the tile.
        for start in range(first[part], first[part + 1], 256):
            rows = order[start : min(start + 256, first[part + 1])]
            np.minimum(result[part], weights[rows].min(axis=0), out=result[part])
    return result


def _kruskal(edges: Edges, shape: tuple[int, ...], on_diagonal: bool) -> tuple[Edges, Array]:
    """Return the minimum spanning forest of a few edges of a tile, sorted, and the component of each object."""
    apart, n = (0, shape[0]) if on_diagonal else (shape[0], sum(shape))
    w, i, j = _sorted(edges)
    tree = _ranked(i, j + apart, n)
    kept = np.sort(tree.data).astype(np.int64) - 1
    return Edges(w[kept], i[kept], j[kept]), connected_components(tree, directed=False)[1]


def _sorted(edges: Edges) -> Edges:
    """Sort edges by (weight, i, j)."""
    w, i, j = edges
    order = np.argsort(w, kind="stable")  # quick where two sorted lists follow each other
    equal = np.equal(w[order[1:]], w[order[:-1]])
    if equal.any():  # the ends matter only among edges of equal weight
        among = np.append(equal, False) | np.append(False, equal)
        tied = order[among]
        order[among] = tied[np.lexsort((j[tied], i[tied], w[tied]))]
    return Edges(w[order], i[order], j[order])


def _ranked(i: Array, j: Array, n: int) -> Any:
    """Return SciPy's spanning forest of sorted edges.

    Ranks replace the weights: none are equal, and none is 0, which SciPy would take for a missing edge.
    """
    ends = i.astype(np.int32, copy=False), j.astype(np.int32, copy=False)  # SciPy before 1.16 takes no others
    return minimum_spanning_tree(csr_array((np.arange(1.0, i.size + 1), ends), shape=(n, n)))


def _prim(weights: Array, on_diagonal: bool) -> Edges:
    """Return the tree by Prim's algorithm: as many steps as objects, each a few passes over one vector."""
    n_rows, n_columns = weights.shape
    apart = 0 if on_diagonal else n_rows  # where the columns' objects begin in the vectors below
    n = max(n_columns, apart + n_columns)
    back = weights if on_diagonal else Transpose(weights.dtype)(weights)
    # Weight of the lightest edge from the tree to each object, NaN once it is in: NaN is never <= and never a minimum.
    near = np.full(n, np.inf, dtype=weights.dtype)
    end = np.zeros(n, dtype=np.int64)  # the tree's end of that edge
    hit, nearer = np.empty(n, dtype=bool), np.empty(n, dtype=bool)
    edges = np.empty(n - 1, dtype=weights.dtype), np.empty(n - 1, dtype=np.int64), np.empty(n - 1, dtype=np.int64)
    # A row's edges lead to the columns, a column's to the rows; on the diagonal both are everything.
    to_columns = near[apart:], end[apart:], nearer[apart:]
    to_rows = (near[:n_rows], end[:n_rows], nearer[:n_rows]) if not on_diagonal else to_columns
    near[0] = np.nan
    k = 0
    for step in range(n - 1):
        row, (distance, other, mask) = (weights[k], to_columns) if k < n_rows else (back[k - apart], to_rows)
        (place,) = np.less_equal(row, distance, out=mask).nonzero()
        if place.size:
            new, old = row[place], distance[place]
            if np.equal(new, old).any():  # of two edges of equal weight to one object, that with the smaller end
                keep = (new < old) | (k < other[place])
                place, new = place[keep], new[keep]
            distance[place] = new
            other[place] = k
        lightest = np.fmin.reduce(near)
        np.equal(near, lightest, out=hit)
        k = int(hit.argmax())
        if np.count_nonzero(hit) > 1:
            (tied,) = hit.nonzero()
            low, high = np.minimum(tied, end[tied]), np.maximum(tied, end[tied])
            k = int(tied[np.lexsort((high, low))[0]])
        edges[0][step], edges[1][step], edges[2][step] = lightest, k, end[k]
        near[k] = np.nan
    return _sorted(Edges(edges[0], np.minimum(edges[1], edges[2]), np.maximum(edges[1], edges[2]) - apart))


def largest_pair(weights: Array, on_diagonal: bool) -> tuple[float, int, int]:
    """Return the largest weight of a tile and its first position, row by row, above the diagonal of the matrix."""
    if on_diagonal and len(weights) == 1:
        return NO_PAIR
    best = NO_PAIR
    for start in range(0, len(weights), 64):
        skip = start if on_diagonal else 0
        band = weights[start : start + 64, skip:]
        band = np.triu(band, 1) if on_diagonal else band
        top = float(band.max())
        if top > best[0]:
            i, j = divmod(int(band.argmax()), band.shape[1])
            best = top, start + i, skip + j
    return best if best[0] > 0 or not on_diagonal else (0.0, 0, 1)  # all 0: not the zeros of triu


def tile_forest(weights: Array, rows: int, columns: int) -> Forest:
    """Return the forest of a tile whose first row and column are the objects `rows` and `columns`."""
    on_diagonal = rows == columns
    w, i, j = spanning_tree(weights, on_diagonal)
    top, a, b = largest_pair(weights, on_diagonal)
    return Forest(w, i + rows, j + columns, (top, a + rows, b + columns))


def forest_of(weights: Array, rows: Array, columns: Array, first: tuple[int, int]) -> Forest:
    """Return the forest of some objects of a tile, at least two; `first` are the objects of its first row and column.

    Cost: a copy of their part of the tile.
    """
    on_diagonal = first[0] == first[1]
    part = weights[np.ix_(rows - first[0], columns - first[1])]
    w, i, j = spanning_tree(part, on_diagonal)
    top, a, b = largest_pair(part, on_diagonal)
    return Forest(w, rows[i], columns[j], (top, int(rows[a]), int(columns[b])))


def merged(first: Forest, second: Forest) -> Forest:
    """Return the minimum spanning forest of the union of two. Cost: the sorting of their edges."""
    larger = min(first.largest, second.largest, key=lambda top: (-top[0], top[1:]))
    w, i, j = _sorted(_joined(Edges(first.weights, first.i, first.j), Edges(second.weights, second.i, second.j)))
    names, ends = np.unique(np.concatenate([i, j]), return_inverse=True)
    kept = np.sort(_ranked(ends[: i.size], ends[i.size :], names.size).data).astype(np.int64) - 1
    return Forest(w[kept], i[kept], j[kept], larger)
