"""Tiles pinned in the memory of a cluster's workers, and the workers' progress reports.

Tiles in the memory of a cluster's workers: read once, pinned evenly, and there for every later scan.
"""

from __future__ import annotations

import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import dask
import numpy as np

from dasrel.util import Array, progress

Group = tuple[int, int]
Place = tuple[int, int]
WorkerMemory = dict[str, tuple[int, int]]
"""What `limits.worker_memory` returns: bytes for work and threads of each worker."""
PINNED_SHARE = 0.6
"""Of what a worker has for work, at most 0.8 of its limit. Dask begins to write to disk at 0.6 of the limit, and the
scan's own sums need room."""
LOOK = 1.0
"""Seconds between two looks after tiles that wait for a worker that is gone."""
CONNECT = 1.0
"""Seconds in which a worker that can be reached takes a connection."""
UNLIMITED = 2 * 2**30
"""What is pinned at most on a worker that names no limit."""


@dataclass(frozen=True)
class PinnedTiles:
    """The tiles of a group, in memory."""

    tiles: dict[Place, Array] = field(default_factory=dict)

    def __sizeof__(self) -> int:
        # Dask asks, and moves what it takes for small from worker to worker.
        return sum(tile.nbytes for tile in self.tiles.values())


def hold(reader: Any, places: Sequence[Place]) -> PinnedTiles:
    """Read the tiles of a group into memory; runs on the worker that is to keep them."""
    held = {}
    for i, j in places:
        tile = reader.read_checked(i, j)
        held[i, j] = tile if tile.base is None and tile.flags.owndata else tile.copy()
    return PinnedTiles(held)


def send_tiles(client: Any, reader: Any, places: Sequence[Place], worker: str | None) -> Any:
    """Return a future of these tiles in the memory of a worker, this one if it is there.

    Workers read the tiles themselves where they can. Tiles of an array of this process are sent; those of a dask array
    are computed on the cluster.
    """
    if reader.travels:
        return client.submit(hold, reader, places, workers=worker, allow_other_workers=worker is not None, pure=False)
    if isinstance(reader.array, np.ndarray):
        return client.scatter(hold(reader, places), workers=worker, hash=False)
    parts = [reader.array[reader.layout.span(i), reader.layout.span(j)] for i, j in places]
    held = dask.delayed(_computed)(places, reader.layout.dtype, parts)
    return client.compute(held, workers=worker, allow_other_workers=worker is not None)


def _computed(places: Sequence[Place], dtype: np.dtype[Any], parts: Sequence[Array]) -> PinnedTiles:
    pairs = zip(places, parts, strict=True)
    return PinnedTiles({(i, j): np.asarray(part, dtype=dtype) for (i, j), part in pairs})


class WorkerCache:
    """The groups of one matrix that the workers of one client keep in memory."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.futures: dict[Group, Any] = {}
        self.homes: dict[Group, str] = {}
        """The worker that each group was given to."""

    def stranded(self) -> set[Group]:
        """Groups that wait for a worker that is gone, and that nobody works on."""
        here = self.client.processing()
        busy = {key for keys in here.values() for key in keys}
        return {
            group
            for group, future in self.futures.items()
            if future.status in ("pending", "lost") and self.homes[group] not in here and future.key not in busy
        }

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancel, while a scan runs, what would wait for ever, so that it can be asked for anew.

        Dask sends what was meant for a worker that died to another one, but not if there is none at that moment.
        """
        ended = threading.Event()

        def look() -> None:
            before: set[Group] = set()
            while not ended.wait(LOOK):
                with suppress(Exception):  # a connection that is lost is somebody else's business
                    now = self.stranded()
                    if lost := now & before:
                        self.client.cancel([self.futures[group] for group in lost])
                    before = now

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()

    def place(
        self, reader: Any, groups: dict[Group, list[Place]], tile_bytes: int, task_memory: int, memory: WorkerMemory
    ) -> tuple[dict[Group, Any], set[Group]]:
        """Return futures of the groups that workers hold, and the groups that are read from the source for this scan.

        Groups that fit are pinned; the others are read by their tasks, or, where the workers cannot read them
        themselves, sent for this scan only.
        """
        for group in [group for group, future in self.futures.items() if future.status not in ("pending", "finished")]:
            del self.futures[group]  # lost with its worker, or it could not be read
        sizes = {group: len(places) * tile_bytes for group, places in groups.items()}
        read = {group for group in groups if group not in self.futures}
        for group, address in placement(sizes, self.futures, task_memory, memory).items():
            self.futures[group] = send_tiles(self.client, reader, groups[group], address)
            self.homes[group] = address
        given = dict(self.futures)
        if not reader.travels:
            sent = [group for group in groups if group not in given]
            given |= {group: send_tiles(self.client, reader, groups[group], None) for group in sent}
        return given, read


