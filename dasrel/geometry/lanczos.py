"""Block Lanczos with residual bounds.

Block Lanczos on any symmetric operator: eigenvalues at both ends of the spectrum, with residuals, counted in scans.

A step multiplies one block of k vectors, one scan, and makes what is new in the product orthonormal to all before it
(full reorthogonalisation, and a second time where little was new). With Q the basis, H the coefficients and F the next
block,

    A Q = Q H + F R        (R only in the columns of the last block)

holds to rounding whatever the operator's own errors are. Eigenvalues come from the symmetric part of H. The residual of
a Ritz pair (theta, Q y) has three parts at right angles, none of which needs a scan:

    R y               what the next step would bring; it goes down step by step
    (H - H')/2 y      rounding of the products that is seen within the basis
    noise             rounding of the products beyond the basis

H would vanish beyond its three block diagonals if products were exact. What is found there is the products' rounding
errors, projected on directions that have nothing to do with them; from it follows their size. float32 stores have
float32 products, so below some residual there is nothing to gain: the run stops there and says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasrel.engine.relation import Relation, product_consumer
from dasrel.engine.scan import scan_memory
from dasrel.errors import InputError, MemoryLimitError
from dasrel.kernels import products
from dasrel.util import Float, limits, parallel, progress
from dasrel.util.text import count_text, size_text

Operator = Callable[[Float], Float]
"""(n, k) -> (n, k)."""
SHELF = 64  # rows of the basis that are put into one array
SHRUNK = 0.1  # of its length: a product that keeps as much of it is orthogonal to the basis at the first attempt
SPAN = 2048  # objects that a thread works on at a time
NOTHING_NEW = 1e-12  # of the operator's size: a direction with less than this in it is rounding
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Search:
    """What is looked for, and what it may cost."""

    lowest: int = 1
    """How many of the lowest eigenvalues."""
    highest: int = 0
    """How many of the highest."""
    tol: float = 1e-3
    """A residual is small enough at this fraction of its eigenvalue."""
    floor: float = 0.0
    """A residual below this is small enough in any case: eigenvalues near zero are not worth more."""
    block: int = 8
    """Vectors multiplied at a time. Of a multiple eigenvalue, at most this many copies are found."""
    max_scans: int = 100
    centre: bool = True
    """Whether the vector of ones is kept out, as an operator such as `Relation.gram` does by itself."""
    vectors: bool = False
    """Whether the eigenvectors are wanted too."""
    memory: int | str | None = None
    """For the basis and what goes with it, such as "2GiB"; by default half of the machine's."""

    def __post_init__(self) -> None:
        if min(self.lowest, self.highest) < 0 or self.lowest + self.highest == 0:
            raise InputError(f"ask for at least one eigenvalue, not lowest={self.lowest} and highest={self.highest}")
        if not (0 < self.tol < 1 and 0 <= self.floor < np.inf):
            raise InputError(f"tol lies between 0 and 1 and floor is >= 0, not tol={self.tol} and floor={self.floor}")
        if self.block < 1 or self.max_scans < 1:
            raise InputError(f"block and max_scans are at least 1, not {self.block} and {self.max_scans}")


@dataclass(frozen=True)
class Metric:
    """An inner product x' B y, for the pencil A x = lambda B x: B^+ A is self-adjoint in it.

    B is positive definite where the search goes on: everywhere, or on the centred vectors.
    """

    product: Operator
    """X -> B X."""
    solve: Operator
    """X -> B^+ X."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Eigenvalues at one end of the spectrum, the outermost first."""

    values: Float
    residuals: Float
    """Some eigenvalue lies this near to each value."""
    vectors: Float | None
    """(n, number of values), of length 1 (in the metric, where there is one); None if not asked for."""


@dataclass(frozen=True, eq=False)
class LanczosResult:
    """The end of a search."""

    lowest: Pairs
    highest: Pairs
    ritz: Float
    """All values of the basis, ascending. At least as many eigenvalues lie below any number as values do here."""
    ritz_residuals: Float
    noise: float
    """Rounding error of a product with a vector of length 1, as it was seen; float64's before the third scan."""
    history: Float
    """(scans, 4): lowest value and its residual, highest value and its residual, after each scan."""
    scans: int
    """Products with the operator."""
    converged: bool
    stopped: str
    """"converged"; "exhausted": the basis holds all there is, values are exact; "rounding": the products' rounding
    hides what is left; "scans" or "memory": the budget is spent."""


