"""The parts of a page about outliers, trees, alignments, embeddings, spectra, Euclideanisations and figures."""

from __future__ import annotations

from pathlib import Path

from dasrel.report import page_figures as pictures
from dasrel.report.page_parts import (
    Block,
    Note,
    Picture,
    ResultPart,
    Section,
    sentence,
    table,
)
from dasrel.report.result_reading import (
    damaged,
    number,
    read_table,
    whole_file,
)
from dasrel.report.verdict import (
    figures_verdict,
)
from dasrel.util.text import count_text, path_text, shown, some

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
