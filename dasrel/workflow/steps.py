"""What each kind of step of a workflow does: one or two library calls, and files in a folder of its own.

The library is imported inside the functions, so that a workflow with nothing to do ends quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from dasrel.commands.base import Target
from dasrel.workflow.schema import Step

Summary = dict[str, Any]
BETWEEN = 4 << 30
"""Bytes read between two checkpoints: about a second or two of work, which an interruption may repeat."""


@dataclass(frozen=True)
class Job:
    """A step to run now."""

    step: Step
    work: Path
    """The folder to write in. It may hold files of an interrupted run of the same step."""
    out: Path
    """The folder that the files are moved to when the step is done."""
    places: Mapping[str, str]
    """For each key that names a step or a file, its path."""
    appends: int = 0
    """Number of appends to the matrix before this step."""

    @property
    def store(self) -> str:
        """The path of the store of this step."""
        return self.places["store"]

    def file(self, suffix: str = "") -> Path:
        """Return the path of an output, in the folder to write in."""
        return self.work / f"{self.step.name}{suffix}"

    def checkpoint(self) -> Any:
        """Return the checkpoint settings; an existing checkpoint is resumed."""
        from dasrel.engine.checkpoint import Checkpoint
        from dasrel.store.matrix import open_matrix

        folder = self.work / "checkpoint"
        scan = open_matrix(self.store).layout.total_bytes
        every = self.step.table.every or max(1, BETWEEN // max(scan, 1 << 20))
        return Checkpoint(folder, every=every, resume=any(folder.glob("*.npz")))


def run_step(job: Job) -> Summary:
    """Run a step, and return a summary of its result in plain values."""
    operation = job.step.table.OPERATION
    if operation is None:
        return _RUNNERS[job.step.kind](job)
    options = job.step.table.options(job.places)
    suffix = operation.outputs(options)[0]
    target = Target(job.file(suffix), force=True, final=job.out / f"{job.step.name}{suffix}")
    source = None if operation.source is None else job.places[operation.source.key]
    with operation.prepare(source, target, options) as prepared:
        result = prepared.run(job.checkpoint() if operation.saves else None)
    return cast(Summary, operation.summary(result))


# ------------------------------------------------------------------------------------------------------------- matrices


def _writing(job: Job) -> Any:
    """Resume what is there: the folder belongs to this step with these parameters."""
    from dasrel.options import STORE_FORMAT, Writing

    return replace(job.step.table.group(STORE_FORMAT) if job.step.table.GROUPS else Writing(), resume=True)


def _import(job: Job) -> Summary:
    from dasrel.io.importing import import_matrix
    from dasrel.options import Policy, Reading

    table = job.step.table
    if (found := _complete(job)) is not None:
        return found
    columns = None if table.columns is None else tuple(table.columns)
    matrix = import_matrix(
        job.places["source"],
        job.file(".zarr"),
        kind=table.kind,
        reading=table.group(Reading, ids=job.places.get("ids"), columns=columns),
        policy=table.group(Policy),
        writing=_writing(job),
    )
    return _described(matrix)


def _pairwise(job: Job) -> Summary:
    from dasrel.io.pairwise import pairwise
    from dasrel.options import PairwiseOptions

    table = job.step.table
    if (found := _complete(job)) is not None:
        return found
    matrix = pairwise(
        job.places["features"],
        job.file(".zarr"),
        **vars(table.group(PairwiseOptions)),
        ids=job.places.get("ids"),
        writing=_writing(job),
    )
    return _described(matrix)


def _demo(job: Job) -> Summary:
    from dasrel.workflow.digits import build_digits

    if (found := _complete(job)) is not None:
        return found
    return _described(build_digits(job.file(".zarr"), writing=_writing(job)))


def _append(job: Job) -> Summary:
    """Append to the store in place: at any moment it has all of the new objects or none."""
    from dasrel.io.append import append
    from dasrel.options import NEW_PAIRS
    from dasrel.store.growth import finished_append
    from dasrel.store.matrix import open_matrix

    table, matrix = job.step.table, open_matrix(job.store)
    if len(matrix.manifest["provenance"].get("appends", [])) > job.appends:  # the process was killed after the append
        return _described(matrix) | {"new_objects": finished_append(job.store, None, {})}
    features = [job.places[f"features {k}"] for k in range(len(job.places)) if f"features {k}" in job.places]
    done = append(
        job.store,
        job.places["source"],
        ids=job.places.get("ids"),
        features=features or None,
        policy=table.group(NEW_PAIRS),
        memory=table.memory,
        force=True,
    )
    return _described(done.matrix) | {"new_objects": done.new_objects}


def _complete(job: Job) -> Summary | None:
    """Return the summary of a store that was complete before the run was interrupted, or None."""
    from dasrel.store.matrix import open_matrix, store_manifest

    manifest = store_manifest(job.file(".zarr"))
    if manifest is None or manifest.get("state") != "complete":
        return None
    return _described(open_matrix(job.file(".zarr")))


def _described(matrix: Any) -> Summary:
    return {"n_objects": matrix.n_objects, "kind": matrix.kind}


# ----------------------------------------------------------------------------------------------------- work on a matrix


def _cluster(job: Job) -> Summary:
    from dasrel.cmeans.job import cluster_into
    from dasrel.options import RunOptions
    from dasrel.report.figures.clustering import clustering_pictures

    table = job.step.table
    runs = table.group(
        RunOptions,
        init=[job.places.get(f"init {k}", name) for k, name in enumerate(table.init)],
        euclideanize=job.places.get("euclideanize", table.euclideanize),
    )
    requested = runs.as_dict()
    if "warm_start" in job.places:
        requested["warm_start"] = job.places["warm_start"]
    requested |= {"choose": table.choose, "border": table.border}
    result = cluster_into(
        job.store,
        job.file(),
        requested,
        memory=table.memory,
        checkpoint=job.checkpoint(),
        about={"out": str(job.out / job.step.name)},
        draw=clustering_pictures if table.picture else None,
        force=True,
    )
    return {name: result[name] for name in ("n_objects", "runs", "runs_converged", "converged")} | {
        "folders": [one["folder"] for one in result["settings"]]
    }


def _tree(job: Job) -> Summary:
    if job.step.table.linkage is not None:
        return _dendrogram(job)
    from dasrel.geometry.tree import minimum_spanning_tree
    from dasrel.report.tree_files import save_tree
    from dasrel.store.matrix import open_matrix

    matrix = open_matrix(job.store)
    tree = minimum_spanning_tree(matrix, memory=job.step.table.memory)
    about = {"store": job.store, "matrix": matrix.identity_digest(), "out": str(job.out / job.step.name)}
    saved = save_tree(tree, matrix.ids, job.file(), about=about, force=True)
    return {name: saved[name] for name in ("n_objects", "units", "shortest", "longest")}


def _dendrogram(job: Job) -> Summary:
    from dasrel.hierarchy.tree_job import prepare_tree
    from dasrel.options import TreeOptions
    from dasrel.report.figures.dendrogram import draw_into

    prepared = prepare_tree(job.store, job.file(), job.step.table.group(TreeOptions), force=True)
    result = prepared.run(checkpoint=job.checkpoint(), about={"out": str(job.out / job.step.name)}, draw=draw_into)
    return {name: result[name] for name in ("n_objects", "linkage", "units", "lowest", "highest", "largest_gap")}


def _image(job: Job) -> Summary:
    from dasrel.options import ImageOptions
    from dasrel.report.figures.matrix import prepare_image

    table = job.step.table
    options = table.group(ImageOptions, result=job.places.get("result"))
    drawn = prepare_image(job.store, job.file(f".{table.format}"), options, force=True).run()
    return {"title": drawn["title"], "side": drawn["side"]}


def _figure(job: Job) -> Summary:
    from dasrel.cmeans.output import load_memberships
    from dasrel.errors import InputError
    from dasrel.report.figures.partition import partition_picture
    from dasrel.util.text import shown

    result = Path(job.places["result"])
    try:
        memberships = load_memberships(result)
    except FileNotFoundError:
        inside = sorted(one.parent.name for one in result.glob("*/memberships.npy"))
        hint = f"; choose one of its settings, such as {job.step.table.result}/{inside[0]}" if inside else ""
        raise InputError(f"no memberships in {shown(result, limit=200)}{hint}") from None
    title = job.step.table.title or job.step.table.result
    partition_picture(memberships, job.file(".png"), title=title)
    return {"n_objects": len(memberships), "n_clusters": memberships.shape[1]}


_RUNNERS: dict[str, Callable[[Job], Summary]] = {
    "import": _import,
    "pairwise": _pairwise,
    "demo": _demo,
    "append": _append,
    "cluster": _cluster,
    "tree": _tree,
    "image": _image,
    "figure": _figure,
}
