"""Ways to damage bytes, text and JSON, driven by a random generator."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

Rng = np.random.Generator
T = TypeVar("T")

INTEGERS = (0, 1, 2, 3, 7, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
WORDS = (
    "", " ", "0", "-0", "1", "-1", "nan", "NaN", "NA", "inf", "-inf", "1e400", "1e-400", "1e308", "1_000", "0x10",
    "1,5", "1.5.2", "--", "+", ".", "e5", "1e", "9" * 30, "9" * 5000, "0." + "1" * 200, "a", "é", "\ufeff", "\x00",
    "\x1b[2J", '"', '"a', 'a"b', '"1,5"', "'", "#", "%", "-", "null", "None", "True", "٣", "\uff11", "1 2", "a\u2028b",
)  # fmt: skip
"""Fields that a reader may take for something else."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 10**12, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "",
    "x", "distance", "kernel", "similarity", "complete", "writing", "float32", "float64", ">f8", "<f4", "object",
    "../../x", "\x00", "a" * 300, [], {}, [[]], [1, 2], [10, 10], {"name": "pickle"}, {"a": 1},
)  # fmt: skip
"""Values of a JSON document that nobody wrote there."""


def pick(rng: Rng, items: Sequence[T]) -> T:
    """One of them."""
    return items[int(rng.integers(len(items)))]


def chance(rng: Rng, probability: float) -> bool:
    return bool(rng.random() < probability)


# --------------------------------------------------------------------------------------------------------------- bytes


def span(rng: Rng, size: int, most: int = 64) -> tuple[int, int]:
    """A short part of that many bytes, now and then a long one."""
    first = int(rng.integers(size + 1))
    length = int(rng.integers(size + 1)) if chance(rng, 0.1) else int(rng.integers(1, most + 1))
    return first, min(size, first + length)


def _flip(rng: Rng, data: bytes) -> bytes:
    where = int(rng.integers(len(data)))
    return data[:where] + bytes([data[where] ^ (1 << int(rng.integers(8)))]) + data[where + 1 :]


def _set(rng: Rng, data: bytes) -> bytes:
    where = int(rng.integers(len(data)))
    return (
        data[:where] + bytes([pick(rng, [0, 1, 10, 32, 34, 127, 128, 255, int(rng.integers(256))])]) + data[where + 1 :]
    )


def _integer(rng: Rng, data: bytes) -> bytes:
    size, order = pick(rng, (1, 2, 4, 8)), pick(rng, ("little", "big"))
    number = (pick(rng, INTEGERS) % 256**size).to_bytes(size, order)  # type: ignore[arg-type]
    where = int(rng.integers(len(data)))
    return (data[:where] + number + data[where + size :])[: max(len(data), where + size)]


def _truncate(rng: Rng, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data)))] if chance(rng, 0.5) else data[: -int(rng.integers(1, 9))]


def _delete(rng: Rng, data: bytes) -> bytes:
    a, b = span(rng, len(data))
    return data[:a] + data[b:]


def _insert(rng: Rng, data: bytes) -> bytes:
    where = int(rng.integers(len(data) + 1))
    return data[:where] + rng.bytes(int(rng.integers(1, 17))) + data[where:]


def _repeat(rng: Rng, data: bytes) -> bytes:
    a, b = span(rng, len(data))
    return data[:b] + data[a:b] * int(rng.integers(1, 4)) + data[b:]


def _zeros(rng: Rng, data: bytes) -> bytes:
    a, b = span(rng, len(data))
    return data[:a] + pick(rng, (b"\0", b"\xff")) * (b - a) + data[b:]


def _move(rng: Rng, data: bytes) -> bytes:
    a, b = span(rng, len(data))
    where = int(rng.integers(len(data) + 1))
    return data[:where] + data[a:b] + data[where + (b - a) :]


def _append(rng: Rng, data: bytes) -> bytes:
    return data + pick(rng, (b"\0", b"\n", b" ", data, rng.bytes(5), b"\0" * 512))


BYTES: tuple[Callable[[Rng, bytes], bytes], ...] = (
    _flip, _flip, _set, _integer, _truncate, _delete, _insert, _repeat, _zeros, _move, _append,
)  # fmt: skip


def damaged_bytes(rng: Rng, data: bytes, *, most: int = 3) -> bytes:
    """The bytes with one to three changes."""
    for _ in range(int(rng.integers(1, most + 1))):
        if not data:
            return data
        data = pick(rng, BYTES)(rng, data)
    return data


# ---------------------------------------------------------------------------------------------------------------- text


def damaged_text(rng: Rng, text: str, mark: str) -> bytes:
    """Text of lines and fields, with one to three changes to lines, fields, delimiters or single bytes."""
    for _ in range(int(rng.integers(1, 4))):
        lines = text.split("\n")
        at = int(rng.integers(len(lines)))
        cut = lines[at].split(mark)
        field = int(rng.integers(len(cut)))
        change = int(rng.integers(15))
        if change <= 4:
            cut[field] = pick(rng, WORDS)
        elif change == 5:
            cut.insert(field, pick(rng, WORDS))
        elif change == 6:
            cut.pop(field)
        elif change == 7:
            other = int(rng.integers(len(cut)))
            cut[field], cut[other] = cut[other], cut[field]
        elif change == 8:
            cut[field] = f'"{cut[field]}"'
        lines[at] = mark.join(cut)
        if change == 9:
            lines.pop(at)
        elif change == 10:
            lines.insert(at, pick(rng, ("", " ", mark, "#", "# x", lines[at], mark.join(WORDS[:5]), "\x00")))
        elif change == 11:
            other = int(rng.integers(len(lines)))
            lines[at], lines[other] = lines[other], lines[at]
        elif change == 12:
            lines[at] = lines[at].replace(mark, pick(rng, (",", ";", "\t", " ", "  ", mark + mark)))
        elif change == 13:
            lines[at] += pick(rng, ("\r", mark, " ", "\x0b", "\x85"))
        text = "\n".join(lines)
        if change == 14:
            return damaged_bytes(rng, text.encode())
    return text.encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------------------------------------------------- JSON


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, item in items:
        found += _places(item, (*path, key))
    return found


def damaged_json(rng: Rng, value: Any) -> Any:
    """The document with one value replaced, removed, renamed or copied from elsewhere in it."""
    value = json.loads(json.dumps(value))
    places = _places(value)
    if not places:
        return pick(rng, VALUES)
    path = pick(rng, places)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    change, last = int(rng.integers(6)), path[-1]
    if change <= 2:
        holder[last] = pick(rng, VALUES)
    elif change == 3:
        del holder[last]
    elif change == 4 and isinstance(holder[last], int) and not isinstance(holder[last], bool):
        holder[last] += pick(rng, (-1, 1, 2, 10, -holder[last]))
    elif change == 4 and isinstance(holder, dict):
        holder[f"{last}x"] = holder.pop(last)
    else:
        other = value
        for key in pick(rng, places):
            other = other[key]
        holder[last] = json.loads(json.dumps(other))
    return value
