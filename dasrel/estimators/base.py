"""What estimators are given: matrices in all forms, checked as scikit-learn wants it, and rows of new objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dasrel.errors import InputError
from dasrel.kernels.condensed import square_side
from dasrel.names import explain_kinds, is_similarity
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from dasrel.store.matrix import Matrix
from dasrel.util import Names
from dasrel.util.labelled import labelled


def opened(estimator: Any, X: Any, check_count: Callable[[int], None]) -> tuple[Matrix | ArrayMatrix, Names | None]:
    """Return the matrix that an estimator with a `kind` is given, and the names that an array has.

    Arrays in memory are checked by scikit-learn's own functions, and `check_count` with their number of objects, before
    anything is read.

    Cost: an array is read once; values are not copied.
    """
    if estimator.kind is None and not _knows_its_kind(X):
        raise InputError(
            "an array does not tell its kind", remedy=f"say what its numbers are, {{kind=KIND}}: {explain_kinds()}"
        )
    named = labelled(X)
    names = None if named is None else named.ids()
    X = X if named is None else named.values
    if _is_plain(X):
        X = _checked(estimator, X, check_count)
    return as_matrix(X, kind=estimator.kind, ids=names), names


def set_features(estimator: Any, source: Matrix | ArrayMatrix, names: Names | None) -> None:
    """Set `n_features_in_` and, where an array had names, `feature_names_in_`."""
    estimator.n_features_in_ = source.n_objects
    vars(estimator).pop("feature_names_in_", None)  # of an earlier fit
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)


def new_rows(estimator: Any, X: Any) -> Any:
    """Return rows of new objects for the model; arrays without names are checked by scikit-learn's own functions."""
    check_is_fitted(estimator)
    named = labelled(X)
    if named is None:
        return validate_data(estimator, X, reset=False) if _is_plain(X) else X
    return X if named.columns is not None else validate_data(estimator, named.values, reset=False)


def _checked(estimator: Any, X: Any, check_count: Callable[[int], None]) -> Any:
    if isinstance(X, np.ndarray) and X.ndim == 1:
        check_count(square_side(X.shape, "the vector"))
        return check_array(X, ensure_2d=False, estimator=estimator)
    kind, X = estimator.kind, validate_data(estimator, X)
    check_count(len(X))
    if kind is not None and not is_similarity(kind) and X.min() < 0:
        row, column = (int(k) for k in np.unravel_index(X.argmin(), X.shape))
        raise InputError(
            f"Negative values in data of kind {kind}: {X[row, column]:g} in row {row}, column {column}"
            f" ({int((X < 0).sum())} such); dissimilarities are at least 0"
        )
    return X


def _knows_its_kind(X: Any) -> bool:
    return isinstance(X, (str, os.PathLike, Matrix, ArrayMatrix))


def _is_plain(X: Any) -> bool:
    """Return whether this is an array in memory: not a matrix, a path, or a chunked array, which is not copied."""
    return not (_knows_its_kind(X) or hasattr(X, "chunks"))
