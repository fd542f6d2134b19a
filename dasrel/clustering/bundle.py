"""All runs that share scans: one run's iteration, the loop, the split by memory.

One run under way: what an iteration does with the product D V that a scan has brought.

At centres V (weights of the objects) an iteration takes the distances d to them, the memberships U' that are best at
these distances, and the centres V' that U' makes. What is reported of a run, at the end and in its history, belongs to
one state: centres V, distances d to them, memberships U' at these distances, and the objective

    Phi(V) = sum u'^theta d + H(U') = min over U of J(U, V)

which needs no further scan. It falls with every step on a Euclidean relation, and where a run stands still it is the
J = G/2 + H of `rules.objective`.

The bundle: any mixture of runs, all of which take part in the same scans.

    scans of a bundle = iterations of its slowest run
    scans in all      = the sum of that over bundles + scans for entropy_weight="auto" (0 if nobody asks for it,
                        else 1 to `starts.LANCZOS_SCANS`, once for all runs)

Everything fits into one bundle unless memory forbids it. The iterations of pcm1 and pcm2 include those of the fcm2
run that they begin with. Random, given and warm starts cost no scan; "rows" and "k-means++" read rows, see `starts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from dasrel.clustering import rules
from dasrel.clustering.model import Model
from dasrel.clustering.rules import Rule, Weights
from dasrel.clustering.runs import BLOCK, LANCZOS_SCANS, Run, Start, first_starts, largest_gram_eigenvalue
from dasrel.engine.checkpoint import CheckpointWriter
from dasrel.engine.relation import LeftProducts, Relation, product_shape
from dasrel.engine.scan import Plan, brought_here, needed_memory, needed_on_worker
from dasrel.errors import InputError, MemoryLimitError
from dasrel.util import Float, limits, parallel, progress
from dasrel.util.text import count_text, size_text

PLAIN_STEPS = 10
"""Steps before acceleration begins: far from the end, extrapolating leads to other optima."""
_PLAIN = (
    *("beta", "beta_given", "entropy_weight", "first", "U", "eta", "n_iter", "n_iter_here", "reseeded", "negatives"),
    *("rises", "rejected", "stopped_by_negatives", "first_converged", "_score", "_comparable", "_anchor"),
)
"""The fields of a motion that a checkpoint holds as they are."""


@dataclass(frozen=True)
class BundleContext:
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


class RunState:
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
    def unpacked(cls, kept: dict[str, Any], runs: Sequence[Run]) -> RunState:
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

    def advance(self, Y: Float, around: BundleContext, mean_distance: float | None) -> Outcome | None:
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


_SMALL_UPDATE = 200_000  # numbers in a bundle below which threads cost more than they give


@dataclass
class BundleStats:
    """What bundles have used."""

    columns: list[int] = field(default_factory=list)
    """Columns of each scan, in order."""
    scan_seconds: float = 0.0
    update_seconds: float = 0.0


@dataclass
class Bundle:
    """A bundle between two scans."""

    moving: list[RunState]
    iteration: int = 0
    mean_distance: float | None = None
    """The mean of D, once it is known and if it is needed."""

    def packed(self) -> dict[str, Any]:
        """For a checkpoint."""
        moving = [motion.packed() for motion in self.moving]
        return {"moving": moving, "iteration": self.iteration, "mean_distance": self.mean_distance}

    @staticmethod
    def unpacked(kept: dict[str, Any], runs: Sequence[Run]) -> Bundle:
        """What `packed` made, of the runs in the order given."""
        moving = [RunState.unpacked(one, runs) for one in kept["moving"]]
        return Bundle(moving, kept["iteration"], kept["mean_distance"])


def first_bundle(relation: Relation, runs: Sequence[tuple[int, Run]], entropy_weights: dict[int, float]) -> Bundle:
    """Runs at their starts.

    Parameters
    ----------
    runs
        (place, run): place is the position in the user's list.
    entropy_weights
        By place, for fcm2 and for what begins with it.

    Cost: that of `starts.first_starts`.
    """
    betas = [starting_spread(relation, run) for _, run in runs]
    starts = first_starts(unspread(relation), [run for _, run in runs], betas)
    return Bundle(
        [
            RunState(run, place, start, beta, entropy_weights.get(place))
            for (place, run), start, beta in zip(runs, starts, betas, strict=True)
        ]
    )


def unspread(relation: Relation) -> Relation:
    """The relation without its spread: each run adds its own, which costs nothing."""
    return replace(relation, beta=0.0)


def starting_spread(relation: Relation, run: Run) -> float:
    """The beta that a run begins with. hard has none: a spread freezes it, while its objective stays the same."""
    return 0.0 if run.rule == "hard" else relation.beta + float(run.spread)


def entropy_weights(relation: Relation, runs: Sequence[Run], memory: int, keep: CheckpointWriter) -> dict[str, Any]:
    """lambda of every run that needs one, by place: as given, or lambda_c / 2 = lambda_max(K) / n with its spread.

    Cost: no scan, or what `starts.largest_gram_eigenvalue` takes.
    """
    if keep.result("first") is not None:
        return cast(dict[str, Any], keep.result("first"))
    weights: dict[str, float] = {}
    automatic = []
    for place, run in enumerate(runs):
        begins_with_fcm2 = run.rule == "fcm2" or (run.is_possibilistic and isinstance(run.init, str))
        if begins_with_fcm2 and run.entropy_weight == "auto":
            automatic.append(place)
        elif begins_with_fcm2 and run.entropy_weight is not None:
            weights[str(place)] = float(run.entropy_weight)
    eigenvalue, without_value = None, False
    if automatic:
        remembered: Any = _Remembered(unspread(relation), keep)
        eigenvalue = largest_gram_eigenvalue(remembered, memory=memory)
        for place in automatic:
            value = (eigenvalue + starting_spread(relation, runs[place]) / 2) / relation.n_objects
            without_value = without_value or not value > 0
            weights[str(place)] = value if value > 0 else 1.0
    found = {"weights": weights, "eigenvalue": eigenvalue, "without_value": without_value, "scans": keep.scans}
    keep.finish("first", found)
    return found


class _Remembered:
    """A relation whose products are kept one by one, and given again after a stop, so that a search can be replayed."""

    def __init__(self, relation: Relation, keep: CheckpointWriter) -> None:
        self.n_objects = relation.n_objects
        self._relation = relation
        self._keep = keep
        self._products: list[Float] = keep.state("first") or []
        self._next = 0

    def gram(self, V: Float, *, memory: int | str | None = None) -> Float:
        if self._next == len(self._products):
            self._products.append(self._relation.gram(V, memory=memory))
            self._keep.step("first", lambda: self._products)
        self._next += 1
        return self._products[self._next - 1]


def run_bundle(
    relation: Relation,
    bundle: Bundle,
    *,
    deliver: Callable[[Outcome], None],
    on_step: Callable[[Bundle], None],
    work: BundleStats,
    memory: int,
) -> None:
    """Iterate all runs together until the last has ended; each is delivered when it ends and its columns are dropped.

    Parameters
    ----------
    bundle
        Where the runs stand; it is changed.
    deliver
        Takes the outcome of a run. Its arrays are the caller's from then on.
    on_step
        Called after every iteration that is not the last.
    memory
        Bytes that the scans may take, besides what the runs hold themselves.

    Cost: as many scans as the slowest run has iterations.
    """
    base = unspread(relation)
    n, dtype = base.n_objects, base.matrix.dtype
    around = BundleContext(n, base.largest(), min(n, base.matrix.layout.tile), dtype)
    moving = bundle.moving
    width = 0
    wants_mean = any(motion.run.eta == "overall" for motion in moving)
    with ThreadPoolExecutor(limits.thread_count(waiting=False)) as pool:
        while moving:
            bundle.iteration += 1
            progress.current().say(f"iteration {bundle.iteration}, {count_text(len(moving), 'run')} moving")
            began = time.perf_counter()
            widths = [motion.run.n_clusters for motion in moving]
            ends = np.cumsum(widths).tolist()
            total = ends[-1]
            # Terms are added in float64; products with tiles are taken in the tiles' precision anyway.
            stacked = np.empty((total + (wants_mean and bundle.iteration == 1), n), np.float64 if base.terms else dtype)
            for motion, end in zip(moving, ends, strict=True):
                stacked[end - motion.run.n_clusters : end] = motion.W.V[0]
            stacked[total:] = 1.0 / n
            prepared = time.perf_counter()
            if len(stacked) != width:  # runs have ended since the last scan
                width = len(stacked)
                products = LeftProducts([(base, width)], memory=memory)
            (Y,) = products.run([stacked])
            scanned = time.perf_counter()
            del stacked
            if len(Y) > total:
                bundle.mean_distance = float(Y[total].sum() / n)
            work.columns.append(len(Y))

            def step(k: int) -> Outcome | None:
                span = slice(ends[k] - widths[k], ends[k])  # noqa: B023 - used up before the loop goes on
                return moving[k].advance(Y[None, span], around, bundle.mean_distance)  # noqa: B023

            threaded = total * n > _SMALL_UPDATE
            outcomes = list((pool.map if threaded else map)(step, range(len(moving))))
            _refuse_negatives(moving)
            for outcome in outcomes:
                if outcome is not None:
                    deliver(outcome)
            moving = [motion for motion, outcome in zip(moving, outcomes, strict=True) if outcome is None]
            bundle.moving = moving
            del outcomes, Y
            work.scan_seconds += scanned - prepared
            work.update_seconds += time.perf_counter() - scanned + prepared - began
            if moving:
                on_step(bundle)


def _refuse_negatives(moving: Sequence[RunState]) -> None:
    """RFCM's answer to distances below zero."""
    stopped = [motion for motion in moving if motion.stopped_by_negatives]
    if not stopped:
        return
    first = stopped[0]
    raise InputError(
        f"{count_text(first.stopped_by_negatives, 'distance to a centre is', 'distances to centres are')} negative in"
        f" iteration {first.n_iter} of run {first.place} ({first.rule}, {count_text(first.run.n_clusters, 'cluster')};"
        f" {len(stopped)} of {count_text(len(moving), 'run')} met some): the dissimilarities are not Euclidean",
        remedy="say {on_negative=heal} (NERFCM), or {spread=BETA} (-2 lambda_1, lambda_1 the smallest eigenvalue of"
        " -1/2 P D P, always suffices), or Euclideanise the matrix",
    )


