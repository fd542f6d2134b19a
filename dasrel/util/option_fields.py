"""Options as fields of dataclasses: what commands and workflow files need to know of them, their checks and texts.

A group of options is a frozen dataclass whose fields are made by `option`; a field made by `group` holds another group,
whose options count as its own. Each option is declared once: the command line makes a flag of it, a workflow a key, and
Python a keyword.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dasrel.errors import InputError
from dasrel.util.limits import duration_seconds
from dasrel.util.text import shown


@dataclass(frozen=True)
class Reads:
    """What a value names: a file, or in a workflow perhaps another step."""

    steps: tuple[str, ...] = ()
    """Kinds of steps whose output it may be."""
    words: tuple[str, ...] = ()
    """Values that name neither a step nor a file."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of files; any other value is a step. Without suffixes a value that cannot be a step is a file."""
    own: tuple[str, ...] = ()
    """Where `true` may stand for the last result of the step itself: keys that must have been the same for it."""


@dataclass(frozen=True)
class Option:
    """How a field is given on the command line and in workflow files."""

    help: str
    panel: str
    """The section of the command's help."""
    name: str | None = None
    """The name of the option and of the key, if it is not the field's."""
    short: str | None = None
    """A short flag, such as -o."""
    metavar: str | None = None
    typed: Any = None
    """The type of what is given, if it is not the field's."""
    parse: Callable[[str], Any] | None = None
    """Convert the text of the command line; raise ValueError with the rest of a sentence that begins with the text."""
    explain: Callable[[], str] | None = None
    """Return what to say where a value that must be given is missing or is none of the choices."""
    implied: Any = None
    """A choice that is made by leaving the option out, and in no other way."""
    argument: bool = False
    """Whether it is given by its position on the command line."""
    rare: bool = False
    """Whether `--help` only names it; `--help-all` describes it."""
    command_only: bool = False
    """Whether it is no key of workflow files: it says how one process goes about the work."""
    step_only: bool = False
    """Whether it is a key of workflow files only."""
    repeated: bool = False
    """Whether the option of a list is given again for each value, which may have commas in it."""
    effort: bool = False
    """Whether it changes how the work is done, and not the result."""
    reads: Reads | None = None
    """What it names, where it names a file or a step."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    """Bounds of a number, or of each number of a list."""
    infinite: bool = False
    """Whether it may be infinite."""


def option(default: Any, help: str, panel: str, **more: Any) -> Any:  # noqa: A002
    """Return a dataclass field with the metadata of an `Option`. A list or dict as default is copied each time."""
    return _declared(default, Option(help, panel, **more))


def same(group: type, name: str, *, listed: bool = False, **changed: Any) -> Any:
    """Return a dataclass field like that of another group, where its default, bounds and help are declared.

    Parameters
    ----------
    listed
        Whether a list of such values is given; its default is a list of the one.
    changed
        Attributes of its `Option` that differ, and its "default".
    """
    source = next(field for field in fields(group) if field.name == name)
    default = changed.pop("default", source.default)
    if listed and default is not None and default is not MISSING and not isinstance(default, list):
        default = [default]
    return _declared(default, replace(source.metadata["option"], **changed))


def _declared(default: Any, described: Option) -> Any:
    metadata = {"option": described}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def group(kind: type | Selection) -> Any:
    """Return a dataclass field that holds a group of options, or some of its options."""
    whole = kind.group if isinstance(kind, Selection) else kind
    required = any(field_.default is MISSING and field_.default_factory is MISSING for field_ in fields(whole))
    return field(default_factory=MISSING if required else whole, metadata={"group": kind})


@dataclass(frozen=True)
class OptionField:
    """A field of a group, as the command line and workflow files see it."""

    field: str
    """The name in the dataclass."""
    name: str
    """The name of the option (with hyphens) and of the key."""
    type: Any
    """The type of a given value, without None and without the implied choice."""
    default: Any
    """`dataclasses.MISSING` if it must be given; None if leaving it out means the default of the dataclass."""
    option: Option
    within: str | None = None
    """The field of the group that holds it, if it is not of the group itself."""


class Selection:
    """Some fields of a group, perhaps with other options: for commands and tables that do not take all of them.

    Parameters
    ----------
    names
        The fields; all of them if none is named.
    optional
        Whether the group may be left out, by leaving out its required fields.
    changed
        For a field, the attributes of its `Option` that differ, and its "default".
    """

    def __init__(self, group: type, *names: str, optional: bool = False, **changed: dict[str, Any]) -> None:
        self.group, self.names, self.optional, self.changed = group, names, optional, changed


def option_fields(group: type | Selection) -> list[OptionField]:
    """Return the options of a group, in order, those of the groups that it holds included."""
    chosen = group if isinstance(group, Selection) else Selection(group)
    hints = get_type_hints(chosen.group)
    options: list[OptionField] = []
    for each in fields(chosen.group):
        if "group" in each.metadata:
            options += [replace(inner, within=each.name) for inner in option_fields(each.metadata["group"])]
        if "option" not in each.metadata or (chosen.names and each.name not in chosen.names):
            continue
        changed = dict(chosen.changed.get(each.name, {}))
        default = changed.pop("default", each.default if each.default_factory is MISSING else each.default_factory())
        described = replace(each.metadata["option"], **changed)
        if chosen.optional and default is MISSING:
            default = None
        if described.implied is not None and default == described.implied:
            default = None
        kind = hints[each.name] if described.typed is None else described.typed
        name = described.name or each.name
        options.append(OptionField(each.name, name, _without(kind, described.implied), default, described))
    return options


def _without(kind: Any, implied: Any) -> Any:
    """Return a type without None and without one of the choices of its Literals."""
    if get_origin(kind) is Literal:
        left = tuple(choice for choice in get_args(kind) if choice != implied)
        return Literal[left] if left else None
    members = get_args(kind) if get_origin(kind) in (Union, type(int | str)) else ()
    kept = [_without(member, implied) for member in members if member is not type(None)]
    return Union[tuple(member for member in kept if member is not None)] if kept else kind  # noqa: UP007


def build_group(group: type | Selection, given: dict[str, Any]) -> Any:
    """Return the group of the values that were given, by option names; those that are None are left to the defaults.

    Without a value for one of its required fields, return None.
    """
    whole = group.group if isinstance(group, Selection) else group
    values = {
        each.field: _as_tuple(given[each.name], each.type)
        for each in option_fields(group)
        if each.within is None and given.get(each.name) is not None
    }
    for each in fields(whole):
        if "group" in each.metadata:
            values[each.name] = build_group(each.metadata["group"], given)
    required = {each.name for each in fields(whole) if each.default is MISSING and each.default_factory is MISSING}
    return whole(**values) if required <= {name for name, value in values.items() if value is not None} else None


def _as_tuple(value: Any, kind: Any) -> Any:
    """Return a list, such as TOML has, as the tuple that a field holds."""
    return tuple(value) if get_origin(kind) is tuple and isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------- what several share

REQUIRED = "Required"
"""What must be given, whatever its place in the help would be otherwise."""
READING = "Reading the source"
REPAIRS = "Repairs: without them each flaw is an error"
WRITING = "Writing"
RUNNING = "Runs: lists such as 2,3,4 make one run of each"
SURVIVING = "Interruptions: exit code 75 means that the command can be resumed"
SEARCH = "The search for eigenvalues"
PLACE = "Where to run: local threads, or a Dask cluster (also DASREL_DASK=...)"
REPLACE = "Replace what exists, once the new one is complete."
MEMORY = "Memory that may be used; half of the machine's if not given."
FIXED_MEMORY = "Memory that the command may use, such as 512MiB."
TIME_LIMIT = "Stop after this time, such as 30m, 2h or HH:MM:SS."
time_limit_option = partial(
    option, None, TIME_LIMIT, panel=SURVIVING, metavar="DURATION",
    parse=duration_seconds,
)  # fmt: skip


def memory_option(panel: str = WRITING, **more: Any) -> Any:
    """Return the field for the memory that may be used."""
    return option(None, MEMORY, panel, typed=str, metavar="SIZE", **more)


def picture_option(text: str, panel: str = WRITING, **more: Any) -> Any:
    """Return the field that says whether to draw."""
    return option(True, text, panel, **more)


def as_number(value: Any) -> float:
    """Return a number as it is, and NaN for anything else."""
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan


def check_number(
    name: str,
    value: Any,
    *,
    whole: bool = False,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    infinite: bool = False,
    words: Sequence[str] = (),
) -> None:
    """Raise if a value is no number within these bounds; `words` may be given instead of a number.

    >>> check_number("n_clusters", 2, whole=True, least=1)
    >>> check_number("tol", -1, least=0)
    Traceback (most recent call last):
    dasrel.errors.InputError: tol is -1; give a finite number of at least 0
    """
    number = as_number(value)
    fits = isinstance(value, numbers.Integral) if whole else not math.isnan(number)
    fits = fits and (infinite or math.isfinite(number)) and (least is None or number >= least)
    fits = fits and (above is None or number > above) and (most is None or number <= most)
    if (fits and (below is None or number < below)) or (isinstance(value, str) and value in words):
        return
    kind = "whole number" if whole else "number" if infinite else "finite number"
    upper = f"at most {most:g}" if most is not None else "" if below is None else f"below {below:g}"
    lower = f"above {above:g}" if above is not None else "" if least is None else f"of at least {least:g}"
    bounds = " and ".join(filter(None, [lower, upper]))
    or_else = "".join(f', or "{word}"' for word in words)
    raise InputError(f"{name} is {shown(value)}", remedy=f"give a {kind} {bounds}".rstrip() + or_else, option=name)


def check_choice(name: str, value: Any, choices: Sequence[str], or_else: str = "") -> None:
    """Raise if a value is none of some words."""
    if not isinstance(value, str) or value not in choices:
        more = f", {or_else}" if or_else else ""
        raise InputError(f"{name} is {shown(value)!r}", remedy=f"use one of {', '.join(choices)}{more}", option=name)


def check_fields(group: Any) -> None:
    """Raise if a field of a dataclass that is declared with `option` has a value outside of its type or its bounds.

    Fields of text, of paths and of anything else but numbers, switches and words are not looked at.
    """
    group_type: Any = type(group)
    for checked in _checked_fields(group_type):
        value = getattr(group, checked.name)
        for item in value if checked.is_list and isinstance(value, (list, tuple)) else [value]:
            if item is not None or not checked.is_optional:
                checked.check(item)


@dataclass(frozen=True)
class _CheckedField:
    name: str
    types: tuple[Any, ...]
    words: tuple[str, ...]
    option: Option
    is_optional: bool
    is_list: bool

    def check(self, value: Any) -> None:
        option, is_switch = self.option, isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
        if bool in self.types:
            if not is_switch:
                raise InputError(f"{self.name} is {shown(value)}", remedy="give True or False", option=self.name)
        elif int in self.types or float in self.types:
            check_number(
                self.name, value, whole=float not in self.types, least=option.least, above=option.above,
                most=option.most, below=option.below, infinite=option.infinite, words=self.words,
            )  # fmt: skip
        else:
            check_choice(self.name, value, self.words)


@cache
def _checked_fields(group: type) -> list[_CheckedField]:
    hints, checked = get_type_hints(group), []
    for each in fields(group):
        kinds = _flat(hints[each.name])
        is_list = any(get_origin(kind) is list for kind in kinds)
        inner = [part for kind in kinds for part in (_flat(get_args(kind)[0]) if get_origin(kind) is list else [kind])]
        words = tuple(word for kind in inner if get_origin(kind) is Literal for word in get_args(kind))
        types = tuple(kind for kind in inner if get_origin(kind) is not Literal and kind is not type(None))
        if "option" in each.metadata and set(types) <= {bool, int, float} and (types or words):
            is_optional = type(None) in kinds
            checked.append(_CheckedField(each.name, types, words, each.metadata["option"], is_optional, is_list))
    return checked


def _flat(kind: Any) -> list[Any]:
    """Return the members of a union, or the type itself."""
    if get_origin(kind) not in (Union, type(int | str)):
        return [kind]
    return [part for member in get_args(kind) for part in _flat(member)]


# -------------------------------------------------------------------------------------- values that are written as text


def parse_columns(text: str) -> tuple[str | int, str | int, str | int]:
    """Read three columns, by name or by number from 1.

    >>> parse_columns("query,target,3")
    ('query', 'target', 3)
    """
    columns = [int(part) if part.isdecimal() else part for part in (p.strip() for p in text.split(","))]
    if len(columns) != 3 or "" in columns or 0 in columns:
        raise ValueError("is not FIRST,SECOND,VALUE: three columns by name or by number from 1")
    return columns[0], columns[1], columns[2]


def parse_missing(text: str) -> Literal["max"] | float:
    """Read what missing pairs are filled with.

    >>> parse_missing("max"), parse_missing("fill=0.5")
    ('max', 0.5)
    """
    if text == "max":
        return "max"
    try:
        return _filled(text)
    except ValueError:
        raise ValueError("is neither max nor fill=VALUE, such as fill=1") from None


def parse_fill(text: str) -> float:
    """Read what missing pairs are filled with, where the largest value is not known.

    >>> parse_fill("fill=1")
    1.0
    """
    try:
        return _filled(text)
    except ValueError:
        raise ValueError("is not fill=VALUE, such as fill=1") from None


def parse_diagonal(text: str) -> Literal["zero"] | float:
    """Read what the values of objects with themselves are.

    >>> parse_diagonal("zero"), parse_diagonal("100")
    ('zero', 100.0)
    """
    try:
        value = float(text) if text != "zero" else 0.0
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("is neither zero nor a number, such as 100")
    return "zero" if text == "zero" else value


def _filled(text: str) -> float:
    value = float(text.removeprefix("fill="))
    if not text.startswith("fill=") or not math.isfinite(value):
        raise ValueError
    return value


def parse_part(text: str) -> tuple[int, int]:
    """Read a part K/N.

    >>> parse_part("3/8")
    (3, 8)
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, flags=re.ASCII)
    if match is None:
        raise InputError(f"part {shown(text)!r} is not K/N, such as 3/8: the third of eight parts")
    part = int(match[1]), int(match[2])
    check_part(part)
    return part


