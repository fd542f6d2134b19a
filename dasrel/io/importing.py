"""Detect a format and import a matrix into a store.

Bringing a matrix into a store: find out its format, open it as a `Source`, and write it tile by tile.

What a command would read, write and take, for `--dry-run`: checked as in a real run, with no matrix read.

Headers of files, manifests of stores and tables of features are looked at, tiles are not, and nothing is written.
What a real run would refuse before it begins is refused here with the same words.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.errors import InputError, MemoryLimitError, Stopped, StoreError
from dasrel.io import array_files, text_stream, triplets
from dasrel.io.array_files import (
    ArraySource,
    FlatFile,
    Reading,
    Source,
    TriangleSource,
    _choose,
    _mapped,
    _matrices,
    _npz_member,
    _triangle,
    _vector_aside,
    about,
    check_numbers,
    named,
    open_zarr,
    square_side,
)
from dasrel.io.text_stream import given_ids
from dasrel.io.triplets import SparseSource, _sparse_npz, absent_value
from dasrel.kernels import checks
from dasrel.kernels.checks import Policy
from dasrel.store.layout import Layout
from dasrel.store.matrix import Matrix, StoredNames
from dasrel.store.tile_files import StoreLike, TileFiles, default_tile, lasting, local_path
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
from dasrel.util import Array, limits, parallel
from dasrel.util.files import crc32c, full_disk, remove_temporary_files
from dasrel.util.limits import Cost, Range
from dasrel.util.text import count_text, shown
from dasrel.vocabulary import FORMATS


def open_npz(path: Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """One array of an `.npz`, mapped in place when it is not compressed; or a SciPy sparse matrix."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{named(path)} is no whole .npz file ({error}); copy it again") from None
    with archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if reading.dataset is None and {"format", "shape", "data"} <= set(names):
            return _sparse_npz(archive, path, scratch, kind)
        name = (
            reading.dataset
            if reading.dataset in names
            else _choose(_matrices(archive, names), reading.dataset, str(path))
        )
        file, shape, fortran = _npz_member(archive, path, name, scratch)
        return _mapped(Path(file.path), file.dtype, file.offset, shape, fortran, about(path), kind)


def open_array(array: Any, reading: Reading, scratch: Path, kind: str) -> Source:
    """NumPy, SciPy sparse, dask, xarray and Zarr arrays."""
    import zarr
    from scipy.sparse import issparse

    if isinstance(array, zarr.Array | zarr.Group):
        return open_zarr(array, reading, scratch, kind)
    name = type(array).__module__.partition(".")[0]
    what = f"the {name} array"
    is_sparse: bool = issparse(array)
    if is_sparse:
        check_numbers(array.dtype, what)
        n = square_side(array.shape, what)
        rows = array.tocsr(copy=True)
        rows.sum_duplicates()
        provenance = {"source": f"SciPy sparse {array.format} array"}
        return SparseSource(
            rows.indptr, rows.indices, rows.data, n, provenance, absent_value(kind), mirrored=True, local=True
        )
    if (
        (name == "numpy" and not isinstance(array, np.ndarray))
        or not hasattr(array, "shape")
        or not hasattr(array, "dtype")
    ):
        raise InputError(f"a source of type {type(array).__name__} is not known; give a path, a URL or an array")
    ids = None
    if hasattr(array, "coords") and hasattr(array, "dims"):  # xarray: the labels of the first dimension are the names
        first = array.dims[0] if array.dims else None
        ids = [str(x) for x in array.coords[first].values] if first in array.coords else None
        array = array.data if hasattr(array.data, "dask") or isinstance(array.data, np.ndarray) else array
    check_numbers(np.dtype(array.dtype), what)
    n = square_side(array.shape, what)
    provenance = {"source": f"{name} array of {' x '.join(map(str, array.shape))} {array.dtype}"}
    chunks = getattr(array, "chunks", None)
    if len(array.shape) == 1:
        vector: Any = array
        if not isinstance(array, np.ndarray):
            sizes = chunks[0] if chunks else (array.shape[0],)
            vector = FlatFile(*_vector_aside(array, sizes, scratch, np.dtype(array.dtype)))
        return _triangle(vector, n, provenance, kind, ids, what)
    return ArraySource(array, n, provenance, ids, chunks=chunks, local=True)


