"""Status of workflow steps: state file, event log, content hashes; up to date, or stale and why.

The key of a step is a hash of the content of its inputs, its parameters and the versions of the formats that dasrel
writes. A step is done when the state file has it with this key and its outputs still exist.

Content hashes are kept in the state file with a signature of the files: their sizes, times and inodes. While the
signature is unchanged the content is taken to be unchanged, so that a source of 100 GB is not read again to find that
out. The hash of a store is made of its object names and the records of its tiles; only if the signature has changed are
the tiles read and compared with their checksums.

Neither the state file nor the log contains credentials. The store is imported inside the functions, so that a workflow
with nothing to do does not load Zarr.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO

from dasrel.commands.base import Target
from dasrel.errors import DasrelError, InputError, StoreError
from dasrel.util.files import lock_owner, replacing
from dasrel.util.reading import load_json, open_regular
from dasrel.util.records import State, fault_of
from dasrel.util.results import without_times
from dasrel.util.text import redacted, shown, some
from dasrel.workflow.schema import Step, Workflow, as_key, outputs

STATE = "run.state.json"
LOCK = "run.lock"
WORK = ".work"
FORMATS = {"store": 1, "euclidean": 1, "model": 1, "step": 1}
"""Versions of the formats that steps write, as a test checks. When one changes, steps are run again."""
TIMES = ("result.json",)
"""Files with times and paths in them: steps that use a result do not depend on these."""


@dataclass(frozen=True)
class StepStatus:
    """The status of a step."""

    step: Step
    status: str
    """done, stale (done, but with other inputs or parameters), pending, failed or running."""
    why: str
    key: str | None = None
    """None if an input does not exist yet."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    content: str | None = None
    """The content hash of what other steps use of it, if it is done."""
    since: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    """The content hashes of the settings of a cluster step."""

    def content_hash(self, setting: str | None) -> str:
        """Return the content hash of all outputs, or of one setting."""
        return str(self.content if setting is None else self.parts.get(setting, self.content))

    @property
    def is_done(self) -> bool:
        """Whether the step is up to date."""
        return self.status == "done"

    def as_dict(self, out: Path) -> dict[str, Any]:
        """Return plain values for JSON."""
        files = [str(out / name) for name in outputs(self.step)]
        return {
            "step": self.step.name, "kind": self.step.kind, "status": self.status, "why": self.why,
            "since": self.since, "outputs": files, "key": self.key,
        }  # fmt: skip


def plan(workflow: Workflow, *, read: bool = True, trust: bool = True) -> list[StepStatus]:
    """Return the status of every step. Nothing is written.

    Parameters
    ----------
    read
        Whether files whose signature has changed are read to see if their content has.
    trust
        Whether files with the size and times of the last run count as unchanged, without being read.
    """
    state = StateFile(workflow.out / STATE)
    known = ContentHashes(state.files, trust=trust)
    is_running = lock_owner(workflow.out / LOCK) is not None
    planned: dict[str, StepStatus] = {}
    for name, step in workflow.steps.items():
        planned[name] = step_status(workflow, step, state, known, planned, read=read)
        trying = state.steps.get(name, {}).get("now") or {}
        if is_running and trying.get("status") in ("running", "putting"):
            planned[name] = StepStatus(step, "running", "in progress", planned[name].key, since=trying.get("began"))
    return list(planned.values())


# ------------------------------------------------------------------------------------------------ status of one step


