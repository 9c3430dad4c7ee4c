"""Compaction: the last value of each key stays at its offset, a tombstone until its delete horizon."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from tests.storage.cleaned_logs import COMPACTED, LOGS, ended, filled, log_of
from tests.storage.compaction_samples import cleaned, keyed, latest, pairs, put, records
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import NOW_MS, ManualClock

from headrace.protocol.record_batches import PlainRecord, encode_batch, iter_batch_headers
from headrace.storage.log_cleaning import LogCleaning, OffsetMap, delete_horizon_ms
from headrace.storage.log_directory import LogDirectory

DAY_MS = 24 * 3600 * 1000


def test_the_last_value_of_each_key_stays_at_its_offset(disk: FaultyFileSystem) -> None:
    log = log_of(disk)
    filled(log)
    before, end = pairs(log), log.log_end_offset
    active = log.segment_base_offsets[-1]
    assert cleaned(log) == active
    closed = [each for each in before if each[0] < active]
    last = {key: offset for offset, key, _ in closed}
    assert pairs(log) == [each for each in before if each[0] >= active or last[each[1]] == each[0]]
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    table = pairs(log)
    assert cleaned(log) == active
    assert pairs(log) == table, "a second time changes no record"
    assert len(log.segment_base_offsets) == 2, "small segments become one"


def test_a_reader_finds_the_next_record_from_any_offset(disk: FaultyFileSystem) -> None:
    log = log_of(disk)
    filled(log, rounds=30)
    cleaned(log)
    everything = records(log)
    for offset in range(log.log_end_offset):
        assert records(log, from_offset=offset) == [each for each in everything if each.offset >= offset]
        assert records(log, from_offset=offset, max_bytes=1) == [each for each in everything if each.offset >= offset]
    reopened = log_of(disk)
    assert records(reopened) == everything


def test_a_tombstone_stays_until_its_horizon_and_then_goes(disk: FaultyFileSystem) -> None:
    log = log_of(disk, delete_retention_ms=1000)
    put(log, ("gone", "1"), ("stays", "1"), timestamp_ms=NOW_MS - 50)
    put(log, ("gone", None), timestamp_ms=NOW_MS - 40)
    put(log, ("filler", "x" * 300))
    put(log, ("filler", "y" * 300))
    first_dirty = cleaned(log)
    assert [each[1:] for each in pairs(log)][:2] == [("stays", "1"), ("gone", None)]
    tombstone = next(header for header in iter_batch_headers(log.read(2, 1)))
    assert delete_horizon_ms(tombstone) == NOW_MS + 1000
    assert records(log, from_offset=2)[0].timestamp_ms == NOW_MS - 40, "its own time is what it was"
    put(log, ("filler", "z" * 300))
    first_dirty = cleaned(log, first_dirty=first_dirty, now_ms=NOW_MS + 999)
    assert ("gone", None) in [each[1:] for each in pairs(log)]
    put(log, ("filler", "z" * 301))
    cleaned(log, first_dirty=first_dirty, now_ms=NOW_MS + 1000)
    assert "gone" not in [each[1] for each in pairs(log)]
    assert latest(log)["stays"] == "1"


def test_a_value_after_a_tombstone_is_kept(disk: FaultyFileSystem) -> None:
    log = log_of(disk, delete_retention_ms=0)
    for value in ("1", None, "2", None, "3"):
        put(log, ("key", value), ("filler", "x" * 150))
    put(log, ("filler", "y" * 300))
    for _ in range(3):
        cleaned(log)
    assert latest(log)["key"] == "3"


def test_the_active_segment_is_never_touched(disk: FaultyFileSystem) -> None:
    log = log_of(disk, segment_bytes=10_000)
    filled(log)
    before = records(log)
    assert log.compactable(0, NOW_MS).dirty_bytes == 0
    assert cleaned(log) == 0
    assert records(log) == before


def test_segments_closed_after_the_flush_are_not_cleaned(disk: FaultyFileSystem) -> None:
    """A recovery would take them for holes, and cut the log there."""
    log = log_of(disk)
    for n in range(8):
        put(log, ("key", str(n)), ("filler", "x" * 300))
    flushed_offset = log.flush()
    for n in range(8):
        put(log, ("key", str(n)), ("filler", "x" * 300))
    assert log.plan_cleaning(0, NOW_MS).end_offset > flushed_offset
    bounded = log.plan_cleaning(0, NOW_MS, flushed_offset=flushed_offset)
    assert 0 < bounded.end_offset <= flushed_offset
    assert all(segment.end_offset <= flushed_offset for segment in bounded.closed)


def test_cleaning_ends_before_an_open_transaction(disk: FaultyFileSystem) -> None:
    log = log_of(disk)
    put(log, ("key", "old"))
    put(log, ("key", "new"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    for _ in range(6):
        put(log, ("filler", "x" * 300))
    log.flush()
    assert log.last_stable_offset == 1
    assert log.plan_cleaning(0, NOW_MS).end_offset == 0
    assert cleaned(log) == 0
    assert [value for _, key, value in pairs(log) if key == "key"] == ["old", "new"]


def test_aborted_records_never_hide_committed_ones(disk: FaultyFileSystem) -> None:
    log = log_of(disk, delete_retention_ms=1000)
    put(log, ("key", "committed"))
    put(log, ("key", "aborted"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    ended(log, "abort")
    put(log, ("key-2", "1"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=1)
    ended(log, "commit")
    for _ in range(4):
        put(log, ("filler", "x" * 300))
    first_dirty = cleaned(log)
    assert [each[1:] for each in pairs(log)][:2] == [("key", "committed"), ("key-2", "1")]
    headers = [header for header in iter_batch_headers(log.read(0, 1 << 20)) if header.is_control]
    assert [header.base_offset for header in headers] == [2, 4], "markers stay with the pass that took their records"
    put(log, ("filler", "y" * 300))
    first_dirty = cleaned(log, first_dirty=first_dirty)
    horizons = [delete_horizon_ms(header) for header in iter_batch_headers(log.read(0, 1 << 20)) if header.is_control]
    assert horizons == [NOW_MS + 1000, None], "the records of the committed one are still there"
    put(log, ("filler", "z" * 300))
    cleaned(log, first_dirty=first_dirty, now_ms=NOW_MS + 1000)
    markers = [header.base_offset for header in iter_batch_headers(log.read(0, 1 << 20)) if header.is_control]
    assert markers == [4]


def test_markers_in_the_active_segment_are_used(disk: FaultyFileSystem) -> None:
    log = log_of(disk)
    put(log, ("key", "committed"))
    put(log, ("key", "aborted"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    for _ in range(3):
        put(log, ("filler", "x" * 300))
    ended(log, "abort")
    assert log.last_stable_offset == log.log_end_offset
    cleaned(log)
    assert [value for _, key, value in pairs(log) if key == "key"] == ["committed"]


def test_markers_after_an_open_transaction_are_used(disk: FaultyFileSystem) -> None:
    log = log_of(disk, segment_bytes=200)
    put(log, ("key", "committed"))
    put(log, ("key", "aborted"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    put(log, ("other", "open"), transactional=True, producer_id=8, producer_epoch=0, base_sequence=0)
    ended(log, "abort")
    put(log, ("filler", "x" * 100))
    assert log.last_stable_offset == 2
    assert log.segment_base_offsets[1] == 2
    assert cleaned(log) == 2
    assert [value for _, key, value in pairs(log) if key == "key"] == ["committed"]


def test_keys_that_do_not_fit_into_memory_are_cleaned_in_several_passes(disk: FaultyFileSystem) -> None:
    log = log_of(disk)
    filled(log, rounds=30, keys=4)
    before, table = pairs(log), latest(log)
    first_dirty, passes = 0, 0
    while log.compactable(first_dirty, NOW_MS).dirty_bytes:
        reached = cleaned(log, first_dirty=first_dirty, dedupe_buffer_bytes=1)
        assert reached > first_dirty
        first_dirty, passes = reached, passes + 1
        assert latest(log) == table
    assert passes > 3
    assert len(pairs(log)) < len(before) / 2


@pytest.mark.parametrize(("lag_ms", "is_overdue"), [(None, False), (5_000, False), (4_999, True)])
def test_the_compaction_lag_counts_from_the_first_record_of_a_segment(
    disk: FaultyFileSystem, lag_ms: int | None, is_overdue: bool
) -> None:
    log = log_of(disk, **({} if lag_ms is None else {"max_compaction_lag_ms": lag_ms}))
    put(log, ("key", "first"), timestamp_ms=NOW_MS - 5_000)
    for _ in range(4):
        put(log, ("filler", "x" * 300), timestamp_ms=NOW_MS)
    assert log.compactable(0, NOW_MS).is_overdue is is_overdue


def test_a_stopped_cleaning_leaves_no_files(disk: FaultyFileSystem) -> None:
    class Stopped(Exception):
        pass

    log = log_of(disk)
    filled(log)
    log.flush()
    before, names = records(log), sorted(disk.names(LOGS))
    reads = 0
    while True:
        left = [reads]

        def throttle(_bytes: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Stopped

        swaps = LogCleaning(log.plan_cleaning(0, NOW_MS), throttle=throttle).clean_segments()
        try:
            next(swaps)
        except Stopped:
            assert sorted(disk.names(LOGS)) == names
            assert records(log) == before
            reads += 1
        else:
            break
    assert reads > 20


def test_timestamp_lookup_in_a_compacted_log(disk: FaultyFileSystem) -> None:
    log = log_of(disk)
    for n in range(60):
        put(log, (f"key-{n % 7}", str(n)), timestamp_ms=NOW_MS + n)
    cleaned(log)
    left = records(log)
    for n in range(-1, 62):
        expected = next(((each.offset, each.timestamp_ms) for each in left if each.timestamp_ms >= NOW_MS + n), None)
        assert log.offset_for_timestamp(NOW_MS + n) == expected
    assert log.max_timestamp_offset() == (59, NOW_MS + 59)


def test_offset_map_distinguishes_keys_of_all_lengths() -> None:
    keys = OffsetMap(1 << 20)
    names = [b"", b"a", b"a" * 22, b"a" * 23, b"a" * 24, b"a" * 25, b"b" * 400, struct.pack(">q", 7)]
    for offset, name in enumerate(names):
        keys.put(name, offset)
    assert [keys.last_offset(name) for name in names] == list(range(len(names)))
    assert keys.last_offset(b"c" * 400) == -1


# -- a directory ---------------------------------------------------------------------------------------------


def test_find_dirtiest_log_and_mark_cleaned(disk: FaultyFileSystem) -> None:
    root = Path("/logs")

    def directory() -> LogDirectory:
        return LogDirectory(root, defaults=replace(COMPACTED, segment_bytes=400), file_system=disk,
                            clock_ms=ManualClock())  # fmt: skip

    found = directory()
    found.create_topic("flights", uuid.uuid4(), 2)
    found.create_topic("other", uuid.uuid4(), 1, {"cleanup.policy": "delete"})
    assert found.find_dirtiest_log() is None
    filled(found.log("flights", 1))
    filled(found.log("other", 0))
    log, clean_to = found.find_dirtiest_log() or pytest.fail("nothing to clean")
    assert (log.topic, log.partition, clean_to) == ("flights", 1, 0)
    assert found.find_dirtiest_log(leave_out={log}) is None
    found.mark_cleaned(log, cleaned(log))
    assert found.find_dirtiest_log() is None
    assert disk.read_bytes(root / "cleaner-offset-checkpoint").decode() == (
        f"0\n1\nflights 1 {log.segment_base_offsets[-1]}\n"
    )
    found.close()
    again = directory()
    again.log("flights", 1)
    assert again.find_dirtiest_log() is None
    filled(again.log("flights", 1), rounds=40)
    _, clean_to = again.find_dirtiest_log() or pytest.fail("nothing to clean")
    assert clean_to > 0
    again.delete_topic("flights")
    assert again.find_dirtiest_log() is None


def test_compact_and_delete_together(disk: FaultyFileSystem) -> None:
    log = log_of(disk, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10_000)
    for n in range(40):
        put(log, (f"key-{n % 3}", str(n)), timestamp_ms=NOW_MS + n * 1000)
    cleaned(log)
    table = latest(log)
    assert log.apply_retention(NOW_MS + 40_000) >= 0
    assert latest(log) == table
    log.apply_retention(NOW_MS + 80_000)
    assert latest(log) == {}


def test_keyless_records_survive_compaction(disk: FaultyFileSystem) -> None:
    """A compacted topic refuses them; an altered one may hold them, and nothing says that one replaces another."""
    log = log_of(disk, cleanup_policy=frozenset({"delete"}))
    for n in range(10):
        log.append(encode_batch([PlainRecord(value=f"{n}".encode() * 60, timestamp_ms=NOW_MS)]), leader_epoch=0)
    log.reconfigure(COMPACTED)
    before = records(log)
    assert cleaned(log) > 0
    assert records(log) == before


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd", "snappy"])
def test_a_batch_keeps_its_codec_its_times_and_its_sequences(disk: FaultyFileSystem, codec: str) -> None:
    log = log_of(disk)
    put(log, ("a", "1"), ("b", "2"), ("c", "3"), timestamp_ms=NOW_MS - 5, compression=codec, producer_id=7,
        producer_epoch=1, base_sequence=40)  # fmt: skip
    put(log, ("a", "4"), ("c", "x" * 300), timestamp_ms=NOW_MS)
    put(log, ("d", "5"), ("d", "x" * 300), timestamp_ms=NOW_MS)
    put(log, ("d", "6"))
    cleaned(log)
    header = next(iter_batch_headers(log.read(0, 1)))
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 2, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 1, 40, 42)
    assert (header.compression, header.max_timestamp) == (codec, NOW_MS - 5)
    assert records(log)[0] == PlainRecord(key=b"b", value=b"2", timestamp_ms=NOW_MS - 5, offset=1)


def test_the_last_batch_of_a_producer_stays_without_records(disk: FaultyFileSystem) -> None:
    """So that a retry across a restart is still known, although nothing else of the batch is left."""
    log = log_of(disk)
    last = keyed(("key", "1"), producer_id=7, producer_epoch=0, base_sequence=5)
    log.append(last, leader_epoch=0)
    put(log, ("key", "2"))
    for _ in range(3):
        put(log, ("filler", "x" * 300))
    cleaned(log)
    header = next(iter_batch_headers(log.read(0, 1)))
    assert (header.base_offset, header.last_offset, header.records_count, header.base_sequence) == (0, 0, 0, 5)
    assert header.max_timestamp == NOW_MS
    log.abandon()
    for path in [path for path in disk.files if path.suffix == ".snapshot"]:
        del disk.files[path]
    log = log_of(disk)
    assert log.append(last, leader_epoch=0).duplicate
    log.append(keyed(("key", "3"), producer_id=7, producer_epoch=0, base_sequence=6), leader_epoch=0)
    put(log, ("filler", "x" * 300))
    put(log, ("filler", "x" * 300))
    cleaned(log)
    assert next(iter_batch_headers(log.read(0, 1))).base_offset > 0, "an empty batch goes with its reason"


def test_the_last_batch_before_the_end_stays_without_records(disk: FaultyFileSystem) -> None:
    """So that what is clean ends where it did, for whoever counts offsets by batches."""
    log = log_of(disk, segment_bytes=200)
    put(log, ("key", "committed"))
    put(log, ("key", "aborted"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    put(log, ("key", "also"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=1)
    ended(log, "abort")
    assert log.segment_base_offsets == (0, 2)
    assert cleaned(log) == 2
    found = [(each.base_offset, each.records_count) for each in iter_batch_headers(log.read(0, 1 << 20))]
    assert found == [(0, 1), (1, 0)], "the aborted batch before the end, without its record"
    put(log, ("other", "x" * 100))
    assert cleaned(log, first_dirty=2) == 4
    found = [(each.base_offset, each.records_count) for each in iter_batch_headers(log.read(1, 1 << 20))]
    assert found == [(2, 0), (3, 1)], "the end has moved; what is kept now is the last batch of the producer"
