"""Reading a text once, front to back, and putting what it holds aside on disk: what the text readers share."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import google_crc32c
import numpy as np

from dasrel import compiled, stopping
from dasrel.compiled import LONG, POINTER
from dasrel.errors import InputError, shown
from dasrel.intake import Array
from dasrel.source import Reading

CHUNK = 1 << 20
BOM = b"\xef\xbb\xbf"
LONGEST_LINE = 256 << 20
MISSING = ("", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none")
"""Fields that mean: there is no value here."""
THREADS = min(4, os.cpu_count() or 1)
MARKER = "finished.json"

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Summed:
    """A file's bytes, front to back, with their checksum so far."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.sum = 0

    def read(self, size: int = CHUNK) -> bytes:
        block = self._file.read(size) or b""
        self.sum = google_crc32c.extend(self.sum, block)
        return block

    def readinto(self, room: Array) -> int:
        count = self._file.readinto(room.data) or 0
        block = room[:count]
        block.flags.writeable = False  # the checksum takes read-only bytes only
        self.sum = google_crc32c.extend(self.sum, block)
        return count

    def close(self) -> None:
        self._file.close()


class Spare:
    """Memory to be used again: what is freed in large blocks goes back to the system, and fresh memory costs more than
    the reading of a text into it."""

    def __init__(self) -> None:
        self._blocks: list[Array] = []

    def take(self, size: int) -> Array:
        """At least so many bytes."""
        try:
            block = self._blocks.pop()
        except IndexError:
            block = np.empty(0, np.uint8)
        return block if block.size >= size else np.empty(size + size // 4, np.uint8)

    def give(self, block: Array) -> None:
        """Memory that nobody looks at any more."""
        self._blocks.append(block)


class Stream:
    """The text of a file, unpacked if it is gzip or the member of a zip; every error becomes an `InputError`."""

    def __init__(self, path: Path, *, member: str | None = None) -> None:
        self.path = path
        self._summed: _Summed | None = None
        self._zip: zipfile.ZipFile | None = None
        self._text: Any
        with self._told():
            if member is not None:
                self._zip = zipfile.ZipFile(path)
                self._text = self._zip.open(member)
                return
            with path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
            self._summed = _Summed(path)
            self._text = gzip.GzipFile(fileobj=cast(Any, self._summed), mode="rb") if packed else self._summed

    def _told(self) -> _Told:
        return _Told(self.path)

    def read(self, size: int) -> bytes:
        """At most this many bytes; none at the end."""
        stopping.check()
        with self._told():
            return bytes(self._text.read(size))

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[int, bytes]]:
        """Whole lines, about `size` bytes at a time, each time with the number of the first line (from 1).

        Lines end in a plain newline, the last one too, and a byte order mark is left out.
        """
        number, pieces, length = 1, [b""], 0
        while block := self.read(size):
            cut = block.rfind(b"\n") + 1
            if not cut:
                pieces.append(block)
                length += len(block)
                self._check_length(length, number)
                continue
            text = b"".join([*pieces, memoryview(block)[:cut]])
            pieces, length = [block[cut:]], len(block) - cut
            count = line_count(text)
            yield number, plain(text, number)
            number += count
        if rest := b"".join(pieces):
            yield number, plain(rest + b"\n", number)

    def blocks(self, size: int, spare: Spare) -> Iterator[tuple[int, Array, int]]:
        """The same as arrays of bytes, with the number of lines in each; the lines end as they do in the file.

        Memory comes from `spare`. Whoever is done with an array gives its `base` back.
        """
        number, rest, more = 1, np.empty(0, np.uint8), True
        while more:
            room = spare.take(max(size, 2 * rest.size, 16))
            filled, cut = rest.size, 0
            room[:filled] = rest
            while more and not cut:
                stopping.check()
                with self._told():
                    count = self._text.readinto(room[filled:-1])  # one place is kept for a newline at the very end
                filled, more = filled + count, count > 0
                if filled + 1 == room.size:
                    cut = _after_last_line(room[:filled])
                    if not cut:
                        self._check_length(filled, number)
                        room = np.concatenate([room, np.empty_like(room)])
            if not more:
                if filled and room[filled - 1] != ord("\n"):
                    room[filled] = ord("\n")
                    filled += 1
                cut = filled
            rest = room[cut:filled].copy()
            text = room[3:cut] if number == 1 and room[:3].tobytes() == BOM else room[:cut]
            if text.size:
                count = line_count(text)
                yield number, text, count
                number += count

    def _check_length(self, length: int, number: int) -> None:
        if length > LONGEST_LINE:
            raise InputError(
                f"{place(self.path)}: line {number} is longer than {LONGEST_LINE >> 20} MiB: this is not a"
                " matrix in text; name its --format"
            )

    def checksum(self) -> str | None:
        """Of the file's bytes, packed as they are. None for a member of a zip, which is not read in order."""
        if self._summed is None:
            return None
        while self._summed.read():  # what may follow the end of a gzip
            pass
        return f"crc32c: {self._summed.sum:08x}"

    def close(self) -> None:
        """Let go of the file."""
        self._text.close()
        if self._summed is not None:
            self._summed.close()
        if self._zip is not None:
            self._zip.close()


