"""Locks: one at a time, and those of the dead are taken over."""

import errno
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dasrel.util.files import LockedError, exclusive_lock, lock_owner, process_lives, this_process


def lock(path: Path, **more: Any) -> Any:
    return exclusive_lock(path, lambda owner: f"{owner} is at work", **more)


def test_a_lock_lets_one_in(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path):
        owner = json.loads(path.read_text())
        assert (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(LockedError, match=rf"process {os.getpid()} on .* is at work"), lock(path):
            pass
    assert list(tmp_path.iterdir()) == []
    assert lock_owner(path) is None


@pytest.mark.slow
def test_locks_of_the_dead_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    gone = subprocess.Popen(["true"])
    gone.wait()
    owner = {"pid": gone.pid, "host": socket.gethostname(), "started": "x 1", "since": "2020-01-01T00:00:00Z"}
    # Another process that has its number now, a machine that was started again, and a file that says nothing.
    for content in (owner, {**owner, "pid": os.getppid()}, {**owner, "started": None}, {}):
        path.write_text(json.dumps(content) if content else "")
        notes: list[str] = []
        with lock(path, note=notes.append):
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert len(notes) == 1
        assert not path.exists()


def test_locks_of_other_hosts_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"pid": 1, "host": "far.away", "started": None, "since": "2020-01-01T00:00:00Z"}))
    with (
        pytest.raises(LockedError, match=rf"process 1 on far.away since 2020.* remove {re.escape(str(path))}"),
        lock(path),
    ):
        pass
    assert path.exists()
    assert (lock_owner(path) or {})["host"] == "far.away"


RACE = """
import sys, time
from pathlib import Path
from dasrel.util.files import LockedError, exclusive_lock
path, log = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
try:
    with exclusive_lock(path, lambda owner: f"{owner} is at work"):
        with log.open("a") as file:
            file.write("in\\n")
        time.sleep(float(sys.argv[3]))
        print("won")
except LockedError as error:
    print("lost", error)
"""


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_once_one_wins(tmp_path: Path, stale: bool) -> None:
    """Real processes, that all begin at the same moment."""
    path = tmp_path / "lock"
    if stale:
        gone = subprocess.Popen(["true"])
        gone.wait()
        owner = {"pid": gone.pid, "host": socket.gethostname(), "started": None, "since": ""}
        path.write_text(json.dumps(owner))
    words = [sys.executable, "-c", RACE, str(path), str(tmp_path / "log"), "2"]
    several = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for one in several:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in several:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    output = [one.communicate(timeout=200)[0] for one in several]
    assert sum(text.startswith("won") for text in output) == 1, output
    assert sum("is at work" in text for text in output) == 5, output
    assert (tmp_path / "log").read_text() == "in\n"


# ----------------------------------------------------------------------------------------------------- containers


@pytest.mark.parametrize("flock", [True, False])
def test_the_lock_of_another_container(tmp_path: Path, flock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each container has a process with our number. Only the flock tells whether it lives."""
    path = tmp_path / "lock"
    owner = {**this_process(), "namespace": "pid:[1]", "started": "1", "since": "2020-01-01T00:00:00Z"}
    assert process_lives(owner) is None
    for host in (owner["host"], "container-2"):
        path.write_text(json.dumps({**owner, "host": host}))
        assert lock_owner(path) is not None
        if flock:
            with open(path) as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                with pytest.raises(LockedError, match=rf"process {os.getpid()} on {host} .* is at work"), lock(path):
                    pass
            notes: list[str] = []
            with lock(path, note=notes.append):  # nobody of this machine holds it: it is of a dead one
                assert len(notes) == 1
        else:
            with monkeypatch.context() as patch:
                patch.setattr(fcntl, "flock", refuse_flock)
                with (
                    pytest.raises(LockedError, match=rf"on {host} .* is dead, remove .*lock and run again"),
                    lock(path),
                ):
                    pass
            assert path.exists()


def refuse_flock(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_which_processes_live() -> None:
    here = this_process()
    assert process_lives(here) is True
    assert process_lives({**here, "started": "1"}) is False  # another one had this number
    assert process_lives({**here, "pid": 2**22 + 1}) is False
    assert process_lives({**here, "pid": "1"}) is False
    assert process_lives({**here, "boot": "other"}) is False  # this machine was started again
    assert process_lives({**here, "boot": "other", "host": "far.away"}) is None
    assert process_lives({**here, "host": "far.away"}) is True  # this machine has two names
    assert process_lives({}) is None
