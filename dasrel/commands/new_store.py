"""What the operations that write a new store have in common: what they report of it, or of a part of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dasrel.commands.base import Lines, Result
from dasrel.store.audit import audit_lines, audit_store
from dasrel.store.writer import PartDone
from dasrel.util.text import count_text


def store_result(store: str, written: Any) -> Result:
    """Return the audit of a new store, or what a part of it has written and what is missing."""
    if not isinstance(written, PartDone):
        return audit_store(store)
    k, n = written.part
    return {"store": store, "part": f"{k}/{n}", "tiles_written": written.written, "tiles_missing": written.missing,
            "complete": written.complete}  # fmt: skip


def store_lines(result: Result) -> Lines:
    """Return what is printed of a new store, or of a part of it."""
    if "part" not in result:
        return audit_lines(result)
    k, _, n = result["part"].partition("/")
    left = count_text(result["tiles_missing"], "tile") if result["tiles_missing"] else "none"
    then = "" if result["complete"] else "; when all parts have ended: the same with --resume, without --part"
    return [("part", f"{k} of {n}: {count_text(result['tiles_written'], 'tile')} written"), ("missing", left + then)]


def resumed(options: Any) -> Any:
    """Return options with which a store is resumed if it is there."""
    return replace(options, writing=replace(options.writing, resume=True))
