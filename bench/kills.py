"""Kill a workflow again and again, and compare its results with those of an undisturbed run, bit by bit.

    python bench/kills.py [--kills 20] [--seed 0] [--n 1200]

One JSON line for each kill (seconds after the start, the step that was running) and one at the end. The workflow
computes a matrix, appends to it, analyses it and draws images; the process group gets SIGKILL at moments drawn
uniformly from the time that an undisturbed run takes. A run that finishes before its kill is compared, and the next one
starts from nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORKFLOW = """
out = "out"

[pairwise]
features = "x.npy"
metric = "cityblock"
kind = "squared-distance"
tile = 128

[append.more]
source = "y.npy"

[spectrum]
picture = true
every = 1

[euclideanize.ultra]
method = "ultrametric"
floor_zeros = 1e-6
every = 1

[cluster.fuzzy]
rule = ["fcm1", "fcm2"]
clusters = [3, 4]
n_init = 4
tol = 1e-6
max_iter = 60
on_negative = "heal"
euclideanize = "ultra"
every = 2

[cluster.hard]
rule = "hard"
clusters = 4
every = 1

[tree]

[image.ivat]
order = "ivat"

[image.labels]
order = "labels"
result = "hard"

[figure.who]
result = "fuzzy/fcm1-clusters4"

[export.all]
format = "npy"
relation = "ultra"
"""
TIMES = ("result.json", "run.state.json", "run.lock")
"""Files that contain times."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=1200, help="objects")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dasrel-kills-") as folder:
        measure(Path(folder), options.kills, random.Random(options.seed), options.n)


def measure(home: Path, kills: int, chance: random.Random, n: int) -> None:
    points = np.random.default_rng(0).normal(size=(n, 6)) + 4 * np.arange(n)[:, None] % 3
    np.save(home / "x.npy", points[: n - n // 10])
    np.save(home / "y.npy", points[n - n // 10 :])
    (home / "w.toml").write_text(WORKFLOW)
    began = time.perf_counter()
    assert start(home).wait() == 0
    alone = time.perf_counter() - began
    shutil.move(home / "out", home / "undisturbed")
    wanted = bits(home / "undisturbed")

    began = time.perf_counter()
    done = same = 0
    where: dict[str, int] = {}
    while sum(where.values()) < kills:
        process = start(home)
        moment = chance.uniform(0, alone)
        try:
            code = process.wait(moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            step = under_way(home / "out")
            where[step] = where.get(step, 0) + 1
            print(json.dumps({"kill": sum(where.values()), "seconds": round(moment, 2), "step": step}), flush=True)
        else:
            assert code == 0, (home / "errors").read_text()
            done, same = done + 1, same + (bits(home / "out") == wanted)
            shutil.rmtree(home / "out")
            print(json.dumps({"came to its end": done, "with the same bits": same}), flush=True)
    assert start(home).wait() == 0
    done, same = done + 1, same + (bits(home / "out") == wanted)
    print(
        json.dumps(
            {
                "kills": sum(where.values()), "in": where, "came to their end": done, "with the same bits": same,
                "files": len(wanted), "MB": round(sum(map(len, wanted.values())) / 1e6, 1),
                "left behind": sorted(one.name for one in (home / "out").glob(".*") if one.name != ".work"),
                "seconds": round(time.perf_counter() - began, 1), "undisturbed": round(alone, 1),
            }
        )
    )  # fmt: skip
    if same < done:
        sys.exit(1)


def start(home: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "dasrel", "run", str(home / "w.toml"), "--quiet"]
    with (home / "errors").open("w") as errors:
        return subprocess.Popen(words, start_new_session=True, stderr=errors)


def under_way(out: Path) -> str:
    """Return the step that was running, according to the state file."""
    try:
        steps = json.loads((out / "run.state.json").read_text())["steps"]
    except FileNotFoundError:
        return "before the first"
    return next((name for name, step in steps.items() if step.get("now")), "between steps")


def bits(out: Path) -> dict[str, bytes]:
    """Return all that a run has written, except times."""
    files = (file for file in out.rglob("*") if file.is_file() and file.name not in TIMES)
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


if __name__ == "__main__":
    main()
