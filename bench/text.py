"""Measure reading of text against `pandas.read_csv` of the same file in the same run.

Ours ends with the numbers on disk, ready to be written as tiles; pandas ends with a table in memory. The goal is a
ratio (pandas seconds / our seconds) of 1 or more. For pairs, pandas is also timed together with the step that a matrix
needs next: replacing names by numbers.

    python bench/text.py [--n 4000] [--rows 10000000] [--repeat 3] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from dasrel import Policy, Reading
from dasrel.io.readers.pair_list import open_pairs
from dasrel.io.readers.text_square import open_text


def best(function: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Return the smallest wall time and processor time, in seconds."""
    walls, works = [], []
    for _ in range(repeat):
        wall, work = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        works.append(time.process_time() - work)
    return min(walls), min(works)


def report(claim: str, theirs: tuple[float, float], ours: tuple[float, float], **facts: object) -> None:
    line = {"claim": claim, **facts, "ratio": theirs[0] / ours[0], "pandas_seconds": theirs[0],
            "dasrel_seconds": ours[0], "pandas_cpu_seconds": theirs[1], "dasrel_cpu_seconds": ours[1]}  # fmt: skip
    print(json.dumps({key: round(x, 3) if isinstance(x, float) else x for key, x in line.items()}), flush=True)


def write_square(path: Path, n: int, digits: str) -> None:
    values = np.random.default_rng(0).random((n, n))
    values = (values + values.T) / 2
    ids = [f"sample_{k}" for k in range(n)]
    with path.open("w") as file:
        file.write("\t" + "\t".join(ids) + "\n")
        for name, row in zip(ids, values, strict=True):
            file.write(name + "\t" + "\t".join([format(x, digits) for x in row.tolist()]) + "\n")


def write_pairs(path: Path, rows: int, shuffled: bool) -> int:
    """Write all pairs, in the order in which a search tool writes them, or shuffled."""
    n = max(2, round(rows**0.5))
    random = np.random.default_rng(1)
    cells = random.permutation(n * n) if shuffled else np.arange(n * n)
    with path.open("w") as file:
        for part in np.array_split(cells, max(1, n * n // 1_000_000)):
            values = random.random(part.size)
            for a, b, x in zip((part // n).tolist(), (part % n).tolist(), values.tolist(), strict=True):
                file.write(f"protein_{a}\tprotein_{b}\t{x:.6g}\n")
    return n * n


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--n", type=int, default=4000)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--folder", type=Path, default=None)
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    scratch = folder / "scratch"

    def text(path: Path) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        open_text(path, Reading(format="lsmat"), "distance").spool(scratch).close()

    def pairs(path: Path) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        open_pairs(path, Reading(format="pairs"), "similarity", Policy()).spool(scratch).close()

    def coded(path: Path) -> None:
        table = pd.read_csv(path, sep="\t", header=None)
        pd.factorize(pd.concat([table[0], table[1]]))

    try:
        for name, digits in (("shortest exact decimals", ""), ("six decimals", ".6f")):
            path = folder / "square.tsv"
            write_square(path, given.n, digits)
            theirs = best(lambda path=path: pd.read_csv(path, sep="\t", index_col=0), given.repeat)
            ours = best(lambda path=path: text(path), given.repeat)
            report("labelled square", theirs, ours, n=given.n, numbers=name, megabytes=path.stat().st_size >> 20)
        for shuffled in (False, True):
            path = folder / "pairs.tsv"
            rows = write_pairs(path, given.rows, shuffled)
            theirs = best(lambda path=path: pd.read_csv(path, sep="\t", header=None), given.repeat)
            more = best(lambda path=path: coded(path), given.repeat)
            ours = best(lambda path=path: pairs(path), given.repeat)
            facts = {"rows": rows, "shuffled": shuffled, "megabytes": path.stat().st_size >> 20}
            report("pairs", theirs, ours, **facts)
            report("pairs, pandas with factorize", more, ours, **facts)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
