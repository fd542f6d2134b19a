"""Runs: a rule, its parameters and its initial memberships.

What is to be run: one `Run` each, and grids of them. Everything here is checked before a tile is read.

Where runs begin: random memberships, rows of the matrix, k-means++ on its rows, given memberships, a model.

Random numbers belong to (seed, restart) of a run and are drawn object by object: they depend neither on the tiles nor
on what else is in the bundle.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.clustering import rules
from dasrel.clustering.model import Model
from dasrel.engine.relation import Relation
from dasrel.errors import InputError
from dasrel.geometry.lanczos import Search, lanczos
from dasrel.util import Float
from dasrel.util.text import count_text, shown
from dasrel.vocabulary import INITS, PARAMETERS, RULES

_NAMES = ("fuzzifier", "entropy_weight", "spread_scale", "eta", "eta_cut", "eta_refit")


@dataclass(frozen=True, eq=False)
class Run:
    """One optimisation: a rule, its parameters and a start. Parameters that the rule does not take are refused.

    >>> Run("fcm2", 3).entropy_weight
    'auto'
    >>> Run("fcm1", 3, fuzzifier=1)
    Traceback (most recent call last):
    dasrel.errors.InputError: fuzzifier is 1: give a finite number above 1
    """

    rule: str
    """fcm1, fcm2, pcm1, pcm2 or hard."""
    n_clusters: int
    fuzzifier: float | None = None
    """m of fcm1 and pcm1, above 1; 2 by default."""
    entropy_weight: float | Literal["auto"] | None = None
    """lambda of fcm2 and of the fcm2 run that pcm1 and pcm2 start from; "auto" is half the value at which fcm2
    collapses to U = 1/c."""
    spread_scale: float | None = None
    """gamma of pcm1 and pcm2: the clusters' spreads eta are multiplied by it."""
    eta: Literal["mean", "cut", "overall"] | None = None
    """How pcm1 and pcm2 estimate eta: the mean of the distances weighted by memberships (F09 D.24); their mean over
    the members above `eta_cut` (L7; the weighted mean where there is none); or the mean squared distance to the grand
    mean over q sqrt(c) (L7), q the fuzzifier, 1 for pcm2."""
    eta_cut: float | None = None
    """Between 0 and 1, for eta="cut"; 0.5 by default."""
    eta_refit: bool | None = None
    """Whether eta is estimated again at every iteration; else once, at the start."""
    init: str | Float | Model = "random"
    """"random": memberships drawn for each object; "rows": rows of D with sum 1 (K14); "k-means++": objects far from
    each other; memberships (n, c); or a model, of this matrix or of fewer of its objects. pcm1 and pcm2 first run fcm2
    from a start given by a word."""
    random_state: int = 0
    restart: int = 0
    """Number of this restart: random numbers come from (random_state, restart)."""
    spread: float = 0.0
    """beta added to all dissimilarities off the diagonal, known in advance."""
    on_negative: Literal["error", "heal"] = "error"
    """What negative distances do: "error" as in RFCM, or "heal" as in NERFCM: beta grows just enough."""
    max_iter: int = 300
    """Most iterations; those of an fcm2 run before pcm1 or pcm2 are counted apart."""
    tol: float = 1e-5
    """A run has converged when the change from one iteration to the next is below this; 0 asks for all iterations."""
    stop: Literal["memberships", "weights"] = "memberships"
    """What must not change: U, or the weights V of the centres (K14)."""
    norm: float = np.inf
    """The p-norm of the change (F09 22); the largest change by default."""
    accelerate: bool = False
    """Ten plain steps, then SQUAREM with the objective as safeguard: fewer iterations, another path."""

    def __post_init__(self) -> None:
        _choice("rule", self.rule, RULES)
        filled = dict(PARAMETERS[self.rule])
        if self.eta == "cut":
            filled["eta_cut"] = 0.5
        for name in _NAMES:
            if getattr(self, name) is None:
                object.__setattr__(self, name, filled.get(name))
            elif name not in filled:
                other = " unless eta='cut'" if name == "eta_cut" and "eta" in filled else ""
                raise InputError(f"the rule {self.rule} takes no {name}{other}")
        _whole("n_clusters", self.n_clusters, 1)
        _whole("max_iter", self.max_iter, 1)
        _whole("random_state", self.random_state, 0)
        _whole("restart", self.restart, 0)
        if self.fuzzifier is not None:
            _above("fuzzifier", self.fuzzifier, 1.0)
        if self.entropy_weight is not None and self.entropy_weight != "auto":
            _above("entropy_weight", self.entropy_weight, 0.0, '; or "auto"')
        if self.spread_scale is not None:
            _above("spread_scale", self.spread_scale, 0.0)
        if self.eta is not None:
            _choice("eta", self.eta, ("mean", "cut", "overall"))
        if self.eta_cut is not None and not 0 <= float(self.eta_cut) < 1:
            raise InputError(f"eta_cut is {self.eta_cut}: give a number from 0 to below 1")
        if not (_is_number(self.spread) and np.isfinite(self.spread) and self.spread >= 0):
            raise InputError(f"spread is {shown(self.spread)}: give a finite number that is not negative")
        if not (_is_number(self.tol) and 0 <= self.tol < np.inf):
            raise InputError(f"tol is {shown(self.tol)}: give a finite number that is not negative")
        if not (_is_number(self.norm) and self.norm >= 1):
            raise InputError(f"norm is {shown(self.norm)}: give a number of at least 1, or infinity")
        _choice("on_negative", self.on_negative, ("error", "heal"))
        _choice("stop", self.stop, ("memberships", "weights"))
        if isinstance(self.init, str):
            _choice("init", self.init, INITS, "memberships (n, c), or a model")

    @property
    def is_possibilistic(self) -> bool:
        """pcm1 or pcm2."""
        return self.rule in ("pcm1", "pcm2")

    @property
    def theta(self) -> float:
        """Exponent of the memberships."""
        return 1.0 if self.fuzzifier is None else float(self.fuzzifier)

    @property
    def setting(self) -> tuple[Any, ...]:
        """All that makes objectives comparable: runs of one setting differ in their start only."""
        names = ("rule", "n_clusters", *_NAMES, "spread", "on_negative")
        return tuple(getattr(self, name) for name in names)

    def parameters(self) -> dict[str, Any]:
        """The fields as plain values, for tables and files; a start that is no word is named by what it is."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if not isinstance(self.init, str):
            values["init"] = "model" if isinstance(self.init, Model) else "memberships"
        values["norm"] = "inf" if np.isinf(self.norm) else float(self.norm)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def grid(
    rule: str | Sequence[str], n_clusters: int | Sequence[int], *, n_init: int = 1, random_state: int = 0, **others: Any
) -> list[Run]:
    """Runs for every combination of the values given, `n_init` restarts of each: one bundle for `dasrel.cluster`.

    Any other field of `Run` may be given too, as one value or as a list of values. Restarts of the same number use the
    same random numbers in every combination.

    >>> len(grid("fcm1", [2, 3, 4], fuzzifier=[1.5, 2], n_init=10))
    60
    """
    known = {f.name for f in fields(Run)} - {"restart", "random_state", "rule", "n_clusters"}
    unknown = [name for name in others if name not in known]
    if unknown:
        raise InputError(f"no such setting of a run: {shown(unknown[0])}; there are {', '.join(sorted(known))}")
    _whole("n_init", n_init, 1)
    names = ["rule", "n_clusters", *others]
    lists = []
    for name, value in zip(names, [rule, n_clusters, *others.values()], strict=True):
        several = isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and name != "init")
        lists.append(list(value) if several else [value])
        if not lists[-1]:
            raise InputError(f"{name} is an empty list: give at least one value")
    return [
        Run(**dict(zip(names, values, strict=True)), random_state=random_state, restart=restart)
        for values in itertools.product(*lists)
        for restart in range(n_init)
    ]


def checked_runs(runs: Sequence[Run], n_objects: int, ids: Any, diagonal: Any) -> list[Run]:
    """What can only be checked against the matrix: numbers of clusters, given memberships, models.

    A start that is a model of fewer objects, or of the same in another order, is turned into one of this matrix.
    """
    if not runs:
        raise InputError("there is no run to make: give at least one")
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(f"runs are made with dasrel.Run or dasrel.grid; this is {shown(type(run).__name__)}")
        if run.n_clusters > n_objects:
            raise InputError(
                f"n_clusters is {run.n_clusters} for {count_text(n_objects, 'object')}: give 1 to {n_objects}"
            )
    models = {id(run.init): run.init for run in runs if isinstance(run.init, Model)}
    fitted = {key: model.grown(ids, diagonal) for key, model in models.items()}
    runs = [
        run if fitted.get(id(run.init), run.init) is run.init else replace(run, init=fitted[id(run.init)])
        for run in runs
    ]
    for run in runs:
        if isinstance(run.init, Model):
            if run.init.n_clusters != run.n_clusters:
                raise InputError(
                    f"init is a model of {count_text(run.init.n_clusters, 'cluster')}, not {run.n_clusters}"
                )
            if run.eta == "cut":
                raise InputError("eta='cut' needs memberships to cut, and a model has none: give memberships as init")
        elif not isinstance(run.init, str):
            _check_memberships(np.asarray(run.init), n_objects, run.n_clusters)
    return list(runs)


def _check_memberships(U: NDArray[Any], n: int, c: int) -> None:
    if U.shape != (n, c):
        raise InputError(f"init has shape {U.shape}: give ({n}, {c}), objects by clusters")
    if U.dtype.kind not in "fiub":
        raise InputError(f"init is of type {U.dtype}; numbers are needed")
    wrong = ~(np.isfinite(U) & (U >= 0) & (U <= 1))
    if wrong.any():
        k, i = (int(x) for x in np.argwhere(wrong)[0])
        raise InputError(
            f"init: the membership of object {k} in cluster {i} is {U[k, i]} ({int(wrong.sum())} such): give 0 to 1"
        )
    empty = np.flatnonzero(U.max(axis=0) == 0)
    if empty.size:
        raise InputError(f"cluster {int(empty[0])} has no membership at the start; give every cluster some")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {shown(value)}: give a whole number of at least {least}")


def _above(name: str, value: Any, limit: float, or_else: str = "") -> None:
    if not (_is_number(value) and np.isfinite(value) and value > limit):
        raise InputError(f"{name} is {shown(value)}: give a finite number above {limit:g}{or_else}")


def _choice(name: str, value: Any, allowed: Sequence[str], or_else: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        more = f", {or_else}" if or_else else ""
        raise InputError(f"{name} is {shown(value)!r}: use one of {', '.join(allowed)}{more}")


BLOCK = 4  # columns of a Lanczos step
LANCZOS_SCANS = 10
"""Most scans that entropy_weight="auto" takes, once for all runs, before the first iteration."""


@dataclass
class Start:
    """The first centres of a run, and the memberships that they were made of, if they were."""

    V: Float
    """Weights (1, c, n)."""
    U: Float | None = None
    """Memberships (1, c, n), or None where the start is made of weights."""
    mass: Float | None = None
    """sum_h u^theta, (1, c), where there are memberships."""


def generator(run: Run) -> np.random.Generator:
    """The random numbers of a run."""
    return np.random.default_rng(np.random.SeedSequence((run.random_state, run.restart)))


def first_starts(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[Start]:
    """A start for every run of a bundle.

    pcm1 and pcm2 with a start given by a word get the start of the fcm2 run that they begin with.

    Parameters
    ----------
    relation
        Without its spread.
    betas
        The spread of each run.

    Cost: no scan for random, given and warm starts. All "rows" starts together read the tiles of the strips in which
    the rows lie, at most a scan's worth of bytes; all "k-means++" starts together read so much for each of the largest
    number of clusters, less one for the last. These reads are not counted as scans.
    """
    n = relation.n_objects
    starts: list[Start | None] = [None] * len(runs)
    for place, run in enumerate(runs):
        if isinstance(run.init, Model):
            starts[place] = Start(np.array(run.init.V, dtype=np.float64)[None])
        elif not isinstance(run.init, str):
            starts[place] = from_memberships(np.asarray(run.init, dtype=np.float64).T[None], run.theta)
        elif run.init == "random":
            # exponential numbers over their sum: uniform over all memberships with sum 1
            drawn = generator(run).standard_exponential((n, run.n_clusters))
            U = np.ascontiguousarray(drawn.T)[None]
            U /= U.sum(axis=1, keepdims=True)
            starts[place] = from_memberships(U, 1.0 if run.is_possibilistic else run.theta)
    rows = [place for place, run in enumerate(runs) if isinstance(run.init, str) and run.init == "rows"]
    if rows:
        for place, V in zip(rows, _from_rows(relation, [runs[k] for k in rows], [betas[k] for k in rows]), strict=True):
            starts[place] = Start(V)
    apart = [place for place, run in enumerate(runs) if isinstance(run.init, str) and run.init == "k-means++"]
    if apart:
        chosen = _far_apart(relation, [runs[k] for k in apart], [betas[k] for k in apart])
        for place, objects in zip(apart, chosen, strict=True):
            V = np.zeros((1, len(objects), n))
            V[0, np.arange(len(objects)), objects] = 1.0
            starts[place] = Start(V)
    return [start for start in starts if start is not None]


def from_memberships(U: Float, theta: float) -> Start:
    """The start that memberships (1, c, n) make."""
    U = np.ascontiguousarray(U)
    W = rules.weights(U, theta)
    return Start(W.V, U, W.mass)


def _from_rows(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[Float]:
    """c different random rows of D for each run, each divided by its sum (K14)."""
    picked = [generator(run).choice(relation.n_objects, size=run.n_clusters, replace=False) for run in runs]
    rows = relation.rows(np.concatenate(picked).tolist())
    result, at = [], 0
    for objects, beta in zip(picked, betas, strict=True):
        V = _spread(rows[at : at + len(objects)], objects, beta)
        at += len(objects)
        total = V.sum(axis=1)
        lonely = total <= 0  # an object at distance zero from all: it stands for itself
        V[lonely, objects[lonely]] = total[lonely] = 1.0
        result.append((V / total[:, None])[None])
    return result


def _far_apart(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[NDArray[np.intp]]:
    """Objects chosen one after the other, each with probability in proportion to its distance from those before."""
    n = relation.n_objects
    draws = [generator(run).random(run.n_clusters) for run in runs]
    chosen = [[int(draw[0] * n)] for draw in draws]
    nearest: list[Float | None] = [None] * len(runs)
    for j in range(1, max(run.n_clusters for run in runs)):
        moving = [r for r, run in enumerate(runs) if run.n_clusters > j]
        rows = relation.rows([chosen[r][-1] for r in moving])
        for row, r in zip(rows, moving, strict=True):
            d = _spread(row[None], np.array(chosen[r][-1:]), betas[r])[0]
            before = nearest[r]
            near = d if before is None else np.minimum(before, d)
            near[chosen[r]] = 0.0
            nearest[r] = near
            odds = near if near.max() > 0 else np.isin(np.arange(n), chosen[r], invert=True).astype(np.float64)
            heap = np.cumsum(odds / odds.max())
            chosen[r].append(int(np.searchsorted(heap, draws[r][j] * heap[-1], side="right").clip(0, n - 1)))
    return [np.array(objects, dtype=np.intp) for objects in chosen]


def _spread(rows: Float, objects: NDArray[np.intp], beta: float) -> Float:
    """Rows of D with a spread; what is below zero, in similarities that are no kernel, counts as zero."""
    spread = np.maximum(rows + beta, 0.0)
    spread[np.arange(len(objects)), objects] = 0.0
    return spread


def largest_gram_eigenvalue(
    relation: Relation, *, block: int = BLOCK, rtol: float = 1e-3, memory: int | str | None = None
) -> float:
    """The largest eigenvalue of W(D) = -1/2 P D P, from below, by block Lanczos with full reorthogonalisation.

    A spread beta adds beta/2 to it.

    Cost: one scan per step, until the residual is below `rtol` of the eigenvalue, at most `LANCZOS_SCANS`; a basis of
    2 x 4 x 10 columns.
    """
    n = relation.n_objects
    if n == 1:
        return 0.0
    search = Search(lowest=0, highest=1, tol=rtol, block=min(block, n - 1), max_scans=LANCZOS_SCANS, memory=memory)
    return float(lanczos(lambda V: relation.gram(V, memory=memory), n, search=search).highest.values[0])