SUFFIXES = {
    ".npy": "npy", ".npz": "npz", ".mtx": "mtx", ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5", ".zarr": "zarr",
    ".bin": "raw", ".raw": "raw", ".dat": "raw", ".qza": "qza", ".parquet": "parquet", ".pq": "parquet", ".m8": "m8",
    ".lsmat": "lsmat", ".phy": "phylip", ".phylip": "phylip", ".dist": "phylip", ".csv": "csv", ".tsv": "tsv",
    ".txt": "tsv", ".mat": "tsv",
}  # fmt: skip
TEXT = ("lsmat", "csv", "tsv", "phylip", "qza")
PAIRS = ("pairs", "m8", "parquet")
SMALL = 32 << 20
"""What a task takes besides its blocks and its tile: the parts of them that are being checked."""


def import_matrix(
    source: Any,
    store: StoreLike,
    *,
    kind: str,
    reading: Reading | None = None,
    policy: Policy | None = None,
    writing: Writing | None = None,
) -> Matrix:
    """Write a matrix into a new store, with one read of the source, and open it.

    Parameters
    ----------
    source
        A path, the URL of a Zarr array, or a NumPy, SciPy sparse, dask, xarray or Zarr array. What a sparse matrix
        does not list is 0 for similarities and kernels, and a missing pair for distances, whose value
        `policy.missing` must name: a distance of 0 would mean that the objects are equal.
    store
        A path, a URL that Zarr opens, or a Zarr store object.
    kind
        What the numbers are, one of `dasrel.KINDS`. It is never guessed.
    reading, policy, writing
        How the source is read, what is done about its flaws, and how the store is written.

    Cost: every value of the source is read once; text, packed and oddly chunked sources are first put aside as plain
    numbers beside the store. Memory: one tile and its blocks per thread, within `writing.memory`.
    """
    reading, policy, writing = reading or Reading(), policy or Policy(), writing or Writing()
    if writing.part is not None:
        raise InputError("import_matrix makes whole stores; import_part writes a part of one")
    with _importing(source, store, kind, reading, policy, writing) as (writer, opened):
        _write_tiles(writer, opened, kind, policy, writing)
        return writer.finish(checksum=opened.checksum)


def import_part(
    source: Any,
    store: StoreLike,
    *,
    kind: str,
    writing: Writing,
    reading: Reading | None = None,
    policy: Policy | None = None,
) -> PartDone:
    """Write the tiles of `writing.part` only, beside other processes that write the others; see `dasrel.parts`.

    The source must be one that gives any block at once (npy, raw, npz that is not packed, and HDF5 and Zarr whose
    chunks fit the tiles): what must first be put aside as a whole would be put aside by every part.

    Cost: every value of the part is read once. Memory as in `import_matrix`.
    """
    reading, policy = reading or Reading(), policy or Policy()
    check_part(writing)
    with _importing(source, store, kind, reading, policy, writing) as (writer, opened):
        return write_part(writer, lambda: _write_tiles(writer, opened, kind, policy, writing))


