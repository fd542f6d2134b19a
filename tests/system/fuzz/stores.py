"""Damaged stores: a command that reads one must give the results of the undamaged store, or refuse it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from tests.system.fuzz.base import STORES, TILE, commands
from tests.system.fuzz.damage import Rng, chance, damaged_bytes, damaged_json, pick
from tests.system.fuzz.judge import Case, Outcome, stored

Damage = Callable[[Rng, Path], None]


def tile_files(store: Path) -> list[Path]:
    return sorted(file for file in (store / "values" / "c").rglob("*") if file.is_file())


def summed(content: bytes) -> bytes:
    """Bytes with their checksum behind them, as a tile has it."""
    return content + google_crc32c.value(content).to_bytes(4, "little")


def _manifest(rng: Rng, store: Path) -> None:
    head = json.loads((store / "zarr.json").read_text())
    if chance(rng, 0.8):
        head["attributes"]["dasrel"] = damaged_json(rng, head["attributes"]["dasrel"])
    else:
        head = damaged_json(rng, head)
    (store / "zarr.json").write_text(json.dumps(head))


def _metadata(rng: Rng, store: Path) -> None:
    head = pick(rng, sorted(store.glob("*/zarr.json")))
    head.write_text(json.dumps(damaged_json(rng, json.loads(head.read_text()))))


def _metadata_bytes(rng: Rng, store: Path) -> None:
    head = pick(rng, sorted(store.rglob("zarr.json")))
    head.write_bytes(damaged_bytes(rng, head.read_bytes()))


def _tile_bytes(rng: Rng, store: Path) -> None:
    file = pick(rng, tile_files(store))
    file.write_bytes(damaged_bytes(rng, file.read_bytes()))


def _tile_values(rng: Rng, store: Path) -> None:
    """Other values, and a checksum that fits them."""
    file = pick(rng, tile_files(store))
    content = damaged_bytes(rng, file.read_bytes()[:-4])
    file.write_bytes(summed(content))


def _swapped(rng: Rng, store: Path) -> None:
    first, second = (tile_files(store)[k] for k in rng.permutation(len(tile_files(store)))[:2])
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    if chance(rng, 0.7):
        second.write_bytes(content)


def _transposed(rng: Rng, store: Path) -> None:
    file = pick(rng, [file for file in tile_files(store) if file.name != file.parent.name])
    content = file.read_bytes()[:-4]
    if len(content) in (TILE * TILE * 4, TILE * TILE * 8):
        side = np.frombuffer(content, f"V{len(content) // TILE**2}").reshape(TILE, TILE)
        content = np.ascontiguousarray(side.T).tobytes()
    file.write_bytes(summed(content))


def _missing(rng: Rng, store: Path) -> None:
    file = pick(rng, sorted(file for file in store.rglob("*") if file.is_file()))
    file.unlink()


def _folder_missing(rng: Rng, store: Path) -> None:
    shutil.rmtree(pick(rng, sorted(one for one in store.rglob("*") if one.is_dir())))


def _other_thing(rng: Rng, store: Path) -> None:
    """A FIFO, a folder, a loop or a device in the place of a file."""
    file = pick(rng, sorted(file for file in store.rglob("*") if file.is_file()))
    file.unlink()
    which = int(rng.integers(5))
    if which <= 1:
        os.mkfifo(file)
    elif which == 2:
        file.mkdir()
    else:
        file.symlink_to(file if which == 3 else pick(rng, ("/dev/zero", "/dev/null", "/nowhere")))


def _chunk_bytes(rng: Rng, store: Path) -> None:
    """Bytes of the ids, the records or the diagonal."""
    parts = [
        file for name in ("ids", "records*", "diagonal") for file in store.glob(f"{name}/c/**/*") if file.is_file()
    ]
    file = pick(rng, sorted(parts))
    file.write_bytes(damaged_bytes(rng, file.read_bytes()))


def _ids(rng: Rng, store: Path) -> None:
    """Other names, written as Zarr writes them."""
    import zarr

    array: Any = zarr.open_group(store, mode="r+")["ids"]
    ids = array[:]
    a, b = (int(k) for k in rng.permutation(len(ids))[:2])
    change = int(rng.integers(4))
    if change == 0:
        ids[a], ids[b] = ids[b], ids[a]
    elif change == 1:
        ids[a] = ids[b]
    else:
        ids[a] = pick(rng, ("", "x", "\x00", "a" * 1000, "\n", "1", " "))
    array[:] = ids


def _other_store(rng: Rng, store: Path) -> None:
    """One part of another store."""
    other = store.with_name("other.zarr")
    part = pick(rng, [name for name in ("ids", "values", "records", "zarr.json") if (store / name).exists()])
    if (store / part).is_dir():
        shutil.rmtree(store / part)
        shutil.copytree(other / part, store / part)
    else:
        shutil.copy(other / part, store / part)


def _none(rng: Rng, store: Path) -> None:
    pass


DAMAGES: tuple[Damage, ...] = (
    _manifest, _manifest, _manifest, _metadata, _metadata_bytes, _tile_bytes, _tile_bytes, _tile_values, _swapped,
    _transposed, _missing, _folder_missing, _other_thing, _chunk_bytes, _ids, _other_store, _none,
)  # fmt: skip


def store_case(rng: Rng, folder: Path, base: Path) -> Case:
    """A damaged copy of a store, and a command that reads it."""
    name = pick(rng, STORES)
    store, out = folder / "m.zarr", folder / "out"
    shutil.copytree(base / f"{name}.zarr", store)
    shutil.copytree(base / f"{pick(rng, STORES)}.zarr", folder / "other.zarr")
    out.mkdir()
    shutil.copy(base / "rows.npy", out)
    damage = pick(rng, DAMAGES)
    damage(rng, store)
    shutil.rmtree(folder / "other.zarr")
    (folder / "damage").write_text(damage.__name__)
    lines = commands(store, out)
    command = pick(
        rng,
        ("export", "export", "cluster", "cluster", "tree", "lsmat", "audit", "audit", "spectrum", "image", "append"),
    )
    wanted = base / "expected" / name
    if command == "append" and name == "kernel":
        command = "audit"

    def check(outcomes: list[Outcome]) -> str | None:
        if len(outcomes) == 2 and (outcomes[1].code or json.loads(outcomes[1].out)["verified"]["bad"]):
            return None
        fault = fault_of_result(command, outcomes[0], store, out, base / f"{name}.zarr", wanted)
        return None if fault is None else f"{fault} ({damage.__name__})"

    # Old tiles that need no new values are not read by an append: their damage is there for the next reader to find.
    return Case([lines[command], lines["audit"]] if command == "append" else [lines[command]], check)


def fault_of_result(command: str, done: Outcome, store: Path, out: Path, original: Path, wanted: Path) -> str | None:
    """Compare what a command has made of a damaged store with what it makes of the original."""
    if done.code:
        return None
    if command == "export":
        same = np.array_equal(np.load(out / "m.npy"), np.load(wanted / "m.npy"))
    elif command == "lsmat":
        same = (out / "m.lsmat").read_bytes() == (wanted / "m.lsmat").read_bytes()
    elif command == "cluster":
        names = ("labels.csv", "memberships.npy")
        same = all((out / "result" / one).read_bytes() == (wanted / "result" / one).read_bytes() for one in names)
    elif command == "tree":
        same = all(
            (out / "tree" / one).read_bytes() == (wanted / "tree" / one).read_bytes()
            for one in ("edges.csv", "vat.csv")
        )
    elif command == "audit":
        return _fault_of_audit(json.loads(done.out), store, original)
    elif command == "append":
        values, ids = stored(store)
        before, names_before = stored(original)
        full = np.load(out / "rows.npy")
        n = len(before)
        same = (
            np.array_equal(values[:n, :n], before) and np.allclose(values[n:], full) and ids[:n] == names_before
            and len(values) == n + 2
        )  # fmt: skip
    else:
        return None
    return None if same else f"silently wrong: {command} of a damaged store differs from that of the original"


def _fault_of_audit(output: dict[str, Any], store: Path, original: Path) -> str | None:
    """A store that an audit finds no fault with holds what it held before."""
    if output["verified"]["bad"]:
        return None
    try:
        same = [np.array_equal(*pair) for pair in zip(stored(store), stored(original), strict=True)]
    except Exception as error:
        return f"silently wrong: audit --verify finds no fault with a store that Zarr cannot read ({error})"
    if not all(same):
        return "silently wrong: audit --verify finds no fault with a store that holds something else"
    manifest = json.loads((original / "zarr.json").read_text())["attributes"]["dasrel"]
    for key, value in {**manifest["audit"], **{key: manifest[key] for key in ("kind", "n_objects", "dtype")}}.items():
        if output[key] != value:
            return f"silently wrong: audit --verify says {key} is {output[key]!r}, not {value!r}"
    return None
