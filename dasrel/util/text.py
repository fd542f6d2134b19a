"""Text for people: safe text from data, short lists, redaction, sizes, times and plurals."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Any


def some(items: Iterable[object], *, show: int = 3, total: int | None = None) -> str:
    """Name the first few of many, and how many there are.

    >>> some(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    listed = list(items)
    total = len(listed) if total is None else total
    first = ", ".join(str(item) for item in listed[:show])
    left = total - min(show, len(listed))
    return f"{first} and {left} more" if left > 0 else first


def told_apart(x: float, y: float) -> tuple[str, str]:
    """Return two numbers with as few digits, from six on, as show that they differ.

    >>> told_apart(2.5155134, 2.5155127), told_apart(1, 2)
    (('2.5155134', '2.5155127'), ('1', '2'))
    """
    texts = ((f"{x:.{digits}g}", f"{y:.{digits}g}") for digits in range(6, 18))
    return next((pair for pair in texts if pair[0] != pair[1]), (f"{x:g}", f"{y:g}"))


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Write a number with its noun, in the plural if need be.

    >>> count_text(1, "tile"), count_text(1200, "tile"), count_text(2, "axis", "axes")
    ('1 tile', '1,200 tiles', '2 axes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def group_sizes(sizes: Iterable[int], *, show: int = 20) -> str:
    """Write the sizes of the first clusters, and how many there are besides.

    >>> group_sizes([1200, 80, 3], show=2), group_sizes([])
    ('1,200 80 and 1 more', 'none')
    """
    listed = [f"{size:,}" for size in sizes]
    more = f" and {len(listed) - show:,} more" if len(listed) > show else ""
    return (" ".join(listed[:show]) or "none") + more


def ordinal_text(number: int) -> str:
    """Write the ordinal of a number.

    >>> [ordinal_text(number) for number in (1, 2, 3, 11, 20, 22)]
    ['1st', '2nd', '3rd', '11th', '20th', '22nd']
    """
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{suffix}"


def size_text(size: float) -> str:
    """Write a number of bytes in the decimal unit that reads best.

    >>> size_text(1), size_text(812), size_text(6_459_392), size_text(7_500_000_000)
    ('1 byte', '812 bytes', '6.46 MB', '7.5 GB')
    """
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if round(size) >= factor * 0.9995:  # so that 999,999 bytes are 1 MB, not 1e+03 kB
            return f"{size / factor:.3g} {unit}" if size < 999.5 * factor else f"{size / factor:,.0f} {unit}"
    return count_text(round(size), "byte")


def time_text(seconds: float) -> str:
    """Write a number of seconds in the unit that reads best.

    >>> time_text(0.0123), time_text(42), time_text(600), time_text(9000), time_text(500000)
    ('0.012 s', '42 s', '10 min', '2.5 h', '5.8 days')
    """
    for unit, size, least in (("days", 86400, 2 * 86400), ("h", 3600, 5400), ("min", 60, 90)):
        if seconds >= least:
            return f"{seconds / size:.2g} {unit}" if seconds < 99.5 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.2g} s"


def did_you_mean(word: object, known: Iterable[str], *, show: int = 1) -> str:
    """Suggest the known words nearest to an unknown one, or list all of them.

    >>> did_you_mean("eucliden", ["cosine", "euclidean"]), did_you_mean("x", ["cosine", "euclidean"])
    ('did you mean euclidean?', 'known: cosine, euclidean')
    """
    words = [name for name in known if name != word]
    near = difflib.get_close_matches(str(word).lower(), words, n=show)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(words)}"


def json_ready(value: Any) -> Any:
    """Replace what JSON does not have: numbers that are not finite become null, keys text, tuples lists.

    >>> json_ready({1: (0.5, float("nan"))})
    {'1': [0.5, None]}
    """
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown(text: object, *, limit: int = 60) -> str:
    """Make text from data safe to print: control characters escaped, long strings cut.

    >>> shown("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    raw = str(text)
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in raw[: limit + 1])
    return safe if len(raw) <= limit else safe[: limit - 3] + "..."


def path_text(path: object) -> str:
    """Return a path or URL for a message, made safe to print, and complete: its end says most.

    >>> path_text("runs/a\\n.npy")
    'runs/a\\\\n.npy'
    """
    return shown(path, limit=4096)


def is_url(place: object) -> bool:
    """Return whether a place is an address such as s3://..., also after `Path` has taken one of its slashes.

    >>> from pathlib import Path
    >>> is_url(Path("s3://bucket/out")), is_url("out/a:b")
    (True, False)
    """
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", str(place)) is not None


_USER = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://?)[^/\s@'\"]*@")
_LOOSE = re.compile(r"(?<![^\s'\"(=,])[^\s:/@'\"(=,]+:[^\s/@'\"]+@(?=\w)")  # user:password@host as others repeat it
_QUERY = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s?'\"]*)\?[^\s'\"]+")
_NAMED = re.compile(
    r"(?i)((?<![a-z])[a-z_]*(?:password|passwd|secret|token|api_?key|access_?key(?:_id)?|secret_?key))"
    r"(['\"]?\s*[=:]\s*)['\"]?[^\s,;'\"}]+"
)


def redacted(value: Any) -> Any:
    """Return plain values without secrets: users and passwords, signed queries, and values named secret or the like.

    >>> redacted("s3://me:secret@host/a.zarr?X-Amz-Signature=abc is not there")
    's3://***@host/a.zarr?*** is not there'
    >>> redacted({"a": ["storage_options={'secret': 'abc'}"]})
    {'a': ["storage_options={'secret': '***'}"]}
    """
    if isinstance(value, dict):
        return {name: redacted(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    if not isinstance(value, str):
        return value
    text = _LOOSE.sub("***@", _USER.sub(r"\1***@", value))
    text = _QUERY.sub(r"\1?***", text)
    return _NAMED.sub(_hidden, text)


def _hidden(secret: re.Match[str]) -> str:
    quote = "'" if secret.group(0)[len(secret.group(1)) + len(secret.group(2))] in "'\"" else ""
    return f"{secret.group(1)}{secret.group(2)}{quote}***"
