"""Every public function with a limit of memory refuses what is no size, in one line, before any work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from tests.helpers.matrices import squared
from tests.helpers.stores import stored

N = 12
LABELS = np.arange(N) % 3
ONE = dasrel.OneClassRun(2.0)


def calls(matrix: dasrel.Matrix, folder: Path) -> dict[str, Callable[[Any], Any]]:
    """A call of each public function that takes `memory`, by its name."""
    D, run = dasrel.relation(matrix), dasrel.Run("fcm2", 2, entropy_weight=1.0)
    columns = np.ones((N, 1))
    new = folder / "new.zarr"
    estimators = {
        name: lambda memory, name=name: getattr(dasrel, name)(memory=memory).fit(matrix)
        for name in dir(dasrel)
        if hasattr(getattr(dasrel, name), "get_params")
    }
    return estimators | {
        "Relation.left": lambda memory: D.left(columns.T, memory=memory),
        "Relation.matmat": lambda memory: D.matmat(columns, memory=memory),
        "Relation.gram": lambda memory: D.gram(columns, memory=memory),
        "Relation.row_sums": lambda memory: D.row_sums(memory=memory),
        "Relation.mean": lambda memory: D.mean(memory=memory),
        "Dendrogram.cophenetic_correlation": lambda memory: dasrel.linkage(matrix).cophenetic_correlation(
            matrix, memory=memory
        ),
        "Clustering.validity": lambda memory: dasrel.cluster(matrix, run).validity(memory=memory),
        "Clustering.structure": lambda memory: dasrel.cluster(matrix, run).structure(memory=memory),
        "Writing": lambda memory: dasrel.import_matrix(
            np.zeros((3, 3)), new, kind="distance", writing=dasrel.Writing(memory=memory)
        ),
        "align": lambda memory: dasrel.align(matrix, memory=memory),
        "append": lambda memory: dasrel.append(matrix.store, np.ones((1, N + 1)), memory=memory),
        "audit_store": lambda memory: dasrel.audit_store(matrix.store, verify=True, memory=memory),
        "cluster": lambda memory: dasrel.cluster(matrix, run, memory=memory),
        "dendrogram_figure": lambda memory: dasrel.dendrogram_figure(
            dasrel.linkage(matrix), folder / "a.png", matrix=matrix, memory=memory
        ),
        "embed": lambda memory: dasrel.embed(matrix, memory=memory),
        "euclideanize": lambda memory: dasrel.euclideanize(matrix, method="spread", memory=memory),
        "export_matrix": lambda memory: dasrel.export_matrix(matrix, folder / "out.npy", format="npy", memory=memory),
        "hdbscan": lambda memory: dasrel.hdbscan(matrix, dasrel.DensityRun(3), memory=memory),
        "kmedoids": lambda memory: dasrel.kmedoids(matrix, dasrel.MedoidRun(3), memory=memory),
        "linkage": lambda memory: dasrel.linkage(matrix, memory=memory),
        "matrix_image": lambda memory: dasrel.matrix_image(matrix, memory=memory),
        "minimum_spanning_tree": lambda memory: dasrel.minimum_spanning_tree(matrix, memory=memory),
        "neighbours": lambda memory: dasrel.neighbours(matrix, k=3, memory=memory),
        "one_class": lambda memory: dasrel.one_class(matrix, ONE, memory=memory),
        "permanova": lambda memory: dasrel.permanova(matrix, LABELS, memory=memory),
        "plan_clustering": lambda memory: dasrel.plan_clustering(matrix, run, memory=memory),
        "silhouette_samples": lambda memory: dasrel.silhouette_samples(matrix, LABELS, memory=memory),
        "spectrum": lambda memory: dasrel.spectrum(matrix, memory=memory),
        "stability": lambda memory: dasrel.stability(matrix, ONE, memory=memory),
        "validity": lambda memory: dasrel.validity(matrix, LABELS, memory=memory),
    }


def with_memory() -> set[str]:
    """Return the public functions, methods and estimators that take `memory`."""
    found = set()
    for name in dir(dasrel):
        value = getattr(dasrel, name)
        methods = (
            {f"{name}.{key}": part for key, part in vars(value).items() if key[0] != "_"}
            if inspect.isclass(value)
            else {}
        )
        for key, part in {name: value, **methods}.items():
            if callable(part) and not hasattr(part, "__members__"):
                try:
                    found |= {key} if "memory" in inspect.signature(part).parameters else set()
                except ValueError:  # a built-in has no signature
                    continue
    return found - {"ClusteringPlan"}  # a result


def test_a_limit_that_is_no_size_is_refused(tmp_path: Path) -> None:
    matrix = stored(tmp_path / "m.zarr", squared(N), "squared-distance")
    called = calls(matrix, tmp_path)
    assert set(called) == with_memory()
    for name, call in called.items():
        for memory in ("lots", ""):
            with pytest.raises(dasrel.InputError) as caught:
                call(memory)
            assert str(caught.value).startswith(f"memory is {memory!r}"), name
            assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.zarr"]
