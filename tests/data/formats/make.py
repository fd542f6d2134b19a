"""Write the files of this folder with the public API and the command line of dasrel 0.1.0: `python make.py FOLDER`.

They are compatibility data (see README.md): do not write them again with a later dasrel. All paths that get into the
files are relative to FOLDER, which must not exist yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

N, TILE, OLD = 24, 10, 18
MODIFIED = 1_700_000_000_000_000_000
"""Modification time, in nanoseconds, of the source of the interrupted import: a resume compares it."""
NAMES = [f"Ähre {k} \u2603" if k % 3 else f"ape-{k}" for k in range(N)]
METHODS = ("spread", "ultrametric", "power", "exponential", "log")
RULES = ("fcm1", "fcm2", "pcm1", "pcm2", "hard")
CLUSTERED = (
    *("--rule", "fcm1,pcm2,hard", "--clusters", "3", "--n-init", "2", "--spread", "8", "--init", "random"),
    *("--fuzzifier", "2", "--entropy-weight", "9", "--eta-scale", "1", "--no-accelerate"),
)


def points(seed: int, count: int) -> np.ndarray:
    """Points of the plane around three centres."""
    random = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]])
    return centres[np.arange(count) % 3] + random.normal(size=(count, 2))


def matrices(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The matrix of each kind between two sets of points; the distance is no Euclidean one."""
    gaps = x[:, None] - y[None]
    squares = (gaps**2).sum(axis=2)
    return {
        "distance": np.abs(gaps).max(axis=2),
        "squared-distance": squares,
        "similarity": 1 / (1 + squares),
        "kernel": x[:, None, 0] * y[None, :, 0] + x[:, None, 1] * y[None, :, 1],
    }


def run(*arguments: str, code: int = 0) -> None:
    """Run a command of dasrel, which must exit with this code."""
    done = subprocess.run([sys.executable, "-m", "dasrel", *arguments], check=False)
    if done.returncode != code:
        raise SystemExit(f"{arguments} gave {done.returncode}, not {code}")


def stores(full: dict[str, np.ndarray]) -> None:
    """Write a store of each kind and type, and the special ones."""
    tile = ("--tile", str(TILE), "--quiet")
    for kind in full:
        for dtype in ("float32", "float64"):
            run("import", f"sources/{kind}.npy", f"stores/{kind}-{dtype}.zarr", "--kind", kind, "--store-dtype", dtype,
                *tile)  # fmt: skip
    run("import", "sources/distance.npy", "stores/compressed.zarr", "--kind", "distance", "--compress", "lz4", *tile)

    # Two values for one pair, no value for another, a diagonal that is not zero.
    flawed = full["distance"].copy()
    flawed[3, 7] += 0.5
    flawed[2, 11] = flawed[11, 2] = np.nan
    flawed[5, 5] = 0.25
    np.save("sources/flawed.npy", flawed)
    Path("sources/names.txt").write_text("".join(f"{name}\n" for name in NAMES), encoding="utf-8")
    run("import", "sources/flawed.npy", "stores/repaired.zarr", "--kind", "distance", "--ids", "sources/names.txt",
        "--symmetrize", "mean", "--missing", "max", "--diagonal", "zero", "--store-dtype", "float64",
        *tile)  # fmt: skip

    # Each turn writes one tile of six.
    os.utime("sources/distance.npy", ns=(MODIFIED, MODIFIED))
    for more in ((), ("--resume",), ("--resume",)):
        run("import", "sources/distance.npy", "stores/interrupted.zarr", "--kind", "distance", "--store-dtype",
            "float64", "--time-limit", "0s", *tile, *more, code=75)  # fmt: skip

    np.save("sources/first.npy", full["distance"][:OLD, :OLD])
    np.save("sources/added.npy", full["distance"][OLD:])
    os.utime("sources/added.npy", ns=(MODIFIED, MODIFIED))
    run("import", "sources/first.npy", "stores/appended.zarr", "--kind", "distance", "--store-dtype", "float64", *tile)
    shutil.copytree("stores/appended.zarr", "stores/appending.zarr")
    run("append", "stores/appended.zarr", "sources/added.npy", "--quiet")
    run("append", "stores/appending.zarr", "sources/added.npy", "--quiet", "--time-limit", "0s", code=75)


def models(new: dict[str, np.ndarray]) -> None:
    """Save a model of each rule, one of a kernel and one with a spread, and the memberships that they predict."""
    import dasrel

    settings = {rule: ("squared-distance", dasrel.Run(rule, 3)) for rule in RULES}
    settings["kernel"] = "kernel", dasrel.Run("fcm2", 3)
    settings["spread"] = "distance", dasrel.Run("fcm1", 3, spread=8.0)
    for name, (kind, one) in settings.items():
        model = dasrel.cluster(f"stores/{kind}-float64.zarr", one).best.model
        model.save(f"models/{name}.npz")
        own = {"self_similarity": np.diag(new["own"])} if kind == "kernel" else {}
        np.save(f"models/{name}-predicted.npy", model.predict_memberships(new[kind], **own))


