"""Values of options that are written as text: ranges, parts, columns, what to fill in."""

from __future__ import annotations

import math
import re
from typing import Literal

from dasrel.errors import InputError
from dasrel.util.text import shown


def parse_columns(text: str) -> tuple[str | int, str | int, str | int]:
    """Read three columns, by name or by number from 1.

    >>> parse_columns("query,target,3")
    ('query', 'target', 3)
    """
    columns = [int(part) if part.isdecimal() else part for part in (p.strip() for p in text.split(","))]
    if len(columns) != 3 or "" in columns or 0 in columns:
        raise ValueError("is not FIRST,SECOND,VALUE: three columns by name or by number from 1")
    return columns[0], columns[1], columns[2]


def parse_missing(text: str) -> Literal["max"] | float:
    """Read what missing pairs are filled with.

    >>> parse_missing("max"), parse_missing("fill=0.5")
    ('max', 0.5)
    """
    if text == "max":
        return "max"
    try:
        return _filled(text)
    except ValueError:
        raise ValueError("is neither max nor fill=VALUE, such as fill=1") from None


def parse_fill(text: str) -> float:
    """Read what missing pairs are filled with, where the largest value is not known.

    >>> parse_fill("fill=1")
    1.0
    """
    try:
        return _filled(text)
    except ValueError:
        raise ValueError("is not fill=VALUE, such as fill=1") from None


def parse_diagonal(text: str) -> Literal["zero"] | float:
    """Read what the values of objects with themselves are.

    >>> parse_diagonal("zero"), parse_diagonal("100")
    ('zero', 100.0)
    """
    try:
        value = float(text) if text != "zero" else 0.0
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("is neither zero nor a number, such as 100")
    return "zero" if text == "zero" else value


def _filled(text: str) -> float:
    value = float(text.removeprefix("fill="))
    if not text.startswith("fill=") or not math.isfinite(value):
        raise ValueError
    return value


def parse_part(text: str) -> tuple[int, int]:
    """Read a part K/N.

    >>> parse_part("3/8")
    (3, 8)
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, flags=re.ASCII)
    if match is None:
        raise InputError(f"part {shown(text)!r} is not K/N, such as 3/8: the third of eight parts")
    part = int(match[1]), int(match[2])
    check_part(part)
    return part


def check_part(part: tuple[int, int]) -> None:
    """Raise if there is no such part."""
    k, n = part
    if not 0 <= k <= n or n < 1:
        raise InputError(f"there is no part {k}/{n}", remedy=f"give 1/{n} to {n}/{n}, or 0/{n} to begin the store only")


def whole_numbers(text: str) -> list[int] | None:
    """Return the whole numbers of a range such as 2-10 or 2:10, both ends included; None for any other text.

    >>> whole_numbers("2-5"), whole_numbers("7")
    ([2, 3, 4, 5], None)
    """
    match = re.fullmatch(r"(\d{1,9})\s*[-:]\s*(\d{1,9})", text.strip(), flags=re.ASCII)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    if first > last:
        raise InputError(f"{text!r} is an empty range", remedy=f"give the smaller number first, such as {last}-{first}")
    if last - first >= MOST_IN_RANGE:
        raise InputError(f"{text!r} has {last - first + 1:,} numbers", remedy=f"give at most {MOST_IN_RANGE:,}")
    return list(range(first, last + 1))


MOST_IN_RANGE = 1_000
"""Numbers that a range such as 2-10 may stand for."""


def parse_reject(text: str) -> Literal["auto"] | float | int:
    """Read what to reject: auto, a whole number of objects, or their share."""
    try:
        if text == "auto":
            return "auto"
        return int(text) if re.fullmatch(r"\d{1,9}", text, flags=re.ASCII) else float(text)
    except ValueError:
        raise ValueError("is neither auto, nor a number of objects such as 12, nor a share such as 0.05") from None
