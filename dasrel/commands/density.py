"""Find clusters of any shape in a STORE by density (HDBSCAN, DBSCAN), and what is noise, in two scans.

With one setting all files are in the result folder itself; with several each has a folder named after it, such as
`size15-samples5`, and `result.json` is about all of them.

result.json           options, results, scans, times, versions
labels.csv            id, label (-1 for noise), probability, outlier_score
condensed_tree.csv    parent, child, id, lambda, size: a row for every cluster, and for every object where it leaves
model.npz             for `dasrel predict`
density.png           the condensed tree, and the reachability
dbscan.csv            with --eps: id, and the labels of DBSCAN at each distance
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasrel.commands.base import Lines, Operation, PreparedFolder, Result, Target
from dasrel.density.dbscan import check_eps
from dasrel.density.fit import COMMAND, Density, DensityJob, DensityResult, prepare_density
from dasrel.density.run import DensityRun
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.report.page_parts import Note, ResultPart, Section, Statement, percent, table
from dasrel.report.pieces import LISTED, downloads, drawing, scans_fact, store_sections
from dasrel.report.result_reading import Source
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util.limits import Cost, Output
from dasrel.util.option_fields import RUNNING, memory_option, option, picture_option, same
from dasrel.util.results import draw_or_warn, versions, write_csv
from dasrel.util.text import count_text, group_sizes, shown

_run = partial(same, DensityRun)
MOST_SIZES = 50


# ruff: noqa: RUF009 - `_run` returns a dataclass field
@dataclass(frozen=True)
class DensityOptions:
    """How to find clusters by density: one result for each combination of the listed values."""

    min_size: list[int] | None = _run("min_size")
    min_samples: list[int] | None = _run("min_samples")
    method: Literal["eom", "leaf"] = _run("method")
    epsilon: float = _run("epsilon")
    allow_single_cluster: bool = _run("allow_single_cluster")
    eps: list[float] | None = option(None, "Labels of DBSCAN at these distances, too.", RUNNING, metavar="D", above=0)
    picture: bool = picture_option("Draw the condensed tree and the reachability.", RUNNING)
    memory: int | str | None = memory_option(RUNNING, effort=True)

    def __post_init__(self) -> None:
        for eps in self.eps or ():
            check_eps(eps)

    def runs(self) -> Iterator[DensityRun]:
        """Yield the run of every setting."""
        for size, of in itertools.product(_each(self.min_size), _each(self.min_samples)):
            yield DensityRun(size, of, self.method, self.epsilon, self.allow_single_cluster)


class DensityOperation(Operation):
    name = "density"
    example = "dasrel density distances.zarr out --min-size 15"
    Options = DensityOptions
    saves = (COMMAND,)
    is_step = True
    summarized = ("n_objects",)
    has_settings = False
    marks = {"density": frozenset({"settings", "dbscan", "n_objects"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: DensityOptions) -> PreparedDensity:
        """Check options, the store and the result folder. Cost: no tile is read."""
        target.check(source)
        matrix = open_matrix(source)
        job = prepare_density(matrix, list(options.runs()), memory=options.memory)
        header = target.header(source, matrix.identity_digest(), options)
        return PreparedDensity(matrix, job, options, target=target, header=header)

    def summary(self, result: Result) -> Result:
        """Return what the state of a workflow keeps of a result."""
        settings = result["settings"]
        return super().summary(result) | {
            "folders": [setting["folder"] for setting in settings],
            "n_clusters": [setting["n_clusters"] for setting in settings],
            "noise": [setting["noise"] for setting in settings],
        }

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the clusters."""
        settings, n = result["settings"], result["n_objects"]
        lines = [
            ("results", shown(result["out"], limit=400)),
            ("objects", f"{n:,}, kind {result['kind']}"),
            ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
        ]
        for setting in settings:
            noise = f"noise {setting['noise']:,} ({setting['noise'] / n:.1%})"
            if len(settings) > 1:
                text = f"{count_text(setting['n_clusters'], 'cluster')}, {noise}, sizes {group_sizes(setting['sizes'])}"
                lines.append((setting["folder"], text))
                continue
            lines.append(("clusters", f"{setting['n_clusters']:,}, sizes {group_sizes(setting['sizes'])}"))
            lines.append(("noise", f"{setting['noise']:,} ({setting['noise'] / n:.1%})"))
        for row in result["dbscan"]:
            text = f"{count_text(row['n_clusters'], 'cluster')}, noise {row['noise']:,} ({row['noise'] / n:.1%})"
            lines.append((row["column"], text))
        return lines

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of the clusters. Cost: no scan."""
        result, n = source.values, source.values["n_objects"]
        settings = result["settings"]
        sections: list[Section] = []
        verdict: list[Statement] = []
        if len(settings) > 1:
            header = ["setting", "min size", "min samples", "clusters", "noise", "share of noise"]
            rows = [
                [each["folder"], each["min_size"], each["min_samples"], each["n_clusters"], each["noise"],
                 percent(each["noise"] / n)] for each in settings
            ]  # fmt: skip
            sections.append(Section("Settings", [table("settings", header, rows, "The first ones are below.")]))
        for setting in settings[:10]:
            named = "" if len(settings) == 1 else f" ({shown(setting['folder'])})"
            sections += _sections(source, setting, n, named)
            verdict += _verdict(setting, n, named)
        if result["dbscan"]:
            header = ["distance", "min samples", "clusters", "noise", "share of noise"]
            rows = [
                [row["eps"], row["min_samples"], row["n_clusters"], row["noise"], percent(row["noise"] / n)]
                for row in result["dbscan"]
            ]
            blocks = [table("dbscan", header, rows, "DBSCAN at fixed distances."), *downloads(
                source.file("dbscan.csv"), "dbscan")]  # fmt: skip
            sections.append(Section("DBSCAN", blocks))
        first = settings[0]
        headline = f"{count_text(first['n_clusters'], 'cluster')} by density among {count_text(n, 'object')}"
        headline += f" at the first of {count_text(len(settings), 'setting')}" if len(settings) > 1 else ""
        facts = [("objects", f"{n:,}, kind {shown(result['kind'])}"), scans_fact(result)]
        return ResultPart.of(source, "Density", headline, verdict, facts, [*sections, *store_sections(source)])


def _each(values: list[int] | None) -> list[int | None]:
    return [None] if values is None else [*dict.fromkeys(values)]


def _verdict(setting: dict[str, Any], n: int, named: str) -> list[Statement]:
    noise, count = setting["noise"] / n, setting["n_clusters"]
    if not count:
        text = f"No group of at least {setting['min_size']} objects is denser than what is around it: all is noise."
        return [Statement("caution", f"{text[:-1]}{named}.")]
    said = f"{count_text(count, 'cluster')}, and {noise:.1%} of the objects are in none{named}."
    level: Any = "caution" if noise > 0.5 else "info"
    more = " More than half are noise: a smaller number of samples gives less of it." if noise > 0.5 else ""
    return [Statement(level, said + more)]


def _sections(source: Source, setting: dict[str, Any], n: int, named: str) -> list[Section]:
    folder = source.setting(setting["folder"])
    rows = [
        [
            cluster["label"],
            cluster["size"],
            percent(cluster["size"] / n),
            cluster["stability"],
            cluster["appears"],
            cluster["ends"],
        ]
        for cluster in setting["clusters"][:LISTED]
    ]
    text = (
        "Clusters are numbered by their first objects. Going to smaller distances, a cluster appears when it separates"
        " from others, and ends when it splits or its last object leaves; stability is the sum over its objects of how"
        " long they stay."
    )
    header = ["cluster", "objects", "share", "stability", "appears at", "ends at"]
    listed = [table("density", header, rows, text, total=setting["n_clusters"])] if rows else [Note("No cluster.")]
    alt = f"The condensed tree of {count_text(n, 'object')} with {count_text(setting['n_clusters'], 'cluster')}."
    caption = (
        "Left: from bottom to top distances become smaller; areas are clusters, as wide as they have objects, and those"
        " that were chosen have a colour. Right: the distance at which each object joins the others; valleys are"
        " clusters, and hills between them are what separates them."
    )
    drawn = folder / "density.png"
    picture = drawing(source, str(Path(setting["folder"], "density.png")), alt, caption) if drawn.is_file() else []
    blocks = [*listed, *downloads(folder / "labels.csv", "labels")]
    sections = [Section(f"Clusters{named}", blocks)]
    return [*sections, Section(f"Condensed tree{named}", picture)] if picture else sections


@dataclass(eq=False)
class PreparedDensity(PreparedFolder):
    """Clusters by density to be found and written."""

    matrix: Matrix
    job: DensityJob
    options: DensityOptions

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Find the clusters, and write the result folder. Cost: two scans, one if every min_samples is 1."""
        from dasrel.report.figures.density import draw_density

        began = time.perf_counter()
        with watched(checkpoint, COMMAND):
            density = self.job.run(checkpoint)
            names = _folders(density.results)
            columns, rows = self._dbscan(density)
            result = {
                **self.header, "n_objects": self.matrix.n_objects, "kind": self.matrix.kind, "scans": density.scans,
                "settings": [_setting(of, name) for of, name in zip(density.results, names, strict=True)],
                "dbscan": rows, "seconds": 0.0, "versions": versions(),
            }  # fmt: skip
            with self.folder(result) as folder:
                ids = [str(name) for name in self.matrix.ids]
                for of, name in zip(density.results, names, strict=True):
                    (folder / name).mkdir(exist_ok=True)
                    _write(of, ids, folder / name)
                    density.model(of).save(folder / name / "model.npz")
                    if self.options.picture:
                        draw_or_warn(draw_density, density, of, folder / name / "density.png")
                if columns:
                    lines = zip(ids, *(labels.tolist() for labels in columns.values()), strict=True)
                    write_csv(folder / "dbscan.csv", ["id", *columns], lines)
                result["seconds"] = round(time.perf_counter() - began, 3)
        return result

    def _dbscan(self, density: Density) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the labels of DBSCAN by column, and a summary of each."""
        columns, rows = {}, []
        several = len(density.trees) > 1
        for samples, eps in itertools.product(density.trees, dict.fromkeys(self.options.eps or ())):
            column = f"eps{eps:.12g}" + (f"-samples{samples}" if several else "")
            columns[column] = labels = density.dbscan(eps, samples)
            sizes = np.bincount(labels[labels >= 0])
            rows.append({
                "column": column, "eps": eps, "min_samples": samples, "n_clusters": len(sizes),
                "noise": int((labels < 0).sum()), "sizes": np.sort(sizes)[::-1][:MOST_SIZES].tolist(),
            })  # fmt: skip
        return columns, rows

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        n, settings = self.matrix.n_objects, len(self.job.runs)
        size = settings * (n * (60 + 60 + 56) + 200_000 * self.options.picture)
        size += n * (20 + 4 * len(self.options.eps or ()) * len(self.job.samples)) if self.options.eps else 0
        return self.job.cost((Output(str(self.out), size),))


def _folders(results: list[DensityResult]) -> list[str]:
    """Return a folder for each setting: "." for a single one."""
    if len(results) == 1:
        return ["."]
    return [f"size{of.run.size}-samples{of.run.samples}" for of in results]


def _setting(of: DensityResult, folder: str) -> dict[str, Any]:
    tree = of.tree
    label = of.of_cluster[of.chosen]
    order = of.chosen[np.argsort(label)]
    clusters = [
        {"label": k, "size": int(size), "stability": float(tree.stabilities[at]),
         "appears": float(1 / tree.births[at]) if tree.births[at] else None, "ends": float(1 / tree.ends[at])}
        for k, (at, size) in enumerate(zip(order[:LISTED].tolist(), of.sizes, strict=False))
    ]  # fmt: skip
    return {
        "folder": folder, "min_size": of.run.size, "min_samples": of.run.samples, "n_clusters": of.n_clusters,
        "noise": int((of.labels < 0).sum()), "sizes": np.sort(of.sizes)[::-1][:MOST_SIZES].tolist(),
        "clusters": clusters,
    }  # fmt: skip


def _write(of: DensityResult, ids: list[str], folder: Path) -> None:
    lines = zip(ids, of.labels.tolist(), of.probabilities.tolist(), of.outlier_scores.tolist(), strict=True)
    write_csv(folder / "labels.csv", ["id", "label", "probability", "outlier_score"], lines)
    tree = of.tree
    splits = zip(range(1, tree.n_clusters), tree.parents[1:].tolist(), tree.births[1:].tolist(),
                 tree.sizes[1:].tolist(), strict=True)  # fmt: skip
    leaving = zip(ids, tree.clusters.tolist(), tree.leaves_at.tolist(), strict=True)
    rows = itertools.chain(
        ([parent, child, "", rate, size] for child, parent, rate, size in splits),
        ([parent, "", name, rate, 1] for name, parent, rate in leaving),
    )
    write_csv(folder / "condensed_tree.csv", ["parent", "child", "id", "lambda", "size"], rows)


OPERATION = DensityOperation()
