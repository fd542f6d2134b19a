"""One run between two scans: its iteration, when it ends, and its result.

At centres V (weights of the objects) an iteration takes the distances d to them, the memberships U' that are best at
these distances, and the centres V' of U'. What is reported of a run, at the end and in its history, belongs to one
state: centres V, distances d to them, memberships U' at these distances, and the objective

    Phi(V) = sum u'^theta d + H(U') = min over U of J(U, V)

which needs no further scan. It falls with every step on a Euclidean relation, and at a fixed point it is the
J = G/2 + H of `rules.objective`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dasrel.partition import rules
from dasrel.partition.model import Model
from dasrel.partition.result import RunResult, Start
from dasrel.partition.rules import Rule, Weights
from dasrel.partition.run import TOLERANCES, Run
from dasrel.util import Float

STEADY_STEPS = 3
"""Iterations in which fewer than the share `tol` of the objects change their cluster, for hard to have converged."""
RACE_STEPS = 5
"""Iterations over which the fall of an objective is measured, twice, to estimate how far it will still fall."""
RACE_MARGIN = 10.0
"""How many times that estimate a run must be behind to be stopped."""
SMALL_UPDATE = 200_000
"""Numbers in an update of runs below which threads cost more than they give."""
PLAIN_STEPS = 10
"""Steps before acceleration begins: far from the end, extrapolating leads to other optima."""


@dataclass(frozen=True)
class BundleContext:
    """Constants that all runs of a bundle share."""

    n_objects: int
    largest: float
    """Upper bound of the dissimilarities, without spread."""
    inner: int
    """How many products are summed in the matrix's own precision."""
    dtype: np.dtype[np.floating]

    def rounding(self, beta: float) -> float:
        """Return how far below zero rounding can bring a distance."""
        return rules.rounding(self.inner, self.largest + beta, dtype=self.dtype)

    def slack(self, beta: float) -> float:
        """Return how much an objective can rise by rounding."""
        return 8 * float(np.finfo(self.dtype).eps) * self.n_objects * (self.largest + beta)


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The result of a run with its arrays, all of which belong to the same centres V."""

    index: int
    """Position of the run in the list of all runs."""
    result: RunResult
    U: Float
    """(c, n)."""
    d: Float
    """(c, n)."""
    V: Float
    """(c, n)."""
    half: Float
    """v_i'D v_i / 2, (c,)."""

    @property
    def rank(self) -> tuple[bool, float, int]:
        """By which runs of a setting are compared: sound ones first, then the lowest score, then the earlier run."""
        return not self.result.is_sound, self.result.score, self.index

    def packed(self) -> dict[str, Any]:
        """Return the arrays for a checkpoint; the run is known by its index."""
        return {name: getattr(self, name) for name in ("index", "U", "d", "V", "half")}


class Update(NamedTuple):
    """The result of one update of a stack of runs; see `update`."""

    U: Float
    W: Weights
    objective: float
    scale: float
    """What changes of the objective are relative to: the sum of the absolute values of its two terms. Their sum itself
    may be zero."""


def update(rule: Rule, d: Float) -> Update:
    """Return the best memberships U' at distances d (1, c, n), the centres of U', and the objective Phi.

    Cost: no scan; twice the memory of d.
    """
    U = rules.memberships(rule, d)
    W = rules.weights(U, rule.theta)
    cost = W.mass * rules.eta_from_weights(W.V, d)  # sum_h u^theta d
    ones = np.ones_like(cost)
    objective = float(rules.objective(rule, U, Weights(W.V, ones, ones, W.empty), cost)[0])
    within = float(cost.sum())
    return Update(U, W, objective, abs(within) + abs(objective - within))


