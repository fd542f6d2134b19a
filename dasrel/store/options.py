"""Options of stores: how flaws of a matrix are repaired, and how a store is written."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from dasrel.errors import InputError
from dasrel.names import is_similarity
from dasrel.util.option_fields import (
    FIXED_MEMORY,
    REPAIRS,
    REPLACE,
    WRITING,
    Selection,
    check_part,
    option,
    parse_diagonal,
    parse_fill,
    parse_missing,
    parse_part,
    time_limit_option,
)

_repair = partial(option, panel=REPAIRS)


@dataclass(frozen=True)
class Policy:
    """How to repair flaws of the input. A flaw without a repair is an error; repairs are recorded in the store."""

    symmetrize: Literal["error", "mean", "mean-square", "max"] = _repair(
        "error",
        "One value for pairs that have two. The objective of a clustering stays that of both values with mean-square"
        " for kind distance, and with mean for the other kinds.",
        implied="error",
    )
    """How a pair whose two values differ becomes one value: their mean, the root of the mean of their squares (for
    kind distance only), or the larger. Objectives depend on the mean of the squared dissimilarities (F09 2.3), which
    "mean-square" keeps for kind distance and "mean" for the other kinds."""
    missing: Literal["error", "max"] | float = _repair(
        "error",
        "A value for pairs that have none.",
        implied="error",
        metavar="fill=VALUE|max",
        parse=parse_missing,
    )
    """The value for pairs that are absent or NaN: a number, or the largest value present."""
    diagonal: Literal["error", "zero"] | float = _repair(
        "error",
        "Set a distance's non-zero diagonal to zero; or the similarity of objects with themselves, where it is absent.",
        implied="error",
        metavar="zero|VALUE",
        parse=parse_diagonal,
    )
    """Whether a distance matrix's non-zero diagonal is set to zero, or a number: the similarity of each object with
    itself, where the source has none, such as a list without self pairs. One that is there must be that number."""
    clip_negative: float = _repair(0.0, "Distances from -TOL to 0 become 0.", metavar="TOL", least=0)
    """Distances in [-clip_negative, 0) become 0."""
    duplicates: Literal["error", "mean", "min", "max", "last"] = _repair(
        "error", "One value for pairs that are listed more than once.", implied="error"
    )
    """Which value is used when a list of pairs names the same ordered pair more than once."""

    def __post_init__(self) -> None:
        _one_of("symmetrize", self.symmetrize, ("error", "mean", "mean-square", "max"))
        if isinstance(self.diagonal, str):
            _one_of("diagonal", self.diagonal, ("error", "zero"))
        elif not math.isfinite(self.diagonal):
            raise InputError(f"diagonal must be a finite number, 'zero' or 'error', not {self.diagonal}")
        _one_of("duplicates", self.duplicates, ("error", "mean", "min", "max", "last"))
        if isinstance(self.missing, str):
            _one_of("missing", self.missing, ("error", "max"))
        elif not math.isfinite(self.missing):
            raise InputError(f"missing must be a finite number, 'max' or 'error', not {self.missing}")
        if not (math.isfinite(self.clip_negative) and self.clip_negative >= 0):
            raise InputError(f"clip_negative must be a finite number >= 0, not {self.clip_negative}")

    def record(self) -> dict[str, Any]:
        """Return plain values for the store's attributes."""
        return asdict(self)

    def check_kind(self, kind: str) -> None:
        """Raise if a repair has no meaning for this kind of matrix."""
        if self.symmetrize == "mean-square" and kind != "distance":
            raise InputError(
                f"symmetrize mean-square is for kind distance, whose values are squared later, not for kind {kind}",
                remedy="say {Policy.symmetrize=mean}, which keeps the objective here",
            )
        if is_similarity(kind):
            for name, idle in (("missing", self.missing != "max"), ("diagonal", self.diagonal != "zero"),
                               ("clip_negative", self.clip_negative == 0)):  # fmt: skip
                if not idle:
                    raise InputError(
                        f"{name} {getattr(self, name)} has no meaning for kind {kind}: it is for distances"
                    )
        elif not isinstance(self.diagonal, str):
            raise InputError(
                f"diagonal {self.diagonal:g} is for similarities and kernels: a {kind} of an object to itself is 0",
                remedy="leave it out, or say {Policy.diagonal=zero} to set it so",
            )
        elif not isinstance(self.missing, str) and self.missing < 0:
            raise InputError(f"missing {self.missing}: kind {kind} takes no negative values")


Group = TypeVar("Group")


def group(value: Any, kind: type[Group], name: str) -> Group:
    """Return an option group that was given, or the default one; raise if it is something else, such as a dict."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InputError(
            f"{name} is of type {type(value).__name__}",
            remedy=f"give a dasrel.{kind.__name__}, such as {kind.__name__}()",
        )
    return value


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


NEW_PAIRS = Selection(
    Policy,
    *("symmetrize", "missing", "diagonal", "clip_negative"),
    missing={"typed": float, "metavar": "fill=VALUE", "parse": parse_fill},
)
"""Repairs of appended rows: they list no pairs, and the largest value may still come with a later append."""


_writing = partial(option, panel=WRITING)


@dataclass(frozen=True)
class Writing:
    """How to write a store."""

    dtype: Literal["float32", "float64"] = _writing("float32", "Type of the numbers in the store.", name="store_dtype")
    tile: int | None = _writing(None, "Objects per side of a tile; if not given, tiles of at most 64 MiB.", least=1)
    """Objects per side of a tile; by default at most 64 MiB per tile."""
    compress: Literal["lz4"] | None = _writing(None, "Compress the tiles: smaller on disk, slower to read.")
    memory: int | str = _writing("1GiB", FIXED_MEMORY, typed=str, metavar="SIZE", effort=True)
    """Anonymous memory that the work may use on this machine, in bytes or such as "2GiB"."""
    resume: bool = _writing(False, "Continue an unfinished store.", command_only=True)
    """Continue an unfinished store: only missing tiles are written."""
    force: bool = _writing(False, REPLACE, command_only=True)
    """Replace an existing store, by a rename once the new one is complete."""
    part: tuple[int, int] | None = _writing(
        None, "Write part K of N of the tiles; other processes write the rest.", metavar="K/N", parse=parse_part,
        command_only=True,
    )  # fmt: skip
    """Write only part k of n, (k, n) with 1 <= k <= n, of the tiles, while other processes write the others. Part 0
    only creates the store. After all parts, the same call with `resume` and without `part` completes it."""
    time_limit: float | str | None = time_limit_option(command_only=True)
    """Seconds, or such as "30m", counted from the beginning: `Stopped` is raised before the tile that would end later.
    What is written stays; `resume` continues it."""

    def __post_init__(self) -> None:
        if self.part is not None:
            check_part(self.part)
            if self.force:
                raise InputError(
                    "a part cannot replace a store", remedy="leave {force} out and remove the old one first"
                )


APPENDING = Selection(
    Writing, "memory", "resume", "force", "time_limit",
    resume={"help": "Resume even if the previous process may still be running."},
    force={"help": "Discard an unfinished append of another source."},
)  # fmt: skip
"""How to write what is appended to a store, whose format is known."""
