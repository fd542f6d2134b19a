"""Arrays used directly, without a store: NumPy, memory-mapped, Zarr and dask arrays, condensed vectors, data frames."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.kernels import checks, native
from dasrel.kernels.checks import TileStatistics, audit_of
from dasrel.kernels.condensed import CondensedSquare, check_condensed, square_side
from dasrel.names import KINDS, explain_kinds, is_similarity
from dasrel.store.layout import Layout, TileIndex
from dasrel.store.matrix import Matrix, dense_array, fingerprint_of, identity_of, matrix_card, open_matrix
from dasrel.store.options import Policy
from dasrel.store.tile_files import checked_ids, default_tile
from dasrel.util import Array, Names, parallel
from dasrel.util.files import crc32c
from dasrel.util.labelled import labelled
from dasrel.util.text import count_text


@dataclass(frozen=True)
class ArrayTiles:
    """An array cut into tiles."""

    array: Any
    layout: Layout

    mapped = False
    """Tiles are no files of their own."""

    @property
    def local_array(self) -> Any | None:
        """The array, unless it is a Zarr array, which any process can read."""
        from zarr import Array as ZarrArray  # 0.1 s, which stores do not need

        return None if isinstance(self.array, ZarrArray) else self.array

    @property
    def read_memory(self) -> int:
        """Anonymous memory that reading one tile takes, in bytes."""
        plain = isinstance(self.array, np.ndarray) and self.array.dtype == self.layout.dtype
        return 0 if plain and native.in_rows(self.array) else 2 * self.layout.tile_bytes

    def read_checked(self, i: int, j: int) -> Array:
        """Read tile (i, j), i <= j; in rows, for the last bits of products depend on the order in memory."""
        tile = np.asarray(self.block(i, j), dtype=self.layout.dtype)
        return tile if native.in_rows(tile) else np.ascontiguousarray(tile)

    def block(self, i: int, j: int) -> Array:
        """Read the values of strip i against strip j unchanged, i and j in any order."""
        part = self.array[self.layout.span(i), self.layout.span(j)]
        return np.asarray(part.compute() if hasattr(part, "compute") else part)


class ArrayMatrix:
    """An array with the same interface as a store's `Matrix`. Get one with `as_matrix`."""

    def __init__(self, array: Any, kind: str, ids: Names | None = None, tile: int | None = None) -> None:
        if kind not in KINDS:
            raise InputError(f"kind must be one of the four ({explain_kinds()}), not {kind!r}")
        if len(array.shape) == 1:
            n = square_side(array.shape, "the vector")
            check_condensed(kind, "this")
            array = CondensedSquare(np.asarray(array), n)
        if len(array.shape) != 2 or array.shape[0] != array.shape[1]:
            raise InputError(f"the array has shape {tuple(array.shape)}", remedy="give a square one, of all pairs")
        if array.dtype.kind not in "fiub":
            raise InputError(f"values are of type {array.dtype}", remedy="give numbers")
        self.kind = kind
        self.n_objects = int(array.shape[0])
        self.dtype = np.dtype("float32" if array.dtype in (np.float32, np.float16) else "float64")
        self.ids = checked_ids(ids, self.n_objects)
        self.tile = tile or default_tile(self.n_objects, self.dtype)
        self.layout = Layout(self.n_objects, self.tile, self.dtype)
        self.files = ArrayTiles(array, self.layout)
        self.store = None
        self._records: list[TileStatistics] = []
        self.audit, self.diagonal = self._check()

    def __repr__(self) -> str:
        return f"<ArrayMatrix: {count_text(self.n_objects, 'object')}, kind {self.kind}>"

    def _repr_html_(self) -> str:
        return matrix_card(self, "Matrix (an array, not a store)", [])

    @property
    def shape(self) -> tuple[int, int]:
        """(n_objects, n_objects)."""
        return self.n_objects, self.n_objects

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return dense_array(self, dtype, copy)

    def check_unchanged(self) -> None:
        """Do nothing: an array in memory is the caller's own."""

    def records(self) -> Array:
        """Return the statistics of every tile of the upper triangle in order, with their checksums."""
        return np.array([record.to_row() for record in self._records])

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must find again, as `Matrix.identity`."""
        return identity_of(self)

    def fingerprint(self) -> dict[str, Any]:
        """Return what stores of the same values have too, as `Matrix.fingerprint`."""
        return fingerprint_of(self)

    def _check(self) -> tuple[dict[str, Any], Array | None]:
        """Check the array as an import does, without repairs: one read of the array, both triangles."""
        similar = is_similarity(self.kind)
        diagonal = np.empty(self.n_objects) if similar else None

        def check(index: TileIndex) -> TileStatistics:
            i, j = index
            start = self.layout.span(i).start, self.layout.span(j).start
            upper = self.files.block(i, j)
            lower = self.files.block(j, i) if i != j else None
            try:
                tile, record = checks.check_tile(
                    upper, lower, place=start, kind=self.kind, dtype=self.dtype, policy=Policy(), ids=self.ids
                )  # fmt: skip
            except InputError as error:
                remedy = f"`dasrel.import_matrix` can repair and record it: {error.remedy}"
                raise InputError(error.problem, where=error.where, remedy=remedy) from None
            if i == j and diagonal is not None:
                diagonal[self.layout.span(i)] = np.diagonal(tile)
            record.source_checksum = float(crc32c(np.ascontiguousarray(tile)))
            return record

        total = TileStatistics()
        self._records = parallel.run(
            check, self.layout.tiles(), label="check", bytes_each=self.layout.tile_bytes, local=True
        )
        for record in self._records:
            total = total.merged(record)
        return audit_of(total, self.ids), diagonal


def as_matrix(matrix: Any, *, kind: str | None = None, ids: Names | None = None) -> Matrix | ArrayMatrix:
    """Open anything that can be scanned: an open matrix, a store's path or URL, or an array with its kind.

    An array may be square or a condensed vector. A data frame, an xarray array and a scikit-bio matrix have the names
    of their objects, which `ids` replaces.

    Cost: none for a store. An array is read once to check it as an import would: symmetric, finite, zero diagonal.
    """
    if isinstance(matrix, (Matrix, ArrayMatrix)):
        if kind is not None and kind != matrix.kind:
            raise InputError(f"the matrix is of kind {matrix.kind}, not {kind}", remedy="leave {kind} out")
        if ids is not None:
            raise InputError("an open matrix knows the ids of its objects", remedy="leave {ids} out")
        return matrix
    if isinstance(matrix, (str, os.PathLike)):
        return as_matrix(open_matrix(matrix), kind=kind, ids=ids)
    if kind is None:
        raise InputError(
            "an array does not tell its kind", remedy=f"say what its numbers are, {{kind=KIND}}: {explain_kinds()}"
        )
    named = labelled(matrix)
    if named is not None:
        matrix, ids = named.values, named.ids() if ids is None else ids
    array = matrix if hasattr(matrix, "shape") and hasattr(matrix, "dtype") else np.asarray(matrix)
    if hasattr(array, "toarray") or hasattr(array, "tocsr"):
        raise InputError(
            "a sparse matrix cannot be scanned directly", remedy="`dasrel.import_matrix` makes a store of it"
        )
    return ArrayMatrix(array, kind, ids)
