"""Result folders and CSV files, complete or absent, and checks that a result may be written."""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dasrel import __version__
from dasrel.errors import DasrelError, DasrelWarning, InputError
from dasrel.util import PathLike, progress
from dasrel.util.files import replacing, replacing_folder
from dasrel.util.reading import load_json
from dasrel.util.text import is_url, json_ready, shown

VARYING = frozenset(
    {
        *("seconds", "update_seconds", "began", "ended", "since", "signature"),
        *("version", "versions", "dasrel"),
    }
)
"""Keys of result.json, spectrum.json and the state file of a workflow that hold times and versions."""
MOST_IDS = 10
"""Ids in a report; the table has all of them."""


def without_times(content: Any) -> Any:
    """Return the content of a JSON file without times and versions: the rest is the same whenever the work is repeated.

    >>> without_times({"scans": 3, "seconds": 0.2, "settings": [{"n_iter": 4, "versions": {"numpy": "2.1"}}]})
    {'scans': 3, 'settings': [{'n_iter': 4}]}
    """
    if isinstance(content, dict):
        return {name: without_times(value) for name, value in content.items() if name not in VARYING}
    return [without_times(value) for value in content] if isinstance(content, list) else content


def finished_result(out: PathLike, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Return the content of result.json in a result folder if it has these values, or None.

    A process that was killed after it had written its result finds it here when it is resumed. `wanted` must identify
    the work: the matrix and the options.
    """
    try:
        result = load_json(Path(out) / "result.json")
    except (OSError, ValueError):
        return None
    wanted = json.loads(json.dumps(json_ready(wanted)))
    if not isinstance(result, dict) or any(name not in result or result[name] != wanted[name] for name in wanted):
        return None
    progress.current().found_complete(str(out))
    return result


def write_json(path: Path, result: Any) -> None:
    """Write a result as a JSON file, atomically."""
    with replacing(path) as new:
        new.write_text(json.dumps(json_ready(result), indent=1) + "\n", encoding="utf-8")


@contextmanager
def result_folder(target: Path, result: dict[str, Any], *, force: bool = False) -> Iterator[Path]:
    """Yield a folder to be filled, which becomes `target`, with its result.json, when the block ends without an error.

    What is there by then is replaced by `force` only: of two processes that write at once, one wins.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_folder(target, check=lambda: check_out(target, force=force)) as temporary:
        yield temporary
        write_json(temporary / "result.json", result)


def versions() -> dict[str, str]:
    """Return the versions of what made a result, for its result.json."""
    import numpy as np

    return {"dasrel": __version__, "python": platform.python_version(), "numpy": np.__version__}


def draw_or_warn(draw: Callable[..., None], *arguments: Any) -> None:
    """Draw pictures; one that cannot be drawn is a warning, so that hours of work are not lost with it."""
    try:
        draw(*arguments)
    except (OSError, DasrelError):
        raise
    except Exception as error:
        reason = shown(error, limit=200) or type(error).__name__
        warnings.warn(DasrelWarning(f"no picture could be drawn ({reason}); all else is written"), stacklevel=2)


def check_out(out: PathLike, *, force: bool) -> None:
    """Raise if the result folder exists or may not be replaced; call before any work."""
    target = Path(out)
    where = shown(target, limit=200)
    if is_url(target):
        raise InputError(f"results are written to a folder of this machine, not to {where}")
    if not os.path.lexists(target):
        return
    if not force:
        raise InputError(
            f"{where} exists", remedy="choose another place, or say {force=True} to replace an earlier result"
        )
    is_result = target.is_dir() and ((target / "result.json").is_file() or not any(target.iterdir()))
    if not is_result or target.is_symlink():
        raise InputError(f"{where} is no folder of results (it has no result.json), so force does not replace it")


def check_not_input(out: PathLike, *inputs: object) -> None:
    """Raise if an output is one of the inputs, also by another name, or a folder that an input lies in."""
    for source in inputs:
        if not isinstance(source, (str, os.PathLike)) or is_url(source) or is_url(out) or not os.path.exists(source):
            continue
        given, target = Path(os.path.realpath(source)), Path(os.path.realpath(out))
        if target in (given, *given.parents) or (os.path.exists(out) and os.path.samefile(source, out)):
            raise InputError(
                f"{shown(out, limit=200)} would replace what is read, {shown(source, limit=200)}",
                remedy="choose another name",
            )


def check_file(path: PathLike, *, force: bool) -> None:
    """Raise if the file exists and may not be replaced; call before any work."""
    if is_url(path):
        raise InputError(f"{shown(path, limit=200)} is no file of this machine", remedy="give the name of one")
    if os.path.isdir(path):
        raise InputError(f"{shown(path, limit=200)} is a folder", remedy="give the name of a file")
    if os.path.lexists(path) and not force:
        raise InputError(
            f"{shown(path, limit=200)} exists", remedy="choose another name, or say {force=True} to replace it"
        )


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, atomically. Names are quoted where they need it, line breaks in them included."""
    with replacing(path) as part, part.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.write(",".join(map(_quoted, header)) + "\n")
        file.writelines(",".join(map(_quoted, line)) + "\n" for line in lines)


def _quoted(value: Any) -> str:
    """Return one field: booleans as in JSON, the items of a list with blanks between them.

    Python's csv module does not quote a lone carriage return, which ends a line elsewhere.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "" if value is None else " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    plain = text.isprintable() and not ("," in text or '"' in text)
    return text if plain else '"' + text.replace('"', '""') + '"'
