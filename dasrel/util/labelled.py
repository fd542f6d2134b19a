"""Arrays with names: data frames, xarray arrays and scikit-bio's matrices, known by what they offer.

None of these packages is imported. Attributes are looked up at the class: a column of a data frame may have any name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dasrel.errors import InputError
from dasrel.util import Array, Names
from dasrel.util.text import count_text, shown, some

ID_HEADERS = (
    "", "id", "ids", "name", "names", "sampleid", "sample id", "sample-id", "sample_id", "sample_name", "featureid",
    "feature id", "feature-id", "#sampleid", "#sample id", "#otuid", "#otu id",
)  # fmt: skip
"""Headers, in small letters, of a first column of names: those of pandas, of R, and of QIIME 2's metadata."""


@dataclass(frozen=True)
class Labelled:
    """Values, and the names of their rows and columns where there are any."""

    values: Any
    """An array of one or two dimensions that can be sliced."""
    rows: list[str] | None
    columns: list[str] | None
    what: str
    """Such as "the data frame", for messages."""

    def ids(self) -> list[str] | None:
        """Return the names of the objects of a square array; raise if rows and columns have different ones.

        Where only rows or only columns have names, those are the objects'.
        """
        rows, columns = self.rows, self.columns
        if rows is None or columns is None or len(rows) != len(columns):
            return columns if rows is None else rows
        wrong = [k for k, (row, column) in enumerate(zip(rows, columns, strict=True)) if row != column]
        if not wrong:
            return rows
        k = wrong[0]
        first = f"row {k} is {shown(rows[k])!r} and column {k} {shown(columns[k])!r} ({len(wrong)} such)"
        if Counter(rows) == Counter(columns):
            raise InputError(
                f"rows and columns of {self.what} are the same objects in different orders: {first}",
                remedy="put the rows into the order of the columns, as in df.loc[df.columns]",
            )
        raise InputError(
            f"rows and columns of {self.what} have different names: {first}",
            remedy="give the same names: both are the same objects in the same order",
        )


def labelled(source: Any) -> Labelled | None:
    """Return the values and names of a data frame, a series, an xarray array or a scikit-bio matrix; else None.

    Names are made text. An index that only counts from 0 holds no names.

    Cost: none for values that are numbers of one type; others are copied.
    """
    kind = type(source)
    if hasattr(kind, "to_numpy") and hasattr(kind, "columns"):
        rows = names_of(source.index, "the data frame", "row") if hasattr(kind, "index") else None
        columns = names_of(source.columns, "the data frame", "column")
        return Labelled(_frame_values(source), rows, columns, "the data frame")
    if hasattr(kind, "to_numpy") and hasattr(kind, "index") and hasattr(kind, "dtype"):
        if getattr(source.index, "nlevels", 1) > 1:
            raise InputError("the series has the names of pairs", remedy="make a square of it, as by series.unstack()")
        return Labelled(source.to_numpy(), None, None, "the series")
    if hasattr(kind, "coords") and hasattr(kind, "dims"):
        rows, columns = (_coordinates(source, k) if len(source.dims) == 2 else None for k in (0, 1))
        held = source.data
        values = held if hasattr(held, "dask") or isinstance(held, np.ndarray) else source
        return Labelled(values, rows, columns, "the xarray array")
    if hasattr(kind, "data") and not callable(getattr(kind, "ids", len)):  # a masked array of NumPy has a method ids
        values, ids = source.data, [str(name) for name in source.ids]
        if values.ndim == 1 and np.any(getattr(source, "diagonal", 0)):
            values = source.redundant_form()  # a condensed vector has no diagonal
        return Labelled(values, ids, ids, f"the {kind.__name__}")
    return None


def in_standard_order(values: ArrayLike) -> Array:
    """Return an array in rows and in this machine's byte order: the last bits of sums and products depend on both."""
    array = np.asarray(values)
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])


def names_of(index: Any, what: str, part: str) -> list[str] | None:
    """Return the names of an index of pandas, or of a list; None for one that only counts from 0."""
    if type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1:
        return None
    for k, name in enumerate(index):
        if name is None or (isinstance(name, float) and np.isnan(name)) or type(name).__name__ in ("NaTType", "NAType"):
            raise InputError(f"{part} {k} of {what} has no name", remedy="give every object one")
    return [str(name) for name in index]


def row_names(source: Any) -> list[str] | None:
    """Return the names in the index of a series or a data frame; None for anything else, or where it only counts."""
    kind = type(source)
    if not (hasattr(kind, "to_numpy") and hasattr(kind, "index")):
        return None
    return names_of(source.index, "the index", "entry")


def column_order(
    columns: Sequence[str], objects: Sequence[str], where: str, whose: str, part: str = "column"
) -> Array | None:
    """Return the column of each object, where columns are named in any order; None if they are in order.

    Raises unless every object has one column, and every column an object. `whose` objects, such as "the model".
    """
    if list(columns) == list(objects):
        return None
    at = {name: k for k, name in enumerate(columns)}
    if len(at) < len(columns):
        twice = [shown(name) for name, count in Counter(columns).items() if count > 1]
        raise InputError(
            f"{where}: names of {part}s are not unique: {some(twice)}", remedy="rename or drop the repeats"
        )
    known = set(objects)
    absent = [shown(name) for name in objects if name not in at]
    strange = [shown(name) for name in columns if name not in known]
    if absent or strange:
        parts = [f"{count_text(len(absent), 'object has', 'objects have')} no {part}: {some(absent)}"] if absent else []
        parts += [f"{part}s of no object: {some(strange)}"] if strange else []
        remedy = f"{part}s are named as the objects of {whose}, in any order"
        raise InputError(f"{where}: {'; '.join(parts)}", remedy=remedy)
    return np.array([at[name] for name in objects], dtype=np.intp)


def check_not_reordered(given: Sequence[str] | None, own: Names | None, where: str) -> None:
    """Raise if names that a user gives are a source's own in another order: its values would be those of others."""
    if given is None or own is None or len(given) != len(own):
        return
    k = next((k for k, (name, other) in enumerate(zip(given, own, strict=True)) if str(name) != str(other)), None)
    if k is not None and sorted(map(str, given)) == sorted(map(str, own)):
        raise InputError(
            f"{where} names its objects itself, and the given ids are the same in another order: object {k} is"
            f" {shown(own[k])} in it, and {shown(given[k])} by the ids",
            remedy="leave {ids} out",
        )


def _frame_values(frame: Any) -> Any:
    """Return the values of a data frame; raise if a column holds no numbers."""
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        if getattr(dtype, "kind", "f") not in "fiubc":
            raise InputError(
                f"column {shown(name)!r} of the data frame holds values of type {shown(dtype)}",
                remedy="give numbers; df.set_index(NAME) makes a column of names the index",
            )
    values = frame.to_numpy()
    if values.dtype == object:  # numbers of pandas' own types, with missing ones
        values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def _coordinates(array: Any, axis: int) -> list[str] | None:
    name = array.dims[axis]
    return [str(coordinate) for coordinate in array.coords[name].values] if name in array.coords else None
