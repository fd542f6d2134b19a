"""Time limits and SIGTERM."""

import os
import signal

import pytest

from dasrel import stopping
from dasrel.errors import InputError


def test_durations():
    told = {"90s": 90, "30m": 1800, "2h": 7200, "1h30m": 5400, "00:20:00": 1200, "1-02:00:00": 93600, "1.5h": 5400}
    for text, expected in {**told, 7: 7, 0.5: 0.5}.items():
        assert stopping.seconds(text) == expected
    for text in ("", "30", "h", "1h30", "10:30", "1:70:00", "-5s", -1, float("nan"), None, True, "1h 30m"):
        with pytest.raises(InputError, match="is no duration"):
            stopping.seconds(text)


def test_limits_inside_each_other():
    with stopping.limited("1h") as outer, stopping.limited(5) as inner:
        assert outer.reason(4000) == "the time limit of 1h"
        assert inner.reason(100) == "the time limit of 5 s"
        assert inner.reason() == ""
        outer.signalled = True
        assert inner.reason() == "SIGTERM"
    assert stopping.current().reason(1e9) == ""


def test_the_listener_gives_back_who_listened_before():
    before = signal.getsignal(signal.SIGTERM)
    with stopping.listening():
        assert signal.getsignal(signal.SIGTERM) is not before
        with pytest.raises(stopping.Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    with stopping.listening() as stop, stopping.kept():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason() == "SIGTERM"
