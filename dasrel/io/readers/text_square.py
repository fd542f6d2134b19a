"""Square matrices in text: labelled CSV and TSV (scikit-bio, pandas, R), PHYLIP, and the table inside a QIIME 2 file.

A text is read once. Batches of lines go to a few threads; each finds the fields, lets Arrow convert them to float64,
and writes these to their place in a square raw file, from which any block can be read.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers import stream as streams
from dasrel.io.readers.errors import check_claimed, whole_number
from dasrel.io.readers.fields import (
    DELIMITERS,
    MISSING,
    as_number,
    fields,
    find_delimiter,
    has_decimal_comma,
    is_number,
    not_a_number,
)
from dasrel.io.readers.source import SequentialSource, Source, provenance_of
from dasrel.io.readers.stream import Line, decoded, in_order, lines, spool_once
from dasrel.names import is_similarity
from dasrel.util import Array, Names
from dasrel.util.files import write_at
from dasrel.util.text import count_text, path_text, shown, some

VALUES = "values.f8"
STRICT_NAME = 10
_QZA_MEMBER = re.compile(r"[^/]+/data/distance-matrix\.tsv")


def open_text(path: str | Path, reading: Reading, kind: str) -> SequentialSource:
    """Open a square matrix in text, gzipped or not.

    Formats: lsmat, csv, tsv (with or without names of rows and columns), phylip (square or lower triangle) and qza.

    Cost: the first lines; `spool` reads the text once, writes 8 n^2 bytes, and takes at most some 200 MB of memory.
    """
    path = Path(path)
    stream = streams.Stream(path, member=_qza_member(path) if reading.format == "qza" else None)
    try:
        table, _ = _table(path, stream, reading, kind)
    finally:
        stream.close()
    n, mirrored = table.n_objects, table.lower is None

    def spool(folder: Path) -> Source:
        facts = spool_once(folder, provenance_of(path), reading, kind, lambda: _spool(path, reading, folder, kind))
        return SquareSource(path, folder / VALUES, facts, facts["ids"])

    return SequentialSource(
        n, mirrored, provenance_of(path), f"is text ({reading.format})", spool, 8 * n * n,
        partial(_block_memory, mirrored=mirrored),
    )  # fmt: skip


def _block_memory(rows: int, columns: int, *, mirrored: bool) -> int:
    """Return the memory of one block; a triangle's diagonal block takes its mask and a copy besides."""
    return rows * columns * (8 if mirrored else 24)


class SquareSource:
    """A raw square of float64 numbers on disk, or the lower triangle of one."""

    def __init__(self, path: Path, values: Path, facts: dict[str, Any], ids: Names | None) -> None:
        n = int(facts["n_objects"])
        self.n_objects = n
        self.ids = ids
        self.mirrored = facts["lower"] is None
        self.local = True
        self.provenance = provenance_of(path)
        self.checksum: str | None = facts["checksum"]
        self._no_diagonal = facts["lower"] == 0
        self._values: Array | None = np.memmap(values, np.float64, "r", offset=8 * n * facts["skip"], shape=(n, n))

    def block(self, rows: slice, columns: slice) -> Array:
        """Return these rows and columns."""
        values = self._values
        if values is None:
            raise InputError("the source is closed")
        if self.mirrored:
            return np.array(values[rows, columns])
        r, c = np.arange(self.n_objects)[rows], np.arange(self.n_objects)[columns]
        result = np.array(values[columns, rows].T)
        if r.size and c.size and r[-1] >= c[0]:  # reaches the diagonal, or below it
            below = r[:, None] > c[None, :]
            result[below] = values[rows, columns][below]
            if self._no_diagonal:
                result[r[:, None] == c[None, :]] = 0
        return result

    def block_memory(self, rows: int, columns: int) -> int:
        """Return the memory of one block."""
        return _block_memory(rows, columns, mirrored=self.mirrored)

    def close(self) -> None:
        """Close the file."""
        self._values = None


def _spool(path: Path, reading: Reading, scratch: Path, kind: str) -> dict[str, Any]:
    member = _qza_member(path) if reading.format == "qza" else None
    stream = streams.Stream(path, member=member)
    try:
        table, rows = _table(path, stream, reading, kind)
        facts = fill(table, rows, scratch / VALUES)
        facts["checksum"] = stream.checksum()
    finally:
        stream.close()
    return facts


