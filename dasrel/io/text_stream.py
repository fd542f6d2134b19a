"""Stream text files, plain or compressed, once from front to back; detect format, delimiter and header.

What a text reader spools to disk is marked when it is complete, so that a resumed import need not read the text again.
"""

from __future__ import annotations

import csv
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
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from dasrel import kernels
from dasrel.errors import InputError
from dasrel.io.array_files import provenance_of
from dasrel.io.reader_errors import check_unpacked
from dasrel.kernels import LONG, POINTER
from dasrel.options import Reading
from dasrel.util import Array, limits
from dasrel.util.files import crc32c, replacing
from dasrel.util.text import path_text, shown

CHUNK = 1 << 20
BOM = b"\xef\xbb\xbf"
LONGEST_LINE = 256 << 20
MISSING = ("", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none")
"""Fields that mark a missing value."""
THREADS = min(4, os.cpu_count() or 1)
MARKER = "finished.json"
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Summed:
    """A file's bytes, read in order, with their checksum so far."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.sum = self.count = 0

    def read(self, size: int = CHUNK) -> bytes:
        block = self._file.read(size) or b""
        self.sum = crc32c(block, self.sum)
        self.count += len(block)
        return block

    def readinto(self, room: Array) -> int:
        count = self._file.readinto(room.data) or 0
        self.sum = crc32c(room[:count], self.sum)
        self.count += count
        return count

    def close(self) -> None:
        self._file.close()


class BufferPool:
    """Buffers for reuse: large blocks go back to the system when freed, and fresh memory costs more than reading a text
    into it."""

    def __init__(self) -> None:
        self._blocks: list[Array] = []

    def take(self, size: int) -> Array:
        """Return a buffer of at least so many bytes."""
        try:
            block = self._blocks.pop()
        except IndexError:
            block = np.empty(0, np.uint8)
        return block if block.size >= size else np.empty(size + size // 4, np.uint8)

    def give(self, block: Array) -> None:
        """Give back a buffer that is no longer needed."""
        self._blocks.append(block)


class Stream:
    """The text of a file, decompressed if it is gzip or the member of a zip; every error becomes an `InputError`."""

    def __init__(self, path: Path, *, member: str | None = None) -> None:
        self.path = path
        self._closed = False
        self._summed: _Summed | None = None
        self._zip: zipfile.ZipFile | None = None
        self._text: Any
        self._size = 0
        """Bytes that were returned so far."""
        with self._errors():
            if member is not None:
                self._zip = zipfile.ZipFile(path)
                info = self._zip.getinfo(member)
                check_unpacked(info.file_size, info.compress_size, path)
                self._text = self._zip.open(info)
                return
            with path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
            self._summed = _Summed(path)
            self._text = gzip.GzipFile(fileobj=cast(Any, self._summed), mode="rb") if packed else self._summed

    def _errors(self) -> _ReadErrors:
        return _ReadErrors(self.path)

    def read(self, size: int) -> bytes:
        """Return at most this many bytes; none at the end."""
        limits.check()
        with self._errors():
            return bytes(self._counted(self._text.read(size)))

    def _counted(self, found: Any) -> Any:
        """Count what was read; raise if a small compressed file has become too large."""
        self._size += len(found) if isinstance(found, bytes) else found
        if self._summed is not None and self._summed is not self._text:
            check_unpacked(self._size, self._summed.count, self.path)
        return found

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[int, bytes]]:
        """Yield complete lines, about `size` bytes at a time, with the number of the first line (from 1).

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

    def blocks(self, size: int, spare: BufferPool) -> Iterator[tuple[int, Array, int]]:
        """Yield the same as arrays of bytes, with the number of lines in each; the lines end as they do in the file.

        Memory comes from the pool `spare`. The caller gives the `base` of an array back when it is done with it.
        """
        number, rest, more = 1, np.empty(0, np.uint8), True
        while more:
            room = spare.take(max(size, 2 * rest.size, 16))
            filled, cut = rest.size, 0
            room[:filled] = rest
            while more and not cut:
                limits.check()
                with self._errors():
                    # One place is kept for a newline at the very end.
                    count = self._counted(self._text.readinto(room[filled:-1]))
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
                f"{path_text(self.path)}: line {number} is longer than {LONGEST_LINE >> 20} MiB: this is not a"
                " matrix in text",
                remedy="name its format: {Reading.format=NAME}",
            )

    def checksum(self) -> str | None:
        """Return the checksum of the file's bytes as stored; None for a member of a zip, which is not read in order."""
        if self._summed is None:
            return None
        while self._summed.read():  # what may follow the end of a gzip
            pass
        return f"crc32c: {self._summed.sum:08x}"

    @property
    def closed(self) -> bool:
        """Whether `close` was called; Arrow asks."""
        return self._closed

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        self._text.close()
        if self._summed is not None:
            self._summed.close()
        if self._zip is not None:
            self._zip.close()


