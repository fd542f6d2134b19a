"""A result depends on the numbers it is given, not on how they lie in memory: order, strides, byte order.

NumPy and BLAS add in the order of the memory, so that the last bits of a sum would tell. Every entrance of arrays is
called with the same numbers in several forms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pandas as pd
import xarray
import zarr

import dasrel
from dasrel.engine.relation import left_products
from dasrel.partition.model import Model
from dasrel.report.figures.matrix import proximity_image
from dasrel.store.array_matrix import ArrayMatrix, as_matrix
from tests.helpers.matrices import distances, grouped_points, memberships
from tests.helpers.stores import bits, stored, tiles

N, NEW = 83, 9
POINTS = grouped_points(N + NEW, 5) * 1.7
D = distances(POINTS)[:N, :N].copy()
ROWS = distances(POINTS)[N:].copy()
NAMES = [f"o{k}" for k in range(N)]
MIXED = np.random.default_rng(2).permutation(N)
U = memberships(N, 3)
COLUMNS = np.random.default_rng(8).normal(size=(N, 3))
WRITING = dasrel.Writing(tile=64, dtype="float64")
Form = Callable[[Any], Any]
Call = Callable[[Any, Path], Any]


def strided(values: Any) -> Any:
    wide = np.full([2 * side for side in values.shape], np.nan)
    wide[::2, ::2] = values
    return wide[::2, ::2]


PLAIN: dict[str, Form] = {
    "Fortran": np.asfortranarray,
    "strides": strided,
    "backwards": lambda values: values[::-1, ::-1].copy()[::-1, ::-1],
    "big-endian": lambda values: values.astype(">f8"),
}
FRAMES: dict[str, Form] = {
    "data frame": pd.DataFrame,
    "data frame of columns": lambda values: pd.DataFrame(
        {k: column.copy() for k, column in enumerate(values.T)}
    ).set_axis(pd.RangeIndex(values.shape[1]), axis=1),  # which pandas before 3 does not make by itself
    "xarray": lambda values: xarray.DataArray(np.asfortranarray(values), dims=("row", "column")),
}
CHUNKS: dict[str, Form] = {
    "dask": lambda values: dask.array.from_array(np.asfortranarray(values), chunks=(50, 60)),
    "zarr": lambda values: zarr.array(np.asfortranarray(values), chunks=(50, 60)),
}
NAMED_COLUMNS: dict[str, Form] = {
    "named columns": lambda values: pd.DataFrame(values[:, MIXED], columns=[NAMES[k] for k in MIXED]),
    "named columns of xarray": lambda values: xarray.DataArray(
        values[:, MIXED], dims=("new", "old"), coords={"old": [NAMES[k] for k in MIXED]}
    ),
}


@cache
def model() -> Model:
    run = dasrel.Run("fcm1", 3, fuzzifier=1.7, init=U, tol=1e-2)
    return dasrel.cluster(pd.DataFrame(D, NAMES, NAMES), run, kind="distance").best.model


@cache
def tree() -> dasrel.Ultrametric:
    return dasrel.ultrametric(dasrel.minimum_spanning_tree(D, kind="distance"))


@cache
def spread() -> dasrel.Relation:
    return dasrel.relation(D, kind="distance").spread(0.1).plus(tree(), 0.3)


def of_matrix(values: Any, folder: Path) -> Any:
    """Results of an array in memory, in several tiles; the kind is the one whose tiles are multiplied as they are."""
    matrix = ArrayMatrix(values, "squared-distance", tile=32)
    relation = dasrel.relation(matrix)
    labels = U.argmax(axis=1)
    image = dasrel.matrix_image(matrix, pixels=20)
    tested, embedding = dasrel.permanova(matrix, labels, permutations=9), dasrel.embed(matrix, n_components=2)
    return (
        matrix.audit, relation.left(COLUMNS.T), relation.rows([3, 40]), dasrel.validity(matrix, U).table(), image,
        tested.pseudo_f, dasrel.linkage(matrix, method="average").heights, embedding.coordinates,
    )  # fmt: skip


def clustered(matrix: Any, init: Any) -> Any:
    run = dasrel.Run("fcm1", 3, fuzzifier=1.7, init=init, tol=1e-2)
    best = dasrel.cluster(as_matrix(matrix, kind="distance"), run).best
    return best.memberships, best.distances, best.result.objective


def imported(values: Any, folder: Path) -> Any:
    return dasrel.import_matrix(values, folder, kind="distance", writing=WRITING).audit, tiles(folder)


def in_blocks(values: Any, folder: Path) -> Any:
    def block(rows: range, columns: range) -> Any:
        return values[rows.start : rows.stop, columns.start : columns.stop]

    matrix = dasrel.from_blocks(block, N, folder, kind="distance", writing=WRITING)
    return matrix.records(), tiles(folder)


def computed(metric: str, kind: str = "distance") -> Call:
    def call(values: Any, folder: Path) -> Any:
        dasrel.pairwise(values, folder, metric=metric, kind=kind, writing=WRITING)
        return tiles(folder)

    return call


def with_new_features(values: Any, folder: Path) -> Any:
    dasrel.pairwise(POINTS[:N], folder, metric="euclidean", writing=WRITING)
    dasrel.append(folder, values, ids=range(N, N + NEW), features=np.asfortranarray(POINTS[:N].astype(">f8")))
    return tiles(folder)


def with_new_rows(values: Any, folder: Path) -> Any:
    stored(folder, D, tile=64)
    dasrel.append(folder, values, ids=range(N, N + NEW))
    return tiles(folder)


def fitted(values: Any, folder: Path) -> Any:
    fuzzy = dasrel.FuzzyCMeans(n_clusters=3, fuzzifier=1.7, init=U, tol=1e-2, kind="distance").fit(values)
    one = dasrel.OneClusterPCM(width=2.0, kind="distance").fit(values)
    return fuzzy.memberships_, fuzzy.transform(values), one.typicality_, one.score_samples(values)


def of_file(call: Call) -> Call:
    def read(values: Any, folder: Path) -> Any:
        folder.mkdir()
        np.save(folder / "values.npy", values)
        return call(folder / "values.npy", folder / "store")

    return read


def judged(values: Any, folder: Path) -> Any:
    other = dasrel.compare(values, memberships(N, 3, 4)).report()
    return dasrel.validity(D, values, kind="distance").table(), other, proximity_image(values, pixels=40)


def test_results_do_not_depend_on_the_order_in_memory(tmp_path: Path) -> None:
    embedding = dasrel.embed(D, n_components=2, kind="distance")
    old = ROWS[:, :N]
    rows = PLAIN | FRAMES | CHUNKS | NAMED_COLUMNS
    few = {name: rows[name] for name in ("Fortran", "big-endian", "data frame of columns")}  # where stores are written
    entrances: dict[str, tuple[Any, Call, dict[str, Form]]] = {
        "an array used directly": (D, of_matrix, PLAIN | CHUNKS),
        "as_matrix": (D, lambda X, _: clustered(X, U), FRAMES),
        "import_matrix": (D, imported, few | CHUNKS),
        "import_matrix of a file": (D, of_file(imported), {"Fortran": np.asfortranarray}),
        "from_blocks": (D, in_blocks, {name: few[name] for name in ("Fortran", "big-endian")}),
        "append": (ROWS, with_new_rows, few),
        "append features": (POINTS[N:], with_new_features, few),
        "append features of a file": (POINTS[N:], of_file(with_new_features), {"Fortran": np.asfortranarray}),
        "fit": (D, fitted, few),
        "init": (U, lambda X, _: clustered(D, X), PLAIN),
        "predict": (old, lambda X, _: model().distances(X), rows),
        "predict one row": (old[:1], lambda X, _: model().distances(X), rows),
        "predict rows of a file": (old, of_file(lambda X, _: model().distances(X)), PLAIN),
        "left": (COLUMNS.T, lambda X, _: (spread().left(X), left_products([(spread(), X)]), tree().left(X)), PLAIN),
        "columns": (COLUMNS, lambda X, _: [f(X) for f in (spread().matmat, spread().gram, tree().gram)], PLAIN),
        "solve": (COLUMNS, lambda X, _: tree().solve(X), PLAIN),
        "project": (old**2, lambda X, _: embedding.project(X), PLAIN),
        "project one row": (old[:1] ** 2, lambda X, _: embedding.project(X), PLAIN),
        "partitions": (U, judged, PLAIN | FRAMES),
        "euclidean": (POINTS[:N], computed("euclidean"), few),
        "mahalanobis": (POINTS[:N], computed("mahalanobis"), few),
        "rbf": (POINTS[:N], computed("rbf", "kernel"), few),
    }
    differ = []
    for name, (values, call, forms) in entrances.items():
        contiguous = np.ascontiguousarray(values)
        expected = bits(call(contiguous, tmp_path / name))
        for form, change in forms.items():
            if bits(call(change(contiguous), tmp_path / f"{name} {form}")) != expected:
                differ.append(f"{name}: {form}")
    assert differ == []
