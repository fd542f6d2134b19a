"""Partitions in files: those that `dasrel validity` judges and `dasrel compare` compares, and those of results.

A partition is one of

    labels.csv     a column label, and one of ids: id, or the first column that is not the labels; without a header, ids
                   and labels, or labels alone, one per line in the order of the store; .tsv has tabs
    x.npy          n labels, or n x c memberships, in the order of the store
    a folder       a result of `dasrel cluster`: memberships.npy, and the ids and parameters of its model
"""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dasrel.errors import DasrelWarning, InputError, StoreError
from dasrel.partition.model import Model, load_memberships
from dasrel.partition.result import Partition
from dasrel.util import Array, Names, PathLike
from dasrel.util.archives import load_array
from dasrel.util.labelled import ID_HEADERS
from dasrel.util.results import write_csv
from dasrel.util.text import count_text, shown, some


@dataclass(frozen=True, eq=False)
class PartitionFile:
    """The content of a file or a result folder."""

    where: str
    """Its path, for messages."""
    values: Array
    """Labels (n,), or memberships (n, c)."""
    ids: list[str] | None = None
    """Names of the objects, where they are given."""
    model: Model | None = None
    """Of a result."""

    def of_objects(self, ids: Names) -> Array:
        """Return labels or memberships of the store's objects: matched by their names, or, with a warning, in order."""
        if self.ids is not None:
            return self.values[positions(self.where, self.ids, ids)]
        if self.values.dtype.kind == "U":
            if len(self.values) != len(ids):
                raise InputError(
                    f"{self.where} has {count_text(len(self.values), 'label')} and the store"
                    f" {count_text(len(ids), 'object')}",
                    remedy="give one for each, in the order of the store, or a column id",
                )
            problem = f"{self.where} has labels and no ids: they are taken in the order of the store"
            warnings.warn(DasrelWarning(problem, remedy="with a column id the order is free"), stacklevel=3)
        return self.values


def read_partition_file(path: PathLike) -> PartitionFile:
    """Read a partition; see the module. Cost: reads the file, no store."""
    file, where = Path(path), shown(path, limit=400)
    if file.is_dir():
        return _read_result(file)
    if not file.is_file():
        raise InputError(f"there is no file {where} with labels")
    try:
        return PartitionFile(where, load_array(file)) if file.suffix == ".npy" else _read_text(file)
    except InputError:
        raise
    except (ValueError, csv.Error, StoreError) as error:
        raise InputError(f"{where} is no file of labels: {shown(error, limit=200)}") from None
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror or error}") from None


def save_partition(partition: Partition, folder: Path, silhouettes: Array | None, border: float) -> None:
    """Write labels.csv, memberships.npy and model.npz of a partition."""
    U, labels = partition.memberships, partition.labels
    largest = U.max(axis=1)
    modes = np.array(partition.model.modes or range(U.shape[1]))
    others = np.where(modes == labels[:, None], -np.inf, U)  # the clusters of other modes
    second = partition.model.labels(others).tolist() if len(set(modes.tolist())) > 1 else [""] * len(U)
    silhouette = [""] * len(U) if silhouettes is None else silhouettes.tolist()
    on_border = ["true" if below else "false" for below in (largest < border).tolist()]
    lines = zip(partition.model.ids, labels.tolist(), largest.tolist(), second, silhouette, on_border, strict=True)
    write_csv(folder / "labels.csv", ["id", "label", "membership", "second_label", "silhouette", "border"], lines)
    np.save(folder / "memberships.npy", np.ascontiguousarray(U))
    partition.model.save(folder / "model.npz")


