"""Tiles read ahead, into the operating system's cache or past it: the same values, the same complaints, no hanging."""

import os
import threading
import time

import dask
import numpy as np
import pytest
from dask.system import CPU_COUNT

from dasrel import open_matrix, watch
from dasrel.engine import readahead
from dasrel.engine.readahead import SPARE, ReadAhead, TileCache, tile_cache
from dasrel.engine.reduce import Plan
from dasrel.engine.relation import product_consumer, relation
from dasrel.engine.scan import build_graph, scan
from dasrel.engine.worker_cache import no_progress
from dasrel.errors import StoreError
from dasrel.geometry import tree
from dasrel.kernels.products import View
from dasrel.store.tile_files import count_maps
from dasrel.util import limits
from tests.helpers.matrices import symmetric
from tests.helpers.scans import reduction
from tests.helpers.stores import stored


def past(matrix, kept=0.0):
    """Expect the page cache to keep this share of the matrix."""
    tile_cache(matrix, page_cache=int(kept * matrix.layout.total_bytes))
    return matrix


@pytest.fixture
def brought(monkeypatch):
    """The tiles that were read into the cache."""
    seen = []
    fill = ReadAhead._fill_cache
    monkeypatch.setattr(ReadAhead, "_fill_cache", lambda self, tile: seen.append(tile) or fill(self, tile))
    return seen


