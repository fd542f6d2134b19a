"""The parts of a page about workflows and about figures of papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dasrel.report import page_figures as pictures
from dasrel.report.page_parts import (
    Block,
    Note,
    Picture,
    ResultPart,
    Section,
    Statement,
    cell,
    sentence,
    table,
)
from dasrel.report.result_reading import (
    Source,
    damaged,
    number,
    read_table,
    whole_file,
)
from dasrel.report.verdict import (
    figures_verdict,
)
from dasrel.util.text import count_text, path_text, shown, some, time_text

MOST_PICTURES = 24
"""Pictures of a folder of figures, at most."""


# --------------------------------------------------------------------------------- spectra, Euclideanisations, stores


# ---------------------------------------------------------------------------------------------------- tables of figures

FIGURES = ("what", "where", "paper", "ours", "verdict", "why")
"""Columns of figures.csv, by which a folder of repeated experiments is known."""


def figures_part(folder: Path) -> ResultPart:
    """Return the part about a folder that holds figures.csv, figures of a paper and ours, and pictures."""
    path = folder / "figures.csv"
    header, rows, count = read_table(path)
    lacking = [name for name in FIGURES if name not in header]
    if lacking:
        raise damaged(path, f"it has no column {some(lacking)}; its columns are {', '.join(FIGURES)}")
    cells = [[sentence(row[name]) if name in ("what", "why") else number(row[name]) for name in header] for row in rows]
    text = "Figures that a paper reports, and the same ones computed here."
    listed = table("figures", header, cells, text, total=count, file=path_text(path), whole=whole_file(path))
    pictures = sorted(
        picture for picture in folder.iterdir() if picture.suffix.lower() in (".png", ".svg") and picture.is_file()
    )
    drawn: list[Block] = [_figure(picture) for picture in pictures[:MOST_PICTURES]]
    if len(pictures) > MOST_PICTURES:
        drawn.append(Note(f"{len(pictures) - MOST_PICTURES} more pictures are in {path_text(folder)}."))
    sections = [Section("Figures", [listed]), *([Section("Pictures", drawn)] if drawn else [])]
    verdict = figures_verdict([row["verdict"] for row in rows])
    headline = f"{count_text(count, 'figure')} of a paper, computed again"
    facts = [("figures", f"{count:,}"), ("pictures", f"{len(pictures):,}")]
    return ResultPart("Experiment", path_text(folder), headline, verdict, facts, sections)


def _figure(path: Path) -> Block:
    name = shown(path.name, limit=200)
    if path.suffix.lower() == ".svg":
        return Picture(name, name, path.read_bytes(), "svg", name)
    return pictures.picture_or_note(lambda: pictures.png_file(path, name, name))


STATE = "run.state.json"
"""The file in the folder of a workflow that holds the state of its steps."""
RESULTS = ("cluster", "align", "embed", "outliers", "tree", "spectrum", "euclideanize")
"""Steps whose outputs are results with a part of their own."""
STORES = ("import", "pairwise", "demo")
MOST = 40
"""Results, and pictures, of a workflow that the page shows."""


def workflow_sources(folder: Path, state: dict[str, Any]) -> list[tuple[str, Path]]:
    """Return the steps that are done and have a result that exists, with its folder or file."""
    sources = []
    for name, step in state["steps"].items():
        done = step.get("done") or {}
        if done.get("kind") in (*RESULTS, *STORES):
            outputs = [folder / Path(str(output)).name for output in done.get("outputs") or {}]
            sources += [(name, place) for place in outputs[:1] if place.exists()]
    return sources[:MOST]


def workflow_part(source: Source) -> ResultPart:
    """Return the part about a folder of `dasrel run`. Cost: no scan; reads the state of the steps."""
    steps = source.values["steps"]
    rows, drawn, versions = [], [], set()
    unfinished, failed, slow = [], [], 0.0
    for name, step in steps.items():
        done, now = step.get("done") or {}, step.get("now") or {}
        status = now.get("status") or ("done" if done else "not done")
        seconds = done.get("seconds")
        slow += seconds or 0.0
        summary, message = sentence(_summary(done.get("result") or {})), sentence(now.get("message"))
        rows.append([name, done.get("kind"), status, seconds, done.get("ended"), summary, message])
        if status == "failed":
            failed.append(name)
        elif not done or now:
            unfinished.append(name)
        if (done.get("result") or {}).get("converged") is False:
            unfinished.append(f"{name} (not converged)")
        versions.add(str(done.get("version", "")))
        if done.get("kind") in ("image", "figure"):
            drawn += [source.path / Path(str(output)).name for output in done.get("outputs") or {}]
    count = count_text(len(steps), "step")
    verdict = [Statement("good", f"All {count} are done.")]
    if failed or unfinished:
        verdict = [Statement("bad", f"Failed: {some(map(shown, failed), show=8)}.")] if failed else []
        verdict += [Statement("caution", f"To look at: {some(map(shown, unfinished), show=8)}.")] if unfinished else []
    header = ["step", "kind", "status", "seconds", "ended", "result", "message"]
    text = (
        "Each result has a part of its own below. Seconds and figures are those of the last time that a step was run."
    )
    sections = [Section("Steps", [table("steps", header, rows, text)])]
    shown_pictures: list[Block] = [_picture(path) for path in drawn[:MOST] if path.suffix == ".png" and path.is_file()]
    if shown_pictures:
        sections.append(Section("Pictures", shown_pictures))
    known = ", ".join(sorted(version for version in versions if version)) or "not recorded"
    text = "`dasrel run FILE.toml` repeats the steps whose inputs or parameters have changed, and"
    text += " `dasrel run FILE.toml --status` shows which."
    sections.append(Section("What was run", [Note(f"dasrel {shown(known)}. {text}")]))
    facts = [("steps", f"{len(steps):,}"), ("time", time_text(slow))]
    return ResultPart(
        "Workflow",
        path_text(source.path),
        f"{count}, {'not all done' if failed or unfinished else 'all done'}",
        verdict,
        facts,
        sections,
    )


def _summary(result: dict[str, Any]) -> str:
    """Return the figures of a step in one line."""
    said = [(name, value) for name, value in result.items() if value is not None and name != "folders"]
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in said)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_value, value))
    return cell(value).text


def _picture(path: Path) -> Block:
    name = shown(path.name, limit=200)
    return pictures.picture_or_note(lambda: pictures.png_file(path, f"Picture of the step {path.stem}", name))
