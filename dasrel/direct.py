"""Arrays used directly: a NumPy, memory-mapped, Zarr or dask array that is scanned where it is, without a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray

from dasrel import intake, tasks, workers
from dasrel.errors import InputError, count_text
from dasrel.intake import Policy
from dasrel.record import Record, audit_of
from dasrel.store import Layout, Matrix, open_matrix, rows_of
from dasrel.vocabulary import KINDS, explain_kinds, is_similarity
from dasrel.writer import checked_ids, default_tile

Array = NDArray[Any]


@dataclass(frozen=True)
class ArrayTiles:
    """An array cut into tiles."""

    array: Any
    layout: Layout

    @property
    def travels(self) -> bool:
        """Whether workers can read the tiles themselves: a Zarr array yes, an array in this process no."""
        return isinstance(self.array, zarr.Array)

    @property
    def read_memory(self) -> int:
        """Anonymous memory that reading one tile takes, in bytes."""
        plain = isinstance(self.array, np.ndarray) and self.array.dtype == self.layout.dtype
        return 0 if plain else 2 * self.layout.tile_bytes

    @property
    def memory_on_worker(self) -> int:
        """The same on a worker, to which an array of this process is sent in tiles."""
        return self.read_memory

    def read_checked(self, i: int, j: int) -> Array:
        """Tile (i, j), i <= j."""
        return np.asarray(self.block(i, j), dtype=self.layout.dtype)

    kept_share = 1.0
    """Nothing is read past the operating system's cache."""

    @property
    def in_memory(self) -> bool:
        """Whether no tile has to be waited for."""
        return isinstance(self.array, np.ndarray) and not isinstance(self.array, np.memmap)

    waited_for = False
    """There are no files of tiles that could be read ahead."""

    def scanned(self) -> AbstractContextManager[None]:
        """Nothing to notice."""
        return nullcontext()

    def done(self, i: int, j: int) -> None:
        """Nothing to give back."""

    def block(self, i: int, j: int) -> Array:
        """The values of strip i against strip j as they are, i and j in any order."""
        part = self.array[self.layout.span(i), self.layout.span(j)]
        return np.asarray(part.compute() if hasattr(part, "compute") else part)

    def to_worker(self, client: Any, places: Sequence[tuple[int, int]], worker: str | None) -> Any:
        """A future of these tiles in the memory of a worker, this one if it can be."""
        if self.travels:
            return client.submit(
                workers.hold, self, places, workers=worker, allow_other_workers=worker is not None, pure=False
            )
        if isinstance(self.array, np.ndarray):
            return client.scatter(workers.hold(self, places), workers=worker, hash=False)
        import dask

        parts = [self.array[self.layout.span(i), self.layout.span(j)] for i, j in places]
        held = dask.delayed(_held)(places, self.layout.dtype, parts)
        return client.compute(held, workers=worker, allow_other_workers=worker is not None)


def _held(places: Sequence[tuple[int, int]], dtype: np.dtype[Any], parts: Sequence[Array]) -> workers.Held:
    pairs = zip(places, parts, strict=True)
    return workers.Held({(i, j): np.asarray(part, dtype=dtype) for (i, j), part in pairs})


class DirectMatrix:
    """An array with the same face as a store's `Matrix`. Get one with `as_matrix`."""

    def __init__(self, array: Any, kind: str, ids: intake.Names | None = None, tile: int | None = None) -> None:
        if kind not in KINDS:
            raise InputError(f"kind must be one of the four ({explain_kinds()}), not {kind!r}")
        if len(array.shape) != 2 or array.shape[0] != array.shape[1]:
            raise InputError(f"a pairwise matrix is square; this array has shape {tuple(array.shape)}")
        if array.dtype.kind not in "fiub":
            raise InputError(f"values are of type {array.dtype}; numbers are needed")
        self.kind = kind
        self.n_objects = int(array.shape[0])
        self.dtype = np.dtype("float32" if array.dtype in (np.float32, np.float16) else "float64")
        self.ids = checked_ids(ids, self.n_objects)
        self.tile = tile or default_tile(self.n_objects, self.dtype)
        self.layout = Layout(self.n_objects, self.tile, self.dtype)
        self.files = ArrayTiles(array, self.layout)
        self.pins: dict[str, Any] = {}
        self.store = None
        self._records: list[Record] = []
        self.audit, self.diagonal = self._check()

    def __repr__(self) -> str:
        return f"<DirectMatrix: {count_text(self.n_objects, 'object')}, kind {self.kind}>"

    @property
    def shape(self) -> tuple[int, int]:
        """(n_objects, n_objects)."""
        return self.n_objects, self.n_objects

    def rows_at(self, where: Array) -> Array:
        """The rows of the objects at these positions: (number of positions, n)."""
        return rows_of(self.files, self.layout, where)

    def records(self) -> Array:
        """The statistics of every tile of the upper triangle in order, their checksums included."""
        return np.array([record.to_row() for record in self._records])

    def _check(self) -> tuple[dict[str, Any], Array | None]:
        """The same questions that an import asks, with no repair: one read of the array, both triangles."""
        similar = is_similarity(self.kind)
        diagonal = np.empty(self.n_objects) if similar else None

        def check(place: tuple[int, int]) -> Record:
            i, j = place
            start = self.layout.span(i).start, self.layout.span(j).start
            upper = self.files.block(i, j)
            lower = self.files.block(j, i) if i != j else None
            try:
                tile, record = intake.check_tile(
                    upper, lower, place=start, kind=self.kind, dtype=self.dtype, policy=Policy(), ids=self.ids
                )  # fmt: skip
            except InputError as error:
                told = str(error).split("; say --")[0].replace("--kind ", "kind=")
                raise InputError(f"{told}; `dasrel.import_matrix` has policies that repair and record it") from None
            if i == j and diagonal is not None:
                diagonal[self.layout.span(i)] = np.diagonal(tile)
            flat = np.ascontiguousarray(tile).reshape(-1).view(np.uint8)
            flat.flags.writeable = False  # the checksum takes read-only bytes only
            record.source_checksum = float(google_crc32c.value(flat))
            return record

        total = Record()
        self._records = tasks.run(
            check, self.layout.tiles(), label="check", bytes_each=self.layout.tile_bytes, local=True
        )
        for record in self._records:
            total = total.merged(record)
        return audit_of(total, self.ids), diagonal


def as_matrix(matrix: Any, *, kind: str | None = None, ids: intake.Names | None = None) -> Matrix | DirectMatrix:
    """Anything that can be scanned: an open matrix, a store's path or URL, or an array with its kind.

    Cost: none for a store. An array is read once to check it as an import would: symmetric, finite, zero diagonal.
    """
    if isinstance(matrix, (Matrix, DirectMatrix)):
        if kind is not None and kind != matrix.kind:
            raise InputError(f"the matrix is of kind {matrix.kind}; kind={kind!r} cannot change that")
        return matrix
    if isinstance(matrix, (str, os.PathLike)):
        return as_matrix(open_matrix(matrix), kind=kind)
    if kind is None:
        raise InputError(f"say what the array's numbers are, kind=... ({explain_kinds()})")
    array = matrix if hasattr(matrix, "shape") and hasattr(matrix, "dtype") else np.asarray(matrix)
    if hasattr(array, "toarray") or hasattr(array, "tocsr"):
        raise InputError("a sparse matrix cannot be scanned directly; `dasrel.import_matrix` makes a store of it")
    return DirectMatrix(array, kind, ids)
