"""Appending: the same bytes as a store written at once, and never half a store."""

from __future__ import annotations

import csv
import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.spatial.distance import cdist
from zarr.storage import LocalStore

import dasrel
from dasrel import InputError, Policy, StoreError, Writing, cli, stopping
from dasrel.append import append
from dasrel.audit import FACTS, audit_store
from dasrel.growing import growth
from dasrel.record import Record
from dasrel.store import TileFiles, open_matrix
from tests.io.test_importing_faults import s3  # noqa: F401 - a fixture


def distances(n: int, dtype: str = "float64", seed: int = 0) -> Any:
    points = np.random.default_rng(seed).random((n, 3))
    square = cdist(points, points)
    square[1, 2] = square[2, 1] = 0.0  # zeros are counted, and their places named
    square[0, n - 1] = square[n - 1, 0] = 0.0
    return square.astype(dtype)


def similarities(n: int, dtype: str = "float64") -> Any:
    points = np.random.default_rng(1).normal(size=(n, 4))
    return (points @ points.T).astype(dtype)


def tiles(store: Path) -> dict[str, bytes]:
    """Every stored tile, by its place."""
    folder = store / "values" / "c"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def marks(store: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every stored tile."""
    folder = store / "values" / "c"
    found = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


def facts(store: Any) -> dict[str, Any]:
    audit = audit_store(store)
    return {name: audit[name] for name in (*FACTS, "n_objects", "tiles", "kind", "dtype", "state")}


def check_like(grown: Path, whole: Path, *, rounded: bool = False) -> None:
    """A store that has grown is like one that was written at once.

    Where values were rounded for the store, the digits that are lost cannot be in a grown tile's sum of the source.
    """
    assert tiles(grown) == tiles(whole)
    assert facts(grown) == facts(whole)
    first, second = open_matrix(grown), open_matrix(whole)
    columns = [k for k, name in enumerate(Record.__dataclass_fields__) if not rounded or name != "source_checksum"]
    np.testing.assert_array_equal(first.records()[..., columns], second.records()[..., columns])
    assert list(first.ids) == list(second.ids)
    np.testing.assert_array_equal(np.asarray(first.diagonal, object), np.asarray(second.diagonal, object))
    np.testing.assert_array_equal(first.rows(first.ids), second.rows(second.ids))
    assert audit_store(grown, verify=True)["verified"]["bad"] == []
    # Another Zarr reader sees the same array.
    np.testing.assert_array_equal(
        zarr.open_group(grown, mode="r")["values"][:],  # type: ignore[index]
        zarr.open_group(whole, mode="r")["values"][:],  # type: ignore[index]
    )


CASES = [  # objects at first, then after each append; side of a tile
    ((32, 48), 16),  # everything at the borders of tiles
    ((30, 41), 16),  # an edge that grows, and stays an edge
    ((30, 32, 33, 70), 16),  # to a border, one beyond it, and several strips
    ((5, 9, 14), 16),  # a single tile that grows
    ((5, 40), 16),
    ((600, 700), 512),  # tiles of several of the blocks that are checked together
]


@pytest.mark.parametrize(("sizes", "tile"), CASES)
@pytest.mark.parametrize(
    ("kind", "dtype", "given", "compress"),
    [
        ("distance", "float32", "float32", None),
        ("distance", "float32", "float64", None),
        ("squared-distance", "float64", "float64", None),
        ("similarity", "float32", "float32", "lz4"),
        ("kernel", "float64", "float64", None),
    ],
)
def test_like_a_store_written_at_once(
    tmp_path: Path, sizes: tuple[int, ...], tile: int, kind: str, dtype: Any, given: str, compress: Any
) -> None:
    n = sizes[-1]
    square = distances(n, given) if "distance" in kind else similarities(n, given)
    names = [f"object {k}" for k in range(n)]
    writing = Writing(dtype=dtype, tile=tile, compress=compress)
    dasrel.import_matrix(square, tmp_path / "whole", kind=kind, reading=dasrel.Reading(ids=names), writing=writing)
    store = tmp_path / "grown"
    dasrel.import_matrix(
        square[: sizes[0], : sizes[0]], store, kind=kind, reading=dasrel.Reading(ids=names[: sizes[0]]), writing=writing
    )
    for before, after in pairwise(sizes):
        reader = open_matrix(store)
        seen = marks(store)
        done = append(store, square[before:after, :after], ids=names[before:after])
        # Exactly the tiles that hold new objects were written, and no other file was touched.
        first = before // tile
        now = marks(store)
        assert {name for name in seen if now[name] != seen[name]} == {
            name for name in seen if int(name.split("/")[1]) >= first
        }
        assert done.tiles_grown == (first + 1 if before % tile else 0)
        assert done.tiles_written == len(now) - len(seen)
        changed = [name for name in now if now[name] != seen.get(name)]
        assert done.bytes_written == sum((store / "values" / "c" / name).stat().st_size for name in changed)
        assert (done.objects_before, done.objects, done.matrix.n_objects) == (before, after - before, after)
        # Who had opened it before sees what was there.
        assert reader.n_objects == before
        assert list(reader.ids) == names[:before]
        np.testing.assert_array_equal(reader.rows(names[:3]), square[:3, :before].astype(dtype))
        assert reader.diagonal is None or len(reader.diagonal) == before
    check_like(store, tmp_path / "whole", rounded=given != dtype)
    assert "progress" not in zarr.open_group(store, mode="r")
    assert [one["objects"] for one in audit_store(store)["provenance"]["appends"]] == np.diff(sizes).tolist()


def flawed(n: int) -> Any:
    """Asymmetric, missing, negative and non-zero where the policies below allow it; the old part has flaws too."""
    square = distances(n)
    for k in (3, n - 5):  # one among the old objects, one among the new
        square[k, k + 1] += 0.25
        square[k, k] = 0.125
        square[k, k + 2] = square[k + 2, k] = np.nan
        square[k, k + 3] = square[k + 3, k] = -1e-9
    return square


@pytest.mark.parametrize(("sizes", "tile"), CASES)
def test_repairs_are_counted_as_if_at_once(tmp_path: Path, sizes: tuple[int, ...], tile: int) -> None:
    n = sizes[-1]
    square = flawed(n)
    if sizes[-2] > n - 5 > 0:  # rows of new objects say nothing twice about pairs with old ones
        square = np.where(np.isnan(square), square, np.triu(square) + np.triu(square, 1).T)
    policy = Policy(symmetrize="mean", missing=2.5, diagonal="zero", clip_negative=1e-6)
    writing = Writing(tile=tile)
    dasrel.import_matrix(square, tmp_path / "whole", kind="distance", policy=policy, writing=writing)
    store = tmp_path / "grown"
    dasrel.import_matrix(square[: sizes[0], : sizes[0]], store, kind="distance", policy=policy, writing=writing)
    for before, after in pairwise(sizes):
        append(store, square[before:after, :after], policy=policy)
    check_like(store, tmp_path / "whole", rounded=True)
    assert audit_store(store)["missing"]["count"] >= 1


def named_rows() -> tuple[Any, list[str], Any]:
    square = distances(20)
    names = [f"bird {k}" for k in range(20)]
    return square, names, square[14:]


def stored(folder: Path, square: Any, names: list[str] | None, n: int = 14) -> Path:
    reading = dasrel.Reading(ids=None if names is None else names[:n])
    dasrel.import_matrix(square[:n, :n], folder, kind="distance", reading=reading, writing=Writing(tile=8))
    return folder


def as_csv(path: Path, rows: Any, names: list[str], columns: list[str], mark: str = ",") -> Path:
    lines = [mark.join(["id", *columns])]
    lines += [mark.join([name, *(repr(float(x)) for x in row)]) for name, row in zip(names, rows, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("form", ["npy", "npz", "csv", "tsv", "shuffled", "zarr", "numpy", "dask", "frame", "xarray"])
def test_formats(tmp_path: Path, form: str) -> None:
    square, names, rows = named_rows()
    store = stored(tmp_path / "s", square, names)
    new, ids, source = names[14:], None, None
    shuffle = np.random.default_rng(5).permutation(20)
    if form == "npy":
        np.save(tmp_path / "rows.npy", rows)
        (tmp_path / "ids.txt").write_text("\n".join(new) + "\n")
        source, ids = tmp_path / "rows.npy", tmp_path / "ids.txt"
    elif form == "npz":
        np.savez(tmp_path / "rows.npz", rows=rows, names=np.array(new))
        source = str(tmp_path / "rows.npz")
    elif form in ("csv", "tsv"):
        source = as_csv(tmp_path / f"rows.{form}", rows, new, names, "," if form == "csv" else "\t")
    elif form == "shuffled":
        source = as_csv(tmp_path / "rows.csv", rows[:, shuffle], new, [names[k] for k in shuffle])
    elif form == "zarr":
        zarr.save_array(tmp_path / "rows.zarr", rows)
        source, ids = tmp_path / "rows.zarr", new
    elif form == "numpy":
        source, ids = rows, new
    elif form == "dask":
        source, ids = da.from_array(rows, chunks=(4, 7)), new
    elif form == "frame":
        pandas = pytest.importorskip("pandas")
        source = pandas.DataFrame(rows[:, shuffle], index=new, columns=[names[k] for k in shuffle])
    else:
        xarray = pytest.importorskip("xarray")
        lazy = da.from_array(rows[:, shuffle], chunks=(3, 5))
        source = xarray.DataArray(lazy, dims=("new", "all"), coords={"new": new, "all": [names[k] for k in shuffle]})
    done = append(store, source, ids=ids)
    assert list(done.matrix.ids) == names
    np.testing.assert_array_equal(done.matrix.rows(names), square.astype("float32"))
    (one,) = audit_store(store)["provenance"]["appends"]
    assert one["as"] == "rows"
    assert one["checksum"].startswith("crc32c")
    if isinstance(source, str | Path):
        assert one["source"] == str(source)


def test_objects_that_are_numbered_need_no_names(tmp_path: Path) -> None:
    square = distances(20)
    store = stored(tmp_path / "s", square, None)
    matrix = append(store, square[14:]).matrix
    assert list(matrix.ids) == [str(k) for k in range(20)]


REFUSED: list[tuple[str, Any, dict[str, Any], str]] = [
    ("wide", lambda r: r[:, :-1], {}, r"6 rows and 19 columns; 6 new objects against the 14 of .* are 6 x 20"),
    ("old", lambda r: r, {"ids": ["bird 3", *"abcde"]}, r"1 of the 6 new objects are in .* already: bird 3;"),
    ("twice", lambda r: r, {"ids": [*"abcda", "f"]}, "not unique: a;"),
    ("empty", lambda r: r, {"ids": [*"abcde", ""]}, "new object 5 is empty"),
    ("few", lambda r: r, {"ids": ["a"]}, "1 ids for the 6 new objects"),
    ("unnamed", lambda r: r, {"ids": None}, r"has no names of its 6 new objects.*such as bird 0; give them with ids"),
    ("nan", lambda r: at(r, 2, 3, np.nan), {}, r"missing values \(NaN\): .*bird 3 \(object 3\) and c \(object 16\)"),
    ("negative", lambda r: at(r, 2, 3, -1.0), {}, r"negative values in a distance"),
    ("asymmetric", lambda r: at(r, 2, 15, 9.0), {}, r"asymmetric: 1 pairs .*b \(object 15\) and c \(object 16\)"),
    ("diagonal", lambda r: at(r, 2, 16, 0.5), {}, r"diagonal is not zero for 1 objects .*c \(object 16\): 0.5"),
    ("infinite", lambda r: at(r, 2, 3, np.inf), {}, r"infinite values"),
    ("maximum", lambda r: r, {"policy": Policy(missing="max")}, "missing='max' is for imports"),
    ("text", lambda r: np.full(r.shape, "a"), {}, "features are numbers|rows of numbers are needed"),
]


def at(rows: Any, row: int, column: int, value: float) -> Any:
    changed = rows.copy()
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(("case", "change", "more", "told"), REFUSED, ids=[case[0] for case in REFUSED])
def test_refused_and_nothing_is_left_behind(
    tmp_path: Path, case: str, change: Any, more: dict[str, Any], told: str
) -> None:
    square, names, rows = named_rows()
    store = stored(tmp_path / "s", square, names)
    before = facts(store)
    with pytest.raises(InputError, match=told) as caught:
        append(store, change(rows), **{"ids": list("abcdef"), **more})
    assert "\n" not in str(caught.value)
    assert facts(store) == before
    assert "progress" not in zarr.open_group(store, mode="r")
    assert zarr.open_group(store, mode="r")["values"].shape == (14, 14)  # type: ignore[union-attr]
    matrix = append(store, rows, ids=names[14:]).matrix  # and it can be done right
    np.testing.assert_array_equal(matrix.rows(names), square.astype("float32"))
    with pytest.raises(InputError, match=r"6 rows and 20 columns; .*6 x 26"):
        append(store, rows, ids=names[14:])
    with pytest.raises(InputError, match=r"6 of the 6 new objects are in .* already"):
        append(store, np.hstack([rows, rows[:, 14:]]), ids=names[14:])


def test_columns_that_fit_no_object(tmp_path: Path) -> None:
    square, names, rows = named_rows()
    store = stored(tmp_path / "s", square, names)
    wrong = as_csv(tmp_path / "a.csv", rows, names[14:], ["fish", *names[1:]])
    with pytest.raises(InputError, match="1 objects have no column: bird 0; columns of no object: fish;"):
        append(store, wrong)
    twice = as_csv(tmp_path / "b.csv", rows, names[14:], [names[1], *names[1:]])
    with pytest.raises(InputError, match="columns are not unique: bird 1;"):
        append(store, twice)


# ------------------------------------------------------------------------------------------------------------ features


def features_of(n: int) -> Any:
    return np.random.default_rng(3).integers(0, 2, (n, 40)).astype("float64")


@pytest.mark.parametrize(
    ("metric", "kind", "exact"),
    [
        ("simpson", "squared-distance", True),
        ("cityblock", "distance", True),
        ("minkowski", "distance", True),
        ("euclidean", "distance", False),
        ("rbf", "kernel", False),
    ],
)
@pytest.mark.parametrize("sizes", [(30, 41, 50), (32, 40, 64)])
def test_features(tmp_path: Path, metric: str, kind: str, exact: bool, sizes: tuple[int, ...]) -> None:
    features = features_of(sizes[-1]) + (0.25 if metric in ("euclidean", "rbf") else 0)
    parts = [0, *sizes]
    paths = []
    for k, (first, last) in enumerate(pairwise(parts)):
        paths.append(tmp_path / f"day{k}.npy")
        np.save(paths[-1], features[first:last])
    options = {"minkowski": {"p": 3.0}, "rbf": {"gamma": 0.1}}.get(metric)
    writing = Writing(tile=16)
    whole = dasrel.pairwise(features, tmp_path / "w", metric=metric, kind=kind, metric_options=options, writing=writing)
    store = tmp_path / "s"
    dasrel.pairwise(paths[0], store, metric=metric, kind=kind, metric_options=options, writing=writing)
    before = open_matrix(store).rows(["0", "7"])
    append(store, paths[1], features=paths[0])
    done = append(store, paths[2], features=paths[:2])
    np.testing.assert_array_equal(done.matrix.rows(["0", "7"])[:, : sizes[0]], before)  # no bit of them has changed
    if exact:
        check_like(store, tmp_path / "w")
    np.testing.assert_allclose(done.matrix.rows(done.matrix.ids), whole.rows(whole.ids), rtol=1e-6, atol=1e-7)
    assert audit_store(store, verify=True)["verified"]["bad"] == []
    assert [one["as"] for one in audit_store(store)["provenance"]["appends"]] == ["features", "features"]


def test_features_in_memory_and_sparse(tmp_path: Path) -> None:
    from scipy.sparse import csr_array

    features = features_of(30)
    for name, given in (("dense", features), ("sparse", csr_array(features))):
        dasrel.pairwise(given[:20], tmp_path / name, metric="cosine", writing=Writing(tile=16))
        matrix = append(tmp_path / name, given[20:], features=given[:20]).matrix
        expected = cdist(features, features, "cosine")
        np.testing.assert_allclose(matrix.rows(matrix.ids), expected, atol=1e-6)


def test_features_that_cannot_be_appended(tmp_path: Path) -> None:
    features = features_of(30)
    old, new = features[:20], features[20:]
    made = tmp_path / "made"
    dasrel.pairwise(old, made, metric="cityblock", writing=Writing(tile=16))
    with pytest.raises(InputError, match=r"has crc32c: .*, and the features .* had crc32c: .*give those"):
        append(made, new, features=old + 1)
    with pytest.raises(InputError, match=r"was made from the features in .*: give all 1, in this order .*there are 2"):
        append(made, new, features=[old, new])
    with pytest.raises(InputError, match="39 columns of numbers; the features that the store was made from have 40"):
        append(made, new[:, 1:], features=old)
    with pytest.raises(InputError, match=r"is in .* already; give ids"):
        append(made, old, features=old)
    with pytest.raises(InputError, match=r"10 rows and 40 columns; 10 new .* are 10 x 30; for features say --features"):
        append(made, new)
    with pytest.raises(InputError, match="missing or infinite values"):
        append(made, np.where(np.arange(40) == 3, np.nan, new), features=old)
    rows = cdist(new, features, "cityblock")
    append(made, rows)
    with pytest.raises(InputError, match=r"append 1 to .* was one of rows, without features"):
        append(made, new, features=[old, new])
    imported = stored(tmp_path / "imported", distances(20), None)
    with pytest.raises(InputError, match="was not made by `dasrel pairwise`: append the rows"):
        append(imported, new, features=old)
    dasrel.pairwise(old, tmp_path / "fitted", metric="seuclidean")
    with pytest.raises(InputError, match="seuclidean took its V from all features"):
        append(tmp_path / "fitted", new, features=old)
    weights = {"w": np.linspace(1, 2, 100)}
    wide = np.random.default_rng(0).random((20, 100))
    dasrel.pairwise(wide, tmp_path / "weighted", metric="cityblock", metric_options=weights)
    with pytest.raises(InputError, match="keeps only a checksum of the metric's w"):
        append(tmp_path / "weighted", wide[:3] + 1, features=wide)


# -------------------------------------------------------------------------------------------------------------- faults

KILLING = """
    import os, signal, sys
    import dasrel.store, zarr
    from zarr.core.attributes import Attributes
    from dasrel.append import append

    rows = sys.argv[1]
    places = {
        "replace": (os, "replace", False),
        "replaced": (os, "replace", True),
        "record": (dasrel.store.TileFiles, "write", True),
        "creating": (zarr.Group, "create_array", False),
        "created": (zarr.Group, "create_array", True),
        "resizing": (zarr.Array, "resize", False),
        "filling": (zarr.Array, "__setitem__", False),
        "filled": (zarr.Array, "__setitem__", True),
        "committing": (Attributes, "__setitem__", False),
        "committed": (Attributes, "__setitem__", True),
        "deleting": (zarr.Group, "__delitem__", False),
        "deleted": (zarr.Group, "__delitem__", True),
    }

    def die_in(owner, name, after, count):
        original, calls = getattr(owner, name), []
        def dying(*args, **options):
            calls.append(1)
            if len(calls) >= count and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **options)
            if len(calls) >= count and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(owner, name, dying)

    for case in sys.argv[2:]:
        where, count, store = case.split(":", 2)
        child = os.fork()  # before Zarr has started its thread: the imports are paid for once
        if child == 0:
            die_in(*places[where], int(count))
            append(store, rows)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (case, status)
