"""CSV files of predictions for new objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.partition.model import load_model
from dasrel.util import Array, PathLike
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.results import check_file, write_csv
from dasrel.util.text import count_text, shown


def save_predictions(
    path: PathLike, memberships: Array, labels: Array, ids: Sequence[str] | None = None, *, force: bool = False
) -> None:
    """Write id, label, largest membership, and the membership in every cluster, one line per new object."""
    target = Path(path)
    check_file(target, force=force)
    count, clusters = memberships.shape
    names = _names_of_new(ids, count)
    rows = zip(names, labels.tolist(), map(np.ndarray.tolist, memberships), strict=True)
    lines = ([name, k, max(u), *u] for name, k, u in rows)
    write_csv(target, ["id", "label", "membership", *(f"cluster{k}" for k in range(clusters))], lines)


def save_outliers(
    path: PathLike, scores: Array, threshold: float, ids: Sequence[str] | None = None, *, force: bool = False
) -> int:
    """Write id, typicality and whether it is an outlier, one line per new object; return the number of outliers."""
    target = Path(path)
    check_file(target, force=force)
    names, rejected = _names_of_new(ids, len(scores)), scores < threshold
    said = ["true" if one else "false" for one in rejected.tolist()]
    write_csv(target, ["id", "typicality", "outlier"], zip(names, np.exp(scores).tolist(), said, strict=True))
    return int(rejected.sum())


def _names_of_new(ids: Sequence[str] | None, count: int) -> Sequence[str]:
    if ids is not None and len(ids) != count:
        raise InputError(f"{count_text(len(ids), 'id')} for {count_text(count, 'new object')}; give one for each")
    return [str(k) for k in range(count)] if ids is None else ids


def estimate_predict(
    model: str | os.PathLike[str], rows: str, out: str | os.PathLike[str], *, force: bool = False
) -> Cost:
    """Estimate the cost of `dasrel predict`. Cost: reads the model; the rows only have to exist."""
    check_file(out, force=force)
    known = load_model(model)
    if "://" not in rows and not os.path.exists(rows):
        raise InputError(f"there is no file {shown(rows, limit=400)} with rows of new objects")
    size = os.path.getsize(rows) if os.path.isfile(rows) else 0
    count = size // (8 * known.n_objects)
    facts: dict[str, Any] = {"rows": rows, "values_a_row": known.n_objects, "n_clusters": known.n_clusters}
    outputs = (Output(str(out), count * (20 + 12 * known.n_clusters)),)
    return Cost("predict", None, Range(0, 0, 0), 0, 2 * size + 16 * known.n_objects * known.n_clusters, outputs, facts)
