"""Cluster the objects of a STORE: all runs together, one scan per iteration.

With one setting all files are in the result folder itself. With several, `result.json` and the tables of runs and
validity indices are about all of them, and each setting has a folder named after it, such as
`fcm1-clusters3-fuzzifier1.5`; `best` has the files of the recommended one.

    result.json       options, results, scans, times, versions, warnings
    runs.csv          one line for every run
    validity.csv      validity indices, one line for every setting
    labels.csv        id, label, membership: the cluster of largest membership of each object; the second cluster; the
                      object's silhouette; whether it is on a border
    medoids.csv       cluster, medoid, size, mean_dissimilarity: the member with the least mean dissimilarity to the
                      other members
    memberships.npy   n x c
    model.npz         the centres, for `dasrel predict` and for warm starts
    history.csv       with `history`: objective and largest change of a membership, at each iteration of every run
    moved.csv         after a warm start: id, label and membership, before and now, of objects that moved
    partition.png, validity.png
"""

# ruff: noqa: RUF009 - `same` and `option` return dataclass fields

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasrel.cmeans.fit import PreparedClustering as Work, prepare_clustering
from dasrel.cmeans.plan import ClusteringPlan, expected_scans, plan_clustering
from dasrel.cmeans.result import Clustering
from dasrel.cmeans.warm_start import Previous, keep_numbers, load_previous
from dasrel.commands.base import NOT_CONVERGED, Lines, Operation, PreparedFolder, Reads, Result, Target
from dasrel.commands.cluster_lines import lines_of
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.errors import DasrelWarning, InputError
from dasrel.judging.medoids import Medoids
from dasrel.judging.structure import Structure
from dasrel.judging.validity import DEFAULT
from dasrel.names import AUTO, INDICES, INITS, METHODS, TAKES, IndexName, RuleName
from dasrel.partition.files import save_partition
from dasrel.partition.model import load_model
from dasrel.partition.run import N_INIT, Run, grid
from dasrel.report.cluster_part import cluster_part
from dasrel.report.page_parts import ResultPart
from dasrel.report.result_reading import Source
from dasrel.report.verdict import DOUBTFUL
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import PathLike, progress
from dasrel.util.archives import load_array
from dasrel.util.option_fields import RUNNING, memory_option, option, picture_option, same
from dasrel.util.results import check_out, draw_or_warn, result_folder, versions, write_csv
from dasrel.util.text import count_text, redacted, shown, some

Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""A CSV file: its header, and its lines."""
GOOD = 0.25
"""The silhouette below which there are perhaps no clusters (Kaufman and Rousseeuw 1990), where nothing else
is known."""
CHOOSE: IndexName = "fuzzy_silhouette"
BORDER = 0.9

# ------------------------------------------------------------------------------------------------------------- options

_of_run = partial(same, Run)
_rare = partial(option, panel=RUNNING, rare=True)


@dataclass(frozen=True)
class RunOptions:
    """Which runs of a clustering to make: one of each combination of the listed values."""

    n_clusters: list[int] = _of_run("n_clusters", listed=True)
    rule: list[RuleName] = _of_run("rule", listed=True, default=[AUTO])
    fuzzifier: list[Literal["auto"] | float] | None = _of_run("fuzzifier", listed=True)
    entropy_weight: list[Literal["auto"] | float] | None = _of_run("entropy_weight", listed=True)
    eta_scale: list[Literal["auto"] | float] | None = _of_run("eta_scale", listed=True)
    eta: Literal["mean", "cut", "overall"] | None = _of_run("eta")
    eta_cut: float | None = _of_run("eta_cut")
    eta_refit: bool | None = _of_run("eta_refit")
    n_init: int = option(N_INIT, "Restarts of each combination.", RUNNING, metavar="N", least=1)
    init: list[str] = _of_run(
        "init", listed=True, reads=Reads(steps=("cluster",), words=INITS, suffixes=(".npz", ".npy"))
    )
    random_state: int = _of_run("random_state")
    max_iter: int = _of_run("max_iter")
    tol: float | None = _of_run("tol")
    on_negative: Literal["error", "heal"] = _of_run("on_negative")
    spread: list[float] = _of_run("spread", listed=True)
    euclideanize: str | None = option(
        None, f"First make the matrix Euclidean: {', '.join(METHODS)}, or a file (.npz) of `dasrel euclideanize`.",
        RUNNING, metavar="METHOD|FILE", reads=Reads(steps=("euclideanize",), words=METHODS, suffixes=(".npz",)),
    )  # fmt: skip
    stop: Literal["objective", "memberships", "weights"] = _of_run("stop")
    norm: float | None = _of_run("norm", default=None)
    accelerate: bool = _of_run("accelerate")
    history: bool = _of_run("history")
    exact: bool = _of_run("exact")
    race: bool = _of_run("race")

    def __post_init__(self) -> None:
        for name, takers in TAKES.items():
            if getattr(self, name) is not None and not set(self.rules()) & set(takers):
                raise InputError(f"{name} is for {' and '.join(takers)}, not {', '.join(self.rule)}")

    def rules(self) -> list[str]:
        """Return the rules to run: a parameter of one of the rules that auto stands for names that rule."""
        if self.rule != [AUTO]:
            return list(self.rule)
        named = {"fuzzifier": "fcm1", "entropy_weight": "fcm2"}
        return [rule for name, rule in named.items() if getattr(self, name) is not None] or [AUTO]


@dataclass(frozen=True)
class ClusterOptions(RunOptions):
    """Which runs of a clustering to make, and what to do with their results."""

    warm_start: str | None = option(
        None, "Start from a result, perhaps of fewer objects.", RUNNING, metavar="RESULT",
        reads=Reads(steps=("cluster",), own=("rule", "clusters")),
    )  # fmt: skip
    choose: IndexName = _rare(CHOOSE, f"Validity index that recommends a setting: {', '.join(INDICES)}.")
    border: float = _rare(BORDER, "Objects whose largest membership is below this are on a border.", least=0, most=1)
    null: bool = _rare(True, "Compare with data without groups, halves of a sample, and average linkage.", effort=True)
    picture: bool = picture_option(
        "Draw the partition, and the validity indices of several settings.", RUNNING, rare=True
    )
    memory: int | str | None = memory_option(RUNNING, rare=True, effort=True)
    strict: bool = _rare(False, f"Exit with {NOT_CONVERGED} if a result has not converged.", effort=True)

    def requested(self) -> dict[str, Any]:
        """Return the options that change the result, without some that are not given."""
        left_out = {
            **dict.fromkeys([*TAKES, "tol", "norm", "warm_start"]),
            "history": False,
            "race": False,
            "null": True,
        }
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if name not in ("memory", "picture", "strict") and (name not in left_out or value != left_out[name])
        }


# ------------------------------------------------------------------------------------------------------- the operation


class Cluster(Operation):
    name = "cluster"
    example = "dasrel cluster distances.zarr out --clusters 2-10"
    Options = ClusterOptions
    saves = ("euclideanize", "cluster")
    is_step = True
    has_settings = True
    marks = {"cluster": frozenset({"settings", "runs_converged", "bundles"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: ClusterOptions) -> PreparedCluster:
        """Check options, the store, and the result folder, and make the runs. Cost: reads given models, and no tile."""
        target.check(source, options.warm_start)
        previous = None if options.warm_start is None else load_previous(options.warm_start)
        runs = make_runs(options) if previous is None else [_warm_run(options, previous)]
        matrix = open_matrix(source)
        header = target.header(source, matrix.identity_digest(), options.requested())
        work = prepare_clustering(matrix, _within(runs, matrix.n_objects), judge=True, memory=options.memory)
        work = replace(work, index=options.choose if options.choose in ("silhouette", CHOOSE) else None)
        return PreparedCluster(options, matrix, work, previous, target=target, header=header)

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of a clustering; see `cluster_part`."""
        return cluster_part(source)

    def summary(self, result: Result) -> Result:
        """Return what the state of a workflow keeps of a result."""
        kept = {name: result[name] for name in ("n_objects", "runs", "runs_converged", "converged")}
        return kept | {"folders": [setting["folder"] for setting in result["settings"]]}

    def failure(self, result: Result, options: ClusterOptions) -> tuple[str, int] | None:
        """Return a line and an exit code where a result that was to converge has not."""
        if result["converged"] or not options.strict:
            return None
        left = [setting["folder"] for setting in result["settings"] if not setting["converged"]]
        where = "" if left == ["."] else f" ({some(left)})"
        text = f"not converged{where}; the results are written nevertheless: raise --max-iter or --tol"
        return text, NOT_CONVERGED

    def lines(self, result: Result) -> Lines:
        """Return what is printed of a clustering."""
        return lines_of(result)