class _Told:
    """Turns what the unpacking libraries raise into one line that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        name = place(self.path)
        if isinstance(error, EOFError):
            raise InputError(f"{name}: the compressed file ends too early; copy or download it again") from error
        if isinstance(error, (gzip.BadGzipFile, zlib.error, zipfile.BadZipFile)):
            raise InputError(f"{name}: damaged compressed file ({error}); copy or download it again") from error
        if isinstance(error, (NotImplementedError, RuntimeError)):
            raise InputError(f"{name}: cannot be unpacked ({error}); unpack it first") from error
        if isinstance(error, OSError):
            raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error


def _after_last_line(text: Array) -> int:
    """Where the last newline ends; 0 if there is none."""
    step = 1 << 12
    while (cut := text[-step:].tobytes().rfind(b"\n") + 1) == 0 and step < text.size:
        step *= 16
    return cut and max(0, text.size - step) + cut


def plain(text: bytes, number: int = 0) -> bytes:
    """The lines of a text with plain newlines; of those that begin with line 1, without a byte order mark."""
    if number == 1 and text.startswith(BOM):
        text = text[3:]
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text


@cache
def library() -> Any | None:
    """The compiled reader of pairs (`pair_list.c`), or None where it was not built or cannot run."""
    found = compiled.library()
    if found is None or not compiled.typed(found, "dasrel_prepare_pair_list", ctypes.c_int)():
        return None
    text, some = (POINTER, LONG), (POINTER,) * 3
    compiled.typed(found, "dasrel_count_lines", LONG, *text)
    compiled.typed(found, "dasrel_read_pairs", ctypes.c_int, *text, POINTER, POINTER, LONG, *some, *some[:2])
    compiled.typed(found, "dasrel_count_pairs_by_block", None, POINTER, *some)
    compiled.typed(found, "dasrel_sort_pairs_by_block", None, *some)
    return found


def line_count(text: bytes | Array) -> int:
    """How many newlines there are."""
    found = library()
    if found is None:
        return bytes(text).count(b"\n")
    return int(found.dasrel_count_lines(text if isinstance(text, bytes) else text.ctypes.data, len(text)))


def in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int = THREADS) -> Iterator[Result]:
    """The results of `function`, in the order of the items, a few at work at a time."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                stopping.check()
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def place(path: Path) -> str:
    """A path as messages name it: whole, for its end says most."""
    return shown(path, limit=4096)


def decoded(raw: bytes, path: Path, number: int) -> str:
    """An id as text, without blanks around it."""
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        told = raw.decode("utf-8", "backslashreplace")
        raise InputError(
            f"{place(path)}: line {number}: {shown(told)} is not UTF-8 text; convert the file, for instance with iconv"
        ) from None


def is_number(field: bytes) -> bool:
    """Whether a field holds a number, or says that there is none.

    >>> is_number(b" 1e-3"), is_number(b"NA"), is_number(b"1_000"), is_number(b"a")
    (True, True, False, False)
    """
    field = field.strip()
    if b"_" in field:
        return False
    try:
        float(field)
    except ValueError:
        return field.decode("latin-1") in MISSING
    return True


def as_number(field: bytes) -> float:
    """The value of a field that `is_number`."""
    field = field.strip()
    return float("nan") if field.decode("latin-1") in MISSING else float(field)


def given_ids(reading: Reading) -> list[str] | None:
    """The names that the user gave, as a list or as a file with one name per line."""
    if reading.ids is None:
        return None
    if not isinstance(reading.ids, str):
        return [str(name) for name in reading.ids]
    path = Path(reading.ids)
    stream = Stream(path)
    try:
        names = [
            decoded(line, path, first + k)
            for first, text in stream.chunks()
            for k, line in enumerate(text[:-1].split(b"\n"))
        ]
    finally:
        stream.close()
    while names and not names[-1]:
        names.pop()
    return names


def provenance(path: Path) -> dict[str, Any]:
    """What a source is known by."""
    try:
        facts = path.stat()
    except OSError as error:
        raise InputError(f"{place(path)}: cannot be read: {error.strerror}") from error
    return {"source": str(path), "size": facts.st_size, "modified": facts.st_mtime_ns}


def spool_key(path: Path, reading: Reading, *more: str) -> dict[str, Any]:
    """What must be the same for a finished spool to be used again."""
    names = given_ids(reading)
    ids = None if names is None else f"{google_crc32c.value(json.dumps(names).encode()):08x}"
    columns = None if reading.columns is None else list(reading.columns)
    return {**provenance(path), "format": reading.format, "ids": ids, "columns": columns, "more": list(more)}


def finished(scratch: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """What a spool in this folder is known to hold, if it is complete and of the same source; else None."""
    try:
        marker = json.loads((scratch / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker["facts"] if isinstance(marker, dict) and marker.get("key") == key else None


def mark_finished(scratch: Path, key: dict[str, Any], facts: dict[str, Any]) -> None:
    """Say that the spool in this folder is complete."""
    aside = scratch / f"{MARKER}.part"
    aside.write_text(json.dumps({"key": key, "facts": facts}), encoding="utf-8")
    aside.replace(scratch / MARKER)


def unmark(scratch: Path) -> None:
    """Make the folder, and forget what it held: it is about to be written anew."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / MARKER).unlink(missing_ok=True)