def _table(path: Path, stream: streams.Stream, reading: Reading, kind: str) -> tuple[Table, Iterable[Line]]:
    """Return the layout that the first lines show, and the rows."""
    if reading.format == "phylip":
        return _phylip(path, stream, kind)
    return _square(path, stream, reading.format)


def _square(path: Path, stream: streams.Stream, name: str | None) -> tuple[Table, Iterable[Line]]:
    """Return the layout of a CSV or TSV, and its rows."""
    rows = lines(stream, comments=True, size=streams.CHUNK)
    start = list(islice(rows, 2))
    if not start:
        raise InputError(f"{path_text(path)}: the file is empty: there is no matrix in it")
    first, second = start[0].bytes(), start[1].bytes() if len(start) > 1 else None
    among = {"tsv": (b"\t",), "csv": (b",", b";", b"\t")}.get(name or "", DELIMITERS)
    mark = find_delimiter(first, second, among, blanks=name != "tsv")
    rows_of_fields = [fields(line, mark) for line in (first, second) if line is not None]
    for line, row in zip(start, rows_of_fields, strict=True):
        for field in row[1:]:
            if has_decimal_comma(field):
                raise InputError(f"{path_text(path)}: line {line.number}: {not_a_number(field)}")
    names, labelled = square_layout(*rows_of_fields, *([None] if second is None else []))
    header = None if names is None else [decoded(field, path, start[0].number) for field in names]
    n = len(fields(first, mark)) - labelled if header is None else len(header)
    if n < 1:
        raise InputError(f"{path_text(path)}: line {start[0].number}: the matrix has no objects (n = 0)")
    counted = "" if header is None else f"the {count_text(n, 'column')} of the header at line {start[0].number}"
    split = _splitter(mark, labelled, path)
    plain = mark is not None
    table = Table(path, n, mark or b"\t", split, header, labelled, plain=plain, counted=counted)
    return table, chain(start if header is None else start[1:], rows)


def _splitter(mark: bytes | None, labelled: bool, path: Path) -> Split:
    def split(line: Line, width: int) -> tuple[bytes, bytes | memoryview, int]:
        if mark is None or line.text.find(b'"', line.start, line.end) >= 0:
            return _split_slowly(line, mark, labelled, path)
        start = line.start
        label = b""
        if labelled:
            cut = line.text.find(mark, start, line.end)
            if cut < 0:
                return line.bytes(), b"", 0
            label, start = line.text[start:cut], cut + 1
        return label, memoryview(line.text)[start : line.end], line.text.count(mark, start, line.end) + 1

    return split


def _split_slowly(line: Line, mark: bytes | None, labelled: bool, path: Path) -> tuple[bytes, bytes, int]:
    """Split a line with quotes, or with any number of blanks between its fields."""
    row = fields(line.bytes().strip() if mark is None else line.bytes(), mark)
    label, values = (row[0], row[1:]) if labelled else (b"", row)
    for field in values:
        if mark is not None and mark in field:
            raise InputError(f"{path_text(path)}: line {line.number}: {not_a_number(field)}")
    return label, (mark or b"\t").join(values), len(values)


