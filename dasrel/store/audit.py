"""Describe a store, and verify that its tiles agree with the description."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dasrel.errors import StoreError
from dasrel.kernels.checks import TileStatistics
from dasrel.names import KINDS
from dasrel.store.layout import Layout, TileIndex
from dasrel.store.matrix import open_matrix, open_unchecked, read_manifest
from dasrel.store.tile_files import StoreLike, TileFiles, absolute_location, local_path, location, storing
from dasrel.store.written import read_progress
from dasrel.util import Array, parallel
from dasrel.util.limits import Cost, Range, memory_limit
from dasrel.util.text import count_text, shown, size_text

STRIP = 512  # rows looked at together: a few MB, whatever the tile
FACTS = ("pairs", "minimum", "maximum", "mean", "zeros", "asymmetry", "diagonal", "missing", "clipped")


def audit_store(store: StoreLike, *, verify: bool = False, memory: int | str = "1GiB") -> dict[str, Any]:
    """Return the audit of a store, finished or not, as plain values.

    Parameters
    ----------
    verify
        Read every tile and check that it is there, that its checksum is right and the recorded one, that it holds no
        NaN, that its range is the recorded one, and that the diagonal and the symmetry of the tiles on it are right;
        compare ids, diagonal and records with their checksums. Only a complete store can be verified.
    memory
        Anonymous memory that the verification may take on this machine.

    Returns
    -------
    dict
        `n_objects`, `kind`, `tile`, `dtype`, `state`, `tiles`, `tiles_written`, `bytes_per_scan`,
        `bytes_on_disk` (None for a remote store), the facts `pairs`, `minimum`, `maximum`, `mean`, `zeros`,
        `asymmetry`, `diagonal`, `missing`, `clipped` (each None while the store is unfinished), `input` (the policies),
        and `provenance`. With `verify` also `verified`: `tiles` read and `bad`, one entry per fault with `tile`,
        `file`, `objects` and `problem`.

    Cost: no scan; one scan with `verify`.
    """
    manifest, group = read_manifest(store)
    layout = Layout(manifest["n_objects"], manifest["tile"], np.dtype(manifest["dtype"]))
    facts = manifest["audit"] or dict.fromkeys(FACTS)
    total = len(layout.tiles())
    result: dict[str, Any] = {
        "store": location(store),
        "state": manifest["state"],
        "n_objects": layout.n_objects,
        "kind": manifest["kind"],
        "dtype": manifest["dtype"],
        "tile": layout.tile,
        "tiles": total,
        "tiles_written": total if manifest["state"] == "complete" else _written(group, layout, store),
        "compress": manifest["compress"],
        "bytes_per_scan": layout.total_bytes,
        "bytes_on_disk": _bytes_on_disk(store),
        **{name: facts[name] for name in FACTS},
        "input": manifest["input"],
        "provenance": manifest["provenance"],
        "format_version": manifest["format_version"],
    }
    if verify:
        result["verified"] = {"tiles": total, "bad": _verify(store, memory)}
    return result


def estimate_audit(store: StoreLike, *, verify: bool = False, memory: int | str = "1GiB") -> Cost:
    """Estimate what `audit_store` would do with the same arguments. Cost: no scan."""
    layout = open_matrix(store).layout
    scans, needed = (1, memory_limit(memory)) if verify else (0, 0)
    return Cost("audit", layout.n_objects, Range(scans, scans, scans), layout.total_bytes, needed)


def _written(group: Any, layout: Layout, store: StoreLike) -> int:
    """Return the finished tiles of an unfinished store."""
    if "progress" not in group:
        return 0
    files = TileFiles(absolute_location(store), layout, mapped=False)
    with storing(store, "read"):
        return int(np.count_nonzero(~np.isnan(read_progress(files)[..., 0])))


def _bytes_on_disk(store: StoreLike) -> int | None:
    folder = local_path(store)
    if folder is None:
        return None
    return sum(os.lstat(os.path.join(where, name)).st_size for where, _, names in os.walk(folder) for name in names)


@dataclass
class _Seen:
    """Statistics of one tile as read: values of off-diagonal pairs, and of the diagonal where it has one."""

    problems: list[str]
    minimum: float = np.inf
    maximum: float = -np.inf
    diagonal: Array | None = None


def _verify(store: StoreLike, memory: int | str) -> list[dict[str, Any]]:
    """Return every fault of a complete store, tile by tile in the order of all work."""
    matrix = open_unchecked(store)
    layout, files = matrix.layout, matrix.files
    bad: list[dict[str, Any]] = []
    parts: tuple[Callable[[], Any], ...] = (
        lambda: matrix.ids, lambda: matrix.diagonal, matrix.records, matrix.checksums
    )  # fmt: skip
    for read in parts:
        try:
            read()
        except StoreError as error:
            bad.append({"tile": None, "file": location(store), "objects": None, "problem": error.problem})
    if bad:
        return bad
    if (local := local_path(store)) is not None:
        parallel.check_all_see(local)
    diagonal, rows = matrix.diagonal, matrix.records()
    strips = 3 * STRIP * layout.tile * layout.dtype.itemsize
    seen = parallel.run(
        partial(_look, files),
        layout.tiles(),
        label="verify",
        bytes_each=layout.tile_bytes,
        task_memory=strips if files.mapped else strips + 2 * layout.tile_bytes,
        memory=memory,
        scan=True,
    )
    for (i, j), tile in zip(layout.tiles(), seen, strict=True):
        expected = np.zeros(1) if diagonal is None else diagonal[layout.span(i)]
        problems = tile.problems or _compare(tile, TileStatistics.from_row(rows[i, j]), expected)
        objects = [[span.start, span.stop - 1] for span in (layout.span(i), layout.span(j))]
        bad += [{"tile": [i, j], "file": files.file(i, j), "objects": objects, "problem": text} for text in problems]
    return bad


def _look(files: TileFiles, index: TileIndex) -> _Seen:
    """Read one tile and return its statistics; a tile that cannot be read is a finding, not an error."""
    i, j = index
    try:
        tile = files.read(i, j, verify=True)
    except StoreError as error:
        return _Seen([error.problem])
    seen = _Seen([], diagonal=np.diagonal(tile).astype(np.float64) if i == j else None)
    absent = uneven = 0
    for start in range(0, tile.shape[0], STRIP):
        strip = tile[start : start + STRIP]
        absent += int(np.count_nonzero(np.isnan(strip)))
        if i == j:
            mirror = tile[:, start : start + STRIP].T
            uneven += int(np.count_nonzero((strip != mirror) & ~(np.isnan(strip) & np.isnan(mirror))))
            strip = strip.copy()
            rows = np.arange(strip.shape[0])
            strip[rows, start + rows] = np.nan
        seen.minimum = float(np.fmin(seen.minimum, np.fmin.reduce(strip, axis=None)))
        seen.maximum = float(np.fmax(seen.maximum, np.fmax.reduce(strip, axis=None)))
    if absent:
        seen.problems.append(f"{count_text(absent, 'value is', 'values are')} NaN")
    if uneven:
        seen.problems.append(
            f"{count_text(uneven // 2, 'pair')} of a tile on the diagonal with another value in each half"
        )
    return seen


def _compare(seen: _Seen, record: TileStatistics, diagonal: Array) -> list[str]:
    problems = []
    if (seen.minimum, seen.maximum) != (record.minimum, record.maximum):
        met, kept = f"{seen.minimum:g} to {seen.maximum:g}", f"{record.minimum:g} to {record.maximum:g}"
        problems.append(f"values range from {met}, recorded was {kept}")
    if seen.diagonal is not None and (wrong := np.flatnonzero(seen.diagonal != diagonal)).size:
        first = float(seen.diagonal[wrong[0]])
        problems.append(f"{count_text(wrong.size, 'value')} of the diagonal not as recorded, the first is {first:g}")
    return problems


def audit_lines(audit: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the names and texts of an audit for people, without empty facts."""
    done = audit["state"] == "complete"
    of = "" if done else f" of {audit['tiles']:,}"
    lines = [
        ("store", shown(audit["store"], limit=200)),
        ("state", audit["state"] if done else f"{audit['state']}: unfinished, can be resumed"),
        ("objects", f"{audit['n_objects']:,}"),
        ("kind", f"{audit['kind']}: {KINDS[audit['kind']]}"),
        ("tiles", f"{audit['tiles_written']:,}{of}, {count_text(audit['tile'], 'object')} a side, {audit['dtype']}"),
        (
            "one scan reads",
            size_text(audit["bytes_per_scan"]) + (f", {audit['compress']}" if audit["compress"] else ""),
        ),
    ]
    if audit["bytes_on_disk"] is not None:
        lines.append(("on disk", size_text(audit["bytes_on_disk"])))
    if done:
        lines += _facts(audit)
    lines.append(("repairs allowed", ", ".join(allowed_repairs(audit["input"])) or "none"))
    provenance = audit["provenance"]
    lines.append(("source", shown(provenance.get("source", "unknown"), limit=200)))
    if provenance.get("checksum"):
        lines.append(("checksum", shown(provenance["checksum"], limit=200)))
    for record in provenance.get("appends", []):
        source = shown(record["source"], limit=200)
        lines.append(("appended", f"{count_text(record['objects'], 'object')} by their {record['as']}: {source}"))
    if "verified" in audit:
        lines += _verdict(audit["verified"])
    return lines