class RunState:
    """The state of one run between two scans."""

    # A stored state that is without one of these begins with it.
    objective_change = largest_change = np.nan
    """The relative change of the objective over the last two iterations, and max |U - U'| of the last one."""
    _fall = _plain_fall = np.nan  # of the objective: in the last iteration, in the last plain step
    _comparable = False  # whether the last objective and the next are of the same function

    def __init__(self, run: Run, index: int, start: Start, beta: float) -> None:
        self.run = run
        self.index = index
        self.beta = self.beta_given = beta
        self.first = run.is_possibilistic and isinstance(run.init, str)
        """Whether this is still the fcm2 run that pcm1 and pcm2 begin with."""
        given = run.entropy_weight if "lam" in rules.SYMBOLS[self.rule] else None
        self.entropy_weight = None if given is None else float(given)
        self.U = start.U
        self.W = rules.given_weights(start.V)
        self.eta = run.init.eta if isinstance(run.init, Model) and run.is_possibilistic else None
        self.n_iter = self.n_iter_here = 0
        self.objectives: list[float] = []
        self.changes: list[float] = []
        self.steady = 0
        """Iterations one after the other in which few objects have changed their cluster, for hard."""
        self.reseeded = self.negatives = self.rises = self.rejected = 0
        self.stopped_by_negatives = 0
        self.first_converged = True
        self._score: float | None = None
        self._anchor: Float | None = None
        self._fallback: tuple[Weights, Float, float] | None = None

    def packed(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Cost: none; arrays are not copied."""
        state = {name: value for name, value in vars(self).items() if name != "run"}
        state |= {"objectives": np.array(self.objectives), "changes": np.array(self.changes), "W": list(self.W)}
        if self._fallback is not None:
            state["_fallback"] = [list(self._fallback[0]), *self._fallback[1:]]
        return state

    @classmethod
    def unpacked(cls, stored: dict[str, Any], runs: Sequence[Run]) -> RunState:
        """Return the state from what `packed` returned, of the runs in the order given; it resumes to the same bits."""
        state = cls.__new__(cls)
        vars(state).update(stored, run=runs[stored["index"]], W=Weights(*stored["W"]))
        state.objectives, state.changes = stored["objectives"].tolist(), stored["changes"].tolist()
        if stored["_fallback"] is not None:
            W, U, objective = stored["_fallback"]
            state._fallback = Weights(*W), U, objective
        return state

    @property
    def rule(self) -> str:
        """The rule of the present phase."""
        return "fcm2" if self.first else self.run.rule

    @property
    def most_left(self) -> int:
        """Most iterations to come, with those of pcm1 and pcm2 after fcm2."""
        return self.run.max_iter * (2 if self.first else 1) - self.n_iter_here

    def advance(
        self, Y: Float, context: BundleContext, mean_distance: float | None, best: float | None = None
    ) -> FinishedRun | None:
        """Do one iteration, given Y = D V (1, c, n), which is overwritten; return the result if it was the last one.

        `mean_distance` is the mean of D, where a run has eta="overall"; `best` is the score to beat, in a race.
        """
        self.n_iter += 1
        self.n_iter_here += 1
        d, half = rules.distances(Y, self.W, beta=self.beta, out=Y)
        small = context.rounding(self.beta)
        below = int(rules.clip_negative(d, tol=small)[0])
        if below and self._fallback is not None:
            self._step_back()
            return None
        if below:
            self.negatives += below
            if self.run.on_negative == "heal" and self.rule != "hard":
                self.beta += float(rules.heal(d, self.W)[0])
                self._comparable = False
                self._anchor = None
            elif self.rule in ("fcm1", "pcm1", "pcm2"):
                self.stopped_by_negatives = below
                return None
        if not self.first and self.run.is_possibilistic and (self.eta is None or self.run.eta_refit):
            self._comparable = False
            self.eta = self._spreads(self.U, self.W.V, d, mean_distance)

        U, W, objective, scale = update(self._rule(), d)
        is_plain = self._fallback is None
        before = self._fallback[1] if self.U is None and self._fallback is not None else self.U
        slack = context.slack(self.beta) + 1e-14 * abs(objective)
        if self._fallback is not None:
            if not objective <= self._fallback[2] + slack:
                self._step_back()
                return None
            self._fallback = None
        elif self._comparable and objective > self.objectives[-1] + slack:
            self.rises += 1
        still = self._falls_to(objective, scale, is_plain=is_plain)
        self.objectives.append(objective)
        self.largest_change = np.nan if before is None else float(rules.change(U, before)[0])
        if self.run.history:
            self.changes.append(self.largest_change)
        self._comparable = True

        own = self._own_distances(U, d) if W.empty.any() else None
        reseed = own is not None and float(own.max()) > small
        self._count_steady(U, before, reseed=reseed)
        if self.run.stop != "objective":
            still = self._change(U, W) < self._tol or self.steady >= STEADY_STEPS
        elif still and bool(rules.is_flat(U)[0]):  # perhaps at the saddle U = 1/c, where runs begin to fall slowly
            still = self.largest_change < TOLERANCES["memberships"]
        converged = not reseed and still
        stopped = not converged and best is not None and self._cannot_win(best)
        if converged or stopped or self.n_iter_here >= self.run.max_iter:
            shift = float(W.mass.sum() - (W.mass * W.norms).sum())  # A - B, F09 40 and 41
            score = objective - 0.5 * (self.beta - self.beta_given) * shift
            if self.first:
                self._begin_possibilistic(U, d, score, converged, mean_distance)
                return None
            present = np.bincount(U[0].argmax(axis=0), minlength=len(U[0]))
            finished = self._finished(U, d, half, objective, score, converged, int((present == 0).sum()))
            return replace(finished, result=replace(finished.result, stopped_early=True)) if stopped else finished
        if reseed and own is not None:
            U, W = self._reseed(U, W, own, small)
        self._move(U, W, objective, plain=reseed)
        return None

    def _rule(self) -> Rule:
        eta = None if self.eta is None else tuple(self.eta.tolist())
        given: dict[str, Any] = {"m": self.run.fuzzifier, "lam": self.entropy_weight, "eta": eta}
        return _cached_rule(self.rule, **{symbol: given[symbol] for symbol in rules.SYMBOLS[self.rule]})

    def _spreads(self, U: Float | None, V: Float, d: Float, mean_distance: float | None) -> Float:
        """Return eta of each cluster, (c,), times eta_scale."""
        run = self.run
        scale = float(run.eta_scale or 1.0)
        if run.eta == "overall":
            assert mean_distance is not None
            n, c = V.shape[2], run.n_clusters
            overall = rules.eta_overall(mean_distance * n * n, n, c=c, q=run.theta, beta=self.beta)
            return np.full(c, scale * overall)
        eta = rules.eta_from_weights(V, d, scale=scale)[0]
        if run.eta == "cut":
            assert U is not None
            cut, none = rules.eta_above_cut(U, d, cut=float(run.eta_cut or 0.0))
            eta = np.where(none[0], eta, scale * cut[0])
        spreads: Float = np.maximum(eta, 0.0)
        return spreads

    def _begin_possibilistic(
        self, U: Float, d: Float, score: float, converged: bool, mean_distance: float | None
    ) -> None:
        """Begin pcm1 or pcm2 at the end of the fcm2 run, with its distances: no scan is needed."""
        self.first = False
        self.first_converged = converged
        self._score = None if self.run.eta == "overall" else score
        self.n_iter_here = 0
        self.U, self.W = U, rules.weights(U, self.run.theta)
        self.eta = self._spreads(U, self.W.V, d, mean_distance)
        self._comparable = False
        self._anchor = None

    @property
    def _tol(self) -> float:
        assert self.run.tol is not None
        return self.run.tol

    def _falls_to(self, objective: float, scale: float, *, is_plain: bool) -> bool:
        """Note how far the objective has fallen; return whether it has come to rest.

        It has when it fell by less than `tol` of its scale over two iterations, and by less than half of that in the
        last one, a plain step, and not by more than in the plain step before: at a saddle the steps grow. Accelerated
        steps alone are no evidence: an extrapolation may end where the objective is as high as before.
        """
        fall = self.objectives[-1] - objective if self._comparable else np.nan
        over_two = abs(fall + self._fall)
        scale = max(scale, float(np.finfo(np.float64).tiny))
        self.objective_change = over_two / scale
        rests = False
        if is_plain:
            tol = self._tol * scale
            shrinks = abs(fall) <= max(abs(self._plain_fall), 1e-12 * scale)
            rests = bool(over_two < tol and 2 * abs(fall) < tol and shrinks)
            self._plain_fall = fall
        self._fall = fall
        return rests

    def _change(self, U: Float, W: Weights) -> float:
        if self.run.stop == "weights":
            return float(rules.change(W.V, self.W.V, p=self.run.norm)[0])
        return np.inf if self.U is None else float(rules.change(U, self.U, p=self.run.norm)[0])

    def _count_steady(self, U: Float, before: Float | None, *, reseed: bool) -> None:
        """Count the iterations of hard in which fewer than the share `tol` of the objects change their cluster."""
        if self.rule != "hard" or self.run.stop != "memberships" or self._tol * U.shape[2] <= 1:
            return  # fewer than one object is none, which is tested anyway
        few = False
        if before is not None and not reseed:
            changed = np.count_nonzero(rules.labels(U) != rules.labels(before))
            few = changed < self._tol * U.shape[2]
        self.steady = self.steady + 1 if few else 0

    @property
    def falling_objective(self) -> float | None:
        """The objective, where it can only fall and is what runs are compared by; else None."""
        is_smooth = not (self.reseeded or self.rises or self.negatives or self.beta != self.beta_given)
        return self.objectives[-1] if is_smooth and self.objectives and not self.run.is_possibilistic else None

    def _cannot_win(self, best: float) -> bool:
        """Return whether the score of this run will end above `best`; see `Run.race`."""
        if self.first or self.run.eta_refit:
            return False
        if self._score is not None:
            return self._score > best
        if self.falling_objective is None or len(self.objectives) <= 2 * RACE_STEPS:
            return False
        first, middle, last = (self.objectives[-1 - steps] for steps in (2 * RACE_STEPS, RACE_STEPS, 0))
        early, late = first - middle, middle - last
        if not 0 <= late < early:
            return False
        left = late * late / (early - late)  # late (q + q^2 + ...) with q = late / early
        return last - RACE_MARGIN * max(left, late) > best

    @staticmethod
    def _own_distances(U: Float, d: Float) -> Float:
        """Return the distance of each object to the centre of its own cluster, (n,)."""
        own: Float = np.take_along_axis(d[0], rules.labels(U), axis=0)[0]
        return own

    def _reseed(self, U: Float, W: Weights, own: Float, small: float) -> tuple[Float, Weights]:
        """Move the object that is farthest from its centre into each empty cluster, as long as there is one."""
        for i in np.flatnonzero(W.empty[0]):
            k = int(own.argmax())
            if own[k] <= small:
                break
            U[0, :, k] = 0.0
            U[0, i, k] = 1.0
            own[k] = -np.inf
            self.reseeded += 1
        self._comparable = False
        return U, rules.weights(U, self._rule().theta)

    def _move(self, U: Float, W: Weights, objective: float, *, plain: bool) -> None:
        """Set the next centres: V' or, if accelerated and past the first steps, SQUAREM's extrapolation."""
        here = self.W.V
        before, self._anchor = self._anchor, None
        self.U, self.W = U, W
        accelerate = self.run.accelerate and not self.run.eta_refit  # whose objective is another at every iteration
        if plain or not accelerate or not PLAIN_STEPS <= self.n_iter_here < self.run.max_iter - 1:
            return
        self._anchor = here
        if before is None:
            return
        # V0 = before, V1 = here, V2 = W.V: V0 + 2 a r + a^2 s with r = V1 - V0, s = (V2 - V1) - r
        r = here - before
        s = W.V - here - r
        strength = float(np.sqrt((s * s).sum()))
        a = float(np.sqrt((r * r).sum())) / strength if strength > 0 else 1.0
        if a <= 1:
            return
        s *= a * a
        s += before
        r *= 2 * a
        s += r
        self._fallback = (W, U, objective)
        self._anchor = None
        self.U = None
        self.W = rules.given_weights(s)

    def _step_back(self) -> None:
        """Reject the extrapolated centres: continue from the last plain step."""
        assert self._fallback is not None
        self.W, self.U, _ = self._fallback
        self._fallback = self._anchor = None
        self.rejected += 1

    def _finished(
        self, U: Float, d: Float, half: Float, objective: float, score: float, converged: bool, empty: int
    ) -> FinishedRun:
        fuzzy = None if self.run.is_possibilistic else U[0]
        coincident = [] if self.run.rule == "hard" else _coincident_clusters(d[0], fuzzy)
        modes = _modes(self.run.n_clusters, coincident) if self.run.is_possibilistic else None
        result = RunResult(
            run=self.run, converged=converged and self.first_converged, n_iter=self.n_iter, objective=objective,
            score=score if self._score is None else self._score, objectives=tuple(self.objectives),
            entropy=float(rules.entropy(U)[0]), membership_sums=tuple(U[0].sum(axis=1).tolist()), beta=self.beta,
            entropy_weight=self.entropy_weight, eta=None if self.eta is None else tuple(self.eta.tolist()),
            flat=bool(rules.is_flat(U)[0]),
            coincident_clusters=len(coincident), modes=modes,
            reseeded=self.reseeded, empty=empty, negative_distances=self.negatives, rises=self.rises,
            rejected=self.rejected, changes=tuple(self.changes),
            objective_change=_number(self.objective_change), largest_change=_number(self.largest_change),
        )  # fmt: skip
        return FinishedRun(self.index, result, U[0], d[0], self.W.V[0], half[0])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


SAME_MEMBERS = 0.95
"""Cosine of the memberships of two clusters above which they coincide: both have the same objects, by halves."""


def _coincident_clusters(d: Float, U: Float | None) -> list[tuple[int, int]]:
    """Return the pairs of clusters that have nearly the same distances, or memberships if given; (c, n)."""
    near = 0.01 * float(d.max() - d.min())
    cosines = np.zeros((len(d), len(d)))
    if U is not None:
        unit = U / np.maximum(np.linalg.norm(U, axis=1, keepdims=True), np.finfo(float).tiny)
        cosines = unit @ unit.T
    return [
        (i, j)
        for i in range(len(d))
        for j in range(i)
        if cosines[i, j] > SAME_MEMBERS or float(np.abs(d[i] - d[j]).max()) <= near
    ]


def _modes(count: int, coincident: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return for each cluster the first one that is connected with it by coincident pairs."""
    first = list(range(count))
    for i, j in coincident:
        low, high = sorted((first[i], first[j]))
        first = [low if at == high else at for at in first]
    return tuple(first)


@lru_cache(maxsize=4096)
def _cached_rule(
    name: str, *, m: float | None = None, lam: float | None = None, eta: tuple[float, ...] | None = None
) -> Rule:
    """Make a rule once for all iterations and runs: checking it takes a tenth of a small update."""
    return Rule(name, m=m, lam=lam, eta=eta)
