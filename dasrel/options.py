# mypy: implicit-reexport
"""Option groups: each declared once, for Python, the command line and workflow files.

A group is a frozen dataclass. Python uses it as it is, or its fields are the keywords of a function. The decorator
`dasrel.cli.options.command` makes a command-line option of each field, and `dasrel.workflow.tables.with_options` makes
a key of a TOML table of it. What both need beyond the type and the default of a field is in its metadata: an `Option`.

`Runtime` and `Checkpoint`, which do more than hold values, are declared with the same metadata in `dasrel.engine`.
This module imports neither Zarr nor Dask, so that the command line starts quickly.
"""

from __future__ import annotations

from dasrel.io.options import PairwiseParameters as PairwiseOptions, Reading
from dasrel.partition.run import Run
from dasrel.store.options import (
    Policy,
    Writing,
)
from dasrel.util.option_fields import (
    FIXED_MEMORY as FIXED_MEMORY,
    PLACE as PLACE,
    READING as READING,
    REPAIRS as REPAIRS,
    REPLACE as REPLACE,
    RUNNING as RUNNING,
    SEARCH as SEARCH,
    SURVIVING as SURVIVING,
    TIME_LIMIT as TIME_LIMIT,
    WRITING as WRITING,
    Option as Option,
    OptionField as OptionField,
    Selection as Selection,
    build_group as build_group,
    option as option,
    option_fields as option_fields,
)
from dasrel.util.option_values import (
    check_part as check_part,
    parse_columns as parse_columns,
    parse_fill as parse_fill,
    parse_missing as parse_missing,
    parse_part as parse_part,
    parse_reject as parse_reject,
    whole_numbers as whole_numbers,
)

GROUPS = (Reading, Policy, Writing)
"""Groups that Python's functions take as one argument. The fields of all others are their keywords."""
OPERATIONS = (Run, PairwiseOptions)
RENAMED = {
    key: one.name
    for group in (*GROUPS, *OPERATIONS)
    for one in option_fields(group)
    for key in (f"{group.__name__}.{one.field}", *([] if group in GROUPS else [one.field]))
    if one.name != one.field
}
"""Keywords of Python, perhaps with their group, that commands and workflow files have another name for."""
