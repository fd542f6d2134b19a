"""Faults that are injected on purpose: processes killed at a known moment, a server that fails, a small disk."""

from __future__ import annotations

import hashlib
import http.client
import os
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dasrel import watch
from dasrel.errors import DasrelWarning
from dasrel.store.tile_files import TileFiles
from dasrel.util import limits

# -------------------------------------------------------------------------------------------------------------- killing


@dataclass(frozen=True)
class Tokens:
    """A number of times that something bad happens, over all processes: a file in a folder for each."""

    folder: str

    @classmethod
    def made(cls, folder: Path, *names: str) -> Tokens:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).touch()
        return cls(str(folder))

    def take(self, name: str) -> bool:
        """Whether it is to happen now; then it will not happen again."""
        try:
            os.unlink(f"{self.folder}/{name}")
        except FileNotFoundError:
            return False
        return True

    def left(self) -> list[str]:
        return sorted(os.listdir(self.folder))


@dataclass(frozen=True)
class DeadlyTiles(TileFiles):
    """Tiles of which some kill the process that reads them, once each: those that a token `i-j` is there for."""

    tokens: Tokens | None = None
    home: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        arrived = partial(DeadlyTiles, tokens=self.tokens, home=self.home)
        return arrived, (self.store, self.layout, self.mapped)

    def read_checked(self, i: int, j: int) -> Any:
        assert self.tokens is not None
        if os.getpid() != self.home and self.tokens.take(f"{i}-{j}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read_checked(i, j)


@dataclass(frozen=True)
class Blocks:
    """Distances of points on a line, for `from_blocks`; a worker dies, or takes all memory, where a token says so."""

    tokens: Tokens
    home: int

    def __call__(self, rows: range, columns: range) -> Any:
        place = f"{rows.start}-{columns.start}"
        if os.getpid() != self.home and self.tokens.take(place):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.getpid() != self.home and (self.tokens.take(f"memory-{place}") or "memory-always" in self.tokens.left()):
            hoard = [np.ones(10 * 2**20) for _ in range(15)]  # 1.2 GB
            time.sleep(30)  # its nanny ends it long before
            raise AssertionError(f"nobody has noticed {len(hoard)} arrays")
        return np.abs(np.subtract.outer(np.array(rows) ** 1.5, np.array(columns) ** 1.5))


@dataclass(frozen=True)
class SlowBlocks:
    """Distances of points on a line, for `from_blocks`, that take a while."""

    seconds: float = 0.2

    def __call__(self, rows: range, columns: range) -> Any:
        time.sleep(self.seconds)
        return np.abs(np.subtract.outer(np.array(rows) ** 1.5, np.array(columns) ** 1.5))


def worker_processes(client: Any) -> list[psutil.Process]:
    """The processes of a local cluster's workers that have started, the oldest first.

    Those that still start are left alone: a nanny whose worker dies before it has begun gives up.
    """
    from distributed.core import Status

    watched = [nanny.process for nanny in client.cluster.workers.values()]
    started = [one.pid for one in watched if one is not None and one.status is Status.running and one.pid is not None]
    found = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    return sorted(found, key=lambda one: (one.create_time(), one.pid))


@contextmanager
def struck(label: str, moments: list[tuple[int, int]], strike: Callable[[], None]) -> Iterator[list[Any]]:
    """Call `strike` at each (scan, tile) of a pass that a meter tells of, once each; all of them must come."""
    left, done = list(moments), []

    def look(progress: Any) -> None:
        if left and progress.label == label and (progress.scans, progress.tiles) >= left[0]:
            done.append(left.pop(0))
            strike()

    with watch(look):
        yield done
    assert left == []


def kill_a_worker(client: Any) -> None:
    """SIGKILL for the worker that has lived longest."""
    for oldest in worker_processes(client)[:1]:
        oldest.kill()


class Killed(BaseException):
    """Stands for kill -9: nothing but what is on the disk survives it."""


@contextmanager
def killed_after(scans: int) -> Iterator[None]:
    """The scan after so many never comes to its end."""

    def look(progress: Any) -> None:
        if progress.label == "scan" and progress.scans > scans:
            raise Killed

    with watch(look):
        yield


@contextmanager
def stopped_after(scans: int) -> Iterator[None]:
    """SIGTERM comes during the last of so many scans."""
    with limits.limited(None) as stop:

        def look(progress: Any) -> None:
            stop.signalled = progress.label == "scan" and progress.scans >= scans

        with watch(look):
            yield


def quiet(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose warnings are not the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DasrelWarning)
        return function(*args, **kwargs)


# ---------------------------------------------------------------------------------------------------------------- disks


class Disk:
    """A small disk of its own, whose size can be changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)

    def fill(self) -> Path:
        """Write until nothing goes any more; the file that did it."""
        hog = self.path / "hog"
        with hog.open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    pass
        return hog


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Disk]:
    """A tmpfs mounted on a folder that is made for it. A test is skipped where nobody may mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


# ------------------------------------------------------------------------------------------------------------- a server


class Front:
    """A proxy in front of a server, on loopback, that answers some requests itself: with errors, too late, or falsely.

    `fault` gets the method and the path of a request, and returns None to let it through, a status (an S3 error is
    sent with it), a number of seconds (below 100) after which the connection is closed without an answer, or a word:

    lost      what is put is confirmed and not kept; what is asked for is said not to be there
    short     half of what is put is kept; half of what is asked for is sent
    repeated  what is put is put twice; what is asked for is answered as it was the last time
    slow      the request is passed on after a while
    """

    SLOW = 0.05

    def __init__(self, host: str, port: int) -> None:
        self.fault: Callable[[str, str], float | str | None] = lambda method, path: None
        self.seen: list[tuple[str, str, float | str | None, float]] = []
        self.sent: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        """The last whole answer to each GET."""
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: Any) -> None:
                pass

            def handle_any(self) -> None:
                body = self._body()
                fault = front.fault(self.command, self.path)
                front.seen.append((self.command, self.path, fault, time.monotonic()))
                if isinstance(fault, str):
                    self._lie(fault, body)
                elif fault is None:
                    self._answer(*self._asked(body))
                elif fault < 100:
                    front.closing.wait(fault)
                    self.close_connection = True
                else:
                    self._refuse(int(fault))

            def _lie(self, fault: str, body: bytes) -> None:
                puts, old = self.command == "PUT", front.sent.get(self.path)
                if fault == "slow":
                    front.closing.wait(front.SLOW)
                if fault == "lost" and not puts:
                    return self._refuse(404)
                if fault == "lost":
                    return self._answer(200, [("ETag", f'"{hashlib.md5(body).hexdigest()}"')], b"")
                if fault == "short" and puts:
                    status, headers, _ = self._asked(body[: len(body) // 2])
                    headers = [one for one in headers if one[0].lower() != "etag"]
                    return self._answer(status, [*headers, ("ETag", f'"{hashlib.md5(body).hexdigest()}"')], b"")
                if fault == "repeated" and puts:
                    self._asked(body)
                if fault == "repeated" and not puts and old is not None:
                    return self._answer(*old)
                status, headers, data = self._asked(body)
                return self._answer(status, headers, data[: len(data) // 2] if fault == "short" else data)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return b"".join(parts)

            def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                """Pass the request on; status, headers and body of the answer."""
                inner = http.client.HTTPConnection(host, port)
                dropped = ("transfer-encoding", "connection", "content-encoding", "x-amz-trailer")
                words = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
                inner.request(self.command, self.path, body, {**words, "Content-Length": str(len(body))})
                answer = inner.getresponse()
                data = answer.read()
                inner.close()
                found = answer.status, answer.getheaders(), data
                if self.command == "GET" and answer.status == 200:
                    front.sent[self.path] = found
                return found

            def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
                self.send_response(status)
                length = str(len(data))
                for name, value in headers:
                    if name.lower() == "content-length" and self.command == "HEAD":
                        length = value
                    elif name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(data)

            def _refuse(self, status: int) -> None:
                code = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 404: "NoSuchKey"}[status]
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>not now</Message></Error>".encode()
                text = b"" if self.command == "HEAD" else text
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any  # noqa: N815

        self.closing = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *about: None  # type: ignore[method-assign]  # a client that has given up
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
