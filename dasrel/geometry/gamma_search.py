"""Search gamma and alpha of the five methods of `euclideanize`; compute stress and duplicates.

Each method has a function that returns its `Shift`. The second half of the file holds three reductions over all pairs
of objects, each one scan: sums of D and Delta, row hashes, and pairs at dissimilarity 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.checkpoint import CheckpointWriter
from dasrel.engine.label_products import Squares
from dasrel.engine.reduce import Consumer, Kernel, Side, shares, strip_consumer
from dasrel.engine.relation import Relation, left_products
from dasrel.engine.scan import scan
from dasrel.errors import InputError
from dasrel.geometry.davidson import BLOCK, POINTS, Bracket, DavidsonSearch, Family, advance, boundary, is_positive
from dasrel.geometry.lanczos import LanczosResult, LanczosState, Metric, Search, lanczos
from dasrel.geometry.tree import Paths, Tree, Ultrametric, minimum_spanning_tree, ultrametric
from dasrel.kernels import products
from dasrel.kernels.products import View
from dasrel.util import Array, Float, progress
from dasrel.util.text import count_text, shown, some

Index = NDArray[np.int64]
MARGIN = 0.1
"""A parameter that is searched stays inside its boundary by this fraction: closer to it, gamma is not bounded."""


def n_eps(of: Relation) -> float:
    """Return the number of objects times the machine epsilon of the stored numbers."""
    return of.n_objects * float(np.finfo(of.matrix.dtype).eps)


@dataclass(frozen=True)
class SearchContext:
    """Arguments that all methods share."""

    base: Relation
    method: str
    tol: float
    max_scans: int
    memory: int
    rounding: float
    """Eigenvalues of W(D) above minus this count as not negative."""
    checkpoint: CheckpointWriter

    def multiply(self, wanted: list[tuple[Relation, Float]]) -> list[Float]:
        """Return U D for each (D, U), within the memory limit."""
        return left_products(wanted, memory=self.memory)


_NUMBERS = ("gamma", "value", "residual", "n_negative", "converged", "stopped", "alpha", "boundary")


@dataclass(frozen=True, eq=False)
class Shift:
    """gamma of a method, the eigenvalue that it follows from, and Delta."""

    gamma: float
    value: float
    residual: float
    n_negative: int
    converged: bool
    stopped: str = "converged"
    delta: View | Ultrametric | None = None
    alpha: float | None = None
    boundary: float | None = None
    merged: int = 0
    tree: Tree | None = None

    def packed(self) -> dict[str, Any]:
        """Return the numbers for a checkpoint; Delta follows from them and from the tree."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, "has_delta": self.delta is not None}


def search_shift(context: SearchContext, alpha: float | None) -> Shift:
    """Search gamma of the context's method, and alpha where the method has one and it is None."""
    tree, groups, merged = (None, None, 0) if context.method == "spread" else distinct_objects(context)
    saved = context.checkpoint.result("shift")
    if saved is not None:
        delta: View | Ultrametric | None = None
        if tree is not None and context.method == "ultrametric":
            delta = ultrametric(tree)
        elif saved["has_delta"]:
            delta = _view(context)(saved["alpha"]).view
        shift = Shift(**{name: saved[name] for name in _NUMBERS}, delta=delta)
    else:
        if tree is None:
            shift = spread_shift(context)
        elif context.method == "ultrametric":
            shift = ultrametric_shift(context, tree, groups)
        else:
            shift = fit_shift(context, tree, groups, alpha=alpha)
        context.checkpoint.finish("shift", shift.packed())
    return replace(shift, merged=merged, tree=tree if context.method == "ultrametric" else None)


def _search(context: SearchContext, search: Search, metric: Metric | None = None) -> LanczosResult:
    """Run a Lanczos search, saved after every scan."""
    return lanczos(
        partial(context.base.gram, memory=context.memory), context.base.n_objects, search=search, metric=metric,
        state=LanczosState.unpacked(context.checkpoint.state("lanczos")),
        on_step=lambda state: context.checkpoint.step("lanczos", state.packed),
    )  # fmt: skip


