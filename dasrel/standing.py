"""How the steps of a workflow stand: done, or to be done and why. Nothing is written here.

The key of a step is made of the content of its inputs, its parameters and the formats of what dasrel writes. A step is
done when its record has this key and what it wrote is still there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dasrel.contents import Contents, store_manifest
from dasrel.errors import DasrelError, InputError, redacted, shown, some
from dasrel.ledger import State
from dasrel.lock import holder
from dasrel.recipe import Step, Workflow
from dasrel.steps import outputs

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
    state = State(workflow.out / STATE)
    known = Contents(state.files, trust=trust)
    at_work = holder(workflow.out / LOCK) is not None
    planned: dict[str, Planned] = {}
    for name, step in workflow.steps.items():
        planned[name] = judged(workflow, step, state, known, planned, read=read)
        trying = state.steps.get(name, {}).get("now") or {}
        if at_work and trying.get("status") in ("running", "putting"):
            planned[name] = Planned(step, "running", "at work", planned[name].key, since=trying.get("began"))
    return list(planned.values())


# ------------------------------------------------------------------------------------------------------------- judging


def judged(
    workflow: Workflow, step: Step, state: State, known: Contents, before: Mapping[str, Planned], *, read: bool = True
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
            return Planned(step, "failed", str(error))
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


def _fault(workflow: Workflow, step: Step, state: State, known: Contents, read: bool) -> str | None:
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


def _grown(workflow: Workflow, base: Step, state: State, known: Contents, word: str) -> list[str]:
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
            manifest = store_manifest(workflow.out / outputs(base)[0]) or {}
            if len(manifest.get("provenance", {}).get("appends", [])) == k + 1:
                words.append(known.of(workflow.out / outputs(base)[0]))
            break
        else:
            break
    return words


def _is_in(workflow: Workflow, step: Step, state: State, known: Contents) -> bool:
    """Whether a matrix holds what this step, or one behind it, has appended."""
    base = base_of(workflow, step)
    first = state.steps[base.name]["done"]["content"]
    chain = appends_of(workflow, base.name)
    words = _grown(workflow, base, state, known, first)
    return known.of(workflow.out / outputs(base)[0]) in words[chain.index(step) :]


def _word(key: str, place: str, done: Mapping[str, Any] | None, known: Contents) -> str:
    """The word of a file, a folder or a URL. A file that is gone counts as it was when the step was done."""
    if "://" in place:
        return _remote(place)
    if done is not None and done.get("files", {}).get(key) == place and not os.path.lexists(place):
        return str(done["inputs"][key])
    return known.of(Path(place))


def _remote(url: str) -> str:
    """The word of something behind a URL: names, sizes and versions of all that is there. Nothing else is read."""
    try:
        import fsspec  # type: ignore[import-untyped]

        files, root = fsspec.core.url_to_fs(url)
        found = files.find(root, detail=True)
        if not found:  # not every server lists what it has
            found = {name: {"size": files.cat_file(f"{root}/{name}").hex()} for name in _heads(files, root)}
    except Exception as error:  # whatever storage there is behind a URL has its own errors
        raise InputError(redacted(f"{shown(url, limit=200)} cannot be listed: {shown(error, limit=200)}")) from None
    if not found:
        raise InputError(redacted(f"there is nothing at {shown(url, limit=200)}"))
    digest = hashlib.sha256()
    for name, about in sorted(found.items()):
        version = about.get("ETag") or about.get("mtime") or about.get("LastModified") or about.get("created")
        digest.update(f"{name}\0{about.get('size')} {version}\n".encode())
    return digest.hexdigest()


def _heads(files: Any, root: str) -> list[str]:
    return [name for name in ("zarr.json", ".zarray", ".zgroup") if files.exists(f"{root}/{name}")]
