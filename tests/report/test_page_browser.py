"""Pages in a real browser, Chromium: no errors, no network, tables that work, two colour schemes, hostile names."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import dasrel
from tests.helpers.matrices import blobs, distances
from tests.helpers.processes import ran
from tests.helpers.stores import stored

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here; .ci/chromium install gets it")
HOSTILE = [
    '<script>document.title="broken"</script>',
    'a"b',
    "two\nlines",
    "'><img src=x onerror=\"document.title='x'\">",
]


class Visit:
    """A page in a tab of its own, and all that it complains about or asks for."""

    def __init__(self, browser: Any, path: Path, **more: Any) -> None:
        self.context = browser.new_context(accept_downloads=True, **more)
        self.tab = self.context.new_page()
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.trouble.append(message.text))
        self.tab.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(path.as_uri())

    def table(self, name: str) -> Any:
        return self.tab.locator(f'.table[data-name="{name}"]').first

    def column(self, name: str, heading: str) -> list[str]:
        """The values of a column in the rows that are seen, top to bottom."""
        return self.tab.evaluate(
            """([name, heading]) => {
                const block = document.querySelector(`.table[data-name="${name}"]`);
                const at = Array.from(block.querySelectorAll("th"), (th) => th.textContent).indexOf(heading);
                const rows = Array.from(block.querySelectorAll("tbody tr")).filter((row) => row.offsetParent !== null);
                return rows.map((row) => row.cells[at].dataset.v ?? row.cells[at].textContent);
            }""",
            [name, heading],
        )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about a clustering of three settings and a tree, whose first objects have hostile names."""
    home = tmp_path_factory.mktemp("browser")
    points = blobs(15, [[0, 0], [9, 0], [12, 4]])
    ids = HOSTILE + [f"object{k}" for k in range(len(points) - len(HOSTILE))]
    stored(home / "d.zarr", distances(points), ids=ids, tile=16)
    assert (
        ran("cluster", home / "d.zarr", home / "k", "--clusters", "2-4", "--rule", "fcm1", "--fuzzifier", 2, "-q") == 0
    )
    assert ran("tree", home / "d.zarr", home / "tree", "-q") == 0
    return dasrel.write_report([home / "k", home / "tree"], home / "page.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of this file."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, page: Path) -> Iterator[Visit]:
    opened = Visit(browser, page)
    yield opened
    assert opened.trouble == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [page.as_uri()]
    opened.context.close()


def test_tables_sort_both_ways(visit: Visit) -> None:
    before = visit.column("longest-edges", "weight")
    assert before == sorted(before, key=float, reverse=True)
    button = visit.table("longest-edges").get_by_role("button", name="weight")
    button.click()
    rising = visit.column("longest-edges", "weight")
    assert rising == sorted(before, key=float)
    head = visit.table("longest-edges").locator("th", has_text="weight")
    assert head.get_attribute("aria-sort") == "ascending"
    button.focus()
    visit.tab.keyboard.press("Enter")  # the keyboard does what the mouse does
    assert visit.column("longest-edges", "weight") == before
    assert head.get_attribute("aria-sort") == "descending"


def test_tables_filter(visit: Visit) -> None:
    block = visit.table("longest-edges")
    wanted = [name for name in visit.column("longest-edges", "first") if name == "object7"]
    either = visit.column("longest-edges", "second").count("object7") + len(wanted)
    block.get_by_role("searchbox").fill("object7")
    seen = list(zip(visit.column("longest-edges", "first"), visit.column("longest-edges", "second"), strict=True))
    assert len(seen) == either > 0
    assert all("object7" in pair for pair in seen)
    assert block.locator(".count").text_content() == f"{either} of 44 rows"
    block.get_by_role("searchbox").fill("")
    assert len(visit.column("longest-edges", "first")) == 44


