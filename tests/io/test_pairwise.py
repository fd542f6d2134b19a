"""Features and a metric, or a function of two ranges, into a store."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse
import zarr
from scipy.spatial.distance import cdist

import dasrel
from dasrel import DasrelError, InputError, MemoryLimitError, Policy, StoreError
from dasrel.io.append import append
from dasrel.io.features import read_features
from dasrel.io.metrics import made_ready, resolve, tile_values
from dasrel.io.options import PairwiseParameters
from dasrel.io.pairwise import from_blocks, pairwise
from dasrel.store.options import Writing
from tests.helpers.matrices import normal_points
from tests.helpers.stores import files, whole

N = 45
TILE = 16  # three tiles a side, the last one ragged
DOUBLE = Writing(tile=TILE, dtype="float64")
SINGLE = Writing(tile=TILE)


# ---- packed bits ----


def fingerprints(n: int = N) -> Any:
    bits = np.random.default_rng(3).random((n, 256)) < np.random.default_rng(4).random((n, 1))
    bits[:, 0] = True  # none is empty
    return bits


@pytest.mark.parametrize("metric", ["tanimoto", "jaccard", "hamming", "simpson", "dice"])
def test_packed_bits_are_refused_as_numbers_and_unpacked_on_request(tmp_path: Path, metric: str) -> None:
    bits = fingerprints()
    packed = np.packbits(bits, axis=1)
    np.save(tmp_path / "x.npy", packed)
    kind = "similarity" if metric == "tanimoto" else "distance"
    with pytest.raises(InputError, match=rf"metric {metric} is of bits, and .*x.npy holds bytes up to 255") as error:
        pairwise(tmp_path / "x.npy", tmp_path / "s", metric=metric, kind=kind)
    assert "say packed_bits=True" in str(error.value)
    expected = whole(pairwise(bits, tmp_path / "bits", metric=metric, kind=kind, writing=DOUBLE))
    for k, source in enumerate((tmp_path / "x.npy", packed)):
        found = pairwise(source, tmp_path / f"{k}", metric=metric, kind=kind, packed_bits=True, writing=DOUBLE)
        np.testing.assert_array_equal(whole(found), expected)
        assert found.manifest["provenance"]["features"] == [N, 256]
    # bytes of 0 and 1 are bits, one each
    found = pairwise(bits.astype(np.uint8), tmp_path / "ones", metric=metric, kind=kind, writing=DOUBLE)
    np.testing.assert_array_equal(whole(found), expected)


def test_packed_bits_are_appended_as_they_were(tmp_path: Path) -> None:
    bits = fingerprints()
    for name, part in (("old", bits[:30]), ("new", bits[30:])):
        np.save(tmp_path / f"{name}.npy", np.packbits(part, axis=1))
    given = {"metric": "tanimoto", "kind": "similarity", "packed_bits": True, "writing": DOUBLE}
    pairwise(tmp_path / "old.npy", tmp_path / "s", **given)
    matrix = append(tmp_path / "s", tmp_path / "new.npy", features=tmp_path / "old.npy").matrix
    expected = pairwise(np.packbits(bits, axis=1), tmp_path / "all", **given)
    np.testing.assert_array_equal(whole(matrix), whole(expected))


@pytest.mark.parametrize("rows", [np.ones((4, 3)), scipy.sparse.csr_array(np.ones((4, 3), np.uint8))])
def test_only_bytes_are_packed_bits(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(InputError, match=r"packed bits are bytes .uint8. with 8 bits in each"):
        pairwise(rows, tmp_path / "s", metric="jaccard", packed_bits=True)


# ---- what is refused ----


@pytest.mark.parametrize(("arguments", "message"), [
    ({"metric": "euclidian"}, "no metric 'euclidian'; did you mean .*euclidean"),
    ({"metric": "rbf"}, "rbf is a kernel: say kind='kernel'"),
    ({"metric": "qqqqqqqq"}, "known: .*braycurtis"),
    ({"metric": "wminkowski"}, "use minkowski"),
    ({"metric": "canberra", "kind": "kernel"}, "canberra gives distances"),
    ({"metric": "rfb", "kind": "kernel"}, "did you mean rbf"),
    ({"metric": "euclidean", "kind": "squared"}, "kind must be one of distance, .*, not 'squared'"),
    ({"metric": "euclidean", "metric_options": {"q": 3}}, "no option q; it takes w"),
    ({"metric": "simpson", "metric_options": {"w": 3}}, "no option w; it takes none"),
    ({"metric": "haversine"}, "haversine for features of"),
    ({"metric": "minkowski", "metric_options": {"p": -1}}, "metric minkowski: p must be above 0, not -1"),
    ({"metric": "cityblock", "metric_options": {"w": [1, 2]}}, "metric cityblock: "),
    ({"metric": "jaccard"}, "true or false .*: 0 .object 0., 1 .object 1., 2 .object 2. and 42 more"),
    ({"metric": "jensenshannon"}, "0 or more"),
    ({"metric": "chi2", "kind": "kernel"}, "0 or more"),
    ({"metric": "euclidean", "ids": ["a", "b"]}, "2 ids for 45 objects"),
])  # fmt: skip
def test_refused_before_a_store_is_begun(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as report:
        pairwise(normal_points(N, 6), tmp_path / "s", **arguments)
    assert "\n" not in str(report.value)
    assert not (tmp_path / "s").exists()


def test_options_of_no_metric_are_refused_before_there_are_features() -> None:
    """A dry run of a workflow reads no features: the step before has not made them."""
    for metric, kind, options in (
        ("euclidian", "distance", {}),
        ("rbf", "distance", {}),
        ("dice", "distance", {"p": 2.0}),
    ):
        with pytest.raises(InputError, match=r"no metric|no option"):
            PairwiseParameters(metric, kind, options)
    assert PairwiseParameters("l2").metric == "l2"


@pytest.mark.parametrize(("metric", "row", "message"), [
    ("cosine", np.zeros(6), r"rows of zeros: 5 \(object 5\)"),
    ("correlation", np.full(6, 3.0), r"constant rows: 5 \(object 5\)"),
])  # fmt: skip
def test_rows_without_a_value_are_named(tmp_path: Path, metric: str, row: Any, message: str) -> None:
    x = normal_points(N, 6)
    x[5] = row
    with pytest.raises(InputError, match=message):
        pairwise(x, tmp_path / "s", metric=metric)


def test_pairs_without_a_value_are_named(tmp_path: Path) -> None:
    x = np.abs(normal_points(N, 6))
    x[[3, 20]] = 0  # Bray-Curtis of two empty rows is 0 / 0
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(InputError, match=r"braycurtis gives no value .* 3 and 20; leave"),
    ):
        pairwise(x, tmp_path / "s", metric="braycurtis", writing=SINGLE)
    assert not (tmp_path / "s").exists()
    gaps = normal_points(20, 2)
    gaps[2, 0] = gaps[17, 1] = np.nan
    with pytest.raises(InputError, match=r"nan_euclidean gives no value .* 2 and 17"):
        pairwise(gaps, tmp_path / "s", metric="nan_euclidean", writing=SINGLE)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_missing_and_infinite_features_are_named(tmp_path: Path, make: Any) -> None:
    x = normal_points(N, 6)
    x[7, 3] = np.nan
    x[11, 0] = np.inf
    x[30, 1:4] = -np.inf
    names = [f"m{k}" for k in range(N)]
    with pytest.raises(InputError, match=r"row 7 \(m7\), column 3: nan, row 11 \(m11\), column 0: inf, .* and 2 more"):
        pairwise(make(x), tmp_path / "s", metric="euclidean", ids=names)
    assert not (tmp_path / "s").exists()


def test_statistics_that_do_not_exist(tmp_path: Path) -> None:
    x = normal_points(N, 6)
    x[:, 2] = 4
    with pytest.raises(InputError, match="these are 0: column 2"):
        pairwise(x, tmp_path / "s", metric="seuclidean")
    with pytest.raises(InputError, match="has no inverse"):
        pairwise(x, tmp_path / "s", metric="mahalanobis")


@pytest.mark.parametrize(("features", "message"), [
    (np.zeros(4), "1 dimensions"),
    (np.zeros((0, 4)), "0 rows and 4 columns"),
    (np.zeros((4, 0)), "4 rows and 0 columns"),
    (np.array([["a", "b"]]), "give numbers"),
    (np.zeros((3, 2), complex), "give numbers"),
    (np.zeros((1, 2)), "single object"),
])  # fmt: skip
def test_arrays_that_are_no_features(tmp_path: Path, features: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pairwise(features, tmp_path / "s", metric="euclidean")


def test_memory_is_checked_before_a_store_is_begun(tmp_path: Path) -> None:
    with pytest.raises(MemoryLimitError, match="pairwise needs"):
        pairwise(normal_points(N, 6), tmp_path / "s", metric="euclidean", writing=Writing(memory=1000))
    with pytest.raises(MemoryLimitError, match="from_blocks needs"):
        from_blocks(distances, N, tmp_path / "s", kind="distance", writing=Writing(memory=1000))
    assert not (tmp_path / "s").exists()


def test_predicted_memory_is_not_below_the_measured(tmp_path: Path) -> None:
    x = normal_points(1100, 40)
    for data in (x, scipy.sparse.csr_array(x * (x > 1))):
        found = read_features(data)
        for name in ("euclidean", "cosine", "cityblock", "correlation", "canberra", "simpson"):
            metric = made_ready(resolve(name, "distance", None), found, np.dtype("f4"))
            predicted = metric.memory(1100, found.strip_bytes(1100, sparse=metric.takes_sparse), 4)
            tracemalloc.start()
            try:
                tile_values(metric, found.data, found.data, same=False, dtype=np.dtype("f4"))
                measured = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert measured <= predicted, name


# ---- writing: refuse, resume, force ----


def test_existing_stores_are_safe(tmp_path: Path) -> None:
    pairwise(normal_points(N, 6), tmp_path / "s", metric="euclidean", writing=SINGLE)
    before = files(tmp_path / "s")
    with pytest.raises(StoreError, match="exists"):
        pairwise(normal_points(N, 6), tmp_path / "s", metric="cityblock", writing=SINGLE)
    assert files(tmp_path / "s") == before
    forced = pairwise(
        normal_points(N, 6), tmp_path / "s", metric="cityblock", writing=Writing(tile=TILE, force=True, dtype="float64")
    )
    np.testing.assert_allclose(whole(forced), cdist(normal_points(N, 6), normal_points(N, 6), "cityblock"), rtol=1e-12)


def test_pairwise_resumes_the_same_features_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal_points(N, 6)
    pairwise(x, tmp_path / "whole", metric="euclidean", writing=SINGLE)
    computed = []
    module = sys.modules[pairwise.__module__]  # the package's attribute of this name is the function
    real = tile_values

    def failing(metric: Any, rows: Any, columns: Any, **rest: Any) -> Any:
        if len(computed) == 3:
            raise OSError("the machine is gone")
        computed.append(rows.shape)
        return real(metric, rows, columns, **rest)

    monkeypatch.setattr(module, "tile_values", failing)
    with dask.config.set(num_workers=1), pytest.raises(OSError, match="the machine is gone"):
        pairwise(x, tmp_path / "s", metric="euclidean", writing=SINGLE)
    monkeypatch.setattr(module, "tile_values", real)
    again = Writing(tile=TILE, resume=True)
    with pytest.raises(StoreError, match="begun with features_checksum"):
        pairwise(x + 1, tmp_path / "s", metric="euclidean", writing=again)
    with pytest.raises(StoreError, match="begun with metric euclidean, now it is cityblock"):
        pairwise(x, tmp_path / "s", metric="cityblock", writing=again)
    with dasrel.watch() as meter:
        pairwise(x, tmp_path / "s", metric="euclidean", writing=again)
    assert meter.tiles == 3  # of 6
    assert files(tmp_path / "s") == files(tmp_path / "whole")


# ---- a function of two ranges ----


def distances(rows: range, columns: range) -> Any:
    x = normal_points(N, 6)
    return cdist(x[rows.start : rows.stop], x[columns.start : columns.stop])


def test_from_blocks(tmp_path: Path) -> None:
    requested = []

    def function(rows: range, columns: range) -> Any:
        requested.append((rows, columns))
        return distances(rows, columns)

    names = [f"m{k}" for k in range(N)]
    found = from_blocks(function, N, tmp_path / "s", kind="distance", ids=names, writing=DOUBLE)
    np.testing.assert_array_equal(whole(found), cdist(normal_points(N, 6), normal_points(N, 6)))
    strips = [range(0, 16), range(16, 32), range(32, 45)]
    assert sorted(requested, key=str) == sorted([(a, b) for a in strips for b in strips if a.start <= b.start], key=str)
    assert list(found.ids) == names
    assert found.manifest["provenance"]["source"] == f"function {__name__}.test_from_blocks.<locals>.function"


def test_from_blocks_takes_what_becomes_an_array(tmp_path: Path) -> None:
    found = from_blocks(lambda r, c: [[i * j for j in c] for i in r], 5, tmp_path / "s", kind="kernel")
    np.testing.assert_array_equal(whole(found), np.outer(range(5), range(5)))
    source = functools.partial(distances)
    found = from_blocks(source, N, tmp_path / "t", kind="distance")
    assert found.manifest["provenance"]["source"] == f"function {__name__}.distances"


MIDDLE = (range(0, 16), range(16, 32))
SPANS = "objects 0 to 15 against 16 to 31"


def with_flaw(flaw: Any, rows: range, columns: range) -> Any:
    return flaw(distances(rows, columns), rows, columns)


@pytest.mark.parametrize(("flaw", "message"), [
    (lambda d, r, c: d[: 15 if (r, c) == MIDDLE else 16], rf"shape \(15, 16\) for {SPANS}; return \(16, 16\)"),
    (lambda d, r, c: np.where((r, c) == MIDDLE, np.nan, d), f"{SPANS}: missing values"),
    (lambda d, r, c: np.where((r, c) == MIDDLE, np.inf, d), f"{SPANS}: infinite values"),
    (lambda d, r, c: d - ((r, c) == MIDDLE) * 9, f"{SPANS}: negative values.*m0 .object 0. and m16 "),
    (lambda d, r, c: d + 1, r"objects (.*) against \1: diagonal is not zero"),
    (lambda d, r, c: 2 * np.triu(d) + np.tril(d) if r == c else d, r"objects (.*) against \1: asymmetric"),
    (lambda d, r, c: d.astype(str), "type <U"),
    (lambda d, r, c: None, r"shape \(\)"),
])  # fmt: skip
def test_blocks_with_flaws_name_the_objects(tmp_path: Path, flaw: Any, message: str) -> None:
    with dask.config.set(num_workers=1), pytest.raises(InputError, match=message) as report:
        from_blocks(
            functools.partial(with_flaw, flaw), N, tmp_path / "s", kind="distance",
            ids=[f"m{k}" for k in range(N)], writing=SINGLE,
        )  # fmt: skip
    assert "\n" not in str(report.value)


def test_the_policy_applies_to_blocks(tmp_path: Path) -> None:
    policy = Policy(symmetrize="mean", diagonal="zero")
    flawed = functools.partial(with_flaw, lambda d, r, c: np.triu(d) * 2 + 1 if r == c else d)
    found = from_blocks(flawed, N, tmp_path / "s", kind="distance", policy=policy, writing=DOUBLE)
    expected = cdist(normal_points(N, 6), normal_points(N, 6))
    for start in (0, 16, 32):
        expected[start : start + 16, start : start + 16] += 1
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(whole(found), expected, rtol=1e-12)
    assert found.manifest["input"]["symmetrize"] == "mean"


def test_arguments_of_from_blocks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="callable"):
        from_blocks("cdist", N, tmp_path / "s", kind="distance")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="retries"):
        from_blocks(distances, N, tmp_path / "s", kind="distance", retries=-1)
    with pytest.raises(InputError, match="kind must be"):
        from_blocks(distances, N, tmp_path / "s", kind="near")
    with pytest.raises(InputError, match="n = 0"):
        from_blocks(distances, 0, tmp_path / "s", kind="distance")
    assert not (tmp_path / "s").exists()


class Flaky:
    """Fails a given number of times for each tile; the count lies on disk, where all processes see it."""

    def __init__(self, folder: Path, fails: int) -> None:
        self.folder = folder
        self.fails = fails

    def __call__(self, rows: range, columns: range) -> Any:
        with open(self.folder / f"{rows.start}-{columns.start}", "a+", encoding="ascii") as file:
            file.write("x")
            file.flush()
            calls = os.fstat(file.fileno()).st_size
        if calls <= self.fails:
            raise TwoWords("docking", "failed")
        return distances(rows, columns)

    def calls(self) -> list[int]:
        return [len(p.read_text()) for p in sorted(self.folder.iterdir())]


class TwoWords(Exception):  # noqa: N818
    """An error that cannot be pickled and made again, as many cannot."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_a_failing_function_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=2)
    found = from_blocks(flaky, N, tmp_path / "s", kind="distance", writing=DOUBLE)
    np.testing.assert_array_equal(whole(found), cdist(normal_points(N, 6), normal_points(N, 6)))
    assert flaky.calls() == [3] * 6


