"""Damaged results: a page is made of them, or they are refused in one line."""

import json
import os
import shutil
from pathlib import Path

from tests.system.fuzz.base import PRINTED, RESULTS
from tests.system.fuzz.damage import Rng, chance, damaged_bytes, damaged_json, damaged_text, pick
from tests.system.fuzz.judge import Case, Outcome


def damage(rng: Rng, file: Path) -> None:
    """Damage one file as what it is, or put something else in its place."""
    if chance(rng, 0.1):
        file.unlink()
        which = int(rng.integers(5))
        if which == 0:
            os.mkfifo(file)
        elif which == 1:
            file.mkdir()
        elif which == 2:
            file.symlink_to(pick(rng, (str(file), "/dev/zero", "/nowhere")))
        elif which == 3:
            file.write_bytes(b"[" * 100_000)
    elif file.suffix == ".json" and chance(rng, 0.9):
        content = json.loads(file.read_text())
        for _ in range(int(rng.integers(1, 4))):
            content = damaged_json(rng, content)
        file.write_text(json.dumps(content))
    elif file.suffix == ".csv":
        file.write_bytes(damaged_text(rng, file.read_text(), ","))
    else:
        file.write_bytes(damaged_bytes(rng, file.read_bytes()))


def result(rng: Rng, folder: Path, base: Path) -> Case:
    """A damaged result, or the folder of a workflow with a damaged state, and the page of it."""
    name = pick(rng, (*RESULTS, *PRINTED, "flow", "flow"))
    page = folder / "page.html"
    if name == "flow":
        shutil.copytree(base / "flow", folder / "flow")
        given = folder / "flow" / "w"
        state = given / "run.state.json"
        others = [file for file in sorted(given.rglob("*.json")) if ".zarr" not in str(file)]
        damage(rng, state if chance(rng, 0.7) else pick(rng, others))
        if chance(rng, 0.4):
            return Case([["run", str(folder / "flow" / "w.toml"), "--status"]])
    elif name in RESULTS:
        given = folder / "result"
        shutil.copytree(base / "results" / name, given)
        files = [file for file in sorted(given.rglob("*")) if file.is_file()]
        damage(rng, given / "result.json" if chance(rng, 0.6) else pick(rng, files))
    else:
        given = folder / f"{name}.json"
        shutil.copy(base / "results" / f"{name}.json", given)
        damage(rng, given)

    def check(done: list[Outcome]) -> str | None:
        if done[-1].code == 0 and page.read_bytes()[:15].lower() != b"<!doctype html>":
            return "exit code 0, and no page"
        return "a page of a result that was refused" if done[-1].code and page.exists() else None

    return Case([["report", str(given), "--out", str(page)]], check)
