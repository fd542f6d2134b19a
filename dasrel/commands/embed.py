"""Compute principal coordinates of the objects of a STORE, and draw them, in a few scans.

coordinates.csv    id, axis1, axis2, ...
eigenvalues.csv    axis, eigenvalue, residual, share, cumulative_share
ordination.txt     the same in the format of scikit-bio's OrdinationResults, which QIIME's viewers read
result.json        options, eigenvalues, scans, times, versions
embedding.png      the first axes, coloured by labels or memberships
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dasrel.commands.base import Lines, Operation, PreparedFolder, Reads, Result, Target
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.embedding import Colours, Embedding, EmbedJob, prepare_embed
from dasrel.geometry.options import EmbedParameters
from dasrel.judging.groupings import of_labels
from dasrel.partition.files import read_partition_file
from dasrel.partition.model import mode_labels
from dasrel.report.page_parts import ResultPart, Section, percent, table
from dasrel.report.pieces import downloads, drawing, scans_fact, store_sections
from dasrel.report.result_reading import Source
from dasrel.report.verdict import embedding_verdict
from dasrel.store.matrix import open_matrix
from dasrel.util import Names
from dasrel.util.files import replacing
from dasrel.util.limits import Cost, Output
from dasrel.util.option_fields import WRITING, option, picture_option
from dasrel.util.results import draw_or_warn, versions, write_csv
from dasrel.util.text import count_text, shown, some

NUMBER_BYTES = 20
"""Characters of a coordinate in a text file, at most, but for a few."""


@dataclass(frozen=True)
class EmbedOptions(EmbedParameters):
    """How to compute and draw principal coordinates."""

    result: str | None = option(
        None, "Colour the picture by the memberships of this result of `dasrel cluster`.", WRITING, metavar="FOLDER",
        reads=Reads(steps=("cluster",)),
    )  # fmt: skip
    labels: str | None = option(
        None, "Colour it by these labels: a CSV file with id,label, one label per line, or .npy.", WRITING,
        metavar="FILE", reads=Reads(),
    )  # fmt: skip
    picture: bool = picture_option("Draw the first axes.")

    def __post_init__(self) -> None:
        if self.result is not None and self.labels is not None:
            raise InputError("a picture has the colours of a result or of labels, not both", remedy="give one of them")
        super().__post_init__()


class Embed(Operation):
    name = "embed"
    example = "dasrel embed distances.zarr out --components 3"
    Options = EmbedOptions
    saves = ("embed",)
    is_step = True
    summarized = ("n_objects", "n_components", "converged", "negative_share")
    marks = {"embed": frozenset({"eigenvalues", "shares", "n_components"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: EmbedOptions) -> PreparedEmbedding:
        """Check options, the store, the labels and the result folder. Cost: reads the labels, and no tile."""
        target.check(source, options.result, options.labels)
        matrix = open_matrix(source)
        job = prepare_embed(matrix, options)
        named = options.result or options.labels
        colours = None if named is None else _read_colours(named, matrix.ids)
        header = target.header(source, matrix.identity_digest(), options)
        return PreparedEmbedding(options, job, colours, target=target, header=header)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the axes."""
        shares, n_components = result["shares"], result["n_components"]
        listed = " ".join(f"{share:.1%}" for share in shares[:10]) + (" ..." if n_components > 10 else "")
        lines = [
            ("results", shown(result["out"], limit=400)),
            ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
            ("axes", f"{n_components}, {_share_text(result)}"),
            ("shares", listed),
        ]
        if result["spread"]:
            lines.append(("spread", f"{result['spread']:.6g} added to all pairs; no eigenvalue is negative"))
        elif result["n_negative"]:
            text = f"about {result['negative_share']:.1%} of all eigenvalues by size, at least"
            lines.append(("negative", f"{text} {result['negative_share_least']:.1%}: no axis shows it"))
        worst = max(r / v for r, v in zip(result["residuals"], result["eigenvalues"], strict=True))
        lines.append(("residuals", f"at most {worst:.1g} of the eigenvalue"))
        suffix = "" if result["converged"] else ", not converged"
        return [*lines, ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s{suffix}")]

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of the axes. Cost: no scan."""
        result, n = source.values, source.values["n_objects"]
        shares, count = result["shares"], result["n_components"]
        total, rows = 0.0, []
        for k, (value, residual, share) in enumerate(
            zip(result["eigenvalues"], result["residuals"], shares, strict=True)
        ):
            total += share
            rows.append([k + 1, value, residual, percent(share), percent(total)])
        header = ["axis", "eigenvalue", "residual", "share", "sum of shares"]
        text = "Shares are of the sum of all positive eigenvalues; an eigenvalue lies within the residual of each."
        if result["n_negative"]:
            text += " That sum is estimated: it depends on negative eigenvalues, not all of which are known."
        alt = f"{count_text(n, 'object')} along the first axes, and the shares of the axes."
        caption = (
            "Objects that are near in the matrix are near here, as far as two axes can show it. Colours are clusters"
            " where a result was given to `dasrel embed`; pale objects have no clear cluster."
        )
        sections = [
            Section("Embedding", [*drawing(source, "embedding.png", alt, caption),
                                  *downloads(source.file("coordinates.csv"), "coordinates")]),
            Section("Axes", [table("axes", header, rows, text)]),
            *store_sections(source),
        ]  # fmt: skip
        headline = f"Principal coordinates of {count_text(n, 'object')}, {count_text(count, 'axis', 'axes')}"
        facts = [("objects", f"{n:,}, kind {shown(result.get('kind', ''))}"),
                 ("axes", f"{count}, {_share_text(result)}"), scans_fact(result)]  # fmt: skip
        part = ResultPart.of(source, "Embedding", headline, embedding_verdict(result), facts, sections)
        part.source = source
        return part


def _share_text(result: Result) -> str:
    """Return the share of all axes; with negative eigenvalues it is an estimate with a bound.

    >>> _share_text({"shares": [0.2, 0.1], "positive_sum": 9.0, "positive_sum_least": 6.0, "n_negative": 3})
    'about 30.0% of the positive eigenvalues, at most 45.0%'
    """
    share = sum(result["shares"])
    if not result["n_negative"]:
        return f"{share:.1%} of the positive eigenvalues"
    most = min(1.0, share * result["positive_sum"] / result["positive_sum_least"])
    return f"about {share:.1%} of the positive eigenvalues, at most {most:.1%}"


def _read_colours(path: str, ids: Names) -> Colours:
    """Read labels or memberships of the objects with these names; see `dasrel.partition.files`."""

    file = read_partition_file(path)
    values = file.of_objects(ids)
    if values.ndim not in (1, 2) or len(values) != len(ids):
        raise InputError(
            f"{file.where} has labels for {count_text(len(values), 'object')} and the store has {len(ids):,}",
            remedy="give one for each, in the order of the store, or a column id",
        )
    if values.ndim == 2:
        U = np.asarray(values, dtype=np.float64)
        if not np.isfinite(U).all():
            raise InputError(f"{file.where} has memberships that are not finite numbers")
        labels = mode_labels(U, None if file.model is None else file.model.modes)
        return Colours(labels, tuple(str(k) for k in range(U.shape[1])), U)
    grouping = of_labels(file.where, values)
    return Colours(grouping.labels.astype(np.intp), grouping.clusters or (), None)


@dataclass(eq=False)
class PreparedEmbedding(PreparedFolder):
    """Principal coordinates to be computed and written."""

    options: EmbedOptions
    job: EmbedJob
    colours: Colours | None

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Compute the axes, and write the result folder. Cost: that of `embed`."""
        from dasrel.report.figures.embedding import draw_embedding

        began, matrix = time.perf_counter(), self.job.given.matrix
        with watched(checkpoint, "embed"):
            embedding = self.job.run(checkpoint)
            seconds = round(time.perf_counter() - began, 3)
            result = {
                **self.header, "kind": matrix.kind, **embedding.report(), "seconds": seconds, "versions": versions(),
            }  # fmt: skip
            with self.folder(result) as folder:
                names = [str(name) for name in matrix.ids]
                _write_tables(embedding, names, folder)
                _write_ordination(embedding, names, folder / "ordination.txt")
                if self.options.picture:
                    draw_or_warn(draw_embedding, embedding, self.colours, folder)
        return result

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, axes = self.job.given.n_objects, self.job.search.highest
        size = 2 * n * (8 + NUMBER_BYTES * axes) + 200_000 * self.options.picture
        return self.job.cost((Output(str(self.out), size),))


def _write_tables(embedding: Embedding, names: list[str], folder: Path) -> None:

    rows = zip(names, embedding.coordinates.tolist(), strict=True)
    header = ["id", *(f"axis{k + 1}" for k in range(embedding.n_components))]
    write_csv(folder / "coordinates.csv", header, ([name, *row] for name, row in rows))
    columns = (embedding.eigenvalues, embedding.residuals, embedding.shares, embedding.shares.cumsum())
    values = zip(range(1, embedding.n_components + 1), *(column.tolist() for column in columns), strict=True)
    write_csv(folder / "eigenvalues.csv", ["axis", "eigenvalue", "residual", "share", "cumulative_share"], values)


def _write_ordination(embedding: Embedding, names: list[str], path: Path) -> None:
    """Write the text format of scikit-bio, whose readers cut lines at tabs and strip names of blanks."""

    broken = [shown(name) for name in names if not name.isprintable() or name != name.strip()]
    if broken:
        problem = f"ordination.txt is not written: {some(broken, total=len(broken))} cannot be names in it"
        warnings.warn(DasrelWarning(f"{problem}, because of tabs, line breaks or blanks at an end"), stacklevel=3)
        return

    def line(values: Iterable[float]) -> str:
        return "\t".join(map(repr, values)) + "\n"

    k = embedding.n_components
    with replacing(path) as part, part.open("x", encoding="utf-8", newline="") as file:
        file.write(f"Eigvals\t{k}\n{line(embedding.eigenvalues.tolist())}\n")
        file.write(f"Proportion explained\t{k}\n{line(embedding.shares.tolist())}\n")
        file.write(f"Species\t0\t0\n\nSite\t{len(names)}\t{k}\n")
        rows = zip(names, embedding.coordinates, strict=True)
        file.writelines(f"{name}\t{line(row.tolist())}" for name, row in rows)
        file.write("\nBiplot\t0\t0\n\nSite constraints\t0\t0\n")


OPERATION = Embed()
