"""MATLAB's files: version 5 (up to `save -v7`) and 7.3, which is HDF5.

A version 5 file is a sequence of variables, each compressed by zlib or not (MATLAB, "MAT-File Format", section 1). A
matrix that is not compressed is mapped; a compressed one is unpacked to disk, some MB at a time, so that memory does
not depend on its size. MATLAB has its numbers column by column, and a vector as a matrix with one row or one column.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.errors import check_unpacked, reader_errors
from dasrel.io.readers.hdf5 import opened_dataset
from dasrel.io.readers.source import Opened, choose, copied_source, is_matrix, mapped_source, provenance_of
from dasrel.util.text import count_text, path_text, shown, some

HEAD = 128
MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""The types of numbers, by their code."""
TEXT = (1, 16)
"""The types of names: bytes, or UTF-8."""
CLASSES = {1: "a cell array", 2: "a struct", 3: "an object", 4: "text", 5: "sparse"}
"""Classes of variables that hold no full matrix of numbers; those of numbers are 6 to 15."""
COPY = 4 << 20


def is_matlab(head: bytes) -> bool:
    """Return whether the first 128 bytes of a file are those of a version 5 or 7.3 file.

    A zero among the first four is how MATLAB tells version 4.
    """
    return head.startswith((b"MATLAB 5.0 MAT-file", b"MATLAB 7.3 MAT-file")) or (
        len(head) >= HEAD and head[124:128] in (b"\x00\x01IM", b"\x01\x00MI") and 0 not in head[:4]
    )


@dataclass(frozen=True)
class Variable:
    """A variable of a version 5 file."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """None if it is no full matrix of real numbers."""
    what: str
    """What it is then."""
    start: int
    """Where its element begins in the file, behind the tag."""
    size: int
    packed: bool
    skip: int
    """Bytes of the element before its numbers."""

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def described(self, *, short: bool = False) -> str:
        """Return what it is, for messages about a variable that is no matrix."""
        return self.what or ("x" if short else " x ").join(map(str, self.shape)).join(
            ("" if short else "of shape ", "")
        )

    def read_shape(self) -> tuple[int, ...]:
        """Return the shape as other formats have it: a vector has one dimension."""
        return (self.count,) if len(self.shape) == 2 and 1 in self.shape else self.shape


def open_mat(path: Path, reading: Reading, kind: str) -> Opened:
    """Open a variable of a MATLAB file: the only square or condensed one, or the one named."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if head.startswith((b"MATLAB 7.3", b"\x89HDF")):
        return _open_hdf5(path, reading, kind)
    if not is_matlab(head):
        raise InputError(
            f"{path_text(path)} is no MATLAB file of version 5 or 7.3",
            remedy="save it in MATLAB with -v7 or -v7.3, or name its format if it is text: {Reading.format=NAME}",
        )
    return _open_version_5(path, reading, kind)


def _open_hdf5(path: Path, reading: Reading, kind: str) -> Opened:
    import h5py

    with reader_errors(path, "MATLAB 7.3"), h5py.File(path, "r") as file:
        names = [name for name, item in file.items() if name != "#refs#" and _is_numbers(item)]
        name = choose(names, reading.dataset, str(path))
        return opened_dataset(path, file[name], kind, fortran=True)


def _is_numbers(item: Any) -> bool:
    """Return whether an item of an HDF5 file is a square matrix or a vector, of numbers that are no text."""
    what = item.attrs.get("MATLAB_class", b"double")
    shape = getattr(item, "shape", None) or ()
    vector = len(shape) == 2 and 1 in shape and math.prod(shape) > 1 and item.dtype.kind == "f"
    return (
        what != b"char" and not item.attrs.get("MATLAB_empty", 0) and (vector or (len(shape) == 2 and is_matrix(item)))
    )


def _open_version_5(path: Path, reading: Reading, kind: str) -> Opened:
    with reader_errors(path, "MATLAB 5"):
        variables = {variable.name: variable for variable in _variables(path)}
    named = [name for name, variable in variables.items() if _may_be_matrix(variable)]
    if reading.dataset in variables and reading.dataset not in named:
        raise InputError(
            f"{path_text(path)}, variable {shown(reading.dataset)} is {variables[reading.dataset].described()}",
            remedy="save full(X) of a real matrix X",
        )
    if not named and variables:
        held = some([f"{shown(name)} ({variable.described(short=True)})" for name, variable in variables.items()])
        raise InputError(f"{path_text(path)} has no square matrix of numbers and no condensed vector, but {held}")
    variable = variables[choose(named, reading.dataset, str(path))]
    dtype, shape, provenance = variable.dtype, variable.read_shape(), provenance_of(path)
    assert dtype is not None
    if not variable.packed:
        return mapped_source(path, dtype, variable.start + variable.skip, shape, True, provenance, kind)
    check_unpacked(variable.count * dtype.itemsize, variable.size, path)
    pieces = partial(_numbers, path, variable, variable.count * dtype.itemsize)
    return copied_source(pieces, shape, dtype, provenance, kind, "is compressed", fortran=True)


