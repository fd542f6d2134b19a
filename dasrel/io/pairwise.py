"""Build a store from features and a metric, or from a function that computes blocks.

Only the tiles (i, j) with i <= j are computed, each by one task that also checks and writes it, so that no more than a
few tiles exist at any time. Interrupted work can be resumed.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dasrel.errors import DasrelError, InputError
from dasrel.io.features import Features, array_checksum, read_features, row_block
from dasrel.io.metrics import Metric, check_features, described, made_ready, resolve, tile_values
from dasrel.io.readers.stream import given_ids
from dasrel.io.store_job import StoreJob, Tile
from dasrel.kernels.checks import CHECK_MEMORY, EXAMPLES, check_tile
from dasrel.store.matrix import Matrix, StoredNames
from dasrel.store.options import Policy, Writing, group
from dasrel.store.tile_files import StoreLike, TileFiles, checked_ids
from dasrel.store.writer import check_new_store, claimed, new_layout
from dasrel.util import Array, Names, limits, parallel, stalls
from dasrel.util.labelled import check_not_reordered, in_standard_order
from dasrel.util.text import count_text, shown, some


def pairwise(
    features: Any,
    store: StoreLike,
    *,
    metric: str,
    kind: str = "distance",
    ids: str | Names | None = None,
    metric_options: Mapping[str, Any] | None = None,
    packed_bits: bool = False,
    writing: Writing | None = None,
) -> Matrix | Any:
    """Compute a metric between all objects, from one row of features each, write it to a store, and open it.

    Parameters
    ----------
    features
        A path, or an array of (n objects, p features): NumPy, SciPy sparse, or what NumPy can make an array of.
        Files: `.npy` (mapped, never copied), `.npz` (dense, or sparse as SciPy saves it), CSV or TSV with a header
        (the first column holds the names if it is text or its header is empty, `id` or `ids`), Parquet (a column of
        text holds the names).
    metric
        A metric of SciPy's `cdist` or scikit-learn's `pairwise_distances`, or `simpson` (images, ink above 0.5); for
        the kinds kernel and similarity one of scikit-learn's `pairwise_kernels`; for kind similarity also `tanimoto`,
        x'y / (x'x + y'y - x'y).
    kind
        `distance` stores the metric's values. `squared-distance` stores their squares, except for `sqeuclidean` and
        `simpson`, whose values are taken as squared already. `kernel` and `similarity` store a kernel's values.
    ids
        The objects' names, or a file with one name per line, in place of those in the features' file.
    metric_options
        Such as `{"p": 3}` for minkowski or `{"gamma": 0.1}` for rbf. What a metric takes from the data (the variances
        of seuclidean, the inverse covariance of mahalanobis) comes from all rows together.
    packed_bits
        Whether each byte of the features holds 8 bits, as `numpy.packbits` and toolkits of fingerprints write them. For
        metrics of bits, such as tanimoto and jaccard, bytes above 1 are refused without it.
    writing
        How the store is written. With `Writing(part=(k, n))` only one part of the tiles; every part reads all features.

    Returns
    -------
    Matrix
        The complete store. With `writing.part` not a matrix, but a report of the part with `written` and `missing`
        (numbers of tiles) and `complete`.

    Notes
    -----
    NaN and infinite features are refused with their places, except NaN for `nan_euclidean`. Boolean metrics want
    features of 0 and 1. Euclidean distances are right to about 1e-9 of their value in float64 arithmetic before they
    are rounded to float32, and to about 1e-12 in a float64 store, wherever the objects lie.

    Cost: reads the features two or three times; each task holds two tiles and two strips of features. Features other
    than a mapped `.npy` are held in memory, once on this machine and once on each worker.
    """
    given: dict[str, Any] = {"metric": metric, "kind": kind, "ids": ids, "metric_options": metric_options}
    with prepare_pairwise(features, store, **given, packed_bits=packed_bits, writing=writing, write=True) as job:
        return job.result()


@contextmanager
def prepare_pairwise(
    features: Any,
    store: StoreLike,
    *,
    metric: str,
    kind: str = "distance",
    ids: str | Names | None = None,
    metric_options: Mapping[str, Any] | None = None,
    packed_bits: bool = False,
    writing: Writing | None = None,
    write: bool = False,
) -> Iterator[StoreJob]:
    """Check the metric, the target and the features, for a job to run or to estimate.

    With `write`, which `run` needs, the store is locked inside the block. Cost: reads the features two or three times.
    """
    writing = group(writing, Writing, "writing")
    with claimed(store, writing) if write else nullcontext(), limits.limited(writing.time_limit):
        chosen = resolve(metric, kind, metric_options)
        state = check_new_store(store, kind, Policy(), writing)
        table = read_features(features, packed_bits=packed_bits)
        given = given_ids(ids)
        check_not_reordered(given, table.ids, table.named())
        names = checked_ids(table.ids if given is None else given, table.shape[0])
        check_features(chosen, table, names)
        ready = made_ready(chosen, table, np.dtype(writing.dtype))
        layout = new_layout(table.shape[0], writing)
        strip = table.strip_bytes(layout.tile, sparse=ready.takes_sparse)
        memory = ready.memory(layout.tile, strip, layout.dtype.itemsize) + layout.tile_bytes + CHECK_MEMORY
        if parallel.active_client() is not None and not table.in_file:
            memory += table.provenance["size"]
        provenance = {
            **table.provenance,
            "features_checksum": table.provenance["checksum"],  # recognises other features on resume
            "features": list(table.shape),
            "metric": chosen.name,
            "options": described(chosen.options),
            "stored": "squares" if ready.squares else "values",
            **({"packed_bits": True} if packed_bits else {}),
        }

        def work(files: TileFiles, missing: Sequence[Tile]) -> tuple[_MetricTile, list[Any]]:
            data = _sent(table)
            return _MetricTile(files, ready, StoredNames(files.store, layout.n_objects)), [
                (i, j, data) for i, j in missing
            ]

        yield StoreJob(
            "pairwise", store, state, kind, Policy(), writing, layout, names, provenance, memory,
            {"features": table.shape[1], "metric": chosen.name}, work, checksum=table.provenance["checksum"],
            read_file=table.file,
        )  # fmt: skip


def from_blocks(
    function: Callable[[range, range], Any],
    n_objects: int,
    store: StoreLike,
    *,
    kind: str,
    ids: str | Names | None = None,
    policy: Policy | None = None,
    retries: int = 2,
    writing: Writing | None = None,
) -> Matrix | Any:
    """Fill a store from a function of two ranges of objects (alignments, time warping, docking), and open it.

    Parameters
    ----------
    function
        `function(rows, columns)` gets two ranges and returns an array of (len(rows), len(columns)) values. It is
        called once for each tile, from several threads or on workers, and never for the lower triangle; a block on
        the diagonal (rows == columns) must be symmetric unless the policy says otherwise.
    policy
        What to do about flaws of the values; each is an error unless named.
    retries
        How many times more a block is tried when the function raises; on a cluster on any worker.
    writing
        `Writing(tile=...)` sets how many objects a range has at most: the work lost by a kill is one block per thread.
        With `Writing(part=(k, n))` only one part of the tiles is written.

    Returns
    -------
    Matrix
        The complete store. With `writing.part` not a matrix, but a report of the part with `written` and `missing`
        (numbers of tiles) and `complete`.

    Raises
    ------
    DasrelError
        When a block still fails after its retries: it names the objects, and the function's own error is its cause.
        What was finished stays in the store; `Writing(resume=True)` calls the function for the missing blocks only.

    Notes
    -----
    The store records the module and the name of the function, not its code: resuming with a function that gives other
    values is not detected.

    Cost: each task holds one block as the function returns it, one tile, and what the function itself takes.
    """
    with _prepared_blocks(
        function,
        n_objects,
        store,
        kind,
        ids,
        group(policy, Policy, "policy"),
        retries,
        group(writing, Writing, "writing"),
    ) as job:
        try:
            return job.result()
        except _BlockFailed as failed:
            where, error = failed.args
            tries = count_text(retries + 1, "try", "tries") if retries else "one try"
            raise DasrelError(
                f"the function failed for {where} after {tries}: {type(error).__name__}: {shown(error, limit=200)}",
                remedy="fix it and run again with {resume=True}: finished blocks are kept",
            ) from error


@contextmanager
def _prepared_blocks(
    function: Callable[[range, range], Any],
    n_objects: int,
    store: StoreLike,
    kind: str,
    ids: str | Names | None,
    policy: Policy,
    retries: int,
    writing: Writing,
) -> Iterator[StoreJob]:
    """Check the arguments and the target. The store is locked inside the block."""
    with claimed(store, writing), limits.limited(writing.time_limit):
        if not callable(function):
            raise InputError(
                f"function must be callable as function(rows, columns), not {shown(type(function).__name__)}"
            )
        if retries < 0:
            raise InputError(f"retries must be 0 or more, not {retries}")
        state = check_new_store(store, kind, policy, writing)
        names = checked_ids(given_ids(ids), n_objects)
        layout = new_layout(n_objects, writing)
        memory = layout.tile * layout.tile * 8 + layout.tile_bytes + CHECK_MEMORY

        def work(files: TileFiles, missing: Sequence[Tile]) -> tuple[_FunctionTile, Sequence[Tile]]:
            return _FunctionTile(files, function, kind, policy, StoredNames(files.store, n_objects)), missing

        yield StoreJob(
            "from_blocks", store, state, kind, policy, writing, layout, names,
            {"source": f"function {_name_of(function)}"}, memory, {}, work, retries=retries, keep_unfinished=True,
        )  # fmt: skip


@dataclass(frozen=True)
class _MetricTile:
    """The task that computes, checks and writes one tile of a metric."""

    files: TileFiles
    metric: Metric
    names: StoredNames

    def __call__(self, item: tuple[int, int, Any]) -> None:
        i, j, data = item
        layout = self.files.layout
        rows, columns = layout.span(i), layout.span(j)
        place = (rows.start, columns.start)
        try:
            values = tile_values(
                self.metric, row_block(data, rows), row_block(data, columns), same=i == j, dtype=layout.dtype
            )
        except (ValueError, ArithmeticError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"metric {self.metric.name} fails for {_spans(rows, columns)}: {shown(error, limit=200)}"
            ) from error
        try:
            tile, record = check_tile(
                values, None, place=place, kind=self.metric.kind, dtype=layout.dtype, policy=Policy(), ids=self.names
            )
        except InputError:
            self._explain(values, place)
            raise
        del values
        self.files.write(i, j, tile, record)

    def _explain(self, values: Array, place: Tile) -> None:
        """Raise an error about the metric for values that are no distances: there is no input to repair."""
        for bad, what in ((np.isnan(values), "no value (NaN)"), (values < 0, "negative values")):
            where = np.flatnonzero(bad)
            if where.size and not (self.metric.is_kernel and what.startswith("neg")):
                pairs = [divmod(int(k), values.shape[1]) for k in where[:EXAMPLES]]
                named = [f"{shown(self.names[place[0] + r])} and {shown(self.names[place[1] + c])}" for r, c in pairs]
                raise InputError(
                    f"metric {self.metric.name} gives {what} for {some(named, total=where.size)}",
                    remedy="leave these objects out or choose another metric",
                )


class _BlockFailed(Exception):  # noqa: N818
    """The user's function failed. Internal: it makes the block be tried again, and becomes a `DasrelError`."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(where, error)


