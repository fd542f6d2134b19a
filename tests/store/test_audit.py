"""The audit of a store: what it says, and that a verification finds every kind of damage."""

import json
import shutil
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr

from dasrel.errors import MemoryLimitError, StoreError
from dasrel.kernels.checks import check_tile
from dasrel.store.audit import audit_lines, audit_store
from dasrel.store.options import Policy, Writing
from dasrel.store.writer import Writer
from dasrel.util.progress import watch
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.stores import create_store, resealed

N, TILE = 70, 20  # 4 tiles a side, the last one padded
PLACES = [(i, j) for i in range(4) for j in range(i, 4)]


def put(writer: Writer, matrix: np.ndarray, tiles: list[tuple[int, int]], policy: Policy) -> None:
    for i, j in tiles:
        rows, columns = writer.layout.span(i), writer.layout.span(j)
        tile, record = check_tile(
            matrix[rows, columns],
            matrix[columns, rows].copy(),
            place=(rows.start, columns.start),
            kind=writer.manifest["kind"],
            dtype=writer.layout.dtype,
            policy=policy,
            ids=writer.ids,
        )
        writer.files.write(i, j, tile, record)


def make(path: Path, matrix: np.ndarray, *, kind: str = "distance", compress: Any = None, **policy: Any) -> Path:
    writer = create_store(
        path,
        n_objects=len(matrix),
        kind=kind,
        policy=Policy(**policy),
        writing=Writing(tile=TILE, compress=compress),
        provenance={"source": "made here"},
    )
    put(writer, matrix, writer.missing(), Policy(**policy))
    writer.finish()
    return path


def test_says_what_numpy_says_of_the_same_matrix(tmp_path: Path) -> None:
    matrix = distances(uniform_points(N))
    matrix[3, 40] = matrix[40, 3] = 0
    matrix[10, 60] += 0.25
    store = make(tmp_path / "d.zarr", matrix, symmetrize="max")
    audit = audit_store(store)

    pairs = np.maximum(matrix, matrix.T)[np.triu_indices(N, 1)].astype(np.float32)
    assert (audit["state"], audit["n_objects"], audit["kind"], audit["tile"]) == ("complete", N, "distance", TILE)
    assert audit["pairs"] == N * (N - 1) // 2
    assert (audit["minimum"], audit["maximum"]) == (float(pairs.min()), float(pairs.max()))
    assert audit["mean"] == pytest.approx(pairs.mean(dtype=np.float64), rel=1e-12)
    assert audit["zeros"] == {"count": 1, "examples": [["3", "40"]]}
    assert audit["asymmetry"]["largest"] == pytest.approx(0.25)
    assert audit["asymmetry"]["where"] == ["10", "60"]
    assert audit["input"]["symmetrize"] == "max"
    assert audit["provenance"]["source"] == "made here"
    assert (audit["tiles"], audit["tiles_written"]) == (10, 10)
    assert audit["bytes_per_scan"] == 10 * TILE * TILE * 4
    assert audit["bytes_on_disk"] == sum(p.stat().st_size for p in store.rglob("*") if p.is_file())
    json.dumps(audit, allow_nan=False)  # plain values only


def test_an_unfinished_store_says_how_far_it_is(tmp_path: Path) -> None:
    writer = create_store(tmp_path / "d.zarr", n_objects=N, kind="distance", writing=Writing(tile=TILE))
    put(writer, distances(uniform_points(N)), PLACES[:3], Policy())
    audit = audit_store(tmp_path / "d.zarr")
    assert audit["state"] == "writing"
    assert (audit["tiles"], audit["tiles_written"]) == (10, 3)
    assert audit["mean"] is None
    assert ("tiles", "3 of 10, 20 objects a side, float32") in audit_lines(audit)
    with pytest.raises(StoreError, match=r"unfinished.*resume=True"):
        audit_store(tmp_path / "d.zarr", verify=True)


