"""Samples: some objects and the dissimilarities between them, in memory, on which settings are decided (`levels`).

The first sample has `sample_size` objects, or all if there are fewer: nine tenths drawn at random, the others far from
all of those, one after another each the farthest from the ones before (maximin), so that small groups are not missed.
Matrices of at least 16 times as many objects have a second sample, `second_size`, that contains the first. Both are
drawn together by two scans.

The samples depend on the seed alone, not on tiles, threads or workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.ladder import MOST_DISTINCT, MOST_VALUES, REFINED, begins_with_fcm2, first_run, rungs, variants
from dasrel.cmeans.starts import unspread
from dasrel.engine.reduce import Consumer, Kernel, Side, strip_consumer
from dasrel.engine.relation import Relation, chosen_in, chosen_shares
from dasrel.engine.sampled_pairs import add_terms, pairs_consumer, seen
from dasrel.engine.scan import scan
from dasrel.errors import MemoryLimitError
from dasrel.kernels.products import View
from dasrel.partition.run import Run
from dasrel.util import Array, Float, limits, progress
from dasrel.util.text import count_text, size_text

LEAST, MOST = 2_000, 10_000
"""Objects of the first sample."""
PER_CLUSTER = 100
"""Objects of the first sample for each cluster, within these limits."""
SHARE = 0.5
"""Share of the memory limit that the second sample may take."""
FAR_SHARE = 0.1
"""Share of the first sample that is chosen by maximin."""
STEP = 4
"""A sample has at most this share of the objects of the next one, so that its iterations cost a sixteenth."""
MOST_SECOND = 16_384
"""Objects of the second sample, at most: its dissimilarities take 1 GiB in float32."""


def sample_size(n_objects: int, n_clusters: int) -> int:
    """Return the number of objects of the first sample: 100 for each cluster, from 2,000 to 10,000, and all if there
    are fewer.

    >>> sample_size(100_000, 5), sample_size(100_000, 40), sample_size(300, 5)
    (2000, 4000, 300)
    """
    return min(n_objects, MOST, max(LEAST, PER_CLUSTER * n_clusters))


def second_size(n_objects: int, first: int) -> int:
    """Return the number of objects of the second sample, a quarter of all and at most 16,384; 0 if there is none.

    >>> second_size(50_000, 2_000), second_size(300_000, 2_000), second_size(20_000, 2_000)
    (12500, 16384, 0)
    """
    size = min(n_objects // STEP, MOST_SECOND)
    return size if size >= STEP * first else 0


def second_memory(size: int, itemsize: int) -> int:
    """Return the bytes that a sample takes while it is drawn: its matrix, and the parts that it is made of."""
    return 2 * itemsize * size * size


def second_that_fits(relation: Relation, first: int, memory: int | str | None) -> tuple[int, str | None]:
    """Return the number of objects of the second sample, and why there is none where memory does not allow it."""
    size = second_size(relation.n_objects, first)
    needed = needed_for_second(size, first, relation.matrix.dtype.itemsize)
    limit = limits.memory_limit(memory)
    if size and needed > SHARE * limit:
        problem = f"a sample of {count_text(size, 'object')} would take {size_text(needed)} of {size_text(limit)}"
        return 0, f"{problem}: the choice is of the first sample"
    return size, None


def needed_for_second(size: int, first: int, itemsize: int) -> int:
    """Return the bytes that a second sample takes, with the candidates for maximin beside it; 0 for none."""
    return second_memory(size + STEP * int(FAR_SHARE * first), itemsize) if size else 0


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
    settings: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        settings.setdefault(run.setting, []).append(run)
    numbers: dict[tuple[Any, ...], list[int]] = {}
    for family in settings.values():
        numbers.setdefault(family[0].changed(n_clusters=0).setting, []).append(family[0].n_clusters)
    for family in settings.values():
        run = family[0]
        values = rungs(run if not begins_with_fcm2(run) else run.changed(entropy_weight=1.0), 1.0)
        first = rungs(first_run(run), 1.0)
        sampled = isinstance(run.init, str) and run.init == "sample"
        width = len(family) * len(first)
        if sampled and run.exact:
            width = min(len(family), MOST_DISTINCT) * min(len(first), len(variants(run)) * (MOST_VALUES + 1))
        elif sampled and not run.is_possibilistic and run.n_clusters not in _refined_of(numbers, run):
            planned.append(values[0].changed(max_iter=1))
            continue
        elif sampled:
            width = min(2, width)
        if begins_with_fcm2(run):  # the values of eta_scale come after the fcm2 runs
            width = max(width, len(values))
        planned += [values[k % len(values)] for k in range(width)]
    return planned


def _refined_of(numbers: dict[tuple[Any, ...], list[int]], run: Run) -> list[int]:
    """Return the numbers of clusters that are iterated on all objects, at most: the largest cost most."""
    return sorted(numbers[run.changed(n_clusters=0).setting])[-REFINED:]


class Sample(NamedTuple):
    """Some objects and the dissimilarities between them."""

    positions: NDArray[np.intp]
    """In the order of the matrix."""
    D: Array
    """Squared dissimilarities without spread, (m, m), in the matrix's precision."""


