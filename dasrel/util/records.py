"""Models of the JSON files that dasrel has written and reads again: what every result has, and the state of a workflow.

Keys that are not named may be anything; those of one kind of results are checked where they are read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class ResultRecord(_Record):
    """The keys that results have in common, where they have them."""

    store: str | None = None
    matrix: str | None = None
    out: str | None = None
    requested: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    n_objects: Annotated[Count, Field(ge=1)] | None = None
    scans: Count | None = None
    first_scans: Count | None = None
    seconds: FiniteFloat | None = None


class Done(_Record):
    """What is needed of the record of a step that is done."""

    kind: str
    key: str
    parameters: dict[str, Any]
    inputs: dict[str, str]
    outputs: dict[str, str]
    content: str
    parts: dict[str, str]
    ended: str
    files: dict[str, str] = {}
    result: dict[str, Any] | None = None
    seconds: FiniteFloat | None = None
    version: str = ""


class Now(_Record):
    """What is needed of the record of a step that was begun."""

    status: Literal["running", "putting", "stopped", "failed"]
    key: str
    began: str
    ended: str = ""
    message: str = ""


class Step(_Record):
    """The record of a step."""

    done: Done | None = None
    now: Now | None = None
    ours: list[str] = []


class State(_Record):
    """The state file of a workflow."""

    version: int
    steps: dict[str, Step]
    files: dict[str, dict[Literal["signature", "content"], str]]


def fault_of(model: type[BaseModel], content: Any) -> str | None:
    """Return what is wrong with the content of a file by its model, the key first; None if nothing is."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg'].lower()}"
    return None
