"""Search gamma and alpha of the five Euclideanisations; stress and duplicates.

gamma of each of the five methods of `euclidean`, and alpha where there is one. Nothing here is public.

Questions about pairs that one scan answers: how far D + gamma Delta is from D, and which objects are duplicates.
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
from dasrel.engine.relation import Relation
from dasrel.engine.scan import Consumer, Plan, TileSource, scan
from dasrel.errors import InputError
from dasrel.geometry.davidson import BLOCK, POINTS, Bracket, DavidsonSearch, Range, advance, boundary, is_positive
from dasrel.geometry.lanczos import LanczosResult, LanczosState, Metric, Search, lanczos
from dasrel.geometry.tree import Paths, Tree, Ultrametric, minimum_spanning_tree, ultrametric
from dasrel.kernels import products
from dasrel.kernels.products import View
from dasrel.util import Float, progress
from dasrel.util.text import count_text, shown, some

Index = NDArray[np.int64]
MARGIN = 0.1
"""A parameter that is looked for lies inside its boundary by this fraction: nearer to it, gamma grows beyond bounds."""


def n_eps(of: Relation) -> float:
    """Number of objects times the rounding of the stored numbers."""
    return of.n_objects * float(np.finfo(of.matrix.dtype).eps)


@dataclass(frozen=True)
class SearchContext:
    """What all methods are given."""

    base: Relation
    method: str
    tol: float
    max_scans: int
    memory: int
    rounding: float
    """Eigenvalues of W(D) above minus this count as not negative."""
    keep: CheckpointWriter


_NUMBERS = ("gamma", "value", "residual", "n_negative", "converged", "stopped", "alpha", "boundary")


@dataclass(frozen=True, eq=False)
class Result:
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
        """For a checkpoint: the numbers; Delta follows from them and from the tree."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, "has_delta": self.delta is not None}


def shift(work: SearchContext, alpha: float | None) -> Result:
    """gamma of the method asked for, with all that goes with it."""
    tree, groups, merged = (None, None, 0) if work.method == "spread" else leaves(work)
    kept = work.keep.result("shift")
    if kept is not None:
        delta: View | Ultrametric | None = None
        if tree is not None and work.method == "ultrametric":
            delta = ultrametric(tree)
        elif kept["has_delta"]:
            delta = _view(work)(kept["alpha"]).view
        found = Result(**{name: kept[name] for name in _NUMBERS}, delta=delta)
    else:
        if tree is None:
            found = spread_shift(work)
        elif work.method == "ultrametric":
            found = ultrametric_shift(work, tree, groups)
        else:
            found = fit_shift(work, tree, groups, alpha=alpha)
        work.keep.finish("shift", found.packed())
    return replace(found, merged=merged, tree=tree if work.method == "ultrametric" else None)


def _search(work: SearchContext, search: Search, metric: Metric | None = None) -> LanczosResult:
    """A Lanczos search that is kept scan by scan."""
    return lanczos(
        partial(work.base.gram, memory=work.memory), work.base.n_objects, search=search, metric=metric,
        state=LanczosState.unpacked(work.keep.state("lanczos")),
        on_step=lambda at: work.keep.step("lanczos", at.packed),
    )  # fmt: skip


def spread_shift(work: SearchContext) -> Result:
    search = Search(tol=work.tol, floor=work.rounding, max_scans=work.max_scans, memory=work.memory)
    found = _search(work, search)
    value, residual = float(found.ritz[0]), float(found.ritz_residuals[0])
    settled = found.converged or residual <= work.rounding
    gamma = 0.0 if value >= -work.rounding and settled else max(0.0, -2 * (value - residual))
    n_negative = int((found.ritz < -work.rounding).sum())
    return Result(gamma, value, residual, n_negative, found.converged or settled, found.stopped)


