"""Clusters by density in two scans: HDBSCAN* for any number of parameters, and DBSCAN at any distances.

The first scan finds the nearest neighbours of every object, and with them the core distances of all `min_samples`. The
second finds for each of them the minimum spanning tree of mutual reachability, max(d_ij, core_i, core_j). All clusters
follow from the trees. Distances are those of a store of kind distance as they are, and the square roots of max(D, 0)
of any other kind.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dasrel.density.condensed import CondensedTree, condense
from dasrel.density.dbscan import dbscan_labels
from dasrel.density.model import DensityModel
from dasrel.density.run import DensityRun
from dasrel.engine.checkpoint import Checkpoint, checkpoint_writer
from dasrel.engine.neighbours import Neighbours, neighbour_consumer
from dasrel.engine.scan import scan, scan_memory
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.tree import Tree, forest_consumer
from dasrel.kernels.forest import Forest
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from dasrel.store.matrix import Matrix
from dasrel.util import Float, Index
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.text import count_text

COMMAND = "density"
"""What checkpoints know it by."""
TREE_BYTES = 400
"""Bytes per object and tree while it is condensed, at most."""


@dataclass(frozen=True, eq=False)
class DensityResult:
    """The clusters of one run."""

    run: DensityRun
    tree: CondensedTree
    chosen: Index
    """The clusters of the condensed tree that are chosen."""
    of_cluster: Index
    """(c,) the label of each cluster of the condensed tree; -1 for none."""
    labels: Index
    """(n,) clusters from 0 on, numbered by their first objects; -1 for noise."""
    core_distances: Float
    """(n,) core distances."""

    def __repr__(self) -> str:
        n, noise = len(self.labels), int((self.labels < 0).sum())
        return (
            f"<DensityResult: {count_text(self.n_clusters, 'cluster')} of {count_text(n, 'object')}, noise {noise:,}>"
        )

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return len(self.chosen)

    @cached_property
    def probabilities(self) -> Float:
        """(n,) how firmly each object belongs to its cluster, 0 to 1; 0 for noise."""
        return self.tree.probabilities(self.chosen, self.labels)

    @property
    def outlier_scores(self) -> Float:
        """(n,) GLOSH: 0 for the densest objects of a cluster, near 1 for outliers."""
        return self.tree.outlier_scores

    @property
    def sizes(self) -> Index:
        """(clusters,) number of objects."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.n_clusters)

    @property
    def stabilities(self) -> Float:
        """(clusters,) stability of each cluster."""
        result = np.empty(self.n_clusters)
        result[self.of_cluster[self.chosen]] = self.tree.stabilities[self.chosen]
        return result


@dataclass(frozen=True, eq=False)
class Density:
    """Clusters by density of all runs; returned by `hdbscan`."""

    matrix: Matrix | ArrayMatrix
    results: list[DensityResult]
    neighbours: Neighbours | None
    """The nearest neighbours; None where every `min_samples` is 1."""
    trees: dict[int, Tree]
    """The spanning tree of mutual reachability for each `min_samples`, its weights in `tree.units`."""
    scans: int

    @property
    def best(self) -> DensityResult:
        """The first run's result."""
        return self.results[0]

    def core_distances(self, min_samples: int) -> Float:
        """Return the distance of every object to the nearest of which so many, itself included, are as near."""
        return _core(self.neighbours, min_samples, self.matrix.n_objects)

    def dbscan(self, eps: float, min_samples: int | None = None) -> Index:
        """Return the labels of DBSCAN, (n,), -1 for noise; clusters are numbered by their first core objects.

        An object is a core object if `min_samples` objects, itself included, are within eps. Core objects within eps of
        each other are in one cluster. Another object within eps of a core object is in the cluster of the nearest one.

        Parameters
        ----------
        min_samples
            One of those of the runs; that of the first run by default.

        Cost: no scan; O(n).
        """
        samples = self.results[0].run.samples if min_samples is None else min_samples
        if samples not in self.trees:
            raise InputError(f"there is no tree for min_samples {samples}", remedy="give a run with it")
        return dbscan_labels(self.trees[samples], self.neighbours, samples, eps)

    def model(self, result: DensityResult | None = None) -> DensityModel:
        """Return what places new objects in the clusters of a result. Cost: no scan."""
        given = self.best if result is None else result
        return DensityModel.of(given.tree, given.chosen, given.of_cluster, given.core_distances, given.run.samples,
                               self.matrix)  # fmt: skip