def spread_shift(context: SearchContext) -> Shift:
    """Search gamma = -2 lambda_1 of the method spread."""
    search = Search(tol=context.tol, floor=context.rounding, max_scans=context.max_scans, memory=context.memory)
    result = _search(context, search)
    value, residual = float(result.ritz[0]), float(result.ritz_residuals[0])
    converged = result.converged or residual <= context.rounding
    gamma = 0.0 if value >= -context.rounding and converged else max(0.0, -2 * (value - residual))
    n_negative = int((result.ritz < -context.rounding).sum())
    return Shift(gamma, value, residual, n_negative, converged, result.stopped)


def distinct_objects(context: SearchContext) -> tuple[Tree, Index | None, int]:
    """Return the spanning tree of D, groups of exact duplicates, and the number of superfluous objects.

    Zeros between objects that are no duplicates are refused.
    """
    base = context.base
    stored = _tree(context)
    steps = View("squared-distance", base.view.steps)
    heights = steps.apply(stored.squared[None], np.empty((1, len(stored.weights))), row_self=None, column_self=None)[0]
    top = np.full((1, 1), stored.largest[0] ** 2 if stored.kind == "distance" else stored.largest[0])
    largest = float(steps.apply(top, np.empty((1, 1)), row_self=None, column_self=None)[0, 0])
    weights = _with_ties(np.array(heights) + base.beta)
    tree = Tree(stored.edges, weights, (max(largest + base.beta, weights[-1]), *stored.largest[1:]), "squared-distance")
    groups = tree.components(0.0)
    members = np.bincount(groups)
    if members.max() == 1:
        return tree, None, 0
    hashes = context.checkpoint.result("marks")
    if hashes is None:
        hashes = row_hashes(base, memory=context.memory)
        context.checkpoint.finish("marks", hashes)
    first = np.zeros(len(members), dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    if (hashes != hashes[first[groups]]).any():
        count, pairs = unequal_zeros(base, hashes, memory=context.memory)
        ids = base.matrix.ids
        named = some([f"{shown(ids[i])} and {shown(ids[j])}" for i, j in pairs], total=count)
        raise InputError(
            f"{count_text(count, 'pair of objects has', 'pairs of objects have')} dissimilarity 0 but different rows,"
            f" so no gamma is large enough for the method {context.method}",
            where=named,
            remedy="say {floor_zeros=VALUE}, or {method=spread}",
        )
    return tree, groups, int(len(groups) - len(members))


def _tree(context: SearchContext) -> Tree:
    """Return the spanning tree of the stored values."""
    matrix = context.base.matrix
    saved = context.checkpoint.result("tree")
    if saved is not None:
        top, i, j = saved["largest"]
        return Tree(saved["edges"], saved["weights"], (top, i, j), matrix.kind)
    tree = minimum_spanning_tree(matrix, memory=context.memory)
    context.checkpoint.finish("tree", {"edges": tree.edges, "weights": tree.weights, "largest": tree.largest})
    return tree


def _with_ties(heights: Float) -> Float:
    """Return ascending heights with those that differ only by rounding made equal: ties that squaring has broken.

    A solve divides by differences of heights, and one of 1e-17 would dominate all others.
    """
    begins = np.flatnonzero(np.diff(heights, prepend=-1.0) > 1e-12 * heights)
    result: Float = np.repeat(heights[begins], np.diff(begins, append=len(heights)))
    return result


def ultrametric_shift(context: SearchContext, tree: Tree, groups: Index | None) -> Shift:
    """Search gamma of the ultrametric, by Lanczos in the inner product of W(Delta)."""
    delta = ultrametric(tree)
    if groups is not None and groups.max() == 0:  # all objects are duplicates
        return Shift(0.0, 0.0, 0.0, 0, True, delta=delta)
    search = Search(
        tol=context.tol, floor=n_eps(context.base), max_scans=context.max_scans, vectors=True, memory=context.memory
    )
    result = _search(context, search, Metric(delta.gram, delta.solve))
    value, residual = float(result.ritz[0]), float(result.ritz_residuals[0])
    # x'W(D)x / x'x at the lowest vector x may be zero up to rounding. Here x'W(Delta)x = 1.
    rounding = context.rounding * _squared_length(result, groups)
    converged = result.converged or residual <= rounding
    gamma = 0.0 if value >= -rounding and converged else max(0.0, residual - value)
    negative = int((result.ritz < -max(result.noise, rounding)).sum())
    return Shift(gamma, value, residual, negative, converged, result.stopped, delta)


def _squared_length(result: LanczosResult, groups: Index | None) -> float:
    """Return x'x of the lowest vector x, averaged over duplicates."""
    assert result.lowest.vectors is not None
    x = result.lowest.vectors[:, 0]
    if groups is not None:
        x = (np.bincount(groups, weights=x) / np.bincount(groups))[groups]
    x = x - x.mean()
    return float(x @ x)


def _view(context: SearchContext) -> Callable[[float], Relation]:
    """Return the function that maps a parameter to Delta."""
    base = context.base
    return {"power": base.power, "exponential": base.exponential, "log": base.log}[context.method]


def fit_shift(context: SearchContext, tree: Tree, groups: Index | None, *, alpha: float | None) -> Shift:
    """Search gamma of power, exponential or log, and alpha where it is None, by block Davidson."""
    base, checkpoint = context.base, context.checkpoint
    dimension = (base.n_objects if groups is None else int(groups.max()) + 1) - 1
    view = _view(context)
    nothing = Shift(0.0, 0.0, 0.0, 0, True, alpha=alpha)
    if dimension < 1:
        return nothing
    room = context.memory // (32 * base.n_objects)  # two or three vectors per row, and temporary copies of some

    def make(A: Relation, B: Relation | None = None, start: Float | None = None) -> DavidsonSearch[Relation]:
        several = POINTS + 1 if B is None else 2
        return DavidsonSearch(A, B, groups, dimension, max(5 * BLOCK, room // several), start)

    own = checkpoint.result("own") or _own(context, make)
    if own["verdict"]:
        return replace(nothing, value=own["value"], residual=own["residual"])
    left = context.max_scans - own["steps"]

    chosen = _Parameter(context, tree, view, make, alpha)
    refuting: Float | None = None
    for attempt in count():
        scans = left if refuting is None else max(5, left - checkpoint.scans + own["scans"])
        chosen.search(f"alpha {attempt}", refuting, scans)
        refuting = checkpoint.result(f"gamma {attempt}")
        if refuting is not None:
            continue
        search = make(base, view(chosen.alpha), own["vectors"])
        stopped = _search_lowest(search, context, max(5, left - checkpoint.scans + own["scans"]), f"gamma {attempt}")
        if not search.indefinite:
            break
        refuting = search.lowest_vectors
        checkpoint.finish(f"gamma {attempt}", refuting)
    negative = int((search.below < -context.rounding).sum())
    gamma = max(0.0, search.residual - search.value)
    return Shift(
        gamma, search.value, search.residual, negative, stopped == "converged", stopped, view(chosen.alpha).view,
        chosen.alpha, chosen.limit,
    )  # fmt: skip


def _own(context: SearchContext, make: _Make) -> dict[str, Any]:
    """Search whether D itself is Euclidean; return the verdict, the eigenvalue and the lowest vectors."""
    own = make(context.base)
    own.restore(context.checkpoint.state("own") or {})
    verdict = None
    while verdict is None and own.steps < context.max_scans:
        advance([own], context.multiply)
        verdict = _not_negative(own, context.rounding)
        if verdict is None:
            context.checkpoint.step("own", own.packed)
    result = {
        "verdict": verdict, "steps": own.steps, "value": own.value, "residual": own.residual,
        "vectors": own.lowest_vectors[:4], "scans": context.checkpoint.scans,
    }  # fmt: skip
    context.checkpoint.finish("own", result)
    return result


def _search_lowest(search: DavidsonSearch[Relation], context: SearchContext, scans: int, phase: str) -> str:
    """Run a search for gamma until it has converged, or to its limit; return why it stopped."""
    saved = context.checkpoint.state(phase)
    if saved is not None:
        search.restore(saved["search"])
        scans = saved["scans"]
    while search.steps < scans:
        advance([search], context.multiply)
        progress.current().say(f"gamma {-search.value:.6g}")
        if search.indefinite or search.exhausted or _converged(search, context.tol):
            return "converged"
        if _stagnant(search):
            return "rounding"
        if search.steps < scans:
            context.checkpoint.step(phase, lambda: {"search": search.packed(), "scans": scans})
    return "scans"


def _not_negative(search: DavidsonSearch[Relation], rounding: float) -> bool | None:
    """Return whether the lowest eigenvalue is at least 0 up to rounding; None while that is not known."""
    if search.value < -rounding:
        return False
    return True if search.possible_decrease <= rounding or search.value - search.possible_decrease > -rounding else None


def _converged(search: DavidsonSearch[Relation], tol: float) -> bool:
    """Return whether the residual is small and the value is stable."""
    enough = tol * abs(search.value)
    return search.residual <= enough and len(search.history) > 1 and abs(np.diff(search.history[-2:])[0]) <= enough


def _stagnant(search: DavidsonSearch[Relation]) -> bool:
    """Return whether the value has changed only by rounding in the last steps."""
    past, eps = search.history[-6:], float(np.finfo(search.A.matrix.dtype).eps)
    return len(past) == 6 and abs(past[0] - past[-1]) <= max(1e-12, eps) * abs(past[-1])


class _Make(Protocol):
    """Creates a search."""

    def __call__(
        self, A: Relation, B: Relation | None = None, start: Float | None = None
    ) -> DavidsonSearch[Relation]: ...


@dataclass
class _Parameter:
    """Search for the parameter of power, exponential and log."""

    context: SearchContext
    tree: Tree
    view: Callable[[float], Relation]
    make: _Make
    given: float | None
    alpha: float = math.nan
    limit: float | None = None
    """The boundary, where it was searched."""

    def search(self, phase: str, refuting: Float | None, scans: int) -> None:
        """Set `alpha` to the given parameter, if Delta is Euclidean there, or to the one nearest to the boundary.

        Parameters
        ----------
        refuting
            Vectors that show that Delta is not Euclidean at the previous parameter: take one farther inside.
        """
        checkpoint = self.context.checkpoint
        saved = checkpoint.result(phase)
        if saved is not None:
            self.alpha, self.limit = saved["alpha"], saved["limit"]
            return
        if self.given is None:
            ends = self._ends() if refuting is None else (self._ends()[0], self.alpha)
            self._search_boundary(ends, refuting, scans, phase)
        else:
            self._check_given(self.given, refuting, scans, phase)
        checkpoint.finish(phase, {"alpha": self.alpha, "limit": self.limit})

    def _check_given(self, given: float, refuting: Float | None, scans: int, phase: str) -> None:
        state = self.context.checkpoint.state(phase) or {}
        if refuting is not None or "bracket" in state:
            self._refuse(given, refuting, scans, phase)
        search = self.make(self.view(given))
        search.restore(state.get("search", {}))
        verdict = None
        while verdict is None and search.steps < scans:
            advance([search], self.context.multiply)
            verdict = is_positive(search, _rounding(search.A))
            if verdict is None:
                self.context.checkpoint.step(phase, lambda: {"search": search.packed()})
        if not verdict:
            self._refuse(given, search.lowest_vectors[:4], max(5, scans - search.steps), phase)
        self.alpha = given

    def _ends(self) -> tuple[float, float]:
        """Return a parameter for which Delta is nearly equal for all pairs, and one for which it is nearest to D."""
        if self.context.method != "exponential":
            return 1e-5, 1.0
        smallest = float(self.tree.weights[self.tree.weights > 0][0])
        return 20 / math.sqrt(smallest), 1e-3 / math.sqrt(self.tree.largest[0])

    def _search_boundary(self, ends: tuple[float, float], vectors: Float | None, scans: int, phase: str) -> None:
        state = self.context.checkpoint.state(phase)
        bracket = Bracket(*ends, vectors, scans) if state is None or "bracket" not in state else None
        if bracket is None:
            bracket, scans = Bracket(**state["bracket"]), state["scans"]
        limit, met = boundary(
            Family(self.view, _rounding), self.make, bracket, self.context.multiply,
            lambda packed: self.context.checkpoint.step(phase, lambda: {"bracket": packed(), "scans": scans}),
        )  # fmt: skip
        if math.isnan(limit):
            raise InputError(
                f"no alpha was found for which Delta of the method {self.context.method} is Euclidean within {scans}"
                " scans",
                remedy="raise {max_scans}, raise the smallest dissimilarities ({floor_zeros=VALUE}), or say"
                " {method=spread} or {method=ultrametric}",
            )
        inside = 1 + MARGIN if self.context.method == "exponential" else 1 - MARGIN
        self.limit, self.alpha = limit, limit * inside if met else limit

    def _refuse(self, given: float, vectors: Float | None, scans: int, phase: str) -> NoReturn:
        self._search_boundary((self._ends()[0], given), vectors, scans, phase)
        side = "at least" if self.context.method == "exponential" else "at most"
        raise InputError(
            f"Delta of the method {self.context.method} is not Euclidean at alpha {given:g}; the boundary is near"
            f" {self.limit:.4g}",
            remedy=f"take {side} {self.alpha:.4g}, or leave {{alpha}} out",
        )


def _rounding(delta: Relation) -> float:
    return n_eps(delta) * delta.largest()


# --------------------------------------------------------------------------------------------- one scan over all pairs

MOST_NAMED = 3
"""Pairs that a message names."""


@dataclass(frozen=True)
class Sums:
    """Sums over all pairs of objects; d is D, e is Delta."""

    pairs: int
    d: float
    dd: float
    e: float
    ee: float
    de: float
    low: int
    """Pairs with D at or below a bound."""

    def stress(self, gamma: float) -> float:
        """Return Kruskal's sqrt(sum (d - s d~)^2 / sum d^2) of d~ = d + gamma e, with the best scale s."""
        both, new = self.dd + gamma * self.de, self.dd + 2 * gamma * self.de + gamma**2 * self.ee
        return math.sqrt(max(0.0, 1 - both**2 / (self.dd * new))) if self.dd > 0 and new > 0 else 0.0

    def ratio(self, gamma: float) -> float:
        """Return the sum of gamma Delta over the sum of D."""
        return gamma * self.e / self.d if self.d > 0 else 0.0


def compare(
    D: Relation, delta: View | Ultrametric | None, *, bound: float = 0.0, memory: int | str | None = None
) -> Sums:
    """Compute sums over all pairs of D and Delta: a view of the same matrix, an ultrametric, or 1 for all pairs.

    `Sums.low` counts pairs whose stored squared dissimilarity is at or below `bound`.

    Cost: one scan. Sums are float64.
    """
    positions: Array | None = None
    heights: Float | None = None
    if isinstance(delta, Ultrametric):
        positions, heights = delta.positions, delta.heights
    kernel = _SumKernel(D.view, D.beta, delta if isinstance(delta, View) else None, heights, bound)
    tile = D.matrix.layout.tile
    task = 5 * 8 * products.panel_rows((tile, tile), 8) * tile + (0 if heights is None else heights.nbytes + 64 * tile)
    consumer = Consumer(kernel, lambda parts: Sums(*parts[0]), shares(D.matrix, positions=positions), task_memory=task)
    result: Sums = scan(D.matrix, [consumer], memory=memory)[0]
    return result


@dataclass(frozen=True)
class _SumKernel(Kernel):
    view: View
    beta: float
    delta: View | None
    heights: Float | None
    bound: float

    def empty(self, objects: int) -> Array:
        return np.zeros(7, dtype=object)

    def add(self, partial: Array, tile: Array, rows: Side, columns: Side) -> Array:
        row_self, column_self = rows.itself, columns.itself
        path = None if self.heights is None else Paths.of(self.heights, rows.get("positions"), columns.get("positions"))
        for band in products.panels(tile.shape, products.panel_rows(tile.shape, 8)):
            raw = tile[band].astype(np.float64)
            own = None if row_self is None else row_self[band]
            stored = View(self.view.kind).apply(raw, np.empty_like(raw), row_self=own, column_self=column_self)
            d = self.view.apply(raw, np.empty_like(raw), row_self=own, column_self=column_self) + self.beta
            if path is not None:
                e = path.between(band)
            elif self.delta is not None:
                e = self.delta.apply(raw, np.empty_like(raw), row_self=own, column_self=column_self)
            else:
                e = np.ones_like(d)
            low = stored <= self.bound
            if rows is columns:
                above = np.arange(d.shape[1])[None, :] > np.arange(band.start, band.stop)[:, None]
                d, e, low = d * above, e * above, low & above
                count = int(above.sum())
            else:
                count = d.size
            sums = (d.sum(), np.vdot(d, d), e.sum(), np.vdot(e, e), np.vdot(d, e))
            partial = partial + np.array([count, *(float(x) for x in sums), int(low.sum())], dtype=object)
        return partial


def row_hashes(D: Relation, *, memory: int | str | None = None) -> NDArray[np.uint64]:
    """Compute a hash of each object's row; different rows have equal hashes with a probability of 2^-60.

    Sums of the values' bits times random odd numbers, modulo 2^64: exact in any order.

    Cost: one scan.
    """
    source, n = D.matrix, D.n_objects
    weights = np.random.default_rng(0).integers(0, 2**63, size=n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    tile = source.layout.tile
    consumer = strip_consumer(
        source, _HashKernel(Squares(D.view)), lambda parts: np.concatenate([parts[strip] for strip in sorted(parts)]),
        shares(source, weights=weights), sent=8, held=0,
        scratch=5 * 8 * products.panel_rows((tile, tile), 8) * tile,
    )  # fmt: skip
    result: NDArray[np.uint64] = scan(source, [consumer], memory=memory)[0]
    return result


@dataclass(frozen=True)
class _HashKernel(Kernel):
    in_strips = True
    squares: Squares

    def empty(self, objects: int) -> NDArray[np.uint64]:
        return np.zeros(objects, dtype=np.uint64)

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        of_rows, of_columns = rows.get("weights"), columns.get("weights")
        down, across = partial[0][rows.inside], partial[1][columns.inside]
        for band, D in self.squares.bands(tile, rows, columns):
            bits = (D.astype(np.float64) + 0.0).view(np.uint64)  # minus zero is zero
            down[band] += (bits * of_columns).sum(axis=1, dtype=np.uint64)
            if rows is not columns:
                across += (bits * of_rows[band, None]).sum(axis=0, dtype=np.uint64)
        return partial


def unequal_zeros(
    D: Relation, hashes: NDArray[np.uint64], *, memory: int | str | None = None
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many pairs have D <= 0 but different rows, and the first of them.

    Cost: one scan.
    """
    tile = D.matrix.layout.tile
    consumer = Consumer(
        _ZeroKernel(Squares(D.view)), share=shares(D.matrix, hashes=hashes),
        task_memory=5 * 8 * products.panel_rows((tile, tile), 8) * tile,
    )  # fmt: skip
    count, pairs = scan(D.matrix, [consumer], memory=memory)[0]
    return count, pairs


@dataclass(frozen=True)
class _ZeroKernel(Kernel):
    squares: Squares

    def empty(self, objects: int) -> tuple[int, list[Any]]:
        return 0, []

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        of_rows, of_columns = rows.get("hashes"), columns.get("hashes")
        for band, D in self.squares.bands(tile, rows, columns):
            p, q = np.nonzero(D <= 0)
            p = p + band.start
            keep = of_rows[p] != of_columns[q]
            if rows is columns:
                keep &= p < q
            p, q = p[keep] + rows.span.start, q[keep] + columns.span.start
            named = list(zip(p[:MOST_NAMED].tolist(), q[:MOST_NAMED].tolist(), strict=True))
            partial = self.combine(partial, (len(p), named))
        return partial

    def combine(self, first: Any, second: Any) -> Any:
        return first[0] + second[0], (first[1] + second[1])[:MOST_NAMED]
