"""What readers of foreign files have in common: their errors in one line, and claims compared with sizes.

The libraries that decode a source (h5py, Zarr, zipfile, NumPy, Arrow ...) raise errors of many types for a damaged one.
`reader_errors` turns all of them into an `InputError` that names the source; the header of a small file that claims
something large is refused by `check_objects` and `check_unpacked` before memory or disk is taken for it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dasrel.errors import DasrelError, InputError
from dasrel.util import limits
from dasrel.util.files import full_disk
from dasrel.util.text import count_text, path_text, shown, size_text

HOLES = "or a chunk that the source does not have"
"""What a missing value may be besides a NaN, for messages."""
DEFECTS = (AssertionError, NameError, MemoryError)
"""Errors that are not the source's: of dasrel itself, or of the machine."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
MOST_OBJECTS = (1 << 31) - 1
"""Objects are numbered by 32-bit integers."""
OBJECT_BYTES = 128
"""Memory that an object takes in the process that writes a store: its name and its row in tables of objects."""
DEFLATE = 1032
"""Bytes that a byte of a gzip or zip file can unpack to, at most."""
RATIO, UNPACKED = 200, 64 << 20
"""What is larger than `UNPACKED` bytes and more than `RATIO` times its packed size is not unpacked."""


@contextmanager
def reader_errors(source: object, what: str = "") -> Iterator[None]:
    """Raise an `InputError` that names the source for any error of the library that reads it.

    Errors of dasrel and of the disk that is written meanwhile pass. `what` is what the source is read as, such as
    "HDF5".
    """
    try:
        yield
    except (DasrelError, *DEFECTS):
        raise
    except OSError as error:
        named = getattr(error, "filename", None)
        if full_disk(error) or error.errno in DISK or (named and os.fspath(named) != str(source) and error.errno):
            raise
        raise _reading_failed(source, what, error) from error
    except Exception as error:
        raise _reading_failed(source, what, error) from error


def _reading_failed(source: object, what: str, error: Exception) -> InputError:
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        problem = f"cannot read {path_text(source)}: {shown(error.strerror)}"
        return InputError(problem, remedy="check the name and the permissions")
    described = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
    read_as = f" as {what}" if what else ""
    detail = shown(described or type(error).__name__, limit=200)
    problem = f"{path_text(source)} cannot be read{read_as} ({detail})"
    return InputError(problem, remedy="is it damaged? Write or copy it again")


def check_objects(n_objects: int, memory: int | str, source: object) -> None:
    """Raise if a source claims more objects than can be numbered, or than the memory holds names of."""
    if n_objects > MOST_OBJECTS:
        raise InputError(
            f"{path_text(source)} claims {count_text(n_objects, 'object')}; at most {MOST_OBJECTS:,} can be stored",
            remedy="is its header damaged?",
        )
    if n_objects * OBJECT_BYTES > limits.memory_limit(memory):
        raise InputError(
            f"{path_text(source)} claims {count_text(n_objects, 'object')}: their names and tables alone take"
            f" {size_text(n_objects * OBJECT_BYTES)} of memory, and the limit is"
            f" {size_text(limits.memory_limit(memory))}",
            remedy="check its header, or raise {Writing.memory}",
        )


def check_claimed(needed: int, path: Path, claim: str) -> None:
    """Raise if a header claims what a file of this size cannot hold, compressed or not."""
    size = path.stat().st_size
    if needed > max(1 << 20, DEFLATE * size):
        raise InputError(
            f"{path_text(path)} claims {claim}, which its {count_text(size, 'byte')} cannot hold; it is cut short or"
            " its header is damaged",
            remedy="copy it again",
        )


def whole_number(text: bytes) -> int | None:
    """Return a count that a file announces, or None if it is no number that a file can hold.

    >>> whole_number(b" 12"), whole_number(b"9" * 5000), whole_number(b"1.5")
    (12, None, None)
    """
    text = text.strip()
    return int(text) if text.isdigit() and len(text) <= 18 else None


def check_unpacked(unpacked: int, packed: int, source: object) -> None:
    """Raise if a compressed source is much larger than its size lets one expect."""
    if unpacked > max(UNPACKED, RATIO * packed):
        raise InputError(
            f"{path_text(source)} unpacks to {size_text(unpacked)} or more, over {RATIO} times its size"
            f" ({size_text(packed)})",
            remedy="if this is right, unpack it first",
        )
