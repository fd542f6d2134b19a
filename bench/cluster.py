"""Measure what the scheduler and the network of a cluster cost a scan, without having the cluster.

    python bench/cluster.py [--n 100000 300000] [--workers 4 16 64] [--columns 10] [--bandwidth 2e9]

The scheduler, the workers, the graphs and the sums that they exchange are real; the tiles are not: where a worker would
read one and multiply it, it waits as long as that would take at `--bandwidth` bytes a second for each worker, and adds
zeros. One JSON line for each n and number of workers: seconds of a scan beside the ideal ones (bytes of all tiles by
bandwidth and workers), their ratio (efficiency), tasks, bytes of the sums, processor seconds of the caller, where the
scheduler runs, and of the workers' processes.

All run on this machine, with several workers in a process: what they compute beside waiting shares its few cores, which
a real cluster's would not. `caller_share` is the part of a scan that the caller and its scheduler are busy, which more
machines do not make shorter: the ceiling of the efficiency. `--profile` prints where the scheduler spends it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import logging
import multiprocessing
import os
import pstats
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dasrel.engine import worker_cache
from dasrel.engine.reduce import Consumer, Plan, Side, SumsInStrips
from dasrel.engine.relation import product_consumer
from dasrel.engine.scan import scan
from dasrel.kernels.products import View
from dasrel.store.layout import Layout
from dasrel.store.tile_files import default_tile

PER_PROCESS = 16
"""Workers in one process, at most."""


@dataclass(frozen=True)
class WaitingTiles:
    """Tiles that take the time of reading, and hold nothing."""

    layout: Layout
    bandwidth: float
    mapped = False
    local_array = None
    read_memory = 0

    def read_checked(self, i: int, j: int) -> np.ndarray:
        time.sleep(self.layout.tile_bytes / self.bandwidth)
        return np.broadcast_to(np.zeros((), self.layout.dtype), self.layout.shape(i, j))


class WaitingMatrix:
    """A matrix of tiles that take time."""

    kind = "squared-distance"
    diagonal = None

    def __init__(self, n: int, bandwidth: float) -> None:
        self.layout = Layout(n, default_tile(n, np.dtype("float32")), np.dtype("float32"))
        self.files = WaitingTiles(self.layout, bandwidth)

    def check_unchanged(self) -> None:
        """Do nothing: there is nothing to change."""


@dataclass(frozen=True)
class WaitingKernel(SumsInStrips):
    """A product that adds nothing: its time is part of the wait."""

    columns: int

    def empty(self, objects: int) -> list[np.ndarray]:
        return [np.zeros((self.columns, objects))]

    def add(self, partial: Any, tile: np.ndarray, rows: Side, columns: Side) -> Any:
        return partial


def consumer(matrix: Any, columns: np.ndarray) -> Consumer:
    real = product_consumer(matrix, [(View("squared"), columns)])
    return replace(real, kernel=WaitingKernel(real.share(slice(0, 1)).arrays[0].shape[0]))


def serve(address: str, count: int, folder: str, started: Any, stopped: Any) -> None:
    """Run several workers in this process."""
    from distributed import Worker

    logging.getLogger("distributed").setLevel(logging.ERROR)

    async def run() -> None:
        workers = [
            Worker(
                address, host="127.0.0.1", nthreads=1, memory_limit=2**31, local_directory=folder, dashboard=False,
                dashboard_address=None,
            )
            for _ in range(count)
        ]  # fmt: skip
        await asyncio.gather(*workers)
        started.put(os.getpid())
        while not stopped.is_set():
            await asyncio.sleep(0.2)
        await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)

    asyncio.run(run())


def processor_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(n: int, count: int, pids: list[int], given: argparse.Namespace) -> None:
    matrix = WaitingMatrix(n, given.bandwidth)
    plan, layout = Plan(matrix.layout), matrix.layout
    columns = np.zeros((given.columns, n), dtype="float32")
    taking_part = [consumer(matrix, columns)]
    scan(matrix, taking_part)  # connections, imports
    own, theirs, began = time.process_time(), processor_seconds(pids), time.perf_counter()
    for _ in range(given.scans):
        scan(matrix, taking_part)
    seconds = (time.perf_counter() - began) / given.scans
    caller = (time.process_time() - own) / given.scans
    ideal = layout.total_bytes / given.bandwidth / count
    line = {
        "bench": "cluster", "n": n, "workers": count, "columns": given.columns, "tiles": len(layout.tiles()),
        "tasks": len(plan.groups()), "seconds": seconds, "ideal": ideal, "efficiency": ideal / seconds,
        "caller_seconds": caller, "caller_share": caller / seconds,
        "worker_seconds": (processor_seconds(pids) - theirs) / given.scans,
        "sums_bytes": len(plan.groups()) * taking_part[0].part_bytes,
    }  # fmt: skip
    print(
        json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[100_000, 300_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--scans", type=int, default=2)
    parser.add_argument(
        "--bandwidth", type=float, default=2e9, help="bytes that a worker reads and multiplies a second"
    )
    parser.add_argument("--longest", type=float, default=120.0, help="leave out scans of more ideal seconds")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    from distributed import Client, LocalCluster

    worker_cache.PINNED_SHARE = 0.0  # every scan reads all tiles
    context = multiprocessing.get_context("spawn")
    for count in given.workers:
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0", silence_logs="error") as cluster,
            Client(cluster) as client,
        ):
            address = cluster.scheduler.address
            started, stopped = context.Queue(), context.Event()
            processes = []
            for k in range(0, count, PER_PROCESS):
                mine = min(PER_PROCESS, count - k)
                process = context.Process(target=serve, args=(address, mine, folder, started, stopped))
                process.start()
                processes.append(process)
            pids = [started.get(timeout=120) for _ in processes]
            client.wait_for_workers(count, timeout=120)
            profile = cProfile.Profile()
            for n in given.n:
                tiles = WaitingMatrix(n, given.bandwidth).layout
                if tiles.total_bytes / given.bandwidth / count > given.longest:
                    continue
                measure(n, count, pids, given)
            if given.profile:
                cluster.loop.add_callback(profile.enable)  # the scheduler runs in the thread of this loop
                measure(given.n[-1], count, pids, given)
                cluster.loop.add_callback(profile.disable)
                client.ncores()  # a round trip: it has ended
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            stopped.set()
            for process in processes:
                process.join(timeout=30)


if __name__ == "__main__":
    import cluster  # workers load its classes by name, as they load those of dasrel; a script's would travel as code

    cluster.main()
