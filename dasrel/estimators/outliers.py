"""The scikit-learn estimator of outliers: one possibilistic cluster in kernel space (F10).

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 20.0])
>>> model = OneClusterPCM(width=2.0, contamination=0.1, kind="distance").fit(np.abs(np.subtract.outer(x, x)))
>>> model.labels_
array([ 0,  0,  0,  0,  0, -1])
>>> model.predict([np.abs(2.5 - x), np.abs(-30 - x)])
array([ 1, -1])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OutlierMixin

from dasrel.engine.checkpoint import watched
from dasrel.estimators.base import PairwiseEstimator
from dasrel.geometry.euclidean import as_euclidean
from dasrel.oneclass.fit import prepare_one_class
from dasrel.oneclass.run import OneClassRun, check_reject, rejected_count
from dasrel.oneclass.segments import COMMANDS, SavedSegments, segment_clusters, segments_writer
from dasrel.util import Float, progress


@dataclass(eq=False, repr=False, kw_only=True)
class OneClusterPCM(OutlierMixin, PairwiseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Find outliers, and clusters of any shape, by the typicality of objects in one cluster in kernel space.

    Memberships u = exp(-d / eta), d the squared distance to the centre in the space of a Gaussian kernel (1-PCM of
    Filippone, Masulli and Rovetta 2010).

    Parameters
    ----------
    width
        sigma of the kernel exp(-D / (2 sigma^2)), on the scale of the dissimilarities. "auto" is the one whose kernel
        density predicts each object best from the others; `ladder_` has the results around it. None uses the matrix
        itself as the kernel, which "auto" does for kinds similarity and kernel.
    eta_scale
        gamma: eta is this times the mean of d. Large values give kernel density estimates.
    contamination
        What to reject: a share of the objects, above 0 and at most 0.5, or a whole number of them: exactly that many of
        lowest typicality. "auto" rejects the least typical as far as they stand out from the others, perhaps none.
    clusters
        Whether to look for clusters of the other objects, joined by segments that are above the cut; the matrix must
        be Euclidean.
    tol
        Converged when memberships change by less than this on average.
    max_iter
        Most iterations, one scan each.
    euclideanize
        Make the matrix Euclidean first: see `dasrel.euclideanize`.

    Attributes
    ----------
    typicality_
        Memberships of the objects, (n,), from 0 to 1.
    neighbour_distances_
        Distances of the objects to their `n_neighbours_`-th nearest neighbour, (n,): a score that needs no width.
    labels_
        -1 for outliers; 0 for all others, or their cluster with `clusters`, the largest first.
    offset_
        log alpha, the threshold of `score_samples`: midway between the last rejected object and the first other.
    width_, eta_
        The kernel's width and eta that were used.
    ladder_
        For an automatic width, a dict for each width that was tried.
    segments_
        Which pairs were tested to find clusters; None without `clusters`.
    n_iter_
        Iterations.
    n_scans_
        How often the matrix was read.
    model_
        What predicts new objects: `model_.save(path)` saves it, for `dasrel predict`.

    Cost: one scan for the neighbours, one for an automatic width, and one per iteration, typically 5 to 30; with
    `clusters` at most 22 scans after them and some reads, see `dasrel.oneclass.segments`.
    """

    width: float | Literal["auto"] | None = OneClassRun.width
    eta_scale: float = OneClassRun.eta_scale
    contamination: float | int | Literal["auto"] = "auto"
    clusters: bool = False
    tol: float = OneClassRun.tol
    max_iter: int = OneClassRun.max_iter
    euclideanize: Any = None

    _least = "one object can be compared with no other"

    def _prepared(self) -> OneClassRun:
        check_reject(self.contamination, "contamination")
        return OneClassRun(self.width, self.eta_scale, tol=self.tol, max_iter=self.max_iter)

    def _compute(self, source: Any, prepared: OneClassRun) -> None:
        kept: dict[str, Any] = {"memory": self.memory, "checkpoint": self.checkpoint}
        with progress.watch() as counted, watched(self.checkpoint, *COMMANDS):
            changed = as_euclidean(source, self.euclideanize, **kept)
            fit = prepare_one_class(source if changed is None else changed.relation, prepared, memory=self.memory)
            if self.contamination != "auto":
                rejected_count(self.contamination, fit.relation.n_objects, "contamination")
            result = fit.run(self.checkpoint)
            best = result.best
            cut = best.outliers(self.contamination)
            segments = None
            if self.clusters:
                with segments_writer(self.checkpoint, result.relation, [prepared], self.contamination) as keeper:
                    segments = segment_clusters(
                        result.relation, best, cut, check=changed is None, memory=self.memory,
                        saved=SavedSegments(keeper, "segments"),
                    )  # fmt: skip

        self.typicality_ = best.typicality
        self.labels_ = np.where(cut.rejected, -1, 0) if segments is None else segments.labels
        self.neighbour_distances_ = best.neighbour_distances
        self.n_neighbours_ = best.n_neighbours
        self.offset_ = cut.threshold
        self.width_, self.eta_ = best.run.width, best.eta
        self.ladder_ = [typicality.row() for typicality in result.ladders[0]]
        self.segments_ = segments
        self.n_iter_ = best.n_iter
        self.n_scans_ = counted.scans
        self.euclideanized_ = changed
        self.model_ = best.model(result.relation, cut.threshold)

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.intp]:
        """Fit, and return 1 for inliers and -1 for outliers, (n,). Cost: that of `fit`."""
        self.fit(X)
        return np.where(self.labels_ < 0, -1, 1)

    def score_samples(self, X: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return the log typicality (k,) of new objects, at most 0: the higher, the more typical (F10 28).

        Parameters
        ----------
        X
            Their rows of values to the n objects of `fit`, (k, n), of the same kind: an array, a data frame with named
            columns in any order, or the path of a .npy file or a Zarr array.
        self_similarity
            For kinds similarity and kernel: the similarity of each new object with itself, one number or (k,).

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        rows = self._new_rows(X)
        return self.model_.score_samples(rows, self_similarity=self_similarity)

    def decision_function(self, X: Any, *, self_similarity: ArrayLike | None = None) -> Float:
        """Return `score_samples` minus `offset_`, (k,): negative for outliers."""
        shifted: Float = self.score_samples(X, self_similarity=self_similarity) - self.offset_
        return shifted

    def predict(self, X: Any, *, self_similarity: ArrayLike | None = None) -> NDArray[np.intp]:
        """Return 1 for inliers and -1 for outliers among new objects, (k,); see `score_samples`."""
        return np.where(self.decision_function(X, self_similarity=self_similarity) < 0, -1, 1)
