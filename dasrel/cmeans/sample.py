"""Starts from a sample: all restarts and all ladder values on some objects in memory, the best of them on all objects.

The sample has `sample_size` objects, or all if there are fewer: nine tenths drawn at random, the others far from all of
those, one after another each the farthest from the ones before (maximin), so that small groups are not missed. On it
all restarts are iterated from k-means++ starts to a coarse tolerance, of a ladder those of its middle value; its other
values start from the best distinct ones of them. Of every setting the best distinct runs continue, of a ladder those of
the values whose silhouette on the sample is near the best. A centre is a weighting of objects: with weight zero on all
others, the centres found on the sample are centres of the whole matrix, and its first scan gives the memberships of all
objects. From there on a run is as any other: it ends at a fixed point on all objects, to the same tolerance.

The result depends on the seed alone, not on tiles, threads or workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.ladder import as_fcm2, begins_with_fcm2, first_run, fuzziness, rungs
from dasrel.cmeans.run_state import BundleContext, FinishedRun, RunState
from dasrel.cmeans.starts import at_objects, far_apart, starting_spread, unspread
from dasrel.engine.reduce import Consumer, Kernel, Plan, Share, Side, shares, strip_consumer
from dasrel.engine.relation import Relation
from dasrel.engine.scan import scan
from dasrel.errors import MemoryLimitError
from dasrel.judging.label_measures import silhouettes
from dasrel.kernels.products import View
from dasrel.partition.result import Start
from dasrel.partition.run import Run
from dasrel.util import Array, Float, limits, parallel, progress
from dasrel.util.text import count_text, size_text

LEAST, MOST = 2_000, 10_000
"""Objects of a sample."""
PER_CLUSTER = 100
"""Objects of a sample for each cluster, within these limits."""
FAR_SHARE = 0.1
"""Share of the sample that is chosen by maximin."""
TOL = 1e-3
"""Tolerance of the runs on the sample: they are starting points."""
MAX_ITER = 100
NEAR_BEST = 0.05
"""Values of a ladder continue if their silhouette on the sample is within this share of the best."""
MOST_VALUES = 4
"""Values of a ladder that continue, at most: the fuzziest ones, and the best one."""
DISTINCT = 0.01
"""Two runs of a setting are distinct if more than this share of the objects is in another cluster."""
MOST_DISTINCT = 2
"""Distinct runs of a setting that continue, at most, and that other values of its ladder start from."""


def sample_size(n_objects: int, n_clusters: int) -> int:
    """Return the number of objects of a sample: 100 for each cluster, from 2,000 to 10,000, and all if there are fewer.

    >>> sample_size(100_000, 5), sample_size(100_000, 40), sample_size(300, 5)
    (2000, 4000, 300)
    """
    return min(n_objects, MOST, max(LEAST, PER_CLUSTER * n_clusters))


def sample_memory(size: int, limit: int) -> int:
    """Return the bytes that a sample takes besides the arrays of its runs; raise if that is more than the limit."""
    needed = 40 * size * size
    if needed > limit:
        raise MemoryLimitError(
            f"a sample of {count_text(size, 'object')} needs {size_text(needed)} and the limit is {size_text(limit)}",
            remedy="raise {memory}, or say {init=k-means++}",
        )
    return needed


def planned_runs(runs: Sequence[Run]) -> list[Run]:
    """Return runs as wide as those on all objects may become, for estimates: ladders and samples have their most runs.

    Values of automatic entropy weights are arbitrary here.
    """
    planned: list[Run] = []
    families: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        families.setdefault(run.setting, []).append(run)
    for family in families.values():
        run = family[0]
        values = rungs(run if not begins_with_fcm2(run) else run.changed(entropy_weight=1.0), 1.0)
        first = rungs(first_run(run), 1.0)
        sampled = isinstance(run.init, str) and run.init == "sample"
        restarts = min(len(family), MOST_DISTINCT) if sampled else len(family)
        width = restarts * (min(len(first), MOST_VALUES + 1) if sampled else len(first))
        if begins_with_fcm2(run):  # the values of eta_scale come after the fcm2 runs
            width = max(width, len(values))
        planned += [values[k % len(values)] for k in range(width)]
    return planned


class Sample(NamedTuple):
    """Some objects and the dissimilarities between them."""

    positions: NDArray[np.intp]
    """In the order of the matrix."""
    D: Float
    """Squared dissimilarities without spread, (m, m)."""


def draw_sample(relation: Relation, size: int, random_state: int, *, memory: int | str | None = None) -> Sample:
    """Draw objects, some at random and some far from those, and return the dissimilarities between them.

    Cost: two scans, one where all objects are taken; 8 bytes for each pair of sampled objects, twice while they are
    collected.
    """
    base, n = unspread(relation), relation.n_objects
    if size == n:
        everything = np.arange(n, dtype=np.intp)
        (D,) = scan(base.matrix, [_pairs_consumer(base, everything)], memory=memory)
        _add_terms(D, base, everything)
        return Sample(everything, D)
    rng = np.random.default_rng(np.random.SeedSequence((random_state, size)))
    far = int(FAR_SHARE * size)
    drawn = np.sort(rng.choice(n, size=size - far, replace=False)).astype(np.intp)
    progress.current().say("sample")
    (near,) = scan(base.matrix, [_nearest_consumer(base, drawn)], memory=memory)
    near[drawn] = -np.inf
    candidates = np.argsort(-near, kind="stable")[: 4 * far].astype(np.intp)
    candidates = np.sort(candidates[near[candidates] > 0])
    everything = np.sort(np.concatenate([drawn, candidates]))
    (D,) = scan(base.matrix, [_pairs_consumer(base, everything)], memory=memory)
    _add_terms(D, base, everything)
    inside = np.searchsorted(everything, candidates)
    chosen = inside[_maximin(D[np.ix_(inside, inside)], near[candidates], far)]
    kept = np.sort(np.concatenate([np.searchsorted(everything, drawn), chosen]))
    return Sample(everything[kept], np.ascontiguousarray(D[np.ix_(kept, kept)]))


def _maximin(D: Float, near: Float, count: int) -> NDArray[np.intp]:
    """Return objects, each the farthest from those before and from the ones that `near` was measured to."""
    near, chosen = near.copy(), []
    for _ in range(min(count, len(near))):
        k = int(near.argmax())
        if near[k] <= 0:
            break
        chosen.append(k)
        near = np.minimum(near, D[k])
        near[k] = -np.inf
    return np.array(chosen, dtype=np.intp)


def _add_terms(D: Float, base: Relation, positions: NDArray[np.intp]) -> None:
    if not base.terms:
        return
    for at in range(0, len(positions), 64):
        some = positions[at : at + 64]
        unit = np.zeros((len(some), base.n_objects))
        unit[np.arange(len(some)), some] = 1.0
        for weight, term in base.terms:
            D[at : at + 64] += weight * term.left(unit)[:, positions]


def _sampled(base: Relation, positions: NDArray[np.intp]) -> Callable[[slice], Share]:
    """Return the shares: which objects are sampled."""
    sampled = np.zeros(base.n_objects, dtype=bool)
    sampled[positions] = True
    return shares(base.matrix, sampled=sampled)


def _in_tile(side: Side) -> NDArray[np.intp]:
    """Return the sampled objects of a side of a tile, counted from its start."""
    return np.flatnonzero(side.get("sampled"))


def _seen(view: View, tile: Array, rows: Side, columns: Side, r: Any = slice(None), c: Any = slice(None)) -> Float:
    """Return part of a tile as squared dissimilarities, float64; r and c count from the starts of its sides."""
    raw = tile.astype(np.float64)
    own, other = (None if side.itself is None else side.itself[at] for side, at in ((rows, r), (columns, c)))
    return view.apply(raw, np.empty_like(raw), row_self=own, column_self=other)


@dataclass(frozen=True)
class _NearestKernel(Kernel):
    """The squared dissimilarity of every object to the nearest sampled one."""

    in_strips = True
    view: View

    def empty(self, objects: int) -> Float:
        return np.full(objects, np.inf)

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        down, across = _in_tile(rows), _in_tile(columns)
        if down.size:
            near = partial[1][columns.inside]
            np.minimum(near, _seen(self.view, tile[down], rows, columns, r=down).min(axis=0), out=near)
        if rows is not columns and across.size:
            near = partial[0][rows.inside]
            np.minimum(near, _seen(self.view, tile[:, across], rows, columns, c=across).min(axis=1), out=near)
        return partial

    def combine(self, first: Float, second: Float) -> Float:
        return np.minimum(first, second)


def _nearest_consumer(base: Relation, positions: NDArray[np.intp]) -> Consumer:
    tile = base.matrix.layout.tile
    # twice the tile in float64 if all of its objects are sampled
    picked = 2 * 8 * tile * min(tile, len(positions)) * base.view.panels
    return strip_consumer(
        base.matrix, _NearestKernel(base.view), lambda parts: np.concatenate([parts[k] for k in sorted(parts)]),
        _sampled(base, positions), sent=8, held=32, scratch=picked, fixed=24, shared=16,
    )  # fmt: skip


@dataclass(frozen=True)
class _PairsKernel(Kernel):
    """The squared dissimilarities between sampled objects."""

    view: View

    def empty(self, objects: int) -> list[Any]:
        return []

    def add(self, partial: list[Any], tile: Array, rows: Side, columns: Side) -> list[Any]:
        down, across = _in_tile(rows), _in_tile(columns)
        if down.size and across.size:
            seen = _seen(self.view, tile[np.ix_(down, across)], rows, columns, down, across)
            partial.append((down + rows.span.start, across + columns.span.start, seen))
        return partial


def _pairs_consumer(base: Relation, positions: NDArray[np.intp]) -> Consumer:
    layout, m = base.matrix.layout, len(positions)

    def finish(parts: dict[int, Any]) -> Float:
        D = np.empty((m, m))
        for down, across, block in parts.pop(0):
            rows, columns = np.searchsorted(positions, down), np.searchsorted(positions, across)
            D[np.ix_(rows, columns)] = block
            D[np.ix_(columns, rows)] = block.T
        np.fill_diagonal(D, base.view.at_zero)
        return D

    side = min(m, Plan(layout).group_side * layout.tile)
    return Consumer(
        _PairsKernel(base.view), finish, _sampled(base, positions), part_bytes=8 * side * side,
        task_memory=8 * side * side * (1 + base.view.panels), fixed_memory=16 * m * m,
        share_bytes=16 * layout.n_objects,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- runs on the sample


def run_on_sample(
    relation: Relation,
    runs: Sequence[Run],
    ladders: Sequence[Any],
    size: int,
    *,
    memory: int | str | None = None,
) -> dict[str, Any]:
    """Run all runs on a sample, and return those that continue: `index` in the list, centres `V`, and `positions`.

    Parameters
    ----------
    ladders
        For each run, what all values of its ladder have in common.

    Cost: that of `draw_sample`; runs are iterated in memory, as many at a time as fit.
    """
    limit = limits.memory_limit(memory)
    needed = sample_memory(size, limit)
    sample = draw_sample(relation, size, runs[0].random_state, memory=memory)
    D = sample.D.astype(relation.matrix.dtype)
    betas = [starting_spread(relation, run) for run in runs]
    coarse = [_on_sample(run, beta) for run, beta in zip(runs, betas, strict=True)]
    columns = (limit - needed) // (120 * size)

    def iterate(which: Sequence[int], starts: Sequence[Start]) -> list[FinishedRun]:
        states = [RunState(coarse[k], k, start, betas[k]) for k, start in zip(which, starts, strict=True)]
        return _iterate_all(D, states, columns)

    first = _scouts(runs, ladders)
    m = len(D)  # fewer than `size` where there are not so many different objects
    objects = far_apart(lambda at: sample.D[list(at)], m, [coarse[k] for k in first], [betas[k] for k in first])
    finished = iterate(first, [at_objects(positions, m) for positions in objects])
    followers = _followers(runs, ladders, finished)
    finished += iterate([k for k, _ in followers], [Start(scout.V[None]) for _, scout in followers])
    chosen = _finalists(sample, runs, ladders, finished)
    return {
        "index": [winner.index for winner in chosen],
        "V": [winner.V for winner in chosen],
        "positions": sample.positions,
    }


def _scouts(runs: Sequence[Run], ladders: Sequence[Any]) -> list[int]:
    """Return the runs that start with k-means++: all restarts of the middle value of each ladder."""
    values: dict[Any, list[float]] = {}
    for run, ladder in zip(runs, ladders, strict=True):
        values.setdefault(ladder, []).append(fuzziness(run))
    middle = {ladder: sorted(set(of))[len(set(of)) // 2] for ladder, of in values.items()}
    return [k for k, run in enumerate(runs) if fuzziness(run) == middle[ladders[k]]]


def _followers(
    runs: Sequence[Run], ladders: Sequence[Any], scouts: Sequence[FinishedRun]
) -> list[tuple[int, FinishedRun]]:
    """Return runs of the other values of each ladder, each with the scout whose centres it starts from."""
    done = {winner.index for winner in scouts}
    best: dict[Any, list[FinishedRun]] = {}
    for winner in sorted(scouts, key=lambda winner: winner.rank):
        best.setdefault(ladders[winner.index], []).append(winner)
    followers: list[tuple[int, FinishedRun]] = []
    for ladder, ranked in best.items():
        chosen = {runs[winner.index].restart: winner for winner in _distinct(ranked)}
        others = (k for k in range(len(runs)) if ladders[k] == ladder and k not in done)
        followers += [(k, chosen[runs[k].restart]) for k in others if runs[k].restart in chosen]
    return followers


def _on_sample(run: Run, beta: float) -> Run:
    """Return the run as it is made on the sample: fcm2 where pcm1 or pcm2 begin with it."""
    return (as_fcm2(run) if run.is_possibilistic else run).changed(
        init="k-means++", tol=max(run.tol, TOL),
        max_iter=min(run.max_iter, MAX_ITER), on_negative="heal", spread=beta, accelerate=False,
        history=False, race=False,
    )  # fmt: skip


def _iterate_all(D: Float, states: list[RunState], columns: int) -> list[FinishedRun]:
    """Iterate runs on a matrix in memory, so many columns at a time."""
    finished: list[FinishedRun] = []
    while states:
        width, now = 0, 0
        while now < len(states) and (now == 0 or width + states[now].run.n_clusters <= columns):
            width += states[now].run.n_clusters
            now += 1
        finished += _iterate(D, states[:now])
        states = states[now:]
        progress.current().say(f"sample, {count_text(len(finished), 'run')} finished, {len(states)} waiting")
    return finished


def _iterate(D: Float, active: list[RunState]) -> list[FinishedRun]:
    """Iterate runs on a matrix in memory until the last has ended, one thread for each.

    Each run has a product of its own, whose bits depend neither on the other runs nor on the number of threads.
    """
    m = len(D)
    context = BundleContext(m, float(np.abs(D).max(initial=0.0)), m, D.dtype)

    def step(state: RunState) -> FinishedRun | None:
        Y = np.matmul(state.W.V[0].astype(D.dtype), D).astype(np.float64)
        return state.advance(Y[None], context, None)

    finished: list[FinishedRun] = []
    with parallel.single_threaded_blas(), ThreadPoolExecutor(limits.thread_count(waiting=False)) as pool:
        while active:
            done = list(pool.map(step, active))
            finished += [winner for winner in done if winner is not None]
            active = [state for state, winner in zip(active, done, strict=True) if winner is None]
    return finished


def _finalists(
    sample: Sample, runs: Sequence[Run], ladders_of: Sequence[Any], finished: Sequence[FinishedRun]
) -> list[FinishedRun]:
    """Choose the runs that continue: the best distinct ones of each setting, of ladders only good values."""
    by_setting: dict[tuple[Any, ...], list[FinishedRun]] = {}
    for winner in sorted(finished, key=lambda winner: winner.rank):
        by_setting.setdefault(runs[winner.index].setting, []).append(winner)
    ladders: dict[Any, list[list[FinishedRun]]] = {}
    for ranked in by_setting.values():
        ladders.setdefault(ladders_of[ranked[0].index], []).append(ranked)
    d = np.sqrt(np.maximum(sample.D, 0.0))
    chosen: list[FinishedRun] = []
    for ladder in ladders.values():
        for ranked in _good_values(d, runs, ladder):
            chosen += _distinct(ranked)
    return sorted(chosen, key=lambda winner: winner.index)


def _good_values(d: Float, runs: Sequence[Run], ladder: Sequence[list[FinishedRun]]) -> Sequence[list[FinishedRun]]:
    """Return the values of a ladder that continue, given the ranked runs of each value."""
    if len(ladder) == 1:
        return ladder
    best = [ranked[0] for ranked in ladder]
    sound = [k for k, winner in enumerate(best) if winner.result.is_sound]
    usable = [k for k in sound if best[k].result.converged] or sound or list(range(len(best)))
    quality = {k: _silhouette(d, best[k].U.argmax(axis=0)) for k in usable}
    top = max(quality, key=lambda k: quality[k])
    near = [k for k in usable if quality[k] >= quality[top] - NEAR_BEST * abs(quality[top])]
    fuzziest = sorted(near, key=lambda k: fuzziness(runs[best[k].index]), reverse=True)[:MOST_VALUES]
    return [ladder[k] for k in sorted({*fuzziest, top})]


def _silhouette(d: Float, labels: NDArray[np.intp]) -> float:
    """Return the mean silhouette of a partition of the sample; -1 if one cluster has all objects."""
    _, labels = np.unique(labels, return_inverse=True)
    sizes = np.bincount(labels).astype(np.float64)
    if len(sizes) == 1:
        return -1.0
    return float(silhouettes(labels, sizes, np.eye(len(sizes))[:, labels] @ d).mean())


def _distinct(ranked: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the best runs of a setting that differ in the clusters of some objects; unsound ones only if all are."""
    chosen: list[FinishedRun] = []
    for winner in ranked:
        if winner.result.is_sound < ranked[0].result.is_sound or len(chosen) == MOST_DISTINCT:
            break
        if all(_moved(winner.U.argmax(axis=0), other.U.argmax(axis=0)) > DISTINCT for other in chosen):
            chosen.append(winner)
    return chosen


def _moved(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
    """Return the share of objects that are in another cluster, clusters matched to the one they share most with."""
    shared = np.zeros((int(first.max()) + 1, int(second.max()) + 1))
    np.add.at(shared, (first, second), 1)
    return 1.0 - float(shared.max(axis=1).sum()) / len(first)


def centres_on_all(V: Float, positions: NDArray[np.intp], n_objects: int) -> Start:
    """Return centres on the sample, (c, m), as centres of all objects: the others have weight zero."""
    whole = np.zeros((1, len(V), n_objects))
    whole[0][:, positions] = V
    return Start(whole)