def test_tables_download_what_is_shown_and_all(visit: Visit, page: Path) -> None:
    with visit.tab.expect_download() as waiting:
        visit.table("longest-edges").get_by_role("button", name="Download as CSV").click()
    header, *rows = csv.reader(io.StringIO(waiting.value.path().read_text(), newline=""))
    assert waiting.value.suggested_filename == "longest-edges.csv"
    assert header == ["first", "second", "weight"]
    with (page.parent / "tree" / "edges.csv").open(newline="") as file:
        _, *edges = csv.reader(file)
    assert rows == edges[::-1]  # the names with quotes, line breaks and markup too
    with visit.tab.expect_download() as waiting:
        visit.tab.get_by_role("link", name="Download edges.csv").click()
    assert waiting.value.path().read_bytes() == (page.parent / "tree" / "edges.csv").read_bytes()


def test_hostile_names_do_nothing(visit: Visit) -> None:
    assert visit.tab.title().startswith("page:")
    names = visit.column("longest-edges", "first") + visit.column("longest-edges", "second")
    assert set(HOSTILE) <= set(names)
    assert visit.tab.evaluate("document.querySelectorAll('script').length") == 1
    assert visit.tab.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    # What is in the page may not run even if it were code: the policy of the page knows one script.
    visit.tab.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.bad = 1'}))"
    )
    assert visit.tab.evaluate("window.bad") is None
    assert len(visit.trouble) == 1
    assert "Content Security Policy" in visit.trouble.pop()


def test_dark_and_light(browser: Any, page: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        opened = Visit(browser, page, color_scheme=scheme)
        colours[scheme] = opened.tab.evaluate(
            """() => [document.body, document.querySelector(".drawing svg text"), document.querySelector(".scroll")]
                .map((one) => [getComputedStyle(one).backgroundColor, getComputedStyle(one).color,
                               getComputedStyle(one).fill])"""
        )
        assert opened.trouble == []
        opened.context.close()
    (light, text, _), (dark, dark_text, _) = colours["light"], colours["dark"]

    def brightness(colour: str) -> float:
        return sum(json.loads(colour.replace("rgb(", "[").replace(")", "]"))) / 3

    assert brightness(light[0]) > 200 > 60 > brightness(dark[0])
    assert brightness(light[1]) < 60 < 200 < brightness(dark[1])
    assert brightness(text[2]) < 60 < 200 < brightness(dark_text[2])  # text in drawings follows


def test_a_phone_and_paper(browser: Any, page: Path) -> None:
    opened = Visit(browser, page, viewport={"width": 390, "height": 800})
    wide = opened.tab.evaluate("document.documentElement.scrollWidth")
    assert wide == 390  # tables and drawings scroll in their frames, the page does not
    assert opened.tab.locator("nav details").get_attribute("open") is None
    opened.tab.emulate_media(media="print")
    assert not opened.tab.locator("nav").is_visible()
    assert not opened.tab.locator(".tools").first.is_visible()
    assert opened.trouble == []
    opened.context.close()


def test_without_its_script_everything_is_read(browser: Any, page: Path) -> None:
    opened = Visit(browser, page, java_script_enabled=False)
    assert opened.tab.get_by_role("heading", name="Silhouettes").is_visible()
    assert not opened.tab.locator(".tools").first.is_visible()
    assert opened.tab.get_by_role("link", name="Download edges.csv").is_visible()
    opened.context.close()


def test_everything_has_a_name(visit: Visit) -> None:
    """Pictures have texts, tables and their frames have names, and headings go down one level at a time."""
    assert visit.tab.evaluate("Array.from(document.images).every((image) => image.alt.length > 20)")
    assert visit.tab.evaluate(
        """Array.from(document.querySelectorAll(".drawing svg"))
            .every((svg) => svg.parentElement.getAttribute("aria-label").length > 20)"""
    )
    levels = visit.tab.evaluate("Array.from(document.querySelectorAll('h1,h2,h3'), (one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = visit.tab.evaluate("Array.from(document.querySelectorAll('[id]'), (one) => one.id)")
    assert len(ids) == len(set(ids))
    links = visit.tab.evaluate("Array.from(document.querySelectorAll('a[href^=\"#\"]'), (one) => one.hash.slice(1))")
    assert set(links) <= set(ids)