"""

KILLED = [
    *("creating:1", "created:1", "filling:1", "filled:1", "resizing:2", "replace:1", "record:1", "replaced:9"),
    *("record:9", "replaced:20", "created:2", "filled:2", "committing:1", "committed:1", "deleting:1", "deleted:1"),
]


def test_killed_at_any_moment(tmp_path: Path) -> None:
    square = distances(34, "float32")
    good, plain = tmp_path / "good", tmp_path / "plain"
    stored(plain, square, None, 20)
    shutil.copytree(plain, good)
    np.save(tmp_path / "rows.npy", square[20:])
    append(good, tmp_path / "rows.npy")
    before, after = facts(plain), facts(good)
    for case in KILLED:
        shutil.copytree(plain, tmp_path / case)
    cases = [f"{case}:{tmp_path / case}" for case in KILLED]
    command = [sys.executable, "-c", textwrap.dedent(KILLING), str(tmp_path / "rows.npy"), *cases]
    subprocess.run(command, check=True, timeout=120)
    kept = 0
    for case in KILLED:
        store = tmp_path / case
        committed = case in ("committed:1", "deleting:1", "deleted:1")
        assert facts(store) == (after if committed else before), case
        size = 34 if committed else 20
        matrix = open_matrix(store)
        np.testing.assert_array_equal(matrix.rows(matrix.ids), square[:size, :size])
        assert audit_store(store, verify=True)["verified"]["bad"] == []
        if committed:
            with pytest.raises(InputError, match="14 rows and 34 columns"):
                append(store, tmp_path / "rows.npy")
        else:
            done = append(store, tmp_path / "rows.npy")
            assert (
                done.tiles_written + done.tiles_grown + done.tiles_kept == 12
            )  # 15 tiles, of which 3 are old and full
            kept += done.tiles_kept
            assert done.resumed == (case not in ("creating:1", "replace:1"))  # killed before it was written down
        check_like(store, good)
        assert not list(store.rglob("*.partial"))
        if committed:  # and it goes on growing
            assert append(store, distances(37, "float32")[34:]).matrix.n_objects == 37
    assert kept >= 40  # what was written before the kill was not written again


def test_what_a_dead_worker_left_is_swept_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies while it writes aside, and another one writes the same tile."""
    store = tmp_path / "d.zarr"
    dasrel.import_matrix(distances(40)[:30, :30], store, kind="distance", writing=Writing(tile=16))
    np.save(tmp_path / "rows.npy", distances(40)[30:])
    plain = TileFiles.write

    def write(files: TileFiles, i: int, j: int, tile: Any, record: Record) -> None:
        plain(files, i, j, tile, record)
        (store / f"values/c/{i}/{j}.{'0' * 32}.partial").write_bytes(b"half")

    monkeypatch.setattr(TileFiles, "write", write)
    dasrel.append(store, tmp_path / "rows.npy")
    assert open_matrix(store).n_objects == 40
    assert not list(store.rglob("*.partial"))


