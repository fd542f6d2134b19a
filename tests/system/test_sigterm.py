"""SIGTERM for real processes: at every moment of a command one clear line and exit code 143, and nothing is broken."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import squareform

from dasrel import open_matrix
from tests.helpers.forks import programs
from tests.helpers.stores import stored

COMMAND = [sys.executable, "-m", "dasrel"]
SOON = 30.0
"""Seconds in which a stopped process must have ended, on a machine that is busy with other tests: far more than the
five of `stopping.GRACE`, far less than what the commands here would take."""


@pytest.fixture
def distances(tmp_path: Path) -> Path:
    x = np.random.default_rng(3).random((60, 2))
    path = tmp_path / "d.npy"
    np.save(path, np.linalg.norm(x[:, None] - x[None], axis=2))
    return path


def started(*arguments: object, code: str = "", python: object = sys.executable) -> subprocess.Popen[str]:
    """Start a command; `code` is run before it in the same process."""
    line = [str(python), "-c", f"{code}\nfrom dasrel.__main__ import main\nmain()", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code of a process that has to end soon, what it printed, and its lines on stderr."""
    try:
        out, errors = process.communicate(timeout=SOON)
    finally:
        process.kill()
    return process.returncode, out, errors


def until(process: subprocess.Popen[str], line: str) -> None:
    """Wait until a process has written a line to stderr."""
    assert process.stderr is not None
    for report in process.stderr:
        if report.strip() == line:
            return
    raise AssertionError(f"{line} never came: {process.wait()}")


MOMENTS = 10
# `main` sets the handler first of all, and then imports dasrel.cli and all that is large.
IMPORTING = """
import sys
class Begun:
    def find_spec(self, name, path=None, target=None):
        if name == "dasrel.cli":
            print("begun", file=sys.stderr, flush=True)
sys.meta_path.insert(0, Begun())
"""
RUNNING = """
import sys, dasrel.cli.app
def begun(words, run=dasrel.cli.app.run):
    print("begun", file=sys.stderr, flush=True)
    return run(words)
dasrel.cli.app.run = begun
"""
COMMANDS = {
    "import": ["import", "{folder}/d.npy", "{folder}/s.zarr", "--kind", "distance", "--tile", "8", "--quiet"],
    "cluster": ["cluster", "{folder}/whole.zarr", "{folder}/out", "--clusters", "3", "--no-picture", "--quiet"],
    "embed": ["embed", "{folder}/whole.zarr", "{folder}/out", "--components", "3", "--no-picture", "--quiet"],
    "linkage": ["tree", "{folder}/whole.zarr", "{folder}/out", "--linkage", "ward", "--no-picture", "--quiet"],
    "align": ["align", "{folder}/whole.zarr", "{folder}/out", "--clusters", "2,3", "--no-picture", "--quiet"],
    "outliers": ["outliers", "{folder}/whole.zarr", "{folder}/out", "--no-picture", "--quiet"],
}


@pytest.mark.parametrize("name", [pytest.param("import", marks=pytest.mark.guarantee), *list(COMMANDS)[1:]])
def test_sigterm_at_any_moment(name: str, tmp_path: Path, distances: Path) -> None:
    """From the first line to the very end: 143, or 0 if it had finished, and one line at most."""
    check_moments(name, tmp_path, distances, MOMENTS, code=RUNNING, python=programs() / "python")


def test_sigterm_from_the_first_import_on(tmp_path: Path, distances: Path) -> None:
    check_moments("import", tmp_path, distances, 4, code=IMPORTING)


def check_moments(name: str, folder: Path, distances: Path, moments: int, **how: Any) -> None:
    stored(folder / "whole.zarr", distances, tile=8)
    command = [*(word.format(folder=folder) for word in COMMANDS[name]), "--force"]
    process = started(*command, **how)
    until(process, "begun")
    begin = time.monotonic()
    assert process.wait() == 0
    took = time.monotonic() - begin
    ended(process)
    codes = set()
    for k in range(moments):
        process = started(*command, **how)
        until(process, "begun")
        time.sleep(1.1 * took * k / moments)
        process.send_signal(signal.SIGTERM)
        code, out, errors = ended(process)
        lines = [line for line in errors.splitlines() if "warning" not in line]
        assert code in (0, 143), (k, code, errors)
        assert len(lines) == (code == 143), (k, code, errors)
        assert all(line.startswith("dasrel: stopped by SIGTERM") for line in lines), (k, lines)
        assert out == ""
        codes.add(code)
    assert 143 in codes
    # Whatever was hit, the same command does its work now.
    process = started(*command, **how)
    assert ended(process)[0] == 0
    if name == "import":
        matrix = open_matrix(folder / "s.zarr")
        assert np.array_equal(np.asarray(matrix), np.load(distances).astype(np.float32))


