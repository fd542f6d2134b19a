"""One run under way: what an iteration does with the product D V that a scan has brought.

At centres V (weights of the objects) an iteration takes the distances d to them, the memberships U' that are best at
these distances, and the centres V' that U' makes. What is reported of a run, at the end and in its history, belongs to
one state: centres V, distances d to them, memberships U' at these distances, and the objective

    Phi(V) = sum u'^theta d + H(U') = min over U of J(U, V)

which needs no further scan. It falls with every step on a Euclidean relation, and where a run stands still it is the
J = G/2 + H of `rules.objective`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel import rules
from dasrel.model import Model
from dasrel.rules import Rule, Weights
from dasrel.runs import Run
from dasrel.starts import Start

Float = NDArray[np.float64]

PLAIN_STEPS = 10
"""Steps before acceleration begins: far from the end, extrapolating leads to other optima."""


_PLAIN = (
    *("beta", "beta_given", "entropy_weight", "first", "U", "eta", "n_iter", "n_iter_here", "reseeded", "negatives"),
    *("rises", "rejected", "stopped_by_negatives", "first_converged", "_score", "_comparable", "_anchor"),
)
"""The fields of a motion that a checkpoint holds as they are."""


@dataclass(frozen=True)
class Surroundings:
    """What all runs of a bundle share."""

    n_objects: int
    largest: float
    """A bound of the dissimilarities, without spread."""
    inner: int
    """How many products are added up in the matrix's own precision."""
    dtype: np.dtype[np.floating]

    def rounding(self, beta: float) -> float:
        """How far below zero rounding can bring a distance."""
        return rules.rounding(self.inner, self.largest + beta, dtype=self.dtype)

    def slack(self, beta: float) -> float:
        """How much an objective can rise by rounding."""
        return 8 * float(np.finfo(self.dtype).eps) * self.n_objects * (self.largest + beta)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The end of a run: everything belongs to the centres V."""

    run: Run
    place: int
    """Position of the run in the list that was given."""
    U: Float
    """(c, n)."""
    d: Float
    """(c, n)."""
    V: Float
    """(c, n)."""
    half: Float
    """(c,)."""
    objective: float
    score: float
    """What runs of a setting are compared by; see `results`."""
    beta: float
    entropy_weight: float | None
    eta: Float | None
    converged: bool
    n_iter: int
    history: tuple[float, ...]
    reseeded: int
    empty: int
    negatives: int
    rises: int
    rejected: int

    def packed(self) -> dict[str, Any]:
        """For a checkpoint: all but the run, which its place stands for."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "run"}
        return {**values, "history": np.array(self.history)}

    @staticmethod
    def unpacked(kept: dict[str, Any], runs: Sequence[Run]) -> Outcome:
        """What `packed` made, of the runs in the order given."""
        history = tuple(kept["history"].tolist())
        return Outcome(**{**kept, "run": runs[kept["place"]], "history": history})


