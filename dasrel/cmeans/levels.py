"""Levels: settings are decided on samples in memory, where it is cheap, and all objects see one or two finalists.

The first level has `sample_size` objects; there, for every setting,

1. all restarts of the middle value of the ladder begin at greedy k-means++ centres. After `HALVING` iterations the
   worse half of them ends, by the objective; of the others the best distinct ones are iterated on;
2. the best goes along the ladder, from the middle value to both ends, each value from the centres of the one before.
   After a value with coincident or empty clusters the next fuzzier one begins where the first did; a second such
   value ends the way to the fuzzy end;
3. `ladder.decide` chooses the value, and of the rule "auto" the rule, by silhouettes.

Matrices of at least `STEP` squared times as many objects have a second level of `second_size` objects, and what
the first level has left open is decided there: a choice with a rival whose silhouette is within `VAGUE` of where the
choice would change, and which of several distinct ends of the chosen value is the best. What is open after the last
level, within `CLOSE`, is decided on all objects, between two finalists.

Numbers of clusters: of settings that differ in nothing else, the one with the best index on the last level and its
neighbours are iterated on all objects; the others have the centres of the sample.

A centre is a weighting of objects: with weight zero on all others, centres of a sample are centres of the whole matrix,
and one scan gives the memberships of all objects. The result depends on the seed alone, not on tiles or threads.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.ladder import (
    CLOSE,
    MOST_DISTINCT,
    VAGUE,
    Contest,
    Decision,
    Finalist,
    Restarts,
    as_fcm2,
    decide,
    fuzziness,
)
from dasrel.cmeans.run_state import SMALL_UPDATE, BundleContext, FinishedRun, RunState
from dasrel.cmeans.starts import at_objects, generator
from dasrel.judging.groupings import silhouettes
from dasrel.kernels import products
from dasrel.names import AUTO
from dasrel.partition.result import Ladder, LevelReport, Start
from dasrel.partition.run import Run
from dasrel.util import Array, Float, limits, parallel, progress
from dasrel.util.text import count_text

HALVING = 8
"""Iterations after which the worse half of the restarts ends."""
FAILURES = 2
"""Values with coincident or empty clusters after which the way to the fuzzy end of a ladder ends."""
DISTINCT = 0.01
"""Two runs are distinct if more than this share of the objects is in another cluster."""
RIVAL = 0.005
"""How much worse the objective of a distinct end may be, as a share, to continue."""
WITHIN_BEST = 0.1
"""Numbers of clusters go on to the second level if their index is within this share of the best."""
TOL = 3e-5
"""Relative change of the objective at which runs on a sample end: they are starting points."""
MAX_ITER = 60
FINE_TOL = 1e-6
"""The same for finalists."""
FINE_ITER = 150
BLOCK = 512
"""Rows of a sample's matrix that a thread works on at a time."""
NARROW = 12
"""Columns up to which the compiled kernel multiplies faster than BLAS."""
HELD = 600
"""Bytes for each object and cluster of a contest that is decided, at most: ten restarts and the ends of two ladders."""
FREE = 16 << 20
"""Bytes that contests may always take together; on large samples they take as much as the sample."""

T = TypeVar("T")
Trail = Generator[RunState, FinishedRun, T]
"""Runs one after another: it yields each at its start, gets its end, and returns what has become of them."""