# ------------------------------------------------------------------------------------------------------------ the runs


def make_runs(options: RunOptions) -> list[Run]:
    """Return the runs of all rules, each with the parameters that it takes, for every `init`."""
    listed = ("rule", "n_clusters", "init", *TAKES)
    names = {each.name for each in fields(Run)} & {each.name for each in fields(options)} - {*listed}
    common = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    runs: list[Run] = []
    for rule in options.rules():
        own = {name: getattr(options, name) for name, takers in TAKES.items() if rule in takers}
        own = {name: value for name, value in own.items() if value is not None}
        for init in options.init:
            given = init not in INITS
            n_init = 1 if given else options.n_init  # given memberships twice would be the same run twice
            start = _given_init(init) if given else init
            runs += grid(rule, options.n_clusters, n_init=n_init, init=start, **common, **own)
    return runs


def _given_init(init: str) -> Any:
    """Read a model or memberships from a file."""
    if init.endswith(".npy"):
        return load_array(init)
    if init.endswith(".npz") or Path(init).is_dir():
        return load_model(init)
    remedy = f"use {', '.join(INITS)}, a model (.npz) or memberships (.npy)"
    raise InputError(f"init is {shown(init)!r}", remedy=remedy)


def _warm_run(options: RunOptions, previous: Previous) -> Run:
    """Return the one run that continues an earlier result, with its parameters where no others are given."""
    if options.init != ["sample"]:
        raise InputError("a warm start is where the run begins", remedy="leave {init} out")
    model = previous.model
    for name in ("entropy_weight", "eta_scale"):
        if model.eta is not None and getattr(options, name) is not None:
            problem = f"{name} is of no use here: a warm start keeps the widths of the clusters of {model.rule}"
            raise InputError(problem)
    if options.rule == [AUTO]:
        options = replace(options, rule=[model.rule])
    parameters = {"fuzzifier": model.fuzzifier, "entropy_weight": model.entropy_weight}
    kept: dict[str, Any] = {
        name: [value]
        for name, value in parameters.items()
        if value is not None and getattr(options, name) is None and set(options.rule) & set(TAKES[name])
    }
    runs = make_runs(replace(options, n_init=1, **kept))
    if len(runs) != 1:
        raise InputError(
            f"a warm start continues one run, and {len(runs)} were requested", remedy="give no lists of values"
        )
    return previous.run(runs[0])


