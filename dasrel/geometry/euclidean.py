"""Is the matrix Euclidean, and how to make it so: `spectrum`, `euclideanize`.

The ends of the spectrum of W(D) = -1/2 P D P: is the matrix Euclidean, and if not, what shift makes it so.

Euclideanisation: D + gamma Delta, with the smallest gamma that makes a matrix Euclidean (K14). No matrix is written.

    method         Delta                                            parameter
    spread         1 off the diagonal                               none; gamma = beta = -2 lambda_1
    ultrametric    single-linkage heights, squared                  none
    power          D^a                                              0 < a <= 1
    exponential    (1 - exp(-a sqrt(D)))^2                          a > 0
    log            log2(1 + sqrt(D)^a)^2                            0 < a <= 1

gamma = -theta, theta the lowest eigenvalue of W(D) x = theta W(Delta) x among centred vectors. A search ends with theta
and a residual, and gamma is -(theta - residual): a little more than needed, never less.

The ultrametric has an exact solve, so its theta comes from Lanczos in the inner product of W(Delta). The elementwise
Deltas have none; there `pencil` needs products only. Objects that are exact duplicates stay where they are, in D and in
Delta: they count as one. Objects at dissimilarity 0 with different rows make every gamma too small, and are refused.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dasrel.engine.checkpoint import Checkpoint, checkpoint_writer
from dasrel.engine.relation import Relation, relation, relation as as_relation
from dasrel.engine.scan import scan_memory
from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.geometry import gamma_search
from dasrel.geometry.gamma_search import Result, SearchContext, n_eps, shift
from dasrel.geometry.lanczos import LanczosResult, LanczosState, Search, estimate_search, lanczos
from dasrel.geometry.tree import Tree, forest_consumer, tree_fault, ultrametric
from dasrel.store.matrix import open_matrix
from dasrel.store.tile_files import StoreLike
from dasrel.util.files import ArchiveFormat, load_archive, save_archive
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.text import shown, some
from dasrel.vocabulary import METHODS


def named_relation(store: StoreLike, name: str) -> Relation:
    """What `--relation` means: a file that `dasrel euclideanize` wrote, or the word plain. Cost: no scan."""
    matrix = open_matrix(store)
    return as_relation(matrix) if name == "plain" else Euclideanized.load(name, matrix).relation


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of W(D) on centred vectors, and what follows from them. Made by `spectrum`."""

    n_objects: int
    lowest: tuple[float, ...]
    """The lowest eigenvalues, ascending. The first is as near as was asked for, the others as far as they have come."""
    lowest_residuals: tuple[float, ...]
    """Some eigenvalue lies this near to each of them."""
    highest: tuple[float, ...]
    """The highest, descending."""
    highest_residuals: tuple[float, ...]
    rounding: float
    """n eps max|D|: eigenvalues above minus this count as not negative; eps is that of the stored numbers."""
    is_euclidean: bool | None
    """Whether D can be squared distances between points; None where the scans did not suffice to tell."""
    spread: float
    """A safe beta: D + beta off the diagonal is Euclidean. -2 (lowest - residual), 0 where D is Euclidean already."""
    entropy_threshold: float
    """lambda_c = 2 lambda_max / n, after the spread: fcm2 with an entropy weight above it ends with U = 1/c."""
    n_negative: int
    """Negative eigenvalues seen; there may be more, not fewer."""
    scans: int
    converged: bool
    stopped: str
    """Why the search ended: "converged", "exhausted" (all there is), "rounding", "scans" or "memory"."""
    history: tuple[tuple[float, ...], ...]
    """After each scan: the lowest value and its residual, the highest and its residual."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """The lowest and highest eigenvalues of W(D), for a matrix or a relation.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation.
    n_values
        How many eigenvalues are reported at each end.
    tol
        The search ends when the residuals of the lowest and of the highest are below this fraction of them, or
        below rounding, and both have come to rest.
    block, max_scans
        Vectors multiplied in each scan, and the budget. When it is spent there is a warning, and what is returned is
        the best so far: the lowest eigenvalue is at most `lowest[0]`, and the spread allows for its residual.
    memory
        Such as "2GiB", by default half of the machine's: half for the basis, half for a scan.
    checkpoint
        Writes down the basis between scans, to go on from to the same bits.

    Cost: a scan per step; 5 to 15 for matrices with structure, 40 and more for noise. Memory: 8 n block bytes a step.
    """
    seen = matrix if isinstance(matrix, Relation) else relation(matrix, kind=kind)
    n = seen.n_objects
    if n_values < 1:
        raise InputError(f"n_values is at least 1, not {n_values}")
    if seen.diagonal().any():
        raise InputError("the relation has a diagonal that is not zero, as kernels do: it is no dissimilarity")
    limit = memory_limit(memory)
    rounding = n * float(np.finfo(seen.matrix.dtype).eps) * seen.largest()

    search = Search(lowest=1, highest=1, tol=tol, floor=rounding, block=block, max_scans=max_scans, memory=limit // 2)
    asked = {"tol": tol, "block": block, "max_scans": max_scans}
    with checkpoint_writer(checkpoint, "spectrum", lambda: {"relation": seen.identity(), **asked}) as keep:
        found = lanczos(
            lambda V: seen.gram(V, memory=limit // 2),
            n,
            search=search,
            state=LanczosState.unpacked(keep.state("lanczos")),
            on_step=lambda state: keep.step("lanczos", state.packed),
        )

    return _described(found, n, rounding, min(n_values, len(found.ritz)), max_scans)


def _described(found: LanczosResult, n: int, rounding: float, count: int, max_scans: int) -> Spectrum:
    value, residual = float(found.ritz[0]), float(found.ritz_residuals[0])
    is_euclidean: bool | None = None
    if value < -rounding:
        is_euclidean = False  # an eigenvalue is at least as low as the lowest value
    elif found.converged or residual <= rounding:
        is_euclidean = True
    spread = 0.0 if is_euclidean else max(0.0, -2 * (value - residual))
    if not found.converged:
        told, remedy = _why_not_nearer(found.stopped, found.scans)
        problem = (
            f"the spectrum's ends are less near than asked for, lowest {value:.6g} +- {residual:.2g} and highest"
            f" {found.ritz[-1]:.6g} +- {found.ritz_residuals[-1]:.2g}, because {told}; a spread of {spread:.6g} covers"
            " it"
        )
        warnings.warn(DasrelWarning(problem, remedy=remedy), stacklevel=3)
    values, residuals = tuple(found.ritz.tolist()), tuple(found.ritz_residuals.tolist())
    return Spectrum(
        n_objects=n, lowest=values[:count], lowest_residuals=residuals[:count], highest=values[::-1][:count],
        highest_residuals=residuals[::-1][:count], rounding=rounding, is_euclidean=is_euclidean, spread=spread,
        entropy_threshold=(2 * values[-1] + spread) / n, n_negative=int((found.ritz < -rounding).sum()),
        scans=found.scans, converged=found.converged, stopped=found.stopped,
        history=tuple(tuple(row) for row in found.history.tolist()),
    )  # fmt: skip


FITS = ("power", "exponential", "log")
FILE_VERSION = 1
FORMAT = ArchiveFormat(
    "Euclideanisation", "euclidean_version", FILE_VERSION, (), ("edges", "weights", "largest"),
    source="; `dasrel euclideanize` makes one", remedy="make it again",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Euclideanized:
    """D + gamma Delta as a relation, and how it came about. Made by `euclideanize`."""

    relation: Relation
    """Give it to `cluster`, an estimator, or anything that takes a relation; products with it are single scans."""
    method: str
    gamma: float
    """0 where the matrix is Euclidean already."""
    alpha: float | None
    """The parameter of power, exponential and log."""
    beta: float
    """What is added to all pairs: gamma of the method spread, else 0."""
    lambda_min: float
    """The lowest eigenvalue that gamma comes from: of W(D) for spread, of the pencil (W(D), W(Delta)) else."""
    residual: float
    """Of that eigenvalue; gamma allows for it."""
    scans: int
    stress: float
    """Kruskal's, between D and the result up to scale."""
    ratio: float
    """Sum of gamma Delta over the sum of D: far above 1, what is clustered is mostly Delta."""
    n_negative: int
    """Negative eigenvalues of W(D) seen; there may be more, not fewer."""
    merged: int
    """Objects that are exact duplicates of another; not counted for the method spread, which needs not know."""
    floored: int
    """Pairs raised to `floor_zeros`."""
    floor_zeros: float | None
    boundary: float | None
    """The parameter up to which Delta was seen to be Euclidean, where it was looked for."""
    converged: bool
    tree: Tree | None = None
    """The spanning tree behind the ultrametric."""
    given: Relation | None = None
    """What it was made from."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Euclideanized:
        return self  # it never changes, and scikit-learn copies what an estimator is given

    @property
    def was_euclidean(self) -> bool:
        """Whether there was nothing to do."""
        return self.gamma == 0

    def report(self) -> dict[str, Any]:
        """For JSON."""
        names = (
            *("method", "gamma", "alpha", "beta", "lambda_min", "residual", "scans", "stress", "ratio", "n_negative"),
            *("merged", "floored", "floor_zeros", "boundary", "converged", "was_euclidean"),
        )
        return {name: getattr(self, name) for name in names}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a small .npz file, atomically: the report, and the tree of an ultrametric. No pickle."""
        assert self.given is not None
        if self.given.terms:
            raise InputError("a relation with an added term cannot be saved by its numbers")
        about = {
            "matrix": self.given.matrix.fingerprint(), "steps": self.given.view.steps, "spread": self.given.beta,
            **self.report(),
        }  # fmt: skip
        arrays: dict[str, Any] = {}
        if self.tree is not None:
            top = np.array(self.tree.largest)
            arrays = {"edges": self.tree.edges, "weights": self.tree.weights, "largest": top}
        save_archive(path, FORMAT, arrays, about)

    @staticmethod
    def load(path: str | os.PathLike[str], matrix: Any, *, kind: str | None = None) -> Euclideanized:
        """Read what `save` wrote, for the matrix that it was made from; another one is refused. Cost: no scan."""
        where = shown(path, limit=200)
        parts, about = load_archive(path, FORMAT)
        try:
            steps, beta = about["steps"], float(about["spread"])
            values = {name: about[name] for name in _KEPT}
            wrong = [name for name, kinds in _KEPT.items() if not isinstance(values[name], kinds)]
            if wrong or values["method"] not in METHODS:
                raise ValueError(f"{some(wrong or ['method'])} cannot be")
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{where} is not a dasrel Euclideanisation: {shown(error, limit=200)}") from None
        plain = relation(matrix, kind=kind)
        _check_fingerprint(about.get("matrix"), plain.matrix.fingerprint(), where)
        view = plain.view
        for step, parameter in steps:
            view = view.then(step, tuple(parameter) if isinstance(parameter, list) else parameter)
        tree = None
        if parts:
            fault = tree_fault(parts["edges"], parts["weights"], parts["largest"], "squared-distance")
            if fault:
                raise StoreError(f"{where} is damaged (a tree with {fault}); make it again")
            top, i, j = parts["largest"].tolist()
            tree = Tree(parts["edges"], parts["weights"], (top, int(i), int(j)), "squared-distance", scans=0)
        if (tree is None) == (values["method"] == "ultrametric") or (tree and tree.n_objects != plain.n_objects):
            raise StoreError(f"{where} is damaged: its tree is missing, or does not fit; make it again")
        given = replace(plain, view=view, beta=beta)
        return Euclideanized(relation=given, tree=tree, given=given, **values)._composed()

    def on(self, matrix: Any, *, kind: str | None = None) -> Euclideanized:
        """The same for a matrix opened anew; one that it was not made from is refused. Cost: no scan."""
        assert self.given is not None
        plain = relation(matrix, kind=kind)
        _check_fingerprint(self.given.matrix.fingerprint(), plain.matrix.fingerprint(), "the Euclideanisation given")
        return replace(self, given=replace(self.given, matrix=plain.matrix))._composed()

    def _composed(self) -> Euclideanized:
        assert self.given is not None
        base = self.given if self.floor_zeros is None else self.given.floor(self.floor_zeros)
        delta = None if self.tree is None else ultrametric(self.tree)
        return replace(self, relation=_compose(base, self.method, self.gamma, self.alpha, delta))


