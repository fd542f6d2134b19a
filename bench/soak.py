"""Run many jobs in one process and in one cluster: what is left behind at the end must be what was there at the start.

    python bench/soak.py [--jobs 2000] [--n 300] [--workers 2] [--dir FOLDER]

One JSON line after the first jobs, which import libraries and start pools, and one at the end, for this process and for
a local cluster (`--workers 0` leaves it out): resident memory, open files, threads, child processes and entries of the
temporary folder. The exit code is 1 if anything but memory has grown, or memory by more than 20 %. Each job is one
command's work in Python: cluster, tree, outliers, embed or spectrum, in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import numpy as np

import dasrel

FIRST = 0.1
"""Share of the jobs after which the first measurement is made."""
GROWTH = 1.2
"""Memory may grow by this factor: the allocator keeps pages that it may want again."""


def jobs(store: str) -> Iterator[Callable[[], object]]:
    """Yield jobs without an end."""
    kinds: list[Callable[[], object]] = [
        lambda: dasrel.cluster(store, dasrel.grid("fcm1", 3, fuzzifier=2.0, init="random", n_init=2)),
        lambda: dasrel.minimum_spanning_tree(store),
        lambda: dasrel.linkage(store, method="average"),
        lambda: dasrel.embed(store, n_components=2),
        lambda: dasrel.spectrum(store),
    ]
    return cycle(kinds)


def state(temporary: Path) -> dict[str, int]:
    """Return what this process holds, without the threads of Zarr's pool: at most cores + 4, which begin late."""
    gc.collect()
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    children = [
        child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return {
        "memory": int(resident.split()[1]) * 1024,
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
        "processes": len(children),
        "temporary": sum(1 for _ in temporary.rglob("*")),
    }


def soak(store: str, count: int, temporary: Path, where: str) -> bool:
    """Run the jobs, print two lines, and return whether nothing has grown."""
    first = max(10, int(FIRST * count))
    before: dict[str, int] = {}
    began = time.perf_counter()
    for k, job in enumerate(islice(jobs(store), first + count)):
        if k == first:
            before = state(temporary)
            print(json.dumps({"bench": "soak", "where": where, "jobs": k} | before), flush=True)
        job()
    after = state(temporary)
    grown = [name for name in before if after[name] > before[name] * (GROWTH if name == "memory" else 1)]
    seconds = round(time.perf_counter() - began, 1)
    line = {"bench": "soak", "where": where, "jobs": first + count, **after, "seconds": seconds, "grown": grown}
    print(json.dumps(line), flush=True)
    return not grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", dasrel.DasrelWarning)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        store, temporary = str(Path(folder) / "soak.zarr"), Path(folder) / "temporary"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        features = np.random.default_rng(0).normal(size=(given.n, 5))
        dasrel.pairwise(features, store, metric="cityblock", writing=dasrel.Writing(tile=64))
        same = soak(store, given.jobs, temporary, "this process")
        if given.workers:
            with dasrel.connect(dasrel.Runtime(dask=f"local:workers={given.workers},memory=2GB")):
                same &= soak(store, given.jobs, temporary, f"{given.workers} workers")
        tempfile.tempdir = None
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
