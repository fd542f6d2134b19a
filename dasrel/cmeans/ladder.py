"""Automatic parameters: ladders of values that share all scans, the choice among them, and contests of restarts.

"auto" stands for a ladder of values, from fuzzy to crisp. Every value is run from the same starts, all in one bundle:

    entropy_weight   2 lambda_max(K) / n times 1/2, 1/4 .. 1/512, for fcm2 and for the fcm2 run before pcm1 and pcm2;
                     above 2 lambda_max(K) / n all clusters of fcm2 coincide
    fuzzifier        2, 1.7, 1.5, 1.3, 1.2, 1.1, for fcm1
    eta_scale     1, 1/2 .. 1/64, for pcm1 and pcm2, which begin at the fcm2 run that was chosen

The best run of every value is found as among restarts of any setting. Values whose best run has coincident or empty
clusters are left out while there are others. Of the rest the fuzziest is taken whose mean silhouette is within 1 % of
the best: fuzzy as far as that costs nothing.

The rule "auto" stands for fcm1 and fcm2, each with its ladder: of the two values that are taken the one with the larger
silhouette, fcm2 where they are within 1 %. fcm1 heals negative distances then.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dasrel.engine.checkpoint import CheckpointWriter
from dasrel.engine.relation import Relation, product_shape
from dasrel.engine.scan import needed_memory
from dasrel.errors import MemoryLimitError
from dasrel.geometry.lanczos import Operator, Search, lanczos
from dasrel.names import PARAMETERS
from dasrel.partition.model import Model
from dasrel.partition.result import Ladder, RunResult
from dasrel.partition.run import Run
from dasrel.util import Float, limits, parallel
from dasrel.util.text import count_text, size_text

ENTROPY_FRACTIONS = tuple(0.5**k for k in range(1, 10))
FUZZIFIERS = (2.0, 1.7, 1.5, 1.3, 1.2, 1.1)
ETA_SCALES = tuple(0.5**k for k in range(7))
LADDERS = ("fuzzifier", "entropy_weight", "eta_scale")
"""The parameters that may be "auto"."""
LADDER_OF = {
    "fcm1": "fuzzifier", "fcm2": "entropy_weight", "pcm1": "eta_scale", "pcm2": "eta_scale",
}  # fmt: skip
"""The parameter of each rule that its ladder is made of, after the fcm2 run of pcm1 and pcm2."""
WITHIN = 0.01
"""How much worse than the best silhouette a fuzzier value may be, as a share."""
CLOSE = 0.002
"""A choice is open after the last sample where silhouettes are within this share of those at which it would change."""
VAGUE = 0.02
"""The same after a sample that is followed by another one."""
NEAR_BEST = 0.05
"""With `exact`, values whose silhouette on the sample is within this share of the best go on to all objects."""
MOST_VALUES = 4
"""Values of a ladder that go on with `exact`, at most: the fuzziest ones, and the best one."""


def fuzziness(run: Run) -> float:
    """Return a number that grows along a ladder from crisp to fuzzy."""
    product = 1.0
    for name in LADDERS:
        value = getattr(run, name)
        product *= 1.0 if value is None or isinstance(value, str) else float(value)
    return product


def begins_with_fcm2(run: Run) -> bool:
    """Return whether pcm1 or pcm2 begins with a choice among fcm2 runs, which are then made first."""
    return run.is_possibilistic and isinstance(run.init, str) and "auto" in (run.entropy_weight, run.eta_scale)


def first_run(run: Run) -> Run:
    """Return the fcm2 run that is made before a run of pcm1 or pcm2 with automatic parameters; else the run itself."""
    return as_fcm2(run) if begins_with_fcm2(run) else run


def as_fcm2(run: Run) -> Run:
    """Return the fcm2 run that a run of pcm1 or pcm2 begins with."""
    none: dict[str, Any] = dict.fromkeys(("fuzzifier", "eta_scale", "eta", "eta_cut", "eta_refit"))
    return run.changed(rule="fcm2", **none)


def variants(run: Run) -> list[Run]:
    """Return the runs that the rule "auto" stands for, or the run itself."""
    if run.rule != "auto":
        return [run]
    if isinstance(run.init, Model):
        return [Run(run.init.rule, run.n_clusters, init=run.init).changed(**_common(run))]
    return [
        run.changed(rule="fcm2", entropy_weight="auto"),
        run.changed(rule="fcm1", fuzzifier="auto", on_negative="heal"),
    ]


def _common(run: Run) -> dict[str, Any]:
    """Return the parameters that do not depend on the rule."""
    own = {"rule", "n_clusters", "init", *PARAMETERS["pcm1"], "eta_cut"}
    return {name: value for name, value in vars(run).items() if name not in own}


def automatic_parameter(run: Run) -> str | None:
    """Return the parameter whose ladder is run first, if one is "auto" and used."""
    run, named = as_model(run), isinstance(run.init, str)
    used = {"entropy_weight": named or not run.is_possibilistic, "fuzzifier": True, "eta_scale": True}
    return next((name for name, is_used in used.items() if is_used and getattr(run, name) == "auto"), None)


def as_model(run: Run) -> Run:
    """Return a run that starts from a model with the model's numbers where its own are "auto".

    The widths of the clusters of pcm1 and pcm2 are in the model: they are not scaled.
    """
    if not isinstance(run.init, Model):
        return run
    model = {"fuzzifier": run.init.fuzzifier, "entropy_weight": run.init.entropy_weight, "eta_scale": 1.0}
    known = {name: value for name, value in model.items() if value is not None and getattr(run, name) == "auto"}
    changes: dict[str, Any] = known
    return run.changed(**changes) if known else run


def needs_threshold(run: Run) -> bool:
    """Return whether a run needs 2 lambda_max(K) / n, for an automatic entropy weight."""
    return any(automatic_parameter(first_run(variant)) == "entropy_weight" for variant in variants(run))


def rungs(run: Run, threshold: float) -> list[Run]:
    """Return the runs of a ladder, from fuzzy to crisp; the run itself where nothing is automatic.

    Parameters
    ----------
    threshold
        2 lambda_max(K) / n with the spread of the run; 0 where all objects are equal.
    """
    if run.rule == "auto":
        return [value for variant in variants(run) for value in rungs(variant, threshold)]
    run = as_model(run)
    parameter = automatic_parameter(run)
    if parameter is None:
        return [run]
    weights = tuple(fraction * threshold for fraction in ENTROPY_FRACTIONS) if threshold > 0 else (1.0,)
    values = {"entropy_weight": weights, "fuzzifier": FUZZIFIERS, "eta_scale": ETA_SCALES}[parameter]
    changes: list[dict[str, Any]] = [{parameter: value} for value in values]
    return [run.changed(**change) for change in changes]


@dataclass(frozen=True, eq=False)
class Choice:
    """A choice among the values of a ladder, and among rules."""

    at: int
    """Position of what was chosen among the results."""
    ladders: tuple[Ladder, ...]
    """The choice among rules, where there was one, and among the values of the rule."""
    runner_up: int | None
    """Position of the next best; None where there is none."""
    distance: float
    """How much silhouettes would have to change for the runner-up to be chosen."""
    good: tuple[int, ...]
    """Positions of the values whose silhouettes are near the best of their rule."""


def decide(
    results: Sequence[RunResult],
    silhouettes: Sequence[float],
    *,
    rule_is_free: bool = False,
    objects: int | None = None,
) -> Choice:
    """Choose among the values of a ladder, or of the ladders of several rules.

    Parameters
    ----------
    rule_is_free
        Whether the rule is chosen too.
    objects
        Objects of the sample by which it is chosen; None for all objects.
    """
    where = {id(result): k for k, result in enumerate(results)}
    ladders: list[Ladder] = []
    for rule in dict.fromkeys(result.run.rule for result in results):
        own = [k for k, result in enumerate(results) if result.run.rule == rule]
        parameter = LADDER_OF[rule]
        ladder = choose(parameter, [results[k] for k in own], [silhouettes[k] for k in own])
        ladders.append(_judged(ladder, objects))
    good = tuple(where[id(ladder.results[k])] for ladder in ladders for k in _good(ladder))
    if not rule_is_free:
        (ladder,) = ladders
        at = where[id(ladder.results[ladder.chosen])]
        rival = None if ladder.runner_up is None else where[id(ladder.results[ladder.runner_up])]
        return Choice(at, (ladder,), rival, ladder.distance, good)
    rules = _choose_rule(ladders, objects)
    chosen = next(ladder for ladder in ladders if ladder.results[ladder.chosen] is rules.results[rules.chosen])
    at = where[id(chosen.results[chosen.chosen])]
    nearest = min((rules, chosen), key=lambda ladder: ladder.distance)
    rival = None if nearest.runner_up is None else where[id(nearest.results[nearest.runner_up])]
    return Choice(at, (rules, chosen), rival, nearest.distance, good)


def _choose_rule(ladders: Sequence[Ladder], objects: int | None) -> Ladder:
    """Choose among rules, each with the value that was chosen for it."""
    results = tuple(ladder.results[ladder.chosen] for ladder in ladders)
    values = tuple(ladder.silhouettes[ladder.chosen] for ladder in ladders)
    usable = [k for k, result in enumerate(results) if result.is_sound] or list(range(len(results)))
    best = max(usable, key=lambda k: values[k])
    first = usable[0]
    margin = WITHIN * abs(values[best])
    chosen = first if values[first] >= values[best] - margin else best
    others = [k for k in usable if k != chosen]
    runner_up = max(others, key=lambda k: values[k]) if others else None
    distance = np.inf
    reason = "the only rule without coincident or empty clusters"
    if runner_up is not None:
        distance = abs(values[first] - (values[runner_up if chosen == first else chosen] - margin))
        reason = f"silhouette {values[chosen]:.3f}, and {values[runner_up]:.3f} with {results[runner_up].run.rule}" + (
            "; within 1 %, fcm2 is taken" if values[runner_up] > values[chosen] else ""
        )
    return Ladder(
        "rule", results, values, chosen, reason + _on(objects), runner_up=runner_up, distance=distance,
        objects=objects,
    )  # fmt: skip


def _on(objects: int | None) -> str:
    return "" if objects is None else f", on a sample of {count_text(objects, 'object')}"


def _judged(ladder: Ladder, objects: int | None) -> Ladder:
    """Return a ladder with its runner-up: the value that a small change of silhouettes would make the chosen one."""
    values, results, chosen = ladder.silhouettes, ladder.results, ladder.chosen
    usable = [k for k, result in enumerate(results) if result.is_sound] or list(range(len(results)))
    best = max(values[k] for k in usable)
    bound = best - WITHIN * abs(best)
    rivals = [(bound - values[k], k) for k in usable if k < chosen]
    crisper = [k for k in usable if k > chosen]
    if crisper:
        rivals.append((values[chosen] - bound, next((k for k in crisper if values[k] >= bound), crisper[0])))
    distance, runner_up = min(rivals, default=(np.inf, None))
    return replace(
        ladder, runner_up=runner_up, distance=float(distance), objects=objects, reason=ladder.reason + _on(objects)
    )


def _good(ladder: Ladder) -> list[int]:
    """Return the positions of the values that go on with `exact`: near the best, the fuzziest ones, and the best."""
    values, results = ladder.silhouettes, ladder.results
    sound = [k for k, result in enumerate(results) if result.is_sound]
    usable = [k for k in sound if results[k].converged] or sound or list(range(len(results)))
    top = max(usable, key=lambda k: values[k])
    near = [k for k in usable if values[k] >= values[top] - NEAR_BEST * abs(values[top])]
    return sorted({*near[:MOST_VALUES], top})


def choose(parameter: str, results: Sequence[RunResult], silhouettes: Sequence[float]) -> Ladder:
    """Choose the fuzziest value whose silhouette is within 1 % of the best, among the sound ones if there are any."""
    order = sorted(range(len(results)), key=lambda k: fuzziness(results[k].run), reverse=True)
    results, silhouettes = [results[k] for k in order], [float(silhouettes[k]) for k in order]
    sound = [k for k, result in enumerate(results) if result.is_sound]
    usable = sound or list(range(len(results)))
    best = max(silhouettes[k] for k in usable)
    chosen = next(k for k in usable if silhouettes[k] >= best - WITHIN * abs(best))
    name = parameter.replace("_", " ")
    if len(results) == 1:
        reason = f"the only {name} that was run"
    else:
        quality = f"{silhouettes[chosen]:.3f}"
        reason = f"the largest {name} whose silhouette, {quality}, is within 1 % of the best, {best:.3f}"
    if len(sound) < len(results):
        left = len(results) - len(sound)
        reason += (
            f"; {left} of {len(results)} values ended with coincident or empty clusters"
            if sound
            else "; all values ended with coincident or empty clusters"
        )
    return Ladder(parameter, tuple(results), tuple(silhouettes), chosen, reason)


# ------------------------------------------------------------------------------------------------------------- contests

MOST_DISTINCT = 2
"""Distinct ends of a value that continue, at most."""
REFINED = 3
"""Numbers of clusters of a range that are iterated on all objects, at most: the best one and its neighbours."""


@dataclass(frozen=True, eq=False)
class Contest:
    """What is decided together: the restarts of one requested setting."""

    runs: tuple[Run, ...]
    """The restarts, as requested."""
    values: tuple[Run, ...]
    """The first restart with each value of its ladder."""
    beta: float

    @property
    def is_decided(self) -> bool:
        """Whether it is decided on samples: else all good values go on to all objects."""
        return not self.runs[0].exact


@dataclass(frozen=True, eq=False)
class Finalist:
    """A run that goes on, with its centres on a level."""

    value: int
    """Which of the contest's values it has."""
    result: RunResult
    """How it ended on the level."""
    V: Float
    """(c, m)."""