@pytest.mark.parametrize("compress", [None, "lz4"])
@pytest.mark.parametrize("kind", ["distance", "kernel"])
def test_a_sound_store_is_verified_in_one_scan(tmp_path: Path, kind: str, compress: str | None) -> None:
    matrix = distances(uniform_points(N)) if kind == "distance" else uniform_points(N) @ uniform_points(N).T
    store = make(tmp_path / "m.zarr", matrix, kind=kind, compress=compress)
    with watch() as meter:
        audit = audit_store(store, verify=True)
    assert audit["verified"] == {"tiles": 10, "bad": []}
    assert (meter.scans, meter.tiles, meter.bytes) == (1, 10, 10 * TILE * TILE * 4)
    assert audit_lines(audit)[-1] == ("verified", "10 tiles read, no faults")


def test_an_audit_without_verification_reads_no_tile(tmp_path: Path) -> None:
    store = make(tmp_path / "d.zarr", distances(uniform_points(N)))
    shutil.rmtree(store / "values" / "c")
    with watch() as meter:
        assert audit_store(store)["state"] == "complete"
    assert (meter.scans, meter.tiles) == (0, 0)


def reseal(file: Path, tile: np.ndarray) -> None:
    """Write a tile with a right checksum: damage that only the values show."""
    data = tile.astype(np.float32).tobytes()
    file.write_bytes(data + google_crc32c.value(data).to_bytes(4, "little"))


def tile_of(file: Path) -> np.ndarray:
    return np.frombuffer(file.read_bytes()[:-4], dtype=np.float32).reshape(TILE, TILE).copy()


@pytest.mark.parametrize("fitting", [False, True])
def test_every_kind_of_damage_is_found_in_one_go(tmp_path: Path, fitting: bool) -> None:
    store = make(tmp_path / "d.zarr", distances(uniform_points(N)))
    values = store / "values" / "c"
    (values / "0" / "1").unlink()
    (values / "0" / "2").write_bytes((values / "0" / "2").read_bytes()[:-1])
    whole = bytearray((values / "0" / "3").read_bytes())
    whole[77] ^= 1
    (values / "0" / "3").write_bytes(whole)
    tile = tile_of(values / "1" / "2")
    tile[4, 5] = np.nan
    reseal(values / "1" / "2", tile)
    tile = tile_of(values / "1" / "3")
    tile[4, 5] = 99
    reseal(values / "1" / "3", tile)
    tile = tile_of(values / "2" / "2")
    tile[7, 7] = 0.5
    reseal(values / "2" / "2", tile)
    tile = tile_of(values / "1" / "1")
    tile[3, 8] = tile[3, 9]
    reseal(values / "1" / "1", tile)
    if fitting:
        resealed(store)

    bad = {tuple(fault["tile"]): fault for fault in audit_store(store, verify=True)["verified"]["bad"]}
    assert list(bad) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 2)]
    assert bad[0, 1]["problem"] == "the tile is missing"
    assert bad[0, 2]["problem"] == "the tile has 1,603 bytes instead of 1,604"
    assert bad[0, 3]["problem"].startswith("the tile is corrupt (checksum ")
    if fitting:
        assert bad[1, 1]["problem"] == "1 pair of a tile on the diagonal with another value in each half"
        assert bad[1, 2]["problem"] == "1 value is NaN"
        assert "to 99, recorded was" in bad[1, 3]["problem"]
        assert bad[2, 2]["problem"] == "1 value of the diagonal not as recorded, the first is 0.5"
    else:
        for tile in ((1, 1), (1, 2), (1, 3), (2, 2)):
            assert bad[tile]["problem"].startswith("the tile is not the one that was written here (checksum ")
    assert bad[0, 3]["file"] == str(values / "0" / "3")
    assert bad[0, 3]["objects"] == [[0, 19], [60, 69]]


def test_a_diagonal_of_self_similarities_is_compared(tmp_path: Path) -> None:
    store = make(tmp_path / "k.zarr", uniform_points(N) @ uniform_points(N).T, kind="kernel")
    group = zarr.open_group(str(store), mode="r+")
    group["diagonal"][25] = 17.0  # type: ignore[index]
    resealed(store)
    [fault] = audit_store(store, verify=True)["verified"]["bad"]
    assert fault["tile"] == [1, 1]
    assert "1 value of the diagonal" in fault["problem"]


