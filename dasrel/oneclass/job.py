"""Outliers of a store, from options: all settings in one bundle, and their result folder.

A result folder holds plain files. With one setting all are in the folder itself; with several each has a folder named
after it, such as `width0.5-scale2`, and `result.json` is about all of them.

    result.json     options, results, scans, times, versions
    outliers.csv    id, typicality, rank (1 is the least typical), outlier, cluster (-1 for outliers)
    model.npz       the centre, for `dasrel predict`
    outliers.png    typicalities and their cut, and the matrix in the order of the clusters
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, watched
from dasrel.engine.relation import product_shape
from dasrel.engine.scan import needed_memory
from dasrel.errors import InputError
from dasrel.geometry.euclidean import as_euclidean, euclidean_scans
from dasrel.names import METHODS
from dasrel.oneclass.fit import (
    COLUMN_BYTES,
    OneClass,
    PreparedOneClass,
    kernel_view,
    one_class,
    prepare_one_class,
)
from dasrel.oneclass.run import OneClassRun
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
from dasrel.options import OutlierOptions
from dasrel.partition.files import positions
from dasrel.store.matrix import open_matrix
from dasrel.util import Array, PathLike, limits
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.results import MOST_IDS, check_out, draw_or_warn, finished_result, job_header, result_folder, write_csv
from dasrel.util.text import count_text, redacted, shown, some

TYPICAL = 8
"""Iterations, the median over figure 1 of F10, Gaussian clouds of 2 to 20 dimensions and digits: 3 to 30."""


Draw = Callable[[OneClass, list[OutlierResult], Path], None]


def prepare_outliers(
    store: str,
    options: OutlierOptions | None = None,
    out: PathLike | None = None,
    *,
    force: bool = False,
    resume: bool = False,
) -> OutlierJob:
    """Check options, the store and the result folder.

    Parameters
    ----------
    resume
        If the result folder holds the result of the same job already, `run` returns it.

    Cost: no tile is read.
    """
    options = options or OutlierOptions()
    runs = [
        OneClassRun(
            None if width == "none" else width, scale, eta_refit=options.eta_refit, tol=options.tol,
            max_iter=options.max_iter,
        )
        for width in options.width
        for scale in options.eta_scale
    ]  # fmt: skip
    if len(set(runs)) < len(runs):
        raise InputError("a width and a eta_scale are given twice; leave one out")
    matrix = open_matrix(store)
    prepared = prepare_one_class(matrix, runs, memory=options.memory)
    if options.clusters and any(run.width is None for run in prepared.runs):
        raise InputError(
            "clusters of any shape need a width: without one the cut is a ball, which is one cluster",
            remedy="say {width=NUMBER}",
        )
    if options.euclideanize == "ultrametric" and any(run.width is not None for run in prepared.runs):
        raise InputError("a Gaussian kernel cannot see an added ultrametric", remedy="say {euclideanize=spread}")
    header = job_header(store, matrix.identity_digest(), out or "", options)
    finished = finished_result(out, header) if out is not None and resume else None
    if out is not None and finished is None:
        check_out(out, force=force)
    return OutlierJob(store, options, prepared, None if out is None else Path(out), header, force, finished)


@dataclass(frozen=True, eq=False)
class OutlierJob:
    """Outliers to be found; see `prepare_outliers`."""

    store: str
    options: OutlierOptions
    prepared: PreparedOneClass
    out: Path | None
    header: dict[str, Any]
    """What identifies the job in its result.json."""
    force: bool
    finished: dict[str, Any] | None = None
    """The content of result.json where the same job has written its result already."""

    def run(
        self,
        *,
        checkpoint: Checkpoint | None = None,
        about: dict[str, Any] | None = None,
        draw: Draw | None = None,
    ) -> dict[str, Any]:
        """Find the outliers, write the result folder, and return the contents of its result.json.

        Parameters
        ----------
        about
            Added to what result.json says of store, out and options.
        draw
            Draws pictures into the folder.

        Cost: that of `one_class`, of `euclideanize` where a method is named, and of `segment_clusters` for clusters.
        """
        assert self.out is not None
        if self.finished is not None:
            return self.finished
        options = self.options
        kept: dict[str, Any] = {"memory": options.memory, "checkpoint": checkpoint}
        features = None if options.features is None else self._features(options.features)
        with watched(checkpoint, *COMMANDS):
            changed = as_euclidean(self.store, options.euclideanize, **kept)
            runs = self.prepared.runs
            found = self.prepared.run(checkpoint) if changed is None else one_class(changed.relation, runs, **kept)
            saved = checkpoint if options.clusters else None
            with segments_writer(saved, found.relation, runs, options.reject) as keeper:
                results = self._results(found, features, keeper, check=changed is None)
                scans = found.scans + keeper.scans
            header = {
                **self.header,
                "euclideanized": None if changed is None else changed.report(),
                **(about or {}),
            }
            summary = {**redacted(header), **_summary(found, results, scans)}
            with result_folder(self.out, summary, force=self.force) as folder:
                for one in results:
                    self._write(one, found, folder / one.folder)
                if draw is not None:
                    draw_or_warn(draw, found, results, folder)
        return summary

    def cost(self) -> Cost:
        """Estimate the cost of `run`: no tile is read."""
        options, prepared = self.options, self.prepared
        source: Any = prepared.relation.matrix
        n, columns, memory = source.n_objects, prepared.columns, limits.memory_limit(options.memory)
        bundles = prepared.split()
        typical = min(TYPICAL, options.max_iter)
        scans = Range(len(bundles), len(bundles) * typical, len(bundles) * options.max_iter)
        if prepared.needs_scale:
            scans += Range(1, 1, 1)
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
        threads = max(1, min(limits.thread_count(), (memory - fixed) // task)) if task else 1
        size = len(prepared.runs) * n * (60 + 8)
        outputs = () if self.out is None else (Output(str(self.out), size),)
        facts = {"settings": len(prepared.runs), "columns": len(columns), "bundles": len(bundles)}
        return Cost("outliers", n, scans, source.layout.total_bytes, int(fixed + threads * task), outputs, facts)

    def _features(self, path: str) -> Array:
        from dasrel.io.features import read_rows

        rows = read_rows(path, checksum=False)
        found = np.asarray(rows.array(), dtype=np.float64)
        n = self.prepared.relation.n_objects
        if rows.ids is not None:
            return found[positions(shown(path, limit=200), rows.ids, self.prepared.relation.matrix.ids)]
        if len(found) != n:
            raise InputError(
                f"{shown(path, limit=200)} has {count_text(len(found), 'row')} and the store {count_text(n, 'object')}:"
                " give one for each object, in the order of the store"
            )
        return found

    def _results(
        self, found: OneClass, features: Array | None, keeper: CheckpointWriter, *, check: bool
    ) -> list[OutlierResult]:
        options = self.options
        names = _folders(self.prepared.runs)
        euclidean = None
        if options.clusters and check and features is None:
            euclidean = known_euclidean(found.relation, keeper, memory=options.memory)
        results = []
        for name, one, ladder in zip(names, found.typicalities, found.ladders, strict=True):
            cut, segments = one.outliers(options.reject), None
            if options.clusters:
                known: dict[str, Any] = {"check": False, "memory": options.memory}
                saved = SavedSegments(keeper, name or "segments")
                made = segment_clusters(found.relation, one, cut, **known, saved=saved)
                segments = replace(made, is_euclidean=euclidean)
                if features is not None:
                    self._compare(segments, segment_clusters(found.relation, one, cut, features=features, **known))
            results.append(OutlierResult(name, one, cut, segments, ladder))
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

    def _write(self, one: OutlierResult, found: OneClass, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        ids, u = found.relation.matrix.ids, one.found.typicality
        outlier = ["true" if rejected else "false" for rejected in one.cut.rejected.tolist()]
        lines = zip(ids, u.tolist(), one.cut.ranks.tolist(), outlier, one.labels.tolist(), strict=True)
        write_csv(folder / "outliers.csv", ["id", "typicality", "rank", "outlier", "cluster"], lines)
        one.found.model(found.relation, one.cut.threshold).save(folder / "model.npz")


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


def _summary(found: OneClass, results: list[OutlierResult], scans: int) -> dict[str, Any]:
    source, settings = found.relation.matrix, []
    for one in results:
        rejected = one.cut.order[: int(one.cut.rejected.sum())]
        clusters = one.segments
        settings.append(
            {
                "folder": one.folder,
                **one.found.row(),
                "threshold": one.cut.alpha,
                "outliers": len(rejected),
                "outlier_ids": [str(source.ids[k]) for k in rejected[:MOST_IDS]],
                "clusters": None
                if clusters is None
                else {
                    "n_clusters": clusters.n_clusters, "sizes": clusters.sizes.tolist(), "tested": clusters.tested,
                    "joined": clusters.joined, "complete": clusters.complete, "is_euclidean": clusters.is_euclidean,
                },
                "ladder": [_rung(rung, one) for rung in one.ladder],
            }
        )  # fmt: skip
    return {
        "n_objects": source.n_objects,
        "kind": source.kind,
        "converged": all(one.found.converged for one in results),
        "scans": scans,
        "seconds": round(found.seconds, 3),
        "scale": None if found.scale is None else vars(found.scale),
        "settings": settings,
        "versions": {"dasrel": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def _rung(rung: Typicality, one: OutlierResult) -> dict[str, Any]:
    """Return what another width of a ladder gives: how many of the same number of outliers are the same objects."""
    count = int(one.cut.rejected.sum())
    order = np.lexsort((-np.arange(len(rung.log_typicality)), rung.log_typicality))
    same = int(one.cut.rejected[order[:count]].sum())
    return {"width": rung.run.width, "n_iter": rung.n_iter, "same_outliers": same}


def outlier_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print a result."""
    lines = [
        ("results", shown(result["out"], limit=400)),
        ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
        ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
    ]
    for one in result["settings"]:
        suffix = "" if one["converged"] else ", not converged"
        width = "none, the matrix is the kernel" if one["width"] is None else f"{one['width']:.6g}"
        named = one["outlier_ids"]
        rejected = f": {some([shown(name) for name in named], total=one['outliers'])}" if named else ""
        found = [
            ("width", width),
            ("converged", f"{'no' if suffix else 'yes'}, after {count_text(one['n_iter'], 'iteration')}"),
            ("typicality", f"{one['typicality_min']:.4g} to {one['typicality_max']:.4g}, cut {one['threshold']:.4g}"),
            ("outliers", f"{one['outliers']:,}{rejected}"),
        ]
        if one["ladder"] and one["outliers"]:
            texts = [f"{rung['width']:.4g}: {rung['same_outliers']:,}" for rung in one["ladder"]]
            found.append(("same outliers at", ", ".join(texts)))
        clusters = one["clusters"]
        if clusters is not None:
            pairs = ", ".join(f"{count:,} {name}" for name, count in clusters["tested"].items())
            more = "no other can join clusters" if clusters["complete"] else "others were not tested"
            found.append(("clusters", f"{clusters['n_clusters']:,}, sizes {_sizes(clusters['sizes'])}"))
            found.append(("segments", f"{pairs or 'none'}; {more}"))
        if len(result["settings"]) > 1:
            text = f"{one['outliers']:,} outliers, cut {one['threshold']:.4g}{suffix}"
            if clusters is not None:
                text += f", {count_text(clusters['n_clusters'], 'cluster')}"
            found = [(one["folder"], text)]
        lines += found
    return lines


def _sizes(sizes: list[int]) -> str:
    more = f" and {len(sizes) - 20} more" if len(sizes) > 20 else ""
    return " ".join(f"{size:,}" for size in sizes[:20]) + more