def _may_be_matrix(variable: Variable) -> bool:
    shape = variable.read_shape()
    if variable.dtype is None or variable.count < 2:
        return False
    return (len(shape) == 2 and shape[0] == shape[1]) or (len(shape) == 1 and variable.dtype.kind == "f")


def _numbers(path: Path, variable: Variable, needed: int) -> Iterator[bytes]:
    """Yield the numbers of a compressed variable; all of its element is unpacked, as its checksum comes last."""
    what = f"{path_text(path)}, variable {shown(variable.name)},"
    left, skip = needed, variable.skip
    with reader_errors(path, "MATLAB 5"):
        for piece in _unpacked(path, variable):
            part, skip = piece[skip : skip + left], max(0, skip - len(piece))
            left -= len(part)
            yield part
        if left:
            met = f"{count_text(needed - left, 'byte')} of {needed:,}"
            raise InputError(f"{what} is truncated: {met}", remedy="copy the file again")


def _variables(path: Path) -> Iterator[Variable]:
    """Yield the variables of a file by their headers. Cost: reads, or unpacks, some hundred bytes of each."""
    end = path.stat().st_size
    with open(path, "rb") as file:
        order = "<" if file.read(HEAD)[126:128] == b"IM" else ">"
        at = HEAD
        while at < end:
            file.seek(at)
            tag = file.read(8)
            if len(tag) < 8:
                raise InputError(
                    f"{path_text(path)} is truncated after {count_text(at, 'byte')}", remedy="copy it again"
                )
            code, size = struct.unpack(f"{order}II", tag)
            if code not in (MATRIX, COMPRESSED) or at + 8 + size > end:
                raise InputError(
                    f"{path_text(path)} is truncated or damaged: the variable at byte {at:,} should have"
                    f" {count_text(size, 'byte')}",
                    remedy="copy it again",
                )
            yield _variable(file, order, at + 8, size, packed=code == COMPRESSED)
            at += 8 + size


def _variable(file: BinaryIO, order: str, start: int, size: int, *, packed: bool) -> Variable:
    """Return a variable from its header: flags, dimensions, name and the tag of its numbers."""
    text = file.read(min(size, 1 << 16))
    if packed:
        text = zlib.decompressobj().decompress(text, 1 << 16)
        code, _ = struct.unpack_from(f"{order}II", text)
        if code != MATRIX:
            raise ValueError(f"a compressed element of type {code}")
    at = 8 if packed else 0
    flags, at, (of_flags, _, _) = _element(text, at, order)
    (word,) = struct.unpack_from(f"{order}I", flags)
    sizes, at, (of_sizes, _, _) = _element(text, at, order)
    label, at, (of_label, _, _) = _element(text, at, order)
    if (TYPES.get(of_flags), TYPES.get(of_sizes)) != ("u4", "i4") or of_label not in TEXT:
        raise ValueError(f"a header of types {of_flags}, {of_sizes} and {of_label}")
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    name, kind = label.decode("latin-1"), word & 0xFF
    what = CLASSES.get(kind, "complex" if word & 0x800 else "")
    dtype = None
    if not what and min(shape, default=0) > 0:
        _, _, (number, length, at) = _element(text, at, order, only_tag=True)
        if number not in TYPES:
            raise ValueError(f"numbers of type {number}")
        dtype = np.dtype(TYPES[number]).newbyteorder("<" if order == "<" else ">")
        if length != math.prod(shape) * dtype.itemsize or (not packed and at + length > size):
            raise ValueError(f"variable {shown(name)} of shape {shape} has {length:,} bytes of numbers")
    return Variable(name, shape, dtype, what, start, size, packed, at)


def _element(text: bytes, at: int, order: str, *, only_tag: bool = False) -> tuple[bytes, int, tuple[int, int, int]]:
    """Return the data of a small element, the place of the next one, and its type, length and place."""
    code, size = struct.unpack_from(f"{order}II", text, at)
    begin, padded = at + 8, -(-size // 8) * 8
    if code >> 16:  # four bytes at most, within the tag
        code, size, begin, padded = code & 0xFFFF, code >> 16, at + 4, 4
    data = b"" if only_tag else text[begin : begin + size]
    if not only_tag and len(data) < size:
        raise ValueError("a header that ends too early")
    return data, begin + padded, (code, size, begin)


def _unpacked(path: Path, variable: Variable) -> Iterator[bytes]:
    """Yield the bytes of a compressed element, all of them: its checksum comes last."""
    unpacker = zlib.decompressobj()
    with open(path, "rb") as file:
        file.seek(variable.start)
        left = variable.size
        while left and not unpacker.eof:
            piece = file.read(min(left, COPY // 64))
            if not piece:
                break
            left -= len(piece)
            while piece:
                yield unpacker.decompress(piece, COPY)
                piece = unpacker.unconsumed_tail
        yield unpacker.flush()
    if not unpacker.eof:
        raise InputError(
            f"{path_text(path)}, variable {shown(variable.name)}, is truncated", remedy="copy the file again"
        )
