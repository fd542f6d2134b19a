"""The command that repeats a result, from the options that it has recorded."""

from __future__ import annotations

import shlex
from dataclasses import MISSING
from typing import Any

from dasrel.options import (
    option_fields,
)
from dasrel.util.text import redacted, shown

GROUPS: dict[str, tuple[type, ...]] = {
}  # fmt: skip
"""The option groups of the command that writes each kind of result."""
FLAG = "--"


def repeated_command(kind: str, store: str, out: str, requested: dict[str, Any]) -> str:
    """Return the command line that makes a result again: options that have their default value are left out.

    >>> repeated_command("cluster", "a.zarr", "out", {"n_clusters": [2, 3], "rule": ["hard"], "n_init": 10})
    'dasrel cluster a.zarr out --clusters 2,3 --rule hard'
    """
    words = ["dasrel", kind, store]
    words += [f"{FLAG}out", out] if kind == "euclideanize" else [out]
    for group in GROUPS[kind]:
        for one in option_fields(group):
            value = requested.get(one.field)
            if value is None or (one.default is not MISSING and value == one.default):
                continue
            name = one.name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"{FLAG}{name}" if value else f"{FLAG}no-{name}")
            else:
                words += [f"{FLAG}{name}", ",".join(map(_text, value)) if isinstance(value, list) else _text(value)]
    return " ".join(shlex.quote(shown(redacted(word), limit=4096)) for word in words)


def _text(value: Any) -> str:
    """Write a number with all of its digits, and no more: "2" for 2.0."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def options_table(requested: dict[str, Any]) -> list[tuple[str, str]]:
    """Return recorded options for people."""
    rows = []
    for name, value in requested.items():
        text = " ".join(map(_text, value)) if isinstance(value, list) else _text(value)
        rows.append((name, "not given" if value is None else text))
    return rows
