"""Undamaged stores, models, relations, checkpoints, trees and workflows, with what commands make of them."""

import shutil
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

N, TILE = 10, 4
STORES = ("plain", "double", "kernel", "packed", "grown")
CLUSTER = ["--rule", "fcm1", "--clusters", "3", "--n-init", "2", "--max-iter", "6", "--tol", "0", "--no-picture"]
WORKFLOW = """
[import]
source = "d.npy"
kind = "distance"
tile = 4

[spectrum]

[euclideanize.ultra]
method = "ultrametric"

[cluster.a]
rule = "fcm1"
clusters = [2, 3]
n_init = 2
max_iter = 5

[cluster.b]
rule = "hard"
clusters = 2
euclideanize = "ultra"

[image.ivat]
order = "ivat"
pixels = 20

[tree]

[export.all]
format = "npy"
"""


RESULTS = {
    "cluster": "cluster {store} {out} --rule hard --clusters 2,3 --max-iter 3",
    "outliers": "outliers {store} {out} --reject 0.2",
    "density": "density {store} {out} --min-size 3 --no-picture",
    "linkage": "tree {store} {out} --linkage average --clusters 2 --no-picture",
    "tree": "tree {store} {out} --no-picture",
    "embed": "embed {store} {out} --no-picture",
    "align": "align {store} {out} --rule hard --clusters 2 --width 1 --n-init 1 --max-iter 3 --no-picture",
}
"""Commands that write a folder of which pages are made."""
PRINTED = {
    "spectrum": "spectrum {store}", "audit": "audit {store}", "validity": "validity {store} {cluster}/labels.csv",
    "euclideanize": "euclideanize {store} --method power --out {out}.npz",
}  # fmt: skip
"""Commands whose JSON object a page is made of."""


def commands(store: Path, out: Path) -> dict[str, list[str]]:
    """What is done with a store; the results are compared with those of the undamaged one."""
    return {
        "export": ["export", str(store), str(out / "m.npy"), "--format", "npy"],
        "lsmat": ["export", str(store), str(out / "m.lsmat"), "--format", "lsmat"],
        "cluster": ["cluster", str(store), str(out / "result"), *CLUSTER],
        "tree": ["tree", str(store), str(out / "tree")],
        "audit": ["audit", str(store), "--verify", "--json"],
        "spectrum": ["spectrum", str(store), "--json"],
        "image": ["image", str(store), str(out / "m.png"), "--pixels", "20"],
        "append": ["append", str(store), str(out / "rows.npy")],
    }


def points(seed: int = 3) -> Any:
    return np.random.default_rng(seed).random((N + 2, 3))


def distances() -> Any:
    x = points()
    return np.sqrt(((x[:, None] - x) ** 2).sum(axis=2))


def build(base: Path) -> None:
    """Make all of it in an empty folder, by the commands, in this process."""
    import dasrel
    from dasrel.cli import app

    def run(*arguments: object) -> None:
        code = app.run([*map(str, arguments), "--quiet"])
        if code:
            raise RuntimeError(f"exit code {code}: {arguments}")

    warnings.simplefilter("ignore")
    base.mkdir(parents=True)
    x = points()
    full = distances()
    np.save(base / "d.npy", full[:N, :N])
    np.save(base / "k.npy", (x @ x.T)[:N, :N])
    np.save(base / "first.npy", full[:7, :7])
    np.save(base / "rest.npy", full[7:N, :N])
    np.save(base / "rows.npy", full[N:])
    np.save(base / "new.npy", full[N:, :N])
    np.savetxt(base / "new.csv", full[N:, :N], delimiter=",")
    tile = ("--tile", TILE)
    run("import", base / "d.npy", base / "plain.zarr", "--kind", "distance", *tile)
    run("import", base / "d.npy", base / "double.zarr", "--kind", "distance", "--store-dtype", "float64", *tile)
    run("import", base / "k.npy", base / "kernel.zarr", "--kind", "kernel", *tile)
    run("import", base / "d.npy", base / "packed.zarr", "--kind", "distance", "--compress", "lz4", *tile)
    run("import", base / "first.npy", base / "grown.zarr", "--kind", "distance", *tile)
    run("append", base / "grown.zarr", base / "rest.npy")
    for name in STORES:
        out = base / "expected" / name
        out.mkdir(parents=True)
        for command, line in commands(base / f"{name}.zarr", out).items():
            if command not in ("append", "image", "audit", "spectrum"):
                run(*line)
    plain = base / "plain.zarr"
    for method in ("ultrametric", "spread", "power"):
        run("euclideanize", plain, "--method", method, "--out", base / f"{method}.npz")
        run("export", plain, base / f"{method}.npy", "--format", "npy", "--relation", base / f"{method}.npz")
    for rule in ("fcm1", "fcm2", "pcm1", "hard"):
        run("cluster", plain, base / f"model-{rule}", "--rule", rule, "--clusters", 3, "--max-iter", 5, "--no-picture")
        run("predict", base / f"model-{rule}", base / "new.npy", base / f"model-{rule}.csv")
    run("outliers", plain, base / "model-outliers", "--reject", 0.2, "--no-picture")
    run("predict", base / "model-outliers", base / "new.npy", base / "model-outliers.csv")
    run("density", plain, base / "model-density", "--min-size", 3, "--no-picture")
    run("predict", base / "model-density", base / "new.npy", base / "model-density.csv")
    for name, line in RESULTS.items():
        run(*line.format(store=plain, out=base / "results" / name).split())
    for name, line in PRINTED.items():
        words = line.format(store=plain, out=base / "results" / name, cluster=base / "results/cluster/best").split()
        with open(base / "results" / f"{name}.json", "w") as file, redirect_stdout(file):
            run(*words, "--json")
    with dasrel.watch(lambda event: _keep(base, event.scans)):
        run("cluster", plain, base / "interrupted", *CLUSTER, "--checkpoint", base / "running")
    (base / "flow").mkdir()
    shutil.copy(base / "d.npy", base / "flow")
    (base / "flow" / "w.toml").write_text(WORKFLOW)
    run("run", base / "flow" / "w.toml")


def _keep(base: Path, scans: int) -> None:
    """Keep the checkpoints that there are in the middle of a run."""
    if scans == 5 and not (base / "state").exists():
        (base / "state").mkdir()
        for file in (base / "running").glob("*.npz"):
            shutil.copy(file, base / "state")