def check_part(part: tuple[int, int]) -> None:
    """Raise if there is no such part."""
    k, n = part
    if not 0 <= k <= n or n < 1:
        raise InputError(f"there is no part {k}/{n}", remedy=f"give 1/{n} to {n}/{n}, or 0/{n} to begin the store only")


def whole_numbers(text: str) -> list[int] | None:
    """Return the whole numbers of a range such as 2-10 or 2:10, both ends included; None for any other text.

    >>> whole_numbers("2-5"), whole_numbers("7")
    ([2, 3, 4, 5], None)
    """
    match = re.fullmatch(r"(\d{1,9})\s*[-:]\s*(\d{1,9})", text.strip(), flags=re.ASCII)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    if first > last:
        raise InputError(f"{text!r} is an empty range", remedy=f"give the smaller number first, such as {last}-{first}")
    if last - first >= MOST_IN_RANGE:
        raise InputError(f"{text!r} has {last - first + 1:,} numbers", remedy=f"give at most {MOST_IN_RANGE:,}")
    return list(range(first, last + 1))


MOST_IN_RANGE = 1_000
"""Numbers that a range such as 2-10 may stand for."""


def parse_reject(text: str) -> Literal["auto"] | float | int:
    """Read what to reject: auto, a whole number of objects, or their share."""
    try:
        if text == "auto":
            return "auto"
        return int(text) if re.fullmatch(r"\d{1,9}", text, flags=re.ASCII) else float(text)
    except ValueError:
        raise ValueError("is neither auto, nor a number of objects such as 12, nor a share such as 0.05") from None
