"""Result folders, CSV files and predictions.

A result folder holds plain files that any program can read; it is complete or absent. With one setting all files are in
the folder itself. With several, `result.json` and `runs.csv` are about all of them, and each setting has a folder named
after it, such as `fcm1-clusters3-fuzzifier1.5`; `best` has the files of the recommended one.

    result.json       options, results, scans, times, versions, warnings
    runs.csv          one line for every run
    validity.csv      validity indices, one line for every setting
    labels.csv        id, label, membership: the cluster of largest membership of each object; the second cluster; the
                      object's silhouette; whether it is on a border
    memberships.npy   n x c
    model.npz         the centres, for `dasrel predict` and for warm starts
    history.csv       with `history`: objective and largest change of a membership, at each iteration of every run
    moved.csv         after a warm start: id, label and membership, before and now, of objects that moved
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.cmeans.result import Clustering
from dasrel.errors import InputError, StoreError
from dasrel.judging.validity import DEFAULT
from dasrel.names import INDICES
from dasrel.partition.model import Model, load_memberships as load_memberships
from dasrel.partition.result import Partition
from dasrel.partition.run import Run
from dasrel.util import Array, PathLike
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.results import check_file, check_out, draw_or_warn, result_folder, write_csv
from dasrel.util.text import count_text, redacted, shown

Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
Draw = Callable[[Clustering, Path, str], None]
_NAMED = ("fuzzifier", "entropy_weight", "eta_scale", "eta", "eta_cut", "eta_refit", "spread", "on_negative")
"""Parameters that are part of a folder's name where settings differ in them, besides rule and number of clusters."""


def save_clustering(
    found: Clustering,
    out: PathLike,
    *,
    about: dict[str, Any] | None = None,
    tables: Mapping[str, Table] | None = None,
    choose: str = "fuzzy_silhouette",
    border: float = 0.9,
    force: bool = False,
) -> dict[str, Any]:
    """Write the result of `dasrel.cluster` into a folder, and return the contents of its result.json.

    Parameters
    ----------
    about
        Added to the beginning of result.json, such as the store and the options.
    tables
        More CSV files for the folder, by name: a header, and lines.
    choose
        The validity index that recommends one of several settings.
    border
        Objects whose largest membership is below this are on a border.
    force
        Replace an earlier result. A folder that holds anything else is never replaced.

    Cost: one scan if there are several settings and they were not judged yet; writes about 8 n (2 c + 2) bytes for
    each setting.
    """
    check_out(out, force=force)
    return write_clustering(found, Path(out), about=about, tables=tables, choose=choose, border=border, force=force)


