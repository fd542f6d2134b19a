"""Block Lanczos: eigenvalues at both ends of the spectrum of a symmetric operator, with residual bounds.

A step multiplies one block of k vectors, which is one scan, and makes the new part of the product orthonormal to all
earlier vectors (full reorthogonalisation, repeated where the new part is small). With Q the basis, H the coefficients
and F the next block,

    A Q = Q H + F R        (R only in the columns of the last block)

holds to rounding whatever the operator's own errors are. Eigenvalues come from the symmetric part of H. The residual of
a Ritz pair (theta, Q y) has three orthogonal parts, none of which needs a scan:

    R y               the part that the next step would remove; it decreases step by step
    (H - H')/2 y      rounding of the products within the basis
    noise             rounding of the products outside the basis

With exact products H would be zero beyond its three block diagonals. The values found there are the rounding errors of
the products, projected on directions that are independent of them; their size is estimated from that. float32 stores
have float32 products, so that below some residual more steps do not help: the search then stops with "rounding".
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasrel.errors import InputError, MemoryLimitError
from dasrel.kernels import products
from dasrel.util import Float, limits, parallel, progress
from dasrel.util.text import count_text, size_text

Operator = Callable[[Float], Float]
"""(n, k) -> (n, k)."""
BASIS_ROWS = 64  # rows of the basis in one array
SHRUNK = 0.1  # a product that keeps this fraction of its length is orthogonal to the basis after one projection
SPAN = 2048  # objects that a thread works on at a time
NOTHING_NEW = 1e-12  # of the operator's norm: a direction with less than this in it is rounding
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Search:
    """Which eigenvalues to compute, how accurately, and at what cost."""

    lowest: int = 1
    """Number of lowest eigenvalues."""
    highest: int = 0
    """Number of highest eigenvalues."""
    tol: float = 1e-3
    """Residual to reach, as a fraction of its eigenvalue."""
    floor: float = 0.0
    """Residuals below this are small enough in any case, also of eigenvalues near zero."""
    block: int = 8
    """Vectors per product. Of a multiple eigenvalue, at most this many copies are found."""
    max_scans: int = 100
    centre: bool = True
    """Whether vectors are kept orthogonal to the vector of ones, as `Relation.gram` does itself."""
    vectors: bool = False
    """Whether eigenvectors are returned too."""
    memory: int | str | None = None
    """Limit for the basis and temporary arrays, such as "2GiB"; by default half of the machine's memory."""

    def __post_init__(self) -> None:
        if min(self.lowest, self.highest) < 0 or self.lowest + self.highest == 0:
            raise InputError(f"give at least one eigenvalue, not lowest={self.lowest} and highest={self.highest}")
        if not (0 < self.tol < 1 and 0 <= self.floor < np.inf):
            raise InputError(f"tol lies between 0 and 1 and floor is >= 0, not tol={self.tol} and floor={self.floor}")
        if self.block < 1 or self.max_scans < 1:
            raise InputError(f"block and max_scans are at least 1, not {self.block} and {self.max_scans}")


@dataclass(frozen=True)
class Metric:
    """An inner product x' B y, for the pencil A x = lambda B x: B^+ A is self-adjoint in it.

    B is positive definite on the vectors of the search: on all, or on the centred ones.
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
    """An eigenvalue lies within this distance of each value."""
    vectors: Float | None
    """(n, number of values), of length 1 (in the metric, where there is one); None without `Search.vectors`."""


@dataclass(frozen=True, eq=False)
class LanczosResult:
    """Eigenvalues of a finished search, and why it stopped."""

    lowest: Pairs
    highest: Pairs
    ritz: Float
    """All Ritz values, ascending. Below any number there are at least as many eigenvalues as Ritz values."""
    ritz_residuals: Float
    ritz_weights: Float
    """How many eigenvalues each Ritz value stands for, in expectation over first blocks: Gaussian quadrature. The sum
    of weight times f(value) is an estimate of the sum of f over all eigenvalues."""
    noise: float
    """Estimated rounding error of a product with a vector of length 1; that of float64 before the third scan."""
    history: Float
    """(scans, 4): lowest value and its residual, highest value and its residual, after each scan."""
    scans: int
    """Products with the operator."""
    converged: bool
    stopped: str
    """"converged"; "exhausted": the basis spans the whole space, values are exact; "rounding": the residual is that
    of the products' rounding; "scans" or "memory": the limit was reached."""