def draw_samples(
    relation: Relation, size: int, second: int, random_state: int, *, memory: int | str | None = None
) -> list[Sample]:
    """Draw objects, some at random and some far from those, and return the dissimilarities between them.

    Parameters
    ----------
    size, second
        Objects of the first and of the second sample; 0 for no second one.

    Cost: two scans, one where all objects are taken; for each pair of objects of the largest sample the bytes of one
    number, twice while they are collected.
    """
    base, n = unspread(relation), relation.n_objects
    if size == n:
        everything = np.arange(n, dtype=np.intp)
        (D,) = scan(base.matrix, [pairs_consumer(base, everything, base.matrix.dtype)], memory=memory)
        add_terms(D, base, everything)
        return [Sample(everything, D)]
    rng = np.random.default_rng(np.random.SeedSequence((random_state, size)))
    far = int(FAR_SHARE * size)
    drawn = np.sort(rng.choice(n, size=size - far, replace=False)).astype(np.intp)
    progress.current().say("sample")
    (near,) = scan(base.matrix, [_nearest_consumer(base, drawn)], memory=memory)
    near[drawn] = -np.inf
    candidates = np.argsort(-near, kind="stable")[: 4 * far].astype(np.intp)
    candidates = np.sort(candidates[near[candidates] > 0])
    more = drawn
    if second:
        others = np.setdiff1d(np.arange(n), drawn)
        more = np.sort(np.concatenate([drawn, rng.choice(others, size=second - len(drawn), replace=False)]))
    everything = np.union1d(more, candidates).astype(np.intp)
    (D,) = scan(base.matrix, [pairs_consumer(base, everything, base.matrix.dtype)], memory=memory)
    add_terms(D, base, everything)
    inside = np.searchsorted(everything, candidates)
    chosen = inside[_maximin(D[np.ix_(inside, inside)], near[candidates], far)]
    kept = [np.union1d(np.searchsorted(everything, objects), chosen) for objects in (drawn, more)]
    return [Sample(everything[at], D[np.ix_(at, at)]) for at in (kept if second else kept[:1])]


def _maximin(D: Array, near: Float, count: int) -> NDArray[np.intp]:
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


@dataclass(frozen=True)
class _NearestKernel(Kernel):
    """The squared dissimilarity of every object to the nearest sampled one."""

    in_strips = True
    view: View

    def empty(self, objects: int) -> Float:
        return np.full(objects, np.inf)

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        down, across = chosen_in(rows), chosen_in(columns)
        if down.size:
            near = partial[1][columns.inside]
            np.minimum(near, seen(self.view, tile[down], rows, columns, r=down).min(axis=0), out=near)
        if rows is not columns and across.size:
            near = partial[0][rows.inside]
            np.minimum(near, seen(self.view, tile[:, across], rows, columns, c=across).min(axis=1), out=near)
        return partial

    def combine(self, first: Float, second: Float) -> Float:
        return np.minimum(first, second)


def _nearest_consumer(base: Relation, positions: NDArray[np.intp]) -> Consumer:
    tile = base.matrix.layout.tile
    # twice the tile in float64 if all of its objects are sampled
    picked = 2 * 8 * tile * min(tile, len(positions)) * base.view.panels
    return strip_consumer(
        base.matrix, _NearestKernel(base.view), lambda parts: np.concatenate([parts[k] for k in sorted(parts)]),
        chosen_shares(base.matrix, positions), sent=8, held=32, scratch=picked, fixed=24, shared=16,
    )  # fmt: skip
