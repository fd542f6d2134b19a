"""Damaged sources of `dasrel import`, one generator for each format."""

import gzip
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.system.fuzz import references
from tests.system.fuzz.damage import Rng, chance, damaged_bytes, damaged_json, damaged_text, pick
from tests.system.fuzz.judge import Candidate, Case, Repairs, fault_of_import
from tests.system.fuzz.references import read_by

Read = Callable[[], list[Candidate]]
NAMES = ("a", "b b", "c-1", "d_2", "é", "F", "g.3", "h", "i", "j10", "sample_number_11", "l")
HEADER = 10
"""Bytes before the header's text in a .npy file of version 1."""


def matrix(rng: Rng, kind: str, n: int | None = None) -> Any:
    """A correct matrix of a few objects, whose values have few digits."""
    n = int(rng.integers(2, 10)) if n is None else n
    points = rng.random((n, 3))
    values = np.round(np.sqrt(((points[:, None] - points) ** 2).sum(axis=2)), 3)
    return values if kind == "distance" else np.round(2 - values, 3)


def names_of(rng: Rng, n: int) -> list[str]:
    style = int(rng.integers(4))
    if style == 0:
        return [str(k) for k in range(n)]
    if style == 1:
        return [f"object-{k:03d}" for k in range(n)]
    return [NAMES[k % len(NAMES)] + ("" if k < len(NAMES) else str(k)) for k in range(n)]


def importing(rng: Rng, folder: Path, path: Path, repairs: Repairs, read: Read, *options: str) -> Case:
    """The import of a source, and the judgement of its store."""
    store = folder / "out.zarr"
    more = ["--tile", str(pick(rng, (2, 4, 16)))] if chance(rng, 0.5) else []
    more += ["--store-dtype", "float64"] if chance(rng, 0.3) else []
    more += ["--json"] if chance(rng, 0.2) else []
    command = ["import", str(path), str(store), *repairs.options, *options, *more]
    return Case([command], lambda done: fault_of_import(done[-1], store, repairs, read))


def repairs_of(rng: Rng) -> Repairs:
    return Repairs("distance" if chance(rng, 0.8) else "similarity", repair=chance(rng, 0.3))


# -------------------------------------------------------------------------------------------------------------- arrays


def array_of(rng: Rng, values: Any) -> Any:
    """The matrix as an array of some type, order and form."""
    if chance(rng, 0.15):
        values = values[np.triu_indices(len(values), 1)]
    if chance(rng, 0.2):
        values = np.round(values * 100)
    values = values.astype(
        pick(rng, ("<f8", "<f4", "<f8", ">f8", "<f2", "<i4", "<u2", "<i8", "<c16", "?", "<U5", "<f16"))
    )
    return np.asfortranarray(values) if chance(rng, 0.2) else values