def step_status(
    workflow: Workflow,
    step: Step,
    state: StateFile,
    known: ContentHashes,
    before: Mapping[str, StepStatus],
    *,
    read: bool = True,
) -> StepStatus:
    """Return the status of a step, given that of the steps before it."""
    record = state.steps.get(step.name, {})
    done, trying = record.get("done"), record.get("now")
    waiting = [name for name in dict.fromkeys(step.uses.values()) if before[name].content is None]
    if waiting:
        failed = [name for name in waiting if before[name].status == "failed"]
        why = f"needs {some(failed)}, which failed" if failed else f"waits for {some(waiting)}"
        return StepStatus(step, "stale" if done else "pending", why, since=(done or {}).get("ended"))
    inputs = {key: before[name].content_hash(step.settings.get(key)) for key, name in step.uses.items()}
    for key, place in step.files.items():
        if not read and "://" not in place and os.path.exists(place) and not _unchanged(known, Path(place)):
            why = f"{key} may have changed: {shown(place, limit=200)}"
            return StepStatus(step, "stale" if done else "pending", why, since=(done or {}).get("ended"))
        try:
            inputs[key] = _content_hash(key, place, done, known)
        except DasrelError as error:
            return StepStatus(step, "failed", error.text(as_key))
    key = _key(step, inputs)
    if step.exists:
        try:
            step.operation.prepare(next(iter(step.files.values())), Target(), step.table.options())
        except DasrelError as error:
            return StepStatus(step, "failed", error.text(as_key))
        return StepStatus(step, "done", "it exists", key, inputs, next(iter(inputs.values())))
    if done is not None and done["key"] == key:
        fault = _fault(workflow, step, state, known, read)
        if fault is None:
            return StepStatus(step, "done", "up to date", key, inputs, done["content"], done["ended"], done["parts"])
        return StepStatus(step, "stale", fault, key, inputs, since=done["ended"])
    if trying is not None and trying["status"] == "failed":
        return StepStatus(step, "failed", f"it failed: {trying['message']}", key, inputs, since=trying["ended"])
    if trying is not None and trying["key"] == key:
        return StepStatus(step, "pending", f"it was {_ended[trying['status']]}", key, inputs, since=trying["began"])
    if done is None:
        return StepStatus(step, "pending", "not done yet", key, inputs)
    return StepStatus(step, "stale", _changes(step, inputs, done), key, inputs, since=done["ended"])


_ended = {"running": "interrupted", "putting": "interrupted", "stopped": "stopped"}


def _unchanged(known: ContentHashes, path: Path) -> bool:
    try:
        return known.is_known(path)
    except InputError:
        return True  # it does not exist; reading it raises the error


