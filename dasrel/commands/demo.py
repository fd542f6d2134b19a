"""Cluster scikit-learn's digits, find outliers and a dendrogram, and write a page and a picture."""

from __future__ import annotations

import gzip
import os
import tempfile
import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dasrel.commands.base import Lines, Operation, Output, Prepared, Result, Target
from dasrel.commands.cluster import OPERATION as CLUSTER, ClusterOptions
from dasrel.commands.operations import operation
from dasrel.commands.report import write_report
from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.dendrogram import Dendrogram
from dasrel.io.pairwise import pairwise
from dasrel.judging.groupings import adjusted_rand_index
from dasrel.store.audit import audit_store
from dasrel.store.matrix import Matrix
from dasrel.store.options import Writing
from dasrel.store.tile_files import StoreLike
from dasrel.util.files import replacing
from dasrel.util.option_fields import READING, option
from dasrel.util.text import count_text, shown, some

PICTURE = "dasrel-demo.png"
PAGE = "dasrel-demo.html"
STORE = "digits.zarr"
RESULTS = "results"
CLUSTERS = (6, 8, 10, 12, 14)
DRAWN = 10
STARTS = 5
WEIGHT = 0.04
"""lambda of fcm2. At 0.11, twice lambda_max over n, all clusters coincide."""
CHOOSE = "pearson_gamma"
"""The correlation of dissimilarities with whether two objects are in different clusters."""
REJECT = 0.02
LINKAGE = "average"
CUT = 30
"""Clusters of the dendrogram: average linkage leaves some digits alone, so that ten are too few."""


@dataclass(frozen=True)
class DemoOptions:
    """Which data."""

    data: Literal["digits"] = option("digits", "The data.", READING, step_only=True)
    only_store: bool = False
    """Whether only their store is written, as a step of workflows does."""


class Demo(Operation):
    name = "demo"
    example = "dasrel demo"
    Options = DemoOptions
    source = None
    target = Output(
        "[OUT]", "A folder for all outputs. If not given, only the page and the picture are kept, in this folder.",
        default=None,
    )  # fmt: skip
    has_cost = False
    on_dask = False
    is_step = True
    gives_matrix = True
    suffixes = (".zarr",)
    summarized = ("n_objects", "kind")

    def prepare(self, source: None, target: Target, options: DemoOptions) -> Prepared:
        """Check the folder."""
        if options.only_store:
            return PreparedDigits(str(target.path))
        out = None if target.path is None else Path(target.path)
        left = [name for name in (STORE, RESULTS, PICTURE, PAGE) if out is not None and os.path.lexists(out / name)]
        if out is not None and left and not target.force:
            raise InputError(
                f"{shown(out / left[0], limit=200)} exists",
                remedy="choose another folder, or say {force=True} to replace it",
            )
        folder = out or Path.cwd()
        if os.path.lexists(folder) and not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise InputError(
                f"{shown(folder, limit=200)} is no folder that can be written to", remedy="say `dasrel demo FOLDER`"
            )
        return PreparedDemo(out, target.force)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the demo."""
        kept, page = result["store"] is not None, Path(result["page"]).resolve().as_uri()
        audit, odd, tree = result["audit"], result["outliers"], result["dendrogram"]
        replaced = " (an earlier one was replaced)" if result["picture_replaced"] else ""
        numbers = count_text(len(result["settings"]), "number")
        return [
            ("objects", f"{audit['n_objects']:,} handwritten digits, Simpson's dissimilarity: it is no metric"),
            ("store", shown(result["store"], limit=400) if kept else "temporary; `dasrel demo FOLDER` keeps it"),
            *([("results", shown(result["results"], limit=400))] if kept else []),
            ("runs", f"{result['runs']}: fcm2 with lambda {WEIGHT}, {numbers} of clusters, {STARTS} starts of each"),
            (
                "healed",
                f"{count_text(result['runs_healed'], 'run')} met negative distances and added the spread that removes"
                " them",
            ),
            ("scans", f"{result['scans']:,} for all runs together; one by one {result['scans_one_by_one']:,}"),
            *(
                (
                    f"{setting['n_clusters']} clusters",
                    f"{CHOOSE.replace('_', ' ')} {setting['index']:.3f}, adjusted Rand index"
                    f" {setting['adjusted_rand_index']:.2f}, mean largest membership"
                    f" {setting['mean_largest_membership']:.2f}",
                )
                for setting in result["settings"]
            ),
            (
                "recommended",
                f"{result['recommended']} clusters; of {DRAWN}, {100 * result['accuracy']:.0f} % are of the right"
                " digit",
            ),
            ("outliers", f"{odd['count']}: {some(odd['ids'], total=odd['count'])}"),
            (
                "dendrogram",
                f"{tree['linkage']} linkage; cut into {tree['n_clusters']} clusters, adjusted Rand index"
                f" {tree['adjusted_rand_index']:.2f}",
            ),
            ("picture", f"{shown(result['picture'], limit=400)}{replaced}"),
            (
                "page",
                f"{shown(result['page'], limit=400)}; open {page} in a browser",
            ),
        ]

    def in_step(self, options: DemoOptions) -> DemoOptions:
        """Return options by which only the store is written."""
        return replace(options, only_store=True)


@dataclass(frozen=True)
class PreparedDigits(Prepared):
    """The store of the digits, to be written by a step."""

    store: str

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Write the store, or resume it."""
        build_digits(self.store, writing=Writing(resume=True))
        return audit_store(self.store)


