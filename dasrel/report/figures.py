"""Figures of partitions and spectra.

Pictures of a partition, for people: who belongs where, how surely, and what the clusters look like as a matrix.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dasrel.errors import InputError
from dasrel.geometry.euclidean import Spectrum
from dasrel.report.matrix_image import induced_image
from dasrel.util import Array
from dasrel.util.files import replacing
from dasrel.util.text import count_text


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
    with replacing(target) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return target


PIXELS = 800
"""Most rows of a picture; of more objects, neighbours in the order share a row, their mean."""
ROWS = "objects, by cluster; in a cluster the surest first"


def cluster_order(memberships: Array) -> NDArray[np.intp]:
    """Objects by cluster, and within a cluster from the surest member to the least sure; clusters by number.

    >>> cluster_order(np.array([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2]])).tolist()
    [2, 1, 0]
    """
    order: NDArray[np.intp] = np.lexsort((-memberships.max(axis=1), memberships.argmax(axis=1)))
    return order


def partition_picture(
    memberships: Array,
    path: str | os.PathLike[str],
    *,
    truth: Sequence[Any] | Array | None = None,
    truth_name: str = "class",
    title: str = "",
    names: Sequence[str] | None = None,
) -> Path:
    """Draw memberships and the dissimilarity that they induce, D(U) = 1 - U'U / max(U'U) (K14 17), as a PNG file.

    Parameters
    ----------
    memberships
        (n, c).
    truth
        Known classes of the n objects, shown as a strip of colours beside the clusters. At most 20.
    truth_name
        What a class is, for the legend.
    names
        One name for each cluster; else their numbers.

    Cost: no scan; O(c n), and a picture of at most 800 rows, each the mean of neighbours.
    """
    U = np.asarray(memberships, dtype=np.float64)
    if U.ndim != 2 or not np.isfinite(U).all():
        raise InputError(f"memberships of shape {U.shape}: give finite numbers, objects by clusters")
    known = None if truth is None else np.asarray(truth)
    classes = None if known is None else np.unique(known)
    if known is not None and classes is not None and (known.shape != U.shape[:1] or len(classes) > 20):
        raise InputError(
            f"truth has shape {known.shape} and {len(classes)} classes: give one class for each of the {len(U)}"
            " objects, and at most 20 different ones"
        )

    order = cluster_order(U)
    n, clusters = U.shape
    # Rows of the picture: as many runs of neighbours in the order, of which memberships are averaged.
    begin = np.flatnonzero(np.diff(np.arange(n) * min(PIXELS, n) // n, prepend=-1))
    counts = np.diff(begin, append=n)
    rows = np.add.reduceat(U[order], begin, axis=0) / counts[:, None]
    labelled = [str(k) for k in range(clusters)] if names is None else [str(name) for name in names]
    sizes = np.bincount(U.argmax(axis=1), minlength=clusters)
    ends = np.cumsum(sizes)
    if len(labelled) != clusters:
        raise InputError(
            f"{count_text(len(labelled), 'name')} for {count_text(clusters, 'cluster')}: give one for each"
        )
    middles = [(labelled[k], float(ends[k] - sizes[k] / 2)) for k in range(clusters) if sizes[k]]

    figure = Figure(figsize=(13.5, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 3, width_ratios=[0.001 if known is None else 0.05, 0.9, 1.3])
    left, right = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[0, 2])
    if known is not None and classes is not None:
        _draw_truth(figure, figure.add_subplot(grid[0, 0]), known[order[begin + counts // 2]], classes, truth_name)
    else:
        left.set_ylabel(ROWS, fontsize=11)
    _draw_memberships(figure, left, rows, labelled, ends)
    _draw_induced(figure, right, induced_image(U.T, order, PIXELS), middles, ends)
    figure.suptitle(title, fontsize=14)
    return _save(figure, Path(path))


def _draw_truth(figure: Any, axes: Any, values: Array, classes: Array, name: str) -> None:
    colours = _colours(len(classes))
    axes.imshow(
        np.searchsorted(classes, values)[:, None], cmap=ListedColormap(colours), vmin=-0.5, vmax=len(classes) - 0.5,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"true\n{name}", fontsize=10)
    axes.set_ylabel(ROWS, fontsize=11)
    handles = [Patch(color=colour, label=str(value)) for value, colour in zip(classes, colours, strict=True)]
    figure.legend(
        handles=handles, title=f"true {name}", loc="outside lower center", ncols=min(len(classes), 10), frameon=False
    )


def _draw_memberships(figure: Any, axes: Any, U: Array, names: Sequence[str], ends: Array) -> None:
    n, c = int(ends[-1]), len(names)
    shown = axes.imshow(
        U, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=(-0.5, c - 0.5, n, 0)
    )
    for end in ends[:-1]:
        axes.axhline(end, color="tab:red", linewidth=0.8)
    axes.set_xticks(range(c), names, fontsize=9, rotation=90 if max(map(len, names)) > 3 else 0)
    axes.set_yticks([])
    axes.set_title("Memberships\nhow much each object belongs to each cluster", fontsize=11)
    axes.set_xlabel("cluster")
    figure.colorbar(shown, ax=axes, label="membership, 0 to 1", shrink=0.7, pad=0.02)


def _draw_induced(figure: Any, axes: Any, image: Array, middles: Sequence[tuple[str, float]], ends: Array) -> None:
    n = int(ends[-1])
    shown = axes.imshow(image, cmap="viridis", vmin=0, vmax=1, interpolation="nearest", extent=(0, n, n, 0))
    for end in ends[:-1]:
        axes.axhline(end, color="white", linewidth=0.4)
        axes.axvline(end, color="white", linewidth=0.4)
    names, places = [name for name, _ in middles], [place for _, place in middles]
    axes.set_xticks(places, names, fontsize=9, rotation=90 if max(map(len, names)) > 3 else 0)
    axes.set_yticks(places, names, fontsize=9)
    axes.set_xlabel("cluster (objects in the same order both ways)")
    axes.set_title(
        "Induced dissimilarity D(U)\ndark blocks: clear clusters; dark off the diagonal: clusters that mix", fontsize=11
    )
    figure.colorbar(shown, ax=axes, label="0: the same memberships    1: nothing in common", shrink=0.7, pad=0.02)


def _colours(count: int) -> list[Any]:
    import matplotlib

    table = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
    return [table(k) for k in range(count)]


def _save(figure: Figure, path: Path) -> Path:
    """Write a figure, atomically, and make its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return path
