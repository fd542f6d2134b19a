"""Clusters of any shape from one cluster in kernel space (F10, section IV-D): objects joined by typical segments.

Two objects above the cut belong together if 20 inner points of the segment between them are above it too; clusters are
the connected components. No features are needed: the point x_t = (1 - t) x_i + t x_j has the squared distance
(1 - t) D_ir + t D_jr - t (1 - t) D_ij to object r (Stewart), if D is Euclidean. Its typicality follows from the rows of
i and j.

All segments are followed together, for a slice of the objects r at a time: a slice is a few rows of the matrix, so that
the matrix is read about twice, however many segments there are, and nothing of the size of the matrix is held.

Candidates are tested in an order in which most of the joins come first: the spanning tree of the kept objects, their
nearest neighbours, and then, while that is affordable, all pairs in different components, the nearest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer
from dasrel.engine.neighbours import nearest_neighbours
from dasrel.engine.relation import Relation
from dasrel.engine.scan import scan
from dasrel.errors import InputError
from dasrel.geometry.euclidean import spectrum
from dasrel.geometry.tree import forest_consumer
from dasrel.kernels.exponential import exponential
from dasrel.kernels.products import View
from dasrel.names import is_similarity
from dasrel.oneclass.run import OneClassRun
from dasrel.oneclass.typicality import Cut, Typicality
from dasrel.util import Array, Float, Index, limits, parallel, progress
from dasrel.util.text import count_text

COMMAND = "segments"
"""The name of the checkpoints."""
COMMANDS = ("euclideanize", "outliers", COMMAND)
"""The names of all checkpoints of a search for outliers."""
POINTS = 20
"""Inner points of a segment, as in Support Vector Clustering."""
NEIGHBOURS = 10
"""Nearest neighbours of each object that are candidates."""
MOST = 10_000_000_000
"""Kernel values that may be computed for all pairs in different components: some ten seconds."""
EUCLIDEAN_SCANS = 20
"""Scans, at most, that look for a negative eigenvalue."""
CHUNK = 2**19
"""Numbers of segments and objects that are processed together, in the cache."""
FEW = [5, 10, 14]
"""The inner points that are looked at first."""
_T = np.linspace(0.0, 1.0, POINTS + 2)[1:-1]
Candidates = Callable[[], tuple[Index, Float]]
"""Computes pairs of objects, (P, 2), and D of them."""
Inside = Callable[[Index, Float], NDArray[np.bool_]]
"""Tells which of these pairs, with D of them, have a segment above the cut."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Clusters of the objects above a cut."""

    labels: NDArray[np.intp]
    """(n,) clusters by decreasing size, from 0; -1 for objects below the cut."""
    tested: dict[str, int]
    """Pairs that were tested: of the spanning tree, among nearest neighbours, and others ("all")."""
    joined: int
    """Pairs of them whose segment is above the cut."""
    complete: bool
    """Whether all pairs in different clusters were tested, so that no other segment can change anything."""
    is_euclidean: bool | None
    """Whether segments are known to exist: False never occurs, None if it could not be decided or was not tested."""

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.labels.max(initial=-1)) + 1

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Objects of each cluster."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.n_clusters)


def segments_writer(
    checkpoint: Checkpoint | None, relation: Relation, runs: list[OneClassRun], reject: float | str
) -> AbstractContextManager[CheckpointWriter]:
    """Return the checkpoint writer of the segments of some runs, of which a share is rejected."""

    def about() -> dict[str, Any]:
        return {"relation": relation.identity(), "run": [run.identity() for run in runs], "reject": reject}

    return checkpoint_writer(checkpoint, COMMAND, about)


@dataclass(frozen=True)
class SavedSegments:
    """What a checkpoint has of the segments of one setting: candidates, components, and sums of the unfinished set."""

    keeper: CheckpointWriter
    setting: str
    """Tells the settings of one checkpoint apart."""

    def restore(self, name: str, groups: _Groups) -> bool:
        """Set the components to those after a set of candidates, if it was finished before."""
        state = self.keeper.result(f"{self.setting} {name}")
        if state is not None:
            groups.component, groups.tested, groups.joined = state["component"], dict(state["tested"]), state["joined"]
        return state is not None

    def finish(self, name: str, groups: _Groups) -> None:
        """Keep the components after a set of candidates."""
        state = {"component": groups.component, "tested": dict(groups.tested), "joined": groups.joined}
        self.keeper.finish(f"{self.setting} {name}", state)

    def candidates(self, name: str, source: Candidates) -> tuple[Index, Float]:
        """Return a set of candidates, which `source` computes unless it is known."""
        known = self.keeper.result(f"{self.setting} {name} pairs")
        if known is None:
            pairs, squared = source()
            known = {"pairs": pairs, "squared": squared}
            self.keeper.finish(f"{self.setting} {name} pairs", known)
        return known["pairs"], known["squared"]

    def sums(self) -> dict[str, Any] | None:
        """Return the sums over the first objects, and how many these are, of the unfinished set."""
        state: dict[str, Any] | None = self.keeper.state(self.setting)
        return state

    def part(self, sums: Float, objects: int) -> None:
        """Save the sums over the first objects, and stop if a stop is requested."""
        self.keeper.part(self.setting, lambda: {"sums": sums, "objects": objects})


