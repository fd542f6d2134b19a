"""Options of sources: how a matrix is read, and what is computed from features."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any

from dasrel.errors import InputError
from dasrel.names import FORMATS, KINDS, KindName, is_similarity
from dasrel.util import Names
from dasrel.util.option_fields import READING, Reads, Selection, option, parse_columns
from dasrel.util.text import did_you_mean, shown, some

ALIASES = {
    "chebyshev": ("cheb", "chebychev", "ch", "cheby"),
    "cityblock": ("c", "cblock", "cb", "l1", "manhattan"),
    "correlation": ("co",),
    "cosine": ("cos",),
    "euclidean": ("e", "eu", "euclid", "l2"),
    "hamming": ("matching", "hamm", "h", "ha"),
    "jaccard": ("j", "ja", "jacc"),
    "jensenshannon": ("js",),
    "mahalanobis": ("mah", "mahal"),
    "minkowski": ("m", "mi", "pnorm"),
    "seuclidean": ("s", "se"),
    "sqeuclidean": ("sqe", "sqeuclid"),
}
"""The other names that SciPy and scikit-learn know a metric by."""
BOOLEAN = ("dice", "jaccard", "kulczynski1", "rogerstanimoto", "russellrao", "sokalmichener", "sokalsneath", "yule")
_WEIGHTED = (*BOOLEAN, "braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "euclidean",
             "hamming", "sqeuclidean")  # fmt: skip
DISTANCES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_WEIGHTED, ("w",)),
    "minkowski": ("p", "w"),
    "seuclidean": ("V",),
    "mahalanobis": ("VI",),
    "jensenshannon": (),
    "haversine": (),
    "nan_euclidean": (),
    "simpson": (),
}
"""Every distance, and the options that it takes."""
OF_OBJECTS = ("dtw", "edit", "editdistance", "levenshtein", "lcs", "rmsd", "tm", "tmscore", "unifrac", "emd")
"""Metrics that people ask for and that compare series, texts or structures, which are no rows of numbers."""
KERNELS: dict[str, tuple[str, ...]] = {
    "additive_chi2": (),
    "chi2": ("gamma",),
    "cosine": (),
    "laplacian": ("gamma",),
    "linear": (),
    "poly": ("coef0", "degree", "gamma"),
    "polynomial": ("coef0", "degree", "gamma"),
    "rbf": ("gamma",),
    "sigmoid": ("coef0", "gamma"),
}
"""Every kernel of scikit-learn, and the options that it takes."""


def check_metric(name: str, kind: str, options: Mapping[str, Any]) -> str:
    """Return a metric's full name; raise if there is none, for this kind of matrix and with these options."""
    known = {alias: full for full, others in ALIASES.items() for alias in others} | {full: full for full in DISTANCES}
    if name == "tanimoto":
        if kind != "similarity":
            raise InputError("metric tanimoto gives similarities, 1 for equal rows", remedy="say {kind=similarity}")
        _check_options(name, options, ())
        return name
    if is_similarity(kind):
        if name not in KERNELS:
            remedy = did_you_mean(name, KERNELS, show=3)
            if name in known:
                remedy = f"{name} gives distances: say {{kind=distance}}"
            raise InputError(f"kind {kind} needs one of scikit-learn's kernels, not {shown(name)!r}", remedy=remedy)
        _check_options(name, options, KERNELS[name])
        return name
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}, not {shown(kind)!r}")
    if name == "wminkowski":
        raise InputError("metric wminkowski is gone from SciPy", remedy="use minkowski with the options p and w")
    if name not in known:
        remedy = did_you_mean(name, sorted(word for word in known if len(word) > 2), show=3)
        if name in KERNELS:
            remedy = f"{name} is a kernel: say {{kind=kernel}}"
        if name in OF_OBJECTS:
            remedy = f"{name} compares whole objects, not rows of features: `dasrel.from_blocks` takes any function"
        raise InputError(f"no metric {shown(name)!r}", remedy=remedy)
    full = known[name]
    _check_options(name, options, DISTANCES[full])
    if not float(options.get("p", 1)) > 0:
        raise InputError(f"metric minkowski: p must be above 0, not {shown(options['p'])}")
    return full


def _check_options(name: str, given: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    if unknown := [shown(key) for key in given if key not in allowed]:
        remedy = f"it takes {', '.join(allowed) if allowed else 'none'}"
        raise InputError(f"metric {shown(name)} has no option {some(unknown)}", remedy=remedy)


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
