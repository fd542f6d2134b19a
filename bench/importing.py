"""Measure the import of a square float32 .npy against `cp` of the same file to the same disk, and its memory.

Prints JSON lines: one per round, and one with the best of each and their ratio (cp seconds / import seconds; the goal
is 0.6 and more at n = 20,480, with less than 1024 MB of anonymous memory). The source is in the page cache for both,
and neither is followed by fsync: the work is compared, not the speed at which the kernel writes later.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from dasrel.io.importing import import_matrix


class AnonymousMemory:
    """Sample the largest anonymous memory of this process inside a `with` block, in MB, every few milliseconds."""

    def __enter__(self) -> AnonymousMemory:
        self.peak = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            status = Path("/proc/self/status").read_text()
            self.peak = max(self.peak, int(status.partition("RssAnon:")[2].split()[0]) / 1024)


def make_source(path: Path, n: int) -> None:
    """Write absolute differences of random numbers: symmetric to the last bit."""
    x = np.random.default_rng(0).random(n, dtype=np.float32)
    square = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, n))
    for start in range(0, n, 1024):
        np.abs(x[start : start + 1024, None] - x[None, :], out=square[start : start + 1024])
    square.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_480, help="number of objects")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of cp and import, one after the other")
    parser.add_argument("--folder", type=Path, default=None, help="where to work: the disk that is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dasrel-bench-", dir=options.folder) as name:
        folder = Path(name)
        source = folder / "matrix.npy"
        make_source(source, options.n)
        copies, imports, cpu, peaks = [], [], [], []
        for number in range(options.rounds):
            os.sync()  # no round pays for writes that the one before has left
            began = time.perf_counter()
            subprocess.run(["cp", str(source), str(folder / "copy.npy")], check=True)
            copies.append(time.perf_counter() - began)
            (folder / "copy.npy").unlink()
            os.sync()
            with AnonymousMemory() as memory:
                began, used = time.perf_counter(), time.process_time()
                import_matrix(source, folder / "store.zarr", kind="distance")
                imports.append(time.perf_counter() - began)
                cpu.append(time.process_time() - used)
            peaks.append(memory.peak)
            shutil.rmtree(folder / "store.zarr")
            print(json.dumps({"round": number, "cp_seconds": copies[-1], "import_seconds": imports[-1]}), flush=True)
        result = {
            "bench": "importing",
            "n": options.n,
            "source_gb": source.stat().st_size / 1e9,
            "fsync": False,
            "cp_seconds": min(copies),
            "import_seconds": min(imports),
            "import_cpu_seconds": min(cpu),
            "ratio": min(copies) / min(imports),
            "goal": 0.6,
            "peak_anonymous_mb": max(peaks),
            "goal_mb": 1024,
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
