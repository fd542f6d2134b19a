"""Read partitions from files: those that `dasrel validity` judges and `dasrel compare` compares.

A partition is one of

    labels.csv     id,label as `dasrel cluster` writes it, further columns ignored; without a column id, and without a
                   header, one label per line in the order of the store; .tsv has tabs
    x.npy          n labels, or n x c memberships, in the order of the store
    a folder       a result of `dasrel cluster`: memberships.npy, and the ids and parameters of its model
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dasrel.errors import InputError, StoreError
from dasrel.partition.model import Model, load_memberships
from dasrel.util import Array, Names, PathLike
from dasrel.util.archives import load_array
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


def _read_result(folder: Path) -> PartitionFile:
    where = shown(folder, limit=400)
    try:
        U = load_memberships(folder)
    except FileNotFoundError:
        settings = sorted(one.parent.name for one in folder.glob("*/memberships.npy"))
        hint = f"; choose one of its settings, such as {shown(folder / settings[0], limit=400)}" if settings else ""
        raise InputError(f"there is no result of `dasrel cluster` with memberships in {where}{hint}") from None
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
    return PartitionFile(where, labels, None if named is None else [row[named] for row in rows[first:]])


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
    if missing:
        extra = f", and labels for {count_text(len(other), 'object')} that it does not have" if other else ""
        raise InputError(
            f"{where} has no label for {count_text(len(missing), 'object')} of {of}{extra}: {some(missing)}"
        )
    if other:
        raise InputError(
            f"{where} has labels for {count_text(len(other), 'object')} that {of} does not have: {some(other)}"
        )
    return np.array([position[name] for name in wanted], dtype=np.intp)
