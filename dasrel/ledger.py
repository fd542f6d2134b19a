"""What a workflow writes down: its state after every step, and its log of JSON lines. No credentials in either."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self, TextIO

from dasrel.errors import InputError, StoreError, redacted, shown

VERSION = 1


def now() -> str:
    """The time, as all logs here have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class State:
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
        """Write it aside, and rename it."""
        content = {"version": VERSION, "steps": self.steps, "files": self.files}
        write_json(self.path, redacted(content) | {"files": self.files})


def write_json(path: Path, content: Any) -> None:
    """A JSON file, on the disk and whole, or as it was before."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


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
