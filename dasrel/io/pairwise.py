"""Build a store from features or from a function of blocks.

A matrix made here: from features and a metric, or from a user's function of two ranges of objects.

Only the tiles (i, j) with i <= j are computed, each by one task that also checks it and writes it, so no more than a
few tiles exist at any time. Both ways can be killed and resumed.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.errors import DasrelError, InputError
from dasrel.io.array_files import Reading
from dasrel.io.features import Features, Mapped, array_checksum, check_values, read_features, row_block
from dasrel.io.metrics import Metric, described, made_ready, needs, resolve, tile_values
from dasrel.io.text_stream import given_ids
from dasrel.kernels.checks import BLOCK, EXAMPLES, Policy, check_tile
from dasrel.store.layout import Layout
from dasrel.store.matrix import Matrix, StoredNames
from dasrel.store.tile_files import StoreLike, TileFiles, checked_ids, default_tile
from dasrel.store.writer import (
    PartDone,
    Writer,
    Writing,
    begin_store,
    check_kind,
    check_part,
    check_target,
    claimed,
    new_store_cost,
    write_part,
)
from dasrel.util import Array, Names, limits, parallel
from dasrel.util.limits import Cost, Range
from dasrel.util.text import count_text, shown, some

Tile = tuple[int, int]


def pairwise(
    features: Any,
    store: StoreLike,
    *,
    metric: str,
    kind: str = "distance",
    ids: str | Names | None = None,
    metric_options: Mapping[str, Any] | None = None,
    writing: Writing | None = None,
) -> Matrix:
    """Compute a metric between all objects, from one row of features each, into a store.

    Parameters
    ----------
    features
        A path, or an array of (n objects, p features): NumPy, SciPy sparse, or what NumPy can make an array of.
        Files: `.npy` (mapped, never copied), `.npz` (dense, or sparse as SciPy saves it), CSV or TSV with a header
        (the first column holds the names if it is text or its header is empty, `id` or `ids`), Parquet (a column of
        text holds the names).
    metric
        A metric of SciPy's `cdist` or scikit-learn's `pairwise_distances`, or `simpson` (images, ink above 0.5); for
        the kinds kernel and similarity one of scikit-learn's `pairwise_kernels`.
    kind
        `distance` stores the metric's values. `squared-distance` stores their squares, except for `sqeuclidean` and
        `simpson`, whose values are taken as squared already. `kernel` and `similarity` store a kernel's values.
    ids
        The objects' names, or a file with one name per line, in place of those in the features' file.
    metric_options
        Such as `{"p": 3}` for minkowski or `{"gamma": 0.1}` for rbf. What a metric takes from the data (the variances
        of seuclidean, the inverse covariance of mahalanobis) comes from all rows together.

    Notes
    -----
    NaN and infinite features are refused with their places, except NaN for `nan_euclidean`. Boolean metrics want
    features of 0 and 1. Euclidean distances are right to about 1e-9 of their value in float64 arithmetic before they
    are rounded to float32, and to about 1e-12 in a float64 store, wherever the objects lie.

    Cost: reads the features two or three times; each task holds two tiles and two strips of features. Features other
    than a mapped `.npy` are held in memory, once on this machine and once on each worker.
    """
    writing = writing or Writing()
    if writing.part is not None:
        raise InputError("pairwise makes whole stores; pairwise_part writes a part of one")
    with claimed(store, writing):
        writer, write, checksum = _metric_work(features, store, metric, kind, ids, metric_options, writing)
        write()
        return writer.finish(checksum=checksum)


def pairwise_part(
    features: Any,
    store: StoreLike,
    *,
    metric: str,
    writing: Writing,
    kind: str = "distance",
    ids: str | Names | None = None,
    metric_options: Mapping[str, Any] | None = None,
) -> PartDone:
    """Compute the tiles of `writing.part` only, beside other processes that compute the others; see `dasrel.parts`.

    Cost: as `pairwise`, for the tiles of the part; every part reads all features.
    """
    check_part(writing)
    with claimed(store, writing):
        writer, write, _ = _metric_work(features, store, metric, kind, ids, metric_options, writing)
        return write_part(writer, write)


def prepared(
    features: Any, chosen: Any, ids: str | Names | None, writing: Writing
) -> tuple[Features, Array, Metric, Layout, int]:
    """The features, checked; the names; the metric, ready; the store's layout; and the bytes that a task takes.

    Cost: reads the features two or three times, and writes nothing.
    """
    found = read_features(features)
    n, _ = found.shape
    names = checked_ids(found.ids if ids is None else given_ids(Reading(ids=ids)), n)
    bad_rows, reason = needs(chosen)
    check_values(found, names=names, allow_nan=chosen.name == "nan_euclidean", bad_rows=bad_rows, reason=reason)
    ready = made_ready(chosen, found, np.dtype(writing.dtype))
    layout = _planned(n, writing)
    memory = ready.memory(layout.tile, found.strip_bytes(layout.tile, sparse=ready.takes_sparse), layout.dtype.itemsize)
    memory += layout.tile_bytes + _CHECKING
    if parallel.active_client() is not None and not isinstance(found.data, Mapped):
        memory += found.provenance["size"]
    _check_fits(memory, writing, "pairwise")
    return found, names, ready, layout, memory


def _metric_work(
    features: Any,
    store: StoreLike,
    metric: str,
    kind: str,
    ids: str | Names | None,
    metric_options: Mapping[str, Any] | None,
    writing: Writing,
) -> tuple[Writer, Callable[[], None], str]:
    """The store, begun; what writes its missing tiles; and the checksum of the features."""
    chosen = resolve(metric, kind, metric_options)
    check_target(store, writing)
    found, names, ready, layout, memory = prepared(features, chosen, ids, writing)
    n = layout.n_objects
    provenance = {
        **found.provenance,
        "features_checksum": found.provenance["checksum"],  # so that other features are not taken for these on resume
        "features": list(found.shape),
        "metric": chosen.name,
        "options": described(chosen.options),
        "stored": "squares" if ready.squares else "values",
    }
    writer = begin_store(store, n_objects=n, kind=kind, ids=names, writing=writing, provenance=provenance)
    task = _MetricTile(writer.files, ready, StoredNames(writer.files.store, n))
    data = _sent(found)

    def write() -> None:
        try:
            _run(task, [(i, j, data) for i, j in writer.missing()], writer, memory, writing, label="pairwise")
        except InputError:
            writer.abandon()  # these features have no such matrix: there is nothing to go on with
            raise

    return writer, write, found.provenance["checksum"]


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
) -> Matrix:
    """Fill a store from a function of two ranges of objects: for alignments, time warping, docking, anything.

    Parameters
    ----------
    function
        `function(rows, columns)` gets two `range`s and returns an array of (len(rows), len(columns)) values. It is
        called once for each tile, from several threads or on workers, and never for the lower triangle; a block on
        the diagonal (rows == columns) must be symmetric unless the policy says otherwise.
    policy
        What to do about flaws of the values; each is an error unless named.
    retries
        How many times more a block is tried when the function raises; on a cluster on any worker.
    writing
        `Writing(tile=...)` sets how many objects a range has at most: the work lost by a kill is one block per thread.

    Raises
    ------
    DasrelError
        When a block still fails after its retries: it names the objects, and the function's own error is its cause.
        What was finished stays in the store; `Writing(resume=True)` goes on with it and calls the function for the
        missing blocks only.

    Notes
    -----
    The store remembers the function by module and name, not by its code: to resume with a function that gives other
    values is a mistake that only its author can see.

    Cost: each task holds one block as the function returns it, one tile, and what the function itself takes.
    """
    writing = writing or Writing()
    if writing.part is not None:
        raise InputError("from_blocks makes whole stores; blocks_part writes a part of one")
    with claimed(store, writing):
        writer, write = _function_work(function, n_objects, store, kind, ids, policy or Policy(), retries, writing)
        write()
        return writer.finish()


def blocks_part(
    function: Callable[[range, range], Any],
    n_objects: int,
    store: StoreLike,
    *,
    kind: str,
    writing: Writing,
    ids: str | Names | None = None,
    policy: Policy | None = None,
) -> PartDone:
    """Fill the tiles of `writing.part` only, beside other processes that fill the others; see `dasrel.parts`.

    Cost: as `from_blocks`, for the tiles of the part.
    """
    check_part(writing)
    with claimed(store, writing):
        writer, write = _function_work(function, n_objects, store, kind, ids, policy or Policy(), 2, writing)
        return write_part(writer, write)


def _function_work(
    function: Callable[[range, range], Any],
    n_objects: int,
    store: StoreLike,
    kind: str,
    ids: str | Names | None,
    policy: Policy,
    retries: int,
    writing: Writing,
) -> tuple[Writer, Callable[[], None]]:
    """The store, begun, and what writes its missing tiles."""
    if not callable(function):
        raise InputError(f"function must be callable as function(rows, columns), not {shown(type(function).__name__)}")
    if retries < 0:
        raise InputError(f"retries must be 0 or more, not {retries}")
    check_kind(kind, policy)
    check_target(store, writing)
    names = checked_ids(given_ids(Reading(ids=ids)), n_objects)

    layout = _planned(n_objects, writing)
    memory = layout.tile * layout.tile * 8 + layout.tile_bytes + _CHECKING
    _check_fits(memory, writing, "from_blocks")

    provenance = {"source": f"function {_name_of(function)}"}
    writer = begin_store(
        store, n_objects=n_objects, kind=kind, ids=names, policy=policy, writing=writing, provenance=provenance
    )
    task = _FunctionTile(writer.files, function, kind, policy, StoredNames(writer.files.store, n_objects))

    def write() -> None:
        _run(task, writer.missing(), writer, memory, writing, label="from_blocks", retries=retries)

    return writer, write


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
        """A metric that gives no distance is told in the metric's words: there is no input to repair here."""
        for bad, what in ((np.isnan(values), "no value (NaN)"), (values < 0, "negative values")):
            where = np.flatnonzero(bad)
            if where.size and not (self.metric.is_kernel and what.startswith("neg")):
                pairs = [divmod(int(k), values.shape[1]) for k in where[:EXAMPLES]]
                named = [f"{shown(self.names[place[0] + r])} and {shown(self.names[place[1] + c])}" for r, c in pairs]
                raise InputError(
                    f"metric {self.metric.name} gives {what} for {some(named, total=where.size)};"
                    " leave these objects out or choose another metric"
                )


