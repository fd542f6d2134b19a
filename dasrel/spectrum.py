"""The ends of the spectrum of W(D) = -1/2 P D P: is the matrix Euclidean, and if not, what shift makes it so."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import parse_bytes

from dasrel import tasks
from dasrel.checkpoint import Checkpoint, keeping
from dasrel.errors import DasrelWarning, InputError, count_text
from dasrel.identity import relation_identity
from dasrel.lanczos import Found, Search, State, lanczos
from dasrel.relation import Relation, relation


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
    limit = tasks.machine_memory() // 2 if memory is None else int(parse_bytes(memory))
    rounding = n * float(np.finfo(seen.matrix.dtype).eps) * seen.largest()

    search = Search(lowest=1, highest=1, tol=tol, floor=rounding, block=block, max_scans=max_scans, memory=limit // 2)
    asked = {"tol": tol, "block": block, "max_scans": max_scans}
    with keeping(checkpoint, "spectrum", lambda: {"relation": relation_identity(seen), **asked}) as keep:
        found = lanczos(
            lambda V: seen.gram(V, memory=limit // 2),
            n,
            search=search,
            state=State.unpacked(keep.state("lanczos")),
            on_step=lambda state: keep.step("lanczos", state.packed),
        )

    return _described(found, n, rounding, min(n_values, len(found.ritz)), max_scans)


def _described(found: Found, n: int, rounding: float, count: int, max_scans: int) -> Spectrum:
    value, residual = float(found.ritz[0]), float(found.ritz_residuals[0])
    is_euclidean: bool | None = None
    if value < -rounding:
        is_euclidean = False  # an eigenvalue is at least as low as the lowest value
    elif found.converged or residual <= rounding:
        is_euclidean = True
    spread = 0.0 if is_euclidean else max(0.0, -2 * (value - residual))
    if not found.converged:
        told = {
            "scans": f"{count_text(max_scans, 'scan was', 'scans were')} not enough; raise max_scans, or tol",
            "memory": f"memory for the basis ended after {count_text(found.scans, 'scan')}; raise memory, or tol",
            "rounding": "the rounding of the stored numbers allows no more; store them as float64, or raise tol",
        }[found.stopped]
        warnings.warn(
            f"the spectrum's ends are less near than asked for, lowest {value:.6g} +- {residual:.2g} and highest"
            f" {found.ritz[-1]:.6g} +- {found.ritz_residuals[-1]:.2g}: {told}; a spread of {spread:.6g} covers it",
            DasrelWarning,
            stacklevel=3,
        )
    values, residuals = tuple(found.ritz.tolist()), tuple(found.ritz_residuals.tolist())
    return Spectrum(
        n_objects=n, lowest=values[:count], lowest_residuals=residuals[:count], highest=values[::-1][:count],
        highest_residuals=residuals[::-1][:count], rounding=rounding, is_euclidean=is_euclidean, spread=spread,
        entropy_threshold=(2 * values[-1] + spread) / n, n_negative=int((found.ritz < -rounding).sum()),
        scans=found.scans, converged=found.converged, stopped=found.stopped,
        history=tuple(tuple(row) for row in found.history.tolist()),
    )  # fmt: skip


def spectrum_picture(found: Spectrum, path: str | os.PathLike[str], *, title: str = "") -> Path:
    """Draw both ends of a spectrum, with residuals, and how the ends came about scan by scan, as a PNG file.

    Cost: no scan.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    verdict = {True: "Euclidean", False: "not Euclidean", None: "not settled whether Euclidean"}[found.is_euclidean]
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    low, high, steps = figure.subplots(1, 3, width_ratios=[1, 1, 1.2])
    for axes, name, values, residuals in (  # each end on its own scale: one is often far longer than the other
        (low, "lowest", found.lowest, found.lowest_residuals),
        (high, "highest", found.highest, found.highest_residuals),
    ):
        colours = ["tab:red" if value < -found.rounding else "tab:blue" for value in values]
        places = np.arange(1, len(values) + 1)
        axes.bar(places, values, yerr=residuals, color=colours, ecolor="black", capsize=2)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(places[:: max(1, len(places) // 10)])
        axes.set_xlabel("number from the end; whiskers are residuals")
        axes.set_title(f"{name}: {values[0]:.5g}", fontsize=11)
    low.set_ylabel("eigenvalue of W(D); red is negative")
    history = np.array(found.history)
    scans = np.arange(1, len(history) + 1)
    for column, name, colour in ((0, "lowest", "tab:red"), (2, "highest", "tab:blue")):
        size = max(abs(history[-1, column]), found.rounding, 1e-300)
        steps.semilogy(scans, np.maximum(history[:, column + 1] / size, 1e-17), "o-", color=colour, label=name)
    steps.xaxis.get_major_locator().set_params(integer=True)
    steps.set_xlabel("scans")
    steps.set_ylabel("residual / eigenvalue")
    steps.set_title("How near the ends are", fontsize=11)
    steps.legend(frameon=False)
    named = f"{title}, " if title else ""
    figure.suptitle(f"{named}{count_text(found.n_objects, 'object')}: {verdict}", fontsize=12)
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        figure.savefig(aside, format="png", dpi=120)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return target
