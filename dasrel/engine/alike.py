"""Compare what decides on the last bits of sums between this process and the workers of a cluster.

A sum has the same bits everywhere only if the same kernels add it up. A worker whose kernels differ is refused before
it reads a tile: those that are there when a cluster is connected to or a scan begins, all at once; one that joins
later, by its first task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dasrel import __version__
from dasrel.errors import ClusterError
from dasrel.kernels.native import signature
from dasrel.util import limits, parallel, stalls
from dasrel.util.text import shown, some

REMEDIES = {
    "dasrel": "install the same version of dasrel there as here",
    "numpy": "install the same version of numpy there as here",
    "kernels": "install dasrel there with its compiled kernels (it needs a C compiler), on processors of the same kind,"
    " and set DASREL_NO_NATIVE there as here",
    "BLAS": "install the same numpy there as here; on processors of several kinds set OPENBLAS_CORETYPE=Haswell there"
    " and here",
}
"""What to do about each difference."""
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""The workers of each client that are known to be alike."""


@cache
def bits_of_process() -> dict[str, str]:
    """Return what decides on the last bits of sums in this process, by name."""
    return {
        "dasrel": __version__, "numpy": np.__version__, "kernels": signature(), "BLAS": parallel.blas_name(),
    }  # fmt: skip


def check_alike(client: Any, addresses: Collection[str]) -> None:
    """Raise if workers would add up to other bits than this process. Workers found alike are not asked again."""
    known = _checked.setdefault(client, set())
    unknown = sorted(set(addresses) - known)
    if not unknown:
        return
    ask = partial(client.run, bits_of_process, workers=unknown, on_error="return")
    with stalls.watching(client) as watch:
        answers = watch.waited(ask)
    heard = {address: answer for address, answer in answers.items() if not isinstance(answer, OSError)}  # it died
    refuse_unlike(heard)
    known.update(heard)


def refuse_unlike(answers: Mapping[str, Any]) -> None:
    """Raise if one of the answers of workers, by address, differs from those of this process."""
    here = bits_of_process()
    for name in here:
        differ: dict[str, list[str]] = {}
        for address, there in answers.items():
            if isinstance(there, ModuleNotFoundError):
                raise ClusterError(
                    f"dasrel cannot be imported at {address} ({shown(there, limit=200)})",
                    remedy="install the same version of it there as here",
                )
            theirs = there.get(name, "none") if isinstance(there, dict) else "of another version"
            if theirs != here[name]:
                differ.setdefault(theirs, []).append(address)
        for theirs, where in differ.items():
            raise ClusterError(
                f"results would have other bits: {name} {shown(theirs)} at {some(where, show=2)} and {here[name]} here",
                remedy=REMEDIES[name],
            )


@cache
def check_this_worker(expected: tuple[tuple[str, str], ...]) -> None:
    """Raise, in a task, if this worker would add up to other bits than the process that sent the task."""
    from distributed import get_worker

    here = bits_of_process()
    for name, theirs in expected:
        if here.get(name) != theirs:
            raise ClusterError(
                f"results would have other bits: {name} {here.get(name)} at {get_worker().address}, which joined later,"
                f" and {theirs} in the command",
                remedy=f"{REMEDIES[name]}, or end that worker; {limits.AGAIN}",
            )