@contextlib.contextmanager
def _importing(
    source: Any, store: StoreLike, kind: str, reading: Reading, policy: Policy, writing: Writing
) -> Iterator[tuple[Writer, Source]]:
    """The source opened and the store begun. A source that cannot be used leaves no store behind."""
    check_kind(kind, policy)
    with claimed(store, writing), _scratch(source, store, reading, writing) as scratch:
        if writing.part is not None:
            _refuse_streams(source, reading)
        try:
            opened = open_source(source, scratch, kind=kind, reading=reading, policy=policy)
        except limits.Terminated:
            raise Stopped(
                "stopped by SIGTERM while the source was read",
                remedy="run the same again with {resume=True} to go on",
            ) from None
        try:
            names = text_stream.given_ids(reading)
            opened, writing = _fitted(opened, writing, scratch)
            if writing.part is not None and any(scratch.iterdir()):
                raise InputError(f"{_named_source(source)} is packed and {_NO_PARTS}", remedy=_ONE_PROCESS)
            writer = begin_store(
                store,
                n_objects=opened.n_objects,
                kind=kind,
                ids=opened.ids if names is None else names,
                policy=policy,
                writing=writing,
                provenance=opened.provenance,
            )
            try:
                yield writer, opened
            except (InputError, MemoryLimitError):
                writer.abandon()  # so that it can be tried again with another policy
                raise
        finally:
            opened.close()


_NO_PARTS = "must be read as a whole, so it cannot be imported in parts"
_ONE_PROCESS = "import it in one process, without {Writing.part}"


def _refuse_streams(source: Any, reading: Reading) -> None:
    """Refuse for a part what is read from front to back."""
    if isinstance(source, str | os.PathLike) and os.path.exists(source):
        name = detect(Path(source), reading)
        if name in (*TEXT, *PAIRS, "mtx"):
            raise InputError(f"{named(source)} ({name}) {_NO_PARTS}", remedy=_ONE_PROCESS)


def _named_source(source: Any) -> str:
    return named(source) if isinstance(source, str | os.PathLike) else f"the {type(source).__name__}"


def open_source(source: Any, scratch: Path, *, kind: str, reading: Reading, policy: Policy) -> Source:
    """The source as something that gives any block of the matrix.

    Cost: nothing for what can be read in blocks; else one read of the source, put aside in `scratch`.
    """
    if not isinstance(source, str | os.PathLike):
        return open_array(source, reading, scratch, kind)
    if "://" in str(source):
        return array_files.open_zarr(str(source), reading, scratch, kind)
    path = Path(source)
    try:
        name = detect(path, reading)
        return _opened(path, name, replace(reading, format=name), scratch, kind, policy)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        wrong = named(error.filename or path)
        raise InputError(f"cannot read {wrong}: {error.strerror}; check the name and the permissions") from None


def detect(path: Path, reading: Reading) -> str:
    """The name of the format: as asked, by the first bytes, by the suffix, or by the look of the text."""
    if reading.format is not None:
        if reading.format not in FORMATS:
            raise InputError(f"no format {shown(reading.format)}; there are: {', '.join(FORMATS)}")
        return reading.format
    if path.is_dir():
        return "zarr"
    with open(path, "rb") as file:
        head = file.read(16)
    if not head:
        raise InputError(f"{named(path)} is empty (0 bytes)")
    if head[:2] == b"\x1f\x8b":
        with gzip.open(path) as unpacked, contextlib.suppress(EOFError, gzip.BadGzipFile):
            head = unpacked.read(16)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    by_suffix = SUFFIXES.get(suffixes[-1]) if suffixes else None
    magic = {b"\x93NUMPY": "npy", b"\x89HDF": "hdf5", b"%%Matrix": "mtx", b"PAR1": "parquet"}
    for begin, name in magic.items():
        if head.startswith(begin):
            return name
    if head.startswith(b"PK"):
        return "qza" if by_suffix == "qza" else "npz"
    if reading.shape is not None and reading.dtype is not None:
        return "raw"
    if by_suffix in ("npy", "npz", "hdf5", "mtx", "parquet", "qza", "zarr"):
        told = FORMATS[str(by_suffix)].partition(":")[0]
        raise InputError(f"{named(path)} has the suffix of a {told} file, but not its first bytes; is it damaged?")
    if by_suffix in ("raw", "m8", "phylip", "lsmat"):
        return str(by_suffix)
    from dasrel.io import text_stream

    name_or_none = text_stream.sniff(path) or by_suffix
    if name_or_none is None:
        raise InputError(
            f"the format of {named(path)} cannot be told",
            remedy=f"say {{Reading.format=NAME}}, one of: {', '.join(FORMATS)}",
        )
    return name_or_none


