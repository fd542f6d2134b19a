"""Open matrices: stores on disk, in object storage or in memory.

The identity of a matrix, by which checkpoints are matched, is known without reading a tile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dasrel.errors import InputError, MemoryLimitError, StoreError
from dasrel.names import KINDS, is_similarity
from dasrel.store.layout import IMPORT_AGAIN, Layout, Reader, unchanged
from dasrel.store.manifest import array_metadata
from dasrel.store.tile_files import (
    RecordedChecksums,
    StoreLike,
    TileFiles,
    _group,
    absolute_location,
    check_files,
    checked_ids,
    checksum_text,
    is_mapped,
    local_path,
    location,
    open_group,
    read_checksums,
)
from dasrel.util import Array, Names, limits, progress
from dasrel.util.files import digest
from dasrel.util.html import Html, card
from dasrel.util.reading import check_regular, load_json
from dasrel.util.text import count_text, redacted, shown, size_text, some

DECIDING = ("input", "compress", "format_version")
"""Other fields of a manifest on which the values depend."""


class Matrix:
    """An open, complete store. Get one with `open_matrix`."""

    def __init__(self, store: StoreLike, manifest: dict[str, Any], group: Any) -> None:
        self.store = store
        self.manifest = manifest
        self._group = group
        self.n_objects: int = manifest["n_objects"]
        self.kind: str = manifest["kind"]
        self.tile: int = manifest["tile"]
        self.dtype: np.dtype[Any] = np.dtype(manifest["dtype"])
        self.audit: dict[str, Any] = manifest["audit"]
        self.layout = Layout(self.n_objects, self.tile, self.dtype)
        self._checksums: dict[str, str] = manifest["checksums"]
        recorded = RecordedChecksums(self._checksums["array"], self._checksums["tiles"])
        self.files = TileFiles(absolute_location(store), self.layout, is_mapped(group), recorded)
        self._ids: Array | None = None
        self._index: dict[str, int] | None = None
        self._diagonal: Array | None = None
        self._signature: tuple[int, ...] | None = None
        """Of the manifest's file when it was last found unchanged."""

    def __repr__(self) -> str:
        objects = count_text(self.n_objects, "object")
        return f"<Matrix {location(self.store)}: {objects}, kind {self.kind}, tile {self.tile}>"

    def _repr_html_(self) -> str:
        return matrix_card(self, "Matrix", [("store", location(self.store))])

    def __reduce__(self) -> tuple[Any, ...]:
        # With its manifest: where it arrives, the store may have grown, and this matrix has not.
        return _reopened, (absolute_location(self.store), self.manifest)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_objects, n_objects)."""
        return self.n_objects, self.n_objects

    @property
    def ids(self) -> Array:
        """The objects' names, an array of n strings."""
        if self._ids is None:
            names = np.asarray(self._stored("ids")[: self.n_objects])
            self._check("ids", joined_names(names))
            with _refused(f"the ids of {location(self.store)} are damaged"):
                self._ids = checked_ids(names, self.n_objects)
        return self._ids

    @property
    def diagonal(self) -> Array | None:
        """Self-similarities (n float64) for kinds similarity and kernel, else None."""
        if self._diagonal is None and is_similarity(self.kind):
            diagonal = np.asarray(self._stored("diagonal")[: self.n_objects])
            self._check("diagonal", diagonal)
            if diagonal.shape != (self.n_objects,) or not np.isfinite(diagonal).all():
                raise StoreError(
                    f"the diagonal of {location(self.store)} is damaged: values are missing", remedy=IMPORT_AGAIN
                )
            self._diagonal = diagonal
        return self._diagonal

    def records(self) -> Array:
        """Read the statistics of every tile, (n_blocks, n_blocks, numbers of a record); NaN below the diagonal."""
        rows = np.asarray(self._stored(self.manifest.get("records", "records")))
        self._check("records", rows)
        return rows

    def check(self) -> None:
        """Raise if ids, diagonal, records or the tiles' checksums are not those that the manifest describes.

        Cost: reads them; some ten bytes per object and some hundred per tile.
        """
        _ = self.ids, self.diagonal, self.records()
        self.checksums()

    def checksums(self) -> Array:
        """Return the checksum of every tile, (n_blocks, n_blocks) int64; -1 below the diagonal."""
        recorded = RecordedChecksums(self._checksums["array"], self._checksums["tiles"])
        checksums = read_checksums(self.files.store, recorded)
        if checksums is None or checksums.shape != (self.layout.n_blocks,) * 2:
            raise StoreError(f"the checksums of the tiles of {location(self.store)} are missing", remedy=IMPORT_AGAIN)
        return checksums

    def check_unchanged(self) -> None:
        """Raise if another store has taken the place of this one since it was opened. An append is no other store.

        Cost: of a local store a stat of its manifest, which is read again only after a change. Of others nothing:
        each tile that is read is compared with its checksum.
        """
        local = local_path(self.files.store)
        if local is None:
            return
        seen = _signature(local)
        if seen is not None and seen == self._signature:
            return
        try:
            now = _settled_manifest(self.files.store)
        except StoreError as error:
            problem = f"{location(self.store)} cannot be read any more: it was removed or replaced while it was read"
            raise StoreError(problem, remedy="run again with a store that stays as it is") from error
        if not _is_continued(self.manifest, now):
            problem = f"{location(self.store)} was replaced by another store while it was read"
            raise StoreError(problem, remedy="run again")
        self._signature = seen

    def _stored(self, name: str) -> Array:
        """Read one of the small arrays beside the tiles."""
        try:
            check_files(self.store, name)
            if name == "ids":
                check_names(self.store, self._group)
            return np.asarray(self._group[name][:])
        except StoreError:
            raise
        except Exception as error:  # whatever Zarr says about a damaged array
            raise StoreError(
                f"{name} of {location(self.store)} cannot be read: {shown(error, limit=200)}", remedy=IMPORT_AGAIN
            ) from None

    def _check(self, name: str, content: Array | bytes) -> None:
        wanted, checksum = self._checksums[name], checksum_text(content)
        if checksum != wanted:
            raise StoreError(
                f"{name} of {location(self.store)} are not those that were written (checksum {checksum}, recorded"
                f" {wanted})",
                remedy=IMPORT_AGAIN,
            )

    def positions(self, ids: Iterable[str]) -> list[int]:
        """Return the positions of the objects with these names."""
        if self._index is None:
            self._index = {str(name): k for k, name in enumerate(self.ids)}
        wanted = [str(name) for name in ids]
        unknown = [shown(name) for name in wanted if name not in self._index]
        if unknown:
            raise InputError(f"no such objects in {location(self.store)}: {some(unknown)}")
        return [self._index[name] for name in wanted]

    def read_tile(self, i: int, j: int) -> Array:
        """Read tile (i, j), i <= j, without padding: rows of strip i against columns of strip j."""
        if not 0 <= i <= j < self.layout.n_blocks:
            raise InputError(f"no tile ({i}, {j}): tiles have 0 <= i <= j < {self.layout.n_blocks}")
        return self.files.read_checked(i, j)

    def rows(self, ids: Iterable[str]) -> Array:
        """Read the rows of chosen objects as stored, both triangles: an array of (number of ids, n).

        Cost: reads the tiles of the strips that the objects lie in; the result is one row of n values per object.
        """
        with unchanged(self):
            return rows_of(self.files, np.array(self.positions(ids), dtype=np.intp))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return dense_array(self, dtype, copy)

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must find again: the shape, the names, and the records of the tiles.

        Two stores of the same source in other tiles are different here: sums over tiles have other last bits.

        Cost: no scan; reads the records, some hundred bytes a tile.
        """
        return identity_of(self)

    def identity_digest(self) -> str:
        """Return sixteen hexadecimal digits that stand for `identity`, for result files. Cost: as `identity`."""
        return digest([json.dumps(self.identity(), sort_keys=True).encode()])

    def fingerprint(self) -> dict[str, Any]:
        """Return what two stores of the same values have in common, however they are tiled.

        Cost: no scan; reads the ids.
        """
        return fingerprint_of(self)

    def content_hash(self, *, verify: bool) -> str:
        """Return a hash of what a local store holds. An unfinished append does not change it.

        With `verify` the tiles are compared with their checksums; else they need only be there.

        Cost: reads the records; with `verify` all tiles once.
        """
        try:
            about = {**self.identity(), **{name: self.manifest.get(name) for name in DECIDING}}
            if self.diagonal is not None:
                about["diagonal"] = hashlib.sha256(self.diagonal.tobytes()).hexdigest()
        except Exception as error:  # whatever Zarr says about a damaged array
            raise StoreError(
                f"{shown(location(self.store), limit=200)} cannot be read: {shown(error, limit=200)}"
            ) from None
        for i, j in self.layout.tiles():
            self.files.check_file(i, j, verify=verify)
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def to_dask(self) -> Any:
        """Return the complete matrix, both triangles, as a lazy dask array, for other tools.

        Cost: none now; computing all of it reads each tile once and holds what the caller computes.
        """
        import dask
        import dask.array as da

        read = dask.delayed(TileFiles.read_checked, pure=True)
        tiles = {
            (i, j): da.from_delayed(read(self.files, i, j), self.layout.shape(i, j), self.dtype)
            for i, j in self.layout.tiles()
        }
        side = range(self.layout.n_blocks)
        return da.block([[tiles[i, j] if i <= j else tiles[j, i].T for j in side] for i in side])


def matrix_card(matrix: Any, title: str, facts: Sequence[tuple[str, str]]) -> Html:
    """Return what is known of an open matrix, for notebooks. Cost: no scan."""
    layout, audit = matrix.layout, matrix.audit
    tiles = f"{count_text(len(layout.tiles()), 'tile')} of {layout.tile:,} x {layout.tile:,}"
    return card(
        title,
        [
            *facts,
            ("objects", f"{matrix.n_objects:,}"),
            ("kind", f"{matrix.kind}: {KINDS[matrix.kind]}"),
            ("values", f"{matrix.dtype}, {tiles}; a scan reads {size_text(layout.total_bytes)}"),
            ("range", f"{audit['minimum']:.6g} to {audit['maximum']:.6g}, mean {audit['mean']:.6g}"),
            ("ids", some([shown(name) for name in matrix.ids[:5]], show=5, total=matrix.n_objects)),
        ],
    )


def rows_of(reader: Reader, where: Array) -> Array:
    """Read complete rows of the matrix from the tiles of the upper triangle."""
    layout = reader.layout
    result = np.empty((where.size, layout.n_objects), dtype=layout.dtype)
    for strip in np.unique(where // layout.tile):
        mine = np.flatnonzero(where // layout.tile == strip)
        local = where[mine] - strip * layout.tile
        for other in range(layout.n_blocks):
            tile = reader.read_checked(int(min(strip, other)), int(max(strip, other)))
            progress.current().count(tiles=1, bytes=layout.tile_bytes)
            result[mine, layout.span(other)] = tile[local] if strip <= other else tile[:, local].T
    return result


def dense_array(matrix: Any, dtype: Any, copy: bool | None) -> Array:
    """Return the complete matrix as stored, both triangles, for `np.asarray`; refuse what does not fit into memory.

    Cost: one read of every tile; n^2 values.
    """
    if copy is False:
        raise ValueError("a store cannot be seen as an array without a copy; leave out copy=False")
    wanted = np.dtype(dtype or matrix.dtype)
    needed = matrix.n_objects**2 * wanted.itemsize
    free = limits.free_memory()
    if needed > free // 2:
        raise MemoryLimitError(
            f"the matrix as one array takes {size_text(needed)}, and half of the free memory is {size_text(free // 2)}",
            remedy="use `to_dask()` or `rows(ids)`, or give dasrel's functions the matrix itself",
        )
    whole = np.empty(matrix.shape, dtype=wanted)
    with unchanged(matrix):
        for i, j in matrix.layout.tiles():
            tile = matrix.files.read_checked(i, j)
            progress.current().count(tiles=1, bytes=matrix.layout.tile_bytes)
            whole[matrix.layout.span(i), matrix.layout.span(j)] = tile
            if i != j:
                whole[matrix.layout.span(j), matrix.layout.span(i)] = tile.T
    return whole


def open_matrix(store: StoreLike) -> Matrix:
    """Open a complete store: a local path, a URL that Zarr opens (`s3://...`), or a Zarr store object.

    Raises if the manifest, the ids or the diagonal are damaged, or if this is no store.

    Cost: no scan; reads the manifest, the ids, the diagonal and the records.
    """
    matrix = open_unchecked(store)
    matrix.check()
    return matrix


def open_unchecked(store: StoreLike) -> Matrix:
    """Open a complete store; its ids, diagonal and records are checked at their first use. Cost: reads the manifest."""
    manifest, group = read_manifest(store)
    if manifest["state"] != "complete":
        raise StoreError(
            f"{location(store)} is unfinished (state {manifest['state']})",
            remedy="run the command that wrote it again with {resume=True}",
        )
    return Matrix(store, manifest, group)


def _signature(store: Path) -> tuple[int, ...] | None:
    """Return numbers that change when the manifest of a local store is written."""
    try:
        status = os.stat(store / "zarr.json")
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _is_continued(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Tell whether a manifest is the same as before, or that of the same store with more objects appended."""
    if before == now:
        return True
    older, newer = ({**manifest["provenance"]} for manifest in (before, now))
    appends, more = older.pop("appends", []), newer.pop("appends", [])
    fixed = ("format_version", "kind", "tile", "dtype", "compress", "input")
    return (
        all(before.get(name) == now.get(name) for name in fixed)
        and older == newer
        and more[: len(appends)] == appends
        and len(more) > len(appends)
    )


