"""Clusters that are started by MPI or a batch system."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dasrel
from dasrel import cli
from tests.helpers.processes import command, refused, unmoved, why_no_slurm

pytestmark = pytest.mark.usefixtures("patience")


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
    done = command("spectrum", store, "--cluster", "mpi", cwd=tmp_path)
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
    done = command("spectrum", store, "--cluster", asked, "--workers", "2", "--json", cwd=tmp_path, env={"PATH": path})
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
    if reason := why_no_slurm():
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