def test_a_reader_never_sees_half(tmp_path: Path) -> None:
    """Reads all of it again and again, while the store grows five times."""
    import threading

    square = distances(100, "float32")
    store = stored(tmp_path / "s", square, None, 10)
    first = open_matrix(store)
    sizes, faults, over = set(), [], threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                matrix = open_matrix(store)
                n = matrix.n_objects
                sizes.add(n)
                if not np.array_equal(matrix.rows(matrix.ids), square[:n, :n]) or len(matrix.ids) != n:
                    faults.append(n)
                if not np.array_equal(first.rows(first.ids), square[:10, :10]):
                    faults.append("first")
            except Exception as error:
                faults.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(10, 100, 18):
            append(store, square[n : n + 18, : n + 18])
    finally:
        over.set()
        reader.join()
    assert faults == []
    assert sizes <= set(range(10, 101, 18))
    assert open_matrix(store).n_objects == 100


def test_an_unfinished_append_of_something_else(tmp_path: Path) -> None:
    square = distances(40, "float32")
    store = stored(tmp_path / "s", square, None, 20)
    with pytest.raises(RuntimeError, match="stop"), growth(store, [str(k) for k in range(20, 40)], {"source": "other"}):
        raise RuntimeError("stop")
    assert open_matrix(store).n_objects == 20
    with pytest.raises(StoreError, match=r"was begun and not finished, with objects 40; now it is 30: .*--force"):
        append(store, square[20:30, :30])
    done = append(store, square[20:30, :30], force=True)
    assert not done.resumed
    np.testing.assert_array_equal(done.matrix.rows(done.matrix.ids), square[:30, :30])
    assert zarr.open_group(store, mode="r")["values"].shape == (30, 30)  # type: ignore[union-attr]
    assert audit_store(store, verify=True)["verified"]["bad"] == []


