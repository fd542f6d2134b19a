"""Status of workflow steps: state file, event log, content hashes; up to date, or stale and why.

How the steps of a workflow stand: done, or to be done and why. Nothing is written here.

The key of a step is made of the content of its inputs, its parameters and the formats of what dasrel writes. A step is
done when its record has this key and what it wrote is still there.

What a file, a folder or a store holds, as one short word. What was read once is not read again.

The word is a checksum. It is kept with the signature of the files, their sizes, times and inodes, and while that is the
same the content is taken to be the same: a source of 100 GB is not read again to see that nothing has changed.

The word of a store comes from its names and from the records of its tiles. Only where the signature has changed are the
tiles read, and compared with the checksums that they end with.

What a workflow writes down: its state after every step, and its log of JSON lines. No credentials in either.

The store is imported inside the functions, so that a workflow with nothing to do does not load Zarr.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO

from dasrel.errors import DasrelError, InputError, StoreError
from dasrel.util.files import lock_owner, replacing
from dasrel.util.text import redacted, shown, some
from dasrel.workflow.schema import Step, Workflow, as_key, outputs

STATE = "run.state.json"
LOCK = "run.lock"
WORK = ".work"
FORMATS = {"store": 1, "euclidean": 1, "model": 1, "step": 1}
"""Versions of what steps write: when one changes, steps are done again. A test keeps them equal to the modules'."""
TIMES = ("result.json",)
"""Files that hold times and paths: what uses a result does not depend on them."""


