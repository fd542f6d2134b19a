"""Exact agglomerative clustering of a matrix of any size: single, complete, average, weighted and Ward linkage.

Single linkage is the minimum spanning tree. For the others one scan copies the values of all pairs, both triangles, to
rows: in memory if they fit, else in a scratch file. Rounds of merges follow (see `row_rounds`), which read and write
rows of that file only. When the rows of the clusters that are left fit into memory, they are moved there.

Bytes. With m the bytes of the matrix (one triangle) and n - k merges until k clusters fit into memory, the scratch file
has 2 m; beside a checkpoint, which refers to rows that were replaced since, half as much again at most. It is written
once (2 m) and one row for each merge, 2 m / n; read are two rows for each merge, one for each cluster that has lost its
nearest neighbour and does not know the next, and the rows that are moved to memory at the end. `Dendrogram` has the
bytes that were read and written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.engine.checkpoint import Checkpoint, CheckpointWriter, checkpoint_writer
from dasrel.engine.pair_values import DISTANCE, PairValues, pair_values
from dasrel.engine.reduce import Consumer, Kernel, Plan, Share, Side, strip_consumer
from dasrel.engine.relation import relation
from dasrel.engine.scan import needed_memory, scan
from dasrel.errors import DasrelWarning, InputError, MemoryLimitError, StoreError
from dasrel.geometry.dendrogram import Dendrogram, in_merge_order
from dasrel.geometry.tree import TreeJob
from dasrel.hierarchy.rounds import BUFFER_BYTES, Rounds, RowArray, RowFile, row_threads
from dasrel.kernels.linkage_rows import KEPT, NearLists
from dasrel.kernels.transpose import Transpose
from dasrel.names import linkage_fault
from dasrel.store.layout import TileSource
from dasrel.util import Array, Float, PathLike, limits, parallel, progress
from dasrel.util.files import boot_id, disk_errors, write_at
from dasrel.util.limits import Cost, Range, memory_limit
from dasrel.util.scratch import create_scratch, remove_recorded, reopen_scratch
from dasrel.util.text import count_text, shown, size_text

COMMAND = "tree"
RECORD = f".{COMMAND}.scratch"
"""The file of a checkpoint that names the scratch file."""
"""The name of the checkpoints."""
KEPT_IN_MEMORY = 2**30
"""Bytes of rows in memory at most where a checkpoint is written: what is done with them, a few seconds, is repeated
after an interruption."""
LIST_BYTES = 12 * KEPT
"""Memory of an object's list of its nearest neighbours."""
OBJECT_BYTES = 300 + 3 * LIST_BYTES
"""Memory per object beside the rows: neighbours, merges and their copies."""


