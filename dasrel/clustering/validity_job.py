"""Judge partitions that are in files: `dasrel validity`.

A partition is one of

    labels.csv     id,label as `dasrel cluster` writes it, further columns ignored; without a column id, and without a
                   header, one label per line in the order of the store; .tsv has tabs
    x.npy          n labels, or n x c memberships, in the order of the store
    a folder       a result of `dasrel cluster`: memberships.npy, and the fuzzifier of its model
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.clustering.model import Model
from dasrel.clustering.validity import (
    OF_MEMBERSHIPS,
    Grouping,
    Validity,
    division,
    given_groupings,
    judged,
    wanted_indices,
)
from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.errors import InputError
from dasrel.options import ValidityOptions
from dasrel.store.matrix import open_matrix
from dasrel.util import Array, Names, PathLike
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.results import check_file, write_csv
from dasrel.util.text import count_text, shown, some
from dasrel.vocabulary import INDICES


def prepare_validity(
    store: PathLike,
    partitions: Sequence[PathLike],
    options: ValidityOptions | None = None,
    *,
    out: PathLike | None = None,
    force: bool = False,
) -> ValidityJob:
    """Read partitions and check them against a store. Cost: reads their files, and no tile."""
    options = options or ValidityOptions()
    if out is not None:
        check_file(out, force=force)
    relation = as_dissimilarity(open_matrix(store), None)
    found = [read_partition(path, relation.matrix.ids, options.fuzzifier) for path in partitions]
    wanted = wanted_indices(relation, options.indices)
    return ValidityJob(str(store), relation, found, wanted, options.memory, None if out is None else Path(out))


@dataclass(frozen=True, eq=False)
class ValidityJob:
    """Partitions to be judged by the matrix of a store."""

    store: str
    relation: Relation
    partitions: list[Grouping]
    indices: list[str]
    memory: int | str | None
    out: Path | None

    def run(self) -> dict[str, Any]:
        """Compute the indices, write them as a CSV file if one is wanted, and return them as plain values."""
        found = judged(self.relation, self.partitions, indices=self.indices, samples=False, memory=self.memory)
        rows = found.table()
        if self.out is not None:
            columns = list(rows[0])
            write_csv(self.out, columns, ([row[name] for name in columns] for row in rows))
        return {
            "store": self.store,
            "out": None if self.out is None else str(self.out),
            "n_objects": self.relation.n_objects,
            "scans": found.scans,
            "partitions": [
                {**row, "cluster_silhouettes": means.tolist()}
                for row, means in zip(rows, found.cluster_silhouettes, strict=True)
            ],
            "best": self._best(found),
        }

    def _best(self, found: Validity) -> dict[str, str]:
        """Return the name of the partition that is best by each index, where there are several."""
        if len(self.partitions) < 2:
            return {}
        defined = [name for name in self.indices if not np.isnan(found[name]).all()]
        return {name: found.names[found.best(name)] for name in defined}

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        batches, memory = division(self.relation, self.partitions, self.indices, False, self.memory)
        layout = self.relation.matrix.layout
        memory += sum(one.labels.nbytes + (0 if one.U is None else one.U.nbytes) for one in self.partitions)
        scans = len(batches) if any(name not in OF_MEMBERSHIPS for name in self.indices) else 0
        names = sum(len(one.name) for one in self.partitions)
        header = sum(len(name) + 1 for name in ("partition", "n_clusters", *self.indices))
        size = header + names + len(self.partitions) * (4 + 19 * len(self.indices))
        outputs = () if self.out is None else (Output(str(self.out), size),)
        facts = {"partitions": len(self.partitions), "n_clusters": sum(one.n_clusters for one in self.partitions)}
        return Cost(
            "validity", layout.n_objects, Range(scans, scans, scans), layout.total_bytes, memory, outputs, facts
        )


COLUMNS = 6
"""Partitions that are printed side by side; of more, a few indices are printed, a partition per line."""


def validity_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that print the result of a job."""
    rows = found["partitions"]
    names = [name for name in rows[0] if name in INDICES]
    lines = [("objects", f"{found['n_objects']:,}"), ("scans", str(found["scans"]))]
    if len(rows) > COLUMNS:
        for row in rows:
            values = ", ".join(f"{name} {_number(row[name])}" for name in names[:4])
            label = shown(row["partition"], limit=400)
            lines.append((label, f"{count_text(row['n_clusters'], 'cluster')}, {values}"))
        lines += [(f"best {name}", shown(found["best"][name], limit=400)) for name in names if name in found["best"]]
    else:
        lines += [(f"partition {k + 1}", shown(row["partition"], limit=400)) for k, row in enumerate(rows)]
        lines.append(("", "".join(f"{k + 1:>11}" for k in range(len(rows))) + "  better is"))
        lines.append(("clusters", "".join(f"{row['n_clusters']:>11,}" for row in rows)))
        for name in names:
            cells = "".join(f"{_number(row[name]):>11}" for row in rows)
            lines.append((name, f"{cells}  {'larger' if INDICES[name] else 'smaller'}"))
    return lines if found["out"] is None else [*lines, ("wrote", shown(found["out"], limit=400))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


# -------------------------------------------------------------------------------------------------------------- files


def read_partition(path: PathLike, ids: Names, fuzzifier: float) -> Grouping:
    """Read a partition of the objects with these names from a file or a result folder; see the module."""
    file, name = Path(path), str(path)
    if file.is_dir():
        return _of_result(file, ids)
    if not file.is_file():
        raise InputError(f"there is no file {shown(name, limit=400)} with labels")
    try:
        given = np.load(file, allow_pickle=False) if file.suffix == ".npy" else _labels_in_text(file, ids)
    except OSError as error:
        raise InputError(f"{shown(name, limit=400)} cannot be read: {error.strerror or error}") from None
    except (ValueError, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shown(name, limit=400)} is no file of labels: {shown(error)}") from None
    return given_groupings({shown(name, limit=400): given}, len(ids), fuzzifier)[0]


def _of_result(folder: Path, ids: Names) -> Grouping:
    where = shown(folder, limit=400)
    try:
        U = np.load(folder / "memberships.npy", allow_pickle=False)
    except (OSError, ValueError):
        settings = sorted(one.parent.name for one in folder.glob("*/memberships.npy"))
        hint = f"; choose one of its settings, such as {shown(folder / settings[0], limit=400)}" if settings else ""
        raise InputError(f"there is no result of `dasrel cluster` with memberships in {where}{hint}") from None
    model = Model.load(folder / "model.npz")
    at = _positions(where, [str(one) for one in model.ids], ids)
    if U.shape != (len(ids), model.n_clusters):
        raise InputError(f"{where}: memberships.npy has shape {U.shape}, and its model {(len(ids), model.n_clusters)}")
    memberships = np.ascontiguousarray(U[at].T, dtype=np.float64)
    grouping = Grouping.of_memberships(where, memberships, float(model.fuzzifier or 1.0))
    if grouping.packed_labels()[1] < 2:
        raise InputError(f"{where} has one cluster only; an index compares at least two")
    return grouping


def _labels_in_text(file: Path, ids: Names) -> Array:
    where = shown(file, limit=400)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = [row for row in csv.reader(lines, delimiter="\t" if file.suffix == ".tsv" else ",") if row]
    if not rows:
        raise InputError(f"{where} is empty: give a label for each object")
    header = [cell.strip().lower() for cell in rows[0]]
    if "label" in header:
        at, named, first = header.index("label"), header.index("id") if "id" in header else None, 1
    elif len(rows[0]) > 2:
        raise InputError(f"{where} has {len(rows[0])} columns and none is named label; name them in the first line")
    else:
        at, named, first = len(rows[0]) - 1, 0 if len(rows[0]) == 2 else None, 0
    last = max(at, named or 0)
    short = next((k for k, row in enumerate(rows) if len(row) <= last), None)
    if short is not None:
        raise InputError(f"{where}: row {short + 1} has {count_text(len(rows[short]), 'column')}, not {last + 1}")
    labels = np.array([row[at].strip() for row in rows[first:]])
    empty = np.flatnonzero(labels == "")
    if empty.size:
        raise InputError(f"{where}: row {empty[0] + first + 1} has no label ({empty.size} such)")
    if named is not None:
        return labels[_positions(where, [row[named] for row in rows[first:]], ids)]
    if len(labels) != len(ids):
        raise InputError(
            f"{where} has {count_text(len(labels), 'label')} and the store {count_text(len(ids), 'object')}: give one"
            " for each, in the order of the store, or a column id"
        )
    return labels


def _positions(where: str, names: list[str], ids: Names) -> Array:
    """Return the position in a file of each of the store's objects; raise if the two differ in their names."""
    position = {name: k for k, name in enumerate(names)}
    if len(position) < len(names):
        seen: set[str] = set()
        twice = [shown(name) for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise InputError(f"{where} has more than one label for {some(twice)}")
    wanted = [str(name) for name in ids]
    missing = [shown(name) for name in wanted if name not in position]
    known = set(wanted)
    other = [shown(name) for name in names if name not in known]
    if missing:
        extra = f", and labels for {count_text(len(other), 'object')} that it does not have" if other else ""
        raise InputError(
            f"{where} has no label for {count_text(len(missing), 'object')} of the store{extra}: {some(missing)}"
        )
    if other:
        raise InputError(
            f"{where} has labels for {count_text(len(other), 'object')} that the store does not have: {some(other)}"
        )
    return np.array([position[name] for name in wanted], dtype=np.intp)
