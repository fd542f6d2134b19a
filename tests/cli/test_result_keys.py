"""The keys of all that commands write and print, against the table of docs/result-files.md."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasrel.cli import app
from dasrel.commands import demo
from dasrel.workflow import run
from tests.helpers.workflows import fewer_digits

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "result-files.md"
Keys = dict[tuple[str, str], set[str]]
"""The types of values, by output and key."""
TYPES = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list", dict: "object"}

NUMBERS = (
    "--fuzzifier 2 --entropy-weight auto,9 --eta-scale 1 --eta cut --eta-cut 0.4 --eta-refit"
    " --stop memberships --norm 2 --tol 1e-5"
)
RUNS = f"--rule fcm2,pcm1 --clusters 2 --n-init 2 {NUMBERS} --on-negative heal --history --race"
ONE = "--rule fcm1 --clusters 2 --n-init 1 --on-negative heal"
FOUR = "--rule fcm1 --clusters 4 --n-init 1 --on-negative heal"
WORKERS = "--workers 1,2 --probe 0.02"
COMMANDS = [
    ("audit", "import d.npy d.zarr --kind distance --tile 16 --ids ids.txt"),
    ("audit", "import flaws.npy f.zarr --kind distance --symmetrize mean --missing fill=9 --clip-negative 0.1"),
    ("audit", "audit d.zarr --verify --spectrum"),
    ("audit", "pairwise points.npy e.zarr --metric minkowski --metric-option p=3 --tile 16"),
    ("audit", "pairwise points.npy square.zarr --metric euclidean --tile 16"),
    ("audit", "pairwise points.npy k.zarr --metric rbf --metric-option gamma=0.1 --kind kernel --tile 16"),
    ("part", "import d.npy p.zarr --kind distance --tile 16 --part 1/2"),
    ("audit", "audit p.zarr"),
    ("cluster", f"cluster d.zarr out {RUNS} --choose dunn"),
    ("cluster", f"cluster d.zarr one {ONE} --euclideanize power"),
    ("cluster", f"cluster d.zarr before {FOUR} --max-iter 1"),
    ("append", "append d.zarr rows.npy --ids rows.txt"),
    ("audit", "audit d.zarr"),
    ("cluster", f"cluster d.zarr warm {FOUR} --warm-start before --spread 0.5 --accelerate"),
    ("cluster", "cluster d.zarr three --rule hard --clusters 2,3 --n-init 1"),
    ("cluster", f"cluster d.zarr spread {FOUR} --spread 400"),
    ("cluster", "cluster d.zarr pcm --rule pcm2 --clusters 2 --n-init 1 --on-negative heal"),
    ("predict", "predict warm new.npy predicted.csv --ids more.txt"),
    ("align", "align d.zarr aligned --clusters 2-4"),
    ("align", "align d.zarr widths --clusters 2,3 --width 1,2 --fuzzifier 2 --n-init 1"),
    ("align", "align k.zarr kernel-aligned --clusters 2,3 --n-init 1"),
    ("dry-run", "align d.zarr dry --dry-run"),
    ("outliers", "outliers d.zarr odd --width auto,2 --reject 0.1"),
    ("outliers", "outliers d.zarr kernel --width none --euclideanize spread"),
    ("outliers", "outliers e.zarr shapes --width 1.5 --clusters --euclideanize spread"),
    ("outliers", "outliers square.zarr checked --width 2 --clusters --features points.npy"),
    ("outliers", "outliers square.zarr eigen --width 2 --clusters"),
    ("predict", "predict kernel new.npy odd.csv --ids more.txt"),
    ("dry-run", "outliers d.zarr dry --clusters --dry-run"),
    ("validity", "validity d.zarr warm warm/labels.csv --index dunn,silhouette -o indices.csv"),
    ("validity", "validity d.zarr warm --permutations 19 --seed 3 -o all.csv"),
    ("compare", "compare three/best warm -o compared.csv"),
    ("compare", "compare warm three/best"),
    ("compare", "compare warm spread"),
    ("compare", "compare pcm pcm/labels.csv"),
    ("plan", f"plan d.zarr {ONE} {WORKERS}"),
    ("plan", f"cluster d.zarr dry {RUNS} --euclideanize spread --dry-run"),
    ("dry-run", "import d.npy new.zarr --kind distance --dry-run"),
    ("dry-run", "import pairs.tsv new.zarr --kind distance --format pairs --dry-run"),
    ("dry-run", "import square.csv new.zarr --kind distance --dry-run"),
    ("dry-run", "pairwise points.npy new.zarr --metric euclidean --dry-run"),
    ("dry-run", "append d.zarr more.npy --ids more.txt --dry-run"),
    ("dry-run", "audit d.zarr --spectrum --dry-run"),
    ("dry-run", "predict warm new.npy new.csv --dry-run"),
    ("dry-run", "validity d.zarr warm --dry-run"),
    ("dry-run", "spectrum d.zarr --dry-run"),
    ("dry-run", "euclideanize d.zarr --method log --out new.npz --dry-run"),
    ("dry-run", "tree d.zarr new --dry-run"),
    ("dry-run", "tree d.zarr new --linkage average --dry-run"),
    ("dry-run", "tree d.zarr new --linkage average --memory 183kB --dry-run"),
    ("dry-run", "image d.zarr new.png --dry-run"),
    ("dry-run", "export d.zarr dry.npy --format npy --dry-run"),
    ("spectrum", "spectrum d.zarr"),
    ("dry-run", "embed d.zarr axes --dry-run"),
    ("embed", "embed d.zarr axes --components 3 --result warm"),
    ("embed", "embed d.zarr spread-axes --components 2 --correction spread --labels warm/labels.csv"),
    ("euclideanize", "euclideanize d.zarr --method log --floor-zeros 0.001 --out log.npz"),
    ("euclideanize", "euclideanize d.zarr --method spread --out spread.npz"),
    ("export", "export d.zarr d.csv --format lsmat --relation plain"),
    ("export", "export d.zarr full.npy --format npy"),
    ("density", "density d.zarr dense --min-size 3 --min-samples 2,3 --eps 2"),
    ("density", "density d.zarr single --min-size 3"),
    ("predict", "predict single new.npy dense.csv --ids more.txt"),
    ("dry-run", "density d.zarr new --min-size 3 --dry-run"),
    ("explore", "explore d.zarr explored --clusters 2,3"),
    ("dry-run", "explore d.zarr new --clusters 2 --dry-run"),
    ("medoids", "medoids d.zarr medoids --clusters 2,3"),
    ("dry-run", "medoids d.zarr new --clusters 2 --dry-run"),
    ("neighbours", "neighbours d.zarr near --k 3"),
    ("neighbours", "neighbours d.zarr within --within 2"),
    ("dry-run", "neighbours d.zarr new --within 2 --dry-run"),
    ("dry-run", "neighbours d.zarr new --dry-run"),
    ("tree", "tree d.zarr tree"),
    ("linkage", "tree d.zarr linked --linkage average --clusters 2,3,32"),
    ("linkage", "tree d.zarr cut --linkage complete --height 3"),
    ("image", "image d.zarr vat.png"),
    ("report", "report warm odd linked tree axes aligned log.npz d.zarr -o page.html"),
    ("status", "run w.toml --dry-run"),
    ("run", "run w.toml --log-json run.log"),
    ("status", "run w.toml --status"),
    ("run", "run w.toml"),
    ("demo", "demo digits"),
]
"""Each command with the name that the page gives to its output."""
FILES = [
    ("cluster", "out/result.json"),
    ("runs.csv", "out/runs.csv"),
    ("runs.csv", "one/runs.csv"),
    ("history.csv", "out/history.csv"),
    ("labels.csv", "one/labels.csv"),
    ("medoids.csv", "one/medoids.csv"),
    ("moved.csv", "warm/moved.csv"),
    ("predicted.csv", "predicted.csv"),
    ("compare.csv", "compared.csv"),
    ("align", "aligned/result.json"),
    ("alignment.csv", "aligned/alignment.csv"),
    ("alignment.csv", "kernel-aligned/alignment.csv"),
    ("labels.csv", "aligned/labels.csv"),
    ("outliers", "odd/result.json"),
    ("outliers.csv", "odd/widthauto/outliers.csv"),
    ("outliers-predicted.csv", "odd.csv"),
    ("validity.csv", "indices.csv"),
    ("validity.csv", "all.csv"),
    ("validity.csv", "out/validity.csv"),
    ("embed", "axes/result.json"),
    ("coordinates.csv", "axes/coordinates.csv"),
    ("eigenvalues.csv", "axes/eigenvalues.csv"),
    ("density", "dense/result.json"),
    ("density-labels.csv", "single/labels.csv"),
    ("condensed_tree.csv", "single/condensed_tree.csv"),
    ("dbscan.csv", "dense/dbscan.csv"),
    ("density-predicted.csv", "dense.csv"),
    ("explore", "explored/result.json"),
    ("agreement.csv", "explored/agreement.csv"),
    ("medoids", "medoids/result.json"),
    ("medoids-labels.csv", "medoids/labels.csv"),
    ("medoids.csv", "medoids/medoids.csv"),
    ("numbers.csv", "medoids/numbers.csv"),
    ("neighbours", "near/result.json"),
    ("neighbours", "within/result.json"),
    ("tree", "tree/result.json"),
    ("edges.csv", "tree/edges.csv"),
    ("vat.csv", "tree/vat.csv"),
    ("linkage", "linked/result.json"),
    ("linkage-labels.csv", "linked/labels.csv"),
    ("linkage-labels.csv", "cut/labels.csv"),
    ("linkage-medoids.csv", "linked/medoids.csv"),
    ("linkage-medoids.csv", "cut/medoids.csv"),
    ("spectrum", "w/spectrum.json"),
    ("log", "run.log"),
]
WORKFLOW = """
report = true
[import]
source = "d.npy"
kind = "distance"
tile = 16
[append]
source = "rows.npy"
[spectrum]
[euclideanize]
method = "spread"
[cluster]
rule = "fcm1"
clusters = [2, 3]
n_init = 1
max_iter = 1
on_negative = "heal"
[align]
clusters = [2, 3]
n_init = 1
[embed]
components = 2
result = "cluster/fcm1-clusters2"
[outliers]
width = 2
[density]
min_size = 3
[explore]
clusters = [2]
[medoids]
clusters = [2]
[neighbours]
k = 3
[tree.mst]
[tree.linked]
linkage = "average"
clusters = [2]
[image]
pixels = 20
[figure]
result = "cluster/fcm1-clusters2"
[export]
format = "npy"
"""


def prepare() -> None:
    """Write the sources: distances that are no Euclidean ones, rows of two more objects, flaws."""
    rng = np.random.default_rng(4)
    points = np.concatenate([rng.normal(centre, 1.0, (18, 3)) for centre in ([0, 0, 0], [7, 1, 3])])
    D = np.abs(points[:, None] - points[None]).max(axis=2)
    n = len(D) - 4
    np.save("points.npy", points[:n])
    np.save("d.npy", D[:n, :n])
    flaws = D[:n, :n].copy()
    flaws[0, 1] += 1
    flaws[2, 3] = flaws[3, 2] = np.nan
    flaws[4, 5] = flaws[5, 4] = -0.05
    np.save("flaws.npy", flaws)
    np.save("rows.npy", D[n : n + 2, : n + 2])
    np.save("new.npy", D[n + 2 :, : n + 2])
    np.save("more.npy", D[n + 2 :])
    np.savetxt("square.csv", D, delimiter=",")
    lines = [f"{i}\t{j}\t{D[i, j]}" for i in range(n) for j in range(i)]
    Path("pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, objects in (("ids", range(n)), ("rows", range(n, n + 2)), ("more", range(n + 2, n + 4))):
        Path(f"{name}.txt").write_text("".join(f"object{k}\n" for k in objects), encoding="utf-8")
    Path("w.toml").write_text(WORKFLOW, encoding="utf-8")


def keys(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """All keys below a value with the types of theirs: `a.b` is b in a, `a[].b` is b in every member of the list a."""
    if isinstance(value, dict):
        for name, item in value.items():
            below = f"{path}.{name}" if path else name
            yield below, "null" if item is None else TYPES[type(item)]
            yield from keys(item, below)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item, f"{path}[]")


def cell_type(text: str) -> str:
    """The type of a cell of a CSV file: an empty one is null, and several numbers are a list."""
    if text in ("", "true", "false"):
        return "boolean" if text else "null"
    for made, name in ((int, "integer"), (float, "number")):
        try:
            made(text)
        except ValueError:
            continue
        return name
    return "list" if " " in text else "text"


def placed(output: str, key: str, table: Keys) -> tuple[str, str] | None:
    """Find where the table describes a key: with another output, where it refers to one; nowhere in a `map`."""
    key = re.sub(r"^(cluster|label_|axis)\d+$", r"\1K", key)
    key = re.sub(r"^eps\d+(-samples)\d+$", r"epsD\1K", key)
    for end in (k for k, letter in enumerate(key) if letter == "."):
        for kind in table.get((output, key[:end].removesuffix("[]")), ()):
            if kind == "map":
                return None
            if kind.startswith("`"):
                return placed(kind.strip("`"), key[end + 1 :], table)
    return output, key


def allowed(types: set[str]) -> set[str]:
    """The types of JSON that a cell of the table stands for."""
    return {"object" if kind == "map" or kind.startswith("`") else kind for kind in types}


class Outputs:
    """Commands run in this process, and the keys of what they print and write."""

    def __init__(self) -> None:
        self.seen: Keys = {}

    def add(self, output: str, value: Any) -> None:
        for key, name in keys(value):
            self.seen.setdefault((output, key), set()).add(name)

    def run(self, output: str, line: str, *, code: int = 0) -> None:
        """Run a command with --json, and note the keys of the object that it prints."""
        printed, answer = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(answer):
            done = app.run([*line.split(), "--json"])
        assert done == code, f"{line}: {answer.getvalue()}"
        self.add(output, json.loads(printed.getvalue()))

    def file(self, output: str, path: str) -> None:
        """Note the keys of a JSON file or of a log, or the columns of a CSV file."""
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".csv"):
            for row in csv.DictReader(io.StringIO(text)):
                for name, cell in row.items():
                    self.seen.setdefault((output, name), set()).add(cell_type(cell))
        else:
            for one in text.splitlines() if path.endswith(".log") else [text]:
                self.add(output, json.loads(one))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, table: Keys) -> Keys:
    """The keys of all outputs, of small matrices that go through every command; each at its place in the table."""
    outputs = Outputs()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("keys"))
        fewer_digits(patch)
        patch.setattr(demo, "STARTS", 1)
        patch.setattr(demo, "CLUSTERS", (demo.DRAWN,))
        patch.setattr(run, "LOG_INTERVAL", 0)
        prepare()
        for output, line in COMMANDS:
            outputs.run(output, line)
        for output, path in FILES:
            outputs.file(output, path)
        (Path("d.zarr") / "values" / "c" / "0" / "1").unlink()
        outputs.run("audit", "audit d.zarr --verify", code=1)
        outputs.run("error", "audit none.zarr", code=1)
        outputs.run("error", "cluster d.zarr", code=2)
        outputs.run("stopped", f"cluster e.zarr stopped {ONE} --checkpoint kept --time-limit 0.001s", code=75)
    found: Keys = {}
    for (output, key), types in outputs.seen.items():
        place = placed(output, key, table)
        if place is not None:
            found.setdefault(place, set()).update(types)
    return found


@pytest.fixture(scope="module")
def table() -> Keys:
    """The rows of the page, with the types that it allows."""
    rows: Keys = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        assert len(cells) == 4, line
        output, key, types, meaning = cells
        place = (output.strip("`"), key.strip("`"))
        assert place not in rows, f"{place} is there twice"
        assert meaning, f"{place} has no meaning"
        rows[place] = set(types.split(" or "))
    return rows


def test_every_key_is_in_the_table(seen: Keys, table: Keys) -> None:
    assert sorted(set(seen) - set(table)) == []


def test_every_row_of_the_table_occurs(seen: Keys, table: Keys) -> None:
    assert sorted(set(table) - set(seen)) == []


def test_values_have_the_types_of_the_table(seen: Keys, table: Keys) -> None:
    wrong = {place: types - allowed(table[place]) for place, types in seen.items() if place in table}
    assert {place: types for place, types in wrong.items() if types} == {}


@pytest.mark.parametrize("old", ["asked", "iterations", "seed", "start", "coincident", "coincident_pairs"])
def test_names_that_were_given_up_are_gone(seen: Keys, old: str) -> None:
    assert [place for place in seen if old in place[1].replace("[]", "").split(".")] == []
