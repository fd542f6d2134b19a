"""A prepared job that writes a new store tile by tile: run it, run one part of it, or estimate its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dasrel.errors import InputError, MemoryLimitError
from dasrel.store.layout import Layout
from dasrel.store.matrix import Matrix
from dasrel.store.options import Policy, Writing
from dasrel.store.tile_files import StoreLike, TileFiles, local_path
from dasrel.store.writer import PartDone, Writer, begin_store, join_store, new_manifest, write_part
from dasrel.util import Array, limits, parallel
from dasrel.util.limits import Cost, Output, Range

Tile = tuple[int, int]
Work = Callable[[TileFiles, Sequence[Tile]], tuple[Callable[[Any], None], Sequence[Any]]]
"""Given the files of a store and its missing tiles, returns the function of a task and one item for each tile."""
TILE_OVERHEAD = 32 << 20
"""Bytes that the task of an imported or appended tile takes besides blocks and tiles, such as `CHECK_MEMORY`."""


def check_task_memory(task_memory: int, memory: int | str, label: str, *, local: bool) -> None:
    """Raise, before anything is written, what `parallel.run` would raise for tasks that need too much memory."""
    client = None if local else parallel.active_client()
    if client is None:
        limits.threads_that_fit(task_memory, memory, label)
    else:
        limits.check_workers(limits.worker_memory(client), task_memory, label)


@dataclass(frozen=True)
class StoreJob:
    """A new store with everything checked and nothing begun."""

    label: str
    """Name of the operation, for progress and messages."""
    store: StoreLike
    state: str | None
    """State of the store that is there already, as `check_new_store` returns it."""
    kind: str
    policy: Policy
    writing: Writing
    layout: Layout | None
    """None for an estimate when the number of objects is known only after the source has been read."""
    ids: Array | None
    provenance: dict[str, Any]
    task_memory: int
    """Bytes of anonymous memory that the task of one tile takes at its peak."""
    facts: dict[str, Any]
    """What an estimate reports of the source."""
    work: Work
    checksum: str | None = None
    """Of the source; None takes the checksums of the tiles as they were read."""
    read_file: str | None = None
    """The file that the tasks read, if they read one."""
    local: bool = False
    """Whether the tasks must run in this process."""
    retries: int = 0
    keep_unfinished: bool = False
    """Whether a store with rejected values stays for `resume`. If not, a store that was begun here is removed."""

    def result(self) -> Matrix | PartDone:
        """Run the job, or the part of it that `writing.part` names."""
        if self.writing.part is None:
            return self.run()
        assert isinstance(self.writing.part, tuple)
        return self.run_part(self.writing.part)

    def run(self) -> Matrix:
        """Write all missing tiles, complete the store, and open it."""
        manifest, ids = self._manifest()
        writer = begin_store(self.store, self.state, manifest, ids, self.writing)
        try:
            self._check_shared(self.store)
            self._write(writer)
            return writer.finish(checksum=self.checksum)
        except (InputError, MemoryLimitError, parallel.UnseenError):
            if not self.keep_unfinished:
                writer.abandon()  # so that it can be tried again with another policy
            raise

    def run_part(self, part: tuple[int, int]) -> PartDone:
        """Write the missing tiles of part (k, n), and report what is left. The store is completed by `run`."""
        manifest, ids = self._manifest()
        writer = join_store(self.store, manifest, ids, part)
        self._check_shared(self.store)
        return write_part(writer, lambda: self._write(writer))

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        none = Range(0, 0, 0)
        if self.layout is None:
            return Cost(self.label, None, none, 0, limits.memory_limit(self.writing.memory), (), self.facts)
        layout = self.layout
        memory = limits.threads_that_fit(self.task_memory, self.writing.memory, self.label) * self.task_memory
        facts = {
            **self.facts, "kind": self.kind, "tiles": len(layout.tiles()), "tile": layout.tile,
            "dtype": str(layout.dtype),
        }  # fmt: skip
        output = Output(str(self.store), layout.total_bytes + 60 * layout.n_objects)
        return Cost(self.label, layout.n_objects, none, 0, memory, (output,), facts)

    def _manifest(self) -> tuple[dict[str, Any], Array]:
        """Return the new store's manifest and ids. Raises before a store is begun if a task needs too much memory."""
        assert self.layout is not None
        assert self.ids is not None
        check_task_memory(self.task_memory, self.writing.memory, self.label, local=self.local)
        if self.read_file is not None:
            self._check_shared(self.read_file)
        return new_manifest(self.layout, self.kind, self.policy, self.writing, self.provenance), self.ids

    def _check_shared(self, place: StoreLike) -> None:
        """Raise, before a tile is written, if workers do not see a file or a store of this machine."""
        if not self.local and (path := local_path(place)) is not None:
            parallel.check_all_see(path)

    def _write(self, writer: Writer) -> None:
        def write(missing: list[Tile]) -> None:
            function, items = self.work(writer.files, missing)
            parallel.run(
                function,
                items,
                label=self.label,
                bytes_each=writer.layout.tile_bytes,
                retries=self.retries,
                task_memory=self.task_memory,
                memory=self.writing.memory,
                local=self.local,
                resume_hint=writer.resume_hint,
            )

        parallel.repeated_if_lost(lambda _: writer.write_missing(write))
