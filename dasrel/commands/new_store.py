"""What the operations that write a new store have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dasrel.commands.base import NEW_STORE, Lines, Operation, Prepared, Result, Target
from dasrel.engine.checkpoint import Checkpoint
from dasrel.store.audit import audit_lines, audit_store
from dasrel.store.writer import PartDone
from dasrel.util.limits import Cost
from dasrel.util.results import check_not_input
from dasrel.util.text import count_text


@dataclass(frozen=True)
class PreparedStore(Prepared):
    """A store to be written."""

    store: str
    write: Callable[[], Any]
    """Write it; return what was written of a part."""
    job: Callable[[], Any]
    """Return the context of the work, whose cost is known."""

    def run(self, checkpoint: Checkpoint | None = None) -> Result:
        """Write the store, and return its audit, or what a part of it has written and what is missing."""
        written = self.write()
        if not isinstance(written, PartDone):
            return audit_store(self.store)
        k, n = written.part
        return {"store": self.store, "part": f"{k}/{n}", "tiles_written": written.written,
                "tiles_missing": written.missing, "complete": written.complete}  # fmt: skip

    def cost(self) -> Cost:
        """Estimate the cost of `run` from what is to be read; raise where `run` would."""
        with self.job() as job:
            cost: Cost = job.cost()
            return cost


class NewStore(Operation):
    """An operation that writes a store of its source."""

    target = NEW_STORE
    is_step = True
    gives_matrix = True
    can_grow = True
    suffixes = (".zarr",)
    summarized = ("n_objects", "kind")

    def prepare(self, source: str, target: Target, options: Any) -> PreparedStore:
        """Check that the store does not replace what is read; all else is checked under the lock of the store."""
        check_not_input(target.path, source, options.reading.ids)
        return self.prepared(source, str(target.path), options)

    def prepared(self, source: str, store: str, options: Any) -> PreparedStore:
        """Return the store of a source, to be written; each operation has its own."""
        raise NotImplementedError

    def lines(self, result: Result) -> Lines:
        """Return what is printed of the store, or of a part of it."""
        if "part" not in result:
            return audit_lines(result)
        k, _, n = result["part"].partition("/")
        left = count_text(result["tiles_missing"], "tile") if result["tiles_missing"] else "none"
        then = "" if result["complete"] else "; when all parts have ended: the same with --resume, without --part"
        written = f"{k} of {n}: {count_text(result['tiles_written'], 'tile')} written"
        return [("part", written), ("missing", left + then)]

    def in_step(self, options: Any) -> Any:
        """Return options with which an interrupted import or computation is resumed."""
        return replace(options, writing=replace(options.writing, resume=True))
