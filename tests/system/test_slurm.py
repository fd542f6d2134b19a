"""The Slurm workflows: on a real Slurm where there is one on this machine, as `.ci/slurm` starts it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from tests.helpers.processes import why_no_slurm
from tests.helpers.stores import files

FOLDER = Path(__file__).parents[2] / "workflows" / "slurm"
# The dasrel of the Python that runs the tests, for the jobs too: sbatch hands the environment on.
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
LONG = "--rule fcm1 --clusters 6 --fuzzifier 1.3 --n-init 8 --init random --stop memberships --tol 1e-9 --max-iter 120"
LIMIT = 120.0
JOBS: list[str] = []  # submitted here; those of another process of the tests are not ours to cancel


def call(*command, check=True, **more):
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env={**ENVIRONMENT, **more}, check=False)
    assert done.returncode == 0 or not check, f"{words}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def slurm():
    if reason := why_no_slurm():
        pytest.skip(reason)
    yield
    subprocess.run(["scancel", *JOBS], check=False)


def submit(folder, script, *arguments, options=(), cluster=LONG):
    """A job of one core; what it prints goes to FOLDER/ID.log."""
    usual = ["--parsable", f"--output={folder}/%j.log", "--cpus-per-task=1", "--mem=0"]
    JOBS.append(call("sbatch", *usual, *options, FOLDER / script, *arguments, CLUSTER=cluster).stdout.strip())
    return JOBS[-1]


def job_tasks(job):
    """What Slurm says of a job, of each task of an array, as dictionaries."""
    lines = call("scontrol", "show", "job", "-o", job).stdout.splitlines()
    return [dict(word.partition("=")[::2] for word in line.split()) for line in lines if line]


def wait(job, *, until=lambda states: not states & {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING"}):
    """The states of a job's tasks, as soon as they are as they should be."""
    end = time.monotonic() + LIMIT
    while not until(states := {task["JobState"] for task in job_tasks(job)}):
        assert time.monotonic() < end, job_tasks(job)
        time.sleep(0.2)
    return states


def log(folder, job):
    return (folder / f"{job}.log").read_text()


def same_results(found, expected):
    """The same bits, wherever times are not part of them."""
    names = sorted(
        path.relative_to(expected) for path in expected.rglob("*") if path.suffix in (".npz", ".npy", ".csv")
    )
    assert len(names) >= 2
    for name in names:
        if name.suffix == ".npz":
            with np.load(found / name) as one, np.load(expected / name) as other:
                assert set(one) == set(other)
                assert all(np.array_equal(one[key], other[key], equal_nan=one[key].dtype.kind == "f") for key in one)
        else:
            assert (found / name).read_bytes() == (expected / name).read_bytes(), name


def points(n):
    return np.random.default_rng(3).random((n, 6))


def stopped(folder, work, job):
    """Stop a job at its first checkpoint, and see it go back into the queue, and let it begin again soon."""
    end = time.monotonic() + LIMIT
    while not list(work.glob("checkpoint/cluster-*.npz")):
        assert time.monotonic() < end, log(folder, job)
        time.sleep(0.05)
    call("scancel", "--batch", "--signal=TERM", job)
    wait(job, until=lambda states: states == {"PENDING"})
    assert "stopped (exit code 75); the job goes back into the queue" in log(folder, job)
    assert job_tasks(job)[0]["Restarts"] == "1"
    assert not (work / "clusters").exists()
    assert list(work.glob("checkpoint/cluster-*.npz"))
    # Slurm lets a requeued job wait for two minutes. It must wait a little: a node refuses what it has just ended.
    call("scontrol", "update", f"JobId={job}", "StartTime=now+3")


@pytest.mark.usefixtures("slurm")
def test_an_array_imports_and_a_job_clusters_is_stopped_and_resumes(tmp_path):
    """Four tasks write one store together; the job behind them is stopped by SIGTERM and ends with the same bits."""
    x = points(1000)
    np.save(tmp_path / "d.npy", cdist(x, x))
    made = ["import", tmp_path / "d.npy", "--kind", "distance", "--tile", "128"]
    work = tmp_path / "work"
    array = submit(tmp_path, "array.sh", work, *made, options=["--array=1-4"])
    job = submit(tmp_path, "one-node.sh", work, *made, options=[f"--dependency=afterok:{array}"])
    assert wait(array) == {"COMPLETED"}
    assert len(job_tasks(array)) == 4
    stopped(tmp_path, work, job)

    alone, expected = tmp_path / "alone.zarr", tmp_path / "expected"
    call("dasrel", *made[:2], alone, *made[2:])
    call("dasrel", "cluster", alone, expected, *LONG.split())
    assert wait(job) == {"COMPLETED"}, log(tmp_path, job)
    assert files(work / "matrix.zarr") == files(alone)
    same_results(work / "clusters", expected)
    assert not (work / "checkpoint").exists()