def leaves(work: SearchContext) -> tuple[Tree, Index | None, int]:
    """The spanning tree of D, which objects are exact duplicates, and how many could go; other zeros are refused."""
    base = work.base
    seen = _tree(work)
    steps = View("squared-distance", base.view.steps)
    heights = steps.apply(seen.squared[None], np.empty((1, len(seen.weights))), row_self=None, column_self=None)[0]
    top = np.full((1, 1), seen.largest[0] ** 2 if seen.kind == "distance" else seen.largest[0])
    largest = float(steps.apply(top, np.empty((1, 1)), row_self=None, column_self=None)[0, 0])
    weights = _snapped(np.array(heights) + base.beta)
    tree = Tree(seen.edges, weights, (max(largest + base.beta, weights[-1]), *seen.largest[1:]), "squared-distance")
    groups = tree.components(0.0)
    members = np.bincount(groups)
    if members.max() == 1:
        return tree, None, 0
    marks = work.keep.result("marks")
    if marks is None:
        marks = row_marks(base, memory=work.memory)
        work.keep.finish("marks", marks)
    first = np.zeros(len(members), dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    if (marks != marks[first[groups]]).any():
        count, pairs = unequal_zeros(base, marks, memory=work.memory)
        ids = base.matrix.ids
        named = some([f"{shown(ids[i])} and {shown(ids[j])}" for i, j in pairs], total=count)
        raise InputError(
            f"{count_text(count, 'pair of objects has', 'pairs of objects have')} dissimilarity 0 but different rows,"
            f" so no gamma is large enough for the method {work.method}",
            where=named,
            remedy="say {floor_zeros=VALUE}, or {method=spread}",
        )
    return tree, groups, int(len(groups) - len(members))


def _tree(work: SearchContext) -> Tree:
    """The spanning tree of the stored values."""
    matrix = work.base.matrix
    kept = work.keep.result("tree")
    if kept is not None:
        top, i, j = kept["largest"]
        return Tree(kept["edges"], kept["weights"], (top, i, j), matrix.kind)
    tree = minimum_spanning_tree(matrix, memory=work.memory)
    work.keep.finish("tree", {"edges": tree.edges, "weights": tree.weights, "largest": tree.largest})
    return tree


def _snapped(heights: Float) -> Float:
    """Ascending heights that differ by rounding only, made equal: ties that squaring or sums have broken.

    A solve divides by differences of heights, and 1e-17 of rounding would swamp all others.
    """
    begins = np.flatnonzero(np.diff(heights, prepend=-1.0) > 1e-12 * heights)
    result: Float = np.repeat(heights[begins], np.diff(begins, append=len(heights)))
    return result


def ultrametric_shift(work: SearchContext, tree: Tree, groups: Index | None) -> Result:
    delta = ultrametric(tree)
    if groups is not None and groups.max() == 0:  # all objects are one
        return Result(0.0, 0.0, 0.0, 0, True, delta=delta)
    search = Search(tol=work.tol, floor=n_eps(work.base), max_scans=work.max_scans, vectors=True, memory=work.memory)
    found = _search(work, search, Metric(delta.gram, delta.solve))
    value, residual = float(found.ritz[0]), float(found.ritz_residuals[0])
    # x'W(D)x / x'x at the lowest vector x may be zero but for rounding. Here x'W(Delta)x = 1.
    allowed = work.rounding * _squared_length(found, groups)
    settled = found.converged or residual <= allowed
    gamma = 0.0 if value >= -allowed and settled else max(0.0, residual - value)
    negative = int((found.ritz < -max(found.noise, allowed)).sum())
    return Result(gamma, value, residual, negative, settled, found.stopped, delta)


def _squared_length(found: LanczosResult, groups: Index | None) -> float:
    """x'x of the lowest vector x; what it has in directions that only tell duplicates apart is left out."""
    assert found.lowest.vectors is not None
    x = found.lowest.vectors[:, 0]
    if groups is not None:
        x = (np.bincount(groups, weights=x) / np.bincount(groups))[groups]
    x = x - x.mean()
    return float(x @ x)


def _view(work: SearchContext) -> Callable[[float], Relation]:
    """What makes Delta of a parameter."""
    base = work.base
    return {"power": base.power, "exponential": base.exponential, "log": base.log}[work.method]


def fit_shift(work: SearchContext, tree: Tree, groups: Index | None, *, alpha: float | None) -> Result:
    base, keep = work.base, work.keep
    dimension = (base.n_objects if groups is None else int(groups.max()) + 1) - 1
    view = _view(work)
    nothing = Result(0.0, 0.0, 0.0, 0, True, alpha=alpha)
    if dimension < 1:
        return nothing
    room = work.memory // (32 * base.n_objects)  # two or three vectors a row, and copies of some on the way

    def make(A: Relation, B: Relation | None = None, start: Float | None = None) -> DavidsonSearch:
        several = POINTS + 1 if B is None else 2
        return DavidsonSearch(A, B, groups, dimension, max(5 * BLOCK, room // several), start)

    own = keep.result("own") or _own(work, make)
    if own["verdict"]:
        return replace(nothing, value=own["value"], residual=own["residual"])
    left = work.max_scans - own["steps"]

    chosen = _Parameter(work, tree, view, make, alpha)
    refuting: Float | None = None
    for attempt in count():
        scans = left if refuting is None else max(5, left - keep.scans + own["scans"])
        chosen.look(f"alpha {attempt}", refuting, scans)
        refuting = keep.result(f"gamma {attempt}")
        if refuting is not None:
            continue
        search = make(base, view(chosen.alpha), own["vectors"])
        stopped = _lowest(search, work, max(5, left - keep.scans + own["scans"]), f"gamma {attempt}")
        if not search.indefinite:
            break
        refuting = search.lowest_vectors
        keep.finish(f"gamma {attempt}", refuting)
    negative = int((search.below < -work.rounding).sum())
    gamma = max(0.0, search.residual - search.value)
    return Result(
        gamma, search.value, search.residual, negative, stopped == "converged", stopped, view(chosen.alpha).view,
        chosen.alpha, chosen.limit,
    )  # fmt: skip


def _own(work: SearchContext, make: _Make) -> dict[str, Any]:
    """Whether D itself is Euclidean, and the vectors that say so or not."""
    own = make(work.base)
    own.restore(work.keep.state("own") or {})
    verdict = None
    while verdict is None and own.steps < work.max_scans:
        advance([own], work.memory)
        verdict = _not_negative(own, work.rounding)
        if verdict is None:
            work.keep.step("own", own.packed)
    found = {
        "verdict": verdict, "steps": own.steps, "value": own.value, "residual": own.residual,
        "vectors": own.lowest_vectors[:4], "scans": work.keep.scans,
    }  # fmt: skip
    work.keep.finish("own", found)
    return found


def _lowest(search: DavidsonSearch, work: SearchContext, scans: int, phase: str) -> str:
    """Go on with a search for gamma until it is near enough, or why not."""
    kept = work.keep.state(phase)
    if kept is not None:
        search.restore(kept["search"])
        scans = kept["scans"]
    while search.steps < scans:
        advance([search], work.memory)
        progress.current().say(f"gamma {-search.value:.6g}")
        if search.indefinite or search.exhausted or _settled(search, work.tol):
            return "converged"
        if _stagnant(search):
            return "rounding"
        if search.steps < scans:
            work.keep.step(phase, lambda: {"search": search.packed(), "scans": scans})
    return "scans"


def _not_negative(search: DavidsonSearch, rounding: float) -> bool | None:
    """Whether the lowest eigenvalue is 0 or above but for rounding; None while that is open."""
    if search.value < -rounding:
        return False
    return True if search.to_come <= rounding or search.value - search.to_come > -rounding else None


def _settled(search: DavidsonSearch, tol: float) -> bool:
    """Small residual, and the value has come to rest."""
    enough = tol * abs(search.value)
    return search.residual <= enough and len(search.history) > 1 and abs(np.diff(search.history[-2:])[0]) <= enough


def _stagnant(search: DavidsonSearch) -> bool:
    """No more is gained: the value has moved by rounding only in the last steps."""
    past, eps = search.history[-6:], float(np.finfo(search.A.matrix.dtype).eps)
    return len(past) == 6 and abs(past[0] - past[-1]) <= max(1e-12, eps) * abs(past[-1])


class _Make(Protocol):
    """Begins a search."""

    def __call__(self, A: Relation, B: Relation | None = None, start: Float | None = None) -> DavidsonSearch: ...


@dataclass
class _Parameter:
    """Chooses the parameter of power, exponential and log."""

    work: SearchContext
    tree: Tree
    view: Callable[[float], Relation]
    make: _Make
    given: float | None
    alpha: float = math.nan
    limit: float | None = None
    """The boundary, where it was looked for."""

    def look(self, phase: str, refuting: Float | None, scans: int) -> None:
        """The parameter given, if Delta is Euclidean there, or the one nearest to the boundary.

        Parameters
        ----------
        refuting
            Vectors that show that Delta is not Euclidean at the parameter chosen before: take one farther inside.
        """
        keep = self.work.keep
        kept = keep.result(phase)
        if kept is not None:
            self.alpha, self.limit = kept["alpha"], kept["limit"]
            return
        if self.given is None:
            ends = self._ends() if refuting is None else (self._ends()[0], self.alpha)
            self._search(ends, refuting, scans, phase)
        else:
            self._try(self.given, refuting, scans, phase)
        keep.finish(phase, {"alpha": self.alpha, "limit": self.limit})

    def _try(self, given: float, refuting: Float | None, scans: int, phase: str) -> None:
        state = self.work.keep.state(phase) or {}
        if refuting is not None or "bracket" in state:
            self._refuse(given, refuting, scans, phase)
        search = self.make(self.view(given))
        search.restore(state.get("search", {}))
        verdict = None
        while verdict is None and search.steps < scans:
            advance([search], self.work.memory)
            verdict = is_positive(search, _rounding(search.A))
            if verdict is None:
                self.work.keep.step(phase, lambda: {"search": search.packed()})
        if not verdict:
            self._refuse(given, search.lowest_vectors[:4], max(5, scans - search.steps), phase)
        self.alpha = given

    def _ends(self) -> tuple[float, float]:
        """A parameter for which Delta is nearly the same for all pairs, and the one nearest to D."""
        if self.work.method != "exponential":
            return 1e-5, 1.0
        smallest = float(self.tree.weights[self.tree.weights > 0][0])
        return 20 / math.sqrt(smallest), 1e-3 / math.sqrt(self.tree.largest[0])

    def _search(self, ends: tuple[float, float], vectors: Float | None, scans: int, phase: str) -> None:
        state = self.work.keep.state(phase)
        bracket = Bracket(*ends, vectors, scans) if state is None or "bracket" not in state else None
        if bracket is None:
            bracket, scans = Bracket(**state["bracket"]), state["scans"]
        limit, met = boundary(
            Range(self.view, _rounding), self.make, bracket, self.work.memory,
            lambda packed: self.work.keep.step(phase, lambda: {"bracket": packed(), "scans": scans}),
        )  # fmt: skip
        if math.isnan(limit):
            raise InputError(
                f"no alpha was found for which Delta of the method {self.work.method} is Euclidean within {scans}"
                " scans",
                remedy="raise {max_scans}, raise the smallest dissimilarities ({floor_zeros=VALUE}), or say"
                " {method=spread} or {method=ultrametric}",
            )
        inside = 1 + MARGIN if self.work.method == "exponential" else 1 - MARGIN
        self.limit, self.alpha = limit, limit * inside if met else limit

    def _refuse(self, given: float, vectors: Float | None, scans: int, phase: str) -> NoReturn:
        self._search((self._ends()[0], given), vectors, scans, phase)
        side = "at least" if self.work.method == "exponential" else "at most"
        raise InputError(
            f"Delta of the method {self.work.method} is not Euclidean at alpha {given:g}; the boundary is near"
            f" {self.limit:.4g}: take {side} {self.alpha:.4g}, or leave alpha out"
        )


def _rounding(delta: Relation) -> float:
    return n_eps(delta) * delta.largest()


Array = NDArray[Any]
MOST_NAMED = 3


@dataclass(frozen=True)
class Sums:
    """Over all pairs of objects: d is D, e is Delta."""

    pairs: int
    d: float
    dd: float
    e: float
    ee: float
    de: float
    low: int
    """Pairs with D at or below a bound."""

    def stress(self, gamma: float) -> float:
        """Kruskal's sqrt(sum (d - s d~)^2 / sum d^2) of d~ = d + gamma e, with the best scale s."""
        both, new = self.dd + gamma * self.de, self.dd + 2 * gamma * self.de + gamma**2 * self.ee
        return math.sqrt(max(0.0, 1 - both**2 / (self.dd * new))) if self.dd > 0 and new > 0 else 0.0

    def ratio(self, gamma: float) -> float:
        """Sum of gamma Delta over the sum of D."""
        return gamma * self.e / self.d if self.d > 0 else 0.0


def compare(
    D: Relation, delta: View | Ultrametric | None, *, bound: float = 0.0, memory: int | str | None = None
) -> Sums:
    """Sums over all pairs of D and Delta: a view of the same matrix, an ultrametric, or 1 for all pairs.

    `Sums.low` counts pairs of which the stored squared dissimilarity is at or below `bound`.

    Cost: one scan. Sums are float64.
    """
    places: Array | None = None
    heights: Float | None = None
    if isinstance(delta, Ultrametric):
        places, heights = delta.places, delta.heights
    kernel = _Sums(D.view, D.beta, delta if isinstance(delta, View) else None, heights, bound)
    tile = D.matrix.layout.tile
    task = 5 * 8 * products.panel_rows((tile, tile), 8) * tile + (0 if heights is None else heights.nbytes + 64 * tile)
    consumer = Consumer(kernel, lambda parts: Sums(*parts[0]), _shares(D.matrix, places), task_memory=task)
    result: Sums = scan(D.matrix, [consumer], memory=memory)[0]
    return result


def _shares(source: TileSource, places: Array | None = None) -> Any:
    own = source.diagonal

    def share(span: slice) -> tuple[Array | None, Array | None]:
        return None if own is None else own[span], None if places is None else places[span]

    return share


@dataclass(frozen=True)
class _Sums:
    view: View
    beta: float
    delta: View | None
    heights: Float | None
    bound: float

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        return plan, shares, np.zeros(7, dtype=object)

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (rows, columns), so_far = partial
        r, c = plan.inside(i), plan.inside(j)
        row_self, column_self = (None if s[0] is None else s[0][k] for s, k in ((rows, r), (columns, c)))
        path = None if self.heights is None else Paths.of(self.heights, rows[1][r], columns[1][c])
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
            if i == j:
                above = np.arange(d.shape[1])[None, :] > np.arange(band.start, band.stop)[:, None]
                d, e, low = d * above, e * above, low & above
                count = int(above.sum())
            else:
                count = d.size
            sums = (d.sum(), np.vdot(d, d), e.sum(), np.vdot(e, e), np.vdot(d, e))
            so_far = so_far + np.array([count, *(float(x) for x in sums), int(low.sum())], dtype=object)
        return plan, (rows, columns), so_far

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Array, second: Array) -> Array:
        return first + second


def row_marks(D: Relation, *, memory: int | str | None = None) -> NDArray[np.uint64]:
    """A number for each object; objects with equal rows have equal numbers, others have not (but once in 2^60).

    Sums of the values' bits times random odd numbers, in whole numbers modulo 2^64: exact whatever the order.

    Cost: one scan.
    """
    source, n = D.matrix, D.n_objects
    weights = np.random.default_rng(0).integers(0, 2**63, size=n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    plan = Plan(source.layout)

    def finish(parts: dict[int, Array]) -> NDArray[np.uint64]:
        return np.concatenate([parts[strip] for strip in range(plan.strips)])

    tile = source.layout.tile
    consumer = Consumer(
        _Marks(D.view), finish, _shares(source, weights.view(np.int64)), in_strips=True,
        part_bytes=16 * plan.group_side * tile, task_memory=5 * 8 * products.panel_rows((tile, tile), 8) * tile,
    )  # fmt: skip
    result: NDArray[np.uint64] = scan(source, [consumer], memory=memory)[0]
    return result


@dataclass(frozen=True)
class _Marks:
    view: View

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        sums = {strip: np.zeros(len(share[1]), dtype=np.uint64) for strip, share in zip(group, shares, strict=True)}
        return plan, group, shares, sums

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (a, b), (rows, columns), sums = partial
        r, c = plan.inside(i), plan.inside(j)
        row_self, column_self = (None if s[0] is None else s[0][k] for s, k in ((rows, r), (columns, c)))
        of_rows, of_columns = rows[1][r].view(np.uint64), columns[1][c].view(np.uint64)
        for band in products.panels(tile.shape, products.panel_rows(tile.shape, 8)):
            own = None if row_self is None else row_self[band]
            raw = tile[band]
            offset = band.start if i == j else None
            seen = self.view.apply(raw, np.empty_like(raw), offset=offset, row_self=own, column_self=column_self)
            bits = (seen.astype(np.float64) + 0.0).view(np.uint64)  # minus zero is zero
            sums[a][r][band] += (bits * of_columns).sum(axis=1, dtype=np.uint64)
            if i != j:
                sums[b][c] += (bits * of_rows[band, None]).sum(axis=0, dtype=np.uint64)
        return partial

    def parts(self, partial: Any) -> dict[int, Any]:
        sums: dict[int, Any] = partial[3]
        return sums

    def combine(self, first: Array, second: Array) -> Array:
        result: Array = first + second
        return result


def unequal_zeros(
    D: Relation, marks: NDArray[np.uint64], *, memory: int | str | None = None
) -> tuple[int, list[tuple[int, int]]]:
    """How many pairs have D <= 0 but different rows, and the first of them.

    Cost: one scan.
    """
    kernel = _Zeros(D.view)
    consumer = Consumer(
        kernel, lambda parts: parts[0], _shares(D.matrix, marks.view(np.int64)),
        task_memory=5 * 8 * products.panel_rows((D.matrix.layout.tile,) * 2, 8) * D.matrix.layout.tile,
    )  # fmt: skip
    count, pairs = scan(D.matrix, [consumer], memory=memory)[0]
    return count, pairs


@dataclass(frozen=True)
class _Zeros:
    view: View

    def begin(self, plan: Plan, group: tuple[int, int], shares: tuple[Any, Any]) -> Any:
        return plan, shares, (0, [])

    def add(self, partial: Any, tile: Array, i: int, j: int) -> Any:
        plan, (rows, columns), so_far = partial
        r, c = plan.inside(i), plan.inside(j)
        row_self, column_self = (None if s[0] is None else s[0][k] for s, k in ((rows, r), (columns, c)))
        first_row, first_column = plan.layout.span(i).start, plan.layout.span(j).start
        for band in products.panels(tile.shape, products.panel_rows(tile.shape, 8)):
            own = None if row_self is None else row_self[band]
            raw = tile[band]
            seen = self.view.apply(raw, np.empty_like(raw), row_self=own, column_self=column_self)
            p, q = np.nonzero(seen <= 0)
            p = p + band.start
            keep = rows[1][r][p] != columns[1][c][q]
            if i == j:
                keep &= p < q
            p, q = p[keep] + first_row, q[keep] + first_column
            named = list(zip(p[:MOST_NAMED].tolist(), q[:MOST_NAMED].tolist(), strict=True))
            so_far = self.combine(so_far, (len(p), named))
        return plan, (rows, columns), so_far

    def parts(self, partial: Any) -> dict[int, Any]:
        return {0: partial[2]}

    def combine(self, first: Any, second: Any) -> Any:
        return first[0] + second[0], (first[1] + second[1])[:MOST_NAMED]
