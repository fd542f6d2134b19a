"""What a scan has to do with the workers of a cluster: compare kernels, send data, run graphs, count the bytes.

A sum has the same bits everywhere only if the same kernels add it up. A worker whose kernels differ is refused before
it reads a tile: those that are there when a cluster is connected to or a scan begins, all at once; one that joins
later, by its first task.

What a scan needs of the caller is sent once, as data: each piece to one worker, from which the others fetch it when a
task of theirs needs it. The graph has only names of them, so that the scheduler handles kilobytes whatever the size of
the columns. A piece that is lost with its only worker ends the graph, and the scan is repeated.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from dask.sizeof import sizeof

from dasrel import __version__
from dasrel.errors import ClusterError
from dasrel.kernels.native import signature
from dasrel.util import limits, parallel, stalls
from dasrel.util.text import shown, some

CONNECT = 1.0
"""Seconds within which a reachable worker accepts a connection."""
AT_ONCE = 64 * 2**20
"""Bytes that the caller sends together: it holds no more copies of its data than that."""


@dataclass
class Exchange:
    """What is exchanged with the workers of a client during one scan."""

    client: Any
    addresses: Collection[str]
    direct: bool = field(init=False)
    """Whether this process can reach all workers; if not, the scheduler relays, and bytes pass the network twice."""
    caller_bytes: int = 0
    """Bytes that left this process, and those that the scheduler relayed to it."""

    _running: list[Any] = field(default_factory=list)
    """Futures of the results that `get` waits for."""

    def __post_init__(self) -> None:
        self.direct = all(_reachable(address) for address in self.addresses)

    def send(self, values: Iterable[Any]) -> list[Any]:
        """Return futures of these values, which are sent to the workers in turn, some megabytes at a time."""
        futures: list[Any] = []
        together: list[Any] = []
        size = 0

        def flush() -> None:
            nonlocal size
            try:
                futures.extend(self.client.scatter(together, direct=self.direct, hash=False))
            except (OSError, KeyError) as error:  # KeyError: the scheduler no longer knows the worker
                if self.client.status != "running":
                    raise
                raise CancelledError("a worker died while it was sent data") from error
            self.caller_bytes += size * (1 if self.direct else 2)
            together.clear()
            size = 0

        for value in values:
            together.append(value)
            size += sizeof(value)
            if size >= AT_ONCE:
                flush()
        if together:
            flush()
        return futures

    def get(self, graph: dict[Any, Any], wanted: list[Any]) -> list[Any]:
        """Run a graph on the workers and gather the results, directly from the workers where they can be reached."""
        self._running = self.client.get(graph, wanted, sync=False)
        results = list(self.client.gather(self._running, direct=self.direct or None))
        self._running = []
        if not self.direct:
            self.caller_bytes += sizeof(results)
        return results

    def cancel(self) -> None:
        """Cancel what `get` waits for, if it was abandoned."""
        self.client.cancel(self._running)

    def begin(self) -> None:
        """Begin to count what the workers send."""
        with _counting:
            known = _sent.setdefault(self.client, {})
        if not known.keys() >= set(self.addresses):
            self._count(known)

    def network_bytes(self) -> int:
        """Return the bytes that were sent since `begin`, over the network if each process is a machine.

        Those between workers, and from them to the caller, are counted by Dask: they include what other clients of the
        same cluster made the workers send meanwhile. Those of a worker that is lost are not counted.
        """
        with _counting:
            known = _sent.setdefault(self.client, {})
        return self.caller_bytes + self._count(known)

    def _count(self, known: dict[str, int]) -> int:
        """Update the workers' counters, and return by how much those that were known have grown."""
        counters = self.client.run(_sent_by_worker, on_error="ignore")
        grown = sum(max(0, count - known[address]) for address, count in counters.items() if address in known)
        known.clear()
        known.update(counters)
        return int(grown)


_sent: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
"""By client: the bytes that each worker has sent since it began, when they were last counted."""
_counting = threading.Lock()


def _sent_by_worker(dask_worker: Any) -> int:
    return int(dask_worker.transfer_outgoing_bytes_total)


@cache
def _reachable(address: str) -> bool:
    """Whether this process can open a connection to a worker; tried once. Otherwise the scheduler relays results.

    The scheduler, in a pod or behind a tunnel, may be all that can be reached of a cluster. Measured with two workers
    on one machine, n = 20,480 and 64 columns: 31 MB of sums arrive 30 to 50 ms earlier without the scheduler. Not tried
    with TLS: a worker warns of connections that end before their handshake.
    """
    protocol, _, authority = address.rpartition("://")
    host, _, port = authority.rpartition(":")
    if protocol != "tcp":
        return False
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()
    except (OSError, ValueError):
        return False
    return True


# -------------------------------------------------------------------------------------------------------------- kernels

REMEDIES = {
    "dasrel": "install the same version of dasrel there as here",
    "numpy": "install the same version of numpy there as here",
    "kernels": "install dasrel there with its compiled kernels (it needs a C compiler), on processors of the same kind,"
    " and set DASREL_NO_NATIVE there as here",
    "BLAS": "install the same numpy there as here; on processors of several kinds set OPENBLAS_CORETYPE=Haswell there"
    " and here",
}
"""What to do about each difference."""
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""The workers of each client that are known to be alike."""


@cache
def bits_of_process() -> dict[str, str]:
    """Return what decides on the last bits of sums in this process, by name."""
    return {
        "dasrel": __version__, "numpy": np.__version__, "kernels": signature(), "BLAS": parallel.blas_name(),
    }  # fmt: skip


def check_alike(client: Any, addresses: Collection[str]) -> None:
    """Raise if workers would add up to other bits than this process. Workers found alike are not asked again."""
    known = _checked.setdefault(client, set())
    unknown = sorted(set(addresses) - known)
    if not unknown:
        return
    ask = partial(client.run, bits_of_process, workers=unknown, on_error="return")
    with stalls.watching(client) as watch:
        answers = watch.waited(ask)
    heard = {address: answer for address, answer in answers.items() if not isinstance(answer, OSError)}  # it died
    refuse_unlike(heard)
    known.update(heard)


def refuse_unlike(answers: Mapping[str, Any]) -> None:
    """Raise if one of the answers of workers, by address, differs from those of this process."""
    here = bits_of_process()
    for name in here:
        differ: dict[str, list[str]] = {}
        for address, there in answers.items():
            if isinstance(there, ModuleNotFoundError):
                raise ClusterError(
                    f"dasrel cannot be imported at {address} ({shown(there, limit=200)})",
                    remedy="install the same version of it there as here",
                )
            theirs = there.get(name, "none") if isinstance(there, dict) else "of another version"
            if theirs != here[name]:
                differ.setdefault(theirs, []).append(address)
        for theirs, where in differ.items():
            raise ClusterError(
                f"results would have other bits: {name} {shown(theirs)} at {some(where, show=2)} and {here[name]} here",
                remedy=REMEDIES[name],
            )


@cache
def check_this_worker(expected: tuple[tuple[str, str], ...]) -> None:
    """Raise, in a task, if this worker would add up to other bits than the process that sent the task."""
    from distributed import get_worker

    here = bits_of_process()
    for name, theirs in expected:
        if here.get(name) != theirs:
            raise ClusterError(
                f"results would have other bits: {name} {here.get(name)} at {get_worker().address}, which joined later,"
                f" and {theirs} in the command",
                remedy=f"{REMEDIES[name]}, or end that worker; {limits.AGAIN}",
            )
