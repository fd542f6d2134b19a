"""Text files, plain or compressed, as streams of complete lines; every error of a reader becomes an `InputError`.

What a text reader spools to disk is marked when it is complete, so that a resumed import need not read the text again.
"""

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
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import check_unpacked
from dasrel.kernels import native
from dasrel.kernels.native import LONG, POINTER
from dasrel.util import Array, Names, limits
from dasrel.util.files import crc32c, replacing
from dasrel.util.text import path_text, shown

CHUNK = 1 << 20
BOM = b"\xef\xbb\xbf"
LONGEST_LINE = 256 << 20
FEW = 64
"""A table of more columns than this is a square; of fewer, the number of its rows decides."""
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
        with _read_errors(path):
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

    def read(self, size: int) -> bytes:
        """Return at most this many bytes; none at the end."""
        limits.check()
        with _read_errors(self.path):
            return bytes(self._counted(self._text.read(size)))

    def _counted(self, block: Any) -> Any:
        """Count what was read; raise if a small compressed file has become too large."""
        self._size += len(block) if isinstance(block, bytes) else block
        if self._summed is not None and self._summed is not self._text:
            check_unpacked(self._size, self._summed.count, self.path)
        return block

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
                with _read_errors(self.path):
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


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn errors of the decompression libraries into one line that names the file."""
    name = path_text(path)
    try:
        yield
    except EOFError as error:
        raise InputError(f"{name}: the compressed file ends too early", remedy="copy or download it again") from error
    except (gzip.BadGzipFile, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{name}: damaged compressed file ({error})", remedy="copy or download it again") from error
    except (NotImplementedError, RuntimeError) as error:
        raise InputError(f"{name}: cannot be unpacked ({error})", remedy="unpack it first") from error
    except ValueError as error:
        if "\0" not in str(path):
            raise
        raise InputError(f"{name} is no path: it has a NUL character", remedy="give another name") from error
    except OSError as error:
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
    loaded = native.library()
    if loaded is None or not native.typed(loaded, "dasrel_prepare_pair_list", ctypes.c_int)():
        return None
    text, some = (POINTER, LONG), (POINTER,) * 3
    native.typed(loaded, "dasrel_count_lines", LONG, *text)
    native.typed(loaded, "dasrel_read_pairs", ctypes.c_int, *text, POINTER, POINTER, LONG, *some, *some[:2])
    native.typed(loaded, "dasrel_count_pairs_by_block", None, POINTER, *some)
    native.typed(loaded, "dasrel_sort_pairs_by_block", None, *some)
    return loaded


def line_count(text: bytes | Array) -> int:
    """Return the number of newlines."""
    loaded = library()
    if loaded is None:
        return bytes(text).count(b"\n")
    return int(loaded.dasrel_count_lines(text if isinstance(text, bytes) else text.ctypes.data, len(text)))


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


def decoded(raw: bytes, path: Path, number: int) -> str:
    """Return an id as text, without blanks around it."""
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        detail = raw.decode("utf-8", "backslashreplace")
        raise InputError(
            f"{path_text(path)}: line {number}: {shown(detail)} is not UTF-8 text",
            remedy="convert the file, for instance with iconv",
        ) from None


def given_ids(ids: str | Names | None) -> list[str] | None:
    """Return the names that the user gave, as a list or as a file with one name per line."""
    if ids is None or not isinstance(ids, str):
        return None if ids is None else [str(name) for name in ids]
    path = Path(ids)
    with closing(Stream(path)) as stream:
        names = [
            decoded(line, path, first + k)
            for first, text in stream.chunks()
            for k, line in enumerate(text[:-1].split(b"\n"))
        ]
    while names and not names[-1]:
        names.pop()
    return names


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


def spool_once(
    folder: Path, provenance: dict[str, Any], reading: Reading, kind: str, read: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the facts about what `read` spools from a text to a folder; reuse what it finished there before."""
    names = given_ids(reading.ids)
    ids = None if names is None else f"{crc32c(json.dumps(names).encode()):08x}"
    columns = None if reading.columns is None else list(reading.columns)
    key = {**provenance, "format": reading.format, "ids": ids, "columns": columns, "kind": kind}
    facts: dict[str, Any]
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if marker["key"] == key:
            facts = marker["facts"]
            return facts
    except (OSError, ValueError, TypeError, KeyError):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).unlink(missing_ok=True)
    facts = read()
    with replacing(folder / MARKER) as temporary, temporary.open("x", encoding="utf-8") as file:
        json.dump({"key": key, "facts": facts}, file)
    return facts
