"""Where work runs: real schedulers and worker processes, real certificates, MPI, and what is said of failures."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pydantic
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from scipy.spatial.distance import pdist, squareform

import dasrel
from dasrel import cli
from dasrel.clusters import kubernetes_arguments, parsed_cluster
from dasrel.errors import ClusterError, DasrelWarning, InputError
from dasrel.runtime import Runtime, connect, environment
from tests.system.test_slurm import why_not

N, TILE = 300, 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Points in four dimensions by their distances, in 15 tiles."""
    folder = tmp_path_factory.mktemp("store")
    np.save(folder / "d.npy", squareform(pdist(np.random.default_rng(5).random((N, 4)))))
    dasrel.import_matrix(
        str(folder / "d.npy"), str(folder / "d.zarr"), kind="distance", writing=dasrel.Writing(tile=TILE)
    )
    return str(folder / "d.zarr")


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """A busy machine starts workers slowly; the tests of waiting say themselves how long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASREL_WAIT", "240")
        yield


def dask_process(role: str, *arguments: object, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A scheduler or a worker as an administrator starts it."""
    line = [sys.executable, "-m", f"distributed.cli.dask_{role}", *map(str, arguments)]
    with open(folder / f"{role}.log", "a", encoding="utf-8") as log:
        return subprocess.Popen(line, cwd=folder, env={**os.environ, **environment}, stdout=log, stderr=log, text=True)


