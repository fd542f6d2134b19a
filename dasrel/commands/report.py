"""Write one HTML page about results: verdicts in words, pictures and tables; no other file is needed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasrel.commands.base import Input, Lines, Operation, Output, Prepared, Result, Target
from dasrel.commands.operations import OPERATIONS, operation
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import DasrelError, InputError
from dasrel.report import other_parts
from dasrel.report.other_parts import STATE, workflow_part, workflow_sources
from dasrel.report.page import grouped, joined, render
from dasrel.report.page_parts import ResultPart
from dasrel.report.result_reading import Source, damaged, read_json
from dasrel.store.audit import audit_store
from dasrel.store.matrix import Matrix, is_store
from dasrel.util import PathLike, progress
from dasrel.util.files import disk_errors, replacing
from dasrel.util.results import check_file, check_not_input
from dasrel.util.text import is_url, path_text, some

if TYPE_CHECKING:
    from dasrel.cmeans.result import Clustering

Given = Any
"""A path, or a `Clustering`."""
Found = Source | Path
"""A result, or a folder of figures."""


@dataclass(frozen=True)
class ReportOptions:
    """How to write a page: there is nothing to choose."""


class Report(Operation):
    name = "report"
    example = "dasrel report out --out report.html"
    Options = ReportOptions
    source = Input(
        "RESULT...",
        "Folders of cluster, outliers, align, embed, tree or run; stores; files of euclideanize; JSON files of"
        " spectrum, audit and validity (--json).",
        several=True,
    )
    target = Output("PAGE.html", "The page to write.", flag="--out -o", default="report.html")
    has_cost = False
    on_dask = False

    def prepare(self, source: Sequence[Given], target: Target, options: ReportOptions) -> PreparedReport:
        """Find results, and check that the page may be written. Cost: no scan, but that of judging a `Clustering`."""
        check_file(target.path, force=target.force)
        if not source:
            raise InputError("there are no results for the page", remedy="name at least one")
        prepared = PreparedReport(Path(target.path))
        for given in source:
            if isinstance(given, (str, os.PathLike)):
                if not os.path.isdir(given):  # a page may lie in the folder of its result
                    check_not_input(target.path, given)
                prepared.sources += find_results(given)
            else:
                prepared.sources.append(prepared.saved(given))
        if Path(target.path).suffix.lower() not in (".html", ".htm"):
            raise InputError(
                f"the page {path_text(target.path)} is HTML",
                remedy="give it a name that ends in .html; a browser prints it as PDF",
            )
        return prepared

    def lines(self, result: Result) -> Lines:
        """Return the lines that print what a page is about."""
        lines = [(part["kind"].lower(), part["headline"]) for part in result["results"][:20]]
        left = len(result["results"]) - len(lines)
        lines += [("", f"and {left} more")] if left > 0 else []
        return [*lines, ("page", f"{path_text(result['out'])}, {result['bytes']:,} bytes; open it in a browser")]


@dataclass(eq=False)
class PreparedReport(Prepared):
    """A page to be written."""

    out: Path
    sources: list[Found] = field(default_factory=list)
    temporary: ExitStack = field(default_factory=ExitStack)

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Write the page, and return what it is about, in plain values."""
        with progress.watch() as counted:
            parts = joined(grouped([_part(source) for source in self.sources]))
        text = render(parts, self.out.stem)
        remedy = "choose another place"
        told = disk_errors(self.out, full="the page is not written", denied=remedy)
        with told, replacing(self.out) as temporary, open(temporary, "xb") as file:
            file.write(text)
        listed = [{"kind": part.kind, "result": part.where, "headline": part.headline} for part in parts]
        return {"out": str(self.out), "bytes": len(text), "results": listed, "scans": counted.scans}

    def saved(self, clustering: Clustering) -> Source:
        """Write a result of this process into a temporary folder, and return it with its matrix."""
        return _saved(clustering, Path(self.temporary.enter_context(tempfile.TemporaryDirectory())))

    def close(self) -> None:
        """Remove the temporary folders."""
        self.temporary.close()


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
    several = not (isinstance(results, (str, os.PathLike)) or hasattr(results, "partitions"))
    with OPERATION.prepare(results if several else [results], Target(path, force=force), ReportOptions()) as prepared:
        prepared.run()
    return Path(path)


