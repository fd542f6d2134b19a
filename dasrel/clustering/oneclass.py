"""One cluster in kernel space (1-PCM, F10): the typicality of every object, many widths and gammas in one bundle.

With a kernel K and weights v = u / sum u, the squared distance of object h to the centre is d_h = k_hh - 2 (K v)_h +
v'K v, and u_h = exp(-d_h / eta) (26), eta = gamma sum_h v_h d_h (27). An iteration is one scan: each tile is read once,
seen through every width, and multiplied by the weights of all runs of that width. Weights come from logarithms (49), so
that memberships that are too small for a number do no harm.

The kernel is exp(-D / (2 sigma^2)) of a width sigma, with k_hh = 1. Without a width it is the matrix itself: then
d = D v - v'D v / 2, which for kernels and similarities is the same expression in s.

The first scan has equal weights, so that K v is the kernel density estimate of the objects (29), for each width.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.clustering.model import Model
from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer
from dasrel.engine.neighbours import nearest_neighbours
from dasrel.engine.relation import LeftProducts, Relation, product_shape, relation
from dasrel.engine.scan import needed_memory
from dasrel.errors import DasrelWarning, InputError
from dasrel.util import Float, limits, progress
from dasrel.util.text import count_text, shown, some
from dasrel.vocabulary import is_similarity

LADDER = (0.5, 2**-0.5, 1.0, 2**0.5, 2.0)
"""Widths that are tried for "auto", as multiples of `Scale.width`."""
CHOSEN = 2
"""The one of them that is the result."""
FAR = 3.0
"""Interquartile ranges below the first quartile, from which an object is an outlier by itself (Tukey's far out)."""
ALONE = 1e-6
"""The least density of other objects, relative to an object's own, that is told from none."""
COLUMN_BYTES = 5 * 8
"""Bytes per object that a run takes between two scans, and while it is updated."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class OneClassRun:
    """One cluster in kernel space: its parameters. The matrix is seen through a Gaussian kernel of `width`."""

    width: float | Literal["auto"] | None = "auto"
    """sigma, on the scale of the dissimilarities; "auto" is estimated from the nearest neighbours (see `Scale`), and
    for kinds similarity and kernel is None: the matrix itself is the kernel."""
    spread_scale: float = 1.0
    """gamma: small values follow the densest part of the data, large ones give kernel density estimates."""
    eta_refit: bool = False
    """Estimate eta (27) at every iteration instead of once."""
    constrained: bool = False
    """Scale the memberships to sum 1 (49). The order of the objects does not change."""
    tol: float = 1e-5
    stop: Literal["mean", "sum"] = "mean"
    """What is compared with `tol`: the mean change of the memberships, or their sum as in F10's table I."""
    max_iter: int = 300

    def __post_init__(self) -> None:
        if self.width is not None and self.width != "auto" and not _is_positive(self.width):
            raise InputError(f"a width is a number above 0, auto, or none, not {shown(self.width)}")
        if not _is_positive(self.spread_scale):
            raise InputError(f"spread_scale is a number above 0, not {shown(self.spread_scale)}")
        if self.stop not in ("mean", "sum"):
            raise InputError(f"stop is mean or sum, not {shown(self.stop)!r}")
        tol, most = _number(self.tol), _number(self.max_iter)
        if not tol >= 0:
            raise InputError(f"tol is a number of at least 0, not {shown(self.tol)}")
        if not (most >= 1 and most % 1 == 0):
            raise InputError(f"max_iter is a whole number of at least 1, not {shown(self.max_iter)}")


def _number(value: Any) -> float:
    """Return a number as it is, and NaN for anything else."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if number else float("nan")


def _is_positive(value: Any) -> bool:
    return 0 < _number(value) < float("inf")


@dataclass(frozen=True)
class Scale:
    """What nearest neighbours say of widths; distances are square roots of D."""

    nearest: float
    """The smallest distance above 0 between an object and its nearest neighbour."""
    typical: float
    """The 0.9-quantile of the distances to the nearest neighbour: nine objects in ten have one nearer."""
    largest: float
    """A bound of all distances."""

    @property
    def width(self) -> float:
        """The width for "auto": `typical`, so that nearly every object has a neighbour within the kernel."""
        return self.typical

    @property
    def usable(self) -> tuple[float, float]:
        """Widths below the first see no neighbours, widths above the second see all objects as equal."""
        return self.nearest / 4, 10 * self.largest


@dataclass(frozen=True, eq=False)
class Typicality:
    """The result of one run: how typical every object is."""

    run: OneClassRun
    """With the width that was used."""
    log_typicality: Float
    """log u, (n,): at most 0; it does not underflow."""
    weights: Float
    """The centre v: weights of the objects, (n,), sum 1. `log_typicality` are the distances to it."""
    half: float
    """v'D v / 2 of the squared distances D in kernel space."""
    eta: float
    converged: bool
    n_iter: int
    history: tuple[float, ...]
    """The change of the memberships in every iteration, as it is compared with `tol`."""
    negative_distances: int = 0
    """Squared distances below zero that were set to zero: the matrix is not Euclidean, or the kernel not definite."""

    @property
    def typicality(self) -> Float:
        """The memberships u, (n,), from 0 to 1."""
        u: Float = np.exp(self.log_typicality)
        return u

    @property
    def kernel_sums(self) -> Float:
        """(K v)_h of every object, for a Gaussian kernel: a density with the weights v (31)."""
        sums: Float = self.kernel_sum_of(self.log_typicality)
        return sums

    def kernel_sum_of(self, log_typicality: Any) -> Any:
        """Return (K v)(x) of a point of this log typicality: d = 2 - 2 (K v)(x) - half."""
        return (2 - self.half + self.eta * (log_typicality - self._log_scale)) / 2

    @property
    def density(self) -> Float:
        """f = u - u(far) (33), (n,), far a point away from all objects. Not a probability: its integral is not 1."""
        if self.run.width is None:
            raise InputError("a density needs a width: without one, no point is away from all objects")
        far = np.exp(self._log_scale - (2 - self.half) / self.eta)
        f: Float = self.typicality - far
        return f

    @property
    def _log_scale(self) -> float:
        """The logarithm of what unconstrained memberships are multiplied by."""
        return -self._log_sum if self.run.constrained else 0.0

    _log_sum: float = 0.0
    """log sum u of the unconstrained memberships; of constrained runs only."""

    def outliers(self, reject: float | Literal["auto"] = "auto") -> Cut:
        """Return the objects that are rejected: the `reject` n of lowest typicality, or those far below the others.

        Of objects with equal typicality at the cut, those later in the matrix are rejected first. "auto" rejects as
        many as have a density of other objects, (K v)_h - v_h, that is less than a tenth of its first quartile and, in
        logarithms, more than three interquartile ranges below it; without a width, as have a log typicality that is
        more than three interquartile ranges below its first quartile. Cost: no scan.
        """
        log_u = self.log_typicality
        order = np.lexsort((-np.arange(len(log_u)), log_u))
        if isinstance(reject, str):
            score, least = log_u, 0.0
            if self.run.width is not None:
                score = np.log(np.maximum(self.kernel_sums - self.weights, ALONE * self.weights))
                least = np.log(10)
            low, high = np.quantile(score, [0.25, 0.75])
            count = min(int((score < low - max(FAR * (high - low), least)).sum()), len(log_u) - 1)
        else:
            count = rejected_count(reject, len(log_u))
        rejected = np.zeros(len(log_u), dtype=bool)
        rejected[order[:count]] = True
        inside, outside = log_u[order[count]], log_u[order[count - 1]] if count else -np.inf
        threshold = (inside + outside) / 2 if count else np.nextafter(inside, -np.inf)
        return Cut(float(threshold), rejected, order)

    def model(self, relation: Relation, threshold: float | None = None) -> Model:
        """Return what predicts the typicality of new objects from their rows (28); see `Model.score_samples`."""
        source, beta, half = relation.matrix, relation.beta, self.half
        steps = relation.view.steps
        if self.run.width is not None:  # a spread is part of what the kernel sees
            steps = (*steps, *((("spread", beta),) if beta else ()), ("kernel-distance", float(self.run.width)))
            beta = 0.0
        half -= beta / 2 * (1 - float(self.weights @ self.weights))
        own = source.diagonal
        return Model(
            "pcm2", self.weights[None], np.array([half]), source.kind, np.asarray(source.ids),
            beta=beta, eta=np.array([self.eta]), steps=steps,
            diagonal=None if own is None else np.asarray(own, dtype=np.float64), has_terms=bool(relation.terms),
            threshold=None if threshold is None else threshold - self._log_scale,
        )  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Return plain values for a table."""
        u = self.typicality
        return {
            "width": self.run.width, "spread_scale": self.run.spread_scale, "eta": self.eta,
            "converged": self.converged, "n_iter": self.n_iter, "typicality_min": float(u.min()),
            "typicality_median": float(np.median(u)), "typicality_max": float(u.max()),
            "negative_distances": self.negative_distances,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Cut:
    """The objects above and below a threshold of typicality (36)."""

    threshold: float
    """log alpha, midway between the log typicalities of the last rejected and the first kept object."""
    rejected: Mask
    """(n,)"""
    order: NDArray[np.intp]
    """Objects by increasing typicality."""

    @property
    def alpha(self) -> float:
        """The threshold as a typicality."""
        return float(np.exp(self.threshold))

    @property
    def ranks(self) -> NDArray[np.intp]:
        """The rank of every object: 1 is the least typical."""
        ranks = np.empty(len(self.order), dtype=np.intp)
        ranks[self.order] = np.arange(1, len(self.order) + 1)
        return ranks


def rejected_count(reject: float, n: int) -> int:
    """Return the number of objects to reject for a share of them above 0 and at most 0.5.

    >>> rejected_count(0.1, 290), rejected_count(0.05, 10)
    (29, 1)
    """
    if not 0 < _number(reject) <= 0.5:
        raise InputError(f"the share of objects to reject is above 0 and at most 0.5, or auto, not {shown(reject)}")
    return max(1, min(n - 1, int(np.ceil(float(reject) * n - 1e-9))))


@dataclass(frozen=True, eq=False)
class OneClass:
    """The result of `one_class`."""

    typicalities: tuple[Typicality, ...]
    """One for each run, in the order in which they were given; of an automatic width the middle of its ladder."""
    ladders: tuple[tuple[Typicality, ...], ...]
    """For each run, the results at the widths of its ladder; empty where the width was given."""
    scale: Scale | None
    """Of the nearest neighbours, where a width was automatic."""
    scans: int
    seconds: float
    relation: Relation = field(repr=False)

    def __repr__(self) -> str:
        n = self.relation.n_objects
        return f"<OneClass: {count_text(n, 'object')}, {count_text(len(self.typicalities), 'run')}, {self.scans} scans>"

    @property
    def best(self) -> Typicality:
        """The only result; raise if there are several."""
        if len(self.typicalities) > 1:
            raise InputError(f"there are {len(self.typicalities)} results: choose one of `typicalities`")
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

    Cost: as many scans as the slowest run has iterations, typically 10 to 30, and one before them for an automatic
    width. 40 n bytes for each run, and the columns of a scan.
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
        raise InputError("there is no run: give at least one OneClassRun")
    if isinstance(matrix, Relation) and kind is not None:
        raise InputError("a relation knows its kind; leave kind out")
    found = matrix if isinstance(matrix, Relation) else relation(matrix, kind=kind)
    steps = found.view.steps
    if steps and steps[-1][0] == "gaussian" and not (found.beta or found.terms):
        found = Relation(found.matrix, replace(found.view, steps=steps[:-1]))
        if any(run.width not in ("auto", None) for run in listed):
            raise InputError("the relation is a Gaussian kernel already: leave width out, or give the matrix itself")
        listed = [replace(run, width=float(steps[-1][1])) for run in listed]  # type: ignore[arg-type]
    if found.diagonal().any():
        raise InputError("objects have a value other than 0 to themselves in this relation; give the matrix itself")
    if is_similarity(found.matrix.kind):
        listed = [replace(run, width=None) if run.width == "auto" else run for run in listed]
    if any(run.width is not None for run in listed) and found.terms:
        found.gaussian(1.0)  # raises: a kernel cannot follow an added term
    return PreparedOneClass(found, listed, memory)


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
            known = [{name: getattr(run, name) for name in OneClassRun.__dataclass_fields__} for run in runs]
            return {"relation": relation.identity(), "run": known}

        with checkpoint_writer(checkpoint, "outliers", about) as keep:
            scale = self._scale(keep) if self.needs_scale else None
            listed = [(k, run) for k, one in enumerate(runs) for run in _rungs(one, scale)]
            found = self._iterated([run for _, run in listed], keep)
            scans, seconds = keep.scans, keep.seconds
        if equal:
            warnings.warn(DasrelWarning("all objects are equal: every typicality is 1"), stacklevel=4)
        self._check(found)
        by_run: list[list[Typicality]] = [[] for _ in runs]
        for (k, _), one in zip(listed, found, strict=True):
            by_run[k].append(one)
        chosen = [one[CHOSEN] if len(one) > 1 else one[0] for one in by_run]
        ladders = tuple(tuple(one) if len(one) > 1 else () for one in by_run)
        return OneClass(tuple(chosen), ladders, scale, scans, seconds, relation)

    @property
    def needs_scale(self) -> bool:
        """Whether a width is automatic."""
        return any(run.width == "auto" for run in self.runs)

    @property
    def columns(self) -> list[float | None]:
        """The widths of all columns; of automatic ones their multiples of the scale."""
        return [run.width for one in self.runs for run in _rungs(one, None)]  # type: ignore[misc]

    def split(self) -> list[list[int]]:
        """Return the columns of each bundle, as many as fit into memory together."""
        return split_columns(self.relation, self.columns, limits.memory_limit(self.memory))

    def _scale(self, keep: CheckpointWriter) -> Scale:
        stored = keep.result("scale")
        if stored is None:
            progress.current().say("nearest neighbours")
            stored = vars(scale_of(self.relation, memory=self.memory))
            keep.finish("scale", stored)
        return Scale(**stored)

    def _iterated(self, runs: list[OneClassRun], keep: CheckpointWriter) -> list[Typicality]:
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
        done = {one["index"]: Column.unpacked(one, runs[one["index"]]) for one in state["done"]}
        for number in range(state["bundle"], len(bundles)):
            stored = state["columns"] if number == state["bundle"] else None
            active = [Column(k, runs[k]) for k in bundles[number]]
            if stored is not None:
                active = [Column.unpacked(one, runs[one["index"]]) for one in stored]

            def packed(number: int = number) -> dict[str, Any]:
                moving = [one.packed() for one in active if not one.ended]  # noqa: B023 - called at once
                return {"bundle": number, "columns": moving, "done": [one.packed() for one in done.values()]}

            def after(column: Column) -> None:
                done[column.index] = column

            iterate(
                relation, active, memory=memory, deliver=after, on_step=lambda: keep.step("iterate", packed),
                check=lambda first: check_widths(relation, first, memory=self.memory),
            )  # fmt: skip
        return [done[k].result() for k in range(len(runs))]

    def _check(self, found: Sequence[Typicality]) -> None:
        gone = [one.run for one in found if not one.typicality.max() > 0]
        if gone:
            scales = some(dict.fromkeys(f"{run.spread_scale:g}" for run in gone))
            raise InputError(
                f"every typicality underflows at spread_scale {scales}",
                remedy="say a larger {spread_scale=NUMBER}; 1 is usual",
            )
        shrunk = [one for one in found if one.eta < 1e-12 and one.log_typicality.min() < -1e6]
        if shrunk:
            warnings.warn(
                DasrelWarning(
                    f"the cluster has shrunk to {count_text(int((shrunk[0].typicality > 0.5).sum()), 'object')} at"
                    f" spread_scale {shrunk[0].run.spread_scale:g}",
                    remedy="say a larger {spread_scale=NUMBER}, or estimate the width once, without eta_refit",
                ),
                stacklevel=5,
            )
        left = [one for one in found if not one.converged]
        if left:
            warnings.warn(
                DasrelWarning(
                    f"{len(left)} of {count_text(len(found), 'run')} did not converge in"
                    f" {count_text(left[0].n_iter, 'iteration')}",
                    remedy="raise {max_iter} or {tol}",
                ),
                stacklevel=5,
            )
        negative = [one for one in found if one.negative_distances]
        if negative:
            warnings.warn(
                DasrelWarning(
                    f"{negative[0].negative_distances:,} squared distances to the centre were negative and set to 0"
                    f" ({len(negative)} of {count_text(len(found), 'run')}): the matrix is not Euclidean",
                    remedy="say {euclideanize=spread} to make it so",
                ),
                stacklevel=5,
            )


def _rungs(run: OneClassRun, scale: Scale | None) -> list[OneClassRun]:
    """Return the run at each width of its ladder, or the run itself."""
    if run.width != "auto":
        return [run]
    base = 1.0 if scale is None else scale.width
    return [replace(run, width=factor * base) for factor in LADDER]


def scale_of(relation: Relation, *, memory: int | str | None = None) -> Scale:
    """Measure the distances of objects to their nearest neighbours. Cost: one scan."""
    squared = nearest_neighbours(relation, memory=memory).squared[:, 0]
    nearest = np.sqrt(np.maximum(squared, 0.0))
    positive = nearest[nearest > 0]
    largest = float(np.sqrt(relation.largest()))
    if not positive.size:  # each object has a copy: the distances to others are not known, but bounded
        value = largest or 1.0
        return Scale(value, value / 2, value)
    typical = float(np.quantile(nearest, 0.9))
    return Scale(float(positive.min()), typical if typical > 0 else float(positive.min()), largest)


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
            self.eta = self.run.spread_scale * float(v @ d)
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

    def result(self) -> Typicality:
        """Return the result of a run that has ended."""
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
            tuple(self.history), self.negative, _log_sum=log_sum,
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
    active = [one for one in columns if not one.ended]
    rounding = n * float(np.finfo(dtype).eps)
    memory = max(1, memory - COLUMN_BYTES * n * len(columns))
    shape: list[tuple[float | None, int]] = []
    while active:
        number = max(one.n_iter for one in active) + 1
        most = max(one.run.max_iter for one in active)
        progress.current().say(f"iteration {number} of at most {most}, {count_text(len(active), 'run')} active")
        groups: dict[Any, dict[Any, list[Column]]] = {}  # by width, then by what is multiplied
        for one in active:
            same = ("first", id(one.members)) if one.n_iter == 0 else id(one)
            groups.setdefault(one.run.width, {}).setdefault(same, []).append(one)
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
            products = LeftProducts([(_kernel(relation, width), k) for width, k in wanted], memory=memory)
        found = products.run(stacked)
        del stacked
        if all(one.n_iter == 0 for one in active):
            check({width: Y[0] for width, Y in zip(groups, found, strict=True) if width is not None})
        for (width, several), Y in zip(groups.items(), found, strict=True):
            scale = 1.0 if width is not None else relation.largest()
            for row, same_columns in zip(Y, several.values(), strict=True):
                for one in same_columns:
                    one.advance(row, rounding * scale)
                    if one.ended:
                        deliver(one)
        del found
        active = [one for one in active if not one.ended]
        if active:
            on_step()


def _kernel(relation: Relation, width: float | None) -> Relation:
    return relation if width is None else relation.gaussian(width)


def split_columns(relation: Relation, widths: Sequence[float | None], memory: int) -> list[list[int]]:
    """Return bundles of columns, in order, as many of these widths as fit into memory together. Cost: none."""
    source: Any = relation.matrix
    n = relation.n_objects

    def fits(some: list[int]) -> bool:
        counted: dict[float | None, int] = {}
        for k in some:
            counted[widths[k]] = counted.get(widths[k], 0) + 1
        shape = product_shape(source, [(_kernel(relation, width).view, count) for width, count in counted.items()])
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


SEEN = 1e-4
"""The least that the kernel of equal weights must differ from that of separate, or of equal, objects."""


def check_widths(relation: Relation, first: dict[float, Float], *, memory: int | str | None = None) -> None:
    """Raise if a width is so small that no object sees another, or so large that all are equal.

    Parameters
    ----------
    first
        For each width, K v of equal weights 1/n.

    Cost: no scan; where it raises, one, to name usable widths.
    """
    n = relation.n_objects
    if relation.largest() == 0:
        return
    small = [width for width, Y in first.items() if n * Y.max() - 1 < SEEN]
    large = [width for width, Y in first.items() if 1 - Y.min() < SEEN**2]
    if not (small or large):
        return
    low, high = scale_of(relation, memory=memory).usable
    wrong = [*(f"{w:g} (no object sees another)" for w in small), *(f"{w:g} (all objects look equal)" for w in large)]
    raise InputError(
        f"{'a width' if len(wrong) == 1 else 'widths'} cannot be used: {some(wrong)}",
        remedy=f"say {{width}} from {low:.3g} to {high:.3g}, or auto",
    )
