"""An S3 server that fails for a while, or for good."""

import gc
import re
import sys
from collections.abc import Callable, Iterator

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
        patch.setattr(s3fs.S3FileSystem, "read_timeout", 1)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("failing-matrices")
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
