"""Other readers of the formats that dasrel imports: by NumPy, SciPy's formats, pandas, h5py and zarr, or a few lines.

Each returns the readings of a file that make sense. They are simple and slow, and know nothing of dasrel.
"""

import contextlib
import csv
import gzip
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.system.fuzz.judge import Candidate

MISSING = {"", "nan", "na", "n/a", "#n/a", "null", "none", "-nan"}


def square(values: Any) -> Any:
    """A square matrix of a square matrix, or of a condensed vector."""
    values = np.asarray(values)
    if values.ndim != 1:
        return values
    n = next(n for n in range(2, 10_000) if n * (n - 1) // 2 >= values.size)
    full = np.zeros((n, n))
    full[np.triu_indices(n, 1)] = values
    return full + full.T


def is_triangular(count: int) -> bool:
    """Whether so many numbers can be a condensed vector."""
    return any(n * (n - 1) // 2 == count for n in range(2, count + 2))


def npy(path: Path) -> list[Candidate]:
    return [Candidate(square(np.load(path, allow_pickle=False)))]


def raw(path: Path, n: int, dtype: str) -> list[Candidate]:
    values = np.frombuffer(path.read_bytes(), dtype)
    return [Candidate(values.reshape(n, n) if values.size == n * n else square(values))]


def entries(n: int, rows: Sequence[Any], columns: Sequence[Any], values: Sequence[Any], kind: str, mean: bool) -> Any:
    """A dense matrix of triplets. What is not listed is missing, and for similarities 0."""
    sums, counts = np.zeros((n, n)), np.zeros((n, n))
    for i, j, value in zip(rows, columns, values, strict=True):
        if not (0 <= i < n and 0 <= j < n):
            raise ValueError(f"an entry ({i}, {j}) of {n} objects")
        if math.isnan(value) and kind == "distance":
            continue
        sums[int(i), int(j)] += value
        counts[int(i), int(j)] += 1
    if counts.max(initial=0) > 1 and not mean:
        raise ValueError("an entry is listed twice")
    absent = np.nan if kind == "distance" else 0.0
    dense = np.where(counts > 0, sums / np.maximum(counts, 1), absent)
    if kind == "distance":
        np.fill_diagonal(dense, np.where(np.isnan(np.diagonal(dense)), 0, np.diagonal(dense)))
    return dense


def npz(path: Path, dataset: str | None, kind: str) -> list[Candidate]:
    with np.load(path, allow_pickle=False) as found:
        if dataset is None and {"format", "shape", "data"} <= set(found.files):
            form = (
                bytes(found["format"].item()).decode() if found["format"].dtype.kind == "S" else found["format"].item()
            )
            n, m = (int(x) for x in found["shape"])
            data = found["data"].tolist()
            if n != m:
                raise ValueError("not square")
            if form == "coo":
                rows, columns = found["row"].tolist(), found["col"].tolist()
            else:
                ends, columns = found["indptr"].tolist(), found["indices"].tolist()
                if len(ends) != n + 1 or ends[0] != 0 or ends[-1] != len(data) or sorted(ends) != ends:
                    raise ValueError("indptr does not fit")
                rows = [i for i in range(n) for _ in range(ends[i], ends[i + 1])]
                if form == "csc":
                    rows, columns = columns, rows
            return [Candidate(entries(n, rows, columns, data, kind, mean=False))]
        if dataset is not None:
            return [Candidate(square(found[dataset]))]
        several, damaged = [], False
        for name in (name for name in found.zip.namelist() if name.endswith(".npy")):
            try:
                several.append(found[name])
            except Exception:
                damaged = True
        fitting = [values for values in several if values.dtype.kind in "fiub" and values.ndim in (1, 2)]
        if damaged:  # what cannot be read may have been the matrix, and only the matrix is square
            fitting = [values for values in fitting if values.ndim == 2]
        fitting = [values for values in fitting if values.ndim == 2 or is_triangular(values.size)]
        return [Candidate(square(values)) for values in fitting]


# ---------------------------------------------------------------------------------------------------------------- text


def is_number(field: str) -> bool:
    try:
        number(field)
    except ValueError:
        return False
    return True


def number(field: str) -> float:
    field = field.strip()
    if field.lower() in MISSING:
        return math.nan
    if "_" in field:
        raise ValueError(field)
    return float(field)


def decoded(data: bytes, errors: str = "strict") -> str:
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return data.decode("utf-8-sig", errors)


def text_lines(data: bytes, errors: str = "strict") -> list[str]:
    return [line.removesuffix("\r") for line in decoded(data, errors).split("\n")]


def split(line: str, mark: str | None) -> list[str]:
    """The fields of a line; None for any number of blanks between them, where quotes are left out too."""
    if mark is None:
        raw = line.encode(errors="surrogateescape").split()  # other spaces of Unicode are parts of names
        words = [word.decode(errors="surrogateescape") for word in raw]
        return [word[1:-1] if len(word) > 1 and word[0] == word[-1] == '"' else word for word in words]
    return next(csv.reader([line], delimiter=mark))


def tables(data: bytes, marks: Sequence[str | None]) -> list[Candidate]:
    """Readings of a square in text: with or without header and labels, by each of these delimiters."""
    lines = [line for line in text_lines(data) if line.strip()]
    while lines and lines[0].startswith("#"):
        lines.pop(0)
    found = []
    for mark in marks:
        try:
            rows = [split(line, mark) for line in lines]
        except csv.Error:
            continue
        for header in (0, 1):
            for labels in (0, 1):
                body = rows[header:]
                try:
                    values = [[number(field) for field in row[labels:]] for row in body]
                except ValueError:
                    continue
                if not body or {len(row) for row in values} != {len(values)}:
                    continue
                names = [str(k) for k in range(len(values))]
                if header:
                    names = [name.strip() for name in rows[0][len(rows[0]) - len(values) :]]
                if labels and header and [row[0].strip() for row in body] != names:
                    continue
                if labels:
                    names = [row[0].strip() for row in body]
                found.append(Candidate(np.array(values), names))
    return found


def ascii_words(text: str) -> list[str]:
    """Words between spaces; other separators, such as U+2028, are part of a name."""
    return re.findall(r"[^ \t\r\f\v]+", text)


def phylip(data: bytes, kind: str) -> list[Candidate]:
    lines = [line for line in text_lines(data) if line.strip()]
    n, body = int(lines[0]), lines[1:]
    rows: list[str] = []
    tabs = any("\t" in line for line in body[:2])
    for line in body:
        if rows and line.startswith(" ") and not tabs:
            rows[-1] += line
        else:
            rows.append(line)
    if len(rows) != n:
        raise ValueError("another number of rows")
    found = []
    for widths in ([n] * n, list(range(n)), list(range(1, n + 1))):
        values, names = np.full((n, n), np.nan), []
        for k, (row, width) in enumerate(zip(rows, widths, strict=True)):
            cut = row.rstrip().split("\t") if tabs else ascii_words(row)
            if len(cut) != width + 1 and not tabs:
                cut = [row[:10], *ascii_words(row[10:])]
            if len(cut) != width + 1 or not all(map(is_number, cut[1:])):
                break
            values[k, :width] = [number(field) for field in cut[1:]]
            names.append(cut[0].strip())
        else:
            if widths[0] != n:
                values = np.where(np.tri(n, dtype=bool), values, values.T)
            if widths[0] == 0:
                np.fill_diagonal(values, 0)
            found.append(Candidate(values, names))
    return found


def mtx(data: bytes, kind: str) -> list[Candidate]:
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    head, *lines = data.decode("ascii", "surrogateescape").split("\n")
    _, _, form, field, symmetry = head.lower().split()
    rows = [line.split() for line in lines if line.strip() and not line.startswith("%")]
    n, m = int(rows[0][0]), int(rows[0][1])
    if n != m:
        raise ValueError("not square")
    body = [[float(word) for word in row] for row in rows[1:]]
    if form == "array":
        flat = [row[0] for row in body if len(row) == 1]
        if symmetry == "general":
            return [Candidate(np.array(flat).reshape(n, n).T)]
        lower = np.zeros((n, n))
        lower.T[np.triu_indices(n)] = flat
        return [Candidate(lower + np.tril(lower, -1).T)]
    if len(body) != int(rows[0][2]) or {len(row) for row in body} != {2 if field == "pattern" else 3}:
        raise ValueError("not the entries that the size line tells")
    triplets = [(row[0] - 1, row[1] - 1, row[2] if len(row) > 2 else 1.0) for row in body]
    if any(i != int(i) or j != int(j) for i, j, _ in triplets):
        raise ValueError("an index is no whole number")
    if symmetry == "symmetric":
        triplets = [(min(i, j), max(i, j), value) for i, j, value in triplets]
    dense = entries(n, *zip(*triplets, strict=True), kind, mean=False)
    if symmetry == "symmetric":
        side = np.arange(n)
        dense = np.where(side[:, None] <= side[None, :], dense, dense.T)
    return [Candidate(dense)]


def pair_matrix(pairs: list[tuple[str, str, float]], kind: str, mean: bool) -> Candidate:
    """A matrix of pairs listed in one direction or in both; objects in the order of their first appearance."""
    names: dict[str, int] = {}
    for a, b, _ in pairs:
        for name in (a, b):
            if not name:
                raise ValueError("an empty name")
            names.setdefault(name, len(names))
    here = [(names[a], names[b], value) for a, b, value in pairs if not math.isnan(value)]
    dense = (
        entries(len(names), *zip(*here, strict=True), "distance", mean) if here else np.full((len(names),) * 2, np.nan)
    )
    given = {(i, j) for i, j, _ in here}
    if kind != "distance" and any((k, k) not in given for k in range(len(names))):
        raise ValueError("no value of an object with itself")
    if not any((j, i) in given for i, j in given if i != j):
        dense = np.where(np.isnan(dense), dense.T, dense)
    return Candidate(dense, list(names))


def pairs(
    data: bytes, marks: Sequence[str | None], columns: tuple[int, int, int], kind: str, mean: bool
) -> list[Candidate]:
    found = []
    for mark in marks:
        try:
            rows = []
            for line in text_lines(data, "surrogateescape"):  # columns that are not read may hold anything
                if not line.strip() or line.startswith("#"):
                    continue
                rows.append(split(line, mark))
        except (csv.Error, StopIteration):
            continue
        if not rows or len({len(row) for row in rows}) != 1 or len(rows[0]) <= max(columns):
            continue
        for header in (0, 1):
            a, b, v = columns
            try:
                read = [(row[a].strip(), row[b].strip(), number(row[v])) for row in rows[header:]]
                "".join(a + b for a, b, _ in read).encode()  # raises where a name is not UTF-8
                found.append(pair_matrix(read, kind, mean))
            except ValueError:
                continue
    return found


def parquet(path: Path, kind: str, mean: bool) -> list[Candidate]:
    import pandas as pd

    table = pd.read_parquet(path)
    read = []
    for a, b, value in table.iloc[:, :3].itertuples(index=False):
        read.append((str(a).strip(), str(b).strip(), math.nan if pd.isna(value) else float(value)))
    return [pair_matrix(read, kind, mean)]


def qza(path: Path) -> list[Candidate]:
    with zipfile.ZipFile(path) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith("/data/distance-matrix.tsv")]
        return tables(packed.read(name), ["\t"])


# -------------------------------------------------------------------------------------------------------------- arrays


def hdf5(path: Path, dataset: str | None) -> list[Candidate]:
    """Every array of the file, or the one that was asked for; NaN where the file of a virtual dataset is not there."""
    import h5py

    found: list[Candidate] = []
    with h5py.File(path, "r") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        chosen = (
            [dataset] if dataset is not None else [name for name in ("matrix", "matrix:0") if name in names] or names
        )
        for name in chosen:
            data: Any = file[name]
            if data.ndim not in (1, 2) or data.dtype.kind not in "fiub":
                continue
            if data.ndim == 1 and math.isqrt(8 * data.size + 1) ** 2 != 8 * data.size + 1:
                continue  # no condensed matrix has so many values; `order` may have
            values = np.asarray(data[...], dtype=np.float64)
            if data.chunks is not None:
                values = np.where(chunks_there(data), values, np.nan)
            if data.is_virtual:
                for source in data.virtual_sources():
                    if source.file_name != "." and not (path.parent / source.file_name).exists():
                        values[...] = np.nan
            ids = None
            if name.startswith("matrix") and isinstance(file.get("order"), h5py.Dataset):
                ids = [x.decode("utf-8", "replace") if isinstance(x, bytes) else str(x) for x in file["order"][:]]  # type: ignore[index]
            found.append(Candidate(square(values), ids))
    return found


def mat(path: Path, dataset: str | None) -> list[Candidate]:
    """Every square matrix and vector of the file, or the one of this name."""
    import h5py
    from scipy.io import loadmat, whosmat

    head = path.read_bytes()[:128]
    if head.startswith((b"MATLAB 7.3", b"\x89HDF")):
        with h5py.File(path, "r") as file:
            read = {name: np.asarray(data[...]).T for name, data in file.items() if isinstance(data, h5py.Dataset)}
    else:
        read = {}
        numbers = [name for name, _, held in whosmat(path) if held.startswith(("double", "single", "int", "uint"))]
        for name in numbers:  # SciPy crashes on some damaged cells
            with contextlib.suppress(Exception):  # one that is damaged does no harm to another
                read |= loadmat(path, variable_names=[name], mat_dtype=False, verify_compressed_data_integrity=True)
    found = []
    for name, values in read.items():
        if dataset in (None, name) and getattr(values, "ndim", 0) == 2 and values.dtype.kind in "fiu":
            flat = values.ravel() if 1 in values.shape else values
            if flat.ndim == 2 or is_triangular(flat.size):
                found.append(Candidate(square(flat)))
    return found


def chunks_there(data: Any) -> Any:
    """Where the values of an HDF5 dataset lie in chunks that were written."""
    there = np.zeros(data.shape, bool)
    for k in range(data.id.get_num_chunks()):
        offset = data.id.get_chunk_info(k).chunk_offset
        there[tuple(slice(at, at + side) for at, side in zip(offset, data.chunks, strict=True))] = True
    return there


def zarr_array(path: Path, dataset: str | None) -> list[Candidate]:
    """The arrays of a folder; NaN in place of chunks that are not there."""
    import itertools

    import zarr

    node: Any = zarr.open(path, mode="r")
    if isinstance(node, zarr.Group):
        nodes = [(name, item) for name, item in node.arrays() if dataset in (None, name)]
    else:
        nodes = [("", node)]
    found = []
    for name, item in nodes:
        if item.dtype.kind not in "fiub" or item.ndim not in (1, 2):
            continue
        values = np.array(item[...], dtype=np.float64)
        counts = [math.ceil(size / side) for size, side in zip(item.shape, item.chunks, strict=True)]
        for place in itertools.product(*map(range, counts)):
            if not (path / name / item.metadata.encode_chunk_key(place)).is_file():
                spans = tuple(slice(k * side, (k + 1) * side) for k, side in zip(place, item.chunks, strict=True))
                values[spans] = np.nan
        found.append(Candidate(square(values)))
    return found


def read_by(function: Callable[..., list[Candidate]], path: Path, *arguments: Any) -> Callable[[], list[Candidate]]:
    """A reading of a file's bytes, done when it is needed."""
    return lambda: function(path.read_bytes(), *arguments)
