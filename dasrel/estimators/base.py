"""What all estimators have in common: how a pairwise matrix is given, its kind, memory, names, and new objects."""

# Annotations are objects here, not text: subclasses in other modules have these fields as well.

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dasrel.engine.checkpoint import Checkpoint
from dasrel.errors import InputError
from dasrel.kernels.condensed import square_side
from dasrel.names import KINDS, explain_kinds, is_similarity
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from dasrel.store.matrix import Matrix
from dasrel.util import Names
from dasrel.util.labelled import labelled
from dasrel.util.text import count_text

_PARAMETERS = f"""kind
        What the numbers of an array are, one of {", ".join(KINDS)}; stores know theirs.
    memory
        Memory that may be used, such as "2GiB"; half of the machine's by default.
    checkpoint
        A `dasrel.Checkpoint`: the state between scans is saved, and `fit` can resume from it.
"""
_ATTRIBUTES = """n_features_in_
        Number of objects, which is the number of columns that new rows need.
    feature_names_in_
        The objects' names, an array of n strings, where `fit` was given an array with names, such as a data frame.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class PairwiseEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator that is fitted to a pairwise matrix. Fields are parameters of the constructor."""

    kind: str | None = None
    memory: int | str | None = None
    checkpoint: Checkpoint | None = None

    _least: ClassVar[str]
    """Why one object is too few."""

    def __init_subclass__(cls, **more: Any) -> None:
        """Describe the parameters and attributes that all estimators have."""
        super().__init_subclass__(**more)
        head = "\n    Attributes\n    ----------\n"
        cls.__doc__ = (cls.__doc__ or "").replace(head, f"    {_PARAMETERS}{head}    {_ATTRIBUTES}", 1)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Compute the attributes for a pairwise matrix.

        Parameters
        ----------
        X
            An open `Matrix`, the path or URL of a store, or of the `kind` given: a NumPy, Zarr or dask array (n, n), a
            condensed vector, a data frame with the same names in index and columns, an xarray array, or a
            DistanceMatrix of scikit-bio.
        y
            Not used.

        Cost: that of the class; an array is read once before, to check it.
        """
        self._fitted(X)
        return self

    def _fitted(self, X: Any) -> Any:
        """Set all attributes, and return what `_compute` returns."""
        prepared = self._prepared()
        source, names = self._opened(X)
        result = self._compute(source, prepared)
        self.n_features_in_ = source.n_objects
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return result

    def _prepared(self) -> Any:
        """Check the parameters before anything is read; return what `_compute` needs of them."""

    def _compute(self, source: Matrix | ArrayMatrix, prepared: Any) -> Any:
        """Set the attributes of the result."""
        raise NotImplementedError

    def _check_count(self, n_objects: int) -> None:
        """Raise if there are too few objects; called before anything is read."""
        if n_objects < 2:
            objects = count_text(n_objects, "object")
            raise InputError(f"n_samples={objects}: {self._least}", remedy="give at least 2 objects")

    def _opened(self, X: Any) -> tuple[Matrix | ArrayMatrix, Names | None]:
        """Return the matrix that is given, and the names that an array has.

        Arrays in memory are checked by scikit-learn's own functions. Cost: an array is read once, and not copied.
        """
        kind = self.kind if _knows_its_kind(X) else self._array_kind
        if kind is None and not _knows_its_kind(X):
            raise InputError(
                "an array does not tell its kind", remedy=f"say what its numbers are, {{kind=KIND}}: {explain_kinds()}"
            )
        named = labelled(X)
        names = None if named is None else named.ids()
        X = X if named is None else named.values
        return as_matrix(self._checked(X) if _is_plain(X) else X, kind=kind, ids=names), names

    def _checked(self, X: Any) -> Any:
        if isinstance(X, np.ndarray) and X.ndim == 1:
            self._check_count(square_side(X.shape, "the vector"))
            return check_array(X, ensure_2d=False, estimator=self)
        X = validate_data(self, X)
        self._check_count(len(X))
        if self._is_positive and X.min() < 0:
            row, column = (int(k) for k in np.unravel_index(X.argmin(), X.shape))
            raise InputError(
                f"Negative values in data of kind {self._array_kind}: {X[row, column]:g} in row {row}, column {column}"
                f" ({int((X < 0).sum())} such); dissimilarities are at least 0"
            )
        return X

    @property
    def _array_kind(self) -> str | None:
        """The kind of an array."""
        return self.kind

    @property
    def _is_positive(self) -> bool:
        return self._array_kind is not None and not is_similarity(self._array_kind)

    def _new_rows(self, X: Any) -> Any:
        """Return rows of new objects; arrays without names are checked by scikit-learn's own functions."""
        check_is_fitted(self)
        named = labelled(X)
        if named is None:
            return validate_data(self, X, reset=False) if _is_plain(X) else X
        return X if named.columns is not None else validate_data(self, named.values, reset=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.positive_only = self._is_positive
        return tags


def _knows_its_kind(X: Any) -> bool:
    return isinstance(X, (str, os.PathLike, Matrix, ArrayMatrix))


def _is_plain(X: Any) -> bool:
    """Return whether this is an array in memory: not a matrix, a path, or a chunked array, which is not copied."""
    return not (_knows_its_kind(X) or hasattr(X, "chunks"))