def test_two_at_once(tmp_path: Path) -> None:
    square = distances(30, "float32")
    store = stored(tmp_path / "s", square, None, 20)
    with growth(store, [str(k) for k in range(20, 30)], {"source": "other"}):
        for more in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(StoreError, match=r"another append to .* is under way; wait for it"):
                append(store, square[20:], **more)
    append(store, square[20:], force=True)


def test_where_folders_cannot_be_locked(tmp_path: Path) -> None:
    """A store in memory stands for a remote one: the record of who is at work has to do."""
    square = distances(30, "float32")
    store = zarr.storage.MemoryStore()
    dasrel.import_matrix(square[:20, :20], store, kind="distance", writing=Writing(tile=8))

    def begun_by(owner: dict[str, Any]) -> None:
        with pytest.raises(RuntimeError, match="stop"), growth(store, list(map(str, range(20, 30))), about, force=True):
            raise RuntimeError("stop")
        zarr.open_group(store)["progress"].attrs["owner"] = owner

    with pytest.raises(InputError, match="missing"):
        append(store, np.full((10, 30), np.nan))
    source = square[20:]
    about = {"as": "rows", "source": "array of float32", "size": source.nbytes, "checksum": checksum(source)}
    about |= {"policy": Policy().record()}
    begun_by({"host": "elsewhere", "process": 1, "token": "x"})
    with pytest.raises(StoreError, match="is under way, by process 1 on elsewhere; wait for it, or say --resume"):
        append(store, source)
    done = append(store, source, resume=True)
    assert done.resumed
    np.testing.assert_array_equal(done.matrix.rows(done.matrix.ids), square)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    source = distances(33, "float32")[30:]
    about |= {"size": source.nbytes, "checksum": checksum(source)}
    with pytest.raises(RuntimeError, match="stop"), growth(store, list(map(str, range(30, 33))), about):
        raise RuntimeError("stop")
    owner = {"host": os.uname().nodename, "process": ended.pid, "token": "x"}
    zarr.open_group(store)["progress"].attrs["owner"] = owner  # one who is known to be dead
    assert append(store, source).resumed


