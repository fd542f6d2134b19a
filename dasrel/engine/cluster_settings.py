"""The settings of a cluster to start, `KIND:NAME=VALUE,...`: what each may be, and how scripts of jobs hold it.

The text may come from a file that somebody else has written, and Dask puts values into the scripts of jobs as they are.
So every value is matched with what it may be. What a job runs on purpose (python, prologue, directive, image, spec) a
workflow file may not say at all.
"""

from __future__ import annotations

import re
from typing import Any

from dasrel.errors import InputError
from dasrel.util.limits import memory_limit
from dasrel.util.text import did_you_mean, shown

NAME = r"\w[\w.@:+/-]*", "a name of letters, digits and . _ - + @ : /"
LABEL = r"(?![.-])([a-z0-9.-]|\{user\}|\{uuid\})+", "small letters, digits, - and ., such as lab-1"
NUMBER = r"[0-9]+", "a whole number above 0"
TIME = r"([0-9]+-)?[0-9]+(:[0-9]{1,2}){0,2}", "a time such as 02:00:00, 1-12:00:00 or 90 (minutes)"
CPUS = r"[0-9]+(\.[0-9]+)?m?", "a number of cpus, such as 2 or 500m"
PATH = r"[\w./@:+=~-]+", "a path of letters, digits and . / _ - + @ : = without blanks"
PLACE = (
    r"([^$`\"\\]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})+",
    "a path, in which variables of the job such as $TMPDIR may be",
)
MEMORY = TEXT = r".+", ""
"""Memory is read as everywhere; text is what the user wants to be run."""

SETTINGS: dict[str, dict[str, tuple[str, str]]] = {
    "local": {"workers": NUMBER, "threads": NUMBER, "memory": MEMORY},
    "slurm": {
        **{"queue": NAME, "account": NAME, "jobs": NUMBER, "cores": NUMBER, "processes": NUMBER, "memory": MEMORY},
        **{"walltime": TIME, "interface": NAME, "python": PLACE, "logs": PATH, "scratch": PLACE, "directive": TEXT},
        **{"prologue": TEXT},
    },
    "kubernetes": {
        **{"image": NAME, "workers": NUMBER, "memory": MEMORY, "cpus": CPUS, "namespace": LABEL, "name": LABEL},
        **{"spec": TEXT},
    },
    "mpi": {"threads": NUMBER, "memory": MEMORY, "interface": NAME},
}
"""The settings of each kind of cluster, with a pattern of their values and its words."""
SEVERAL = ("directive", "prologue")
"""Settings that may be given more than once; their value is a list."""
RUNS_CODE = ("python", "prologue", "directive", "image", "spec")
"""Settings that say which program a cluster runs."""


def parsed_cluster(text: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of a cluster and its settings.

    >>> parsed_cluster("local:workers=4,memory=4GB")
    ('local', {'workers': 4, 'memory': '4GB'})
    """
    kind, _, rest = text.partition(":")
    known = SETTINGS.get(kind)
    if known is None:
        raise InputError(f"dask {shown(text)!r} is unknown", remedy=did_you_mean(kind, SETTINGS))
    settings: dict[str, Any] = {}
    for part in (piece.strip() for piece in rest.split(",")) if rest else ():
        name, equals, value = part.partition("=")
        if name not in known or not equals or not value:
            if name in known:
                raise InputError(f"dask {kind}: {shown(part)!r} is not NAME=VALUE")
            raise InputError(f"dask {kind}: it has no setting {shown(name)!r}", remedy=did_you_mean(name, known))
        if name in settings and name not in SEVERAL:
            raise InputError(f"dask {kind}: {name} is given twice")
        checked = _checked(f"dask {kind}: {name}", value, *known[name])
        if name in SEVERAL:
            settings.setdefault(name, []).append(checked)
        else:
            settings[name] = checked
    return kind, settings


def _checked(what: str, value: str, pattern: str, words: str) -> int | str:
    """Return the value of a setting, a number as such."""
    if not value.isprintable():  # a line end would begin another line of the script
        raise InputError(f"{what} is {shown(value)!r}", remedy="leave out line ends and other control characters")
    if pattern == NUMBER[0]:
        if not (re.fullmatch(pattern, value) and int(value) > 0):
            raise InputError(f"{what} is {shown(value)!r}", remedy=f"it must be {words}")
        return int(value)
    if what.endswith(": memory"):
        memory_limit(value, what)
    if not re.fullmatch(pattern, value):
        raise InputError(f"{what} is {shown(value)!r}", remedy=f"it must be {words}")
    return value


def shell_word(value: str) -> str:
    """Return a path as one word of a script, in which only variables are replaced.

    >>> print(shell_word("~/$SLURM_JOB_ID/a b;c"))
    "$HOME/$SLURM_JOB_ID/a b;c"
    """
    value = re.sub(r"^~(?=/|$)", "$HOME", value)
    if not re.fullmatch(PLACE[0], value):
        raise InputError(f"{shown(value)!r} cannot be written into a script", remedy=f"it must be {PLACE[1]}")
    return f'"{value}"'


def plain_path(value: str, what: str) -> str:
    """Return a path that can stand in a script as it is; raise for another."""
    if not re.fullmatch(PATH[0], value):
        raise InputError(f"{what} is {shown(value, limit=200)!r}", remedy=f"for jobs it must be {PATH[1]}")
    return value
