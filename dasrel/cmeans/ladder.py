"""Automatic parameters: ladders of values that share all scans, and the choice among them.

"auto" stands for a ladder of values, from fuzzy to crisp. Every value is run from the same starts, all in one bundle:

    entropy_weight   2 lambda_max(K) / n times 1/2, 1/4 .. 1/512, for fcm2 and for the fcm2 run before pcm1 and pcm2;
                     above 2 lambda_max(K) / n all clusters of fcm2 coincide
    fuzzifier        2, 1.7, 1.5, 1.3, 1.2, 1.1, for fcm1
    eta_scale     1, 1/2 .. 1/64, for pcm1 and pcm2, which begin at the fcm2 run that was chosen

The best run of every value is found as among restarts of any setting. Values whose best run has coincident or empty
clusters are left out while there are others. Of the rest the fuzziest is taken whose mean silhouette is within 1 % of
the best: fuzzy as far as that costs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dasrel.cmeans.bundle_memory import LANCZOS_BLOCK, LANCZOS_SCANS
from dasrel.engine.checkpoint import CheckpointWriter
from dasrel.engine.relation import Relation
from dasrel.geometry.lanczos import Operator, Search, lanczos
from dasrel.partition.model import Model
from dasrel.partition.result import Ladder, RunResult
from dasrel.partition.run import Run
from dasrel.util import Float

ENTROPY_FRACTIONS = tuple(0.5**k for k in range(1, 10))
FUZZIFIERS = (2.0, 1.7, 1.5, 1.3, 1.2, 1.1)
ETA_SCALES = tuple(0.5**k for k in range(7))
LADDERS = ("fuzzifier", "entropy_weight", "eta_scale")
"""The parameters that may be "auto"."""
WITHIN = 0.01
"""How much worse than the best silhouette a fuzzier value may be, as a share."""


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
    return automatic_parameter(first_run(run)) == "entropy_weight"


def rungs(run: Run, threshold: float) -> list[Run]:
    """Return the runs of a ladder, from fuzzy to crisp; the run itself where nothing is automatic.

    Parameters
    ----------
    threshold
        2 lambda_max(K) / n with the spread of the run; 0 where all objects are equal.
    """
    run = as_model(run)
    parameter = automatic_parameter(run)
    if parameter is None:
        return [run]
    weights = tuple(fraction * threshold for fraction in ENTROPY_FRACTIONS) if threshold > 0 else (1.0,)
    values = {"entropy_weight": weights, "fuzzifier": FUZZIFIERS, "eta_scale": ETA_SCALES}[parameter]
    changes: list[dict[str, Any]] = [{parameter: value} for value in values]
    return [run.changed(**change) for change in changes]


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
        reason = f"the only {name} that was run on all objects"
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


# -------------------------------------------------------------------------------------------- the largest eigenvalue


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
