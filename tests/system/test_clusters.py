"""Clusters that run already or are started by MPI or a batch system: with TLS, with other versions, and lost."""

import datetime
import importlib.util
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import dasrel
from dasrel.cli import app
from dasrel.engine.runtime import Runtime, connect
from dasrel.errors import ClusterError
from dasrel.kernels import native
from tests.helpers.faults import small_disk
from tests.helpers.processes import command, dask_cluster, dask_worker, end, refused, unmoved, why_no_slurm

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(scope="module")
def scheduler_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler with two worker processes."""
    with dask_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as (file, _):
        with connect(Runtime(scheduler_file=file, workers=2)):
            pass
        yield file


def address(file: str) -> str:
    return str(json.loads(Path(file).read_text(encoding="utf-8"))["address"])


# ---------------------------------------------------------------------------------------- a scheduler that runs already


def test_a_running_scheduler_does_the_work(store: str, scheduler_file: str, tmp_path: Path) -> None:
    """The same numbers come out as on local threads, to the last bit."""
    requested = ["--rule", "fcm2", "--clusters", "3", "--n-init", "3", "--max-iter", "5", "--quiet"]
    places = {
        "here": [],
        "file": ["--scheduler-file", scheduler_file],
        "address": ["--scheduler", address(scheduler_file)],
    }
    for name, place in places.items():
        assert app.run(["cluster", store, str(tmp_path / name), *requested, *place]) == 0
    here, *there = (np.load(tmp_path / name / "memberships.npy") for name in places)
    assert all(np.array_equal(here, one) for one in there)


def test_workers_that_do_not_come(store: str, scheduler_file: str, capfd: pytest.CaptureFixture[str]) -> None:
    requested = ["--scheduler-file", scheduler_file, "--workers", "5", "--wait", "0.5"]
    assert "2 of 5 workers came in 0.5 s" in refused(["spectrum", store, *requested], capfd)


@pytest.mark.skipif(not native.instruction_set(), reason="no vector kernels here: all workers are alike")
def test_a_worker_whose_sums_have_other_bits_is_refused(
    store: str, scheduler_file: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A third worker adds up by NumPy: refused when it is there at first, and when it joins between two scans."""
    line = rf"results would have other bits: kernels numpy at tcp://\S+ and {native.signature()} here; install dasrel"
    with connect(Runtime(scheduler_file=scheduler_file, workers=2)) as client, dasrel.watch() as meter:
        lowest = dasrel.spectrum(store).lowest
        scans, tiles = meter.scans, meter.tiles
        other = dask_worker(Path(scheduler_file), tmp_path, DASREL_NO_NATIVE="1")
        try:
            client.wait_for_workers(3, timeout=240)
            with pytest.raises(ClusterError, match=line):
                dasrel.spectrum(store)
            assert (meter.scans, meter.tiles) == (scans, tiles)
            requested = ["spectrum", store, "--scheduler-file", scheduler_file, "--workers", "3"]
            assert re.search(line, refused(requested, capfd))
        finally:
            other.terminate()
            other.wait()
    assert dasrel.spectrum(store).lowest == lowest