def _reopened(store: StoreLike, manifest: dict[str, Any]) -> Matrix:
    return Matrix(store, manifest, read_manifest(store)[1])


def is_store(store: StoreLike) -> bool:
    """Tell whether a dasrel store, finished or not, exists there. Raise if that cannot be found out."""
    try:
        return "dasrel" in open_group(store).attrs
    except StoreError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ImportError as error:
        raise StoreError(f"{location(store)} needs a package that is not installed: {error}") from error
    except Exception as error:
        if type(error).__name__ in ("ContainsArrayError", "NodeTypeValidationError"):  # Zarr's, which is not imported
            return False
        raise StoreError(f"{location(store)} cannot be opened: {shown(error, limit=200)}") from error


def read_manifest(store: StoreLike, mode: Literal["r", "r+"] = "r") -> tuple[dict[str, Any], Any]:
    from dasrel.store.manifest import check_arrays, check_manifest  # pydantic is needed only where a store is opened

    try:
        group = open_group(store, mode)
    except StoreError:
        raise
    except FileNotFoundError:
        local = local_path(store)
        if local is not None and (local / ".zgroup").exists():
            raise StoreError(
                f"{location(store)} is a Zarr group of format 2, but dasrel stores are of format 3",
                remedy="import its array, or the source, again",
            ) from None
        raise StoreError(
            f"no store at {location(store)}",
            remedy="`dasrel import SOURCE STORE --kind ...` or `dasrel.import_matrix` makes one",
        ) from None
    except ImportError as error:
        raise StoreError(f"{location(store)} needs a package that is not installed: {error}") from error
    except Exception as error:
        raise StoreError(f"{location(store)} cannot be opened: {shown(error, limit=200)}") from error
    manifest = group.attrs.get("dasrel")
    if not isinstance(manifest, dict):
        raise StoreError(
            f"{location(store)} is a Zarr group, but not a dasrel store", remedy="`dasrel import` makes one"
        )
    check_manifest(manifest, location(store))
    if manifest["state"] == "complete" and manifest != sealed(manifest):
        problem = f"the manifest of {location(store)} is not the one that was written: it was edited or is damaged"
        raise StoreError(problem, remedy=IMPORT_AGAIN)
    if (local := local_path(store)) is not None:
        kept = manifest.get("records", "records"), (manifest.get("checksums") or {}).get("array", "")
        check_regular(*(local / name / "zarr.json" for name in ("values", "ids", "diagonal", "progress", *kept)))
    check_arrays(group, manifest, location(store))
    return manifest, group