@dataclass(eq=False)
class LanczosState:
    """Where a search stands between two scans. It can be kept, and gone on with to the same bits."""

    block: int
    basis: list[Float]
    """Orthonormal rows, in arrays of n columns, `SHELF` rows or more in all but the last."""
    dual: list[Float]
    """B times the basis; the basis itself where there is no metric."""
    fresh: Float
    """(k, n): the next block; k = 0 when there is nothing left."""
    fresh_dual: Float
    H: Float
    R: Float
    """(k, width of the last block)."""
    scans: int = 0
    scale: float = 0.0
    """Size of the operator, from below."""
    errors: tuple[float, int] = (0.0, 0)
    """Sum of the squared rounding errors seen in products, and in how many."""
    history: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def noise(self) -> float:
        """Rounding error of a product with a vector of length 1: as seen so far, and at least float64's."""
        return max(math.sqrt(self.errors[0] / max(self.errors[1], 1)), 4 * EPSILON * self.scale)

    def packed(self) -> dict[str, Any]:
        """For a checkpoint. Cost: none; arrays are not copied."""
        general = self.dual is not self.basis
        return {
            **{name: getattr(self, name) for name in ("block", "basis", "fresh", "H", "R", "scans", "scale", "errors")},
            "dual": self.dual if general else None,
            "fresh_dual": self.fresh_dual if general else None,
            "history": np.reshape(self.history, (-1, 4)),
        }

    @staticmethod
    def unpacked(kept: dict[str, Any] | None) -> LanczosState | None:
        """What `packed` made, or None where there is nothing."""
        if kept is None:
            return None
        if kept["dual"] is None:
            kept = {**kept, "dual": kept["basis"], "fresh_dual": kept["fresh"]}
        history = [tuple(row) for row in kept["history"].tolist()]
        return LanczosState(**{**kept, "errors": tuple(kept["errors"]), "history": history})


def lanczos(
    operator: Operator,
    n_objects: int,
    *,
    search: Search | None = None,
    metric: Metric | None = None,
    state: LanczosState | None = None,
    on_step: Callable[[LanczosState], None] | None = None,
) -> LanczosResult:
    """Eigenvalues at the ends of the spectrum of a symmetric operator, such as `Relation.gram`, by block Lanczos.

    Stops when the residuals of all values asked for are small enough and the outermost have moved by no more than that
    in the last step, when there is nothing left to find, at the products' rounding, or when the budget is spent, which
    is no error: see `Found.stopped`. The start is random, the same every time, drawn object by object.

    Parameters
    ----------
    metric
        Makes it the pencil (operator, B); residuals are lengths, in B's inner product, of B^+ A x - theta x.
    state
        Goes on from here, and changes it; operator, metric and block must be the same. Scans count from the very start.
    on_step
        Called after every scan, for instance to save the state.

    Cost: one product per step, each a scan. Memory: 8 n block bytes for every scan made, twice that with a metric.
    """
    search = search or Search()
    dimension = n_objects - 1 if search.centre else n_objects
    if dimension < 1:
        raise InputError(f"{count_text(n_objects, 'object has', 'objects have')} no spectrum; at least two are needed")
    most = scans_that_fit(search, n_objects, dimension, metric is not None)
    with parallel.single_threaded_blas():  # the same bits however many cores
        if state is None:
            fresh, fresh_dual = _drawn(search, n_objects, dimension, metric, 0)
            none: list[Float] = []
            dual = none if metric is None else []
            state = LanczosState(
                search.block, none, dual, fresh, fresh_dual, np.zeros((0, 0)), np.zeros((len(fresh), 0))
            )
        elif state.fresh.shape[1] != n_objects or state.block != search.block:
            raise InputError(
                f"the saved search is of {count_text(state.fresh.shape[1], 'object')} with block {state.block}, this"
                " one of"
                f" {n_objects} with block {search.block}; give the same, or start anew"
            )
        elif (state.dual is state.basis) != (metric is None):
            raise InputError("the saved search and this one must both have a metric, or neither; start anew")
        ritz = _Ritz(state) if state.scans else None
        while True:
            if ritz is not None and (stopped := _stopped(state, ritz, search, most)):
                return _found(state, ritz, search, stopped)
            _advance(state, operator, search, dimension, metric)
            ritz = _Ritz(state)
            low, high = ritz.pairs([0]), ritz.pairs([-1])
            ends = (low.values, low.residuals, high.values, high.residuals)
            state.history.append(tuple(float(end[0]) for end in ends))
            progress.current().say(f"Lanczos, eigenvalues from {low.values[0]:.5g} to {high.values[0]:.5g}")
            if on_step is not None:
                on_step(state)