def _opened(path: Path, name: str, reading: Reading, scratch: Path, kind: str, policy: Policy) -> Source:
    openers: dict[str, Callable[[Path, Reading, Path, str], Source]] = {
        "npy": array_files.open_npy,
        "npz": open_npz,
        "raw": array_files.open_raw,
        "mtx": triplets.open_mtx,
        "hdf5": array_files.open_hdf5,
        "zarr": array_files.open_zarr,
    }
    if name == "condensed":
        with open(path, "rb") as file:
            head = file.read(6)
        inner = "npy" if head == b"\x93NUMPY" else "npz" if head.startswith(b"PK") else "raw"
        source = openers[inner](path, reading, scratch, kind)
        if not isinstance(source, TriangleSource):
            raise InputError(
                f"{named(path)} is no condensed vector: it holds a full matrix", remedy="leave {Reading.format} out"
            )
        return source
    if name in TEXT:
        from dasrel.io import pair_list, text_matrix

        return text_matrix.open_text(path, reading, scratch, kind)
    if name in PAIRS:
        from dasrel.io import pair_list, text_matrix

        return pair_list.open_pairs(path, reading, scratch, kind, policy)
    return openers[name](path, reading, scratch, kind)


def _fitted(source: Source, writing: Writing, scratch: Path) -> tuple[Source, Writing]:
    """Make tiles and the source's own chunks fit, so that no chunk is decoded or computed more than once."""
    writing, tile, grain = fitting(source, writing)
    if grain is None:
        return source, writing
    assert isinstance(source, ArraySource)
    if writing.part is not None:
        told = f"chunks of {grain}" if grain else "chunks that are not square"
        raise InputError(
            f"{shown(source.provenance['source'], limit=400)} has {told}, which do not fit tiles of {tile}, and so"
            f" {_NO_PARTS}",
            remedy=_ONE_PROCESS + ", or choose a {Writing.tile} that is a multiple of the chunks",
        )
    return source.put_aside(scratch), writing


