"""Damaged models, relations, checkpoints and trees: results are those of the undamaged file, or it is refused."""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.system.fuzz.base import CLUSTER
from tests.system.fuzz.damage import Rng, chance, damaged_json, damaged_text, pick
from tests.system.fuzz.judge import Case, Outcome
from tests.system.fuzz.sources import npy_bytes, zip_damage

NUMBERS = (0.0, -1.0, 1.0, 0.5, 1e308, -1e308, 1e-308, np.nan, np.inf, -np.inf, 7.0, 2.0**40)


def damaged_archive(rng: Rng, path: Path) -> bool:
    """Damage an archive; whether it was done as a program would that writes other values, with all checksums right."""
    if chance(rng, 0.05):
        path.unlink()
        which = int(rng.integers(4))
        if which == 0:
            os.mkfifo(path)
        elif which == 1:
            path.mkdir()
        elif which == 2:
            path.write_bytes(b"")
        return False
    data = path.read_bytes()
    if chance(rng, 0.5):
        path.write_bytes(zip_damage(rng, data))
        return False
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = pick(rng, sorted(members))
    array = np.load(io.BytesIO(members[name]))
    change = int(rng.integers(8))
    if change == 0:
        del members[name]
    elif change == 1:
        members[name] = npy_bytes(rng, array)
    elif change == 2:
        members[name] = members[pick(rng, sorted(members))]
    elif name in ("about.npy", "ids.npy"):
        try:
            about = damaged_json(rng, json.loads(array.tobytes()))
        except ValueError:
            about = None
        members[name] = npy_bytes(rng, np.frombuffer(json.dumps(about).encode(), np.uint8), damage=False)
    elif change == 3:
        members[name] = npy_bytes(rng, array.reshape(-1) if array.ndim > 1 else array.reshape(1, -1), damage=False)
    elif change == 4:
        members[name] = npy_bytes(rng, array[:-1] if array.ndim else array[None], damage=False)
    elif array.size:
        array = array.copy()
        array.flat[int(rng.integers(array.size))] = np.array(pick(rng, NUMBERS)).astype(array.dtype)
        members[name] = npy_bytes(rng, array, damage=False)
    with zipfile.ZipFile(path, "w", pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for one, content in members.items():
            archive.writestr(one, content)
    return True


def model(rng: Rng, folder: Path, base: Path) -> Case:
    """A damaged model predicts as before, or is refused. What a program has written into it on purpose is not known."""
    rule = pick(rng, ("fcm1", "fcm2", "pcm1", "hard", "outliers", "density"))
    result, out = folder / "result", folder / "out.csv"
    shutil.copytree(base / f"model-{rule}", result)
    rewritten = damaged_archive(rng, result / "model.npz")
    if chance(rng, 0.3):
        other = "fcm1" if rule in ("outliers", "density") else rule
        command = ["cluster", str(base / "plain.zarr"), str(folder / "next"), "--rule", other, "--clusters", "3",
                   "--max-iter", "2", "--no-picture", "--warm-start", str(result)]  # fmt: skip
        return Case([command])
    command = ["predict", str(result if chance(rng, 0.5) else result / "model.npz"), str(base / "new.npy"), str(out)]

    def check(done: list[Outcome]) -> str | None:
        if done[-1].code or rewritten or out.read_text() == (base / f"model-{rule}.csv").read_text():
            return fault_of_memberships(out) if not done[-1].code else None
        return "silently wrong: a damaged model predicts something else"

    return Case([command], check)


def fault_of_memberships(out: Path) -> str | None:
    """Predictions have finite memberships, whatever the model."""
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    values = np.array([[float(x) for x in row[2:] if x not in ("true", "false")] for row in rows])
    return None if np.isfinite(values).all() else "silently wrong: memberships that are not finite"


def relation(rng: Rng, folder: Path, base: Path) -> Case:
    """A damaged relation exports the same squared dissimilarities, or is refused."""
    method = pick(rng, ("ultrametric", "spread", "power"))
    path, out = folder / "relation.npz", folder / "out.npy"
    shutil.copy(base / f"{method}.npz", path)
    rewritten = damaged_archive(rng, path)
    if chance(rng, 0.3):
        command = ["cluster", str(base / "plain.zarr"), str(folder / "next"), *CLUSTER, "--euclideanize", str(path)]
        return Case([command])
    command = ["export", str(base / "plain.zarr"), str(out), "--format", "npy", "--relation", str(path)]

    def check(done: list[Outcome]) -> str | None:
        if done[-1].code:
            return None
        values = np.load(out)
        if not np.isfinite(values).all():
            return "silently wrong: a damaged relation gives values that are not finite"
        if rewritten or np.array_equal(values, np.load(base / f"{method}.npy")):
            return None
        return "silently wrong: a damaged relation gives other values"

    return Case([command], check)


def checkpoint(rng: Rng, folder: Path, base: Path) -> Case:
    """A run resumed from a damaged checkpoint ends with the same result, or is refused."""
    shutil.copytree(base / "state", folder / "state")
    files = sorted((folder / "state").glob("*.npz"))
    damaged_archive(rng, pick(rng, files))
    if chance(rng, 0.1):
        (
            folder / "state" / pick(rng, ("cluster-00000009.npz", ".cluster.lock", "cluster-99999999999.npz"))
        ).write_bytes(rng.bytes(40))
    out = folder / "result"
    command = [
        "cluster",
        str(base / "plain.zarr"),
        str(out),
        *CLUSTER,
        "--checkpoint",
        str(folder / "state"),
        "--resume",
    ]

    def check(done: list[Outcome]) -> str | None:
        if done[-1].code:
            return None
        for name in ("labels.csv", "memberships.npy"):
            if (out / name).read_bytes() != (base / "interrupted" / name).read_bytes():
                return f"silently wrong: {name} of a run resumed from a damaged checkpoint differs"
        return None

    return Case([command], check)


def tree(rng: Rng, folder: Path, base: Path) -> Case:
    """A damaged tree loads as it was, or is refused."""
    path = folder / "tree.npz"
    shutil.copy(base / "expected" / "plain" / "tree" / "tree.npz", path)
    rewritten = damaged_archive(rng, path)

    def call() -> str | None:
        import dasrel

        found: Any = dasrel.Tree.load(path)
        wanted: Any = dasrel.Tree.load(base / "expected" / "plain" / "tree" / "tree.npz")
        found.linkage()
        same = np.array_equal(found.edges, wanted.edges) and np.array_equal(found.weights, wanted.weights)
        return None if same or rewritten else "silently wrong: a damaged tree"

    return Case([], call=call)


def rows(rng: Rng, folder: Path, base: Path) -> Case:
    """Damaged rows of new objects, to append or to predict."""
    full = np.load(base / "rows.npy")
    append = chance(rng, 0.5)
    values = full if append else full[:, :-2]
    style = int(rng.integers(3))
    if style == 0:
        path = folder / "rows.npy"
        path.write_bytes(npy_bytes(rng, values))
    elif style == 1:
        path = folder / "rows.csv"
        text = "\n".join(",".join(f"{x:.9g}" for x in row) for row in values) + "\n"
        path.write_bytes(damaged_text(rng, text, ","))
    else:
        path = folder / "rows.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", npy_bytes(rng, values, damage=False))
        path.write_bytes(zip_damage(rng, path.read_bytes()))
    if append:
        shutil.copytree(base / "plain.zarr", folder / "m.zarr")
        return Case([["append", str(folder / "m.zarr"), str(path)]])
    return Case([["predict", str(base / "model-fcm1"), str(path), str(folder / "out.csv")]])
