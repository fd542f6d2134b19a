"""Who reads tiles: on a cluster its workers only, in every command; and every tile that is read is counted."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import dasrel
from dasrel.commands.operations import OPERATIONS
from dasrel.engine import readahead
from dasrel.engine.readahead import TileCache
from tests.helpers.matrices import distances, grouped_points
from tests.helpers.processes import ran

N, TILE = 180, 30
HERE = os.getpid()

COMMANDS = """
    import d.npy new.zarr --kind distance --tile 30
    import d.lsmat text.zarr --kind distance --tile 30
    pairwise x.npy x.zarr --metric euclidean --tile 30
    append x.zarr more.npy --features x.npy
    append new.zarr rows.npy
    audit d.zarr
    audit d.zarr --verify
    export d.zarr e.npy
    export d.zarr condensed.npy --format condensed
    export d.zarr e.zarr
    import e.zarr again.zarr --kind distance --tile 30
    import d.h5 chunked.zarr --kind distance --tile 30
    export d.zarr e.lsmat
    export d.zarr e.phy
    cluster d.zarr c --rule fcm2 --clusters 3 --no-picture
    cluster d.zarr rows --rule fcm2 --clusters 3 --init rows --no-picture
    cluster d.zarr apart --rule fcm2 --clusters 2-4 --init k-means++ --no-picture
    cluster d.zarr random --rule pcm2 --clusters 3 --init random --eta cut --no-picture
    cluster d.zarr pictured --rule fcm1 --clusters 3 --euclideanize spread --picture
    plan d.zarr --clusters 3 --probe 0.01
    medoids d.zarr medoids --clusters 2-3
    align d.zarr a --clusters 2-3 --n-init 2
    outliers d.zarr o --reject 0.05
    outliers d.zarr segments --width 2 --reject 0.05 --clusters
    density d.zarr density
    density d.zarr dbscan --eps 0.5
    neighbours d.zarr near.npz --k 3
    neighbours d.zarr within.npz --within 0.3
    predict c across.npy predicted.csv
    validity d.zarr c --permutations 99
    compare c rows
    explore d.zarr explored --clusters 2-3
    spectrum d.zarr
    euclideanize d.zarr --method spread
    embed d.zarr axes
    tree d.zarr single.csv
    tree d.zarr average.csv --linkage average
    tree d.zarr ward.csv --linkage ward
    image d.zarr matrix.png
    image d.zarr clusters.png --result c
    report c o --out report.html
    demo demo
""".strip().splitlines()
ON_THE_CALLER = {"plan": "it measures the speed of this machine, and takes no cluster"}
WRITE = ("import", "pairwise", "append", "demo")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store and the sources of others."""
    X = grouped_points(N)
    more = X[:3] + 0.01
    D = distances(X)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "more.npy", more)
    np.save(tmp_path / "d.npy", D)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("d", data=D, chunks=(TILE, TILE))
    across = np.sqrt(((more[:, None] - X) ** 2).sum(-1))
    np.save(tmp_path / "rows.npy", np.hstack([across, distances(more)]))
    np.save(tmp_path / "across.npy", across)
    names = [f"o{k}" for k in range(N)]
    lines = [
        "\t".join(["", *names]),
        *("\t".join([name, *map(repr, row.tolist())]) for name, row in zip(names, D, strict=True)),
    ]
    (tmp_path / "d.lsmat").write_text("\n".join(lines) + "\n")
    dasrel.import_matrix(D, tmp_path / "d.zarr", kind="distance", writing=dasrel.Writing(tile=TILE))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Opened:
    """The tiles of stores whose files this process opens for reading, as Python's audit events tell."""

    def __init__(self) -> None:
        self.tiles: list[str] = []
        self.listens = True
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.listens and event == "open" and isinstance(arguments[0], str | bytes) and os.getpid() == HERE:
            path, written = os.fsdecode(arguments[0]), arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if "/values/c/" in path and not written:
                self.tiles.append(path)


@pytest.fixture
def opened() -> Iterator[Opened]:
    hearing = Opened()
    yield hearing
    hearing.listens = False  # a hook cannot be removed


def test_every_command_is_here() -> None:
    assert {line.split()[0] for line in COMMANDS} == set(OPERATIONS)


@pytest.mark.slow
def test_the_caller_reads_no_tile_of_a_store(folder: Path, client: Any, opened: Opened, few_digits: Any) -> None:
    for line in COMMANDS:
        opened.tiles.clear()
        assert ran(*line.split(), "--quiet") == 0, line
        assert bool(opened.tiles) == (line.split()[0] in ON_THE_CALLER), (line, opened.tiles[:3])


@pytest.mark.slow
def test_every_tile_that_is_read_is_counted(
    folder: Path, opened: Opened, few_digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readahead, "MAPS", 0)  # each read opens a file, once
    monkeypatch.setattr(TileCache, "should_read_ahead", False)
    for line in COMMANDS:
        opened.tiles.clear()
        with dasrel.watch() as meter:
            assert ran(*line.split(), "--quiet") == 0, line
        command = line.split()[0]
        if command == "plan":  # which opens more files, to ask the system to drop them from its cache
            assert meter.tiles > 0
        elif command in WRITE:  # what is written counts too
            assert len(opened.tiles) <= meter.tiles, line
        else:
            assert len(opened.tiles) == meter.tiles, line