@dataclass(frozen=True)
class PreparedDemo(Prepared):
    """A demo, whose files may be written."""

    out: Path | None
    """None: only the page and the picture are kept, in this folder."""
    force: bool

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Store the digits, cluster them, find outliers and a dendrogram, compare with the digits, and write a page.

        Cost: about 100 scans of 9 MB.
        """
        out, force, here = self.out, self.force, self.out or Path()
        replaced = (here / PICTURE).exists()
        _, truth = read_digits()
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary) if out is None else out
            store, results = place / STORE, place / RESULTS
            build_digits(store, writing=Writing(force=force))
            results.mkdir(exist_ok=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DasrelWarning)  # they are in the results, and the demo reports them
                clusters = _cluster(store, results / "clusters", truth, here / PICTURE, force)
                outliers = _outliers(store, results / "outliers", force)
                tree = _dendrogram(store, results / "dendrogram", truth, force)
            audit = audit_store(store)
            done = [results / name for name in ("clusters", "outliers", "dendrogram")]
            page = write_report(done, here / PAGE, force=True)
            if out is None:
                _name_folder(here / PAGE, temporary)
        return {
            "store": None if out is None else str(store),
            "results": None if out is None else str(results),
            "picture": str(here / PICTURE),
            "picture_replaced": replaced,
            "page": str(page),
            "audit": audit,
            **clusters,
            "outliers": outliers,
            "dendrogram": tree,
        }


def _name_folder(page: Path, temporary: str) -> None:
    """Let a page name a temporary folder, which is removed, as the one that `dasrel demo FOLDER` would keep."""
    text = page.read_text(encoding="utf-8")
    with replacing(page) as new, new.open("x", encoding="utf-8") as file:
        file.write(text.replace(temporary, "FOLDER"))


def _result(name: str, store: Path, out: Path, force: bool, **options: Any) -> dict[str, Any]:
    """Return the result of an operation on the store, which is written to a folder."""
    of = operation(name)
    return of.prepare(str(store), Target(out, force=force), of.Options(**options)).run()


def _cluster(store: Path, out: Path, truth: NDArray[Any], picture: Path, force: bool) -> dict[str, Any]:
    """Cluster in one bundle for all numbers of clusters, draw the memberships in ten, and return a summary."""
    from dasrel.report.figures.partition import partition_figure

    options = ClusterOptions(
        n_clusters=list(CLUSTERS), entropy_weight=[WEIGHT], n_init=STARTS, init=["random"], on_negative="heal",
        stop="memberships", tol=1e-2, choose=CHOOSE, picture=False,
    )  # fmt: skip
    prepared = CLUSTER.prepare(str(store), Target(out, force=force), options)
    result, clustering = prepared.run(), prepared.clustering
    assert clustering is not None
    drawn = clustering.partitions[CLUSTERS.index(DRAWN)]
    ordered = drawn.memberships[:, _clusters_by_digit(truth, drawn.labels)]
    partition_figure(
        ordered, picture, truth=truth, truth_name="digit",
        title=f"{len(truth):,} handwritten digits, known only by a dissimilarity that is no metric, in {DRAWN} fuzzy"
        f" clusters\n(fcm2, lambda {WEIGHT}; each cluster is named after the digit that fits it best)",
    )  # fmt: skip
    return {
        "runs": len(clustering.runs),
        "runs_healed": sum(run.negative_distances > 0 for run in clustering.runs),
        "scans": clustering.scans,
        "scans_one_by_one": sum(run.n_iter for run in clustering.runs),
        "settings": [
            {
                "n_clusters": setting["n_clusters"],
                "n_iter": setting["n_iter"],
                "index": setting["validity"][CHOOSE],
                "adjusted_rand_index": adjusted_rand_index(truth, partition.labels),
                "mean_largest_membership": float(partition.memberships.max(axis=1).mean()),
            }
            for setting, partition in zip(result["settings"], clustering.partitions, strict=True)
        ],
        "recommended": result["recommended"]["n_clusters"],
        "accuracy": float(np.mean(drawn.labels == _clusters_by_digit(truth, drawn.labels)[truth])),
        "warnings": list(clustering.warnings),
    }


def _outliers(store: Path, out: Path, force: bool) -> dict[str, Any]:
    """Find the least typical digits and return their names, the least typical first."""
    setting = _result("outliers", store, out, force, reject=REJECT)["settings"][0]
    return {"count": setting["outliers"], "ids": setting["outlier_ids"]}


def _dendrogram(store: Path, out: Path, truth: NDArray[Any], force: bool) -> dict[str, Any]:
    """Cluster hierarchically, and compare a cut with the digits."""
    _result("tree", store, out, force, linkage=LINKAGE, n_clusters=[CUT])
    labels = Dendrogram.load(out / "dendrogram.npz").cut(CUT)
    return {"linkage": LINKAGE, "n_clusters": CUT, "adjusted_rand_index": adjusted_rand_index(truth, labels)}


def _clusters_by_digit(truth: NDArray[Any], labels: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the cluster of each digit, of ten clusters, so that as many objects as possible are right (assignment)."""
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((10, DRAWN))
    np.add.at(counts, (truth, labels), 1)
    _, clusters = linear_sum_assignment(counts, maximize=True)
    return np.asarray(clusters, dtype=np.intp)


# --------------------------------------------------------------------------------------------------- the digits


def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the grey values, 0 to 16, of the 64 pixels of each image, and the digit that it shows.

    They are read from scikit-learn's own file where it is found, because scikit-learn takes two seconds to import.
    """
    package = find_spec("sklearn")
    file = Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if package else Path()
    if not file.is_file():
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.data, bunch.target.astype(np.int64)
    with gzip.open(file, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def build_digits(store: StoreLike, *, writing: Writing | None = None) -> Matrix:
    """Store Simpson's dissimilarity of the 1,797 digits: each image is the set of its pixels with ink.

    Ink is what is strictly above half of the grey scale. Two images have dissimilarity 0 when the ink of one contains
    that of the other, so different images have 0 and the triangle inequality fails: it is no metric. Its values are
    used as squared distances.

    Cost: no scan; writes 9 MB.
    """
    images, digits = read_digits()
    ink = images / 16 > 0.5
    names = [f"digit{label}-{k:04}" for k, label in enumerate(digits)]
    return pairwise(ink, store, metric="simpson", kind="squared-distance", ids=names, writing=writing)


OPERATION = Demo()
