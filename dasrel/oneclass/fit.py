"""One cluster in kernel space (1-PCM, F10): the typicality of every object, many widths and gammas in one bundle.

With a kernel K and weights v = u / sum u, the squared distance of object h to the centre is d_h = k_hh - 2 (K v)_h +
v'K v, and u_h = exp(-d_h / eta) (26), eta = gamma sum_h v_h d_h (27). An iteration is one scan: each tile is read once,
seen through every width, and multiplied by the weights of all runs of that width. Weights come from logarithms (49), so
that memberships that are too small for a number do no harm.

The kernel is exp(-D / (2 sigma^2)) of a width sigma, with k_hh = 1. Without a width it is the matrix itself: then
d = D v - v'D v / 2, which for kernels and similarities is the same expression in s.

The first scan has equal weights, so that K v is the kernel density estimate of the objects (29), for each width. An
automatic width is chosen by a scan of that kind at `TRIED` widths. Before that, a scan finds the distance of every
object to one of its nearest neighbours: the scale of the widths, and a score of its own beside the typicality.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer
from dasrel.engine.neighbours import neighbour_consumer
from dasrel.engine.relation import LeftProducts, Relation, product_shape, relation
from dasrel.engine.scan import needed_memory
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.kernel_width import (
    TRIED,
    Neighbourhood,
    Scale,
    WidthTrial,
    check_widths,
    chosen_width,
    neighbour_count,
    neighbourhood_of,
    try_width,
)
from dasrel.names import is_similarity
from dasrel.oneclass.run import OneClassRun
from dasrel.oneclass.typicality import Mask, Typicality
from dasrel.util import Float, html, limits, progress
from dasrel.util.text import count_text, some, time_text

AROUND = 2
"""Widths on either side of the automatic one whose results are its ladder."""
COLUMN_BYTES = 5 * 8
"""Bytes per object that a run takes between two scans, and while it is updated."""


@dataclass(frozen=True, eq=False)
class OneClass:
    """The result of `one_class`."""

    typicalities: tuple[Typicality, ...]
    """One for each run, in the order in which they were given; of an automatic width the chosen one of its ladder."""
    ladders: tuple[tuple[Typicality, ...], ...]
    """For each run, the results at the widths of its ladder; empty where the width was given."""
    neighbourhood: Neighbourhood
    """The distances to one of the nearest neighbours: a score of outliers that needs no width."""
    trials: tuple[WidthTrial, ...]
    """The widths that were compared, where one was automatic."""
    scans: int
    seconds: float
    relation: Relation = field(repr=False)

    def __repr__(self) -> str:
        n = self.relation.n_objects
        return f"<OneClass: {count_text(n, 'object')}, {count_text(len(self.typicalities), 'run')}, {self.scans} scans>"

    def _repr_html_(self) -> str:
        rows = [
            ("none" if row["width"] is None else f"{row['width']:.4g}", f"{row['eta_scale']:g}",
             f"{row['typicality_min']:.4g} to {row['typicality_max']:.4g}", "yes" if row["converged"] else "no")
            for row in (typicality.row() for typicality in self.typicalities[:20])
        ]  # fmt: skip
        left = len(self.typicalities) - len(rows)
        facts = [("objects", f"{self.relation.n_objects:,}"), ("scans", f"{self.scans:,} in {time_text(self.seconds)}"),
                 *([("not listed", count_text(left, "run"))] if left else [])]  # fmt: skip
        return html.card("Typicality", facts, html.table(("width", "gamma", "typicality", "converged"), rows))

    @property
    def scale(self) -> Scale:
        """What the nearest neighbours say of widths."""
        return self.neighbourhood.scale

    @property
    def best(self) -> Typicality:
        """The only result; raise if there are several."""
        if len(self.typicalities) > 1:
            raise InputError(f"there are {len(self.typicalities)} results", remedy="choose one of `typicalities`")
        return self.typicalities[0]


def one_class(
    matrix: Any,
    runs: OneClassRun | Sequence[OneClassRun] | None = None,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> OneClass:
    """Return the typicality of every object for all runs, one scan per iteration for all of them (F10, 1-PCM).

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a `Relation`; one that ends with a Gaussian
        kernel is used as it is.
    runs
        From `OneClassRun`; by default one with an automatic width.
    kind
        What the numbers of an array are.
    memory
        Memory that may be used on this machine, such as "2GiB"; by default half of the machine's. Runs that do not
        fit together are made one after the other, with a warning.
    checkpoint
        Saves the state between scans, to be resumed to the same bits.

    Cost: one scan for the neighbours, one for an automatic width, and as many as the slowest run has iterations,
    typically 5 to 30. 40 n bytes for each run, 24 n for each of 20 neighbours, and the columns of a scan.
    """
    return prepare_one_class(matrix, runs, kind=kind, memory=memory).run(checkpoint)


def prepare_one_class(
    matrix: Any,
    runs: OneClassRun | Sequence[OneClassRun] | None = None,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
) -> PreparedOneClass:
    """Check the arguments of `one_class` against the matrix. Cost: no tile is read."""
    listed = [OneClassRun()] if runs is None else [runs] if isinstance(runs, OneClassRun) else list(runs)
    if not listed:
        raise InputError("there is no run", remedy="give at least one OneClassRun")
    if isinstance(matrix, Relation) and kind is not None:
        raise InputError("a relation knows its kind", remedy="leave out {kind}")
    seen = matrix if isinstance(matrix, Relation) else relation(matrix, kind=kind)
    steps = seen.view.steps
    if steps and steps[-1][0] == "gaussian" and not (seen.beta or seen.terms):
        seen = Relation(seen.matrix, replace(seen.view, steps=steps[:-1]))
        if any(run.width not in ("auto", None) for run in listed):
            raise InputError(
                "the relation is a Gaussian kernel already", remedy="leave out {width}, or give the matrix itself"
            )
        listed = [replace(run, width=float(steps[-1][1])) for run in listed]  # type: ignore[arg-type]
    if seen.diagonal().any():
        raise InputError(
            "objects have a value other than 0 to themselves in this relation", remedy="give the matrix itself"
        )
    if is_similarity(seen.matrix.kind):
        listed = [replace(run, width=None) if run.width == "auto" else run for run in listed]
    if any(run.width is not None for run in listed) and seen.terms:
        seen.gaussian(1.0)  # raises: a kernel cannot follow an added term
    return PreparedOneClass(seen, listed, memory)


@dataclass(frozen=True, eq=False)
class PreparedOneClass:
    """A computation with checked arguments, to be run or estimated."""

    relation: Relation
    runs: list[OneClassRun]
    memory: int | str | None

    def run(self, checkpoint: Checkpoint | None = None) -> OneClass:
        """Run it; see `one_class`."""
        relation, runs = self.relation, self.runs
        equal = relation.largest() == 0

        def about() -> dict[str, Any]:
            return {"relation": relation.identity(), "run": [run.identity() for run in runs]}

        with checkpoint_writer(checkpoint, "outliers", about) as keep:
            near = self._neighbourhood(keep)
            trials = self._trials(keep, near.scale) if self.needs_width else []
            ladder = _ladder(trials, chosen := chosen_width(trials, near.scale)) if trials else []
            listed = [
                (k, replace(run, width=width))
                for k, run in enumerate(runs)
                for width in (ladder if run.width == "auto" else [run.width])
            ]
            typicalities = self._iterated([run for _, run in listed], near, keep)
            scans, seconds = keep.scans, keep.seconds
        if equal:
            warnings.warn(DasrelWarning("all objects are equal: every typicality is 1"), stacklevel=4)
        self._check(typicalities)
        results, ladders = [], []
        for k, run in enumerate(runs):
            own = tuple(typicality for (at, _), typicality in zip(listed, typicalities, strict=True) if at == k)
            results.append(own[ladder.index(chosen)] if run.width == "auto" else own[0])
            ladders.append(own if run.width == "auto" else ())
        return OneClass(tuple(results), tuple(ladders), near, tuple(trials), scans, seconds, relation)

    @property
    def needs_width(self) -> bool:
        """Whether a width is automatic."""
        return any(run.width == "auto" for run in self.runs)

    @property
    def columns(self) -> list[float | None]:
        """The widths of all columns; of automatic ones their multiples of the chosen one."""
        widths: list[float | None] = []
        for run in self.runs:
            widths += TRIED[: 2 * AROUND + 1] if run.width == "auto" else [run.width]
        return widths

    def split(self) -> list[list[int]]:
        """Return the columns of each bundle, as many as fit into memory together."""
        return split_columns(self.relation, self.columns, limits.memory_limit(self.memory))

    def scans_before(self) -> int:
        """Return how many scans precede the iterations."""
        tried = split_columns(self.relation, TRIED, limits.memory_limit(self.memory)) if self.needs_width else []
        return 1 + len(tried)

    def memory_before(self) -> tuple[int, int]:
        """Return the memory of these scans: of the caller, and of each task. Cost: none."""
        source: Any = self.relation.matrix
        k = neighbour_count(source.n_objects)
        fixed, task = needed_memory(source, [neighbour_consumer(self.relation, k)])
        fixed += COLUMN_BYTES * source.n_objects
        if self.needs_width:
            bundle = max(split_columns(self.relation, TRIED, limits.memory_limit(self.memory)), key=len)
            shape = product_shape(source, [(kernel_view(self.relation, TRIED[k]).view, 1) for k in bundle])
            trial = needed_memory(source, [shape])
            fixed = max(fixed, trial[0] + COLUMN_BYTES * source.n_objects * len(bundle))
            task = max(task, trial[1])
        return fixed, task

    def _neighbourhood(self, keep: CheckpointWriter) -> Neighbourhood:
        known = keep.result("neighbours")
        if known is None:
            progress.current().say("nearest neighbours")
            near = neighbourhood_of(self.relation, memory=self.memory)
            known = {"distances": near.distances, "k": near.k, "scale": vars(near.scale)}
            keep.finish("neighbours", known)
        return Neighbourhood(known["distances"], known["k"], Scale(**known["scale"]))

    def _trials(self, keep: CheckpointWriter, scale: Scale) -> list[WidthTrial]:
        known = keep.result("widths")
        if known is None:
            memory, known = limits.memory_limit(self.memory), []
            for bundle in split_columns(self.relation, scale.tried, memory):
                first = [Column(k, OneClassRun(scale.tried[k], max_iter=1)) for k in bundle]

                def judge(densities: dict[float, Float], known: list[dict[str, Any]] = known) -> None:
                    known += [vars(try_width(width, density, scale)) for width, density in densities.items()]

                iterate(self.relation, first, memory=memory, deliver=lambda _: None, check=judge)
                del first
            keep.finish("widths", known)
        return [WidthTrial(**trial) for trial in known]

    def _iterated(self, runs: list[OneClassRun], near: Neighbourhood, keep: CheckpointWriter) -> list[Typicality]:
        relation, memory = self.relation, limits.memory_limit(self.memory)
        bundles = split_columns(relation, [run.width for run in runs], memory)  # type: ignore[misc]
        if len(bundles) > 1:
            warnings.warn(
                DasrelWarning(
                    f"memory does not allow {count_text(len(runs), 'run')} at once: they are made in"
                    f" {len(bundles)} bundles",
                    remedy="raise {memory}, or give fewer widths",
                ),
                stacklevel=5,
            )
        state = keep.state("iterate") or {"bundle": 0, "columns": None, "done": []}
        done = {saved["index"]: Column.unpacked(saved, runs[saved["index"]]) for saved in state["done"]}
        for number in range(state["bundle"], len(bundles)):
            stored = state["columns"] if number == state["bundle"] else None
            active = [Column(k, runs[k]) for k in bundles[number]]
            if stored is not None:
                active = [Column.unpacked(saved, runs[saved["index"]]) for saved in stored]

            def packed(number: int = number) -> dict[str, Any]:
                moving = [each.packed() for each in active if not each.ended]  # noqa: B023 - called at once
                return {"bundle": number, "columns": moving, "done": [each.packed() for each in done.values()]}

            def after(column: Column) -> None:
                done[column.index] = column

            iterate(
                relation, active, memory=memory, deliver=after, on_step=lambda: keep.step("iterate", packed),
                check=lambda first: check_widths(relation, first, memory=self.memory),
            )  # fmt: skip
        return [done[k].result(near) for k in range(len(runs))]

    def _check(self, typicalities: Sequence[Typicality]) -> None:
        gone = [result.run for result in typicalities if not result.typicality.max() > 0]
        if gone:
            scales = some(dict.fromkeys(f"{run.eta_scale:g}" for run in gone))
            raise InputError(
                f"every typicality underflows at eta_scale {scales}",
                remedy="say a larger {eta_scale=NUMBER}; 1 is usual",
            )
        shrunk = [result for result in typicalities if result.eta < 1e-12 and result.log_typicality.min() < -1e6]
        if shrunk:
            warnings.warn(
                DasrelWarning(
                    f"the cluster has shrunk to {count_text(int((shrunk[0].typicality > 0.5).sum()), 'object')} at"
                    f" eta_scale {shrunk[0].run.eta_scale:g}",
                    remedy="say a larger {eta_scale=NUMBER}, or estimate the width once, without eta_refit",
                ),
                stacklevel=5,
            )
        left = [result for result in typicalities if not result.converged]
        if left:
            warnings.warn(
                DasrelWarning(
                    f"{len(left)} of {count_text(len(typicalities), 'run')} did not converge in"
                    f" {count_text(left[0].n_iter, 'iteration')}",
                    remedy="raise {max_iter} or {tol}",
                ),
                stacklevel=5,
            )
        negative = [result for result in typicalities if result.negative_distances]
        if negative:
            warnings.warn(
                DasrelWarning(
                    f"{negative[0].negative_distances:,} squared distances to the centre were negative and set to 0"
                    f" ({len(negative)} of {count_text(len(typicalities), 'run')}): the matrix is not Euclidean",
                    remedy="say {euclideanize=spread} to make it so",
                ),
                stacklevel=5,
            )


def _ladder(trials: list[WidthTrial], chosen: float) -> list[float]:
    """Return the chosen width and the usable ones around it."""
    at = next(k for k, trial in enumerate(trials) if trial.width == chosen)
    near = trials[max(0, at - AROUND) : at + AROUND + 1]
    return [trial.width for trial in near if trial.usable or trial.width == chosen]


# ---------------------------------------------------------------------------------------------------- the iteration


@dataclass(eq=False)
class Column:
    """One run in progress, perhaps on some of the objects only; the others get a typicality like new objects."""

    index: int
    run: OneClassRun
    members: Mask | None = None
    """The objects that the centre is made of; None for all."""
    v: Float | None = None
    """The next weights; None before the first scan, when they are equal."""
    log_u: Float | None = None
    used: Float | None = None
    """The weights that `log_u` was computed with."""
    first: Float | None = None
    """The product of the first scan, the kernel density, where it is kept; see `keep_first`."""
    keep_first: bool = False
    half: float = 0.0
    eta: float | None = None
    n_iter: int = 0
    history: list[float] = field(default_factory=list)
    negative: int = 0
    ended: bool = False

    def weights(self, n: int) -> Float:
        """Return the weights to multiply with."""
        if self.v is not None:
            return self.v
        if self.members is None:
            return np.full(n, 1.0 / n)
        equal: Float = self.members / self.members.sum()
        return equal

    def advance(self, Y: Float, rounding: float) -> None:
        """Update from the product Y of the kernel, or without a width of D, with `weights`: (26), (27)."""
        n, before = len(Y), self.log_u
        v = self.weights(n)
        if self.keep_first and self.n_iter == 0:
            self.first = Y.copy()
        inner = float(v @ Y)
        self.half = 0.5 * inner if self.run.width is None else 1.0 - inner
        d = Y - self.half if self.run.width is None else 1.0 + inner - 2.0 * Y
        self.negative = int((d < -rounding).sum())
        np.maximum(d, 0.0, out=d)
        if self.eta is None or self.run.eta_refit:
            self.eta = self.run.eta_scale * float(v @ d)
        self.used = v
        self.log_u = np.where(d > 0, -np.inf, 0.0) if self.eta == 0 else np.negative(d, out=d) / self.eta
        own = self.log_u if self.members is None else np.where(self.members, self.log_u, -np.inf)
        w = np.exp(own - own.max())
        self.v = w / w.sum()
        self.n_iter += 1
        self.history.append(self._change(before, v))
        self.ended = self.history[-1] < self.run.tol or self.n_iter >= self.run.max_iter

    def _change(self, before: Float | None, v: Float) -> float:
        """Return sum |u - u'| of the members, u = 1/n before the first iteration, as the run wants it."""
        assert self.log_u is not None
        assert self.v is not None
        if self.run.constrained:
            return float(np.abs(self.v - v).sum())
        u = np.exp(self.log_u)
        change = np.abs(u - (v if before is None else np.exp(before)))
        count = len(u)
        if self.members is not None:
            change, count = change[self.members], int(self.members.sum())
        return float(change.sum()) / (count if self.run.stop == "mean" else 1)

    def result(self, near: Neighbourhood) -> Typicality:
        """Return the result of a run that has ended, beside the distances to neighbours."""
        assert self.log_u is not None
        assert self.used is not None
        assert self.eta is not None
        log_u, log_sum = self.log_u, 0.0
        if self.run.constrained:
            own = log_u if self.members is None else log_u[self.members]
            log_sum = float(own.max() + np.log(np.exp(own - own.max()).sum()))
            log_u = log_u - log_sum
        return Typicality(
            self.run, log_u, self.used, self.half, self.eta, self.history[-1] < self.run.tol, self.n_iter,
            tuple(self.history), near.distances, near.k, self.negative, _log_sum=log_sum,
        )  # fmt: skip

    def packed(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        names = ("index", "v", "log_u", "used", "half", "eta", "n_iter", "history", "negative", "ended")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def unpacked(stored: dict[str, Any], run: OneClassRun) -> Column:
        """Return the state from what `packed` returned."""
        return Column(run=run, **stored)


def iterate(
    relation: Relation,
    columns: Sequence[Column],
    *,
    memory: int,
    deliver: Callable[[Column], None],
    on_step: Callable[[], None] = lambda: None,
    check: Callable[[dict[float, Float]], None] = lambda first: None,
) -> None:
    """Iterate all columns together until the last has ended; one that ends is delivered.

    Parameters
    ----------
    on_step
        Called after every scan that is not the last.
    check
        Called after the first scan with the densities K v of equal weights, by width.

    Cost: as many scans as the slowest column has iterations.
    """
    n, dtype = relation.n_objects, relation.matrix.dtype
    active = [column for column in columns if not column.ended]
    rounding = n * float(np.finfo(dtype).eps)
    memory = max(1, memory - COLUMN_BYTES * n * len(columns))
    shape: list[tuple[float | None, int]] = []
    while active:
        number = max(column.n_iter for column in active) + 1
        most = max(column.run.max_iter for column in active)
        note = f"iteration {number} of at most {most}, {count_text(len(active), 'run')} active"
        progress.current().say(note, iteration=number, most=most)
        groups: dict[Any, dict[Any, list[Column]]] = {}  # by width, then by what is multiplied
        for column in active:
            same = ("first", id(column.members)) if column.n_iter == 0 else id(column)
            groups.setdefault(column.run.width, {}).setdefault(same, []).append(column)
        stacked = []
        for several in groups.values():
            # Terms are added in float64; products with tiles are taken in the tiles' precision anyway.
            V = np.empty((len(several), n), np.float64 if relation.terms else dtype)
            for row, same_columns in zip(V, several.values(), strict=True):
                row[:] = same_columns[0].weights(n)
            stacked.append(V)
        wanted = [(width, len(several)) for width, several in groups.items()]
        if wanted != shape:
            shape = wanted
            products = LeftProducts([(kernel_view(relation, width), k) for width, k in wanted], memory=memory)
        rows = products.run(stacked)
        del stacked
        if all(column.n_iter == 0 for column in active):
            check({width: Y[0] for width, Y in zip(groups, rows, strict=True) if width is not None})
        for (width, several), Y in zip(groups.items(), rows, strict=True):
            scale = 1.0 if width is not None else relation.largest()
            for row, same_columns in zip(Y, several.values(), strict=True):
                for column in same_columns:
                    column.advance(row, rounding * scale)
                    if column.ended:
                        deliver(column)
        del rows
        active = [column for column in active if not column.ended]
        if active:
            on_step()


def kernel_view(relation: Relation, width: float | None) -> Relation:
    """Return the relation as a Gaussian kernel of a width, or as it is without one."""
    return relation if width is None else relation.gaussian(width)


def split_columns(relation: Relation, widths: Sequence[float | None], memory: int) -> list[list[int]]:
    """Return bundles of columns, in order, as many of these widths as fit into memory together. Cost: none."""
    source: Any = relation.matrix
    n = relation.n_objects

    def fits(some: list[int]) -> bool:
        counted: dict[float | None, int] = {}
        for k in some:
            counted[widths[k]] = counted.get(widths[k], 0) + 1
        shape = product_shape(source, [(kernel_view(relation, width).view, count) for width, count in counted.items()])
        return COLUMN_BYTES * n * len(widths) + sum(needed_memory(source, [shape])) <= memory

    bundles, left = [], list(range(len(widths)))
    while left:
        low, high = 1, len(left)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(left[:middle]) else (low, middle - 1)
        bundles.append(left[:low])
        left = left[low:]
    return bundles