def _within(runs: list[Run], n_objects: int) -> list[Run]:
    """Return the runs with no more clusters than objects, and warn of others; all if there is none."""
    fitting = [run for run in runs if run.n_clusters <= n_objects]
    if not fitting or len(fitting) == len(runs):
        return runs
    problem = f"there are {count_text(n_objects, 'object')}: numbers of clusters above that are left out"
    warnings.warn(DasrelWarning(problem), stacklevel=3)
    return fitting


# ------------------------------------------------------------------------------------------------------------ the work


@dataclass(eq=False)
class PreparedCluster(PreparedFolder):
    """A clustering to be run and written."""

    options: ClusterOptions
    matrix: Matrix
    work: Work
    previous: Previous | None
    """The earlier result that a warm start continues."""
    clustering: Clustering | None = None
    """What was found, after `run`."""

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Cluster, write the result folder, and return its result.json. Cost: that of `cluster` and `euclideanize`."""
        about, tables = {**self.header, "euclideanized": None}, dict[str, Table]()
        with watched(checkpoint, *Cluster.saves):
            work = self.work
            if self.options.euclideanize is not None:
                work, about["euclideanized"] = self._euclideanized(checkpoint)
            scans = expected_scans(work.relation, work.runs, judge=work.judge, memory=work.memory)
            progress.current().expect(scans)
            clustering = work.run(checkpoint)
            if self.previous is not None:
                clustering, moves = keep_numbers(clustering, self.previous, work.relation, memory=work.memory)
                about["warm_start"] = {"from": self.previous.path, **moves.report()}
                tables["moved.csv"] = moves.table()
            self.clustering = clustering
            return write_clustering(
                clustering, self.out, about=about, tables=tables, choose=self.options.choose,
                border=self.options.border, picture=self.options.picture, null=self.options.null,
                force=self.target.force,
            )  # fmt: skip

    def _euclideanized(self, checkpoint: Checkpoint | None) -> tuple[Work, dict[str, Any]]:
        """Return the work on the Euclideanised matrix, and the report on what was changed."""
        from dasrel.geometry.euclidean import as_euclidean  # half of the geometry room, needed only here

        changed = as_euclidean(self.matrix, self.options.euclideanize, memory=self.work.memory, checkpoint=checkpoint)
        assert changed is not None
        return replace(self.work, relation=changed.relation), changed.report()

    def cost(self) -> ClusteringPlan:
        """Estimate the cost of `run`; see `plan_clustering`. Cost: a few tiles are read."""
        plan = plan_clustering(
            self.matrix, self.work.runs, euclideanize=self.options.euclideanize, memory=self.work.memory, judge=True
        )
        return replace(plan, out=str(self.out))


# --------------------------------------------------------------------------------------------------- the result folder

NAMING = ("fuzzifier", "entropy_weight", "eta_scale", "eta", "eta_cut", "eta_refit", "spread", "on_negative")
"""Parameters that are part of a folder's name where settings differ in them, besides rule and number of clusters."""