def _phylip(path: Path, stream: streams.Stream, kind: str) -> tuple[Table, Iterable[Line]]:
    """Return the layout of a PHYLIP matrix, and its rows."""
    name = path_text(path)
    plain = lines(stream, comments=False, size=streams.CHUNK)
    count = next(plain, None)
    if count is None:
        raise InputError(f"{name}: the file is empty: there is no matrix in it")
    n = whole_number(count.bytes())
    if n is None:
        described = shown(count.bytes().decode("utf-8", "backslashreplace"))
        raise InputError(
            f"{name}: line {count.number}: a PHYLIP matrix begins with the number of objects, not {described!r}"
        )
    if n < 1:
        raise InputError(f"{name}: line {count.number}: the matrix has no objects (n = 0)")
    if n > streams.LONGEST_LINE:
        raise InputError(
            f"{name}: line {count.number}: {count_text(n, 'object is', 'objects are')} more than a text can hold",
            remedy="check the count",
        )
    start = list(islice(plain, 2))
    tabs = any(b"\t" in line.bytes() for line in start)
    rows = chain(start, plain) if tabs else _unwrapped(chain(start, plain))
    first = next(iter(rows), None)
    counted = f"the {count_text(n, 'object')} that line {count.number} announces"
    if first is None:
        raise InputError(f"{name}: 0 rows for {counted}: the file is cut short", remedy="write the whole matrix again")
    strict, values = False, first.bytes().split()[1:]
    if tabs:
        values = first.bytes().rstrip().split(b"\t")[1:]
    elif len(values) not in (n, 0, 1) or not all(is_number(field) for field in values):
        strict, values = True, first.bytes()[STRICT_NAME:].split()
    n_values = len(values)
    if n_values not in (n, 0, 1):
        raise InputError(
            f"{name}: line {first.number}: the first row has {count_text(n_values, 'value')}; of"
            f" {count_text(n, 'object')} a square has {n},"
            " a lower triangle 0 or 1"
        )
    lower = None if n_values == n else n_values
    check_claimed(2 * n * n if lower is None else n * n, path, count_text(n, "object"))
    if lower == 0 and is_similarity(kind):
        raise InputError(
            f"{name}: the triangle has no diagonal, and kind {kind} needs each object's value with itself",
            remedy="write it with its diagonal (`skani triangle --diagonal`)",
        )

    def split(line: Line, width: int) -> tuple[bytes, bytes, int]:
        row = line.bytes()
        if tabs:
            label, _, body = row.rstrip().partition(b"\t")
            return label, body, body.count(b"\t") + 1 if body else 0
        label, *values = row.split()
        if strict or len(values) != width:
            after = row[STRICT_NAME:].split()
            if len(after) == width:
                label, values = row[:STRICT_NAME], after
                _check_strict_name(label, name, line.number)
        return label, b"\t".join(values), len(values)

    table = Table(path, n, b"\t", split, lower=lower, plain=tabs, counted=counted)
    return table, chain([first], rows)


def _check_strict_name(label: bytes, path: str, number: int) -> None:
    """Raise if the first ten characters of a row are more than a name: they are, where the row lacks a value."""
    words = label.split()
    if len(words) > 1 and any(b"." in word and is_number(word) for word in words):
        described = shown(label.strip().decode("utf-8", "backslashreplace"))
        raise InputError(
            f"{path}: line {number}: no name of ten characters, nor a name and as many values as the row should have:"
            f" {described!r}",
            remedy="write names without blanks, and all values",
        )


def _unwrapped(rows: Iterable[Line]) -> Iterator[Line]:
    """Join broken rows, as PHYLIP's programs write: a line that begins with a blank continues the row before it."""
    held: list[bytes] = []
    number = 0
    for line in rows:
        if held and line.text.startswith(b" ", line.start):
            held.append(line.bytes())
            continue
        if held:
            yield _whole(number, held)
        held, number = [line.bytes()], line.number
    if held:
        yield _whole(number, held)


def _whole(number: int, pieces: list[bytes]) -> Line:
    text = b"".join(pieces)
    return Line(number, text, 0, len(text))


def _qza_member(path: Path) -> str:
    """Return the name of the table in a QIIME 2 file. It is only passed back to the zip, never used as a path."""
    try:
        with zipfile.ZipFile(path) as packed:
            names = [name for name in packed.namelist() if _QZA_MEMBER.fullmatch(name)]
            if len(names) == 1:
                return names[0]
            held = some([shown(name) for name in packed.namelist()])
    except (zipfile.BadZipFile, OSError) as error:
        described = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{path_text(path)}: cannot be read as a zip file ({described})", remedy="copy or download it again"
        ) from error
    raise InputError(
        f"{path_text(path)}: no <uuid>/data/distance-matrix.tsv in this QIIME 2 file, which holds {held or 'nothing'}",
        remedy="export an artifact of type DistanceMatrix",
    )


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


