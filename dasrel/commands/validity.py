"""Judge partitions of the objects of a STORE by validity indices, all in one scan."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dasrel.commands.base import Lines, Operation, Output as Written, Prepared, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.relation import Relation, as_dissimilarity
from dasrel.errors import InputError
from dasrel.judging.groupings import INDEX_PANEL, Grouping, MembershipOptions, given_groupings
from dasrel.judging.permanova import PermanovaJob, prepare_permanova
from dasrel.judging.validity import (
    OF_MEMBERSHIPS,
    Validity,
    compute_indices,
    division,
    wanted_indices,
)
from dasrel.names import INDICES, IndexName
from dasrel.partition.files import read_partition_file
from dasrel.report.page_parts import ResultPart, Section, table
from dasrel.report.result_reading import Source
from dasrel.report.result_store import run_section
from dasrel.report.verdict import silhouette_statement
from dasrel.store.matrix import open_matrix
from dasrel.util import Names, PathLike
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.option_fields import memory_option, option, same
from dasrel.util.results import check_file, write_csv
from dasrel.util.text import count_text, path_text, shown

COLUMNS = 6
"""Partitions that are printed side by side; of more, a few indices are printed, a partition per line."""

_index = partial(option, panel=INDEX_PANEL)


@dataclass(frozen=True)
class ValidityOptions:
    """Which partitions to judge, and by which indices."""

    labels: list[str] = option(
        MISSING,
        "Partitions: CSV files with id,label or one label per line, .npy files with labels or memberships, or results"
        " of `dasrel cluster`.",
        INDEX_PANEL,
        metavar="LABELS",
        argument=True,
    )
    indices: list[IndexName] | None = _index(
        None, f"One or more of {', '.join(INDICES)}; all except dunn if not given.", name="index", metavar="INDEX"
    )
    fuzzifier: float = same(MembershipOptions, "fuzzifier")
    permutations: int | None = _index(
        None, "Test whether groups differ by PERMANOVA, with so many permutations, such as 999.", metavar="N", least=1
    )
    random_state: int = _index(0, "Seed of the permutations.", name="seed", least=0)
    memory: int | str | None = memory_option(INDEX_PANEL)


class Judge(Operation):
    name = "validity"
    example = "dasrel validity distances.zarr out/best labels.csv"
    Options = ValidityOptions
    target = Written("FILE.csv", "Write the table as a CSV file as well.", flag="--out -o", default=None)
    marks = {"validity": frozenset({"partitions", "best", "n_objects"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: ValidityOptions) -> PreparedValidity:
        """Read partitions and check them against the store. Cost: reads their files, and no tile."""
        out = None if target.path is None else Path(target.path)
        if out is not None:
            check_file(out, force=target.force)
        relation = as_dissimilarity(open_matrix(source), None)
        partitions = [read_partition(path, relation.matrix.ids, options.fuzzifier) for path in options.labels]
        wanted, test, memory = wanted_indices(relation, options.indices), None, options.memory
        if options.permutations is not None:
            test = prepare_permanova(relation, partitions, options.permutations, options.random_state, memory=memory)
        return PreparedValidity(source, relation, partitions, wanted, memory, out, test)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the indices."""
        rows = result["partitions"]
        names = [name for name in rows[0] if name in INDICES]
        lines = [("objects", f"{result['n_objects']:,}"), ("scans", str(result["scans"]))]
        if len(rows) > COLUMNS:
            for row in rows:
                values = ", ".join(f"{name} {_number(row[name])}" for name in names[:4])
                label = shown(row["partition"], limit=400)
                lines.append((label, f"{count_text(row['n_clusters'], 'cluster')}, {values}"))
                if "p_value" in row:
                    lines.append(("", f"pseudo-F {_number(row['pseudo_f'])}, p-value {_number(row['p_value'])}"))
            lines += [
                (f"best {name}", shown(result["best"][name], limit=400)) for name in names if name in result["best"]
            ]
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
        return lines if result["out"] is None else [*lines, ("wrote", shown(result["out"], limit=400))]

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of its JSON object. Cost: no scan."""
        result, rows = source.values, source.values["partitions"]
        names = [name for name in rows[0] if name in INDICES or name in ("pseudo_f", "r_squared", "p_value")]
        header = ["partition", "clusters", *(name.replace("_", " ") for name in names)]
        cells = [[row["partition"], row["n_clusters"], *(row.get(name) for name in names)] for row in rows]
        better = ", ".join(name.replace("_", " ") for name in names if INDICES.get(name))
        text = f"Of {better or 'no index'} larger is better, of the others smaller."
        n = result["n_objects"]
        best = result["best"].get("silhouette")
        chosen = next((row for row in rows if row["partition"] == best), rows[0])
        verdict = silhouette_statement(chosen.get("silhouette"), f"The mean silhouette of {shown(chosen['partition'])}")
        facts = [("objects", f"{n:,}"), ("partitions", f"{len(rows):,}"), ("scans", f"{result['scans']:,}")]
        sections = [Section("Indices", [table("validity", header, cells, text)]), run_section(source)]
        headline = f"Validity of {count_text(len(rows), 'partition')} of {count_text(n, 'object')}"
        return ResultPart("Validity", path_text(source.path), headline, verdict, facts, sections, None, n)


@dataclass(frozen=True, eq=False)
class PreparedValidity(Prepared):
    """Partitions to be judged by the matrix of a store."""

    store: str
    relation: Relation
    partitions: list[Grouping]
    indices: list[str]
    memory: int | str | None
    out: Path | None
    permanova: PermanovaJob | None = None
    """The test of all partitions, if it is wanted."""

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Compute the indices, write them as a CSV file if one is wanted, and return them as plain values."""
        validity = compute_indices(
            self.relation, self.partitions, indices=self.indices, samples=False, memory=self.memory
        )
        rows, scans = validity.table(), validity.scans
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
                for row, means in zip(rows, validity.cluster_silhouettes, strict=True)
            ],
            "best": self._best(validity),
        }

    def _best(self, validity: Validity) -> dict[str, str]:
        """Return the name of the partition that is best by each index, where there are several."""
        if len(self.partitions) < 2:
            return {}
        defined = [name for name in self.indices if not np.isnan(validity[name]).all()]
        return {name: validity.names[validity.best(name)] for name in defined}

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        batches, memory = division(self.relation, self.partitions, self.indices, False, self.memory)
        layout = self.relation.matrix.layout
        memory += sum(
            partition.labels.nbytes + (0 if partition.U is None else partition.U.nbytes)
            for partition in self.partitions
        )
        scans = len(batches) if any(name not in OF_MEMBERSHIPS for name in self.indices) else 0
        if self.permanova is not None:
            memory, scans = max(memory, self.permanova.needed), scans + self.permanova.scans
        names = sum(len(partition.name) for partition in self.partitions)
        header = sum(len(name) + 1 for name in ("partition", "n_clusters", *self.indices))
        columns = len(self.indices) + 5 * (self.permanova is not None)
        size = header + names + len(self.partitions) * (4 + 19 * columns)
        outputs = () if self.out is None else (Output(str(self.out), size),)
        facts = {
            "partitions": len(self.partitions),
            "n_clusters": sum(partition.n_clusters for partition in self.partitions),
        }
        return Cost(
            "validity", layout.n_objects, Range(scans, scans, scans), layout.total_bytes, memory, outputs, facts
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def read_partition(path: PathLike, ids: Names, fuzzifier: float) -> Grouping:
    """Read a partition of the objects with these names from a file or a result folder; see `dasrel.partition.files`."""
    file = read_partition_file(path)
    values, where = file.of_objects(ids), file.where
    if file.model is None:
        return given_groupings({where: values}, ids, fuzzifier)[0]
    memberships = np.ascontiguousarray(values.T, dtype=np.float64)
    grouping = Grouping.of_memberships(where, memberships, float(file.model.fuzzifier or 1.0), file.model.modes)
    if grouping.packed_labels()[1] < 2:
        raise InputError(f"{where} has one cluster only", remedy="give at least two, which an index compares")
    return grouping


OPERATION = Judge()
