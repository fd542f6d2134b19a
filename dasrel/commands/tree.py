"""Write the minimum spanning tree of a STORE, or with --linkage a dendrogram and its cuts, in one scan.

Of a dendrogram:

linkage.npy       the merges in SciPy's format, (n - 1, 4)
dendrogram.npz    for `Dendrogram.load`
labels.csv        id, and the labels of each cut: `label`, or of several cuts `label_5`, `label_height_0.5`
medoids.csv       cluster, medoid, size, mean_dissimilarity: the member with the least mean dissimilarity to the others;
                  of several cuts, with their column first
tree.nwk          the tree in Newick format
dendrogram.png    the top of the tree with the matrix beside it
result.json       the summary

Of a spanning tree:

tree.npz          for `Tree.load`
edges.csv         first, second, weight: the n - 1 edges by the names of the objects, lightest first
linkage.npy       single linkage in SciPy's format, (n - 1, 4)
vat.csv           place, id: the objects in VAT order
result.json       the summary
"""

from __future__ import annotations

import math
import os
import time
import warnings
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import names
from dasrel.commands.base import Lines, Operation, PreparedFolder, Result, Target
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.engine.relation import relation
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.dendrogram import Dendrogram
from dasrel.geometry.tree import Tree, TreeJob
from dasrel.hierarchy.linkage import COMMAND, LinkageJob, prepare_linkage
from dasrel.judging.groupings import Grouping
from dasrel.judging.medoids import Medoids, medoids as find_medoids
from dasrel.judging.validity import compute_indices
from dasrel.report.page_parts import Note, ResultPart, Section, Statement, percent, table
from dasrel.report.pieces import LISTED, downloads, drawing, scans_fact, store_sections
from dasrel.report.result_reading import Source, damaged, read_table
from dasrel.report.verdict import linkage_verdict
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import Index, progress
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.option_fields import memory_option, option, picture_option
from dasrel.util.results import draw_or_warn, versions, write_csv
from dasrel.util.text import count_text, shown, size_text

INDICES = ("silhouette", "calinski_harabasz", "davies_bouldin", "within_between", "pearson_gamma")
"""The validity indices of the cuts."""
MOST_JUDGED = 500
"""Clusters of a cut up to which it is judged: indices of more take too much memory and say little."""
LISTED_CLUSTERS = 50
"""Clusters of a cut that result.json lists, the largest ones."""
OBJECT_BYTES = 130
"""Bytes per object in the files, approximately, ..."""
PICTURE_BYTES = 150_000
"""... and those of the picture."""

_tree = partial(option, panel="Hierarchical clustering")


# ruff: noqa: RUF009 - `option` returns a dataclass field
@dataclass(frozen=True)
class TreeOptions:
    """How to find a minimum spanning tree, or to cluster hierarchically."""

    linkage: str | None = _tree(None, f"One of {', '.join(names.LINKAGES)}; the spanning tree only if not given.")
    n_clusters: list[int] | None = _tree(None, "Cut into so many clusters.", name="clusters", metavar="C", least=1)
    height: list[float] | None = _tree(
        None, "Cut at this height, in the unit of the store: --height 95 of identities in percent.", metavar="H"
    )
    as_similarity: bool = _tree(False, "Merge by the similarities of a store as they are, the largest first.")
    picture: bool = picture_option("Draw the dendrogram with the matrix beside it.", "Hierarchical clustering")
    scratch: str | os.PathLike[str] | None = _tree(
        None, "Where to put what memory cannot hold.", typed=str, metavar="DIR", effort=True
    )
    memory: int | str | None = memory_option(effort=True)

    def __post_init__(self) -> None:
        if self.linkage is None and (self.n_clusters or self.height or self.as_similarity or self.scratch):
            raise InputError("cuts, similarities and scratch are for a linkage", remedy="add {linkage=average}")
        fault = "" if self.linkage is None else names.linkage_fault(self.linkage, as_similarity=self.as_similarity)
        fault = "cut into numbers of clusters or at heights, not both" if self.n_clusters and self.height else fault
        if fault or not all(map(math.isfinite, self.height or ())):
            raise InputError(fault or "the height of a cut is a finite number")


