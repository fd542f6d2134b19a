"""A clustering job from options: runs, warm start, renumbered clusters, result folder.

What `dasrel cluster` and a cluster step of a workflow do: runs from words, the clustering, and its folder.

Going on from an earlier result: clusters keep their numbers, and it is told what moved.

The objects of the earlier result are known by their names; the matrix may have grown since. Clusters are numbered so
that the memberships of these objects agree with the earlier ones as far as they can: an assignment problem of c x c.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dasrel.clustering import rules
from dasrel.clustering.fit import Clustering, Partition, cluster
from dasrel.clustering.model import Model
from dasrel.clustering.output import load_model, save_clustering
from dasrel.clustering.runs import Run, grid
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.engine.relation import Relation, left_products, relation
from dasrel.errors import InputError, StoreError
from dasrel.geometry.euclidean import as_euclidean
from dasrel.util import Float, progress
from dasrel.util.results import check_out
from dasrel.util.text import count_text, shown
from dasrel.vocabulary import INITS, TAKES


def make_runs(asked: dict[str, Any]) -> list[Run]:
    """The bundle that was asked for: every rule with the numbers that it takes, from every start.

    Parameters
    ----------
    asked
        Lists of `rule`, `n_clusters` and `init`, lists of the numbers that rules take where they are given, and
        `n_init`, `random_state`, `max_iter`, `tol`, `on_negative`, `spread`, `accelerate`.
    """
    common = {name: asked[name] for name in ("random_state", "max_iter", "tol", "on_negative", "spread", "accelerate")}
    runs = []
    for rule in asked["rule"]:
        own = {name: asked[name] for name, takers in TAKES.items() if name in asked and rule in takers}
        for init in asked["init"]:
            given = init not in INITS
            start = _given_start(init) if given else init
            n_init = 1 if given else asked["n_init"]  # a given start twice would be the same run twice
            runs += grid(rule, asked["n_clusters"], n_init=n_init, init=start, **common, **own)
    return runs


def _given_start(init: str) -> Any:
    """A start from a file: a model, or memberships."""
    if init.endswith(".npy"):
        try:
            return np.load(init, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(f"{shown(init, limit=200)} is no .npy file: {shown(error, limit=200)}") from None
    if init.endswith(".npz") or Path(init).is_dir():
        return load_model(init)
    raise InputError(f"init is {shown(init)!r}: use {', '.join(INITS)}, a model (.npz) or memberships (.npy)")


def runs_asked(asked: dict[str, Any]) -> tuple[list[Run], Previous | None]:
    """The runs to be made, and what they go on from with `warm_start`."""
    previous = None if asked.get("warm_start") is None else load_previous(asked["warm_start"])
    return (make_runs(asked) if previous is None else [_warm_run(asked, previous)]), previous


def cluster_into(
    store: str,
    out: str | Path,
    asked: dict[str, Any],
    *,
    memory: str | None = None,
    checkpoint: Checkpoint | None = None,
    about: dict[str, Any] | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Cluster a store as asked, write the folder of results, and return what its result.json says.

    Parameters
    ----------
    asked
        As for `make_runs`, and `euclideanize`: a method, a file, or None. With `warm_start`, an earlier result of the
        store or of a smaller one, there is one run, which goes on from it; clusters keep their numbers.
    about
        Added to what result.json says of store, out and what was asked for.

    Cost: that of `cluster` and, where a method is named, of `euclideanize`.
    """
    runs, previous = runs_asked(asked)
    check_out(out, force=force)
    with watched(checkpoint, "euclideanize", "cluster"):
        changed = as_euclidean(store, asked["euclideanize"], memory=memory, checkpoint=checkpoint)
        matrix: Any = store if changed is None else changed.relation
        if previous is not None and changed is None:
            matrix = relation(store)  # opened once, so that what is told belongs to what was clustered
        found = cluster(matrix, runs, memory=memory, checkpoint=checkpoint)
        said = {
            "store": store, "out": str(out), "requested": asked,
            "euclideanized": None if changed is None else changed.report(),
        }  # fmt: skip
        tables = None
        if previous is not None:
            found, moves = keep_numbers(found, previous, matrix, memory=memory)
            said["warm_start"] = {"from": previous.path, **moves.report()}
            tables = {"moved.csv": moves.table()}
        return save_clustering(found, out, about={**said, **(about or {})}, tables=tables, force=force)


