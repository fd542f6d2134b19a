"""Files that are complete or absent: atomic replacement, locks, checksums, archives without pickle.

The file of a checkpoint: nested numbers, words and arrays as an .npz without pickle.

`about` is JSON, with the arrays left out; `small` holds the short arrays one after the other, `array0` and so on the
long ones; `checksum` is the crc32c of all that. JSON has the numbers as Python's repr, which is exact; arrays keep
their order in memory, on which the last bits of sums depend.

One process at a time: a lock file that says who holds it.

The file holds the process's number, its host and when it began, and the holder keeps an flock on it, which the system
lets go of when the process ends, however it ends. A lock whose flock is free and whose process, on this host, is gone
is stale and is taken over. A file system may not carry flock from one host to another, so a lock of another host is
never taken over: its owner, or somebody who knows, removes it.

The file appears with its content, by a link, and a stale one is replaced by a rename while its flock is held: of two
processes that come at once one wins.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import socket
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import google_crc32c
import numpy as np

from dasrel.errors import DasrelError, StoreError
from dasrel.util import Array, limits
from dasrel.util.text import shown


def full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that the disk is full."""
    while error is not None:
        if isinstance(error, OSError):
            # NumPy gives no number when it could not write all of an array.
            short = error.errno is None and re.fullmatch(r"\d+ requested and \d+ written", str(error))
            if short or error.errno in (errno.ENOSPC, errno.EDQUOT):
                return True
        error = error.__cause__ or error.__context__
    return False


SMALL = 1 << 16  # arrays below this many bytes share one member of the file: thousands of members would be slow


