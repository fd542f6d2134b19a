"""Find for clusters of a STORE the objects that stand for them (k-medoids), for any numbers of clusters together.

The result folder is about the number of clusters with the largest mean silhouette; with several, each has a folder of
its own too, such as `clusters3`.

result.json       options, results, scans, times, versions
numbers.csv       n_clusters, objective, silhouette: a line for each number of clusters
labels.csv        id, label, distance to the medoid, silhouette
medoids.csv       cluster, medoid, size, mean_dissimilarity of the other members to it
model.npz         for `dasrel predict`
medoids.png       a map of the objects with the medoids
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.commands.base import Lines, Operation, PreparedFolder, Result, Target
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.errors import InputError
from dasrel.judging.medoids import Medoids
from dasrel.medoids.fit import COMMAND, KMedoidsResult, MedoidJob, MedoidResult, prepare_kmedoids
from dasrel.medoids.run import MedoidRun
from dasrel.partition.files import read_partition_file
from dasrel.report.page_parts import ResultPart, Section, Statement, percent, table
from dasrel.report.pieces import LISTED, downloads, drawing, scans_fact, store_sections
from dasrel.report.result_reading import Source
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import Float
from dasrel.util.limits import Cost, Output
from dasrel.util.option_fields import RUNNING, memory_option, option, picture_option, same
from dasrel.util.results import draw_or_warn, versions, write_csv
from dasrel.util.text import count_text, group_sizes, shown

_run = partial(same, MedoidRun)


# ruff: noqa: RUF009 - `_run` returns a dataclass field
@dataclass(frozen=True)
class MedoidOptions:
    """How to find medoids: one result for each number of clusters."""

    n_clusters: list[int] = _run("n_clusters", listed=True)
    n_init: int = _run("n_init")
    random_state: int = _run("random_state")
    weights: str | None = option(
        None, "CSV with ids and how often each object counts, above 0.", RUNNING, metavar="FILE"
    )
    picture: bool = picture_option("Draw a map of the objects with the medoids.", RUNNING)
    memory: int | str | None = memory_option(RUNNING, effort=True)

    def runs(self) -> list[MedoidRun]:
        """Return the search of every number of clusters."""
        return [MedoidRun(count, self.n_init, self.random_state) for count in dict.fromkeys(self.n_clusters)]


class MedoidOperation(Operation):
    name = "medoids"
    example = "dasrel medoids distances.zarr out --clusters 2-10"
    Options = MedoidOptions
    saves = (COMMAND,)
    is_step = True
    summarized = ("n_objects", "n_clusters", "silhouette")
    has_settings = False
    marks = {"medoids": frozenset({"numbers", "medoids", "n_objects"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: MedoidOptions) -> PreparedMedoids:
        """Check options, the store and the result folder. Cost: no tile is read."""
        target.check(source, options.weights)
        matrix = open_matrix(source)
        weights = None if options.weights is None else _weights(options.weights, matrix)
        job = prepare_kmedoids(matrix, options.runs(), weights=weights, memory=options.memory)
        header = target.header(source, matrix.identity_digest(), options)
        return PreparedMedoids(matrix, job, options, target=target, header=header)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the medoids."""
        lines = [
            ("results", shown(result["out"], limit=400)),
            ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
            ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
        ]
        if len(result["numbers"]) > 1:
            for row in result["numbers"]:
                text = f"silhouette {_number(row['silhouette'])}, mean dissimilarity {row['mean_dissimilarity']:.4g}"
                lines.append((count_text(row["n_clusters"], "cluster"), text))
            lines.append(("recommended", f"{count_text(result['n_clusters'], 'cluster')}, by the mean silhouette"))
        lines.append(("sizes", group_sizes(result["sizes"])))
        names = [shown(row["medoid"]) for row in result["medoids"][:3]]
        more = result["n_clusters"] - len(names)
        return [*lines, ("medoids", ", ".join(names) + (f" and {more:,} more" if more else ""))]

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of the medoids. Cost: no scan."""
        result, n = source.values, source.values["n_objects"]
        header = ["cluster", "medoid", "objects", "share", "mean dissimilarity"]
        rows = [
            [row["cluster"], shown(row["medoid"]), row["size"], percent(row["size"] / n), row["mean_dissimilarity"]]
            for row in result["medoids"][:LISTED]
        ]
        text = "A medoid is the object of its cluster that the others are nearest to on average: look at it first."
        listed = table("medoids", header, rows, text, total=result["n_clusters"])
        sections = [Section("Medoids", [listed, *downloads(source.file("labels.csv"), "labels")])]
        if source.file("medoids.png").is_file():
            alt = f"A map of {count_text(n, 'object')} with {count_text(result['n_clusters'], 'medoid')}."
            caption = "Points are objects, stars the medoids of their clusters. Near points are alike."
            sections.append(Section("Map", drawing(source, "medoids.png", alt, caption)))
        if len(result["numbers"]) > 1:
            columns = ["clusters", "mean silhouette", "mean dissimilarity"]
            numbers = [[row["n_clusters"], row["silhouette"], row["mean_dissimilarity"]] for row in result["numbers"]]
            sections.append(Section("Number of clusters", [table("numbers", columns, numbers)]))
        headline = f"{count_text(result['n_clusters'], 'medoid')} of {count_text(n, 'object')}"
        facts = [("objects", f"{n:,}, kind {shown(result['kind'])}"), scans_fact(result)]
        return ResultPart.of(source, "Medoids", headline, _verdict(result), facts, [*sections, *store_sections(source)])


def _verdict(result: Result) -> list[Statement]:
    silhouette, several = result["silhouette"], len(result["numbers"]) > 1
    if silhouette is None:
        return [Statement("info", "One cluster: its medoid is the most central object.")]
    best = " is the largest of the numbers that were tried" if several else ""
    said = (
        f"The mean silhouette of {count_text(result['n_clusters'], 'cluster')}, {silhouette:.3f},{best or ' is given'}."
    )
    if silhouette >= 0.25:
        return [Statement("info", said)]
    advice = "the clusters hardly stand apart. `dasrel cluster` compares such structure with chance."
    return [Statement("caution", f"{said[:-1]}: {advice}")]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _weights(path: str, matrix: Matrix) -> Float:
    """Return the weight of every object of the store from a file, by ids."""
    file = read_partition_file(path)
    values = file.of_objects(matrix.ids)
    try:
        weights = values.astype(np.float64)
    except ValueError:
        raise InputError(f"{file.where} has weights that are no numbers", remedy="give a column of ids and one of"
                         " numbers above 0") from None  # fmt: skip
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0))) if weights.ndim == 1 else [0]
    if len(wrong):
        name = shown(matrix.ids[int(wrong[0])])
        raise InputError(
            f"{file.where}: the weight of {name} is {shown(values[wrong[0]])}", remedy="give a number above 0"
        )
    return weights


@dataclass(eq=False)
class PreparedMedoids(PreparedFolder):
    """Medoids to be searches and written."""

    matrix: Matrix
    job: MedoidJob
    options: MedoidOptions

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Find the medoids, and write the result folder. Cost: three scans, and two more for each exact step."""
        from dasrel.report.figures.medoids import draw_medoids

        began = time.perf_counter()
        with watched(checkpoint, COMMAND):
            searches = self.job.run(checkpoint)
            best, ids = searches.best, [str(name) for name in self.matrix.ids]
            rows = [_row(of) for of in searches.results]
            columns, medoids = _table(best, ids)
            listed = [dict(zip(columns, row, strict=True)) for row in medoids[:LISTED]]
            result = {
                **self.header, "n_objects": self.matrix.n_objects, "kind": self.matrix.kind,
                "scans": searches.scans, "batch": searches.batch, "n_clusters": best.run.n_clusters,
                "silhouette": _plain(best.silhouette), "sizes": best.sizes.tolist(), "medoids": listed, "numbers": rows,
                "seconds": 0.0, "versions": versions(),
            }  # fmt: skip
            with self.folder(result) as folder:
                self._write(searches, best, ids, folder)
                names = ["n_clusters", "objective", "mean_dissimilarity", "silhouette", "moves"]
                write_csv(folder / "numbers.csv", names, [[row[name] for name in names] for row in rows])
                for of in searches.results if len(searches.results) > 1 else []:
                    own = folder / f"clusters{of.run.n_clusters}"
                    own.mkdir()
                    self._write(searches, of, ids, own)
                if self.options.picture:
                    draw_or_warn(draw_medoids, searches, best, folder / "medoids.png")
                result["seconds"] = round(time.perf_counter() - began, 3)
        return result

    def _write(self, searches: KMedoidsResult, of: MedoidResult, ids: list[str], folder: Path) -> None:
        silhouettes = [""] * len(ids) if math.isnan(of.silhouette) else of.silhouettes.tolist()
        lines = zip(ids, of.labels.tolist(), of.distances.tolist(), silhouettes, strict=True)
        write_csv(folder / "labels.csv", ["id", "label", "distance", "silhouette"], lines)
        write_csv(folder / "medoids.csv", *_table(of, ids))
        searches.model(of).save(folder / "model.npz")

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, counts = self.matrix.n_objects, [run.n_clusters for run in self.job.runs]
        size = sum(n * 60 + c * (n // 50 + 60) for c in (*counts, max(counts))) + 200_000 * self.options.picture
        return self.job.cost((Output(str(self.out), size),))


def _row(of: MedoidResult) -> Result:
    return {
        "n_clusters": of.run.n_clusters, "objective": of.objective, "mean_dissimilarity": float(of.distances.mean()),
        "silhouette": _plain(of.silhouette), "moves": of.moves,
    }  # fmt: skip


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _table(of: MedoidResult, ids: list[str]) -> tuple[list[str], list[list[Any]]]:
    sums = np.bincount(of.labels, weights=of.distances, minlength=len(of.medoids))
    return Medoids(of.medoids, sums / np.maximum(of.sizes - 1, 1)).table(of.labels, np.array(ids, dtype=object))


OPERATION = MedoidOperation()