def save_clustering(
    clustering: Clustering,
    out: PathLike,
    *,
    about: dict[str, Any] | None = None,
    tables: Mapping[str, Table] | None = None,
    choose: str = CHOOSE,
    border: float = BORDER,
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

    Cost: one scan if there are several settings and they were not judged yet; under a second for the comparison with
    data without groups if they are judged; writes about 8 n (2 c + 2) bytes for each setting.
    """
    check_out(out, force=force)
    return write_clustering(
        clustering, Path(out), about=about, tables=tables, choose=choose, border=border, force=force
    )


def write_clustering(
    clustering: Clustering,
    target: Path,
    *,
    about: dict[str, Any] | None = None,
    tables: Mapping[str, Table] | None = None,
    choose: str = CHOOSE,
    border: float = BORDER,
    picture: bool = False,
    null: bool = True,
    force: bool = False,
) -> dict[str, Any]:
    """Write a result folder that `check_out` has allowed, perhaps with pictures; see `save_clustering`."""
    if len(clustering.partitions) > 1 and (clustering.quality is None or choose not in clustering.quality.values):
        clustering = replace(clustering, quality=clustering.validity(indices=[*DEFAULT, choose]))
    quality, names = clustering.quality, folder_names(_named_by(clustering))
    result = {**redacted(about or {}), **_summary(clustering, names, choose, border, null=null)}
    with result_folder(target, result, force=force) as folder:
        for k, (name, partition) in enumerate(zip(names, clustering.partitions, strict=True)):
            (folder / name).mkdir(exist_ok=True)
            silhouettes = quality.silhouettes[k] if quality and quality.silhouettes else None
            save_partition(partition, folder / name, silhouettes, border)
            write_csv(folder / name / "medoids.csv", *_medoids(clustering, k))
        if len(names) > 1:
            _link_files(folder / names[clustering.recommended(choose)], folder / "best")
        if quality is not None:
            rows = quality.table()
            iterated = ["all" if partition.result.objects is None else "sample" for partition in clustering.partitions]
            cells = (
                [name, *list(row.values())[1:], which] for name, row, which in zip(names, rows, iterated, strict=True)
            )
            write_csv(folder / "validity.csv", [*rows[0], "iterated_on"], cells)
        if picture:
            from dasrel.report.figures.clustering import draw_clustering

            draw_or_warn(draw_clustering, clustering, folder, choose)
        runs = clustering.table()
        columns = list(dict.fromkeys(key for run in runs for key in run))
        write_csv(folder / "runs.csv", columns, ([run.get(key) for key in columns] for run in runs))
        steps = clustering.history()
        if steps:
            write_csv(folder / "history.csv", list(steps[0]), (list(step.values()) for step in steps))
        for name, (header, lines) in (tables or {}).items():
            write_csv(folder / name, header, lines)
    return result


def _named_by(clustering: Clustering) -> list[Run]:
    """Return the runs that folders are named after: as requested, with the rule that auto has become."""
    pairs = zip(clustering.requested, clustering.partitions, strict=True)
    return [run.changed(rule=partition.result.run.rule) for run, partition in pairs]


def folder_names(runs: Sequence[Run]) -> list[str]:
    """Return a folder name for each setting: "." for a single one, else rule, clusters, and what settings differ in.

    >>> folder_names([Run("fcm1", 2, fuzzifier=1.5), Run("fcm1", 2, fuzzifier=2), Run("hard", 3)])
    ['fcm1-clusters2-fuzzifier1.5', 'fcm1-clusters2-fuzzifier2', 'hard-clusters3']
    """
    if len(runs) == 1:
        return ["."]
    rules = {run.rule for run in runs}
    differ = [
        name
        for name in NAMING
        if any(len({getattr(run, name) for run in runs if run.rule == rule}) > 1 for rule in rules)
    ]
    names: list[str] = []
    for run in runs:
        parts = [run.rule, f"clusters{run.n_clusters}"]
        for parameter in differ:
            value = getattr(run, parameter)
            if value is not None:
                text = value if isinstance(value, str) else f"{value:.12g}"
                parts.append(f"{parameter.replace('_', '-')}{text}")
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


def _summary(clustering: Clustering, names: Sequence[str], choose: str, border: float, *, null: bool) -> dict[str, Any]:
    """Return what result.json says of a clustering."""
    structure = None
    if null and clustering.quality is not None:
        progress.current().say("comparison with data without groups")
        structure = clustering.structure(clustering.recommended(choose))
    model = clustering.partitions[0].model
    return {
        "n_objects": model.n_objects,
        "kind": model.kind,
        "runs": len(clustering.runs),
        "runs_converged": sum(run.converged for run in clustering.runs),
        "converged": all(partition.result.converged for partition in clustering.partitions),
        "scans": clustering.scans,
        "first_scans": clustering.first_scans,
        "bundles": clustering.bundles,
        "seconds": round(clustering.seconds, 3),
        "update_seconds": round(clustering.update_seconds, 3),
        "sample": clustering.sample,
        "levels": [{**vars(level), "seconds": round(level.seconds, 3)} for level in clustering.levels],
        "structure": None if structure is None else structure.report(),
        "recommended": _recommended(clustering, names, choose if len(names) > 1 else "silhouette", structure),
        "settings": [_setting(clustering, k, name, border) for k, name in enumerate(names)],
        "warnings": list(clustering.warnings),
        "versions": versions(),
    }


def _medoids(clustering: Clustering, k: int) -> tuple[list[str], list[list[Any]]]:
    """Return the lines of medoids.csv; of a partition that was not judged, the members nearest to the centres."""
    partition, quality = clustering.partitions[k], clustering.quality
    if quality is not None and quality.medoids:
        known = quality.medoids[k]
    else:
        nearest = np.where(partition.sizes > 0, partition.medoids, -1)
        known = Medoids(nearest, np.full(len(nearest), np.nan))
    return known.table(partition.labels, partition.model.ids)


def _setting(clustering: Clustering, k: int, name: str, border: float) -> dict[str, Any]:
    """Return what result.json says of a setting."""
    partition = clustering.partitions[k]
    best, medoids, restarts = partition.result, _medoids(clustering, k)[1], clustering.restarts[k]
    quality = None if clustering.quality is None else clustering.quality.take([k]).table()[0]
    return {
        "folder": name,
        **best.run.parameters(),
        "entropy_weight_used": best.entropy_weight,
        "run": next(at for at, run in enumerate(clustering.runs) if run is best),
        "converged": best.converged,
        "n_iter": best.n_iter,
        "objective": best.objective,
        "objects": best.objects or partition.model.n_objects,
        "objective_change": best.objective_change,
        "largest_change": best.largest_change,
        "entropy": best.entropy,
        "beta": best.beta,
        "sizes": partition.sizes.tolist(),
        "membership_sums": list(best.membership_sums),
        "medoids": [medoid for _, medoid, _, _ in medoids],
        "medoid_means": [mean for *_, mean in medoids],
        "flat": best.flat,
        "coincident_clusters": best.coincident_clusters,
        "n_modes": best.n_modes,
        "modes": None if best.modes is None else list(best.modes),
        "negative_distances": best.negative_distances,
        "empty": best.empty,
        "border": len(partition.border(border)),
        "validity": None if quality is None else dict(list(quality.items())[2:]),
        "ladders": [ladder.report() for ladder in clustering.ladders[k]],
        "restarts": None if restarts is None else restarts._asdict(),
    }


def _recommended(
    clustering: Clustering, names: Sequence[str], index: str, structure: Structure | None
) -> dict[str, Any] | None:
    """Return the setting to take by a validity index, and why; None where nothing was judged."""
    quality = clustering.quality
    if quality is None:
        return None
    k = clustering.recommended(index)
    value, run = float(quality[index][k]), clustering.partitions[k].result.run
    name, best = index.replace("_", " "), "largest" if INDICES[index] else "smallest"
    sound = sum(partition.result.is_sound for partition in clustering.partitions)
    reason = "the only setting"
    if len(names) > 1 and np.isnan(value):
        reason = f"the first setting: there is no {name} of a single cluster"
    elif len(names) > 1:
        reason = f"the {best} {name} of {count_text(sound or len(names), 'setting')}"
        reason += " without coincident or empty clusters" if 0 < sound < len(names) else ""
    if structure is not None:
        good = structure.p_value <= DOUBTFUL
        reason += "" if good else "; data without groups look as clustered"
    else:
        good = not ("silhouette" in quality.values and quality["silhouette"][k] < GOOD)
        reason += "" if good else f"; its silhouette is below {GOOD}: perhaps there are no clusters"
    return {
        "folder": names[k], "rule": run.rule, "n_clusters": run.n_clusters, "index": index,
        "value": value if np.isfinite(value) else None, "reason": reason, "is_good": good,
    }  # fmt: skip


OPERATION = Cluster()
