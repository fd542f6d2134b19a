"""The file of a checkpoint: nested numbers, words and arrays as an .npz without pickle.

`about` is JSON, with the arrays left out; `small` holds the short arrays one after the other, `array0` and so on the
long ones; `checksum` is the crc32c of all that. JSON has the numbers as Python's repr, which is exact; arrays keep
their order in memory, on which the last bits of sums depend.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from dasrel.errors import StoreError, shown

Array = NDArray[Any]

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
