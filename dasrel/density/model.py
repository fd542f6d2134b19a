"""Place new objects in clusters that were found by density, from their values to the objects of the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dasrel.density.condensed import CondensedTree
from dasrel.errors import StoreError
from dasrel.io.features import sliced_rows, squared_blocks
from dasrel.kernels.products import View
from dasrel.names import KINDS, is_similarity
from dasrel.partition.model import checked_self_similarity
from dasrel.util import Array, Float, Index, Names, PathLike
from dasrel.util.archives import ArchiveFormat, array_json, holds_array, json_array, load_archive, save_archive
from dasrel.util.text import shown

ARRAYS = ("core", "clusters", "leaves_at", "parents", "births", "labels", "most", "deepest", "diagonal", "ids")
FORMAT = ArchiveFormat(
    "density model", "density_version", 1, ARRAYS, source="; `dasrel density` writes one",
    remedy="use the dasrel that wrote it, or make it again",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Placed:
    """Where new objects belong."""

    labels: Index
    """(k,) clusters; -1 for noise."""
    probabilities: Float
    """(k,) how firmly; 0 for noise."""
    outlier_scores: Float
    """(k,) GLOSH scores."""


@dataclass(frozen=True, eq=False)
class DensityModel:
    """What is known of the objects and clusters; n objects, c clusters of the condensed tree."""

    core: Float
    """(n,) core distances."""
    clusters: Index
    """(n,) the cluster that each object leaves to no other, and..."""
    leaves_at: Float
    """... (n,) the lambda at which it does."""
    parents: Index
    """(c,) parents; -1 for the root."""
    births: Float
    """(c,) lambda at which each appears."""
    labels: Index
    """(c,) the label of each, -1 for none."""
    most: Float
    """(c,) the lambda of probability 1."""
    deepest: Float
    """(c,) the largest lambda at and below each."""
    min_samples: int
    kind: str
    ids: Names
    diagonal: Float | None
    """Self-similarities for kinds similarity and kernel."""

    @staticmethod
    def of(
        tree: CondensedTree, chosen: Index, of_cluster: Index, core: Float, min_samples: int, matrix: Any
    ) -> DensityModel:
        """Return the model of a result."""
        most = np.zeros(tree.n_clusters)
        marked = np.zeros(tree.n_clusters, dtype=bool)
        marked[chosen] = True
        for k in range(tree.n_clusters):
            most[k] = tree.ends[k] if marked[k] or k == 0 else most[tree.parents[k]]
        diagonal = matrix.diagonal
        return DensityModel(
            core, tree.clusters, tree.leaves_at, tree.parents, tree.births, of_cluster, most, tree.deepest, min_samples,
            matrix.kind, matrix.ids, None if diagonal is None else np.asarray(diagonal, dtype=np.float64),
        )  # fmt: skip

    @property
    def n_objects(self) -> int:
        """Number of objects of the matrix."""
        return len(self.core)

    @property
    def n_clusters(self) -> int:
        """Number of clusters with a label."""
        return int(self.labels.max(initial=-1)) + 1

    def predict(self, rows: Any, *, self_similarity: ArrayLike | None = None) -> Placed:
        """Return where new objects would be in the tree, which they do not change.

        Each joins the object of least mutual reachability, of several the nearest, at that distance: it has the label
        of the cluster that this object is in at that density.

        Parameters
        ----------
        rows
            (k, n) values to the n objects, of the kind of the matrix; names of columns are matched with ids.
        self_similarity
            Value of a new object with itself, for similarities and kernels: one number, or k.

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        values, order = sliced_rows(rows, self.ids)
        own = checked_self_similarity(self.kind, self_similarity, values.shape[0])
        parts = [np.empty(values.shape[0], dtype=np.int64), np.empty(values.shape[0]), np.empty(values.shape[0])]
        blocks = squared_blocks(values, order, View(self.kind), row_self=own, column_self=self.diagonal)
        for span, D in blocks:
            for whole, part in zip(parts, self._placed(np.sqrt(np.maximum(D, 0))), strict=True):
                whole[span] = part
        return Placed(*parts)

    def _placed(self, d: Float) -> tuple[Index, Float, Float]:
        k = self.min_samples - 1
        core = np.partition(d, k - 1, axis=1)[:, k - 1] if k else np.zeros(len(d))
        reach = np.maximum(np.maximum(d, self.core), core[:, None])
        least = reach.min(axis=1)
        nearest = np.where(reach == least[:, None], d, np.inf).argmin(axis=1)
        finest = self.leaves_at.max(initial=0)
        rate = np.minimum(np.divide(1, least, out=np.full(len(d), np.inf), where=least > 0), finest)
        at = self.clusters[nearest]
        while True:
            up = (at > 0) & (self.births[at] >= rate)
            if not up.any():
                break
            at = np.where(up, self.parents[at], at)
        labels = self.labels[at]
        labels = np.where((at == 0) & (rate < self.most[0]), -1, labels)
        most = self.most[at]
        share = np.divide(np.minimum(rate, most), most, out=np.ones(len(d)), where=most > 0)
        deepest = self.deepest[at]
        score = np.divide(deepest - rate, deepest, out=np.zeros(len(d)), where=deepest > 0).clip(0, 1)
        return labels, np.where(labels >= 0, share, 0.0), score

    def save(self, path: PathLike) -> None:
        """Write the model to a .npz file, atomically."""
        arrays = {name: getattr(self, name) for name in ARRAYS[:-2]}
        arrays |= {
            "diagonal": np.empty(0) if self.diagonal is None else self.diagonal,
            "ids": json_array([str(name) for name in self.ids]),
        }
        save_archive(path, FORMAT, arrays, {"kind": self.kind, "min_samples": self.min_samples})

    @staticmethod
    def load(path: PathLike) -> DensityModel:
        """Read a model that `save` wrote. Nothing is unpickled; a file that is not complete is refused."""
        parts, about = load_archive(path, FORMAT)
        try:
            ids = np.array([str(name) for name in array_json(parts.pop("ids"))], dtype=object)
            diagonal = parts.pop("diagonal")
            model = DensityModel(**parts, min_samples=int(about["min_samples"]), kind=about["kind"], ids=ids,
                                 diagonal=diagonal if diagonal.size else None)  # fmt: skip
            fault = _fault(model)
        except (KeyError, TypeError, ValueError) as error:
            fault = shown(error, limit=200)
        if fault:
            raise StoreError(f"{shown(path, limit=200)} is a damaged model ({fault})", remedy="make it again")
        return model


