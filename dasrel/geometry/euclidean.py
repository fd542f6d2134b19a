"""Is a matrix Euclidean, and what makes it so: `spectrum` and `euclideanize`.

D is Euclidean if and only if W(D) = -1/2 P D P, P the centring projection, has no negative eigenvalue. `spectrum`
computes the eigenvalues at both ends. `euclideanize` computes D + gamma Delta with the smallest gamma that makes it
Euclidean (K14), as a relation; no matrix is written.

    method         Delta                                            parameter
    spread         1 off the diagonal                               none; gamma = beta = -2 lambda_1
    ultrametric    single-linkage heights, squared                  none
    power          D^a                                              0 < a <= 1
    exponential    (1 - exp(-a sqrt(D)))^2                          a > 0
    log            log2(1 + sqrt(D)^a)^2                            0 < a <= 1

gamma = -theta, theta the lowest eigenvalue of W(D) x = theta W(Delta) x among centred vectors. A search ends with theta
and a residual, and gamma is -(theta - residual): a little more than needed, never less.

The ultrametric has an exact solve, so its theta comes from Lanczos in the inner product of W(Delta). The elementwise
Deltas have none; block Davidson needs only products with them. Exact duplicates have the same rows in D and in Delta
and count as one object. Objects at dissimilarity 0 with different rows make every gamma too small, and are refused.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dasrel.engine.checkpoint import Checkpoint, checkpoint_writer
from dasrel.engine.relation import Relation, product_shape, relation
from dasrel.engine.scan import scan_memory
from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.geometry import gamma_search
from dasrel.geometry.gamma_search import SearchContext, n_eps, search_shift
from dasrel.geometry.lanczos import LanczosResult, LanczosState, Search, estimate_search, lanczos
from dasrel.geometry.options import EuclideanizeParameters, SpectrumParameters
from dasrel.geometry.tree import Tree, forest_consumer, tree_fault, ultrametric
from dasrel.names import METHODS
from dasrel.store.matrix import open_matrix
from dasrel.store.tile_files import StoreLike
from dasrel.util import PathLike, html, progress
from dasrel.util.archives import ArchiveFormat, load_archive, save_archive
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.text import count_text, shown, some

FORMAT = ArchiveFormat(
    "Euclideanisation", "euclidean_version", 1, (), ("edges", "weights", "largest"),
    source="; `dasrel euclideanize` makes one", remedy="make it again",
)  # fmt: skip
TYPICAL_EUCLIDEAN = {"spread": 11, "ultrametric": 13, "power": 61, "exponential": 62, "log": 46}
"""Scans of `euclideanize`, medians over iris and digits (largest coordinate difference), wine (city block), digits
(Bray-Curtis), cat cortex and proteins: 7 to 20 for spread, 9 to 17 for ultrametric, 28 to 145 for the others. Noise
takes more: 36 for an eigenvalue alone."""
SPECTRUM_SCANS = 9
"""Scans of `spectrum`, the median over the same data: 5 to 17; noise takes 40."""
DROP = 2 / 3
"""An eigenvalue of this share of the one before, or less, is a drop."""
_ROWS = 8
"""Eigenvalues of each end that a notebook lists."""
EUCLIDEAN_BUDGET = 200
"""Default limit of the scans of `euclideanize`."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of W(D) on centred vectors, and what follows from them; returned by `spectrum`."""

    n_objects: int
    lowest: tuple[float, ...]
    """The lowest eigenvalues, ascending. Only the first has converged to `tol`."""
    lowest_residuals: tuple[float, ...]
    """An eigenvalue lies within this distance of each of them."""
    highest: tuple[float, ...]
    """The highest eigenvalues, descending."""
    highest_residuals: tuple[float, ...]
    rounding: float
    """n eps max|D|, eps of the stored numbers: eigenvalues above minus this count as not negative."""
    is_euclidean: bool | None
    """Whether D is a matrix of squared distances between points; None if that is not known after the last scan."""
    spread: float
    """A safe beta: D + beta off the diagonal is Euclidean. -2 (lowest - residual), or 0 if D is Euclidean."""
    entropy_threshold: float
    """lambda_c = 2 lambda_max / n of the matrix as it is: fcm2 with a larger entropy weight converges to U = 1/c."""
    n_negative: int
    """Negative eigenvalues found; there may be more, not fewer."""
    scans: int
    converged: bool
    stopped: str
    """Why the search ended: "converged", "exhausted" (values are exact), "rounding", "scans" or "memory"."""
    history: tuple[tuple[float, ...], ...]
    """After each scan: the lowest value and its residual, the highest and its residual."""
    negative_share: float = 0.0
    """Sum of the sizes of negative eigenvalues over that of all, estimated by the quadrature of the Lanczos search."""

    @property
    def standing_out(self) -> int:
        """Highest eigenvalues before the largest relative drop among those found; 0 if none is to 2/3 or less."""
        high = [value for value in self.highest if value > self.rounding]
        drops = [after / before for before, after in pairwise(high)]
        return drops.index(min(drops)) + 1 if drops and min(drops) <= DROP else 0

    def __repr__(self) -> str:
        ends = f"eigenvalues {self.lowest[0]:.6g} to {self.highest[0]:.6g}"
        objects = count_text(self.n_objects, "object")
        answer = {True: "Euclidean", False: "not Euclidean", None: "not known whether Euclidean"}[self.is_euclidean]
        return f"<Spectrum of {objects}: {answer}, {ends}, {count_text(self.scans, 'scan')}>"

    def _repr_html_(self) -> str:
        top = max(abs(self.lowest[0]), abs(self.highest[0])) or 1.0
        rows = [
            (end, f"{value:.6g}", f"{residual:.2g}", html.bar(abs(value) / top))
            for end, values, residuals in (
                ("lowest", self.lowest, self.lowest_residuals),
                ("highest", self.highest, self.highest_residuals),
            )
            for value, residual in zip(values[:_ROWS], residuals, strict=False)
        ]
        facts = [
            ("objects", f"{self.n_objects:,}"),
            ("Euclidean", {True: "yes", False: "no", None: "not known"}[self.is_euclidean]),
            *([("negative", f"at least {count_text(self.n_negative, 'eigenvalue')}")] if self.n_negative else []),
            *([("spread", f"{self.spread:.6g} added to all pairs makes it Euclidean")] if self.spread else []),
            ("entropy threshold", f"{self.entropy_threshold:.6g}: above it all clusters of fcm2 are equal"),
            ("scans", f"{self.scans}, {self.stopped}"),
        ]
        return html.card("Spectrum", facts, html.table(("end", "eigenvalue", "residual", "size"), rows))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return asdict(self)


