"""First centres of runs: random memberships, rows of the matrix, objects far apart, given memberships and models.

Random numbers are drawn object by object from (random_state, restart) of a run: they depend neither on the tiles nor on
the other runs of the bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.relation import Relation
from dasrel.errors import InputError
from dasrel.partition import rules
from dasrel.partition.model import Model
from dasrel.partition.result import Start
from dasrel.partition.run import Run
from dasrel.util import Float
from dasrel.util.files import digest
from dasrel.util.text import count_text, shown


def generator(run: Run) -> np.random.Generator:
    """Return the random generator of a run."""
    return np.random.default_rng(np.random.SeedSequence((run.random_state, run.restart)))


def unspread(relation: Relation) -> Relation:
    """Return the relation without its spread: each run adds its own, which costs nothing."""
    return replace(relation, beta=0.0)


def starting_spread(relation: Relation, run: Run) -> float:
    """Return the first beta of a run. hard has none: a spread freezes it, while its objective stays the same."""
    return 0.0 if run.rule == "hard" else relation.beta + float(run.spread)


def first_starts(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[Start]:
    """Return the first centres of every run of a bundle.

    pcm1 and pcm2 with a named `init` get those of the fcm2 run that they begin with.

    Parameters
    ----------
    relation
        Without its spread.
    betas
        The spread of each run.

    Cost: no scan for "random", memberships and models. All "rows" runs together read the tiles of the strips that hold
    the rows, at most the bytes of a scan; all "k-means++" runs together read as much once for each cluster but the
    last, of the run with the most clusters. These reads are not counted as scans.
    """
    n = relation.n_objects
    starts: list[Start | None] = [None] * len(runs)
    for k, run in enumerate(runs):
        if isinstance(run.init, Model):
            starts[k] = Start(np.array(run.init.V, dtype=np.float64, order="C")[None])
        elif not isinstance(run.init, str):
            starts[k] = from_memberships(np.asarray(run.init, dtype=np.float64).T[None], run.theta)
        elif run.init == "random":
            # exponential numbers over their sum: uniform over all memberships with sum 1
            drawn = generator(run).standard_exponential((n, run.n_clusters))
            U = np.ascontiguousarray(drawn.T)[None]
            U /= U.sum(axis=1, keepdims=True)
            starts[k] = from_memberships(U, 1.0 if run.is_possibilistic else run.theta)
    rows = [k for k, run in enumerate(runs) if isinstance(run.init, str) and run.init == "rows"]
    if rows:
        drawn_rows = _from_rows(relation, [runs[k] for k in rows], [betas[k] for k in rows])
        for k, V in zip(rows, drawn_rows, strict=True):
            starts[k] = Start(V)
    apart = [k for k, run in enumerate(runs) if isinstance(run.init, str) and run.init == "k-means++"]
    if apart:
        chosen = far_apart(relation.rows, n, [runs[k] for k in apart], [betas[k] for k in apart])
        for k, objects in zip(apart, chosen, strict=True):
            starts[k] = at_objects(objects, n)
    return [start for start in starts if start is not None]


def from_memberships(U: Float, theta: float) -> Start:
    """Return the centres of memberships (1, c, n)."""
    U = np.ascontiguousarray(U)
    return Start(rules.weights(U, theta).V, U)


def at_objects(objects: NDArray[np.intp], n: int) -> Start:
    """Return centres that are objects."""
    V = np.zeros((1, len(objects), n))
    V[0, np.arange(len(objects)), objects] = 1.0
    return Start(V)


def _from_rows(relation: Relation, runs: Sequence[Run], betas: Sequence[float]) -> list[Float]:
    """Return c different random rows of D for each run, each divided by its sum (K14)."""
    picked = [generator(run).choice(relation.n_objects, size=run.n_clusters, replace=False) for run in runs]
    rows = relation.rows(np.concatenate(picked).tolist())
    result, at = [], 0
    for objects, beta in zip(picked, betas, strict=True):
        V = _spread(rows[at : at + len(objects)], objects, beta)
        at += len(objects)
        total = V.sum(axis=1)
        lonely = total <= 0  # an object at distance zero from all others is a centre itself
        V[lonely, objects[lonely]] = total[lonely] = 1.0
        result.append((V / total[:, None])[None])
    return result


def far_apart(
    rows: Callable[[Sequence[int]], Float], n: int, runs: Sequence[Run], betas: Sequence[float]
) -> list[NDArray[np.intp]]:
    """Return objects drawn one after another, each with probability proportional to its distance from those before.

    `rows` returns the rows of D for objects at given positions.
    """
    draws = [generator(run).random(run.n_clusters) for run in runs]
    chosen = [[int(draw[0] * n)] for draw in draws]
    nearest: list[Float | None] = [None] * len(runs)
    for j in range(1, max(run.n_clusters for run in runs)):
        moving = [r for r, run in enumerate(runs) if run.n_clusters > j]
        new = rows([chosen[r][-1] for r in moving])
        for row, r in zip(new, moving, strict=True):
            d = _spread(row[None], np.array(chosen[r][-1:]), betas[r])[0]
            before = nearest[r]
            near = d if before is None else np.minimum(before, d)
            near[chosen[r]] = 0.0
            nearest[r] = near
            odds = near if near.max() > 0 else np.isin(np.arange(n), chosen[r], invert=True).astype(np.float64)
            sums = np.cumsum(odds / odds.max())
            chosen[r].append(int(np.searchsorted(sums, draws[r][j] * sums[-1], side="right").clip(0, n - 1)))
    return [np.array(objects, dtype=np.intp) for objects in chosen]


def _spread(rows: Float, objects: NDArray[np.intp], beta: float) -> Float:
    """Return rows of D plus a spread; negative values, as of similarities that are no kernel, become zero."""
    spread = np.maximum(rows + beta, 0.0)
    spread[np.arange(len(objects)), objects] = 0.0
    return spread


# --------------- given


def checked_runs(runs: Sequence[Run], n_objects: int, ids: Any, diagonal: Any) -> list[Run]:
    """Check runs against the matrix: numbers of clusters, memberships, models; return them ready to run.

    A model of fewer objects, or of the same in another order, is extended to the objects of this matrix.
    """
    if not runs:
        raise InputError("there is no run to make", remedy="give at least one")
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(
                f"a run is of type {shown(type(run).__name__)}", remedy="make runs with dasrel.Run or dasrel.grid"
            )
        if run.n_clusters > n_objects:
            raise InputError(
                f"n_clusters is {run.n_clusters} for {count_text(n_objects, 'object')}",
                remedy=f"give 1 to {n_objects}",
                option="n_clusters",
            )
    models = {id(run.init): run.init for run in runs if isinstance(run.init, Model)}
    fitted = {key: model.grown(ids, diagonal) for key, model in models.items()}
    runs = [run.changed(init=fitted.get(id(run.init), run.init)) for run in runs]
    for run in runs:
        if isinstance(run.init, Model):
            if run.init.n_clusters != run.n_clusters:
                raise InputError(
                    f"init is a model of {count_text(run.init.n_clusters, 'cluster')}, not {run.n_clusters}"
                )
            if run.eta == "cut":
                raise InputError(
                    "eta='cut' needs memberships to cut, and a model has none", remedy="give memberships as {init}"
                )
        elif not isinstance(run.init, str):
            _check_memberships(np.asarray(run.init), n_objects, run.n_clusters)
    return runs


def _check_memberships(U: NDArray[Any], n: int, c: int) -> None:
    if U.shape != (n, c):
        raise InputError(f"init has shape {U.shape}", remedy=f"give ({n}, {c}), objects by clusters")
    if U.dtype.kind not in "fiub":
        raise InputError(f"init is of type {U.dtype}", remedy="give numbers")
    wrong = ~(np.isfinite(U) & (U >= 0) & (U <= 1))
    if wrong.any():
        k, i = (int(x) for x in np.argwhere(wrong)[0])
        raise InputError(
            f"init: the membership of object {k} in cluster {i} is {U[k, i]} ({int(wrong.sum())} such)",
            remedy="give 0 to 1",
        )
    empty = np.flatnonzero(U.max(axis=0) == 0)
    if empty.size:
        raise InputError(f"cluster {int(empty[0])} has no membership at the start", remedy="give every cluster some")


def stored_run(run: Run) -> dict[str, Any]:
    """Return a run as a checkpoint identifies it: initial memberships or a model by a hash of their numbers."""
    values = run.parameters()
    if isinstance(run.init, Model):
        eta = () if run.init.eta is None else (run.init.eta,)
        values["init"] = "model " + digest(np.ascontiguousarray(array).tobytes() for array in (run.init.V, *eta))
    elif not isinstance(run.init, str):
        values["init"] = "memberships " + digest([np.asarray(run.init, dtype=np.float64).tobytes()])
    return values