@contextmanager
def cluster(folder: Path, *, workers: int, tls: list[str] | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A scheduler's file and process, and its workers, on loopback."""
    file = folder / "scheduler.json"
    security = tls or []
    protocol = ["--protocol", "tls"] if tls else []
    with ExitStack() as stack:
        begun = [dask_process("scheduler", "--host", "127.0.0.1", "--port", 0, "--dashboard-address", "127.0.0.1:0",
                              "--scheduler-file", file, *protocol, *security, folder=folder)]  # fmt: skip
        stack.callback(end, begun)
        until = time.monotonic() + 120
        while not file.exists():
            assert time.monotonic() < until, (folder / "scheduler.log").read_text()
            time.sleep(0.05)
        for _ in range(workers):
            begun.append(worker(file, folder, *security))
        yield str(file), begun[0]


def worker(file: Path, folder: Path, *security: str, **environment: str) -> subprocess.Popen[str]:
    where = ["--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard", "--local-directory", folder]
    size = ["--nthreads", 1, "--no-nanny", "--memory-limit", "1GB"]
    return dask_process("worker", *where, *size, *security, folder=folder, **environment)


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


@pytest.fixture(scope="module")
def scheduler_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler with two worker processes."""
    with cluster(tmp_path_factory.mktemp("cluster"), workers=2) as (file, _):
        with connect(Runtime(scheduler_file=file, workers=2)):
            pass
        yield file


def address(file: str) -> str:
    return str(json.loads(Path(file).read_text(encoding="utf-8"))["address"])


def dasrel_process(*arguments: object, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "dasrel", *map(str, arguments)]
    return subprocess.run(
        line, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=250, check=False
    )


def unmoved(text: str) -> list[str]:
    """The lines without those of progress, which a slow machine shows and a quick one does not."""
    return [line for line in text.splitlines() if not re.match(r"\w+( \d+)?: [\d,]+ of [\d,]+ tiles", line)]


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str], code: int = 1) -> str:
    """Run a command that fails, and return its one line; the lines that tell of a connection do not count."""
    assert cli.run([*arguments, "--json"]) == code
    out, err = capfd.readouterr()
    lines = [line for line in unmoved(err) if not re.match(r"dasrel: (scheduler \S+, |workers \d)", line)]
    if code == 2:
        lines = lines[-1:]  # the usage stands before it
    assert len(lines) == 1, err
    assert json.loads(out) == {"error": lines[0].removeprefix("dasrel: ")}
    return lines[0]


# -------------------------------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scheduler": "tcp://a:1", "cluster": "local"}, "--scheduler and --cluster are given"),
        ({"scheduler": "tcp://a:1", "scheduler_file": "b"}, "--scheduler and --scheduler-file are given"),
        ({"cluster": "locl"}, r"none of local, slurm, kubernetes, mpi \(did you mean local\?\)"),
        ({"cluster": "local:worker=2"}, r"no setting 'worker'; .*did you mean workers"),
        ({"cluster": "local:workers=0"}, "workers is '0'"),
        ({"cluster": "local:workers"}, "'workers' is not NAME=VALUE"),
        ({"cluster": "local:workers=2,workers=3"}, "given twice"),
        ({"cluster": "local:workers=2", "workers": 3}, "would never come"),
        ({"scheduler": "tcp://a:1", "wait": 0.0}, "--wait is 0"),
        ({"scheduler": "tls://a:1", "tls_ca": "ca.pem", "tls_key": "k.pem"}, "--tls-cert is missing"),
        ({"cluster": "mpi", "tls_ca": "a", "tls_cert": "b", "tls_key": "c"}, "mpi takes no TLS"),
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Runtime(**values)
    # The same in a workflow's file, by pydantic; and on the command line, where it is a wrong use.
    with pytest.raises(pydantic.ValidationError, match=said):
        pydantic.TypeAdapter(Runtime).validate_python(values)


def test_a_password_in_an_address_is_never_shown(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    secret = "tcp://me:geheim@127.0.0.1:9"
    assert "geheim" not in refused(["spectrum", store, "--scheduler", secret], capfd, 2)
    (tmp_path / "s.json").write_text(json.dumps({"address": secret}))
    assert "geheim" not in refused(["spectrum", store, "--scheduler-file", str(tmp_path / "s.json")], capfd)


def test_settings_of_a_cluster() -> None:
    text = "slurm:queue=debug,jobs=2,memory=1GB,walltime=00:10:00,directive=--qos=high,directive=--exclusive"
    assert parsed_cluster(text) == (
        "slurm",
        {
            **{"queue": "debug", "jobs": 2, "memory": "1GB", "walltime": "00:10:00"},
            "directive": ["--qos=high", "--exclusive"],
        },
    )
    assert parsed_cluster("mpi") == ("mpi", {})


def test_the_command_line_goes_before_the_environment_and_that_before_a_file() -> None:
    there = environment({"DASREL_CLUSTER": "local:workers=2", "DASREL_WORKERS": "2", "DASREL_SCHEDULER": ""})
    assert there == Runtime(cluster="local:workers=2", workers=2)
    assert Runtime(scheduler="tcp://a:1").over(there) == Runtime(scheduler="tcp://a:1", workers=2)
    file = Runtime(**tomllib.loads('[runtime]\nscheduler_file = "s.json"\nwait = 5.5')["runtime"])
    assert there.over(file) == Runtime(cluster="local:workers=2", workers=2, wait=5.5)
    assert Runtime().over(file) == file
    with pytest.raises(InputError, match="DASREL_WAIT is 'soon', which is no number"):
        environment({"DASREL_WAIT": "soon"})
    with pytest.raises(InputError, match=r"in the environment .*none of local"):
        environment({"DASREL_CLUSTER": "cloud"})


def test_workers_without_a_cluster_are_no_silent_wish(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--workers is given, but no cluster" in refused(["spectrum", store, "--workers", "2"], capfd)


# -------------------------------------------------------------------------------------------------------- local threads


def test_without_a_cluster_no_socket_is_made(store: str, tmp_path: Path) -> None:
    """Python tells of every socket that a process makes; tiles are read, written, computed and drawn without any."""
    code = (
        "import sys, socket\n"
        "def hook(event, arguments):\n"
        "    if event.startswith('socket.') and (event != 'socket.__new__' or arguments[1] != socket.AF_UNIX):\n"
        "        print(event, arguments, file=sys.stderr)\n"
        "sys.addaudithook(hook)\n"
        "from dasrel.cli import run\n"
        "if sys.argv[1] == 'try': socket.socket().bind(('127.0.0.1', 0))\n"
        "else: raise SystemExit(run(sys.argv[1:]))\n"
    )

    def seen(*arguments: str) -> str:
        line = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "socket.bind" in seen("try")  # such a hook would notice
    assert (
        seen("cluster", store, "out", "--rule", "fcm2", "--clusters", "2", "--n-init", "2", "-q", "--tol", "0.1") == ""
    )


# ------------------------------------------------------------------------------------------------------ a local cluster


def test_a_local_cluster_is_on_loopback_has_a_dashboard_and_leaves_nothing(store: str) -> None:
    pytest.importorskip("bokeh", reason="the dashboard is drawn by bokeh: dasrel[dashboard]")
    said: list[str] = []
    here = dasrel.spectrum(store)
    before = set(psutil.Process().children(recursive=True))
    with connect(Runtime(cluster="local:workers=2,memory=1GB"), tell=said.append) as client:
        assert dasrel.spectrum(store).lowest == here.lowest
        workers = client.run(os.getpid)
        assert len({*workers.values(), os.getpid()}) == 3  # each in a process of its own
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        open_ports = [
            found.laddr.ip
            for process in processes
            for found in process.net_connections("inet")
            if found.status == psutil.CONN_LISTEN
        ]
        assert len(open_ports) >= 4
        assert set(open_ports) == {"127.0.0.1"}
        link = re.fullmatch(r"scheduler tcp://127\.0\.0\.1:\d+, dashboard (http://127\.0\.0\.1:\d+/status)", said[0])
        assert link is not None
        with urllib.request.urlopen(link[1], timeout=20) as page:
            assert page.status == 200
        assert said[1] == "workers 2, threads 2"
    assert dasrel.tasks.active_client() is None
    assert [
        child for child in set(psutil.Process().children(recursive=True)) - before if "spawn_main" in child.cmdline()
    ] == []


def test_memory_is_checked_before_the_first_tile(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run of 20 clusters takes more than such a worker has left; nothing is read, nothing is written."""
    asked = ["--rule", "hard", "--clusters", "20", "--cluster", "local:workers=2,memory=100010kB"]
    line = refused(["cluster", store, str(tmp_path / "out"), *asked], capfd)
    assert re.search(
        r"needs .* on worker tcp://127\.0\.0\.1:\d+ .* which has 1 B for them; give workers more memory", line
    )
    assert not (tmp_path / "out").exists()
    line = refused(["spectrum", store, "--cluster", "local:workers=1,memory=2MB"], capfd)
    assert "memory is 2MB for a worker, and an idle one takes 100 MB already" in line
    assert "write it as 4GB" in refused(["spectrum", store, "--cluster", "local:memory=much"], capfd)


def test_small_workers_get_narrower_bundles_and_come_to_the_end(store: str, tmp_path: Path) -> None:
    """They have 20 MB for work; what was reckoned without what they take themselves was paused for ever."""
    asked = ["--rule", "hard", "--clusters", "20", "--n-init", "500", "--max-iter", "2", "--json"]
    out = tmp_path / "out"
    assert cli.run(["cluster", store, str(out), *asked, "--cluster", "local:workers=2,memory=150MB"]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["bundles"] > 1
    assert result["runs"] == 500


def test_the_environment_names_the_cluster(store: str, monkeypatch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DASREL_CLUSTER", "local:workers=1")
    assert cli.run(["tree", store, "tree", "--dry-run"]) == 0
    assert unmoved(capfd.readouterr().err) == []  # nothing is started to say what would be done
    assert cli.run(["audit", store, "--verify", "--json"]) == 0
    assert unmoved(capfd.readouterr().err)[1:] == ["dasrel: workers 1, threads 1"]


# ---------------------------------------------------------------------------------------- a scheduler that runs already


def test_a_running_scheduler_does_the_work(store: str, scheduler_file: str, tmp_path: Path) -> None:
    """The same numbers come out as on local threads, to the last bit."""
    asked = ["--rule", "fcm2", "--clusters", "3", "--n-init", "3", "--max-iter", "5", "--quiet"]
    places = {
        "here": [],
        "file": ["--scheduler-file", scheduler_file],
        "address": ["--scheduler", address(scheduler_file)],
    }
    for name, place in places.items():
        assert cli.run(["cluster", store, str(tmp_path / name), *asked, *place]) == 0
    here, *there = (np.load(tmp_path / name / "memberships.npy") for name in places)
    assert all(np.array_equal(here, one) for one in there)


def test_workers_that_do_not_come(store: str, scheduler_file: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["--scheduler-file", scheduler_file, "--workers", "5", "--wait", "0.5"]
    assert "2 of 5 workers came in 0.5 s" in refused(["spectrum", store, *asked], capfd)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (["--scheduler", "tcp://127.0.0.1:9"], "cannot reach the scheduler tcp://127.0.0.1:9: .*; is it running"),
        (["--scheduler", "127.0.0.1"], "missing port number"),
        (["--scheduler", "ftp://127.0.0.1:9"], "unknown address scheme 'ftp'"),
        (["--scheduler", "tls://127.0.0.1:9"], "asks for TLS: give --tls-ca"),
        (["--scheduler-file", "absent.json"], "no scheduler has written this file"),
        (["--scheduler-file", __file__], "is no scheduler file"),
    ],
)
def test_what_cannot_be_reached(where: list[str], said: str, store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert re.search(said, refused(["spectrum", store, *where, "--wait", "0.5"], capfd))


def test_versions_that_differ_are_told_of(store: str, scheduler_file: str, tmp_path: Path) -> None:
    """A third worker, which takes itself for another version of dasrel, and then a fourth, which has none."""
    for number, version in ((3, "Version: 99.1\n"), (4, "")):
        about = tmp_path / str(number) / "dasrel-0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dasrel\n{version}")
        other = worker(Path(scheduler_file), tmp_path, PYTHONPATH=str(about.parent))
        asked = Runtime(scheduler_file=scheduler_file, workers=3)
        try:
            if version:
                told = r"versions differ: dasrel \S+ here and 99.1 at tcp://\S+$"
                with pytest.warns(DasrelWarning, match=told), connect(asked):
                    pass
            else:
                with (
                    pytest.raises(ClusterError, match=r"dasrel is not installed at tcp://\S+; install"),
                    connect(asked),
                ):
                    raise AssertionError("not reached")
        finally:
            other.terminate()
            other.wait()


# ------------------------------------------------------------------------------------------------------------------ TLS


class Authority:
    """Somebody who signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.file = str(folder / f"{name}.pem")
        own = self._certificate(self.name, self.key, x509.BasicConstraints(ca=True, path_length=None))
        Path(self.file).write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def _certificate(self, subject: x509.Name, key: Any, extension: x509.ExtensionType) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        made = made.not_valid_after(now + datetime.timedelta(hours=1)).add_extension(extension, critical=False)
        return made.sign(self.key, hashes.SHA256())

    def signed(self, name: str) -> list[str]:
        """The options of somebody whose certificate this authority has signed, and who trusts it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        where = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        cert, secret = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert.write_bytes(self._certificate(subject, key, where).public_bytes(serialization.Encoding.PEM))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        secret.write_bytes(key.private_bytes(*form))
        return ["--tls-ca-file", self.file, "--tls-cert", str(cert), "--tls-key", str(secret)]


def ours(options: list[str]) -> list[str]:
    """Dask's options as ours."""
    return [{"--tls-ca-file": "--tls-ca"}.get(option, option) for option in options]


def test_tls_from_end_to_end(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    right, wrong = Authority(tmp_path, "right"), Authority(tmp_path, "wrong")
    mine, foreign = ours(right.signed("mine")), ours(wrong.signed("foreign"))
    with cluster(tmp_path, workers=1, tls=right.signed("theirs")) as (file, _):
        assert address(file).startswith("tls://127.0.0.1:")
        assert cli.run(["spectrum", store, "--scheduler-file", file, *mine, "--json"]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["is_euclidean"] is True
        assert err.startswith("dasrel: scheduler tls://127.0.0.1:")

        where = ["spectrum", store, "--scheduler", address(file), "--wait", "1"]
        assert "asks for TLS: give --tls-ca" in refused(where, capfd)
        # We do not trust them; they do not trust us.
        assert "check --tls-ca" in refused([*where, *foreign], capfd)
        assert "cannot reach the scheduler" in refused([*where, "--tls-ca", right.file, *foreign[2:]], capfd)
        # Neither side takes plain words for encrypted ones.
        plain = address(file).replace("tls://", "tcp://")
        assert "does it ask for TLS" in refused(["spectrum", store, "--scheduler", plain, "--wait", "1"], capfd)
        assert "that its address is tls://" in refused(["spectrum", store, "--scheduler", plain, *mine], capfd)
        # A key that is another's, and a file that is not there.
        mixed = [*where, *mine[:4], "--tls-key", foreign[5]]
        assert "do they belong together?" in refused(mixed, capfd)
        assert "is no file" in refused([*where, *mine[:4], "--tls-key", "absent"], capfd)
    local = ["spectrum", store, "--cluster", "local:workers=1", *mine, "--json"]
    assert cli.run(local) == 0
    assert capfd.readouterr().err.startswith("dasrel: scheduler tls://127.0.0.1:")


# --------------------------------------------------------------------------------------------------------------- losing


def test_a_scheduler_killed_in_the_middle(store: str, tmp_path: Path) -> None:
    """One line, exit 1, and no word of Dask's own."""
    with cluster(tmp_path, workers=1) as (file, scheduler):
        asked = ["--rule", "fcm1", "--clusters", "3", "--max-iter", "1000000", "--tol", "1e-300"]
        line = [sys.executable, "-m", "dasrel", "cluster", store, "out", *asked, "--scheduler-file", file, "-v"]
        # What is said goes to a file: a pipe that nobody empties would stop the process.
        with open(tmp_path / "said", "w", encoding="utf-8") as said:
            process = subprocess.Popen(line, cwd=tmp_path, stderr=said, stdout=said, text=True)
        until = time.monotonic() + 120
        while "scan" not in (tmp_path / "said").read_text(encoding="utf-8"):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        scheduler.send_signal(signal.SIGKILL)
        assert process.wait(120) == 1
    lines = unmoved((tmp_path / "said").read_text(encoding="utf-8"))
    left = [line for line in lines if not re.match(r"dasrel: (version|scheduler|workers|\d+ scans)", line)]
    assert len(left) == 1, lines
    assert re.fullmatch(
        r"dasrel: the connection to the scheduler tcp://\S+ was lost; start it again .*--resume.*", left[0]
    )
    assert not (tmp_path / "out").exists()


def test_lost_between_two_scans_the_work_does_not_go_on_here(store: str, tmp_path: Path) -> None:
    matrix = dasrel.open_matrix(store)
    found = []
    with cluster(tmp_path, workers=1) as (file, scheduler):

        def twice() -> None:
            with connect(Runtime(scheduler_file=file)) as client:
                found.append(dasrel.spectrum(matrix))
                end([scheduler])
                until = time.monotonic() + 120
                while client.status == "running":
                    assert time.monotonic() < until
                    time.sleep(0.02)
                found.append(dasrel.spectrum(matrix))

        with pytest.raises(ClusterError, match="was lost"):
            twice()
    assert [one.lowest for one in found] == [dasrel.spectrum(matrix).lowest]


def test_work_that_kills_its_workers() -> None:
    once_more = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with once_more, pytest.raises(ClusterError) as failed, connect(Runtime(cluster="local:workers=1")) as client:
        client.submit(os._exit, 1).result()
    assert re.match(
        r"2 workers died over the same piece of work, the last at tcp://.*; most often they lack memory",
        str(failed.value),
    )


# ------------------------------------------------------------------------------------------------------- other clusters


def test_mpi(store: str, tmp_path: Path) -> None:
    """Three real processes: one schedules, one is the command, one works."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("there is no mpirun: install dasrel[mpi] and an MPI, such as the package openmpi")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    line = [mpirun, "-n", "3", "--oversubscribe", sys.executable, "-m", "dasrel", "spectrum", store]
    done = subprocess.run([*line, "--cluster", "mpi", "--json"], cwd=tmp_path, env={**os.environ, **root},
                          capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lowest"] == list(dasrel.spectrum(store).lowest)
    assert "dasrel: workers 1, threads 1\n" in done.stderr


def test_mpi_without_mpirun(store: str, tmp_path: Path) -> None:
    done = dasrel_process("spectrum", store, "--cluster", "mpi", folder=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(
        r"dasrel: a cluster on mpi needs (3 processes or more .*: mpirun -n 4 dasrel|the package).*\n", done.stderr
    )


def batch_system(folder: Path, *, submits: str) -> str:
    """A PATH with commands that stand in for Slurm's: jobs are processes here. The real one has a test of its own."""
    for name, body in (("sbatch", submits), ("scancel", 'echo "$@" >> cancelled; kill "$@"')):
        (folder / name).write_text(f"#!/bin/bash\ncd {folder}\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_jobs_of_a_batch_system(store: str, tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    # As in Slurm the script is kept: the original is gone as soon as sbatch has returned.
    submits = 'cp "$1" $$.sh; cat $$.sh >> jobs; bash $$.sh > $$.log 2>&1 & echo "Submitted batch job $!"'
    path = batch_system(tmp_path, submits=submits)
    asked = "slurm:queue=debug,account=lab,jobs=2,cores=1,memory=1GB,walltime=00:10:00"
    asked += ",directive=--qos=high,prologue=echo ready"
    done = dasrel_process("spectrum", store, "--cluster", asked, "--workers", "2", "--json", folder=tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lowest"] == list(dasrel.spectrum(store).lowest)
    assert unmoved(done.stderr)[1:] == ["dasrel: workers 2, threads 2"]
    script = (tmp_path / "jobs").read_text()
    for line in ("-p debug", "-A lab", "-t 00:10:00", "--mem=954M", "--cpus-per-task=1", "--qos=high"):
        assert script.count(f"#SBATCH {line}\n") == 2
    assert script.count("\necho ready\n") == 2
    assert len((tmp_path / "cancelled").read_text().split()) == 2  # no job is left behind


@pytest.mark.parametrize(
    ("submits", "said"),
    [
        ("echo 'sbatch: error: invalid partition specified: debug' >&2; exit 1", "invalid partition specified: debug"),
        ("echo 'Submitted batch job 1'", "0 of 1 workers came in 1 s"),  # and it waits in the queue
    ],
)
def test_jobs_that_never_run(submits: str, said: str, store: str, tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    monkeypatch.setenv("PATH", batch_system(tmp_path, submits=submits))
    assert said in refused(["spectrum", store, "--cluster", "slurm:memory=1GB", "--wait", "1"], capfd)


def test_jobs_of_slurm_itself(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if reason := why_not():
        pytest.skip(reason)
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    asked = f"slurm:jobs=2,cores=1,memory=1GB,walltime=00:10:00,logs={tmp_path}"
    assert cli.run(["spectrum", store, "--cluster", asked, "--workers", "2", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["lowest"] == list(dasrel.spectrum(store).lowest)
    assert unmoved(err)[1:] == ["dasrel: workers 2, threads 2"]
    assert "nvalid partition" in refused(["spectrum", store, "--cluster", f"{asked},queue=none-such"], capfd)


def test_a_cluster_that_is_not_here(store: str, tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    """The package is missing, or the batch system is, or a setting that it needs."""
    found = dasrel.clusters.importlib.util.find_spec
    hidden = ("dask_kubernetes",)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in hidden else found(name))
    line = refused(["spectrum", store, "--cluster", "kubernetes:image=lab/dasrel"], capfd)
    assert "needs the package dask-kubernetes, which is not installed" in line
    assert line.endswith('python -m pip install "dasrel[kubernetes]"')
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no sbatch on this machine" in refused(["spectrum", store, "--cluster", "slurm:memory=1GB"], capfd)
    monkeypatch.setenv("PATH", batch_system(tmp_path, submits="exit 1"))
    assert "memory is missing" in refused(["spectrum", store, "--cluster", "slurm:queue=debug"], capfd)


def test_pods() -> None:
    asked = parsed_cluster("kubernetes:image=lab/dasrel:1,workers=3,memory=4GiB,cpus=2,namespace=lab,name=night")[1]
    amounts = {"cpu": "2", "memory": str(4 * 2**30)}
    assert kubernetes_arguments(asked) == {
        **{"image": "lab/dasrel:1", "n_workers": 3, "namespace": "lab", "name": "night"},
        "resources": {"limits": amounts, "requests": amounts},
    }
    assert kubernetes_arguments({"spec": "c.yaml"}) == {"custom_cluster_spec": "c.yaml"}
    with pytest.raises(InputError, match="memory is given beside spec"):
        kubernetes_arguments({"spec": "c.yaml", "memory": "1GB"})
    with pytest.raises(InputError, match="image is missing"):
        kubernetes_arguments({"workers": 2})