class Level:
    """A sample with its dissimilarities in memory."""

    def __init__(self, positions: NDArray[np.intp], D: Array, *, has_all: bool = False) -> None:
        self.positions = positions
        self.has_all = has_all
        """Whether these are all objects, so that nothing stays open."""
        self.D = D
        self.size = len(D)
        self._context = BundleContext(self.size, float(np.abs(D).max(initial=0.0)), self.size, D.dtype)
        self._blocks = [slice(at, min(at + BLOCK, self.size)) for at in range(0, self.size, BLOCK)]
        self._pool: ThreadPoolExecutor | None = None
        self.runs = self.n_iter = self.columns = 0
        """What was done here, for the report."""

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Have a pool of threads inside the block: each works on rows of a product, or on the memberships of a run."""
        with parallel.single_threaded_blas(), ThreadPoolExecutor(limits.thread_count(waiting=False)) as self._pool:
            yield

    def multiply(self, V: Float) -> Float:
        """Return V D, (c, m); the bits do not depend on the number of threads."""
        assert self._pool is not None
        given = np.ascontiguousarray(V, dtype=self.D.dtype)
        upright = np.ascontiguousarray(given.T) if len(V) > NARROW else given.T
        result = np.zeros(V.shape)

        def fill(rows: slice) -> None:
            part = result[:, rows]
            narrow = len(V) <= NARROW
            if not (narrow and products._add_products_native(self.D[rows], None, given, part, None)):
                part[:] = np.matmul(self.D[rows], upright).T

        list(self._pool.map(fill, self._blocks))
        return result

    def step(self, states: Sequence[RunState]) -> list[FinishedRun | None]:
        """Do one iteration of all runs, with one product for all of them; return the results of those that ended."""
        assert self._pool is not None
        ends = np.cumsum([state.run.n_clusters for state in states]).tolist()
        Y = self.multiply(np.concatenate([state.W.V[0] for state in states]))
        self.n_iter += len(states)
        self.columns += len(Y)

        def advance(state: RunState, end: int) -> FinishedRun | None:
            return state.advance(Y[None, end - state.run.n_clusters : end].copy(), self._context, None)

        return list((self._pool.map if Y.size > SMALL_UPDATE else map)(advance, states, ends))

    def follow(self, trails: Iterable[Trail[T]]) -> list[T]:
        """Follow all trails to their ends, side by side, and return what they return, in order."""
        returned: dict[int, T] = {}
        active: list[tuple[int, Trail[T], RunState]] = []

        def go_on(k: int, trail: Trail[T], finished: FinishedRun | None) -> None:
            try:
                state = next(trail) if finished is None else trail.send(finished)
            except StopIteration as end:
                returned[k] = end.value
            else:
                active.append((k, trail, state))

        for k, trail in enumerate(trails):
            go_on(k, trail, None)
        while active:
            before, active = active, []
            for (k, trail, state), finished in zip(before, self.step([state for *_, state in before]), strict=True):
                if finished is None:
                    active.append((k, trail, state))
                else:
                    go_on(k, trail, finished)
        return [returned[k] for k in sorted(returned)]

    def state(self, run: Run, beta: float, start: Start, *, fine: bool = False) -> RunState:
        """Return a run at its first centres, as it is made on a sample: fcm2 where pcm1 or pcm2 begin with it."""
        run = as_fcm2(run) if run.is_possibilistic else run
        coarse = run.changed(
            init="k-means++", stop="objective", tol=FINE_TOL if fine else TOL, on_negative="heal",
            max_iter=min(run.max_iter, FINE_ITER if fine else MAX_ITER),
            spread=beta, accelerate=fine, history=False, race=False, norm=np.inf,
        )  # fmt: skip
        self.runs += 1
        return RunState(coarse, 0, start, beta)

    def report(self, seconds: float) -> LevelReport:
        """Return what a result says of this level."""
        return LevelReport(self.size, self.runs, self.n_iter, self.columns, seconds)

    def silhouettes(self, partitions: Sequence[FinishedRun]) -> list[tuple[float, float]]:
        """Return the mean silhouette and the fuzzy silhouette of each partition; -1 and NaN for a single cluster."""
        distinct: dict[bytes, tuple[NDArray[np.intp], int]] = {}
        keys = []
        for partition in partitions:
            labels = np.unique(partition.U.argmax(axis=0), return_inverse=True)[1]
            keys.append(labels.tobytes())
            distinct.setdefault(keys[-1], (labels, int(labels.max()) + 1))
        total = sum(count for _, count in distinct.values())
        Z = np.zeros((self.size, total), self.D.dtype)
        at = 0
        for labels, count in distinct.values():
            Z[np.arange(self.size), at + labels] = 1
            at += count

        def sums_of(rows: slice) -> Array:
            part: Array = np.matmul(np.sqrt(np.maximum(self.D[rows], 0)), Z)
            return part

        assert self._pool is not None
        sums = np.concatenate(list(self._pool.map(sums_of, self._blocks)), dtype=np.float64).T
        of_labels, at = {}, 0
        for key, (labels, count) in distinct.items():
            sizes = np.bincount(labels).astype(np.float64)
            own = np.ascontiguousarray(sums[at : at + count])
            of_labels[key] = silhouettes(labels, sizes, own) if count > 1 else None
            at += count
        return [_means(of_labels[key], partition.U) for key, partition in zip(keys, partitions, strict=True)]


def _means(values: Float | None, U: Float) -> tuple[float, float]:
    if values is None:
        return -1.0, np.nan
    first, second = np.partition(U, len(U) - 2, axis=0)[-1:-3:-1]
    weight = first - second
    total = float(weight.sum())
    return float(values.mean()), float((weight * values).sum() / total) if total > 0 else np.nan


# --------------------------------------------------------------------------------------------------- the first level

Ends = dict[int, list[FinishedRun]]
"""How the runs of a contest have ended, by the position of their value."""


def first_level(level: Level, contests: Sequence[Contest], index: str, *, share: float) -> list[Decision]:
    """Run all contests on the first level, and return what it says of each.

    Parameters
    ----------
    index
        "silhouette" or "fuzzy_silhouette": by which numbers of clusters are compared.
    share
        How close a choice is that stays open.

    Cost: no scan.
    """
    decisions: list[Decision] = []
    with level.threads():
        for group in _groups(level, contests):
            decisions += _first_decisions(level, group, index, share)
    if level.has_all:
        return [
            replace(decision, finalists=decision.finalists[:1]) if contest.is_decided else decision
            for contest, decision in zip(contests, decisions, strict=True)
        ]
    return decisions


def _groups(level: Level, contests: Sequence[Contest]) -> Iterator[list[Contest]]:
    """Yield contests that fit into memory together."""
    most = max(32 * level.size**2, FREE) // (HELD * level.size)
    group: list[Contest] = []
    for contest in contests:
        if group and sum(other.runs[0].n_clusters for other in (*group, contest)) > most:
            yield group
            group = []
        group.append(contest)
    yield group


def _first_decisions(level: Level, contests: Sequence[Contest], index: str, share: float) -> list[Decision]:
    """Run some contests on the first level, side by side; see `first_level`."""
    scouts, restarts = _scouts(level, contests)
    progress.current().say(f"sample, {count_text(len(contests), 'setting')}: values of parameters")
    jobs = [
        (k, way) for k, (contest, ends) in enumerate(zip(contests, scouts, strict=True))
        for way in _ways(contest, ends)
    ]  # fmt: skip
    results = level.follow(_along(level, contests[k], way) for k, way in jobs)
    reached: list[Ends] = [{_middle(c): list(ends)} for c, ends in zip(contests, scouts, strict=True)]
    for (k, _), pairs in zip(jobs, results, strict=True):
        for value, finished in pairs:
            reached[k].setdefault(value, []).append(finished)
    decisions = _settled(level, contests, reached, index, share)

    # other distinct ends of the restarts, at the value that was chosen
    waiting = [
        k for k, contest in enumerate(contests)
        if contest.is_decided and len(scouts[k]) > 1 and not (decisions[k].is_open and not level.has_all)
        and decisions[k].finalists[0].value != _middle(contest)
    ]  # fmt: skip
    others = level.follow(
        _along(level, contests[k], (scouts[k][1], [decisions[k].finalists[0].value], False), fine=True) for k in waiting
    )
    for k, pairs in zip(waiting, others, strict=True):
        value = decisions[k].finalists[0].value
        ends = _distinct([*reached[k][value], *(finished for _, finished in pairs)])
        decisions[k] = replace(decisions[k], finalists=_rivals(value, ends))
    return [replace(decision, restarts=ended) for decision, ended in zip(decisions, restarts, strict=True)]


def _middle(contest: Contest) -> int:
    """Return the value of a ladder that restarts begin with: of the rule "auto" that of fcm2."""
    every = range(len(contest.values))
    own = [k for k in every if contest.values[k].rule == "fcm2"] or list(every)
    return sorted(own, key=lambda k: fuzziness(contest.values[k]))[len(own) // 2]


def _scouts(level: Level, contests: Sequence[Contest]) -> tuple[list[list[FinishedRun]], list[Restarts]]:
    """Return for each contest the best distinct ends of its restarts, at the middle value, and how many there were."""
    starting, of = [], []
    for k, contest in enumerate(contests):
        middle = contest.values[_middle(contest)]
        starting += [middle.changed(restart=run.restart) for run in contest.runs]
        of += [k] * len(contest.runs)
    betas = [contests[k].beta for k in of]
    progress.current().say(f"sample, {count_text(len(starting), 'run')}")
    states = [
        level.state(run, beta, at_objects(_seeds(level.D, run, beta), level.size))
        for run, beta in zip(starting, betas, strict=True)
    ]
    early: dict[int, FinishedRun] = {}
    for _ in range(HALVING):
        going = [j for j in range(len(states)) if j not in early]
        ended = level.step([states[j] for j in going]) if going else []
        early.update((j, end) for j, end in zip(going, ended, strict=True) if end is not None)
    kept: list[int] = []
    for k in range(len(contests)):
        ranked = sorted(
            (j for j, contest in enumerate(of) if contest == k), key=lambda j: (states[j].objectives[-1], j)
        )
        kept += ranked[: max(MOST_DISTINCT, (len(ranked) + 1) // 2)]
    going = [j for j in kept if j not in early]
    early.update(zip(going, level.follow(_to_end(states[j]) for j in going), strict=True))
    every = [[early[j] for j in kept if of[j] == k] for k in range(len(contests))]
    scouts = [_distinct(ends) for ends in every]
    labels = [best.U.argmax(axis=0) for best, *_ in scouts]
    same = [
        sum(_moved(mine, end.U.argmax(axis=0)) <= DISTINCT for end in ends)
        for mine, ends in zip(labels, every, strict=True)
    ]
    return scouts, [
        Restarts(len(contest.runs), len(ends), count, level.size)
        for contest, ends, count in zip(contests, every, same, strict=True)
    ]


def _to_end(state: RunState) -> Trail[FinishedRun]:
    """Iterate a run to its end."""
    return (yield state)


def _seeds(D: Array, run: Run, beta: float) -> NDArray[np.intp]:
    """Return objects by greedy k-means++: of some drawn in proportion to their distance from those before, the one that
    brings all objects nearest (Arthur and Vassilvitskii 2007; the candidates are scikit-learn's 2 + log c).
    """
    rng, m = generator(run), len(D)
    candidates = 2 + int(np.log(run.n_clusters))

    def rows(objects: NDArray[np.intp]) -> Float:
        spread = np.maximum(D[objects].astype(np.float64) + beta, 0.0)
        spread[np.arange(len(objects)), objects] = 0.0
        return spread

    chosen = np.array([int(rng.random() * m)], dtype=np.intp)
    near = rows(chosen)[0]
    for _ in range(1, run.n_clusters):
        odds = near if near.max() > 0 else np.isin(np.arange(m), chosen, invert=True).astype(np.float64)
        sums = np.cumsum(odds / max(odds.max(), np.finfo(np.float64).tiny))
        drawn = np.searchsorted(sums, rng.random(candidates) * sums[-1], side="right").clip(0, m - 1)
        nearer = np.minimum(near, rows(drawn))
        best = int(nearer.sum(axis=1).argmin())
        chosen, near = np.append(chosen, drawn[best]), nearer[best]
    return chosen


def _distinct(ends: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the best ends that differ in the clusters of some objects; unsound ones only if all are."""
    ranked = sorted(ends, key=lambda end: end.rank[:2])
    chosen: list[FinishedRun] = []
    for end in ranked:
        if end.result.is_sound < ranked[0].result.is_sound or len(chosen) == MOST_DISTINCT:
            break
        if all(_moved(end.U.argmax(axis=0), other.U.argmax(axis=0)) > DISTINCT for other in chosen):
            chosen.append(end)
    return chosen


def _moved(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
    """Return the share of objects that are in another cluster, clusters matched to the one they share most with."""
    shared = np.zeros((int(first.max()) + 1, int(second.max()) + 1))
    np.add.at(shared, (first, second), 1)
    return 1.0 - float(shared.max(axis=1).sum()) / len(first)


def _rivals(value: int, ends: Sequence[FinishedRun]) -> tuple[Finalist, ...]:
    """Return the distinct ends of a value whose objective is near that of the best."""
    least = ends[0].result.objective
    return tuple(
        Finalist(value, end.result, end.V) for end in ends if end.result.objective <= least + RIVAL * abs(least)
    )


Way = tuple[FinishedRun, list[int], bool]
"""The run to begin at, the values to be run one after another, and whether they become fuzzier."""


def _ways(contest: Contest, ends: Sequence[FinishedRun]) -> list[Way]:
    """Return the ways along the ladders of a contest, from the ends of its restarts."""
    ways: list[Way] = []
    middle, values = _middle(contest), contest.values
    for end in ends[:1] if contest.is_decided else ends:
        for rule in dict.fromkeys(value.rule for value in values):
            own = sorted((k for k in range(len(values)) if values[k].rule == rule), key=lambda k: fuzziness(values[k]))
            at = len(own) // 2
            ways.append((end, own[:at][::-1], False))
            ways.append((end, own[at + 1 :] if own[at] == middle else own[at:], True))
    return [way for way in ways if way[1]]


def _along(level: Level, contest: Contest, way: Way, *, fine: bool = False) -> Trail[list[tuple[int, FinishedRun]]]:
    """Run values one after another, each from the centres of the one before."""
    before, values, becomes_fuzzier = way
    first, reached, failures = before, list[tuple[int, FinishedRun]](), 0
    for value in values:
        run = contest.values[value].changed(restart=first.result.run.restart)
        before = yield level.state(run, contest.beta, Start(before.V[None]), fine=fine)
        reached.append((value, before))
        if becomes_fuzzier and not before.result.is_sound:
            before, failures = first, failures + 1
            if failures == FAILURES:
                break
    return reached


def _decisions(
    level: Level, contests: Sequence[Contest], reached: Sequence[Ends], index: str, share: float
) -> list[Decision]:
    """Return the decision of each contest from the ends that its values have reached."""
    best = [{value: _distinct(ends) for value, ends in sorted(of_value.items())} for of_value in reached]
    judged = [ends[0] for of_value in best for ends in of_value.values()]
    quality = dict(zip(map(id, judged), level.silhouettes(judged), strict=True))
    return [
        _decision(level, contest, of_value, quality, index, share)
        for contest, of_value in zip(contests, best, strict=True)
    ]


def _settled(
    level: Level, contests: Sequence[Contest], reached: Sequence[Ends], index: str, share: float
) -> list[Decision]:
    """Return decisions for values that stay as they are when they are iterated on to the end.

    Clusters that drift together slowly look apart at a coarse tolerance: half of the threshold of fcm2 takes hundreds
    of iterations on three groups on a line. Such a value is then judged by its end, and another one is chosen.
    """
    settled: list[set[int]] = [set() for _ in contests]
    while True:
        decisions = _decisions(level, contests, reached, index, share)
        jobs = [
            (k, finalist.value) for k, (contest, decision) in enumerate(zip(contests, decisions, strict=True))
            if contest.is_decided
            for finalist in decision.finalists[:1]
            if finalist.value not in settled[k]
        ]  # fmt: skip
        if not jobs:
            return decisions

        starts = [
            (k, value, before) for k, value in jobs for before in _distinct(reached[k][value])
        ]  # fmt: skip
        ends = level.follow(
            _to_end(level.state(
                contests[k].values[value].changed(restart=before.result.run.restart), contests[k].beta,
                Start(before.V[None]), fine=True,
            ))
            for k, value, before in starts
        )  # fmt: skip
        for k, value in jobs:
            reached[k][value] = []
            settled[k].add(value)
        for (k, value, _), end in zip(starts, ends, strict=True):
            reached[k][value].append(end)


def _decision(
    level: Level, contest: Contest, ends_of: Ends, quality: dict[int, tuple[float, float]], index: str, share: float
) -> Decision:
    values = list(ends_of)
    firsts = [ends_of[value][0] for value in values]
    means = [quality[id(end)][0] for end in firsts]
    at, ladders = 0, tuple[Ladder, ...]()
    chosen: tuple[Finalist, ...] | None = None
    if len(contest.values) > 1:
        results = [
            replace(end.result, run=contest.values[value].changed(restart=end.result.run.restart), objects=level.size)
            for value, end in zip(values, firsts, strict=True)
        ]
        choice = decide(
            results, means, objects=None if level.has_all else level.size, rule_is_free=contest.runs[0].rule == AUTO
        )
        at, ladders, rival = choice.at, choice.ladders, choice.runner_up
        if not contest.is_decided:
            chosen = tuple(Finalist(values[k], end.result, end.V) for k in choice.good for end in ends_of[values[k]])
        elif rival is not None and choice.distance <= share * abs(means[at]):
            chosen = tuple(Finalist(values[k], firsts[k].result, firsts[k].V) for k in (at, rival))
    if chosen is None:
        ends = ends_of[values[at]]
        every = tuple(Finalist(values[at], end.result, end.V) for end in ends)
        chosen = _rivals(values[at], ends) if contest.is_decided else every
    return Decision(chosen, ladders, quality[id(firsts[at])][0 if index == "silhouette" else 1])


# -------------------------------------------------------------------------------------------------- the second level


def second_level(
    level: Level, before: Level, contests: Sequence[Contest], decisions: Sequence[Decision], index: str
) -> list[Decision]:
    """Run the finalists of contests on a larger level, and return what it says of each. Cost: no scan."""
    where = np.searchsorted(level.positions, before.positions)
    starts = [
        (k, finalist) for k, decision in enumerate(decisions) for finalist in decision.finalists
    ]  # fmt: skip
    progress.current().say(f"sample of {count_text(level.size, 'object')}, {count_text(len(starts), 'run')}")
    with level.threads():
        ends = level.follow(
            _to_end(level.state(
                contests[k].values[finalist.value].changed(restart=finalist.result.run.restart), contests[k].beta,
                centres_on_all(finalist.V, where, level.size),
            ))
            for k, finalist in starts
        )  # fmt: skip
        reached: list[Ends] = [{} for _ in contests]
        for (k, finalist), end in zip(starts, ends, strict=True):
            reached[k].setdefault(finalist.value, []).append(end)
        decided = _decisions(level, contests, reached, index, CLOSE)
    return [
        replace(now, ladders=now.ladders if then.is_open else then.ladders, level=1, restarts=then.restarts)
        for now, then in zip(decided, decisions, strict=True)
    ]


def decide_all(
    samples: Sequence[tuple[NDArray[np.intp], Array]], contests: Sequence[Contest], index: str | None, n_objects: int
) -> tuple[list[Decision], list[LevelReport]]:
    """Run contests on one level or two, and return what is decided of each, and what was done on each level.

    Parameters
    ----------
    samples
        Positions and matrix of each level.
    index
        The index that recommends a setting; None if it is not known here, so that all numbers of clusters are refined.

    Cost: no scan.
    """
    began = time.perf_counter()
    levels = [Level(*sample, has_all=len(sample[0]) == n_objects) for sample in samples]
    compared = index or "fuzzy_silhouette"
    decisions = first_level(levels[0], contests, compared, share=VAGUE if len(levels) > 1 else CLOSE)
    reports = [levels[0].report(time.perf_counter() - began)]
    everyone = list(range(len(contests)))
    if len(levels) > 1:
        began = time.perf_counter()
        near = _near_best(contests, decisions, everyone, index, reach=1, within=WITHIN_BEST)
        going = [k for k in everyone if k in near and contests[k].is_decided]
        now = second_level(
            levels[1], levels[0], [contests[k] for k in going], [decisions[k] for k in going], compared
        )  # fmt: skip
        for k, decision in zip(going, now, strict=True):
            decisions[k] = decision
        reports.append(levels[1].report(time.perf_counter() - began))
        everyone = going
    refined = _near_best(contests, decisions, everyone, index, reach=1)
    return [
        decision if k in refined else replace(decision, finalists=decision.finalists[:1], is_refined=False)
        for k, decision in enumerate(decisions)
    ], reports


def _near_best(
    contests: Sequence[Contest], decisions: Sequence[Decision], among: Sequence[int], index: str | None, *,
    reach: int, within: float = 0.0,
) -> set[int]:  # fmt: skip
    """Return which contests go on: of settings that differ only in their number of clusters those near the best.

    Near are those with up to `reach` steps more or fewer clusters, and those whose index is within a share of the best.
    """
    near: set[int] = set()
    families: dict[Any, list[int]] = {}
    for k, contest in enumerate(contests):
        run = contest.runs[0]
        if index is None or not contest.is_decided or run.is_possibilistic:
            near.add(k)
        else:
            families.setdefault(run.changed(n_clusters=0).setting, []).append(k)
    for family in families.values():
        family.sort(key=lambda k: contests[k].runs[0].n_clusters)
        known = [k for k in family if k in among and np.isfinite(decisions[k].index)]
        usable = [k for k in known if decisions[k].finalists[0].result.is_sound] or known
        if not usable:
            near.update(family)
            continue
        top = max(usable, key=lambda k: decisions[k].index)
        least = decisions[top].index - within * abs(decisions[top].index)
        near.update(k for at, k in enumerate(family) if abs(at - family.index(top)) <= reach)
        near.update(k for k in usable if decisions[k].index >= least)
    return near


def centres_on_all(V: Float, positions: NDArray[np.intp], n_objects: int) -> Start:
    """Return centres on a sample, (c, m), as centres of all objects: the others have weight zero."""
    whole = np.zeros((1, len(V), n_objects))
    whole[0][:, positions] = V
    return Start(whole)
