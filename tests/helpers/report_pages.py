"""Read a page of results as a reader does: headings, statements, tables, pictures, commands and downloads."""

import base64
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "img", "input", "br", "link"}


@dataclass
class Page:
    """What a page shows."""

    size: int = 0
    """In bytes."""
    headings: list[str] = field(default_factory=list)
    statements: list[tuple[str, str]] = field(default_factory=list)
    """Level and text of the verdicts."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    """By name: the header, and the rows with the values that are downloaded."""
    shown: dict[str, list[list[str]]] = field(default_factory=dict)
    """The rows as they are shown."""
    commands: list[str] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    alts: list[str] = field(default_factory=list)
    downloads: dict[str, bytes] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    scripts: int = 0
    addresses: list[str] = field(default_factory=list)
    """What the page refers to, but for its own parts and data."""
    text: str = ""

    def said(self, *words: str) -> bool:
        """Whether one of the statements has all of these words."""
        return any(all(word in text for word in words) for _, text in self.statements)


def read_page(path: Path) -> Page:
    """Read a page; raise if its elements are not closed in order."""
    data = Path(path).read_bytes()
    reader = _Reader()
    reader.feed(data.decode("utf-8"))
    reader.close()
    assert not reader.open, f"not closed: {[tag for tag, *_ in reader.open]}"
    reader.page.size = len(data)
    return reader.page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.name = ""
        self.open: list[tuple[str, dict[str, str], list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        page = self.page
        page.tags.add(tag)
        page.scripts += tag == "script"
        for name in ("href", "src"):
            place = given.get(name, "")
            if place.startswith("data:") and "download" in given:
                page.downloads[given["download"]] = base64.b64decode(place.partition("base64,")[2])
            elif place and not place.startswith(("#", "data:")):
                page.addresses.append(place)
        if tag == "img" or given.get("role") == "img":
            alt = given.get("alt", given.get("aria-label", ""))
            page.alts += [] if "mark" in given.get("class", "") else [alt]
        if tag == "div" and given.get("class") == "table":
            self.name = given["data-name"]
            page.tables[self.name], page.shown[self.name] = [], []
        if tag == "tr" and self.in_table():
            page.tables[self.name].append([])
            page.shown[self.name].append([])
        if tag not in VOID and not tag.startswith(("use", "path", "image")):
            self.open.append((tag, given, []))

    def in_table(self) -> bool:
        """Whether this is inside a table of a section, and not in a summary card."""
        return any(given.get("class") == "table" for _, given, _ in self.open)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.add(tag)

    def handle_data(self, data: str) -> None:
        for _, _, texts in self.open:
            texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID or tag.startswith(("use", "path", "image")):
            return
        name, given, texts = self.open.pop()
        assert name == tag, f"<{name}> is closed by </{tag}>"
        page, text = self.page, "".join(texts).strip()
        kind = given.get("class", "")
        if tag in ("h1", "h2", "h3"):
            page.headings.append(text)
        elif tag == "li" and kind:
            page.statements.append((kind, text[1:].strip()))  # after the mark
        elif tag == "p" and kind.startswith("note"):
            page.notes.append((kind.removeprefix("note "), text))
        elif tag in ("td", "th") and self.in_table():
            page.tables[self.name][-1].append(given.get("data-v", text))
            page.shown[self.name][-1].append(text)
        elif tag == "pre":
            page.commands.append(text)
        elif tag == "figcaption":
            page.captions.append(text)
        elif tag == "body":
            page.text = text