Split = Callable[[Line, int], tuple[bytes, bytes | memoryview, int]]
"""Takes a line and the number of values it should hold; returns its label, the rest, and the number of values there."""
BATCH = 1 << 20
"""Bytes of text that are parsed at a time; the results should stay in the processor's cache."""


@dataclass(frozen=True)
class Table:
    """How the rows of a text are laid out."""

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
    """Whether fields are separated by exactly one delimiter, and names have no fixed width."""
    counted: str = ""
    """Where the number of objects was found, for messages."""

    def width(self, row: int) -> int:
        """Return the number of values of a row."""
        return self.n_objects if self.lower is None else row + self.lower


def fill(table: Table, rows: Iterable[Line], target: Path) -> dict[str, Any]:
    """Parse all rows into the file, and check what is known only at the end."""
    n, name = table.n_objects, path_text(table.path)
    ids: list[str] = []
    numbers: list[int] = []
    count, skip = 0, 0
    target.unlink(missing_ok=True)  # of a process that was killed
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:

        def work(batch: tuple[int, list[Line]]) -> list[tuple[int, bytes]]:
            return _parse(table, *batch, descriptor)

        for labels in in_order(work, _batches(table, rows)):
            count += len(labels)
            ids.extend(decoded(label, table.path, number) for number, label in labels)
            numbers.extend(number for number, _ in labels)
        if count == n + 1 and not table.labelled and table.header is None:
            # Names 0, 1, 2, ... over the columns look like values; only the number of rows gives them away.
            first = np.fromfile(target, np.float64, n)
            skip = int(np.array_equal(first, np.arange(n)))
        if count - skip != n:
            what = (count < n and table.counted) or count_text(n, "column")
            more = "the file is cut short" if count < n and table.counted else "a matrix must be square"
            rows_met = count_text(count, "row")
            raise InputError(f"{name}: {rows_met} for {what}: {more}", remedy="write the whole matrix again")
        os.ftruncate(descriptor, 8 * n * (n + skip))  # a triangle's last row ends early
    finally:
        os.close(descriptor)
    _check_ids(table, ids, numbers)
    named = ids if table.labelled else table.header
    return {"n_objects": n, "ids": named, "lower": table.lower, "skip": skip}


def _check_ids(table: Table, ids: list[str], numbers: list[int]) -> None:
    name = path_text(table.path)
    if table.labelled:
        for number, object_id in zip(numbers, ids, strict=True):
            if not object_id:
                raise InputError(f"{name}: line {number}, column 1: the id is empty", remedy="give every object a name")
        if len(set(ids)) < len(ids):
            first: dict[str, int] = {}
            for number, object_id in zip(numbers, ids, strict=True):
                if object_id in first:
                    raise InputError(
                        f"{name}: line {number}: id {shown(object_id)} was met before, at line {first[object_id]}",
                        remedy="rename or drop one of them",
                    )
                first[object_id] = number
    if table.header is not None:
        for column, object_id in enumerate(table.header, 1 + table.labelled):
            if not object_id:
                raise InputError(f"{name}: header, column {column}: the id is empty", remedy="give every object a name")
        if table.labelled and ids != table.header:
            k = next(k for k, object_id in enumerate(ids) if object_id != table.header[k])
            raise InputError(
                f"{name}: line {numbers[k]}: the row is named {shown(ids[k])}, but its column in the header is"
                f" {shown(table.header[k])}",
                remedy="rows and columns must have the same names in the same order",
            )
        if len(set(table.header)) < len(table.header):
            seen: set[str] = set()
            twice = next(object_id for object_id in table.header if object_id in seen or seen.add(object_id))  # type: ignore[func-returns-value]
            raise InputError(f"{name}: header: id {shown(twice)} is there twice", remedy="rename or drop one of them")


def _batches(table: Table, rows: Iterable[Line]) -> Iterator[tuple[int, list[Line]]]:
    """Yield rows in batches of about one chunk, each with the index of its first row."""
    batch: list[Line] = []
    first = size = 0
    for count, row in enumerate(rows):
        if count > table.n_objects:
            most = table.counted or count_text(table.n_objects, "row")
            raise InputError(
                f"{path_text(table.path)}: line {row.number}: more than {most}: a matrix must be square",
                remedy="where each row has the features of an object, `dasrel pairwise` computes the distances",
            )
        if batch and (size >= BATCH or row.text is not batch[-1].text):
            yield first, batch
            batch, first, size = [], count, 0
        batch.append(row)
        size += row.end - row.start
    if batch:
        yield first, batch


