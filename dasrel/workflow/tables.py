"""The tables of workflow files: a class for each kind of step, whose keys are the options of its operation.

A step takes what its command takes. A value is not converted to another type, and unknown keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from itertools import count, takewhile
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from dasrel.commands.base import Operation, Reads
from dasrel.commands.operations import OPERATIONS, STEPS, operation
from dasrel.engine.checkpoint import Checkpoint
from dasrel.engine.runtime import Runtime
from dasrel.util.option_fields import OptionField, Selection, build_group, option_fields, whole_numbers


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _numbers_listed(value: Any) -> Any:
    """Return a list, with the numbers of texts such as "3" or "2-10" in their place."""
    expanded: list[Any] = []
    for entry in _listed(value):
        numbers = whole_numbers(entry) if isinstance(entry, str) else None
        if isinstance(entry, str) and entry.strip().isdecimal():
            numbers = [int(entry)]
        expanded += [entry] if numbers is None else numbers
    return expanded


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?\s*([kKMGTP]i?)?B?", text):
        raise ValueError("is no amount of memory; give such as 512MiB or 4GB")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


Memory = Annotated[str, AfterValidator(_memory)]
Printable = Annotated[str, AfterValidator(_printable)]


class Strict(BaseModel):
    """What all tables have in common: unknown keys are refused, and values are not converted to another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Table(Strict):
    """A step."""

    HOW: ClassVar[tuple[str, ...]] = ("memory",)
    """Keys that change how a step works and not what it writes."""
    FILES: ClassVar[tuple[str, ...]] = ()
    """Keys that name files to read."""
    OPERATION: ClassVar[Operation]
    READS: ClassVar[dict[str, Reads]] = {}
    """What keys name that name files or steps."""

    def options(self, places: Mapping[str, str] | None = None) -> Any:
        """Return the options of the operation, with the places of the files and steps that are named."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        for name in self.READS:
            if isinstance(values.get(name), list):
                values[name] = [(places or {}).get(f"{name} {k}", value) for k, value in enumerate(values[name])]
            elif name in (places or {}):
                values[name] = (places or {})[name]
            elif values.get(name) is True:
                values[name] = None  # there is no last result yet
        for each in option_fields(self.OPERATION.Options):
            if each.option.repeated:  # of earlier steps, in order
                numbered = takewhile(lambda key: key in (places or {}), (f"{each.name} {k}" for k in count()))
                values[each.name] = [(places or {})[key] for key in numbered] or None
        return self.OPERATION.in_step(build_group(self.OPERATION.Options, values))


def _key_of(each: OptionField) -> tuple[Any, Any]:
    """Return the type and the default of a key."""
    kind = Memory if each.name == "memory" else _key_type(each)
    if each.option.reads is not None and each.option.reads.own:
        kind = Literal[True] | kind
    if each.default is MISSING:
        return kind, ...
    if isinstance(each.default, (list, dict)):
        return kind, Field(default_factory=each.default.copy)
    return (kind | None, None) if each.default is None else (kind, each.default)


def _key_type(field: OptionField) -> Any:
    """Return the type of a key: that of the field, with its bounds, as TOML can give it."""
    limits = field.option
    bounds: dict[str, Any] = {"ge": limits.least, "gt": limits.above, "le": limits.most, "lt": limits.below}

    def bounded(kind: Any) -> Any:
        if kind in (int, float):
            return Annotated[kind, Field(**bounds, allow_inf_nan=False if kind is float else None)]
        members = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
        return Union[tuple(bounded(member) for member in members)] if members else kind  # noqa: UP007

    if get_origin(field.type) is list:
        listed = _numbers_listed if get_args(field.type)[0] is int else _listed
        return Annotated[list[bounded(get_args(field.type)[0])], BeforeValidator(listed), Field(min_length=1)]  # type: ignore[misc]
    if get_origin(field.type) is dict:
        return dict[str, bounded(get_args(field.type)[1])]  # type: ignore[misc]
    if get_origin(field.type) is tuple:
        members = get_args(field.type)
        return Annotated[list[members[0]], Field(min_length=len(members), max_length=len(members))]  # type: ignore[valid-type]
    if field.option.parse is not None:
        parse = field.option.parse
        return Annotated[
            bounded(field.type), BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)
        ]
    return bounded(field.type)


EVERY = option_fields(Selection(Checkpoint, "every", every={"default": None}))[0]
"""Scans between two checkpoints; if not given, as many as read some gigabytes."""


def _runtime_table() -> type[BaseModel]:
    keys: dict[str, Any] = {}
    for each in option_fields(Runtime):
        keys[each.name] = (Printable | None, None) if each.type is str else _key_of(each)
    return create_model("RuntimeTable", __base__=Strict, __module__=__name__, memory=(Memory | None, None), **keys)


RuntimeTable = _runtime_table()
"""`[runtime]`: the fields of `dasrel.engine.runtime.Runtime`, and the default memory of the steps."""


@cache
def table_of(kind: str) -> type[Table] | None:
    """Return the table of a kind of step, or None for a name that is no kind."""
    if kind not in (*OPERATIONS, *STEPS) or not operation(kind).is_step:
        return None
    return _table_of(operation(kind))


def _table_of(operation: Operation) -> type[Table]:
    """Return the table of an operation: a key for its source, and for each of its options that a file may give."""
    options = [each for each in option_fields(operation.Options) if not each.option.command_only]
    keys: dict[str, Any] = {}
    source = operation.source
    if source is not None and source.key is not None:
        keys[source.key] = (str | None, None) if source.key == "store" else (str, ...)
    for each in options:
        keys[each.name] = _key_of(each)
    if operation.saves:
        keys["every"] = _key_of(EVERY)
    table = create_model(operation.name, __base__=Table, __module__=__name__, **keys)
    table.OPERATION = operation
    table.HOW = (*(each.name for each in options if each.option.effort), *(["every"] if operation.saves else []))
    table.READS = {each.name: each.option.reads for each in options if each.option.reads is not None}
    if source is not None and source.key not in (None, "store"):
        table.READS[str(source.key)] = Reads()
    table.FILES = tuple(name for name, reads in table.READS.items() if not reads.steps)
    return table
