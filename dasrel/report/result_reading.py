"""Read what commands have written: JSON objects, tables and arrays of result folders, each fault in one line."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasrel.errors import InputError
from dasrel.util import Array, Index, PathLike
from dasrel.util.reading import load_json, open_regular
from dasrel.util.text import count_text, path_text, shown

BLOCK = 16 << 20
"""Bytes of a CSV file that are parsed at once; a line is at most as long."""
WHOLE = 150_000
"""Bytes of a table that is part of the page as a whole."""


def damaged(path: PathLike, why: object) -> InputError:
    """Return the error for a file that is not as it was written."""
    return InputError(
        f"{path_text(path)} is damaged: {shown(why, limit=200)}", remedy="make the result again, or give another one"
    )


def read_json(path: Path, *, is_state: bool = False) -> dict[str, Any]:
    """Read the JSON object of a result, or of the state of a workflow, by its model."""
    from dasrel.util.records import ResultRecord, State, fault_of

    try:
        content = load_json(path)
    except OSError as error:
        raise InputError(f"{path_text(path)} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise damaged(path, f"it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise damaged(path, "it is JSON, but no object")
    if (fault := fault_of(State if is_state else ResultRecord, content)) is not None:
        raise damaged(path, fault)
    return content


def read_table(path: Path, most: int = 20_000, *, last: bool = False) -> tuple[list[str], list[dict[str, str]], int]:
    """Read a CSV file: its header, the first or the last rows by column, and the number of all rows.

    A row with another number of cells than the header is damage: the file was cut.
    """
    try:
        with open(open_regular(path), encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            rows: deque[list[str]] = deque(maxlen=most)
            count = 0
            for line in lines:
                if len(line) != len(header):
                    raise damaged(path, f"row {count + 1} has {count_text(len(line), 'cell')}, not {len(header)}")
                if last or count < most:
                    rows.append(line)
                count += 1
    except OSError as error:
        raise InputError(f"{path_text(path)} cannot be read: {error.strerror or error}") from None
    except (ValueError, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(path, error) from None
    if not header:
        raise damaged(path, "it is empty")
    return header, [dict(zip(header, line, strict=True)) for line in rows], count


def number(text: str) -> Any:
    """Return a cell of a CSV file as a number or a truth value where it is one.

    >>> number("3"), number("0.5"), number("true"), number(""), number("a1")
    (3, 0.5, True, None, 'a1')
    """
    if text in ("", "true", "false"):
        return {"": None, "true": True, "false": False}[text]
    for kind in (int, float):
        try:
            return kind(text) if "_" not in text else text
        except ValueError:
            continue
    return text


def whole_file(path: Path, most: int = WHOLE) -> bytes | None:
    """Return the content of a file that is small enough to be part of the page."""
    return path.read_bytes() if path.is_file() and path.stat().st_size <= most else None


@dataclass(frozen=True, eq=False)
class Objects:
    """Columns of a table with a line for each object, and the names of some of them."""

    columns: dict[str, Array]
    chosen: Index
    """Positions of the objects whose names are known, in the order of `names`."""
    names: list[str]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def read_objects(path: Path, columns: Sequence[str], n_objects: int, key: Any, most: int) -> Objects:
    """Read numbers of all objects from a CSV file, and the names of the first few of them in some order.

    Names may be long and many, so that only some are kept.

    Parameters
    ----------
    columns
        Those to read as float64, NaN where a cell is empty; one that the file lacks is left out, but for the first.
    key
        Given columns by name, return numbers by which objects are ordered; NaN leaves an object out.
    most
        Number of names.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow

    if not path.is_file():
        raise InputError(f"there is no {path_text(path)}")
    kept: list[dict[str, Array]] = []
    best: list[tuple[float, int, str]] = []
    at = 0
    try:
        for batch in _batches(arrow, pa, path, columns):
            numbers = {
                name: batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
                for name in columns
                if name in batch.schema.names
            }
            if columns[0] not in numbers or "id" not in batch.schema.names:
                raise damaged(path, f"it has no column {columns[0] if columns[0] not in numbers else 'id'}")
            kept.append(numbers)
            order = key(numbers)
            first = np.argsort(order, kind="stable")[:most]
            ids = batch.column("id")
            best += [(float(order[k]), at + int(k), ids[int(k)].as_py()) for k in first if not np.isnan(order[k])]
            best = sorted(best, key=lambda row: row[:2])[:most]
            at += batch.num_rows
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        raise damaged(path, str(error).partition("\n")[0]) from None
    except OSError as error:
        raise InputError(f"{path_text(path)} cannot be read: {error.strerror or error}") from None
    if at != n_objects:
        raise damaged(path, f"it has {count_text(at, 'line')} for {count_text(n_objects, 'object')}")
    merged = {name: np.concatenate([part[name] for part in kept]) for name in (kept[0] if kept else ())}
    return Objects(merged, np.array([k for _, k, _ in best], dtype=np.intp), [name for *_, name in best])


def _batches(arrow: Any, pa: Any, path: Path, columns: Sequence[str]) -> Iterator[Any]:
    types = {"id": pa.string(), **dict.fromkeys(columns, pa.float64())}
    types |= {name: pa.bool_() for name in columns if name in ("border", "outlier")}
    reader = arrow.open_csv(
        path,
        read_options=arrow.ReadOptions(block_size=BLOCK),
        parse_options=arrow.ParseOptions(newlines_in_values=True),
        convert_options=arrow.ConvertOptions(column_types=types, strings_can_be_null=False),
    )
    with reader:
        yield from reader


def read_memberships(path: Path, n_objects: int) -> Array | None:
    """Open memberships without reading all of them; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        memberships: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, error) from None
    if memberships.ndim != 2 or len(memberships) != n_objects or memberships.dtype.kind != "f":
        raise damaged(path, f"it has shape {memberships.shape} for {count_text(n_objects, 'object')}")
    return memberships


@dataclass(frozen=True, eq=False)
class Source:
    """A result that was found: what kind it is, where, and its JSON object."""

    kind: str
    """The command that writes such a result, or "linkage"."""
    path: Path
    """The folder, or the file."""
    values: dict[str, Any]
    title: str = ""
    """The name of the step of a workflow that it comes from."""
    matrix: Any = None
    """The matrix itself, where the result is of this process."""
    command: str = ""
    """The command line that makes it again, where it is known."""

    def file(self, name: str) -> Path:
        """Return the path of a file of its folder."""
        return self.path / name

    def setting(self, folder: str) -> Path:
        """Return the folder of a setting, which is `.` or a name."""
        if folder != Path(folder).name and folder != ".":
            raise damaged(self.path / "result.json", f"{folder!r} is no folder of a setting")
        return self.path / folder