def checksum(array: Any) -> str:
    import google_crc32c

    return f"crc32c: {google_crc32c.value(array.tobytes()):08x}"


def test_one_who_was_taken_over_adds_nothing(tmp_path: Path) -> None:
    square = distances(30, "float32")
    store = stored(tmp_path / "s", square, None, 20)
    with growth(store, ["a"], {}) as (under_way, _):
        for tile in under_way.tiles():
            under_way.files.write(*tile, np.zeros(under_way.layout.shape(*tile), "float32"), Record())
        zarr.open_group(store)["progress"].attrs["owner"] = {"host": "elsewhere", "process": 1, "token": "x"}
        with pytest.raises(StoreError, match=r"another append to .* has taken over"):
            under_way.commit(None)
    assert open_matrix(store).n_objects == 20


def test_read_only(tmp_path: Path) -> None:
    square = distances(30, "float32")
    store = stored(tmp_path / "s", square, None, 20)
    with pytest.raises(StoreError, match="read-only"):
        append(LocalStore(store, read_only=True), square[20:])
    if os.geteuid() != 0:
        for path in [store, *store.rglob("*")]:
            path.chmod(path.stat().st_mode & 0o555)
        with pytest.raises(StoreError, match=r"cannot be written .* not read-only"):
            append(store, square[20:])
        for path in [store, *store.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o700)
    assert open_matrix(store).n_objects == 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small tmpfs, and make it read-only")
