"""A hierarchical clustering from options: dendrogram, cuts, their validity, and a result folder.

linkage.npy       the merges in SciPy's format, (n - 1, 4)
dendrogram.npz    for `Dendrogram.load`
labels.csv        id, and the labels of each cut: `label`, or of several cuts `label_5`, `label_height_0.5`
tree.nwk          the tree in Newick format
dendrogram.png    the top of the tree with the matrix beside it
result.json       the summary
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.engine.relation import relation
from dasrel.errors import InputError
from dasrel.geometry.dendrogram import Dendrogram
from dasrel.hierarchy.linkage import COMMAND, LinkageJob, prepare_linkage
from dasrel.judging.validity import Grouping, compute_indices
from dasrel.options import TreeOptions
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import Index, PathLike, progress
from dasrel.util.limits import Output, Range
from dasrel.util.results import check_out, finished_result, result_folder, write_csv
from dasrel.util.text import count_text, redacted, shown, size_text

INDICES = ("silhouette", "calinski_harabasz", "davies_bouldin", "within_between", "pearson_gamma")
"""The validity indices of the cuts."""
MOST_JUDGED = 500
"""Clusters of a cut up to which it is judged: indices of more take too much memory and say little."""
OBJECT_BYTES = 130
"""Bytes per object in the files, approximately, ..."""
PICTURE_BYTES = 150_000
"""... and those of the picture."""

Draw = Callable[[Dendrogram, Matrix, Index, Path], None]
"""Draws a dendrogram, given the labels of a cut, into a folder."""


def prepare_tree(
    store: str, out: PathLike, options: TreeOptions, *, force: bool = False, resume: bool = False
) -> TreeJob:
    """Check the options of a hierarchical clustering, and its result folder. Cost: no scan.

    With `resume`, the result of the same job that is in the folder already is returned by `run`.
    """
    assert options.linkage is not None
    matrix = open_matrix(store)
    scratch = options.scratch or Path(out).absolute().parent
    job = prepare_linkage(
        matrix, options.linkage, as_similarity=options.as_similarity, scratch=scratch, memory=options.memory
    )
    wrong = [k for k in options.n_clusters or () if not 1 <= k <= matrix.n_objects]
    if wrong:
        raise InputError(
            f"{count_text(wrong[0], 'cluster')} cannot be made of {count_text(matrix.n_objects, 'object')}: give 1 to"
            f" {matrix.n_objects}"
        )
    named = {name: value for name, value in asdict(options).items() if name not in ("memory", "scratch")}
    header = redacted({"matrix": matrix.identity_digest(), "out": str(out), "requested": named})
    finished = finished_result(out, header) if resume else None
    if finished is None:
        check_out(out, force=force)
    return TreeJob(store, matrix, Path(out), options, job, header, force, finished)


@dataclass(frozen=True, eq=False)
class TreeJob:
    """A hierarchical clustering with checked options; see `prepare_tree`."""

    store: str
    matrix: Matrix
    out: Path
    options: TreeOptions
    job: LinkageJob
    header: dict[str, Any]
    force: bool
    finished: dict[str, Any] | None
    """The content of result.json where the same job has written its result already."""

    def run(
        self, *, checkpoint: Checkpoint | None = None, about: dict[str, Any] | None = None, draw: Draw | None = None
    ) -> dict[str, Any]:
        """Cluster, write the result folder, and return the contents of its result.json."""
        if self.finished is not None:
            return self.finished
        began = time.perf_counter()
        with progress.watch() as counted, watched(checkpoint, COMMAND):
            found = self.job.run(checkpoint)
            before = found.scans - counted.scans  # of the process that was interrupted
            cuts = self.cuts(found)
            labels = {name: found.cut(k) for name, k, _ in cuts}
            table = self._table(found, cuts, labels)
            judged_cuts = [row for row in table if row["silhouette"] is not None]
            best = max(judged_cuts, key=lambda row: row["silhouette"])["column"] if judged_cuts else None
            result = {
                "store": redacted(self.store), **self.header, **(about or {}),
                "n_objects": found.n_objects, "linkage": found.method,
                "units": found.units, "lowest": float(found.heights[0]), "highest": float(found.heights[-1]),
                "largest_gap": found.largest_gap() if found.n_objects > 2 else None, "cuts": table,
                "recommended": best if len(table) > 1 else None, "rounds": found.rounds,
                "bytes_read": found.bytes_read, "bytes_written": found.bytes_written, "scans": 0, "seconds": 0.0,
                "versions": {"dasrel": __version__, "python": platform.python_version(), "numpy": np.__version__},
            }  # fmt: skip
            with result_folder(self.out, result, force=self.force) as folder:
                self._write(found, labels, folder)
                if draw is not None and self.options.picture:
                    draw(found, self.matrix, labels[best or cuts[0][0]], folder)
                result["scans"] = before + counted.scans
                result["seconds"] = round(time.perf_counter() - began, 3)
        return result

    def cuts(self, found: Dendrogram) -> list[tuple[str, int, float | None]]:
        """Return the column, the number of clusters and the height of each cut; by default at the largest gap."""
        options = self.options
        if options.height:
            wanted: list[tuple[str, int, float | None]] = [
                (f"label_height_{h:g}", found.clusters_at(h), h) for h in dict.fromkeys(options.height)
            ]
        else:
            gap = found.largest_gap() if found.n_objects > 2 else found.n_objects
            wanted = [(f"label_{k}", k, None) for k in dict.fromkeys(options.n_clusters or [gap])]
        return [("label", *wanted[0][1:])] if len(wanted) == 1 else wanted

    def _table(self, found: Dendrogram, cuts: list[Any], labels: dict[str, Index]) -> list[dict[str, Any]]:
        """Return a row for each cut, with the indices of those that have some: one scan for all."""
        few = {k for _, k, _ in cuts if 2 <= k <= min(MOST_JUDGED, found.n_objects - 1)}
        of = {k: labels[name] for name, k, _ in cuts if k in few}
        values: dict[int, dict[str, Any]] = {}
        if of:
            groupings = [Grouping(str(k), one.astype(np.int32), k) for k, one in of.items()]
            quality = compute_indices(
                relation(self.matrix), groupings, indices=INDICES, samples=False, memory=self.options.memory
            )
            values = dict(zip(of, quality.table(), strict=True))
        rows = []
        for name, k, height in cuts:
            sizes = np.bincount(labels[name], minlength=k)
            row = {"column": name, "n_clusters": k, "height": height, "sizes": np.sort(sizes)[::-1][:50].tolist()}
            rows.append(row | {index: values.get(k, {}).get(index) for index in INDICES})
        return rows

    def _write(self, found: Dendrogram, labels: dict[str, Index], folder: Path) -> None:
        ids = [str(name) for name in self.matrix.ids]
        np.save(folder / "linkage.npy", found.to_scipy(), allow_pickle=False)
        found.save(folder / "dendrogram.npz")
        columns = [of.tolist() for of in labels.values()]
        write_csv(
            folder / "labels.csv", ["id", *labels], ([name, *of] for name, *of in zip(ids, *columns, strict=True))
        )
        (folder / "tree.nwk").write_text(found.to_newick(ids) + "\n", encoding="utf-8", errors="backslashreplace")

    def cost(self) -> Any:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        cost, options = self.job.cost(), self.options
        n = self.matrix.n_objects
        cuts = len(options.n_clusters or options.height or [1])
        names = sum(len(str(name)) for name in self.matrix.ids[:1000]) * n // min(n, 1000)
        size = n * (OBJECT_BYTES - 40 + 3 * cuts) + 2 * names + 2000 + PICTURE_BYTES * options.picture
        more = 1 + options.picture
        scans = cost.scans + Range(options.picture, more, more)
        return replace(cost, scans=scans, outputs=(Output(str(self.out), size),))


def tree_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print the result of a job."""
    moved = f", {size_text(result['bytes_read'])} read, {size_text(result['bytes_written'])} written"
    lines = [
        ("results", shown(result["out"], limit=400)),
        ("objects", f"{result['n_objects']:,}"),
        ("linkage", f"{result['linkage']}, heights {result['lowest']:g} to {result['highest']:g}, {result['units']}"),
        ("scans", f"{result['scans']}, {count_text(result['rounds'], 'round')}{moved}"),
    ]
    for row in result["cuts"]:
        at = "" if row["height"] is None else f" at {row['height']:g}"
        quality = "" if row["silhouette"] is None else f", silhouette {row['silhouette']:.3f}"
        sizes = " ".join(f"{size:,}" for size in row["sizes"][:10]) + (" ..." if row["n_clusters"] > 10 else "")
        lines.append((row["column"], f"{count_text(row['n_clusters'], 'cluster')}{at}{quality}, sizes {sizes}"))
    if result["largest_gap"] is not None:
        lines.append(("largest gap", f"between heights at {count_text(result['largest_gap'], 'cluster')}"))
    if result["recommended"] is not None:
        lines.append(("recommended", f"{result['recommended']}: the highest silhouette"))
    return lines
