"""Time limits and SIGTERM."""

import os
import signal
import threading

import pytest

from dasrel import watch
from dasrel.errors import InputError
from dasrel.util import limits, progress
from dasrel.util.limits import duration_seconds


def test_durations():
    report = {"90s": 90, "30m": 1800, "2h": 7200, "1h30m": 5400, "00:20:00": 1200, "1-02:00:00": 93600, "1.5h": 5400}
    for text, expected in {**report, 7: 7, 0.5: 0.5}.items():
        assert duration_seconds(text) == expected
    for text in ("", "30", "h", "1h30", "10:30", "1:70:00", "-5s", -1, float("nan"), None, True, "1h 30m"):
        with pytest.raises(InputError, match="is no duration"):
            duration_seconds(text)


def test_limits_inside_each_other():
    with limits.limited("1h") as outer, limits.limited(5) as inner:
        assert outer.reason(4000) == "the time limit of 60 min"
        assert inner.reason(100) == "the time limit of 5 s"
        assert inner.reason() == ""
        outer.signalled = True
        assert inner.reason() == "SIGTERM"
    assert limits.current().reason(1e9) == ""


def test_the_listener_gives_back_who_listened_before():
    before = signal.getsignal(signal.SIGTERM)
    with limits.listening():
        assert signal.getsignal(signal.SIGTERM) is not before
        limits.check()
        os.kill(os.getpid(), signal.SIGTERM)  # and nothing is raised here
        with pytest.raises(limits.Terminated):
            limits.check()
    assert signal.getsignal(signal.SIGTERM) is before
    with limits.listening() as stop:
        with limits.defer_stop():
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.reason() == "SIGTERM"
            limits.check()
        with pytest.raises(limits.Terminated):
            limits.check()


def test_waiting_ends_at_sigterm_and_passes_on_results_and_errors():
    def failed():
        raise KeyError("a")

    begun, end = threading.Event(), threading.Event()

    def endless():
        begun.set()
        end.wait()

    for listens in (limits.listening, lambda: limits.limited(None)):
        with listens():
            assert limits.waited(divmod, 7, 2) == (3, 1)
            with pytest.raises(KeyError, match="a"):
                limits.waited(failed)
            with watch() as mine:
                assert limits.waited(progress.current) is mine
    killer = threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGTERM)))
    killer.start()
    with limits.listening(), pytest.raises(limits.Terminated):
        limits.waited(endless)
    killer.join()
    end.set()
