"""Save the state of a computation between two scans, and resume from it with the same bits.

    DIR/cluster-00000012.npz     the state of `cluster` after 12 scans
    DIR/cluster-00000011.npz     the one before, for the case that the newest cannot be read

A file (see `util.files`) is written atomically and synced. A command loads its state from a `CheckpointWriter`, passes
it the new state after every scan, and is stopped by it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dasrel import __version__
from dasrel.errors import DasrelWarning, InputError, Stopped, StoreError
from dasrel.kernels import native
from dasrel.util import limits, progress
from dasrel.util.files import exclusive_lock, remove_temporary_files, temporary_path
from dasrel.util.option_fields import SURVIVING, option, time_limit_option
from dasrel.util.text import count_text, is_url, redacted, shown, size_text

FORMAT = 1
"""Another number whenever a state changes, or the numbers that would follow from it."""
KEPT = 2
_PROBE = ".probe.*"
KERNELS = "kernels"
"""The key of a checkpoint that names its kernels: with other kernels, the bits would differ."""
_log = logging.getLogger("dasrel")
_saved = partial(option, panel=SURVIVING)


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a computation saves its state; for `cluster`, `spectrum`, `euclideanize`, estimators.

    Cost: each checkpoint writes what the computation holds: for `cluster` 16 to 40 bytes for each object and cluster
    of the runs that still move and 24 for each of those kept; for searches of eigenvalues their basis. No scan.
    """

    path: str | os.PathLike[str] = _saved(  # noqa: RUF009
        MISSING, "A folder for the state between scans.", name="checkpoint", typed=str, metavar="DIR"
    )
    """A folder, created if necessary. Several commands may share one."""
    every: int = _saved(1, "Scans between two checkpoints.", metavar="N", least=1, rare=True)
    """Scans between two checkpoints: at most so many are repeated after a failure."""
    resume: bool = _saved(False, "Continue from the last checkpoint, if there is one; do nothing if all is done.")
    """Resume from the newest checkpoint, or begin where there is none yet."""
    force: bool = False
    """Without `resume`: begin anew although there are checkpoints; the first new one replaces them."""
    time_limit: float | str | None = time_limit_option()
    """Seconds, or such as "30m": raise `Stopped`, with a checkpoint, before the scan that would end later."""

    def __post_init__(self) -> None:
        every: Any = self.every
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"every is {shown(self.every)}", remedy="give a whole number of scans, at least 1")
        if is_url(self.path):
            where = shown(redacted(str(self.path)))
            raise InputError(f"checkpoints are written to a folder of this machine, not to {where!r}")
        if self.time_limit is not None:
            limits.duration_seconds(self.time_limit)

    def files(self, command: str) -> list[Path]:
        """List the checkpoints of a command ("cluster", "spectrum", "euclideanize"), the newest first."""
        with suppress(FileNotFoundError, NotADirectoryError):
            files = [file for file in Path(self.path).iterdir() if _number(file, command) >= 0]
            return sorted(files, key=lambda file: _number(file, command), reverse=True)
        return []

    def check(self, *commands: str) -> None:
        """Raise if the folder cannot be written, or has checkpoints while neither resume nor force is set."""
        folder = Path(self.path)
        where = shown(folder, limit=200)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = temporary_path(folder / "probe")
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            raise StoreError(f"checkpoints cannot be written to {where}: {error.strerror}") from None
        for command in commands:
            files = self.files(command)
            if files and not (self.resume or self.force):
                raise StoreError(
                    f"{where} holds a checkpoint ({files[0].name})",
                    remedy="say {resume=True} to continue from it, {force=True} to begin anew, or give another folder",
                )

    def clear(self, *commands: str) -> None:
        """Remove the checkpoints of these commands, whose results are saved, and the folder if it is empty then."""
        for command in commands:
            for file in [*self.files(command), _lock_file(Path(self.path), command)]:
                file.unlink(missing_ok=True)
            remove_temporary_files(Path(self.path), f".{command}[-.]*")
        remove_temporary_files(Path(self.path), _PROBE)
        with suppress(OSError):
            Path(self.path).rmdir()


