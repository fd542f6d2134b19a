"""A store cannot lie: exchanged tiles, other ids, another store in its place and edited metadata are refused."""

import contextlib
import json
import os
import pickle
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numcodecs.abc
import numcodecs.pickles
import numpy as np
import pytest
import zarr
from numcodecs import zstd
from scipy.spatial.distance import cdist

import dasrel
from dasrel.cli import app
from dasrel.engine.readahead import tile_cache
from dasrel.engine.scan import scan
from dasrel.errors import InputError, StoreError
from dasrel.io.append import append
from dasrel.store.audit import audit_store
from dasrel.store.matrix import sealed
from tests.helpers.matrices import distances, uniform_points
from tests.helpers.scans import reduction
from tests.helpers.stores import resealed, stored, whole

N, TILE = 70, 20  # 4 tiles a side, the last one padded
VALUES = distances(uniform_points(N))
OTHER = distances(uniform_points(N, 3, seed=77))
WRITTEN = "the tile is not the one that was written here"


@pytest.fixture(params=[None, "lz4"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    stored(tmp_path / "s.zarr", VALUES, tile=TILE, dtype="float64", compress=request.param)
    return tmp_path / "s.zarr"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    stored(tmp_path / "s.zarr", VALUES, tile=TILE, dtype="float64")
    return tmp_path / "s.zarr"


def total(tile: Any, on_diagonal: bool) -> float:
    return float(tile.sum())


def add(first: float, second: float) -> float:
    return first + second


def faults(store: Path) -> list[tuple[Any, str]]:
    return [(fault["tile"], fault["problem"]) for fault in audit_store(store, verify=True)["verified"]["bad"]]


def exchange(store: Path, first: str, second: str) -> None:
    """Exchange two tiles, each with its own checksum."""
    one, other = store / "values" / "c" / first, store / "values" / "c" / second
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def grow(store: Path) -> None:
    """Append five objects."""
    points = uniform_points(N)
    points = np.vstack([points, points[:5] + 0.25])
    append(store, cdist(points[N:], points), ids=[f"new {k}" for k in range(5)])


# --------------------------------------------------------------------------------------------------------------- tiles


def test_exchanged_tiles_are_refused_by_every_reader(store: Path, tmp_path: Path) -> None:
    matrix = dasrel.open_matrix(store)
    exchange(store, "0/1", "0/2")
    for read in (
        lambda: matrix.read_tile(0, 1),
        lambda: matrix.rows(["3"]),
        lambda: np.asarray(matrix),
        lambda: whole(matrix),
        lambda: scan(matrix, [reduction(total, add)]),
        lambda: dasrel.export_matrix(store, tmp_path / "out.npy", format="npy"),
        lambda: dasrel.cluster(store, dasrel.Run("fcm2", 3)),
        lambda: matrix.content_hash(verify=True),
    ):
        with pytest.raises(StoreError, match=WRITTEN) as caught:
            read()
        assert "tile (0, " in str(caught.value)
    assert not (tmp_path / "out.npy").exists()
    assert [(tile, problem.partition(" (")[0]) for tile, problem in faults(store)] == [
        ([0, 1], WRITTEN),
        ([0, 2], WRITTEN),
    ]


def test_a_transposed_tile_with_a_new_checksum_is_refused(plain: Path) -> None:
    file = plain / "values" / "c" / "1" / "2"
    tile = np.frombuffer(file.read_bytes()[:-4]).reshape(TILE, TILE).T.tobytes()
    file.write_bytes(tile + google_crc32c.value(tile).to_bytes(4, "little"))
    with pytest.raises(StoreError, match=rf"{WRITTEN}.*tile \(1, 2\)"):
        scan(dasrel.open_matrix(plain), [reduction(total, add)])
    [(place, problem)] = faults(plain)
    assert place == [1, 2]
    assert problem.startswith(WRITTEN)


def test_tiles_read_past_the_page_cache_are_compared(plain: Path) -> None:
    exchange(plain, "0/1", "0/2")
    matrix = dasrel.open_matrix(plain)
    tile_cache(matrix, page_cache=0)
    with pytest.raises(StoreError, match=WRITTEN):
        scan(matrix, [reduction(total, add)])


def test_workers_compare_tiles(store: Path, client: Any) -> None:
    matrix = dasrel.open_matrix(store)
    exchange(store, "0/1", "0/2")
    with pytest.raises(StoreError, match=WRITTEN):
        scan(matrix, [reduction(total, add)])


def test_tiles_exchanged_between_two_reads_in_a_process(store: Path) -> None:
    matrix = dasrel.open_matrix(store)
    scan(matrix, [reduction(total, add)])
    exchange(store, "0/1", "0/2")
    with pytest.raises(StoreError, match=WRITTEN):
        scan(matrix, [reduction(total, add)])


def test_a_new_store_can_be_verified_completely(store: Path) -> None:
    audit = audit_store(store, verify=True)
    assert audit["verified"]["bad"] == []


def test_nothing_is_appended_to_a_store_with_a_missing_tile(store: Path) -> None:
    (store / "values" / "c" / "0" / "1").unlink()
    with pytest.raises(StoreError, match=r"has 1 tile missing or cut: values/c/0/1"):
        grow(store)
    assert dasrel.open_matrix(store).n_objects == N


@pytest.mark.parametrize("name", ["records", "checksums"])
def test_damaged_records_are_refused(plain: Path, name: str) -> None:
    group = zarr.open_group(plain, mode="r+")
    group[name][0, 1] = group[name][0, 2]  # type: ignore[index]
    with pytest.raises(StoreError, match=name):
        dasrel.open_matrix(plain)
    [(place, problem)] = faults(plain)
    assert place is None
    assert name in problem
    shutil.rmtree(plain / name)
    with pytest.raises(StoreError, match=name):
        dasrel.open_matrix(plain)


# ------------------------------------------------------------------------------------------------------------- replaced


def replaced_by_import(store: Path) -> None:
    stored(store, OTHER, tile=TILE, dtype="float64", force=True)


def summing(change: Callable[[], None]) -> Callable[[Any, bool], float]:
    """Return a function that adds up a tile, and changes the store at the third one."""
    seen: list[bool] = []

    def function(tile: Any, on_diagonal: bool) -> float:
        seen.append(on_diagonal)
        if len(seen) == 3:
            change()
        return float(tile.sum())

    return function


def test_a_store_that_is_replaced_during_a_scan(store: Path) -> None:
    matrix = dasrel.open_matrix(store)
    with pytest.raises(StoreError, match=r"s\.zarr was replaced by another store while it was read"):
        scan(matrix, [reduction(summing(lambda: replaced_by_import(store)), add)])
    with pytest.raises(StoreError, match="was replaced"):  # and it stays so
        matrix.rows(["0"])
    assert dasrel.open_matrix(store).audit["mean"] == pytest.approx(OTHER[np.triu_indices(N, 1)].mean())


def test_a_store_that_is_removed_during_a_scan(plain: Path) -> None:
    with pytest.raises(StoreError, match="was removed or replaced while it was read"):
        scan(dasrel.open_matrix(plain), [reduction(summing(lambda: shutil.rmtree(plain)), add)])


def test_a_store_that_grows_during_a_scan_is_read_as_it_was_opened(store: Path) -> None:
    matrix = dasrel.open_matrix(store)
    upper = sum(float(VALUES[matrix.layout.span(i), matrix.layout.span(j)].sum()) for i, j in matrix.layout.tiles())
    [found] = scan(matrix, [reduction(summing(lambda: grow(store)), add)])
    assert found == pytest.approx(upper, rel=1e-12)
    np.testing.assert_array_equal(whole(matrix), VALUES)  # grown tiles at the edge, without the new objects
    np.testing.assert_array_equal(whole(dasrel.open_matrix(store))[:N, :N], VALUES)


def test_a_store_that_grew_is_read_by_workers_as_it_was_opened(store: Path, client: Any) -> None:
    matrix = dasrel.open_matrix(store)
    grow(store)
    upper = sum(float(VALUES[matrix.layout.span(i), matrix.layout.span(j)].sum()) for i, j in matrix.layout.tiles())
    [found] = scan(matrix, [reduction(total, add)])
    assert found == pytest.approx(upper, rel=1e-12)


def test_a_store_that_was_replaced_is_noticed_on_a_cluster(store: Path, client: Any) -> None:
    matrix = dasrel.open_matrix(store)
    replaced_by_import(store)
    with pytest.raises(StoreError, match="was replaced by another store while it was read"):
        scan(matrix, [reduction(total, add)])


def test_the_same_import_again_is_no_other_store(plain: Path) -> None:
    matrix = dasrel.open_matrix(plain)
    stored(plain, VALUES, tile=TILE, dtype="float64", force=True)
    np.testing.assert_array_equal(matrix.rows(["0"])[0], VALUES[0])


def test_the_command_line_says_that_a_store_was_replaced(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dasrel.cmeans.run_state import RunState

    original = RunState.advance

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(RunState, "advance", original)
        replaced_by_import(plain)
        return original(*arguments, **options)

    monkeypatch.setattr(RunState, "advance", late)
    assert app.run(["cluster", str(plain), str(tmp_path / "out"), "--rule", "fcm2", "--clusters", "3"]) == 1
    assert "s.zarr was replaced by another store while it was read; run again" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------------------------------- ids and diagonal


def set_ids(store: Path, change: Callable[[list[str]], list[str]]) -> None:
    ids: Any = zarr.open_group(store, mode="r+")["ids"]
    ids[:] = np.array(change([str(name) for name in ids[:]]), dtype=np.dtypes.StringDType())


def duplicated(names: list[str]) -> list[str]:
    return [names[1], *names[1:]]


def emptied(names: list[str]) -> list[str]:
    return ["", *names[1:]]


def swapped(names: list[str]) -> list[str]:
    return [names[1], names[0], *names[2:]]


def flipped(names: list[str]) -> list[str]:
    return [*names[:-1], "x" + names[-1]]


@pytest.mark.parametrize("change", [duplicated, emptied, swapped, flipped])
def test_other_ids_are_refused(plain: Path, change: Callable[[list[str]], list[str]]) -> None:
    set_ids(plain, change)
    with pytest.raises(StoreError, match=r"ids of .*s\.zarr are not those that were written"):
        dasrel.open_matrix(plain)
    [(place, problem)] = faults(plain)
    assert place is None
    assert "ids" in problem


@pytest.mark.parametrize("change", [duplicated, emptied])
def test_impossible_ids_are_refused_although_their_checksum_fits(
    plain: Path, change: Callable[[list[str]], list[str]]
) -> None:
    set_ids(plain, change)
    resealed(plain)
    with pytest.raises(StoreError, match=r"the ids of .*s\.zarr are damaged"):
        dasrel.open_matrix(plain)


def test_a_missing_chunk_of_ids_is_refused(plain: Path) -> None:
    (plain / "ids" / "c" / "0").unlink()
    with pytest.raises(StoreError, match="ids"):
        dasrel.open_matrix(plain)


def test_names_that_claim_to_be_many_are_not_allocated(plain: Path) -> None:
    """The number of names of a chunk is the first of its data: four bytes that may say anything."""
    file = plain / "ids" / "c" / "0"
    data = bytearray(zstd.decompress(file.read_bytes()))
    data[:4] = (10**9).to_bytes(4, "little")
    file.write_bytes(zstd.compress(bytes(data)))
    with pytest.raises(
        StoreError, match=r"ids cannot be read, its file 0 claims 1,000,000,000 names, and may have \d+;"
    ):
        dasrel.open_matrix(plain)


def test_a_changed_diagonal_is_refused(tmp_path: Path) -> None:
    points = uniform_points(N)
    stored(tmp_path / "k.zarr", points @ points.T, "kernel", tile=TILE)
    group: Any = zarr.open_group(tmp_path / "k.zarr", mode="r+")
    group["diagonal"][3] += 1
    with pytest.raises(StoreError, match=r"diagonal of .* not those that were written"):
        dasrel.open_matrix(tmp_path / "k.zarr")
    (tmp_path / "k.zarr" / "diagonal" / "c" / "1").unlink()
    resealed(tmp_path / "k.zarr")
    with pytest.raises(StoreError, match=r"diagonal of .* is damaged: values are missing"):
        dasrel.open_matrix(tmp_path / "k.zarr")


def test_names_with_any_characters_have_checksums(tmp_path: Path) -> None:
    names = [f"a\n{k}\x00é" for k in range(N)]
    stored(tmp_path / "s.zarr", VALUES, ids=names, tile=TILE)
    assert list(dasrel.open_matrix(tmp_path / "s.zarr").ids) == names


def test_an_edited_manifest_is_refused(plain: Path) -> None:
    document = json.loads((plain / "zarr.json").read_text())
    document["attributes"]["dasrel"]["audit"]["maximum"] *= 2
    (plain / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"the manifest of .*s\.zarr is not the one that was written"):
        dasrel.open_matrix(plain)


def test_times_do_not_matter(plain: Path) -> None:
    """A store that was copied or touched is the same store."""
    matrix = dasrel.open_matrix(plain)
    os.utime(plain / "zarr.json", ns=(1, 1))
    np.testing.assert_array_equal(matrix.rows(["0"])[0], VALUES[0])


# ------------------------------------------------------------------------------------------------------------- metadata


def edit(file: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def edit_manifest(store: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest, with an identity that fits."""

    def both(document: Any) -> None:
        manifest = document["attributes"]["dasrel"]
        change(manifest)
        document["attributes"]["dasrel"] = sealed(manifest)

    edit(store / "zarr.json", both)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_objects", 0), ("n_objects", 10**12), ("n_objects", -3), ("n_objects", "70"), ("n_objects", 70.5),
        ("n_objects", True), ("tile", 0), ("tile", None), ("tile", [20]), ("dtype", "float16"), ("dtype", "object"),
        ("dtype", ">f8"), ("kind", "distances"), ("kind", 1), ("compress", "pickle"), ("input", []), ("state", "done"),
        ("provenance", "x"), ("audit", {}), ("audit", None), ("records", "../other"), ("checksums", {"tiles": "x"}),
        ("format_version", "1"), ("format_version", 2),
    ],
)  # fmt: skip
def test_an_impossible_manifest_is_refused_and_the_key_is_named(plain: Path, key: str, value: Any) -> None:
    edit_manifest(plain, lambda manifest: manifest.update({key: value}))
    with pytest.raises(StoreError, match=key.replace("_", "[_ ]")) as caught:
        dasrel.open_matrix(plain)
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match=key.replace("_", "[_ ]")):
        audit_store(plain)


@pytest.mark.parametrize(
    "key",
    [
        "n_objects", "tile", "dtype", "kind", "compress", "input", "state", "provenance", "audit", "checksums",
        "format_version",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(plain: Path, key: str) -> None:
    edit_manifest(plain, lambda manifest: manifest.pop(key))
    with pytest.raises(StoreError, match=key.replace("_", "[_ ]")):
        dasrel.open_matrix(plain)


@pytest.mark.parametrize("name", ["identity", "diagonal"])
def test_a_complete_store_has_its_identity_and_the_checksum_of_its_diagonal(tmp_path: Path, name: str) -> None:
    def drop(document: Any) -> None:
        manifest = document["attributes"]["dasrel"]
        del (manifest if name in manifest else manifest["checksums"])[name]

    points = uniform_points(N)
    stored(tmp_path / "k.zarr", points @ points.T, "kernel", tile=TILE)
    edit(tmp_path / "k.zarr" / "zarr.json", drop)
    with pytest.raises(StoreError, match=rf"{name} \(a complete store has it\)"):
        dasrel.open_matrix(tmp_path / "k.zarr")


@pytest.mark.parametrize(
    ("key", "value"), [("n_objects", 69), ("n_objects", 71), ("n_objects", 2 * 10**9), ("tile", 10), ("tile", 10**9)]
)
def test_a_manifest_that_does_not_fit_its_arrays(plain: Path, key: str, value: int) -> None:
    edit_manifest(plain, lambda manifest: manifest.update({key: value}))
    with pytest.raises(StoreError, match=r"damaged|not those that were written"):
        dasrel.open_matrix(plain)


def big_endian(document: Any) -> None:
    document["codecs"][0]["configuration"]["endian"] = "big"


def other_type(document: Any) -> None:
    document["data_type"] = "int64"
    document["fill_value"] = 0


def other_chunks(document: Any) -> None:
    document["chunk_grid"]["configuration"]["chunk_shape"] = [10, 40]


def without_checksum(document: Any) -> None:
    document["codecs"].pop()


def transposing(document: Any) -> None:
    document["codecs"].insert(0, {"name": "transpose", "configuration": {"order": [1, 0]}})


def smaller(document: Any) -> None:
    document["shape"] = [60, 60]


def other_keys(document: Any) -> None:
    document["chunk_key_encoding"] = {"name": "v2", "configuration": {"separator": "."}}


def no_codecs(document: Any) -> None:
    del document["codecs"]


@pytest.mark.parametrize(
    "change", [big_endian, other_type, other_chunks, without_checksum, transposing, smaller, other_keys, no_codecs]
)
def test_edited_metadata_of_the_tiles_are_refused(plain: Path, change: Callable[[Any], None]) -> None:
    edit(plain / "values" / "zarr.json", change)
    with pytest.raises(StoreError, match=r"values|chunks|tile"):
        dasrel.open_matrix(plain)


def test_a_group_of_format_2_is_no_store(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "old.zarr", mode="w", zarr_format=2)
    group.attrs["dasrel"] = {"format_version": 1}
    with pytest.raises(StoreError, match=r"old\.zarr is a Zarr group of format 2"):
        dasrel.open_matrix(tmp_path / "old.zarr")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    kept = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(kept)


@pytest.mark.slow(after=12)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [pipe, folder, unix_socket])
@pytest.mark.parametrize("file", ["zarr.json", "values/zarr.json", "ids/zarr.json", "ids/c/0", "records/c/0/0/0",
                                  "checksums/zarr.json", "checksums/c/0/0", "values/c/0/1"])  # fmt: skip
def test_what_is_no_file_is_refused_at_once(store: Path, file: str, make: Callable[[Path], None]) -> None:
    (store / file).unlink()
    make(store / file)

    def use() -> None:
        matrix = dasrel.open_matrix(store)
        tile_cache(matrix, page_cache=0)
        scan(matrix, [reduction(total, add)])

    for read in (use, lambda: scan(dasrel.open_matrix(store), [reduction(total, add)])):
        with pytest.raises(StoreError):
            read()
    if file.startswith("values/c"):
        assert [place for place, _ in faults(store)] == [[0, 1]]
        with pytest.raises(StoreError):
            dasrel.open_matrix(store).content_hash(verify=False)


def test_a_store_in_the_memory_of_a_process_is_refused(tmp_path: Path) -> None:
    for url in ("memory://d.zarr", "simplecache::memory://d.zarr"):
        with pytest.raises(StoreError, match=r"lost at its end; give a folder"):
            stored(url, VALUES)
        with pytest.raises(StoreError, match=r"lost at its end; give a folder"):
            dasrel.open_matrix(url)


# -------------------------------------------------------------------------------------------------- no code from data


class Payload:
    """An object whose unpickling makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.fixture
def unsafe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Pickled bytes that numcodecs, told to trust data, would run, and the file that they would make."""
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    data, marker = pickle.dumps(Payload(tmp_path / "proof")), tmp_path / "proof"
    with contextlib.suppress(Exception):
        numcodecs.Pickle().decode(data)
    assert marker.exists()  # or this test would prove nothing
    marker.unlink()
    return data, marker


PICKLED = {
    "zarr_format": 2, "shape": [N], "chunks": [N], "dtype": "|O", "compressor": {"id": "pickle", "protocol": 5},
    "fill_value": None, "order": "C", "filters": [{"id": "pickle", "protocol": 5}],
}  # fmt: skip


@pytest.mark.parametrize("consolidated", [False, True])
def test_pickled_ids_of_a_store_are_not_loaded(plain: Path, unsafe: Any, consolidated: bool) -> None:
    data, marker = unsafe
    (plain / "ids" / "zarr.json").unlink()
    (plain / "ids" / "0").write_bytes(data)
    (plain / "ids" / ".zarray").write_text(json.dumps(PICKLED))
    if consolidated:
        found = {"kind": "inline", "must_understand": False, "metadata": {"ids": {**PICKLED, "node_type": "array"}}}
        edit(plain / "zarr.json", lambda document: document.update(consolidated_metadata=found))
    with pytest.raises(StoreError, match="ids"):
        dasrel.open_matrix(plain).ids  # noqa: B018
    with contextlib.suppress(StoreError):
        audit_store(plain, verify=True)
    assert not marker.exists()


class Unpickling(numcodecs.abc.Codec):
    """A codec of another package that loads pickles."""

    codec_id = "unpickling"

    def encode(self, buf: Any) -> Any:
        return pickle.dumps(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        return pickle.loads(bytes(buf))


@pytest.mark.parametrize("codec", ["pickle", "unpickling"])
@pytest.mark.parametrize("part", ["compressor", "filters"])
def test_pickled_sources_are_not_loaded(plain: Path, tmp_path: Path, unsafe: Any, part: str, codec: str) -> None:
    numcodecs.register_codec(Unpickling)
    data, marker = unsafe
    source = tmp_path / "source.zarr"
    source.mkdir()
    numbers = {**PICKLED, "shape": [N, N], "chunks": [N, N], "dtype": "<f8", "fill_value": 0, "filters": None}
    numbers["compressor"] = None
    one = {"id": codec}
    (source / ".zarray").write_text(json.dumps({**numbers, part: [one] if part == "filters" else one}))
    (source / "0.0").write_bytes(data)
    # Zarr itself opens no array of numbers that has the codec `pickle`.
    message = r"is encoded with unpickling, which dasrel does not decode" if codec == "unpickling" else "Zarr"
    with pytest.raises(InputError, match=message):
        stored(tmp_path / "new.zarr", source)
    with pytest.raises(InputError, match=message):
        append(plain, source)
    assert not marker.exists()
    assert not (tmp_path / "new.zarr").exists()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_usual_codecs_of_sources_are_read(tmp_path: Path, zarr_format: Any) -> None:
    if zarr_format == 2:
        options: dict[str, Any] = {"filters": [numcodecs.Shuffle(8)], "compressors": numcodecs.LZ4()}
    else:
        options = {"shards": (40, 40), "compressors": zarr.codecs.GzipCodec()}
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=VALUES.shape, chunks=(20, 20), dtype="<f8", zarr_format=zarr_format, **options
    )
    array[:] = VALUES
    np.testing.assert_allclose(whole(stored(tmp_path / "s.zarr", tmp_path / "a.zarr", dtype="float64")), VALUES)
