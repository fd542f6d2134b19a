"""scikit-learn estimators of the c-means family: one class per rule, all with the same parameters.

>>> import numpy as np
>>> D = np.abs(np.subtract.outer([0.0, 1.0, 2.0, 20.0, 21.0, 22.0], [0.0, 1.0, 2.0, 20.0, 21.0, 22.0]))
>>> model = FuzzyCMeans(n_clusters=2, kind="distance", random_state=0).fit(D)
>>> sorted(model.medoids_.tolist())
[1, 4]
>>> model.predict([[1.5, 0.5, 0.5, 18.5, 19.5, 20.5]]) == model.labels_[0]
array([ True])
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state

from dasrel.cmeans.fit import cluster
from dasrel.cmeans.warm_start import numbered_as
from dasrel.engine.checkpoint import watched
from dasrel.errors import DasrelWarning, InputError
from dasrel.estimators.base import PairwiseEstimator
from dasrel.geometry.euclidean import as_euclidean
from dasrel.names import INITS, PARAMETERS
from dasrel.partition.model import Model
from dasrel.partition.result import Partition
from dasrel.partition.run import N_INIT, Run, grid
from dasrel.util import Float
from dasrel.util.option_fields import check_choice
from dasrel.util.text import count_text

_FAMILY = """
    These parameters are the same in all classes of this family.

    Parameters
    ----------
    n_clusters
        Number of clusters, at most the number of objects.
    n_init
        Number of runs with different random initialisations. They share all scans, and the one with the lowest
        objective is kept. From given memberships or a model there is one run.
    init
        Initialisation: "sample", the best of all runs on some of the objects (k-means++), "k-means++" on all objects,
        "random" memberships, "rows" of the matrix, an (n, c) array of memberships, or a model (`Model`, or the path of
        its .npz file), possibly of fewer objects of this matrix, identified by their ids; clusters then keep the
        model's numbers.
    max_iter
        Most iterations of a run. An iteration is one scan for all runs together.
    tol
        A run has converged when the change that `stop` names is below this; None is 1e-6 for the objective, else 1e-5.
    random_state
        An integer gives the same result every time; None or a RandomState as in scikit-learn.
    on_negative
        What to do when a distance to a centre is negative, because the dissimilarities are not Euclidean: "error", or
        "heal" them by the smallest spread that suffices (NERFCM).
    spread
        A number added to all squared dissimilarities off the diagonal, known in advance.
    euclideanize
        Make the matrix Euclidean first: "spread", "ultrametric" (iRFCM), "power", "exponential" or "log", a
        `Euclideanized`, or the path of its file; None leaves it as it is. See `dasrel.euclideanize`.
    accelerate
        Extrapolate (SQUAREM): fewer iterations, other intermediate values; False reproduces the papers step by step.
    stop
        What `tol` is compared with: the relative change of the "objective" over two iterations, the change of the
        "memberships", as in the papers, or of the "weights" of the centres (K14).
    norm
        The p-norm of this change, at least 1; the largest change by default.
    history
        Keep the objective and the largest change of a membership of every iteration in `history_`.
    exact
        Decide automatic parameters on all objects, not on a sample; see `dasrel.Run`.
    race
        Stop runs early that cannot win any more; see `dasrel.Run` for when this is safe.

    Attributes
    ----------
    labels_
        The cluster of largest membership of each object, (n,).
    memberships_
        (n, c).
    objective_
        Of the best run, at these memberships.
    medoids_
        Position of the member nearest to the centre of each cluster, (c,).
    n_iter_
        Iterations of the best run.
    n_scans_
        How often the matrix was read, for all runs together.
    euclideanized_
        The result of `euclideanize`, with gamma and its scans; None without it.
    runs_
        One dict for each run, in order: a table.
    history_
        With `history`, one dict for each iteration of every run: a table. Else an empty list.
    model_
        The centres: `model_.save(path)` saves them, `init=path` continues from them.

    Cost: as many scans as the slowest run has iterations, and some before and after them where a parameter is "auto" or
    init="sample"; see `dasrel.cluster`. `euclideanize` takes scans of its own.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class _CMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, PairwiseEstimator):  # type: ignore[misc]
    """Base class of all rules. The fields are the constructor's parameters, as scikit-learn requires them."""

    n_clusters: int = field(default=8, kw_only=False)
    n_init: int = N_INIT
    init: Any = Run.init
    max_iter: int = Run.max_iter
    tol: float | None = Run.tol
    random_state: Any = None
    on_negative: Literal["error", "heal"] = Run.on_negative
    spread: float = Run.spread
    euclideanize: Any = None
    accelerate: bool = Run.accelerate
    stop: Literal["objective", "memberships", "weights"] = Run.stop
    norm: float = Run.norm
    history: bool = Run.history
    exact: bool = Run.exact
    race: bool = Run.race

    _rule: ClassVar[str]
    _notes: ClassVar[str] = ""
    """What the docstrings of several rules say about them."""

    def __init_subclass__(cls, **more: Any) -> None:
        cls.__doc__ = f"{(cls.__doc__ or '').rstrip()}\n{cls._notes}{_FAMILY}"
        super().__init_subclass__(**more)

    def _prepared(self) -> tuple[list[Run], Any]:
        init, n_init = self._initial()
        of_runs = {f.name for f in fields(Run)} - {"n_clusters", "init", "random_state"}
        given = {name: value for name, value in vars(self).items() if name in of_runs}
        runs = grid(self._rule, self.n_clusters, n_init=n_init, random_state=self._seed(), init=init, **given)
        return runs, init

    def _compute(self, source: Any, prepared: tuple[list[Run], Any]) -> Partition:
        """Cluster, set the attributes, and return the best partition."""
        runs, init = prepared
        kept: dict[str, Any] = {"memory": self.memory, "checkpoint": self.checkpoint}
        with watched(self.checkpoint, "euclideanize", "cluster"):
            changed = as_euclidean(source, self.euclideanize, **kept)
            result = cluster(source if changed is None else changed.relation, runs, **kept)

        best = numbered_as(result.best, init) if isinstance(init, Model) else result.best
        self.labels_ = best.labels
        self.memberships_ = best.memberships
        self.objective_ = best.objective
        self.medoids_ = best.medoids
        self.n_iter_ = best.result.n_iter
        self.n_scans_ = result.scans
        self.euclideanized_ = changed
        self.runs_ = result.table()
        self.history_ = result.history()
        self.model_ = best.model
        return best

    def predict(self, X: Any, *, self_similarity: ArrayLike | None = None) -> NDArray[np.intp]:
        """Return the cluster of largest membership of each new object, (k,); see `predict_memberships`."""
        memberships = self.predict_memberships(X, self_similarity=self_similarity)
        return self.model_.labels(memberships)

    def predict_memberships(self, X: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return the memberships (k, c) of k new objects in the clusters found.

        Parameters
        ----------
        X
            Their rows of values to the n objects of `fit`, (k, n), of the same kind: an array, a data frame, or the
            path of a .npy file or a Zarr array. Columns that have names may be in any order; each object of `fit` must
            have one, and there must be no others.
        self_similarity
            For kinds similarity and kernel: the similarity of each new object with itself, one number or (k,).

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        rows = self._new_rows(X)
        return self.model_.predict_memberships(rows, self_similarity=self_similarity)

    def predict_proba(self, X: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return the memberships (k, c) of k new objects, as `predict_memberships`, by the name scikit-learn uses.

        Those of `PossibilisticCMeans` and `EntropyPossibilisticCMeans` need not have sum 1.
        """
        return self.predict_memberships(X, self_similarity=self_similarity)

    def transform(self, X: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return the distances (k, c) of k new objects to the centres, as `KMeans.transform`; X as in `predict`.

        They are the square roots of `model_.distances(X)`. A negative number there, possible when the dissimilarities
        are not Euclidean, is taken as zero and counted in a warning.

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        rows = self._new_rows(X)
        return _roots(self.model_.distances(rows, self_similarity=self_similarity))

    def fit_transform(self, X: Any, y: Any = None) -> Float:
        """Cluster, and return the distances (n, c) of the objects to the centres.

        As `fit` and then `transform` of the same rows, except that under a spread an object is nearer to centres in
        which it has a weight itself.

        Cost: as `fit`; nothing is read again.
        """
        return _roots(self._fitted(X).distances)

    @property
    def _n_features_out(self) -> int:
        """Columns of `transform`, for `get_feature_names_out`."""
        return self.model_.n_clusters

    def _check_count(self, n_objects: int) -> None:
        if n_objects < max(2, self.n_clusters):
            raise InputError(
                f"n_samples={count_text(n_objects, 'object')} cannot make"
                f" n_clusters={count_text(self.n_clusters, 'cluster')}",
                remedy="give at least 2 objects, and no more clusters than objects",
            )

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)) and not isinstance(self.random_state, bool):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _initial(self) -> tuple[Any, int]:
        """Return `init` for `Run`, and the number of runs: given memberships twice would be the same run twice."""
        init = self.init
        if isinstance(init, str) and init in INITS:
            return init, self.n_init
        if isinstance(init, str) and not init.endswith(".npz"):
            check_choice("init", init, INITS, f"memberships (n, {self.n_clusters}), or a model (its .npz file)")
        if isinstance(init, (str, os.PathLike)):
            return Model.load(init), 1
        return init if isinstance(init, Model) else np.asarray(init), 1


def _roots(squared: Float) -> Float:
    negative = int((squared < 0).sum())
    if negative:
        warnings.warn(
            f"{negative} squared distances to centres are negative and were taken as zero: the dissimilarities are not"
            " Euclidean; train with a spread",
            DasrelWarning, stacklevel=4,
        )  # fmt: skip
    roots: Float = np.sqrt(np.maximum(squared, 0.0))
    return roots


@dataclass(eq=False, repr=False, kw_only=True)
class FuzzyCMeans(_CMeans):
    """Relational fuzzy c-means (fcm1, RFCM): memberships u = 1 / sum_j (d_i / d_j)^(1/(m-1)).

    `fuzzifier` is m, a number above 1: near 1 clusters are hard, far above they coincide. "auto" is the largest of some
    values whose silhouette is within 1 % of the best.
    """

    fuzzifier: float | Literal["auto"] = PARAMETERS["fcm1"]["fuzzifier"]
    _rule = "fcm1"


@dataclass(eq=False, repr=False, kw_only=True)
class EntropyFuzzyCMeans(_CMeans):
    """Fuzzy c-means with an entropy term (fcm2): memberships are the softmax of -d / lambda.

    `entropy_weight` is lambda, a number above 0 on the scale of squared dissimilarities; "auto" is the largest of some
    values whose silhouette is within 1 % of the best.
    """

    entropy_weight: float | Literal["auto"] = PARAMETERS["fcm2"]["entropy_weight"]
    _rule = "fcm2"


@dataclass(eq=False, repr=False, kw_only=True)
class _Possibilistic(_CMeans):
    """Base class of the two possibilistic rules."""

    entropy_weight: float | Literal["auto"] = PARAMETERS["pcm1"]["entropy_weight"]
    eta_scale: float | Literal["auto"] = PARAMETERS["pcm1"]["eta_scale"]
    eta: Literal["mean", "cut", "overall"] = PARAMETERS["pcm1"]["eta"]
    eta_cut: float | None = Run.eta_cut
    eta_refit: bool = PARAMETERS["pcm1"]["eta_refit"]
    _notes = """
    The clusters' widths eta are those of a run of fcm2 with `entropy_weight` from the same `init`, times
    `eta_scale`; "auto" is the largest of some values at which clusters do not coincide. `eta` says how they are
    estimated: as the "mean" of the squared distances weighted by memberships; as their mean over the objects with a
    membership above `eta_cut`, 0.5 by default, with "cut"; or from the "overall" variance. With `eta_refit` they are
    estimated again at every iteration.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class PossibilisticCMeans(_Possibilistic):
    """Possibilistic c-means (pcm1): memberships u = 1 / (1 + (d / eta)^(1/(m-1))), which need not have sum 1.

    `fuzzifier` is m, above 1.
    """

    fuzzifier: float = PARAMETERS["pcm1"]["fuzzifier"]
    _rule = "pcm1"


@dataclass(eq=False, repr=False, kw_only=True)
class EntropyPossibilisticCMeans(_Possibilistic):
    """Possibilistic c-means with an entropy term (pcm2): memberships u = exp(-d / eta), which need not have sum 1."""

    _rule = "pcm2"


@dataclass(eq=False, repr=False, kw_only=True)
class HardCMeans(_CMeans):
    """Hard c-means: every object belongs to its nearest centre. On squared Euclidean distances this is k-means."""

    _rule = "hard"
