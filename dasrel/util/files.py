"""Files that are complete or absent: atomic replacement, one lock, checksums, disk errors, archives without pickle.

*Temporary files* all have one name, `.NAME.TOKEN.partial` beside the file `NAME` that they become; the token is random,
because another machine may write the same file at the same time. What a killed process leaves behind is found by that
suffix (`remove_temporary_files`).

*The lock* is a file that names its owner (process, host, since when), and the owner holds an flock on it, which the
system releases when the process ends, however it ends. The policy, the same for stores, appends, checkpoints and
workflows: who finds the flock held is refused. Who finds it free, or a file system without flock, asks the owner that
the file names: a process of this host counts while it lives (only where there is no flock: a free one is proof enough),
a process of another host counts unless the caller says `take_over`, because a file system may keep flocks to one host.
The file appears with its content, by a link, and a stale one is replaced by a rename while its flock is held: of two
processes that come at once one wins.

*Archives* are .npz files without pickle. Those of models, trees and Euclideanisations hold arrays and `about`, a JSON
text with a version. A state (of a checkpoint) is a nested structure: `about` is JSON with the arrays taken out, `small`
holds the short arrays one after the other, `array0` and so on the long ones, `checksum` is the crc32c of all that. JSON
has the numbers as Python's repr, which is exact; arrays keep their order in memory, on which the last bits of sums
depend.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from dasrel import __version__
from dasrel.errors import StoreError
from dasrel.util import Array, PathLike, limits
from dasrel.util.text import shown

# ----------------------------------------------------------------------------------------------------------- checksums


def crc32c(data: bytes | memoryview | Array, start: int = 0) -> int:
    """Return the crc32c of bytes or of a C-contiguous array's bytes, continuing from `start`.

    >>> f"{crc32c(b'123456789'):08x}", crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    ('e3069283', True)
    """
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8)
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
    if not replaced:
        return
    pattern = re.compile(rf"\.{re.escape(path.name.removeprefix('.'))}\.{_TOKEN}\.old")
    for old in [one for one in path.parent.iterdir() if pattern.fullmatch(one.name)]:
        _remove(old)  # of this process, or of one that was killed here


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
    found = re.fullmatch(rf"\.(.+)\.{_TOKEN}{re.escape(PARTIAL)}", base)
    return os.path.join(folder, found[1]) if found else name


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------ archives


@dataclass(frozen=True)
class ArchiveFormat:
    """A kind of .npz file: its name in messages, its version, and the arrays that it holds."""

    name: str
    key: str
    """The key of the version in `about`."""
    version: int
    arrays: tuple[str, ...]
    optional: tuple[str, ...] = ()
    source: str = ""
    """How one is made, the end of the message where there is none."""
    remedy: str = "use the dasrel that wrote it"
    """What to do with another version."""


def save_archive(path: PathLike, form: ArchiveFormat, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> None:
    """Write arrays, and `about` as JSON with the version of the format and of dasrel, atomically."""
    text = {form.key: form.version, "dasrel": __version__, **about}
    _write_members(path, {**arrays, "about": json_array(text)})


def load_archive(path: PathLike, form: ArchiveFormat) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read the arrays and `about` of an archive. Nothing is unpickled; a file that is not complete is refused."""
    where = shown(path, limit=200)
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = array_json(file["about"])
            version = about[form.key]
            if version == form.version:
                names = [*form.arrays, *(name for name in form.optional if name in file.files)]
                return {name: file[name] for name in names}, about
    except FileNotFoundError:
        raise StoreError(f"no {form.name} at {where}{form.source}") from None
    except BROKEN as error:
        raise StoreError(f"{where} is not a dasrel {form.name}: {shown(error, limit=200)}") from None
    raise StoreError(
        f"{where} has {form.name} version {shown(version)}, this dasrel reads version {form.version}: {form.remedy}"
    )


def json_array(value: Any) -> Array:
    """Return a value as JSON in an array of bytes: text of any length and any characters, without pickle."""
    return np.frombuffer(json.dumps(value).encode("utf-8"), dtype=np.uint8)


def array_json(array: Array) -> Any:
    """Return the value that `json_array` has packed."""
    return json.loads(array.tobytes().decode("utf-8"))


BROKEN = (OSError, ValueError, KeyError, AttributeError, TypeError, IndexError, EOFError, zipfile.BadZipFile)
"""What NumPy, zipfile and json raise for files that are not what they should be."""


def _write_members(path: PathLike, members: Mapping[str, Array], *, sync: bool = False) -> int:
    """Write arrays as an .npz file, atomically. Return its size in bytes."""
    with replacing(path, sync=sync) as temporary, open(temporary, "wb") as file:
        np.savez(file, **dict(members), allow_pickle=False)
        return file.tell()


