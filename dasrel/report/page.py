"""One HTML page about any number of results: it needs no network and no other file, and has less than 1 MB.

Each operation makes the part about its results; `dasrel.commands.report` finds them. The words of the verdicts are in
`verdict`. Here the page is put together within its size: pictures become smaller before anything is left out, and a
line says what was.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasrel import __version__
from dasrel.errors import InputError
from dasrel.report.cluster_part import best_setting, read_labels
from dasrel.report.page_figures import picture_or_note, smaller_png
from dasrel.report.page_parts import Block, Facts, Note, Picture, ResultPart, Section, Table
from dasrel.report.result_reading import Source, read_objects
from dasrel.util import PathLike, html
from dasrel.util.text import count_text, path_text

if TYPE_CHECKING:
    pass

LIMIT = 1_000_000
"""Bytes of a page, at most."""
ROWS = (100, 40, 15, 5)
"""Rows of a table, at most; fewer where there are so many tables that the page would be too large."""
TEMPLATES = Path(__file__).parent / "templates"
OF_MATRIX = ("Matrix", "Spectrum", "Euclideanisation")
"""Kinds of parts that say what the matrix is, not what is in it."""
GENERATOR = '<meta name="generator" content="dasrel'
"""By which a page of dasrel is known."""


def is_page(path: PathLike) -> bool:
    """Return whether a file is a page of `dasrel report`."""
    with open(path, "rb") as file:
        return GENERATOR.encode() in file.read(2000)


def render(parts: Sequence[ResultPart], title: str = "report") -> bytes:
    """Return the page as HTML, within its size. Pictures and tables of the parts are changed to fit."""
    for k, part in enumerate(parts):
        part.anchor = f"result-{k + 1}"
    for most in ROWS:
        for table in _tables(parts):
            table.cut(most)
        left = LIMIT - len(_html(parts, title, attached=False))
        if left > LIMIT // 2:
            break
    kept = len(parts)
    while left < LIMIT // 10 and kept > 1:  # hundreds of results: the last ones by their verdict only
        kept -= max(1, kept // 10)
        for part in parts[kept:]:
            text = "Its tables and pictures are left out, because the page would be larger than 1 MB. A page of its own"
            part.sections = [Section("Details", [Note(f"{text} shows them: dasrel report {part.where}")])]
        left = LIMIT - len(_html(parts, title, attached=False))
    _fit(parts, left - 2_000)
    page = _html(parts, title)
    if len(page) > LIMIT:
        raise InputError(
            f"the page would have {len(page):,} bytes, and at most {LIMIT:,}", remedy="make pages of fewer results"
        )
    return page


def _tables(parts: Sequence[ResultPart]) -> list[Table]:
    return [
        block for part in parts for section in part.sections for block in section.blocks if isinstance(block, Table)
    ]


def _fit(parts: Sequence[ResultPart], left: int) -> None:
    """Make pictures smaller, and leave out what does not fit: small ones first get what they need."""
    places = [(section.blocks, k) for part in parts for section in part.sections for k in range(len(section.blocks))]
    drawn = [(blocks, k, picture) for blocks, k in places if isinstance(picture := blocks[k], Picture)]
    drawn.sort(key=lambda place: _picture_bytes(place[2]))
    for count, (blocks, k, picture) in enumerate(drawn):
        share = left // (len(drawn) - count)
        for _ in range(3):
            if _picture_bytes(picture) > share and picture.form == "png":
                picture.data = smaller_png(picture.data, scale=0.75)
        if _picture_bytes(picture) > share:
            named = f": it is the file {picture.file}" if picture.file else ""
            blocks[k] = Note(f"A picture is left out, because the page would be larger than 1 MB{named}. {picture.alt}")
        else:
            left -= _picture_bytes(picture)
    for listed in sorted(_tables(parts), key=lambda table: len(table.whole or b"")):
        if listed.whole is not None and (size := len(listed.whole) * 4 // 3 + 100) <= left:
            left -= size
        elif listed.whole is not None:
            listed.whole = None


def _picture_bytes(picture: Picture) -> int:
    return len(picture.data) if picture.form == "inline" else len(picture.data) * 4 // 3 + 100


@cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("page.html")


def _html(parts: Sequence[ResultPart], title: str, *, attached: bool = True) -> bytes:
    """Return the page as HTML; without what is attached, pictures and files, it says how large the rest is."""
    from markupsafe import Markup, escape

    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    matrices = list(dict.fromkeys(part.matrix for part in parts if part.matrix))
    text: str = _template().render(
        parts=parts,
        title=title,
        heading=_heading(parts),
        version=__version__,
        several=_several(matrices),
        numbers={digest: k + 1 for k, digest in enumerate(matrices)} if len(matrices) > 1 else {},
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        card=lambda part: Markup(html.card(part.kind, part.facts)),
        data_url=lambda form, data: f"data:{form};base64,{base64.b64encode(data).decode()}" if attached else "",
        coded=lambda words: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words)))),
        inline=lambda picture: Markup(picture.data.decode("utf-8")) if attached else "",
    )
    return text.encode("utf-8", errors="backslashreplace")


def _heading(parts: Sequence[ResultPart]) -> str:
    if len(parts) == 1:
        return parts[0].headline
    if parts[0].kind == "Workflow":
        return f"Workflow, {parts[0].headline}"
    if parts[0].kind == "Exploration":
        return parts[0].headline
    n = {part.n_objects for part in parts if part.n_objects}
    return f"{len(parts)} results" + (f", {count_text(n.pop(), 'object')}" if len(n) == 1 else "")


def grouped(parts: list[ResultPart]) -> list[ResultPart]:
    """Return the parts in the order given, those of the same matrix one after the other, what the matrix is last."""
    matrices = list(dict.fromkeys(part.matrix for part in parts if part.matrix))
    if len(matrices) > 1:
        return sorted(parts, key=lambda part: matrices.index(part.matrix) if part.matrix else -1)
    return sorted(parts, key=lambda part: part.kind in OF_MATRIX)


def joined(parts: list[ResultPart]) -> list[ResultPart]:
    """Add embeddings to the clusterings of the same matrix, and show what is known of a store once only."""
    axes = {part.matrix: part.source for part in parts if part.kind == "Embedding"}
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for part in parts:
        if part.kind == "Clustering":
            _add_embedding(part, axes.get(part.matrix) if part.matrix else None)
        for section in part.sections:
            known = [tuple(block.rows) for block in section.blocks if isinstance(block, Facts)]
            if section.title == "The matrix" and known and known[0] in seen:
                section.blocks = [Note(f"The store is the same as above, see {seen[known[0]]}.")]
            elif section.title in ("The matrix", "Audit") and known:
                seen[known[0]] = f"{part.kind}: {part.headline}"
    return parts


def _add_embedding(part: ResultPart, axes: Source | None) -> None:
    """Insert the embedding into the part about a clustering: its objects along two axes, coloured by cluster.

    `axes`: a result of `dasrel embed` of the same matrix, if there is one on the page. Cost: no scan.
    """
    source = part.source
    best = best_setting(source.values)
    folder, n = source.setting(best["folder"]), source.values["n_objects"]
    block: Block = Note(
        f"There is no embedding on this page. `dasrel embed STORE AXES --result {shlex.quote(path_text(folder))}`"
        " makes one; give its folder to `dasrel report` together with this result."
    )
    if axes is not None:
        block = picture_or_note(lambda: _embedding(axes, folder, n))
    at = next(k for k, section in enumerate(part.sections) if section.title == "Border objects")
    part.sections.insert(at, Section("Embedding", [block]))


def _embedding(axes: Source, folder: Any, n: int) -> Picture:
    """Draw objects along the axes of an embedding, coloured by their clusters. Cost: no scan."""
    from dasrel.geometry.embedding import Embedding
    from dasrel.report.figures.embedding import embedding_figure

    result, drawn = axes.values, min(3, axes.values["n_components"])
    names = [f"axis{k + 1}" for k in range(drawn)]
    read = read_objects(axes.file("coordinates.csv"), names, n, lambda of: np.full(len(of["axis1"]), np.nan), 0)
    coordinates = np.column_stack([read.columns[name] for name in names])
    kept = (
        "positive_sum",
        "positive_sum_least",
        "negative_sum",
        "negative_share",
        "negative_share_least",
        "n_negative",
        "lowest",
        "spread",
    )
    numbers: dict[str, Any] = {name: result[name] for name in kept}
    for name in ("eigenvalues", "residuals", "shares"):
        numbers[name] = np.array(result[name][:drawn])
    embedding = Embedding(coordinates=coordinates, row_means=np.zeros(0), **numbers)
    with tempfile.TemporaryDirectory() as temporary:
        path = embedding_figure(embedding, Path(temporary) / "embedding.png", labels=read_labels(folder, n))
        data = smaller_png(path.read_bytes(), scale=0.8)
    return Picture(
        f"{count_text(n, 'object')} along the first principal coordinates, coloured by cluster.",
        "Objects that are near in the matrix are near here, as far as two axes can show it. Clusters that overlap here"
        " may be apart on other axes; clusters that are apart here are apart.",
        data,
        "png",
    )


def _several(matrices: Sequence[str]) -> str:
    """Return the line that says that results are of different matrices."""
    if len(matrices) < 2:
        return ""
    count = count_text(len(matrices), "different matrix", "different matrices")
    return f"These results are of {count}: their numbers cannot be compared with each other, and they are shown apart."
