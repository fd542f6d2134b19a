"""What a text holds, judged by its first lines: which format, which delimiter, names of rows and columns or not."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dasrel.errors import InputError
from dasrel.spool import Stream, as_number, is_number

DELIMITERS = (b"\t", b",", b";")
FEW = 64
"""A table of more columns than this is a square; of fewer, the number of its rows is looked at."""


def sniff(path: str | Path) -> str | None:
    """The format of a text: "lsmat", "phylip" or "pairs", or None if it is none of them. Packed by gzip or not.

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
    except InputError:  # unpacking failed: the reader of the format will say so
        return None
    finally:
        stream.close()


class Line(NamedTuple):
    """A line of a text: its number from 1, and where in a chunk of the text it is, so that it need not be copied."""

    number: int
    text: bytes
    start: int
    end: int

    def bytes(self) -> bytes:
        """The line by itself."""
        return self.text[self.start : self.end]


def lines(stream: Stream, *, comments: bool, size: int = 1 << 16) -> Iterator[Line]:
    """The lines of a text without empty ones; `comments`: without leading lines of `#` too."""
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
    """The fields of a line, quotes taken off. No delimiter means blanks of any number."""
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
    """The first delimiter that both lines have; None for blanks.

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
    """The names in the header if the first line is one, and whether each row begins with a name.

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
        # A header that names the row below it; but a list of pairs may go on as a, b and then b, c.
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
    """Whether lines of numbers are a symmetric square, rather than pairs of numbered objects with values."""
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
