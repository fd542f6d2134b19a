"""Test whether the matrix of a STORE is Euclidean, from the ends of its spectrum, in a few scans."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dasrel.commands.base import Lines, Operation, Output, Prepared, Result, Target
from dasrel.engine.checkpoint import Checkpoint, watched
from dasrel.geometry.euclidean import Spectrum, SpectrumJob, prepare_spectrum
from dasrel.geometry.options import SpectrumParameters
from dasrel.report import page_figures as pictures
from dasrel.report.page_parts import Picture, ResultPart, Section, table
from dasrel.report.result_reading import Source
from dasrel.report.result_store import run_section
from dasrel.report.verdict import spectrum_verdict
from dasrel.util.limits import Cost
from dasrel.util.option_fields import WRITING, option
from dasrel.util.results import check_file
from dasrel.util.text import count_text, path_text, shown


@dataclass(frozen=True)
class SpectrumOptions(SpectrumParameters):
    """How to search the ends of a spectrum, and whether a step draws them."""

    picture: bool = option(False, "Draw both ends of the spectrum.", WRITING, step_only=True)


class FindSpectrum(Operation):
    name = "spectrum"
    example = "dasrel spectrum distances.zarr"
    Options = SpectrumOptions
    target = Output("OUT.png", "Draw both ends of the spectrum.", flag="--picture", default=None)
    saves = ("spectrum",)
    is_step = True
    summarized = ("is_euclidean", "spread", "entropy_threshold", "converged")
    marks = {"spectrum": frozenset({"lowest_residuals", "highest_residuals"})}  # noqa: RUF012

    def prepare(self, source: str, target: Target, options: SpectrumOptions) -> PreparedSpectrum:
        """Check the matrix, and where to draw. Cost: no scan."""
        picture = None if target.path is None else Path(target.path)
        values = None
        if picture is not None and picture.suffix == ".json":  # of a step
            values, picture = picture, picture.with_suffix(".png") if options.picture else None
        if picture is not None:
            check_file(picture, force=target.force or target.resume)  # it may have been drawn before a kill
        return PreparedSpectrum(source, prepare_spectrum(source, options), picture, values)

    def outputs(self, options: SpectrumOptions) -> tuple[str, ...]:
        """Return the suffixes of the numbers, and of their picture."""
        return (".json", ".png") if options.picture else (".json",)

    def lines(self, result: Result) -> Lines:
        """Return what is printed of a spectrum."""
        answer = {True: "yes", False: "no", None: "unknown: too few scans"}[result["is_euclidean"]]
        if result["is_euclidean"] is False:
            answer += f"; at least {result['n_negative']:,} negative eigenvalues, about {result['negative_share']:.2g}"
            answer += f" of all by size; adding a constant of {result['spread']:.6g} makes it Euclidean"
        lines = [
            ("objects", f"{result['n_objects']:,}"),
            ("Euclidean", answer),
            ("lowest", _numbers(result["lowest"], result["lowest_residuals"])),
            ("highest", _numbers(result["highest"], result["highest_residuals"])),
            ("entropy threshold", f"{result['entropy_threshold']:.6g} (above it all clusters of fcm2 are equal)"),
            ("scans", f"{result['scans']}, {result['stopped']}"),
        ]
        return [*lines, ("picture", shown(result.get("picture"), limit=400))] if result.get("picture") else lines

    def part(self, source: Source) -> ResultPart:
        """Return what a page says of a spectrum. Cost: no scan."""
        result, n = source.values, source.values["n_objects"]
        rows = [
            [end, k + 1, value, residual]
            for end in ("lowest", "highest")
            for k, (value, residual) in enumerate(zip(result[end], result[f"{end}_residuals"], strict=True))
        ]
        text = "Eigenvalues of the centred matrix W(D), and the distance within which a true one lies."
        curves = pictures.picture_or_note(lambda: _picture(result))
        listed = table("eigenvalues", ["end", "number", "eigenvalue", "residual"], rows, text)
        answer = {True: "Euclidean", False: "not Euclidean", None: "not known whether Euclidean"}[
            result["is_euclidean"]
        ]
        facts = [("objects", f"{n:,}"), ("scans", f"{result['scans']:,}, {shown(result['stopped'])}")]
        sections = [Section("Eigenvalues", [curves, listed]), run_section(source)]
        return ResultPart("Spectrum", path_text(source.path), f"{count_text(n, 'object')}: {answer}",
                          spectrum_verdict(result), facts, sections, None, n)  # fmt: skip


@dataclass(frozen=True)
class PreparedSpectrum(Prepared):
    """A spectrum to be searched."""

    store: str
    job: SpectrumJob
    picture: Path | None
    values: Path | None
    """A file for the numbers, of a step."""

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Search the eigenvalues, and draw them. Cost: that of `spectrum`."""
        with watched(checkpoint, "spectrum"):
            spectrum = self.job.run(checkpoint)
            if self.values is not None:
                self.values.write_text(json.dumps(spectrum.as_dict(), indent=1) + "\n", encoding="utf-8")
            if self.picture is not None:
                from dasrel.report.figures.spectrum import draw_spectrum

                name = Path(self.store).name if self.values is None else self.values.stem
                draw_spectrum(spectrum, self.picture, title=name)
        picture = None if self.picture is None else str(self.picture)
        return {"store": self.store, **spectrum.as_dict(), "picture": picture}

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        return self.job.cost(self.picture)


def _numbers(values: Any, residuals: Any) -> str:
    first = f"{values[0]:.6g} +- {residuals[0]:.1g}"
    return "  ".join([first, *(f"{value:.4g}" for value in values[1:])])


def _picture(result: dict[str, Any]) -> Picture:
    from dasrel.report.figures.spectrum import spectrum_figure

    spectrum = Spectrum(**{field.name: result[field.name] for field in fields(Spectrum) if field.name in result})
    return pictures.inline_svg(
        spectrum_figure(spectrum),
        f"The {len(spectrum.lowest)} lowest and {len(spectrum.highest)} highest eigenvalues, and the convergence of"
        " their search.",
        "Bars below 0 are negative eigenvalues: no points have these distances. Compare their size with that of the"
        " highest ones. Whiskers are residuals. Right: how the residuals fell from scan to scan.",
    )


OPERATION = FindSpectrum()
