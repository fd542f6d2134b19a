"""Block Davidson for a pencil of matrices, and the boundary of a parameter.

Lowest eigenvalues of W(A) x = theta W(B) x where B has no quick solve; several searches share each scan.

Block Davidson: a search keeps a basis V with its products W(A) V and W(B) V, takes the lowest values of the small
pencil (V'W(A)V, V'W(B)V), and widens the basis by their residuals W(A) x - theta W(B) x. Only products are needed, so
that both matrices, seen through two views of the same tile, cost one scan a step. Without B the basis is that of block
Lanczos. A search never asks for a product by itself: whoever holds several gathers what they want and scans once.

Every value is an upper bound of the lowest eigenvalue: a negative one settles that a matrix is not Euclidean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dasrel.engine.relation import Relation, left_products
from dasrel.util import Float, parallel, progress

Index = NDArray[np.int64]
BLOCK = 8
POINTS = 6
"""Parameters tried in the same scans."""
NEAR = 0.02
"""The boundary of a parameter is found to within this fraction."""
NOTHING_NEW = 1e-11
_STATE = (
    *("value", "residual", "steps", "indefinite", "below", "history", "V", "AV", "BV", "lowest_vectors", "wanted"),
)
"""What a search consists of between two scans."""


@dataclass(eq=False)
class DavidsonSearch:
    """One search. `wanted` holds the vectors whose products `take` expects next; it has no rows when all is found."""

    A: Relation
    B: Relation | None
    """None: the identity."""
    groups: Index | None
    """Labels of exact duplicates: the search goes on among vectors that are equal on them."""
    dimension: int
    most: int
    """Rows that the basis may have; it is cut back to the best when it would have more."""
    start: Float | None = None
    value: float = math.inf
    residual: float = math.inf
    """Of x with x'x = 1, divided by x'W(B)x: an eigenvalue lies about this near."""
    steps: int = 0
    indefinite: bool = False
    """Whether W(B) was seen not to be positive; there is no lowest eigenvalue then, and `lowest_vectors` are W(B)'s."""
    below: Float = field(default_factory=lambda: np.empty(0))
    """x'W(A)x / x'x of all vectors of the basis that solve the small pencil."""
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.A.n_objects
        first = np.random.default_rng((0, 0)).standard_normal((n, BLOCK)).T
        if self.start is not None:
            first = np.vstack([self.start, first[: max(2, BLOCK - len(self.start))]])
        self.V = self.AV = self.BV = np.empty((0, n))
        self.lowest_vectors = np.empty((0, n))
        self.wanted = self._fresh(np.ascontiguousarray(first))

    def packed(self) -> dict[str, Any]:
        """For a checkpoint. Cost: none; arrays are not copied."""
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, kept: dict[str, Any]) -> None:
        """Go on from what `packed` made of the same search."""
        for name, value in kept.items():
            setattr(self, name, value)

    @property
    def exhausted(self) -> bool:
        """Whether the basis holds all there is."""
        return len(self.wanted) == 0

    @property
    def to_come(self) -> float:
        """How far the value may still fall.

        A residual says that some eigenvalue is near, not which: the value must have come to rest as well.
        """
        if self.exhausted:
            return 0.0
        return math.inf if self.steps < 4 else max(self.residual, 5 * (self.history[-3] - self.value))

    def take(self, AW: Float, BW: Float | None) -> None:
        """The products with what was wanted, U D as `left_products` has them."""
        self.steps += 1
        self.V = np.vstack([self.V, self.wanted])
        self.AV = np.vstack([self.AV, self._gram(AW)])
        if BW is not None:
            self.BV = np.vstack([self.BV, self._gram(BW)])
        small_a = _symmetric(self.AV @ self.V.T)
        if self.B is None:
            values, Y = np.linalg.eigh(small_a)
        else:
            small_b = _symmetric(self.BV @ self.V.T)
            own, Z = np.linalg.eigh(small_b)
            if own[0] <= 1e-13 * own[-1]:
                self.indefinite, self.lowest_vectors = True, Z[:, :4].T @ self.V
                return
            values, Y = scipy.linalg.eigh(small_a, small_b)
        self.below = values / (Y**2).sum(axis=0)
        Y = Y[:, :BLOCK]
        theta = values[: Y.shape[1], None]
        X = Y.T @ self.V
        R = Y.T @ self.AV - theta * (X if self.B is None else Y.T @ self.BV)
        length = float(np.linalg.norm(X[0]))
        self.value, self.residual = float(values[0]), float(np.linalg.norm(R[0])) * (length if self.B else 1.0)
        self.history.append(self.value)
        self.lowest_vectors = X / np.linalg.norm(X, axis=1, keepdims=True)
        if len(self.V) + BLOCK > self.most:
            self._cut(Y)
        self.wanted = self._fresh(R / np.maximum(np.linalg.norm(R, axis=1, keepdims=True), 1e-300), R)

    def _cut(self, Y: Float) -> None:
        """Keep the lowest vectors, and those of the last step to go on in its direction."""
        recent = np.zeros((len(Y), BLOCK))
        recent[-BLOCK:] = np.eye(BLOCK)[-len(recent[-BLOCK:]) :]
        Q = np.linalg.qr(np.hstack([Y, recent]))[0]
        self.V, self.AV = Q.T @ self.V, Q.T @ self.AV
        if self.B is not None:
            self.BV = Q.T @ self.BV

    def _fresh(self, W: Float, sizes: Float | None = None) -> Float:
        """Orthonormal rows: what is new in W; rows that are rounding are left out."""
        room = self.dimension - len(self.V)
        if sizes is not None:
            scale = max(float(np.linalg.norm(self.AV, axis=1).max()), 1e-300)
            W = W[np.linalg.norm(sizes, axis=1) > NOTHING_NEW * scale]
        if room <= 0 or len(W) == 0:
            return np.empty((0, W.shape[1]))
        for least in (1e-6, 1e-2):
            W = self._allowed(W)
            W = W - (W @ self.V.T) @ self.V
            Q, R, _ = scipy.linalg.qr(W.T, mode="economic", pivoting=True)
            size = np.abs(np.diagonal(R))
            W = np.ascontiguousarray(Q[:, size > least * max(size[0], 1e-300)][:, :room].T)
            if size[0] == 0:
                return W[:0]
        return W

    def _allowed(self, W: Float) -> Float:
        """Rows made centred and equal on duplicates."""
        if self.groups is not None:
            members = np.bincount(self.groups)
            means = np.vstack([np.bincount(self.groups, weights=row) / members for row in W])
            W = means[:, self.groups]
        centred: Float = W - W.mean(axis=1, keepdims=True)
        return centred

    def _gram(self, product: Float) -> Float:
        return self._allowed(-0.5 * product)


