"""Drawing progress: what is shown, where, and how often."""

import io
import sys
import threading
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist

import dasrel
from dasrel.util.drawing import Drawing, in_notebook, line, share_done, time_left
from dasrel.util.progress import Iterations, Progress, watch


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


def test_time_left_is_that_of_the_job_where_iterations_are_limited() -> None:
    """After two and a half of ten iterations in 50 s, 7.5 more take 150 s."""
    at = Progress("scan", 3, 5, 10, 0, 0, 10.0, "iteration 3 of at most 10", Iterations(3, 10, 2, 50.0))
    assert time_left(at) == "at most 2.5 min left"
    assert share_done(at) == pytest.approx(0.25)
    resumed = Progress("scan", 1, 0, 10, 0, 0, 0.0, "", Iterations(8, 10, 0, 0.0))
    assert time_left(resumed) == ""  # nothing is measured yet
    assert share_done(resumed) == pytest.approx(0.7)
    last = Progress("scan", 3, 10, 10, 0, 0, 10.0, "", Iterations(10, 10, 9, 50.0))
    assert time_left(last) == ""


def test_time_left_is_told_before_iterations_begin() -> None:
    """In the fifth of eleven expected scans, half done; then in the fifth scan of at most 104 in the same time."""
    expected, at = Iterations(5, 11, 4, 90.0), Iterations(5, 104, 4, 90.0)
    assert time_left(Progress("scan", 5, 5, 10, 0, 0, 10.0, "sample", None, expected)) == "some 2.2 min left"
    both = Progress("scan", 5, 5, 10, 0, 0, 10.0, "iteration 5", at, expected)
    assert time_left(both) == "some 2.2 min, at most 33 min left"


def test_scans_are_expected_until_iterations_have_ended() -> None:
    seen: list[Progress] = []
    with watch(seen.append), watch() as meter:
        meter.begin("scan", tiles=1, bytes=0, scan=True)
        meter.expect(3)
        for iteration in (0, 1, 0, 0):
            meter.say("", iteration=iteration, most=9 * iteration)
            meter.begin("scan", tiles=1, bytes=0, scan=True)
    positions = [None if event.expected is None else event.expected[:3] for event in seen]
    assert positions == [None, (1, 3, 0), (2, 3, 1), None, None]


def test_iterations_are_counted_from_where_they_began() -> None:
    seen: list[Progress] = []
    with watch(seen.append), watch() as meter:  # an inner block tells the outer ones
        for k in (5, 6):
            meter.say(f"iteration {k}", iteration=k, most=9)
            meter.begin("scan", tiles=1, bytes=1, scan=True)
        meter.say("silhouettes")
        meter.begin("scan", tiles=1, bytes=1, scan=True)
        meter.say("again", iteration=1, most=4)
        meter.begin("scan", tiles=1, bytes=1, scan=True)
    positions = [None if one.iterations is None else one.iterations[:3] for one in seen]
    assert positions == [(5, 9, 0), (6, 9, 1), None, (1, 4, 0)]
    assert seen[1].iterations is not None
    assert seen[1].iterations.seconds > 0


def points() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 2))


def test_progress_in_plain_python() -> None:
    stream = io.StringIO()
    with dasrel.progress(stream, every=0) as totals:
        found = dasrel.cluster(
            pdist(points()), dasrel.Run("fcm1", 3, fuzzifier=2, init="random", max_iter=500), kind="distance"
        )
        dasrel.import_matrix(pdist(points()), kind="distance")
    text = stream.getvalue().splitlines()
    assert totals.scans == found.scans
    assert text[0].startswith("check: 0 of ")
    assert any(line.startswith("scan: 0 of 1 tile, iteration 1 of at most 500, 1 run active") for line in text)
    assert any(" left, iteration 2 of at most 500" in line for line in text)
    assert text[-1].startswith("import: ")
    assert "iteration" not in text[-1]  # which ended with the clustering


def test_progress_is_drawn_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with dasrel.progress(every=0):
        dasrel.spectrum(pdist(points()), kind="distance")
    shown = capsys.readouterr()
    assert "scan 2: " in shown.err
    assert shown.out == ""


class Displayed:
    """What a front end shows: IPython's `display` with an id returns a handle by which it is replaced."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def display(self, thing: Any, *, display_id: bool) -> Any:
        assert display_id
        self.shown.append(thing)
        return self

    def update(self, thing: Any) -> None:
        self.shown.append(thing)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Displayed:
    """A process that is the kernel of a notebook."""
    front = Displayed()
    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = front.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return front


def test_progress_in_a_notebook(notebook: Displayed, capsys: pytest.CaptureFixture[str]) -> None:
    with dasrel.progress() as totals:
        dasrel.cluster(pdist(points()), dasrel.Run("fcm1", 3, fuzzifier=2, init="random"), kind="distance")
    first, last = notebook.shown[0], notebook.shown[-1]
    assert repr(first).startswith("check: 0 of ")
    assert repr(last).startswith(f"{totals.scans} scans, ")
    assert 'width:200px"></span></span>' in last._repr_html_()  # the bar is full
    assert len(notebook.shown) < 5 + 10 * totals.scans  # far fewer where scans are short
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_nothing_is_displayed_where_nothing_was_done(notebook: Displayed) -> None:
    with dasrel.progress():
        pass
    assert notebook.shown == []


def test_a_failure_ends_the_bar(notebook: Displayed) -> None:
    with suppress(ValueError), dasrel.progress() as totals:
        totals.begin("scan", tiles=10, bytes=10, scan=True)
        raise ValueError("no")
    count = len(notebook.shown)
    totals.begin("scan", tiles=10, bytes=10, scan=True)
    assert len(notebook.shown) == count


@pytest.mark.parametrize("shell", [None, SimpleNamespace(), SimpleNamespace(kernel=None)])
def test_a_shell_is_no_notebook(monkeypatch: pytest.MonkeyPatch, shell: Any) -> None:
    package = ModuleType("IPython")
    package.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    assert not in_notebook()
