"""Square matrices in text: labelled CSV and TSV (scikit-bio, pandas, R), PHYLIP, and the table inside a QIIME 2 file.

A text is read once, and its numbers put aside in a square raw file, from which any block can be had.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from dasrel import spool
from dasrel.errors import InputError, count_text, shown, some
from dasrel.guess import DELIMITERS, Line, fields, find_delimiter, lines, sniff, square_layout
from dasrel.intake import Array, Names
from dasrel.rows import Split, Table, fill
from dasrel.source import Reading, Source
from dasrel.vocabulary import is_similarity

__all__ = ["open_text", "peek", "sniff"]

VALUES = "values.f8"
STRICT_NAME = 10
_QUOTED = re.compile(rb'\s*"((?:[^"]|"")*)"[ ]*')
_QZA_MEMBER = re.compile(r"[^/]+/data/distance-matrix\.tsv")


def open_text(path: str | Path, reading: Reading, scratch: Path, kind: str) -> Source:
    """A square matrix in text, put aside as raw numbers in the folder `scratch`.

    Formats: lsmat, csv, tsv (with or without names of rows and columns), phylip (square or lower triangle) and qza;
    packed by gzip or not.

    Cost: one read of the text and 8 n^2 bytes of disk; at most some 200 MB of memory.
    """
    path, scratch = Path(path), Path(scratch)
    key = spool.spool_key(path, reading, kind)
    facts = spool.finished(scratch, key)
    if facts is None:
        spool.unmark(scratch)
        facts = _spool(path, reading, scratch, kind)
        spool.mark_finished(scratch, key, facts)
    names = spool.given_ids(reading)
    if names is not None and len(names) != facts["n_objects"]:
        raise InputError(
            f"{count_text(len(names), 'id')} for the {count_text(facts['n_objects'], 'object')} of"
            f" {spool.place(path)}; give one id per row"
        )
    return SquareSource(path, scratch / VALUES, facts, names or facts["ids"])


def peek(path: str | Path, reading: Reading, kind: str) -> tuple[int, bool]:
    """The number of objects that the first lines announce, and whether both triangles follow. Reads no more of it."""
    stream = spool.Stream(Path(path), member=_qza_member(Path(path)) if reading.format == "qza" else None)
    try:
        if reading.format == "phylip":
            table, _ = _phylip(Path(path), stream, kind)
        else:
            table, _ = _square(Path(path), stream, reading.format)
    finally:
        stream.close()
    return table.n_objects, table.lower is None


class SquareSource:
    """A raw square of float64 numbers on disk, or the lower triangle of one."""

    def __init__(self, path: Path, values: Path, facts: dict[str, Any], ids: Names | None) -> None:
        n = int(facts["n_objects"])
        self.n_objects = n
        self.ids = ids
        self.mirrored = facts["lower"] is None
        self.provenance = spool.provenance(path)
        self.checksum: str | None = facts["checksum"]
        self._no_diagonal = facts["lower"] == 0
        self._values: Array | None = np.memmap(values, np.float64, "r", offset=8 * n * facts["skip"], shape=(n, n))

    def block(self, rows: slice, columns: slice) -> Array:
        """These rows and columns."""
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
        """Of one call; a triangle's diagonal block takes its mask and a copy besides."""
        return rows * columns * (8 if self.mirrored else 24)

    def close(self) -> None:
        """Let go of the file."""
        self._values = None


def _spool(path: Path, reading: Reading, scratch: Path, kind: str) -> dict[str, Any]:
    member = _qza_member(path) if reading.format == "qza" else None
    stream = spool.Stream(path, member=member)
    try:
        if reading.format == "phylip":
            table, rows = _phylip(path, stream, kind)
        else:
            table, rows = _square(path, stream, reading.format)
        facts = fill(table, rows, scratch / VALUES)
        facts["checksum"] = stream.checksum()
    finally:
        stream.close()
    return facts


def _square(path: Path, stream: spool.Stream, name: str | None) -> tuple[Table, Iterable[Line]]:
    """The layout of a CSV or TSV, and its rows."""
    rows = lines(stream, comments=True, size=spool.CHUNK)
    start = list(islice(rows, 2))
    if not start:
        raise InputError(f"{spool.place(path)}: the file is empty: there is no matrix in it")
    first, second = start[0].bytes(), start[1].bytes() if len(start) > 1 else None
    among = {"tsv": (b"\t",), "csv": (b",", b";", b"\t")}.get(name or "", DELIMITERS)
    mark = find_delimiter(first, second, among, blanks=name != "tsv")
    names, labelled = square_layout(fields(first, mark), None if second is None else fields(second, mark))
    header = None if names is None else [spool.decoded(field, path, start[0].number) for field in names]
    n = len(fields(first, mark)) - labelled if header is None else len(header)
    if n < 1:
        raise InputError(f"{spool.place(path)}: line {start[0].number}: the matrix has no objects (n = 0)")
    counted = "" if header is None else f"the {count_text(n, 'column')} of the header at line {start[0].number}"
    split = _splitter(mark, labelled)
    plain = mark is not None
    table = Table(path, n, mark or b"\t", split, header, labelled, plain=plain, counted=counted)
    return table, chain(start if header is None else start[1:], rows)