def write_clustering(
    found: Clustering,
    target: Path,
    *,
    about: dict[str, Any] | None = None,
    tables: Mapping[str, Table] | None = None,
    choose: str = "fuzzy_silhouette",
    border: float = 0.9,
    draw: Draw | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write a result folder that `check_out` has allowed; see `save_clustering`.

    `draw` draws pictures into the folder, given the clustering, the folder and the index that recommends a setting.
    """
    if len(found.partitions) > 1 and (found.quality is None or choose not in found.quality.values):
        found = replace(found, quality=found.validity(indices=[*DEFAULT, choose]))
    names = folder_names(found.requested)
    result = {**redacted(about or {}), **_summary(found, names, choose, border)}
    with result_folder(target, result, force=force) as temporary:
        for k, (name, partition) in enumerate(zip(names, found.partitions, strict=True)):
            (temporary / name).mkdir(exist_ok=True)
            silhouettes = found.quality.silhouettes[k] if found.quality and found.quality.silhouettes else None
            save_partition(partition, temporary / name, silhouettes, border)
        if len(names) > 1:
            _link_files(temporary / names[found.recommended(choose)], temporary / "best")
        if found.quality is not None:
            judged = found.quality.table()
            cells = ([name, *list(line.values())[1:]] for name, line in zip(names, judged, strict=True))
            write_csv(temporary / "validity.csv", list(judged[0]), cells)
        if draw is not None:
            draw_or_warn(draw, found, temporary, choose)
        rows = found.table()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        write_csv(temporary / "runs.csv", columns, ([_cell(row.get(key)) for key in columns] for row in rows))
        steps = found.history()
        if steps:
            write_csv(temporary / "history.csv", list(steps[0]), (list(row.values()) for row in steps))
        for name, (header, lines) in (tables or {}).items():
            write_csv(temporary / name, header, lines)
    return result


def folder_names(runs: Sequence[Run]) -> list[str]:
    """Return a folder name for each setting: "." for a single one, else rule, clusters, and what settings differ in.

    >>> folder_names([Run("fcm1", 2, fuzzifier=1.5), Run("fcm1", 2, fuzzifier=2), Run("hard", 3)])
    ['fcm1-clusters2-fuzzifier1.5', 'fcm1-clusters2-fuzzifier2', 'hard-clusters3']
    """
    if len(runs) == 1:
        return ["."]
    differ = []
    for name in _NAMED:
        by_rule: dict[str, set[Any]] = {}
        for run in runs:
            by_rule.setdefault(run.rule, set()).add(getattr(run, name))
        if any(len(values) > 1 for values in by_rule.values()):
            differ.append(name)
    names: list[str] = []
    for run in runs:
        parts = [run.rule, f"clusters{run.n_clusters}"]
        for name in differ:
            value = getattr(run, name)
            if value is not None:
                text = value if isinstance(value, str) else f"{value:.12g}"
                parts.append(f"{name.replace('_', '-')}{text}")
        name = "-".join(parts)
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names


def _link_files(folder: Path, target: Path) -> None:
    """Make a folder with the same files as another, without copying where the disk has hard links."""
    target.mkdir()
    for file in sorted(folder.iterdir()):
        try:
            os.link(file, target / file.name)
        except OSError:
            shutil.copy2(file, target / file.name)


GOOD = 0.25
"""The silhouette below which there are perhaps no clusters (Kaufman and Rousseeuw 1990)."""


def _recommended(found: Clustering, names: Sequence[str], index: str) -> dict[str, Any] | None:
    """Return the setting to take by a validity index, and why; None where nothing was judged."""
    if found.quality is None:
        return None
    k = found.recommended(index)
    value, run = float(found.quality[index][k]), found.partitions[k].result.run
    name = index.replace("_", " ")
    best = "largest" if INDICES[index] else "smallest"
    sound = sum(one.result.is_sound for one in found.partitions)
    reason = "the only setting"
    if len(names) > 1 and np.isnan(value):
        reason = f"the first setting: there is no {name} of a single cluster"
    elif len(names) > 1:
        reason = f"the {best} {name} of {count_text(sound or len(names), 'setting')}"
        reason += " without coincident or empty clusters" if 0 < sound < len(names) else ""
    good = not ("silhouette" in found.quality.values and found.quality["silhouette"][k] < GOOD)
    if not good:
        reason += f"; its silhouette is below {GOOD}: perhaps there are no clusters"
    return {
        "folder": names[k], "rule": run.rule, "n_clusters": run.n_clusters, "index": index,
        "value": value if np.isfinite(value) else None, "reason": reason, "is_good": good,
    }  # fmt: skip


def _summary(found: Clustering, names: Sequence[str], choose: str, border: float) -> dict[str, Any]:
    settings = []
    for k, (name, partition) in enumerate(zip(names, found.partitions, strict=True)):
        best, ids = partition.result, partition.model.ids
        quality = None if found.quality is None else found.quality.take([k]).table()[0]
        settings.append(
            {
                "folder": name,
                **best.run.parameters(),
                "entropy_weight_used": best.entropy_weight,
                "run": next(at for at, one in enumerate(found.runs) if one is best),
                "converged": best.converged,
                "n_iter": best.n_iter,
                "objective": best.objective,
                "entropy": best.entropy,
                "beta": best.beta,
                "sizes": partition.sizes.tolist(),
                "membership_sums": list(best.membership_sums),
                "medoids": [str(ids[k]) for k in partition.medoids],
                "flat": best.flat,
                "coincident_clusters": best.coincident_clusters,
                "n_modes": best.n_modes,
                "modes": None if best.modes is None else list(best.modes),
                "negative_distances": best.negative_distances,
                "empty": best.empty,
                "border": len(partition.border(border)),
                "validity": None if quality is None else dict(list(quality.items())[2:]),
                "ladders": [ladder.report() for ladder in found.ladders[k]],
            }
        )
    model = found.partitions[0].model
    return {
        "n_objects": model.n_objects,
        "kind": model.kind,
        "runs": len(found.runs),
        "runs_converged": sum(one.converged for one in found.runs),
        "converged": all(partition.result.converged for partition in found.partitions),
        "scans": found.scans,
        "first_scans": found.first_scans,
        "bundles": found.bundles,
        "seconds": round(found.seconds, 3),
        "update_seconds": round(found.update_seconds, 3),
        "sample": found.sample,
        "recommended": _recommended(found, names, choose if len(names) > 1 else "silhouette"),
        "settings": settings,
        "warnings": list(found.warnings),
        "versions": {"dasrel": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def save_partition(partition: Partition, folder: Path, silhouettes: Array | None, border: float) -> None:
    """Write labels.csv, memberships.npy and model.npz of a partition."""
    U = partition.memberships
    labels = partition.labels
    largest = U.max(axis=1)
    modes = np.array(partition.model.modes or range(U.shape[1]))
    others = np.where(modes == labels[:, None], -np.inf, U)  # the clusters of other modes
    second = partition.model.labels(others).tolist() if len(set(modes.tolist())) > 1 else [""] * len(U)
    silhouette = [""] * len(U) if silhouettes is None else silhouettes.tolist()
    on_border = ["true" if one else "false" for one in (largest < border).tolist()]
    lines = zip(partition.model.ids, labels.tolist(), largest.tolist(), second, silhouette, on_border, strict=True)
    write_csv(folder / "labels.csv", ["id", "label", "membership", "second_label", "silhouette", "border"], lines)
    np.save(folder / "memberships.npy", np.ascontiguousarray(U))
    partition.model.save(folder / "model.npz")


# ------------------------------------------------------------------------------------------------------- new objects


def load_model(path: PathLike) -> Model:
    """Read a model from its file, or from the result folder that holds it."""
    folder = Path(path)
    if folder.is_dir() and not (folder / "model.npz").is_file():
        inside = sorted(one.parent.name for one in folder.glob("*/model.npz"))  # "best" comes first
        hint = f"; choose one of its settings, such as {shown(folder / inside[0], limit=200)}" if inside else ""
        raise StoreError(f"no model in {shown(folder, limit=200)}{hint}")
    return Model.load(folder / "model.npz" if folder.is_dir() else folder)


def save_predictions(
    path: PathLike, memberships: Array, labels: Array, ids: Sequence[str] | None = None, *, force: bool = False
) -> None:
    """Write id, label, largest membership, and the membership in every cluster, one line per new object."""
    target = Path(path)
    check_file(target, force=force)
    count, clusters = memberships.shape
    names = _names_of_new(ids, count)
    rows = zip(names, labels.tolist(), map(np.ndarray.tolist, memberships), strict=True)
    lines = ([name, k, max(u), *u] for name, k, u in rows)
    write_csv(target, ["id", "label", "membership", *(f"cluster{k}" for k in range(clusters))], lines)


def save_outliers(
    path: PathLike, scores: Array, threshold: float, ids: Sequence[str] | None = None, *, force: bool = False
) -> int:
    """Write id, typicality and whether it is an outlier, one line per new object; return the number of outliers."""
    target = Path(path)
    check_file(target, force=force)
    names, rejected = _names_of_new(ids, len(scores)), scores < threshold
    said = ["true" if one else "false" for one in rejected.tolist()]
    write_csv(target, ["id", "typicality", "outlier"], zip(names, np.exp(scores).tolist(), said, strict=True))
    return int(rejected.sum())


def _names_of_new(ids: Sequence[str] | None, count: int) -> Sequence[str]:
    if ids is not None and len(ids) != count:
        raise InputError(f"{count_text(len(ids), 'id')} for {count_text(count, 'new object')}; give one for each")
    return [str(k) for k in range(count)] if ids is None else ids


# ----------------------------------------------------------------------------------------------------------- writing


def _cell(value: Any) -> Any:
    """Return a value for a CSV field: lists separated by spaces, booleans as in JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return " ".join(str(item) for item in value)
    return value


def estimate_predict(
    model: str | os.PathLike[str], rows: str, out: str | os.PathLike[str], *, force: bool = False
) -> Cost:
    """Estimate the cost of `dasrel predict`. Cost: reads the model; the rows only have to exist."""
    check_file(out, force=force)
    known = load_model(model)
    if "://" not in rows and not os.path.exists(rows):
        raise InputError(f"there is no file {shown(rows, limit=400)} with rows of new objects")
    size = os.path.getsize(rows) if os.path.isfile(rows) else 0
    count = size // (8 * known.n_objects)
    facts: dict[str, Any] = {"rows": rows, "values_a_row": known.n_objects, "n_clusters": known.n_clusters}
    outputs = (Output(str(out), count * (20 + 12 * known.n_clusters)),)
    return Cost("predict", None, Range(0, 0, 0), 0, 2 * size + 16 * known.n_objects * known.n_clusters, outputs, facts)
