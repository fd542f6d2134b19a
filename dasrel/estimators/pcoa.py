"""Principal coordinates in scikit-learn's manner.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
>>> model = PCoA(n_components=1, kind="distance").fit(np.abs(x[:, None] - x))
>>> model.embedding_[:, 0].round(6).tolist()
[-3.0, -2.0, -1.0, 1.0, 5.0]
>>> model.transform([np.abs(5 - x)]).round(6).tolist()
[[2.0]]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from dasrel.estimators.base import PairwiseEstimator
from dasrel.geometry.embedding import embed
from dasrel.geometry.options import EmbedParameters
from dasrel.io.features import sliced_rows, squared_blocks
from dasrel.kernels.products import View
from dasrel.util import Float


@dataclass(eq=False, repr=False, kw_only=True)
class PCoA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PairwiseEstimator):  # type: ignore[misc]
    """Principal coordinates (classical scaling) of a pairwise matrix of any size, and of new objects.

    Parameters
    ----------
    n_components
        Number of axes. Where fewer eigenvalues are positive, there are fewer axes, and a warning.
    correction
        "spread": add a constant to all squared dissimilarities first (Lingoes), so that no eigenvalue is negative.
    tol
        Residual of the axes' eigenvalues, relative to them.
    max_scans
        Limit of scans.

    Attributes
    ----------
    embedding_
        Coordinates of the objects, (n, axes).
    eigenvalues_, shares_
        (axes,) the eigenvalue of each axis, and its share in the sum of all positive ones.
    result_
        The `dasrel.Embedding`, with residuals and the share of negative eigenvalues.
    n_scans_
        How often the matrix was read.

    Cost: that of `dasrel.embed`.
    """

    n_components: int = field(default=EmbedParameters.n_components, kw_only=False)
    correction: Literal["spread"] | None = EmbedParameters.correction
    tol: float = EmbedParameters.tol
    max_scans: int = EmbedParameters.max_scans

    _least = "one object has no axes"

    def _compute(self, source: Any, prepared: Any) -> None:
        self.result_ = embed(
            source, n_components=self.n_components, correction=self.correction, tol=self.tol, max_scans=self.max_scans,
            memory=self.memory, checkpoint=self.checkpoint,
        )  # fmt: skip
        self._ids, self._kind, self._diagonal = source.ids, source.kind, source.diagonal
        self.embedding_ = self.result_.coordinates
        self.eigenvalues_, self.shares_ = self.result_.eigenvalues, self.result_.shares
        self.n_scans_ = self.result_.scans

    def fit_transform(self, X: Any, y: Any = None) -> Float:
        """Fit, and return the coordinates (n, axes) of the objects. Cost: that of `fit`; nothing is read again."""
        return self.fit(X).embedding_

    def transform(self, X: Any) -> Float:
        """Return the coordinates (k, axes) of k new objects by Gower's formula.

        Parameters
        ----------
        X
            Their rows of values to the n objects of `fit`, (k, n), of the same kind: an array, a data frame with named
            columns in any order, or the path of a .npy file or a Zarr array. Similarities of the new objects with
            themselves are not needed.

        Cost: no scan; one read of the rows, 32 MiB at a time.
        """
        values, order = sliced_rows(self._new_rows(X), self._ids)
        count = values.shape[0]
        none = None if self._diagonal is None else np.zeros(count)  # a number added to a row changes nothing
        placed = np.empty((count, self.result_.n_components))
        for span, D in squared_blocks(values, order, View(self._kind), row_self=none, column_self=self._diagonal):
            placed[span] = self.result_.project(D)
        return placed

    @property
    def _n_features_out(self) -> int:
        """Columns of `transform`, for `get_feature_names_out`."""
        return self.result_.n_components
