"""The index files: Kafka's bytes, lookups as a linear search would do them, and wrong files recognised."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import NOW_MS, append, batch, opened

from headrace.storage.file_system import REAL
from headrace.storage.log_indexes import IndexCorrupt, OffsetIndex, TimeIndex

PATH = Path("/0.index")


def test_index_bytes_equal_kafkas(tmp_path: Path) -> None:
    offsets = OffsetIndex(tmp_path / "0.index", 1000, 100, REAL)
    offsets.append(1003, 4097)
    offsets.append(1010, 9000)
    times = TimeIndex(tmp_path / "0.timeindex", 1000, 100, REAL)
    times.append(NOW_MS, 1003)
    times.append(NOW_MS, 1004)  # no news
    times.append(NOW_MS + 1, 1010)
    offsets.write()
    times.write()
    assert (tmp_path / "0.index").read_bytes() == struct.pack(">iiii", 3, 4097, 10, 9000)
    assert (tmp_path / "0.timeindex").read_bytes() == struct.pack(">qiqi", NOW_MS, 3, NOW_MS + 1, 10)


@given(
    entries=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=30),
    wanted=st.integers(90, 2000),
)
def test_lookups_equal_a_linear_search(entries: list[tuple[int, int]], wanted: int) -> None:
    disk = FaultyFileSystem()
    index = OffsetIndex(PATH, 100, 10_000, disk)
    offset, position, known = 100, 0, []
    for offset_step, position_step in entries:
        offset, position = offset + offset_step, position + position_step
        index.append(offset, position)
        known.append((offset, position))
    index.write()
    assert index.position_for(wanted) == max((p for o, p in known if o <= wanted), default=0)
    assert index.position_before(wanted * 10) == max((p for _, p in known if p <= wanted * 10), default=0)
    again = OffsetIndex(PATH, 100, 10_000, disk)
    if known:
        again.load(position + 1)
        assert again.entries() == known
        again.truncate_to(wanted)
        assert again.entries() == [(o, p) for o, p in known if o < wanted]


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 4)), max_size=30), st.integers(0, 60))
def test_timestamp_lookup_never_begins_too_late(steps: list[tuple[int, int]], wanted: int) -> None:
    index = TimeIndex(PATH, 100, 10_000, FaultyFileSystem())
    time, offset, largest, seen = 10, 100, -1, []
    for time_step, offset_step in steps:
        time, offset = max(0, time + time_step), offset + offset_step + 1
        largest = max(largest, time)
        seen.append((time, offset))
        index.append(largest, next(o for t, o in seen if t == largest))
    begin = index.offset_for(wanted)
    first = next((o for t, o in seen if t >= wanted), None)
    assert first is None or begin <= first


def test_preallocated_zeros_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(struct.pack(">ii", 5, 4100) + bytes(800))
    index = OffsetIndex(path, 0, 10_000, REAL)
    index.load(5000)
    assert index.entries() == [(5, 4100)]
    index.append(9, 8300)
    index.write()
    again = OffsetIndex(path, 0, 10_000, REAL)
    again.load(9000)
    assert again.entries() == [(5, 4100), (9, 8300)]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iiii", 5, 4100, 5, 8200),
        struct.pack(">iiii", 5, 4100, 9, 4000),
        struct.pack(">ii", 5, 20_000),
        struct.pack(">ii", -5, 100),
        b"\x00\x00\x00\x05\x00\x00\x10",
    ],
    ids=["offsets stand still", "positions fall", "behind the end", "negative", "torn"],
)
def test_a_wrong_offset_index_is_recognised(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(data)
    with pytest.raises(IndexCorrupt):
        OffsetIndex(path, 0, 10_000, REAL).load(10_000)


@pytest.mark.parametrize(
    "data",
    [struct.pack(">qiqi", 9, 1, 9, 2), struct.pack(">qiqi", 8, 2, 9, 1), struct.pack(">qi", -9, 1), b"\x00" * 13],
)
def test_a_wrong_time_index_is_recognised(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "0.timeindex"
    path.write_bytes(data)
    with pytest.raises(IndexCorrupt):
        TimeIndex(path, 0, 10_000, REAL).load()


def test_an_entry_every_4096_bytes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    size = len(batch("x" * 900))
    for n in range(20):
        append(log, "x" * 900, timestamp_ms=NOW_MS + n)
    log.close()
    entries = list(struct.iter_unpack(">ii", (tmp_path / f"{0:020d}.index").read_bytes()))
    step = 4096 // size + 1
    assert entries == [(n, n * size) for n in range(step, 20, step)]
    times = list(struct.iter_unpack(">qi", (tmp_path / f"{0:020d}.timeindex").read_bytes()))
    assert times == [(NOW_MS + n, n) for n in range(step, 20, step)] + [(NOW_MS + 19, 19)]


def test_entries_are_written_in_groups_and_at_a_sync() -> None:
    disk = FaultyFileSystem()
    index = OffsetIndex(PATH, 0, 10_000, disk)
    for number in range(1, 11):
        index.append(number, number * 100)
    assert not disk.exists(PATH)
    index.sync()
    assert len(disk.read_bytes(PATH)) == 10 * index.entry_bytes
    for number in range(11, 200):
        index.append(number, number * 100)
    held = len(disk.read_bytes(PATH)) // index.entry_bytes
    assert 10 < held < 199
    index.truncate_to(held - 1)  # what the file holds, and what it does not hold yet
    assert len(disk.read_bytes(PATH)) == (held - 2) * index.entry_bytes
    index.append(1000, 50_000)
    index.truncate_to(999)
    index.append(1001, 60_000)
    index.sync()
    again = OffsetIndex(PATH, 0, 10_000, disk)
    again.load(100_000)
    assert again.entries() == index.entries()
    assert again.last() == (1001, 60_000)


def test_an_unchanged_index_is_not_synced_again() -> None:
    asked: list[str] = []
    disk = FaultyFileSystem()
    disk.failures = lambda operation, _path: asked.append(operation)
    index = TimeIndex(PATH, 0, 10_000, disk)
    index.append(NOW_MS, 5)
    index.sync()
    index.sync()
    assert asked.count("sync") == 1
    index.append(NOW_MS + 1, 6)
    index.sync()
    assert asked.count("sync") == 2


def test_entries_that_a_full_disk_refused_are_written_when_there_is_room() -> None:
    disk = FaultyFileSystem(capacity_bytes=20)
    index = OffsetIndex(PATH, 0, 10_000, disk)
    for number in range(1, 6):
        index.append(number, number * 100)
    index.write()
    assert disk.read_bytes(PATH) == b""  # cut back, never a part of it
    disk.capacity_bytes = None
    index.write()
    again = OffsetIndex(PATH, 0, 10_000, disk)
    again.load(100_000)
    assert again.entries() == index.entries()
