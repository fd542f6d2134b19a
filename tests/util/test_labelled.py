"""Names of data frames, xarray arrays and scikit-bio's matrices."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

from dasrel.errors import InputError
from dasrel.util.labelled import column_order, labelled

D = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]])
NAMES = ["oak", "elm", "fir"]


class DistanceMatrix:
    """As scikit-bio's: `ids` and `data`, which is condensed on request; `diagonal` is then 0."""

    def __init__(self, data: Any, ids: Any, diagonal: Any = 0.0) -> None:
        self._data, self._ids, self.diagonal = data, tuple(ids), diagonal

    @property
    def data(self) -> Any:
        return self._data

    @property
    def ids(self) -> Any:
        return self._ids

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._ids), len(self._ids)

    def redundant_form(self) -> Any:
        return np.full((3, 3), 7.0)


def ids(source: Any) -> list[str] | None:
    found = labelled(source)
    assert found is not None
    return found.ids()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (pd.DataFrame(D, NAMES, NAMES), NAMES),
        (pd.DataFrame(D, index=NAMES), NAMES),
        (pd.DataFrame(D, columns=NAMES), NAMES),
        (pd.DataFrame(D), None),
        (pd.DataFrame(D, [7, 8, 9], ["7", "8", "9"]), ["7", "8", "9"]),
        (pd.DataFrame(np.zeros((5, 5))).iloc[2:4, 2:4], ["2", "3"]),
        (pd.DataFrame(D, ["ids", "kind", "dtype"], ["ids", "kind", "dtype"]), ["ids", "kind", "dtype"]),
        (xarray.DataArray(D, dims=("a", "b"), coords={"a": NAMES}), NAMES),
        (xarray.DataArray(D, dims=("a", "b"), coords={"a": NAMES, "b": NAMES}), NAMES),
        (xarray.DataArray(D, dims=("a", "b")), None),
        (DistanceMatrix(D, NAMES), NAMES),
    ],
)
def test_names_of_objects(source: Any, expected: list[str] | None) -> None:
    assert ids(source) == expected


@pytest.mark.parametrize("source", [D, D.tolist(), "d.csv", None, np.ma.array(D), memoryview(b"abc")])
def test_other_things_have_no_names(source: Any) -> None:
    assert labelled(source) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            pd.DataFrame(D, NAMES, ["oak", "fir", "elm"]),
            r"rows and columns of the data frame are the same objects in different orders: row 1 is 'elm' and column 1"
            r" 'fir' \(2 such\); put the rows into the order of the columns, as in df.loc\[df.columns\]",
        ),
        (
            pd.DataFrame(D, NAMES, ["oak", "elm", "ash"]),
            r"rows and columns of the data frame have different names: row 2 is 'fir' and column 2 'ash' \(1 such\)",
        ),
        (
            xarray.DataArray(D, dims=("a", "b"), coords={"a": NAMES, "b": list("xyz")}),
            "rows and columns of the xarray array have different names: row 0 is 'oak' and column 0 'x'",
        ),
        (pd.DataFrame(D, ["oak", None, "fir"], ["oak", None, "fir"]), "row 1 of the data frame has no name"),
        (pd.DataFrame(D, [1.0, np.nan, 2.0]), "row 1 of the data frame has no name"),
        (pd.DataFrame(D, columns=pd.to_datetime(["2024-01-01", None, "2024-01-03"])), "column 1 of .* has no name"),
        (
            pd.DataFrame({"id": NAMES, "a": D[0]}),
            r"column 'id' of the data frame holds values of type \w+; give numbers; df.set_index\(NAME\) makes a"
            r" column of names the index",
        ),
        (
            pd.DataFrame(D, NAMES, NAMES).stack(),
            r"the series has the names of pairs; make a square of it, as by series.unstack\(\)",
        ),
        (pd.DataFrame(D, list("a\x1bb"), list("a\x1b_")), r"row 2 is 'b' and column 2 '_'"),
    ],
)
def test_one_line_says_what_is_wrong(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        ids(source)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_values_of_one_type_are_not_copied() -> None:
    found = labelled(pd.DataFrame(D, NAMES, NAMES, copy=False))
    assert found is not None
    assert np.shares_memory(found.values, D)


def test_missing_numbers_of_pandas_own_types_become_nan() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [0.5, 1.5]})
    found = labelled(frame)
    assert found is not None
    np.testing.assert_array_equal(found.values, [[1.0, 0.5], [np.nan, 1.5]])


def test_condensed_data_of_scikit_bio() -> None:
    hollow = labelled(DistanceMatrix(np.array([1.0, 4.0, 2.0]), NAMES))
    assert hollow is not None
    np.testing.assert_array_equal(hollow.values, [1.0, 4.0, 2.0])
    full = labelled(DistanceMatrix(np.array([1.0, 4.0, 2.0]), NAMES, diagonal=np.ones(3)))
    assert full is not None
    assert full.values.shape == (3, 3)  # the diagonal would be lost


def test_a_series_is_a_vector() -> None:
    found = labelled(pd.Series([1.0, 4.0, 2.0]))
    assert found is not None
    assert found.values.shape == (3,)
    assert found.ids() is None


def test_columns_in_any_order() -> None:
    assert column_order(NAMES, NAMES, "it", "the model") is None
    assert column_order(["fir", "oak", "elm"], NAMES, "it", "the model").tolist() == [1, 2, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ["oak", "elm"],
            "it: 1 object has no column: fir; columns are named as the objects of the model, in any order",
        ),
        ([*NAMES, "ash"], "it: columns of no object: ash; columns are named"),
        (["oak", "ash", "yew"], "it: 2 objects have no column: elm, fir; columns of no object: ash, yew; columns are"),
        (["oak", "elm", "elm"], "it: names of columns are not unique: elm; rename or drop the repeats"),
    ],
)
def test_columns_of_other_objects(columns: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        column_order(columns, NAMES, "it", "the model")
