"""A small workflow, run, changed and looked at."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.commands import demo
from dasrel.errors import DasrelWarning
from dasrel.workflow import status
from dasrel.workflow.run import run_workflow
from dasrel.workflow.schema import read_workflow
from tests.helpers.matrices import blobs, distances

N = 40

SMALL = """
[import]
source = "d.npy"
kind = "distance"
tile = 16

[spectrum]

[euclideanize.ultra]
method = "ultrametric"

[cluster.a]
rule = "fcm1"
clusters = 2
n_init = 2
fuzzifier = 2

[cluster.b]
rule = "hard"
clusters = [2, 3]
n_init = 2
euclideanize = "ultra"

[image.ivat]
order = "ivat"
pixels = 20

[image.labels]
order = "labels"
result = "a"
pixels = 20

[figure.who]
result = "b/hard-clusters3"

[tree]

[export.all]
format = "npy"
"""
FILES = {
    "matrix": "matrix.zarr", "spectrum": "spectrum.json", "ultra": "ultra.npz", "a": "a", "b": "b", "ivat": "ivat.png",
    "labels": "labels.png", "who": "who.png", "tree": "tree", "all": "all.npy",
}  # fmt: skip


def points() -> np.ndarray:
    """Two groups, far apart."""
    return blobs(N // 2, [[0, 0], [20, 20]])


def begin(folder: Path, text: str = SMALL) -> None:
    """Put the matrix and the workflow into a folder."""
    np.save(folder / "d.npy", distances(points()))
    (folder / "w.toml").write_text(text)


def run(path: Path, *, out: Path | None = None, trust: bool = True) -> dict[str, str]:
    """What has become of each step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DasrelWarning)
        return {one["step"]: one["status"] for one in run_workflow(read_workflow(path, out=out), trust=trust).steps}


def redone(path: Path) -> set[str]:
    found = run(path)
    assert set(found.values()) <= {"done", "unchanged"}
    return {name for name, status in found.items() if status == "done"}


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


def contents(out: Path) -> dict[str, bytes]:
    """All bytes that a workflow has written, without times and paths, and hashes of them."""
    return {
        str(file.relative_to(out)): re.sub(rb'"(source|identity)": ".*?"', b"", file.read_bytes())
        for file in sorted(out.rglob("*"))
        if file.is_file() and file.name not in ("result.json", status.STATE, status.LOCK)
    }


def write_rows(folder: Path, name: str, first: int, last: int) -> None:
    full = distances(points())
    np.save(folder / name, full[first:last, :last])


def appending(folder: Path) -> Path:
    full = distances(points())
    np.save(folder / "d.npy", full[:30, :30])
    write_rows(folder, "e.npy", 30, 36)
    path = folder / "w.toml"
    path.write_text(
        "[import]\nsource = 'd.npy'\nkind = 'distance'\ntile = 8\n[append.one]\nsource = 'e.npy'\n"
        "[export.all]\nformat = 'npy'\n[tree]\n"
    )
    return path


def fewer_digits(patch: pytest.MonkeyPatch) -> Any:
    """Let 300 of the demo's digits take the place of all; return which digits they are."""
    images, truth = (of[:300] for of in demo.read_digits())
    patch.setattr(demo, "read_digits", lambda: (images, truth))
    return truth