@dataclass(frozen=True, eq=False)
class OutlierResult:
    """The result of one setting."""

    folder: str
    found: Typicality
    cut: Cut
    segments: Segments | None
    ladder: tuple[Typicality, ...]

    @property
    def labels(self) -> Array:
        """(n,) the cluster of each object, -1 for outliers; 0 for all others if no clusters were wanted."""
        return np.where(self.cut.rejected, -1, 0) if self.segments is None else self.segments.labels


def segment_clusters(
    relation: Relation,
    typicality: Typicality,
    cut: Cut,
    *,
    features: Array | None = None,
    check: bool = True,
    memory: int | str | None = None,
    saved: SavedSegments | None = None,
) -> Segments:
    """Return clusters of the objects that are not rejected.

    Parameters
    ----------
    relation
        What `typicality` was computed from.
    features
        Points (n, p) whose squared Euclidean distances the relation has: the segments are then followed between them,
        which gives the same answer.
    check
        Whether to look for a negative eigenvalue first, by which a matrix is not Euclidean and has no segments.
    saved
        Saves the state after each strip of tiles, and has that of an interrupted computation.

    Cost: at most 20 scans for the check; one for the spanning tree, one for the neighbours; about two reads of the
    matrix for each set of candidates, and 20 n kernel values for each pair.
    """
    if typicality.run.width is None:
        raise InputError(
            "clusters of any shape need a width: without one the cut is a ball, which is one cluster",
            remedy="say {width=NUMBER}",
        )
    kept = ~cut.rejected
    saved = saved or SavedSegments(CheckpointWriter(None, COMMAND, {}, progress.current()), "")
    euclidean = None
    if check and features is None:
        euclidean = known_euclidean(relation, saved.keeper, memory=memory)
    follow = _Follower(relation, typicality, float(typicality.kernel_sum_of(cut.threshold)), features, memory)
    groups = _Groups(kept)
    sources: dict[str, Candidates] = {
        "tree": partial(_tree_pairs, relation, kept, memory), "neighbours": partial(_near_pairs, relation, kept, memory)
    }  # fmt: skip
    for name, source in sources.items():
        if groups.count > 1 and not saved.restore(name, groups):
            pairs, squared = saved.candidates(name, source)
            groups.test(name, pairs, squared, partial(follow.inside, saved=saved))
            saved.finish(name, groups)
    complete = groups.count <= 1 or saved.restore("all", groups)
    if not complete and _is_affordable(relation, kept, groups, memory):
        rows = np.flatnonzero(kept)
        D = relation.rows(rows.tolist())[:, rows]
        a, b = np.triu_indices(len(rows), 1)
        groups.test_all(np.column_stack([rows[a], rows[b]]), D[a, b], follow.inside_few_first)
        saved.finish("all", groups)
        complete = True
    return Segments(groups.labels(), groups.tested, groups.joined, complete, euclidean)


def _tree_pairs(relation: Relation, kept: Array, memory: int | str | None) -> tuple[Index, Float]:
    """Return the edges of the spanning tree of the kept objects, and D of them. Cost: one scan."""
    progress.current().say("spanning tree")
    forest = scan(relation.matrix, [forest_consumer(relation.matrix, kept)], memory=memory)[0]
    if forest is None:
        return np.empty((0, 2), dtype=np.int64), np.empty(0)
    return np.column_stack([forest.i, forest.j]), _seen(relation, forest.weights.astype(np.float64))


def _near_pairs(relation: Relation, kept: Array, memory: int | str | None) -> tuple[Index, Float]:
    """Return the pairs of kept objects with their nearest neighbours, and D of them. Cost: one scan."""
    progress.current().say("nearest neighbours")
    near = nearest_neighbours(relation, NEIGHBOURS, kept=kept, memory=memory)
    i, k = np.nonzero(near.positions >= 0)
    return np.column_stack([i, near.positions[i, k]]), near.squared[i, k]


