"""The bundle: any mixture of runs, all of which take part in the same scans.

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
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import numpy as np
from dask.utils import parse_bytes
from numpy.typing import NDArray

from dasrel import meter, tasks
from dasrel.checkpoint import Keeper
from dasrel.errors import InputError, MemoryLimitError, count_text, size_text
from dasrel.graph import Plan
from dasrel.motion import Motion, Outcome, Surroundings
from dasrel.products import product_shape
from dasrel.relation import LeftProducts, Relation
from dasrel.runs import Run
from dasrel.scan import brought_here, needed_memory, needed_on_worker
from dasrel.starts import BLOCK, LANCZOS_SCANS, first_starts, largest_gram_eigenvalue

Float = NDArray[np.float64]

_SMALL_UPDATE = 200_000  # numbers in a bundle below which threads cost more than they give


@dataclass
class Work:
    """What bundles have used."""

    columns: list[int] = field(default_factory=list)
    """Columns of each scan, in order."""
    scan_seconds: float = 0.0
    update_seconds: float = 0.0


@dataclass
class Bundle:
    """A bundle between two scans."""

    moving: list[Motion]
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
        moving = [Motion.unpacked(one, runs) for one in kept["moving"]]
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
            Motion(run, place, start, beta, entropy_weights.get(place))
            for (place, run), start, beta in zip(runs, starts, betas, strict=True)
        ]
    )


def unspread(relation: Relation) -> Relation:
    """The relation without its spread: each run adds its own, which costs nothing."""
    return replace(relation, beta=0.0)


def starting_spread(relation: Relation, run: Run) -> float:
    """The beta that a run begins with. hard has none: a spread freezes it, while its objective stays the same."""
    return 0.0 if run.rule == "hard" else relation.beta + float(run.spread)


def entropy_weights(relation: Relation, runs: Sequence[Run], memory: int, keep: Keeper) -> dict[str, Any]:
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

    def __init__(self, relation: Relation, keep: Keeper) -> None:
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
    work: Work,
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
    around = Surroundings(n, base.largest(), min(n, base.matrix.layout.tile), dtype)
    moving = bundle.moving
    width = 0
    wants_mean = any(motion.run.eta == "overall" for motion in moving)
    with ThreadPoolExecutor(tasks.thread_count(waiting=False)) as pool:
        while moving:
            bundle.iteration += 1
            meter.current().say(f"iteration {bundle.iteration}, {count_text(len(moving), 'run')} moving")
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


def _refuse_negatives(moving: Sequence[Motion]) -> None:
    """RFCM's answer to distances below zero."""
    stopped = [motion for motion in moving if motion.stopped_by_negatives]
    if not stopped:
        return
    first = stopped[0]
    raise InputError(
        f"{count_text(first.stopped_by_negatives, 'distance to a centre is', 'distances to centres are')} negative in"
        f" iteration {first.n_iter} of run"
        f" {first.place} ({first.rule}, {count_text(first.run.n_clusters, 'cluster')}; {len(stopped)} of"
        f" {count_text(len(moving), 'run')} met"
        " some): the dissimilarities are not Euclidean. Say on_negative='heal' (NERFCM), give a spread (-2 lambda_1,"
        " lambda_1 the smallest eigenvalue of -1/2 P D P, always suffices), or pass a Euclideanised relation"
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
    limit = tasks.machine_memory() // 2 if memory is None else int(parse_bytes(memory))
    n, item = relation.n_objects, relation.matrix.dtype.itemsize
    of_scan = _scan_memory(relation)
    keeping = [run.n_clusters for run in (runs if keep_all else {run.setting: run for run in runs}.values())]
    kept = 24 * n * sum(keeping)
    widest = max(run.n_clusters for run in runs)
    update = 4 * 8 * n * widest * min(tasks.thread_count(waiting=False), len(runs))
    client = tasks.active_client() if client is None else client
    workers = {} if client is None else tasks.worker_memory(client)

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
                f'entropy_weight="auto" needs {size_text(first)} for {n} objects and the limit is'
                f" {size_text(limit)}; raise memory, or give a number"
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
            tasks.check_workers(
                workers, task, f"a scan for one run of {count_text(run.n_clusters, 'cluster')}", kept=there
            )
            raise MemoryLimitError(
                f"one run of {count_text(run.n_clusters, 'cluster')} on {count_text(n, 'object')} needs"
                f" {size_text(needed(run.n_clusters + extra, held + mine))}"
                f" ({size_text(kept)} of it for {count_text(len(keeping), 'kept result')}) and the limit is"
                f" {size_text(limit)}; raise memory, keep fewer results, or use smaller tiles"
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
