"""Processes that begin in milliseconds: forked from a server that has imported dasrel, for tests that start many.

`programs()` is a folder with two programs, `dasrel` and `python`. They are small clients: the server forks a child with
their arguments, folder, environment and open files, they pass signals on and end as the child does. A client that dies
takes the child with it. What a process does while it starts is tested with real processes, and so is what depends on
variables that are read by imports: with other ones of these than the server has, a client becomes a real Python.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

READ_BY_IMPORTS = (
    *("DASK_", "DASREL_NO_NATIVE", "LANG", "LC_", "MALLOC", "MKL_", "MPLBACKEND", "OMP_", "OPENBLAS_", "PYTHON"),
)

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

name, words, python = os.path.basename(sys.argv[0]), sys.argv[1:], {python!r}
if name == "python" and words[:2] == ["-m", "dasrel"]:
    name, words = "dasrel", words[2:]
fixed = {{key: value for key, value in os.environ.items() if key.startswith({prefixes!r})}}
script = name == "python" and words and (words[0] == "-c" or words[0].endswith(".py"))
if fixed != {fixed!r} or not (name == "dasrel" or script):
    os.execv(python, [python, *(["-m", "dasrel"] if name == "dasrel" else []), *words])
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect({address!r})
child, early = 0, []
def forward(number, frame):
    os.kill(child, number) if child else early.append(number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, forward)
request = json.dumps([name == "dasrel", words, os.getcwd(), dict(os.environ)]).encode()
files = [number for number in range(3) if os.path.exists("/proc/self/fd/%d" % number)]
socket.send_fds(server, [bytes(files).ljust(4, b"\\xff") + len(request).to_bytes(4, "big")], files)
server.sendall(request)
answers = server.makefile()
child = int(answers.readline())
for number in early:
    os.kill(child, number)
code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def programs() -> Path:
    """Return the folder of the two programs; the server starts with the first call and ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    address = str(folder / "socket")
    line = [sys.executable, "-c", "import sys; from tests.helpers import forks; forks.serve(sys.argv[1])", address]
    server = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    atexit.register(_end, server, folder)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    fixed = {name: value for name, value in os.environ.items() if name.startswith(READ_BY_IMPORTS)}
    text = CLIENT.format(python=sys.executable, prefixes=READ_BY_IMPORTS, fixed=fixed, address=address)
    for name in ("dasrel", "python"):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def _end(server: subprocess.Popen[bytes], folder: Path) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


# ----------------------------------------------------------------------------------------------------------- the server


def serve(address: str) -> None:
    """Fork a child for each client, until stdin is closed."""
    _import_all()
    assert threading.active_count() == 1  # a fork would copy their locks, held or not
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(address)
    listening.listen(64)
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    clients: dict[int, socket.socket] = {}
    while True:
        ready = select.select([0, awake, listening, *clients.values()], [], [])[0]
        if 0 in ready:
            break
        if awake in ready:
            os.read(awake, 4096)
            _tell_ends(clients)
        for pid, client in [(pid, client) for pid, client in clients.items() if client in ready]:
            if not client.recv(1):  # it has died: so does the child
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                clients.pop(pid).close()
        if listening in ready:
            client = listening.accept()[0]
            pid, files = _forked(client, [listening.fileno(), awake, wake, *(one.fileno() for one in clients.values())])
            clients[pid] = client
            for file in files:
                os.close(file)
            client.sendall(b"%d\n" % pid)
    for pid in clients:
        os.kill(pid, signal.SIGKILL)


def _import_all() -> None:
    """Import all that commands use. Nothing may be called that starts a thread."""
    import dasrel

    for name in dasrel.__all__:
        getattr(dasrel, name)
    for name in (
        *("dasrel.cli.app", "distributed", "h5py", "jinja2", "matplotlib.backends.backend_agg", "matplotlib.pyplot"),
        *("networkx", "pyarrow.csv", "pyarrow.parquet", "scipy.cluster.hierarchy", "scipy.optimize"),
        *("scipy.sparse.linalg", "sklearn.cluster", "sklearn.svm", "zarr"),
    ):
        importlib.import_module(name)


def _tell_ends(clients: dict[int, socket.socket]) -> None:
    for pid in list(clients):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            client = clients.pop(pid)
            with suppress(BrokenPipeError):
                client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            client.close()


def _forked(client: socket.socket, not_its: list[int]) -> tuple[int, list[int]]:
    """Fork a child that does what a client asks for; its pid, and the files that it got."""
    head, files, _, _ = socket.recv_fds(client, 8, 3)
    (size,) = struct.unpack(">I", head[4:])
    text = b""
    while len(text) < size:
        text += client.recv(size - len(text))
    pid = os.fork()
    if pid == 0:
        for file in [*not_its, client.fileno()]:
            os.close(file)
        _become(dict(zip(head[:3], files, strict=False)), files, *json.loads(text))
    return pid, list(files)


def _become(
    standard: dict[int, int],
    files: Any,
    is_dasrel: bool,
    words: list[str],
    folder: str,
    environment: dict[str, str],
) -> NoReturn:
    """Be a Python process that was started with these words."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in range(3):
        os.close(number) if number not in standard else os.dup2(standard[number], number)
    for file in files:
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for number, name, how in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = None
        if number in standard:
            errors = "backslashreplace" if number == 2 else "strict"
            line = number == 2 or os.isatty(number)
            stream = open(number, how, encoding="utf-8", errors=errors, buffering=1 if line else -1)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    code = 0
    try:
        if is_dasrel:
            from dasrel.__main__ import main

            sys.path[0] = str(Path(sys.executable).parent)
            sys.argv = ["dasrel", *words]
            main()
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # as when an interpreter ends
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = code or 120
    os._exit(code)
