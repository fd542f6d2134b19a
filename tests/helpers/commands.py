"""The work of a command, prepared as the command line does."""

from typing import Any

from dasrel.commands.base import Prepared, Target
from dasrel.commands.operations import operation


def prepared(
    name: str, source: Any, out: Any = None, *, force: bool = False, resume: bool = False, **options: Any
) -> Any:
    """Return the checked work of an operation with these options."""
    of = operation(name)
    work: Prepared = of.prepare(source, Target(out, force=force, resume=resume), of.Options(**options))
    return work