@pytest.mark.usefixtures("slurm")
def test_an_array_computes_pairs_and_many_nodes_cluster(tmp_path):
    """Two tasks compute a store; then a scheduler and a worker on each of two nodes cluster it, to the same bits."""
    np.save(tmp_path / "x.npy", points(400))
    made = ["pairwise", tmp_path / "x.npy", "--metric", "cityblock", "--tile", "100"]
    work = tmp_path / "work"
    array = submit(tmp_path, "array.sh", work, *made, options=["--array=1-2"])
    assert wait(array) == {"COMPLETED"}
    call("dasrel", *made[:2], work / "matrix.zarr", *made[2:], "--resume")
    job = submit(tmp_path, "many-nodes.sh", work, options=["--nodes=2"])
    stopped(tmp_path, work, job)
    assert not [path for path in work.glob("dask-*") if path.is_dir()]  # the key went with the workers

    alone, expected = tmp_path / "alone.zarr", tmp_path / "expected"
    call("dasrel", *made[:2], alone, *made[2:])
    call("dasrel", "cluster", alone, expected, *LONG.split())
    assert wait(job) == {"COMPLETED"}, log(tmp_path, job) + (work / "dask-workers.log").read_text()
    assert files(work / "matrix.zarr") == files(alone)
    same_results(work / "clusters", expected)
    output = (work / "dask-scheduler.log").read_text()
    assert "tls://" in output
    assert "tcp://" not in output


@pytest.mark.usefixtures("slurm")
def test_a_wrong_use_fails_at_once(tmp_path):
    """An array that does not count from 1 would leave tiles out; a source that is not there is an error, not a wait."""
    job = submit(tmp_path, "array.sh", tmp_path / "work", "import", "d.npy", options=["--array=0-1"])
    assert wait(job) == {"FAILED"}
    assert {task["ExitCode"] for task in job_tasks(job)} == {"2:0"}
    job = submit(tmp_path, "one-node.sh", tmp_path / "work", "import", tmp_path / "d.npy", "--kind", "distance")
    assert wait(job) == {"FAILED"}
    assert job_tasks(job)[0]["ExitCode"] == "1:0"
    assert "cannot read" in log(tmp_path, job)


@pytest.mark.usefixtures("slurm")
def test_a_command_submits_its_own_workers(tmp_path):
    """`--dask slurm:...`: two jobs are the workers; they are gone when the command is done."""
    pytest.importorskip("dask_jobqueue", reason="it is an extra: dasrel[slurm]")
    np.save(tmp_path / "x.npy", points(200))
    call("dasrel", "pairwise", tmp_path / "x.npy", tmp_path / "s.zarr", "--metric", "euclidean", "--tile", "50")
    few = ["--rule", "hard", "--clusters", "3", "--n-init", "3"]
    place = f"slurm:jobs=2,cores=1,memory=1GB,walltime=00:10:00,logs={tmp_path}/logs"
    there = call("dasrel", "cluster", tmp_path / "s.zarr", tmp_path / "there", *few, "--dask", place, "--workers", "2")
    assert "workers 2, threads 2" in there.stderr
    call("dasrel", "cluster", tmp_path / "s.zarr", tmp_path / "here", *few)
    same_results(tmp_path / "there", tmp_path / "here")
    assert len(list((tmp_path / "logs").iterdir())) >= 2
    end = time.monotonic() + LIMIT
    while call("squeue", "--noheader", "--me").stdout:
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize("script", ["one-node.sh", "array.sh", "many-nodes.sh"])
def test_scripts_tell_how_they_are_used(script):
    """Without Slurm: they are whole, and say what is missing."""
    done = call("bash", FOLDER / script, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    assert "#SBATCH --signal=B:TERM@" in (FOLDER / script).read_text()