def write_state(path: Path, content: dict[str, Any]) -> int:
    """Write nested dicts and lists of numbers, words and arrays: aside, synced, renamed. The bytes written.

    Tuples come back as lists, everything else as it was, to the last bit.
    """
    pack = _Pack()
    about = json.dumps(pack.encoded(content), allow_nan=False).encode("utf-8")
    members: dict[str, Array] = {"about": np.frombuffer(about, np.uint8)}
    members["small"] = np.frombuffer(b"".join(pack.small), np.uint8)
    members |= {f"array{k}": array for k, array in enumerate(pack.large)}
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(aside, "wb") as file:
            np.savez(file, **{**members, "checksum": np.array(_checksum(members))}, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(aside, path)
        _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return size


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote. Nothing is unpickled; a file that is not whole is refused."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            members = {name: file[name] for name in file.files if name != "checksum"}
            stored, found = int(file["checksum"]), _checksum(members)
        if stored != found:
            raise ValueError(f"its checksum is {found:08x}, {stored:08x} was written")
        content: dict[str, Any] = _decoded(json.loads(members["about"].tobytes()), members)
        return content
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise StoreError(f"{shown(path, limit=200)} cannot be read ({shown(error, limit=200)})") from None


class _Pack:
    """Takes the arrays out of nested values, and leaves their places there."""

    def __init__(self) -> None:
        self.small: list[bytes] = []
        self.large: list[Array] = []
        self._at = 0

    def encoded(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._place(value)
        if isinstance(value, dict):
            return {str(key): self.encoded(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.encoded(item) for item in value]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": str(value)}
        return value

    def _place(self, array: Array) -> dict[str, Any]:
        if array.dtype.kind not in "fiub":
            raise TypeError(f"arrays of {array.dtype} are not kept")
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            array = np.ascontiguousarray(array)
        if array.nbytes >= SMALL:
            self.large.append(array)
            return {"$large": len(self.large) - 1}
        at, self._at = self._at, self._at + array.nbytes
        self.small.append(_bytes(array).tobytes())
        order = "C" if array.flags.c_contiguous else "F"
        return {"$small": at, "dtype": array.dtype.str, "shape": list(array.shape), "order": order}


def _decoded(value: Any, members: dict[str, Array]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, members) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$large" in value:
        return members[f"array{value['$large']}"]
    if "$small" in value:
        dtype, shape = np.dtype(value["dtype"]), tuple(value["shape"])
        part = members["small"][value["$small"] : value["$small"] + dtype.itemsize * math.prod(shape)]
        return np.frombuffer(part.tobytes(), dtype).reshape(shape, order=value["order"]).copy(order=value["order"])
    return {key: _decoded(item, members) for key, item in value.items()}


def _bytes(array: Array) -> Array:
    """An array's bytes as they lie in memory, which the checksum must not be able to change."""
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1).view(np.uint8)
    flat.flags.writeable = False
    return flat


def _checksum(members: dict[str, Array]) -> int:
    total = 0
    for name in sorted(members):
        array = members[name]
        head = f"{name} {array.dtype.str} {array.shape} {array.flags.c_contiguous}".encode("ascii")
        total = google_crc32c.extend(google_crc32c.extend(total, head), _bytes(array))
    return int(total)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


PATIENCE = 2.0
"""Seconds in which a lock that says nothing, or is just being taken over, is looked at again."""


class LockedError(DasrelError):
    """Another process is at work here."""


class Lock:
    """Held inside a `with` block.

    Parameters
    ----------
    note
        Called with a line of text when a stale lock is taken over.
    """

    def __init__(self, path: Path, note: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        self._note = note
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _flock(descriptor)
            os.write(descriptor, json.dumps(_me()).encode())
            last = time.monotonic() + PATIENCE
            while not self._taken(aside, patient=time.monotonic() < last):
                limits.check()
                time.sleep(0.01)
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            aside.unlink(missing_ok=True)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._descriptor is not None
        if _same_file(self._descriptor, self.path):  # somebody may have removed it by hand
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _taken(self, aside: Path, *, patient: bool) -> bool:
        """Whether the file aside has become the lock. Not yet, when somebody else is just taking it or letting go."""
        try:
            _put(aside, self.path)
            return True
        except FileExistsError:
            pass
        try:
            old = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return False  # it was let go of just now
        try:
            free = _flock(old)
            if not _same_file(old, self.path):
                return False
            owner = _read(old)
            unsure = not owner or (free is False and owner.get("host") == socket.gethostname() and not _alive(owner))
            if unsure and patient:
                return False
            fault = _held(owner, free)
            if fault is not None:
                raise LockedError(fault.format(path=shown(self.path, limit=200)))
            os.replace(aside, self.path)
            self._note(f"took over the lock of process {owner.get('pid')}, which is gone")
            return True
        finally:
            os.close(old)


def _put(aside: Path, path: Path) -> None:
    """Make the file aside appear at a path where nothing is."""
    try:
        os.link(aside, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))  # no links here; for a moment it says nothing
        os.replace(aside, path)


def holder(path: Path) -> dict[str, Any] | None:
    """Who is at work under a lock, as its file says: pid, host, since; None if nobody is, as far as can be seen."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        owner = _read(descriptor)
        return owner if owner and _held(owner, None) else None
    finally:
        os.close(descriptor)


def _held(owner: dict[str, Any], free: bool | None) -> str | None:
    """What to say if the lock counts, else None."""
    told = f"process {shown(owner.get('pid'))} on {shown(owner.get('host'))} since {shown(owner.get('since'))}"
    if owner and owner.get("host") != socket.gethostname():
        return f"{told} is at work on this workflow; if that host or process is dead, remove {{path}} and run again"
    if free is False or (owner and _alive(owner)):
        return f"{told} is at work on this workflow ({{path}}); wait for it, or stop it"
    return None


def _alive(owner: dict[str, Any]) -> bool:
    """Whether the process is still there, and not another with its number."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return bool(owner.get("started") == _started(pid))


def _me() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid()), "since": since}


def _started(pid: int) -> str | None:
    """When a process began, in ticks of this boot; None where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # The second field is the name in brackets, which may hold blanks; the beginning is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return f"{boot} {fields[19]}"
    except (OSError, IndexError):
        return None


def _flock(descriptor: int) -> bool | None:
    """Whether the flock was free and is ours now; None where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            return None
        raise


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_ino, mine.st_dev) == (found.st_ino, found.st_dev)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
