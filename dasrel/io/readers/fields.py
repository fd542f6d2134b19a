"""The fields of a line of text: what separates them, and the numbers in them."""

from __future__ import annotations

import csv
import re

from dasrel.util.text import shown

MISSING = ("", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none")
"""Fields that mark a missing value."""


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
    percent = ": write it without the percent sign" if is_number(field.strip().removesuffix(b"%")) else ""
    return f"{described} is not a number{percent}"


_BETWEEN = re.compile(rb"(?<=\d),(?=\d)")
DELIMITERS = (b"\t", b",", b";")


def fields(line: bytes, delimiter: bytes | None) -> list[bytes]:
    """Return the fields of a line, without quotes where they are whole. No delimiter means any number of blanks."""
    if b'"' not in line:
        return line.split(delimiter)
    text = line.decode("utf-8", "surrogateescape")
    mark = " " if delimiter is None else delimiter.decode("ascii")
    try:
        split = next(csv.reader([text], delimiter=mark, skipinitialspace=delimiter is None, strict=True), [])
    except csv.Error:  # a quote that is not closed: a line of one field is refused
        return [line]
    return [field.encode("utf-8", "surrogateescape") for field in split]


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