def _settled_manifest(store: StoreLike) -> dict[str, Any]:
    """Read a manifest, again for half a second if it fails: an append may be replacing its parts."""
    for _ in range(10):
        with suppress(StoreError):
            return read_manifest(store)[0]
        time.sleep(0.05)
    return read_manifest(store)[0]


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a complete store with its `identity`, a hash of all the rest.

    With the checksums in it, equal identities mean equal stores.
    """
    plain = {name: value for name, value in manifest.items() if name != "identity"}
    return {**plain, "identity": digest([json.dumps(plain, sort_keys=True).encode()])}


def stored_ids(store: StoreLike) -> Array:
    """Read the objects' names of a store, finished or not."""
    group = _group(absolute_location(store))
    check_names(store, group)
    return np.asarray(group["ids"][:])


def check_names(store: StoreLike, group: Any) -> None:
    """Raise `StoreError` if a file of names claims more than a chunk has, which decoding would allocate.

    Cost: reads the names' files, and unpacks them.
    """
    local = local_path(store)
    if local is None:
        return
    from numcodecs import zstd

    about = array_metadata(group, "ids")
    packed = "zstd" in [codec["name"] for codec in about["codecs"]]
    most = about["chunk_grid"]["configuration"]["chunk_shape"][0]
    for path in sorted((local / "ids" / "c").glob("*")):
        check_regular(path)
        try:
            data = zstd.decompress(path.read_bytes()) if packed else path.read_bytes()
        except Exception:  # whatever zstd says about damaged data: reading the names will report it
            continue
        if (claimed := int.from_bytes(data[:4], "little")) > most:
            problem = f"its file {path.name} claims {claimed:,} names, and may have {most:,}"
            raise StoreError(f"{location(store)} is damaged: ids cannot be read, {problem}", remedy=IMPORT_AGAIN)


