"""What a case is, and what its outcome must be: exit code, one line, and a store that is right or not there."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PROGRESS = re.compile(r"[\w -]+( \d+)?: [\d,]+ of [\d,]+ tiles?")


@dataclass
class Outcome:
    """What a command has done."""

    code: int
    out: str
    err: str


@dataclass
class Case:
    """Commands to run one after the other in a folder, and what to find out when the last has ended."""

    commands: list[list[str]]
    check: Callable[[list[Outcome]], str | None] = field(default=lambda outcomes: None)
    """Returns what is wrong with the results, or None."""
    call: Callable[[], str | None] | None = None
    """Instead of commands: a function of the library, which raises a `DasrelError` or returns what is wrong."""


@dataclass
class Candidate:
    """One reading of a source: its values, NaN where there is none, and the names of the objects."""

    values: Any
    ids: list[str] | None = None


def fault_of(outcome: Outcome) -> str | None:
    """What is wrong with how a command ended, whatever it was."""
    err = outcome.err
    if "Traceback (most recent call last)" in err:
        return "traceback"
    if "dasrel: unexpected " in err or "defect of dasrel" in err:
        return "unexpected"
    if "out of memory" in err:
        return "out of memory"
    if outcome.code not in (0, 1, 2):
        return f"exit code {outcome.code}"
    lines = [line for line in err.split("\n") if line and not PROGRESS.match(line)]
    if any(not line.isprintable() for line in lines):
        return "control characters on stderr"
    report = [line for line in lines if not line.startswith("dasrel: warning: ")]
    if outcome.code == 2:
        report = report[-1:]
    elif outcome.code == 0:
        report = [line for line in report if not line.startswith("dasrel: ")]
    if len(report) != (outcome.code != 0):
        return f"{len(report)} lines on stderr with exit code {outcome.code}"
    if report and not report[0].startswith("dasrel: "):
        return "a line on stderr that does not begin with the name of the command"
    return None


# -------------------------------------------------------------------------------------------------------------- stores


def is_complete(store: Path) -> bool:
    """Whether a reader would take this for a finished store."""
    try:
        return bool(json.loads((store / "zarr.json").read_text())["attributes"]["dasrel"]["state"] == "complete")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def stored(store: Path) -> tuple[Any, list[str]]:
    """The values of a store, both triangles, and the ids, read by Zarr alone."""
    import zarr

    group = zarr.open_group(store, mode="r")
    n = group.attrs["dasrel"]["n_objects"]  # type: ignore[index,call-overload]
    upper = np.asarray(group["values"][:n, :n], dtype=np.float64)  # type: ignore[index]
    side = np.arange(n)
    values = np.where(side[:, None] <= side[None, :], upper, upper.T)
    return values, [str(name) for name in group["ids"][:n]]  # type: ignore[index]


@dataclass(frozen=True)
class Repairs:
    """Options of an import, and what they do to a matrix."""

    kind: str
    repair: bool = False

    FILL = 0.5

    @property
    def options(self) -> list[str]:
        more = ["--symmetrize", "mean", "--missing", f"fill={self.FILL}", "--duplicates", "mean"] if self.repair else []
        if self.repair and self.kind == "distance":
            more += ["--diagonal", "zero"]
        return ["--kind", self.kind, *more]

    def applied(self, values: Any) -> Any | None:
        """The matrix that a store must hold; None if this one must be refused."""
        values = np.asarray(values, dtype=np.float64)
        n = len(values)
        if values.shape != (n, n) or n < 2 or np.isinf(values).any():
            return None
        distance = self.kind == "distance"
        if self.repair:
            values = np.where(np.isnan(values), values.T, values)
            values = (values + values.T) / 2
            values = np.where(np.isnan(values), self.FILL, values)
            if distance:
                np.fill_diagonal(values, 0)
        if np.isnan(values).any() or not np.allclose(values, values.T, rtol=1e-4, atol=1e-6 * np.abs(values).max()):
            return None
        if distance and ((values < 0).any() or np.diagonal(values).any()):
            return None
        return values


def fault_of_import(
    outcome: Outcome, store: Path, repairs: Repairs, read: Callable[[], Sequence[Candidate]]
) -> str | None:
    """What is wrong with a store that an import has made, or left behind."""
    if outcome.code:
        return "a refused source left a store that looks complete" if is_complete(store) else None
    if not is_complete(store):
        return "exit code 0, and no complete store"
    values, ids = stored(store)
    if not np.isfinite(values).all():
        return "a store with values that are not finite"
    try:
        candidates = read()
    except Exception as error:
        return f"accepted what the reference does not read ({type(error).__name__}: {error})"
    for candidate in candidates:
        wanted = repairs.applied(candidate.values)
        if wanted is None or wanted.shape != values.shape:
            continue
        scale = np.abs(wanted).max(initial=0)
        if np.allclose(values, wanted, rtol=1e-5, atol=1e-6 * min(scale, 1e30)) and candidate.ids in (None, ids):
            return None
    return f"silently wrong: a store of {len(values)} objects that no reading of the source gives"
