"""Stream text files, plain or compressed, once from front to back; detect format, delimiter and header.

What a text reader spools to disk is marked when it is complete, so that a resumed import need not read the text again.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.source import provenance_of
from dasrel.io.readers.stream import Stream
from dasrel.util import limits
from dasrel.util.files import crc32c, replacing
from dasrel.util.text import path_text, shown

MISSING = ("", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none")
"""Fields that mark a missing value."""
THREADS = min(4, os.cpu_count() or 1)
MARKER = "finished.json"
Item = TypeVar("Item")
Result = TypeVar("Result")


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


_COMMA = re.compile(rb"\s*[-+]?\d+,\d+([eE][-+]?\d+)?\s*")


def has_decimal_comma(field: bytes) -> bool:
    """Return whether a field is a number with a decimal comma.

    >>> has_decimal_comma(b"1,5"), has_decimal_comma(b"1.5"), has_decimal_comma(b"1,5-diol")
    (True, False, False)
    """
    return _COMMA.fullmatch(field) is not None


def not_a_number(field: bytes) -> str:
    """Return what is wrong with a field that should be a number.

    >>> not_a_number(b"x"), not_a_number(b"1,5")
    ("'x' is not a number", "'1,5' has a decimal comma: write the file with decimal points (1.5)")
    """
    described = repr(shown(field.decode("utf-8", "backslashreplace")))
    if has_decimal_comma(field):
        return (
            f"{described} has a decimal comma: write the file with decimal points ({field.decode().replace(',', '.')})"
        )
    return f"{described} is not a number"


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


_BETWEEN = re.compile(rb"(?<=\d),(?=\d)")
DELIMITERS = (b"\t", b",", b";")
AMBIGUOUS = "ambiguous"
FEW = 64
"""A table of more columns than this is a square; of fewer, the number of its rows decides."""


def sniff(path: str | Path) -> str | None:
    """Return the format of a text, gzipped or not: "lsmat", "phylip" or "pairs", or None if it is none of them.

    Raises if it may be a matrix as well as a list of pairs.

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
    except InputError:  # decompression failed: the reader of the format will report it
        return None
    finally:
        stream.close()
    found = _judge(first.bytes(), rest)
    if found == AMBIGUOUS:
        raise InputError(
            f"{path_text(path)} can be read as a matrix and as a list of pairs: its first lines are"
            f" {shown(first.bytes().decode())!r} and {shown(rest[0].decode('utf-8', 'backslashreplace'))!r}",
            remedy="say {Reading.format=lsmat} for a matrix, or {Reading.format=pairs} for one pair per line",
        )
    return found


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
    """Return the fields of a line, without quotes where they are whole. No delimiter means any number of blanks."""
    if b'"' not in line:
        return line.split(delimiter)
    text = line.decode("utf-8", "surrogateescape")
    mark = " " if delimiter is None else delimiter.decode("ascii")
    try:
        found = next(csv.reader([text], delimiter=mark, skipinitialspace=delimiter is None, strict=True), [])
    except csv.Error:  # a quote that is not closed: a line of one field is refused
        return [line]
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
            # Commas within numbers, and semicolons between fields.
            decimal = mark == b"," and b";" in among and b";" in first and (second is None or b";" in second)
            if decimal and b"," not in _BETWEEN.sub(b"", first + b"\n" + (second or b"")):
                return b";"
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
    rows = [[field.strip() for field in fields(line, delimiter)] for line in (first, *rest)]
    if b[0].strip() in {name.strip() for name in a[1:]} and not is_number(a[0]) and not is_number(a[1]):
        # A header that names the row below it; but a list of pairs may continue as a, b and then b, c.
        if not any(_has_number(field) for field in a[2:]):
            return "lsmat"
        if not _has_number(b[1]):
            return "pairs"
        return "lsmat" if rows[0][1:] == [row[0] for row in rows[1:]] else AMBIGUOUS
    if not is_number(b[1]):
        return "pairs" if len(b) >= 3 else None
    if len(b) == 2:
        return "lsmat"
    if not is_number(b[0]):
        return _judge_labelled(rows)
    return _judge_numbers(rows)


def _judge_labelled(rows: list[list[bytes]]) -> str:
    """Judge lines that have a name and then numbers: rows of a matrix, or pairs with numbered objects."""
    header = not is_number(rows[0][1])
    values = [row[1:] for row in rows[header:]]
    if header or len(rows[0]) != 3:
        return "lsmat"
    return "lsmat" if len(values) == 2 and _is_symmetric(values) else AMBIGUOUS if len(values) == 2 else "pairs"


def _has_number(field: bytes) -> bool:
    return bool(field.strip()) and (is_number(field) or has_decimal_comma(field))


def _judge_numbers(rows: list[list[bytes]]) -> str:
    """Judge lines of numbers: a square, or pairs of numbered objects with values."""
    width = len(rows[1])
    if len(rows) == width + 1:
        rows = rows[1:]
    if width != 12 and any(is_number(field) and not field.isdigit() for row in rows for field in row[:2]):
        return "lsmat"  # numbers of objects would be whole; twelve columns are an alignment's
    if len(rows) != width or any(len(row) != width for row in rows):
        return "lsmat" if width not in (3, 12) and not (width < FEW and len(rows) > width + 1) else "pairs"
    if not all(field.isdigit() for row in rows for field in row[:2]):
        return "lsmat"
    if not all(is_number(field) for row in rows for field in row) or _is_symmetric(rows):
        return "lsmat"
    return AMBIGUOUS if len({as_number(row[k]) for k, row in enumerate(rows)}) == 1 else "pairs"


def _is_symmetric(rows: list[list[bytes]]) -> bool:
    if any(len(row) != len(rows) for row in rows) or not all(is_number(field) for row in rows for field in row):
        return False
    values = [[as_number(field) for field in row] for row in rows]
    n = len(values)
    return all(values[r][c] == values[c][r] or values[r][c] != values[r][c] for r in range(n) for c in range(r))
