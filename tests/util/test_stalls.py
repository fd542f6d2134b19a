"""Who is given up, and when: a cluster that is only told of, and a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest

from dasrel.errors import ClusterError, DasrelWarning
from dasrel.util import limits, stalls

A, B = "tcp://10.0.0.1:1", "tcp://10.0.0.2:1"


class Scheduler:
    """Stands for the scheduler of a client, and for the client: two workers with signs of life and tasks."""

    address, status, id = "tcp://10.0.0.9:8786", "running", "client"

    def __init__(self) -> None:
        self.scheduler = self
        self.beats = {A: 0.0, B: 0.0}
        self.tasks: dict[str, tuple[str, ...]] = {A: ("a",), B: ("b",)}
        self.nannies: dict[str, str | None] = {A: "tcp://10.0.0.1:2", B: None}
        self.takes = 0.0
        self.now = 1000.0
        self.ended: list[tuple[str, str]] = []

    def identity(self) -> dict[str, Any]:
        facts = {name: {"last_seen": beat, "nanny": self.nannies[name], "host": name[6:14]}
                 for name, beat in self.beats.items()}  # fmt: skip
        return {"workers": facts}

    def processing(self) -> dict[str, Any]:
        return self.tasks

    def sync(self, request: Any, *, callback_timeout: float, n_workers: int = 0, workers: Any = None) -> Any:
        self.now += self.takes
        if self.takes > callback_timeout:
            raise TimeoutError
        return request()

    def restart_workers(self, addresses: list[str], timeout: float) -> dict[str, str]:
        self.ended += [("restarted", address) for address in addresses]
        return dict.fromkeys(addresses, "OK")

    def run_on_scheduler(self, function: Any, address: str) -> None:
        self.ended.append((function.__name__, address))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    made = Scheduler()
    monkeypatch.setattr(stalls.time, "monotonic", lambda: made.now)
    return made


def look(watch: stalls.Watch, cluster: Scheduler, seconds: int, *alive: str, moving: tuple[str, ...] = (A, B)) -> None:
    """Let some seconds pass: the living give signs of life, and those that move finish a task in each."""
    for _ in range(seconds):
        cluster.now += 1
        for name in alive:
            cluster.beats[name] = cluster.now
        for name in moving:
            cluster.tasks[name] = (f"{name}-{cluster.now}",)
        watch._look()


def test_a_silent_worker_is_ended_by_its_nanny_or_removed(cluster: Scheduler) -> None:
    watch = stalls.Watch(cluster, repeats=True)
    look(watch, cluster, 59, B)
    assert cluster.ended == []
    look(watch, cluster, 3, B)
    assert cluster.ended == [("restarted", A)]
    report = rf"worker {A} \(10\.0\.0\.1\) gave no sign of life for 61 s: its tiles are given to others; if it was only"
    with pytest.warns(DasrelWarning, match=report):
        watch._report()  # and nothing is raised: what was asked of that worker ends with it
    del cluster.beats[A]
    look(watch, cluster, 119)  # the second one gets twice as long
    assert cluster.ended == [("restarted", A)]
    look(watch, cluster, 3)
    assert cluster.ended[1:] == [("_remove", B)]
    with pytest.warns(DasrelWarning), pytest.raises(stalls.GivenUp) as given_up:
        watch._report()
    assert given_up.value.address == B


def test_a_worker_that_lives_and_finishes_nothing_gets_ten_times_as_long(cluster: Scheduler) -> None:
    watch = stalls.Watch(cluster, repeats=False)
    look(watch, cluster, 599, A, B, moving=(B,))
    assert cluster.ended == []
    look(watch, cluster, 3, A, B, moving=(B,))
    assert cluster.ended == [("restarted", A)]
    with pytest.warns(DasrelWarning, match="finished none of its tasks for"):
        watch.tell()


def test_a_worker_without_tasks_is_never_stuck(cluster: Scheduler) -> None:
    watch = stalls.Watch(cluster, repeats=False)
    cluster.tasks[A] = ()
    look(watch, cluster, 2000, A, B, moving=(B,))
    assert cluster.ended == []


def test_long_tasks_make_for_patience(cluster: Scheduler) -> None:
    """Tasks that took 100 s before: a worker may be silent for 200."""
    watch = stalls.Watch(cluster, repeats=False)
    look(watch, cluster, 100, A, B, moving=(B,))
    look(watch, cluster, 1, A, B)
    look(watch, cluster, 198, B)
    assert cluster.ended == []
    look(watch, cluster, 5, B)
    assert cluster.ended == [("restarted", A)]
    with pytest.warns(DasrelWarning):
        watch.tell()


def test_a_slow_scheduler_makes_no_worker_silent(cluster: Scheduler) -> None:
    """It was busy for 50 s, twice, and had heard of nobody meanwhile."""
    watch = stalls.Watch(cluster, repeats=False)
    look(watch, cluster, 5, A, B)
    cluster.takes = 25.0
    look(watch, cluster, 2, moving=())
    cluster.takes = 0.0
    look(watch, cluster, 5, A, B)
    assert cluster.ended == []


def test_a_scheduler_without_an_answer_ends_the_work(cluster: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.takes = 61.0
    watch = stalls.Watch(cluster, repeats=False)
    monkeypatch.setattr(watch.ended, "wait", lambda seconds: False)
    watch.look()
    line = r"the scheduler tcp://10\.0\.0\.9:8786 has given no answer for 60 s; see whether it is stopped \(Runtime"
    with pytest.raises(ClusterError, match=line):
        watch._report()
    with pytest.raises(ClusterError, match=line):
        limits.worker_memory(cluster)