class Restarts(NamedTuple):
    """How the restarts of a setting have ended on the first sample, at the value that they begin with."""

    runs: int
    finished: int
    """Those that were not stopped early because others were better."""
    same: int
    """Of these, those that have ended in the same clusters as the best one, but for 1 % of the objects."""
    objects: int
    """In the sample."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What a level says of a contest."""

    finalists: tuple[Finalist, ...]
    """The best one first."""
    ladders: tuple[Ladder, ...]
    """The choice among rules and among values; none if there was one value only."""
    index: float
    """The value of the validity index by which numbers of clusters are compared; NaN where it is not defined."""
    level: int = 0
    """The position of its level."""
    is_refined: bool = True
    """Whether finalists are iterated on all objects; else they have the centres of the sample."""
    restarts: Restarts | None = None

    @property
    def is_open(self) -> bool:
        """Whether finalists differ in their values."""
        return len({finalist.value for finalist in self.finalists}) > 1


def packed(contests: Sequence[Contest], decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return decisions for a checkpoint."""

    def row(contest: Contest, result: RunResult) -> list[Any]:
        settings = [value.setting for value in contest.values]
        return [settings.index(result.run.setting), result.run.restart, result.packed()]

    return [
        {
            "finalists": [
                [finalist.value, finalist.result.run.restart, finalist.result.packed(), finalist.V]
                for finalist in decision.finalists
            ],
            "ladders": [
                {**vars(ladder), "results": [row(contest, result) for result in ladder.results]}
                for ladder in decision.ladders
            ],
            "index": decision.index, "level": decision.level, "is_refined": decision.is_refined,
            "restarts": decision.restarts,
        }
        for contest, decision in zip(contests, decisions, strict=True)
    ]  # fmt: skip


def unpacked(contests: Sequence[Contest], stored: Sequence[dict[str, Any]]) -> list[Decision]:
    """Return decisions from what `packed` returned."""

    def result(contest: Contest, value: int, restart: int, values: dict[str, Any]) -> RunResult:
        return RunResult.unpacked(values, contest.values[value].changed(restart=restart))

    return [
        Decision(
            tuple(Finalist(value, result(contest, value, restart, values), V)
                  for value, restart, values, V in decision["finalists"]),
            tuple(Ladder(**ladder | {"results": tuple(result(contest, *row) for row in ladder["results"]),
                                     "silhouettes": tuple(ladder["silhouettes"])})
                  for ladder in decision["ladders"]),
            decision["index"], decision["level"], decision["is_refined"], Restarts(*decision["restarts"]),
        )
        for contest, decision in zip(contests, stored, strict=True)
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------- the largest eigenvalue

LANCZOS_BLOCK = 4
"""Columns of a Lanczos step."""
LANCZOS_SCANS = 10
"""Most scans that entropy_weight="auto" takes, once for all runs, before the first iteration."""


def eigenvalue_memory(n: int) -> int:
    """Return the bytes of the basis in the search for entropy_weight="auto"."""
    return 8 * n * LANCZOS_BLOCK * (2 * LANCZOS_SCANS + 8)


def check_eigenvalue_memory(relation: Relation, *, memory: int | str | None = None) -> None:
    """Raise if the search for entropy_weight="auto" does not fit into memory."""
    limit, n = limits.memory_limit(memory), relation.n_objects
    fixed, task = needed_memory(relation.matrix, [product_shape(relation.matrix, [(relation.view, LANCZOS_BLOCK)])])
    needed = eigenvalue_memory(n) + fixed + (0 if parallel.active_client() is not None else task)
    if needed > limit:
        raise MemoryLimitError(
            f"the automatic entropy weight needs {size_text(needed)} for {count_text(n, 'object')} and the limit is"
            f" {size_text(limit)}",
            remedy="raise {memory}, or say {entropy_weight=NUMBER}",
        )


def top_eigenvalue(relation: Relation, memory: int | str | None, keep: CheckpointWriter) -> dict[str, Any]:
    """Return the largest eigenvalue of W(D) without spread, and the scans that it took, saved in checkpoints.

    Cost: that of `largest_gram_eigenvalue`.
    """
    stored: dict[str, Any] | None = keep.result("first")
    if stored is None:
        base = replace(relation, beta=0.0)
        gram = _replayable(lambda V: base.gram(V, memory=memory), keep)
        value = largest_gram_eigenvalue(gram, base.n_objects, memory=memory)
        stored = {"eigenvalue": value, "scans": keep.scans}
        keep.finish("first", stored)
    return stored


def largest_gram_eigenvalue(gram: Operator, n: int, *, rtol: float = 1e-3, memory: int | str | None = None) -> float:
    """Return the largest eigenvalue of W(D) = -1/2 P D P, from below, by block Lanczos; `gram` is X -> W(D) X.

    A spread beta adds beta/2 to it.

    Cost: one scan per step, until the residual is below `rtol` of the eigenvalue, at most `LANCZOS_SCANS`; a basis of
    2 x 4 x 10 columns.
    """
    if n == 1:
        return 0.0
    search = Search(
        lowest=0, highest=1, tol=rtol, block=min(LANCZOS_BLOCK, n - 1), max_scans=LANCZOS_SCANS, memory=memory
    )
    return float(lanczos(gram, n, search=search).highest.values[0])


def _replayable(gram: Operator, keep: CheckpointWriter) -> Operator:
    """Return the operator with its products saved in checkpoints: a resumed search gets those again, in order."""
    products: list[Float] = keep.state("first") or []
    used = itertools.count()

    def multiply(V: Float) -> Float:
        k = next(used)
        if k == len(products):
            products.append(gram(V))
            keep.step("first", lambda: products)
        return products[k]

    return multiply