class _ReadErrors:
    """Turns errors of the decompression libraries into one line that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        name = path_text(self.path)
        if isinstance(error, EOFError):
            raise InputError(f"{name}: the compressed file ends too early; copy or download it again") from error
        if isinstance(error, (gzip.BadGzipFile, zlib.error, zipfile.BadZipFile)):
            raise InputError(f"{name}: damaged compressed file ({error}); copy or download it again") from error
        if isinstance(error, (NotImplementedError, RuntimeError)):
            raise InputError(f"{name}: cannot be unpacked ({error}); unpack it first") from error
        if isinstance(error, OSError):
            raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error


def _after_last_line(text: Array) -> int:
    """Return the position after the last newline; 0 if there is none."""
    step = 1 << 12
    while (cut := text[-step:].tobytes().rfind(b"\n") + 1) == 0 and step < text.size:
        step *= 16
    return cut and max(0, text.size - step) + cut


def plain(text: bytes, number: int = 0) -> bytes:
    """Return the lines of a text with plain newlines; from line 1 on, without a byte order mark."""
    if number == 1 and text.startswith(BOM):
        text = text[3:]
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text


@cache
def library() -> Any | None:
    """Return the compiled reader of pairs (`pair_list.c`), or None where it was not built or cannot run."""
    found = kernels.library()
    if found is None or not kernels.typed(found, "dasrel_prepare_pair_list", ctypes.c_int)():
        return None
    text, some = (POINTER, LONG), (POINTER,) * 3
    kernels.typed(found, "dasrel_count_lines", LONG, *text)
    kernels.typed(found, "dasrel_read_pairs", ctypes.c_int, *text, POINTER, POINTER, LONG, *some, *some[:2])
    kernels.typed(found, "dasrel_count_pairs_by_block", None, POINTER, *some)
    kernels.typed(found, "dasrel_sort_pairs_by_block", None, *some)
    return found


def line_count(text: bytes | Array) -> int:
    """Return the number of newlines."""
    found = library()
    if found is None:
        return bytes(text).count(b"\n")
    return int(found.dasrel_count_lines(text if isinstance(text, bytes) else text.ctypes.data, len(text)))


def in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int = THREADS) -> Iterator[Result]:
    """Yield the results of `function` in the order of the items, a few being computed at a time."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                limits.check()
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def decoded(raw: bytes, path: Path, number: int) -> str:
    """Return an id as text, without blanks around it."""
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        detail = raw.decode("utf-8", "backslashreplace")
        raise InputError(
            f"{path_text(path)}: line {number}: {shown(detail)} is not UTF-8 text; convert the file, for instance with"
            " iconv"
        ) from None


def is_number(field: bytes) -> bool:
    """Return whether a field holds a number, or marks a missing value.

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
    """Return the value of a field that `is_number`."""
    field = field.strip()
    return float("nan") if field.decode("latin-1") in MISSING else float(field)


def given_ids(reading: Reading) -> list[str] | None:
    """Return the names that the user gave, as a list or as a file with one name per line."""
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


def spool_key(path: Path, reading: Reading, *more: str) -> dict[str, Any]:
    """Return what must be equal for a finished spool to be reused."""
    names = given_ids(reading)
    ids = None if names is None else f"{crc32c(json.dumps(names).encode()):08x}"
    columns = None if reading.columns is None else list(reading.columns)
    return {**provenance_of(path), "format": reading.format, "ids": ids, "columns": columns, "more": list(more)}


def finished(scratch: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """Return the facts about the spool in this folder, if it is complete and of the same source; else None."""
    try:
        marker = json.loads((scratch / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker["facts"] if isinstance(marker, dict) and marker.get("key") == key else None


def mark_finished(scratch: Path, key: dict[str, Any], facts: dict[str, Any]) -> None:
    """Mark the spool in this folder as complete."""
    with replacing(scratch / MARKER) as temporary:
        temporary.write_text(json.dumps({"key": key, "facts": facts}), encoding="utf-8")


def unmark(scratch: Path) -> None:
    """Make the folder, and invalidate the spool in it: it is about to be written anew."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / MARKER).unlink(missing_ok=True)


DELIMITERS = (b"\t", b",", b";")
FEW = 64
"""A table of more columns than this is a square; of fewer, the number of its rows decides."""


def sniff(path: str | Path) -> str | None:
    """Return the format of a text, gzipped or not: "lsmat", "phylip" or "pairs", or None if it is none of them.

    Cost: a few lines are read; of a table of few columns as many lines as it has columns.
    """
    stream = Stream(Path(path))
    try:
        rows = lines(stream, comments=True)
        first = next(rows, None)
        if first is None or _is_binary(first.bytes()):
            return None
        rest = [line.bytes() for line in islice(rows, 1)]
        if rest and len(rest[0]) < 64 * FEW:  # a table of many columns is known by two lines
            rest.extend(line.bytes() for line in islice(rows, FEW))
        return _judge(first.bytes(), rest)
    except InputError:  # decompression failed: the reader of the format will report it
        return None
    finally:
        stream.close()


class Line(NamedTuple):
    """A line of a text: its number from 1, and its position in a chunk of the text, so that it need not be copied."""

    number: int
    text: bytes
    start: int
    end: int

    def bytes(self) -> bytes:
        """Return a copy of the line."""
        return self.text[self.start : self.end]


