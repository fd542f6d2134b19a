"""List the nearest neighbours of the objects of a STORE, or all pairs within a distance, in one scan.

neighbours.npz     the distances as a sparse matrix, for `scipy.sparse.load_npz`
pairs.parquet      first, second, value: the same as a list of pairs, by names
knn_indices.npy    with --k: (n, k + 1) positions, the object itself first, as UMAP takes them
knn_dists.npy      with --k: (n, k + 1) their distances
result.json        the summary
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.commands.base import Lines, Operation, PreparedFolder, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.neighbours import nearest_neighbours, neighbour_consumer
from dasrel.engine.scan import scan_memory
from dasrel.errors import InputError
from dasrel.io.neighbour_graph import check_k, check_within, pairs_within, within_consumer, write_nearest
from dasrel.report.page_parts import ResultPart, Section, Statement, table
from dasrel.report.pieces import downloads, scans_fact, store_sections
from dasrel.report.result_reading import Source
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util.limits import Cost, Output, Range, memory_limit
from dasrel.util.option_fields import WRITING, memory_option, option
from dasrel.util.results import versions
from dasrel.util.text import count_text, shown

K = 15
QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)


@dataclass(frozen=True)
class NeighboursOptions:
    """Which neighbours are listed."""

    k: int | None = option(None, f"So many of every object; {K} if no distance is given.", WRITING, least=1)
    within: float | None = option(None, "All pairs up to this distance.", WRITING, metavar="T", least=0)
    memory: int | str | None = memory_option(WRITING, effort=True)

    def __post_init__(self) -> None:
        if self.k is not None and self.within is not None:
            raise InputError("k and within are both given", remedy="leave one of them out")
        if self.within is not None:
            check_within(self.within)


class NeighboursOperation(Operation):
    name = "neighbours"
    example = "dasrel neighbours distances.zarr out --k 15"
    Options = NeighboursOptions
    is_step = True
    summarized = ("n_objects", "pairs")
    marks = {"neighbours": frozenset({"pairs", "within", "k"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: NeighboursOptions) -> PreparedNeighbours:
        """Check the options, the store and the result folder. Cost: no tile is read."""
        target.check(source)
        matrix = open_matrix(source)
        k = None if options.within is not None else options.k or K
        if k is not None:
            check_k(k, matrix.n_objects)
        header = target.header(source, matrix.identity_digest(), options)
        return PreparedNeighbours(matrix, k, options, target=target, header=header)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the neighbours."""
        which = f"within {result['within']:g}" if result["k"] is None else f"{result['k']} nearest of each"
        lines = [
            ("results", shown(result["out"], limit=400)),
            ("objects", f"{result['n_objects']:,}, kind {result['kind']}"),
            ("pairs", f"{result['pairs']:,}, {which}"),
        ]
        if result["k"] is None:
            degrees = result["degrees"]
            text = f"{degrees[0]:,.0f} to {degrees[-1]:,.0f} of an object, median {degrees[3]:,.0f}"
            lines.append(("neighbours", f"{text}; {result['alone']:,} without any"))
        else:
            farthest = result["farthest"]
            lines.append(("farthest", f"{farthest[0]:g} to {farthest[-1]:g}, median {farthest[3]:g}"))
        return [*lines, ("scans", f"{result['scans']} in {result['seconds']:.1f} s")]

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of the neighbours. Cost: no scan."""
        result, n = source.values, source.values["n_objects"]
        header = ["quantile", *(f"{100 * q:g} %" for q in QUANTILES)]
        if result["k"] is None:
            headline = f"{count_text(result['pairs'], 'pair')} of {count_text(n, 'object')} within {result['within']:g}"
            rows = [["neighbours of an object", *result["degrees"]]]
            text = f"{count_text(result['alone'], 'object')} of {n:,} have no other within {result['within']:g}."
        else:
            headline = f"The {result['k']} nearest neighbours of {count_text(n, 'object')}"
            rows = [["distance to the nearest", *result["nearest"]],
                    [f"distance to neighbour {result['k']}", *result["farthest"]]]  # fmt: skip
            zero = result["duplicates"]
            text = f"{count_text(zero, 'object')} of {n:,} have another at distance 0." if zero else (
                "No two objects are at distance 0.")  # fmt: skip
        listed = table("neighbours", header, rows, "Over all objects.")
        facts = [("objects", f"{n:,}, kind {shown(result['kind'])}"), ("pairs", f"{result['pairs']:,}"),
                 scans_fact(result)]  # fmt: skip
        sections = [Section("Neighbours", [listed, *downloads(source.file("pairs.parquet"), "pairs")])]
        return ResultPart.of(
            source, "Neighbours", headline, [Statement("info", text)], facts, [*sections, *store_sections(source)]
        )


@dataclass(eq=False)
class PreparedNeighbours(PreparedFolder):
    """Neighbours to be found and written."""

    matrix: Matrix
    k: int | None
    options: NeighboursOptions

    def compute(self, checkpoint: Checkpoint | None) -> Result:
        """Find the neighbours, and write the result folder. Cost: one scan."""
        began, matrix, memory = time.perf_counter(), self.matrix, self.options.memory
        result = {
            **self.header, "n_objects": matrix.n_objects, "kind": matrix.kind, "k": self.k,
            "within": self.options.within, "scans": 1,
        }  # fmt: skip
        with self.folder(result) as folder:
            if self.options.within is not None:
                result |= self._write_within(folder, self.options.within)
            else:
                assert self.k is not None
                nearest = nearest_neighbours(matrix, self.k, memory=memory)
                write_nearest(nearest, matrix.ids, folder)
                result |= {
                    "pairs": nearest.positions.size,
                    "nearest": np.quantile(nearest.distances[:, 0], QUANTILES).tolist(),
                    "farthest": np.quantile(nearest.distances[:, -1], QUANTILES).tolist(),
                    "duplicates": int((nearest.distances[:, 0] == 0).sum()),
                }
            result |= {"seconds": round(time.perf_counter() - began, 3), "versions": versions()}
        return result

    def _write_within(self, folder: Path, within: float) -> Result:
        scratch = folder / "scratch"
        scratch.mkdir()
        pairs = pairs_within(self.matrix, within, scratch, memory=self.options.memory)
        pairs.save_csr(folder / "neighbours.npz")
        pairs.save_pairs(folder / "pairs.parquet", self.matrix.ids)
        shutil.rmtree(scratch)
        return {
            "pairs": pairs.count, "degrees": np.quantile(pairs.degrees, QUANTILES).tolist(),
            "alone": int((pairs.degrees == 0).sum()),
        }  # fmt: skip

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would. Pairs are not counted."""
        matrix, n = self.matrix, self.matrix.n_objects
        if self.k is None:
            assert self.options.within is not None
            consumer = within_consumer(matrix, self.options.within, self.out)
            facts: dict[str, Any] = {"within": self.options.within}
            size = 8 * n
        else:
            consumer = neighbour_consumer(matrix, self.k)
            facts = {"k": self.k}
            size = n * (16 * (self.k + 1) + 36 * self.k) + 40 * n
        needed = scan_memory(matrix, [consumer], memory_limit(self.options.memory)) + 3 * size
        return Cost("neighbours", n, Range(1, 1, 1), matrix.layout.total_bytes, needed,
                    (Output(str(self.out), size),), facts)  # fmt: skip


OPERATION = NeighboursOperation()
