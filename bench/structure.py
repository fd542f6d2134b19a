"""Measure principal coordinates and PERMANOVA against scikit-bio in memory, and alignments against NumPy, in one run.

    python bench/structure.py [axes] [permanova] [align] [--n 16384] [--times 3] [--peer PYTHON] [--dir FOLDER]

One JSON line per measurement; without names all parts are measured. Objects are `digits`: images of scikit-learn's
digits drawn at random with noise added, Euclidean distances; `communities`: counts of species, Bray-Curtis; or `noise`:
uniform random numbers, on which the search for axes takes longest. All are float32 in a store in the page cache.

Every side runs in a process of its own, which reads the matrix before the clock starts and prints its peak of anonymous
memory. scikit-bio has the same matrix as float64 in memory; `--peer` is the interpreter of an environment that has it,
by default this one. Times are the best of several. "values_error" is the largest relative error of the eigenvalues
against those of the dense matrix (at most 4,096 objects).

`align` is one scan for the alignments of 12 Gaussian kernels with random partitions into 2 to 10 clusters, all pairs of
them, against NumPy's dense matrices for one pair, a kernel and a partition into 6; and the rate of the compiled kernel
on one core: minima that are added up for P alone, per second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

AXES, PERMUTATIONS, GROUPS = 10, 999, 5
DENSE = 4096
NUMBERS, MIDDLE = list(range(2, 11)), 6
KERNELS = np.geomspace(2.0, 32.0, 12).tolist()


def say(**line: Any) -> None:
    rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in line.items()}
    print(json.dumps({"bench": "structure", **rounded}), flush=True)


# --------------------------------------------------------------------------------------------------------- processes


class AnonymousPeak:
    """The largest anonymous memory of this process while the block runs, in bytes, looked at every few milliseconds."""

    def __enter__(self) -> AnonymousPeak:
        self.bytes, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.005):
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                if line.startswith("RssAnon:"):
                    self.bytes = max(self.bytes, int(line.split()[1]) * 1024)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def measured(function: Callable[[], dict[str, Any]], times: int) -> None:
    """Print the best time of a function, its peak of memory and what it returns, as one JSON object."""
    seconds, found = float("inf"), {}
    with AnonymousPeak() as peak:
        for _ in range(times):
            began = time.perf_counter()
            found = function()
            seconds = min(seconds, time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "anonymous_mb": peak.bytes / 1e6, **found}))


def in_process(python: str, side: str, part: str, path: Path, times: int) -> dict[str, Any]:
    """Run one side of one part in a process of its own; return no numbers if it has no scikit-bio."""
    command = [python, __file__, "--side", side, part, str(path), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named 'skbio'" in done.stderr:
        return {}
    if done.returncode:
        raise SystemExit(f"{side} {part} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def groups(n: int) -> Any:
    return np.random.default_rng(2).integers(0, GROUPS, n)


def run_side(side: str, part: str, path: str, times: int) -> None:
    """Measure one side here."""
    if side == "scikit-bio":
        from skbio import DistanceMatrix
        from skbio.stats.distance import permanova
        from skbio.stats.ordination import pcoa

        D = np.load(path).astype(np.float64)
        matrix = DistanceMatrix(D, ids=[str(k) for k in range(len(D))])
        del D

        def axes() -> dict[str, Any]:
            found = pcoa(matrix, method="fsvd", dimensions=AXES)
            return {"values": np.asarray(found.eigvals)[:AXES].tolist()}

        def test() -> dict[str, Any]:
            found = permanova(matrix, groups(len(matrix.ids)), permutations=PERMUTATIONS)
            return {"pseudo_f": float(found["test statistic"]), "p_value": float(found["p-value"])}

        measured(axes if part == "axes" else test, times)
        return

    if side == "numpy":
        D = np.load(path)
        measured(lambda: dense_alignment(D), times)
        return

    import dasrel

    store = dasrel.open_matrix(path)
    if part == "align":
        measured(lambda: our_alignments(store), times)
        return
    dasrel.spectrum(store, max_scans=2, tol=0.5)  # the first read verifies the checksums

    def our_axes() -> dict[str, Any]:
        found = dasrel.embed(store, n_components=AXES)
        return {"values": found.eigenvalues.tolist(), "scans": found.scans, "negative_share": found.negative_share}

    def our_test() -> dict[str, Any]:
        found = dasrel.permanova(store, groups(store.n_objects), permutations=PERMUTATIONS)
        return {"pseudo_f": found.pseudo_f, "p_value": found.p_value, "scans": found.scans}

    measured(our_axes if part == "axes" else our_test, times)


def partition(n: int, clusters: int) -> Any:
    """Return random memberships, (clusters, n)."""
    return np.random.default_rng(clusters).dirichlet(np.ones(clusters), n).T.astype(np.float32)


def dense_alignment(D: Any) -> dict[str, Any]:
    """Return one alignment from complete matrices K and P."""
    U = partition(len(D), MIDDLE)
    K = D * D
    K *= -1 / (2 * KERNELS[-1] ** 2)
    np.exp(K, out=K)
    P, least = np.zeros_like(K), np.empty_like(K)
    for u in U:
        P += np.minimum(u[:, None], u[None, :], out=least)
    # Row by row: a single sum of n^2 numbers in float32 would lose digits.
    dots = [float(np.einsum("ij,ij->i", a, b).sum(dtype=np.float64)) for a, b in ((K, P), (K, K), (P, P))]
    return {"alignment": dots[0] / np.sqrt(dots[1] * dots[2])}


def our_alignments(store: Any) -> dict[str, Any]:
    """Return the same alignment, computed with all others in one scan."""
    from dasrel.engine.relation import relation
    from dasrel.judging.alignment import surface

    found = surface(relation(store), [partition(store.n_objects, c) for c in NUMBERS], KERNELS)
    return {"alignment": float(found.alignment[NUMBERS.index(MIDDLE), -1])}


def measure_align(store: Path, given: argparse.Namespace, data: str) -> None:
    ours = in_process(sys.executable, "dasrel", "align", store, given.times)
    theirs = in_process(sys.executable, "numpy", "align", dense_file(store), 1)
    pairs = len(KERNELS) * len(NUMBERS)
    say(
        what=f"{pairs} alignments, one scan", data=data, n=given.n, **ours, numpy_seconds_for_one=theirs["seconds"],
        numpy_anonymous_mb=theirs["anonymous_mb"], difference=abs(ours["alignment"] - theirs["alignment"]),
        times_faster_than_one=theirs["seconds"] / ours["seconds"],
        times_faster=pairs * theirs["seconds"] / ours["seconds"],
    )  # fmt: skip
    say(what="min-sum on one core", **min_sum_rate())


def min_sum_rate() -> dict[str, Any]:
    """Measure minima per second, from partitions of 2 and of 60 clusters with one kernel: the difference is P alone."""
    from dasrel.kernels.proximity import InnerProducts, add_inner_products

    rows, columns, seconds = 256, 4096, {}
    K = np.random.default_rng(0).random((1, rows, columns), dtype=np.float32)
    for clusters in (2, 60):
        U, V = partition(rows, clusters), partition(columns, clusters)
        U, V = np.ascontiguousarray(U), np.ascontiguousarray(V)
        best = float("inf")
        for _ in range(20):
            sums = InnerProducts.zeros(1, 1)
            began = time.thread_time()
            add_inner_products(K, U, V, [0, clusters], sums, np.zeros((1, rows)), np.zeros((1, columns)))
            best = min(best, time.thread_time() - began)
        seconds[clusters] = best
    return {"minima_per_second": 58 * rows * columns / (seconds[60] - seconds[2])}


# -------------------------------------------------------------------------------------------------------------- data


def features(data: str, n: int) -> tuple[Any, str]:
    """Return features of objects, and their metric."""
    rng = np.random.default_rng(0)
    if data == "digits":
        from sklearn.datasets import load_digits

        images = load_digits().data
        return images[rng.integers(0, len(images), n)] + rng.normal(size=(n, images.shape[1])), "euclidean"
    places = rng.dirichlet(np.full(100, 0.05), 8)
    mixed = [rng.multinomial(2000, rng.dirichlet(30 * places[k] + 1e-3)) for k in rng.integers(0, 8, n)]
    return np.array(mixed, dtype=np.float64), "braycurtis"


def made_store(folder: Path, data: str, n: int) -> Path:
    """Write the store of a data set, unless it is there."""
    import dasrel

    path = folder / f"{data}-{n}.zarr"
    if path.exists():
        return path
    if data == "noise":
        from scan import random_store  # the bench next to this one

        random_store(path, n, "distance")
    else:
        X, metric = features(data, n)
        np.save(folder / "features.npy", X)
        dasrel.pairwise(str(folder / "features.npy"), str(path), metric=metric)
    return path


def dense_file(store: Path) -> Path:
    """Write the complete matrix for the other side."""
    from mst import in_memory  # the bench next to this one

    import dasrel

    path = store.with_suffix(".npy")
    if not path.exists():
        np.save(path, in_memory(dasrel.open_matrix(str(store))))
    return path


# ------------------------------------------------------------------------------------------------------------- parts


def beside(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of scikit-bio for a line beside ours."""
    if not theirs:
        return {"scikit_bio": "not installed"}
    numbers = {f"scikit_bio_{name}": value for name, value in theirs.items()}
    return {**numbers, "times_faster": theirs["seconds"] / ours["seconds"]}