class Motion:
    """The state of one run between two scans."""

    def __init__(self, run: Run, place: int, start: Start, beta: float, entropy_weight: float | None) -> None:
        self.run = run
        self.place = place
        self.beta = self.beta_given = beta
        self.entropy_weight = entropy_weight
        self.first = run.is_possibilistic and isinstance(run.init, str)
        """Whether this is still the fcm2 run that pcm1 and pcm2 begin with."""
        self.U = start.U
        norms = (start.V * start.V).sum(axis=2)
        self.W = Weights(start.V, np.ones_like(norms), norms, np.zeros(norms.shape, dtype=np.bool_))
        self.eta = run.init.eta if isinstance(run.init, Model) and run.is_possibilistic else None
        self.n_iter = self.n_iter_here = 0
        self.history: list[float] = []
        self.reseeded = self.negatives = self.rises = self.rejected = 0
        self.stopped_by_negatives = 0
        self.first_converged = True
        self._score: float | None = None
        self._comparable = False  # whether the last objective and the next are of the same function
        self._anchor: Float | None = None
        self._fallback: tuple[Weights, Float, float] | None = None

    def packed(self) -> dict[str, Any]:
        """The state for a checkpoint. Cost: none; arrays are not copied."""
        fallback = self._fallback
        return {
            "place": self.place,
            **{name: getattr(self, name) for name in _PLAIN},
            "history": np.array(self.history),
            "W": list(self.W),
            "fallback": None if fallback is None else [list(fallback[0]), fallback[1], fallback[2]],
        }

    @classmethod
    def unpacked(cls, kept: dict[str, Any], runs: Sequence[Run]) -> Motion:
        """What `packed` made, of the runs in the order given: it goes on to the same bits."""
        motion = cls.__new__(cls)
        motion.place, motion.run = kept["place"], runs[kept["place"]]
        for name in _PLAIN:
            setattr(motion, name, kept[name])
        motion.history = kept["history"].tolist()
        motion.W = Weights(*kept["W"])
        back = kept["fallback"]
        motion._fallback = None if back is None else (Weights(*back[0]), back[1], back[2])
        return motion

    @property
    def rule(self) -> str:
        """The rule at work now."""
        return "fcm2" if self.first else self.run.rule

    def advance(self, Y: Float, around: Surroundings, mean_distance: float | None) -> Outcome | None:
        """One iteration, given Y = D V (1, c, n), which is overwritten. The outcome if this was the last one.

        `mean_distance` is the mean of D, where a run asks for eta="overall".
        """
        self.n_iter += 1
        self.n_iter_here += 1
        d, half = rules.distances(Y, self.W, beta=self.beta, out=Y)
        small = around.rounding(self.beta)
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

        rule = self._rule()
        U = rules.memberships(rule, d)
        W = rules.weights(U, rule.theta)
        cost = W.mass * rules.eta_from_weights(W.V, d)  # sum_h u^theta d
        ones = np.ones_like(cost)
        objective = float(rules.objective(rule, U, Weights(W.V, ones, ones, W.empty), cost)[0])
        slack = around.slack(self.beta) + 1e-14 * abs(objective)
        if self._fallback is not None:
            if not objective <= self._fallback[2] + slack:
                self._step_back()
                return None
            self._fallback = None
        elif self._comparable and objective > self.history[-1] + slack:
            self.rises += 1
        self.history.append(objective)
        self._comparable = True

        own = self._own_distances(U, d) if W.empty.any() else None
        reseed = own is not None and float(own.max()) > small
        converged = not reseed and self._change(U, W) < self.run.tol
        if converged or self.n_iter_here >= self.run.max_iter:
            shift = float(W.mass.sum() - (W.mass * W.norms).sum())  # A - B, F09 40 and 41
            score = objective - 0.5 * (self.beta - self.beta_given) * shift
            if self.first:
                self._begin_possibilistic(U, d, score, converged, mean_distance)
                return None
            return self._outcome(U, d, half, objective, score, converged, int(W.empty.sum()))
        if reseed and own is not None:
            U, W = self._reseed(U, W, own, small)
        self._move(U, W, objective, plain=reseed)
        return None

    def _rule(self) -> Rule:
        match self.rule:
            case "fcm1":
                return _plain_rule("fcm1", m=self.run.fuzzifier)
            case "fcm2":
                return _plain_rule("fcm2", lam=self.entropy_weight)
            case "hard":
                return _plain_rule("hard")
            case _:
                return Rule(self.rule, m=self.run.fuzzifier, eta=self.eta)

    def _spreads(self, U: Float | None, V: Float, d: Float, mean_distance: float | None) -> Float:
        """eta of each cluster, (c,), times spread_scale."""
        run = self.run
        scale = float(run.spread_scale or 1.0)
        if run.eta == "overall":
            assert mean_distance is not None
            n, c = V.shape[2], run.n_clusters
            one = rules.eta_overall(mean_distance * n * n, n, c=c, q=run.theta, beta=self.beta)
            return np.full(c, scale * one)
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
        """From the end of the fcm2 run, with its distances: no scan is spent."""
        self.first = False
        self.first_converged = converged
        self._score = None if self.run.eta == "overall" else score
        self.n_iter_here = 0
        self.U, self.W = U, rules.weights(U, self.run.theta)
        self.eta = self._spreads(U, self.W.V, d, mean_distance)
        self._comparable = False
        self._anchor = None

    def _change(self, U: Float, W: Weights) -> float:
        if self.run.stop == "weights":
            return float(rules.change(W.V, self.W.V, p=self.run.norm)[0])
        return np.inf if self.U is None else float(rules.change(U, self.U, p=self.run.norm)[0])

    @staticmethod
    def _own_distances(U: Float, d: Float) -> Float:
        """The distance of each object to the centre of its own cluster, (n,)."""
        own: Float = np.take_along_axis(d[0], rules.labels(U), axis=0)[0]
        return own

    def _reseed(self, U: Float, W: Weights, own: Float, small: float) -> tuple[Float, Weights]:
        """Give each empty cluster the object that is farthest from its centre, as long as there is one."""
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
        """The next centres: V' or, if accelerated and past the first steps, SQUAREM's extrapolation."""
        here = self.W.V
        before, self._anchor = self._anchor, None
        self.U, self.W = U, W
        if plain or not self.run.accelerate or not PLAIN_STEPS <= self.n_iter_here < self.run.max_iter - 1:
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
        norms = (s * s).sum(axis=2)
        self.W = Weights(s, np.ones_like(norms), norms, np.zeros(norms.shape, dtype=np.bool_))

    def _step_back(self) -> None:
        """The extrapolated centres were worse: go on from the last plain step."""
        assert self._fallback is not None
        self.W, self.U, _ = self._fallback
        self._fallback = self._anchor = None
        self.rejected += 1

    def _outcome(
        self, U: Float, d: Float, half: Float, objective: float, score: float, converged: bool, empty: int
    ) -> Outcome:
        return Outcome(
            run=self.run, place=self.place, U=U[0], d=d[0], V=self.W.V[0], half=half[0], objective=objective,
            score=score if self._score is None else self._score, beta=self.beta,
            entropy_weight=self.entropy_weight, eta=self.eta, converged=converged and self.first_converged,
            n_iter=self.n_iter, history=tuple(self.history), reseeded=self.reseeded, empty=empty,
            negatives=self.negatives, rises=self.rises, rejected=self.rejected,
        )  # fmt: skip


@lru_cache
def _plain_rule(name: str, *, m: float | None = None, lam: float | None = None) -> Rule:
    """Make a rule without spreads once for all iterations and runs: checking it takes a tenth of a small update."""
    return Rule(name, m=m, lam=lam)
