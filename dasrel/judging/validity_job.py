"""Judge partitions that are in files: `dasrel validity`. What such a file is, `partition_files` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.errors import InputError
from dasrel.judging.permanova import PermanovaJob, prepare_permanova
from dasrel.judging.validity import (
    OF_MEMBERSHIPS,
    Grouping,
    Validity,
    compute_indices,
    division,
    given_groupings,
    wanted_indices,
)
from dasrel.names import INDICES
from dasrel.options import ValidityOptions
from dasrel.partition.files import read_partition_file
from dasrel.store.matrix import open_matrix
from dasrel.util import Names, PathLike
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.results import check_file, write_csv
from dasrel.util.text import count_text, shown


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
    test = None
    if options.permutations is not None:
        test = prepare_permanova(relation, found, options.permutations, options.random_state, memory=options.memory)
    return ValidityJob(str(store), relation, found, wanted, options.memory, None if out is None else Path(out), test)


@dataclass(frozen=True, eq=False)
class ValidityJob:
    """Partitions to be judged by the matrix of a store."""

    store: str
    relation: Relation
    partitions: list[Grouping]
    indices: list[str]
    memory: int | str | None
    out: Path | None
    permanova: PermanovaJob | None = None
    """The test of all partitions, if it is wanted."""

    def run(self) -> dict[str, Any]:
        """Compute the indices, write them as a CSV file if one is wanted, and return them as plain values."""
        found = compute_indices(self.relation, self.partitions, indices=self.indices, samples=False, memory=self.memory)
        rows, scans = found.table(), found.scans
        if self.permanova is not None:
            tests = self.permanova.run()
            rows = [{**row, **test.report()} for row, test in zip(rows, tests, strict=True)]
            scans += self.permanova.scans
        if self.out is not None:
            columns = list(rows[0])
            write_csv(self.out, columns, ([row[name] for name in columns] for row in rows))
        return {
            "store": self.store,
            "out": None if self.out is None else str(self.out),
            "n_objects": self.relation.n_objects,
            "scans": scans,
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
        if self.permanova is not None:
            memory, scans = max(memory, self.permanova.needed), scans + self.permanova.scans
        names = sum(len(one.name) for one in self.partitions)
        header = sum(len(name) + 1 for name in ("partition", "n_clusters", *self.indices))
        columns = len(self.indices) + 5 * (self.permanova is not None)
        size = header + names + len(self.partitions) * (4 + 19 * columns)
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
            if "p_value" in row:
                lines.append(("", f"pseudo-F {_number(row['pseudo_f'])}, p-value {_number(row['p_value'])}"))
        lines += [(f"best {name}", shown(found["best"][name], limit=400)) for name in names if name in found["best"]]
    else:
        lines += [(f"partition {k + 1}", shown(row["partition"], limit=400)) for k, row in enumerate(rows)]
        lines.append(("", "".join(f"{k + 1:>11}" for k in range(len(rows))) + "  better is"))
        lines.append(("clusters", "".join(f"{row['n_clusters']:>11,}" for row in rows)))
        for name in names:
            cells = "".join(f"{_number(row[name]):>11}" for row in rows)
            lines.append((name, f"{cells}  {'larger' if INDICES[name] else 'smaller'}"))
        if "p_value" in rows[0]:
            lines += [
                ("pseudo_f", "".join(f"{_number(row['pseudo_f']):>11}" for row in rows) + "  larger"),
                ("p_value", "".join(f"{_number(row['p_value']):>11}" for row in rows)
                    + f"  of {count_text(rows[0]['permutations'], 'permutation')} (PERMANOVA)"),
            ]  # fmt: skip
    return lines if found["out"] is None else [*lines, ("wrote", shown(found["out"], limit=400))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def read_partition(path: PathLike, ids: Names, fuzzifier: float) -> Grouping:
    """Read a partition of the objects with these names from a file or a result folder; see `partition_files`."""
    found = read_partition_file(path)
    values, where = found.of_objects(ids), found.where
    if found.model is None:
        return given_groupings({where: values}, ids, fuzzifier)[0]
    memberships = np.ascontiguousarray(values.T, dtype=np.float64)
    grouping = Grouping.of_memberships(where, memberships, float(found.model.fuzzifier or 1.0), found.model.modes)
    if grouping.packed_labels()[1] < 2:
        raise InputError(f"{where} has one cluster only; an index compares at least two")
    return grouping
