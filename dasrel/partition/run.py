"""Runs and their results: what to run (`Run`, `grid`), and what one has found (`RunResult`, `Partition`).

A run is a rule with its parameters and its initial memberships. All of it is checked before a tile is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasrel.errors import InputError
from dasrel.names import INITS, OTHER_RULES, PARAMETERS, RULES
from dasrel.partition import rules
from dasrel.partition.model import Model
from dasrel.util import Float, html
from dasrel.util.files import digest
from dasrel.util.text import count_text, shown, some

MOST_RUNS = 100_000
"""Runs that `grid` makes: the memory of their descriptions alone is about 100 MB."""
LARGEST_EXPONENT = 700.0
"""exp(-700) is still a normal number in float64."""
LATER = ("history", "race")
"""Fields of a run that earlier versions did not have; False means what they did."""
_PARAMETERS = ("fuzzifier", "entropy_weight", "eta_scale", "eta", "eta_cut", "eta_refit")
_ROWS = 20
"""Clusters that a notebook lists."""
SETTING = ("rule", "n_clusters", *_PARAMETERS, "spread", "on_negative")
"""The fields of a run that make objectives comparable."""


@dataclass(frozen=True, eq=False)
class Run:
    """A rule, its parameters and initial memberships. A parameter that the rule lacks is an error.

    It is one optimisation, or one for each value of a ladder where a parameter is "auto"; see `clustering.ladder`.

    >>> Run("fcm2", 3).entropy_weight
    'auto'
    >>> Run("fcm1", 3, fuzzifier=1)
    Traceback (most recent call last):
    dasrel.errors.InputError: fuzzifier is 1: give a finite number above 1; or "auto"
    """

    rule: str
    """fcm1, fcm2, pcm1, pcm2 or hard."""
    n_clusters: int
    fuzzifier: float | Literal["auto"] | None = None
    """m of fcm1 and pcm1, above 1. For fcm1 "auto", the default: the largest of a ladder that costs nothing; for pcm1
    2 by default."""
    entropy_weight: float | Literal["auto"] | None = None
    """lambda of fcm2 and of the fcm2 run that pcm1 and pcm2 start from; "auto", the default, is the largest of a ladder
    that costs nothing."""
    eta_scale: float | Literal["auto"] | None = None
    """gamma of pcm1 and pcm2: the clusters' spreads eta are multiplied by it; "auto", the default, is the largest of a
    ladder at which clusters do not coincide."""
    eta: Literal["mean", "cut", "overall"] | None = None
    """How pcm1 and pcm2 estimate eta: the mean of the distances weighted by memberships (F09 D.24); their mean over
    the members above `eta_cut` (L7; the weighted mean where there is none); or the mean squared distance to the grand
    mean over q sqrt(c) (L7), q the fuzzifier, 1 for pcm2."""
    eta_cut: float | None = None
    """Between 0 and 1, for eta="cut"; 0.5 by default."""
    eta_refit: bool | None = None
    """Whether eta is estimated again at every iteration; else once, at the start."""
    init: str | Float | Model = "sample"
    """"sample": centres found on some of the objects, on small matrices "k-means++"; "k-means++": objects far from each
    other; "random": memberships drawn for each object; "rows": rows of D with sum 1 (K14); memberships (n, c); or a
    model, of this matrix or of fewer of its objects. From a named `init`, pcm1 and pcm2 first run fcm2."""
    random_state: int = 0
    restart: int = 0
    """Number of this restart: random numbers come from (random_state, restart)."""
    spread: float = 0.0
    """beta added to all dissimilarities off the diagonal, known in advance."""
    on_negative: Literal["error", "heal"] = "error"
    """What to do about negative distances: "error" as in RFCM, or "heal" as in NERFCM: beta grows just enough."""
    max_iter: int = 300
    """Most iterations; those of the fcm2 run before pcm1 or pcm2 are counted separately."""
    tol: float = 1e-5
    """A run has converged when the change from one iteration to the next is below this; 0 runs all iterations. For hard
    it is a share of the objects: converged when no object changes its cluster, or when fewer than this share of all
    objects do in each of `bundle.STEADY_STEPS` = 3 iterations one after the other; the default, 1e-5, makes a
    difference from 100,000 objects on."""
    stop: Literal["memberships", "weights"] = "memberships"
    """What is compared between iterations: U, or the weights V of the centres (K14)."""
    norm: float = np.inf
    """The p-norm of the change (F09 22); the largest change by default."""
    accelerate: bool = True
    """Ten plain steps, then SQUAREM with the objective as safeguard: fewer iterations, other intermediate values. False
    reproduces the papers step by step; with `eta_refit` there is none."""
    history: bool = False
    """Whether max |U - U'| (F09 42) of every iteration is kept in the result (`RunResult.changes`); no scan."""
    race: bool = False
    """Whether the run stops early when it cannot win any more: another run of its setting has converged with sound
    clusters, and this one's objective is above that one's by more than ten times what it is still expected to fall. The
    expectation is a geometric series from its last ten iterations. This is safe, that is, the same run wins, where the
    objective falls geometrically, as it does near a fixed point of a Euclidean relation. It is not where a run lingers
    at a saddle and then falls again, which is why it is off by default. Runs that were healed, reseeded, or whose
    objective rose are never stopped. pcm1 and pcm2 stop when the fcm2 run that they are compared by has ended worse."""

    def __post_init__(self) -> None:
        called = OTHER_RULES.get(str(self.rule).lower())
        if called is not None:
            raise InputError(f"the rule {shown(self.rule)} is called {called} here")
        _check_choice("rule", self.rule, RULES)
        filled = dict(PARAMETERS[self.rule])
        if self.eta == "cut":
            filled["eta_cut"] = 0.5
        for name in _PARAMETERS:
            if getattr(self, name) is None:
                object.__setattr__(self, name, filled.get(name))
            elif name not in filled:
                other = " unless eta='cut'" if name == "eta_cut" and "eta" in filled else ""
                raise InputError(f"the rule {self.rule} takes no {name}{other}")
        _check_integer("n_clusters", self.n_clusters, 1)
        _check_integer("max_iter", self.max_iter, 1)
        _check_integer("random_state", self.random_state, 0)
        _check_integer("restart", self.restart, 0)
        if self.fuzzifier == "auto" and self.rule == "pcm1":
            raise InputError('fuzzifier is "auto", which pcm1 does not have: give a number above 1')
        for name, limit in (("fuzzifier", 1.0), ("entropy_weight", 0.0), ("eta_scale", 0.0)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value == "auto"):
                _check_above(name, value, limit, "" if self.rule == "pcm1" and limit else '; or "auto"')
        most = LARGEST_EXPONENT / math.log(max(self.n_clusters, 2))
        if isinstance(self.fuzzifier, (int, float)) and self.fuzzifier > most:
            raise InputError(
                f"fuzzifier is {self.fuzzifier:g}: memberships of 1/{max(self.n_clusters, 2)} to this power are 0"
                f" for a computer; give at most {most:.3g}"
            )
        if self.eta is not None:
            _check_choice("eta", self.eta, ("mean", "cut", "overall"))
        if self.eta_cut is not None and not 0 <= float(self.eta_cut) < 1:
            raise InputError(f"eta_cut is {self.eta_cut}: give a number from 0 to below 1")
        if not (_is_number(self.spread) and np.isfinite(self.spread) and self.spread >= 0):
            raise InputError(f"spread is {shown(self.spread)}: give a finite number that is not negative")
        if not (_is_number(self.tol) and 0 <= self.tol < np.inf):
            raise InputError(f"tol is {shown(self.tol)}: give a finite number that is not negative")
        if not (_is_number(self.norm) and self.norm >= 1):
            raise InputError(f"norm is {shown(self.norm)}: give a number of at least 1, or infinity")
        _check_choice("on_negative", self.on_negative, ("error", "heal"))
        _check_choice("stop", self.stop, ("memberships", "weights"))
        for name in ("accelerate", "history", "race"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise InputError(f"{name} is {shown(getattr(self, name))}: give True or False")
        if isinstance(self.init, str):
            _check_choice("init", self.init, INITS, "memberships (n, c), or a model")

    def __repr__(self) -> str:
        usual = {f.name: f.default for f in fields(self)} | dict.fromkeys(_PARAMETERS) | PARAMETERS[self.rule]
        given = {name: value for name, value in self.parameters().items() if name not in ("rule", "n_clusters", "norm")}
        if not math.isinf(self.norm):
            given["norm"] = float(self.norm)
        others = [f", {name}={value!r}" for name, value in given.items() if value != usual[name]]
        return f"Run({self.rule!r}, {self.n_clusters}{''.join(others)})"

    @property
    def is_possibilistic(self) -> bool:
        """Whether the rule is pcm1 or pcm2."""
        return self.rule in ("pcm1", "pcm2")

    @property
    def most_iterations(self) -> int:
        """Most iterations, with those of the fcm2 run that pcm1 and pcm2 begin with."""
        return self.max_iter * (2 if self.is_possibilistic and isinstance(self.init, str) else 1)

    @property
    def theta(self) -> float:
        """Exponent of the memberships."""
        return 1.0 if self.fuzzifier is None else float(self.fuzzifier)  # "auto" is replaced before a run begins

    @property
    def setting(self) -> tuple[Any, ...]:
        """The values that make objectives comparable: runs of one setting differ only in their initial memberships."""
        return tuple(getattr(self, name) for name in SETTING)

    def parameters(self) -> dict[str, Any]:
        """Return the fields as plain values, for tables and files; a given `init` as "model" or "memberships"."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if not isinstance(self.init, str):
            values["init"] = "model" if isinstance(self.init, Model) else "memberships"
        values["norm"] = "inf" if np.isinf(self.norm) else float(self.norm)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


class Runs(list[Run]):
    """A list of runs that is short when it is printed."""

    def __repr__(self) -> str:
        return f"<{count_text(len(self), 'run')}: {some(self)}>"


def grid(
    rule: str | Sequence[str], n_clusters: int | Sequence[int], *, n_init: int = 1, random_state: int = 0, **others: Any
) -> list[Run]:
    """Return runs for every combination of the values, `n_init` restarts of each: one bundle for `dasrel.cluster`.

    Any other field of `Run` may be given too, as one value or as a list of values. Restarts of the same number use the
    same random numbers in every combination.

    >>> grid("fcm1", [2, 3, 4], fuzzifier=[1.5, 2], n_init=10)
    <60 runs: Run('fcm1', 2, fuzzifier=1.5), Run('fcm1', 2, fuzzifier=1.5, restart=1), ... and 57 more>
    """
    known = {f.name for f in fields(Run)} - {"restart", "random_state", "rule", "n_clusters"}
    unknown = [name for name in others if name not in known]
    if unknown:
        raise InputError(f"no such setting of a run: {shown(unknown[0])}; there are {', '.join(sorted(known))}")
    _check_integer("n_init", n_init, 1)
    names = ["rule", "n_clusters", *others]
    lists = []
    for name, value in zip(names, [rule, n_clusters, *others.values()], strict=True):
        several = isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and name != "init")
        lists.append(list(value) if several else [value])
        if not lists[-1]:
            raise InputError(f"{name} is an empty list: give at least one value")
    count = n_init * math.prod(map(len, lists))
    if count > MOST_RUNS:
        raise InputError(f"{count:,} runs are requested, and at most {MOST_RUNS:,} can be made at once: lower n_init")
    return Runs(
        Run(**dict(zip(names, values, strict=True)), random_state=random_state, restart=restart)
        for values in itertools.product(*lists)
        for restart in range(n_init)
    )


def checked_runs(runs: Sequence[Run], n_objects: int, ids: Any, diagonal: Any) -> list[Run]:
    """Check runs against the matrix: numbers of clusters, memberships, models; return them ready to run.

    A model of fewer objects, or of the same in another order, is extended to the objects of this matrix.
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


def _check_integer(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {shown(value)}: give a whole number of at least {least}")


def _check_above(name: str, value: Any, limit: float, or_else: str = "") -> None:
    if not (_is_number(value) and np.isfinite(value) and value > limit):
        raise InputError(f"{name} is {shown(value)}: give a finite number above {limit:g}{or_else}")


def _check_choice(name: str, value: Any, allowed: Sequence[str], or_else: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        more = f", {or_else}" if or_else else ""
        raise InputError(f"{name} is {shown(value)!r}: use one of {', '.join(allowed)}{more}")


_STORED = {
    "init": "start", "random_state": "seed",
    "membership_sums": "sizes", "coincident_clusters": "coincident", "negative_distances": "negatives",
}  # fmt: skip
"""Names in checkpoints where they differ from the names here: the format does not change."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """The result of one run without its arrays: a row of the table."""

    run: Run
    converged: bool
    n_iter: int
    """Iterations; for pcm1 and pcm2 those of the fcm2 run before are included."""
    objective: float
    score: float
    """The number by which runs of one setting are compared: the objective, except in the two cases of `fit`."""
    history: tuple[float, ...]
    """The objective after each iteration, without rejected accelerated steps."""
    entropy: float
    """O(U) = -sum u log u."""
    membership_sums: tuple[float, ...]
    """Sum of the memberships of each cluster."""
    beta: float
    """Spread at the end: the given one and what healing added."""
    entropy_weight: float | None
    """lambda as it was used."""
    eta: tuple[float, ...] | None
    flat: bool
    """Whether the memberships of every object are equal in all clusters, to within 0.01."""
    coincident_clusters: int
    """Pairs of clusters in the same position: distances to them differ by less than 1 % of their range."""
    reseeded: int
    """How often an empty cluster was given a new object."""
    empty: int
    """Clusters in which no object has its largest membership."""
    negative_distances: int
    """Distances below zero, summed over iterations."""
    rises: int
    """Iterations in which the objective rose beyond rounding: none on a Euclidean relation."""
    rejected: int
    """Accelerated steps that were rejected."""
    changes: tuple[float, ...] = ()
    """max |U - U'| from each iteration to the next, with `history`: as long as the objectives. NaN for the first
    iteration from centres without memberships."""
    modes: tuple[int, ...] | None = None
    """For each cluster of pcm1 and pcm2 the first cluster that coincides with it; see `Model.modes`."""
    stopped_early: bool = False
    """Whether it was stopped because it could not win any more, with `race`."""

    @property
    def n_modes(self) -> int | None:
        """Number of different positions in which the clusters of pcm1 and pcm2 ended; None for the other rules."""
        return None if self.modes is None else len(set(self.modes))

    def __repr__(self) -> str:
        ended = f"{'converged' if self.converged else 'stopped'} after {count_text(self.n_iter, 'iteration')}"
        return f"<RunResult of {self.run!r}: objective {self.objective:.6g}, {ended}>"

    @property
    def is_sound(self) -> bool:
        """Whether all clusters are distinct and have objects."""
        return not (self.flat or self.coincident_clusters or self.empty)

    def packed(self) -> dict[str, Any]:
        """Return the values for a checkpoint, without the run."""
        values = {_STORED.get(f.name, f.name): getattr(self, f.name) for f in fields(self) if f.name != "run"}
        return {**values, "history": np.array(self.history), "changes": np.array(self.changes)}

    @staticmethod
    def unpacked(stored: dict[str, Any], run: Run) -> RunResult:
        """Return the result of a run from what `packed` returned."""
        eta = None if stored["eta"] is None else tuple(stored["eta"])
        tuples = {"history": tuple(stored["history"].tolist()), "sizes": tuple(stored["sizes"]), "eta": eta}
        if "changes" in stored:  # not in checkpoints of earlier versions
            modes = stored["modes"]
            tuples |= {"changes": tuple(stored["changes"].tolist()), "modes": None if modes is None else tuple(modes)}
        values = {**stored, **tuples}
        names = {f.name: _STORED.get(f.name, f.name) for f in fields(RunResult)[1:]}
        return RunResult(run=run, **{name: values[there] for name, there in names.items() if there in values})

    def described(self) -> str:
        """Return the parameters that the rule has, with their values, as text for people."""
        used = {"fuzzifier": self.run.fuzzifier, "entropy weight": self.entropy_weight, "spread": self.beta or None}
        used["eta scale"] = self.run.eta_scale
        return ", ".join(f"{name} {value:.4g}" for name, value in used.items() if isinstance(value, (int, float)))

    def row(self) -> dict[str, Any]:
        """Return plain values, for a table or a file."""
        values: dict[str, Any] = self.run.parameters()
        for name in ("converged", "n_iter", "objective", "score", "entropy", "beta", "flat", "coincident_clusters",
                     "n_modes", "reseeded", "empty", "negative_distances", "rises", "rejected",
                     "stopped_early"):  # fmt: skip
            values[name] = getattr(self, name)
        if self.entropy_weight is not None:
            values["entropy_weight_used"] = self.entropy_weight
        if self.eta is not None:
            values["eta_used"] = list(self.eta)
        values["membership_sums"] = list(self.membership_sums)
        return values


@dataclass(frozen=True, eq=False)
class Ladder:
    """The values that "auto" tried for a setting, and the choice."""

    parameter: str
    results: tuple[RunResult, ...]
    """The best run of each value that was run on all objects, from fuzzy to crisp."""
    silhouettes: tuple[float, ...]
    """Mean silhouette of each."""
    chosen: int
    reason: str

    def __repr__(self) -> str:
        chosen = getattr(self.results[self.chosen].run, self.parameter)
        return f"<Ladder of {self.parameter}: {chosen:.6g} of {count_text(len(self.results), 'value')}>"

    def report(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = [
            {
                "value": getattr(result.run, self.parameter), "silhouette": silhouette, "objective": result.objective,
                "converged": result.converged, "coincident_clusters": result.coincident_clusters,
                "empty": result.empty,
            }
            for result, silhouette in zip(self.results, self.silhouettes, strict=True)
        ]  # fmt: skip
        chosen = getattr(self.results[self.chosen].run, self.parameter)
        return {"parameter": self.parameter, "chosen": chosen, "reason": self.reason, "values": values}


class Start(NamedTuple):
    """The first centres of a run."""

    V: Float
    """Weights of the objects, (1, c, n)."""
    U: Float | None = None
    """The memberships (1, c, n) that the weights were made from; None where there are none."""


@dataclass(frozen=True, eq=False)
class Partition:
    """A run with its memberships. They, the distances, labels, objective and medoids belong to the same centres."""

    result: RunResult
    memberships: Float
    """(n, c)."""
    distances: Float
    """Squared dissimilarities to the centres, spread included, (n, c)."""
    model: Model

    def __repr__(self) -> str:
        run, n = self.result.run, len(self.memberships)
        sizes = ", ".join(f"{size:,}" for size in self.sizes[:10]) + (", ..." if run.n_clusters > 10 else "")
        clusters = count_text(run.n_clusters, "cluster")
        return f"<Partition: {run.rule}, {count_text(n, 'object')} in {clusters} of {sizes}>"

    def _repr_html_(self) -> str:
        result, n, sizes = self.result, len(self.memberships), self.sizes
        largest, labels, medoids = self.memberships.max(axis=1), self.labels, self.medoids
        rows = [
            (
                k, f"{sizes[k]:,}", html.bar(sizes[k] / n), self.model.ids[medoids[k]],
                f"{largest[labels == k].mean():.3f}" if sizes[k] else "none",
            )
            for k in range(min(len(sizes), _ROWS))
        ]  # fmt: skip
        more = [f"{len(sizes) - _ROWS:,} more clusters"] if len(sizes) > _ROWS else []
        facts = [
            ("rule", ", ".join(filter(None, [result.run.rule, result.described()]))),
            ("objects", f"{n:,}"),
            ("objective", f"{result.objective:.6g}"),
            ("converged", f"{'yes' if result.converged else 'no'}, {count_text(result.n_iter, 'iteration')}"),
            ("border", f"{count_text(len(self.border()), 'object')} with no membership of 0.5"),
            *([] if result.is_sound else [("beware", "some clusters coincide or have no objects")]),
        ]
        header = ("cluster", "objects", "", "medoid", "mean membership")
        return html.card("Partition", facts, html.table(header, [*rows, *([more] if more else [])]))

    @property
    def labels(self) -> NDArray[np.intp]:
        """The cluster of largest membership of each object; the lowest number on a tie, and in a mode (`modes`)."""
        return self.model.labels(self.memberships)

    @property
    def objective(self) -> float:
        """The objective at these memberships and centres."""
        return self.result.objective

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Number of objects with each label; 0 for a cluster that coincides with an earlier one of pcm1 or pcm2."""
        return np.bincount(self.labels, minlength=self.memberships.shape[1]).astype(np.intp)

    @property
    def medoids(self) -> NDArray[np.intp]:
        """Position of the object nearest to each centre."""
        nearest: NDArray[np.intp] = self.distances.argmin(axis=0)
        return nearest

    @property
    def entropy(self) -> float:
        """O(U) = -sum u log u."""
        return self.result.entropy

    def border(self, threshold: float = 0.5) -> NDArray[np.intp]:
        """Return the positions of objects whose largest membership is below the threshold."""
        return np.flatnonzero(self.memberships.max(axis=1) < threshold)

    def image(self, objects: Sequence[int] | NDArray[np.intp]) -> Float:
        """Return the induced dissimilarity D(U) = 1 - U'U / max(U'U) (K14 17) of chosen objects, (k, k)."""
        return rules.induced_dissimilarity(self.memberships.T, np.asarray(objects, dtype=np.intp))


def stored_run(run: Run) -> dict[str, Any]:
    """Return a run as a checkpoint identifies it: initial memberships or a model by a hash of their numbers."""
    values = run.parameters()
    for name in LATER:  # a checkpoint of a version that did not have it is still resumed
        if not values[name]:
            del values[name]
    if isinstance(run.init, Model):
        eta = () if run.init.eta is None else (run.init.eta,)
        values["init"] = "model " + digest(np.ascontiguousarray(one).tobytes() for one in (run.init.V, *eta))
    elif not isinstance(run.init, str):
        values["init"] = "memberships " + digest([np.asarray(run.init, dtype=np.float64).tobytes()])
    return {_STORED.get(name, name): value for name, value in values.items()}