class TreeOperation(Operation):
    name = "tree"
    example = "dasrel tree distances.zarr out --linkage average --clusters 5"
    Options = TreeOptions
    saves = (COMMAND,)
    is_step = True
    summarized = ("n_objects", "units")
    marks = {  # noqa: RUF012
        "linkage": frozenset({"cuts", "linkage", "n_objects"}),
        "tree": frozenset({"shortest", "longest", "units"}),
    }

    def saves_state(self, options: TreeOptions) -> bool:
        """Return whether there is a state to save: a spanning tree takes one scan."""
        return options.linkage is not None

    def prepare(self, source: str, target: Target, options: TreeOptions) -> PreparedDendrogram | PreparedTree:
        """Check the options, the store and the result folder. Cost: no scan."""
        target.check(source)
        matrix = open_matrix(source)
        requested = {name: value for name, value in asdict(options).items() if name not in ("memory", "scratch")}
        requested = {} if options.linkage is None else requested  # the spanning tree has nothing to choose
        header = target.header(source, matrix.identity_digest(), requested)
        if options.linkage is None:
            tree = TreeJob(matrix, options.memory)
            return PreparedTree(matrix, tree, target=target, header=header)
        scratch = options.scratch or Path(target.path).absolute().parent
        job = prepare_linkage(
            matrix, options.linkage, as_similarity=options.as_similarity, scratch=scratch, memory=options.memory
        )
        n = matrix.n_objects
        wrong = [k for k in options.n_clusters or () if not 1 <= k <= n]
        if wrong:
            raise InputError(
                f"{count_text(wrong[0], 'cluster')} cannot be made of {count_text(n, 'object')}",
                remedy=f"give 1 to {n}",
            )
        prepared = PreparedDendrogram(matrix, options, job, target=target, header=header)
        prepared.warn_of_heights()
        return prepared

    def lines(self, result: Result) -> Lines:
        """Return what is printed of a dendrogram or of a spanning tree."""
        return _dendrogram_lines(result) if "cuts" in result else _spanning_lines(result)

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of a dendrogram or of a spanning tree. Cost: no scan; reads the tables."""
        return _dendrogram_part(source) if source.kind == "linkage" else _spanning_part(source)

    def summary(self, result: Result) -> Result:
        """Return what the state of a workflow keeps of a result."""
        kept = ("linkage", "lowest", "highest", "largest_gap") if "cuts" in result else ("shortest", "longest")
        return super().summary(result) | {name: result[name] for name in kept}


# --------------------------------------------------------------------------------------------------------- a dendrogram


@dataclass(eq=False)
class PreparedDendrogram(PreparedFolder):
    """A hierarchical clustering to be computed and written."""

    matrix: Matrix
    options: TreeOptions
    job: LinkageJob

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Cluster, and write the result folder. Cost: that of `linkage`, and a scan each for indices and picture."""
        from dasrel.report.figures.dendrogram import draw_dendrogram

        began = time.perf_counter()
        with progress.watch() as counted, watched(checkpoint, COMMAND):
            computed = self.job.run(checkpoint)
            dendrogram = computed if self.own is None else computed.as_similarities(self.own)
            before = dendrogram.scans - counted.scans  # of the process that was interrupted
            cuts = self.cuts(dendrogram)
            labels = {name: dendrogram.cut(k) for name, k, _ in cuts}
            rows, medoids = self._rows(cuts, labels)
            judged = [row for row in rows if row["silhouette"] is not None]
            best = max(judged, key=lambda row: row["silhouette"])["column"] if judged else None
            result = {
                **self.header, "n_objects": dendrogram.n_objects, "linkage": dendrogram.method,
                "units": dendrogram.units, "lowest": float(dendrogram.heights[0]),
                "highest": float(dendrogram.heights[-1]),
                "largest_gap": dendrogram.largest_gap() if dendrogram.n_objects > 2 else None, "cuts": rows,
                "recommended": best if len(rows) > 1 else None, "rounds": dendrogram.rounds,
                "bytes_read": dendrogram.bytes_read, "bytes_written": dendrogram.bytes_written, "scans": 0,
                "seconds": 0.0, "versions": versions(),
            }  # fmt: skip
            with self.folder(result) as folder:
                self._write(computed, dendrogram, labels, medoids, folder)
                if self.options.picture:
                    draw_or_warn(draw_dendrogram, dendrogram, self.matrix, labels[best or cuts[0][0]], folder)
                result["scans"] = before + counted.scans
                result["seconds"] = round(time.perf_counter() - began, 3)
        return result

    @property
    def own(self) -> float | None:
        """The similarity of every object with itself, where heights are converted to similarities, or None.

        Ward's heights are distances between centres, which are no similarities of the store.
        """
        diagonal = self.matrix.diagonal
        if diagonal is None or self.options.as_similarity or self.options.linkage == "ward":
            return None
        return float(diagonal[0]) if (diagonal == diagonal[0]).all() else None

    def warn_of_heights(self) -> None:
        """Warn of heights outside of the values of the store: no linkage but Ward's merges beyond the last of them."""
        audit, similar = self.matrix.audit, names.is_similarity(self.matrix.kind)
        heights = self.options.height or []
        if similar and self.own is None and not self.options.as_similarity:
            if heights and self.options.linkage != "ward":
                text = "objects are not all equally similar to themselves, so that heights are s_ii + s_jj - 2 s_ij"
                warnings.warn(
                    DasrelWarning(text, remedy="say {as_similarity=True} to cut at similarities"), stacklevel=4
                )
            return
        low, high = audit["minimum"], audit["maximum"]
        if low is None or high is None:
            return
        for height in dict.fromkeys(heights):
            beyond_first = height > high if similar else height < low
            beyond_last = height <= low if similar else height >= high
            if beyond_first or (beyond_last and self.options.linkage != "ward"):
                what = (
                    "every object will be a cluster of its own" if beyond_first else "all objects will be one cluster"
                )
                values = f"the values of the store, {self.matrix.kind}, are {low:g} to {high:g}"
                warnings.warn(DasrelWarning(f"at the height {height:g} {what}: {values}"), stacklevel=4)

    def cuts(self, dendrogram: Dendrogram) -> list[tuple[str, int, float | None]]:
        """Return the column, the number of clusters and the height of each cut; by default at the largest gap."""
        options = self.options
        if options.height:
            wanted: list[tuple[str, int, float | None]] = [
                (f"label_height_{h:g}", dendrogram.clusters_at(h), h) for h in dict.fromkeys(options.height)
            ]
        else:
            gap = dendrogram.largest_gap() if dendrogram.n_objects > 2 else dendrogram.n_objects
            wanted = [(f"label_{k}", k, None) for k in dict.fromkeys(options.n_clusters or [gap])]
        return [("label", *wanted[0][1:])] if len(wanted) == 1 else wanted

    def _rows(self, cuts: list[Any], labels: dict[str, Index]) -> tuple[list[dict[str, Any]], dict[str, Medoids]]:
        """Return a row for each cut, with the indices of those that have some, and the medoids.

        Cost: one scan for all cuts that have indices, and one for all others.
        """
        few = {k for _, k, _ in cuts if 2 <= k <= min(MOST_JUDGED, self.matrix.n_objects - 1)}
        of = {k: labels[name] for name, k, _ in cuts if k in few}
        values: dict[int, dict[str, Any]] = {}
        known: dict[int, Medoids] = {}
        if of:
            groupings = [Grouping(str(k), groups.astype(np.int32), k) for k, groups in of.items()]
            quality = compute_indices(
                relation(self.matrix), groupings, indices=INDICES, samples=False, memory=self.options.memory
            )
            values = dict(zip(of, quality.table(), strict=True))
            known = dict(zip(of, quality.medoids, strict=True))
        n = self.matrix.n_objects
        many = {k: labels[name] for name, k, _ in cuts if k not in few and k < n}
        if many:
            rest = find_medoids(relation(self.matrix), [(of, k) for k, of in many.items()], memory=self.options.memory)
            known |= dict(zip(many, rest, strict=True))
        rows = []
        for name, k, height in cuts:
            if k == n:
                known[k] = Medoids.of_sums(labels[name], k, np.zeros(n))
            sizes = np.bincount(labels[name], minlength=k)
            largest = np.argsort(-sizes, kind="stable")[:LISTED_CLUSTERS]
            medoids = [str(self.matrix.ids[position]) for position in known[k].positions[largest]]
            row = {"column": name, "n_clusters": k, "height": height, "sizes": sizes[largest].tolist(),
                   "medoids": medoids}  # fmt: skip
            rows.append(row | {index: values.get(k, {}).get(index) for index in INDICES})
        return rows, {name: known[k] for name, k, _ in cuts}

    def _write(
        self,
        computed: Dendrogram,
        dendrogram: Dendrogram,
        labels: dict[str, Index],
        medoids: dict[str, Medoids],
        folder: Path,
    ) -> None:
        """Write the files; those for other programs, which know no similarities, have dissimilarities."""
        ids = [str(name) for name in self.matrix.ids]
        np.save(folder / "linkage.npy", computed.to_scipy(), allow_pickle=False)
        dendrogram.save(folder / "dendrogram.npz")
        columns = [of.tolist() for of in labels.values()]
        write_csv(
            folder / "labels.csv", ["id", *labels], ([name, *of] for name, *of in zip(ids, *columns, strict=True))
        )
        tables = {name: of.table(labels[name], self.matrix.ids) for name, of in medoids.items()}
        header = next(iter(tables.values()))[0]
        if len(tables) == 1:
            lines = [row for _, rows in tables.values() for row in rows]
        else:
            header, lines = ["cut", *header], [[name, *row] for name, (_, rows) in tables.items() for row in rows]
        write_csv(folder / "medoids.csv", header, lines)
        (folder / "tree.nwk").write_text(computed.to_newick(ids) + "\n", encoding="utf-8", errors="backslashreplace")

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        cost, options = self.job.cost(), self.options
        n = self.matrix.n_objects
        cuts = len(options.n_clusters or options.height or [1])
        names = sum(len(str(name)) for name in self.matrix.ids[:1000]) * n // min(n, 1000)
        size = n * (OBJECT_BYTES - 40 + 3 * cuts) + 2 * names + 2000 + PICTURE_BYTES * options.picture
        more = 1 + options.picture
        # One for cuts into many clusters, one for the others.
        scans = cost.scans + Range(options.picture, more, more + (cuts > 1))
        return replace(cost, scans=scans, outputs=(Output(str(self.out), size),))