def lines(stream: Stream, *, comments: bool, size: int = 1 << 16) -> Iterator[Line]:
    """Yield the lines of a text that are not empty; with `comments`, leading lines of `#` are skipped too."""
    for first, text in stream.chunks(size):
        start, number = 0, first
        while start < len(text):
            end = text.find(b"\n", start)
            blank = end - start < FEW and not text[start:end].strip(b" ")
            if not blank and not (comments and text.startswith(b"#", start)):
                comments = False
                yield Line(number, text, start, end)
            start, number = end + 1, number + 1


def fields(line: bytes, delimiter: bytes | None) -> list[bytes]:
    """Return the fields of a line without quotes. No delimiter means any number of blanks."""
    if b'"' not in line:
        return line.split(delimiter)
    text = line.decode("utf-8", "surrogateescape")
    mark = " " if delimiter is None else delimiter.decode("ascii")
    try:
        found = next(csv.reader([text], delimiter=mark, skipinitialspace=delimiter is None), [])
    except csv.Error:
        return line.split(delimiter)
    return [field.encode("utf-8", "surrogateescape") for field in found]


def find_delimiter(
    first: bytes, second: bytes | None, among: tuple[bytes, ...] = DELIMITERS, *, blanks: bool = True
) -> bytes | None:
    """Return the first delimiter that both lines have; None for blanks.

    >>> find_delimiter(b",a;b", b"a;b,0"), find_delimiter(b"a b", b"0 1")
    (b',', None)
    """
    for mark in among:
        if mark in first and (second is None or mark in second):
            return mark
    for mark in among:  # the first line of a list may be a word or two
        if second is not None and mark in second:
            return mark
    return None if blanks and b" " in first.strip() else among[0]


def square_layout(first: list[bytes], second: list[bytes] | None) -> tuple[list[bytes] | None, bool]:
    """Return the names in the header if the first line is one, and whether each row begins with a name.

    >>> square_layout([b"", b"a", b"b"], [b"a", b"0", b"1"])
    ([b'a', b'b'], True)
    >>> square_layout([b"0", b"1"], [b"1", b"0"])
    (None, False)
    """
    first = [field.strip() for field in first]
    strange = sum(not is_number(field) for field in first[1:])
    if second is None:
        if strange == 0 and first[0] and len(first) == 1 + (not is_number(first[0])):
            return None, not is_number(first[0])  # one object
        return (first[1:], True) if not first[0] else (first, True)
    second = [field.strip() for field in second]
    if len(second) == len(first) + 1:  # R leaves out the corner
        return first, True
    if not first[0]:
        return first[1:], True
    if second[0] in first[1:] and not is_number(first[0]):
        return first[1:], True
    if strange and 2 * strange >= len(first) - 1:
        labelled = not is_number(second[0])
        return first[1:] if labelled else first, labelled
    return None, not is_number(first[0])


def _is_binary(text: bytes) -> bool:
    if b"\0" in text:
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _judge(first: bytes, rest: list[bytes]) -> str | None:
    second = rest[0] if rest else None
    if first.strip().isdigit():
        return "lsmat" if second is None else "phylip" if not is_number(second) else None
    delimiter = find_delimiter(first, second)
    a = fields(first, delimiter)
    if second is None:
        if len(a) == 3 and not is_number(a[0]) and not is_number(a[1]) and is_number(a[2]):
            return "pairs"
        return "lsmat" if is_number(first) or len(a) > 1 else None
    b = fields(second, delimiter)
    if not any(_has_number(field) for field in b[1:]):
        return None
    if not a[0].strip() or len(b) == len(a) + 1 or len(b) > FEW:
        return "lsmat"
    if b[0].strip() in {name.strip() for name in a[1:]} and not is_number(a[0]) and not is_number(a[1]):
        # A header that names the row below it; but a list of pairs may continue as a, b and then b, c.
        return "pairs" if any(_has_number(field) for field in a[2:]) else "lsmat"
    if not is_number(b[1]):
        return "pairs" if len(b) >= 3 else None
    if len(b) == 2:
        return "lsmat"
    if not is_number(b[0]):
        return "lsmat"
    return "lsmat" if _is_square([fields(line, delimiter) for line in (first, *rest)]) else "pairs"


def _has_number(field: bytes) -> bool:
    return bool(field.strip()) and is_number(field)


def _is_square(rows: list[list[bytes]]) -> bool:
    """Return whether lines of numbers are a symmetric square, not pairs of numbered objects with values."""
    width = len(rows[-1])
    if len(rows) == width + 1:
        rows = rows[1:]
    if len(rows) != width or any(len(row) != width for row in rows):
        return width not in (3, 12) and not (width < FEW and len(rows) > width + 1)
    if not all(field.strip().isdigit() for row in rows for field in row[:2]):
        return True  # numbers of objects would be whole
    if not all(is_number(field) for row in rows for field in row):
        return True
    values = [[as_number(field) for field in row] for row in rows]
    return all(values[r][c] == values[c][r] or values[r][c] != values[r][c] for r in range(width) for c in range(r))
