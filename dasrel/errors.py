"""The errors and warnings of dasrel.

Every error that a user's input can cause is a `DasrelError`; its message is one line that says what is wrong,
where, and what to do. The children also inherit from the builtin that a caller would think of catching.
"""

from __future__ import annotations

from collections.abc import Iterable


class DasrelError(Exception):
    """Something that the user can mend; the message says how."""


class InputError(DasrelError, ValueError):
    """An argument, a source file or its values cannot be used."""


class StoreError(DasrelError, OSError):
    """A store is missing, unfinished, damaged or of another format version."""

    def __str__(self) -> str:  # OSError would show an errno that we never set
        return str(self.args[0]) if self.args else ""


class MemoryLimitError(DasrelError, MemoryError):
    """The predicted memory is above the limit; nothing was read."""


class DasrelWarning(UserWarning):
    """A result is there, but the user should know something about it."""


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


def shown(text: object, *, limit: int = 60) -> str:
    """Text from data, made safe to print: control characters escaped, long strings cut.

    >>> shown("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    raw = str(text)
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in raw[: limit + 1])
    return safe if len(raw) <= limit else safe[: limit - 3] + "..."