class _Ritz:
    """The eigenvalues of H's symmetric part, and residuals."""

    def __init__(self, state: LanczosState) -> None:
        H = state.H
        self.state = state
        self.values, self.Y = np.linalg.eigh((H + H.T) / 2)
        self.skew = (H - H.T) / 2

    def parts(self, places: list[int]) -> tuple[Float, Float]:
        """Squared residuals: what another step would bring, and rounding."""
        y = self.Y[:, places]
        beyond = self.state.R @ y[len(y) - self.state.R.shape[1] :]
        within = self.skew @ y
        return (beyond**2).sum(axis=0), (within**2).sum(axis=0) + self.state.noise**2

    def pairs(self, places: list[int], *, vectors: bool = False) -> Pairs:
        beyond, rounding = self.parts(places)
        found = None
        if vectors:
            found = np.zeros((self.state.fresh.shape[1], len(places)))
            at = 0
            for rows in self.state.basis:
                found += rows.T @ self.Y[at : at + len(rows), places]
                at += len(rows)
        return Pairs(self.values[places], np.sqrt(beyond + rounding), found)


def _places(ritz: _Ritz, search: Search) -> tuple[list[int], list[int]]:
    size = len(ritz.values)
    return list(range(min(search.lowest, size))), [size - 1 - k for k in range(min(search.highest, size))]


def _stopped(state: LanczosState, ritz: _Ritz, search: Search, most: int) -> str:
    """Why the search is over, or nothing."""
    low, high = _places(ritz, search)
    beyond, rounding = ritz.parts(low + high)
    enough = np.maximum(search.tol * np.abs(ritz.values[low + high]), search.floor)
    if len(state.fresh) == 0:
        return "exhausted"
    if len(ritz.values) >= max(search.lowest, search.highest):
        small = beyond + rounding <= enough**2
        if small.all() and len(state.history) > 1:
            # A residual says that some eigenvalue is near, not which: the values must have come to rest as well.
            before, now = state.history[-2], state.history[-1]
            ends = [(at, k) for at, k, asked in ((0, 0, low), (len(low), 2, high)) if asked]
            if all(abs(now[k] - before[k]) <= enough[at] for at, k in ends):
                return "converged"
        if state.errors[1] and (small | (beyond <= rounding)).all() and not small.all():
            return "rounding"
    if state.scans < most:
        return ""
    return "scans" if most == search.max_scans else "memory"


def _found(state: LanczosState, ritz: _Ritz, search: Search, stopped: str) -> LanczosResult:
    low, high = (ritz.pairs(places, vectors=search.vectors) for places in _places(ritz, search))
    everywhere = ritz.pairs(list(range(len(ritz.values)))).residuals
    return LanczosResult(
        low, high, ritz.values, everywhere, state.noise, np.array(state.history), state.scans,
        stopped in ("converged", "exhausted"), stopped,
    )  # fmt: skip


