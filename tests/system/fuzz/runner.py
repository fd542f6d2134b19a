"""Run cases, each in a forked process with limits of memory and time, and collect what is wrong with them.

A process forked from one that has imported dasrel begins at once; Python and the imports would take a second each time.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.system.fuzz.judge import Case, Outcome, fault_of

MEMORY = 400 << 20
"""Resident memory that a case may take beyond what its process has at the beginning; libraries that are used for the
first time, and damaged tables that they read, included."""
ADDRESSES = 6 << 30
"""Address space that a case may take beyond that: a case that asks for more gets a MemoryError."""
SECONDS = 60.0
"""Wall-clock seconds after which a case hangs. Machines may be busy."""
CPU_SECONDS = 10.0
"""Processor time that a case may take."""
REAL = 100
"""One case of so many is run by processes of their own, as users do."""

Generator = Callable[[np.random.Generator, Path], Case]


@dataclass
class Found:
    """How a case ended."""

    kind: str
    number: int
    fault: str | None
    code: int = -1
    line: str = ""
    command: str = ""
    seconds: float = 0.0
    megabytes: int = 0


@dataclass
class Summary:
    """Counts by kind."""

    cases: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[Found]] = field(default_factory=dict)

    def add(self, found: Found) -> None:
        self.cases[found.kind] += 1
        self.accepted[found.kind] += found.code == 0
        if found.fault:
            self.faults.setdefault(found.kind, []).append(found)


def preload(base: Path) -> None:
    """Make what cases begin with in another process, and import here what was imported there.

    This process itself runs no command, and has no threads that a fork would lose.
    """
    import typer.main

    from dasrel.cli import app
    from dasrel.util import parallel
    from tests.system.fuzz.base import build

    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            if not base.exists():
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # runs of a few iterations do not converge
                build(base)
            import h5py  # noqa: F401
            import pandas  # noqa: F401
            import pyarrow.parquet  # noqa: F401
            import scipy.io  # noqa: F401

            os.write(writing, "\n".join(sys.modules).encode()[: 1 << 20])
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:
        names = pipe.read().decode().split("\n")
    if os.waitpid(process, 0)[1]:
        raise RuntimeError("the inputs of the cases could not be made")
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    whole = typer.main.get_command(app.build_app())
    app.build_app = lambda wanted=None: whole  # type: ignore[assignment] # made once, not for each command
    parallel._blas()
    gc.collect()
    gc.freeze()  # collections in children would copy all of it


def generator_of(kind: str, seed: int, number: int) -> np.random.Generator:
    """The random numbers of one case, whatever other kinds and cases there are."""
    return np.random.default_rng([seed, zlib.crc32(kind.encode()), number])


def run_cases(
    cases: Iterable[tuple[str, int]], generators: dict[str, Generator], seed: int, folder: Path, jobs: int, keep: bool
) -> Iterator[Found]:
    """Run cases, some at a time, and yield how each ended."""
    waiting, running = iter(cases), {}
    poll = select.poll()
    more = True
    while more or running:
        while more and len(running) < jobs:
            case = next(waiting, None)
            if case is None:
                more = False
                break
            started = _Started(*case, generators[case[0]], seed, folder)
            running[started.pipe] = started
            poll.register(started.pipe, select.POLLIN | select.POLLHUP)
        for pipe, _ in poll.poll(200):
            running[pipe].read()
        for pipe, one in list(running.items()):
            if one.ended or time.monotonic() - one.began > SECONDS:
                poll.unregister(pipe)
                del running[pipe]
                found = one.finish()
                if not (keep and found.fault):
                    shutil.rmtree(one.folder, ignore_errors=True)
                yield found


class _Started:
    """A case in a process of its own."""

    def __init__(self, kind: str, number: int, generate: Generator, seed: int, folder: Path) -> None:
        self.kind, self.number = kind, number
        self.folder = folder / f"{kind}-{seed}-{number}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.content, self.ended, self.began = b"", False, time.monotonic()
        self.pipe, writing = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                os.close(self.pipe)
                os.setsid()  # so that it ends with all that it has started
                found = _in_child(generate, generator_of(kind, seed, number), self.folder, number % REAL == REAL - 1)
            except BaseException:
                found = {"fault": f"the harness failed: {traceback.format_exc()}"}
            os.write(writing, json.dumps(found).encode())
            os._exit(0)
        os.close(writing)

    def read(self) -> None:
        part = os.read(self.pipe, 1 << 16)
        self.content += part
        self.ended = not part

    def finish(self) -> Found:
        if not self.ended:
            os.killpg(self.process, signal.SIGKILL)
        os.close(self.pipe)
        _, status, _ = os.wait4(self.process, 0)
        if self.ended and self.content:
            found = json.loads(self.content)
        elif self.ended:
            found = {"fault": f"crash: the process ended with status {status}"}
        else:
            found = {"fault": f"hang: no end after {SECONDS:.0f} s"}
        with contextlib.suppress(OSError):
            found.setdefault("command", (self.folder / "command").read_text(errors="replace"))
        return Found(self.kind, self.number, seconds=time.monotonic() - self.began, **found)


# -------------------------------------------------------------------------------------------------- in the new process


def _in_child(generate: Generator, rng: np.random.Generator, folder: Path, real: bool) -> dict[str, Any]:
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    os.chdir(folder)
    case = generate(rng, folder)
    lines = [" ".join(["dasrel", *command]) for command in case.commands]
    (folder / "command").write_text("\n".join(lines), errors="surrogateescape")
    before, began = _status("VmRSS"), _processor_time()
    _forget_peak()
    if case.call is not None:
        return _called(case.call)
    outcomes = []
    for command in case.commands:
        outcomes.append(_process(command, folder) if real else _forked(command, folder))
        fault = fault_of(outcomes[-1])
        if fault:
            break
    used, peak = _processor_time() - began, max(0, _status("VmHWM") - before)
    last = outcomes[-1]
    report = [line for line in last.err.split("\n") if line]
    found = {"code": last.code, "line": report[-1][:400] if report else "", "megabytes": peak >> 20}
    if fault is None and peak > MEMORY:
        fault = f"memory: {peak >> 20} MB"
    if fault is None and used > CPU_SECONDS:
        fault = f"slow: {used:.0f} s of processor time"
    return {**found, "fault": fault or case.check(outcomes)}


def _called(call: Callable[[], str | None]) -> dict[str, Any]:
    """Call a function of the library, which may refuse what it gets."""
    from dasrel.errors import DasrelError

    try:
        return {"fault": call(), "code": 0}
    except DasrelError as error:
        return {
            "fault": "an error of several lines" if "\n" in str(error) else None,
            "code": 1,
            "line": str(error)[:400],
        }
    except BaseException as error:
        return {"fault": f"unexpected {type(error).__name__}", "line": "".join(traceback.format_exc()[-900:])}


def _forked(command: list[str], folder: Path) -> Outcome:
    """Run a command in this process, which was forked for it."""
    from dasrel.cli import app

    kept = os.dup(1), os.dup(2)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / f".{name}", os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + ADDRESSES, hard))
    try:
        code = app.run(command)
    except BaseException:
        traceback.print_exc()
        code = 1
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(kept[0], 1)
    os.dup2(kept[1], 2)
    out, err = ((folder / name).read_text(encoding="utf-8", errors="replace") for name in (".stdout", ".stderr"))
    return Outcome(code, out, err)


def _process(command: list[str], folder: Path) -> Outcome:
    """Run a command as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "dasrel", *command], capture_output=True, cwd=folder, check=False, timeout=SECONDS
    )
    return Outcome(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def _status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024


def _forget_peak() -> None:
    """Let the peak of this process's memory begin now, where the system can do that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _processor_time() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