def _warm_run(asked: dict[str, Any], previous: Previous) -> Run:
    """The one run that goes on from an earlier result, with its numbers where no others are asked for."""
    if asked["init"] != ["random"]:
        raise InputError("a warm start is where the run begins: leave init out")
    model = previous.model
    numbers = {"fuzzifier": model.fuzzifier, "entropy_weight": model.entropy_weight}
    given = {name: [value] for name, value in numbers.items() if value is not None}
    idle = [name for name in ("entropy_weight", "spread_scale") if model.eta is not None and name in asked]
    if idle:
        raise InputError(f"{idle[0]} is of no use here: a warm start keeps the widths of the clusters of {model.rule}")
    runs = make_runs({**given, **asked, "n_init": 1})
    if len(runs) != 1:
        raise InputError(f"a warm start goes on with one run, and {len(runs)} were asked for: give no lists")
    return previous.run(runs[0])


FIRST = 10
"""Objects that a report names; a table has all of them."""


@dataclass(frozen=True, eq=False)
class Moves:
    """What has changed from one result to the next, of the same clusters."""

    ids: NDArray[Any]
    """Names of the objects now, (n,)."""
    places: NDArray[np.intp]
    """Where the objects of the earlier result stand now."""
    before: Float
    """Their memberships then, objects by clusters."""
    now: Float
    """Memberships of all objects now, (n, c)."""
    order: tuple[int, ...]
    """For each cluster, the number that it would have had."""

    @property
    def moved(self) -> NDArray[np.intp]:
        """Which objects of the earlier result changed their cluster, by their places in it."""
        return np.flatnonzero(self.before.argmax(axis=1) != self.now[self.places].argmax(axis=1))

    @property
    def new(self) -> NDArray[np.intp]:
        """Where the objects stand that are new."""
        fresh = np.ones(len(self.now), dtype=bool)
        fresh[self.places] = False
        return np.flatnonzero(fresh)

    def report(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        count = self.now.shape[1]
        moved = self.moved
        labels = self.now.argmax(axis=1)
        change = np.abs(self.now[self.places] - self.before)
        worst = int(change.max(axis=1).argmax())
        return {
            "objects_before": len(self.before),
            "new_objects": len(self.new),
            "order": list(self.order),
            "moved": len(moved),
            "moved_ids": [str(self.ids[self.places[k]]) for k in moved[:FIRST]],
            "sizes_before": np.bincount(self.before.argmax(axis=1), minlength=count).tolist(),
            "sizes": np.bincount(labels, minlength=count).tolist(),
            "new_per_cluster": np.bincount(labels[self.new], minlength=count).tolist(),
            "largest_change": {"membership": float(change.max()), "id": str(self.ids[self.places[worst]])},
        }

    def table(self) -> tuple[list[str], Iterator[list[Any]]]:
        """All objects that changed their cluster: a header, and a line for each."""
        header = ["id", "label_before", "label", "membership_before", "membership"]
        return header, (self._line(int(k)) for k in self.moved)

    def _line(self, k: int) -> list[Any]:
        then, here = self.before[k], self.now[self.places[k]]
        first, second = int(then.argmax()), int(here.argmax())
        return [str(self.ids[self.places[k]]), first, second, float(then[first]), float(here[second])]


@dataclass(frozen=True, eq=False)
class Previous:
    """An earlier result: its centres, and the memberships of its objects if they were kept beside them."""

    path: str
    model: Model
    memberships: Float | None

    def run(self, run: Run) -> Run:
        """A run that goes on from here; another rule or number of clusters is refused."""
        model = self.model
        for word, asked, there in (("rule", run.rule, model.rule), ("clusters", run.n_clusters, model.n_clusters)):
            if asked != there:
                raise InputError(
                    f"the warm start {shown(self.path, limit=200)} has {word} {there}, and {asked} was asked for: ask"
                    " for the same, or start anew"
                )
        return replace(run, init=model)

    def moves(self, partition: Partition, relation: Relation, *, memory: int | str | None = None) -> Moves:
        """How a partition of the same or of a grown matrix differs, clusters numbered as they are now.

        Cost: no scan where memberships were kept, else one.
        """
        ids = partition.model.ids
        at = {str(name): k for k, name in enumerate(ids)}
        places = np.array([at[str(name)] for name in self.model.ids], dtype=np.intp)
        before = self.memberships
        if before is None:
            known = self.model.grown(ids, partition.model.diagonal)
            before = memberships_at(relation, known, memory=memory)[places]
        order = tuple(range(before.shape[1]))
        return Moves(np.asarray(ids), places, before, partition.memberships, order)


def load_previous(path: str | os.PathLike[str]) -> Previous:
    """A result's folder, or its model.npz; memberships that lie beside the model are read too."""
    model = load_model(path)
    where = Path(path)
    beside = (where if where.is_dir() else where.parent) / "memberships.npy"
    if not beside.is_file() or not (where.is_dir() or where.name == "model.npz"):  # else it may be another model's
        return Previous(str(path), model, None)
    try:
        found = np.load(beside, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StoreError(f"{shown(beside, limit=200)} cannot be read: {shown(error, limit=200)}") from None
    if found.shape != (model.n_objects, model.n_clusters) or found.dtype.kind != "f" or not np.isfinite(found).all():
        raise StoreError(
            f"{shown(beside, limit=200)} has shape {found.shape}, and the model beside it has"
            f" {count_text(model.n_objects, 'object')}"
            f" and {count_text(model.n_clusters, 'cluster')}: they do not belong together"
        )
    return Previous(str(path), model, np.asarray(found, dtype=np.float64))


def matching_order(before: Float, now: Float) -> NDArray[np.intp]:
    """Which column of `now` is which column of `before`: the assignment with the largest overlap in all.

    >>> matching_order(np.eye(3), np.eye(3)[:, [2, 0, 1]])
    array([1, 2, 0])
    """
    overlap = before.T @ now
    overlap = overlap + 1e-9 * overlap.max(initial=0.0) * np.eye(len(overlap))  # clusters that are alike stay in place
    order: NDArray[np.intp] = linear_sum_assignment(overlap, maximize=True)[1]
    return order


def renumbered(partition: Partition, order: NDArray[np.intp]) -> Partition:
    """The same partition with its clusters in another order, in everything that is numbered by clusters."""
    result, model = partition.result, partition.model
    eta = result.eta
    return replace(
        partition,
        result=replace(
            result,
            membership_sums=tuple(result.membership_sums[k] for k in order),
            eta=None if eta is None else tuple(eta[k] for k in order),
        ),
        memberships=np.ascontiguousarray(partition.memberships[:, order]),
        distances=np.ascontiguousarray(partition.distances[:, order]),
        model=replace(
            model,
            V=np.ascontiguousarray(model.V[order]),
            half=model.half[order],
            eta=None if model.eta is None else model.eta[order],
        ),
    )


def keep_numbers(
    found: Clustering, previous: Previous, relation: Relation, *, memory: int | str | None = None
) -> tuple[Clustering, Moves]:
    """A clustering of one setting with its clusters numbered as in an earlier result, and what moved since.

    Cost: no scan where the earlier memberships were kept, else one.
    """
    best = found.best
    with progress.watch() as counted:
        moves = previous.moves(best, relation, memory=memory)
    order = matching_order(moves.before, best.memberships[moves.places])
    fresh = renumbered(best, order)
    runs = tuple(fresh.result if one is best.result else one for one in found.runs)
    moves = replace(moves, now=fresh.memberships, order=tuple(order.tolist()))
    return replace(found, partitions=(fresh,), runs=runs, scans=found.scans + counted.scans), moves


def numbered_as(partition: Partition, model: Model) -> Partition:
    """A partition with its clusters numbered as those of the model that it began with, by the centres' weights."""
    start = model.grown(partition.model.ids, partition.model.diagonal)
    before, now = (np.sqrt(np.maximum(one.V, 0.0)).T for one in (start, partition.model))
    order = matching_order(before, now)
    return partition if np.array_equal(order, np.arange(len(order))) else renumbered(partition, order)


def memberships_at(relation: Relation, model: Model, *, memory: int | str | None = None) -> Float:
    """Memberships (n, c) of all objects of a matrix in the clusters of a model of it.

    Cost: one scan.
    """
    if relation.n_objects != model.n_objects:
        raise InputError(f"the model has {count_text(model.n_objects, 'object')} and the matrix {relation.n_objects}")
    base = replace(relation, beta=0.0)
    V = np.ascontiguousarray(model.V, dtype=np.float64 if base.terms else base.matrix.dtype)
    (Y,) = left_products([(base, V)], memory=memory)
    norms = (model.V * model.V).sum(axis=1)[None]
    W = rules.Weights(model.V[None], np.ones_like(norms), norms, np.zeros(norms.shape, dtype=np.bool_))
    d, _ = rules.distances(Y[None], W, beta=model.beta)
    if model.rule not in ("hard", "fcm2"):
        np.maximum(d, 0.0, out=d)
    U: Float = rules.memberships(model.formula(), d)[0].T
    return np.ascontiguousarray(U)
