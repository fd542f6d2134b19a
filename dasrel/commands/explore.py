"""Explore a STORE of which nothing is known: every analysis with its defaults, and one page that says where they agree.

clusters, density, tree, outliers, axes    the results of `dasrel cluster`, `density`, `tree --linkage average`,
                                           `outliers` and `embed`, each as its own command writes it
spectrum.json                              that of `dasrel spectrum`
agreement.csv                              first, second, adjusted_rand_index, objects, first_groups, second_groups
result.json                                what was found, the parts, times, versions
page.html                                  all of it

Parts that are complete are kept: a command that was stopped continues with `--resume`.
"""

from __future__ import annotations

import csv
import itertools
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.commands.base import Lines, Operation, Prepared, Result, Target
from dasrel.commands.operations import operation
from dasrel.commands.report import write_report
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.errors import DasrelError, InputError, Stopped, StoreError
from dasrel.judging.groupings import adjusted_rand_index
from dasrel.partition.run import Run
from dasrel.report.page_parts import Note, ResultPart, Section, Statement, table
from dasrel.report.pieces import downloads, scans_fact
from dasrel.report.result_reading import Source, read_json
from dasrel.store.matrix import Matrix, open_matrix
from dasrel.util import Index, progress
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.option_fields import RUNNING, memory_option, option, same
from dasrel.util.results import versions, write_csv, write_json
from dasrel.util.text import count_text, path_text, shown, some

_run = partial(same, Run)
LARGEST_TREE = 65_536
"""Objects up to which there is a dendrogram: one of more takes hours, and is better asked for."""
AGREE = 0.8
"""The adjusted Rand index from which two groupings are called the same."""
MOSTLY = 0.5
"""The share of noise from which a few dense groups may be chance."""
NOISY = 0.3
"""The share of noise from which other densities are worth a look."""
NEGATIVE = 0.1
"""The share of negative eigenvalues from which coordinates hide much."""
CHANCE = 0.05
"""The p-value from which there is no more structure than chance gives."""
FOLDERS = {"cluster": "clusters", "density": "density", "tree": "tree", "outliers": "outliers", "embed": "axes"}
"""Parts with a folder."""
SPECTRUM = "spectrum.json"
NAMES = {"cluster": "c-means", "density": "density", "tree": "linkage"}


# ruff: noqa: RUF009 - `_run` returns a dataclass field
@dataclass(frozen=True)
class ExploreOptions:
    """How to explore a matrix."""

    n_clusters: list[int] = _run("n_clusters", listed=True, default=list(range(2, 11)))
    random_state: int = _run("random_state")
    leave_out: list[str] | None = option(
        None, f"Parts to leave out: {', '.join([*FOLDERS, 'spectrum'])}.", RUNNING, metavar="PART"
    )
    memory: int | str | None = memory_option(RUNNING, effort=True)

    def __post_init__(self) -> None:
        for name in self.leave_out or ():
            if name not in FOLDERS and name != "spectrum":
                raise InputError(
                    f"there is no part {shown(name)}", remedy=f"name some of {', '.join(FOLDERS)}, spectrum"
                )