def hdbscan(
    matrix: Any,
    runs: DensityRun | Sequence[DensityRun] | None = None,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Density:
    """Return clusters as regions of high density (HDBSCAN*), for any number of runs in two scans.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, or an array with its `kind`.
    runs
        `DensityRun`, or several; by default one.
    checkpoint
        Saves the neighbours between the scans.

    Cost: two scans, one if every `min_samples` is 1; 24 k n bytes, k the largest `min_samples`, and 400 n a tree.
    """
    return prepare_density(matrix, runs, kind=kind, memory=memory).run(checkpoint)


def prepare_density(
    matrix: Any,
    runs: DensityRun | Sequence[DensityRun] | None = None,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
) -> DensityJob:
    """Check the arguments of `hdbscan` against the matrix. Cost: no tile is read."""
    listed = [DensityRun()] if runs is None else [runs] if isinstance(runs, DensityRun) else list(runs)
    if not listed:
        raise InputError("there is no run", remedy="give at least one DensityRun")
    source = as_matrix(matrix, kind=kind)
    n = source.n_objects
    listed = [run.of(n) for run in listed]
    for name, value in (("min_size", max(run.size for run in listed)),
                        ("min_samples", max(run.samples for run in listed))):  # fmt: skip
        if value > n:
            remedy = f"give {{{name}=NUMBER}} of at most {n}" if n > 1 else "give more objects"
            raise InputError(f"{name} is {value}, and there are {count_text(n, 'object')}", remedy=remedy)
    return DensityJob(source, listed, memory)


@dataclass(frozen=True, eq=False)
class DensityJob:
    """Clusters by density to be found, the arguments checked."""

    matrix: Matrix | ArrayMatrix
    runs: list[DensityRun]
    memory: int | str | None

    @property
    def samples(self) -> list[int]:
        """The different `min_samples`, ascending."""
        return sorted({run.samples for run in self.runs})

    def run(self, checkpoint: Checkpoint | None = None) -> Density:
        """Read the matrix twice, and find the clusters of all runs."""
        samples, n = self.samples, self.matrix.n_objects
        with checkpoint_writer(checkpoint, COMMAND, self._identity) as writer:
            near = self._saved_neighbours(writer.result("neighbours"))
            if near is None and samples[-1] > 1:
                near = scan(self.matrix, [neighbour_consumer(self.matrix, samples[-1] - 1)], memory=self.memory)[0]
                assert near is not None
                writer.finish("neighbours", {"values": near.values, "positions": near.positions})
            forests: list[Forest] = scan(self.matrix, self._forests(near), memory=self.memory)
            scans = writer.scans
        trees = {
            of: Tree(np.column_stack([forest.i, forest.j]), forest.weights.astype(np.float64), forest.largest,
                     self.matrix.kind)
            for of, forest in zip(samples, forests, strict=True)
        }  # fmt: skip
        condensed: dict[tuple[int, int], CondensedTree] = {}
        results = []
        for run in self.runs:
            key = run.samples, run.size
            if key not in condensed:
                tree = trees[run.samples]
                condensed[key] = condense(tree.linkage()[:, :2].astype(np.int64), distances_of(tree), run.size)
            results.append(_result(run, condensed[key], _core(near, run.samples, n)))
        warn_of_noise(results)
        return Density(self.matrix, results, near, trees, scans)

    def _forests(self, near: Neighbours | None) -> list[Any]:
        return [
            forest_consumer(self.matrix, floors=None if of == 1 or near is None else near.values[:, of - 2])
            for of in self.samples
        ]

    def _saved_neighbours(self, saved: Any) -> Neighbours | None:
        if saved is None:
            return None
        return Neighbours(saved["values"], saved["positions"], self.matrix.kind != "distance")

    def _identity(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with."""
        return {"matrix": self.matrix.identity(), "min_samples": self.samples}

    def cost(self, outputs: tuple[Output, ...] = ()) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, most, limit = self.matrix.n_objects, self.samples[-1], memory_limit(self.memory)
        needed, scans = 0, 1
        if most > 1:
            needed = scan_memory(self.matrix, [neighbour_consumer(self.matrix, most - 1)], limit)
            scans = 2
        floors = [None if of == 1 else np.zeros(n) for of in self.samples]
        forests = [forest_consumer(self.matrix, floors=floor) for floor in floors]
        held = 24 * n * (most - 1)
        needed = max(needed, scan_memory(self.matrix, forests, limit)) + held + TREE_BYTES * n * len(self.runs)
        facts = {"runs": len(self.runs), "trees": len(self.samples)}
        return Cost(COMMAND, n, Range(scans, scans, scans), self.matrix.layout.total_bytes, needed, outputs, facts)


def _result(run: DensityRun, tree: CondensedTree, core: Float) -> DensityResult:
    chosen = tree.select(run.method, run.epsilon, allow_single=run.allow_single_cluster)
    of_cluster, labels = tree.labels(chosen)
    return DensityResult(run, tree, chosen, of_cluster, labels, core)


def _core(near: Neighbours | None, min_samples: int, n: int) -> Float:
    if min_samples == 1 or near is None:
        return np.zeros(n)
    core: Float = replace(near, values=near.values[:, min_samples - 2]).distances
    return core


def distances_of(tree: Tree) -> Float:
    """Return the weights of a tree as distances."""
    return tree.weights if tree.kind == "distance" else np.sqrt(tree.weights)


def warn_of_noise(results: list[DensityResult]) -> None:
    """Warn of results without a cluster."""
    empty = [result.run for result in results if not result.n_clusters]
    if empty:
        run = empty[0]
        warnings.warn(
            DasrelWarning(
                f"no cluster of at least {run.size} objects stands out: all objects are noise",
                remedy="give a smaller {min_size}, say {allow_single_cluster=True}, or take it that there are none",
            ),
            stacklevel=4,
        )
