"""Pair lists in text, as search tools write them: first object, second object, value.

A list is read once, some hundred thousand rows at a time. Names are numbered, and the pairs are spooled as records that
`records` sorts by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers import stream as streams
from dasrel.io.readers.fields import (
    MISSING,
    as_number,
    fields,
    find_delimiter,
    has_decimal_comma,
    is_number,
    not_a_number,
)
from dasrel.io.readers.records import Records, RecordWriter, TripletSource, has_both_directions, triplet_memory
from dasrel.io.readers.source import SequentialSource, Source, provenance_of
from dasrel.io.readers.stream import decoded, given_ids, in_order, spool_once
from dasrel.names import is_similarity
from dasrel.store.options import Policy
from dasrel.util import Array, limits
from dasrel.util.text import count_text, path_text, shown, some

CHUNK = 4 << 20
KNOWN = {
    5: ("reference", "query", "distance", "p-value", "shared-hashes"),  # mash dist
    12: ("query", "target", "fident", "alnlen", "mismatch", "gapopen", "qstart", "qend", "tstart", "tend", "evalue",
         "bits"),  # BLAST, MMseqs2 and Foldseek m8
}  # fmt: skip
"""Names of the columns of well-known lists that have no header, by their number."""
MISSING_WORDS = "".join(f"{word}\n" for word in MISSING).encode()


Coded = tuple[list[bytes | str], Array]
"""The distinct names of a column (it may be of both), and for each row which one it has."""


@dataclass(frozen=True)
class Part:
    """Some rows of a list."""

    first: Coded
    second: Coded
    values: Array
    where: Callable[[int], str]
    """Returns where in the file a row is, such as "line 7"; valid until the next part is read."""
    release: Callable[[], None] | None = None
    """Called when codes and values are no longer needed."""


Read = Callable[[Path, Reading, Callable[[Part], None]], str | None]
"""Reads a list, hands its rows to a function, and returns the checksum of the file where it knows one."""


@dataclass(frozen=True)
class ListLayout:
    """How the lines of a list are laid out."""

    path: Path
    delimiter: bytes | None
    names: list[str] | None
    width: int
    chosen: tuple[int, int, int]
    """The columns of the two objects and of the value, from 0."""

    def label(self, column: int) -> str:
        """Return a column's name for messages."""
        return f"column {column + 1}" + (f" ({shown(self.names[column])})" if self.names else "")


@dataclass(frozen=True)
class Lines:
    """Some lines of a text."""

    number: int
    raw: Array
    """Their bytes, the last of them a newline."""
    count: int
    """How many they are, at most."""

    @property
    def text(self) -> bytes:
        """The text with plain newlines."""
        return streams.plain(self.raw.tobytes())

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that hold a pair, with their numbers."""
        for number, line in enumerate(self.text[:-1].split(b"\n"), self.number):
            if line.strip() and not line.startswith(b"#"):
                yield number, line

    def where(self, row: int) -> str:
        """Return where the pair `row` is."""
        return f"line {next(islice(self.rows(), row, None))[0]}"


def _text_parts(path: Path, stream: streams.Stream, reading: Reading, spare: streams.BufferPool) -> Iterator[Part]:
    texts = streams.BufferPool()
    # A large list is read in larger parts: each becomes a run, and a block is gathered from all runs.
    blocks = stream.blocks(min(max(CHUNK, path.stat().st_size // 1024), 4 * CHUNK), texts)
    comment = None
    start: list[tuple[int, bytes]] = []
    for lines in (Lines(*block) for block in blocks):
        for here, line in _lines(lines.number, lines.raw.tobytes()):
            if line.startswith(b"#") and not start:
                comment = line  # the last one above the pairs may name the columns
            elif line.strip() and not line.startswith(b"#"):
                start.append((here, line))
            if len(start) == 2:
                break
        if start:
            break
    else:
        raise InputError(f"{path_text(path)}: there are no pairs in it (n = 0)")
    layout, has_header = _layout(path, start, comment, reading)
    if has_header:
        begin = start[0][0] + 1
        left = lines.raw.tobytes().split(b"\n", begin - lines.number)[-1]
        lines = replace(lines, number=begin, raw=lines.raw[lines.raw.size - len(left) :])

    def work(some: Lines) -> tuple[Lines, Part | None]:
        return some, _parse(layout, some, spare)

    for done, part in in_order(work, chain([lines], (Lines(*block) for block in blocks))):
        if part is not None:
            yield part
        if done.raw.base is not None:
            texts.give(done.raw.base)


def _lines(number: int, text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text and their numbers one at a time; only the first few may be needed."""
    begin = 0
    while (end := text.find(b"\n", begin)) >= 0:
        yield number, text[begin:end].removesuffix(b"\r")
        number, begin = number + 1, end + 1


