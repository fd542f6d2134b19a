"""gamma of each of the five methods of `euclidean`, and alpha where there is one. Nothing here is public."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from dasrel import distortion, meter
from dasrel.checkpoint import Keeper
from dasrel.errors import InputError, count_text, shown, some
from dasrel.lanczos import Found, Metric, Search, State, lanczos
from dasrel.pencil import BLOCK, POINTS, Bracket, Lowest, Range, advance, boundary, is_positive
from dasrel.relation import Relation
from dasrel.tiles import View
from dasrel.tree import Tree, minimum_spanning_tree
from dasrel.ultrametric import Ultrametric, ultrametric

Float = NDArray[np.float64]
Index = NDArray[np.int64]

MARGIN = 0.1
"""A parameter that is looked for lies inside its boundary by this fraction: nearer to it, gamma grows beyond bounds."""


def n_eps(of: Relation) -> float:
    """Number of objects times the rounding of the stored numbers."""
    return of.n_objects * float(np.finfo(of.matrix.dtype).eps)


@dataclass(frozen=True)
class Work:
    """What all methods are given."""

    base: Relation
    method: str
    tol: float
    max_scans: int
    memory: int
    rounding: float
    """Eigenvalues of W(D) above minus this count as not negative."""
    keep: Keeper


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


def shift(work: Work, alpha: float | None) -> Result:
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


def _search(work: Work, search: Search, metric: Metric | None = None) -> Found:
    """A Lanczos search that is kept scan by scan."""
    return lanczos(
        partial(work.base.gram, memory=work.memory), work.base.n_objects, search=search, metric=metric,
        state=State.unpacked(work.keep.state("lanczos")), on_step=lambda at: work.keep.step("lanczos", at.packed),
    )  # fmt: skip


def spread_shift(work: Work) -> Result:
    search = Search(tol=work.tol, floor=work.rounding, max_scans=work.max_scans, memory=work.memory)
    found = _search(work, search)
    value, residual = float(found.ritz[0]), float(found.ritz_residuals[0])
    settled = found.converged or residual <= work.rounding
    gamma = 0.0 if value >= -work.rounding and settled else max(0.0, -2 * (value - residual))
    n_negative = int((found.ritz < -work.rounding).sum())
    return Result(gamma, value, residual, n_negative, found.converged or settled, found.stopped)


def leaves(work: Work) -> tuple[Tree, Index | None, int]:
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
        marks = distortion.row_marks(base, memory=work.memory)
        work.keep.finish("marks", marks)
    first = np.zeros(len(members), dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    if (marks != marks[first[groups]]).any():
        count, pairs = distortion.unequal_zeros(base, marks, memory=work.memory)
        ids = base.matrix.ids
        named = some([f"{shown(ids[i])} and {shown(ids[j])}" for i, j in pairs], total=count)
        raise InputError(
            f"{count_text(count, 'pair of objects has', 'pairs of objects have')} dissimilarity 0 but different rows"
            f" ({named}), so no gamma is large enough"
            f" for the method {work.method}: use floor_zeros (--floor-zeros VALUE), or the method spread"
        )
    return tree, groups, int(len(groups) - len(members))


def _tree(work: Work) -> Tree:
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


def ultrametric_shift(work: Work, tree: Tree, groups: Index | None) -> Result:
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


def _squared_length(found: Found, groups: Index | None) -> float:
    """x'x of the lowest vector x; what it has in directions that only tell duplicates apart is left out."""
    assert found.lowest.vectors is not None
    x = found.lowest.vectors[:, 0]
    if groups is not None:
        x = (np.bincount(groups, weights=x) / np.bincount(groups))[groups]
    x = x - x.mean()
    return float(x @ x)


def _view(work: Work) -> Callable[[float], Relation]:
    """What makes Delta of a parameter."""
    base = work.base
    return {"power": base.power, "exponential": base.exponential, "log": base.log}[work.method]


def fit_shift(work: Work, tree: Tree, groups: Index | None, *, alpha: float | None) -> Result:
    base, keep = work.base, work.keep
    dimension = (base.n_objects if groups is None else int(groups.max()) + 1) - 1
    view = _view(work)
    nothing = Result(0.0, 0.0, 0.0, 0, True, alpha=alpha)
    if dimension < 1:
        return nothing
    room = work.memory // (32 * base.n_objects)  # two or three vectors a row, and copies of some on the way

    def make(A: Relation, B: Relation | None = None, start: Float | None = None) -> Lowest:
        several = POINTS + 1 if B is None else 2
        return Lowest(A, B, groups, dimension, max(5 * BLOCK, room // several), start)

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


def _own(work: Work, make: _Make) -> dict[str, Any]:
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


def _lowest(search: Lowest, work: Work, scans: int, phase: str) -> str:
    """Go on with a search for gamma until it is near enough, or why not."""
    kept = work.keep.state(phase)
    if kept is not None:
        search.restore(kept["search"])
        scans = kept["scans"]
    while search.steps < scans:
        advance([search], work.memory)
        meter.current().say(f"gamma {-search.value:.6g}")
        if search.indefinite or search.exhausted or _settled(search, work.tol):
            return "converged"
        if _stagnant(search):
            return "rounding"
        if search.steps < scans:
            work.keep.step(phase, lambda: {"search": search.packed(), "scans": scans})
    return "scans"


def _not_negative(search: Lowest, rounding: float) -> bool | None:
    """Whether the lowest eigenvalue is 0 or above but for rounding; None while that is open."""
    if search.value < -rounding:
        return False
    return True if search.to_come <= rounding or search.value - search.to_come > -rounding else None


def _settled(search: Lowest, tol: float) -> bool:
    """Small residual, and the value has come to rest."""
    enough = tol * abs(search.value)
    return search.residual <= enough and len(search.history) > 1 and abs(np.diff(search.history[-2:])[0]) <= enough


def _stagnant(search: Lowest) -> bool:
    """No more is gained: the value has moved by rounding only in the last steps."""
    past, eps = search.history[-6:], float(np.finfo(search.A.matrix.dtype).eps)
    return len(past) == 6 and abs(past[0] - past[-1]) <= max(1e-12, eps) * abs(past[-1])


class _Make(Protocol):
    """Begins a search."""

    def __call__(self, A: Relation, B: Relation | None = None, start: Float | None = None) -> Lowest: ...


@dataclass
class _Parameter:
    """Chooses the parameter of power, exponential and log."""

    work: Work
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
                " scans; raise max_scans, raise the smallest dissimilarities (--floor-zeros), or use the method spread"
                " or ultrametric"
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
