"""The matrix as an operator: squared dissimilarities through views, spread and added terms, and products with them.

One scan gives the products U F(matrix) for any number of columns and views F. Views cost nothing on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.engine.reduce import Consumer, Kernel, Plan, Share, Side, SumsInStrips, join_strips, shares, strip_consumer
from dasrel.engine.scan import prepare_scan
from dasrel.errors import InputError
from dasrel.kernels import products
from dasrel.kernels.products import Parameter, Strips, View
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from dasrel.store.layout import TileSource, unchanged
from dasrel.store.matrix import Matrix, rows_of
from dasrel.util import Array, Float, Names, parallel
from dasrel.util.files import digest
from dasrel.util.labelled import in_standard_order
from dasrel.util.text import count_text

Positions = NDArray[np.intp]


class Products:
    """Products U F(matrix) for columns U of fixed number, planned once and run for any values of the columns.

    float32 tiles are multiplied in float32, panel by panel, and summed in float64; float64 tiles stay float64.

    Parameters
    ----------
    wanted
        (view F, number of columns k) of each product; all are taken from the same read.
    memory
        As in `scan`.

    Cost: none; memory is estimated, and compared with the limit when the products are run.
    """

    def __init__(
        self, source: TileSource, wanted: Sequence[tuple[View, int]], *, memory: int | str | None = None
    ) -> None:
        self._source = source
        self._wanted = tuple(wanted)
        self._scan = prepare_scan(source, [product_shape(source, wanted)], memory=memory)

    def run(self, columns: Sequence[Array]) -> list[NDArray[np.float64]]:
        """Return U F(matrix) for each product, given U of k x n; float64, k x n.

        Cost: one scan; k n numbers in, k n float64 numbers out.
        """
        _check_columns(self._source, columns)
        widths, given = [k for _, k in self._wanted], [len(u) for u in columns]
        if given != widths:
            raise InputError(f"products planned for {widths} columns cannot be run with {given}")
        pairs = [(view, u) for (view, _), u in zip(self._wanted, columns, strict=True)]
        return list(self._scan.run([_share(self._source, pairs)])[0])


def check_shapes(source: TileSource, columns: Sequence[Array]) -> None:
    """Raise if columns U are not k x n."""
    n = source.layout.n_objects
    for u in columns:
        if u.ndim != 2 or u.shape[1] != n:
            raise InputError(f"columns of shape {u.shape} do not fit {count_text(n, 'object')}")


def _check_columns(source: TileSource, columns: Sequence[Array]) -> None:
    check_shapes(source, columns)
    for u in columns:
        if not np.isfinite(u).all():
            raise InputError("the columns to be multiplied hold NaN or infinite values")


def product_consumer(source: TileSource, wanted: Sequence[tuple[View, Array]]) -> Consumer:
    """Make the consumer of products U F(matrix) for a scan that is shared with others, given (view F, U of k x n)."""
    _check_columns(source, [u for _, u in wanted])
    shape = product_shape(source, [(view, len(u)) for view, u in wanted])
    return replace(shape, share=_share(source, wanted))


def _in_order(wanted: Sequence[tuple[View, Any]]) -> list[int]:
    """Return the order with equal views side by side: each is applied once to a tile."""
    return sorted(range(len(wanted)), key=lambda k: (str(wanted[k][0]), k))


def _share(source: TileSource, wanted: Sequence[tuple[View, Array]]) -> Callable[[slice], Share]:
    order, dtype, diagonal = _in_order(wanted), source.layout.dtype, source.diagonal

    def share(span: slice) -> Share:
        columns = [_padded(wanted[k][1][:, span], dtype) for k in order]
        return Share(span.start, None if diagonal is None else diagonal[span], columns)

    return share


def product_shape(source: TileSource, wanted: Sequence[tuple[View, int]]) -> Consumer:
    """Make the consumer of products with so many columns of each view, without the columns themselves.

    Its memory can be estimated, and a scan prepared with it; `run` is given the columns.
    """
    layout, order = source.layout, _in_order(wanted)

    def finish(parts: dict[int, Any]) -> list[NDArray[np.float64]]:
        results = [np.empty((k, layout.n_objects)) for _, k in wanted]
        join_strips(Plan(layout), parts, [results[k] for k in order])
        return results

    side, itemsize = layout.tile, layout.dtype.itemsize
    columns = sum(_padded_width(k) for _, k in wanted)
    panel = products.panel_rows((side, side), itemsize, columns) * side * itemsize
    panel *= max((view.panels for view, _ in wanted), default=1)
    scratch = max((products.scratch_memory(k, side, itemsize) for _, k in wanted), default=0)
    return strip_consumer(
        source, _ProductKernel(tuple((wanted[k][0], _padded_width(wanted[k][1])) for k in order)), finish,
        lambda span: Share(span.start),
        sent=columns * itemsize,
        # Two partial sums, one more while they are added to the whole; the float32 product of a panel, its view.
        held=3 * columns * 8, scratch=side * columns * itemsize + panel + scratch,
        fixed=columns * (itemsize + 16), shared=columns * itemsize,
    )  # fmt: skip


def _padded_width(columns: int) -> int:
    """Return the number of columns that are multiplied for so many requested ones.

    BLAS kernels are four columns wide and slow for the remainder: measured on one core, ms per tile, 3 take 22 and 4
    take 13, 47 take 59 and 48 take 51, 63 take 74 and 64 take 67. A single column is another routine, at the speed of
    memory. The compiled kernel takes any number.
    """
    if columns == 1 or (columns <= products.MOST_COLUMNS and products.has_native_products()):
        return columns
    return -(-columns // 4) * 4


def _padded(columns: Array, dtype: np.dtype[Any]) -> Array:
    width = _padded_width(len(columns))
    if width == len(columns):
        return np.ascontiguousarray(columns, dtype=dtype)
    padded = np.zeros((width, columns.shape[1]), dtype=dtype)
    padded[: len(columns)] = columns
    return padded


@dataclass(frozen=True)
class _ProductKernel(SumsInStrips):
    products: tuple[tuple[View, int], ...]
    """Each view with its columns."""

    def empty(self, objects: int) -> list[Array]:
        return [np.zeros((columns, objects)) for _, columns in self.products]

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        r, c = rows.inside, columns.inside
        wanted = [
            (view, Strips(u[:, r], v[:, c], rows.itself, columns.itself))
            for (view, _), u, v in zip(self.products, rows.share.arrays, columns.share.arrays, strict=True)
        ]
        down = [sums[:, r] for sums in partial[0]]
        across = None if rows is columns else [sums[:, c] for sums in partial[1]]
        products.add_products(tile, wanted, down, across)
        return partial


class Term(Protocol):
    """A symmetric n x n matrix that needs no tiles, such as the ultrametric of a tree."""

    def left(self, U: Float) -> Float:
        """Return U times the matrix, for U of k x n."""

    def diagonal(self) -> Float:
        """Return its n diagonal values."""

    def block(self, rows: slice, columns: slice) -> Float:
        """Return its values between two ranges of objects; used by exports only."""

    def largest(self) -> float:
        """Return an upper bound of the size of its values."""


@dataclass(frozen=True)
class Relation:
    """D = F(stored values) + beta (11' - I) + sum of weights times terms.

    F is a chain of elementwise views; the rest is added without touching a tile. Relations are cheap values: every
    method that changes one returns a new one. Products are scans; `left_products` serves several in one scan.
    """

    matrix: Matrix | ArrayMatrix
    view: View
    beta: float = 0.0
    terms: tuple[tuple[float, Term], ...] = ()

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return self.matrix.n_objects

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must find again: the identity of the matrix, and how it is seen.

        Cost: no scan; reads the records of the tiles.
        """
        terms = [
            {"weight": weight, "kind": type(term).__name__, "values": digest(_numbers_of(term))}
            for weight, term in self.terms
        ]
        steps = [[name, list(value) if isinstance(value, tuple) else value] for name, value in self.view.steps]
        return {
            "matrix": self.matrix.identity(), "view": self.view.kind, "steps": steps, "spread": self.beta,
            "terms": terms,
        }  # fmt: skip

    def power(self, exponent: float) -> Relation:
        """Return D^a, element by element."""
        return self._then("power", exponent)

    def exponential(self, rate: float) -> Relation:
        """Return (1 - exp(-a sqrt(D)))^2."""
        return self._then("exponential", rate)

    def log(self, exponent: float) -> Relation:
        """Return log2(1 + sqrt(D)^a)^2."""
        return self._then("log", exponent)

    def gaussian(self, sigma: float) -> Relation:
        """Return the kernel exp(-D / (2 sigma^2)); no longer a dissimilarity."""
        return self._then("gaussian", sigma)

    def kernel_distance(self, sigma: float) -> Relation:
        """Return the squared distances 2 - 2 exp(-D / (2 sigma^2)) in the space of the Gaussian kernel (F10 15).

        `cluster` on it is clustering in kernel space, such as F10's possibilistic c-means (11 to 17) with rule pcm2.
        """
        return self._then("kernel-distance", sigma)

    def floor(self, value: float) -> Relation:
        """Return max(D, value) off the diagonal."""
        return self._then("floor", value)

    def plus_fit(self, step: str, weight: float, parameter: float) -> Relation:
        """Return D + weight times its power, exponential or log (the step) with this parameter, in one view."""
        return self._then(f"plus-{step}", (weight, parameter))

    def spread(self, beta: float) -> Relation:
        """Return D + beta off the diagonal (beta-spread). beta = -2 lambda_1 is the eigenvalue shift of F09."""
        if not (np.isfinite(beta) and beta >= 0):
            raise InputError(f"a spread is a finite number >= 0, not {beta}")
        return replace(self, beta=self.beta + float(beta))

    def plus(self, term: Term, weight: float) -> Relation:
        """Return D + weight times a matrix that needs no tiles."""
        return replace(self, terms=(*self.terms, (float(weight), term)))

    def left(self, U: ArrayLike, *, memory: int | str | None = None) -> Float:
        """Return U D for U of k x n; k x n float64.

        Cost: one scan; the memory of U and of the result.
        """
        return left_products([(self, U)], memory=memory)[0]

    def complete_product(self, product: Float, U: Array) -> None:
        """Add what needs no tiles, the spread and the terms, to the product of U (k x n) with the view, in place."""
        if self.beta:
            product += self.beta * (U.sum(axis=1, keepdims=True, dtype=np.float64) - U)
        for weight, term in self.terms:
            product += weight * term.left(U.astype(np.float64, copy=False))

    def matmat(self, V: ArrayLike, *, memory: int | str | None = None) -> Float:
        """Return D V for V of n x k (or n); float64.

        Cost: one scan.
        """
        columns = self._columns(V)
        product: Float = self.left(columns.T, memory=memory).T
        return self._shaped(product, V)

    def gram(self, V: ArrayLike, *, memory: int | str | None = None) -> Float:
        """Return W(D) V = -1/2 P D P V, P the centring projection (S^c of F09), for V of n x k; never forms W.

        Cost: one scan.
        """
        columns = self._columns(V)
        centred = columns - columns.mean(axis=0)
        product = self.left(centred.T, memory=memory).T
        result: Float = -0.5 * (product - product.mean(axis=0))
        return self._shaped(result, V)

    def row_sums(self, *, memory: int | str | None = None) -> Float:
        """Return the sum of each row of D, the diagonal included. Cost: one scan."""
        sums: Float = self.left(np.ones((1, self.n_objects)), memory=memory)[0]
        return sums

    def mean(self, *, memory: int | str | None = None) -> float:
        """Return the mean of all n^2 values of D, the diagonal included. Cost: one scan."""
        return float(self.row_sums(memory=memory).sum() / self.n_objects**2)

    def diagonal(self) -> Float:
        """Return the n values on D's diagonal. Cost: no scan."""
        values = np.full(self.n_objects, self.view.at_zero)
        for weight, term in self.terms:
            values += weight * term.diagonal()
        return values

    def rows(self, positions: Sequence[int]) -> Float:
        """Return the rows of D for objects at these positions, float64.

        Cost: reads the tiles of the strips in which they lie, at most a scan; not counted as one. On a cluster its
        workers read them.
        """
        where = np.asarray(positions, dtype=np.intp)
        raw = read_rows(self.matrix, where).astype(np.float64)
        itself = self.matrix.diagonal
        own = None if itself is None else itself[where]
        seen = self.view.apply(raw, np.empty_like(raw), row_self=own, column_self=itself)
        seen = np.array(seen) + self.beta
        seen[np.arange(where.size), where] = self.view.at_zero
        if self.terms:
            unit = np.zeros((where.size, self.n_objects))
            unit[np.arange(where.size), where] = 1
            for weight, term in self.terms:
                seen += weight * term.left(unit)
        return seen

    def block(self, stored: Array, rows: slice, columns: slice) -> Float:
        """Return D between two ranges of objects, float64, given their stored values. Cost: no scan."""
        seen = stored.astype(np.float64)
        view, itself = self.view, self.matrix.diagonal
        if itself is not None:  # rounded equally on both sides of the diagonal: exports are symmetric
            seen *= -2
            seen += itself[rows][:, None] + itself[columns][None, :]
            view = View("squared-distance", view.steps)
        seen = view.apply(seen, seen, row_self=None, column_self=None)
        seen += self.beta
        both = np.arange(max(rows.start, columns.start), min(rows.stop, columns.stop))
        seen[both - rows.start, both - columns.start] = self.view.at_zero
        for weight, term in self.terms:
            seen += weight * term.block(rows, columns)
        return seen

    def largest(self) -> float:
        """Return an upper bound of |D| from the store's audit: the view of its extremes. Cost: no scan."""
        audit, n = self.matrix.audit, np.zeros((1, 1))
        if audit["maximum"] is None:
            return abs(self.view.at_zero)
        ends = []
        for value in (audit["minimum"], audit["maximum"]):
            for itself in (audit["diagonal"]["minimum"], audit["diagonal"]["maximum"]):
                own = np.array([itself])
                ends.append(abs(float(self.view.apply(n + value, n.copy(), row_self=own, column_self=own)[0, 0])))
        beyond = sum(abs(weight) * term.largest() for weight, term in self.terms)
        return max(*ends, abs(self.view.at_zero)) + self.beta + beyond

    def _then(self, step: str, parameter: Parameter) -> Relation:
        if self.terms:
            raise InputError(f"{step} cannot follow a term that is added without the matrix", remedy="apply it first")
        view = self.view.then("spread", self.beta) if self.beta else self.view
        return Relation(self.matrix, view.then(step, parameter))

    def _columns(self, V: ArrayLike) -> Array:
        """Return columns (n, k), each in one piece."""
        columns = np.asarray(V)
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim != 2 or columns.shape[0] != self.n_objects:
            raise InputError(f"V has shape {np.shape(V)}", remedy=f"give {count_text(self.n_objects, 'row')}")
        return in_standard_order(columns.T).T

    @staticmethod
    def _shaped(result: Float, like: ArrayLike) -> Float:
        shaped: Float = result[:, 0] if np.ndim(like) == 1 else result
        return shaped


def relation(matrix: Any, *, kind: str | None = None, ids: Names | None = None) -> Relation:
    """Return the matrix as squared dissimilarities D: stored distances squared, similarities as s_ii + s_jj - 2 s_ij.

    Takes an open matrix, a store's path or URL, or with its kind an array, a condensed vector, a data frame, or another
    array with names. `ids` names the objects of an array.

    Cost: no scan of a store; an array is read once to check it.
    """
    source = as_matrix(matrix, kind=kind, ids=ids)
    result = Relation(source, View(source.kind))
    largest = result.largest()
    tiny, huge = (1e-30, 1e36) if source.dtype == np.float32 else (1e-290, 1e300)
    vanished = source.kind == "distance" and largest == 0 and bool(source.audit["maximum"])  # each square is 0
    if largest > huge or 0 < largest < tiny or vanished:
        raise InputError(
            f"squared dissimilarities reach {largest:g}, beyond what {source.dtype} products can hold"
            f" ({tiny:g} to {huge:g})",
            remedy="rescale the values, or store them as float64",
        )
    return result


def as_dissimilarity(matrix: Any, kind: str | None = None) -> Relation:
    """Return a matrix, an array of this kind, or a relation as squared dissimilarities; refuse other relations."""
    if isinstance(matrix, Relation) and kind is not None:
        raise InputError("a relation knows its kind", remedy="leave kind out")
    dissimilarity = matrix if isinstance(matrix, Relation) else relation(matrix, kind=kind)
    if dissimilarity.diagonal().any():
        raise InputError(
            "objects have a value other than 0 to themselves in this relation, as in a Gaussian kernel",
            remedy="give the matrix itself; a kernel is given as an array or a store of kind kernel",
        )
    return dissimilarity


class LeftProducts:
    """Products U D with relations for columns U of fixed number, planned once and run for any values of the columns.

    Parameters
    ----------
    wanted
        (relation D, number of columns k) of each product, at least one; all relations are of the same matrix.
    memory
        As in `scan`.

    Cost: none; memory is estimated, and compared with the limit when the products are run.
    """

    def __init__(self, wanted: Sequence[tuple[Relation, int]], *, memory: int | str | None = None) -> None:
        source = wanted[0][0].matrix
        if any(r.matrix is not source for r, _ in wanted):
            raise InputError("relations that share a scan must be of the same matrix")
        self._relations = [r for r, _ in wanted]
        self._products = Products(source, [(r.view, k) for r, k in wanted], memory=memory)

    def run(self, columns: Sequence[Array]) -> list[Float]:
        """Return U D of each relation, given its U of k x n; k x n float64.

        Cost: one scan, however many relations; a view that several share is applied once a tile.
        """
        results = self._products.run(columns)
        for r, u, product in zip(self._relations, columns, results, strict=True):
            r.complete_product(product, u)
        return results


def left_products(wanted: Sequence[tuple[Relation, ArrayLike]], *, memory: int | str | None = None) -> list[Float]:
    """Return U D for each (relation D, U of k x n). All relations must be of the same matrix.

    Cost: one scan, however many relations; a view that several share is applied once a tile.
    """
    if not wanted:
        return []
    columns = [in_standard_order(u) for _, u in wanted]
    check_shapes(wanted[0][0].matrix, columns)
    widths = [(r, len(u)) for (r, _), u in zip(wanted, columns, strict=True)]
    return LeftProducts(widths, memory=memory).run(columns)


def _numbers_of(term: Any) -> Iterable[bytes]:
    """Yield the numbers that a term is made of, without those that it has computed from them."""
    names = getattr(type(term), "__dataclass_fields__", None) or vars(term)
    for name in sorted(names):
        value = getattr(term, name)
        yield name.encode("utf-8")
        yield np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else repr(value).encode("utf-8")


# ------------------------------------------------------------------------------------------------------- complete rows


def read_rows(source: TileSource, positions: Positions, *, memory: int | str | None = None) -> Array:
    """Return the rows of the objects at these positions as stored, both triangles: (number of positions, n).

    Cost: reads the tiles in whose rows or columns the objects lie, which is not counted as a scan; twice the result.
    """
    alone = parallel.active_client() is None  # a scan of so few tiles takes longer than reading them
    if alone or not positions.size or source.files.local_array is not None:
        with unchanged(source):
            return rows_of(source.files, positions)
    chosen, places = np.unique(positions, return_inverse=True)
    only = np.unique(chosen // source.layout.tile).tolist()
    (rows,) = prepare_scan(source, [_rows_consumer(source, chosen)], only=only, memory=memory).run()
    result: Array = rows if np.array_equal(chosen, positions) else rows[places]
    return result


def chosen_shares(source: TileSource, positions: Positions) -> Callable[[slice], Share]:
    """Return the shares that tell which objects are chosen, for `chosen_in`."""
    chosen = np.zeros(source.layout.n_objects, dtype=bool)
    chosen[positions] = True
    return shares(source, chosen=chosen)


def chosen_in(side: Side) -> Positions:
    """Return the chosen objects of a side of a tile, counted from its start."""
    return np.flatnonzero(side.get("chosen"))


def _rows_consumer(source: TileSource, chosen: Positions) -> Consumer:
    """Make the consumer of the rows of objects, whose positions increase."""
    layout = source.layout

    def finish(parts: dict[int, Any]) -> Array:
        rows = np.empty((len(chosen), layout.n_objects), layout.dtype)
        for objects, start, values in parts.pop(0):
            rows[np.searchsorted(chosen, objects), start : start + values.shape[1]] = values
        return rows

    strip = Plan(layout).group_side * layout.tile
    most = int(np.bincount(chosen // strip).max())
    size = 2 * most * min(strip, layout.n_objects) * layout.dtype.itemsize
    return Consumer(
        _RowsKernel(), finish, chosen_shares(source, chosen), part_bytes=size, task_memory=size,
        fixed_memory=2 * len(chosen) * layout.n_objects * layout.dtype.itemsize, share_bytes=layout.n_objects,
    )  # fmt: skip


@dataclass(frozen=True)
class _RowsKernel(Kernel):
    def empty(self, objects: int) -> list[Any]:
        return []

    def add(self, partial: list[Any], tile: Array, rows: Side, columns: Side) -> list[Any]:
        down, across = chosen_in(rows), chosen_in(columns)
        if down.size:
            partial.append((down + rows.span.start, columns.span.start, tile[down]))
        if across.size and rows is not columns:
            partial.append((across + columns.span.start, rows.span.start, np.ascontiguousarray(tile[:, across].T)))
        return partial
