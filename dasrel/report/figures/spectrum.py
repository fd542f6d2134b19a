"""The figure of a spectrum: its two ends with their residuals, and how the search converged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dasrel.report.figures.partition import save_figure
from dasrel.util import PathLike
from dasrel.util.text import count_text

if TYPE_CHECKING:
    from dasrel.geometry.euclidean import Spectrum


def draw_spectrum(eigenvalues: Spectrum, path: PathLike, *, title: str = "") -> Path:
    """Draw both ends of a spectrum with residuals, and their convergence scan by scan, as a PNG file.

    Cost: no scan.
    """
    return save_figure(spectrum_figure(eigenvalues, title), Path(path), dpi=120)


def spectrum_figure(eigenvalues: Spectrum, title: str = "") -> Figure:
    """Return a figure of both ends of a spectrum with residuals, and of their convergence scan by scan."""
    verdict = {True: "Euclidean", False: "not Euclidean", None: "not known whether Euclidean"}[eigenvalues.is_euclidean]
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    low, high, steps = figure.subplots(1, 3, width_ratios=[1, 1, 1.2])
    for axes, name, values, residuals in (  # each end on its own scale: one is often far longer than the other
        (low, "lowest", eigenvalues.lowest, eigenvalues.lowest_residuals),
        (high, "highest", eigenvalues.highest, eigenvalues.highest_residuals),
    ):
        colours = ["tab:red" if value < -eigenvalues.rounding else "tab:blue" for value in values]
        if name == "highest":
            colours[: eigenvalues.standing_out] = ["navy"] * eigenvalues.standing_out
        numbers = np.arange(1, len(values) + 1)
        axes.bar(numbers, values, yerr=residuals, color=colours, ecolor="black", capsize=2)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(numbers[:: max(1, len(numbers) // 10)])
        axes.set_xlabel("number from the end; whiskers are residuals")
        axes.set_title(f"{name}: {values[0]:.5g}", fontsize=11)
    low.set_ylabel("eigenvalue of W(D); red is negative")
    if eigenvalues.standing_out:
        high.set_xlabel("number from the end; dark: stands out")
    history = np.array(eigenvalues.history)
    scans = np.arange(1, len(history) + 1)
    for column, name, colour in ((0, "lowest", "tab:red"), (2, "highest", "tab:blue")):
        size = max(abs(history[-1, column]), eigenvalues.rounding, 1e-300)
        steps.semilogy(scans, np.maximum(history[:, column + 1] / size, 1e-17), "o-", color=colour, label=name)
    steps.xaxis.get_major_locator().set_params(integer=True)
    steps.set_xlabel("scans")
    steps.set_ylabel("residual / eigenvalue")
    steps.set_title("Convergence", fontsize=11)
    steps.legend(frameon=False)
    named = f"{title}, " if title else ""
    out = eigenvalues.standing_out
    largest = (
        f"{count_text(out, 'highest eigenvalue stands', 'highest eigenvalues stand')} out"
        if out
        else ("no highest eigenvalue stands out")
    )
    share = f"about {eigenvalues.negative_share:.2g} of all eigenvalues, by size, are negative"
    negative = "no eigenvalue is negative" if eigenvalues.is_euclidean else share
    figure.suptitle(
        f"{named}{count_text(eigenvalues.n_objects, 'object')}: {verdict}\n{largest}; {negative}", fontsize=12
    )
    return figure
