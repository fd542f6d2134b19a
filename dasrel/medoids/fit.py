"""Medoids of any number of searches together: swaps on a batch of objects, then exact steps on all.

1. A scan brings the dissimilarities of a batch of objects to all (the block). Each object of the batch stands for the
   objects that are nearest to it (OneBatchPAM, de Mathelin et al. 2025). Every start draws medoids among some of the
   batch and swaps them there; the best starts continue with all objects as candidates (`swaps`).
2. A scan brings the dissimilarities of all objects to the medoids of these finalists: the exact objective says which
   one is kept for each search.
3. A scan sums the dissimilarities of all objects to the members of every cluster, of all searches at once: the exact
   best medoid of each cluster, and the silhouettes. While a medoid moves, 2 and 3 are repeated.

The objective is the sum of the dissimilarities of the objects to the nearest medoid, times their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer
from dasrel.engine.label_products import Squares, label_consumer
from dasrel.engine.reduce import Consumer
from dasrel.engine.relation import LeftProducts, Relation, as_dissimilarity, product_shape
from dasrel.engine.sampled_pairs import columns_consumer
from dasrel.engine.scan import scan, scan_memory
from dasrel.errors import InputError
from dasrel.judging.groupings import silhouettes
from dasrel.medoids.map import landmark_map
from dasrel.medoids.run import MedoidRun
from dasrel.medoids.swaps import GROUP, Swapped, first_medoids, swapped
from dasrel.partition.model import Model
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from dasrel.store.matrix import Matrix
from dasrel.util import Array, Float, Index, limits, parallel, progress
from dasrel.util.files import digest
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.text import count_text

COMMAND = "medoids"
"""What checkpoints know it by."""
ALL = 8_192
"""Up to so many objects the batch is all of them."""
NUMBERS = 2**26
"""Numbers of the block with more objects, about; at least `LEAST` objects, and `PER_CLUSTER` for each cluster."""
LEAST, PER_CLUSTER = 256, 10
START_BATCH, START_CANDIDATES = 1_024, 2_048
"""Objects of the batch that starts use, and candidates among them."""
FINALISTS = 3
"""Starts of each search that continue with all objects as candidates."""
MOVE = 1e-9
"""A medoid moves to an object whose sum is smaller by this share at least: less is rounding."""
MOST_STEPS = 100


@dataclass(frozen=True, eq=False)
class MedoidResult:
    """The medoids that one search has found, and the clusters around them."""

    run: MedoidRun
    medoids: Index
    """(c,) positions of the medoids, ascending."""
    labels: Index
    """(n,) the cluster of the nearest medoid; the first of equally near ones."""
    distances: Float
    """(n,) the dissimilarity to it."""
    objective: float
    """The sum of the dissimilarities to the nearest medoid."""
    silhouettes: Float
    """(n,) the silhouette of each object; NaN with one cluster."""
    silhouette: float
    """Their mean; NaN with one cluster."""
    moves: int
    """Exact steps in which medoids moved."""

    def __repr__(self) -> str:
        n, c = len(self.labels), len(self.medoids)
        return f"<MedoidResult: {count_text(c, 'medoid')} of {count_text(n, 'object')}, objective {self.objective:.6g}>"

    @property
    def sizes(self) -> Index:
        """(c,) number of objects."""
        return np.bincount(self.labels, minlength=len(self.medoids))


@dataclass(frozen=True, eq=False)
class KMedoidsResult:
    """The medoids of all searches; returned by `kmedoids`."""

    matrix: Matrix | ArrayMatrix
    results: list[MedoidResult]
    coordinates: Float
    """(n, 2) a map of the objects, for pictures: principal coordinates from their dissimilarities to a few."""
    scans: int
    batch: int
    """Objects of the batch."""

    @property
    def recommended(self) -> int:
        """The position of the result of largest mean silhouette; the first if there is none."""
        values = [-math.inf if math.isnan(result.silhouette) else result.silhouette for result in self.results]
        return int(np.argmax(values))

    @property
    def best(self) -> MedoidResult:
        """The recommended result."""
        return self.results[self.recommended]

    def model(self, result: MedoidResult | None = None) -> Model:
        """Return what places new objects: the nearest medoid. Cost: no scan; c rows of n numbers."""
        given, diagonal = self.best if result is None else result, self.matrix.diagonal
        V = np.zeros((len(given.medoids), self.matrix.n_objects))
        V[np.arange(len(V)), given.medoids] = 1.0
        return Model(
            "hard", V, np.zeros(len(V)), self.matrix.kind, self.matrix.ids,
            diagonal=None if diagonal is None else np.asarray(diagonal, dtype=np.float64),
        )  # fmt: skip


def kmedoids(
    matrix: Any,
    runs: MedoidRun | Sequence[MedoidRun],
    *,
    kind: str | None = None,
    weights: ArrayLike | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> KMedoidsResult:
    """Return medoids and the clusters around them, for any number of searches in the same scans.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, or an array with its `kind`.
    weights
        (n,) how often each object counts, above 0; once by default.

    Cost: three scans, and two more for each step in which a medoid moves. Memory of two blocks: 8 n^2 bytes up to 8,192
    objects, beyond 512 MiB, at least 2,048 n; 24 n bytes for each cluster. Swaps run on threads of the caller.
    """
    return prepare_kmedoids(matrix, runs, kind=kind, weights=weights, memory=memory).run(checkpoint)


def prepare_kmedoids(
    matrix: Any,
    runs: MedoidRun | Sequence[MedoidRun],
    *,
    kind: str | None = None,
    weights: ArrayLike | None = None,
    memory: int | str | None = None,
) -> MedoidJob:
    """Check the arguments of `kmedoids` against the matrix. Cost: no tile is read."""
    listed = [runs] if isinstance(runs, MedoidRun) else list(runs)
    if not listed:
        raise InputError("there is no run", remedy="give at least one MedoidRun")
    source = as_matrix(matrix, kind=kind)
    n, most = source.n_objects, max(run.n_clusters for run in listed)
    if most > n:
        raise InputError(
            f"{count_text(most, 'cluster')} of {count_text(n, 'object')}",
            remedy=f"give at most {n} as {{n_clusters}}",
        )
    given = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if given.shape != (n,) or not (np.isfinite(given) & (given > 0)).all():
        raise InputError("weights are not one number above 0 for each object", remedy=f"give {n} of them")
    return MedoidJob(source, listed, given, memory)


@dataclass(frozen=True, eq=False)
class MedoidJob:
    """Medoids to be found, the arguments checked."""

    matrix: Matrix | ArrayMatrix
    runs: list[MedoidRun]
    weights: Float
    memory: int | str | None

    @property
    def batch(self) -> int:
        """Objects of the batch."""
        n, most = self.matrix.n_objects, max(run.n_clusters for run in self.runs)
        return n if n <= ALL else min(n, max(LEAST, PER_CLUSTER * most, NUMBERS // n))

    def run(self, checkpoint: Checkpoint | None = None) -> KMedoidsResult:
        """Find the medoids of all searches."""
        relation = as_dissimilarity(self.matrix)
        with checkpoint_writer(checkpoint, COMMAND, self._identity) as writer:
            near: list[_Nearest] | None
            if (saved := writer.result("searched")) is None:
                near, coordinates = self._searched(relation)
                writer.finish("searched", {"map": coordinates, **{str(k): of.medoids for k, of in enumerate(near)}})
            else:
                near, coordinates = None, saved["map"]
                if writer.state("moves") is None:
                    near = self._nearest(relation, [saved[str(k)] for k in range(len(self.runs))])
            results = self._refined(relation, near, writer)
            scans = writer.scans
        return KMedoidsResult(self.matrix, results, coordinates, scans, self.batch)

    def _identity(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with."""
        runs = [[run.n_clusters, run.n_init, run.random_state] for run in self.runs]
        return {"matrix": self.matrix.identity(), "runs": runs, "weights": digest([self.weights.tobytes()])}

    # ------------------------------------------------------------------------------------------------------- the search

    def _searched(self, relation: Relation) -> tuple[list[_Nearest], Float]:
        """Return the medoids of each search before the exact steps, and a map of the objects. Cost: two scans."""
        n, m = self.matrix.n_objects, self.batch
        draw = np.random.default_rng(np.random.SeedSequence((self.runs[0].random_state, m)))
        batch = np.sort(draw.choice(n, m, replace=False)) if m < n else np.arange(n)
        progress.current().say("batch")
        (block,) = scan(self.matrix, [columns_consumer(relation, batch)], memory=self.memory)
        search = _Search(block, batch, _stands_for(block, self.weights))
        starts = [(run, k) for run in self.runs for k in range(run.n_init)]
        label = f"medoids, {count_text(len(starts), 'start')}"
        begun = parallel.run(search.start, starts, label=label, local=True, task_memory=search.start_memory,
                             memory=self.memory)  # fmt: skip
        finalists = []
        for run in self.runs:
            mine = sorted((start for (of, _), start in zip(starts, begun, strict=True) if of is run), key=_total)
            finalists += [(run, start.medoids) for start in _different(mine)[:FINALISTS]]
        label = f"medoids, {count_text(len(finalists), 'finalist')}"
        ended = parallel.run(search.finish, finalists, label=label, local=True, task_memory=search.finish_memory,
                             memory=self.memory)  # fmt: skip
        with parallel.single_threaded_blas():  # the same bits however many cores
            coordinates = landmark_map(block, batch, draw)
        del block, search
        near = self._nearest(relation, [np.sort(finalist.medoids) for finalist in ended])
        best = [
            min((mine for (of, _), mine in zip(finalists, near, strict=True) if of is run), key=self._objective)
            for run in self.runs
        ]
        return best, coordinates

    def _objective(self, near: _Nearest) -> float:
        return float((self.weights * near.distances).sum())

    def _nearest(self, relation: Relation, medoids: list[Index]) -> list[_Nearest]:
        """Return the nearest medoid of every object, for several sets of medoids. Cost: one scan."""
        wanted = np.unique(np.concatenate(medoids))
        (d,) = scan(self.matrix, [columns_consumer(relation, wanted)], memory=self.memory)
        result = []
        for some in medoids:
            near = d[np.searchsorted(wanted, some)]
            labels = near.argmin(axis=0)
            labels[some] = np.arange(len(some))  # of copies of an object several may be medoids
            result.append(_Nearest(some, labels, near[labels, np.arange(d.shape[1])].astype(np.float64)))
        return result

    # ----------------------------------------------------------------------------------------------------- exact steps

    def _refined(self, relation: Relation, near: list[_Nearest] | None, writer: CheckpointWriter) -> list[MedoidResult]:
        """Move medoids to the best object of their cluster until none moves; `near` is in the checkpoint if None."""
        steps, moves = 0, [0] * len(self.runs)
        if near is None:
            state = writer.state("moves")
            steps, moves = state["steps"], state["moves"]
            near = self._nearest(relation, [state[str(k)] for k in range(len(self.runs))])
        while True:
            progress.current().say("medoids", iteration=steps, most=MOST_STEPS)
            sums = self._sums(relation, near)
            moved = [self._moved(of, own) for of, own in zip(near, sums, strict=True)]
            still = [bool(np.array_equal(new, of.medoids)) for new, of in zip(moved, near, strict=True)]
            steps += 1
            if all(still) or steps == MOST_STEPS:
                break
            moves = [count + (not same) for count, same in zip(moves, still, strict=True)]
            state = {"steps": steps, "moves": moves, **{str(k): medoids for k, medoids in enumerate(moved)}}
            writer.step("moves", lambda state=state: state)  # type: ignore[misc]
            near = self._nearest(relation, moved)
        return [
            self._result(run, of, own, count) for run, of, own, count in zip(self.runs, near, sums, moves, strict=True)
        ]

    def _sums(self, relation: Relation, near: list[_Nearest]) -> list[Float]:
        """Return the sums of the dissimilarities of all objects to each cluster, (c, n) a search. Cost: one scan."""
        first = np.concatenate([[0], np.cumsum([len(of.medoids) for of in near])]).tolist()
        if (self.weights == 1).all():
            labels = np.stack([of.labels + at for of, at in zip(near, first, strict=False)]).astype(np.int32)
            (sums,) = scan(self.matrix, [self._label_consumer(relation, labels, first)], memory=self.memory)
            joint = sums.plain
        else:
            Z = np.zeros((first[-1], self.matrix.n_objects))
            for of, at in zip(near, first, strict=False):
                Z[of.labels + at, np.arange(Z.shape[1])] = self.weights
            distances = relation.power(0.5)
            joint = LeftProducts([(distances, len(Z))], memory=self.memory).run([Z])[0]
        return [joint[at:end] for at, end in pairwise(first)]

    def _label_consumer(self, relation: Relation, labels: Array, first: list[int]) -> Consumer:
        return label_consumer(self.matrix, Squares(relation.view), labels, first, squared=False)

    def _moved(self, near: _Nearest, sums: Float) -> Index:
        """Return the best medoid of each cluster."""
        medoids = near.medoids.copy()
        own = sums[near.labels, np.arange(len(near.labels))]
        order = np.lexsort((own, near.labels))
        best = order[np.searchsorted(near.labels[order], np.arange(len(medoids)))]
        better = own[best] < own[medoids] * (1 - MOVE)
        medoids[better] = best[better]
        return np.sort(medoids)

    def _result(self, run: MedoidRun, near: _Nearest, sums: Float, moves: int) -> MedoidResult:
        n, weights = len(near.labels), self.weights
        each, mean = np.full(n, np.nan), math.nan
        if len(near.medoids) > 1:
            sizes = np.bincount(near.labels, weights=weights).astype(np.float64)
            each = silhouettes(near.labels, sizes, sums)
            mean = float(np.average(each, weights=weights))
        return MedoidResult(run, near.medoids, near.labels, near.distances, self._objective(near), each, mean, moves)

    def cost(self, outputs: tuple[Output, ...] = ()) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, m, limit = self.matrix.n_objects, self.batch, limits.memory_limit(self.memory)
        relation, clusters = as_dissimilarity(self.matrix), sum(run.n_clusters for run in self.runs)
        block = scan_memory(self.matrix, [columns_consumer(relation, np.arange(n)[:: max(1, n // m)][:m])], limit)
        labels = np.empty((len(self.runs), 0), np.int32)
        if (self.weights == 1).all():
            second = self._label_consumer(relation, labels, [0, clusters])
        else:
            second = product_shape(self.matrix, [(relation.power(0.5).view, clusters)])
        needed = max(block + 4 * m * n, scan_memory(self.matrix, [second], limit) + 16 * n * clusters)
        facts = {"runs": len(self.runs), "starts": sum(run.n_init for run in self.runs), "batch": m}
        return Cost(COMMAND, n, Range(3, 7, 1 + 2 * MOST_STEPS), self.matrix.layout.total_bytes, needed, outputs, facts)


@dataclass(frozen=True, eq=False)
class _Nearest:
    """The nearest medoid of every object."""

    medoids: Index
    labels: Index
    distances: Float


def _total(swapped_set: Swapped) -> float:
    return swapped_set.total


def _different(sets: list[Swapped]) -> list[Swapped]:
    """Return each set of medoids once."""
    return list({tuple(sorted(of.medoids.tolist())): of for of in reversed(sets)}.values())[::-1]


def _stands_for(block: Array, weights: Float) -> Float:
    """Return the weight of the objects that each object of the batch is the nearest of, itself included."""
    m, n = block.shape
    nearest = np.arange(n) if m == n else block.argmin(axis=0)
    return np.bincount(nearest, weights=weights, minlength=m).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Search:
    """The block in which medoids are sought."""

    block: Array
    batch: Index
    weights: Float
    """(m,) of the batch."""

    @property
    def start_memory(self) -> int:
        """Bytes that a start takes."""
        rows, columns = min(len(self.batch), START_BATCH), min(len(self.batch), START_CANDIDATES)
        return 4 * rows * (columns + 6 * GROUP)

    @property
    def finish_memory(self) -> int:
        """Bytes that a finalist takes."""
        return 4 * len(self.batch) * 6 * GROUP

    def start(self, item: tuple[MedoidRun, int]) -> Swapped:
        """Return medoids of a start, positions in the matrix."""
        run, number = item
        draw = np.random.default_rng(np.random.SeedSequence((run.random_state, number, run.n_clusters)))
        m = len(self.batch)
        candidates = np.sort(draw.choice(m, min(m, max(START_CANDIDATES, run.n_clusters)), replace=False))
        rows = np.sort(
            draw.choice(len(candidates), min(len(candidates), max(START_BATCH, run.n_clusters)), replace=False)
        )
        within = self.block[np.ix_(candidates, self.batch[candidates])]
        weights = self.weights[candidates]
        first = first_medoids(within, weights, run.n_clusters, draw)
        best = swapped(within[rows], weights[rows], first)
        return Swapped(self.batch[candidates[best.medoids]], best.total)

    def finish(self, item: tuple[MedoidRun, Index]) -> Swapped:
        """Return the medoids of a finalist, all objects as candidates."""
        _, medoids = item
        return swapped(self.block, self.weights, medoids)