def test_a_worker_that_does_not_see_the_files_is_named(
    store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is another one, as on a host of its own: refused before any work. An export is written here."""
    mine, other = tmp_path / "mine", tmp_path / "cluster"
    other.mkdir()
    shutil.copytree(store, mine / "d.zarr")
    np.save(mine / "x.npy", np.random.default_rng(0).random((50, 3)))
    monkeypatch.chdir(mine)
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(mine)]
    if subprocess.run([*hidden, "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    with dask_cluster(other, workers=1) as (file, _):
        blind = dask_worker(Path(file), other, before=hidden)
        try:
            place = ["--scheduler-file", file, "--workers", "2"]
            for command, path in {
                "spectrum d.zarr": "d.zarr",
                "audit d.zarr --verify": "d.zarr",
                "pairwise x.npy new.zarr --metric euclidean": "x.npy",
                f"pairwise {other / 'y.npy'} new.zarr --metric euclidean": "new.zarr",
                f"tree {other / 'd.zarr'} t.csv --linkage average --scratch .": r"dasrel-tree-\S+\.rows",
            }.items():
                shutil.copyfile(mine / "x.npy", other / "y.npy")
                shutil.copytree(store, other / "d.zarr", dirs_exist_ok=True)
                line = refused([*command.split(), *place], capfd)
                wanted = rf"{mine}/{path} of this machine \(\S+\) is not seen by worker tcp://\S+ on \S+; "
                assert re.search(wanted, line), line
            assert sorted(path.name for path in mine.iterdir()) == ["d.zarr", "x.npy"]
            assert app.run(["export", str(other / "d.zarr"), "d.npy", *place, "--quiet"]) == 0
            assert np.array_equal(np.load(mine / "d.npy"), np.asarray(dasrel.open_matrix(store)))
        finally:
            end([blind])


def test_two_commands_on_one_cluster_do_not_disturb_each_other(store: str, scheduler_file: str, tmp_path: Path) -> None:
    """At the same time, of one store and of another: each has the bits that it has alone, here."""
    other = tmp_path / "other.zarr"
    dasrel.import_matrix(np.sqrt(np.asarray(dasrel.open_matrix(store))), other, kind="distance")
    requested = ["--rule", "fcm1", "--clusters", "3", "--max-iter", "20", "--tol", "0", "--init", "random", "--quiet"]
    jobs = {"one": store, "same": store, "other": str(other)}
    begun = []
    for name, source in jobs.items():
        line = ["cluster", source, str(tmp_path / name), *requested, "--scheduler-file", scheduler_file]
        begun.append(subprocess.Popen([sys.executable, "-m", "dasrel", *line]))
    assert [process.wait(240) for process in begun] == [0, 0, 0]
    for name, source in jobs.items():
        assert app.run(["cluster", source, str(tmp_path / f"{name}-here"), *requested]) == 0
        there, here = (np.load(tmp_path / folder / "memberships.npy") for folder in (name, f"{name}-here"))
        assert np.array_equal(there, here)


def test_a_worker_whose_own_disk_is_full_does_its_work(store: str, tmp_path: Path) -> None:
    """Work needs no disk of a worker: tiles are pinned in half of its memory, below what Dask would write to disk."""
    requested = ["--rule", "fcm1", "--clusters", "3", "--max-iter", "5", "--init", "random", "--quiet"]
    assert app.run(["cluster", store, str(tmp_path / "here"), *requested]) == 0
    with small_disk(tmp_path / "disk", "size=1m") as disk, dask_cluster(tmp_path, workers=0) as (file, _):
        worker = dask_worker(Path(file), disk.path)
        try:
            with connect(Runtime(scheduler_file=file, workers=1)):
                disk.fill()
                assert app.run(["cluster", store, str(tmp_path / "there"), *requested]) == 0
        finally:
            end([worker])
    here, there = (np.load(tmp_path / folder / "memberships.npy") for folder in ("here", "there"))
    assert np.array_equal(there, here)


def test_a_worker_of_another_version_or_without_dasrel_is_refused(
    store: str, scheduler_file: str, tmp_path: Path
) -> None:
    """A third worker, which takes itself for another version of dasrel, and then a fourth, which has none."""
    reports = {
        "Version: 99.1\n": r"results would have other bits: dasrel 99.1 at tcp://\S+ and \S+ here; install the same",
        "": r"dasrel is not installed at tcp://\S+; install",
    }
    for number, (version, report) in enumerate(reports.items()):
        about = tmp_path / str(number) / "dasrel-0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dasrel\n{version}")
        other = dask_worker(Path(scheduler_file), tmp_path, PYTHONPATH=str(about.parent))
        try:
            with pytest.raises(ClusterError, match=report), connect(Runtime(scheduler_file=scheduler_file, workers=3)):
                raise AssertionError("not reached")
        finally:
            other.terminate()
            other.wait()


def test_a_scheduler_on_the_network_without_tls_is_warned_of_once(
    store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On an address of this machine that others can reach."""
    outside = next(
        (one.address for of_one in psutil.net_if_addrs().values() for one in of_one
         if one.family == socket.AF_INET and not one.address.startswith("127.")), None,
    )  # fmt: skip
    if outside is None:
        pytest.skip("this machine has no address but loopback")
    with dask_cluster(tmp_path, workers=1, host=outside) as (file, _):
        assert app.run(["spectrum", store, "--scheduler-file", file, "--json"]) == 0
        warnings = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1, warnings
    assert re.fullmatch(
        rf"dasrel: warning: the connection to tcp://{outside}:\d+ is neither encrypted nor authenticated: whoever can"
        r" reach that port can run code on the workers and here; use TLS \(--tls-ca, --tls-cert and --tls-key\), .*",
        warnings[0],
    )


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
    with dask_cluster(tmp_path, workers=1, tls=right.signed("theirs")) as (file, _):
        assert address(file).startswith("tls://127.0.0.1:")
        assert app.run(["spectrum", store, "--scheduler-file", file, *mine, "--json"]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["is_euclidean"] is True
        assert err.startswith("dasrel: scheduler tls://127.0.0.1:")

        where = ["spectrum", store, "--scheduler", address(file), "--wait", "1"]
        assert "asks for TLS; give --tls-ca" in refused(where, capfd)
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
    local = ["spectrum", store, "--dask", "local:workers=1", *mine, "--json"]
    assert app.run(local) == 0
    assert capfd.readouterr().err.startswith("dasrel: scheduler tls://127.0.0.1:")


# --------------------------------------------------------------------------------------------------------------- losing


def test_a_scheduler_killed_in_the_middle(store: str, tmp_path: Path) -> None:
    """One line, exit 1, and no word of Dask's own."""
    with dask_cluster(tmp_path, workers=1) as (file, scheduler):
        requested = ["--rule", "fcm1", "--clusters", "3", "--max-iter", "1000000", "--tol", "1e-300"]
        line = [sys.executable, "-m", "dasrel", "cluster", store, "out", *requested, "--scheduler-file", file, "-v"]
        # What is said goes to a file: a pipe that nobody empties would stop the process.
        with open(tmp_path / "output", "w", encoding="utf-8") as output:
            process = subprocess.Popen(line, cwd=tmp_path, stderr=output, stdout=output, text=True)
        until = time.monotonic() + 120
        while "scan" not in (tmp_path / "output").read_text(encoding="utf-8"):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        scheduler.send_signal(signal.SIGKILL)
        assert process.wait(120) == 1
    lines = unmoved((tmp_path / "output").read_text(encoding="utf-8"))
    left = [line for line in lines if not re.match(r"dasrel: (version|scheduler|workers|\d+ scans?\b)", line)]
    assert len(left) == 1, lines
    assert re.fullmatch(
        r"dasrel: the connection to the scheduler tcp://\S+ was lost; start it again .*--resume.*", left[0]
    )
    assert not (tmp_path / "out").exists()


def test_lost_between_two_scans_the_work_does_not_go_on_here(store: str, tmp_path: Path) -> None:
    matrix = dasrel.open_matrix(store)
    found = []
    with dask_cluster(tmp_path, workers=1) as (file, scheduler):

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
    with once_more, pytest.raises(ClusterError) as failed, connect(Runtime(dask="local:workers=1")) as client:
        client.submit(os._exit, 1).result()
    assert re.match(
        r"2 workers died over the same piece of work, the last at tcp://.*; most often they lack memory",
        str(failed.value),
    )


# -------------------------------------------------------------------------------------------- clusters that are started


def test_mpi(store: str, tmp_path: Path) -> None:
    """Three real processes: one schedules, one is the command, one works."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("there is no mpirun: install dasrel[mpi] and an MPI, such as the package openmpi")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    line = [mpirun, "-n", "3", "--oversubscribe", sys.executable, "-m", "dasrel", "spectrum", store]
    done = subprocess.run([*line, "--dask", "mpi", "--json"], cwd=tmp_path, env={**os.environ, **root},
                          capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lowest"] == list(dasrel.spectrum(store).lowest)
    assert "dasrel: workers 1, threads 1\n" in done.stderr


def test_mpi_without_mpirun(store: str, tmp_path: Path) -> None:
    done = command("spectrum", store, "--dask", "mpi", cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(
        r"dasrel: a cluster on mpi needs (3 processes or more .*: mpirun -n 4 dasrel|the package).*\n", done.stderr
    )


def unencrypted(text: str) -> list[str]:
    """The lines without progress and without the warning of plain tcp, which a machine with a network gives."""
    return [line for line in unmoved(text) if "neither encrypted nor authenticated" not in line]


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
    requested = "slurm:queue=debug,account=lab,jobs=2,cores=1,memory=1GB,walltime=00:10:00"
    requested += ",directive=--qos=high,prologue=echo ready"
    done = command("spectrum", store, "--dask", requested, "--workers", "2", "--json", cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lowest"] == list(dasrel.spectrum(store).lowest)
    assert unencrypted(done.stderr)[1:] == ["dasrel: workers 2, threads 2"]
    script = (tmp_path / "jobs").read_text()
    for line in ("-p debug", "-A lab", "-t 00:10:00", "--mem=954M", "--cpus-per-task=1", "--qos=high"):
        assert script.count(f"#SBATCH {line}\n") == 2
    assert script.count("\necho ready\n") == 2
    assert len((tmp_path / "cancelled").read_text().split()) == 2  # no job is left behind


@pytest.mark.parametrize(
    ("submits", "output"),
    [
        ("echo 'sbatch: error: invalid partition specified: debug' >&2; exit 1", "invalid partition specified: debug"),
        ("echo 'Submitted batch job 1'", "0 of 1 worker came in 1 s"),  # and it waits in the queue
    ],
)
def test_jobs_that_never_run(
    submits: str, output: str, store: str, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    monkeypatch.setenv("PATH", batch_system(tmp_path, submits=submits))
    assert output in refused(["spectrum", store, "--dask", "slurm:memory=1GB", "--wait", "1"], capfd)


def test_jobs_of_slurm_itself(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if reason := why_no_slurm():
        pytest.skip(reason)
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    requested = f"slurm:jobs=2,cores=1,memory=1GB,walltime=00:10:00,logs={tmp_path}"
    assert app.run(["spectrum", store, "--dask", requested, "--workers", "2", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["lowest"] == list(dasrel.spectrum(store).lowest)
    assert unencrypted(err)[1:] == ["dasrel: workers 2, threads 2"]
    assert "nvalid partition" in refused(["spectrum", store, "--dask", f"{requested},queue=none-such"], capfd)


def test_a_cluster_that_is_not_here(store: str, tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    """The package is missing, or the batch system is, or a setting that it needs."""
    found = importlib.util.find_spec
    hidden = ("dask_kubernetes",)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in hidden else found(name))
    line = refused(["spectrum", store, "--dask", "kubernetes:image=lab/dasrel"], capfd)
    assert "needs the package dask-kubernetes, which is not installed" in line
    assert line.endswith('python -m pip install "dasrel[kubernetes]"')
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no sbatch on this machine" in refused(["spectrum", store, "--dask", "slurm:memory=1GB"], capfd)
    monkeypatch.setenv("PATH", batch_system(tmp_path, submits="exit 1"))
    assert "memory is missing" in refused(["spectrum", store, "--dask", "slurm:queue=debug"], capfd)
