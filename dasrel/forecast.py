"""What a command would read, write and take, for `--dry-run`: checked as in a real run, with no matrix read.

Headers of files, manifests of stores and tables of features are looked at, tiles are not, and nothing is written.
What a real run would refuse before it begins is refused here with the same words.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import parse_bytes

from dasrel import readers, tasks
from dasrel.append import open_additions
from dasrel.errors import InputError, MemoryLimitError, StoreError, count_text, shown, size_text
from dasrel.euclidean import check_arguments
from dasrel.export import BAND_COPIES, as_numbers, check_export, named_relation, row_memory, task_memory
from dasrel.graph import Consumer
from dasrel.growing import checked_names
from dasrel.images import image_consumer
from dasrel.intake import Names, Policy
from dasrel.lanczos import Search, scans_that_fit, search_memory
from dasrel.metrics import resolve
from dasrel.orders import read_result
from dasrel.outputs import check_file, check_out, load_model
from dasrel.pairwise import prepared
from dasrel.planning import Range, euclidean_scans
from dasrel.products import product_consumer
from dasrel.relation import Relation, relation
from dasrel.scan import needed_memory
from dasrel.source import Reading
from dasrel.spool import given_ids
from dasrel.store import Layout, StoreLike, local_path, location, open_matrix
from dasrel.tree import forest_consumer
from dasrel.writer import Writing, check_kind, check_target, default_tile

SPECTRUM_SCANS = 9
"""Typical scans of `spectrum`, on the data of `planning.TYPICAL_EUCLIDEAN`: 5 to 17; noise takes 40."""
EIGEN_SCANS = 8
"""The same for the six eigenvectors of `image --order eigen`, to 5 %."""
TEXT_VALUE = 11
"""Bytes of a number in text, more or less."""
TREE_OBJECT = 130
"""Bytes an object in the files of `dasrel tree`, more or less."""


@dataclass(frozen=True)
class Output:
    """Something that would be written."""

    path: str
    bytes: int
    """About; at most where it is compressed."""


@dataclass(frozen=True)
class Forecast:
    """What a command would do."""

    command: str
    n_objects: int | None
    """None where only reading all of the source would tell."""
    scans: Range
    bytes_per_scan: int
    memory: int
    """Bytes at the peak, at most."""
    outputs: tuple[Output, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What else is known, by name: plain values."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"dry_run": True, **asdict(self)}

    def lines(self) -> list[tuple[str, str]]:
        """For people: names and texts."""
        lines = [("dry run", f"{self.command}: nothing was written")]
        known = "not known before all of it is read" if self.n_objects is None else f"{self.n_objects:,}"
        lines.append(("objects", known))
        lines += [
            (name.removesuffix("_bytes").replace("_", " "), _fact(name, value)) for name, value in self.facts.items()
        ]
        if self.scans.most:
            lines.append(("scans", range_text(self.scans)))
            lines.append(("one scan reads", size_text(self.bytes_per_scan)))
        lines.append(("memory", f"at most {size_text(self.memory)}"))
        for output in self.outputs:
            lines.append(("would write", f"{shown(output.path, limit=400)}, about {size_text(output.bytes)}"))
        return lines


def _fact(name: str, value: Any) -> str:
    if isinstance(value, int):
        return size_text(value) if name.endswith("_bytes") else f"{value:,}"
    return shown(value, limit=400)


def range_text(scans: Range) -> str:
    """A range of counts for people.

    >>> range_text(Range(1, 1, 1)), range_text(Range(3, 13, 204))
    ('1', '13 or so, 3 to 204')
    """
    if scans.least == scans.most:
        return f"{scans.most:,.0f}"
    return f"{scans.typical:,.0f} or so, {scans.least:,.0f} to {scans.most:,.0f}"


def forecast_import(
    source: Any,
    store: StoreLike,
    *,
    kind: str,
    reading: Reading | None = None,
    policy: Policy | None = None,
    writing: Writing | None = None,
) -> Forecast:
    """What `import_matrix` would do with the same arguments. Cost: the source's header."""
    reading, policy, writing = reading or Reading(), policy or Policy(), writing or Writing()
    check_kind(kind, policy)
    check_target(store, writing)
    name, n, opened, both = _looked_at(source, reading, policy, kind)
    names = given_ids(reading)
    if names is not None and n is not None and len(names) != n:
        raise InputError(f"{count_text(len(names), 'id')} for {count_text(n, 'object')}; give one id per row")
    aside = opened is None
    if opened is not None:
        writing, _, misfit = readers.fitting(opened, writing)
        aside = misfit is not None
    size = os.path.getsize(source) if isinstance(source, str | os.PathLike) and os.path.isfile(source) else None
    facts: dict[str, Any] = {"source": str(source), "format": name}
    if size is not None:
        facts["size_bytes"] = size
    if aside:
        facts["first"] = "its numbers are put aside on disk"
    if aside and n is not None:
        facts["put_aside_bytes"] = 8 * n * n
    if n is None:
        return Forecast("import", None, Range(0, 0, 0), 0, int(parse_bytes(writing.memory)), (), facts)
    layout = _layout(n, writing)
    mapped = local_path(store) is not None and writing.compress is None
    if opened is None:
        opened = _Square(n, both)
    task = readers.task_memory(opened, layout, mapped)
    threads = tasks.threads_that_fit(task, writing.memory, "import")
    return Forecast("import", n, Range(0, 0, 0), 0, threads * task, *_new_store(store, layout, kind, facts))


