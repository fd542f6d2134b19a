"""The demo: scikit-learn's handwritten digits, stored, clustered, judged and shown on a page; it downloads nothing."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.cmeans.result import Clustering
from dasrel.errors import DasrelWarning, InputError
from dasrel.geometry.dendrogram import Dendrogram
from dasrel.judging.comparison import adjusted_rand_index
from dasrel.options import RunOptions, TreeOptions, Writing
from dasrel.store.audit import audit_store
from dasrel.util.files import replacing
from dasrel.util.text import count_text, shown, some
from dasrel.workflow.digits import build_digits, read_digits

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


def run_demo(out: str | os.PathLike[str] | None = None, *, force: bool = False) -> dict[str, Any]:
    """Store the digits, cluster them, find outliers and a dendrogram, compare with the true digits, and write a page.

    Parameters
    ----------
    out
        A folder for the store, the results, the page and the picture. If None, only the page and the picture are
        written, to the current folder; those of an earlier demo are replaced.
    force
        Replace the files of an earlier demo in `out`.

    Cost: about 100 scans of 9 MB.
    """
    from dasrel.commands.report import write_report

    folder = Path.cwd() if out is None else Path(out)
    here = Path() if out is None else folder
    left = [name for name in (STORE, RESULTS, PICTURE, PAGE) if out is not None and os.path.lexists(folder / name)]
    if left and not force:
        raise InputError(
            f"{shown(folder / left[0], limit=200)} exists",
            remedy="choose another folder, or say {force=True} to replace it",
        )
    if os.path.lexists(folder) and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(f"{shown(folder, limit=200)} is no folder that can be written to; say `dasrel demo FOLDER`")
    replaced = (here / PICTURE).exists()

    _, truth = read_digits()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary if out is None else folder)
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
    with replacing(page) as new:
        new.write_text(text.replace(temporary, "FOLDER"), encoding="utf-8")


def _cluster(store: Path, out: Path, truth: NDArray[Any], picture: Path, force: bool) -> dict[str, Any]:
    """Cluster in one bundle for all numbers of clusters, draw the memberships in ten, and return a summary."""
    from dasrel.cmeans.job import prepare_job
    from dasrel.report.figures.partition import partition_picture

    kept: list[Clustering] = []
    runs = RunOptions(
        n_clusters=list(CLUSTERS), entropy_weight=[WEIGHT], n_init=STARTS, init=["random"], on_negative="heal", tol=1e-2
    )
    options = {**runs.as_dict(), "choose": CHOOSE}
    result = prepare_job(str(store), options, out, force=force).run(draw=lambda found, *_: kept.append(found))
    found = kept[0]
    drawn = found.partitions[CLUSTERS.index(DRAWN)]
    ordered = drawn.memberships[:, _clusters_by_digit(truth, drawn.labels)]
    partition_picture(
        ordered, picture, truth=truth, truth_name="digit",
        title=f"{len(truth):,} handwritten digits, known only by a dissimilarity that is no metric, in {DRAWN} fuzzy"
        f" clusters\n(fcm2, lambda {WEIGHT}; each cluster is named after the digit that fits it best)",
    )  # fmt: skip
    return {
        "runs": len(found.runs),
        "runs_healed": sum(one.negative_distances > 0 for one in found.runs),
        "scans": found.scans,
        "scans_one_by_one": sum(one.n_iter for one in found.runs),
        "settings": [
            {
                "n_clusters": setting["n_clusters"],
                "n_iter": setting["n_iter"],
                "index": setting["validity"][CHOOSE],
                "adjusted_rand_index": adjusted_rand_index(truth, partition.labels),
                "mean_largest_membership": float(partition.memberships.max(axis=1).mean()),
            }
            for setting, partition in zip(result["settings"], found.partitions, strict=True)
        ],
        "recommended": result["recommended"]["n_clusters"],
        "accuracy": float(np.mean(drawn.labels == _clusters_by_digit(truth, drawn.labels)[truth])),
        "warnings": list(found.warnings),
    }


def _result(name: str, store: Path, out: Path, force: bool, **options: Any) -> dict[str, Any]:
    """Return the result of an operation on the store, which is written to a folder."""
    from dasrel.commands.base import Target
    from dasrel.commands.operations import operation

    of = operation(name)
    return of.prepare(str(store), Target(out, force=force), of.Options(**options)).run()


def _outliers(store: Path, out: Path, force: bool) -> dict[str, Any]:
    """Find the least typical digits and return their names, the least typical first."""
    setting = _result("outliers", store, out, force, reject=REJECT)["settings"][0]
    return {"count": setting["outliers"], "ids": setting["outlier_ids"]}


def _dendrogram(store: Path, out: Path, truth: NDArray[Any], force: bool) -> dict[str, Any]:
    """Cluster hierarchically, and compare a cut with the digits."""
    from dasrel.hierarchy.tree_job import prepare_tree
    from dasrel.report.figures.dendrogram import draw_into

    options = TreeOptions(linkage=LINKAGE, n_clusters=[CUT])
    prepare_tree(str(store), out, options, force=force).run(draw=draw_into)
    labels = Dendrogram.load(out / "dendrogram.npz").cut(CUT)
    return {"linkage": LINKAGE, "n_clusters": CUT, "adjusted_rand_index": adjusted_rand_index(truth, labels)}


def _clusters_by_digit(truth: NDArray[Any], labels: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the cluster of each digit, of ten clusters, so that as many objects as possible are right (assignment)."""
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((10, DRAWN))
    np.add.at(counts, (truth, labels), 1)
    _, clusters = linear_sum_assignment(counts, maximize=True)
    return np.asarray(clusters, dtype=np.intp)


def demo_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that the command prints: names and texts."""
    kept = result["store"] is not None
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
            f"{count_text(result['runs_healed'], 'run')} met negative distances and added the spread that removes them",
        ),
        ("scans", f"{result['scans']:,} for all runs together; one by one {result['scans_one_by_one']:,}"),
        *(
            (
                f"{one['n_clusters']} clusters",
                f"{CHOOSE.replace('_', ' ')} {one['index']:.3f}, adjusted Rand index {one['adjusted_rand_index']:.2f},"
                f" mean largest membership {one['mean_largest_membership']:.2f}",
            )
            for one in result["settings"]
        ),
        (
            "recommended",
            f"{result['recommended']} clusters; of {DRAWN}, {100 * result['accuracy']:.0f} % are of the right digit",
        ),
        ("outliers", f"{odd['count']}: {some(odd['ids'], total=odd['count'])}"),
        (
            "dendrogram",
            f"{tree['linkage']} linkage; cut into {tree['n_clusters']} clusters, adjusted Rand index"
            f" {tree['adjusted_rand_index']:.2f}",
        ),
        ("picture", f"{shown(result['picture'], limit=400)}{replaced}"),
        ("page", f"{shown(result['page'], limit=400)}; open {Path(result['page']).resolve().as_uri()} in a browser"),
    ]