def test_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    square = distances(600, "float32")
    np.save(tmp_path / "rows.npy", square[250:])
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        dasrel.import_matrix(square[:250, :250], disk / "s", kind="distance", writing=Writing(tile=100))
        shutil.copytree(disk / "s", tmp_path / "good")
        append(tmp_path / "good", tmp_path / "rows.npy")
        before = facts(disk / "s")
        with pytest.raises(StoreError, match=r"the disk is full: .* nothing was lost; free some space"):
            append(disk / "s", tmp_path / "rows.npy")
        assert facts(disk / "s") == before
        assert audit_store(disk / "s", verify=True)["verified"]["bad"] == []
        gc.collect()  # the error's frames hold maps of tiles that were replaced
        subprocess.run(["mount", "-o", "remount,size=8m,ro", str(disk)], check=True)
        with pytest.raises(StoreError, match=r"cannot be written .* not read-only"):
            append(disk / "s", tmp_path / "rows.npy")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        done = append(disk / "s", tmp_path / "rows.npy")
        assert done.tiles_kept > 0
        del done
        check_like(disk / "s", tmp_path / "good")
    finally:
        gc.collect()
        subprocess.run(["umount", str(disk)], check=True)


def test_s3(tmp_path: Path, s3: Any) -> None:  # noqa: F811
    square = distances(40, "float32")
    url, whole = "s3://matrices/d.zarr", tmp_path / "whole"
    dasrel.import_matrix(square, whole, kind="distance", writing=Writing(tile=16))
    dasrel.import_matrix(square[:30, :30], url, kind="distance", writing=Writing(tile=16))
    reader = open_matrix(url)
    done = append(url, square[30:])
    assert (done.tiles_written, done.tiles_grown) == (3, 2)
    assert done.bytes_written == 5 * (16 * 16 * 4 + 4)
    for i, j in done.matrix.layout.tiles():
        assert s3.cat(f"matrices/d.zarr/values/c/{i}/{j}") == (whole / f"values/c/{i}/{j}").read_bytes()
    assert facts(url) == facts(whole)
    np.testing.assert_array_equal(reader.rows(["3", "29"]), square[[3, 29], :30])


