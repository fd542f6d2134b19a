"""Fields of option groups: what the command line and workflow files need to know of a dataclass's fields.

See `dasrel.options`, which has the groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Option:
    """How a field is given on the command line and in workflow files."""

    help: str
    panel: str
    """The section of the command's help."""
    name: str | None = None
    """The name of the option and of the key, if it is not the field's."""
    metavar: str | None = None
    typed: Any = None
    """The type of what is given, if it is not the field's."""
    parse: Callable[[str], Any] | None = None
    """Convert the text of the command line; raise ValueError with the rest of a sentence that begins with the text."""
    implied: Any = None
    """A choice that is made by leaving the option out, and in no other way."""
    rare: bool = False
    """Whether `--help` only names it; `--help-all` describes it."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    """Bounds of a number, or of each number of a list."""


def option(default: Any, help: str, panel: str, **more: Any) -> Any:  # noqa: A002
    """Return a dataclass field with the metadata of an `Option`. A list or dict as default is copied each time."""
    metadata = {"option": Option(help, panel, **more)}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


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
    """Return the fields of a group that have an `Option`, in order."""
    chosen = group if isinstance(group, Selection) else Selection(group)
    hints = get_type_hints(chosen.group)
    found = []
    for one in fields(chosen.group):
        if "option" not in one.metadata or (chosen.names and one.name not in chosen.names):
            continue
        changed = dict(chosen.changed.get(one.name, {}))
        default = changed.pop("default", one.default if one.default_factory is MISSING else one.default_factory())
        described = replace(one.metadata["option"], **changed)
        if chosen.optional and default is MISSING:
            default = None
        if described.implied is not None and default == described.implied:
            default = None
        kind = hints[one.name] if described.typed is None else described.typed
        name = described.name or one.name
        found.append(OptionField(one.name, name, _without(kind, described.implied), default, described))
    return found


def _without(kind: Any, implied: Any) -> Any:
    """Return a type without None and without one of the choices of its Literals."""
    if get_origin(kind) is Literal:
        left = tuple(choice for choice in get_args(kind) if choice != implied)
        return Literal[left] if left else None
    members = get_args(kind) if get_origin(kind) in (Union, type(int | str)) else ()
    kept = [_without(one, implied) for one in members if one is not type(None)]
    return Union[tuple(one for one in kept if one is not None)] if kept else kind  # noqa: UP007


def build_group(group: Any, given: dict[str, Any]) -> Any:
    """Return the group of the values that were given, by option names; those that are None are left to the defaults.

    Without a value for one of its required fields, return None.
    """
    values = {one.field: given[one.name] for one in option_fields(group) if given.get(one.name) is not None}
    whole = group.group if isinstance(group, Selection) else group
    required = {one.name for one in fields(whole) if one.default is MISSING and one.default_factory is MISSING}
    return whole(**values) if required <= set(values) else None