def _layout(
    path: Path, start: list[tuple[int, bytes]], comment: bytes | None, reading: Reading
) -> tuple[ListLayout, bool]:
    """Return how the list is laid out, and whether its first line is a header."""
    first, second = start[0][1], start[1][1] if len(start) > 1 else None
    delimiter = find_delimiter(first, second)
    row = [decoded(field, path, start[0][0]) for field in fields(first, delimiter)]
    width = len(row)
    names: list[str] | None = row
    wanted = reading.columns or (1, 2, 3)
    by_name = [name for name in wanted if _as_number(name) is None]
    has_header = any(name in row for name in by_name)
    if not by_name:
        value = _as_number(wanted[2]) or 0
        value_field = row[value - 1].encode() if 1 <= value <= width else b"0"
        has_header = not is_number(value_field) and not has_decimal_comma(value_field)
    if not has_header:
        described = [] if comment is None else [field.decode("utf-8", "replace").strip() for field in
                                           fields(comment.lstrip(b"#"), delimiter)]  # fmt: skip
        names = described if len(described) == width else list(KNOWN[width]) if width in KNOWN else None
    chosen = choose(path, wanted, names, width)
    return ListLayout(path, delimiter, names, width, chosen), has_header


def choose(
    path: Path, wanted: tuple[str | int, str | int, str | int], names: list[str] | None, width: int
) -> tuple[int, int, int]:
    """Return the three columns by their number from 0."""
    there = f"columns 1 to {width}" + (f": {some([shown(name) for name in names], show=20)}" if names else ", no names")
    chosen = []
    for column in wanted:
        number = _as_number(column)
        if names is not None and str(column) in names:
            number = names.index(str(column)) + 1
        if number is None or not 1 <= number <= width:
            raise InputError(
                f"{path_text(path)}: no column {shown(column)}; there are {there}",
                remedy="a list of pairs needs two objects and a value, chosen by {Reading.columns}",
            )
        chosen.append(number - 1)
    if len(set(chosen)) < 3:
        raise InputError(
            f"{path_text(path)}: {some(wanted)} are not three different columns", remedy=f"there are {there}"
        )
    return chosen[0], chosen[1], chosen[2]


def _as_number(column: str | int) -> int | None:
    return column if isinstance(column, int) else int(column) if column.isdecimal() else None


def _parse(layout: ListLayout, lines: Lines, spare: streams.BufferPool) -> Part | None:
    part = _parse_plain(layout, lines.raw, lines, spare)
    if part is None and streams.library() is not None and (text := _made_plain(layout, lines.text)) is not None:
        part = _parse_plain(replace(layout, delimiter=layout.delimiter or b"\t"), text, lines, spare)
    return _parse_slowly(layout, lines) if part is None else part


def _made_plain(layout: ListLayout, text: bytes) -> Array | None:
    """Return a text without quotes around whole fields, and with single delimiters; None if it has other quotes."""
    if b'"' in text:
        if layout.delimiter is None or b'"#' in text or b'""' in text:
            return None
        characters = np.frombuffer(text, np.uint8)
        quotes, ends = characters == ord('"'), (characters == ord("\n")) | (characters == layout.delimiter[0])
        inside = np.bitwise_xor.accumulate(quotes)
        opens, closes = quotes & inside, quotes & ~inside
        if (inside & ends).any() or (opens[1:] & ~ends[:-1]).any() or (closes[:-1] & ~ends[1:]).any():
            return None  # delimiters in quotes, or quotes within a field
        text = text.replace(b'"', b"")
    elif layout.delimiter is None:
        text = b"".join(b"\t".join(line.split()) + b"\n" for line in text[:-1].split(b"\n"))
    return np.frombuffer(text, np.uint8)