def _dendrogram_lines(result: Result) -> Lines:
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


def _dendrogram_part(source: Source) -> ResultPart:
    """Return what a page says of a dendrogram. Cost: no scan; reads the tables."""
    result, n = source.values, source.values["n_objects"]
    cuts = result["cuts"]
    best = next((cut for cut in cuts if cut["column"] == result.get("recommended")), cuts[0])
    judged = [name for name in names.INDICES if any(cut.get(name) is not None for cut in cuts)]
    header = ["cut", "clusters", "height", *(name.replace("_", " ") for name in judged), "largest clusters"]
    rows = [
        [cut["column"], cut["n_clusters"], cut["height"], *(cut.get(name) for name in judged),
         " ".join(f"{size:,}" for size in cut["sizes"][:8]) + (" ..." if cut["n_clusters"] > 8 else "")]
        for cut in cuts
    ]  # fmt: skip
    better = [name.replace("_", " ") for name in judged if names.INDICES[name]]
    text = f"Of {', '.join(better) or 'no index'} larger is better, of the others smaller."
    medoids = best.get("medoids") or [None] * len(best["sizes"])
    sizes = [
        [k + 1, size, percent(size / n), medoid]
        for k, (size, medoid) in enumerate(zip(best["sizes"], medoids, strict=True))
    ]
    text_of_sizes = (
        f"Clusters of the cut into {best['n_clusters']}. The medoid is the member with the least mean dissimilarity"
        " to the others: look at it first. All are in medoids.csv."
    )
    header_of_sizes = ["by size", "objects", "share", "medoid"]
    sized = table("sizes", header_of_sizes, sizes, text_of_sizes, total=best["n_clusters"])
    alt = f"The top of the dendrogram of {count_text(n, 'object')}, {result['linkage']} linkage, beside the matrix."
    caption = (
        "Merges from the leaves to the root: a long line between two merges is a clear cluster. Dark squares"
        " in the matrix beside it are objects that are alike."
    )
    sections = [
        Section("Cuts", [table("cuts", header, rows, text)]),
        Section("Clusters", [sized]),
        Section("Dendrogram", drawing(source, "dendrogram.png", alt, caption)),
        Section("Labels", downloads(source.file("labels.csv"), "labels") or [Note("There is no labels.csv.")]),
        *store_sections(source),
    ]
    clusters = count_text(best["n_clusters"], "cluster")
    headline = f"{clusters} of {count_text(n, 'object')} by {result['linkage']} linkage"
    facts = [
        ("objects", f"{n:,}"),
        ("heights", f"{result['lowest']:g} to {result['highest']:g}, {shown(result['units'])}"),
        ("read", f"{count_text(result['scans'], 'scan')}, {count_text(result['rounds'], 'round')} of merges"),
    ]
    verdict = linkage_verdict(result, best)
    return ResultPart.of(source, "Hierarchical clustering", headline, verdict, facts, sections)


