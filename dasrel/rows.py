"""The rows of a square in text, turned into numbers and put into their places in a raw file.

Batches of lines go to a few threads; each finds the fields, lets Arrow turn them into float64 numbers, and writes
these to disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from dasrel import spool
from dasrel.errors import InputError, count_text, shown
from dasrel.guess import Line
from dasrel.intake import Array

Split = Callable[[Line, int], tuple[bytes, bytes | memoryview, int]]
"""Takes a line and the number of values it should hold; gives its label, the rest, and the number of values there."""
BATCH = 1 << 20
"""Bytes of text that are parsed at a time: what is made of them should stay in the processor's cache."""


@dataclass(frozen=True)
class Table:
    """How the rows of a text are to be understood."""

    path: Path
    n_objects: int
    delimiter: bytes
    """Between values, once a row is split."""
    split: Split
    header: list[str] | None = None
    labelled: bool = True
    lower: int | None = None
    """None for a square; else the number of values in the first row of a lower triangle: 0 or 1."""
    plain: bool = False
    """Whether every mark is one delimiter: no blanks of any number between fields, no names of a fixed width."""
    counted: str = ""
    """Where the number of objects was found, for messages."""

    def width(self, row: int) -> int:
        """Number of values of a row."""
        return self.n_objects if self.lower is None else row + self.lower


