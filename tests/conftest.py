"""What tests of several rooms share: a cluster, an S3 server, stores and workflows, and the marks of slow tests."""

import gc
import logging
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import workflows
from tests.helpers.matrices import distances, grouped_points, squared, uniform_points
from tests.helpers.processes import local_cluster, ran
from tests.helpers.stores import stored

SELECTED = "guarantee or not (slow or system or cluster)"
"""What `python -m pytest` runs, in minutes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="run all tests, those that take long too")


def pytest_configure(config: pytest.Config) -> None:
    """Run what is quick, and a test of each guarantee, if neither `--everything`, nor `-m`, nor a file is given."""
    named = any(".py" in argument for argument in config.args)
    if not (config.option.everything or config.option.markexpr or named):
        config.option.markexpr = SELECTED


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes: tests/system as `system`, what works on the shared cluster as `cluster`.

    `slow(after=2)` leaves the first two cases of a parametrised test unmarked. The test that installs a fresh
    environment comes first: it takes minutes, during which the others run.
    """
    system, cases = Path(__file__).parent / "system", Counter[str]()
    for item in items:
        if system in item.path.parents:
            item.add_marker(pytest.mark.system)
        if "workers" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
        slow = item.get_closest_marker("slow")
        if slow is not None:
            name = item.nodeid.partition("[")[0]
            cases[name] += 1
            if cases[name] <= slow.kwargs.get("after", 0):
                item.own_markers.remove(slow)
    items.sort(key=lambda item: "fresh_environment" not in item.name)


# ------------------------------------------------------------------------------------------------------------- clusters


@pytest.fixture(scope="session")
def workers() -> Iterator[Any]:
    """Two worker processes of one thread on loopback, started by the first test that needs them. Do not kill them."""
    with local_cluster() as started:
        yield started


@pytest.fixture(scope="session", autouse=True)
def small_graphs() -> Iterator[None]:
    """Let Dask warn of every graph above 1 MB that is sent to a scheduler; warnings are errors in tests."""
    import dask

    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1MB"}):
        yield


@pytest.fixture
def client(workers: Any) -> Iterator[Any]:
    """A client of the two workers: what dasrel does in this test, it does there."""
    from distributed import Client

    with Client(workers) as connected:
        yield connected


@pytest.fixture(scope="module")
def patience() -> Iterator[None]:
    """A busy machine starts workers slowly; tests of waiting say themselves how long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASREL_WAIT", "240")
        yield


# ------------------------------------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, int]]:
    """Host and port of a server on loopback that speaks S3."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


@pytest.fixture
def s3(s3_server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of that server, with an empty bucket, `matrices`."""
    import s3fs

    host, port = s3_server
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("matrices")
    yield system
    system.rm("matrices", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(sys, "unraisablehook", lambda error: None)
    gc.collect()  # open sessions complain when they are collected, now or in another test


# --------------------------------------------------------------------------------------------------------------- stores


@pytest.fixture(scope="session")
def store_factory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write arrays into stores that several tests read: `stored` in a temporary folder of its own."""

    def make(values: Any, kind: str = "distance", **more: Any) -> Path:
        path = tmp_path_factory.mktemp("store") / "matrix.zarr"
        stored(path, values, kind, **more)
        return path

    return make


@pytest.fixture(scope="session")
def store(store_factory: Callable[..., Path]) -> str:
    """Distances between 300 points in four dimensions, in 15 tiles."""
    return str(store_factory(distances(uniform_points(300, 4, 5)), tile=60))


@pytest.fixture(scope="session")
def grouped_store(store_factory: Callable[..., Path]) -> Path:
    """Squared distances between 90 points in three groups, in 6 tiles."""
    return store_factory(squared(90), "squared-distance", dtype="float64", tile=32)


@pytest.fixture(scope="session")
def crooked_store(store_factory: Callable[..., Path]) -> Path:
    """Distances to the fourth power, which are far from Euclidean."""
    return store_factory(squared(90) ** 2 / 100, "squared-distance", dtype="float64", tile=32)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with distances and features of 180 objects as files, d.npy and x.npy, and their store in 21 tiles."""
    place = tmp_path_factory.mktemp("source")
    np.save(place / "x.npy", grouped_points(180))
    np.save(place / "d.npy", distances(grouped_points(180)))
    stored(place / "d.zarr", place / "d.npy", dtype="float64", tile=30)
    return place


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The true digits of those that take the place of all; the README's first command has all of them."""
    return workflows.fewer_digits(monkeypatch)


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command as `processes.command` does, but in this process, which has paid for the imports."""

    def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capfd.readouterr()
        code = ran(*arguments)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


# ------------------------------------------------------------------------------------------------------------ workflows


@pytest.fixture
def workflow_folder(tmp_path: Path) -> Path:
    """A folder with a matrix and a workflow, which has not been run."""
    workflows.begin(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finished_workflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workflow that has been run, to be copied."""
    home = tmp_path_factory.mktemp("finished")
    workflows.begin(home)
    assert workflows.run(home / "w.toml") == dict.fromkeys(workflows.FILES, "done")
    return home


@pytest.fixture
def done_workflow(finished_workflow: Path, tmp_path: Path) -> Path:
    """A copy of it. Other inodes and times: all is read once more, and found to be the same."""
    shutil.copytree(finished_workflow, tmp_path / "done")
    return tmp_path / "done"
