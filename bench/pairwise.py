"""Measure pairwise to a store against the same work in memory: one JSON line per claim, ratios of one run.

    python bench/pairwise.py [--n 20480] [--features 64] [--pixels 256] [--repeats 3] [--folder DIR]

`euclidean`: seconds of scikit-learn's full matrix in memory over ours to a store on disk; the goal is 1 or more.
`simpson`: seconds of the plain float64 product over ours on packed bits, both on one thread and for one tile.
`peak_anonymous_mb` is the peak of the memory that our run adds to this process, sampled every 10 ms.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import pairwise_distances

from dasrel.io.metrics import Metric, tile_values
from dasrel.io.pairwise import pairwise
from dasrel.util.parallel import single_threaded_blas


def best(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not report the anonymous memory of a process")


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Sample the peak of anonymous memory, in MB, above that at the start."""
    start = anonymous_mb()
    peak = [0.0]
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.01):
            peak[0] = max(peak[0], anonymous_mb() - start)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield peak
    finally:
        stop.set()
        looker.join()


def euclidean(n: int, p: int, repeats: int, folder: Path) -> dict[str, Any]:
    features = np.random.default_rng(0).normal(size=(n, p))
    np.save(folder / "features.npy", features)
    store = folder / "store.zarr"

    def ours() -> None:
        shutil.rmtree(store, ignore_errors=True)
        pairwise(folder / "features.npy", store, metric="euclidean")

    with peak_memory() as peak:
        ours()
    # In turns, so that what else the machine does falls on both.
    pairs = [(best(ours, 1), best(lambda: pairwise_distances(features), 1)) for _ in range(repeats)]
    our_seconds, their_seconds = (min(column) for column in zip(*pairs, strict=True))
    return {
        "bench": "pairwise euclidean",
        "n": n,
        "features": p,
        "store_seconds": round(our_seconds, 3),
        "sklearn_seconds": round(their_seconds, 3),
        "ratio": round(their_seconds / our_seconds, 2),
        "goal": 1,
        "peak_anonymous_mb": round(peak[0]),
    }


def simpson(n: int, pixels: int, repeats: int) -> dict[str, Any]:
    side = min(n, 4096)
    images = np.random.default_rng(0).random((side, pixels))
    images[:, 0] = 1

    def plain() -> Any:
        ink = (images > 0.5).astype(np.float64)
        count = ink.sum(axis=1)
        return (2 - 2 * (ink @ ink.copy().T) / np.minimum(count[:, None], count[None, :])).astype(np.float32)

    def packed() -> Any:
        return tile_values(Metric("simpson", "distance"), images, images, same=False, dtype=np.dtype(np.float32))

    with single_threaded_blas():
        assert np.abs(plain() - packed()).max() < 1e-6
        pairs = [(best(packed, 1), best(plain, 1)) for _ in range(repeats)]
    our_seconds, their_seconds = (min(column) for column in zip(*pairs, strict=True))
    return {
        "bench": "pairwise simpson",
        "tile": side,
        "pixels": pixels,
        "packed_seconds": round(our_seconds, 3),
        "float64_seconds": round(their_seconds, 3),
        "ratio": round(their_seconds / our_seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_480)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the store is written; by default a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(euclidean(options.n, options.features, options.repeats, Path(folder))), flush=True)
    print(json.dumps(simpson(options.n, options.pixels, options.repeats)), flush=True)


if __name__ == "__main__":
    main()
