"""HTML for notebooks and pages: cards of facts, tables and bars. All text is escaped here.

Styles are attributes of the elements, because notebooks that are not trusted, and pages that show them, remove others;
colours are those of the page around, light or dark.

>>> card("Matrix", [("objects", 3), ("ids", "a, <b>")])
'<div style="...">...Matrix...objects...3...a, &lt;b&gt;...</div>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from dasrel.util.text import redacted, shown

_LINE = "1px solid rgba(128,128,128,0.35)"
_CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top;border:0;background:none"
_BAR = "display:inline-block;height:0.7em;background:rgba(31,119,180,0.75)"


class Html(str):
    """Text that is HTML already; everything else is escaped where it is used."""


def text(value: object, *, limit: int = 400) -> Html:
    """Return a value as text for HTML: control characters and markup escaped, passwords hidden, long strings cut."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(shown(redacted(str(value)), limit=limit)))


def card(title: object, facts: Iterable[tuple[object, object]], *parts: Html) -> Html:
    """Return a framed block: a title, lines of names and values, and further parts such as tables."""
    lines = [_row((Html(f'<span style="opacity:0.7">{text(name)}</span>'), value)) for name, value in facts]
    listed = _table(lines, "0") if lines else ""
    frame = f"display:inline-block;max-width:100%;overflow-x:auto;border:{_LINE};border-radius:6px;padding:8px 12px"
    inner = "".join([f'<div style="font-weight:bold">{text(title)}</div>', listed, *map(text, parts)])
    return Html(f'<div style="{frame}">{inner}</div>')


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table with a header."""
    names = "".join(f'<th style="{_CELL};border-bottom:{_LINE}">{text(name)}</th>' for name in header)
    return _table([f"<tr>{names}</tr>", *map(_row, rows)], "6px 0 0 0")


def bar(share: float, *, width: int = 120) -> Html:
    """Return a bar whose length is this share, 0 to 1, of the width in pixels."""
    return Html(f'<span style="{_BAR};width:{max(0.0, min(1.0, share)) * width:.0f}px"></span>')


def meter_line(share: float, label: object) -> Html:
    """Return a line of progress: a bar in a frame, and text."""
    frame = f"display:inline-block;width:200px;border:{_LINE};border-radius:3px;line-height:0;margin-right:10px"
    return Html(f'<div><span style="{frame}">{bar(share, width=200)}</span>{text(label)}</div>')


def _table(lines: Sequence[str], margin: str) -> Html:
    inner = "".join(lines)
    return Html(f'<table style="border-collapse:collapse;margin:{margin}">{inner}</table>')


def _row(cells: Iterable[object]) -> str:
    inner = "".join(f'<td style="{_CELL}">{text(cell)}</td>' for cell in cells)
    return f"<tr>{inner}</tr>"
