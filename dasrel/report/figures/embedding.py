"""The figure of an embedding: objects along the first axes, coloured by cluster and membership; shares of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dasrel.errors import InputError
from dasrel.report.figures.matrix_drawing import CLUSTERS
from dasrel.report.figures.partition import save_figure
from dasrel.util import Array, Float, PathLike
from dasrel.util.text import count_text, shown as plain

if TYPE_CHECKING:
    from dasrel.geometry.embedding import Colours, Embedding

DRAWN = 20_000
"""Objects that are drawn, at most: a random sample of more."""
MARKERS = "o^sDvPX*"
"""A group has a colour and a marker; after ten groups the colours begin again with the next marker."""
PALE = 0.85
"""How far the colour of an object without any preference is mixed with white."""
BARS = 20
"""Axes whose shares are drawn, at most."""


def embedding_figure(
    embedding: Embedding,
    path: PathLike,
    *,
    labels: Array | None = None,
    names: Sequence[str] | None = None,
    memberships: Array | None = None,
    title: str = "",
) -> Path:
    """Draw the objects along axes 1 and 2, and 3 and 2, and the shares of the axes, as a PNG file.

    Parameters
    ----------
    labels
        (n,) group of each object, 0, 1, ...; or any labels if `names` is not given.
    names
        Name of each group, for the legend.
    memberships
        (n, c) memberships in clusters: objects have the colour of the largest one, the paler the smaller it is. Labels
        are those of the largest memberships if they are not given.

    Cost: no scan. Of more than 20,000 objects a random sample is drawn.
    """
    n = embedding.n_objects
    groups, named, strength = _groups(n, labels, names, memberships)
    kept = np.arange(n)
    if n > DRAWN:
        kept = np.sort(np.random.default_rng(0).choice(n, DRAWN, replace=False))
    panels = [(0, 1), (2, 1)][: max(1, embedding.n_components - 1)]
    figure = Figure(figsize=(5.2 * len(panels) + 3.4, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(1, len(panels) + 1, width_ratios=[1.6] * len(panels) + [1])
    colours = _colours(groups, strength)
    for panel, (x, y) in zip(axes, panels, strict=False):
        if embedding.n_components > 1:
            _draw_objects(panel, embedding, (x, y), kept, groups, colours, named)
        else:
            _draw_line(panel, embedding, groups, named)
    _draw_shares(axes[-1], embedding)
    _legend(figure, groups, named, strength is not None)
    shown_of = f", {DRAWN:,} of them drawn" if n > DRAWN else ""
    axis = "axis" if embedding.n_components == 1 else "two axes"
    of = f"principal coordinates of {count_text(n, 'object')}{shown_of}"
    about = f"{of}: {embedding.shares[:2].sum():.0%} of the positive eigenvalues in the first {axis}"
    figure.suptitle(f"{title}, {about}" if title else about[0].upper() + about[1:], fontsize=12)
    return save_figure(figure, Path(path), dpi=120)


def draw_embedding(embedding: Embedding, colours: Colours | None, folder: Path) -> None:
    """Draw embedding.png into a result folder, coloured by labels or memberships if there are some. Cost: no scan."""
    coloured: dict[str, Any] = {} if colours is None else vars(colours)
    embedding_figure(embedding, folder / "embedding.png", **coloured)


def _groups(
    n: int, labels: Array | None, names: Sequence[str] | None, memberships: Array | None
) -> tuple[Array, list[str], Float | None]:
    """Return the group of each object, the names of the groups, and how strongly each belongs to it, from 0 to 1."""
    strength = None
    if memberships is not None:
        U = np.asarray(memberships, dtype=np.float64)
        if U.ndim != 2 or len(U) != n or not np.isfinite(U).all():
            raise InputError(
                f"memberships of shape {U.shape}", remedy=f"give finite numbers, {n:,} objects by clusters"
            )
        flat = 1 / U.shape[1]
        strength = np.clip((U.max(axis=1) - flat) / max(1 - flat, 1e-9), 0, 1)
        labels = U.argmax(axis=1) if labels is None else labels
        names = [str(k) for k in range(U.shape[1])] if names is None else names
    if labels is None:
        return np.zeros(n, dtype=np.intp), [], None
    given = np.asarray(labels)
    if given.shape != (n,):
        raise InputError(
            f"labels have shape {given.shape}", remedy=f"give one for each of the {count_text(n, 'object')}"
        )
    if names is not None:
        return given.astype(np.intp), [str(name) for name in names], strength
    known, inverse = np.unique(given, return_inverse=True)
    return inverse, [str(label) for label in known], strength


def _colours(groups: Array, strength: Float | None) -> Float:
    table = np.array([to_rgb(colour) for colour in CLUSTERS])
    colours: Float = table[groups % len(CLUSTERS)]
    if strength is not None:
        colours = 1 - (1 - colours) * (1 - PALE * (1 - strength[:, None]))
    return colours


def _marker(group: int) -> str:
    return MARKERS[group // len(CLUSTERS) % len(MARKERS)]


def _draw_objects(
    panel: Any,
    embedding: Embedding,
    which: tuple[int, int],
    kept: Array,
    groups: Array,
    colours: Float,
    names: list[str],
) -> None:
    x, y = (embedding.coordinates[:, k] for k in which)
    size = float(np.clip(22_000 / len(kept), 3, 30))
    edge = 0.3 if len(kept) <= 5_000 else 0.0  # objects that overlap are told apart
    mixed = np.random.default_rng(1).permutation(kept)  # no group lies on top of all others
    for marker in dict.fromkeys(_marker(int(k)) for k in np.unique(groups)):
        mine = mixed[[_marker(int(k)) == marker for k in groups[mixed]]]
        panel.scatter(x[mine], y[mine], s=size, c=colours[mine], marker=marker, edgecolors="white", linewidths=edge)
    few = len(names) <= 30 and all(len(name) <= 12 for name in names)
    for k, name in enumerate(names if few else []):  # the name in the middle of its group
        mine = np.flatnonzero(groups == k)
        if mine.size:
            panel.text(
                np.median(x[mine]), np.median(y[mine]), plain(name), fontsize=9, ha="center", va="center",
                bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": CLUSTERS[k % len(CLUSTERS)]},
            )  # fmt: skip
    panel.axhline(0, color="0.8", linewidth=0.6, zorder=0)
    panel.axvline(0, color="0.8", linewidth=0.6, zorder=0)
    middle = [(values.max() + values.min()) / 2 for values in (x, y)]
    half = 0.54 * max(np.ptp(x), np.ptp(y), 1e-300)  # both axes have one scale, and no object is left out
    panel.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    panel.set_aspect("equal", adjustable="box")
    panel.set_xlabel(_axis_title(embedding, which[0]))
    panel.set_ylabel(_axis_title(embedding, which[1]))


def _draw_line(panel: Any, embedding: Embedding, groups: Array, names: list[str]) -> None:
    """Draw a single axis as a histogram."""
    x = embedding.coordinates[:, 0]
    parts = [x[groups == k] for k in range(max(1, len(names)))]
    panel.hist(parts, bins=60, stacked=True, color=[CLUSTERS[k % len(CLUSTERS)] for k in range(len(parts))])
    panel.set_xlabel(_axis_title(embedding, 0))
    panel.set_ylabel("objects")


def _axis_title(embedding: Embedding, k: int) -> str:
    return f"axis {k + 1} ({embedding.shares[k]:.1%})"


def _draw_shares(panel: Any, embedding: Embedding) -> None:
    shares = 100 * embedding.shares[:BARS]
    panel.bar(np.arange(1, len(shares) + 1), shares, color="0.45")
    panel.set_xlim(0.4, max(len(shares), 4) + 0.6)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_xlabel("axis")
    panel.set_ylabel("share of the positive eigenvalues, %")
    if embedding.spread:
        note = f"a spread of {embedding.spread:.3g} was added:\nno eigenvalue is negative"
    elif not embedding.n_negative:
        note = "no negative eigenvalue was found"
    else:
        note = f"negative: {embedding.negative_share:.1%} of all eigenvalues\nby size, which no axis can show"
    panel.set_title(note, fontsize=10)


def _legend(figure: Any, groups: Array, names: list[str], fuzzy: bool) -> None:
    if not names:
        return
    counts = np.bincount(groups, minlength=len(names))
    handles = [
        Line2D([], [], linestyle="", marker=_marker(k), color=CLUSTERS[k % len(CLUSTERS)],
               label=f"{plain(name)} ({counts[k]:,})")
        for k, name in enumerate(names) if counts[k]
    ]  # fmt: skip
    more = len(handles) - 24
    if more > 0:
        handles = [*handles[:24], Line2D([], [], linestyle="", label=f"and {more} more")]
    heading = "cluster (objects); the paler, the smaller the largest membership" if fuzzy else "group (objects)"
    columns = min(len(handles), 10 if max(len(str(handle.get_label())) for handle in handles) < 14 else 5)
    figure.legend(handles=handles, title=heading, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
