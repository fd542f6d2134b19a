"""Find the objects of a STORE that are like no others, and clusters of any shape among the rest.

With one setting all files are in the result folder itself; with several each has a folder named after it, such as
`width0.5-scale2`, and `result.json` is about all of them.

result.json     options, results, scans, times, versions
outliers.csv    id, typicality, rank (1 is the least typical), outlier, cluster (-1 for outliers), the distance to a
near
                neighbour (the 20th) and its rank (1 is the farthest)
model.npz       the centre, for `dasrel predict`
outliers.png    typicalities and their cut, distances to neighbours, and the matrix in the order of the clusters
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasrel.commands.base import Lines, Operation, PreparedFolder, Reads, Result, Target
from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, watched
from dasrel.engine.relation import product_shape
from dasrel.engine.scan import needed_memory
from dasrel.errors import InputError
from dasrel.geometry.euclidean import as_euclidean, euclidean_scans
from dasrel.io.features import read_rows
from dasrel.names import METHODS
from dasrel.oneclass.fit import (
    COLUMN_BYTES,
    OneClass,
    PreparedOneClass,
    kernel_view,
    one_class,
    prepare_one_class,
)
from dasrel.oneclass.run import OneClassRun, rejected_count
from dasrel.oneclass.segments import (
    COMMANDS,
    EUCLIDEAN_SCANS,
    OutlierResult,
    SavedSegments,
    Segments,
    known_euclidean,
    segment_clusters,
    segments_writer,
)
from dasrel.oneclass.typicality import Typicality
from dasrel.partition.files import positions
from dasrel.report import page_figures as pictures
from dasrel.report.page_parts import Block, Note, ResultPart, Section, Statement, percent, table
from dasrel.report.pieces import LISTED, downloads, scans_fact, store_sections
from dasrel.report.result_reading import Source, read_objects
from dasrel.report.verdict import neighbour_words, outlier_verdict, shape_words
from dasrel.store.matrix import open_matrix
from dasrel.util import Array, limits
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.option_fields import RUNNING, memory_option, option, parse_reject, picture_option, same
from dasrel.util.results import MOST_IDS, draw_or_warn, versions, write_csv
from dasrel.util.text import count_text, group_sizes, ordinal_text, path_text, redacted, shown, some

COLUMNS = ["id", "typicality", "rank", "outlier", "cluster", "neighbour_distance", "neighbour_rank"]
TYPICAL = 8
"""Iterations, the median over figure 1 of F10, Gaussian clouds of 2 to 20 dimensions and digits: 3 to 30."""

of_run = partial(same, OneClassRun)


# ruff: noqa: RUF009 - `of_run` returns a dataclass field
@dataclass(frozen=True)
class OutlierOptions:
    """How to find outliers: one result for each combination of the listed values."""

    width: list[Literal["auto", "none"] | float] = of_run("width", listed=True)
    eta_scale: list[float] = of_run("eta_scale", listed=True)
    reject: Literal["auto"] | int | float = option(
        "auto",
        "What to reject: a share such as 0.05, a number of objects such as 12, or those that stand out.",
        RUNNING,
        metavar="P|N",
        parse=parse_reject,
        above=0,
    )
    clusters: bool = option(
        False, "Find clusters of any shape among the others; the matrix must be Euclidean.", RUNNING
    )
    features: str | None = option(
        None, "Check clusters by these features, whose distances the matrix has.", RUNNING, metavar="FILE",
        reads=Reads(),
    )  # fmt: skip
    eta_refit: bool = of_run("eta_refit")
    max_iter: int = of_run("max_iter")
    tol: float = of_run("tol")
    euclideanize: str | None = option(
        None, "As for `dasrel cluster`.", RUNNING, metavar="METHOD|FILE",
        reads=Reads(steps=("euclideanize",), words=METHODS, suffixes=(".npz",)),
    )  # fmt: skip
    picture: bool = picture_option("Draw the typicalities, and the matrix in the order of the clusters.", RUNNING)
    memory: int | str | None = memory_option(RUNNING, effort=True)

    def __post_init__(self) -> None:
        if self.features is not None and not self.clusters:
            raise InputError("features are for clusters only", remedy="ask for clusters, or leave out {features}")

    def runs(self) -> Iterator[OneClassRun]:
        """Yield the run of every setting."""
        for width in self.width:
            for scale in self.eta_scale:
                yield OneClassRun(
                    None if width == "none" else width, scale, eta_refit=self.eta_refit, tol=self.tol,
                    max_iter=self.max_iter,
                )  # fmt: skip


class Outliers(Operation):
    name = "outliers"
    example = "dasrel outliers distances.zarr out --reject 0.05"
    Options = OutlierOptions
    saves = COMMANDS
    is_step = True
    summarized = ("n_objects", "converged")
    marks = {"outliers": frozenset({"settings", "scale", "n_objects"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: OutlierOptions) -> PreparedOutliers:
        """Check options, the store and the result folder. Cost: no tile is read."""
        target.check(source, options.features)
        runs = list(options.runs())
        if len(set(runs)) < len(runs):
            raise InputError("a width and an eta_scale are given twice", remedy="leave one out")
        matrix = open_matrix(source)
        prepared = prepare_one_class(matrix, runs, memory=options.memory)
        if options.reject != "auto":
            rejected_count(options.reject, matrix.n_objects)
        if options.clusters and any(run.width is None for run in prepared.runs):
            raise InputError(
                "clusters of any shape need a width: without one the cut is a ball, which is one cluster",
                remedy="say {width=NUMBER}",
            )
        if options.euclideanize == "ultrametric" and any(run.width is not None for run in prepared.runs):
            raise InputError("a Gaussian kernel cannot see an added ultrametric", remedy="say {euclideanize=spread}")
        header = target.header(source, matrix.identity_digest(), options)
        return PreparedOutliers(source, options, prepared, target=target, header=header)

    def summary(self, result: Result) -> Result:
        """Return what the state of a workflow keeps of a result."""
        return super().summary(result) | {
            "folders": [setting["folder"] for setting in result["settings"]],
            "outliers": [setting["outliers"] for setting in result["settings"]],
        }

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the outliers."""
        lines = [
            ("results", shown(result["out"], limit=400)),
            ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
            ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
        ]
        for setting in result["settings"]:
            suffix = "" if setting["converged"] else ", not converged"
            lowest = setting["typicality_min"]
            width = "none, the matrix is the kernel" if setting["width"] is None else f"{setting['width']:.6g}"
            named = setting["outlier_ids"]
            rejected = f": {some([shown(name) for name in named], total=setting['outliers'])}" if named else ""
            told = [
                ("width", width),
                ("converged", f"{'no' if suffix else 'yes'}, after {count_text(setting['n_iter'], 'iteration')}"),
                ("typicality", f"{lowest:.4g} to {setting['typicality_max']:.4g}, cut {setting['threshold']:.4g}"),
                ("outliers", f"{setting['outliers']:,}{rejected}" if named else "no outliers stand out"),
                ("neighbours", neighbour_words(setting)),
            ]
            near = setting["neighbours"]
            if near["standing_out"] and not named:
                names = some([shown(name) for name in near["standing_out_ids"]], total=near["standing_out"])
                told.append(("", f"by their neighbours {near['standing_out']:,} stand out: {names}"))
            if setting["ladder"] and setting["outliers"]:
                texts = [f"{rung['width']:.4g}: {rung['same_outliers']:,}" for rung in setting["ladder"]]
                told.append(("same outliers at", ", ".join(texts)))
            clusters = setting["clusters"]
            if clusters is not None:
                pairs = ", ".join(f"{count:,} {name}" for name, count in clusters["tested"].items())
                more = "no other can join clusters" if clusters["complete"] else "others were not tested"
                told.append(("clusters", f"{clusters['n_clusters']:,}, sizes {group_sizes(clusters['sizes'])}"))
                told += [("", text) for text in shape_words(clusters)]
                told.append(("segments", f"{pairs or 'none'}; {more}"))
            if len(result["settings"]) > 1:
                text = f"{setting['outliers']:,} outliers, cut {setting['threshold']:.4g}{suffix}"
                if clusters is not None:
                    text += f", {count_text(clusters['n_clusters'], 'cluster')}"
                told = [(setting["folder"], text)]
            lines += told
        return lines

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of the outliers. Cost: no scan; reads the tables."""
        result, n = source.values, source.values["n_objects"]
        settings = result["settings"]
        sections: list[Section] = []
        if len(settings) > 1:
            header = ["setting", "width", "gamma", "outliers", "cut", "converged", "iterations"]
            names = ("folder", "width", "eta_scale", "outliers", "threshold", "converged", "n_iter")
            rows = [[setting[name] for name in names] for setting in settings]  # fmt: skip
            sections.append(
                Section("Settings", [table("settings", header, rows, "Details of each setting are below.")])
            )
        verdict: list[Statement] = []
        for setting in settings[:10]:
            named = "" if len(settings) == 1 else f" ({shown(setting['folder'])})"
            sections += _sections(source, setting, n, named)
            for said in outlier_verdict(result, setting):
                verdict.append(said if not named else Statement(said.level, f"{shown(setting['folder'])}: {said.text}"))
        if len(settings) > 10:
            sections.append(Section("Other settings", [Note(f"{len(settings) - 10} more settings are not shown.")]))
        first = settings[0]
        some_or_none = count_text(first["outliers"], "outlier") if first["outliers"] else "No outliers stand out"
        headline = f"{some_or_none} among {count_text(n, 'object')}"
        headline += f" at the first of {count_text(len(settings), 'setting')}" if len(settings) > 1 else ""
        if first.get("clusters"):
            headline += f", {count_text(first['clusters']['n_clusters'], 'cluster')} of any shape"
        facts = [("objects", f"{n:,}, kind {shown(result.get('kind', ''))}"), scans_fact(result)]
        return ResultPart.of(source, "Outliers", headline, verdict, facts, [*sections, *store_sections(source)])


def _sections(source: Source, setting: dict[str, Any], n: int, named: str) -> list[Section]:
    folder = source.setting(setting["folder"])
    path = folder / "outliers.csv"
    columns = tuple(COLUMNS[1:])
    if not path.is_file():
        return [Section(f"Outliers{named}", [Note(f"There is no {path_text(path)}.")])]
    objects = read_objects(path, columns, n, lambda of: of["rank"], LISTED)
    u, rejected = objects.columns["typicality"], objects.columns["outlier"] > 0
    distances = objects.columns["neighbour_distance"]
    listed = objects.chosen[: max(20, min(LISTED, int(rejected.sum())))]
    rows = [
        [
            name,
            float(u[k]),
            int(objects.columns["rank"][k]),
            bool(rejected[k]),
            int(objects.columns["cluster"][k]),
            float(distances[k]),
            int(objects.columns["neighbour_rank"][k]),
        ]
        for name, k in zip(objects.names, listed, strict=False)
    ]
    text = "The least typical objects first. Those that are no outliers are listed for comparison where there are few."
    ordinal = ordinal_text(setting["neighbours"]["k"])
    header = ["id", "typicality", "rank", "outlier", "cluster", f"distance to {ordinal} neighbour", "its rank"]
    blocks: list[Block] = [
        pictures.picture_or_note(
            lambda: pictures.typicality_picture(
                u, setting["threshold"], distances, setting["neighbours"]["k"], rejected
            )
        ),
        table("outliers", header, rows, text, total=n),
        *downloads(path, "outliers"),
    ]
    sections = [Section(f"Outliers{named}", blocks)]
    clusters = setting.get("clusters")
    if clusters is not None:
        sizes = [[k, size, percent(size / n)] for k, size in enumerate(clusters["sizes"][:LISTED])]
        text = "Clusters of any shape: objects that segments above the cut connect."
        more = {"total": len(clusters["sizes"])}
        sections.append(
            Section(f"Clusters{named}", [table("clusters", ["cluster", "objects", "share"], sizes, text, **more)])
        )
    drawn = folder / "outliers.png"
    if drawn.is_file():
        caption = (
            "Typicalities and their cut, the distances to neighbours beside them, and the matrix in the order of"
            " clusters with the outliers last: black is alike, and outliers are bright lines at the right and lower"
            " edge."
        )
        alt = f"Typicalities, their histogram, and the matrix with {count_text(setting['outliers'], 'outlier')} last."
        block = pictures.picture_or_note(lambda: pictures.png_file(drawn, alt, caption))
        sections.append(Section(f"The matrix with outliers last{named}", [block]))
    if setting.get("ladder"):
        rows = [[rung["width"], rung["n_iter"], rung["same_outliers"]] for rung in setting["ladder"]]
        text = "Other widths of the kernel, and how many of as many outliers are the same objects there."
        header = ["width", "iterations", "same outliers"]
        sections.append(Section(f"Other widths{named}", [table("widths", header, rows, text)]))
    return sections


@dataclass(eq=False)
class PreparedOutliers(PreparedFolder):
    """Outliers to be found and written."""

    store: str
    options: OutlierOptions
    prepared: PreparedOneClass

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Find the outliers, and write the result folder.

        Cost: that of `one_class`, of `euclideanize` where a method is named, of `segment_clusters` for clusters, and
        one scan for the picture.
        """
        options = self.options
        kept: dict[str, Any] = {"memory": options.memory, "checkpoint": checkpoint}
        features = None if options.features is None else self._features(options.features)
        with watched(checkpoint, *COMMANDS):
            changed = as_euclidean(self.store, options.euclideanize, **kept)
            runs = self.prepared.runs
            fit = self.prepared.run(checkpoint) if changed is None else one_class(changed.relation, runs, **kept)
            saved = checkpoint if options.clusters else None
            with segments_writer(saved, fit.relation, runs, options.reject) as keeper:
                results = self._results(fit, features, keeper, check=changed is None)
                scans = fit.scans + keeper.scans
            header = {**self.header, "euclideanized": None if changed is None else changed.report()}
            summary = {**redacted(header), **_summary(fit, results, scans)}
            with self.folder(summary) as folder:
                for result in results:
                    _write(result, fit, folder / result.folder)
                if options.picture:
                    draw_or_warn(_draw, fit, results, folder)
        return summary

    def cost(self) -> Cost:
        """Estimate the cost of `run`: no tile is read."""
        options, prepared = self.options, self.prepared
        source: Any = prepared.relation.matrix
        n, columns, memory = source.n_objects, prepared.columns, limits.memory_limit(options.memory)
        bundles = prepared.split()
        typical = min(TYPICAL, options.max_iter)
        scans = Range(len(bundles), len(bundles) * typical, len(bundles) * options.max_iter)
        before = prepared.scans_before()
        scans += Range(before, before, before)
        if options.clusters:
            results = len(prepared.runs)
            scans += Range(results, EUCLIDEAN_SCANS // 2 + 2 * results, EUCLIDEAN_SCANS + 2 * results)
        if options.picture:
            scans += Range(1, 1, 1)
        if options.euclideanize in METHODS:
            scans += euclidean_scans(options.euclideanize)
        counted: dict[Any, int] = {}
        for k in max(bundles, key=len):
            counted[columns[k]] = counted.get(columns[k], 0) + 1
        views = [(kernel_view(prepared.relation, width).view, count) for width, count in counted.items()]
        fixed, task = needed_memory(source, [product_shape(source, views)])
        fixed += COLUMN_BYTES * n * len(columns)
        first = prepared.memory_before()
        fixed, task = max(fixed, first[0]), max(task, first[1])
        threads = max(1, min(limits.thread_count(), (memory - fixed) // task)) if task else 1
        size = len(prepared.runs) * n * (90 + 8)
        facts = {"settings": len(prepared.runs), "columns": len(columns), "bundles": len(bundles)}
        return Cost("outliers", n, scans, source.layout.total_bytes, int(fixed + threads * task),
                    (Output(str(self.out), size),), facts)  # fmt: skip

    def _features(self, path: str) -> Array:
        features = read_rows(path, checksum=False)
        values = np.asarray(features.array(), dtype=np.float64)
        n = self.prepared.relation.n_objects
        if features.ids is not None:
            return values[positions(shown(path, limit=200), features.ids, self.prepared.relation.matrix.ids)]
        if len(values) != n:
            rows = count_text(len(values), "row")
            raise InputError(
                f"{shown(path, limit=200)} has {rows} and the store {count_text(n, 'object')}",
                remedy="give one for each object, in the order of the store",
            )
        return values

    def _results(
        self, fit: OneClass, features: Array | None, keeper: CheckpointWriter, *, check: bool
    ) -> list[OutlierResult]:
        options = self.options
        names = _folders(self.prepared.runs)
        euclidean = None
        if options.clusters and check and features is None:
            euclidean = known_euclidean(fit.relation, keeper, memory=options.memory)
        results = []
        for name, typicality, ladder in zip(names, fit.typicalities, fit.ladders, strict=True):
            cut, segments = typicality.outliers(options.reject), None
            if options.clusters:
                known: dict[str, Any] = {"check": False, "memory": options.memory}
                saved = SavedSegments(keeper, name or "segments")
                segments = segment_clusters(fit.relation, typicality, cut, **known, saved=saved)
                segments = replace(segments, is_euclidean=euclidean)
                if features is not None:
                    other = segment_clusters(fit.relation, typicality, cut, features=features, **known)
                    self._compare(segments, other)
            results.append(OutlierResult(name, typicality, cut, segments, ladder))
        return results

    def _compare(self, segments: Segments, other: Segments) -> None:
        different = np.flatnonzero(segments.labels != other.labels)
        if different.size:
            ids = self.prepared.relation.matrix.ids
            raise InputError(
                f"features give other clusters than the matrix ({other.n_clusters}, not {segments.n_clusters}), such as"
                f" for {some([shown(ids[k]) for k in different[:3]], total=different.size)}",
                remedy="give the features whose Euclidean distances the matrix has",
            )


def _write(result: OutlierResult, fit: OneClass, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    ids, u = fit.relation.matrix.ids, result.found.typicality
    outlier = ["true" if rejected else "false" for rejected in result.cut.rejected.tolist()]
    cut = result.cut
    lines = zip(
        ids, u.tolist(), cut.ranks.tolist(), outlier, result.labels.tolist(), result.found.neighbour_distances.tolist(),
        cut.neighbour_ranks.tolist(), strict=True,
    )  # fmt: skip
    write_csv(folder / "outliers.csv", COLUMNS, lines)
    result.found.model(fit.relation, result.cut.threshold).save(folder / "model.npz")


def _draw(fit: OneClass, results: list[OutlierResult], folder: Path) -> None:
    from dasrel.report.figures.matrix import matrix_image
    from dasrel.report.figures.outliers import draw_outliers

    draw_outliers(fit, results, folder, matrix_image=matrix_image)


def _folders(runs: list[OneClassRun]) -> list[str]:
    """Return a folder for each setting: "." for a single one, else the width, and the scale where scales differ."""
    if len(runs) == 1:
        return ["."]
    scales = len({run.eta_scale for run in runs}) > 1
    names = []
    for run in runs:
        width = run.width if isinstance(run.width, str) else "-none" if run.width is None else f"{run.width:.12g}"
        names.append(f"width{width}" + (f"-scale{run.eta_scale:.12g}" if scales else ""))
    return names


def _summary(fit: OneClass, results: list[OutlierResult], scans: int) -> dict[str, Any]:
    source, settings = fit.relation.matrix, []
    for result in results:
        same, compared = result.cut.agreement()
        rejected = result.cut.order[: int(result.cut.rejected.sum())]
        clusters = result.segments
        settings.append(
            {
                "folder": result.folder,
                **result.found.row(),
                "threshold": result.cut.alpha,
                "outliers": len(rejected),
                "outlier_ids": [str(source.ids[k]) for k in rejected[:MOST_IDS]],
                "neighbours": {
                    "k": result.found.n_neighbours, "standing_out": result.cut.alone,
                    "standing_out_ids": [str(source.ids[k]) for k in result.cut.far[: min(result.cut.alone, MOST_IDS)]],
                    "compared": compared, "same": same,
                },
                "clusters": None
                if clusters is None
                else {
                    "n_clusters": clusters.n_clusters, "sizes": clusters.sizes.tolist(), "tested": clusters.tested,
                    "joined": clusters.joined, "complete": clusters.complete, "is_euclidean": clusters.is_euclidean,
                },
                "ladder": [_rung(rung, result) for rung in result.ladder],
            }
        )  # fmt: skip
    return {
        "n_objects": source.n_objects,
        "kind": source.kind,
        "converged": all(result.found.converged for result in results),
        "scans": scans,
        "seconds": round(fit.seconds, 3),
        "scale": vars(fit.scale),
        "widths": [{"width": trial.width, "likelihood": trial.likelihood} for trial in fit.trials if trial.usable],
        "settings": settings,
        "versions": versions(),
    }


def _rung(rung: Typicality, result: OutlierResult) -> dict[str, Any]:
    """Return what another width of a ladder gives: how many of the same number of outliers are the same objects."""
    count = int(result.cut.rejected.sum())
    order = np.lexsort((-np.arange(len(rung.log_typicality)), rung.log_typicality))
    same = int(result.cut.rejected[order[:count]].sum())
    return {"width": rung.run.width, "n_iter": rung.n_iter, "same_outliers": same}


OPERATION = Outliers()
