"""A clustering job from options: runs, warm start, renumbered clusters, result folder.

`dasrel cluster` and the cluster step of a workflow prepare a job from their options, and run it; `ClusterJob.plan`
estimates its cost.

A warm start continues an earlier result. Its objects are identified by their ids; the matrix may have grown since.
Clusters keep their numbers: they are numbered so that the memberships of these objects agree with the earlier ones as
far as possible, an assignment problem of c x c. The result lists the objects that moved.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.fit import cluster
from dasrel.cmeans.output import Draw, load_memberships, load_model, write_clustering
from dasrel.cmeans.result import Clustering
from dasrel.cmeans.starts import unspread
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.engine.relation import Relation, left_products, relation
from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.names import INITS, TAKES
from dasrel.partition import rules
from dasrel.partition.model import Model, mode_labels
from dasrel.partition.result import Partition
from dasrel.partition.run import Run, grid
from dasrel.store.matrix import open_matrix
from dasrel.util import Float, progress
from dasrel.util.archives import load_array
from dasrel.util.results import MOST_IDS, check_out, finished_result
from dasrel.util.text import count_text, redacted, shown

if TYPE_CHECKING:
    from dasrel.cmeans.plan import ClusteringPlan


def cluster_into(
    store: str,
    out: str | Path,
    options: dict[str, Any],
    *,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
    about: dict[str, Any] | None = None,
    draw: Draw | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Cluster a store, write the result folder, and return the contents of its result.json.

    Parameters
    ----------
    options
        As for `prepare_job`.
    about
        Added to what result.json says of store, out and options.
    draw
        Draws pictures of the clustering into the folder.

    Cost: that of `cluster` and, where a method is named, of `euclideanize`.
    """
    job = prepare_job(store, options, out, memory=memory, force=force)
    return job.run(checkpoint=checkpoint, about=about, draw=draw)


def prepare_job(
    store: str,
    options: dict[str, Any],
    out: str | Path | None = None,
    *,
    memory: int | str | None = None,
    force: bool = False,
    resume: bool = False,
) -> ClusterJob:
    """Check options and the result folder, and make the runs.

    Parameters
    ----------
    options
        As for `make_runs`, and `euclideanize`: a method, a file, or None. With `warm_start`, an earlier result of the
        store or of a smaller one, there is one run, which continues it; clusters keep their numbers. `choose` and
        `border` as for `save_clustering`.
    out
        The result folder; not needed for the cost.
    resume
        If the result folder holds the result of the same job already, `run` returns it.

    Cost: reads the given models and memberships.
    """
    options = {"choose": "fuzzy_silhouette", "border": 0.9, **options}
    previous = None if options.get("warm_start") is None else load_previous(options["warm_start"])
    runs = make_runs(options) if previous is None else [_warm_run(options, previous)]
    finished = None
    if out is not None and resume:
        finished = finished_result(out, redacted(_header(store, out, options)))
    if out is not None and finished is None:
        check_out(out, force=force)
    return ClusterJob(store, options, runs, previous, out, memory, force, finished)


