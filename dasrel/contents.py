"""What a file, a folder or a store holds, as one short word. What was read once is not read again.

The word is a checksum. It is kept with the signature of the files, their sizes, times and inodes, and while that is the
same the content is taken to be the same: a source of 100 GB is not read again to see that nothing has changed.

The word of a store comes from its names and from the records of its tiles. Only where the signature has changed are the
tiles read, and compared with the checksums that they end with.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dasrel import stopping
from dasrel.errors import InputError, StoreError, shown

Known = dict[str, dict[str, str]]
"""For each path its signature and its word."""
CHUNK = 1 << 20
DECIDES = ("input", "compress", "format_version")
"""What else of a manifest says what the values are."""


class Contents:
    """The words of paths, with what is known of them from before."""

    def __init__(self, known: Known | None = None, *, trust: bool = True) -> None:
        self.known: Known = {} if known is None else known
        self.trust = trust
        """Whether a signature that has not changed is believed."""
        self._seen: set[str] = set()

    def is_known(self, path: Path) -> bool:
        """Whether nothing at this path has changed since it was read."""
        kept = self.known.get(str(path))
        return kept is not None and kept["signature"] == signature(path)

    def of(self, path: Path) -> str:
        """The word of what lies at a path. Cost: reads it all, if its signature is not the one from before."""
        name = str(path)
        now = signature(path)
        kept = self.known.get(name)
        if kept is not None and kept["signature"] == now and (self.trust or name in self._seen):
            return kept["word"]
        word = read(path)
        if signature(path) != now:
            raise InputError(f"{shown(path, limit=200)} changes while it is being read; wait until it is whole")
        self.known[name] = {"signature": now, "word": word}
        self._seen.add(name)
        return word

    def adopt(self, path: Path, word: str) -> None:
        """Keep the word of something that was written here just now."""
        self.known[str(path)] = {"signature": signature(path), "word": word}
        self._seen.add(str(path))


def signature(path: Path) -> str:
    """Sizes, times and inodes of all files at a path, as one word. Cost: a stat of each."""
    try:
        if not path.is_dir():
            return _signed([("", path)])
        return _signed(_files(path))
    except FileNotFoundError:
        raise InputError(f"{shown(path, limit=200)} is not there; check the name") from None
    except OSError as error:
        raise InputError(f"{shown(path, limit=200)} cannot be read: {error.strerror}") from None


def read(path: Path, *, leave_out: Iterable[str] = (), whole: bool = True) -> str:
    """The word of a file, a folder or a store, read now.

    Parameters
    ----------
    leave_out
        Files of a folder that do not count.
    whole
        Read the tiles of a store and compare them with their checksums; else they need only be there.
    """
    try:
        if not path.is_dir():
            return _file(path)
        if store_manifest(path) is not None:
            return _store(path, whole)
        digest = hashlib.sha256()
        for name, file in _files(path):
            if name not in leave_out:
                digest.update(f"{name}\0{_file(file)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()
    except FileNotFoundError as error:
        raise InputError(f"{shown(error.filename or path, limit=200)} is not there; check the name") from None


def store_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a local store; None where there is none."""
    try:
        text = (folder / "zarr.json").read_text(encoding="utf-8")
        manifest = json.loads(text)["attributes"]["dasrel"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _store(folder: Path, whole: bool) -> str:
    """The word of a store: its names and the records of its tiles. An unfinished append does not change it."""
    from dasrel.identity import matrix_identity
    from dasrel.store import open_matrix

    matrix = open_matrix(folder)
    try:
        about = {**matrix_identity(matrix), **{name: matrix.manifest.get(name) for name in DECIDES}}
        if matrix.diagonal is not None:
            about["diagonal"] = hashlib.sha256(matrix.diagonal.tobytes()).hexdigest()
    except Exception as error:  # whatever Zarr says about a damaged array
        raise StoreError(f"{shown(folder, limit=200)} cannot be read: {shown(error, limit=200)}") from None
    for i, j in matrix.layout.tiles():
        _check_tile(folder / "values" / "c" / str(i) / str(j), whole)
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _check_tile(file: Path, whole: bool) -> None:
    """See that a tile is there and, if wanted, that its bytes have the checksum that its last four are."""
    try:
        left = file.stat().st_size - 4
        with file.open("rb", buffering=0) as opened:
            if whole:
                import google_crc32c

                found = 0
                while left > 0 and (part := opened.read(min(left, CHUNK))):
                    stopping.check()
                    found = google_crc32c.extend(found, part)
                    left -= len(part)
                if int.from_bytes(opened.read(4), "little") != found:
                    raise StoreError(f"tile {shown(file, limit=200)} is corrupt: its checksum is {found:08x}")
    except OSError as error:
        raise StoreError(f"tile {shown(file, limit=200)} cannot be read: {error.strerror}") from None


def _file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """All files below a folder with their names in it, in the order of these."""
    found = []
    for where, _, names in os.walk(folder):
        found += [Path(where, name) for name in names]
    for file in sorted(found):
        yield file.relative_to(folder).as_posix(), file


def _signed(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        stat = file.stat()
        line = f"{name}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]
