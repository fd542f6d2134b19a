"""Start Dask clusters: local processes, jobs of Slurm, pods of Kubernetes, the processes of mpirun."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import math
import os
import shlex
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dasrel.engine.cluster_settings import parsed_cluster, plain_path, shell_word
from dasrel.errors import ClusterError, InputError
from dasrel.util import limits
from dasrel.util.text import shown

PACKAGES = {"slurm": "dask_jobqueue", "kubernetes": "dask_kubernetes", "mpi": "dask_mpi"}
"""The package that each kind needs besides Dask; the extra of dasrel with the kind's name installs it."""
IDLE = 1800
"""Idle seconds after which a cluster on Kubernetes deletes itself."""


STARTS = 5
"""Times that a local cluster is started: a worker that is killed while it starts ends all of them."""
PAUSE = 1.0
"""Seconds between two of them."""


@dataclass(frozen=True)
class Started:
    """A started cluster."""

    target: Any
    """The cluster, or the address of its scheduler."""
    workers: int
    """Default number of workers to wait for."""
    shuts_down: bool = False
    """Whether the client must shut it down."""

    def close(self) -> None:
        """Close the cluster."""
        if hasattr(self.target, "close"):
            self.target.close(timeout=20)


def start(kind: str, settings: dict[str, Any], *, security: Any, level: int) -> Started:
    """Start a cluster; `level` is its log level."""
    package = PACKAGES.get(kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ClusterError(
            f"a cluster on {kind} needs the package {package.replace('_', '-')}, which is not installed",
            remedy=f'install it with: python -m pip install "dasrel[{kind}]"',
        )
    try:
        return {"local": _local, "slurm": _slurm, "kubernetes": _kubernetes, "mpi": _mpi}[kind](
            settings, security, level
        )
    except (ClusterError, InputError):
        raise
    except Exception as error:
        raise ClusterError(f"cannot start the cluster ({kind}): {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return the message of another package's error as one line, with its last cause."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    problem, why = (str(each).strip() or type(each).__name__ for each in (error, cause))
    return shown(" ".join((problem if why in problem else f"{problem}: {why}").split()), limit=400)


def planned_workers(text: str) -> dict[str, Any]:
    """Return the number, the memory and the threads of the workers of a cluster that would be started.

    >>> planned_workers("slurm:jobs=32,processes=2,cores=8,memory=64GB")
    {'counts': [64], 'memory': 32000000000, 'threads': 4}
    """
    kind, settings = parsed_cluster(text)
    if "memory" not in settings:
        raise InputError(f"dask {kind}: memory is missing", remedy="say how much a worker gets, such as memory=8GB")
    jobs = settings.get("jobs" if kind == "slurm" else "workers", 1)
    if kind == "mpi" or "spec" in settings:
        raise InputError(f"dask {kind}: the number of workers is not in it", remedy="name workers, {workers}")
    each = settings.get("processes", 1)
    threads = settings.get("cores", settings.get("threads", math.ceil(_cpus(settings.get("cpus", "1")))))
    memory = _bytes(kind, settings["memory"]) // each
    return {"counts": [jobs * each], "memory": memory, "threads": max(1, threads // each)}


def _cpus(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def has_dashboard(kind: str | None) -> bool:
    """Tell whether the scheduler can show its dashboard, as far as is known here: most kinds use this Python."""
    return kind in (None, "kubernetes") or importlib.util.find_spec("bokeh") is not None


def _bytes(kind: str, text: str) -> int:
    return limits.memory_limit(text, f"dask {kind}: memory")


def _local(settings: dict[str, Any], security: Any, level: int) -> Started:
    """Start processes on this machine that cannot be reached from outside."""
    from dask.system import CPU_COUNT
    from distributed import LocalCluster

    workers = settings.get("workers", int(CPU_COUNT))
    memory = _bytes("local", settings["memory"]) if "memory" in settings else limits.machine_memory() // workers
    if memory < limits.IDLE_WORKER:
        raise InputError(
            f"dask local: memory is {shown(settings.get('memory', memory))} for a worker, and an idle one takes"
            f" {limits.IDLE_WORKER // 10**6} MB already"
        )
    for left in reversed(range(STARTS)):
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=settings.get("threads", 1),
                memory_limit=memory,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                security=security,
                silence_logs=level,
            )
            break
        except RuntimeError:  # a worker died while it started; Dask has ended the others
            if not left:
                raise
            limits.check()
            time.sleep(PAUSE)
    return Started(cluster, workers)


def _slurm(settings: dict[str, Any], security: Any, level: int) -> Started:
    """Start jobs of a batch system, each with one or more workers; the scheduler runs in this process."""
    import dask
    from dask_jobqueue import SLURMCluster
    from distributed.core import Status

    if shutil.which("sbatch") is None:
        raise ClusterError("there is no sbatch on this machine: a cluster on slurm is started where jobs are submitted")
    if "memory" not in settings and dask.config.get("jobqueue.slurm.memory", None) is None:
        raise InputError("dask slurm: memory is missing", remedy="say how much a job gets, such as memory=8GB")
    # Defaults come from the site's jobqueue.yaml.
    given: dict[str, Any] = {
        name: settings[name] for name in ("queue", "account", "memory", "walltime", "interface") if name in settings
    }
    words = {"python": "python", "scratch": "local_directory"}
    given |= {words[name]: shell_word(settings[name]) for name in words if name in settings}
    if "python" not in given and dask.config.get("jobqueue.slurm.python", None) is None:
        given["python"] = shlex.quote(sys.executable)
    cores = settings.get("cores") or dask.config.get("jobqueue.slurm.cores", None) or 1
    processes = settings.get("processes", 1)
    jobs = settings.get("jobs", 1)
    cluster = SLURMCluster(
        cores=cores,
        processes=processes,
        log_directory=plain_path(os.path.expanduser(settings["logs"]), "logs") if "logs" in settings else None,
        job_extra_directives=settings.get("directive"),
        job_script_prologue=settings.get("prologue"),
        scheduler_options={"dashboard_address": ":0"},
        security=security,
        silence_logs=level,
        **given,
    )

    async def submit() -> None:
        cluster.scale(jobs=jobs)
        await cluster

    try:
        cluster.sync(submit)  # raises the error of sbatch
    except BaseException:
        for job in cluster.workers.values():
            if job.job_id is None:
                job.status = Status.failed  # otherwise the cluster could not be closed with a job that never started
        with suppress(Exception):
            cluster.close(timeout=20)
        raise
    return Started(cluster, 1)


def _kubernetes(settings: dict[str, Any], security: Any, level: int) -> Started:
    """Start pods by the Dask operator, which the site must have installed."""
    from dask_kubernetes.operator import KubeCluster
    from dask_kubernetes.operator.kubecluster.kubecluster import reap_clusters

    arguments = kubernetes_arguments(settings)
    try:
        # Pods idle for so long have lost the command that started them.
        cluster = KubeCluster(**arguments, idle_timeout=IDLE, quiet=True)
    except Exception:
        atexit.unregister(reap_clusters)  # it would fail in the same way at the end, with a traceback
        raise
    return Started(cluster, 1)


def kubernetes_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the operator's `KubeCluster`.

    >>> kubernetes_arguments({"image": "lab/dasrel", "workers": 2, "memory": "4GB"})["resources"]
    {'limits': {'memory': '4000000000'}, 'requests': {'memory': '4000000000'}}
    """
    if "spec" in settings:
        also = [name for name in ("image", "memory", "cpus", "name", "workers") if name in settings]
        if also:
            raise InputError(f"dask kubernetes: {also[0]} is given beside spec", remedy="write it into that file")
        named = {"namespace": settings["namespace"]} if "namespace" in settings else {}
        return {"custom_cluster_spec": settings["spec"], **named}
    if "image" not in settings:
        raise InputError("dask kubernetes: image is missing", remedy="name one that has dasrel in it, or give a spec")
    amounts = {"cpu": settings["cpus"]} if "cpus" in settings else {}
    if "memory" in settings:
        amounts["memory"] = str(_bytes("kubernetes", settings["memory"]))
    named = {name: settings[name] for name in ("name", "namespace") if name in settings}
    resources = {"limits": amounts, "requests": dict(amounts)} if amounts else None
    return {"image": settings["image"], "n_workers": settings.get("workers", 1), "resources": resources, **named}


def _mpi(settings: dict[str, Any], security: Any, level: int) -> Started:
    """Use the processes that mpirun has started: a scheduler, this command, and workers."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ClusterError(f"there is no MPI library that mpi4py can load: {one_line(error)}") from None
    import dask
    from dask_mpi import initialize

    ranks = MPI.COMM_WORLD.Get_size()
    if ranks < 3:
        raise ClusterError(
            f"a cluster on mpi needs 3 processes or more (a scheduler, this program, workers) and has {ranks}",
            remedy="start it as: mpirun -n 4 dasrel ...",
        )
    if MPI.COMM_WORLD.Get_rank() != 1:
        logging.getLogger("distributed").setLevel(level)
    is_client = initialize(
        nthreads=settings.get("threads", 1),
        memory_limit=_bytes("mpi", settings["memory"]) if "memory" in settings else "auto",
        interface=settings.get("interface"),
        dashboard_address=":0",
        exit=False,
    )
    if not is_client:
        raise SystemExit(0)  # the work is done: this process was the scheduler or a worker
    return Started(dask.config.get("scheduler-address"), ranks - 2, shuts_down=True)