def _parse(table: Table, first: int, batch: list[Line], descriptor: int) -> list[tuple[int, bytes]]:
    """Write the values of some rows to their place in the file, and return their labels."""
    labels, bodies = [], []
    widths = [table.width(row) for row in range(first, first + len(batch))]
    # One row too many may turn out at the end to be a header; else it is an error now.
    over = first + len(batch) > table.n_objects
    if over and (table.lower is not None or table.labelled or table.header is not None):
        raise InputError(f"{path_text(table.path)}: line {batch[-1].number}: more rows than {table.counted}")
    values = _quick_numbers(table, batch, widths) if table.plain else None
    for line, width in zip(batch, widths, strict=True):
        if values is not None:
            cut = line.text.find(table.delimiter, line.start, line.end) if table.labelled else line.start
            labels.append((line.number, line.text[line.start : cut if cut >= 0 else line.end]))
            continue
        label, body, count = table.split(line, width)
        if count != width:
            extra = int(table.labelled)
            raise InputError(
                f"{path_text(table.path)}: line {line.number} has {count_text(count + extra, 'field')} where"
                f" {width + extra} are expected ({table.counted or 'as in the first line'})",
                remedy="fix or drop it",
            )
        labels.append((line.number, label))
        if width:
            bodies.append(body)
    if values is None:
        values = _numbers(table, batch, bodies, widths)
    if table.lower is None:
        write_at(descriptor, values, 8 * first * table.n_objects)
    else:
        ends = np.cumsum(widths)
        for k, (width, end) in enumerate(zip(widths, ends.tolist(), strict=True)):
            write_at(descriptor, values[end - width : end], 8 * (first + k) * table.n_objects)
    return labels


def _quick_numbers(table: Table, batch: list[Line], widths: list[int]) -> Array | None:
    """Return the values of rows that are consecutive in the text and well-formed; else None.

    The text itself is the data of an Arrow array of strings. Strings of an array are adjacent, so the delimiters are
    elements too; they are marked as null, as are labels and empty fields, and Arrow casts the rest.
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


def _numbers(table: Table, batch: list[Line], bodies: list[Any], widths: list[int]) -> Array:
    """Return the values of all bodies, one after the other."""
    if not bodies:
        return np.empty(0)
    text = bytearray(b"\n").join([*bodies, b""])
    characters = np.frombuffer(text, np.uint8)
    np.copyto(characters, ord("\n"), where=characters == ord(table.delimiter))
    if not text.startswith(streams.BOM):  # which Arrow would leave out: it is the mark of a file, and no number
        try:
            read = arrow_csv.read_csv(
                pa.BufferReader(text),
                read_options=arrow_csv.ReadOptions(column_names=["value"], use_threads=False, block_size=1 << 20),
                parse_options=arrow_csv.ParseOptions(quote_char=False, delimiter="\t", ignore_empty_lines=False),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={"value": pa.float64()}, null_values=MISSING, check_utf8=False
                ),
            )
            values: Array = read.column(0).to_numpy()
            if values.size == sum(widths):
                return values
        except pa.ArrowInvalid:
            pass
    # Some field is no number, or is written in a way that only Python knows: parse each.
    values = np.empty(sum(widths))
    place = 0
    for line, width in zip(batch, widths, strict=True):
        _, body, _ = table.split(line, width)
        for column, field in enumerate(bytes(body).split(table.delimiter) if width else ()):
            if not is_number(field):
                _refuse(table, line.number, column, field)
            values[place] = as_number(field)
            place += 1
    return values


def _refuse(table: Table, number: int, column: int, field: bytes) -> None:
    header = f" ({shown(table.header[column])})" if table.header is not None else ""
    raise InputError(
        f"{path_text(table.path)}: line {number}, column {column + 1 + table.labelled}{header}: {not_a_number(field)}",
        remedy="correct it, or leave the field empty for a missing value",
    )