def _key(step: Step, inputs: Mapping[str, str]) -> str:
    content = {"kind": step.kind, "parameters": parameters(step), "inputs": dict(inputs), "formats": FORMATS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parameters(step: Step) -> dict[str, Any]:
    """Return the parameters that determine the output of a step; of files only the suffixes, which select formats."""
    left_out = {*step.table.HOW, *step.table.FILES, "store"}
    values = step.table.model_dump(mode="json", exclude=left_out)
    suffixes = {f"{key} suffix": Path(step.files[key]).suffix for key in step.table.FILES if key in step.files}
    return {**values, **suffixes}


def _changes(step: Step, inputs: Mapping[str, str], done: Mapping[str, Any]) -> str:
    """Return why a key differs from the recorded one."""
    changes = []
    if step.kind != done["kind"]:
        return f"it was a step of the kind {done['kind']}"
    was = done["parameters"]
    for name, value in redacted(parameters(step)).items():
        if value != was.get(name):
            changes.append(f"{name} is {shown(json.dumps(value))}, was {shown(json.dumps(was.get(name)))}")
    changes += [
        f"{step.uses.get(name, name)} has changed" for name in inputs if inputs[name] != done["inputs"].get(name)
    ]
    return some(changes) if changes else "dasrel writes another format now"


def _fault(workflow: Workflow, step: Step, state: StateFile, known: ContentHashes, read: bool) -> str | None:
    """Return what is wrong with the outputs of a step, or None."""
    done = state.steps[step.name]["done"]
    if step.grows:
        return None if _is_in(workflow, step, state, known) else "it is not in the store"
    for name, content in done["outputs"].items():
        place = workflow.out / name
        if not os.path.lexists(place):
            return f"{name} is missing"
        if not read and not known.is_known(place):
            return f"{name} may have changed"
        try:
            if known.of(place) not in [content, *_grown(workflow, step, state, known, content)]:
                return f"{name} has changed"
        except DasrelError as error:
            return f"{name} is damaged ({error})"
    return None


# --------------------------------------------------------------------------------------------- matrices that have grown


def appends_of(workflow: Workflow, base: str) -> list[Step]:
    """Return the appends to a matrix, in order."""
    appends: list[Step] = []
    for step in workflow.steps.values():  # each comes after the one before it
        if step.grows and step.uses["store"] == (appends[-1].name if appends else base):
            appends.append(step)
    return appends


def base_of(workflow: Workflow, step: Step) -> Step:
    """Return the step whose matrix an append extends, or the step itself."""
    while step.grows:
        step = workflow.steps[step.uses["store"]]
    return step


def _grown(workflow: Workflow, base: Step, state: StateFile, known: ContentHashes, first: str) -> list[str]:
    """Return the content hashes of a matrix after each append that is still valid; `first` is that before them."""
    hashes: list[str] = []
    for k, step in enumerate(appends_of(workflow, base.name)):
        record = state.steps.get(step.name, {})
        done, trying = record.get("done") or {}, record.get("now") or {}
        before = hashes[-1] if hashes else first
        try:
            files = {name: _content_hash(name, place, record.get("done"), known) for name, place in step.files.items()}
        except DasrelError:  # reported as a fault of the append; it is no reason to repeat the import
            return [*hashes, done["content"]] if done else hashes
        key = _key(step, {"store": before, **files})
        if done.get("key") == key:
            hashes.append(done["content"])
        elif trying.get("key") == key:  # killed between the end of the append and its record, or before
            from dasrel.store.matrix import store_manifest

            manifest = store_manifest(workflow.out / outputs(base)[0]) or {}
            if len(manifest.get("provenance", {}).get("appends", [])) == k + 1:
                hashes.append(known.of(workflow.out / outputs(base)[0]))
            break
        else:
            break
    return hashes


def _is_in(workflow: Workflow, step: Step, state: StateFile, known: ContentHashes) -> bool:
    """Return whether a matrix contains what this append, or a later one, has added."""
    base = base_of(workflow, step)
    first = state.steps[base.name]["done"]["content"]
    chain = appends_of(workflow, base.name)
    hashes = _grown(workflow, base, state, known, first)
    return known.of(workflow.out / outputs(base)[0]) in hashes[chain.index(step) :]


def _content_hash(key: str, place: str, done: Mapping[str, Any] | None, known: ContentHashes) -> str:
    """Return the content hash of a file, a folder or a URL; of a file that was deleted, that when the step was done."""
    if "://" in place:
        from dasrel.store.matrix import remote_content_hash

        return remote_content_hash(place)
    if done is not None and done.get("files", {}).get(key) == place and not os.path.lexists(place):
        return str(done["inputs"][key])
    return known.of(Path(place))


Known = dict[str, dict[str, str]]
"""For each path its signature and its content hash (`word`)."""


class ContentHashes:
    """Content hashes of paths, cached by signature."""

    def __init__(self, known: Known | None = None, *, trust: bool = True) -> None:
        self.known: Known = {} if known is None else known
        self.trust = trust
        """Whether an unchanged signature means unchanged content."""
        self._seen: set[str] = set()

    def is_known(self, path: Path) -> bool:
        """Return whether the signature of a path is unchanged since it was read."""
        kept = self.known.get(str(path))
        return kept is not None and kept["signature"] == signature(path)

    def of(self, path: Path) -> str:
        """Return the content hash of a path. Cost: reads all of it if its signature has changed."""
        name = str(path)
        now = signature(path)
        kept = self.known.get(name)
        if kept is not None and kept["signature"] == now and (self.trust or name in self._seen):
            return kept["content"]
        content = read(path)
        if signature(path) != now:
            raise InputError(
                f"{shown(path, limit=200)} changes while it is being read", remedy="wait until it is complete"
            )
        self.known[name] = {"signature": now, "content": content}
        self._seen.add(name)
        return content

    def adopt(self, path: Path, content: str) -> None:
        """Store the content hash of an output that has just been written."""
        self.known[str(path)] = {"signature": signature(path), "content": content}
        self._seen.add(str(path))


def signature(path: Path) -> str:
    """Return a hash of the sizes, times and inodes of all files at a path. Cost: a stat of each."""
    try:
        if not path.is_dir():
            return _signed([("", path)])
        return _signed(_files(path))
    except FileNotFoundError:
        raise InputError(f"{shown(path, limit=200)} does not exist", remedy="check the name") from None
    except OSError as error:
        raise InputError(f"{shown(path, limit=200)} cannot be read: {error.strerror}") from None


def read(path: Path, *, leave_out: Iterable[str] = (), verify: bool = True) -> str:
    """Read a file, a folder or a store, and return its content hash.

    Parameters
    ----------
    leave_out
        Files of a folder to ignore.
    verify
        Read the tiles of a store and compare them with their checksums; otherwise only check that they exist.
    """
    try:
        if not path.is_dir():
            return _file(path)
        from dasrel.store.matrix import open_matrix, store_manifest

        if store_manifest(path) is not None:
            return open_matrix(path).content_hash(verify=verify)
        digest = hashlib.sha256()
        for name, file in _files(path):
            if name not in leave_out:
                digest.update(f"{name}\0{_file(file)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()
    except FileNotFoundError as error:
        raise InputError(
            f"{shown(error.filename or path, limit=200)} does not exist", remedy="check the name"
        ) from None


def _file(path: Path) -> str:
    if path.name in TIMES:  # the same result has the same hash, whenever it was computed
        with suppress(OSError, ValueError):
            content = without_times(load_json(path))
            return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files below a folder, with their relative names, sorted."""
    files = []
    for where, _, names in os.walk(folder):
        files += [Path(where, name) for name in names]
    for file in sorted(files):
        yield file.relative_to(folder).as_posix(), file


def _signed(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        stat = file.stat()
        line = f"{name}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


VERSION = 1


def now() -> str:
    """Return the time in UTC, as the log and the state file have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class StateFile:
    """The state file of a workflow: the record of each step, and the content hashes of files.

    Each step has `done`, which describes its outputs in `out`, and `now`, its last attempt if that was not completed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, str]] = {}
        try:
            content = load_json(path)
            version = content["version"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable(error) from None
        if version != VERSION:
            raise StoreError(
                f"the state {shown(path, limit=200)} has version {shown(version)}, this dasrel writes {VERSION}",
                remedy="use the dasrel that wrote it, or another folder (out)",
            )
        if (fault := fault_of(State, content)) is not None:
            raise self._unreadable(fault)
        self.steps, self.files = content["steps"], content["files"]

    def _unreadable(self, fault: Any) -> StoreError:
        return StoreError(
            f"the state {shown(self.path, limit=200)} cannot be read ({shown(fault, limit=200)})",
            remedy="move it and the outputs of the steps away, and run again",
        )

    def save(self) -> None:
        """Write it, atomically."""
        content = {"version": VERSION, "steps": self.steps, "files": self.files}
        write_json(self.path, redacted(content) | {"files": self.files})


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, atomically, and on the disk when this returns."""
    with replacing(path, sync=True) as temporary, temporary.open("x", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")


class Log:
    """A log of events, one JSON object per line, appended to a file, written to stdout (`-`), or discarded."""

    def __init__(self, where: str | None) -> None:
        self._file: TextIO | None = None
        self._lock = threading.Lock()
        if where == "-":
            self._file = sys.stdout
        elif where is not None:
            try:
                self._file = open(where, "a", encoding="utf-8")  # noqa: SIM115 (it lives as long as the command)
            except OSError as error:
                raise InputError(f"the log {shown(where, limit=200)} cannot be written: {error.strerror}") from None

    def __call__(self, event: str, **values: Any) -> None:
        """Write an event, without the values that are None."""
        if self._file is None:
            return
        given = {name: value for name, value in values.items() if value is not None}
        line = json.dumps({"time": now(), "event": event, **redacted(given)}, default=str)
        with self._lock:
            self._file.write(line + "\n")  # one write: lines of two processes do not mix
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None and self._file is not sys.stdout:
            self._file.close()