def test_on_a_cluster(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    square, features = distances(60, "float32"), features_of(60)
    np.save(tmp_path / "rows.npy", square[40:])
    np.save(tmp_path / "old.npy", features[:40])
    np.save(tmp_path / "new.npy", features[40:])
    dasrel.import_matrix(square, tmp_path / "whole", kind="distance", writing=Writing(tile=16))
    dasrel.import_matrix(square[:40, :40], tmp_path / "s", kind="distance", writing=Writing(tile=16))
    dasrel.pairwise(features, tmp_path / "all", metric="cityblock", writing=Writing(tile=16))
    dasrel.pairwise(tmp_path / "old.npy", tmp_path / "p", metric="cityblock", writing=Writing(tile=16))
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
    ):
        append(tmp_path / "s", tmp_path / "rows.npy")
        append(tmp_path / "p", tmp_path / "new.npy", features=tmp_path / "old.npy")
    check_like(tmp_path / "s", tmp_path / "whole")
    check_like(tmp_path / "p", tmp_path / "all")


def test_stopped_and_gone_on_with(tmp_path: Path) -> None:
    """A time limit lets the first tile be written; the rest is for the next call."""
    square = distances(60, "float32")
    store = stored(tmp_path / "s", square, None, 20)
    with stopping.limited(0.0), pytest.raises(dasrel.Stopped, match="run the same append again to go on"):
        append(store, square[20:])
    assert open_matrix(store).n_objects == 20
    done = append(store, square[20:])
    assert done.resumed
    assert done.tiles_kept >= 1
    np.testing.assert_array_equal(done.matrix.rows(done.matrix.ids), square)


