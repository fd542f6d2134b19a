"""Stores of objects whose storage loses or cuts what is put from some moment on: `resume` makes them whole.

The storage is a dictionary behind fsspec, so that every put of a command can be the first that fails.
"""

from collections.abc import Iterator
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

import dasrel
from dasrel import InputError, Matrix, StoreError, Writing
from dasrel.store.matrix import open_matrix
from tests.helpers.matrices import distances, grouped_points

N, NEW, TILE = 20, 4, 8  # the tiles of the last strip grow
VALUES = distances(grouped_points(N + NEW), dtype="float32")
URL = "failing://m.zarr"


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """Storage that confirms all puts, and from number `first` on does not keep them, or a half of each."""

    protocol = "failing"
    store: dict[str, Any] = {}  # noqa: RUF012 (as its parent has it)
    puts: list[str] = []  # noqa: RUF012
    first: float = np.inf
    cut = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("failing://", "memory://")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        cls = type(self)
        cls.puts.append(path)
        if len(cls.puts) <= cls.first:
            super().pipe_file(path, value, mode, **more)
        elif cls.cut:
            super().pipe_file(path, bytes(value)[: len(value) // 2], mode, **more)

    @classmethod
    def repair(cls, first: float = np.inf) -> None:
        cls.puts.clear()
        cls.first = first


@pytest.fixture
def storage() -> Iterator[type[Failing]]:
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.repair()
    yield Failing
    Failing.store.clear()
    Failing.repair()


def begin(kind: str, compress: Any = None, **more: Any) -> Matrix:
    values = VALUES[:N, :N] if kind == "distance" else 100 - VALUES[:N, :N]
    writing = Writing(tile=TILE, compress=compress, **more)
    return dasrel.import_matrix(values, URL, kind=kind, writing=writing)


def grow(kind: str, rows: Any = None, **more: Any) -> Any:
    given = VALUES[N:] if kind == "distance" else 100 - VALUES[N:]
    return dasrel.append(URL, given if rows is None else rows, ids=[f"new{k}" for k in range(NEW)], **more)


def kept() -> dict[str, bytes]:
    """All objects; their folder may be there or not."""
    return {key: bytes(file.getvalue()) for key, file in Failing.store.items()}


def put_back(objects: dict[str, bytes]) -> None:
    Failing.repair()
    Failing.store.clear()
    Failing().pipe(objects)
    Failing.repair()


CASES = [(kind, compress, cut) for cut in (True, False) for kind, compress in (("kernel", None), ("distance", "lz4"))]


@pytest.mark.parametrize("first", [[0.1], [0.6], [0.99], pytest.param([], marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "compress", "cut"), CASES)
def test_an_import_whose_puts_fail(storage: Any, kind: str, compress: Any, cut: bool, first: list[float]) -> None:
    """From one of its puts on, or from each of them in turn."""
    begin(kind, compress)
    whole, count, storage.cut = kept(), len(storage.puts), cut
    assert not [key for key in whole if "before" in key]
    for k in [int(count * share) for share in first] or range(count):
        put_back({})
        storage.repair(first=k)
        with pytest.raises(StoreError):
            begin(kind, compress)
        storage.repair()
        begin(kind, compress, resume=True)
        assert kept() == whole, k


@pytest.mark.parametrize("first", [[0.4], [0.8], [0.99], pytest.param([], marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "compress", "cut"), CASES)
def test_an_append_whose_puts_fail(storage: Any, kind: str, compress: Any, cut: bool, first: list[float]) -> None:
    begin(kind, compress)
    old = kept()
    storage.repair()
    grow(kind)
    whole, count, storage.cut = kept(), len(storage.puts), cut
    assert not [key for key in whole if "before" in key]
    for k in [int(count * share) for share in first] or range(count):
        put_back(old)
        storage.repair(first=k)
        with pytest.raises(StoreError):
            grow(kind)
        storage.repair()
        grow(kind, resume=True)
        assert kept() == whole, k
    values = VALUES if kind == "distance" else 100 - VALUES
    np.testing.assert_array_equal(open_matrix(URL).rows(open_matrix(URL).ids), values)


def test_an_append_of_bad_rows_leaves_the_store_as_it_was(storage: Any) -> None:
    begin("kernel")
    old = kept()
    with pytest.raises(InputError, match="missing"):
        grow("kernel", np.full((NEW, N + NEW), np.nan))
    assert kept() == old


def test_what_a_damaged_store_says_without_resume(storage: Any) -> None:
    begin("distance")
    count = len(storage.puts)
    put_back({})
    storage.cut = True
    storage.repair(first=count - 1)  # the last put is that of the manifest
    with pytest.raises(StoreError, match=r"does not keep what is written: zarr\.json, 4 times"):
        begin("distance")
    storage.repair()
    with pytest.raises(StoreError, match=r"m\.zarr is unfinished and damaged; say resume=True"):
        begin("distance")
    with pytest.raises(StoreError, match=r"m\.zarr cannot be opened"):
        open_matrix(URL)
    assert begin("distance", resume=True).n_objects == N
