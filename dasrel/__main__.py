"""Start the command `dasrel`, which `python -m dasrel` is too.

This module imports nothing large: SIGTERM is answered in one line from the first moment on, and not only when NumPy,
Dask and the command line have been imported, which takes a second.
"""

from __future__ import annotations

import atexit
import gc
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
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # it is closed: no file that is opened later may take its place
            null = os.open(os.devnull, os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    gc.disable()  # what is imported stays: a tenth of the start is looking for garbage in it
    try:
        from dasrel.cli.app import run
    except (MemoryError, ImportError, OSError) as error:
        why = str(error) or "out of memory"
        print(f"dasrel: the program cannot be loaded: {why}; is a limit too low (ulimit -v)?", file=sys.stderr)
        sys.exit(1)

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no error
    code = run(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(code))  # the command has ended, with this code
    if code in (130, TERMINATED):
        # Threads may be in the middle of a task that takes minutes. A store can be left at any moment, so we do.
        sys.stderr.flush()
        os._exit(code)
    _end_zarr()
    sys.exit(code)


def _end_zarr() -> None:
    """Wait for Zarr's thread: at exit Zarr gives it a fifth of a second, and prints a traceback after that."""
    sync = sys.modules.get("zarr.core.sync")
    loop, thread = (getattr(sync, name, [None])[0] for name in ("loop", "iothread"))
    if loop is not None and thread is not None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def _end(number: int, frame: FrameType | None) -> None:
    """Answer a signal that comes while nothing has begun, or after everything has ended."""
    os.write(2, b"dasrel: stopped by SIGTERM\n")
    os._exit(TERMINATED)


if __name__ == "__main__":
    main()