@dataclass(eq=False)
class LanczosState:
    """State of a search between two scans; saved and restored, the search continues to the same bits."""

    block: int
    basis: list[Float]
    """Orthonormal rows, in arrays of n columns; all but the last have at least `BASIS_ROWS` rows."""
    dual: list[Float]
    """B times the basis; the basis itself without a metric."""
    fresh: Float
    """(k, n): the next block; k = 0 when the basis spans the whole space."""
    fresh_dual: Float
    H: Float
    R: Float
    """(k, width of the last block)."""
    scans: int = 0
    scale: float = 0.0
    """Lower bound of the operator's norm."""
    errors: tuple[float, int] = (0.0, 0)
    """Sum of the squared rounding errors found in products, and the number of products."""
    history: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def noise(self) -> float:
        """Estimated rounding error of a product with a vector of length 1, at least that of float64."""
        return max(math.sqrt(self.errors[0] / max(self.errors[1], 1)), 4 * EPSILON * self.scale)

    def packed(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Cost: none; arrays are not copied."""
        general = self.dual is not self.basis
        return {
            **{name: getattr(self, name) for name in ("block", "basis", "fresh", "H", "R", "scans", "scale", "errors")},
            "dual": self.dual if general else None,
            "fresh_dual": self.fresh_dual if general else None,
            "history": np.reshape(self.history, (-1, 4)),
        }

    @staticmethod
    def unpacked(kept: dict[str, Any] | None) -> LanczosState | None:
        """Return the state that `packed` returned, or None for None."""
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
    """Compute eigenvalues at the ends of the spectrum of a symmetric operator, such as `Relation.gram`.

    The search stops when the residuals of all requested values are small enough and the outermost values have changed
    by no more than that in the last step, when the basis spans the whole space, when residuals are as small as the
    rounding of the products, or at the limit of scans or memory, which is no error: see `LanczosResult.stopped`. The
    first block is random, the same every time, with independent numbers for each object.

    Parameters
    ----------
    metric
        Makes it the pencil (operator, B); residuals are lengths, in B's inner product, of B^+ A x - theta x.
    state
        State to continue from, modified in place; operator, metric and block must be the same. Scans before it count.
    on_step
        Called after every scan, for instance to save the state.

    Cost: one product per step, each a scan. Memory: 8 n block bytes per scan, twice that with a metric.
    """
    search = search or Search()
    dimension = n_objects - 1 if search.centre else n_objects
    if dimension < 1:
        raise InputError(
            f"{count_text(n_objects, 'object has', 'objects have')} no spectrum", remedy="give at least two"
        )
    most = scans_within_memory(search, n_objects, dimension, metric is not None)
    with parallel.single_threaded_blas():  # the same bits however many cores
        if state is None:
            fresh, fresh_dual = _random_block(search, n_objects, dimension, metric, 0)
            basis: list[Float] = []
            dual = basis if metric is None else []
            state = LanczosState(
                search.block, basis, dual, fresh, fresh_dual, np.zeros((0, 0)), np.zeros((len(fresh), 0))
            )
        elif state.fresh.shape[1] != n_objects or state.block != search.block:
            raise InputError(
                f"the saved search has {count_text(state.fresh.shape[1], 'object')} and block {state.block}, this one"
                f" {n_objects:,} and block {search.block}",
                remedy="give the same, or start again",
            )
        elif (state.dual is state.basis) != (metric is None):
            raise InputError("the saved search and this one must both have a metric, or neither", remedy="start again")
        ritz = _Ritz(state) if state.scans else None
        while True:
            if ritz is not None and (stopped := _stop_reason(state, ritz, search, most)):
                return _result(state, ritz, search, stopped)
            _advance(state, operator, search, dimension, metric)
            ritz = _Ritz(state)
            low, high = ritz.pairs([0]), ritz.pairs([-1])
            ends = (low.values, low.residuals, high.values, high.residuals)
            state.history.append(tuple(float(end[0]) for end in ends))
            progress.current().say(f"Lanczos, eigenvalues from {low.values[0]:.5g} to {high.values[0]:.5g}")
            if on_step is not None:
                on_step(state)


class _Ritz:
    """Eigenvalues of the symmetric part of H, and their residuals."""

    def __init__(self, state: LanczosState) -> None:
        H = state.H
        self.state = state
        self.values, self.Y = np.linalg.eigh((H + H.T) / 2)
        self.skew = (H - H.T) / 2

    def parts(self, indices: list[int]) -> tuple[Float, Float]:
        """Return two parts of the squared residuals: the one that another step would reduce, and rounding."""
        y = self.Y[:, indices]
        beyond = self.state.R @ y[len(y) - self.state.R.shape[1] :]
        within = self.skew @ y
        return (beyond**2).sum(axis=0), (within**2).sum(axis=0) + self.state.noise**2

    def pairs(self, indices: list[int], *, vectors: bool = False) -> Pairs:
        """Return these Ritz values with their residuals, and with `vectors` their vectors."""
        beyond, rounding = self.parts(indices)
        columns = None
        if vectors:
            columns = np.zeros((self.state.fresh.shape[1], len(indices)))
            first = 0
            for rows in self.state.basis:
                columns += rows.T @ self.Y[first : first + len(rows), indices]
                first += len(rows)
        return Pairs(self.values[indices], np.sqrt(beyond + rounding), columns)


def _requested(ritz: _Ritz, search: Search) -> tuple[list[int], list[int]]:
    """Return the indices of the requested lowest and highest Ritz values, the outermost first."""
    size = len(ritz.values)
    return list(range(min(search.lowest, size))), [size - 1 - k for k in range(min(search.highest, size))]


def _stop_reason(state: LanczosState, ritz: _Ritz, search: Search, most: int) -> str:
    """Return why the search is finished, or an empty string if it is not."""
    low, high = _requested(ritz, search)
    beyond, rounding = ritz.parts(low + high)
    enough = np.maximum(search.tol * np.abs(ritz.values[low + high]), search.floor)
    if len(state.fresh) == 0:
        return "exhausted"
    if len(ritz.values) >= max(search.lowest, search.highest):
        small = beyond + rounding <= enough**2
        if small.all() and len(state.history) > 1:
            # A residual bounds the distance to some eigenvalue, not to the outermost: the values must be stable too.
            before, now = state.history[-2], state.history[-1]
            ends = [(first, k) for first, k, indices in ((0, 0, low), (len(low), 2, high)) if indices]
            if all(abs(now[k] - before[k]) <= enough[first] for first, k in ends):
                return "converged"
        if state.errors[1] and (small | (beyond <= rounding)).all() and not small.all():
            return "rounding"
    if state.scans < most:
        return ""
    return "scans" if most == search.max_scans else "memory"


def _result(state: LanczosState, ritz: _Ritz, search: Search, stopped: str) -> LanczosResult:
    low, high = (ritz.pairs(indices, vectors=search.vectors) for indices in _requested(ritz, search))
    residuals = ritz.pairs(list(range(len(ritz.values)))).residuals
    n, size = state.fresh.shape[1], len(ritz.values)
    dimension = n - 1 if search.centre else n
    first = min(state.block, size)  # the random block is the start of the basis
    weights = np.ones(size) if size == dimension else (ritz.Y[:first] ** 2).sum(axis=0) * (dimension / first)
    return LanczosResult(
        low, high, ritz.values, residuals, weights, state.noise, np.array(state.history), state.scans,
        stopped in ("converged", "exhausted"), stopped,
    )  # fmt: skip


def _advance(state: LanczosState, operator: Operator, search: Search, dimension: int, metric: Metric | None) -> None:
    """Multiply the current block by the operator and compute the next block."""
    n = state.fresh.shape[1]
    W = _rows(operator, state.fresh)
    if metric is not None:
        W = _rows(metric.solve, W)
    if search.centre:
        W -= W.mean(axis=1, keepdims=True)
    old, (k, last) = len(state.H), state.R.shape
    _append_rows(state.basis, state.fresh)
    if metric is not None:
        _append_rows(state.dual, state.fresh_dual)
    H = np.zeros((old + k, old + k))
    H[:old, :old] = state.H
    H[old:, old - last : old] = state.R
    before = float(np.linalg.norm(W, axis=1).max())
    # Large components first, those in the last two blocks: the rest is small then, and so are its rounding errors.
    close = _project(W, W, _last(state.basis, last + k), _last(state.dual, last + k))
    H[:, old:] = _project(W, W, state.basis, state.dual)
    H[old - last :, old:] += close
    far = H[: old - last, old:]
    if far.size:  # half of it comes from this product, half from earlier ones
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
        fresh, fresh_dual = _reorthogonalised(fresh, fresh_dual, state, metric)
        state.R = fresh_dual @ W.T
    if len(fresh) == 0 and room and len(H) < max(search.lowest, search.highest):
        # The block spans an invariant subspace, and more values are requested: continue with another block.
        fresh, fresh_dual = _random_block(search, n, room, metric, state.scans)
        fresh, fresh_dual = _reorthogonalised(fresh, fresh_dual, state, metric)
        state.R = np.zeros((len(fresh), k))
    state.fresh, state.fresh_dual = fresh, fresh_dual


def _is_long(R: Float, length: float) -> bool:
    """Return whether all directions of a new block have at least this length: then rounding is not amplified."""
    return len(R) > 0 and float(np.linalg.svd(R, compute_uv=False).min()) >= length


def _last(arrays: list[Float], count: int) -> list[Float]:
    """Return the last `count` rows."""
    last: list[Float] = []
    for rows in reversed(arrays):
        if count > 0:
            last.insert(0, rows[-count:])
            count -= len(rows)
    return last


def _project(W: Float, Z: Float, basis: list[Float], dual: list[Float]) -> Float:
    """Subtract from W its components in the basis, and from Z (which may be W) those in the dual; return coefficients.

    All rows of the basis at once, which reads it half as often as row by row. Rounding leaves errors of the size of the
    original W: where little of W remains, the projection is repeated (`_reorthogonalised`).
    """
    spans = [slice(at, at + SPAN) for at in range(0, W.shape[1], SPAN)]

    def coefficients(span: slice) -> Float:
        return np.vstack([_times(rows[:, span], W[:, span]) for rows in dual])

    def subtract(span: slice) -> None:
        first = 0
        for rows, of_dual in zip(basis, dual, strict=True):
            part = total[first : first + len(rows)].T
            _subtract(W[:, span], part, rows[:, span])
            if Z is not W:
                _subtract(Z[:, span], part, of_dual[:, span])
            first += len(rows)

    if not basis:
        return np.zeros((0, len(W)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the spans, and the order of their sum, do not depend on it
        total = np.add.reduce(list(pool.map(coefficients, spans)))
        list(pool.map(subtract, spans))
    return np.asarray(total, dtype=np.float64)


def _times(rows: Float, W: Float) -> Float:
    """Return rows @ W.T."""
    result = np.zeros((len(W), len(rows)))
    return result.T if products._add_products_native(rows, None, W, result, None) else rows @ W.T


def _subtract(W: Float, part: Float, rows: Float) -> None:
    """Subtract part @ rows from W in place."""
    if not products._add_products_native(rows, np.ascontiguousarray(-part), None, None, W):
        W -= part @ rows


def _append_rows(arrays: list[Float], rows: Float) -> None:
    """Append rows to the last array until it has `BASIS_ROWS`: a few large products are faster than many small ones."""
    if arrays and len(arrays[-1]) < BASIS_ROWS:
        arrays[-1] = np.vstack([arrays[-1], rows])
    else:
        arrays.append(rows)


def _orthonormal(W: Float, Z: Float, *, smallest: float, most: int) -> tuple[Float, Float]:
    """Return orthonormal rows that span those of W, with Z = B W (or W itself): Gram-Schmidt, the longest row first.

    Rows of which no more than `smallest` remains are dropped.
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


def _reorthogonalised(W: Float, Z: Float, state: LanczosState, metric: Metric | None) -> tuple[Float, Float]:
    """Return the block orthogonalised again: normalising short rows has amplified their rounding errors."""
    _project(W, Z, state.basis, state.dual)
    W, Z = _orthonormal(W, Z, smallest=0.1, most=len(W))
    return W, Z if metric is None else _rows(metric.product, W)


def _random_block(search: Search, n: int, room: int, metric: Metric | None, number: int) -> tuple[Float, Float]:
    """Return a random orthonormal block; each object has independent numbers."""
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
    """Return the operator applied to rows; a copy, because it may be its argument, and rows are modified."""
    product = np.array(operator(W.T).T, dtype=np.float64, order="C")
    if product.shape != W.shape:
        raise InputError(
            f"the operator returned shape {product.shape[::-1]} for {W.shape[::-1]}", remedy="keep the shape"
        )
    if not np.isfinite(product).all():
        raise InputError("the operator returned NaN or infinite values")
    return product


def search_memory(search: Search, n: int, dimension: int, metric: bool) -> tuple[int, int, int]:
    """Return the bytes of a search without its basis, those of the basis per scan, and the most useful scans."""
    k = min(search.block, dimension)
    step = 8 * n * k * (2 if metric else 1)
    all_scans = min(search.max_scans, math.ceil(dimension / k))
    # The block, its product and temporary copies; the last array of the basis while it grows; H, its eigenvectors and
    # other matrices of its size; scratch memory of projections; eigenvectors.
    work = 8 * step + step // k * min(BASIS_ROWS, k * all_scans) + 6 * 8 * (k * all_scans) ** 2
    work += (os.cpu_count() or 1) * products.scratch_memory(k, SPAN, 8)
    work += 8 * n * (search.lowest + search.highest) * search.vectors
    return work, step, all_scans


def scans_within_memory(search: Search, n: int, dimension: int, metric: bool) -> int:
    """Return how many scans the memory allows; raise `MemoryLimitError` if it does not allow two."""
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


def estimate_search(search: Search, n: int, *, metric: bool) -> tuple[int, int]:
    """Return the bytes that a search among centred vectors needs besides its products, and its scans; both at most."""
    work, step, all_scans = search_memory(search, n, n - 1, metric)
    scans = min(scans_within_memory(search, n, n - 1, metric), all_scans)
    return work + step * scans, scans