class Explore(Operation):
    name = "explore"
    example = "dasrel explore distances.zarr out"
    Options = ExploreOptions
    saves = ("euclideanize", "cluster", "density", "tree", "outliers", "segments", "embed", "spectrum")
    is_step = True
    summarized = ("n_objects", "answer")
    marks = {"explore": frozenset({"parts", "agreement", "answer"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: ExploreOptions) -> PreparedExploration:
        """Check the options, the store and the parts. Cost: no tile is read."""
        target.check(source)
        matrix = open_matrix(source)
        header = target.header(source, matrix.identity_digest(), options)
        return PreparedExploration(matrix, source, target, header, options)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of an exploration."""
        lines = [("results", shown(result["out"], limit=400)), ("answer", result["answer"])]
        lines += [("", text) for text in result["findings"]]
        lines += [("next", text) for text in result["next"]]
        lines += [("left out", f"{name}: {why}") for name, why in result["left_out"].items()]
        lines.append(("scans", f"{result['scans']:,} in {result['seconds']:.0f} s"))
        page = Path(result["out"], "page.html")
        return [*lines, ("page", f"{shown(page, limit=400)}; open {page.resolve().as_uri()} in a browser")]

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of all parts together. Cost: no scan."""
        result, n = source.values, source.values["n_objects"]
        verdict = [Statement("info", result["answer"]), *(Statement("info", text) for text in result["findings"])]
        verdict += [Statement("caution", f"{name} was left out: {why}.") for name, why in result["left_out"].items()]
        header = ["first", "second", "adjusted Rand index", "objects"]
        rows = [
            [row["first"], row["second"], row["adjusted_rand_index"], row["objects"]] for row in result["agreement"]
        ]
        text = (
            "How far the groups of two analyses are the same: 1 if they are, 0 as by chance. Noise of density is left"
            " out. The dendrogram is cut into as many clusters as c-means recommends."
        )
        sections = []
        if rows:
            listed = table("agreement", header, rows, text)
            sections.append(
                Section("Do the methods agree?", [listed, *downloads(source.file("agreement.csv"), "agreement")])
            )
        if result["next"]:
            sections.append(Section("What to do next", [Note(text) for text in result["next"]]))
        header = ["part", "found", "scans", "seconds"]
        rows = [[part["name"], part["found"], part["scans"], part["seconds"]] for part in result["parts"]]
        sections.append(Section("What was done", [table("parts", header, rows)]))
        facts = [("objects", f"{n:,}, kind {shown(result['kind'])}"), scans_fact(result)]
        return ResultPart("Exploration", path_text(source.path), result["answer"].rstrip("."), verdict, facts, sections,
                          result.get("matrix"), n)  # fmt: skip


@dataclass(eq=False)
class PreparedExploration(Prepared):
    """A matrix to be explored."""

    matrix: Matrix
    source: str
    target: Target
    header: Result
    """What identifies the work in its result.json."""
    options: ExploreOptions

    def __post_init__(self) -> None:
        out = Path(self.target.path)
        if self.target.resume and out.is_dir() and not (out / "result.json").is_file():
            return  # an unfinished exploration
        self.finished = self.target.finished(self.header)

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Make every part that is not there, compare them, and write the page. Cost: that of the parts."""
        began, out = time.perf_counter(), Path(self.target.path)
        if self.finished is not None:
            if not (out / "page.html").is_file():  # a process was killed before it was written
                self._write_page(out, [part["name"] for part in self.finished["parts"]])
            return self.finished
        (out / "result.json").unlink(missing_ok=True)  # with force: it is unfinished from now on
        out.mkdir(parents=True, exist_ok=True)
        results: dict[str, Result] = {}
        left_out = dict.fromkeys(self.options.leave_out or (), "it was not wanted")
        parts: list[Result] = []
        with watched(checkpoint, *OPERATION.saves):
            for name in self._wanted():
                progress.current().say(name)
                at = time.perf_counter()
                try:
                    with progress.watch() as counted:
                        results[name] = self._part(name, results, checkpoint)
                except (Stopped, StoreError):
                    raise
                except DasrelError as error:
                    left_out[name] = str(error)
                    continue
                seconds = round(time.perf_counter() - at, 3)
                summary = _summary(name, results[name], self.matrix.n_objects)
                parts.append({"name": name, "found": summary, "scans": counted.scans, "seconds": seconds})
        if "tree" not in results and self.matrix.n_objects > LARGEST_TREE:
            left_out["tree"] = f"of more than {LARGEST_TREE:,} objects `dasrel tree --linkage average` takes hours"
        agreement = _agreement(self._labels(out, results))
        answer, findings = _conclusions(results, agreement, self.matrix.n_objects)
        advice = _advice(results, self.source, str(out))
        result = {
            **self.header, "n_objects": self.matrix.n_objects, "kind": self.matrix.kind, "answer": answer,
            "findings": findings, "next": advice, "agreement": agreement, "parts": parts, "left_out": left_out,
            "scans": sum(part["scans"] for part in parts), "seconds": round(time.perf_counter() - began, 3),
            "versions": versions(),
        }  # fmt: skip
        columns = ["first", "second", "adjusted_rand_index", "objects", "first_groups", "second_groups"]
        write_csv(out / "agreement.csv", columns, [[row[name] for name in columns] for row in agreement])
        write_json(out / "result.json", result)
        self._write_page(out, list(results))
        for name, folder in FOLDERS.items():  # of an earlier exploration, which this one replaces
            if name not in results and (out / folder / "result.json").is_file():
                shutil.rmtree(out / folder)
        return result

    def _write_page(self, out: Path, names: list[str]) -> None:
        """Write the page about the parts that were made."""
        parts = [out / FOLDERS.get(name, SPECTRUM) for name in names]
        write_report([out, *parts], out / "page.html", force=True)

    def _wanted(self) -> Iterator[str]:
        """Yield the parts to be made, in order."""
        n, left_out = self.matrix.n_objects, self.options.leave_out or ()
        for name in (*FOLDERS, "spectrum"):
            if name not in left_out and not (name == "tree" and n > LARGEST_TREE):
                yield name

    def _options(self, name: str, results: dict[str, Result]) -> Any:
        """Return the options of a part: its defaults, but for what connects it with the others."""
        Options, memory = operation(name).Options, self.options.memory
        if name == "cluster":
            counts = [count for count in self.options.n_clusters if count < self.matrix.n_objects]
            if not counts:
                raise InputError(f"there are only {count_text(self.matrix.n_objects, 'object')}")
            seed = self.options.random_state
            return Options(n_clusters=counts, random_state=seed, on_negative="heal", memory=memory)
        if name == "tree":
            count = results["cluster"]["recommended"]["n_clusters"] if "cluster" in results else None
            return Options(linkage="average", n_clusters=None if count is None else [count], memory=memory)
        if name == "embed" and "cluster" in results:
            place = _best(Path(self.target.path, FOLDERS["cluster"]))
            return Options(labels=str(place / "labels.csv"), memory=memory)
        return Options(memory=memory)

    def _prepared(self, name: str, results: dict[str, Result]) -> Prepared:
        out = Path(self.target.path)
        of, options = operation(name), self._options(name, results)
        if name == "spectrum":
            return of.prepare(self.source, Target(None), options)
        target = Target(out / FOLDERS[name], force=self.target.force, resume=self.target.resume)
        return of.prepare(self.source, target, options)

    def _part(self, name: str, results: dict[str, Result], checkpoint: Checkpoint | None) -> Result:
        """Return the result of a part, which is made if it is not there."""
        file = Path(self.target.path, SPECTRUM)
        if name == "spectrum" and self.target.resume and file.is_file():
            known = read_json(file)
            if known.get("matrix") == self.header["matrix"]:
                return known
        with self._prepared(name, results) as prepared:
            result = prepared.run(checkpoint if operation(name).saves else None)
        if name == "spectrum":
            result |= {"matrix": self.header["matrix"]}
            write_json(file, result)
        return result

    def _labels(self, out: Path, results: dict[str, Result]) -> dict[str, Index]:
        """Return the groups of the parts that have some; -1 for noise."""
        labels: dict[str, Index] = {}
        if "cluster" in results:
            labels["cluster"] = _column(_best(out / FOLDERS["cluster"]) / "labels.csv")
        if "density" in results:
            labels["density"] = _column(out / FOLDERS["density"] / "labels.csv")
        if "tree" in results and "cluster" in results:
            labels["tree"] = _column(out / FOLDERS["tree"] / "labels.csv")
        return labels

    def cost(self) -> Cost:
        """Estimate the cost of `run`; parts for which there is no memory are left out, as there."""
        scans, memory, facts = Range(0, 0, 0), 0, {}
        outputs: tuple[Output, ...] = ()
        for name in self._wanted():
            try:
                of, options = operation(name), self._options(name, {})
                place = None if name == "spectrum" else Path(self.target.path, FOLDERS[name])
                with of.prepare(self.source, Target(place, force=True, resume=False), options) as prepared:
                    cost = prepared.cost()
            except DasrelError:
                continue
            scans, memory = scans + cost.scans, max(memory, cost.memory)
            outputs += getattr(cost, "outputs", ())  # the plan of a clustering has none
            facts[f"scans_of_{name}"] = round(cost.scans.typical)
        return Cost("explore", self.matrix.n_objects, scans, self.matrix.layout.total_bytes, memory, outputs, facts)


def _best(folder: Path) -> Path:
    """Return where the files of the recommended setting are."""
    return folder / "best" if (folder / "best").is_dir() else folder


def _column(path: Path) -> Index:
    """Return the labels of a file of a result, in the order of the store: its second column."""
    with path.open(encoding="utf-8", newline="") as lines:
        return np.array([int(row[1]) for row in itertools.islice(csv.reader(lines), 1, None)], dtype=np.int64)


def _agreement(labels: dict[str, Index]) -> list[Result]:
    """Return the adjusted Rand index of every two groupings, over the objects that are noise in neither."""
    rows = []
    for first, second in itertools.combinations(labels, 2):
        kept = (labels[first] >= 0) & (labels[second] >= 0)
        a, b = labels[first][kept], labels[second][kept]
        rows.append({
            "first": NAMES[first], "second": NAMES[second], "objects": int(kept.sum()),
            "adjusted_rand_index": adjusted_rand_index(a, b) if kept.any() else None,
            "first_groups": len(np.unique(a)), "second_groups": len(np.unique(b)),
        })  # fmt: skip
    return rows


def _summary(name: str, result: Result, n: int) -> str:
    """Return a few words about what a part has found."""
    if name == "cluster":
        return count_text(result["recommended"]["n_clusters"], "cluster")
    if name == "density":
        (setting,) = result["settings"]
        return f"{count_text(setting['n_clusters'], 'cluster')}, noise {setting['noise'] / n:.0%}"
    if name == "tree":
        return (
            f"largest gap at {count_text(result['largest_gap'], 'cluster')}" if result.get("largest_gap") else "a tree"
        )
    if name == "outliers":
        return count_text(result["settings"][0]["outliers"], "outlier")
    if name == "embed":
        return count_text(result["n_components"], "axis", "axes")
    return {True: "Euclidean", False: "not Euclidean", None: "not known"}[result["is_euclidean"]]


def _dense(density: Result | None) -> tuple[int, float]:
    """Return the number of clusters by density, and the share of noise."""
    if density is None:
        return 0, 1.0
    (setting,) = density["settings"]
    return setting["n_clusters"], setting["noise"] / density["n_objects"]


def _conclusions(results: dict[str, Result], agreement: list[Result], n: int) -> tuple[str, list[str]]:
    """Return the answer in one sentence, and what else there is to say."""
    rows = {(row["first"], row["second"]): row for row in agreement}
    findings = []
    cluster, density = results.get("cluster"), results.get("density")
    structure = (cluster or {}).get("structure") or {}
    chance = structure.get("p_value") is None or structure["p_value"] >= CHANCE
    tested = structure.get("p_value") is not None
    count = cluster["recommended"]["n_clusters"] if cluster else 0
    dense, noise = _dense(density)
    both = rows.get((NAMES["cluster"], NAMES["density"]))
    same = both is not None and (both["adjusted_rand_index"] or 0) >= AGREE
    if cluster is None and density is None:
        answer = "Neither c-means nor density was tried."
    elif chance and (dense < 2 or noise > MOSTLY) and tested:
        answer = f"No clusters: the {n:,} objects have no more structure than chance gives, and no dense groups apart."
    elif chance and (dense < 2 or noise > MOSTLY):
        answer = f"No dense groups among the {n:,} objects; whether there are compact ones was not tested."
    elif chance:
        others = ", of other shapes than c-means looks for" if tested else ""
        answer = f"{dense:,} dense groups stand apart{others}: look at density first."
    elif dense < 2:
        answer = f"{count_text(count, 'group')} that touch: more structure than chance, and no gaps of density between."
    elif both is not None and same and both["first_groups"] == both["second_groups"]:
        answer = f"{dense:,} groups, by c-means and by density alike."
    elif same:
        answer = f"{count:,} groups by c-means and {dense:,} by density, which are largely the same."
    elif noise < NOISY:
        answer = f"{dense:,} groups by density and {count:,} others by c-means: they are not compact, and density fits."
    else:
        answer = f"{count:,} groups by c-means and {dense:,} others by density: compare their pictures."
    if both is not None and same and count > both["first_groups"]:
        more = count_text(count - both["first_groups"], "more cluster")
        findings.append(f"c-means has {more} of objects that are noise by density.")
    if structure.get("agreement") is not None and not chance:
        findings.append(f"Between halves of a sample the groups of c-means agree to {structure['agreement']:.0%}.")
    if both is not None and dense >= 2 and not chance and both["adjusted_rand_index"] is not None:
        text = f"Groups of c-means and density have an adjusted Rand index of {both['adjusted_rand_index']:.2f}"
        findings.append(f"{text}; density leaves {noise:.0%} of the objects as noise.")
    tree = rows.get((NAMES["cluster"], NAMES["tree"]))
    if tree is not None and not chance:
        linked = tree["adjusted_rand_index"]
        said = "the same groups as" if linked >= AGREE else "other groups than"
        cut = count_text(count, "cluster")
        findings.append(f"Average linkage cut into {cut} has {said} c-means: adjusted Rand index {linked:.2f}.")
    if "outliers" in results:
        setting = results["outliers"]["settings"][0]
        names = setting["outlier_ids"]
        named = f": {some([shown(name) for name in names], total=setting['outliers'])}" if names else ""
        number = count_text(setting["outliers"], "object") if setting["outliers"] else "No objects"
        findings.append(f"{number} stand out as outliers{named}.")
    if "spectrum" in results and results["spectrum"]["is_euclidean"] is False:
        share = results["spectrum"]["negative_share"]
        findings.append(f"The matrix is not Euclidean: negative eigenvalues are about {share:.1%} of all by size.")
    return answer, findings


def _advice(results: dict[str, Result], source: str, out: str) -> list[str]:
    """Return what to do next."""
    advice = []
    cluster, density = results.get("cluster"), results.get("density")
    structure = (cluster or {}).get("structure") or {}
    chance = structure.get("p_value") is None or structure["p_value"] >= CHANCE
    store = shown(source, limit=200)
    if cluster is not None and not chance:
        best = shown(_best(Path(out, FOLDERS["cluster"])), limit=200)
        advice.append(f"Look at the medoid of each group, in {best}/medoids.csv; `dasrel predict` places new objects.")
        advice.append(f"To compare the groups with what you know of the objects: `dasrel validity {store} LABELS.csv`.")
    if density is not None and _dense(density)[1] > NOISY:
        advice.append(f"To vary how dense a group must be: `dasrel density {store} OUT --min-size 5,15,50`.")
    if "spectrum" in results and (results["spectrum"]["negative_share"] or 0) > NEGATIVE:
        advice.append(
            f"Coordinates hide part of this matrix; `dasrel euclideanize {store}` changes it, trees need none."
        )
    return advice


OPERATION = Explore()