def linkage(
    matrix: Any,
    *,
    method: str = "average",
    kind: str | None = None,
    as_similarity: bool = False,
    scratch: PathLike | None = None,
    memory: int | str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Dendrogram:
    """Cluster the objects of a matrix hierarchically. The result is exact: equal to SciPy's where there are no ties.

    Parameters
    ----------
    matrix
        An open matrix, a store's path or URL, an array with its `kind`, or a relation, such as that of `euclideanize`.
    method
        "single", "complete", "average" (UPGMA), "weighted" (McQuitty's WPGMA) or "ward". Distances are used as they
        are, by Ward squared; squared distances as they are; similarities and kernels as D = s_ii + s_jj - 2 s_ij. The
        heights of Ward's linkage are roots, as in SciPy.
    as_similarity
        For kinds similarity and kernel: merge the most similar clusters first, by the similarities as they are. Heights
        are similarities. Not for Ward.
    scratch
        A folder for the rows of matrices that do not fit into memory; by default that of the checkpoint, or else the
        system's for temporary files. Workers of a cluster must see it too.
    memory
        Anonymous memory that may be used, such as "2GiB"; half of the machine's by default.
    checkpoint
        Save the state after each part of the rounds, and resume from it.

    Returns
    -------
    Dendrogram
        The same to the last bit for any tiles, threads, memory, cluster and interruptions. Of several nearest pairs the
        one with the smallest member is merged first, then the one whose other cluster has the smaller smallest member.

    Cost: one scan. The rows, n^2 values, in memory, or in a scratch file of that size, beside a checkpoint 1.5 times of
    it at most. See the module for the bytes that are read and written after the scan.
    """
    job = prepare_linkage(matrix, method, kind=kind, as_similarity=as_similarity, scratch=scratch, memory=memory)
    return job.run(checkpoint)


def prepare_linkage(
    matrix: Any,
    method: str,
    *,
    kind: str | None = None,
    as_similarity: bool = False,
    scratch: PathLike | None = None,
    memory: int | str | None = None,
) -> LinkageJob:
    """Check the arguments of `linkage`. Cost: no scan."""
    if fault := linkage_fault(method, as_similarity=as_similarity):
        raise InputError(fault)
    values = pair_values(matrix, kind=kind, squared=method == "ward", direct=as_similarity)
    if method == "ward" and values.relation is None:
        relation(values.matrix)  # refuses values whose squares the tiles' type cannot hold
    return LinkageJob(values, method, None if scratch is None else Path(scratch), memory)


@dataclass(frozen=True)
class LinkageJob:
    """An agglomeration to be computed."""

    values: PairValues
    method: str
    scratch: Path | None
    memory: int | str | None

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        return self.values.matrix.n_objects

    @property
    def by_tree(self) -> bool:
        """Whether the result is made from the minimum spanning tree."""
        return self.method == "single" and self.values.relation is None and not self.values.is_similarity

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the rows: that of the tiles, unless sums over all pairs would not fit."""
        stored = self.values.matrix.layout.dtype
        sums = self.values.largest() * (self.n_objects**2 if self.method == "average" else 4)
        return np.dtype(np.float64) if sums > float(np.finfo(stored).max) / 4 else np.dtype(stored)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all objects."""
        return self.n_objects * self.dtype.itemsize

    def clusters_in_memory(self, *, kept: bool) -> int:
        """Return the number of clusters whose rows fit into memory; `kept`: beside a checkpoint."""
        n, limit = self.n_objects, memory_limit(self.memory)
        room = limit - self._fixed()
        if room < 0:
            raise MemoryLimitError(
                f"{self.method} linkage of {count_text(n, 'object')} needs {size_text(self._fixed())} beside the rows,"
                f" and the limit is {size_text(limit)}", remedy="raise {memory}",
            )  # fmt: skip
        room = min(room, KEPT_IN_MEMORY) if kept else room
        return min(n, max(1, int(np.sqrt(room // self.dtype.itemsize))))

    def _fixed(self) -> int:
        """Return the bytes of what is held beside the rows: the scan's tasks, or the buffers of the threads."""
        threads = limits.thread_count(waiting=False)
        consumer = row_consumer(self.values, self.dtype, None)
        fixed, task = needed_memory(self.values.matrix, [consumer])
        buffers = threads * max(2 * self.row_bytes, min(BUFFER_BYTES, self.n_objects * self.row_bytes))
        return OBJECT_BYTES * self.n_objects + max(fixed + task, buffers)

    def scratch_bytes(self, *, kept: bool) -> int:
        """Return the bytes of the scratch file, at most; 0 where all rows fit into memory; `kept`: as above."""
        if self.by_tree or (self.clusters_in_memory(kept=kept) >= self.n_objects and parallel.active_client() is None):
            return 0
        return (self.n_objects + (self.n_objects // 2 if kept else 0)) * self.row_bytes

    def run(self, checkpoint: Checkpoint | None = None) -> Dendrogram:
        """Compute the dendrogram."""
        units = DISTANCE if self.method == "ward" else self.values.units
        with progress.watch() as counted, checkpoint_writer(checkpoint, COMMAND, self._about) as keeper:
            made = keeper.result("merges")
            if made is None:
                made = self._by_tree(keeper) if self.by_tree else _agglomerate(self, keeper, checkpoint)
            if checkpoint is not None:
                remove_recorded(Path(checkpoint.path) / RECORD)
            scans = max(counted.scans, keeper.scans)
        more = {name: int(made[name]) for name in ("rounds", "bytes_read", "bytes_written")}
        return Dendrogram(made["children"], self._seen(made["heights"]), self.method, units, scans=scans, **more)

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        layout = self.values.matrix.layout
        facts: dict[str, Any] = {"linkage": self.method}
        if self.by_tree:
            cost = TreeJob(self.values.matrix, self.memory).cost()
            return replace(cost, facts=facts)
        k, n = self.clusters_in_memory(kept=False), self.n_objects
        rows = k * k * self.dtype.itemsize
        facts |= {"scratch_bytes": self.scratch_bytes(kept=False) and self.scratch_bytes(kept=True)}
        if facts["scratch_bytes"]:
            merges = n - k
            facts |= {
                "read_bytes": self._scan_bytes() + (3 * merges + k) * self.row_bytes,
                "written_bytes": (n + merges) * self.row_bytes,
            }
        return Cost("tree", n, Range(1, 1, 1), layout.total_bytes, self._fixed() + rows, (), facts)

    def _scan_bytes(self) -> int:
        return self.values.matrix.layout.total_bytes

    def _about(self) -> dict[str, Any]:
        return {"linkage": self.method, **self.values.identity()}

    def _by_tree(self, keeper: CheckpointWriter) -> dict[str, Any]:
        merges = TreeJob(self.values.matrix, self.memory).run().linkage()
        made = {
            "children": merges[:, :2].astype(np.int64), "heights": merges[:, 2].copy(), "rounds": 0,
            "bytes_read": self._scan_bytes(), "bytes_written": 0,
        }  # fmt: skip
        keeper.finish("merges", made, last=True)
        return made

    def _seen(self, heights: Float) -> Float:
        """Return heights in the units of the result."""
        if self.values.is_similarity:
            return -heights
        if self.method != "ward":
            return heights
        negative = int((heights < 0).sum())
        if negative:
            warnings.warn(
                DasrelWarning(
                    f"{count_text(negative, 'merge')} of Ward's linkage would have a negative squared height, down to"
                    f" {heights.min():g}: the dissimilarities are not Euclidean, and those heights are 0",
                    remedy="`dasrel.euclideanize` makes them Euclidean",
                ),
                stacklevel=4,
            )
        return np.sqrt(np.maximum(heights, 0))


def _agglomerate(job: LinkageJob, keeper: CheckpointWriter, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Run all rounds; return the merges in order, and what it took."""
    n, kept, alone = job.n_objects, checkpoint is not None, parallel.active_client() is None
    fitting = job.clusters_in_memory(kept=kept)
    with row_threads() as pool, contextlib.ExitStack() as opened:
        if fitting >= n and alone:
            rows = np.empty((n, n), dtype=job.dtype)
            rounds = Rounds(job.method, RowArray(rows), _filled(job, rows))
        else:
            file = opened.enter_context(_row_file(job, checkpoint, keeper, hidden=alone and not kept))
            if not alone:
                parallel.check_all_see(file.path, remedy="name a folder that all of them see with {scratch}")
            state = keeper.state("rounds")
            if state is None:
                rounds = Rounds(job.method, file, _filled(job, file.descriptor if alone else file.path.absolute()))
                rounds.rows_written = n
            else:
                rounds = Rounds.restored(job.method, file, state)
            saver = _Saver(rounds, file, keeper, kept=kept)
            if state is None:
                saver.save()
            rounds.run(fitting, pool, saver)
            if rounds.clusters > 1:
                rounds.move(np.empty((rounds.clusters,) * 2, dtype=job.dtype), pool)
        rounds.run(1, pool, lambda: _tell(rounds))
        children, heights = in_merge_order(rounds.made.children, rounds.made.members, rounds.made.heights)
        made = {
            "children": children, "heights": heights, "rounds": rounds.rounds,
            "bytes_read": job._scan_bytes() + rounds.rows_read * job.row_bytes,
            "bytes_written": rounds.rows_written * job.row_bytes,
        }  # fmt: skip
        keeper.finish("merges", made, last=True)
    return made


def _tell(rounds: Rounds) -> None:
    progress.current().say(f"round {rounds.rounds:,}, {count_text(rounds.clusters, 'cluster')} left")


@dataclass
class _Saver:
    """Saves the state between rounds on a file, so often that replaced rows do not fill the disk."""

    rounds: Rounds
    rows: RowFile
    keeper: CheckpointWriter
    kept: bool

    def __call__(self) -> None:
        _tell(self.rounds)
        if self.kept and (len(self.rows.released) > self.rows.wide // 8 or limits.current().reason(0.0)):
            self.save()

    def save(self) -> None:
        """Save the state, and stop if a stop is requested."""
        if self.kept and self.keeper.part("rounds", self._state):
            self.rows.settle()

    def _state(self) -> dict[str, Any]:
        synced = bool(limits.current().reason(0.0))
        if synced:  # another machine may resume it
            os.fsync(self.rows.descriptor)
        return {**self.rounds.state(), "rows": self.rows.path.name, "boot": "" if synced else _boot()}


# ----------------------------------------------------------------------------------------------------- the scratch file


@contextlib.contextmanager
def _row_file(
    job: LinkageJob, checkpoint: Checkpoint | None, keeper: CheckpointWriter, *, hidden: bool
) -> Iterator[RowFile]:
    """Yield the scratch file: a new one, or that of the state to be resumed. It is removed when the work is done.

    A `hidden` one has no name: nothing is left of it even if the process is killed.
    """
    n = job.n_objects
    folder = job.scratch or Path(checkpoint.path if checkpoint is not None else tempfile.gettempdir())
    record = None if checkpoint is None else Path(checkpoint.path) / RECORD
    where = shown(folder, limit=200)
    full = "what is done so far is kept" if checkpoint is not None else "nothing was written"
    retry = "free some space and run again" + (" with {resume=True}" if checkpoint is not None else "")
    with disk_errors(folder, full=f"the scratch folder {where}: {full}", retry=retry):
        resumed = None if record is None else _resumed(keeper, record, folder)
        if resumed is not None:
            path, descriptor = resumed
        else:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                path, descriptor = create_scratch(folder, COMMAND, ".rows", record)
            except OSError as error:
                raise StoreError(
                    f"the scratch folder {where} cannot be written: {error.strerror}",
                    remedy="name another with {scratch}",
                ) from None
        try:
            if hidden:
                path.unlink()
            if resumed is None:
                _reserve(job, folder, descriptor, kept=checkpoint is not None)
            in_place = checkpoint is None
            yield RowFile(path, descriptor, n, job.dtype, np.arange(n, dtype=np.int64), n, in_place=in_place)
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
            if checkpoint is None:
                path.unlink(missing_ok=True)


def _resumed(keeper: CheckpointWriter, record: Path, folder: Path) -> tuple[Path, int] | None:
    """Open the scratch file of the state to be resumed; forget the state if that file is of no use."""
    state = keeper.state("rounds")
    if state is None:
        return None
    name = str(state.get("rows"))
    resumed, reason = None, "was not written completely before the machine stopped"
    if state["boot"] in ("", _boot()):
        resumed, reason = reopen_scratch(record, name, folder), "is gone"
    if resumed is None:
        warnings.warn(f"the scratch file {shown(name, limit=200)} {reason}: from the beginning", DasrelWarning, 2)
        keeper.forget("rounds")
    return resumed


def _boot() -> str:
    return boot_id() or os.uname().nodename


def _reserve(job: LinkageJob, folder: Path, descriptor: int, *, kept: bool) -> None:
    """Reserve the space of all rows; raise if there is not enough of it."""
    size, most = job.n_objects * job.row_bytes, job.scratch_bytes(kept=kept)
    free = shutil.disk_usage(folder).free
    if free < most:
        raise StoreError(
            f"the scratch folder {shown(folder, limit=200)} has {size_text(free)} free, and {job.method} linkage of"
            f" {count_text(job.n_objects, 'object')} needs up to {size_text(most)}",
            remedy="name another with {scratch}, or raise {memory}",
        )
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


# ------------------------------------------------------------------------------------------------------------- the scan


def _filled(job: LinkageJob, target: Array | int | Path) -> NearLists:
    """Copy the values of all pairs to rows by one scan, which finds nearest neighbours."""
    consumer = row_consumer(job.values, job.dtype, target)
    lists: NearLists = scan(job.values.matrix, [consumer], memory=job.memory)[0]
    return lists


def row_consumer(values: PairValues, dtype: np.dtype[Any], target: Any) -> Consumer:
    """Return the consumer that copies values to rows and finds nearest neighbours.

    `target` is an array, the descriptor of a file, or its path where workers write to it; None for an estimate.
    """
    source: TileSource = values.matrix
    layout, plan = source.layout, Plan(source.layout)
    n = layout.n_objects

    def finish(parts: dict[int, NearLists]) -> NearLists:
        lists = NearLists.empty(n)
        for k, part in parts.items():
            lists.set(plan.span(k), part)
        return lists

    tile = layout.tile**2 * (8 if values.relation is not None else dtype.itemsize)
    return strip_consumer(
        source, _RowKernel(values, dtype, n, target), finish, lambda span: Share(span.start), sent=LIST_BYTES,
        held=6 * LIST_BYTES, scratch=3 * tile,
        fixed=3 * LIST_BYTES + (n * dtype.itemsize if isinstance(target, np.ndarray) else 0),
    )  # fmt: skip


@dataclass(frozen=True)
class _RowKernel(Kernel):
    in_strips = True
    values: PairValues
    dtype: np.dtype[Any]
    n_objects: int
    target: Any

    def empty(self, objects: int) -> NearLists:
        return NearLists.empty(objects)

    def add(self, partial: Any, tile: Array, rows: Side, columns: Side) -> Any:
        block = self.values.block(tile, rows.span, columns.span)
        block = np.negative(block, dtype=self.dtype) if self.values.is_similarity else block.astype(self.dtype)
        if rows is columns:
            np.fill_diagonal(block, np.inf)
        self._put(block, rows.span, columns.span)
        partial[0][rows.inside].add(block, columns.span.start)
        if rows is not columns:
            turned = Transpose(self.dtype)(block)
            self._put(turned, columns.span, rows.span)
            partial[1][columns.inside].add(turned, rows.span.start)
        return partial

    def combine(self, first: NearLists, second: NearLists) -> NearLists:
        return first.merged(second)

    def _put(self, block: Array, rows: slice, columns: slice) -> None:
        if isinstance(self.target, np.ndarray):
            self.target[rows, columns] = block
            return
        named = isinstance(self.target, Path)
        descriptor = os.open(self.target, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW) if named else self.target
        try:
            for k, row in enumerate(block, rows.start):
                write_at(descriptor, row, (k * self.n_objects + columns.start) * self.dtype.itemsize)
        finally:
            if named:
                os.close(descriptor)
