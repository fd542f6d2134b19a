"""Principal coordinates in scikit-learn's manner.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
>>> found = PCoA(n_components=1, kind="distance").fit(np.abs(x[:, None] - x))
>>> found.embedding_[:, 0].round(6).tolist()
[-3.0, -2.0, -1.0, 1.0, 5.0]
>>> found.transform([np.abs(5 - x)]).round(6).tolist()
[[2.0]]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import InputError
from dasrel.estimators.base import new_rows, opened, set_features
from dasrel.geometry.embedding import embed
from dasrel.io.features import sliced_rows, squared_blocks
from dasrel.kernels.products import View
from dasrel.names import KINDS, is_similarity
from dasrel.util import Float


@dataclass(eq=False, repr=False, kw_only=True)
class PCoA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    __doc__ = f"""Principal coordinates (classical scaling) of a pairwise matrix of any size, and of new objects.

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
    kind
        What the numbers of an array are, one of {", ".join(KINDS)}; stores know theirs.
    memory
        Memory that may be used, such as "2GiB"; half of the machine's by default.
    checkpoint
        A `dasrel.Checkpoint`: the state between scans is saved, and `fit` can resume from it.

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
    n_features_in_
        Number of objects, which is the number of columns that `transform` needs.
    feature_names_in_
        The objects' names, where `fit` was given an array with names, such as a data frame.
    """

    n_components: int = field(default=10, kw_only=False)
    correction: Literal["spread"] | None = None
    tol: float = 1e-3
    max_scans: int = 100
    kind: str | None = None
    memory: int | str | None = None
    checkpoint: Checkpoint | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Compute the axes of a pairwise matrix.

        Parameters
        ----------
        X
            An open `Matrix`, the path or URL of a store, or of the `kind` given a NumPy, Zarr or dask array (n, n), a
            condensed vector, or a data frame with the same names in index and columns.
        y
            Not used.

        Cost: that of `dasrel.embed`.
        """
        source, names = opened(self, X, _check_count)
        self.result_ = embed(
            source, n_components=self.n_components, correction=self.correction, tol=self.tol, max_scans=self.max_scans,
            memory=self.memory, checkpoint=self.checkpoint,
        )  # fmt: skip
        set_features(self, source, names)
        self._ids, self._kind, self._diagonal = source.ids, source.kind, source.diagonal
        self.embedding_ = self.result_.coordinates
        self.eigenvalues_, self.shares_ = self.result_.eigenvalues, self.result_.shares
        self.n_scans_ = self.result_.scans
        return self

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
        values, order = sliced_rows(new_rows(self, X), self._ids)
        count = values.shape[0]
        none = None if self._diagonal is None else np.zeros(count)  # a number added to a row changes nothing
        found = np.empty((count, self.result_.n_components))
        for span, D in squared_blocks(values, order, View(self._kind), row_self=none, column_self=self._diagonal):
            found[span] = self.result_.project(D)
        return found

    @property
    def _n_features_out(self) -> int:
        """Columns of `transform`, for `get_feature_names_out`."""
        return self.result_.n_components

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.positive_only = self.kind is not None and not is_similarity(self.kind)
        return tags


def _check_count(n: int) -> None:
    if n < 2:
        raise InputError(f"n_samples={n}: one object has no axes; give at least 2 objects")