@dataclass(frozen=True)
class StoredNames(Sequence[str]):
    """The objects' names for messages, read from the store at their first use, so that tasks stay small."""

    store: StoreLike
    n_objects: int

    def __len__(self) -> int:
        return self.n_objects

    def __getitem__(self, k: Any) -> Any:
        return str(stored_ids(self.store)[int(k)])


def identity_of(matrix: Any) -> dict[str, Any]:
    """Return what a checkpoint must find again of a matrix; see `Matrix.identity`."""
    return {
        "n_objects": matrix.n_objects, "kind": matrix.kind, "tile": matrix.layout.tile,
        "dtype": str(matrix.layout.dtype), "ids": digest([_joined_ids(matrix)]),
        "tiles": digest([np.ascontiguousarray(matrix.records()).tobytes()]),
    }  # fmt: skip


def fingerprint_of(matrix: Any) -> dict[str, Any]:
    """Return what matrices of the same values have in common; see `Matrix.fingerprint`."""
    audit = matrix.audit
    return {
        "n_objects": matrix.n_objects, "kind": matrix.kind, "ids": zlib.crc32(_joined_ids(matrix)),
        "minimum": audit["minimum"], "maximum": audit["maximum"], "mean": audit["mean"],
    }  # fmt: skip


def _joined_ids(matrix: Any) -> bytes:
    return "\n".join(str(name) for name in matrix.ids).encode("utf-8", "surrogatepass")


