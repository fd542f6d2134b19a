"""Where runs begin: random memberships, rows of the matrix, k-means++ on its rows, given memberships, a model.

Random numbers belong to (seed, restart) of a run and are drawn object by object: they depend neither on the tiles nor
on what else is in the bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasrel import rules
from dasrel.lanczos import Search, lanczos
from dasrel.model import Model
from dasrel.relation import Relation
from dasrel.runs import Run

Float = NDArray[np.float64]

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