def split_by_memory(
    relation: Relation,
    runs: Sequence[Run],
    *,
    keep_all: bool = False,
    memory: int | str | None = None,
    client: Any = None,
) -> tuple[list[list[tuple[int, Run]]], int]:
    """Bundles of runs, in order, as wide as memory allows, and the bytes that their scans may take.

    A column takes in the caller: memberships and weights (16 n bytes, and 24 n more if accelerated), their copy in
    the matrix's precision, and what the scan says. The best run of every setting, or every run, is kept beside it
    (24 n c bytes each). `client` stands for workers that are not there yet; by default it is the active one.
    """
    limit = limits.memory_limit(memory)
    n, item = relation.n_objects, relation.matrix.dtype.itemsize
    of_scan = _scan_memory(relation)
    keeping = [run.n_clusters for run in (runs if keep_all else {run.setting: run for run in runs}.values())]
    kept = 24 * n * sum(keeping)
    widest = max(run.n_clusters for run in runs)
    update = 4 * 8 * n * widest * min(limits.thread_count(waiting=False), len(runs))
    client = parallel.active_client() if client is None else client
    workers = {} if client is None else limits.worker_memory(client)

    def needed(columns: int, held: int) -> int:
        (fixed, task), _, brought = of_scan(columns)
        return held + fixed + (task if client is None else brought)

    def fits(columns: int, held: int) -> bool:
        _, (task, beside), _ = of_scan(columns)
        there = all(not most or task * threads + beside <= most for most, threads in workers.values())
        return there and needed(columns, held) <= limit

    if any(run.entropy_weight == "auto" for run in runs):
        first = needed(BLOCK, 8 * n * BLOCK * (2 * LANCZOS_SCANS + 8))
        if first > limit:
            raise MemoryLimitError(
                f"the automatic entropy weight needs {size_text(first)} for {count_text(n, 'object')} and the limit is"
                f" {size_text(limit)}",
                remedy="raise {memory}, or say {entropy_weight=NUMBER}",
            )
    bundles: list[list[tuple[int, Run]]] = [[]]
    columns, held = 0, kept + update
    most_held = held
    extra = int(any(run.eta == "overall" for run in runs))
    for place, run in enumerate(runs):
        mine = n * run.n_clusters * (16 + (item if not relation.terms else 8) + (24 if run.accelerate else 0))
        if bundles[-1] and not fits(columns + run.n_clusters + extra, held + mine):
            bundles.append([])
            columns, held = 0, kept + update
        if not bundles[-1] and not fits(run.n_clusters + extra, held + mine):
            _, (task, there), _ = of_scan(run.n_clusters + extra)
            limits.check_workers(
                workers, task, f"a scan for one run of {count_text(run.n_clusters, 'cluster')}", kept=there
            )
            raise MemoryLimitError(
                f"one run of {count_text(run.n_clusters, 'cluster')} on {count_text(n, 'object')} needs"
                f" {size_text(needed(run.n_clusters + extra, held + mine))}"
                f" ({size_text(kept)} of it for {count_text(len(keeping), 'kept result')}) and the limit is"
                f" {size_text(limit)}",
                remedy="raise {memory}, keep fewer results, or use smaller tiles",
            )
        bundles[-1].append((place, run))
        columns += run.n_clusters
        held += mine
        most_held = max(most_held, held)
    return bundles, limit - most_held


def _scan_memory(relation: Relation) -> Callable[[int], tuple[tuple[int, int], tuple[int, int], int]]:
    """What a scan of so many columns takes, in bytes.

    In the caller, and in one task here; in one task on a worker, and besides; in the caller for what workers send.
    """
    source: Any = relation.matrix

    @cache
    def needed(columns: int) -> tuple[tuple[int, int], tuple[int, int], int]:
        wide = [product_shape(source, [(relation.view, columns)])]
        return needed_memory(source, wide), needed_on_worker(source, wide), brought_here(Plan(source.layout), wide)

    return needed
