"""Orders of the objects that make structure visible, the pictures drawn in them, and a tree's files."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasrel.errors import InputError, StoreError, shown
from dasrel.images import induced_image, ivat_image, matrix_image, write_image
from dasrel.intake import Names
from dasrel.lanczos import Search, lanczos
from dasrel.outputs import check_out, whole_folder, write_csv
from dasrel.relation import relation
from dasrel.store import Matrix, open_matrix
from dasrel.tree import Tree, minimum_spanning_tree

Index = NDArray[np.intp]
PathLike = str | os.PathLike[str]

EIGENVECTORS = 6


def draw(
    store: Any,
    out: PathLike,
    *,
    order: str,
    result: PathLike | None = None,
    induced: bool = False,
    pixels: int = 1000,
    memory: int | str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Draw a matrix, its iVAT, or D(U) of a result, with the objects in an order; say what was drawn.

    Parameters
    ----------
    order
        "vat": along the minimum spanning tree; "ivat": the same, showing minimax path dissimilarities; "labels": by
        the clusters of `result`; "eigen": by the leading eigenvectors of -1/2 P D P; "none": as stored.
    result
        A folder that `dasrel cluster` wrote, of one setting.
    induced
        Show D(U) of the result's memberships (K14 17) in this order, not the matrix.

    Cost: one scan for the picture, none for "ivat" and D(U); "vat" and "ivat" one for the tree; "eigen" those of
    Lanczos, at most 30.
    """
    target = Path(out)
    if target.exists() and not force:
        raise StoreError(f"{shown(target, limit=400)} exists; say --force to replace it")
    matrix = open_matrix(store)
    tree = minimum_spanning_tree(matrix, memory=memory) if order in ("vat", "ivat") else None
    labels, memberships = (None, None) if result is None else read_result(result, matrix)
    units = "dissimilarity" if tree is None else tree.units
    if order == "ivat" and not induced:
        assert tree is not None
        picture, title = ivat_image(tree, pixels), "iVAT: minimax path dissimilarities in VAT order"
    else:
        if tree is not None:
            places, told = tree.vat_order(), "VAT order"
        elif order == "labels":
            assert labels is not None
            assert memberships is not None
            places, told = label_order(labels, memberships), "ordered by cluster"
        elif order == "eigen":
            places, told = eigen_order(matrix, memory=memory), "ordered by leading eigenvectors"
        else:
            places, told = np.arange(matrix.n_objects), "as stored"
        if induced:
            assert memberships is not None
            picture, title = induced_image(memberships.T, places, pixels), f"D(U), induced by memberships, {told}"
            units = "induced dissimilarity"
        else:
            picture, title = matrix_image(matrix, places, pixels, memory=memory), f"dissimilarities, {told}"
    write_image(picture, target, n_objects=matrix.n_objects, title=title, label=units)
    return {"out": str(target), "order": order, "title": title, "side": len(picture), "n_objects": matrix.n_objects}


def label_order(labels: Index, memberships: NDArray[Any]) -> Index:
    """Cluster after cluster, the surest members first."""
    surest = memberships[np.arange(len(labels)), labels]
    return np.lexsort((np.arange(len(labels)), -surest, labels)).astype(np.intp)


def eigen_order(matrix: Matrix, *, count: int = EIGENVECTORS, memory: int | str | None = None) -> Index:
    """Objects gathered by the leading eigenvector of -1/2 P D P, and its side, in which they stand out most.

    One eigenvector alone cannot keep several clusters apart (Q09): each object goes with the
    eigenvector in which it is largest, relative to that vector's own spread, and within it by value.

    Cost: the scans of Lanczos for `count` eigenvectors to 5 %, at most 30.
    """
    count = min(count, matrix.n_objects - 1)
    seen = relation(matrix)
    found = lanczos(
        lambda V: seen.gram(V, memory=memory),
        matrix.n_objects,
        search=Search(lowest=0, highest=count, tol=0.05, max_scans=30, vectors=True),
    )
    vectors = found.highest.vectors
    assert vectors is not None
    kept = vectors[:, found.highest.values > 0]
    if not kept.shape[1]:
        return np.arange(matrix.n_objects)
    coordinates = kept * np.sqrt(found.highest.values[: kept.shape[1]])
    leading = np.abs(coordinates).argmax(axis=1)
    value = coordinates[np.arange(len(leading)), leading]
    return np.lexsort((np.abs(value), value > 0, leading)).astype(np.intp)


def read_result(folder: PathLike, matrix: Matrix) -> tuple[Index, NDArray[Any]]:
    """Labels and memberships of a folder that `dasrel cluster` wrote for this matrix."""
    place = Path(folder)
    try:
        memberships = np.load(place / "memberships.npy", allow_pickle=False)
        with (place / "labels.csv").open(encoding="utf-8", newline="") as file:
            rows = [(row["id"], int(row["label"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{shown(place, limit=400)} is no result of one setting ({shown(error)}); name the folder that holds"
            " labels.csv and memberships.npy"
        ) from error
    if [name for name, _ in rows] != [str(name) for name in matrix.ids] or len(memberships) != matrix.n_objects:
        raise InputError(f"{shown(place, limit=400)} is a result for other objects than those of this store")
    labels = np.array([label for _, label in rows], dtype=np.intp)
    if labels.size and not (labels.min() >= 0 and labels.max() < memberships.shape[1]):
        raise InputError(f"{shown(place, limit=400)}: labels and memberships do not belong together")
    return labels, memberships


def save_tree(tree: Tree, ids: Names, out: PathLike, *, force: bool = False) -> dict[str, Any]:
    """Write a tree as files that any program reads, in a folder that is whole or not there, and say what is in it.

        tree.npz      to be loaded with `Tree.load`
        edges.csv     first, second, weight: the n - 1 edges by the objects' names, lightest first
        linkage.npy   single linkage as SciPy has it, (n - 1, 4)
        vat.csv       place, id: the objects in VAT order
        result.json   the figures that are returned

    Cost: no scan; O(n log n).
    """
    target = Path(out)
    check_out(target, force=force)
    said = {
        "out": str(target), "n_objects": tree.n_objects, "scans": tree.scans, "units": tree.units,
        "shortest": float(tree.weights.min()), "longest": float(tree.weights.max()),
        "total": float(tree.weights.sum()),
    }  # fmt: skip
    with whole_folder(target, said, force=force) as aside:
        tree.save(aside / "tree.npz")
        edges = zip(tree.edges.tolist(), tree.weights.tolist(), strict=True)
        write_csv(
            aside / "edges.csv", ["first", "second", "weight"], ([str(ids[i]), str(ids[j]), w] for (i, j), w in edges)
        )
        np.save(aside / "linkage.npy", tree.linkage(), allow_pickle=False)
        order = tree.vat_order().tolist()
        write_csv(aside / "vat.csv", ["place", "id"], ([k, str(ids[i])] for k, i in enumerate(order)))
    return said
