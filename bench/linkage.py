"""Agglomerative clustering from a store on disk, with fastcluster (or SciPy) in memory beside it.

    python bench/linkage.py --n 4096 8192 16384 --data blobs --memory 900MB --dir /scratch

One JSON line for each number of objects and linkage: seconds of dasrel and of the other (`ratio` is ours over theirs),
rounds, bytes read and written as multiples of the matrix, the most anonymous memory, and the largest relative
difference of heights. Above --most-other objects only dasrel is run. With --repeat both are run so often, in turns, and
seconds and ratios are medians: on a virtual machine the first touch of memory can take longer than the work.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import dasrel


def points(name: str, n: int, features: int = 64) -> Any:
    """Blobs around centres, one for 200 objects, or uniform noise."""
    rng = np.random.default_rng(0)
    if name == "noise":
        return rng.random((n, features))
    centres = rng.normal(size=(max(2, n // 200), features))
    return centres[rng.integers(len(centres), size=n)] + 0.5 * rng.normal(size=(n, features))


def anonymous() -> int:
    """The anonymous memory of this process in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024


class Peak:
    """The most anonymous memory above that at the beginning, looked at every few milliseconds."""

    def __enter__(self) -> Peak:
        self.base, self.most, self._done = anonymous(), 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self.most = max(self.most, anonymous() - self.base)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def other_linkage(matrix: Any, method: str) -> tuple[str, float, Any]:
    """Seconds and heights of fastcluster, or of SciPy where it is not installed, on the condensed matrix in memory."""
    from scipy.spatial.distance import squareform

    try:
        from fastcluster import linkage  # type: ignore[import-not-found]

        name = "fastcluster"
    except ImportError:
        from scipy.cluster.hierarchy import linkage

        name = "scipy"
    condensed = squareform(np.asarray(matrix, dtype=np.float64), checks=False)
    began = time.perf_counter()
    merges = linkage(condensed, method)
    return name, time.perf_counter() - began, np.sort(merges[:, 2])


def measure(folder: Path, n: int, given: argparse.Namespace) -> None:
    store = folder / f"{given.data}-{n}.zarr"
    matrix = dasrel.pairwise(
        points(given.data, n), store, metric="euclidean", writing=dasrel.Writing(resume=store.exists())
    )
    for method in given.methods:
        ours, theirs, most = [], [], 0
        for _ in range(given.repeat):
            with Peak() as peak:
                began = time.perf_counter()
                found = dasrel.linkage(matrix, method=method, memory=given.memory, scratch=folder)
                ours.append(time.perf_counter() - began)
            most = max(most, peak.most)
            if n <= given.most_other:
                name, seconds, heights = other_linkage(matrix, method)
                theirs.append(seconds)
        size = n * n * 2  # bytes of a triangle of float32
        line: dict[str, Any] = {
            "data": given.data, "n": n, "method": method, "seconds": round(median(ours), 2),
            "rounds": found.rounds, "read": round(found.bytes_read / size, 2),
            "written": round(found.bytes_written / size, 2), "memory_mb": round(most / 1e6),
        }  # fmt: skip
        if theirs:
            ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
            line |= {
                "other": name, "other_seconds": round(median(theirs), 2), "ratio": round(median(ratios), 3),
                "ratios": [round(ratio, 2) for ratio in ratios],
                "difference": float(np.max(np.abs(found.heights - heights) / np.maximum(heights, 1e-12))),
            }  # fmt: skip
        print(json.dumps(line), flush=True)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--methods", nargs="+", default=["average", "complete", "ward"])
    parser.add_argument("--data", choices=["blobs", "noise"], default="blobs")
    parser.add_argument("--memory", default="900MB")
    parser.add_argument("--most-other", type=int, default=16384)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where the stores are kept; a temporary folder by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for n in given.n:
            measure(given.dir or Path(temporary), n, given)


if __name__ == "__main__":
    main()
