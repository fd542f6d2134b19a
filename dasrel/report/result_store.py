"""The store that a result was made from, if it is still there, and what a page says of it and of how it was run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dasrel.errors import DasrelError
from dasrel.report.page_parts import Block, Code, Facts, Note, Section
from dasrel.report.result_reading import Source
from dasrel.store.audit import allowed_repairs, audit_lines, audit_store
from dasrel.store.matrix import Matrix, is_store, open_matrix
from dasrel.util.text import count_text, is_url, path_text, shown, size_text, time_text

LARGEST_SCAN = 2 << 30
"""Bytes of a store that a page reads by itself to draw its matrix: some seconds."""


def find_store(source: Source) -> tuple[Matrix | None, str]:
    """Return the matrix of a result, or None and why: only the store that it names, with the same content.

    A relative path is looked for here and beside the result. Cost: no scan; reads ids and records of the store.
    """
    if source.matrix is not None:
        return source.matrix, ""
    named, digest = source.values.get("store"), source.values.get("matrix")
    if not isinstance(named, str) or not isinstance(digest, str):
        return None, "the result does not name its store"
    if is_url(named):
        return None, f"the store {path_text(named)} is not on this machine"
    beside = source.path.absolute().parent
    other = 0
    for place in dict.fromkeys((Path(named), beside / named, beside / Path(named).name)):
        try:
            if place.is_dir() and is_store(str(place)):
                matrix = open_matrix(str(place))
                if matrix.identity_digest() == digest:
                    return matrix, ""
                other += 1
        except (DasrelError, OSError):
            continue
    if other:
        return None, f"the store {path_text(named)} has another content now than when the result was made"
    return None, f"the store {path_text(named)} is not there any more, or cannot be read"


def is_small(matrix: Matrix) -> bool:
    """Return whether a scan of a store takes a page some seconds only."""
    return matrix.layout.total_bytes <= LARGEST_SCAN


def scan_note(matrix: Matrix, command: str) -> Note:
    """Return the line for a picture that would take a scan of a large store."""
    size = size_text(matrix.layout.total_bytes)
    return Note(f"Not drawn: this takes a scan of {size}. This command draws it: {command}")


def audit_blocks(audit: dict[str, Any]) -> list[Block]:
    """Return an audit as facts, with every repair that was allowed as a line of its own."""
    repairs = allowed_repairs(audit["input"])
    for append in audit["provenance"].get("appends", []):
        repairs += [f"{name}, of {count_text(append['objects'], 'appended object')}"
                    for name in allowed_repairs(append.get("policy") or {})]  # fmt: skip
    if repairs:
        first: Block = Note(f"Repairs that were allowed: {'; '.join(repairs)}.", "caution")
    else:
        first = Note("No repair was allowed: a flaw of the input would have been an error.", "good")
    return [first, Facts([(name, text) for name, text in audit_lines(audit) if name != "repairs allowed"])]


def audit_section(source: Source, matrix: Matrix | None, why: str) -> Section:
    """Return the audit of the store of a result. Cost: no scan."""
    if matrix is None:
        text = f"The audit is not shown: {why}. `dasrel audit STORE` prints it."
        return Section("The matrix", [Note(text)])
    if not isinstance(matrix, Matrix):
        return Section("The matrix", [Note("The matrix is an array of the process that made the result, not a store.")])
    try:
        return Section("The matrix", audit_blocks(audit_store(matrix.store)))
    except DasrelError as error:
        return Section("The matrix", [Note(f"The audit is not shown: {shown(error, limit=300)}.")])


def run_section(source: Source) -> Section:
    """Return what was run, with versions, seed, scans and time, and the command that repeats it."""
    values = source.values
    requested = values.get("requested") or {}
    rows = [("result", path_text(source.path))]
    if "store" in values:
        rows.append(("store", path_text(values["store"])))
    if "matrix" in values:
        rows.append(("matrix", f"digest {shown(values['matrix'])}"))
    if "random_state" in requested:
        rows.append(("seed", str(requested["random_state"])))
    if "scans" in values:
        of = f", {values['first_scans']:,} of them before the first iteration" if values.get("first_scans") else ""
        rows.append(("scans", f"{values['scans']:,}{of}"))
    if values.get("seconds") is not None:
        rows.append(("time", time_text(values["seconds"])))
    if values.get("versions"):
        rows.append(("versions", ", ".join(f"{name} {shown(text)}" for name, text in values["versions"].items())))
    blocks: list[Block] = [Facts(rows)]
    if source.command:
        blocks += [
            Note("The same result comes from this command, with the same seed to the same bits:"),
            Code(source.command),
        ]
    else:
        text = "There is no command that repeats it: the result does not name its store and options."
        blocks.append(Note(text))
    return Section("What was run", blocks)
