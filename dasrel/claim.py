"""While a store is being written: nobody else writes it, and what the disk says is told in one line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from dasrel.errors import StoreError, full_disk, shown
from dasrel.store import StoreLike, lasting, local_path, storing
from dasrel.writer import Writing

NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def claimed(store: StoreLike, writing: Writing) -> Iterator[None]:
    """Inside, no other process begins, resumes or replaces a local store there; parts, which share it, may come in.

    An object store has no lock: whoever writes one sees to it that nobody else does.
    """
    local = local_path(store)
    if local is None:
        with storing(store):
            yield
        return
    place = Path(lasting(local))
    with _told(place, writing), contextlib.nullcontext() if writing.part else _alone(place):
        yield


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Lock a file beside the store. The lock goes with the process, however it ends; the file serves the next one."""
    path = place.with_name(f".{place.name}.lock")
    descriptor = _locked(path)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # still locked, so it is ours
            os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A descriptor of the file with the lock on it; None where it cannot be made or locked."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return None  # what follows says what is wrong with the place
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise StoreError(
                f"{shown(path.with_name(path.name[1:-5]), limit=400)} is being written by another process; wait for its"
                " end, or choose another place"
            ) from None
        except FileNotFoundError:
            pass  # whoever had it has just removed it
        except OSError:
            os.close(descriptor)
            return None  # a file system without locks
        os.close(descriptor)


@contextlib.contextmanager
def _told(place: Path, writing: Writing) -> Iterator[None]:
    where = shown(place, limit=400)
    try:
        yield
    except Exception as error:
        if full_disk(error):
            if writing.force and place.exists() and not writing.resume:
                raise StoreError(
                    f"the disk is full: the old {where} is as it was; free some space and run again"
                ) from error
            raise StoreError(
                f"the disk is full: {where} is unfinished and nothing was lost; free some space and run again with"
                " --resume"
            ) from error
        if isinstance(error, OSError) and error.errno in NOT_ALLOWED and _is_near(error.filename, place):
            raise StoreError(
                f"{where} cannot be written ({error.strerror}); choose another place, or one that is not read-only"
            ) from error
        raise


def _is_near(name: object, place: Path) -> bool:
    """Whether a file that an error names is one of the store's, or lies beside it; not one of the source's."""
    if not isinstance(name, str | bytes | os.PathLike):
        return False
    path = Path(os.path.abspath(os.fsdecode(name)))
    return path.is_relative_to(place) or path.name.startswith(f".{place.name}.") or path == place.parent