def forecast_pairwise(
    features: Any,
    store: StoreLike,
    *,
    metric: str,
    kind: str = "distance",
    ids: str | Names | None = None,
    metric_options: Mapping[str, Any] | None = None,
    writing: Writing | None = None,
) -> Forecast:
    """What `pairwise` would do with the same arguments. Cost: reads the features."""
    writing = writing or Writing()
    chosen = resolve(metric, kind, metric_options)
    check_target(store, writing)
    found, _, _, layout, memory = prepared(features, chosen, ids, writing)
    threads = tasks.threads_that_fit(memory, writing.memory, "pairwise")
    facts = {"features": found.shape[1], "metric": chosen.name}
    return Forecast(
        "pairwise", layout.n_objects, Range(0, 0, 0), 0, threads * memory, *_new_store(store, layout, kind, facts)
    )


def forecast_append(
    store: StoreLike,
    source: Any,
    *,
    ids: str | Names | None = None,
    features: Any = None,
    policy: Policy | None = None,
    memory: int | str = "1GiB",
) -> Forecast:
    """What `append` would do with the same arguments. Cost: none; a table in text is read."""
    old, _, names, about, _ = open_additions(store, source, ids=ids, features=features, policy=policy or Policy())
    names = checked_names(names, old)
    layout = Layout(old.n_objects + len(names), old.tile, old.dtype)
    touched = [(i, j) for i, j in layout.tiles() if j >= old.n_objects // old.tile]
    grown = sum(j < old.layout.a_side for _, j in touched)
    facts = {
        "as": about["as"], "objects_before": old.n_objects, "new_objects": len(names),
        "tiles_written": len(touched) - grown, "tiles_grown": grown,
    }  # fmt: skip
    output = Output(str(location(store)), len(touched) * (layout.tile_bytes + 4))
    return Forecast("append", layout.n_objects, Range(0, 0, 0), 0, int(parse_bytes(memory)), (output,), facts)


def forecast_audit(store: Any, *, verify: bool, spectrum: bool, memory: int | str) -> Forecast:
    """What `dasrel audit` would do. Cost: none."""
    matrix = open_matrix(store)
    scans = Range(1, 1, 1) if verify else Range(0, 0, 0)
    needed = int(parse_bytes(memory)) if verify else 0
    if spectrum:
        ends = forecast_spectrum(store, memory=memory)
        scans, needed = scans + ends.scans, max(needed, ends.memory)
    return Forecast("audit", matrix.n_objects, scans, matrix.layout.total_bytes, needed)


def forecast_spectrum(
    store: Any,
    *,
    n_values: int = 8,
    tol: float = 1e-3,
    max_scans: int = 100,
    memory: int | str | None = None,
    picture: str | os.PathLike[str] | None = None,
) -> Forecast:
    """What `spectrum` would do with the same arguments, and its picture. Cost: none."""
    seen = relation(store)
    if n_values < 1:
        raise InputError(f"n_values is at least 1, not {n_values}")
    limit = _limit(memory)
    search = Search(lowest=1, highest=1, tol=tol, max_scans=max_scans, memory=limit // 2)
    needed, most = _search(seen, search, limit, metric=False)
    outputs = () if picture is None else (Output(str(picture), 100_000),)
    scans = Range(min(2, most), min(SPECTRUM_SCANS, most), most)
    return Forecast("spectrum", seen.n_objects, scans, seen.matrix.layout.total_bytes, needed, outputs)


def forecast_euclideanize(
    store: Any,
    out: str | os.PathLike[str],
    *,
    method: str,
    alpha: float | None = None,
    tol: float = 1e-4,
    floor_zeros: float | None = None,
    max_scans: int = 200,
    memory: int | str | None = None,
) -> Forecast:
    """What `euclideanize` and saving its result would do with the same arguments. Cost: none."""
    given = relation(store)
    check_arguments(given, method, alpha, tol, floor_zeros, max_scans)
    limit = _limit(memory)
    search = Search(tol=tol, max_scans=max_scans, vectors=method != "spread", memory=limit // 2)
    needed, _ = _search(given, search, limit, metric=method != "spread")
    if method != "spread":
        needed = max(needed, _scan(given.matrix, [forest_consumer(given.matrix)], limit // 2))
    size = 24 * given.n_objects if method == "ultrametric" else 2_000
    facts = {"method": method}
    scans = euclidean_scans(method, max_scans)
    total = given.matrix.layout.total_bytes
    return Forecast("euclideanize", given.n_objects, scans, total, needed, (Output(str(out), size),), facts)


def forecast_tree(
    store: Any, out: str | os.PathLike[str], *, memory: int | str | None = None, force: bool = False
) -> Forecast:
    """What `dasrel tree` would do. Cost: none."""
    check_out(out, force=force)
    matrix = open_matrix(store)
    needed = _scan(matrix, [forest_consumer(matrix)], _limit(memory))
    output = Output(str(out), TREE_OBJECT * matrix.n_objects)
    return Forecast("tree", matrix.n_objects, Range(1, 1, 1), matrix.layout.total_bytes, needed, (output,))


def forecast_image(
    store: Any,
    out: str | os.PathLike[str],
    *,
    order: str,
    result: str | os.PathLike[str] | None = None,
    induced: bool = False,
    pixels: int = 1000,
    memory: int | str | None = None,
    force: bool = False,
) -> Forecast:
    """What `orders.draw` would do with the same arguments. Cost: none; the result's labels are read."""
    if os.path.lexists(out) and not force:
        raise StoreError(f"{shown(out, limit=400)} exists; say --force to replace it")
    matrix = open_matrix(store)
    if result is not None:
        read_result(result, matrix)
    limit = _limit(memory)
    scans, needed = Range(0, 0, 0), 0
    if order in ("vat", "ivat"):
        scans, needed = scans + Range(1, 1, 1), _scan(matrix, [forest_consumer(matrix)], limit)
    if order == "eigen":
        search = Search(lowest=0, highest=min(6, matrix.n_objects - 1), tol=0.05, max_scans=30, vectors=True)
        needed, most = _search(relation(matrix), search, limit, metric=False)
        scans += Range(1, min(EIGEN_SCANS, most), most)
    if not induced and order != "ivat":
        scans += Range(1, 1, 1)
        needed = max(needed, _scan(matrix, [image_consumer(matrix, None, pixels)], limit))
    side = min(pixels, matrix.n_objects)
    needed = max(needed, 4 * 8 * side * side)
    outputs = (Output(str(out), side * side + 50_000),)
    facts = {"order": order, "side": side}
    return Forecast("image", matrix.n_objects, scans, matrix.layout.total_bytes, needed, outputs, facts)


def forecast_export(
    store: Any,
    out: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002
    relation: str | None = None,
    memory: int | str = "1GiB",
    force: bool = False,
) -> Forecast:
    """What `export_matrix` would do with the same arguments. Cost: none."""
    target = check_export(out, format, force=force)
    given = as_numbers(store if relation is None else named_relation(store, relation))
    given.check(format)
    n, layout = given.matrix.n_objects, given.matrix.layout
    if format in ("lsmat", "phylip"):
        needed = min(int(parse_bytes(memory)), row_memory(given, memory))
    else:
        task = task_memory(given, BAND_COPIES[format])
        needed = tasks.threads_that_fit(task, memory, "export") * task
    value = TEXT_VALUE if format in ("lsmat", "phylip") else layout.dtype.itemsize
    size = n * (n - 1) // 2 * value if format == "condensed" else n * n * value
    facts = {"format": format, "numbers": given.told}
    return Forecast("export", n, Range(1, 1, 1), layout.total_bytes, needed, (Output(str(target), size),), facts)


def forecast_predict(
    model: str | os.PathLike[str], rows: str, out: str | os.PathLike[str], *, force: bool = False
) -> Forecast:
    """What `dasrel predict` would do. Cost: reads the model; the rows are only looked for."""
    check_file(out, force=force)
    known = load_model(model)
    if "://" not in rows and not os.path.exists(rows):
        raise InputError(f"there is no file {shown(rows, limit=400)} with rows of new objects")
    size = os.path.getsize(rows) if os.path.isfile(rows) else 0
    count = size // (8 * known.n_objects)
    facts: dict[str, Any] = {"rows": rows, "values_a_row": known.n_objects, "n_clusters": known.n_clusters}
    outputs = (Output(str(out), count * (20 + 12 * known.n_clusters)),)
    return Forecast(
        "predict", None, Range(0, 0, 0), 0, 2 * size + 16 * known.n_objects * known.n_clusters, outputs, facts
    )


# ---------------------------------------------------------------------------------------------------- what they all use


class _PutAsideError(Exception):
    """A reader wants to write."""


class _NoFolder:
    """Stands for the folder in which readers put things aside."""

    def __truediv__(self, name: str) -> Path:
        raise _PutAsideError


@dataclass(frozen=True)
class _Square:
    """A source that is put aside as float64 numbers before it is used, as far as its memory goes."""

    n_objects: int
    mirrored: bool
    ids: None = None
    checksum: None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def block_memory(self, rows: int, columns: int) -> int:
        return rows * columns * (8 if self.mirrored else 24)


def _looked_at(source: Any, reading: Reading, policy: Policy, kind: str) -> tuple[str, int | None, Any, bool]:
    """Format, number of objects, the source where it can be used as it is, and whether it holds both triangles."""
    name = "array"
    if isinstance(source, str | os.PathLike):
        if "://" in str(source):
            name = "zarr"
        else:
            try:
                name = readers.detect(Path(source), reading)
            except OSError as error:
                raise InputError(
                    f"cannot read {shown(error.filename or source, limit=400)}: {error.strerror};"
                    " check the name and the permissions"
                ) from None
    if name in readers.TEXT:
        from dasrel import text

        n, both = text.peek(source, replace(reading, format=name), kind)
        return name, n, None, both
    if name in readers.PAIRS:
        return name, None, None, False
    if name == "mtx":
        return name, _mtx_size(Path(source)), None, True
    folder: Any = _NoFolder()
    try:
        opened = readers.open_source(source, folder, kind=kind, reading=reading, policy=policy)
    except _PutAsideError:
        return name, None, None, True
    opened.close()
    return name, opened.n_objects, opened, opened.mirrored


def _mtx_size(path: Path) -> int | None:
    """The first number after the comments of a MatrixMarket file; what is wrong with it the import will say."""
    with open(path, "rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else open(path, "rb") as file:
        for line in file:
            words = line.split()
            if words and not line.startswith(b"%"):
                return int(words[0]) if words[0].isdigit() else None
    return None


def _layout(n: int, writing: Writing) -> Layout:
    dtype = np.dtype(writing.dtype)
    return Layout(n, default_tile(n, dtype) if writing.tile is None else writing.tile, dtype)


def _new_store(store: StoreLike, layout: Layout, kind: str, facts: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The store that would be written, and what is said of it."""
    told = {**facts, "kind": kind, "tiles": len(layout.tiles()), "tile": layout.tile, "dtype": str(layout.dtype)}
    return (Output(str(store), layout.total_bytes + 60 * layout.n_objects),), told


def _limit(memory: int | str | None) -> int:
    return tasks.machine_memory() // 2 if memory is None else int(parse_bytes(memory))


def _scan(source: Any, consumers: list[Consumer], limit: int) -> int:
    """Bytes that a scan takes here; refuses what cannot fit."""
    fixed, task = needed_memory(source, consumers)
    if fixed + task > limit:
        raise MemoryLimitError(
            f"a scan needs {size_text(fixed + task)} and the limit is {size_text(limit)}; raise memory, or use"
            f" tiles smaller than {source.layout.tile}"
        )
    threads = min(tasks.thread_count(), (limit - fixed) // task) if task else 0
    return int(fixed + threads * task)


def _search(seen: Relation, search: Search, limit: int, *, metric: bool) -> tuple[int, int]:
    """Bytes that a search for eigenvalues takes at most, and its scans at most: half is the basis', half the scans'."""
    n = seen.n_objects
    most = scans_that_fit(search, n, n - 1, metric)
    work, step, sensible = search_memory(search, n, n - 1, metric)
    source: Any = seen.matrix
    zeros = np.broadcast_to(np.zeros(1, dtype=source.dtype), (search.block, n))
    scan = _scan(source, [product_consumer(source, [(seen.view, zeros)])], limit // 2)
    return work + step * min(most, sensible) + scan, min(most, sensible)