def _header(store: str, out: str | Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return what identifies a job in its result.json."""
    return {"store": store, "matrix": open_matrix(store).identity_digest(), "out": str(out), "requested": options}


@dataclass(frozen=True, eq=False)
class ClusterJob:
    """A clustering with checked options; see `prepare_job`."""

    store: str
    options: dict[str, Any]
    runs: list[Run]
    previous: Previous | None
    """The earlier result that a warm start continues."""
    out: str | Path | None
    memory: int | str | None
    force: bool
    finished: dict[str, Any] | None = None
    """The content of result.json where the same job has written its result already."""

    def run(
        self,
        *,
        checkpoint: Checkpoint | None = None,
        about: dict[str, Any] | None = None,
        draw: Draw | None = None,
    ) -> dict[str, Any]:
        """Cluster, write the result folder, and return the contents of its result.json; see `cluster_into`."""
        assert self.out is not None
        if self.finished is not None:
            return self.finished
        previous, memory = self.previous, self.memory
        with watched(checkpoint, "euclideanize", "cluster"):
            changed = euclideanized(self.store, self.options["euclideanize"], memory=memory, checkpoint=checkpoint)
            matrix: Any = self.store if changed is None else changed.relation
            if previous is not None and changed is None:
                matrix = relation(self.store)  # opened once, so that moves are found in the matrix that was clustered
            runs = _within(self.runs, relation(self.store).n_objects if changed is None else matrix.n_objects)
            found = cluster(matrix, runs, judge=True, memory=memory, checkpoint=checkpoint)
            header = {
                **_header(self.store, self.out, self.options),
                "euclideanized": None if changed is None else changed.report(),
            }
            tables = None
            if previous is not None:
                found, moves = keep_numbers(found, previous, matrix, memory=memory)
                header["warm_start"] = {"from": previous.path, **moves.report()}
                tables = {"moved.csv": moves.table()}
            header |= about or {}
            return write_clustering(
                found, Path(self.out), about=header, tables=tables, choose=self.options["choose"],
                border=self.options["border"], draw=draw, force=self.force,
            )  # fmt: skip

    def plan(self, *, workers: Mapping[str, Any] | None = None, probe_seconds: float = 2.0) -> ClusteringPlan:
        """Estimate the cost of `run`; see `plan_clustering`."""
        from dasrel.cmeans.plan import plan_clustering  # only plans need it

        return plan_clustering(
            self.store, self.runs, euclideanize=self.options["euclideanize"], memory=self.memory, workers=workers,
            probe_seconds=probe_seconds, judge=True,
        )  # fmt: skip


def _within(runs: list[Run], n_objects: int) -> list[Run]:
    """Return the runs with no more clusters than objects, and warn of others; all if there is none."""
    fitting = [run for run in runs if run.n_clusters <= n_objects]
    if not fitting or len(fitting) == len(runs):
        return runs
    problem = f"there are {count_text(n_objects, 'object')}: numbers of clusters above that are left out"
    warnings.warn(DasrelWarning(problem), stacklevel=4)
    return fitting


def euclideanized(matrix: Any, method: Any, *, memory: int | str | None, checkpoint: Checkpoint | None) -> Any:
    """Return the `Euclideanized` matrix for a method, a file or a `Euclideanized`; None for None.

    Cost: that of `euclideanize` for a method, else no scan.
    """
    if method is None:
        return None
    from dasrel.geometry.euclidean import as_euclidean  # half of the geometry room, needed only here

    return as_euclidean(matrix, method, memory=memory, checkpoint=checkpoint)


def make_runs(options: dict[str, Any]) -> list[Run]:
    """Return the runs of all rules, each with the parameters that it takes, for every `init`.

    Parameters
    ----------
    options
        Lists of `rule`, `n_clusters` and `init`, lists of the parameters that rules take where they are given, and
        `n_init`, `random_state`, `max_iter`, `tol`, `on_negative`, `spread`, `accelerate`; perhaps `stop`, `norm`,
        `history` and `race`.
    """
    listed = ("rule", "n_clusters", "init", *TAKES)
    common = {f.name: options[f.name] for f in fields(Run) if f.name in options and f.name not in listed}
    runs = []
    for rule in options["rule"]:
        own = {name: options[name] for name, takers in TAKES.items() if name in options and rule in takers}
        for init in options["init"]:
            given = init not in INITS
            n_init = 1 if given else options["n_init"]  # given memberships twice would be the same run twice
            start = _given_init(init) if given else init
            runs += grid(rule, options["n_clusters"], n_init=n_init, init=start, **common, **own)
    return runs


def _given_init(init: str) -> Any:
    """Read a model or memberships from a file."""
    if init.endswith(".npy"):
        return load_array(init)
    if init.endswith(".npz") or Path(init).is_dir():
        return load_model(init)
    raise InputError(f"init is {shown(init)!r}: use {', '.join(INITS)}, a model (.npz) or memberships (.npy)")


def _warm_run(options: dict[str, Any], previous: Previous) -> Run:
    """Return the one run that continues an earlier result, with its parameters where no others are given."""
    if options["init"] != ["sample"]:
        raise InputError("a warm start is where the run begins: leave init out")
    model = previous.model
    parameters = {"fuzzifier": model.fuzzifier, "entropy_weight": model.entropy_weight}
    kept = {name: [value] for name, value in parameters.items() if value is not None}
    idle = [name for name in ("entropy_weight", "eta_scale") if model.eta is not None and name in options]
    if idle:
        raise InputError(f"{idle[0]} is of no use here: a warm start keeps the widths of the clusters of {model.rule}")
    runs = make_runs({**kept, **options, "n_init": 1})
    if len(runs) != 1:
        raise InputError(f"a warm start continues one run, and {len(runs)} were requested: give no lists")
    return previous.run(runs[0])


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
                    f"the warm start {shown(self.path, limit=200)} has {name} {there}, and {requested} was requested:"
                    " request the same, or leave the warm start out"
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
    found = load_memberships(beside.parent)
    if found.shape != (model.n_objects, model.n_clusters):
        raise StoreError(
            f"{shown(beside, limit=200)} has shape {found.shape}, and the model beside it has"
            f" {count_text(model.n_objects, 'object')}"
            f" and {count_text(model.n_clusters, 'cluster')}: they do not belong together"
        )
    return Previous(str(path), model, found)


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
    found: Clustering, previous: Previous, relation: Relation, *, memory: int | str | None = None
) -> tuple[Clustering, Moves]:
    """Return a clustering of one setting with its clusters numbered as in an earlier result, and the moved objects.

    Cost: no scan where the earlier memberships were saved, else one.
    """
    best = found.best
    with progress.watch() as counted:
        moves = previous.moves(best, relation, memory=memory)
    order = rules.matching_order(moves.before, best.memberships[moves.positions])
    renewed = renumbered(best, order)
    runs = tuple(renewed.result if one is best.result else one for one in found.runs)
    moves = replace(moves, now=renewed.memberships, order=tuple(order.tolist()), modes=renewed.model.modes)
    return replace(found, partitions=(renewed,), runs=runs, scans=found.scans + counted.scans), moves


def numbered_as(partition: Partition, model: Model) -> Partition:
    """Return a partition with its clusters numbered as those of its initial model, by the centres' weights."""
    start = model.grown(partition.model.ids, partition.model.diagonal)
    before, now = (np.sqrt(np.maximum(one.V, 0.0)).T for one in (start, partition.model))
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