def advance(searches: Sequence[DavidsonSearch], memory: int | str | None) -> None:
    """One scan: the next step of all of them."""
    wanted = []
    for search in searches:
        wanted.append((search.A, search.wanted))
        if search.B is not None:
            wanted.append((search.B, search.wanted))
    found = iter(left_products(wanted, memory=memory))
    with parallel.single_threaded_blas():  # the same bits however many cores
        for search in searches:
            search.take(next(found), None if search.B is None else next(found))


def is_positive(search: DavidsonSearch, rounding: float) -> bool | None:
    """Whether the lowest eigenvalue is above 0, not just by rounding; None while that is open."""
    if search.value < -rounding:
        return False
    if search.to_come <= rounding and search.value <= rounding:
        return False
    return True if search.value - search.to_come > rounding else None


@dataclass(frozen=True)
class Range:
    """How a parameter is looked for: what makes Delta of it, and how much of an eigenvalue is rounding."""

    view: Callable[[float], Relation]
    rounding: Callable[[Relation], float]


@dataclass
class Bracket:
    """Where the search for a boundary stands, between two scans of one round."""

    inside: float
    """A parameter that makes Delta Euclidean."""
    outside: float
    """One that need not."""
    start: Float | None
    """Vectors to begin with: those that refuted another parameter, if there are any."""
    left: int
    """Scans of the budget that are left, before this round."""
    known: bool = False
    met: bool = False
    whole: bool = True
    """Whether the outer end is not known yet."""
    good: int = -1
    """The farthest parameter of this round that is confirmed..."""
    bad: int | None = None
    """... and the first that is refuted; None at the beginning of a round."""
    spent: int = 0
    searches: dict[str, Any] = field(default_factory=dict)
    """By the parameter's number: what is still needed of the searches, for a checkpoint."""


def boundary(
    between: Range,
    make: Callable[..., DavidsonSearch],
    at: Bracket,
    memory: int | str | None,
    on_step: Callable[[Callable[[], dict[str, Any]]], None],
) -> tuple[float, bool]:
    """The parameter farthest out for which Delta was seen to be Euclidean, and whether the boundary was met.

    Parameters in a row are tried in the same scans. One that is refuted refutes all farther out, one that is confirmed
    confirms all farther in; one that is not settled within its scans counts as refuted, which is safe. After every
    scan `on_step` is given a function that makes `Bracket`'s fields.
    """
    while abs(math.log(at.outside / at.inside)) > NEAR and at.left > 0:
        points = np.geomspace(at.inside, at.outside, POINTS + 2)[1 : None if at.whole else -1]
        searches = [make(between.view(float(a)), start=at.start) for a in points]
        rounding = [between.rounding(search.A) for search in searches]
        for number, kept in at.searches.items():
            searches[int(number)].restore(kept)
        good, bad, spent = at.good, len(points) if at.bad is None else at.bad, at.spent
        allowance = max(4, min(at.left, 40))

        def packed() -> dict[str, Any]:
            needed = {str(k): searches[k].packed() for k in range(good + 1, bad)}  # noqa: B023 - used at once
            if bad < len(points):  # noqa: B023
                needed[str(bad)] = {"lowest_vectors": searches[bad].lowest_vectors}  # noqa: B023
            return {**vars(at), "good": good, "bad": bad, "spent": spent, "searches": needed}  # noqa: B023

        while good + 1 < bad and spent < allowance:
            active = searches[good + 1 : bad]
            progress.current().say(f"parameter between {at.inside:.4g} and {at.outside:.4g}")
            advance(active, memory)
            spent += 1
            for k in range(good + 1, bad):
                verdict = is_positive(searches[k], rounding[k])
                if verdict is False:
                    bad = k
                    break
                if verdict is True:
                    good = k
            on_step(packed)
        at.left -= spent
        if good >= 0:
            at.inside, at.known = float(points[good]), True
        if bad < len(points):
            at.start = searches[bad].lowest_vectors[:4]
        if good + 1 < len(points):  # the next one is refuted, or was not settled
            at.outside, at.met = float(points[good + 1]), True
        elif at.whole:
            return at.inside, False
        at.whole = False
        at.good, at.bad, at.spent, at.searches = -1, None, 0, {}
    return (at.inside if at.known else math.nan), at.met


def _symmetric(small: Float) -> Float:
    result: Float = (small + small.T) / 2
    return result
