"""Check numbers and choices that users give, by the types and bounds that the fields of a dataclass declare."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dasrel.errors import InputError
from dasrel.util.option_fields import Option
from dasrel.util.text import shown


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
    raise InputError(f"{name} is {shown(value)}", remedy=f"give a {kind} {bounds}".rstrip() + or_else)


def check_choice(name: str, value: Any, choices: Sequence[str], or_else: str = "") -> None:
    """Raise if a value is none of some words."""
    if not isinstance(value, str) or value not in choices:
        more = f", {or_else}" if or_else else ""
        raise InputError(f"{name} is {shown(value)!r}", remedy=f"use one of {', '.join(choices)}{more}")


def check_fields(group: Any) -> None:
    """Raise if a field of a dataclass that is declared with `option` has a value outside of its type or its bounds.

    Fields of text, of paths and of anything else but numbers, switches and words are not looked at.
    """
    group_type: Any = type(group)
    for field in _checked_fields(group_type):
        value = getattr(group, field.name)
        for item in value if field.is_list and isinstance(value, (list, tuple)) else [value]:
            if item is not None or not field.is_optional:
                field.check(item)


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
                raise InputError(f"{self.name} is {shown(value)}", remedy="give True or False")
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
    for field in fields(group):
        kinds = _flat(hints[field.name])
        is_list = any(get_origin(kind) is list for kind in kinds)
        inner = [part for kind in kinds for part in (_flat(get_args(kind)[0]) if get_origin(kind) is list else [kind])]
        words = tuple(word for kind in inner if get_origin(kind) is Literal for word in get_args(kind))
        types = tuple(kind for kind in inner if get_origin(kind) is not Literal and kind is not type(None))
        if "option" in field.metadata and set(types) <= {bool, int, float} and (types or words):
            is_optional = type(None) in kinds
            checked.append(_CheckedField(field.name, types, words, field.metadata["option"], is_optional, is_list))
    return checked


def _flat(kind: Any) -> list[Any]:
    """Return the members of a union, or the type itself."""
    if get_origin(kind) not in (Union, type(int | str)):
        return [kind]
    return [part for member in get_args(kind) for part in _flat(member)]