def spectrum(
    matrix: Any,
    *,
    n_values: int = 8,
    tol: float = 1e-3,
    block: int = 8,
    max_scans: int = 100,
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Spectrum:
    """Compute the lowest and highest eigenvalues of W(D), for a matrix or a relation.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation.
    n_values
        Number of eigenvalues reported at each end.
    tol
        The search ends when the residuals of the lowest and of the highest eigenvalue are below this fraction of them,
        or below rounding, and both values are stable.
    block, max_scans
        Vectors multiplied in each scan, and the limit of scans. A search that reaches the limit warns and returns its
        best values: the lowest eigenvalue is at most `lowest[0]`, and the spread allows for its residual.
    memory
        Such as "2GiB", by default half of the machine's: half for the basis, half for a scan.
    checkpoint
        Where to save the basis between scans, and to resume from to the same bits.

    Cost: a scan per step; 5 to 15 for matrices with structure, 40 and more for noise. Memory: 8 n block bytes per step.
    """
    options = SpectrumParameters(n_values=n_values, tol=tol, max_scans=max_scans, memory=memory)
    return prepare_spectrum(matrix, options, block=block, kind=kind).run(checkpoint)


def prepare_spectrum(
    matrix: Any, options: SpectrumParameters | None = None, *, block: int = 8, kind: str | None = None
) -> SpectrumJob:
    """Check the arguments of `spectrum`. Cost: no scan."""
    options = options or SpectrumParameters()
    given = as_relation(matrix, kind)
    if options.n_values < 1:
        raise InputError(f"n_values is at least 1, not {options.n_values}")
    if given.diagonal().any():
        raise InputError("the relation has a diagonal that is not zero, as kernels do: it is no dissimilarity")
    limit = memory_limit(options.memory) // 2
    rounding = n_eps(given) * given.largest()
    search = Search(
        lowest=1, highest=1, tol=options.tol, floor=rounding, block=block, max_scans=options.max_scans, memory=limit
    )
    return SpectrumJob(given, options.n_values, search, limit)


@dataclass(frozen=True)
class SpectrumJob:
    """A spectrum with its arguments checked."""

    given: Relation
    n_values: int
    search: Search
    memory: int
    """Limit of a scan; the search has the same limit for its basis."""

    def run(self, checkpoint: Checkpoint | None) -> Spectrum:
        """Search the eigenvalues, and save the search between scans."""
        search = self.search

        def options() -> dict[str, Any]:
            named = {"tol": search.tol, "block": search.block, "max_scans": search.max_scans}
            return {"relation": self.given.identity(), **named}

        with checkpoint_writer(checkpoint, "spectrum", options) as writer:
            result = lanczos(
                lambda V: self.given.gram(V, memory=self.memory),
                self.given.n_objects,
                search=search,
                state=LanczosState.unpacked(writer.state("lanczos")),
                on_step=lambda state: writer.step("lanczos", state.packed),
            )
        return _described(result, self.given.n_objects, search, min(self.n_values, len(result.ritz)))

    def cost(self, picture: PathLike | None = None) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        basis, most = estimate_search(self.search, self.given.n_objects, metric=False)
        outputs = () if picture is None else (Output(str(picture), 100_000),)
        scans = Range(min(2, most), min(SPECTRUM_SCANS, most), most)
        needed = basis + product_memory(self.given, self.search.block, self.memory)
        total = self.given.matrix.layout.total_bytes
        return Cost("spectrum", self.given.n_objects, scans, total, needed, outputs)


def _described(result: LanczosResult, n: int, search: Search, count: int) -> Spectrum:
    """Return what follows from the eigenvalues; warn if they did not converge."""
    value, residual, rounding = float(result.ritz[0]), float(result.ritz_residuals[0]), search.floor
    is_euclidean: bool | None = None
    if value < -rounding:
        is_euclidean = False  # the lowest eigenvalue is at most the lowest Ritz value
    elif result.converged or residual <= rounding:
        is_euclidean = True
    spread = 0.0 if is_euclidean else max(0.0, -2 * (value - residual))
    if not result.converged:
        why, remedy = why_stopped(result.stopped, result.scans)
        problem = (
            f"the spectrum did not converge to tol because {why}: lowest {value:.6g} +- {residual:.2g}, highest"
            f" {result.ritz[-1]:.6g} +- {result.ritz_residuals[-1]:.2g}; a spread of {spread:.6g} allows for that"
        )
        warnings.warn(DasrelWarning(problem, remedy=remedy), stacklevel=4)
    values, residuals = tuple(result.ritz.tolist()), tuple(result.ritz_residuals.tolist())
    return Spectrum(
        n_objects=n, lowest=values[:count], lowest_residuals=residuals[:count], highest=values[::-1][:count],
        highest_residuals=residuals[::-1][:count], rounding=rounding, is_euclidean=is_euclidean, spread=spread,
        entropy_threshold=2 * values[-1] / n, n_negative=int((result.ritz < -rounding).sum()),
        scans=result.scans, converged=result.converged, stopped=result.stopped,
        history=tuple(tuple(row) for row in result.history.tolist()),
        negative_share=_negative_share(result, rounding),
    )  # fmt: skip


def _negative_share(result: LanczosResult, rounding: float) -> float:
    """Return the estimated share of negative eigenvalues in the sum of all sizes."""
    sizes = np.abs(result.ritz) * result.ritz_weights
    total = float(sizes.sum())
    return float(sizes[result.ritz < -rounding].sum()) / total if total > 0 else 0.0


def why_stopped(stopped: str, scans: int) -> tuple[str, str]:
    """Return why a search ended before it converged, and what to do about it."""
    return {
        "scans": (f"{count_text(scans, 'scan was', 'scans were')} not enough", "raise {max_scans} or {tol}"),
        "memory": ("the memory for the basis was full", "raise {memory} or {tol}"),
        "rounding": (
            "the rounding of the stored numbers allows no more",
            "store them with {Writing.dtype=float64}, or raise {tol}",
        ),
    }[stopped]


def as_relation(matrix: Any, kind: str | None) -> Relation:
    """Return a matrix, or an array of this kind, as a relation; a relation as it is. Cost: no scan of a store."""
    return matrix if isinstance(matrix, Relation) else relation(matrix, kind=kind)


def product_memory(given: Relation, columns: int, limit: int) -> int:
    """Return the bytes of a scan that multiplies this many columns; raise `MemoryLimitError` above the limit."""
    return scan_memory(given.matrix, [product_shape(given.matrix, [(given.view, columns)])], limit)


@dataclass(frozen=True, eq=False)
class Euclideanized:
    """D + gamma Delta as a relation, and how it was computed; returned by `euclideanize`."""

    relation: Relation
    """For `cluster`, the estimators, and everything else that takes a relation; products with it are single scans."""
    method: str
    gamma: float
    """0 if the matrix is Euclidean itself."""
    alpha: float | None
    """The parameter of power, exponential and log."""
    beta: float
    """The constant added to all pairs: gamma of the method spread, else 0."""
    lambda_min: float
    """The lowest eigenvalue, from which gamma follows: of W(D) for spread, else of the pencil (W(D), W(Delta))."""
    residual: float
    """Residual of that eigenvalue; gamma allows for it."""
    scans: int
    stress: float
    """Kruskal's stress between D and the result up to scale."""
    ratio: float
    """Sum of gamma Delta over the sum of D: far above 1, the result is mostly Delta."""
    n_negative: int
    """Negative eigenvalues of W(D) found; there may be more, not fewer."""
    merged: int
    """Objects that are exact duplicates of another; 0 for the method spread, for which they are not searched."""
    floored: int
    """Pairs raised to `floor_zeros`."""
    floor_zeros: float | None
    boundary: float | None
    """The parameter up to which Delta is Euclidean, where it was searched."""
    converged: bool
    tree: Tree | None = None
    """The spanning tree behind the ultrametric."""
    given: Relation | None = None
    """The relation that it was made from."""

    def __repr__(self) -> str:
        return f"<Euclideanized by {self.method}: gamma {self.gamma:.6g}, {count_text(self.scans, 'scan')}>"

    def _repr_html_(self) -> str:
        added = "nothing: it was Euclidean" if self.was_euclidean else f"{self.ratio:.3g} of the sum of the matrix"
        facts = [("method", self.method), ("gamma", f"{self.gamma:.6g}"), ("added", added),
                 ("stress", f"{self.stress:.3g}"), ("converged", "yes" if self.converged else "no"),
                 ("scans", f"{self.scans:,}")]  # fmt: skip
        return html.card("Euclideanisation", facts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Euclideanized:
        return self  # immutable, and scikit-learn copies the parameters of estimators

    @property
    def was_euclidean(self) -> bool:
        """Whether the matrix is Euclidean itself, so that gamma is 0."""
        return self.gamma == 0

    def report(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        names = (
            *("method", "gamma", "alpha", "beta", "lambda_min", "residual", "scans", "stress", "ratio", "n_negative"),
            *("merged", "floored", "floor_zeros", "boundary", "converged", "was_euclidean"),
        )
        return {name: getattr(self, name) for name in names}

    def save(self, path: PathLike, *, requested: dict[str, Any] | None = None) -> None:
        """Write a small .npz file, atomically: the report, and the tree of an ultrametric. No pickle.

        `requested`: the options that it was made with, by which `finished_file` recognises it.
        """
        assert self.given is not None
        if self.given.terms:
            raise InputError("a relation with an added term cannot be saved by its numbers")
        about = {
            "matrix": self.given.matrix.fingerprint(), "steps": self.given.view.steps, "spread": self.given.beta,
            **self.report(), **({} if requested is None else {"requested": requested}),
        }  # fmt: skip
        arrays: dict[str, Any] = {}
        if self.tree is not None:
            top = np.array(self.tree.largest)
            arrays = {"edges": self.tree.edges, "weights": self.tree.weights, "largest": top}
        save_archive(path, FORMAT, arrays, about)

    @staticmethod
    def load(path: PathLike, matrix: Any, *, kind: str | None = None) -> Euclideanized:
        """Read a file of `save` for the matrix that it was made from; another one is refused. Cost: no scan."""
        where = shown(path, limit=200)
        parts, about = load_archive(path, FORMAT)
        try:
            steps, beta = about["steps"], float(about["spread"])
            values = {name: about[name] for name in _KEPT}
            wrong = [name for name, kinds in _KEPT.items() if not isinstance(values[name], kinds)]
            if wrong or values["method"] not in METHODS:
                raise ValueError(f"invalid {some(wrong or ['method'])}")
            if parts and len(parts) < len(FORMAT.optional):
                raise ValueError(f"a tree without {some([name for name in FORMAT.optional if name not in parts])}")
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            raise StoreError(f"{where} is not a dasrel Euclideanisation: {shown(error, limit=200)}") from None
        plain = relation(matrix, kind=kind)
        _check_fingerprint(about.get("matrix"), plain.matrix.fingerprint(), where)
        view = plain.view
        try:
            for step, parameter in steps:
                view = view.then(step, tuple(parameter) if isinstance(parameter, list) else parameter)
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"{where} is damaged: {shown(error, limit=200)}", remedy="make it again") from None
        tree = None
        if parts:
            fault = tree_fault(parts["edges"], parts["weights"], parts["largest"], "squared-distance")
            if fault:
                raise StoreError(f"{where} is damaged (a tree with {fault})", remedy="make it again")
            top, i, j = parts["largest"].tolist()
            tree = Tree(parts["edges"], parts["weights"], (top, int(i), int(j)), "squared-distance", scans=0)
        if (tree is None) == (values["method"] == "ultrametric") or (tree and tree.n_objects != plain.n_objects):
            raise StoreError(f"{where} is damaged: its tree is missing, or does not fit", remedy="make it again")
        given = replace(plain, view=view, beta=beta)
        return Euclideanized(relation=given, tree=tree, given=given, **values)._composed()

    def on(self, matrix: Any, *, kind: str | None = None) -> Euclideanized:
        """Return the same for the matrix opened again; another matrix is refused. Cost: no scan."""
        assert self.given is not None
        plain = relation(matrix, kind=kind)
        _check_fingerprint(self.given.matrix.fingerprint(), plain.matrix.fingerprint(), "the Euclideanisation given")
        return replace(self, given=replace(self.given, matrix=plain.matrix))._composed()

    def _composed(self) -> Euclideanized:
        assert self.given is not None
        base = self.given if self.floor_zeros is None else self.given.floor(self.floor_zeros)
        delta = None if self.tree is None else ultrametric(self.tree)
        return replace(self, relation=_compose(base, self.method, self.gamma, self.alpha, delta))


def finished_file(path: PathLike, matrix: Any, requested: dict[str, Any]) -> Euclideanized | None:
    """Return the Euclideanisation of a file if it is of this matrix and was made with these options, or None.

    A process that was killed after it had written the file finds it here when it is resumed. Cost: no scan.
    """
    try:
        about = load_archive(path, FORMAT)[1]
        if about.get("requested") != json.loads(json.dumps(requested)):
            return None
        result = Euclideanized.load(path, matrix)
    except StoreError:
        return None
    progress.current().found_complete(str(path))
    return result


_KEPT: dict[str, Any] = {
    **dict.fromkeys(("gamma", "beta", "lambda_min", "residual", "stress", "ratio"), (int, float)),
    **dict.fromkeys(("alpha", "floor_zeros", "boundary"), (int, float, type(None))),
    **dict.fromkeys(("scans", "n_negative", "merged", "floored"), int),
    "method": str,
    "converged": bool,
}
"""The values in a file, and their types."""


def euclideanize(
    matrix: Any,
    *,
    method: str = "ultrametric",
    alpha: float | None = None,
    tol: float = 1e-4,
    floor_zeros: float | None = None,
    max_scans: int = 200,
    memory: int | str | None = None,
    kind: str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Euclideanized:
    """Compute the smallest change, of one of five kinds, that makes a matrix Euclidean.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation without added terms.
    method
        "spread", "ultrametric", "power", "exponential" or "log".
    alpha
        Parameter of the last three; if not given, the one for which Delta is nearest to D and still Euclidean, less a
        margin of 10 %. One for which Delta is not Euclidean is refused, and the message names the boundary.
    tol
        Residual of the eigenvalue as a fraction of it; gamma is larger than needed by this fraction.
    floor_zeros
        Squared dissimilarities below this number (above 0) are raised to it first. Without it, objects at
        dissimilarity 0 that are no duplicates are an error, because then no gamma is large enough.
    max_scans
        Limit of scans. A search that reaches it warns, and gamma allows for the residual.
    memory
        Such as "2GiB", by default half of the machine's: half for the basis, half for a scan.
    checkpoint
        Where to save the searches between scans, and to resume from to the same bits.

    Cost: one scan per step of the eigenvalue search, 5 to 40; one for the spanning tree (not for spread), one for the
    stress; for power, exponential and log 20 to 100 more to find alpha. Memory: 8 n block bytes per step, or three
    times that.
    """
    options = EuclideanizeParameters(
        method=method, alpha=alpha, floor_zeros=floor_zeros, tol=tol, max_scans=max_scans, memory=memory
    )
    return prepare_euclideanize(matrix, options, kind=kind).run(checkpoint)


def prepare_euclideanize(matrix: Any, options: EuclideanizeParameters, *, kind: str | None = None) -> EuclideanizeJob:
    """Check the matrix of `euclideanize`; the options are checked. Cost: no scan."""
    given = as_relation(matrix, kind)
    if given.terms or given.diagonal().any():
        raise InputError(
            "a relation with an added term, or a kernel view, cannot be Euclideanised", remedy="give the matrix"
        )
    return EuclideanizeJob(
        given, options.method, options.alpha, options.tol, options.floor_zeros, options.max_scans,
        memory_limit(options.memory) // 2,
    )  # fmt: skip


@dataclass(frozen=True)
class EuclideanizeJob:
    """A Euclideanisation with its arguments checked."""

    given: Relation
    method: str
    alpha: float | None
    tol: float
    floor_zeros: float | None
    max_scans: int
    memory: int
    """Limit of a scan; the searches have the same limit for their bases."""

    def run(self, checkpoint: Checkpoint | None) -> Euclideanized:
        """Search gamma, and alpha where it is not given, and save the searches between scans."""
        given, method, floor_zeros = self.given, self.method, self.floor_zeros
        base = given if floor_zeros is None else given.floor(floor_zeros)
        with checkpoint_writer(checkpoint, "euclideanize", self._options) as writer:
            rounding = n_eps(base) * base.largest()
            context = SearchContext(base, method, self.tol, self.max_scans, self.memory, rounding, writer)
            shift = search_shift(context, self.alpha)
            delta = shift.delta if method == "ultrametric" else None
            composed = _compose(base, method, shift.gamma, shift.alpha, delta)
            saved = writer.result("sums")
            if saved is None:
                bound = -1.0 if floor_zeros is None else math.nextafter(floor_zeros, 0.0)
                sums = gamma_search.compare(base, shift.delta, bound=bound, memory=self.memory)
                writer.finish("sums", asdict(sums), last=True)
            else:
                sums = gamma_search.Sums(**saved)
            scans = writer.scans
        if not shift.converged:
            why, remedy = why_stopped(shift.stopped, self.max_scans)
            problem = (
                f"gamma of the method {method} did not converge to tol because {why}: eigenvalue {shift.value:.6g} +-"
                f" {shift.residual:.2g}; gamma {shift.gamma:.6g} allows for that"
            )
            warnings.warn(DasrelWarning(problem, remedy=remedy), stacklevel=3)
        return Euclideanized(
            composed, method, shift.gamma, shift.alpha, shift.gamma if method == "spread" else 0.0, shift.value,
            shift.residual, scans, sums.stress(shift.gamma), sums.ratio(shift.gamma), shift.n_negative,
            shift.merged, 0 if floor_zeros is None else sums.low, floor_zeros, shift.boundary, shift.converged,
            shift.tree, given,
        )  # fmt: skip

    def _options(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with."""
        names = ("method", "alpha", "tol", "floor_zeros", "max_scans")
        return {"relation": self.given.identity(), **{name: getattr(self, name) for name in names}}

    def cost(self, out: PathLike) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        given, fits = self.given, self.method != "spread"
        search = Search(tol=self.tol, max_scans=self.max_scans, vectors=fits, memory=self.memory)
        basis, _ = estimate_search(search, given.n_objects, metric=fits)
        needed = basis + product_memory(given, search.block, self.memory)
        if fits:
            needed = max(needed, scan_memory(given.matrix, [forest_consumer(given.matrix)], self.memory))
        output = Output(str(out), 24 * given.n_objects if self.method == "ultrametric" else 2_000)
        scans, total = euclidean_scans(self.method, self.max_scans), given.matrix.layout.total_bytes
        return Cost("euclideanize", given.n_objects, scans, total, needed, (output,), {"method": self.method})


def named_relation(store: StoreLike, name: str) -> Relation:
    """Return the relation that `--relation` names: "plain", or a file of `dasrel euclideanize`. Cost: no scan."""
    matrix = open_matrix(store)
    return relation(matrix) if name == "plain" else Euclideanized.load(name, matrix).relation


def as_euclidean(
    matrix: Any,
    named: Any,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Euclideanized | None:
    """Return the Euclideanisation that `euclideanize=` names for a matrix.

    Parameters
    ----------
    named
        One of the methods, the path of a file that `Euclideanized.save` wrote, a `Euclideanized`, or None.

    Cost: that of `euclideanize` for a method, else no scan.
    """
    if named is None:
        return None
    if isinstance(named, Euclideanized):
        return named.on(matrix, kind=kind)
    if is_method(named):
        return euclideanize(matrix, method=named, memory=memory, kind=kind, checkpoint=checkpoint)
    if isinstance(named, os.PathLike) or (isinstance(named, str) and named.endswith(".npz")):
        return Euclideanized.load(named, matrix, kind=kind)
    raise InputError(
        f"euclideanize is {shown(named)!r}",
        remedy=f"use one of {', '.join(METHODS)}, or a file (.npz) that `dasrel euclideanize` wrote",
    )


def _check_fingerprint(made_from: Any, now: dict[str, Any], where: str) -> None:
    known = made_from if isinstance(made_from, dict) else {}
    names = {"n_objects": "number of objects", "ids": "ids of the objects (their checksum)", "mean": "mean value"}
    for name, value in now.items():
        if name == "mean" and value is not None and isinstance(known.get(name), (int, float)):
            same = math.isclose(value, known[name], rel_tol=1e-9)  # tiles of another size add up in another order
        else:
            same = known.get(name) == value
        if not same:
            raise InputError(
                f"{where} was made from another matrix: {names.get(name, name)} {shown(known.get(name))} there and"
                f" {shown(value)} here",
                remedy="run `dasrel euclideanize` on this one",
            )


def _compose(base: Relation, method: str, gamma: float, alpha: float | None, delta: Any) -> Relation:
    if gamma == 0:
        return base
    if method == "spread":
        return base.spread(gamma)
    if method == "ultrametric":
        return base.plus(delta, gamma)
    assert alpha is not None
    return base.plus_fit(method, gamma, alpha)


def euclidean_scans(method: str, max_scans: int = EUCLIDEAN_BUDGET) -> Range:
    """Estimate the scans of `euclideanize`: the searches, the tree, the duplicates and the stress."""
    further = {"spread": 1, "ultrametric": 4}.get(method, 15)
    least = 2 if method == "spread" else 3
    return Range(least, min(TYPICAL_EUCLIDEAN[method], max_scans), max_scans + further)


def is_method(euclideanize: Any) -> bool:
    """Return whether `euclideanize=` names a method, not a file or a result."""
    return isinstance(euclideanize, str) and euclideanize in METHODS
