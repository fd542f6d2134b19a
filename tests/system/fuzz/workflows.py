"""Damaged workflow files, and damaged records of what a workflow has done."""

import shutil
from pathlib import Path

from tests.system.fuzz.base import WORKFLOW
from tests.system.fuzz.damage import Rng, chance, damaged_bytes, pick
from tests.system.fuzz.judge import Case, Outcome

TOML_VALUES = (
    "0", "-1", "1", "9" * 5000, "1e400", "nan", "-inf", "true", '""', '"x"', '"\\u0000"', '"a\\nb"', "[]",
    "[1, 2]", "{}", "[" * 2000, '"/"', '"../../x"', '"~nouser/x"', '"s3://x"', '"memory://x"', '"file:///etc/passwd"',
    "2020-01-01", "[[1]]", "{a = 1}",
    '"d.npy"', '"w.toml"', '"."', '"matrix"', '"a"', '"b"', '"ultra"', '"a/x"', '"kernel"',
    "0x10", '"lots"', '"-5GB"', "'''x'''", '"\\U0001F600"', "1979-05-27T07:32:00Z", "1" + "0" * 30,
    '"' + "a" * 5000 + '"',
)  # fmt: skip
KEYS = (
    "out", "source", "kind", "tile", "clusters", "n_init", "max_iter", "rule", "memory", "store", "result", "order",
    "warm_start", "euclideanize", "format", "relation", "method", "alpha", "dask", "x", '""', '"a.b"', "ids", "columns",
    "fuzzifier", "missing", "strict", "every", "seed", "compress", "store_dtype", "path", "features", "metric",
)  # fmt: skip
TABLES = (
    "[runtime]", "[store]", "[store.s]", "[append.more]", "[import.two]", "[cluster.c]", "[figure.f]", "[image.i]",
    "[pairwise]", "[x]", "[[import]]", '["\\u0000"]', "[cluster.a.b]", "[export.e]", "[demo]", "[cluster]", "[tree.t]",
    "[cluster.'x y']", "[" + "a." * 3000 + "b]",
)  # fmt: skip


def damaged_toml(rng: Rng, text: str) -> bytes:
    """A workflow with other values, keys, tables or bytes."""
    for _ in range(int(rng.integers(1, 4))):
        lines = text.split("\n")
        change = int(rng.integers(8))
        keys = [k for k, line in enumerate(lines) if " = " in line]
        if change <= 2 and keys:
            k = pick(rng, keys)
            lines[k] = f"{lines[k].partition(' = ')[0]} = {pick(rng, TOML_VALUES)}"
        elif change == 3:
            lines.insert(int(rng.integers(len(lines) + 1)), f"{pick(rng, KEYS)} = {pick(rng, TOML_VALUES)}")
        elif change == 4:
            lines.insert(int(rng.integers(len(lines) + 1)), pick(rng, TABLES))
        elif change == 5:
            lines.pop(int(rng.integers(len(lines))))
        elif change == 6:
            a, b = (int(k) for k in rng.integers(len(lines), size=2))
            lines[a], lines[b] = lines[b], lines[a]
        else:
            return damaged_bytes(rng, text.encode())
        text = "\n".join(lines)
    return text.encode()


def chained(rng: Rng) -> str:
    """Many steps, each of which begins with the result of another."""
    count = pick(rng, (3, 50, 1500))
    steps = [
        f"[cluster.c{k}]\nrule = 'hard'\nclusters = 2\nwarm_start = 'c{k + pick(rng, (1, 1, 2, -1, 0))}'"
        for k in range(count)
    ]
    return "\n".join(['[import]\nsource = "d.npy"\nkind = "distance"', *steps])


def workflow(rng: Rng, folder: Path, base: Path) -> Case:
    """A damaged workflow file: its status, what would be done, and now and then the run itself."""
    shutil.copy(base / "d.npy", folder)
    text = chained(rng) if chance(rng, 0.05) else WORKFLOW
    (folder / "w.toml").write_bytes(damaged_toml(rng, text))
    how = pick(rng, ("--status", "--status", "--dry-run", "--dry-run", "--quiet"))
    return Case([["run", str(folder / "w.toml"), how]])


def results(out: Path) -> dict[str, bytes]:
    """The numbers and tables that a workflow has written; other files name times and identities."""
    return {
        str(file.relative_to(out)): file.read_bytes()
        for file in sorted(out.rglob("*"))
        if file.is_file() and (file.suffix in (".npy", ".csv") or "values/c" in str(file))
    }


def workflow_state(rng: Rng, folder: Path, base: Path) -> Case:
    """A finished workflow of which a file was damaged or lost: it says so, or makes the same again."""
    flow = folder / "flow"
    shutil.copytree(base / "flow", flow)
    files = sorted(file for file in (flow / "w").rglob("*") if file.is_file() and "values/c" not in str(file))
    hidden = [file for file in files if file.name.startswith(".") or file.suffix == ".json"]
    for _ in range(int(rng.integers(1, 3))):
        file = pick(rng, hidden if chance(rng, 0.6) else files)
        if not file.is_file():
            continue
        if chance(rng, 0.3):
            file.unlink()
            if chance(rng, 0.2):
                file.mkdir()
        else:
            file.write_bytes(damaged_bytes(rng, file.read_bytes()))
    line = ["run", str(flow / "w.toml")]

    def check(done: list[Outcome]) -> str | None:
        if done[-1].code:
            return None
        if results(flow / "w") == results(base / "flow" / "w"):
            return None
        return "silently wrong: a workflow that was repaired has other outputs"

    if chance(rng, 0.4):
        return Case([[*line, pick(rng, ("--status", "--dry-run"))]])
    return Case([[*line, "--check", "--quiet"]], check)
