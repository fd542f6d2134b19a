"""Archives: .npz files without pickle.

Those of models, trees and Euclideanisations hold arrays and `about`, a JSON text with a version. A state (of a
checkpoint) is a nested structure: `about` is JSON with the arrays taken out, `small` holds the short arrays one after
the other, `array0` and so on the long ones, `checksum` is the crc32c of all that. JSON has the numbers as Python's
repr, which is exact; arrays keep their order in memory, on which the last bits of sums depend.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasrel import __version__
from dasrel.errors import StoreError
from dasrel.util import Array, PathLike
from dasrel.util.files import crc32c, replacing
from dasrel.util.reading import open_regular
from dasrel.util.text import count_text, shown


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
        members = _read_members(path)
        about = array_json(members["about"])
        version = about[form.key]
        if version == form.version:
            names = [*form.arrays, *(name for name in form.optional if name in members)]
            return {name: members[name] for name in names}, about
    except FileNotFoundError:
        raise StoreError(f"no {form.name} at {where}{form.source}") from None
    except MemoryError:
        raise
    except Exception as error:  # zipfile, NumPy and json have many
        raise StoreError(f"{where} is not a dasrel {form.name}: {_described(error)}") from None
    raise StoreError(
        f"{where} has {form.name} version {shown(version)}, this dasrel reads version {form.version}: {form.remedy}"
    )


def holds_array(path: PathLike, name: str) -> bool:
    """Return whether a file is an archive with an array of this name, which tells formats apart; nothing is loaded."""
    try:
        with _opened(path) as file, zipfile.ZipFile(file) as archive:
            return f"{name}.npy" in archive.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def json_array(value: Any) -> Array:
    """Return a value as JSON in an array of bytes: text of any length and any characters, without pickle."""
    return np.frombuffer(json.dumps(value).encode("utf-8"), dtype=np.uint8)


def array_json(array: Array) -> Any:
    """Return the value that `json_array` has packed."""
    return json.loads(array.tobytes().decode("utf-8"))


def load_array(path: PathLike) -> Array:
    """Read the numbers of a .npy file. Raise `StoreError` for anything else; `FileNotFoundError` if there is none."""
    try:
        with _opened(path) as file:
            return _read_array(file, os.fstat(file.fileno()).st_size)
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:
        raise StoreError(f"{shown(path, limit=200)} is no whole .npy file: {_described(error)}") from None


def _read_members(path: PathLike) -> dict[str, Array]:
    """Read the arrays of an .npz file. Its checksums are verified, and nothing larger than it says is unpacked."""
    with _opened(path) as file, zipfile.ZipFile(file) as archive:
        members = {}
        for info in archive.infolist():
            if info.file_size > PACKED * info.compress_size + 1024:
                raise ValueError(f"{info.filename} claims {info.file_size:,} bytes")
            with archive.open(info) as member:
                members[info.filename.removesuffix(".npy")] = _read_array(member, info.file_size)
        return members


PACKED = 1032
"""Bytes that a byte of a zip file can hold, at most."""


def _opened(path: PathLike) -> BinaryIO:
    """Open a regular file; a pipe would wait for somebody to write into it."""
    return open(open_regular(path), "rb")


def _read_array(file: Any, size: int) -> Array:
    """Read a .npy file of `size` bytes; a header that claims another size is refused before memory is taken."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"format version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects (pickle), which are never loaded")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"an array of {shape} {dtype} does not have {count_text(size, 'byte')}")
    values = np.empty(math.prod(shape), dtype)
    left = values.view(np.uint8).data if values.size else memoryview(b"")
    while left and (count := file.readinto(left)):
        left = left[count:]
    if left or file.read(1):  # the end of a member is where its checksum is compared
        raise ValueError("it ends too early")
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def _described(error: Exception) -> str:
    """Return an error of a library in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return shown(" ".join(text.split()) or type(error).__name__, limit=200)


def _write_members(path: PathLike, members: Mapping[str, Array], *, sync: bool = False) -> int:
    """Write arrays as an .npz file, atomically. Return its size in bytes."""
    with replacing(path, sync=sync) as temporary, open(temporary, "xb") as file:
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
        members = _read_members(path)
        stored, checksum = int(members.pop("checksum")), _checksum(members)
        if stored != checksum:
            raise ValueError(f"its checksum is {checksum:08x}, {stored:08x} was written")
        content: dict[str, Any] = _decoded(json.loads(members["about"].tobytes()), members)
        return content
    except MemoryError:
        raise
    except Exception as error:
        raise StoreError(f"{shown(path, limit=200)} cannot be read ({_described(error)})") from None


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
