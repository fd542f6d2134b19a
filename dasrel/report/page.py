"""One HTML page about any number of results: it needs no network and no other file, and has less than 1 MB.

The parts of a page are made by `cluster_part`, `other_parts` and `workflow_part`; the words of the verdicts are in
`verdict`. Here results are found, and the page is put together within its size: pictures become smaller before anything
is left out, and a line says what was.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dasrel import __version__
from dasrel.errors import DasrelError, InputError
from dasrel.report import other_parts
from dasrel.report.cluster_part import best_setting, cluster_part, read_labels
from dasrel.report.page_figures import picture_or_note, smaller_png
from dasrel.report.page_parts import Block, Facts, Note, Picture, ResultPart, Section, Table
from dasrel.report.repeat import FLAG
from dasrel.report.result_reading import Source, damaged, kind_of, read_json, read_objects
from dasrel.report.workflow_part import STATE, workflow_part, workflow_sources
from dasrel.store.audit import audit_store
from dasrel.store.matrix import Matrix, is_store
from dasrel.util import PathLike, html, progress
from dasrel.util.files import disk_errors, replacing
from dasrel.util.results import check_file, check_not_input
from dasrel.util.text import count_text, is_url, path_text, some

if TYPE_CHECKING:
    from dasrel.cmeans.result import Clustering

LIMIT = 1_000_000
"""Bytes of a page, at most."""
ROWS = (100, 40, 15, 5)
"""Rows of a table, at most; fewer where there are so many tables that the page would be too large."""
TEMPLATES = Path(__file__).parent / "templates"
GENERATOR = '<meta name="generator" content="dasrel'
"""By which a page of dasrel is known."""
READERS: dict[str, Callable[[Source], ResultPart]] = {
    "cluster": cluster_part,
    "outliers": other_parts.outlier_part,
    "align": other_parts.alignment_part,
    "embed": other_parts.embedding_part,
    "linkage": other_parts.linkage_part,
    "tree": other_parts.tree_part,
    "spectrum": other_parts.spectrum_part,
    "euclideanize": other_parts.euclideanize_part,
    "audit": other_parts.audit_part,
    "validity": other_parts.validity_part,
}

Given = Any
"""A path, or a `Clustering`."""
Found = Source | Path
"""A result, or a folder of figures."""


def write_report(results: Any, path: PathLike = "report.html", *, force: bool = False) -> Path:
    """Write one HTML page about results, and return its path. It needs no network and no other file.

    Parameters
    ----------
    results
        One or several of: a folder of `dasrel cluster`, `outliers`, `align`, `embed` or `tree`; a folder of `dasrel
        run`; a store; a file of `dasrel euclideanize`; a JSON file of `dasrel spectrum`, `euclideanize`, `audit` or
        `validity` with `--json`; a folder with figures.csv; or what `dasrel.cluster` returns. Results of different
        matrices are shown apart.
    force
        Replace a file that exists.

    Cost: one scan for each clustering whose store is there, has the same content and at most 2 GiB, to draw its matrix;
    for what `dasrel.cluster` returns one more, if it was not judged. Without the store the page says what is missing.
    Reads the tables; the page has less than 1 MB, whatever the number of objects.
    """
    with ExitStack() as stack:
        given = [results] if isinstance(results, (str, os.PathLike)) or hasattr(results, "partitions") else results
        prepare_report(given, path, force=force, stack=stack).run()
    return Path(path)


def prepare_report(
    results: Sequence[Given], out: PathLike, *, force: bool = False, stack: ExitStack | None = None
) -> ReportJob:
    """Find results, and check that the page may be written. Cost: no scan, but that of judging a `Clustering`."""
    check_file(out, force=force)
    if not results:
        raise InputError("there are no results for the page; name at least one")
    found: list[Found] = []
    for one in results:
        if isinstance(one, (str, os.PathLike)):
            if not os.path.isdir(one):  # a page may lie in the folder of its result
                check_not_input(out, one)
            found += find_results(one)
        else:
            assert stack is not None
            found.append(_saved(one, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
    return ReportJob(found, Path(out))


@dataclass(frozen=True, eq=False)
class ReportJob:
    """A page to be written; see `prepare_report`."""

    found: list[Found]
    out: Path

    def run(self) -> dict[str, Any]:
        """Write the page, and return what it is about, in plain values."""
        with progress.watch() as counted:
            parts = _joined(_grouped([_part(one) for one in self.found]))
        text = render(parts, self.out.stem)
        remedy = "choose another place"
        with disk_errors(self.out, full="the page is not written", denied=remedy), replacing(self.out) as temporary:
            temporary.write_bytes(text)
        listed = [{"kind": one.kind, "result": one.where, "headline": one.headline} for one in parts]
        return {"out": str(self.out), "bytes": len(text), "results": listed, "scans": counted.scans}


def is_page(path: PathLike) -> bool:
    """Whether a file is a page of `dasrel report`."""
    with open(path, "rb") as file:
        return GENERATOR.encode() in file.read(2000)


def report_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print what a page is about."""
    lines = [(one["kind"].lower(), one["headline"]) for one in result["results"][:20]]
    left = len(result["results"]) - len(lines)
    lines += [("", f"and {left} more")] if left > 0 else []
    return [*lines, ("page", f"{path_text(result['out'])}, {result['bytes']:,} bytes; open it in a browser")]