def kind_of(values: dict[str, Any]) -> str | None:
    """Return the kind of a result from the keys of its JSON object.

    >>> kind_of({"cuts": [], "linkage": "average", "n_objects": 3})
    'linkage'
    """
    marks = {kind: keys for name in OPERATIONS for kind, keys in operation(name).marks.items()}
    return next((kind for kind, keys in marks.items() if keys <= values.keys()), None)


def _operation_of(kind: str) -> Operation:
    """Return the operation whose result is of a kind."""
    return next(operation(name) for name in OPERATIONS if kind in operation(name).marks)


def _with_command(source: Source) -> Source:
    """Return a source with the command line that makes it again, if it names its store and options."""
    values = source.values
    if "store" not in values or "requested" not in values:
        return source
    out = str(values.get("out") or source.path)
    command = _operation_of(source.kind).repeated(str(values["store"]), out, values["requested"] or {})
    return replace(source, command=command)


def find_results(path: PathLike) -> list[Found]:
    """Return the results in a folder or a file; raise if there is none. Cost: reads JSON files, and no tile."""
    place, where = Path(path), path_text(path)
    if is_url(path):
        raise InputError(f"{where}: results are read from this machine", remedy="copy them to it")
    if place.is_file():
        return [_file_source(place)]
    if not place.is_dir():
        raise InputError(f"there is no result {where}", remedy="give a folder that a command has written")
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
        {marker.parent.name for name in ("result.json", "figures.csv", STATE) for marker in place.glob(f"*/{name}")}
    )
    if inside:
        results = some([path_text(place / folder) for folder in inside])
        return f"{where} is no result, but has some in it; give them: {results}"
    return f"{where} is no result: it has no result.json, run.state.json or figures.csv, and is no store"


def _file_source(path: Path) -> Source:
    if path.suffix == ".npz":
        from dasrel.geometry.euclidean import FORMAT
        from dasrel.util.archives import load_archive

        _, about = load_archive(path, FORMAT)
        return Source("euclideanize", path, {**about, "matrix": None})
    if path.suffix.lower() != ".json":
        raise InputError(
            f"{path_text(path)} is no result",
            remedy="give a folder of results, a store, a .json file or an .npz file of `dasrel euclideanize`",
        )
    values = read_json(path)
    kind = kind_of(values)
    if kind is None:
        raise InputError(f"{path_text(path)} is JSON, but not of a command that a page is made of")
    if kind in ("cluster", "outliers", "align", "embed", "linkage", "tree"):
        folder = path.parent if path.name == "result.json" else Path(str(values.get("out")))
        if not (folder / "result.json").is_file():
            raise InputError(
                f"{path_text(path)} is what a command has printed", remedy="give the folder of its result instead"
            )
        return Source(kind, folder, values)
    return Source(kind, path, values)


def _workflow_sources(folder: Path) -> list[Found]:
    state = read_json(folder / STATE, is_state=True)
    sources: list[Found] = [Source("workflow", folder, state)]
    for name, place in workflow_sources(folder, state):
        sources += [
            replace(source, title=name) if isinstance(source, Source) else source for source in find_results(place)
        ]
    return sources


def _saved(clustering: Clustering, folder: Path) -> Source:
    """Write the result of this process into a temporary folder, and return it with its matrix."""
    from dasrel.commands.cluster import write_clustering

    if clustering.relation is None:
        raise InputError("this result has no matrix", remedy="give the folder that it was read from")
    matrix = clustering.relation.matrix
    if clustering.quality is None:
        clustering = replace(clustering, quality=clustering.validity())
    out = folder / "result"
    values = write_clustering(clustering, out, picture=True)
    digest = matrix.identity_digest() if isinstance(matrix, Matrix) else None
    return Source("cluster", out, {**values, "matrix": digest}, "of this process", matrix)


def _part(source: Found) -> ResultPart:
    if isinstance(source, Path):
        return other_parts.figures_part(source)
    try:
        if source.kind == "workflow":
            return workflow_part(source)
        part = _operation_of(source.kind).part(_with_command(source))
    except (DasrelError, OSError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else f"a value is not as it was written ({error})"
        raise damaged(source.path, why) from error
    if source.title:
        part.where = f"{part.where} ({source.title})" if not source.matrix else source.title
    return part


OPERATION = Report()
