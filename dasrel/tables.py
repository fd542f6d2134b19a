"""The tables of a workflow file, a class for each kind of step. Keys and defaults are those of the commands."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dasrel.vocabulary import TAKES, ExportName, KindName, MethodName, RuleName


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?\s*([kKMGTP]i?)?B?", text):
        raise ValueError("is no amount of memory; give such as 512MiB or 4GB")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


def _missing(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("fill="):
        try:
            value = float(value.removeprefix("fill="))
        except ValueError:
            raise ValueError("is neither max nor fill=VALUE") from None
    return value


Memory = Annotated[str, AfterValidator(_memory)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rules = Annotated[list[RuleName], BeforeValidator(_listed), Field(min_length=1)]
Counts = Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_listed), Field(min_length=1)]
Printable = Annotated[str, AfterValidator(_printable)]
Every = Annotated[int, Field(ge=1)]
"""Scans between two checkpoints; if not given, as many as read some gigabytes."""
Words = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


def _several(kind: Any) -> Any:
    return Annotated[list[kind], BeforeValidator(_listed), Field(min_length=1)]


class Table(BaseModel):
    """What all tables have in common: keys that are not known are refused, and values are not bent into a type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    HOW: ClassVar[tuple[str, ...]] = ("memory",)
    """Keys that change how a step works and not what it writes."""
    FILES: ClassVar[tuple[str, ...]] = ()
    """Keys that name files to read."""
    SUFFIXES: ClassVar[tuple[str, ...]] = ()
    """What the step writes in `out`: its name with each of these."""


class MatrixTable(Table):
    """A step that gives a matrix."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".zarr",)


class Made(MatrixTable):
    """A store that is written here."""

    store_dtype: Literal["float32", "float64"] = "float32"
    tile: Annotated[int, Field(ge=1)] | None = None
    compress: Literal["lz4"] | None = None
    memory: Memory = "1GiB"


class Import(Made):
    """`dasrel import`."""

    FILES = ("source", "ids")
    source: str
    kind: KindName
    format: str | None = None
    ids: str | None = None
    shape: Annotated[int, Field(ge=1)] | None = None
    dtype: str | None = None
    columns: Annotated[list[str | int], Field(min_length=3, max_length=3)] | None = None
    dataset: str | None = None
    symmetrize: Literal["mean", "max"] | None = None
    missing: Annotated[Literal["max"] | Number | None, BeforeValidator(_missing)] = None
    diagonal: Literal["zero"] | None = None
    clip_negative: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    duplicates: Literal["mean", "min", "max", "last"] | None = None


class Pairwise(Made):
    """`dasrel pairwise`."""

    FILES = ("features", "ids")
    features: str
    metric: str
    kind: KindName = "distance"
    metric_option: dict[str, Number] = Field(default_factory=dict)
    ids: str | None = None


class Demo(MatrixTable):
    """The digits of `dasrel demo`: Simpson's dissimilarity, squared-distance."""

    data: Literal["digits"] = "digits"


class Store(MatrixTable):
    """A store that is there already. It is read, never written."""

    FILES = ("path",)
    SUFFIXES = ()
    path: str


class Append(Table):
    """`dasrel append`: to the matrix of this workflow, in the order of the file."""

    FILES = ("source", "ids")
    store: str | None = None
    source: str
    ids: str | None = None
    symmetrize: Literal["mean", "max"] | None = None
    missing: Annotated[Number | None, BeforeValidator(_missing)] = None
    diagonal: Literal["zero"] | None = None
    clip_negative: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    memory: Memory = "1GiB"


class Spectrum(Table):
    """`dasrel spectrum`."""

    HOW = ("every",)  # memory is no mere how: less of it can mean fewer steps of the search
    SUFFIXES = (".json", ".png")
    store: str | None = None
    values: Annotated[int, Field(ge=1)] = 8
    tol: Positive = 1e-3
    max_scans: Annotated[int, Field(ge=1)] = 100
    memory: Memory | None = None
    every: Every | None = None
    picture: bool = False