# -------------------------------------------------------------------------------------------------------------- finding


def find_results(path: PathLike) -> list[Found]:
    """Return the results in a folder or a file; raise if there is none. Cost: reads JSON files, and no tile."""
    place, where = Path(path), path_text(path)
    if is_url(path):
        raise InputError(f"{where}: results are read from this machine; copy them to it")
    if place.is_file():
        return [_file_source(place)]
    if not place.is_dir():
        raise InputError(f"there is no result {where}; give a folder that a command has written")
    if (place / STATE).is_file():
        return _workflow_sources(place)
    if (place / "result.json").is_file():
        values = read_json(place / "result.json")
        kind = kind_of(values)
        if kind is None:
            raise damaged(place / "result.json", "its keys are those of no result of dasrel")
        return [Source(kind, place, values)]
    if (place / "figures.csv").is_file():
        return [place]
    if is_store(str(place)):
        return [Source("audit", place, audit_store(str(place)))]
    raise InputError(_no_result(place))


def _no_result(place: Path) -> str:
    """Return why a folder is no result, and what may have been meant."""
    where = path_text(place)
    above = place.absolute().parent
    if (place / "memberships.npy").is_file() and (above / "result.json").is_file():
        return f"{where} is one setting of a result; give the result itself, {path_text(above)}"
    inside = sorted(
        {one.parent.name for name in ("result.json", "figures.csv", STATE) for one in place.glob(f"*/{name}")}
    )
    if inside:
        return (
            f"{where} is no result, but has some in it; give them: {some([path_text(place / one) for one in inside])}"
        )
    return f"{where} is no result: it has no result.json, run.state.json or figures.csv, and is no store"


def _file_source(path: Path) -> Source:
    if path.suffix == ".npz":
        from dasrel.geometry.euclidean import FORMAT
        from dasrel.util.archives import load_archive

        _, about = load_archive(path, FORMAT)
        return Source("euclideanize", path, {**about, "matrix": None})
    if path.suffix.lower() != ".json":
        raise InputError(
            f"{path_text(path)} is no result; give a folder of results, a store, a .json file or an .npz file of"
            " `dasrel euclideanize`"
        )
    values = read_json(path)
    kind = kind_of(values)
    if kind is None:
        raise InputError(f"{path_text(path)} is JSON, but not of a command that a page is made of")
    if kind in ("cluster", "outliers", "align", "embed", "linkage", "tree"):
        folder = path.parent if path.name == "result.json" else Path(str(values.get("out")))
        if not (folder / "result.json").is_file():
            raise InputError(f"{path_text(path)} is what a command has printed; give the folder of its result instead")
        return Source(kind, folder, values)
    return Source(kind, path, values)


def _workflow_sources(folder: Path) -> list[Found]:
    state = read_json(folder / STATE)
    found: list[Found] = [Source("workflow", folder, state)]
    for name, place in workflow_sources(folder, state):
        found += [replace(one, title=name) if isinstance(one, Source) else one for one in find_results(place)]
    return found


def _saved(found: Clustering, folder: Path) -> Source:
    """Write the result of this process into a temporary folder, and return it with its matrix."""
    from dasrel.cmeans.output import write_clustering
    from dasrel.report.figures.clustering import clustering_pictures

    if found.relation is None:
        raise InputError("this result has no matrix: give the folder that it was read from")
    matrix = found.relation.matrix
    if found.quality is None:
        found = replace(found, quality=found.validity())
    out = folder / "result"
    values = write_clustering(found, out, draw=clustering_pictures)
    digest = matrix.identity_digest() if isinstance(matrix, Matrix) else None
    return Source("cluster", out, {**values, "matrix": digest}, "of this process", matrix)


