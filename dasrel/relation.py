"""The matrix as an algorithm sees it: squared dissimilarities, through views that cost nothing on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.direct import DirectMatrix, as_matrix
from dasrel.errors import InputError, count_text
from dasrel.products import Products, check_shapes
from dasrel.store import Matrix
from dasrel.tiles import Parameter, View

Array = NDArray[Any]
Float = NDArray[np.float64]


class Term(Protocol):
    """A symmetric n x n matrix that needs no tiles, such as the ultrametric of a tree."""

    def left(self, U: Float) -> Float:
        """U times the matrix, for U of k x n."""

    def diagonal(self) -> Float:
        """Its n diagonal values."""

    def block(self, rows: slice, columns: slice) -> Float:
        """Its values between two ranges of objects; only asked for by an export."""


@dataclass(frozen=True)
class Relation:
    """D = F(stored values) + beta (11' - I) + sum of weights times terms.

    F is a chain of elementwise views; the rest is added without touching a tile. Relations are cheap values: every
    method that changes one returns a new one. Products are scans; `left_products` serves several in one scan.
    """

    matrix: Matrix | DirectMatrix
    view: View
    beta: float = 0.0
    terms: tuple[tuple[float, Term], ...] = ()

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return self.matrix.n_objects

    def power(self, exponent: float) -> Relation:
        """D^a, element by element."""
        return self._then("power", exponent)

    def exponential(self, rate: float) -> Relation:
        """(1 - exp(-a sqrt(D)))^2."""
        return self._then("exponential", rate)

    def log(self, exponent: float) -> Relation:
        """log2(1 + sqrt(D)^a)^2."""
        return self._then("log", exponent)

    def gaussian(self, sigma: float) -> Relation:
        """The kernel exp(-D / (2 sigma^2)); no longer a dissimilarity."""
        return self._then("gaussian", sigma)

    def floor(self, value: float) -> Relation:
        """max(D, value) off the diagonal."""
        return self._then("floor", value)

    def plus_fit(self, step: str, weight: float, parameter: float) -> Relation:
        """D + weight times its power, exponential or log (the step) with this parameter, in one view."""
        return self._then(f"plus-{step}", (weight, parameter))

    def spread(self, beta: float) -> Relation:
        """D + beta off the diagonal (beta-spread). beta = -2 lambda_1 is the eigenvalue shift of F09."""
        if not (np.isfinite(beta) and beta >= 0):
            raise InputError(f"a spread is a finite number >= 0, not {beta}")
        return replace(self, beta=self.beta + float(beta))

    def plus(self, term: Term, weight: float) -> Relation:
        """D + weight times a matrix that needs no tiles."""
        return replace(self, terms=(*self.terms, (float(weight), term)))

    def left(self, U: ArrayLike, *, memory: int | str | None = None) -> Float:
        """U D for U of k x n; k x n float64.

        Cost: one scan; the memory of U and of the result.
        """
        return left_products([(self, np.asarray(U))], memory=memory)[0]

    def matmat(self, V: ArrayLike, *, memory: int | str | None = None) -> Float:
        """D V for V of n x k (or n); float64.

        Cost: one scan.
        """
        columns = self._columns(V)
        product: Float = self.left(columns.T, memory=memory).T
        return self._shaped(product, V)

    def gram(self, V: ArrayLike, *, memory: int | str | None = None) -> Float:
        """W(D) V = -1/2 P D P V, P the centring projection (S^c of F09), for V of n x k; never forms W.

        Cost: one scan.
        """
        columns = self._columns(V)
        centred = columns - columns.mean(axis=0)
        product = self.left(centred.T, memory=memory).T
        result: Float = -0.5 * (product - product.mean(axis=0))
        return self._shaped(result, V)

    def row_sums(self) -> Float:
        """Sum of each row of D, the diagonal included. Cost: one scan."""
        sums: Float = self.left(np.ones((1, self.n_objects)))[0]
        return sums

    def mean(self) -> float:
        """Mean of all n^2 values of D, the diagonal included. Cost: one scan."""
        return float(self.row_sums().sum() / self.n_objects**2)

    def diagonal(self) -> Float:
        """The n values on D's diagonal. Cost: no scan."""
        values = np.full(self.n_objects, self.view.at_zero)
        for weight, term in self.terms:
            values += weight * term.diagonal()
        return values

    def rows(self, positions: Sequence[int]) -> Float:
        """Rows of D for objects at these positions, float64.

        Cost: reads the tiles of the strips in which they lie, at most a scan; not counted as one.
        """
        where = np.asarray(positions, dtype=np.intp)
        raw = self.matrix.rows_at(where).astype(np.float64)
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
        """D between two ranges of objects, float64, given the values that are stored for them. Cost: no scan."""
        seen = stored.astype(np.float64)
        view, itself = self.view, self.matrix.diagonal
        if itself is not None:  # rounded alike on both sides of the diagonal: what is written out is symmetric
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
        """An upper bound of |D| from the store's audit: the view of its extremes. Cost: no scan."""
        audit, n = self.matrix.audit, np.zeros((1, 1))
        if audit["maximum"] is None:
            return abs(self.view.at_zero)
        ends = []
        for value in (audit["minimum"], audit["maximum"]):
            for itself in (audit["diagonal"]["minimum"], audit["diagonal"]["maximum"]):
                one = np.array([itself])
                ends.append(abs(float(self.view.apply(n + value, n.copy(), row_self=one, column_self=one)[0, 0])))
        beyond = sum(abs(weight) * float(getattr(term, "largest", lambda: 0.0)()) for weight, term in self.terms)
        return max(*ends, abs(self.view.at_zero)) + self.beta + beyond

    def _then(self, step: str, parameter: Parameter) -> Relation:
        if self.terms:
            raise InputError(f"{step} cannot follow a term that is added without the matrix; apply it first")
        view = self.view.then("spread", self.beta) if self.beta else self.view
        return Relation(self.matrix, view.then(step, parameter))

    def _columns(self, V: ArrayLike) -> Array:
        columns = np.asarray(V)
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim != 2 or columns.shape[0] != self.n_objects:
            raise InputError(f"V has shape {np.shape(V)}; give {count_text(self.n_objects, 'row')}")
        return columns

    @staticmethod
    def _shaped(result: Float, like: ArrayLike) -> Float:
        shaped: Float = result[:, 0] if np.ndim(like) == 1 else result
        return shaped


def relation(matrix: Any, *, kind: str | None = None) -> Relation:
    """The matrix as squared dissimilarities D: stored distances squared, similarities as s_ii + s_jj - 2 s_ij.

    Takes an open matrix, a store's path or URL, or an array with its kind.
    """
    source = as_matrix(matrix, kind=kind)
    result = Relation(source, View(source.kind))
    largest = result.largest()
    tiny, huge = (1e-30, 1e36) if source.dtype == np.float32 else (1e-290, 1e300)
    if largest > huge or 0 < largest < tiny:
        raise InputError(
            f"squared dissimilarities reach {largest:g}, beyond what {source.dtype} products can hold"
            f" ({tiny:g} to {huge:g}); rescale the values, or store them as float64"
        )
    return result


class LeftProducts:
    """Products U D with relations for columns U of fixed number, planned once and run for any values of the columns.

    Parameters
    ----------
    wanted
        (relation D, number of columns k) of each product, one at least; all relations stand on the same matrix.
    memory
        As in `scan`.

    Cost: none; memory is estimated, and compared with the limit when the products are run.
    """

    def __init__(self, wanted: Sequence[tuple[Relation, int]], *, memory: int | str | None = None) -> None:
        source = wanted[0][0].matrix
        if any(r.matrix is not source for r, _ in wanted):
            raise InputError("relations that share a scan must stand on the same matrix")
        self._relations = [r for r, _ in wanted]
        self._products = Products(source, [(r.view, k) for r, k in wanted], memory=memory)

    def run(self, columns: Sequence[Array]) -> list[Float]:
        """U D of each relation, given its U of k x n; k x n float64.

        Cost: one scan, however many relations; a view that several share is applied once a tile.
        """
        results = self._products.run(columns)
        for r, u, product in zip(self._relations, columns, results, strict=True):
            if r.beta:
                product += r.beta * (u.sum(axis=1, keepdims=True, dtype=np.float64) - u)
            for weight, term in r.terms:
                product += weight * term.left(u.astype(np.float64, copy=False))
        return results


def left_products(wanted: Sequence[tuple[Relation, Array]], *, memory: int | str | None = None) -> list[Float]:
    """For each (relation D, U of k x n): U D. All relations must stand on the same matrix.

    Cost: one scan, however many relations; a view that several share is applied once a tile.
    """
    if not wanted:
        return []
    columns = [u for _, u in wanted]
    check_shapes(wanted[0][0].matrix, columns)
    return LeftProducts([(r, len(u)) for r, u in wanted], memory=memory).run(columns)
