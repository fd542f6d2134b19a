"""Write the files of this folder, into the current one: `mkdir /tmp/formats; cd /tmp/formats; python .../make.py`.

They are what dasrel 0.2.0 writes, and every later version opens them (docs/reference/store.md): they are not written
again. A new format gets files of its own beside these. The state of the workflow names files by their full paths, which
does not matter elsewhere: files at other paths are read again, and known by their content.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

import dasrel
from dasrel.cli import app

N, TILE = 12, 8
RULES = ("fcm1", "fcm2", "pcm1", "pcm2", "hard")
WORKFLOW = '[pairwise]\nfeatures = "points.npy"\nmetric = "euclidean"\n\n[tree]\n'


def points() -> Any:
    """Points with whole coordinates, in two groups: every machine has the same distances."""
    return np.array([[k % 4 + 9 * (k % 2), k // 4] for k in range(N)], dtype=np.float64)


def matrix(kind: str) -> Any:
    """The matrix of a kind."""
    x = points()
    squares = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    known = {"distance": np.sqrt(squares), "squared-distance": squares, "similarity": 1 / (1 + squares)}
    return known.get(kind, x @ x.T)


def clustering(out: str, *more: str) -> list[str]:
    """The command of the result and of the checkpoint."""
    options = "--rule fcm2 --clusters 2 --entropy-weight 4 --init random --stop memberships"
    options += " --no-accelerate --no-picture --quiet"
    return ["cluster", "stores/distance.zarr", out, *options.split(), *more]


def run(line: list[str], code: int = 0) -> None:
    """Run a command in this process."""
    assert app.run(line) == code, line


def main() -> None:
    """Write everything into the current folder."""
    for name in ("stores", "models", "trees", "checkpoint", "workflow", "result"):
        shutil.rmtree(name, ignore_errors=True)
        Path(name).mkdir()
    for kind in dasrel.KINDS:
        writing = dasrel.Writing("float64", tile=TILE)
        dasrel.import_matrix(matrix(kind), f"stores/{kind}.zarr", kind=kind, writing=writing)
    dasrel.import_matrix(
        matrix("distance")[:9, :9], "stores/appended.zarr", kind="distance",
        reading=dasrel.Reading(ids=[f"é{k}" for k in range(9)]), writing=dasrel.Writing(tile=TILE, compress="lz4"),
    )  # fmt: skip
    dasrel.append("stores/appended.zarr", matrix("distance")[9:], ids=[f"é{k}" for k in range(9, N)])
    for rule in RULES:
        best = dasrel.cluster("stores/distance.zarr", dasrel.Run(rule, 2, init="rows", max_iter=500)).best
        best.model.save(f"models/{rule}.npz")
    dasrel.minimum_spanning_tree("stores/distance.zarr").save("trees/tree.npz")
    dasrel.linkage("stores/distance.zarr", method="average").save("trees/dendrogram.npz")
    dasrel.euclideanize("stores/distance.zarr", method="ultrametric").save("trees/euclidean.npz")
    shutil.rmtree("result")
    run(clustering("result"))
    run(clustering("other", "--checkpoint", "checkpoint", "--time-limit", "0s"), 75)
    np.save("workflow/points.npy", points())
    Path("workflow/steps.toml").write_text(WORKFLOW, encoding="utf-8")
    run(["run", "workflow/steps.toml", "--quiet"])


if __name__ == "__main__":
    main()
