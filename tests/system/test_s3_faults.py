"""An S3 server that fails for a while, or for good."""

import gc
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasrel
from dasrel import Writing
from dasrel.errors import StoreError
from tests.helpers.faults import Front
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.processes import line_of, ran


@pytest.fixture(scope="module")
def front(s3_server: tuple[str, int]) -> Iterator[Front]:
    """A server that speaks S3, behind one that fails when it is told to; requests are given up after a second."""
    s3fs = pytest.importorskip("s3fs")
    made = Front(*s3_server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", made.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing-geheim")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "3")
        patch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # not every server knows checksums of bodies
        patch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
        patch.setattr(s3fs.S3FileSystem, "read_timeout", 1)
        patch.setattr(s3fs.S3FileSystem, "retries", 3)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().makedirs("failing-matrices", exist_ok=True)  # by an earlier module in this process
        yield made
        s3fs.S3FileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda report: None)
        gc.collect()  # requests that were given up complain when they are collected, now or in another test
    made.close()


def counted(answers: dict[int, float], part: str) -> Callable[[str, str], float | None]:
    """A fault that answers request number k for paths with `part` in them by itself, counted from 1."""
    number = [0]

    def fault(method: str, path: str) -> float | None:
        if part not in path:
            return None
        number[0] += 1
        return answers.get(number[0])

    return fault


def test_a_server_that_fails_for_a_while(front: Front) -> None:
    """Errors, refusals and silence, to reads and writes: all are tried again, after a while."""
    square = distances(grouped_points(40))
    front.fault = counted({1: 503, 2: 500, 4: 503, 6: 0.0, 8: 500}, "/values/c/")
    dasrel.import_matrix(square, "s3://failing-matrices/a", kind="distance", writing=Writing("float64", tile=20))
    front.fault = counted({1: 500, 2: 503, 4: 3.0, 6: 500}, "/values/c/")
    front.seen.clear()
    found = dasrel.open_matrix("s3://failing-matrices/a")
    np.testing.assert_array_equal(found.rows(found.ids), square)
    times = [at for _, path, _, at in front.seen if "/values/c/0/0" in path]
    assert sum(answer is not None for _, _, answer, _ in front.seen) == 4
    assert len(times) >= 3


def test_a_server_that_fails_for_good(front: Front, capfd: pytest.CaptureFixture[str]) -> None:
    url, matrix = "s3://failing-matrices/b", distances(grouped_points(40))
    front.fault = lambda method, path: 503 if method == "PUT" and "/values/c/" in path else None
    front.seen.clear()
    with pytest.raises(StoreError, match=rf"{url} cannot be written: .*; what is written stays.* resume=True"):
        dasrel.import_matrix(matrix, url, kind="distance", writing=Writing("float64", tile=20))
    tries = [one for one in front.seen if one[2] is not None]
    assert 3 <= len(tries) <= 100  # bounded: of 3 tiles at once
    front.fault = lambda method, path: None
    resume = Writing("float64", tile=20, resume=True)
    dasrel.import_matrix(matrix, url, kind="distance", writing=resume)
    front.fault = lambda method, path: 500 if "/values/c/" in path else None
    capfd.readouterr()
    assert ran("spectrum", url, "--quiet") == 1
    assert re.search(
        r"the tile cannot be read \(.*(Unavailable|Error|not now).*: tile \(0, 0\) of s3://", line_of(capfd)
    )
    front.fault = lambda method, path: 500
    assert ran("spectrum", url, "--quiet") == 1
    assert re.search(rf"{url} cannot be opened: ", line_of(capfd))


FAULTS: dict[str, float | str] = {
    "lost": "lost", "short": "short", "repeated": "repeated", "slow": "slow", "reset": 0.0, "500": 500, "503": 503,
}  # fmt: skip
SHARE = 0.4
"""Share of the requests that fail."""
TILES, PLACES = "/values/c/", ("tiles", "others")
CASES = [
    *(
        (name, "PUT", place, fault)
        for name in ("import", "append")
        for place in ("tiles", "others")
        for fault in FAULTS
    ),
    *((name, "GET", "all", fault) for name in ("append", "cluster") for fault in FAULTS),
]


@pytest.fixture(scope="module")
def given(front: Front, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, bytes]]]:
    """A folder with a matrix and rows, and what each command leaves where nothing fails."""
    folder = tmp_path_factory.mktemp("given")
    values = distances(grouped_points(60), dtype="float32")
    np.save(folder / "d.npy", values[:50, :50])
    np.save(folder / "rows.npy", values[50:])
    front.fault = lambda method, path: None
    whole = {}
    for name in ("import", "append", "cluster"):
        if name == "append":
            copied("import", "append")
        assert ran(*words(name, folder, "import" if name == "cluster" else name)) == 0
        whole[name] = left_by(name, folder)
    return folder, whole


def words(command: str, folder: Path, name: str) -> list[str]:
    url = f"s3://failing-matrices/{name}"
    hard = ["--rule", "hard", "--clusters", "2", "--n-init", "1", "--max-iter", "2", "--no-picture", "--quiet"]
    return {
        "import": ["import", f"{folder}/d.npy", url, "--kind", "distance", "--tile", "16", "--quiet"],
        "append": ["append", url, f"{folder}/rows.npy", "--quiet"],
        "cluster": ["cluster", url, f"{folder}/out", *hard],
    }[command]


def copied(old: str, new: str) -> None:
    import s3fs

    system = s3fs.S3FileSystem()
    system.invalidate_cache()
    for key in system.find(f"failing-matrices/{old}"):
        system.copy(key, key.replace(f"/{old}/", f"/{new}/", 1))


def left_by(name: str, folder: Path) -> dict[str, bytes]:
    """All objects of a store, or the table of a clustering."""
    import s3fs

    if name in ("import", "append") or "-" in name:
        system = s3fs.S3FileSystem()
        system.invalidate_cache()
        root = f"failing-matrices/{name}/"
        return {key.removeprefix(root): system.cat(key) for key in system.find(root)}
    return {name: (folder / "out" / name).read_bytes() for name in ("memberships.npy", "labels.csv")}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "method", "place", "fault"), CASES)
def test_a_share_of_all_requests_fails(
    front: Front, given: Any, capfd: pytest.CaptureFixture[str], command: str, method: str, place: str, fault: str
) -> None:
    """The command ends well or with one line, and the same again, when nothing fails any more, leaves the same bits."""
    folder, whole = given
    name = f"{command}-{method}-{place}-{fault}"
    front.fault = lambda method, path: None
    shutil.rmtree(folder / "out", ignore_errors=True)
    if command != "import":
        copied("import", name)
    chance, hits = random.Random(f"{name} 1"), []

    def fail(asked: str, path: str) -> float | str | None:
        concerned = asked in ("PUT", "GET", "HEAD") and (asked == "PUT") == (method == "PUT") and name in path
        if not concerned or (place != "all" and (TILES in path) != (place == "tiles")) or chance.random() > SHARE:
            return None
        hits.append(path)
        return FAULTS[fault]

    front.fault = fail
    line = words(command, folder, name)
    capfd.readouterr()
    code = ran(*line)
    report = [line for line in capfd.readouterr().err.splitlines() if "warning" not in line]
    front.fault = lambda method, path: None
    assert hits
    assert code in (0, 1)
    assert len(report) == code, report
    assert not any("unexpected" in line for line in report), report
    if code:
        assert ran(*line, *(["--resume"] if command != "cluster" else [])) == 0
    assert left_by("cluster" if command == "cluster" else name, folder) == whole[command]
