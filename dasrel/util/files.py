"""Files that are complete or absent: atomic replacement, one lock, checksums, disk errors.

*Temporary files* all have one name, `.NAME.TOKEN.partial` beside the file `NAME` that they become; the token is random,
because another machine may write the same file at the same time. What a killed process leaves behind is found by that
suffix (`remove_temporary_files`).

*The lock* is a file that names its owner (process, host, since when), and the owner holds an flock on it, which the
system releases when the process ends, however it ends. The policy, the same for stores, appends, checkpoints and
workflows: who finds the flock held is refused. Who finds it free, or a file system without flock, asks the owner that
the file names: a process of this host counts while it lives (only where there is no flock: a free one is proof enough),
a process of another host counts unless the caller says `take_over`, because a file system may keep flocks to one host.
A process of another container on this machine has a number that means nothing here: its flock counts, and where there
is none it is as far as another host.
The file appears with its content, by a link, and a stale one is replaced by a rename while its flock is held: of two
processes that come at once one wins.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c

from dasrel.errors import StoreError
from dasrel.util import Array, PathLike, limits
from dasrel.util.text import shown


def write_at(descriptor: int, values: Array, offset: int) -> None:
    """Write all bytes of an array at a place of a file."""
    left = values.reshape(-1).view("u1").data
    while left:
        count = os.pwrite(descriptor, left, offset)
        left, offset = left[count:], offset + count


# ----------------------------------------------------------------------------------------------------------- checksums


def crc32c(data: bytes | memoryview | Array, start: int = 0) -> int:
    """Return the crc32c of bytes or of a C-contiguous array's bytes, continuing from `start`.

    >>> f"{crc32c(b'123456789'):08x}", crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    ('e3069283', True)
    """
    if not isinstance(data, (bytes, memoryview)):
        data = data.reshape(-1).view("u1")
        data.flags.writeable = False  # the library takes read-only bytes only
    return int(google_crc32c.extend(start, data))


def file_crc32c(path: PathLike, *, chunk: int = 1 << 20) -> int:
    """Return the crc32c of a file. Cost: reads it once, `chunk` bytes at a time."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(chunk):
            limits.check()
            total = crc32c(piece, total)
    return total


def md5_number(content: Any | None = None, *, digits: str = "") -> float:
    """Return the first 48 bits of the MD5 of bytes, or of an MD5 of hexadecimal digits. A float64 holds them exactly.

    >>> md5_number(b"a") == md5_number(digits="0cc175b9c0f1b6a831c399e269772661") == 0x0cc175b9c0f1
    True
    """
    if content is not None:
        digits = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return float(int(digits[:12], 16))


def digest(parts: Iterable[bytes]) -> str:
    """Return sixteen hexadecimal digits that stand for all of these bytes (blake2b)."""
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


# --------------------------------------------------------------------------------------------------------- disk errors

NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.ENOENT, errno.ENOTDIR)