def fill(table: Table, rows: Iterable[Line], target: Path) -> dict[str, Any]:
    """Parse all rows into the file; check what can only be known at the end."""
    n, name = table.n_objects, spool.place(table.path)
    ids: list[str] = []
    numbers: list[int] = []
    count, skip = 0, 0
    descriptor = os.open(target, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    try:

        def work(batch: tuple[int, list[Line]]) -> list[tuple[int, bytes]]:
            return _parse(table, *batch, descriptor)

        for labels in spool.in_order(work, _batches(table, rows)):
            count += len(labels)
            ids.extend(spool.decoded(label, table.path, number) for number, label in labels)
            numbers.extend(number for number, _ in labels)
        if count == n + 1 and not table.labelled and table.header is None:
            # Names 0, 1, 2, ... over the columns look like values; only the number of rows gives them away.
            first = np.fromfile(target, np.float64, n)
            skip = int(np.array_equal(first, np.arange(n)))
        if count - skip != n:
            what = (count < n and table.counted) or count_text(n, "column")
            more = "the file is cut short" if count < n and table.counted else "a matrix must be square"
            rows_met = count_text(count, "row")
            raise InputError(f"{name}: {rows_met} for {what}: {more}; write the whole matrix again")
        os.ftruncate(descriptor, 8 * n * (n + skip))  # a triangle's last row ends early
    finally:
        os.close(descriptor)
    _check_ids(table, ids, numbers)
    named = ids if table.labelled else table.header
    return {"n_objects": n, "ids": named, "lower": table.lower, "skip": skip}


def _check_ids(table: Table, ids: list[str], numbers: list[int]) -> None:
    name = spool.place(table.path)
    if table.labelled:
        for number, found in zip(numbers, ids, strict=True):
            if not found:
                raise InputError(f"{name}: line {number}, column 1: the id is empty; give every object a name")
        if len(set(ids)) < len(ids):
            first: dict[str, int] = {}
            for number, found in zip(numbers, ids, strict=True):
                if found in first:
                    raise InputError(
                        f"{name}: line {number}: id {shown(found)} was met before, at line {first[found]};"
                        " rename or drop one of them"
                    )
                first[found] = number
    if table.header is not None:
        for column, found in enumerate(table.header, 1 + table.labelled):
            if not found:
                raise InputError(f"{name}: header, column {column}: the id is empty; give every object a name")
        if table.labelled and ids != table.header:
            k = next(k for k, found in enumerate(ids) if found != table.header[k])
            raise InputError(
                f"{name}: line {numbers[k]}: the row is named {shown(ids[k])}, but its column in the header is"
                f" {shown(table.header[k])}; rows and columns must have the same names in the same order"
            )
        if len(set(table.header)) < len(table.header):
            seen: set[str] = set()
            twice = next(found for found in table.header if found in seen or seen.add(found))  # type: ignore[func-returns-value]
            raise InputError(f"{name}: header: id {shown(twice)} is there twice; rename or drop one of them")


def _batches(table: Table, rows: Iterable[Line]) -> Iterator[tuple[int, list[Line]]]:
    """Rows, with the place of the first, in heaps of about one chunk."""
    batch: list[Line] = []
    first = size = 0
    for count, row in enumerate(rows):
        if count > table.n_objects:
            most = table.counted or count_text(table.n_objects, "row")
            raise InputError(f"{spool.place(table.path)}: line {row.number}: more than {most}; a matrix must be square")
        if batch and (size >= BATCH or row.text is not batch[-1].text):
            yield first, batch
            batch, first, size = [], count, 0
        batch.append(row)
        size += row.end - row.start
    if batch:
        yield first, batch


def _parse(table: Table, first: int, batch: list[Line], descriptor: int) -> list[tuple[int, bytes]]:
    """Write the values of some rows to their place, and return their labels."""
    labels, bodies = [], []
    widths = [table.width(row) for row in range(first, first + len(batch))]
    # One row too many is looked into at the end, if it may be a header; else it is an error now.
    over = first + len(batch) > table.n_objects
    if over and (table.lower is not None or table.labelled or table.header is not None):
        raise InputError(f"{spool.place(table.path)}: line {batch[-1].number}: more rows than {table.counted}")
    values = _quick_numbers(table, batch, widths) if table.plain else None
    for line, width in zip(batch, widths, strict=True):
        if values is not None:
            cut = line.text.find(table.delimiter, line.start, line.end) if table.labelled else line.start
            labels.append((line.number, line.text[line.start : cut if cut >= 0 else line.end]))
            continue
        label, body, found = table.split(line, width)
        if found != width:
            extra = int(table.labelled)
            raise InputError(
                f"{spool.place(table.path)}: line {line.number} has {found + extra} fields where"
                f" {width + extra} are expected ({table.counted or 'as in the first line'}); mend or drop it"
            )
        labels.append((line.number, label))
        if width:
            bodies.append(body)
    if values is None:
        values = _numbers(table, batch, bodies, widths)
    if table.lower is None:
        _write(descriptor, values, 8 * first * table.n_objects)
    else:
        ends = np.cumsum(widths)
        for k, (width, end) in enumerate(zip(widths, ends.tolist(), strict=True)):
            _write(descriptor, values[end - width : end], 8 * (first + k) * table.n_objects)
    return labels


def _quick_numbers(table: Table, batch: list[Line], widths: list[int]) -> Array | None:
    """The values of rows that lie one after the other in the text and hold what they should; else None.

    The text itself serves as the data of an Arrow array of strings. Strings of an array touch each other, so the
    delimiters are elements too; they are marked as absent, as are labels and empty fields, and Arrow casts the rest.
    """
    text, start, stop = batch[0].text, batch[0].start, batch[-1].end + 1
    ends_of_lines = np.array([line.end for line in batch])
    if sum(line.end - line.start + 1 for line in batch) != stop - start or text.find(b'"', start, stop) >= 0:
        return None
    characters = np.frombuffer(text, np.uint8, stop - start, start)
    marks = characters == ord(table.delimiter)
    marks |= characters == ord("\n")
    ends = np.flatnonzero(marks)
    ends += start
    counts = np.array(widths) + table.labelled
    last = np.cumsum(counts) - 1
    if ends.size != last[-1] + 1 or not np.array_equal(ends[last], ends_of_lines):
        return None
    offsets = np.empty(2 * ends.size + 1, np.int32)
    offsets[0] = start
    offsets[1::2] = ends
    np.add(ends, 1, out=offsets[2::2], casting="unsafe")
    present = np.zeros((ends.size, 2), bool)
    np.greater(offsets[1::2], offsets[:-1:2], out=present[:, 0])
    if table.labelled:
        present[last - counts + 1, 0] = False
    buffers = [np.packbits(present, bitorder="little"), offsets, text]
    try:
        strings = pa.Array.from_buffers(pa.string(), 2 * ends.size, [pa.py_buffer(buffer) for buffer in buffers])
        numbers = strings.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    values: Array = np.frombuffer(numbers.buffers()[1], np.float64, 2 * ends.size).reshape(-1, 2)[:, 0]
    if table.labelled:
        fields_of_values = np.ones(ends.size, bool)
        fields_of_values[last - counts + 1] = False
        values, known = values[fields_of_values], present[fields_of_values, 0]
    else:
        values, known = values.copy(), present[:, 0]
    if not known.all():
        values[~known] = np.nan
    return values


def _write(descriptor: int, values: Array, offset: int) -> None:
    left = np.ascontiguousarray(values).view(np.uint8).data
    while left:
        done = os.pwrite(descriptor, left, offset)
        left, offset = left[done:], offset + done


def _numbers(table: Table, batch: list[Line], bodies: list[Any], widths: list[int]) -> Array:
    """The values of all bodies, one after the other."""
    if not bodies:
        return np.empty(0)
    text = bytearray(b"\n").join([*bodies, b""])
    characters = np.frombuffer(text, np.uint8)
    np.copyto(characters, ord("\n"), where=characters == ord(table.delimiter))
    try:
        read = arrow_csv.read_csv(
            pa.BufferReader(text),
            read_options=arrow_csv.ReadOptions(column_names=["value"], use_threads=False, block_size=1 << 20),
            parse_options=arrow_csv.ParseOptions(quote_char=False, delimiter="\t", ignore_empty_lines=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types={"value": pa.float64()}, null_values=spool.MISSING, check_utf8=False
            ),
        )
        values: Array = read.column(0).to_numpy()
        if values.size == sum(widths):
            return values
    except pa.ArrowInvalid:
        pass
    # Something in there is no number, or written in a way that only Python knows: look at every field.
    values = np.empty(sum(widths))
    place = 0
    for line, width in zip(batch, widths, strict=True):
        _, body, _ = table.split(line, width)
        for column, field in enumerate(bytes(body).split(table.delimiter) if width else ()):
            if not spool.is_number(field):
                _refuse(table, line.number, column, field)
            values[place] = spool.as_number(field)
            place += 1
    return values


def _refuse(table: Table, number: int, column: int, field: bytes) -> None:
    told = shown(field.decode("utf-8", "backslashreplace"))
    header = f" ({shown(table.header[column])})" if table.header is not None else ""
    raise InputError(
        f"{spool.place(table.path)}: line {number}, column {column + 1 + table.labelled}{header}: {told!r} is not a"
        " number; mend it, or leave the field empty for a missing value"
    )
