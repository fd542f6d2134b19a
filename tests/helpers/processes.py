"""The command line in this process and in others, processes that are killed, and Dask's own processes."""

import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dasrel.cli import app
from tests.helpers.forks import programs

CLUSTER = ("--rule", "fcm1", "--clusters", 3, "--n-init", 2, "--tol", 0, "--quiet")
"""Options of a clustering that does not converge before `--max-iter`."""

# ---------------------------------------------------------------------------------------------------------- the command


def ran(*arguments: object) -> int:
    """Run a command in this process; its exit code."""
    return app.run([str(argument) for argument in arguments])


def command(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run `dasrel` in a process of its own, forked; environment variables are added to those of this one."""
    line = [str(programs() / "dasrel"), *map(str, arguments)]
    more["env"] = {**os.environ, **more.get("env", {})}
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=250, **more)


def line_of(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that a command has said on stderr, but for warnings and progress."""
    report = capfd.readouterr().err.splitlines()
    lines = [line for line in report if line.startswith("dasrel: ") and not line.startswith("dasrel: warning")]
    assert len(lines) == 1, report
    return lines[0]


def unmoved(text: str) -> list[str]:
    """The lines without those of progress, which a slow machine shows and a quick one does not."""
    return [line for line in text.splitlines() if not re.match(r"\w+( \d+)?: [\d,]+ of [\d,]+ tiles", line)]


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str], code: int = 1) -> str:
    """Run a command that fails, and return its one line; the lines that tell of a connection do not count."""
    assert app.run([*arguments, "--json"]) == code
    out, err = capfd.readouterr()
    lines = [line for line in unmoved(err) if not re.match(r"dasrel: (scheduler \S+, |workers \d)", line)]
    lines = [line for line in lines if "neither encrypted nor authenticated" not in line]
    if code == 2:
        lines = lines[-1:]  # the usage stands before it
    assert len(lines) == 1, err
    assert json.loads(out) == {"error": lines[0].removeprefix("dasrel: ")}
    return lines[0]


def die_in(place: str, count: int, after: bool) -> None:
    """Kill this process at a call of a function, given by its whole name: before call number `count`, or after it."""
    from pkgutil import resolve_name

    owner, name = resolve_name(place.rpartition(".")[0]), place.rpartition(".")[2]
    original, calls = getattr(owner, name), []

    def dying(*arguments, **options):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) >= count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if len(calls) >= count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


def status(name: str) -> int:
    """What the kernel says of this process's memory, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024


@contextmanager
def peak_memory():  # type: ignore[no-untyped-def]
    """The most memory, without mapped files, that this process has at any time above what it has now."""
    base, done, peak = status("RssAnon"), threading.Event(), [0]

    def look() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], status("RssAnon") - base)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def script_line(script: str, *arguments: object, python: object = sys.executable) -> list[str]:
    """The command line of a Python process whose script may call `die_in`, `status` and `peak_memory`."""
    head = "import os, signal, sys, threading\nfrom contextlib import contextmanager\n"
    text = head + "\n".join(inspect.getsource(one) for one in (die_in, status, peak_memory)) + textwrap.dedent(script)
    return [str(python), "-c", text, *map(str, arguments)]


def measured(script: str, *arguments: object) -> tuple[int, int]:
    """Run a script that prints two numbers: the memory that was predicted, and the most that it took."""
    done = subprocess.run(script_line(script, *arguments), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    predicted, peak = (int(word) for word in done.stdout.split())
    return predicted, peak


KILLED = """
    label, scans, tiles = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    from dasrel import watch; from dasrel.cli import app

    def look(progress):
        if progress.label == label and (progress.scans, progress.tiles) >= (scans, tiles):
            os.kill(os.getpid(), signal.SIGKILL)

    if "." in label:
        die_in(label, tiles, bool(scans))
    with watch(look):
        app.run(sys.argv[4:])
"""


def killed(label: str, scans: int, tiles: int, *command: object) -> None:
    """Run a command in a forked process, which gets kill -9 at a moment: in a pass, or at a call of a function.

    For a function `label` is its whole name; it dies before (`scans` 0) or after (1) call number `tiles`.
    """
    line = script_line(KILLED, label, scans, tiles, *command, python=programs() / "python")
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


# ------------------------------------------------------------------------------------------------------- Dask and Slurm


def local_cluster(**options: Any) -> Any:
    """Worker processes on loopback, two of one thread if nothing else is said; a context manager."""
    from distributed import LocalCluster

    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "host": "127.0.0.1", "scheduler_port": 0}
    settings |= {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": None, "silence_logs": 50}
    return LocalCluster(**{**settings, **options})


def most_memory(pid: int) -> int:
    """The largest memory of a process so far in bytes, mapped files included.

    Read from outside: a function of a test file would take everything that is imported there to the worker.
    """
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def dask_process(
    role: str, *arguments: object, folder: Path, before: Sequence[str] = (), **environment: str
) -> subprocess.Popen[str]:
    """A scheduler or a worker as an administrator starts it; by the command `before`, if one is given."""
    line = [*before, sys.executable, "-m", f"distributed.cli.dask_{role}", *map(str, arguments)]
    with open(folder / f"{role}.log", "a", encoding="utf-8") as log:
        return subprocess.Popen(line, cwd=folder, env={**os.environ, **environment}, stdout=log, stderr=log, text=True)


@contextmanager
def dask_cluster(
    folder: Path, *, workers: int, tls: list[str] | None = None, host: str = "127.0.0.1"
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A scheduler's file and process, and its workers on loopback."""
    file = folder / "scheduler.json"
    security = tls or []
    protocol = ["--protocol", "tls"] if tls else []
    with ExitStack() as stack:
        begun = [dask_process("scheduler", "--host", host, "--port", 0, "--dashboard-address", "127.0.0.1:0",
                              "--scheduler-file", file, *protocol, *security, folder=folder)]  # fmt: skip
        stack.callback(end, begun)
        until = time.monotonic() + 120
        while not file.exists():
            assert time.monotonic() < until, (folder / "scheduler.log").read_text()
            time.sleep(0.05)
        for _ in range(workers):
            begun.append(dask_worker(file, folder, *security))
        yield str(file), begun[0]


def dask_worker(
    file: Path, folder: Path, *security: str, before: Sequence[str] = (), **environment: str
) -> subprocess.Popen[str]:
    where = ["--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard", "--local-directory", folder]
    size = ["--nthreads", 1, "--no-nanny", "--memory-limit", "1GB"]
    return dask_process("worker", *where, *size, *security, folder=folder, before=before, **environment)


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def why_no_slurm() -> str:
    """Why there is no Slurm to test with, or nothing."""
    for name in ("sinfo", "sbatch", "scontrol"):
        if shutil.which(name) is None:
            return f"there is no {name}; .ci/slurm install and .ci/slurm start make a Slurm for the tests"
    try:
        nodes = subprocess.run(
            ["scontrol", "show", "nodes", "-o"], capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return "Slurm's controller does not answer"
    if nodes.returncode != 0:
        return f"Slurm does not run: {(nodes.stderr or nodes.stdout).strip().splitlines()[-1][:200]}"
    hosts = set(re.findall(r"NodeHostName=(\S+)", nodes.stdout))
    if hosts != {socket.gethostname().split(".")[0]}:
        return "this Slurm has other nodes than this machine, which do not see the tests' files"
    return ""
