"""The files of a minimum spanning tree."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import __version__
from dasrel.geometry.tree import Tree, TreeJob
from dasrel.store.matrix import open_matrix
from dasrel.util import Names, PathLike
from dasrel.util.limits import Cost, Output
from dasrel.util.results import check_out, result_folder, write_csv

TREE_OBJECT = 130
"""Bytes per object in the files of a tree, approximately."""


def save_tree(
    tree: Tree, ids: Names, out: PathLike, *, about: dict[str, Any] | None = None, force: bool = False
) -> dict[str, Any]:
    """Write a tree as files that other programs read, in a folder that is complete or absent; return its summary.

        tree.npz      for `Tree.load`
        edges.csv     first, second, weight: the n - 1 edges by the names of the objects, lightest first
        linkage.npy   single linkage in SciPy's format, (n - 1, 4)
        vat.csv       place, id: the objects in VAT order
        result.json   the summary, with `about`

    Cost: no scan; O(n log n).
    """
    target = Path(out)
    check_out(target, force=force)
    summary = {
        "out": str(target), **(about or {}), "n_objects": tree.n_objects, "scans": tree.scans, "units": tree.units,
        "shortest": float(tree.weights.min()), "longest": float(tree.weights.max()),
        "total": float(tree.weights.sum()),
        "versions": {"dasrel": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }  # fmt: skip
    with result_folder(target, summary, force=force) as folder:
        tree.save(folder / "tree.npz")
        edges = zip(tree.edges.tolist(), tree.weights.tolist(), strict=True)
        write_csv(
            folder / "edges.csv", ["first", "second", "weight"], ([str(ids[i]), str(ids[j]), w] for (i, j), w in edges)
        )
        np.save(folder / "linkage.npy", tree.linkage(), allow_pickle=False)
        order = tree.vat_order().tolist()
        write_csv(folder / "vat.csv", ["place", "id"], ([k, str(ids[i])] for k, i in enumerate(order)))
    return summary


def estimate_tree(store: Any, out: PathLike, *, memory: int | str | None = None, force: bool = False) -> Cost:
    """Estimate what `minimum_spanning_tree` and `save_tree` would do. Cost: no scan."""
    check_out(out, force=force)
    cost = TreeJob(open_matrix(store), memory).cost()
    return replace(cost, outputs=(Output(str(out), TREE_OBJECT * (cost.n_objects or 0)),))