def test_what_was_made_from_the_smaller_store_is_refused(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((40, 2))
    square = np.abs(points[:, None] - points[None]).max(axis=2)
    store = tmp_path / "s"
    dasrel.import_matrix(square[:30, :30], store, kind="distance")
    made = dasrel.euclideanize(store, method="spread")
    made.save(tmp_path / "e.npz")
    append(store, square[30:])
    for given in (made, tmp_path / "e.npz"):
        with pytest.raises(InputError, match="another matrix: number of objects 30 there and 40 here") as caught:
            dasrel.FuzzyCMeans(2, euclideanize=given).fit(str(store))
        assert "\n" not in str(caught.value)


def test_a_matrix_travels_as_it_was(tmp_path: Path) -> None:
    import pickle

    square = distances(30, "float32")
    store = stored(tmp_path / "s", square, None, 20)
    sent = pickle.dumps(open_matrix(store))
    append(store, square[20:])
    arrived = pickle.loads(sent)
    assert arrived.n_objects == 20
    np.testing.assert_array_equal(arrived.rows(arrived.ids), square[:20, :20])


def test_memory_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    square = distances(30, "float32")
    store = stored(tmp_path / "s", square, None, 20)
    seen = marks(store)
    with pytest.raises(dasrel.MemoryLimitError, match="append needs"):
        append(store, square[20:], memory="1MiB")
    assert marks(store) == seen
    assert append(store, square[20:]).matrix.n_objects == 30


# ----------------------------------------------------------------------------------------------------- the command line


def run(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    assert cli.run(line.split()) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    square, names, rows = named_rows()
    stored(tmp_path / "s.zarr", square, names)
    as_csv(tmp_path / "rows.csv", rows, names[14:], names)
    assert cli.run(["append", "s.zarr", "rows.csv"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "store    s.zarr",
        "objects  14 and 6 more: 20",
        f"tiles    3 new and 2 grown of 6, {5 * (8 * 8 * 4 + 4):,} bytes",
    ]
    assert cli.run(["append", "s.zarr", "rows.csv", "--json"]) == 1
    assert "6 rows and 20 columns" in json.loads(capsys.readouterr().out)["error"]
    more = distances(22)[20:]
    more[0, 21] += 0.5
    more[1, 3] = np.nan
    np.save("more.npy", more)
    (tmp_path / "ids.txt").write_text("owl\nrook\n")
    assert cli.run(["append", "s.zarr", "more.npy"]) == 1
    assert "give them with ids (--ids FILE)" in capsys.readouterr().err
    assert cli.run(["append", "s.zarr", "more.npy", "--ids", "ids.txt", "--missing", "max"]) == 2
    capsys.readouterr()
    done = run(capsys, "append s.zarr more.npy --ids ids.txt --missing fill=1 --symmetrize mean --json")
    wanted = {"n_objects": 22, "objects": 2, "tiles_written": 0, "tiles_grown": 3, "resumed": False}
    assert {name: done[name] for name in wanted} == wanted
    matrix = open_matrix("s.zarr")
    row = matrix.rows(["owl"])[0]
    assert row[21] == np.float32((more[0, 21] + more[1, 20]) / 2)
    assert matrix.rows(["rook"])[0][3] == 1
    assert audit_store("s.zarr")["provenance"]["appends"][1]["policy"]["missing"] == 1.0


def test_ten_percent_more_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Append a tenth, go on from the last result: few tiles are written, few scans are made, few labels change."""
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
    images = load_digits().data / 16
    np.save("old.npy", images[:1617])
    np.save("new.npy", images[1617:])
    np.save("all.npy", images)
    simpson = "--metric simpson --kind squared-distance --tile 256 --json"
    run(capsys, f"pairwise old.npy s.zarr {simpson}")
    run(capsys, f"pairwise all.npy whole.zarr {simpson}")
    seen = marks(tmp_path / "s.zarr")
    rule = "--rule fcm2 --clusters 10 --entropy-weight 0.03 --on-negative heal --json"
    run(capsys, f"cluster s.zarr before {rule} --n-init 2")
    done = run(capsys, "append s.zarr new.npy --features old.npy --json")
    check_like(tmp_path / "s.zarr", tmp_path / "whole.zarr")
    now = marks(tmp_path / "s.zarr")
    assert [name for name in seen if now[name] != seen[name]] == [f"{i}/6" for i in range(7)]
    assert (done["tiles_written"], done["tiles_grown"], done["tiles"]) == (8, 7, 36)
    assert done["bytes_written"] == 15 * (256 * 256 * 4 + 4)
    cold = run(capsys, f"cluster s.zarr cold {rule} --n-init 2")
    warm = run(capsys, f"cluster s.zarr warm {rule} --warm-start before")
    with open("cold/runs.csv", encoding="utf-8") as file:
        quickest = min(int(one["n_iter"]) for one in csv.DictReader(file))
    assert warm["scans"] < quickest <= cold["scans"]
    assert warm["converged"]
    told = warm["warm_start"]
    assert told["moved"] <= 0.02 * 1617
    assert told["order"] == list(range(10))
    assert (told["objects_before"], told["new_objects"]) == (1617, 180)
    assert sum(told["new_per_cluster"]) == 180