def checkpoints() -> None:
    """Interrupt three commands between two scans, and keep what the old code makes of their checkpoints."""
    store, limit = "stores/distance-float64.zarr", ("--time-limit", "0s", "--quiet")
    commands = {
        "cluster": ("cluster", store, "finished", *CLUSTERED),
        "spectrum": ("spectrum", store, "--tol", "1e-9"),
        "euclideanize": ("euclideanize", store, "--method", "power", "--out", "finished.npz"),
    }
    for name, command in commands.items():
        kept = ("--checkpoint", f"checkpoints/{name}")
        for turn in range({"cluster": 12}.get(name, 2)):
            run(*command, *kept, *limit, *(("--resume",) if turn else ()), code=75)
        shutil.copytree(f"checkpoints/{name}", "copy")
        with open(f"checkpoints/{name}.json", "w", encoding="utf-8") as report:
            words = [sys.executable, "-m", "dasrel", *command, "--checkpoint", "copy", "--resume", "--json"]
            subprocess.run(words, check=True, stdout=report if name == "spectrum" else subprocess.DEVNULL)
        shutil.rmtree("copy", ignore_errors=True)
    Path("checkpoints/cluster.json").unlink()
    Path("checkpoints/euclideanize.json").unlink()
    for folder in sorted(Path("finished").glob("*/")):
        shutil.copy(folder / "memberships.npy", f"checkpoints/cluster-{folder.name.split('-')[0]}.npy")
    shutil.rmtree("finished")
    Path("finished.npz").rename("checkpoints/euclideanize.npz")
    for folder in Path("checkpoints").glob("*/"):
        for file in sorted(folder.iterdir())[:-1]:  # the lock, and the checkpoint before the newest
            file.unlink()


def workflow() -> None:
    """Run a workflow to its end."""
    Path("workflow").mkdir()
    np.save("workflow/points.npy", points(3, N))
    Path("workflow/steps.toml").write_text(
        '[pairwise]\nfeatures = "points.npy"\nmetric = "chebyshev"\ntile = 10\n\n[euclideanize]\nmethod = "spread"\n\n'
        '[cluster.fuzzy]\nrule = "fcm2"\nclusters = [2, 3]\nn_init = 2\n\n[tree]\n',
        encoding="utf-8",
    )
    run("run", "workflow/steps.toml", "--quiet")


def numbers(store: str) -> dict[str, str]:
    """Return digests of numbers whose last bits depend on the processor, on BLAS and on the compiled kernel."""
    import dasrel

    factors = np.random.default_rng(4).normal(size=(N, 40))
    relation = dasrel.relation(dasrel.open_matrix(store))
    products = [relation.matmat(factors[:, :k]) for k in (1, 3, 30, 40)]
    positive = np.abs(factors[:, 0]) + 0.5
    functions = [np.exp(positive), np.log(positive), positive**0.7, np.linalg.eigh(factors @ factors.T)[0]]
    return {"products": digest(products), "functions": digest(functions)}


def digest(arrays: list[np.ndarray]) -> str:
    """Return a word for the bits of some arrays."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in arrays)).hexdigest()


def main(folder: str) -> None:
    """Write everything into a new folder."""
    import dasrel

    Path(folder).mkdir()
    os.chdir(folder)
    for name in ("sources", "stores", "models", "relations", "checkpoints"):
        Path(name).mkdir()
    old, fresh = points(1, N), points(2, 5)
    full, new = matrices(old, old), matrices(fresh, old)
    new["own"] = matrices(fresh, fresh)["kernel"]
    for kind, values in full.items():
        np.save(f"sources/{kind}.npy", values)
    np.savez("sources/new.npz", **new)
    stores(full)
    models(new)
    run("tree", "stores/distance-float64.zarr", "tree", "--quiet")
    for method in METHODS:
        run("euclideanize", "stores/distance-float64.zarr", "--method", method, "--out", f"relations/{method}.npz",
            "--quiet")  # fmt: skip
        run("export", "stores/distance-float64.zarr", f"relations/{method}.npy", "--format", "npy", "--relation",
            f"relations/{method}.npz", "--quiet")  # fmt: skip
    # A result of the first objects, and what a warm start on the grown store makes of it.
    run("import", "sources/first.npy", "first.zarr", "--kind", "distance", "--store-dtype", "float64", "--quiet")
    run("cluster", "first.zarr", "result", "--rule", "fcm2", "--clusters", "3", "--quiet")
    run("cluster", "stores/appended.zarr", "warm", "--rule", "fcm2", "--clusters", "3", "--warm-start", "result",
        "--quiet")  # fmt: skip
    shutil.copy("warm/memberships.npy", "result-warm-start.npy")
    shutil.rmtree("first.zarr")
    shutil.rmtree("warm")
    checkpoints()
    workflow()
    made = {"version": dasrel.__version__, **numbers("stores/distance-float64.zarr")}
    Path("made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    Path("sources/first.npy").unlink()


if __name__ == "__main__":
    main(sys.argv[1])
