"""What several results have in common: pictures that were drawn, tables to download, the store, a spectrum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dasrel.report import page_figures as pictures
from dasrel.report.page_parts import Block, Note, Section, Table
from dasrel.report.result_reading import Source, whole_file
from dasrel.report.result_store import audit_section, find_store, run_section
from dasrel.util.text import path_text, size_text, time_text

LISTED = 100
"""Objects that a table lists."""


def drawing(source: Source, name: str, alt: str, caption: str) -> list[Block]:
    """Return a picture that the command has drawn, or say that it has not."""
    path = source.file(name)
    if not path.is_file():
        return [Note(f"There is no {name} in the result: it was made without pictures.")]
    return [pictures.picture_or_note(lambda: pictures.png_file(path, alt, caption))]


def downloads(path: Path, name: str) -> list[Block]:
    """Return a table of the result as a download, or name its file."""
    if not path.is_file():
        return []
    whole = whole_file(path)
    if whole is None:
        return [Note(f"All of it is in the file {path_text(path)} ({size_text(path.stat().st_size)}).")]
    return [Table(name, [], [], file=path_text(path), whole=whole, kind="download")]


def scans_fact(result: dict[str, Any]) -> tuple[str, str]:
    """Return the scans and seconds of a result, for its card."""
    took = "" if result.get("seconds") is None else f" in {time_text(result['seconds'])}"
    return "scans", f"{result['scans']:,}{took}"


def store_sections(source: Source) -> list[Section]:
    """Return the audit of the store, and what was run. Cost: no scan."""
    return [audit_section(source, *find_store(source)), run_section(source)]
