"""Tiles pinned in the memory of a cluster's workers, and the workers' progress reports.

Tiles are read once, pinned evenly, and used by every later scan.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import dask
import numpy as np

from dasrel.store.layout import Reader, TileIndex, TileSource
from dasrel.util import Array, limits, progress

Group = tuple[int, int]
WorkerMemory = dict[str, tuple[int, int]]
"""Bytes for work and number of threads of each worker, as `limits.worker_memory` returns them."""
PINNED_SHARE = 0.6
"""Share of a worker's memory for work that pinned tiles may take. That memory is at most 0.8 of the worker's limit;
Dask begins to write to disk at 0.6 of the limit, and the scan's own sums need room."""
LOOK = 1.0
"""Seconds between two checks for tiles that wait for a lost worker."""
UNLIMITED = 2 * 2**30
"""Bytes pinned at most on a worker without a memory limit."""


@dataclass(frozen=True)
class PinnedTiles:
    """The tiles of a group, in memory."""

    tiles: dict[TileIndex, Array] = field(default_factory=dict)

    def __sizeof__(self) -> int:
        # Dask moves objects that seem small from worker to worker.
        return sum(tile.nbytes for tile in self.tiles.values())

    def read_checked(self, i: int, j: int) -> Array:
        """Return tile (i, j)."""
        return self.tiles[i, j]


def read_pinned(reader: Reader, tiles: Sequence[TileIndex]) -> PinnedTiles:
    """Read the tiles of a group into memory; runs on the worker that keeps them."""
    pinned = {}
    for i, j in tiles:
        tile = reader.read_checked(i, j)
        pinned[i, j] = tile if tile.base is None and tile.flags.owndata else tile.copy()
    return PinnedTiles(pinned)


def send_tiles(client: Any, reader: Reader, tiles: Sequence[TileIndex], worker: str | None) -> Any:
    """Return a future of these tiles in the memory of a worker, the given one if it is alive.

    Workers read the tiles themselves where they can. Tiles of an array in this process are sent; those of a dask array
    are computed on the cluster.
    """
    array, elsewhere = reader.local_array, worker is not None
    if array is None:
        return client.submit(read_pinned, reader, tiles, workers=worker, allow_other_workers=elsewhere, pure=False)
    if not hasattr(array, "dask"):
        return client.scatter(read_pinned(reader, tiles), workers=worker, hash=False)
    parts = [array[reader.layout.span(i), reader.layout.span(j)] for i, j in tiles]
    pinned = dask.delayed(_computed)(tiles, reader.layout.dtype, parts)
    return client.compute(pinned, workers=worker, allow_other_workers=elsewhere)


def _computed(tiles: Sequence[TileIndex], dtype: np.dtype[Any], parts: Sequence[Array]) -> PinnedTiles:
    pairs = zip(tiles, parts, strict=True)
    return PinnedTiles({(i, j): np.asarray(part, dtype=dtype) for (i, j), part in pairs})


class WorkerCache:
    """The groups of one matrix that the workers of one client keep in memory."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.futures: dict[Group, Any] = {}
        self.homes: dict[Group, str] = {}
        """The worker that each group was assigned to."""

    def stranded(self) -> set[Group]:
        """Return the groups that wait for a lost worker and that no other worker is processing."""
        here = self.client.sync(self.client.scheduler.processing, workers=None, callback_timeout=limits.stall_seconds())
        busy = {key for keys in here.values() for key in keys}
        return {
            group
            for group, future in self.futures.items()
            if future.status in ("pending", "lost") and self.homes[group] not in here and future.key not in busy
        }

    def forget(self, address: str) -> None:
        """Pin the groups of a worker anew, under other names: others may wait for ever for what it had."""
        for group in [group for group, home in self.homes.items() if home == address]:
            self.futures.pop(group, None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancel futures that would wait for ever while a scan runs, so that they can be submitted again.

        Dask moves the tasks of a dead worker to another one, but not if there is none at that moment.
        """
        ended = threading.Event()

        def look() -> None:
            before: set[Group] = set()
            while not ended.wait(LOOK):
                with suppress(Exception):  # a lost connection is reported by the scan itself
                    now = self.stranded()
                    if lost := now & before:
                        self.client.cancel([self.futures[group] for group in lost])
                    before = now

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(LOOK)  # the scheduler may give no answer

    def pin(
        self,
        reader: Reader,
        groups: dict[Group, list[TileIndex]],
        tile_bytes: int,
        task_memory: int,
        memory: WorkerMemory,
    ) -> tuple[dict[Group, Any], set[Group]]:
        """Return futures of the groups that workers hold, and the groups that this scan reads from the source.

        Groups that fit into `memory` are pinned. The others are read by their tasks or, where the workers cannot read
        them themselves, sent for this scan only.
        """
        for group in [group for group, future in self.futures.items() if future.status not in ("pending", "finished")]:
            del self.futures[group]  # lost with its worker, or it could not be read
        sizes = {group: len(tiles) * tile_bytes for group, tiles in groups.items()}
        read = {group for group in groups if group not in self.futures}
        placed = placement(sizes, self.futures, task_memory, memory) if memory else {}
        for group, address in placed.items():
            self.futures[group] = send_tiles(self.client, reader, groups[group], address)
            self.homes[group] = address
        futures = dict(self.futures)
        if reader.local_array is not None:
            sent = [group for group in groups if group not in futures]
            futures |= {group: send_tiles(self.client, reader, groups[group], None) for group in sent}
        return futures, read