@dataclass(frozen=True)
class Planned:
    """A step as it stands."""

    step: Step
    status: str
    """done, stale (done, but not from these inputs and parameters), pending, failed or running."""
    why: str
    key: str | None = None
    """None where an input is not there yet."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    content: str | None = None
    """The word of what it gives to others, where that is done."""
    since: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    """The words of the settings of a cluster step."""

    def word(self, setting: str | None) -> str:
        """Of all that it gives, or of one setting."""
        return str(self.content if setting is None else self.parts.get(setting, self.content))

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return self.status == "done"

    def as_dict(self, out: Path) -> dict[str, Any]:
        """For JSON."""
        files = [str(out / name) for name in outputs(self.step)]
        return {
            "step": self.step.name, "kind": self.step.kind, "status": self.status, "why": self.why,
            "since": self.since, "outputs": files, "key": self.key,
        }  # fmt: skip


def plan(workflow: Workflow, *, read: bool = True, trust: bool = True) -> list[Planned]:
    """Every step as it stands. Nothing is written.

    Parameters
    ----------
    read
        Whether files that were touched since are read to see if they have changed.
    trust
        Whether files of the same size and times as before count as the same, unread.
    """
    state = StateFile(workflow.out / STATE)
    known = Contents(state.files, trust=trust)
    at_work = lock_owner(workflow.out / LOCK) is not None
    planned: dict[str, Planned] = {}
    for name, step in workflow.steps.items():
        planned[name] = judged(workflow, step, state, known, planned, read=read)
        trying = state.steps.get(name, {}).get("now") or {}
        if at_work and trying.get("status") in ("running", "putting"):
            planned[name] = Planned(step, "running", "at work", planned[name].key, since=trying.get("began"))
    return list(planned.values())


# ------------------------------------------------------------------------------------------------------------- judging


def judged(
    workflow: Workflow,
    step: Step,
    state: StateFile,
    known: Contents,
    before: Mapping[str, Planned],
    *,
    read: bool = True,
) -> Planned:
    record = state.steps.get(step.name, {})
    done, trying = record.get("done"), record.get("now")
    waiting = [name for name in dict.fromkeys(step.uses.values()) if before[name].content is None]
    if waiting:
        failed = [name for name in waiting if before[name].status == "failed"]
        why = f"needs {some(failed)}, which failed" if failed else f"waits for {some(waiting)}"
        return Planned(step, "stale" if done else "pending", why, since=(done or {}).get("ended"))
    inputs = {key: before[name].word(step.settings.get(key)) for key, name in step.uses.items()}
    for key, place in step.files.items():
        if not read and "://" not in place and not _unchanged(known, Path(place)):
            why = f"{key} has been touched: {shown(place, limit=200)}"
            return Planned(step, "stale" if done else "pending", why, since=(done or {}).get("ended"))
        try:
            inputs[key] = _word(key, place, done, known)
        except DasrelError as error:
            return Planned(step, "failed", error.text(as_key))
    key = _key(step, inputs)
    if step.kind == "store":
        return Planned(step, "done", "it is there", key, inputs, inputs["path"])
    if done is not None and done["key"] == key:
        fault = _fault(workflow, step, state, known, read)
        if fault is None:
            return Planned(step, "done", "as before", key, inputs, done["content"], done["ended"], done["parts"])
        return Planned(step, "stale", fault, key, inputs, since=done["ended"])
    if trying is not None and trying["status"] == "failed":
        return Planned(step, "failed", f"it failed: {trying['message']}", key, inputs, since=trying["ended"])
    if trying is not None and trying["key"] == key:
        return Planned(step, "pending", f"it was {_ended[trying['status']]}", key, inputs, since=trying["began"])
    if done is None:
        return Planned(step, "pending", "not done yet", key, inputs)
    return Planned(step, "stale", _changes(step, inputs, done), key, inputs, since=done["ended"])


_ended = {"running": "interrupted", "putting": "interrupted", "stopped": "stopped"}


def _unchanged(known: Contents, path: Path) -> bool:
    try:
        return known.is_known(path)
    except InputError:
        return True  # it is not there: whoever reads it says so


def _key(step: Step, inputs: Mapping[str, str]) -> str:
    content = {"kind": step.kind, "parameters": parameters(step), "inputs": dict(inputs), "formats": FORMATS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parameters(step: Step) -> dict[str, Any]:
    """What a step was asked for, without what says only where or how; of a file the suffix, which tells its format."""
    left_out = {*step.asked.HOW, *step.asked.FILES, "store"}
    values = step.asked.model_dump(mode="json", exclude=left_out)
    suffixes = {f"{key} suffix": Path(step.files[key]).suffix for key in step.asked.FILES if key in step.files}
    return {**values, **suffixes}


def _changes(step: Step, inputs: Mapping[str, str], done: Mapping[str, Any]) -> str:
    """Why a key is another one than before."""
    told = []
    if step.kind != done["kind"]:
        return f"it was a step of the kind {done['kind']}"
    was = done["parameters"]
    for name, value in redacted(parameters(step)).items():
        if value != was.get(name):
            told.append(f"{name} is {shown(json.dumps(value))}, was {shown(json.dumps(was.get(name)))}")
    told += [f"{step.uses.get(name, name)} has changed" for name in inputs if inputs[name] != done["inputs"].get(name)]
    return some(told) if told else "dasrel writes another format now"


def _fault(workflow: Workflow, step: Step, state: StateFile, known: Contents, read: bool) -> str | None:
    """What is wrong with what a step has written, or None."""
    done = state.steps[step.name]["done"]
    if step.kind == "append":
        return None if _is_in(workflow, step, state, known) else "it is not in the store"
    for name, word in done["outputs"].items():
        place = workflow.out / name
        if not os.path.lexists(place):
            return f"{name} is missing"
        if not read and not known.is_known(place):
            return f"{name} has been touched"
        try:
            if known.of(place) not in [word, *_grown(workflow, step, state, known, word)]:
                return f"{name} has been changed"
        except DasrelError as error:
            return f"{name} is damaged ({error})"
    return None


# --------------------------------------------------------------------------------------------- matrices that have grown


def appends_of(workflow: Workflow, base: str) -> list[Step]:
    """The appends to a matrix, in their order."""
    found: list[Step] = []
    for step in workflow.steps.values():  # each stands behind the one before
        if step.kind == "append" and step.uses["store"] == (found[-1].name if found else base):
            found.append(step)
    return found


def base_of(workflow: Workflow, step: Step) -> Step:
    """The matrix that an append goes to, or the step itself."""
    while step.kind == "append":
        step = workflow.steps[step.uses["store"]]
    return step


def _grown(workflow: Workflow, base: Step, state: StateFile, known: Contents, word: str) -> list[str]:
    """The words that a matrix may have instead of its first one, `word`: those after each append that still holds."""
    words: list[str] = []
    for k, step in enumerate(appends_of(workflow, base.name)):
        record = state.steps.get(step.name, {})
        done, trying = record.get("done") or {}, record.get("now") or {}
        before = words[-1] if words else word
        try:
            files = {name: _word(name, place, record.get("done"), known) for name, place in step.files.items()}
        except DasrelError:  # whose fault that is will be told; it is no reason to begin with the import again
            return [*words, done["content"]] if done else words
        key = _key(step, {"store": before, **files})
        if done.get("key") == key:
            words.append(done["content"])
        elif trying.get("key") == key:  # killed between the end of the append and its record, or before
            from dasrel.store.matrix import store_manifest

            manifest = store_manifest(workflow.out / outputs(base)[0]) or {}
            if len(manifest.get("provenance", {}).get("appends", [])) == k + 1:
                words.append(known.of(workflow.out / outputs(base)[0]))
            break
        else:
            break
    return words


def _is_in(workflow: Workflow, step: Step, state: StateFile, known: Contents) -> bool:
    """Whether a matrix holds what this step, or one behind it, has appended."""
    base = base_of(workflow, step)
    first = state.steps[base.name]["done"]["content"]
    chain = appends_of(workflow, base.name)
    words = _grown(workflow, base, state, known, first)
    return known.of(workflow.out / outputs(base)[0]) in words[chain.index(step) :]


def _word(key: str, place: str, done: Mapping[str, Any] | None, known: Contents) -> str:
    """The word of a file, a folder or a URL. A file that is gone counts as it was when the step was done."""
    if "://" in place:
        from dasrel.store.matrix import remote_content_hash

        return remote_content_hash(place)
    if done is not None and done.get("files", {}).get(key) == place and not os.path.lexists(place):
        return str(done["inputs"][key])
    return known.of(Path(place))


Known = dict[str, dict[str, str]]
"""For each path its signature and its word."""


class Contents:
    """The words of paths, with what is known of them from before."""

    def __init__(self, known: Known | None = None, *, trust: bool = True) -> None:
        self.known: Known = {} if known is None else known
        self.trust = trust
        """Whether a signature that has not changed is believed."""
        self._seen: set[str] = set()

    def is_known(self, path: Path) -> bool:
        """Whether nothing at this path has changed since it was read."""
        kept = self.known.get(str(path))
        return kept is not None and kept["signature"] == signature(path)

    def of(self, path: Path) -> str:
        """The word of what lies at a path. Cost: reads it all, if its signature is not the one from before."""
        name = str(path)
        now = signature(path)
        kept = self.known.get(name)
        if kept is not None and kept["signature"] == now and (self.trust or name in self._seen):
            return kept["word"]
        word = read(path)
        if signature(path) != now:
            raise InputError(f"{shown(path, limit=200)} changes while it is being read; wait until it is whole")
        self.known[name] = {"signature": now, "word": word}
        self._seen.add(name)
        return word

    def adopt(self, path: Path, word: str) -> None:
        """Keep the word of something that was written here just now."""
        self.known[str(path)] = {"signature": signature(path), "word": word}
        self._seen.add(str(path))


def signature(path: Path) -> str:
    """Sizes, times and inodes of all files at a path, as one word. Cost: a stat of each."""
    try:
        if not path.is_dir():
            return _signed([("", path)])
        return _signed(_files(path))
    except FileNotFoundError:
        raise InputError(f"{shown(path, limit=200)} is not there; check the name") from None
    except OSError as error:
        raise InputError(f"{shown(path, limit=200)} cannot be read: {error.strerror}") from None


def read(path: Path, *, leave_out: Iterable[str] = (), whole: bool = True) -> str:
    """The word of a file, a folder or a store, read now.

    Parameters
    ----------
    leave_out
        Files of a folder that do not count.
    whole
        Read the tiles of a store and compare them with their checksums; else they need only be there.
    """
    try:
        if not path.is_dir():
            return _file(path)
        from dasrel.store.matrix import open_matrix, store_manifest

        if store_manifest(path) is not None:
            return open_matrix(path).content_hash(verify=whole)
        digest = hashlib.sha256()
        for name, file in _files(path):
            if name not in leave_out:
                digest.update(f"{name}\0{_file(file)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()
    except FileNotFoundError as error:
        raise InputError(f"{shown(error.filename or path, limit=200)} is not there; check the name") from None


def _file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """All files below a folder with their names in it, in the order of these."""
    found = []
    for where, _, names in os.walk(folder):
        found += [Path(where, name) for name in names]
    for file in sorted(found):
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
    """The time, as all logs here have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class StateFile:
    """The state file of a workflow: what each step has done, and the words of files that need not be read again.

    Each step has `done`, which describes what lies in `out`, and `now`, its last try if that did not end well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, str]] = {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version = content["version"]
            if version == VERSION:
                self.steps, self.files = dict(content["steps"]), dict(content["files"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"the state {shown(path, limit=200)} cannot be read ({shown(error)}): move it and what the steps have"
                " written away, and run again"
            ) from None
        if version != VERSION:
            raise StoreError(
                f"the state {shown(path, limit=200)} has version {shown(version)}, this dasrel writes {VERSION}: use"
                " the dasrel that wrote it, or another folder (out)"
            )

    def save(self) -> None:
        """Write it, atomically."""
        content = {"version": VERSION, "steps": self.steps, "files": self.files}
        write_json(self.path, redacted(content) | {"files": self.files})


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, atomically, and on the disk when this returns."""
    with replacing(path, sync=True) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")


class Log:
    """A log of events, each a JSON object on a line of its own: a file that grows, stdout for "-", or nothing."""

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
        """Write an event. Values that are None are left out."""
        if self._file is None:
            return
        told = {name: value for name, value in values.items() if value is not None}
        line = json.dumps({"time": now(), "event": event, **redacted(told)}, default=str)
        with self._lock:
            self._file.write(line + "\n")  # one write: lines of two processes do not mix
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None and self._file is not sys.stdout:
            self._file.close()
