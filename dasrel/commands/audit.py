"""Describe a STORE: its objects, values, repairs and source."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dasrel.commands.base import Lines, Operation, Prepared, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.report.page_parts import ResultPart, Section
from dasrel.report.result_reading import Source
from dasrel.report.result_store import audit_blocks
from dasrel.report.verdict import audit_verdict
from dasrel.store.audit import audit_lines, audit_store, estimate_audit
from dasrel.util.limits import Cost
from dasrel.util.option_fields import FIXED_MEMORY, WRITING, option
from dasrel.util.text import count_text, path_text, shown, size_text

CHECKS = "Checks"


@dataclass(frozen=True)
class AuditOptions:
    """What to find out about a store, besides what it has recorded."""

    verify: bool = option(False, "Read and check every tile; exit with 1 if one is damaged.", CHECKS)
    spectrum: bool = option(False, "Also test whether it is Euclidean, in a few scans.", CHECKS)
    memory: int | str = option("1GiB", FIXED_MEMORY, WRITING, typed=str, metavar="SIZE")


class Audit(Operation):
    name = "audit"
    example = "dasrel audit distances.zarr --verify"
    Options = AuditOptions
    target = None
    marks = {"audit": frozenset({"bytes_per_scan", "tiles_written", "input"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: AuditOptions) -> PreparedAudit:
        """Return the work: a store is checked as it is described."""
        return PreparedAudit(source, options)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of an audit."""
        if "spectrum" not in result:
            return audit_lines(result)
        from dasrel.commands.spectrum import OPERATION as SPECTRUM  # imports SciPy

        return audit_lines(result) + SPECTRUM.lines(result["spectrum"])[1:]

    def failure(self, result: Result, options: AuditOptions) -> tuple[str, int] | None:
        """Return how many faults a verification has met."""
        bad = result["verified"]["bad"] if options.verify else []
        return (
            (f"{count_text(len(bad), 'fault')}; restore these tiles from a copy, or import again", 1) if bad else None
        )

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of a store, or of the JSON object of this command. Cost: no scan."""
        audit, n = source.values, source.values["n_objects"]
        sections = [Section("Audit", audit_blocks(audit))]
        verdict = audit_verdict(audit)
        if audit.get("spectrum"):
            from dasrel.commands.spectrum import OPERATION as SPECTRUM

            inner = SPECTRUM.part(Source("spectrum", source.path, audit["spectrum"]))
            verdict += inner.verdict
            sections.append(inner.sections[0])
        facts = [("objects", f"{n:,}"), ("kind", shown(audit["kind"])),
                 ("one scan reads", size_text(audit["bytes_per_scan"]))]  # fmt: skip
        headline = f"{count_text(n, 'object')}, kind {shown(audit['kind'])}"
        return ResultPart("Matrix", path_text(source.path), headline, verdict, facts, sections, audit.get("matrix"), n)


@dataclass(frozen=True)
class PreparedAudit(Prepared):
    """A store to be described."""

    store: str
    options: AuditOptions

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Describe the store. Cost: no scan; one to verify, and a few for the spectrum."""
        options = self.options
        audit = audit_store(self.store, verify=options.verify, memory=options.memory)
        if options.spectrum:
            from dasrel.geometry.euclidean import spectrum  # imports SciPy

            audit["spectrum"] = spectrum(self.store, memory=options.memory).as_dict()
        return audit

    def cost(self) -> Cost:
        """Estimate the cost of `run`."""
        options = self.options
        cost = estimate_audit(self.store, verify=options.verify, memory=options.memory)
        if not options.spectrum:
            return cost
        from dasrel.geometry.euclidean import prepare_spectrum
        from dasrel.geometry.options import SpectrumParameters

        ends = prepare_spectrum(self.store, SpectrumParameters(memory=options.memory)).cost()
        return replace(cost, scans=cost.scans + ends.scans, memory=max(cost.memory, ends.memory))


OPERATION = Audit()
