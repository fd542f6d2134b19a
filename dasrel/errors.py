"""Exceptions and warnings of dasrel.

Every error that a user's input can cause is a `DasrelError`. Its message is one line, `problem: where; remedy`. The
children also inherit from the builtin that a caller would think of catching.

A remedy names options in braces: `{kind=similarity}` is an option with a value, `{resume=True}` a switch, `{memory}`
the option alone, and `{Policy.symmetrize=mean}` a field of a group. Python shows them as keywords, the command line as
its options, and a workflow as its keys:

>>> error = InputError("asymmetric", where="a and b", remedy="say {Policy.symmetrize=mean}")
>>> print(error)
asymmetric: a and b; say Policy(symmetrize='mean')
>>> error.text(lambda name, value: f"<{name} {value}>")
'asymmetric: a and b; say <Policy.symmetrize mean>'

A problem that begins with the name of an option says so, and is written in the same way:

>>> InputError("n_clusters is 0", option="n_clusters").text(lambda name, value: f"<{name}>")
'<n_clusters> is 0'
"""

from __future__ import annotations

import re
from collections.abc import Callable

OPTION = re.compile(r"\{([A-Za-z_]+(?:\.[a-z_]+)?)(?:=([^{}]+))?\}")
"""An option in a remedy: its name, perhaps with its group, and its value."""


def as_keyword(name: str, value: str | None) -> str:
    """Write an option as Python does.

    >>> as_keyword("kind", "kernel"), as_keyword("memory", None), as_keyword("Policy.missing", "VALUE")
    ("kind='kernel'", 'memory', 'Policy(missing=VALUE)')
    """
    group, _, name = name.rpartition(".")
    if group and value is None:
        value = "..."
    if value is not None:
        # Numbers, switches and words in capitals, which stand for something else, have no quotes.
        name = f"{name}={value if re.fullmatch(r'True|[A-Z]+|[-+.e0-9]+', value) else repr(value)}"
    return f"{group}({name})" if group else name


class _Message(Exception):  # noqa: N818 - the parent of warnings too
    """What is wrong, where it is, and what to do about it."""

    def __init__(
        self, problem: str = "", *, where: str | None = None, remedy: str | None = None, option: str | None = None
    ) -> None:
        super().__init__(problem)  # pickle passes this on, and sets the other fields by itself
        self.problem = problem
        """What is wrong."""
        self.where = where
        """The file, tile, objects or runs concerned."""
        self.remedy = remedy
        """What to do, with options in braces."""
        self.option = option
        """The option whose name the problem begins with."""

    def text(self, option: Callable[[str, str | None], str] = as_keyword) -> str:
        """Return all of it in one line, each option in it written by `option(name, value)`."""
        line = str(self.problem)
        if self.option is not None:
            line = option(self.option, None) + line.removeprefix(self.option)
        if self.where is not None:
            line += f": {self.where}"
        if self.remedy is None:
            return line
        return f"{line}; {OPTION.sub(lambda match: option(*match.groups()), self.remedy)}"

    def __str__(self) -> str:
        return self.text()


class DasrelError(_Message):
    """An error that the user can correct; the message says how."""


class InputError(DasrelError, ValueError):
    """An argument, a source file or its values cannot be used."""


class StoreError(DasrelError, OSError):
    """A store is missing, unfinished, damaged or of another format version."""


class MemoryLimitError(DasrelError, MemoryError):
    """The predicted memory is above the limit; nothing was read."""

    # That of MemoryError refuses to make one of these, and Dask needs it where the error of a worker arrives.
    __new__ = Exception.__new__  # type: ignore[assignment]


class Stopped(DasrelError):  # noqa: N818 - not an error of anybody's
    """The work was asked to end early, by SIGTERM or a time limit. It is kept, and can be resumed."""

    def __init__(
        self, problem: str, *, scans: int = 0, checkpoint: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy)
        self.scans = scans
        """Scans done, those before earlier stops included."""
        self.checkpoint = checkpoint
        """The file that holds the state; None where a store keeps the work itself."""


class ClusterError(DasrelError, RuntimeError):
    """A cluster cannot be reached or started, or was lost in the middle of the work."""


class DasrelWarning(_Message, UserWarning):
    """A result is there, but the user should know something about it."""
