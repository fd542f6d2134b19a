"""Draw an image of a matrix to a file: colours over the whole range, blocks or clusters beside both axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dasrel.errors import InputError
from dasrel.util import Array, Float, PathLike
from dasrel.util.files import replacing
from dasrel.util.text import shown

CLUSTERS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#B8A800", "#444444", "#882255", "#332288",
)  # fmt: skip
"""Of Okabe and Ito, told apart by colour-blind eyes, the yellow darkened to be seen on white, and two of Tol."""


COLOURS = ("gray", "viridis", "cividis")
DOTS = 100  # dots per inch
CUT = 0.5
"""Percent of the pixels at either end of the range that share its last colour, so that a few do not take all of it."""
LINE = "#D55E00"
"""Colour of the boundaries, which is in none of the maps."""
STRIP, NUMBERED = 14, 40
"""Dots of the strip of clusters beside an axis; blocks whose numbers are written, at most."""


class Block(NamedTuple):
    """A run of neighbours in the order of the objects."""

    name: str
    size: int


def write_image(
    image: ArrayLike,
    path: PathLike,
    *,
    n_objects: int | None = None,
    title: str = "",
    label: str = "dissimilarity",
    colours: str = "gray",
    blocks: Sequence[Block] | None = None,
    block_name: str = "block",
    clusters: Array | None = None,
    large_is_dark: bool = False,
) -> None:
    """Write an image of a matrix to a file (PNG, or the format of the suffix), with axes in objects and a colour bar.

    The colours go from the smallest to the largest value off the diagonal, but for the last half percent at either end;
    the colour bar says so.

    Parameters
    ----------
    n_objects
        Number of objects on the axes; by default the side of the image.
    label
        Name of the values, beside the colour bar.
    colours
        "gray" (alike is black, as in VAT images), "viridis" or "cividis".
    blocks
        Names and sizes of runs of neighbours: their boundaries are drawn, and names and sizes written on both axes.
    block_name
        What a block is, for the axes.
    clusters
        The cluster of each object in the order drawn, shown as a strip of colours beside both axes.
    large_is_dark
        Whether large values mean alike, as for similarities.
    """
    values = np.asarray(image, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size or not np.isfinite(values).all():
        raise InputError(f"the image has shape {values.shape}", remedy="give a square array of finite numbers")
    if colours not in COLOURS:
        raise InputError(f"colours are one of {', '.join(COLOURS)}, not {shown(colours)!r}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n = values.shape[0] if n_objects is None else n_objects
    # An integer number of dots per value, one from 400 values per side on, so that nothing is blurred or left out.
    side = values.shape[0] * max(1, -(-400 // values.shape[0]))
    strip = 0 if clusters is None else STRIP + 4
    left, right, bottom, top = 100, 150 + strip, 65, 50 + strip
    width, height = left + side + right, bottom + side + top
    figure = Figure(figsize=(width / DOTS, height / DOTS), dpi=DOTS)
    FigureCanvasAgg(figure)

    def place(x: float, y: float, w: float, h: float) -> Any:
        return figure.add_axes((x / width, y / height, w / width, h / height))

    axes = place(left, bottom, side, side)
    low, high, extend = colour_range(values)
    colour_map = colours if (colours == "gray") != large_is_dark else f"{colours}_r"
    mesh = axes.imshow(
        values, cmap=colour_map, interpolation="nearest", extent=(0, n, n, 0), vmin=low, vmax=high, aspect="auto"
    )
    draw_positions(axes, n, blocks, block_name)
    if clusters is not None:
        _draw_strips(place(left + side + 4, bottom, STRIP, side), place(left, bottom + side + 4, side, STRIP), clusters)
    if title:
        figure.text((left + side / 2) / width, 1 - 30 / height, shown(title, limit=120), ha="center", fontsize=11)
    bar = figure.colorbar(mesh, cax=place(left + side + strip + 20, bottom, 20, side), extend=extend, extendfrac=0.02)
    cut = "" if extend == "neither" else f"; colours span {100 - 2 * CUT:g} % of the pixels"
    bar.set_label(f"{label}{cut}")
    target = Path(path)
    form = target.suffix.lstrip(".").lower() or "png"
    if form not in figure.canvas.get_supported_filetypes():
        raise InputError(f"images cannot be written as .{shown(form)}", remedy="use .png, .pdf or .svg")
    with replacing(target) as temporary, open(temporary, "xb") as file:
        figure.savefig(file, format=form)


def colour_range(values: Float) -> tuple[float, float, str]:
    """Return the values of the first and the last colour, and at which ends there are values beyond them."""
    off = values[~np.eye(len(values), dtype=bool)] if len(values) > 1 else values.ravel()
    low, high = (float(percentile) for percentile in np.percentile(off, [CUT, 100 - CUT], method="nearest"))
    if not low < high:
        low, high = float(values.min()), float(values.max())
    below, above = bool(off.min() < low), bool(off.max() > high)
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return low, high, extend[below, above]


def draw_positions(axes: Any, n: int, blocks: Sequence[Block] | None, block_name: str) -> None:
    """Draw the boundaries of blocks with their names and sizes on both axes; without blocks, positions of objects."""
    from matplotlib.ticker import MaxNLocator

    if blocks is None:
        for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            axis.set_major_locator(MaxNLocator(6, integer=True))
            getattr(axes, f"set_{name}label")("position in the order of objects")
        return
    ends = list(accumulate(block.size for block in blocks))
    for end in ends[:-1]:
        axes.axhline(end, color=LINE, linewidth=0.9)
        axes.axvline(end, color=LINE, linewidth=0.9)
    middles = [end - block.size / 2 for end, block in zip(ends, blocks, strict=True)]
    # The numbers of blocks that would be written over each other are left out.
    shown_blocks, last = [], -float("inf")
    for k, middle in enumerate(middles):
        if middle - last >= n / NUMBERED:
            shown_blocks.append(k)
            last = middle
    places = [middles[k] for k in shown_blocks]
    axes.set_yticks(places, [f"{blocks[k].name} ({blocks[k].size:,})" for k in shown_blocks], fontsize=8)
    axes.set_xticks(places, [blocks[k].name for k in shown_blocks], fontsize=8)
    axes.set_xlabel(block_name)
    axes.set_ylabel(f"{block_name} (its objects)")


def _draw_strips(beside: Any, above: Any, clusters: Array) -> None:
    """Draw the cluster of each object as a colour, beside the rows and above the columns; long runs have its number."""
    from matplotlib.colors import ListedColormap

    numbers = np.asarray(clusters, dtype=np.int64)
    colours = ListedColormap(list(CLUSTERS))
    for axes, values in ((beside, numbers[:, None]), (above, numbers[None, :])):
        axes.imshow(
            np.where(values < 0, np.nan, values % len(CLUSTERS)), cmap=colours, vmin=-0.5, vmax=len(CLUSTERS) - 0.5,
            interpolation="nearest", aspect="auto",
        )  # fmt: skip
        axes.set_xticks([])
        axes.set_yticks([])
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    for start, size in zip(starts.tolist(), np.diff(starts, append=numbers.size).tolist(), strict=True):
        if size >= numbers.size / NUMBERED:
            text = {"s": str(numbers[start]), "ha": "center", "va": "center", "fontsize": 8, "color": "white"}
            beside.text(0, start + size / 2, **text)
            above.text(start + size / 2, 0, **text)