class CheckpointWriter:
    """The checkpoint of one computation in progress, of `checkpoint_writer`; without a `Checkpoint` it keeps nothing.

    A computation has phases, each with a name. `result` and `state` tell what is known of a phase from before, `step`
    and `finish` are called after every scan.
    """

    def __init__(
        self, checkpoint: Checkpoint | None, command: str, about: dict[str, Any], count: progress.Meter
    ) -> None:
        self._checkpoint = checkpoint
        self._command = command
        self._about = {
            "format": FORMAT, "dasrel": __version__, KERNELS: native.signature(), "command": command, **about,
        }  # fmt: skip
        self._count = count
        self._began = self._turned = time.perf_counter()
        self._before = 0.0  # seconds of earlier processes
        self._slowest = self._slowest_write = self._writing = 0.0
        self._results: dict[str, Any] = {}
        self._states: dict[str, Any] = {}
        self._steps = 0  # steps that were no scans
        self._last: Path | None = None
        self._old: list[Path] = []
        if checkpoint is not None:
            self._old = checkpoint.files(command)
            if checkpoint.resume:
                self._restore(checkpoint)
        self._opened_at = self._written_at = self._position

    @property
    def scans(self) -> int:
        """Scans so far, those of earlier processes included."""
        return self._count.scans

    @property
    def _position(self) -> int:
        """Scans and other steps so far: the number of the next checkpoint."""
        return self.scans + self._steps

    @property
    def seconds(self) -> float:
        """Seconds so far, those of earlier processes included."""
        return self._before + time.perf_counter() - self._began

    def result(self, phase: str) -> Any:
        """Return the result of a finished phase, or None."""
        return self._results.get(phase)

    def state(self, phase: str) -> Any:
        """Return the state of an unfinished phase, or None."""
        return self._states.get(phase)

    def forget(self, phase: str) -> None:
        """Begin an unfinished phase anew: its state is of no use."""
        self._states.pop(phase, None)

    def step(self, phase: str, state: Callable[[], Any]) -> None:
        """Save the state after a scan that is not the last, if it is time to, and stop if a stop is requested."""
        self._states = {}  # the states read are in use by now, or obsolete
        self._turn(lambda: {phase: state()})

    def part(self, phase: str, state: Callable[[], Any]) -> bool:
        """As `step`, after a part of the work that is no scan and counts like one. Return whether it was saved."""
        self._states = {}
        self._steps += 1
        return self._turn(lambda: {phase: state()})

    def finish(self, phase: str, result: Any, *, last: bool = False) -> None:
        """Record the result of a finished phase; the `last` one is always saved, and never stops."""
        self._results[phase] = result
        self._states = {}
        if last and self._checkpoint is not None:
            self._write(dict)
        else:
            self._turn(dict)

    def _turn(self, states: Callable[[], dict[str, Any]]) -> bool:
        if self._checkpoint is None or self._position == self._opened_at:
            return False  # nothing new: a resumed process must make at least one scan
        now = time.perf_counter()
        self._slowest = max(self._slowest, now - self._turned)
        reason = limits.current().reason(self._slowest + self._slowest_write)
        saved = False
        if reason or self._position - self._written_at >= self._checkpoint.every:
            fault = self._write(states)
            saved = not fault
            if reason and fault:
                left = "there is no checkpoint" if self._last is None else f"the last one is {self._last}"
                raise StoreError(f"stopped by {reason}, but the state could not be written ({fault}); {left}")
            if reason:
                done = count_text(self.scans, "scan")
                raise Stopped(
                    f"stopped by {reason} after {done}; the state is in {shown(self._last, limit=400)}",
                    remedy="run the same again with {resume=True} to continue from there",
                    scans=self.scans, checkpoint=str(self._last),
                )  # fmt: skip
        self._turned = time.perf_counter()
        return saved

    def _write(self, states: Callable[[], dict[str, Any]]) -> str:
        """Write a checkpoint, and keep only the last two. Return what failed, if anything."""
        from dasrel.util.archives import write_state

        assert self._checkpoint is not None
        began = time.perf_counter()
        file = Path(self._checkpoint.path) / f"{self._command}-{self._position:08d}.npz"
        content = {
            "about": self._about, "scans": self.scans, "steps": self._steps, "seconds": self.seconds,
            "results": self._results, "states": states(),
        }  # fmt: skip
        try:
            size = write_state(file, content)
        except OSError as error:
            fault = error.strerror or str(error)
            warnings.warn(
                f"the checkpoint {shown(file, limit=200)} could not be written: {fault}; the work continues,"
                f" {'nothing is kept yet' if self._last is None else f'the last one is {self._last.name}'}",
                DasrelWarning, stacklevel=4,
            )  # fmt: skip
            return fault
        self._last, self._written_at = file, self._position
        for old in self._old:
            if old != file:
                old.unlink(missing_ok=True)
        self._old = []
        for old in self._checkpoint.files(self._command)[KEPT:]:
            old.unlink(missing_ok=True)
        took = time.perf_counter() - began
        self._slowest_write = max(self._slowest_write, took)
        self._writing += took
        _log.info("checkpoint %s: %s in %.2f s", file.name, size_text(size), took)
        return ""

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Load the newest readable checkpoint, and check that it belongs to this computation."""
        from dasrel.util.archives import read_state

        faults = []
        for file in self._old:
            try:
                content = read_state(file)
                if not isinstance(content.get("about"), dict):
                    raise StoreError(f"{shown(file, limit=200)} cannot be read (it is something else)")
            except StoreError as error:
                faults.append(error)
                continue
            self._refuse_other(file, content["about"])
            if faults:
                warnings.warn(f"{faults[0]}; resuming from {file.name}", DasrelWarning, stacklevel=5)
            self._results, self._states = content["results"], content["states"]
            self._before, self._count.scans = content["seconds"], content["scans"]
            self._steps = content.get("steps", 0)
            self._last = file
            self._old = [old for old in self._old if _number(old, self._command) > self._position]
            _log.info("resuming from %s", file)
            return
        if faults:
            raise StoreError(
                f"{faults[0]}, nor any other", remedy="leave {resume} out and say {force=True} to begin anew"
            )
        text = f"no checkpoint of {self._command} in {shown(checkpoint.path, limit=200)} yet: from the beginning"
        if any(Path(checkpoint.path).glob("*.npz")):
            _log.info(text)  # what came before is there, and this is its turn
        else:
            warnings.warn(text, DasrelWarning, stacklevel=5)

    def _refuse_other(self, file: Path, made: dict[str, Any]) -> None:
        theirs, ours = _flat(made), _flat(self._about)
        for name in dict.fromkeys([*ours, *theirs]):
            if name == "dasrel":  # which version wrote it is for people to know
                continue
            there, here = theirs.get(name, "not given"), ours.get(name, "not given")
            if there != here and not _same_number(there, here):
                raise StoreError(
                    f"{shown(file, limit=200)} belongs to something else: {shown(name)} is {shown(there)} there and"
                    f" {shown(here)} here",
                    remedy="give the same again, another folder, or leave {resume} out and say {force=True} to begin"
                    " anew",
                )


@contextmanager
def checkpoint_writer(
    checkpoint: Checkpoint | None, command: str, about: Callable[[], dict[str, Any]]
) -> Iterator[CheckpointWriter]:
    """Yield the checkpoint writer of a computation, which also counts its scans and seconds. `about` identifies it."""
    with progress.watch() as count:
        if checkpoint is None:
            yield CheckpointWriter(None, command, {}, count)
            return
        checkpoint.check(command)
        with _alone(checkpoint, command), limits.limited(checkpoint.time_limit), limits.defer_stop():
            keeper = CheckpointWriter(checkpoint, command, about(), count)
            yield keeper
            took = keeper._writing
            if took > max(30.0, 0.25 * (time.perf_counter() - keeper._began)):
                problem = f"writing checkpoints took {took:.0f} s, {took / keeper.seconds:.0%} of the time"
                remedy = "write them less often ({Checkpoint.every}), or to a faster disk"
                warnings.warn(DasrelWarning(problem, remedy=remedy), stacklevel=4)


@contextmanager
def watched(checkpoint: Checkpoint | None, *commands: str) -> Iterator[None]:
    """Compute in the block with one checkpoint and one time limit for several commands, and keep their progress.

    Raise before any work if the folder cannot be used.
    """
    if checkpoint is None:
        yield
        return
    checkpoint.check(*commands)
    with limits.limited(checkpoint.time_limit), limits.defer_stop():
        yield


@contextmanager
def _alone(checkpoint: Checkpoint, command: str) -> Iterator[None]:
    """Hold the folder's lock. Another host's is taken over: a job that died there is resumed here."""
    where = shown(checkpoint.path, limit=200)
    with exclusive_lock(
        _lock_file(Path(checkpoint.path), command),
        lambda owner: f"{where} is in use by {owner}",
        advice="wait for its end, or give another folder",
        take_over=True,
    ):
        remove_temporary_files(Path(checkpoint.path), f".{command}-*")  # a process was killed while it wrote them
        yield


def _lock_file(folder: Path, command: str) -> Path:
    return folder / f".{command}.lock"


def _number(file: Path, command: str) -> int:
    """Return the number in the name of a checkpoint of this command; -1 for other files."""
    match = re.fullmatch(rf"{command}-(\d{{8,}})\.npz", file.name, flags=re.ASCII)
    return -1 if match is None else int(match[1])


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested values by their complete names."""
    if isinstance(value, (dict, list, tuple)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        flat: dict[str, Any] = {}
        for key, item in pairs:
            flat |= _flat(item, f"{name} {key}".strip())
        return flat
    return {name: value}


def _same_number(first: Any, second: Any) -> bool:
    return isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second)