def _splitter(mark: bytes | None, labelled: bool) -> Split:
    def split(line: Line, width: int) -> tuple[bytes, bytes | memoryview, int]:
        if mark is None or line.text.find(b'"', line.start, line.end) >= 0:
            return _split_slowly(line.bytes(), mark, labelled)
        start = line.start
        label = b""
        if labelled:
            cut = line.text.find(mark, start, line.end)
            if cut < 0:
                return line.bytes(), b"", 0
            label, start = line.text[start:cut], cut + 1
        return label, memoryview(line.text)[start : line.end], line.text.count(mark, start, line.end) + 1

    return split


def _split_slowly(line: bytes, mark: bytes | None, labelled: bool) -> tuple[bytes, bytes, int]:
    """A line with quotes, or with blanks of any number between its fields."""
    label = b""
    if labelled:
        quoted = _QUOTED.match(line)
        if quoted:
            label, rest = quoted[1].replace(b'""', b'"'), line[quoted.end() :]
            rest = rest if mark is None else rest.removeprefix(mark)
            if quoted.end() == len(line):
                return label, b"", 0
        else:
            label, *after = line.split(mark, 1)
            if not after:
                return label, b"", 0
            rest = after[0]
        line = rest
    line = line.replace(b'"', b"")  # numbers may be quoted too
    if mark is None:
        values = line.split()
        return label, b"\t".join(values), len(values)
    return label, line, line.count(mark) + 1


def _phylip(path: Path, stream: spool.Stream, kind: str) -> tuple[Table, Iterable[Line]]:
    """The layout of a PHYLIP matrix, and its rows."""
    name = spool.place(path)
    plain = lines(stream, comments=False, size=spool.CHUNK)
    count = next(plain, None)
    if count is None:
        raise InputError(f"{name}: the file is empty: there is no matrix in it")
    if not count.bytes().strip().isdigit():
        told = shown(count.bytes().decode("utf-8", "backslashreplace"))
        raise InputError(
            f"{name}: line {count.number}: a PHYLIP matrix begins with the number of objects, not {told!r}"
        )
    n = int(count.bytes())
    if n < 1:
        raise InputError(f"{name}: line {count.number}: the matrix has no objects (n = 0)")
    if n > spool.LONGEST_LINE:
        raise InputError(
            f"{name}: line {count.number}: {count_text(n, 'object is', 'objects are')} more than a text can hold;"
            " check the count"
        )
    start = list(islice(plain, 2))
    tabs = any(b"\t" in line.bytes() for line in start)
    rows = chain(start, plain) if tabs else _unwrapped(chain(start, plain))
    first = next(iter(rows), None)
    counted = f"the {count_text(n, 'object')} that line {count.number} announces"
    if first is None:
        raise InputError(f"{name}: 0 rows for {counted}: the file is cut short; write the whole matrix again")
    strict, values = False, first.bytes().split()[1:]
    if tabs:
        values = first.bytes().rstrip().split(b"\t")[1:]
    elif len(values) not in (n, 0, 1) or not all(spool.is_number(field) for field in values):
        strict, values = True, first.bytes()[STRICT_NAME:].split()
    found = len(values)
    if found not in (n, 0, 1):
        raise InputError(
            f"{name}: line {first.number}: the first row has {count_text(found, 'value')}; of"
            f" {count_text(n, 'object')} a square has {n},"
            " a lower triangle 0 or 1"
        )
    lower = None if found == n else found
    if lower == 0 and is_similarity(kind):
        raise InputError(
            f"{name}: the triangle has no diagonal, and kind {kind} needs each object's value with itself;"
            " write it with its diagonal (skani triangle --diagonal)"
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
        return label, b"\t".join(values), len(values)

    table = Table(path, n, b"\t", split, lower=lower, plain=tabs, counted=counted)
    return table, chain([first], rows)


def _unwrapped(rows: Iterable[Line]) -> Iterator[Line]:
    """PHYLIP's own programs break long rows: a line that begins with a blank goes on with the row before it."""
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
    """The name of the table in a QIIME 2 file. It is only ever handed back to the zip, never used as a path."""
    try:
        with zipfile.ZipFile(path) as packed:
            names = [name for name in packed.namelist() if _QZA_MEMBER.fullmatch(name)]
            if len(names) == 1:
                return names[0]
            held = some([shown(name) for name in packed.namelist()])
    except (zipfile.BadZipFile, OSError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{spool.place(path)}: cannot be read as a zip file ({told}); copy or download it again"
        ) from error
    raise InputError(
        f"{spool.place(path)}: no <uuid>/data/distance-matrix.tsv in this QIIME 2 file, which holds"
        f" {held or 'nothing'}; export an artifact of type DistanceMatrix"
    )