def full_disk(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, says that the disk is full."""
    while error is not None:
        if isinstance(error, OSError):
            # NumPy gives no number when it could not write all of an array.
            short = error.errno is None and re.fullmatch(r"\d+ requested and \d+ written", str(error))
            if short or error.errno in (errno.ENOSPC, errno.EDQUOT):
                return True
        error = error.__cause__ or error.__context__
    return False


def disk_error_text(error: BaseException) -> str | None:
    """Return one line for an error of the disk that nothing more is known about, or None for another error."""
    named = getattr(error, "filename", None)
    where = _final(os.fsdecode(named)) if isinstance(named, (str, bytes)) else ""
    if full_disk(error):
        holder = f" ({where})" if where else ""
        return f"the disk is full{holder}: what was being written is not there; free some space and run again"
    if isinstance(error, OSError) and error.strerror:
        return f"{where}: {error.strerror}" if where else error.strerror
    return None


@contextmanager
def disk_errors(
    place: Path | None,
    *,
    full: str,
    retry: str = "free some space and run again",
    denied: str = "choose another place, or one that is not read-only",
    name: str = "",
) -> Iterator[None]:
    """Raise a `StoreError` of one line when the disk is full, or when a file or folder cannot be written.

    Parameters
    ----------
    place
        What is being written. Refusals that name a file elsewhere, such as the source, are raised as they are. None
        for remote storage, where all of them count.
    full
        What follows "the disk is full: ", such as what is left of the work.
    retry
        What to do then, as the remedy of the error.
    denied
        What to do where writing is not allowed, the file system is read-only, or there is no such folder.
    name
        How `place` is shown, if not by its path.
    """
    try:
        yield
    except Exception as error:
        if full_disk(error):
            raise StoreError(f"the disk is full: {full}", remedy=retry) from error
        if isinstance(error, OSError) and _refuses(error, place):
            where = name or shown(place, limit=400)
            raise StoreError(f"{where} cannot be written ({error.strerror})", remedy=denied) from error
        raise


def _refuses(error: OSError, place: Path | None) -> bool:
    """Return whether an error says that a place cannot be written, and not that a source cannot be read."""
    if place is None:
        return error.errno in NOT_ALLOWED
    if not isinstance(error.filename, (str, bytes, os.PathLike)):
        return False
    path, place = Path(os.path.abspath(os.fsdecode(error.filename))), Path(os.path.abspath(place))
    near = path.is_relative_to(place) or path.name.startswith(f".{place.name}.") or path == place.parent
    return near and (error.errno in NOT_ALLOWED or (error.errno in NO_FOLDER and not place.parent.is_dir()))


# -------------------------------------------------------------------------------------------------- atomic replacement

PARTIAL = ".partial"
_TOKEN = "[0-9a-f]{16}"


def temporary_path(path: PathLike, suffix: str = PARTIAL) -> Path:
    """Return the path of a temporary file or folder beside `path`, another one at every call."""
    folder, name = os.path.split(os.fspath(path))  # faster than pathlib, and there are two for every tile
    return Path(folder, f".{name.removeprefix('.')}.{secrets.token_hex(8)}{suffix}")


@contextmanager
def replacing(path: PathLike, *, sync: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces the file `path` when the block ends without an error.

    The block makes it, by `open` with "x": exclusively, and never through a link.

    Parameters
    ----------
    sync
        Whether the content, and then the new name, are on the disk when the block has ended. Costs milliseconds.
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        if sync:
            _sync(temporary)
        os.replace(temporary, path)
        if sync:
            with suppress(OSError):  # not every file system can sync a folder
                _sync(temporary.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(
    path: PathLike, *, make: bool = True, check: Callable[[], object] = lambda: None
) -> Iterator[Path]:
    """Yield a temporary folder, which takes the place of `path` when the block ends without an error.

    Parameters
    ----------
    make
        Whether the folder is made here; else the block makes it, or a file, under the name that it is given.
    check
        Called when something is at `path` by then, which is replaced if this does not raise. An empty folder always is.
    """
    temporary = temporary_path(path)
    try:
        if make:
            temporary.mkdir()
        yield temporary
        move_into_place(temporary, Path(path), check)
    finally:
        _remove(temporary)


def move_into_place(temporary: Path, path: Path, check: Callable[[], object] = lambda: None) -> None:
    """Rename a complete folder to `path`. What is there goes only when the new one is in its place."""
    replaced = False
    while True:
        try:
            os.rename(temporary, path)  # replaces nothing but an empty folder, or a file by a file
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
                raise
        check()
        replaced = True
        with suppress(FileNotFoundError):  # another process was quicker
            os.rename(path, temporary_path(path, ".old"))
    if replaced:
        _remove_beside(path, rf"{_TOKEN}\.old")  # of this process, or of one that was killed here


def remove_leftovers(path: PathLike) -> None:
    """Remove what killed processes have left beside a result that is in its place: temporary and replaced copies.

    Call it only while no other process writes the same result. The temporary file of a lock stays while its process
    lives, which may be waiting for the lock.
    """
    _remove_beside(Path(path), rf"{_TOKEN}(\.old|{re.escape(PARTIAL)})|new|old|abandoned")
    for file in _beside(Path(path), rf"lock\.{_TOKEN}{re.escape(PARTIAL)}"):
        with suppress(OSError):
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if try_flock(descriptor) is not False:
                    file.unlink()
            finally:
                os.close(descriptor)


def _remove_beside(path: Path, suffix: str) -> None:
    for leftover in _beside(path, suffix):
        _remove(leftover)


def _beside(path: Path, suffix: str) -> list[Path]:
    """List `.NAME.SUFFIX` beside a path, for a pattern of suffixes."""
    pattern = re.compile(rf"\.{re.escape(path.name.removeprefix('.'))}\.(?:{suffix})")
    with suppress(OSError):
        return [entry for entry in path.absolute().parent.iterdir() if pattern.fullmatch(entry.name)]
    return []


def remove_temporary_files(folder: Path, pattern: str = "**/*", *, age: float = 0) -> None:
    """Remove temporary files that a killed process has left below a folder, written `age` seconds ago or earlier."""
    before = time.time() - age
    for partial in folder.glob(pattern + PARTIAL):
        with suppress(FileNotFoundError):
            if age == 0 or partial.stat().st_mtime <= before:  # a file server's clock may be ahead of ours
                partial.unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _final(name: str) -> str:
    """Return the name that a temporary file was to get, for messages."""
    folder, base = os.path.split(name)
    match = re.fullmatch(rf"\.(.+)\.{_TOKEN}{re.escape(PARTIAL)}", base)
    return os.path.join(folder, match[1]) if match else name


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------------------------------- lock

PATIENCE = 2.0
"""Seconds in which a lock that names no owner, or is just being taken over, is looked at again."""


class LockedError(StoreError):
    """Another process holds the lock."""


@contextmanager
def exclusive_lock(
    path: Path,
    busy: Callable[[str], str],
    *,
    advice: str = "wait for its end, or stop it",
    take_over: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[bool]:
    """Hold a lock file inside the block; the policy stands at the top of this module.

    Yields whether the file system enforces the lock. It does not where it has no flock, nor where the file cannot be
    made: then the place cannot be written either, and what is written next says why.

    Parameters
    ----------
    busy
        Given the owner ("process 1 on host since ..."), says what it is at work on: the beginning of the `LockedError`.
    advice
        What to do while another process works.
    take_over
        Whether an owner on another host counts as dead if there is no flock of it to be seen here.
    note
        Called with a line of text when a stale lock is taken over.
    """
    temporary, descriptor = temporary_path(path), -1
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    if descriptor < 0:
        yield False
        return
    try:
        try:
            enforced = try_flock(descriptor) is True
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            os.write(descriptor, json.dumps({**this_process(), "since": since}).encode())
            until = time.monotonic() + PATIENCE
            while (state := _try_lock(path, temporary, take_over, until))[0] == "wait":
                limits.check()
                time.sleep(0.01)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        outcome, owner = state
        holder, where = "another process", shown(path, limit=200)
        if owner:
            holder = (
                f"process {shown(owner.get('pid'))} on {shown(owner.get('host'))} since {shown(owner.get('since'))}"
            )
        if outcome == "held":
            raise LockedError(f"{busy(holder)} ({where}); {advice}")
        if outcome == "far":
            raise LockedError(f"{busy(holder)}; if that host or process is dead, remove {where} and run again")
        if outcome == "stale":
            note(f"took over the lock of {holder}, which is gone")
        try:
            yield enforced
        finally:
            with suppress(OSError):
                if _same_file(descriptor, path):  # it may have been removed by hand
                    path.unlink()
    finally:
        os.close(descriptor)


def lock_owner(path: Path) -> dict[str, Any] | None:
    """Return who holds a lock as its file says (pid, host, since), or None if no process is seen to."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        owner = _read_owner(descriptor)
        return owner if owner and process_lives(owner) is not False else None
    finally:
        os.close(descriptor)


def process_is_alive(pid: int) -> bool:
    """Return whether a process of this host exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _try_lock(path: Path, temporary: Path, take_over: bool, until: float) -> tuple[str, dict[str, Any]]:
    """Make the temporary file the lock, if possible.

    Returns
    -------
    "new" or "stale" where it has become the lock (in place of a stale one); "held" or "far" where another process (of
    another host) has it; "wait" where one is just taking or releasing it. And the owner that the file there names.
    """
    try:
        _link(temporary, path)
        return "new", {}
    except FileExistsError:
        pass
    try:
        old = _opened(path)
    except FileNotFoundError:
        return "wait", {}  # it was released just now
    try:
        free = try_flock(old)
        if not _same_file(old, path):
            return "wait", {}
        owner = _read_owner(old)
        alive = process_lives(owner) if owner else False
        if free and _same_boot(owner):
            alive = False  # this machine knows all its flocks, those of other containers too
        unsure = os.fstat(old).st_size == 0 or (free is False and alive is False)
        if unsure and time.monotonic() < until:
            return "wait", owner
        if free is False or (free is None and alive):
            return "held", owner
        if alive is None and not take_over:
            return "far", owner
        os.replace(temporary, path)
        return "stale", owner
    finally:
        os.close(old)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR)  # some network file systems lock only what may be written
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def _link(temporary: Path, path: Path) -> None:
    """Make the temporary file appear at a path where nothing is."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))  # no links here; for a moment it names no owner
        os.replace(temporary, path)


def this_process() -> dict[str, Any]:
    """Return what tells this process from all others: host, boot, container (namespace), number and start."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot_id(), "namespace": _namespace(),
            "started": _started(os.getpid())}  # fmt: skip


def process_lives(process: dict[str, Any]) -> bool | None:
    """Return whether the process of `this_process` lives; None if it is on another host or in another container."""
    boot = process.get("boot")
    if process.get("host") != socket.gethostname() and not _same_boot(process):
        return None
    if boot is not None and boot != boot_id():
        return False  # this machine was started again since
    if process.get("namespace", _namespace()) != _namespace():
        return None
    pid = process.get("pid")
    if not isinstance(pid, int) or not process_is_alive(pid):
        return False
    started = _started(pid)  # another process may have its number by now
    return process.get("started") == started and (started is not None or pid != os.getpid())


def _same_boot(process: dict[str, Any]) -> bool:
    return process.get("boot") is not None and process.get("boot") == boot_id()


@cache
def boot_id() -> str | None:
    """Return what changes when this machine is started again, or on another one; None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _namespace() -> str | None:
    """Return the number of the namespace of processes, another one in each container."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return when a process began, in ticks of this boot; None where the system does not say."""
    try:
        # The second field is the name in brackets, which may hold blanks; the beginning is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[19]
    except (OSError, IndexError):
        return None


def try_flock(descriptor: int) -> bool | None:
    """Take the flock of a file without waiting. False: another process holds it. None: the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _read_owner(descriptor: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
