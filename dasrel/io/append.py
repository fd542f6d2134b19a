"""Append objects to a store: rows of values against old and new objects, or features for a store made by `pairwise`.

Only new tiles are written, and the tiles at the edge that have room for more objects; `store.growth` describes how a
store grows while others read it. A tile at the edge has old pairs too: they are copied from the store, so that no bit
of them changes. What is stored, and the audit, are those of a store that was written at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from dasrel.errors import InputError
from dasrel.io.features import Features, Mapped, PackedBits, is_sparse, read_features, read_rows, row_block
from dasrel.io.importing import block_checksum
from dasrel.io.metrics import Metric, check_features, made_ready, resolve, tile_values
from dasrel.io.readers.stream import given_ids
from dasrel.io.store_job import TILE_OVERHEAD, check_task_memory
from dasrel.kernels import checks
from dasrel.kernels.checks import TileStatistics
from dasrel.names import is_similarity
from dasrel.store import journal
from dasrel.store.growth import (
    AppendTransaction,
    Tile,
    append_transaction,
    checked_names,
    finished_append,
    grown_record,
)
from dasrel.store.layout import Layout
from dasrel.store.matrix import Matrix, StoredNames, open_matrix
from dasrel.store.options import Policy, group
from dasrel.store.tile_files import StoreLike, TileFiles, local_path, location
from dasrel.util import Array, Names, limits, parallel
from dasrel.util.labelled import check_not_reordered, column_order
from dasrel.util.limits import Cost, Output, Range
from dasrel.util.text import count_text, path_text, shown, some


@dataclass(frozen=True)
class Appended:
    """The result of an append."""

    matrix: Matrix
    """The grown store, opened anew; what was open before still shows the objects that it had."""
    objects_before: int
    new_objects: int
    """Objects that were added."""
    tiles_written: int
    """Tiles that were not there before, written by this call."""
    tiles_grown: int
    """Tiles at the edge that were written again with more objects in them."""
    tiles_kept: int
    """Tiles that an unfinished append of the same objects had written already."""
    bytes_written: int | None
    """Of tiles, as they are stored; None for compressed tiles that are not on this machine."""
    resumed: bool

    def report(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        names = (
            "objects_before",
            "new_objects",
            "tiles_written",
            "tiles_grown",
            "tiles_kept",
            "bytes_written",
            "resumed",
        )
        values = {name: getattr(self, name) for name in names}
        total = len(self.matrix.layout.tiles())
        return {"store": location(self.matrix.store), "n_objects": self.matrix.n_objects, "tiles": total, **values}


def append(
    store: StoreLike,
    source: Any,
    *,
    ids: str | Names | None = None,
    features: Any = None,
    policy: Policy | None = None,
    memory: int | str = "1GiB",
    resume: bool = False,
    force: bool = False,
) -> Appended:
    """Add objects to a store. It stays readable, and has all new objects or none of them.

    An append that was killed leaves the store as it was; the same call resumes it.

    Parameters
    ----------
    source
        One row for each of the m new objects: its values against the n objects of the store and the m new ones, so
        (m, n + m) in all. A path (`.npy`, `.npz`, CSV, TSV, Parquet, a folder or URL that is a Zarr array), or a NumPy,
        dask, xarray or Zarr array, or a data frame. Columns that have names are matched by them, in any order;
        without names they stand in the order of the store, new objects last. With `features`: the features of the m
        new objects, as `pairwise` takes them.
    ids
        Names of the new objects, or a file with one name per line, in place of those in the source. A store whose
        objects are simply numbered needs none.
    features
        The features of the objects that are in the store already, for one made by `pairwise`: what it was made from,
        and a list of that and of what was appended since, in order. They are known by their checksums.
    policy
        What to do about flaws of the new values; each is an error unless named. `missing="max"` is not for here.
    resume
        Resume an unfinished append even if the process that began it may still be running. Where the objects are in
        the store already, from the same source, nothing is left to do.
    force
        Drop an unfinished append of something else.

    Cost: every new value is read or computed once; writes the m (n + m) new values, and the tiles at the edge that
    grow, at most n tile more. Memory: about four tiles per thread.
    """
    policy = policy or Policy()
    journal.recover(store, take_over=resume or force)
    if resume and (before := _finished(store, source, ids, features is None, policy)) is not None:
        return before
    job = prepare_append(store, source, ids=ids, features=features, policy=policy, memory=memory)
    return job.run(resume=resume, force=force)


def _finished(store: StoreLike, source: Any, ids: str | Names | None, as_rows: bool, policy: Policy) -> Appended | None:
    """Return the result of the same append if it is in the store already, from a process killed at its very end."""
    matrix = open_matrix(store)
    if not matrix.manifest["provenance"].get("appends"):
        return None
    new: Any = read_rows(source) if as_rows else read_features(source)
    given = _given(ids)
    about = _about("rows", new.provenance, policy) if as_rows else _about("features", new.provenance)
    names: Any = given if given is not None else new.ids
    added = finished_append(store, names, about)
    if added is None or (as_rows and tuple(new.array().shape) != (added, matrix.n_objects)):
        return None
    size = 0 if local_path(store) is not None or not matrix.manifest["compress"] else None
    return Appended(open_matrix(store), matrix.n_objects - added, added, 0, 0, 0, size, True)


def _given(ids: str | Names | None) -> list[str] | None:
    """Return the names of the new objects, if they are given."""
    return None if ids is None else given_ids(os.fspath(ids) if isinstance(ids, os.PathLike) else ids)


def _about(form: str, provenance: dict[str, Any], policy: Policy | None = None) -> dict[str, Any]:
    """Return what is being added, by which an append of the same is recognised."""
    return {"as": form, **_known_by(provenance)} | ({} if policy is None else {"policy": policy.record()})


def prepare_append(
    store: StoreLike,
    source: Any,
    *,
    ids: str | Names | None = None,
    features: Any = None,
    policy: Policy | None = None,
    memory: int | str = "1GiB",
) -> AppendJob:
    """Open the store and the source, and check what can be checked without reading values.

    Cost: reads the new rows or all features once for their checksums; reads no tile and writes nothing.
    """
    policy = group(policy, Policy, "policy")
    old = open_matrix(store)
    policy.check_kind(old.kind)
    if policy.missing == "max":
        raise InputError(
            "missing pairs can be filled with the maximum in imports only: a later append may bring a larger value",
            remedy="say {Policy.missing=VALUE}",
        )
    given = _given(ids)
    if features is None:
        provider, names, provenance = _open_rows(source, old, given)
        about = _about("rows", provenance, policy)
    else:
        if policy != Policy():
            raise InputError("policies are for values that were given; those of a metric have no flaws to repair")
        provider, names, provenance = _open_features(source, features, old, given)
        about = _about("features", provenance)
    return AppendJob(store, old, provider, names, about, policy, memory)


@dataclass(frozen=True)
class AppendJob:
    """New objects and the store that they are appended to, with everything checked and nothing begun."""

    store: StoreLike
    old: Matrix
    provider: TileProvider
    names: Names
    about: dict[str, Any]
    """What is being added, by which an unfinished append of the same is recognised."""
    policy: Policy
    memory: int | str

    def run(self, *, resume: bool, force: bool) -> Appended:
        """Write the missing tiles, and make the store the larger one."""
        old, names, task_memory = self.old, self.names, self._task_memory()
        check_task_memory(task_memory, self.memory, "append", local=self.provider.local)
        if not self.provider.local and (local := local_path(self.store)) is not None:
            parallel.check_all_see(local)
        with append_transaction(self.store, names, self.about, resume=resume, force=force) as (transaction, resumed):
            if transaction.old.n_objects != old.n_objects:
                raise InputError(
                    f"{location(self.store)} has grown meanwhile", remedy="look at its objects again, and append anew"
                )
            written: set[Tile] = set()

            def write(missing: Sequence[Tile]) -> None:
                written.update(missing)
                parallel.run(
                    _AppendTile(self.provider, transaction.files, old.kind, self.policy),
                    [(i, j, transaction.record_before((i, j))) for i, j in missing],
                    label="append",
                    bytes_each=transaction.layout.tile_bytes,
                    task_memory=task_memory,
                    memory=self.memory,
                    local=self.provider.local,
                    resume_hint="run the same append again to continue",
                )

            transaction.write_missing(write)
            size = _bytes(transaction, sorted(written))
            matrix = transaction.commit(self.about.get("checksum"))
        grown = sum(transaction.is_grown(tile) for tile in written)
        kept = len(transaction.tiles()) - len(written)
        return Appended(matrix, old.n_objects, len(names), len(written) - grown, grown, kept, size, resumed)

    def cost(self) -> Cost:
        """Estimate the cost of `run`; raise `MemoryLimitError` where `run` would."""
        old, layout = self.old, self._layout()
        names = checked_names(self.names, old)
        touched = [(i, j) for i, j in layout.tiles() if j >= old.n_objects // old.tile]
        grown = sum(j < old.layout.n_blocks for _, j in touched)
        facts = {
            "as": self.about["as"], "objects_before": old.n_objects, "new_objects": len(names),
            "tiles_written": len(touched) - grown, "tiles_grown": grown,
        }  # fmt: skip
        task = self._task_memory()
        needed = limits.threads_that_fit(task, self.memory, "append") * task
        output = Output(str(location(self.store)), len(touched) * (layout.tile_bytes + 4))
        return Cost("append", layout.n_objects, Range(0, 0, 0), 0, needed, (output,), facts)

    def _layout(self) -> Layout:
        """Return the tile grid of the grown store."""
        return Layout(self.old.n_objects + len(self.names), self.old.tile, self.old.dtype)

    def _task_memory(self) -> int:
        """Return the bytes that the task of one tile takes."""
        layout = self._layout()
        side = min(layout.tile, layout.n_objects)
        copies = 2 if self.old.files.mapped else 4  # what is not written as it is, Zarr encodes
        return self.provider.memory(side, layout.dtype.itemsize) + copies * layout.tile_bytes + TILE_OVERHEAD


@dataclass(frozen=True)
class _AppendTile:
    """Reads or computes, checks and writes one tile."""

    provider: TileProvider
    files: TileFiles
    kind: str
    policy: Policy

    def __call__(self, item: tuple[int, int, Array | None]) -> None:
        i, j, before = item
        layout = self.files.layout
        rows, columns = layout.span(i), layout.span(j)
        start = (rows.start, columns.start)
        upper, lower = self.provider.tile(rows, columns)
        names = StoredNames(self.files.store, layout.n_objects)
        tile, record = checks.check_tile(
            upper, lower, place=start, kind=self.kind, dtype=layout.dtype, policy=self.policy, ids=names
        )
        if before is not None:
            raw = np.diagonal(upper) if i == j and not is_similarity(self.kind) else None
            record = grown_record(TileStatistics.from_row(before), record, start, raw)
        if not (record.is_untouched and upper.dtype == tile.dtype):  # else the tile's own checksum suffices
            below = 0 if lower is None else block_checksum(lower, 0)
            record.source_checksum = float(block_checksum(np.ascontiguousarray(upper), below))
        self.files.write(i, j, tile, record)


def _bytes(transaction: AppendTransaction, tiles: Sequence[Tile]) -> int | None:
    files, local = transaction.files, local_path(transaction.old.store)
    if local is not None:
        return sum(os.stat(files.file(i, j)).st_size for i, j in tiles)
    return None if transaction.old.manifest["compress"] else len(tiles) * (transaction.layout.tile_bytes + 4)


class TileProvider(Protocol):
    """Provides tiles of the grown matrix."""

    @property
    def local(self) -> bool:
        """Whether tiles can only be provided in this process."""

    def tile(self, rows: slice, columns: slice) -> tuple[Array, Array | None]:
        """Return the values of these rows and columns, old pairs included, and the mirrored ones if they can differ."""

    def memory(self, side: int, itemsize: int) -> int:
        """Return the anonymous memory, in bytes, that a tile takes."""


@dataclass(frozen=True)
class _FromRows:
    """Tiles from the rows of new objects and, where a tile has old pairs too, from the store."""

    data: Any
    """A `Mapped` file, or anything two-dimensional that can be sliced."""
    dtype: np.dtype[Any]
    order: Array | None
    """The column of each object of the grown store; None where they are in order."""
    old: TileFiles
    local: bool

    def tile(self, rows: slice, columns: slice) -> tuple[Array, Array | None]:
        n = self.old.layout.n_objects
        if rows.stop <= n <= columns.start:  # old against new: given once, for both directions
            lower = self._rows(columns, rows)
            return lower.T, lower
        if rows.start >= n:
            return self._rows(rows, columns), None if rows == columns else self._rows(columns, rows)
        upper = self._mixed(rows, columns)
        return upper, None if rows == columns else self._mixed(columns, rows)

    def memory(self, side: int, itemsize: int) -> int:
        return 3 * side * side * max(itemsize, self.dtype.itemsize)

    def _mixed(self, rows: slice, columns: slice) -> Array:
        """Return a block with old and new objects among its rows or its columns."""
        layout = self.old.layout
        n, tile = layout.n_objects, layout.tile
        result = np.empty(
            (rows.stop - rows.start, columns.stop - columns.start), np.result_type(self.dtype, layout.dtype)
        )
        down, right = max(0, n - rows.start), max(0, n - columns.start)  # how many of them are old
        down, right = min(down, result.shape[0]), min(right, result.shape[1])
        if down and right:
            i, j = rows.start // tile, columns.start // tile
            before = self.old.read_checked(min(i, j), max(i, j))
            result[:down, :right] = before if i <= j else before.T
        if down and right < result.shape[1]:
            new = slice(columns.start + right, columns.stop)
            result[:down, right:] = self._rows(new, slice(rows.start, rows.start + down)).T
        if down < result.shape[0]:
            result[down:] = self._rows(slice(rows.start + down, rows.stop), columns)
        return result

    def _rows(self, new: slice, columns: slice) -> Array:
        """Return rows of new objects, numbered as in the grown store."""
        n = self.old.layout.n_objects
        own = slice(new.start - n, new.stop - n)
        if isinstance(self.data, Mapped):
            return parallel.part(self.data.array(), own, columns if self.order is None else self.order[columns])
        if self.order is not None:
            return np.asarray(self.data[own])[:, self.order[columns]]
        part = self.data[own, columns]
        return np.asarray(part.compute() if hasattr(part, "dask") else part)


@dataclass(frozen=True)
class _FromFeatures:
    """Tiles from features. Old pairs are copied from the store, so that no bit of them changes."""

    data: Any
    metric: Metric
    strip_bytes: int
    old: TileFiles
    local: bool

    def tile(self, rows: slice, columns: slice) -> tuple[Array, Array | None]:
        layout = self.old.layout
        n = layout.n_objects
        if columns.start >= n:
            return self._values(rows, columns), None
        new = slice(n, columns.stop)
        right = n - columns.start
        result = np.empty((rows.stop - rows.start, columns.stop - columns.start), layout.dtype)
        down = min(result.shape[0], n - rows.start)
        result[:down, :right] = self.old.read_checked(rows.start // layout.tile, columns.start // layout.tile)
        result[:down, right:] = self._values(slice(rows.start, rows.start + down), new)
        if down < result.shape[0]:  # on the diagonal
            result[down:, :right] = result[:down, right:].T
            result[down:, right:] = self._values(new, new)
        return result, None

    def memory(self, side: int, itemsize: int) -> int:
        return self.metric.memory(side, self.strip_bytes, itemsize) + side * side * itemsize

    def _values(self, rows: slice, columns: slice) -> Array:
        first, second = row_block(self.data, rows), row_block(self.data, columns)
        return tile_values(self.metric, first, second, same=rows == columns, dtype=self.old.layout.dtype)


# -------------------------------------------------------------------------------------------------- rows of new objects


def _open_rows(source: Any, old: Matrix, given: list[str] | None) -> tuple[TileProvider, list[str], dict[str, Any]]:
    rows = read_rows(source)
    where = path_text(rows.provenance["source"])
    array: Any = rows.array()
    if len(array.shape) != 2 or np.dtype(array.dtype).kind not in "fiub":
        raise InputError(
            f"{where} has shape {tuple(array.shape)} and type {array.dtype}", remedy="give rows of numbers"
        )
    m, width = (int(k) for k in array.shape)
    n = old.n_objects
    if m == 0 or width != n + m:
        made = old.manifest["provenance"].get("features")
        hint = "for features say {features=OLD}" if made is not None and made[1] == width else None
        raise InputError(
            f"{where} has {count_text(m, 'row')} and {count_text(width, 'column')}; {count_text(m, 'new object')}"
            f" against the {n} of {location(old.store)} and themselves are {m} x {n + m}",
            remedy=hint,
        )
    check_not_reordered(given, rows.ids, where)
    names = _new_names(given if given is not None else rows.ids, m, old, where)
    order = None
    if rows.columns is not None:
        order = column_order(rows.columns, [*map(str, old.ids), *names], where, "the store and the new ones")
    data = rows.data
    if order is not None and hasattr(data, "dask"):
        data, order = data[:, order], None
    provider = _FromRows(data, np.dtype(array.dtype), order, old.files, not isinstance(data, Mapped))
    return provider, names, _known_by(rows.provenance)


def _known_by(provenance: dict[str, Any]) -> dict[str, Any]:
    """Return what distinguishes one source from another; its checksum is known before anything is written."""
    return {key: provenance[key] for key in ("source", "size", "checksum") if key in provenance}


def _new_names(names: Sequence[str] | None, m: int, old: Matrix, where: str) -> list[str]:
    n = old.n_objects
    if names is not None:
        if len(names) != m:
            raise InputError(
                f"{count_text(len(names), 'id')} for the {count_text(m, 'new object')} of {where}",
                remedy="give one id per row",
            )
        return [str(name) for name in names]
    if all(str(name) == str(k) for k, name in enumerate(old.ids)):
        return [str(k) for k in range(n, n + m)]
    raise InputError(
        f"{where} has no names of its {m} new objects, and those of {location(old.store)} have names, such as"
        f" {shown(old.ids[0])}",
        remedy="give them: {ids=FILE}",
    )


# ------------------------------------------------------------------------------------------------------------- features


def _open_features(
    source: Any, before: Any, old: Matrix, given: list[str] | None
) -> tuple[TileProvider, list[str], dict[str, Any]]:
    metric = _stored_metric(old)
    parts = _features_before(before, old)
    new = read_features(source, packed_bits=_has_packed_bits(old))
    where = path_text(new.provenance["source"])
    m, p = new.shape
    wide = parts[0].shape[1]
    if p != wide:
        raise InputError(
            f"{where} has {count_text(p, 'column')} of numbers",
            remedy=f"give {wide}, as in the features that the store was made from",
        )
    known = [part.provenance["checksum"] for part in parts]
    if given is None and new.ids is None and new.provenance["checksum"] in known:
        raise InputError(
            f"{where} is in {location(old.store)} already", remedy="give {ids=FILE} if its objects are others"
        )
    check_not_reordered(given, new.ids, where)
    names = _new_names(given if given is not None or new.ids is None else list(new.ids), m, old, where)
    check_features(metric, new, names)
    whole = _stacked([*parts, new], old.n_objects + m)
    ready = made_ready(metric, whole, old.dtype)
    strip = whole.strip_bytes(old.tile, sparse=ready.takes_sparse)
    provider = _FromFeatures(whole.data, ready, strip, old.files, not _is_stacked(whole.data))
    return provider, names, _known_by(new.provenance)


def _has_packed_bits(old: Matrix) -> bool:
    return bool(old.manifest["provenance"].get("packed_bits"))


def _stored_metric(old: Matrix) -> Metric:
    """Return the metric that the store was made with; raise if it is not known, or was fitted to all features."""
    provenance, where = old.manifest["provenance"], location(old.store)
    name, options = provenance.get("metric"), provenance.get("options", {})
    if not isinstance(name, str):
        raise InputError(
            f"{where} was not made by `dasrel pairwise`", remedy="append the rows of the new objects instead"
        )
    rows = [k for k, record in enumerate(provenance.get("appends", [])) if record.get("as") != "features"]
    if rows:
        raise InputError(
            f"append {rows[0] + 1} to {where} was one of rows, without features", remedy="append rows from then on"
        )
    hidden = [key for key, value in options.items() if isinstance(value, str)]
    if hidden:
        raise InputError(f"{where} keeps only a checksum of the metric's {some(hidden)}", remedy="append rows instead")
    fitted = {"seuclidean": "V", "mahalanobis": "VI"}.get(name)
    if fitted and fitted not in options:
        raise InputError(
            f"metric {name} took its {fitted} from all features of {where}, and new objects would change it for all"
            f" pairs",
            remedy=f"compute the store anew, with the option {fitted} if it is to grow later",
        )
    return resolve(name, old.kind, options)


def _features_before(before: Any, old: Matrix) -> list[Features]:
    """Return the features of the objects in the store, which are recognised by their checksums."""
    provenance = old.manifest["provenance"]
    kept = [provenance, *provenance.get("appends", [])]
    listed = list(before) if isinstance(before, (list, tuple)) else [before]
    detail = ", then ".join(path_text(record["source"]) for record in kept)
    if len(listed) != len(kept):
        raise InputError(
            f"{location(old.store)} was made from the features in {detail}; {len(listed)} are given, not {len(kept)}",
            remedy="give them in this order ({features})",
        )
    parts = [read_features(source, packed_bits=_has_packed_bits(old)) for source in listed]
    for part, record in zip(parts, kept, strict=True):
        if part.provenance["checksum"] != record["checksum"]:
            raise InputError(
                f"{path_text(part.provenance['source'])} has {part.provenance['checksum']}, and the features"
                f" that {location(old.store)} was made from had {record['checksum']} ({detail}, in this order)",
                remedy="give those",
            )
    return parts


@dataclass(frozen=True)
class _Stacked:
    """Several mapped files as one table of rows, pickled as their names."""

    parts: tuple[Mapped, ...]
    starts: tuple[int, ...]
    """The first row of each, and the end of the last."""

    def __getitem__(self, rows: slice) -> Array:
        first, last, _ = rows.indices(self.starts[-1])
        pieces = [
            parallel.part(part.array(), slice(max(0, first - start), max(0, min(last, end) - start)))
            for part, start, end in zip(self.parts, self.starts, self.starts[1:], strict=False)
            if start < last and end > first
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _is_stacked(data: Any) -> bool:
    return isinstance(data.bytes if isinstance(data, PackedBits) else data, _Stacked)


def _stacked(parts: Sequence[Features], n_objects: int) -> Features:
    """Return the features of old and new objects as one table; mapped files are not copied."""
    blocks = [part.data for part in parts]
    data: Any
    if all(isinstance(block, PackedBits) for block in blocks):
        inner = _stacked([replace(part, data=part.data.bytes) for part in parts], n_objects)
        return replace(inner, data=PackedBits(inner.data))
    if all(isinstance(block, Mapped) for block in blocks):
        ends = np.cumsum([part.shape[0] for part in parts]).tolist()
        data = _Stacked(tuple(blocks), (0, *ends))
    else:
        blocks = [row_block(block, slice(None)) for block in blocks]
        sparse = any(is_sparse(block) for block in blocks)
        data = scipy.sparse.csr_array(scipy.sparse.vstack(blocks)) if sparse else np.concatenate(blocks)
    return replace(parts[0], data=data, shape=(n_objects, parts[0].shape[1]), ids=None)
