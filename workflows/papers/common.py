"""What the five scripts share: arguments, expectations and verdicts, parts that are skipped when done, data files.

A script has a table of `Expected`: what a paper prints or says, where, and how near a value must be. A part of it
computes some of them and returns them by name; `Study.part` counts its scans and keeps its values in OUT/parts, so that
an interrupted run continues with the next part. `Study.finish` writes figures.csv and the page.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

import dasrel

COLUMNS = ("what", "where", "paper", "ours", "verdict", "why")
VERDICTS = ("equal", "explained", "differs")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Okabe and Ito's, which people with any colour vision can tell apart."""
Values = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """A value that a paper prints, or a statement of it, which is true or not."""

    what: str
    where: str
    paper: Any = True
    """A number, several numbers, a text, or True for a statement."""
    within: float = 0.0
    """The largest difference that is still equal: half a unit of the last printed digit, unless it says otherwise."""
    why: str = ""
    """Why another value is right: an erratum, or what the paper does not print. Without it, another value differs."""
    instead: tuple[float, float] | None = None
    """With `why`: the values that it explains, from least to largest; None for those that are given with the value."""

    def verdict(self, ours: Any, instead: Sequence[float] | None = None) -> str:
        """Return equal, explained or differs."""
        if isinstance(self.paper, (bool, str)):
            same = self.paper == ours
        else:
            paper, found = np.asarray(self.paper, dtype=float), np.asarray(ours, dtype=float)
            same = paper.shape == found.shape and bool((np.abs(paper - found) <= self.within + 1e-12).all())
        if same:
            return "equal"
        limits = self.instead if instead is None else instead
        explained = (
            bool(self.why) and limits is not None and bool(limits[0] <= np.min(ours) <= np.max(ours) <= limits[1])
        )
        return "explained" if explained else "differs"


@dataclass(frozen=True)
class Ours:
    """A value with the range that explains it, where the range is computed and not printed anywhere."""

    value: Any
    instead: tuple[float, float]
    note: str = ""
    """What the computation says about it; the range if it says nothing."""


