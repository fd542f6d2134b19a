"""Start the command `dasrel`, which `python -m dasrel` is too.

This module imports nothing large: SIGTERM is answered in one line from the first moment on, and not only when NumPy,
Dask and the command line have been imported, which takes a second.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

TERMINATED = 143
"""128 + SIGTERM: the exit code of a process that SIGTERM has ended."""


def main() -> None:
    """Run the command line of this process and exit."""
    signal.signal(signal.SIGTERM, _end)
    # While Python takes itself apart it would restore the default, which ends the process with another exit code.
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    from dasrel.cli.app import run

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no error
    code = run(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(code))  # the command has ended, with this code
    if code in (130, TERMINATED):
        # Threads may be in the middle of a task that takes minutes. A store can be left at any moment, so we do.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    """Answer a signal that comes while nothing has begun, or after everything has ended."""
    os.write(2, b"dasrel: stopped by SIGTERM\n")
    os._exit(TERMINATED)


if __name__ == "__main__":
    main()