def test_compressed_tiles_are_checked_through_zarr(tmp_path: Path) -> None:
    store = make(tmp_path / "d.zarr", distances(uniform_points(N)), compress="lz4")
    file = store / "values" / "c" / "1" / "2"
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    (store / "values" / "c" / "2" / "3").unlink()
    bad = audit_store(store, verify=True)["verified"]["bad"]
    assert [fault["tile"] for fault in bad] == [[1, 2], [2, 3]]
    assert bad[0]["problem"].startswith("the tile cannot be read (")
    assert bad[1]["problem"] == "the tile is missing"


def test_damaged_names_are_a_fault_of_the_store(tmp_path: Path) -> None:
    store = make(tmp_path / "d.zarr", distances(uniform_points(N)))
    (store / "ids" / "c" / "0").write_bytes(b"no longer what it was")
    [fault] = audit_store(store, verify=True)["verified"]["bad"]
    assert fault["tile"] is None
    assert fault["problem"].startswith(f"ids of {store} cannot be read")


@pytest.mark.parametrize("n", [2, 20, 21])
def test_small_stores(tmp_path: Path, n: int) -> None:
    audit = audit_store(make(tmp_path / "d.zarr", distances(uniform_points(n))), verify=True)
    assert audit["verified"]["bad"] == []
    assert audit["pairs"] == n * (n - 1) // 2


def test_too_little_memory_is_refused_before_a_tile_is_read(tmp_path: Path) -> None:
    store = make(tmp_path / "d.zarr", distances(uniform_points(N)))
    with watch() as meter, pytest.raises(MemoryLimitError, match="verify needs"):
        audit_store(store, verify=True, memory="1 kB")
    assert meter.tiles == 0


def test_names_from_data_are_escaped(tmp_path: Path) -> None:
    names = ["a\x1b[31m", "b\nc", *"defgh"]
    matrix = np.ones((7, 7)) - np.eye(7)
    matrix[0, 1] = matrix[1, 0] = 0
    writer = create_store(tmp_path / "d.zarr", n_objects=7, kind="distance", ids=names, writing=Writing(tile=TILE))
    put(writer, matrix, writer.missing(), Policy())
    writer.finish()
    audit = audit_store(tmp_path / "d.zarr")
    assert audit["zeros"]["examples"] == [["a\x1b[31m", "b\nc"]]
    text = "".join(text for _, text in audit_lines(audit))
    assert r"such as a\x1b[31m and b\nc" in text
    assert text.isprintable()


def test_a_cluster_finds_the_same(tmp_path: Path) -> None:
    from distributed import Client

    store = make(tmp_path / "d.zarr", distances(uniform_points(N)))
    (store / "values" / "c" / "0" / "1").unlink()
    here = audit_store(store, verify=True)
    with Client(n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0"), watch() as meter:
        there = audit_store(store, verify=True)
    assert there == here
    assert [fault["tile"] for fault in there["verified"]["bad"]] == [[0, 1]]
    assert (meter.scans, meter.tiles) == (1, 10)


def test_audit_with_the_spectrum_tells_whether_it_is_euclidean(tmp_path, capsys):
    from dasrel.cli.app import run
    from dasrel.io.importing import import_matrix

    points = np.random.default_rng(0).normal(size=(40, 3))
    gaps = np.abs(points[:, None] - points[None, :])
    import_matrix(np.sqrt((gaps**2).sum(axis=2)), tmp_path / "flat.zarr", kind="distance")
    import_matrix(gaps.max(axis=2), tmp_path / "sup.zarr", kind="distance")
    for name, answer in (("flat", True), ("sup", False)):
        assert run(["audit", str(tmp_path / f"{name}.zarr"), "--spectrum", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["spectrum"]["is_euclidean"] is answer