def is_density_model(path: PathLike) -> bool:
    """Return whether a file is the model of clusters by density."""
    return holds_array(path, "leaves_at")


def _fault(model: DensityModel) -> str:
    """Return what is wrong with the arrays of a model; an empty string if nothing is."""
    n, c = len(model.core), len(model.parents)
    of_objects: tuple[Array, ...] = (model.core, model.clusters, model.leaves_at)
    of_clusters: tuple[Array, ...] = (model.parents, model.births, model.labels, model.most, model.deepest)
    if any(a.shape != (n,) for a in of_objects) or any(a.shape != (c,) for a in of_clusters) or len(model.ids) != n:
        return "arrays that do not belong together"
    if not n or not c or model.kind not in KINDS or not 1 <= model.min_samples <= n:
        return f"{n} objects, {c} clusters, kind {shown(model.kind)}, min_samples {model.min_samples}"
    numbers = (model.core, model.leaves_at, model.births, model.most, model.deepest)
    if any(a.dtype.kind != "f" or not np.isfinite(a).all() for a in numbers):
        return "values that are not finite"
    if any(a.dtype.kind != "i" for a in (model.clusters, model.parents, model.labels)):
        return "numbers of clusters that are not whole"
    if not (model.labels.min() >= -1 and model.labels.max() < c):
        return "labels that are not those of its clusters"
    if not (model.clusters.min() >= 0 and model.clusters.max() < c and model.parents[0] == -1):
        return "objects of clusters that it does not have"
    if c > 1 and not ((model.parents[1:] >= 0) & (model.parents[1:] < np.arange(1, c))).all():
        return "clusters that are no tree"
    if (model.diagonal is not None) != is_similarity(model.kind):
        return f"self-similarities that do not go with kind {model.kind}"
    return ""
