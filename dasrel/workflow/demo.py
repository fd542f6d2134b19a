"""The demo: scikit-learn's handwritten digits, stored and clustered; it downloads nothing."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.clustering.fit import cluster
from dasrel.clustering.output import save_clustering
from dasrel.clustering.result import Clustering
from dasrel.clustering.runs import grid
from dasrel.errors import DasrelWarning, InputError
from dasrel.io.pairwise import pairwise
from dasrel.options import Writing
from dasrel.store.audit import audit_store
from dasrel.store.matrix import Matrix
from dasrel.store.tile_files import StoreLike
from dasrel.util.text import count_text, shown

PICTURE = "dasrel-demo.png"
STORE = "digits.zarr"
RESULTS = "results"
WEIGHTS = (0.02, 0.03, 0.04, 0.05, 0.06)
"""Values of lambda. At 0.11, twice lambda_max over n, all clusters coincide."""
DRAWN = 0.04
STARTS = 10


def build_digits(store: StoreLike, *, writing: Writing | None = None) -> Matrix:
    """Store Simpson's dissimilarity of the 1,797 digits: each image is the set of its pixels with ink.

    Ink is what is strictly above half of the grey scale. Two images have dissimilarity 0 when the ink of one contains
    that of the other, so different images have 0 and the triangle inequality fails: it is no metric. Its values are
    used as squared distances.

    Cost: no scan; writes 9 MB.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    ink = digits.data / 16 > 0.5
    names = [f"digit{label}-{k:04}" for k, label in enumerate(digits.target)]
    return pairwise(ink, store, metric="simpson", kind="squared-distance", ids=names, writing=writing)


def run_demo(out: str | os.PathLike[str] | None = None, *, force: bool = False) -> dict[str, Any]:
    """Store the digits, cluster them in one bundle of 50 runs, compare with the true digits, and draw a figure.

    Parameters
    ----------
    out
        A folder for the store, the results and the figure. If None, only the figure is written, to the current folder;
        one of an earlier demo is replaced.
    force
        Replace the files of an earlier demo in `out`.

    Cost: about 200 scans of 9 MB.
    """
    from sklearn.datasets import load_digits

    from dasrel.report.figures import partition_picture

    folder = Path.cwd() if out is None else Path(out)
    picture = folder / PICTURE if out is not None else Path(PICTURE)
    left = [name for name in (STORE, RESULTS, PICTURE) if out is not None and os.path.lexists(folder / name)]
    if left and not force:
        raise InputError(
            f"{shown(folder / left[0], limit=200)} exists",
            remedy="choose another folder, or say {force=True} to replace it",
        )
    if os.path.lexists(folder) and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(f"{shown(folder, limit=200)} is no folder that can be written to; say `dasrel demo FOLDER`")
    replaced = picture.exists()

    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary if out is None else folder) / STORE
        matrix = build_digits(store, writing=Writing(force=force))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DasrelWarning)  # they are in the result, and the demo reports them
            found = cluster(
                matrix,
                grid(
                    "fcm2",
                    10,
                    entropy_weight=WEIGHTS,
                    init="random",
                    n_init=STARTS,
                    on_negative="heal",
                    tol=1e-2,
                    max_iter=500,
                ),
            )
        if out is not None:
            save_clustering(found, folder / RESULTS, about={"store": str(store)}, force=force)
        audit = audit_store(store)

    truth = load_digits().target
    drawn = found.partitions[WEIGHTS.index(DRAWN)]
    ordered = drawn.memberships[:, _clusters_by_digit(truth, drawn.labels)]
    partition_picture(
        ordered, picture, truth=truth, truth_name="digit",
        title=f"{len(truth):,} handwritten digits, known only by a dissimilarity that is no metric, in 10 fuzzy"
        f" clusters\n(fcm2, lambda {DRAWN}; each cluster is named after the digit that fits it best)",
    )  # fmt: skip
    return {
        "store": None if out is None else str(store),
        "results": None if out is None else str(folder / RESULTS),
        "picture": str(picture),
        "picture_replaced": replaced,
        "audit": audit,
        **_summary(found, truth),
    }


def _summary(found: Clustering, truth: NDArray[Any]) -> dict[str, Any]:
    from sklearn.metrics import adjusted_rand_score

    settings = []
    for partition in found.partitions:
        labels = partition.labels
        clusters = _clusters_by_digit(truth, labels)
        settings.append(
            {
                "entropy_weight": partition.result.entropy_weight,
                "adjusted_rand_index": float(adjusted_rand_score(truth, labels)),
                "accuracy": float(np.mean(labels == clusters[truth])),
                "mean_largest_membership": float(partition.memberships.max(axis=1).mean()),
                "n_iter": partition.result.n_iter,
            }
        )
    return {
        "runs": len(found.runs),
        "runs_healed": sum(one.negative_distances > 0 for one in found.runs),
        "scans": found.scans,
        "scans_one_by_one": sum(one.n_iter for one in found.runs),
        "settings": settings,
        "warnings": list(found.warnings),
    }


def _clusters_by_digit(truth: NDArray[Any], labels: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the cluster of each digit, so that as many objects as possible are right (assignment)."""
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((10, 10))
    np.add.at(counts, (truth, labels), 1)
    _, clusters = linear_sum_assignment(counts, maximize=True)
    return np.asarray(clusters, dtype=np.intp)


def demo_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that the command prints: names and texts."""
    kept = result["store"] is not None
    audit = result["audit"]
    replaced = " (an earlier one was replaced)" if result["picture_replaced"] else ""
    return [
        ("objects", f"{audit['n_objects']:,} handwritten digits, Simpson's dissimilarity: it is no metric"),
        ("store", shown(result["store"], limit=400) if kept else "temporary; `dasrel demo FOLDER` keeps it"),
        *([("results", shown(result["results"], limit=400))] if kept else []),
        (
            "runs",
            f"{result['runs']}: fcm2 with 10 clusters, {count_text(len(WEIGHTS), 'value')} of lambda, {STARTS} starts"
            " of each",
        ),
        (
            "healed",
            f"{count_text(result['runs_healed'], 'run')} met negative distances and added the spread that removes them",
        ),
        ("scans", f"{result['scans']:,} for all runs together; one by one {result['scans_one_by_one']:,}"),
        *(
            (
                f"lambda {one['entropy_weight']:g}",
                f"{100 * one['accuracy']:.0f} % right, adjusted Rand index {one['adjusted_rand_index']:.2f},"
                f" mean largest membership {one['mean_largest_membership']:.2f}",
            )
            for one in result["settings"]
        ),
        ("picture", f"{shown(result['picture'], limit=400)}{replaced}"),
    ]