def _advance(state: LanczosState, operator: Operator, search: Search, dimension: int, metric: Metric | None) -> None:
    """One product, and the next block out of it."""
    n = state.fresh.shape[1]
    W = _rows(operator, state.fresh)
    if metric is not None:
        W = _rows(metric.solve, W)
    if search.centre:
        W -= W.mean(axis=1, keepdims=True)
    old, (k, last) = len(state.H), state.R.shape
    _shelved(state.basis, state.fresh)
    if metric is not None:
        _shelved(state.dual, state.fresh_dual)
    H = np.zeros((old + k, old + k))
    H[:old, :old] = state.H
    H[old:, old - last : old] = state.R
    before = float(np.linalg.norm(W, axis=1).max())
    # First what is large, the last two blocks: what is left of the others is small, and so are the errors it leaves.
    close = _project(W, W, _last(state.basis, last + k), _last(state.dual, last + k))
    H[:, old:] = _project(W, W, state.basis, state.dual)
    H[old - last :, old:] += close
    far = H[: old - last, old:]
    if far.size:  # half of it comes from this product, half from those before
        state.errors = (state.errors[0] + n / (2 * len(far)) * float((far**2).sum()), state.errors[1] + k)
    Z = W if metric is None else _rows(metric.product, W)
    lengths = np.einsum("ij,ij->i", W, Z)
    state.scale = max(state.scale, float(np.abs(H).max()), math.sqrt(max(0.0, float(lengths.max()))))
    state.H = H
    state.scans += 1
    room = dimension - len(H)
    fresh, fresh_dual = _orthonormal(W, Z, smallest=NOTHING_NEW * state.scale, most=room)
    state.R = fresh_dual @ W.T
    if metric is not None or not _is_long(state.R, SHRUNK * before):
        fresh, fresh_dual = _settled(fresh, fresh_dual, state, metric)
        state.R = fresh_dual @ W.T
    if len(fresh) == 0 and room and len(H) < max(search.lowest, search.highest):
        # The block has seen all that it can, and more values are asked for: another block.
        fresh, fresh_dual = _drawn(search, n, room, metric, state.scans)
        fresh, fresh_dual = _settled(fresh, fresh_dual, state, metric)
        state.R = np.zeros((len(fresh), k))
    state.fresh, state.fresh_dual = fresh, fresh_dual


def _is_long(R: Float, length: float) -> bool:
    """Whether all that is new in a block has at least this length: then rounding has not grown with it."""
    return len(R) > 0 and float(np.linalg.svd(R, compute_uv=False).min()) >= length


def _last(shelves: list[Float], count: int) -> list[Float]:
    """The last rows, as many as `count` says."""
    found: list[Float] = []
    for shelf in reversed(shelves):
        if count > 0:
            found.insert(0, shelf[-count:])
            count -= len(shelf)
    return found


