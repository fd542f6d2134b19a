"""Block Davidson: the lowest eigenvalue of a pencil W(A) x = theta W(B) x, and the boundary of a parameter.

For a B without a fast solve. A search keeps a basis V with its products W(A) V and W(B) V, computes the lowest values
of the small pencil (V'W(A)V, V'W(B)V), and extends the basis by their residuals W(A) x - theta W(B) x. Only products
are needed, so that both matrices, two views of the same tiles, cost one scan per step. Without B the basis is that of
block Lanczos. A search does not multiply by itself: `advance` collects the vectors of several searches and has them
multiplied together.

Every value is an upper bound of the lowest eigenvalue: a negative one proves that a matrix is not Euclidean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dasrel.util import Float, parallel, progress

Index = NDArray[np.int64]
BLOCK = 8
POINTS = 6
"""Parameters tried in the same scans."""
NEAR = 0.02
"""The boundary of a parameter is located to within this fraction."""
NOTHING_NEW = 1e-11
_STATE = (
    *("value", "residual", "steps", "indefinite", "below", "history", "V", "AV", "BV", "lowest_vectors", "wanted"),
)
"""Fields of a search that a checkpoint saves."""


class Operand(Protocol):
    """A matrix D that can be multiplied; nothing else is known of it here."""

    @property
    def n_objects(self) -> int:
        """Number of rows and columns."""


Matrix = TypeVar("Matrix", bound=Operand)
Multiply = Callable[[list[tuple[Matrix, Float]]], Sequence[Float]]
"""Given several (D, U of k x n), return each U D; one scan for all."""


@dataclass(eq=False)
class DavidsonSearch(Generic[Matrix]):
    """One search. `wanted` holds the vectors whose products `take` expects next; it is empty at the end."""

    A: Matrix
    B: Matrix | None
    """None: the identity."""
    groups: Index | None
    """Labels of exact duplicates: vectors of the search are equal on them."""
    dimension: int
    most: int
    """Maximum number of rows of the basis; before it would have more, it is reduced to the best."""
    start: Float | None = None
    value: float = math.inf
    residual: float = math.inf
    """Of x with x'x = 1, divided by x'W(B)x: an eigenvalue lies within about this distance."""
    steps: int = 0
    indefinite: bool = False
    """Whether W(B) is not positive; then there is no lowest eigenvalue, and `lowest_vectors` are those of W(B)."""
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
        self.wanted = self._new_rows(np.ascontiguousarray(first))

    def packed(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Cost: none; arrays are not copied."""
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `packed` returned."""
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def exhausted(self) -> bool:
        """Whether the basis spans the whole space."""
        return len(self.wanted) == 0

    @property
    def possible_decrease(self) -> float:
        """How much the value may still decrease.

        A residual bounds the distance to some eigenvalue, not to the lowest: the value must be stable too.
        """
        if self.exhausted:
            return 0.0
        return math.inf if self.steps < 4 else max(self.residual, 5 * (self.history[-3] - self.value))

    def take(self, AW: Float, BW: Float | None) -> None:
        """Take the products of the vectors `wanted` with A and B, and compute the next vectors."""
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
            self._reduce_basis(Y)
        self.wanted = self._new_rows(R / np.maximum(np.linalg.norm(R, axis=1, keepdims=True), 1e-300), R)

    def _reduce_basis(self, Y: Float) -> None:
        """Keep the lowest vectors, and those of the last step to continue in its direction."""
        recent = np.zeros((len(Y), BLOCK))
        recent[-BLOCK:] = np.eye(BLOCK)[-len(recent[-BLOCK:]) :]
        Q = np.linalg.qr(np.hstack([Y, recent]))[0]
        self.V, self.AV = Q.T @ self.V, Q.T @ self.AV
        if self.B is not None:
            self.BV = Q.T @ self.BV

    def _new_rows(self, W: Float, sizes: Float | None = None) -> Float:
        """Return orthonormal rows that span the part of W outside the basis, without rows that are only rounding."""
        room = self.dimension - len(self.V)
        if sizes is not None:
            scale = max(float(np.linalg.norm(self.AV, axis=1).max()), 1e-300)
            W = W[np.linalg.norm(sizes, axis=1) > NOTHING_NEW * scale]
        if room <= 0 or len(W) == 0:
            return np.empty((0, W.shape[1]))
        for least in (1e-6, 1e-2):
            W = self._projected(W)
            W = W - (W @ self.V.T) @ self.V
            Q, R, _ = scipy.linalg.qr(W.T, mode="economic", pivoting=True)
            size = np.abs(np.diagonal(R))
            W = np.ascontiguousarray(Q[:, size > least * max(size[0], 1e-300)][:, :room].T)
            if size[0] == 0:
                return W[:0]
        return W

    def _projected(self, W: Float) -> Float:
        """Return rows made centred and equal on duplicates."""
        if self.groups is not None:
            members = np.bincount(self.groups)
            means = np.vstack([np.bincount(self.groups, weights=row) / members for row in W])
            W = means[:, self.groups]
        centred: Float = W - W.mean(axis=1, keepdims=True)
        return centred

    def _gram(self, product: Float) -> Float:
        return self._projected(-0.5 * product)


def advance(searches: Sequence[DavidsonSearch[Matrix]], multiply: Multiply[Matrix]) -> None:
    """Take the next step of all searches, with one scan."""
    wanted = []
    for search in searches:
        wanted.append((search.A, search.wanted))
        if search.B is not None:
            wanted.append((search.B, search.wanted))
    results = iter(multiply(wanted))
    with parallel.single_threaded_blas():  # the same bits however many cores
        for search in searches:
            search.take(next(results), None if search.B is None else next(results))


def is_positive(search: DavidsonSearch[Any], rounding: float) -> bool | None:
    """Return whether the lowest eigenvalue is above 0 by more than rounding; None while that is not known."""
    if search.value < -rounding:
        return False
    if search.possible_decrease <= rounding and search.value <= rounding:
        return False
    return True if search.value - search.possible_decrease > rounding else None


@dataclass(frozen=True)
class Family(Generic[Matrix]):
    """Delta as a function of a parameter, and the rounding of the eigenvalues of each Delta."""

    view: Callable[[float], Matrix]
    rounding: Callable[[Matrix], float]


@dataclass
class Bracket:
    """State of the search for a boundary, between two scans of one round."""

    inside: float
    """A parameter that makes Delta Euclidean."""
    outside: float
    """One that may not."""
    start: Float | None
    """First vectors: those that refuted another parameter, if any."""
    left: int
    """Scans that are left before this round."""
    known: bool = False
    met: bool = False
    whole: bool = True
    """Whether the outer end is still to be tried."""
    good: int = -1
    """The farthest parameter of this round that is confirmed..."""
    bad: int | None = None
    """... and the first that is refuted; None at the beginning of a round."""
    spent: int = 0
    searches: dict[str, Any] = field(default_factory=dict)
    """States of the searches that are still needed, by the number of the parameter."""


def boundary(
    family: Family[Matrix],
    make: Callable[..., DavidsonSearch[Matrix]],
    bracket: Bracket,
    multiply: Multiply[Matrix],
    on_step: Callable[[Callable[[], dict[str, Any]]], None],
) -> tuple[float, bool]:
    """Return the outermost parameter for which Delta is known to be Euclidean, and whether the boundary was met.

    Several parameters are tried in the same scans. A refuted one refutes all farther out, a confirmed one confirms all
    farther in; one that is still open after its scans counts as refuted, which is safe. After every scan `on_step` gets
    a function that returns the fields of `Bracket`.
    """
    while abs(math.log(bracket.outside / bracket.inside)) > NEAR and bracket.left > 0:
        points = np.geomspace(bracket.inside, bracket.outside, POINTS + 2)[1 : None if bracket.whole else -1]
        searches = [make(family.view(float(a)), start=bracket.start) for a in points]
        rounding = [family.rounding(search.A) for search in searches]
        for number, state in bracket.searches.items():
            searches[int(number)].restore(state)
        good, bad, spent = bracket.good, len(points) if bracket.bad is None else bracket.bad, bracket.spent
        allowance = max(4, min(bracket.left, 40))

        def packed() -> dict[str, Any]:
            needed = {str(k): searches[k].packed() for k in range(good + 1, bad)}  # noqa: B023 - used at once
            if bad < len(points):  # noqa: B023
                needed[str(bad)] = {"lowest_vectors": searches[bad].lowest_vectors}  # noqa: B023
            return {**vars(bracket), "good": good, "bad": bad, "spent": spent, "searches": needed}  # noqa: B023

        while good + 1 < bad and spent < allowance:
            active = searches[good + 1 : bad]
            progress.current().say(f"parameter between {bracket.inside:.4g} and {bracket.outside:.4g}")
            advance(active, multiply)
            spent += 1
            for k in range(good + 1, bad):
                verdict = is_positive(searches[k], rounding[k])
                if verdict is False:
                    bad = k
                    break
                if verdict is True:
                    good = k
            on_step(packed)
        bracket.left -= spent
        if good >= 0:
            bracket.inside, bracket.known = float(points[good]), True
        if bad < len(points):
            bracket.start = searches[bad].lowest_vectors[:4]
        if good + 1 < len(points):  # the next one is refuted, or still open
            bracket.outside, bracket.met = float(points[good + 1]), True
        elif bracket.whole:
            return bracket.inside, False
        bracket.whole = False
        bracket.good, bracket.bad, bracket.spent, bracket.searches = -1, None, 0, {}
    return (bracket.inside if bracket.known else math.nan), bracket.met


def _symmetric(small: Float) -> Float:
    result: Float = (small + small.T) / 2
    return result