def test_sigterm_while_python_imports(tmp_path: Path) -> None:
    """The heavy modules are not there yet: held up at the first of them, the process ends in one line."""
    hold = (
        "import sys, time\n"
        "class Hold:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('numpy', 'dask', 'typer'):\n"
        "            print('importing', file=sys.stderr, flush=True)\n"
        "            time.sleep(600)\n"
        "sys.meta_path.insert(0, Hold())\n"
    )
    process = started("--help", code=hold)
    until(process, "importing")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "", "dasrel: stopped by SIGTERM\n")


def test_sigterm_while_a_scheduler_does_not_answer(tmp_path: Path, distances: Path) -> None:
    """A socket that takes connections and says nothing, and a scheduler's file that never comes."""
    store = tmp_path / "s.zarr"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SOON)
        place = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        process = started("import", distances, store, "--kind", "distance", "--scheduler", place, "--wait", 600)
        with server.accept()[0]:
            process.send_signal(signal.SIGTERM)
            assert ended(process) == (143, "", "dasrel: stopped by SIGTERM; nothing was kept\n")
    looked = "import time\nsleep = time.sleep\ndef told(s):\n    print('waits', file=sys.stderr, flush=True)\n"
    process = started(
        *("import", distances, store, "--kind", "distance", "--scheduler-file", tmp_path / "none", "--wait", 600),
        code=f"import sys\n{looked}    sleep(s)\ntime.sleep = told",
    )
    until(process, "waits")
    process.send_signal(signal.SIGTERM)
    code, out, errors = ended(process)
    assert (code, out) == (143, "")
    assert errors.replace("waits\n", "") == "dasrel: stopped by SIGTERM; nothing was kept\n"
    assert not store.exists()


def test_sigterm_in_a_long_call_of_a_library(tmp_path: Path, distances: Path) -> None:
    """The main thread is in C code and sees no signal; the process ends in one line all the same."""
    stuck = (
        "import ctypes, sys\n"
        "import dasrel.store.audit\n"
        "def stuck(*given, **named):\n"
        "    print('stuck', file=sys.stderr, flush=True)\n"
        "    libc = ctypes.CDLL(None)\n"
        "    while True:\n"
        "        left = libc.sleep(600)\n"
        "dasrel.store.audit.audit_store = stuck\n"
    )
    for options, report in (((), ""), (("--json",), {"error": "stopped by SIGTERM"})):
        process = started("audit", distances, *options, code=stuck)
        until(process, "stuck")
        process.send_signal(signal.SIGTERM)
        code, out, errors = ended(process)
        assert (code, errors) == (143, "dasrel: stopped by SIGTERM\n")
        assert (json.loads(out) if out else "") == report


def test_a_second_sigterm_in_a_long_call_of_a_library(distances: Path) -> None:
    stuck = (
        "import ctypes, sys\n"
        "import dasrel.store.audit, dasrel.util.limits\n"
        "dasrel.util.limits.GRACE = 600\n"
        "def stuck(*given, **named):\n"
        "    print('stuck', file=sys.stderr, flush=True)\n"
        "    libc = ctypes.CDLL(None)\n"
        "    while True:\n"
        "        libc.sleep(600)\n"
        "dasrel.store.audit.audit_store = stuck\n"
    )
    process = started("audit", distances, code=stuck)
    until(process, "stuck")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # so that the system does not make one signal of the two
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "", "dasrel: stopped at once by a second SIGTERM\n")


def test_sigterm_while_a_text_is_read(tmp_path: Path) -> None:
    """One thread reads a table, block by block: it ends after a block, and what was read is kept."""
    n = 300
    values = squareform(np.arange(1.0, n * (n - 1) / 2 + 1))
    rows = [f"object{k}\t" + "\t".join(map(str, row)) for k, row in enumerate(values)]
    table = tmp_path / "d.lsmat"
    table.write_text("\t".join(["", *(f"object{k}" for k in range(n))]) + "\n" + "\n".join(rows) + "\n")
    slow = (
        "import inspect, sys, time\n"
        "import dasrel.io.readers.stream as spool\n"
        "plain = spool.Stream.read\n"
        "def slowly(self, size):\n"
        "    if not any(frame.function == '_spool' for frame in inspect.stack()):\n"
        "        return plain(self, size)\n"  # the header: nothing of it is kept
        "    print('reads', file=sys.stderr, flush=True)\n"
        "    time.sleep(0.2)\n"
        "    return plain(self, 1000)\n"
        "spool.Stream.read = slowly\n"
    )
    process = started("import", table, tmp_path / "s.zarr", "--kind", "distance", "--quiet", code=slow)
    until(process, "reads")
    process.send_signal(signal.SIGTERM)
    code, _, errors = ended(process)
    lines = [line for line in errors.splitlines() if line != "reads"]
    assert (code, len(lines)) == (75, 1), errors
    assert lines[0].startswith("dasrel: stopped by SIGTERM while the source was read; run the same again with --resume")
    assert (
        subprocess.run(
            [*COMMAND, "import", table, tmp_path / "s.zarr", "--kind", "distance", "--quiet", "--resume"], check=False
        ).returncode
        == 0
    )
    assert np.array_equal(np.asarray(open_matrix(tmp_path / "s.zarr")), values.astype(np.float32))
