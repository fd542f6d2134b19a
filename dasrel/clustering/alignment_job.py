"""The alignment of a store from options: partitions, the search, and a result folder.

result.json      options, results, scans, times, versions
alignment.csv    one line for every partition and width
labels.csv       of the best partition, with memberships.npy and model.npz, as `dasrel cluster` writes them
alignment.png    the alignments, and the kernel in the order of the clusters
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.clustering.alignment import (
    COMMAND,
    Alignment,
    Evolution,
    PreparedAlignment,
    numbers_of_clusters,
    prepare_alignment,
)
from dasrel.clustering.alignment_scan import batches, surface_memory
from dasrel.clustering.output import save_partition
from dasrel.clustering.planning import plan_clustering
from dasrel.clustering.runs import grid
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.errors import DasrelError, DasrelWarning
from dasrel.options import AlignOptions
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import PathLike, progress
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.results import check_out, finished_result, result_folder, write_csv
from dasrel.util.text import count_text, redacted, shown

BORDER = 0.9
"""Objects whose largest membership is below this are on a border, as in `dasrel cluster`."""
PICTURE_BYTES = 200_000
COMMANDS = ("cluster", COMMAND)
"""The commands whose checkpoints a job writes."""

Draw = Callable[[Alignment, Path], None]


def prepare_align(
    store: str, out: PathLike, options: AlignOptions | None = None, *, force: bool = False, resume: bool = False
) -> AlignJob:
    """Check the options of an alignment, the store and the result folder. Cost: no tile is read.

    With `resume`, the result of the same job that is in the folder already is returned by `run`.
    """
    options = options or AlignOptions()
    matrix = open_matrix(store)
    parameters = {} if options.fuzzifier is None else {"fuzzifier": options.fuzzifier}
    runs = grid(
        options.rule, numbers_of_clusters(options.n_clusters, matrix.n_objects), n_init=options.n_init,
        random_state=options.random_state, max_iter=options.max_iter, on_negative=options.on_negative, **parameters,
    )  # fmt: skip
    single = options.width[0]
    width: Any = options.width if not isinstance(single, str) else None if single == "none" else single
    evolution = Evolution(options.population, options.generations, options.random_state)
    search = evolution if options.search == "evolution" else options.search
    prepared = prepare_alignment(matrix, width=width, rule=runs, search=search, memory=options.memory)
    requested = {name: value for name, value in asdict(options).items() if name not in ("memory", "picture")}
    header = {"store": store, "matrix": matrix.identity_digest(), "out": str(out), "requested": requested}
    finished = finished_result(out, redacted(header)) if resume else None
    if finished is None:
        check_out(out, force=force)
    return AlignJob(matrix, Path(out), options, prepared, redacted(header), force, finished)


@dataclass(frozen=True, eq=False)
class AlignJob:
    """An alignment with checked options; see `prepare_align`."""

    matrix: Matrix
    out: Path
    options: AlignOptions
    prepared: PreparedAlignment
    header: dict[str, Any]
    force: bool
    finished: dict[str, Any] | None = None
    """The content of result.json where the same job has written its result already."""

    def run(
        self, *, checkpoint: Checkpoint | None = None, about: dict[str, Any] | None = None, draw: Draw | None = None
    ) -> dict[str, Any]:
        """Find the best alignment, write the result folder, and return the contents of its result.json.

        Cost: that of `align`, and one scan for the picture, which `draw` draws into the folder.
        """
        if self.finished is not None:
            return self.finished
        with watched(checkpoint, *COMMANDS):
            found = self.prepared.run(checkpoint)
            result = {**self.header, **(about or {}), **summary(found)}
            with result_folder(self.out, result, force=self.force) as folder:
                rows = found.table()
                lines = ([_cell(value) for value in row.values()] for row in rows)
                write_csv(folder / "alignment.csv", list(rows[0]), lines)
                save_partition(found.partition, folder, None, BORDER)
                if draw is not None:
                    with progress.watch() as counted:
                        _draw(draw, found, folder)
                    result["scans"] += counted.scans
        return result

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where it would. Cost: a few tiles are read."""
        job, matrix, options = self.prepared, self.matrix, self.options
        plan = plan_clustering(
            job.relation, job.runs, memory=options.memory, workers={"counts": [1]}, probe_seconds=0.01
        )
        count = job.widths_at_once
        widths: list[float | None] = [1.0] * count if job.widths != (None,) else [None]
        divided = len(batches(job.relation, job.clusters, widths, memory=job.room))
        memory = job.held + surface_memory(job.relation, job.clusters, widths, memory=job.room)
        most = 1 if job.widths is not None else 2
        searched = Range(most, most, most)
        if job.evolution is not None:
            searched = Range(2, 15, job.evolution.generations + 1)  # Iris and Gaussian groups: 8 to 20
        each = Range(divided, divided, divided)
        scans = plan.scans + Range(*(getattr(searched, k) * getattr(each, k) for k in ("least", "typical", "most")))
        scans += Range(1, 1, 1) if job.widths is None else Range(0, 0, 0)
        scans += Range(1, 1, 1) if options.picture else Range(0, 0, 0)
        n, partitions = matrix.n_objects, len(job.clusters) - 1
        tried = count + 12 if job.evolution is None else int(searched.typical) * count
        size = n * (60 + 16 * max(run.n_clusters for run in job.runs)) + 80 * partitions * tried
        outputs = (Output(str(self.out), size + PICTURE_BYTES * options.picture),)
        facts = {"partitions": partitions, "runs": len(job.runs), "widths": count}
        return Cost(COMMAND, n, scans, matrix.layout.total_bytes, max(plan.memory, memory), outputs, facts)