class Euclideanize(Table):
    """`dasrel euclideanize`."""

    HOW = ("every",)
    SUFFIXES = (".npz",)
    store: str | None = None
    method: MethodName
    alpha: Positive | None = None
    floor_zeros: Positive | None = None
    tol: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    max_scans: Annotated[int, Field(ge=1)] = 200
    memory: Memory | None = None
    every: Every | None = None


class Cluster(Table):
    """`dasrel cluster`."""

    HOW = ("memory", "strict", "every")
    SUFFIXES = ("",)
    store: str | None = None
    rule: Rules
    clusters: Counts
    fuzzifier: _several(Annotated[float, Field(gt=1, allow_inf_nan=False)]) | None = None  # type: ignore[valid-type]
    entropy_weight: _several(Literal["auto"] | Positive) | None = None  # type: ignore[valid-type]
    spread_scale: _several(Positive) | None = None  # type: ignore[valid-type]
    n_init: Annotated[int, Field(ge=1)] = 10
    init: Words = Field(default_factory=lambda: ["random"])
    seed: Annotated[int, Field(ge=0)] = 0
    max_iter: Annotated[int, Field(ge=1)] = 300
    tol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    on_negative: Literal["error", "heal"] = "error"
    spread: _several(Annotated[float, Field(ge=0, allow_inf_nan=False)]) = Field(default_factory=lambda: [0.0])  # type: ignore[valid-type]
    euclideanize: str | None = None
    accelerate: bool = False
    warm_start: Literal[True] | str | None = None
    """A cluster step, a folder of results, or true: the last result of this very step, if it has one that fits."""
    memory: Memory | None = None
    strict: bool = False
    every: Every | None = None

    @model_validator(mode="after")
    def _numbers_fit_rules(self) -> Cluster:
        for name, rules in TAKES.items():
            if getattr(self, name) is not None and not set(self.rule) & set(rules):
                raise ValueError(f"{name} is for {' and '.join(rules)}, not {', '.join(self.rule)}")
        return self


class Tree(Table):
    """`dasrel tree`."""

    SUFFIXES = ("",)
    store: str | None = None
    memory: Memory | None = None


class Image(Table):
    """`dasrel image`."""

    SUFFIXES = (".png", ".pdf", ".svg")
    store: str | None = None
    order: Literal["vat", "ivat", "labels", "eigen", "none"] = "vat"
    result: str | None = None
    induced: bool = False
    pixels: Annotated[int, Field(ge=2, le=20_000)] = 1000
    format: Literal["png", "pdf", "svg"] = "png"
    memory: Memory | None = None

    @model_validator(mode="after")
    def _labels_come_from_a_result(self) -> Image:
        if (self.order == "labels" or self.induced) and self.result is None:
            raise ValueError("result is missing: name the cluster step that the labels are in")
        return self


class Figure(Table):
    """A picture of the memberships of a result, and of the dissimilarity that they induce."""

    SUFFIXES = (".png",)
    result: str
    title: str = ""


class Export(Table):
    """`dasrel export`."""

    SUFFIXES = (".npy", ".lsmat", ".phy", ".zarr")
    store: str | None = None
    format: ExportName
    relation: str | None = None
    memory: Memory = "1GiB"


class Where(Table):
    """`[runtime]`: the fields of `dasrel.runtime.Runtime`, and the memory of steps that do not name theirs."""

    scheduler: Printable | None = None
    scheduler_file: Printable | None = None
    dask: Printable | None = None
    workers: Annotated[int, Field(ge=1)] | None = None
    wait: Positive | None = None
    tls_ca: Printable | None = None
    tls_cert: Printable | None = None
    tls_key: Printable | None = None
    memory: Memory | None = None


TABLES: dict[str, type[Table]] = {
    "import": Import,
    "pairwise": Pairwise,
    "demo": Demo,
    "store": Store,
    "append": Append,
    "spectrum": Spectrum,
    "euclideanize": Euclideanize,
    "cluster": Cluster,
    "tree": Tree,
    "image": Image,
    "figure": Figure,
    "export": Export,
}
"""The kinds of steps, in the order of their work."""
