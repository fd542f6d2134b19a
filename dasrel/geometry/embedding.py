"""Principal coordinates of objects (Gower 1966; F09 eq. 10): `embed`.

W(D) = -1/2 P D P, P the centring projection, is X X' with X = V sqrt(lambda): the eigenvectors V of its highest
eigenvalues, each times the root of its own, are coordinates of the objects, the axis of largest variance first. Where W
has negative eigenvalues, no points have exactly the dissimilarities D, and the axes show the part that points can have.

The eigenvectors come from block Lanczos, one scan per step. A column of ones in the first scan gives the row sums of D:

    trace W = sum D / (2 n)                      the sum of all eigenvalues
    x*_k = sum_i x_ik (r_i - D*_i) / (2 lambda_k)    a new object with values D*, r the row means of D (Gower 1968)

The sum of the negative eigenvalues, and with the trace that of the positive ones, is estimated by Gaussian quadrature
from the same basis; the sum of the negative Ritz values is a bound of it, because Ritz values lie between eigenvalues.

A spread of -2 lambda_1 (Lingoes 1971) adds -lambda_1 to all eigenvalues of centred vectors, which stay the same: the
correction takes no matrix and no scan of its own, only lambda_1 from the same search.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.engine.checkpoint import Checkpoint, checkpoint_writer
from dasrel.engine.relation import Relation
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.euclidean import as_relation, product_memory, why_stopped
from dasrel.geometry.gamma_search import n_eps
from dasrel.geometry.lanczos import LanczosResult, LanczosState, Search, estimate_search, lanczos
from dasrel.geometry.options import EmbedParameters
from dasrel.util import Array, Float, html
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.text import count_text

EMBED_SCANS = 6
"""Scans for ten axes, the median over digits (Euclidean and city block), communities (Bray-Curtis), points in 64
dimensions: 4 to 8; noise takes 30."""
SAME_SIZE = 1e-6
"""Coordinates whose sizes differ by less than this fraction count as equal where signs are chosen."""
_ROWS = 10
"""Axes that a notebook lists."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """Principal coordinates, and how much of the matrix they show; returned by `embed`.

    Axes are ordered by eigenvalue. An axis has the sign for which the object farthest from 0 (the first of equal ones)
    has a positive coordinate.
    """

    coordinates: Float
    """(n, axes); the mean of each axis is 0, and its sum of squares is the eigenvalue."""
    eigenvalues: Float
    """(axes,) of W(D), with the correction if there is one, descending."""
    residuals: Float
    """(axes,) an eigenvalue lies within this distance of each of them."""
    shares: Float
    """(axes,) each eigenvalue over the sum of all positive ones, see `positive_sum`."""
    positive_sum: float
    """The sum of all positive eigenvalues: the trace minus `negative_sum`, which is an estimate."""
    positive_sum_least: float
    """A bound from below: the trace and the negative eigenvalues that the search has found."""
    negative_sum: float
    """The sum of all negative eigenvalues, estimated; at most 0."""
    negative_share: float
    """Size of the negative eigenvalues over that of all, estimated: what no axis can show. 0 with the correction."""
    negative_share_least: float
    """Lower bound of the same, from the negative eigenvalues that were found."""
    n_negative: int
    """Negative eigenvalues found; there may be more, not fewer. 0 with the correction."""
    lowest: float
    """The lowest eigenvalue is at most this, without the correction; not searched for unless there is one."""
    spread: float
    """The constant that the correction has added to all pairs of different objects; 0 without it."""
    row_means: Float = field(repr=False)
    """(n,) of D, for `project`."""
    scans: int = 0
    converged: bool = True
    stopped: str = "converged"
    """Why the search ended: "converged", "exhausted" (values are exact), "rounding", "scans" or "memory"."""

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return len(self.coordinates)

    @property
    def n_components(self) -> int:
        """Number of axes, which may be fewer than were requested."""
        return len(self.eigenvalues)

    def __repr__(self) -> str:
        axes, shown = count_text(self.n_components, "axis", "axes"), self.shares.sum()
        return f"<Embedding of {count_text(self.n_objects, 'object')}: {axes}, {shown:.1%} of the positive eigenvalues>"

    def _repr_html_(self) -> str:
        rows = [
            (str(k + 1), f"{value:.6g}", f"{residual:.2g}", f"{share:.2%}", html.bar(share / self.shares[0]))
            for k, (value, residual, share) in enumerate(
                zip(self.eigenvalues[:_ROWS], self.residuals, self.shares, strict=False)
            )
        ]
        facts = [
            ("objects", f"{self.n_objects:,}"),
            ("axes", f"{self.n_components}, {self.shares.sum():.1%} of the positive eigenvalues"),
            ("negative", f"{self.negative_share:.1%} of the eigenvalues by size, estimated"),
            *([("spread", f"{self.spread:.6g} added to all pairs")] if self.spread else []),
            ("scans", f"{self.scans}, {self.stopped}"),
        ]
        return html.card("Embedding", facts, html.table(("axis", "eigenvalue", "residual", "share", ""), rows))

    def project(self, squared: Array) -> Float:
        """Return coordinates (k, axes) of new objects from their squared dissimilarities (k, n), by Gower's formula.

        The rows of the objects themselves give their own coordinates, except under a spread, where a new object has the
        constant to all others. Adding a number to a row changes nothing.

        Cost: no scan.
        """
        D = np.require(squared, np.float64, ["C", "A"])
        if D.ndim != 2 or D.shape[1] != self.n_objects or not np.isfinite(D).all():
            raise InputError(
                f"squared dissimilarities have shape {D.shape}",
                remedy=f"give finite numbers, one for each of the {count_text(self.n_objects, 'object')}, in rows",
            )
        coordinates: Float = (self.row_means - D) @ (self.coordinates / (2 * self.eigenvalues))
        return coordinates

    def report(self) -> dict[str, Any]:
        """Return the numbers without the coordinates, for JSON."""
        names = ("positive_sum", "positive_sum_least", "negative_sum", "negative_share", "negative_share_least",
                 "n_negative", "lowest",
                 "spread", "scans", "converged", "stopped")  # fmt: skip
        arrays = {name: getattr(self, name).tolist() for name in ("eigenvalues", "residuals", "shares")}
        return {
            "n_objects": self.n_objects,
            "n_components": self.n_components,
            **arrays,
            **{k: getattr(self, k) for k in names},
        }


@dataclass(frozen=True, eq=False)
class Colours:
    """What the objects of a picture of an embedding are coloured by."""

    labels: NDArray[np.intp]
    """(n,) positions in `names`."""
    names: tuple[str, ...]
    memberships: Float | None
    """(n, names), where they are known."""


def embed(
    matrix: Any,
    *,
    n_components: int = 10,
    correction: Literal["spread"] | None = None,
    tol: float = 1e-3,
    max_scans: int = 100,
    kind: str | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Embedding:
    """Compute principal coordinates (PCoA, classical scaling) of the objects of a matrix or a relation.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation.
    n_components
        Number of axes. Where fewer eigenvalues are positive, there are fewer axes, and a warning.
    correction
        "spread": add the constant -2 lambda_1 to all squared dissimilarities (Lingoes), so that no eigenvalue is
        negative.
    tol
        The search ends when the residuals of the axes, and with the correction of the lowest eigenvalue, are below this
        fraction of their eigenvalues, or below rounding. Errors of eigenvalues are of the order of its square.
    max_scans
        Limit of scans. A search that reaches it warns and returns its best axes.
    memory
        Such as "2GiB", by default half of the machine's: half for the basis, half for a scan.
    checkpoint
        Where to save the basis between scans, and to resume from to the same bits.

    Cost: one scan per step, row sums included; ten axes take 4 to 8 for matrices with structure, 30 for noise, and a
    few more with the correction. Memory: 8 n (axes + 6) bytes per step, at least 8 and at most 32 columns.
    """
    options = EmbedParameters(
        n_components=n_components, correction=correction, tol=tol, max_scans=max_scans, memory=memory
    )
    return prepare_embed(matrix, options, kind=kind).run(checkpoint)


def prepare_embed(matrix: Any, options: EmbedParameters | None = None, *, kind: str | None = None) -> EmbedJob:
    """Check the arguments of `embed`. Cost: no scan."""
    options = options or EmbedParameters()
    given = as_relation(matrix, kind)
    if given.diagonal().any():
        raise InputError("the relation has a diagonal that is not zero, as kernels do: it is no dissimilarity")
    limit = memory_limit(options.memory) // 2
    search = Search(
        lowest=1 if options.correction else 0, highest=min(options.n_components, given.n_objects - 1), tol=options.tol,
        floor=n_eps(given) * given.largest(), block=min(max(options.n_components + 6, 8), 32),
        max_scans=options.max_scans, vectors=True, memory=limit,
    )  # fmt: skip
    return EmbedJob(given, options, search, limit)


@dataclass(frozen=True)
class EmbedJob:
    """Principal coordinates to be computed, the arguments checked."""

    given: Relation
    options: EmbedParameters
    search: Search
    memory: int
    """Limit of a scan; the search has the same limit for its basis."""

    def run(self, checkpoint: Checkpoint | None = None) -> Embedding:
        """Search the eigenvectors, and save the search between scans."""
        with checkpoint_writer(checkpoint, "embed", self._identity) as writer:
            saved = writer.state("lanczos") or {"search": None, "row_sums": None}
            operator = _Gram(self.given, self.memory, saved["row_sums"])
            result = lanczos(
                operator,
                self.given.n_objects,
                search=self.search,
                state=LanczosState.unpacked(saved["search"]),
                on_step=lambda state: writer.step(
                    "lanczos", lambda: {"search": state.packed(), "row_sums": operator.row_sums}
                ),
            )
        assert operator.row_sums is not None
        return self._described(result, operator.row_sums)

    def cost(self, outputs: tuple[Output, ...] = ()) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, search = self.given.n_objects, self.search
        basis, most = estimate_search(search, n, metric=False)
        scans = Range(min(2, most), min(EMBED_SCANS, most), most)
        needed = basis + product_memory(self.given, search.block + 1, self.memory) + 8 * n * (search.highest + 2)
        facts = {"axes": search.highest}
        return Cost("embed", n, scans, self.given.matrix.layout.total_bytes, needed, outputs, facts)

    def _identity(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with."""
        options = self.options
        named = {"n_components": options.n_components, "correction": options.correction or "none", "tol": options.tol}
        return {"relation": self.given.identity(), **named, "max_scans": options.max_scans}

    def _described(self, result: LanczosResult, row_sums: Float) -> Embedding:
        """Return the axes of positive eigenvalues, and what follows from the others."""
        n, rounding, wanted = self.given.n_objects, self.search.floor, self.options.n_components
        lowest = float(result.ritz[0])
        spread = 0.0
        if self.options.correction and not (lowest >= -rounding and result.converged):
            spread = max(0.0, -2 * (lowest - float(result.ritz_residuals[0])))
        values = result.highest.values + spread / 2
        positive = int((values > rounding).sum())
        if not result.converged:
            why, remedy = why_stopped(result.stopped, result.scans)
            worst = int(np.argmax(result.highest.residuals / np.maximum(values, rounding)))
            problem = f"the axes did not converge to tol because {why}: the eigenvalue of axis {worst + 1} is"
            problem += f" {values[worst]:.6g} +- {result.highest.residuals[worst]:.2g}"
            warnings.warn(DasrelWarning(problem, remedy=remedy), stacklevel=4)
        if positive == 0:
            raise InputError("no eigenvalue is positive beyond rounding: the objects are all at one place")
        if positive < wanted:
            problem = f"{count_text(wanted, 'axis was', 'axes were')} requested and"
            problem += f" {count_text(positive, 'eigenvalue is', 'eigenvalues are')} positive: there are no more axes"
            warnings.warn(DasrelWarning(problem), stacklevel=4)
        negative, least, n_negative = 0.0, 0.0, 0
        trace = float(row_sums.sum()) / (2 * n) + (n - 1) * spread / 2
        if not self.options.correction:
            below = result.ritz < -rounding
            n_negative, least = int(below.sum()), abs(float(result.ritz[below].sum()))
            negative = max(least, abs(float((result.ritz_weights * result.ritz)[below].sum())))
        seen = float(np.maximum(result.ritz + spread / 2, 0).sum())
        total = max(trace + negative, seen)
        assert result.highest.vectors is not None
        return Embedding(
            coordinates=_oriented(result.highest.vectors[:, :positive]) * np.sqrt(values[:positive]),
            eigenvalues=values[:positive], residuals=result.highest.residuals[:positive],
            shares=values[:positive] / total, positive_sum=total, positive_sum_least=max(trace + least, seen),
            negative_sum=0.0 - negative,
            negative_share=negative / (total + negative), negative_share_least=least / (trace + 2 * least),
            n_negative=n_negative, lowest=lowest, spread=spread, row_means=row_sums / n, scans=result.scans,
            converged=result.converged, stopped=result.stopped,
        )  # fmt: skip


@dataclass
class _Gram:
    """Products with W(D), of which the first also gives the row sums of D."""

    given: Relation
    memory: int
    row_sums: Float | None

    def __call__(self, V: Float) -> Float:
        columns = (V - V.mean(axis=0)).T
        if self.row_sums is None:
            columns = np.vstack([columns, np.ones((1, columns.shape[1]))])
        product = self.given.left(columns, memory=self.memory)
        if self.row_sums is None:
            self.row_sums = product[-1].copy()
            product = product[:-1]
        result: Float = -0.5 * (product - product.mean(axis=1, keepdims=True)).T
        return result


def _oriented(vectors: Float) -> Float:
    """Return the vectors (n, k) with the signs that `Embedding` promises."""
    sizes = np.abs(vectors)
    first = (sizes >= (1 - SAME_SIZE) * sizes.max(axis=0)).argmax(axis=0)
    result: Float = vectors * np.sign(vectors[first, np.arange(vectors.shape[1])])
    return result