def _parse_plain(layout: ListLayout, raw: Array, lines: Lines, spare: streams.BufferPool) -> Part | None:
    """Parse ordinary lines with the compiled reader; None if one is not, or there is no compiled reader."""
    library = streams.library()
    if library is None or layout.delimiter is None or not raw.size:
        return None
    room = lines.count
    memory = spare.take(32 * room)
    values, first, second = memory[: 8 * room], memory[8 * room : 12 * room], memory[12 * room : 16 * room]
    spans, counts = memory[16 * room : 32 * room].view(np.int32), np.empty(2, np.int64)
    columns = np.array([layout.delimiter[0], layout.width, *layout.chosen], np.int64)
    done = library.dasrel_read_pairs(
        raw.ctypes.data, raw.size, columns.ctypes.data, MISSING_WORDS, room, first.ctypes.data, second.ctypes.data,
        values.ctypes.data, spans.ctypes.data, counts.ctypes.data,
    )  # fmt: skip
    if not done:
        spare.give(memory)
        return None
    rows, count = counts.tolist()
    begins, ends = spans[: 2 * count : 2], spans[1 : 2 * count : 2]
    text = raw[: ends.max(initial=0)].tobytes()
    names: list[bytes | str] = [text[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    left, right = (names, first.view(np.int32)[:rows]), (names, second.view(np.int32)[:rows])
    return Part(left, right, values.view(np.float64)[:rows], lines.where, partial(spare.give, memory))


def _parse_slowly(layout: ListLayout, lines: Lines) -> Part | None:
    """Parse field by field what the compiled reader does not take, and name the line of a field that is wrong.

    Some 1.5 microseconds per pair, where the compiled reader takes 0.05.
    """
    path = path_text(layout.path)
    columns: tuple[list[bytes], list[bytes], list[float]] = ([], [], [])
    first, second, value = layout.chosen
    for number, line in lines.rows():
        row = fields(line, layout.delimiter)
        if len(row) != layout.width:
            raise InputError(
                f"{path}: line {number} has {count_text(len(row), 'field')} where {layout.width} are expected, as in"
                " the first line",
                remedy="fix or drop it",
            )
        if not is_number(row[value]):
            raise InputError(
                f"{path}: line {number}, {layout.label(value)}: {not_a_number(row[value])}",
                remedy="fix it, or choose another column by {Reading.columns}",
            )
        columns[0].append(row[first])
        columns[1].append(row[second])
        columns[2].append(as_number(row[value]))
    if not columns[0]:
        return None
    return Part(_coded(columns[0]), _coded(columns[1]), np.array(columns[2], dtype=np.float64), lines.where)


def _coded(names: list[bytes]) -> Coded:
    codes: dict[bytes, int] = {}
    coded = np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int32)
    return list(codes), coded


@dataclass
class Objects:
    """The objects found so far, numbered in the order in which they appear, or as the user gave them."""

    path: Path
    given: bool
    numbers: dict[str, int] = field(default_factory=dict)

    _known: dict[bytes | str, int] = field(default_factory=dict)
    """The number of each name as the list spells it."""

    def numbered(self, part: Part) -> tuple[Array, Array]:
        """Return the objects' numbers by the codes of the part's first and second column."""
        try:
            return self._numbers(part)
        except KeyError:
            self._meet(part)
            return self._numbers(part)

    def _numbers(self, part: Part) -> tuple[Array, Array]:
        (names, _), (others, _) = part.first, part.second
        first = np.array([self._known[raw] for raw in names], np.int32)
        return first, first if others is names else np.array([self._known[raw] for raw in others], np.int32)

    def _meet(self, part: Part) -> None:
        """Number the names that are new, in the order in which they appear in the list."""
        new: list[tuple[int, bytes | str]] = []
        for which, (names, codes) in enumerate((part.first, part.second)):
            place = np.full(len(names), -1)
            place[codes[::-1]] = np.arange(codes.size - 1, -1, -1)  # the last to be written is the first row
            met_here = zip(names, place.tolist(), strict=True)
            new.extend((2 * k + which, raw) for raw, k in met_here if k >= 0 and raw not in self._known)
        for met, raw in sorted(new):
            name = self._decoded(raw, part, met)
            if self.given and name not in self.numbers:
                raise InputError(
                    f"{path_text(self.path)}: {part.where(met // 2)}: {shown(name)} is not among the given ids",
                    remedy="add it there, or drop it here",
                )
            self._known[raw] = self.numbers.setdefault(name, len(self.numbers))

    def _decoded(self, raw: bytes | str, part: Part, met: int) -> str:
        wrong = "is empty; give every object a name"
        try:
            name = raw.strip() if isinstance(raw, str) else raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            name, wrong = "", "is not UTF-8 text; convert the file, for instance with iconv"
        if not name:
            which = ("first", "second")[met % 2]
            raise InputError(f"{path_text(self.path)}: {part.where(met // 2)}: the id of the {which} object {wrong}")
        return name


def open_pairs(path: str | Path, reading: Reading, kind: str, policy: Policy) -> SequentialSource:
    """Open a list of pairs in text, gzipped or not."""
    return open_list(Path(path), reading, kind, policy, _read_text)


def open_list(path: Path, reading: Reading, kind: str, policy: Policy, read: Read) -> SequentialSource:
    """Return the source of a list of pairs.

    Pairs may be absent, listed in one direction or both, and repeated (`policy.duplicates`). Objects are in the
    order in which they first appear, or as given by `reading.ids`.

    Cost: nothing is read; `spool` reads the list once, writes 16 bytes a pair, and takes at most some 400 MB of memory.
    """

    def spool(folder: Path) -> Source:
        facts = spool_once(folder, provenance_of(path), reading, kind, lambda: _spool(path, reading, folder, read))
        ids, zero = facts["ids"], not is_similarity(kind)
        if is_similarity(kind) and isinstance(policy.diagonal, str) and facts.get("count_without_self"):
            without = some(list(map(shown, facts["without_self"])), total=facts["count_without_self"])
            raise InputError(
                f"{path_text(path)}: kind {kind} needs each object's value with itself, and {without} have none",
                remedy="say {Policy.diagonal=VALUE} if all have the same, or add a pair of each object with itself",
            )
        return TripletSource(
            Records(folder, facts["bounds"]), len(ids), provenance_of(path), facts["mirrored"], np.nan, zero,
            duplicates=policy.duplicates, ids=ids, local=True, checksum=facts["checksum"],
        )  # fmt: skip

    reason = f"is a list of pairs ({reading.format})"
    return SequentialSource(None, False, provenance_of(path), reason, spool, None, triplet_memory)


def _read_text(path: Path, reading: Reading, add: Callable[[Part], None]) -> str | None:
    """Add the rows of a text, some MB at a time, and return its checksum."""
    spare = streams.BufferPool()
    with closing(streams.Stream(path)) as stream:
        for part in _text_parts(path, stream, reading, spare):
            add(part)
        return stream.checksum()


def _spool(path: Path, reading: Reading, scratch: Path, read: Read) -> dict[str, Any]:
    name = path_text(path)
    given = given_ids(reading.ids)
    objects = Objects(path, given is not None)
    if given is not None:
        objects.numbers = {object_id: k for k, object_id in enumerate(given)}
        if len(objects.numbers) < len(given) or "" in objects.numbers:
            raise InputError("the given ids have an empty or a repeated name", remedy="give each object its own")

    def add(part: Part) -> None:
        limits.check()
        writer.add((part.first[1], part.second[1]), part.values, objects.numbered(part), part.release)

    with closing(RecordWriter(scratch)) as writer:
        checksum = read(path, reading, add)
        records = writer.finish()
    n = len(objects.numbers)
    if n == 0:
        raise InputError(f"{name}: there are no pairs in it (n = 0)")
    without = [object_id for object_id, k in objects.numbers.items() if k not in writer.has_self]
    facts = {
        "ids": list(objects.numbers), "bounds": records.bounds, "checksum": checksum, "mirrored": False,
        "without_self": without[:10], "count_without_self": len(without),
    }  # fmt: skip
    if writer.above and writer.below:
        facts["mirrored"] = has_both_directions(records, n)
    return facts