def joined_names(names: Names) -> bytes:
    """Return the names as bytes whose checksum stands for them."""
    return "\0".join(map(str, names)).encode("utf-8", "surrogatepass")


@contextlib.contextmanager
def _refused(problem: str) -> Iterator[None]:
    """Turn a fault of stored names into a fault of the store."""
    try:
        yield
    except InputError as error:
        raise StoreError(f"{problem}: {error.problem}", remedy=IMPORT_AGAIN) from None


def remote_content_hash(url: str) -> str:
    """Return a hash of the names, sizes and versions of all that is behind a URL. Nothing else is read."""
    try:
        import fsspec  # type: ignore[import-untyped]

        files, root = fsspec.core.url_to_fs(url)
        objects = files.find(root, detail=True)
        if not objects:  # not every server lists what it has
            heads = [name for name in ("zarr.json", ".zarray", ".zgroup") if files.exists(f"{root}/{name}")]
            objects = {name: {"size": files.cat_file(f"{root}/{name}").hex()} for name in heads}
    except Exception as error:  # whatever storage there is behind a URL has its own errors
        raise InputError(redacted(f"{shown(url, limit=200)} cannot be listed: {shown(error, limit=200)}")) from None
    if not objects:
        raise InputError(redacted(f"there is nothing at {shown(url, limit=200)}"))
    total = hashlib.sha256()
    for name, about in sorted(objects.items()):
        version = about.get("ETag") or about.get("mtime") or about.get("LastModified") or about.get("created")
        total.update(f"{name}\0{about.get('size')} {version}\n".encode())
    return total.hexdigest()


def store_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest of a local store; None where there is none."""
    try:
        manifest = load_json(folder / "zarr.json")["attributes"]["dasrel"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if isinstance(manifest, dict) else None
