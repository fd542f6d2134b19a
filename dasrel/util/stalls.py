"""Notice a worker or a scheduler that stands still, and give the work of such a worker to others.

A process that is stopped, whose host is suspended, or that waits for a disk for ever keeps its connections: to those
that wait for it, it looks like a slow one. While work runs on a cluster, a thread asks the scheduler every few seconds
when it last heard of each worker, and which tasks each has.

- A worker that is silent for `limits.stall_seconds`, or for longer where its tasks take long, is given up: its nanny
  ends the process and starts another, or the scheduler removes it. Dask then gives its tasks and tiles to others. If it
  comes back it is no longer of the cluster, and ends.
- A worker that is alive and finishes no task gets ten times as long.
- A scheduler that gives no answer for so long ends the work.

Each worker that is given up doubles the time for the next: a piece of work that only looks like a standstill comes to
its end.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from dasrel.errors import DasrelWarning
from dasrel.util import limits
from dasrel.util.text import redacted, time_text

Result = TypeVar("Result")
INTERVAL = 5.0
"""Most seconds between two looks at the cluster."""
STUCK = 10
"""How many times as long as to a silent worker is given to one that is alive and finishes no task."""
RESTART = 60.0
"""Most seconds until a nanny has ended a worker and another has come."""
_slowest: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
"""By client: most seconds that a worker took between two of its tasks."""


class GivenUp(CancelledError):  # noqa: N818 - no failure: the work is done again
    """Raised when a worker that could not be ended was given up: what was asked of it may never be answered."""

    def __init__(self, address: str) -> None:
        super().__init__(f"worker {address} was given up")
        self.address = address


@dataclass
class _Worker:
    """What was last heard of a worker."""

    beat: float
    """The scheduler's time of its last sign of life."""
    heard: float
    """When that changed, by the clock here."""
    tasks: frozenset[Any]
    moved: float
    """When its tasks changed, or it had none."""


@contextmanager
def watching(client: Any, *, repeats: bool = False) -> Iterator[Watch]:
    """Watch the cluster inside the block; calls of `Watch.waited` raise what is wrong with it.

    `repeats`: work that waits for a worker which could not be ended raises `GivenUp`, and is done again.
    """
    watch = Watch(client, repeats=repeats)
    thread = threading.Thread(target=watch.look, name="dasrel-stalls", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()  # the thread may wait for a scheduler that gives no answer: it is not waited for
        watch.tell()


class Watch:
    """Looks at a cluster while work waits for it. Get one with `watching`."""

    def __init__(self, client: Any, *, repeats: bool) -> None:
        self.ended = threading.Event()
        self._client, self._repeats = client, repeats
        self._stall = limits.stall_seconds()
        self._workers: dict[str, _Worker] = {}
        self._reports: list[DasrelWarning] = []
        self._failure: BaseException | None = None
        self._given_up = 0

    def waited(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function that waits for the cluster, as `limits.waited` does; raise if that makes no sense."""
        return limits.waited(function, *arguments, meanwhile=self._report)

    def tell(self) -> None:
        """Warn of workers that were given up."""
        while self._reports:
            warnings.warn(self._reports.pop(0), stacklevel=4)

    def _report(self) -> None:
        """Warn of workers that were given up, and raise what ends the work; in the thread that waits."""
        self.tell()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def look(self) -> None:
        """Look at the cluster until the block ends."""
        while not self.ended.wait(min(INTERVAL, self._stall / 10)):
            try:
                self._look()
            except Exception as error:
                if self._client.status != "running":
                    return  # the work itself reports a lost connection
                if isinstance(error, TimeoutError):
                    self._failure = limits.no_answer(self._client, self._stall)
                    return

    def _look(self) -> None:
        client, began = self._client, time.monotonic()
        known = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=self._stall)["workers"]
        has = client.sync(client.scheduler.processing, workers=None, callback_timeout=self._stall)
        now = time.monotonic()
        if now - began > INTERVAL:  # the scheduler itself was slow: it may have heard of nobody meanwhile
            for worker in self._workers.values():
                worker.heard, worker.moved = worker.heard + now - began, worker.moved + now - began
        slowest = _slowest.get(client, 0.0)
        for address, facts in known.items():
            beat, tasks = facts["last_seen"], frozenset(has.get(address, ()))
            worker = self._workers.setdefault(address, _Worker(beat, now, tasks, now))
            if beat != worker.beat:
                worker.beat, worker.heard = beat, now
            if tasks != worker.tasks or not tasks:
                if worker.tasks:
                    slowest = max(slowest, now - worker.moved)
                worker.tasks, worker.moved = tasks, now
        _slowest[client] = slowest
        allowed = max(self._stall, 2 * slowest) * 2**self._given_up
        for address, facts in known.items():
            worker = self._workers[address]
            if now - worker.heard > allowed:
                self._give_up(address, facts, f"gave no sign of life for {time_text(now - worker.heard)}")
            elif now - worker.moved > STUCK * allowed:
                self._give_up(address, facts, f"finished none of its tasks for {time_text(now - worker.moved)}")

    def _give_up(self, address: str, facts: dict[str, Any], why: str) -> None:
        """End a worker or remove it, so that Dask gives its tasks to others."""
        del self._workers[address]
        self._given_up += 1
        at = f"worker {redacted(address)} ({facts.get('host', 'unknown host')})"
        problem, remedy = (
            f"{at} {why}: its tiles are given to others",
            "if it was only slow, allow more by {Runtime.stall}",
        )
        self._reports.append(DasrelWarning(problem, remedy=remedy))
        ended = False
        if facts.get("nanny"):
            with suppress(Exception):  # nor does its nanny answer, or no other worker came
                ended = self._client.restart_workers([address], timeout=RESTART).get(address) == "OK"
        if not ended:
            with suppress(Exception):
                self._client.run_on_scheduler(_remove, address)
            if self._repeats:
                self._failure = GivenUp(address)


async def _remove(address: str, dask_scheduler: Any = None) -> None:
    """Remove a worker from the scheduler, on which this runs."""
    await dask_scheduler.remove_worker(address, stimulus_id=f"dasrel-stall-{time.time()}")
