"""Large temporary files in a folder that many jobs may share, of several machines and containers.

A name is made of the machine's start (host, boot, container) and a random part; process numbers are not in it, because
two containers have the same ones. The file is made exclusively, never through a link, readable by its owner only, and
locked while a process uses it. One that a later process resumes with is named in a *record*, a small file of the job's
own: so it is found again, and removed when it is of no use.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from dasrel.errors import StoreError
from dasrel.util.files import digest, replacing, this_process, try_flock
from dasrel.util.text import shown

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_NAME = re.compile(r"dasrel-[a-z]+-[0-9a-f]{16}-[0-9a-f]{16}\.[a-z]+")


def create_scratch(folder: Path, stem: str, suffix: str, record: Path | None = None) -> tuple[Path, int]:
    """Create a file `dasrel-STEM-...` and return its path and its descriptor.

    What a `record` names from before is removed; then it names the new file.
    """
    process = this_process()
    start = digest(str(process.get(key)).encode() for key in ("host", "boot", "namespace"))
    path = folder.absolute() / f"dasrel-{stem}-{start}-{secrets.token_hex(8)}{suffix}"
    assert _NAME.fullmatch(path.name)
    if record is not None:
        remove_recorded(record)
        with replacing(record) as temporary, open(temporary, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(str(path))
    descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try_flock(descriptor)  # nobody else knows the name; where the file system has no flock, the job's own lock counts
    return path, descriptor


def reopen_scratch(record: Path, name: str, folder: Path) -> tuple[Path, int] | None:
    """Open the file of this name, where its record says or in a folder; None if it is not there.

    Another file in its place (a link, a pipe, one that has a second name) counts as none.
    """
    recorded = _recorded(record)
    if recorded is None or recorded.name != name:
        return None  # its record names a newer one
    for path in (recorded, folder / name):
        descriptor = _opened(path)
        if descriptor is None:
            continue
        if try_flock(descriptor) is False:
            os.close(descriptor)
            raise StoreError(f"{shown(path, limit=200)} is in use by another process", remedy="wait for its end")
        return path, descriptor
    return None


def remove_recorded(record: Path) -> None:
    """Remove the file that a record names, unless a process uses it, and then the record."""
    path = _recorded(record)
    descriptor = None if path is None else _opened(path)
    if path is not None and descriptor is not None:
        try:
            if try_flock(descriptor) is not False:
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    with suppress(OSError):
        record.unlink(missing_ok=True)


def _recorded(record: Path) -> Path | None:
    """Return the path in a record; None if there is none that `create_scratch` has made."""
    try:
        with open(record, encoding="utf-8", errors="surrogateescape") as file:
            path = Path(file.read(5000))
    except OSError:
        return None
    return path if path.is_absolute() and _NAME.fullmatch(path.name) else None


def _opened(path: Path) -> int | None:
    """Open a file that `create_scratch` has made; None for anything else."""
    try:
        descriptor = os.open(path, _FLAGS | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    return None
