"""Prediction by names of columns, and distances to centres."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

import dasrel
from dasrel.errors import InputError
from dasrel.partition.model import Model
from tests.helpers.matrices import blobs, distances

POINTS = blobs(14, [[0, 0], [6, 1], [2, 7]], 4)
N = len(POINTS)
NAMES = [f"o{k}" for k in range(N)]
FRESH = np.random.default_rng(1).normal(size=(7, 2)) * 3
ROWS = ((FRESH[:, None] - POINTS[None]) ** 2).sum(axis=2)
SHUFFLE = np.random.default_rng(2).permutation(N)
MIXED = [NAMES[k] for k in SHUFFLE]


@pytest.fixture(scope="module")
def model() -> Model:
    frame = pd.DataFrame(distances(POINTS, "sqeuclidean"), NAMES, NAMES)
    run = dasrel.Run("fcm2", 3, entropy_weight=2.0, random_state=0)
    return dasrel.cluster(frame, run, kind="squared-distance").best.model


def centres(model: Model) -> Any:
    """On squared Euclidean distances a centre is a point: the mean of the objects with its weights."""
    return model.V @ POINTS


def test_distances_are_those_to_points(model: Model) -> None:
    expected = ((FRESH[:, None] - centres(model)[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(model.distances(ROWS), expected, rtol=1e-6, atol=1e-6)
    assert model.distances(ROWS[:0]).shape == model.predict_memberships(ROWS[:0]).shape == (0, 3)


@pytest.mark.parametrize("form", ["frame", "xarray", "csv", "tsv", "parquet"])
def test_named_columns_come_in_any_order(model: Model, tmp_path: Path, form: str) -> None:
    frame = pd.DataFrame(ROWS[:, SHUFFLE], [f"new {k}" for k in range(7)], MIXED)
    rows: Any = frame
    if form == "xarray":
        rows = xarray.DataArray(ROWS[:, SHUFFLE], dims=("new", "old"), coords={"old": MIXED})
    elif form == "parquet":
        rows = tmp_path / "rows.parquet"
        frame.to_parquet(rows)
    elif form != "frame":
        rows = tmp_path / f"rows.{form}"
        frame.to_csv(rows, sep="," if form == "csv" else "\t")
    np.testing.assert_allclose(model.predict_memberships(rows), model.predict_memberships(ROWS), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(rows), ((FRESH[:, None] - centres(model)) ** 2).sum(axis=2).argmin(1))


def test_columns_without_names_are_in_order(model: Model) -> None:
    np.testing.assert_array_equal(model.predict_memberships(pd.DataFrame(ROWS)), model.predict_memberships(ROWS))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame(ROWS[:, 1:], columns=NAMES[1:]), "the data frame: 1 object has no column: o0; columns are named"),
        (
            pd.DataFrame(np.hstack([ROWS, ROWS[:, :1]]), columns=[*NAMES, "new 0"]),
            "the data frame: columns of no object: new 0; columns are named as the objects of the model, in any order",
        ),
        (pd.DataFrame(ROWS, columns=[*NAMES[:-1], "o0"]), "the data frame: names of columns are not unique: o0"),
        (pd.DataFrame(ROWS, columns=list(range(1, N + 1))), r"42 objects have no column: o0, o1, o2 and 39 more"),
        (pd.DataFrame(ROWS[:, :5]), r"new rows have shape \(7, 5\); give \(k, 42\)"),
        (pd.DataFrame(ROWS, columns=NAMES).assign(o3="x"), "column 'o3' of the data frame holds values of type"),
    ],
)
def test_other_columns_are_refused(model: Model, frame: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        model.predict(frame)
    assert "\n" not in str(caught.value)


def test_a_bad_value_is_named_where_it_was_given(model: Model) -> None:
    frame = pd.DataFrame(ROWS[:, SHUFFLE], columns=MIXED)
    frame.iloc[2, 5] = np.nan
    with pytest.raises(InputError, match="row 2, column 5 of the new rows is nan; give finite numbers"):
        model.predict(frame)


def test_models_are_short_when_printed(model: Model) -> None:
    assert repr(model) == "<Model: fcm2, 3 clusters of 42 objects, kind squared-distance>"