class _BlockFailed(Exception):  # noqa: N818
    """The user's function failed; not an error that the user sees, and one that is tried again."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(where, error)


@dataclass(frozen=True)
class _FunctionTile:
    """The task that asks the user's function for one tile, checks it and writes it."""

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
            values = np.asarray(self.function(range(rows.start, rows.stop), range(columns.start, columns.stop)))
        except Exception as error:
            raise _BlockFailed(where, _travelling(error)) from error
        if values.shape != layout.shape(i, j):
            raise InputError(
                f"the function returned an array of shape {values.shape} for {where};"
                f" it must be {layout.shape(i, j)}: one value per row and column object"
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


_CHECKING = 12 * BLOCK * BLOCK * 8
"""Bytes that `check_tile` takes beside the tile that it returns."""


def _run(
    task: Callable[[Any], None],
    items: list[Any],
    writer: Writer,
    memory: int,
    writing: Writing,
    *,
    label: str,
    retries: int = 0,
) -> None:
    """One task per missing tile; what stops them is told in one line."""
    try:
        with limits.limited(writing.time_limit):
            parallel.run(
                task,
                items,
                label=label,
                bytes_each=writer.layout.tile_bytes,
                retries=retries,
                task_memory=memory,
                memory=writing.memory,
                goes_on=writer.goes_on,
            )
    except _BlockFailed as failed:
        where, error = failed.args
        tries = count_text(retries + 1, "try", "tries") if retries else "one try"
        raise DasrelError(
            f"the function failed for {where} after {tries}: {type(error).__name__}: {shown(error, limit=200)}",
            remedy="mend it and run again with {resume=True}: finished blocks are kept",
        ) from error


def _planned(n_objects: int, writing: Writing) -> Layout:
    """The layout that the store will have, to predict memory before it is begun."""
    if writing.dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be float32 or float64, not {writing.dtype}")
    dtype = np.dtype(writing.dtype)
    return Layout(n_objects, default_tile(n_objects, dtype) if writing.tile is None else max(1, writing.tile), dtype)


def _check_fits(memory: int, writing: Writing, label: str) -> None:
    """Refuse before a store is begun what `tasks.run` would refuse after."""
    client = parallel.active_client()
    if client is None:
        limits.threads_that_fit(memory, writing.memory, label)
    else:
        limits.check_workers(limits.worker_memory(client), memory, label)


def _sent(features: Features) -> Any:
    """The features as the tasks get them: a file's name, the array, or on a cluster a copy sent once to each worker."""
    client = parallel.active_client()
    if client is None or isinstance(features.data, Mapped):
        return features.data
    return client.scatter([features.data], broadcast=True, hash=False)[0]


def _spans(rows: slice, columns: slice) -> str:
    return f"objects {rows.start} to {rows.stop - 1} against {columns.start} to {columns.stop - 1}"


def _name_of(function: Callable[..., Any]) -> str:
    """Module and qualified name; of the function inside for `functools.partial`, of the class for other callables."""
    inner = getattr(function, "func", function)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}.{named.__qualname__}"


def _travelling(error: Exception) -> Exception:
    """The error itself if it survives the way from a worker, else its text."""
    try:
        copy.copy(error)  # an error whose class wants other arguments than it keeps cannot be made again
        pickle.dumps(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def estimate_pairwise(
    features: Any,
    store: StoreLike,
    *,
    metric: str,
    kind: str = "distance",
    ids: str | Names | None = None,
    metric_options: Mapping[str, Any] | None = None,
    writing: Writing | None = None,
) -> Cost:
    """What `pairwise` would do with the same arguments. Cost: reads the features."""
    writing = writing or Writing()
    chosen = resolve(metric, kind, metric_options)
    check_target(store, writing)
    found, _, _, layout, memory = prepared(features, chosen, ids, writing)
    threads = limits.threads_that_fit(memory, writing.memory, "pairwise")
    facts = {"features": found.shape[1], "metric": chosen.name}
    return Cost(
        "pairwise", layout.n_objects, Range(0, 0, 0), 0, threads * memory, *new_store_cost(store, layout, kind, facts)
    )