class Study:
    """One paper: the folder of its results, its expectations, and the parts that are done."""

    def __init__(self, name: str, expected: Mapping[str, Expected], options: argparse.Namespace) -> None:
        self.name, self.expected, self.options = name, expected, options
        self.out: Path = options.out
        self.quick: bool = options.quick
        self.values: Values = {}
        self.failed = False
        self._scans, self._seconds = 0, 0.0
        self._elsewhere = 0
        """Scans of the part that commands have made."""
        if self.out.exists() and not self.out.is_dir():
            raise SystemExit(f"{self.out} is a file: name a folder")
        (self.out / "parts").mkdir(parents=True, exist_ok=True)

    def part(self, title: str, compute: Callable[..., Values], *given: Any, **about: Any) -> None:
        """Run a part, or take its values from OUT if it was run there with the same options.

        `about` are the options that its values depend on; `compute(study, *given, **about)` returns values by the names
        of the expectations.
        """
        kept = self.out / "parts" / f"{compute.__name__}.json"
        key = {"dasrel": dasrel.__version__, "quick": self.quick, **{name: str(value) for name, value in about.items()}}
        done = _read(kept)
        if done is None or done["key"] != key:
            print(f"{self.name}: {title} ...", file=sys.stderr, flush=True)
            begun, self._elsewhere = time.perf_counter(), 0
            shown = dasrel.progress() if sys.stderr.isatty() else nullcontext()
            try:
                with warnings.catch_warnings(), shown, dasrel.watch() as counted:
                    warnings.simplefilter("ignore", dasrel.DasrelWarning)  # collapses are what some figures are about
                    values = {name: _plain(value) for name, value in compute(self, *given, **about).items()}
            except dasrel.InputError as problem:
                print(f"{self.name}: failed: {title}: {' '.join(str(problem).split())}", file=sys.stderr)
                self.failed = True
                return
            seconds = time.perf_counter() - begun
            done = {
                "key": key,
                "values": values,
                "scans": counted.scans + self._elsewhere,
                "seconds": round(seconds, 1),
            }
            temporary = kept.with_suffix(".tmp")
            temporary.write_text(json.dumps(done, indent=1) + "\n")
            temporary.replace(kept)
            spent = f"{done['scans']} scans, {done['seconds']} s"
        else:
            spent = f"done before ({done['scans']} scans, {done['seconds']} s)"
        unknown = set(done["values"]) - set(self.expected)
        assert not unknown, f"no expectation is called {unknown}"
        self.values |= done["values"]
        self._scans += done["scans"]
        self._seconds += done["seconds"]
        print(f"{self.name}: {title}: {spent}", flush=True)

    def file_part(self, title: str, path: Path | None, option: str, read: Callable[[Path], Any],
                  compute: Callable[..., Values], **about: Any) -> None:  # fmt: skip
        """Run a part on a file that the user names; without it, or if it cannot be read, say so in one line."""
        if path is None:
            print(f"{self.name}: not run: {title}: name its data with {option} FILE")
            return
        try:
            data = read(path)
        except (OSError, ValueError, KeyError) as problem:
            text = " ".join(str(problem).split()) or type(problem).__name__
            print(f"{self.name}: not run: {title}: {option} {path}: {text}", file=sys.stderr)
            self.failed = True
            return
        self.part(title, compute, data, file=path.resolve(), changed=path.stat().st_mtime_ns, **about)

    def finish(self) -> int:
        """Write figures.csv and the page, print the counts, and return the exit code."""
        rows = []
        for name, expected in self.expected.items():
            if name in self.values:
                ours = self.values[name]
                if not isinstance(ours, dict):
                    ours = {"value": ours, "instead": None, "note": ""}
                value, instead = ours["value"], ours["instead"]
                verdict = expected.verdict(value, instead)
                why = expected.why
                if verdict == "explained" and instead is not None:
                    why += f": {ours['note'] or f'{_text(instead[0])} to {_text(instead[1])}'}"
                elif verdict == "equal" and not isinstance(expected.paper, (bool, str)) and expected.within:
                    why = f"within {expected.within:g}" + (f"; {why}" if why else "")
                paper = _text(expected.paper)
                rows.append((expected.what, expected.where, paper, _text(value), verdict, why))
        with open(self.out / "figures.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(rows)
        dasrel.write_report(self.out, self.out / "report.html", force=True)
        counts = {verdict: sum(row[4] == verdict for row in rows) for verdict in VERDICTS}
        for row in rows:
            if row[4] == "differs":
                print(f"{self.name}: differs: {row[0]} ({row[1]}): {row[2]} in the paper, {row[3]} here")
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        print(f"{self.name}: {len(rows)} figures: {told}; {self._scans} scans, {self._seconds:.0f} s; {self.out}")
        return int(self.failed)

    def command(self, *given: Any) -> dict[str, Any]:
        """Run a dasrel command, count its scans, and return its JSON object."""
        done = subprocess.run(
            [sys.executable, "-m", "dasrel", *map(str, given), "--json"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise dasrel.DasrelError(f"dasrel {given[0]}: {done.stderr.strip()}")
        told: dict[str, Any] = json.loads(done.stdout)
        self._elsewhere += told["scans"]
        return told

    def save(self, figure: Any, name: str) -> None:
        """Write a picture into OUT and close it."""
        figure.savefig(self.out / name, dpi=110, metadata={"Software": None})
        plt.close(figure)


def arguments(description: str, files: Mapping[str, str] | None = None, given: Sequence[str] | None = None) -> Any:
    """Parse OUT, --quick and the options for data files: name of the option -> its help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="folder of the results; parts that it has are not run again"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller grids: within a minute")
    for name, text in (files or {}).items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)
    return parser.parse_args(given)


def run_script(main: Callable[[], int]) -> int:
    """Run a script; return its exit code. What users can correct, and being stopped, is one line."""
    try:
        return main()
    except (dasrel.DasrelError, OSError) as problem:
        print(" ".join(str(problem).split()), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues with the part that was stopped", file=sys.stderr)
        return 130


def axes_of(count: int, across: int, size: float = 3.4) -> tuple[Any, list[Any]]:
    """Return a figure with `count` axes, `across` in a row."""
    down = -(-count // across)
    figure, axes = plt.subplots(down, across, figsize=(size * across, size * down), squeeze=False, layout="constrained")
    flat = list(axes.ravel())
    for extra in flat[count:]:
        extra.set_visible(False)
    return figure, flat[:count]


def squared_distances(X: Any) -> Any:
    """Return the squared Euclidean distances of the rows of X; small examples need no store."""
    X = np.asarray(X, dtype=float)
    D = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    return D


def contingency(first: Any, second: Any) -> Any:
    """Return how many objects have each pair of labels, (labels of the first, labels of the second)."""
    (names, rows), (others, columns) = (np.unique(one, return_inverse=True) for one in (first, second))
    table = np.zeros((len(names), len(others)), dtype=int)
    np.add.at(table, (rows, columns), 1)
    return table


def matched_accuracy(labels: Any, truth: Any) -> float:
    """Return the share of objects whose cluster is the one matched with their class, clusters matched at best."""
    from scipy.optimize import linear_sum_assignment

    table = contingency(truth, labels)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / table.sum())


def labelled_table(path: Path, *, label: int, drop: Sequence[int] = ()) -> tuple[Any, Any]:
    """Read features and labels: an .npz with X and y, or lines of numbers with the label in one column.

    Lines with a missing value, "?", are left out, as F10 does.
    """
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            if not {"X", "y"} <= set(stored.files):
                raise ValueError(f"it has no arrays X and y, but {', '.join(stored.files)}")
            X, y = stored["X"].astype(float), stored["y"].astype(str)
    else:
        with open(path, newline="", encoding="utf-8") as file:
            lines = [line for line in csv.reader(file) if line and "?" not in line]
        if not lines or len({len(line) for line in lines}) != 1 or len(lines[0]) < 3:
            raise ValueError("lines of equally many numbers with commas, and a label in each, are needed")
        table = np.array(lines)
        y = table[:, label]
        X = np.delete(table, [label % table.shape[1], *drop], axis=1).astype(float)
    if len(X) != len(y):
        raise ValueError(f"it has {len(X)} rows and {len(y)} labels")
    return X, y


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Ours):
        return {"value": _plain(value.value), "instead": [float(x) for x in value.instead], "note": value.note}
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return "; ".join(_text(one) for one in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
