"""Exceptions and warnings of dasrel.

The errors and warnings of dasrel.

Every error that a user's input can cause is a `DasrelError`; its message is one line that says what is wrong,
where, and what to do. The children also inherit from the builtin that a caller would think of catching.
"""

from __future__ import annotations


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


class Stopped(DasrelError):  # noqa: N818 - not an error of anybody's
    """The work was asked to end early, by SIGTERM or a time limit. It is kept, and can be gone on with."""

    def __init__(self, text: str, *, scans: int = 0, checkpoint: str | None = None) -> None:
        super().__init__(text)
        self.scans = scans
        """Scans done, those before earlier stops included."""
        self.checkpoint = checkpoint
        """The file that holds the state; None where a store keeps the work itself."""


class ClusterError(DasrelError, RuntimeError):
    """A cluster cannot be reached or started, or was lost in the middle of the work."""


class DasrelWarning(UserWarning):
    """A result is there, but the user should know something about it."""