SMALL = 1 << 16  # arrays below this many bytes share one member of the file: thousands of members would be slow


def write_state(path: Path, content: dict[str, Any]) -> int:
    """Write nested dicts and lists of numbers, text and arrays, atomically and synced. Return the bytes written.

    Tuples come back as lists, everything else as it was, to the last bit.
    """
    pack = _Pack()
    about = json.dumps(pack.encoded(content), allow_nan=False).encode("utf-8")
    members: dict[str, Array] = {"about": np.frombuffer(about, np.uint8)}
    members["small"] = np.frombuffer(b"".join(pack.small), np.uint8)
    members |= {f"array{k}": array for k, array in enumerate(pack.large)}
    return _write_members(path, {**members, "checksum": np.array(_checksum(members))}, sync=True)


def read_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote. Nothing is unpickled; a file that is not complete is refused."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            members = {name: file[name] for name in file.files}
        stored, found = int(members.pop("checksum")), _checksum(members)
        if stored != found:
            raise ValueError(f"its checksum is {found:08x}, {stored:08x} was written")
        content: dict[str, Any] = _decoded(json.loads(members["about"].tobytes()), members)
        return content
    except BROKEN as error:
        raise StoreError(f"{shown(path, limit=200)} cannot be read ({shown(error, limit=200)})") from None


class _Pack:
    """Takes the arrays out of nested values, and leaves references there."""

    def __init__(self) -> None:
        self.small: list[bytes] = []
        self.large: list[Array] = []
        self._at = 0

    def encoded(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._reference(value)
        if isinstance(value, dict):
            return {str(key): self.encoded(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.encoded(item) for item in value]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": str(value)}
        return value

    def _reference(self, array: Array) -> dict[str, Any]:
        if array.dtype.kind not in "fiub":
            raise TypeError(f"arrays of {array.dtype} are not kept")
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            array = np.ascontiguousarray(array)
        if array.nbytes >= SMALL:
            self.large.append(array)
            return {"$large": len(self.large) - 1}
        at, self._at = self._at, self._at + array.nbytes
        self.small.append(_in_memory_order(array).tobytes())
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


def _in_memory_order(array: Array) -> Array:
    return array if array.flags.c_contiguous else array.T


def _checksum(members: dict[str, Array]) -> int:
    total = 0
    for name in sorted(members):
        array = members[name]
        head = f"{name} {array.dtype.str} {array.shape} {array.flags.c_contiguous}".encode("ascii")
        total = crc32c(_in_memory_order(array), crc32c(head, total))
    return total


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
            enforced = _flock(descriptor) is True
            os.write(descriptor, json.dumps(_me()).encode())
            until = time.monotonic() + PATIENCE
            while (state := _try_lock(path, temporary, take_over, until))[0] == "wait":
                limits.check()
                time.sleep(0.01)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        found, owner = state
        holder, where = "another process", shown(path, limit=200)
        if owner:
            holder = (
                f"process {shown(owner.get('pid'))} on {shown(owner.get('host'))} since {shown(owner.get('since'))}"
            )
        if found == "held":
            raise LockedError(f"{busy(holder)} ({where}); {advice}")
        if found == "far":
            raise LockedError(f"{busy(holder)}; if that host or process is dead, remove {where} and run again")
        if found == "stale":
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
        return owner if owner and (_is_far(owner) or _is_alive(owner)) else None
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
        free = _flock(old)
        if not _same_file(old, path):
            return "wait", {}
        owner = _read_owner(old)
        far, alive = _is_far(owner), _is_alive(owner)
        unsure = os.fstat(old).st_size == 0 or (free is False and not far and not alive)
        if unsure and time.monotonic() < until:
            return "wait", owner
        if free is False or (free is None and alive):
            return "held", owner
        if far and not take_over:
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


def _me() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid()), "since": since}


def _is_far(owner: dict[str, Any]) -> bool:
    return bool(owner) and owner.get("host") != socket.gethostname()


def _is_alive(owner: dict[str, Any]) -> bool:
    """Return whether the process is on this host and still there, and not another with its number."""
    pid = owner.get("pid")
    if _is_far(owner) or not isinstance(pid, int) or not process_is_alive(pid):
        return False
    started = _started(pid)
    return owner.get("started") == started and (started is not None or pid != os.getpid())


def _started(pid: int) -> str | None:
    """Return when a process began, in ticks of this boot; None where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # The second field is the name in brackets, which may hold blanks; the beginning is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return f"{boot} {fields[19]}"
    except (OSError, IndexError):
        return None


def _flock(descriptor: int) -> bool | None:
    """Take the flock of a file. False: another process holds it. None: the file system has none."""
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