_KEPT: dict[str, Any] = {
    **dict.fromkeys(("gamma", "beta", "lambda_min", "residual", "stress", "ratio"), (int, float)),
    **dict.fromkeys(("alpha", "floor_zeros", "boundary"), (int, float, type(None))),
    **dict.fromkeys(("scans", "n_negative", "merged", "floored"), int),
    "method": str,
    "converged": bool,
}
"""What a file holds, and of which types."""


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
    """The smallest change of one of five kinds that makes a matrix Euclidean.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation without added terms.
    method
        "spread", "ultrametric", "power", "exponential" or "log".
    alpha
        Parameter of the last three; if not given, the one for which Delta is nearest to D and still Euclidean, less a
        margin of 10 %. One for which Delta is not Euclidean is refused, and the boundary named.
    tol
        The residual of the eigenvalue as a fraction of it; gamma is that much larger than needed.
    floor_zeros
        Squared dissimilarities below this number (above 0) are raised to it first. Without it, objects at
        dissimilarity 0 that are no duplicates are an error, because no gamma is large enough then.
    max_scans
        The budget. When it is spent there is a warning, and gamma is safe as far as is known.
    memory
        Such as "2GiB", by default half of the machine's: half for the basis, half for a scan.
    checkpoint
        Writes down the searches between scans, to go on from to the same bits.

    Cost: one scan per step of the eigenvalue search, 5 to 40; one for the spanning tree (not for spread), one for the
    stress; for power, exponential and log 20 to 100 more to find alpha. Memory: 8 n block bytes a step, or three times
    that.
    """
    given = matrix if isinstance(matrix, Relation) else relation(matrix, kind=kind)
    check_arguments(given, method, alpha, tol, floor_zeros, max_scans)
    limit = memory_limit(memory)
    base = given if floor_zeros is None else given.floor(floor_zeros)

    def about() -> dict[str, Any]:
        asked = {"method": method, "alpha": alpha, "tol": tol, "floor_zeros": floor_zeros, "max_scans": max_scans}
        return {"relation": given.identity(), **asked}

    with checkpoint_writer(checkpoint, "euclideanize", about) as keep:
        work = SearchContext(base, method, tol, max_scans, limit // 2, n_eps(base) * base.largest(), keep)
        found = shift(work, alpha)
        made = _compose(base, method, found.gamma, found.alpha, found.delta if method == "ultrametric" else None)
        kept = keep.result("sums")
        if kept is None:
            sums = gamma_search.compare(base, found.delta, bound=_below(floor_zeros), memory=limit // 2)
            keep.finish("sums", asdict(sums), last=True)
        else:
            sums = gamma_search.Sums(**kept)
        scans = keep.scans
    if not found.converged:
        _warn(found, work)
    return Euclideanized(
        made, method, found.gamma, found.alpha, found.gamma if method == "spread" else 0.0, found.value,
        found.residual, scans, sums.stress(found.gamma), sums.ratio(found.gamma), found.n_negative,
        found.merged, 0 if floor_zeros is None else sums.low, floor_zeros, found.boundary, found.converged,
        found.tree, given,
    )  # fmt: skip


def as_euclidean(
    matrix: Any,
    wanted: Any,
    *,
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Euclideanized | None:
    """What a word of `euclideanize=` means for a matrix.

    Parameters
    ----------
    wanted
        One of the methods, the path of a file that `Euclideanized.save` wrote, a `Euclideanized`, or None.

    Cost: that of `euclideanize` for a method, else no scan.
    """
    if wanted is None:
        return None
    if isinstance(wanted, Euclideanized):
        return wanted.on(matrix, kind=kind)
    if isinstance(wanted, str) and wanted in METHODS:
        return euclideanize(matrix, method=wanted, memory=memory, kind=kind, checkpoint=checkpoint)
    if isinstance(wanted, os.PathLike) or (isinstance(wanted, str) and wanted.endswith(".npz")):
        return Euclideanized.load(wanted, matrix, kind=kind)
    raise InputError(
        f"euclideanize is {shown(wanted)!r}: use one of {', '.join(METHODS)}, or a file (.npz) that"
        " `dasrel euclideanize` wrote"
    )


def _check_fingerprint(made_from: Any, now: dict[str, Any], where: str) -> None:
    known = made_from if isinstance(made_from, dict) else {}
    words = {"n_objects": "number of objects", "ids": "ids of the objects (their checksum)", "mean": "mean value"}
    for name, value in now.items():
        if name == "mean" and value is not None and known.get(name) is not None:
            same = math.isclose(value, known[name], rel_tol=1e-9)  # tiles of another size add up in another order
        else:
            same = known.get(name) == value
        if not same:
            raise InputError(
                f"{where} was made from another matrix: {words.get(name, name)} {shown(known.get(name))} there and"
                f" {shown(value)} here; run `dasrel euclideanize` on this one"
            )


def check_arguments(
    given: Relation, method: str, alpha: float | None, tol: float, floor_zeros: float | None, max_scans: int
) -> None:
    """Refuse what `euclideanize` cannot do, before anything is read."""
    if method not in METHODS:
        raise InputError(f"method is {shown(method)!r}: use one of {', '.join(METHODS)}")
    if given.terms or given.diagonal().any():
        raise InputError("give the matrix itself: a relation with an added term, or a kernel view, cannot be mended")
    if alpha is not None:
        if method not in FITS:
            raise InputError(f"alpha is for {', '.join(FITS)}; the method {method} has no parameter")
        if not (np.isfinite(alpha) and alpha > 0 and (alpha <= 1 or method == "exponential")):
            limits = "above 0" if method == "exponential" else "above 0 and at most 1"
            raise InputError(f"alpha of the method {method} is {limits}, not {alpha}")
    if floor_zeros is not None and not (np.isfinite(floor_zeros) and floor_zeros > 0):
        raise InputError(f"floor_zeros is a squared dissimilarity above 0, not {floor_zeros}")
    if not 0 < tol < 1 or max_scans < 1:
        raise InputError(f"tol lies between 0 and 1 and max_scans is at least 1, not {tol} and {max_scans}")


def _below(floor_zeros: float | None) -> float:
    """Pairs at or below this are raised."""
    return -1.0 if floor_zeros is None else math.nextafter(floor_zeros, 0.0)


def _compose(base: Relation, method: str, gamma: float, alpha: float | None, delta: Any) -> Relation:
    if gamma == 0:
        return base
    if method == "spread":
        return base.spread(gamma)
    if method == "ultrametric":
        return base.plus(delta, gamma)
    assert alpha is not None
    return base.plus_fit(method, gamma, alpha)


def _warn(found: Result, work: SearchContext) -> None:
    told, remedy = _why_not_nearer(found.stopped, work.max_scans)
    problem = (
        f"gamma of the method {work.method} is less near than asked for: the eigenvalue is {found.value:.6g} +-"
        f" {found.residual:.2g}, because {told}; gamma {found.gamma:.6g} covers it"
    )
    warnings.warn(DasrelWarning(problem, remedy=remedy), stacklevel=3)


def _why_not_nearer(stopped: str, scans: int) -> tuple[str, str]:
    """Why a search ended before its tolerance was met, and what to do about it."""
    return {
        "scans": (f"{scans} scans were not enough", "raise {max_scans} or {tol}"),
        "memory": ("the memory for the basis was full", "raise {memory} or {tol}"),
        "rounding": (
            "the rounding of the stored numbers allows no more",
            "store them with {Writing.dtype=float64}, or raise {tol}",
        ),
    }[stopped]


TYPICAL_EUCLIDEAN = {"spread": 11, "ultrametric": 13, "power": 61, "exponential": 62, "log": 46}
"""Scans of euclideanize, the median over iris and digits (largest coordinate difference), wine (city block), digits
(Bray-Curtis), cat cortex and proteins: 7 to 20 for spread, 9 to 17 for ultrametric, 28 to 145 for the fits. Noise takes
more: 36 for an eigenvalue alone."""
EUCLIDEAN_BUDGET = 200
"""`euclideanize` stops its searches after so many scans."""


def euclidean_scans(method: str, max_scans: int = EUCLIDEAN_BUDGET) -> Range:
    """Scans of `euclideanize`: the searches, and besides them the tree, the duplicates and the stress."""
    beside = {"spread": 1, "ultrametric": 4}.get(method, 15)
    least = 2 if method == "spread" else 3
    return Range(least, min(TYPICAL_EUCLIDEAN[method], max_scans), max_scans + beside)


def _is_method(euclideanize: Any) -> bool:
    return isinstance(euclideanize, str) and euclideanize in METHODS


SPECTRUM_SCANS = 9
"""Typical scans of `spectrum`, on the data of `planning.TYPICAL_EUCLIDEAN`: 5 to 17; noise takes 40."""


def estimate_audit(store: Any, *, verify: bool, spectrum: bool, memory: int | str) -> Cost:
    """What `dasrel audit` would do. Cost: none."""
    matrix = open_matrix(store)
    scans = Range(1, 1, 1) if verify else Range(0, 0, 0)
    needed = memory_limit(memory) if verify else 0
    if spectrum:
        ends = estimate_spectrum(store, memory=memory)
        scans, needed = scans + ends.scans, max(needed, ends.memory)
    return Cost("audit", matrix.n_objects, scans, matrix.layout.total_bytes, needed)


def estimate_spectrum(
    store: Any,
    *,
    n_values: int = 8,
    tol: float = 1e-3,
    max_scans: int = 100,
    memory: int | str | None = None,
    picture: str | os.PathLike[str] | None = None,
) -> Cost:
    """What `spectrum` would do with the same arguments, and its picture. Cost: none."""
    seen = relation(store)
    if n_values < 1:
        raise InputError(f"n_values is at least 1, not {n_values}")
    limit = memory_limit(memory)
    search = Search(lowest=1, highest=1, tol=tol, max_scans=max_scans, memory=limit // 2)
    needed, most = estimate_search(seen, search, limit, metric=False)
    outputs = () if picture is None else (Output(str(picture), 100_000),)
    scans = Range(min(2, most), min(SPECTRUM_SCANS, most), most)
    return Cost("spectrum", seen.n_objects, scans, seen.matrix.layout.total_bytes, needed, outputs)


def estimate_euclideanize(
    store: Any,
    out: str | os.PathLike[str],
    *,
    method: str,
    alpha: float | None = None,
    tol: float = 1e-4,
    floor_zeros: float | None = None,
    max_scans: int = 200,
    memory: int | str | None = None,
) -> Cost:
    """What `euclideanize` and saving its result would do with the same arguments. Cost: none."""
    given = relation(store)
    check_arguments(given, method, alpha, tol, floor_zeros, max_scans)
    limit = memory_limit(memory)
    search = Search(tol=tol, max_scans=max_scans, vectors=method != "spread", memory=limit // 2)
    needed, _ = estimate_search(given, search, limit, metric=method != "spread")
    if method != "spread":
        needed = max(needed, scan_memory(given.matrix, [forest_consumer(given.matrix)], limit // 2))
    size = 24 * given.n_objects if method == "ultrametric" else 2_000
    facts = {"method": method}
    scans = euclidean_scans(method, max_scans)
    total = given.matrix.layout.total_bytes
    return Cost("euclideanize", given.n_objects, scans, total, needed, (Output(str(out), size),), facts)
