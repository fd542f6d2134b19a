"""Appending: the same bytes as a store written at once, and never half a store."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.spatial.distance import cdist

import dasrel
from dasrel import InputError, Policy, Writing
from dasrel.cli import app
from dasrel.io.append import append
from dasrel.store.audit import audit_store
from dasrel.store.matrix import open_matrix
from tests.helpers.matrices import distances_with_zeros
from tests.helpers.stores import assert_alike, facts, marks, stored


def similarities(n: int, dtype: str = "float64") -> Any:
    points = np.random.default_rng(1).normal(size=(n, 4))
    return (points @ points.T).astype(dtype)


CASES = [  # objects at first, then after each append; side of a tile
    ((32, 48), 16),  # everything at the borders of tiles
    ((30, 41), 16),  # an edge that grows, and stays an edge
    ((30, 32, 33, 70), 16),  # to a border, one beyond it, and several strips
    ((5, 9, 14), 16),  # a single tile that grows
    ((5, 40), 16),
    ((600, 700), 512),  # tiles of several of the blocks that are checked together
]


@pytest.mark.slow(after=2)
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
    square = distances_with_zeros(n, given) if "distance" in kind else similarities(n, given)
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
        assert (done.objects_before, done.new_objects, done.matrix.n_objects) == (before, after - before, after)
        # Who had opened it before sees what was there.
        assert reader.n_objects == before
        assert list(reader.ids) == names[:before]
        np.testing.assert_array_equal(reader.rows(names[:3]), square[:3, :before].astype(dtype))
        assert reader.diagonal is None or len(reader.diagonal) == before
    assert_alike(store, tmp_path / "whole", rounded=given != dtype)
    assert "progress" not in zarr.open_group(store, mode="r")
    assert [one["objects"] for one in audit_store(store)["provenance"]["appends"]] == np.diff(sizes).tolist()


def flawed(n: int) -> Any:
    """Asymmetric, missing, negative and non-zero where the policies below allow it; the old part has flaws too."""
    square = distances_with_zeros(n)
    for k in (3, n - 5):  # one among the old objects, one among the new
        square[k, k + 1] += 0.25
        square[k, k] = 0.125
        square[k, k + 2] = square[k + 2, k] = np.nan
        square[k, k + 3] = square[k + 3, k] = -1e-9
    return square


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("mean", ["mean", "mean-square"])
@pytest.mark.parametrize(("sizes", "tile"), CASES)
def test_repairs_are_counted_as_if_at_once(tmp_path: Path, sizes: tuple[int, ...], tile: int, mean: Any) -> None:
    n = sizes[-1]
    square = flawed(n)
    if sizes[-2] > n - 5 > 0:  # rows of new objects say nothing twice about pairs with old ones
        square = np.where(np.isnan(square), square, np.triu(square) + np.triu(square, 1).T)
    policy = Policy(symmetrize=mean, missing=2.5, diagonal="zero", clip_negative=1e-6)
    writing = Writing(tile=tile)
    dasrel.import_matrix(square, tmp_path / "whole", kind="distance", policy=policy, writing=writing)
    store = tmp_path / "grown"
    dasrel.import_matrix(square[: sizes[0], : sizes[0]], store, kind="distance", policy=policy, writing=writing)
    for before, after in pairwise(sizes):
        append(store, square[before:after, :after], policy=policy)
    assert_alike(store, tmp_path / "whole", rounded=True)
    assert audit_store(store)["missing"]["count"] >= 1


def named_rows() -> tuple[Any, list[str], Any]:
    square = distances_with_zeros(20)
    names = [f"bird {k}" for k in range(20)]
    return square, names, square[14:]


def as_csv(path: Path, rows: Any, names: list[str], columns: list[str], mark: str = ",") -> Path:
    lines = [mark.join(["id", *columns])]
    lines += [mark.join([name, *(repr(float(x)) for x in row)]) for name, row in zip(names, rows, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("form", ["npy", "npz", "csv", "tsv", "shuffled", "zarr", "numpy", "dask", "frame", "xarray"])
def test_formats(tmp_path: Path, form: str) -> None:
    square, names, rows = named_rows()
    stored(store := tmp_path / "s", square[:14, :14], ids=names[:14], tile=8)
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
    square = distances_with_zeros(20)
    stored(store := tmp_path / "s", square[:14, :14], tile=8)
    matrix = append(store, square[14:]).matrix
    assert list(matrix.ids) == [str(k) for k in range(20)]


REFUSED: list[tuple[str, Any, dict[str, Any], str]] = [
    ("wide", lambda r: r[:, :-1], {}, r"6 rows and 19 columns; 6 new objects against the 14 of .* are 6 x 20"),
    ("old", lambda r: r, {"ids": ["bird 3", *"abcde"]}, r"1 of 6 new objects already in .*: bird 3;"),
    ("twice", lambda r: r, {"ids": [*"abcda", "f"]}, "not unique: a;"),
    ("empty", lambda r: r, {"ids": [*"abcde", ""]}, "new object 5 is empty"),
    ("few", lambda r: r, {"ids": ["a"]}, "1 id for the 6 new objects"),
    ("unnamed", lambda r: r, {"ids": None}, r"has no names of its 6 new objects.*such as bird 0; give them: ids=FILE"),
    ("nan", lambda r: at(r, 2, 3, np.nan), {}, r"missing values \(NaN\): .*bird 3 \(object 3\) and c \(object 16\)"),
    ("negative", lambda r: at(r, 2, 3, -1.0), {}, r"negative values in a distance"),
    ("asymmetric", lambda r: at(r, 2, 15, 9.0), {}, r"asymmetric: 1 pair .*b \(object 15\) and c \(object 16\)"),
    ("diagonal", lambda r: at(r, 2, 16, 0.5), {}, r"diagonal is not zero: 1 object .*c \(object 16\): 0.5"),
    ("infinite", lambda r: at(r, 2, 3, np.inf), {}, r"infinite values"),
    ("maximum", lambda r: r, {"policy": Policy(missing="max")}, r"in imports only: .*; say Policy\(missing=VALUE\)"),
    ("text", lambda r: np.full(r.shape, "a"), {}, "give numbers|give rows of numbers"),
]


def at(rows: Any, row: int, column: int, value: float) -> Any:
    changed = rows.copy()
    changed[row, column] = value
    return changed


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("case", "change", "more", "report"), REFUSED, ids=[case[0] for case in REFUSED])
def test_refused_and_nothing_is_left_behind(
    tmp_path: Path, case: str, change: Any, more: dict[str, Any], report: str
) -> None:
    square, names, rows = named_rows()
    stored(store := tmp_path / "s", square[:14, :14], ids=names[:14], tile=8)
    before = facts(store)
    with pytest.raises(InputError, match=report) as caught:
        append(store, change(rows), **{"ids": list("abcdef"), **more})
    assert "\n" not in str(caught.value)
    assert facts(store) == before
    assert "progress" not in zarr.open_group(store, mode="r")
    assert zarr.open_group(store, mode="r")["values"].shape == (14, 14)  # type: ignore[union-attr]
    matrix = append(store, rows, ids=names[14:]).matrix  # and it can be done right
    np.testing.assert_array_equal(matrix.rows(names), square.astype("float32"))
    with pytest.raises(InputError, match=r"6 rows and 20 columns; .*6 x 26"):
        append(store, rows, ids=names[14:])
    with pytest.raises(InputError, match=r"6 of 6 new objects already in"):
        append(store, np.hstack([rows, rows[:, 14:]]), ids=names[14:])


def test_columns_that_fit_no_object(tmp_path: Path) -> None:
    square, names, rows = named_rows()
    stored(store := tmp_path / "s", square[:14, :14], ids=names[:14], tile=8)
    wrong = as_csv(tmp_path / "a.csv", rows, names[14:], ["fish", *names[1:]])
    with pytest.raises(InputError, match="1 object has no column: bird 0; columns of no object: fish;"):
        append(store, wrong)
    twice = as_csv(tmp_path / "b.csv", rows, names[14:], [names[1], *names[1:]])
    with pytest.raises(InputError, match="columns are not unique: bird 1;"):
        append(store, twice)


# ------------------------------------------------------------------------------------------------------------ features


def features_of(n: int) -> Any:
    return np.random.default_rng(3).integers(0, 2, (n, 40)).astype("float64")


@pytest.mark.slow(after=1)
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
        assert_alike(store, tmp_path / "w")
    np.testing.assert_allclose(done.matrix.rows(done.matrix.ids), whole.rows(whole.ids), rtol=1e-6, atol=1e-7)
    assert audit_store(store, verify=True)["verified"]["bad"] == []
    assert [one["as"] for one in audit_store(store)["provenance"]["appends"]] == ["features", "features"]


@pytest.mark.slow
def test_features_in_memory_and_sparse(tmp_path: Path) -> None:
    from scipy.sparse import csr_array

    features = features_of(30)
    for name, given in (("dense", features), ("sparse", csr_array(features))):
        dasrel.pairwise(given[:20], tmp_path / name, metric="cosine", writing=Writing(tile=16))
        matrix = append(tmp_path / name, given[20:], features=given[:20]).matrix
        expected = cdist(features, features, "cosine")
        np.testing.assert_allclose(matrix.rows(matrix.ids), expected, atol=1e-6)


@pytest.mark.slow
def test_features_that_cannot_be_appended(tmp_path: Path) -> None:
    features = features_of(30)
    old, new = features[:20], features[20:]
    made = tmp_path / "made"
    dasrel.pairwise(old, made, metric="cityblock", writing=Writing(tile=16))
    with pytest.raises(InputError, match=r"has crc32c: .*, and the features .* had crc32c: .*give those"):
        append(made, new, features=old + 1)
    with pytest.raises(
        InputError, match=r"was made from the features in .*; 2 are given, not 1; give them in this order"
    ):
        append(made, new, features=[old, new])
    with pytest.raises(
        InputError, match="39 columns of numbers; give 40, as in the features that the store was made from"
    ):
        append(made, new[:, 1:], features=old)
    with pytest.raises(InputError, match=r"is in .* already; give ids"):
        append(made, old, features=old)
    with pytest.raises(
        InputError, match=r"10 rows and 40 columns; 10 new .* are 10 x 30; for features say features=OLD"
    ):
        append(made, new)
    with pytest.raises(InputError, match="missing or infinite values"):
        append(made, np.where(np.arange(40) == 3, np.nan, new), features=old)
    rows = cdist(new, features, "cityblock")
    append(made, rows)
    with pytest.raises(InputError, match=r"append 1 to .* was one of rows, without features"):
        append(made, new, features=[old, new])
    stored(imported := tmp_path / "imported", distances_with_zeros(20)[:14, :14], tile=8)
    with pytest.raises(InputError, match="was not made by `dasrel pairwise`; append the rows"):
        append(imported, new, features=old)
    dasrel.pairwise(old, tmp_path / "fitted", metric="seuclidean")
    with pytest.raises(InputError, match="seuclidean took its V from all features"):
        append(tmp_path / "fitted", new, features=old)
    weights = {"w": np.linspace(1, 2, 100)}
    wide = np.random.default_rng(0).random((20, 100))
    dasrel.pairwise(wide, tmp_path / "weighted", metric="cityblock", metric_options=weights)
    with pytest.raises(InputError, match="keeps only a checksum of the metric's w"):
        append(tmp_path / "weighted", wide[:3] + 1, features=wide)


# ----------------------------------------------------------------------------------------------------- the command line


def run(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    assert app.run(line.split()) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    square, names, rows = named_rows()
    stored(tmp_path / "s.zarr", square[:14, :14], ids=names[:14], tile=8)
    as_csv(tmp_path / "rows.csv", rows, names[14:], names)
    assert app.run(["append", "s.zarr", "rows.csv"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "store    s.zarr",
        "objects  14 and 6 more: 20",
        f"tiles    3 new and 2 grown of 6, {5 * (8 * 8 * 4 + 4):,} bytes",
    ]
    assert app.run(["append", "s.zarr", "rows.csv", "--json"]) == 1
    assert "6 rows and 20 columns" in json.loads(capsys.readouterr().out)["error"]
    more = distances_with_zeros(22)[20:]
    more[0, 21] += 0.5
    more[1, 3] = np.nan
    np.save("more.npy", more)
    (tmp_path / "ids.txt").write_text("owl\nrook\n")
    assert app.run(["append", "s.zarr", "more.npy"]) == 1
    assert "give them: --ids FILE" in capsys.readouterr().err
    assert app.run(["append", "s.zarr", "more.npy", "--ids", "ids.txt", "--missing", "max"]) == 2
    capsys.readouterr()
    done = run(capsys, "append s.zarr more.npy --ids ids.txt --missing fill=1 --symmetrize mean --json")
    wanted = {"n_objects": 22, "new_objects": 2, "tiles_written": 0, "tiles_grown": 3, "resumed": False}
    assert {name: done[name] for name in wanted} == wanted
    matrix = open_matrix("s.zarr")
    row = matrix.rows(["owl"])[0]
    assert row[21] == np.float32((more[0, 21] + more[1, 20]) / 2)
    assert matrix.rows(["rook"])[0][3] == 1
    assert audit_store("s.zarr")["provenance"]["appends"][1]["policy"]["missing"] == 1.0


@pytest.mark.slow
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
    rule = "--rule fcm2 --clusters 10 --entropy-weight 0.03 --on-negative heal --no-accelerate --json"
    run(capsys, f"cluster s.zarr before {rule} --n-init 2 --init random")
    done = run(capsys, "append s.zarr new.npy --features old.npy --json")
    assert_alike(tmp_path / "s.zarr", tmp_path / "whole.zarr")
    now = marks(tmp_path / "s.zarr")
    assert [name for name in seen if now[name] != seen[name]] == [f"{i}/6" for i in range(7)]
    assert (done["tiles_written"], done["tiles_grown"], done["tiles"]) == (8, 7, 36)
    assert done["bytes_written"] == 15 * (256 * 256 * 4 + 4)
    cold = run(capsys, f"cluster s.zarr cold {rule} --n-init 2 --init random")
    warm = run(capsys, f"cluster s.zarr warm {rule} --warm-start before")
    with open("cold/runs.csv", encoding="utf-8") as file:
        quickest = min(int(one["n_iter"]) for one in csv.DictReader(file))
    assert warm["scans"] < quickest <= cold["scans"]
    assert warm["converged"]
    report = warm["warm_start"]
    assert report["moved"] <= 0.02 * 1617
    assert report["order"] == list(range(10))
    assert (report["objects_before"], report["new_objects"]) == (1617, 180)
    assert sum(report["new_per_cluster"]) == 180


@pytest.mark.slow
def test_obsolete_records_with_damaged_metadata_do_not_end_an_append(tmp_path: Path) -> None:
    """The records of the append before the last are removed at the end; nobody reads them, damaged or not."""
    square = distances_with_zeros(12, "float64")
    store = tmp_path / "grown"
    writing = Writing(dtype="float64", tile=4)
    dasrel.import_matrix(square[:6, :6], store, kind="distance", writing=writing)
    append(store, square[6:8, :8])
    append(store, square[8:10, :10])
    kept = {path.name for path in store.iterdir() if path.name.startswith("records")}
    assert kept == {"records-8", "records-10"}
    (store / "records-8" / "zarr.json").write_text("{")
    append(store, square[10:, :])
    matrix = open_matrix(store)
    np.testing.assert_array_equal(np.asarray(matrix), square)
    assert audit_store(store, verify=True)["n_objects"] == 12
