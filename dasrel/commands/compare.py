"""Compare two results A and B of the same objects: what moved, KL, max |dU|, adjusted Rand index; no scan."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from dasrel.commands.base import Input, Lines, Operation, Output, Prepared, Result, Target
from dasrel.commands.validity import ValidityOptions
from dasrel.engine.checkpoint import Checkpoint
from dasrel.judging.comparison import compare
from dasrel.util.option_fields import WRITING, option, same
from dasrel.util.results import check_file, check_not_input, write_csv
from dasrel.util.text import count_text, shown, some


@dataclass(frozen=True)
class CompareOptions:
    """What to compare with."""

    b: str = option(MISSING, "Another one, of the same objects.", WRITING, metavar="B", argument=True)
    fuzzifier: float = same(ValidityOptions, "fuzzifier")


class Compare(Operation):
    name = "compare"
    example = "dasrel compare may june --out moved.csv"
    Options = CompareOptions
    source = Input(
        "A",
        "A result of `dasrel cluster`, such as OUT or OUT/best; or a file of labels (CSV, .npy) or memberships (.npy).",
    )
    target = Output("MOVED.csv", "Write the objects that moved as a CSV file.", flag="--out -o", default=None)
    has_cost = False
    on_dask = False

    def prepare(self, source: str, target: Target, options: CompareOptions) -> PreparedComparison:
        """Check where the objects that moved are written."""
        out = None if target.path is None else Path(target.path)
        if out is not None:
            check_not_input(out, source, options.b)
            check_file(out, force=target.force)
        return PreparedComparison(source, options, out)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of a comparison."""
        rows, named = result["partitions"], ""
        if result["moved"]:
            named = f": {some([shown(name) for name in result['moved_ids']], total=result['moved'])}"
        lines = [(f"partition {k + 1}", shown(row["partition"], limit=400)) for k, row in enumerate(rows)]
        lines += [
            ("objects", f"{result['n_objects']:,}, matched by {result['matched_by']}"),
            ("clusters", " and ".join(f"{row['n_clusters']:,}" for row in rows)),
            ("matches", ", ".join(_match_text(match) for match in result["matches"])),
            ("moved", f"{count_text(result['moved'], 'object')}{named}"),
            ("ARI", f"{result['adjusted_rand_index']:.6g}"),
        ]
        change = result["largest_change"]
        if change is None:
            lines.append(("max |dU|", f"not defined: {result['note']}"))
        else:
            lines.append(("max |dU|", f"{change['membership']:.6g}, of {shown(change['id'])}"))
            infinite = "infinite: a membership is 0 in the second partition only"
            lines.append(("KL", infinite if result["kl_is_infinite"] else f"{result['kl']:.6g}"))
        for label, name in (("O(U)", "entropy"), ("A(U)", "shift_a"), ("B(U)", "shift_b")):
            lines.append((label, "  ".join(f"{row[name]:.6g}" for row in rows)))
        if any(row["eta"] is not None for row in rows):
            texts = ["-" if row["eta"] is None else " ".join(f"{value:.4g}" for value in row["eta"]) for row in rows]
            lines.append(("eta", " | ".join(texts)))
        return lines if result["out"] is None else [*lines, ("wrote", shown(result["out"], limit=400))]


@dataclass(frozen=True)
class PreparedComparison(Prepared):
    """Two partitions to be compared."""

    a: str
    options: CompareOptions
    out: Path | None

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Compare them, and write the objects that moved. Cost: no scan; reads the files."""
        comparison = compare(self.a, self.options.b, fuzzifier=self.options.fuzzifier)
        if self.out is not None:
            header, lines = comparison.table()
            write_csv(self.out, header, lines)
        is_infinite = comparison.kl is not None and math.isinf(comparison.kl)
        out = None if self.out is None else str(self.out)
        return {**comparison.report(), "out": out, "kl_is_infinite": is_infinite}


def _match_text(match: dict[str, Any]) -> str:
    return f"{shown(match['label_a'])}: {'none' if match['label_b'] is None else shown(match['label_b'])}"


OPERATION = Compare()