# ------------------------------------------------------------------------------------------------------ a spanning tree


@dataclass(eq=False)
class PreparedTree(PreparedFolder):
    """A minimum spanning tree to be computed and written."""

    matrix: Matrix
    job: TreeJob

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Compute the tree, and write the result folder. Cost: one scan."""
        if checkpoint is not None:
            raise InputError(
                "a spanning tree takes one scan and has no state to save",
                remedy="leave out {checkpoint}, or say {linkage=average}",
            )
        tree = self.job.run()
        result = {
            **self.header, "n_objects": tree.n_objects, "scans": tree.scans, "units": tree.units,
            "shortest": float(tree.weights.min()), "longest": float(tree.weights.max()),
            "total": float(tree.weights.sum()), "versions": versions(),
        }  # fmt: skip
        with self.folder(result) as folder:
            _write_tree(tree, [str(name) for name in self.matrix.ids], folder)
        return result

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        return replace(self.job.cost(), outputs=(Output(str(self.out), OBJECT_BYTES * self.matrix.n_objects),))


def _write_tree(tree: Tree, ids: list[str], folder: Path) -> None:
    tree.save(folder / "tree.npz")
    edges = zip(tree.edges.tolist(), tree.weights.tolist(), strict=True)
    write_csv(folder / "edges.csv", ["first", "second", "weight"], ([ids[i], ids[j], w] for (i, j), w in edges))
    np.save(folder / "linkage.npy", tree.linkage(), allow_pickle=False)
    write_csv(folder / "vat.csv", ["place", "id"], ([k, ids[i]] for k, i in enumerate(tree.vat_order().tolist())))


def _spanning_lines(result: Result) -> Lines:
    return [
        ("tree", shown(result["out"], limit=400)),
        ("objects", f"{result['n_objects']:,}"),
        ("scans", str(result["scans"])),
        ("weights", f"{result['shortest']:g} to {result['longest']:g}, {result['units']}"),
        ("files", "tree.npz, edges.csv, linkage.npy, vat.csv"),
    ]


def _spanning_part(source: Source) -> ResultPart:
    """Return what a page says of a minimum spanning tree. Cost: no scan; reads the edges."""
    result, n = source.values, source.values["n_objects"]
    path = source.file("edges.csv")
    sections = []
    if path.is_file():
        header, rows, count = read_table(path, LISTED, last=True)
        if header != ["first", "second", "weight"] or count != n - 1:
            raise damaged(path, f"it has {count_text(count, 'edge')} for {count_text(n, 'object')}")
        longest = [[row["first"], row["second"], float(row["weight"])] for row in rows[::-1]]
        text = "The longest edges first: cutting them divides the objects into the clusters of single linkage."
        listed = table("longest-edges", ["first", "second", "weight"], longest, text, total=n - 1)
        sections.append(Section("Longest edges", [listed, *downloads(path, "edges")]))
    text = f"The shortest path that connects {count_text(n, 'object')} has a length of {result['total']:g}."
    verdict = [Statement("info", text)]
    facts = [("objects", f"{n:,}"), ("weights", f"{result['shortest']:g} to {result['longest']:g}, {result['units']}"),
             scans_fact(result)]  # fmt: skip
    headline = f"Minimum spanning tree of {count_text(n, 'object')}"
    return ResultPart.of(source, "Tree", headline, verdict, facts, [*sections, *store_sections(source)])


OPERATION = TreeOperation()