def test_what_is_left_of_a_failure_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=0)
    (tmp_path / "calls" / "16-32").touch()
    original = RuntimeError("no licence left")

    def function(rows: range, columns: range) -> Any:
        if (rows.start, columns.start) == (16, 32) and not (tmp_path / "fixed").exists():
            raise original
        return flaky(rows, columns)

    with (
        dask.config.set(num_workers=1),
        pytest.raises(
            DasrelError, match="objects 16 to 31 against 32 to 44 after 3 tries: RuntimeError: no licence left; fix"
        ) as report,
    ):
        from_blocks(function, N, tmp_path / "s", kind="distance", writing=DOUBLE)
    assert report.value.__cause__ is original
    (tmp_path / "fixed").touch()
    again = Writing(tile=TILE, dtype="float64", resume=True)
    with pytest.raises(StoreError, match=r"begun with source function .*, now it is function .*distances"):
        from_blocks(distances, N, tmp_path / "s", kind="distance", writing=again)
    found = from_blocks(function, N, tmp_path / "s", kind="distance", writing=again)
    np.testing.assert_array_equal(whole(found), cdist(normal_points(N, 6), normal_points(N, 6)))
    assert flaky.calls() == [1] * 6


BLOCKS = """
import sys, time
import dask
import numpy as np
from dasrel.io.pairwise import from_blocks
from dasrel.store.writer import Writing

def function(rows, columns):
    with open(sys.argv[2], "a") as log:
        log.write(f"{rows.start // 8} {columns.start // 8}\\n")
    time.sleep(float(sys.argv[3]))
    return np.abs(np.subtract.outer(np.array(rows) ** 1.5, np.array(columns) ** 1.5))

if __name__ == "__main__":
    with dask.config.set(num_workers=2):
        from_blocks(function, 60, sys.argv[1], kind="distance", writing=Writing(tile=8, resume=sys.argv[4] == "resume"))
"""


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(textwrap.dedent(BLOCKS))

    def command(store: str, log: str, seconds: float, how: str) -> list[str]:
        return [sys.executable, str(script), str(tmp_path / store), str(tmp_path / log), str(seconds), how]

    def calls(log: str) -> list[tuple[int, int]]:
        text = (tmp_path / log).read_text() if (tmp_path / log).exists() else ""
        return [(int(i), int(j)) for i, j in (line.split() for line in text.splitlines())]

    unhurt = subprocess.Popen(command("whole", "third", 0, "new"))
    killed = subprocess.Popen(command("killed", "first", 0.05, "new"))
    limit = time.monotonic() + 60
    while len(calls("first")) < 12 and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    with pytest.raises(StoreError, match="unfinished"):
        dasrel.open_matrix(tmp_path / "killed")
    done = ~np.isnan(np.asarray(zarr.open_group(tmp_path / "killed", mode="r")["progress"][..., 0]))  # type: ignore[index]
    missing = {(i, j) for i in range(8) for j in range(i, 8) if not done[i, j]}
    assert 10 < len(missing) < 36

    subprocess.run(command("killed", "second", 0, "resume"), check=True, timeout=60)
    assert sorted(calls("second")) == sorted(missing)
    assert unhurt.wait(60) == 0
    assert len(calls("third")) == 36
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    points = np.arange(60.0) ** 1.5
    expected = np.abs(np.subtract.outer(points, points)).astype(np.float32)
    np.testing.assert_array_equal(whole(dasrel.open_matrix(tmp_path / "killed")), expected)