def _draw(draw: Draw, found: Alignment, folder: Path) -> None:
    """Draw the picture; if it cannot be drawn that is a warning, so that the result is not lost with it."""
    try:
        draw(found, folder)
    except (OSError, DasrelError):
        raise
    except Exception as error:
        reason = shown(error, limit=200) or type(error).__name__
        warnings.warn(DasrelWarning(f"no picture could be drawn ({reason}); all else is written"), stacklevel=2)


def _cell(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value


def summary(found: Alignment) -> dict[str, Any]:
    """Return an alignment in plain values, for JSON."""
    source = found.relation.matrix
    return {
        "n_objects": source.n_objects,
        "kind": source.kind,
        "search": found.search,
        **_at(found, *found.best()),
        "parameters": found.partition.result.described(),
        "sizes": found.partition.sizes.tolist(),
        "centred_best": _at(found, *found.best("centred")),
        "width_bounds": None if found.bounds is None else list(found.bounds),
        "widths": len(found.widths),
        "partitions": found.by_clusters(),
        "converged": all(one.result.converged for one in found.partitions),
        "scans": found.scans,
        "seconds": round(found.seconds, 3),
        "versions": {"dasrel": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def _at(found: Alignment, i: int, j: int) -> dict[str, Any]:
    run = found.partitions[i].result.run
    return {
        "n_clusters": run.n_clusters, "width": found.widths[j], "alignment": float(found.values[i, j]),
        "centred": float(found.centred[i, j]),
    }  # fmt: skip


def align_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print the result of a job."""
    other, bounds = result["centred_best"], result["width_bounds"]
    lines = [
        ("results", shown(result["out"], limit=400)),
        ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
        ("scans", f"{result['scans']:,} in {result['seconds']:.1f} s"),
        ("clusters", f"{result['n_clusters']}, {result['parameters']}, sizes {_sizes(result['sizes'])}"),
        ("width", _width(result["width"], bounds)),
        ("alignment", f"{result['alignment']:.4f}, centred {result['centred']:.4f}"),
    ]
    if other["n_clusters"] != result["n_clusters"]:
        at = "" if other["width"] is None else f" and width {other['width']:.4g}"
        text = f"is largest at {count_text(other['n_clusters'], 'cluster')}{at}: {other['centred']:.4f}"
        parts = "; groups may be parts of larger groups" if other["n_clusters"] > result["n_clusters"] else ""
        lines.append(("centred", text + parts))
    for row in result["partitions"]:
        at = "" if row["width"] is None else f" at width {row['width']:.4g}"
        sound = "" if row["sound"] else "; not chosen: clusters coincide or are empty"
        lines.append(
            (
                count_text(row["n_clusters"], "cluster"),
                f"alignment {row['alignment']:.4f}{at}, centred {row['centred']:.4f}{sound}",
            )
        )
    return lines


def _sizes(sizes: list[int]) -> str:
    return " ".join(f"{size:,}" for size in sizes[:10]) + (" ..." if len(sizes) > 10 else "")


def _width(width: float | None, bounds: list[float] | None) -> str:
    if width is None:
        return "none, the matrix is the kernel"
    if bounds is None:
        return f"{width:.6g}"
    text = f"{width:.6g}, searched from {bounds[0]:.4g} to {bounds[1]:.4g}"
    return text + ("; the widest: there may be no distinct groups" if width >= 0.999 * bounds[1] else "")
