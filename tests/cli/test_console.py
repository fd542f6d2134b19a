"""Drawing progress: what is shown, where, and how often."""

import io
import threading

import pytest

from dasrel.cli.console import Drawing, line, time_left
from dasrel.util.progress import Progress, watch


def event(tiles: int, total: int = 10, label: str = "import", scans: int = 0) -> Progress:
    return Progress(label, scans, tiles, total, tiles * 10**9, total * 10**9, 2.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_say_tiles_speed_and_time_left() -> None:
    stream = io.StringIO()
    with Drawing(stream, every=0) as draw:
        draw(event(4))
    assert stream.getvalue() == "import: 4 of 10 tiles, 2 GB/s, 3 s left\n"


def test_plain_lines_come_every_few_seconds_only() -> None:
    stream = io.StringIO()
    with Drawing(stream, every=1000) as draw:
        for k in range(10):
            draw(event(k))
    assert stream.getvalue() == ""


def test_a_late_event_of_another_thread_does_not_turn_time_back() -> None:
    stream = io.StringIO()
    with Drawing(stream, every=0) as draw:
        for tiles in (0, 2, 1, 3):
            draw(event(tiles))
        draw(event(0, label="scan", scans=2))
    shown = [text.split(" tiles")[0] for text in stream.getvalue().splitlines()]
    assert shown == ["import: 0 of 10", "import: 2 of 10", "import: 3 of 10", "scan 2: 0 of 10"]


def test_nothing_is_drawn_after_the_end() -> None:
    stream = io.StringIO()
    draw = Drawing(stream, every=0)
    with draw:
        pass
    draw(event(3))
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Drawing(stream) as draw:
        draw(event(0))
        draw(Progress("scan", 3, 5, 10, 6 * 10**9, 12 * 10**9, 4.0, note="[b]7[/b] runs"))
    drawn = stream.getvalue()
    for part in ("scan 3", "5 of 10 tiles", "1.5 GB/s", "4 s left", "[b]7[/b] runs", "━"):
        assert part in drawn
    assert drawn.endswith("\x1b[2K")  # the line is wiped


def test_events_from_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Drawing(stream) as draw, watch(draw) as meter:
        step = meter.begin("scan", tiles=400, bytes=400, scan=True)
        threads = [threading.Thread(target=lambda: [step.add(bytes=1) for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert draw._most == 400
    assert (meter.scans, meter.tiles, meter.bytes) == (1, 400, 400)


def test_no_speed_and_no_time_before_the_first_tile() -> None:
    assert line(event(0)) == "import: 0 of 10 tiles"
    assert time_left(event(10)) == ""
