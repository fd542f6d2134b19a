"""First centres of runs: random memberships, rows of the matrix, objects far apart, given memberships and models.

Random numbers are drawn object by object from (random_state, restart) of a run: they depend neither on the tiles nor on
the other runs of the bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.relation import Relation
from dasrel.partition import rules
from dasrel.partition.model import Model
from dasrel.partition.run import Run, Start
from dasrel.util import Float


def generator(run: Run) -> np.random.Generator:
    """Return the random generator of a run."""
    return np.random.default_rng(np.random.SeedSequence((run.random_state, run.restart)))


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
            starts[k] = Start(np.array(run.init.V, dtype=np.float64)[None])
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
