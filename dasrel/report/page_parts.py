"""The parts that a page is made of: statements, facts, tables, pictures and sections; plain values, no HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dasrel.util.text import path_text, redacted, shown

CELL, RAW = 80, 300
"""Characters of a text that a table shows, and that its CSV file has: names may have ten thousand."""
LEVELS = ("good", "caution", "bad", "info")
"""What a statement or a note means for the reader."""


class Cell(NamedTuple):
    """A value of a table, as it is shown and as it is sorted and downloaded."""

    text: str
    raw: str
    is_number: bool


def cell(value: Any) -> Cell:
    """Return a value as a cell: numbers rounded where they are shown, texts cut and made safe to print.

    >>> cell(1234567), cell(0.123456789).text, cell(True).text, cell(None).text
    (Cell(text='1,234,567', raw='1234567', is_number=True), '0.1235', 'yes', '')
    """
    if isinstance(value, Cell):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell("", "", False)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", "true" if value else "false", False)
    if isinstance(value, int):
        return Cell(f"{value:,}", str(value), True)
    if isinstance(value, float):
        return Cell(f"{value:.4g}", repr(value), True)
    text = redacted(str(value))
    return Cell(shown(text, limit=CELL), text if len(text) <= RAW else text[: RAW - 3] + "...", False)


def percent(share: float) -> Cell:
    """Return a share as a cell.

    >>> percent(0.1234)
    Cell(text='12.3%', raw='0.1234', is_number=True)
    """
    return Cell(f"{share:.1%}", repr(float(share)), True)


def sentence(text: object) -> Cell:
    """Return text of people, such as a message, as a cell that shows all of it."""
    raw = redacted("" if text is None else str(text))
    return Cell(shown(raw, limit=RAW), raw[:RAW], False)


@dataclass
class Table:
    """A table with all rows that the page may show; `total` counts those of its file."""

    name: str
    """Of the CSV file that it is downloaded as, without suffix."""
    header: Sequence[str]
    rows: list[list[Cell]]
    caption: str = ""
    """How to read it."""
    total: int = 0
    file: str | None = None
    """The file that has all rows and columns."""
    whole: bytes | None = None
    """The content of that file, where it is small."""
    kind: str = "table"

    def cut(self, most: int) -> None:
        """Keep the first rows only."""
        self.rows = self.rows[:most]

    @property
    def is_cut(self) -> bool:
        """Whether there are more rows than are shown."""
        return self.total > len(self.rows)


def table(name: str, header: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", **more: Any) -> Table:
    """Return a table of any values."""
    cells = [[cell(value) for value in row] for row in rows]
    return Table(name, header, cells, caption, **{"total": len(cells), **more})


@dataclass
class Picture:
    """A picture, what it shows for those who do not see it, and how to read it."""

    alt: str
    caption: str
    data: bytes
    form: Literal["png", "svg", "inline"]
    """`inline`: SVG that this program has drawn, whose colours follow the page; `svg`: a file of others."""
    file: str | None = None
    """The file that it is, or was drawn from."""
    kind: str = "picture"


@dataclass
class Facts:
    """Names and values, one below the other."""

    rows: list[tuple[str, str]]
    kind: str = "facts"


@dataclass
class Note:
    """A line of text, such as what is missing and why."""

    text: str
    level: str = "info"
    kind: str = "note"


@dataclass
class Code:
    """A command to be copied."""

    text: str
    kind: str = "code"


Block = Table | Picture | Facts | Note | Code


@dataclass
class Section:
    """A heading with blocks below it."""

    title: str
    blocks: list[Block]


@dataclass
class Statement:
    """A sentence of the verdict, and whether it is good news."""

    level: str
    text: str


@dataclass
class ResultPart:
    """One result on a page."""

    kind: str
    """Name of the result, such as "Clustering"."""
    where: str
    """Its folder or file."""
    headline: str
    verdict: list[Statement]
    facts: list[tuple[str, str]]
    """The summary card."""
    sections: list[Section]
    matrix: str | None = None
    """Digest of the matrix, where it is known: results of different matrices are shown apart."""
    n_objects: int | None = None
    anchor: str = field(default="")
    source: Any = None
    """What it was made from, where another part may be joined to it."""

    @staticmethod
    def of(source: Any, kind: str, headline: str, verdict: list[Statement], facts: list[tuple[str, str]],
           sections: list[Section]) -> ResultPart:  # fmt: skip
        """Return the part about a `Source`, whose values name its matrix and its number of objects."""
        about = path_text(source.path), headline, verdict, facts, sections
        return ResultPart(kind, *about, source.values.get("matrix"), source.values["n_objects"])
