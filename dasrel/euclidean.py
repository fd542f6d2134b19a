"""Euclideanisation: D + gamma Delta, with the smallest gamma that makes a matrix Euclidean (K14). No matrix is written.

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

import json
import math
import os
import warnings
import zipfile
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import parse_bytes

from dasrel import distortion, tasks
from dasrel._version import __version__
from dasrel.checkpoint import Checkpoint, keeping
from dasrel.errors import DasrelWarning, InputError, StoreError, count_text, shown, some
from dasrel.identity import relation_identity
from dasrel.relation import Relation, relation
from dasrel.shifts import Result, Work, n_eps, shift
from dasrel.tree import Tree, tree_fault
from dasrel.ultrametric import ultrametric
from dasrel.vocabulary import METHODS

FITS = ("power", "exponential", "log")
FILE_VERSION = 1


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
        """Write a small .npz file, aside and then renamed: the report, and the tree of an ultrametric. No pickle."""
        assert self.given is not None
        if self.given.terms:
            raise InputError("a relation with an added term cannot be saved by its numbers")
        target = Path(path)
        about = {
            "euclidean_version": FILE_VERSION, "dasrel": __version__, "matrix": fingerprint(self.given),
            "steps": self.given.view.steps, "spread": self.given.beta, **self.report(),
        }  # fmt: skip
        arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode("utf-8"), dtype=np.uint8)}
        if self.tree is not None:
            top = np.array(self.tree.largest)
            arrays |= {"edges": self.tree.edges, "weights": self.tree.weights, "largest": top}
        aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            with open(aside, "wb") as file:
                np.savez(file, **arrays)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)

    @staticmethod
    def load(path: str | os.PathLike[str], matrix: Any, *, kind: str | None = None) -> Euclideanized:
        """Read what `save` wrote, for the matrix that it was made from; another one is refused. Cost: no scan."""
        where = shown(path, limit=200)
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes().decode("utf-8"))
                version, made_from = about["euclidean_version"], about["matrix"]
                if version == FILE_VERSION:
                    steps, beta = about["steps"], float(about["spread"])
                    values = {name: about[name] for name in _KEPT}
                    wrong = [name for name, kinds in _KEPT.items() if not isinstance(values[name], kinds)]
                    if wrong or values["method"] not in METHODS:
                        raise ValueError(f"{some(wrong or ['method'])} cannot be")
                    parts = {name: file[name] for name in ("edges", "weights", "largest") if name in file.files}
        except FileNotFoundError:
            raise StoreError(f"no Euclideanisation at {where}; `dasrel euclideanize` makes one") from None
        except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise StoreError(f"{where} is not a Euclideanisation of dasrel: {shown(error, limit=200)}") from None
        if version != FILE_VERSION:
            raise StoreError(
                f"{where} has version {shown(version)}, this dasrel reads version {FILE_VERSION}: make it again"
            )
        plain = relation(matrix, kind=kind)
        _check_fingerprint(made_from, fingerprint(plain), where)
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
        _check_fingerprint(fingerprint(self.given), fingerprint(plain), "the Euclideanisation given")
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
    limit = tasks.machine_memory() // 2 if memory is None else int(parse_bytes(memory))
    base = given if floor_zeros is None else given.floor(floor_zeros)

    def about() -> dict[str, Any]:
        asked = {"method": method, "alpha": alpha, "tol": tol, "floor_zeros": floor_zeros, "max_scans": max_scans}
        return {"relation": relation_identity(given), **asked}

    with keeping(checkpoint, "euclideanize", about) as keep:
        work = Work(base, method, tol, max_scans, limit // 2, n_eps(base) * base.largest(), keep)
        found = shift(work, alpha)
        made = _compose(base, method, found.gamma, found.alpha, found.delta if method == "ultrametric" else None)
        kept = keep.result("sums")
        if kept is None:
            sums = distortion.compare(base, found.delta, bound=_below(floor_zeros), memory=limit // 2)
            keep.finish("sums", asdict(sums), last=True)
        else:
            sums = distortion.Sums(**kept)
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


def fingerprint(of: Relation) -> dict[str, Any]:
    """What tells one matrix from another without reading it."""
    ids = "\n".join(str(name) for name in of.matrix.ids)
    audit = of.matrix.audit
    return {
        "n_objects": of.n_objects, "kind": of.matrix.kind, "ids": zlib.crc32(ids.encode("utf-8", "surrogatepass")),
        "minimum": audit["minimum"], "maximum": audit["maximum"], "mean": audit["mean"],
    }  # fmt: skip


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


def _warn(found: Result, work: Work) -> None:
    told = {
        "scans": f"{count_text(work.max_scans, 'scan was', 'scans were')} not enough; raise max_scans, or tol",
        "memory": "memory for the basis ended; raise memory, or tol",
        "rounding": "the rounding of the stored numbers allows no more; store them as float64, or raise tol",
    }[found.stopped]
    warnings.warn(
        f"gamma of the method {work.method} is less near than asked for: the eigenvalue is {found.value:.6g} +-"
        f" {found.residual:.2g} ({told}); gamma {found.gamma:.6g} covers it",
        DasrelWarning,
        stacklevel=3,
    )