def allowed_repairs(policy: dict[str, Any]) -> list[str]:
    """Return the repairs that a recorded policy allows, as the command line names them.

    >>> allowed_repairs({"symmetrize": "mean", "missing": "error", "clip_negative": 0.0})
    ['symmetrize mean']
    """
    return [
        f"{name} {value:g}".replace("_", "-") if isinstance(value, float) else f"{name} {value}".replace("_", "-")
        for name, value in policy.items()
        if value != "error" and (value != 0 or name == "missing")
    ]


def _facts(audit: dict[str, Any]) -> list[tuple[str, str]]:
    low, high, mean = (f"{audit[name]:.6g}" for name in ("minimum", "maximum", "mean"))
    lines = [("values", f"{low} to {high}, mean {mean}")]
    zeros, missing, clipped, asymmetry = (audit[name] for name in ("zeros", "missing", "clipped", "asymmetry"))
    share = f" ({100 * zeros['count'] / audit['pairs']:.2g}%)" if zeros["count"] else ""
    lines.append(("zeros", f"{zeros['count']:,} of {count_text(audit['pairs'], 'pair')}{share}{_examples(zeros)}"))
    if asymmetry["largest"]:
        where = _examples({"examples": [asymmetry["where"]]})
        lines.append(
            ("asymmetry", f"{count_text(asymmetry['pairs'], 'pair')}, the largest {asymmetry['largest']:.6g}{where}")
        )
    else:
        lines.append(("asymmetry", "none"))
    if missing["count"]:
        lines.append(("missing pairs", f"{missing['count']:,}{_examples(missing)}"))
    if clipped["count"]:
        lines.append(("clipped to 0", f"{count_text(clipped['count'], 'value')}, the lowest {clipped['lowest']:.6g}"))
    low, high = (f"{audit['diagonal'][name]:.6g}" for name in ("minimum", "maximum"))
    lines.append(("diagonal", low if low == high else f"{low} to {high}"))
    return lines


def _verdict(verified: dict[str, Any]) -> list[tuple[str, str]]:
    bad = verified["bad"]
    if not bad:
        return [("verified", f"{count_text(verified['tiles'], 'tile')} read, no faults")]
    lines = [("verified", f"{count_text(len(bad), 'fault')} in {count_text(verified['tiles'], 'tile')}:")]
    for fault in bad:
        who = ""
        if fault["objects"]:
            (a, b), (c, d) = fault["objects"]
            who = f", objects {a} to {b} against {c} to {d}"
        tile = "store" if fault["tile"] is None else f"tile ({fault['tile'][0]}, {fault['tile'][1]})"
        lines.append(("", f"{tile}: {fault['problem']}: {shown(fault['file'], limit=400)}{who}"))
    return lines


def _examples(fact: dict[str, Any]) -> str:
    pairs = "; ".join(f"{shown(a)} and {shown(b)}" for a, b in fact["examples"])
    return f", such as {pairs}" if pairs else ""
