"""Warm starts: continue an earlier result on the same or on a grown matrix, with clusters that keep their numbers.

Objects are identified by their ids. Clusters are numbered so that the memberships of the earlier objects agree as far
as possible, an assignment problem of c x c. `Moves` lists the objects that changed their cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.result import Clustering
from dasrel.cmeans.starts import unspread
from dasrel.engine.relation import Relation, left_products
from dasrel.errors import InputError, StoreError
from dasrel.partition import rules
from dasrel.partition.model import Model, load_memberships, load_model, mode_labels
from dasrel.partition.result import Partition
from dasrel.partition.run import Run
from dasrel.util import Float, progress
from dasrel.util.results import MOST_IDS
from dasrel.util.text import count_text, shown


@dataclass(frozen=True, eq=False)
class Moves:
    """The changes of memberships from one result to the next, of the same clusters."""

    ids: NDArray[Any]
    """Ids of the objects now, (n,)."""
    positions: NDArray[np.intp]
    """Positions of the earlier result's objects now."""
    before: Float
    """Their earlier memberships, objects by clusters."""
    now: Float
    """Memberships of all objects now, (n, c)."""
    order: tuple[int, ...]
    """For each cluster, its number before the renumbering."""
    modes: tuple[int, ...] | None = None
    """Clusters of pcm1 and pcm2 that coincide now; see `Model.modes`."""

    @property
    def moved(self) -> NDArray[np.intp]:
        """Positions in the earlier result of the objects that changed their cluster."""
        return np.flatnonzero(self._labels(self.before) != self._labels(self.now[self.positions]))

    @property
    def new(self) -> NDArray[np.intp]:
        """Positions of the new objects."""
        fresh = np.ones(len(self.now), dtype=bool)
        fresh[self.positions] = False
        return np.flatnonzero(fresh)

    def report(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        count = self.now.shape[1]
        moved = self.moved
        labels = self._labels(self.now)
        change = np.abs(self.now[self.positions] - self.before)
        worst = int(change.max(axis=1).argmax())
        return {
            "objects_before": len(self.before),
            "new_objects": len(self.new),
            "order": list(self.order),
            "moved": len(moved),
            "moved_ids": [str(self.ids[self.positions[k]]) for k in moved[:MOST_IDS]],
            "sizes_before": np.bincount(self._labels(self.before), minlength=count).tolist(),
            "sizes": np.bincount(labels, minlength=count).tolist(),
            "new_per_cluster": np.bincount(labels[self.new], minlength=count).tolist(),
            "largest_change": {"membership": float(change.max()), "id": str(self.ids[self.positions[worst]])},
        }

    def table(self) -> tuple[list[str], Iterator[list[Any]]]:
        """Return all objects that changed their cluster: a header, and a line for each."""
        header = ["id", "label_before", "label", "membership_before", "membership"]
        return header, (self._line(int(k)) for k in self.moved)

    def _line(self, k: int) -> list[Any]:
        then, here = self.before[k], self.now[self.positions[k]]
        first, second = self._labels(np.stack([then, here])).tolist()
        return [str(self.ids[self.positions[k]]), first, second, float(then.max()), float(here.max())]

    def _labels(self, memberships: Float) -> NDArray[np.intp]:
        return mode_labels(memberships, self.modes)


@dataclass(frozen=True, eq=False)
class Previous:
    """An earlier result: its centres, and the memberships of its objects if they are in the same folder."""

    path: str
    model: Model
    memberships: Float | None

    def run(self, run: Run) -> Run:
        """Return the run with this model as `init`; raise for another rule or number of clusters."""
        model = self.model
        pairs = (("rule", run.rule, model.rule), ("clusters", run.n_clusters, model.n_clusters))
        for name, requested, there in pairs:
            if requested != there:
                raise InputError(
                    f"the warm start {shown(self.path, limit=200)} has {name} {there}, and {requested} was requested",
                    remedy="request the same, or leave the warm start out",
                )
        return replace(run, init=model)

    def moves(self, partition: Partition, relation: Relation, *, memory: int | str | None = None) -> Moves:
        """Return how a partition of the same or of a grown matrix differs, clusters numbered as they are now.

        Cost: no scan where memberships were saved, else one.
        """
        ids = partition.model.ids
        at = {str(name): k for k, name in enumerate(ids)}
        positions = np.array([at[str(name)] for name in self.model.ids], dtype=np.intp)
        before = self.memberships
        if before is None:
            known = self.model.grown(ids, partition.model.diagonal)
            before = memberships_at(relation, known, memory=memory)[positions]
        order = tuple(range(before.shape[1]))
        return Moves(np.asarray(ids), positions, before, partition.memberships, order)


def load_previous(path: str | os.PathLike[str]) -> Previous:
    """Read a result folder, or its model.npz with the memberships beside it."""
    model = load_model(path)
    where = Path(path)
    beside = (where if where.is_dir() else where.parent) / "memberships.npy"
    if not beside.is_file() or not (where.is_dir() or where.name == "model.npz"):  # else it may be another model's
        return Previous(str(path), model, None)
    memberships = load_memberships(beside.parent)
    if memberships.shape != (model.n_objects, model.n_clusters):
        raise StoreError(
            f"{shown(beside, limit=200)} has shape {memberships.shape}, and the model beside it has"
            f" {count_text(model.n_objects, 'object')}"
            f" and {count_text(model.n_clusters, 'cluster')}: they do not belong together"
        )
    return Previous(str(path), model, memberships)


def renumbered(partition: Partition, order: NDArray[np.intp]) -> Partition:
    """Return the same partition with its clusters in another order."""
    result, model = partition.result, partition.model
    eta, modes = result.eta, model.modes
    if modes is not None:
        there = [modes[k] for k in order]
        modes = tuple(there.index(mode) for mode in there)
    return replace(
        partition,
        result=replace(
            result,
            membership_sums=tuple(result.membership_sums[k] for k in order),
            eta=None if eta is None else tuple(eta[k] for k in order),
            modes=modes,
        ),
        memberships=np.ascontiguousarray(partition.memberships[:, order]),
        distances=np.ascontiguousarray(partition.distances[:, order]),
        model=replace(
            model,
            V=np.ascontiguousarray(model.V[order]),
            half=model.half[order],
            eta=None if model.eta is None else model.eta[order],
            modes=modes,
        ),
    )


def keep_numbers(
    clustering: Clustering, previous: Previous, relation: Relation, *, memory: int | str | None = None
) -> tuple[Clustering, Moves]:
    """Return a clustering of one setting with its clusters numbered as in an earlier result, and the moved objects.

    Cost: no scan where the earlier memberships were saved, else one.
    """
    best = clustering.best
    with progress.watch() as counted:
        moves = previous.moves(best, relation, memory=memory)
    order = rules.matching_order(moves.before, best.memberships[moves.positions])
    renewed = renumbered(best, order)
    runs = tuple(renewed.result if result is best.result else result for result in clustering.runs)
    moves = replace(moves, now=renewed.memberships, order=tuple(order.tolist()), modes=renewed.model.modes)
    return replace(clustering, partitions=(renewed,), runs=runs, scans=clustering.scans + counted.scans), moves


def numbered_as(partition: Partition, model: Model) -> Partition:
    """Return a partition with its clusters numbered as those of its initial model, by the centres' weights."""
    start = model.grown(partition.model.ids, partition.model.diagonal)
    before, now = (np.sqrt(np.maximum(each.V, 0.0)).T for each in (start, partition.model))
    order = rules.matching_order(before, now)
    return partition if np.array_equal(order, np.arange(len(order))) else renumbered(partition, order)


def memberships_at(relation: Relation, model: Model, *, memory: int | str | None = None) -> Float:
    """Return memberships (n, c) of all objects of a matrix in the clusters of a model of it.

    Cost: one scan.
    """
    if relation.n_objects != model.n_objects:
        raise InputError(f"the model has {count_text(model.n_objects, 'object')} and the matrix {relation.n_objects}")
    base = unspread(relation)
    V = np.ascontiguousarray(model.V, dtype=np.float64 if base.terms else base.matrix.dtype)
    (Y,) = left_products([(base, V)], memory=memory)
    d, _ = rules.distances(Y[None], rules.given_weights(model.V[None]), beta=model.beta)
    if model.rule not in ("hard", "fcm2"):
        np.maximum(d, 0.0, out=d)
    U: Float = rules.memberships(model.formula(), d)[0].T
    return np.ascontiguousarray(U)
