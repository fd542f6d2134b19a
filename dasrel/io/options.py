"""Options of sources: how a matrix is read, and what is computed from features."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from dataclasses import MISSING, dataclass
from functools import partial

from dasrel.io.metric_names import check_metric
from dasrel.names import FORMATS, KindName
from dasrel.util import Names
from dasrel.util.option_fields import READING, Reads, Selection, option
from dasrel.util.option_values import parse_columns

_reading = partial(option, panel=READING)


@dataclass(frozen=True)
class Reading:
    """How to read a source. A field that is None is detected from the source, or does not apply."""

    format: str | None = _reading(None, f"One of {', '.join(FORMATS)}; detected if not given.")
    """One of `dasrel.names.FORMATS`."""
    ids: str | Names | None = _reading(None, "Object names, one per line.", typed=str, metavar="FILE", reads=Reads())
    """The objects' names, or a file with one name per line; they replace names in the source."""
    shape: int | None = _reading(None, "Number of objects of a raw binary file.", metavar="N", least=1)
    """Number of objects of a raw binary file."""
    dtype: str | None = _reading(None, "Type of the numbers of a raw binary file: float32, <f8 ...")
    """Type of the numbers of a raw binary file, as NumPy writes it: float32, <f8, ..."""
    columns: tuple[str | int, str | int, str | int] | None = _reading(
        None, "Columns of a list of pairs: names, or numbers from 1.", metavar="A,B,V", parse=parse_columns
    )
    """First object, second object, value: names or numbers from 1 of the columns of a list of pairs."""
    dataset: str | None = _reading(None, "Array inside an npz, HDF5, MATLAB or Zarr source.")
    """Which array inside an `.npz`, HDF5, MATLAB or Zarr source."""


IDS = Selection(Reading, "ids")
"""For what reads objects from a table of features or rows."""


@dataclass(frozen=True)
class PairwiseParameters:
    """What to compute from features."""

    metric: str = _reading(MISSING, "A metric of SciPy or scikit-learn, simpson, or tanimoto.")
    kind: KindName = _reading("distance", "Also squared-distance; similarity or kernel for a kernel.")
    metric_options: dict[str, float] = _reading(
        {}, "A number that the metric takes, such as p=3.", name="metric_option", metavar="NAME=VALUE"
    )
    packed_bits: bool = _reading(False, "Each byte of the features holds 8 bits, as fingerprints are saved.")

    def __post_init__(self) -> None:
        check_metric(self.metric, self.kind, self.metric_options)