def _project(W: Float, Z: Float, basis: list[Float], dual: list[Float]) -> Float:
    """Take the basis out of W, and its dual out of Z (which may be W), in place; the coefficients taken.

    All of the basis at once, which reads it half as often as one row after the other. What rounding leaves in W is of
    the size that W had: where little of W remains, this is done once more (`_settled`).
    """
    spans = [slice(at, at + SPAN) for at in range(0, W.shape[1], SPAN)]

    def coefficients(span: slice) -> Float:
        return np.vstack([_times(rows[:, span], W[:, span]) for rows in dual])

    def take(span: slice) -> None:
        at = 0
        for rows, of_dual in zip(basis, dual, strict=True):
            part = taken[at : at + len(rows)].T
            _subtract(W[:, span], part, rows[:, span])
            if Z is not W:
                _subtract(Z[:, span], part, of_dual[:, span])
            at += len(rows)

    if not basis:
        return np.zeros((0, len(W)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the spans, and the order of their sum, do not depend on it
        taken = np.add.reduce(list(pool.map(coefficients, spans)))
        list(pool.map(take, spans))
    return np.asarray(taken, dtype=np.float64)


def _times(rows: Float, W: Float) -> Float:
    """rows @ W.T"""
    result = np.zeros((len(W), len(rows)))
    return result.T if products._add_products_native(rows, None, W, result, None) else rows @ W.T


def _subtract(W: Float, part: Float, rows: Float) -> None:
    """W -= part @ rows"""
    if not products._add_products_native(rows, np.ascontiguousarray(-part), None, None, W):
        W -= part @ rows


def _shelved(shelves: list[Float], rows: Float) -> None:
    """Put rows behind those that are there, into the last array until it is full: few large products, not many."""
    if shelves and len(shelves[-1]) < SHELF:
        shelves[-1] = np.vstack([shelves[-1], rows])
    else:
        shelves.append(rows)


def _orthonormal(W: Float, Z: Float, *, smallest: float, most: int) -> tuple[Float, Float]:
    """Orthonormal rows that span those of W, with Z = B W (or W itself): Gram-Schmidt, the longest row first.

    Rows of which no more than `smallest` is left are dropped.
    """
    same = Z is W
    W = W.copy()
    Z = W if same else Z.copy()
    kept = 0
    while kept < min(len(W), most):
        lengths = np.sqrt(np.maximum(np.einsum("ij,ij->i", W[kept:], Z[kept:]), 0.0))
        longest = int(np.argmax(lengths))
        if lengths[longest] <= smallest:
            break
        for X in (W,) if same else (W, Z):
            X[[kept, kept + longest]] = X[[kept + longest, kept]]
            X[kept] /= lengths[longest]
        left = slice(kept + 1, len(W))
        part = W[left] @ Z[kept]
        for X in (W,) if same else (W, Z):
            X[left] -= part[:, None] * X[kept]
        kept += 1
    W = W[:kept]
    return W, W if same else Z[:kept]


def _settled(W: Float, Z: Float, state: LanczosState, metric: Metric | None) -> tuple[Float, Float]:
    """Once more: rows that were short have grown by orders of magnitude, and with them what rounding left in them."""
    _project(W, Z, state.basis, state.dual)
    W, Z = _orthonormal(W, Z, smallest=0.1, most=len(W))
    return W, Z if metric is None else _rows(metric.product, W)


def _drawn(search: Search, n: int, room: int, metric: Metric | None, number: int) -> tuple[Float, Float]:
    """A random block; each object has numbers of its own."""
    k = min(search.block, room)
    W = np.ascontiguousarray(np.random.default_rng((0, number)).standard_normal((n, k)).T)
    if search.centre:
        W -= W.mean(axis=1, keepdims=True)
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    Z = W if metric is None else _rows(metric.product, W)
    size = math.sqrt(max(0.0, float(np.einsum("ij,ij->i", W, Z).max())))
    W, Z = _orthonormal(W, Z, smallest=NOTHING_NEW * size, most=k)
    return _orthonormal(W, Z, smallest=0.1, most=k)


def _rows(operator: Operator, W: Float) -> Float:
    """The operator on rows. A copy: it may have returned what it was given, and rows are changed in place here."""
    product = np.array(operator(W.T).T, dtype=np.float64, order="C")
    if product.shape != W.shape:
        raise InputError(f"the operator made {product.shape[::-1]} of {W.shape[::-1]}; the shape must stay")
    if not np.isfinite(product).all():
        raise InputError("the operator made NaN or infinite values")
    return product


def search_memory(search: Search, n: int, dimension: int, metric: bool) -> tuple[int, int, int]:
    """Bytes that a search takes besides its basis, those of the basis a scan, and the most scans that make sense."""
    k = min(search.block, dimension)
    step = 8 * n * k * (2 if metric else 1)
    all_scans = min(search.max_scans, math.ceil(dimension / k))
    # The block, its product and copies made on the way; the last array of the basis while it grows; H, its eigenvectors
    # and their likes; what projecting takes; the vectors asked for.
    work = 8 * step + step // k * min(SHELF, k * all_scans) + 6 * 8 * (k * all_scans) ** 2
    work += (os.cpu_count() or 1) * products.scratch_memory(k, SPAN, 8)
    work += 8 * n * (search.lowest + search.highest) * search.vectors
    return work, step, all_scans


def scans_that_fit(search: Search, n: int, dimension: int, metric: bool) -> int:
    """How many scans the memory allows; refuses when it does not even allow two."""
    limit = limits.memory_limit(search.memory)
    work, step, all_scans = search_memory(search, n, dimension, metric)
    fit = (limit - work) // step
    if fit < min(2, all_scans):
        raise MemoryLimitError(
            f"eigenvalues of {count_text(n, 'object')} need {size_text(work + 2 * step)} and the limit is"
            f" {size_text(limit)}",
            remedy=f"raise {{memory}}, or use a block smaller than {search.block}",
        )
    return search.max_scans if fit >= all_scans else int(fit)


def estimate_search(seen: Relation, search: Search, limit: int, *, metric: bool) -> tuple[int, int]:
    """Bytes that a search for eigenvalues takes at most, and its scans at most: half is the basis', half the scans'."""
    n = seen.n_objects
    most = scans_that_fit(search, n, n - 1, metric)
    work, step, sensible = search_memory(search, n, n - 1, metric)
    source: Any = seen.matrix
    zeros = np.broadcast_to(np.zeros(1, dtype=source.dtype), (search.block, n))
    scan = scan_memory(source, [product_consumer(source, [(seen.view, zeros)])], limit // 2)
    return work + step * min(most, sensible) + scan, min(most, sensible)