def check_euclidean(relation: Relation, *, memory: int | str | None = None) -> bool | None:
    """Raise if the relation is found not to be Euclidean; return None if that is not known. Cost: at most 20 scans."""
    import warnings

    from dasrel.errors import DasrelWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DasrelWarning)  # a search that ends early leaves it unknown
        ends = spectrum(relation, n_values=1, tol=1e-2, max_scans=EUCLIDEAN_SCANS, memory=memory)
    if ends.is_euclidean is False:
        raise InputError(
            f"the matrix is not Euclidean (an eigenvalue is {ends.lowest[0]:.3g}), so that there are no segments"
            " between objects; typicalities need none",
            remedy="say {euclideanize=spread}, or another method, or leave out {clusters}",
        )
    return ends.is_euclidean


def known_euclidean(relation: Relation, keeper: CheckpointWriter, *, memory: int | str | None) -> bool | None:
    """As `check_euclidean`, unless a checkpoint has its result."""
    known = keeper.result("euclidean")
    if known is None:
        known = {"is_euclidean": check_euclidean(relation, memory=memory)}
        keeper.finish("euclidean", known)
    answer: bool | None = known["is_euclidean"]
    return answer


def _is_affordable(relation: Relation, kept: Array, groups: _Groups, memory: int | str | None) -> bool:
    n, count = relation.n_objects, int(kept.sum())
    sizes = groups.sizes()
    between = (count * count - int((sizes**2).sum())) // 2
    return between * n * POINTS <= MOST and count * n * 40 <= limits.memory_limit(memory) // 2


def _seen(relation: Relation, weights: Float) -> Float:
    """Return D of pairs from their weights in a spanning tree: distances, squared distances, or D of similarities."""
    kind = "squared-distance" if is_similarity(relation.matrix.kind) else relation.matrix.kind
    view = View(kind, relation.view.steps)
    seen = view.apply(weights[None], np.empty((1, len(weights))), row_self=None, column_self=None)
    result: Float = np.array(seen[0]) + relation.beta
    return result


class _Groups:
    """The components of the kept objects, joined pair by pair."""

    def __init__(self, kept: NDArray[np.bool_]) -> None:
        self.kept = kept
        self.tested: dict[str, int] = {}
        self.joined = 0
        self.component: Index = np.where(kept, np.arange(len(kept)), -1)

    @property
    def count(self) -> int:
        """Number of components."""
        return len(self.sizes())

    def sizes(self) -> NDArray[np.intp]:
        """Objects of each component."""
        return np.unique(self.component[self.kept], return_counts=True)[1]

    def test(self, name: str, pairs: Index, squared: Float, inside: Inside) -> None:
        """Test those of the pairs whose objects are in different components, and join those that pass."""
        pairs = np.sort(pairs, axis=1)
        apart = np.flatnonzero(self.component[pairs[:, 0]] != self.component[pairs[:, 1]])
        _, first = np.unique(pairs[apart], axis=0, return_index=True)
        apart = apart[first]
        if not apart.size:
            return
        progress.current().say(f"{count_text(apart.size, 'segment')} ({name})")
        passed = inside(pairs[apart], squared[apart])
        self.tested[name] = self.tested.get(name, 0) + int(apart.size)
        self.joined += int(passed.sum())
        self._join(pairs[apart[passed]])

    def test_all(self, pairs: Index, squared: Float, inside: Inside) -> None:
        """Test pairs, the nearest first, until none is left in different components."""
        order = np.argsort(squared, kind="stable")
        pairs, squared = pairs[order], squared[order]
        size = 1000
        while len(pairs):
            apart = self.component[pairs[:, 0]] != self.component[pairs[:, 1]]
            pairs, squared = pairs[apart], squared[apart]
            if len(pairs):
                self.test("all", pairs[:size], squared[:size], inside)
            pairs, squared, size = pairs[size:], squared[size:], 2 * size

    def _join(self, pairs: Index) -> None:
        n = len(self.kept)
        own = np.flatnonzero(self.kept)
        links = np.concatenate([pairs, np.column_stack([own, self.component[own]])])
        graph = csr_array((np.ones(len(links), dtype=np.int8), (links[:, 0], links[:, 1])), shape=(n, n))
        _, group = connected_components(graph, directed=False)
        first = np.full(n, n, dtype=np.int64)
        np.minimum.at(first, group[own], own)
        self.component = np.where(self.kept, first[group], -1)

    def labels(self) -> NDArray[np.intp]:
        """Return clusters numbered by decreasing size, of equal ones that with the first object first."""
        result = np.full(len(self.kept), -1, dtype=np.intp)
        names, sizes = np.unique(self.component[self.kept], return_counts=True)
        rank = np.empty(len(names), dtype=np.intp)
        rank[np.lexsort((names, -sizes))] = np.arange(len(names))
        result[self.kept] = rank[np.searchsorted(names, self.component[self.kept])]
        return result