@dataclass(frozen=True)
class _FunctionTile:
    """The task that calls the user's function for one tile, checks it and writes it."""

    files: TileFiles
    function: Callable[[range, range], Any]
    kind: str
    policy: Policy
    names: StoredNames

    def __call__(self, item: Tile) -> None:
        i, j = item
        layout = self.files.layout
        rows, columns = layout.span(i), layout.span(j)
        where = _spans(rows, columns)
        try:
            given = self.function(range(rows.start, rows.stop), range(columns.start, columns.stop))
            values = in_standard_order(given)
        except Exception as error:
            raise _BlockFailed(where, _picklable(error)) from error
        if values.shape != layout.shape(i, j):
            raise InputError(
                f"the function returned an array of shape {values.shape} for {where}",
                remedy=f"return {layout.shape(i, j)}: one value per row and column object",
            )
        try:
            tile, record = check_tile(
                values,
                None,
                place=(rows.start, columns.start),
                kind=self.kind,
                dtype=layout.dtype,
                policy=self.policy,
                ids=self.names,
            )
        except InputError as error:
            problem = f"the function's block for {where}: {error.problem}"
            raise InputError(problem, where=error.where, remedy=error.remedy) from error
        record.source_checksum = float(array_checksum(values))
        del values
        self.files.write(i, j, tile, record)


def _sent(features: Features) -> Any:
    """Return the features as tasks get them: a file's name, the array, or on a cluster a copy sent to each worker."""
    client = parallel.active_client()
    if client is None or features.in_file:
        return features.data
    with stalls.watching(client, repeats=True) as watch:
        return watch.waited(partial(client.scatter, [features.data], broadcast=True, hash=False))[0]


def _spans(rows: slice, columns: slice) -> str:
    return f"objects {rows.start} to {rows.stop - 1} against {columns.start} to {columns.stop - 1}"


def _name_of(function: Callable[..., Any]) -> str:
    """Return module and qualified name: of a `functools.partial` its function's, of other callables their class's."""
    inner = getattr(function, "func", function)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}.{named.__qualname__}"


def _picklable(error: Exception) -> Exception:
    """Return the error itself if a worker can send it, else an error with its text."""
    try:
        copy.copy(error)  # an error whose class wants other arguments than it keeps cannot be made again
        pickle.dumps(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