# ---- on a cluster ----


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("metric", ["euclidean", "mahalanobis", "simpson", "canberra"])
def test_a_cluster_writes_the_same_bytes(tmp_path: Path, workers: Any, metric: str) -> None:
    from distributed import Client

    x = normal_points(300, 9) + 5
    np.save(tmp_path / "x.npy", x)
    sources = {"array": x, "sparse": scipy.sparse.csr_array(x), "mapped": tmp_path / "x.npy"}
    writing = Writing(tile=64)
    for name, source in sources.items():
        pairwise(source, tmp_path / f"{name}-threads", metric=metric, writing=writing)
    with Client(workers):
        for name, source in sources.items():
            pairwise(source, tmp_path / f"{name}-cluster", metric=metric, writing=writing)
    for name in sources:
        assert files(tmp_path / f"{name}-threads") == files(tmp_path / f"{name}-cluster"), name


@pytest.mark.usefixtures("client")
def test_from_blocks_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=1)
    found = from_blocks(flaky, N, tmp_path / "s", kind="distance", writing=DOUBLE)
    np.testing.assert_array_equal(whole(found), cdist(normal_points(N, 6), normal_points(N, 6)))
    assert flaky.calls() == [2] * 6


@pytest.mark.usefixtures("client")
def test_failures_on_a_cluster_are_reported(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    flaky = Flaky(tmp_path / "calls", fails=9)
    with pytest.raises(DasrelError, match=r"after 2 tries: .*TwoWords: docking failed; fix") as report:
        from_blocks(flaky, N, tmp_path / "s", kind="distance", retries=1, writing=DOUBLE)
    assert "docking failed" in str(report.value.__cause__)
    x = np.abs(normal_points(N, 6))
    x[[3, 20]] = 0
    with pytest.raises(InputError, match=r"braycurtis gives no value .* 3 and 20; leave"):
        pairwise(x, tmp_path / "t", metric="braycurtis", writing=SINGLE)
