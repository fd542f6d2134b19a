"""Find the transformation that makes a STORE Euclidean, and write it as a small file; no new matrix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dasrel.commands.base import Lines, Operation, Output, Prepared, Result, Target
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.errors import InputError
from dasrel.geometry.euclidean import EuclideanizeJob, finished_file, prepare_euclideanize
from dasrel.geometry.options import EuclideanizeParameters
from dasrel.report.page_parts import Facts, ResultPart, Section
from dasrel.report.pieces import scans_fact
from dasrel.report.result_reading import Source
from dasrel.report.result_store import run_section
from dasrel.report.verdict import euclideanize_verdict
from dasrel.util.limits import Cost
from dasrel.util.results import check_file, check_not_input
from dasrel.util.text import count_text, path_text, shown

NUMBERS = (
    "method", "gamma", "alpha", "beta", "lambda_min", "residual", "stress", "ratio", "n_negative", "merged", "floored",
    "floor_zeros", "boundary", "converged",
)  # fmt: skip
"""What a page lists."""


class Euclideanize(Operation):
    name = "euclideanize"
    example = "dasrel euclideanize distances.zarr --method spread"
    Options = EuclideanizeParameters
    target = Output("FILE", "The file to write; STORE.METHOD.npz if not given.", flag="--out", default=None)
    saves = ("euclideanize",)
    is_step = True
    suffixes = (".npz",)
    summarized = ("method", "gamma", "ratio", "converged")
    marks = {"euclideanize": frozenset({"gamma", "method", "ratio"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: EuclideanizeParameters) -> PreparedFile:
        """Check the matrix and the file. Cost: no scan."""
        out = default_file(source, options.method) if target.path is None else Path(target.path)
        check_not_input(out, source)
        result = finished_file(out, source, asdict(options)) if target.resume else None
        if result is None:
            check_file(out, force=target.force)
        finished = None if result is None else {"store": source, "out": str(out), **result.report()}
        return PreparedFile(source, prepare_euclideanize(source, options), asdict(options), out, finished)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of a Euclideanisation."""
        lines = [("wrote", shown(result["out"], limit=400)), ("method", result["method"])]
        if result["was_euclidean"]:
            lines.append(("gamma", "0: the matrix is Euclidean already"))
        else:
            lines.append(("gamma", f"{result['gamma']:.8g}"))
        if result["alpha"] is not None:
            limit = "" if result["boundary"] is None else f" (Euclidean up to about {result['boundary']:.4g})"
            lines.append(("alpha", f"{result['alpha']:.6g}{limit}"))
        lines += [
            ("lowest eigenvalue", f"{result['lambda_min']:.8g} +- {result['residual']:.1g}"),
            ("negative", f"{count_text(result['n_negative'], 'eigenvalue')} found"),
            ("added / D", f"{result['ratio']:.4g} (sum of gamma Delta over the sum of D)"),
            ("stress", f"{result['stress']:.4g}"),
        ]
        if result["merged"]:
            lines.append(("duplicates", f"{result['merged']:,} of the objects, each equal to another"))
        if result["floor_zeros"] is not None:
            lines.append(("floor", f"{count_text(result['floored'], 'pair')} raised to {result['floor_zeros']:g}"))
        return [*lines, ("scans", f"{result['scans']:,}{'' if result['converged'] else ', not converged'}")]

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of its .npz file, or of its JSON object. Cost: no scan."""
        result = source.values
        named = [(name.replace("_", " "), result[name]) for name in NUMBERS if result.get(name) is not None]
        rows = [(name, f"{value:.6g}" if isinstance(value, float) else shown(value)) for name, value in named]
        what = "already Euclidean" if result.get("was_euclidean") else f"made Euclidean by {shown(result['method'])}"
        facts = [("method", shown(result["method"])), scans_fact(result)]
        sections = [Section("Numbers", [Facts(rows)]), run_section(source)]
        verdict = euclideanize_verdict(result)
        return ResultPart("Euclideanisation", path_text(source.path), f"The matrix is {what}", verdict, facts, sections)


@dataclass(frozen=True)
class PreparedFile(Prepared):
    """A Euclideanisation to be found and written."""

    store: str
    job: EuclideanizeJob
    requested: dict[str, Any]
    out: Path
    finished: Result | None = None

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Find the transformation, and write it. Cost: that of `euclideanize`."""
        if self.finished is not None:
            return self.finished
        with watched(checkpoint, "euclideanize"):
            result = self.job.run(checkpoint)
            result.save(self.out, requested=self.requested)
        return {"store": self.store, "out": str(self.out), **result.report()}

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        return self.job.cost(self.out)


def default_file(store: str, method: str) -> Path:
    """Return the default output: a file beside the store. Raise if the store is a URL."""
    if "://" in store:
        raise InputError(f"a file cannot be written beside {shown(store, limit=200)}", remedy="say {out=FILE}")
    path = Path(store)
    return path.with_name(f"{path.name.removesuffix('.zarr')}.{method}.npz")


OPERATION = Euclideanize()
