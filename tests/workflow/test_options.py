"""Options are declared once: commands, workflow files and Python take the same ones, with the same defaults."""

import inspect
from dataclasses import MISSING, fields
from typing import Any

import pytest
import typer
from pydantic_core import PydanticUndefined

import dasrel
from dasrel.cli.app import build_app
from dasrel.cli.options import OutputOptions, comma_list
from dasrel.commands.export import ExportOptions
from dasrel.commands.tree import TreeOptions
from dasrel.geometry.options import EuclideanizeParameters, SpectrumParameters
from dasrel.io.options import PairwiseParameters
from dasrel.util.option_fields import Selection, build_group, option_fields
from dasrel.workflow.schema import kinds
from dasrel.workflow.tables import table_of

COMMANDS = {str(name): one for name, one in vars(typer.main.get_command(build_app()))["commands"].items()}
STEPS = sorted(set(COMMANDS) & set(kinds()))

EVERYWHERE = {one.name for one in fields(OutputOptions)} | {one.name for one in option_fields(dasrel.Runtime)}
"""What a command prints, and where it runs: for workflows options of `dasrel run`, and the table [runtime]."""
STARTING = {"dry_run", "resume", "force", "time_limit", "part"}
"""How one process goes about the work. `dasrel run` resumes by itself, and has its own --dry-run and --time-limit."""
COMMAND_ONLY = {
    "align": {"target", "checkpoint"},  # are in the folder of the workflow
    "demo": {"target"},
    "density": {"target", "checkpoint"},
    "explore": {"target", "checkpoint"},
    "import": {"target"},
    "pairwise": {"target"},
    "append": {"features"},  # follow from the steps that the store was made by
    "cluster": {"target", "checkpoint"},
    "embed": {"target", "checkpoint"},
    "euclideanize": {"target", "checkpoint"},
    "export": {"target"},
    "image": {"target"},
    "medoids": {"target", "checkpoint"},
    "neighbours": {"target"},
    "outliers": {"target", "checkpoint"},
    "spectrum": {"target", "checkpoint"},  # --picture names a file
    "tree": {"target", "checkpoint"},
}
# What is the suffix of the command's OUT, or the only choice.
TABLE_ONLY = {"spectrum": {"picture"}, "image": {"format"}, "demo": {"data"}}
OTHER_DEFAULTS = {
    ("import", "kind"),  # the command explains the four kinds if it is missing
    ("align", "store"), ("append", "store"), ("cluster", "store"), ("euclideanize", "store"), ("export", "store"),
    ("embed", "store"), ("density", "store"), ("explore", "store"), ("image", "store"),
    ("medoids", "store"), ("neighbours", "store"), ("outliers", "store"), ("spectrum", "store"),
    ("tree", "store"),  # the only matrix of the workflow, if there is one
    ("cluster", "every"), ("euclideanize", "every"), ("spectrum", "every"),  # as many scans as read some gigabytes
    ("align", "every"), ("density", "every"), ("embed", "every"), ("explore", "every"), ("medoids", "every"),
    ("outliers", "every"), ("tree", "every"),
}  # fmt: skip


def options(command: str) -> dict[str, Any]:
    """The options of a command."""
    named = {{"out": "target"}.get(str(one.name), str(one.name)): one for one in COMMANDS[command].params}
    return {name: one for name, one in named.items() if name not in {"help", "help_all", *EVERYWHERE}}


def test_the_steps_are_found() -> None:
    assert sorted(COMMAND_ONLY) == STEPS


@pytest.mark.parametrize("step", STEPS)
def test_a_command_and_its_step_take_the_same_options(step: str) -> None:
    given, keys = set(options(step)), set(table_of(step).model_fields)
    assert given - keys - STARTING == COMMAND_ONLY[step]
    assert keys - given == TABLE_ONLY.get(step, set())


@pytest.mark.parametrize("step", STEPS)
def test_their_defaults_are_equal(step: str) -> None:
    different = set()
    for name, key in table_of(step).model_fields.items():
        one = options(step).get(name)
        if one is None:
            continue
        default = key.get_default(call_default_factory=True)
        if one.required or default is PydanticUndefined:
            same = one.required == (default is PydanticUndefined)
        elif isinstance(default, list):
            same = comma_list(one.default, type(default[0])) == default
        else:
            same = one.default == default or (not one.default and default == {})
        if not same:
            different.add((step, name))
    assert different == {one for one in OTHER_DEFAULTS if one[0] == step}


@pytest.mark.parametrize(
    ("function", "group", "other"),
    [
        (dasrel.spectrum, SpectrumParameters, set()),
        (dasrel.euclideanize, EuclideanizeParameters, {"method"}),  # commands want it named
        (dasrel.pairwise, PairwiseParameters, {"metric_options"}),  # None is the same as none
        (dasrel.minimum_spanning_tree, Selection(TreeOptions, "memory"), set()),
        (dasrel.linkage, Selection(TreeOptions, "as_similarity", "scratch", "memory"), set()),
        (dasrel.export_matrix, Selection(ExportOptions, "format", "memory"), set()),  # the matrix may be a relation
    ],
)
def test_functions_have_the_defaults_of_their_group(function: Any, group: Any, other: set[str]) -> None:
    parameters = inspect.signature(function).parameters
    different = set()
    for one in option_fields(group):
        default = parameters[one.field].default
        if (MISSING if default is inspect.Parameter.empty else default) != one.default:
            different.add(one.field)
    assert different == other


def test_an_optional_group_is_made_if_its_required_field_is_given() -> None:
    every = Selection(dasrel.Checkpoint, "every")
    assert build_group(every, {"every": 3}) is None
    assert build_group(dasrel.Checkpoint, {"checkpoint": "c", "every": 3}) == dasrel.Checkpoint("c", every=3)
    required = {one.name: one.default is MISSING for one in option_fields(dasrel.Checkpoint)}
    assert [name for name, wanted in required.items() if wanted] == ["checkpoint"]
    assert all(one.default is not MISSING for one in option_fields(Selection(dasrel.Checkpoint, optional=True)))
