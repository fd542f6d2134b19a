"""Pictures of a page: curves as SVG whose colours follow the page, images as PNG files of few bytes."""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.errors import DasrelError, DasrelWarning
from dasrel.report.figures.matrix_drawing import CLUSTERS
from dasrel.report.page_parts import Block, Note, Picture
from dasrel.util import Array
from dasrel.util.text import count_text, path_text, shown

POINTS = 150
"""Points of the outline of a cluster in the picture of silhouettes, at most."""
DRAWN_CLUSTERS = 30
"""Clusters in that picture, at most: the largest."""
SIDE = 400
"""Pixels per side of the image of a matrix."""


def picture_or_note(draw: Callable[[], Block]) -> Block:
    """Return a picture, or a line that says why there is none; a warning too, where drawing fails."""
    try:
        return draw()
    except (DasrelError, OSError) as error:
        return Note(f"There is no picture here: {shown(error, limit=300)}.")
    except Exception as error:
        reason = shown(error, limit=200) or type(error).__name__
        warnings.warn(DasrelWarning(f"a picture could not be drawn ({reason}); the page is without it"), stacklevel=2)
        return Note(f"The picture could not be drawn: {reason}.", "caution")


def png_file(path: Path, alt: str, caption: str) -> Picture:
    """Return a picture that a command has drawn, in fewer bytes."""
    return Picture(alt, caption, smaller_png(path.read_bytes()), "png", path.name)