def npy_bytes(rng: Rng, values: Any, *, damage: bool = True) -> bytes:
    """A .npy file, its header or its bytes damaged."""
    file = io.BytesIO()
    version = pick(rng, (None, (1, 0), (2, 0), (3, 0)))
    np.lib.format.write_array(file, values, version=version, allow_pickle=False)
    data = file.getvalue()
    if not damage or chance(rng, 0.1):
        return data
    if chance(rng, 0.5):
        return damaged_bytes(rng, data)
    end = data.index(b"\n", HEADER) + 1
    text = data[HEADER:end].decode("latin-1").rstrip() if data[6] == 1 else repr({"descr": "<f8", "shape": (3, 3)})
    shape, wrong = repr(values.shape), pick(rng, SHAPES)
    changes = (
        (shape, wrong), (shape, wrong), (shape, wrong), ("False", "True"), ("'<f8'", pick(rng, DESCRIPTIONS)),
        ("'<f8'", pick(rng, DESCRIPTIONS)), ("'shape'", "'shap'"), ("}", ""), ("{", "{" * 300), ("(", "(" * 50),
        ("False", "None"), ("False", "__import__('os')"), (", }", ", 'x': 1, }"),
    )  # fmt: skip
    text = text.replace(*pick(rng, changes)) if chance(rng, 0.9) else text[: int(rng.integers(len(text)))]
    header = text.encode("utf-8")
    header += b" " * ((-len(header) - HEADER - 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + (len(header) % 65536).to_bytes(2, "little") + header + data[end:]


SHAPES = (
    "(0, 0)", "()", "(1, 1)", "(4294967296, 4294967296)", "(9223372036854775807, 9223372036854775807)", "(-1, -1)",
    "(3, 3)", "(2, 2)", "(100000, 100000)", "(1000000,)", "(3,)", "(4, 3)", "(2, 2, 2)", "(True, True)", "(2.0, 2.0)",
    "((2, 2), 2)", "(2L, 2L)", "(" + "9" * 5000 + ",)", "None", "2", "(18446744073709551616, 1)", "(6,)", "(10,)",
)  # fmt: skip
DESCRIPTIONS = (
    "'|O'", "'<f4'", "'>f8'", "'<f2'", "'<i8'", "'<c16'", "'<U2'", "'|V8'", "'<M8[s]'", "'|b1'", "[('a', '<f8')]",
    "'<f3'", "'f'", "''", "None", "('<f8', (2,))", "'<f8,<f8'", "'|S8'", "'<f16'", "[]", "'" + "(" * 200 + "'",
)  # fmt: skip


def npy(rng: Rng, folder: Path) -> Case:
    repairs = repairs_of(rng)
    path = folder / "m.npy"
    path.write_bytes(npy_bytes(rng, array_of(rng, matrix(rng, repairs.kind))))
    options = ["--format", pick(rng, ("npy", "condensed", "raw"))] if chance(rng, 0.05) else []
    return importing(rng, folder, path, repairs, lambda: references.npy(path), *options)


def raw(rng: Rng, folder: Path) -> Case:
    repairs = repairs_of(rng)
    values = matrix(rng, repairs.kind)
    n, dtype = len(values), pick(rng, ("<f8", "<f4", ">f8", "float64"))
    values = values[np.triu_indices(n, 1)] if chance(rng, 0.3) else values
    path = folder / "m.bin"
    data = values.astype(dtype).tobytes()
    path.write_bytes(damaged_bytes(rng, data) if chance(rng, 0.7) else data)
    if chance(rng, 0.3):
        n = pick(rng, (1, 2, n + 1, 10**6, 2**31, 2**63))
    given = (
        pick(rng, ("object", "U5", "c16", "f", "datetime64", "", "x", "(2,)f8", "V8")) if chance(rng, 0.2) else dtype
    )
    read = partial(references.raw, path, n, given)
    return importing(rng, folder, path, repairs, read, "--shape", str(n), "--dtype", given)


def npz(rng: Rng, folder: Path) -> Case:
    repairs = repairs_of(rng)
    path = folder / "m.npz"
    values = matrix(rng, repairs.kind)
    dataset = None
    if chance(rng, 0.4):
        members = sparse_members(rng, values)
    else:
        members = {"m": npy_bytes(rng, array_of(rng, values), damage=chance(rng, 0.3))}
        if chance(rng, 0.3):
            members["other"] = npy_bytes(rng, rng.random(int(rng.integers(1, 5))), damage=False)
        if chance(rng, 0.3):
            dataset = pick(rng, ("m", "other", "x", "m.npy", ""))
    method = pick(
        rng, (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    data = path.read_bytes()
    if chance(rng, 0.7):
        data = zip_damage(rng, data)
    path.write_bytes(data)
    options = [] if dataset is None else ["--dataset", dataset]
    return importing(rng, folder, path, repairs, partial(references.npz, path, dataset, repairs.kind), *options)


def zip_damage(rng: Rng, data: bytes) -> bytes:
    """Damage to an archive: anywhere, or in the fields of one of its headers."""
    if chance(rng, 0.5):
        return damaged_bytes(rng, data)
    begin = pick(rng, [k for k in range(len(data)) if data[k : k + 4] in (b"PK\1\2", b"PK\3\4", b"PK\5\6")])
    where = begin + int(rng.integers(4, 46))
    return data[:where] + bytes([pick(rng, (0, 1, 8, 9, 14, 99, 255))]) + data[where + 1 :]


def sparse_members(rng: Rng, values: Any) -> dict[str, bytes]:
    """The members of a sparse matrix as SciPy saves it, one of them perhaps replaced."""
    import scipy.sparse

    dense = np.where(rng.random(values.shape) < 0.2, 0, values) if chance(rng, 0.5) else values
    form = pick(rng, ("csr", "csc", "coo", "csr", "bsr", "dia"))
    file = io.BytesIO()
    scipy.sparse.save_npz(file, scipy.sparse.csr_array(dense).asformat(form), compressed=False)
    with zipfile.ZipFile(file) as archive:
        members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    if chance(rng, 0.6):
        name = pick(rng, sorted(members))
        change = int(rng.integers(4))
        if change == 0:
            del members[name]
        elif change == 1:
            members[name] = npy_bytes(rng, np.load(io.BytesIO(members[name])))
        else:
            array = np.load(io.BytesIO(members[name]))
            if array.dtype.kind in "if" and array.size:
                array = array.copy()
                array.flat[int(rng.integers(array.size))] = pick(rng, (-1, 0, 1, 2, 7, 100, 2**31 - 1))
            else:
                array = pick(rng, (np.array(b"csr"), np.array("coo"), np.array(3), np.array([b"csr"]), np.zeros(0)))
            members[name] = npy_bytes(rng, array, damage=False)
    return members


# ---------------------------------------------------------------------------------------------------------------- text


def table_text(rng: Rng, values: Any, mark: str) -> str:
    """A matrix in text, with or without header and labels."""
    names = names_of(rng, len(values))
    form = pick(rng, ("{:g}", "{:.3f}", "{:.6e}"))
    rows = [[form.format(x) for x in row] for row in values]
    header, labels = chance(rng, 0.6), chance(rng, 0.6)
    if labels:
        rows = [[name, *row] for name, row in zip(names, rows, strict=True)]
    if header:
        rows.insert(0, [*([pick(rng, ("", "id", "x"))] if labels and chance(rng, 0.9) else []), *names])
    return "\n".join(mark.join(row) for row in rows) + ("\n" if chance(rng, 0.9) else "")


def table(rng: Rng, folder: Path, suffix: str, marks: tuple[str, ...], *, packed: bool = False) -> Case:
    repairs = repairs_of(rng)
    mark = pick(rng, marks)
    text = table_text(rng, matrix(rng, repairs.kind), mark)
    data = damaged_text(rng, text, mark) if chance(rng, 0.95) else text.encode()
    if chance(rng, 0.05):
        data = data.replace(b"\n", pick(rng, (b"\r\n", b"\r")))
    if packed:
        suffix, data = f"{suffix}.gz", gzip_damage(rng, text.encode())
    path = folder / f"m{suffix}"
    path.write_bytes(data)
    options = ["--format", pick(rng, ("csv", "tsv", "lsmat", "phylip", "pairs"))] if chance(rng, 0.1) else []
    read = partial(_table_or_pairs, path, repairs, options)
    return importing(rng, folder, path, repairs, read, *options)


def _table_or_pairs(path: Path, repairs: Repairs, options: list[str]) -> list[Candidate]:
    """A square is a list of pairs only where the user says so."""
    data = path.read_bytes()
    if options == ["--format", "pairs"]:
        return references.pairs(data, ("\t", ",", ";", None), (0, 1, 2), repairs.kind, repairs.repair)
    if options == ["--format", "phylip"]:
        return references.phylip(data, repairs.kind)
    return references.tables(data, ("\t", ",", ";", None))


def gzip_damage(rng: Rng, data: bytes) -> bytes:
    packed = gzip.compress(data, int(rng.integers(0, 10)), mtime=0)
    if chance(rng, 0.2):
        packed += pick(rng, (gzip.compress(b"1,2\n", mtime=0), b"\0" * 10, b"x", packed))
    return damaged_bytes(rng, packed) if chance(rng, 0.9) else packed


def csv(rng: Rng, folder: Path) -> Case:
    return table(rng, folder, pick(rng, (".csv", ".csv", ".txt", "")), (",", ",", ";", "\t", " "))


def tsv(rng: Rng, folder: Path) -> Case:
    return table(rng, folder, pick(rng, (".tsv", ".tsv", ".lsmat", ".txt")), ("\t",))


def gz(rng: Rng, folder: Path) -> Case:
    which = int(rng.integers(3))
    if which == 0:
        return table(rng, folder, ".csv", (",",), packed=True)
    return mtx(rng, folder, packed=True) if which == 1 else pairs(rng, folder, packed=True)


def phylip_text(rng: Rng, values: Any) -> str:
    n = len(values)
    names = [name.replace(" ", "_") for name in names_of(rng, n)]
    shape, mark = pick(rng, ("square", "square", "lower", "diagonal")), pick(rng, ("\t", " ", "  "))
    strict = mark != "\t" and chance(rng, 0.3)
    rows = []
    for k, row in enumerate(values):
        width = {"square": n, "lower": k, "diagonal": k + 1}[shape]
        label = f"{names[k][:10]:<10}" if strict else names[k]
        rows.append(mark.join([label, *(f"{x:.4f}" for x in row[:width])]))
    return "\n".join([f"{pick(rng, ('', '   '))}{n}", *rows, ""])


def phylip(rng: Rng, folder: Path) -> Case:
    repairs = repairs_of(rng)
    text = phylip_text(rng, matrix(rng, repairs.kind))
    path = folder / pick(rng, ("m.phylip", "m.phy", "m.dist"))
    mark = "\t" if "\t" in text else " "
    if chance(rng, 0.2):
        text = pick(
            rng, ("9" * 5000, "0", "-3", "2", "1", "1000000", "268435456", "99999999999", "x", "3 3", "\uff13")
        ) + ("\n" + text.split("\n", 1)[1])
        path.write_bytes(text.encode())
    else:
        path.write_bytes(damaged_text(rng, text, mark))
    options = ["--format", "phylip"] if chance(rng, 0.2) else []
    return importing(rng, folder, path, repairs, read_by(references.phylip, path, repairs.kind), *options)


def mtx_text(rng: Rng, values: Any) -> str:
    n = len(values)
    form, symmetry = pick(rng, ("coordinate", "coordinate", "array")), pick(rng, ("general", "symmetric"))
    places = [(i, j) for j in range(n) for i in range(n) if symmetry == "general" or i >= j]
    if form == "coordinate":
        places = [(i, j) for i, j in places if i != j or values[i, j]]
        body = [f"{i + 1} {j + 1} {values[i, j]:g}" for i, j in places]
        sizes = f"{n} {n} {len(body)}"
    else:
        body, sizes = [f"{values[i, j]:g}" for i, j in places], f"{n} {n}"
    comment = ["% a comment"] if chance(rng, 0.3) else []
    return "\n".join([f"%%MatrixMarket matrix {form} real {symmetry}", *comment, sizes, *body, ""])


def mtx(rng: Rng, folder: Path, *, packed: bool = False) -> Case:
    repairs = repairs_of(rng)
    text = mtx_text(rng, matrix(rng, repairs.kind))
    path = folder / ("m.mtx.gz" if packed else "m.mtx")
    if packed:
        path.write_bytes(gzip_damage(rng, text.encode()))
    elif chance(rng, 0.3):
        lines = text.split("\n")
        if chance(rng, 0.5):
            words = lines[0].split()
            words[int(rng.integers(5))] = pick(
                rng, ("pattern", "complex", "integer", "hermitian", "skew-symmetric", "array", "x")
            )
            lines[0] = " ".join(words)
        else:
            at = 2 if lines[1].startswith("%") else 1
            words = lines[at].split()
            wrong = pick(rng, ("0", "1", "-1", "9" * 5000, "200000000", "2147483648", "1e3", "3.0", "", "\uff14"))
            words = [wrong, wrong, *words[2:]] if chance(rng, 0.5) else [*words[:-1], wrong]
            lines[at] = " ".join(words)
        path.write_bytes("\n".join(lines).encode())
    else:
        path.write_bytes(damaged_text(rng, text, " "))
    return importing(rng, folder, path, repairs, read_by(references.mtx, path, repairs.kind))


# --------------------------------------------------------------------------------------------------------------- pairs


def listed(rng: Rng, values: Any, kind: str) -> list[tuple[str, str, float]]:
    n, names = len(values), names_of(rng, len(values))
    both = chance(rng, 0.3)
    places = [
        (i, j) for i in range(n) for j in range(n) if i < j or (both and i > j) or (i == j and kind != "distance")
    ]
    if chance(rng, 0.3):
        places = [places[k] for k in rng.permutation(len(places))]
    return [(names[i], names[j], float(values[i, j])) for i, j in places]


def pairs(rng: Rng, folder: Path, *, packed: bool = False) -> Case:
    repairs = repairs_of(rng)
    mark = pick(rng, ("\t", ",", "\t", " ", ";"))
    rows = [[a, b, f"{x:g}"] for a, b, x in listed(rng, matrix(rng, repairs.kind), repairs.kind)]
    if mark == " ":
        rows = [[a.replace(" ", "_"), b.replace(" ", "_"), x] for a, b, x in rows]
    columns, options = (0, 1, 2), ["--format", "pairs"]
    if chance(rng, 0.3):
        rows = [[x, "7", a, b] for a, b, x in rows]
        columns, options = (2, 3, 0), ["--format", "pairs", "--columns", "3,4,1"]
    elif chance(rng, 0.3):
        options = []
    if chance(rng, 0.3):
        rows.insert(0, [f"column{k}" for k in range(len(rows[0]))])
    if chance(rng, 0.05):
        options = [
            "--columns",
            pick(rng, ("1,1,2", "1,2", "a,b,c", "0,1,2", "1,2,99", "1,2,-1", "9" * 30 + ",1,2", ",,")),
        ]
    text = "\n".join(mark.join(row) for row in rows) + "\n"
    path = folder / ("m.tsv.gz" if packed else pick(rng, ("m.pairs", "m.tsv", "m.txt", "m.m8")))
    path.write_bytes(gzip_damage(rng, text.encode()) if packed else damaged_text(rng, text, mark))
    read = partial(_pairs_or_table, path, columns, repairs, explicit=bool(options))
    return importing(rng, folder, path, repairs, read, *options)


def _pairs_or_table(path: Path, columns: tuple[int, int, int], repairs: Repairs, *, explicit: bool) -> list[Candidate]:
    """Where the user does not say that it is a list, one that is as wide as it is long may be a square."""
    data, marks = path.read_bytes(), ("\t", ",", ";", None)
    found = references.pairs(data, marks, columns, repairs.kind, repairs.repair)
    return found if explicit else [*found, *references.tables(data, marks)]


def parquet(rng: Rng, folder: Path) -> Case:
    import pyarrow as pa
    import pyarrow.parquet as pq

    repairs = repairs_of(rng)
    rows = listed(rng, matrix(rng, repairs.kind), repairs.kind)
    a, b, values = (list(column) for column in zip(*rows, strict=True))
    columns: list[tuple[str, Any]] = [("a", pa.array(a)), ("b", pa.array(b)), ("v", pa.array(values))]
    change = int(rng.integers(12))
    if change == 0:
        columns[2] = ("v", pa.array([None, *values[1:]], pa.float64()))
    elif change == 1:
        columns[0] = ("a", pa.array([None, *a[1:]], pa.string()))
    elif change == 2:
        columns = [(pick(rng, ("a", "a", "b", "")), column) for _, column in columns]
    elif change == 3:
        columns[2] = (
            "v",
            pick(rng, (pa.array([str(x) for x in values]), pa.array([[x] for x in values]), pa.nulls(len(a)))),
        )
    elif change == 4:
        columns[0] = ("a", pa.array([x.encode() for x in a], pa.binary()))
    elif change == 5:
        columns[0] = ("a", pa.array(range(len(a)), pa.int64()))
    elif change == 6:
        columns[2] = (
            "v",
            pa.array([int(100 * x) for x in values], pick(rng, (pa.int64(), pa.uint8(), pa.decimal128(20, 2)))),
        )
    elif change == 7:
        columns = columns[: int(rng.integers(3))] or [("a", pa.array([], pa.string()))]
    elif change == 8:
        columns[1] = ("b", pa.array(b).dictionary_encode())
    table = pa.Table.from_arrays([column for _, column in columns], names=[name for name, _ in columns])
    path = folder / "m.parquet"
    pq.write_table(
        table, path, compression=pick(rng, ("none", "snappy", "gzip", "zstd")), use_dictionary=chance(rng, 0.5)
    )
    if change > 7 or chance(rng, 0.3):
        data = path.read_bytes()
        where = int(rng.integers(len(data)))  # most of a small file is its footer
        path.write_bytes(
            damaged_bytes(rng, data) if chance(rng, 0.7) else data[:where] + damaged_bytes(rng, data[where:] or b"x")
        )
    return importing(rng, folder, path, repairs, partial(references.parquet, path, repairs.kind, repairs.repair))


def qza(rng: Rng, folder: Path) -> Case:
    repairs = Repairs("distance", repair=chance(rng, 0.3))
    text = table_text(rng, matrix(rng, "distance"), "\t")
    data = damaged_text(rng, text, "\t") if chance(rng, 0.4) else text.encode()
    path = folder / "m.qza"
    name = pick(rng, ("u/data/distance-matrix.tsv",) * 5 + ("../data/distance-matrix.tsv", "x", "u/data/other.tsv"))
    with zipfile.ZipFile(path, "w", pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))) as archive:
        archive.writestr(name, data)
        archive.writestr("u/metadata.yaml", "uuid: u\n")
    if chance(rng, 0.6):
        path.write_bytes(zip_damage(rng, path.read_bytes()))
    return importing(rng, folder, path, repairs, partial(references.qza, path))


# ------------------------------------------------------------------------------------------------- hierarchical formats


def hdf5(rng: Rng, folder: Path) -> Case:
    import h5py

    repairs = repairs_of(rng)
    values = array_of(rng, matrix(rng, repairs.kind))
    values = (
        values
        if values.dtype.kind in "fiub"
        else values.astype("U3").astype("S3")
        if values.dtype.kind == "U"
        else values
    )
    path, n = folder / "m.h5", len(values)
    name = pick(rng, ("matrix", "matrix", "matrix:0", "x", "group/x"))
    with h5py.File(path, "w", libver=pick(rng, ("earliest", "latest"))) as file:
        how: dict[str, Any] = {}
        if chance(rng, 0.5) and n > 1:
            how = {"chunks": (max(1, n // 2),) * values.ndim, "compression": pick(rng, (None, "gzip", "lzf"))}
            how |= {"shuffle": True} if chance(rng, 0.3) else {}
            how |= {"fletcher32": True} if chance(rng, 0.3) else {}
        change = int(rng.integers(10))
        if change == 0:
            file.create_group(name)
        elif change == 1:
            file.create_dataset(name, data=pick(rng, (3.0, h5py.Empty("f8"), np.zeros((0, 0)), np.zeros((2, 2, 2)))))
        elif change == 2 and values.ndim == 2:
            source = h5py.VirtualSource(str(folder / "away.h5"), "x", shape=values.shape, dtype=values.dtype)
            layout = h5py.VirtualLayout(shape=values.shape, dtype=values.dtype)
            layout[...] = source
            file.create_virtual_dataset(name, layout)
        elif change == 3:
            outside = folder / pick(rng, ("m.raw", "away.raw"))
            (folder / "m.raw").write_bytes(values.tobytes())
            file.create_dataset(name, values.shape, values.dtype, external=[(str(outside), 0, h5py.h5f.UNLIMITED)])
        elif change == 4:
            file[name] = pick(
                rng, (h5py.SoftLink("/nowhere"), h5py.SoftLink(f"/{name}"), h5py.ExternalLink("away.h5", "x"))
            )
        elif change == 5:
            data = file.create_dataset(name, values.shape, values.dtype, **how)  # chunks that were never written
            if chance(rng, 0.5) and n > 1:
                data[: n // 2] = values[: n // 2]
        else:
            file.create_dataset(name, data=values, **how)
        if chance(rng, 0.5):
            ids = [x.encode() for x in names_of(rng, n)]
            order = pick(
                rng, (ids, ids, ids, ids[:-1], [b"\xff"] * n, 3, [ids], list(range(n)), b"abc", [0.5] * n, "group")
            )
            if isinstance(order, str):
                file.create_group("order")
            else:
                file.create_dataset("order", data=order)
    if change > 5 and chance(rng, 0.9):
        path.write_bytes(damaged_bytes(rng, path.read_bytes(), most=6))
    dataset = pick(rng, (name, "order", "nothing", "group", "/", "")) if chance(rng, 0.2) else None
    options = [] if dataset is None else ["--dataset", dataset]
    return importing(rng, folder, path, repairs, partial(references.hdf5, path, dataset), *options)


def mat(rng: Rng, folder: Path) -> Case:
    """A MATLAB file of version 5 or 7.3, with one matrix among other variables."""
    import h5py
    from scipy.io import savemat

    repairs = repairs_of(rng)
    values = matrix(rng, repairs.kind)
    if chance(rng, 0.15):
        values = values[np.triu_indices(len(values), 1)].reshape(pick(rng, ((1, -1), (-1, 1))))
    values = values.astype(pick(rng, ("f8", "f8", "f8", "f4", "i4", "c16")))
    others = {"note": "text", "count": 3.0, "wide": np.zeros((2, 3)), "cells": np.array([1, "a"], dtype=object)}
    path, name = folder / "m.mat", pick(rng, ("D", "x", "a_long_name_of_a_variable"))
    if chance(rng, 0.7):
        variables = {key: others[key] for key in others if chance(rng, 0.2)} | {name: values}
        savemat(path, variables, do_compression=chance(rng, 0.6))
    else:
        with h5py.File(path, "w", userblock_size=512) as file:
            how = {"chunks": True, "compression": "gzip"} if chance(rng, 0.5) else {}
            file.create_dataset(name, data=values.T, **how).attrs["MATLAB_class"] = np.bytes_("double")
            if chance(rng, 0.3):
                file.create_dataset("note", data=np.zeros((1, 4), "u2")).attrs["MATLAB_class"] = np.bytes_("char")
        with open(path, "r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file, Platform: none".ljust(124) + b"\x00\x02IM")
    if chance(rng, 0.9):
        path.write_bytes(damaged_bytes(rng, path.read_bytes(), most=6))
    dataset = pick(rng, (name, name, "note", "nothing", "")) if chance(rng, 0.2) else None
    options = [] if dataset is None else ["--dataset", dataset]
    return importing(rng, folder, path, repairs, partial(references.mat, path, dataset), *options)


def zarr(rng: Rng, folder: Path) -> Case:
    import zarr as library

    repairs = repairs_of(rng)
    values = array_of(rng, matrix(rng, repairs.kind))
    values = values.astype("f8") if values.dtype.kind not in "fiub" or values.dtype.itemsize > 8 else values
    path, n = folder / "m.zarr", len(values)
    version = pick(rng, (2, 3, 3))
    chunks = (int(rng.integers(1, n + 1)),) * values.ndim
    place, dataset = path, None
    if chance(rng, 0.3):
        library.create_group(path, zarr_format=version)
        place, dataset = path / "x", pick(rng, (None, "x", "y"))
    made = library.create_array(str(place), shape=values.shape, chunks=chunks, dtype=values.dtype, zarr_format=version)
    made[...] = values
    files = sorted(file for file in path.rglob("*") if file.is_file())
    heads = [file for file in files if file.name in ("zarr.json", ".zarray", ".zgroup", ".zattrs")]
    parts = [file for file in files if file not in heads]
    change = int(rng.integers(9))
    if change <= 2:
        head = pick(rng, heads)
        head.write_text(json.dumps(damaged_json(rng, json.loads(head.read_text()))))
    elif change == 3:
        head = pick(rng, heads)
        head.write_bytes(damaged_bytes(rng, head.read_bytes()))
    elif change == 4 and parts:
        pick(rng, parts).unlink()
    elif change == 5 and parts:
        part = pick(rng, parts)
        part.write_bytes(damaged_bytes(rng, part.read_bytes()))
    elif change == 6:
        pick(rng, files).unlink()
    elif change == 7 and parts:
        part = pick(rng, parts)
        part.unlink()
        part.mkdir()
    elif change == 8 and len(heads) > 1:
        shutil.copy(*rng.permutation(heads)[:2])
    options = [] if dataset is None else ["--dataset", dataset]
    return importing(rng, folder, path, repairs, partial(references.zarr_array, path, dataset), *options)


SOURCES: dict[str, Callable[[Rng, Path], Case]] = {
    "npy": npy, "npz": npz, "raw": raw, "csv": csv, "tsv": tsv, "gz": gz, "phylip": phylip, "mtx": mtx, "pairs": pairs,
    "parquet": parquet, "qza": qza, "hdf5": hdf5, "mat": mat, "zarr": zarr,
}  # fmt: skip