def _part(found: Found) -> ResultPart:
    if isinstance(found, Path):
        return other_parts.figures_part(found)
    if found.kind == "workflow":
        return workflow_part(found)
    try:
        part = READERS[found.kind](found)
    except (DasrelError, OSError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else f"a value is not as it was written ({error})"
        raise damaged(found.path, why) from error
    if found.title:
        part.where = f"{part.where} ({found.title})" if not found.matrix else found.title
    return part


# ------------------------------------------------------------------------------------------------------------ rendering


def render(parts: Sequence[ResultPart], title: str = "report") -> bytes:
    """Return the page as HTML, within its size. Pictures and tables of the parts are changed to fit."""
    for k, part in enumerate(parts):
        part.anchor = f"result-{k + 1}"
    for most in ROWS:
        for one in _tables(parts):
            one.cut(most)
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
        raise InputError(f"the page would have {len(page):,} bytes, and at most {LIMIT:,}: make pages of fewer results")
    return page


def _tables(parts: Sequence[ResultPart]) -> list[Table]:
    return [one for part in parts for section in part.sections for one in section.blocks if isinstance(one, Table)]


def _fit(parts: Sequence[ResultPart], left: int) -> None:
    """Make pictures smaller, and leave out what does not fit: small ones first get what they need."""
    places = [(section.blocks, k) for part in parts for section in part.sections for k in range(len(section.blocks))]
    drawn = [(blocks, k, one) for blocks, k in places if isinstance(one := blocks[k], Picture)]
    drawn.sort(key=lambda one: _picture_bytes(one[2]))
    for count, (blocks, k, one) in enumerate(drawn):
        share = left // (len(drawn) - count)
        for _ in range(3):
            if _picture_bytes(one) > share and one.form == "png":
                one.data = smaller_png(one.data, scale=0.75)
        if _picture_bytes(one) > share:
            named = f": it is the file {one.file}" if one.file else ""
            blocks[k] = Note(f"A picture is left out, because the page would be larger than 1 MB{named}. {one.alt}")
        else:
            left -= _picture_bytes(one)
    for listed in sorted(_tables(parts), key=lambda one: len(one.whole or b"")):
        if listed.whole is not None and (size := len(listed.whole) * 4 // 3 + 100) <= left:
            left -= size
        elif listed.whole is not None:
            listed.whole = None


def _picture_bytes(one: Picture) -> int:
    return len(one.data) if one.form == "inline" else len(one.data) * 4 // 3 + 100


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
        inline=lambda one: Markup(one.data.decode("utf-8")) if attached else "",
    )
    return text.encode("utf-8", errors="backslashreplace")


def _heading(parts: Sequence[ResultPart]) -> str:
    if len(parts) == 1:
        return parts[0].headline
    if parts[0].kind == "Workflow":
        return f"Workflow, {parts[0].headline}"
    n = {part.n_objects for part in parts if part.n_objects}
    return f"{len(parts)} results" + (f", {count_text(n.pop(), 'object')}" if len(n) == 1 else "")


def _grouped(parts: list[ResultPart]) -> list[ResultPart]:
    """Return the parts in the order given, those of the same matrix one after the other."""
    matrices = list(dict.fromkeys(part.matrix for part in parts if part.matrix))
    if len(matrices) < 2:
        return parts
    return sorted(parts, key=lambda part: matrices.index(part.matrix) if part.matrix else -1)


def _joined(parts: list[ResultPart]) -> list[ResultPart]:
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
        f"There is no embedding on this page. `dasrel embed STORE AXES {FLAG}result {shlex.quote(path_text(folder))}`"
        " makes one; give its folder to `dasrel report` together with this result."
    )
    if axes is not None:
        block = picture_or_note(lambda: _embedding(axes, folder, n))
    at = next(k for k, section in enumerate(part.sections) if section.title == "Border objects")
    part.sections.insert(at, Section("Embedding", [block]))


def _embedding(axes: Source, folder: Any, n: int) -> Picture:
    """Draw objects along the axes of an embedding, coloured by their clusters. Cost: no scan."""
    from dasrel.geometry.embedding import Embedding
    from dasrel.report.figures.embedding import embedding_picture

    result, drawn = axes.values, min(3, axes.values["n_components"])
    names = [f"axis{k + 1}" for k in range(drawn)]
    read = read_objects(axes.file("coordinates.csv"), names, n, lambda of: np.full(len(of["axis1"]), np.nan), 0)
    coordinates = np.column_stack([read.columns[name] for name in names])
    kept = ("positive_sum", "negative_sum", "negative_share", "negative_share_least", "n_negative", "lowest", "spread")
    numbers: dict[str, Any] = {name: result[name] for name in kept}
    for name in ("eigenvalues", "residuals", "shares"):
        numbers[name] = np.array(result[name][:drawn])
    found = Embedding(coordinates=coordinates, row_means=np.zeros(0), **numbers)
    with tempfile.TemporaryDirectory() as temporary:
        path = embedding_picture(found, Path(temporary) / "embedding.png", labels=read_labels(folder, n))
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