def measure_axes(store: Path, given: argparse.Namespace, data: str) -> None:
    ours = in_process(sys.executable, "dasrel", "axes", store, given.times)
    theirs = in_process(given.peer, "scikit-bio", "axes", dense_file(store), given.times)
    values, others = np.array(ours.pop("values")), np.array(theirs.pop("values", []))
    line = {"values_difference": float(np.abs(values / others[: len(values)] - 1).max())} if theirs else {}
    if given.n <= DENSE:
        D = np.load(dense_file(store)).astype(np.float64) ** 2
        D -= D.mean(axis=0)
        D -= D.mean(axis=1, keepdims=True)
        exact = np.linalg.eigvalsh(-0.5 * D)[::-1]
        line["values_error"] = float(np.abs(values / exact[: len(values)] - 1).max())
        if theirs:
            line["scikit_bio_values_error"] = float(np.abs(others / exact[: len(others)] - 1).max())
        line["exact_negative_share"] = float(-exact[exact < 0].sum() / np.abs(exact).sum())
    say(what=f"{AXES} axes", data=data, n=given.n, **ours, **beside(ours, theirs), **line)


def measure_permanova(store: Path, given: argparse.Namespace, data: str) -> None:
    ours = in_process(sys.executable, "dasrel", "permanova", store, given.times)
    theirs = in_process(given.peer, "scikit-bio", "permanova", dense_file(store), 1)
    say(
        what=f"PERMANOVA, {PERMUTATIONS} permutations, {GROUPS} groups", data=data, n=given.n, **ours,
        **beside(ours, theirs),
        sums_per_second=given.n**2 / 2 * (PERMUTATIONS + 1) / ours["seconds"],
    )  # fmt: skip


PARTS: dict[str, Callable[[Path, argparse.Namespace, str], None]] = {
    "axes": measure_axes,
    "permanova": measure_permanova,
    "align": measure_align,
}


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        run_side(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"which parts: {', '.join(PARTS)}; all if not given")
    parser.add_argument("--n", type=int, default=16_384)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--data", nargs="+", default=["digits"], choices=["digits", "communities", "noise"])
    parser.add_argument("--peer", default=sys.executable, help="an interpreter that has scikit-bio")
    parser.add_argument("--dir", type=Path, help="where the stores are made; a temporary folder if not given")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for data in given.data:
            store = made_store(folder, data, given.n)
            for part in given.parts or PARTS:
                PARTS[part](store, given, data)


if __name__ == "__main__":
    main()