def _read_result(folder: Path) -> PartitionFile:
    where = shown(folder, limit=400)
    try:
        U = load_memberships(folder)
    except FileNotFoundError:
        settings = sorted(path.parent for path in folder.glob("*/memberships.npy"))
        remedy = f"choose one of its settings, such as {shown(settings[0], limit=400)}" if settings else None
        raise InputError(f"there is no result of `dasrel cluster` with memberships in {where}", remedy=remedy) from None
    model = Model.load(folder / "model.npz")
    if U.shape != (model.n_objects, model.n_clusters):
        raise InputError(
            f"{where}: memberships.npy has shape {U.shape}, and its model {(model.n_objects, model.n_clusters)}"
        )
    return PartitionFile(where, U, [str(name) for name in model.ids], model)


def _read_text(file: Path) -> PartitionFile:
    where = shown(file, limit=400)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = [row for row in csv.reader(lines, delimiter="\t" if file.suffix == ".tsv" else ",") if row]
    rows = [row for k, row in enumerate(rows) if k != 1 or not row[0].startswith("#q2:")]  # types of QIIME's columns
    if not rows:
        raise InputError(f"{where} is empty", remedy="give a label for each object")
    at, named, first = _columns(where, rows)
    last = max(at, named or 0)
    short = next((k for k, row in enumerate(rows) if len(row) <= last), None)
    if short is not None:
        raise InputError(f"{where}: row {short + 1} has {count_text(len(rows[short]), 'column')}, not {last + 1}")
    labels = np.array([row[at].strip() for row in rows[first:]])
    empty = np.flatnonzero(labels == "")
    if empty.size:
        raise InputError(f"{where}: row {empty[0] + first + 1} has no label ({empty.size} such)")
    return PartitionFile(where, labels, None if named is None else [row[named].strip() for row in rows[first:]])


def _columns(where: str, rows: list[list[str]]) -> tuple[int, int | None, int]:
    """Return the columns of labels and of ids (None if there are only labels), and the first row below the header."""
    header = [cell.strip().lower() for cell in rows[0]]
    if "label" not in header:
        if len(header) > 2:
            raise InputError(f"{where} has {len(header)} columns and none is named label", remedy="name it in line 1")
        return len(header) - 1, 0 if len(header) == 2 else None, int(len(header) == 2 and header[0] in ID_HEADERS)
    at = header.index("label")
    if "id" in header or len(header) == 1:
        return at, header.index("id") if "id" in header else None, 1
    if at > 0:
        return at, 0, 1
    text = (k for k in range(1, len(header)) if not all(_is_number(row[k]) for row in rows[1:] if len(row) > k))
    named = next(text, None)
    if named is None:
        raise InputError(
            f"{where} has columns {some([shown(name) for name in header])}, and none of ids",
            remedy="name the column of ids id, or keep only the labels if they are in the order of the objects",
        )
    return at, named, 1


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def positions(where: str, names: list[str], ids: Names, of: str = "the store") -> Array:
    """Return the position in a file of each of these ids; raise if the two differ in their names.

    Parameters
    ----------
    where, names
        The file, and the names of the objects in it.
    ids, of
        The names that are wanted, and whose they are.
    """
    position = {name: k for k, name in enumerate(names)}
    if len(position) < len(names):
        seen: set[str] = set()
        twice = [shown(name) for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise InputError(f"{where} has more than one label for {some(twice)}")
    wanted = [str(name) for name in ids]
    missing = [shown(name) for name in wanted if name not in position]
    known = set(wanted)
    other = [shown(name) for name in names if name not in known]
    if missing or other:
        problems = [f"no label for {count_text(len(missing), 'object')} of {of}"] if missing else []
        problems += (
            [f"labels for {count_text(len(other), 'object')} that {of if not missing else 'it'} does not have"]
            if other
            else []
        )
        remedy = None
        if len(missing) == len(wanted):
            remedy = f"its ids begin with {shown(names[0])}, and those of {of} with {shown(wanted[0])}"
        raise InputError(f"{where} has {', and '.join(problems)}: {some(missing or other)}", remedy=remedy)
    return np.array([position[name] for name in wanted], dtype=np.intp)