def smaller_png(data: bytes, *, scale: float = 1.0) -> bytes:
    """Return a PNG file with at most 256 colours, which charts and grey images do not miss, perhaps scaled."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        flat = Image.new("RGB", image.size, "white")
        flat.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
        if scale != 1:
            size = (max(1, round(flat.width * scale)), max(1, round(flat.height * scale)))
            flat = flat.resize(size, Image.Resampling.LANCZOS)
        out = io.BytesIO()
        flat.quantize(256, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return min(out.getvalue(), data, key=len) if scale == 1 else out.getvalue()


def inline_svg(figure: Any, alt: str, caption: str) -> Picture:
    """Return a figure of matplotlib as SVG: text as text, and black as the colour of the text around it."""
    import matplotlib

    out = io.StringIO()
    salt = hashlib.sha256(alt.encode(errors="replace")).hexdigest()[:12]  # ids that no other picture of the page has
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="((?:figure|axes|patch|text|line2d|matplotlib|xtick|ytick|legend)[^"]*)"', "", text)
    text = re.sub(r"(#000000|#000)\b|(?<=: )black\b", "currentColor", text)
    text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)
    return Picture(alt, caption, text.encode("utf-8"), "inline")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def silhouette_picture(labels: Array, silhouettes: Array) -> Picture:
    """Draw the silhouettes of all objects, cluster by cluster, the largest silhouette first.

    Outlines have at most 150 points for each cluster, whatever the number of objects. Cost: no scan; O(n log n).
    """
    known = ~np.isnan(silhouettes)
    labels, silhouettes = labels[known].astype(np.intp), silhouettes[known]
    sizes = np.bincount(labels)
    drawn = np.sort(np.argsort(-sizes, kind="stable")[:DRAWN_CLUSTERS])
    drawn = drawn[sizes[drawn] > 0]
    mean = float(silhouettes.mean())
    figure = new_figure(7.5, max(2.4, min(9.0, 1.2 + 0.55 * len(drawn))))
    axes = figure.subplots()
    place, ticks, gap = 0.0, [], 0.02 * len(labels)
    for k in drawn:
        values = np.sort(silhouettes[labels == k])[::-1]
        at = np.unique(np.linspace(0, len(values) - 1, min(len(values), POINTS)).astype(int))
        xs, ys = np.repeat(values[at], 2), place + np.repeat(np.append(at, len(values)), 2)[1:-1]
        axes.fill_betweenx(ys, 0, xs, color=CLUSTERS[k % len(CLUSTERS)], linewidth=0)
        ticks.append((place + len(values) / 2, f"{k} ({len(values):,})"))
        place += len(values) + gap
    axes.axvline(mean, color="black", linewidth=1, linestyle="--")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.text(mean, -gap, f" mean {mean:.3f}", fontsize=9, ha="left" if mean < 0.7 else "right", va="bottom")
    axes.set_ylim(place, -3 * gap)
    axes.set_xlim(min(-0.1, float(silhouettes.min()) - 0.05), 1)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=9)
    axes.set_ylabel("cluster (its objects)")
    axes.set_xlabel("silhouette")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    worst = int((silhouettes < 0).sum())
    left = int((sizes > 0).sum()) - len(drawn)
    more = f" The {DRAWN_CLUSTERS} largest clusters are drawn, {left:,} are not." if left else ""
    return inline_svg(
        figure,
        f"Silhouettes of {count_text(len(labels), 'object')} in {count_text(len(drawn), 'cluster')}: mean {mean:.3f},"
        f" {worst:,} below 0.",
        "Every object is a thin bar, the clusters one below the other. A long bar to the right lies well inside its"
        " cluster; a bar near 0 lies between two; a bar to the left is nearer to another cluster on average. Blocks"
        f" that reach beyond the dashed mean are clear clusters.{more}",
    )


def membership_picture(memberships: Array, title: str, names: Sequence[str] | None = None) -> Picture:
    """Draw memberships and the dissimilarity that they induce. Cost: no scan; that of `partition_figure`."""
    from dasrel.report.figures.partition import partition_figure

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "partition.png"
        partition_figure(memberships, path, title=title, names=names, histogram=True)
        return Picture(*membership_words(memberships.shape[1]), smaller_png(path.read_bytes()), "png")


def membership_words(clusters: int) -> tuple[str, str]:
    """Return the alternative text and the caption of a picture of memberships."""
    return (
        f"Memberships of all objects in {count_text(clusters, 'cluster')}, the dissimilarity that they induce, and a"
        " histogram of the largest memberships.",
        "Left: a row for each object, black where its membership is 1; a row with several grey cells lies between"
        " clusters. Right: dark blocks on the diagonal are distinct clusters, and dark off the diagonal are clusters"
        " that overlap. Below: objects whose largest membership is near 1 belong clearly to one cluster.",
    )


def matrix_picture(matrix: Any, order: Array, sizes: Sequence[tuple[str, int]], title: str) -> Picture:
    """Draw a matrix with its objects in an order, the blocks of clusters marked. Cost: one scan."""
    from dasrel.report.figures.matrix import matrix_image
    from dasrel.report.figures.matrix_drawing import Block as Run, write_image

    image = matrix_image(matrix, order, SIDE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "matrix.png"
        write_image(
            image, path, n_objects=matrix.n_objects, title=title, block_name="cluster",
            blocks=[Run(name, size) for name, size in sizes if size],
        )  # fmt: skip
        data = smaller_png(path.read_bytes())
    return Picture(
        f"The matrix of {count_text(matrix.n_objects, 'object')} in the order of {count_text(len(sizes), 'cluster')}.",
        "Black is alike. A dark square on the diagonal is a cluster whose members are near each other; a dark patch"
        " off the diagonal shows two clusters that are near each other, and a square without an edge is no cluster."
        f" {'Every pixel is the mean over many pairs.' if matrix.n_objects > SIDE else ''}",
        data,
        "png",
        path_text(matrix.store) if hasattr(matrix, "store") else None,
    )


def validity_curves(settings: Sequence[dict[str, Any]], best: dict[str, Any], choose: str) -> Picture:
    """Draw validity indices of all settings against their numbers of clusters. Cost: no scan."""
    from dasrel.report.figures.partition import PANELS, validity_figure

    runs = [(setting["rule"], setting["n_clusters"]) for setting in settings]
    values = {
        name: np.array(
            [np.nan if (of := setting["validity"].get(name)) is None else of for setting in settings], dtype=float
        )
        for name in PANELS
        if any(setting["validity"].get(name) is not None for setting in settings)
    }
    at = next(k for k, setting in enumerate(settings) if setting is best)
    counts = sorted({count for _, count in runs})
    return inline_svg(
        validity_figure(runs, values, at, choose),
        f"Validity indices against {counts[0]} to {counts[-1]} clusters; {best['n_clusters']} are recommended.",
        "Each panel is an index; its title says whether larger or smaller is better, and the circle is the recommended"
        " setting. A clear peak that several indices share is a good sign; a flat or rising curve says that the data"
        " have no natural number of clusters.",
    )


def typicality_picture(typicality: Array, threshold: float, distances: Array, k: int, rejected: Array) -> Picture:
    """Draw sorted typicalities, their histogram, and distances to k-th neighbours. Cost: no scan; O(n log n)."""
    from dasrel.report.figures.partition import draw_neighbours, draw_typicality

    figure, outliers = new_figure(13, 3.8), int(rejected.sum())
    left, middle, right = figure.subplots(1, 3)
    draw_typicality(left, middle, typicality, threshold, outliers)
    draw_neighbours(right, typicality, distances, k, rejected)
    return inline_svg(
        figure,
        f"Sorted typicalities of {count_text(len(typicality), 'object')}, {outliers:,} below the cut, their histogram,"
        " and distances to neighbours.",
        "Left: objects from the least typical to the most typical. Outliers lie below the cut; a steep rise before it"
        " and a flat curve behind it say that they are clear. Middle: the same values as a histogram. Right: the"
        " distance to a near neighbour, a second score; outliers of both scores are at the lower right.",
    )
