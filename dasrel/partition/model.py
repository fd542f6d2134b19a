"""The model of one run: its centres, to predict new objects and for warm starts. A small .npz file, no pickle.

A centre is a set of weights of the n training objects, so a model is c rows of n numbers, the half quadratic terms
v_i'D v_i / 2, and the rule with its parameters. It holds no part of the matrix.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.kernels.products import Parameter, View
from dasrel.names import KINDS, is_similarity
from dasrel.partition import rules
from dasrel.partition.rules import Rule
from dasrel.util import Array, Float, PathLike
from dasrel.util.archives import ArchiveFormat, array_json, json_array, load_archive, load_array, save_archive
from dasrel.util.text import count_text, shown, some

MODEL_VERSION = 1
FORMAT = ArchiveFormat("model", "model_version", MODEL_VERSION, ("V", "half", "eta", "diagonal", "ids"))


@dataclass(frozen=True, eq=False)
class Model:
    """The final centres of a run."""

    rule: str
    V: Float
    """Weights of the training objects, (c, n); each row has sum 1."""
    half: Float
    """v_i'D v_i / 2 of each centre, (c,), of the relation without the spread."""
    kind: str
    """Kind of the training matrix; rows of new objects must be of the same kind."""
    ids: Array
    """Ids of the n training objects, in the order of the columns of new rows."""
    beta: float = 0.0
    """Spread: the given one, and what healing added."""
    fuzzifier: float | None = None
    entropy_weight: float | None = None
    eta: Float | None = None
    """Spreads of the clusters, (c,), of pcm1 and pcm2."""
    steps: tuple[tuple[str, Parameter], ...] = ()
    """Views applied to the matrix after that of its kind, as (step, parameter)."""
    diagonal: Float | None = None
    """Self-similarities of the training objects, (n,), for kinds similarity and kernel."""
    has_terms: bool = False
    """Whether the relation has a term that is no view of the matrix; new objects cannot be predicted then."""
    threshold: float | None = None
    """For outliers: objects whose `score_samples` is below it are rejected. None for the models of clusterings."""
    modes: tuple[int, ...] | None = None
    """For each cluster of pcm1 and pcm2 the first cluster that coincides with it, perhaps by way of others: pcm1 and
    pcm2 seek modes, dense regions, and several clusters may end in one (L7). Labels are those of modes."""

    def __repr__(self) -> str:
        clusters, objects = count_text(self.n_clusters, "cluster"), count_text(self.n_objects, "object")
        return f"<Model: {self.rule}, {clusters} of {objects}, kind {self.kind}>"

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.V.shape[0])

    @property
    def n_objects(self) -> int:
        """Number of training objects."""
        return int(self.V.shape[1])

    def grown(self, ids: Array, diagonal: Array | None = None) -> Model:
        """Return the same centres for a matrix with this model's objects, identified by their ids, and perhaps more.

        A new object has weight zero in every centre, so that the centres do not change, and nothing is read. Raises if
        the matrix lacks objects of the model.

        Parameters
        ----------
        ids, diagonal
            Ids of that matrix and, for kinds similarity and kernel, its self-similarities.

        Cost: no scan; c rows of n numbers.
        """
        names = [str(name) for name in ids]
        mine = [str(name) for name in self.ids]
        if names == mine:
            return self
        at = {name: k for k, name in enumerate(names)}
        absent = [shown(name) for name in mine if name not in at]
        if absent:
            raise InputError(
                f"the model was made from other objects: {len(absent)} of its {self.n_objects} not among the"
                f" {len(names)} of the matrix: {some(absent)}"
            )
        V = np.zeros((self.n_clusters, len(names)))
        V[:, [at[name] for name in mine]] = self.V
        own = None if self.diagonal is None or diagonal is None else np.asarray(diagonal, dtype=np.float64)
        return replace(self, V=V, ids=np.array(names, dtype=object), diagonal=own)

    def predict(self, rows: Any, *, self_similarity: ArrayLike | None = None) -> NDArray[np.intp]:
        """Return the cluster of largest membership of each new object; see `predict_memberships`."""
        return self.labels(self.predict_memberships(rows, self_similarity=self_similarity))

    def labels(self, memberships: Float) -> NDArray[np.intp]:
        """Return the cluster of largest membership for memberships (k, c); see `modes`."""
        return mode_labels(memberships, self.modes)

    def predict_memberships(self, rows: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return memberships (k, c) of k new objects, from their rows of dissimilarities to the n training objects.

        d(x, v_i) = D* v_i - v_i'D v_i / 2, and beta/2 (1 + ||v_i||^2) more under a spread: a new object is none of the
        training objects. A distance below zero, possible when the matrix is not Euclidean, is set to zero and
        counted in a warning.

        Parameters
        ----------
        rows
            (k, n) numbers of the kind of the training matrix: a NumPy or Zarr array, a data frame, or a path: .npy,
            .npz, CSV, TSV, Parquet or a Zarr array. Columns that have names must have those of the training objects,
            in any order; without names they are in the order of `ids`.
        self_similarity
            For kinds similarity and kernel only: the similarity of each new object with itself, one number or (k,).
            It is needed because D*_j = s** + s_jj - 2 s*_j.

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        from dasrel.io.features import row_step

        d = self._new_distances(rows, self_similarity)
        memberships: Float = np.empty_like(d)
        rule = self.formula()
        step = row_step(self.n_objects)
        for at in range(0, len(d), step):
            memberships[at : at + step] = rules.memberships(rule, np.ascontiguousarray(d[at : at + step].T)[None])[0].T
        return memberships

    def score_samples(self, rows: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return the log typicality (k,) of k new objects in the one cluster of an outlier model (F10 28).

        Parameters
        ----------
        rows, self_similarity
            As for `predict_memberships`.

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        if self.rule != "pcm2" or self.n_clusters != 1 or self.eta is None:
            raise InputError("this is the model of a clustering: typicalities need one of `dasrel outliers`")
        d = self._new_distances(rows, self_similarity)[:, 0]
        scores: Float = -d / self.eta[0] if self.eta[0] > 0 else np.where(d > 0, -np.inf, 0.0)
        return scores

    def distances(self, rows: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return the squared dissimilarities (k, c) of k new objects to the centres; rows as in `predict_memberships`.

        They are negative where the dissimilarities are not Euclidean.

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        from dasrel.io.features import squared_blocks  # the command line starts quickly without it

        values, order = self._rows(rows)
        own = checked_self_similarity(self.kind, self_similarity, values.shape[0])
        result = np.empty((values.shape[0], self.n_clusters))
        norms = np.einsum("in,in->i", self.V, self.V)
        blocks = squared_blocks(values, order, View(self.kind, self.steps), row_self=own, column_self=self.diagonal)
        for span, seen in blocks:
            Y = np.ascontiguousarray((seen @ self.V.T).T)[None]
            d = rules.new_distances(Y, self.half[None], norms[None], beta=self.beta)
            if not np.isfinite(d).all():
                raise InputError(
                    "distances of the new objects to the centres exceed what numbers can hold",
                    remedy="rescale the matrix and train again",
                )
            result[span] = d[0].T
        return result

    def _new_distances(self, rows: Any, self_similarity: ArrayLike | None) -> Float:
        """Return the squared distances (k, c) of new objects to the centres, not below 0 where the rule forbids it."""
        d = self.distances(rows, self_similarity=self_similarity)
        negative = 0 if self.rule in ("hard", "fcm2") else int((d < 0).sum())
        if negative:
            np.maximum(d, 0.0, out=d)
            warnings.warn(
                f"{negative} distances of new objects to centres are negative and were taken as zero:"
                " the dissimilarities are not Euclidean; train with a spread",
                DasrelWarning, stacklevel=3,
            )  # fmt: skip
        return d

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a .npz file, atomically."""
        about = {
            "rule": self.rule,
            "kind": self.kind,
            "beta": self.beta,
            "fuzzifier": self.fuzzifier,
            "entropy_weight": self.entropy_weight,
            "steps": [list(step) for step in self.steps],
            "has_terms": self.has_terms,
            "threshold": self.threshold,
            "modes": None if self.modes is None else list(self.modes),
        }
        none = np.empty(0)
        arrays = {
            "V": self.V,
            "half": self.half,
            "eta": none if self.eta is None else self.eta,
            "diagonal": none if self.diagonal is None else self.diagonal,
            "ids": json_array([str(name) for name in self.ids]),
        }
        save_archive(path, FORMAT, arrays, about)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Model:
        """Read a model that `save` wrote. Nothing is unpickled; a file that is not complete is refused."""
        parts, about = load_archive(path, FORMAT)
        try:
            ids = array_json(parts["ids"])
            model = Model(
                rule=about["rule"],
                V=np.require(parts["V"], np.float64, ["C"]),
                half=np.asarray(parts["half"], dtype=np.float64),
                kind=about["kind"],
                ids=np.array([str(name) for name in ids], dtype=object),
                beta=float(about["beta"]),
                fuzzifier=_optional(about["fuzzifier"]),
                entropy_weight=_optional(about["entropy_weight"]),
                eta=parts["eta"] if parts["eta"].size else None,
                steps=tuple((str(step), _numbers(value)) for step, value in about["steps"]),
                diagonal=parts["diagonal"] if parts["diagonal"].size else None,
                has_terms=bool(about["has_terms"]),
                threshold=_optional(about["threshold"]),
                modes=_modes(about["modes"]),
            )
            model._check_complete()
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise StoreError(f"{shown(path, limit=200)} is a damaged model: {shown(error, limit=200)}") from None
        return model

    def _check_complete(self) -> None:
        self.formula()
        if self.V.ndim != 2 or self.half.shape != (self.n_clusters,) or len(self.ids) != self.n_objects:
            raise ValueError(
                f"shapes {self.V.shape}, {self.half.shape} and {count_text(len(self.ids), 'id')} do not belong together"
            )
        if not (np.isfinite(self.V).all() and np.isfinite(self.half).all() and np.isfinite(self.beta)):
            raise ValueError("values that are not finite")
        if not np.allclose(self.V.sum(axis=1), 1.0, rtol=0.0, atol=1e-3):
            raise ValueError("weights of a centre that do not add up to 1")
        if self.kind not in KINDS:
            raise ValueError(f"no kind {shown(self.kind)}")
        if self.eta is not None and self.eta.shape != (self.n_clusters,):
            raise ValueError(f"spreads of shape {self.eta.shape} for {count_text(self.n_clusters, 'cluster')}")
        if self.diagonal is not None and self.diagonal.shape != (self.n_objects,):
            raise ValueError(f"self-similarities of shape {self.diagonal.shape}")
        if self.modes is not None and (
            len(self.modes) != self.n_clusters or any(not 0 <= at <= k for k, at in enumerate(self.modes))
        ):
            raise ValueError(f"modes {shown(self.modes)} of {count_text(self.n_clusters, 'cluster')}")
        view = View(self.kind)
        for step, parameter in self.steps:
            view = view.then(step, parameter)
        if (self.diagonal is not None) != (is_similarity(self.kind)):
            raise ValueError(f"self-similarities do not go with kind {self.kind}")

    def formula(self) -> Rule:
        """Return the rule with its parameters."""
        given = {"m": self.fuzzifier, "lam": self.entropy_weight, "eta": self.eta}
        return Rule(self.rule, **{key: value for key, value in given.items() if value is not None})

    def _rows(self, rows: Any) -> tuple[Any, Array | None]:
        """Return new rows as an array that can be sliced, and the column of each object; None if they are in order."""
        from dasrel.io.features import sliced_rows

        if self.has_terms:
            raise InputError(
                "this model is of a relation with an added term (such as an ultrametric), which new"
                " objects have no values for",
                remedy="train on the matrix itself, or with a spread",
            )
        return sliced_rows(rows, self.ids)


def checked_self_similarity(kind: str, self_similarity: ArrayLike | None, count: int) -> Float | None:
    """Return the similarity of each new object with itself, (count,); None for a model of a kind that has none."""
    if not is_similarity(kind):
        if self_similarity is not None:
            raise InputError(
                f"self_similarity is for similarities and kernels, and this model is of kind {kind}",
                remedy="leave out {self_similarity}",
            )
        return None
    if self_similarity is None:
        raise InputError(
            f"this model is of kind {kind}, and the similarity of each new object with itself is not given",
            remedy="say {self_similarity=NUMBER} if all have the same, such as 1 for a Gaussian kernel",
        )
    own = np.asarray(self_similarity, dtype=np.float64)
    if own.shape not in ((), (count,)) or not np.isfinite(own).all():
        raise InputError(f"self_similarity has shape {own.shape}", remedy=f"give one finite number, or {count} of them")
    return np.array(np.broadcast_to(own, (count,)))


def load_model(path: PathLike) -> Model:
    """Read a model from its file, or from the result folder that holds it."""
    return Model.load(model_path(path))


def model_path(path: PathLike) -> Path:
    """Return the file of a model, given it or the result folder that holds it."""
    folder = Path(path)
    if folder.is_dir() and not (folder / "model.npz").is_file():
        settings = sorted(file.parent.name for file in folder.glob("*/model.npz"))  # "best" comes first
        remedy = f"choose one of its settings, such as {shown(folder / settings[0], limit=200)}" if settings else None
        raise StoreError(f"no model in {shown(folder, limit=200)}", remedy=remedy)
    return folder / "model.npz" if folder.is_dir() else folder


def load_memberships(folder: PathLike) -> Float:
    """Read the memberships of a result, (n, c). `FileNotFoundError` if the folder has none."""
    path = Path(folder) / "memberships.npy"
    memberships = load_array(path)
    if (
        memberships.ndim != 2
        or memberships.dtype.kind != "f"
        or not memberships.shape[1]
        or not np.isfinite(memberships).all()
    ):
        raise StoreError(
            f"{shown(path, limit=200)} is damaged: memberships are finite numbers, objects by"
            f" clusters, not {memberships.dtype} of shape {memberships.shape}",
            remedy="make the result again",
        )
    return np.asarray(memberships, dtype=np.float64)


def mode_labels(memberships: Array, modes: tuple[int, ...] | None) -> NDArray[np.intp]:
    """Return the cluster of largest membership of each object, for memberships (n, c); of a mode its first cluster.

    >>> mode_labels(np.array([[0.1, 0.7, 0.8], [0.9, 0.2, 0.1]]), (0, 1, 1))
    array([1, 0])
    """
    largest: NDArray[np.intp] = memberships.argmax(axis=1)
    return largest if modes is None else np.array(modes, dtype=np.intp)[largest]


def _modes(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(at) for at in value)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _numbers(value: Any) -> Parameter:
    """Return the parameter of a step from JSON: one number, or several."""
    return tuple(float(a) for a in value) if isinstance(value, list) else float(value)