def placement(
    sizes: dict[Group, int], pinned: Collection[Group], task_memory: int, memory: WorkerMemory
) -> dict[Group, str]:
    """Return the worker for each group, of so many bytes, that can be pinned beside those that are pinned already.

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
    """Return groups that may share a task, because one worker holds them: one task for each thread, if `most` allows.

    Every task costs the scheduler a millisecond or more, as much as a scan of a small matrix takes in all.
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
class Tell:
    """Called in a task: reports its progress from the worker to the client."""

    topic: str

    def __call__(self, tiles: int, bytes: int) -> None:  # noqa: A002
        from distributed import get_worker

        get_worker().log_event(self.topic, {"tiles": tiles, "bytes": bytes})


def quiet(tiles: int, bytes: int) -> None:  # noqa: A002
    """Called in a task where nobody is told of progress."""


@contextmanager
def progress_from_workers(
    client: Any, step: progress.Pass, tiles: int, size: int, *, watched: bool
) -> Iterator[Callable[[int, int], None]]:
    """Progress of a scan on a cluster: the workers' reports as they come, and what did not arrive at the end."""
    if not watched:
        yield quiet
        step.add(tiles=tiles, bytes=size, read=False)
        return
    topic = f"dasrel-{uuid.uuid4().hex}"
    seen = {"tiles": 0, "bytes": 0, "open": 1}

    def hear(event: tuple[Any, Any]) -> None:
        told = event[1]
        if seen["open"] and seen["tiles"] + told["tiles"] <= tiles:
            seen["tiles"] += told["tiles"]
            seen["bytes"] += told["bytes"]
            step.add(tiles=told["tiles"], bytes=told["bytes"], read=False)

    client.subscribe_topic(topic, hear)
    try:
        yield Tell(topic)
        seen["open"] = 0
        step.add(tiles=tiles - seen["tiles"], bytes=size - seen["bytes"], read=False)
    finally:
        seen["open"] = 0
        client.unsubscribe_topic(topic)


def get(client: Any, addresses: Iterable[str], graph: dict[Any, Any], wanted: list[Any]) -> list[Any]:
    """Run a graph on the workers and bring the results here, straight from them where they can be reached."""
    direct = all(_reachable(address) for address in addresses)
    with warnings.catch_warnings():
        # The strips of U travel inside the graph, so that a lost worker loses nothing that cannot be made again.
        warnings.filterwarnings("ignore", message="Sending large graph", category=UserWarning)
        return list(client.get(graph, wanted, direct=direct or None))


@cache
def _reachable(address: str) -> bool:
    """Whether this process can open a connection to a worker; tried once. Else its scheduler passes things on.

    A scheduler in a pod or behind a tunnel may be all that can be reached of a cluster. Measured with two workers on
    one machine, n = 20,480 and 64 columns: 31 MB of sums come 30 to 50 ms sooner without the scheduler. With TLS it is
    not tried: a worker warns of connections that end before their handshake.
    """
    protocol, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if protocol != "tcp":
        return False
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()
    except (OSError, ValueError):
        return False
    return True