@pytest.fixture
def used(monkeypatch):
    """The tiles that were read past the cache."""
    seen = []
    begin = ReadAhead._begin

    def begin_and_tell(self):
        seen.append(next(iter(self._waiting)))
        begin(self)

    monkeypatch.setattr(ReadAhead, "_begin", begin_and_tell)
    return seen


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
@pytest.mark.parametrize(("n", "tile"), [(2, 16), (50, 16), (128, 32), (300, 20)])
def test_the_same_bits_as_through_the_cache(tmp_path, used, brought, n, tile, kept):
    values = symmetric(n, seed=n)
    matrix = stored(tmp_path / "m.zarr", values, tile=tile)
    everything = matrix.layout.tiles()
    U = np.random.default_rng(1).random((3, n))
    through = relation(matrix).left(U)
    assert sorted(brought) == everything
    brought.clear()
    past(matrix, kept)
    with watch() as meter:
        beside = relation(matrix).left(U)
    assert np.array_equal(through, beside)
    np.testing.assert_allclose(beside, U @ values**2, rtol=1e-5)
    assert (meter.scans, meter.tiles) == (1, len(everything))
    assert sorted(used + brought) == everything
    assert abs(len(used) - (1 - kept) * len(everything)) <= 1
    relation(matrix).left(U)
    assert sorted(brought + used[-len(used) // 2 :]) == everything  # what is in the cache is not fetched again


def test_a_first_scan_reads_every_tile_once_and_ahead(tmp_path, brought, monkeypatch):
    """Each from end to end, by threads of its own; the next scan finds them."""
    values = symmetric(1500)
    matrix = stored(tmp_path / "m.zarr", values, tile=500)
    drop(matrix)
    readers, plain = set(), os.sendfile
    monkeypatch.setattr(os, "sendfile", lambda *given: readers.add(threading.get_ident()) or plain(*given))
    monkeypatch.setattr(readahead, "CHUNK", 300_000)
    before = limits.bytes_from_disk()
    sums = relation(matrix).row_sums()
    np.testing.assert_allclose(sums, (values**2).sum(axis=1), rtol=1e-5)
    assert sorted(brought) == matrix.layout.tiles()
    assert threading.get_ident() not in readers
    read = limits.bytes_from_disk() - before
    assert read == 0 or matrix.layout.total_bytes <= read < 1.1 * matrix.layout.total_bytes  # 0: files in memory
    assert (relation(matrix).row_sums() == sums).all()
    assert len(brought) == len(matrix.layout.tiles())


def test_many_tiles_read_ahead_keep_no_files_open(tmp_path, brought):
    matrix = stored(tmp_path / "m.zarr", symmetric(300), tile=20)
    order = matrix.layout.tiles()
    reader = ReadAhead(TileCache(matrix.files), 1)
    open_before = len(os.listdir("/proc/self/fd"))
    with reader.reading(order):
        reader.read_checked(*order[0])
        while any(tile.left for tile in list(reader._tiles.values())) or len(brought) < len(order):
            time.sleep(0.001)
        assert len(os.listdir("/proc/self/fd")) <= open_before + 1


def test_where_nothing_can_be_sent_to_nowhere_the_store_reads(tmp_path, monkeypatch, brought):
    values = symmetric(80)
    matrix = stored(tmp_path / "m.zarr", values, tile=16)

    def refuse(*given):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuse)
    np.testing.assert_allclose(relation(matrix).row_sums(), (values**2).sum(axis=1), rtol=1e-5)
    assert brought


@pytest.mark.parametrize("tile", [30, 64, 80])
def test_tiles_that_are_read_in_chunks(tmp_path, used, monkeypatch, tile):
    """Less than a chunk, whole chunks and a checksum, some more than that; the checksum is no read of its own."""
    values = symmetric(200, seed=5)
    matrix = past(stored(tmp_path / "m.zarr", values, tile=tile))
    monkeypatch.setattr(readahead, "CHUNK", 4096)
    reads = []
    plain = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *requested: reads.append(requested[2]) or plain(*requested))
    np.testing.assert_allclose(relation(matrix).row_sums(), (values**2).sum(axis=1), rtol=1e-5)
    everything = len(matrix.layout.tiles())
    assert len(used) == everything
    assert len(reads) == everything * max(1, tile * tile * 4 // 4096)


def test_all_that_is_free_is_trusted_by_default(tmp_path, used, monkeypatch):
    matrix = stored(tmp_path / "m.zarr", symmetric(64), tile=16)
    relation(matrix).row_sums()
    assert not used
    matrix = open_matrix(tmp_path / "m.zarr")
    monkeypatch.setattr(limits, "free_memory", lambda: matrix.layout.total_bytes / 2)
    relation(matrix).row_sums()
    assert len(used) == 6  # of ten tiles, 0.8 times a half are kept


def test_other_consumers_keep_nothing_of_a_buffer(tmp_path, used):
    values = symmetric(90, seed=4)
    matrix = stored(tmp_path / "m.zarr", values, tile=16)
    through = tree.minimum_spanning_tree(matrix)
    beside = tree.minimum_spanning_tree(past(matrix))
    assert used
    for name in ("weights", "edges", "largest"):
        assert np.array_equal(getattr(through, name), getattr(beside, name))


def test_buffers_are_few_and_used_again(tmp_path, monkeypatch):
    matrix = past(stored(tmp_path / "m.zarr", symmetric(200), tile=16))
    monkeypatch.setattr("dasrel.engine.scan.SMALL", 0)
    for _ in range(3):
        relation(matrix).row_sums()
        assert 0 < len(tile_cache(matrix).buffers) <= CPU_COUNT + SPARE
    cache = tile_cache(matrix)
    assert cache.buffer_bytes(CPU_COUNT) >= sum(len(buffer) for buffer in cache.buffers)


def resident(kind):
    """Bytes of this process in memory, by what /proc calls them."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(kind)) * 1024


def test_buffers_are_memory_of_this_process_in_large_pages(tmp_path):
    """Not shared memory, which is counted elsewhere and comes in small pages."""
    matrix = past(stored(tmp_path / "m.zarr", symmetric(2000), tile=1000))
    shared = resident("RssShmem")
    relation(matrix).row_sums()
    buffers = tile_cache(matrix).buffers
    assert len(buffers[0]) == readahead.LARGE * 2
    assert resident("RssShmem") - shared < readahead.LARGE
    with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as setting:
        if "[never]" in setting.read():
            pytest.skip("no large pages here")
    here = np.frombuffer(buffers[0], dtype=np.uint8).ctypes.data
    assert large_pages_around(here) >= readahead.LARGE


def large_pages_around(address):
    """Bytes in large pages, in the region of memory that an address is in."""
    inside = False
    with open("/proc/self/smaps", encoding="ascii") as regions:
        for line in regions:
            if line[0] in "0123456789abcdef":
                start, stop = (int(end, 16) for end in line.split()[0].split("-"))
                inside = start <= address < stop
            elif inside and line.startswith("AnonHugePages"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no such region")


def test_without_room_for_buffers_the_cache_is_used(tmp_path, used):
    matrix = past(stored(tmp_path / "m.zarr", symmetric(256, seed=2), tile=128))
    consumer = reduction(_largest, max)
    scan(matrix, [consumer], memory=tile_cache(matrix).buffer_bytes(CPU_COUNT) - 1)
    assert not used
    scan(matrix, [consumer], memory=tile_cache(matrix).buffer_bytes(CPU_COUNT) + 1)
    assert used


def _largest(tile, on_diagonal):
    return float(tile.max())


@pytest.mark.parametrize("kept", [0, 0.5, 1])
def test_any_other_order_of_asking_works(tmp_path, kept):
    values = symmetric(160, seed=3).astype(np.float32)
    matrix = past(stored(tmp_path / "m.zarr", values, tile=16), kept)
    order = matrix.layout.tiles()
    for requested in (order[::-1], order[1::2] + order[::2], sorted(order, key=lambda tile: hash((tile, 7)))):
        tile_cache(matrix).seen.clear()
        reader = ReadAhead(tile_cache(matrix), 1)
        with reader.reading(order):
            for i, j in requested:
                tile = reader.read_checked(i, j)
                assert np.array_equal(tile, values[matrix.layout.span(i), matrix.layout.span(j)])
                del tile
                reader.done(i, j)


def _flip(path):
    with open(path, "r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_flip, r"is corrupt .*: tile \(1, 2\) of .*c/1/2"),
        (os.unlink, r"is missing: tile \(1, 2\) of .*c/1/2"),
        (lambda path: os.truncate(path, 500), r"has 500 bytes instead of .*: tile \(1, 2\) of .*c/1/2"),
    ],
)
def test_a_bad_tile_is_named_and_no_thread_is_left(tmp_path, monkeypatch, spoil, message, kept):
    monkeypatch.setattr("dasrel.engine.scan.SMALL", 0)
    matrix = past(stored(tmp_path / "m.zarr", symmetric(80), tile=16), kept)
    spoil(matrix.files.file(1, 2))
    before = threading.active_count()
    with dask.config.set(num_workers=2), pytest.raises(StoreError, match=message):
        relation(matrix).row_sums()
    assert not [thread for thread in threading.enumerate() if "_read_all" in thread.name]
    assert threading.active_count() <= before + 2  # Dask's own


def test_where_files_cannot_be_read_past_the_cache_the_store_reads_them(tmp_path, monkeypatch, used):
    values = symmetric(80)
    matrix = past(stored(tmp_path / "m.zarr", values, tile=16))
    plain = os.open

    def refuse(path, flags, *more, **named):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return plain(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    np.testing.assert_allclose(relation(matrix).row_sums(), (values**2).sum(axis=1), rtol=1e-5)
    assert used


def test_a_task_of_a_cluster_reads_its_own_tiles_ahead(tmp_path, used, monkeypatch):
    monkeypatch.setattr(limits, "free_memory", lambda: 0)
    matrix = past(stored(tmp_path / "m.zarr", symmetric(200), tile=16))
    plan = Plan(matrix.layout)
    assert plan.group_side == 2
    U = np.random.default_rng(0).random((2, 200))
    consumer = product_consumer(matrix, [(View("distance"), U)])
    graph, wanted = build_graph(plan, matrix.files, {}, [consumer], no_progress, ahead=True)
    folded = dask.get(graph, wanted)[0]
    (product,) = consumer.finish({k: part.value for k, part in enumerate(folded)})
    assert np.array_equal(product, relation(matrix).left(U))
    assert len(set(used)) == len(matrix.layout.tiles())


def test_memory_limits_of_control_groups(tmp_path):
    def put(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert limits.group_limits(tmp_path) == []
    put("proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    put("sys/fs/cgroup/memory.max", "max\n")
    put("sys/fs/cgroup/slurm/job_7/memory.max", "2000\n")
    put("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n")
    assert limits.group_limits(tmp_path) == [2000]
    put("proc/self/cgroup", "5:memory:/slurm/job_8\n4:cpu,cpuacct:/\n")
    put("sys/fs/cgroup/memory/slurm/job_8/memory.limit_in_bytes", "3000\n")
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert limits.group_limits(tmp_path) == [3000, 9223372036854771712]


def drop(matrix):
    """Take the tiles out of the operating system's cache."""
    os.sync()  # what is not written yet cannot be dropped
    tile_cache(matrix).close_maps()
    for i, j in matrix.layout.tiles():
        descriptor = os.open(matrix.files.file(i, j), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_a_scan_has_few_files_open(tmp_path, kept):
    """However many tiles are mapped or read at once."""
    matrix = stored(tmp_path / "m.zarr", symmetric(200), tile=20)
    past(matrix, kept)
    seen = relation(matrix)
    open_files = []
    before = len(os.listdir("/proc/self/fd"))
    with watch(lambda event: open_files.append(len(os.listdir("/proc/self/fd")))):
        seen.row_sums()
        seen.row_sums()
    assert max(open_files) - before < 25 < len(matrix.layout.tiles())


def test_only_so_many_maps_are_kept(tmp_path, monkeypatch):
    matrix = stored(tmp_path / "m.zarr", symmetric(200), tile=20)
    monkeypatch.setattr(readahead, "MAPS", count_maps() + 10)
    relation(matrix).row_sums()
    assert count_maps() <= readahead.MAPS
    tile = matrix.read_tile(0, 1)
    held = count_maps()
    part = tile[2:4].T
    del tile
    assert count_maps() == held
    assert np.array_equal(part, matrix.read_tile(0, 1)[2:4].T)
    del part
    assert count_maps() == held - 1


def test_tiles_that_were_taken_from_memory_are_waited_for_again(tmp_path):
    matrix = stored(tmp_path / "m.zarr", symmetric(1500), tile=500)
    seen = relation(matrix)
    first = seen.row_sums()
    seen.row_sums()
    assert tile_cache(matrix).in_memory
    drop(matrix)
    before = limits.bytes_from_disk()
    assert (seen.row_sums() == first).all()
    if limits.bytes_from_disk() == before:
        pytest.skip("this file system keeps its files in memory")
    assert not tile_cache(matrix).in_memory
    seen.row_sums()
    assert tile_cache(matrix).in_memory