_caches: WeakKeyDictionary[TileSource, dict[str, WorkerCache]] = WeakKeyDictionary()


def worker_cache(source: TileSource, client: Any) -> WorkerCache:
    """Return what the workers of a client hold of a matrix; it lives as long as the matrix."""
    of_clients = _caches.setdefault(source, {})
    return of_clients.get(client.id) or of_clients.setdefault(client.id, WorkerCache(client))


def placement(
    sizes: dict[Group, int], pinned: Collection[Group], task_memory: int, memory: WorkerMemory
) -> dict[Group, str]:
    """Assign a worker to each group, given its size in bytes, that can be pinned beside those already pinned.

    Each goes to the worker with the most room left. Already pinned groups are charged to the workers evenly.
    """
    room = {
        address: int(PINNED_SHARE * limit if limit else UNLIMITED) - threads * task_memory
        for address, (limit, threads) in sorted(memory.items())
    }
    total = sum(room.values()) - sum(sizes[group] for group in pinned)
    placed: dict[Group, str] = {}
    for group in [*pinned, *(group for group in sizes if group not in pinned)]:
        emptiest = max(room, key=lambda address: room[address])
        if group in pinned:
            room[emptiest] -= sizes[group]
        elif sizes[group] <= min(room[emptiest], total):
            room[emptiest] -= sizes[group]
            total -= sizes[group]
            placed[group] = emptiest
    return placed


def batches(
    groups: Sequence[Group], homes: Mapping[Group, str], memory: WorkerMemory, *, most: int | None
) -> list[list[Group]]:
    """Combine groups that one worker holds into tasks, one for each thread, of at most `most` groups.

    Every task costs the scheduler a millisecond or more, as much as a complete scan of a small matrix.
    """
    by_home: dict[str, list[Group]] = {}
    alone: list[list[Group]] = []
    for group in groups:
        home = homes.get(group, "")
        if home in memory:
            by_home.setdefault(home, []).append(group)
        else:
            alone.append([group])
    for home, mine in by_home.items():
        size = min(most or len(mine), -(-len(mine) // memory[home][1]))
        alone.extend(mine[k : k + size] for k in range(0, len(mine), size))
    return alone


@dataclass(frozen=True)
class WorkerProgress:
    """Reports the progress of a task from its worker to the client."""

    topic: str

    def __call__(self, tiles: int, bytes: int) -> None:  # noqa: A002
        from distributed import get_worker

        get_worker().log_event(self.topic, {"tiles": tiles, "bytes": bytes})


def no_progress(tiles: int, bytes: int) -> None:  # noqa: A002
    """Report nothing; for tasks whose progress is not watched."""


@contextmanager
def progress_from_workers(
    client: Any, step: progress.Pass, tiles: int, size: int, *, watched: bool
) -> Iterator[Callable[[int, int], None]]:
    """Count the progress of a scan on a cluster: the workers' reports as they come, and the remainder at the end."""
    if not watched:
        yield no_progress
        step.add(tiles=tiles, bytes=size, read=False)
        return
    topic = f"dasrel-{uuid.uuid4().hex}"
    seen = {"tiles": 0, "bytes": 0, "open": 1}

    def hear(event: tuple[Any, Any]) -> None:
        report = event[1]
        if seen["open"] and seen["tiles"] + report["tiles"] <= tiles:
            seen["tiles"] += report["tiles"]
            seen["bytes"] += report["bytes"]
            step.add(tiles=report["tiles"], bytes=report["bytes"], read=False)

    client.subscribe_topic(topic, hear)
    try:
        yield WorkerProgress(topic)
        seen["open"] = 0
        step.add(tiles=tiles - seen["tiles"], bytes=size - seen["bytes"], read=False)
    finally:
        seen["open"] = 0
        client.unsubscribe_topic(topic)