@dataclass(frozen=True, eq=False)
class _Follower:
    """Computes K v at the inner points of segments, and compares it with that of the cut."""

    relation: Relation
    found: Typicality
    least: float
    """(K v)(x) of a point on the cut."""
    features: Array | None
    memory: int | str | None

    def inside(self, pairs: Index, squared: Float, saved: SavedSegments | None = None) -> NDArray[np.bool_]:
        """Return which segments are above the cut, (P,), given the squared lengths of them."""
        return self._above(self._sums(pairs, squared, list(range(POINTS)), saved))

    def inside_few_first(self, pairs: Index, squared: Float) -> NDArray[np.bool_]:
        """As `inside`, but look at a few points of all segments, and then at the others of those that are left.

        It is faster where few segments are above the cut, at the price of a second read of the matrix.
        """
        inside = np.ones(len(pairs), dtype=bool)
        for points in (FEW, [k for k in range(POINTS) if k not in FEW]):
            left = np.flatnonzero(inside)
            if left.size:
                inside[left] = self._above(self._sums(pairs[left], squared[left], points))
        return inside

    def _above(self, sums: Float) -> NDArray[np.bool_]:
        return np.asarray(np.all(sums >= self.least, axis=1))

    def _sums(self, pairs: Index, squared: Float, points: list[int], saved: SavedSegments | None = None) -> Float:
        """Return K v at some of the inner points of segments, (P, len(points))."""
        sums, at = np.zeros((len(pairs), len(points))), _T[points].tolist()
        first_object = 0
        if saved is not None and (state := saved.sums()) is not None:
            sums, first_object = state["sums"], int(state["objects"])
        with (
            parallel.single_threaded_blas(),
            ThreadPoolExecutor(max(1, limits.thread_count(waiting=False))) as pool,
        ):
            for span, rows in self._slices(first_object):
                v = self.found.weights[span]
                step = max(1, CHUNK // len(v))
                chunks = [slice(first, first + step) for first in range(0, len(pairs), step)]

                def add(chunk: slice, rows: Any = rows, v: Float = v, span: slice = span) -> None:
                    if self.features is None:
                        self._add(rows, pairs[chunk], squared[chunk], at, v, sums[chunk])
                    else:
                        self._add_of_features(pairs[chunk], span, at, v, sums[chunk])

                for _ in pool.map(add, chunks):
                    limits.check()
                if saved is not None and span.stop % self.relation.matrix.layout.tile == 0:
                    saved.part(sums, span.stop)
        return sums

    def _slices(self, first: int) -> Iterator[tuple[slice, Array | None]]:
        """Yield ranges of objects from a strip of tiles on, and D between all objects and those of a range."""
        n, tile = self.relation.n_objects, self.relation.matrix.layout.tile
        dtype = self.relation.matrix.dtype
        width = max(1, min(tile, limits.memory_limit(self.memory) // 4 // (40 * n)))
        if width < tile:
            width = max(1, tile // -(-tile // width))  # slices that divide a strip of tiles
        for start in range(first, n, tile):
            for at in range(start, min(start + tile, n), width):
                span = slice(at, min(at + width, start + tile, n))
                if self.features is not None:
                    yield span, None
                    continue
                rows = self.relation.rows(range(span.start, span.stop))
                yield span, np.ascontiguousarray(rows.T, dtype=dtype)

    def _add(self, rows: Array, pairs: Index, squared: Float, at: list[float], v: Float, sums: Float) -> None:
        assert self.found.run.width is not None
        factor = -1 / (2 * float(self.found.run.width) ** 2)
        a = rows[pairs[:, 0]]
        difference = rows[pairs[:, 1]] - a
        x = np.empty_like(a)
        weights = v.astype(a.dtype)
        for k, t in enumerate(at):
            np.multiply(difference, a.dtype.type(t), out=x)
            x += a
            x -= (t * (1 - t) * squared)[:, None].astype(a.dtype)
            np.maximum(x, 0, out=x)
            exponential(x, factor, x)
            sums[:, k] += x @ weights

    def _add_of_features(self, pairs: Index, span: slice, at: list[float], v: Float, sums: Float) -> None:
        from scipy.spatial.distance import cdist

        assert self.features is not None
        assert self.found.run.width is not None
        X = np.asarray(self.features, dtype=np.float64)
        for k, t in enumerate(at):
            points = (1 - t) * X[pairs[:, 0]] + t * X[pairs[:, 1]]
            x = cdist(points, X[span], "sqeuclidean")
            exponential(x, -1 / (2 * float(self.found.run.width) ** 2), x)
            sums[:, k] += x @ v
