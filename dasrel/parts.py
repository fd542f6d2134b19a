"""A store written by several processes at once, each of them a share of the tiles: for job arrays.

Every process gives the same arguments and `Writing(part=(k, n))`, k from 1 to n. Whoever comes first begins the store;
then each writes the tiles of its share that are not there yet. Parts need not know of each other: they may run at the
same time or one after the other, on any machine that sees the store, die, and be run again. When all of them are done,
the same call with `Writing(resume=True)` and no part writes what may still be missing and makes the store complete: the
same bytes as if one process had written it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasrel.errors import InputError, StoreError, shown
from dasrel.intake import Names, Policy
from dasrel.store import StoreLike, is_store, local_path, location, read_manifest
from dasrel.writer import Writer, Writing, check_same, checked_ids, create_group, create_store, new_manifest

VISIBLE = 10.0
"""Seconds within which a store that another machine has begun must be seen on a shared disk."""


@dataclass(frozen=True)
class PartDone:
    """What a part has done, and what is left."""

    part: tuple[int, int]
    written: int
    """Tiles of this part that were not there before; those that were are left as they are."""
    missing: int
    """Tiles of the whole store that nobody had written at that moment."""
    complete: bool
    """Whether the store is complete already."""


def parse_part(text: str) -> tuple[int, int]:
    """The part that K/N means.

    >>> parse_part("3/8")
    (3, 8)
    """
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, flags=re.ASCII)
    if found is None:
        raise InputError(f"part {shown(text)!r} is not K/N, such as 3/8: the third of eight parts")
    part = int(found[1]), int(found[2])
    check_part(Writing(part=part))
    return part


def check_part(writing: Writing) -> None:
    """Refuse a part that there is not, and a part of something else than a new store."""
    if writing.part is None:
        raise InputError("which part? Give Writing(part=(k, n))")
    k, n = writing.part
    if not 0 <= k <= n or n < 1:
        raise InputError(f"there is no part {k}/{n}: give 1/{n} to {n}/{n}, or 0/{n} to begin the store only")
    if writing.force:
        raise InputError("a part cannot replace a store (--force): remove the old one first")


def begin_store(store: StoreLike, *, writing: Writing, **arguments: Any) -> Writer:
    """`create_store`, or `join_store` when a part is asked for."""
    if writing.part is None:
        return create_store(store, writing=writing, **arguments)
    return join_store(store, writing=writing, **arguments)


def join_store(
    store: StoreLike,
    *,
    n_objects: int,
    kind: str,
    writing: Writing,
    ids: Names | None = None,
    policy: Policy | None = None,
    provenance: dict[str, Any] | None = None,
) -> Writer:
    """Begin a store for `writing.part`, or join those who have begun it; the arguments are those of `create_store`.

    A local store appears at once, with all its arrays, by one rename: of several that come first, one wins. An object
    store has no such rename, so there part 0 of n, which has no tiles, must have begun it before the others start.
    """
    check_part(writing)
    assert writing.part is not None
    names = checked_ids(ids, n_objects)
    manifest = new_manifest(n_objects, kind, writing, policy or Policy(), provenance or {})
    local = local_path(store)
    state = read_manifest(store)[0]["state"] if is_store(store) else None
    if local is None and state in (None, "begun", "abandoned"):
        if writing.part[0] != 0:
            raise StoreError(
                f"{location(store)} is not begun, and several processes cannot begin a remote store at once: run the"
                f" same with --part 0/{writing.part[1]} first, which only begins it"
            )
        create_group(store, manifest, names, overwrite=state is not None)
    elif local is not None and state is None:
        aside = local.with_name(f".{local.name}.{uuid.uuid4().hex}.begun")
        try:
            create_group(aside, manifest, names)
            os.rename(aside, local)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _wait_for(store)  # another was first
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    begun, group = read_manifest(store, "r+")
    if begun["state"] == "begun":
        raise StoreError(f"{location(store)} was begun by a process that was killed at once: remove it and run again")
    check_same(begun, manifest, store)
    if not np.array_equal(np.asarray(group["ids"][:]), names):
        raise StoreError(f"{location(store)} was begun with other ids; remove it to begin anew")
    return Writer(store, store, begun, group, resumed=True, part=writing.part)


def write_part(writer: Writer, write: Callable[[], None]) -> PartDone:
    """Have the missing tiles of a part written, and tell how the store stands then."""
    assert writer.part is not None
    before = _missing(writer)
    try:
        write()
    except (FileNotFoundError, KeyError):
        # The store may have been made complete meanwhile: then all tiles are there, and their progress is not.
        if read_manifest(writer.store)[0]["audit"] is None:
            raise
    written = before - _missing(writer)
    now, group = read_manifest(writer.store)
    whole = Writer(writer.store, writer.store, now, group)
    return PartDone(writer.part, written, _missing(whole), now["state"] == "complete")


def _missing(writer: Writer) -> int:
    try:
        return len(writer.missing())
    except KeyError:  # no progress any more: it is being made complete
        return 0


def _wait_for(store: StoreLike) -> None:
    """Until this machine, too, sees the store."""
    end = time.monotonic() + VISIBLE
    while not is_store(store):
        if time.monotonic() > end:
            raise StoreError(f"{location(store)} is in the way: it exists, but there is no store in it; remove it")
        time.sleep(0.1)
