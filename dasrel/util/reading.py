"""Reading files of which nobody knows what is there: a pipe would wait for ever, a device would have no end."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from typing import Any

from dasrel.errors import StoreError
from dasrel.util import PathLike
from dasrel.util.text import shown

LARGEST_JSON = 256 << 20
"""Bytes of a JSON file, at most."""


def open_regular(path: PathLike, flags: int = 0) -> int:
    """Open a file for reading and return its descriptor; raise OSError, without waiting, if it is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return descriptor


def load_json(path: PathLike) -> Any:
    """Return the content of a JSON file. Raise OSError or ValueError, whatever is there: a pipe, too much, no JSON."""
    with open(open_regular(path), "rb") as file:
        raw = file.read(LARGEST_JSON + 1)
    if len(raw) > LARGEST_JSON:
        raise ValueError(f"more than {LARGEST_JSON:,} bytes")
    try:
        return json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_regular(*paths: str | os.PathLike[str]) -> None:
    """Raise `StoreError` if a pipe, a device or a folder is in place of a file: opening it might wait for ever."""
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise StoreError(f"{shown(path, limit=400)} is not a regular file", remedy="restore it from a copy")
