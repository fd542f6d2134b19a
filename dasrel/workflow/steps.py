"""What each step of a workflow does.

What each kind of step of a workflow does: one library call or two, and files in a folder of its own.

The library is imported inside the functions, so that a workflow with nothing to do is over quickly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasrel.workflow.schema import EXPORTED, Step

Summary = dict[str, Any]
BETWEEN = 4 << 30
"""Bytes read between two checkpoints: a second or two of work, which may be done twice."""


@dataclass(frozen=True)
class Job:
    """A step that is to be done now."""

    step: Step
    work: Path
    """The folder to write in. It may hold what an interrupted run of the same step has left."""
    out: Path
    """Where the files will lie in the end."""
    places: Mapping[str, str]
    """For each key that names a step or a file, where it lies."""
    appends: int = 0
    """How many appends the matrix has had before this step."""

    @property
    def store(self) -> str:
        """The matrix of this step."""
        return self.places["store"]

    def file(self, suffix: str = "") -> Path:
        """The file of this step with a suffix, in the folder to write in."""
        return self.work / f"{self.step.name}{suffix}"

    def checkpoint(self) -> Any:
        """Where the state is kept between two scans, and gone on from if there is one."""
        from dasrel.engine.checkpoint import Checkpoint
        from dasrel.store.matrix import open_matrix

        folder = self.work / "checkpoint"
        scan = open_matrix(self.store).layout.total_bytes
        every = self.step.asked.every or max(1, BETWEEN // max(scan, 1 << 20))
        return Checkpoint(folder, every=every, resume=any(folder.glob("*.npz")))


def do(job: Job) -> Summary:
    """Do a step, and say in a few plain values how it went."""
    return _DOES[job.step.kind](job)


# ------------------------------------------------------------------------------------------------------------- matrices


def _writing(job: Job, tile: int | None = None, compress: Any = None, store_dtype: Any = "float32") -> Any:
    """Go on with what is there: the folder belongs to this step with these very parameters."""
    from dasrel.store.writer import Writing

    memory = getattr(job.step.asked, "memory", "1GiB")
    return Writing(store_dtype, tile, compress, memory, resume=True)


def _import(job: Job) -> Summary:
    from dasrel.io.array_files import Reading
    from dasrel.io.importing import import_matrix
    from dasrel.kernels.checks import Policy

    asked = job.step.asked
    if (found := _complete(job)) is not None:
        return found
    columns = None if asked.columns is None else tuple(asked.columns)
    missing: Any = "error" if asked.missing is None else asked.missing
    matrix = import_matrix(
        job.places["source"],
        job.file(".zarr"),
        kind=asked.kind,
        reading=Reading(asked.format, job.places.get("ids"), asked.shape, asked.dtype, columns, asked.dataset),
        policy=Policy(
            asked.symmetrize or "error", missing, asked.diagonal or "error", asked.clip_negative,
            asked.duplicates or "error",
        ),
        writing=_writing(job, asked.tile, asked.compress, asked.store_dtype),
    )  # fmt: skip
    return _described(matrix)


def _pairwise(job: Job) -> Summary:
    from dasrel.io.pairwise import pairwise

    asked = job.step.asked
    if (found := _complete(job)) is not None:
        return found
    matrix = pairwise(
        job.places["features"],
        job.file(".zarr"),
        metric=asked.metric,
        kind=asked.kind,
        ids=job.places.get("ids"),
        metric_options=asked.metric_option,
        writing=_writing(job, asked.tile, asked.compress, asked.store_dtype),
    )
    return _described(matrix)


def _demo(job: Job) -> Summary:
    from dasrel.demo import build_digits

    if (found := _complete(job)) is not None:
        return found
    return _described(build_digits(job.file(".zarr"), writing=_writing(job)))


def _append(job: Job) -> Summary:
    """Grow the store where it lies: it has all new objects or none of them, at any moment."""
    from dasrel.io.append import append
    from dasrel.kernels.checks import Policy
    from dasrel.store.matrix import open_matrix

    asked, matrix = job.step.asked, open_matrix(job.store)
    if len(matrix.manifest["provenance"].get("appends", [])) > job.appends:
        return _described(matrix)  # it was killed when all was done
    features = [job.places[f"features {k}"] for k in range(len(job.places)) if f"features {k}" in job.places]
    missing: Any = "error" if asked.missing is None else asked.missing
    done = append(
        job.store,
        job.places["source"],
        ids=job.places.get("ids"),
        features=features or None,
        policy=Policy(asked.symmetrize or "error", missing, asked.diagonal or "error", asked.clip_negative),
        memory=asked.memory,
        force=True,
    )
    return _described(done.matrix) | {"new_objects": done.new_objects}


def _complete(job: Job) -> Summary | None:
    """A store that was finished before the run was interrupted."""
    from dasrel.store.matrix import open_matrix, store_manifest

    manifest = store_manifest(job.file(".zarr"))
    if manifest is None or manifest.get("state") != "complete":
        return None
    return _described(open_matrix(job.file(".zarr")))


def _described(matrix: Any) -> Summary:
    return {"n_objects": matrix.n_objects, "kind": matrix.kind}


# ----------------------------------------------------------------------------------------------------- work on a matrix


def _spectrum(job: Job) -> Summary:
    from dasrel.geometry.euclidean import spectrum
    from dasrel.report.figures import spectrum_picture

    asked = job.step.asked
    found = spectrum(
        job.store,
        n_values=asked.values,
        tol=asked.tol,
        max_scans=asked.max_scans,
        memory=asked.memory,
        checkpoint=job.checkpoint(),
    )
    values = found.as_dict()
    job.file(".json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    if asked.picture:
        spectrum_picture(found, job.file(".png"), title=job.step.name)
    return {name: values[name] for name in ("is_euclidean", "spread", "entropy_threshold", "converged")}


def _euclideanize(job: Job) -> Summary:
    from dasrel.geometry.euclidean import euclideanize

    asked = job.step.asked
    found = euclideanize(
        job.store,
        method=asked.method,
        alpha=asked.alpha,
        tol=asked.tol,
        floor_zeros=asked.floor_zeros,
        max_scans=asked.max_scans,
        memory=asked.memory,
        checkpoint=job.checkpoint(),
    )
    found.save(job.file(".npz"))
    report = found.report()
    return {name: report[name] for name in ("method", "gamma", "ratio", "converged")}


LEFT = ("store", "clusters", "seed", "warm_start", "memory", "strict", "every")
"""Keys of a cluster step that are not asked of its runs by these names."""


def _cluster(job: Job) -> Summary:
    from dasrel.clustering.job import cluster_into

    table = job.step.asked.model_dump(exclude={*LEFT}, exclude_none=True)
    init = [job.places.get(f"init {k}", word) for k, word in enumerate(table["init"])]
    asked = {
        **table,
        "n_clusters": job.step.asked.clusters,
        "random_state": job.step.asked.seed,
        "init": init,
        "euclideanize": job.places.get("euclideanize", job.step.asked.euclideanize),
        **({"warm_start": job.places["warm_start"]} if "warm_start" in job.places else {}),
    }
    result = cluster_into(
        job.store,
        job.file(),
        asked,
        memory=job.step.asked.memory,
        checkpoint=job.checkpoint(),
        about={"out": str(job.out / job.step.name)},
        force=True,
    )
    return {name: result[name] for name in ("n_objects", "runs", "runs_converged", "converged")} | {
        "folders": [one["folder"] for one in result["settings"]]
    }


def _tree(job: Job) -> Summary:
    from dasrel.geometry.tree import minimum_spanning_tree
    from dasrel.report.matrix_image import save_tree
    from dasrel.store.matrix import open_matrix

    matrix = open_matrix(job.store)
    tree = minimum_spanning_tree(matrix, memory=job.step.asked.memory)
    said = save_tree(tree, matrix.ids, job.file(), force=True)
    return {name: said[name] for name in ("n_objects", "units", "shortest", "longest")}


def _image(job: Job) -> Summary:
    from dasrel.report.matrix_image import draw

    asked = job.step.asked
    said = draw(
        job.store,
        job.file(f".{asked.format}"),
        order=asked.order,
        result=job.places.get("result"),
        induced=asked.induced,
        pixels=asked.pixels,
        memory=asked.memory,
        force=True,
    )
    return {"title": said["title"], "side": said["side"]}


def _figure(job: Job) -> Summary:
    import numpy as np

    from dasrel.errors import InputError
    from dasrel.report.figures import partition_picture
    from dasrel.util.text import shown

    result = Path(job.places["result"])
    try:
        memberships = np.load(result / "memberships.npy", allow_pickle=False)
    except FileNotFoundError:
        inside = sorted(one.parent.name for one in result.glob("*/memberships.npy"))
        hint = f"; choose one of its settings, such as {job.step.asked.result}/{inside[0]}" if inside else ""
        raise InputError(f"no memberships in {shown(result, limit=200)}{hint}") from None
    title = job.step.asked.title or job.step.asked.result
    partition_picture(memberships, job.file(".png"), title=title)
    return {"n_objects": len(memberships), "n_clusters": memberships.shape[1]}


def _export(job: Job) -> Summary:
    from dasrel.geometry.euclidean import named_relation
    from dasrel.io.export import export_matrix

    asked = job.step.asked
    target = job.file(EXPORTED[asked.format])
    name = job.places.get("relation", asked.relation)
    matrix: Any = job.store if name is None else named_relation(job.store, name)
    export_matrix(matrix, target, format=asked.format, memory=asked.memory, force=True)
    return {"format": asked.format}


_DOES: dict[str, Callable[[Job], Summary]] = {
    "import": _import,
    "pairwise": _pairwise,
    "demo": _demo,
    "append": _append,
    "spectrum": _spectrum,
    "euclideanize": _euclideanize,
    "cluster": _cluster,
    "tree": _tree,
    "image": _image,
    "figure": _figure,
    "export": _export,
}