def fitting(source: Source, writing: Writing) -> tuple[Writing, int, int | None]:
    """Tiles as the source's own chunks would have them, their side, and the side of the chunks if they do not fit."""
    n, dtype = source.n_objects, np.dtype(writing.dtype)
    grain = source.grain() if isinstance(source, ArraySource) else None
    largest = default_tile(1 << 30, dtype)
    if grain is not None and writing.tile is None and 0 < grain <= largest and grain < n:
        wanted = default_tile(n, dtype)
        writing = replace(writing, tile=grain * max(1, min(round(wanted / grain), largest // grain)))
    tile = default_tile(n, dtype) if writing.tile is None else writing.tile
    fits = grain is None or (grain and (tile % grain == 0 or (grain >= n and tile >= n)))
    return writing, tile, None if fits else grain


@dataclass(frozen=True)
class _ImportTile:
    """Reads, checks and writes one tile. It travels to a worker, so it carries no names: they are read if needed."""

    source: Source
    files: TileFiles
    kind: str
    policy: Policy
    spare: list[Array] = field(default_factory=list)
    """Tiles that have been written; their memory is used again. Not on a worker, where every task is an object of its
    own that lives as long as the import."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _ImportTile, (self.source, self.files, self.kind, self.policy)

    def __call__(self, place: tuple[int, int]) -> None:
        i, j = place
        rows, columns = self.files.layout.span(i), self.files.layout.span(j)
        upper = self.source.block(rows, columns)
        lower = self.source.block(columns, rows) if self.source.mirrored and i != j else None
        tile, record = checks.check_tile(
            upper,
            lower,
            place=(rows.start, columns.start),
            kind=self.kind,
            dtype=self.files.layout.dtype,
            policy=self.policy,
            ids=StoredNames(self.files.store, self.files.layout.n_objects),
            out=self._spare_tile(),
        )
        if not (record.is_untouched and upper.dtype == tile.dtype):  # else the tile's checksum says it all
            record.source_checksum = float(block_checksum(upper, 0 if lower is None else block_checksum(lower, 0)))
        self.files.write(i, j, tile, record)
        if self.files.mapped and not parallel.on_worker():  # it is on its way to the disk, nobody looks at it any more
            self.spare.append(tile)

    def _spare_tile(self) -> Array | None:
        try:
            return self.spare.pop()
        except IndexError:
            return None


def _write_tiles(writer: Writer, source: Source, kind: str, policy: Policy, writing: Writing) -> None:
    layout, local = writer.layout, getattr(source, "local", True)
    there = not local and parallel.active_client() is not None
    with limits.limited(writing.time_limit):
        parallel.run(
            _ImportTile(source, writer.files, kind, policy),
            writer.missing(),
            label="import",
            bytes_each=layout.tile_bytes,
            task_memory=task_memory(source, layout, writer.files.mapped, on_worker=there),
            memory=writing.memory,
            local=local,
            goes_on=writer.goes_on,
        )


def task_memory(source: Source, layout: Layout, mapped: bool, *, on_worker: bool = False) -> int:
    """Bytes that the task of one tile takes, here or on the worker of a cluster."""
    side = min(layout.tile, layout.n_objects)
    block = source.block_memory(side, side)
    if on_worker and not block:
        block = side * side * 8  # a view of a mapped file here is a copy there
    blocks = block * (2 if source.mirrored and layout.n_blocks > 1 else 1)
    copies = 1 if mapped else 3  # what is not written as it is, Zarr encodes
    padded = 1 if layout.n_objects % layout.tile else 0
    return blocks + layout.tile_bytes * (copies + padded) + SMALL


def block_checksum(block: Array, start: int) -> int:
    """The crc32c of a block's bytes, row by row (column by column where those lie together), without a copy."""
    if block.strides[1] != block.itemsize and block.strides[0] == block.itemsize:
        block = block.T
    if block.strides[1] != block.itemsize:
        block = np.ascontiguousarray(block)
    if block.flags.c_contiguous:
        return crc32c(block, start)
    for row in block:
        start = crc32c(row, start)
    return start


@contextlib.contextmanager
def _scratch(source: Any, store: StoreLike, reading: Reading, writing: Writing) -> Iterator[Path]:
    """A folder for what must be put aside: beside a local store, so that a killed import finds it again.

    A store that may not be touched is refused first.
    """
    check_target(store, writing)
    target = local_path(store)
    if target is None or writing.part is not None:  # a part puts nothing aside
        with tempfile.TemporaryDirectory(prefix="dasrel-") as folder:
            yield Path(folder)
        return
    target = Path(lasting(target))
    folder_path = target.with_name(f".{target.name}.scratch")
    stamp: dict[str, Any] = {"source": None, "format": reading.format, "dataset": reading.dataset}
    if isinstance(source, str | os.PathLike) and os.path.exists(source):
        found = os.stat(source)
        stamp |= {"source": str(source), "size": found.st_size, "modified": found.st_mtime_ns}
    marker = folder_path / "source.json"
    try:
        same = writing.resume and stamp["source"] is not None and json.loads(marker.read_text()) == stamp
    except (OSError, ValueError):
        same = False
    if not same:
        shutil.rmtree(folder_path, ignore_errors=True)
        folder_path.mkdir(parents=True)  # errors of the disk are translated by `claimed`
        marker.write_text(json.dumps(stamp))
    remove_temporary_files(folder_path)
    try:
        yield folder_path
    except (KeyboardInterrupt, StoreError, Stopped):
        raise  # the import can go on from here with --resume
    except BaseException as error:
        if not full_disk(error):  # then, too, it can go on
            shutil.rmtree(folder_path, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder_path, ignore_errors=True)


def estimate_import(
    source: Any,
    store: StoreLike,
    *,
    kind: str,
    reading: Reading | None = None,
    policy: Policy | None = None,
    writing: Writing | None = None,
) -> Cost:
    """What `import_matrix` would do with the same arguments. Cost: the source's header."""
    reading, policy, writing = reading or Reading(), policy or Policy(), writing or Writing()
    check_kind(kind, policy)
    check_target(store, writing)
    name, n, opened, both = _looked_at(source, reading, policy, kind)
    names = given_ids(reading)
    if names is not None and n is not None and len(names) != n:
        raise InputError(f"{count_text(len(names), 'id')} for {count_text(n, 'object')}; give one id per row")
    aside = opened is None
    if opened is not None:
        writing, _, misfit = fitting(opened, writing)
        aside = misfit is not None
    size = os.path.getsize(source) if isinstance(source, str | os.PathLike) and os.path.isfile(source) else None
    facts: dict[str, Any] = {"source": str(source), "format": name}
    if size is not None:
        facts["size_bytes"] = size
    if aside:
        facts["first"] = "its numbers are put aside on disk"
    if aside and n is not None:
        facts["put_aside_bytes"] = 8 * n * n
    if n is None:
        return Cost("import", None, Range(0, 0, 0), 0, limits.memory_limit(writing.memory), (), facts)
    layout = _new_layout(n, writing)
    mapped = local_path(store) is not None and writing.compress is None
    if opened is None:
        opened = _Square(n, both)
    task = task_memory(opened, layout, mapped)
    threads = limits.threads_that_fit(task, writing.memory, "import")
    return Cost("import", n, Range(0, 0, 0), 0, threads * task, *new_store_cost(store, layout, kind, facts))


# ---------------------------------------------------------------------------------------------------- what they all use


class _PutAsideError(Exception):
    """A reader wants to write."""


class _NoFolder:
    """Stands for the folder in which readers put things aside."""

    def __truediv__(self, name: str) -> Path:
        raise _PutAsideError


@dataclass(frozen=True)
class _Square:
    """A source that is put aside as float64 numbers before it is used, as far as its memory goes."""

    n_objects: int
    mirrored: bool
    ids: None = None
    checksum: None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def block_memory(self, rows: int, columns: int) -> int:
        return rows * columns * (8 if self.mirrored else 24)


def _looked_at(source: Any, reading: Reading, policy: Policy, kind: str) -> tuple[str, int | None, Any, bool]:
    """Format, number of objects, the source where it can be used as it is, and whether it holds both triangles."""
    name = "array"
    if isinstance(source, str | os.PathLike):
        if "://" in str(source):
            name = "zarr"
        else:
            try:
                name = detect(Path(source), reading)
            except OSError as error:
                raise InputError(
                    f"cannot read {shown(error.filename or source, limit=400)}: {error.strerror};"
                    " check the name and the permissions"
                ) from None
    if name in TEXT:
        from dasrel.io import text_matrix

        n, both = text_matrix.peek(source, replace(reading, format=name), kind)
        return name, n, None, both
    if name in PAIRS:
        return name, None, None, False
    if name == "mtx":
        return name, _mtx_size(Path(source)), None, True
    folder: Any = _NoFolder()
    try:
        opened = open_source(source, folder, kind=kind, reading=reading, policy=policy)
    except _PutAsideError:
        return name, None, None, True
    opened.close()
    return name, opened.n_objects, opened, opened.mirrored


def _mtx_size(path: Path) -> int | None:
    """The first number after the comments of a MatrixMarket file; what is wrong with it the import will say."""
    with open(path, "rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else open(path, "rb") as file:
        for line in file:
            words = line.split()
            if words and not line.startswith(b"%"):
                return int(words[0]) if words[0].isdigit() else None
    return None


def _new_layout(n: int, writing: Writing) -> Layout:
    dtype = np.dtype(writing.dtype)
    return Layout(n, default_tile(n, dtype) if writing.tile is None else writing.tile, dtype)
