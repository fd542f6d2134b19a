"""The part of a page about a clustering, or about one of its settings if there are several."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np

from dasrel.names import INDICES
from dasrel.report import page_figures as pictures
from dasrel.report.figures.downsample import cluster_order
from dasrel.report.page_parts import Block, Note, ResultPart, Section, Table, percent, table
from dasrel.report.result_reading import (
    WHOLE,
    Objects,
    Source,
    damaged,
    number,
    read_memberships,
    read_objects,
    read_table,
    whole_file,
)
from dasrel.report.result_store import audit_section, find_store, is_small, run_section, scan_note
from dasrel.report.verdict import cluster_verdict, mean_by_cluster
from dasrel.store.matrix import Matrix
from dasrel.util import Array
from dasrel.util.text import count_text, path_text, shown, size_text, time_text

LISTED = 100
"""Objects on a border, and runs, that a page lists."""
RUN_COLUMNS = (
    *("run", "rule", "n_clusters", "fuzzifier", "entropy_weight", "eta_scale", "spread", "init", "restart"),
    *("converged", "n_iter", "objective", "objective_change", "largest_change", "entropy", "coincident_clusters"),
    *("empty", "negative_distances", "best"),
)
"""Columns of runs.csv that a page shows, where they have a value."""


def cluster_part(source: Source, *, scan: bool = True) -> ResultPart:
    """Return the part of a page about a result of `dasrel cluster`.

    Cost: at most one scan, for the image of the matrix, if the store is there, unchanged and small; reads the tables.
    """
    result = source.values
    best = best_setting(result)
    folder = source.setting(best["folder"])
    n = result["n_objects"]
    objects = _objects(folder, n)
    silhouettes = None if objects is None else objects.columns.get("silhouette")
    if silhouettes is not None and np.isnan(silhouettes).all():
        silhouettes = None
    runs = _runs(source)
    matrix, why = find_store(source)
    sections = [
        Section("Clusters", [_clusters(best, n, objects)]),
        Section("The matrix in the order of clusters", [_matrix(source, matrix, why, folder, best, n, scan)]),
        Section("Memberships", [_memberships(source, folder, best, n)]),
        Section("Silhouettes", [_silhouettes(objects, silhouettes)]),
        *_validity(result, best),
        *_ladders(best),
        Section("Border objects", _borders(objects, folder, result, best)),
        Section("Runs", [*_run_blocks(source, runs), *_levels(result)]),
        audit_section(source, matrix, why),
        run_section(source),
    ]
    clusters = count_text(best["n_clusters"], "cluster")
    headline = f"{clusters} of {count_text(n, 'object')}, {best['rule']}"
    if len(result["settings"]) > 1:
        headline += f", the best of {count_text(len(result['settings']), 'setting')}"
    verdict = cluster_verdict(result, best, runs, silhouettes)
    if verdict and verdict[0].text.startswith("No clear clusters"):
        headline = f"No clear clusters: {headline}"
    facts = [
        ("objects", f"{n:,}, kind {shown(result.get('kind', 'not recorded'))}"),
        ("sizes", " ".join(f"{size:,}" for size in best["sizes"][:20]) + (" ..." if len(best["sizes"]) > 20 else "")),
        ("runs", f"{result['runs']:,}; {result['runs_converged']:,} converged"),
        ("scans", f"{result['scans']:,} in {time_text(result['seconds'])}"),
    ]  # fmt: skip
    part = ResultPart.of(source, "Clustering", headline, verdict, facts, sections)
    part.source = source
    return part


def best_setting(result: dict[str, Any]) -> dict[str, Any]:
    """Return the recommended setting of a clustering, or the first."""
    advice = result.get("recommended") or {}
    settings: list[dict[str, Any]] = result["settings"]
    return next((setting for setting in settings if setting["folder"] == advice.get("folder")), settings[0])


def _objects(folder: Any, n: int) -> Objects | None:
    """Read labels.csv; the objects that are named are those on borders, and those with a silhouette below 0."""
    path = folder / "labels.csv"
    if not path.is_file():
        return None
    columns = ("label", "membership", "second_label", "silhouette", "border")

    def doubt(columns_read: dict[str, Array]) -> Array:
        """Order by membership; objects that are clearly inside are left out."""
        silhouette = columns_read.get("silhouette", np.full(len(columns_read["label"]), np.nan))
        border = columns_read.get("border", columns_read["membership"] < 0.9) > 0
        # Of equal memberships, as hard ones are, the lowest silhouette comes first.
        order = columns_read["membership"] + 1e-6 * np.nan_to_num(silhouette)
        return np.where(border | (silhouette < 0), order, np.nan)

    return read_objects(path, columns, n, doubt, LISTED)


def _clusters(best: dict[str, Any], n: int, objects: Objects | None) -> Table:
    c = best["n_clusters"]
    modes = best.get("modes") or list(range(c))
    means: dict[str, list[Any]] = {}
    if objects is not None:
        labels = objects.columns["label"]
        for name in ("silhouette", "membership"):
            if name in objects.columns:
                means[name] = mean_by_cluster(labels, objects.columns[name], c)
    medoids = best.get("medoids") or [None] * c
    to_medoids = best.get("medoid_means") or []
    if any(mean is not None for mean in to_medoids):
        means["distance to medoid"] = to_medoids
        which = "the member with the least mean dissimilarity to the others"
    else:
        which = "the member nearest to the centre"
    header = ["cluster", "objects", "share", "medoid", "membership sum"]
    header += [f"mean {name}" for name in means] + (["coincides with"] if len(set(modes)) < c else [])
    rows = []
    for k in range(c):
        row = [k, best["sizes"][k], percent(best["sizes"][k] / n), medoids[k], best["membership_sums"][k]]
        row += [of[k] for of in means.values()]
        rows.append(row + ([None if modes[k] == k else modes[k]] if len(set(modes)) < c else []))
    text = (
        f"The medoid is {which}: look at it first. The sum of memberships differs from the number of objects where"
        " clusters overlap."
    )
    return table("clusters", header, rows, text)


def _matrix(
    source: Source, matrix: Matrix | None, why: str, folder: Any, best: dict[str, Any], n: int, scan: bool
) -> Block:
    """Return the image of the matrix: one scan of a store that is there, unchanged and small."""
    target = path_text(folder)
    command = f"`dasrel image STORE matrix.png --result {shlex.quote(target)}`"
    if matrix is None:
        return Note(f"Not drawn: {why}. Where the store is, this command draws it: {command}")
    if not scan or not is_small(matrix):
        return scan_note(matrix, command.replace("STORE", shlex.quote(path_text(matrix.store))))

    def draw() -> Any:
        U = read_memberships(folder / "memberships.npy", n)
        if U is None:
            return Note(f"Not drawn: there is no {path_text(folder / 'memberships.npy')}.")
        labels = read_labels(folder, n)
        sizes = np.bincount(labels, minlength=best["n_clusters"]).tolist()
        named = [(str(k), size) for k, size in enumerate(sizes)]
        return pictures.matrix_picture(matrix, cluster_order(np.asarray(U), labels), named, "dissimilarities")

    return pictures.picture_or_note(draw)


def read_labels(folder: Any, n: int) -> Array:
    """Read the cluster of each object."""
    objects = read_objects(folder / "labels.csv", ("label",), n, lambda of: np.full(len(of["label"]), np.nan), 0)
    return objects.columns["label"].astype(np.intp)


def _memberships(source: Source, folder: Any, best: dict[str, Any], n: int) -> Block:
    drawn = source.file("partition.png")
    if drawn.is_file():
        return pictures.picture_or_note(
            lambda: pictures.png_file(drawn, *pictures.membership_words(best["n_clusters"]))
        )

    def draw() -> Any:
        U = read_memberships(folder / "memberships.npy", n)
        if U is None:
            return Note(f"Not drawn: there is no {path_text(folder / 'memberships.npy')}.")
        title = f"{count_text(n, 'object')}, {best['rule']}, {count_text(best['n_clusters'], 'cluster')}"
        return pictures.membership_picture(np.asarray(U), title)

    return pictures.picture_or_note(draw)


def _silhouettes(objects: Objects | None, silhouettes: Array | None) -> Block:
    if objects is None:
        return Note("Not drawn: the result has no labels.csv.")
    if silhouettes is None:
        text = "Not drawn: the result has no silhouettes; results of one cluster have none."
        return Note(f"{text} `dasrel validity STORE OUT` computes their means.")
    return pictures.picture_or_note(lambda: pictures.silhouette_picture(objects.columns["label"], silhouettes))


def _validity(result: dict[str, Any], best: dict[str, Any]) -> list[Section]:
    settings = [setting for setting in result["settings"] if setting.get("validity")]
    if not settings:
        return [Section("Validity", [Note("The result has no validity indices: it was not judged.")])]
    names = [name for name in INDICES if any(setting["validity"].get(name) is not None for setting in settings)]
    header = ["setting", "clusters", *(name.replace("_", " ") for name in names), "recommended"]
    if len(settings) == 1:
        rows = [[name.replace("_", " "), settings[0]["validity"].get(name), "larger" if INDICES[name] else "smaller"]
                for name in names]  # fmt: skip
        text = "Indices compare partitions of the same objects: alone, only the silhouette has a scale of its own."
        return [Section("Validity", [table("validity", ["index", "value", "better is"], rows, text)])]
    rows = [
        [setting["folder"], setting["n_clusters"], *(setting["validity"].get(name) for name in names), setting is best]
        for setting in settings
    ]
    better = ", ".join(name.replace("_", " ") for name in names if INDICES[name])
    text = f"Of {better} larger is better, of the others smaller. Only rows of one table can be compared."
    blocks: list[Block] = [table("validity", header, rows, text)]
    if len({setting["n_clusters"] for setting in settings}) > 1:
        index = (result.get("recommended") or {}).get("index", "fuzzy_silhouette")
        blocks.insert(0, pictures.picture_or_note(lambda: pictures.validity_curves(settings, best, index)))
    return [Section("Validity against the number of clusters", blocks)]


def _ladders(best: dict[str, Any]) -> list[Section]:
    """Return the values that were tried for parameters that were automatic."""
    blocks: list[Block] = []
    for ladder in best.get("ladders") or []:
        header = ["value", "silhouette", "objective", "converged", "coincident pairs", "empty", "chosen"]
        rows = [
            [rung["value"], rung["silhouette"], rung["objective"], rung["converged"], rung["coincident_clusters"],
             rung["empty"], rung["value"] == ladder["chosen"]]
            for rung in ladder["values"]
        ]  # fmt: skip
        name = ladder["parameter"]
        blocks.append(
            table(name, header, rows, f"{name.replace('_', ' ').capitalize()}: {shown(ladder['reason'], limit=300)}.")
        )
    return [Section("Parameters that were chosen", blocks)] if blocks else []


def _borders(objects: Objects | None, folder: Any, result: dict[str, Any], best: dict[str, Any]) -> list[Block]:
    if objects is None:
        return [Note("The result has no labels.csv, so that no objects can be listed.")]
    path = folder / "labels.csv"
    columns = {name: of for name, of in objects.columns.items() if name != "border"}
    border = objects.columns.get("border", columns["membership"] < 0.9) > 0
    below = columns["silhouette"] < 0 if "silhouette" in columns else np.zeros(len(objects), dtype=bool)
    total = int((border | below).sum())
    bound = (result.get("requested") or {}).get("border", 0.9)
    if not total:
        clear = f"No object has a largest membership below {bound:g}, or a silhouette below 0."
        blocks: list[Block] = [Note(clear, "good")]
    else:
        names = [name for name in columns if not np.isnan(columns[name][objects.chosen]).all()]
        rows: list[list[Any]] = []
        for name, k in zip(objects.names, objects.chosen, strict=True):
            values = [columns[column][k] for column in names]
            rows.append([name, *(int(v) if column.endswith("label") and not np.isnan(v) else float(v)
                                 for column, v in zip(names, values, strict=True))])  # fmt: skip
        text = (
            f"Objects with a largest membership below {bound:g}, or a silhouette below 0: between two clusters, or in"
            " the wrong one. The lowest memberships first."
        )
        header = ["id", *(name.replace("_", " ") for name in names)]
        blocks = [table("border-objects", header, rows, text, total=total)]
    whole = whole_file(path)
    if whole is None:
        size = size_text(path.stat().st_size)
        blocks.append(Note(f"The labels of all objects are in the file {path_text(path)} ({size})."))
    else:
        blocks.append(Table("labels", [], [], "", file=path_text(path), whole=whole, kind="download"))
    return blocks


def _runs(source: Source) -> list[dict[str, Any]]:
    path = source.file("runs.csv")
    if not path.is_file():
        return []
    _, rows, count = read_table(path)
    if count != source.values["runs"]:
        raise damaged(path, f"it has {count_text(count, 'run')} of {source.values['runs']:,}")
    return [{name: number(text) for name, text in row.items()} for row in rows]


def _run_blocks(source: Source, runs: list[dict[str, Any]]) -> list[Block]:
    path = source.file("runs.csv")
    if not runs:
        return [Note("The result has no runs.csv.")]
    names = [name for name in RUN_COLUMNS if any(run.get(name) is not None for run in runs)]
    zero = ("spread", "coincident_clusters", "empty", "negative_distances")
    names = [name for name in names if name not in zero or any(run.get(name) for run in runs)]
    rows = sorted(runs, key=lambda run: (not run.get("best"), run["run"]))
    text = (
        "The best run of every setting comes first. Objectives can be compared within a setting only. Objective change:"
        " relative, over the last two iterations; largest change: of a membership, in the last iteration."
    )
    header = [name.removeprefix("n_").replace("_", " ").replace("iter", "iterations") for name in names]
    cells = [[run.get(name) for name in names] for run in rows[:LISTED]]
    more = {"total": len(runs), "file": path_text(path), "whole": whole_file(path, WHOLE // 2)}
    return [table("runs", header, cells, text, **more)]


def _levels(result: dict[str, Any]) -> list[Block]:
    """Return what was done on samples and on all objects, where there was a sample."""
    levels = result.get("levels") or []
    if len(levels) < 2:
        return []
    header = ("objects", "runs", "iterations", "columns", "seconds")
    rows = [[level[name] for name in ("objects", "runs", "n_iter", "columns", "seconds")] for level in levels]
    text = "Levels: settings are decided on samples; all objects, which come last, see few runs."
    return [table("levels", header, rows, text)]
